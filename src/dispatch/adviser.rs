//! A version of a plugin, asked about one attempt.

use super::draft::Draft;
use super::{Crew, InUse, Target};
use crate::clock::Timestamp;
use crate::delivery::classify::Observed;
use crate::delivery::{Fault, FaultKind, PluginVersionId, TransportKind, Verdict};
use crate::ledger::{Claimed, EventContent, LogRecord};
use crate::plugin::{AttemptView, Call, EndpointView, EventView, LogLine, OutcomeView, Rules, Transformed};
use bytes::Bytes;
use http::HeaderMap;
use std::sync::Arc;
use std::time::Duration;

/// What a plugin is told of an attempt, made once for all calls.
#[derive(Clone)]
pub(super) struct Asked {
    pub(super) target: Arc<Target>,
    pub(super) event: Arc<EventContent>,
    pub(super) number: u32,
    config: Arc<str>,
    event_id: String,
    endpoint_id: String,
    idempotency_key: Arc<str>,
    now: Timestamp,
    attributes: Vec<(&'static str, String)>,
}

impl Asked {
    pub(super) fn new(crew: &Crew, claimed: &Claimed, target: &Arc<Target>, config: &Arc<str>) -> Self {
        let event = &claimed.event;
        let mut attributes = vec![("tenant", target.tenant.to_string())];
        if let Some(source) = event.source.and_then(|key| crew.targets.source(key)) {
            attributes.push(("source", source.to_string()));
        }
        if let Some(key) = &event.key {
            attributes.push(("key", key.clone()));
        }
        Asked {
            target: Arc::clone(target),
            event: Arc::clone(event),
            number: claimed.lease.number,
            config: Arc::clone(config),
            event_id: event.id.to_string(),
            endpoint_id: target.name.to_string(),
            idempotency_key: Arc::clone(&claimed.idempotency_key),
            // What is written of the attempt, so that the same call can be made again.
            now: claimed.lease.started_at,
            attributes,
        }
    }

    pub(super) async fn transform(&self, rules: &dyn Rules) -> Call<Transformed> {
        let event = EventView {
            id: &self.event_id,
            event_type: &self.event.event_type,
            accepted_at: self.event.accepted_at,
            content_type: &self.event.content_type,
            attributes: &self.attributes,
            payload: &self.event.body,
        };
        rules.transform(event, self.endpoint(), self.attempt()).await
    }

    pub(super) async fn classify(&self, rules: &dyn Rules, outcome: OutcomeView<'_>) -> Call<Verdict> {
        rules.classify(self.endpoint(), self.attempt(), outcome).await
    }

    fn endpoint(&self) -> EndpointView<'_> {
        EndpointView { id: &self.endpoint_id, url: self.target.url.as_str(), config: &self.config }
    }

    fn attempt(&self) -> AttemptView<'_> {
        AttemptView {
            event_id: &self.event_id,
            event_type: &self.event.event_type,
            number: self.number,
            max_attempts: self.target.terms.retry.max_attempts,
            idempotency_key: &self.idempotency_key,
            now: self.now,
            attributes: &[],
        }
    }
}

/// What the plugin did, over both calls.
#[derive(Default)]
pub(super) struct PluginUse {
    pub(super) version: Option<PluginVersionId>,
    pub(super) took: Option<Duration>,
    pub(super) log: Vec<LogRecord>,
    pub(super) log_dropped: u32,
    /// The kind of the call that gave no answer.
    pub(super) fault: Option<FaultKind>,
    /// Filled where a shadow is to see the same.
    pub(super) seen: Option<Box<Seen>>,
}

impl PluginUse {
    fn note<T>(&mut self, call: Call<T>) -> Result<T, Fault> {
        self.took = Some(self.took.unwrap_or_default() + call.took);
        self.log.extend(call.log.into_iter().map(|LogLine { level, message }| LogRecord { level, message }));
        self.log_dropped += call.log_lines_dropped;
        self.fault = call.result.as_ref().err().map(|fault| fault.kind);
        call.result
    }
}

/// What the version in use made, and what came of it.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) draft: Option<Draft>,
    pub(super) outcome: Option<SeenOutcome>,
}

/// An [`OutcomeView`] that is kept.
pub(super) enum SeenOutcome {
    Response { status: u16, headers: HeaderMap, body: Bytes, body_truncated: bool, elapsed: Duration },
    Failed { kind: TransportKind, may_have_been_received: bool, detail: String, elapsed: Duration },
}

impl SeenOutcome {
    fn of(view: OutcomeView<'_>) -> Self {
        match view {
            OutcomeView::Response { status, headers, body, body_truncated, elapsed } => {
                SeenOutcome::Response { status, headers: headers.clone(), body: body.clone(), body_truncated, elapsed }
            }
            OutcomeView::Failed { kind, may_have_been_received, detail, elapsed } => {
                SeenOutcome::Failed { kind, may_have_been_received, detail: detail.to_owned(), elapsed }
            }
        }
    }

    pub(super) fn view(&self) -> OutcomeView<'_> {
        match self {
            SeenOutcome::Response { status, headers, body, body_truncated, elapsed } => OutcomeView::Response {
                status: *status,
                headers,
                body,
                body_truncated: *body_truncated,
                elapsed: *elapsed,
            },
            SeenOutcome::Failed { kind, may_have_been_received, detail, elapsed } => OutcomeView::Failed {
                kind: *kind,
                may_have_been_received: *may_have_been_received,
                detail,
                elapsed: *elapsed,
            },
        }
    }

    pub(super) fn observed(&self) -> Observed {
        match self {
            SeenOutcome::Response { status, .. } => Observed::Status(*status),
            SeenOutcome::Failed { kind, .. } => Observed::Transport(*kind),
        }
    }
}

/// A version for one attempt, with what it did.
pub(super) struct Adviser<'a> {
    pub(super) asked: &'a Asked,
    pub(super) rules: &'a dyn Rules,
    pub(super) used: PluginUse,
}

impl<'a> Adviser<'a> {
    /// `seen`: where a shadow's view of it is kept, if there is one.
    pub(super) fn new(asked: &'a Asked, in_use: &'a InUse, seen: Option<Box<Seen>>) -> Self {
        let used = PluginUse { version: in_use.version, seen, ..PluginUse::default() };
        Adviser { asked, rules: in_use.rules.as_ref(), used }
    }

    pub(super) async fn transform(&mut self) -> Result<Transformed, Fault> {
        let call = self.asked.transform(self.rules).await;
        self.used.note(call)
    }

    pub(super) async fn classify(&mut self, outcome: OutcomeView<'_>) -> Result<Verdict, Fault> {
        let call = self.asked.classify(self.rules, outcome).await;
        self.used.note(call)
    }

    /// For a shadow: what is about to be sent.
    pub(super) fn makes(&mut self, draft: &Draft) {
        if let Some(seen) = &mut self.used.seen {
            seen.draft = Some(draft.clone());
        }
    }

    /// For a shadow: what came back.
    pub(super) fn sees(&mut self, outcome: OutcomeView<'_>) {
        if let Some(seen) = &mut self.used.seen {
            seen.outcome = Some(SeenOutcome::of(outcome));
        }
    }
}
