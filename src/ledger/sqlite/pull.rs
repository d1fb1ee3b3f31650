//! Leases of consumers: given against what is due, found again by their receipts, prolonged, and put right after the
//! clock was set.

use super::SqliteLedger;
use super::anchor::BATCH_ROWS_MAX;
use super::births::Needs;
use super::claim::{Dealt, Leased, due_rows, eligible_at};
use super::codec::{count, int, state_of, time, time_opt};
use super::fault::Fault;
use super::ordering::HELD;
use super::settle::millis;
use super::writer::{Verb, Writer};
use crate::clock::Timestamp;
use crate::delivery::{DeliveryState, EndpointStatus, History};
use crate::ledger::{
    Consume, Consumed, Ended, EndpointKey, Extension, Handed, Held, Lapsed, Lease, LedgerError, Pull, Receipt, Strayed,
    TenantKey,
};
use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _};
use std::collections::BTreeMap;
use std::sync::Arc;

#[async_trait]
impl Pull for SqliteLedger {
    async fn consume(&self, consume: Consume, now: Timestamp) -> Result<Consumed, LedgerError> {
        let (status, Dealt { leased, next_due }) = self.ask(ConsumeDue { consume, now }, 0).await?;
        let read = self.contents_of(leased, now).await?;
        let items = read.into_iter().map(|(leased, event)| Handed {
            lease: leased.lease,
            sequence: leased.sequence,
            idempotency_key: leased.idempotency_key(&event).into(),
            event: Arc::new(event),
        });
        Ok(Consumed { items: items.collect(), status, next_due: next_due.into_values().next() })
    }

    async fn held(
        &self,
        tenant: TenantKey,
        endpoint: EndpointKey,
        receipts: Vec<Receipt>,
    ) -> Result<Vec<Result<Held, Lapsed>>, LedgerError> {
        let read = move |c: &Connection| -> Result<Vec<Result<Held, Lapsed>>, Fault> {
            receipts.iter().map(|receipt| held(c, tenant, endpoint, *receipt)).collect()
        };
        // A consumer's lease is never a birth: its delivery has a row.
        self.read_contents(read).await
    }

    async fn extend(
        &self,
        tenant: TenantKey,
        endpoint: EndpointKey,
        extensions: Vec<Extension>,
    ) -> Result<Vec<bool>, LedgerError> {
        self.ask(Extend { tenant, endpoint, extensions }, 0).await
    }

    async fn renew_consumers(&self, which: Strayed, now: Timestamp) -> Result<u64, LedgerError> {
        let mut moved = 0;
        loop {
            let found = self.ask(RenewConsumers { which, now }, 0).await?;
            moved += found as u64;
            if found < BATCH_ROWS_MAX {
                return Ok(moved);
            }
        }
    }
}

struct ConsumeDue {
    consume: Consume,
    now: Timestamp,
}

impl Verb for ConsumeDue {
    type Done = (EndpointStatus, Dealt);

    fn needs(&self) -> Needs {
        Needs::None
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Self::Done, Fault> {
        let Consume { tenant, endpoint, max, lease_for, bytes_max } = self.consume;
        let known = w.endpoints.get(&endpoint).filter(|known| known.tenant == tenant);
        let Some(status) = known.map(|known| known.status.clone()) else {
            let text = format!("endpoint {} is not declared for this tenant", endpoint.0);
            return Err(Fault::Refused(LedgerError::Unavailable(text)));
        };
        let mut leased = Vec::new();
        let status = if status.is_open(self.now) {
            due_rows(w, endpoint, max, self.now, &mut leased)?;
            let fitting = fitting(w.connection, &leased, bytes_max)?;
            leased.truncate(fitting);
            for leased in &mut leased {
                leased.lease.until = self.now.plus(lease_for);
                w.begin(&leased.lease, Some(lease_for))?;
            }
            EndpointStatus::Enabled
        } else {
            status
        };
        let first: Option<i64> = w.sql.next_due.query_row((endpoint.0, HELD.as_millis()), |row| row.get(0))?;
        let next_due = first.map(|due| (endpoint, Timestamp::from_millis(due)));
        Ok((status, Dealt { leased, next_due: BTreeMap::from_iter(next_due) }))
    }
}

/// How many of them may be read together: at least one.
fn fitting(connection: &Connection, leased: &[Leased], bytes_max: u64) -> Result<usize, Fault> {
    // Of a blob, the length is known without reading it.
    let mut length = connection.prepare_cached("SELECT length(content) FROM payload WHERE id = ?")?;
    let mut bytes = 0;
    for (at, one) in leased.iter().enumerate() {
        let payload = one.head.as_ref().and_then(|head| head.payload);
        if let Some(payload) = payload {
            bytes += length.query_row([payload], |row| row.get(0)).optional()?.map_or(0, count);
        }
        if bytes > bytes_max && at > 0 {
            return Ok(at);
        }
    }
    Ok(leased.len())
}

fn held(
    connection: &Connection,
    tenant: TenantKey,
    endpoint: EndpointKey,
    receipt: Receipt,
) -> Result<Result<Held, Lapsed>, Fault> {
    let id = receipt.delivery.to_bytes();
    let mut find = connection.prepare_cached(
        "SELECT d.state, d.token, d.leased_for IS NOT NULL, d.due_at, d.generation, d.revision, d.attempts, \
         d.started_at, d.counted, d.interrupted, d.began_at, e.expires_at, e.accepted_at, e.deliver_at \
         FROM delivery d JOIN event e ON e.tenant = d.tenant AND e.id = d.event \
         WHERE d.tenant = ? AND d.id = ? AND d.endpoint = ?",
    )?;
    let mut rows = find.query((tenant.0, id, endpoint.0))?;
    let Some(row) = rows.next()? else { return Ok(Err(Lapsed::Unknown)) };
    let state = state_of(row.get(0)?)?;
    let is_consumers: bool = row.get(2)?;
    if state == DeliveryState::InFlight && is_consumers && count(row.get(1)?) == receipt.token {
        let (generation, began_at) = (row.get(4)?, time(row, 10)?);
        let lease = Lease {
            tenant,
            delivery: receipt.delivery,
            endpoint,
            token: receipt.token,
            until: time(row, 3)?,
            generation,
            revision: row.get(5)?,
            number: row.get(6)?,
            started_at: time(row, 7)?,
            eligible_at: eligible_at(generation, began_at, time_opt(row, 13)?),
            history: History {
                counted: row.get::<_, u32>(8)?.saturating_add(1),
                interrupted_before: row.get(9)?,
                began_at,
                expires_at: time_opt(row, 11)?,
            },
        };
        return Ok(Ok(Held { lease, accepted_at: time(row, 12)? }));
    }
    // Whoever takes a lease over settles it under another token.
    let ended = connection
        .prepare_cached("SELECT outcome, disposition FROM attempt WHERE tenant = ? AND delivery = ? AND token = ?")?
        .query_row((tenant.0, id, int(receipt.token)), |row| {
            Ok(Ended { outcome: row.get(0)?, disposition: row.get(1)? })
        })
        .optional()?;
    Ok(Err(Lapsed::Over { delivery: receipt.delivery, state, ended }))
}

struct Extend {
    tenant: TenantKey,
    endpoint: EndpointKey,
    extensions: Vec<Extension>,
}

impl Verb for Extend {
    type Done = Vec<bool>;

    fn needs(&self) -> Needs {
        Needs::None
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Vec<bool>, Fault> {
        let mut extend = w.connection.prepare_cached(
            "UPDATE delivery SET due_at = ?5, leased_for = ?6 \
             WHERE tenant = ?1 AND id = ?2 AND endpoint = ?3 AND state = 1 AND token = ?4 AND leased_for IS NOT NULL",
        )?;
        let mut all = Vec::with_capacity(self.extensions.len());
        for Extension { receipt, lease_for, until } in &self.extensions {
            let found = extend.execute((
                self.tenant.0,
                receipt.delivery.to_bytes(),
                self.endpoint.0,
                int(receipt.token),
                until.as_millis(),
                millis(*lease_for),
            ))?;
            all.push(found > 0);
        }
        Ok(all)
    }
}

struct RenewConsumers {
    which: Strayed,
    now: Timestamp,
}

impl Verb for RenewConsumers {
    type Done = usize;

    fn needs(&self) -> Needs {
        Needs::None
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<usize, Fault> {
        let strayed = match self.which {
            Strayed::TooLong => "due_at > ?1 + leased_for",
            Strayed::All => "due_at <> ?1 + leased_for",
        };
        let find = format!(
            "SELECT tenant, id FROM delivery INDEXED BY delivery_live \
             WHERE state = 1 AND due_at IS NOT NULL AND leased_for IS NOT NULL AND {strayed} LIMIT ?2"
        );
        let now = self.now.as_millis();
        let mut find = w.connection.prepare_cached(&find)?;
        let found =
            find.query_map((now, int(BATCH_ROWS_MAX as u64)), |row| Ok((row.get(0)?, row.get::<_, [u8; 16]>(1)?)))?;
        let held: Vec<(u32, [u8; 16])> = found.collect::<rusqlite::Result<_>>()?;
        let mut renew = w
            .connection
            .prepare_cached("UPDATE delivery SET due_at = ? + leased_for WHERE tenant = ? AND id = ? AND state = 1")?;
        for (tenant, id) in &held {
            renew.execute((now, tenant, id))?;
        }
        Ok(held.len())
    }
}
