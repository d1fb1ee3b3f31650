//! Alerts on the real binary: told in time, once, signed, over a kill, and never in a loop.

use super::{Gateway, Receiver, Reply, endpoint, until};
use hookgate::clock::{Clock as _, SystemClock, Timestamp};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const QUICK: &str = "[alerts]\nevery = \"100ms\"\n";

/// The endpoint that alerts go to, and the tenant's thresholds.
fn told_to(url: &str, thresholds: &str) -> String {
    let own = format!("event_types = [\"hookgate.alert\"]\nsigning_secrets = [\"{SECRET}\"]");
    endpoint("ops", url, &own) + "[tenants.acme.alerts]\nendpoint = \"ops\"\n" + thresholds + "\n"
}

/// The endpoint of jobs; a failed one waits long for its next attempt.
fn jobs(url: &str) -> String {
    format!(
        "[tenants.acme.endpoints.jobs]\nurl = \"{url}\"\nevent_types = [\"job\"]\n\
         retry = {{ max_attempts = 3, delays = [\"1h\"], jitter = \"none\" }}\n"
    )
}

/// What was told, each verified as its receiver would.
pub fn verified(receiver: &Receiver, secret: &str) -> Vec<Value> {
    let webhook = standardwebhooks::Webhook::new(secret).unwrap();
    let told = receiver.journal().into_iter().map(|seen| {
        let mut headers = http::HeaderMap::new();
        for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
            headers.insert(name, seen.header(name).parse().unwrap());
        }
        webhook.verify(&seen.body, &headers).unwrap();
        let alert: Value = serde_json::from_slice(&seen.body).unwrap();
        assert_eq!(alert["type"], "hookgate.alert");
        assert_eq!(seen.header("idempotency-key"), alert["id"].as_str().unwrap());
        alert
    });
    told.collect()
}

pub fn kinds(alerts: &[Value]) -> Vec<&str> {
    alerts.iter().map(|alert| alert["kind"].as_str().unwrap()).collect()
}

pub async fn until_firing(gateway: &Gateway, kind: &str, count: f64) {
    let metric = format!("hookgate_alerts_firing{{kind=\"{kind}\"}}");
    until(&format!("{metric} is {count}"), || async { (gateway.metric(&metric).await == Some(count)).then_some(()) })
        .await;
}

#[tokio::test]
async fn a_deadline_at_risk_is_told_before_it_once_and_over_a_kill() {
    let (ops, failing) = (Receiver::kind().await, Receiver::start(|_, _| Reply::status(503)).await);
    let tenants = jobs(&failing.url("/")) + &told_to(&ops.url("/"), "deadline_margin = \"1h\"");
    let mut gateway = Gateway::with(QUICK, &tenants);
    gateway.boot().await;
    let deadline = SystemClock.now().plus(Duration::from_secs(8));
    for key in ["nightly:acme:1", "nightly:acme:2"] {
        let job = json!({"type": "job", "key": key, "payload": {}, "deadline": deadline.to_rfc3339()});
        assert_eq!(gateway.post("events", &job).await.status, 200);
    }
    ops.until_count(1).await;
    assert!(SystemClock.now() < deadline, "told in time");
    let alert = verified(&ops, SECRET).remove(0);
    assert_eq!((alert["kind"].as_str(), alert["severity"].as_str()), (Some("deadline_risk"), Some("critical")));
    assert_eq!(alert["subject"], "endpoint/jobs");
    assert_eq!(Timestamp::parse_rfc3339(alert["due"].as_str().unwrap()), Some(deadline));
    let sample = gateway.delivery(alert["sample"].as_str().unwrap()).await;
    assert_eq!((&sample["endpoint"], &sample["state"]), (&"jobs".into(), &"pending".into()));
    assert!(alert["next_step"].as_str().unwrap().contains("hookgate delivery get dlv_"), "{alert}");

    gateway.kill();
    gateway.boot().await;
    until_firing(&gateway, "deadline_risk", 1.0).await;
    let shown = until("both jobs are counted", || async {
        let alerts = gateway.get("alerts?state=firing").await["items"].as_array().unwrap().clone();
        (alerts.len() == 1 && alerts[0]["value"] == 2).then(|| alerts[0].clone())
    })
    .await;
    assert_eq!((&shown["id"], &shown["state"]), (&alert["id"], &"firing".into()));
    let event = gateway.get(&format!("events/{}", shown["event"].as_str().unwrap())).await;
    assert_eq!((&event["type"], event["deliveries"].as_array().unwrap().len()), (&"hookgate.alert".into(), 1));
    for row in gateway.get("deliveries?endpoint=jobs").await["items"].as_array().unwrap() {
        gateway.post(&format!("deliveries/{}/cancel", row["id"].as_str().unwrap()), &json!({})).await;
    }
    until_firing(&gateway, "deadline_risk", 0.0).await;
    assert_eq!(kinds(&verified(&ops, SECRET)), ["deadline_risk"]);
    let log = gateway.log();
    let warnings = log.lines().filter(|line| line.contains("WARN") && line.contains("may miss the deadline"));
    assert_eq!((warnings.count(), log.matches("alert cleared").count()), (1, 1), "{log}");
}

#[tokio::test]
async fn depth_fires_clears_after_a_redrive_and_fires_again() {
    let mended = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&mended);
    let moody = Receiver::start(move |_, _| Reply::status(if seen.load(Ordering::SeqCst) { 200 } else { 400 })).await;
    let ops = Receiver::kind().await;
    let gateway = Gateway::with(QUICK, &(jobs(&moody.url("/")) + &told_to(&ops.url("/"), "dlq_depth = 2")));
    let mut gateway = gateway;
    gateway.boot().await;
    let job = json!({"type": "job", "payload": {}});
    for round in 1..=2 {
        mended.store(false, Ordering::SeqCst);
        gateway.post("events", &job).await;
        gateway.until_deliveries("state=dead", 1).await;
        assert_eq!(ops.count(), round - 1, "one arrival alone is no alert");
        gateway.post("events", &job).await;
        let dead = gateway.until_deliveries("state=dead", 2).await;
        ops.until_count(round).await;
        until_firing(&gateway, "dlq_depth", 1.0).await;
        mended.store(true, Ordering::SeqCst);
        for row in dead {
            let path = format!("deliveries/{}/redrive", row["id"].as_str().unwrap());
            assert!((200..300).contains(&gateway.post(&path, &json!({})).await.status));
        }
        until_firing(&gateway, "dlq_depth", 0.0).await;
    }
    let told = verified(&ops, SECRET);
    assert_eq!(kinds(&told), ["dlq_depth"; 2]);
    assert_eq!((&told[0]["value"], &told[0]["threshold"]), (&2.into(), &2.into()));
    assert_ne!(told[0]["id"], told[1]["id"]);
    let rows = gateway.get("alerts").await["items"].as_array().unwrap().clone();
    assert_eq!((rows.len(), rows.iter().all(|row| row["state"] == "cleared")), (2, true), "{rows:?}");
    let listed = gateway.command(&["alert", "list", "--json"]).output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["items"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn the_alert_endpoints_own_trouble_makes_no_loop() {
    let (refusing, jobless) = (Receiver::start(|_, _| Reply::status(400)).await, Receiver::sequence(&[410]).await);
    let thresholds = "dlq_depth = 1\npaused_for = \"0s\"\nflapping_times = 1";
    let mut gateway = Gateway::with(QUICK, &(jobs(&jobless.url("/")) + &told_to(&refusing.url("/"), thresholds)));
    gateway.boot().await;
    // A dead letter, and an endpoint that is disabled by it: three alerts, each refused by the alert endpoint.
    gateway.post("events", &json!({"type": "job", "payload": {}})).await;
    gateway.until_deliveries("state=dead&endpoint=ops", 3).await;
    until_firing(&gateway, "alerts_undelivered", 1.0).await;
    gateway.post("endpoints/ops/pause", &json!({})).await;
    until_firing(&gateway, "endpoint_paused", 1.0).await;
    until_firing(&gateway, "endpoint_flapping", 2.0).await;
    let firing = gateway.get("alerts?state=firing").await["items"].as_array().unwrap().clone();
    let unsent: Vec<_> = firing.iter().filter(|alert| alert["event"].is_null()).cloned().collect();
    let mut told = kinds(&unsent);
    told.sort_unstable();
    assert_eq!(told, ["alerts_undelivered", "endpoint_flapping", "endpoint_paused"], "{firing:?}");
    let sent = firing.len() - unsent.len();
    assert_eq!((sent, refusing.count()), (3, 3), "each was tried once, and begot none: {firing:?}");
    let rows = gateway.get("deliveries?endpoint=ops").await["items"].as_array().unwrap().clone();
    assert_eq!(rows.len(), 3, "nothing waits for it either");
}

#[tokio::test]
async fn the_gateways_own_alerts_go_where_the_operator_says() {
    let ops = Receiver::kind().await;
    let extra = "[alerts]\nevery = \"100ms\"\ntenant = \"acme\"\nendpoint = \"ops\"\nledger_bytes = \"1B\"\n\
                 disk_free_bytes = \"1PiB\"\n"
        .replace("1PiB", "1048576GiB");
    let own = format!("event_types = [\"hookgate.alert\"]\nsigning_secrets = [\"{SECRET}\"]");
    let mut gateway = Gateway::with(&extra, &endpoint("ops", &ops.url("/"), &own));
    gateway.boot().await;
    ops.until_count(2).await;
    let alerts = verified(&ops, SECRET);
    let mut told = kinds(&alerts);
    told.sort_unstable();
    assert_eq!(told, ["disk_free", "ledger_size"]);
    assert!(alerts.iter().all(|alert| alert["tenant"].is_null() && alert["unit"] == "bytes"));
    assert_eq!(gateway.get("alerts").await["items"].as_array().unwrap().len(), 0, "no tenant's");
    let listed = gateway.command(&["alert", "list", "--all", "--firing", "--quiet"]).output().unwrap();
    assert_eq!(String::from_utf8(listed.stdout).unwrap().lines().count(), 2);
    // A reload brings other thresholds.
    let text = std::fs::read_to_string(gateway.config()).unwrap();
    std::fs::write(gateway.config(), text.replace("\"1B\"", "\"1GiB\"")).unwrap();
    gateway.signal(libc::SIGHUP);
    until_firing(&gateway, "ledger_size", 0.0).await;
    until_firing(&gateway, "disk_free", 1.0).await;
    assert_eq!(ops.count(), 2, "what clears is not sent");
}

#[tokio::test]
async fn a_share_of_dead_letters_is_told_once_from_enough_on_and_clears_below_it() {
    let picky =
        Receiver::start(|seen, _| Reply::status(if seen.body.as_ref() == b"\"bad\"" { 400 } else { 204 })).await;
    let ops = Receiver::kind().await;
    let thresholds = "terminal_rate = \"50%\"\nterminal_min_count = 4";
    let mut gateway = Gateway::with(QUICK, &(jobs(&picky.url("/")) + &told_to(&ops.url("/"), thresholds)));
    gateway.boot().await;
    let publish = async |gateway: &Gateway, payload: &str| {
        let answer = gateway.post("events", &json!({"type": "job", "payload": payload})).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    };
    for _ in 0..2 {
        publish(&gateway, "bad").await;
    }
    gateway.until_deliveries("endpoint=jobs&state=dead", 2).await;
    for _ in 0..2 {
        assert_eq!(ops.count(), 0, "all that ended is dead, but too few have");
        publish(&gateway, "good").await;
    }
    ops.until_count(1).await;
    let alert = verified(&ops, SECRET).remove(0);
    assert_eq!((&alert["kind"], &alert["subject"]), (&json!("terminal_rate"), &json!("endpoint/jobs")));
    assert_eq!([&alert["value"], &alert["threshold"]], [&json!(5_000), &json!(5_000)]);
    assert_eq!(alert["unit"], "basis_points");
    assert!(alert["summary"].as_str().unwrap().starts_with("50% of what ended"), "{alert}");
    gateway.until_deliveries("endpoint=ops&state=delivered", 1).await;
    gateway.kill();
    gateway.boot().await;
    until_firing(&gateway, "terminal_rate", 1.0).await;
    let stats = gateway.get("stats?endpoint=jobs").await;
    assert_eq!(stats["endpoints"][0]["terminal_rate"], 0.5, "as the statistics say: {stats}");
    for _ in 0..2 {
        publish(&gateway, "good").await;
    }
    until_firing(&gateway, "terminal_rate", 0.0).await;
    assert_eq!(kinds(&verified(&ops, SECRET)), ["terminal_rate"]);
}
