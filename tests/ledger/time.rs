//! The wall clock is set: due times, leases, dedup windows and retention.

use crate::bench::{Bench, LEASE, WINDOW, delivered, record, retry, settings};
use crate::support::publication;
use crate::waiting::until;
use hookgate::clock::Timestamp;
use hookgate::delivery::DeliveryId;
use hookgate::ledger::{Accepted, EndpointKey, Redrive, Retention, Settled};
use hookgate::operations;
use hookgate::verify::Publication;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const DAY_MILLIS: i64 = 86_400_000;
const HOUR: Duration = Duration::from_secs(3_600);
/// The longest back-off of the endpoints in these tests.
const LONGEST: Duration = Duration::from_secs(60);

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

async fn reanchor(bench: &Bench, endpoints: &[&str]) -> u64 {
    let longest: Vec<(EndpointKey, Duration)> = endpoints.iter().map(|e| (bench.endpoint(e), LONGEST)).collect();
    bench.ledger.reanchor(bench.now().plus(LEASE), &longest, bench.now()).await.unwrap()
}

async fn due(bench: &Bench, id: DeliveryId) -> Timestamp {
    bench.detail(id).await.delivery.due_at.expect("it is pending")
}

async fn retried(bench: &mut Bench, endpoint: &str, wait: Duration) -> DeliveryId {
    let claimed = bench.start(endpoint).await;
    let mut seen = record("answered", Some(503));
    seen.duration = Duration::ZERO;
    bench.settle_as(claimed.lease, seen, retry(bench.now().plus(wait))).await;
    claimed.lease.delivery
}

async fn delayed(bench: &Bench, endpoint: &str, delay: Duration) -> DeliveryId {
    let later = Publication { deliver_at: Some(bench.now().plus(delay)), ..publication("t", None, "later") };
    let Accepted::New(id) = bench.publish(later, &[endpoint]).await else { panic!("without a key it is new") };
    bench.ledger.event(bench.tenant("acme"), id).await.unwrap().unwrap().deliveries.unwrap()[0]
}

#[tokio::test]
async fn after_a_step_back_nothing_waits_longer_than_it_was_told() {
    let mut bench = Bench::new().await;
    let dead = bench.kill("billing").await;
    let short = retried(&mut bench, "billing", secs(30)).await;
    let long = retried(&mut bench, "billing", 2 * HOUR).await;
    let later = delayed(&bench, "billing", 3 * HOUR).await;
    let elsewhere = retried(&mut bench, "crm", secs(30)).await;
    let redrive = Redrive { tenant: bench.tenant("acme"), delivery: dead, note: None, payload: None, request: None };
    bench.ledger.redrive(redrive, bench.now()).await.unwrap();
    let all = [dead, short, long, later, elsewhere];
    let mut before = Vec::new();
    for id in all {
        before.push(due(&bench, id).await);
    }
    assert_eq!(reanchor(&bench, &["billing", "crm"]).await, 0, "what is as it was told is left alone");

    bench.clock.set_by(-DAY_MILLIS);
    let now = bench.now();
    assert_eq!(reanchor(&bench, &["billing"]).await, 4);
    let mut after = Vec::new();
    for id in all {
        after.push(due(&bench, id).await);
    }
    let expected = [now.plus(LONGEST), now.plus(LONGEST), now.plus(2 * HOUR), now.plus(3 * HOUR), before[4]];
    assert_eq!(after, expected);
    assert_eq!(bench.wakes.take().get(&bench.endpoint("billing")), Some(&now.plus(LONGEST)));
    assert_eq!(reanchor(&bench, &["billing"]).await, 0, "once is enough");
    bench.clock.advance(LONGEST);
    let due_now: Vec<_> = bench.claim("billing", 9).await.iter().map(|c| c.lease.delivery).collect();
    assert_eq!(due_now.len(), 2);
    assert!(due_now.contains(&dead) && due_now.contains(&short));
}

#[tokio::test]
async fn more_than_one_transaction_holds_is_moved_all_the_same() {
    const COUNT: usize = 2_300;
    let bench = Bench::new().await;
    let at = bench.now().plus(HOUR);
    let all = (0..COUNT).map(|_| {
        let later = Publication { deliver_at: Some(at), ..publication("t", None, "later") };
        bench.ledger.accept(bench.acceptance(later, &["billing"]))
    });
    for accepted in futures_util::future::join_all(all.collect::<Vec<_>>()).await {
        assert!(matches!(accepted, Ok(Accepted::New(_))));
    }
    assert_eq!(reanchor(&bench, &["billing"]).await, 0, "many that are due at one time are passed by");
    bench.clock.set_by(-DAY_MILLIS);
    assert_eq!(reanchor(&bench, &["billing"]).await, COUNT as u64);
    let first = bench.ledger.backlog().await.unwrap()[&bench.endpoint("billing")];
    assert_eq!(first, bench.now().plus(HOUR));
    assert_eq!(bench.ledger.gauges().pending, COUNT as u64);
}

#[tokio::test]
async fn leases_begin_again() {
    let mut bench = Bench::new().await;
    let held = [bench.start("billing").await, bench.start("crm").await];
    bench.clock.set_by(DAY_MILLIS);
    reanchor(&bench, &[]).await;
    assert!(bench.ledger.rescue(bench.now(), 9, bench.now()).await.unwrap().is_empty(), "its holder is at work");
    assert_eq!(bench.settle(held[0].lease, delivered()).await, Settled::Stored);

    bench.clock.set_by(-DAY_MILLIS);
    reanchor(&bench, &[]).await;
    let over = bench.clock.advance(LEASE);
    let taken = bench.ledger.rescue(over, 9, over).await.unwrap();
    assert_eq!(taken.iter().map(|t| t.delivery).collect::<Vec<_>>(), [held[1].lease.delivery]);
}

#[tokio::test]
async fn no_dedup_window_ends_while_the_date_is_in_doubt() {
    let bench = Bench::new().await;
    let say = async |body: &str| bench.publish(publication("t", Some("k"), body), &["billing"]).await;
    let Accepted::New(first) = say("x").await else { panic!() };
    bench.clock.set_by(8 * DAY_MILLIS);
    assert_eq!(say("x").await, Accepted::Duplicate(first));
    assert_eq!(say("y").await, Accepted::KeyReused(first));
    bench.clock.advance(HOUR - secs(1));
    assert_eq!(say("x").await, Accepted::Duplicate(first));
    bench.clock.advance(secs(1));
    assert!(matches!(say("x").await, Accepted::New(second) if second != first), "so it is eight days later");
}

/// Keys that have left the memory: while they move, a clock that is wrong for a while sweeps none of them away.
#[tokio::test]
async fn a_clock_that_was_wrong_for_a_while_makes_nothing_forgotten() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let mut small = settings(&dir.path().join("data/ledger.db"));
    small.dedup_in_memory_max = 16;
    let bench = Bench::open(small, dir, crate::bench::START).await;
    let mut known = Vec::new();
    let mut spoken = 0;
    let mut speak = async || {
        let key = format!("key-{spoken}");
        spoken += 1;
        let Accepted::New(id) = bench.publish(publication("t", Some(&key), "x"), &["billing"]).await else {
            panic!("{key} is new")
        };
        (key, id)
    };
    let recent = || -> i64 {
        bench.raw().query_row("SELECT coalesce(min(seq), 0) FROM dedup_recent", [], |row| row.get(0)).unwrap()
    };
    for set_by in [0, 8 * DAY_MILLIS, -8 * DAY_MILLIS] {
        bench.clock.set_by(set_by);
        // Until the memory has been cleared twice more, the table has been gone through from end to end.
        for _ in 0..2 {
            let before = recent();
            for _ in 0..2_000 {
                known.push(speak().await);
                if recent() > before {
                    break;
                }
            }
            assert!(recent() > before, "nothing leaves the memory");
        }
    }
    bench.clock.advance(2 * HOUR);
    for _ in 0..100 {
        known.push(speak().await);
    }
    for (key, id) in &known {
        let said = bench.publish(publication("t", Some(key), "x"), &["billing"]).await;
        assert_eq!(said, Accepted::Duplicate(*id), "{key}");
    }
    bench.clock.advance(WINDOW);
    assert!(matches!(bench.publish(publication("t", Some("key-0"), "x"), &[]).await, Accepted::New(_)));
}

#[tokio::test]
async fn nothing_is_purged_early() {
    let mut bench = Bench::new().await;
    let acme = bench.tenant("acme");
    let born = bench.start("billing").await;
    bench.settle(born.lease, delivered()).await;
    let day = secs(86_400);
    let retention = Retention { payloads: day, rows: 90 * day, tenants: BTreeMap::new(), batch_rows_max: 100 };
    let (every, breath) = (Duration::from_millis(1), Duration::from_millis(1));
    let settings = operations::Settings { retention, every, breath };
    bench.clock.set_by(DAY_MILLIS);
    let stop = CancellationToken::new();
    let run = operations::run(Arc::clone(&bench.ledger), settings, Arc::clone(&bench.watch), stop.clone());
    let run = tokio::spawn(run);
    let passes = async |count: u64| {
        let enough = bench.clock.looks() + count;
        until("retention's passes", async || (bench.clock.looks() >= enough).then_some(())).await;
    };
    let there = async || bench.ledger.event_body(acme, born.event.id).await.unwrap().unwrap().is_some();
    passes(20).await;
    assert!(there().await, "a day has not passed");
    bench.clock.advance(HOUR - secs(1));
    passes(20).await;
    assert!(there().await);
    bench.clock.advance(secs(1));
    until("the payload's end", async || (!there().await).then_some(())).await;
    stop.cancel();
    run.await.unwrap();
}
