//! From a signed request to a delivered one.

use super::{Gateway, Receiver, endpoint, github_source};

/// Bytes in are bytes out: key order, number forms, odd white space, invalid UTF-8.
#[tokio::test]
async fn the_bytes_that_came_in_go_out() {
    let receiver = Receiver::kind().await;
    let config = github_source() + &endpoint("billing", &receiver.url("/hooks?x=1"), "");
    let gateway = Gateway::start(&config).await;
    let bodies: [&[u8]; 4] = [b"{\"b\":1.0,  \"a\":1e3,\"b\":2}\r\n", b"", b"\xff\xfe\x00binary", b"\xef\xbb\xbf{}"];
    for (i, body) in bodies.into_iter().enumerate() {
        let request = gateway
            .inlet("github", body)
            .header("x-github-event", "push")
            .header("x-github-delivery", i.to_string())
            .header("x-custom", "kept")
            .header("cookie", "session=1")
            .header("authorization", "Bearer nobody-needs-this")
            .header("x-hub-signature-256", super::process::github_signature(super::process::GITHUB_SECRET, body));
        gateway.accepted(request).await;
        let seen = receiver.until_count(i + 1).await;
        let seen = seen.last().unwrap();
        assert_eq!(seen.body, body);
        assert_eq!((seen.method.as_str(), seen.path.as_str()), ("POST", "/hooks?x=1"));
        assert_eq!(seen.header("content-type"), "application/json");
        assert_eq!(seen.header("x-custom"), "kept");
        for gone in ["cookie", "authorization", "x-hub-signature-256"] {
            assert_eq!(seen.header(gone), "", "{gone}");
        }
    }
}

#[tokio::test]
async fn a_delivery_carries_the_hosts_headers_and_a_signature_that_verifies() {
    let receiver = Receiver::kind().await;
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let old = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let more = format!("signing_secrets = [\"{secret}\", \"{old}\"]");
    let config = github_source() + &endpoint("billing", &receiver.url("/hooks"), &more);
    let gateway = Gateway::start(&config).await;
    let event = gateway.accepted(gateway.github("d-1", "push", "{\"n\":1}")).await;
    let seen = receiver.until_count(1).await.remove(0);
    let delivery = gateway.until_deliveries("state=delivered", 1).await.remove(0);
    assert_eq!(seen.header("webhook-id"), delivery["id"].as_str().unwrap());
    assert_eq!(seen.header("hookgate-event"), event);
    assert_eq!(seen.header("idempotency-key"), event);
    assert_eq!(seen.header("hookgate-attempt"), "1");
    assert_eq!(seen.header("hookgate-sequence"), "1");
    assert!(seen.header("user-agent").starts_with("hookgate/"));
    assert_eq!(seen.header("webhook-signature").split(' ').count(), 2, "one signature per active secret");
    for secret in [secret, old] {
        let webhook = standardwebhooks::Webhook::new(secret).unwrap();
        let mut headers = http::HeaderMap::new();
        for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
            headers.insert(name, seen.header(name).parse().unwrap());
        }
        webhook.verify(&seen.body, &headers).unwrap();
    }
}

#[tokio::test]
async fn the_log_tells_the_whole_story() {
    let receiver = Receiver::sequence(&[503, 200]).await;
    let config = github_source() + &endpoint("billing", &receiver.url("/hooks"), "");
    let gateway = Gateway::start(&config).await;
    let event = gateway.accepted(gateway.github("d-1", "push", "{}")).await;
    let row = gateway.until_deliveries("state=delivered", 1).await.remove(0);
    let delivery = gateway.delivery(row["id"].as_str().unwrap()).await;
    for (field, value) in [
        ("event", event.as_str()),
        ("event_type", "push"),
        ("source", "github"),
        ("endpoint", "billing"),
        ("host", "127.0.0.1"),
        ("state", "delivered"),
    ] {
        assert_eq!(delivery[field], value, "{field}");
    }
    assert_eq!(delivery["attempt_count"], 2);
    assert_eq!(delivery["last_status"], 200);
    let attempts = delivery["attempts"].as_array().unwrap();
    let words: Vec<_> = attempts
        .iter()
        .map(|a| ["outcome", "verdict", "reason", "decided_by", "disposition"].map(|f| a[f].as_str().unwrap()))
        .collect();
    assert_eq!(
        words,
        [
            ["answered", "retryable", "http_503", "builtin", "retry_at"],
            ["answered", "delivered", "http_200", "builtin", "delivered"],
        ]
    );
    assert_eq!(attempts[0]["number"], 1);
    assert!(attempts[0]["next_at"].is_string() && attempts[1]["next_at"].is_null());
    let ids: Vec<_> = receiver.journal().iter().map(|s| s.header("webhook-id").to_owned()).collect();
    assert_eq!(ids[0], ids[1]);
    let body = gateway.send(gateway.api("GET", &format!("events/{event}/body"))).await.unwrap();
    assert_eq!(body.text, "{}");
}

#[tokio::test]
async fn fan_out_goes_by_source_and_by_glob() {
    let receiver = Receiver::kind().await;
    let hook = |path: &str| receiver.url(path);
    let config = github_source()
        + "[tenants.acme.sources.other]\nscheme = \"github\"\nsecrets = [\"other-secret-for-tests\"]\n"
        + &endpoint("everything", &hook("/everything"), "")
        + &endpoint("pushes", &hook("/pushes"), "event_types = [\"push\", \"pull_*\"]\nsources = [\"github\"]")
        + &endpoint("other", &hook("/other"), "sources = [\"other\"]");
    let gateway = Gateway::start(&config).await;
    gateway.accepted(gateway.github("1", "push", "{}")).await;
    gateway.accepted(gateway.github("2", "pull_request", "{\"n\":2}")).await;
    gateway.accepted(gateway.github("3", "issues", "{\"n\":3}")).await;
    gateway.until_deliveries("state=delivered", 5).await;
    let mut paths: Vec<_> = receiver.journal().into_iter().map(|s| s.path).collect();
    paths.sort();
    assert_eq!(paths, ["/everything", "/everything", "/everything", "/pushes", "/pushes"]);
}

#[tokio::test]
async fn published_events_are_delivered_under_their_key() {
    let receiver = Receiver::kind().await;
    let gateway =
        Gateway::start(&endpoint("sms", &receiver.url("/sms"), "idempotency_header = \"x-request-key\"")).await;
    // As text, since a JSON library would put the keys in order.
    let event = r#"{"type": "hold.expiring", "key": "hold_8f2:sms", "payload": {"b": 1.0, "a": 2}}"#;
    let publish = || gateway.send(gateway.api("POST", "events").header("content-type", "application/json").body(event));
    let first = publish().await.unwrap();
    assert_eq!((first.status, first.json()["duplicate"].as_bool()), (200, Some(false)), "{}", first.text);
    let second = publish().await.unwrap();
    assert_eq!(second.json()["duplicate"], true);
    assert_eq!(second.json()["event"], first.json()["event"]);
    let seen = receiver.until_count(1).await.remove(0);
    assert_eq!(seen.header("x-request-key"), "hold_8f2:sms");
    assert_eq!(seen.body, r#"{"b": 1.0, "a": 2}"#);
    let other = serde_json::json!({"type": "hold.expiring", "key": "hold_8f2:sms", "payload": {"c": 3}});
    let reused = gateway.post("events", &other).await;
    assert_eq!((reused.status, reused.code()), (409, "key_reused".to_owned()));
    gateway.until_deliveries("state=delivered", 1).await;
    assert_eq!(receiver.count(), 1);
    assert_eq!(gateway.metric("hookgate_duplicates_suppressed_total").await, Some(1.0));
}

#[tokio::test]
async fn a_batch_answers_item_by_item() {
    let receiver = Receiver::kind().await;
    let gateway = Gateway::start(&endpoint("sms", &receiver.url("/sms"), "")).await;
    let items: Vec<_> =
        (0..200).map(|i| serde_json::json!({"type": "t", "key": format!("k{i}"), "payload": i})).collect();
    let answer = gateway.post("events", &serde_json::json!({"events": items})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.json()["items"].as_array().unwrap().len(), 200);
    receiver.until_count(200).await;
    let mut bodies: Vec<u64> =
        receiver.journal().iter().map(|s| std::str::from_utf8(&s.body).unwrap().parse().unwrap()).collect();
    bodies.sort_unstable();
    assert_eq!(bodies, (0..200).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_is_for_later_waits() {
    let receiver = Receiver::kind().await;
    let gateway = Gateway::start(&endpoint("sms", &receiver.url("/sms"), "")).await;
    let later = serde_json::json!({"type": "later", "payload": {}, "delay": "700ms"});
    let sent = std::time::Instant::now();
    assert_eq!(gateway.post("events", &later).await.status, 200);
    let seen = receiver.until_count(1).await.remove(0);
    assert!(seen.at - sent >= std::time::Duration::from_millis(700));
}
