//! Attempts whose maker is gone: decided like any other outcome, and written down.

use super::attempt::{decision, words, write_down};
use super::{Crew, Way};
use crate::clock::Timestamp;
use crate::delivery::{DecidedBy, Order, Outcome, Reason, Terms};
use crate::ledger::{AttemptRecord, Lease, LedgerError, Settlement};
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
        settle_all(crew, &batch, &Outcome::Interrupted, why_interrupted).await;
    }
}

fn why_interrupted(way: Option<&Way>) -> &'static str {
    match way {
        Some(Way::Pull(_)) => "the lease ran out before its consumer had answered",
        Some(Way::Push(_)) | None => "the process ended while this attempt was under way",
    }
}

/// Why those end that nobody tried.
fn over(_: Option<&Way>) -> &'static str {
    "its time was over before it could be sent"
}

/// Ends what expired after `after` and by now, whether or not its endpoint is open. What was claimed in time is not
/// touched: it is asked again before it is sent. Returns up to when everything is done.
pub(super) async fn expire(crew: &Crew, after: Timestamp) -> Result<Timestamp, LedgerError> {
    loop {
        let now = crew.clock.now();
        let batch = crew.ledger.overdue(after, BATCH_MAX, now).await?;
        settle_all(crew, &batch, &Outcome::Released(Reason::EXPIRED), over).await;
        if batch.len() < BATCH_MAX {
            return Ok(now);
        }
    }
}

/// Ends what is older than its endpoint allows, where the endpoint is closed, or orders by key; at any other, its turn
/// comes by itself.
pub(super) async fn expire_aged(crew: &Crew) -> Result<(), LedgerError> {
    loop {
        let now = crew.clock.now();
        let limited = crew.targets.endpoints().into_iter().filter_map(|key| {
            let ordered = crew.targets.endpoint(key).is_some_and(|target| target.order != Order::Free);
            let waits = ordered || !crew.slots.is_open(key, now);
            let max_age = crew.targets.way(key)?.terms().retry.max_age.filter(|_| waits)?;
            Some((key, now.minus(max_age)))
        });
        let began_by: Vec<_> = limited.collect();
        if began_by.is_empty() {
            return Ok(());
        }
        let batch = crew.ledger.outlived(began_by, BATCH_MAX, now).await?;
        settle_all(crew, &batch, &Outcome::Released(Reason::MAX_AGE), over).await;
        if batch.len() < BATCH_MAX {
            return Ok(());
        }
    }
}

/// What to tell people of an attempt, by the way its delivery goes.
type Detail = fn(Option<&Way>) -> &'static str;

async fn settle_all(crew: &Crew, batch: &[Lease], outcome: &Outcome, detail: Detail) {
    let settlements = batch.iter().map(|lease| settlement(crew, *lease, outcome, detail));
    futures_util::stream::iter(settlements)
        .for_each_concurrent(BATCH_MAX, |settlement| write_down(crew, settlement))
        .await;
}

fn settlement(crew: &Crew, lease: Lease, outcome: &Outcome, detail: Detail) -> Settlement {
    let now = crew.clock.now();
    let way = crew.targets.way(lease.endpoint);
    let unknown = Terms::default();
    let terms = way.as_ref().map_or(&unknown, Way::terms);
    let decision = decision(outcome, &lease.history, terms, now, crew.entropy.next_u64());
    let (verdict, reason) = words(outcome, &decision.disposition);
    let record = AttemptRecord {
        outcome: outcome.as_str(),
        status: None,
        verdict,
        reason,
        decided_by: DecidedBy::Host,
        duration: now.since(lease.started_at),
        ambiguous: outcome.is_ambiguous(),
        plugin_version: None,
        plugin_took: None,
        plugin_log: Vec::new(),
        plugin_log_dropped: 0,
        request: None,
        response: None,
        detail: Some(detail(way.as_ref()).to_owned()),
    };
    let settlement = Settlement { lease, record, decision, pulse: None, now };
    crew.tally.unmade(&settlement);
    settlement
}
