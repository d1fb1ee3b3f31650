//! SCENARIOS 2, nightly payment reconciliation: a poison message must not loop until the deadline, on
//! `examples/payment-reconciliation`.

use super::examples::{crash_loop, example, from_now};
use super::{Gateway, Receiver, Reply};
use serde_json::{Value, json};
use std::time::Duration;

const JOB: &str = "m-17:adyen:2026-01-31";
const POLICY: &str = "base = \"1m\", factor = 2.0, cap = \"30m\", jitter = \"equal\"";
const QUICK: (&str, &str) = (POLICY, "base = \"400ms\", factor = 2.0, cap = \"2s\", jitter = \"none\"");

pub async fn nightly(worker: &Receiver, edits: &[(&str, &str)]) -> Gateway {
    let address = worker.addr.to_string();
    let places = [("127.0.0.1/32:9001", "127.0.0.1/32"), ("127.0.0.1:9001", address.as_str())];
    let mut gateway = example("payment-reconciliation", &[&places[..], edits].concat());
    gateway.boot().await;
    gateway
}

pub fn job(key: &str) -> Value {
    json!({"type": "reconciliation.due", "key": key, "deadline": "2199-02-01T06:00:00Z",
           "payload": {"merchant": key, "total": "ten"}})
}

pub async fn job_row(gateway: &Gateway, key: &str) -> Value {
    let rows = gateway.get(&format!("deliveries?key={key}")).await["items"].as_array().unwrap().clone();
    assert_eq!(rows.len(), 1, "one job, one delivery");
    gateway.delivery(rows[0]["id"].as_str().unwrap()).await
}

/// Four attempts, over a kill and a republication; then inspection, a correction that fails for good, and one that is
/// right.
#[tokio::test]
async fn a_job_keeps_its_history_over_republication_kill_and_redrive() {
    let worker = Receiver::start(|seen, before| match (before, seen.body.as_ref()) {
        (0..4, _) => Reply::body(503, "provider is down"),
        (_, b"{\"total\":10}") => Reply::status(204),
        _ => Reply::body(422, "total is no number"),
    })
    .await;
    let mut gateway = nightly(&worker, &[QUICK]).await;
    let first = gateway.post("events", &job(JOB)).await.json();
    gateway.until_deliveries("state=pending&status=503", 1).await;
    gateway.kill();
    gateway.boot().await;
    let again = gateway.post("events", &job(JOB)).await.json();
    assert_eq!((&again["duplicate"], &again["event"]), (&json!(true), &first["event"]));
    let kept = job_row(&gateway, JOB).await;
    assert!(kept["attempt_count"].as_u64().unwrap() >= 1 && kept["attempts"][0]["response_body"] == "provider is down");
    gateway.until_deliveries("state=dead", 1).await;

    let dead = job_row(&gateway, JOB).await;
    let id = dead["id"].as_str().unwrap();
    assert_eq!((&dead["key"], &dead["deadline"]), (&json!(JOB), &json!("2199-02-01T06:00:00.000Z")));
    for (n, attempt) in dead["attempts"].as_array().unwrap().iter().enumerate() {
        let expected = [
            ("number", json!(n + 1)),
            ("generation", json!(1)),
            ("revision", json!(1)),
            ("status", json!(503)),
            ("response_body", json!("provider is down")),
            ("reason", json!("http_503")),
            ("disposition", json!(if n < 3 { "retry_at" } else { "dead" })),
        ];
        for (field, value) in expected {
            assert_eq!(attempt[field], value, "{field} of {attempt}");
        }
    }
    assert_eq!((dead["attempts"].as_array().unwrap().len(), worker.count()), (4, 4));

    // Listing it consumes nothing, and what is counted are the rows.
    for _ in 0..2 {
        let listed = gateway.get("dlq").await["items"].as_array().unwrap().len();
        let (metric, counter) = (gateway.metric("hookgate_dlq_depth").await, gateway.get("endpoints/worker").await);
        assert_eq!((listed, metric, &counter["dead"]), (1, Some(1.0), &json!(1)));
    }

    let path = format!("deliveries/{id}/redrive");
    let silent = gateway.post(&path, &json!({"payload": {"total": "10"}})).await;
    assert_eq!((silent.status, silent.json()["field"].as_str()), (422, Some("note")));
    for (total, note, state) in [(json!("10"), "first try", "dead"), (json!(10), "as a number", "delivered")] {
        let redriven = gateway.post(&path, &json!({"payload": {"total": total}, "note": note})).await;
        assert_eq!(redriven.status, 200, "{}", redriven.text);
        gateway.until_deliveries(&format!("state={state}"), 1).await;
    }
    let done = job_row(&gateway, JOB).await;
    let facts = |name: &str| -> Vec<u64> {
        done["attempts"].as_array().unwrap().iter().map(|a| a[name].as_u64().unwrap()).collect()
    };
    assert_eq!(facts("number"), [1, 2, 3, 4, 5, 6], "the old counter and history stay");
    assert_eq!(facts("generation"), [1, 1, 1, 1, 2, 3]);
    assert_eq!(facts("revision"), [1, 1, 1, 1, 2, 3]);
    assert_eq!(done["attempts"][4]["reason"], "http_422", "a permanent error ends a new budget at once");
    let notes: Vec<_> = done["revisions"].as_array().unwrap().iter().map(|r| r["note"].clone()).collect();
    assert_eq!(notes, ["first try", "as a number"]);
    for (revision, body) in
        [(1, format!("{{\"merchant\":\"{JOB}\",\"total\":\"ten\"}}")), (2, "{\"total\":\"10\"}".into())]
    {
        let kept =
            gateway.send(gateway.api("GET", &format!("deliveries/{id}/body?revision={revision}"))).await.unwrap();
        assert_eq!((kept.status, kept.text), (200, body));
    }
    assert!(worker.journal().iter().all(|seen| seen.header("idempotency-key") == JOB));
}

#[tokio::test]
async fn each_kind_of_error_has_its_end() {
    let worker = Receiver::start(|seen, _| match seen.header("idempotency-key") {
        "invalid" => Reply::status(422),
        "unknown" => Reply::status(599),
        _ => Reply::status(503),
    })
    .await;
    let quick = (POLICY, "base = \"30ms\", factor = 2.0, cap = \"2s\", jitter = \"none\"");
    let gateway = nightly(&worker, &[quick]).await;
    for key in ["invalid", "unknown", "transient"] {
        gateway.post("events", &job(key)).await;
    }
    gateway.until_deliveries("state=dead", 3).await;
    for (key, attempts, reason) in
        [("invalid", 1, "http_422"), ("unknown", 4, "http_599"), ("transient", 4, "http_503")]
    {
        let dead = job_row(&gateway, key).await;
        assert_eq!((&dead["attempt_count"], &dead["reason"]), (&json!(attempts), &json!(reason)), "{key}");
    }
}

/// With the example's own policy: exponential, half of it fixed and half by chance.
#[tokio::test]
async fn the_backoff_is_the_examples() {
    let worker = Receiver::sequence(&[503]).await;
    let gateway = nightly(&worker, &[]).await;
    gateway.post("events", &job(JOB)).await;
    gateway.until_deliveries("state=pending&status=503", 1).await;
    let wait = super::examples::wait_after(&job_row(&gateway, JOB).await["attempts"][0]);
    assert!((Duration::from_millis(29_900)..=Duration::from_millis(60_100)).contains(&wait), "{wait:?}");
}

/// A worker that dies between its work and its answer is asked again under the key by which it knows its own record.
#[tokio::test]
async fn a_worker_that_dies_before_it_answers_is_asked_under_the_same_key() {
    let worker = Receiver::start(|_, before| if before == 0 { Reply::Hang } else { Reply::status(204) }).await;
    let mut gateway = nightly(&worker, &[QUICK, ("timeout = \"30s\"", "timeout = \"1s\"")]).await;
    gateway.post("events", &job(JOB)).await;
    worker.until_count(1).await;
    gateway.kill();
    gateway.boot().await;
    gateway.until_deliveries("state=delivered", 1).await;
    let done = job_row(&gateway, JOB).await;
    assert_eq!((&done["attempts"][0]["ambiguous"], &done["attempt_count"]), (&json!(true), &json!(2)), "{done}");
    let keys: Vec<_> = worker.journal().iter().map(|seen| seen.header("idempotency-key").to_owned()).collect();
    assert_eq!(keys, [JOB, JOB]);
}

#[tokio::test]
async fn a_job_that_kills_the_process_reaches_the_dlq() {
    let worker = Receiver::start(|_, _| Reply::Hang).await;
    let mut gateway = nightly(&worker, &[QUICK]).await;
    gateway.post("events", &job(JOB)).await;
    let dead = crash_loop(&mut gateway, &worker).await;
    assert_eq!((&dead["key"], &dead["reason"]), (&json!(JOB), &json!("crash_loop")));
}

#[tokio::test]
async fn a_deadline_that_is_over_is_refused() {
    let gateway = nightly(&Receiver::kind().await, &[]).await;
    let mut late = job(JOB);
    late["deadline"] = json!(from_now(Duration::ZERO));
    let refused = gateway.post("events", &late).await;
    assert_eq!((refused.status, refused.json()["field"].as_str()), (422, Some("deadline")), "{}", refused.text);
}
