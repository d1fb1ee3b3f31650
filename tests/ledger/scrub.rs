//! Where an endpoint scrubs, what was delivered is erased by the transaction that says so, and nothing else is.

use crate::bench::{Bench, dead, declaration, delivered, record, retry};
use crate::support::{name, publication};
use hookgate::delivery::{DeliveryId, Disposition, Reason};
use hookgate::ledger::{
    Accepted, Claimed, Consume, DeadFilter, EventFilter, Redrive, Redriven, Replay, Resend, Resent, ResolveAs,
    ResponseRecord, Retention, Settled,
};
use hookgate::verify::{Coalesce, Publication, Relation};
use std::time::Duration;

/// From now on these endpoints of acme scrub, and no others.
async fn scrubbing(bench: &Bench, endpoints: &[&str]) {
    let mut declaration = declaration();
    for endpoint in &mut declaration.tenants[0].endpoints {
        endpoint.scrub = endpoints.contains(&endpoint.name.as_str());
    }
    bench.ledger.declare(declaration, bench.now()).await.unwrap();
}

async fn bench_with(endpoints: &[&str]) -> Bench {
    let bench = Bench::new().await;
    scrubbing(&bench, endpoints).await;
    bench
}

/// Payloads, and attempts of which something is kept. Looks at the file alone, so that nothing is written for it.
fn kept(bench: &Bench) -> (u32, u32) {
    let sql = "SELECT (SELECT count(*) FROM payload), (SELECT count(*) FROM attempt WHERE detail IS NOT NULL)";
    bench.raw().query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
}

fn births(bench: &Bench) -> u32 {
    bench.raw().query_row("SELECT count(*) FROM birth", [], |row| row.get(0)).unwrap()
}

/// Settles with an answer that is worth keeping.
async fn end(bench: &Bench, claimed: &Claimed, disposition: Disposition) {
    let mut seen = record("answered", Some(200));
    seen.response = Some(ResponseRecord { headers: vec![], body: "to Ms. Doe".into(), body_truncated: false });
    assert_eq!(bench.settle_as(claimed.lease, seen, disposition).await, Settled::Stored);
}

async fn resend(bench: &Bench, delivery: DeliveryId) -> Resent {
    let wish = Resend { tenant: bench.tenant("acme"), delivery, note: None, request: None };
    bench.ledger.resend(wish, bench.now()).await.unwrap()
}

async fn redrive(bench: &Bench, delivery: DeliveryId, payload: Option<&str>) -> Redriven {
    let payload = payload.map(|text| text.to_owned().into());
    let wish = Redrive { tenant: bench.tenant("acme"), delivery, note: None, payload, request: None };
    bench.ledger.redrive(wish, bench.now()).await.unwrap()
}

async fn both(bench: &mut Bench) -> [Claimed; 2] {
    bench.publish(publication("test", None, "{}"), &["+billing", "+crm"]).await;
    [bench.births.try_recv().unwrap(), bench.births.try_recv().unwrap()]
}

#[tokio::test]
async fn what_is_delivered_goes_with_all_its_attempts_and_the_rows_stay() {
    let mut bench = bench_with(&["billing"]).await;
    let acme = bench.tenant("acme");
    let claimed = bench.start("billing").await;
    end(&bench, &claimed, retry(bench.now())).await;
    assert_eq!(kept(&bench), (1, 1), "what is tried again is kept");
    let again = bench.claim("billing", 1).await.remove(0);
    end(&bench, &again, delivered()).await;
    assert_eq!(kept(&bench), (0, 0));
    let detail = bench.detail(claimed.lease.delivery).await;
    assert_eq!((detail.attempts.len(), detail.delivery.last_status), (2, Some(200)));
    assert!(bench.ledger.event(acme, claimed.event.id).await.unwrap().unwrap().body_erased);
    assert_eq!(resend(&bench, claimed.lease.delivery).await, Resent::PayloadErased);
    let replay = Replay { endpoint: name("audit"), events: EventFilter::default(), only_missed: true, order: None };
    let told = bench.ledger.rehearse_replay(acme, &replay, 3, bench.now()).await.unwrap().unwrap();
    assert_eq!((told.count, told.payload_erased), (0, 1));

    let skipped = bench.start("billing").await;
    end(&bench, &skipped, Disposition::Skipped(Reason::word("not_wanted"))).await;
    let elsewhere = bench.start("crm").await;
    end(&bench, &elsewhere, delivered()).await;
    assert_eq!(kept(&bench), (1, 1), "where nobody scrubs, retention erases");
    assert!(matches!(resend(&bench, elsewhere.lease.delivery).await, Resent::Done(_)));
}

#[tokio::test]
async fn a_payload_stays_while_one_that_has_no_row_yet_is_under_way() {
    let mut bench = bench_with(&["billing", "crm"]).await;
    let [billing, crm] = both(&mut bench).await;
    end(&bench, &billing, delivered()).await;
    assert_eq!((births(&bench), kept(&bench)), (1, (1, 0)), "the other one has a note alone");
    // Whoever takes it over after a crash has something to send.
    let after = bench.copy_as_after_a_crash().await;
    assert_eq!(kept(&after), (1, 0));
    end(&bench, &crm, delivered()).await;
    assert_eq!(kept(&bench), (0, 0));

    // The other way round: the one that has a row is settled, the one that has none is under way.
    bench.publish(publication("test", None, "{}"), &["billing", "+crm"]).await;
    let crm = bench.births.try_recv().unwrap();
    let billing = bench.claim("billing", 1).await.remove(0);
    end(&bench, &billing, delivered()).await;
    assert_eq!((births(&bench), kept(&bench)), (1, (1, 0)));
    end(&bench, &crm, delivered()).await;
    assert_eq!(kept(&bench), (0, 0));
}

#[tokio::test]
async fn it_does_not_matter_who_is_last() {
    for (scrub, first, second, left) in [
        (&["billing", "crm"][..], delivered(), delivered(), (0, 0)),
        // One that keeps what it got keeps the payload, too.
        (&["billing"][..], delivered(), delivered(), (1, 1)),
        (&["billing", "crm"][..], delivered(), dead("http_500"), (1, 1)),
        (&["billing", "crm"][..], delivered(), Disposition::Expired(Reason::EXPIRED), (1, 1)),
        (&[][..], delivered(), delivered(), (1, 2)),
    ] {
        for turned in [false, true] {
            let mut bench = bench_with(scrub).await;
            let [billing, crm] = both(&mut bench).await;
            let mut ends = [(&billing, first.clone()), (&crm, second.clone())];
            if turned {
                ends.reverse();
            }
            for (claimed, disposition) in ends {
                end(&bench, claimed, disposition).await;
            }
            assert_eq!(kept(&bench), left, "{scrub:?} {second:?} {turned}");
        }
    }
}

#[tokio::test]
async fn what_is_dead_is_kept_until_it_is_delivered_or_somebody_says_that_it_was() {
    let mut bench = bench_with(&["billing"]).await;
    let acme = bench.tenant("acme");
    let mut died = Vec::new();
    for _ in 0..4 {
        let claimed = bench.start("billing").await;
        end(&bench, &claimed, dead("http_500")).await;
        died.push(claimed.lease.delivery);
    }
    assert_eq!(kept(&bench), (4, 4));
    bench.ledger.resolve(acme, died[0], ResolveAs::Sent, None, bench.now()).await.unwrap();
    assert_eq!(kept(&bench), (3, 3));
    bench.ledger.resolve(acme, died[1], ResolveAs::NotSent, None, bench.now()).await.unwrap();
    assert_eq!(kept(&bench), (3, 3), "it may be redriven");
    let filter = DeadFilter { ids: Some(vec![died[2]]), ..DeadFilter::default() };
    assert_eq!(bench.ledger.purge_dead(acme, &filter, None, bench.now()).await.unwrap().payloads_erased, 1);
    for id in [died[1], died[3]] {
        assert_eq!(redrive(&bench, id, None).await, Redriven::Done { generation: 2, revision: 1 });
        let claimed = bench.claim("billing", 1).await.remove(0);
        assert_eq!((claimed.lease.delivery, &claimed.event.body[..]), (id, &b"{}"[..]));
        end(&bench, &claimed, delivered()).await;
    }
    assert_eq!(kept(&bench), (0, 0));
}

#[tokio::test]
async fn a_purge_of_the_last_one_leaves_nothing_of_what_was_delivered() {
    let mut bench = bench_with(&["billing", "crm"]).await;
    let [billing, crm] = both(&mut bench).await;
    end(&bench, &billing, delivered()).await;
    end(&bench, &crm, dead("http_500")).await;
    assert_eq!(kept(&bench), (1, 1));
    let acme = bench.tenant("acme");
    let purged = bench.ledger.purge_dead(acme, &DeadFilter::default(), None, bench.now()).await.unwrap();
    assert_eq!((purged.purged, purged.payloads_erased, kept(&bench)), (1, 1, (0, 0)));
}

#[tokio::test]
async fn what_was_corrected_goes_and_the_one_before_with_it() {
    let mut bench = bench_with(&["billing"]).await;
    let claimed = bench.start("billing").await;
    end(&bench, &claimed, dead("http_500")).await;
    let id = claimed.lease.delivery;
    assert_eq!(redrive(&bench, id, Some("better")).await, Redriven::Done { generation: 2, revision: 2 });
    assert_eq!(kept(&bench), (2, 1));
    let claimed = bench.claim("billing", 1).await.remove(0);
    assert_eq!(&claimed.event.body[..], b"better");
    end(&bench, &claimed, delivered()).await;
    assert_eq!(kept(&bench), (0, 0));
    assert_eq!(resend(&bench, id).await, Resent::PayloadErased);
    let named: u32 = bench
        .raw()
        .query_row(
            "SELECT (SELECT count(payload) FROM delivery) + (SELECT count(payload) FROM revision) \
             + (SELECT count(payload) FROM event)",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(named, 0, "nothing names a payload that is gone: its number may be another's one day");
}

#[tokio::test]
async fn a_resend_has_the_payload_until_it_is_over() {
    let mut bench = bench_with(&[]).await;
    let claimed = bench.start("billing").await;
    end(&bench, &claimed, delivered()).await;
    let Resent::Done(made) = resend(&bench, claimed.lease.delivery).await else { panic!("it has its payload") };
    scrubbing(&bench, &["billing"]).await;
    let again = bench.claim("billing", 1).await.remove(0);
    assert_eq!(again.lease.delivery, made);
    end(&bench, &again, dead("http_500")).await;
    assert_eq!(kept(&bench).0, 1);
    assert!(matches!(redrive(&bench, made, None).await, Redriven::Done { .. }));
    let again = bench.claim("billing", 1).await.remove(0);
    end(&bench, &again, delivered()).await;
    assert_eq!(kept(&bench), (0, 1), "what was answered before the setting is left to retention");
}

#[tokio::test]
async fn what_a_consumer_fetched_is_scrubbed_as_well() {
    let bench = bench_with(&["billing"]).await;
    bench.accept("{}", &["billing"]).await;
    let (tenant, endpoint) = (bench.tenant("acme"), bench.endpoint("billing"));
    let lease_for = Duration::from_secs(30);
    let consume = Consume { tenant, endpoint, max: 1, lease_for, bytes_max: 1 << 20 };
    let handed = bench.ledger.consume(consume, bench.now()).await.unwrap().items.remove(0);
    assert_eq!(kept(&bench), (1, 0));
    assert_eq!(bench.settle(handed.lease, delivered()).await, Settled::Stored);
    assert_eq!(kept(&bench), (0, 0));
}

#[tokio::test]
async fn an_event_in_whose_place_a_newer_one_came_is_erased_at_once() {
    for (scrub, left) in [(&["billing", "crm"][..], [1, 0]), (&["billing"][..], [2, 2])] {
        let bench = bench_with(scrub).await;
        let coalesced = |body: &'static str| {
            let coalesce = Coalesce { key: "k".to_owned(), window: Duration::from_secs(10) };
            Publication { relation: Some(Relation::Coalesced(coalesce)), ..publication("t", None, body) }
        };
        for body in ["a", "b"] {
            let accepted = bench.publish(coalesced(body), &["billing", "crm"]).await;
            assert!(matches!(accepted, Accepted::New(_)));
        }
        assert_eq!(kept(&bench).0, left[0], "{scrub:?}");
        bench.clock.advance(Duration::from_secs(10));
        for endpoint in ["billing", "crm"] {
            let claimed = bench.claim(endpoint, 9).await.remove(0);
            assert_eq!(&claimed.event.body[..], b"b");
            end(&bench, &claimed, delivered()).await;
        }
        assert_eq!(kept(&bench).0, left[1], "{scrub:?}");
    }
}

#[tokio::test]
async fn an_endpoint_that_is_gone_keeps_its_word_over_a_restart() {
    let mut bench = bench_with(&["billing", "crm"]).await;
    let [billing, crm] = both(&mut bench).await;
    end(&bench, &billing, delivered()).await;
    end(&bench, &crm, retry(bench.now())).await;
    let mut declaration = declaration();
    declaration.tenants[0].endpoints.retain(|endpoint| endpoint.name.as_str() != "billing");
    declaration.tenants[0].endpoints.iter_mut().for_each(|endpoint| endpoint.scrub = true);
    bench.ledger.close().await.unwrap();
    let bench = bench.restart_declared(declaration).await;
    let claimed = bench.claim("crm", 1).await.remove(0);
    end(&bench, &claimed, delivered()).await;
    assert_eq!(kept(&bench), (0, 0));
}

/// However short it is: what is under way has no end yet.
#[tokio::test]
async fn retention_of_a_second_takes_nothing_that_is_under_way_without_a_row() {
    let mut bench = Bench::new().await;
    let [billing, crm] = both(&mut bench).await;
    end(&bench, &billing, delivered()).await;
    assert_eq!(births(&bench), 1);
    bench.clock.advance(Duration::from_secs(2));
    let second = Duration::from_secs(1);
    let retention = Retention { payloads: second, rows: second, tenants: [].into(), batch_rows_max: 9 };
    let done = bench.ledger.prune(&retention, bench.now()).await.unwrap();
    assert_eq!((done.payloads_erased, done.rows_removed, kept(&bench)), (0, 0, (1, 1)));
    end(&bench, &crm, delivered()).await;
    bench.clock.advance(second);
    assert_eq!(bench.ledger.prune(&retention, bench.now()).await.unwrap().payloads_erased, 1);
}
