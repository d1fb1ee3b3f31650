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
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Timestamp = Timestamp::from_millis(1_760_000_000_000);
    const SECOND: Duration = Duration::from_secs(1);
    const DAY: Duration = Duration::from_secs(24 * 3_600);

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn ago(span: Duration) -> Timestamp {
        NOW.minus(span)
    }

    fn id(n: u128) -> DeliveryId {
        DeliveryId::from_u128(n)
    }

    fn dead(count: u64, oldest: Duration) -> DeadFacts {
        DeadFacts { count, oldest: Some((id(1), ago(oldest))), ..DeadFacts::default() }
    }

    fn endpoint(status: EndpointStatus, since: Duration, closings: u64) -> Vec<EndpointFacts> {
        vec![EndpointFacts { name: name("e"), status, since: Some(ago(since)), closings, ended: EndedFacts::default() }]
    }

    fn paused(until: Option<Timestamp>) -> EndpointStatus {
        EndpointStatus::Paused { until, why: "operator".into() }
    }

    fn disabled() -> EndpointStatus {
        EndpointStatus::Disabled { why: "http_410".into() }
    }

    fn fired(facts: &TenantFacts, thresholds: &Thresholds) -> Vec<&'static str> {
        let changes = judge(readings(facts, thresholds, 14 * DAY, NOW), &[]);
        let kind = |change: AlertChange| match change {
            AlertChange::Fires(reading) => reading.kind.as_str(),
            AlertChange::Moves(..) | AlertChange::Clears(_) => panic!("nothing stands"),
        };
        changes.into_iter().map(kind).collect()
    }

    fn of_ended(dead: u64, all: u64) -> TenantFacts {
        let mut endpoints = endpoint(EndpointStatus::Enabled, DAY, 0);
        endpoints[0].ended = EndedFacts { all, dead };
        TenantFacts { endpoints, ..TenantFacts::default() }
    }

    fn of_failing(alerted_at: Option<Timestamp>, disable_after: Option<Duration>) -> TenantFacts {
        let failing = Failing { since: ago(3 * DAY), failures: std::num::NonZeroU32::MIN, alerted_at };
        let failing = FailingFacts::of(name("e"), failing, disable_after, NOW).into_iter().collect();
        TenantFacts { failing, ..TenantFacts::default() }
    }

    #[test]
    fn every_threshold_acts() {
        let none = TenantFacts::default();
        let open = || EndpointStatus::Enabled;
        let plugin = |age| vec![PluginFacts { name: name("p"), disabled_at: ago(age) }];
        let d = Thresholds::default();
        let risk = AtRisk { endpoint: name("e"), count: 1, deadline: NOW.plus(SECOND), sample: id(2) };
        let going = DeadFacts { going: 1, first_going: Some((id(3), ago(13 * DAY))), ..dead(1, SECOND) };
        let of = |facts: TenantFacts| facts;
        // One arrival in the DLQ alone is no alarm.
        assert_eq!(fired(&of(TenantFacts { dead: dead(1, SECOND), ..none.clone() }), &d), [""; 0]);
        for (facts, thresholds, kinds) in [
            (TenantFacts { dead: dead(99, SECOND), ..none.clone() }, d.clone(), vec![]),
            (TenantFacts { dead: dead(100, SECOND), ..none.clone() }, d.clone(), vec!["dlq_depth"]),
            (
                TenantFacts { dead: dead(3, SECOND), ..none.clone() },
                Thresholds { dlq_depth: 3, ..d.clone() },
                vec!["dlq_depth"],
            ),
            (TenantFacts { dead: dead(1, DAY - SECOND), ..none.clone() }, d.clone(), vec![]),
            (TenantFacts { dead: dead(1, DAY), ..none.clone() }, d.clone(), vec!["dlq_oldest_age"]),
            (
                TenantFacts { dead: dead(1, 2 * SECOND), ..none.clone() },
                Thresholds { dlq_oldest_age: SECOND, ..d.clone() },
                vec!["dlq_oldest_age"],
            ),
            (TenantFacts { dead: going, ..none.clone() }, d.clone(), vec!["dlq_erasure"]),
            (TenantFacts { undelivered: dead(1, SECOND), ..none.clone() }, d.clone(), vec!["alerts_undelivered"]),
            (TenantFacts { at_risk: vec![risk.clone()], ..none.clone() }, d.clone(), vec!["deadline_risk"]),
            (
                TenantFacts { at_risk: vec![risk], ..none.clone() },
                Thresholds { off: [AlertKind::DeadlineRisk].into(), ..d.clone() },
                vec![],
            ),
            (TenantFacts { endpoints: endpoint(paused(None), 29 * 60 * SECOND, 1), ..none.clone() }, d.clone(), vec![]),
            (
                TenantFacts { endpoints: endpoint(paused(None), 30 * 60 * SECOND, 1), ..none.clone() },
                d.clone(),
                vec!["endpoint_paused"],
            ),
            (
                TenantFacts { endpoints: endpoint(paused(None), SECOND, 1), ..none.clone() },
                Thresholds { paused_for: SECOND, ..d.clone() },
                vec!["endpoint_paused"],
            ),
            // A pause that has run out is over.
            (TenantFacts { endpoints: endpoint(paused(Some(NOW)), DAY, 1), ..none.clone() }, d.clone(), vec![]),
            (
                TenantFacts { endpoints: endpoint(disabled(), Duration::ZERO, 1), ..none.clone() },
                d.clone(),
                vec!["endpoint_disabled"],
            ),
            (
                TenantFacts { endpoints: endpoint(disabled(), SECOND, 1), ..none.clone() },
                Thresholds { disabled_for: 2 * SECOND, ..d.clone() },
                vec![],
            ),
            (TenantFacts { endpoints: endpoint(open(), DAY, 5), ..none.clone() }, d.clone(), vec![]),
            (TenantFacts { endpoints: endpoint(open(), DAY, 6), ..none.clone() }, d.clone(), vec!["endpoint_flapping"]),
            (
                TenantFacts { endpoints: endpoint(open(), DAY, 2), ..none.clone() },
                Thresholds { flapping_times: 2, ..d.clone() },
                vec!["endpoint_flapping"],
            ),
            (of_ended(10, 50), d.clone(), vec!["terminal_rate"]),
            (of_ended(9, 50), d.clone(), vec![]),
            (of_ended(200, 1_001), d.clone(), vec![]),
            (of_ended(49, 49), d.clone(), vec![]),
            (of_ended(0, 0), d.clone(), vec![]),
            (
                of_ended(1, 3),
                Thresholds { terminal_rate: "33.33%".parse().unwrap(), terminal_min_count: 3, ..d.clone() },
                vec!["terminal_rate"],
            ),
            (of_ended(49, 49), Thresholds { terminal_min_count: 49, ..d.clone() }, vec!["terminal_rate"]),
            (of_failing(Some(ago(DAY)), Some(4 * DAY)), d.clone(), vec!["endpoint_failing"]),
            (of_failing(None, Some(4 * DAY)), d.clone(), vec![]),
            // It is not disabled for failing any more.
            (of_failing(Some(ago(DAY)), None), d.clone(), vec![]),
            (
                of_failing(Some(ago(DAY)), Some(4 * DAY)),
                Thresholds { off: [AlertKind::EndpointFailing].into(), ..d.clone() },
                vec![],
            ),
            (TenantFacts { plugins: plugin(Duration::ZERO), ..none.clone() }, d.clone(), vec!["plugin_disabled"]),
            (
                TenantFacts { plugins: plugin(SECOND), ..none.clone() },
                Thresholds { plugin_disabled_for: 2 * SECOND, ..d.clone() },
                vec![],
            ),
        ] {
            assert_eq!(fired(&facts, &thresholds), kinds, "{facts:?}\n{thresholds:?}");
        }
    }

    #[test]
    fn the_gateways_own() {
        let fired = |facts, thresholds: &GatewayThresholds| judge(gateway_readings(&facts, thresholds), &[]).len();
        let most = GatewayThresholds { ledger_bytes: 10, disk_free_bytes: 100, off: BTreeSet::new() };
        for (ledger_bytes, disk_free_bytes, count) in
            [(9, Some(100), 0), (10, Some(100), 1), (9, Some(99), 1), (10, Some(0), 2), (9, None, 0)]
        {
            assert_eq!(fired(GatewayFacts { ledger_bytes, disk_free_bytes }, &most), count, "{ledger_bytes}");
        }
        let off = GatewayThresholds { off: [AlertKind::LedgerSize].into(), ..most };
        assert_eq!(fired(GatewayFacts { ledger_bytes: 10, disk_free_bytes: Some(0) }, &off), 1);
    }

    #[test]
    fn a_value_that_wobbles_is_one_episode() {
        for (kind, threshold, values) in [
            (AlertKind::DlqDepth, 100, [(99, false), (100, true), (99, true), (80, true), (79, false), (99, false)]),
            (AlertKind::DlqDepth, 1, [(0, false), (1, true), (2, true), (1, true), (0, false), (0, false)]),
            (AlertKind::DlqDepth, 2, [(1, false), (2, true), (1, true), (2, true), (0, false), (1, false)]),
            (AlertKind::EndpointFlapping, 6, [(5, false), (6, true), (5, true), (4, false), (5, false), (6, true)]),
            (
                AlertKind::TerminalRate,
                2_000,
                [(1_999, false), (2_000, true), (1_600, true), (1_599, false), (1_999, false), (2_000, true)],
            ),
            // Nothing is waited for: what is there fires, and stands at any age.
            (AlertKind::EndpointDisabled, 0, [(0, true), (0, true), (5, true), (0, true), (1, true), (0, true)]),
            (
                AlertKind::DiskFree,
                100,
                [(100, false), (99, true), (100, true), (124, true), (125, false), (100, false)],
            ),
        ] {
            let mut stands = false;
            for (value, expected) in values {
                stands = kind.holds(value, threshold, stands);
                assert_eq!(stands, expected, "{kind:?} at {value} of {threshold}");
            }
        }
    }

    /// Less traffic is no recovery: what fires goes on with as many dead as would have fired, and ends without any.
    #[test]
    fn a_share_of_too_few_fires_nothing_and_ends_nothing() {
        let d = Thresholds::default();
        let mut stands: Vec<Standing> = Vec::new();
        for (dead, all, expected) in [
            (49, 49, false),
            (12, 60, true),
            (12, 12, true),
            (9, 49, true),
            (8, 20, true),
            (7, 20, false),
            (20, 20, false),
        ] {
            for change in judge(readings(&of_ended(dead, all), &d, DAY, NOW), &stands) {
                match change {
                    AlertChange::Fires(r) => {
                        let id = AlertId::from_u128(1);
                        stands.push(Standing { id, kind: r.kind, subject: r.subject, value: r.value });
                    }
                    AlertChange::Moves(..) => panic!("a share is not followed"),
                    AlertChange::Clears(_) => stands.clear(),
                }
            }
            assert_eq!(!stands.is_empty(), expected, "{dead} of {all}");
        }
    }

    #[test]
    fn a_long_failure_is_told_with_when_it_ends() {
        let found = readings(&of_failing(Some(ago(DAY)), Some(4 * DAY)), &Thresholds::default(), DAY, NOW);
        let reading = found.iter().find(|reading| reading.kind == AlertKind::EndpointFailing).unwrap();
        assert_eq!((reading.since, reading.due), (Some(ago(3 * DAY)), Some(NOW.plus(DAY))));
        assert_eq!((reading.value, reading.threshold), (millis(3 * DAY), millis(2 * DAY)));
        let words = reading.in_words(Some(&name("acme"))).summary;
        assert!(words.starts_with("e has done nothing but fail for 3d; it is disabled at 20"), "{words}");
    }

    #[test]
    fn the_margin_is_at_most_half_of_the_time_there_was() {
        let deadline = NOW.plus(100 * SECOND);
        for (margin, at, risk) in [(30, 69, false), (30, 70, true), (500, 49, false), (500, 50, true), (500, 200, true)]
        {
            let now = NOW.plus(at * SECOND);
            assert_eq!(is_at_risk(NOW, deadline, margin * SECOND, now), risk, "{margin} {at}");
        }
        assert_eq!(going(14 * DAY, 2 * DAY, NOW), (ago(14 * DAY), ago(12 * DAY)));
        assert_eq!(going(DAY, 2 * DAY, NOW), (ago(DAY), ago(DAY / 2)));
    }

    #[test]
    fn an_endpoints_own_trouble_is_not_sent_through_it() {
        let (ops, billing) = (name("ops"), name("billing"));
        assert!(may_be_sent(AlertKind::EndpointPaused, &Subject::Endpoint(billing), &ops));
        assert!(may_be_sent(AlertKind::DlqDepth, &Subject::Dlq, &ops));
        for kind in [AlertKind::EndpointPaused, AlertKind::EndpointDisabled, AlertKind::EndpointFlapping] {
            assert!(!may_be_sent(kind, &Subject::Endpoint(ops.clone()), &ops));
        }
        assert!(!may_be_sent(AlertKind::AlertsUndelivered, &Subject::Dlq, &ops));
    }

    #[test]
    fn words_are_read_back_and_every_alert_says_what_to_do() {
        let subjects =
            [Subject::Dlq, Subject::Ledger, Subject::Disk, Subject::Endpoint(name("e")), Subject::Plugin(name("p"))];
        for subject in &subjects {
            assert_eq!(Subject::parse(&subject.to_string()).as_ref(), Some(subject));
        }
        for bad in ["", "x", "endpoint/", "endpoint/A", "host/e"] {
            assert_eq!(Subject::parse(bad), None, "{bad}");
        }
        for kind in AlertKind::ALL {
            assert_eq!(AlertKind::parse(kind.as_str()), Some(kind));
            let subject = match kind {
                AlertKind::LedgerSize => Subject::Ledger,
                AlertKind::DiskFree => Subject::Disk,
                AlertKind::PluginDisabled => Subject::Plugin(name("rules")),
                _ => Subject::Endpoint(name("billing")),
            };
            let reading =
                Reading { due: Some(NOW), sample: Some(id(7)), ..Reading::new(kind, subject, 61_000, 60_000) };
            let tenant = name("acme");
            let InWords { summary, next_step } = reading.in_words(Some(&tenant).filter(|_| !kind.is_of_the_gateway()));
            assert!(!summary.is_empty() && next_step.len() > 20, "{kind:?}");
            assert!(kind.is_of_the_gateway() || next_step.contains("--tenant acme"), "{next_step}");
        }
        assert_eq!((about(999), about(61_500), about(3_661_000)), ("999ms".into(), "61s".into(), "61m".into()));
    }

    proptest! {
        /// Over any run of values: a fire is followed by a clear before the next, the last step's own state follows from
        /// the rule alone, and looking twice changes nothing.
        #[test]
        fn each_episode_fires_once(
            values in prop::collection::vec((0u64..12, 0u64..12), 1..60),
            threshold in 1u64..10,
        ) {
            let kinds = [(AlertKind::DlqDepth, Subject::Dlq), (AlertKind::DiskFree, Subject::Disk)];
            let mut standing: Vec<Standing> = Vec::new();
            let mut holds = [false; 2];
            let mut next = 0u128;
            for (a, b) in values {
                let now: Vec<Reading> = kinds
                    .iter()
                    .zip([a, b])
                    .map(|((kind, subject), value)| Reading::new(*kind, subject.clone(), value, threshold))
                    .collect();
                for change in judge(now.clone(), &standing) {
                    match change {
                        AlertChange::Fires(r) => {
                            prop_assert!(!standing.iter().any(|s| s.kind == r.kind && s.subject == r.subject));
                            next += 1;
                            let id = AlertId::from_u128(next);
                            standing.push(Standing { id, kind: r.kind, subject: r.subject, value: r.value });
                        }
                        AlertChange::Moves(id, r) => {
                            let alert = standing.iter_mut().find(|s| s.id == id);
                            prop_assert!(alert.as_ref().is_some_and(|s| s.value != r.value));
                            alert.unwrap().value = r.value;
                        }
                        AlertChange::Clears(id) => {
                            prop_assert!(standing.iter().any(|s| s.id == id));
                            standing.retain(|s| s.id != id);
                        }
                    }
                }
                for (at, ((kind, _), value)) in kinds.iter().zip([a, b]).enumerate() {
                    holds[at] = kind.holds(value, threshold, holds[at]);
                    prop_assert_eq!(standing.iter().any(|s| s.kind == *kind), holds[at]);
                }
                prop_assert_eq!(judge(now, &standing), vec![]);
            }
            let ids: Vec<AlertId> = standing.iter().map(|s| s.id).collect();
            let gone: Vec<AlertChange> = ids.into_iter().map(AlertChange::Clears).collect();
            prop_assert_eq!(judge(Vec::new(), &standing), gone, "nothing to speak of any more");
        }
    }
}
