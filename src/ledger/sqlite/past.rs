//! Attempts with all that was kept of them, read row by row within a bound of bytes.

use super::SqliteLedger;
use super::claim::idempotency_key;
use super::codec::{count, state_code, time};
use super::fault::Fault;
use super::keyring::{Place, TenantCipher};
use super::lists::{Query, id_floor};
use super::queue::load_content;
use super::settle::read_detail;
use crate::delivery::{DeliveryId, EventId, PluginVersionId};
use crate::ledger::{
    EndpointKey, LedgerError, Past, PastAttempt, PastDetail, PastEvent, PastFilter, PastPage, PastPlace, PastRoom,
    TenantKey,
};
use async_trait::async_trait;
use rusqlite::types::Value;
use rusqlite::{Connection, Row, params_from_iter};
use std::sync::Arc;
use std::time::Duration;

const COLUMNS: &str = "a.delivery, a.number, d.endpoint, a.started_at, a.duration_ms, a.outcome, a.status, a.verdict, \
    a.reason, a.decided_by, a.disposition, a.ambiguous, a.plugin_version, a.plugin_us, d.reference, d.event, d.origin, \
    s.name, e.type, e.content_type, e.key, e.accepted_at, a.token, a.detail, a.revision, \
    CASE a.revision WHEN 1 THEN e.payload ELSE (SELECT r.payload FROM revision r \
    WHERE r.tenant = a.tenant AND r.delivery = a.delivery AND r.revision = a.revision) END, \
    e.idempotency_key";

/// From the attempts, which lie in the order that is wanted.
const TABLES: &str = "attempt a CROSS JOIN delivery d ON d.tenant = a.tenant AND d.id = a.delivery \
    CROSS JOIN event e ON e.tenant = d.tenant AND e.id = d.event LEFT JOIN source s ON s.id = e.source";

fn query(select: &str, tenant: TenantKey, filter: &PastFilter, from: Option<PastPlace>) -> Query {
    let mut query = Query::new(&format!("SELECT {select} FROM {TABLES} WHERE a.tenant = ?"));
    query.values.push(i64::from(tenant.0).into());
    if let Some(PastPlace { delivery, number }) = from {
        query.and("(a.delivery, a.number) < (?,", Query::blob(delivery.to_bytes()));
        query.sql.push_str(" ?)");
        query.values.push(i64::from(number).into());
    }
    if let Some(since) = filter.since {
        query.and("a.delivery >= ?", Query::blob(id_floor(since)));
        query.and("e.accepted_at >= ?", since.as_millis());
    }
    query.and_opt("a.delivery = ?", filter.delivery.map(|id| Query::blob(id.to_bytes())));
    // Handed back: nothing was sent and nobody asked, or the plugin could not be called.
    query.sql.push_str(" AND a.disposition <> 'released' AND d.endpoint IN (");
    for (n, endpoint) in filter.endpoints.iter().enumerate() {
        query.sql.push_str(if n == 0 { "?" } else { ", ?" });
        query.values.push(Value::from(i64::from(endpoint.0)));
    }
    query.sql.push(')');
    query.and_opt("d.state = ?", filter.state.map(state_code));
    query.and_opt("a.verdict = ?", filter.verdict.clone());
    query.and_opt("a.reason = ?", filter.reason.clone());
    query.and_opt("a.status = ?", filter.status.map(i64::from));
    if filter.by_plugin {
        query.sql.push_str(" AND a.plugin_version IS NOT NULL");
    }
    query
}

fn read(
    connection: &Connection,
    cipher: Option<&TenantCipher>,
    tenant: TenantKey,
    filter: &PastFilter,
    from: Option<PastPlace>,
    room: PastRoom,
) -> Result<PastPage, Fault> {
    let mut query = query(COLUMNS, tenant, filter, from);
    query.sql.push_str(" ORDER BY a.delivery DESC, a.number DESC");
    let mut statement = connection.prepare_cached(&query.sql)?;
    let mut rows = statement.query(params_from_iter(&query.values))?;
    let most = usize::try_from(room.attempts).unwrap_or(usize::MAX);
    let (mut page, mut held) = (PastPage::default(), 0usize);
    while let Some(row) = rows.next()? {
        if page.attempts.len() >= most || held >= room.bytes {
            page.more = true;
            break;
        }
        let attempt = attempt(connection, cipher, room.payloads, row)?;
        held = held.saturating_add(weight(&attempt));
        page.attempts.push(attempt);
    }
    Ok(page)
}

fn weight(attempt: &PastAttempt) -> usize {
    let kept = attempt.kept.as_ref();
    let request = kept.and_then(|kept| kept.request.as_ref()?.body.whole()).map_or(0, bytes::Bytes::len);
    let response = kept.and_then(|kept| kept.response.as_ref()).map_or(0, |r| r.body.len());
    attempt.event.body.as_ref().map_or(0, bytes::Bytes::len) + request + response + 1024
}

fn attempt(
    connection: &Connection,
    cipher: Option<&TenantCipher>,
    payloads: bool,
    row: &Row<'_>,
) -> Result<PastAttempt, Fault> {
    let delivery = DeliveryId::from_bytes(row.get(0)?);
    let event = EventId::from_bytes(row.get(15)?);
    let key: Option<String> = row.get(20)?;
    let source: Option<String> = row.get(17)?;
    let disposition: String = row.get(10)?;
    let (id, event_id) = (delivery.to_bytes(), event.to_bytes());
    let kept = match (row.get::<_, Option<Vec<u8>>>(23)?, cipher) {
        (Some(sealed), Some(cipher)) => {
            let opened = cipher.open(Place::AttemptDetail(&id, count(row.get(22)?)), &sealed);
            opened.ok().and_then(read_detail)
        }
        (Some(_) | None, _) => None,
    };
    let place = match row.get(24)? {
        1 => Place::EventContent(&event_id),
        revision => Place::RevisionContent(&id, revision),
    };
    let body = match (row.get::<_, Option<i64>>(25)?.filter(|_| payloads), cipher) {
        (Some(payload), Some(cipher)) => load_content(connection, cipher, payload, place)?.map(|(_, body)| body),
        (Some(_) | None, _) => None,
    };
    Ok(PastAttempt {
        delivery,
        number: row.get(1)?,
        endpoint: EndpointKey(row.get(2)?),
        started_at: time(row, 3)?,
        duration: Duration::from_millis(count(row.get(4)?)),
        outcome: row.get(5)?,
        status: row.get(6)?,
        verdict: row.get(7)?,
        reason: row.get(8)?,
        decided_by: row.get(9)?,
        ambiguous: row.get(11)?,
        plugin_version: row.get::<_, Option<[u8; 16]>>(12)?.map(PluginVersionId::from_bytes),
        plugin_took: Duration::from_micros(row.get::<_, Option<i64>>(13)?.map_or(0, count)),
        // A delivery is delivered once, and by its last attempt.
        reference: row.get::<_, Option<String>>(14)?.filter(|_| disposition == "delivered"),
        disposition,
        idempotency_key: idempotency_key(
            row.get::<_, Option<String>>(26)?.as_deref().or(key.as_deref()),
            event,
            row.get(16)?,
        ),
        event: PastEvent {
            id: event,
            source: source.map(|s| s.parse().map_err(|_| Fault::damaged("a name that is none"))).transpose()?,
            event_type: row.get(18)?,
            content_type: row.get(19)?,
            key,
            accepted_at: time(row, 21)?,
            body,
        },
        kept: kept.map(|kept| PastDetail { request: kept.request, response: kept.response, detail: kept.detail }),
    })
}

#[async_trait]
impl Past for SqliteLedger {
    async fn past_attempts(
        &self,
        tenant: TenantKey,
        filter: &PastFilter,
        from: Option<PastPlace>,
        room: PastRoom,
    ) -> Result<PastPage, LedgerError> {
        let (filter, shared) = (filter.clone(), Arc::clone(&self.shared));
        let work = move |c: &Connection| {
            let cipher = shared.keyring.tenant(tenant);
            read(c, cipher.as_deref(), tenant, &filter, from, room)
        };
        self.read(work).await
    }

    async fn count_past(&self, tenant: TenantKey, filter: &PastFilter, max: u32) -> Result<u32, LedgerError> {
        let filter = filter.clone();
        let work = move |c: &Connection| {
            let mut query = query("1", tenant, &filter, None);
            query.sql = format!("SELECT count(*) FROM ({} LIMIT ?)", query.sql);
            query.values.push(i64::from(max).into());
            Ok(c.prepare_cached(&query.sql)?.query_row(params_from_iter(&query.values), |row| row.get(0))?)
        };
        self.read(work).await
    }
}
