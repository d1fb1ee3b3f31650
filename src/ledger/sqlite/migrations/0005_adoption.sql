-- The secret that a source's provider handed over, sealed, and since when it is held.
ALTER TABLE source ADD COLUMN secret BLOB;
ALTER TABLE source ADD COLUMN adopted_at INTEGER CHECK ((adopted_at IS NULL) = (secret IS NULL));
