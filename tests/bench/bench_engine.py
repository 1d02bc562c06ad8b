"""How fast the embedded engine answers: completions/s of two-token answers, and the time of a reload.

`per_cpu_s` divides by the processor time of the engine alone, so it holds on a busy machine too (Linux only).

    python tests/bench/bench_engine.py [MODEL_DIR]      # default: a fresh toy policy

Answers are "<char><eos>" with a warm-started policy; with a fresh one they run to max_tokens=2.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from processor_time import cpu_s

from spanloop.infra.engine_process import EngineProcess
from spanloop.trainer.tiny import make_policy

CONCURRENCY = (1, 8, 64)
SECONDS = 4.0
RELOADS = 10
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "get 7?"}],
    "max_tokens": 2,
    "logprobs": True,
    "return_token_ids": True,
}


async def completions(url: str, pid: int, concurrent: int) -> dict[str, float]:
    """Closed loop: each client asks again as soon as it is answered."""
    limits = httpx.Limits(max_connections=concurrent)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as http:
        ends = time.perf_counter() + SECONDS

        async def client() -> int:
            done = 0
            while time.perf_counter() < ends:
                answer = await http.post("/v1/chat/completions", json=BODY)
                answer.raise_for_status()
                done += 1
            return done

        await http.post("/v1/chat/completions", json=BODY)
        began, used = time.perf_counter(), cpu_s(pid)
        counts = await asyncio.gather(*(client() for _ in range(concurrent)))
        wall, cpu = time.perf_counter() - began, cpu_s(pid) - used
        return {"per_s": round(sum(counts) / wall, 1), "per_cpu_s": round(sum(counts) / cpu, 1)}


def reload_ms(url: str, folder: Path) -> float:
    """Median of pause(wait) … resume on an idle engine."""
    times: list[float] = []
    reload = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    with httpx.Client(base_url=url) as http:
        for i in range(RELOADS):
            began = time.perf_counter()
            http.post("/pause?mode=wait").raise_for_status()
            http.post("/collective_rpc", json=reload).raise_for_status()
            http.post("/update_weight_version", json={"new_version": str(i)}).raise_for_status()
            http.post("/resume").raise_for_status()
            times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def main() -> None:
    """Runs all of it."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary).resolve()
        if len(sys.argv) < 2:
            make_policy(folder, 0)
        with EngineProcess(folder) as engine:
            figures = {"reload_ms": round(reload_ms(engine.url, folder), 2)}
            for n in CONCURRENCY:
                found = asyncio.run(completions(engine.url, engine.pid, n))
                figures |= {f"completions_{name}_at_{n}": value for name, value in found.items()}
    sys.stdout.write(json.dumps({"figures": figures}) + "\n")


if __name__ == "__main__":
    main()
