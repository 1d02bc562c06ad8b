"""Gateways for tests; see tests/gateway_rig.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gateway_rig import MakeRig, Rig

from spanloop.infra.scripted_engine import Step
from spanloop.producers.gateway import GatewayPolicy


@pytest.fixture
def rig() -> Iterator[MakeRig]:
    """Makes rigs: rig(*script, **policy)."""
    made: list[Rig] = []

    def make(*script: Step, **policy: object) -> Rig:
        found = Rig(GatewayPolicy(**policy), *script)  # pyright: ignore[reportArgumentType] keyword by keyword
        made.append(found)
        return found

    yield make
    for one in made:
        one.close()
