//! Erases payloads and removes rows whose time is over.

use crate::clock::Clock;
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

/// Runs until `stop` is cancelled.
pub async fn run(ledger: Arc<dyn Ledger>, settings: Settings, clock: Arc<dyn Clock>, stop: CancellationToken) {
    loop {
        let wait = match ledger.prune(&settings.retention, clock.now()).await {
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
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}
