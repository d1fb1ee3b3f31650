//! An event once more: resends, replays, and what of the rest of the ledger sees them.

use crate::bench::{Bench, dead, delivered, record, retry};
use crate::support::{name, publication};
use hookgate::clock::Timestamp;
use hookgate::delivery::{DeliveryId, DeliveryState, Disposition, EventId, OnDead, OperationId, Reason};
use hookgate::ledger::{
    AGAIN_MAX, Accepted, Advanced, BegunOperation, DeadFilter, DeliveryFilter, EventFilter, NewOperation,
    OperationChange, OperationRow, OperationState, Origin, PageRequest, Redrive, Redriven, Replay, RequestId, Resend,
    Resent, ResolveAs, Retention, Work,
};
use hookgate::verify::{Coalesce, Publication, Relation};
use std::collections::BTreeSet;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn wish(bench: &Bench, delivery: DeliveryId) -> Resend {
    Resend { tenant: bench.tenant("acme"), delivery, note: Some("they lost it".into()), request: None }
}

async fn resend(bench: &Bench, delivery: DeliveryId) -> Resent {
    bench.ledger.resend(wish(bench, delivery), bench.now()).await.unwrap()
}

async fn resent(bench: &Bench, delivery: DeliveryId) -> DeliveryId {
    match resend(bench, delivery).await {
        Resent::Done(made) => made,
        other => panic!("{other:?}"),
    }
}

/// A delivered one of `endpoint`.
async fn done(bench: &mut Bench, endpoint: &str) -> DeliveryId {
    let claimed = bench.start(endpoint).await;
    bench.settle(claimed.lease, delivered()).await;
    claimed.lease.delivery
}

fn retention() -> Retention {
    Retention { payloads: DAY * 14, rows: DAY * 90, tenants: Default::default(), batch_rows_max: 100 }
}

async fn pruned(bench: &Bench) -> (u64, u64) {
    let mut sum = (0, 0);
    loop {
        let done = bench.ledger.prune(&retention(), bench.now()).await.unwrap();
        sum = (sum.0 + done.payloads_erased, sum.1 + done.rows_removed);
        if !done.more {
            return sum;
        }
    }
}

#[tokio::test]
async fn a_resend_is_a_delivery_of_its_own_and_linked_both_ways() {
    let mut bench = Bench::new().await;
    bench.publish(publication("invoice.paid", Some("order-7"), "{\"a\":1}"), &["+billing", "crm"]).await;
    let first = bench.births.try_recv().unwrap();
    assert_eq!(&*first.idempotency_key, "order-7");
    bench.settle(first.lease, delivered()).await;
    bench.clock.advance(HOUR);
    let (one, made_at) = (first.lease.delivery, bench.now());
    let again = resent(&bench, one).await;
    let third = {
        let claimed = bench.claim("billing", 9).await.remove(0);
        assert_eq!(claimed.lease.delivery, again);
        assert_eq!(&*claimed.idempotency_key, "order-7:resend-1");
        assert_eq!((&claimed.event.body[..], claimed.event.id), (&b"{\"a\":1}"[..], first.event.id));
        assert_eq!(claimed.lease.number, 1);
        bench.settle(claimed.lease, delivered()).await;
        // A resend of the resend is the event's second to this endpoint.
        resent(&bench, again).await
    };
    let detail = bench.detail(again).await;
    assert_eq!(detail.delivery.resend_of, Some(one));
    assert_eq!((detail.delivery.origin, detail.delivery.created_at), (Origin::Resend, made_at));
    assert_eq!((detail.delivery.note.as_deref(), detail.resends), (Some("they lost it"), vec![third]));
    assert_eq!(bench.detail(third).await.delivery.idempotency_key, "order-7:resend-2");
    let before = bench.detail(one).await;
    assert_eq!((before.delivery.state, before.delivery.generation), (DeliveryState::Delivered, 1), "it stays as it is");
    assert_eq!((before.delivery.resend_of, before.delivery.origin), (None, Origin::Accepted));
    assert_eq!((before.resends, before.attempts.len()), (vec![again], 1));
    // Whoever asks by the event, by its key or by what is pending finds them.
    let event = bench.ledger.event(bench.tenant("acme"), first.event.id).await.unwrap().unwrap();
    assert_eq!(event.deliveries.unwrap().len(), 4);
    let listed = async |filter: DeliveryFilter| -> BTreeSet<DeliveryId> {
        let page = PageRequest { limit: 50, cursor: None };
        let found = bench.ledger.deliveries(bench.tenant("acme"), &filter, &page).await.unwrap();
        found.items.into_iter().map(|row| row.id).collect()
    };
    let none = DeliveryFilter::default;
    for filter in [
        DeliveryFilter { event: Some(first.event.id), ..none() },
        DeliveryFilter { key: Some("order-7".into()), ..none() },
        DeliveryFilter { q: Some(first.event.id.to_string()), ..none() },
        none(),
    ] {
        let found = listed(filter.clone()).await;
        assert!(found.len() == 4 && found.contains(&again) && found.contains(&one), "{filter:?}: {found:?}");
    }
    assert_eq!(listed(DeliveryFilter { since: Some(made_at), ..none() }).await, [again, third].into());
    assert_eq!(bench.ledger.gauges().pending, 2);
}

#[tokio::test]
async fn only_what_is_over_and_not_dead_is_resent() {
    let mut bench = Bench::new().await;
    let acme = bench.tenant("acme");
    let in_flight = bench.start("billing").await.lease.delivery;
    let (_, pending) = bench.accept("waits", &["billing"]).await;
    let died = bench.kill("billing").await;
    for (id, state) in
        [(in_flight, DeliveryState::InFlight), (pending[0], DeliveryState::Pending), (died, DeliveryState::Dead)]
    {
        assert_eq!(resend(&bench, id).await, Resent::NotOver(state));
    }
    let skipped = bench.start("billing").await;
    bench.settle(skipped.lease, Disposition::Skipped(Reason::word("not_wanted"))).await;
    bench.ledger.cancel(acme, pending[0], bench.now()).await.unwrap();
    bench.ledger.resolve(acme, died, ResolveAs::Sent, None, bench.now()).await.unwrap();
    for id in [skipped.lease.delivery, pending[0], died] {
        let made = resent(&bench, id).await;
        assert_eq!(bench.detail(made).await.delivery.resend_of, Some(id));
    }
    let purged = bench.kill("billing").await;
    let filter = DeadFilter { ids: Some(vec![purged]), ..DeadFilter::default() };
    assert_eq!(bench.ledger.purge_dead(acme, &filter, None, bench.now()).await.unwrap().purged, 1);
    assert_eq!(resend(&bench, purged).await, Resent::Purged);
    // Nobody else's, and none that is not there.
    let other = Resend { tenant: bench.tenant("globex"), ..wish(&bench, died) };
    assert_eq!(bench.ledger.resend(other, bench.now()).await.unwrap(), Resent::NotFound);
    assert_eq!(resend(&bench, DeliveryId::from_u128(7)).await, Resent::NotFound);
}

#[tokio::test]
async fn a_resend_asked_twice_is_made_once() {
    let mut bench = Bench::new().await;
    let one = done(&mut bench, "billing").await;
    let asked = Resend { request: RequestId::new("ticket-1"), ..wish(&bench, one) };
    let Resent::Done(made) = bench.ledger.resend(asked.clone(), bench.now()).await.unwrap() else { panic!() };
    let bench = bench.restart().await;
    assert_eq!(bench.ledger.resend(asked.clone(), bench.now()).await.unwrap(), Resent::Done(made));
    let other = Resend { note: None, ..asked };
    assert_eq!(bench.ledger.resend(other, bench.now()).await.unwrap(), Resent::RequestReused);
    assert_eq!(bench.detail(one).await.resends, [made]);
    // Without a request id each is one more.
    let claimed = bench.claim("billing", 9).await.remove(0);
    bench.settle(claimed.lease, delivered()).await;
    assert_ne!(resent(&bench, one).await, made);
    assert_eq!(bench.detail(one).await.resends.len(), 2);
}

#[tokio::test]
async fn what_was_corrected_is_resent_as_corrected() {
    let mut bench = Bench::new().await;
    let acme = bench.tenant("acme");
    let one = bench.kill("billing").await;
    let corrected = Redrive {
        tenant: acme,
        delivery: one,
        note: Some("wrong address".into()),
        payload: Some("{\"to\":\"+4930\"}".into()),
        request: None,
    };
    let redriven = bench.ledger.redrive(corrected, bench.now()).await.unwrap();
    assert_eq!(redriven, Redriven::Done { generation: 2, revision: 2 });
    let claimed = bench.claim("billing", 1).await.remove(0);
    bench.settle(claimed.lease, delivered()).await;
    let made = resent(&bench, one).await;
    let bench = bench.restart().await;
    let claimed = bench.claim("billing", 1).await.remove(0);
    assert_eq!((claimed.lease.delivery, &claimed.event.body[..]), (made, &b"{\"to\":\"+4930\"}"[..]));
    let body = bench.ledger.delivery_body(acme, made, None).await.unwrap().unwrap().unwrap();
    assert_eq!(&body.body[..], b"{\"to\":\"+4930\"}");
    assert_eq!(bench.detail(made).await.delivery.revision, 2);
}

#[tokio::test]
async fn retention_waits_for_a_resend_and_takes_it_with_its_event() {
    let mut bench = Bench::new().await;
    let acme = bench.tenant("acme");
    let one = done(&mut bench, "billing").await;
    bench.clock.advance(DAY * 13);
    let made = resent(&bench, one).await;
    bench.clock.advance(DAY * 2);
    assert_eq!(pruned(&bench).await.0, 0, "its payload is still to be sent");
    let claimed = bench.claim("billing", 1).await.remove(0);
    bench.settle_as(claimed.lease, record("answered", Some(500)), dead("http_500")).await;
    bench.clock.advance(DAY * 13);
    assert_eq!(pruned(&bench).await.0, 0);
    bench.clock.advance(DAY * 2);
    assert_eq!(pruned(&bench).await.0, 1);
    assert_eq!(resend(&bench, one).await, Resent::PayloadErased);
    assert_eq!(bench.detail(made).await.attempts[0].status, Some(500));
    bench.clock.advance(DAY * 100);
    assert_eq!(pruned(&bench).await.1, 3, "the event and both deliveries");
    assert!(bench.ledger.delivery(acme, made).await.unwrap().is_none());
    assert_eq!(bench.ledger.gauges().dead, 0);
    let left: i64 = bench
        .raw()
        .query_row("SELECT (SELECT count(*) FROM delivery) + (SELECT count(*) FROM attempt)", [], |row| row.get(0))
        .unwrap();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn a_purge_keeps_a_payload_that_a_resend_still_needs() {
    let mut bench = Bench::new().await;
    let acme = bench.tenant("acme");
    let one = done(&mut bench, "billing").await;
    let made = resent(&bench, one).await;
    let claimed = bench.claim("billing", 1).await.remove(0);
    bench.settle_as(claimed.lease, record("answered", Some(500)), dead("http_500")).await;
    let purged = bench.ledger.purge_dead(acme, &DeadFilter::default(), None, bench.now()).await.unwrap();
    assert_eq!((purged.purged, purged.payloads_erased), (1, 0), "the first one has it");
    assert_eq!(resend(&bench, made).await, Resent::Purged);
    let next = resent(&bench, one).await;
    let died = bench.kill("crm").await;
    let event = bench.detail(died).await.delivery.event;
    assert_eq!(bench.detail(next).await.delivery.idempotency_key.matches(":resend-2").count(), 1);
    let purged = bench.ledger.purge_dead(acme, &DeadFilter::default(), None, bench.now()).await.unwrap();
    assert_eq!((purged.purged, purged.payloads_erased), (1, 1));
    assert!(bench.ledger.event(acme, event).await.unwrap().unwrap().body_erased);
}

#[tokio::test]
async fn what_has_expired_is_not_resent_and_a_resend_expires() {
    let mut bench = Bench::new().await;
    let expiring = Publication { expires_at: Some(bench.now().plus(HOUR)), ..publication("t", None, "late is wrong") };
    bench.publish(expiring, &["+billing"]).await;
    let born = bench.births.try_recv().unwrap();
    bench.settle(born.lease, delivered()).await;
    let made = resent(&bench, born.lease.delivery).await;
    let before = bench.now();
    bench.clock.advance(HOUR);
    let overdue = bench.ledger.overdue(before, 10, bench.now()).await.unwrap();
    assert_eq!(overdue.iter().map(|lease| lease.delivery).collect::<Vec<_>>(), [made]);
    bench.settle(overdue[0], Disposition::Expired(Reason::word("expired"))).await;
    assert_eq!(resend(&bench, born.lease.delivery).await, Resent::Expired);
    assert_eq!(resend(&bench, made).await, Resent::Expired);
}

#[tokio::test]
async fn a_resend_is_out_of_order_and_holds_up_nobody() {
    let bench = Bench::new().await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(ordered(&bench, "a", OnDead::Hold).await);
    }
    let claimed = bench.claim("billing", 9).await.remove(0);
    bench.settle(claimed.lease, delivered()).await;
    let made = resent(&bench, ids[0]).await;
    let started: BTreeSet<DeliveryId> = bench.claim("billing", 9).await.iter().map(|c| c.lease.delivery).collect();
    assert_eq!(started, [ids[1], made].into());
    let row = bench.detail(made).await.delivery;
    assert_eq!((row.out_of_order, row.ordering_key.as_deref()), (true, Some("a")));
}

async fn ordered(bench: &Bench, key: &str, on_dead: OnDead) -> DeliveryId {
    let publication = Publication { relation: Some(Relation::Ordered(key.to_owned())), ..publication("t", None, "x") };
    let mut accept = bench.acceptance(publication, &["billing"]);
    accept.deliveries[0].order = Some(hookgate::ledger::OrderingKey::of(key, on_dead));
    let Accepted::New(event) = bench.ledger.accept(accept).await.unwrap() else { panic!("it is new") };
    bench.ledger.event(bench.tenant("acme"), event).await.unwrap().unwrap().deliveries.unwrap()[0]
}

#[tokio::test]
async fn resends_of_one_event_are_bounded() {
    let mut bench = Bench::new().await;
    let one = done(&mut bench, "billing").await;
    resent(&bench, one).await;
    bench.raw().execute("UPDATE delivery SET origin = ? WHERE origin = 1", [AGAIN_MAX]).unwrap();
    assert_eq!(resend(&bench, one).await, Resent::TooMany);
}

// Replays.

fn replay(events: EventFilter, only_missed: bool) -> Replay {
    Replay { endpoint: name("audit"), events, only_missed, order: None }
}

fn operation(bench: &Bench, replay: Replay) -> NewOperation {
    NewOperation {
        tenant: bench.tenant("acme"),
        work: Work::Replay(replay),
        max: None,
        rate: 100,
        canary: false,
        note: Some("audit came later".into()),
        by: "operator".into(),
        request: None,
    }
}

/// Begun, and its turn has come.
async fn running(bench: &Bench, wish: NewOperation) -> OperationRow {
    let BegunOperation::Done(row) = bench.ledger.begin_operation(wish, bench.now()).await.unwrap() else { panic!() };
    assert!(bench.ledger.start_operation(row.tenant, row.id, bench.now()).await.unwrap());
    look(bench, row.id).await
}

async fn look(bench: &Bench, id: OperationId) -> OperationRow {
    bench.ledger.operation(bench.tenant("acme"), id).await.unwrap().unwrap()
}

async fn advance(bench: &Bench, id: OperationId, limit: u32) -> Advanced {
    bench.ledger.advance_operation(bench.tenant("acme"), id, limit, bench.now()).await.unwrap()
}

async fn to_its_end(bench: &Bench, id: OperationId) -> OperationRow {
    for _ in 0..1_000 {
        if advance(bench, id, 3).await.over {
            return look(bench, id).await;
        }
    }
    panic!("it does not end")
}

/// The events whose deliveries to audit were made by a replay, in the order of their making.
async fn replayed(bench: &Bench) -> Vec<EventId> {
    let filter = DeliveryFilter { endpoint: Some(name("audit")), ..DeliveryFilter::default() };
    let page = PageRequest { limit: 200, cursor: None };
    let found = bench.ledger.deliveries(bench.tenant("acme"), &filter, &page).await.unwrap();
    let mut all: Vec<_> = found.items.into_iter().filter(|row| row.origin == Origin::Replay).collect();
    all.sort_by_key(|row| row.sequence);
    all.into_iter().map(|row| row.event).collect()
}

async fn many(bench: &Bench, n: usize, endpoints: &[&str]) -> Vec<EventId> {
    let mut all = Vec::new();
    for at in 0..n {
        all.push(bench.accept(&format!("{{\"n\":{at}}}"), endpoints).await.0);
        bench.clock.advance(secs(1));
    }
    all
}

#[tokio::test]
async fn a_replay_of_what_was_missed_takes_each_once_from_the_oldest_on() {
    let bench = Bench::new().await;
    let missed = many(&bench, 7, &["billing"]).await;
    let had = many(&bench, 3, &["billing", "audit"]).await;
    let wish = replay(EventFilter::default(), true);
    let acme = bench.tenant("acme");
    let told = bench.ledger.rehearse_replay(acme, &wish, 3, bench.now()).await.unwrap().unwrap();
    assert_eq!((told.count, told.expired, told.payload_erased, told.under_way), (7, 0, 0, 0));
    assert_eq!(told.samples.iter().map(|row| row.id).collect::<Vec<_>>(), missed[..3]);
    assert!(replayed(&bench).await.is_empty(), "nothing was done");

    let row = running(&bench, operation(&bench, wish.clone())).await;
    assert_eq!((row.total, row.died_by, &row.work), (Some(7), None, &Work::Replay(wish.clone())));
    assert_eq!(advance(&bench, row.id, 3).await, Advanced { done: 3, skipped: 0, over: false });
    // What comes from now on is not meant, and the process may end.
    let later = many(&bench, 2, &["billing"]).await;
    let bench = bench.restart().await;
    let (tenant, now) = (bench.tenant("acme"), bench.now());
    let steps: Vec<_> = (0..6)
        .map(|_| {
            let ledger = std::sync::Arc::clone(&bench.ledger);
            tokio::spawn(async move { ledger.advance_operation(tenant, row.id, 2, now).await.unwrap().done })
        })
        .collect();
    for step in steps {
        step.await.unwrap();
    }
    let row = to_its_end(&bench, row.id).await;
    assert_eq!((row.state, row.done, row.skipped.sum(), row.left()), (OperationState::Done, 7, 0, Some(0)));
    assert_eq!(replayed(&bench).await, missed, "each once, in the order of acceptance");
    assert_eq!(row.results.waiting, 7);
    let claimed = bench.claim("audit", 50).await;
    assert_eq!(claimed.len(), 10);
    for one in &claimed {
        bench.settle(one.lease, delivered()).await;
    }
    assert_eq!(look(&bench, row.id).await.results.delivered, 7);
    let one = bench.ledger.event(acme, missed[0]).await.unwrap().unwrap().deliveries.unwrap();
    let made = bench.detail(one[1]).await.delivery;
    assert_eq!((made.origin, made.resend_of, made.note.as_deref()), (Origin::Replay, None, Some("audit came later")));
    assert_eq!(made.idempotency_key, format!("{}:resend-1", missed[0]));
    // Now there is nothing missed but what came later.
    let told = bench.ledger.rehearse_replay(acme, &wish, 3, bench.now()).await.unwrap().unwrap();
    assert_eq!((told.count, told.samples[0].id), (2, later[0]));
    assert!(had.iter().all(|event| !missed.contains(event)));
}

#[tokio::test]
async fn a_replay_of_all_makes_another_one_beside_those_that_were() {
    let bench = Bench::new().await;
    let events = many(&bench, 3, &["audit"]).await;
    for one in bench.claim("audit", 2).await {
        bench.settle(one.lease, delivered()).await;
    }
    let wish = replay(EventFilter::default(), false);
    let told = bench.ledger.rehearse_replay(bench.tenant("acme"), &wish, 9, bench.now()).await.unwrap().unwrap();
    assert_eq!((told.count, told.under_way, told.samples.len()), (2, 1, 2));
    let row = running(&bench, operation(&bench, wish.clone())).await;
    let row = to_its_end(&bench, row.id).await;
    assert_eq!((row.total, row.done, row.skipped.under_way, row.left()), (Some(3), 2, 1, Some(0)));
    assert_eq!(replayed(&bench).await, events[..2]);
    // A second one finds them on their way.
    let second = running(&bench, operation(&bench, wish)).await;
    let second = to_its_end(&bench, second.id).await;
    assert_eq!((second.done, second.skipped.under_way), (0, 3));
    let one = bench.ledger.event(bench.tenant("acme"), events[0]).await.unwrap().unwrap().deliveries.unwrap();
    assert_eq!(bench.detail(one[1]).await.delivery.resend_of, Some(one[0]));
    assert_eq!(bench.detail(one[0]).await.resends, [one[1]]);
}

#[tokio::test]
async fn each_field_of_a_replays_filter_holds() {
    let bench = Bench::new().await;
    let Accepted::New(keyed) = bench.publish(publication("push", Some("k1"), "1"), &["billing"]).await else {
        panic!()
    };
    bench.clock.advance(HOUR);
    let at = bench.now();
    let mut accept = bench.acceptance(publication("ping", Some("k2"), "2"), &["billing"]);
    accept.source = Some(bench.directory.tenants["acme"].sources["github"]);
    let Accepted::New(sourced) = bench.ledger.accept(accept).await.unwrap() else { panic!() };
    let none = EventFilter::default;
    for (filter, expected) in [
        (none(), vec![keyed, sourced]),
        (EventFilter { event_type: Some("push".into()), ..none() }, vec![keyed]),
        (EventFilter { key: Some("k2".into()), ..none() }, vec![sourced]),
        (EventFilter { source: Some(name("github")), ..none() }, vec![sourced]),
        (EventFilter { source: Some(name("stripe")), ..none() }, vec![]),
        (EventFilter { since: Some(at), ..none() }, vec![sourced]),
        (EventFilter { until: Some(at), ..none() }, vec![keyed]),
        (EventFilter { key: Some("k1".into()), event_type: Some("ping".into()), ..none() }, vec![]),
    ] {
        let wish = replay(filter.clone(), true);
        let told = bench.ledger.rehearse_replay(bench.tenant("acme"), &wish, 9, bench.now()).await.unwrap().unwrap();
        let samples: Vec<_> = told.samples.iter().map(|row| row.id).collect();
        assert_eq!((told.count, samples), (expected.len() as u64, expected.clone()), "{filter:?}");
        let begun = bench.ledger.begin_operation(operation(&bench, wish), bench.now()).await.unwrap();
        let BegunOperation::Done(row) = begun else { panic!() };
        assert_eq!(row.total, Some(expected.len() as u64), "{filter:?}");
        bench.ledger.change_operation(row.tenant, row.id, OperationChange::Stop, bench.now()).await.unwrap();
    }
    // Another tenant has none of them, and no such endpoint.
    let other = replay(none(), true);
    assert!(bench.ledger.rehearse_replay(bench.tenant("globex"), &other, 9, bench.now()).await.unwrap().is_none());
    let other = Replay { endpoint: name("billing"), ..other };
    let told = bench.ledger.rehearse_replay(bench.tenant("globex"), &other, 9, bench.now()).await.unwrap().unwrap();
    assert_eq!((told.count, told.samples.len()), (0, 0));
}

#[tokio::test]
async fn what_cannot_be_sent_is_passed_by_and_counted() {
    let mut bench = Bench::new().await;
    done(&mut bench, "billing").await;
    bench.clock.advance(DAY * 15);
    assert_eq!(pruned(&bench).await.0, 1);
    let expiring = Publication { expires_at: Some(bench.now().plus(HOUR)), ..publication("t", None, "late is wrong") };
    bench.publish(expiring, &["billing"]).await;
    // Of a coalescing window the newest counts.
    let coalesced = |body| Publication {
        relation: Some(Relation::Coalesced(Coalesce { key: "c".into(), window: secs(60) })),
        ..publication("t", None, body)
    };
    bench.publish(coalesced("1"), &["billing"]).await;
    let Accepted::New(newest) = bench.publish(coalesced("2"), &["billing"]).await else { panic!() };
    bench.clock.advance(HOUR);
    let (good, _) = bench.accept("good", &["billing"]).await;
    let wish = replay(EventFilter::default(), true);
    let told = bench.ledger.rehearse_replay(bench.tenant("acme"), &wish, 9, bench.now()).await.unwrap().unwrap();
    assert_eq!((told.count, told.expired, told.payload_erased, told.under_way), (2, 1, 1, 0));
    assert_eq!(told.samples.iter().map(|row| row.id).collect::<Vec<_>>(), [newest, good]);
    let row = running(&bench, operation(&bench, wish)).await;
    let row = to_its_end(&bench, row.id).await;
    assert_eq!((row.total, row.done, row.skipped.expired, row.skipped.payload_erased), (Some(4), 2, 1, 1));
    assert_eq!(replayed(&bench).await, [newest, good]);
}

#[tokio::test]
async fn a_replay_is_paused_stopped_bounded_and_begun_once() {
    let bench = Bench::new().await;
    many(&bench, 6, &["billing"]).await;
    let acme = bench.tenant("acme");
    let asked = NewOperation {
        max: Some(4),
        request: RequestId::new("r"),
        ..operation(&bench, replay(EventFilter::default(), true))
    };
    let row = running(&bench, asked.clone()).await;
    let again = bench.ledger.begin_operation(asked.clone(), bench.now()).await.unwrap();
    assert!(matches!(again, BegunOperation::Before(before) if before.id == row.id));
    let other = NewOperation { work: Work::Replay(replay(EventFilter::default(), false)), ..asked.clone() };
    assert_eq!(bench.ledger.begin_operation(other, bench.now()).await.unwrap(), BegunOperation::RequestReused);
    // Nor is a redrive under the same id the same wish.
    let other = NewOperation { work: Work::Redrive(DeadFilter::default()), ..asked };
    assert_eq!(bench.ledger.begin_operation(other, bench.now()).await.unwrap(), BegunOperation::RequestReused);
    assert_eq!(advance(&bench, row.id, 1).await.done, 1);
    bench.ledger.change_operation(acme, row.id, OperationChange::Pause, bench.now()).await.unwrap();
    assert_eq!(advance(&bench, row.id, 9).await, Advanced { over: true, ..Advanced::default() });
    bench.ledger.change_operation(acme, row.id, OperationChange::Resume, bench.now()).await.unwrap();
    assert!(bench.ledger.start_operation(acme, row.id, bench.now()).await.unwrap());
    let row = to_its_end(&bench, row.id).await;
    assert_eq!((row.state, row.done, row.total), (OperationState::Done, 4, Some(6)));
    let stopped = running(&bench, operation(&bench, replay(EventFilter::default(), true))).await;
    bench.ledger.change_operation(acme, stopped.id, OperationChange::Stop, bench.now()).await.unwrap();
    assert!(advance(&bench, stopped.id, 9).await.over);
    assert_eq!(replayed(&bench).await.len(), 4);
}

#[tokio::test]
async fn a_canary_of_a_replay_counts_what_its_own_come_to() {
    let bench = Bench::new().await;
    many(&bench, 3, &["billing"]).await;
    let wish = NewOperation { canary: true, ..operation(&bench, replay(EventFilter::default(), true)) };
    let row = running(&bench, wish).await;
    assert_eq!(advance(&bench, row.id, 9).await.done, 1, "one first");
    assert_eq!(advance(&bench, row.id, 9).await.done, 0);
    let claimed = bench.claim("audit", 1).await.remove(0);
    bench.settle_as(claimed.lease, record("answered", Some(500)), retry(bench.now().plus(HOUR))).await;
    let results = bench.ledger.wave_results(bench.tenant("acme"), row.id, 1).await.unwrap();
    assert_eq!((results.len(), results[0].tried, results[0].count), (1, true, 1));
    bench.ledger.widen_operation(row.tenant, row.id, 1, 10).await.unwrap();
    assert_eq!(advance(&bench, row.id, 9).await.done, 2);
}

#[tokio::test]
async fn a_death_is_not_dated_by_a_replay_that_runs() {
    let mut bench = Bench::new().await;
    many(&bench, 2, &["billing"]).await;
    let begun: Timestamp = bench.now();
    running(&bench, operation(&bench, replay(EventFilter::default(), true))).await;
    bench.clock.set_by(-7_200_000);
    let died = bench.kill("crm").await;
    assert!(bench.detail(died).await.delivery.finished_at.unwrap() < begun);
}

#[tokio::test]
async fn a_replay_to_an_endpoint_that_orders_lines_up() {
    let bench = Bench::new().await;
    let mut events = Vec::new();
    for key in ["a", "b", "a"] {
        let published =
            Publication { relation: Some(Relation::Ordered(key.to_owned())), ..publication("t", None, "x") };
        let Accepted::New(event) = bench.publish(published, &["billing"]).await else { panic!() };
        events.push(event);
    }
    let ordered = Replay { order: Some(OnDead::Hold), ..replay(EventFilter::default(), true) };
    let row = running(&bench, operation(&bench, ordered)).await;
    let bench = bench.restart().await;
    to_its_end(&bench, row.id).await;
    let started = |claimed: &[hookgate::ledger::Claimed]| claimed.iter().map(|c| c.event.id).collect::<Vec<_>>();
    let first = bench.claim("audit", 9).await;
    assert_eq!(started(&first), events[..2], "the second of `a` waits");
    bench.settle_as(first[0].lease, record("answered", Some(500)), dead("http_500")).await;
    assert!(bench.claim("audit", 9).await.is_empty(), "a dead one holds its key");
    let resolved =
        bench.ledger.resolve(bench.tenant("acme"), first[0].lease.delivery, ResolveAs::Sent, None, bench.now());
    resolved.await.unwrap();
    assert_eq!(started(&bench.claim("audit", 9).await), events[2..]);
}

#[tokio::test]
async fn a_replay_sees_what_is_born_and_has_no_row_yet() {
    let mut bench = Bench::new().await;
    let born = bench.start("audit").await;
    let row = running(&bench, operation(&bench, replay(EventFilter::default(), true))).await;
    assert_eq!(row.total, Some(0));
    assert_eq!(to_its_end(&bench, row.id).await.done, 0);
    bench.settle(born.lease, delivered()).await;
    assert!(replayed(&bench).await.is_empty());
}
