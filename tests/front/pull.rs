//! Consumers before the admin listener: what is fetched, what is said of it, and every mistake by its code.

use crate::office::{NOW, Office, office};
use async_trait::async_trait;
use bytes::Bytes;
use hookgate::admin::Consumers;
use hookgate::clock::Timestamp;
use hookgate::delivery::{DeliveryId, DeliveryState, Disposition, EndpointStatus, EventId, History, Verdict};
use hookgate::ledger::{
    Consumed, Ended, EndpointKey, EventContent, Handed, Lapsed, Lease, LedgerError, Receipt, SourceKey, TenantKey,
};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const QUEUE: &str = "/v1/tenants/acme/endpoints/only-github";
const KEY: EndpointKey = EndpointKey(2);

/// Has one delivery to give, and remembers what it was asked. Receipts tell by their token what becomes of them.
#[derive(Default)]
pub struct Stall {
    pub status: Mutex<Option<EndpointStatus>>,
    pub asked: Mutex<Vec<String>>,
    pub fault: Mutex<Option<LedgerError>>,
}

fn delivery() -> DeliveryId {
    DeliveryId::from_u128(0x019b_7670_607b_7001_8000_0000_0000_0000)
}

fn receipt(token: u64) -> String {
    Receipt { delivery: delivery(), token }.text(KEY)
}

fn lapsed(token: u64) -> Option<Lapsed> {
    let over = |outcome: &str, disposition: &str| {
        let ended = Ended { outcome: outcome.to_owned(), disposition: disposition.to_owned() };
        Lapsed::Over { delivery: delivery(), state: DeliveryState::Delivered, ended: Some(ended) }
    };
    match token {
        2 => Some(Lapsed::Over { delivery: delivery(), state: DeliveryState::Pending, ended: None }),
        3 => Some(over("acked", "delivered")),
        4 => Some(Lapsed::Unknown),
        _ => None,
    }
}

impl Stall {
    fn note(&self, asked: String) -> Result<(), LedgerError> {
        self.asked.lock().unwrap().push(asked);
        self.fault.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    fn last(&self) -> String {
        self.asked.lock().unwrap().last().cloned().unwrap_or_default()
    }
}

#[async_trait]
impl Consumers for Stall {
    async fn consume(
        &self,
        tenant: TenantKey,
        endpoint: EndpointKey,
        max: usize,
        lease_for: Duration,
    ) -> Result<Consumed, LedgerError> {
        self.note(format!("{} {} {max} {lease_for:?}", tenant.0, endpoint.0))?;
        let event = EventContent {
            id: EventId::from_u128(delivery().as_u128() - 1),
            source: Some(SourceKey(1)),
            event_type: "push".to_owned(),
            content_type: "application/octet-stream".to_owned(),
            headers: vec![("x-id".parse().unwrap(), "7".parse().unwrap())],
            body: Bytes::from_static(b"\xff\x00{"),
            key: Some("order-7".to_owned()),
            accepted_at: NOW,
        };
        let history = History { counted: 1, interrupted_before: 0, began_at: NOW, expires_at: None };
        let lease = Lease {
            tenant,
            delivery: delivery(),
            endpoint,
            token: 1,
            until: NOW.plus(lease_for),
            generation: 1,
            revision: 1,
            number: 1,
            started_at: NOW,
            eligible_at: NOW,
            history,
        };
        let handed = Handed { lease, sequence: 41, idempotency_key: "order-7".into(), event: Arc::new(event) };
        Ok(match self.status.lock().unwrap().clone() {
            None => Consumed { items: vec![handed], status: EndpointStatus::Enabled, next_due: None },
            Some(status) => Consumed { items: Vec::new(), status, next_due: Some(NOW) },
        })
    }

    async fn answer(
        &self,
        _: TenantKey,
        _: EndpointKey,
        answers: Vec<(Receipt, Verdict)>,
    ) -> Result<Vec<Result<Disposition, Lapsed>>, LedgerError> {
        self.note(format!("{answers:?}"))?;
        let told = answers.into_iter().map(|(receipt, verdict)| match (lapsed(receipt.token), verdict) {
            (Some(lapsed), _) => Err(lapsed),
            (None, Verdict::Delivered { reference, .. }) => Ok(Disposition::Delivered { reference }),
            (None, Verdict::Terminal(reason)) => Ok(Disposition::Dead(reason)),
            (None, Verdict::Retryable(hint)) => {
                let due = NOW.plus(hint.after.unwrap_or(Duration::from_secs(5)));
                Ok(Disposition::RetryAt { due, reason: hint.reason })
            }
        });
        Ok(told.collect())
    }

    async fn extend(
        &self,
        _: TenantKey,
        _: EndpointKey,
        wishes: Vec<(Receipt, Duration)>,
    ) -> Result<Vec<Result<Timestamp, Lapsed>>, LedgerError> {
        self.note(format!("{wishes:?}"))?;
        let told = wishes.into_iter().map(|(receipt, span)| lapsed(receipt.token).map_or(Ok(NOW.plus(span)), Err));
        Ok(told.collect())
    }
}

impl Office {
    async fn told(&self, verb: &str, body: &Value) -> Value {
        let reply = self.post(&format!("{QUEUE}/{verb}"), &body.to_string()).await;
        assert_eq!(reply.status, 200, "{verb} {body}: {reply:?}");
        reply.json()
    }

    /// Status, code and field.
    async fn refused(&self, verb: &str, body: &str) -> (u16, String, String) {
        let reply = self.post(&format!("{QUEUE}/{verb}"), body).await;
        assert_eq!(reply.header("content-type"), Some("application/problem+json"), "{verb} {body}: {reply:?}");
        let json = reply.json();
        (reply.status, reply.code(), json["field"].as_str().unwrap_or_default().to_owned())
    }
}

#[tokio::test]
async fn bytes_come_out_as_they_went_in() {
    let office = office().await;
    let reply = office.post(&format!("{QUEUE}/consume"), "").await;
    crate::office::assert_golden("consumed", &reply);
    assert_eq!(office.stall.last(), "1 2 1 45s", "one, for as long as the endpoint says");
    let item = &reply.json()["items"][0];
    assert_eq!(item["body_base64"], "/wB7");
    assert_eq!(Receipt::read(item["receipt"].as_str().unwrap(), KEY).map(|r| r.token), Some(1));
    office.told("consume", &json!({"max": 100, "lease": "12h"})).await;
    assert_eq!(office.stall.last(), "1 2 100 43200s");
    let until = NOW.plus(Duration::from_secs(60));
    *office.stall.status.lock().unwrap() = Some(EndpointStatus::Paused { until: Some(until), why: "theirs".into() });
    let paused = office.told("consume", &json!({})).await;
    let expected = json!({"items": [], "status": "paused", "until": until, "why": "theirs", "next_due_at": NOW});
    assert_eq!(paused, expected);
}

#[tokio::test]
async fn each_item_has_its_own_answer() {
    let office = office().await;
    let items = [
        json!({"receipt": receipt(1), "reference": "r-1"}),
        json!({"receipt": receipt(2)}),
        json!({"receipt": receipt(3)}),
        json!({"receipt": receipt(4)}),
        json!({"receipt": "rct_nonsense"}),
        json!({"receipt": receipt(1), "reference": ""}),
        json!({}),
        json!(7),
    ];
    let told = office.told("ack", &json!({"items": items})).await;
    assert_eq!(told["items"][0], json!({"receipt": receipt(1), "delivery": delivery(), "result": "delivered"}));
    let again = json!({"receipt": receipt(3), "delivery": delivery(), "result": "delivered", "repeated": true});
    assert_eq!(told["items"][2], again);
    let errors = told["items"].as_array().unwrap().iter().map(|item| {
        (item["error"]["status"].as_u64().unwrap_or_default(), item["error"]["code"].as_str().unwrap_or_default())
    });
    let expected = [
        (0, ""),
        (409, "lease_lost"),
        (0, ""),
        (404, "unknown_receipt"),
        (404, "unknown_receipt"),
        (422, "invalid"),
        (422, "invalid"),
        (422, "invalid"),
    ];
    assert_eq!(errors.collect::<Vec<_>>(), expected);
    assert_eq!(told["items"][1]["error"]["state"], "pending");
    assert!(office.stall.last().contains("r-1") && !office.stall.last().contains("nonsense"));

    let nacks = json!({"items": [
        {"receipt": receipt(1), "delay": "10m", "reason": "busy"},
        {"receipt": receipt(1)},
        {"receipt": receipt(1), "terminal": true, "reason": "no_such_order"},
        {"receipt": receipt(3)},
    ]});
    let told = office.told("nack", &nacks).await;
    let retry = |reason: &str, after| {
        json!({"receipt": receipt(1), "delivery": delivery(), "result": "retry_at", "reason": reason,
               "due_at": NOW.plus(Duration::from_secs(after))})
    };
    assert_eq!(told["items"][0], retry("busy", 600));
    assert_eq!(told["items"][1], retry("nacked", 5));
    let dead = json!({"receipt": receipt(1), "delivery": delivery(), "result": "dead", "reason": "no_such_order"});
    assert_eq!(told["items"][2], dead);
    assert_eq!(told["items"][3]["error"]["code"], "already_answered");

    let told = office.told("extend", &json!({"items": [{"receipt": receipt(1), "lease": "5m"}]})).await;
    let until = NOW.plus(Duration::from_secs(300));
    let extended = json!({"receipt": receipt(1), "delivery": delivery(), "result": "extended", "lease_until": until});
    assert_eq!(told["items"][0], extended);
}

#[tokio::test]
async fn one_item_may_stand_by_itself() {
    let office = office().await;
    let told = office.told("ack", &json!({"receipt": receipt(1)})).await;
    assert_eq!(told, json!({"delivery": delivery(), "result": "delivered"}));
    let told = office.told("extend", &json!({"receipt": receipt(1)})).await;
    assert_eq!(told["lease_until"], json!(NOW.plus(Duration::from_secs(45))));
    for (verb, token, status, code) in [
        ("ack", 2, 409, "lease_lost"),
        ("nack", 3, 409, "already_answered"),
        ("extend", 3, 409, "already_answered"),
        ("nack", 4, 404, "unknown_receipt"),
    ] {
        let refused = office.refused(verb, &json!({"receipt": receipt(token)}).to_string()).await;
        assert_eq!((refused.0, refused.1.as_str()), (status, code), "{verb} {token}");
    }
}

#[tokio::test]
async fn what_cannot_be_meant_is_refused_with_its_field() {
    let office = office().await;
    let of = |more: &str| format!("{{\"receipt\": \"{}\"{more}}}", receipt(1));
    let long = "x".repeat(257);
    let too_many = json!({"items": vec![json!({}); 101]}).to_string();
    for (verb, body, status, code, field) in [
        ("consume", "{\"max\": 0}", 422, "invalid", "max"),
        ("consume", "{\"max\": 101}", 422, "invalid", "max"),
        ("consume", "{\"max\": -1}", 422, "invalid", "max"),
        ("consume", "{\"max\": \"5\"}", 422, "invalid", "max"),
        ("consume", "{\"lease\": \"999ms\"}", 422, "invalid", "lease"),
        ("consume", "{\"lease\": \"13h\"}", 422, "invalid", "lease"),
        ("consume", "{\"lease\": \"soon\"}", 422, "invalid", "lease"),
        ("consume", "{\"lease\": 30}", 422, "invalid", "lease"),
        ("consume", "{\"count\": 1}", 422, "unknown_field", "count"),
        ("consume", "[1]", 422, "invalid", ""),
        ("consume", "{", 400, "malformed", ""),
        ("ack", "{}", 422, "invalid", "receipt"),
        ("ack", "", 400, "malformed", ""),
        ("ack", "{\"items\": []}", 422, "invalid", "items"),
        ("ack", &too_many, 422, "invalid", "items"),
        ("ack", "{\"items\": 7}", 422, "invalid", "items"),
        ("ack", "{\"items\": [{}], \"receipt\": \"x\"}", 422, "unknown_field", "receipt"),
        ("ack", &of(", \"reference\": \"\""), 422, "invalid", "reference"),
        ("ack", &of(", \"reference\": \"a\\nb\""), 422, "invalid", "reference"),
        ("ack", &of(&format!(", \"reference\": \"{long}\"")), 422, "invalid", "reference"),
        ("ack", &of(", \"delay\": \"1s\""), 422, "unknown_field", "delay"),
        ("nack", &of(", \"delay\": \"8d\""), 422, "invalid", "delay"),
        ("nack", &of(", \"delay\": \"-1s\""), 422, "invalid", "delay"),
        ("nack", &of(", \"delay\": \"1s\", \"terminal\": true"), 422, "invalid", "delay"),
        ("nack", &of(", \"terminal\": 1"), 422, "invalid", "terminal"),
        ("nack", &of(", \"reason\": \"No Such\""), 422, "invalid", "reason"),
        ("nack", &of(", \"reason\": \"\""), 422, "invalid", "reason"),
        ("extend", &of(", \"lease\": \"0s\""), 422, "invalid", "lease"),
        ("extend", &of(", \"lease\": \"12h\", \"max\": 1"), 422, "unknown_field", "max"),
    ] {
        let refused = office.refused(verb, body).await;
        assert_eq!((refused.0, refused.1.as_str(), refused.2.as_str()), (status, code, field), "{verb} {body}");
    }
    assert!(office.stall.asked.lock().unwrap().is_empty(), "nothing of it was tried");
    let elsewhere = Receipt { delivery: delivery(), token: 1 }.text(EndpointKey(1));
    let refused = office.refused("ack", &json!({"receipt": elsewhere}).to_string()).await;
    assert_eq!((refused.0, refused.1.as_str()), (404, "unknown_receipt"), "another endpoint's");
}

#[tokio::test]
async fn where_nothing_can_be_fetched() {
    let office = office().await;
    for verb in ["consume", "ack", "nack", "extend"] {
        let body = json!({"receipt": receipt(1)}).to_string();
        let body = if verb == "consume" { "" } else { body.as_str() };
        let sent_to = office.post(&format!("/v1/tenants/acme/endpoints/billing/{verb}"), body).await;
        assert_eq!((sent_to.status, sent_to.code().as_str()), (409, "not_pull"), "{verb}");
        for path in ["acme/endpoints/nothing", "globex/endpoints/only-github", "acme/endpoints/former"] {
            let reply = office.post(&format!("/v1/tenants/{path}/{verb}"), body).await;
            assert_eq!((reply.status, reply.code().as_str()), (404, "not_found"), "{path} {verb}");
        }
        let read = office.get(&format!("{QUEUE}/{verb}")).await;
        assert_eq!((read.status, read.header("allow")), (405, Some("POST")), "{verb}");
        *office.stall.fault.lock().unwrap() = Some(LedgerError::Unavailable("the disk is full".into()));
        let busy = office.post(&format!("{QUEUE}/{verb}"), body).await;
        assert_eq!((busy.status, busy.code().as_str()), (503, "unavailable"), "{verb}");
        assert!(busy.header("retry-after").is_some());
        *office.stall.fault.lock().unwrap() = None;
    }
}
