//! Scrubbing: where an endpoint asks for it, what was delivered there is erased in the transaction that says so, and does
//! not wait for retention. What a delivery has of its own goes with it; the payload that an event's deliveries share goes
//! with the last of them, if all are done with it and all of their endpoints scrub.

use super::again;
use super::fault::Fault;
use super::prune;
use super::writer::Writer;
use crate::delivery::{DeliveryId, EventId};
use crate::ledger::{EndpointKey, TenantKey};
use rusqlite::OptionalExtension as _;

/// Of a delivery `o`: it needs no payload any more, since it got there, or somebody said so.
const DONE: &str = "(o.state IN (2, 3) OR o.state = 7 AND o.reason IS 'sent' OR o.state = 6 AND o.reason IS 'purged')";

impl Writer<'_> {
    /// To be called of a delivery whose row says that it is done. Gives the payloads that went.
    pub(super) fn scrub(&mut self, tenant: TenantKey, delivery: DeliveryId) -> Result<u64, Fault> {
        let id = delivery.to_bytes();
        let own = prune::erase_own(self.connection, tenant.0, &id)?;
        let over: Option<[u8; 16]> = self
            .connection
            .prepare_cached(&format!(
                "SELECT e.id FROM delivery d JOIN event e ON e.tenant = d.tenant AND e.id = d.event \
                 WHERE d.tenant = ? AND d.id = ? AND e.payload IS NOT NULL AND NOT EXISTS \
                 (SELECT 1 FROM delivery o JOIN endpoint n ON n.id = o.endpoint \
                 WHERE o.tenant = e.tenant AND o.id IN ({}) AND NOT (n.scrub AND {DONE}))",
                again::OF_ROW
            ))?
            .query_row((tenant.0, id), |row| row.get(0))
            .optional()?;
        // What is under way since its acceptance may have no row yet.
        match over.filter(|event| !self.births.any_of(EventId::from_bytes(*event))) {
            Some(event) => {
                self.scrub_event(tenant, &event)?;
                Ok(own + 1)
            }
            None => Ok(own),
        }
    }

    /// By an operator's word, as far as its endpoint scrubs.
    pub(super) fn scrub_at(
        &mut self,
        tenant: TenantKey,
        delivery: DeliveryId,
        endpoint: EndpointKey,
    ) -> Result<u64, Fault> {
        if self.scrubs(endpoint) { self.scrub(tenant, delivery) } else { Ok(0) }
    }

    pub(super) fn scrubs(&self, endpoint: EndpointKey) -> bool {
        self.endpoints.get(&endpoint).is_some_and(|e| e.scrub)
    }

    /// The payload that an event was accepted with.
    pub(super) fn scrub_event(&mut self, tenant: TenantKey, event: &[u8; 16]) -> Result<(), Fault> {
        for sql in [
            "DELETE FROM payload WHERE id = (SELECT payload FROM event WHERE tenant = ? AND id = ?)",
            "UPDATE event SET payload = NULL WHERE tenant = ? AND id = ?",
        ] {
            self.connection.prepare_cached(sql)?.execute((tenant.0, event))?;
        }
        Ok(())
    }
}
