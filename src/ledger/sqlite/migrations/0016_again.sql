-- Deliveries of an event that went to an endpoint already, or never did: `origin` is their number there, above 0.
-- `again_of` is the one before, if any; `replayed` the number of the operation that made it, NULL for a resend;
-- `made_at` when that was (NULL: with its event).
ALTER TABLE delivery ADD COLUMN again_of BLOB;
ALTER TABLE delivery ADD COLUMN replayed INTEGER;
ALTER TABLE delivery ADD COLUMN made_at INTEGER;

-- They do not lie between their event's id and its `last`.
CREATE UNIQUE INDEX delivery_again ON delivery (tenant, event, endpoint, origin) WHERE origin > 0;

-- Resends that came with a request id, and what they made: who asks the same again is told the same.
CREATE TABLE resend (
    tenant   INTEGER NOT NULL,
    delivery BLOB NOT NULL,
    request  TEXT NOT NULL,
    content  BLOB NOT NULL,
    made     BLOB NOT NULL CHECK (length(made) = 16),
    PRIMARY KEY (tenant, delivery, request)
) STRICT, WITHOUT ROWID;

-- kind: 0 a redrive of dead letters, 1 a replay of events. Of a replay `filter` is the whole wish, `died_by` is 0, and
-- `before` is the event after which it goes on. `under_way` counts what was passed by since it was on its way.
ALTER TABLE operation ADD COLUMN kind INTEGER NOT NULL DEFAULT 0 CHECK (kind IN (0, 1));
ALTER TABLE operation ADD COLUMN under_way INTEGER NOT NULL DEFAULT 0;
