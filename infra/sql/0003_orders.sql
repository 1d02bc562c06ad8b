-- What tasks and heartbeats say since: back-off, limits over a whole rollout and a run, draining. Orders that stand
-- lie in rollouts under keys of their own; they are no rollouts.
ALTER TABLE tasks
  ADD COLUMN IF NOT EXISTS backoff_s Float64 AFTER failure_reward,
  ADD COLUMN IF NOT EXISTS backoff_max_s Float64 AFTER backoff_s,
  ADD COLUMN IF NOT EXISTS rollout_timeout_s Nullable(Float64) AFTER backoff_max_s,
  ADD COLUMN IF NOT EXISTS run_concurrency Nullable(Int32) AFTER rollout_timeout_s;

ALTER TABLE workers ADD COLUMN IF NOT EXISTS draining Bool AFTER alive;

ALTER TABLE rollouts ADD COLUMN IF NOT EXISTS taken DateTime64(9, 'UTC') AFTER created;

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

-- Orders that stand: `order/run/<id>` (paused, being cancelled), `order/worker/<id or name>` (drained).
CREATE OR REPLACE VIEW v_orders AS
SELECT rollout_id AS target, run_id, paused, closing, reason, k_offset
FROM (SELECT * FROM rollouts FINAL WHERE status = 'order' ORDER BY k_offset DESC LIMIT 1 BY rollout_id)
WHERE NOT final;

CREATE OR REPLACE VIEW v_tasks AS
SELECT *, created_ns FROM tasks FINAL;

CREATE OR REPLACE VIEW v_workers AS
SELECT * FROM workers FINAL ORDER BY k_offset DESC LIMIT 1 BY worker_id;
