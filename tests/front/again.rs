//! An event once more, lists without an end, and many closed at once.

use crate::office::{TOKEN, assert_golden, office};
use crate::peer::{PATIENCE, Peer};
use hookgate::admin::Down;
use hookgate::delivery::DeliveryState;
use hookgate::ledger::{LedgerError, Resent};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::time::Duration;

const ACME: &str = "/v1/tenants/acme";

#[tokio::test]
async fn a_resend() {
    let office = office().await;
    let of_state = |state: DeliveryState| {
        let rows = office.ledger.rows.lock().unwrap();
        rows.iter().find(|(_, row)| row.delivery.state == state).map(|(_, row)| row.delivery.id)
    };
    let (delivered, dead) = (of_state(DeliveryState::Delivered), of_state(DeliveryState::Dead).unwrap());
    let delivered = delivered.unwrap_or(dead);
    {
        let mut rows = office.ledger.rows.lock().unwrap();
        let row = rows.iter_mut().find(|(_, row)| row.delivery.id == delivered).unwrap();
        row.1.delivery.state = DeliveryState::Delivered;
    }
    let resend = format!("{ACME}/deliveries/{delivered}/resend");
    let made = office.post(&resend, "{\"note\":\"they lost it\"}").await;
    assert_eq!((made.status, made.json()["state"].as_str()), (201, Some("pending")), "{:?}", made.json());
    assert_ne!(made.json()["id"], delivered.to_string());
    assert!(office.asked().contains("they lost it"), "{}", office.asked());
    assert_eq!(office.post(&resend, "").await.status, 201, "a body is not needed");
    for (answer, status, code) in [
        (Resent::NotFound, 404, "not_found"),
        (Resent::NotOver(DeliveryState::Dead), 409, "dead"),
        (Resent::NotOver(DeliveryState::InFlight), 409, "not_over"),
        (Resent::Purged, 409, "purged"),
        (Resent::PayloadErased, 409, "payload_erased"),
        (Resent::Expired, 409, "expired"),
        (Resent::TooMany, 409, "too_many_resends"),
        (Resent::RequestReused, 422, "idempotency_key_reused"),
    ] {
        *office.ledger.resend_answer.lock().unwrap() = Some(answer);
        let reply = office.post(&resend, "{}").await;
        assert_eq!((reply.status, reply.code().as_str()), (status, code));
    }
    assert_eq!(office.post(&resend, "{\"payload\":1}").await.code(), "unknown_field");
    assert_eq!(office.post(&resend, &json!({"note": "x".repeat(1_025)}).to_string()).await.json()["field"], "note");
    assert_eq!(office.ask("GET", &resend, "", "").await.status, 405);
}

#[tokio::test]
async fn a_resend_under_a_key_is_answered_once() {
    let office = office().await;
    let dead = office.deliveries[0];
    office.ledger.rows.lock().unwrap()[0].1.delivery.state = DeliveryState::Delivered;
    let resend = format!("{ACME}/deliveries/{dead}/resend");
    let key = "idempotency-key: r-1\r\ncontent-type: application/json\r\n";
    let first = office.ask("POST", &resend, key, "{}").await;
    assert_eq!(first.status, 201);
    *office.ledger.resend_answer.lock().unwrap() = Some(Resent::TooMany);
    let again = office.ask("POST", &resend, key, "{}").await;
    assert_eq!((again.status, again.json()), (201, first.json()));
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
}

#[tokio::test]
async fn a_replay() {
    let office = office().await;
    let published = json!({"type": "invoice.paid", "payload": {}, "key": "order-7"});
    assert_eq!(office.post(&format!("{ACME}/events"), &published.to_string()).await.status, 200);
    let replay = format!("{ACME}/endpoints/billing/replay");
    let dry = office.post(&replay, "{\"filter\":{\"type\":\"push\"},\"only_missed\":true,\"dry_run\":true}").await;
    assert_golden("replay-dry-run", &dry);
    assert!(office.asked().contains("only_missed: true") && office.asked().contains("push"), "{}", office.asked());
    assert!(office.ledger.operations.lock().unwrap().is_empty() && office.yard.asked.lock().unwrap().is_empty());
    let asked = json!({
        "filter": {"source": "github", "type": "push", "key": "k", "since": "2025-12-31T23:00:00Z",
                   "until": "2026-01-01T00:00:00Z"},
        "only_missed": true, "max": 40, "rate": 5, "canary": true, "note": "billing was away",
    });
    let begun = office.post(&replay, &asked.to_string()).await;
    assert_golden("replay-begun", &begun);
    assert_eq!((begun.status, begun.json()["kind"].as_str()), (202, Some("replay")));
    assert_eq!(*office.yard.asked.lock().unwrap(), ["probe billing billing.example", "news"]);
    let id = begun.json()["id"].as_str().unwrap().to_owned();
    let one = office.get(&format!("{ACME}/operations/{id}")).await.json();
    assert_eq!((&one["endpoint"], &one["only_missed"]), (&json!("billing"), &json!(true)));
    let under_way = &one["skipped"];
    assert_eq!(*under_way, json!({"expired": 0, "payload_erased": 0, "under_way": 0, "gone": 0}));
}

#[tokio::test]
async fn a_replay_to_where_nobody_answers_or_of_nothing() {
    let office = office().await;
    let replay = format!("{ACME}/endpoints/billing/replay");
    let none = office.post(&replay, "{\"filter\":{}}").await;
    assert_eq!((none.status, &none.json()["count"]), (200, &json!(0)));
    assert_eq!(none.json()["skipped"], json!({"expired": 1, "payload_erased": 2, "under_way": 3}));
    assert!(office.ledger.operations.lock().unwrap().is_empty());
    let published = json!({"type": "invoice.paid", "payload": {}});
    office.post(&format!("{ACME}/events"), &published.to_string()).await;
    *office.yard.down.lock().unwrap() = vec![Down {
        endpoint: "billing".parse().unwrap(),
        host: "billing.example".into(),
        class: "connect".into(),
        detail: "connection refused".into(),
    }];
    let down = office.post(&replay, "{\"filter\":{}}").await;
    assert_eq!((down.status, down.code().as_str()), (409, "destination_down"));
    assert!(down.json()["detail"].as_str().unwrap().starts_with("nothing was replayed"));
    for anyhow in ["{\"filter\":{},\"force\":true}", "{\"filter\":{},\"probe\":false}"] {
        assert_eq!(office.post(&replay, anyhow).await.status, 202, "{anyhow}");
    }
    for (wish, field) in [
        (json!({}), "filter"),
        (json!({"filter": {"types": "x"}}), "filter.types"),
        (json!({"filter": {"key": ""}}), "filter.key"),
        (json!({"filter": {"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}}), "filter.until"),
        (json!({"filter": {}, "rate": 0}), "rate"),
        (json!({"filter": {}, "max": 0}), "max"),
        (json!({"filter": {}, "missed": true}), "missed"),
    ] {
        let reply = office.post(&replay, &wish.to_string()).await;
        assert_eq!((reply.status, reply.json()["field"].as_str()), (422, Some(field)), "{wish}: {}", reply.json());
    }
    assert_eq!(office.post(&format!("{ACME}/endpoints/nobody/replay"), "{\"filter\":{}}").await.status, 404);
    assert_eq!(office.post("/v1/tenants/globex/endpoints/billing/replay", "{\"filter\":{}}").await.status, 404);
}

#[tokio::test]
async fn an_export_is_a_line_for_each() {
    let office = office().await;
    let dead = office.deliveries[0];
    let lines = |text: &str| -> Vec<Value> { text.lines().map(|line| serde_json::from_str(line).unwrap()).collect() };
    let letters = office.get(&format!("{ACME}/dlq/export?reason=http_500")).await;
    assert_eq!((letters.status, letters.header("content-type")), (200, Some("application/jsonl")));
    assert_eq!(letters.header("content-length"), None, "nobody knows how long it gets");
    let found = lines(letters.text());
    assert_eq!((found.len(), &found[0]["id"]), (1, &json!(dead)));
    assert!(found[0].get("body").is_none() && office.asked().contains("http_500"));
    let with_bodies = office.get(&format!("{ACME}/deliveries/export?state=dead&bodies=true")).await;
    let found = lines(with_bodies.text());
    assert!(!found.is_empty() && found.iter().all(|row| row.get("body").is_some()), "{found:?}");
    let listed = office.get(&format!("{ACME}/deliveries?state=dead")).await.json();
    assert_eq!(found.len(), listed["items"].as_array().unwrap().len());
    for (bad, status) in [("reson=x", 400), ("limit=5", 400), ("bodies=1", 422), ("status=5", 422)] {
        assert_eq!(office.get(&format!("{ACME}/dlq/export?{bad}")).await.status, status, "{bad}");
    }
    *office.ledger.fault.lock().unwrap() = Some(LedgerError::TooSlow { seconds: 5 });
    assert_eq!(office.get(&format!("{ACME}/dlq/export")).await.code(), "too_slow", "known from the beginning");
}

/// As many pages are read as the client takes, and the others have their places.
#[tokio::test]
async fn a_client_that_takes_nothing_costs_nothing() {
    let office = office().await;
    office.ledger.is_endless.store(true, Ordering::SeqCst);
    let pages = || office.ledger.pages.load(Ordering::SeqCst);
    let request = format!("GET {ACME}/deliveries/export HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {TOKEN}\r\n\r\n");
    let mut peer = Peer::connect(office.address).await;
    peer.send(&request).await;
    let stands_still = async || {
        let mut before = usize::MAX;
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await; // poll: until no page was read between two looks
            match pages() {
                now if now == before && now > 0 => return now,
                now => before = now,
            }
        }
    };
    let first = tokio::time::timeout(PATIENCE, stands_still()).await.expect("it reads on though nobody takes it");
    assert!(peer.some(1 << 20).await > 0);
    let more = async {
        while pages() == first {
            peer.some(1 << 20).await;
        }
    };
    tokio::time::timeout(PATIENCE, more).await.expect("it goes on when the client does");
    // Others are bounded, and the places of those who have gone are free again.
    let mut others = Vec::new();
    let refused = loop {
        let mut other = Peer::connect(office.address).await;
        other.send(&request).await;
        let status = other.status().await;
        if status != 200 {
            break status;
        }
        others.push(other);
    };
    assert_eq!((refused, others.len()), (503, 7));
    drop((peer, others));
    office.ledger.is_endless.store(false, Ordering::SeqCst);
    let free = async {
        while office.get(&format!("{ACME}/deliveries/export")).await.status != 200 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, free).await.expect("a place is free again");
}

#[tokio::test]
async fn many_are_resolved_or_cancelled() {
    let office = office().await;
    let (resolve, cancel) = (format!("{ACME}/dlq/resolve"), format!("{ACME}/deliveries/cancel"));
    let dry = office.post(&resolve, "{\"filter\":{},\"as\":\"sent\",\"dry_run\":true}").await.json();
    assert_eq!(dry["count"], 1);
    let dry = office.post(&cancel, "{\"filter\":{\"endpoint\":\"billing\"},\"dry_run\":true}").await.json();
    let pending = dry["count"].as_u64().unwrap();
    assert!(pending > 0 && dry["samples"][0]["state"] == "pending", "{dry}");
    assert!(office.asked().contains("endpoint: Some(billing)"), "{}", office.asked());
    let resolved = office.post(&resolve, "{\"filter\":{},\"as\":\"sent\",\"note\":\"seen\"}").await;
    assert_eq!(resolved.json(), json!({"resolved": 1, "more": false}));
    assert!(office.asked().contains("how: Sent") && office.asked().contains("seen"));
    assert_eq!(office.post(&cancel, "{\"filter\":{}}").await.json(), json!({"cancelled": pending, "more": false}));
    for (path, wish, field) in [
        (&resolve, json!({"filter": {}}), "as"),
        (&resolve, json!({"filter": {}, "as": "maybe"}), "as"),
        (&resolve, json!({"as": "sent"}), "filter"),
        (&resolve, json!({"filter": {"status": 1}, "as": "sent"}), "filter.status"),
        (&cancel, json!({}), "filter"),
        (&cancel, json!({"filter": {"state": "dead"}}), "filter.state"),
        (&cancel, json!({"filter": {"q": ""}}), "filter.q"),
        (&cancel, json!({"filter": {"status": 1}}), "filter.status"),
    ] {
        let reply = office.post(path, &wish.to_string()).await;
        assert_eq!((reply.status, reply.json()["field"].as_str()), (422, Some(field)), "{wish}: {}", reply.json());
    }
    for path in [&resolve, &cancel] {
        assert_eq!(office.ask("GET", path, "", "").await.header("allow"), Some("POST"));
        assert_eq!(office.post(path, "").await.status, 400, "everything only by word");
    }
}
