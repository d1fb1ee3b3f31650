-- Bulk redrives of dead letters. state: 0 queued, 1 running, 2 paused, 3 done, 4 stopped, 5 stopped by its canary.
-- `filter` is JSON. What was dead by `died_by` is meant, from the highest id down to below `before`. `wave` is 0 without a
-- canary. `reasons` is JSON: why those that were redriven had died.
CREATE TABLE operation (
    number     INTEGER PRIMARY KEY,
    tenant     INTEGER NOT NULL REFERENCES tenant,
    id         BLOB NOT NULL CHECK (length(id) = 16),
    state      INTEGER NOT NULL CHECK (state BETWEEN 0 AND 5),
    filter     TEXT NOT NULL,
    died_by    INTEGER NOT NULL,
    before     BLOB NOT NULL CHECK (length(before) = 16),
    total      INTEGER,
    most       INTEGER,
    rate       INTEGER NOT NULL CHECK (rate > 0),
    wave       INTEGER NOT NULL CHECK (wave BETWEEN 0 AND 15),
    wave_size  INTEGER NOT NULL,
    wave_left  INTEGER NOT NULL,
    done       INTEGER NOT NULL DEFAULT 0,
    expired    INTEGER NOT NULL DEFAULT 0,
    erased     INTEGER NOT NULL DEFAULT 0,
    gone       INTEGER NOT NULL DEFAULT 0,
    reasons    TEXT NOT NULL DEFAULT '{}',
    note       TEXT,
    by         TEXT NOT NULL,
    request    TEXT,
    content    BLOB CHECK ((content IS NULL) = (request IS NULL)),
    began_at   INTEGER NOT NULL,
    started_at INTEGER,
    ended_at   INTEGER CHECK ((ended_at IS NOT NULL) = (state >= 3)),
    why        TEXT,
    UNIQUE (tenant, id)
) STRICT;

CREATE INDEX operation_open ON operation (tenant, died_by) WHERE ended_at IS NULL;
CREATE UNIQUE INDEX operation_request ON operation (tenant, request) WHERE request IS NOT NULL;

-- The operation that redrove it last, and in which wave: its number times 16, and the wave. NULL once it is redriven by
-- itself.
ALTER TABLE delivery ADD COLUMN bulk INTEGER;
CREATE INDEX delivery_bulk ON delivery (bulk, state, reason, counted) WHERE bulk IS NOT NULL;
