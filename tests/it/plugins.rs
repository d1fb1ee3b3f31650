//! A tenant's own rules, end to end: the SMS provider whose 200 may mean anything.

use super::{Gateway, Receiver, Reply, endpoint};
use serde_json::json;

fn config(receiver: &Receiver, more: &str) -> String {
    let wasm = concat!(env!("CARGO_MANIFEST_DIR"), "/plugins/sms-rules.wasm");
    format!("[tenants.acme.plugins.sms-rules]\npath = \"{wasm}\"\n")
        + &endpoint("sms", &receiver.url("/"), &format!("plugin = \"sms-rules\"\n{more}"))
}

fn message(to: &str) -> serde_json::Value {
    json!({"type": "sms.send", "payload": {"to": to, "body": "Your hold expires at ten."}})
}

#[tokio::test]
async fn the_body_decides() {
    let receiver = Receiver::start(|seen, _| {
        let text = String::from_utf8_lossy(&seen.body).into_owned();
        if text.contains("+1000") {
            Reply::body(200, "{\"status\":\"queued\",\"message_id\":\"SM-42\"}")
        } else {
            Reply::body(200, "{\"error\":\"suspended\"}")
        }
    })
    .await;
    let gateway = Gateway::start(&config(&receiver, "")).await;
    assert_eq!(gateway.post("events", &message("+1000")).await.status, 200);
    let delivered = gateway.until_deliveries("state=delivered", 1).await.remove(0);
    assert_eq!(delivered["reference"], "SM-42");
    let found = gateway.get("deliveries?q=SM-42").await;
    assert_eq!(found["items"][0]["id"], delivered["id"]);

    assert_eq!(gateway.post("events", &message("+2000")).await.status, 200);
    let dead = gateway.until_deliveries("state=dead", 1).await.remove(0);
    assert_eq!((dead["reason"].as_str(), dead["last_status"].as_u64()), (Some("suspended"), Some(200)));
    let attempt = gateway.delivery(dead["id"].as_str().unwrap()).await["attempts"][0].clone();
    assert_eq!((attempt["decided_by"].as_str(), attempt["verdict"].as_str()), (Some("plugin"), Some("terminal")));
    assert!(attempt["plugin_version"].as_str().unwrap().starts_with("plg_"));
    assert!(attempt["plugin_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(receiver.count(), 2, "terminal at once");
    let sent = &receiver.journal()[0];
    assert_ne!(sent.body, message("+1000")["payload"].to_string(), "the transform made the request");
}

#[tokio::test]
async fn a_broken_plugin_file_is_refused_at_the_start() {
    let gateway = Gateway::stopped(
        "[tenants.acme.plugins.bad]\npath = \"bad.wasm\"\n\
         [tenants.acme.endpoints.a]\nurl = \"https://example.com/\"\nplugin = \"bad\"\n",
    );
    std::fs::write(gateway.dir.path().join("bad.wasm"), b"garbage").unwrap();
    let config = gateway.config();
    let output = gateway.command(&["serve", "--config", config.to_str().unwrap()]).output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("bad") && text.contains("component"), "{text}");
}
