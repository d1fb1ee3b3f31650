//! The lists with their filters: one statement for each, which grows with what is asked.

use super::again;
use super::claim::idempotency_key;
use super::codec::{count, state_code, state_of, time, time_opt};
use super::fault::Fault;
use super::ordering::HELD;
use crate::clock::Timestamp;
use crate::delivery::{AttemptId, DeliveryId, DeliveryState, EventId, Name};
use crate::ledger::{DeliveryFilter, DeliveryRow, EventFilter, EventRow, Origin, TenantKey};
use rusqlite::types::Value;
use rusqlite::{Connection, Row, params_from_iter};
use std::time::Duration;

/// How far ids may run ahead of the clock, after it was set back: a bound on `until` may not cut closer.
const ID_LEAD: Duration = Duration::from_secs(24 * 3600);

/// The lowest id that can have been minted at `at`.
pub(super) fn id_floor(at: Timestamp) -> [u8; 16] {
    let millis = u128::try_from(at.as_millis()).unwrap_or(0).min(0xffff_ffff_ffff);
    (millis << 80).to_be_bytes()
}

/// A `WHERE` that grows.
pub(super) struct Query {
    pub(super) sql: String,
    pub(super) values: Vec<Value>,
}

impl Query {
    pub(super) fn new(select: &str) -> Self {
        Query { sql: select.to_owned(), values: Vec::new() }
    }

    pub(super) fn and(&mut self, condition: &str, value: impl Into<Value>) {
        self.sql.push_str(" AND ");
        self.sql.push_str(condition);
        self.values.push(value.into());
    }

    pub(super) fn and_opt(&mut self, condition: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.and(condition, value);
        }
    }

    pub(super) fn blob(bytes: [u8; 16]) -> Value {
        Value::Blob(bytes.to_vec())
    }
}

pub(super) fn name(row: &Row<'_>, column: usize) -> Result<Name, Fault> {
    let text: String = row.get(column)?;
    text.parse().map_err(|_| Fault::damaged("a name that is none"))
}

pub(super) fn name_opt(row: &Row<'_>, column: usize) -> Result<Option<Name>, Fault> {
    let text: Option<String> = row.get(column)?;
    text.map(|t| t.parse().map_err(|_| Fault::damaged("a name that is none"))).transpose()
}

pub(super) const EVENT_COLUMNS: &str = "e.id, e.type, e.key, s.name, e.provider_id, e.content_type, e.body_bytes, \
                             e.payload IS NULL, e.accepted_at, e.deliver_at, e.expires_at, e.deadline, \
                             e.ordering_key, e.coalesce_key, e.superseded_by";

pub(super) fn event_row(row: &Row<'_>) -> Result<EventRow, Fault> {
    Ok(EventRow {
        id: EventId::from_bytes(row.get(0)?),
        event_type: row.get(1)?,
        key: row.get(2)?,
        source: name_opt(row, 3)?,
        provider_id: row.get(4)?,
        content_type: row.get(5)?,
        body_bytes: count(row.get(6)?),
        body_erased: row.get(7)?,
        accepted_at: time(row, 8)?,
        deliver_at: time_opt(row, 9)?,
        expires_at: time_opt(row, 10)?,
        deadline: time_opt(row, 11)?,
        ordering_key: row.get(12)?,
        coalesce_key: row.get(13)?,
        superseded_by: row.get::<_, Option<[u8; 16]>>(14)?.map(EventId::from_bytes),
        deliveries: None,
    })
}

/// The number is that of [`HELD`].
pub(super) const DELIVERY_COLUMNS: &str = "d.id, d.event, e.type, e.key, s.name, p.name, h.name, d.state, d.reason, d.attempts, \
                                d.generation, d.revision, d.due_at, coalesce(d.made_at, e.accepted_at), d.finished_at, e.expires_at, \
                                e.deadline, d.last_status, d.reference, d.sequence, d.origin, d.note, e.idempotency_key, \
                                CASE WHEN d.ordering IS NULL THEN NULL ELSE e.ordering_key END, d.out_of_order, \
                                CASE WHEN d.state = 0 AND d.due_at = 9223372036854775807 THEN \
                                (SELECT o.delivery FROM ordered o WHERE o.endpoint = d.endpoint \
                                AND o.key = d.ordering ORDER BY o.sequence LIMIT 1) END, d.again_of, d.replayed IS NOT NULL";

pub(super) const DELIVERY_JOINS: &str = "JOIN event e ON e.tenant = d.tenant AND e.id = d.event \
                              LEFT JOIN source s ON s.id = e.source \
                              JOIN endpoint p ON p.id = d.endpoint JOIN host h ON h.id = d.host";

pub(super) fn delivery_row(row: &Row<'_>) -> Result<DeliveryRow, Fault> {
    let event = EventId::from_bytes(row.get(1)?);
    let key: Option<String> = row.get(3)?;
    let frozen: Option<String> = row.get(22)?;
    let state = state_of(row.get(7)?)?;
    Ok(DeliveryRow {
        id: DeliveryId::from_bytes(row.get(0)?),
        event,
        event_type: row.get(2)?,
        source: name_opt(row, 4)?,
        endpoint: name(row, 5)?,
        host: row.get(6)?,
        state,
        reason: row.get(8)?,
        attempt_count: row.get(9)?,
        generation: row.get(10)?,
        revision: row.get(11)?,
        // In flight, the column holds the lease's end; behind others of its key, nothing is known.
        due_at: time_opt(row, 12)?.filter(|due| state == DeliveryState::Pending && *due != HELD),
        created_at: time(row, 13)?,
        finished_at: time_opt(row, 14)?,
        expires_at: time_opt(row, 15)?,
        deadline: time_opt(row, 16)?,
        last_status: row.get(17)?,
        reference: row.get(18)?,
        sequence: count(row.get(19)?),
        idempotency_key: idempotency_key(frozen.as_deref().or(key.as_deref()), event, row.get(20)?),
        key,
        note: row.get(21)?,
        ordering_key: row.get(23)?,
        held_by: row.get::<_, Option<[u8; 16]>>(25)?.map(DeliveryId::from_bytes),
        out_of_order: row.get(24)?,
        origin: match (row.get::<_, u32>(20)?, row.get(27)?) {
            (0, _) => Origin::Accepted,
            (_, false) => Origin::Resend,
            (_, true) => Origin::Replay,
        },
        resend_of: row.get::<_, Option<[u8; 16]>>(26)?.map(DeliveryId::from_bytes),
    })
}

pub(super) fn events(
    connection: &Connection,
    tenant: TenantKey,
    filter: &EventFilter,
    before: [u8; 16],
    limit: u32,
) -> Result<Vec<EventRow>, Fault> {
    let by = if filter.key.is_some() { "INDEXED BY event_key" } else { "" };
    let mut query = Query::new(&format!(
        "SELECT {EVENT_COLUMNS} FROM event e {by} LEFT JOIN source s ON s.id = e.source WHERE e.tenant = ?"
    ));
    query.values.push(i64::from(tenant.0).into());
    query.and("e.id < ?", Query::blob(before));
    query.and_opt("e.key = ?", filter.key.clone());
    query.and_opt("s.name = ?", filter.source.as_ref().map(|n| n.as_str().to_owned()));
    query.and_opt("e.type = ?", filter.event_type.clone());
    bounds(&mut query, ("e", "e.accepted_at"), filter.since, filter.until);
    query.sql.push_str(" ORDER BY e.id DESC LIMIT ?");
    query.values.push(i64::from(limit).into());
    collect(connection, &query, event_row)
}

/// Bounds on when something was made, and so on its id.
pub(super) fn bounds(
    query: &mut Query,
    (ids_of, made_at): (&str, &str),
    since: Option<Timestamp>,
    until: Option<Timestamp>,
) {
    if let Some(since) = since {
        query.and(&format!("{ids_of}.id >= ?"), Query::blob(id_floor(since)));
        query.and(&format!("{made_at} >= ?"), since.as_millis());
    }
    if let Some(until) = until {
        query.and(&format!("{ids_of}.id < ?"), Query::blob(id_floor(until.plus(ID_LEAD))));
        query.and(&format!("{made_at} < ?"), until.as_millis());
    }
}

pub(super) fn collect<T>(
    connection: &Connection,
    query: &Query,
    read: fn(&Row<'_>) -> Result<T, Fault>,
) -> Result<Vec<T>, Fault> {
    let mut statement = connection.prepare_cached(&query.sql)?;
    let mut rows = statement.query(params_from_iter(&query.values))?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(read(row)?);
    }
    Ok(all)
}

pub(super) fn deliveries(
    connection: &Connection,
    tenant: TenantKey,
    filter: &DeliveryFilter,
    before: [u8; 16],
    limit: u32,
) -> Result<Vec<DeliveryRow>, Fault> {
    let from = match (&filter.key, filter.state) {
        (Some(_), _) => again::deliveries_of_key(),
        (None, Some(DeliveryState::Dead)) => format!("delivery d INDEXED BY delivery_dead {DELIVERY_JOINS}"),
        (None, Some(DeliveryState::InFlight)) => format!("delivery d INDEXED BY delivery_live {DELIVERY_JOINS}"),
        (None, _) => format!("delivery d {DELIVERY_JOINS}"),
    };
    let mut query = delivery_query(DELIVERY_COLUMNS, &from, tenant, filter);
    query.and("d.id < ?", Query::blob(before));
    query.sql.push_str(" ORDER BY d.id DESC LIMIT ?");
    query.values.push(i64::from(limit).into());
    collect(connection, &query, delivery_row)
}

/// The deliveries of a filter. `from` has them as `d`, with their events as `e` and the sources of those as `s`.
pub(super) fn delivery_query(select: &str, from: &str, tenant: TenantKey, filter: &DeliveryFilter) -> Query {
    let mut query = Query::new(&format!("SELECT {select} FROM {from} WHERE d.tenant = ?"));
    query.values.push(i64::from(tenant.0).into());
    if let Some(key) = &filter.key {
        query.and("e.tenant = ?", i64::from(tenant.0));
        query.and("e.key = ?", key.clone());
    }
    if let Some(state) = filter.state {
        // Written out, so that the partial indexes are seen to hold.
        query.sql.push_str(&format!(" AND d.state = {}", state_code(state)));
        if state == DeliveryState::InFlight {
            query.sql.push_str(" AND d.due_at IS NOT NULL");
        }
    }
    let of_endpoint = "d.endpoint = (SELECT id FROM endpoint WHERE tenant = d.tenant AND name = ?)";
    query.and_opt(of_endpoint, filter.endpoint.as_ref().map(|n| n.as_str().to_owned()));
    query.and_opt("s.name = ?", filter.source.as_ref().map(|n| n.as_str().to_owned()));
    query.and_opt("e.type = ?", filter.event_type.clone());
    query.and_opt("d.reason = ?", filter.reason.clone());
    query.and_opt("d.last_status = ?", filter.status.map(i64::from));
    if let Some(event) = filter.event {
        of_event(&mut query, tenant, event);
    }
    if let Some(q) = &filter.q {
        search(&mut query, tenant, q);
    }
    bounds(&mut query, ("d", "coalesce(d.made_at, e.accepted_at)"), filter.since, filter.until);
    query
}

pub(super) fn of_event(query: &mut Query, tenant: TenantKey, event: EventId) {
    let of = format!(
        "d.id IN (SELECT y.id FROM event e JOIN delivery y ON y.tenant = e.tenant AND y.id IN ({}) \
                      WHERE e.tenant = ?",
        again::OF_ROW
    );
    query.and(&of, i64::from(tenant.0));
    query.and("e.id = ?)", Query::blob(event.to_bytes()));
}

/// An id finds by its kind; any other word is a logical key, a reference or a provider's id, whole.
pub(super) fn search(query: &mut Query, tenant: TenantKey, q: &str) {
    let tenant_value = || Value::from(i64::from(tenant.0));
    if let Ok(id) = q.parse::<DeliveryId>() {
        query.and("d.id = ?", Query::blob(id.to_bytes()));
    } else if let Ok(id) = q.parse::<EventId>() {
        of_event(query, tenant, id);
    } else if let Ok(id) = q.parse::<AttemptId>() {
        let (first, last) = id.of_deliveries();
        query.and("d.id >= ?", Query::blob(first.to_bytes()));
        query.and("d.id <= ?", Query::blob(last.to_bytes()));
        // Released ones count as well: what is not there yet is above.
        query.and("d.attempts >= ?", i64::from(id.number()));
    } else {
        query.and(
            "(d.id IN (SELECT id FROM delivery INDEXED BY delivery_reference WHERE tenant = ? AND reference = ?) \
             OR d.event IN (SELECT id FROM event INDEXED BY event_key WHERE tenant = ? AND key = ?) \
             OR e.provider_id = ?)",
            tenant_value(),
        );
        let word = || Value::from(q.to_owned());
        query.values.extend([word(), tenant_value(), word(), word()]);
    }
}
