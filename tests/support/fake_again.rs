//! Resends and replays of the fake ledger: a resend answers with the first delivery of its tenant that is pending, or as it
//! was told to.

use super::{FakeLedger, event_row};
use async_trait::async_trait;
use hookgate::clock::Timestamp;
use hookgate::delivery::DeliveryState;
use hookgate::ledger::*;

#[async_trait]
impl Again for FakeLedger {
    async fn resend(&self, resend: Resend, _: Timestamp) -> Result<Resent, LedgerError> {
        self.check()?;
        if let Some(answer) = *self.resend_answer.lock().unwrap() {
            return Ok(answer);
        }
        let Some(row) = self.row(resend.tenant, resend.delivery) else { return Ok(Resent::NotFound) };
        if !matches!(row.delivery.state, DeliveryState::Delivered) {
            return Ok(Resent::NotOver(row.delivery.state));
        }
        let rows = self.rows.lock().unwrap();
        let made =
            rows.iter().find(|(tenant, row)| *tenant == resend.tenant && row.delivery.state == DeliveryState::Pending);
        *self.asked.lock().unwrap() = Some(format!("{resend:?}"));
        Ok(made.map_or(Resent::NotFound, |(_, row)| Resent::Done(row.delivery.id)))
    }

    async fn rehearse_replay(
        &self,
        tenant: TenantKey,
        replay: &Replay,
        samples: u32,
        _: Timestamp,
    ) -> Result<Option<ReplayRehearsed>, LedgerError> {
        self.check()?;
        *self.asked.lock().unwrap() = Some(format!("{replay:?} {samples}"));
        let stored = self.stored.lock().unwrap();
        let own: Vec<_> = stored.iter().filter(|one| one.tenant == tenant).map(|one| event_row(one, None)).collect();
        Ok(Some(ReplayRehearsed { count: own.len() as u64, expired: 1, payload_erased: 2, under_way: 3, samples: own }))
    }
}

/// All of its rows, whatever the filter, in two batches.
#[async_trait]
impl Sweeps for FakeLedger {
    async fn resolve_many(
        &self,
        resolve: &ResolveMany,
        from: Option<PurgePlace>,
        now: Timestamp,
    ) -> Result<Swept<PurgePlace>, LedgerError> {
        self.check()?;
        *self.asked.lock().unwrap() = Some(format!("{resolve:?}"));
        let dead = self.in_state(resolve.tenant, DeliveryState::Dead);
        match (dead.first(), from) {
            (Some(first), None) => Ok(Swept { done: 0, next: Some(PurgePlace { died_by: now, below: first.id }) }),
            (_, _) => {
                dead.iter().for_each(|row| self.set_state(row.id, DeliveryState::Resolved, resolve.note.as_deref()));
                Ok(Swept { done: dead.len() as u64, next: None })
            }
        }
    }

    async fn pending(
        &self,
        tenant: TenantKey,
        filter: &DeliveryFilter,
        samples: u32,
    ) -> Result<(u64, Vec<DeliveryRow>), LedgerError> {
        self.check()?;
        *self.asked.lock().unwrap() = Some(format!("{filter:?} {samples}"));
        let pending = self.in_state(tenant, DeliveryState::Pending);
        Ok((pending.len() as u64, pending))
    }

    async fn cancel_many(
        &self,
        tenant: TenantKey,
        filter: &DeliveryFilter,
        up_to: Option<hookgate::delivery::DeliveryId>,
        _: Timestamp,
    ) -> Result<Swept<hookgate::delivery::DeliveryId>, LedgerError> {
        self.check()?;
        *self.asked.lock().unwrap() = Some(format!("{filter:?}"));
        let pending = self.in_state(tenant, DeliveryState::Pending);
        match (pending.first(), up_to) {
            (Some(first), None) => Ok(Swept { done: 0, next: Some(first.id) }),
            (_, _) => {
                pending.iter().for_each(|row| self.set_state(row.id, DeliveryState::Cancelled, None));
                Ok(Swept { done: pending.len() as u64, next: None })
            }
        }
    }
}
