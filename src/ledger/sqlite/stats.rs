//! The figures as they are read, the times an endpoint was closed, and how both grow old.

use super::SqliteLedger;
use super::codec::{int, status_columns, status_of, time, time_opt};
use super::fault::Fault;
use super::lists::name;
use super::records::endpoints;
use super::tally::{self, Place, Subject, Unit};
use super::writer::Writer;
use crate::clock::Timestamp;
use crate::delivery::EndpointStatus;
use crate::ledger::stats::{HOUR, floor, minutes_from};
use crate::ledger::{
    CLOSINGS_MAX, Closed, EndpointKey, EndpointState, EndpointStats, LedgerError, SourceKey, SourceStats, Stats,
    StatsQuery, StatsWindow, Tally, TenantKey, TenantStats,
};
use async_trait::async_trait;
use rusqlite::Connection;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Minutes that one batch of retention adds up.
const AGED_MAX: usize = 1_000;

#[async_trait]
impl Stats for SqliteLedger {
    async fn stats(&self, asked: &StatsQuery, now: Timestamp) -> Result<Option<TenantStats>, LedgerError> {
        let asked = asked.clone();
        self.read(move |c| stats(c, &asked, now)).await
    }
}

fn stats(connection: &Connection, asked: &StatsQuery, now: Timestamp) -> Result<Option<TenantStats>, Fault> {
    let wanted = |state: &EndpointState| asked.endpoint.as_ref().is_none_or(|name| *name == state.name);
    let states: Vec<EndpointState> = endpoints(connection, asked.tenant, now)?.into_iter().filter(wanted).collect();
    if states.is_empty() && asked.endpoint.is_some() {
        return Ok(None);
    }
    let only = asked.endpoint.as_ref().and_then(|_| states.first()).map(|state| Subject::Endpoint(state.key));
    let mut figures = figures(connection, asked, only)?;
    let mut oldest_dead = oldest_dead(connection, asked.tenant)?;
    let mut all = TenantStats::default();
    for state in states {
        let Figures { tally, mut buckets } = figures.remove(&Subject::Endpoint(state.key)).unwrap_or_default();
        buckets.resize_with(usize::try_from(asked.window.bucket_count()).unwrap_or(0), Tally::default);
        all.endpoints.push(EndpointStats {
            oldest_dead_at: oldest_dead.remove(&state.key),
            closed: closed(connection, state.key, &asked.window, now)?,
            tally,
            buckets,
            state,
        });
    }
    if only.is_none() {
        let mut sources = connection.prepare_cached("SELECT id, name FROM source WHERE tenant = ? ORDER BY name")?;
        let mut rows = sources.query([asked.tenant.0])?;
        let mut named = vec![(Subject::Published, None)];
        while let Some(row) = rows.next()? {
            named.push((Subject::Source(SourceKey(row.get(0)?)), Some(name(row, 1)?)));
        }
        for (subject, source) in named {
            let Figures { tally, .. } = figures.remove(&subject).unwrap_or_default();
            all.sources.push(SourceStats { source, tally });
        }
    }
    Ok(Some(all))
}

#[derive(Default)]
struct Figures {
    tally: Tally,
    /// As many as there are figures for.
    buckets: Vec<Tally>,
}

/// What was counted in the window, of one subject or of all of the tenant.
fn figures(
    connection: &Connection,
    asked: &StatsQuery,
    only: Option<Subject>,
) -> Result<HashMap<Subject, Figures>, Fault> {
    let window = asked.window;
    let mut all: HashMap<Subject, Figures> = HashMap::new();
    let mut add = |subject, at, tally: &Tally| {
        let figures = all.entry(subject).or_default();
        figures.tally.add_all(tally);
        if let Some(bucket) = window.bucket_of(at) {
            if figures.buckets.len() <= bucket {
                figures.buckets.resize_with(bucket + 1, Tally::default);
            }
            if let Some(into) = figures.buckets.get_mut(bucket) {
                into.add_all(tally);
            }
        }
    };
    let mut counted = connection.prepare_cached(
        "SELECT at, subject, counts FROM tally WHERE tenant = ?1 AND hourly = ?2 AND at >= ?3 AND at < ?4 \
         AND (?5 IS NULL OR subject = ?5)",
    )?;
    for unit in [Unit::Hour, Unit::Minute] {
        let span = (window.since().as_millis(), window.until().as_millis());
        let mut rows = counted.query((asked.tenant.0, unit as i64, span.0, span.1, only.map(Subject::number)))?;
        while let Some(row) = rows.next()? {
            let counts = row.get_ref(2)?.as_blob().map_err(|_| tally::damaged())?;
            add(Subject::numbered(row.get(1)?)?, time(row, 0)?, &tally::read(counts)?);
        }
    }
    let mut notes = connection.prepare_cached("SELECT counts FROM tally_note")?;
    let mut rows = notes.query([])?;
    while let Some(row) = rows.next()? {
        tally::read_note(row.get_ref(0)?.as_blob().map_err(|_| tally::damaged())?, |place, tally| {
            let within = place.tenant == asked.tenant && (window.since()..window.until()).contains(&place.at);
            if within && only.is_none_or(|only| only == place.subject) {
                add(place.subject, place.at, &tally);
            }
        })?;
    }
    Ok(all)
}

fn oldest_dead(connection: &Connection, tenant: TenantKey) -> Result<HashMap<EndpointKey, Timestamp>, Fault> {
    let mut oldest = connection.prepare_cached(
        "SELECT endpoint, min(finished_at) FROM delivery INDEXED BY delivery_dead WHERE state = 4 AND tenant = ? \
         GROUP BY endpoint",
    )?;
    let rows = oldest.query_map([tenant.0], |row| Ok((EndpointKey(row.get(0)?), time(row, 1)?)))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn closed(
    connection: &Connection,
    endpoint: EndpointKey,
    window: &StatsWindow,
    now: Timestamp,
) -> Result<Vec<Closed>, Fault> {
    let mut closings = connection.prepare_cached(
        "SELECT status, until, why, since FROM endpoint_closing WHERE endpoint = ?1 AND since < ?2 \
         AND (until IS NULL OR until > ?3)",
    )?;
    let mut rows = closings.query((endpoint.0, window.until().as_millis(), window.since().as_millis()))?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        let status = status_of(row.get(0)?, row.get(1)?, row.get(2)?);
        Closed::add(&mut all, status, (time(row, 3)?, time_opt(row, 1)?), window, now);
    }
    all.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| a.why.cmp(&b.why)));
    Ok(all)
}

impl Writer<'_> {
    /// With an endpoint's new status: one closing that goes on is one row.
    pub(super) fn note_closing(&mut self, endpoint: EndpointKey, status: &EndpointStatus) -> Result<(), Fault> {
        let now = self.shared.clock.now().as_millis();
        let last = "id = (SELECT max(id) FROM endpoint_closing WHERE endpoint = ?1) AND (until IS NULL OR until >= ?2)";
        let (code, until, why) = status_columns(status);
        let goes_on = format!("UPDATE endpoint_closing SET until = ?3 WHERE {last} AND status = ?4 AND why = ?5");
        if self.connection.prepare_cached(&goes_on)?.execute((endpoint.0, now, until, code, why))? > 0 {
            return Ok(());
        }
        let ends = format!("UPDATE endpoint_closing SET until = ?2 WHERE {last}");
        self.connection.prepare_cached(&ends)?.execute((endpoint.0, now))?;
        if let Some(why) = why {
            let begins = "INSERT INTO endpoint_closing (endpoint, status, why, since, until) VALUES (?, ?, ?, ?, ?)";
            self.connection.prepare_cached(begins)?.execute((endpoint.0, code, why, now, until))?;
            let too_many = "DELETE FROM endpoint_closing WHERE endpoint = ?1 AND id <= \
                            (SELECT id FROM endpoint_closing WHERE endpoint = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)";
            self.connection.prepare_cached(too_many)?.execute((endpoint.0, CLOSINGS_MAX))?;
        }
        Ok(())
    }
}

/// A tenant's figures that are too fine or too old by now.
pub(super) struct Aged {
    tenant: u32,
    /// Minutes before this become hours.
    hours_before: Timestamp,
    /// What was before this goes.
    gone_before: Timestamp,
}

/// The tenants that have such figures, as a reader sees it.
pub(super) fn aged(
    connection: &Connection,
    now: Timestamp,
    keep_for: impl Fn(u32) -> Duration,
) -> Result<Vec<Aged>, Fault> {
    let mut tenants = connection.prepare_cached("SELECT id FROM tenant")?;
    let mut is_there = connection.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM tally WHERE tenant = ?1 AND hourly = 0 AND at < ?2) \
         OR EXISTS (SELECT 1 FROM tally WHERE tenant = ?1 AND hourly = 1 AND at < ?3)",
    )?;
    let mut rows = tenants.query([])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        let tenant: u32 = row.get(0)?;
        let (hours_before, gone_before) = (minutes_from(now), floor(now.minus(keep_for(tenant)), HOUR));
        if is_there.query_row((tenant, hours_before.as_millis(), gone_before.as_millis()), |row| row.get(0))? {
            all.push(Aged { tenant, hours_before, gone_before });
        }
    }
    Ok(all)
}

/// Adds up and removes. Whether there may be more of it.
pub(super) fn age(connection: &Connection, aged: &Aged) -> Result<bool, Fault> {
    let Aged { tenant, hours_before, gone_before } = aged;
    let mut minutes = connection.prepare_cached(
        "SELECT at, subject, counts FROM tally WHERE tenant = ? AND hourly = 0 AND at < ? ORDER BY at, subject LIMIT ?",
    )?;
    let mut rows = minutes.query((tenant, hours_before.as_millis(), int(AGED_MAX as u64)))?;
    let (mut sums, mut seen, mut last) = (BTreeMap::new(), 0, None);
    while let Some(row) = rows.next()? {
        let (at, subject): (Timestamp, i64) = (time(row, 0)?, row.get(1)?);
        let place = Place { tenant: TenantKey(*tenant), at: floor(at, HOUR), subject: Subject::numbered(subject)? };
        let counts = row.get_ref(2)?.as_blob().map_err(|_| tally::damaged())?;
        sums.entry(place).or_insert_with(Tally::default).add_all(&tally::read(counts)?);
        last = Some((at.as_millis(), subject));
        seen += 1;
    }
    drop(rows);
    for (place, tally) in sums {
        tally::add(connection, Unit::Hour, place, tally)?;
    }
    if let Some((at, subject)) = last {
        connection
            .prepare_cached("DELETE FROM tally WHERE tenant = ?1 AND hourly = 0 AND (at, subject) <= (?2, ?3)")?
            .execute((tenant, at, subject))?;
    }
    let gone_before = gone_before.as_millis();
    connection
        .prepare_cached("DELETE FROM tally WHERE tenant = ? AND hourly = 1 AND at < ?")?
        .execute((tenant, gone_before))?;
    connection
        .prepare_cached(
            "DELETE FROM endpoint_closing WHERE until < ? AND endpoint IN (SELECT id FROM endpoint WHERE tenant = ?)",
        )?
        .execute((gone_before, tenant))?;
    Ok(seen == AGED_MAX)
}
