//! What a wall clock that was set upsets in the ledger, put right: after every jump, and at the start, when nobody knows
//! what was noticed before.

use super::Crew;
use crate::clock::Standing;
use crate::ledger::{LedgerError, Strayed};
use crate::telemetry::CLOCK_JUMPS;
use std::time::Duration;

/// Longer than any attempt may take.
const LEASE_AFTER_JUMP: Duration = Duration::from_secs(600);

#[derive(Default)]
pub(super) struct Timekeeper {
    /// Jumps that were logged and counted.
    told: u64,
    /// The jumps after which the ledger was put right.
    righted: Option<u64>,
}

impl Timekeeper {
    /// Afterwards the ledger's leases and due times are those of the clock as it goes now. Returns whether they had to
    /// be looked at.
    pub(super) async fn keep(&mut self, crew: &Crew) -> Result<bool, LedgerError> {
        let standing = crew.clock.look();
        self.tell(standing);
        if self.righted == Some(standing.jumps) {
            return Ok(false);
        }
        let known = crew.targets.endpoints().into_iter();
        let longest: Vec<_> = known
            .filter_map(|key| crew.targets.way(key).map(|way| (key, way.terms().retry.backoff.longest())))
            .collect();
        let now = crew.clock.now();
        let moved = crew.ledger.reanchor(now.plus(LEASE_AFTER_JUMP), &longest, now).await?;
        // At the start nobody knows what was set before: a lease that a consumer holds over it runs to its own end.
        let strayed = if standing.jumps > 0 { Strayed::All } else { Strayed::TooLong };
        crew.ledger.renew_consumers(strayed, now).await?;
        if moved > 0 {
            tracing::warn!(deliveries = moved, "they were due later than any retry waits, and are due earlier now");
        }
        self.righted = Some(standing.jumps);
        Ok(true)
    }

    fn tell(&mut self, standing: Standing) {
        let new = standing.jumps.saturating_sub(self.told);
        if let Some(jump) = standing.latest
            && new > 0
        {
            tracing::warn!(%jump, "the wall clock was set: purge and the end of dedup windows wait for an hour");
            metrics::counter!(CLOCK_JUMPS).increment(new);
        }
        self.told = standing.jumps;
    }
}
