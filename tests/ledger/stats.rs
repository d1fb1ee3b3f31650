//! The figures of a window: what was counted is what a recount of the records finds, over restarts, crashes and commits
//! that failed; and where things stand is what the rows say.

use crate::bench::{Bench, START, dead, delivered, record, released, retry};
use crate::support::publication;
use futures_util::future::join_all;
use hookgate::clock::Timestamp;
use hookgate::delivery::{Decision, DeliveryId, DeliveryState, Disposition, EndpointEffect, LatencyBucket, Reason};
use hookgate::ledger::{
    Accepted, Claimed, Closed, Count, DeliveryFilter, EndpointChange, EndpointKey, EndpointStats, Lease, LedgerError,
    NewDelivery, PageRequest, Redrive, Redriven, ResolveAs, Retention, Settled, SourceStats, StatsQuery, StatsWindow,
    Tally, TenantStats,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

const DAY: Duration = seconds(86_400);

async fn over(bench: &Bench, window: StatsWindow, endpoint: Option<&str>) -> Option<TenantStats> {
    let endpoint = endpoint.map(crate::support::name);
    let asked = StatsQuery { tenant: bench.tenant("acme"), endpoint, window };
    bench.ledger.stats(&asked, bench.now()).await.unwrap()
}

/// All from the start on.
async fn all(bench: &Bench) -> TenantStats {
    let window = StatsWindow::new(START, bench.now().plus(seconds(1)), None, bench.now()).unwrap();
    over(bench, window, None).await.unwrap()
}

pub(crate) async fn of(bench: &Bench, endpoint: &str) -> EndpointStats {
    all(bench).await.endpoints.into_iter().find(|stats| stats.state.name.as_str() == endpoint).unwrap()
}

fn source<'s>(stats: &'s TenantStats, named: Option<&str>) -> &'s SourceStats {
    stats.sources.iter().find(|stats| stats.source.as_ref().map(hookgate::delivery::Name::as_str) == named).unwrap()
}

fn told(stats: &TenantStats) -> Vec<(String, Tally)> {
    let endpoints = stats.endpoints.iter().map(|stats| (stats.state.name.to_string(), stats.tally.clone()));
    let named = |source: &SourceStats| source.source.as_ref().map_or("published".to_owned(), |name| format!("<{name}"));
    endpoints.chain(stats.sources.iter().map(|stats| (named(stats), stats.tally.clone()))).collect()
}

fn latency(span: Duration) -> Count {
    Count::latency(LatencyBucket::of(span))
}

#[tokio::test]
async fn a_delivery_is_timed_from_when_it_could_first_be_sent() {
    let mut bench = Bench::new().await;
    let claimed = bench.start("billing").await;
    bench.clock.advance(Duration::from_millis(7));
    bench.settle(claimed.lease, delivered()).await;

    // Accepted for later, and tried twice.
    let mut later = publication("t", None, "x");
    later.deliver_at = Some(bench.now().plus(seconds(600)));
    bench.publish(later, &["crm"]).await;
    bench.clock.advance(seconds(610));
    let first = bench.claim("crm", 1).await.remove(0);
    bench.settle_as(first.lease, record("answered", Some(503)), retry(bench.now().plus(seconds(20)))).await;
    bench.clock.advance(seconds(20));
    let second = bench.claim("crm", 1).await.remove(0);
    bench.settle(second.lease, delivered()).await;

    // Dead, and redriven a day later.
    let id = bench.kill("audit").await;
    bench.clock.advance(DAY);
    let asked = Redrive { tenant: bench.tenant("acme"), delivery: id, note: None, payload: None, request: None };
    assert!(matches!(bench.ledger.redrive(asked, bench.now()).await.unwrap(), Redriven::Done { .. }));
    bench.clock.advance(seconds(5));
    let again = bench.claim("audit", 1).await.remove(0);
    bench.settle(again.lease, delivered()).await;

    let [billing, crm, audit] = [of(&bench, "billing").await, of(&bench, "crm").await, of(&bench, "audit").await];
    assert_eq!(billing.tally.get(latency(Duration::from_millis(7))), 1);
    assert_eq!(crm.tally.get(latency(seconds(30))), 1, "{:?}", crm.tally);
    assert_eq!(crm.tally.by_attempt().collect::<Vec<_>>(), [(1, 1, 0), (2, 1, 1)]);
    assert_eq!(audit.tally.get(latency(seconds(5))), 1, "{:?}", audit.tally);
    assert_eq!(audit.tally.by_attempt().collect::<Vec<_>>(), [(1, 2, 1)], "each generation begins at 1");
    for count in [Count::DEAD, Count::REDRIVEN, Count::DELIVERED_AFTER_REDRIVE] {
        assert_eq!(audit.tally.get(count), 1);
    }
    let window = StatsWindow::new(bench.now().minus(seconds(60)), bench.now().plus(seconds(1)), None, bench.now());
    let lately = over(&bench, window.unwrap(), Some("audit")).await.unwrap();
    assert_eq!((lately.endpoints.len(), lately.sources.len()), (1, 0));
    assert_eq!((lately.endpoints[0].tally.delivered(), lately.endpoints[0].tally.get(Count::DEAD)), (1, 0));
    assert!(over(&bench, window.unwrap(), Some("nobody")).await.is_none());
}

#[tokio::test]
async fn repetitions_are_counted_by_source_and_throttles_by_endpoint() {
    let bench = Bench::new().await;
    let github = bench.directory.tenants["acme"].sources["github"];
    for (from, key, body) in [
        (None, "a", "1"),
        (None, "a", "1"),
        (None, "a", "2"),
        (Some(github), "b", "1"),
        (Some(github), "b", "1"),
        (Some(github), "b", "1"),
    ] {
        let mut accept = bench.acceptance(publication("t", Some(key), body), &["billing"]);
        accept.source = from;
        bench.ledger.accept(accept).await.unwrap();
    }
    let claimed = bench.claim("billing", 2).await;
    for (claimed, status, pause) in [(&claimed[0], 429, true), (&claimed[1], 503, true)] {
        let until = bench.now().plus(seconds(30));
        let why = Reason::word("retry_after");
        let endpoint = pause.then_some(EndpointEffect::PauseUntil { until, why });
        let decision = Decision { endpoint, ..retry(until).into() };
        let mut record = record("answered", Some(status));
        record.ambiguous = status == 503;
        assert_eq!(bench.settle_as(claimed.lease, record, decision).await, Settled::Stored);
    }
    bench.clock.advance(seconds(30));
    drop(claimed);
    // After a pause it begins with one at a time.
    let first = bench.claim("billing", 1).await.remove(0);
    bench.settle_as(first.lease, record("answered", Some(429)), dead("http_429")).await;
    drop(first);
    let second = bench.claim("billing", 1).await.remove(0);
    bench.settle_as(second.lease, record("interrupted", None), retry(bench.now())).await;

    let stats = all(&bench).await;
    let counts = |named| {
        let tally = &source(&stats, named).tally;
        (tally.get(Count::EVENTS), tally.get(Count::DUPLICATES), tally.get(Count::KEYS_REUSED))
    };
    assert_eq!((counts(None), counts(Some("github")), counts(Some("stripe"))), ((1, 1, 1), (1, 2, 0), (0, 0, 0)));
    let billing = of(&bench, "billing").await;
    let count = |count| billing.tally.get(count);
    assert_eq!((count(Count::STATUS_429), count(Count::THROTTLED), count(Count::AMBIGUOUS)), (2, 2, 1));
    assert_eq!((count(Count::INTERRUPTED), count(Count::DEAD), billing.tally.attempts()), (1, 1, 4));
    let reasons: Vec<(&str, u64, u64)> =
        billing.tally.reasons().iter().map(|r| (r.reason.as_str(), r.retried, r.dead)).collect();
    assert_eq!(reasons, [("http_429", 0, 1), ("http_503", 3, 0)]);
    assert_eq!(billing.closed, [Closed { disabled: false, why: "retry_after".into(), time: seconds(30) }]);
}

/// Where things stand is counted from the rows.
#[tokio::test]
async fn where_things_stand_is_what_the_rows_say() {
    let mut bench = Bench::new().await;
    let first_dead = bench.now();
    bench.kill("billing").await;
    bench.clock.advance(seconds(100));
    bench.kill("billing").await;
    let waits = bench.now();
    bench.publish(publication("t", None, "x"), &["billing"]).await;
    let mut later = publication("t", None, "x");
    later.deliver_at = Some(bench.now().plus(DAY));
    bench.publish(later, &["billing"]).await;
    bench.clock.advance(seconds(100));
    let _under_way = bench.start("billing").await;
    let billing = of(&bench, "billing").await;
    let state = &billing.state;
    assert_eq!((state.pending, state.available, state.in_flight, state.dead), (2, 1, 1, 2));
    assert_eq!((state.oldest_pending_at, billing.oldest_dead_at), (Some(waits), Some(first_dead)));
    assert_eq!(billing.tally.get(Count::ACCEPTED), 5);
    let listed = |state| {
        let filter = DeliveryFilter { state: Some(state), ..DeliveryFilter::default() };
        let (ledger, tenant) = (bench.ledger.clone(), bench.tenant("acme"));
        async move { ledger.deliveries(tenant, &filter, &PageRequest { limit: 200, cursor: None }).await.unwrap().items }
    };
    assert_eq!(listed(DeliveryState::Dead).await.len() as u64, state.dead);
    assert_eq!(listed(DeliveryState::Pending).await.len() as u64, state.pending);
    let crm = of(&bench, "crm").await;
    assert_eq!((crm.state.dead, crm.oldest_dead_at, crm.tally), (0, None, Tally::default()));
}

#[tokio::test]
async fn the_time_an_endpoint_was_closed_is_told_by_reason() {
    let bench = Bench::new().await;
    let acme = bench.tenant("acme");
    let billing = crate::support::name("billing");
    let change = async |bench: &Bench, change| {
        bench.ledger.change_endpoint(acme, &billing, change, bench.now()).await.unwrap().unwrap();
    };
    let until = |until| EndpointChange::Pause { until: Some(until), why: "retry_after".into() };
    change(&bench, until(bench.now().plus(seconds(100)))).await;
    bench.clock.advance(seconds(40));
    change(&bench, until(bench.now().plus(seconds(100)))).await;
    bench.clock.advance(seconds(200));
    change(&bench, EndpointChange::Pause { until: None, why: "their maintenance".into() }).await;
    bench.clock.advance(seconds(500));
    change(&bench, EndpointChange::Disable { why: "gone".into() }).await;
    let bench = bench.restart().await;
    bench.clock.advance(seconds(50));
    change(&bench, EndpointChange::Enable).await;
    bench.clock.advance(seconds(10));
    change(&bench, until(bench.now().plus(seconds(1_000)))).await;
    bench.clock.advance(seconds(20));
    let closed = |disabled, why: &str, time| Closed { disabled, why: why.to_owned(), time: seconds(time) };
    let expected =
        [closed(false, "their maintenance", 500), closed(false, "retry_after", 140 + 20), closed(true, "gone", 50)];
    assert_eq!(of(&bench, "billing").await.closed, expected);
    let rows: u32 = bench.raw().query_row("SELECT count(*) FROM endpoint_closing", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 4, "a pause that goes on is one");
}

#[tokio::test]
async fn a_verb_that_fails_counts_nothing_and_the_others_of_its_commit_do() {
    let bench = Bench::new().await;
    let one = |n: usize| {
        let mut accept = bench.acceptance(publication("t", None, "x"), &["billing", "crm"]);
        if n.is_multiple_of(3) {
            accept.deliveries.push(NewDelivery { endpoint: EndpointKey(999), slot: None, order: None });
        }
        bench.ledger.accept(accept)
    };
    let answers = join_all((0..90).map(one)).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_err()).count(), 30);
    let stats = all(&bench).await;
    assert_eq!(source(&stats, None).tally.get(Count::EVENTS), 60);
    for endpoint in ["billing", "crm"] {
        assert_eq!(of(&bench, endpoint).await.tally.get(Count::ACCEPTED), 60);
    }
}

#[tokio::test]
async fn a_commit_that_fails_counts_nothing() {
    let mut bench = Bench::with(|s| s.pages_max = Some(140)).await;
    let mut accepted = 0;
    loop {
        let accept = bench.acceptance(publication("t", None, vec![b'x'; 20_000]), &["billing"]);
        match bench.ledger.accept(accept).await {
            Ok(_) => accepted += 1,
            Err(LedgerError::Unavailable(_)) => break,
            Err(error) => panic!("{error}"),
        }
        assert!(accepted < 1_000);
    }
    let before = told(&all(&bench).await);
    assert_eq!(of(&bench, "billing").await.tally.get(Count::ACCEPTED), accepted);
    bench = bench.restart().await;
    assert_eq!(told(&all(&bench).await), before);
}

/// 64 commits are one row each; those before them are added up.
#[tokio::test]
async fn a_commit_costs_a_row_and_the_rows_do_not_pile_up() {
    let mut bench = Bench::new().await;
    let counts = |bench: &Bench| -> (u32, u32) {
        let sql = "SELECT (SELECT count(*) FROM tally_note), (SELECT count(*) FROM tally)";
        bench.raw().query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
    };
    for n in 1..=64 {
        bench.publish(publication("t", None, "x"), &["billing", "crm"]).await;
        assert_eq!(counts(&bench), (n, 0));
    }
    bench.claim("billing", 3).await;
    assert_eq!(counts(&bench), (64, 0), "what counts nothing costs nothing");
    bench.publish(publication("t", None, "x"), &["billing", "crm"]).await;
    assert_eq!(counts(&bench), (1, 3), "two endpoints and what was published, in one minute");
    for n in 0..200 {
        bench.clock.advance(seconds(1));
        if n % 50 == 0 {
            bench = bench.restart().await;
        }
        bench.publish(publication("t", None, "x"), &["crm"]).await;
        assert!(counts(&bench).0 <= 65);
    }
    let stats = all(&bench).await;
    assert_eq!(source(&stats, None).tally.get(Count::EVENTS), 265);
    assert_eq!(of(&bench, "crm").await.tally.get(Count::ACCEPTED), 265);
}

async fn prune_all(bench: &Bench, rows: Duration) {
    let retention = Retention { payloads: DAY, rows, tenants: BTreeMap::new(), batch_rows_max: 1_000 };
    for _ in 0..1_000 {
        if !bench.ledger.prune(&retention, bench.now()).await.unwrap().more {
            return;
        }
    }
    panic!("pruning does not end");
}

#[tokio::test]
async fn figures_of_this_minute_keep_no_pruning_going() {
    let bench = Bench::new().await;
    bench.publish(publication("t", None, "x"), &["crm"]).await;
    let retention = Retention { payloads: DAY, rows: DAY * 90, tenants: BTreeMap::new(), batch_rows_max: 1_000 };
    assert!(!bench.ledger.prune(&retention, bench.now()).await.unwrap().more);
}

#[tokio::test]
async fn minutes_become_hours_and_hours_go() {
    let mut bench = Bench::new().await;
    for _ in 0..200 {
        bench.kill("billing").await;
        bench.clock.advance(seconds(50));
    }
    let tallies = |bench: &Bench, hourly: u8| -> u32 {
        bench.raw().query_row("SELECT count(*) FROM tally WHERE hourly = ?", [hourly], |row| row.get(0)).unwrap()
    };
    assert!(tallies(&bench, 0) > 200);
    let before = told(&all(&bench).await);
    bench.clock.advance(DAY * 3);
    prune_all(&bench, DAY * 90).await;
    assert!(tallies(&bench, 0) == 0 && tallies(&bench, 1) <= 8, "{} {}", tallies(&bench, 0), tallies(&bench, 1));
    assert_eq!(told(&all(&bench).await), before);
    let bench = bench.restart().await;
    assert_eq!(told(&all(&bench).await), before);

    // The second hour alone, and in buckets.
    let hour = START.plus(seconds(3_600));
    let until = hour.plus(seconds(7_200));
    let window = StatsWindow::new(hour, until, Some(seconds(3_600)), bench.now()).unwrap();
    let stats = over(&bench, window, Some("billing")).await.unwrap();
    let buckets: Vec<u64> = stats.endpoints[0].buckets.iter().map(|tally| tally.get(Count::DEAD)).collect();
    assert_eq!(buckets.len() as u64, window.bucket_count());
    assert_eq!(buckets.iter().sum::<u64>(), stats.endpoints[0].tally.get(Count::DEAD));
    assert!((140..200).contains(&buckets.iter().sum::<u64>()), "{buckets:?}");

    bench.clock.advance(DAY * 90);
    prune_all(&bench, DAY * 90).await;
    assert_eq!((tallies(&bench, 0), tallies(&bench, 1)), (0, 0));
    assert_eq!(of(&bench, "billing").await.tally, Tally::default());
}

#[derive(Clone, Debug)]
enum Step {
    Accept { key: Option<u8>, slot: bool, later: bool },
    Claim { endpoint: usize, slots: usize },
    Settle { which: usize, how: u8 },
    Redrive { which: usize },
    Cancel { which: usize },
    Resolve { which: usize },
    Advance { seconds: u64 },
    Restart,
    Prune,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (prop::option::of(0u8..8), any::<bool>(), prop::bool::weighted(0.2))
            .prop_map(|(key, slot, later)| Step::Accept { key, slot, later }),
        5 => (0usize..2, 1usize..4).prop_map(|(endpoint, slots)| Step::Claim { endpoint, slots }),
        10 => (any::<usize>(), 0u8..9).prop_map(|(which, how)| Step::Settle { which, how }),
        3 => any::<usize>().prop_map(|which| Step::Redrive { which }),
        1 => any::<usize>().prop_map(|which| Step::Cancel { which }),
        1 => any::<usize>().prop_map(|which| Step::Resolve { which }),
        4 => prop_oneof![1u64..100, 1u64..20_000].prop_map(|seconds| Step::Advance { seconds }),
        1 => Just(Step::Restart),
        1 => Just(Step::Prune),
    ]
}

const ENDPOINTS: [&str; 2] = ["billing", "crm"];

/// What the records do not say.
#[derive(Default)]
struct Seen {
    held: Vec<(Lease, Option<Claimed>)>,
    ids: Vec<DeliveryId>,
    /// When each generation could first be sent.
    eligible: BTreeMap<(DeliveryId, u32), Timestamp>,
    published: Tally,
}

async fn apply(mut bench: Bench, seen: &mut Seen, step: Step) -> Bench {
    let (now, acme) = (bench.now(), bench.tenant("acme"));
    let pick = |which: usize, ids: &[DeliveryId]| (!ids.is_empty()).then(|| ids[which % ids.len()]);
    match step {
        Step::Accept { key, slot, later } => {
            let text = key.map(|k| format!("key-{k}"));
            let mut publication = publication("t", text.as_deref(), "x");
            let at = now.plus(seconds(20));
            publication.deliver_at = later.then_some(at);
            let wanted = if slot { ["+billing", "crm"] } else { ["billing", "crm"] };
            match bench.publish(publication, &wanted).await {
                Accepted::New(id) => {
                    seen.published.add(Count::EVENTS, 1);
                    seen.held.extend(bench.births.try_recv().ok().map(|born| (born.lease, Some(born))));
                    for id in bench.ledger.event(acme, id).await.unwrap().unwrap().deliveries.unwrap() {
                        seen.ids.push(id);
                        seen.eligible.insert((id, 1), if later { at } else { now });
                    }
                }
                Accepted::Duplicate(_) => seen.published.add(Count::DUPLICATES, 1),
                Accepted::KeyReused(_) => seen.published.add(Count::KEYS_REUSED, 1),
                Accepted::TooLateAt(at) => panic!("nothing was coalesced: {at:?}"),
            }
        }
        Step::Claim { endpoint, slots } => {
            let claimed = bench.claim(ENDPOINTS[endpoint], slots).await;
            seen.held.extend(claimed.into_iter().map(|claimed| (claimed.lease, Some(claimed))));
        }
        Step::Settle { which, how } => {
            if seen.held.is_empty() {
                return bench;
            }
            let (lease, held) = seen.held.swap_remove(which % seen.held.len());
            drop(held);
            let due = now.plus(seconds(15));
            let (outcome, disposition) = match how {
                0 => ("interrupted", retry(due)),
                1 => ("answered", retry(due)),
                2 => ("released", released(now)),
                3 | 4 => ("answered", dead("http_400")),
                5 => ("faulted", Disposition::Expired(Reason::EXPIRED)),
                6 => ("skipped", Disposition::Skipped(Reason::word("test_mode"))),
                _ => ("answered", delivered()),
            };
            bench.settle_as(lease, record(outcome, None), disposition.clone()).await;
            // Late and twice: nothing changes.
            assert_eq!(bench.settle_as(lease, record(outcome, None), disposition).await, Settled::LeaseLost);
        }
        Step::Redrive { which } => {
            let Some(id) = pick(which, &seen.ids) else { return bench };
            let asked = Redrive { tenant: acme, delivery: id, note: None, payload: None, request: None };
            if let Redriven::Done { generation, .. } = bench.ledger.redrive(asked, now).await.unwrap() {
                seen.eligible.insert((id, generation), now);
            }
        }
        Step::Cancel { which } => {
            let Some(id) = pick(which, &seen.ids) else { return bench };
            bench.ledger.cancel(acme, id, now).await.unwrap();
        }
        Step::Resolve { which } => {
            let Some(id) = pick(which, &seen.ids) else { return bench };
            bench.ledger.resolve(acme, id, ResolveAs::Sent, None, now).await.unwrap();
        }
        Step::Advance { seconds: n } => {
            bench.clock.advance(seconds(n));
        }
        Step::Restart => {
            for (_, claimed) in &mut seen.held {
                *claimed = None;
            }
            bench = bench.restart().await;
        }
        Step::Prune => prune_all(&bench, DAY * 300).await,
    }
    bench
}

/// From the records, one by one.
async fn recount(bench: &Bench, seen: &Seen, endpoint: &str) -> Tally {
    let mut tally = Tally::default();
    for id in &seen.ids {
        let detail = bench.detail(*id).await;
        if detail.delivery.endpoint.as_str() != endpoint {
            continue;
        }
        tally.add(Count::ACCEPTED, 1);
        tally.add(Count::REDRIVEN, u64::from(detail.delivery.generation - 1));
        match detail.delivery.state {
            DeliveryState::Cancelled => tally.add(Count::CANCELLED, 1),
            DeliveryState::Resolved => tally.add(Count::RESOLVED, 1),
            _ => {}
        }
        let mut counted = BTreeMap::<u32, u32>::new();
        for attempt in detail.attempts {
            let counted = counted.entry(attempt.generation).or_default();
            let disposition = attempt.disposition.as_deref();
            *counted += u32::from(!matches!(disposition, None | Some("released")));
            match disposition {
                Some("delivered") => {
                    tally.add(Count::tried(*counted), 1);
                    tally.add(Count::delivered(*counted), 1);
                    tally.add(Count::DELIVERED_AFTER_REDRIVE, u64::from(attempt.generation > 1));
                    let eligible = seen.eligible[&(*id, attempt.generation)];
                    tally.add(latency(detail.delivery.finished_at.unwrap().since(eligible)), 1);
                }
                Some("retry_at") => {
                    tally.add(Count::tried(*counted), 1);
                    tally.add_reason("http_503", 1, 0);
                }
                Some("dead") => {
                    tally.add(Count::tried(*counted), 1);
                    tally.add(Count::DEAD, 1);
                    tally.add_reason("http_400", 0, 1);
                }
                Some("expired") => tally.add(Count::EXPIRED, 1),
                Some("skipped") => tally.add(Count::SKIPPED, 1),
                Some("released") => tally.add(Count::RELEASED, 1),
                Some(other) => panic!("{other}"),
                None => {}
            }
            tally.add(Count::INTERRUPTED, u64::from(attempt.outcome.as_deref() == Some("interrupted")));
        }
    }
    tally
}

async fn check(bench: &Bench, seen: &Seen) {
    let stats = all(bench).await;
    assert_eq!(source(&stats, None).tally, seen.published);
    for endpoint in ENDPOINTS {
        assert_eq!(of(bench, endpoint).await.tally, recount(bench, seen, endpoint).await, "{endpoint}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, max_shrink_iters: 100, ..ProptestConfig::default() })]

    #[test]
    fn what_was_counted_is_what_a_recount_finds(steps in prop::collection::vec(step(), 1..160)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut bench, mut seen) = (Bench::new().await, Seen::default());
            for step in steps {
                bench = apply(bench, &mut seen, step).await;
            }
            check(&bench, &seen).await;
            check(&bench.copy_as_after_a_crash().await, &seen).await;
            let span = seconds(3_600);
            let until = bench.now().plus(seconds(1));
            let since = START.max(until.minus(span * 200));
            let window = StatsWindow::new(since, until, Some(span), bench.now()).unwrap();
            for stats in over(&bench, window, None).await.unwrap().endpoints {
                let mut sum = Tally::default();
                stats.buckets.iter().for_each(|bucket| sum.add_all(bucket));
                assert_eq!(sum, stats.tally, "the buckets are the window");
            }
        });
    }
}
