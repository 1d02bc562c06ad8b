"""What the assembler knows of one partition of spans, rewards and assemblies."""

from __future__ import annotations

from collections import OrderedDict

from ..schemas.records import Assembly, Reward, SpanBatch
from .attempt import AttemptKey
from .messages import Policy, Source
from .nodes import RewardNode
from .offsets import Held


class Partition:
    """Offsets held, attempts emitted, and rewards that wait for their rollout's final attempt."""

    def __init__(self, number: int, spans: int, rewards: int, policy: Policy) -> None:
        self.number = number
        self.spans = Held(spans)
        self.rewards = Held(rewards)
        self.emitted: OrderedDict[AttemptKey, Assembly] = OrderedDict()  # attempt -> its last assembly
        self.finals: dict[str, str] = {}  # rollout -> its final attempt
        self.endless: set[AttemptKey] = set()  # closed here by a bound, their end markers not read yet
        self._policy = policy
        self._floating: OrderedDict[str, tuple[int, list[RewardNode]]] = OrderedDict()  # rollout -> (since, rewards)
        self._floats = 0  # rewards in it

    def held(self, topic: Source) -> Held:
        """The book of one topic."""
        return self.spans if topic == "spans" else self.rewards

    def committable(self) -> dict[Source, int]:
        """Next offsets that may be committed."""
        return {"spans": self.spans.committable(), "rewards": self.rewards.committable()}

    def key(self, rollout_id: str, attempt_id: str) -> AttemptKey:
        """What an attempt here is known by."""
        return self.number, rollout_id, attempt_id

    def key_of(self, record: SpanBatch | Reward) -> AttemptKey | None:
        """The attempt a record is for; None: a reward that names only its rollout, of which no attempt is final yet."""
        attempt_id = record.attempt_id or self.finals.get(record.rollout_id)
        return None if attempt_id is None else self.key(record.rollout_id, attempt_id)

    def release(self, attempt: AttemptKey) -> None:
        """Lets an attempt's records be committed."""
        self.spans.release(attempt)
        self.rewards.release(attempt)

    def remember(self, assembly: Assembly) -> None:
        """Notes what was emitted; beyond the bound the oldest is forgotten."""
        key = self.key(assembly.rollout_id, assembly.attempt_id)
        self.emitted.pop(key, None)
        self.emitted[key] = assembly
        if assembly.final:
            self.finals.setdefault(assembly.rollout_id, assembly.attempt_id)
        while len(self.emitted) > self._policy.max_remembered:
            attempt, oldest = self.emitted.popitem(last=False)
            self.endless.discard(attempt)
            if self.finals.get(oldest.rollout_id) == oldest.attempt_id:
                del self.finals[oldest.rollout_id]

    def float(self, node: RewardNode, now_ns: int) -> None:
        """Keeps a reward that names only its rollout until an attempt of it is final."""
        rollout_id = node.reward.rollout_id
        self._floating.setdefault(rollout_id, (now_ns, []))[1].append(node)
        self._floats += 1
        self.rewards.hold(("rollout", rollout_id), node.offset)

    def settle(self, rollout_id: str) -> list[RewardNode]:
        """Takes a rollout's waiting rewards out."""
        self.rewards.release(("rollout", rollout_id))
        _, found = self._floating.pop(rollout_id, (0, []))
        self._floats -= len(found)
        return found

    def expired(self, since_ns: int) -> list[RewardNode]:
        """Takes out the rewards that have waited since before `since_ns`, and the oldest while there are too many."""
        out: list[RewardNode] = []
        while self._floating:
            rollout_id, (at, _) = next(iter(self._floating.items()))
            if at > since_ns and self._floats <= self._policy.max_floating:
                break
            out += self.settle(rollout_id)
        return out
