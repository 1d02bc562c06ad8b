-- Fields of newer writers, values that were too long, and every flush of the sink, repeats among them.
ALTER TABLE spans
  ADD COLUMN IF NOT EXISTS capped Map(LowCardinality(String), Tuple(bytes Int64, sha256 String)),
  ADD COLUMN IF NOT EXISTS unknown_fields Map(LowCardinality(String), String);

ALTER TABLE ends
  ADD COLUMN IF NOT EXISTS capped Map(LowCardinality(String), Tuple(bytes Int64, sha256 String)),
  ADD COLUMN IF NOT EXISTS unknown_fields Map(LowCardinality(String), String);

ALTER TABLE rewards
  ADD COLUMN IF NOT EXISTS capped Map(LowCardinality(String), Tuple(bytes Int64, sha256 String)),
  ADD COLUMN IF NOT EXISTS unknown_fields Map(LowCardinality(String), String);

ALTER TABLE tasks
  ADD COLUMN IF NOT EXISTS capped Map(LowCardinality(String), Tuple(bytes Int64, sha256 String)),
  ADD COLUMN IF NOT EXISTS unknown_fields Map(LowCardinality(String), String);

ALTER TABLE attempts
  ADD COLUMN IF NOT EXISTS capped Map(LowCardinality(String), Tuple(bytes Int64, sha256 String)),
  ADD COLUMN IF NOT EXISTS unknown_fields Map(LowCardinality(String), String);

ALTER TABLE rollouts
  ADD COLUMN IF NOT EXISTS capped Map(LowCardinality(String), Tuple(bytes Int64, sha256 String)),
  ADD COLUMN IF NOT EXISTS unknown_fields Map(LowCardinality(String), String);

ALTER TABLE resources
  ADD COLUMN IF NOT EXISTS capped Map(LowCardinality(String), Tuple(bytes Int64, sha256 String)),
  ADD COLUMN IF NOT EXISTS unknown_fields Map(LowCardinality(String), String);

ALTER TABLE dead_letters
  ADD COLUMN IF NOT EXISTS capped Map(LowCardinality(String), Tuple(bytes Int64, sha256 String)),
  ADD COLUMN IF NOT EXISTS unknown_fields Map(LowCardinality(String), String);

ALTER TABLE trajectories ADD COLUMN IF NOT EXISTS unknown_fields Map(LowCardinality(String), String);

ALTER TABLE assignments ADD COLUMN IF NOT EXISTS unknown_fields Map(LowCardinality(String), String);

ALTER TABLE workers ADD COLUMN IF NOT EXISTS unknown_fields Map(LowCardinality(String), String);

ALTER TABLE assemblies ADD COLUMN IF NOT EXISTS unknown_fields Map(LowCardinality(String), String);

ALTER TABLE batches ADD COLUMN IF NOT EXISTS unknown_fields Map(LowCardinality(String), String);

ALTER TABLE decisions ADD COLUMN IF NOT EXISTS unknown_fields Map(LowCardinality(String), String);

-- first and last are now the offsets that were read, those without a record among them, and no line replaces another.
ALTER TABLE ingest_log
  ADD COLUMN IF NOT EXISTS flush Int64 COMMENT 'when the sink wrote it, in nanoseconds of its clock',
  MODIFY ORDER BY (topic, k_partition, first, flush);
