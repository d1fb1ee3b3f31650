-- What happened, counted by the minute and later by the hour. at: the beginning of the minute or hour. subject: the
-- number of an endpoint; 0: what was published; below 0: that of a source. `counts` is written by `tally.rs` and is
-- only ever added to.
CREATE TABLE tally (
    tenant  INTEGER NOT NULL,
    hourly  INTEGER NOT NULL CHECK (hourly IN (0, 1)),
    at      INTEGER NOT NULL,
    subject INTEGER NOT NULL,
    counts  BLOB NOT NULL,
    PRIMARY KEY (tenant, hourly, at, subject)
) STRICT, WITHOUT ROWID;

-- What each of the newest commits counted, in one row, until it is added to the minutes.
CREATE TABLE tally_note (
    id     INTEGER PRIMARY KEY,
    counts BLOB NOT NULL
) STRICT;

-- When an endpoint was closed: status as in its row. until: NULL while nobody knows.
CREATE TABLE endpoint_closing (
    id       INTEGER PRIMARY KEY,
    endpoint INTEGER NOT NULL,
    status   INTEGER NOT NULL CHECK (status IN (1, 2)),
    why      TEXT NOT NULL,
    since    INTEGER NOT NULL,
    until    INTEGER
) STRICT;

CREATE INDEX endpoint_closing_endpoint ON endpoint_closing (endpoint, id);

-- Since when those were closed that are, nobody has written down.
INSERT INTO endpoint_closing (endpoint, status, why, since, until)
SELECT id, status, why, CAST(unixepoch('subsec') * 1000 AS INTEGER), until FROM endpoint WHERE status <> 0;
