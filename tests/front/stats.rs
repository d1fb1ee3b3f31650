//! The figures of a window, over the admin API.

use crate::office::{NOW, assert_golden, office};
use hookgate::delivery::LatencyBucket;
use hookgate::ledger::{Closed, Count, EndpointState, EndpointStats, SourceStats, Tally, TenantKey, TenantStats};
use std::time::Duration;

const STATS: &str = "/v1/tenants/acme/stats";

fn tally(delivered: u64) -> Tally {
    let mut tally = Tally::default();
    for (count, n) in [
        (Count::ACCEPTED, 10),
        (Count::tried(1), delivered + 2),
        (Count::delivered(1), delivered),
        (Count::tried(2), 2),
        (Count::delivered(2), 1),
        (Count::DEAD, 1),
        (Count::STATUS_429, 2),
        (Count::THROTTLED, 1),
        (Count::latency(LatencyBucket::of(Duration::from_millis(12))), delivered),
        (Count::latency(LatencyBucket::of(Duration::from_secs(300))), 1),
    ] {
        tally.add(count, n);
    }
    tally.add_reason("http_429", 2, 0);
    tally.add_reason("http_400", 0, 1);
    tally
}

fn stats(state: EndpointState, delivered: u64, buckets: usize) -> EndpointStats {
    let closed =
        |disabled, why: &str, seconds| Closed { disabled, why: why.to_owned(), time: Duration::from_secs(seconds) };
    EndpointStats {
        oldest_dead_at: Some(NOW.minus(Duration::from_secs(3_600))),
        tally: tally(delivered),
        buckets: vec![tally(1); buckets],
        closed: vec![closed(false, "retry_after", 60), closed(true, "http_410", 30), closed(false, "operator", 5)],
        state,
    }
}

#[tokio::test]
async fn figures_and_where_things_stand() {
    let office = office().await;
    let states: Vec<EndpointState> = {
        let rows = office.ledger.endpoints.lock().unwrap();
        rows.iter().filter(|(tenant, _)| *tenant == TenantKey(1)).map(|(_, state)| state.clone()).collect()
    };
    let mut published = Tally::default();
    published.add(Count::EVENTS, 7);
    published.add(Count::DUPLICATES, 2);
    *office.ledger.stats.lock().unwrap() = TenantStats {
        endpoints: states.iter().zip([17, 1, 0]).map(|(state, n)| stats(state.clone(), n, 0)).collect(),
        sources: vec![
            SourceStats { source: None, tally: published },
            SourceStats { source: Some("github".parse().unwrap()), tally: Tally::default() },
        ],
    };
    assert_golden("stats", &office.get(STATS).await);
    assert!(office.asked().contains("endpoint: None"), "{}", office.asked());
    let theirs = office.get("/v1/tenants/globex/stats").await.json();
    assert_eq!(theirs["endpoints"].as_array().map(Vec::len), Some(0));
    assert_eq!(theirs["total"]["latency_ms"]["p50"], serde_json::Value::Null);

    *office.ledger.stats.lock().unwrap() =
        TenantStats { endpoints: vec![stats(states[0].clone(), 17, 3)], sources: Vec::new() };
    let one = office.get(&format!("{STATS}?endpoint=billing&window=2h&bucket=1h")).await;
    assert_golden("stats-endpoint", &one);
    assert_eq!(office.get(&format!("{STATS}?endpoint=crm")).await.status, 404);
}

#[tokio::test]
async fn what_cannot_be_told_is_refused_by_its_rule() {
    let office = office().await;
    for (query, named, rule) in [
        ("window=1", "window", "a duration"),
        ("window=0s", "window", "some time before"),
        ("window=500d", "window", "400d long at most"),
        ("window=1h&since=2025-12-31T00:00:00Z", "window", "leave out `since` and `until`"),
        ("since=2026-01-02T00:00:00Z", "since", "some time before"),
        ("since=yesterday", "since", "RFC 3339"),
        ("bucket=90s", "bucket", "a multiple of 1m"),
        ("window=7d&bucket=10m", "bucket", "a multiple of 1h"),
        ("window=47h&bucket=1m", "bucket", "1500 buckets at most"),
        ("endpoint=No", "endpoint", "a name"),
    ] {
        let reply = office.get(&format!("{STATS}?{query}")).await;
        let problem = reply.json();
        assert_eq!((reply.status, &problem["parameter"]), (422, &named.into()), "{query} {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(rule), "{query} {problem}");
    }
    let unknown = office.get(&format!("{STATS}?windows=1h")).await;
    assert_eq!((unknown.status, unknown.code().as_str()), (400, "unknown_parameter"));
    assert_eq!(office.get(&format!("{STATS}?endpoint=nobody")).await.status, 404);
    assert_eq!(office.get("/v1/tenants/nobody/stats").await.status, 404);
    assert_eq!(office.ask("POST", STATS, "", "").await.status, 405);

    let many = |n| TenantStats { endpoints: many_endpoints(n), sources: Vec::new() };
    *office.ledger.stats.lock().unwrap() = many(14);
    assert_eq!(office.get(&format!("{STATS}?window=24h&bucket=1m")).await.status, 422, "20,160 buckets");
    *office.ledger.stats.lock().unwrap() = many(13);
    assert_eq!(office.get(&format!("{STATS}?window=24h&bucket=1m")).await.status, 200);
}

fn many_endpoints(n: usize) -> Vec<EndpointStats> {
    let state = |i: usize| EndpointState {
        key: hookgate::ledger::EndpointKey(1),
        name: format!("e-{i}").parse().unwrap(),
        host: "e.example".into(),
        status: hookgate::delivery::EndpointStatus::Enabled,
        pending: 0,
        available: 0,
        in_flight: 0,
        dead: 0,
        oldest_pending_at: None,
        health: hookgate::ledger::EndpointHealth::of(&crate::office::health(1), NOW),
    };
    (0..n).map(|i| stats(state(i), 1, 1_440)).collect()
}
