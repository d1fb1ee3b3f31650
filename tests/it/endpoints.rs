//! Pausing, disabling, and what becomes of the work behind it.

use super::{Gateway, Receiver, endpoint, github_source};
use serde_json::json;

#[tokio::test]
async fn events_for_a_paused_endpoint_are_kept_and_sent_after_it() {
    let receiver = Receiver::kind().await;
    let mut gateway = Gateway::start(&(github_source() + &endpoint("billing", &receiver.url("/"), ""))).await;
    for (shut, open) in [("pause", "resume"), ("disable", "enable")] {
        let before = receiver.count();
        assert_eq!(gateway.post(&format!("endpoints/billing/{shut}"), &json!({})).await.status, 200);
        gateway.accepted(gateway.github(shut, "push", shut)).await;
        let pending = gateway.until_deliveries("state=pending", 1).await;
        assert_eq!(pending[0]["attempt_count"], 0);
        // It holds over a restart.
        assert!(gateway.stop().await.success());
        gateway.boot().await;
        let state = gateway.get("endpoints/billing").await;
        assert_ne!(state["status"], "enabled", "{state}");
        assert_eq!((receiver.count(), state["pending"].as_u64()), (before, Some(1)));
        assert_eq!(gateway.post(&format!("endpoints/billing/{open}"), &json!({})).await.status, 200);
        receiver.until_count(before + 1).await;
    }
}

#[tokio::test]
async fn gone_disables_the_endpoint() {
    let receiver = Receiver::sequence(&[410]).await;
    let gateway = Gateway::start(&(github_source() + &endpoint("billing", &receiver.url("/"), ""))).await;
    gateway.accepted(gateway.github("1", "push", "1")).await;
    gateway.until_deliveries("state=dead", 1).await;
    let endpoint = gateway.get("endpoints/billing").await;
    assert_eq!((endpoint["status"].as_str(), endpoint["why"].as_str()), (Some("disabled"), Some("http_410")));
    gateway.accepted(gateway.github("2", "push", "2")).await;
    gateway.until_deliveries("state=pending", 1).await;
    assert_eq!(receiver.count(), 1, "no request to a disabled endpoint");
    let dead = gateway.get("deliveries?state=dead").await["items"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(gateway.post("endpoints/billing/resume", &json!({})).await.status, 409, "a resume does not enable");
    assert_eq!(gateway.delivery(&dead).await["state"], "dead");
}

#[tokio::test]
async fn what_the_file_declares_is_read_only() {
    let receiver = Receiver::kind().await;
    let gateway = Gateway::start(&(github_source() + &endpoint("billing", &receiver.url("/"), ""))).await;
    for path in ["endpoints/billing", "sources/github"] {
        for method in ["PUT", "PATCH", "DELETE"] {
            let answer = gateway.send(gateway.api(method, path).json(&json!({}))).await.unwrap();
            assert_eq!((answer.status, answer.code().as_str()), (409, "managed_by_file"), "{method} {path}");
        }
    }
    let shown = gateway.send(gateway.api("GET", "sources/github")).await.unwrap();
    assert!(!shown.text.contains(super::process::GITHUB_SECRET));
}

#[tokio::test]
async fn a_generated_signing_secret_can_be_had_and_verifies_and_a_given_one_stays_hidden() {
    let receiver = Receiver::kind().await;
    let given = "signing_secrets = [\"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"]";
    let config = github_source()
        + &endpoint("made", &receiver.url("/made"), "")
        + &endpoint("given", &receiver.url("/given"), &format!("{given}\nsources = []"));
    let mut gateway = Gateway::start(&config).await;
    let secret = gateway.get("endpoints/made/secret").await["signing_secret"].as_str().unwrap().to_owned();
    gateway.accepted(gateway.github("1", "push", "{}")).await;
    let seen = receiver.until_count(1).await.remove(0);
    let mut headers = http::HeaderMap::new();
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        headers.insert(name, seen.header(name).parse().unwrap());
    }
    standardwebhooks::Webhook::new(&secret).unwrap().verify(&seen.body, &headers).unwrap();
    assert!(gateway.stop().await.success());
    gateway.boot().await;
    assert_eq!(gateway.get("endpoints/made/secret").await["signing_secret"], secret.as_str(), "kept over a restart");
    let hidden = gateway.send(gateway.api("GET", "endpoints/given/secret")).await.unwrap();
    assert_eq!((hidden.status, hidden.code().as_str()), (409, "managed_by_file"));
    let bare = reqwest::get(format!("http://{}/v1/tenants/acme/endpoints/made/secret", gateway.admin)).await.unwrap();
    assert_eq!(bare.status(), 401);
    assert!(!gateway.log().contains(&secret));
}
