//! Publishing: one event, or a batch of which each item stands for itself.

use super::idempotency::{ComeAgain, reused};
use super::input::{invalid, parse};
use super::{At, answer, ledger_problem, not_found};
use crate::clock::Timestamp;
use crate::delivery::{EventId, MAX_WAIT, Order};
use crate::http::{Answer, BodyFault, Problem};
use crate::ledger::{ANSWERS_KEPT_FOR, Accept, Accepted, NewDelivery, OrderingKey};
use crate::telemetry::{DUPLICATES_SUPPRESSED, EVENTS_ACCEPTED};
use crate::verify::{Coalesce, Grant, Publication, Relation};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::time::Duration;

const BATCH_EVENTS_MAX: usize = 1_000;
const TEXT_BYTES_MAX: usize = 256;
const WINDOW_MIN: Duration = Duration::from_secs(1);
/// A time this little in the past is "now" on a clock that differs.
const CLOCK_SLACK: Duration = Duration::from_secs(60);

/// What tells a batch from an event.
#[derive(Deserialize)]
struct Shape {
    events: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Batch<'a> {
    #[serde(borrow)]
    events: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Item<'a> {
    #[serde(rename = "type")]
    event_type: String,
    key: Option<String>,
    #[serde(borrow, default, deserialize_with = "raw")]
    payload: Option<&'a RawValue>,
    #[serde(borrow)]
    body_base64: Option<Cow<'a, str>>,
    content_type: Option<String>,
    delay: Option<String>,
    deliver_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
    deadline: Option<Timestamp>,
    ordering_key: Option<String>,
    coalesce_key: Option<String>,
    coalesce_window: Option<String>,
}

/// JSON as it stands: `null` too is a value, not an absence.
pub(super) fn raw<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

#[derive(Serialize)]
struct Published {
    event: EventId,
    duplicate: bool,
    /// Of a new event that goes nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl At<'_> {
    pub(super) async fn publish(&self, body: &Bytes, token: &[u8]) -> Result<Answer, Problem> {
        let grant = Grant::by_token(&self.admin.settings.token, token, self.name).ok_or_else(not_found)?;
        let Shape { events: None } = parse(body)? else {
            return self.publish_batch(body, &grant).await;
        };
        Ok(answer::json(&self.publish_one(body, 0, &grant).await?))
    }

    /// Items reach the ledger in their order, and may share a commit.
    async fn publish_batch(&self, body: &[u8], grant: &Grant) -> Result<Answer, Problem> {
        let Batch { events } = parse(body)?;
        if !(1..=BATCH_EVENTS_MAX).contains(&events.len()) {
            return Err(invalid("events", format!("is to hold 1 to {BATCH_EVENTS_MAX} events")));
        }
        let all = (0..).zip(&events).map(|(number, event)| self.publish_one(event.get().as_bytes(), number, grant));
        // Unconstrained, since the runtime's budget would let later items overtake; their number is bounded.
        let results = tokio::task::unconstrained(futures_util::future::join_all(all)).await;
        let turned_away = |result: &Result<_, Problem>| {
            result.as_ref().is_err_and(|problem| problem.status() == StatusCode::SERVICE_UNAVAILABLE)
        };
        let all_turned_away = results.iter().all(turned_away);
        let some_failed =
            results.iter().any(|result| result.as_ref().is_err_and(|problem| problem.status().is_server_error()));
        let mut items = Vec::with_capacity(results.len());
        for result in results {
            items.push(match result {
                Ok(published) => json!(published),
                Err(problem) if all_turned_away => return Err(problem),
                Err(problem) => json!({ "error": problem.to_json() }),
            });
        }
        let mut answer = answer::json(&json!({ "items": items }));
        if some_failed {
            // Asked again, those that failed are tried, and the others are duplicates.
            answer.extensions_mut().insert(ComeAgain);
        }
        Ok(answer)
    }

    /// `number` is the item's in its request.
    async fn publish_one(&self, item: &[u8], number: u32, grant: &Grant) -> Result<Published, Problem> {
        let now = self.admin.state.clock.now();
        let settings = &self.admin.settings;
        let publication = publication(parse(item)?, settings.body_bytes_max, now)?;
        let waits = publication.deliver_at.is_some() || matches!(publication.relation, Some(Relation::Coalesced(_)));
        let over = [("expires_at", publication.expires_at), ("deadline", publication.deadline)];
        // What has no key of its own is known again by that of its request.
        let named = self.request.filter(|_| publication.key.is_none());
        let event = match named {
            Some(request) => grant.event_of_request(publication, (request.as_str(), number), ANSWERS_KEPT_FOR, now),
            None => grant.event(publication, settings.dedup_window, now),
        };
        let slots = &self.admin.state.slots;
        let takers = self.tenant.endpoints.values().filter(|endpoint| endpoint.route.takes(None, &event.event_type));
        let deliveries: Vec<_> = takers
            .map(|endpoint| {
                let order = match (endpoint.order, event.ordering_key()) {
                    (Order::ByKey(on_dead), Some(key)) => Some(OrderingKey::of(key, on_dead)),
                    (Order::ByKey(_), None) | (Order::Free, _) => None,
                };
                let at_once = !waits && order.is_none();
                let slot = if at_once { slots.take_for_arrival(endpoint.key, now) } else { None };
                NewDelivery { endpoint: endpoint.key, slot, order }
            })
            .collect();
        if event.ordering_key().is_some() && deliveries.iter().all(|delivery| delivery.order.is_none()) {
            let rule = "orders nothing: no endpoint that takes this event orders by key. Set `ordering = \"key\"` for \
                        one, or leave it out";
            return Err(invalid("ordering_key", rule));
        }
        let hint = deliveries.is_empty().then(|| self.tenant.why_untaken(None, &event.event_type));
        let accept = Accept { tenant: self.tenant.key, source: None, event, deliveries, now };
        match self.ledger().accept(accept).await.map_err(|error| ledger_problem(&error))? {
            Accepted::New(event) => {
                metrics::counter!(EVENTS_ACCEPTED).increment(1);
                Ok(Published { event, duplicate: false, hint })
            }
            Accepted::Duplicate(event) => {
                metrics::counter!(DUPLICATES_SUPPRESSED).increment(1);
                Ok(Published { event, duplicate: true, hint: None })
            }
            Accepted::KeyReused(_) if named.is_some() => Err(reused()),
            Accepted::KeyReused(event) => Err(Problem::new(
                StatusCode::CONFLICT,
                "key_reused",
                "`key` came before with another body, and the first is kept: publish another event under another key",
            )
            .with("field", "key")
            .with("event", event.to_string())),
            Accepted::TooLateAt(end) => {
                let field = over.into_iter().find(|(_, time)| time.is_some_and(|time| time <= end));
                let rule =
                    format!("has passed when the coalescing window ends, at {}: make it later", end.to_rfc3339());
                Err(invalid(field.map_or("expires_at", |(field, _)| field), rule))
            }
        }
    }
}

/// Checks every bound of an item.
fn publication(item: Item<'_>, body_bytes_max: u64, now: Timestamp) -> Result<Publication, Problem> {
    let relation = relation(&item)?;
    let event_type = word("type", item.event_type)?;
    let key = item.key.map(|key| header_word("key", key)).transpose()?;
    let (body, content_type) = match (item.payload, item.body_base64) {
        (Some(payload), None) => (Bytes::copy_from_slice(payload.get().as_bytes()), "application/json"),
        (None, Some(text)) => {
            let body = BASE64_STANDARD.decode(text.as_bytes());
            (body.map_err(|_| invalid("body_base64", "is not base64 with padding"))?.into(), "application/octet-stream")
        }
        (None, None) => return Err(invalid("payload", "is missing: give `payload`, or `body_base64`")),
        (Some(_), Some(_)) => return Err(invalid("body_base64", "stands beside `payload`: give one of them")),
    };
    if u64::try_from(body.len()).unwrap_or(u64::MAX) > body_bytes_max {
        return Err(BodyFault::TooLarge { limit: body_bytes_max }.problem());
    }
    let content_type = item.content_type.unwrap_or_else(|| content_type.to_owned());
    let is_value = content_type.len() <= TEXT_BYTES_MAX && HeaderValue::from_str(&content_type).is_ok();
    if !is_value || !content_type.contains('/') {
        return Err(invalid("content_type", "is to be a media type, such as `text/plain`"));
    }
    let deliver_at = deliver_at(item.delay.as_deref(), item.deliver_at, now)?;
    let earliest = deliver_at.unwrap_or(now);
    for (field, time) in [("expires_at", item.expires_at), ("deadline", item.deadline)] {
        if time.is_some_and(|time| time <= earliest) {
            let rule = "is over before the event can be delivered: give a later time, or leave it out";
            return Err(invalid(field, rule));
        }
    }
    let (expires_at, deadline) = (item.expires_at, item.deadline);
    Ok(Publication { event_type, content_type, body, key, deliver_at, expires_at, deadline, relation })
}

/// It is sent as the value of a header, so that a receiver can tell a repetition.
fn header_word(field: &'static str, text: String) -> Result<String, Problem> {
    let visible = |b: u8| b.is_ascii_graphic() || b == b' ';
    let text = word(field, text)?;
    if !text.bytes().all(visible) || text.trim().len() != text.len() {
        return Err(invalid(field, "is sent in a header: visible ASCII, without spaces at its ends"));
    }
    Ok(text)
}

fn word(field: &'static str, text: String) -> Result<String, Problem> {
    if !(1..=TEXT_BYTES_MAX).contains(&text.len()) || text.chars().any(char::is_control) {
        return Err(invalid(field, format!("is to be 1 to {TEXT_BYTES_MAX} bytes without control characters")));
    }
    Ok(text)
}

/// An ordering key, or a coalescing key and its window, which say for themselves when the event goes.
fn relation(item: &Item<'_>) -> Result<Option<Relation>, Problem> {
    let ordered = item.ordering_key.clone().map(|key| word("ordering_key", key)).transpose()?;
    let (key, window) = match (&item.coalesce_key, &item.coalesce_window) {
        (None, None) => return Ok(ordered.map(Relation::Ordered)),
        (Some(key), Some(window)) => (header_word("coalesce_key", key.clone())?, window),
        (Some(_), None) => {
            let rule = "is missing beside `coalesce_key`: say how long to wait for newer events";
            return Err(invalid("coalesce_window", rule));
        }
        (None, Some(_)) => {
            return Err(invalid("coalesce_key", "is missing beside `coalesce_window`: say what belongs together"));
        }
    };
    let window = crate::duration::parse(window).map_err(|rule| invalid("coalesce_window", rule))?;
    if !(WINDOW_MIN..=MAX_WAIT).contains(&window) {
        return Err(invalid("coalesce_window", "is to be 1s to 7d"));
    }
    for (field, given) in [
        ("ordering_key", ordered.is_some()),
        ("delay", item.delay.is_some()),
        ("deliver_at", item.deliver_at.is_some()),
    ] {
        if given {
            return Err(invalid(field, "stands beside `coalesce_key`, whose window says when: leave one of them out"));
        }
    }
    Ok(Some(Relation::Coalesced(Coalesce { key, window })))
}

fn deliver_at(delay: Option<&str>, at: Option<Timestamp>, now: Timestamp) -> Result<Option<Timestamp>, Problem> {
    let (field, at) = match (delay, at) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => return Err(invalid("delay", "stands beside `deliver_at`: give one of them")),
        (Some(delay), None) => {
            let delay = crate::duration::parse(delay).map_err(|rule| invalid("delay", rule))?;
            ("delay", now.plus(delay))
        }
        (None, Some(at)) => ("deliver_at", at),
    };
    if at > now.plus(MAX_WAIT) {
        return Err(invalid(
            field,
            "is more than 7 days away, and nothing waits longer: publish it nearer to its time",
        ));
    }
    if at < now.minus(CLOCK_SLACK) {
        return Err(invalid(field, "is in the past: leave it out to deliver at once"));
    }
    Ok(Some(at).filter(|at| *at > now))
}
