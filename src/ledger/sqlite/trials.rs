//! Trials: the rows, and putting back what a canary has ended.

use super::SqliteLedger;
use super::births::Needs;
use super::codec::{count, int, time, time_opt};
use super::fault::Fault;
use super::manage::{RedriveDead, standing};
use super::ordering::HELD;
use super::plugins::{by_id, in_use};
use super::writer::{Verb, Writer};
use crate::clock::Timestamp;
use crate::crash;
use crate::delivery::{Bounds, DeliveryId, DeliveryState, Name, PluginVersionId, Ratio, Said, Share, TrialId};
use crate::ledger::{
    AttemptRow, Begun, Compared, Course, DIFFERENCES_MAX, DeliveryDetail, DeliveryFilter, Difference, EndRow, EndTrial,
    Ending, Halves, LedgerError, NewTrial, Noted, PageRequest, PutBack, Records as _, Redriven, TRIALS_MAX, TenantKey,
    Told, TrialRow, Trials, VersionRow, VersionState,
};
use async_trait::async_trait;
use rusqlite::{Connection, Row, params};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// Deliveries looked at, and put back at most, in one step.
const STEP: u32 = 200;

const COLUMNS: &str = "id, tenant, plugin, version, active, kind, share, max_fault, max_terminal, min_calls, figures, \
                       began_at, by, how, ended_at, ended_by, why, put_back, unsettled";

fn damaged() -> Fault {
    Fault::damaged("a trial of a plugin that cannot be read")
}

/// [`Compared`] as it is written.
#[derive(Serialize, Deserialize)]
struct Pairs {
    pairs: Vec<(Said, Said, u64)>,
    same: u64,
    requests: u64,
    left_out: u64,
}

fn written(course: &Course) -> Result<String, Fault> {
    let text = match course {
        Course::Shadow(Compared { pairs, same, requests, left_out }) => serde_json::to_string(&Pairs {
            pairs: pairs.iter().map(|((from, to), times)| (*from, *to, *times)).collect(),
            same: *same,
            requests: *requests,
            left_out: *left_out,
        }),
        Course::Canary { halves, .. } => serde_json::to_string(halves),
    };
    text.map_err(|_| damaged())
}

fn course(row: &Row<'_>) -> Result<Course, Fault> {
    let figures: String = row.get(10)?;
    let ratio = |column| Ratio::of_ten_thousand(row.get(column)?).ok_or_else(damaged);
    Ok(match row.get::<_, i64>(5)? {
        0 => {
            let Pairs { pairs, same, requests, left_out } = serde_json::from_str(&figures).map_err(|_| damaged())?;
            let pairs = pairs.into_iter().map(|(from, to, times)| ((from, to), times)).collect();
            Course::Shadow(Compared { pairs, same, requests, left_out })
        }
        _ => Course::Canary {
            bounds: Bounds { max_fault_rate: ratio(7)?, max_terminal_rate: ratio(8)?, min_calls: row.get(9)? },
            halves: serde_json::from_str::<Halves>(&figures).map_err(|_| damaged())?,
        },
    })
}

fn trial_row(row: &Row<'_>) -> Result<TrialRow, Fault> {
    let plugin: String = row.get(2)?;
    let share = Ratio::of_ten_thousand(row.get(6)?).and_then(Share::new);
    let ended = match (row.get::<_, Option<i64>>(13)?, time_opt(row, 14)?, row.get(15)?) {
        (Some(how), Some(at), Some(by)) => Some(EndRow {
            how: match how {
                0 => Ending::Stopped,
                1 => Ending::Promoted,
                2 => Ending::Superseded,
                _ => Ending::RolledBack,
            },
            at,
            by,
            why: row.get(16)?,
            put_back: count(row.get(17)?),
            unsettled: row.get(18)?,
        }),
        (_, _, _) => None,
    };
    Ok(TrialRow {
        id: TrialId::from_bytes(row.get(0)?),
        tenant: TenantKey(row.get(1)?),
        plugin: plugin.parse().map_err(|_| damaged())?,
        version: PluginVersionId::from_bytes(row.get(3)?),
        active: PluginVersionId::from_bytes(row.get(4)?),
        share: share.ok_or_else(damaged)?,
        course: course(row)?,
        began_at: time(row, 11)?,
        by: row.get(12)?,
        ended,
    })
}

fn all(connection: &Connection, condition: &str, values: impl rusqlite::Params) -> Result<Vec<TrialRow>, Fault> {
    let mut statement = connection.prepare_cached(&format!("SELECT {COLUMNS} FROM plugin_trial WHERE {condition}"))?;
    let mut rows = statement.query(values)?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(trial_row(row)?);
    }
    Ok(all)
}

fn one(connection: &Connection, tenant: TenantKey, id: TrialId) -> Result<Option<TrialRow>, Fault> {
    Ok(all(connection, "tenant = ? AND id = ?", (tenant.0, id.to_bytes()))?.pop())
}

fn running(connection: &Connection, tenant: TenantKey, plugin: &Name) -> Result<Option<TrialRow>, Fault> {
    Ok(all(connection, "tenant = ? AND plugin = ? AND how IS NULL", (tenant.0, plugin.as_str()))?.pop())
}

fn newest(connection: &Connection, tenant: TenantKey, plugin: &Name) -> Result<Option<TrialRow>, Fault> {
    let condition = "tenant = ? AND plugin = ? ORDER BY id DESC LIMIT 1";
    Ok(all(connection, condition, (tenant.0, plugin.as_str()))?.pop())
}

fn end(
    connection: &Connection,
    row: &TrialRow,
    (how, by, why): (Ending, &str, Option<&str>),
    now: Timestamp,
) -> Result<(), Fault> {
    let code = match how {
        Ending::Stopped => 0,
        Ending::Promoted => 1,
        Ending::Superseded => 2,
        Ending::RolledBack => 3,
    };
    // What is in use answers for its own dead letters.
    let unsettled = matches!(row.course, Course::Canary { .. }) && how != Ending::Promoted;
    connection
        .prepare_cached(
            "UPDATE plugin_trial SET how = ?2, ended_at = ?3, ended_by = ?4, why = ?5, unsettled = ?6 WHERE id = ?1",
        )?
        .execute((row.id.to_bytes(), code, now.as_millis(), by, why, unsettled))?;
    Ok(())
}

/// Another version, or none, is in use from this transaction on: whatever ran beside the one before has ended.
pub(super) fn end_by_change(
    connection: &Connection,
    (tenant, plugin): (TenantKey, &Name),
    version: Option<PluginVersionId>,
    by: &str,
    now: Timestamp,
) -> Result<(), Fault> {
    let Some(row) = running(connection, tenant, plugin)? else { return Ok(()) };
    let how = if version == Some(row.version) { Ending::Promoted } else { Ending::Superseded };
    end(connection, &row, (how, by, None), now)
}

struct Begin {
    trial: NewTrial,
    now: Timestamp,
}

impl Verb for Begin {
    type Done = Begun;

    fn needs(&self) -> Needs {
        Needs::None
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Begun, Fault> {
        let NewTrial { tenant, plugin, version, share, canary, by } = &self.trial;
        let connection = w.connection;
        let of_this = "SELECT 1 FROM plugin_version WHERE tenant = ? AND plugin = ? AND id = ?";
        let there = connection.prepare_cached(of_this)?.exists((tenant.0, plugin.as_str(), version.to_bytes()))?;
        let Some(row) = by_id(connection, *tenant, *version)?.filter(|_| there) else { return Ok(Begun::NotFound) };
        match row {
            VersionRow { state: VersionState::Ready, uploaded: Some(_), .. } => {}
            row => return Ok(Begun::NotReady(row)),
        }
        if let Some(running) = running(connection, *tenant, plugin)? {
            return Ok(Begun::Running(running));
        }
        let active = match in_use(connection, *tenant, plugin)? {
            None => return Ok(Begun::NothingInUse),
            Some(active) if active == *version => return Ok(Begun::InUse),
            Some(active) => active,
        };
        let row = TrialRow {
            id: TrialId::from(w.shared.mint.mint(self.now, &*w.shared.entropy)),
            tenant: *tenant,
            plugin: plugin.clone(),
            version: *version,
            active,
            share: *share,
            course: match canary {
                None => Course::Shadow(Compared::default()),
                Some(bounds) => Course::Canary { bounds: *bounds, halves: Halves::default() },
            },
            began_at: self.now,
            by: by.clone(),
            ended: None,
        };
        connection
            .prepare_cached(
                "INSERT INTO plugin_trial (id, tenant, plugin, version, active, kind, share, max_fault, max_terminal, \
                 min_calls, figures, began_at, by) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            )?
            .execute(params![
                row.id.to_bytes(),
                tenant.0,
                plugin.as_str(),
                version.to_bytes(),
                active.to_bytes(),
                canary.is_some(),
                share.ratio().ten_thousandths(),
                canary.map(|bounds| bounds.max_fault_rate.ten_thousandths()),
                canary.map(|bounds| bounds.max_terminal_rate.ten_thousandths()),
                canary.map(|bounds| bounds.min_calls),
                written(&row.course)?,
                self.now.as_millis(),
                by,
            ])?;
        drop_oldest(connection, *tenant, plugin)?;
        Ok(Begun::Done(row))
    }
}

fn drop_oldest(connection: &Connection, tenant: TenantKey, plugin: &Name) -> Result<(), Fault> {
    let old = "SELECT id FROM plugin_trial WHERE tenant = ?1 AND plugin = ?2 AND unsettled = 0 \
               ORDER BY id DESC LIMIT -1 OFFSET ?3";
    let values = (tenant.0, plugin.as_str(), int(TRIALS_MAX as u64));
    let rows = format!("DELETE FROM plugin_trial_difference WHERE trial IN ({old})");
    connection.prepare_cached(&rows)?.execute(values)?;
    connection.prepare_cached(&format!("DELETE FROM plugin_trial WHERE id IN ({old})"))?.execute(values)?;
    Ok(())
}

struct Note {
    tenant: TenantKey,
    trial: TrialId,
    noted: Noted,
}

impl Verb for Note {
    type Done = ();

    fn needs(&self) -> Needs {
        Needs::None
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<(), Fault> {
        let Some(mut row) = one(w.connection, self.tenant, self.trial)? else { return Ok(()) };
        match (&mut row.course, &self.noted) {
            (Course::Shadow(compared), Noted::Shadow { more, differences }) => {
                compared.add(more);
                add_differences(w.connection, self.trial, differences)?;
            }
            (Course::Canary { halves, .. }, Noted::Canary { canary, active, window }) => {
                halves.canary.add_all(canary);
                halves.active.add_all(active);
                halves.window = *window;
            }
            (Course::Shadow(_), Noted::Canary { .. }) | (Course::Canary { .. }, Noted::Shadow { .. }) => {
                return Err(damaged());
            }
        }
        w.connection
            .prepare_cached("UPDATE plugin_trial SET figures = ?2 WHERE id = ?1")?
            .execute((self.trial.to_bytes(), written(&row.course)?))?;
        Ok(())
    }
}

fn add_differences(connection: &Connection, trial: TrialId, differences: &[Difference]) -> Result<(), Fault> {
    let last = "SELECT coalesce(max(seq), 0) FROM plugin_trial_difference WHERE trial = ?";
    let mut seq: i64 = connection.prepare_cached(last)?.query_row([trial.to_bytes()], |row| row.get(0))?;
    let mut insert = connection.prepare_cached(
        "INSERT INTO plugin_trial_difference (trial, seq, at, delivery, attempt, said, why, to_said, to_why, request) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )?;
    let newest = differences.len().saturating_sub(DIFFERENCES_MAX);
    for difference in &differences[newest..] {
        seq += 1;
        insert.execute(params![
            trial.to_bytes(),
            seq,
            difference.at.as_millis(),
            difference.delivery.to_bytes(),
            difference.attempt,
            difference.from.said.as_str(),
            difference.from.why,
            difference.to.said.as_str(),
            difference.to.why,
            difference.request,
        ])?;
    }
    connection
        .prepare_cached("DELETE FROM plugin_trial_difference WHERE trial = ? AND seq <= ?")?
        .execute((trial.to_bytes(), seq - int(DIFFERENCES_MAX as u64)))?;
    Ok(())
}

struct End {
    end: EndTrial,
    now: Timestamp,
}

impl Verb for End {
    type Done = Option<TrialRow>;

    fn needs(&self) -> Needs {
        Needs::None
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Option<TrialRow>, Fault> {
        let EndTrial { tenant, trial, how, by, why } = &self.end;
        let Some(row) = one(w.connection, *tenant, *trial)?.filter(|row| row.ended.is_none()) else {
            return Ok(None);
        };
        end(w.connection, &row, (*how, by, why.as_deref()), self.now)?;
        one(w.connection, *tenant, *trial)
    }
}

/// A delivery that the canary was the last to judge, as a reader saw it.
struct Touched {
    delivery: DeliveryId,
    generation: u32,
    attempts: u32,
    /// Attempts of this generation that count and that others made.
    counted: u32,
    /// The canary made it wait.
    waits: bool,
    /// Its attempt under way is known to have begun with a budget that the canary had spent.
    known: bool,
}

impl Touched {
    /// `None`: the canary had no part in how it stands.
    fn of(detail: &DeliveryDetail, trial: &TrialRow, held: &BTreeSet<Name>, since: Timestamp) -> Option<Self> {
        let row = &detail.delivery;
        // By its end: who judges an attempt is chosen after its start.
        let ended_at = |a: &AttemptRow| a.started_at.plus(Duration::from_millis(a.duration_ms.unwrap_or_default()));
        let of_canary = |a: &AttemptRow| a.plugin_version == Some(trial.version) && ended_at(a) >= trial.began_at;
        let counts = |a: &&AttemptRow| {
            a.generation == row.generation && a.disposition.as_deref().is_some_and(|word| word != "released")
        };
        let by_canary = detail.attempts.iter().filter(counts).any(of_canary);
        let last = detail.attempts.last()?;
        let touched = match row.state {
            DeliveryState::Dead => {
                // By its word, or since it had spent the budget.
                let spent = by_canary && last.verdict.as_deref() != Some("terminal");
                (of_canary(last) || spent) && !(last.ambiguous && held.contains(&row.endpoint))
            }
            DeliveryState::Pending | DeliveryState::InFlight => by_canary,
            DeliveryState::Delivered
            | DeliveryState::Skipped
            | DeliveryState::Expired
            | DeliveryState::Cancelled
            | DeliveryState::Resolved => false,
        };
        let others = detail.attempts.iter().filter(counts).filter(|a| !of_canary(a)).count();
        touched.then(|| Touched {
            delivery: row.id,
            generation: row.generation,
            attempts: row.attempt_count,
            counted: u32::try_from(others).unwrap_or(u32::MAX),
            waits: row.state == DeliveryState::Pending && of_canary(last),
            known: row.state == DeliveryState::InFlight && last.started_at <= since,
        })
    }
}

/// One step, in one transaction: what was done and that it was done.
struct PutBackStep {
    tenant: TenantKey,
    trial: TrialId,
    note: String,
    touched: Vec<Touched>,
    now: Timestamp,
}

impl Verb for PutBackStep {
    type Done = PutBack;

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<PutBack, Fault> {
        let mut done = PutBack::default();
        for touched in &self.touched {
            let id = touched.delivery.to_bytes();
            let Some(standing) = standing(w.connection, self.tenant, touched.delivery)? else { continue };
            if standing.generation != touched.generation {
                continue;
            }
            if matches!(standing.state, DeliveryState::Pending | DeliveryState::InFlight) {
                let lowered = w
                    .connection
                    .prepare_cached(
                        "UPDATE delivery SET counted = ?3 \
                         WHERE tenant = ?1 AND id = ?2 AND state IN (0, 1) AND attempts = ?4 AND counted > ?3",
                    )?
                    .execute((self.tenant.0, id, touched.counted, touched.attempts))?;
                if standing.state == DeliveryState::InFlight {
                    done.under_way += u64::from(lowered > 0 || touched.known);
                    done.found += u64::from(lowered > 0);
                } else if touched.waits {
                    w.connection
                        .prepare_cached(
                            "UPDATE delivery SET due_at = ?3 \
                             WHERE tenant = ?1 AND id = ?2 AND state = 0 AND attempts = ?4 \
                             AND due_at > ?3 AND due_at < ?5",
                        )?
                        .execute((self.tenant.0, id, self.now.as_millis(), touched.attempts, HELD.as_millis()))?;
                    w.wake(standing.endpoint, self.now, self.now);
                }
                continue;
            }
            let mut redrive = RedriveDead {
                tenant: self.tenant,
                delivery: touched.delivery,
                asked: None,
                note: Some(self.note.clone()),
                payload: None,
                now: self.now,
            };
            // Anything else: it is not dead any more, has expired, or has nothing left to send.
            if let Some(Redriven::Done { .. }) = redrive.apply(w)? {
                done.put_back += 1;
            }
        }
        w.connection
            .prepare_cached("UPDATE plugin_trial SET put_back = put_back + ?2 WHERE id = ?1")?
            .execute((self.trial.to_bytes(), int(done.put_back)))?;
        Ok(done)
    }
}

struct SettleTrial {
    tenant: TenantKey,
    trial: TrialId,
}

impl Verb for SettleTrial {
    type Done = ();

    fn needs(&self) -> Needs {
        Needs::None
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<(), Fault> {
        w.connection
            .prepare_cached("UPDATE plugin_trial SET unsettled = 0 WHERE tenant = ? AND id = ?")?
            .execute((self.tenant.0, self.trial.to_bytes()))?;
        Ok(())
    }
}

fn differences(connection: &Connection, tenant: TenantKey, trial: TrialId) -> Result<Vec<Difference>, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT d.at, d.delivery, d.attempt, d.said, d.why, d.to_said, d.to_why, d.request \
         FROM plugin_trial_difference d JOIN plugin_trial t ON t.id = d.trial \
         WHERE t.tenant = ? AND d.trial = ? ORDER BY d.seq DESC",
    )?;
    let mut rows = statement.query((tenant.0, trial.to_bytes()))?;
    let said = |row: &Row<'_>, column: usize| -> Result<Said, Fault> {
        Said::parse(&row.get::<_, String>(column)?).ok_or_else(damaged)
    };
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(Difference {
            at: time(row, 0)?,
            delivery: DeliveryId::from_bytes(row.get(1)?),
            attempt: row.get(2)?,
            from: Told { said: said(row, 3)?, why: row.get(4)? },
            to: Told { said: said(row, 5)?, why: row.get(6)? },
            request: row.get(7)?,
        });
    }
    Ok(all)
}

impl SqliteLedger {
    /// Those of them that the canary was the last to judge, or whose budget it has spent.
    async fn touched(
        &self,
        trial: &TrialRow,
        rows: Vec<DeliveryId>,
        held: &BTreeSet<Name>,
        since: Timestamp,
    ) -> Result<Vec<Touched>, LedgerError> {
        let mut all = Vec::new();
        for id in rows {
            let detail = self.delivery(trial.tenant, id).await?;
            all.extend(detail.and_then(|detail| Touched::of(&detail, trial, held, since)));
        }
        Ok(all)
    }
}

#[async_trait]
impl Trials for SqliteLedger {
    async fn begin_trial(&self, trial: NewTrial, now: Timestamp) -> Result<Begun, LedgerError> {
        self.ask(Begin { trial, now }, 0).await
    }

    async fn note_trial(&self, tenant: TenantKey, trial: TrialId, noted: Noted) -> Result<(), LedgerError> {
        self.ask(Note { tenant, trial, noted }, 0).await
    }

    async fn end_trial(&self, end: EndTrial, now: Timestamp) -> Result<Option<TrialRow>, LedgerError> {
        self.ask(End { end, now }, 0).await
    }

    async fn newest_trial(&self, tenant: TenantKey, plugin: &Name) -> Result<Option<TrialRow>, LedgerError> {
        let plugin = plugin.clone();
        self.read(move |c| newest(c, tenant, &plugin)).await
    }

    async fn differences(&self, tenant: TenantKey, trial: TrialId) -> Result<Vec<Difference>, LedgerError> {
        self.read(move |c| differences(c, tenant, trial)).await
    }

    async fn unsettled_trials(&self) -> Result<Vec<TrialRow>, LedgerError> {
        self.read(|c| all(c, "unsettled = 1", [])).await
    }

    async fn put_back(
        &self,
        trial: &TrialRow,
        held: BTreeSet<Name>,
        since: Timestamp,
        now: Timestamp,
    ) -> Result<PutBack, LedgerError> {
        let why = trial.ended.as_ref().and_then(|ended| ended.why.as_deref());
        let how = trial.ended.as_ref().map_or("ended", |ended| ended.how.as_str());
        let note = format!(
            "put back by the gateway: the canary {} of `{}` was {}{}",
            trial.version,
            trial.plugin,
            how.replace('_', " "),
            why.map(|why| format!(" ({why})")).unwrap_or_default()
        );
        let mut all = PutBack::default();
        // What dies meanwhile is found among the dead, which come last.
        for state in [DeliveryState::InFlight, DeliveryState::Pending, DeliveryState::Dead] {
            let filter = DeliveryFilter { state: Some(state), ..DeliveryFilter::default() };
            let mut page = PageRequest { limit: STEP, cursor: None };
            loop {
                let found = self.deliveries(trial.tenant, &filter, &page).await?;
                let looked_at = found.items.iter().filter(|row| {
                    let since = row.finished_at.is_none_or(|at| at >= trial.began_at);
                    row.attempt_count > 0 && since && trial.share.takes(trial.id, row.id)
                });
                let rows = looked_at.map(|row| row.id).collect();
                let touched = self.touched(trial, rows, &held, since).await?;
                if !touched.is_empty() {
                    let (tenant, trial, note) = (trial.tenant, trial.id, note.clone());
                    let done = self.ask(PutBackStep { tenant, trial, note, touched, now }, 0).await?;
                    if done.put_back > 0 {
                        crash::point("T2");
                    }
                    all.put_back += done.put_back;
                    all.under_way += done.under_way;
                    all.found += done.found;
                }
                let Some(next) = found.next else { break };
                page.cursor = Some(next);
            }
        }
        Ok(all)
    }

    async fn settle_trial(&self, tenant: TenantKey, trial: TrialId) -> Result<(), LedgerError> {
        self.ask(SettleTrial { tenant, trial }, 0).await
    }
}
