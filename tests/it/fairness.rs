//! One that hangs delays no other; caps hold at the receiver.

use super::{Gateway, Receiver, Reply, endpoint, github_source, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[tokio::test]
async fn an_endpoint_that_hangs_delays_no_other() {
    let stuck = Receiver::start(|_, _| Reply::Hang).await;
    let kind = Receiver::kind().await;
    let config = github_source()
        + &endpoint("stuck", &stuck.url("/"), "concurrency = 4\ntimeout = \"60s\"")
        + &endpoint("kind", &kind.url("/"), "");
    let gateway = Gateway::start(&config).await;
    for i in 0..40 {
        gateway.accepted(gateway.github(&i.to_string(), "push", &i.to_string())).await;
    }
    kind.until_count(40).await;
    assert_eq!(stuck.count(), 4, "as many as its concurrency");
    let state = gateway.get("endpoints/stuck").await;
    assert_eq!((state["in_flight"].as_u64(), state["pending"].as_u64()), (Some(4), Some(36)));
}

#[tokio::test]
async fn concurrency_holds_at_the_receiver() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (n, m) = (Arc::clone(&now), Arc::clone(&most));
    // The receiver counts how many it is serving at once: up at the head, down when the answer is due.
    let receiver = Receiver::start(move |_, _| {
        m.fetch_max(n.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let n = Arc::clone(&n);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(20)).await; // plays the peer: serving
            n.fetch_sub(1, Ordering::SeqCst);
        });
        Reply::Late(Duration::from_millis(25), Box::new(Reply::status(200)))
    })
    .await;
    let gateway =
        Gateway::start(&(github_source() + &endpoint("billing", &receiver.url("/"), "concurrency = 3"))).await;
    for i in 0..60 {
        gateway.accepted(gateway.github(&i.to_string(), "push", &i.to_string())).await;
    }
    gateway.until_deliveries("state=delivered", 60).await;
    assert_eq!(most.load(Ordering::SeqCst), 3);
    assert_eq!(now.load(Ordering::SeqCst), 0);
    assert_eq!(receiver.count(), 60);
}

#[tokio::test]
async fn a_rate_holds_at_the_receiver() {
    let receiver = Receiver::kind().await;
    let more = "rate = { per_second = 20, burst = 5 }";
    let gateway = Gateway::start(&(github_source() + &endpoint("billing", &receiver.url("/"), more))).await;
    for i in 0..25 {
        gateway.accepted(gateway.github(&i.to_string(), "push", &i.to_string())).await;
    }
    let seen = receiver.until_count(25).await;
    let span = seen[24].at - seen[0].at;
    // Five at once, then twenty at 50 ms each.
    assert!(span >= Duration::from_millis(950), "{span:?}");
    until("all delivered", || async { (gateway.get("endpoints/billing").await["pending"] == 0).then_some(()) }).await;
}
