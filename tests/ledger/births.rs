//! Deliveries that are under way from their acceptance on, and have no row of their own until somebody needs one.

use crate::bench::{Bench, START, dead, delivered, retry};
use crate::support::publication;
use hookgate::clock::Timestamp;
use hookgate::delivery::DeliveryState;
use hookgate::ledger::{Claimed, Settled};
use std::time::Duration;

/// Notes of births, rows of deliveries.
fn rows(bench: &Bench) -> (u32, u32) {
    let sql = "SELECT (SELECT count(*) FROM birth), (SELECT count(*) FROM delivery)";
    bench.raw().query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
}

async fn both(bench: &mut Bench) -> [Claimed; 2] {
    bench.publish(publication("test", None, "{}"), &["+billing", "+crm"]).await;
    [bench.births.try_recv().unwrap(), bench.births.try_recv().unwrap()]
}

#[tokio::test]
async fn what_is_settled_at_once_is_one_row() {
    let mut bench = Bench::new().await;
    let [billing, crm] = both(&mut bench).await;
    assert_eq!(rows(&bench), (1, 0));
    assert_eq!(bench.settle(billing.lease, delivered()).await, Settled::Stored);
    assert_eq!(rows(&bench), (1, 1), "the other one is under way");
    assert_eq!(bench.settle(crm.lease, retry(bench.now().plus(Duration::from_secs(9)))).await, Settled::Stored);
    assert_eq!(rows(&bench), (0, 2));
    assert_eq!(bench.settle(crm.lease, delivered()).await, Settled::LeaseLost, "once");

    let billing = bench.detail(billing.lease.delivery).await;
    assert_eq!((billing.delivery.state, billing.delivery.attempt_count), (DeliveryState::Delivered, 1));
    assert_eq!((billing.delivery.last_status, billing.delivery.finished_at), (Some(200), Some(START)));
    let crm = bench.detail(crm.lease.delivery).await;
    assert_eq!(
        (crm.delivery.state, crm.delivery.due_at),
        (DeliveryState::Pending, Some(START.plus(Duration::from_secs(9))))
    );
    assert_eq!((crm.delivery.event, crm.attempts.len()), (billing.delivery.event, 1));
    assert_ne!(billing.delivery.sequence, 0);
    bench.clock.advance(Duration::from_secs(10));
    let again = bench.claim("crm", 1).await;
    assert_eq!(again[0].lease.number, 2, "a retry is claimed as any other");
}

#[tokio::test]
async fn whoever_reads_sees_what_is_under_way() {
    let mut bench = Bench::new().await;
    let [billing, crm] = both(&mut bench).await;
    let seen = bench.detail(billing.lease.delivery).await;
    assert_eq!((seen.delivery.state, seen.attempts.len()), (DeliveryState::InFlight, 1));
    assert_eq!((seen.attempts[0].number, seen.attempts[0].started_at), (1, START));
    assert_eq!(rows(&bench), (0, 2));
    assert_eq!(bench.ledger.gauges().in_flight, 2);
    for lease in [billing.lease, crm.lease] {
        assert_eq!(bench.settle(lease, dead("http_500")).await, Settled::Stored);
    }
    assert_eq!((bench.ledger.gauges().in_flight, bench.ledger.gauges().dead), (0, 2));
}

#[tokio::test]
async fn a_crash_leaves_what_was_under_way_to_be_rescued_and_nothing_twice() {
    let mut bench = Bench::new().await;
    let [billing, crm] = both(&mut bench).await;
    bench.settle(billing.lease, delivered()).await;
    let after = bench.copy_as_after_a_crash().await;
    assert_eq!(rows(&after), (0, 2));
    assert_eq!(after.ledger.gauges().in_flight, 1);
    let taken = after.ledger.rescue(Timestamp::MAX, 9, after.now()).await.unwrap();
    let [lease] = taken.as_slice() else { panic!("{taken:?}") };
    assert_eq!((lease.delivery, lease.number, lease.started_at), (crm.lease.delivery, 1, START));
    assert_eq!(after.settle(crm.lease, delivered()).await, Settled::LeaseLost);
    assert_eq!(after.settle(*lease, delivered()).await, Settled::Stored);
    assert_eq!(after.detail(billing.lease.delivery).await.delivery.state, DeliveryState::Delivered);
}

#[tokio::test]
async fn a_lease_that_ran_out_is_taken_over() {
    let mut bench = Bench::new().await;
    let [billing, crm] = both(&mut bench).await;
    bench.settle(crm.lease, delivered()).await;
    assert!(bench.ledger.rescue(bench.now(), 9, bench.now()).await.unwrap().is_empty());
    assert_eq!(rows(&bench), (1, 1), "a rescue looks at leases that have ended alone");
    bench.clock.advance(billing.lease.until.since(START));
    let taken = bench.ledger.rescue(bench.now(), 9, bench.now()).await.unwrap();
    assert_eq!(taken.iter().map(|lease| lease.delivery).collect::<Vec<_>>(), [billing.lease.delivery]);
    assert_eq!(bench.settle(billing.lease, delivered()).await, Settled::LeaseLost);
}

#[tokio::test]
async fn what_takes_long_gets_its_row_by_and_by() {
    let mut bench = Bench::new().await;
    let first = bench.start("billing").await;
    let second = bench.start("billing").await;
    assert_eq!(rows(&bench), (2, 0));
    bench.clock.advance(Duration::from_secs(2));
    let third = bench.start("billing").await;
    assert_eq!(rows(&bench), (1, 2), "the older two");
    for started in [first, second, third] {
        assert_eq!(bench.settle(started.lease, delivered()).await, Settled::Stored);
    }
    assert_eq!(rows(&bench), (0, 3));
}
