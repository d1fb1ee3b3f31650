-- Whether what was delivered there is erased at once. What is no longer declared keeps its word.
ALTER TABLE endpoint ADD COLUMN scrub INTEGER NOT NULL DEFAULT 0 CHECK (scrub IN (0, 1));
