//! Order per key. The deliveries of an endpoint that have the same key stand in a line, by their sequence; only the
//! first has its due time, the others are [`HELD`], where no claim looks. Whoever takes a delivery to its end takes it
//! out of its line in the same transaction, and the next one's time comes.

use super::SqliteLedger;
use super::codec::int;
use super::fault::Fault;
use super::writer::{Verb, Writer};
use crate::clock::Timestamp;
use crate::delivery::{DeliveryId, MAX_WAIT, OnDead, Reason};
use crate::ledger::{EndpointKey, LedgerError, OrderingKey, TenantKey};
use rusqlite::{Connection, OptionalExtension as _};
use std::collections::HashSet;
use std::time::Duration;

/// When those behind the first of a line are due.
pub(super) const HELD: Timestamp = Timestamp::MAX;
/// Why a pending delivery waits that is not the first.
pub(super) static HELD_BY_KEY: Reason = Reason::word("held_by_key");

const BATCH_ROWS_MAX: i64 = 1_000;

/// How a delivery leaves its line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leaving {
    /// Nothing more comes of it.
    Ended,
    /// It is a dead letter, which may stay first.
    Dead,
}

/// Where a delivery stands, or stood.
struct Place {
    key: [u8; 16],
    sequence: i64,
}

/// Endpoints that have, or had since the start, deliveries in lines: only theirs are looked up.
pub(super) fn endpoints_with_lines(connection: &Connection) -> Result<HashSet<EndpointKey>, Fault> {
    let sql = "SELECT id FROM endpoint p WHERE EXISTS (SELECT 1 FROM ordered WHERE endpoint = p.id)";
    let mut statement = connection.prepare(sql)?;
    let found = statement.query_map([], |row| row.get(0).map(EndpointKey))?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}

impl Writer<'_> {
    /// A delivery that is about to be inserted takes the last place. Gives when it is due: at `later` or now as the
    /// first, else [`HELD`].
    pub(super) fn line_up(
        &mut self,
        (tenant, delivery): (TenantKey, DeliveryId),
        (endpoint, sequence): (EndpointKey, u64),
        order: &OrderingKey,
        later: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<Timestamp, Fault> {
        self.lines.insert(endpoint);
        let place = Place { key: order.digest, sequence: int(sequence) };
        let behind = self.has_before(endpoint, &place)?;
        self.connection
            .prepare_cached(
                "INSERT INTO ordered (endpoint, key, sequence, tenant, delivery, due_at, holds) \
                 VALUES (?, ?, ?, ?, ?, ?, ?)",
            )?
            .execute((
                endpoint.0,
                place.key,
                place.sequence,
                tenant.0,
                delivery.to_bytes(),
                later.map(Timestamp::as_millis),
                order.on_dead == OnDead::Hold,
            ))?;
        Ok(if behind { HELD } else { later.unwrap_or(now) })
    }

    /// The row of a delivery that has lined up says so.
    pub(super) fn mark_ordered(
        &self,
        (tenant, delivery): (TenantKey, DeliveryId),
        order: &OrderingKey,
        due: Timestamp,
    ) -> Result<(), Fault> {
        let reason = (due == HELD).then(|| HELD_BY_KEY.as_str());
        self.connection
            .prepare_cached("UPDATE delivery SET ordering = ?3, reason = ?4 WHERE tenant = ?1 AND id = ?2")?
            .execute((tenant.0, delivery.to_bytes(), order.digest, reason))?;
        Ok(())
    }

    /// Whether another one of its line goes before it.
    pub(super) fn is_held(
        &self,
        tenant: TenantKey,
        delivery: DeliveryId,
        endpoint: EndpointKey,
    ) -> Result<bool, Fault> {
        match self.place(tenant, delivery, endpoint)? {
            Some(place) if self.stands(endpoint, &place)? => self.has_before(endpoint, &place),
            Some(_) | None => Ok(false),
        }
    }

    /// A dead letter that was made pending and due at `now`: first in its line it goes on, behind others it waits, and
    /// if it has left the line, it is sent out of order. Gives when it is due.
    pub(super) fn rejoin(
        &self,
        tenant: TenantKey,
        delivery: DeliveryId,
        endpoint: EndpointKey,
        now: Timestamp,
    ) -> Result<Timestamp, Fault> {
        let Some(place) = self.place(tenant, delivery, endpoint)? else { return Ok(now) };
        let id = delivery.to_bytes();
        if !self.stands(endpoint, &place)? {
            self.connection
                .prepare_cached("UPDATE delivery SET out_of_order = 1 WHERE tenant = ? AND id = ?")?
                .execute((tenant.0, id))?;
            return Ok(now);
        }
        if !self.has_before(endpoint, &place)? {
            return Ok(now);
        }
        self.connection
            .prepare_cached("UPDATE delivery SET due_at = ?3, reason = ?4 WHERE tenant = ?1 AND id = ?2")?
            .execute((tenant.0, id, HELD.as_millis(), HELD_BY_KEY.as_str()))?;
        Ok(HELD)
    }

    /// A delivery is over with: out of its line, and if it was the first, the next one's time comes. A dead letter that
    /// holds its key stays.
    pub(super) fn leave_line(
        &mut self,
        tenant: TenantKey,
        delivery: DeliveryId,
        endpoint: EndpointKey,
        leaving: Leaving,
        now: Timestamp,
    ) -> Result<(), Fault> {
        let Some(Place { key, sequence }) = self.place(tenant, delivery, endpoint)? else { return Ok(()) };
        let left = self
            .connection
            .prepare_cached(
                "DELETE FROM ordered WHERE endpoint = ? AND key = ? AND sequence = ? AND (holds = 0 OR ? = 0)",
            )?
            .execute((endpoint.0, key, sequence, leaving == Leaving::Dead))?;
        if left == 0 {
            return Ok(());
        }
        let first: Option<(i64, u32, [u8; 16], Option<i64>)> = self
            .connection
            .prepare_cached(
                "SELECT sequence, tenant, delivery, due_at FROM ordered WHERE endpoint = ? AND key = ? \
                 ORDER BY sequence LIMIT 1",
            )?
            .query_row((endpoint.0, key), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
            .optional()?;
        let Some((_, tenant, next, later)) = first.filter(|(at, ..)| *at > sequence) else { return Ok(()) };
        let due = later.map_or(now, |at| now.max(Timestamp::from_millis(at)));
        // One that is being ended, or dead, becomes the first as it is.
        let moved = self
            .connection
            .prepare_cached(
                "UPDATE delivery SET due_at = ?3, reason = NULL \
                 WHERE tenant = ?1 AND id = ?2 AND state = 0 AND due_at = ?4",
            )?
            .execute((tenant, next, due.as_millis(), HELD.as_millis()))?;
        if moved > 0 {
            self.wake(endpoint, due, now);
        }
        Ok(())
    }

    /// `None`: the delivery has no key.
    fn place(&self, tenant: TenantKey, delivery: DeliveryId, endpoint: EndpointKey) -> Result<Option<Place>, Fault> {
        if !self.lines.contains(&endpoint) {
            return Ok(None);
        }
        let place = self
            .connection
            .prepare_cached(
                "SELECT ordering, sequence FROM delivery WHERE tenant = ? AND id = ? AND ordering IS NOT NULL",
            )?
            .query_row((tenant.0, delivery.to_bytes()), |row| Ok(Place { key: row.get(0)?, sequence: row.get(1)? }))
            .optional()?;
        Ok(place)
    }

    fn stands(&self, endpoint: EndpointKey, place: &Place) -> Result<bool, Fault> {
        let sql = "SELECT EXISTS (SELECT 1 FROM ordered WHERE endpoint = ? AND key = ? AND sequence = ?)";
        self.asked(sql, endpoint, place)
    }

    fn has_before(&self, endpoint: EndpointKey, place: &Place) -> Result<bool, Fault> {
        let sql = "SELECT EXISTS (SELECT 1 FROM ordered WHERE endpoint = ? AND key = ? AND sequence < ?)";
        self.asked(sql, endpoint, place)
    }

    fn asked(&self, sql: &str, endpoint: EndpointKey, place: &Place) -> Result<bool, Fault> {
        let values = (endpoint.0, place.key, place.sequence);
        Ok(self.connection.prepare_cached(sql)?.query_row(values, |row| row.get(0))?)
    }
}

/// Of those in an endpoint's lines that are not to be sent before a time: after the wall clock was set, that time is at
/// most the longest wait away, or the one that the event asked for.
struct BringLinesForward {
    endpoint: EndpointKey,
    latest: Timestamp,
    now: Timestamp,
}

impl Verb for BringLinesForward {
    /// Whether there may be more.
    type Done = bool;

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<bool, Fault> {
        if !w.lines.contains(&self.endpoint) {
            return Ok(false);
        }
        let moved = w
            .connection
            .prepare_cached(
                "UPDATE ordered SET due_at = late.due_at FROM (\
                 SELECT o.endpoint, o.key, o.sequence, \
                 max(?2, ?3 + min(max(coalesce(e.deliver_at - e.accepted_at, 0), 0), ?4)) AS due_at \
                 FROM ordered o INDEXED BY ordered_later \
                 JOIN delivery d ON d.tenant = o.tenant AND d.id = o.delivery \
                 JOIN event e ON e.tenant = d.tenant AND e.id = d.event \
                 WHERE o.endpoint = ?1 AND o.due_at > ?2 AND o.due_at > \
                 ?3 + min(max(coalesce(e.deliver_at - e.accepted_at, 0), 0), ?4) LIMIT ?5) AS late \
                 WHERE ordered.endpoint = late.endpoint AND ordered.key = late.key \
                 AND ordered.sequence = late.sequence",
            )?
            .execute((
                self.endpoint.0,
                self.latest.as_millis(),
                self.now.as_millis(),
                i64::try_from(MAX_WAIT.as_millis()).unwrap_or(i64::MAX),
                BATCH_ROWS_MAX,
            ))?;
        Ok(i64::try_from(moved).unwrap_or(i64::MAX) == BATCH_ROWS_MAX)
    }
}

impl SqliteLedger {
    pub(super) async fn bring_lines_forward(
        &self,
        endpoint: EndpointKey,
        longest: Duration,
        now: Timestamp,
    ) -> Result<(), LedgerError> {
        while self.ask(BringLinesForward { endpoint, latest: now.plus(longest), now }, 0).await? {}
        Ok(())
    }
}
