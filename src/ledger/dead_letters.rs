//! The dead letters of a tenant as one set: which of them, how many, out of the DLQ again in bulk, and away for good.
//!
//! What a bulk redrive takes is fixed when it begins: what is dead then and in its filter. It goes from the newest to the
//! oldest, and how far it has come is one id. So a million of them cost a row. A replay of events is carried on likewise,
//! from the oldest to the newest.

use super::{EndpointKey, LedgerError, Page, PageRequest, Replay, RequestId, TenantKey};
use crate::clock::Timestamp;
use crate::delivery::{DeliveryId, DeliveryState, EndpointStatus, EventId, Name, OperationId, PluginVersionId};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

use super::records::{DeadBy, DeadGroup, DeliveryRow, span_is_one, status_is_one, texts_fit};

/// Bulk redrives of one tenant that run at once; the others wait for their turn.
pub const OPERATIONS_RUNNING_MAX: u32 = 2;
/// Bulk redrives of one tenant that have not ended.
pub const OPERATIONS_OPEN_MAX: u32 = 50;
/// Bulk redrives of one tenant that are kept after their end: the newest.
pub const OPERATIONS_KEPT_MAX: u32 = 200;
/// Dead letters that one step looks for, or purges, at most.
pub const BULK_STEP_MAX: u32 = 500;

/// The verbs on many dead letters.
#[async_trait]
pub trait DeadLetters: Send + Sync + 'static {
    /// Newest first by their ids, as deliveries are listed.
    async fn dead_letters(
        &self,
        tenant: TenantKey,
        filter: &DeadFilter,
        page: &PageRequest,
    ) -> Result<Page<DeliveryRow>, LedgerError>;
    async fn count_dead(&self, tenant: TenantKey, filter: &DeadFilter) -> Result<u64, LedgerError>;
    /// By host × status × reason, the largest first, at most 1,000.
    async fn dead_groups(
        &self,
        tenant: TenantKey,
        filter: &DeadFilter,
        by: DeadBy,
    ) -> Result<Vec<DeadGroup>, LedgerError>;
    /// Where the dead letters would go, the most of them first, at most 1,000.
    async fn dead_destinations(
        &self,
        tenant: TenantKey,
        filter: &DeadFilter,
    ) -> Result<Vec<DeadDestination>, LedgerError>;
    /// Closes one bounded batch for good: `cancelled`, with the reason `purged`. What was kept of them to send, and of what
    /// was answered, goes; an event's payload goes with the last of its deliveries. Those alone that were dead at the first batch.
    /// `from`: where the batch before left off.
    async fn purge_dead(
        &self,
        tenant: TenantKey,
        filter: &DeadFilter,
        from: Option<PurgePlace>,
        now: Timestamp,
    ) -> Result<Purged, LedgerError>;

    /// Notes an operation on what is there now. It waits for its turn.
    async fn begin_operation(&self, new: NewOperation, now: Timestamp) -> Result<BegunOperation, LedgerError>;
    /// What was begun under the same request id; `None`: nothing.
    async fn begun_before(&self, new: &NewOperation) -> Result<Option<BegunOperation>, LedgerError>;
    async fn operation(&self, tenant: TenantKey, id: OperationId) -> Result<Option<OperationRow>, LedgerError>;
    /// Newest first.
    async fn operations(&self, tenant: TenantKey, page: &PageRequest) -> Result<Page<OperationRow>, LedgerError>;
    /// Those that have not ended, of every tenant, the oldest first. What became of their letters is not looked up.
    async fn open_operations(&self) -> Result<Vec<OperationRow>, LedgerError>;
    async fn change_operation(
        &self,
        tenant: TenantKey,
        id: OperationId,
        change: OperationChange,
        now: Timestamp,
    ) -> Result<OperationChanged, LedgerError>;
    /// It runs from now on, if it waits and fewer than [`OPERATIONS_RUNNING_MAX`] of its tenant's run.
    async fn start_operation(&self, tenant: TenantKey, id: OperationId, now: Timestamp) -> Result<bool, LedgerError>;
    /// Redrives or replays the next of them, at most `limit`, in one transaction with the note of how far it has come; at the end of
    /// them the operation is done. Nothing happens to one that does not run, nor when it goes on from elsewhere by now.
    async fn advance_operation(
        &self,
        tenant: TenantKey,
        id: OperationId,
        limit: u32,
        now: Timestamp,
    ) -> Result<Advanced, LedgerError>;
    /// What became so far of the letters of one wave.
    async fn wave_results(&self, tenant: TenantKey, id: OperationId, wave: u8) -> Result<Vec<WaveResult>, LedgerError>;
    /// A canary's next wave, of so many letters. Nothing happens when it is in another wave than `after`, or does not run.
    async fn widen_operation(
        &self,
        tenant: TenantKey,
        id: OperationId,
        after: u8,
        size: u64,
    ) -> Result<(), LedgerError>;
    /// A canary that runs has ended: the old failure is back.
    async fn stop_by_canary(
        &self,
        tenant: TenantKey,
        id: OperationId,
        why: String,
        now: Timestamp,
    ) -> Result<(), LedgerError>;
}

/// Which dead letters. A field that is absent is no condition; without any it is all of them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeadFilter {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Name>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Name>,
    #[serde(skip_serializing_if = "Option::is_none", rename = "type")]
    pub event_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<EventId>,
    /// Why it died.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The last status that was answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The version that judged the attempt it died of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin_version: Option<PluginVersionId>,
    /// Died then or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Died before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// These alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<DeliveryId>>,
    /// As for deliveries: a delivery, event or attempt id, a logical key, a provider's reference or id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub q: Option<String>,
}

impl DeadFilter {
    pub const IDS_MAX: usize = 1_000;
    pub const TEXT_BYTES_MAX: usize = 1_024;

    /// The field that breaks a rule, and the rule.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let texts = [
            ("type", &self.event_type),
            ("key", &self.key),
            ("reason", &self.reason),
            ("host", &self.host),
            ("q", &self.q),
        ];
        texts_fit(&texts)?;
        status_is_one(self.status)?;
        if self.ids.as_ref().is_some_and(|ids| !(1..=Self::IDS_MAX).contains(&ids.len())) {
            let most = Self::IDS_MAX;
            return Err(("ids", format!("are to be 1 to {most} ids: more of them is what the other fields are for")));
        }
        span_is_one(self.since, self.until)
    }
}

/// An endpoint with dead letters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeadDestination {
    pub key: EndpointKey,
    pub endpoint: Name,
    pub host: String,
    pub status: EndpointStatus,
    pub count: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Purged {
    pub purged: u64,
    /// Payloads that went with them.
    pub payloads_erased: u64,
    /// Where to go on; `None`: there are no more.
    pub next: Option<PurgePlace>,
}

/// How far a purge has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PurgePlace {
    pub died_by: Timestamp,
    pub below: DeliveryId,
}

/// What an operation does, and to which.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// Dead letters go out of the DLQ again.
    Redrive(DeadFilter),
    /// Events go to an endpoint once more.
    Replay(Replay),
}

#[derive(Clone, Debug)]
pub struct NewOperation {
    pub tenant: TenantKey,
    pub work: Work,
    /// At most so many.
    pub max: Option<u64>,
    /// Per second.
    pub rate: u32,
    pub canary: bool,
    pub note: Option<String>,
    pub by: String,
    pub request: Option<RequestId>,
}

#[derive(Clone, PartialEq, Debug)]
pub enum BegunOperation {
    Done(Box<OperationRow>),
    /// The request id came before: this is what was begun then.
    Before(Box<OperationRow>),
    /// The request id came before with another wish.
    RequestReused,
    /// [`OPERATIONS_OPEN_MAX`] of them have not ended.
    TooMany,
}

/// Where an operation stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OperationState {
    /// Waits for its turn.
    Queued,
    Running,
    Paused,
    Done,
    /// Somebody stopped it.
    Stopped,
    StoppedByCanary,
}

impl OperationState {
    pub const ALL: [OperationState; 6] = [
        OperationState::Queued,
        OperationState::Running,
        OperationState::Paused,
        OperationState::Done,
        OperationState::Stopped,
        OperationState::StoppedByCanary,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            OperationState::Queued => "queued",
            OperationState::Running => "running",
            OperationState::Paused => "paused",
            OperationState::Done => "done",
            OperationState::Stopped => "stopped",
            OperationState::StoppedByCanary => "stopped_by_canary",
        }
    }

    pub const fn has_ended(self) -> bool {
        matches!(self, OperationState::Done | OperationState::Stopped | OperationState::StoppedByCanary)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OperationChange {
    Stop,
    Pause,
    Resume,
}

#[derive(Clone, PartialEq, Debug)]
pub enum OperationChanged {
    /// As it stands now; also when it stood so before.
    Done(Box<OperationRow>),
    NotFound,
    Ended(OperationState),
}

/// One bulk redrive or replay.
#[derive(Clone, PartialEq, Debug)]
pub struct OperationRow {
    pub id: OperationId,
    pub tenant: TenantKey,
    pub state: OperationState,
    pub work: Work,
    /// Of a redrive: what was dead by then is meant. Whatever dies later has a later time, for as long as this has not ended.
    pub died_by: Option<Timestamp>,
    /// Dead letters of the filter, or events of it, when it began; `None`: to count them took too long.
    pub total: Option<u64>,
    pub max: Option<u64>,
    pub rate: u32,
    /// A canary's wave, and how many letters of it are still to be redriven.
    pub wave: Option<Wave>,
    pub done: u64,
    pub skipped: Skipped,
    pub results: Results,
    /// Why those that were redriven had died.
    pub old_reasons: BTreeMap<String, u64>,
    pub note: Option<String>,
    pub by: String,
    pub began_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub why: Option<String>,
}

impl OperationRow {
    /// How many are still to be looked at; `None`: not known.
    pub fn left(&self) -> Option<u64> {
        let of_max = self.max.map_or(u64::MAX, |max| max.saturating_sub(self.done));
        Some(self.total?.saturating_sub(self.done + self.skipped.sum()).min(of_max))
    }

    /// How long it takes at its rate; `None`: not known, or it waits for something else.
    pub fn time_left(&self) -> Option<Duration> {
        if self.wave.is_some() || !matches!(self.state, OperationState::Queued | OperationState::Running) {
            return None;
        }
        Some(Duration::from_secs(self.left()?.div_ceil(u64::from(self.rate.max(1)))))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wave {
    /// Counted from 1.
    pub number: u8,
    pub size: u64,
    pub left: u64,
}

/// Dead letters that an operation did not redrive, or events that it did not replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Skipped {
    /// Their `expires_at` had passed.
    pub expired: u64,
    /// Retention had taken the payload.
    pub payload_erased: u64,
    /// They were not there any more: somebody else had redriven, resolved or purged them, or retention had removed them; of
    /// events also, they had been superseded, were no longer missed, or had [`AGAIN_MAX`](super::AGAIN_MAX) of them.
    pub gone: u64,
    /// Events of which a delivery to the endpoint had not ended.
    pub under_way: u64,
}

impl Skipped {
    pub fn sum(&self) -> u64 {
        self.expired + self.payload_erased + self.gone + self.under_way
    }
}

/// What became of those that were redriven or replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Results {
    pub delivered: u64,
    pub dead_again: u64,
    /// Under way, or waiting for a try.
    pub waiting: u64,
    /// Skipped by a plugin, expired, cancelled or resolved.
    pub otherwise: u64,
}

/// Letters of one wave that fared alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaveResult {
    pub state: DeliveryState,
    /// An attempt of theirs has ended since.
    pub tried: bool,
    /// Why they are dead or tried again.
    pub reason: Option<String>,
    pub count: u64,
}

/// What one step came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Advanced {
    /// Redriven or replayed.
    pub done: u64,
    pub skipped: u64,
    /// It does not run any more: it is done, or somebody stopped it.
    pub over: bool,
}
