//! An event once more: by a new delivery, with an id and an idempotency key of its own.

use super::{EventFilter, EventRow, LedgerError, RequestId, TenantKey};
use crate::clock::Timestamp;
use crate::delivery::{DeliveryId, DeliveryState, Name, OnDead};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};

/// Resends and replays of one event to one endpoint.
pub const AGAIN_MAX: u32 = 1_000;

/// The verbs that make another delivery of an event.
#[async_trait]
pub trait Again: Send + Sync + 'static {
    /// Of what is over and is no dead letter: a new delivery to the same endpoint, of what this one sent. Asked again under
    /// the same request id, it makes nothing and answers as it did.
    async fn resend(&self, resend: Resend, now: Timestamp) -> Result<Resent, LedgerError>;
    /// What a replay that begins now would do. `None`: no such endpoint.
    async fn rehearse_replay(
        &self,
        tenant: TenantKey,
        replay: &Replay,
        samples: u32,
        now: Timestamp,
    ) -> Result<Option<ReplayRehearsed>, LedgerError>;
}

#[derive(Clone, Debug)]
pub struct Resend {
    pub tenant: TenantKey,
    pub delivery: DeliveryId,
    pub note: Option<String>,
    pub request: Option<RequestId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resent {
    Done(DeliveryId),
    NotFound,
    /// It is dead, which is redriven, or has not ended.
    NotOver(DeliveryState),
    /// It was closed for good.
    Purged,
    /// The payload is erased.
    PayloadErased,
    /// The event's `expires_at` has passed.
    Expired,
    /// [`AGAIN_MAX`] of them were made.
    TooMany,
    /// The request id came before with another note.
    RequestReused,
}

/// Which events go to which endpoint once more.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Replay {
    pub endpoint: Name,
    pub events: EventFilter,
    /// Those alone of which the endpoint never had a delivery.
    pub only_missed: bool,
    /// The endpoint orders by key, and what its dead letters do to those behind them.
    #[serde(with = "on_dead")]
    pub order: Option<OnDead>,
}

/// As it is written in a row: whether a dead letter holds its key.
mod on_dead {
    use crate::delivery::OnDead;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(order: &Option<OnDead>, to: S) -> Result<S::Ok, S::Error> {
        order.map(|on_dead| on_dead == OnDead::Hold).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<OnDead>, D::Error> {
        let holds = Option::<bool>::deserialize(from)?;
        Ok(holds.map(|holds| if holds { OnDead::Hold } else { OnDead::Release }))
    }
}

/// What a replay would come to.
#[derive(Clone, Debug)]
pub struct ReplayRehearsed {
    /// Deliveries that it would make.
    pub count: u64,
    pub expired: u64,
    pub payload_erased: u64,
    /// A delivery of theirs to the endpoint has not ended.
    pub under_way: u64,
    /// Some of the events, the oldest first.
    pub samples: Vec<EventRow>,
}

/// Where a delivery comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Its event's acceptance.
    Accepted,
    Resend,
    Replay,
}
