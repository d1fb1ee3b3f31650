-- The first schema. Ids are UUIDv7 in 16 bytes, so that byte order is time order; they follow the tenant in the key,
-- so that a tenant's rows lie together and no read can leave them by accident. Times are milliseconds since the epoch.
-- The hot tables have no foreign keys and no index on a random value: what refers to what is written by one verb in one
-- transaction, and the CHECKs repeat the rules of the states.

-- "hkl1": other programs have SQLite files too.
PRAGMA application_id = 0x686b6c31;

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE tenant (
    id   INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;

-- Data keys, wrapped by the key-encryption key that is named beside them.
CREATE TABLE tenant_key (
    tenant  INTEGER NOT NULL REFERENCES tenant,
    id      INTEGER NOT NULL,
    kek     BLOB NOT NULL,
    wrapped BLOB NOT NULL,
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE source (
    id     INTEGER PRIMARY KEY,
    tenant INTEGER NOT NULL REFERENCES tenant,
    name   TEXT NOT NULL,
    UNIQUE (tenant, name)
) STRICT;

CREATE TABLE host (
    id   INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;

-- status: 0 enabled, 1 paused (until a time, or until somebody resumes it), 2 disabled.
CREATE TABLE endpoint (
    id       INTEGER PRIMARY KEY,
    tenant   INTEGER NOT NULL REFERENCES tenant,
    name     TEXT NOT NULL,
    host     INTEGER NOT NULL REFERENCES host,
    status   INTEGER NOT NULL DEFAULT 0 CHECK (status IN (0, 1, 2)),
    until    INTEGER CHECK (until IS NULL OR status = 1),
    why      TEXT CHECK ((why IS NULL) = (status = 0)),
    sequence INTEGER NOT NULL DEFAULT 0,
    secret   BLOB,
    UNIQUE (tenant, name)
) STRICT;

CREATE TABLE plugin_version (
    id         BLOB PRIMARY KEY CHECK (length(id) = 16),
    tenant     INTEGER NOT NULL REFERENCES tenant,
    plugin     TEXT NOT NULL,
    digest     BLOB NOT NULL CHECK (length(digest) = 32),
    created_at INTEGER NOT NULL,
    UNIQUE (tenant, plugin, digest)
) STRICT, WITHOUT ROWID;

-- Sealed headers and bodies, apart from the rows that are listed and scanned. In the order of acceptance, which is
-- the order in which retention takes them. `delivery` and `revision` are set for corrected payloads alone.
CREATE TABLE payload (
    id       INTEGER PRIMARY KEY,
    tenant   INTEGER NOT NULL,
    event    BLOB NOT NULL,
    delivery BLOB,
    revision INTEGER CHECK ((revision IS NULL) = (delivery IS NULL)),
    content  BLOB NOT NULL
) STRICT;

-- `payload` is NULL once retention has taken it. `last` is the last id minted with the event: its deliveries lie
-- between the two.
CREATE TABLE event (
    tenant       INTEGER NOT NULL,
    id           BLOB NOT NULL CHECK (length(id) = 16),
    source       INTEGER,
    type         TEXT NOT NULL,
    key          TEXT,
    provider_id  TEXT,
    content_type TEXT NOT NULL,
    payload      INTEGER,
    body_bytes   INTEGER NOT NULL,
    accepted_at  INTEGER NOT NULL,
    deliver_at   INTEGER,
    expires_at   INTEGER,
    deadline     INTEGER,
    last         BLOB NOT NULL,
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX event_key ON event (tenant, key, id) WHERE key IS NOT NULL;
CREATE INDEX event_expiry ON event (expires_at) WHERE expires_at IS NOT NULL;

-- state: 0 pending, 1 in flight, 2 delivered, 3 skipped, 4 dead, 5 expired, 6 cancelled, 7 resolved.
-- due_at: when to look next: due (pending), the lease's end (in flight). `attempts` counts all, the open one included;
-- `counted` those of this generation that have ended and count; `interrupted` those directly before, in a row.
CREATE TABLE delivery (
    tenant      INTEGER NOT NULL,
    id          BLOB NOT NULL CHECK (length(id) = 16),
    event       BLOB NOT NULL,
    origin      INTEGER NOT NULL,
    endpoint    INTEGER NOT NULL,
    host        INTEGER NOT NULL,
    sequence    INTEGER NOT NULL,
    state       INTEGER NOT NULL CHECK (state BETWEEN 0 AND 7),
    generation  INTEGER NOT NULL,
    revision    INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    counted     INTEGER NOT NULL,
    interrupted INTEGER NOT NULL,
    began_at    INTEGER NOT NULL,
    due_at      INTEGER,
    token       INTEGER NOT NULL,
    started_at  INTEGER,
    reason      TEXT,
    last_status INTEGER,
    reference   TEXT,
    finished_at INTEGER,
    note        TEXT,
    payload     INTEGER,
    PRIMARY KEY (tenant, id),
    CHECK ((state IN (0, 1)) = (due_at IS NOT NULL)),
    CHECK ((state = 1) = (started_at IS NOT NULL)),
    CHECK ((state >= 2) = (finished_at IS NOT NULL)),
    CHECK (state <> 4 OR reason IS NOT NULL)
) STRICT, WITHOUT ROWID;

-- What is pending and what is in flight; an index of their own would cost every event more than it spares.
CREATE INDEX delivery_live ON delivery (state, endpoint, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX delivery_dead ON delivery (tenant, id, endpoint, host, last_status, reason, finished_at) WHERE state = 4;
CREATE INDEX delivery_dead_age ON delivery (finished_at) WHERE state = 4;
CREATE INDEX delivery_reference ON delivery (tenant, reference) WHERE reference IS NOT NULL;

-- Every payload that a delivery was ever corrected to.
CREATE TABLE revision (
    tenant   INTEGER NOT NULL,
    delivery BLOB NOT NULL,
    revision INTEGER NOT NULL,
    payload  INTEGER,
    PRIMARY KEY (tenant, delivery, revision)
) STRICT, WITHOUT ROWID;

-- Attempts that have ended; the open one is in the row of its delivery. An attempt's id follows from both its keys. `detail` is sealed: what was sent, what was
-- answered, what the plugin wrote.
CREATE TABLE attempt (
    tenant          INTEGER NOT NULL,
    delivery        BLOB NOT NULL,
    number          INTEGER NOT NULL CHECK (number >= 1),
    token           INTEGER NOT NULL,
    generation      INTEGER NOT NULL,
    revision        INTEGER NOT NULL,
    started_at      INTEGER NOT NULL,
    duration_ms     INTEGER NOT NULL,
    outcome         TEXT NOT NULL,
    status          INTEGER,
    verdict         TEXT,
    reason          TEXT NOT NULL,
    decided_by      TEXT NOT NULL,
    disposition     TEXT NOT NULL,
    next_at         INTEGER,
    clamped_from_ms INTEGER,
    ambiguous       INTEGER NOT NULL,
    plugin_version  BLOB,
    plugin_us       INTEGER,
    log_dropped     INTEGER NOT NULL,
    detail          BLOB,
    PRIMARY KEY (tenant, delivery, number)
) STRICT, WITHOUT ROWID;

-- Dedup keys. The newest are in memory and here in the order of acceptance, both digests of an event in one row; what
-- falls out of memory moves to the table by digest, in sorted steps.
CREATE TABLE dedup_recent (
    seq         INTEGER PRIMARY KEY,
    digest      BLOB NOT NULL,
    content     BLOB,
    event       BLOB NOT NULL,
    body_digest BLOB NOT NULL,
    until       INTEGER NOT NULL
) STRICT;

CREATE TABLE dedup_cold (
    digest      BLOB PRIMARY KEY,
    event       BLOB NOT NULL,
    body_digest BLOB NOT NULL,
    until       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
