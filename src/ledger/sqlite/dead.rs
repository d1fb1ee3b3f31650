//! Dead letters by filter: listed, counted, grouped, looked for in steps, purged. All of it goes over the index
//! `delivery_dead`, which has what most filters ask for.

use super::again;
use super::codec::{count, int, state_code, status_of, time};
use super::fault::Fault;
use super::lists::{DELIVERY_COLUMNS, DELIVERY_JOINS, Query, collect, delivery_row, name, name_opt, of_event, search};
use super::ordering::Leaving;
use super::prune;
use super::writer::{Verb, Writer};
use crate::clock::Timestamp;
use crate::delivery::{DeliveryId, DeliveryState, PluginVersionId, Reason};
use crate::ledger::{
    BULK_STEP_MAX, Count, DeadBy, DeadDestination, DeadFilter, DeadGroup, DeliveryRow, EndpointKey, PurgePlace, Purged,
    TenantKey,
};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension as _, params_from_iter};

const GROUPS_MAX: u32 = 1_000;
/// Dead letters that one look of a step passes by, and looks of one step: none takes long, however few match.
const STRIDE: u32 = 20_000;
const STRIDES_MAX: u32 = 10;

/// Above every id.
pub(super) const TOP: [u8; 16] = [0xff; 16];

/// What a statement needs beside the dead letters themselves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// All that a row of a list shows.
    Rows,
    Hosts,
}

fn query(select: &str, beside: Beside, tenant: TenantKey, filter: &DeadFilter, died_by: Option<Timestamp>) -> Query {
    let of_event_too = filter.source.is_some() || filter.event_type.is_some() || filter.q.is_some();
    let hosts = if beside == Beside::Hosts { "JOIN host h ON h.id = d.host" } else { "" };
    let from = match (&filter.key, beside) {
        // From the events of the key to their deliveries.
        (Some(_), _) => {
            let rows = if beside == Beside::Rows {
                "LEFT JOIN source s ON s.id = e.source JOIN endpoint p ON p.id = d.endpoint JOIN host h ON h.id = d.host"
            } else {
                hosts
            };
            format!(
                "event e INDEXED BY event_key CROSS JOIN delivery d ON d.tenant = e.tenant AND d.id IN ({}) {rows}",
                again::OF_ROW
            )
        }
        (None, Beside::Rows) => format!("delivery d INDEXED BY delivery_dead {DELIVERY_JOINS}"),
        (None, _) if of_event_too => format!(
            "delivery d INDEXED BY delivery_dead JOIN event e ON e.tenant = d.tenant AND e.id = d.event {hosts}"
        ),
        (None, _) => format!("delivery d INDEXED BY delivery_dead {hosts}"),
    };
    let mut query = Query::new(&format!("SELECT {select} FROM {from} WHERE d.state = 4"));
    let tenant_value = || Value::from(i64::from(tenant.0));
    query.and("d.tenant = ?", tenant_value());
    if let Some(key) = &filter.key {
        query.and("e.tenant = ?", tenant_value());
        query.and("e.key = ?", key.clone());
    }
    let mut of_name = |column: &str, table: &str, name: &Option<_>| {
        if let Some(name) = name {
            let name: &crate::delivery::Name = name;
            query.and(&format!("{column} = (SELECT id FROM {table} WHERE tenant = ?"), tenant_value());
            query.and("name = ?)", name.as_str().to_owned());
        }
    };
    of_name("d.endpoint", "endpoint", &filter.endpoint);
    of_name("e.source", "source", &filter.source);
    query.and_opt("e.type = ?", filter.event_type.clone());
    query.and_opt("d.reason = ?", filter.reason.clone());
    query.and_opt("d.last_status = ?", filter.status.map(i64::from));
    query.and_opt("d.host = (SELECT id FROM host WHERE name = ?)", filter.host.clone());
    let of_version = "EXISTS (SELECT 1 FROM attempt a WHERE a.tenant = d.tenant AND a.delivery = d.id \
                      AND a.number = d.attempts AND a.plugin_version = ?)";
    query.and_opt(of_version, filter.plugin_version.map(|version| Query::blob(version.to_bytes())));
    query.and_opt("d.finished_at >= ?", filter.since.map(Timestamp::as_millis));
    query.and_opt("d.finished_at < ?", filter.until.map(Timestamp::as_millis));
    query.and_opt("d.finished_at <= ?", died_by.map(Timestamp::as_millis));
    if let Some(event) = filter.event {
        of_event(&mut query, tenant, event);
    }
    if let Some(ids) = &filter.ids {
        let marks = vec!["?"; ids.len()].join(", ");
        query.sql.push_str(&format!(" AND d.id IN ({marks})"));
        query.values.extend(ids.iter().map(|id| Query::blob(id.to_bytes())));
    }
    if let Some(q) = &filter.q {
        search(&mut query, tenant, q);
    }
    query
}

pub(super) fn list(
    connection: &Connection,
    tenant: TenantKey,
    filter: &DeadFilter,
    before: [u8; 16],
    limit: u32,
) -> Result<Vec<DeliveryRow>, Fault> {
    let mut query = query(DELIVERY_COLUMNS, Beside::Rows, tenant, filter, None);
    query.and("d.id < ? ORDER BY d.id DESC LIMIT", Query::blob(before));
    query.sql.push_str(" ?");
    query.values.push(i64::from(limit).into());
    collect(connection, &query, delivery_row)
}

pub(super) fn count_of(
    connection: &Connection,
    tenant: TenantKey,
    filter: &DeadFilter,
    died_by: Option<Timestamp>,
) -> Result<u64, Fault> {
    let query = query("count(*)", Beside::Nothing, tenant, filter, died_by);
    let mut statement = connection.prepare_cached(&query.sql)?;
    Ok(statement.query_row(params_from_iter(&query.values), |row| row.get(0).map(count))?)
}

pub(super) fn groups(
    connection: &Connection,
    tenant: TenantKey,
    filter: &DeadFilter,
    by: DeadBy,
) -> Result<Vec<DeadGroup>, Fault> {
    // One of many: which, follows from the newest id that stands beside it.
    let (columns, further) = match by {
        DeadBy::Destination => ("NULL, NULL", ""),
        DeadBy::Endpoint => ("(SELECT name FROM endpoint WHERE id = d.endpoint), NULL", ", d.endpoint"),
        DeadBy::PluginVersion => (
            "(SELECT name FROM endpoint WHERE id = d.endpoint), (SELECT a.plugin_version FROM attempt a \
             WHERE a.tenant = d.tenant AND a.delivery = d.id AND a.number = d.attempts) AS version",
            ", d.endpoint, version",
        ),
    };
    let select = format!(
        "h.name, d.last_status, d.reason, count(*), min(d.finished_at), max(d.finished_at), max(d.id), {columns}"
    );
    let mut query = query(&select, Beside::Hosts, tenant, filter, None);
    query.sql.push_str(&format!(
        " GROUP BY d.host, d.last_status, d.reason{further} ORDER BY count(*) DESC, max(d.id) DESC LIMIT ?"
    ));
    query.values.push(i64::from(GROUPS_MAX).into());
    collect(connection, &query, |row| {
        Ok(DeadGroup {
            host: row.get(0)?,
            status: row.get(1)?,
            reason: row.get(2)?,
            count: count(row.get(3)?),
            oldest_at: time(row, 4)?,
            newest_at: time(row, 5)?,
            sample: DeliveryId::from_bytes(row.get(6)?),
            endpoint: name_opt(row, 7)?,
            plugin_version: row.get::<_, Option<[u8; 16]>>(8)?.map(PluginVersionId::from_bytes),
        })
    })
}

pub(super) fn destinations(
    connection: &Connection,
    tenant: TenantKey,
    filter: &DeadFilter,
) -> Result<Vec<DeadDestination>, Fault> {
    let mut query = query("d.endpoint, count(*) AS letters", Beside::Nothing, tenant, filter, None);
    query.sql = format!(
        "SELECT p.id, p.name, h.name, p.status, p.until, p.why, g.letters FROM ({} GROUP BY d.endpoint) g \
         JOIN endpoint p ON p.id = g.endpoint JOIN host h ON h.id = p.host ORDER BY g.letters DESC, p.id LIMIT ?",
        query.sql
    );
    query.values.push(i64::from(GROUPS_MAX).into());
    collect(connection, &query, |row| {
        Ok(DeadDestination {
            key: EndpointKey(row.get(0)?),
            endpoint: name(row, 1)?,
            host: row.get(2)?,
            status: status_of(row.get(3)?, row.get(4)?, row.get(5)?),
            count: count(row.get(6)?),
        })
    })
}

/// What a step found, as a reader saw it.
pub(super) struct Found {
    pub letters: Vec<[u8; 16]>,
    /// The next step goes on below.
    pub next: [u8; 16],
    /// There are none below.
    pub end: bool,
}

impl Found {
    pub(super) fn place(&self, died_by: Timestamp) -> Option<PurgePlace> {
        (!self.end).then(|| PurgePlace { died_by, below: DeliveryId::from_bytes(self.next) })
    }
}

/// The next dead letters of the filter below an id, at most `limit`.
pub(super) fn find(
    connection: &Connection,
    tenant: TenantKey,
    (filter, died_by): (&DeadFilter, Timestamp),
    before: [u8; 16],
    limit: u32,
) -> Result<Found, Fault> {
    let limit = usize::try_from(limit.min(BULK_STEP_MAX)).unwrap_or(0);
    let mut found = Found { letters: Vec::new(), next: before, end: false };
    let mut floor_of = connection.prepare_cached(
        "SELECT id FROM delivery INDEXED BY delivery_dead WHERE state = 4 AND tenant = ? AND id < ? \
         ORDER BY id DESC LIMIT 1 OFFSET ?",
    )?;
    // Few by themselves, and found without passing by others.
    let few = filter.ids.is_some() || filter.key.is_some() || filter.event.is_some();
    for _ in 0..STRIDES_MAX {
        let floor: Option<[u8; 16]> = match few {
            true => None,
            false => floor_of.query_row((tenant.0, found.next, STRIDE - 1), |row| row.get(0)).optional()?,
        };
        let mut query = query("d.id", Beside::Nothing, tenant, filter, Some(died_by));
        query.and("d.id < ?", Query::blob(found.next));
        query.and_opt("d.id >= ?", floor.map(Query::blob));
        query.sql.push_str(" ORDER BY d.id DESC LIMIT ?");
        query.values.push(int((limit - found.letters.len()) as u64).into());
        let letters = collect(connection, &query, |row| Ok(row.get::<_, [u8; 16]>(0)?))?;
        found.letters.extend(letters);
        if found.letters.len() >= limit {
            found.next = found.letters.last().copied().unwrap_or(found.next);
            break;
        }
        match floor {
            Some(floor) => found.next = floor,
            None => {
                found.end = true;
                break;
            }
        }
    }
    Ok(found)
}

/// One batch of closing them for good.
pub(super) struct Purge {
    pub tenant: TenantKey,
    pub died_by: Timestamp,
    pub found: Found,
    pub now: Timestamp,
}

impl Verb for Purge {
    type Done = Purged;

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Purged, Fault> {
        let tenant = self.tenant.0;
        let mut done = Purged::default();
        for id in &self.found.letters {
            let closed: Option<u32> = w
                .connection
                .prepare_cached(
                    "UPDATE delivery SET state = ?4, reason = ?5, finished_at = ?6, payload = NULL \
                     WHERE tenant = ?1 AND id = ?2 AND state = 4 AND finished_at <= ?3 RETURNING endpoint",
                )?
                .query_row(
                    (
                        tenant,
                        id,
                        self.died_by.as_millis(),
                        state_code(DeliveryState::Cancelled),
                        Reason::PURGED.as_str(),
                        self.now.as_millis(),
                    ),
                    |row| row.get(0),
                )
                .optional()?;
            // Somebody has taken it out of the DLQ meanwhile.
            let Some(endpoint) = closed.map(EndpointKey) else { continue };
            w.leave_line(self.tenant, DeliveryId::from_bytes(*id), endpoint, Leaving::Ended, self.now)?;
            w.tallies.count(self.tenant, endpoint, Count::CANCELLED, self.now);
            done.purged += 1;
            w.effects.dead -= 1;
            w.effects.dead_removed = true;
            done.payloads_erased += prune::erase_purged(w.connection, tenant, id)?;
            done.payloads_erased += w.scrub_at(self.tenant, DeliveryId::from_bytes(*id), endpoint)?;
        }
        done.next = self.found.place(self.died_by);
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::{EventId, PluginVersionId};
    use crate::ledger::sqlite::{Settings, schema};
    use std::time::Instant;

    const TENANT: TenantKey = TenantKey(1);

    fn open() -> (tempfile::TempDir, Connection) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.db");
        let connection = schema::open_writer(&path, &Settings::new(&path)).unwrap();
        connection
            .execute_batch(
                "INSERT INTO tenant VALUES (1, 'acme'); INSERT INTO host VALUES (1, 'a.example'), (2, 'b.example');
                 INSERT INTO endpoint (id, tenant, name, host) VALUES (1, 1, 'billing', 1), (2, 1, 'crm', 2);",
            )
            .unwrap();
        (dir, connection)
    }

    /// So many dead letters, the ids rising; every 1,000th is of another kind.
    fn fill(connection: &Connection, letters: u32) {
        connection.execute_batch("BEGIN").unwrap();
        let mut event = connection
            .prepare(
                "INSERT INTO event (tenant, id, type, key, content_type, body_bytes, accepted_at, last) \
                 VALUES (1, ?1, ?3, ?4, 'x', 2, ?5, ?2)",
            )
            .unwrap();
        let mut delivery = connection
            .prepare(
                "INSERT INTO delivery (tenant, id, event, origin, endpoint, host, sequence, state, generation, revision, \
                 attempts, counted, interrupted, began_at, token, reason, last_status, finished_at) \
                 VALUES (1, ?1, ?2, 0, ?3, ?3, 1, 4, 1, 1, 1, 1, 0, ?6, 0, ?4, ?5, ?6)",
            )
            .unwrap();
        for n in 0..letters {
            let id = |part: u32| (u128::from(n * 2 + part) << 64).to_be_bytes();
            let rare = n % 1_000 == 0;
            let at = i64::from(n);
            event.execute((id(0), id(1), if rare { "rare" } else { "push" }, format!("k{n}"), at)).unwrap();
            let (reason, status) = if rare { ("http_400", 400) } else { ("http_502", 502) };
            delivery.execute((id(1), id(0), n % 2 + 1, reason, status, at)).unwrap();
        }
        drop((event, delivery));
        connection.execute_batch("COMMIT").unwrap();
    }

    fn filters() -> Vec<(&'static str, DeadFilter)> {
        let none = DeadFilter::default;
        let text = |word: &str| Some(word.to_owned());
        vec![
            ("none", none()),
            ("endpoint", DeadFilter { endpoint: Some("crm".parse().unwrap()), ..none() }),
            ("host", DeadFilter { host: text("b.example"), ..none() }),
            ("reason", DeadFilter { reason: text("http_400"), ..none() }),
            ("status", DeadFilter { status: Some(400), ..none() }),
            ("since", DeadFilter { since: Some(Timestamp::from_millis(10)), ..none() }),
            ("ids", DeadFilter { ids: Some(vec![DeliveryId::from_u128(1); 3]), ..none() }),
            ("type", DeadFilter { event_type: text("rare"), ..none() }),
            ("source", DeadFilter { source: Some("github".parse().unwrap()), ..none() }),
            ("key", DeadFilter { key: text("k1000"), ..none() }),
            ("event", DeadFilter { event: Some(EventId::from_u128(1)), ..none() }),
            ("plugin_version", DeadFilter { plugin_version: Some(PluginVersionId::from_u128(1)), ..none() }),
            ("q", DeadFilter { q: text("k1000"), ..none() }),
        ]
    }

    fn plan(connection: &Connection, query: &Query) -> String {
        let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {}", query.sql)).unwrap();
        let steps = statement.query_map(params_from_iter(&query.values), |row| row.get::<_, String>(3)).unwrap();
        steps.collect::<rusqlite::Result<Vec<_>>>().unwrap().join("; ")
    }

    #[test]
    fn only_the_dead_are_looked_at() {
        let (_dir, connection) = open();
        let of_the_index = ["none", "endpoint", "host", "reason", "status", "since", "ids"];
        for (name, filter) in filters() {
            for beside in [Beside::Nothing, Beside::Hosts, Beside::Rows] {
                let mut query = query("d.id, d.reason", beside, TENANT, &filter, Some(Timestamp::ZERO));
                query.and("d.id < ? ORDER BY d.id DESC", Query::blob(TOP));
                let plan = plan(&connection, &query);
                let over =
                    if name == "key" { "SEARCH e USING INDEX event_key" } else { "INDEX delivery_dead (tenant=?" };
                assert!(plan.contains(over), "{name}: {plan}");
                assert!(!plan.contains("SCAN"), "{name}: {plan}");
                if name != "key" {
                    assert!(!plan.contains("TEMP B-TREE"), "{name}: {plan}");
                }
                if of_the_index.contains(&name) && beside == Beside::Nothing {
                    assert!(plan.contains("COVERING INDEX delivery_dead"), "{name}: {plan}");
                }
            }
        }
    }

    #[test]
    fn a_step_passes_by_what_does_not_match_and_finds_all_that_does() {
        let (_dir, connection) = open();
        fill(&connection, 45_000);
        let rare = DeadFilter { reason: Some("http_400".to_owned()), ..DeadFilter::default() };
        let by = |at| Timestamp::from_millis(at);
        let (mut all, mut below) = (Vec::new(), TOP);
        loop {
            let found = find(&connection, TENANT, (&rare, by(i64::MAX)), below, 7).unwrap();
            assert!(found.letters.len() <= 7);
            all.extend(found.letters);
            below = found.next;
            if found.end {
                break;
            }
        }
        assert_eq!(all.len(), 45);
        assert!(all.is_sorted_by(|a, b| a > b), "each once, from the newest on");
        let early = find(&connection, TENANT, (&rare, by(2_500)), TOP, 100).unwrap();
        assert_eq!((early.letters.len(), early.end), (3, true));
        assert_eq!(count_of(&connection, TENANT, &rare, None).unwrap(), 45);
        assert_eq!(count_of(&connection, TENANT, &rare, Some(by(2_500))).unwrap(), 3);
        let nobody = find(&connection, TenantKey(2), (&rare, by(i64::MAX)), TOP, 100).unwrap();
        assert!(nobody.letters.is_empty() && nobody.end);
    }

    /// `cargo test --lib -- --ignored --nocapture what_it_costs`
    #[test]
    #[ignore = "a measurement"]
    fn what_it_costs_at_100_000_dead_letters() {
        let (_dir, connection) = open();
        fill(&connection, 100_000);
        let took = |what: &mut dyn FnMut()| {
            let began = Instant::now();
            what();
            let took = began.elapsed();
            assert!(took.as_secs() < 5, "a reader's limit");
            format!("{:>8.2} ms", took.as_secs_f64() * 1e3)
        };
        for (name, filter) in filters() {
            let counted = took(&mut || assert!(count_of(&connection, TENANT, &filter, None).is_ok()));
            let grouped = took(&mut || drop(groups(&connection, TENANT, &filter, DeadBy::PluginVersion).unwrap()));
            let listed = took(&mut || drop(list(&connection, TENANT, &filter, TOP, 51).unwrap()));
            let by = Timestamp::from_millis(i64::MAX);
            let stepped = took(&mut || drop(find(&connection, TENANT, (&filter, by), TOP, 100).unwrap()));
            println!("{name:<15} count {counted}  groups {grouped}  list {listed}  step {stepped}");
        }
    }
}
