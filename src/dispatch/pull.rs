//! Pull: what a consumer fetches, and what it says of it, by the same decision as everything that is sent.

use super::attempt::{Report, decision, record};
use super::{Tally, Targets};
use crate::clock::{ClockWatch, Timestamp};
use crate::delivery::{Disposition, LEASE_MAX, Outcome, Reason, Terms, Verdict, may_start};
use crate::entropy::Entropy;
use crate::ledger::{
    Consume, Consumed, EndpointKey, Extension, Held, Lapsed, Ledger, LedgerError, Receipt, Settled, Settlement,
    TenantKey,
};
use futures_util::future::{join_all, try_join_all};
use std::sync::Arc;
use std::time::Duration;

/// Stored content that one answer may carry, beyond the first.
const BYTES_MAX: u64 = 8 << 20;

/// How often one call looks again after it found nothing but work whose time was over.
const LOOKS_MAX: usize = 8;

/// Where consumers come to.
pub struct Desk {
    pub ledger: Arc<dyn Ledger>,
    pub targets: Arc<Targets>,
    pub clock: Arc<ClockWatch>,
    pub entropy: Arc<dyn Entropy>,
    pub tally: Tally,
}

impl Desk {
    /// Up to `max` due deliveries, leased for that long. What is over by now is ended on the way.
    pub async fn consume(
        &self,
        tenant: TenantKey,
        endpoint: EndpointKey,
        max: usize,
        lease_for: Duration,
    ) -> Result<Consumed, LedgerError> {
        let consume = Consume { tenant, endpoint, max, lease_for, bytes_max: BYTES_MAX };
        let mut looks = 0;
        loop {
            looks += 1;
            let now = self.clock.now();
            let mut consumed = self.ledger.consume(consume, now).await?;
            let (over, ready): (Vec<_>, Vec<_>) = consumed.items.into_iter().partition(|handed| {
                self.with_terms(endpoint, |terms| may_start(&handed.lease.history, terms, now)).is_some()
            });
            let ended = over.iter().map(|handed| {
                let held = Held { lease: handed.lease, accepted_at: handed.event.accepted_at };
                self.settle(held, Outcome::Released(Reason::EXPIRED), now)
            });
            // What cannot be written now is ended when its lease has run out; what is ready is not lost with it.
            join_all(ended).await;
            consumed.items = ready;
            if over.is_empty() || !consumed.items.is_empty() || looks == LOOKS_MAX {
                return Ok(consumed);
            }
        }
    }

    /// What becomes of each, in their order.
    pub async fn answer(
        &self,
        tenant: TenantKey,
        endpoint: EndpointKey,
        answers: Vec<(Receipt, Verdict)>,
    ) -> Result<Vec<Result<Disposition, Lapsed>>, LedgerError> {
        let held = self.ledger.held(tenant, endpoint, answers.iter().map(|(receipt, _)| *receipt).collect()).await?;
        let now = self.clock.now();
        let settled = held.into_iter().zip(answers).map(|(held, (receipt, verdict))| async move {
            let held = match held {
                Ok(held) => held,
                Err(lapsed) => return Ok(Err(lapsed)),
            };
            if let Some(disposition) = self.settle(held, Outcome::Told(verdict), now).await? {
                return Ok(Ok(disposition));
            }
            // Somebody came in between.
            match self.ledger.held(tenant, endpoint, vec![receipt]).await?.pop() {
                Some(Err(lapsed)) => Ok(Err(lapsed)),
                Some(Ok(_)) | None => Ok(Err(Lapsed::Unknown)),
            }
        });
        try_join_all(settled).await
    }

    /// Until when each is held now, in their order.
    pub async fn extend(
        &self,
        tenant: TenantKey,
        endpoint: EndpointKey,
        wishes: Vec<(Receipt, Duration)>,
    ) -> Result<Vec<Result<Timestamp, Lapsed>>, LedgerError> {
        let receipts: Vec<Receipt> = wishes.iter().map(|(receipt, _)| *receipt).collect();
        let held = self.ledger.held(tenant, endpoint, receipts.clone()).await?;
        let now = self.clock.now();
        let mut extensions = Vec::new();
        let mut all: Vec<Result<Timestamp, Lapsed>> = Vec::with_capacity(held.len());
        for (at, (held, (receipt, wish))) in held.into_iter().zip(wishes).enumerate() {
            all.push(held.map(|Held { lease, .. }| {
                // However often more time is asked for.
                let until = now.plus(wish).min(lease.started_at.plus(LEASE_MAX));
                if until <= now {
                    return lease.until;
                }
                extensions.push((at, Extension { receipt, lease_for: until.since(now), until }));
                until
            }));
        }
        let places: Vec<usize> = extensions.iter().map(|(at, _)| *at).collect();
        let asked = extensions.into_iter().map(|(_, extension)| extension).collect();
        let done = self.ledger.extend(tenant, endpoint, asked).await?;
        let lost: Vec<usize> = places.into_iter().zip(done).filter(|(_, done)| !done).map(|(at, _)| at).collect();
        if !lost.is_empty() {
            // Somebody came in between.
            let again = self.ledger.held(tenant, endpoint, lost.iter().map(|at| receipts[*at]).collect()).await?;
            for (at, held) in lost.into_iter().zip(again) {
                all[at] = held.map(|held| held.lease.until);
            }
        }
        Ok(all)
    }

    /// `None`: the lease was lost, and nothing is written.
    async fn settle(&self, held: Held, outcome: Outcome, now: Timestamp) -> Result<Option<Disposition>, LedgerError> {
        let Held { lease, accepted_at } = held;
        let chance = self.entropy.next_u64();
        let decision = self.with_terms(lease.endpoint, |terms| decision(&outcome, &lease.history, terms, now, chance));
        let report = Report::unsent(outcome, Default::default());
        let record = record(report, &decision, now.since(lease.started_at));
        let settlement = Arc::new(Settlement { lease, record, decision, pulse: None, now });
        match self.ledger.settle(Arc::clone(&settlement)).await? {
            Settled::LeaseLost => Ok(None),
            Settled::Stored => {
                self.tally.fetched(&settlement, accepted_at);
                Ok(Some(settlement.decision.disposition.clone()))
            }
        }
    }

    fn with_terms<T>(&self, endpoint: EndpointKey, read: impl FnOnce(&Terms) -> T) -> T {
        match self.targets.way(endpoint) {
            Some(way) => read(way.terms()),
            None => read(&Terms::default()),
        }
    }
}
