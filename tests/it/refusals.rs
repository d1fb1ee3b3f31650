//! What is refused at the door, and that nothing of it is stored.

use super::{Gateway, Receiver, endpoint, github_source};

#[tokio::test]
async fn every_refusal_has_its_code_and_stores_nothing() {
    let receiver = Receiver::kind().await;
    let stripe = "[tenants.acme.sources.stripe]\nscheme = \"stripe\"\nsecrets = [\"whsec_stripe-test-secret\"]\n";
    let small = "[tenants.acme.sources.small]\nscheme = \"github\"\nsecrets = [\"it-is-a-test-secret-for-github\"]\nbody_bytes_max = \"1KiB\"\n";
    let slow = "[tenants.acme.sources.slow]\nscheme = \"github\"\nsecrets = [\"it-is-a-test-secret-for-github\"]\nrate = { per_second = 0.001, burst = 1 }\n";
    let config = github_source()
        + stripe
        + small
        + slow
        + &endpoint("billing", &receiver.url("/"), "sources = [\"github\", \"stripe\", \"small\"]");
    let mut gateway = Gateway::start(&config).await;
    let now = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap();
    refuse_all(&gateway, &receiver, now).await;
    // A stop writes what is noted, and the next start has it.
    gateway.stop().await;
    gateway.boot().await;
    let rejections = gateway.get("rejections").await;
    let told: Vec<_> = rejections["items"]
        .as_array()
        .unwrap()
        .iter()
        .rev()
        .map(|r| (r["source"].clone(), r["reason"].clone()))
        .collect();
    let expected = [
        ("github", "missing_header"),
        ("github", "signature_mismatch"),
        ("github", "malformed"),
        ("stripe", "timestamp_too_old"),
        ("stripe", "timestamp_too_new"),
        ("small", "body_too_large"),
        ("slow", "rate_limited"),
    ];
    assert_eq!(told, expected.map(|(source, reason)| (source.into(), reason.into())));
    let [_, _, _, old, ..] = rejections["items"].as_array().unwrap().iter().rev().collect::<Vec<_>>()[..] else {
        panic!()
    };
    assert!((400..460).contains(&old["skew_seconds"].as_i64().unwrap()), "{old}");
    let output = gateway.command(&["source", "rejections", "--reason", "malformed", "--json"]).output().unwrap();
    let one: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(one["items"][0]["step"], "decoding");
}

/// What a source has refused is history, as its events are: it is shown after the source is gone.
#[tokio::test]
async fn a_source_that_is_gone_keeps_what_it_had() {
    let other = "[tenants.acme.sources.other]\nscheme = \"github\"\nsecrets = [\"it-is-a-test-secret-for-github\"]\n";
    let mut gateway = Gateway::start(&(github_source() + other)).await;
    let signature = super::process::github_signature("it-is-a-test-secret-for-github", b"{}");
    gateway.accepted(gateway.inlet("other", "{}").header("x-hub-signature-256", signature)).await;
    assert_eq!(gateway.send(gateway.inlet("other", "{}")).await.unwrap().status, 401);
    gateway.stop().await;
    let text = std::fs::read_to_string(gateway.config()).unwrap();
    std::fs::write(gateway.config(), text.replace(other, "")).unwrap();
    gateway.boot().await;
    assert_eq!(gateway.send(gateway.inlet("other", "{}")).await.unwrap().code(), "unknown_source");
    let output = gateway.command(&["source", "get", "other"]).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    let listed = |args: &[&str]| {
        let output = gateway.command(&[args, &["--json"]].concat()).output().unwrap();
        let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        list["items"].as_array().unwrap().iter().map(|item| item["source"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(listed(&["source", "rejections", "--source", "other"]), ["other"]);
    assert_eq!(listed(&["event", "list", "--source", "other"]), ["other"]);
    let never = gateway.command(&["source", "rejections", "--source", "never-there"]).output().unwrap();
    assert_eq!(never.status.code(), Some(5), "{never:?}");
}

async fn refuse_all(gateway: &Gateway, receiver: &Receiver, now: i64) {
    let signed = |source: &str, body: &str, secret: &str| {
        let signature = super::process::github_signature(secret, body.as_bytes());
        gateway.inlet(source, body).header("x-hub-signature-256", signature).header("x-github-event", "push")
    };
    let secret = super::process::GITHUB_SECRET;
    let at = |t: i64| {
        use hmac::{KeyInit as _, Mac as _};
        let mut mac = hmac::Hmac::<sha2::Sha256>::new_from_slice(b"whsec_stripe-test-secret").unwrap();
        mac.update(format!("{t}.{{}}").as_bytes());
        let signature = hex::encode(mac.finalize().into_bytes());
        gateway.inlet("stripe", "{}").header("stripe-signature", format!("t={t},v1={signature}"))
    };
    let cases = [
        (signed("nowhere", "{}", secret), 404, "unknown_source"),
        (gateway.inlet("github", "{}"), 401, "missing_header"),
        (signed("github", "{}", "another secret"), 401, "signature_mismatch"),
        (gateway.inlet("github", "{}").header("x-hub-signature-256", "sha256=zz"), 401, "malformed"),
        (at(now - 400), 401, "timestamp_too_old"),
        (at(now + 400), 401, "timestamp_too_new"),
        (signed("small", &"x".repeat(1025), secret), 413, "body_too_large"),
    ];
    for (request, status, code) in cases {
        let answer = gateway.send(request).await.unwrap();
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{}", answer.text);
        assert_eq!(answer.headers["content-type"], "application/problem+json");
        assert!(!answer.text.contains(secret) && !answer.text.contains("sha256="), "{}", answer.text);
    }
    gateway.accepted(signed("slow", "{}", secret)).await;
    let limited = gateway.send(signed("slow", "{\"n\":2}", secret)).await.unwrap();
    assert_eq!((limited.status, limited.code().as_str()), (429, "rate_limited"));
    assert!(limited.headers.contains_key("retry-after"));
    assert_eq!(gateway.get("events").await["items"].as_array().unwrap().len(), 1);
    assert_eq!(receiver.count(), 0);
    let log = gateway.log();
    assert!(!log.contains(secret) && !log.contains("whsec_stripe"), "a secret in the log");
    let refused =
        gateway.metric("hookgate_ingress_requests_total{scheme=\"github\",result=\"signature_mismatch\"}").await;
    assert_eq!(refused, Some(1.0));
}

#[tokio::test]
async fn a_key_used_again_with_another_body_is_a_conflict() {
    let receiver = Receiver::kind().await;
    let source = github_source() + "dedup = \"header:x-order\"\n";
    let gateway = Gateway::start(&(source + &endpoint("billing", &receiver.url("/"), ""))).await;
    let order = |body: &str| gateway.github("d", "push", body).header("x-order", "42");
    let first = gateway.accepted(order("{\"n\":1}")).await;
    let again = gateway.send(order("{\"n\":1}")).await.unwrap();
    assert_eq!((again.status, again.json()["duplicate"].as_bool()), (200, Some(true)));
    assert_eq!(again.json()["event"], first.as_str());
    let other = gateway.send(order("{\"n\":2}")).await.unwrap();
    assert_eq!((other.status, other.code().as_str()), (409, "key_reused"));
}

#[tokio::test]
async fn an_expired_secret_is_none_and_the_start_warns_of_it() {
    let config = "[tenants.acme.sources.github]\nscheme = \"github\"\nsecrets = [\"the-new-secret-of-github\", \
                  { value = \"the-old-secret-of-github\", expires = \"2020-01-01T00:00:00Z\" }]\n";
    let gateway = Gateway::start(config).await;
    let signed = |secret: &str| {
        let signature = super::process::github_signature(secret, b"{}");
        gateway.inlet("github", "{}").header("x-hub-signature-256", signature)
    };
    let old = gateway.send(signed("the-old-secret-of-github")).await.unwrap();
    assert_eq!((old.status, old.code().as_str()), (401, "signature_mismatch"));
    gateway.accepted(signed("the-new-secret-of-github")).await;
    assert!(gateway.log().contains("this secret expired at 2020-01-01T00:00:00.000Z"), "{}", gateway.log());
}
