//! Alerts' rows, and the reads that they are judged by. None of these reads has births written first: a delivery whose
//! first attempt is under way is nothing to be alarmed by.

use super::SqliteLedger;
use super::births::Needs;
use super::codec::{count, int, state_of, status_of, time, time_opt};
use super::fault::Fault;
use super::health;
use super::lists::{Query, collect, name};
use super::records::{LIMIT_MAX, List, cursor, page_of, page_start};
use super::writer::{Verb, Writer};
use crate::clock::Timestamp;
use crate::delivery::{
    AlertId, AlertKind, AtRisk, DLQ_DEPTH_MAX, DeadFacts, DeliveryId, DeliveryState, EndpointFacts, EndpointStatus,
    EventId, Name, PluginFacts, Reading, Subject, is_at_risk,
};
use crate::ledger::{
    ALERTS_KEPT_MAX, AlertNotes, AlertQuestion, AlertRow, AlertTold, Alerts, DEADLINES_PAGE, DeadlinePage,
    DeadlinePlace, DeadlineQuestion, EndpointKey, KnownFacts, LedgerError, Page, PageRequest, STATUS_CHANGES_MAX,
    TenantKey, ToTell, WhichAlerts,
};
use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Row};
use std::collections::BTreeMap;

/// The oldest dead letters first: the count ends at its limit, the oldest is exact.
const DEAD: &str = "SELECT id, finished_at, endpoint FROM delivery INDEXED BY delivery_dead_since \
                    WHERE tenant = ?1 AND state = 4 ORDER BY finished_at LIMIT ?2";
const DEADLINES: &str = "SELECT id, deadline, last, deliver_at FROM event INDEXED BY event_deadline \
                         WHERE tenant = ?1 AND (deadline, id) > (?2, ?3) AND deadline <= ?4 \
                         ORDER BY deadline, id LIMIT ?5";
const OF_EVENT: &str = "SELECT id, endpoint, state FROM delivery WHERE tenant = ?1 AND id > ?2 AND id <= ?3 \
                        AND event = ?2";
const CHANGED: &str = "SELECT max(at) FROM endpoint_change WHERE endpoint = ?1 AND status = ?2";
const CLOSINGS: &str = "SELECT count(*) FROM endpoint_change WHERE endpoint = ?1 AND at > ?2";
/// The newest change of each plugin that had any, one step down the index for each.
const PLUGINS: &str = "SELECT p.plugin, a.at FROM (SELECT DISTINCT plugin FROM plugin_activation \
                       INDEXED BY plugin_activation_plugin WHERE tenant = ?1) p \
                       JOIN plugin_activation a ON a.id = (SELECT max(id) FROM plugin_activation \
                       WHERE tenant = ?1 AND plugin = p.plugin) WHERE a.what = 2";

const COLUMNS: &str = "a.id, a.tenant, t.name, a.kind, a.subject, a.value, a.threshold, a.since, a.due, a.sample, \
                       a.fired_at, a.cleared_at, a.told, a.event";

fn row(row: &Row<'_>) -> Result<AlertRow, Fault> {
    let (tenant, kind, subject): (u32, String, String) = (row.get(1)?, row.get(3)?, row.get(4)?);
    let told = match (row.get::<_, i64>(12)?, row.get::<_, Option<[u8; 16]>>(13)?) {
        (1, _) => AlertTold::NotYet,
        (_, Some(event)) => AlertTold::By(EventId::from_bytes(event)),
        (_, None) => AlertTold::Nobody,
    };
    Ok(AlertRow {
        id: AlertId::from_bytes(row.get(0)?),
        tenant: if tenant == 0 { None } else { Some((TenantKey(tenant), name(row, 2)?)) },
        reading: Reading {
            kind: AlertKind::parse(&kind).ok_or_else(|| Fault::damaged("an alert of no kind"))?,
            subject: Subject::parse(&subject).ok_or_else(|| Fault::damaged("an alert about nothing"))?,
            value: count(row.get(5)?),
            threshold: count(row.get(6)?),
            since: time_opt(row, 7)?,
            due: time_opt(row, 8)?,
            sample: row.get::<_, Option<[u8; 16]>>(9)?.map(DeliveryId::from_bytes),
        },
        fired_at: time(row, 10)?,
        cleared_at: time_opt(row, 11)?,
        told,
    })
}

fn dead(connection: &Connection, ask: &AlertQuestion) -> Result<(DeadFacts, DeadFacts), Fault> {
    let mut statement = connection.prepare_cached(DEAD)?;
    let mut rows = statement.query((ask.tenant.0, DLQ_DEPTH_MAX))?;
    let (mut dead, mut undelivered) = (DeadFacts::default(), DeadFacts::default());
    let (after, by) = ask.going;
    while let Some(row) = rows.next()? {
        let (died, endpoint) = (time(row, 1)?, EndpointKey(row.get(2)?));
        let facts = if ask.told_by == Some(endpoint) { &mut undelivered } else { &mut dead };
        facts.count += 1;
        let goes = died > after && died <= by;
        if facts.oldest.is_none() || goes && facts.first_going.is_none() {
            let id = DeliveryId::from_bytes(row.get(0)?);
            facts.oldest.get_or_insert((id, died));
            if goes {
                facts.first_going.get_or_insert((id, died));
            }
        }
        facts.going += u64::from(goes);
    }
    Ok((dead, undelivered))
}

/// Every endpoint, and those that do nothing but fail.
fn endpoints(connection: &Connection, ask: &AlertQuestion, known: &mut KnownFacts) -> Result<(), Fault> {
    let mut ended = super::ended::ended(connection, ask.tenant, ask.ended_since)?;
    let mut changed = connection.prepare_cached(CHANGED)?;
    let mut closings = connection.prepare_cached(CLOSINGS)?;
    let columns = health::COLUMNS;
    let mut each = connection
        .prepare_cached(&format!("SELECT id, name, status, until, why, {columns} FROM endpoint WHERE tenant = ?"))?;
    let mut rows = each.query([ask.tenant.0])?;
    while let Some(row) = rows.next()? {
        let (id, code, endpoint): (u32, i64, Name) = (row.get(0)?, row.get(2)?, name(row, 1)?);
        let status = status_of(code, row.get(3)?, row.get(4)?);
        let since = match status {
            EndpointStatus::Enabled => None,
            EndpointStatus::Paused { .. } | EndpointStatus::Disabled { .. } => {
                changed.query_row((id, code), |row| time_opt(row, 0))?
            }
        };
        match (&status, health::of_row(row, 5)?.failing) {
            (EndpointStatus::Disabled { .. }, _) | (_, None) => {}
            (EndpointStatus::Enabled | EndpointStatus::Paused { .. }, Some(failing)) => {
                known.failing.push((endpoint.clone(), failing));
            }
        }
        let closings = count(closings.query_row((id, ask.closings_since.as_millis()), |row| row.get(0))?);
        let ended = ended.remove(&EndpointKey(id)).unwrap_or_default();
        known.endpoints.push(EndpointFacts { name: endpoint, status, since, closings, ended });
    }
    Ok(())
}

fn plugins(connection: &Connection, tenant: TenantKey) -> Result<Vec<PluginFacts>, Fault> {
    let mut statement = connection.prepare_cached(PLUGINS)?;
    let mut rows = statement.query([tenant.0])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(PluginFacts { name: name(row, 0)?, disabled_at: time(row, 1)? });
    }
    Ok(all)
}

fn facts(connection: &Connection, ask: &AlertQuestion) -> Result<KnownFacts, Fault> {
    let (dead, undelivered) = dead(connection, ask)?;
    let plugins = plugins(connection, ask.tenant)?;
    let mut known = KnownFacts { dead, undelivered, plugins, ..KnownFacts::default() };
    endpoints(connection, ask, &mut known)?;
    Ok(known)
}

/// The time in an id of ours.
fn minted_at(id: [u8; 16]) -> Timestamp {
    let millis = u128::from_be_bytes(id) >> 80;
    Timestamp::from_millis(i64::try_from(millis).unwrap_or(i64::MAX))
}

fn deadlines(connection: &Connection, ask: &DeadlineQuestion) -> Result<DeadlinePage, Fault> {
    // A deadline that has passed is followed for as long again.
    let from = ask.now.minus(ask.margin);
    let (after, id) = ask.after.map_or((from, [0xff; 16]), |place| (place.deadline, place.event.to_bytes()));
    let mut statement = connection.prepare_cached(DEADLINES)?;
    let mut of_event = connection.prepare_cached(OF_EVENT)?;
    let to = ask.now.plus(ask.margin);
    let mut rows =
        statement.query((ask.tenant.0, after.as_millis(), id, to.as_millis(), int(DEADLINES_PAGE as u64)))?;
    let mut by_endpoint: BTreeMap<u32, (u64, Timestamp, DeliveryId)> = BTreeMap::new();
    let (mut seen, mut last_seen) = (0, None);
    while let Some(row) = rows.next()? {
        let (event, deadline, last): ([u8; 16], _, [u8; 16]) = (row.get(0)?, time(row, 1)?, row.get(2)?);
        seen += 1;
        last_seen = Some(DeadlinePlace { deadline, event: EventId::from_bytes(event) });
        let start = minted_at(event).max(time_opt(row, 3)?.unwrap_or(Timestamp::ZERO));
        if !is_at_risk(start, deadline, ask.margin, ask.now) {
            continue;
        }
        let mut own = of_event.query((ask.tenant.0, event, last))?;
        while let Some(delivery) = own.next()? {
            match state_of(delivery.get(2)?)? {
                DeliveryState::Pending | DeliveryState::InFlight | DeliveryState::Dead => {}
                DeliveryState::Delivered
                | DeliveryState::Skipped
                | DeliveryState::Expired
                | DeliveryState::Cancelled
                | DeliveryState::Resolved => continue,
            }
            let sample = DeliveryId::from_bytes(delivery.get(0)?);
            by_endpoint.entry(delivery.get(1)?).or_insert((0, deadline, sample)).0 += 1;
        }
    }
    let mut named = connection.prepare_cached("SELECT name FROM endpoint WHERE id = ?")?;
    let mut at_risk = Vec::with_capacity(by_endpoint.len());
    for (endpoint, (count, deadline, sample)) in by_endpoint {
        let name: Option<String> = named.query_row([endpoint], |row| row.get(0)).optional()?;
        let endpoint: Name = name
            .and_then(|name| name.parse().ok())
            .ok_or_else(|| Fault::damaged("a delivery to an endpoint that does not exist"))?;
        at_risk.push(AtRisk { endpoint, count, deadline, sample });
    }
    Ok(DeadlinePage { at_risk, next: last_seen.filter(|_| seen == DEADLINES_PAGE) })
}

fn open(connection: &Connection) -> Result<Vec<AlertRow>, Fault> {
    // Two reads, for which there is an index each.
    let mut all = Vec::new();
    for condition in ["a.cleared_at IS NULL", "a.told = 1 AND a.cleared_at IS NOT NULL"] {
        let sql = format!("SELECT {COLUMNS} FROM alert a LEFT JOIN tenant t ON t.id = a.tenant WHERE {condition}");
        all.extend(collect(connection, &Query::new(&sql), row)?);
    }
    Ok(all)
}

fn list(
    connection: &Connection,
    tenant: Option<TenantKey>,
    which: WhichAlerts,
    before: [u8; 16],
    limit: u32,
) -> Result<Vec<AlertRow>, Fault> {
    let sql = format!("SELECT {COLUMNS} FROM alert a LEFT JOIN tenant t ON t.id = a.tenant WHERE a.id < ?");
    let mut query = Query::new(&sql);
    query.values.push(Query::blob(before));
    query.and_opt("a.tenant = ?", tenant.map(|tenant| i64::from(tenant.0)));
    match which {
        WhichAlerts::All => {}
        WhichAlerts::Firing => query.sql.push_str(" AND a.cleared_at IS NULL"),
    }
    query.sql.push_str(" ORDER BY a.id DESC LIMIT ?");
    query.values.push(i64::from(limit).into());
    collect(connection, &query, row)
}

/// The notes, with an id for each alert that fires.
struct Note {
    notes: AlertNotes,
    ids: Vec<[u8; 16]>,
    now: Timestamp,
}

impl Verb for Note {
    type Done = Vec<AlertRow>;

    fn needs(&self) -> Needs {
        Needs::None
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Vec<AlertRow>, Fault> {
        let tenant = self.notes.tenant.map_or(0, |tenant| tenant.0);
        let mut clear =
            w.connection.prepare_cached("UPDATE alert SET cleared_at = ?2 WHERE id = ?1 AND cleared_at IS NULL")?;
        for id in &self.notes.clears {
            clear.execute((id.to_bytes(), self.now.as_millis()))?;
        }
        let mut follow = w.connection.prepare_cached(
            "UPDATE alert SET value = ?2, since = ?3, due = ?4, sample = ?5 WHERE id = ?1 AND cleared_at IS NULL",
        )?;
        for (id, reading) in &self.notes.moves {
            let Reading { value, since, due, sample, .. } = reading;
            follow.execute((
                id.to_bytes(),
                int(*value),
                since.map(Timestamp::as_millis),
                due.map(Timestamp::as_millis),
                sample.map(DeliveryId::to_bytes),
            ))?;
        }
        let mut insert = w.connection.prepare_cached(
            "INSERT INTO alert (id, tenant, kind, subject, value, threshold, since, due, sample, fired_at, told) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) \
             ON CONFLICT (tenant, kind, subject) WHERE cleared_at IS NULL DO NOTHING",
        )?;
        let mut one = w.connection.prepare_cached(&format!(
            "SELECT {COLUMNS} FROM alert a LEFT JOIN tenant t ON t.id = a.tenant WHERE a.id = ?"
        ))?;
        let mut fired = Vec::new();
        for (id, (reading, to_tell)) in self.ids.iter().zip(&self.notes.fires) {
            let new = insert.execute(rusqlite::params![
                id,
                tenant,
                reading.kind.as_str(),
                reading.subject.to_string(),
                int(reading.value),
                int(reading.threshold),
                reading.since.map(Timestamp::as_millis),
                reading.due.map(Timestamp::as_millis),
                reading.sample.map(DeliveryId::to_bytes),
                self.now.as_millis(),
                i64::from(*to_tell == ToTell::Yes),
            ])?;
            if new > 0 {
                let mut rows = one.query([id])?;
                if let Some(found) = rows.next()? {
                    fired.push(row(found)?);
                }
            }
        }
        w.connection
            .prepare_cached(
                "DELETE FROM alert WHERE tenant = ?1 AND cleared_at IS NOT NULL AND told <> 1 AND id <= \
                 (SELECT id FROM alert WHERE tenant = ?1 AND cleared_at IS NOT NULL ORDER BY id DESC LIMIT 1 OFFSET ?2)",
            )?
            .execute((tenant, ALERTS_KEPT_MAX))?;
        Ok(fired)
    }
}

struct NoteTold(AlertId, Option<EventId>);

impl Verb for NoteTold {
    type Done = ();

    fn needs(&self) -> Needs {
        Needs::None
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<(), Fault> {
        let told = if self.1.is_some() { 2 } else { 0 };
        w.connection.prepare_cached("UPDATE alert SET told = ?2, event = ?3 WHERE id = ?1 AND told = 1")?.execute((
            self.0.to_bytes(),
            told,
            self.1.map(EventId::to_bytes),
        ))?;
        Ok(())
    }
}

/// Remembers that an endpoint closes; a pause that is only made longer goes on.
pub(super) fn note_closing(
    connection: &Connection,
    endpoint: EndpointKey,
    before: &EndpointStatus,
    after: &EndpointStatus,
    now: Timestamp,
) -> Result<(), Fault> {
    let status = match (before, after) {
        (_, EndpointStatus::Enabled) | (EndpointStatus::Disabled { .. }, EndpointStatus::Disabled { .. }) => {
            return Ok(());
        }
        (before, EndpointStatus::Paused { .. }) if !before.is_open(now) => return Ok(()),
        (_, EndpointStatus::Paused { .. }) => 1,
        (_, EndpointStatus::Disabled { .. }) => 2,
    };
    connection
        .prepare_cached("INSERT OR REPLACE INTO endpoint_change (endpoint, at, status) VALUES (?, ?, ?)")?
        .execute((endpoint.0, now.as_millis(), status))?;
    connection
        .prepare_cached(
            "DELETE FROM endpoint_change WHERE endpoint = ?1 AND at <= \
             (SELECT at FROM endpoint_change WHERE endpoint = ?1 ORDER BY at DESC LIMIT 1 OFFSET ?2)",
        )?
        .execute((endpoint.0, STATUS_CHANGES_MAX))?;
    Ok(())
}

#[async_trait]
impl Alerts for SqliteLedger {
    async fn alert_facts(&self, question: AlertQuestion) -> Result<KnownFacts, LedgerError> {
        self.read_from(&self.readers, move |c| facts(c, &question)).await
    }

    async fn deadlines(&self, question: DeadlineQuestion) -> Result<DeadlinePage, LedgerError> {
        self.read_from(&self.readers, move |c| deadlines(c, &question)).await
    }

    fn disk_free_bytes(&self) -> Option<u64> {
        self.shared.files.disk_free_bytes()
    }

    async fn open_alerts(&self) -> Result<Vec<AlertRow>, LedgerError> {
        self.read_from(&self.readers, open).await
    }

    async fn note_alerts(&self, notes: AlertNotes, now: Timestamp) -> Result<Vec<AlertRow>, LedgerError> {
        let shared = &self.shared;
        let ids = notes.fires.iter().map(|_| shared.mint.mint(now, &*shared.entropy).to_bytes()).collect();
        self.ask(Note { notes, ids, now }, 0).await
    }

    async fn note_told(&self, alert: AlertId, by: Option<EventId>) -> Result<(), LedgerError> {
        self.ask(NoteTold(alert, by), 0).await
    }

    async fn alerts(
        &self,
        tenant: Option<TenantKey>,
        which: WhichAlerts,
        page: &PageRequest,
    ) -> Result<Page<AlertRow>, LedgerError> {
        let (limit, of) = (page.limit.clamp(1, LIMIT_MAX), tenant.unwrap_or(TenantKey(0)));
        let before = page_start(List::Alerts, of, page)?;
        let items = self.read_from(&self.readers, move |c| list(c, tenant, which, before, limit + 1)).await?;
        Ok(page_of(items, limit, |row| cursor(List::Alerts, of, row.id.to_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::sqlite::{Settings, schema};

    fn plan(connection: &Connection, sql: &str) -> String {
        let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        for parameter in 1..=statement.parameter_count() {
            statement.raw_bind_parameter(parameter, 1).unwrap();
        }
        let mut rows = statement.raw_query();
        let mut lines = Vec::new();
        while let Some(row) = rows.next().unwrap() {
            lines.push(row.get::<_, String>(3).unwrap());
        }
        lines.join("\n")
    }

    #[test]
    fn every_read_of_the_facts_goes_by_an_index() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.db");
        let connection = schema::open_writer(&path, &Settings::new(&path)).unwrap();
        for (sql, searched) in [
            (DEAD, "USING COVERING INDEX delivery_dead_since (tenant=?)"),
            (DEADLINES, "USING COVERING INDEX event_deadline (tenant=? AND (deadline,id)>(?,?) AND deadline<?)"),
            (OF_EVENT, "USING PRIMARY KEY (tenant=? AND id>? AND id<?)"),
            (CHANGED, "USING PRIMARY KEY (endpoint=?)"),
            (CLOSINGS, "USING PRIMARY KEY (endpoint=? AND at>?)"),
            (super::super::ended::MINUTES, "USING PRIMARY KEY (tenant=? AND hourly=? AND at>?)"),
            (PLUGINS, "USING COVERING INDEX plugin_activation_plugin (tenant=?)"),
            // All of a partial index, which holds nothing else.
            ("SELECT id FROM alert a WHERE a.cleared_at IS NULL", "SCAN a USING INDEX alert_firing"),
            ("SELECT id FROM alert a WHERE a.told = 1 AND a.cleared_at IS NOT NULL", "SCAN a USING INDEX alert_untold"),
        ] {
            let plan = plan(&connection, sql);
            assert!(plan.contains(searched), "{sql}\n{plan}");
            assert!(!plan.contains("TEMP B-TREE"), "{sql}\n{plan}");
        }
    }
}
