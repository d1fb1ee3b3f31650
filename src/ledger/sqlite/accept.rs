//! One event with all its deliveries and its dedup key.

use super::births::{Birth, FIRST_TOKEN, Needs};
use super::coalescing::Window;
use super::codec::int;
use super::fault::Fault;
use super::shared::Shared;
use super::writer::{Verb, Writer};
use crate::clock::Timestamp;
use crate::delivery::{DeliveryId, EventId, History, IdText};
use crate::ledger::{
    Accepted, Claimed, Count, EndpointKey, EventContent, Lease, LedgerError, OrderingKey, Slot, SourceKey, TenantKey,
};
use crate::telemetry::EVENTS_SUPERSEDED;
use crate::verify::{Dedup, Event, Verified};
use smallvec::SmallVec;
use std::sync::Arc;

/// An event that is ready to be written: its ids are minted and its content is sealed.
pub(super) struct AcceptEvent {
    pub tenant: TenantKey,
    pub source: Option<SourceKey>,
    pub event: Verified<Event>,
    pub sealed: Vec<u8>,
    pub id: EventId,
    pub last: DeliveryId,
    pub deliveries: SmallVec<[Arriving; 2]>,
    pub now: Timestamp,
    /// Set when applied: events whose place it took.
    pub superseded: u64,
}

pub(super) struct Arriving {
    pub id: DeliveryId,
    pub endpoint: EndpointKey,
    /// Where its first attempt starts.
    pub slot: Option<Slot>,
    pub order: Option<OrderingKey>,
    /// Set when applied: its place in the endpoint's sequence, and the end of its lease if it has one.
    pub sequence: u64,
    pub leased_until: Option<Timestamp>,
}

/// The rule of [`Dedup`]: by the key proper, and where the signature does not cover it, by what it does cover.
fn known(w: &mut Writer<'_>, dedup: &Dedup, body: &[u8; 16], now: Timestamp) -> Result<Option<Accepted>, Fault> {
    if let Some(earlier) = w.earlier(&dedup.digest, now)? {
        let same = earlier.body_digest == *body;
        return Ok(Some(if same { Accepted::Duplicate(earlier.event) } else { Accepted::KeyReused(earlier.event) }));
    }
    let Some(content) = &dedup.content else { return Ok(None) };
    Ok(w.earlier(content, now)?.map(|earlier| Accepted::Duplicate(earlier.event)))
}

impl Verb for AcceptEvent {
    type Done = Accepted;

    fn needs(&self) -> Needs {
        Needs::None
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Accepted, Fault> {
        for arriving in &self.deliveries {
            let known = w.endpoints.get(&arriving.endpoint).is_some_and(|e| e.tenant == self.tenant);
            if !known {
                let text = format!("endpoint {} is not declared for this tenant", arriving.endpoint.0);
                return Err(Fault::Refused(LedgerError::Unavailable(text)));
            }
        }
        let event = &*self.event;
        if let Some(dedup) = &event.dedup
            && let Some(known) = known(w, dedup, &event.body_digest, self.now)?
        {
            w.tallies.accepted(self.tenant, self.source, &known, self.now);
            return Ok(known);
        }
        let window = match event.coalesce() {
            Some(coalesce) => Some(Window::of(w.connection, self.tenant, coalesce, self.now)?),
            None => None,
        };
        if let Some(Window { ends_at, .. }) = &window
            && [event.expires_at, event.deadline].into_iter().flatten().any(|over| over <= *ends_at)
        {
            return Ok(Accepted::TooLateAt(*ends_at));
        }
        w.effects.accepts += 1;
        let (tenant, id, now) = (self.tenant.0, self.id.to_bytes(), self.now.as_millis());
        let payload = w.next_payload;
        w.next_payload += 1;
        w.sql.insert_payload.execute((payload, tenant, id, None::<&[u8]>, None::<i64>, &self.sealed))?;
        w.sql.insert_event.execute(rusqlite::params![
            tenant,
            id,
            self.source.map(|s| s.0),
            event.event_type,
            event.key,
            event.provider_id,
            event.content_type,
            payload,
            int(event.body.len() as u64),
            now,
            event.deliver_at.map(Timestamp::as_millis),
            event.expires_at.map(Timestamp::as_millis),
            event.deadline.map(Timestamp::as_millis),
            self.last.to_bytes(),
        ])?;
        if let Some(dedup) = &event.dedup {
            w.remember(dedup, self.id, &event.body_digest, self.now);
        }
        if let Some(key) = event.ordering_key() {
            w.connection
                .prepare_cached("UPDATE event SET ordering_key = ? WHERE tenant = ? AND id = ?")?
                .execute((key, tenant, id))?;
        }
        let mut later = event.deliver_at.filter(|at| *at > self.now);
        if let (Some(coalesce), Some(window)) = (event.coalesce(), &window) {
            let goes_to = |endpoint| self.deliveries.iter().any(|arriving| arriving.endpoint == endpoint);
            self.superseded = w.coalesce((self.tenant, self.id), coalesce, window, goes_to, self.now)?;
            later = Some(window.ends_at);
        }
        for arriving in &mut self.deliveries {
            let key = arriving.endpoint;
            w.tallies.count(self.tenant, key, Count::ACCEPTED, self.now);
            let open = later.is_none() && arriving.order.is_none() && w.is_open(key, self.now);
            arriving.sequence = w.next_sequence(key);
            let slot = arriving.slot.as_ref().filter(|_| open);
            arriving.leased_until = slot.map(|slot| self.now.plus(slot.lease_for()));
            if let Some(leased_until) = arriving.leased_until {
                w.births.add(Birth {
                    tenant: self.tenant,
                    delivery: arriving.id,
                    event: self.id,
                    endpoint: key,
                    sequence: arriving.sequence,
                    began_at: self.now,
                    leased_until,
                });
                w.effects.in_flight += 1;
                w.effects.starts += 1;
                continue;
            }
            let due = match &arriving.order {
                Some(order) => {
                    w.line_up((self.tenant, arriving.id), (key, arriving.sequence), order, later, self.now)?
                }
                None => later.unwrap_or(self.now),
            };
            w.sql.insert_delivery.execute(rusqlite::params![
                tenant,
                arriving.id.to_bytes(),
                id,
                key.0,
                w.endpoints.get(&key).map(|e| e.host),
                int(arriving.sequence),
                0,
                now,
                due.as_millis(),
                None::<i64>,
            ])?;
            if let Some(order) = &arriving.order {
                w.mark_ordered((self.tenant, arriving.id), order, due)?;
            }
            w.effects.pending += 1;
            w.wake(key, due, self.now);
        }
        let accepted = Accepted::New(self.id);
        w.tallies.accepted(self.tenant, self.source, &accepted, self.now);
        Ok(accepted)
    }

    fn publish(self, done: &mut Accepted, shared: &Shared) {
        if !matches!(done, Accepted::New(_)) {
            return;
        }
        if self.superseded > 0 {
            metrics::counter!(EVENTS_SUPERSEDED).increment(self.superseded);
        }
        let event = self.event.into_inner();
        let key: Arc<str> = match &event.key {
            Some(key) => key.as_str().into(),
            None => self.id.encode(&mut IdText::default()).into(),
        };
        let expires_at = event.expires_at;
        let content = Arc::new(EventContent {
            id: self.id,
            source: self.source,
            event_type: event.event_type,
            content_type: event.content_type,
            headers: event.headers,
            body: event.body,
            key: event.key,
            accepted_at: self.now,
        });
        for arriving in self.deliveries {
            let (Some(slot), Some(until)) = (arriving.slot, arriving.leased_until) else { continue };
            let lease = Lease {
                tenant: self.tenant,
                delivery: arriving.id,
                endpoint: arriving.endpoint,
                token: FIRST_TOKEN,
                until,
                generation: 1,
                revision: 1,
                number: 1,
                started_at: self.now,
                eligible_at: self.now,
                history: History { counted: 1, interrupted_before: 0, began_at: self.now, expires_at },
            };
            let claimed = Claimed {
                lease,
                sequence: arriving.sequence,
                idempotency_key: Arc::clone(&key),
                event: Arc::clone(&content),
                slot,
            };
            // Nobody listens any more: the lease runs out and is rescued.
            let _ = shared.births.send(claimed);
        }
    }
}
