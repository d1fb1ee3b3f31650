-- What became of a plugin's version, for those that were uploaded: NULL for what came with a file.
-- state: 0 compiling, 1 ready, 2 rejected, 3 disabled. `why` is JSON: the rejection, or the faults that disabled it;
-- `findings` is JSON: exports and warnings, known once it was ready.
ALTER TABLE plugin_version ADD COLUMN state INTEGER CHECK (state BETWEEN 0 AND 3);
ALTER TABLE plugin_version ADD COLUMN why TEXT CHECK ((why IS NOT NULL) = (state IS NOT NULL AND state >= 2));
ALTER TABLE plugin_version ADD COLUMN findings TEXT;
ALTER TABLE plugin_version ADD COLUMN bytes INTEGER;
ALTER TABLE plugin_version ADD COLUMN uploaded_at INTEGER CHECK ((uploaded_at IS NULL) = (state IS NULL));
ALTER TABLE plugin_version ADD COLUMN uploaded_by TEXT CHECK ((uploaded_by IS NULL) = (uploaded_at IS NULL));

-- Which version was in use from when on, and by whom; the newest row is what holds. what: 0 activate, 1 rollback,
-- 2 disable. `version` is NULL when there was none to fall back to.
CREATE TABLE plugin_activation (
    id      INTEGER PRIMARY KEY,
    tenant  INTEGER NOT NULL REFERENCES tenant,
    plugin  TEXT NOT NULL,
    version BLOB CHECK (version IS NOT NULL OR what = 2),
    what    INTEGER NOT NULL CHECK (what BETWEEN 0 AND 2),
    at      INTEGER NOT NULL,
    by      TEXT NOT NULL
) STRICT;

CREATE INDEX plugin_activation_plugin ON plugin_activation (tenant, plugin, id);
