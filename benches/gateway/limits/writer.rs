//! The prototype's ledger: one thread that owns the connection, commits what is queued, and answers all of it; beside
//! it a thread that checkpoints, and holds up the writer for the last pages alone.

use anyhow::{Context as _, Result};
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender};
use rusqlite::{Connection, TransactionBehavior, params};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

const QUEUE_MAX: usize = 64 << 10;
const BATCH_MAX: usize = 1024;
/// Pages in the log from which the writer is held up, so that all of it can be carried over.
const GATE_PAGES: i64 = 300;
const CHECKPOINT_EVERY: Duration = Duration::from_millis(20);
const LEASE_NANOS: i64 = 30_000_000_000;

const SCHEMA: &str = "
PRAGMA page_size = 8192; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0;
PRAGMA cache_size = -32768;
CREATE TABLE event(id INTEGER PRIMARY KEY, received_at INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE delivery(id INTEGER PRIMARY KEY, state INTEGER NOT NULL, attempts INTEGER NOT NULL, due_at INTEGER);
CREATE INDEX delivery_due ON delivery(due_at) WHERE due_at IS NOT NULL;
CREATE TABLE attempt(delivery INTEGER NOT NULL, number INTEGER NOT NULL, started_at INTEGER NOT NULL,
  took_us INTEGER NOT NULL, status INTEGER NOT NULL, PRIMARY KEY(delivery, number)) WITHOUT ROWID;
";

pub(super) enum Step {
    /// Event and delivery, born leased. Answered with the id when it is durable.
    Accept {
        at: i64,
        body: Bytes,
        done: oneshot::Sender<i64>,
    },
    Settle {
        id: i64,
        started_at: i64,
        took_us: i64,
        status: u16,
    },
}

/// Starts both threads. They live as long as the process.
pub(super) fn start(path: &Path) -> Result<Sender<Step>> {
    let connection = Connection::open(path).with_context(|| format!("open {}", path.display()))?;
    connection.execute_batch(SCHEMA)?;
    let (steps, queue) = crossbeam_channel::bounded(QUEUE_MAX);
    let gate = Arc::new(Mutex::new(()));
    let (path, checkpoint_gate) = (path.to_owned(), Arc::clone(&gate));
    std::thread::Builder::new().name("writer".into()).spawn(move || end_on_error(write(connection, &queue, &gate)))?;
    std::thread::Builder::new()
        .name("checkpoint".into())
        .spawn(move || end_on_error(checkpoint(path, &checkpoint_gate)))?;
    Ok(steps)
}

/// Without its ledger the prototype has nothing to tell; that it is gone shows in the load's counts.
fn end_on_error(result: Result<()>) {
    if let Err(e) = result {
        eprintln!("the prototype's ledger: {e:#}");
        std::process::exit(1);
    }
}

fn write(mut connection: Connection, queue: &Receiver<Step>, gate: &Mutex<()>) -> Result<()> {
    let mut next_id = 1;
    let mut batch = Vec::with_capacity(BATCH_MAX);
    let mut durable = Vec::with_capacity(BATCH_MAX);
    while let Ok(first) = queue.recv() {
        batch.push(first);
        batch.extend(queue.try_iter().take(BATCH_MAX - 1));
        let open = gate.lock().unwrap_or_else(PoisonError::into_inner);
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for step in batch.drain(..) {
            match step {
                Step::Accept { at, body, done } => {
                    transaction.prepare_cached("INSERT INTO event VALUES (?, ?, ?)")?.execute(params![
                        next_id,
                        at,
                        &body[..]
                    ])?;
                    transaction
                        .prepare_cached("INSERT INTO delivery VALUES (?, 1, 1, ?)")?
                        .execute(params![next_id, at + LEASE_NANOS])?;
                    durable.push((done, next_id));
                    next_id += 1;
                }
                Step::Settle { id, started_at, took_us, status } => {
                    transaction
                        .prepare_cached("UPDATE delivery SET state = 2, due_at = NULL WHERE id = ?")?
                        .execute([id])?;
                    transaction
                        .prepare_cached("INSERT INTO attempt VALUES (?, 1, ?, ?, ?)")?
                        .execute(params![id, started_at, took_us, status])?;
                }
            }
        }
        transaction.commit()?;
        drop(open);
        for (done, id) in durable.drain(..) {
            // A caller that went away needs no answer.
            let _ = done.send(id);
        }
    }
    Ok(())
}

fn checkpoint(path: PathBuf, gate: &Mutex<()>) -> Result<()> {
    let connection = Connection::open(path)?;
    connection
        .execute_batch("PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0; PRAGMA busy_timeout = 1000;")?;
    let pages_in_log = || connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get::<_, i64>(1));
    loop {
        std::thread::sleep(CHECKPOINT_EVERY);
        if pages_in_log()? >= GATE_PAGES {
            // What was written meanwhile, with the writer between two transactions.
            let _held = gate.lock().unwrap_or_else(PoisonError::into_inner);
            pages_in_log()?;
        }
    }
}
