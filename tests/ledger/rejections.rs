//! The rejection log: its bounds, its filters, and that no tenant sees another's.

use crate::bench::Bench;
use hookgate::ledger::{
    BodyFacts, Page, PageRequest, REJECTIONS_MAX, REJECTIONS_PER_SOURCE_MAX, Rejected, RejectionFilter, RejectionRow,
    Retention, SourceKey, TenantKey,
};
use std::time::Duration;

fn source(bench: &Bench, tenant: &str, source: &str) -> (TenantKey, SourceKey) {
    let entry = &bench.directory.tenants[tenant];
    (entry.key, entry.sources[source])
}

fn refused(bench: &Bench, (tenant, source): (TenantKey, SourceKey), detail: &str) -> Rejected {
    Rejected {
        tenant,
        source,
        at: bench.now(),
        reason: "timestamp_too_old",
        step: Some("timestamp"),
        detail: detail.to_owned(),
        skew_seconds: Some(-7),
        peer: "192.0.2.7".parse().unwrap(),
        body: Some(BodyFacts { bytes: 5, digest: [0xab; 8] }),
    }
}

async fn page(bench: &Bench, tenant: &str, filter: RejectionFilter, request: PageRequest) -> Page<RejectionRow> {
    bench.ledger.rejections(bench.tenant(tenant), &filter, &request).await.unwrap()
}

async fn details(bench: &Bench, tenant: &str, filter: RejectionFilter) -> Vec<String> {
    let (mut all, mut cursor) = (Vec::new(), None);
    loop {
        let Page { items, next } = page(bench, tenant, filter.clone(), PageRequest { limit: 200, cursor }).await;
        all.extend(items.into_iter().map(|row| row.detail));
        cursor = next;
        if cursor.is_none() {
            return all;
        }
    }
}

#[tokio::test]
async fn each_tenant_sees_its_own_after_a_restart_too() {
    let bench = Bench::new().await;
    let (ours, theirs) = (source(&bench, "acme", "github"), source(&bench, "globex", "github"));
    let other =
        Rejected { reason: "key_reused", step: None, skew_seconds: None, body: None, ..refused(&bench, theirs, "t") };
    bench.ledger.keep_rejections(vec![refused(&bench, ours, "o"), other]).await.unwrap();
    let bench = bench.restart().await;
    let all = PageRequest { limit: 50, cursor: None };
    let found = page(&bench, "acme", RejectionFilter::default(), all.clone()).await;
    let [row] = found.items.as_slice() else { panic!("{found:?}") };
    assert_eq!((row.at, row.source.as_str(), row.reason.as_str()), (bench.now(), "github", "timestamp_too_old"));
    assert_eq!((row.step.as_deref(), row.detail.as_str(), row.skew_seconds), (Some("timestamp"), "o", Some(-7)));
    assert_eq!((row.peer.as_str(), row.body_bytes), ("192.0.2.7", Some(5)));
    assert_eq!(row.body_digest.as_deref(), Some("abababababababab"));
    let found = page(&bench, "globex", RejectionFilter::default(), all).await;
    let [row] = found.items.as_slice() else { panic!("{found:?}") };
    assert_eq!((row.reason.as_str(), row.step.as_deref(), row.body_digest.as_deref()), ("key_reused", None, None));
}

#[tokio::test]
async fn filters_and_pages() {
    let bench = Bench::new().await;
    let mut batch = Vec::new();
    for n in 0..7 {
        let of = source(&bench, "acme", if n % 2 == 0 { "github" } else { "stripe" });
        let reason = if n < 4 { "malformed" } else { "signature_mismatch" };
        batch.push(Rejected { reason, ..refused(&bench, of, &n.to_string()) });
        bench.clock.advance(Duration::from_secs(1));
    }
    bench.ledger.keep_rejections(batch).await.unwrap();
    let start = crate::bench::START;
    let second = |n: u64| start.plus(Duration::from_secs(n));
    let none = RejectionFilter::default;
    for (filter, found) in [
        (none(), "6543210"),
        (RejectionFilter { source: Some("stripe".parse().unwrap()), ..none() }, "531"),
        (RejectionFilter { reason: Some("malformed".into()), ..none() }, "3210"),
        (RejectionFilter { since: Some(second(2)), until: Some(second(4)), ..none() }, "32"),
        (RejectionFilter { source: Some("nobody".parse().unwrap()), ..none() }, ""),
    ] {
        assert_eq!(details(&bench, "acme", filter.clone()).await.concat(), found, "{filter:?}");
    }
    let first = page(&bench, "acme", none(), PageRequest { limit: 4, cursor: None }).await;
    let second = PageRequest { limit: 4, cursor: first.next };
    assert_eq!(page(&bench, "acme", none(), second.clone()).await.items.len(), 3);
    let wrong = bench.ledger.rejections(bench.tenant("globex"), &none(), &second).await;
    assert!(wrong.is_err(), "another tenant's cursor");
}

#[tokio::test]
async fn a_flood_pushes_out_its_own_sources_oldest() {
    let bench = Bench::new().await;
    let (quiet, loud) = (source(&bench, "acme", "stripe"), source(&bench, "acme", "github"));
    bench.ledger.keep_rejections(vec![refused(&bench, quiet, "quiet")]).await.unwrap();
    let bound = REJECTIONS_PER_SOURCE_MAX as usize;
    for n in 0..3 {
        let batch = (0..bound / 2).map(|m| refused(&bench, loud, &(n * bound / 2 + m).to_string()));
        bench.ledger.keep_rejections(batch.collect()).await.unwrap();
    }
    let kept = details(&bench, "acme", RejectionFilter::default()).await;
    assert_eq!(kept.len(), bound + 1);
    assert_eq!((kept[0].as_str(), kept[bound - 1].as_str(), kept[bound].as_str()), ("749", "250", "quiet"));
}

#[tokio::test]
async fn all_together_are_bounded() {
    let bench = Bench::new().await;
    // Sources that nobody declared are as good as any for a count.
    let sources = REJECTIONS_MAX / REJECTIONS_PER_SOURCE_MAX + 1;
    for n in 0..sources {
        let of = (bench.tenant("acme"), SourceKey(1_000 + n));
        let batch = (0..REJECTIONS_PER_SOURCE_MAX).map(|_| refused(&bench, of, "x"));
        bench.ledger.keep_rejections(batch.collect()).await.unwrap();
    }
    let raw = rusqlite::Connection::open(&bench.path).unwrap();
    let count = |sql: &str| -> u32 { raw.query_row(sql, [], |row| row.get(0)).unwrap() };
    assert_eq!(count("SELECT count(*) FROM rejection"), REJECTIONS_MAX);
    assert_eq!(count("SELECT count(*) FROM rejection WHERE source = 1000"), 0, "the oldest go");
}

#[tokio::test]
async fn retention_takes_them_with_the_rows() {
    let bench = Bench::new().await;
    let days = |n: u64| Duration::from_secs(n * 86_400);
    let mut retention = Retention { payloads: days(1), rows: days(90), tenants: [].into(), batch_rows_max: 100 };
    retention.tenants.insert(bench.tenant("globex"), (days(1), days(30)));
    for tenant in ["acme", "globex"] {
        let old = refused(&bench, source(&bench, tenant, "github"), "old");
        bench.ledger.keep_rejections(vec![old]).await.unwrap();
    }
    bench.clock.advance(days(40));
    let young = refused(&bench, source(&bench, "globex", "github"), "young");
    bench.ledger.keep_rejections(vec![young]).await.unwrap();
    assert_eq!(bench.ledger.prune(&retention, bench.now()).await.unwrap().rows_removed, 1);
    assert_eq!(details(&bench, "globex", RejectionFilter::default()).await, ["young"]);
    assert_eq!(details(&bench, "acme", RejectionFilter::default()).await, ["old"]);
    bench.clock.advance(days(51));
    assert_eq!(bench.ledger.prune(&retention, bench.now()).await.unwrap().rows_removed, 2);
    assert_eq!(details(&bench, "acme", RejectionFilter::default()).await, [""; 0]);
}

/// They are history, as the events of such a source are: still listed, and gone when their time is over.
#[tokio::test]
async fn those_of_a_source_or_tenant_that_is_gone_are_listed_until_they_are_too_old() {
    let bench = Bench::new().await;
    let days = |n: u64| Duration::from_secs(n * 86_400);
    for (tenant, of) in [("acme", "github"), ("acme", "stripe"), ("globex", "github")] {
        bench.ledger.keep_rejections(vec![refused(&bench, source(&bench, tenant, of), of)]).await.unwrap();
    }
    let mut left = crate::bench::declaration();
    left.tenants.retain(|tenant| tenant.name.as_str() == "acme");
    left.tenants[0].sources.retain(|source| source.as_str() == "github");
    let directory = bench.ledger.declare(left, bench.now()).await.unwrap();
    assert!(!directory.tenants["acme"].sources.contains_key("stripe"));
    let of = |name: &str| RejectionFilter { source: Some(name.parse().unwrap()), ..RejectionFilter::default() };
    assert_eq!(details(&bench, "acme", of("stripe")).await, ["stripe"]);
    assert_eq!(details(&bench, "globex", RejectionFilter::default()).await, ["github"]);
    let retention = Retention { payloads: days(1), rows: days(90), tenants: [].into(), batch_rows_max: 100 };
    bench.clock.advance(days(90));
    assert_eq!(bench.ledger.prune(&retention, bench.now()).await.unwrap().rows_removed, 0, "not a moment too early");
    bench.clock.advance(Duration::from_millis(1));
    assert_eq!(bench.ledger.prune(&retention, bench.now()).await.unwrap().rows_removed, 3);
    let raw = rusqlite::Connection::open(&bench.path).unwrap();
    assert_eq!(raw.query_row("SELECT count(*) FROM rejection", [], |row| row.get(0)), Ok(0));
}
