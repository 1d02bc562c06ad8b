"""Tells a run, once its first attempt is over, that no model call of it was captured, and what was seen instead.

The usual first mistake: the agent's client does not use the URL and key that spanloop gives it, so everything works
and nothing can be trained on.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

from ..schemas.records import SpanBatch, Trajectory

log = logging.getLogger(__name__)

# Names of spans are kept for so many attempts that have not ended, and so many names of each.
MAX_ATTEMPTS, MAX_NAMES = 1000, 20
MAX_RUNS = 1000
FLAG = "no_llm_calls"
RAN = frozenset({"succeeded", "failed", "timeout"})  # of others no agent may ever have seen anything


class NoCalls:
    """Remembers names of spans until an attempt is emitted. Bounded: beyond its bounds it only tells less."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, dict[str, None]] = OrderedDict()
        self._judged: OrderedDict[str, None] = OrderedDict()

    def see(self, batch: SpanBatch) -> None:
        """Notes what an attempt's spans are called."""
        names = self._names.get(batch.attempt_id)
        if names is None:
            names = self._names[batch.attempt_id] = {}
            if len(self._names) > MAX_ATTEMPTS:
                self._names.popitem(last=False)
        if len(names) < MAX_NAMES:
            names.update((span.name, None) for span in batch.spans)

    def judge(self, trajectory: Trajectory) -> None:
        """Warns of the first attempt of a run that is over without a call."""
        names = self._names.pop(trajectory.attempt_id, {})
        run_id = trajectory.context.run_id
        if run_id in self._judged or trajectory.status not in RAN:
            return
        self._judged[run_id] = None
        if len(self._judged) > MAX_RUNS:
            self._judged.popitem(last=False)
        if FLAG in trajectory.flags:
            log.warning(
                "run %r: 0 LLM calls captured in its first attempt; spans seen: %s. Does the agent's client use the "
                "base URL and key that it is given (LLM.base_url and LLM.api_key, or OPENAI_BASE_URL)?",
                run_id,
                list(names)[:MAX_NAMES],
            )
