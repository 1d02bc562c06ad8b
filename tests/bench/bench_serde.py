"""What a span costs to write and to read, plain and with the ids of a model call."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from spanloop.schemas import ids, packed
from spanloop.schemas.records import ModelCall, Span, SpanBatch, VersionRun
from spanloop.schemas.serde import Decoder, Encoder, LocalSchemas, local_ids

SPANS = 100
ROUNDS = 60
START_NS = 1_764_550_000_123_456_789  # as wide as those of today
ATTRIBUTES = json.dumps({"gen_ai.system": "openai", **{f"attribute.{i}": f"value {i}" for i in range(11)}})


def span(call: ModelCall | None) -> Span:
    return Span(
        ids.trace_id(),
        ids.span_id(),
        "chat",
        START_NS,
        parent_span_id=ids.span_id(),
        end_ns=START_NS + 1_234_567_890,
        attributes=ATTRIBUTES,
        call=call,
    )


def call() -> ModelCall:
    return ModelCall(
        request="{}",
        response="{}",
        prompt_ids=packed.pack_ids(range(512)),
        response_ids=packed.pack_ids(range(8)),
        logprobs=packed.pack_logprobs([-0.1] * 8),
        policy="policy",
        policy_versions=[VersionRun(1, 0, 8)],
    )


def best_us(work: Callable[[], object]) -> float:
    """Microseconds per span of the fastest round: the least disturbed one."""
    fastest = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        fastest = min(fastest, time.perf_counter() - start)
    return fastest / SPANS * 1e6


def main() -> dict[str, float]:
    encoder, decoder = Encoder(local_ids()), Decoder(LocalSchemas())
    figures: dict[str, float] = {}
    for name, one in (("plain", None), ("520_ids", call())):
        batch = SpanBatch("ro-1", "at-1", "wo-1", spans=[span(one) for _ in range(SPANS)])
        value = encoder.encode(batch)
        figures[f"{name}_write_us"] = best_us(lambda batch=batch: encoder.encode(batch))
        figures[f"{name}_read_us"] = best_us(lambda value=value: decoder.decode(SpanBatch, value))
        figures[f"{name}_bytes"] = len(value) / SPANS
    return figures


if __name__ == "__main__":
    import sys

    sys.stdout.write(json.dumps({"figures": main()}) + "\n")
