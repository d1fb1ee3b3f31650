//! Checkpoints off the writer's path: a thread of its own moves the write-ahead log into the database while the writer
//! goes on, and holds it between two transactions only for the last pages, so that the log can begin again from its
//! start. Without that hold a busy writer lets the log grow without bound.

use super::fault::{Severity, severity};
use super::shared::Shared;
use rusqlite::{Connection, DEFAULT_NAME, wal::CheckpointMode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A round after so many commits, or so many verbs, or so many bytes of payload, or this long after the last commit.
const COMMITS: usize = 256;
const VERBS: usize = 8_192;
const BYTES: usize = 32 << 20;
const IDLE: Duration = Duration::from_secs(1);
/// How often room for the reserve is looked for once it was given back.
const BALLAST_EVERY: Duration = Duration::from_secs(5);
/// From here on the log is cut off, not only reused; from the second on somebody should know.
const TRUNCATE_BYTES: u64 = 64 << 20;
const ALARM_BYTES: u64 = 256 << 20;
/// A page and its frame's header.
const FRAME_BYTES: u64 = 8192 + 24;

#[derive(Default)]
struct GateState {
    /// The writer is inside a transaction.
    busy: bool,
    commits: usize,
    verbs: usize,
    bytes: usize,
    last_commit: Option<Instant>,
    ballast_missing: bool,
    closing: bool,
}

impl GateState {
    fn is_much(&self) -> bool {
        self.commits >= COMMITS || self.verbs >= VERBS || self.bytes >= BYTES
    }
}

/// Between the writer and the checkpointer.
#[derive(Default)]
pub(super) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
    /// The checkpointer asks the writer to wait.
    held: AtomicBool,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writer, before a transaction.
    pub(super) fn enter(&self) {
        let mut state = self.lock();
        while self.held.load(Ordering::Acquire) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.busy = true;
    }

    /// The writer, after it: with the verbs and bytes that were committed, if they were.
    pub(super) fn leave(&self, committed: Option<(usize, usize)>) {
        let mut state = self.lock();
        state.busy = false;
        let mut tell = self.held.load(Ordering::Acquire);
        if let Some((verbs, bytes)) = committed {
            // The first commit after a rest starts the clock; from then on the thread wakes by itself.
            tell |= state.commits == 0;
            let enough = state.is_much();
            state.commits += 1;
            state.verbs += verbs;
            state.bytes += bytes;
            state.last_commit = Some(Instant::now());
            tell |= state.is_much() && !enough;
        }
        drop(state);
        if tell {
            self.changed.notify_all();
        }
    }

    /// The reserve was given back to a full disk.
    pub(super) fn full(&self) {
        self.lock().ballast_missing = true;
        self.changed.notify_all();
    }

    pub(super) fn close(&self) {
        self.lock().closing = true;
        self.changed.notify_all();
    }

    /// Waits for that long, or until the ledger closes: then it is `true`.
    pub(super) fn wait_for_close(&self, span: Duration) -> bool {
        let until = Instant::now() + span;
        let mut state = self.lock();
        while !state.closing {
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return false;
            }
            (state, _) = self.changed.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    /// Runs `work` with the writer held between two transactions.
    fn hold<T>(&self, work: impl FnOnce() -> T) -> T {
        self.held.store(true, Ordering::Release);
        let mut state = self.lock();
        // A writer that panicked stays busy for good; then the ledger is closing.
        while state.busy && !state.closing {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        let done = work();
        let state = self.lock();
        self.held.store(false, Ordering::Release);
        drop(state);
        self.changed.notify_all();
        done
    }

    /// Waits until there is something to do. `None`: closing.
    fn wait(&self, log_is_long: bool) -> Option<Due> {
        let mut state = self.lock();
        loop {
            if state.closing {
                return None;
            }
            let rest = match state.last_commit {
                Some(last) if state.commits > 0 => Some(IDLE.saturating_sub(last.elapsed())),
                _ => log_is_long.then_some(IDLE),
            };
            if state.is_much() || (state.commits > 0 && rest == Some(Duration::ZERO)) {
                state.commits = 0;
                state.verbs = 0;
                state.bytes = 0;
                return Some(Due::Checkpoint);
            }
            let rest = match (rest, state.ballast_missing) {
                (Some(rest), true) => Some(rest.min(BALLAST_EVERY)),
                (None, true) => Some(BALLAST_EVERY),
                (rest, false) => rest,
            };
            let Some(rest) = rest else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let (back, timeout) = self.changed.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner);
            state = back;
            if timeout.timed_out() && (log_is_long || state.ballast_missing) && state.commits == 0 {
                return Some(Due::Look);
            }
        }
    }
}

enum Due {
    Checkpoint,
    /// Nothing new was written, but the log is long or the reserve is missing.
    Look,
}

/// The thread's whole life.
pub(super) fn run(connection: &Connection, shared: &Shared) {
    let mut alarmed = false;
    while let Some(due) = shared.gate.wait(shared.wal_bytes.load(Ordering::Acquire) >= TRUNCATE_BYTES) {
        if shared.stopped_for().is_some() {
            return;
        }
        match round(connection, shared) {
            Ok(bytes) => {
                shared.wal_bytes.store(bytes, Ordering::Release);
                if bytes >= ALARM_BYTES && !alarmed {
                    tracing::warn!(
                        bytes,
                        "the write-ahead log does not shrink: some reader keeps it from beginning again"
                    );
                }
                alarmed = bytes >= ALARM_BYTES;
            }
            Err(error) => match severity(&error) {
                Severity::Stop => return shared.stop(format!("a checkpoint failed: {error}")),
                Severity::Full => {
                    if shared.files.release_ballast() {
                        tracing::warn!("the disk is full: gave the ledger's reserve back to it");
                    }
                    shared.gate.lock().ballast_missing = true;
                }
                // Somebody reads; the next round comes soon.
                Severity::Verb => tracing::debug!(%error, "a checkpoint was put off"),
            },
        }
        match due {
            Due::Checkpoint => {}
            Due::Look => {
                let mut state = shared.gate.lock();
                if state.ballast_missing && shared.files.make_ballast() {
                    state.ballast_missing = false;
                }
            }
        }
    }
}

/// The bulk while the writer goes on, then the tail while it waits. Gives the log's length.
fn round(connection: &Connection, shared: &Shared) -> rusqlite::Result<u64> {
    connection.wal_checkpoint_v2(DEFAULT_NAME, CheckpointMode::PASSIVE)?;
    shared.gate.hold(|| {
        let (frames, _) = connection.wal_checkpoint_v2(DEFAULT_NAME, CheckpointMode::PASSIVE)?;
        let bytes = u64::try_from(frames).unwrap_or(0) * FRAME_BYTES;
        if bytes < TRUNCATE_BYTES {
            return Ok(bytes);
        }
        match connection.wal_checkpoint_v2(DEFAULT_NAME, CheckpointMode::TRUNCATE) {
            Ok(_) => Ok(0),
            // A reader is in the way: the log stays as long as it is.
            Err(error) if severity(&error) == Severity::Verb => Ok(bytes),
            Err(error) => Err(error),
        }
    })
}
