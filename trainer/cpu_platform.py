"""A CPU platform and engine for verl 0.9.1, loaded by verl itself through VERL_USE_EXTERNAL_MODULES.

verl knows NVIDIA, Huawei and AMD and falls back to NVIDIA, which fails without CUDA. Its registries of platforms and
engines are open; with these two entries its FSDP2 engine runs in one process over gloo.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUntypedClassDecorator=false
# pyright: reportUnknownParameterType=false, reportUntypedBaseClass=false
# verl carries no types

from __future__ import annotations

import types
from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


def _nothing(*args: object, **kwargs: object) -> None:
    del args, kwargs


def _zero(*args: object, **kwargs: object) -> int:
    del args, kwargs
    return 0


def _no_memory(*args: object, **kwargs: object) -> tuple[int, int]:
    del args, kwargs
    return 0, 0


def _name(*args: object, **kwargs: object) -> str:
    del args, kwargs
    return "CPU"


CUDA_CALLS: dict[str, Callable[..., object]] = {
    "memory_allocated": _zero,
    "memory_reserved": _zero,
    "max_memory_allocated": _zero,
    "max_memory_reserved": _zero,
    "mem_get_info": _no_memory,
    "get_device_name": _name,
}


class CpuModule(types.ModuleType):
    """torch.cpu with the memory calls of torch.cuda, which report nothing here."""

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name.startswith("__"):
            raise AttributeError(name)
        if hasattr(torch.cpu, name):
            return getattr(torch.cpu, name)
        return CUDA_CALLS.get(name, _nothing)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """The machine's CPU as one device. Chosen by VERL_PLATFORM=cpu only, never detected."""

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "generic"

    @property
    def device_module(self) -> types.ModuleType:
        return CpuModule("spanloop_cpu")

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        del use_smi_check
        return False

    # verl uses the answer as a device everywhere; an index would mean a GPU
    def current_device(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride] says int, takes any device
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        del device_index

    def synchronize(self, device_index: int | None = None) -> None:
        del device_index

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        del settings

    def empty_cache(self) -> None:
        return

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        del device_index
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Generator[None]:  # pyright: ignore[reportIncompatibleMethodOverride] untyped base
        del msg
        yield

    def profiler_start(self) -> None:
        return

    def profiler_stop(self) -> None:
        return

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_resource_options(self, num_gpus: float) -> dict[str, float]:
        return {"num_cpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return
