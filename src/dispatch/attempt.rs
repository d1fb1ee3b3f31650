//! One attempt, from its lease to its settlement: each step takes what the one before it gave.

use super::adviser::{Adviser, Asked, PluginUse};
use super::draft::{Draft, Unmade};
use super::trial::{After, Part, told};
use super::{Advice, Crew, Live, Stop, Target, headers};
use crate::clock::Timestamp;
use crate::crash;
use crate::delivery::classify::{Observed, after_fault, builtin};
use crate::delivery::{
    DecidedBy, Decision, Disposition, Fault, FaultKind, History, Outcome, Phase, Pulse, Reason, RetryAfter, Signal,
    SkipReason, Terms, TransportKind, Verdict, decide, may_start,
};
use crate::egress::{Answer, Exchange, Failure, Outbound};
use crate::ledger::{AttemptRecord, Claimed, LedgerError, RequestRecord, ResponseRecord, Settled, Settlement};
use crate::plugin::OutcomeView;
use http::HeaderMap;
use http::header::RETRY_AFTER;
use std::sync::Arc;
use std::time::Duration;

/// Between two tries to write an outcome down. Sending has stopped by itself meanwhile: the slot is held.
const SETTLE_AGAIN_AFTER: Duration = Duration::from_millis(200);

const PLUGIN_CHANGED: Reason = Reason::word("plugin_changed");

/// What is known of an attempt while it runs.
pub(super) struct Report {
    outcome: Outcome,
    decided_by: DecidedBy,
    status: Option<u16>,
    request: Option<RequestRecord>,
    response: Option<ResponseRecord>,
    detail: Option<String>,
    plugin: PluginUse,
}

impl Report {
    pub(super) fn unsent(outcome: Outcome, plugin: PluginUse) -> Self {
        let detail = match &outcome {
            Outcome::Faulted(fault) => Some(fault.detail.clone()),
            Outcome::Answered { .. }
            | Outcome::Unreachable { .. }
            | Outcome::TimedOut { .. }
            | Outcome::Told(_)
            | Outcome::Skipped(_)
            | Outcome::Refused(_)
            | Outcome::Interrupted
            | Outcome::Released(_) => None,
        };
        let decided_by = match outcome {
            Outcome::Skipped(_) => DecidedBy::Plugin,
            Outcome::Told(_) => DecidedBy::Consumer,
            Outcome::Answered { .. }
            | Outcome::Unreachable { .. }
            | Outcome::TimedOut { .. }
            | Outcome::Faulted(_)
            | Outcome::Refused(_)
            | Outcome::Interrupted
            | Outcome::Released(_) => DecidedBy::Host,
        };
        Report { outcome, decided_by, status: None, request: None, response: None, detail, plugin }
    }
}

/// Makes the attempt and settles it. The slot goes back when this ends.
pub(super) async fn run(crew: Arc<Crew>, stop: Stop, claimed: Claimed) {
    let started = crew.clock.now();
    let Some(target) = crew.targets.endpoint(claimed.lease.endpoint) else {
        // No longer declared: kept, and looked at again when it is.
        let report = Report::unsent(Outcome::Released(Reason::word("endpoint_removed")), PluginUse::default());
        return settle(&crew, &claimed, &Terms::default(), started, report).await;
    };
    if let Some(outcome) = not_now(&crew, &stop, &claimed, &target) {
        let report = Report::unsent(outcome, PluginUse::default());
        return settle(&crew, &claimed, &target.terms, started, report).await;
    }
    match &target.advice {
        Advice::Builtin => {
            let draft = Draft::as_it_came(&claimed.event, &target);
            let report = send(&crew, &stop, &claimed, &target, draft, None).await;
            settle(&crew, &claimed, &target.terms, started, report).await;
        }
        Advice::Plugin { live, config } => {
            let asked = Asked::new(&crew, &claimed, &target, config);
            let (mut report, part) = by_plugin(&crew, &stop, &claimed, live, &asked).await;
            let (told, seen) = (told(&report.outcome, report.plugin.fault), report.plugin.seen.take());
            settle(&crew, &claimed, &target.terms, started, report).await;
            part.settled(claimed.lease.delivery, After { told, asked, seen, now: crew.clock.now() });
        }
    }
}

/// Why nothing may be sent now, if so.
fn held_back(crew: &Crew, stop: &Stop, claimed: &Claimed) -> Option<Outcome> {
    if stop.drain.is_cancelled() {
        return Some(Outcome::Released(Reason::SHUTDOWN));
    }
    let open = crew.slots.is_open(claimed.lease.endpoint, crew.clock.now());
    (!open).then_some(Outcome::Released(Reason::ENDPOINT_PAUSED))
}

/// The same, or that its time is over.
fn not_now(crew: &Crew, stop: &Stop, claimed: &Claimed, target: &Target) -> Option<Outcome> {
    held_back(crew, stop, claimed).or_else(|| {
        let over = may_start(&claimed.lease.history, &target.terms, crew.clock.now());
        over.map(|_| Outcome::Released(Reason::EXPIRED))
    })
}

/// By the version in use, or the one that is tried in its place.
async fn by_plugin(crew: &Crew, stop: &Stop, claimed: &Claimed, live: &Live, asked: &Asked) -> (Report, Part) {
    let is_unavailable =
        |report: &Report| matches!(&report.outcome, Outcome::Faulted(Fault { kind: FaultKind::Unavailable, .. }));
    let used = live.now();
    let (version, mut part) = Part::of(&used, claimed.lease.delivery);
    let mut report = advised(crew, stop, claimed, Adviser::new(asked, &version, part.witness())).await;
    if is_unavailable(&report) && matches!(part, Part::Canary(..)) {
        // Nothing was sent: whoever is in use takes it.
        part = Part::None;
        report = advised(crew, stop, claimed, Adviser::new(asked, &used.active, None)).await;
    }
    if is_unavailable(&report) && !Arc::ptr_eq(&used.active, &live.now().active) {
        // Another version has taken over meanwhile: no reason to let the endpoint rest.
        report.outcome = Outcome::Released(PLUGIN_CHANGED);
    }
    (report, part)
}

/// With a plugin: its `transform` first, when it has one.
async fn advised(crew: &Crew, stop: &Stop, claimed: &Claimed, mut adviser: Adviser<'_>) -> Report {
    let target = &adviser.asked.target;
    let draft = if adviser.rules.exports().transform {
        match adviser.transform().await.map_err(Unmade::Fault).and_then(|made| Draft::of(made, target)) {
            Ok(draft) => draft,
            Err(Unmade::Skip(reason)) => {
                return Report::unsent(Outcome::Skipped(SkipReason(reason)), adviser.used);
            }
            Err(Unmade::Fault(fault)) => return Report::unsent(Outcome::Faulted(fault), adviser.used),
        }
    } else {
        Draft::as_it_came(&claimed.event, target)
    };
    // The call took time: the endpoint may have been paused, the event may have expired.
    if let Some(outcome) = not_now(crew, stop, claimed, target) {
        return Report::unsent(outcome, adviser.used);
    }
    adviser.makes(&draft);
    send(crew, stop, claimed, target, draft, Some(adviser)).await
}

/// The one exchange of this attempt, and what it means.
async fn send(
    crew: &Crew,
    stop: &Stop,
    claimed: &Claimed,
    target: &Target,
    draft: Draft,
    adviser: Option<Adviser<'_>>,
) -> Report {
    let Draft { url, method, headers, body, record } = draft;
    let headers = headers::outbound(claimed, target, headers, &body, crew.clock.now());
    let outbound = Outbound {
        pool: claimed.lease.endpoint.0,
        url,
        method,
        headers,
        body,
        timeout: target.timeout,
        body_kept_max: crew.settings.response_read_bytes_max,
    };
    claimed.slot.sends();
    let exchange = tokio::select! {
        exchange = crew.transport.send(outbound) => exchange,
        // Whether the receiver acted will not be known: the same as if the process had ended here.
        () = stop.cut.cancelled() => {
            let used = adviser.map(|a| a.used).unwrap_or_default();
            return Report { request: record, ..Report::unsent(Outcome::Interrupted, used) };
        }
    };
    let mut report = match exchange {
        Exchange::Answered(answer) => {
            crash::point("D4");
            answered(crew, target, answer, adviser).await
        }
        Exchange::Failed(failure) => failed(target, failure, adviser).await,
        Exchange::Refused { reason, detail } => {
            let used = adviser.map(|a| a.used).unwrap_or_default();
            Report { detail: Some(detail), ..Report::unsent(Outcome::Refused(reason), used) }
        }
    };
    report.request = record;
    report
}

async fn answered(crew: &Crew, target: &Target, answer: Answer, adviser: Option<Adviser<'_>>) -> Report {
    let status = answer.status.as_u16();
    let observed = Observed::Status(status);
    let view = OutcomeView::Response {
        status,
        headers: &answer.headers,
        body: &answer.body,
        body_truncated: answer.body_truncated,
        elapsed: answer.elapsed,
    };
    let Judgement { verdict, decided_by, detail, used } = judge(target, observed, view, adviser).await;
    let retry_after = answer.headers.get(RETRY_AFTER).and_then(|v| v.to_str().ok()).and_then(RetryAfter::parse);
    let kept = answer.body.len().min(crew.settings.response_kept_bytes_max);
    let response = ResponseRecord {
        headers: kept_headers(&answer.headers),
        body_truncated: answer.body_truncated || kept < answer.body.len(),
        body: answer.body.slice(..kept),
    };
    Report {
        outcome: Outcome::Answered { status, verdict, retry_after },
        decided_by,
        status: Some(status),
        request: None,
        response: Some(response),
        detail,
        plugin: used,
    }
}

async fn failed(target: &Target, failure: Failure, adviser: Option<Adviser<'_>>) -> Report {
    let Failure { kind, phase, detail, elapsed, .. } = failure;
    let view =
        OutcomeView::Failed { kind, may_have_been_received: phase == Phase::AfterWrite, detail: &detail, elapsed };
    let judgement = judge(target, Observed::Transport(kind), view, adviser).await;
    let verdict = judgement.verdict;
    let outcome = match kind {
        TransportKind::Timeout => Outcome::TimedOut { phase, verdict },
        TransportKind::Dns
        | TransportKind::Connect
        | TransportKind::Tls
        | TransportKind::Reset
        | TransportKind::Protocol
        | TransportKind::Other => Outcome::Unreachable { kind, phase, verdict },
    };
    Report {
        outcome,
        decided_by: judgement.decided_by,
        status: None,
        request: None,
        response: None,
        detail: Some(match judgement.detail {
            Some(fault) => format!("{}; {fault}", kind.told(&detail)),
            None => kind.told(&detail),
        }),
        plugin: judgement.used,
    }
}

/// A verdict, and where it came from.
struct Judgement {
    verdict: Verdict,
    decided_by: DecidedBy,
    /// The plugin's fault, if it had one.
    detail: Option<String>,
    used: PluginUse,
}

/// Asks the plugin if it has a `classify`, else the built-in rules; a fault falls back as the endpoint says.
async fn judge(target: &Target, observed: Observed, view: OutcomeView<'_>, adviser: Option<Adviser<'_>>) -> Judgement {
    let builtin_with =
        |used| Judgement { verdict: builtin(observed), decided_by: DecidedBy::Builtin, detail: None, used };
    let Some(mut adviser) = adviser else { return builtin_with(PluginUse::default()) };
    adviser.sees(view);
    if !adviser.rules.exports().classify {
        return builtin_with(adviser.used);
    }
    match adviser.classify(view).await {
        Ok(verdict) => Judgement { verdict, decided_by: DecidedBy::Plugin, detail: None, used: adviser.used },
        Err(fault) => Judgement {
            verdict: after_fault(target.terms.on_plugin_fault, observed),
            decided_by: DecidedBy::Host,
            detail: Some(fault.told()),
            used: adviser.used,
        },
    }
}

/// Decides, and writes it down until it is written or the lease is lost.
async fn settle(crew: &Crew, claimed: &Claimed, terms: &Terms, started: Timestamp, report: Report) {
    let now = crew.clock.now();
    let decision = decision(&report.outcome, &claimed.lease.history, terms, now, crew.entropy.next_u64());
    let signal = Signal::of(&report.outcome, now);
    let pulse = signal.map(|signal| Pulse {
        signal,
        policy: terms.health,
        chance: match signal {
            Signal::Works => 0,
            Signal::Fails => crew.entropy.next_u64(),
        },
    });
    let record = record(report, &decision, now.since(started));
    let settlement = Settlement { lease: claimed.lease, record, decision, pulse, now };
    crew.tally.count(&settlement, claimed.event.accepted_at);
    write_down(crew, settlement).await;
    if let Some(signal) = signal {
        claimed.slot.tell(signal);
    }
}

/// An attempt that was handed back because its time is over ends the delivery; everything else is `decide`'s.
pub(super) fn decision(outcome: &Outcome, history: &History, terms: &Terms, now: Timestamp, chance: u64) -> Decision {
    match outcome {
        Outcome::Released(_) => match may_start(history, terms, now) {
            Some(expired) => expired.into(),
            None => decide(outcome, history, terms, now, chance),
        },
        Outcome::Answered { .. }
        | Outcome::Unreachable { .. }
        | Outcome::TimedOut { .. }
        | Outcome::Told(_)
        | Outcome::Faulted(_)
        | Outcome::Skipped(_)
        | Outcome::Refused(_)
        | Outcome::Interrupted => decide(outcome, history, terms, now, chance),
    }
}

/// Keeps at it while the ledger cannot write: an outcome that is not durable must not be forgotten.
pub(super) async fn write_down(crew: &Crew, settlement: Settlement) {
    let settlement = Arc::new(settlement);
    loop {
        match crew.ledger.settle(Arc::clone(&settlement)).await {
            Ok(Settled::Stored) => return,
            Ok(Settled::LeaseLost) => {
                tracing::warn!(delivery = %settlement.lease.delivery, "lease lost: another has settled this attempt");
                return;
            }
            Err(LedgerError::Unavailable(why)) => {
                tracing::warn!(delivery = %settlement.lease.delivery, why, "outcome not written yet");
                tokio::time::sleep(SETTLE_AGAIN_AFTER).await;
            }
            // The start is durable: the next process finds it interrupted.
            Err(error) => {
                tracing::error!(delivery = %settlement.lease.delivery, %error, "outcome not written");
                return;
            }
        }
    }
}

pub(super) fn record(report: Report, decision: &Decision, duration: Duration) -> AttemptRecord {
    let (verdict, reason) = words(&report.outcome, &decision.disposition);
    AttemptRecord {
        outcome: report.outcome.as_str(),
        status: report.status,
        verdict,
        reason,
        decided_by: report.decided_by,
        duration,
        ambiguous: report.outcome.is_ambiguous(),
        plugin_version: report.plugin.version,
        plugin_took: report.plugin.took,
        plugin_log: report.plugin.log,
        plugin_log_dropped: report.plugin.log_dropped,
        request: report.request,
        response: report.response,
        detail: report.detail,
    }
}

/// The verdict's word, and the attempt's reason: the most specific word there is.
pub(super) fn words(outcome: &Outcome, disposition: &Disposition) -> (Option<&'static str>, Reason) {
    let own = match disposition {
        Disposition::Skipped(reason)
        | Disposition::Dead(reason)
        | Disposition::Expired(reason)
        | Disposition::RetryAt { reason, .. }
        | Disposition::Released { reason, .. } => Some(reason.clone()),
        Disposition::Delivered { .. } => None,
    };
    let told = |verdict: &Verdict| match verdict {
        Verdict::Delivered { reason, .. } => reason.clone(),
        Verdict::Retryable(hint) => Some(hint.reason.clone()),
        Verdict::Terminal(reason) => Some(reason.clone()),
    };
    match outcome {
        Outcome::Answered { status, verdict, .. } => {
            (Some(verdict.as_str()), told(verdict).unwrap_or_else(|| Reason::status(*status)))
        }
        Outcome::Told(verdict) => (Some(verdict.as_str()), told(verdict).unwrap_or(Reason::ACKED)),
        Outcome::Unreachable { kind, verdict, .. } => {
            (Some(verdict.as_str()), own.unwrap_or(Reason::word(kind.as_str())))
        }
        Outcome::TimedOut { verdict, .. } => (Some(verdict.as_str()), own.unwrap_or(Reason::word("timeout"))),
        Outcome::Faulted(_) => (None, own.unwrap_or(Reason::PLUGIN_FAULT)),
        Outcome::Skipped(reason) => (None, reason.0.clone()),
        Outcome::Refused(reason) | Outcome::Released(reason) => (None, own.unwrap_or(reason.clone())),
        Outcome::Interrupted => (None, own.unwrap_or(Reason::INTERRUPTED)),
    }
}

/// Response headers that are kept: never a cookie or a credential.
fn kept_headers(headers: &HeaderMap) -> Vec<(String, String)> {
    headers
        .iter()
        .filter(|(name, _)| !crate::secret::names_a_secret(name.as_str()))
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    #[test]
    fn headers_with_credentials_are_not_kept() {
        let mut headers = HeaderMap::new();
        let gone = ["set-cookie", "x-api-key", "x-password", "x-credential", "x-auth", "x-session", "x-token"];
        for name in gone.into_iter().chain(["retry-after", "x-request-id"]) {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static("1"));
        }
        let kept: Vec<String> = kept_headers(&headers).into_iter().map(|(name, _)| name).collect();
        assert_eq!(kept, ["retry-after", "x-request-id"]);
    }
}
