//! Alerts: the facts that they are judged by, and which of them fire. What is kept survives a restart, so that an
//! episode that was told once is not told again.

use super::records::{Page, PageRequest};
use super::{EndpointKey, LedgerError, TenantKey};
use crate::clock::Timestamp;
use crate::delivery::{
    AlertId, AlertKind, AtRisk, DeadFacts, DeliveryId, EndpointFacts, EventId, Failing, Name, PluginFacts, Reading,
    Severity, Standing, Subject,
};
use async_trait::async_trait;
use serde::Serialize;
use std::time::Duration;

/// Alerts that have cleared are kept so many of each tenant, and of the gateway: the newest.
pub const ALERTS_KEPT_MAX: u32 = 500;
/// Events with a deadline that one page looks at.
pub const DEADLINES_PAGE: usize = 1_000;
/// Minutes of endpoints, the newest first, that one look at what ended reads of a tenant.
pub const ENDED_ROWS_MAX: usize = 20_000;
/// Changes of an endpoint's status that are remembered: the newest.
pub const STATUS_CHANGES_MAX: u32 = 100;

/// The verbs on alerts.
#[async_trait]
pub trait Alerts: Send + Sync + 'static {
    /// What is known of a tenant now; every part is read by an index, and ends at a limit.
    async fn alert_facts(&self, question: AlertQuestion) -> Result<KnownFacts, LedgerError>;
    /// One page of the events whose deadline lies in the window, the nearest first, and which of their deliveries may
    /// miss it.
    async fn deadlines(&self, question: DeadlineQuestion) -> Result<DeadlinePage, LedgerError>;
    /// Free bytes on the ledger's disk; `None`: the system does not say.
    fn disk_free_bytes(&self) -> Option<u64>;
    /// All that fire, and those that are still to be told of.
    async fn open_alerts(&self) -> Result<Vec<AlertRow>, LedgerError>;
    /// Makes changes durable, all in one commit. What fires already does not fire again. Gives the new ones.
    async fn note_alerts(&self, notes: AlertNotes, now: Timestamp) -> Result<Vec<AlertRow>, LedgerError>;
    /// The event by which an alert was told; `None`: there is nobody any more to tell.
    async fn note_told(&self, alert: AlertId, by: Option<EventId>) -> Result<(), LedgerError>;
    /// Of a tenant, or all; newest first.
    async fn alerts(
        &self,
        tenant: Option<TenantKey>,
        which: WhichAlerts,
        page: &PageRequest,
    ) -> Result<Page<AlertRow>, LedgerError>;
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AlertQuestion {
    pub tenant: TenantKey,
    /// The endpoint that alerts are sent to: its dead letters are counted by themselves.
    pub told_by: Option<EndpointKey>,
    /// The payloads of those who died after the first and by the second go soon.
    pub going: (Timestamp, Timestamp),
    pub closings_since: Timestamp,
    pub ended_since: Timestamp,
}

/// The facts that one read gives.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KnownFacts {
    pub dead: DeadFacts,
    pub undelivered: DeadFacts,
    /// Every endpoint that was ever declared.
    pub endpoints: Vec<EndpointFacts>,
    /// Those that do nothing but fail, and are not disabled.
    pub failing: Vec<(Name, Failing)>,
    pub plugins: Vec<PluginFacts>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeadlineQuestion {
    pub tenant: TenantKey,
    pub margin: Duration,
    pub now: Timestamp,
    /// Where the page before ended.
    pub after: Option<DeadlinePlace>,
}

/// A place in the order of deadlines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeadlinePlace {
    pub deadline: Timestamp,
    pub event: EventId,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeadlinePage {
    pub at_risk: Vec<AtRisk>,
    /// `None`: that was the last.
    pub next: Option<DeadlinePlace>,
}

/// What becomes of the alerts of one tenant, or of the gateway (`None`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AlertNotes {
    pub tenant: Option<TenantKey>,
    /// With whether it is to be told of.
    pub fires: Vec<(Reading, ToTell)>,
    pub moves: Vec<(AlertId, Reading)>,
    pub clears: Vec<AlertId>,
}

impl AlertNotes {
    pub fn is_empty(&self) -> bool {
        self.fires.is_empty() && self.moves.is_empty() && self.clears.is_empty()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ToTell {
    Yes,
    No,
}

/// Who was told of an alert.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AlertTold {
    Nobody,
    /// It is to be sent.
    NotYet,
    By(EventId),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhichAlerts {
    All,
    Firing,
}

/// One episode of an alert.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AlertRow {
    pub id: AlertId,
    /// `None`: the gateway's own.
    pub tenant: Option<(TenantKey, Name)>,
    /// As it was when it fired, its count as it was last.
    pub reading: Reading,
    pub fired_at: Timestamp,
    pub cleared_at: Option<Timestamp>,
    pub told: AlertTold,
}

/// An alert as it is shown and sent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct AlertShown {
    pub id: AlertId,
    pub tenant: Option<Name>,
    pub kind: &'static str,
    pub severity: Severity,
    pub subject: Subject,
    pub value: u64,
    pub threshold: u64,
    pub unit: &'static str,
    pub since: Option<Timestamp>,
    pub due: Option<Timestamp>,
    pub sample: Option<DeliveryId>,
    pub summary: String,
    pub next_step: String,
    pub fired_at: Timestamp,
}

impl AlertRow {
    pub fn kind(&self) -> AlertKind {
        self.reading.kind
    }

    pub fn standing(&self) -> Standing {
        let Reading { kind, subject, value, .. } = self.reading.clone();
        Standing { id: self.id, kind, subject, value }
    }

    pub fn shown(&self) -> AlertShown {
        let tenant = self.tenant.as_ref().map(|(_, name)| name.clone());
        let words = self.reading.in_words(tenant.as_ref());
        let Reading { kind, subject, value, threshold, since, due, sample } = self.reading.clone();
        AlertShown {
            id: self.id,
            tenant,
            kind: kind.as_str(),
            severity: kind.severity(),
            subject,
            value,
            threshold,
            unit: kind.unit(),
            since,
            due,
            sample,
            summary: words.summary,
            next_step: words.next_step,
            fired_at: self.fired_at,
        }
    }
}
