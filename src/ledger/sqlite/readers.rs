//! Threads that read, each with a connection that can do nothing else. A read sees one commit, and is cut off when it
//! takes too long.

use super::Settings;
use super::fault::Fault;
use super::schema;
use crate::ledger::LedgerError;
use crossbeam_channel::{Receiver, Sender, TrySendError};
use rusqlite::{Connection, ErrorCode};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Reads that wait for a thread.
const WAITING_MAX: usize = 256;
/// Steps of SQLite's machine between two looks at the time.
const STEPS: i32 = 10_000;

type Read = Box<dyn FnOnce(&mut Connection) + Send>;

pub(super) struct Readers {
    jobs: Option<Sender<Read>>,
    threads: Vec<JoinHandle<()>>,
    limit: Duration,
}

impl Readers {
    pub(super) fn start(name: &str, count: usize, path: &Path, settings: &Settings) -> Result<Self, LedgerError> {
        let (jobs, waiting) = crossbeam_channel::bounded::<Read>(WAITING_MAX);
        let mut readers = Readers { jobs: Some(jobs), threads: Vec::new(), limit: settings.read_limit };
        for _ in 0..count.max(1) {
            let connection = schema::open_reader(path, settings)?;
            let waiting = waiting.clone();
            let limit = settings.read_limit;
            let thread = std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || serve(connection, &waiting, limit))
                .map_err(|e| LedgerError::Open {
                    problem: format!("a thread for reading cannot be started: {e}"),
                    remedy: "raise the limit on threads of this user".into(),
                })?;
            readers.threads.push(thread);
        }
        Ok(readers)
    }

    /// One read, of one commit.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, LedgerError> {
        let (reply, answer) = oneshot::channel();
        let limit = self.limit;
        let read: Read = Box::new(move |connection| {
            // Whoever asked may have gone away.
            let _ = reply.send(one_commit(connection, query, limit));
        });
        let Some(jobs) = &self.jobs else { return Err(closed()) };
        match jobs.try_send(read) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                return Err(LedgerError::Unavailable("too many queries are waiting".into()));
            }
            Err(TrySendError::Disconnected(_)) => return Err(closed()),
        }
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Lets the threads end what they are at.
    pub(super) fn stop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // A reader that panicked has already failed whoever waited for it.
            let _ = thread.join();
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.stop();
    }
}

fn closed() -> LedgerError {
    LedgerError::Unavailable("the ledger is closed".into())
}

fn one_commit<T>(
    connection: &mut Connection,
    query: impl FnOnce(&Connection) -> Result<T, Fault>,
    limit: Duration,
) -> Result<T, LedgerError> {
    let in_transaction = || -> Result<T, Fault> {
        let transaction = connection.transaction()?;
        query(&transaction)
    };
    in_transaction().map_err(|fault| match fault {
        Fault::Sql(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => {
            LedgerError::TooSlow { seconds: limit.as_secs() }
        }
        fault @ (Fault::Sql(_) | Fault::Refused(_) | Fault::Damaged(_)) => fault.into(),
    })
}

fn serve(mut connection: Connection, waiting: &Receiver<Read>, limit: Duration) {
    let began = Instant::now();
    let deadline = Arc::new(AtomicU64::new(u64::MAX));
    let watched = Arc::clone(&deadline);
    let millis = move || u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let late = move || millis() > watched.load(Ordering::Relaxed);
    if connection.progress_handler(STEPS, Some(late)).is_err() {
        return;
    }
    while let Ok(read) = waiting.recv() {
        let now = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        deadline.store(now.saturating_add(limit), Ordering::Relaxed);
        read(&mut connection);
    }
}
