//! Attempts with what went in and out: in order, within bounds, of one tenant, and as far as retention left them.

use crate::bench::{Bench, dead, delivered, record, released, retry};
use hookgate::delivery::{DeliveryId, DeliveryState, Disposition, KeptBody, PluginVersionId};
use hookgate::ledger::{
    AttemptRecord, Past as _, PastAttempt, PastFilter, PastPage, PastPlace, PastRoom, Redrive, RequestRecord,
    ResponseRecord, Retention,
};
use std::time::Duration;

const ALL: PastRoom = PastRoom { attempts: 100, bytes: 1 << 20, payloads: true };

fn filter(bench: &Bench, endpoints: &[&str]) -> PastFilter {
    PastFilter { endpoints: endpoints.iter().map(|name| bench.endpoint(name)).collect(), ..PastFilter::default() }
}

async fn read(bench: &Bench, filter: &PastFilter, from: Option<PastPlace>, room: PastRoom) -> PastPage {
    bench.sqlite.past_attempts(bench.tenant("acme"), filter, from, room).await.unwrap()
}

fn places(page: &PastPage) -> Vec<(DeliveryId, u32)> {
    page.attempts.iter().map(|attempt| (attempt.delivery, attempt.number)).collect()
}

fn told(body: &'static str) -> AttemptRecord {
    AttemptRecord {
        verdict: Some("retryable"),
        plugin_version: Some(PluginVersionId::from_bytes([7; 16])),
        plugin_took: Some(Duration::from_micros(1_500)),
        request: Some(RequestRecord {
            method: "PUT".into(),
            path_and_query: Some("/x".into()),
            headers: vec![("x-a".into(), "1".into())],
            body: KeptBody::Whole("made".into()),
        }),
        response: Some(ResponseRecord {
            headers: vec![("b".into(), "2".into())],
            body: body.into(),
            body_truncated: true,
        }),
        detail: Some("why".into()),
        ..record("answered", Some(503))
    }
}

/// Two deliveries to billing, one to crm: attempts 2, 1 and 1, and one that was handed back.
async fn bench() -> (Bench, [DeliveryId; 3]) {
    let mut bench = Bench::new().await;
    let now = bench.now();
    let first = bench.start("billing").await;
    bench.settle_as(first.lease, told("one"), retry(now)).await;
    let again = bench.claim("billing", 1).await.remove(0);
    bench.settle_as(again.lease, record("released", None), released(now)).await;
    let again = bench.claim("billing", 1).await.remove(0);
    bench.settle_as(again.lease, told("two"), dead("http_503")).await;
    bench.clock.advance(Duration::from_secs(10));
    let other = bench.start("crm").await;
    bench.settle(other.lease, delivered()).await;
    bench.clock.advance(Duration::from_secs(10));
    let last = bench.start("billing").await;
    let reference = Some("SM1".to_owned());
    bench.settle(last.lease, Disposition::Delivered { reference }).await;
    let ids = [first.lease.delivery, other.lease.delivery, last.lease.delivery];
    (bench, ids)
}

#[tokio::test]
async fn attempts_come_newest_first_and_whole() {
    let (bench, [first, other, last]) = bench().await;
    let page = read(&bench, &filter(&bench, &["billing", "crm"]), None, ALL).await;
    assert_eq!(places(&page), [(last, 1), (other, 1), (first, 3), (first, 1)], "what was handed back is left out");
    assert!(!page.more);
    let attempt = &page.attempts[3];
    assert_eq!(
        (attempt.outcome.as_str(), attempt.status, attempt.reason.as_str()),
        ("answered", Some(503), "http_503")
    );
    assert_eq!((attempt.disposition.as_str(), attempt.verdict.as_deref()), ("retry_at", Some("retryable")));
    assert_eq!((attempt.plugin_took, attempt.duration), (Duration::from_micros(1_500), Duration::from_millis(12)));
    assert_eq!(attempt.endpoint, bench.endpoint("billing"));
    assert_eq!((attempt.event.event_type.as_str(), attempt.event.body.as_deref()), ("test", Some(&b"{}"[..])));
    assert_eq!(attempt.idempotency_key, attempt.event.id.to_string());
    let kept = attempt.kept.as_ref().unwrap();
    let (request, response) = (kept.request.as_ref().unwrap(), kept.response.as_ref().unwrap());
    assert_eq!(request.body.whole().map(|body| &body[..]), Some(&b"made"[..]));
    assert_eq!((request.method.as_str(), &response.body[..]), ("PUT", &b"one"[..]));
    assert!(response.body_truncated && kept.detail.as_deref() == Some("why"));
    assert_eq!((page.attempts[0].reference.as_deref(), attempt.reference.as_deref()), (Some("SM1"), None));
    assert!(page.attempts[0].kept.is_none(), "nothing was kept of it");
    let bare = PastRoom { payloads: false, ..ALL };
    assert!(read(&bench, &filter(&bench, &["crm"]), None, bare).await.attempts[0].event.body.is_none());
}

#[tokio::test]
async fn a_large_request_comes_back_as_its_measure() {
    let mut bench = Bench::new().await;
    let large = KeptBody::of(&vec![b'a'; KeptBody::WHOLE_BYTES_MAX + 1].into());
    let mut made = told("one");
    made.request.as_mut().unwrap().body = large.clone();
    let born = bench.start("billing").await;
    bench.settle_as(born.lease, made, delivered()).await;
    let page = read(&bench, &filter(&bench, &["billing"]), None, ALL).await;
    let kept = page.attempts[0].kept.as_ref().unwrap();
    let (request, response) = (kept.request.as_ref().unwrap(), kept.response.as_ref().unwrap());
    assert_eq!((request.body.whole(), request.body.measured()), (None, large.measured()));
    assert_eq!(&response.body[..], b"one");
}

#[tokio::test]
async fn reads_join_up_and_end_at_their_bounds() {
    let (bench, [first, other, last]) = bench().await;
    let filter = filter(&bench, &["billing", "crm"]);
    for room in [PastRoom { attempts: 1, ..ALL }, PastRoom { bytes: 1, ..ALL }] {
        let (mut all, mut from) = (Vec::new(), None);
        loop {
            let page = read(&bench, &filter, from, room).await;
            assert_eq!(page.attempts.len(), 1);
            all.extend(places(&page));
            from = page.attempts.last().map(PastAttempt::place);
            if !page.more {
                break;
            }
        }
        assert_eq!(all, [(last, 1), (other, 1), (first, 3), (first, 1)]);
    }
    let acme = bench.tenant("acme");
    assert_eq!(bench.sqlite.count_past(acme, &filter, 100).await.unwrap(), 4);
    assert_eq!(bench.sqlite.count_past(acme, &filter, 3).await.unwrap(), 3);
    assert_eq!(bench.sqlite.count_past(bench.tenant("globex"), &filter, 100).await.unwrap(), 0);
    assert!(bench.sqlite.past_attempts(bench.tenant("globex"), &filter, None, ALL).await.unwrap().attempts.is_empty());
}

#[tokio::test]
async fn filters_narrow() {
    let (bench, [first, other, last]) = bench().await;
    let billing = filter(&bench, &["billing"]);
    let both = filter(&bench, &["billing", "crm"]);
    let cases = [
        (PastFilter::default(), vec![]),
        (billing.clone(), vec![(last, 1), (first, 3), (first, 1)]),
        (
            PastFilter { since: Some(bench.now().minus(Duration::from_secs(10))), ..both.clone() },
            vec![(last, 1), (other, 1)],
        ),
        (PastFilter { since: Some(bench.now().plus(Duration::from_secs(1))), ..both.clone() }, vec![]),
        (PastFilter { delivery: Some(first), ..both.clone() }, vec![(first, 3), (first, 1)]),
        (PastFilter { state: Some(DeliveryState::Dead), ..both.clone() }, vec![(first, 3), (first, 1)]),
        (PastFilter { verdict: Some("retryable".into()), ..both.clone() }, vec![(first, 3), (first, 1)]),
        (PastFilter { verdict: Some("terminal".into()), ..both.clone() }, vec![]),
        (PastFilter { reason: Some("http_200".into()), ..both.clone() }, vec![(last, 1), (other, 1)]),
        (PastFilter { status: Some(503), ..both.clone() }, vec![(first, 3), (first, 1)]),
        (PastFilter { by_plugin: true, ..both }, vec![(first, 3), (first, 1)]),
    ];
    for (filter, expected) in cases {
        assert_eq!(places(&read(&bench, &filter, None, ALL).await), expected, "{filter:?}");
        let counted = bench.sqlite.count_past(bench.tenant("acme"), &filter, 100).await.unwrap();
        assert_eq!(usize::try_from(counted).unwrap(), expected.len(), "{filter:?}");
    }
}

#[tokio::test]
async fn each_attempt_has_the_payload_that_it_had() {
    let (bench, [first, ..]) = bench().await;
    let redrive = Redrive {
        tenant: bench.tenant("acme"),
        delivery: first,
        note: None,
        payload: Some("[2]".into()),
        request: None,
    };
    bench.ledger.redrive(redrive, bench.now()).await.unwrap();
    let claimed = bench.claim("billing", 1).await.remove(0);
    bench.settle(claimed.lease, dead("no")).await;
    let only = PastFilter { delivery: Some(first), ..filter(&bench, &["billing"]) };
    let page = read(&bench, &only, None, ALL).await;
    let bodies: Vec<_> =
        page.attempts.iter().map(|a| String::from_utf8(a.event.body.clone().unwrap().to_vec()).unwrap()).collect();
    assert_eq!(bodies, ["[2]", "{}", "{}"]);

    // Retention takes payloads and answers; what is left says so.
    bench.clock.advance(Duration::from_secs(100 * 86_400));
    let retention = Retention {
        payloads: Duration::from_secs(1),
        rows: Duration::from_secs(400 * 86_400),
        tenants: std::collections::BTreeMap::new(),
        batch_rows_max: 100,
    };
    while bench.ledger.prune(&retention, bench.now()).await.unwrap().more {}
    let page = read(&bench, &only, None, ALL).await;
    assert_eq!(places(&page).len(), 3);
    assert!(page.attempts.iter().all(|attempt| attempt.event.body.is_none() && attempt.kept.is_none()));
}
