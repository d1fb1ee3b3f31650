//! What is counted, with every handle looked up once: a look-up by name and label costs more than a count.

use crate::clock::Timestamp;
use crate::delivery::{DeliveryState, Disposition};
use crate::ledger::Settlement;
use crate::telemetry::{ATTEMPT_DURATION, ATTEMPT_RESULTS, ATTEMPTS, DELIVERIES, DELIVERY_LATENCY};
use metrics::{Counter, Histogram};

/// Make it after the recorder is installed.
pub struct Tally {
    attempts: [(&'static str, Counter); ATTEMPT_RESULTS.len()],
    delivered: Counter,
    skipped: Counter,
    dead: Counter,
    expired: Counter,
    duration: Histogram,
    latency: Histogram,
}

impl Default for Tally {
    fn default() -> Self {
        let entered = |state: DeliveryState| metrics::counter!(DELIVERIES, "state" => state.as_str());
        Tally {
            attempts: ATTEMPT_RESULTS.map(|result| (result, metrics::counter!(ATTEMPTS, "result" => result))),
            delivered: entered(DeliveryState::Delivered),
            skipped: entered(DeliveryState::Skipped),
            dead: entered(DeliveryState::Dead),
            expired: entered(DeliveryState::Expired),
            duration: metrics::histogram!(ATTEMPT_DURATION),
            latency: metrics::histogram!(DELIVERY_LATENCY),
        }
    }
}

impl Tally {
    /// One attempt, and the terminal state it led to, if any.
    pub(super) fn count(&self, settlement: &Settlement, accepted_at: Timestamp) {
        let record = &settlement.record;
        self.duration.record(record.duration.as_secs_f64());
        self.fetched(settlement, accepted_at);
    }

    /// One attempt of a consumer, whose duration is its own affair.
    pub(super) fn fetched(&self, settlement: &Settlement, accepted_at: Timestamp) {
        let Settlement { record, decision, now, .. } = settlement;
        self.attempt(record.outcome);
        match &decision.disposition {
            Disposition::Delivered { .. } => {
                self.latency.record(now.since(accepted_at).as_secs_f64());
                self.delivered.increment(1);
            }
            Disposition::Skipped(_) => self.skipped.increment(1),
            Disposition::Dead(_) => self.dead.increment(1),
            Disposition::Expired(_) => self.expired.increment(1),
            Disposition::RetryAt { .. } | Disposition::Released { .. } => {}
        }
    }

    /// One attempt that was not made to its end: its duration says nothing.
    pub(super) fn unmade(&self, settlement: &Settlement) {
        self.attempt(settlement.record.outcome);
        match &settlement.decision.disposition {
            Disposition::Dead(_) => self.dead.increment(1),
            Disposition::Expired(_) => self.expired.increment(1),
            Disposition::Delivered { .. }
            | Disposition::Skipped(_)
            | Disposition::RetryAt { .. }
            | Disposition::Released { .. } => {}
        }
    }

    fn attempt(&self, outcome: &str) {
        if let Some((_, counter)) = self.attempts.iter().find(|(word, _)| *word == outcome) {
            counter.increment(1);
        }
    }
}
