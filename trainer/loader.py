"""The one loader of an engine: follows `resources` and keeps the engine on its policy's newest version.

    check sha256 ─▶ pause(wait) ─▶ reload ─▶ reset cache ─▶ verify by the probe ─▶ stamp ─▶ resume ─▶ heartbeat

Whatever fails, the last good version is loaded again and kept. No torch here. Start reading at `loader_plan.py`.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack, closing
from typing import Literal

from ..infra.clock import Clock, SystemClock
from ..infra.kafka import Reader
from ..infra.producer import Producer
from ..infra.quarantine import Quarantine
from ..infra.registry import connect, wait_for_registry
from ..infra.settings import Settings
from ..infra.taking import Taking
from ..schemas import ids
from ..schemas.errors import BackPressure, DeliveryFailed, Fenced, Unavailable
from ..schemas.records import Resource, Worker
from ..schemas.serde import Decoder
from .loader_engine import EngineClient, WeightsRefused, check_probe, checked_folder
from .loader_log import LoaderLog
from .loader_plan import LEASE_LABEL, LEASE_S, Lease, Versions

log = logging.getLogger(__name__)

# Which distribution log-probs are of: before the temperature, or the one drawn from.
LogprobsMode = Literal["raw_logprobs", "processed_logprobs"]
BEAT_S = 1.0
FLUSH_S, LEAVE_S = 30.0, 3.0  # for what is not acknowledged yet: at the end of its work, and once told to stop
BEATS_S = 1.0  # for a heartbeat under way, which waits where the queue is full
PUBLISH_S = 30.0  # a trainer that is starting has published its first version by then
# No integer: tokens stamped with it have no version, and are never trained.
UNVERIFIED = "unverified"


class LoaderService:
    """Keeps one engine on the newest version of a policy; run one per engine."""

    def __init__(
        self,
        settings: Settings,
        engine_url: str,
        policy: str,
        *,
        verify: bool = True,
        paused_probe: bool = True,
        logprobs_mode: LogprobsMode | None = None,
        name: str = "",
        clock: Clock | None = None,
    ) -> None:
        """Makes no connection yet.

        verify: False leaves out the probe. For an engine with `--frozen`, the control of an experiment: it takes new
        version numbers and keeps its old weights, so its probe could only fail.
        paused_probe: False for vLLM, which queues the probe while paused. It is then resumed before it, under a stamp
        that is no version, so what it answers meanwhile is not trained.
        logprobs_mode: what the engine's log-probs are of, where it does not say: vLLM's `--logprobs-mode`, raw_logprobs
        unless it was given. Where nobody says, only calls at temperature 1 are trained.
        """
        self._settings = settings
        self._url = engine_url.rstrip("/")
        self._policy = policy
        self._verify = verify
        self._paused_probe = paused_probe
        self._logprobs_mode = logprobs_mode
        self._name = name or f"loader-{policy}"
        self._clock = clock or SystemClock()
        self._worker_id = ids.worker_id()
        self._lease = Lease(self._url)
        self._versions = Versions(policy)
        self._served: int | None = None  # what heartbeats say; None = nothing good yet
        self._held: int | None = None  # the version whose weights the engine is known to hold; None = load again
        self._reachable = False
        self._software: dict[str, str] = {}
        self._changed = threading.Event()  # wakes the heartbeat
        self._look_at_s = 0.0
        self._looked = False
        self._published_by_s = 0.0
        self._told_of_none = False
        self.loads = 0
        self.refused = 0

    @property
    def served(self) -> int | None:
        """The version its engine serves; None while there is no good one."""
        return self._served

    def run(self, stop: threading.Event) -> None:
        """Loads until `stop`. Raises Fenced where another live loader has the engine, Unavailable without Kafka."""
        if not wait_for_registry(self._settings, stop):
            return
        with ExitStack() as stack:
            producer = Producer(self._settings, self._name)
            stack.callback(lambda: producer.close(LEAVE_S if stop.is_set() else FLUSH_S))
            reader = stack.enter_context(closing(Reader(self._settings, self._name)))
            registry = stack.enter_context(closing(connect(self._settings)))
            engine = stack.enter_context(closing(EngineClient(self._url, self._policy)))
            quarantine = Quarantine(producer, self._name, self._settings.dlq_limit, self._clock)
            inbox = LoaderLog(reader, Taking(Decoder(registry), quarantine, stop), self._lease, self._versions)
            inbox.catch_up(stop)
            self._claim(producer, inbox, stop)
            self._published_by_s = self._clock.steady_s() + PUBLISH_S
            ended = threading.Event()
            name = f"{self._name}-beats"
            beats = threading.Thread(target=self._beat, args=(producer, ended), name=name, daemon=True)
            beats.start()
            try:
                while not stop.is_set():
                    inbox.follow(stop)
                    producer.check()
                    self._keep_lease()
                    self._tend(engine)
            finally:
                ended.set()
                self._changed.set()
                beats.join(BEATS_S)
                self._tell(producer, goodbye=True)

    def _claim(self, producer: Producer, inbox: LoaderLog, stop: threading.Event) -> None:
        """Takes the engine's lease: at once, or when a loader that has died is silent for long enough."""
        found = self._lease.holder
        while not stop.is_set():
            holder = self._lease.holder
            if self._lease.free(self._clock.now_ns()):
                producer.send_wait(self._heartbeat())
                inbox.catch_up(stop)
                self._keep_lease()
                return
            if holder is not None and found is not None and holder.beat_ns > found.beat_ns:
                raise self._fenced(holder)
            inbox.follow(stop)

    def _keep_lease(self) -> None:
        holder = self._lease.holder
        if holder is not None and holder.worker_id != self._worker_id:
            raise self._fenced(holder)

    def _fenced(self, holder: Worker) -> Fenced:
        return Fenced(
            f"engine {self._url} has another live loader, {holder.name!r} ({holder.worker_id}); an engine has one "
            f"loader: stop one of the two (a dead one's lease ends {LEASE_S:g} s after its last heartbeat)"
        )

    def _tend(self, engine: EngineClient) -> None:
        """Looks after the engine once a second, and loads what is wanted."""
        if self._clock.steady_s() >= self._look_at_s:
            self._look(engine)
        if self._versions.newest is None:
            self._tell_of_none()
        if not self._reachable:
            return
        wanted = self._versions.wanted(self._held)
        if wanted is not None:
            self._load(engine, wanted)
        elif self._held is None and self._served is not None:
            self._say(None)
            log.critical("engine %s stays paused: policy %r has no good version", self._url, self._policy)

    def _tell_of_none(self) -> None:
        if self._told_of_none or self._clock.steady_s() < self._published_by_s:
            return
        self._told_of_none = True
        log.warning(
            "engine %s answers nobody before a first version of policy %r is published, as a trainer does at once; "
            "for a model that is not trained give the gateway this address as its upstream",
            self._url,
            self._policy,
        )

    def _look(self, engine: EngineClient) -> None:
        """Whether the engine is there, and still has what was loaded: one that was restarted has not."""
        first, self._looked = not self._looked, True
        self._look_at_s = self._clock.steady_s() + BEAT_S
        try:
            version = engine.version()
            if not self._reachable:
                mode = engine.logprobs_mode() or self._logprobs_mode
                self._software = {} if mode is None else {"logprobs_mode": mode}
        except (Unavailable, WeightsRefused) as error:  # what says no to this question is no engine, or not yet
            if self._reachable or first:
                log.warning("%s", error)
            self._reachable, self._held = False, None
            self._changed.set()
            return
        self._reachable = True
        if self._held is not None and version != str(self._held):
            log.warning("engine %s serves version %r instead of %d; loading again", self._url, version, self._held)
            self._held = None

    def _load(self, engine: EngineClient, wanted: Resource) -> None:
        try:
            folder = checked_folder(wanted)  # before the engine is touched
            self._pause(engine)
            engine.reload(folder)
            self._check(engine, wanted)
            engine.stamp(str(wanted.version))
            engine.resume()
        except WeightsRefused as error:
            self.refused += 1
            self._versions.refuse(wanted)
            log.error("policy %r version %d refused: %s", self._policy, wanted.version, error)
        except Unavailable as error:
            self._reachable = False
            log.warning("%s; version %d is loaded when it is back", error, wanted.version)
        else:
            self.loads += 1
            self._held = wanted.version
            self._versions.good(wanted)
            self._say(wanted.version)
            log.info("engine %s serves policy %r version %d", self._url, self._policy, wanted.version)

    def _pause(self, engine: EngineClient) -> None:
        """Afterwards it holds no version for sure: one whose answer is lost may be paused; one that refuses is not."""
        held, self._held = self._held, None
        try:
            engine.pause()
        except WeightsRefused:
            self._held = held
            raise

    def _check(self, engine: EngineClient, wanted: Resource) -> None:
        if not self._verify or wanted.probe is None:
            return
        if self._paused_probe:
            check_probe(engine, wanted.probe)
            return
        engine.stamp(UNVERIFIED)
        engine.resume()
        try:
            check_probe(engine, wanted.probe)
        except WeightsRefused:
            engine.pause()
            raise

    def _say(self, version: int | None) -> None:
        self._served = version
        self._changed.set()

    def _beat(self, producer: Producer, ended: threading.Event) -> None:
        """Writes a heartbeat each second and at each change, also while a load takes its time."""
        while not ended.is_set():
            self._tell(producer)
            self._changed.wait(BEAT_S)
            self._changed.clear()

    def _tell(self, producer: Producer, *, goodbye: bool = False) -> None:
        try:
            producer.send(self._heartbeat(goodbye=goodbye))
        except (BackPressure, DeliveryFailed) as error:  # the next one says the same, and silence ends the lease too
            log.warning("no heartbeat: %s", error)

    def _heartbeat(self, *, goodbye: bool = False) -> Worker:
        """`alive` = the engine can be called; the lease is the label."""
        return Worker(
            worker_id=self._worker_id,
            name=self._name,
            role="engine",
            labels=[] if goodbye else [LEASE_LABEL],
            versions=self._software,
            policy=self._policy,
            policy_version=self._served,
            host=self._url,
            beat_ns=self._clock.now_ns(),
            alive=not goodbye and self._reachable and self._served is not None,
        )
