//! Retries, throttles, expiry and ambiguity, over real sockets.

use super::{Gateway, Receiver, Reply, endpoint, github_source, until};
use std::time::Duration;

#[tokio::test]
async fn the_budget_is_spent_and_no_more() {
    let receiver = Receiver::sequence(&[500]).await;
    let gateway = Gateway::start(&(github_source() + &endpoint("billing", &receiver.url("/"), ""))).await;
    gateway.accepted(gateway.github("1", "push", "{}")).await;
    let dead = gateway.until_deliveries("state=dead", 1).await.remove(0);
    assert_eq!((dead["reason"].as_str(), dead["attempt_count"].as_u64()), (Some("http_500"), Some(3)));
    assert_eq!(receiver.count(), 3);
    assert_eq!(gateway.metric("hookgate_dlq_depth").await, Some(1.0));
    let gaps: Vec<Duration> = receiver.journal().windows(2).map(|w| w[1].at - w[0].at).collect();
    assert!(gaps[0] >= Duration::from_millis(50) && gaps[1] >= Duration::from_millis(100), "{gaps:?}");
}

#[tokio::test]
async fn a_permanent_refusal_burns_no_retries() {
    let receiver = Receiver::sequence(&[422]).await;
    let gateway = Gateway::start(&(github_source() + &endpoint("billing", &receiver.url("/"), ""))).await;
    gateway.accepted(gateway.github("1", "push", "{}")).await;
    let dead = gateway.until_deliveries("state=dead", 1).await.remove(0);
    assert_eq!(dead["reason"], "http_422");
    assert_eq!(receiver.count(), 1);
}

/// The first 429 pauses the whole endpoint, in the ledger; the others behind it spend nothing of their budget.
#[tokio::test]
async fn a_throttle_pauses_the_endpoint_in_both_forms() {
    for form in ["seconds", "date"] {
        let receiver = Receiver::start(move |seen, before| {
            if before == 0 && seen.body == "first" {
                let value = match form {
                    "seconds" => "2".to_owned(),
                    _ => httpdate::fmt_http_date(
                        std::time::UNIX_EPOCH + std::time::UNIX_EPOCH.elapsed().unwrap() + Duration::from_secs(3),
                    ),
                };
                return Reply::status(429).with("retry-after", value);
            }
            Reply::status(204)
        })
        .await;
        let gateway = Gateway::start(&(github_source() + &endpoint("billing", &receiver.url("/"), ""))).await;
        gateway.accepted(gateway.github("1", "push", "first")).await;
        let paused = until("the endpoint is paused", || async {
            let endpoint = gateway.get("endpoints/billing").await;
            (endpoint["status"] == "paused").then_some(endpoint)
        })
        .await;
        assert_eq!(paused["why"], "retry_after", "{paused}");
        let throttled_at = receiver.journal()[0].at;
        gateway.accepted(gateway.github("2", "push", "second")).await;
        let delivered = gateway.until_deliveries("state=delivered", 2).await;
        for seen in &receiver.journal()[1..] {
            assert!(seen.at - throttled_at >= Duration::from_millis(1_000), "{form}: sent inside the pause");
        }
        let mut attempts: Vec<_> = delivered.iter().map(|d| d["attempt_count"].as_u64().unwrap()).collect();
        attempts.sort_unstable();
        assert_eq!(attempts, [1, 2], "{form}: only the throttled one counts an attempt");
        assert_eq!(gateway.get("endpoints/billing").await["status"], "enabled");
    }
}

#[tokio::test]
async fn what_has_expired_is_not_sent() {
    let receiver = Receiver::sequence(&[503]).await;
    let long = "retry = { max_attempts = 5, delays = [\"1h\"], jitter = \"none\" }";
    let config = format!("[tenants.acme.endpoints.sms]\nurl = \"{}\"\n{long}\n", receiver.url("/"));
    let gateway = Gateway::start(&config).await;
    let expires = jiff_now_plus(Duration::from_millis(600));
    let event = serde_json::json!({"type": "reminder", "key": "k", "payload": {}, "expires_at": expires});
    let answer = gateway.post("events", &event).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let expired = gateway.until_deliveries("state=expired", 1).await.remove(0);
    assert_eq!(expired["reason"], "expired");
    assert_eq!(receiver.count(), 1, "one try before the expiry, none after it");
}

pub(super) fn jiff_now_plus(span: Duration) -> String {
    let at = std::time::UNIX_EPOCH.elapsed().unwrap() + span;
    hookgate::clock::Timestamp::from_millis(i64::try_from(at.as_millis()).unwrap()).to_rfc3339()
}

#[tokio::test]
async fn what_may_have_been_received_is_marked_and_held_when_asked() {
    let receiver = Receiver::start(|_, _| Reply::Hang).await;
    let more = "timeout = \"300ms\"\non_ambiguous = \"hold\"";
    let gateway = Gateway::start(&(github_source() + &endpoint("hold", &receiver.url("/"), more))).await;
    gateway.accepted(gateway.github("1", "push", "{}")).await;
    let dead = gateway.until_deliveries("state=dead", 1).await.remove(0);
    assert_eq!(dead["reason"], "ambiguous");
    assert_eq!(receiver.count(), 1, "never blindly resent");
    let id = dead["id"].as_str().unwrap();
    assert_eq!(gateway.delivery(id).await["attempts"][0]["ambiguous"], true);
    let bad = gateway.post(&format!("deliveries/{id}/resolve"), &serde_json::json!({"as": "perhaps"})).await;
    assert_eq!(bad.status, 422, "{}", bad.text);
    let note = serde_json::json!({"as": "sent", "note": "seen in the provider's log"});
    assert_eq!(gateway.post(&format!("deliveries/{id}/resolve"), &note).await.status, 200);
    assert_eq!(gateway.delivery(id).await["state"], "resolved");
}

#[tokio::test]
async fn a_timeout_after_the_request_left_is_retried_with_the_same_identity() {
    let receiver = Receiver::start(|_, before| if before == 0 { Reply::Hang } else { Reply::status(200) }).await;
    let gateway =
        Gateway::start(&(github_source() + &endpoint("slow", &receiver.url("/"), "timeout = \"300ms\""))).await;
    gateway.accepted(gateway.github("1", "push", "{}")).await;
    let row = gateway.until_deliveries("state=delivered", 1).await.remove(0);
    let first = &gateway.delivery(row["id"].as_str().unwrap()).await["attempts"][0];
    assert_eq!((first["outcome"].as_str(), first["ambiguous"].as_bool()), (Some("timed_out"), Some(true)), "{first}");
    let seen = receiver.journal();
    for name in ["webhook-id", "idempotency-key"] {
        assert_eq!(seen[0].header(name), seen[1].header(name));
    }
}

#[tokio::test]
async fn nobody_listening_is_retryable_and_not_ambiguous() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let more = "on_ambiguous = \"hold\"";
    let config = github_source() + &endpoint("gone", &format!("http://127.0.0.1:{port}/"), more);
    let gateway = Gateway::start(&config).await;
    gateway.accepted(gateway.github("1", "push", "{}")).await;
    let dead = gateway.until_deliveries("state=dead", 1).await.remove(0);
    assert_eq!((dead["reason"].as_str(), dead["attempt_count"].as_u64()), (Some("connect"), Some(3)));
}

#[tokio::test]
async fn a_refused_address_is_terminal_at_once() {
    let config = github_source() + &endpoint("inside", "https://10.0.0.1/hooks", "");
    let gateway = Gateway::start(&config).await;
    gateway.accepted(gateway.github("1", "push", "{}")).await;
    let dead = gateway.until_deliveries("state=dead", 1).await.remove(0);
    assert_eq!((dead["reason"].as_str(), dead["attempt_count"].as_u64()), (Some("policy"), Some(1)));
    assert_eq!(gateway.metric("hookgate_blocked_addresses_total").await, Some(1.0));
}

/// Work behind a closed endpoint waits for it, but not beyond its own time.
#[tokio::test]
async fn what_expires_behind_a_pause_ends_there() {
    let receiver = Receiver::kind().await;
    let gateway = Gateway::start(&endpoint("sms", &receiver.url("/"), "")).await;
    assert_eq!(gateway.post("endpoints/sms/pause", &serde_json::json!({})).await.status, 200);
    let expires = jiff_now_plus(Duration::from_millis(400));
    let soon = serde_json::json!({"type": "reminder", "payload": 1, "expires_at": expires});
    let lasting = serde_json::json!({"type": "reminder", "payload": 2});
    for event in [soon, lasting] {
        assert_eq!(gateway.post("events", &event).await.status, 200);
    }
    let expired = gateway.until_deliveries("state=expired", 1).await.remove(0);
    assert_eq!((expired["reason"].as_str(), expired["attempt_count"].as_u64()), (Some("expired"), Some(1)));
    let attempts = gateway.delivery(expired["id"].as_str().unwrap()).await["attempts"].clone();
    assert_eq!(attempts[0]["outcome"], "released", "nothing was sent, nothing is counted");
    assert_eq!(gateway.get("endpoints/sms").await["pending"], 1);
    assert_eq!(gateway.post("endpoints/sms/resume", &serde_json::json!({})).await.status, 200);
    let seen = receiver.until_count(1).await;
    assert_eq!((seen.len(), &seen[0].body[..]), (1, &b"2"[..]));
}
