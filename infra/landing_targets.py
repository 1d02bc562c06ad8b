"""What lands where: for each topic, the tables that its records fill, and how each of their columns is had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..schemas import semconv

# Above what the SDK cuts a value at (768 KiB), so that nothing is cut twice; merges and people's queries bear it. A
# record that is not longer than that holds no such value, and is spared the looking.
MAX_VALUE_BYTES = 1 << 20
# Columns that no field fills.
MADE = {
    "unknown_fields": "Map(LowCardinality(String), String)",
    "capped": "Map(LowCardinality(String), Tuple(bytes Int64, sha256 String))",
}
NO_STRINGS: dict[str, str] = {}


# Null values have no key in the map, nested ones are JSON text.
PARSED = "JSONExtractKeysAndValues({spans.attributes}, 'String')"
# What is no JSON object, such as one with a bare NaN in it, is kept as the text that it is.
PAIRS = f"""if(empty({PARSED}) AND length({{spans.attributes}}) > 2 AND JSONType({{spans.attributes}}) != 'Object',
      [('{semconv.UNPARSED}', {{spans.attributes}})], {PARSED})"""
# By the same marks as the SDK's.
CAPPED_PAIRS = f"""arrayFlatten(arrayMap(x ->
      if(length(x.2) <= {MAX_VALUE_BYTES}, [x], [
        (x.1, toValidUTF8(substring(x.2, 1, {MAX_VALUE_BYTES}))),
        (concat(x.1, '{semconv.TRUNCATED}'), 'true'),
        (concat(x.1, '{semconv.LENGTH}'), toString(length(x.2))),
        (concat(x.1, '{semconv.SHA256}'), lower(hex(SHA256(x.2))))]), {PAIRS}))"""
ATTRIBUTES = "CAST({}, 'Map(LowCardinality(String), String)')"


@dataclass(frozen=True, slots=True)
class Target:
    """How one table is filled from one topic.

    A column takes the field of its name, or of its name with _ns, from the first of `paths` that has it; `columns`
    says otherwise, as SQL with {paths}, and `long` in records that may hold values to be capped; texts: columns that
    then are. explode: the array whose elements are the rows. where: which records. apart: another target's fields.
    """

    table: str
    paths: Sequence[str] = ("",)
    columns: Mapping[str, str] = field(default_factory=lambda: NO_STRINGS)
    long: Mapping[str, str] = field(default_factory=lambda: NO_STRINGS)
    texts: Sequence[str] = ()
    explode: str = ""
    where: str = ""
    apart: str = ""


SPANS = Target(
    "spans",
    ("", "spans", "spans.call", "spans.call.sampling"),
    {
        "duration_ns": "{spans.end_ns} - {spans.start_ns}",
        "is_call": "isNotNull({spans.call.request})",
        "policy_version": "if(empty({spans.call.policy_versions}), NULL, {spans.call.policy_versions}[1].version)",
        "call_flags": "{spans.call.flags}",
        "input_tokens": "{spans.call.usage.input}",
        "cached_input_tokens": "{spans.call.usage.cached_input}",
        "output_tokens": "{spans.call.usage.output}",
        "reasoning_tokens": "{spans.call.usage.reasoning}",
        "prompt_base_span_id": "{spans.call.prompt_base.span_id}",
        "prompt_base_length": "{spans.call.prompt_base.length}",
        "payload_uri": "{spans.call.payload.uri}",
        "payload_sha256": "{spans.call.payload.sha256}",
        "payload_bytes": "{spans.call.payload.bytes}",
        "attributes": ATTRIBUTES.format(PAIRS),
    },
    long={"attributes": ATTRIBUTES.format(CAPPED_PAIRS)},
    texts=("status_message", "events", "links", "resource", "request", "response"),
    explode="spans",
    apart="end",
)
ENDS = Target(
    "ends",
    ("", "end", "end.context"),
    {"credit_mode": "{end.context.credit.mode}", "credit_gamma": "{end.context.credit.gamma}"},
    texts=("reason",),
    where="isNotNull({end})",
    apart="spans",
)
TARGETS: dict[str, tuple[Target, ...]] = {
    "tasks": (
        Target(
            "tasks",
            ("", "limits"),
            {"credit_mode": "{credit.mode}", "credit_gamma": "{credit.gamma}"},
            texts=("input", "reason"),
        ),
    ),
    "assignments": (Target("assignments", ("", "task")),),
    "workers": (Target("workers"),),
    "spans": (SPANS, ENDS),
    "rewards": (Target("rewards", texts=("comment",)),),
    "attempts": (Target("attempts", texts=("reason",)),),
    "rollouts": (Target("rollouts", ("", "task"), texts=("input", "reason")),),
    "assemblies": (Target("assemblies"),),
    "trajectories": (
        Target(
            "trajectories",
            ("", "context"),
            {"credit_mode": "{context.credit.mode}", "credit_gamma": "{context.credit.gamma}"},
        ),
    ),
    "batches": (Target("batches"),),
    "decisions": (Target("decisions"),),
    "resources": (Target("resources", texts=("body",)),),
    "dead-letters": (Target("dead_letters", texts=("raw", "message")),),
}
