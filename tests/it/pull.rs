//! Pull endpoints: consumers fetch over HTTP, and a process that dies takes nothing from them.

use super::process::TOKEN;
use super::{Gateway, github_source, until};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::Command;

/// Of three attempts, with quick retries; `more` are further lines.
fn orders(more: &str) -> String {
    format!(
        "[tenants.acme.endpoints.orders]\npull = true\n\
         retry = {{ max_attempts = 3, delays = [\"50ms\", \"100ms\"], jitter = \"none\" }}\n{more}\n"
    )
}

impl Gateway {
    async fn publish(&self, event: &Value) -> String {
        let answer = self.post("events", event).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()["event"].as_str().unwrap().to_owned()
    }

    async fn pull(&self, verb: &str, body: &Value) -> Value {
        let answer = self.post(&format!("endpoints/orders/{verb}"), body).await;
        assert_eq!(answer.status, 200, "{verb} {body}: {}", answer.text);
        answer.json()
    }

    /// The next delivery there is.
    async fn fetch(&self, lease: &str) -> Value {
        until("a delivery to fetch", || async {
            self.pull("consume", &json!({ "lease": lease })).await["items"].as_array_mut().unwrap().pop()
        })
        .await
    }

    async fn outcomes(&self, id: &Value) -> Vec<String> {
        let delivery = self.delivery(id.as_str().unwrap()).await;
        let attempts = delivery["attempts"].as_array().unwrap();
        attempts.iter().map(|attempt| attempt["outcome"].as_str().unwrap_or("open").to_owned()).collect()
    }
}

#[tokio::test]
async fn what_a_consumer_does_is_a_delivery_like_any_other() {
    let gateway = Gateway::start(&(github_source() + &orders("sources = [\"github\"]"))).await;
    let body = "{\"caf\u{e9}\": 1.50,\r\n \"n\":\"\u{0}\"}";
    let event = gateway.accepted(gateway.github("d-1", "push", body)).await;
    let listed = gateway.until_deliveries("state=pending", 1).await.remove(0);
    assert_eq!((listed["host"].as_str(), listed["attempt_count"].as_u64()), (Some("(pull)"), Some(0)));

    let first = gateway.fetch("30s").await;
    assert_eq!(BASE64_STANDARD.decode(first["body_base64"].as_str().unwrap()).unwrap(), body.as_bytes());
    assert_eq!((first["event"].as_str(), first["source"].as_str()), (Some(event.as_str()), Some("github")));
    assert_eq!((first["event_type"].as_str(), first["attempt"].as_u64()), (Some("push"), Some(1)));
    let headers: Vec<(String, String)> = serde_json::from_value(first["headers"].clone()).unwrap();
    let headers: BTreeMap<_, _> = headers.into_iter().collect();
    assert_eq!(headers["x-github-delivery"], "d-1");
    assert!(!headers.contains_key("x-hub-signature-256"), "signatures are not kept");
    let state = gateway.get("endpoints/orders").await;
    assert_eq!((state["pull"].as_bool(), state["in_flight"].as_u64()), (Some(true), Some(1)), "{state}");
    assert_eq!(gateway.pull("consume", &json!({"max": 100})).await["items"], json!([]), "it is held");

    let told = gateway.pull("nack", &json!({"receipt": first["receipt"], "delay": "1200ms", "reason": "busy"})).await;
    assert_eq!((told["result"].as_str(), told["reason"].as_str()), (Some("retry_at"), Some("busy")));
    let rest = gateway.pull("consume", &json!({"max": 100})).await;
    assert_eq!((&rest["items"], &rest["next_due_at"]), (&json!([]), &told["due_at"]));
    let second = gateway.fetch("30s").await;
    assert_eq!((&second["delivery"], second["attempt"].as_u64()), (&first["delivery"], Some(2)));
    assert_eq!(second["idempotency_key"], first["idempotency_key"]);
    assert_ne!(second["receipt"], first["receipt"]);

    let late = gateway.post("endpoints/orders/ack", &json!({"receipt": first["receipt"]})).await;
    assert_eq!((late.status, late.code().as_str()), (409, "already_answered"));
    let ack = json!({"receipt": second["receipt"], "reference": "order-17"});
    let told = gateway.pull("ack", &json!({"items": [ack]})).await["items"][0].clone();
    assert_eq!((told["result"].as_str(), told.get("repeated")), (Some("delivered"), None));
    assert_eq!(gateway.pull("ack", &ack).await["repeated"], true, "said twice, done once");
    let found = gateway.get("deliveries?q=order-17").await["items"][0].clone();
    assert_eq!((&found["id"], found["state"].as_str()), (&first["delivery"], Some("delivered")));
    let delivery = gateway.delivery(first["delivery"].as_str().unwrap()).await;
    let attempts = delivery["attempts"].as_array().unwrap();
    let words = |field: &str| attempts.iter().map(|a| a[field].as_str().unwrap_or_default()).collect::<Vec<_>>();
    assert_eq!(words("outcome"), ["nacked", "acked"]);
    assert_eq!(words("verdict"), ["retryable", "delivered"]);
    assert_eq!(words("decided_by"), ["consumer", "consumer"]);
    assert_eq!(gateway.metric("hookgate_attempts_total{result=\"acked\"}").await, Some(1.0));
    assert_eq!(gateway.metric("hookgate_deliveries_total{state=\"delivered\"}").await, Some(1.0));
    assert_eq!(gateway.metric("hookgate_in_flight").await, Some(0.0));
}

#[tokio::test]
async fn the_budget_leads_to_the_dlq_and_a_redrive_out_of_it() {
    let gateway = Gateway::start(&orders("")).await;
    gateway.publish(&json!({"type": "order.made", "key": "order-7", "payload": {"id": 7}})).await;
    let mut told = Value::Null;
    for attempt in 1..=3 {
        let item = gateway.fetch("30s").await;
        assert_eq!(item["attempt"], attempt);
        told = gateway.pull("nack", &json!({"receipt": item["receipt"]})).await;
    }
    assert_eq!((told["result"].as_str(), told["reason"].as_str()), (Some("dead"), Some("nacked")));
    let group = gateway.get("dlq/groups").await["items"][0].clone();
    assert_eq!((group["host"].as_str(), group["count"].as_u64()), (Some("(pull)"), Some(1)));
    assert_eq!((group["reason"].as_str(), &group["sample"]), (Some("nacked"), &told["delivery"]));

    let id = told["delivery"].as_str().unwrap();
    let redrive = json!({"note": "the worker is mended", "payload": {"id": 8}});
    assert_eq!(gateway.post(&format!("deliveries/{id}/redrive"), &redrive).await.status, 200);
    let item = gateway.fetch("30s").await;
    let numbers = ["attempt", "generation", "revision"].map(|field| item[field].as_u64().unwrap());
    assert_eq!((numbers, &item["delivery"]), ([4, 2, 2], &told["delivery"]));
    assert_eq!(item["idempotency_key"], "order-7");
    assert_eq!(BASE64_STANDARD.decode(item["body_base64"].as_str().unwrap()).unwrap(), b"{\"id\":8}");
    let gone = json!({"receipt": item["receipt"], "terminal": true, "reason": "no_such_order"});
    assert_eq!(gateway.pull("nack", &gone).await["result"], "dead");
    assert_eq!(gateway.delivery(id).await["reason"], "no_such_order");
}

#[tokio::test]
async fn a_lease_that_runs_out_is_another_attempt_and_more_time_can_be_had() {
    let gateway = Gateway::start(&orders("")).await;
    for id in [1, 2] {
        gateway.publish(&json!({"type": "order.made", "payload": {"id": id}})).await;
    }
    let (kept, lost) = (gateway.fetch("1s").await, gateway.fetch("1s").await);
    let told = gateway.pull("extend", &json!({"receipt": kept["receipt"], "lease": "1m"})).await;
    assert_eq!(told["result"], "extended");
    assert!(told["lease_until"].as_str() > kept["lease_until"].as_str());
    let again = gateway.fetch("30s").await;
    assert_eq!((&again["delivery"], again["attempt"].as_u64()), (&lost["delivery"], Some(2)));
    for verb in ["ack", "extend"] {
        let late = gateway.post(&format!("endpoints/orders/{verb}"), &json!({"receipt": lost["receipt"]})).await;
        assert_eq!((late.status, late.code().as_str()), (409, "lease_lost"), "{}", late.text);
    }
    for item in [&kept, &again] {
        assert_eq!(gateway.pull("ack", &json!({"receipt": item["receipt"]})).await["result"], "delivered");
    }
    assert_eq!(gateway.outcomes(&kept["delivery"]).await, ["acked"]);
    assert_eq!(gateway.outcomes(&lost["delivery"]).await, ["interrupted", "acked"]);
}

#[tokio::test]
async fn a_gateway_that_dies_or_stops_takes_nothing_from_its_consumers() {
    let mut gateway = Gateway::start(&orders("")).await;
    for id in 1..=3 {
        gateway.publish(&json!({"type": "order.made", "payload": {"id": id}})).await;
    }
    let (one, two) = (gateway.fetch("1h").await, gateway.fetch("1h").await);
    gateway.kill();
    gateway.boot().await;
    assert_eq!(gateway.pull("ack", &json!({"receipt": one["receipt"]})).await["result"], "delivered");
    assert!(gateway.stop().await.success());
    gateway.boot().await;
    let three = gateway.fetch("30s").await;
    assert!(![&one, &two].iter().any(|held| held["delivery"] == three["delivery"]), "what is held is held");
    assert_eq!(gateway.pull("ack", &json!({"receipt": two["receipt"]})).await["result"], "delivered");
    for item in [&one, &two] {
        assert_eq!(gateway.outcomes(&item["delivery"]).await, ["acked"], "nothing was interrupted");
    }
    // What was said before the end stands after it.
    gateway.kill();
    gateway.boot().await;
    assert_eq!(gateway.pull("ack", &json!({"receipt": one["receipt"]})).await["repeated"], true);
}

#[tokio::test]
async fn consumers_that_race_never_hold_the_same() {
    const COUNT: usize = 40;
    let gateway = Gateway::start(&orders("")).await;
    let events: Vec<_> = (0..COUNT).map(|id| json!({"type": "order.made", "payload": {"id": id}})).collect();
    assert_eq!(gateway.post("events", &json!({ "events": events })).await.status, 200);
    let consumer = async || {
        let mut had = Vec::new();
        loop {
            let items = gateway.pull("consume", &json!({"max": 3, "lease": "1m"})).await["items"].clone();
            let items = items.as_array().unwrap();
            if items.is_empty() {
                return had;
            }
            let acks: Vec<_> = items.iter().map(|item| json!({"receipt": item["receipt"]})).collect();
            let told = gateway.pull("ack", &json!({ "items": acks })).await;
            assert!(told["items"].as_array().unwrap().iter().all(|told| told["result"] == "delivered"), "{told}");
            had.extend(items.iter().map(|item| item["delivery"].as_str().unwrap().to_owned()));
        }
    };
    let (one, two) = tokio::join!(consumer(), consumer());
    let mut all = [one, two].concat();
    assert_eq!(all.len(), COUNT);
    all.sort();
    all.dedup();
    assert_eq!(all.len(), COUNT, "each once");
    assert_eq!(gateway.metric("hookgate_attempts_total{result=\"acked\"}").await, Some(40.0));
}

#[tokio::test]
async fn a_pause_keeps_what_comes_and_the_command_line_is_a_consumer_too() {
    let gateway = Gateway::start(&orders("")).await;
    assert_eq!(gateway.post("endpoints/orders/pause", &json!({"why": "works"})).await.status, 200);
    gateway.publish(&json!({"type": "order.made", "key": "order-7", "payload": {"id": 7}})).await;
    let shut = gateway.pull("consume", &json!({"max": 5})).await;
    assert_eq!(
        (&shut["items"], shut["status"].as_str(), shut["why"].as_str()),
        (&json!([]), Some("paused"), Some("works"))
    );
    let run = |args: &[&str]| {
        let done = gateway.command(args).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (done.status.code(), text(&done.stdout), text(&done.stderr))
    };
    let (exit, out, err) = run(&["endpoint", "consume", "orders"]);
    assert_eq!((exit, out.as_str()), (Some(0), ""));
    assert!(err.contains("paused"), "{err}");
    assert_eq!(gateway.post("endpoints/orders/resume", &json!({})).await.status, 200);
    let (exit, out, err) = run(&["endpoint", "consume", "orders", "--quiet"]);
    assert_eq!(exit, Some(0), "{err}");
    let receipt = out.trim();
    assert_eq!(run(&["endpoint", "extend", "orders", receipt, "--lease", "5m"]).0, Some(0));
    let (exit, out, _) = run(&["endpoint", "ack", "orders", receipt, "--reference", "r-1"]);
    assert!(exit == Some(0) && out.contains("delivered"), "{out}");
    let (exit, _, err) = run(&["endpoint", "nack", "orders", receipt]);
    assert!(exit == Some(6) && err.contains("already_answered"), "{err}");
    assert!(run(&["endpoint", "list"]).1.contains("(pull)"));
}

#[tokio::test]
async fn the_example_works_where_there_is_python() {
    if !Command::new("python3").arg("--version").output().is_ok_and(|version| version.status.success()) {
        return;
    }
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/pull-worker");
    let gateway = Gateway::start(&std::fs::read_to_string(folder.join("hookgate.toml")).unwrap()).await;
    gateway.publish(&json!({"type": "order.made", "key": "order-17", "payload": {"id": 17, "item": "tea"}})).await;
    gateway.publish(&json!({"type": "order.made", "payload": {"item": "no id"}})).await;
    gateway.publish(&json!({"type": "order.made", "body_base64": "/w==", "content_type": "text/plain"})).await;
    gateway.publish(&json!({"type": "lease.signed", "payload": {"id": 1}})).await;
    let mut worker = Command::new("python3");
    worker.arg(folder.join("worker.py")).arg("--drain").env("HOOKGATE_TOKEN", TOKEN).env("HOOKGATE_TENANT", "acme");
    worker.env("HOOKGATE_URL", format!("http://{}", gateway.admin)).env("no_proxy", "*");
    let worked = tokio::task::spawn_blocking(move || worker.output().unwrap()).await.unwrap();
    let (out, err) = (String::from_utf8_lossy(&worked.stdout), String::from_utf8_lossy(&worked.stderr));
    assert!(worked.status.success(), "{out}{err}");
    assert_eq!(out.lines().collect::<Vec<_>>(), ["order-17: order 17, attempt 1"], "{err}");
    let done = gateway.until_deliveries("state=delivered", 1).await.remove(0);
    assert_eq!((done["reference"].as_str(), done["key"].as_str()), (Some("order-17"), Some("order-17")));
    let mut dead: Vec<_> = gateway.until_deliveries("state=dead", 2).await;
    dead.sort_by_key(|row| row["reason"].as_str().unwrap_or_default().to_owned());
    assert_eq!(dead.iter().map(|row| row["reason"].as_str().unwrap()).collect::<Vec<_>>(), ["no_order_id", "not_json"]);
    assert!(dead.iter().all(|row| row["attempt_count"] == 1), "no retry is burned on them");
}
