//! Consumers of pull endpoints, from the API to the desk that serves them.

use crate::admin::Consumers;
use crate::clock::Timestamp;
use crate::delivery::{Disposition, Verdict};
use crate::dispatch::Desk;
use crate::ledger::{Consumed, EndpointKey, Lapsed, LedgerError, Receipt, TenantKey};
use async_trait::async_trait;
use std::time::Duration;

#[async_trait]
impl Consumers for Desk {
    async fn consume(
        &self,
        tenant: TenantKey,
        endpoint: EndpointKey,
        max: usize,
        lease_for: Duration,
    ) -> Result<Consumed, LedgerError> {
        Desk::consume(self, tenant, endpoint, max, lease_for).await
    }

    async fn answer(
        &self,
        tenant: TenantKey,
        endpoint: EndpointKey,
        answers: Vec<(Receipt, Verdict)>,
    ) -> Result<Vec<Result<Disposition, Lapsed>>, LedgerError> {
        Desk::answer(self, tenant, endpoint, answers).await
    }

    async fn extend(
        &self,
        tenant: TenantKey,
        endpoint: EndpointKey,
        wishes: Vec<(Receipt, Duration)>,
    ) -> Result<Vec<Result<Timestamp, Lapsed>>, LedgerError> {
        Desk::extend(self, tenant, endpoint, wishes).await
    }
}
