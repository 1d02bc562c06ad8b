-- One table per topic. Every row says where its record lay (k_partition, k_offset), so that a record read twice is
-- one row: ReplacingMergeTree drops the repeats when it merges, the views never show them.
--
-- Tables whose key ends in (k_partition, k_offset) keep every record; which one counts is decided by a view. spans and
-- rewards keep per id the row of the highest version = (sequence, offset), so that reading them with FINAL is enough.
--
-- unknown_fields: what only newer writers have, as JSON. capped: the columns whose text was too long and is cut.
--
-- Times are exact to the nanosecond and durations signed. '' stands for null where '' is no value of its own.

CREATE TABLE IF NOT EXISTS spans (
  rollout_id String,
  attempt_id String,
  span_id String,
  trace_id String,
  parent_span_id String,
  producer_id LowCardinality(String),
  sequence Int64,
  name LowCardinality(String),
  kind LowCardinality(String),
  start DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
  end Nullable(DateTime64(9, 'UTC')) CODEC(ZSTD(1)),
  duration_ns Nullable(Int64),
  status LowCardinality(String),
  status_message String,
  is_call Bool,
  policy LowCardinality(String),
  policy_version Nullable(Int64) COMMENT 'of the first response token; see policy_versions',
  model LowCardinality(String),
  finish_reason LowCardinality(String),
  input_tokens Nullable(Int64),
  cached_input_tokens Nullable(Int64),
  output_tokens Nullable(Int64),
  reasoning_tokens Nullable(Int64),
  engine LowCardinality(String),
  choice Int32,
  choices Int32,
  tries Int32,
  truncated Bool,
  delivered Bool,
  client_retry Bool,
  constrained Bool,
  multimodal Bool,
  call_flags Array(LowCardinality(String)),
  nonfinite_logprobs Int32,
  policy_versions Array(Tuple(version Int64, start Int64, end Int64)),
  temperature Nullable(Float64),
  top_p Nullable(Float64),
  top_k Nullable(Int64),
  min_p Nullable(Float64),
  logprob_mode LowCardinality(String),
  seed Nullable(Int64),
  max_tokens Nullable(Int64),
  penalties Bool,
  tokenizer_digest LowCardinality(String),
  prompt_base_span_id String,
  prompt_base_length Int64,
  prompt_ids Nullable(String) COMMENT 'little-endian int32; reinterpret(prompt_ids, ''Array(Int32)'')',
  response_ids Nullable(String) COMMENT 'little-endian int32',
  logprobs Nullable(String) COMMENT 'little-endian float32, NaN = missing',
  payload_uri String,
  payload_sha256 String,
  payload_bytes Int64,
  scope_name LowCardinality(String),
  scope_version LowCardinality(String),
  trace_state String,
  flags Int32,
  dropped_attributes Int32,
  dropped_events Int32,
  dropped_links Int32,
  attributes Map(LowCardinality(String), String),
  events String,
  links String,
  resource String,
  request String,
  response Nullable(String),
  k_partition Int32,
  k_offset Int64 CODEC(Delta, ZSTD(1)),
  capped Map(LowCardinality(String), Tuple(bytes Int64, sha256 String)),
  unknown_fields Map(LowCardinality(String), String),
  version UInt128 MATERIALIZED bitShiftLeft(toUInt128(greatest(sequence, 0)), 64) + toUInt128(k_offset),
  start_ns Int64 ALIAS toUnixTimestamp64Nano(start),
  end_ns Nullable(Int64) ALIAS toUnixTimestamp64Nano(end),
  INDEX by_trace trace_id TYPE bloom_filter(0.01) GRANULARITY 4,
  INDEX by_start start TYPE minmax
) ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(start)
ORDER BY (rollout_id, attempt_id, span_id)
SETTINGS non_replicated_deduplication_window = 1000, default_compression_codec = 'ZSTD(1)';

CREATE TABLE IF NOT EXISTS ends (
  rollout_id String,
  attempt_id String,
  producer_id LowCardinality(String),
  status LowCardinality(String),
  end DateTime64(9, 'UTC'),
  reason String,
  error_type LowCardinality(String),
  failure_class LowCardinality(String),
  span_count Nullable(Int64),
  reward_count Nullable(Int64),
  final Bool,
  run_id LowCardinality(String),
  group_id String,
  sample Int32,
  group_size Int32,
  mode LowCardinality(String),
  pins Map(String, Nullable(Int64)),
  credit_mode LowCardinality(String),
  credit_gamma Float64,
  failure_reward Nullable(Float64),
  await_rewards Array(String),
  reward_deadline_s Float64,
  data_id String,
  data_source LowCardinality(String),
  attempt_number Int32,
  worker_id LowCardinality(String),
  k_partition Int32,
  k_offset Int64,
  capped Map(LowCardinality(String), Tuple(bytes Int64, sha256 String)),
  unknown_fields Map(LowCardinality(String), String),
  end_ns Int64 ALIAS toUnixTimestamp64Nano(end)
) ENGINE = ReplacingMergeTree ORDER BY (rollout_id, attempt_id, k_partition, k_offset)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS rewards (
  rollout_id String,
  reward_id String,
  attempt_id String COMMENT 'empty: the counting attempt',
  name LowCardinality(String),
  scope LowCardinality(String),
  value Nullable(Float64),
  dimensions Map(LowCardinality(String), Float64),
  primary LowCardinality(String),
  span_id String,
  producer_id LowCardinality(String),
  sequence Int64,
  source LowCardinality(String),
  comment String,
  created DateTime64(9, 'UTC'),
  k_partition Int32,
  k_offset Int64,
  capped Map(LowCardinality(String), Tuple(bytes Int64, sha256 String)),
  unknown_fields Map(LowCardinality(String), String),
  version UInt128 MATERIALIZED bitShiftLeft(toUInt128(greatest(sequence, 0)), 64) + toUInt128(k_offset),
  created_ns Int64 ALIAS toUnixTimestamp64Nano(created)
) ENGINE = ReplacingMergeTree(version) ORDER BY (rollout_id, reward_id)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS trajectories (
  rollout_id String,
  attempt_id String,
  revision Int64,
  input_digest String,
  status LowCardinality(String),
  failure_class LowCardinality(String),
  error_type LowCardinality(String),
  final Bool,
  truncated Bool,
  flags Array(LowCardinality(String)),
  final_reward Nullable(Float64),
  span_count Int64,
  drift Int64,
  end DateTime64(9, 'UTC'),
  run_id LowCardinality(String),
  group_id String,
  sample Int32,
  group_size Int32,
  mode LowCardinality(String),
  pins Map(String, Nullable(Int64)),
  credit_mode LowCardinality(String),
  credit_gamma Float64,
  failure_reward Nullable(Float64),
  await_rewards Array(String),
  reward_deadline_s Float64,
  data_id String,
  data_source LowCardinality(String),
  attempt_number Int32,
  worker_id LowCardinality(String),
  calls Array(Tuple(
    span_id String, choice Int32, agent_path String, policy Nullable(String),
    policy_versions Array(Tuple(version Int64, start Int64, end Int64)),
    sampling Tuple(temperature Nullable(Float64), top_p Nullable(Float64), top_k Nullable(Int64)),
    finish_reason Nullable(String), partition Int32, offset Int64, step_reward Nullable(Float64),
    credit Nullable(Float64), excluded Nullable(String))),
  rewards Array(Tuple(
    reward_id String, name String, scope String, value Nullable(Float64), span_id Nullable(String),
    flags Array(String))),
  rows Array(Tuple(
    token_ids String, mask String, logprobs String, policy Nullable(String),
    policy_versions Array(Tuple(version Int64, start Int64, end Int64)),
    segments Array(Tuple(start Int64, end Int64, call Int64)), agent_path String,
    sampling Tuple(temperature Nullable(Float64), top_p Nullable(Float64), top_k Nullable(Int64)),
    truncated Bool)) CODEC(ZSTD(1)),
  k_partition Int32,
  k_offset Int64,
  unknown_fields Map(LowCardinality(String), String),
  end_ns Int64 ALIAS toUnixTimestamp64Nano(end)
) ENGINE = ReplacingMergeTree ORDER BY (rollout_id, attempt_id, revision, k_partition, k_offset)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS tasks (
  rollout_id String,
  run_id LowCardinality(String),
  action LowCardinality(String),
  group_id String,
  sample Int32,
  group_size Int32,
  mode LowCardinality(String),
  input String,
  pins Map(String, Nullable(Int64)),
  credit_mode LowCardinality(String),
  credit_gamma Float64,
  max_attempts Int32,
  timeout_s Float64,
  unresponsive_s Float64,
  claim_s Float64,
  retry_on Array(String),
  failure_reward Nullable(Float64),
  backoff_s Float64,
  backoff_max_s Float64,
  rollout_timeout_s Nullable(Float64),
  run_concurrency Nullable(Int32),
  await_rewards Array(String),
  reward_deadline_s Float64,
  data_id String,
  data_source LowCardinality(String),
  requirements Array(String),
  priority Int32,
  requeued_from String,
  reason String,
  metadata Map(String, String),
  created DateTime64(9, 'UTC'),
  k_partition Int32,
  k_offset Int64,
  capped Map(LowCardinality(String), Tuple(bytes Int64, sha256 String)),
  unknown_fields Map(LowCardinality(String), String),
  created_ns Int64 ALIAS toUnixTimestamp64Nano(created)
) ENGINE = ReplacingMergeTree ORDER BY (rollout_id, k_partition, k_offset)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS assignments (
  worker_id String,
  attempt_id String,
  action LowCardinality(String),
  epoch Int64,
  attempt_number Int32,
  final Bool,
  deadline DateTime64(9, 'UTC'),
  rollout_id String,
  run_id LowCardinality(String),
  pins Map(String, Nullable(Int64)),
  claim_s Float64,
  at DateTime64(9, 'UTC'),
  k_partition Int32,
  k_offset Int64,
  unknown_fields Map(LowCardinality(String), String)
) ENGINE = ReplacingMergeTree ORDER BY (worker_id, attempt_id, k_partition, k_offset)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS workers (
  worker_id String,
  name LowCardinality(String),
  role LowCardinality(String),
  slots Int32,
  running Array(String),
  last_assignment_offset Int64,
  labels Array(String),
  versions Map(String, String),
  credit Nullable(Int64),
  policy LowCardinality(String),
  policy_version Nullable(Int64),
  host LowCardinality(String),
  run_id LowCardinality(String),
  beat DateTime64(9, 'UTC'),
  alive Bool,
  draining Bool,
  k_partition Int32,
  k_offset Int64,
  unknown_fields Map(LowCardinality(String), String)
) ENGINE = ReplacingMergeTree ORDER BY (worker_id, k_partition, k_offset)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS attempts (
  rollout_id String,
  attempt_id String,
  status LowCardinality(String),
  attempt_number Int32,
  outcome LowCardinality(String),
  failure_class LowCardinality(String),
  error_type LowCardinality(String),
  final Bool,
  mode LowCardinality(String),
  pins Map(String, Nullable(Int64)),
  worker_id LowCardinality(String),
  epoch Int64,
  deadline DateTime64(9, 'UTC'),
  reason String,
  at DateTime64(9, 'UTC'),
  span_count Nullable(Int64),
  late_events Int64,
  k_partition Int32,
  k_offset Int64,
  capped Map(LowCardinality(String), Tuple(bytes Int64, sha256 String)),
  unknown_fields Map(LowCardinality(String), String),
  at_ns Int64 ALIAS toUnixTimestamp64Nano(at)
) ENGINE = ReplacingMergeTree ORDER BY (rollout_id, attempt_id, k_partition, k_offset)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS rollouts (
  rollout_id String,
  status LowCardinality(String),
  final Bool,
  tries Int32,
  dispatches Int32,
  attempt_id String,
  attempt_status LowCardinality(String),
  closing LowCardinality(String),
  worker_id LowCardinality(String),
  counting_attempt String,
  mode LowCardinality(String),
  paused Bool,
  run_id LowCardinality(String),
  group_id String,
  sample Int32,
  group_size Int32,
  data_id String,
  data_source LowCardinality(String),
  input String,
  created DateTime64(9, 'UTC'),
  taken DateTime64(9, 'UTC'),
  dispatched DateTime64(9, 'UTC'),
  started DateTime64(9, 'UTC'),
  ended DateTime64(9, 'UTC'),
  deadline DateTime64(9, 'UTC'),
  not_before DateTime64(9, 'UTC'),
  reason String,
  error_type LowCardinality(String),
  pins Map(String, Nullable(Int64)),
  epoch Int64,
  k_partition Int32,
  k_offset Int64,
  capped Map(LowCardinality(String), Tuple(bytes Int64, sha256 String)),
  unknown_fields Map(LowCardinality(String), String)
) ENGINE = ReplacingMergeTree ORDER BY (rollout_id, k_partition, k_offset)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS assemblies (
  attempt_id String,
  rollout_id String,
  revision Int64,
  input_digest String,
  spans_offset Nullable(Int64),
  rewards_offset Nullable(Int64),
  spans_next Nullable(Int64),
  rewards_next Nullable(Int64),
  status LowCardinality(String),
  final Bool,
  at DateTime64(9, 'UTC'),
  k_partition Int32,
  k_offset Int64,
  unknown_fields Map(LowCardinality(String), String)
) ENGINE = ReplacingMergeTree ORDER BY (attempt_id, k_partition, k_offset)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS batches (
  trainer_id String,
  step Int64,
  policy_version Int64,
  members Array(Tuple(attempt_id String, revision Int64, input_digest String)),
  groups Array(String),
  seed Int64,
  config_digest String,
  at DateTime64(9, 'UTC'),
  k_partition Int32,
  k_offset Int64,
  unknown_fields Map(LowCardinality(String), String)
) ENGINE = ReplacingMergeTree ORDER BY (trainer_id, step, k_partition, k_offset)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS decisions (
  trainer_id String,
  step Int64,
  run_id LowCardinality(String),
  group_id String,
  members Array(Tuple(
    rollout_id String, attempt_id Nullable(String), advantage Nullable(Float64), trained_rows Int64,
    trained_tokens Int64, max_staleness Nullable(Int64), reason Nullable(String))),
  min_version Nullable(Int64),
  max_version Nullable(Int64),
  outcome LowCardinality(String),
  reason LowCardinality(String),
  at DateTime64(9, 'UTC'),
  k_partition Int32,
  k_offset Int64,
  unknown_fields Map(LowCardinality(String), String)
) ENGINE = ReplacingMergeTree ORDER BY (run_id, group_id, trainer_id, k_partition, k_offset)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS resources (
  name String,
  version Int64,
  kind LowCardinality(String),
  body Nullable(String),
  uri String,
  sha256 String,
  parent_version Nullable(Int64),
  parent_sha256 String,
  epoch Int64,
  probe Nullable(String),
  run_id LowCardinality(String),
  step Nullable(Int64),
  created DateTime64(9, 'UTC'),
  k_partition Int32,
  k_offset Int64,
  capped Map(LowCardinality(String), Tuple(bytes Int64, sha256 String)),
  unknown_fields Map(LowCardinality(String), String)
) ENGINE = ReplacingMergeTree ORDER BY (name, version, k_partition, k_offset)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS dead_letters (
  consumer LowCardinality(String),
  topic LowCardinality(String),
  partition Int32,
  offset Int64,
  reason LowCardinality(String),
  key Nullable(String),
  raw Nullable(String),
  message String,
  at DateTime64(9, 'UTC'),
  k_partition Int32,
  k_offset Int64,
  capped Map(LowCardinality(String), Tuple(bytes Int64, sha256 String)),
  unknown_fields Map(LowCardinality(String), String)
) ENGINE = ReplacingMergeTree(k_offset) ORDER BY (topic, partition, offset, consumer)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS tombstones (
  topic LowCardinality(String),
  key String,
  at DateTime64(3, 'UTC'),
  k_partition Int32,
  k_offset Int64
) ENGINE = ReplacingMergeTree ORDER BY (topic, k_partition, k_offset)
SETTINGS non_replicated_deduplication_window = 1000;

-- One row per partition and flush, written after its records and before its offsets are committed:
-- records = rows + quarantined + tombstones. first and last are the offsets that were read, those without a record among
-- them; a flush repeated after a crash adds a row.
CREATE TABLE IF NOT EXISTS ingest_log (
  topic LowCardinality(String),
  k_partition Int32,
  first Int64,
  last Int64,
  records Int64,
  rows Int64,
  quarantined Int64,
  tombstones Int64,
  tokens Array(String) COMMENT 'insert_deduplication_token of each insert',
  at DateTime64(3, 'UTC'),
  flush Int64 COMMENT 'when the sink wrote it, in nanoseconds of its clock'
) ENGINE = ReplacingMergeTree(at) ORDER BY (topic, k_partition, first, flush)
SETTINGS non_replicated_deduplication_window = 1000;
