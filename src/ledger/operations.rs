//! What an operator can do, and what time does to rows.

use super::{LedgerError, RequestId, TenantKey};
use crate::clock::Timestamp;
use crate::delivery::{DeliveryId, DeliveryState, EndpointStatus, Name};
use async_trait::async_trait;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;

/// Verbs that change state on somebody's word, and retention.
#[async_trait]
pub trait Operations: Send + Sync + 'static {
    /// From `dead`, or from `resolved` as not sent: the next generation, a fresh budget, due now; the same delivery id and idempotency key. Asked
    /// again under the same request id, it changes nothing and answers as it did.
    async fn redrive(&self, redrive: Redrive, now: Timestamp) -> Result<Redriven, LedgerError>;
    /// From `pending` alone.
    async fn cancel(&self, tenant: TenantKey, id: DeliveryId, now: Timestamp) -> Result<Cancelled, LedgerError>;
    /// From `dead` alone: closed without a send.
    async fn resolve(
        &self,
        tenant: TenantKey,
        id: DeliveryId,
        how: ResolveAs,
        note: Option<String>,
        now: Timestamp,
    ) -> Result<Resolved, LedgerError>;
    /// `false`: no such endpoint.
    async fn change_endpoint(
        &self,
        tenant: TenantKey,
        endpoint: &Name,
        change: EndpointChange,
        now: Timestamp,
    ) -> Result<Option<EndpointStatus>, LedgerError>;
    /// One bounded batch of erasing payloads and removing rows whose time is over. Only terminal work is touched.
    /// Call again while anything was done.
    async fn prune(&self, retention: &Retention, now: Timestamp) -> Result<Pruned, LedgerError>;
}

#[derive(Clone, Debug)]
pub struct Redrive {
    pub tenant: TenantKey,
    pub delivery: DeliveryId,
    pub note: Option<String>,
    /// A corrected payload: the next revision, beside the ones before it.
    pub payload: Option<Bytes>,
    pub request: Option<RequestId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Redriven {
    Done {
        generation: u32,
        revision: u32,
    },
    NotFound,
    /// Only dead letters are redriven, and what was found unsent.
    NotDead(DeliveryState),
    /// The payload is erased: redrive with a new one.
    PayloadErased,
    /// Its `expires_at` has passed.
    Expired,
    /// The request id came before with another note or payload.
    RequestReused,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cancelled {
    Done,
    NotFound,
    NotPending(DeliveryState),
}

/// What a person found out about a dead letter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResolveAs {
    Sent,
    NotSent,
}

impl ResolveAs {
    pub const fn as_str(self) -> &'static str {
        match self {
            ResolveAs::Sent => "sent",
            ResolveAs::NotSent => "not_sent",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolved {
    Done,
    NotFound,
    NotDead(DeliveryState),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EndpointChange {
    Pause {
        until: Option<Timestamp>,
        why: String,
    },
    /// Ends a pause; a disabled endpoint stays disabled.
    Resume,
    Disable {
        why: String,
    },
    /// Ends a pause too.
    Enable,
}

/// How long what is over is kept.
#[derive(Clone, Debug)]
pub struct Retention {
    /// Payloads, headers and answers, from the terminal state on.
    pub payloads: Duration,
    pub rows: Duration,
    /// Tenants with their own spans (payloads, rows).
    pub tenants: BTreeMap<TenantKey, (Duration, Duration)>,
    /// Rows looked at in one batch, at most 1,000.
    pub batch_rows_max: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pruned {
    pub payloads_erased: u64,
    pub rows_removed: u64,
    /// There may be more to do now.
    pub more: bool,
}
