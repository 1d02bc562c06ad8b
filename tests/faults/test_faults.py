"""One fault of each kind on the running loop; `make faults` does all of them (every_fault.py). Then all leave."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from faults.faults import BY_NAME, FAULTS
from faults.parts import Ended
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
def test_all_leave_in_order_and_in_time_while_their_broker_does_not_answer(rig: Rig) -> None:
    ended = len(rig.parts.ended)
    rig.flow.ask(GROUPS_PER_BATCH)
    rig.progress(1)
    rig.kafka.pause()
    try:
        rig.hold(UNANSWERED_S)
        with ThreadPoolExecutor(len(STARTED)) as at_once:
            list(at_once.map(rig.parts.stop, STARTED))
    finally:
        rig.kafka.resume()
    children = [rig.parts.children[name] for name in STARTED]
    told = [(c.name, c.process.returncode, c.said()) for c in children if c.process is not None]
    left = rig.parts.ended[ended:] + [Ended(*each) for each in told if each[1]]
    assert [(e.name, e.status, e.said) for e in left if not e.foreseen] == []
