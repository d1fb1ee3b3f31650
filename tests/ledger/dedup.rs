//! One event per key in its window: over restarts, races, edges, and when memory is small.

use crate::bench::{Bench, START, WINDOW, settings};
use crate::support::{publication, verified};
use hookgate::clock::Timestamp;
use hookgate::delivery::EventId;
use hookgate::ledger::{Accept, Accepted};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

async fn say(bench: &Bench, key: &str, body: &str) -> Accepted {
    bench.publish(publication("t", Some(key), body), &["billing"]).await
}

fn new(accepted: Accepted) -> EventId {
    match accepted {
        Accepted::New(id) => id,
        other => panic!("not new: {other:?}"),
    }
}

#[tokio::test]
async fn a_repetition_is_told_from_a_key_that_was_used_again() {
    let bench = Bench::new().await;
    let first = new(say(&bench, "k", "x").await);
    assert_eq!(say(&bench, "k", "x").await, Accepted::Duplicate(first));
    assert_eq!(say(&bench, "k", "y").await, Accepted::KeyReused(first));
    new(say(&bench, "l", "x").await);
    assert_eq!(bench.ledger.gauges().pending, 2);
    let bench = bench.restart().await;
    assert_eq!(say(&bench, "k", "x").await, Accepted::Duplicate(first));
    assert_eq!(bench.ledger.gauges().pending, 2);
}

#[tokio::test]
async fn another_tenants_key_is_another_key() {
    let bench = Bench::new().await;
    new(say(&bench, "k", "x").await);
    let now = bench.now();
    let event = verified("globex", publication("t", Some("k"), "x"), WINDOW, now);
    let accept = Accept { tenant: bench.tenant("globex"), source: None, event, deliveries: vec![], now };
    new(bench.ledger.accept(accept).await.unwrap());
}

#[tokio::test]
async fn a_duplicate_gives_its_slot_back_and_is_not_born() {
    let mut bench = Bench::new().await;
    bench.publish(publication("t", Some("k"), "x"), &["+billing"]).await;
    let born = bench.births.try_recv().unwrap();
    bench.publish(publication("t", Some("k"), "x"), &["+billing"]).await;
    assert!(bench.births.try_recv().is_err());
    assert_eq!(bench.slots.in_flight(), 1);
    drop(born);
}

#[tokio::test]
async fn of_many_at_once_one_is_new() {
    let bench = Arc::new(Bench::new().await);
    for round in 0..20 {
        let key = format!("k{round}");
        let all = (0..50).map(|_| {
            let accept = bench.acceptance(publication("t", Some(&key), "x"), &["billing"]);
            let ledger = Arc::clone(&bench.ledger);
            tokio::spawn(async move { ledger.accept(accept).await.unwrap() })
        });
        let mut ids = Vec::new();
        let mut fresh = 0;
        for task in all.collect::<Vec<_>>() {
            match task.await.unwrap() {
                Accepted::New(id) => {
                    fresh += 1;
                    ids.push(id);
                }
                Accepted::Duplicate(id) => ids.push(id),
                other @ (Accepted::KeyReused(_) | Accepted::TooLateAt(_)) => panic!("{other:?}"),
            }
        }
        ids.dedup();
        assert_eq!((fresh, ids.len()), (1, 1));
    }
    assert_eq!(bench.ledger.gauges().pending, 20);
}

#[tokio::test]
async fn the_window_ends_to_the_millisecond() {
    for restart in [false, true] {
        let mut bench = Bench::new().await;
        let first = new(say(&bench, "k", "x").await);
        bench.clock.advance(WINDOW - Duration::from_millis(1));
        if restart {
            bench = bench.restart().await;
        }
        assert_eq!(say(&bench, "k", "x").await, Accepted::Duplicate(first));
        bench.clock.advance(Duration::from_millis(1));
        if restart {
            bench = bench.restart().await;
        }
        let second = new(say(&bench, "k", "other").await);
        assert_eq!(say(&bench, "k", "other").await, Accepted::Duplicate(second));
        bench = bench.restart().await;
        assert_eq!(say(&bench, "k", "x").await, Accepted::KeyReused(second), "the later one counts");
    }
}

fn rows(bench: &Bench, table: &str) -> usize {
    let sql = format!("SELECT count(*) FROM {table}");
    bench.raw().query_row(&sql, [], |row| row.get::<_, u32>(0)).unwrap() as usize
}

/// Many more keys than memory holds, with restarts in the middle of moving them out of it: every one is known as long
/// as its window is open, and none a moment longer.
#[tokio::test]
async fn what_falls_out_of_memory_is_remembered_all_the_same() {
    const KEYS: usize = 900;
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let small = |s: &mut hookgate::ledger::sqlite::Settings| s.dedup_in_memory_max = 64;
    let mut first = settings(&dir.path().join("data/ledger.db"));
    small(&mut first);
    let mut bench = Bench::open(first, dir, START).await;
    let mut known: HashMap<String, (EventId, Timestamp)> = HashMap::new();
    let mut moved = 0;
    for n in 0..KEYS {
        let key = format!("key-{n}");
        let id = new(say(&bench, &key, "x").await);
        known.insert(key, (id, bench.now()));
        bench.clock.advance(Duration::from_secs(1));
        // An old one, a middling one and a young one.
        for back in [n, n / 2, n / 16] {
            let key = format!("key-{}", n - back);
            assert_eq!(say(&bench, &key, "x").await, Accepted::Duplicate(known[&key].0), "{key} after {n}");
        }
        if n % 97 == 96 {
            moved = moved.max(rows(&bench, "dedup_cold"));
            let now = bench.now();
            bench = bench.restart_with(now, small).await;
        }
    }
    assert!(moved > 300, "only {moved} ever left the memory");
    assert_eq!(bench.ledger.gauges().pending, KEYS as u64);

    // The windows of the first third run out; whatever was moved on the way goes too.
    bench.clock.advance(WINDOW - Duration::from_secs((KEYS - KEYS / 3) as u64));
    for n in (0..KEYS).step_by(7) {
        let key = format!("key-{n}");
        let (id, at) = known[&key];
        let expected = bench.now() < at.plus(WINDOW);
        let said = say(&bench, &key, "x").await;
        assert_eq!(said == Accepted::Duplicate(id), expected, "{key}: {said:?}");
        if !expected {
            known.insert(key, (new(said), bench.now()));
        }
    }
    for n in 0..400 {
        new(say(&bench, &format!("more-{n}"), "x").await);
    }
    for (key, (id, at)) in &known {
        if bench.now() < at.plus(WINDOW) {
            assert_eq!(say(&bench, key, "x").await, Accepted::Duplicate(*id), "{key}");
        }
    }
    assert!(rows(&bench, "dedup_recent") < 400, "memory's table stays small");
}
