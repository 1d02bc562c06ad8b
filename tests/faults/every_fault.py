"""Every fault, for as long as it takes: `make faults`. Not named test_*, so that only who asks for it runs it."""

from __future__ import annotations

import pytest
from faults.faults import BY_NAME, FAULTS
from faults.rig import Rig
from faults.trial import trial

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("name", [fault.name for fault in FAULTS if fault.nodes == 1])
def test_nothing_is_lost_and_nothing_is_there_twice_after(rig: Rig, name: str) -> None:
    trial(rig, BY_NAME[name], full=True)


@pytest.mark.parametrize("name", [fault.name for fault in FAULTS if fault.nodes == 3])
def test_nothing_is_lost_and_nothing_is_there_twice_on_three_brokers_after(rig_of_three: Rig, name: str) -> None:
    trial(rig_of_three, BY_NAME[name], full=True)
