"""What the rig waits for: every rollout's end, every group's batch and the decision on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from faults.flow import Flow
from faults.seen import Fed
from waiting import until

from spanloop.infra.producer import Producer
from spanloop.infra.settings import Settings
from spanloop.schemas.records import Batch, Decision, Rollout, Task
from spanloop.schemas.topics import Record


@pytest.fixture
def fed() -> Fed:
    """One rollout, in a group of its own."""
    return Fed(tasks={"ro-1": 0.5}, groups={"gr-1": ["ro-1"]})


@pytest.fixture
def flow(embedded_settings: Settings, fed: Fed) -> Iterator[Flow]:
    """Nothing is asked of it."""
    with closing(Flow(embedded_settings, fed, rate=8.0)) as flow:
        yield flow


def test_a_group_is_missing_until_it_is_in_a_batch_and_decided(flow: Flow, embedded_settings: Settings) -> None:
    watch = flow.watch
    told: list[tuple[Record, set[str], list[str]]] = [
        (Batch("tr", 1, 1, groups=["gr-1"]), watch.trained, ["ro-1", "gr-1"]),
        (Rollout("ro-1", "succeeded", Task("ro-1", "run"), final=True), watch.finished, ["gr-1"]),
        (Decision("tr", 1, "run", "gr-1"), watch.decided, []),
    ]
    with closing(Producer(embedded_settings, "test")) as producer:
        for record, seen, missing in told:
            producer.send_wait(record)
            until(seen.copy, "it to be read")
            assert flow.missing() == missing


def test_a_group_that_is_decided_on_is_missing_without_its_batch(flow: Flow) -> None:
    flow.watch.finished.add("ro-1")
    flow.watch.decided.add("gr-1")
    assert flow.missing() == ["gr-1"]


def test_what_is_fed_meanwhile_disturbs_nobody_who_asks(flow: Flow, fed: Fed) -> None:
    class Feeding(set[str]):
        """While something is looked up, a task and a group more are fed."""

        def __contains__(self, key: object) -> bool:
            fed.tasks[f"ro-{len(fed.tasks) + 1}"] = 0.5
            fed.groups[f"gr-{len(fed.groups) + 1}"] = []
            return False

    flow.watch.finished = flow.watch.trained = Feeding()
    assert flow.missing()[:2] == ["ro-1", "gr-1"]
