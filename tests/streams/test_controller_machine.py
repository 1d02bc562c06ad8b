"""Whatever comes late, twice, out of order or never, and whatever is ordered meanwhile: the controller does what the
reference says, and every rollout ends with exactly one final attempt."""

from __future__ import annotations

from dataclasses import replace

from controller_reference import Reference
from controller_rig import SECOND
from controller_world import POLICY, SLOTS, World
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from spanloop.schemas import orders
from spanloop.schemas.records import Limits, Task, TaskAction
from spanloop.schemas.spans import Mode

picks = st.integers(0, 41)
names = st.sampled_from([f"ro-{i}" for i in range(6)])
RUNS = ("left", "right")
WORKERS = ("wo-1", "desk", "*", "other")
tasks = st.builds(
    Limits,
    max_attempts=st.integers(1, 3),
    timeout_s=st.just(20.0),
    unresponsive_s=st.just(10.0),
    claim_s=st.just(5.0),
    retry_on=st.sampled_from([[], ["failed"], ["timeout", "ValueError"], ["infra"]]),
    backoff_s=st.sampled_from([0.0, 2.0]),
    rollout_timeout_s=st.sampled_from([None, 12.0]),
    run_concurrency=st.sampled_from([None, 1, 2]),
)
groups = st.sampled_from([None, "gr-1"])
modes: st.SearchStrategy[Mode] = st.sampled_from(["train", "val"])


def run_of(name: str) -> str:
    """Odd rollouts are of one run, even ones of the other."""
    return "left" if int(name[-1]) % 2 else "right"


ACTIONS: tuple[TaskAction, ...] = ("cancel", "pause", "resume", "resume")


def order_of(name: str, action: TaskAction) -> Task:
    return Task(name, run_of(name), action=action)


one = st.builds(order_of, names, st.sampled_from(ACTIONS))
cancel_run = st.builds(orders.cancel_run, st.sampled_from(RUNS))
# What holds things up is lifted as often as it is ordered, else little would ever run.
lifted = st.one_of(
    st.builds(orders.undrain, st.sampled_from(WORKERS)),
    st.builds(orders.resume_run, st.sampled_from(RUNS)),
    st.builds(orders.limit_run, st.sampled_from(RUNS), st.none()),
)
held_up = st.one_of(
    st.builds(orders.drain, st.sampled_from(WORKERS)),
    st.builds(orders.pause_run, st.sampled_from(RUNS)),
    st.builds(orders.limit_run, st.sampled_from(RUNS), st.integers(1, 2)),
)
ordered: st.SearchStrategy[Task] = st.one_of(
    one, one, lifted, held_up, st.builds(orders.cancel_run, st.sampled_from(RUNS))
)


class Lifecycle(RuleBasedStateMachine):
    """The controller in its world, beside the reference."""

    def __init__(self) -> None:
        super().__init__()
        self.reference = Reference(max_handed_back=POLICY.max_handbacks)
        self.world = World(self._see)
        self.world.beat()

    def _see(self, item: object) -> None:
        self.reference.now = self.world.now
        self.reference.see(item)  # pyright: ignore[reportArgumentType]  # an event or a record

    @rule(name=names, limits=tasks, mode=modes, priority=st.integers(0, 1), group=groups)
    def ask(self, name: str, limits: Limits, mode: Mode, priority: int, group: str | None) -> None:
        an_hour_ago = self.world.now - 3600 * SECOND  # by the client's clock
        task = Task(name, run_of(name), mode=mode, limits=limits, priority=priority, created_ns=an_hour_ago)
        self.world.send(replace(task, group_id=group))

    @rule(run_id=st.sampled_from(RUNS), group=st.one_of(names, st.just("gr-1")))
    def decide(self, run_id: str, group: str) -> None:
        self.world.decide(run_id, group)

    @rule(order=ordered)
    def order(self, order: Task) -> None:
        self.world.send(order)

    @rule(draining=st.sampled_from([False, False, False, True]))
    def beat(self, draining: bool) -> None:
        self.world.draining = draining
        self.world.beat()

    @rule()
    def begin(self) -> None:
        self.world.begin()

    @rule()
    def begin_all_and_tell(self) -> None:
        for _ in range(SLOTS):
            self.world.begin()
        self.world.tell_all()

    @rule(n=picks)
    def end(self, n: int) -> None:
        self.world.end(n)

    @rule(n=picks)
    def end_and_tell(self, n: int) -> None:
        self.world.end(n)
        self.world.tell_all()

    @rule()
    def stop(self) -> None:
        self.world.stop()

    @rule(n=picks)
    def lose(self, n: int) -> None:
        self.world.lose(n)

    @rule(n=picks)
    def deliver(self, n: int) -> None:
        self.world.deliver(n)

    @rule(n=picks)
    def drop(self, n: int) -> None:
        self.world.drop(n)

    @rule(seconds=st.sampled_from([0.25, 1, 4, 6, 11, 13]))
    def wait(self, seconds: float) -> None:
        self.world.wait(seconds)

    @rule()
    def restart(self) -> None:
        self.reference.now = self.world.now
        self.reference.restarted()
        self.world.restart()

    @invariant()
    def as_the_reference_says(self) -> None:
        self.reference.check(self.world.rollouts)
        assert self.world.held() <= SLOTS
        for run_id in RUNS:
            run = self.world.state.runs.get(run_id)
            assert (run.outstanding if run is not None else 0) == self.reference.holding_credit(run_id)

    def teardown(self) -> None:
        self.world.send(
            *(orders.undrain(worker) for worker in WORKERS),
            *(orders.resume_run(run) for run in RUNS),
            *(orders.resume(name, run_of(name)) for name in self.reference.cases),
        )
        self.world.settle_down()
        self.reference.check(self.world.rollouts)
        assert all(case.state == "over" for case in self.reference.cases.values())
        final = [said.rollout_id for said in self.world.decided.values() if said.final]
        assert sorted(final) == sorted(self.reference.cases)
        assert not self.world.state.attempts
        assert not any(run.open or run.given or run.queued for run in self.world.state.runs.values())


Lifecycle.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
test_every_rollout_lives_as_the_reference_says = Lifecycle.TestCase
