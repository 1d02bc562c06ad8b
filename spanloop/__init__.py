"""spanloop: train agents from the events they emit.

from spanloop import emit_reward, rollout

Names are loaded when first used, so that an agent's process pays only for what it needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spanloop.infra.settings import Settings
    from spanloop.producers import (
        LLM,
        PromptTemplate,
        emit_annotation,
        emit_exception,
        emit_message,
        emit_object,
        emit_reward,
        llm_rollout,
        operation,
        prompt_rollout,
        rollout,
    )
    from spanloop.producers.worker import WorkerService

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "PromptTemplate",
    "Settings",
    "WorkerService",
    "__version__",
    "emit_annotation",
    "emit_exception",
    "emit_message",
    "emit_object",
    "emit_reward",
    "llm_rollout",
    "operation",
    "prompt_rollout",
    "rollout",
]
ELSEWHERE = {"Settings": "spanloop.infra.settings", "WorkerService": "spanloop.producers.worker"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'spanloop' has no attribute {name!r}")
    return getattr(importlib.import_module(ELSEWHERE.get(name, "spanloop.producers")), name)
