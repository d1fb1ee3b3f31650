//! Accept, claim, settle, rescue.

use crate::bench::{Bench, LEASE, dead, delivered, record, released, retry};
use crate::support::publication;
use hookgate::delivery::DeliveryState;
use hookgate::ledger::{Accepted, Queue as _, Records as _, Settled};
use std::time::Duration;

#[tokio::test]
async fn an_event_with_a_slot_is_born_leased_and_settles() {
    let mut bench = Bench::new().await;
    let accepted = bench.publish(publication("invoice.paid", Some("inv-1"), "{\"n\":1}"), &["+billing", "crm"]).await;
    let Accepted::New(event) = accepted else { panic!("{accepted:?}") };
    let born = bench.births.try_recv().expect("the delivery with a slot is handed over");
    assert!(bench.births.try_recv().is_err(), "the other waits in the ledger");
    assert_eq!((born.number, born.generation, born.revision, born.sequence), (1, 1, 1, 1));
    assert_eq!((born.history.counted, born.history.interrupted_before), (1, 0));
    assert_eq!(born.history.began_at, bench.now());
    assert_eq!(born.lease.until, bench.now().plus(LEASE));
    assert_eq!(&*born.idempotency_key, "inv-1");
    assert_eq!(born.event.id, event);
    assert_eq!(&born.event.body[..], b"{\"n\":1}");
    let gauges = bench.ledger.gauges();
    assert_eq!((gauges.pending, gauges.in_flight, gauges.dead), (1, 1, 0));

    let before = bench.detail(born.lease.delivery).await;
    assert_eq!(before.delivery.state, DeliveryState::InFlight);
    assert_eq!(before.attempts.len(), 1, "the start is durable");
    assert_eq!((before.attempts[0].id, before.attempts[0].outcome.as_deref()), (born.attempt, None));

    assert_eq!(bench.settle(born.lease, delivered()).await, Settled::Stored);
    let after = bench.detail(born.lease.delivery).await;
    assert_eq!(after.delivery.state, DeliveryState::Delivered);
    assert_eq!(after.delivery.attempt_count, 1);
    assert_eq!(after.delivery.last_status, Some(200));
    assert_eq!(after.delivery.finished_at, Some(bench.now()));
    assert_eq!(after.attempts[0].id, born.attempt);
    assert_eq!(after.attempts[0].disposition.as_deref(), Some("delivered"));
    assert_eq!(bench.settle(born.lease, delivered()).await, Settled::LeaseLost, "a lease is good for one settlement");
}

#[tokio::test]
async fn due_work_is_claimed_oldest_first_and_comes_back_after_its_wait() {
    let bench = Bench::new().await;
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.extend(bench.accept(&format!("{n}"), &["billing"]).await.1);
        bench.clock.advance(Duration::from_millis(1));
    }
    let claimed = bench.claim("billing", 2).await;
    assert_eq!(claimed.iter().map(|c| c.lease.delivery).collect::<Vec<_>>(), ids[..2]);
    assert_eq!(claimed.iter().map(|c| &c.event.body[..]).collect::<Vec<_>>(), [b"0", b"1"]);
    assert_eq!(bench.slots.in_flight(), 2);
    let due = bench.now().plus(Duration::from_secs(30));
    for one in claimed {
        assert_eq!(bench.settle_as(one.lease, record("answered", Some(503)), retry(due)).await, Settled::Stored);
    }
    assert_eq!(bench.slots.in_flight(), 0);
    let again = bench.claim("billing", 9).await;
    assert_eq!(again.iter().map(|c| c.lease.delivery).collect::<Vec<_>>(), ids[2..], "the others are not due");
    assert_eq!(bench.slots.in_flight(), 1, "slots without work are given back");
    bench.clock.advance(Duration::from_secs(30));
    let retried = bench.claim("billing", 9).await;
    assert_eq!(retried.iter().map(|c| c.lease.delivery).collect::<Vec<_>>(), ids[..2]);
    assert_eq!((retried[0].number, retried[0].history.counted), (2, 2));
}

#[tokio::test]
async fn a_released_attempt_is_numbered_but_not_counted() {
    let mut bench = Bench::new().await;
    let born = bench.start("billing").await;
    bench.settle_as(born.lease, record("released", None), released(bench.now())).await;
    let claimed = bench.claim("billing", 1).await;
    assert_eq!((claimed[0].number, claimed[0].history.counted), (2, 1));
    bench.settle(claimed[0].lease, dead("http_400")).await;
    let detail = bench.detail(born.lease.delivery).await;
    assert_eq!(detail.attempts.iter().map(|a| a.number).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(detail.delivery.reason.as_deref(), Some("http_400"));
}

#[tokio::test]
async fn nothing_is_lost_by_a_crash() {
    let mut bench = Bench::new().await;
    let born = bench.start("billing").await;
    let (_, waiting) = bench.accept("w", &["crm"]).await;
    let after = bench.copy_as_after_a_crash().await;
    assert_eq!(
        after.ledger.gauges(),
        hookgate::ledger::Gauges { wal_bytes: after.ledger.gauges().wal_bytes, ..after.ledger.gauges() }
    );
    let taken = after.ledger.rescue(hookgate::clock::Timestamp::MAX, 10, after.now()).await.unwrap();
    assert_eq!(taken.iter().map(|t| t.lease.delivery).collect::<Vec<_>>(), [born.lease.delivery]);
    assert_eq!(after.settle(born.lease, delivered()).await, Settled::LeaseLost);
    assert_eq!(after.claim("crm", 1).await[0].lease.delivery, waiting[0]);
    after.ledger.close().await.unwrap();
}
