//! The one thread that writes. It takes what is queued, applies it in one transaction, commits, and answers all of it;
//! a verb's effects outside the ledger (slots, wakes, births, gauges) follow the commit, never precede it.

use super::births::{Birth, Births, Needs};
use super::dedup::{self, Dedup};
use super::fault::{Fault, Severity};
use super::health::Notice;
use super::ordering;
use super::shared::Shared;
use super::statements::Statements;
use super::tally::Tallies;
use crate::clock::Timestamp;
use crate::crash;
use crate::delivery::{EndpointStatus, Health};
use crate::ledger::{EndpointKey, LedgerError, TenantKey};
use crossbeam_channel::Receiver;
use rusqlite::Connection;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::sync::oneshot;

/// Verbs in one transaction.
const BATCH_VERBS_MAX: usize = 1_000;
/// Numbers of an endpoint's sequence that its row runs ahead, so that it is seldom written.
const SEQUENCES_RESERVED: u64 = 1_000;
/// Bytes of payload in one transaction.
const BATCH_BYTES_MAX: usize = 16 << 20;

/// One verb: applied inside the transaction, published after its commit.
pub(super) trait Verb: Send + 'static {
    type Done: Send + 'static;

    /// May be called again on the same input after a rollback. `Fault::Refused` only before the first write.
    fn apply(&mut self, writer: &mut Writer<'_>) -> Result<Self::Done, Fault>;

    /// The births that must have their rows before this is applied.
    fn needs(&self) -> Needs {
        Needs::All
    }

    /// What follows the commit, before the answer.
    fn publish(self, _done: &mut Self::Done, _shared: &Shared)
    where
        Self: Sized,
    {
    }
}

/// A verb with somebody who waits for it.
pub(super) struct Task<V: Verb> {
    verb: V,
    done: Option<V::Done>,
    reply: oneshot::Sender<Result<V::Done, LedgerError>>,
}

impl<V: Verb> Task<V> {
    pub(super) fn new(verb: V, reply: oneshot::Sender<Result<V::Done, LedgerError>>) -> Box<Self> {
        Box::new(Task { verb, done: None, reply })
    }
}

/// A [`Task`] of any verb.
pub(super) trait Job: Send {
    fn apply(&mut self, writer: &mut Writer<'_>) -> Result<(), Fault>;
    fn publish(self: Box<Self>, shared: &Shared);
    fn fail(self: Box<Self>, error: LedgerError);
}

impl<V: Verb> Job for Task<V> {
    fn apply(&mut self, writer: &mut Writer<'_>) -> Result<(), Fault> {
        writer.provide(self.verb.needs())?;
        self.done = Some(self.verb.apply(writer)?);
        Ok(())
    }

    fn publish(self: Box<Self>, shared: &Shared) {
        let Task { verb, done, reply } = *self;
        if let Some(mut done) = done {
            verb.publish(&mut done, shared);
            // Whoever asked may have gone away; the commit stands.
            let _ = reply.send(Ok(done));
        }
    }

    fn fail(self: Box<Self>, error: LedgerError) {
        let Task { verb, reply, .. } = *self;
        // What the verb holds, such as a slot, is given back before anybody hears of it.
        drop(verb);
        // As above.
        let _ = reply.send(Err(error));
    }
}

pub(super) enum Order {
    /// A job and the bytes it holds.
    Do(Box<dyn Job>, usize),
    Close(oneshot::Sender<Result<(), LedgerError>>),
}

/// What the writer keeps of an endpoint; the rows are authoritative and agree at every commit.
#[derive(Clone, Debug)]
pub(super) struct EndpointMemory {
    pub tenant: TenantKey,
    pub host: i64,
    pub status: EndpointStatus,
    pub health: Health,
    pub sequence: u64,
    /// Up to where numbers are taken in the row: after a crash they go on from here.
    pub reserved: u64,
    /// Whether what was delivered there is erased at once.
    pub scrub: bool,
}

/// How to take back what a rolled-back batch did to the memory.
pub(super) enum Undo {
    Endpoint(EndpointKey, Option<EndpointMemory>),
    Health(EndpointKey, Health),
    Sequence(EndpointKey, u64, u64),
    Dedup([u8; 16], Option<i64>),
    Birth(Birth, i64),
}

/// What follows the commit.
#[derive(Default)]
pub(super) struct Effects {
    pub pending: i64,
    pub in_flight: i64,
    pub dead: i64,
    /// The oldest dead letter after this batch, when it changed.
    pub dead_since: Vec<Timestamp>,
    pub dead_removed: bool,
    pub closings: Vec<(EndpointKey, EndpointStatus)>,
    pub wakes: Vec<(EndpointKey, Timestamp)>,
    /// Whose health changed.
    pub health: Vec<EndpointKey>,
    pub notices: Vec<Notice>,
    pub accepts: u32,
    pub starts: u32,
    pub settles: u32,
}

pub(super) struct Writer<'c> {
    pub connection: &'c Connection,
    pub sql: Statements<'c>,
    pub shared: Arc<Shared>,
    pub endpoints: HashMap<EndpointKey, EndpointMemory>,
    pub dedup: Dedup,
    pub births: Births,
    pub tallies: Tallies,
    /// Endpoints with deliveries that wait for their turn; perhaps some more.
    pub lines: HashSet<EndpointKey>,
    pub effects: Effects,
    pub undo: Vec<Undo>,
    pub next_payload: i64,
    pub next_dedup: i64,
    pub touched: Vec<EndpointKey>,
    oldest_dead_at: Option<Timestamp>,
}

/// What came of a batch that was not committed.
enum Undone {
    /// To each of them.
    All(LedgerError),
    /// One of several verbs failed in the middle: each is tried by itself.
    Each,
}

impl<'c> Writer<'c> {
    pub(super) fn new(
        connection: &'c Connection,
        shared: Arc<Shared>,
        endpoints: HashMap<EndpointKey, EndpointMemory>,
        dedup: Dedup,
        oldest_dead_at: Option<Timestamp>,
    ) -> Result<Self, Fault> {
        let next = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
        Ok(Writer {
            connection,
            sql: Statements::prepare(connection)?,
            shared,
            endpoints,
            dedup,
            births: Births::new(),
            tallies: Tallies::load(connection)?,
            lines: ordering::endpoints_with_lines(connection)?,
            effects: Effects::default(),
            undo: Vec::new(),
            next_payload: next("SELECT coalesce(max(id), 0) + 1 FROM payload")?,
            next_dedup: dedup::next_seq(connection)?,
            touched: Vec::new(),
            oldest_dead_at,
        })
    }

    /// Runs until it is told to close, or everybody who could tell it something is gone.
    pub(super) fn run(mut self, orders: &Receiver<Order>) -> Option<oneshot::Sender<Result<(), LedgerError>>> {
        let mut batch: Vec<Box<dyn Job>> = Vec::with_capacity(BATCH_VERBS_MAX);
        loop {
            let mut closing = None;
            let mut bytes = 0;
            let mut next = Some(orders.recv().ok()?);
            // A commit costs much the same for one verb as for many: on a busy machine whoever is about to bring more
            // gets to run first, on an idle one this returns at once.
            std::thread::yield_now();
            while let Some(order) = next {
                match order {
                    Order::Do(job, weight) => {
                        self.shared.queue.left(weight);
                        bytes += weight;
                        batch.push(job);
                    }
                    Order::Close(reply) => closing = Some(reply),
                }
                let more = batch.len() < BATCH_VERBS_MAX && bytes < BATCH_BYTES_MAX;
                next = if more || closing.is_some() { orders.try_recv().ok() } else { None };
            }
            if !batch.is_empty() {
                self.commit(&mut batch, bytes);
            }
            if closing.is_some() {
                return closing;
            }
        }
    }

    fn commit(&mut self, batch: &mut Vec<Box<dyn Job>>, bytes: usize) {
        if let Some(why) = self.shared.stopped_for() {
            for job in batch.drain(..) {
                job.fail(LedgerError::Stopped(why.clone()));
            }
            return;
        }
        match self.transact(batch, bytes) {
            Ok(()) => {}
            Err(Undone::All(error)) => {
                for job in batch.drain(..) {
                    job.fail(error.clone());
                }
            }
            Err(Undone::Each) => {
                for job in std::mem::take(batch) {
                    let mut alone = vec![job];
                    if let Err(undone) = self.transact(&mut alone, 0) {
                        let error = match undone {
                            Undone::All(error) => error,
                            Undone::Each => LedgerError::Unavailable("the verb was rolled back".into()),
                        };
                        for job in alone {
                            job.fail(error.clone());
                        }
                    }
                }
            }
        }
    }

    /// One transaction. When it is over with, the batch is empty; else nothing of it was done.
    fn transact(&mut self, batch: &mut Vec<Box<dyn Job>>, bytes: usize) -> Result<(), Undone> {
        self.shared.gate.enter();
        let began = Instant::now();
        let size = batch.len();
        let (payload, dedup) = (self.next_payload, self.next_dedup);
        let applied = self.apply(batch);
        self.shared.gate.leave(applied.is_ok().then_some((size, bytes)));
        let refused = match applied {
            Ok(refused) => refused,
            Err(fault) => {
                self.forget(payload, dedup);
                return Err(self.judge(fault, size));
            }
        };
        self.undo.clear();
        self.births.committed();
        self.tallies.committed();
        self.shared.births_open.store(self.births.len(), Ordering::Release);
        crash_points_after(&self.effects);
        metrics::histogram!("hookgate_commit_seconds").record(began.elapsed().as_secs_f64());
        metrics::histogram!("hookgate_commit_batch_size").record(u32::try_from(size).unwrap_or(u32::MAX));
        self.take_effect();
        let mut refused = refused.into_iter().peekable();
        for (at, job) in batch.drain(..).enumerate() {
            match refused.next_if(|(index, _)| *index == at) {
                Some((_, error)) => job.fail(error),
                None => job.publish(&self.shared),
            }
        }
        Ok(())
    }

    /// Everything up to and including the commit. Gives the verbs that were refused, by their place in the batch.
    fn apply(&mut self, batch: &mut [Box<dyn Job>]) -> Result<Vec<(usize, LedgerError)>, Fault> {
        self.sql.begin.execute([])?;
        let applied = self.apply_all(batch);
        if applied.is_err() {
            // The error that led here is what is told; SQLite may have rolled back by itself.
            let _ = self.sql.rollback.execute([]);
        }
        applied
    }

    fn apply_all(&mut self, batch: &mut [Box<dyn Job>]) -> Result<Vec<(usize, LedgerError)>, Fault> {
        let mut refused = Vec::new();
        for (at, job) in batch.iter_mut().enumerate() {
            match job.apply(self) {
                Ok(()) => {}
                Err(Fault::Refused(error)) => refused.push((at, error)),
                Err(fault) => return Err(fault),
            }
        }
        for key in std::mem::take(&mut self.touched) {
            if let Some(endpoint) = self.endpoints.get(&key) {
                self.sql.set_sequence.execute((super::codec::int(endpoint.reserved), key.0))?;
            }
        }
        if self.effects.dead_removed {
            let oldest: Option<i64> = self.sql.oldest_dead.query_row([], |row| row.get(0))?;
            self.effects.dead_since.clear();
            self.effects.dead_since.extend(oldest.map(Timestamp::from_millis));
        }
        self.keep_health()?;
        self.keep_dedup()?;
        self.note_births()?;
        self.note_tallies()?;
        crash_points_before(&self.effects);
        self.sql.commit.execute([])?;
        Ok(refused)
    }

    /// The memory as it was before the batch.
    fn forget(&mut self, next_payload: i64, next_dedup: i64) {
        self.next_payload = next_payload;
        self.next_dedup = next_dedup;
        self.touched.clear();
        self.effects = Effects::default();
        self.dedup.rolled_back();
        self.births.rolled_back();
        self.tallies.rolled_back();
        while let Some(undo) = self.undo.pop() {
            match undo {
                Undo::Endpoint(key, Some(before)) => {
                    self.endpoints.insert(key, before);
                }
                Undo::Endpoint(key, None) => {
                    self.endpoints.remove(&key);
                }
                Undo::Health(key, before) => {
                    if let Some(endpoint) = self.endpoints.get_mut(&key) {
                        endpoint.health = before;
                    }
                }
                Undo::Sequence(key, sequence, reserved) => {
                    if let Some(endpoint) = self.endpoints.get_mut(&key) {
                        endpoint.sequence = sequence;
                        endpoint.reserved = reserved;
                    }
                }
                Undo::Dedup(digest, before) => self.dedup.put_back(digest, before),
                Undo::Birth(birth, batch) => self.births.put_back(birth, batch),
            }
        }
    }

    fn judge(&mut self, fault: Fault, size: usize) -> Undone {
        match fault.severity() {
            Severity::Stop => {
                let error = LedgerError::from(fault);
                self.shared.stop(error.to_string());
                Undone::All(error)
            }
            Severity::Full => {
                if self.shared.files.release_ballast() {
                    tracing::warn!("the disk is full: gave the ledger's reserve back to it");
                }
                self.shared.gate.full();
                Undone::All(LedgerError::from(fault))
            }
            Severity::Verb if size > 1 => Undone::Each,
            Severity::Verb => {
                let error = LedgerError::from(fault);
                tracing::error!(%error, "a verb of the ledger failed");
                Undone::All(error)
            }
        }
    }

    /// After the commit: gauges, closings and wakes. Births and answers come next, in `publish`.
    fn take_effect(&mut self) {
        let effects = std::mem::take(&mut self.effects);
        if effects.dead_removed {
            self.oldest_dead_at = effects.dead_since.first().copied();
        } else if let Some(oldest) = effects.dead_since.iter().min() {
            self.oldest_dead_at = Some(self.oldest_dead_at.map_or(*oldest, |before| before.min(*oldest)));
        }
        self.shared.gauges.add(effects.pending, effects.in_flight, effects.dead, self.oldest_dead_at);
        let changed = effects.health.iter().chain(effects.closings.iter().map(|(key, _)| key));
        for key in changed {
            if let Some(endpoint) = self.endpoints.get(key) {
                self.shared.note_failing(*key, endpoint);
            }
        }
        for (endpoint, status) in effects.closings {
            self.shared.announce(endpoint, &status);
        }
        effects.notices.iter().for_each(Notice::tell);
        for (endpoint, due) in effects.wakes {
            self.shared.wakes.note(endpoint, due);
        }
    }

    /// Notes that work of `endpoint` is pending until `due`; a pause puts the look off to its end.
    pub(super) fn wake(&mut self, endpoint: EndpointKey, due: Timestamp, now: Timestamp) {
        if due == ordering::HELD {
            return;
        }
        let at = match self.endpoints.get(&endpoint).map(|e| &e.status) {
            Some(EndpointStatus::Paused { until: Some(until), .. }) if *until > now => due.max(*until),
            Some(EndpointStatus::Paused { until: None, .. } | EndpointStatus::Disabled { .. }) => return,
            Some(EndpointStatus::Enabled | EndpointStatus::Paused { .. }) | None => due,
        };
        // In a burst, one note for each endpoint and time is enough.
        if self.effects.wakes.last() != Some(&(endpoint, at)) {
            self.effects.wakes.push((endpoint, at));
        }
    }

    pub(super) fn is_open(&self, endpoint: EndpointKey, now: Timestamp) -> bool {
        self.endpoints.get(&endpoint).is_some_and(|e| e.status.is_open(now))
    }

    /// The next number of the endpoint's sequence.
    pub(super) fn next_sequence(&mut self, key: EndpointKey) -> u64 {
        let Some(endpoint) = self.endpoints.get_mut(&key) else { return 0 };
        self.undo.push(Undo::Sequence(key, endpoint.sequence, endpoint.reserved));
        endpoint.sequence += 1;
        if endpoint.sequence > endpoint.reserved {
            endpoint.reserved = endpoint.sequence + SEQUENCES_RESERVED;
            if !self.touched.contains(&key) {
                self.touched.push(key);
            }
        }
        endpoint.sequence
    }

    /// Writes an endpoint's status and has it announced after the commit.
    pub(super) fn set_status(&mut self, key: EndpointKey, status: EndpointStatus) -> Result<(), Fault> {
        if !self.endpoints.contains_key(&key) {
            return Ok(());
        }
        self.note_closing(key, &status)?;
        let Some(endpoint) = self.endpoints.get_mut(&key) else { return Ok(()) };
        super::alerts::note_closing(self.connection, key, &endpoint.status, &status, self.shared.clock.now())?;
        let (code, until, why) = super::codec::status_columns(&status);
        self.sql.set_status.execute((code, until, why, key.0))?;
        self.undo.push(Undo::Endpoint(key, Some(endpoint.clone())));
        endpoint.status = status.clone();
        self.effects.closings.push((key, status));
        Ok(())
    }
}

fn crash_points_before(effects: &Effects) {
    if effects.accepts > 0 {
        crash::point("I3");
    }
    if effects.settles > 0 {
        crash::point("D5");
    }
}

fn crash_points_after(effects: &Effects) {
    if effects.accepts > 0 {
        crash::point("I4");
    }
    if effects.starts > 0 {
        crash::point("D1");
    }
    if effects.settles > 0 {
        crash::point("D6");
    }
}
