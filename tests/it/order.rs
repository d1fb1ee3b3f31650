//! Order per key, and the newest of a window, over real sockets and over kills.

use super::{Gateway, Receiver, Reply, endpoint, until};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What reached the receiver of one key, in the order of arrival, without repetitions.
fn arrived(receiver: &Receiver, key: &str) -> Vec<u64> {
    let bodies = receiver.journal();
    let bodies = bodies.iter().map(|seen| serde_json::from_slice::<Value>(&seen.body).unwrap());
    let mut numbers: Vec<u64> = bodies.filter(|body| body["key"] == key).map(|b| b["n"].as_u64().unwrap()).collect();
    numbers.dedup();
    numbers
}

fn batch(keys: &[&str], count: u64) -> Value {
    let event = |n: u64, key: &str| json!({"type": "t", "ordering_key": key, "payload": {"key": key, "n": n}});
    let all: Vec<Value> = (0..count).flat_map(|n| keys.iter().map(move |key| event(n, key))).collect();
    json!({ "events": all })
}

/// A receiver that has trouble with one key, over a kill: that key waits and goes on in order, the others do not wait.
#[tokio::test]
async fn a_stuck_key_holds_its_own_and_nothing_else() {
    let mended = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&mended);
    let receiver = Receiver::start(move |request, _| {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        Reply::status(if body["key"] == "stuck" && !seen.load(Ordering::SeqCst) { 503 } else { 204 })
    })
    .await;
    let config = format!(
        "[tenants.acme.endpoints.billing]\nurl = \"{}\"\nordering = \"key\"\n\
         retry = {{ max_attempts = 100, delays = [\"50ms\"], jitter = \"none\" }}\n",
        receiver.url("/")
    );
    let mut gateway = Gateway::start(&config).await;
    let answer = gateway.post("events", &batch(&["stuck", "b", "c"], 4)).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let delivered = gateway.until_deliveries("state=delivered", 8).await;
    assert!(delivered.iter().all(|row| row["ordering_key"] != "stuck"));
    for key in ["b", "c"] {
        assert_eq!(arrived(&receiver, key), [0, 1, 2, 3]);
    }
    let held = gateway.until_deliveries("state=pending&reason=held_by_key", 3).await;
    let first = held[0]["held_by"].as_str().unwrap().to_owned();
    assert!(held.iter().all(|row| row["held_by"] == first.as_str() && row["due_at"].is_null()), "{held:?}");
    assert_eq!(arrived(&receiver, "stuck"), [0]);
    let shown = gateway.command(&["delivery", "get", held[0]["id"].as_str().unwrap()]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    for line in [["reason", "held_by_key"], ["held_by", &first], ["ordering_key", "stuck"]] {
        assert!(shown.lines().any(|l| l.split_whitespace().eq(line)), "{line:?} in {shown}");
    }

    gateway.kill();
    gateway.boot().await;
    mended.store(true, Ordering::SeqCst);
    gateway.until_deliveries("state=delivered", 12).await;
    assert_eq!(arrived(&receiver, "stuck"), [0, 1, 2, 3]);
    assert_eq!(gateway.metric("hookgate_pending").await, Some(0.0));
}

/// What a dead letter does to its key is the endpoint's choice; a redrive that comes too late for it says so.
#[tokio::test]
async fn a_dead_letter_holds_its_key_or_lets_go() {
    let mended = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&mended);
    let receiver = Receiver::start(move |request, _| {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        Reply::status(if body["n"] == 0 && !seen.load(Ordering::SeqCst) { 400 } else { 204 })
    })
    .await;
    let ordered = "ordering = \"key\"\n";
    let config = endpoint("goes-on", &receiver.url("/release"), ordered)
        + &endpoint("waits", &receiver.url("/hold"), &format!("{ordered}on_dead = \"hold\""))
        + &endpoint("free", &receiver.url("/free"), "event_types = [\"other\"]");
    let gateway = Gateway::start(&config).await;
    let told = gateway.get("endpoints/waits").await;
    assert_eq!((told["ordering"].as_str(), told["on_dead"].as_str()), (Some("key"), Some("hold")));
    gateway.post("events", &batch(&["k"], 2)).await;
    let dead = gateway.until_deliveries("state=dead", 2).await;
    let went_on = gateway.until_deliveries("state=delivered", 1).await.remove(0);
    assert_eq!(went_on["endpoint"], "goes-on");
    let held = gateway.until_deliveries("state=pending", 1).await.remove(0);
    let dead_of = |name: &str| dead.iter().find(|row| row["endpoint"] == name).unwrap()["id"].as_str().unwrap();
    assert_eq!((held["endpoint"].as_str(), held["held_by"].as_str()), (Some("waits"), Some(dead_of("waits"))));

    mended.store(true, Ordering::SeqCst);
    for (name, late) in [("goes-on", true), ("waits", false)] {
        let answer = gateway.post(&format!("deliveries/{}/redrive", dead_of(name)), &json!({})).await;
        assert_eq!((answer.status, answer.json()["out_of_order"].as_bool()), (200, Some(late)), "{}", answer.text);
    }
    gateway.until_deliveries("state=delivered", 4).await;
    let held: Vec<u64> = receiver
        .journal()
        .iter()
        .filter(|seen| seen.path == "/hold")
        .map(|seen| serde_json::from_slice::<Value>(&seen.body).unwrap()["n"].as_u64().unwrap())
        .collect();
    assert_eq!(held, [0, 0, 1]);
}

#[tokio::test]
async fn an_order_that_nobody_keeps_is_refused() {
    let receiver = Receiver::kind().await;
    let config = endpoint("free", &receiver.url("/"), "")
        + &endpoint("kept", &receiver.url("/"), "ordering = \"key\"\nevent_types = [\"kept\"]");
    let gateway = Gateway::start(&config).await;
    let publish = |event_type: &str| json!({"type": event_type, "payload": 1, "ordering_key": "k"});
    let refused = gateway.post("events", &publish("other")).await;
    assert_eq!((refused.status, refused.json()["field"].as_str()), (422, Some("ordering_key")), "{}", refused.text);
    assert!(refused.text.contains("no endpoint that takes this event orders by key"), "{}", refused.text);
    assert_eq!(gateway.post("events", &publish("kept")).await.status, 200);
    let delivered = gateway.until_deliveries("state=delivered", 2).await;
    let keys: Vec<_> = delivered.iter().map(|row| (row["endpoint"].as_str(), row["ordering_key"].as_str())).collect();
    assert!(keys.contains(&(Some("kept"), Some("k"))) && keys.contains(&(Some("free"), None)), "{keys:?}");
    assert_eq!(gateway.get("events").await["items"].as_array().unwrap().len(), 1);
}

/// Three events in a window are one request, with the newest payload, at the window's end; also when the process is
/// killed in between.
#[tokio::test]
async fn the_newest_of_a_window_is_delivered() {
    let receiver = Receiver::kind().await;
    let mut gateway = Gateway::start(&endpoint("crm", &receiver.url("/"), "")).await;
    let event = |n: u64| {
        let key = format!("profile-7/{n}");
        json!({"type": "t", "key": key, "payload": n, "coalesce_key": "profile-7", "coalesce_window": "3s"})
    };
    let answer = gateway.post("events", &json!({"events": [event(1), event(2), event(3)]})).await;
    let ids: Vec<String> = (0..3).map(|n| answer.json()["items"][n]["event"].as_str().unwrap().to_owned()).collect();
    assert_eq!(gateway.metric("hookgate_events_superseded_total").await, Some(2.0));
    assert_eq!(gateway.metric("hookgate_pending").await, Some(1.0));
    let mut early = event(4);
    early["expires_at"] = super::retries::jiff_now_plus(std::time::Duration::from_millis(1)).into();
    let late = gateway.post("events", &early).await;
    assert_eq!((late.status, late.json()["field"].as_str()), (422, Some("expires_at")), "{}", late.text);

    gateway.kill();
    gateway.boot().await;
    let seen = receiver.until_count(1).await;
    assert_eq!(seen[0].body, "3");
    let began = gateway.get(&format!("events/{}", ids[0])).await;
    assert!(began["hint"].is_null() && began["deliveries"] == json!([]), "{began}");
    assert_eq!(seen[0].header("idempotency-key"), format!("profile-7@{}", began["accepted_at"].as_str().unwrap()));
    for (gone, by) in [(0, 1), (1, 2)] {
        assert_eq!(gateway.get(&format!("events/{}", ids[gone])).await["superseded_by"], ids[by].as_str());
    }
    let again = gateway.post("events", &event(1)).await;
    assert_eq!((&again.json()["event"], &again.json()["duplicate"]), (&json!(ids[0]), &json!(true)));

    // By command line too, in a window of its own by now.
    let command = ["event", "publish", "--type", "t", "--payload", "5"];
    let key = ["--coalesce-key", "profile-7", "--coalesce-window", "1s"];
    let published = gateway.command(&[&command[..], &key].concat()).output().unwrap();
    assert!(published.status.success(), "{}", String::from_utf8_lossy(&published.stderr));
    until("the next window's request", || async { (receiver.count() == 2).then_some(()) }).await;
    assert_eq!(receiver.journal()[1].body, "5");
}
