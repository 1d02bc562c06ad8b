"""What faults do to a running rig. Each makes sure that it strikes: a wait that fails, or a strike the audit looks for.

Whatever may be over at any moment is held still first, looked at, and only then killed.
"""

from __future__ import annotations

from collections.abc import Callable

from . import inputs
from .asking import Members, behind, stored_past_commit
from .rig import Rig
from .seen import Seen

Harm = Callable[[Rig], None]
LOST_TOUCH = {"unresponsive", "unclaimed", "timeout"}
STORMS = 2
NO_REGISTRY = "cannot be reached"
# A later reward for so many rollouts that are done.
LATE = 20
ALL_THAT_START = ("controller-a", "assembler-a", "gateway", "worker-a", "sink-a")
READ_REWARDS = {"assembler", "sink"}
SHIFTED = ("worker-ahead", "worker-behind")


def start(name: str) -> Harm:
    """It is there again."""
    return lambda rig: rig.parts.start(name)


def _there(rig: Rig, name: str) -> None:
    rig.wait(lambda: rig.parts.children[name].runs, f"{name} to run")


def kill(name: str) -> Harm:
    """kill -9."""

    def harm(rig: Rig) -> None:
        _there(rig, name)
        rig.parts.kill9(name)

    return harm


def _caught(rig: Rig, name: str, in_the_act: Callable[[], object], what: str) -> None:
    """Leaves a part standing still in the middle of something."""

    def caught() -> bool:
        if not rig.parts.children[name].runs:
            return False
        rig.parts.freeze(name)
        found = bool(in_the_act())
        if not found:
            rig.parts.cont(name)
        return found

    rig.wait(caught, what)


def gateway_killed(rig: Rig) -> None:
    """kill -9 while a call is half answered."""
    _caught(rig, "gateway", lambda: rig.engine.streaming, "a stream through the gateway")
    rig.parts.kill9("gateway")


def _worker_caught(rig: Rig, name: str) -> set[str]:
    """Leaves it standing still; returns the attempts in its hands."""
    child = rig.parts.children[name]
    held: set[str] = set()

    def in_hand() -> set[str]:
        held.clear()
        held.update(rig.diary.in_hand(child.number))
        return held

    _caught(rig, name, in_hand, f"an attempt in the hands of {name}")

    def given_up(seen: Seen) -> bool:
        ends = seen.first_ends
        return all(a in ends and ends[a].status in LOST_TOUCH for a in held)

    rig.strike(f"{name} lost {sorted(held)}, which are closed by others", given_up)
    return held


def worker_killed(rig: Rig) -> None:
    """kill -9 in the middle of its agents' work."""
    _worker_caught(rig, "worker-a")
    rig.parts.kill9("worker-a")


def worker_frozen(rig: Rig) -> None:
    """SIGSTOP in the middle of its agents' work, for as long as it takes the controller to give them up.

    A controller that has just taken over gives every worker its whole time again.
    """
    held = _worker_caught(rig, "worker-a")
    rig.wait(lambda: held <= rig.flow.watch.ends.keys(), f"the end of {sorted(held)}, which stand still")


def sink_killed(rig: Rig) -> None:
    """The sink dies after ClickHouse stored its rows and before it heard of that."""
    _there(rig, "sink-a")
    rig.clickhouse.hold_answers()
    try:
        rig.wait(rig.clickhouse.inserted.is_set, "an insert of the sink")
        rig.parts.kill9("sink-a")
    finally:
        rig.clickhouse.open()
    assert stored_past_commit(rig.settings), "the sink had committed all that is stored: it was killed too late"


def replaced(killed: str, by: str) -> Harm:
    """One is killed; another, which joins, has its work."""

    def harm(rig: Rig) -> None:
        _there(rig, killed)
        group = Members(rig, rig.parts.children[killed].kind)
        rig.parts.start(by)
        rig.parts.kill9(killed)
        group.changed(come=1, gone=1)

    return harm


def back(name: str, instead_of: str) -> Harm:
    """The first one is there again and the other leaves."""

    def mend(rig: Rig) -> None:
        rig.parts.start(name)
        rig.parts.stop(instead_of)

    return mend


def frozen(name: str, by: str | None = None) -> Harm:
    """SIGSTOP for as long as it takes its group to give it up; another one is there to be given its work."""

    def harm(rig: Rig) -> None:
        _there(rig, name)
        group = Members(rig, rig.parts.children[name].kind)
        if by is not None:
            rig.parts.start(by)
        rig.parts.freeze(name)
        group.changed(come=int(by is not None), gone=1)

    return harm


def thawed(name: str, by: str | None = None) -> Harm:
    """SIGCONT, and the other one leaves."""

    def mend(rig: Rig) -> None:
        rig.parts.cont(name)
        if by is not None:
            rig.parts.stop(by)

    return mend


def clickhouse_back(rig: Rig) -> None:
    """It is there again; there was something that the sink could not store."""
    try:
        rig.wait(lambda: behind(rig.settings), "spans that are not stored")
    finally:
        rig.clickhouse.open()


def fast_disk(rig: Rig) -> None:
    """As fast as ever; something was held up."""
    slowed = rig.clickhouse.slowed_s
    try:
        rig.wait(lambda: rig.clickhouse.slowed_s > slowed, "an insert that is slow")
    finally:
        rig.clickhouse.open()


def registry_away_at_start(rig: Rig) -> None:
    """Processes start and find no registry; each says so."""
    rig.registry.shut()
    for name in ALL_THAT_START:
        rig.parts.kill9(name)
        rig.parts.start(name)
    for name in ALL_THAT_START:
        child = rig.parts.children[name]
        rig.wait(lambda: NO_REGISTRY in child.said_since(child.began_at), f"{name} to miss the registry")  # noqa: B023  # used in this round


def registry_away_for_a_new_schema(rig: Rig) -> None:
    """Records of a schema that nobody has looked up, while nobody can; who reads them says so."""
    done: list[str] = []

    def some_done() -> list[str]:
        done[:] = [r for r in list(rig.fed.tasks) if r in rig.flow.watch.finished][:LATE]
        return done

    rig.wait(some_done, "a rollout that is done")
    schema_id = inputs.newer(rig.settings)
    children = [c for c in rig.parts.children.values() if c.kind in READ_REWARDS]
    at = {child.name: child.log_size for child in children}
    rig.registry.shut()
    inputs.late_rewards(rig.settings, schema_id, done)

    def missed() -> bool:
        return {c.kind for c in children if NO_REGISTRY in c.said_since(at[c.name])} == READ_REWARDS

    rig.wait(missed, f"{sorted(READ_REWARDS)} to miss the registry")


def registry_back(rig: Rig) -> None:
    """It is there again."""
    rig.registry.open()


def storm(rig: Rig) -> None:
    """Members come, are given partitions, and go: some at once, some in order."""
    for _ in range(STORMS):
        assemblers, sinks = Members(rig, "assembler"), Members(rig, "sink")
        for name in ("assembler-c", "assembler-d", "sink-b"):
            rig.parts.start(name)
        assemblers.changed(come=2)
        sinks.changed(come=1)
        rig.parts.kill9("assembler-c")
        for name in ("assembler-d", "sink-b"):
            rig.parts.stop(name)


def wrong_clocks(rig: Rig) -> None:
    """Two workers an hour ahead and an hour behind do all the work."""
    for name in SHIFTED:
        rig.parts.start(name)
    rig.parts.stop("worker-a")
    rig.parts.stop("worker-b")


def right_clocks(rig: Rig) -> None:
    """They leave; both have done some of it well."""
    ends = rig.flow.watch.ends

    def worked(name: str) -> bool:
        return any(ends.get(a) == "succeeded" for a in rig.diary.done(rig.parts.children[name].number))

    try:
        rig.wait(lambda: all(map(worked, SHIFTED)), "an attempt that ended well under each clock")
    finally:
        for name in ("worker-a", "worker-b"):
            rig.parts.start(name)
        for name in SHIFTED:
            rig.parts.stop(name)
