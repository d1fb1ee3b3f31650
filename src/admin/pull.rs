//! Pull endpoints: consumers fetch, and say what became of what they fetched.

use super::input::{invalid, parse, parse_or_default};
use super::place::PullVerb;
use super::{At, answer, ledger_problem, not_found};
use crate::clock::Timestamp;
use crate::delivery::{
    DeliveryId, DeliveryState, Disposition, EndpointStatus, EventId, LEASE_MAX, LEASE_MIN, MAX_WAIT, Name, PauseScope,
    Reason, RetryHint, Verdict,
};
use crate::duration;
use crate::http::{Answer, Problem};
use crate::ledger::{Consumed, EndpointKey, Handed, Lapsed, LedgerError, Receipt, TenantKey};
use async_trait::async_trait;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::StatusCode;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::time::Duration;

/// Deliveries that one call fetches, and receipts that one call speaks of.
const ITEMS_MAX: usize = 100;
const REFERENCE_BYTES_MAX: usize = 256;

/// Who serves consumers. What they say is decided like any other outcome.
#[async_trait]
pub trait Consumers: Send + Sync + 'static {
    async fn consume(
        &self,
        tenant: TenantKey,
        endpoint: EndpointKey,
        max: usize,
        lease_for: Duration,
    ) -> Result<Consumed, LedgerError>;

    /// What becomes of each, in their order.
    async fn answer(
        &self,
        tenant: TenantKey,
        endpoint: EndpointKey,
        answers: Vec<(Receipt, Verdict)>,
    ) -> Result<Vec<Result<Disposition, Lapsed>>, LedgerError>;

    /// Until when each is held, in their order.
    async fn extend(
        &self,
        tenant: TenantKey,
        endpoint: EndpointKey,
        wishes: Vec<(Receipt, Duration)>,
    ) -> Result<Vec<Result<Timestamp, Lapsed>>, LedgerError>;
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConsumeInput {
    max: Option<usize>,
    lease: Option<String>,
}

/// What tells several items from one.
#[derive(Deserialize)]
struct Shape {
    items: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Several<'a> {
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AckInput {
    receipt: String,
    reference: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NackInput {
    receipt: String,
    delay: Option<String>,
    reason: Option<String>,
    #[serde(default)]
    terminal: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExtendInput {
    receipt: String,
    lease: Option<String>,
}

#[derive(Serialize)]
struct Fetched<'a> {
    receipt: String,
    lease_until: Timestamp,
    delivery: DeliveryId,
    event: EventId,
    event_type: &'a str,
    key: Option<&'a str>,
    idempotency_key: &'a str,
    source: Option<&'a Name>,
    sequence: u64,
    attempt: u32,
    generation: u32,
    revision: u32,
    accepted_at: Timestamp,
    expires_at: Option<Timestamp>,
    content_type: &'a str,
    headers: Vec<(&'a str, String)>,
    body_base64: String,
}

#[derive(Serialize)]
struct Basket<'a> {
    items: Vec<Fetched<'a>>,
    #[serde(flatten)]
    status: &'a EndpointStatus,
    next_due_at: Option<Timestamp>,
}

/// One endpoint that is pulled from.
#[derive(Clone, Copy)]
struct Outlet {
    tenant: TenantKey,
    key: EndpointKey,
    lease: Duration,
}

/// An item of a request, as it was read, and what is wished for it.
struct Read<W> {
    text: String,
    receipt: Receipt,
    wish: W,
}

impl At<'_> {
    pub(super) async fn pull(&self, name: &str, verb: PullVerb, body: &Bytes) -> Result<Answer, Problem> {
        let endpoint = self.tenant.endpoints.get(name).ok_or_else(not_found)?;
        let Some(lease) = endpoint.pull else {
            let detail = "this endpoint is sent to: only one with `pull = true` is fetched from";
            return Err(Problem::new(StatusCode::CONFLICT, "not_pull", detail));
        };
        let outlet = Outlet { tenant: self.tenant.key, key: endpoint.key, lease };
        let consumers = &self.admin.state.consumers;
        match verb {
            PullVerb::Consume => self.consume(outlet, body).await,
            PullVerb::Ack => {
                let asked = several(body, |item| outlet.ack(item))?;
                let answers = consumers.answer(outlet.tenant, outlet.key, asked.wishes()).await;
                asked.told(answers, |told, delivery| answered(told, delivery, "acked"))
            }
            PullVerb::Nack => {
                let asked = several(body, |item| outlet.nack(item))?;
                let answers = consumers.answer(outlet.tenant, outlet.key, asked.wishes()).await;
                asked.told(answers, |told, delivery| answered(told, delivery, "nacked"))
            }
            PullVerb::Extend => {
                let asked = several(body, |item| outlet.extend(item))?;
                let until = consumers.extend(outlet.tenant, outlet.key, asked.wishes()).await;
                asked.told(until, |until, delivery| match until {
                    Ok(until) => Ok(json!({ "delivery": delivery, "result": "extended", "lease_until": until })),
                    Err(lapsed) => Err(lease_problem(lapsed)),
                })
            }
        }
    }

    async fn consume(&self, outlet: Outlet, body: &[u8]) -> Result<Answer, Problem> {
        let ConsumeInput { max, lease } = parse_or_default(body)?;
        let max = max.unwrap_or(1);
        if !(1..=ITEMS_MAX).contains(&max) {
            return Err(invalid("max", format!("is to be 1 to {ITEMS_MAX}")));
        }
        let lease_for = outlet.lease_of(lease)?;
        let consumed = self.admin.state.consumers.consume(outlet.tenant, outlet.key, max, lease_for).await;
        let consumed = consumed.map_err(|error| ledger_problem(&error))?;
        let items = consumed.items.iter().map(|handed| self.fetched(handed, outlet.key)).collect();
        Ok(answer::json(&Basket { items, status: &consumed.status, next_due_at: consumed.next_due }))
    }

    fn fetched<'h>(&'h self, handed: &'h Handed, endpoint: EndpointKey) -> Fetched<'h> {
        let Handed { lease, event, .. } = handed;
        let source = self.tenant.sources.iter().find(|(_, source)| Some(source.key) == event.source);
        let value = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        Fetched {
            receipt: Receipt::of(lease).text(endpoint),
            lease_until: lease.until,
            delivery: lease.delivery,
            event: event.id,
            event_type: &event.event_type,
            key: event.key.as_deref(),
            idempotency_key: &handed.idempotency_key,
            source: source.map(|(name, _)| name),
            sequence: handed.sequence,
            attempt: lease.number,
            generation: lease.generation,
            revision: lease.revision,
            accepted_at: event.accepted_at,
            expires_at: lease.history.expires_at,
            content_type: &event.content_type,
            headers: event.headers.iter().map(|(name, text)| (name.as_str(), value(text))).collect(),
            body_base64: BASE64_STANDARD.encode(&event.body),
        }
    }
}

impl Outlet {
    fn ack(self, item: &[u8]) -> Result<Read<Verdict>, Problem> {
        let AckInput { receipt, reference } = parse(item)?;
        let fits =
            |text: &String| (1..=REFERENCE_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
        if reference.as_ref().is_some_and(|text| !fits(text)) {
            let rule = format!("is to be 1 to {REFERENCE_BYTES_MAX} bytes without control characters");
            return Err(invalid("reference", rule));
        }
        self.read(receipt, Verdict::Delivered { reference, reason: None })
    }

    fn nack(self, item: &[u8]) -> Result<Read<Verdict>, Problem> {
        let NackInput { receipt, delay, reason, terminal } = parse(item)?;
        let rule = || {
            let most = Reason::BYTES_MAX;
            invalid("reason", format!("is to be a word: 1 to {most} of a-z, 0-9, `_`, `.` and `-`"))
        };
        let reason = reason.map_or(Ok(Reason::NACKED), |text| Reason::parse(&text).ok_or_else(rule))?;
        let after = delay.map(|text| duration::parse(&text)).transpose().map_err(|rule| invalid("delay", rule))?;
        if after.is_some_and(|after| after > MAX_WAIT) {
            return Err(invalid("delay", "is more than 7 days: nothing waits longer"));
        }
        let verdict = match (terminal, after) {
            (true, None) => Verdict::Terminal(reason),
            (true, Some(_)) => {
                return Err(invalid("delay", "stands beside `terminal`, after which nothing is tried again"));
            }
            (false, after) => Verdict::Retryable(RetryHint { reason, after, scope: PauseScope::Delivery }),
        };
        self.read(receipt, verdict)
    }

    fn extend(self, item: &[u8]) -> Result<Read<Duration>, Problem> {
        let ExtendInput { receipt, lease } = parse(item)?;
        let lease = self.lease_of(lease)?;
        self.read(receipt, lease)
    }

    fn lease_of(self, text: Option<String>) -> Result<Duration, Problem> {
        let Some(text) = text else { return Ok(self.lease) };
        let span = duration::parse(&text).map_err(|rule| invalid("lease", rule))?;
        if !(LEASE_MIN..=LEASE_MAX).contains(&span) {
            let (least, most) = (duration::show(LEASE_MIN), duration::show(LEASE_MAX));
            return Err(invalid("lease", format!("is to be {least} to {most}")));
        }
        Ok(span)
    }

    fn read<W>(self, text: String, wish: W) -> Result<Read<W>, Problem> {
        match Receipt::read(&text, self.key) {
            Some(receipt) => Ok(Read { text, receipt, wish }),
            None => Err(unknown_receipt()),
        }
    }
}

/// The items of a request, each with its own mistakes.
struct Asked<W> {
    /// As `{"items": […]}`, or by itself.
    is_list: bool,
    items: Vec<Result<Read<W>, Problem>>,
}

fn several<W>(body: &[u8], read: impl Fn(&[u8]) -> Result<Read<W>, Problem>) -> Result<Asked<W>, Problem> {
    let Shape { items: Some(_) } = parse(body)? else {
        return Ok(Asked { is_list: false, items: vec![Ok(read(body)?)] });
    };
    let Several { items } = parse(body)?;
    if !(1..=ITEMS_MAX).contains(&items.len()) {
        return Err(invalid("items", format!("is to hold 1 to {ITEMS_MAX} items")));
    }
    Ok(Asked { is_list: true, items: items.iter().map(|item| read(item.get().as_bytes())).collect() })
}

impl<W: Clone> Asked<W> {
    fn wishes(&self) -> Vec<(Receipt, W)> {
        self.items.iter().flatten().map(|read| (read.receipt, read.wish.clone())).collect()
    }

    /// The answers, which are those to the items without a mistake, in their order.
    fn told<T>(
        self,
        answers: Result<Vec<T>, LedgerError>,
        tell: impl Fn(T, DeliveryId) -> Result<Value, Problem>,
    ) -> Result<Answer, Problem> {
        let mut answers = answers.map_err(|error| ledger_problem(&error))?.into_iter();
        let mut all = Vec::with_capacity(self.items.len());
        for read in self.items {
            let (text, told) = match read {
                Ok(read) => match answers.next() {
                    Some(answer) => (Some(read.text), tell(answer, read.receipt.delivery)),
                    None => (Some(read.text), Err(unknown_receipt())),
                },
                Err(problem) => (None, Err(problem)),
            };
            if !self.is_list {
                return Ok(answer::json(&told?));
            }
            let mut item = told.unwrap_or_else(|problem| json!({ "error": problem.to_json() }));
            if let Some(text) = text {
                item["receipt"] = text.into();
            }
            all.push(item);
        }
        Ok(answer::json(&json!({ "items": all })))
    }
}

/// Who says the same again is told the same.
fn answered(told: Result<Disposition, Lapsed>, delivery: DeliveryId, said: &str) -> Result<Value, Problem> {
    match told {
        Ok(disposition) => {
            let mut item = json!({ "delivery": delivery, "result": disposition.as_str() });
            if let Disposition::RetryAt { reason, .. } | Disposition::Dead(reason) = &disposition {
                item["reason"] = reason.as_str().into();
            }
            if let Some(due) = disposition.next_at() {
                item["due_at"] = due.to_rfc3339().into();
            }
            Ok(item)
        }
        Err(Lapsed::Over { delivery, ended: Some(ended), .. }) if ended.outcome == said => {
            Ok(json!({ "delivery": delivery, "result": ended.disposition, "repeated": true }))
        }
        Err(lapsed) => Err(lease_problem(lapsed)),
    }
}

fn unknown_receipt() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "unknown_receipt", "this endpoint gave no such receipt")
}

fn lease_problem(lapsed: Lapsed) -> Problem {
    let (delivery, state, problem) = match lapsed {
        Lapsed::Unknown => return unknown_receipt(),
        Lapsed::Over { delivery, state, ended: None } => {
            let detail = "the lease ran out before this came: the delivery is tried again, or has ended, without you";
            (delivery, state, Problem::new(StatusCode::CONFLICT, "lease_lost", detail))
        }
        Lapsed::Over { delivery, state, ended: Some(ended) } => {
            let detail = format!("this receipt was {} before, and that stands", ended.outcome);
            (delivery, state, Problem::new(StatusCode::CONFLICT, "already_answered", detail))
        }
    };
    problem.with("delivery", delivery.to_string()).with("state", DeliveryState::as_str(state))
}
