"""What runs in or beside users' agents and is first to write spans and rewards.

Start with `agent` (rollout), `emit` and `operation`; `worker` runs them, `gateway` records their model calls.
"""

from .agent import Agent, FunctionAgent, Job, RolloutInfo, llm_rollout, prompt_rollout, rollout
from .emit import emit_annotation, emit_exception, emit_message, emit_object, emit_reward
from .llm import LLM, capture
from .operation import Operation, operation
from .prompt import PromptTemplate
from .recording import Recorded, record

__all__ = [
    "LLM",
    "Agent",
    "FunctionAgent",
    "Job",
    "Operation",
    "PromptTemplate",
    "Recorded",
    "RolloutInfo",
    "capture",
    "emit_annotation",
    "emit_exception",
    "emit_message",
    "emit_object",
    "emit_reward",
    "llm_rollout",
    "operation",
    "prompt_rollout",
    "record",
    "rollout",
]
