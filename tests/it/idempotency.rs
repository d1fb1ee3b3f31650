//! Dedup and idempotency keys: over retries, over races, over a restart.

use super::{Gateway, Receiver, endpoint, github_source};
use serde_json::{Value, json};

#[tokio::test]
async fn a_providers_retry_is_one_event_even_over_a_restart() {
    let receiver = Receiver::kind().await;
    let mut gateway = Gateway::start(&(github_source() + &endpoint("billing", &receiver.url("/"), ""))).await;
    let first = gateway.accepted(gateway.github("d-1", "push", "{}")).await;
    assert_eq!(gateway.accepted(gateway.github("d-1", "push", "{}")).await, first);
    gateway.until_deliveries("state=delivered", 1).await;
    gateway.kill();
    gateway.boot().await;
    assert_eq!(gateway.accepted(gateway.github("d-1", "push", "{}")).await, first);
    assert_eq!(receiver.count(), 1);
}

#[tokio::test]
async fn racing_copies_are_one_event() {
    let receiver = Receiver::kind().await;
    let gateway = Gateway::start(&(github_source() + &endpoint("billing", &receiver.url("/"), ""))).await;
    let copies = (0..32).map(|_| gateway.accepted(gateway.github("d-1", "push", "{}")));
    let mut ids = futures_util::future::join_all(copies).await;
    ids.dedup();
    assert_eq!(ids.len(), 1);
    gateway.until_deliveries("state=delivered", 1).await;
    assert_eq!((receiver.count(), gateway.get("events").await["items"].as_array().unwrap().len()), (1, 1));
}

/// GitHub's delivery id is not signed: a captured request under a new id is still the same request, and a known id does
/// not carry another body in.
#[tokio::test]
async fn an_unsigned_id_opens_no_door_to_a_replay() {
    let receiver = Receiver::kind().await;
    let mut gateway = Gateway::start(&(github_source() + &endpoint("billing", &receiver.url("/"), ""))).await;
    let first = gateway.accepted(gateway.github("d-1", "push", "{\"n\":1}")).await;
    for id in ["d-1", "d-2", "after a restart"] {
        if id.contains("restart") {
            gateway.kill();
            gateway.boot().await;
        }
        let again = gateway.send(gateway.github(&id.replace(' ', "-"), "push", "{\"n\":1}")).await.unwrap();
        assert_eq!((again.status, again.json()["duplicate"].as_bool()), (200, Some(true)), "{id}");
        assert_eq!(again.json()["event"], first.as_str());
    }
    let other = gateway.send(gateway.github("d-1", "push", "{\"n\":2}")).await.unwrap();
    assert_eq!((other.status, other.code().as_str()), (409, "key_reused"));
    assert_eq!(gateway.get("events").await["items"].as_array().unwrap().len(), 1);
}

/// A caller that cannot know whether its request was done asks again under the same key.
#[tokio::test]
async fn a_publication_under_a_key_is_one_event_over_a_kill() {
    let receiver = Receiver::kind().await;
    let mut gateway = Gateway::start(&endpoint("sms", &receiver.url("/"), "")).await;
    let item = json!({"type": "reminder", "payload": {"n": 1}});
    let batch = json!({"events": [item, item, item]});
    let publish = async |gateway: &Gateway, key: &str, body: &Value| {
        gateway.send(gateway.api("POST", "events").header("idempotency-key", key).json(body)).await.unwrap()
    };
    let (one, many) = (publish(&gateway, "one", &item).await, publish(&gateway, "many", &batch).await);
    assert_eq!((one.status, many.status), (200, 200), "{} {}", one.text, many.text);
    gateway.until_deliveries("state=delivered", 4).await;
    gateway.kill();
    gateway.boot().await;
    for (key, body, first) in [("one", &item, &one), ("many", &batch, &many)] {
        let again = publish(&gateway, key, body).await;
        assert_eq!((again.status, &again.text), (200, &first.text));
        assert_eq!(again.headers["idempotency-replayed"], "true");
    }
    let other = publish(&gateway, "one", &batch).await;
    assert_eq!((other.status, other.code().as_str()), (422, "idempotency_key_reused"));
    assert_eq!(gateway.get("events").await["items"].as_array().unwrap().len(), 4);
    assert_eq!(receiver.count(), 4);
}

/// Killed at any moment while it is asked: every repetition finds what was done.
#[tokio::test]
async fn a_kill_between_the_effect_and_the_answer_is_harmless() {
    let receiver = Receiver::kind().await;
    let mut gateway = Gateway::start(&endpoint("sms", &receiver.url("/"), "")).await;
    let batch = json!({"events": vec![json!({"type": "reminder", "payload": 1}); 200]});
    for round in 0..4 {
        let key = format!("round-{round}");
        let ask = |gateway: &Gateway| gateway.api("POST", "events").header("idempotency-key", &key).json(&batch);
        let (under_way, before) = (tokio::spawn(ask(&gateway).send()), 200 * round);
        let stored = async || gateway.metric("hookgate_events_accepted_total").await.unwrap_or(0.0) > 0.0;
        // poll: some of it is stored, and perhaps not all
        while round > 0 && !stored().await && !under_way.is_finished() {}
        gateway.kill();
        let _ = under_way.await.unwrap();
        gateway.boot().await;
        let answer = gateway.send(ask(&gateway)).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text);
        let items = answer.json()["items"].as_array().unwrap().clone();
        let ids: std::collections::BTreeSet<_> = items.iter().map(|item| item["event"].as_str().unwrap()).collect();
        assert_eq!((items.len(), ids.len()), (200, 200));
        gateway.until_drained().await;
        let delivered = all_deliveries(&gateway).await;
        assert_eq!(delivered, before + 200, "round {round}: each item is one event");
    }
}

async fn all_deliveries(gateway: &Gateway) -> usize {
    let (mut count, mut cursor) = (0, String::new());
    loop {
        let page = gateway.get(&format!("deliveries?limit=200&cursor={cursor}")).await;
        count += page["items"].as_array().unwrap().len();
        match page["next"].as_str() {
            Some(next) => next.clone_into(&mut cursor),
            None => return count,
        }
    }
}
