"""Avro bodies that nobody decodes, put into an object container that ClickHouse reads.

    header: writer schema with k_partition, k_offset put first
    block:  1 | length | zigzag(partition) zigzag(offset) body | sync

An Avro record is its fields' bytes one after another, so lineage in front of a body makes a body of the wider record.
Each record is a block of its own: a garbled one then ends at its own end, and cannot shift what is read after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache, lru_cache

from ..schemas.varint import write_long

MAGIC = b"Obj\x01"
# Any 16 bytes do; a constant makes equal batches equal bytes.
SYNC = bytes.fromhex("b8f0c4a1d29e4f3a8c57e6610d3b9a72")
LINEAGE = ({"name": "k_partition", "type": "int"}, {"name": "k_offset", "type": "long"})
ONE = b"\x02"


class Container:
    """A container's parts for records written with one schema: `header` once, then any number of blocks."""

    def __init__(self, writer_schema: str, sync: bytes = SYNC) -> None:
        self.header = header(writer_schema, sync)
        self._sync = sync

    def block(self, records: Iterable[tuple[int, int, bytes]]) -> bytes:
        """Blocks for (partition, offset, body) records."""
        parts: list[bytes] = []
        sync = self._sync
        for partition, offset, body in records:
            lineage = _again(partition) + write_long(offset)
            parts += (ONE, _again(len(lineage) + len(body)), lineage, body, sync)
        return b"".join(parts)


@cache
def header(writer_schema: str, sync: bytes) -> bytes:
    """The header of a container whose records have lineage in front."""
    schema = json.loads(writer_schema)
    schema["fields"] = [*LINEAGE, *schema["fields"]]
    pairs = {b"avro.schema": json.dumps(schema, separators=(",", ":")).encode(), b"avro.codec": b"null"}
    body = b"".join(write_long(len(k)) + k + write_long(len(v)) + v for k, v in pairs.items())
    return MAGIC + write_long(len(pairs)) + body + b"\0" + sync


# Partitions and lengths come again and again.
_again = lru_cache(1 << 16)(write_long)
