"""The audit: log ↔ last revisions ↔ ingest_log and views ↔ closed groups and batches. Pure.

Every check goes through what was read and names each discrepancy: what is lost, what is there twice, what contradicts.
A check that looked at nothing says so by its count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .audit_log import answers, attempts, counts, crashes, emitted, finals, lag, revisions, struck, tasks
from .audit_tables import ingested, letters, rows, views
from .audit_training import stepped, trained
from .checked import Checked, Discrepancy
from .seen import Seen

CHECKS: tuple[Callable[[Seen], Checked], ...] = (
    tasks, attempts, finals, answers, emitted, counts, revisions, trained, stepped, ingested, rows, views, letters, lag,
    struck, crashes,
)  # fmt: skip


def audit(seen: Seen) -> list[Checked]:
    """Every check."""
    return [check(seen) for check in CHECKS]


def discrepancies(checked: Iterable[Checked]) -> list[Discrepancy]:
    """All that is wrong."""
    return [found for one in checked for found in one.wrong]
