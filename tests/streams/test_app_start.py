"""What is told of an assembler that does not come to its work."""

from __future__ import annotations

import asyncio
import threading

import pytest

from spanloop.infra.settings import Settings
from spanloop.schemas.errors import Unavailable
from spanloop.streams import app
from spanloop.streams.app import AssemblerService


class CutOff:
    """A Faust app whose start is cancelled by a part of it that ends, as when the broker goes away meanwhile."""

    crashed = False
    crash_reason: BaseException | None = None

    def __init__(self, settings: Settings, *_: object) -> None:
        self.settings = settings

    async def start(self) -> None:
        raise asyncio.CancelledError

    async def stop(self) -> None:
        """Nothing to stop."""


def test_a_start_that_was_cancelled_is_told_as_what_it_means(
    embedded_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "AssemblerApp", CutOff)
    with pytest.raises(Unavailable, match="cut off from"):
        AssemblerService(embedded_settings).run(threading.Event())
