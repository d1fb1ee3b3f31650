//! Leases: the oldest due work against slots, and what becomes of leases whose holder is gone.

use super::births::Needs;
use super::codec::{count, time, time_opt};
use super::fault::Fault;
use super::keyring::Place;
use super::ordering::HELD;
use super::shared::Shared;
use super::writer::{Verb, Writer};
use crate::clock::Timestamp;
use crate::delivery::{DeliveryId, EndpointStatus, EventId, History};
use crate::ledger::{EndpointKey, EventContent, Lease, Slot, SourceKey, TenantKey};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a lease is kept that is only made for a decision.
const RESCUE_LEASE: Duration = Duration::from_secs(60);

/// Slots, of any endpoints, to be filled with due work.
pub(super) struct ClaimDue {
    slots: Vec<Option<Slot>>,
    now: Timestamp,
    /// The indexes of the slots that were used, in the order of what was leased.
    used: Vec<usize>,
}

/// A delivery that was leased; its content is yet to be read.
pub(super) struct Leased {
    pub lease: Lease,
    pub sequence: u64,
    pub event: EventId,
    pub origin: u32,
    pub slot: Option<Slot>,
    /// `None`: the event's row is not there, which only damage explains.
    pub head: Option<EventHead>,
}

/// The event's row.
pub(super) struct EventHead {
    pub source: Option<SourceKey>,
    pub event_type: String,
    pub content_type: String,
    pub key: Option<String>,
    /// Of a coalesced event.
    pub idempotency_key: Option<String>,
    pub accepted_at: Timestamp,
    /// Where the content is; `None`: erased.
    pub payload: Option<i64>,
}

impl Leased {
    /// Under which place the content was sealed.
    pub(super) fn place<'a>(&self, event: &'a [u8; 16], delivery: &'a [u8; 16]) -> Place<'a> {
        match self.lease.revision {
            1 => Place::EventContent(event),
            revision => Place::RevisionContent(delivery, revision),
        }
    }

    pub(super) fn idempotency_key(&self, event: &EventContent) -> String {
        let frozen = self.head.as_ref().and_then(|head| head.idempotency_key.as_deref());
        idempotency_key(frozen.or(event.key.as_deref()), self.event, self.origin)
    }
}

pub(super) fn idempotency_key(key: Option<&str>, event: EventId, origin: u32) -> String {
    let base = key.map_or_else(|| event.to_string(), str::to_owned);
    if origin == 0 { base } else { format!("{base}:resend-{origin}") }
}

impl ClaimDue {
    pub(super) fn new(mut slots: Vec<Slot>, now: Timestamp) -> Self {
        slots.sort_by_key(Slot::endpoint);
        ClaimDue { slots: slots.into_iter().map(Some).collect(), now, used: Vec::new() }
    }
}

/// What a claim leased, and when the rest of each endpoint that was asked for is due.
#[derive(Default)]
pub(super) struct Dealt {
    pub(super) leased: Vec<Leased>,
    pub(super) next_due: BTreeMap<EndpointKey, Timestamp>,
}

impl Verb for ClaimDue {
    type Done = Dealt;

    fn needs(&self) -> Needs {
        Needs::None
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Dealt, Fault> {
        self.used.clear();
        let mut all = Vec::new();
        let mut next_due = BTreeMap::new();
        let mut from = 0;
        while let Some(slot) = self.slots.get(from).and_then(Option::as_ref) {
            let (endpoint, lease_for) = (slot.endpoint(), slot.lease_for());
            let same = |s: &&Option<Slot>| s.as_ref().is_some_and(|s| s.endpoint() == endpoint);
            let slots = self.slots[from..].iter().take_while(same).count();
            if w.is_open(endpoint, self.now) {
                let before = all.len();
                due_rows(w, endpoint, slots, self.now, &mut all)?;
                for (at, leased) in all[before..].iter_mut().enumerate() {
                    leased.lease.until = self.now.plus(lease_for);
                    w.begin(&leased.lease, None)?;
                    self.used.push(from + at);
                }
            } else {
                refuse_closed(w, endpoint, self.now);
            }
            let first: Option<i64> = w.sql.next_due.query_row((endpoint.0, HELD.as_millis()), |row| row.get(0))?;
            next_due.extend(first.map(|due| (endpoint, Timestamp::from_millis(due))));
            from += slots;
        }
        Ok(Dealt { leased: all, next_due })
    }

    fn publish(mut self, done: &mut Dealt, _shared: &Shared) {
        for (leased, at) in done.leased.iter_mut().zip(&self.used) {
            leased.slot = self.slots.get_mut(*at).and_then(Option::take);
        }
    }
}

/// Whoever came with a slot for a closed endpoint has missed its closing: it is announced again.
fn refuse_closed(w: &mut Writer<'_>, endpoint: EndpointKey, now: Timestamp) {
    let status = w.endpoints.get(&endpoint).map(|e| e.status.clone());
    if let Some(status) = status {
        if let EndpointStatus::Paused { until: Some(until), .. } = &status {
            w.wake(endpoint, *until, now);
        }
        w.effects.closings.push((endpoint, status));
    }
}

pub(super) fn due_rows(
    w: &mut Writer<'_>,
    endpoint: EndpointKey,
    limit: usize,
    now: Timestamp,
    into: &mut Vec<Leased>,
) -> Result<(), Fault> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut rows = w.sql.due.query((endpoint.0, now.as_millis(), limit))?;
    while let Some(row) = rows.next()? {
        let own: Option<i64> = row.get(12)?;
        let event_type: Option<String> = row.get(14)?;
        let head = match event_type {
            None => None,
            Some(event_type) => Some(EventHead {
                source: row.get::<_, Option<u32>>(13)?.map(SourceKey),
                event_type,
                content_type: row.get(15)?,
                key: row.get(16)?,
                idempotency_key: row.get(21)?,
                accepted_at: time(row, 17)?,
                payload: match own {
                    Some(own) => Some(own),
                    None => row.get(19)?,
                },
            }),
        };
        let (generation, began_at) = (row.get(5)?, time(row, 10)?);
        into.push(Leased {
            lease: Lease {
                tenant: TenantKey(row.get(0)?),
                delivery: DeliveryId::from_bytes(row.get(1)?),
                endpoint,
                token: count(row.get(11)?) + 1,
                until: now,
                generation,
                revision: row.get(6)?,
                number: row.get::<_, u32>(7)?.saturating_add(1),
                started_at: now,
                eligible_at: eligible_at(generation, began_at, time_opt(row, 20)?),
                history: History {
                    counted: row.get::<_, u32>(8)?.saturating_add(1),
                    interrupted_before: row.get(9)?,
                    began_at,
                    expires_at: time_opt(row, 18)?,
                },
            },
            sequence: count(row.get(4)?),
            event: EventId::from_bytes(row.get(2)?),
            origin: row.get(3)?,
            slot: None,
            head,
        });
    }
    Ok(())
}

/// When it could first be sent: a redrive waits for nothing.
pub(super) fn eligible_at(generation: u32, began_at: Timestamp, deliver_at: Option<Timestamp>) -> Timestamp {
    deliver_at.filter(|_| generation == 1).map_or(began_at, |at| at.max(began_at))
}

/// A row of `expired`, `overdue` or [`OUTLIVED`], under the next token. Their columns are the same.
fn taken(row: &rusqlite::Row<'_>, until: Timestamp) -> Result<Lease, Fault> {
    Ok(Lease {
        tenant: TenantKey(row.get(0)?),
        delivery: DeliveryId::from_bytes(row.get(1)?),
        endpoint: EndpointKey(row.get(2)?),
        token: count(row.get(6)?) + 1,
        until,
        generation: row.get(7)?,
        revision: row.get(8)?,
        number: row.get(9)?,
        started_at: time(row, 10)?,
        eligible_at: time(row, 5)?,
        history: History {
            counted: row.get::<_, u32>(3)?.saturating_add(1),
            interrupted_before: row.get(4)?,
            began_at: time(row, 5)?,
            expires_at: time_opt(row, 11)?,
        },
    })
}

/// Leases that have ended, to be taken over.
pub(super) struct Rescue {
    pub expired_by: Timestamp,
    pub limit: usize,
    pub now: Timestamp,
}

impl Verb for Rescue {
    type Done = Vec<Lease>;

    fn needs(&self) -> Needs {
        Needs::EndedBy(self.expired_by)
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Vec<Lease>, Fault> {
        let limit = i64::try_from(self.limit).unwrap_or(i64::MAX);
        let until = self.now.plus(RESCUE_LEASE);
        let mut all = Vec::new();
        let mut rows = w.sql.expired.query((self.expired_by.as_millis(), limit, self.now.as_millis()))?;
        while let Some(row) = rows.next()? {
            all.push(taken(row, until)?);
        }
        drop(rows);
        for lease in &all {
            let token = super::codec::int(lease.token);
            w.sql.take_over.execute((lease.tenant.0, lease.delivery.to_bytes(), token, until.as_millis()))?;
        }
        Ok(all)
    }
}

/// Pending work whose time is over, to be leased and ended.
pub(super) struct Overdue {
    pub after: Timestamp,
    pub limit: usize,
    pub now: Timestamp,
}

impl Verb for Overdue {
    type Done = Vec<Lease>;

    fn needs(&self) -> Needs {
        Needs::None
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Vec<Lease>, Fault> {
        let limit = i64::try_from(self.limit).unwrap_or(i64::MAX);
        let mut over = Vec::new();
        let rows = w.sql.overdue.query((self.after.as_millis(), self.now.as_millis(), limit))?;
        over_rows(rows, self.now, &mut over)?;
        begin_all(w, &mut over, self.now)?;
        Ok(over)
    }
}

/// Pending work of closed endpoints that is older than they allow, to be leased and ended.
pub(super) struct Outlived {
    pub began_by: Vec<(EndpointKey, Timestamp)>,
    pub limit: usize,
    pub now: Timestamp,
}

/// What is due that long was there that long; the others are those that are due later than they began.
const OUTLIVED: &str = "SELECT d.tenant, d.id, d.endpoint, d.counted, d.interrupted, d.began_at, d.token, \
    d.generation, d.revision, d.attempts, d.began_at, e.expires_at \
    FROM delivery d INDEXED BY delivery_live LEFT JOIN event e ON e.tenant = d.tenant AND e.id = d.event \
    WHERE d.state = 0 AND d.endpoint = ?1 AND d.due_at <= ?2 \
    UNION ALL \
    SELECT d.tenant, d.id, d.endpoint, d.counted, d.interrupted, d.began_at, d.token, \
    d.generation, d.revision, d.attempts, d.began_at, e.expires_at \
    FROM delivery d INDEXED BY delivery_age LEFT JOIN event e ON e.tenant = d.tenant AND e.id = d.event \
    WHERE d.state = 0 AND d.due_at > d.began_at AND d.endpoint = ?1 AND d.began_at <= ?2 AND d.due_at > ?2 LIMIT ?3";

impl Verb for Outlived {
    type Done = Vec<Lease>;

    fn needs(&self) -> Needs {
        Needs::None
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Vec<Lease>, Fault> {
        let mut over = Vec::new();
        let mut outlived = w.connection.prepare_cached(OUTLIVED)?;
        for (endpoint, began_by) in &self.began_by {
            let limit = i64::try_from(self.limit.saturating_sub(over.len())).unwrap_or(i64::MAX);
            over_rows(outlived.query((endpoint.0, began_by.as_millis(), limit))?, self.now, &mut over)?;
        }
        begin_all(w, &mut over, self.now)?;
        Ok(over)
    }
}

fn over_rows(mut rows: rusqlite::Rows<'_>, now: Timestamp, into: &mut Vec<Lease>) -> Result<(), Fault> {
    while let Some(row) = rows.next()? {
        into.push(taken(row, now.plus(RESCUE_LEASE))?);
    }
    Ok(())
}

/// Each gets the attempt that says that its time is over.
fn begin_all(w: &mut Writer<'_>, over: &mut [Lease], now: Timestamp) -> Result<(), Fault> {
    for lease in over {
        lease.number = lease.number.saturating_add(1);
        lease.started_at = now;
        w.begin(lease, None)?;
    }
    Ok(())
}

impl Writer<'_> {
    /// Pending work is under way from here on: by us, or by a consumer for a time.
    pub(super) fn begin(&mut self, lease: &Lease, leased_for: Option<Duration>) -> Result<(), Fault> {
        self.sql.start.execute((
            lease.tenant.0,
            lease.delivery.to_bytes(),
            lease.until.as_millis(),
            super::codec::int(lease.token),
            lease.number,
            lease.started_at.as_millis(),
            leased_for.map(super::settle::millis),
        ))?;
        self.effects.pending -= 1;
        self.effects.in_flight += 1;
        self.effects.starts += 1;
        Ok(())
    }
}
