//! Attempts whose maker is gone: decided like any other outcome, and written down.

use super::Crew;
use super::attempt::{words, write_down};
use crate::clock::Timestamp;
use crate::delivery::{DecidedBy, Outcome, Terms, decide};
use crate::ledger::{AttemptRecord, Interrupted, LedgerError, Settlement};
use futures_util::StreamExt as _;

/// Leases taken over at once.
const BATCH_MAX: usize = 1_000;

/// Settles as interrupted every attempt whose lease had ended by `expired_by` (`Timestamp::MAX`: every one that is
/// under way in the ledger, right for the only process before it starts). Returns how many.
pub async fn requeue_interrupted(crew: &Crew, expired_by: Timestamp) -> Result<usize, LedgerError> {
    let mut total = 0;
    loop {
        let batch = crew.ledger.rescue(expired_by, BATCH_MAX, crew.clock.now()).await?;
        if batch.is_empty() {
            return Ok(total);
        }
        total += batch.len();
        let settlements = batch.into_iter().map(|interrupted| settlement(crew, &interrupted));
        futures_util::stream::iter(settlements)
            .for_each_concurrent(BATCH_MAX, |settlement| write_down(crew, settlement))
            .await;
    }
}

fn settlement(crew: &Crew, interrupted: &Interrupted) -> Settlement {
    let now = crew.clock.now();
    let target = crew.targets.endpoint(interrupted.endpoint);
    let unknown = Terms::default();
    let terms = target.as_ref().map_or(&unknown, |target| &target.terms);
    let outcome = Outcome::Interrupted;
    let decision = decide(&outcome, &interrupted.history, terms, now, crew.entropy.next_u64());
    let (verdict, reason) = words(&outcome, &decision.disposition);
    let record = AttemptRecord {
        outcome: outcome.as_str(),
        status: None,
        verdict,
        reason,
        decided_by: DecidedBy::Host,
        duration: now.since(interrupted.started_at),
        ambiguous: outcome.is_ambiguous(),
        plugin_version: None,
        plugin_took: None,
        plugin_log: Vec::new(),
        plugin_log_dropped: 0,
        request: None,
        response: None,
        detail: Some("the process ended while this attempt was under way".to_owned()),
    };
    let settlement = Settlement { lease: interrupted.lease, record, decision, now };
    crew.tally.interrupted(&settlement);
    settlement
}
