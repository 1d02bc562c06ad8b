-- Of flushes that overlap, those of the member that was given the partition later count: one that has lost it may write
-- last, when it was stopped in the middle of a flush.
ALTER TABLE ingest_log ADD COLUMN IF NOT EXISTS since Int64 DEFAULT flush
  COMMENT 'when the sink that wrote it was given the partition, in nanoseconds of its clock';
