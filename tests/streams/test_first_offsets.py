"""Offsets of the assembler's group: what the broker forgot is told from what it did not tell in time."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest
from events import batch, span

from spanloop.infra.producer import Producer
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import Unavailable
from spanloop.streams.app import AssemblerApp
from spanloop.streams.assembler_service import AssemblerService
from spanloop.streams.faust_types import NoOffsetForPartitionError
from spanloop.streams.first_offsets import commit_first_offsets, has_lost_offsets


def test_offsets_that_were_not_told_in_time_are_no_loss(
    embedded_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_first_offsets(embedded_settings, "assembler")
    with closing(Producer(embedded_settings, "test")) as sent:
        sent.send(batch(span("s1")))

    async def not_told(*_: object) -> None:
        raise NoOffsetForPartitionError("spans[0]")

    monkeypatch.setattr(AssemblerApp, "forward", not_told)
    with pytest.raises(Unavailable, match="nothing is lost"):
        AssemblerService(embedded_settings).run(threading.Event())


def test_an_offset_that_the_group_never_had_is_told_from_one_that_it_has(embedded_settings: Settings) -> None:
    assert has_lost_offsets(embedded_settings, "assembler")
    commit_first_offsets(embedded_settings, "assembler")
    assert not has_lost_offsets(embedded_settings, "assembler")
