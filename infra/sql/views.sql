-- What people query: every event once, the one that counts. Filters on a table's leading key columns (rollout_id, ...)
-- reach the index through every view. Comments of columns come from the schemas' docs; here are those of made columns.
--
-- Not numbered: this file says what views are now, and is applied again whenever it or the tables have changed.

CREATE OR REPLACE VIEW v_spans AS
SELECT *, start_ns, end_ns FROM spans FINAL;

ALTER TABLE v_spans
  COMMENT COLUMN duration_ns 'end - start by the producer''s clock, negative where that went back; null = still open',
  COMMENT COLUMN is_call 'the span is a call of a model',
  COMMENT COLUMN attributes 'nested values as JSON; of a value over 1 MiB the start, with .truncated, .length, .sha256';

-- Spans that are calls of a model.
CREATE OR REPLACE VIEW v_calls AS
SELECT *, start_ns, end_ns FROM spans FINAL WHERE is_call;

ALTER TABLE v_calls
  COMMENT COLUMN duration_ns 'end - start by the producer''s clock, negative where that went back; null = still open',
  COMMENT COLUMN is_call 'true',
  COMMENT COLUMN attributes 'nested values as JSON; of a value over 1 MiB the start, with .truncated, .length, .sha256';

-- value is null where it is no number, so that averages stay finite; is_finite tells such rewards apart.
CREATE OR REPLACE VIEW v_rewards AS
SELECT
  * EXCEPT (value),
  coalesce(r.value, if(mapContains(dimensions, primary), dimensions[primary], NULL)) AS given,
  isNull(given) OR isFinite(assumeNotNull(given)) AS is_finite,
  if(is_finite, given, NULL) AS value,
  arrayFilter(name -> NOT isFinite(dimensions[name]), mapKeys(dimensions)) AS nonfinite_dimensions,
  created_ns
FROM rewards AS r FINAL;

ALTER TABLE v_rewards
  COMMENT COLUMN given 'value, else the primary dimension; NaN or infinite as it was given',
  COMMENT COLUMN is_finite 'false = given is NaN or infinite, and value null',
  COMMENT COLUMN value 'given where it is a number; averages over it stay finite',
  COMMENT COLUMN nonfinite_dimensions 'names of dimensions that are NaN or infinite';

-- The first end marker of an attempt in its partition decides it.
CREATE OR REPLACE VIEW v_ends AS
SELECT *, end_ns FROM ends FINAL ORDER BY k_offset LIMIT 1 BY rollout_id, attempt_id;

CREATE OR REPLACE VIEW v_attempts AS
SELECT *, at_ns FROM attempts FINAL ORDER BY k_offset DESC LIMIT 1 BY rollout_id, attempt_id;

-- One row per attempt: its highest revision. An end marker is not counted in it, and one made without may lie in another
-- partition, where offsets tell nothing: of equal revisions that with an end is the later.
CREATE OR REPLACE VIEW v_trajectories AS
SELECT *, length(rows) AS row_count, length(calls) AS call_count, end_ns
FROM trajectories FINAL ORDER BY revision DESC, has(flags, 'no_end'), k_offset DESC
LIMIT 1 BY rollout_id, attempt_id;

ALTER TABLE v_trajectories
  COMMENT COLUMN row_count 'how many rows',
  COMMENT COLUMN call_count 'how many calls';

CREATE OR REPLACE VIEW v_trajectory_calls AS
SELECT
  rollout_id, attempt_id, revision, run_id, group_id, n - 1 AS call, c.span_id AS span_id, c.choice AS choice,
  c.agent_path AS agent_path, c.policy AS policy, c.policy_versions AS policy_versions,
  c.sampling.temperature AS temperature, c.finish_reason AS finish_reason, c.step_reward AS step_reward,
  c.credit AS credit, c.excluded AS excluded
FROM v_trajectories ARRAY JOIN calls AS c, arrayEnumerate(calls) AS n;

ALTER TABLE v_trajectory_calls
  COMMENT COLUMN call 'index in calls, from 0',
  COMMENT COLUMN temperature 'of its sampling';

CREATE OR REPLACE VIEW v_trajectory_rows AS
SELECT
  rollout_id, attempt_id, revision, run_id, group_id, n - 1 AS row, w.agent_path AS agent_path, w.policy AS policy,
  w.policy_versions AS policy_versions, w.segments AS segments, w.truncated AS truncated,
  length(w.mask) AS tokens, countSubstrings(w.mask, '\x01') AS trained_tokens,
  w.token_ids AS token_ids, w.mask AS mask, w.logprobs AS logprobs
FROM v_trajectories ARRAY JOIN rows AS w, arrayEnumerate(rows) AS n;

ALTER TABLE v_trajectory_rows
  COMMENT COLUMN row 'index in rows, from 0',
  COMMENT COLUMN tokens 'how many tokens',
  COMMENT COLUMN trained_tokens 'how many of them are trained on';

-- The newest state of a rollout, with the trajectory that counts: that of its counting attempt, else its final one,
-- else that of its last attempt.
CREATE OR REPLACE VIEW v_rollouts AS
SELECT
  s.*, t.attempt_id AS trajectory_attempt, t.revision AS revision, t.status AS outcome, t.final_reward AS final_reward,
  t.flags AS flags, t.call_count AS calls, t.span_count AS spans
FROM (
  SELECT * FROM rollouts FINAL WHERE status != 'order' ORDER BY k_offset DESC LIMIT 1 BY rollout_id
) AS s
LEFT JOIN (
  SELECT t.*, t.attempt_id = r.counting AS counts
  FROM v_trajectories AS t
  LEFT JOIN (SELECT rollout_id, argMax(counting_attempt, k_offset) AS counting FROM rollouts GROUP BY rollout_id) AS r
    ON r.rollout_id = t.rollout_id
  ORDER BY counts DESC, t.final DESC, t.attempt_number DESC LIMIT 1 BY t.rollout_id
) AS t ON t.rollout_id = s.rollout_id;

ALTER TABLE v_rollouts
  COMMENT COLUMN trajectory_attempt 'attempt of the trajectory that counts; empty = there is none yet',
  COMMENT COLUMN revision 'of that trajectory',
  COMMENT COLUMN outcome 'status of that trajectory',
  COMMENT COLUMN final_reward 'of that trajectory; null = none',
  COMMENT COLUMN flags 'of that trajectory',
  COMMENT COLUMN calls 'model calls in that trajectory',
  COMMENT COLUMN spans 'spans in that trajectory';

-- Orders that stand: `order/run/<id>` (paused, being cancelled), `order/worker/<id or name>` (drained).
CREATE OR REPLACE VIEW v_orders AS
SELECT rollout_id AS target, run_id, paused, closing, reason, k_offset
FROM (SELECT * FROM rollouts FINAL WHERE status = 'order' ORDER BY k_offset DESC LIMIT 1 BY rollout_id)
WHERE NOT final;

ALTER TABLE v_orders COMMENT COLUMN target 'order/run/<id> or order/worker/<id or name>';

CREATE OR REPLACE VIEW v_tasks AS
SELECT *, created_ns FROM tasks FINAL;

CREATE OR REPLACE VIEW v_workers AS
SELECT * FROM workers FINAL ORDER BY k_offset DESC LIMIT 1 BY worker_id;

-- The first record of a name and version wins.
CREATE OR REPLACE VIEW v_resources AS
SELECT * FROM resources FINAL ORDER BY k_offset LIMIT 1 BY name, version;

CREATE OR REPLACE VIEW v_batches AS
SELECT * FROM batches FINAL ORDER BY k_offset DESC LIMIT 1 BY trainer_id, step;

CREATE OR REPLACE VIEW v_decisions AS
SELECT * FROM decisions FINAL ORDER BY k_offset LIMIT 1 BY run_id, group_id, trainer_id;

-- What readers set aside, and when `spanloop dlq replay` last put it back: its notes are no dead letters themselves.
CREATE OR REPLACE VIEW v_dead_letters AS
SELECT letter.*, note.at AS replayed_at
FROM (SELECT * FROM dead_letters FINAL WHERE reason != 'replayed') AS letter
LEFT JOIN (
  SELECT offset, toNullable(max(at)) AS at FROM dead_letters FINAL
  WHERE reason = 'replayed' AND topic = 'dead-letters' GROUP BY offset
) AS note ON note.offset = letter.k_offset;

-- Every flush of the sink. Where offsets were read again (a crash before the commit, offsets set back, a sink that was
-- stopped while another took over) the reading that was begun later counts from where it began: each goes on without a
-- gap, and when a flush was written says nothing, as a sink that has lost a partition may write last. Flushes that do
-- not overlap, and those of one reading, need no clock to be put in order.
CREATE OR REPLACE VIEW v_ingest_log AS
SELECT
  topic, k_partition, first, last, records, rows, quarantined, tombstones, tokens, since, flush, at,
  if(reached > 0 AND first > reached, first - reached, 0) AS gap,
  min(first) OVER (
    PARTITION BY topic, k_partition, island ORDER BY since, first, flush
    ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
  ) AS later_first,
  count() OVER (
    PARTITION BY topic, k_partition, island ORDER BY since, first, flush
    ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
  ) = 0 OR later_first > first AS counts
FROM (
  SELECT
    *, sum(first >= reached) OVER (PARTITION BY topic, k_partition ORDER BY first, last, flush) AS island
  FROM (
    SELECT
      *, max(last + 1) OVER (
        PARTITION BY topic, k_partition ORDER BY first, last, flush ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      ) AS reached
    FROM ingest_log FINAL
  )
);

ALTER TABLE v_ingest_log
  COMMENT COLUMN topic 'without the prefix',
  COMMENT COLUMN first 'first offset that was read, be there a record or not',
  COMMENT COLUMN last 'last offset that was read, be there a record or not',
  COMMENT COLUMN records 'records among them = rows + quarantined + tombstones',
  COMMENT COLUMN rows 'records that were stored; one of spans is many spans',
  COMMENT COLUMN quarantined 'records in dead-letters instead',
  COMMENT COLUMN tombstones 'records without a value',
  COMMENT COLUMN tokens 'insert_deduplication_token of each insert',
  COMMENT COLUMN since 'when that sink was given the partition, in nanoseconds of its clock',
  COMMENT COLUMN flush 'when the sink wrote it, in nanoseconds of its clock',
  COMMENT COLUMN at 'flush as a time',
  COMMENT COLUMN gap 'offsets before it that no flush has read',
  COMMENT COLUMN later_first 'where the earliest later flush of the same offsets began',
  COMMENT COLUMN counts 'false = all of it was read again later';

-- What became of each partition's records. All is well where gaps = 0 and records = rows + quarantined + tombstones;
-- how far the log itself goes is what the group's lag says.
CREATE OR REPLACE VIEW v_audit AS
SELECT
  topic, k_partition, min(first) AS first_offset, max(last) AS last_offset, sumIf(records, counts) AS records,
  sumIf(rows, counts) AS rows, sumIf(quarantined, counts) AS quarantined, sumIf(tombstones, counts) AS tombstones,
  sum(gap) AS gaps, sum(last - first + 1) - (last_offset - first_offset + 1 - gaps) AS repeats,
  last_offset - first_offset + 1 - gaps - records AS without_record, max(at) AS last_at
FROM v_ingest_log
GROUP BY topic, k_partition;

ALTER TABLE v_audit
  COMMENT COLUMN topic 'without the prefix',
  COMMENT COLUMN first_offset 'where the sink''s group began to read',
  COMMENT COLUMN last_offset 'last offset that it has read',
  COMMENT COLUMN records 'records read, each once = rows + quarantined + tombstones',
  COMMENT COLUMN rows 'records stored; one of spans is many spans',
  COMMENT COLUMN quarantined 'records in dead-letters instead',
  COMMENT COLUMN tombstones 'records without a value, in table tombstones',
  COMMENT COLUMN gaps 'offsets that no flush has read: lost to ClickHouse; the log may still hold them',
  COMMENT COLUMN repeats 'offsets that were read again, after a crash or by order; views show their rows once',
  COMMENT COLUMN without_record 'offsets read that held no record: transaction markers, what was compacted',
  COMMENT COLUMN last_at 'time of the last flush';
