//! What was tried, whole: for whoever tries it again without sending anything.

use super::{EndpointKey, LedgerError, RequestRecord, ResponseRecord, TenantKey};
use crate::clock::Timestamp;
use crate::delivery::{DeliveryId, DeliveryState, EventId, Name, PluginVersionId};
use async_trait::async_trait;
use bytes::Bytes;
use std::time::Duration;

/// Reading attempts with what went in and out. Those that were handed back unsent are left out, and so is what is under
/// way.
#[async_trait]
pub trait Past: Send + Sync + 'static {
    /// Newest delivery first, and of one delivery its last attempt first; below `from` where there is one.
    async fn past_attempts(
        &self,
        tenant: TenantKey,
        filter: &PastFilter,
        from: Option<PastPlace>,
        room: PastRoom,
    ) -> Result<PastPage, LedgerError>;

    /// How many there are; counted no further than `max`.
    async fn count_past(&self, tenant: TenantKey, filter: &PastFilter, max: u32) -> Result<u32, LedgerError>;
}

/// Which attempts. What is not said may be anything.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PastFilter {
    /// Of deliveries to one of these.
    pub endpoints: Vec<EndpointKey>,
    /// Of events that were accepted then or later.
    pub since: Option<Timestamp>,
    pub delivery: Option<DeliveryId>,
    /// The delivery's state as it is now.
    pub state: Option<DeliveryState>,
    pub verdict: Option<String>,
    pub reason: Option<String>,
    pub status: Option<u16>,
    /// Only what a version of a plugin had a part in.
    pub by_plugin: bool,
}

/// One attempt in the order of [`Past::past_attempts`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PastPlace {
    pub delivery: DeliveryId,
    pub number: u32,
}

/// Where one read ends.
#[derive(Clone, Copy, Debug)]
pub struct PastRoom {
    pub attempts: u32,
    /// Of bodies; an attempt that begins within may go beyond.
    pub bytes: usize,
    /// Whether the events' bodies are wanted.
    pub payloads: bool,
}

#[derive(Clone, Debug, Default)]
pub struct PastPage {
    pub attempts: Vec<PastAttempt>,
    /// Whether there are more below the last one.
    pub more: bool,
}

/// An attempt that has ended. Words are those of [`super::AttemptRow`].
#[derive(Clone, Debug)]
pub struct PastAttempt {
    pub delivery: DeliveryId,
    pub number: u32,
    pub endpoint: EndpointKey,
    pub started_at: Timestamp,
    pub duration: Duration,
    pub outcome: String,
    pub status: Option<u16>,
    pub verdict: Option<String>,
    pub reason: String,
    pub decided_by: String,
    pub disposition: String,
    pub ambiguous: bool,
    pub plugin_version: Option<PluginVersionId>,
    pub plugin_took: Duration,
    /// What the receiver calls it, if this attempt was the one that delivered.
    pub reference: Option<String>,
    pub idempotency_key: String,
    pub event: PastEvent,
    /// `None`: nothing was kept, it is erased, or it does not authenticate.
    pub kept: Option<PastDetail>,
}

impl PastAttempt {
    pub fn place(&self) -> PastPlace {
        PastPlace { delivery: self.delivery, number: self.number }
    }
}

#[derive(Clone, Debug)]
pub struct PastEvent {
    pub id: EventId,
    pub source: Option<Name>,
    pub event_type: String,
    pub content_type: String,
    pub key: Option<String>,
    pub accepted_at: Timestamp,
    /// As the attempt's revision had it. `None`: not asked for, erased, or it does not authenticate.
    pub body: Option<Bytes>,
}

/// The sealed part of an attempt.
#[derive(Clone, Debug)]
pub struct PastDetail {
    pub request: Option<RequestRecord>,
    pub response: Option<ResponseRecord>,
    pub detail: Option<String>,
}
