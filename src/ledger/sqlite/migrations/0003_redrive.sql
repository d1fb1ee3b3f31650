-- Redrives that came with a request id, and what they were answered: who asks the same again is told the same.
-- `content` is the digest of what was asked.
CREATE TABLE redrive (
    tenant     INTEGER NOT NULL,
    delivery   BLOB NOT NULL,
    request    TEXT NOT NULL,
    content    BLOB NOT NULL,
    generation INTEGER NOT NULL,
    revision   INTEGER NOT NULL,
    PRIMARY KEY (tenant, delivery, request)
) STRICT, WITHOUT ROWID;
