-- For how long a consumer has leased a delivery, in milliseconds; NULL: the attempt is the gateway's own. Set by every
-- start, and of meaning only while the delivery is in flight.
ALTER TABLE delivery ADD COLUMN leased_for INTEGER CHECK (leased_for > 0);
