//! SCENARIOS 5, lease events: the boring default, on `examples/lease-events`.

use super::examples::{Ending, example, from_now};
use super::{Gateway, Receiver, Reply};
use serde_json::{Value, json};
use std::time::Duration;

const LADDER: &str = "delays = [\"30s\", \"60s\", \"120s\", \"240s\"]";
const QUICK: &str = "delays = [\"300ms\", \"300ms\", \"300ms\", \"300ms\"]";

pub async fn leases(manager: &Receiver, archive: &Receiver) -> Gateway {
    let mut gateway = example(
        "lease-events",
        &[
            ("127.0.0.1/32:9005-9006", "127.0.0.1/32"),
            ("127.0.0.1:9005", &manager.addr.to_string()),
            ("127.0.0.1:9006", &archive.addr.to_string()),
            ("timeout = \"10s\"", "timeout = \"700ms\""),
            (LADDER, QUICK),
        ],
    );
    gateway.boot().await;
    gateway
}

fn signed(lease: u32) -> Value {
    json!({"type": "lease.signed", "key": format!("lease.signed:{lease}"), "payload": {"lease": lease}})
}

pub async fn of_endpoint(gateway: &Gateway, endpoint: &str, key: &str) -> Value {
    let rows = gateway.get(&format!("deliveries?endpoint={endpoint}&key={key}")).await;
    assert_eq!(rows["items"].as_array().unwrap().len(), 1, "one delivery for each endpoint: {rows}");
    gateway.delivery(rows["items"][0]["id"].as_str().unwrap()).await
}

#[tokio::test]
async fn two_copies_are_one_delivery_that_survives_two_429s_and_a_kill() {
    let (manager, archive) = (Receiver::sequence(&[429, 429, 204]).await, Receiver::kind().await);
    let mut gateway = leases(&manager, &archive).await;
    let first = gateway.post("events", &signed(1042)).await.json();
    let second = gateway.post("events", &signed(1042)).await.json();
    assert_eq!((&first["duplicate"], &second["duplicate"]), (&json!(false), &json!(true)));
    assert_eq!(first["event"], second["event"]);
    assert_eq!(gateway.metric("hookgate_duplicates_suppressed_total").await, Some(1.0));
    // In the middle of the first wait.
    gateway.until_deliveries("endpoint=archive&state=delivered", 1).await;
    gateway.until_deliveries("endpoint=manager&state=pending", 1).await;
    gateway.kill();
    gateway.boot().await;
    gateway.until_deliveries("state=delivered", 2).await;
    let third = gateway.post("events", &signed(1042)).await.json();
    assert_eq!((&third["duplicate"], &third["event"]), (&json!(true), &first["event"]), "over the kill");

    let delivery = of_endpoint(&gateway, "manager", "lease.signed:1042").await;
    for (field, value) in [
        ("event", &first["event"]),
        ("key", &json!("lease.signed:1042")),
        ("idempotency_key", &json!("lease.signed:1042")),
        ("state", &json!("delivered")),
        ("last_status", &json!(204)),
        ("host", &json!("127.0.0.1")),
    ] {
        assert_eq!(&delivery[field], value, "{field}");
    }
    assert!(!delivery.to_string().contains("\"lease\":1042"), "no payload is opened: {delivery}");
    assert_eq!(answered(&delivery), [429, 429, 204], "{delivery}");
    assert_eq!(manager.count(), 3);
    let ids = |name: &str| manager.journal().iter().map(|seen| seen.header(name).to_owned()).collect::<Vec<_>>();
    assert!(ids("webhook-id").iter().all(|id| *id == delivery["id"].as_str().unwrap()));
    assert!(ids("idempotency-key").iter().all(|key| key == "lease.signed:1042"));
    assert_eq!(archive.count(), 1, "a delivery of its own, with one attempt");
    let archived = of_endpoint(&gateway, "archive", "lease.signed:1042").await;
    assert_eq!((&archived["attempt_count"], &archived["event"]), (&json!(1), &first["event"]));
}

#[tokio::test]
async fn what_is_too_long_or_too_large_is_refused() {
    let (manager, archive) = (Receiver::kind().await, Receiver::kind().await);
    let gateway = leases(&manager, &archive).await;
    let week = Duration::from_secs(604_800);
    let with = |name: &str, value: Value| json!({"type": "lease.ended", "payload": {}, name: value});
    for (body, field) in [
        (with("delay", json!("604801s")), "delay"),
        (with("deliver_at", json!(from_now(week + Duration::from_secs(60)))), "deliver_at"),
        (with("deliver_at", json!(from_now(Duration::ZERO).replace("20", "19"))), "deliver_at"),
    ] {
        let refused = gateway.post("events", &body).await;
        assert_eq!((refused.status, refused.json()["field"].as_str()), (422, Some(field)), "{}", refused.text);
    }
    for longest in [with("delay", json!("604800s")), with("deliver_at", json!(from_now(week)))] {
        assert_eq!(gateway.post("events", &longest).await.status, 200);
    }
    let of_size = |bytes: usize| json!({"type": "lease.scan", "payload": "x".repeat(bytes - 2)});
    assert_eq!(gateway.post("events", &of_size(256 << 10)).await.status, 200);
    let large = gateway.post("events", &of_size((256 << 10) + 1)).await;
    assert_eq!((large.status, large.code().as_str()), (413, "body_too_large"));
    assert_eq!(large.json()["limit"], 262_144);
    // Of a batch, the others stand.
    let batch = json!({"events": [of_size(10), of_size((256 << 10) + 1), with("delay", json!("8d")), of_size(11)]});
    let items = gateway.post("events", &batch).await.json()["items"].as_array().unwrap().clone();
    let codes: Vec<_> = items.iter().map(|item| item["error"]["code"].as_str().unwrap_or("taken")).collect();
    assert_eq!(codes, ["taken", "body_too_large", "invalid", "taken"]);
}

/// A wait that a receiver asks for is cut at a day, and the cutting is on record.
#[tokio::test]
async fn a_computed_wait_is_clamped() {
    let manager = Receiver::start(|_, _| Reply::status(429).with("retry-after", "700000")).await;
    let archive = Receiver::kind().await;
    let gateway = leases(&manager, &archive).await;
    gateway.post("events", &signed(7)).await;
    let waiting = gateway.until_deliveries("state=pending&endpoint=manager", 1).await.remove(0);
    let attempt = gateway.delivery(waiting["id"].as_str().unwrap()).await["attempts"][0].clone();
    assert_eq!(attempt["clamped_from_ms"], 700_000_000, "{attempt}");
    let day = Duration::from_secs(24 * 3600 + 5);
    assert!(attempt["next_at"].as_str().unwrap() <= from_now(day).as_str(), "{attempt}");
}

/// Each ends as it would have, though the process ends in its middle.
async fn rehearse(script: fn(usize) -> Reply, lease: u32, check: impl AsyncFn(&Gateway, &Receiver, &str, Ending)) {
    for ending in Ending::ALL {
        let (manager, archive) = (Receiver::start(move |_, before| script(before)).await, Receiver::kind().await);
        let mut gateway = leases(&manager, &archive).await;
        gateway.post("events", &signed(lease)).await;
        gateway.until_deliveries("endpoint=archive&state=delivered", 1).await;
        manager.until_count(1).await;
        ending.restart(&mut gateway).await;
        check(&gateway, &manager, &format!("lease.signed:{lease}"), ending).await;
        for seen in manager.journal() {
            assert_eq!(seen.header("idempotency-key"), format!("lease.signed:{lease}"), "{ending:?}");
        }
        gateway.until_drained().await;
        assert_eq!(archive.count(), 1, "{ending:?}: the other endpoint is not concerned");
    }
}

fn answered(delivery: &Value) -> Vec<u64> {
    delivery["attempts"].as_array().unwrap().iter().filter_map(|attempt| attempt["status"].as_u64()).collect()
}

#[tokio::test]
async fn rehearsal_of_a_429_with_retry_after() {
    let script = |before| if before == 0 { Reply::status(429).with("retry-after", "2") } else { Reply::status(204) };
    rehearse(script, 1, async |gateway, manager, key, ending| {
        gateway.until_deliveries("endpoint=manager&state=delivered", 1).await;
        let delivery = of_endpoint(gateway, "manager", key).await;
        let interrupted = delivery["attempts"][0]["outcome"] == "interrupted";
        let seen = manager.journal();
        // Unless the kill came before the answer was on record, the pause outlives the process.
        assert!(interrupted || seen[1].at - seen[0].at >= Duration::from_millis(1_900), "{ending:?}: {delivery}");
        assert_eq!(seen.len(), 2, "{ending:?}");
    })
    .await;
}

#[tokio::test]
async fn rehearsal_of_a_timeout_after_the_receiver_committed() {
    let script = |before| if before == 0 { Reply::Hang } else { Reply::status(204) };
    rehearse(script, 2, async |gateway, manager, key, ending| {
        gateway.until_deliveries("endpoint=manager&state=delivered", 1).await;
        let first = of_endpoint(gateway, "manager", key).await["attempts"][0].clone();
        let how = if matches!(ending, Ending::Killed) { "interrupted" } else { "timed_out" };
        assert_eq!((&first["outcome"], &first["ambiguous"]), (&json!(how), &json!(true)), "{ending:?}: {first}");
        assert_eq!(manager.count(), 2, "{ending:?}");
    })
    .await;
}

#[tokio::test]
async fn rehearsal_of_a_permanent_400() {
    rehearse(
        |_| Reply::status(400),
        3,
        async |gateway, manager, key, ending| {
            gateway.until_deliveries("endpoint=manager&state=dead", 1).await;
            let delivery = of_endpoint(gateway, "manager", key).await;
            assert_eq!((&delivery["reason"], answered(&delivery)), (&json!("http_400"), vec![400]), "{ending:?}");
            // Killed before the answer was on record, it is asked again.
            assert!(manager.count() <= 2, "{ending:?}");
            assert_eq!(gateway.get("dlq").await["items"][0]["id"], delivery["id"]);
        },
    )
    .await;
}

#[tokio::test]
async fn rehearsal_of_five_exhausted_attempts_and_a_redrive() {
    let script = |before| Reply::status(if before < 5 { 503 } else { 204 });
    rehearse(script, 4, async |gateway, manager, key, ending| {
        gateway.until_deliveries("endpoint=manager&state=dead", 1).await;
        let delivery = of_endpoint(gateway, "manager", key).await;
        // What a stop hands back unsent is an attempt on record that does not count.
        let counted = delivery["attempts"].as_array().unwrap().iter().filter(|a| a["outcome"] != "released");
        let reasons: Vec<_> = counted.map(|a| a["disposition"].clone()).collect();
        assert_eq!(delivery["reason"], "http_503", "{ending:?}");
        assert_eq!(reasons, ["retry_at", "retry_at", "retry_at", "retry_at", "dead"], "{ending:?}");
        assert_eq!(manager.count(), 5, "{ending:?}");
        let id = delivery["id"].as_str().unwrap();
        let redriven = gateway.post(&format!("deliveries/{id}/redrive"), &json!({"note": "they are back"})).await;
        assert_eq!(redriven.status, 200, "{}", redriven.text);
        gateway.until_deliveries("endpoint=manager&state=delivered", 1).await;
        let delivery = of_endpoint(gateway, "manager", key).await;
        let last = delivery["attempts"].as_array().unwrap().last().unwrap();
        let facts = (&last["number"], &last["generation"], &last["status"]);
        assert_eq!(facts, (&delivery["attempt_count"], &json!(2), &json!(204)), "{ending:?}");
        let ids: std::collections::BTreeSet<_> =
            manager.journal().iter().map(|seen| seen.header("webhook-id").to_owned()).collect();
        assert_eq!(ids.len(), 1, "{ending:?}: the same delivery");
    })
    .await;
}

#[tokio::test]
async fn each_endpoint_has_its_own_delivery_and_history() {
    let (manager, archive) = (Receiver::sequence(&[400]).await, Receiver::sequence(&[204]).await);
    let gateway = leases(&manager, &archive).await;
    let event = gateway.post("events", &signed(9)).await.json()["event"].as_str().unwrap().to_owned();
    gateway.post("events", &json!({"type": "lease.ended", "payload": {}})).await;
    gateway.until_drained().await;
    let both = gateway.get(&format!("deliveries?event={event}")).await["items"].as_array().unwrap().clone();
    let mut states: Vec<_> = both.iter().map(|row| (row["endpoint"].clone(), row["state"].clone())).collect();
    states.sort_by_key(|(endpoint, _)| endpoint.to_string());
    assert_eq!(states, [(json!("archive"), json!("delivered")), (json!("manager"), json!("dead"))]);
    assert_ne!(both[0]["id"], both[1]["id"]);
    assert_eq!((manager.count(), archive.count()), (2, 1), "the archive takes lease.signed alone");
}
