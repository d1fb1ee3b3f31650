//! The way of an event through the ledger: accept, claim, settle, rescue.

use super::{EndpointKey, LedgerError, OrderingKey, Slot, SourceKey, TenantKey};
use crate::clock::Timestamp;
use crate::delivery::{
    AttemptId, DecidedBy, Decision, DeliveryId, EndpointStatus, EventId, History, KeptBody, Name, PluginVersionId,
    Pulse, Reason,
};
use crate::secret::Secret;
use crate::verify::{Event, Verified};
use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The verbs of the queue.
#[async_trait]
pub trait Queue: Send + Sync + 'static {
    /// Makes the declared resources known and gives every name its key. What is no longer declared keeps its rows and
    /// its key; its pending work stays pending.
    async fn declare(&self, declaration: Declaration, now: Timestamp) -> Result<Directory, LedgerError>;

    /// One event with all its deliveries and its dedup key, durable when this returns. A delivery that came with a
    /// slot is in flight from this commit on, and is handed to the dispatcher by the ledger itself, so that a caller
    /// who goes away loses nothing; one without is pending. A slot for an endpoint that is closed at the commit is
    /// given back and the delivery is pending. A coalesced event takes the place of those before it in its window, wherever
    /// both go and nothing was tried.
    async fn accept(&self, accept: Accept) -> Result<Accepted, LedgerError>;

    /// Leases at most one due delivery for each slot, the oldest due first per endpoint, and records the start of its
    /// attempt. Slots without a due delivery, or of a closed endpoint, are given back.
    async fn claim(&self, slots: Vec<Slot>, now: Timestamp) -> Result<Claims, LedgerError>;

    /// The attempt, the next state, the due time or dead letter, and what happens to the endpoint: one transaction.
    /// Consumes the lease; a lease that another has taken over is `LeaseLost`, and nothing is written.
    async fn settle(&self, settlement: Arc<Settlement>) -> Result<Settled, LedgerError>;

    /// Takes over leases that ended by `expired_by` (`Timestamp::MAX`: every one of the gateway's own, as at the start
    /// of the only process), at most `limit`, under a new token; those of consumers in no case before they end. What
    /// becomes of them is for the caller to decide and settle.
    async fn rescue(&self, expired_by: Timestamp, limit: usize, now: Timestamp) -> Result<Vec<Lease>, LedgerError>;

    /// Pending deliveries whose event expired after `after` and by `now`, leased so that their end can be settled: also
    /// those behind a closed endpoint, which no claim reaches. At most `limit`; fewer means that there are no more.
    async fn overdue(&self, after: Timestamp, limit: usize, now: Timestamp) -> Result<Vec<Lease>, LedgerError>;

    /// Pending deliveries of these endpoints whose generation began by the time beside each, leased so that their end can
    /// be settled: for closed endpoints, and what waits for its key's turn, which no claim reaches. At most `limit`; fewer means that there are no more.
    async fn outlived(
        &self,
        began_by: Vec<(EndpointKey, Timestamp)>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<Lease>, LedgerError>;

    /// Puts right what a wall clock that was set has moved away: every lease of the gateway's own ends at
    /// `leases_until`, and no pending delivery of these endpoints stays due later than the wait beside it from `now` on,
    /// or, where it was given a longer one, than that; nor does a breaker stay open for longer than it opened for. In
    /// transactions of a thousand rows at most. Returns how many are due earlier now.
    async fn reanchor(
        &self,
        leases_until: Timestamp,
        longest_waits: &[(EndpointKey, Duration)],
        now: Timestamp,
    ) -> Result<u64, LedgerError>;

    /// For every endpoint with pending work: when the first of it is due. Paused and disabled endpoints included.
    async fn backlog(&self) -> Result<BTreeMap<EndpointKey, Timestamp>, LedgerError>;

    /// Writes out what is queued and closes. Verbs after this are `Unavailable`.
    async fn close(&self) -> Result<(), LedgerError>;
}

/// The resources of a configuration.
#[derive(Clone, Debug, Default)]
pub struct Declaration {
    pub tenants: Vec<DeclaredTenant>,
}

#[derive(Clone, Debug)]
pub struct DeclaredTenant {
    pub name: Name,
    pub sources: Vec<Name>,
    pub endpoints: Vec<DeclaredEndpoint>,
}

#[derive(Clone, Debug)]
pub struct DeclaredEndpoint {
    pub name: Name,
    /// The host of its URL, or what stands in its place, for the delivery log.
    pub host: String,
    /// Kept as the endpoint's generated signing secret if it has none yet; `None` when the file names its secrets.
    pub generated_secret: Option<Secret>,
    /// Whether what was delivered there is erased at once.
    pub scrub: bool,
}

/// Names and their keys.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    pub tenants: BTreeMap<Name, TenantEntry>,
}

#[derive(Clone, Debug)]
pub struct TenantEntry {
    pub key: TenantKey,
    pub sources: BTreeMap<Name, SourceKey>,
    pub endpoints: BTreeMap<Name, EndpointEntry>,
}

#[derive(Clone, Debug)]
pub struct EndpointEntry {
    pub key: EndpointKey,
    pub status: EndpointStatus,
    /// The generated secret that is kept, if one was ever needed.
    pub generated_secret: Option<Secret>,
}

/// One verified event and where it goes.
#[derive(Debug)]
pub struct Accept {
    pub tenant: TenantKey,
    /// `None`: published by API.
    pub source: Option<SourceKey>,
    pub event: Verified<Event>,
    /// At most one per endpoint.
    pub deliveries: Vec<NewDelivery>,
    pub now: Timestamp,
}

#[derive(Debug)]
pub struct NewDelivery {
    pub endpoint: EndpointKey,
    /// With a slot, the delivery starts at once.
    pub slot: Option<Slot>,
    /// With a key, it waits for those of its endpoint and key that were accepted before it, and takes no slot.
    pub order: Option<OrderingKey>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accepted {
    New(EventId),
    /// The same dedup key with the same body, or the same signed content, inside the window: the first one's id.
    Duplicate(EventId),
    /// The same dedup key with another body: the first is kept.
    KeyReused(EventId),
    /// It is coalesced until this time, and would be too late by then: nothing is kept.
    TooLateAt(Timestamp),
}

/// The right to settle one attempt, with what the ledger knew when it was given. The token fences whoever comes late:
/// while it holds, none of this changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    pub tenant: TenantKey,
    pub delivery: DeliveryId,
    pub endpoint: EndpointKey,
    pub token: u64,
    pub until: Timestamp,
    pub generation: u32,
    pub revision: u32,
    /// The attempt's, gapless over all attempts of the delivery, from 1.
    pub number: u32,
    pub started_at: Timestamp,
    /// From when on this generation could be sent: its beginning, or the event's `deliver_at` if that was later.
    pub eligible_at: Timestamp,
    pub history: History,
}

impl Lease {
    pub fn attempt(&self) -> AttemptId {
        AttemptId::of(self.delivery, self.number)
    }
}

/// What a claim gave.
#[derive(Debug, Default)]
pub struct Claims {
    pub started: Vec<Claimed>,
    /// For each endpoint that was asked for and still has pending work: when the first of it is due.
    pub next_due: BTreeMap<EndpointKey, Timestamp>,
}

/// An attempt whose start is durable, with all that is needed to make it.
#[derive(Debug)]
pub struct Claimed {
    pub lease: Lease,
    /// Rises per endpoint in the order of acceptance.
    pub sequence: u64,
    /// Frozen when the delivery was made.
    pub idempotency_key: Arc<str>,
    pub event: Arc<EventContent>,
    /// Given back when this is dropped.
    pub slot: Slot,
}

/// The event as stored.
#[derive(Clone, Debug)]
pub struct EventContent {
    pub id: EventId,
    pub source: Option<SourceKey>,
    pub event_type: String,
    pub content_type: String,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub body: Bytes,
    pub key: Option<String>,
    pub accepted_at: Timestamp,
}

/// One attempt's end.
#[derive(Clone, Debug)]
pub struct Settlement {
    pub lease: Lease,
    pub record: AttemptRecord,
    pub decision: Decision,
    /// What it says of the endpoint, if anything.
    pub pulse: Option<Pulse>,
    pub now: Timestamp,
}

/// What is kept of an attempt. Words are those of the `as_str` of outcome and verdict.
#[derive(Clone, Debug)]
pub struct AttemptRecord {
    pub outcome: &'static str,
    pub status: Option<u16>,
    pub verdict: Option<&'static str>,
    pub reason: Reason,
    pub decided_by: DecidedBy,
    pub duration: Duration,
    pub ambiguous: bool,
    pub plugin_version: Option<PluginVersionId>,
    pub plugin_took: Option<Duration>,
    /// What the plugin wrote, and how many lines were dropped.
    pub plugin_log: Vec<LogRecord>,
    pub plugin_log_dropped: u32,
    /// The request as the plugin's transform made it; `None`: the event's own.
    pub request: Option<RequestRecord>,
    pub response: Option<ResponseRecord>,
    /// For people: a fault's or failure's detail.
    pub detail: Option<String>,
}

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct LogRecord {
    pub level: String,
    pub message: String,
}

#[derive(Clone, Debug)]
pub struct RequestRecord {
    pub method: String,
    pub path_and_query: Option<String>,
    pub headers: Vec<(String, String)>,
    pub body: KeptBody,
}

#[derive(Clone, Debug)]
pub struct ResponseRecord {
    pub headers: Vec<(String, String)>,
    /// At most 16 KiB.
    pub body: Bytes,
    pub body_truncated: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settled {
    Stored,
    LeaseLost,
}
