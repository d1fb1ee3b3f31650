//! What the threads of one open ledger share.

use super::Settings;
use super::adoptions::Held;
use super::checkpoint::Gate;
use super::files::Files;
use super::keyring::Keyring;
use super::writer::EndpointMemory;
use crate::clock::{ClockWatch, Timestamp};
use crate::delivery::{EndpointStatus, Mint};
use crate::entropy::Entropy;
use crate::ledger::{Claimed, EndpointKey, Gauges, LedgerError, Slots, Wakes};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, watch};

pub(super) struct Shared {
    pub settings: Settings,
    pub files: Files,
    pub keyring: Keyring,
    pub entropy: Arc<dyn Entropy>,
    pub clock: Arc<ClockWatch>,
    pub mint: Mint,
    pub slots: Arc<Slots>,
    pub wakes: Arc<Wakes>,
    pub births: mpsc::UnboundedSender<Claimed>,
    pub gate: Gate,
    pub queue: QueueLoad,
    pub gauges: GaugeCells,
    pub held: Held,
    /// Deliveries under way that have no row of their own, as of the last commit.
    pub births_open: AtomicUsize,
    /// Endpoints that fail for so long that it was told.
    failing: Mutex<HashSet<EndpointKey>>,
    /// Those that the configuration has.
    declared: Mutex<HashSet<EndpointKey>>,
    /// Paused endpoints, and until when; `MAX`: until somebody resumes them.
    paused: Mutex<HashMap<EndpointKey, Timestamp>>,
    stop: watch::Sender<Option<String>>,
    pub closed: Arc<AtomicBool>,
    /// The write-ahead log at the last look.
    pub wal_bytes: Arc<AtomicU64>,
}

impl Shared {
    #[expect(clippy::too_many_arguments, reason = "one place puts together what was handed in from outside")]
    pub(super) fn new(
        settings: Settings,
        files: Files,
        keyring: Keyring,
        entropy: Arc<dyn Entropy>,
        clock: Arc<ClockWatch>,
        slots: Arc<Slots>,
        wakes: Arc<Wakes>,
        births: mpsc::UnboundedSender<Claimed>,
    ) -> Self {
        Shared {
            settings,
            files,
            keyring,
            entropy,
            clock,
            mint: Mint::default(),
            slots,
            wakes,
            births,
            gate: Gate::default(),
            queue: QueueLoad::default(),
            gauges: GaugeCells::default(),
            held: Held::default(),
            births_open: AtomicUsize::new(0),
            failing: Mutex::default(),
            declared: Mutex::default(),
            paused: Mutex::default(),
            stop: watch::Sender::new(None),
            closed: Arc::default(),
            wal_bytes: Arc::default(),
        }
    }

    /// From now on nothing is accepted or sent.
    pub(super) fn stop(&self, why: String) {
        tracing::error!(%why, "the ledger stops for safety");
        self.stop.send_if_modified(|now| {
            let first = now.is_none();
            if first {
                *now = Some(why);
            }
            first
        });
    }

    pub(super) fn stopped_for(&self) -> Option<String> {
        self.stop.borrow().clone()
    }

    pub(super) fn stop_signal(&self) -> watch::Receiver<Option<String>> {
        self.stop.subscribe()
    }

    /// Tells whoever sends what an endpoint's committed status is.
    pub(super) fn announce(&self, endpoint: EndpointKey, status: &EndpointStatus) {
        let mut paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        let until = match status {
            EndpointStatus::Enabled => {
                paused.remove(&endpoint);
                None
            }
            EndpointStatus::Paused { until, .. } => {
                let until = until.unwrap_or(Timestamp::MAX);
                paused.insert(endpoint, until);
                Some(until)
            }
            EndpointStatus::Disabled { .. } => {
                paused.remove(&endpoint);
                Some(Timestamp::MAX)
            }
        };
        drop(paused);
        self.slots.close_until(endpoint, until);
    }

    /// Keeps in mind whether it was told that this endpoint will be disabled, and it is not yet.
    pub(super) fn note_failing(&self, key: EndpointKey, endpoint: &EndpointMemory) {
        let told = endpoint.health.failing.is_some_and(|failing| failing.alerted_at.is_some());
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        if told && !matches!(endpoint.status, EndpointStatus::Disabled { .. }) {
            failing.insert(key);
        } else {
            failing.remove(&key);
        }
    }

    /// What is no longer declared is not sent to, and rings no bell.
    pub(super) fn declare(&self, endpoints: HashSet<EndpointKey>) {
        *self.declared.lock().unwrap_or_else(PoisonError::into_inner) = endpoints;
    }

    fn endpoints_failing(&self) -> u64 {
        let declared = self.declared.lock().unwrap_or_else(PoisonError::into_inner);
        self.failing.lock().unwrap_or_else(PoisonError::into_inner).intersection(&declared).count() as u64
    }

    pub(super) fn read_gauges(&self) -> Gauges {
        let now = self.clock.now();
        let paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        let endpoints_paused = paused.values().filter(|until| **until > now).count() as u64;
        drop(paused);
        let count = |cell: &AtomicI64| super::codec::count(cell.load(Ordering::Acquire));
        let oldest = self.gauges.oldest_dead_at.load(Ordering::Acquire);
        Gauges {
            pending: count(&self.gauges.pending),
            in_flight: count(&self.gauges.in_flight),
            dead: count(&self.gauges.dead),
            oldest_dead_at: (oldest != i64::MAX).then(|| Timestamp::from_millis(oldest)),
            endpoints_paused,
            endpoints_failing: self.endpoints_failing(),
            ledger_bytes: self.files.database_bytes(),
            wal_bytes: std::fs::metadata(&self.files.wal).map_or(0, |m| m.len()),
        }
    }

    /// Whether another arrival may be queued, and why not.
    pub(super) fn refuse_arrival(&self) -> Result<(), LedgerError> {
        if self.queue.arrivals.load(Ordering::Acquire) >= self.settings.queued_max {
            return Err(LedgerError::Unavailable("too many events are queued for the disk".into()));
        }
        if self.queue.bytes.load(Ordering::Acquire) >= self.settings.queued_bytes_max {
            return Err(LedgerError::Unavailable("too many bytes are queued for the disk".into()));
        }
        if self.wal_bytes.load(Ordering::Acquire) >= self.settings.wal_bytes_max {
            return Err(LedgerError::Unavailable("the write-ahead log is over its bound".into()));
        }
        Ok(())
    }
}

/// What waits for the writer. Arrivals alone are refused: outcomes and claims are bounded by the slots.
#[derive(Default)]
pub(super) struct QueueLoad {
    pub arrivals: AtomicUsize,
    pub bytes: AtomicUsize,
}

impl QueueLoad {
    /// Arrivals weigh at least one byte; other verbs weigh nothing.
    pub(super) fn joined(&self, weight: usize) {
        if weight > 0 {
            self.arrivals.fetch_add(1, Ordering::AcqRel);
            self.bytes.fetch_add(weight, Ordering::AcqRel);
        }
    }

    pub(super) fn left(&self, weight: usize) {
        if weight > 0 {
            self.arrivals.fetch_sub(1, Ordering::AcqRel);
            self.bytes.fetch_sub(weight, Ordering::AcqRel);
        }
    }
}

/// Counts as of the last commit.
pub(super) struct GaugeCells {
    pending: AtomicI64,
    in_flight: AtomicI64,
    dead: AtomicI64,
    oldest_dead_at: AtomicI64,
}

impl Default for GaugeCells {
    fn default() -> Self {
        let zero = || AtomicI64::new(0);
        GaugeCells { pending: zero(), in_flight: zero(), dead: zero(), oldest_dead_at: AtomicI64::new(i64::MAX) }
    }
}

impl GaugeCells {
    pub(super) fn add(&self, pending: i64, in_flight: i64, dead: i64, oldest_dead_at: Option<Timestamp>) {
        self.pending.fetch_add(pending, Ordering::AcqRel);
        self.in_flight.fetch_add(in_flight, Ordering::AcqRel);
        self.dead.fetch_add(dead, Ordering::AcqRel);
        self.oldest_dead_at.store(oldest_dead_at.map_or(i64::MAX, Timestamp::as_millis), Ordering::Release);
    }
}
