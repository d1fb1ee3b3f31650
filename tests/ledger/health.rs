//! How endpoints fare: what is durable of it, and that signals are taken one after the other.

use crate::bench::{Bench, record};
use hookgate::clock::Timestamp;
use hookgate::delivery::{BreakerPolicy, Disposition, EndpointStatus, HealthPolicy, Pulse, Reason, Signal};
use hookgate::ledger::{
    AlertQuestion, Claimed, EndpointChange, EndpointState, KnownFacts, Lease, Settled, Settlement, Taken,
};
use std::num::NonZeroU32;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

fn policy(failures: u32) -> HealthPolicy {
    let failures = NonZeroU32::new(failures).unwrap();
    let breaker = BreakerPolicy { failures, open: 30 * SECOND, open_max: 100 * SECOND };
    HealthPolicy { breaker: Some(breaker), ..HealthPolicy::default() }
}

fn settlement(bench: &Bench, lease: Lease, signal: Signal, policy: HealthPolicy) -> Settlement {
    let (status, disposition) = match signal {
        Signal::Works => (200, Disposition::Delivered { reference: None }),
        Signal::Fails => (500, Disposition::Dead(Reason::word("http_500"))),
    };
    // As long as a pause may be.
    let pulse = Some(Pulse { signal, policy, chance: u64::MAX });
    Settlement {
        lease,
        record: record("answered", Some(status)),
        decision: disposition.into(),
        pulse,
        now: bench.now(),
    }
}

async fn end(bench: &Bench, claimed: Claimed, signal: Signal, policy: HealthPolicy) {
    let settlement = settlement(bench, claimed.lease, signal, policy);
    assert_eq!(bench.ledger.settle(settlement.into()).await.unwrap(), Settled::Stored);
}

fn to(bench: &Bench, at: Timestamp) {
    bench.clock.advance(at.since(bench.now()));
}

/// An attempt that takes a second.
async fn attempt(bench: &mut Bench, signal: Signal, policy: HealthPolicy) {
    let claimed = bench.start("billing").await;
    bench.clock.advance(SECOND);
    end(bench, claimed, signal, policy).await;
}

async fn state(bench: &Bench) -> EndpointState {
    let all = bench.ledger.endpoints(bench.tenant("acme"), bench.now()).await.unwrap();
    all.into_iter().find(|state| state.name.as_str() == "billing").unwrap()
}

fn paused(until: Timestamp) -> EndpointStatus {
    EndpointStatus::Paused { until: Some(until), why: "breaker_open".to_owned() }
}

async fn change(bench: &Bench, change: EndpointChange) {
    let name = "billing".parse().unwrap();
    bench.ledger.change_endpoint(bench.tenant("acme"), &name, change, bench.now()).await.unwrap().unwrap();
}

async fn known(bench: &Bench) -> KnownFacts {
    let question = AlertQuestion {
        tenant: bench.tenant("acme"),
        told_by: None,
        going: (Timestamp::ZERO, Timestamp::ZERO),
        closings_since: Timestamp::ZERO,
        ended_since: Timestamp::ZERO,
    };
    bench.ledger.alert_facts(question).await.unwrap()
}

async fn closings(bench: &Bench) -> u64 {
    known(bench).await.endpoints.iter().find(|endpoint| endpoint.name.as_str() == "billing").unwrap().closings
}

#[tokio::test]
async fn every_opening_of_a_breaker_is_a_closing_of_the_endpoint() {
    let mut bench = Bench::new().await;
    for _ in 0..2 {
        attempt(&mut bench, Signal::Fails, policy(3)).await;
    }
    assert_eq!(closings(&bench).await, 0);
    // Two are on the wire when it opens: the second tells nothing new.
    let (one, two) = (bench.start("billing").await, bench.start("billing").await);
    bench.clock.advance(SECOND);
    end(&bench, one, Signal::Fails, policy(3)).await;
    let crashed = bench.copy_as_after_a_crash().await;
    assert_eq!(closings(&crashed).await, 1, "in the same commit");
    end(&bench, two, Signal::Fails, policy(3)).await;
    assert_eq!(closings(&bench).await, 1);
    // A probe that fails opens it again.
    bench.clock.advance(40 * SECOND);
    attempt(&mut bench, Signal::Fails, policy(3)).await;
    assert_eq!(closings(&bench).await, 2);
    bench.clock.advance(100 * SECOND);
    attempt(&mut bench, Signal::Works, policy(3)).await;
    assert_eq!(closings(&bench.restart().await).await, 2);
}

#[tokio::test]
async fn a_long_failure_is_a_fact_until_it_works_or_is_disabled() {
    let policy = HealthPolicy { breaker: None, disable_after: Some(10 * SECOND) };
    let mut bench = Bench::new().await;
    let alerted = async |bench: &Bench| -> Vec<Option<Timestamp>> {
        known(bench).await.failing.iter().map(|(_, failing)| failing.alerted_at).collect()
    };
    assert_eq!(alerted(&bench).await, []);
    attempt(&mut bench, Signal::Fails, policy).await;
    assert_eq!(alerted(&bench).await, [None]);
    bench.clock.advance(6 * SECOND);
    attempt(&mut bench, Signal::Fails, policy).await;
    let half = bench.now();
    let mut bench = bench.restart().await;
    assert_eq!(alerted(&bench).await, [Some(half)], "over a restart");
    attempt(&mut bench, Signal::Works, policy).await;
    assert_eq!(alerted(&bench).await, [], "it works");
    for _ in 0..4 {
        bench.clock.advance(6 * SECOND);
        if state(&bench).await.status == EndpointStatus::Enabled {
            attempt(&mut bench, Signal::Fails, policy).await;
        }
    }
    assert_eq!(state(&bench).await.status, EndpointStatus::Disabled { why: "failing".to_owned() });
    assert_eq!(alerted(&bench).await, [], "disabled, that is what is told");
}

#[tokio::test]
async fn an_open_breaker_is_open_after_a_restart_and_half_open_after_its_pause() {
    let mut bench = Bench::new().await;
    for _ in 0..3 {
        assert_eq!(state(&bench).await.status, EndpointStatus::Enabled);
        attempt(&mut bench, Signal::Fails, policy(3)).await;
    }
    let until = bench.now().plus(30 * SECOND);
    let crashed = bench.copy_as_after_a_crash().await;
    let endpoint = bench.endpoint("billing");
    for mut bench in [crashed, bench.restart().await] {
        let stands = state(&bench).await;
        assert_eq!((stands.status, stands.health.breaker_state), (paused(until), "open"));
        assert_eq!((stands.health.breaker_until, stands.health.failures_in_a_row), (Some(until), 3));
        assert!(matches!(bench.slots.take_for_backlog(endpoint, bench.now()), Taken::NotBefore(at) if at == until));

        to(&bench, until.plus(SECOND));
        let half = state(&bench).await;
        assert_eq!((half.status, half.health.breaker_state), (EndpointStatus::Enabled, "half_open"));
        let probe = bench.start("billing").await;
        assert!(matches!(bench.slots.take_for_backlog(endpoint, bench.now()), Taken::Full), "one probe at a time");
        bench.clock.advance(SECOND);
        end(&bench, probe, Signal::Fails, policy(3)).await;
        let until = bench.now().plus(60 * SECOND);
        assert_eq!(state(&bench).await.status, paused(until), "twice as long");

        let mut bench = bench.restart_with(until.plus(SECOND), |_| {}).await;
        attempt(&mut bench, Signal::Works, policy(3)).await;
        let closed = state(&bench).await;
        assert_eq!((closed.status, closed.health.breaker_state), (EndpointStatus::Enabled, "closed"));
        assert_eq!((closed.health.failures_in_a_row, closed.health.failing_since), (0, None));
        let bench = bench.restart().await;
        assert_eq!(state(&bench).await.health.breaker_state, "closed");
    }
}

#[tokio::test]
async fn settlements_at_once_count_each_and_open_it_once() {
    let mut bench = Bench::new().await;
    let mut claimed = Vec::new();
    for _ in 0..50 {
        claimed.push(bench.start("billing").await);
    }
    bench.clock.advance(SECOND);
    let settlements: Vec<Settlement> =
        claimed.iter().map(|claimed| settlement(&bench, claimed.lease, Signal::Fails, policy(10))).collect();
    let settled = settlements.into_iter().map(|settlement| bench.ledger.settle(settlement.into()));
    for settled in futures_util::future::join_all(settled).await {
        assert_eq!(settled.unwrap(), Settled::Stored);
    }
    let stands = state(&bench).await;
    assert_eq!((stands.health.failures_in_a_row, stands.dead), (50, 50));
    assert_eq!(stands.status, paused(bench.now().plus(30 * SECOND)), "those that were under way do not double it");
}

/// What the health of endpoints cost in writes so far.
fn writes(bench: &Bench) -> i64 {
    bench.raw().query_row("SELECT count(*) FROM meta WHERE name LIKE 'felt-%'", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn only_a_change_is_written() {
    let mut bench = Bench::new().await;
    let trigger = "CREATE TRIGGER felt AFTER UPDATE OF failures ON endpoint BEGIN \
                   INSERT INTO meta (name, value) SELECT 'felt-' || count(*), x'00' FROM meta; END";
    bench.raw().execute_batch(trigger).unwrap();
    for _ in 0..5 {
        attempt(&mut bench, Signal::Works, policy(3)).await;
    }
    assert_eq!(writes(&bench), 0, "a success on a healthy endpoint");
    attempt(&mut bench, Signal::Fails, policy(3)).await;
    attempt(&mut bench, Signal::Works, policy(3)).await;
    attempt(&mut bench, Signal::Works, policy(3)).await;
    assert_eq!(writes(&bench), 2, "one failure, and its end");
}

#[tokio::test]
async fn nothing_but_failures_are_told_and_then_disable_it_and_enabling_starts_afresh() {
    let mut bench = Bench::new().await;
    let policy = HealthPolicy::default();
    attempt(&mut bench, Signal::Fails, policy).await;
    let since = bench.now();
    assert_eq!((state(&bench).await.health.failing_since, bench.ledger.gauges().endpoints_failing), (Some(since), 0));
    to(&bench, since.plus(3 * DAY));
    attempt(&mut bench, Signal::Fails, policy).await;
    assert_eq!((state(&bench).await.status, bench.ledger.gauges().endpoints_failing), (EndpointStatus::Enabled, 1));
    let mut bench = bench.restart().await;
    assert_eq!(bench.ledger.gauges().endpoints_failing, 1);
    to(&bench, since.plus(6 * DAY));
    attempt(&mut bench, Signal::Fails, policy).await;
    let disabled = EndpointStatus::Disabled { why: "failing".to_owned() };
    assert_eq!((state(&bench).await.status, bench.ledger.gauges().endpoints_failing), (disabled.clone(), 0));
    // Its events are kept.
    bench.accept("{}", &["billing"]).await;
    assert!(matches!(bench.slots.take_for_backlog(bench.endpoint("billing"), bench.now()), Taken::Closed));
    change(&bench, EndpointChange::Resume).await;
    assert_eq!((state(&bench).await.status, state(&bench).await.pending), (disabled, 1));
    change(&bench, EndpointChange::Enable).await;
    let stands = state(&bench).await;
    assert_eq!((stands.status, stands.health.failing_since), (EndpointStatus::Enabled, None));
    assert_eq!(bench.claim("billing", 1).await.len(), 1);
    attempt(&mut bench.restart().await, Signal::Fails, policy).await;
}

#[tokio::test]
async fn one_that_works_ends_the_long_failure() {
    let mut bench = Bench::new().await;
    let policy = HealthPolicy::default();
    for days in [0, 3] {
        bench.clock.advance(days * DAY);
        attempt(&mut bench, Signal::Fails, policy).await;
    }
    assert_eq!(bench.ledger.gauges().endpoints_failing, 1);
    attempt(&mut bench, Signal::Works, policy).await;
    assert_eq!(bench.ledger.gauges().endpoints_failing, 0);
    bench.clock.advance(3 * DAY);
    attempt(&mut bench, Signal::Fails, policy).await;
    assert_eq!(state(&bench).await.status, EndpointStatus::Enabled);
}

#[tokio::test]
async fn a_clock_that_is_set_back_holds_no_breaker_open() {
    let mut bench = Bench::new().await;
    attempt(&mut bench, Signal::Fails, policy(1)).await;
    bench.clock.set_by(-86_400_000);
    bench.ledger.reanchor(bench.now().plus(DAY), &[], bench.now()).await.unwrap();
    let until = bench.now().plus(30 * SECOND);
    assert_eq!(state(&bench).await.status, paused(until));
    let mut bench = bench.restart().await;
    assert_eq!(state(&bench).await.status, paused(until));
    to(&bench, until);
    attempt(&mut bench, Signal::Works, policy(1)).await;
    assert_eq!(state(&bench).await.health.breaker_state, "closed");
}

/// What a transaction that was rolled back took from the memory, it has again.
#[tokio::test]
async fn what_is_not_committed_is_not_remembered() {
    let mut bench = Bench::new().await;
    let claimed = bench.start("billing").await;
    bench.clock.advance(SECOND);
    let refuse = "CREATE TRIGGER refuse BEFORE UPDATE OF failures ON endpoint BEGIN SELECT RAISE(ABORT, 'no'); END";
    bench.raw().execute_batch(refuse).unwrap();
    let failed = || settlement(&bench, claimed.lease, Signal::Fails, policy(2));
    assert!(bench.ledger.settle(failed().into()).await.is_err());
    bench.raw().execute_batch("DROP TRIGGER refuse").unwrap();
    assert_eq!(bench.ledger.settle(failed().into()).await.unwrap(), Settled::Stored);
    let stands = state(&bench).await;
    assert_eq!((stands.health.failures_in_a_row, stands.status), (1, EndpointStatus::Enabled), "counted once");
}

#[tokio::test]
async fn an_operator_goes_before_the_breaker() {
    let mut bench = Bench::new().await;
    attempt(&mut bench, Signal::Fails, policy(1)).await;
    assert_eq!(state(&bench).await.health.breaker_state, "open");
    change(&bench, EndpointChange::Resume).await;
    let resumed = state(&bench).await;
    assert_eq!((resumed.status, resumed.health.breaker_state), (EndpointStatus::Enabled, "half_open"));
    // A pause by hand is not shortened by a breaker, and not ended by one that closes.
    bench.clock.advance(SECOND);
    let claimed = [bench.start("billing").await];
    let by_hand = EndpointStatus::Paused { until: None, why: "operator".to_owned() };
    change(&bench, EndpointChange::Pause { until: None, why: "operator".to_owned() }).await;
    bench.clock.advance(SECOND);
    for claimed in claimed {
        end(&bench, claimed, Signal::Works, policy(1)).await;
    }
    let stands = state(&bench).await;
    assert_eq!((stands.status, stands.health.breaker_state), (by_hand, "closed"));
    change(&bench, EndpointChange::Disable { why: "operator".to_owned() }).await;
    change(&bench, EndpointChange::Enable).await;
    assert_eq!(state(&bench).await.health.breaker_state, "closed");
}

#[tokio::test]
async fn a_breaker_opens_no_endpoint_that_is_disabled_and_shortens_no_longer_pause() {
    let mut bench = Bench::new().await;
    let claimed = [bench.start("billing").await, bench.start("billing").await];
    let later = bench.now().plus(DAY);
    change(&bench, EndpointChange::Pause { until: Some(later), why: "operator".to_owned() }).await;
    let [first, second] = claimed;
    bench.clock.advance(SECOND);
    end(&bench, first, Signal::Fails, policy(1)).await;
    assert_eq!(state(&bench).await.status, EndpointStatus::Paused { until: Some(later), why: "operator".to_owned() });
    change(&bench, EndpointChange::Disable { why: "operator".to_owned() }).await;
    end(&bench, second, Signal::Works, policy(1)).await;
    assert_eq!(state(&bench).await.status, EndpointStatus::Disabled { why: "operator".to_owned() });
}
