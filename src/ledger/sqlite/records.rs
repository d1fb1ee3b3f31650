//! The read side: every statement is bound to one tenant, and every list ends at its limit.

use super::births::Needs;
use super::codec::{count, status_of, time, time_opt};
use super::fault::Fault;
use super::health;
use super::keyring::{Place, TenantCipher};
use super::lists::{
    DELIVERY_COLUMNS, DELIVERY_JOINS, EVENT_COLUMNS, deliveries, delivery_row, event_row, events, name,
};
use super::queue::load_content;
use super::settle::{Detail, read_detail};
use super::shared::Shared;
use super::writer::{Verb, Writer};
use super::{SqliteLedger, again};
use crate::clock::Timestamp;
use crate::delivery::{AttemptId, DeliveryId, EndpointStatus, EventId, PluginVersionId};
use crate::ledger::{
    AttemptRow, BodyRow, Cursor, DeliveryDetail, DeliveryFilter, DeliveryRow, EndpointHealth, EndpointKey,
    EndpointState, EventFilter, EventRow, Gauges, LedgerError, Page, PageRequest, Records, RevisionRow, TenantKey,
};
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rusqlite::{Connection, OptionalExtension as _, Row};
use std::collections::HashMap;
use std::sync::Arc;

pub(super) const LIMIT_MAX: u32 = 200;

/// Which list a cursor belongs to.
#[derive(Clone, Copy)]
pub(super) enum List {
    Events = 1,
    Deliveries = 2,
    Rejections = 3,
    Operations = 4,
    Alerts = 5,
}

pub(super) fn cursor(list: List, tenant: TenantKey, id: [u8; 16]) -> Cursor {
    let mut bytes = vec![list as u8];
    bytes.extend_from_slice(&id);
    let sum = cursor_sum(&bytes, tenant);
    bytes.extend_from_slice(&sum);
    Cursor(URL_SAFE_NO_PAD.encode(bytes))
}

fn cursor_sum(bytes: &[u8], tenant: TenantKey) -> [u8; 4] {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&tenant.0.to_be_bytes());
    sum.update(bytes);
    sum.finalize().to_be_bytes()
}

/// The id from which a page goes on; past every id when there is no cursor.
pub(super) fn page_start(list: List, tenant: TenantKey, page: &PageRequest) -> Result<[u8; 16], LedgerError> {
    let Some(Cursor(text)) = &page.cursor else { return Ok([0xff; 16]) };
    let read = || -> Option<[u8; 16]> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (body, sum) = bytes.split_at_checked(17)?;
        let ours = sum == cursor_sum(body, tenant) && body.first() == Some(&(list as u8));
        if ours { body.get(1..)?.try_into().ok() } else { None }
    };
    read().ok_or(LedgerError::BadCursor)
}

fn attempts(
    connection: &Connection,
    cipher: Option<&TenantCipher>,
    tenant: TenantKey,
    id: DeliveryId,
) -> Result<Vec<AttemptRow>, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT token, number, generation, revision, started_at, duration_ms, outcome, status, verdict, reason, \
         decided_by, disposition, next_at, clamped_from_ms, ambiguous, plugin_version, plugin_us, log_dropped, \
         detail FROM attempt WHERE tenant = ? AND delivery = ? ORDER BY number",
    )?;
    let mut rows = statement.query((tenant.0, id.to_bytes()))?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        let sealed: Option<Vec<u8>> = row.get(18)?;
        let token = count(row.get(0)?);
        let opened = match sealed {
            None => Some(Detail::default()),
            Some(sealed) => cipher
                .and_then(|c| c.open(Place::AttemptDetail(&id.to_bytes(), token), &sealed).ok())
                .and_then(read_detail),
        };
        // What does not authenticate is not shown; the facts beside it are.
        let detail = opened.unwrap_or_else(|| Detail {
            detail: Some("quarantined: this attempt's details do not authenticate".into()),
            ..Detail::default()
        });
        let (response_headers, body, response_body_truncated) = match detail.response {
            Some(r) => (Some(r.headers), Some(r.body), r.body_truncated),
            None => (None, None, false),
        };
        let (response_body, response_body_base64) = match body.as_deref().map(std::str::from_utf8) {
            None => (None, None),
            Some(Ok(text)) => (Some(text.to_owned()), None),
            Some(Err(_)) => (None, body.as_deref().map(|b| STANDARD.encode(b))),
        };
        let (request_method, request_path) = match detail.request {
            Some(r) => (Some(r.method), r.path_and_query),
            None => (None, None),
        };
        let number = row.get(1)?;
        all.push(AttemptRow {
            id: AttemptId::of(id, number),
            number,
            generation: row.get(2)?,
            revision: row.get(3)?,
            started_at: time(row, 4)?,
            duration_ms: Some(count(row.get(5)?)),
            outcome: row.get(6)?,
            status: row.get(7)?,
            verdict: row.get(8)?,
            reason: row.get(9)?,
            decided_by: row.get(10)?,
            disposition: row.get(11)?,
            next_at: time_opt(row, 12)?,
            clamped_from_ms: row.get::<_, Option<i64>>(13)?.map(count),
            ambiguous: row.get(14)?,
            plugin_version: row.get::<_, Option<[u8; 16]>>(15)?.map(PluginVersionId::from_bytes),
            plugin_ms: row.get::<_, Option<u32>>(16)?.map(|us| f64::from(us) / 1000.0),
            plugin_log: detail.log,
            plugin_log_dropped: row.get(17)?,
            detail: detail.detail,
            response_headers,
            response_body,
            response_body_base64,
            response_body_truncated,
            request_method,
            request_path,
        });
    }
    Ok(all)
}

/// The attempt that is under way, from its delivery's row.
fn open_attempt(connection: &Connection, tenant: TenantKey, id: DeliveryId) -> Result<Option<AttemptRow>, Fault> {
    let read = |row: &Row<'_>| {
        let number = row.get(0)?;
        Ok(AttemptRow {
            id: AttemptId::of(id, number),
            number,
            generation: row.get(1)?,
            revision: row.get(2)?,
            started_at: time(row, 3)?,
            duration_ms: None,
            outcome: None,
            status: None,
            verdict: None,
            reason: None,
            decided_by: None,
            disposition: None,
            next_at: None,
            clamped_from_ms: None,
            ambiguous: false,
            plugin_version: None,
            plugin_ms: None,
            plugin_log: Vec::new(),
            plugin_log_dropped: 0,
            detail: None,
            response_headers: None,
            response_body: None,
            response_body_base64: None,
            response_body_truncated: false,
            request_method: None,
            request_path: None,
        })
    };
    let sql = "SELECT attempts, generation, revision, started_at FROM delivery \
               WHERE tenant = ? AND id = ? AND state = 1";
    Ok(connection.prepare_cached(sql)?.query_row((tenant.0, id.to_bytes()), read).optional()?)
}

fn revisions(connection: &Connection, tenant: TenantKey, id: DeliveryId) -> Result<Vec<RevisionRow>, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT revision, made_at, note, payload IS NULL FROM revision WHERE tenant = ? AND delivery = ? \
         ORDER BY revision",
    )?;
    let rows = statement.query_map((tenant.0, id.to_bytes()), |row| {
        let (revision, made_at) = (row.get(0)?, time_opt(row, 1)?);
        Ok(RevisionRow { revision, made_at, note: row.get(2)?, body_erased: row.get(3)? })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// `payload`: `None` once it is erased.
fn body_at(
    connection: &Connection,
    shared: &Shared,
    tenant: TenantKey,
    payload: Option<i64>,
    place: Place<'_>,
    content_type: String,
) -> Result<Option<BodyRow>, Fault> {
    let Some(payload) = payload else { return Ok(None) };
    let unreadable = || Fault::Refused(LedgerError::Quarantined("the content of an event".into()));
    let cipher = shared.keyring.tenant(tenant).ok_or_else(unreadable)?;
    let (_, body) = load_content(connection, &cipher, payload, place)?.ok_or_else(unreadable)?;
    Ok(Some(BodyRow { content_type, body }))
}

fn delivery_body(
    connection: &Connection,
    shared: &Shared,
    tenant: TenantKey,
    id: DeliveryId,
    revision: Option<u32>,
) -> Result<Option<Option<BodyRow>>, Fault> {
    let sql = "SELECT d.event, e.payload, e.content_type, r.revision, r.payload FROM delivery d \
               JOIN event e ON e.tenant = d.tenant AND e.id = d.event \
               LEFT JOIN revision r ON r.tenant = d.tenant AND r.delivery = d.id \
               AND r.revision = coalesce(?3, d.revision) \
               WHERE d.tenant = ?1 AND d.id = ?2 AND (r.revision IS NOT NULL OR coalesce(?3, d.revision) = 1)";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query((tenant.0, id.to_bytes(), revision))?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let (event, content_type): ([u8; 16], String) = (row.get(0)?, row.get(2)?);
    let corrected: Option<u32> = row.get(3)?;
    let id = id.to_bytes();
    let (place, payload) = match corrected {
        None => (Place::EventContent(&event), row.get(1)?),
        Some(revision) => (Place::RevisionContent(&id, revision), row.get(4)?),
    };
    Ok(Some(body_at(connection, shared, tenant, payload, place, content_type)?))
}

pub(super) fn endpoints(
    connection: &Connection,
    tenant: TenantKey,
    now: Timestamp,
) -> Result<Vec<EndpointState>, Fault> {
    let by_endpoint = |sql: &str| -> Result<HashMap<u32, u64>, Fault> {
        let mut statement = connection.prepare_cached(sql)?;
        let rows = statement.query_map([tenant.0], |row| Ok((row.get(0)?, count(row.get(1)?))))?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    };
    let in_flight = by_endpoint(
        "SELECT endpoint, count(*) FROM delivery INDEXED BY delivery_live \
         WHERE state = 1 AND due_at IS NOT NULL AND tenant = ? GROUP BY endpoint",
    )?;
    let dead = by_endpoint(
        "SELECT endpoint, count(*) FROM delivery INDEXED BY delivery_dead WHERE state = 4 AND tenant = ? \
         GROUP BY endpoint",
    )?;
    let mut pending = connection.prepare_cached(
        "SELECT count(*), count(*) FILTER (WHERE due_at <= ?2), min(id) \
         FROM delivery INDEXED BY delivery_live \
         WHERE state = 0 AND endpoint = ?1 AND due_at IS NOT NULL",
    )?;
    let mut created = connection.prepare_cached(
        "SELECT coalesce(d.made_at, e.accepted_at) FROM delivery d JOIN event e ON e.tenant = d.tenant AND e.id = d.event \
         WHERE d.tenant = ? AND d.id = ?",
    )?;
    let mut each = connection.prepare_cached(&format!(
        "SELECT p.id, p.name, h.name, p.status, p.until, p.why, {} FROM endpoint p JOIN host h ON h.id = p.host \
             WHERE p.tenant = ? ORDER BY p.name",
        health::COLUMNS
    ))?;
    let mut rows = each.query([tenant.0])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        let id: u32 = row.get(0)?;
        let (waiting, available, oldest): (i64, i64, Option<[u8; 16]>) =
            pending.query_row((id, now.as_millis()), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let oldest_pending_at = match oldest {
            Some(oldest) => created.query_row((tenant.0, oldest), |row| time(row, 0)).optional()?,
            None => None,
        };
        let status = status_of(row.get(3)?, row.get(4)?, row.get(5)?);
        all.push(EndpointState {
            key: EndpointKey(id),
            name: name(row, 1)?,
            host: row.get(2)?,
            // A pause that has run out is over, though nobody has written so.
            status: if status.is_open(now) { EndpointStatus::Enabled } else { status },
            pending: count(waiting),
            available: count(available),
            in_flight: in_flight.get(&id).copied().unwrap_or(0),
            dead: dead.get(&id).copied().unwrap_or(0),
            oldest_pending_at,
            health: EndpointHealth::of(&health::of_row(row, 6)?, now),
        });
    }
    Ok(all)
}

fn one_event(connection: &Connection, tenant: TenantKey, id: EventId) -> Result<Option<EventRow>, Fault> {
    let sql = format!(
        "SELECT {EVENT_COLUMNS} FROM event e LEFT JOIN source s ON s.id = e.source \
         WHERE e.tenant = ? AND e.id = ?"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query((tenant.0, id.to_bytes()))?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let mut event = event_row(row)?;
    let mut own = connection.prepare_cached(&format!("{} ORDER BY 1", again::OF_EVENT))?;
    let ids = own.query_map((tenant.0, id.to_bytes()), |row| row.get(0).map(DeliveryId::from_bytes))?;
    event.deliveries = Some(ids.collect::<rusqlite::Result<_>>()?);
    Ok(Some(event))
}

/// One page of a list that was read one row further than asked.
pub(super) fn page_of<T>(mut items: Vec<T>, limit: u32, next: impl FnOnce(&T) -> Cursor) -> Page<T> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = items.len() > limit;
    items.truncate(limit);
    let next = if more { items.last().map(next) } else { None };
    Page { items, next }
}

/// Asks the writer for a commit.
struct Probe;

impl Verb for Probe {
    type Done = ();

    fn needs(&self) -> Needs {
        Needs::None
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<(), Fault> {
        w.connection.prepare_cached("INSERT OR REPLACE INTO meta (name, value) VALUES ('probe', x'')")?.execute([])?;
        Ok(())
    }
}

#[async_trait]
impl Records for SqliteLedger {
    async fn events(
        &self,
        tenant: TenantKey,
        filter: &EventFilter,
        page: &PageRequest,
    ) -> Result<Page<EventRow>, LedgerError> {
        let (filter, limit) = (filter.clone(), page.limit.clamp(1, LIMIT_MAX));
        let before = page_start(List::Events, tenant, page)?;
        let read = move |c: &Connection| events(c, tenant, &filter, before, limit + 1);
        let items = self.read(read).await?;
        Ok(page_of(items, limit, |row| cursor(List::Events, tenant, row.id.to_bytes())))
    }

    async fn event(&self, tenant: TenantKey, id: EventId) -> Result<Option<EventRow>, LedgerError> {
        let (event, whole) = self.read_whole(move |c| one_event(c, tenant, id)).await?;
        let has_none =
            |event: &EventRow| event.superseded_by.is_none() && event.deliveries.as_ref().is_some_and(Vec::is_empty);
        if !whole && event.as_ref().is_none_or(has_none) { Err(super::not_written()) } else { Ok(event) }
    }

    async fn event_body(&self, tenant: TenantKey, id: EventId) -> Result<Option<Option<BodyRow>>, LedgerError> {
        let shared = Arc::clone(&self.shared);
        let read = move |c: &Connection| -> Result<Option<Option<BodyRow>>, Fault> {
            let sql = "SELECT payload, content_type FROM event WHERE tenant = ? AND id = ?";
            let found: Option<(Option<i64>, String)> = c
                .prepare_cached(sql)?
                .query_row((tenant.0, id.to_bytes()), |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?;
            let Some((payload, content_type)) = found else { return Ok(None) };
            let place = Place::EventContent(&id.to_bytes());
            Ok(Some(body_at(c, &shared, tenant, payload, place, content_type)?))
        };
        self.read(read).await
    }

    async fn deliveries(
        &self,
        tenant: TenantKey,
        filter: &DeliveryFilter,
        page: &PageRequest,
    ) -> Result<Page<DeliveryRow>, LedgerError> {
        let (filter, limit) = (filter.clone(), page.limit.clamp(1, LIMIT_MAX));
        let before = page_start(List::Deliveries, tenant, page)?;
        let read = move |c: &Connection| deliveries(c, tenant, &filter, before, limit + 1);
        let items = self.read(read).await?;
        Ok(page_of(items, limit, |row| cursor(List::Deliveries, tenant, row.id.to_bytes())))
    }

    async fn delivery(&self, tenant: TenantKey, id: DeliveryId) -> Result<Option<DeliveryDetail>, LedgerError> {
        let shared = Arc::clone(&self.shared);
        let read = move |c: &Connection| -> Result<Option<DeliveryDetail>, Fault> {
            let sql =
                format!("SELECT {DELIVERY_COLUMNS} FROM delivery d {DELIVERY_JOINS} WHERE d.tenant = ? AND d.id = ?");
            let mut statement = c.prepare_cached(&sql)?;
            let mut rows = statement.query((tenant.0, id.to_bytes()))?;
            let Some(row) = rows.next()? else { return Ok(None) };
            let delivery = delivery_row(row)?;
            let cipher = shared.keyring.tenant(tenant);
            let mut attempts = attempts(c, cipher.as_deref(), tenant, id)?;
            attempts.extend(open_attempt(c, tenant, id)?);
            let revisions = revisions(c, tenant, id)?;
            let resends = again::resends(c, tenant, id)?;
            Ok(Some(DeliveryDetail { delivery, resends, revisions, attempts }))
        };
        let (detail, whole) = self.read_whole(read).await?;
        if !whole && detail.is_none() { Err(super::not_written()) } else { Ok(detail) }
    }

    async fn delivery_body(
        &self,
        tenant: TenantKey,
        id: DeliveryId,
        revision: Option<u32>,
    ) -> Result<Option<Option<BodyRow>>, LedgerError> {
        let shared = Arc::clone(&self.shared);
        self.read(move |c| delivery_body(c, &shared, tenant, id, revision)).await
    }

    async fn endpoints(&self, tenant: TenantKey, now: Timestamp) -> Result<Vec<EndpointState>, LedgerError> {
        self.read(move |c| endpoints(c, tenant, now)).await
    }

    fn gauges(&self) -> Gauges {
        self.shared.read_gauges()
    }

    async fn probe(&self) -> Result<(), LedgerError> {
        self.ask(Probe, 0).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_good_for_its_list_and_tenant() {
        let page = |cursor| PageRequest { limit: 1, cursor: Some(cursor) };
        let made = cursor(List::Events, TenantKey(1), [7; 16]);
        assert_eq!(page_start(List::Events, TenantKey(1), &page(made.clone())).unwrap(), [7; 16]);
        for (list, tenant) in [(List::Deliveries, TenantKey(1)), (List::Events, TenantKey(2))] {
            assert!(matches!(page_start(list, tenant, &page(made.clone())), Err(LedgerError::BadCursor)));
        }
        for bad in ["", "x", "!!", &made.0[1..], &format!("{}A", made.0)] {
            let page = page(Cursor(bad.to_owned()));
            assert!(matches!(page_start(List::Events, TenantKey(1), &page), Err(LedgerError::BadCursor)), "{bad}");
        }
    }
}
