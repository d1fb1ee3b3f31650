//! Retention. Payloads lie in the order of acceptance, so those whose time is over are found from the front; the same holds for
//! the rows of each tenant. A reader finds what looks over, the writer looks again and takes it. What cannot go yet is
//! passed by, and found again on the next round.

use super::fault::Fault;
use super::ordering::Leaving;
use super::writer::{Verb, Writer};
use super::{SqliteLedger, again, answers, coalescing, codec, rejections, stats};
use crate::clock::Timestamp;
use crate::delivery::{DeliveryId, DeliveryState};
use crate::ledger::stats::minutes_from;
use crate::ledger::{EndpointKey, LedgerError, Pruned, Retention, TenantKey};
use rusqlite::{Connection, OptionalExtension as _};
use std::sync::{Mutex, PoisonError};

const BATCH_ROWS_MAX: usize = 1_000;

/// Where the next batch goes on.
#[derive(Default)]
pub(super) struct Cursors(Mutex<Position>);

#[derive(Clone, Copy, Default)]
struct Position {
    /// The last payload that was looked at.
    payload: i64,
    /// The last event that was looked at for removal.
    event: (u32, [u8; 16]),
}

/// Rows whose time is over as a reader saw it.
struct Candidates {
    payloads: Vec<Payload>,
    events: Vec<(u32, [u8; 16])>,
    /// A tenant's refused requests before this id.
    rejections: Vec<(u32, [u8; 16])>,
    figures: Vec<stats::Aged>,
    /// Where to go on; `None`: from the front again.
    next: Position,
    more: bool,
}

struct Payload {
    id: i64,
    tenant: u32,
    event: [u8; 16],
    delivery: Option<[u8; 16]>,
}

fn spans(retention: &Retention, tenant: u32) -> (std::time::Duration, std::time::Duration) {
    let (payloads, rows) =
        retention.tenants.get(&TenantKey(tenant)).copied().unwrap_or((retention.payloads, retention.rows));
    // A row is never removed with its payload still due to be kept.
    (payloads.min(rows), rows)
}

/// When the work behind an event was over; `None`: it is not.
fn over_at(connection: &Connection, tenant: u32, event: &[u8; 16]) -> Result<Option<Timestamp>, Fault> {
    let sql = "SELECT max(e.accepted_at, coalesce(max(d.finished_at), 0)), \
               coalesce(max(d.state IN (0, 1)), 0) \
               FROM event e LEFT JOIN delivery d ON d.tenant = e.tenant AND d.id IN";
    let sql = format!("{sql} ({}) WHERE e.tenant = ? AND e.id = ? GROUP BY e.id", again::OF_ROW);
    let found: Option<(i64, bool)> =
        connection.prepare_cached(&sql)?.query_row((tenant, event), |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    Ok(found.filter(|(_, live)| !live).map(|(at, _)| Timestamp::from_millis(at)))
}

fn find(connection: &Connection, retention: &Retention, now: Timestamp, from: Position) -> Result<Candidates, Fault> {
    let batch = retention.batch_rows_max.clamp(1, BATCH_ROWS_MAX);
    let limit = i64::try_from(batch).unwrap_or(i64::MAX);
    let mut found = Candidates {
        payloads: Vec::new(),
        events: Vec::new(),
        rejections: rejections::over(connection, now, |tenant| spans(retention, tenant).1)?,
        figures: stats::aged(connection, now, |tenant| spans(retention, tenant).1)?,
        next: Position::default(),
        more: false,
    };

    let mut statement = connection.prepare_cached(
        "SELECT p.id, p.tenant, p.event, p.delivery, coalesce(e.accepted_at, 0) FROM payload p \
         LEFT JOIN event e ON e.tenant = p.tenant AND e.id = p.event WHERE p.id > ? ORDER BY p.id LIMIT ?",
    )?;
    let mut rows = statement.query((from.payload, limit))?;
    let mut seen = 0;
    while let Some(row) = rows.next()? {
        seen += 1;
        let payload = Payload { id: row.get(0)?, tenant: row.get(1)?, event: row.get(2)?, delivery: row.get(3)? };
        let accepted_at = codec::time(row, 4)?;
        found.next.payload = payload.id;
        if now.since(accepted_at) < shortest(retention) {
            // From here on all are too young for everybody.
            seen = 0;
            break;
        }
        let over = over_at(connection, payload.tenant, &payload.event)?;
        if over.is_some_and(|at| now.since(at) >= spans(retention, payload.tenant).0) {
            found.payloads.push(payload);
        }
    }
    if seen == batch {
        found.more = true;
    } else {
        found.next.payload = 0;
    }

    let mut statement = connection.prepare_cached(
        "SELECT tenant, id, accepted_at FROM event WHERE (tenant, id) > (?, ?) ORDER BY tenant, id LIMIT ?",
    )?;
    let mut next = from.event;
    let mut left = batch;
    // Each tenant's young events are stepped over at once.
    while left > 0 {
        let mut rows = statement.query((next.0, next.1, i64::try_from(left).unwrap_or(i64::MAX)))?;
        let mut young = None;
        let mut any = false;
        while let Some(row) = rows.next()? {
            any = true;
            left -= 1;
            let (tenant, id, accepted_at) = (row.get(0)?, row.get(1)?, codec::time(row, 2)?);
            next = (tenant, id);
            let keep_for = spans(retention, tenant).1;
            if now.since(accepted_at) < keep_for {
                young = Some(tenant);
                break;
            }
            if over_at(connection, tenant, &id)?.is_some_and(|at| now.since(at) >= keep_for) {
                found.events.push((tenant, id));
            }
        }
        match young {
            Some(tenant) => next = (tenant, [0xff; 16]),
            None if !any => {
                next = Default::default();
                break;
            }
            None => {}
        }
    }
    found.more |= next != Default::default();
    found.next.event = next;
    Ok(found)
}

/// No tenant's payloads go sooner.
fn shortest(retention: &Retention) -> std::time::Duration {
    let own = retention.tenants.values().map(|(payloads, rows)| *payloads.min(rows));
    own.chain([retention.payloads.min(retention.rows)]).min().unwrap_or_default()
}

struct Prune {
    found: Candidates,
    retention: Retention,
    now: Timestamp,
}

impl Verb for Prune {
    type Done = Pruned;

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Pruned, Fault> {
        let mut done = Pruned { more: self.found.more, ..Pruned::default() };
        for payload in &self.found.payloads {
            let over = over_at(w.connection, payload.tenant, &payload.event)?;
            if over.is_some_and(|at| self.now.since(at) >= spans(&self.retention, payload.tenant).0) {
                erase(w.connection, payload)?;
                done.payloads_erased += 1;
            }
        }
        for (tenant, event) in &self.found.events {
            let over = over_at(w.connection, *tenant, event)?;
            if over.is_some_and(|at| self.now.since(at) >= spans(&self.retention, *tenant).1) {
                done.rows_removed += remove(w, *tenant, event, self.now)?;
            }
        }
        for (tenant, before) in &self.found.rejections {
            done.rows_removed += rejections::remove(w.connection, *tenant, before)?;
        }
        // What lay in notes is seen to age from the next batch on. Under traffic there are always notes of this minute.
        done.more |= w.fold_tallies()?.is_some_and(|first| first < minutes_from(self.now));
        for aged in &self.found.figures {
            done.more |= stats::age(w.connection, aged)?;
        }
        let answers = answers::prune(w.connection, self.now, BATCH_ROWS_MAX)?;
        done.rows_removed += answers as u64;
        done.more |= answers == BATCH_ROWS_MAX;
        let ended = coalescing::sweep(w.connection, self.now, self.retention.batch_rows_max.clamp(1, BATCH_ROWS_MAX))?;
        done.rows_removed += ended as u64;
        done.more |= ended >= self.retention.batch_rows_max;
        Ok(done)
    }
}

/// A payload, and what its deliveries' receivers answered to it.
fn erase(connection: &Connection, payload: &Payload) -> Result<(), Fault> {
    connection.prepare_cached("DELETE FROM payload WHERE id = ?")?.execute([payload.id])?;
    match payload.delivery {
        None => {
            connection
                .prepare_cached("UPDATE event SET payload = NULL WHERE tenant = ? AND id = ?")?
                .execute((payload.tenant, payload.event))?;
            connection
                .prepare_cached(&format!(
                    "UPDATE attempt SET detail = NULL WHERE tenant = ?1 AND delivery IN ({})",
                    again::OF_EVENT
                ))?
                .execute((payload.tenant, payload.event))?;
        }
        Some(delivery) => {
            connection
                .prepare_cached("UPDATE delivery SET payload = NULL WHERE tenant = ? AND id = ? AND payload = ?")?
                .execute((payload.tenant, delivery, payload.id))?;
            connection
                .prepare_cached("UPDATE revision SET payload = NULL WHERE tenant = ? AND delivery = ? AND payload = ?")?
                .execute((payload.tenant, delivery, payload.id))?;
            connection
                .prepare_cached("UPDATE attempt SET detail = NULL WHERE tenant = ? AND delivery = ?")?
                .execute((payload.tenant, delivery))?;
        }
    }
    Ok(())
}

/// What one delivery was corrected to, sent and was answered. Gives the payloads that went.
pub(super) fn erase_own(connection: &Connection, tenant: u32, delivery: &[u8; 16]) -> Result<u64, Fault> {
    let corrected = connection
        .prepare_cached(
            "DELETE FROM payload WHERE id IN (SELECT payload FROM revision WHERE tenant = ? AND delivery = ?)",
        )?
        .execute((tenant, delivery))?;
    for sql in [
        "UPDATE revision SET payload = NULL WHERE tenant = ? AND delivery = ?",
        "UPDATE delivery SET payload = NULL WHERE tenant = ? AND id = ? AND payload IS NOT NULL",
        "UPDATE attempt SET detail = NULL WHERE tenant = ? AND delivery = ? AND detail IS NOT NULL",
    ] {
        connection.prepare_cached(sql)?.execute((tenant, delivery))?;
    }
    Ok(corrected as u64)
}

/// What a purged delivery had of its own; with the last delivery of its event that is not purged, the event's payload
/// too. Gives the payloads that went.
pub(super) fn erase_purged(connection: &Connection, tenant: u32, delivery: &[u8; 16]) -> Result<u64, Fault> {
    let corrected = erase_own(connection, tenant, delivery)?;
    let last: Option<(i64, [u8; 16])> = connection
        .prepare_cached(&format!(
            "SELECT e.payload, e.id FROM delivery d JOIN event e ON e.tenant = d.tenant AND e.id = d.event \
             WHERE d.tenant = ? AND d.id = ? AND e.payload IS NOT NULL AND NOT EXISTS \
             (SELECT 1 FROM delivery o WHERE o.tenant = e.tenant AND o.id IN ({}) \
             AND NOT (o.state = 6 AND o.reason = 'purged'))",
            again::OF_ROW
        ))?
        .query_row((tenant, delivery), |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((id, event)) = last else { return Ok(corrected) };
    erase(connection, &Payload { id, tenant, event, delivery: None })?;
    Ok(corrected + 1)
}

/// An event with all that belongs to it. Gives the rows of events and deliveries that went.
fn remove(w: &mut Writer<'_>, tenant: u32, event: &[u8; 16], now: Timestamp) -> Result<u64, Fault> {
    let connection = w.connection;
    let mut own = connection.prepare_cached(&format!(
        "SELECT d.id, d.state, d.endpoint FROM delivery d WHERE d.tenant = ?1 AND d.id IN ({})",
        again::OF_EVENT
    ))?;
    let rows = own.query_map((tenant, event), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let deliveries: Vec<([u8; 16], i64, u32)> = rows.collect::<rusqlite::Result<_>>()?;
    for (delivery, state, endpoint) in &deliveries {
        // A dead one may have held its key.
        let id = DeliveryId::from_bytes(*delivery);
        w.leave_line(TenantKey(tenant), id, EndpointKey(*endpoint), Leaving::Ended, now)?;
        for sql in [
            "DELETE FROM payload WHERE id IN (SELECT payload FROM revision WHERE tenant = ? AND delivery = ?)",
            "DELETE FROM revision WHERE tenant = ? AND delivery = ?",
            "DELETE FROM redrive WHERE tenant = ? AND delivery = ?",
            "DELETE FROM resend WHERE tenant = ? AND delivery = ?",
            "DELETE FROM attempt WHERE tenant = ? AND delivery = ?",
            "DELETE FROM delivery WHERE tenant = ? AND id = ?",
        ] {
            connection.prepare_cached(sql)?.execute((tenant, delivery))?;
        }
        if *state == codec::state_code(DeliveryState::Dead) {
            w.effects.dead -= 1;
            w.effects.dead_removed = true;
        }
    }
    for sql in [
        "DELETE FROM payload WHERE id = (SELECT payload FROM event WHERE tenant = ? AND id = ?)",
        "DELETE FROM event WHERE tenant = ? AND id = ?",
    ] {
        connection.prepare_cached(sql)?.execute((tenant, event))?;
    }
    Ok(1 + deliveries.len() as u64)
}

impl SqliteLedger {
    /// One batch: a reader finds, the writer takes.
    pub(super) async fn prune_batch(&self, retention: &Retention, now: Timestamp) -> Result<Pruned, LedgerError> {
        let from = *self.prune.0.lock().unwrap_or_else(PoisonError::into_inner);
        let retention = retention.clone();
        let reading = retention.clone();
        let found = self.read(move |c| find(c, &reading, now, from)).await?;
        *self.prune.0.lock().unwrap_or_else(PoisonError::into_inner) = found.next;
        self.ask(Prune { found, retention, now }, 0).await
    }
}
