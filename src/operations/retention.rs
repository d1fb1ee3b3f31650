//! Erases payloads and removes rows whose time is over.

use crate::clock::{ClockWatch, Timestamp};
use crate::ledger::{Ledger, Pruned, Retention};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

#[derive(Clone, Debug)]
pub struct Settings {
    pub retention: Retention,
    /// Between two passes.
    pub every: Duration,
    /// Between two batches of one pass, so that the writer's other work goes first.
    pub breath: Duration,
}

/// Runs until `stop` is cancelled. While the date is in doubt, nothing goes.
pub async fn run(ledger: Arc<dyn Ledger>, settings: Settings, clock: Arc<ClockWatch>, stop: CancellationToken) {
    loop {
        let now = clock.now();
        let wait = if clock.is_settled() { pass(&*ledger, &settings, now).await } else { settings.every };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// One batch. Gives how long to wait for the next.
async fn pass(ledger: &dyn Ledger, settings: &Settings, now: Timestamp) -> Duration {
    match ledger.prune(&settings.retention, now).await {
        Ok(Pruned { payloads_erased, rows_removed, more }) => {
            if payloads_erased + rows_removed > 0 {
                tracing::info!(payloads_erased, rows_removed, "retention");
            }
            if more { settings.breath } else { settings.every }
        }
        Err(error) => {
            tracing::warn!(%error, "retention could not run; it will be tried again");
            settings.every
        }
    }
}
