//! Lists, filters, cursors; and that no tenant sees another's rows.

use crate::bench::{Bench, WINDOW, dead, delivered, record};
use crate::support::{name, publication, verified};
use hookgate::delivery::{DeliveryId, DeliveryState, Disposition, EventId};
use hookgate::ledger::{
    Accept, Accepted, Cancelled, Cursor, DeadBy, DeadFilter, DeliveryFilter, EndpointChange, EventFilter, LedgerError,
    NewDelivery, Page, PageRequest, Redrive, Redriven, ResolveAs, Resolved, SourceKey, TenantKey,
};
use std::time::Duration;

fn page(limit: u32, cursor: Option<Cursor>) -> PageRequest {
    PageRequest { limit, cursor }
}

async fn found(bench: &Bench, filter: DeliveryFilter) -> Vec<DeliveryId> {
    let page = bench.ledger.deliveries(bench.tenant("acme"), &filter, &page(200, None)).await.unwrap();
    page.items.into_iter().map(|d| d.id).collect()
}

#[tokio::test]
async fn pages_join_up_newest_first() {
    let bench = Bench::new().await;
    let acme = bench.tenant("acme");
    let mut events = Vec::new();
    let mut deliveries = Vec::new();
    for n in 0..11 {
        let (event, ids) = bench.accept(&format!("{n}"), &["billing", "crm"]).await;
        events.push(event);
        deliveries.extend(ids);
        bench.clock.advance(Duration::from_millis(n % 2));
    }
    events.reverse();
    deliveries.reverse();
    let (mut all, mut cursor) = (Vec::new(), None);
    loop {
        let Page { items, next } = bench.ledger.events(acme, &EventFilter::default(), &page(4, cursor)).await.unwrap();
        all.extend(items.into_iter().map(|e| e.id));
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(all, events);
    let (mut all, mut cursor) = (Vec::new(), None);
    loop {
        let Page { items, next } =
            bench.ledger.deliveries(acme, &DeliveryFilter::default(), &page(11, cursor)).await.unwrap();
        assert_eq!(items.len(), 11);
        all.extend(items.into_iter().map(|d| d.id));
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(all, deliveries);
}

#[tokio::test]
async fn a_page_has_at_most_two_hundred_rows_and_cursors_are_checked() {
    let bench = Bench::new().await;
    let acme = bench.tenant("acme");
    for _ in 0..201 {
        bench.accept("x", &["billing"]).await;
    }
    let all = bench.ledger.deliveries(acme, &DeliveryFilter::default(), &page(u32::MAX, None)).await.unwrap();
    assert_eq!(all.items.len(), 200);
    let one = bench.ledger.deliveries(acme, &DeliveryFilter::default(), &page(0, None)).await.unwrap();
    assert_eq!(one.items.len(), 1);
    let next = all.next.unwrap();
    let last = bench.ledger.deliveries(acme, &DeliveryFilter::default(), &page(9, Some(next.clone()))).await.unwrap();
    assert_eq!((last.items.len(), last.next), (1, None));
    let wrong = bench.ledger.events(acme, &EventFilter::default(), &page(9, Some(next.clone()))).await;
    assert!(matches!(wrong, Err(LedgerError::BadCursor)), "another list's cursor");
    let globex = bench.tenant("globex");
    let wrong = bench.ledger.deliveries(globex, &DeliveryFilter::default(), &page(9, Some(next))).await;
    assert!(matches!(wrong, Err(LedgerError::BadCursor)), "another tenant's cursor");
}

#[tokio::test]
async fn every_filter_of_the_delivery_log() {
    let mut bench = Bench::new().await;
    let acme = bench.tenant("acme");
    // a: by API, key and type, delivered with a reference.
    bench.publish(publication("invoice.paid", Some("inv-7"), "a"), &["+billing"]).await;
    let a = bench.births.try_recv().unwrap();
    bench.settle(a.lease, Disposition::Delivered { reference: Some("sms-9".into()) }).await;
    bench.clock.advance(Duration::from_secs(10));
    let middle = bench.now();
    // b: from a source, dead with a status.
    let now = bench.now();
    let accept = Accept {
        tenant: acme,
        source: Some(bench.directory.tenants["acme"].sources["github"]),
        event: verified("acme", publication("push", None, "b"), WINDOW, now),
        deliveries: vec![NewDelivery { endpoint: bench.endpoint("crm"), slot: Some(bench.slot("crm")), order: None }],
        now,
    };
    assert!(matches!(bench.ledger.accept(accept).await, Ok(Accepted::New(_))));
    let b = bench.births.try_recv().unwrap();
    bench.settle_as(b.lease, record("answered", Some(400)), dead("http_400")).await;
    bench.clock.advance(Duration::from_secs(10));
    // c: in flight; d: pending.
    let c = bench.start("billing").await;
    let (d_event, d) = bench.accept("d", &["crm"]).await;
    let (a_id, b_id, c_id, d_id) = (a.lease.delivery, b.lease.delivery, c.lease.delivery, d[0]);

    let none = DeliveryFilter::default;
    let cases: Vec<(DeliveryFilter, Vec<DeliveryId>)> = vec![
        (none(), vec![d_id, c_id, b_id, a_id]),
        (DeliveryFilter { state: Some(DeliveryState::Delivered), ..none() }, vec![a_id]),
        (DeliveryFilter { state: Some(DeliveryState::Dead), ..none() }, vec![b_id]),
        (DeliveryFilter { state: Some(DeliveryState::InFlight), ..none() }, vec![c_id]),
        (DeliveryFilter { state: Some(DeliveryState::Pending), ..none() }, vec![d_id]),
        (DeliveryFilter { state: Some(DeliveryState::Skipped), ..none() }, vec![]),
        (DeliveryFilter { endpoint: Some(name("crm")), ..none() }, vec![d_id, b_id]),
        (DeliveryFilter { endpoint: Some(name("nobody")), ..none() }, vec![]),
        (DeliveryFilter { source: Some(name("github")), ..none() }, vec![b_id]),
        (DeliveryFilter { event_type: Some("invoice.paid".into()), ..none() }, vec![a_id]),
        (DeliveryFilter { key: Some("inv-7".into()), ..none() }, vec![a_id]),
        (DeliveryFilter { key: Some("inv".into()), ..none() }, vec![]),
        (DeliveryFilter { event: Some(d_event), ..none() }, vec![d_id]),
        (DeliveryFilter { event: Some(b.event.id), state: Some(DeliveryState::Dead), ..none() }, vec![b_id]),
        (DeliveryFilter { reason: Some("http_400".into()), ..none() }, vec![b_id]),
        (DeliveryFilter { status: Some(200), ..none() }, vec![a_id]),
        (DeliveryFilter { since: Some(middle), ..none() }, vec![d_id, c_id, b_id]),
        (DeliveryFilter { until: Some(middle), ..none() }, vec![a_id]),
        (DeliveryFilter { since: Some(middle), until: Some(bench.now()), ..none() }, vec![b_id]),
        (DeliveryFilter { q: Some(a_id.to_string()), ..none() }, vec![a_id]),
        (DeliveryFilter { q: Some(b.event.id.to_string()), ..none() }, vec![b_id]),
        (DeliveryFilter { q: Some(b.lease.attempt().to_string()), ..none() }, vec![b_id]),
        (DeliveryFilter { q: Some(c.lease.attempt().to_string()), ..none() }, vec![c_id]),
        (DeliveryFilter { q: Some("inv-7".into()), ..none() }, vec![a_id]),
        (DeliveryFilter { q: Some("sms-9".into()), ..none() }, vec![a_id]),
        (DeliveryFilter { q: Some("sms".into()), ..none() }, vec![]),
        (
            DeliveryFilter {
                key: Some("inv-7".into()),
                state: Some(DeliveryState::Delivered),
                endpoint: Some(name("billing")),
                status: Some(200),
                q: Some("sms-9".into()),
                ..none()
            },
            vec![a_id],
        ),
    ];
    for (filter, expected) in cases {
        assert_eq!(found(&bench, filter.clone()).await, expected, "{filter:?}");
    }
}

#[tokio::test]
async fn every_filter_of_the_events() {
    let bench = Bench::new().await;
    let acme = bench.tenant("acme");
    let github: SourceKey = bench.directory.tenants["acme"].sources["github"];
    let mut ids = Vec::new();
    for (event_type, key, source) in [("push", None, Some(github)), ("paid", Some("k"), None)] {
        let now = bench.clock.advance(Duration::from_secs(1));
        let event = verified("acme", publication(event_type, key, "x"), WINDOW, now);
        let accept = Accept { tenant: acme, source, event, deliveries: vec![], now };
        let Accepted::New(id) = bench.ledger.accept(accept).await.unwrap() else { panic!() };
        ids.push(id);
    }
    let found = async |filter: EventFilter| -> Vec<EventId> {
        let page = bench.ledger.events(acme, &filter, &page(9, None)).await.unwrap();
        page.items.into_iter().map(|e| e.id).collect()
    };
    let none = EventFilter::default;
    assert_eq!(found(none()).await, [ids[1], ids[0]]);
    assert_eq!(found(EventFilter { source: Some(name("github")), ..none() }).await, ids[..1]);
    assert_eq!(found(EventFilter { source: Some(name("stripe")), ..none() }).await, []);
    assert_eq!(found(EventFilter { event_type: Some("paid".into()), ..none() }).await, ids[1..]);
    assert_eq!(found(EventFilter { key: Some("k".into()), ..none() }).await, ids[1..]);
    assert_eq!(found(EventFilter { since: Some(bench.now()), ..none() }).await, ids[1..]);
    assert_eq!(found(EventFilter { until: Some(bench.now()), ..none() }).await, ids[..1]);
    let row = bench.ledger.event(acme, ids[0]).await.unwrap().unwrap();
    assert_eq!((row.source, row.body_bytes, row.body_erased), (Some(name("github")), 1, false));
    assert_eq!(row.deliveries, Some(vec![]));
}

#[tokio::test]
async fn the_dead_are_grouped_by_host_status_and_reason() {
    let mut bench = Bench::new().await;
    let first = bench.now();
    for _ in 0..3 {
        bench.kill("billing").await;
        bench.clock.advance(Duration::from_secs(1));
    }
    let newest = bench.kill("billing").await;
    let other = bench.start("crm").await;
    bench.settle_as(other.lease, record("unreachable", None), dead("dns")).await;
    let groups =
        bench.ledger.dead_groups(bench.tenant("acme"), &DeadFilter::default(), DeadBy::Destination).await.unwrap();
    let seen: Vec<_> =
        groups.iter().map(|g| (g.host.as_str(), g.status, g.reason.as_str(), g.count, g.oldest_at)).collect();
    assert_eq!(
        seen,
        [("billing.example", Some(500), "http_500", 4, first), ("crm.example", None, "dns", 1, bench.now())]
    );
    assert_eq!(groups[0].sample, newest);
    assert!(
        bench
            .ledger
            .dead_groups(bench.tenant("globex"), &DeadFilter::default(), DeadBy::Destination)
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(bench.ledger.gauges().oldest_dead_at, Some(first));
}

#[tokio::test]
async fn endpoint_counts() {
    let mut bench = Bench::new().await;
    let acme = bench.tenant("acme");
    let oldest = bench.now();
    bench.accept("1", &["crm"]).await;
    bench.clock.advance(Duration::from_secs(5));
    let at = bench.now().plus(Duration::from_secs(60));
    let later = hookgate::verify::Publication { deliver_at: Some(at), ..publication("t", None, "later") };
    bench.publish(later, &["crm"]).await;
    let held = bench.start("crm").await;
    bench.kill("crm").await;
    let done = bench.start("crm").await;
    bench.settle(done.lease, delivered()).await;
    let states = bench.ledger.endpoints(acme, bench.now()).await.unwrap();
    assert_eq!(states.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["audit", "billing", "crm"]);
    let crm = &states[2];
    assert_eq!((crm.pending, crm.available, crm.in_flight, crm.dead), (2, 1, 1, 1));
    assert_eq!((crm.oldest_pending_at, crm.key, crm.host.as_str()), (Some(oldest), held.lease.endpoint, "crm.example"));
    assert_eq!((states[0].pending, states[0].oldest_pending_at), (0, None));
    assert_eq!(bench.ledger.endpoints(TenantKey(999), bench.now()).await.unwrap().len(), 0);
}

/// Everything that takes an id, with another tenant's: as if it were not there, and nothing changes.
#[tokio::test]
async fn another_tenants_rows_are_not_there() {
    let mut bench = Bench::new().await;
    let globex = bench.tenant("globex");
    let dead = bench.kill("billing").await;
    let (event, waiting) = bench.accept("secret", &["crm"]).await;
    let now = bench.now();
    let ledger = &bench.ledger;
    assert!(ledger.event(globex, event).await.unwrap().is_none());
    assert!(ledger.event_body(globex, event).await.unwrap().is_none());
    assert!(ledger.delivery(globex, dead).await.unwrap().is_none());
    assert!(ledger.dead_groups(globex, &DeadFilter::default(), DeadBy::Destination).await.unwrap().is_empty());
    assert!(ledger.events(globex, &EventFilter::default(), &page(9, None)).await.unwrap().items.is_empty());
    let attempt = bench.detail(dead).await.attempts[0].id.to_string();
    for q in [dead.to_string(), event.to_string(), attempt] {
        let filters = [
            DeliveryFilter { q: Some(q), ..DeliveryFilter::default() },
            DeliveryFilter { event: Some(event), ..DeliveryFilter::default() },
            DeliveryFilter { state: Some(DeliveryState::Dead), ..DeliveryFilter::default() },
            DeliveryFilter { state: Some(DeliveryState::InFlight), ..DeliveryFilter::default() },
            DeliveryFilter::default(),
        ];
        for filter in filters {
            assert!(ledger.deliveries(globex, &filter, &page(9, None)).await.unwrap().items.is_empty(), "{filter:?}");
        }
    }
    let redrive = Redrive { tenant: globex, delivery: dead, note: None, payload: Some("x".into()), request: None };
    assert_eq!(ledger.redrive(redrive, now).await.unwrap(), Redriven::NotFound);
    assert_eq!(ledger.cancel(globex, waiting[0], now).await.unwrap(), Cancelled::NotFound);
    assert_eq!(ledger.resolve(globex, dead, ResolveAs::Sent, None, now).await.unwrap(), Resolved::NotFound);
    let disable = EndpointChange::Disable { why: "x".into() };
    assert_eq!(ledger.change_endpoint(globex, &name("crm"), disable, now).await.unwrap(), None);
    let states = ledger.endpoints(globex, now).await.unwrap();
    assert_eq!(states.iter().map(|s| (s.pending, s.dead)).collect::<Vec<_>>(), [(0, 0)]);
    assert_eq!(bench.detail(dead).await.delivery.state, DeliveryState::Dead);
    assert_eq!(bench.detail(waiting[0]).await.delivery.state, DeliveryState::Pending);
}

#[tokio::test]
async fn a_read_that_takes_too_long_is_cut_off() {
    let bench = Bench::with(|s| s.read_limit = Duration::ZERO).await;
    // Enough rows to reach a look at the time.
    let insert = format!(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50000) \
         INSERT INTO event (tenant, id, type, content_type, body_bytes, accepted_at, last) \
         SELECT {}, CAST(printf('%016d', i) AS BLOB), 't', '', 0, 0, x'' FROM n",
        bench.tenant("acme").0
    );
    bench.raw().execute_batch(&insert).unwrap();
    let filter = EventFilter { event_type: Some("nothing".into()), ..EventFilter::default() };
    let slow = bench.ledger.events(bench.tenant("acme"), &filter, &page(9, None)).await;
    assert!(matches!(slow, Err(LedgerError::TooSlow { .. })), "{slow:?}");
}
