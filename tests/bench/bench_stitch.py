"""What stitching a long attempt costs: 1,000 calls of 8,000 tokens, in one conversation and in the worst case."""

from __future__ import annotations

import json
import sys
import time

from spanloop.schemas.packed import pack_ids
from spanloop.schemas.records import Sampling
from spanloop.streams.stitch import Drawn, build_row, row_key, stitch

CALLS, TOKENS = 1_000, 8_000
KEY = row_key("policy", "", Sampling())


def drawn(i: int, prompt: bytes, response: bytes) -> Drawn:
    return Drawn(i, (f"{i:016x}", 0), KEY, prompt, response)


def conversation() -> list[Drawn]:
    """Prompts that grow by what was answered, up to 8,000 tokens."""
    history, out = b"", list[Drawn]()
    half = TOKENS // CALLS // 2
    for i in range(CALLS):
        history += pack_ids([i] * half)
        response = pack_ids([i + 1] * half)
        out.append(drawn(i, history, response))
        history += response
    return out


def apart() -> list[Drawn]:
    """Independent calls of 8,000 tokens."""
    return [drawn(i, pack_ids([*range(TOKENS - 1), i]), pack_ids([5])) for i in range(CALLS)]


def broken() -> list[Drawn]:
    """Prompts of 1,000 lengths that share all but their last token: every call looks at every open row."""
    shared = pack_ids([7] * TOKENS)
    return [drawn(i, shared[: 4 * (TOKENS - CALLS + i)] + pack_ids([1000 + i]), pack_ids([5])) for i in range(CALLS)]


def seconds(calls: list[Drawn]) -> float:
    """CPU seconds from calls to the records of their rows."""
    start = time.process_time()
    found = stitch(calls)
    for row in found.rows:
        build_row(row, {call.index: call.index for call in row})
    return time.process_time() - start


def main() -> dict[str, float]:
    made = {"conversation": conversation(), "apart": apart(), "broken": broken()}
    return {f"{name}_1000_calls_8k_s": min(seconds(calls) for _ in range(3)) for name, calls in made.items()}


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"figures": main()}) + "\n")
