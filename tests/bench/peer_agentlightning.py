"""The peer's side of bench_peer.py, run by a Python of its own: agentlightning 0.3.0 on the job of bench_e2e.py."""
# pyright: basic, reportMissingImports=false, reportUntypedBaseClass=false
# agentlightning is not among this project's packages, so its types are unknown here

from __future__ import annotations

import asyncio
import json
import sys
import time

import agentlightning as agl

ROLLOUTS, SPANS, RUNNERS = (int(argument) for argument in sys.argv[1:])
PATIENCE_S = 300.0


class Noop(agl.LitAgent[str]):
    def rollout(self, task: str, resources: object, rollout: object) -> float:
        del task, resources, rollout
        for step in range(SPANS - 1):  # the reward that it returns is its tenth span
            with agl.operation(name=f"step-{step}"):
                pass
        return 1.0


@agl.algo
async def drive(*, store: agl.LightningStore) -> None:
    await store.add_resources(
        {"prompt": agl.PromptTemplate(template="t", engine="f-string")}
    )  # none, and it skips the rollout
    await finish(store, RUNNERS * 2)  # every runner is up
    start = time.monotonic()
    ids = await finish(store, ROLLOUTS)
    took = time.monotonic() - start
    spans = await store.query_spans(ids[-1])
    figures = {
        "rollouts_per_s": ROLLOUTS / took,
        "spans_per_s": ROLLOUTS * len(spans) / took,
        "spans_per_rollout": len(spans),
    }
    sys.stdout.write("\n" + json.dumps({"figures": figures}) + "\n")
    sys.stdout.flush()


async def finish(store: agl.LightningStore, count: int) -> list[str]:
    ids = [(await store.enqueue_rollout(input="task")).rollout_id for _ in range(count)]
    deadline = time.monotonic() + PATIENCE_S
    left = set(ids)
    while left:
        done = await store.wait_for_rollouts(rollout_ids=list(left), timeout=0.0)
        left -= {rollout.rollout_id for rollout in done}
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(left)} rollouts did not end within {PATIENCE_S:g} s")
        await asyncio.sleep(0.05)
    return ids


if __name__ == "__main__":
    tracer = agl.OtelTracer()  # the quicker one of its two
    runner = agl.LitAgentRunner(tracer=tracer, poll_interval=0.05)  # 5 s by default
    agl.Trainer(algorithm=drive, n_runners=RUNNERS, tracer=tracer, runner=runner).fit(Noop())
