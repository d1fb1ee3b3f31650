//! Many closed at once, and what races with a redrive in bulk.

use crate::bench::{Bench, dead, declaration, delivered, record, retry};
use crate::support::{name, publication};
use hookgate::delivery::{DeliveryId, DeliveryState};
use hookgate::ledger::{
    BegunOperation, DeadFilter, DeliveryFilter, NewOperation, OperationRow, OperationState, ResolveAs, ResolveMany,
    Work,
};
use std::sync::Arc;
use std::time::Duration;

fn resolve(bench: &Bench, filter: DeadFilter) -> ResolveMany {
    ResolveMany { tenant: bench.tenant("acme"), filter, how: ResolveAs::Sent, note: Some("seen in their log".into()) }
}

async fn kill_many(bench: &mut Bench, endpoint: &str, n: usize) -> Vec<DeliveryId> {
    let mut all = Vec::new();
    for _ in 0..n {
        all.push(bench.kill(endpoint).await);
    }
    all
}

async fn states(bench: &Bench, ids: &[DeliveryId]) -> Vec<DeliveryState> {
    let mut all = Vec::new();
    for id in ids {
        all.push(bench.detail(*id).await.delivery.state);
    }
    all
}

#[tokio::test]
async fn dead_letters_of_a_filter_are_resolved_and_nothing_else() {
    let mut bench = Bench::new().await;
    let ids = kill_many(&mut bench, "billing", 3).await;
    let other = bench.kill("crm").await;
    let filter = DeadFilter { endpoint: Some(name("billing")), ..DeadFilter::default() };
    let swept = bench.ledger.resolve_many(&resolve(&bench, filter.clone()), None, bench.now()).await.unwrap();
    assert_eq!((swept.done, swept.next), (3, None));
    for id in &ids {
        let row = bench.detail(*id).await.delivery;
        assert_eq!((row.state, row.reason.as_deref()), (DeliveryState::Resolved, Some("sent")));
        assert_eq!(row.note.as_deref(), Some("seen in their log"));
    }
    assert_eq!(states(&bench, &[other]).await, [DeliveryState::Dead]);
    assert_eq!(bench.ledger.gauges().dead, 1);
    let again = bench.ledger.resolve_many(&resolve(&bench, filter), None, bench.now()).await.unwrap();
    assert_eq!((again.done, again.next), (0, None));
    let theirs = ResolveMany { tenant: bench.tenant("globex"), ..resolve(&bench, DeadFilter::default()) };
    assert_eq!(bench.ledger.resolve_many(&theirs, None, bench.now()).await.unwrap().done, 0);
}

#[tokio::test]
async fn more_than_a_batch_goes_on_where_it_was_and_what_dies_later_stays() {
    let mut bench = Bench::new().await;
    kill_many(&mut bench, "billing", 501).await;
    let wish = resolve(&bench, DeadFilter::default());
    let first = bench.ledger.resolve_many(&wish, None, bench.now()).await.unwrap();
    assert_eq!(first.done, 500);
    bench.clock.advance(Duration::from_secs(1));
    let late = bench.kill("billing").await;
    let second = bench.ledger.resolve_many(&wish, first.next, bench.now()).await.unwrap();
    assert_eq!((second.done, second.next), (1, None));
    assert_eq!(states(&bench, &[late]).await, [DeliveryState::Dead]);
}

#[tokio::test]
async fn what_is_pending_in_a_filter_is_cancelled_and_nothing_else() {
    let mut bench = Bench::new().await;
    let acme = bench.tenant("acme");
    let (_, waits) = bench.accept("1", &["billing"]).await;
    bench.publish(publication("push", Some("k"), "2"), &["billing", "crm"]).await;
    let in_flight = bench.start("billing").await;
    let retried = bench.start("billing").await;
    bench
        .settle_as(retried.lease, record("answered", Some(503)), retry(bench.now().plus(Duration::from_secs(60))))
        .await;
    let died = bench.kill("billing").await;
    let none = DeliveryFilter::default;
    let billing = || Some(name("billing"));
    for (filter, expected) in [
        (none(), 4),
        (DeliveryFilter { endpoint: billing(), ..none() }, 3),
        (DeliveryFilter { key: Some("k".into()), ..none() }, 2),
        (DeliveryFilter { key: Some("k".into()), endpoint: billing(), ..none() }, 1),
        (DeliveryFilter { event_type: Some("push".into()), ..none() }, 2),
        (DeliveryFilter { q: Some(waits[0].to_string()), ..none() }, 1),
        (DeliveryFilter { status: Some(503), ..none() }, 1),
        (DeliveryFilter { since: Some(bench.now().plus(Duration::from_secs(1))), ..none() }, 0),
        // What it is about is said by the verb.
        (DeliveryFilter { state: Some(DeliveryState::Dead), ..none() }, 4),
    ] {
        let (count, samples) = bench.ledger.pending(acme, &filter, 2).await.unwrap();
        assert_eq!((count, samples.len() as u64), (expected, expected.min(2)), "{filter:?}");
        assert!(samples.iter().all(|row| row.state == DeliveryState::Pending));
    }
    let of_billing = DeliveryFilter { endpoint: billing(), ..none() };
    let swept = bench.ledger.cancel_many(acme, &of_billing, None, bench.now()).await.unwrap();
    assert_eq!((swept.done, swept.next), (3, None));
    let all = [waits[0], retried.lease.delivery, in_flight.lease.delivery, died];
    let expected = [DeliveryState::Cancelled, DeliveryState::Cancelled, DeliveryState::InFlight, DeliveryState::Dead];
    assert_eq!(states(&bench, &all).await, expected);
    assert_eq!((bench.ledger.gauges().pending, bench.ledger.gauges().in_flight), (1, 1));
    assert!(bench.claim("billing", 9).await.is_empty(), "none of them is ever sent");
    assert_eq!(bench.claim("crm", 9).await.len(), 1);
    let theirs = bench.ledger.cancel_many(bench.tenant("globex"), &none(), None, bench.now()).await.unwrap();
    assert_eq!(theirs.done, 0);
}

#[tokio::test]
async fn what_comes_while_a_cancel_goes_on_is_not_taken() {
    let bench = Bench::new().await;
    let acme = bench.tenant("acme");
    for n in 0..501 {
        bench.publish(publication("t", None, n.to_string()), &["billing"]).await;
    }
    let none = DeliveryFilter::default();
    let first = bench.ledger.cancel_many(acme, &none, None, bench.now()).await.unwrap();
    assert!(first.done == 500 && first.next.is_some());
    let (_, late) = bench.accept("late", &["billing"]).await;
    let second = bench.ledger.cancel_many(acme, &none, first.next, bench.now()).await.unwrap();
    assert_eq!((second.done, second.next), (1, None));
    assert_eq!(states(&bench, &late).await, [DeliveryState::Pending]);
}

// Races of a redrive in bulk.

async fn running(bench: &Bench) -> OperationRow {
    let wish = NewOperation {
        tenant: bench.tenant("acme"),
        work: Work::Redrive(DeadFilter::default()),
        max: None,
        rate: 100,
        canary: false,
        note: None,
        by: "operator".into(),
        request: None,
    };
    let BegunOperation::Done(row) = bench.ledger.begin_operation(wish, bench.now()).await.unwrap() else { panic!() };
    assert!(bench.ledger.start_operation(row.tenant, row.id, bench.now()).await.unwrap());
    *row
}

/// Steps of it, until it is over, beside whatever else is done.
fn steps(bench: &Bench, row: &OperationRow) -> tokio::task::JoinHandle<()> {
    let (ledger, tenant, id, now) = (Arc::clone(&bench.ledger), row.tenant, row.id, bench.now());
    tokio::spawn(async move { while !ledger.advance_operation(tenant, id, 3, now).await.unwrap().over {} })
}

async fn ended(bench: &Bench, row: &OperationRow) -> OperationRow {
    let row = bench.ledger.operation(row.tenant, row.id).await.unwrap().unwrap();
    assert_eq!(row.state, OperationState::Done);
    row
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_redrive_races_with_a_purge_and_each_letter_has_one_fate() {
    let mut bench = Bench::new().await;
    let ids = kill_many(&mut bench, "billing", 60).await;
    let row = running(&bench).await;
    let stepping = steps(&bench, &row);
    let (mut purged, acme) = (0, bench.tenant("acme"));
    // One by one, from the other end.
    for id in &ids {
        let filter = DeadFilter { ids: Some(vec![*id]), ..DeadFilter::default() };
        purged += bench.ledger.purge_dead(acme, &filter, None, bench.now()).await.unwrap().purged;
    }
    stepping.await.unwrap();
    let row = ended(&bench, &row).await;
    assert_eq!((row.done + purged, row.done + row.skipped.gone), (60, 60));
    let pending = states(&bench, &ids).await.into_iter().filter(|state| *state == DeliveryState::Pending).count();
    assert_eq!((pending as u64, bench.ledger.gauges().pending, bench.ledger.gauges().dead), (row.done, row.done, 0));
    for id in &ids {
        let kept = bench.ledger.delivery_body(acme, *id, None).await.unwrap().unwrap();
        let state = bench.detail(*id).await.delivery.state;
        assert_eq!(kept.is_some(), state == DeliveryState::Pending, "what is to be sent has its payload: {state:?}");
    }
    assert_eq!(bench.claim("billing", 100).await.len() as u64, row.done, "each can be sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_redrive_races_with_a_second_one_and_each_letter_goes_once() {
    let mut bench = Bench::new().await;
    let ids = kill_many(&mut bench, "billing", 60).await;
    let (first, second) = (running(&bench).await, running(&bench).await);
    let both = [steps(&bench, &first), steps(&bench, &second)];
    for stepping in both {
        stepping.await.unwrap();
    }
    let (first, second) = (ended(&bench, &first).await, ended(&bench, &second).await);
    assert_eq!(first.done + second.done, 60);
    assert_eq!((first.done + first.skipped.gone, second.done + second.skipped.gone), (60, 60));
    for id in &ids {
        let row = bench.detail(*id).await.delivery;
        assert_eq!((row.state, row.generation), (DeliveryState::Pending, 2));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_redrive_races_with_a_resolution_by_filter() {
    let mut bench = Bench::new().await;
    let ids = kill_many(&mut bench, "billing", 60).await;
    let row = running(&bench).await;
    let stepping = steps(&bench, &row);
    let resolved = bench.ledger.resolve_many(&resolve(&bench, DeadFilter::default()), None, bench.now()).await.unwrap();
    stepping.await.unwrap();
    let row = ended(&bench, &row).await;
    assert_eq!((row.done + resolved.done, row.done + row.skipped.gone), (60, 60));
    let fates = states(&bench, &ids).await;
    assert!(fates.iter().all(|state| matches!(state, DeliveryState::Pending | DeliveryState::Resolved)), "{fates:?}");
    assert_eq!(bench.ledger.gauges().dead, 0);
}

#[tokio::test]
async fn an_endpoint_that_is_no_longer_declared_keeps_what_was_redriven_for_when_it_comes_back() {
    let mut bench = Bench::new().await;
    let ids = kill_many(&mut bench, "billing", 4).await;
    let row = running(&bench).await;
    let half = bench.ledger.advance_operation(row.tenant, row.id, 2, bench.now()).await.unwrap();
    assert_eq!((half.done, half.over), (2, false));
    let mut less = declaration();
    less.tenants[0].endpoints.retain(|endpoint| endpoint.name != name("billing"));
    bench.ledger.declare(less, bench.now()).await.unwrap();
    steps(&bench, &row).await.unwrap();
    assert_eq!(ended(&bench, &row).await.done, 4);
    assert_eq!(states(&bench, &ids).await, [DeliveryState::Pending; 4], "nothing is lost, nothing is sent");
    let directory = bench.ledger.declare(declaration(), bench.now()).await.unwrap();
    assert_eq!(directory.tenants["acme"].endpoints["billing"].key, bench.endpoint("billing"));
    let back = bench.claim("billing", 9).await;
    assert_eq!(back.len(), 4);
    for one in back {
        bench.settle(one.lease, delivered()).await;
    }
    let died = bench.start("billing").await;
    bench.settle_as(died.lease, record("answered", Some(500)), dead("http_500")).await;
    assert_eq!(bench.ledger.gauges().dead, 1);
}
