//! The DLQ: listing consumes nothing, redrive continues the same delivery, once.

use super::{Gateway, Receiver, Reply, endpoint, github_source};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A receiver that refuses until it is mended.
async fn mendable(status: u16) -> (Receiver, Arc<AtomicBool>) {
    let mended = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&mended);
    let reply = move || Reply::status(if seen.load(Ordering::SeqCst) { 200 } else { status });
    (Receiver::start(move |_, _| reply()).await, mended)
}

#[tokio::test]
async fn redrive_is_the_same_delivery_with_a_fresh_budget() {
    let (receiver, mended) = mendable(400).await;
    let gateway = Gateway::start(&(github_source() + &endpoint("billing", &receiver.url("/"), ""))).await;
    gateway.accepted(gateway.github("1", "push", "{\"v\":1}")).await;
    let dead = gateway.until_deliveries("state=dead", 1).await.remove(0);
    let id = dead["id"].as_str().unwrap();
    let listed = gateway.get("dlq").await;
    assert_eq!(listed["items"][0]["id"], id);
    let groups = gateway.get("dlq/groups").await;
    let group = &groups["items"][0];
    assert_eq!(group["host"], "127.0.0.1");
    assert_eq!((group["status"].as_u64(), group["count"].as_u64()), (Some(400), Some(1)));
    assert_eq!((group["reason"].as_str(), group["sample"].as_str()), (Some("http_400"), Some(id)));

    mended.store(true, Ordering::SeqCst);
    let path = format!("deliveries/{id}/redrive");
    let redrive = async || {
        let asked = gateway.api("POST", &path).header("idempotency-key", "r-1");
        gateway.send(asked.json(&json!({"note": "partner mended it"}))).await.unwrap()
    };
    let first = redrive().await;
    assert!((200..300).contains(&first.status), "{}", first.text);
    gateway.until_deliveries("state=delivered", 1).await;
    let repeated = redrive().await;
    assert_eq!((repeated.status, &repeated.text), (first.status, &first.text), "the same answer");
    assert_eq!(repeated.headers["idempotency-replayed"], "true");
    let again = gateway.post(&path, &json!({})).await;
    assert_eq!(again.status, 409, "{}", again.text);

    let delivery = gateway.delivery(id).await;
    assert_eq!((delivery["generation"].as_u64(), delivery["revision"].as_u64()), (Some(2), Some(1)));
    let generations: Vec<_> =
        delivery["attempts"].as_array().unwrap().iter().map(|a| a["generation"].as_u64().unwrap()).collect();
    assert_eq!(generations, [1, 2]);
    let seen = receiver.journal();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].header("webhook-id"), seen[1].header("webhook-id"));
    assert_eq!(seen[0].header("idempotency-key"), seen[1].header("idempotency-key"));
    assert_eq!(gateway.metric("hookgate_dlq_depth").await, Some(0.0));
}

#[tokio::test]
async fn a_corrected_payload_is_a_revision() {
    let (receiver, mended) = mendable(422).await;
    let gateway = Gateway::start(&(github_source() + &endpoint("billing", &receiver.url("/"), ""))).await;
    let event = gateway.accepted(gateway.github("1", "push", "{\"amount\":\"ten\"}")).await;
    let dead = gateway.until_deliveries("state=dead", 1).await.remove(0);
    let id = dead["id"].as_str().unwrap();
    mended.store(true, Ordering::SeqCst);
    let silent = gateway.post(&format!("deliveries/{id}/redrive"), &json!({"payload": {"amount": 10}})).await;
    assert_eq!((silent.status, silent.json()["field"].as_str()), (422, Some("note")), "{}", silent.text);
    let corrected = json!({"note": "amount as a number", "payload": {"amount": 10}});
    let answer = gateway.post(&format!("deliveries/{id}/redrive"), &corrected).await;
    assert!((200..300).contains(&answer.status), "{}", answer.text);
    gateway.until_deliveries("state=delivered", 1).await;
    assert_eq!(receiver.journal()[1].body, "{\"amount\":10}");
    let delivery = gateway.delivery(id).await;
    assert_eq!(delivery["revision"], 2);
    let revision = &delivery["revisions"][0];
    assert_eq!((&revision["revision"], &revision["note"]), (&json!(2), &json!("amount as a number")));
    let body = async |path: String| gateway.send(gateway.api("GET", &path)).await.unwrap().text;
    for (path, kept) in [
        (format!("events/{event}/body"), "{\"amount\":\"ten\"}"),
        (format!("deliveries/{id}/body?revision=1"), "{\"amount\":\"ten\"}"),
        (format!("deliveries/{id}/body?revision=2"), "{\"amount\":10}"),
        (format!("deliveries/{id}/body"), "{\"amount\":10}"),
    ] {
        assert_eq!(body(path.clone()).await, kept, "{path}");
    }
    let none = gateway.send(gateway.api("GET", &format!("deliveries/{id}/body?revision=3"))).await.unwrap();
    assert_eq!(none.status, 404);
}

/// What may have arrived is held for a person, who finds out; found unsent, it is sent after all.
#[tokio::test]
async fn an_ambiguous_delivery_waits_for_a_person() {
    let mended = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&mended);
    let receiver =
        Receiver::start(move |_, _| if seen.load(Ordering::SeqCst) { Reply::status(204) } else { Reply::Hang }).await;
    let hold = "on_ambiguous = \"hold\"\ntimeout = \"1s\"";
    let gateway = Gateway::start(&endpoint("sms", &receiver.url("/"), hold)).await;
    for n in 1..=2 {
        gateway.post("events", &json!({"type": "reminder", "payload": n})).await;
    }
    let dead = gateway.until_deliveries("state=dead", 2).await;
    for row in &dead {
        assert_eq!(row["reason"], "ambiguous");
        let attempt = &gateway.delivery(row["id"].as_str().unwrap()).await["attempts"][0];
        assert_eq!((&attempt["ambiguous"], &attempt["disposition"]), (&json!(true), &json!("dead")), "{attempt}");
    }
    mended.store(true, Ordering::SeqCst);
    let [sent, unsent] = [&dead[0], &dead[1]].map(|row| row["id"].as_str().unwrap());
    let resolve = async |id: &str, how: &str| {
        let body = json!({"as": how, "note": "asked the provider"});
        gateway.post(&format!("deliveries/{id}/resolve"), &body).await.json()
    };
    for (id, how) in [(sent, "sent"), (unsent, "not_sent")] {
        let row = resolve(id, how).await;
        assert_eq!((&row["state"], &row["reason"]), (&json!("resolved"), &json!(how)), "{row}");
    }
    assert_eq!(gateway.metric("hookgate_dlq_depth").await, Some(0.0));
    let refused = gateway.post(&format!("deliveries/{sent}/redrive"), &json!({})).await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "not_dead"));
    let redriven = gateway.post(&format!("deliveries/{unsent}/redrive"), &json!({"note": "they never got it"})).await;
    assert_eq!(redriven.status, 200, "{}", redriven.text);
    gateway.until_deliveries("state=delivered", 1).await;
    let times = receiver.journal().iter().filter(|seen| seen.header("webhook-id") == unsent).count();
    assert_eq!((times, receiver.count()), (2, 3), "the one that was sent is not sent again");
}

#[tokio::test]
async fn what_is_not_dead_is_not_redriven_and_what_is_over_is_not_cancelled() {
    let receiver = Receiver::kind().await;
    let gateway = Gateway::start(&(github_source() + &endpoint("billing", &receiver.url("/"), ""))).await;
    gateway.accepted(gateway.github("1", "push", "{}")).await;
    let row = gateway.until_deliveries("state=delivered", 1).await.remove(0);
    let id = row["id"].as_str().unwrap();
    for verb in ["redrive", "cancel"] {
        let answer = gateway.post(&format!("deliveries/{id}/{verb}"), &json!({})).await;
        assert_eq!(answer.status, 409, "{verb}: {}", answer.text);
    }
    let unknown = "deliveries/dlv_0190a0b0c0d07000800000000000000f/redrive";
    assert_eq!(gateway.post(unknown, &json!({})).await.status, 404);
}

#[tokio::test]
async fn a_cancelled_delivery_is_never_sent() {
    let receiver = Receiver::kind().await;
    let gateway = Gateway::start(&endpoint("sms", &receiver.url("/"), "")).await;
    let later = json!({"type": "later", "payload": {}, "delay": "1s"});
    gateway.post("events", &later).await;
    let row = gateway.until_deliveries("state=pending", 1).await.remove(0);
    let id = row["id"].as_str().unwrap();
    assert_eq!(gateway.post(&format!("deliveries/{id}/cancel"), &json!({})).await.status, 200);
    assert_eq!(gateway.delivery(id).await["state"], "cancelled");
    // Something that was due after it has come: the cancelled one has had its time.
    gateway.post("events", &json!({"type": "marker", "payload": {}, "delay": "1200ms"})).await;
    let seen = receiver.until_count(1).await;
    assert_eq!(seen.len(), 1);
    assert_ne!(seen[0].header("webhook-id"), id);
}
