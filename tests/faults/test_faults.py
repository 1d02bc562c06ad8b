"""One fault of each kind on the running loop; `make faults` does all of them (every_fault.py). Then all leave."""

from __future__ import annotations

import pytest
from faults.faults import BY_NAME, FAULTS
from faults.rig import GROUPS_PER_BATCH, STARTED, Rig
from faults.trial import trial

UNANSWERED_S = 2.0
# In this order: what changes the least first.
ONE_OF_EACH = (
    "poison", "registry_away", "clickhouse_away", "duplicate_producers", "sink_killed", "worker_frozen",
    "broker_killed",
)  # fmt: skip


def test_there_is_one_fault_of_each_kind() -> None:
    assert sorted(BY_NAME[name].kind for name in ONE_OF_EACH) == sorted({fault.kind for fault in FAULTS})


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_nothing_is_lost_and_nothing_is_there_twice_after(rig: Rig, name: str) -> None:
    trial(rig, BY_NAME[name])


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_leave_at_once_while_their_broker_does_not_answer(rig: Rig) -> None:
    ended = len(rig.parts.ended)
    rig.flow.ask(GROUPS_PER_BATCH)
    rig.progress(1)
    rig.kafka.pause()
    try:
        rig.hold(UNANSWERED_S)
        for name in STARTED:
            rig.parts.stop(name)
    finally:
        rig.kafka.resume()
    assert [(e.name, e.said) for e in rig.parts.ended[ended:]] == []
