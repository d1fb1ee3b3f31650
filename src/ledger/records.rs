//! What can be read: events, deliveries, attempts, counts. Always within one tenant.

use super::{DeadFilter, EndpointKey, LedgerError, Origin, TenantKey};
use crate::clock::Timestamp;
use crate::delivery::{
    AttemptId, BreakerState, DeliveryId, DeliveryState, EndpointStatus, EventId, Failing, Health, Name, PluginVersionId,
};
use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::queue::LogRecord;

/// The read side. Lists are newest first and paged by cursor.
#[async_trait]
pub trait Records: Send + Sync + 'static {
    async fn events(
        &self,
        tenant: TenantKey,
        filter: &EventFilter,
        page: &PageRequest,
    ) -> Result<Page<EventRow>, LedgerError>;
    async fn event(&self, tenant: TenantKey, id: EventId) -> Result<Option<EventRow>, LedgerError>;
    /// `None`: no such event. `Some(None)` inside: erased.
    async fn event_body(&self, tenant: TenantKey, id: EventId) -> Result<Option<Option<BodyRow>>, LedgerError>;
    async fn deliveries(
        &self,
        tenant: TenantKey,
        filter: &DeliveryFilter,
        page: &PageRequest,
    ) -> Result<Page<DeliveryRow>, LedgerError>;
    async fn delivery(&self, tenant: TenantKey, id: DeliveryId) -> Result<Option<DeliveryDetail>, LedgerError>;
    /// What a delivery sends, or sent as an earlier revision. `None`: there is none such. `Some(None)` inside: erased by
    /// retention.
    async fn delivery_body(
        &self,
        tenant: TenantKey,
        id: DeliveryId,
        revision: Option<u32>,
    ) -> Result<Option<Option<BodyRow>>, LedgerError>;
    /// One per endpoint of the tenant that was ever declared, by name.
    async fn endpoints(&self, tenant: TenantKey, now: Timestamp) -> Result<Vec<EndpointState>, LedgerError>;
    /// Kept in memory and true to the last commit: never a scan.
    fn gauges(&self) -> Gauges;
    /// Whether commits succeed: asks the writer, not the reader.
    async fn probe(&self) -> Result<(), LedgerError>;
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EventFilter {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Name>,
    #[serde(skip_serializing_if = "Option::is_none", rename = "type")]
    pub event_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl EventFilter {
    /// The field that breaks a rule, and the rule.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        texts_fit(&[("type", &self.event_type), ("key", &self.key)])?;
        span_is_one(self.since, self.until)
    }
}

/// Of the texts of a filter: the field that breaks a rule, and the rule.
pub(super) fn texts_fit(texts: &[(&'static str, &Option<String>)]) -> Result<(), (&'static str, String)> {
    let most = DeadFilter::TEXT_BYTES_MAX;
    let fits = |text: &Option<String>| text.as_ref().is_none_or(|text| (1..=most).contains(&text.len()));
    match texts.iter().find(|(_, text)| !fits(text)) {
        Some((field, _)) => Err((field, format!("is to have 1 to {most} bytes"))),
        None => Ok(()),
    }
}

pub(super) fn status_is_one(status: Option<u16>) -> Result<(), (&'static str, String)> {
    match status {
        Some(status) if !(100..=999).contains(&status) => {
            Err(("status", "is to be a status code, such as 503".to_owned()))
        }
        Some(_) | None => Ok(()),
    }
}

pub(super) fn span_is_one(since: Option<Timestamp>, until: Option<Timestamp>) -> Result<(), (&'static str, String)> {
    match (since, until) {
        (Some(since), Some(until)) if since >= until => Err(("until", "is to be after `since`".to_owned())),
        (_, _) => Ok(()),
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeliveryFilter {
    /// No field of a written filter: the verb says which state it is about.
    #[serde(skip)]
    pub state: Option<DeliveryState>,
    pub endpoint: Option<Name>,
    pub source: Option<Name>,
    #[serde(rename = "type")]
    pub event_type: Option<String>,
    pub key: Option<String>,
    pub event: Option<EventId>,
    pub reason: Option<String>,
    pub status: Option<u16>,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    /// A delivery, event or attempt id, a logical key, a provider's reference or id: exact matches.
    pub q: Option<String>,
}

impl DeliveryFilter {
    /// The field that breaks a rule, and the rule.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        texts_fit(&[("type", &self.event_type), ("key", &self.key), ("reason", &self.reason), ("q", &self.q)])?;
        status_is_one(self.status)?;
        span_is_one(self.since, self.until)
    }
}

#[derive(Clone, Debug)]
pub struct PageRequest {
    /// 1 to 200.
    pub limit: u32,
    pub cursor: Option<Cursor>,
}

/// Opaque to whoever holds it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(transparent)]
pub struct Cursor(pub String);

#[derive(Clone, Debug, Serialize)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub next: Option<Cursor>,
}

#[derive(Clone, Debug, Serialize)]
pub struct EventRow {
    pub id: EventId,
    #[serde(rename = "type")]
    pub event_type: String,
    pub key: Option<String>,
    pub source: Option<Name>,
    pub provider_id: Option<String>,
    pub content_type: String,
    pub body_bytes: u64,
    pub body_erased: bool,
    pub accepted_at: Timestamp,
    pub deliver_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    pub deadline: Option<Timestamp>,
    pub ordering_key: Option<String>,
    pub coalesce_key: Option<String>,
    /// The event that took its place in their coalescing window.
    pub superseded_by: Option<EventId>,
    /// The ids of its deliveries; filled for a single event only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deliveries: Option<Vec<DeliveryId>>,
}

#[derive(Clone, Debug)]
pub struct BodyRow {
    pub content_type: String,
    pub body: Bytes,
}

#[derive(Clone, Debug, Serialize)]
pub struct DeliveryRow {
    pub id: DeliveryId,
    pub event: EventId,
    pub event_type: String,
    pub key: Option<String>,
    pub source: Option<Name>,
    pub endpoint: Name,
    pub host: String,
    pub state: DeliveryState,
    pub reason: Option<String>,
    pub attempt_count: u32,
    pub generation: u32,
    pub revision: u32,
    pub due_at: Option<Timestamp>,
    pub created_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    pub deadline: Option<Timestamp>,
    pub last_status: Option<u16>,
    pub reference: Option<String>,
    pub sequence: u64,
    pub idempotency_key: String,
    /// The note of the last redrive or resolution.
    pub note: Option<String>,
    /// Where its endpoint orders by key: the key in whose order it is sent.
    pub ordering_key: Option<String>,
    /// The first delivery of its key, for whose end it waits.
    pub held_by: Option<DeliveryId>,
    /// It was redriven after its key had gone on without it, or is a resend.
    pub out_of_order: bool,
    pub origin: Origin,
    /// The delivery of its event before it, of which it is a resend or replay; of what never went there, none.
    pub resend_of: Option<DeliveryId>,
}

#[derive(Clone, Debug, Serialize)]
pub struct DeliveryDetail {
    #[serde(flatten)]
    pub delivery: DeliveryRow,
    /// Those that were made as resends or replays of it, in their order.
    pub resends: Vec<DeliveryId>,
    /// The payloads that it was corrected to, in their order; the first of all is the event's.
    pub revisions: Vec<RevisionRow>,
    /// Oldest first. The one in flight, if any, is last and has no outcome.
    pub attempts: Vec<AttemptRow>,
}

#[derive(Clone, Debug, Serialize)]
pub struct RevisionRow {
    pub revision: u32,
    /// Unknown of those that an older version made.
    pub made_at: Option<Timestamp>,
    pub note: Option<String>,
    pub body_erased: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct AttemptRow {
    pub id: AttemptId,
    pub number: u32,
    pub generation: u32,
    pub revision: u32,
    pub started_at: Timestamp,
    pub duration_ms: Option<u64>,
    pub outcome: Option<String>,
    pub status: Option<u16>,
    pub verdict: Option<String>,
    pub reason: Option<String>,
    pub decided_by: Option<String>,
    pub disposition: Option<String>,
    pub next_at: Option<Timestamp>,
    /// The wait that was wished for, when it was cut: milliseconds.
    pub clamped_from_ms: Option<u64>,
    pub ambiguous: bool,
    pub plugin_version: Option<PluginVersionId>,
    /// Milliseconds, to the microsecond.
    pub plugin_ms: Option<f64>,
    pub plugin_log: Vec<LogRecord>,
    pub plugin_log_dropped: u32,
    pub detail: Option<String>,
    pub response_headers: Option<Vec<(String, String)>>,
    /// Text where it is UTF-8, else base64 with `response_body_base64` set instead.
    pub response_body: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_body_base64: Option<String>,
    pub response_body_truncated: bool,
    /// The request that the plugin's transform made; absent when the event went as it came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_method: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_path: Option<String>,
}

/// What dead letters have in common to be of one group: host, status and reason, and whatever is said here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DeadBy {
    #[default]
    Destination,
    Endpoint,
    /// The endpoint, and the version of its plugin that had a part in the last attempt: slower than the others.
    PluginVersion,
}

#[derive(Clone, Debug, Serialize)]
pub struct DeadGroup {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Name>,
    pub host: String,
    pub status: Option<u16>,
    pub reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin_version: Option<PluginVersionId>,
    pub count: u64,
    pub oldest_at: Timestamp,
    pub newest_at: Timestamp,
    /// One of them, the newest.
    pub sample: DeliveryId,
}

#[derive(Clone, Debug, Serialize)]
pub struct EndpointState {
    #[serde(skip)]
    pub key: EndpointKey,
    pub name: Name,
    pub host: String,
    #[serde(flatten)]
    pub status: EndpointStatus,
    pub pending: u64,
    /// Pending and due.
    pub available: u64,
    pub in_flight: u64,
    pub dead: u64,
    /// The oldest pending delivery's creation.
    pub oldest_pending_at: Option<Timestamp>,
    #[serde(flatten)]
    pub health: EndpointHealth,
}

/// How an endpoint fares, for people.
#[derive(Clone, Debug, Serialize)]
pub struct EndpointHealth {
    /// `closed`, `open` or `half_open`.
    pub breaker_state: &'static str,
    /// When it lets a probe through.
    pub breaker_until: Option<Timestamp>,
    pub failures_in_a_row: u32,
    pub failing_since: Option<Timestamp>,
    #[serde(skip)]
    pub failing: Option<Failing>,
}

impl EndpointHealth {
    pub fn of(health: &Health, now: Timestamp) -> Self {
        let breaker = health.breaker(now);
        EndpointHealth {
            breaker_state: breaker.as_str(),
            breaker_until: match breaker {
                BreakerState::Open { until } => Some(until),
                BreakerState::Closed | BreakerState::HalfOpen => None,
            },
            failures_in_a_row: health.failing.map_or(0, |failing| failing.failures.get()),
            failing_since: health.failing.map(|failing| failing.since),
            failing: health.failing,
        }
    }
}

/// Counts over the whole ledger.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Gauges {
    pub pending: u64,
    pub in_flight: u64,
    pub dead: u64,
    pub oldest_dead_at: Option<Timestamp>,
    pub endpoints_paused: u64,
    /// Those of which it was said that they will be disabled if they go on failing.
    pub endpoints_failing: u64,
    pub ledger_bytes: u64,
    pub wal_bytes: u64,
}
