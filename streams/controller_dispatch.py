"""Who gets what next: fair between runs, by priority and age within one, to the worker that is the least full."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from ..infra.clock import NS_PER_S
from ..schemas.records import Task
from .controller_actions import dequeue, open_group
from .controller_queue import Bucket, Entry, Run, group_of
from .controller_state import CHANGES_A_TICK, ControllerState, Live
from .controller_table import apply
from .texts import short

Labels = frozenset[str]
Rank = tuple[float, int, str]  # the least is the least full


@dataclass(slots=True)
class _Round:
    """One round of dispatch: workers by how full they are, for each set of labels asked for, made when first asked for.

    By the share of free slots: one that has just come and holds nothing ready has few slots, yet all its agents idle.
    """

    state: ControllerState
    now_ns: int
    waits: int = 0  # rollouts found to wait for a resource
    fitting: dict[Labels, list[Rank]] = field(default_factory=dict[Labels, "list[Rank]"])

    def worker(self, needs: Labels) -> str | None:
        """The least full worker with a free slot among those that offer these labels."""
        heap = self.fitting.get(needs)
        if heap is None:
            workers = self.state.workers
            heap = [self._rank(w) for w in self.state.free if needs.issubset(workers[w].beat.labels)]
            heapq.heapify(heap)
            self.fitting[needs] = heap
        while heap:
            worker_id = heap[0][2]
            if worker_id not in self.state.free:
                heapq.heappop(heap)
            elif heap[0] == (rank := self._rank(worker_id)):
                return worker_id
            else:
                heapq.heapreplace(heap, rank)
        return None

    def _rank(self, worker_id: str) -> Rank:
        free = self.state.free[worker_id]
        return -free / self.state.workers[worker_id].beat.slots, -free, worker_id


def dispatch(state: ControllerState, now_ns: int) -> None:
    """Fills free slots: each time the run with the fewest attempts out, then the one served longest ago."""
    if not state.free:
        return
    turn = _Round(state, now_ns)
    order = [(run.given, run.served, name) for name, run in state.runs.items() if run.ready]
    heapq.heapify(order)
    while order and state.free:
        name = order[0][2]
        run = state.runs[name]
        if run.ready and _serve(turn, run):
            heapq.heapreplace(order, (run.given, run.served, name))
        else:
            heapq.heappop(order)


def _serve(turn: _Round, run: Run) -> bool:
    """Gives out one rollout of a run; False if none can go out, or too many were found to wait for one tick."""
    state = turn.state
    bound = run.bound(turn.now_ns, int(state.policy.trainer_silent_s * NS_PER_S))
    while (found := _choose(turn, run, bound)) is not None:
        entry, worker_id = found
        live = state.live[entry[4]]
        pins = _resolve(state, live.task)
        if isinstance(pins, str):
            _wait(state, live, pins)
            turn.waits += 1
            if turn.waits < CHANGES_A_TICK:
                continue
            return False
        _give(turn, run, live, worker_id, pins)
        return True
    return False


def _choose(turn: _Round, run: Run, bound: int | None) -> tuple[Entry, str] | None:
    live = turn.state.live

    def valid(entry: Entry) -> bool:
        found = live.get(entry[4])
        return found is not None and found.ticket == entry[3]

    def may_start(rollout_id: str) -> bool:
        return run.may_start(max(1, live[rollout_id].task.group_size), bound)

    best: tuple[Entry, str] | None = None
    for needs, bucket in list(run.buckets.items()):
        head = bucket.head(valid, may_start)
        if head is None:
            _forget_empty(run, needs, bucket)
            continue
        if best is not None and best[0] < head:
            continue
        worker_id = turn.worker(needs)
        if worker_id is not None:
            best = (head, worker_id)
    return best


def _forget_empty(run: Run, needs: Labels, bucket: Bucket) -> None:
    if not bucket.open and not bucket.gated:
        del run.buckets[needs]


def _resolve(state: ControllerState, task: Task) -> dict[str, int | None] | str:
    """Versions for a task's pins, or the name of a resource it must wait for.

    Null becomes the newest version now. A policy's version is a minimum: it is stamped per call.
    """
    out: dict[str, int | None] = {}
    for name, wanted in task.pins.items():
        newest = state.newest.get(name)
        if newest is None:
            return name
        there = newest >= wanted if wanted is not None and name in state.policies else wanted in state.versions[name]
        if wanted is not None and not there:
            return name
        out[name] = newest if wanted is None else wanted
    return out


def _wait(state: ControllerState, live: Live, resource: str) -> None:
    dequeue(state, live)
    wanted = live.task.pins[resource]
    version = f" version {wanted}" if wanted is not None else ""
    live.reason = short(f"waits for resource {resource!r}{version}")
    state.waiting.setdefault(resource, set()).add(live.id)
    state.dirty[live.id] = live


def _give(turn: _Round, run: Run, live: Live, worker_id: str, pins: dict[str, int | None]) -> None:
    state, task = turn.state, live.task
    live.worker_id, live.pins = worker_id, pins
    apply(state, live, "dispatch", None, turn.now_ns)
    run.given += 1
    run.served = state.next()
    state.workers[worker_id].given[live.attempt_id or ""] = None
    state.refresh(worker_id)
    if task.mode == "train" and run.start(task):
        open_group(state, run, group_of(task))
