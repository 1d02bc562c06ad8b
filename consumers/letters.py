"""Dead letters as people handle them: read, chosen, shown; and which of them can be put back. Pure but for `read`.

A replayed letter is noted in topic dead-letters itself, by a letter of reason `replayed` about it: a ledger that lasts
as long as what it is about, is everybody's, and can be asked by SQL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from ..infra.kafka import Message, Reader
from ..infra.quarantine import is_cut
from ..infra.registry import connect
from ..infra.settings import Settings
from ..infra.to_end import to_end
from ..schemas.errors import InvalidRecord, Reason
from ..schemas.records import DeadLetter, Task
from ..schemas.serde import HEADER, MAGIC, Decoder, decode_body, schema_json, to_plain
from ..schemas.topics import ASSIGNMENTS, ATTEMPTS, BATCHES, DEAD_LETTERS, TASKS, TOPICS
from .plain import plain

REPLAYED: Reason = "replayed"
# Where what comes last counts, of a key, an attempt or a trainer's steps, or is obeyed when it comes: an old record put
# behind newer ones would undo them. Elsewhere readers know a repeat by its identity, revision or version.
LAST_COUNTS = frozenset(t.name for t in TOPICS.values() if "compact" in t.cleanup) | {
    ASSIGNMENTS.name, ATTEMPTS.name, BATCHES.name
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter and its offset in topic dead-letters, by which people name it."""

    offset: int
    dead: DeadLetter

    @property
    def where(self) -> str:
        """Where the record was that it is about."""
        return f"{self.dead.topic}[{self.dead.partition}]@{self.dead.offset}"

    @property
    def is_ledger(self) -> bool:
        """It says that another one was replayed."""
        return self.dead.reason == REPLAYED


@dataclass(frozen=True, slots=True)
class Selection:
    """Which letters are meant; what is empty takes all."""

    reasons: Collection[str] = ()
    topics: Collection[str] = ()
    consumers: Collection[str] = ()
    first: int = 0  # offset in dead-letters
    last: int | None = None  # the last one taken; null = to the end

    def takes(self, letter: Letter) -> bool:
        """Whether a letter is meant; a note of the ledger never is."""
        dead = letter.dead
        return (
            not letter.is_ledger
            and (not self.reasons or dead.reason in self.reasons)
            and (not self.topics or dead.topic in self.topics)
            and (not self.consumers or dead.consumer in self.consumers)
            and self.first <= letter.offset <= (letter.offset if self.last is None else self.last)
        )


@dataclass(frozen=True, slots=True)
class Put:
    """A record to be put back as it was."""

    letter: int  # offset of its letter
    topic: str
    partition: int
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Kept:
    """A letter that is not put back, and why."""

    letter: int
    why: str


def replayed(letters: Iterable[Letter]) -> set[int]:
    """Offsets of the letters that the ledger says were put back."""
    return {letter.dead.offset for letter in letters if letter.is_ledger}


def note(put: Put, now_ns: int) -> DeadLetter:
    """The ledger's note that a letter was put back."""
    return DeadLetter(
        consumer="dlq replay",
        topic=DEAD_LETTERS.name,
        partition=0,
        offset=put.letter,
        reason=REPLAYED,
        message=f"put back on {put.topic}[{put.partition}]",
        at_ns=now_ns,
    )


def plan(
    letter: Letter, done: Collection[int], partitions: int, *, decoder: Decoder, again: bool = False
) -> Put | Kept:
    """What to do with a letter. `done`: letters replayed before; `partitions`: of its topic.

    It goes to the partition it came from, which its key names too. Only what could be read now is put back: else its
    reader would refuse it again; and only what no later record can have replaced. Raises Unavailable.
    """
    dead = letter.dead
    why = None
    if letter.offset in done and not again:
        why = "was put back before; --again does it once more"
    elif dead.topic not in TOPICS or dead.topic == DEAD_LETTERS.name:
        why = f"{dead.topic!r} is no topic that can be replayed"
    elif not 0 <= dead.partition < partitions:
        why = "was never in the log: nothing is to be put back"
    elif dead.topic in LAST_COUNTS:
        why = f"a later record may have replaced it; read it with `dlq show {letter.offset}`"
    elif is_cut(dead):
        why = "holds only the first bytes of its record, which was too large to be kept"
    elif not dead.key:
        why = "has no key: its reader would refuse it again"
    elif dead.raw is not None and (len(dead.raw) < HEADER.size or dead.raw[0] != MAGIC):
        why = "has no schema id in front (one in a header is not kept): its reader would refuse it again"
    elif dead.topic == TASKS.name and dead.raw is not None:
        why = _why_no_work(dead.raw, decoder)
    if why is not None:
        return Kept(letter.offset, why)
    return Put(letter.offset, dead.topic, dead.partition, dead.key or b"", dead.raw)


def _why_no_work(raw: bytes, decoder: Decoder) -> str | None:
    """Why a task is kept, None if it is work. An order is obeyed whenever it comes; a later one may have lifted it."""
    try:
        action = decoder.decode(Task, raw).action
    except InvalidRecord as error:
        return f"cannot be told from an order ({error})"
    return None if action == "run" else f"is an order ({action}): a later one may have lifted it; if not, give it anew"


def summary(letters: Iterable[Letter]) -> Counter[tuple[str, str, str]]:
    """(consumer, topic, reason) -> how many."""
    return Counter((x.dead.consumer, x.dead.topic, x.dead.reason) for x in letters if not x.is_ledger)


def shown(letter: Letter, decoder: Decoder) -> dict[str, Any]:
    """A letter as people read it: its record decoded where that can be done, else why not, and its bytes in hex."""
    dead = letter.dead
    out = {"letter": letter.offset, **plain(to_plain(replace(dead, raw=None)))}
    del out["raw"]
    out["key"] = None if dead.key is None else dead.key.decode("utf-8", "backslashreplace")
    if dead.raw is None:
        return {**out, "record": None}
    out["bytes"] = len(dead.raw)
    try:
        return {**out, "record": _decoded(dead, dead.raw, decoder)}
    except InvalidRecord as error:
        return {**out, "undecodable": str(error), "hex": dead.raw[:64].hex()}


def _decoded(dead: DeadLetter, raw: bytes, decoder: Decoder) -> object:
    if dead.topic not in TOPICS:
        raise InvalidRecord("unsupported", f"{dead.topic!r} is no topic of ours")
    topic = TOPICS[dead.topic]
    if dead.partition < 0:  # of a gateway: a body that never was in the log and so has no framing
        return plain(to_plain(decode_body(topic.record, raw, schema_json(topic.record))))
    return plain(to_plain(decoder.decode_topic(topic, raw)))


def read(settings: Settings, *, bodies: bool = True, first: int = 0) -> Iterator[Letter]:
    """Every dead letter from an offset to the end there is now, the ledger's notes too.

    bodies: with the refused bytes, which may be 16 MiB each. Raises Unavailable.
    """
    position = (DEAD_LETTERS.name, 0)
    with closing(connect(settings)) as registry, closing(Reader(settings, "letters")) as reader:
        decoder = Decoder(registry)
        low, high = reader.watermarks(position)
        if max(low, first) >= high:
            return
        reader.assign({position: max(low, first)})
        yield from _letters(to_end(reader, {position: high}), decoder, bodies=bodies)


def _letters(messages: Iterable[Message], decoder: Decoder, *, bodies: bool) -> Iterator[Letter]:
    for m in messages:
        if m.value is None:
            continue
        try:
            dead = decoder.decode(DeadLetter, m.value, m.headers)
        except InvalidRecord as error:  # not one of ours, or a newer one: people see that it is there
            dead = DeadLetter("?", DEAD_LETTERS.name, m.partition, m.offset, error.reason, message=error.message)
        yield Letter(m.offset, dead if bodies else replace(dead, raw=None))
