"""Faust in its own fastest form, on the log that the assembler reads: takes records by the thousand and drops them.

SPANLOOP_BOOTSTRAP=… python tests/bench/faust_noop.py 60000     writes records a second, of the wall and of its CPU
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
from tempfile import TemporaryDirectory
from typing import Any

from spanloop.infra.kafka import Names
from spanloop.infra.process import new_loop
from spanloop.infra.settings import Settings
from spanloop.schemas.topics import SPANS
from spanloop.streams.faust_settings import faust_settings

TAKEN = 1000
WITHIN_S = 0.05
LIMIT_S = 120.0
faust: Any = importlib.import_module("faust")  # its annotations leave most of it unknown


async def rates(settings: Settings, records: int) -> dict[str, float]:
    """From the first records to the last."""
    done: asyncio.Future[tuple[float, float]] = asyncio.get_running_loop().create_future()
    with TemporaryDirectory() as folder:
        chosen = faust_settings(settings) | {"consumer_auto_offset_reset": "earliest"}
        app = faust.App(id=f"{settings.prefix}-noop", datadir=folder, **chosen)
        topic = app.topic(Names(settings.prefix).full(SPANS.name), key_serializer="raw", value_serializer="raw")

        @app.agent(topic)
        async def nothing(stream: Any) -> None:
            left, timed, start, cpu = records, 0, 0.0, 0.0
            async for batch in stream.noack_take(TAKEN, within=WITHIN_S):
                left -= len(batch)
                if not start:
                    timed, start, cpu = left, time.perf_counter(), time.process_time()
                elif left <= 0 and not done.done():
                    done.set_result((timed / (time.perf_counter() - start), timed / (time.process_time() - cpu)))

        del nothing
        starting = asyncio.ensure_future(app.start())
        try:
            wall, cpu = await asyncio.wait_for(done, LIMIT_S)
        finally:
            await app.stop()
            await asyncio.wait([starting])
    return {"records_per_s": wall, "records_per_cpu_s": cpu}


if __name__ == "__main__":
    loop = new_loop()
    asyncio.set_event_loop(loop)
    sys.stdout.write(json.dumps(loop.run_until_complete(rates(Settings(), int(sys.argv[1])))) + "\n")
