-- Refused requests: kinds and sizes, a bounded list. Small enough that its bounds are counted rather than kept.
CREATE TABLE rejection (
    tenant       INTEGER NOT NULL,
    id           BLOB NOT NULL CHECK (length(id) = 16),
    source       INTEGER NOT NULL,
    at           INTEGER NOT NULL,
    reason       TEXT NOT NULL,
    step         TEXT,
    detail       TEXT NOT NULL,
    skew_seconds INTEGER,
    peer         TEXT NOT NULL,
    body_bytes   INTEGER,
    body_digest  BLOB CHECK ((body_digest IS NULL) = (body_bytes IS NULL)),
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX rejection_source ON rejection (source, id);
CREATE INDEX rejection_age ON rejection (id);
