//! The ledger on SQLite: one file, one thread that writes, a few that read, one that checkpoints.
//!
//! Authoritative is the last commit. What the writer keeps in memory (endpoint statuses, sequences, the newest dedup
//! digests, the gauges) is rebuilt from rows at the start, follows commits, and is taken back when one fails.
//!
//! The start: lock, drop cached pages, open, checkpoint, check the queue, prove the key; the whole file is checked in
//! the background. Sealing and opening of content happen on the callers' and readers' threads, never on the writer's.

mod accept;
mod adoptions;
mod again;
mod alerts;
mod anchor;
mod answers;
mod births;
mod bulk;
mod checkpoint;
mod claim;
mod coalescing;
mod codec;
mod dead;
mod declare;
mod dedup;
mod ended;
mod fault;
mod files;
mod health;
mod keyring;
mod lists;
mod manage;
mod operations;
mod ordering;
mod past;
mod plugins;
mod prune;
mod pull;
mod queue;
mod readers;
mod records;
mod rejections;
mod replay;
mod schema;
mod scrub;
mod settle;
mod shared;
mod statements;
mod stats;
mod sweeps;
mod tally;
mod trials;
mod writer;
mod xchacha;

use self::fault::Fault;
use self::files::Files;
use self::keyring::Keyring;
use self::readers::Readers;
use self::shared::Shared;
use self::writer::{Order, Task, Verb, Writer};
use super::{Claimed, LedgerError, Slots, Wakes};
use crate::clock::{ClockWatch, Timestamp};
use crate::entropy::Entropy;
use crate::secret::Secret;
use crossbeam_channel::{Sender, TrySendError};
use rusqlite::{DEFAULT_NAME, OptionalExtension as _, wal::CheckpointMode};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// How the ledger is kept.
#[derive(Clone, Debug)]
pub struct Settings {
    pub path: PathBuf,
    /// 32 bytes; `None`: the file `master-key` beside the ledger, made at the first start.
    pub master_key: Option<Secret>,
    /// Events that wait for the disk before others are turned away, and the bytes that they may hold.
    pub queued_max: usize,
    pub queued_bytes_max: usize,
    /// Dedup digests in memory; older ones are looked up in the file.
    pub dedup_in_memory_max: usize,
    /// Page cache of the writer and of each reader.
    pub cache_bytes: u64,
    /// Threads that serve lists and queries.
    pub readers: usize,
    /// For one read.
    pub read_limit: Duration,
    /// A reserve on the disk, given back when it is full. 0: none.
    pub ballast_bytes: u64,
    /// Events are turned away while the write-ahead log is longer.
    pub wal_bytes_max: u64,
    /// For tests of a full disk: the most pages that the database may have.
    pub pages_max: Option<u32>,
}

impl Settings {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Settings {
            path: path.into(),
            master_key: None,
            queued_max: 8_192,
            queued_bytes_max: 64 << 20,
            dedup_in_memory_max: 500_000,
            cache_bytes: 8 << 20,
            readers: 2,
            read_limit: Duration::from_secs(5),
            ballast_bytes: 64 << 20,
            wal_bytes_max: 1 << 30,
            pages_max: None,
        }
    }
}

/// The ledger in one SQLite file.
pub struct SqliteLedger {
    shared: Arc<Shared>,
    orders: Mutex<Option<Sender<Order>>>,
    /// Lists and queries.
    readers: Readers,
    /// The contents of what is claimed: never behind somebody's query.
    contents: Readers,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Where `prune` goes on.
    prune: prune::Cursors,
}

/// Opens the ledger, or makes it. The receiver carries every delivery that was accepted with a slot, after its commit.
pub fn open(
    settings: Settings,
    slots: Arc<Slots>,
    wakes: Arc<Wakes>,
    entropy: Arc<dyn Entropy>,
    clock: Arc<ClockWatch>,
) -> Result<(Arc<SqliteLedger>, mpsc::UnboundedReceiver<Claimed>), LedgerError> {
    let files = Files::claim(&settings.path, settings.ballast_bytes)?;
    if !files.existed && files.master_key.exists() {
        // A first start that was cut short leaves this too, so it is no refusal.
        tracing::warn!(
            path = %settings.path.display(),
            "there is a master key and no ledger beside it: beginning with an empty one; if there was a ledger, stop and restore it"
        );
    }
    let master = keyring::master_key(settings.master_key.as_ref(), &files.master_key, !files.existed, &*entropy)?;
    let keyring = Keyring::new(&master)?;
    let mut connection = schema::open_writer(&files.database, &settings)?;
    let broken = |what: String| LedgerError::Open {
        problem: format!("the ledger {} is damaged: {what}", settings.path.display()),
        remedy: "restore it from a backup; the file as it is may help to save what came after".into(),
    };
    connection.wal_checkpoint_v2(DEFAULT_NAME, CheckpointMode::TRUNCATE).map_err(|e| match fault::severity(&e) {
        fault::Severity::Full => LedgerError::Open {
            problem: format!("there is no room on the disk for the ledger {}", settings.path.display()),
            remedy: "free some space and start again; nothing is damaged".into(),
        },
        fault::Severity::Stop | fault::Severity::Verb => broken(e.to_string()),
    })?;
    files.flush_directory().map_err(|e| broken(e.to_string()))?;
    if let Some(found) = schema::check_recent(&connection).map_err(|e| broken(e.to_string()))? {
        return Err(broken(found));
    }
    births::recover(&mut connection)?;
    let queue = schema::check_queue(&connection).map_err(|e| broken(e.to_string()))?;
    prove_key(&connection, &keyring, &*entropy)?;
    if let Some(pages) = settings.pages_max {
        connection.pragma_update(None, "max_page_count", pages).map_err(Fault::from)?;
    }

    let (births, born) = mpsc::unbounded_channel();
    let shared = Arc::new(Shared::new(settings, files, keyring, entropy, clock, slots, wakes, births));
    declare::load_keys(&connection, &shared)?;
    adoptions::load(&connection, &shared)?;
    let endpoints = declare::load_endpoints(&connection)?;
    for (key, endpoint) in &endpoints {
        shared.announce(*key, &endpoint.status);
        shared.note_failing(*key, endpoint);
        shared.slots.known_before(*key);
    }
    let dedup = dedup::Dedup::load(&connection, shared.settings.dedup_in_memory_max)?;
    let oldest_dead_at = queue.oldest_dead_at.map(Timestamp::from_millis);
    let (pending, in_flight, dead) = (codec::int(queue.pending), codec::int(queue.in_flight), codec::int(queue.dead));
    shared.gauges.add(pending, in_flight, dead, oldest_dead_at);
    if !shared.files.make_ballast() {
        tracing::warn!("there is no room on the disk for the ledger's reserve");
        shared.gate.full();
    }

    let path = &shared.files.database;
    let checkpointer = schema::open_checkpointer(path, &shared.settings)?;
    let readers = Readers::start("ledger-read", shared.settings.readers, path, &shared.settings)?;
    let contents = Readers::start("ledger-claim", 1, path, &shared.settings)?;
    let checker = schema::open_reader(path, &shared.settings)?;
    // Arrivals are held back by `queued_max`; outcomes and claims, which the slots bound, must find room besides.
    let (orders, waiting) = crossbeam_channel::bounded(shared.settings.queued_max.saturating_add(65_536));

    let mut threads = Vec::new();
    let mut spawn = |name: &str, work: Box<dyn FnOnce(&Shared) + Send>| -> Result<(), LedgerError> {
        let shared = Arc::clone(&shared);
        let run = move || {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&shared)));
            if outcome.is_err() {
                shared.stop("a thread of the ledger panicked".into());
                shared.closed.store(true, Ordering::Release);
                shared.gate.close();
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        threads.push(thread.map_err(|e| LedgerError::Open {
            problem: format!("a thread of the ledger cannot be started: {e}"),
            remedy: "raise the limit on threads of this user".into(),
        })?);
        Ok(())
    };
    if dedup.wants_filter() {
        let reader = schema::open_reader(path, &shared.settings)?;
        let orders = orders.clone();
        spawn("ledger-filter", Box::new(move |shared| fill_filter(&reader, orders, shared)))?;
    }
    let writers = Arc::clone(&shared);
    spawn(
        "ledger-write",
        Box::new(move |shared| {
            let closing = match Writer::new(&connection, writers, endpoints, dedup, oldest_dead_at) {
                Ok(writer) => writer.run(&waiting),
                Err(fault) => {
                    shared.stop(LedgerError::from(fault).to_string());
                    None
                }
            };
            shared.closed.store(true, Ordering::Release);
            shared.gate.close();
            if let Some(reply) = closing {
                let end = connection.wal_checkpoint_v2(DEFAULT_NAME, CheckpointMode::TRUNCATE);
                // A reader in the way only leaves work for the next start.
                let end = end.map(|_| ()).or_else(|e| match fault::severity(&e) {
                    fault::Severity::Stop => Err(LedgerError::from(Fault::from(e))),
                    fault::Severity::Full | fault::Severity::Verb => Ok(()),
                });
                // Whoever closes may have gone away.
                let _ = reply.send(end);
            }
        }),
    )?;
    spawn("ledger-checkpoint", Box::new(move |shared| checkpoint::run(&checkpointer, shared)))?;
    spawn("ledger-check", Box::new(move |shared| schema::check_whole_file(checker, shared)))?;

    let ledger = SqliteLedger {
        shared,
        orders: Mutex::new(Some(orders)),
        readers,
        contents,
        threads: Mutex::new(threads),
        prune: prune::Cursors::default(),
    };
    Ok((Arc::new(ledger), born))
}

/// Until the filter is whole, dedup asks the table: slower, and as exact.
fn fill_filter(reader: &rusqlite::Connection, orders: Sender<Order>, shared: &Shared) {
    let attach = move |verb: dedup::AttachFilter| {
        let (reply, answer) = oneshot::channel();
        let sent = orders.send(Order::Do(Task::new(verb, reply), 0)).is_ok();
        drop(orders);
        sent && matches!(answer.blocking_recv(), Ok(Ok(())))
    };
    if let Err(error) = dedup::build_filter(reader, attach, shared.settings.dedup_in_memory_max, &shared.closed) {
        match fault::severity(&error) {
            fault::Severity::Stop => shared.stop(format!("the dedup table cannot be read: {error}")),
            fault::Severity::Full | fault::Severity::Verb => {
                tracing::warn!(%error, "the dedup filter was not filled; lookups go to the table");
            }
        }
    }
}

/// The first start leaves a proof of the key; every later one asks for it.
fn prove_key(connection: &rusqlite::Connection, keyring: &Keyring, entropy: &dyn Entropy) -> Result<(), LedgerError> {
    let kept: Option<Vec<u8>> = connection
        .query_row("SELECT value FROM meta WHERE name = 'canary'", [], |row| row.get(0))
        .optional()
        .map_err(Fault::from)?;
    match kept {
        Some(canary) if keyring.knows(&canary) => Ok(()),
        Some(_) => Err(LedgerError::Open {
            problem: "the master key is not the one this ledger was made with".into(),
            remedy: "set HOOKGATE_MASTER_KEY to that key, or restore the file `master-key` beside the ledger".into(),
        }),
        None => {
            let canary = keyring.canary(entropy).map_err(Fault::from)?;
            connection.execute("INSERT INTO meta (name, value) VALUES ('canary', ?)", [canary]).map_err(Fault::from)?;
            Ok(())
        }
    }
}

impl SqliteLedger {
    /// Resolves when the ledger has stopped for safety, with the reason: the process must end, and not with success.
    pub async fn stopped(&self) -> String {
        let mut signal = self.shared.stop_signal();
        loop {
            if let Some(why) = signal.borrow_and_update().clone() {
                return why;
            }
            if signal.changed().await.is_err() {
                // The sender lives in `self`, so this is never reached while somebody waits.
                return std::future::pending().await;
            }
        }
    }

    /// A key for a purpose outside the ledger, of 32 bytes: the same from start to start.
    pub fn derived_key(&self, purpose: &str) -> Secret {
        self.shared.keyring.derived(purpose)
    }

    /// The stop as a value to be passed on.
    pub fn stop_signal(&self) -> watch::Receiver<Option<String>> {
        self.shared.stop_signal()
    }

    /// Has the writer do something, and waits for its commit. `weight`: the bytes it holds, 0 for all but arrivals.
    async fn ask<V: Verb>(&self, verb: V, weight: usize) -> Result<V::Done, LedgerError> {
        if let Some(why) = self.shared.stopped_for() {
            return Err(LedgerError::Stopped(why));
        }
        let (reply, answer) = oneshot::channel();
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(orders) = orders else { return Err(closed()) };
        self.shared.queue.joined(weight);
        if let Err(refused) = orders.try_send(Order::Do(Task::new(verb, reply), weight)) {
            self.shared.queue.left(weight);
            return Err(match refused {
                TrySendError::Full(_) => LedgerError::Unavailable("too much is queued for the disk".into()),
                TrySendError::Disconnected(_) => self.gone(),
            });
        }
        drop(orders);
        answer.await.unwrap_or_else(|_| Err(self.gone()))
    }

    /// Reads for lists and queries. Every delivery that an earlier commit accepted has its row.
    async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&rusqlite::Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, LedgerError> {
        // A ledger that cannot write now can still be read: what was accepted in the last moment is missing then.
        self.read_whole(query).await.map(|(read, _)| read)
    }

    /// As `read`, and whether every delivery has its row indeed: else what is missing may be there.
    async fn read_whole<T: Send + 'static>(
        &self,
        query: impl FnOnce(&rusqlite::Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<(T, bool), LedgerError> {
        let open = self.shared.births_open.load(Ordering::Acquire) > 0;
        let whole = !open || self.ask(births::Provide, 0).await.is_ok();
        Ok((self.read_from(&self.readers, query).await?, whole))
    }

    /// Reads for the queue, of what is not under way.
    async fn read_contents<T: Send + 'static>(
        &self,
        query: impl FnOnce(&rusqlite::Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, LedgerError> {
        self.read_from(&self.contents, query).await
    }

    async fn read_from<T: Send + 'static>(
        &self,
        from: &Readers,
        query: impl FnOnce(&rusqlite::Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, LedgerError> {
        let read = from.read(query).await;
        if let Err(LedgerError::Stopped(why)) = &read {
            // Damage is damage, whoever finds it.
            self.shared.stop(why.clone());
        }
        read
    }

    fn gone(&self) -> LedgerError {
        self.shared.stopped_for().map_or_else(closed, LedgerError::Stopped)
    }

    async fn shut(&self) -> Result<(), LedgerError> {
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(orders) = orders else { return Ok(()) };
        let (reply, answer) = oneshot::channel();
        match orders.try_send(Order::Close(reply)) {
            Ok(()) => {}
            // So full that not even this finds room: the writer ends when it has written all and nobody is left.
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => return Ok(()),
        }
        drop(orders);
        answer.await.unwrap_or_else(|_| Err(self.gone()))
    }
}

impl Drop for SqliteLedger {
    fn drop(&mut self) {
        drop(self.orders.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.shared.closed.store(true, Ordering::Release);
        self.readers.stop();
        self.contents.stop();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A thread that panicked has said so through the stop signal.
            let _ = thread.join();
        }
    }
}

fn closed() -> LedgerError {
    LedgerError::Unavailable("the ledger is closed".into())
}

/// Said in place of "there is none".
fn not_written() -> LedgerError {
    LedgerError::Unavailable("deliveries under way cannot be written down now, so that this may be missing".into())
}

#[cfg(test)]
mod tests;
