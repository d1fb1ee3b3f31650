//! Secrets that providers handed over: one of a source at a time, from the first handshake until an operator forgets it.

use super::{LedgerError, SourceKey, TenantKey};
use crate::clock::Timestamp;
use crate::secret::Secret;
use async_trait::async_trait;
use std::sync::Arc;

/// The verbs on adopted secrets.
#[async_trait]
pub trait Adoptions: Send + Sync + 'static {
    /// What the source holds as of the last commit: the same `Arc` for as long as it holds the same.
    fn adopted(&self, source: SourceKey) -> Option<Arc<AdoptedSecret>>;

    /// Keeps the secret as the source's, unless it holds one. Durable when this returns.
    async fn adopt(
        &self,
        tenant: TenantKey,
        source: SourceKey,
        secret: Secret,
        now: Timestamp,
    ) -> Result<Adopted, LedgerError>;

    /// From now on the source holds none. `false`: it held none before.
    async fn forget(&self, tenant: TenantKey, source: SourceKey) -> Result<bool, LedgerError>;
}

#[derive(Debug)]
pub struct AdoptedSecret {
    pub secret: Secret,
    pub at: Timestamp,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Adopted {
    /// The source holds this secret: by this call, or from before.
    Held,
    /// It holds another, and goes on to.
    Other,
}
