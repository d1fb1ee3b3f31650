//! The calls of a recorded attempt: what the plugin was given then, as far as it was kept. The endpoint's URL, settings
//! and most attempts are those of now.

use crate::delivery::classify::Observed;
use crate::delivery::{Fault, TransportKind};
use crate::dispatch::{Advice, Target};
use crate::ledger::{PastAttempt, PastDetail};
use crate::plugin::compare::{Making, Request, Ruling, Told};
use crate::plugin::{AttemptView, EndpointView, EventView, Limits, OutcomeView};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use std::time::Duration;

pub(super) struct Recorded<'a> {
    pub(super) attempt: &'a PastAttempt,
    pub(super) target: &'a Target,
    config: &'a str,
    event_id: String,
    attributes: Vec<(&'static str, String)>,
}

/// Why there is nothing to judge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Silent {
    /// No exchange came to its end.
    NotAsked,
    /// The answer is erased.
    Erased,
    /// Less of the answer was kept than the plugin was given.
    Truncated,
    /// How it failed was not kept.
    Unknown,
}

impl Silent {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Silent::NotAsked => "not_asked",
            Silent::Erased => "erased",
            Silent::Truncated => "truncated",
            Silent::Unknown => "not_recorded",
        }
    }
}

/// What came back.
pub(super) enum Heard<'a> {
    Response { status: u16, headers: HeaderMap, body: &'a Bytes, body_truncated: bool, elapsed: Duration },
    Failed { kind: TransportKind, may_have_been_received: bool, detail: &'a str, elapsed: Duration },
}

impl Heard<'_> {
    pub(super) fn view(&self) -> OutcomeView<'_> {
        match self {
            Heard::Response { status, headers, body, body_truncated, elapsed } => OutcomeView::Response {
                status: *status,
                headers,
                body,
                body_truncated: *body_truncated,
                elapsed: *elapsed,
            },
            Heard::Failed { kind, may_have_been_received, detail, elapsed } => OutcomeView::Failed {
                kind: *kind,
                may_have_been_received: *may_have_been_received,
                detail,
                elapsed: *elapsed,
            },
        }
    }

    pub(super) fn observed(&self) -> Observed {
        match self {
            Heard::Response { status, .. } => Observed::Status(*status),
            Heard::Failed { kind, .. } => Observed::Transport(*kind),
        }
    }

    /// What an attempt is given as its reason where the verdict has none.
    pub(super) fn reason(&self) -> String {
        match self {
            Heard::Response { status, .. } => format!("http_{status}"),
            Heard::Failed { kind, .. } => kind.as_str().to_owned(),
        }
    }
}

impl<'a> Recorded<'a> {
    /// `None`: the endpoint has no plugin any more.
    pub(super) fn new(attempt: &'a PastAttempt, target: &'a Target) -> Option<Self> {
        let Advice::Plugin { config, .. } = &target.advice else { return None };
        let mut attributes = vec![("tenant", target.tenant.to_string())];
        attributes.extend(attempt.event.source.as_ref().map(|source| ("source", source.to_string())));
        attributes.extend(attempt.event.key.as_ref().map(|key| ("key", key.clone())));
        Some(Recorded { attempt, target, config, event_id: attempt.event.id.to_string(), attributes })
    }

    pub(super) fn endpoint(&self) -> EndpointView<'_> {
        EndpointView { id: self.target.name.as_str(), url: self.target.url.as_str(), config: self.config }
    }

    pub(super) fn call(&self) -> AttemptView<'_> {
        AttemptView {
            event_id: &self.event_id,
            event_type: &self.attempt.event.event_type,
            number: self.attempt.number,
            max_attempts: self.target.terms.retry.max_attempts,
            idempotency_key: &self.attempt.idempotency_key,
            now: self.attempt.started_at,
            attributes: &[],
        }
    }

    /// `None`: its body is gone.
    pub(super) fn event(&self) -> Option<EventView<'_>> {
        let event = &self.attempt.event;
        Some(EventView {
            id: &self.event_id,
            event_type: &event.event_type,
            accepted_at: event.accepted_at,
            content_type: &event.content_type,
            attributes: &self.attributes,
            payload: event.body.as_ref()?,
        })
    }

    fn detail(&self) -> &'a str {
        self.kept().and_then(|kept| kept.detail.as_deref()).unwrap_or_default()
    }

    fn kept(&self) -> Option<&'a PastDetail> {
        self.attempt.kept.as_ref()
    }

    /// What the exchange took: the attempt's time without the plugin's.
    fn elapsed(&self) -> Duration {
        self.attempt.duration.saturating_sub(self.attempt.plugin_took)
    }

    /// `read_bytes_max`: the most of an answer that is read for a live call.
    pub(super) fn heard(&self, limits: &Limits, read_bytes_max: usize) -> Result<Heard<'a>, Silent> {
        let attempt = self.attempt;
        match attempt.outcome.as_str() {
            "answered" => {
                let response = self.kept().and_then(|kept| kept.response.as_ref()).ok_or(Silent::Erased)?;
                let given = limits.response_bytes_max.min(read_bytes_max);
                if response.body_truncated && response.body.len() < given {
                    return Err(Silent::Truncated);
                }
                Ok(Heard::Response {
                    status: attempt.status.ok_or(Silent::Unknown)?,
                    headers: headers(&response.headers),
                    body: &response.body,
                    body_truncated: response.body_truncated,
                    elapsed: self.elapsed(),
                })
            }
            "unreachable" | "timed_out" => {
                let told = self.kept().and_then(|kept| kept.detail.as_deref()).ok_or(Silent::Erased)?;
                let failure = told.split_once("; plugin fault ").map_or(told, |(failure, _)| failure);
                let (kind, detail) = TransportKind::read(failure).ok_or(Silent::Unknown)?;
                let may_have_been_received = attempt.ambiguous;
                Ok(Heard::Failed { kind, may_have_been_received, detail, elapsed: self.elapsed() })
            }
            _ => Err(Silent::NotAsked),
        }
    }

    pub(super) fn by_plugin(&self) -> bool {
        self.attempt.decided_by == "plugin"
    }

    /// The fault of the `classify` that was asked.
    pub(super) fn fault(&self) -> Option<Fault> {
        let told = self.detail();
        let fault = told.find("; plugin fault ").map_or(told, |at| &told[at + 2..]);
        Fault::read(fault).filter(|_| self.attempt.decided_by == "host")
    }

    /// What was said of it, as far as that was kept.
    pub(super) fn ruling(&self, heard: &Heard<'_>) -> Ruling {
        let attempt = self.attempt;
        let verdict = match attempt.verdict.as_deref() {
            Some("delivered") => "delivered",
            Some("terminal") => "terminal",
            _ => "retryable",
        };
        if let Some(fault) = self.fault() {
            return Ruling::of_fault(&fault, Some(verdict));
        }
        let answered = matches!(heard, Heard::Response { .. });
        // Without an answer the reason is the decision's own, which may have had a better one.
        let own = answered || (verdict != "delivered" && attempt.reason != "ambiguous");
        let delivered = attempt.disposition == "delivered";
        Ruling {
            verdict,
            reason: if own { Told::Known(Some(attempt.reason.clone())) } else { Told::Unknown },
            after_ms: Told::Unknown,
            scope: Told::Unknown,
            reference: if delivered { Told::Known(attempt.reference.clone()) } else { Told::Unknown },
            detail: None,
            stands_in: None,
        }
    }

    /// Whether what was sent was the event itself.
    pub(super) fn went_as_it_came(&self) -> bool {
        // Of one that was interrupted nobody knows, unless its request was kept.
        let sent = ["answered", "unreachable", "timed_out", "refused"];
        sent.contains(&self.attempt.outcome.as_str()) && self.kept().is_some_and(|kept| kept.request.is_none())
    }

    /// What the attempt's `transform` made. `None`: it was not kept, or was the event itself and that is gone.
    pub(super) fn making(&self) -> Option<Making> {
        match self.attempt.outcome.as_str() {
            "skipped" => Some(Making::Skip(self.attempt.reason.clone())),
            FAULTED => Some(Making::Fault(Told::Unknown, self.detail().to_owned())),
            _ if self.went_as_it_came() => self.attempt.event.body.clone().map(Making::as_it_came),
            _ => {
                let sent = self.kept()?.request.as_ref()?;
                Some(Making::Send(Request {
                    method: sent.method.clone(),
                    path_and_query: sent.path_and_query.clone(),
                    headers: sent.headers.clone(),
                    body: sent.body.clone(),
                }))
            }
        }
    }

    /// What a row tells of its attempt.
    pub(super) fn row(&self) -> Value {
        let attempt = self.attempt;
        json!({
            "delivery": attempt.delivery,
            "attempt": crate::delivery::AttemptId::of(attempt.delivery, attempt.number),
            "number": attempt.number,
            "event": attempt.event.id,
            "event_type": attempt.event.event_type,
            "endpoint": self.target.name,
            "started_at": attempt.started_at,
            "outcome": attempt.outcome,
            "status": attempt.status,
            "plugin_version": attempt.plugin_version,
        })
    }
}

pub(super) const FAULTED: &str = "faulted";

/// As they came: what was no text was kept with a mark in the place of it, and was not given to the plugin.
fn headers(kept: &[(String, String)]) -> HeaderMap {
    let mut all = HeaderMap::new();
    for (name, value) in kept {
        let value = if value.contains('\u{fffd}') { HeaderValue::from_bytes(b"\xff") } else { value.parse() };
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), value) {
            all.append(name, value);
        }
    }
    all
}
