"""One embedded engine for all tests that ask it over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from engine_rig import MAX_LEN, reload

from spanloop.infra.engine_process import EngineProcess


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a toy policy."""
    from spanloop.trainer.tiny import make_policy  # torch is for those only who need it

    folder = tmp_path_factory.mktemp("policy")
    make_policy(folder, 0)
    return folder


@pytest.fixture(scope="session")
def engine(model: Path) -> Iterator[EngineProcess]:
    """An engine process that serves it; `http` puts it back as it was."""
    with EngineProcess(model, max_model_len=MAX_LEN) as running:
        yield running


@pytest.fixture
def http(engine: EngineProcess, model: Path) -> Iterator[httpx.Client]:
    """A client; afterwards the engine runs and has its first weights again."""
    with httpx.Client(base_url=engine.url, timeout=60) as client:
        yield client
        reload(client, model)
        client.post("/update_weight_version", json={"new_version": "default"})
        client.post("/resume")
