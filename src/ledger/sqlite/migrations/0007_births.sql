-- Deliveries that were accepted with a slot, and have no row of their own yet: they are under way since the commit
-- that accepted them. A row for each such commit, which goes when all of its deliveries have their rows.
CREATE TABLE birth (
    id   INTEGER PRIMARY KEY,
    born BLOB NOT NULL
) STRICT;

-- What a commit remembers is one row too: entries of 73 bytes, numbered from `seq` on, with the second digest, if any,
-- at their ends.
CREATE TABLE dedup_commit (
    seq     INTEGER PRIMARY KEY,
    entries BLOB NOT NULL
) STRICT;

INSERT INTO dedup_commit (seq, entries)
SELECT seq, CAST(digest || event || body_digest || unhex(printf('%016X', until)) ||
                 iif(content IS NULL, x'00' || zeroblob(16), x'01' || content) AS BLOB)
FROM dedup_recent;

DROP TABLE dedup_recent;
ALTER TABLE dedup_commit RENAME TO dedup_recent;
