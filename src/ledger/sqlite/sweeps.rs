//! Dead letters resolved, and pending deliveries cancelled, by filter: a reader finds a batch, the writer looks at each again.

use super::codec::count;
use super::dead::{self, Found, TOP};
use super::fault::Fault;
use super::lists::{DELIVERY_COLUMNS, DELIVERY_JOINS, Query, collect, delivery_query, delivery_row};
use super::manage::{CancelPending, ResolveDead};
use super::writer::{Verb, Writer};
use super::{SqliteLedger, again, bulk};
use crate::clock::Timestamp;
use crate::delivery::{DeliveryId, DeliveryState};
use crate::ledger::{
    BULK_STEP_MAX, Cancelled, DeliveryFilter, DeliveryRow, LedgerError, PurgePlace, ResolveMany, Resolved, Sweeps,
    Swept, TenantKey,
};
use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, params_from_iter};

/// What is pending has an index of its own, which those that are cancelled leave.
fn pending(select: &str, tenant: TenantKey, filter: &DeliveryFilter) -> Query {
    let filter = DeliveryFilter { state: Some(DeliveryState::Pending), ..filter.clone() };
    let from = match &filter.key {
        Some(_) => again::deliveries_of_key(),
        None => format!("delivery d INDEXED BY delivery_live {DELIVERY_JOINS}"),
    };
    let mut query = delivery_query(select, &from, tenant, &filter);
    query.sql.push_str(" AND d.due_at IS NOT NULL");
    query
}

struct Resolving {
    resolve: ResolveMany,
    died_by: Timestamp,
    found: Found,
    now: Timestamp,
}

impl Verb for Resolving {
    type Done = Swept<PurgePlace>;

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Self::Done, Fault> {
        let ResolveMany { tenant, how, note, .. } = &self.resolve;
        let mut done = 0;
        for id in &self.found.letters {
            let meant: Option<bool> = w
                .connection
                .prepare_cached("SELECT finished_at <= ? FROM delivery WHERE tenant = ? AND id = ? AND state = 4")?
                .query_row((self.died_by.as_millis(), tenant.0, id), |row| row.get(0))
                .optional()?;
            if meant != Some(true) {
                continue;
            }
            let delivery = DeliveryId::from_bytes(*id);
            let mut one = ResolveDead { tenant: *tenant, delivery, how: *how, note: note.clone(), now: self.now };
            done += u64::from(one.apply(w)? == Resolved::Done);
        }
        Ok(Swept { done, next: self.found.place(self.died_by) })
    }
}

struct Cancelling {
    tenant: TenantKey,
    found: Vec<[u8; 16]>,
    up_to: DeliveryId,
    now: Timestamp,
}

impl Verb for Cancelling {
    type Done = Swept<DeliveryId>;

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Self::Done, Fault> {
        let mut done = 0;
        for id in &self.found {
            let mut one = CancelPending { tenant: self.tenant, delivery: DeliveryId::from_bytes(*id), now: self.now };
            done += u64::from(one.apply(w)? == Cancelled::Done);
        }
        let more = self.found.len() >= BULK_STEP_MAX as usize;
        Ok(Swept { done, next: more.then_some(self.up_to) })
    }
}

#[async_trait]
impl Sweeps for SqliteLedger {
    async fn resolve_many(
        &self,
        resolve: &ResolveMany,
        from: Option<PurgePlace>,
        now: Timestamp,
    ) -> Result<Swept<PurgePlace>, LedgerError> {
        let (tenant, filter) = (resolve.tenant, resolve.filter.clone());
        let find = move |c: &Connection| -> Result<(Found, Timestamp), Fault> {
            let (died_by, below) = match from {
                Some(place) => (place.died_by, place.below.to_bytes()),
                None => (bulk::newest_death(c, now)?, TOP),
            };
            Ok((dead::find(c, tenant, (&filter, died_by), below, BULK_STEP_MAX)?, died_by))
        };
        let (found, died_by) = self.read(find).await?;
        if found.letters.is_empty() {
            return Ok(Swept { done: 0, next: found.place(died_by) });
        }
        self.ask(Resolving { resolve: resolve.clone(), died_by, found, now }, 0).await
    }

    async fn pending(
        &self,
        tenant: TenantKey,
        filter: &DeliveryFilter,
        samples: u32,
    ) -> Result<(u64, Vec<DeliveryRow>), LedgerError> {
        let filter = filter.clone();
        let read = move |c: &Connection| -> Result<(u64, Vec<DeliveryRow>), Fault> {
            let counted = pending("count(*)", tenant, &filter);
            let mut statement = c.prepare_cached(&counted.sql)?;
            let found = statement.query_row(params_from_iter(&counted.values), |row| row.get(0).map(count))?;
            let mut some = pending(DELIVERY_COLUMNS, tenant, &filter);
            some.sql.push_str(" LIMIT ?");
            some.values.push(i64::from(samples).into());
            Ok((found, collect(c, &some, delivery_row)?))
        };
        self.read(read).await
    }

    async fn cancel_many(
        &self,
        tenant: TenantKey,
        filter: &DeliveryFilter,
        up_to: Option<DeliveryId>,
        now: Timestamp,
    ) -> Result<Swept<DeliveryId>, LedgerError> {
        let filter = filter.clone();
        let find = move |c: &Connection| -> Result<Option<(Vec<[u8; 16]>, DeliveryId)>, Fault> {
            let newest = || -> Result<Option<[u8; 16]>, Fault> {
                let sql = "SELECT max(id) FROM delivery WHERE tenant = ?";
                Ok(c.prepare_cached(sql)?.query_row([tenant.0], |row| row.get(0))?)
            };
            let up_to = match up_to {
                Some(up_to) => Some(up_to),
                None => newest()?.map(DeliveryId::from_bytes),
            };
            let Some(up_to) = up_to else { return Ok(None) };
            let mut query = pending("d.id", tenant, &filter);
            query.and("d.id <= ? LIMIT", Query::blob(up_to.to_bytes()));
            query.sql.push_str(" ?");
            query.values.push(i64::from(BULK_STEP_MAX).into());
            Ok(Some((collect(c, &query, |row| Ok(row.get::<_, [u8; 16]>(0)?))?, up_to)))
        };
        match self.read(find).await? {
            Some((found, up_to)) if !found.is_empty() => self.ask(Cancelling { tenant, found, up_to, now }, 0).await,
            Some(_) | None => Ok(Swept { done: 0, next: None }),
        }
    }
}
