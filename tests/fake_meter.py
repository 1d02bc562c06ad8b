"""A telemetry meter that remembers."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from spanloop.infra.telemetry import kind_of


class FakeMeter:
    """Every `add` as (name, amount, labels), names checked as the real one does."""

    def __init__(self) -> None:
        self.added: list[tuple[str, float, dict[str, str]]] = []

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        kind_of(name)
        self.added.append((name, amount, labels))

    @contextmanager
    def span(self, name: str) -> Generator[None]:
        del name
        yield

    def close(self) -> None:
        """Nothing is held."""
