"""Which end of an attempt is a rollout's last."""

from __future__ import annotations

import pytest

from spanloop.schemas.records import Limits, Task
from spanloop.schemas.retry import CLASS_OF, is_final
from spanloop.schemas.spans import EndStatus, Mode


def task(mode: Mode, max_attempts: int, *retry_on: str) -> Task:
    return Task("ro-1", "run", mode=mode, limits=Limits(max_attempts=max_attempts, retry_on=list(retry_on)))


@pytest.mark.parametrize("status", ["unclaimed", "returned"])
def test_what_was_handed_back_is_never_the_last(status: EndStatus) -> None:
    assert not is_final(task("train", 1), 1, status)


@pytest.mark.parametrize("status", ["succeeded", "cancelled"])
def test_success_and_cancellation_are_always_the_last(status: EndStatus) -> None:
    assert is_final(task("val", 9, status), 1, status)


def test_the_last_try_allowed_is_the_last() -> None:
    assert not is_final(task("val", 2), 1, "failed")
    assert is_final(task("val", 2), 2, "failed")


def test_training_retries_only_what_was_not_the_agents_doing() -> None:
    assert is_final(task("train", 3), 1, "failed")
    assert is_final(task("train", 3), 1, "timeout")
    assert not is_final(task("train", 3), 1, "unresponsive")
    assert not is_final(task("train", 3), 1, "failed", failure_class="infra")


def test_retry_on_names_statuses_classes_or_error_types() -> None:
    assert not is_final(task("train", 3, "timeout"), 1, "timeout")
    assert not is_final(task("train", 3, "agent"), 1, "failed")
    assert not is_final(task("train", 3, "ValueError"), 1, "failed", error_type="ValueError")
    assert is_final(task("train", 3, "ValueError"), 1, "failed", error_type="KeyError")
    assert is_final(task("train", 3, "timeout"), 1, "unresponsive")


def test_every_failure_has_a_class_and_success_has_none() -> None:
    assert [status for status, kind in CLASS_OF.items() if kind is None] == ["succeeded"]
