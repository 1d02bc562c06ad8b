from __future__ import annotations

import os
from pathlib import Path

import pytest

from spanloop.infra.child_process import ChildProcess
from spanloop.schemas.errors import Unavailable

# It listens and answers nothing, as a process does that is held once it has told its address.
HELD = """
import socket, sys
listening = socket.create_server(("127.0.0.1", 0))
print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
sys.stderr.write("nearly there")
sys.stderr.flush()
sys.stdin.read()
"""


def test_a_child_that_tells_its_address_and_then_does_not_answer_is_named(tmp_path: Path) -> None:
    (tmp_path / "held.py").write_text(HELD)
    with pytest.raises(Unavailable, match=r"the held one did not answer within 0\.5 s .*nearly there"):
        ChildProcess(
            ["held"],
            name="the held one",
            health="/ping",
            log=(tmp_path / "log").open("w+b"),
            timeout_s=0.5,
            environment={**os.environ, "PYTHONPATH": str(tmp_path)},
        )
