"""The closed list of consumer groups: who commits offsets, and of which topics.

Workers, gateways, engines and trainers keep positions of their own and are in no group.
"""

from __future__ import annotations

from ..schemas.topics import ATTEMPTS, DECISIONS, RESOURCES, REWARDS, SPANS, TASKS, TOPICS, WORKERS, Topic

GROUPS: dict[str, tuple[Topic, ...]] = {
    "controller": (TASKS, ATTEMPTS, WORKERS, DECISIONS, RESOURCES),
    "assembler": (SPANS, REWARDS),
    "sink": tuple(TOPICS.values()),
}
