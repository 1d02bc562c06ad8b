"""Every record on every topic, as frozen dataclasses. Start reading here; `topics.py` says which goes where.

Control records are below; what attempts emit is in `spans.py`, what is made of it in `trajectories.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .spans import (
    AttemptContext,
    AttemptEnd,
    Credit,
    CreditMode,
    EndStatus,
    FailureClass,
    Mode,
    ModelCall,
    Payload,
    PromptBase,
    Reward,
    RewardScope,
    RewardSource,
    Sampling,
    Span,
    SpanBatch,
    Usage,
    VersionRun,
)
from .trajectories import (
    Assembly,
    Batch,
    BatchMember,
    Call,
    Decision,
    DecisionMember,
    RewardRef,
    Row,
    Segment,
    Trajectory,
)

AssignmentAction = Literal["unknown", "run", "cancel"]
AttemptStatus = Literal["unknown", "preparing", "running", "closing", "ended"]
ResourceKind = Literal["unknown", "prompt", "model", "policy", "json"]
RolloutStatus = Literal["unknown", "queuing", "running", "succeeded", "failed", "cancelled", "order"]
TaskAction = Literal["unknown", "run", "cancel", "pause", "resume", "limit", "drain", "undrain"]
WorkerRole = Literal["unknown", "worker", "engine", "trainer"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how often a rollout may be tried. Seconds."""

    max_attempts: int = 1  # tries, the first included
    timeout_s: float = 3600.0  # from begin to end marker
    unresponsive_s: float = 60.0  # without a heartbeat that names the attempt
    claim_s: float = 30.0  # from dispatch to begin
    retry_on: list[str] = field(default_factory=list[str])  # end statuses, error types; empty = by class
    failure_reward: float | None = None  # reward of a failure of class agent; null = none
    backoff_s: float = 0.25  # before the next try of one that failed; doubles with each further one; 0 = at once
    backoff_max_s: float = 30.0  # the longest it grows to
    rollout_timeout_s: float | None = None  # over the whole rollout, its queueing and every try; null = none
    run_concurrency: int | None = None  # attempts of the run out at once, from now on; null = as before


@dataclass(frozen=True, slots=True)
class Task:
    """A wish for one rollout, or an order about one.

    Topic tasks, key rollout_id. Written by users; read by the controller.
    """

    rollout_id: str  # key; the same id again changes nothing
    run_id: str  # runs share workers fairly
    action: TaskAction = "run"  # run, or an order: `orders.py` makes them
    group_id: str | None = None  # rollouts compared with each other; minted per enqueue
    sample: int = 0  # index in the group
    group_size: int = 1  # members of the group
    mode: Mode = "train"  # only train is ever trained on
    input: str = "null"  # JSON handed to the agent
    pins: dict[str, int | None] = field(default_factory=dict[str, "int | None"])  # versions; null = newest at dispatch
    credit: Credit = Credit()  # credit assignment
    limits: Limits = Limits()  # tries and time-outs
    await_rewards: list[str] = field(default_factory=list[str])  # reward names to wait for
    reward_deadline_s: float = 0.0  # seconds after the end to wait at most
    data_id: str | None = None  # row of the data set
    data_source: str | None = None  # data set
    requirements: list[str] = field(default_factory=list[str])  # labels a worker must have
    priority: int = 0  # higher first within a run
    requeued_from: str | None = None  # rollout this one repeats
    reason: str | None = None  # for people
    metadata: dict[str, str] = field(default_factory=dict[str, str])  # for people
    created_ns: int = 0  # Unix time in nanoseconds


@dataclass(frozen=True, slots=True)
class Assignment:
    """An attempt given to a worker, or taken from it. Topic assignments, key worker_id. Written by the controller."""

    worker_id: str  # key
    attempt_id: str  # never used again
    action: AssignmentAction = "run"  # cancel: stop that attempt
    epoch: int = 0  # of the controller; workers refuse older ones
    attempt_number: int = 1  # 1 for the first try
    final: bool = True  # a failure of this attempt is not retried
    deadline_ns: int = 0  # Unix time by which it is closed as timeout
    task: Task | None = None  # null for cancel
    pins: dict[str, int | None] = field(default_factory=dict[str, "int | None"])  # resolved at dispatch
    claim_s: float = 30.0  # a claim later than this is refused by the worker
    at_ns: int = 0  # Unix time in nanoseconds of the dispatch


@dataclass(frozen=True, slots=True)
class Worker:
    """A heartbeat: the whole state of a process.

    Topic workers, key worker_id. Written by workers, engines, trainers.
    """

    worker_id: str  # key; minted per process start
    name: str = ""  # stable label
    role: WorkerRole = "worker"  # what it is
    slots: int = 0  # attempts at once; 0 = leaving
    running: list[str] = field(default_factory=list[str])  # attempt ids
    last_assignment_offset: int = -1  # last assignment seen in its partition; -1 = none
    labels: list[str] = field(default_factory=list[str])  # what it offers
    versions: dict[str, str] = field(default_factory=dict[str, str])  # software versions
    credit: int | None = None  # trainers: how many rollouts may be outstanding; null = no bound
    policy: str | None = None  # engines, trainers: policy served or trained
    policy_version: int | None = None  # engines, trainers: version in use
    host: str = ""  # engines: base URL; else host name
    run_id: str | None = None  # trainers: the run trained on
    beat_ns: int = 0  # Unix time in nanoseconds
    alive: bool = True  # false: a goodbye
    draining: bool = False  # takes no more, ends what it has


@dataclass(frozen=True, slots=True)
class Attempt:
    """What happened to an attempt.

    Topic attempts, key rollout_id. Written by controller and assembler; read by both, gateways.
    """

    rollout_id: str  # key
    attempt_id: str  # the attempt
    status: AttemptStatus  # preparing, running, closing, ended
    attempt_number: int = 1  # 1 for the first try
    outcome: EndStatus | None = None  # set when ended
    failure_class: FailureClass | None = None  # set when ended by a failure
    error_type: str | None = None  # exception class or error code
    final: bool = False  # no further attempt follows
    mode: Mode = "train"  # of the task
    pins: dict[str, int | None] = field(default_factory=dict[str, "int | None"])  # resolved at dispatch
    worker_id: str = ""  # who runs it
    epoch: int = 0  # of the controller that gave it out
    deadline_ns: int = 0  # Unix time by which it is closed as timeout
    reason: str | None = None  # for people
    at_ns: int = 0  # Unix time in nanoseconds
    span_count: int | None = None  # when ended
    late_events: int = 0  # events that came after the trajectory


@dataclass(frozen=True, slots=True)
class Rollout:
    """The controller's whole state of a rollout, or (status order, key run:<id> or worker:<id>) an order that stands.

    Topic rollouts (compacted), key rollout_id. Read by the controller, waiters.
    """

    rollout_id: str  # key
    status: RolloutStatus  # queuing, running, succeeded, failed, cancelled; order: no rollout
    task: Task  # what was asked
    final: bool = False  # true: nothing will change any more
    tries: int = 0  # attempts that count as tries
    dispatches: int = 0  # attempts minted
    attempt_id: str | None = None  # current attempt
    attempt_status: AttemptStatus | None = None  # of the current attempt
    closing: EndStatus | None = None  # what the controller is closing it with
    worker_id: str | None = None  # who has it
    counting_attempt: str | None = None  # the attempt that counts, once final
    mode: Mode = "train"  # of the task
    paused: bool = False  # not given out while true
    created_ns: int = 0  # Unix time in nanoseconds
    dispatched_ns: int = 0  # last dispatch
    started_ns: int = 0  # last begin
    ended_ns: int = 0  # when it became final
    deadline_ns: int = 0  # of the current attempt
    not_before_ns: int = 0  # back-off: not given out earlier
    reason: str | None = None  # for people
    error_type: str | None = None  # of the last failure
    pins: dict[str, int | None] = field(default_factory=dict[str, "int | None"])  # of the current attempt, resolved
    epoch: int = 0  # of the controller that wrote it; a later controller takes a higher one
    taken_ns: int = 0  # when the controller took it in; unlike any other's, in the log's order


@dataclass(frozen=True, slots=True)
class Resource:
    """A prompt, a value or a policy version.

    Topic resources, key name. Immutable: the first record of (name, version) wins.
    """

    name: str  # key
    version: int  # never reused
    kind: ResourceKind = "json"  # what body or uri hold
    body: str | None = None  # JSON; null = see uri
    uri: str | None = None  # file of the weights; null = see body
    sha256: str | None = None  # hex digest of the file
    parent_version: int | None = None  # version it was made from; null = first
    parent_sha256: str | None = None  # digest of that version
    epoch: int = 0  # of the writer
    probe: str | None = None  # JSON {ids, logprobs}: what the weights must answer
    run_id: str | None = None  # run that made it
    step: int | None = None  # trainer step that made it
    created_ns: int = 0  # Unix time in nanoseconds


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that a consumer could not take. Topic dead-letters, key source topic. Read by people."""

    consumer: str  # who refused it
    topic: str  # key: where it was
    partition: int  # where it was
    offset: int  # where it was
    reason: str  # closed list in errors.REASONS
    key: bytes | None = None  # as it was
    raw: bytes | None = None  # as it was; null = a tombstone
    message: str = ""  # what was wrong, what was expected
    at_ns: int = 0  # Unix time in nanoseconds


__all__ = [
    "Assembly", "Assignment", "AssignmentAction", "Attempt", "AttemptContext", "AttemptEnd", "AttemptStatus",
    "Batch", "BatchMember", "Call", "Credit", "CreditMode", "DeadLetter", "Decision", "DecisionMember",
    "EndStatus", "FailureClass", "Limits", "Mode", "ModelCall", "Payload", "PromptBase", "Resource",
    "ResourceKind", "Reward", "RewardRef", "RewardScope", "RewardSource", "Rollout", "RolloutStatus", "Row",
    "Sampling", "Segment", "Span", "SpanBatch", "Task", "TaskAction", "Trajectory", "Usage", "VersionRun",
    "Worker", "WorkerRole",
]  # fmt: skip
