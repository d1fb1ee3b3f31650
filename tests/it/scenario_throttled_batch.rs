//! SCENARIOS 3, a throttled batch: 429 means not yet, on `examples/throttled-batch`.

use super::examples::{all, example};
use super::{Gateway, Receiver, Reply, until};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const RATE: &str = "rate = { per_second = 50, burst = 100 }";
pub const NO_RATE: (&str, &str) = (RATE, "rate = { per_second = 10000, burst = 10000 }");
pub const QUICK: (&str, &str) =
    ("delays = [\"30s\", \"2m\"], jitter = \"equal\"", "delays = [\"50ms\"], jitter = \"none\"");

pub async fn batches(provider: &Receiver, edits: &[(&str, &str)]) -> Gateway {
    let address = provider.addr.to_string();
    let places = [("127.0.0.1/32:9003", "127.0.0.1/32"), ("127.0.0.1:9003", address.as_str())];
    let mut gateway = example("throttled-batch", &[&places[..], edits].concat());
    gateway.boot().await;
    gateway
}

pub fn batch(count: usize, from: usize) -> Value {
    let item = |n| json!({"type": "reminder.due", "key": format!("reminder:{n}"), "payload": {"reminder": n}});
    json!({"events": (from..from + count).map(item).collect::<Vec<_>>()})
}

pub async fn publish(gateway: &Gateway, batch: &Value) {
    let answer = gateway.post("events", batch).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let items = answer.json()["items"].as_array().unwrap().clone();
    assert!(items.iter().all(|item| item["duplicate"] == false), "{items:?}");
}

/// The endpoint's counters, and that the lists agree with them.
pub async fn counters(gateway: &Gateway) -> [u64; 4] {
    let endpoint = gateway.get("endpoints/reminders").await;
    let counts = ["pending", "available", "in_flight", "dead"].map(|name| endpoint[name].as_u64().unwrap());
    assert_eq!(all(gateway, "dlq?").await.len() as u64, counts[3], "{endpoint}");
    counts
}

/// 1,000 in a call; halfway the provider throttles one, for a while that it tells in either form; in that while the
/// gateway is killed.
async fn throttled_halfway(form: &'static str) {
    let pause = Duration::from_secs(4);
    let (seen, throttled) = (AtomicUsize::new(0), Arc::new(std::sync::Mutex::new(None)));
    let told = Arc::clone(&throttled);
    let provider = Receiver::start(move |request, _| {
        if seen.fetch_add(1, Ordering::SeqCst) != 500 {
            return Reply::status(204);
        }
        *told.lock().unwrap() = Some((Instant::now(), request.header("idempotency-key").to_owned()));
        let now = std::time::UNIX_EPOCH + std::time::UNIX_EPOCH.elapsed().unwrap();
        let date = now + pause + Duration::from_secs(1);
        let value = if form == "date" { httpdate::fmt_http_date(date) } else { pause.as_secs().to_string() };
        Reply::status(429).with("retry-after", value)
    })
    .await;
    let mut gateway = batches(&provider, &[NO_RATE, QUICK]).await;
    publish(&gateway, &batch(1_000, 0)).await;
    let paused = until("the endpoint is paused", || async {
        let endpoint = gateway.get("endpoints/reminders").await;
        (endpoint["status"] == "paused").then_some(endpoint)
    })
    .await;
    assert_eq!(paused["why"], "retry_after", "{paused}");
    until("nothing is on the wire", || async {
        (gateway.metric("hookgate_in_flight ").await == Some(0.0)).then_some(())
    })
    .await;
    let (at, key) = throttled.lock().unwrap().clone().unwrap();
    let sent = provider.count();
    assert_eq!(counters(&gateway).await[0] as usize, 1_000 - (sent - 1), "all but what was sent waits");
    gateway.kill();
    gateway.boot().await;
    let after = gateway.get("endpoints/reminders").await;
    // A machine so busy that the pause is over by now has only the time of the next request to tell by, below.
    assert!(after["status"] == "paused" || at.elapsed() >= pause, "the waiting is in the ledger: {after}");

    gateway.until_drained().await;
    assert_eq!(counters(&gateway).await, [0, 0, 0, 0]);
    let journal = provider.journal();
    assert_eq!(journal.len(), 1_001, "{form}: each once, and one of them twice");
    let resumed = journal[sent].at - at;
    assert!(resumed >= pause - Duration::from_millis(20), "{form}: sent {resumed:?} after the 429");
    let mut spent: HashMap<u64, Vec<Value>> = HashMap::new();
    for row in all(&gateway, "deliveries?state=delivered&").await {
        let delivery =
            if row["attempt_count"] == 1 { row } else { gateway.delivery(row["id"].as_str().unwrap()).await };
        let released = |a: &&Value| a["outcome"] == "released";
        let handed_back = delivery["attempts"].as_array().map_or(0, |all| all.iter().filter(released).count() as u64);
        spent
            .entry(delivery["attempt_count"].as_u64().unwrap() - handed_back)
            .or_default()
            .push(delivery["key"].clone());
    }
    assert_eq!((spent[&1].len(), &spent[&2]), (999, &vec![json!(key)]), "{form}: only the throttled one counts");
}

#[tokio::test]
async fn seconds_and_a_date_pause_the_whole_endpoint_over_a_kill() {
    throttled_halfway("seconds").await;
    throttled_halfway("date").await;
}

/// A "429" that is really a suspended account stops after three attempts. What is dead can be sent again: one, or all,
/// and once.
#[tokio::test]
async fn a_suspended_account_ends_in_the_dlq_and_comes_back_once() {
    let open = Arc::new(AtomicBool::new(false));
    let is_open = Arc::clone(&open);
    let provider =
        Receiver::start(move |_, _| Reply::status(if is_open.load(Ordering::SeqCst) { 204 } else { 429 })).await;
    let mut gateway = batches(&provider, &[NO_RATE, QUICK]).await;
    publish(&gateway, &batch(50, 0)).await;
    provider.until_count(20).await;
    gateway.kill();
    gateway.boot().await;
    let dead = gateway.until_deliveries("state=dead", 50).await;
    for row in &dead {
        assert_eq!((&row["reason"], &row["attempt_count"]), (&json!("http_429"), &json!(3)), "{row}");
    }
    assert_eq!(counters(&gateway).await, [0, 0, 0, 50]);
    assert_eq!(gateway.metric("hookgate_dlq_depth").await, Some(50.0));
    assert!(gateway.metric("hookgate_dlq_oldest_age_seconds").await.is_some());
    // Listing consumes nothing.
    assert_eq!(counters(&gateway).await[3], 50);

    open.store(true, Ordering::SeqCst);
    let cli = |args: &[&str]| {
        let output = gateway.command(args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (_, ids) = cli(&["dlq", "list", "--limit=1000", "-q"]);
    let ids: Vec<&str> = ids.lines().collect();
    assert_eq!(ids.len(), 50);
    assert_eq!(cli(&["dlq", "redrive", ids[0], "--note=try one"]).0, Some(0));
    gateway.until_deliveries("state=delivered", 1).await;
    let (before, twice) = (provider.count(), cli(&["dlq", "redrive", ids[0]]));
    assert_eq!((twice.0, provider.count()), (Some(6), before), "a double redrive does nothing");
    assert_eq!(counters(&gateway).await[3], 49);
    let rest = [&["dlq", "redrive", "--note=all"], &ids[1..]].concat();
    assert_eq!(cli(&rest).0, Some(0));
    gateway.until_deliveries("state=delivered", 50).await;
    let sent = provider.count();
    assert_eq!(cli(&rest).0, Some(6));
    gateway.until_drained().await;
    assert_eq!((provider.count(), counters(&gateway).await), (sent, [0, 0, 0, 0]));
}

/// With the example's own rate the provider has nothing to throttle.
#[tokio::test]
async fn the_rate_is_kept() {
    let provider = Receiver::kind().await;
    let gateway = batches(&provider, &[]).await;
    publish(&gateway, &batch(220, 0)).await;
    let journal = provider.until_count(220).await;
    let in_window =
        |from: Instant| journal.iter().filter(|s| s.at >= from && s.at - from < Duration::from_secs(1)).count();
    let most = journal.iter().map(|seen| in_window(seen.at)).max().unwrap();
    // The burst and what is refilled in the same second; a busy machine may bunch a little.
    assert!(most <= 100 + 50 + 10, "{most} in a second");
    let took = journal.last().unwrap().at - journal[0].at;
    assert!(took >= Duration::from_millis(2_300), "120 beyond the burst took {took:?} at 50 a second");
}
