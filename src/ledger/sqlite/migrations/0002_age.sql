-- Pending work that is due later than it began: retries, and what was to be delivered later. By its beginning, for the
-- age limit of an endpoint. The rest is found by its due time, which is its beginning.
CREATE INDEX delivery_age ON delivery (endpoint, began_at) WHERE state = 0 AND due_at > began_at;
