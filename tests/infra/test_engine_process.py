"""An embedded engine as a child process."""

from __future__ import annotations

from pathlib import Path

import pytest

from spanloop.infra.engine_process import EngineProcess
from spanloop.schemas.errors import Unavailable


def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"config\.json|model_type|not a valid"):
        EngineProcess(tmp_path)
