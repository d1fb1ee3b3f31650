//! The way of refused requests to the ledger's log: beside the way of events, and never more than the disk is to bear.
//!
//! Nobody waits for it. What a source sends too fast, what finds the queue full and what the ledger does not take is
//! dropped and counted.

use crate::ledger::{BodyFacts, Ledger, Rejected};
use crate::telemetry::REJECTIONS_DROPPED;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use metrics::Counter;
use sha2::Digest as _;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Of one source: so many at once, and one a second in the long run.
const PER_SOURCE_BURST: NonZeroU32 = NonZeroU32::new(50).unwrap();
/// That wait for the ledger.
const WAITING_MAX: usize = 1_024;
/// In one commit, of which there is at most one in `BREATH`.
const BATCH_MAX: usize = 256;
const BREATH: Duration = Duration::from_secs(1);

pub(super) fn limiter() -> DefaultDirectRateLimiter {
    RateLimiter::direct(Quota::per_second(NonZeroU32::MIN).allow_burst(PER_SOURCE_BURST))
}

/// What a body is told by.
pub(super) fn facts(body: &[u8]) -> BodyFacts {
    let hash: [u8; 32] = sha2::Sha256::digest(body).into();
    let mut digest = [0; 8];
    digest.copy_from_slice(&hash[..8]);
    BodyFacts { bytes: u64::try_from(body.len()).unwrap_or(u64::MAX), digest }
}

/// Where refused requests are noted.
pub(super) struct Book {
    waiting: mpsc::Sender<Rejected>,
    /// Taken by whoever writes them.
    arrived: Mutex<Option<mpsc::Receiver<Rejected>>>,
    dropped: Counter,
}

impl Book {
    pub(super) fn new() -> Self {
        let (waiting, arrived) = mpsc::channel(WAITING_MAX);
        Book { waiting, arrived: Mutex::new(Some(arrived)), dropped: metrics::counter!(REJECTIONS_DROPPED) }
    }

    /// Notes one, where the source has not had too many of late. `rejected` is only made then.
    pub(super) fn note(&self, limiter: &DefaultDirectRateLimiter, rejected: impl FnOnce() -> Rejected) {
        if limiter.check().is_err() || self.waiting.try_send(rejected()).is_err() {
            self.dropped.increment(1);
        }
    }

    /// Writes what is noted until `stop`, and then what is left.
    pub(super) async fn keep(&self, ledger: Arc<dyn Ledger>, stop: CancellationToken) {
        let arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut arrived) = arrived else { return };
        loop {
            let mut batch = Vec::new();
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                _ = arrived.recv_many(&mut batch, BATCH_MAX) => {}
            }
            while batch.len() < BATCH_MAX
                && let Ok(rejected) = arrived.try_recv()
            {
                batch.push(rejected);
            }
            if !batch.is_empty() {
                let lost = u64::try_from(batch.len()).unwrap_or(u64::MAX);
                if let Err(error) = ledger.keep_rejections(batch).await {
                    self.dropped.increment(lost);
                    tracing::warn!(%error, lost, "refused requests could not be noted");
                }
            }
            if stop.run_until_cancelled(tokio::time::sleep(BREATH)).await.is_none() && arrived.is_empty() {
                return;
            }
        }
    }
}
