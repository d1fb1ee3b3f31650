-- Episodes of alerts. tenant 0: the gateway's own. kind and subject are words; value and threshold are in the kind's unit.
-- told: 0 nobody, 1 yet to be told, 2 told by `event`.
CREATE TABLE alert (
    id         BLOB PRIMARY KEY CHECK (length(id) = 16),
    tenant     INTEGER NOT NULL,
    kind       TEXT NOT NULL,
    subject    TEXT NOT NULL,
    value      INTEGER NOT NULL,
    threshold  INTEGER NOT NULL,
    since      INTEGER,
    due        INTEGER,
    sample     BLOB,
    fired_at   INTEGER NOT NULL,
    cleared_at INTEGER,
    told       INTEGER NOT NULL CHECK (told BETWEEN 0 AND 2),
    event      BLOB CHECK ((event IS NOT NULL) = (told = 2))
) STRICT, WITHOUT ROWID;

-- Nothing fires twice at once.
CREATE UNIQUE INDEX alert_firing ON alert (tenant, kind, subject) WHERE cleared_at IS NULL;
CREATE INDEX alert_untold ON alert (id) WHERE told = 1;
CREATE INDEX alert_tenant ON alert (tenant, id);

-- When an endpoint was paused (1) or disabled (2) that had not been so: since when it is, and how often of late.
CREATE TABLE endpoint_change (
    endpoint INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    status   INTEGER NOT NULL CHECK (status IN (1, 2)),
    PRIMARY KEY (endpoint, at)
) STRICT, WITHOUT ROWID;

-- For those that are so now, it begins with this release.
INSERT INTO endpoint_change (endpoint, at, status)
SELECT id, CAST(unixepoch('subsec') * 1000 AS INTEGER), status FROM endpoint WHERE status <> 0;

-- Deadlines, each with where the event's deliveries end and when they could begin.
CREATE INDEX event_deadline ON event (tenant, deadline, id, last, deliver_at) WHERE deadline IS NOT NULL;
-- Dead letters of a tenant by age.
CREATE INDEX delivery_dead_since ON delivery (tenant, finished_at, endpoint) WHERE state = 4;
