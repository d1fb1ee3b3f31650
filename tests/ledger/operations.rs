//! Redrive, cancel, resolve, endpoints, retention.

use crate::bench::{Bench, LEASE, dead, delivered, record, retry};
use crate::support::{name, publication};
use hookgate::clock::Timestamp;
use hookgate::delivery::{DeliveryId, DeliveryState, EndpointStatus, Mint};
use hookgate::ledger::{
    Accepted, Cancelled, EndpointChange, Pruned, Redrive, Redriven, RequestId, ResolveAs, Resolved, ResponseRecord,
    Retention,
};
use std::collections::BTreeMap;
use std::time::Duration;

fn days(n: u64) -> Duration {
    Duration::from_secs(n * 86_400)
}

fn redrive(bench: &Bench, delivery: DeliveryId) -> Redrive {
    Redrive { tenant: bench.tenant("acme"), delivery, note: None, payload: None, request: None }
}

fn nobody() -> DeliveryId {
    Mint::default().mint(crate::bench::START, &hookgate::entropy::SystemEntropy).into()
}

#[tokio::test]
async fn a_redrive_is_the_next_generation_of_the_same_delivery() {
    let mut bench = Bench::new().await;
    let id = bench.kill("billing").await;
    bench.wakes.take();
    bench.clock.advance(days(1));
    let asked = Redrive { note: Some("fixed".into()), ..redrive(&bench, id) };
    let done = bench.ledger.redrive(asked, bench.now()).await.unwrap();
    assert_eq!(done, Redriven::Done { generation: 2, revision: 1 });
    assert_eq!(bench.wakes.take().get(&bench.endpoint("billing")), Some(&bench.now()));
    let row = bench.detail(id).await.delivery;
    assert_eq!((row.state, row.reason, row.finished_at), (DeliveryState::Pending, None, None));
    assert_eq!((row.due_at, row.note.as_deref()), (Some(bench.now()), Some("fixed")));
    let again = bench.ledger.redrive(redrive(&bench, id), bench.now()).await.unwrap();
    assert_eq!(again, Redriven::NotDead(DeliveryState::Pending), "twice is once");
    let claimed = bench.claim("billing", 1).await.remove(0);
    assert_eq!((claimed.lease.delivery, claimed.lease.number, claimed.lease.generation), (id, 2, 2));
    assert_eq!((claimed.lease.history.counted, claimed.lease.history.began_at), (1, bench.now()));
    bench.settle(claimed.lease, delivered()).await;
    let detail = bench.detail(id).await;
    assert_eq!(detail.attempts.iter().map(|a| (a.number, a.generation)).collect::<Vec<_>>(), [(1, 1), (2, 2)]);
    let gauges = bench.ledger.gauges();
    assert_eq!((gauges.dead, gauges.oldest_dead_at), (0, None));
    let never = bench.ledger.redrive(redrive(&bench, id), bench.now()).await.unwrap();
    assert_eq!(never, Redriven::NotDead(DeliveryState::Delivered));
    assert_eq!(bench.ledger.redrive(redrive(&bench, nobody()), bench.now()).await.unwrap(), Redriven::NotFound);
}

#[tokio::test]
async fn the_same_request_twice_is_one_redrive() {
    let mut bench = Bench::new().await;
    let id = bench.kill("billing").await;
    let asked = |bench: &Bench, request: &str, payload: &str| Redrive {
        note: Some("fixed".into()),
        payload: Some(payload.to_owned().into()),
        request: RequestId::new(request),
        ..redrive(bench, id)
    };
    let ask = async |bench: &Bench, redrive| bench.ledger.redrive(redrive, bench.now()).await.unwrap();
    let first = Redriven::Done { generation: 2, revision: 2 };
    assert_eq!(ask(&bench, asked(&bench, "a", "1")).await, first);
    assert_eq!(ask(&bench, asked(&bench, "a", "1")).await, first, "while it waits");
    let claimed = bench.claim("billing", 1).await.remove(0);
    bench.settle(claimed.lease, dead("http_400")).await;
    let mut bench = bench.restart().await;
    assert_eq!(ask(&bench, asked(&bench, "a", "1")).await, first, "over a restart, and dead again");
    assert_eq!(bench.detail(id).await.delivery.state, DeliveryState::Dead);
    for other in [asked(&bench, "a", "2"), Redrive { note: None, ..asked(&bench, "a", "1") }] {
        assert_eq!(ask(&bench, other).await, Redriven::RequestReused);
    }
    let second = Redriven::Done { generation: 3, revision: 3 };
    assert_eq!(ask(&bench, asked(&bench, "b", "1")).await, second, "another request is another redrive");
    assert_eq!(ask(&bench, asked(&bench, "a", "1")).await, first, "and the earlier one is not forgotten");
    let claimed = bench.claim("billing", 1).await.remove(0);
    bench.settle(claimed.lease, delivered()).await;
    assert_eq!(ask(&bench, asked(&bench, "b", "1")).await, second);
    assert_eq!(bench.detail(id).await.delivery.generation, 3);

    // Another delivery's request, though it has the same name; and what was refused may be asked again.
    let other = bench.kill("billing").await;
    let of_other = Redrive { delivery: other, ..asked(&bench, "a", "9") };
    assert_eq!(ask(&bench, of_other).await, Redriven::Done { generation: 2, revision: 2 });
    let early = Redrive { delivery: other, ..asked(&bench, "c", "9") };
    assert_eq!(ask(&bench, early.clone()).await, Redriven::NotDead(DeliveryState::Pending));
    let claimed = bench.claim("billing", 1).await.remove(0);
    bench.settle(claimed.lease, dead("http_400")).await;
    assert_eq!(ask(&bench, early).await, Redriven::Done { generation: 3, revision: 3 });

    bench.clock.advance(days(200));
    prune_all(&bench, &retention()).await;
    let left: u32 = bench.raw().query_row("SELECT count(*) FROM redrive", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 2, "what waits keeps its own");
}

#[tokio::test]
async fn a_corrected_payload_is_the_next_revision() {
    let mut bench = Bench::new().await;
    let id = bench.kill("billing").await;
    for revision in 2..=3 {
        let body = format!("corrected {revision}");
        let note = Some(format!("mistake {revision}"));
        let asked = Redrive { payload: Some(body.clone().into()), note, ..redrive(&bench, id) };
        let done = bench.ledger.redrive(asked, bench.now()).await.unwrap();
        assert_eq!(done, Redriven::Done { generation: revision, revision });
        let bench_after = bench.restart().await;
        bench = bench_after;
        let claimed = bench.claim("billing", 1).await.remove(0);
        assert_eq!((&claimed.event.body[..], claimed.lease.revision), (body.as_bytes(), revision));
        assert_eq!(claimed.event.headers.len(), 1, "the headers stay");
        bench.settle(claimed.lease, dead("http_400")).await;
    }
    let again = bench.ledger.redrive(redrive(&bench, id), bench.now()).await.unwrap();
    assert_eq!(again, Redriven::Done { generation: 4, revision: 3 });
    assert_eq!(&bench.claim("billing", 1).await[0].event.body[..], b"corrected 3", "the last one stays");
    let event = bench.detail(id).await.delivery.event;
    let acme = bench.tenant("acme");
    let original = bench.ledger.event_body(acme, event).await.unwrap().unwrap().unwrap();
    assert_eq!(&original.body[..], b"{}");

    // Each revision can be read as long as it is kept, with why it was made.
    let body = async |tenant, revision| {
        let body = bench.ledger.delivery_body(tenant, id, revision).await.unwrap();
        body.map(|kept| kept.map(|row| (row.content_type, String::from_utf8(row.body.to_vec()).unwrap())))
    };
    let json = |text: &str| Some(Some(("application/json".to_owned(), text.to_owned())));
    assert_eq!(body(acme, Some(1)).await, json("{}"));
    assert_eq!(body(acme, Some(2)).await, json("corrected 2"));
    assert_eq!((body(acme, Some(3)).await, body(acme, None).await), (json("corrected 3"), json("corrected 3")));
    assert_eq!((body(acme, Some(4)).await, body(bench.tenant("globex"), None).await), (None, None));
    assert_eq!(bench.ledger.delivery_body(acme, nobody(), None).await.unwrap().map(|_| ()), None);
    let revisions = |detail: &hookgate::ledger::DeliveryDetail| -> Vec<_> {
        detail.revisions.iter().map(|r| (r.revision, r.note.clone().unwrap(), r.body_erased)).collect()
    };
    let detail = bench.detail(id).await;
    assert_eq!(revisions(&detail), [(2, "mistake 2".to_owned(), false), (3, "mistake 3".to_owned(), false)]);
    assert_eq!(detail.revisions[1].made_at, Some(bench.now()));

    bench.clock.advance(days(1));
    for lease in bench.ledger.rescue(bench.now(), 10, bench.now()).await.unwrap() {
        bench.settle(lease, dead("interrupted")).await;
    }
    bench.clock.advance(days(15));
    prune_all(&bench, &retention()).await;
    assert_eq!((body(acme, Some(1)).await, body(acme, Some(2)).await), (Some(None), Some(None)));
    assert!(revisions(&bench.detail(id).await).iter().all(|(_, _, erased)| *erased));
}

#[tokio::test]
async fn many_redrives_at_once_are_one() {
    let mut bench = Bench::new().await;
    let id = bench.kill("billing").await;
    let now = bench.now();
    let asked = |n: usize| Redrive { payload: n.is_multiple_of(2).then(|| "x".into()), ..redrive(&bench, id) };
    let all = (0..20).map(|n| {
        let (ledger, asked) = (std::sync::Arc::clone(&bench.ledger), asked(n));
        tokio::spawn(async move { ledger.redrive(asked, now).await.unwrap() })
    });
    let mut done = 0;
    for task in all.collect::<Vec<_>>() {
        done += usize::from(matches!(task.await.unwrap(), Redriven::Done { generation: 2, .. }));
    }
    assert_eq!(done, 1);
}

#[tokio::test]
async fn what_has_expired_is_not_redriven() {
    let mut bench = Bench::new().await;
    let at = bench.now().plus(days(1));
    let expiring = hookgate::verify::Publication { expires_at: Some(at), ..publication("t", None, "x") };
    bench.publish(expiring, &["+billing"]).await;
    let born = bench.births.try_recv().unwrap();
    assert_eq!(born.lease.history.expires_at, Some(at));
    bench.settle(born.lease, dead("http_400")).await;
    bench.clock.advance(days(1));
    let id = born.lease.delivery;
    assert_eq!(bench.ledger.redrive(redrive(&bench, id), bench.now()).await.unwrap(), Redriven::Expired);
}

#[tokio::test]
async fn only_pending_work_is_cancelled() {
    let mut bench = Bench::new().await;
    let acme = bench.tenant("acme");
    let (_, ids) = bench.accept("x", &["billing"]).await;
    assert_eq!(bench.ledger.cancel(acme, ids[0], bench.now()).await.unwrap(), Cancelled::Done);
    let row = bench.detail(ids[0]).await.delivery;
    assert_eq!((row.state, row.reason.as_deref()), (DeliveryState::Cancelled, Some("cancelled")));
    assert!(row.finished_at.is_some() && row.due_at.is_none());
    assert!(bench.claim("billing", 1).await.is_empty());
    let again = bench.ledger.cancel(acme, ids[0], bench.now()).await.unwrap();
    assert_eq!(again, Cancelled::NotPending(DeliveryState::Cancelled));
    let born = bench.start("billing").await;
    let in_flight = bench.ledger.cancel(acme, born.lease.delivery, bench.now()).await.unwrap();
    assert_eq!(in_flight, Cancelled::NotPending(DeliveryState::InFlight));
    assert_eq!(bench.ledger.cancel(acme, nobody(), bench.now()).await.unwrap(), Cancelled::NotFound);
    assert_eq!(bench.ledger.gauges().pending, 0);
}

#[tokio::test]
async fn only_dead_letters_are_resolved() {
    let mut bench = Bench::new().await;
    let acme = bench.tenant("acme");
    let id = bench.kill("billing").await;
    let note = Some("seen in their books".to_owned());
    let done = bench.ledger.resolve(acme, id, ResolveAs::Sent, note, bench.now()).await.unwrap();
    assert_eq!(done, Resolved::Done);
    let row = bench.detail(id).await.delivery;
    assert_eq!((row.state, row.reason.as_deref()), (DeliveryState::Resolved, Some("sent")));
    assert_eq!(row.note.as_deref(), Some("seen in their books"));
    assert_eq!(bench.ledger.gauges().dead, 0);
    let again = bench.ledger.resolve(acme, id, ResolveAs::NotSent, None, bench.now()).await.unwrap();
    assert_eq!(again, Resolved::NotDead(DeliveryState::Resolved));
    let redriven = bench.ledger.redrive(redrive(&bench, id), bench.now()).await.unwrap();
    assert_eq!(redriven, Redriven::NotDead(DeliveryState::Resolved));
    let nobody = bench.ledger.resolve(acme, nobody(), ResolveAs::Sent, None, bench.now()).await.unwrap();
    assert_eq!(nobody, Resolved::NotFound);
}

/// What a person found unsent can be sent after all, and counts as a dead letter at no time in between.
#[tokio::test]
async fn what_was_found_unsent_can_be_redriven() {
    let mut bench = Bench::new().await;
    let acme = bench.tenant("acme");
    let id = bench.kill("billing").await;
    let note = Some("not in their books".to_owned());
    let done = bench.ledger.resolve(acme, id, ResolveAs::NotSent, note, bench.now()).await.unwrap();
    assert_eq!(done, Resolved::Done);
    assert_eq!((bench.ledger.gauges().dead, bench.ledger.gauges().pending), (0, 0));
    let done = bench.ledger.redrive(redrive(&bench, id), bench.now()).await.unwrap();
    assert_eq!(done, Redriven::Done { generation: 2, revision: 1 });
    assert_eq!((bench.ledger.gauges().dead, bench.ledger.gauges().pending), (0, 1));
    let claimed = bench.claim("billing", 1).await.remove(0);
    bench.settle(claimed.lease, delivered()).await;
    let never = bench.ledger.redrive(redrive(&bench, id), bench.now()).await.unwrap();
    assert_eq!(never, Redriven::NotDead(DeliveryState::Delivered));
}

#[tokio::test]
async fn endpoint_changes() {
    let bench = Bench::new().await;
    let acme = bench.tenant("acme");
    let change = async |change: EndpointChange| {
        bench.ledger.change_endpoint(acme, &name("billing"), change, bench.now()).await.unwrap()
    };
    let pause = |until: Option<Timestamp>| EndpointChange::Pause { until, why: "operator".into() };
    let paused = |until| Some(EndpointStatus::Paused { until, why: "operator".into() });
    let later = Some(bench.now().plus(days(1)));
    let disabled = Some(EndpointStatus::Disabled { why: "gone".into() });
    let disable = || EndpointChange::Disable { why: "gone".into() };
    assert_eq!(change(EndpointChange::Resume).await, Some(EndpointStatus::Enabled));
    assert_eq!(change(pause(later)).await, paused(later));
    assert_eq!(change(pause(None)).await, paused(None));
    assert!(!bench.slots.is_open(bench.endpoint("billing"), Timestamp::from_millis(i64::MAX - 1)));
    bench.wakes.take();
    assert_eq!(change(EndpointChange::Resume).await, Some(EndpointStatus::Enabled));
    assert!(bench.slots.is_open(bench.endpoint("billing"), bench.now()));
    assert_eq!(bench.wakes.take().get(&bench.endpoint("billing")), Some(&bench.now()));
    assert_eq!(change(disable()).await, disabled);
    assert_eq!(change(pause(later)).await, disabled, "what is disabled is not paused");
    assert_eq!(change(EndpointChange::Resume).await, disabled);
    assert_eq!(change(EndpointChange::Enable).await, Some(EndpointStatus::Enabled));
    assert_eq!(change(pause(None)).await, paused(None));
    assert_eq!(change(EndpointChange::Enable).await, Some(EndpointStatus::Enabled));
    let nobody = bench.ledger.change_endpoint(acme, &name("nobody"), disable(), bench.now()).await.unwrap();
    assert_eq!(nobody, None);
}

fn retention() -> Retention {
    Retention { payloads: days(14), rows: days(90), tenants: BTreeMap::new(), batch_rows_max: 3 }
}

async fn prune_all(bench: &Bench, retention: &Retention) -> Pruned {
    let mut all = Pruned::default();
    for _ in 0..1_000 {
        let done = bench.ledger.prune(retention, bench.now()).await.unwrap();
        assert!(done.payloads_erased <= 3);
        all.payloads_erased += done.payloads_erased;
        all.rows_removed += done.rows_removed;
        if !done.more {
            return all;
        }
    }
    panic!("pruning does not end");
}

#[tokio::test]
async fn payloads_go_after_their_time_and_rows_after_theirs() {
    let mut bench = Bench::new().await;
    let acme = bench.tenant("acme");
    let mut over = Vec::new();
    for _ in 0..10 {
        let born = bench.start("billing").await;
        let mut seen = record("answered", Some(200));
        seen.response = Some(ResponseRecord { headers: vec![], body: "thanks".into(), body_truncated: false });
        bench.settle_as(born.lease, seen, delivered()).await;
        over.push((born.event.id, born.lease.delivery));
    }
    let (waiting_event, waiting) = bench.accept("still waiting", &["crm"]).await;
    let Accepted::New(unrouted) = bench.publish(publication("t", None, "nobody"), &[]).await else { panic!() };

    bench.clock.advance(days(14) - Duration::from_millis(1));
    assert_eq!(prune_all(&bench, &retention()).await, Pruned::default(), "not a moment too early");
    let young = bench.start("billing").await;
    bench.settle(young.lease, delivered()).await;
    bench.clock.advance(Duration::from_millis(1));
    assert_eq!(prune_all(&bench, &retention()).await.payloads_erased, 11);
    for (event, delivery) in &over {
        assert_eq!(bench.ledger.event_body(acme, *event).await.unwrap().map(|b| b.is_some()), Some(false));
        assert!(bench.ledger.event(acme, *event).await.unwrap().unwrap().body_erased);
        let attempt = bench.detail(*delivery).await.attempts.remove(0);
        assert_eq!((attempt.response_body, attempt.status), (None, Some(200)));
    }
    assert!(bench.ledger.event_body(acme, waiting_event).await.unwrap().unwrap().is_some(), "work that waits is kept");
    assert!(bench.ledger.event_body(acme, young.event.id).await.unwrap().unwrap().is_some());

    bench.clock.advance(days(90));
    let done = prune_all(&bench, &retention()).await;
    assert_eq!(done.rows_removed, 10 * 2 + 1 + 2);
    assert!(bench.ledger.event(acme, unrouted).await.unwrap().is_none());
    assert!(bench.ledger.delivery(acme, over[0].1).await.unwrap().is_none());
    let left = |table: &str| -> u32 {
        bench.raw().query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    };
    assert_eq!([left("event"), left("delivery"), left("attempt"), left("payload")], [1, 1, 0, 1]);
    assert_eq!(bench.claim("crm", 1).await[0].lease.delivery, waiting[0]);
}

#[tokio::test]
async fn a_dead_letter_without_its_payload_needs_a_new_one() {
    let mut bench = Bench::new().await;
    let id = bench.kill("billing").await;
    bench.clock.advance(days(15));
    assert_eq!(prune_all(&bench, &retention()).await.payloads_erased, 1);
    assert_eq!(bench.ledger.gauges().dead, 1, "the dead letter itself stays");
    assert_eq!(bench.ledger.redrive(redrive(&bench, id), bench.now()).await.unwrap(), Redriven::PayloadErased);
    let with = Redrive { payload: Some("new".into()), ..redrive(&bench, id) };
    let done = bench.ledger.redrive(with, bench.now()).await.unwrap();
    assert_eq!(done, Redriven::Done { generation: 2, revision: 2 });
    let claimed = bench.claim("billing", 1).await.remove(0);
    assert_eq!(&claimed.event.body[..], b"new");
    assert_eq!(claimed.event.headers[0].1.to_str().unwrap(), "application/json");
    bench.settle(claimed.lease, dead("http_400")).await;
    bench.clock.advance(days(15));
    assert_eq!(prune_all(&bench, &retention()).await.payloads_erased, 1);
    assert_eq!(bench.ledger.redrive(redrive(&bench, id), bench.now()).await.unwrap(), Redriven::PayloadErased);
    bench.clock.advance(days(90));
    assert_eq!(prune_all(&bench, &retention()).await.rows_removed, 2);
    let gauges = bench.ledger.gauges();
    assert_eq!((gauges.dead, gauges.oldest_dead_at), (0, None));
}

#[tokio::test]
async fn a_tenants_own_spans_hold_for_it_alone() {
    let mut bench = Bench::new().await;
    let (acme, globex) = (bench.tenant("acme"), bench.tenant("globex"));
    let born = bench.start("billing").await;
    bench.settle(born.lease, delivered()).await;
    let mut short = retention();
    short.tenants.insert(globex, (days(1), days(2)));
    bench.clock.advance(days(3));
    assert_eq!(prune_all(&bench, &short).await, Pruned::default());
    short.tenants.insert(acme, (days(1), days(2)));
    let done = prune_all(&bench, &short).await;
    assert_eq!(done.rows_removed, 2);
}

/// The same rows again and again, with work that comes back to life between the looks of the reader and the writer.
#[tokio::test]
async fn pruning_passes_by_what_cannot_go_yet() {
    let mut bench = Bench::new().await;
    let mut leases = Vec::new();
    for _ in 0..7 {
        leases.push(bench.start("billing").await);
    }
    bench.clock.advance(days(200));
    assert_eq!(prune_all(&bench, &retention()).await, Pruned::default());
    let due = bench.now().plus(LEASE);
    for lease in &leases[1..] {
        bench.settle(lease.lease, delivered()).await;
    }
    bench.settle(leases[0].lease, retry(due)).await;
    bench.clock.advance(days(100));
    assert_eq!(prune_all(&bench, &retention()).await.rows_removed, 12);
    assert_eq!(bench.claim("billing", 2).await.len(), 1);
}
