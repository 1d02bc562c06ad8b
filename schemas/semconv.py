"""Names used in attributes, flags, headers and metrics. One closed list each; nothing spells them at a call site.

OpenTelemetry's GenAI conventions come first, OpenInference is understood, `spanloop.*` is ours.
"""

from __future__ import annotations

# --- span attributes: ours
ROLLOUT_ID = "spanloop.rollout_id"
ATTEMPT_ID = "spanloop.attempt_id"
SEQUENCE = "spanloop.sequence"
AGENT = "spanloop.agent"
POLICY = "spanloop.policy"
POLICY_VERSION = "spanloop.policy_version"
KIND = "spanloop.kind"  # message, object, annotation, exception, operation
BODY = "spanloop.body"
INPUT = "spanloop.input"  # what an operation was called with
OUTPUT = "spanloop.output"  # what it returned
UNPARSED = "spanloop.unparsed"  # all attributes of a span, as text, where they are no JSON object
LOSSY = ".lossy"  # suffix: the value was not valid UTF-8
TRUNCATED = ".truncated"  # suffix: the value was cut
LENGTH = ".length"  # suffix: its length before it was cut, in bytes
SHA256 = ".sha256"  # suffix: digest of the whole value
TYPE = ".type"  # suffix: "json" where a nested value became canonical JSON

# --- span attributes: OpenTelemetry GenAI
GEN_AI_OPERATION = "gen_ai.operation.name"
GEN_AI_AGENT = "gen_ai.agent.name"
GEN_AI_REQUEST_MODEL = "gen_ai.request.model"
GEN_AI_RESPONSE_MODEL = "gen_ai.response.model"
GEN_AI_RESPONSE_ID = "gen_ai.response.id"
GEN_AI_FINISH_REASONS = "gen_ai.response.finish_reasons"
GEN_AI_INPUT_TOKENS = "gen_ai.usage.input_tokens"
GEN_AI_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
GEN_AI_PROMPT = "gen_ai.prompt"  # the whole prompt as one attribute, as older instrumentation has it
GEN_AI_COMPLETION = "gen_ai.completion"
EXCEPTION_TYPE = "exception.type"
EXCEPTION_MESSAGE = "exception.message"
EXCEPTION_STACKTRACE = "exception.stacktrace"
HTTP_STATUS = "http.response.status_code"

# --- span attributes: OpenInference
OI_KIND = "openinference.span.kind"
OI_AGENT = "agent.name"
OI_GRAPH_NODE = "graph.node.id"

AGENT_NAMES = (AGENT, GEN_AI_AGENT, OI_AGENT, OI_GRAPH_NODE)

# --- span attributes: token ids, under the names that engines and instrumentation give them
PROMPT_IDS = ("prompt_ids", "prompt_token_ids")
RESPONSE_IDS = ("response_ids", "response_token_ids")
RESPONSE_LOGPROBS = ("logprobs", "response_logprobs")
CALL_NAMES = (*PROMPT_IDS, *RESPONSE_IDS, GEN_AI_PROMPT)  # any of these makes a span a model call

# --- HTTP headers of the gateway
SPAN_ID_HEADER = "x-spanloop-span-id"
POLICY_VERSION_HEADER = "x-spanloop-policy-version"
TRACEPARENT_HEADER = "traceparent"

# --- flags on trajectories, calls and rewards
FLAGS: dict[str, str] = {
    "orphaned": "a parent never came",
    "missing_spans": "fewer spans came than the end marker counted",
    "missing_rewards": "fewer rewards came than the end marker counted",
    "no_end": "closed without an end marker",
    "no_llm_calls": "not one model call",
    "unrewarded": "no valid reward reached it",
    "no_token_ids": "a call whose engine reported no ids",
    "empty": "a call with an empty response",
    "token_count_mismatch": "a call with other response ids than its engine counted tokens",
    "prompt_count_mismatch": "a call with other prompt ids than its engine counted tokens, as with images",
    "undelivered": "a call whose answer the agent never got in whole",
    "client_retry": "a call that the agent sent again",
    "same_call": "a call told twice, around or inside the span of the one that is kept",
    "unused_choice": "a call of n > 1 choices",
    "sampling_untrainable": "a call whose sampling cannot be trained on, or under a grammar or a forced tool choice",
    "multimodal": "a call with images or audio in its prompt, of which ids do not tell",
    "mixed_version": "a call under more than one policy version, their borders unknown",
    "nonfinite_logprobs": "a call with NaN, infinite or missing log-probs",
    "foreign_model": "a call to a model that is no policy",
    "conflict": "one span id with different contents",
    "skew": "clocks contradict the tree",
    "reward_placed_by_order": "a step reward without a target span",
    "nonfinite_reward": "a reward that was NaN, infinite or past ±1e30",
    "nonfinite_dimension": "a reward with a dimension that was NaN or infinite",
    "bad_packing": "a call whose packed ids, log-probs or version runs do not fit each other",
    "late_unassembled": "an event that came too late to be put in",
    "bounded": "closed by a bound on spans, bytes or open attempts",
    "failed": "the attempt is over and did not succeed",
    "context_overflow": "a call was refused because its prompt was too long",
}

# --- metrics, with their unit
METRICS: dict[str, str] = {
    "spanloop.records": "{record}",
    "spanloop.dead_letters": "{record}",
    "spanloop.dropped": "{record}",
    "spanloop.read_lag": "{record}",
    "spanloop.commit_lag": "{record}",
    "spanloop.open_attempts": "{attempt}",
    "spanloop.oldest_attempt": "s",
    "spanloop.lateness": "s",
    "spanloop.bounded": "{attempt}",
    "spanloop.drift": "{call}",
    "spanloop.orphans": "{attempt}",
    "spanloop.late_events": "{event}",
    "spanloop.sink.inserts": "{insert}",
    "spanloop.sink.bytes": "By",
    "spanloop.sink.insert": "s",
    "spanloop.gateway.calls": "{call}",
    "spanloop.gateway.duration": "s",
    "spanloop.trainer.reward": "1",
    "spanloop.trainer.staleness": "{version}",
    "spanloop.trainer.rows": "{row}",
    "spanloop.trainer.step": "s",
}
