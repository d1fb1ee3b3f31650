-- Trials of a plugin's version beside the one in use. kind: 0 shadow, 1 canary; shares and bounds in ten-thousandths.
-- `figures` is JSON: what was counted. how: 0 stopped, 1 promoted, 2 superseded, 3 rolled back. `unsettled`: dead
-- letters of a canary may be left to put back.
CREATE TABLE plugin_trial (
    id           BLOB PRIMARY KEY CHECK (length(id) = 16),
    tenant       INTEGER NOT NULL REFERENCES tenant,
    plugin       TEXT NOT NULL,
    version      BLOB NOT NULL,
    active       BLOB NOT NULL,
    kind         INTEGER NOT NULL CHECK (kind IN (0, 1)),
    share        INTEGER NOT NULL CHECK (share BETWEEN 1 AND 10000),
    max_fault    INTEGER CHECK ((max_fault IS NOT NULL) = (kind = 1)),
    max_terminal INTEGER CHECK ((max_terminal IS NOT NULL) = (kind = 1)),
    min_calls    INTEGER CHECK ((min_calls IS NOT NULL) = (kind = 1)),
    figures      TEXT NOT NULL,
    began_at     INTEGER NOT NULL,
    by           TEXT NOT NULL,
    how          INTEGER CHECK (how BETWEEN 0 AND 3 AND (how <> 3 OR kind = 1)),
    ended_at     INTEGER CHECK ((ended_at IS NULL) = (how IS NULL)),
    ended_by     TEXT CHECK ((ended_by IS NULL) = (how IS NULL)),
    why          TEXT,
    put_back     INTEGER NOT NULL DEFAULT 0,
    unsettled    INTEGER NOT NULL DEFAULT 0 CHECK (unsettled = 0 OR (unsettled = 1 AND kind = 1 AND how IS NOT NULL))
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX plugin_trial_running ON plugin_trial (tenant, plugin) WHERE how IS NULL;
CREATE INDEX plugin_trial_plugin ON plugin_trial (tenant, plugin, id);
CREATE INDEX plugin_trial_unsettled ON plugin_trial (id) WHERE unsettled = 1;

-- The newest calls in which the versions differed: what the one in use said, and what the other one said.
CREATE TABLE plugin_trial_difference (
    trial    BLOB NOT NULL,
    seq      INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    delivery BLOB NOT NULL,
    attempt  INTEGER NOT NULL,
    said     TEXT NOT NULL,
    why      TEXT,
    to_said  TEXT NOT NULL,
    to_why   TEXT,
    request  INTEGER NOT NULL,
    PRIMARY KEY (trial, seq)
) STRICT, WITHOUT ROWID;
