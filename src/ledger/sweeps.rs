//! Many deliveries closed by a person's word, in bounded batches, each whole or not at all.

use super::records::{DeliveryFilter, DeliveryRow};
use super::{DeadFilter, LedgerError, PurgePlace, ResolveAs, TenantKey};
use crate::clock::Timestamp;
use crate::delivery::DeliveryId;
use async_trait::async_trait;

/// The verbs that close without a send.
#[async_trait]
pub trait Sweeps: Send + Sync + 'static {
    /// Closes one batch of dead letters: those alone that were dead at the first batch. `from`: where the batch before left off.
    async fn resolve_many(
        &self,
        resolve: &ResolveMany,
        from: Option<PurgePlace>,
        now: Timestamp,
    ) -> Result<Swept<PurgePlace>, LedgerError>;
    /// Pending deliveries, whatever state the filter names, and some of them.
    async fn pending(
        &self,
        tenant: TenantKey,
        filter: &DeliveryFilter,
        samples: u32,
    ) -> Result<(u64, Vec<DeliveryRow>), LedgerError>;
    /// Gives up one batch of them: those alone that were there at the first batch, of which `up_to` is the newest.
    async fn cancel_many(
        &self,
        tenant: TenantKey,
        filter: &DeliveryFilter,
        up_to: Option<DeliveryId>,
        now: Timestamp,
    ) -> Result<Swept<DeliveryId>, LedgerError>;
}

#[derive(Clone, Debug)]
pub struct ResolveMany {
    pub tenant: TenantKey,
    pub filter: DeadFilter,
    pub how: ResolveAs,
    pub note: Option<String>,
}

/// What one batch came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Swept<P> {
    pub done: u64,
    /// Where to go on; `None`: there are no more.
    pub next: Option<P>,
}
