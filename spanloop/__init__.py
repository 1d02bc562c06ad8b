"""spanloop: train agents from the events they emit.

    from spanloop import rollout, emit_reward

Names are loaded when first used, so that an agent's process pays only for what it needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spanloop.infra.settings import Settings
    from spanloop.producers.agent import LLM, rollout
    from spanloop.producers.emit import (
        emit_annotation,
        emit_exception,
        emit_message,
        emit_object,
        emit_reward,
        operation,
    )
    from spanloop.producers.worker import WorkerService

_WHERE = {
    "LLM": "producers.agent",
    "Settings": "infra.settings",
    "WorkerService": "producers.worker",
    "emit_annotation": "producers.emit",
    "emit_exception": "producers.emit",
    "emit_message": "producers.emit",
    "emit_object": "producers.emit",
    "emit_reward": "producers.emit",
    "operation": "producers.emit",
    "rollout": "producers.agent",
}

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "Settings",
    "WorkerService",
    "__version__",
    "emit_annotation",
    "emit_exception",
    "emit_message",
    "emit_object",
    "emit_reward",
    "operation",
    "rollout",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'spanloop' has no attribute {name!r}")
    return getattr(importlib.import_module(f"spanloop.{_WHERE[name]}"), name)
