"""The assembler as a Faust app.

    spans, rewards ─▶ Faust (group, assignment, fetching) ─▶ Shell ─▶ Assembler
                                                          ◀─ offsets to commit
    SPANLOOP_BOOTSTRAP=… faust -A spanloop.streams.app worker --without-web

Faust gives partitions and records. The records are taken as its consumer fetched them: its streams cost a third of a
millisecond each. It never acknowledges: it would commit past gaps, and past a record whose handling failed. Offsets are
committed here, after `Shell.settle`. On assignment a raw reader catches up to the end, many times as fast as Faust,
and Faust goes on from there. Whatever is not foreseen stops the worker.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from tempfile import TemporaryDirectory

from ..infra.clock import Clock
from ..infra.kafka import Message as Raw
from ..infra.kafka import Names, Position
from ..infra.process import collect_seldom
from ..infra.registry import wait_for_registry
from ..infra.settings import Settings
from ..schemas.errors import ConfigError, SpanloopError, Unavailable
from ..schemas.topics import REWARDS, SPANS
from .faust_consumer import Batches
from .faust_offsets import commit, end_offsets
from .faust_settings import faust_settings
from .faust_types import TP, App, BootStrategy, Message, Transport
from .first_offsets import commit_first_offsets, committed_offsets
from .messages import SOURCES, Policy, Source
from .offsets import overtaken
from .shell import NAME, Shell

QUEUED_BATCHES = 4
FETCH_WAIT_MS = 50
TICK_S = 0.05
COMMIT_S = 0.2
STOP_POLL_S = 0.05
SETTLE_S = 30.0  # a hundred times what Faust needs to come to rest after a rebalance
LAST_COMMIT_S = 1.0  # what is not committed by then is read again at the next start


class _ConsumerOnly(BootStrategy):
    """Records leave through our own producer, so Faust's is not started."""

    enable_kafka_producer = False
    enable_web = False


class AssemblerApp(App):
    """A Faust app around a `Shell`, which is made when the app starts."""

    BootStrategy = _ConsumerOnly

    def __init__(self, settings: Settings, policy: Policy | None = None, clock: Clock | None = None) -> None:
        self._folder = TemporaryDirectory(prefix="spanloop-assembler-")
        super().__init__(id=f"{settings.prefix}-{NAME}", datadir=self._folder.name, **faust_settings(settings))
        self.settings = settings
        self.make_shell: Callable[[], Shell] = lambda: Shell(settings, policy, clock)
        self.shell: Shell | None = None
        self.held: set[int] = set()  # partitions caught up
        self.names = Names(settings.prefix)
        self._ready = asyncio.Event()
        self._queue: asyncio.Queue[Sequence[Raw]] = asyncio.Queue(QUEUED_BATCHES)
        self._take_over_lock = asyncio.Lock()
        self._commit_lock = asyncio.Lock()
        self._generation = self._rebalance = 0
        self._compared = False  # with what other members committed while partitions were theirs
        self._leaving = threading.Event()
        topics = (self.names.full(t.name) for t in (SPANS, REWARDS))
        self.topics.add(self.topic(*topics, key_serializer="raw", value_serializer="raw", acks=False))
        self.on_partitions_assigned.connect(self._assigned)

    def _new_transport(self) -> Transport:
        made = super()._new_transport()
        made.Consumer = Batches
        return made

    # --- life

    async def on_first_start(self) -> None:
        await super().on_first_start()
        self._folder.cleanup()  # Faust has made it and keeps nothing in it; one that is killed leaves it to nobody
        await asyncio.to_thread(wait_for_registry, self.settings, self._leaving)
        await asyncio.to_thread(commit_first_offsets, self.settings, NAME)
        self.shell = await asyncio.to_thread(self.make_shell)

    async def on_started(self) -> None:
        await super().on_started()
        for work in (self._take, self._tick, self._reread, self._commit):
            self._begin(work())

    def _begin(self, work: Coroutine[object, object, None]) -> None:
        self.add_future(self._loudly(work))

    async def _loudly(self, work: Coroutine[object, object, None]) -> None:
        """Has work that is cancelled stop the worker: aiokafka's calls may be, and Faust would go on without it."""
        try:
            await work
        except asyncio.CancelledError as error:
            if not self.should_stop:
                await self.crash(error)
            raise

    async def on_stop(self) -> None:
        self._generation += 1
        self._leaving.set()
        # not committed = read again, nothing is lost; a consumer that has crashed cancels what it was asked
        with suppress(asyncio.TimeoutError, asyncio.CancelledError, SpanloopError):
            await asyncio.wait_for(self.commit_now(), LAST_COMMIT_S)
        await super().on_stop()

    async def on_shutdown(self) -> None:
        await super().on_shutdown()
        if self.shell is not None:
            await asyncio.to_thread(self.shell.close)

    @property
    def is_ready(self) -> bool:
        """Whether it has caught up with all it was assigned."""
        return self._ready.is_set()

    def _shell(self) -> Shell:
        assert self.shell is not None
        return self.shell

    # --- partitions

    async def _assigned(self, _: object, assigned: set[TP], **__: object) -> None:
        self._ready.clear()
        self._generation += 1
        self._compared = False
        self._rebalance = self.rebalancing_count
        # Faust fixes this at 1.5 s, which the embedded broker takes literally even when records are there
        attrgetter("_thread._consumer._fetcher")(self.consumer)._fetch_max_wait_ms = FETCH_WAIT_MS
        numbers = {
            source: {tp.partition for tp in assigned if tp.topic == self.names.full(source)} for source in SOURCES
        }
        if numbers["spans"] != numbers["rewards"]:
            raise ConfigError(
                f"assigned partitions {numbers['spans']} of spans and {numbers['rewards']} of rewards; they must be "
                "the same: do both topics have as many partitions? (`spanloop init` says)"
            )
        self._begin(self._take_over(numbers["spans"], self._generation))

    async def _take_over(self, numbers: set[int], generation: int) -> None:
        """Gives up what another member has, catches up with what is new, and lets Faust go on from there."""

        def superseded() -> bool:
            return generation != self._generation

        shell = self._shell()
        async with self._take_over_lock:
            for partition in self.held - numbers:
                self.held.discard(partition)
                shell.revoke(partition)
            wanted: list[Position] = [(source, p) for source in SOURCES for p in numbers]
            found = await asyncio.to_thread(committed_offsets, self.settings, NAME, wanted) if wanted else {}
            committed: dict[int, dict[Source, int]] = {p: {s: found[s, p] for s in SOURCES} for p in sorted(numbers)}
            for partition, offsets in committed.items():
                if partition in self.held and overtaken(offsets, shell.positions(partition)):
                    self.held.discard(partition)
                    shell.revoke(partition)
            if superseded():
                return
            self._compared = True
            for partition, offsets in committed.items():
                if partition not in self.held:
                    if not await shell.take_over(partition, offsets, superseded):
                        return
                    self.held.add(partition)
            if not await self._settled():
                return
            positions = {
                TP(self.names.full(source), p): offset
                for p in self.held
                for source, offset in shell.positions(p).items()
            }
            if positions and not superseded():
                await self._seek(positions)
            if not superseded():
                shell.with_markers.clear()
                self._ready.set()

    async def _seek(self, positions: Mapping[TP, int]) -> None:
        try:
            await self.consumer.seek_wait(positions)
        except asyncio.TimeoutError as error:
            raise Unavailable(
                f"the {NAME}'s consumer was not told by {self.settings.bootstrap} where it stands, in time"
            ) from error

    async def _settled(self) -> bool:
        """Waits until Faust lets records through again; False where another rebalance has begun. Raises Unavailable."""
        for _ in range(round(SETTLE_S / STOP_POLL_S)):
            if not self.rebalancing or self.rebalancing_count != self._rebalance:
                return not self.rebalancing
            await asyncio.sleep(STOP_POLL_S)
        raise Unavailable(
            f"group {NAME} gave partitions, but its consumer did not go on within {SETTLE_S:g} s; nothing is lost, "
            "start again"
        )

    # --- work

    async def forward(self, messages: Sequence[Message]) -> None:
        """Takes what was fetched; waits while enough of it is waiting."""
        await self._queue.put([self._raw(m) for m in messages])

    def _raw(self, m: Message) -> Raw:
        headers = list(m.headers.items()) if isinstance(m.headers, Mapping) else m.headers
        return Raw(self.names.short(m.topic), m.partition, m.offset, m.key, m.value, headers)

    async def _take(self) -> None:
        while True:
            messages = await self._queue.get()
            await self._ready.wait()
            await self._shell().take_fetched(messages)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._shell().tick()

    async def _reread(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            await self._ready.wait()  # until then records that a reread looks for may not have been read a first time
            if self._shell().rereads:
                await self._shell().reread()

    async def _commit(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            await self.commit_now()

    async def commit_now(self) -> None:
        """Waits for acknowledgements and commits what they allow: nothing more once something has failed.

        Nothing either that another member may have gone past: the group takes any offset of who holds a partition.
        """
        async with self._commit_lock:
            if self.shell is None or self.crashed:
                return
            self.shell.ends |= end_offsets(self.consumer, self.names, self.held)
            known, generation = self._compared, self._generation
            offsets = await self.shell.settle()
            if not (offsets and known) or self.rebalancing:
                return
            if generation != self._generation or self.rebalancing_count != self._rebalance:
                return
            if await commit(self.consumer, self.names, offsets):
                self.shell.committed(offsets)


def __getattr__(name: str) -> AssemblerApp:
    """`app`, made from the environment when `faust -A spanloop.streams.app` asks for it."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    collect_seldom()
    made = globals()["app"] = AssemblerApp(Settings())
    return made
