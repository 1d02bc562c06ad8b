"""Tasks that are orders, and tasks that repeat others: what people send besides new work. Pure; send them as any Task.

producer.send(cancel("ro-…", "my-run", reason="wrong prompt"))
producer.send(limit_run("my-run", 16))
for task in requeue(failed): producer.send(task)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from . import ids
from .records import Limits, Task

ALL_WORKERS = "*"
# Keys in `rollouts` of orders that stand; no rollout may be called so.
ORDER_KEY = "order/"


def cancel(rollout_id: str, run_id: str, reason: str | None = None) -> Task:
    """Ends a rollout as cancelled, whether it waits or runs: its worker stops the agent."""
    return Task(rollout_id, run_id, action="cancel", reason=reason)


def pause(rollout_id: str, run_id: str) -> Task:
    """Holds a rollout back; an attempt that runs goes on, and is not tried again."""
    return Task(rollout_id, run_id, action="pause")


def resume(rollout_id: str, run_id: str) -> Task:
    """Lifts `pause`."""
    return Task(rollout_id, run_id, action="resume")


def cancel_run(run_id: str, reason: str | None = None) -> Task:
    """Cancels every rollout of a run that is open now; later ones are taken as usual."""
    return Task(run_id, run_id, action="cancel", reason=reason)


def pause_run(run_id: str) -> Task:
    """Gives nothing more of a run out, of what comes later too, until `resume_run`; what runs goes on."""
    return Task(run_id, run_id, action="pause")


def resume_run(run_id: str) -> Task:
    """Lifts `pause_run`; rollouts that were paused one by one stay so."""
    return Task(run_id, run_id, action="resume")


def limit_run(run_id: str, attempts: int | None) -> Task:
    """Lets a run have so many attempts out at once from now on; null = any number. What is out goes on."""
    return Task(run_id, run_id, action="limit", limits=Limits(run_concurrency=attempts))


def drain(worker: str = ALL_WORKERS, reason: str | None = None) -> Task:
    """Gives a worker nothing more: by its id, or by its name, or all of them. It ends what it has and stays."""
    return Task(worker, "", action="drain", reason=reason)


def undrain(worker: str = ALL_WORKERS) -> Task:
    """Lifts the `drain` that named the same."""
    return Task(worker, "", action="undrain")


def requeue(tasks: Iterable[Task], reason: str | None = None) -> list[Task]:
    """The same work once more, as new rollouts that say what they repeat; give what belongs together in one call.

    Members of a group make a new group of those given, in their order: a group that was closed never opens again.
    """
    given = list(tasks)
    sizes = Counter(t.group_id for t in given)
    groups = {name: ids.group_id() for name in sizes if name is not None}
    seen: Counter[str | None] = Counter()
    out: list[Task] = []
    for task in given:
        name = task.group_id
        again = replace(
            task, rollout_id=ids.rollout_id(), requeued_from=task.rollout_id, reason=reason, action="run", created_ns=0
        )
        if name is not None:
            again = replace(again, group_id=groups[name], sample=seen[name], group_size=sizes[name])
        seen[name] += 1
        out.append(again)
    return out
