-- What was answered to requests that came with an idempotency key: `request` is the key's digest, `asked` that of the
-- request, `content` the sealed answer.
CREATE TABLE answer (
    tenant  INTEGER NOT NULL,
    request BLOB NOT NULL CHECK (length(request) = 32),
    asked   BLOB NOT NULL CHECK (length(asked) = 32),
    status  INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (tenant, request)
) STRICT, WITHOUT ROWID;

CREATE INDEX answer_age ON answer (at);

-- Why a payload was corrected, and when.
ALTER TABLE revision ADD COLUMN note TEXT;
ALTER TABLE revision ADD COLUMN made_at INTEGER;
