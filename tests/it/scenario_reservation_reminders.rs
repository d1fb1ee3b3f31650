//! SCENARIOS 1, reservation reminders: a late message is a wrong message, on `examples/reservation-reminders`.

use super::examples::{example, from_now, wait_after};
use super::{Gateway, Receiver, Reply, until};
use hookgate::clock::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

const KEY: &str = "hold_8f2:expiry-warning:sms";
const POLICY: &str = "base = \"2s\", factor = 2.0, cap = \"5m\", jitter = \"equal\"";
const QUICK: (&str, &str) = (POLICY, "base = \"50ms\", factor = 2.0, cap = \"100ms\", jitter = \"none\"");

async fn reminders(home: &Receiver, abroad: &Receiver, edits: &[(&str, &str)]) -> Gateway {
    let (home, abroad) = (home.addr.to_string(), abroad.addr.to_string());
    let places = [
        ("127.0.0.1/32:9002-9003", "127.0.0.1/32"),
        ("127.0.0.1:9002", home.as_str()),
        ("127.0.0.1:9003", abroad.as_str()),
    ];
    let mut gateway = example("reservation-reminders", &[&places[..], edits].concat());
    gateway.boot().await;
    gateway
}

fn queued(id: &str) -> Reply {
    Reply::body(200, &json!({"status": "queued", "message_id": id}).to_string())
}

fn reminder(key: &str, expires_in: Duration) -> Value {
    json!({"type": "reminder.sms", "key": key, "expires_at": from_now(expires_in),
           "payload": {"to": "+1 555 0100", "body": "Held until ten."}})
}

const LONG: Duration = Duration::from_secs(600);

fn time(value: &Value) -> Timestamp {
    Timestamp::parse_rfc3339(value.as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn a_reminder_is_sent_once_and_its_receipt_is_kept() {
    let home = Receiver::start(|_, before| if before < 2 { Reply::status(429) } else { queued("SM-1") }).await;
    let abroad = Receiver::kind().await;
    let mut gateway = reminders(&home, &abroad, &[]).await;
    // Racing publications of one key are one event.
    let body = reminder(KEY, LONG);
    let answers = futures_util::future::join_all((0..16).map(|_| gateway.post("events", &body))).await;
    let events: BTreeSet<_> = answers.iter().map(|a| a.json()["event"].as_str().unwrap().to_owned()).collect();
    let new = answers.iter().filter(|a| a.json()["duplicate"] == false).count();
    assert_eq!((events.len(), new), (1, 1));
    assert_eq!(gateway.metric("hookgate_duplicates_suppressed_total").await, Some(15.0));

    // The waits are the example's own: 2 to the n, half of it fixed and half by chance.
    let waiting = gateway.until_deliveries("state=pending", 1).await.remove(0);
    let id = waiting["id"].as_str().unwrap().to_owned();
    gateway.kill();
    gateway.boot().await;
    gateway.until_deliveries("state=delivered", 1).await;
    let delivery = gateway.delivery(&id).await;
    let attempts = delivery["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 3, "{delivery}");
    for (attempt, ceiling) in attempts.iter().zip([2, 4]) {
        assert_eq!((&attempt["reason"], &attempt["decided_by"]), (&json!("http_429"), &json!("plugin")), "{attempt}");
        let (wait, slack) = (wait_after(attempt), Duration::from_millis(50));
        let bounds = Duration::from_secs(ceiling / 2)..=Duration::from_secs(ceiling);
        assert!(
            bounds.contains(&wait) || bounds.contains(&(wait + slack)) || bounds.contains(&(wait - slack)),
            "{wait:?}"
        );
    }
    assert_eq!(delivery["reference"], "SM-1");
    let found = gateway.get("deliveries?q=SM-1").await;
    assert_eq!(found["items"][0]["id"], id.as_str(), "the receipt finds it");

    let seen = home.journal();
    assert_eq!(seen.len(), 3);
    for one in &seen {
        assert_eq!((one.header("idempotency-key"), one.path.as_str()), (KEY, "/messages"));
        let message: Value = serde_json::from_slice(&one.body).unwrap();
        assert_eq!((&message["reference"], &message["from"]), (&json!(KEY), &json!("Acme")));
    }
    // Sent already: a later copy sends nothing, and is counted.
    let late = gateway.post("events", &body).await.json();
    assert_eq!(late["duplicate"], true);
    gateway.until_drained().await;
    assert_eq!(home.count(), 3);
    assert_eq!(gateway.metric("hookgate_duplicates_suppressed_total").await, Some(1.0), "since the restart");
    // What an operator can read, of before the kill too.
    let stats = gateway.get("stats").await;
    let sms = stats["endpoints"].as_array().unwrap().iter().find(|e| e["endpoint"] == "sms").unwrap();
    for quantile in ["p50", "p95", "p99"] {
        assert!(sms["latency_ms"][quantile].as_u64().is_some_and(|ms| ms >= 3_000), "two waits: {sms}");
    }
    let third = &sms["by_attempt"][2];
    assert_eq!((&third["attempt"], &third["delivered"], &third["share"]), (&json!(3), &json!(1), &json!(1.0)), "{sms}");
    for (figure, value) in
        [("attempts_per_delivered", json!(3.0)), ("terminal_rate", json!(0.0)), ("status_429", json!(2))]
    {
        assert_eq!(sms[figure], value, "{figure}: {sms}");
    }
    let published = &stats["sources"][0];
    assert_eq!((&published["events"], &published["duplicates"]), (&json!(1), &json!(16)), "{published}");
    assert_eq!((&sms["now"]["dead"], &sms["now"]["oldest_dead_at"]), (&json!(0), &Value::Null));
    // Another message under the same key is not slipped in.
    let mut other = body.clone();
    other["payload"]["body"] = json!("Held until nine.");
    let refused = gateway.post("events", &other).await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "key_reused"));
}

#[tokio::test]
async fn what_never_can_be_sent_burns_no_retries() {
    let answers: [(Reply, &str); 5] = [
        (Reply::status(401), "http_401"),
        (Reply::body(400, "{\"error\":\"no such number\"}"), "provider_error"),
        (Reply::status(422), "http_422"),
        (Reply::body(200, "{\"error\":\"suspended\"}"), "suspended"),
        (Reply::body(200, "{\"what\":\"ever\"}"), "unknown_answer"),
    ];
    let replies = answers.clone();
    let number = |seen: &super::receiver::Seen| seen.header("idempotency-key").parse::<usize>().unwrap();
    let home = Receiver::start(move |seen, _| replies[number(seen)].0.clone()).await;
    let gateway = reminders(&home, &Receiver::kind().await, &[]).await;
    for n in 0..answers.len() {
        gateway.post("events", &reminder(&n.to_string(), LONG)).await;
    }
    for row in gateway.until_deliveries("state=dead", answers.len()).await {
        let n: usize = row["key"].as_str().unwrap().parse().unwrap();
        assert_eq!((&row["reason"], &row["attempt_count"]), (&json!(answers[n].1), &json!(1)), "{row}");
    }
    assert_eq!(home.count(), answers.len());
    assert_eq!(gateway.metric("hookgate_dlq_depth").await, Some(5.0));
    assert!(gateway.metric("hookgate_dlq_oldest_age_seconds").await.is_some_and(|age| (0.0..60.0).contains(&age)));
}

#[tokio::test]
async fn what_may_succeed_later_has_five_attempts() {
    let home = Receiver::start(|seen, _| match seen.header("idempotency-key") {
        "timeout" => Reply::Hang,
        "limited" => Reply::status(429),
        _ => Reply::status(503),
    })
    .await;
    let quick_timeout = ("timeout = \"10s\"", "timeout = \"200ms\"");
    let gateway = reminders(&home, &Receiver::kind().await, &[QUICK, quick_timeout]).await;
    for key in ["timeout", "limited", "failing"] {
        gateway.post("events", &reminder(key, LONG)).await;
    }
    for row in gateway.until_deliveries("state=dead", 3).await {
        assert_eq!(row["attempt_count"], 5, "{row}");
    }
    let sent = |key: &str| home.journal().iter().filter(|seen| seen.header("idempotency-key") == key).count();
    assert_eq!(["timeout", "limited", "failing"].map(sent), [5, 5, 5], "with the same key each time");

    // Nobody listens: as many attempts.
    let nobody = Receiver::kind().await;
    let gateway = reminders(&nobody, &Receiver::kind().await, &[QUICK]).await;
    drop(nobody);
    gateway.post("events", &reminder("unreachable", LONG)).await;
    let row = gateway.until_deliveries("state=dead", 1).await.remove(0);
    assert_eq!((&row["attempt_count"], &row["reason"]), (&json!(5), &json!("transport_connect")), "{row}");
}

#[tokio::test]
async fn nobody_is_reminded_of_what_is_gone() {
    let home =
        Receiver::start(|seen, _| Reply::status(if seen.header("idempotency-key") == "dies" { 401 } else { 503 }))
            .await;
    let mut gateway = reminders(&home, &Receiver::kind().await, &[]).await;
    let soon = Duration::from_millis(2_500);
    for key in ["waits", "dies"] {
        gateway.post("events", &reminder(key, soon)).await;
    }
    let dead = gateway.until_deliveries("state=dead", 1).await.remove(0);
    gateway.until_deliveries("state=pending", 1).await;
    gateway.kill();
    gateway.boot().await;
    // It is redriven in time, and finds its endpoint paused until it is too late.
    gateway.post("endpoints/sms/pause", &json!({})).await;
    let path = format!("deliveries/{}/redrive", dead["id"].as_str().unwrap());
    let redriven = gateway.post(&path, &json!({"note": "the account is open again"})).await;
    let in_time = redriven.status == 200;
    assert!(in_time || redriven.code() == "expired", "{}", redriven.text);
    gateway.until_deliveries("state=expired", 1 + usize::from(in_time)).await;
    let before = home.count();
    gateway.post("endpoints/sms/resume", &json!({})).await;
    gateway.until_drained().await;
    assert_eq!(home.count(), before);
    for row in gateway.get("deliveries?state=expired").await["items"].as_array().unwrap() {
        assert_eq!(row["reason"], "expired", "{row}");
    }
}

#[tokio::test]
async fn a_dead_letter_whose_time_is_over_stays_dead() {
    let home = Receiver::start(|_, _| Reply::status(401)).await;
    let gateway = reminders(&home, &Receiver::kind().await, &[]).await;
    gateway.post("events", &reminder(KEY, Duration::from_millis(900))).await;
    let dead = gateway.until_deliveries("state=dead", 1).await.remove(0);
    let expires = time(&dead["expires_at"]);
    until("its time is over", || async { (time(&json!(from_now(Duration::ZERO))) > expires).then_some(()) }).await;
    let path = format!("deliveries/{}/redrive", dead["id"].as_str().unwrap());
    let refused = gateway.post(&path, &json!({})).await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "expired"));
    assert_eq!(home.count(), 1);
}

/// Where a second message could do harm, what may have been sent is left to a person: after a timeout, and after a kill.
#[tokio::test]
async fn what_may_have_been_sent_is_held_where_keys_mean_nothing() {
    let (home, abroad) = (Receiver::kind().await, Receiver::start(|_, _| Reply::Hang).await);
    for killed in [false, true] {
        let timeout = if killed { "30s" } else { "300ms" };
        let timeout = ("timeout = \"10s\"", format!("timeout = \"{timeout}\""));
        let mut gateway = reminders(&home, &abroad, &[(timeout.0, &timeout.1)]).await;
        let before = abroad.count();
        let message = json!({"type": "reminder.sms-abroad", "payload": {"to": "+44 1632 960", "body": "Held."}});
        gateway.post("events", &message).await;
        abroad.until_count(before + 1).await;
        if killed {
            gateway.kill();
            gateway.boot().await;
        }
        let dead = gateway.until_deliveries("state=dead", 1).await.remove(0);
        assert_eq!(dead["reason"], "ambiguous", "killed: {killed}");
        let id = dead["id"].as_str().unwrap();
        let attempt = gateway.delivery(id).await["attempts"][0].clone();
        assert_eq!((&attempt["ambiguous"], &attempt["disposition"]), (&json!(true), &json!("dead")), "{attempt}");
        assert_eq!(abroad.count(), before + 1, "never blindly sent again");
        let found = json!({"as": "sent", "note": "seen in their log"});
        let resolved = gateway.post(&format!("deliveries/{id}/resolve"), &found).await.json();
        assert_eq!((&resolved["state"], &resolved["reason"]), (&json!("resolved"), &json!("sent")));
        assert_eq!(gateway.metric("hookgate_dlq_depth").await, Some(0.0));
    }
}
