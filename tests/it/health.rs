//! A receiver that fails: the breaker, its probes, recovery without a wave, and the end of a long failure. Rates and
//! concurrency as the receiver sees them.

use super::guests::{Says, classify_says};
use super::{Gateway, Receiver, Reply, github_source, until};
use hookgate::clock::Timestamp;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn config(receiver: &Receiver, more: &str) -> String {
    let retry = "retry = { max_attempts = 50, delays = [\"50ms\"], jitter = \"none\" }";
    let url = receiver.url("/");
    github_source() + &format!("[tenants.acme.endpoints.billing]\nurl = \"{url}\"\n{retry}\n{more}\n")
}

/// Publishes so many at once.
async fn publish(gateway: &Gateway, count: usize) {
    let events: Vec<Value> = (0..count).map(|i| json!({"type": "push", "payload": i})).collect();
    let answer = gateway.post("events", &json!({ "events": events })).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

async fn endpoint(gateway: &Gateway) -> Value {
    gateway.get("endpoints/billing").await
}

async fn until_breaker(gateway: &Gateway, state: &str) -> Value {
    until(&format!("the breaker is {state}"), || async {
        let found = endpoint(gateway).await;
        (found["breaker_state"] == state).then_some(found)
    })
    .await
}

fn time(value: &Value) -> Timestamp {
    Timestamp::parse_rfc3339(value.as_str().unwrap()).unwrap()
}

/// A moment of the wall clock on the clock of the receiver's journal.
fn instant(at: Timestamp) -> Instant {
    let (now, wall) = (Instant::now(), std::time::UNIX_EPOCH.elapsed().unwrap());
    let at = Duration::from_millis(u64::try_from(at.as_millis()).unwrap());
    if at > wall { now + (at - wall) } else { now - (wall - at) }
}

/// Every delivery's attempts that count are the requests that were made; of one that a kill interrupted, it is not known.
async fn only_what_was_sent_counts(gateway: &Gateway, receiver: &Receiver, count: usize) {
    let delivered = gateway.until_deliveries("state=delivered", count).await;
    assert_eq!(delivered.len(), count);
    let mut requests: HashMap<String, usize> = HashMap::new();
    for seen in receiver.journal() {
        *requests.entry(seen.header("webhook-id").to_owned()).or_default() += 1;
    }
    for row in delivered {
        let id = row["id"].as_str().unwrap();
        let attempts = gateway.delivery(id).await["attempts"].as_array().unwrap().clone();
        let of = |outcome: &str| attempts.iter().filter(|attempt| attempt["outcome"] == outcome).count();
        let (answered, interrupted) = (of("answered"), of("interrupted"));
        assert_eq!(answered + interrupted + of("released"), attempts.len(), "{attempts:?}");
        assert!((answered..=answered + interrupted).contains(&requests[id]), "{id}: {attempts:?}");
    }
}

#[tokio::test]
async fn a_failing_receiver_is_left_alone_probed_and_comes_back_without_a_wave() {
    const EVENTS: usize = 60;
    const CONCURRENCY: usize = 8;
    let down = Arc::new(AtomicBool::new(true));
    let (now, done, wave) =
        (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let script = (Arc::clone(&down), Arc::clone(&now), Arc::clone(&done), Arc::clone(&wave));
    let receiver = Receiver::start(move |_, _| {
        let (down, now, done, wave) = &script;
        if down.load(Ordering::SeqCst) {
            return Reply::status(500);
        }
        // At once never more than one, and one for each that has gone well.
        let allowed = (done.load(Ordering::SeqCst) + 1).min(CONCURRENCY);
        if now.fetch_add(1, Ordering::SeqCst) + 1 > allowed {
            wave.fetch_add(1, Ordering::SeqCst);
        }
        let (now, done) = (Arc::clone(now), Arc::clone(done));
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(10)).await; // plays the peer: serving
            done.fetch_add(1, Ordering::SeqCst);
            now.fetch_sub(1, Ordering::SeqCst);
        });
        Reply::Late(Duration::from_millis(15), Box::new(Reply::status(204)))
    })
    .await;
    let breaker = "breaker = { failures = 5, open = \"400ms\", open_max = \"800ms\" }";
    let gateway = Gateway::start(&config(&receiver, &format!("concurrency = {CONCURRENCY}\n{breaker}"))).await;
    publish(&gateway, EVENTS).await;

    let open = until_breaker(&gateway, "open").await;
    assert_eq!((open["status"].as_str(), open["why"].as_str()), (Some("paused"), Some("breaker_open")), "{open}");
    assert!(open["failures_in_a_row"].as_u64() >= Some(5) && open["failing_since"].is_string(), "{open}");
    assert!(open["disables_at"].is_string() && open["ramp"] == 1, "{open}");
    let shown = gateway.command(&["endpoint", "get", "billing"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(["breaker_state", "failing_since", "disables_at", "ramp"].iter().all(|f| shown.contains(f)), "{shown}");

    // What was on the wire when it opened, and one probe for each opening since.
    const OPENINGS: usize = 5;
    let openings = async || gateway.metric("hookgate_breaker_openings_total").await;
    until("it has opened a few times", || async { (openings().await >= Some(5.0)).then_some(()) }).await;
    let asked = receiver.count();
    let opened = openings().await.unwrap();
    assert!(
        asked as f64 <= (5 + CONCURRENCY + 1) as f64 + opened,
        "{asked} requests to a receiver that is down, {opened} openings"
    );
    let seen = receiver.journal();
    let apart = |pair: &[super::receiver::Seen]| pair[1].at - pair[0].at;
    let pauses = seen.windows(2).filter(|pair| apart(pair) >= Duration::from_millis(300)).count();
    assert!(pauses >= OPENINGS - 1, "{pauses} pauses between {asked} requests");

    down.store(false, Ordering::SeqCst);
    gateway.until_deliveries("state=delivered", EVENTS).await;
    assert_eq!(wave.load(Ordering::SeqCst), 0, "more at once than had gone well");
    let closed = endpoint(&gateway).await;
    assert_eq!((closed["status"].as_str(), closed["breaker_state"].as_str()), (Some("enabled"), Some("closed")));
    assert_eq!(
        (&closed["failing_since"], &closed["disables_at"], &closed["ramp"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    only_what_was_sent_counts(&gateway, &receiver, EVENTS).await;
}

#[tokio::test]
async fn a_kill_in_the_middle_leaves_the_breaker_open() {
    let down = Arc::new(AtomicBool::new(true));
    let is_down = Arc::clone(&down);
    let receiver =
        Receiver::start(move |_, _| Reply::status(if is_down.load(Ordering::SeqCst) { 503 } else { 204 })).await;
    let breaker = "breaker = { failures = 3, open = \"1h\", open_max = \"1h\" }\nconcurrency = 3";
    let mut gateway = Gateway::start(&config(&receiver, breaker)).await;
    publish(&gateway, 20).await;
    let opens = time(&until_breaker(&gateway, "open").await["breaker_until"]);
    until("nothing is under way", || async { (endpoint(&gateway).await["in_flight"] == 0).then_some(()) }).await;
    let before = receiver.count();
    gateway.kill();
    down.store(false, Ordering::SeqCst);
    gateway.boot().await;
    let stands = endpoint(&gateway).await;
    assert_eq!((stands["breaker_state"].as_str(), time(&stands["breaker_until"])), (Some("open"), opens), "{stands}");
    publish(&gateway, 1).await;
    until("all of it waits", || async { (endpoint(&gateway).await["pending"] == 21).then_some(()) }).await;
    assert_eq!(receiver.count(), before, "sent while the breaker was open");
    assert_eq!(gateway.post("endpoints/billing/resume", &json!({})).await.status, 200);
    only_what_was_sent_counts(&gateway, &receiver, 21).await;
    assert_eq!(endpoint(&gateway).await["breaker_state"], "closed", "by the probe");
}

/// One is throttled; the process dies in the pause, and begins again with what `change` made of its file.
async fn throttle_and_kill(receiver: &Receiver, mut gateway: Gateway, change: fn(&str) -> String) {
    const EVENTS: usize = 40;
    publish(&gateway, EVENTS).await;
    let paused = until("the endpoint is paused", || async {
        let found = endpoint(&gateway).await;
        (found["status"] == "paused").then_some(found)
    })
    .await;
    gateway.kill();
    let before = receiver.count();
    let file = std::fs::read_to_string(gateway.config()).unwrap();
    std::fs::write(gateway.config(), change(&file)).unwrap();
    gateway.boot().await;
    let (opens, stands) = (time(&paused["until"]), endpoint(&gateway).await);
    assert_eq!((&stands["until"], &stands["why"]), (&paused["until"], &paused["why"]), "{stands}");
    gateway.until_deliveries("state=delivered", EVENTS).await;
    for seen in &receiver.journal()[before..] {
        assert!(seen.at >= instant(opens) - Duration::from_millis(5), "sent inside the pause");
    }
    // One was throttled, and the others lost nothing by it. What was on the wire at the kill is known as interrupted.
    let mut throttled = 0;
    for row in gateway.until_deliveries("state=delivered", EVENTS).await {
        let attempts = gateway.delivery(row["id"].as_str().unwrap()).await["attempts"].as_array().unwrap().clone();
        let answered = attempts.iter().filter(|attempt| attempt["outcome"] == "answered").count();
        assert!((1..=2).contains(&answered), "{attempts:?}");
        throttled += answered - 1;
    }
    assert_eq!(throttled, 1, "only the throttled one counts another attempt");
}

#[tokio::test]
async fn a_throttle_outlives_a_kill_and_costs_the_throttled_one_alone() {
    let first = AtomicBool::new(true);
    let receiver = Receiver::start(move |_, _| match first.swap(false, Ordering::SeqCst) {
        true => Reply::status(429).with("retry-after", "6"),
        false => Reply::status(204),
    })
    .await;
    let gateway = Gateway::start(&config(&receiver, "concurrency = 4")).await;
    throttle_and_kill(&receiver, gateway, str::to_owned).await;
}

#[tokio::test]
async fn a_pause_by_a_plugin_outlives_a_kill() {
    let receiver = Receiver::kind().await;
    let plugin = "plugin = \"rules\"\nconcurrency = 1";
    let text = config(&receiver, plugin) + "[tenants.acme.plugins.rules]\npath = \"rules.wasm\"\n";
    let mut gateway = Gateway::stopped(&text);
    let says = Says::Retryable { code: "outage", after_ms: Some(6_000), whole_endpoint: true };
    std::fs::write(gateway.dir.path().join("rules.wasm"), classify_says(&says)).unwrap();
    gateway.boot().await;
    throttle_and_kill(&receiver, gateway, |file| file.replace("plugin = \"rules\"", "")).await;
}

#[tokio::test]
async fn what_only_fails_is_told_and_disabled_and_its_events_are_kept() {
    let down = Arc::new(AtomicBool::new(true));
    let is_down = Arc::clone(&down);
    let receiver =
        Receiver::start(move |_, _| Reply::status(if is_down.load(Ordering::SeqCst) { 500 } else { 204 })).await;
    // Its fifty attempts outlast what is waited for.
    let slower = config(&receiver, "disable_after = \"4s\"").replace("50ms", "200ms");
    let mut gateway = Gateway::with("[alerts]\nevery = \"100ms\"\n", &slower);
    gateway.boot().await;
    publish(&gateway, 1).await;
    super::alerts::until_firing(&gateway, "endpoint_failing", 1.0).await;
    let told = gateway.get("alerts?state=firing").await["items"][0].clone();
    let failing = endpoint(&gateway).await;
    assert_eq!(told["subject"], "endpoint/billing");
    assert_eq!((&told["since"], &told["due"]), (&failing["failing_since"], &failing["disables_at"]), "{told}");
    until("it is counted", || async {
        (gateway.metric("hookgate_endpoints_failing").await == Some(1.0)).then_some(())
    })
    .await;
    let disabled = until("it is disabled", || async {
        let found = endpoint(&gateway).await;
        (found["status"] == "disabled").then_some(found)
    })
    .await;
    assert_eq!((disabled["why"].as_str(), disabled["pending"].as_u64()), (Some("failing"), Some(1)), "{disabled}");
    assert_eq!(gateway.metric("hookgate_endpoints_failing").await, Some(0.0));
    let log = gateway.log();
    let line = |text: &str| log.lines().position(|line| line.contains(text));
    let (told, done) = (line("billing has done nothing but fail"), line("the endpoint was disabled"));
    assert!(told.is_some() && told < done, "{log}");
    super::alerts::until_firing(&gateway, "endpoint_failing", 0.0).await;
    super::alerts::until_firing(&gateway, "endpoint_disabled", 1.0).await;
    let log = gateway.log();
    let warned: Vec<&str> = log.lines().filter(|line| line.contains("WARN") && line.contains("billing")).collect();
    assert_eq!(warned.len(), 2, "each is told once: {warned:?}");

    let before = receiver.count();
    publish(&gateway, 1).await;
    until("both wait", || async { (endpoint(&gateway).await["pending"] == 2).then_some(()) }).await;
    assert_eq!(receiver.count(), before, "no request to a disabled endpoint");
    down.store(false, Ordering::SeqCst);
    assert_eq!(gateway.post("endpoints/billing/enable", &json!({})).await.status, 200);
    gateway.until_deliveries("state=delivered", 2).await;
    let enabled = endpoint(&gateway).await;
    assert_eq!((enabled["status"].as_str(), &enabled["failing_since"]), (Some("enabled"), &Value::Null));
}

/// In every window from one arrival to another: never more than the burst and what the rate gives meanwhile.
fn most_over_its_rate(arrivals: &[Instant], per_second: f64, burst: f64) -> f64 {
    let mut most: f64 = 0.0;
    for (i, first) in arrivals.iter().enumerate() {
        for (count, last) in arrivals[i..].iter().enumerate() {
            let allowed = burst + per_second * (*last - *first).as_secs_f64();
            most = most.max((count + 1) as f64 / allowed);
        }
    }
    most
}

#[tokio::test]
async fn rate_and_concurrency_hold_over_hundreds_of_requests_also_over_a_restart() {
    const EVENTS: usize = 300;
    // Five parts of a hundred are 200 ms here: a busy machine may hold the first request up, and not the last.
    let (per_second, burst) = (25.0, 100.0);
    let (now, over) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (n, o) = (Arc::clone(&now), Arc::clone(&over));
    let receiver = Receiver::start(move |_, _| {
        if n.fetch_add(1, Ordering::SeqCst) + 1 > 6 {
            o.fetch_add(1, Ordering::SeqCst);
        }
        let n = Arc::clone(&n);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(10)).await; // plays the peer: serving
            n.fetch_sub(1, Ordering::SeqCst);
        });
        Reply::Late(Duration::from_millis(15), Box::new(Reply::status(204)))
    })
    .await;
    let limits = "rate = { per_second = 25, burst = 100 }\nconcurrency = 6";
    let mut gateway = Gateway::start(&config(&receiver, limits)).await;
    publish(&gateway, EVENTS / 2).await;
    // The rest arrives one by one behind the backlog.
    for i in 0..EVENTS / 2 {
        gateway.accepted(gateway.github(&i.to_string(), "push", &i.to_string())).await;
    }
    let seen = receiver.until_count(EVENTS).await;
    let arrivals: Vec<Instant> = seen.iter().map(|seen| seen.at).collect();
    let most = most_over_its_rate(&arrivals, per_second, burst);
    assert!(most <= 1.05, "{most} of what the rate allows");
    let took = (arrivals[EVENTS - 1] - arrivals[0]).as_secs_f64();
    let needed = (EVENTS as f64 - burst) / per_second;
    assert!(took <= needed * 1.05, "{took} s for what {needed} s would do");

    // No second burst by a restart, whenever it comes.
    publish(&gateway, 60).await;
    receiver.until_count(EVENTS + 10).await;
    gateway.kill();
    gateway.boot().await;
    until("all are delivered", || async { (endpoint(&gateway).await["pending"] == 0).then_some(()) }).await;
    let seen = receiver.until_count(EVENTS + 60).await;
    let arrivals: Vec<Instant> = seen.iter().map(|seen| seen.at).collect();
    let most = most_over_its_rate(&arrivals, per_second, burst);
    assert!(most <= 1.05, "{most} of what the rate allows, over a restart");
    assert_eq!(over.load(Ordering::SeqCst), 0, "more at once than its concurrency");
}
