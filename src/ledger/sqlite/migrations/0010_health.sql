-- How an endpoint fares. Nothing but failures since `failing_since`, `failures` of them in a row; `alerted_at`: when it
-- was said that it will be disabled if that goes on. `tripped_at`: its breaker has opened and not closed since, the
-- pause ends at `tripped_until`, and its length before chance cut it was `tripped_ms`.
ALTER TABLE endpoint ADD COLUMN failures INTEGER NOT NULL DEFAULT 0 CHECK (failures >= 0);
ALTER TABLE endpoint ADD COLUMN failing_since INTEGER CHECK ((failing_since IS NULL) = (failures = 0));
ALTER TABLE endpoint ADD COLUMN alerted_at INTEGER CHECK (alerted_at IS NULL OR failures > 0);
ALTER TABLE endpoint ADD COLUMN tripped_at INTEGER;
ALTER TABLE endpoint ADD COLUMN tripped_until INTEGER CHECK ((tripped_until IS NULL) = (tripped_at IS NULL));
ALTER TABLE endpoint ADD COLUMN tripped_ms INTEGER CHECK ((tripped_ms IS NULL) = (tripped_at IS NULL));
