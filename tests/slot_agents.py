"""Agents for slots that are processes: how each behaves is its task's `how`."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import Any

from spanloop.producers import emit_message, emit_reward, rollout
from spanloop.producers.agent import RolloutInfo
from spanloop.producers.llm import LLM


@rollout
def agent(task: str | None, rollout: RolloutInfo, llm: LLM) -> float:
    """Says who it is, then does what its task says."""
    emit_message(f"{os.getpid()} {rollout.rollout_id} {llm.api_key}")
    how, *rest = (task or "succeed").split()
    if how == "exit":
        os._exit(int(rest[0]))
    elif how == "signal":
        os.kill(os.getpid(), int(rest[0]))
    elif how == "raise":
        raise ValueError("boo")
    elif how == "sleep":
        clean_up_late()
    elif how == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)
    elif how == "hold":  # the interpreter, as some C code does: no other thread of the process runs meanwhile
        ctypes.PyDLL(None).sleep(int(rest[0]))
    elif how == "leave":  # a process behind
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        emit_message(f"left {left.pid}")
        os._exit(1)
    elif how == "huge":
        return 10**400
    elif how == "wait":
        time.sleep(float(rest[0]))
    emit_reward(0.5, name="style", step=True)
    return 1.0


def clean_up_late() -> None:
    try:
        time.sleep(3600)
    finally:
        emit_message("too late")


@rollout
async def asynchronous(task: object) -> None:
    """Sleeps for ever, or not at all."""
    emit_message(str(os.getpid()))
    if task == "sleep":
        await asyncio.sleep(3600)


def broken(nothing: Any) -> None:
    """No agent: takes no task."""
    del nothing
