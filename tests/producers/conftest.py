"""Gateways and a stand-in for the controller; see tests/gateway_rig.py and tests/fake_controller.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_controller import Controller
from gateway_rig import MakeRig, Rig

from spanloop.infra.scripted_engine import Step
from spanloop.infra.settings import Settings
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


@pytest.fixture
def controller(embedded_settings: Settings) -> Iterator[Controller]:
    """A stand-in for the controller on a fresh prefix of the embedded broker."""
    made = Controller(embedded_settings)
    yield made
    made.close()
