"""What an attempt emits: batches of spans, the model calls inside them, the end marker, rewards.

    SpanBatch ─┬─ Span ── ModelCall (only on spans that are one call to a model)
               └─ AttemptEnd (only in an attempt's last batch)

Field order here is field order in `avro/*.avsc`; a test holds the two together. `null` (None) always means
"not known" and is never the same as zero or empty.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

CreditMode = Literal["unknown", "identical", "last", "discounted", "step", "sum"]
EndStatus = Literal["unknown", "succeeded", "failed", "timeout", "unresponsive", "unclaimed", "returned", "cancelled"]
FailureClass = Literal["unknown", "agent", "infra"]
LogprobMode = Literal["unknown", "raw", "processed"]
Mode = Literal["unknown", "train", "val", "test"]
RewardScope = Literal["unknown", "step", "final"]
RewardSource = Literal["unknown", "agent", "runner", "judge", "human"]
SpanKind = Literal["unknown", "internal", "server", "client", "producer", "consumer"]
SpanStatus = Literal["unknown", "unset", "ok", "error"]


@dataclass(frozen=True, slots=True)
class Credit:
    """How a rollout's reward is spread over its calls; see `schemas.credit`."""

    mode: CreditMode = "identical"  # who gets the final reward
    gamma: float = 1.0  # discount per later call, only for mode discounted


@dataclass(frozen=True, slots=True)
class VersionRun:
    """Positions [start, end) of a token sequence that one policy version produced."""

    version: int  # policy version
    start: int  # first position
    end: int  # one past the last position


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling a response was drawn with; null where the request left it to the engine."""

    temperature: float | None = None  # logits are divided by it; 0 = greedy
    top_p: float | None = None  # nucleus mass; 1 = off
    top_k: int | None = None  # -1 or 0 = off
    min_p: float | None = None  # 0 = off
    logprob_mode: LogprobMode = "unknown"  # raw: before temperature; processed: of the distribution drawn from
    seed: int | None = None  # per-request seed
    max_tokens: int | None = None  # response length limit asked for
    penalties: bool = False  # true: repetition, presence or frequency penalties were active


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the engine counted them; null = not reported, never 0."""

    input: int | None = None  # prompt tokens, cached ones included
    cached_input: int | None = None  # prompt tokens served from a cache
    output: int | None = None  # response tokens, reasoning included
    reasoning: int | None = None  # response tokens spent on reasoning


@dataclass(frozen=True, slots=True)
class PromptBase:
    """A prompt that starts with an earlier call's prompt and response: only the tail is stored."""

    span_id: str  # the earlier call
    length: int  # how many leading ids are taken from it


@dataclass(frozen=True, slots=True)
class Payload:
    """Where a value too large for a record lies."""

    uri: str  # where it can be read
    sha256: str  # hex digest of its bytes
    bytes: int  # its length


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call to a model as it went over the wire, with what training needs. Written by the gateway."""

    request: str  # request JSON as the agent sent it
    response: str | None = None  # response JSON without ids and log-probs; null = none came
    prompt_ids: bytes | None = None  # little-endian int32; null = not reported, empty = none
    response_ids: bytes | None = None  # little-endian int32; null = not reported, empty = none
    logprobs: bytes | None = None  # little-endian float32, one per response id; NaN = missing there
    policy: str | None = None  # resource name of the policy; null = a foreign model
    policy_versions: list[VersionRun] = field(default_factory=list["VersionRun"])  # run-length over the response
    model: str = ""  # model name the agent asked for
    engine: str | None = None  # worker_id of the engine that answered
    tokenizer_digest: str | None = None  # identifies the tokenizer the ids belong to
    sampling: Sampling = Sampling()  # how the response was drawn
    finish_reason: str | None = None  # as the engine said it
    truncated: bool = False  # true: cut by the length limit
    choice: int = 0  # index among n choices of one request
    choices: int = 1  # n of the request
    usage: Usage = Usage()  # tokens as counted by the engine
    tries: int = 1  # upstream tries this one answer took
    delivered: bool = True  # false: the agent never got the whole answer
    client_retry: bool = False  # true: the agent sent an identical request again
    constrained: bool = False  # true: grammar or forced tool choice
    multimodal: bool = False  # true: images or audio in the prompt
    flags: list[str] = field(default_factory=list[str])  # closed list in semconv.FLAGS
    nonfinite_logprobs: int = 0  # how many log-probs were NaN, infinite or null
    prompt_base: PromptBase | None = None  # set: prompt_ids holds only the tail
    payload: Payload | None = None  # set: request and response were off-loaded


@dataclass(frozen=True, slots=True)
class Span:
    """One step of an attempt, an OpenTelemetry span. Written by SDK, gateway, normaliser; read by the assembler."""

    trace_id: str  # 32 hex digits
    span_id: str  # 16 hex digits
    name: str  # operation name
    start_ns: int  # Unix time in nanoseconds by the producer's clock
    parent_span_id: str | None = None  # null = a root
    trace_state: str = ""  # W3C tracestate
    sequence: int = 0  # position within its producer; the higher one wins for one span_id
    kind: SpanKind = "internal"  # OpenTelemetry span kind
    scope_name: str = ""  # instrumentation scope
    scope_version: str = ""  # instrumentation scope version
    end_ns: int | None = None  # null = still open
    status: SpanStatus = "unset"  # OpenTelemetry status
    status_message: str = ""  # why, for status error
    attributes: str = "{}"  # JSON object
    events: str = "[]"  # JSON array
    links: str = "[]"  # JSON array
    resource: str = "{}"  # JSON object
    dropped_attributes: int = 0  # attributes the producer left out
    dropped_events: int = 0  # events the producer left out
    dropped_links: int = 0  # links the producer left out
    flags: int = 0  # W3C trace flags
    call: ModelCall | None = None  # set on a span that is one model call


@dataclass(frozen=True, slots=True)
class AttemptContext:
    """What a reader of trajectories must know of the task, copied from the assignment so that no join is needed."""

    run_id: str = ""  # the run it belongs to
    group_id: str | None = None  # rollouts compared with each other; null = none
    sample: int = 0  # index in the group
    group_size: int = 1  # members the group was enqueued with
    mode: Mode = "train"  # only train is ever trained on
    pins: dict[str, int | None] = field(default_factory=dict[str, "int | None"])  # resources resolved at dispatch
    credit: Credit = Credit()  # credit assignment asked for
    failure_reward: float | None = None  # reward of a failure of class agent; null = none
    await_rewards: list[str] = field(default_factory=list[str])  # reward names the trainer waits for
    reward_deadline_s: float = 0.0  # seconds after the end marker it waits at most
    data_id: str | None = None  # row of the data set
    data_source: str | None = None  # data set
    attempt_number: int = 1  # 1 for the first try
    worker_id: str = ""  # who ran it


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end marker. The first one in an attempt's partition decides the attempt. Written by worker or controller."""

    status: EndStatus  # how it ended
    end_ns: int  # Unix time in nanoseconds
    reason: str | None = None  # for people
    error_type: str | None = None  # exception class or error code
    failure_class: FailureClass | None = None  # agent: its own doing; infra: not; null = no failure
    span_count: int | None = None  # spans this producer sent for the attempt; null = not known
    reward_count: int | None = None  # rewards this producer sent for the attempt; null = not known
    context: AttemptContext = AttemptContext()  # copied from the assignment
    final: bool = False  # by the task's limits no further attempt follows


@dataclass(frozen=True, slots=True)
class SpanBatch:
    """Spans of one attempt from one producer. Topic spans, key rollout_id. Read by the assembler."""

    rollout_id: str  # key
    attempt_id: str  # attempt the spans belong to
    producer_id: str  # who numbered the sequences
    first_sequence: int = 0  # sequence of the first span
    begin: bool = False  # true in an attempt's first batch
    spans: list[Span] = field(default_factory=list["Span"])  # any number, in sequence order
    end: AttemptEnd | None = None  # set: the attempt is over


@dataclass(frozen=True, slots=True)
class Reward:
    """One judgement of a rollout.

    Topic rewards, key rollout_id. Written by SDK, judges, people; read by the assembler.
    """

    reward_id: str  # identity: the same id twice counts once
    rollout_id: str  # key
    attempt_id: str | None = None  # null = the counting attempt
    name: str = "reward"  # which judgement
    scope: RewardScope = "final"  # step: of one call; final: of the attempt
    value: float | None = None  # null = the primary dimension is the value
    dimensions: dict[str, float] = field(default_factory=dict[str, float])  # further figures
    primary: str | None = None  # dimension that is the value where value is null
    span_id: str | None = None  # the span judged, for scope step
    producer_id: str = ""  # who numbered the sequence
    sequence: int = 0  # position within its producer
    source: RewardSource = "agent"  # who judged
    comment: str | None = None  # for people
    created_ns: int = 0  # Unix time in nanoseconds
