//! The admin API where all is well: every route, with its golden answer.

use crate::office::{CANARY, NOW, assert_golden, office};
use hookgate::admin::Serving;
use hookgate::delivery::DeliveryState;
use hookgate::ledger::{Adoptions as _, BodyFacts, EndpointKey, LedgerError, Rejected, SourceKey, TenantKey};
use hookgate::secret::Secret;
use serde_json::Value;

const ACME: &str = "/v1/tenants/acme";

#[tokio::test]
async fn configured_resources() {
    let office = office().await;
    assert_golden("tenants", &office.get("/v1/tenants").await);
    let posed = r#"{"headers":[["X-Hub-Signature-256","other"]],"body":"{}"}"#;
    assert_golden("source-explained", &office.post("/v1/tenants/acme/sources/github/explain", posed).await);
    assert_golden("system", &office.get("/v1/system").await);
    assert_golden("tenant", &office.get(ACME).await);
    assert_golden("sources", &office.get(&format!("{ACME}/sources")).await);
    assert_golden("source", &office.get(&format!("{ACME}/sources/github")).await);
    assert_golden("endpoints", &office.get(&format!("{ACME}/endpoints")).await);
    assert_golden("endpoint", &office.get(&format!("{ACME}/endpoints/billing")).await);
}

#[tokio::test]
async fn lists_by_name_are_paged() {
    let office = office().await;
    let first = office.get("/v1/tenants?limit=1").await.json();
    assert_eq!((&first["items"][0]["name"], &first["next"]), (&"acme".into(), &"acme".into()));
    let second = office.get("/v1/tenants?limit=1&cursor=acme").await.json();
    assert_eq!((&second["items"][0]["name"], &second["next"]), (&"globex".into(), &Value::Null));
    let endpoints = office.get(&format!("{ACME}/endpoints?limit=2&cursor=billing")).await.json();
    assert_eq!(endpoints["items"][0]["name"], "former");
    assert_eq!(endpoints["items"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn endpoint_verbs() {
    let office = office().await;
    let billing = format!("{ACME}/endpoints/billing");
    let until = "{\"until\":\"2026-01-02T00:00:00Z\",\"why\":\"their maintenance\"}";
    assert_golden("endpoint-paused", &office.post(&format!("{billing}/pause"), until).await);
    assert_eq!(office.post(&format!("{billing}/resume"), "").await.json()["status"], "enabled");
    let paused = office.post(&format!("{billing}/pause"), "").await.json();
    assert_eq!(
        (&paused["status"], &paused["why"], &paused["until"]),
        (&"paused".into(), &"operator".into(), &Value::Null)
    );
    let disabled = office.post(&format!("{billing}/disable"), "{\"why\":\"gone\"}").await.json();
    assert_eq!((&disabled["status"], &disabled["why"]), (&"disabled".into(), &"gone".into()));
    assert_golden("endpoint-enabled", &office.post(&format!("{billing}/enable"), "{}").await);
}

#[tokio::test]
async fn an_adopted_secret_is_seen_and_forgotten_and_never_shown() {
    let office = office().await;
    let (partner, github) = (format!("{ACME}/sources/partner"), format!("{ACME}/sources/github"));
    let stands = async |path: &str| {
        let source = office.get(path).await.json();
        (source["adoption"].clone(), source["adopted_at"].clone())
    };
    assert_eq!(stands(&partner).await, ("awaited".into(), Value::Null));
    assert_eq!(stands(&github).await, (Value::Null, Value::Null));
    let adopt = async |source| {
        let secret = Secret::new(CANARY);
        office.ledger.adopt(TenantKey(1), SourceKey(source), secret, NOW).await.unwrap();
    };
    adopt(2).await;
    assert_eq!(stands(&partner).await, ("held".into(), "2026-01-01T00:00:00.123Z".into()));
    assert_golden("source-adopted", &office.get(&partner).await);
    assert_eq!(office.get(&format!("{ACME}/sources")).await.json()["items"][1]["adoption"], "held");
    assert_golden("source-forgotten", &office.post(&format!("{partner}/forget-secret"), "").await);
    assert_eq!(stands(&partner).await, ("awaited".into(), Value::Null));
    // Again changes nothing; and what the file has overtaken may be forgotten, too.
    assert_eq!(office.post(&format!("{partner}/forget-secret"), "{}").await.status, 200);
    adopt(1).await;
    assert_eq!(stands(&github).await.0, "unused");
    assert_eq!(office.post(&format!("{github}/forget-secret"), "").await.json()["adoption"], Value::Null);
}

#[tokio::test]
async fn publishing_one() {
    let office = office().await;
    let events = format!("{ACME}/events");
    // Nothing in the payload is reordered, rounded or spaced otherwise.
    let payload = "{\"b\":1.0,  \"a\":12345678901234567890.10, \"a\":\"\\u00e9\",\n\"z\":[1e400]}";
    let body = format!("{{\"type\":\"invoice.paid\",\"key\":\"k\",\"payload\": {payload} }}");
    assert_golden("published", &office.post(&events, &body).await);
    assert_golden("published-again", &office.post(&events, &body).await);
    assert_golden("key-reused", &office.post(&events, "{\"type\":\"push\",\"key\":\"k\",\"payload\":null}").await);
    let base64 = "{\"type\":\"other\",\"body_base64\":\"AP8=\",\"content_type\":\"image/x\",\"delay\":\"90s\",\
                  \"expires_at\":\"2026-01-01T00:10:00Z\",\"deadline\":\"2026-01-01T00:20:00+00:00\"}";
    assert_eq!(office.post(&events, base64).await.status, 200);
    let later = "{\"type\":\"push\",\"payload\":1,\"deliver_at\":\"2026-01-08T00:00:00Z\"}";
    assert_eq!(office.post(&events, later).await.status, 200);
    let just_now = "{\"type\":\"push\",\"payload\":1,\"deliver_at\":\"2025-12-31T23:59:30Z\"}";
    assert_eq!(office.post(&events, just_now).await.status, 200);
    let stored = office.ledger.stored.lock().unwrap();
    let [json, bytes, later, just_now] = stored.as_slice() else { panic!("{}", stored.len()) };
    assert_eq!(json.event.body, payload);
    assert_eq!(
        (json.event.event_type.as_str(), json.event.content_type.as_str()),
        ("invoice.paid", "application/json")
    );
    assert_eq!((json.source, json.event.key.as_deref()), (None, Some("k")));
    // The one that takes published events of this type, at once.
    assert_eq!(json.deliveries, [(EndpointKey(1), true)]);
    assert_eq!(bytes.event.body.as_ref(), [0, 255]);
    assert_eq!(bytes.event.content_type, "image/x");
    assert_eq!(bytes.event.deliver_at.unwrap().since(NOW).as_secs(), 90);
    assert!(bytes.event.expires_at.is_some() && bytes.event.deadline.is_some());
    assert!(bytes.deliveries.is_empty());
    assert_eq!(later.deliveries, [(EndpointKey(1), false)], "what waits takes no slot");
    assert_eq!(
        (just_now.event.deliver_at, just_now.deliveries.as_slice()),
        (None, [(EndpointKey(1), true)].as_slice())
    );
}

#[tokio::test]
async fn an_event_that_goes_nowhere_is_told_why() {
    let office = office().await;
    let events = format!("{ACME}/events");
    let other = "{\"type\":\"other\",\"payload\":1}";
    let published = office.post(&events, other).await;
    assert_golden("published-nowhere", &published);
    let batch = office.post(&events, &format!("{{\"events\":[{other}]}}")).await.json();
    assert_eq!(batch["items"][0]["hint"], published.json()["hint"]);
    let event = office.get(&format!("{events}/{}", published.json()["event"].as_str().unwrap())).await.json();
    assert_eq!(event["hint"], published.json()["hint"]);
    let taken = office.post(&events, "{\"type\":\"push\",\"payload\":1}").await.json();
    assert_eq!(taken.get("hint"), None);
}

#[tokio::test]
async fn publishing_a_batch() {
    let office = office().await;
    let events = format!("{ACME}/events");
    let batch = "{\"events\":[{\"type\":\"push\",\"key\":\"a\",\"payload\":{\"n\":1}},{\"type\":\"\",\"payload\":1},\
                 {\"type\":\"push\",\"key\":\"a\",\"payload\":{\"n\":1}},{\"typ\":\"push\"},\
                 {\"type\":\"push\",\"payload\":2,\"coalesce_key\":\"x\"}]}";
    assert_golden("batch", &office.post(&events, batch).await);
    assert_eq!(office.ledger.stored.lock().unwrap().len(), 1);
    let item = "{\"type\":\"push\",\"payload\":1}";
    let thousand = format!("{{\"events\":[{}]}}", vec![item; 1_000].join(","));
    let reply = office.post(&events, &thousand).await;
    assert_eq!((reply.status, reply.json()["items"].as_array().unwrap().len()), (200, 1_000));
    let stored = office.ledger.stored.lock().unwrap();
    let answered: Vec<_> = reply.json()["items"].as_array().unwrap().iter().map(|i| i["event"].clone()).collect();
    let in_order: Vec<_> = stored[1..].iter().map(|stored| stored.id.to_string().into()).collect::<Vec<Value>>();
    assert!(answered == in_order, "not accepted in the order given");
}

#[tokio::test]
async fn reading_events() {
    let office = office().await;
    let published = office.post(&format!("{ACME}/events"), "{\"type\":\"push\",\"payload\":{\"x\": \"<b>\"}}").await;
    let id = published.json()["event"].as_str().unwrap().to_owned();
    assert_golden("events", &office.get(&format!("{ACME}/events")).await);
    assert_golden("event", &office.get(&format!("{ACME}/events/{id}")).await);
    let body = office.get(&format!("{ACME}/events/{id}/body")).await;
    assert_eq!((body.status, body.body.as_slice()), (200, b"{\"x\": \"<b>\"}".as_slice()));
    for (header, value) in [
        ("content-type", "application/json"),
        ("content-disposition", "attachment"),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "default-src 'none'; sandbox"),
    ] {
        assert_eq!(body.header(header), Some(value));
    }
    *office.ledger.erased.lock().unwrap() = true;
    let erased = office.get(&format!("{ACME}/events/{id}/body")).await;
    assert_eq!((erased.status, erased.code().as_str()), (410, "payload_erased"));
    let query = "source=github&type=push&key=a%26b&since=2026-01-01T00:00:00%2B01:00&until=2026-01-01T00:00:00.5Z\
                 &limit=200&cursor=c1";
    assert_eq!(office.get(&format!("{ACME}/events?{query}")).await.status, 200);
    let expected = "EventFilter { source: Some(github), event_type: Some(\"push\"), key: Some(\"a&b\"), \
                    since: Some(2025-12-31T23:00:00.000Z), until: Some(2026-01-01T00:00:00.500Z) } \
                    PageRequest { limit: 200, cursor: Some(Cursor(\"c1\")) }";
    assert_eq!(office.asked(), expected);
}

#[tokio::test]
async fn reading_rejections() {
    let office = office().await;
    let refused = |tenant, body| Rejected {
        tenant: TenantKey(tenant),
        source: SourceKey(1),
        at: NOW,
        reason: "timestamp_too_old",
        step: Some("timestamp"),
        detail: "signature item t is 400 s old, at most 300 s are let in".to_owned(),
        skew_seconds: Some(400),
        peer: "192.0.2.7".parse().unwrap(),
        body,
    };
    let body = BodyFacts { bytes: 1_024, digest: [0x5f; 8] };
    *office.ledger.rejected.lock().unwrap() = vec![refused(1, Some(body)), refused(2, None)];
    assert_golden("rejections", &office.get(&format!("{ACME}/rejections")).await);
    let theirs = office.get("/v1/tenants/globex/rejections").await.json();
    assert_eq!((theirs["items"].as_array().unwrap().len(), &theirs["items"][0]["body_bytes"]), (1, &Value::Null));
    let query =
        "source=github&reason=malformed&since=2026-01-01T00:00:00Z&until=2026-01-02T00:00:00Z&limit=7&cursor=c1";
    assert_eq!(office.get(&format!("{ACME}/rejections?{query}")).await.status, 200);
    let expected = "RejectionFilter { source: Some(github), reason: Some(\"malformed\"), \
                    since: Some(2026-01-01T00:00:00.000Z), until: Some(2026-01-02T00:00:00.000Z) } \
                    PageRequest { limit: 7, cursor: Some(Cursor(\"c1\")) }";
    assert_eq!(office.asked(), expected);
}

#[tokio::test]
async fn reading_deliveries() {
    let office = office().await;
    assert_golden("deliveries", &office.get(&format!("{ACME}/deliveries")).await);
    assert!(office.asked().ends_with("PageRequest { limit: 50, cursor: None }"));
    assert_golden("delivery", &office.get(&format!("{ACME}/deliveries/{}", office.deliveries[0])).await);
    assert_golden("dlq", &office.get(&format!("{ACME}/dlq")).await);
    assert_golden("dlq-groups", &office.get(&format!("{ACME}/dlq/groups")).await);
    let event = "evt_019b7670607b70018000000000000000";
    let query = format!(
        "state=dead&endpoint=billing&source=github&type=push&key=k&event={event}&reason=http_500&status=500\
         &since=2026-01-01T00:00:00+01:00&until=&q=order-7"
    );
    assert_eq!(office.get(&format!("{ACME}/deliveries?{query}")).await.status, 200);
    let filters = format!(
        "state: Some(Dead), endpoint: Some(billing), source: Some(github), event_type: Some(\"push\"), \
         key: Some(\"k\"), event: Some({event}), reason: Some(\"http_500\"), status: Some(500), \
         since: Some(2025-12-31T23:00:00.000Z), until: None, q: Some(\"order-7\")"
    );
    assert!(office.asked().contains(&filters), "{}", office.asked());
}

#[tokio::test]
async fn delivery_verbs() {
    let office = office().await;
    let [dead, pending, _, _] = office.deliveries;
    let body = "{\"note\":\"fixed upstream\",\"payload\":{\"b\" : 1,\"a\":2.0}}";
    assert_golden("redriven", &office.post(&format!("{ACME}/deliveries/{dead}/redrive"), body).await);
    let asked = office.ledger.redriven_with.lock().unwrap().clone().unwrap();
    assert_eq!(asked.request, None);
    assert_eq!(asked.payload.as_deref(), Some(b"{\"b\" : 1,\"a\":2.0}".as_slice()));
    assert_golden("cancelled", &office.post(&format!("{ACME}/deliveries/{pending}/cancel"), "").await);

    let office = crate::office::office().await;
    assert_eq!(office.post(&format!("{ACME}/deliveries/{dead}/redrive"), "").await.json()["state"], "pending");
    assert_eq!(office.ledger.redriven_with.lock().unwrap().clone().unwrap().payload, None);

    let office = crate::office::office().await;
    let once = office.ask("POST", &format!("{ACME}/deliveries/{dead}/redrive"), "idempotency-key: r-1\r\n", "").await;
    assert_eq!(once.json()["state"], "pending");
    let asked = office.ledger.redriven_with.lock().unwrap().clone().unwrap();
    assert_eq!(asked.request, hookgate::ledger::RequestId::new("r-1"));

    let office = crate::office::office().await;
    let resolve = "{\"as\":\"not_sent\",\"note\":\"told by phone\"}";
    assert_golden("resolved", &office.post(&format!("{ACME}/deliveries/{dead}/resolve"), resolve).await);
    let rows = office.ledger.rows.lock().unwrap();
    assert_eq!(rows[0].1.delivery.state, DeliveryState::Resolved);
}

#[tokio::test]
async fn health_readiness_and_metrics_need_no_token() {
    let office = office().await;
    let get = async |path| office.ask_bare("GET", path, "", "").await;
    assert_golden("healthz", &get("/healthz").await);
    assert_golden("readyz", &get("/readyz").await);
    *office.ledger.fault.lock().unwrap() = Some(LedgerError::Stopped("fsync: EIO".to_owned()));
    let unready = get("/readyz").await;
    assert_eq!((unready.status, unready.code().as_str()), (503, "unavailable"));
    assert!(!String::from_utf8_lossy(&unready.body).contains("EIO"));
    assert_eq!(get("/healthz").await.status, 200);
    *office.ledger.fault.lock().unwrap() = None;
    for (serving, code) in [(Serving::Starting, "starting"), (Serving::Draining, "draining")] {
        office.serving.send_replace(serving);
        let unready = get("/readyz").await;
        assert_eq!((unready.status, unready.code().as_str()), (503, code));
    }
    let metrics = get("/metrics").await;
    assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = String::from_utf8(metrics.body).unwrap();
    assert!(text.contains("\nhookgate_pending 17\n") && text.contains("\nhookgate_dlq_depth 2\n"));
    assert!(text.contains("# TYPE hookgate_ingress_requests_total counter"));
}
