//! Leases and due times after the wall clock was set. A reader finds what is due too late, the writer looks again and
//! moves it.

use super::SqliteLedger;
use super::codec::int;
use super::fault::Fault;
use super::ordering::HELD;
use super::writer::{Verb, Writer};
use crate::clock::Timestamp;
use crate::delivery::MAX_WAIT;
use crate::ledger::{EndpointKey, LedgerError};
use rusqlite::Connection;
use std::time::Duration;

pub(super) const BATCH_ROWS_MAX: usize = 1_000;

/// A place in the order of an endpoint's pending work.
#[derive(Clone, Copy)]
struct Place {
    due_at: i64,
    tenant: u32,
    id: [u8; 16],
}

/// A pending delivery that is due too late.
struct Late {
    at: Place,
    due: Timestamp,
}

/// One step through an endpoint's work: what of it is to move, and where to go on.
struct Step {
    late: Vec<Late>,
    next: Option<Place>,
}

/// A delivery's own wait is what its last attempt's decision gave it; before any attempt, what its event asked for.
fn step(
    connection: &Connection,
    endpoint: EndpointKey,
    latest: Timestamp,
    now: Timestamp,
    from: Place,
) -> Result<Step, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT d.tenant, d.id, d.due_at, \
         CASE WHEN d.attempts = 0 THEN e.deliver_at - e.accepted_at \
         ELSE a.next_at - a.started_at - a.duration_ms END \
         FROM delivery d INDEXED BY delivery_live \
         LEFT JOIN event e ON e.tenant = d.tenant AND e.id = d.event \
         LEFT JOIN attempt a ON a.tenant = d.tenant AND a.delivery = d.id AND a.number = d.attempts \
         WHERE d.state = 0 AND d.endpoint = ?1 AND d.due_at < ?6 AND (d.due_at, d.tenant, d.id) > (?2, ?3, ?4) \
         ORDER BY d.due_at, d.tenant, d.id LIMIT ?5",
    )?;
    let limit = int(BATCH_ROWS_MAX as u64);
    let mut rows = statement.query((endpoint.0, from.due_at, from.tenant, from.id, limit, HELD.as_millis()))?;
    let (mut late, mut last, mut seen) = (Vec::new(), from, 0);
    while let Some(row) = rows.next()? {
        last = Place { due_at: row.get(2)?, tenant: row.get(0)?, id: row.get(1)? };
        seen += 1;
        let own: Option<i64> = row.get(3)?;
        let own = Duration::from_millis(own.and_then(|millis| u64::try_from(millis).ok()).unwrap_or(0));
        let due = latest.max(now.plus(own.min(MAX_WAIT)));
        if due.as_millis() < last.due_at {
            late.push(Late { at: last, due });
        }
    }
    Ok(Step { late, next: (seen == BATCH_ROWS_MAX).then_some(last) })
}

struct BringForward {
    endpoint: EndpointKey,
    late: Vec<Late>,
    now: Timestamp,
}

impl Verb for BringForward {
    type Done = u64;

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<u64, Fault> {
        let mut bring = w.connection.prepare_cached(
            "UPDATE delivery SET due_at = ?4 WHERE tenant = ?1 AND id = ?2 AND state = 0 AND due_at = ?3",
        )?;
        let mut moved = 0;
        for Late { at, due } in &self.late {
            let found = bring.execute((at.tenant, at.id, at.due_at, due.as_millis()))?;
            if found > 0 {
                moved += 1;
                w.wake(self.endpoint, *due, self.now);
            }
        }
        Ok(moved)
    }
}

struct RenewLeases {
    until: Timestamp,
}

impl Verb for RenewLeases {
    /// Whether there may be more.
    type Done = bool;

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<bool, Fault> {
        let find = "SELECT tenant, id FROM delivery INDEXED BY delivery_live \
                    WHERE state = 1 AND due_at <> ? AND leased_for IS NULL LIMIT ?";
        let mut find = w.connection.prepare_cached(find)?;
        let until = self.until.as_millis();
        let found = find.query_map((until, int(BATCH_ROWS_MAX as u64)), |row| Ok((row.get(0)?, row.get(1)?)))?;
        let held: Vec<(u32, [u8; 16])> = found.collect::<rusqlite::Result<_>>()?;
        let mut renew =
            w.connection.prepare_cached("UPDATE delivery SET due_at = ? WHERE tenant = ? AND id = ? AND state = 1")?;
        for (tenant, id) in &held {
            renew.execute((until, tenant, id))?;
        }
        Ok(held.len() == BATCH_ROWS_MAX)
    }
}

impl SqliteLedger {
    pub(super) async fn renew_leases(&self, until: Timestamp) -> Result<(), LedgerError> {
        while self.ask(RenewLeases { until }, 0).await? {}
        Ok(())
    }

    /// Gives how many deliveries are due earlier.
    pub(super) async fn bring_forward(
        &self,
        endpoint: EndpointKey,
        longest: Duration,
        now: Timestamp,
    ) -> Result<u64, LedgerError> {
        let latest = now.plus(longest);
        let mut from = Place { due_at: latest.as_millis(), tenant: u32::MAX, id: [0xff; 16] };
        let mut moved = 0;
        loop {
            let Step { late, next } = self.read(move |c| step(c, endpoint, latest, now, from)).await?;
            if !late.is_empty() {
                moved += self.ask(BringForward { endpoint, late, now }, 0).await?;
            }
            match next {
                Some(next) => from = next,
                None => return Ok(moved),
            }
        }
    }
}
