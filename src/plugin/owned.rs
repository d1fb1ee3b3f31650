//! The arguments of a call, to be taken to another thread.

use super::{AttemptView, EndpointView, EventView, OutcomeView};
use crate::clock::Timestamp;
use crate::delivery::TransportKind;
use bytes::Bytes;
use http::HeaderMap;
use std::time::Duration;

type Attributes = Vec<(String, String)>;

fn owned(attributes: &[(&str, String)]) -> Attributes {
    attributes.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

fn lent(attributes: &Attributes) -> Vec<(&str, String)> {
    attributes.iter().map(|(name, value)| (name.as_str(), value.clone())).collect()
}

pub(super) struct Event {
    id: String,
    event_type: String,
    accepted_at: Timestamp,
    content_type: String,
    attributes: Attributes,
    payload: Bytes,
}

impl Event {
    pub(super) fn of(view: EventView<'_>) -> Self {
        Event {
            id: view.id.to_owned(),
            event_type: view.event_type.to_owned(),
            accepted_at: view.accepted_at,
            content_type: view.content_type.to_owned(),
            attributes: owned(view.attributes),
            payload: view.payload.clone(),
        }
    }

    pub(super) fn attributes(&self) -> Vec<(&str, String)> {
        lent(&self.attributes)
    }

    pub(super) fn view<'a>(&'a self, attributes: &'a [(&'a str, String)]) -> EventView<'a> {
        EventView {
            id: &self.id,
            event_type: &self.event_type,
            accepted_at: self.accepted_at,
            content_type: &self.content_type,
            attributes,
            payload: &self.payload,
        }
    }
}

pub(super) struct Endpoint {
    id: String,
    url: String,
    config: String,
}

impl Endpoint {
    pub(super) fn of(view: EndpointView<'_>) -> Self {
        Endpoint { id: view.id.to_owned(), url: view.url.to_owned(), config: view.config.to_owned() }
    }

    pub(super) fn view(&self) -> EndpointView<'_> {
        EndpointView { id: &self.id, url: &self.url, config: &self.config }
    }
}

pub(super) struct Attempt {
    event_id: String,
    event_type: String,
    number: u32,
    max_attempts: u32,
    idempotency_key: String,
    now: Timestamp,
    attributes: Attributes,
}

impl Attempt {
    pub(super) fn of(view: AttemptView<'_>) -> Self {
        Attempt {
            event_id: view.event_id.to_owned(),
            event_type: view.event_type.to_owned(),
            number: view.number,
            max_attempts: view.max_attempts,
            idempotency_key: view.idempotency_key.to_owned(),
            now: view.now,
            attributes: owned(view.attributes),
        }
    }

    pub(super) fn attributes(&self) -> Vec<(&str, String)> {
        lent(&self.attributes)
    }

    pub(super) fn view<'a>(&'a self, attributes: &'a [(&'a str, String)]) -> AttemptView<'a> {
        AttemptView {
            event_id: &self.event_id,
            event_type: &self.event_type,
            number: self.number,
            max_attempts: self.max_attempts,
            idempotency_key: &self.idempotency_key,
            now: self.now,
            attributes,
        }
    }
}

pub(super) enum Outcome {
    Response { status: u16, headers: HeaderMap, body: Bytes, body_truncated: bool, elapsed: Duration },
    Failed { kind: TransportKind, may_have_been_received: bool, detail: String, elapsed: Duration },
}

impl Outcome {
    pub(super) fn of(view: OutcomeView<'_>) -> Self {
        match view {
            OutcomeView::Response { status, headers, body, body_truncated, elapsed } => {
                Outcome::Response { status, headers: headers.clone(), body: body.clone(), body_truncated, elapsed }
            }
            OutcomeView::Failed { kind, may_have_been_received, detail, elapsed } => {
                Outcome::Failed { kind, may_have_been_received, detail: detail.to_owned(), elapsed }
            }
        }
    }

    pub(super) fn view(&self) -> OutcomeView<'_> {
        match *self {
            Outcome::Response { status, ref headers, ref body, body_truncated, elapsed } => {
                OutcomeView::Response { status, headers, body, body_truncated, elapsed }
            }
            Outcome::Failed { kind, may_have_been_received, ref detail, elapsed } => {
                OutcomeView::Failed { kind, may_have_been_received, detail, elapsed }
            }
        }
    }
}
