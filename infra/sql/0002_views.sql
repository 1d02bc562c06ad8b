-- What people query: every event once, the one that counts. Filters on a table's leading key columns (rollout_id, ...)
-- reach the index through every view.

CREATE OR REPLACE VIEW v_spans AS
SELECT *, start_ns, end_ns FROM spans FINAL;

CREATE OR REPLACE VIEW v_calls AS
SELECT *, start_ns, end_ns FROM spans FINAL WHERE is_call;

-- value is null where it is no number, so that averages stay finite; is_finite tells such rewards apart.
CREATE OR REPLACE VIEW v_rewards AS
SELECT
  * EXCEPT (value),
  coalesce(r.value, if(mapContains(dimensions, primary), dimensions[primary], NULL)) AS given,
  isNull(given) OR isFinite(assumeNotNull(given)) AS is_finite,
  if(is_finite, given, NULL) AS value,
  created_ns
FROM rewards AS r FINAL;

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

CREATE OR REPLACE VIEW v_trajectory_calls AS
SELECT
  rollout_id, attempt_id, revision, run_id, group_id, n - 1 AS call, c.span_id AS span_id, c.choice AS choice,
  c.agent_path AS agent_path, c.policy AS policy, c.policy_versions AS policy_versions,
  c.sampling.temperature AS temperature, c.finish_reason AS finish_reason, c.step_reward AS step_reward,
  c.credit AS credit, c.excluded AS excluded
FROM v_trajectories ARRAY JOIN calls AS c, arrayEnumerate(calls) AS n;

CREATE OR REPLACE VIEW v_trajectory_rows AS
SELECT
  rollout_id, attempt_id, revision, run_id, group_id, n - 1 AS row, w.agent_path AS agent_path, w.policy AS policy,
  w.policy_versions AS policy_versions, w.segments AS segments, w.truncated AS truncated,
  length(w.mask) AS tokens, countSubstrings(w.mask, '\x01') AS trained_tokens,
  w.token_ids AS token_ids, w.mask AS mask, w.logprobs AS logprobs
FROM v_trajectories ARRAY JOIN rows AS w, arrayEnumerate(rows) AS n;

-- The newest state of a rollout, with the trajectory that counts: that of its counting attempt, else its final one,
-- else that of its last attempt.
CREATE OR REPLACE VIEW v_rollouts AS
SELECT
  s.*, t.attempt_id AS trajectory_attempt, t.revision AS revision, t.status AS outcome, t.final_reward AS final_reward,
  t.flags AS flags, t.call_count AS calls, t.span_count AS spans
FROM (SELECT * FROM rollouts FINAL ORDER BY k_offset DESC LIMIT 1 BY rollout_id) AS s
LEFT JOIN (
  SELECT t.*, t.attempt_id = r.counting AS counts
  FROM v_trajectories AS t
  LEFT JOIN (SELECT rollout_id, argMax(counting_attempt, k_offset) AS counting FROM rollouts GROUP BY rollout_id) AS r
    ON r.rollout_id = t.rollout_id
  ORDER BY counts DESC, t.final DESC, t.attempt_number DESC LIMIT 1 BY t.rollout_id
) AS t ON t.rollout_id = s.rollout_id;

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

CREATE OR REPLACE VIEW v_dead_letters AS
SELECT * FROM dead_letters FINAL;

-- What became of each partition's records; without_record = transaction markers and compacted records, or a loss.
CREATE OR REPLACE VIEW v_audit AS
SELECT
  topic, k_partition, min(first) AS first_offset, max(last) AS last_offset, sum(records) AS records,
  sum(rows) AS rows, sum(quarantined) AS quarantined, sum(tombstones) AS tombstones,
  last_offset - first_offset + 1 - records AS without_record
FROM ingest_log FINAL
GROUP BY topic, k_partition;
