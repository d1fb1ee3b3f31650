//! A clean stop: what is on the wire is finished, what is not is handed back, nothing is repeated.

use super::{Gateway, Receiver, Reply, endpoint, github_source};
use std::time::Duration;

#[tokio::test]
async fn sigterm_finishes_what_is_on_the_wire_and_repeats_nothing() {
    let receiver = Receiver::start(|_, _| Reply::Late(Duration::from_millis(400), Box::new(Reply::status(200)))).await;
    let config = github_source() + &endpoint("billing", &receiver.url("/"), "concurrency = 2");
    let mut gateway = Gateway::start(&config).await;
    for i in 0..6 {
        gateway.accepted(gateway.github(&i.to_string(), "push", &i.to_string())).await;
    }
    receiver.until_count(2).await;
    let status = gateway.stop().await;
    assert!(status.success(), "{status}");
    let sent = receiver.count();
    assert!(sent < 6, "the stop came too late to prove anything");
    gateway.boot().await;
    let delivered = gateway.until_deliveries("state=delivered", 6).await;
    assert_eq!(receiver.count(), 6, "each once");
    let interrupted = delivered.iter().filter(|d| d["attempt_count"].as_u64() != Some(1)).count();
    assert_eq!(interrupted, 0, "{delivered:?}");
}

#[tokio::test]
async fn a_receiver_that_never_answers_does_not_hold_up_the_stop() {
    let receiver = Receiver::start(|_, _| Reply::Hang).await;
    let config = github_source() + &endpoint("stuck", &receiver.url("/"), "timeout = \"60s\"");
    let mut gateway = Gateway::with("shutdown_grace = \"500ms\"", &config);
    gateway.boot().await;
    gateway.accepted(gateway.github("1", "push", "{}")).await;
    receiver.until_count(1).await;
    assert!(gateway.stop().await.success());
    gateway.boot().await;
    let row = gateway.get("deliveries").await["items"][0].clone();
    let attempts = gateway.delivery(row["id"].as_str().unwrap()).await["attempts"].clone();
    assert_eq!(
        (attempts[0]["outcome"].as_str(), attempts[0]["ambiguous"].as_bool()),
        (Some("interrupted"), Some(true))
    );
}

#[tokio::test]
async fn a_second_process_on_the_same_ledger_is_refused() {
    let receiver = Receiver::kind().await;
    let gateway = Gateway::start(&(github_source() + &endpoint("billing", &receiver.url("/"), ""))).await;
    let config = gateway.config();
    let output = gateway.command(&["serve", "--config", config.to_str().unwrap()]).output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("lock") || text.contains("in use") || text.contains("another"), "{text}");
}

/// A sender who never finishes takes nothing of the time that deliveries have to end, and starts none.
#[tokio::test]
async fn a_slow_sender_does_not_make_the_stop_repeat_anything() {
    use std::io::Write as _;
    let receiver = Receiver::start(|_, _| Reply::Late(Duration::from_millis(500), Box::new(Reply::status(200)))).await;
    let config = github_source() + &endpoint("billing", &receiver.url("/"), "concurrency = 2");
    let mut gateway = Gateway::with("shutdown_grace = \"3s\"", &config);
    gateway.boot().await;
    let mut slow = std::net::TcpStream::connect(&gateway.ingress).unwrap();
    slow.write_all(b"POST /in/acme/github HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nabc").unwrap();
    for i in 0..12 {
        gateway.accepted(gateway.github(&i.to_string(), "push", &i.to_string())).await;
    }
    receiver.until_count(2).await;
    assert!(gateway.stop().await.success());
    let sent = receiver.count();
    assert!(sent <= 6, "{sent} sends: attempts were started during the stop");
    gateway.boot().await;
    let delivered = gateway.until_deliveries("state=delivered", 12).await;
    assert_eq!(receiver.count(), 12, "each once");
    assert!(delivered.iter().all(|d| d["attempt_count"] == 1), "{delivered:?}");
}
