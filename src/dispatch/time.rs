//! What a wall clock that was set upsets in the ledger, put right: after every jump, and at the start, when nobody knows
//! what was noticed before.

use super::Crew;
use crate::clock::{Standing, Timestamp};
use crate::ledger::{LedgerError, Strayed};
use crate::telemetry::CLOCK_JUMPS;
use std::time::Duration;
use tokio::time::Instant;

/// Longer than any attempt may take.
const LEASE_AFTER_JUMP: Duration = Duration::from_secs(600);

/// For so long after a jump, verbs may be written whose time was read before it.
const LATE_VERBS: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct Timekeeper {
    /// Jumps that were logged and counted.
    told: u64,
    righted: Option<Righted>,
}

/// The ledger was put right.
struct Righted {
    /// After so many jumps.
    jumps: u64,
    leases_until: Timestamp,
    /// Until then it is looked at again.
    late_until: Option<Instant>,
}

impl Timekeeper {
    /// Afterwards the ledger's leases and due times are those of the clock as it goes now. Returns whether it goes
    /// otherwise than before.
    pub(super) async fn keep(&mut self, crew: &Crew) -> Result<bool, LedgerError> {
        let standing = crew.clock.look();
        self.tell(standing);
        let again = match &self.righted {
            Some(righted) if righted.jumps == standing.jumps => {
                if righted.late_until.is_none_or(|late_until| Instant::now() >= late_until) {
                    return Ok(false);
                }
                Some(righted.leases_until)
            }
            Some(_) | None => None,
        };
        let known = crew.targets.endpoints().into_iter();
        let longest: Vec<_> = known
            .filter_map(|key| crew.targets.way(key).map(|way| (key, way.terms().retry.backoff.longest())))
            .collect();
        let now = crew.clock.now();
        let leases_until = again.unwrap_or_else(|| now.plus(LEASE_AFTER_JUMP));
        let moved = crew.ledger.reanchor(leases_until, &longest, now).await?;
        if moved > 0 {
            tracing::warn!(deliveries = moved, "they were due later than any retry waits, and are due earlier now");
        }
        if again.is_some() {
            return Ok(false);
        }
        // At the start nobody knows what was set before: a lease that a consumer holds over it runs to its own end.
        let strayed = if standing.jumps > 0 { Strayed::All } else { Strayed::TooLong };
        crew.ledger.renew_consumers(strayed, now).await?;
        let late_until = (standing.jumps > 0).then(|| Instant::now() + LATE_VERBS);
        self.righted = Some(Righted { jumps: standing.jumps, leases_until, late_until });
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
