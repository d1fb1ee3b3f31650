//! When an alert fires and when it clears: facts become [`Reading`]s, and [`judge`] holds them against what is firing.
//!
//! An alert fires once and stands until its value is well on the other side of the threshold, so that a value that
//! wobbles there is one episode. Nothing else repeats it.

use super::{AlertId, DeliveryId, EndpointStatus, Failing, Name, Ratio};
use crate::clock::Timestamp;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// What an alert is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AlertKind {
    DlqDepth,
    DlqOldestAge,
    /// Payloads of dead letters will be erased by retention.
    DlqErasure,
    DeadlineRisk,
    EndpointPaused,
    EndpointDisabled,
    EndpointFlapping,
    /// Nothing but failures, for so long that the endpoint will be disabled.
    EndpointFailing,
    /// The share of dead letters among the deliveries that ended.
    TerminalRate,
    PluginDisabled,
    /// Dead letters of the endpoint that alerts are sent to.
    AlertsUndelivered,
    LedgerSize,
    DiskFree,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    Warning,
    Critical,
}

impl AlertKind {
    pub const ALL: [AlertKind; 13] = [
        AlertKind::DlqDepth,
        AlertKind::DlqOldestAge,
        AlertKind::DlqErasure,
        AlertKind::DeadlineRisk,
        AlertKind::EndpointPaused,
        AlertKind::EndpointDisabled,
        AlertKind::EndpointFlapping,
        AlertKind::EndpointFailing,
        AlertKind::TerminalRate,
        AlertKind::PluginDisabled,
        AlertKind::AlertsUndelivered,
        AlertKind::LedgerSize,
        AlertKind::DiskFree,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            AlertKind::DlqDepth => "dlq_depth",
            AlertKind::DlqOldestAge => "dlq_oldest_age",
            AlertKind::DlqErasure => "dlq_erasure",
            AlertKind::DeadlineRisk => "deadline_risk",
            AlertKind::EndpointPaused => "endpoint_paused",
            AlertKind::EndpointDisabled => "endpoint_disabled",
            AlertKind::EndpointFlapping => "endpoint_flapping",
            AlertKind::EndpointFailing => "endpoint_failing",
            AlertKind::TerminalRate => "terminal_rate",
            AlertKind::PluginDisabled => "plugin_disabled",
            AlertKind::AlertsUndelivered => "alerts_undelivered",
            AlertKind::LedgerSize => "ledger_size",
            AlertKind::DiskFree => "disk_free",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        AlertKind::ALL.into_iter().find(|kind| kind.as_str() == text)
    }

    /// Of the gateway as a whole, not of a tenant.
    pub const fn is_of_the_gateway(self) -> bool {
        match self {
            AlertKind::LedgerSize | AlertKind::DiskFree => true,
            AlertKind::DlqDepth
            | AlertKind::DlqOldestAge
            | AlertKind::DlqErasure
            | AlertKind::DeadlineRisk
            | AlertKind::EndpointPaused
            | AlertKind::EndpointDisabled
            | AlertKind::EndpointFlapping
            | AlertKind::EndpointFailing
            | AlertKind::TerminalRate
            | AlertKind::PluginDisabled
            | AlertKind::AlertsUndelivered => false,
        }
    }

    pub const fn severity(self) -> Severity {
        match self {
            AlertKind::DeadlineRisk
            | AlertKind::EndpointDisabled
            | AlertKind::PluginDisabled
            | AlertKind::AlertsUndelivered
            | AlertKind::DiskFree => Severity::Critical,
            AlertKind::DlqDepth
            | AlertKind::DlqOldestAge
            | AlertKind::DlqErasure
            | AlertKind::EndpointPaused
            | AlertKind::EndpointFlapping
            | AlertKind::EndpointFailing
            | AlertKind::TerminalRate
            | AlertKind::LedgerSize => Severity::Warning,
        }
    }

    /// What value and threshold count.
    pub const fn unit(self) -> &'static str {
        match self {
            AlertKind::DlqDepth | AlertKind::DlqErasure | AlertKind::DeadlineRisk | AlertKind::AlertsUndelivered => {
                "deliveries"
            }
            AlertKind::DlqOldestAge
            | AlertKind::EndpointPaused
            | AlertKind::EndpointDisabled
            | AlertKind::EndpointFailing
            | AlertKind::PluginDisabled => "ms",
            AlertKind::EndpointFlapping => "times",
            AlertKind::TerminalRate => "basis_points",
            AlertKind::LedgerSize | AlertKind::DiskFree => "bytes",
        }
    }

    /// Whether the value counts something, and is worth following while the alert stands.
    fn counts(self) -> bool {
        matches!(self.unit(), "deliveries" | "times")
    }

    /// Whether the value holds an alert up, given whether it stands already.
    fn holds(self, value: u64, threshold: u64, stands: bool) -> bool {
        match self {
            AlertKind::DiskFree => value < if stands { threshold.saturating_add(threshold / 4) } else { threshold },
            AlertKind::DlqDepth
            | AlertKind::DlqOldestAge
            | AlertKind::DlqErasure
            | AlertKind::DeadlineRisk
            | AlertKind::EndpointPaused
            | AlertKind::EndpointDisabled
            | AlertKind::EndpointFlapping
            | AlertKind::EndpointFailing
            | AlertKind::TerminalRate
            | AlertKind::PluginDisabled
            | AlertKind::AlertsUndelivered
            | AlertKind::LedgerSize => value >= threshold || stands && value > clears_at(threshold),
        }
    }
}

/// Four fifths of what would not fire.
const fn clears_at(threshold: u64) -> u64 {
    let below = threshold.saturating_sub(1);
    below - below.div_ceil(5)
}

/// What of a tenant, or of the gateway, an alert speaks of.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Subject {
    Dlq,
    Endpoint(Name),
    Plugin(Name),
    Ledger,
    Disk,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Dlq => f.write_str("dlq"),
            Subject::Endpoint(name) => write!(f, "endpoint/{name}"),
            Subject::Plugin(name) => write!(f, "plugin/{name}"),
            Subject::Ledger => f.write_str("ledger"),
            Subject::Disk => f.write_str("disk"),
        }
    }
}

impl Subject {
    pub fn parse(text: &str) -> Option<Self> {
        match text.split_once('/') {
            None => match text {
                "dlq" => Some(Subject::Dlq),
                "ledger" => Some(Subject::Ledger),
                "disk" => Some(Subject::Disk),
                _ => None,
            },
            Some(("endpoint", name)) => name.parse().ok().map(Subject::Endpoint),
            Some(("plugin", name)) => name.parse().ok().map(Subject::Plugin),
            Some(_) => None,
        }
    }
}

impl Serialize for Subject {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// No threshold on the DLQ's depth is higher: further it is not counted.
pub const DLQ_DEPTH_MAX: u32 = 100_000;

/// From when on a tenant's alerts fire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Thresholds {
    /// Dead letters.
    pub dlq_depth: u32,
    pub dlq_oldest_age: Duration,
    /// Before retention erases the payload of a dead letter; at most half of the time that it is kept.
    pub erasure_margin: Duration,
    /// Before a deadline; at most half of the time there is from the acceptance to it.
    pub deadline_margin: Duration,
    pub paused_for: Duration,
    pub disabled_for: Duration,
    /// Pauses and disablings within the window.
    pub flapping_times: u32,
    pub flapping_window: Duration,
    /// Dead letters among the deliveries of an endpoint that ended within the window; never nothing.
    pub terminal_rate: Ratio,
    pub terminal_window: Duration,
    /// With fewer that ended, no share fires.
    pub terminal_min_count: u32,
    pub plugin_disabled_for: Duration,
    /// These never fire.
    pub off: BTreeSet<AlertKind>,
}

impl Default for Thresholds {
    fn default() -> Self {
        const MINUTE: Duration = Duration::from_secs(60);
        Thresholds {
            dlq_depth: 100,
            dlq_oldest_age: 24 * 60 * MINUTE,
            erasure_margin: 2 * 24 * 60 * MINUTE,
            deadline_margin: 30 * MINUTE,
            paused_for: 30 * MINUTE,
            disabled_for: Duration::ZERO,
            flapping_times: 6,
            flapping_window: 60 * MINUTE,
            terminal_rate: Ratio::of_ten_thousand(2_000).unwrap_or(Ratio::WHOLE),
            terminal_window: 60 * MINUTE,
            terminal_min_count: 50,
            plugin_disabled_for: Duration::ZERO,
            off: BTreeSet::new(),
        }
    }
}

/// From when on the gateway's own alerts fire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GatewayThresholds {
    pub ledger_bytes: u64,
    /// Below this.
    pub disk_free_bytes: u64,
    /// These never fire.
    pub off: BTreeSet<AlertKind>,
}

impl Default for GatewayThresholds {
    fn default() -> Self {
        GatewayThresholds { ledger_bytes: 20 << 30, disk_free_bytes: 2 << 30, off: BTreeSet::new() }
    }
}

/// Whether a delivery that has not ended is at risk of missing its deadline: within the margin of it, or in the second
/// half of the time it was given, if that is shorter.
pub fn is_at_risk(start: Timestamp, deadline: Timestamp, margin: Duration, now: Timestamp) -> bool {
    now >= deadline.minus(margin.min(deadline.since(start) / 2))
}

/// When those died whose payload retention takes soon: after the first, and by the second. The margin is cut to half
/// of the time that payloads are kept.
pub fn going(payloads: Duration, margin: Duration, now: Timestamp) -> (Timestamp, Timestamp) {
    let gone = now.minus(payloads);
    (gone, gone.plus(margin.min(payloads / 2)))
}

/// Dead letters, as far as they were counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeadFacts {
    pub count: u64,
    /// The oldest, and when it died.
    pub oldest: Option<(DeliveryId, Timestamp)>,
    /// Those whose payload goes soon, and the first of them with the time at which it died.
    pub going: u64,
    pub first_going: Option<(DeliveryId, Timestamp)>,
}

/// Deliveries of one endpoint that may miss their deadlines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AtRisk {
    pub endpoint: Name,
    pub count: u64,
    /// The nearest deadline, and whose it is.
    pub deadline: Timestamp,
    pub sample: DeliveryId,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndpointFacts {
    pub name: Name,
    pub status: EndpointStatus,
    /// Since when it is paused or disabled.
    pub since: Option<Timestamp>,
    /// How often it was paused or disabled within the window.
    pub closings: u64,
    pub ended: EndedFacts,
}

/// Deliveries that came to an end within the window, and how many of these as dead letters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EndedFacts {
    pub all: u64,
    pub dead: u64,
}

impl EndedFacts {
    /// What is held against `rate`. As long as too few have ended it fires nothing, but what fires goes on while so many
    /// are dead as would do if enough had.
    fn share(self, rate: Ratio, min_count: u32) -> u64 {
        let least = u64::from(min_count.max(1));
        let share = Ratio::of(self.dead, self.all.max(least)).map_or(0, |ratio| u64::from(ratio.ten_thousandths()));
        if self.all >= least { share } else { share.min(u64::from(rate.ten_thousandths()).saturating_sub(1)) }
    }
}

/// An endpoint that did nothing but fail, and will be disabled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FailingFacts {
    pub name: Name,
    pub since: Timestamp,
    /// Half of the time was over then.
    pub alerted_at: Timestamp,
    pub disables_at: Timestamp,
}

impl FailingFacts {
    /// `None`: it does not fail for so long yet, or is not disabled for failing at all.
    pub fn of(name: Name, failing: Failing, disable_after: Option<Duration>, now: Timestamp) -> Option<Self> {
        let (alerted_at, after) = failing.alerted_at.zip(disable_after)?;
        Some(FailingFacts { name, since: failing.since, alerted_at, disables_at: failing.disables_at(after, now) })
    }
}

/// A plugin whose version was taken out of use for its faults.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PluginFacts {
    pub name: Name,
    pub disabled_at: Timestamp,
}

/// What is known of a tenant.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TenantFacts {
    pub dead: DeadFacts,
    /// Of the endpoint that alerts are sent to.
    pub undelivered: DeadFacts,
    pub at_risk: Vec<AtRisk>,
    pub endpoints: Vec<EndpointFacts>,
    pub failing: Vec<FailingFacts>,
    pub plugins: Vec<PluginFacts>,
}

/// What is known of the gateway.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GatewayFacts {
    pub ledger_bytes: u64,
    /// `None`: it is not known.
    pub disk_free_bytes: Option<u64>,
}

/// One value beside its threshold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reading {
    pub kind: AlertKind,
    pub subject: Subject,
    pub value: u64,
    pub threshold: u64,
    /// When what is wrong began, where that is known.
    pub since: Option<Timestamp>,
    /// When it is too late, where there is such a time.
    pub due: Option<Timestamp>,
    /// One of the deliveries.
    pub sample: Option<DeliveryId>,
}

impl Reading {
    fn new(kind: AlertKind, subject: Subject, value: u64, threshold: u64) -> Self {
        Reading { kind, subject, value, threshold, since: None, due: None, sample: None }
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// What of a tenant is to be held against its thresholds. `payloads` is how long its payloads are kept.
pub fn readings(facts: &TenantFacts, thresholds: &Thresholds, payloads: Duration, now: Timestamp) -> Vec<Reading> {
    let t = thresholds;
    let mut all = Vec::new();
    let dead = &facts.dead;
    let (oldest, died) = dead.oldest.unzip();
    all.push(Reading {
        since: died,
        sample: oldest,
        ..Reading::new(AlertKind::DlqDepth, Subject::Dlq, dead.count, t.dlq_depth.into())
    });
    if let Some(died) = died {
        let (age, most) = (millis(now.since(died)), millis(t.dlq_oldest_age));
        let reading = Reading::new(AlertKind::DlqOldestAge, Subject::Dlq, age, most);
        all.push(Reading { since: Some(died), sample: oldest, ..reading });
    }
    if let Some((sample, died)) = dead.first_going {
        let reading = Reading::new(AlertKind::DlqErasure, Subject::Dlq, dead.going, 1);
        all.push(Reading { since: Some(died), due: Some(died.plus(payloads)), sample: Some(sample), ..reading });
    }
    if let Some((sample, died)) = facts.undelivered.oldest {
        let reading = Reading::new(AlertKind::AlertsUndelivered, Subject::Dlq, facts.undelivered.count, 1);
        all.push(Reading { since: Some(died), sample: Some(sample), ..reading });
    }
    for risk in &facts.at_risk {
        let reading = Reading::new(AlertKind::DeadlineRisk, Subject::Endpoint(risk.endpoint.clone()), risk.count, 1);
        all.push(Reading { due: Some(risk.deadline), sample: Some(risk.sample), ..reading });
    }
    for endpoint in &facts.endpoints {
        let subject = || Subject::Endpoint(endpoint.name.clone());
        let closed = match &endpoint.status {
            status if status.is_open(now) => None,
            EndpointStatus::Enabled => None,
            EndpointStatus::Paused { .. } => Some((AlertKind::EndpointPaused, t.paused_for)),
            EndpointStatus::Disabled { .. } => Some((AlertKind::EndpointDisabled, t.disabled_for)),
        };
        if let Some((kind, longest)) = closed {
            let since = endpoint.since.unwrap_or(now);
            let reading = Reading::new(kind, subject(), millis(now.since(since)), millis(longest));
            all.push(Reading { since: Some(since), ..reading });
        }
        all.push(Reading::new(AlertKind::EndpointFlapping, subject(), endpoint.closings, t.flapping_times.into()));
        let share = endpoint.ended.share(t.terminal_rate, t.terminal_min_count);
        let most = u64::from(t.terminal_rate.ten_thousandths());
        all.push(Reading::new(AlertKind::TerminalRate, subject(), share, most));
    }
    for failing in &facts.failing {
        let (so_long, told) = (now.since(failing.since), failing.alerted_at.since(failing.since));
        let subject = Subject::Endpoint(failing.name.clone());
        let reading = Reading::new(AlertKind::EndpointFailing, subject, millis(so_long.max(told)), millis(told));
        all.push(Reading { since: Some(failing.since), due: Some(failing.disables_at), ..reading });
    }
    for plugin in &facts.plugins {
        let (age, longest) = (millis(now.since(plugin.disabled_at)), millis(t.plugin_disabled_for));
        let reading = Reading::new(AlertKind::PluginDisabled, Subject::Plugin(plugin.name.clone()), age, longest);
        all.push(Reading { since: Some(plugin.disabled_at), ..reading });
    }
    all.retain(|reading| !t.off.contains(&reading.kind));
    all
}

/// What of the gateway is to be held against its thresholds.
pub fn gateway_readings(facts: &GatewayFacts, thresholds: &GatewayThresholds) -> Vec<Reading> {
    let ledger = Reading::new(AlertKind::LedgerSize, Subject::Ledger, facts.ledger_bytes, thresholds.ledger_bytes);
    let disk = facts
        .disk_free_bytes
        .map(|free| Reading::new(AlertKind::DiskFree, Subject::Disk, free, thresholds.disk_free_bytes));
    let mut all: Vec<Reading> = [ledger].into_iter().chain(disk).collect();
    all.retain(|reading| !thresholds.off.contains(&reading.kind));
    all
}

/// An alert that fires, as far as the next change depends on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Standing {
    pub id: AlertId,
    pub kind: AlertKind,
    pub subject: Subject,
    pub value: u64,
}

/// What becomes of alerts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AlertChange {
    Fires(Reading),
    /// It goes on firing, with another count.
    Moves(AlertId, Reading),
    Clears(AlertId),
}

/// Holds every reading against what stands. What stands without a reading has nothing left to speak of, and clears.
pub fn judge(readings: Vec<Reading>, standing: &[Standing]) -> Vec<AlertChange> {
    let of = |reading: &Reading| {
        standing.iter().find(|alert| alert.kind == reading.kind && alert.subject == reading.subject)
    };
    let mut held = BTreeSet::new();
    let mut changes = Vec::new();
    for reading in readings {
        let stands = of(&reading);
        if !reading.kind.holds(reading.value, reading.threshold, stands.is_some()) {
            continue;
        }
        match stands {
            None => changes.push(AlertChange::Fires(reading)),
            Some(alert) => {
                held.insert(alert.id);
                if reading.kind.counts() && reading.value != alert.value {
                    changes.push(AlertChange::Moves(alert.id, reading));
                }
            }
        }
    }
    changes
        .extend(standing.iter().filter(|alert| !held.contains(&alert.id)).map(|alert| AlertChange::Clears(alert.id)));
    changes
}

/// Whether an alert may be sent to the endpoint `to`: never when it speaks of that endpoint's own trouble, so that no
/// alert begets another.
pub fn may_be_sent(kind: AlertKind, subject: &Subject, to: &Name) -> bool {
    kind != AlertKind::AlertsUndelivered && !matches!(subject, Subject::Endpoint(name) if name == to)
}

/// An alert in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InWords {
    pub summary: String,
    /// What to do next.
    pub next_step: String,
}

/// A span for people: as fine as it matters.
fn about(ms: u64) -> String {
    let unit = match ms {
        0..10_000 => 1,
        10_000..600_000 => 1_000,
        600_000..36_000_000 => 60_000,
        36_000_000.. => 3_600_000,
    };
    crate::duration::show(Duration::from_millis(ms / unit * unit))
}

fn percent(basis_points: u64) -> String {
    u16::try_from(basis_points).ok().and_then(Ratio::of_ten_thousand).unwrap_or(Ratio::WHOLE).to_string()
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

impl Reading {
    /// `tenant` is named in the commands; `None`: the gateway.
    pub fn in_words(&self, tenant: Option<&Name>) -> InWords {
        let of = tenant.map(|tenant| format!(" --tenant {tenant}")).unwrap_or_default();
        let name = match &self.subject {
            Subject::Endpoint(name) | Subject::Plugin(name) => name.as_str(),
            Subject::Dlq | Subject::Ledger | Subject::Disk => "",
        };
        let (n, most) = (self.value, self.threshold);
        let at = |time: Option<Timestamp>| time.map(Timestamp::to_rfc3339).unwrap_or_default();
        let sample = self.sample.map(|id| id.to_string()).unwrap_or_default();
        let s = if n == 1 { "" } else { "s" };
        let look = format!("`hookgate delivery get {sample}{of}` shows why one of them died");
        let (summary, next_step) = match self.kind {
            AlertKind::DlqDepth => (
                format!("{n} dead letter{s}; the threshold is {most}"),
                format!(
                    "see what they have in common with `hookgate dlq groups{of}`, mend that, then redrive or resolve \
                     them"
                ),
            ),
            AlertKind::DlqOldestAge => (
                format!("the oldest dead letter is {} old; the threshold is {}", about(n), about(most)),
                format!("{look}; redrive it with `hookgate delivery redrive {sample}{of}`, or resolve it"),
            ),
            AlertKind::DlqErasure => (
                format!("{n} dead letter{s} will lose the payload to retention, the first at {}", at(self.due)),
                format!("redrive or resolve them before that (`hookgate dlq list{of}`), or raise `retention.payloads`"),
            ),
            AlertKind::DeadlineRisk => (
                format!(
                    "{n} deliver{} to {name} may miss the deadline, the first at {}",
                    if n == 1 { "y" } else { "ies" },
                    at(self.due)
                ),
                format!(
                    "`hookgate delivery get {sample}{of}` shows what holds it up; redrive it if it is dead, look at \
                     `hookgate endpoint get {name}{of}` if it waits"
                ),
            ),
            AlertKind::EndpointPaused => (
                format!("{name} has been paused for {}; the threshold is {}", about(n), about(most)),
                format!(
                    "`hookgate endpoint get {name}{of}` says why; resume it with `hookgate endpoint resume {name}{of}`"
                ),
            ),
            AlertKind::EndpointDisabled => (
                format!("{name} is disabled: nothing is sent to it"),
                format!(
                    "`hookgate endpoint get {name}{of}` says why; tell its owner, then `hookgate endpoint enable \
                     {name}{of}`"
                ),
            ),
            AlertKind::EndpointFlapping => (
                format!("{name} was paused or disabled {n} times of late; the threshold is {most}"),
                format!(
                    "`hookgate delivery list --endpoint {name}{of}` shows what it answers; a `rate` or a lower \
                     `concurrency` spares a receiver that throttles"
                ),
            ),
            AlertKind::EndpointFailing => (
                format!("{name} has done nothing but fail for {}; it is disabled at {}", about(n), at(self.due)),
                format!(
                    "`hookgate delivery list --endpoint {name}{of}` shows how it fails; tell its owner: one delivery that \
                     it takes ends this"
                ),
            ),
            AlertKind::TerminalRate => (
                format!("{} of what ended of late for {name} is dead; the threshold is {}", percent(n), percent(most)),
                format!(
                    "`hookgate dlq groups --endpoint {name}{of}` shows what they have in common; mend that, then redrive \
                     or resolve them"
                ),
            ),
            AlertKind::PluginDisabled => (
                format!("a version of the plugin {name} was disabled for its faults"),
                format!(
                    "`hookgate plugin get {name}{of}` shows the faults; activate a version that works with `hookgate \
                     plugin activate {name} ID{of}`"
                ),
            ),
            AlertKind::AlertsUndelivered => (
                format!(
                    "{n} deliver{} to the alert endpoint died: nobody was told by it",
                    if n == 1 { "y" } else { "ies" }
                ),
                format!("{look}; mend the alert endpoint, then redrive or resolve them"),
            ),
            AlertKind::LedgerSize => (
                format!("the ledger has {}; the threshold is {}", mebibytes(n), mebibytes(most)),
                "shorten `retention.payloads` and `retention.rows`, or raise `alerts.ledger_bytes` if there is room"
                    .to_owned(),
            ),
            AlertKind::DiskFree => (
                format!("the ledger's disk has {} left; the threshold is {}", mebibytes(n), mebibytes(most)),
                "free some space: when the disk is full, nothing more is accepted".to_owned(),
            ),
        };
        InWords { summary, next_step }
    }
}

#[cfg(test)]
mod tests;
