//! Dedup: over retries of the provider, over races, over a restart.

use super::{Gateway, Receiver, endpoint, github_source};

#[tokio::test]
async fn a_providers_retry_is_one_event_even_over_a_restart() {
    let receiver = Receiver::kind().await;
    let mut gateway = Gateway::start(&(github_source() + &endpoint("billing", &receiver.url("/"), ""))).await;
    let first = gateway.accepted(gateway.github("d-1", "push", "{}")).await;
    assert_eq!(gateway.accepted(gateway.github("d-1", "push", "{}")).await, first);
    gateway.until_deliveries("state=delivered", 1).await;
    gateway.kill();
    gateway.boot().await;
    assert_eq!(gateway.accepted(gateway.github("d-1", "push", "{}")).await, first);
    assert_eq!(receiver.count(), 1);
}

#[tokio::test]
async fn racing_copies_are_one_event() {
    let receiver = Receiver::kind().await;
    let gateway = Gateway::start(&(github_source() + &endpoint("billing", &receiver.url("/"), ""))).await;
    let copies = (0..32).map(|_| gateway.accepted(gateway.github("d-1", "push", "{}")));
    let mut ids = futures_util::future::join_all(copies).await;
    ids.dedup();
    assert_eq!(ids.len(), 1);
    gateway.until_deliveries("state=delivered", 1).await;
    assert_eq!((receiver.count(), gateway.get("events").await["items"].as_array().unwrap().len()), (1, 1));
}

/// GitHub's delivery id is not signed: a captured request under a new id is still the same request, and a known id does
/// not carry another body in.
#[tokio::test]
async fn an_unsigned_id_opens_no_door_to_a_replay() {
    let receiver = Receiver::kind().await;
    let mut gateway = Gateway::start(&(github_source() + &endpoint("billing", &receiver.url("/"), ""))).await;
    let first = gateway.accepted(gateway.github("d-1", "push", "{\"n\":1}")).await;
    for id in ["d-1", "d-2", "after a restart"] {
        if id.contains("restart") {
            gateway.kill();
            gateway.boot().await;
        }
        let again = gateway.send(gateway.github(&id.replace(' ', "-"), "push", "{\"n\":1}")).await.unwrap();
        assert_eq!((again.status, again.json()["duplicate"].as_bool()), (200, Some(true)), "{id}");
        assert_eq!(again.json()["event"], first.as_str());
    }
    let other = gateway.send(gateway.github("d-1", "push", "{\"n\":2}")).await.unwrap();
    assert_eq!((other.status, other.code().as_str()), (409, "key_reused"));
    assert_eq!(gateway.get("events").await["items"].as_array().unwrap().len(), 1);
}
