//! The rejection log's rows.

use super::SqliteLedger;
use super::births::Needs;
use super::codec::{count, int, time};
use super::fault::Fault;
use super::lists::{Query, collect, id_floor, name};
use super::records::{LIMIT_MAX, List, cursor, page_of, page_start};
use super::writer::{Verb, Writer};
use crate::clock::Timestamp;
use crate::ledger::{
    LedgerError, Page, PageRequest, REJECTION_DETAIL_BYTES_MAX, REJECTIONS_MAX, REJECTIONS_PER_SOURCE_MAX, Rejected,
    RejectionFilter, RejectionRow, Rejections, TenantKey,
};
use async_trait::async_trait;
use rusqlite::{Connection, Row};
use std::collections::BTreeSet;
use std::time::Duration;

/// A batch with its ids.
struct Keep(Vec<([u8; 16], Rejected)>);

impl Verb for Keep {
    type Done = ();

    fn needs(&self) -> Needs {
        Needs::None
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<(), Fault> {
        let mut insert = w.connection.prepare_cached(
            "INSERT INTO rejection (tenant, id, source, at, reason, step, detail, skew_seconds, peer, body_bytes, \
             body_digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?;
        let mut sources = BTreeSet::new();
        for (id, r) in &self.0 {
            sources.insert(r.source);
            let body = r.body.map(|body| (int(body.bytes), body.digest));
            insert.execute((
                r.tenant.0,
                id,
                r.source.0,
                r.at.as_millis(),
                r.reason,
                r.step,
                cut(&r.detail),
                r.skew_seconds,
                r.peer.to_string(),
                body.map(|(bytes, _)| bytes),
                body.map(|(_, digest)| digest),
            ))?;
        }
        let mut over = w.connection.prepare_cached(
            "DELETE FROM rejection WHERE source = ?1 AND id <= \
             (SELECT id FROM rejection WHERE source = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
        )?;
        for source in sources {
            over.execute((source.0, REJECTIONS_PER_SOURCE_MAX))?;
        }
        w.connection
            .prepare_cached(
                "DELETE FROM rejection WHERE id <= (SELECT id FROM rejection ORDER BY id DESC LIMIT 1 OFFSET ?)",
            )?
            .execute([REJECTIONS_MAX])?;
        Ok(())
    }
}

/// The text within its bound.
fn cut(text: &str) -> &str {
    let end = text.floor_char_boundary(REJECTION_DETAIL_BYTES_MAX);
    text.get(..end).unwrap_or_default()
}

fn row(row: &Row<'_>) -> Result<RejectionRow, Fault> {
    Ok(RejectionRow {
        key: row.get(0)?,
        at: time(row, 1)?,
        source: name(row, 2)?,
        reason: row.get(3)?,
        step: row.get(4)?,
        detail: row.get(5)?,
        skew_seconds: row.get(6)?,
        peer: row.get(7)?,
        body_bytes: row.get::<_, Option<i64>>(8)?.map(count),
        body_digest: row.get::<_, Option<Vec<u8>>>(9)?.map(hex::encode),
    })
}

fn list(
    connection: &Connection,
    tenant: TenantKey,
    filter: &RejectionFilter,
    before: [u8; 16],
    limit: u32,
) -> Result<Vec<RejectionRow>, Fault> {
    let mut query = Query::new(
        "SELECT r.id, r.at, s.name, r.reason, r.step, r.detail, r.skew_seconds, r.peer, r.body_bytes, r.body_digest \
         FROM rejection r JOIN source s ON s.id = r.source WHERE r.tenant = ?",
    );
    query.values.push(i64::from(tenant.0).into());
    query.and("r.id < ?", Query::blob(before));
    query.and_opt("s.name = ?", filter.source.as_ref().map(|n| n.as_str().to_owned()));
    query.and_opt("r.reason = ?", filter.reason.clone());
    query.and_opt("r.at >= ?", filter.since.map(Timestamp::as_millis));
    query.and_opt("r.at < ?", filter.until.map(Timestamp::as_millis));
    query.sql.push_str(" ORDER BY r.id DESC LIMIT ?");
    query.values.push(i64::from(limit).into());
    collect(connection, &query, row)
}

/// For each tenant with refused requests that are older than `keep_for`: the id before which they are.
pub(super) fn over(
    connection: &Connection,
    now: Timestamp,
    keep_for: impl Fn(u32) -> Duration,
) -> Result<Vec<(u32, [u8; 16])>, Fault> {
    let mut oldest = connection.prepare_cached("SELECT tenant, min(id) FROM rejection GROUP BY tenant")?;
    let mut rows = oldest.query([])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let (tenant, oldest): (u32, [u8; 16]) = (row.get(0)?, row.get(1)?);
        let before = id_floor(now.minus(keep_for(tenant)));
        if oldest < before {
            found.push((tenant, before));
        }
    }
    Ok(found)
}

/// Gives how many went.
pub(super) fn remove(connection: &Connection, tenant: u32, before: &[u8; 16]) -> Result<u64, Fault> {
    let gone =
        connection.prepare_cached("DELETE FROM rejection WHERE tenant = ? AND id < ?")?.execute((tenant, before))?;
    Ok(gone as u64)
}

#[async_trait]
impl Rejections for SqliteLedger {
    async fn keep_rejections(&self, batch: Vec<Rejected>) -> Result<(), LedgerError> {
        let shared = &self.shared;
        // Where events find no room, what was refused takes none.
        shared.refuse_arrival()?;
        let minted = batch.into_iter().map(|r| (shared.mint.mint(r.at, &*shared.entropy).to_bytes(), r));
        self.ask(Keep(minted.collect()), 0).await
    }

    async fn rejections(
        &self,
        tenant: TenantKey,
        filter: &RejectionFilter,
        page: &PageRequest,
    ) -> Result<Page<RejectionRow>, LedgerError> {
        let (filter, limit) = (filter.clone(), page.limit.clamp(1, LIMIT_MAX));
        let before = page_start(List::Rejections, tenant, page)?;
        let read = move |c: &Connection| list(c, tenant, &filter, before, limit + 1);
        let items = self.read(read).await?;
        Ok(page_of(items, limit, |row| cursor(List::Rejections, tenant, row.key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detail_is_cut_between_characters() {
        let long = "ü".repeat(200);
        assert_eq!(cut(&long).len(), 256);
        assert_eq!(cut("x").len(), 1);
        assert!(cut(&format!("a{long}")).len() == 255);
    }
}
