"""ClickHouse without a server: chDB held by one process and served over ClickHouse's HTTP interface.

python -m spanloop.infra.embedded_clickhouse --path DIR --port N

One process at a time holds a folder; all others reach it by HTTP with the ordinary clients. What is written is there
when the folder is served again. Not for the network: it listens on loopback and knows no users.
"""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path

from .child_process import ChildProcess
from .process import leave_with_parent, stop_on_signal

START_TIMEOUT_S = 60.0
# How long a stop waits for requests under way; SIGKILL follows a little later. Parts are written whole, so that
# neither loses what a client was told is stored.
DRAIN_S = 1.5
POLL_S = 0.1


class ClickHouseProcess(ChildProcess):
    """Serves a folder from a child process until closed; `url` is where. A context manager.

    The child ends with its parent, also when that is killed. Raises Unavailable where it does not start.
    """

    def __init__(self, path: Path, port: int = 0, *, timeout_s: float = START_TIMEOUT_S, wait: bool = True) -> None:
        """`wait`: until it serves; else `ready` does."""
        path = path.resolve()
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        super().__init__(
            [__name__, "--path", str(path), "--port", str(port)],
            name=f"the embedded ClickHouse on {path}",
            health="/ping",
            log=(path / "stderr.log").open("w+b"),
            timeout_s=timeout_s,
            wait=wait,
        )


def serve(path: Path, port: int, *, with_stdin: bool = False) -> None:
    """Serves until SIGTERM or SIGINT, with `with_stdin` also until standard input ends. Writes its URL to stdout."""
    from .embedded_clickhouse_engine import Engine
    from .embedded_clickhouse_http import ClickHouseServer

    stop = stop_on_signal(second_kills=False)
    engine = Engine(path)
    server = ClickHouseServer(engine, port)
    threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True).start()
    if with_stdin:
        leave_with_parent()
    sys.stdout.write(server.url + "\n")
    sys.stdout.flush()
    while not stop.wait(POLL_S):  # a bare wait() would hold signals back on some platforms
        pass
    server.shutdown()
    server.busy.wait_idle(DRAIN_S)
    engine.close()


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m spanloop.infra.embedded_clickhouse", description=__doc__)
    parser.add_argument("--path", type=Path, required=True, help="folder that holds the data")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 takes a free one")
    parser.add_argument("--with-stdin", action="store_true", help="end when standard input ends")
    chosen = parser.parse_args(arguments)
    try:
        serve(chosen.path, chosen.port, with_stdin=chosen.with_stdin)
    except (OSError, RuntimeError) as error:  # the folder is held by another process, or the port is taken
        sys.exit(f"cannot serve {chosen.path} on port {chosen.port}: {error}")


if __name__ == "__main__":
    main()
