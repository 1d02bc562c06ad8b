"""What the assembler makes of an attempt's events and what trainers write about it.

A trajectory is rows of tokens. A row joins the calls of one policy, agent path and sampling whose prompts extend
each other; `mask` says which tokens the policy produced:

    token_ids  [ prompt of call 0 | response 0 | new prompt ids of call 1 | response 1 ]
    mask       [ 0 0 0 0          | 1 1 1      | 0 0                      | 1 1        ]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .spans import AttemptContext, EndStatus, FailureClass, RewardScope, Sampling, VersionRun

AssemblyStatus = Literal["unknown", "emitted", "dropped"]
DecisionOutcome = Literal["unknown", "used", "dropped"]


@dataclass(frozen=True, slots=True)
class Segment:
    """Positions [start, end) of a row that are the response of one call."""

    start: int  # first position
    end: int  # one past the last position
    call: int  # index in Trajectory.calls


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence of tokens to train on. All packed fields have the row's length T."""

    token_ids: bytes  # (T,) little-endian int32
    mask: bytes  # (T,) one byte each, 1 = produced by the policy
    logprobs: bytes  # (T,) little-endian float32 under the behaviour policy; NaN where mask is 0 or missing
    policy: str | None = None  # resource name of the policy
    policy_versions: list[VersionRun] = field(default_factory=list["VersionRun"])  # run-length over tokens with mask 1
    segments: list[Segment] = field(default_factory=list["Segment"])  # the responses in it, in order
    agent_path: str = ""  # names of the agents from the root down, joined by /
    sampling: Sampling = Sampling()  # one for the whole row
    truncated: bool = False  # true: its last response was cut by a length limit


@dataclass(frozen=True, slots=True)
class Call:
    """One model call of a trajectory, in the order of `streams.stitch`."""

    span_id: str  # the call's span
    choice: int = 0  # index among n choices
    agent_path: str = ""  # names of the agents from the root down, joined by /
    policy: str | None = None  # resource name of the policy
    policy_versions: list[VersionRun] = field(default_factory=list["VersionRun"])  # run-length over its response
    sampling: Sampling = Sampling()  # how it was drawn
    finish_reason: str | None = None  # as the engine said it
    partition: int = 0  # of the record in spans that held it
    offset: int = 0  # of the record in spans that held it
    step_reward: float | None = None  # own reward; null = none
    credit: float | None = None  # by the task's credit mode; null = no reward reached it
    excluded: str | None = None  # why it is in no row: no_token_ids, empty, undelivered, ...; null = it is in one


@dataclass(frozen=True, slots=True)
class RewardRef:
    """One reward as it counted in a trajectory."""

    reward_id: str  # identity
    name: str  # which judgement
    scope: RewardScope  # step or final
    value: float | None = None  # null = no valid value
    span_id: str | None = None  # the call it went to, for scope step
    flags: list[str] = field(default_factory=list[str])  # reward_placed_by_order, ...


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One attempt, assembled.

    Topic trajectories, key group_id (else rollout_id). Written by the assembler, read by trainers.

    The highest revision of an attempt counts. Which attempt of a rollout counts is decided by its readers.
    """

    rollout_id: str  # the rollout
    attempt_id: str  # identity together with revision
    revision: int  # number of distinct spans and rewards in it
    input_digest: str  # sha256 over the set of events it was made from
    context: AttemptContext = AttemptContext()  # copied from the end marker
    status: EndStatus = "unknown"  # how the attempt ended
    failure_class: FailureClass | None = None  # null = no failure
    error_type: str | None = None  # exception class or error code
    final: bool = False  # no further attempt follows
    truncated: bool = False  # any row was cut by a length limit
    flags: list[str] = field(default_factory=list[str])  # closed list in semconv.FLAGS
    rows: list[Row] = field(default_factory=list["Row"])  # what can be trained on
    calls: list[Call] = field(default_factory=list["Call"])  # all model calls, trainable or not
    rewards: list[RewardRef] = field(default_factory=list["RewardRef"])  # every reward, valid or not
    final_reward: float | None = None  # null = none, not 0
    span_count: int = 0  # distinct spans
    drift: int = 0  # calls whose prompt broke off inside an open row
    end_ns: int = 0  # of the end marker, Unix time in nanoseconds

    @property
    def age(self) -> tuple[int, bool]:
        """Orders revisions, which do not count the end marker: of equal ones that with an end is the later."""
        return self.revision, "no_end" not in self.flags


@dataclass(frozen=True, slots=True)
class Assembly:
    """What the assembler has emitted of an attempt. Topic assemblies, key attempt_id, in the partition of its spans."""

    attempt_id: str  # key
    rollout_id: str  # the rollout
    revision: int  # last one emitted
    input_digest: str  # of that revision
    spans_offset: int | None = None  # first record in spans; null = none
    rewards_offset: int | None = None  # first record in rewards; null = none
    status: AssemblyStatus = "emitted"  # dropped: closed by a bound, see its trajectory's flags
    at_ns: int = 0  # Unix time in nanoseconds
    final: bool = False  # no further attempt follows
    spans_next: int | None = None  # one past the last record of it in spans; null = none
    rewards_next: int | None = None  # one past the last record of it in rewards; null = none


@dataclass(frozen=True, slots=True)
class BatchMember:
    """One trajectory of a batch."""

    attempt_id: str  # identity together with revision
    revision: int  # the one that was trained on
    input_digest: str  # of that revision


@dataclass(frozen=True, slots=True)
class Batch:
    """What a trainer is about to step on.

    Topic batches, key trainer_id. Acknowledged before the step; read after a restart.
    """

    trainer_id: str  # key
    step: int  # 1 for the first
    policy_version: int  # weights the step starts from
    members: list[BatchMember] = field(default_factory=list["BatchMember"])  # in order
    groups: list[str] = field(default_factory=list[str])  # closed groups in it, in order
    seed: int = 0  # of the step
    config_digest: str = ""  # of the trainer's configuration
    at_ns: int = 0  # Unix time in nanoseconds


@dataclass(frozen=True, slots=True)
class DecisionMember:
    """What became of one rollout of a closed group."""

    rollout_id: str  # the rollout
    attempt_id: str | None = None  # the attempt that counted; null = none came
    advantage: float | None = None  # null = not in the baseline
    trained_rows: int = 0  # rows of it in the step
    trained_tokens: int = 0  # tokens with a non-zero mask in the step
    max_staleness: int | None = None  # publishes since its oldest trained token was drawn; null = none trained
    reason: str | None = None  # why rows of it were left out


@dataclass(frozen=True, slots=True)
class Decision:
    """A closed group and why it was used or dropped.

    Topic decisions, key trainer_id/group_id. Read by the controller.
    """

    trainer_id: str  # who decided
    step: int  # the step that used it; 0 = none
    run_id: str  # the run
    group_id: str  # the group
    members: list[DecisionMember] = field(default_factory=list["DecisionMember"])  # in sample order
    min_version: int | None = None  # oldest behaviour version; null = no versions
    max_version: int | None = None  # newest behaviour version
    outcome: DecisionOutcome = "used"  # used or dropped
    reason: str | None = None  # zero_spread, single_member, deadline, ...
    at_ns: int = 0  # Unix time in nanoseconds
