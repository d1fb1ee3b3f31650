//! Time that passes only when everybody waits: tokio's paused clock, with a wall clock on top that can be set.

use hookgate::clock::{Clock, Timestamp};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub const START: Timestamp = Timestamp::from_millis(1_760_000_000_000);

/// Waits, in the time of the simulation.
pub async fn pass(span: Duration) {
    if !span.is_zero() {
        tokio::time::sleep(span).await; // plays the peer: the clock is paused, nothing waits for real
    }
}

pub struct SimClock {
    since: Instant,
    /// When the process that runs now began, by tokio's clock and by ours.
    life: Mutex<Option<(tokio::time::Instant, u64)>>,
    /// Milliseconds, as of the last look from within the simulation: the ledger's own threads go by it.
    passed: AtomicU64,
    /// How far the wall clock was set away.
    offset: AtomicI64,
}

impl Default for SimClock {
    fn default() -> Self {
        SimClock { since: Instant::now(), life: Mutex::default(), passed: AtomicU64::new(0), offset: AtomicI64::new(0) }
    }
}

impl SimClock {
    pub fn begin_life(&self) {
        *self.life.lock().unwrap() = Some((tokio::time::Instant::now(), self.passed.load(Ordering::SeqCst)));
    }

    pub fn end_life(&self) {
        *self.life.lock().unwrap() = None;
    }

    /// Milliseconds since the simulation began, whatever the wall clock was set to.
    pub fn passed(&self) -> u64 {
        // Outside of the runtime, tokio's clock is the machine's.
        if tokio::runtime::Handle::try_current().is_ok()
            && let Some((began, before)) = *self.life.lock().unwrap()
        {
            let lived = u64::try_from(began.elapsed().as_millis()).unwrap();
            self.passed.store(before + lived, Ordering::SeqCst);
        }
        self.passed.load(Ordering::SeqCst)
    }

    /// Somebody sets the wall clock.
    pub fn set_by(&self, millis: i64) {
        self.offset.fetch_add(millis, Ordering::SeqCst);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        let passed = i64::try_from(self.passed()).unwrap();
        Timestamp::from_millis(START.as_millis() + passed + self.offset.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Instant {
        self.since + Duration::from_millis(self.passed())
    }
}
