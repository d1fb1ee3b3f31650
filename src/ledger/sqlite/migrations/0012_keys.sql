-- The keys that a published event came with, the event that took its place in a coalescing window, and the idempotency
-- key of a coalesced one (NULL: the logical key, else the id).
ALTER TABLE event ADD COLUMN ordering_key TEXT;
ALTER TABLE event ADD COLUMN coalesce_key TEXT;
ALTER TABLE event ADD COLUMN superseded_by BLOB;
ALTER TABLE event ADD COLUMN idempotency_key TEXT;

-- What a window holds: those that no later event has taken the place of.
CREATE INDEX event_coalesced ON event (tenant, coalesce_key, id)
WHERE coalesce_key IS NOT NULL AND superseded_by IS NULL;

-- The newest window of each coalescing key; `first` is the lowest id of its events.
CREATE TABLE coalescing (
    tenant   INTEGER NOT NULL,
    key      TEXT NOT NULL,
    began_at INTEGER NOT NULL,
    ends_at  INTEGER NOT NULL CHECK (ends_at > began_at),
    first    BLOB NOT NULL CHECK (length(first) = 16),
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX coalescing_end ON coalescing (ends_at);

-- The digest of the key in whose line a delivery stood or stands; `out_of_order`: it was redriven after it had left the
-- line. A pending delivery that is not the first of its line is due at the end of time.
ALTER TABLE delivery ADD COLUMN ordering BLOB;
ALTER TABLE delivery ADD COLUMN out_of_order INTEGER NOT NULL DEFAULT 0;

-- The lines: a row for each delivery that has not ended, and for each dead one that holds its key. `due_at` is set where
-- it is not to be sent before.
CREATE TABLE ordered (
    endpoint INTEGER NOT NULL,
    key      BLOB NOT NULL CHECK (length(key) = 16),
    sequence INTEGER NOT NULL,
    tenant   INTEGER NOT NULL,
    delivery BLOB NOT NULL,
    due_at   INTEGER,
    holds    INTEGER NOT NULL CHECK (holds IN (0, 1)),
    PRIMARY KEY (endpoint, key, sequence)
) STRICT, WITHOUT ROWID;

CREATE INDEX ordered_later ON ordered (endpoint, due_at) WHERE due_at IS NOT NULL;
