"""The agent of the fault tests: two model calls, a step reward, and a diary (`diary.py`) of all that it did."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import httpx

from spanloop import LLM, emit_message, emit_reward, operation, rollout
from spanloop.producers.agent import RolloutInfo
from spanloop.producers.llm import capture
from spanloop.schemas.semconv import SPAN_ID_HEADER

DIARY = os.environ["FAULTS_DIARY"]
# A gateway is started anew within seconds; what takes longer fails the attempt, as it would any agent's.
PATIENCE_S = 20.0
PAUSE_S = 0.3
AWAY = (429, 502, 503, 504)
client = capture(httpx.Client(timeout=15.0))


@rollout
def agent(task: dict[str, Any], llm: LLM, rollout: RolloutInfo) -> float:
    """Returns the reward that its task asks for."""
    note(rollout, "begun", str(os.getpid()))
    try:
        return work(task, llm, rollout)
    finally:
        note(rollout, "over", str(os.getpid()))


def work(task: dict[str, Any], llm: LLM, rollout: RolloutInfo) -> float:
    """What is to be done."""
    for turn, streamed in enumerate((False, True)):
        with operation(f"turn-{turn}") as op:
            note(rollout, "call", ask(llm, f"turn {turn} of {task['n']}", streamed=streamed))
        note(rollout, "span", op.span_id)
        if turn == 0:
            note(rollout, "reward", emit_reward(0.25, name="step", step=True).reward_id)
    if "message_bytes" in task:
        emit_message("x" * task["message_bytes"])
    return float(task["reward"])


def ask(llm: LLM, text: str, *, streamed: bool) -> str:
    """The span id of a call whose answer came in whole. Raises what the last try raised."""
    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            return once(llm, text, streamed=streamed)
        except (httpx.TransportError, httpx.HTTPStatusError) as error:
            known = not isinstance(error, httpx.HTTPStatusError) or error.response.status_code in AWAY
            if not known or time.monotonic() > give_up:
                raise
            time.sleep(PAUSE_S)


def once(llm: LLM, text: str, *, streamed: bool) -> str:
    """One try."""
    body = {"model": llm.model, "messages": [{"role": "user", "content": text}], "stream": streamed}
    headers = {"Authorization": f"Bearer {llm.api_key}"}
    with client.stream("POST", f"{llm.base_url}/chat/completions", json=body, headers=headers) as response:
        content = response.read()
        response.raise_for_status()
        if streamed and b"[DONE]" not in content:
            raise httpx.RemoteProtocolError(f"the stream was cut: {content[-200:]!r}")
        return response.headers[SPAN_ID_HEADER]


def note(rollout: RolloutInfo, what: str, which: str) -> None:
    """A line in the diary: this has happened, so the log must hold it."""
    line = json.dumps([rollout.rollout_id, rollout.attempt.attempt_id, what, which]) + "\n"
    handle = os.open(Path(DIARY), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)
