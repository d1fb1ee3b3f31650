//! Coalescing: of the events of a window the newest is delivered, once, at the window's end.

use crate::bench::{Bench, START, WINDOW, dead, delivered};
use crate::stats::of as stats_of;
use crate::support::{publication, verified};
use crate::waiting::until;
use hookgate::clock::Timestamp;
use hookgate::delivery::{DeliveryState, EventId};
use hookgate::ledger::{
    Accept, Accepted, Cancelled, Count, DeliveryFilter, DeliveryRow, EventRow, NewDelivery, PageRequest, Retention,
};
use hookgate::verify::{Coalesce, Publication, Relation};
use std::collections::BTreeMap;
use std::time::Duration;

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Inside a window of ten seconds.
fn coalesced(key: &str, body: &str) -> Publication {
    let relation = Some(Relation::Coalesced(Coalesce { key: key.to_owned(), window: secs(10) }));
    Publication { relation, ..publication("t", None, body) }
}

async fn put(bench: &Bench, publication: Publication, endpoints: &[&str]) -> EventId {
    let Accepted::New(event) = bench.publish(publication, endpoints).await else { panic!("it is new") };
    event
}

async fn event(bench: &Bench, id: EventId) -> EventRow {
    bench.ledger.event(bench.tenant("acme"), id).await.unwrap().unwrap()
}

async fn all(bench: &Bench) -> Vec<DeliveryRow> {
    let page = PageRequest { limit: 200, cursor: None };
    bench.ledger.deliveries(bench.tenant("acme"), &DeliveryFilter::default(), &page).await.unwrap().items
}

#[tokio::test]
async fn the_newest_is_delivered_once_at_the_end_of_the_window() {
    let bench = Bench::new().await;
    let a = put(&bench, coalesced("k", "a"), &["billing", "crm"]).await;
    assert_eq!(bench.ledger.gauges().pending, 2);
    bench.clock.advance(secs(4));
    let b = put(&bench, coalesced("k", "b"), &["billing", "crm"]).await;
    bench.clock.advance(secs(5));
    let c = put(&bench, coalesced("k", "c"), &["billing", "crm"]).await;
    let other = put(&bench, coalesced("other", "x"), &["billing"]).await;
    let end = START.plus(secs(10));
    for (gone, by) in [(a, b), (b, c)] {
        let row = event(&bench, gone).await;
        assert_eq!((row.superseded_by, row.deliveries), (Some(by), Some(Vec::new())));
        assert_eq!((row.coalesce_key.as_deref(), row.deliver_at), (Some("k"), Some(end)));
    }
    assert_eq!((event(&bench, c).await.superseded_by, event(&bench, other).await.superseded_by), (None, None));
    assert_eq!(bench.ledger.gauges().pending, 3);
    for (endpoint, made) in [("billing", 4), ("crm", 3)] {
        let tally = stats_of(&bench, endpoint).await.tally;
        assert_eq!((tally.get(Count::ACCEPTED), tally.get(Count::SUPERSEDED)), (made, 2), "{endpoint}");
    }
    // Later events do not move the end, and a restart does not forget it.
    let bench = bench.restart().await;
    assert_eq!(bench.ledger.gauges().pending, 3);
    assert!(bench.claim("billing", 5).await.is_empty());
    bench.clock.advance(secs(1));
    let claimed = bench.claim("billing", 5).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!((claimed[0].event.id, claimed[0].event.body.as_ref()), (c, b"c".as_slice()));
    let key = format!("k@{}", START.to_rfc3339());
    assert_eq!(*claimed[0].idempotency_key, *key);
    assert_eq!(bench.detail(claimed[0].lease.delivery).await.delivery.idempotency_key, key);
    assert_eq!(bench.claim("crm", 5).await.len(), 1);
    // What comes now begins a window of its own, under a key of its own.
    let d = put(&bench, coalesced("k", "d"), &["billing"]).await;
    assert_eq!(event(&bench, d).await.deliver_at, Some(bench.now().plus(secs(10))));
    assert_eq!(event(&bench, c).await.superseded_by, None);
    let rows = all(&bench).await;
    let row = rows.iter().find(|row| row.event == d).unwrap();
    assert_eq!(row.idempotency_key, format!("k@{}", end.to_rfc3339()));
}

/// The key keeps over retries and redrives, and a logical key beside it is not the one that receivers get.
#[tokio::test]
async fn the_idempotency_key_is_frozen() {
    let bench = Bench::new().await;
    let id = put(&bench, Publication { key: Some("logical".into()), ..coalesced("k", "a") }, &["billing"]).await;
    bench.clock.advance(secs(10));
    let claimed = bench.claim("billing", 5).await;
    let (delivery, key) = (claimed[0].lease.delivery, format!("k@{}", START.to_rfc3339()));
    bench.settle(claimed[0].lease, dead("http_400")).await;
    let redrive =
        hookgate::ledger::Redrive { tenant: bench.tenant("acme"), delivery, note: None, payload: None, request: None };
    bench.ledger.redrive(redrive, bench.now()).await.unwrap();
    put(&bench, coalesced("k", "b"), &["billing"]).await;
    let claimed = bench.claim("billing", 5).await;
    assert_eq!((claimed[0].event.id, &*claimed[0].idempotency_key), (id, key.as_str()));
    assert_eq!(claimed[0].event.key.as_deref(), Some("logical"));
}

#[tokio::test]
async fn dedup_goes_before_and_is_remembered() {
    let bench = Bench::new().await;
    let keyed = |key: &str, body: &str| Publication { key: Some(key.to_owned()), ..coalesced("k", body) };
    let a = put(&bench, keyed("a", "1"), &["billing"]).await;
    let b = put(&bench, keyed("b", "2"), &["billing"]).await;
    assert_eq!(bench.publish(keyed("a", "1"), &["billing"]).await, Accepted::Duplicate(a));
    assert_eq!(bench.publish(keyed("a", "3"), &["billing"]).await, Accepted::KeyReused(a));
    assert_eq!(event(&bench, b).await.superseded_by, None, "a repetition takes nobody's place");
    bench.clock.advance(secs(10));
    assert_eq!(bench.claim("billing", 5).await[0].event.body.as_ref(), b"2");
}

/// Each endpoint gets the newest of what goes there; an event is superseded when nothing of it is left.
#[tokio::test]
async fn each_endpoint_gets_its_newest() {
    let bench = Bench::new().await;
    let a = put(&bench, coalesced("k", "a"), &["billing", "crm"]).await;
    let b = put(&bench, coalesced("k", "b"), &["billing"]).await;
    let row = event(&bench, a).await;
    assert_eq!((row.superseded_by, row.deliveries.map(|all| all.len())), (None, Some(1)));
    let c = put(&bench, coalesced("k", "c"), &["crm", "billing"]).await;
    assert_eq!((event(&bench, a).await.superseded_by, event(&bench, b).await.superseded_by), (Some(c), Some(c)));
    let untaken = put(&bench, coalesced("k", "d"), &[]).await;
    assert_eq!(event(&bench, c).await.superseded_by, None, "what goes nowhere takes no place");
    let e = put(&bench, coalesced("k", "e"), &["crm", "billing"]).await;
    assert_eq!((event(&bench, c).await.superseded_by, event(&bench, untaken).await.superseded_by), (Some(e), Some(e)));
    bench.clock.advance(secs(10));
    for endpoint in ["billing", "crm"] {
        let claimed = bench.claim(endpoint, 5).await;
        assert_eq!((claimed.len(), claimed[0].event.id), (1, e));
    }
}

#[tokio::test]
async fn a_persons_word_stands_and_the_window_with_it() {
    let bench = Bench::new().await;
    let a = put(&bench, coalesced("k", "a"), &["billing"]).await;
    let delivery = event(&bench, a).await.deliveries.unwrap()[0];
    let cancelled = bench.ledger.cancel(bench.tenant("acme"), delivery, bench.now()).await.unwrap();
    assert_eq!(cancelled, Cancelled::Done);
    bench.clock.advance(secs(3));
    let b = put(&bench, coalesced("k", "b"), &["billing"]).await;
    assert_eq!(bench.detail(delivery).await.delivery.state, DeliveryState::Cancelled);
    assert_eq!(event(&bench, b).await.deliver_at, Some(START.plus(secs(10))));
}

/// An event that was on its way to the ledger when the window ended takes no place of what has gone by then.
#[tokio::test]
async fn what_is_on_its_way_is_not_called_back() {
    let bench = Bench::new().await;
    let a = put(&bench, coalesced("k", "a"), &["billing"]).await;
    bench.clock.advance(secs(9));
    let late = bench.acceptance(coalesced("k", "b"), &["billing"]);
    bench.clock.advance(secs(1));
    let claimed = bench.claim("billing", 5).await;
    let Ok(Accepted::New(b)) = bench.ledger.accept(late).await else { panic!("it is new") };
    assert_eq!(event(&bench, a).await.superseded_by, None);
    bench.settle(claimed[0].lease, delivered()).await;
    bench.clock.advance(secs(9));
    let next = bench.claim("billing", 5).await;
    assert_eq!(next[0].event.id, b);
    assert_ne!(next[0].idempotency_key, claimed[0].idempotency_key, "another payload, another key");
}

#[tokio::test]
async fn a_clock_that_is_set_back_keeps_nothing_waiting() {
    let bench = Bench::new().await;
    put(&bench, coalesced("k", "a"), &["billing"]).await;
    bench.clock.set_by(-3_600_000);
    let now = bench.now();
    bench.ledger.reanchor(now.plus(secs(45)), &[(bench.endpoint("billing"), secs(5))], now).await.unwrap();
    let b = put(&bench, coalesced("k", "b"), &["billing"]).await;
    assert_eq!(event(&bench, b).await.deliver_at, Some(now.plus(secs(10))));
    assert!(all(&bench).await.iter().all(|row| row.due_at == Some(now.plus(secs(10)))));
}

#[tokio::test]
async fn what_would_be_too_late_is_refused_by_the_windows_end() {
    let bench = Bench::new().await;
    let end = START.plus(secs(10));
    let expiring = |at: Timestamp| Publication { expires_at: Some(at), ..coalesced("k", "x") };
    let needed = |at: Timestamp| Publication { deadline: Some(at), ..coalesced("k", "y") };
    assert_eq!(bench.publish(expiring(end), &["billing"]).await, Accepted::TooLateAt(end));
    assert!(all(&bench).await.is_empty() && bench.ledger.gauges().pending == 0);
    let a = put(&bench, expiring(end.plus(secs(1))), &["billing"]).await;
    bench.clock.advance(secs(5));
    assert_eq!(bench.publish(needed(end), &["billing"]).await, Accepted::TooLateAt(end));
    assert_eq!(event(&bench, a).await.superseded_by, None);
    // The window's end counts, not that of a window from now on.
    put(&bench, expiring(end.plus(secs(1))), &["billing"]).await;
}

/// The key is the tenant's own.
#[tokio::test]
async fn another_tenants_key_is_another() {
    let bench = Bench::new().await;
    let a = put(&bench, coalesced("k", "a"), &["billing"]).await;
    let globex = &bench.directory.tenants["globex"];
    let foreign = Accept {
        tenant: globex.key,
        source: None,
        event: verified("globex", coalesced("k", "b"), WINDOW, bench.now()),
        deliveries: vec![NewDelivery { endpoint: globex.endpoints["billing"].key, slot: None, order: None }],
        now: bench.now(),
    };
    assert!(matches!(bench.ledger.accept(foreign).await, Ok(Accepted::New(_))));
    assert_eq!(event(&bench, a).await.superseded_by, None);
    assert_eq!(bench.ledger.gauges().pending, 2);
}

/// However they race, one delivery is left, and all but one event have been superseded.
#[tokio::test]
async fn racing_events_leave_one_delivery() {
    let bench = Bench::new().await;
    let bodies: Vec<String> = (0..40).map(|n| n.to_string()).collect();
    let puts = bodies.iter().map(|body| put(&bench, coalesced("k", body), &["billing"]));
    let ids = futures_util::future::join_all(puts).await;
    let rows = all(&bench).await;
    assert_eq!((rows.len(), bench.ledger.gauges().pending), (1, 1));
    for id in ids {
        assert_eq!(event(&bench, id).await.superseded_by.is_none(), id == rows[0].event);
    }
}

/// A machine that loses its power has all of it or nothing.
#[tokio::test]
async fn a_crash_leaves_one_delivery() {
    let bench = Bench::new().await;
    put(&bench, coalesced("k", "a"), &["billing"]).await;
    let b = put(&bench, coalesced("k", "b"), &["billing"]).await;
    let after = bench.copy_as_after_a_crash().await;
    assert_eq!(all(&after).await.iter().map(|row| row.event).collect::<Vec<_>>(), [b]);
    put(&after, coalesced("k", "c"), &["billing"]).await;
    assert_eq!((all(&after).await.len(), after.ledger.gauges().pending), (1, 1));
}

#[tokio::test]
async fn windows_that_are_over_go() {
    let bench = Bench::new().await;
    for n in 0..1_200 {
        put(&bench, coalesced(&format!("k{n}"), "x"), &[]).await;
    }
    let count = || -> i64 { bench.raw().query_row("SELECT count(*) FROM coalescing", [], |row| row.get(0)).unwrap() };
    let retention =
        Retention { payloads: secs(9_999), rows: secs(9_999), tenants: BTreeMap::new(), batch_rows_max: 500 };
    bench.ledger.prune(&retention, bench.now()).await.unwrap();
    assert_eq!(count(), 1_200);
    bench.clock.advance(secs(10));
    let first = bench.ledger.prune(&retention, bench.now()).await.unwrap();
    assert!(first.more && count() < 1_200, "in steps");
    until("the windows are gone", || async {
        bench.ledger.prune(&retention, bench.now()).await.unwrap();
        (count() == 0).then_some(())
    })
    .await;
}
