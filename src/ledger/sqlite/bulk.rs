//! Operations: their rows, and the steps in which they go on. A reader finds the next letters, or events; the writer looks at each
//! again, and notes in the same transaction how far the operation has come.

use super::SqliteLedger;
use super::births::Needs;
use super::codec::{count, int, state_of, time, time_opt};
use super::dead::{self, Found, TOP};
use super::fault::Fault;
use super::manage::RedriveDead;
use super::records::{LIMIT_MAX, List, cursor, page_of, page_start};
use super::replay;
use super::writer::{Verb, Writer};
use crate::clock::Timestamp;
use crate::delivery::{DeliveryId, DeliveryState, OperationId};
use crate::ledger::{
    Advanced, BULK_STEP_MAX, BegunOperation, DeadBy, DeadDestination, DeadFilter, DeadGroup, DeadLetters, DeliveryRow,
    LedgerError, NewOperation, OPERATIONS_KEPT_MAX, OPERATIONS_OPEN_MAX, OPERATIONS_RUNNING_MAX, OperationChange,
    OperationChanged, OperationRow, OperationState, Page, PageRequest, PurgePlace, Purged, Redriven, RequestId,
    Results, Skipped, TenantKey, Wave, WaveResult, Work,
};
use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use sha2::{Digest as _, Sha256};

/// Reasons of dead letters that an operation remembers; the rest are counted under none.
const REASONS_MAX: usize = 100;
/// Waves of one operation that can be told apart.
const WAVES: i64 = 16;

const COLUMNS: &str = "number, tenant, id, state, filter, died_by, before, total, most, rate, wave, wave_size, wave_left, \
                       done, expired, erased, gone, reasons, note, by, began_at, started_at, ended_at, why, kind, under_way";

/// Kinds of operations, as they are written.
const REDRIVE: i64 = 0;
const REPLAY: i64 = 1;

fn damaged() -> Fault {
    Fault::damaged("an operation that cannot be read")
}

/// A row with what only the steps need.
struct Kept {
    number: i64,
    before: [u8; 16],
    row: OperationRow,
}

fn code(state: OperationState) -> i64 {
    match state {
        OperationState::Queued => 0,
        OperationState::Running => 1,
        OperationState::Paused => 2,
        OperationState::Done => 3,
        OperationState::Stopped => 4,
        OperationState::StoppedByCanary => 5,
    }
}

fn state(written: i64) -> Result<OperationState, Fault> {
    OperationState::ALL.into_iter().find(|state| code(*state) == written).ok_or_else(damaged)
}

fn kept(row: &Row<'_>) -> Result<Kept, Fault> {
    let counted = |column| -> Result<u64, Fault> { Ok(count(row.get(column)?)) };
    let written: String = row.get(4)?;
    let (work, died_by) = match row.get(24)? {
        REDRIVE => (serde_json::from_str(&written).map(Work::Redrive), Some(time(row, 5)?)),
        REPLAY => (serde_json::from_str(&written).map(Work::Replay), None),
        _ => return Err(damaged()),
    };
    let reasons: String = row.get(17)?;
    let number: u8 = row.get(10)?;
    let wave = Wave { number, size: counted(11)?, left: counted(12)? };
    Ok(Kept {
        number: row.get(0)?,
        before: row.get(6)?,
        row: OperationRow {
            id: OperationId::from_bytes(row.get(2)?),
            tenant: TenantKey(row.get(1)?),
            state: state(row.get(3)?)?,
            work: work.map_err(|_| damaged())?,
            died_by,
            total: row.get::<_, Option<i64>>(7)?.map(count),
            max: row.get::<_, Option<i64>>(8)?.map(count),
            rate: row.get(9)?,
            wave: (number > 0).then_some(wave),
            done: counted(13)?,
            skipped: Skipped {
                expired: counted(14)?,
                payload_erased: counted(15)?,
                gone: counted(16)?,
                under_way: counted(25)?,
            },
            results: Results::default(),
            old_reasons: serde_json::from_str(&reasons).map_err(|_| damaged())?,
            note: row.get(18)?,
            by: row.get(19)?,
            began_at: time(row, 20)?,
            started_at: time_opt(row, 21)?,
            ended_at: time_opt(row, 22)?,
            why: row.get(23)?,
        },
    })
}

fn all(connection: &Connection, condition: &str, values: impl rusqlite::Params) -> Result<Vec<Kept>, Fault> {
    let mut statement = connection.prepare_cached(&format!("SELECT {COLUMNS} FROM operation WHERE {condition}"))?;
    let mut rows = statement.query(values)?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(kept(row)?);
    }
    Ok(all)
}

fn one(connection: &Connection, tenant: TenantKey, id: OperationId) -> Result<Option<Kept>, Fault> {
    Ok(all(connection, "tenant = ? AND id = ?", (tenant.0, id.to_bytes()))?.pop())
}

/// With what became of its letters.
fn whole(connection: &Connection, kept: Kept) -> Result<OperationRow, Fault> {
    let Kept { number, mut row, .. } = kept;
    let mut statement = connection.prepare_cached(
        "SELECT state, count(*) FROM delivery INDEXED BY delivery_bulk WHERE bulk >= ?1 AND bulk < ?2 GROUP BY state",
    )?;
    let mut rows = statement.query((number * WAVES, (number + 1) * WAVES))?;
    let results = &mut row.results;
    while let Some(row) = rows.next()? {
        let letters = count(row.get(1)?);
        match state_of(row.get(0)?)? {
            DeliveryState::Delivered => results.delivered += letters,
            DeliveryState::Dead => results.dead_again += letters,
            DeliveryState::Pending | DeliveryState::InFlight => results.waiting += letters,
            DeliveryState::Skipped | DeliveryState::Expired | DeliveryState::Cancelled | DeliveryState::Resolved => {
                results.otherwise += letters;
            }
        }
    }
    Ok(row)
}

impl Writer<'_> {
    /// When a letter that dies now died: after everything that a bulk redrive under way means, whatever the clock says.
    pub(super) fn death_time(&self, tenant: TenantKey, now: Timestamp) -> Result<Timestamp, Fault> {
        let last: Option<i64> = self
            .connection
            .prepare_cached(
                "SELECT max(died_by) FROM operation INDEXED BY operation_open WHERE ended_at IS NULL AND tenant = ?",
            )?
            .query_row([tenant.0], |row| row.get(0))?;
        Ok(last.map_or(now, |last| now.max(Timestamp::from_millis(last.saturating_add(1)))))
    }
}

/// What a wish comes to as text, and its digest where it came with a request id.
fn wish(new: &NewOperation) -> Result<(String, Option<[u8; 32]>), LedgerError> {
    let (kind, filter) = match &new.work {
        Work::Redrive(filter) => ("redrive", serde_json::to_string(filter)),
        Work::Replay(replay) => ("replay", serde_json::to_string(replay)),
    };
    let filter = filter.map_err(|_| LedgerError::Unavailable("the filter cannot be written down".into()))?;
    let content = new.request.is_some().then(|| {
        let mut content = Sha256::new();
        for part in [kind, filter.as_str(), &format!("{:?}", (new.max, new.rate, new.canary, &new.note))] {
            content.update(part.len().to_be_bytes());
            content.update(part);
        }
        content.finalize().into()
    });
    Ok((filter, content))
}

fn before(
    connection: &Connection,
    tenant: TenantKey,
    request: Option<&RequestId>,
    content: Option<[u8; 32]>,
) -> Result<Option<BegunOperation>, Fault> {
    let Some(request) = request else { return Ok(None) };
    let before: Option<([u8; 16], [u8; 32])> = connection
        .prepare_cached("SELECT id, content FROM operation WHERE tenant = ? AND request = ?")?
        .query_row((tenant.0, request.as_str()), |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((id, of_then)) = before else { return Ok(None) };
    if Some(of_then) != content {
        return Ok(Some(BegunOperation::RequestReused));
    }
    let kept = one(connection, tenant, OperationId::from_bytes(id))?.ok_or_else(damaged)?;
    Ok(Some(BegunOperation::Before(Box::new(kept.row))))
}

/// What is dead now died by then: the clock may have been set back since.
pub(super) fn newest_death(connection: &Connection, now: Timestamp) -> Result<Timestamp, Fault> {
    let newest: Option<i64> = connection
        .prepare_cached("SELECT max(finished_at) FROM delivery INDEXED BY delivery_dead_age WHERE state = 4")?
        .query_row([], |row| row.get(0))?;
    Ok(newest.map_or(now, |newest| now.max(Timestamp::from_millis(newest))))
}

struct Begin {
    new: NewOperation,
    filter: String,
    content: Option<[u8; 32]>,
    now: Timestamp,
}

impl Verb for Begin {
    type Done = BegunOperation;

    fn needs(&self) -> Needs {
        Needs::None
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<BegunOperation, Fault> {
        let NewOperation { tenant, work, max, rate, canary, note, by, request } = &self.new;
        let connection = w.connection;
        if let Some(before) = before(connection, *tenant, request.as_ref(), self.content)? {
            return Ok(before);
        }
        let open: u32 = connection
            .prepare_cached("SELECT count(*) FROM operation WHERE ended_at IS NULL AND tenant = ?")?
            .query_row([tenant.0], |row| row.get(0))?;
        if open >= OPERATIONS_OPEN_MAX {
            return Ok(BegunOperation::TooMany);
        }
        let (kind, died_by, from) = match work {
            Work::Redrive(_) => (REDRIVE, newest_death(connection, self.now)?.as_millis(), TOP),
            Work::Replay(_) => (REPLAY, 0, replay::BOTTOM),
        };
        let id = OperationId::from(w.shared.mint.mint(self.now, &*w.shared.entropy));
        let wave = i64::from(*canary);
        connection
            .prepare_cached(
                "INSERT INTO operation (tenant, id, state, filter, died_by, before, most, rate, wave, wave_size, \
                 wave_left, note, by, request, content, began_at, kind) \
                 VALUES (?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            )?
            .execute(params![
                tenant.0,
                id.to_bytes(),
                self.filter,
                died_by,
                from,
                max.map(int),
                rate,
                wave,
                wave,
                wave,
                note,
                by,
                request.as_ref().map(RequestId::as_str),
                self.content,
                self.now.as_millis(),
                kind,
            ])?;
        connection
            .prepare_cached(
                "DELETE FROM operation WHERE number IN (SELECT number FROM operation \
                 WHERE tenant = ? AND ended_at IS NOT NULL ORDER BY number DESC LIMIT -1 OFFSET ?)",
            )?
            .execute((tenant.0, OPERATIONS_KEPT_MAX))?;
        let kept = one(connection, *tenant, id)?.ok_or_else(damaged)?;
        Ok(BegunOperation::Done(Box::new(kept.row)))
    }
}

/// How many there are, once.
struct SetTotal {
    tenant: TenantKey,
    id: OperationId,
    total: u64,
}

impl Verb for SetTotal {
    type Done = ();

    fn needs(&self) -> Needs {
        Needs::None
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<(), Fault> {
        w.connection
            .prepare_cached("UPDATE operation SET total = ?3 WHERE tenant = ?1 AND id = ?2 AND total IS NULL")?
            .execute((self.tenant.0, self.id.to_bytes(), int(self.total)))?;
        Ok(())
    }
}

struct Alter {
    tenant: TenantKey,
    id: OperationId,
    change: OperationChange,
    now: Timestamp,
}

impl Verb for Alter {
    type Done = Option<Result<(), OperationState>>;

    fn needs(&self) -> Needs {
        Needs::None
    }

    /// `None`: there is none. An error is the state in which it has ended.
    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Self::Done, Fault> {
        let Some(Kept { row, .. }) = one(w.connection, self.tenant, self.id)? else { return Ok(None) };
        let to = match (self.change, row.state) {
            (OperationChange::Stop, OperationState::Stopped) => return Ok(Some(Ok(()))),
            (_, ended) if ended.has_ended() => return Ok(Some(Err(ended))),
            (OperationChange::Stop, _) => OperationState::Stopped,
            (OperationChange::Pause, _) => OperationState::Paused,
            (OperationChange::Resume, OperationState::Paused) => OperationState::Queued,
            (OperationChange::Resume, _) => return Ok(Some(Ok(()))),
        };
        set_state(w.connection, (self.tenant, self.id), to, None, self.now)?;
        Ok(Some(Ok(())))
    }
}

fn set_state(
    connection: &Connection,
    (tenant, id): (TenantKey, OperationId),
    to: OperationState,
    why: Option<&str>,
    now: Timestamp,
) -> Result<(), Fault> {
    let ended = to.has_ended().then_some(now.as_millis());
    connection
        .prepare_cached("UPDATE operation SET state = ?3, why = ?4, ended_at = ?5 WHERE tenant = ?1 AND id = ?2")?
        .execute((tenant.0, id.to_bytes(), code(to), why, ended))?;
    Ok(())
}

struct Start {
    tenant: TenantKey,
    id: OperationId,
    now: Timestamp,
}

impl Verb for Start {
    type Done = bool;

    fn needs(&self) -> Needs {
        Needs::None
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<bool, Fault> {
        let started = w
            .connection
            .prepare_cached(
                "UPDATE operation SET state = 1, started_at = coalesce(started_at, ?3) \
                 WHERE tenant = ?1 AND id = ?2 AND state = 0 AND \
                 (SELECT count(*) FROM operation o WHERE o.tenant = ?1 AND o.ended_at IS NULL AND o.state = 1) < ?4",
            )?
            .execute((self.tenant.0, self.id.to_bytes(), self.now.as_millis(), OPERATIONS_RUNNING_MAX))?;
        Ok(started > 0)
    }
}

struct Advance {
    tenant: TenantKey,
    id: OperationId,
    /// Where the reader began.
    from: [u8; 16],
    found: Found,
    needs: Needs,
    now: Timestamp,
}

impl Verb for Advance {
    type Done = Advanced;

    fn needs(&self) -> Needs {
        self.needs
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Advanced, Fault> {
        let Some(Kept { number, before, mut row }) = one(w.connection, self.tenant, self.id)? else {
            return Ok(Advanced { over: true, ..Advanced::default() });
        };
        if row.state != OperationState::Running {
            return Ok(Advanced { over: true, ..Advanced::default() });
        }
        if before != self.from {
            return Ok(Advanced::default());
        }
        let bulk = number * WAVES + i64::from(row.wave.map_or(0, |wave| wave.number));
        let (done_before, skipped_before) = (row.done, row.skipped.sum());
        let work = row.work.clone();
        for id in &self.found.letters {
            match &work {
                Work::Redrive(_) => self.redrive(w, id, bulk, &mut row)?,
                Work::Replay(replay) => w.replay_one(replay, id, (number, bulk), &mut row, self.now)?,
            }
        }
        let at_most = row.max.is_some_and(|max| row.done >= max);
        if self.found.end && !at_most {
            // What went before its turn came.
            let seen = row.done + row.skipped.sum();
            row.skipped.gone += row.total.unwrap_or(seen).saturating_sub(seen);
        }
        let over = self.found.end || at_most;
        let done = row.done - done_before;
        let left = row.wave.map_or(0, |wave| wave.left.saturating_sub(done));
        let reasons = serde_json::to_string(&row.old_reasons).map_err(|_| damaged())?;
        w.connection
            .prepare_cached(
                "UPDATE operation SET before = ?3, done = ?4, expired = ?5, erased = ?6, gone = ?7, reasons = ?8, \
                 wave_left = ?9, under_way = ?10 WHERE tenant = ?1 AND id = ?2",
            )?
            .execute(params![
                self.tenant.0,
                self.id.to_bytes(),
                self.found.next,
                int(row.done),
                int(row.skipped.expired),
                int(row.skipped.payload_erased),
                int(row.skipped.gone),
                reasons,
                int(left),
                int(row.skipped.under_way),
            ])?;
        if over {
            set_state(w.connection, (self.tenant, self.id), OperationState::Done, None, self.now)?;
        }
        Ok(Advanced { done, skipped: row.skipped.sum() - skipped_before, over })
    }
}

impl Advance {
    fn redrive(&self, w: &mut Writer<'_>, id: &[u8; 16], bulk: i64, row: &mut OperationRow) -> Result<(), Fault> {
        let reason: Option<String> = w
            .connection
            .prepare_cached(
                "SELECT reason FROM delivery WHERE tenant = ? AND id = ? AND state = 4 AND finished_at <= ?",
            )?
            .query_row((self.tenant.0, id, row.died_by.map(Timestamp::as_millis)), |row| row.get(0))
            .optional()?;
        let Some(reason) = reason else {
            row.skipped.gone += 1;
            return Ok(());
        };
        let mut redrive = RedriveDead {
            tenant: self.tenant,
            delivery: DeliveryId::from_bytes(*id),
            asked: None,
            note: row.note.clone(),
            payload: None,
            now: self.now,
        };
        match redrive.apply(w)? {
            Some(Redriven::Done { .. }) => {
                w.connection.prepare_cached("UPDATE delivery SET bulk = ? WHERE tenant = ? AND id = ?")?.execute((
                    bulk,
                    self.tenant.0,
                    id,
                ))?;
                row.done += 1;
                let known = row.old_reasons.len() < REASONS_MAX || row.old_reasons.contains_key(&reason);
                *row.old_reasons.entry(if known { reason } else { String::new() }).or_default() += 1;
            }
            Some(Redriven::Expired) => row.skipped.expired += 1,
            Some(Redriven::PayloadErased) => row.skipped.payload_erased += 1,
            Some(Redriven::NotFound | Redriven::NotDead(_) | Redriven::RequestReused) | None => {
                row.skipped.gone += 1;
            }
        }
        Ok(())
    }
}

struct Widen {
    tenant: TenantKey,
    id: OperationId,
    after: u8,
    size: u64,
}

impl Verb for Widen {
    type Done = ();

    fn needs(&self) -> Needs {
        Needs::None
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<(), Fault> {
        // The last wave that can be told apart is for all that are left.
        let next = (i64::from(self.after) + 1).min(WAVES - 1);
        w.connection
            .prepare_cached(
                "UPDATE operation SET wave = ?4, wave_size = ?5, wave_left = ?5 \
                 WHERE tenant = ?1 AND id = ?2 AND state = 1 AND wave = ?3 AND wave_left = 0",
            )?
            .execute((self.tenant.0, self.id.to_bytes(), self.after, next, int(self.size)))?;
        Ok(())
    }
}

struct StopByCanary {
    tenant: TenantKey,
    id: OperationId,
    why: String,
    now: Timestamp,
}

impl Verb for StopByCanary {
    type Done = ();

    fn needs(&self) -> Needs {
        Needs::None
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<(), Fault> {
        let running = one(w.connection, self.tenant, self.id)?
            .is_some_and(|kept| kept.row.wave.is_some() && kept.row.state == OperationState::Running);
        if running {
            let operation = (self.tenant, self.id);
            set_state(w.connection, operation, OperationState::StoppedByCanary, Some(&self.why), self.now)?;
        }
        Ok(())
    }
}

fn wave_results(
    connection: &Connection,
    tenant: TenantKey,
    id: OperationId,
    wave: u8,
) -> Result<Vec<WaveResult>, Fault> {
    let Some(Kept { number, .. }) = one(connection, tenant, id)? else { return Ok(Vec::new()) };
    let mut statement = connection.prepare_cached(
        "SELECT state, counted > 0, reason, count(*) FROM delivery INDEXED BY delivery_bulk \
         WHERE bulk = ? GROUP BY state, reason, counted > 0",
    )?;
    let mut rows = statement.query([number * WAVES + i64::from(wave)])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        let state = state_of(row.get(0)?)?;
        let tried = row.get::<_, bool>(1)? || state.is_terminal();
        all.push(WaveResult { state, tried, reason: row.get(2)?, count: count(row.get(3)?) });
    }
    Ok(all)
}

impl SqliteLedger {
    async fn whole_operation(&self, tenant: TenantKey, id: OperationId) -> Result<Option<OperationRow>, LedgerError> {
        let read = move |c: &Connection| one(c, tenant, id)?.map(|kept| whole(c, kept)).transpose();
        self.read(read).await
    }

    /// Counts what it means. Where that takes too long, nobody knows.
    async fn count_operation(&self, row: &OperationRow) -> Result<(), LedgerError> {
        let (tenant, id, work, died_by) = (row.tenant, row.id, row.work.clone(), row.died_by);
        let read = move |c: &Connection| -> Result<u64, Fault> {
            // The runner may have been quick.
            let done = one(c, tenant, id)?.map_or(0, |kept| kept.row.done);
            match &work {
                Work::Redrive(filter) => Ok(dead::count_of(c, tenant, filter, died_by)? + done),
                Work::Replay(replay) => {
                    // Those of its own that it has made are no longer missed.
                    let made = if replay.only_missed { done } else { 0 };
                    Ok(replay::count_of(c, tenant, replay, id.to_bytes())? + made)
                }
            }
        };
        match self.read(read).await {
            Ok(total) => self.ask(SetTotal { tenant, id, total }, 0).await,
            Err(LedgerError::TooSlow { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[async_trait]
impl DeadLetters for SqliteLedger {
    async fn dead_letters(
        &self,
        tenant: TenantKey,
        filter: &DeadFilter,
        page: &PageRequest,
    ) -> Result<Page<DeliveryRow>, LedgerError> {
        let (filter, limit) = (filter.clone(), page.limit.clamp(1, LIMIT_MAX));
        let before = page_start(List::Deliveries, tenant, page)?;
        let items = self.read(move |c| dead::list(c, tenant, &filter, before, limit + 1)).await?;
        Ok(page_of(items, limit, |row| cursor(List::Deliveries, tenant, row.id.to_bytes())))
    }

    async fn count_dead(&self, tenant: TenantKey, filter: &DeadFilter) -> Result<u64, LedgerError> {
        let filter = filter.clone();
        self.read(move |c| dead::count_of(c, tenant, &filter, None)).await
    }

    async fn dead_groups(
        &self,
        tenant: TenantKey,
        filter: &DeadFilter,
        by: DeadBy,
    ) -> Result<Vec<DeadGroup>, LedgerError> {
        let filter = filter.clone();
        self.read(move |c| dead::groups(c, tenant, &filter, by)).await
    }

    async fn dead_destinations(
        &self,
        tenant: TenantKey,
        filter: &DeadFilter,
    ) -> Result<Vec<DeadDestination>, LedgerError> {
        let filter = filter.clone();
        self.read(move |c| dead::destinations(c, tenant, &filter)).await
    }

    async fn purge_dead(
        &self,
        tenant: TenantKey,
        filter: &DeadFilter,
        from: Option<PurgePlace>,
        now: Timestamp,
    ) -> Result<Purged, LedgerError> {
        let filter = filter.clone();
        let find = move |c: &Connection| -> Result<(Found, Timestamp), Fault> {
            let (died_by, below) = match from {
                Some(place) => (place.died_by, place.below.to_bytes()),
                None => (newest_death(c, now)?, TOP),
            };
            Ok((dead::find(c, tenant, (&filter, died_by), below, BULK_STEP_MAX)?, died_by))
        };
        let (found, died_by) = self.read(find).await?;
        if found.letters.is_empty() {
            return Ok(Purged { next: found.place(died_by), ..Purged::default() });
        }
        self.ask(dead::Purge { tenant, died_by, found, now }, 0).await
    }

    async fn begin_operation(&self, new: NewOperation, now: Timestamp) -> Result<BegunOperation, LedgerError> {
        let (filter, content) = wish(&new)?;
        let tenant = new.tenant;
        match self.ask(Begin { new, filter, content, now }, 0).await? {
            BegunOperation::Done(row) => {
                self.count_operation(&row).await?;
                let row = self.whole_operation(tenant, row.id).await?.unwrap_or(*row);
                Ok(BegunOperation::Done(Box::new(row)))
            }
            BegunOperation::Before(row) => {
                let row = self.whole_operation(tenant, row.id).await?.unwrap_or(*row);
                Ok(BegunOperation::Before(Box::new(row)))
            }
            refused @ (BegunOperation::RequestReused | BegunOperation::TooMany) => Ok(refused),
        }
    }

    async fn begun_before(&self, new: &NewOperation) -> Result<Option<BegunOperation>, LedgerError> {
        let ((_, content), tenant, request) = (wish(new)?, new.tenant, new.request.clone());
        let read = move |c: &Connection| -> Result<Option<BegunOperation>, Fault> {
            Ok(match before(c, tenant, request.as_ref(), content)? {
                Some(BegunOperation::Before(row)) => {
                    let kept = one(c, tenant, row.id)?.ok_or_else(damaged)?;
                    Some(BegunOperation::Before(Box::new(whole(c, kept)?)))
                }
                other => other,
            })
        };
        self.read(read).await
    }

    async fn operation(&self, tenant: TenantKey, id: OperationId) -> Result<Option<OperationRow>, LedgerError> {
        self.whole_operation(tenant, id).await
    }

    async fn operations(&self, tenant: TenantKey, page: &PageRequest) -> Result<Page<OperationRow>, LedgerError> {
        let limit = page.limit.clamp(1, LIMIT_MAX);
        let before = page_start(List::Operations, tenant, page)?;
        let read = move |c: &Connection| -> Result<Vec<OperationRow>, Fault> {
            let rows = all(c, "tenant = ? AND id < ? ORDER BY id DESC LIMIT ?", (tenant.0, before, limit + 1))?;
            rows.into_iter().map(|kept| whole(c, kept)).collect()
        };
        let items = self.read(read).await?;
        Ok(page_of(items, limit, |row| cursor(List::Operations, tenant, row.id.to_bytes())))
    }

    async fn open_operations(&self) -> Result<Vec<OperationRow>, LedgerError> {
        let read = |c: &Connection| all(c, "ended_at IS NULL ORDER BY number", []);
        Ok(self.read_contents(read).await?.into_iter().map(|kept| kept.row).collect())
    }

    async fn change_operation(
        &self,
        tenant: TenantKey,
        id: OperationId,
        change: OperationChange,
        now: Timestamp,
    ) -> Result<OperationChanged, LedgerError> {
        match self.ask(Alter { tenant, id, change, now }, 0).await? {
            None => Ok(OperationChanged::NotFound),
            Some(Err(ended)) => Ok(OperationChanged::Ended(ended)),
            Some(Ok(())) => {
                let row = self.whole_operation(tenant, id).await?;
                Ok(row.map_or(OperationChanged::NotFound, |row| OperationChanged::Done(Box::new(row))))
            }
        }
    }

    async fn start_operation(&self, tenant: TenantKey, id: OperationId, now: Timestamp) -> Result<bool, LedgerError> {
        self.ask(Start { tenant, id, now }, 0).await
    }

    async fn advance_operation(
        &self,
        tenant: TenantKey,
        id: OperationId,
        limit: u32,
        now: Timestamp,
    ) -> Result<Advanced, LedgerError> {
        let over = Advanced { over: true, ..Advanced::default() };
        let Some(Kept { before, row, .. }) = self.read_contents(move |c| one(c, tenant, id)).await? else {
            return Ok(over);
        };
        if row.state != OperationState::Running {
            return Ok(over);
        }
        let of_max = row.max.map_or(u64::MAX, |max| max.saturating_sub(row.done));
        let of_wave = row.wave.map_or(u64::MAX, |wave| wave.left);
        let limit = u32::try_from(of_max.min(of_wave)).unwrap_or(u32::MAX).min(limit);
        if limit == 0 {
            return Ok(Advanced::default());
        }
        let (found, needs) = match row.work {
            Work::Redrive(filter) => {
                let died_by = row.died_by.unwrap_or(Timestamp::ZERO);
                let find = move |c: &Connection| dead::find(c, tenant, (&filter, died_by), before, limit);
                (self.read_from(&self.readers, find).await?, Needs::None)
            }
            Work::Replay(replay) => {
                let find = move |c: &Connection| replay::find(c, tenant, &replay, (before, id.to_bytes()), limit);
                (self.read(find).await?, Needs::All)
            }
        };
        self.ask(Advance { tenant, id, from: before, found, needs, now }, 0).await
    }

    async fn wave_results(&self, tenant: TenantKey, id: OperationId, wave: u8) -> Result<Vec<WaveResult>, LedgerError> {
        // Rows of births are none of a wave: no need to wait for theirs.
        self.read_from(&self.readers, move |c| wave_results(c, tenant, id, wave)).await
    }

    async fn widen_operation(
        &self,
        tenant: TenantKey,
        id: OperationId,
        after: u8,
        size: u64,
    ) -> Result<(), LedgerError> {
        self.ask(Widen { tenant, id, after, size }, 0).await
    }

    async fn stop_by_canary(
        &self,
        tenant: TenantKey,
        id: OperationId,
        why: String,
        now: Timestamp,
    ) -> Result<(), LedgerError> {
        self.ask(StopByCanary { tenant, id, why, now }, 0).await
    }
}
