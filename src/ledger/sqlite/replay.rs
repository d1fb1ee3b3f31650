//! A replay's events: looked for in steps, from the oldest on, and each looked at again when its delivery is made.

use super::again::{self, Another, Ordered, next_origin};
use super::codec::{count, int};
use super::dead::Found;
use super::fault::Fault;
use super::lists::{EVENT_COLUMNS, Query, bounds, collect, event_row};
use super::writer::Writer;
use crate::clock::Timestamp;
use crate::delivery::DeliveryId;
use crate::ledger::{BULK_STEP_MAX, EndpointKey, OperationRow, OrderingKey, Replay, ReplayRehearsed, TenantKey};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension as _, params_from_iter};

/// Events that one look of a step passes by, and looks of one step: none takes long, however few match.
const STRIDE: u32 = 20_000;
const STRIDES_MAX: u32 = 10;

/// Below every id.
pub(super) const BOTTOM: [u8; 16] = [0; 16];

pub(super) fn endpoint_of(
    connection: &Connection,
    tenant: TenantKey,
    replay: &Replay,
) -> Result<Option<EndpointKey>, Fault> {
    let found = connection
        .prepare_cached("SELECT id FROM endpoint WHERE tenant = ? AND name = ?")?
        .query_row((tenant.0, replay.endpoint.as_str()), |row| row.get(0).map(EndpointKey))
        .optional()?;
    Ok(found)
}

/// The events that a replay means. What was accepted before `bound` was minted is meant.
fn query(
    select: &str,
    tenant: TenantKey,
    replay: &Replay,
    endpoint: EndpointKey,
    (after, bound): ([u8; 16], Option<[u8; 16]>),
) -> Query {
    let by = if replay.events.key.is_some() { "INDEXED BY event_key" } else { "" };
    let mut query = Query::new(&format!(
        "SELECT {select} FROM event e {by} LEFT JOIN source s ON s.id = e.source \
         WHERE e.superseded_by IS NULL AND e.tenant = ?"
    ));
    query.values.push(i64::from(tenant.0).into());
    query.and("e.id > ?", Query::blob(after));
    query.and_opt("e.id < ?", bound.map(Query::blob));
    query.and_opt("e.key = ?", replay.events.key.clone());
    query.and_opt("s.name = ?", replay.events.source.as_ref().map(|name| name.as_str().to_owned()));
    query.and_opt("e.type = ?", replay.events.event_type.clone());
    bounds(&mut query, ("e", "e.accepted_at"), replay.events.since, replay.events.until);
    if replay.only_missed {
        let had =
            format!("NOT EXISTS (SELECT 1 FROM delivery d WHERE d.tenant = e.tenant AND d.id IN ({})", again::OF_ROW);
        query.and(&format!("{had} AND d.endpoint = ?)"), i64::from(endpoint.0));
    }
    query
}

/// Whether a delivery of the event `e` to an endpoint has not ended.
fn under_way() -> String {
    format!(
        "EXISTS (SELECT 1 FROM delivery d WHERE d.tenant = e.tenant AND d.id IN ({}) AND d.endpoint = ? \
         AND d.state IN (0, 1))",
        again::OF_ROW
    )
}

/// `None`: there is no such endpoint.
pub(super) fn rehearse(
    connection: &Connection,
    tenant: TenantKey,
    replay: &Replay,
    samples: u32,
    now: Timestamp,
) -> Result<Option<ReplayRehearsed>, Fault> {
    let Some(endpoint) = endpoint_of(connection, tenant, replay)? else { return Ok(None) };
    let all = (BOTTOM, None);
    let what = format!(
        "CASE WHEN e.expires_at <= ? THEN 1 WHEN e.payload IS NULL THEN 2 WHEN {} THEN 3 ELSE 0 END",
        under_way()
    );
    let mut counted = query(&format!("{what} AS what, count(*)"), tenant, replay, endpoint, all);
    counted.values.splice(0..0, [Value::from(now.as_millis()), i64::from(endpoint.0).into()]);
    counted.sql.push_str(" GROUP BY what");
    let counts = collect(connection, &counted, |row| Ok((row.get::<_, i64>(0)?, count(row.get(1)?))))?;
    let of = |kind| counts.iter().find(|(what, _)| *what == kind).map_or(0, |(_, counted)| *counted);
    let mut some = query(EVENT_COLUMNS, tenant, replay, endpoint, all);
    some.and("e.payload IS NOT NULL AND coalesce(e.expires_at > ?, 1)", now.as_millis());
    some.and(&format!("NOT {}", under_way()), i64::from(endpoint.0));
    some.sql.push_str(" ORDER BY e.id LIMIT ?");
    some.values.push(i64::from(samples).into());
    Ok(Some(ReplayRehearsed {
        count: of(0),
        expired: of(1),
        payload_erased: of(2),
        under_way: of(3),
        samples: collect(connection, &some, event_row)?,
    }))
}

/// How many events are left to be looked at.
pub(super) fn count_of(
    connection: &Connection,
    tenant: TenantKey,
    replay: &Replay,
    bound: [u8; 16],
) -> Result<u64, Fault> {
    let Some(endpoint) = endpoint_of(connection, tenant, replay)? else { return Ok(0) };
    let query = query("count(*)", tenant, replay, endpoint, (BOTTOM, Some(bound)));
    let mut statement = connection.prepare_cached(&query.sql)?;
    Ok(statement.query_row(params_from_iter(&query.values), |row| row.get(0).map(count))?)
}

/// The next events after an id, at most `limit`.
pub(super) fn find(
    connection: &Connection,
    tenant: TenantKey,
    replay: &Replay,
    (after, bound): ([u8; 16], [u8; 16]),
    limit: u32,
) -> Result<Found, Fault> {
    let limit = usize::try_from(limit.min(BULK_STEP_MAX)).unwrap_or(0);
    let mut found = Found { letters: Vec::new(), next: after, end: false };
    let Some(endpoint) = endpoint_of(connection, tenant, replay)? else { return Ok(Found { end: true, ..found }) };
    let mut ceiling_of =
        connection.prepare_cached("SELECT id FROM event WHERE tenant = ? AND id > ? ORDER BY id LIMIT 1 OFFSET ?")?;
    // Few by themselves, and found without passing by others.
    let few = replay.events.key.is_some();
    for _ in 0..STRIDES_MAX {
        let ceiling: Option<[u8; 16]> = match few {
            true => None,
            false => ceiling_of.query_row((tenant.0, found.next, STRIDE - 1), |row| row.get(0)).optional()?,
        };
        let ceiling = ceiling.filter(|ceiling| *ceiling < bound);
        let mut query = query("e.id", tenant, replay, endpoint, (found.next, Some(bound)));
        query.and_opt("e.id <= ?", ceiling.map(Query::blob));
        query.sql.push_str(" ORDER BY e.id LIMIT ?");
        query.values.push(int((limit - found.letters.len()) as u64).into());
        let events = collect(connection, &query, |row| Ok(row.get::<_, [u8; 16]>(0)?))?;
        found.letters.extend(events);
        if found.letters.len() >= limit {
            found.next = found.letters.last().copied().unwrap_or(found.next);
            break;
        }
        match ceiling {
            Some(ceiling) => found.next = ceiling,
            None => {
                found.end = true;
                break;
            }
        }
    }
    Ok(found)
}

/// An event as the writer finds it.
struct Standing {
    erased: bool,
    expires_at: Option<Timestamp>,
    deliver_at: Option<Timestamp>,
    ordering_key: Option<String>,
    superseded: bool,
}

/// What it had of deliveries to the endpoint.
struct Had {
    under_way: bool,
    /// The newest of them.
    last: Option<[u8; 16]>,
}

impl Writer<'_> {
    /// One event of a replay: its delivery, or why there is none.
    pub(super) fn replay_one(
        &mut self,
        replay: &Replay,
        event: &[u8; 16],
        (number, wave): (i64, i64),
        row: &mut OperationRow,
        now: Timestamp,
    ) -> Result<(), Fault> {
        let tenant = row.tenant;
        let standing = self
            .connection
            .prepare_cached(
                "SELECT payload IS NULL, expires_at, deliver_at, ordering_key, superseded_by IS NOT NULL \
                 FROM event WHERE tenant = ? AND id = ?",
            )?
            .query_row((tenant.0, event), |row| {
                Ok(Standing {
                    erased: row.get(0)?,
                    expires_at: row.get::<_, Option<i64>>(1)?.map(Timestamp::from_millis),
                    deliver_at: row.get::<_, Option<i64>>(2)?.map(Timestamp::from_millis),
                    ordering_key: row.get(3)?,
                    superseded: row.get(4)?,
                })
            })
            .optional()?;
        let endpoint = endpoint_of(self.connection, tenant, replay)?;
        let (Some(standing), Some(endpoint)) = (standing.filter(|standing| !standing.superseded), endpoint) else {
            row.skipped.gone += 1;
            return Ok(());
        };
        if standing.expires_at.is_some_and(|at| at <= now) {
            row.skipped.expired += 1;
            return Ok(());
        }
        if standing.erased {
            row.skipped.payload_erased += 1;
            return Ok(());
        }
        let had = had(self.connection, tenant, event, endpoint)?;
        if had.under_way {
            row.skipped.under_way += 1;
            return Ok(());
        }
        let missed = had.last.is_none() || !replay.only_missed;
        let origin = if missed { next_origin(self.connection, tenant, event, endpoint)? } else { None };
        let Some(origin) = origin else {
            row.skipped.gone += 1;
            return Ok(());
        };
        let order = match (replay.order, &standing.ordering_key) {
            (Some(on_dead), Some(key)) => Ordered::Behind(OrderingKey::of(key, on_dead)),
            (Some(_), None) | (None, _) => Ordered::Free,
        };
        let another = Another {
            tenant,
            event: *event,
            endpoint,
            deliver_at: standing.deliver_at,
            id: DeliveryId::from(self.shared.mint.mint(now, &*self.shared.entropy)),
            of: had.last,
            replay: Some((number, wave)),
            order,
            revision: 1,
            payload: None,
            note: row.note.as_deref(),
            now,
        };
        self.make_another(&another, origin)?;
        row.done += 1;
        Ok(())
    }
}

fn had(connection: &Connection, tenant: TenantKey, event: &[u8; 16], endpoint: EndpointKey) -> Result<Had, Fault> {
    let sql = format!(
        "SELECT coalesce(max(state IN (0, 1)), 0), max(id) FROM delivery \
         WHERE tenant = ?1 AND id IN ({}) AND endpoint = ?3",
        again::OF_EVENT
    );
    let found = connection
        .prepare_cached(&sql)?
        .query_row((tenant.0, event, endpoint.0), |row| Ok(Had { under_way: row.get(0)?, last: row.get(1)? }))?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::EventFilter;
    use crate::ledger::sqlite::{Settings, schema};

    fn plan(connection: &Connection, sql: &str, values: &[Value]) -> String {
        let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let steps = statement.query_map(params_from_iter(values), |row| row.get::<_, String>(3)).unwrap();
        steps.collect::<rusqlite::Result<Vec<_>>>().unwrap().join("; ")
    }

    /// However much was accepted, an event's deliveries are found by its id.
    #[test]
    fn no_list_of_deliveries_is_scanned() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.db");
        let connection = schema::open_writer(&path, &Settings::new(&path)).unwrap();
        let (tenant, endpoint) = (TenantKey(1), EndpointKey(1));
        let seven: Vec<Value> = (0..7).map(|_| Value::from(1)).collect();
        let mut plans = Vec::new();
        for key in [None, Some("k".to_owned())] {
            for only_missed in [false, true] {
                let events = EventFilter { key: key.clone(), ..EventFilter::default() };
                let replay = Replay { endpoint: "audit".parse().unwrap(), events, only_missed, order: None };
                let mut found = query("e.id", tenant, &replay, endpoint, (BOTTOM, Some(BOTTOM)));
                found.and(&format!("NOT {}", under_way()), 1);
                found.sql.push_str(" ORDER BY e.id LIMIT 1");
                plans.push(plan(&connection, &found.sql, &found.values));
            }
        }
        let of_event = format!("SELECT count(*) FROM delivery WHERE tenant = ?1 AND id IN ({})", again::OF_EVENT);
        plans.push(plan(&connection, &of_event, &seven[..2]));
        let of_row = format!(
            "SELECT max(d.state) FROM event e LEFT JOIN delivery d ON d.tenant = e.tenant AND d.id IN ({}) \
             WHERE e.tenant = ? AND e.id = ? GROUP BY e.id",
            again::OF_ROW
        );
        plans.push(plan(&connection, &of_row, &seven[..2]));
        for plan in plans {
            assert!(!plan.contains("SCAN"), "{plan}");
            for table in ["SEARCH e USING", "SEARCH x USING PRIMARY KEY (tenant=? AND id>? AND id<?)"] {
                assert!(plan.contains(table) || !plan.contains("SEARCH x"), "{plan}");
            }
            assert!(
                !plan.contains("SEARCH d USING") || plan.contains("SEARCH d USING PRIMARY KEY (tenant=? AND id=?)")
            );
        }
    }
}
