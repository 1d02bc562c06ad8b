"""What a span costs the sink: batch of messages to acknowledged rows over HTTP, and fastavro's decoding beside it."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

from spanloop.consumers.sink import Sink
from spanloop.infra.clickhouse import connect, migrate
from spanloop.infra.embedded_clickhouse import ClickHouseProcess
from spanloop.infra.kafka import Message
from spanloop.infra.producer import Producer
from spanloop.infra.quarantine import Quarantine
from spanloop.infra.settings import Settings
from spanloop.schemas import ids, packed
from spanloop.schemas.records import ModelCall, Span, SpanBatch
from spanloop.schemas.serde import Decoder, LocalSchemas, encode_body, frame, local_ids

SPANS = 50_000
ROUNDS = 3
CALL = ModelCall(
    '{"messages":[]}', "{}", packed.pack_ids(range(400)), packed.pack_ids(range(50)), packed.pack_logprobs([-0.5] * 50)
)


def attributes(i: int) -> str:
    fixed = {f"attribute.{k}": f"value {i % (3 + k)} of some length" for k in range(10)}
    return json.dumps({"gen_ai.system": "openai", "gen_ai.response.id": ids.trace_id(), **fixed})


def messages(per_record: int, call: ModelCall | None) -> list[Message]:
    out: list[Message] = []
    for record in range(SPANS // per_record):
        spans = [
            Span(
                ids.trace_id(), ids.span_id(), "chat", 1_760_000_000_000_000_000 + record, sequence=i,
                end_ns=1_760_000_000_500_000_000 + record, attributes=attributes(record + i), call=call,
            )
            for i in range(per_record)
        ]  # fmt: skip
        batch = SpanBatch(ids.rollout_id(), ids.attempt_id(), "worker-1", spans=spans)
        out.append(Message("spans", record % 4, record // 4, b"k", frame(local_ids()["spans"], encode_body(batch))))
    return out


def best(work: Callable[[], None]) -> float:
    times: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> dict[str, float]:
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, ClickHouseProcess(Path(folder)) as process:
        client = connect(Settings(clickhouse_url=process.url, clickhouse_database="bench"))
        migrate(client, "bench")
        sink = Sink(client, LocalSchemas(), Quarantine(cast("Producer", None), "bench", 0))
        for name, call in (("", None), ("_with_2kB_of_ids", CALL)):
            for per_record in (1, 10, 100):
                batch = messages(per_record, call)

                def store(batch: list[Message] = batch) -> None:
                    client.command("TRUNCATE TABLE spans")  # its tokens go with it
                    sink.write(batch)

                def decode(batch: list[Message] = batch) -> None:
                    decoder = Decoder(LocalSchemas())
                    for m in batch:
                        decoder.decode(SpanBatch, m.value or b"")

                stored, decoded = best(store), best(decode)
                count = client.query("SELECT count() FROM v_spans").result_rows[0][0]
                if count != SPANS:
                    raise RuntimeError(f"{count} of {SPANS} spans are there")
                figures[f"spans_per_s_at_{per_record}_a_record{name}"] = round(SPANS / stored)
                figures[f"ratio_to_decoding_alone_at_{per_record}_a_record{name}"] = round(decoded / stored, 2)
        status = Path(f"/proc/{process.pid}/status")
        if status.exists():
            peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
            figures["clickhouse_peak_memory_mib"] = round(int(peak.split()[1]) / 1024)
        client.close()
    return figures


if __name__ == "__main__":
    import sys

    sys.stdout.write(json.dumps({"figures": main()}) + "\n")
