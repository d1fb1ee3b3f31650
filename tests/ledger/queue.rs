//! Accept, claim, settle, rescue.

use crate::bench::{Bench, LEASE, dead, delivered, record, released, retry};
use crate::support::{name, publication};
use hookgate::clock::Timestamp;
use hookgate::delivery::{
    Decision, DeliveryState, Disposition, EndpointEffect, EndpointStatus, KeptBody, Reason, Signal,
};
use hookgate::ledger::{
    Accept, Accepted, EndpointChange, EndpointKey, LedgerError, LogRecord, NewDelivery, Redrive, RequestRecord,
    ResponseRecord, Settled, Taken, TenantKey,
};
use hookgate::verify::Publication;
use std::time::Duration;

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[tokio::test]
async fn an_event_with_a_slot_is_born_leased_and_settles() {
    let mut bench = Bench::new().await;
    let accepted = bench.publish(publication("invoice.paid", Some("inv-1"), "{\"n\":1}"), &["+billing", "crm"]).await;
    let Accepted::New(event) = accepted else { panic!("{accepted:?}") };
    let born = bench.births.try_recv().expect("the delivery with a slot is handed over");
    assert!(bench.births.try_recv().is_err(), "the other waits in the ledger");
    assert_eq!((born.lease.number, born.lease.generation, born.lease.revision, born.sequence), (1, 1, 1, 1));
    assert_eq!((born.lease.history.counted, born.lease.history.interrupted_before), (1, 0));
    assert_eq!(born.lease.history.began_at, bench.now());
    assert_eq!(born.lease.until, bench.now().plus(LEASE));
    assert_eq!(&*born.idempotency_key, "inv-1");
    assert_eq!(born.event.id, event);
    assert_eq!(&born.event.body[..], b"{\"n\":1}");
    let gauges = bench.ledger.gauges();
    assert_eq!((gauges.pending, gauges.in_flight, gauges.dead), (1, 1, 0));

    let before = bench.detail(born.lease.delivery).await;
    assert_eq!((before.delivery.state, before.delivery.due_at), (DeliveryState::InFlight, None));
    assert_eq!(before.attempts.len(), 1, "the start is durable");
    assert_eq!((before.attempts[0].id, before.attempts[0].outcome.as_deref()), (born.lease.attempt(), None));

    assert_eq!(bench.settle(born.lease, delivered()).await, Settled::Stored);
    let after = bench.detail(born.lease.delivery).await;
    assert_eq!(after.delivery.state, DeliveryState::Delivered);
    assert_eq!(after.delivery.attempt_count, 1);
    assert_eq!(after.delivery.last_status, Some(200));
    assert_eq!(after.delivery.finished_at, Some(bench.now()));
    assert_eq!(after.attempts[0].id, born.lease.attempt());
    assert_eq!(after.attempts[0].disposition.as_deref(), Some("delivered"));
    assert_eq!(bench.settle(born.lease, delivered()).await, Settled::LeaseLost, "a lease is good for one settlement");
    assert_eq!(bench.detail(born.lease.delivery).await.attempts.len(), 1);
}

#[tokio::test]
async fn one_delivery_for_each_endpoint_and_sequences_that_rise_per_endpoint() {
    let mut bench = Bench::new().await;
    let (_, first) = bench.accept("1", &["billing", "billing", "crm"]).await;
    assert_eq!(first.len(), 2);
    for _ in 0..3 {
        bench.accept("n", &["+billing"]).await;
    }
    let sequences: Vec<u64> = std::iter::from_fn(|| bench.births.try_recv().ok()).map(|b| b.sequence).collect();
    assert_eq!(sequences, [2, 3, 4]);
    let mut bench = bench.restart().await;
    let (fifth, sixth) = (bench.start("billing").await.sequence, bench.start("billing").await.sequence);
    assert!(fifth > 4 && sixth == fifth + 1, "also after a restart: {fifth}, {sixth}");
    assert!(bench.start("crm").await.sequence > 1);
}

#[tokio::test]
async fn due_work_is_claimed_oldest_first_and_comes_back_after_its_wait() {
    let bench = Bench::new().await;
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.extend(bench.accept(&format!("{n}"), &["billing"]).await.1);
        bench.clock.advance(Duration::from_millis(1));
    }
    let claimed = bench.claim("billing", 2).await;
    assert_eq!(claimed.iter().map(|c| c.lease.delivery).collect::<Vec<_>>(), ids[..2]);
    assert_eq!(claimed.iter().map(|c| &c.event.body[..]).collect::<Vec<_>>(), [b"0", b"1"]);
    assert_eq!(bench.slots.in_flight(), 2);
    let due = bench.now().plus(secs(30));
    for one in claimed {
        assert_eq!(bench.settle_as(one.lease, record("answered", Some(503)), retry(due)).await, Settled::Stored);
    }
    assert_eq!(bench.slots.in_flight(), 0);
    let again = bench.claim("billing", 9).await;
    assert_eq!(again.iter().map(|c| c.lease.delivery).collect::<Vec<_>>(), ids[2..], "the others are not due");
    assert_eq!(bench.slots.in_flight(), 1, "slots without work are given back");
    let waits = bench.detail(ids[0]).await.delivery;
    assert_eq!((waits.due_at, waits.reason.as_deref()), (Some(due), Some("http_503")));
    bench.clock.advance(secs(30));
    let retried = bench.claim("billing", 9).await;
    assert_eq!(retried.iter().map(|c| c.lease.delivery).collect::<Vec<_>>(), ids[..2]);
    assert_eq!((retried[0].lease.number, retried[0].lease.history.counted), (2, 2));
}

#[tokio::test]
async fn one_claim_serves_several_endpoints() {
    let bench = Bench::new().await;
    bench.accept("1", &["billing", "crm"]).await;
    bench.accept("2", &["billing", "crm"]).await;
    let slots = vec![bench.slot("crm"), bench.slot("billing"), bench.slot("crm"), bench.slot("audit")];
    let claims = bench.ledger.claim(slots, bench.now()).await.unwrap();
    let next: Vec<_> = claims.next_due.into_keys().collect();
    assert_eq!(next, [bench.endpoint("billing")], "only where something is left");
    let claimed = claims.started;
    let of = |key| claimed.iter().filter(|c| c.lease.endpoint == key && c.slot.endpoint() == key).count();
    assert_eq!((of(bench.endpoint("billing")), of(bench.endpoint("crm")), claimed.len()), (1, 2, 3));
    assert_eq!(bench.slots.in_flight(), 3);
}

#[tokio::test]
async fn work_for_later_is_not_claimed_before() {
    let mut bench = Bench::new().await;
    let at = bench.now().plus(secs(60));
    let later = Publication { deliver_at: Some(at), ..publication("t", None, "later") };
    bench.publish(later, &["+billing"]).await;
    assert!(bench.births.try_recv().is_err());
    assert_eq!(bench.slots.in_flight(), 0, "the slot is given back");
    assert_eq!(bench.wakes.take().get(&bench.endpoint("billing")), Some(&at));
    assert!(bench.claim("billing", 1).await.is_empty());
    assert_eq!(bench.ledger.backlog().await.unwrap(), [(bench.endpoint("billing"), at)].into());
    bench.clock.advance(secs(60));
    assert_eq!(bench.claim("billing", 1).await.len(), 1);
}

#[tokio::test]
async fn a_released_attempt_is_numbered_but_not_counted() {
    let mut bench = Bench::new().await;
    let born = bench.start("billing").await;
    bench.settle_as(born.lease, record("released", None), released(bench.now())).await;
    let claimed = bench.claim("billing", 1).await;
    assert_eq!((claimed[0].lease.number, claimed[0].lease.history.counted), (2, 1));
    bench.settle(claimed[0].lease, dead("http_400")).await;
    let detail = bench.detail(born.lease.delivery).await;
    assert_eq!(detail.attempts.iter().map(|a| a.number).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(detail.delivery.reason.as_deref(), Some("http_400"));
}

#[tokio::test]
async fn interruptions_in_a_row_are_counted_and_others_end_the_row() {
    let mut bench = Bench::new().await;
    let id = bench.start("billing").await.lease.delivery;
    let mut seen = Vec::new();
    for outcome in ["interrupted", "interrupted", "released", "interrupted", "answered", "interrupted"] {
        let taken = bench.ledger.rescue(Timestamp::MAX, 9, bench.now()).await.unwrap();
        seen.push((taken[0].history.interrupted_before, taken[0].history.counted));
        let next = if outcome == "released" { released(bench.now()) } else { retry(bench.now()) };
        assert_eq!(bench.settle_as(taken[0], record(outcome, None), next).await, Settled::Stored);
        assert_eq!(bench.claim("billing", 1).await.len(), 1);
    }
    assert_eq!(seen, [(0, 1), (1, 2), (2, 3), (2, 3), (3, 4), (0, 5)]);
    assert_eq!(bench.detail(id).await.attempts.len(), 7);
}

#[tokio::test]
async fn a_lease_that_was_taken_over_settles_nothing() {
    let mut bench = Bench::new().await;
    let born = bench.start("billing").await;
    let none = bench.ledger.rescue(bench.now(), 9, bench.now()).await.unwrap();
    assert!(none.is_empty(), "a lease that runs is left alone");
    bench.clock.advance(LEASE);
    let taken = bench.ledger.rescue(bench.now(), 9, bench.now()).await.unwrap();
    assert_eq!((taken.len(), taken[0].endpoint), (1, bench.endpoint("billing")));
    assert!(taken[0].token > born.lease.token && taken[0].started_at == born.lease.started_at);
    assert_eq!(bench.settle(born.lease, delivered()).await, Settled::LeaseLost);
    assert!(bench.ledger.rescue(bench.now(), 9, bench.now()).await.unwrap().is_empty(), "it is leased again");
    let settled = bench.settle_as(taken[0], record("interrupted", None), retry(bench.now())).await;
    assert_eq!(settled, Settled::Stored);
    assert_eq!(bench.settle(born.lease, delivered()).await, Settled::LeaseLost);
    let detail = bench.detail(born.lease.delivery).await;
    assert_eq!(detail.attempts.len(), 1);
    assert_eq!(
        (detail.attempts[0].id, detail.attempts[0].outcome.as_deref()),
        (born.lease.attempt(), Some("interrupted"))
    );
}

#[tokio::test]
async fn a_rescue_takes_no_more_than_its_limit() {
    let mut bench = Bench::new().await;
    for _ in 0..5 {
        bench.start("billing").await;
    }
    assert_eq!(bench.ledger.rescue(Timestamp::MAX, 3, bench.now()).await.unwrap().len(), 3);
}

#[tokio::test]
async fn every_disposition_leads_to_its_state() {
    let mut bench = Bench::new().await;
    let due = bench.now().plus(secs(9));
    let cases = [
        (Disposition::Delivered { reference: Some("sms-1".into()) }, DeliveryState::Delivered, None),
        (Disposition::Skipped(Reason::word("test_mode")), DeliveryState::Skipped, Some("test_mode")),
        (dead("http_410"), DeliveryState::Dead, Some("http_410")),
        (Disposition::Expired(Reason::EXPIRED), DeliveryState::Expired, Some("expired")),
        (retry(due), DeliveryState::Pending, Some("http_503")),
        (released(due), DeliveryState::Pending, Some("shutdown")),
    ];
    for (disposition, state, reason) in cases {
        let born = bench.start("billing").await;
        bench.settle(born.lease, disposition.clone()).await;
        let row = bench.detail(born.lease.delivery).await.delivery;
        assert_eq!((row.state, row.reason.as_deref()), (state, reason), "{disposition:?}");
        assert_eq!(row.finished_at.is_some(), state.is_terminal());
        assert_eq!(row.due_at, disposition.next_at());
        assert_eq!(row.reference.is_some(), state == DeliveryState::Delivered);
    }
    let gauges = bench.ledger.gauges();
    assert_eq!((gauges.pending, gauges.in_flight, gauges.dead), (2, 0, 1));
    assert_eq!(gauges.oldest_dead_at, Some(bench.now()));
}

#[tokio::test]
async fn what_an_attempt_saw_is_kept_whole() {
    let mut bench = Bench::new().await;
    let digest = [7; 32];
    let acme = bench.tenant("acme");
    let version = bench.ledger.plugin_version(acme, &name("rules"), digest, bench.now()).await.unwrap();
    let born = bench.start("billing").await;
    let mut seen = record("answered", Some(503));
    seen.verdict = Some("retryable");
    seen.ambiguous = true;
    seen.plugin_version = Some(version);
    seen.plugin_took = Some(Duration::from_micros(1_250));
    seen.plugin_log = vec![LogRecord { level: "info".into(), message: "so far".into() }];
    seen.plugin_log_dropped = 3;
    seen.detail = Some("slow".into());
    seen.request = Some(RequestRecord {
        method: "PUT".into(),
        path_and_query: Some("/v2?x=1".into()),
        headers: vec![("x-a".into(), "b".into())],
        body: KeptBody::Whole("transformed".into()),
    });
    seen.response = Some(ResponseRecord {
        headers: vec![("retry-after".into(), "9".into())],
        body: vec![0xff, 0xfe].into(),
        body_truncated: true,
    });
    let due = bench.now().plus(secs(9));
    let decision = Decision { clamped_from: Some(secs(11)), ..retry(due).into() };
    bench.settle_as(born.lease, seen, decision).await;
    let attempt = bench.detail(born.lease.delivery).await.attempts.remove(0);
    assert_eq!((attempt.verdict.as_deref(), attempt.decided_by.as_deref()), (Some("retryable"), Some("builtin")));
    assert_eq!((attempt.next_at, attempt.clamped_from_ms, attempt.duration_ms), (Some(due), Some(11_000), Some(12)));
    assert_eq!((attempt.plugin_version, attempt.plugin_ms, attempt.plugin_log_dropped), (Some(version), Some(1.25), 3));
    assert_eq!((attempt.plugin_log[0].message.as_str(), attempt.detail.as_deref()), ("so far", Some("slow")));
    assert_eq!((attempt.request_method.as_deref(), attempt.request_path.as_deref()), (Some("PUT"), Some("/v2?x=1")));
    assert_eq!(attempt.response_headers, Some(vec![("retry-after".into(), "9".into())]));
    assert_eq!((attempt.response_body, attempt.response_body_base64.as_deref()), (None, Some("//4=")));
    assert!(attempt.response_body_truncated && attempt.ambiguous);
}

#[tokio::test]
async fn a_large_body_and_answer_come_back_byte_for_byte() {
    let mut bench = Bench::new().await;
    let body: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
    let accepted = bench.publish(publication("t", None, body.clone()), &["billing"]).await;
    let Accepted::New(event) = accepted else { panic!("{accepted:?}") };
    let claimed = bench.claim("billing", 1).await;
    assert_eq!(claimed[0].event.body, body);
    let stored = bench.ledger.event_body(bench.tenant("acme"), event).await.unwrap().unwrap().unwrap();
    assert_eq!(stored.body, body);
    let mut seen = record("answered", Some(200));
    seen.request = Some(RequestRecord {
        method: "POST".into(),
        path_and_query: None,
        headers: vec![],
        body: KeptBody::Whole(body.into()),
    });
    bench.settle_as(claimed[0].lease, seen, delivered()).await;
    assert!(bench.births.try_recv().is_err());
    assert_eq!(bench.detail(claimed[0].lease.delivery).await.attempts[0].request_method.as_deref(), Some("POST"));
}

#[tokio::test]
async fn a_pause_is_committed_with_the_outcome_and_closes_the_slots() {
    let mut bench = Bench::new().await;
    let billing = bench.endpoint("billing");
    let born = bench.start("billing").await;
    let arriving = bench.slot("billing");
    let until = bench.now().plus(secs(120));
    let pause = |until| Decision {
        endpoint: Some(EndpointEffect::PauseUntil { until, why: Reason::word("retry_after") }),
        ..retry(until).into()
    };
    bench.settle_as(born.lease, record("answered", Some(429)), pause(until)).await;
    assert!(!bench.slots.is_open(billing, bench.now()));
    assert_eq!(bench.wakes.take().get(&billing), Some(&until));
    assert_eq!(bench.ledger.gauges().endpoints_paused, 1);

    // An event that had its slot before the pause is accepted, and waits.
    let now = bench.now();
    let accept = Accept {
        tenant: bench.tenant("acme"),
        source: None,
        event: crate::support::verified("acme", publication("t", None, "x"), secs(9), now),
        deliveries: vec![NewDelivery { endpoint: billing, slot: Some(arriving), order: None }],
        now,
    };
    assert!(matches!(bench.ledger.accept(accept).await, Ok(Accepted::New(_))));
    assert!(bench.births.try_recv().is_err());
    assert_eq!(bench.wakes.take().get(&billing), Some(&until), "to be looked at when the pause ends");

    let status = bench.ledger.endpoints(bench.tenant("acme"), bench.now()).await.unwrap().remove(1);
    assert_eq!(status.status, EndpointStatus::Paused { until: Some(until), why: "retry_after".into() });
    assert_eq!((status.pending, status.available, status.in_flight), (2, 1, 0));

    // The pause holds over a restart, and runs out by itself.
    let bench = bench.restart().await;
    assert!(matches!(bench.slots.take_for_backlog(billing, bench.now()), Taken::NotBefore(t) if t == until));
    bench.clock.advance(secs(120));
    assert_eq!(bench.ledger.gauges().endpoints_paused, 0);
    // One goes first, and the rest once that went well.
    let first = bench.claim("billing", 1).await;
    assert!(matches!(bench.slots.take_for_backlog(billing, bench.now()), Taken::Full));
    first[0].slot.tell(Signal::Works);
    assert_eq!(bench.claim("billing", 1).await.len(), 1);
    let status = bench.ledger.endpoints(bench.tenant("acme"), bench.now()).await.unwrap().remove(1);
    assert_eq!(status.status, EndpointStatus::Enabled);
}

#[tokio::test]
async fn a_pause_shortens_no_longer_one_and_opens_nothing() {
    let mut bench = Bench::new().await;
    let (short, long) = (bench.now().plus(secs(10)), bench.now().plus(secs(100)));
    let pause = |until| Decision {
        endpoint: Some(EndpointEffect::PauseUntil { until, why: Reason::word("retry_after") }),
        ..retry(until).into()
    };
    let disable = Decision { endpoint: Some(EndpointEffect::Disable { why: Reason::GONE }), ..dead("http_410").into() };
    let claims = [bench.start("billing").await, bench.start("billing").await];
    let more = [bench.start("billing").await, bench.start("billing").await];
    let status =
        async |bench: &Bench| bench.ledger.endpoints(bench.tenant("acme"), bench.now()).await.unwrap().remove(1).status;
    bench.settle(claims[0].lease, pause(long)).await;
    bench.settle(claims[1].lease, pause(short)).await;
    let paused = EndpointStatus::Paused { until: Some(long), why: "retry_after".into() };
    assert_eq!(status(&bench).await, paused);
    bench.settle(more[0].lease, disable).await;
    assert_eq!(status(&bench).await, EndpointStatus::Disabled { why: "http_410".into() });
    bench.settle(more[1].lease, pause(long)).await;
    assert_eq!(status(&bench).await, EndpointStatus::Disabled { why: "http_410".into() });
    let billing = bench.endpoint("billing");
    let mut bench = bench.restart().await;
    assert!(matches!(bench.slots.take_for_backlog(billing, long), Taken::Closed));

    // Nobody pauses by hand for no time: only a word ends it.
    let acme = bench.tenant("acme");
    let by_hand = EndpointChange::Pause { until: None, why: "operator".into() };
    let crm = bench.start("crm").await;
    bench.ledger.change_endpoint(acme, &name("crm"), by_hand, bench.now()).await.unwrap();
    bench.settle(crm.lease, pause(long)).await;
    assert!(matches!(bench.slots.take_for_backlog(bench.endpoint("crm"), long), Taken::Closed));
}

#[tokio::test]
async fn a_slot_for_an_endpoint_that_closed_meanwhile_is_given_back() {
    let bench = Bench::new().await;
    let (_, waiting) = bench.accept("x", &["billing"]).await;
    let slot = bench.slot("billing");
    let until = bench.now().plus(secs(60));
    let pause = EndpointChange::Pause { until: Some(until), why: "operator".into() };
    let acme = bench.tenant("acme");
    bench.ledger.change_endpoint(acme, &name("billing"), pause, bench.now()).await.unwrap();
    bench.wakes.take();
    assert!(bench.ledger.claim(vec![slot], bench.now()).await.unwrap().started.is_empty());
    assert_eq!(bench.slots.in_flight(), 0);
    assert_eq!(bench.wakes.take().get(&bench.endpoint("billing")), Some(&until));
    assert_eq!(bench.detail(waiting[0]).await.delivery.state, DeliveryState::Pending);
}

#[tokio::test]
async fn what_is_not_declared_is_refused_and_harms_no_other() {
    let bench = Bench::new().await;
    let bad = Accept {
        deliveries: vec![NewDelivery { endpoint: EndpointKey(999), slot: None, order: None }],
        ..bench.acceptance(publication("t", Some("k"), "x"), &[])
    };
    let foreign = Accept {
        deliveries: vec![NewDelivery {
            endpoint: bench.directory.tenants["globex"].endpoints["billing"].key,
            slot: None,
            order: None,
        }],
        ..bench.acceptance(publication("t", Some("k"), "x"), &[])
    };
    let unknown = Accept { tenant: TenantKey(999), ..bench.acceptance(publication("t", None, "x"), &[]) };
    let good = bench.acceptance(publication("t", Some("k"), "x"), &["billing"]);
    let ledger = &bench.ledger;
    let (a, b, c, d) =
        tokio::join!(ledger.accept(bad), ledger.accept(foreign), ledger.accept(good), ledger.accept(unknown));
    assert!(matches!(a, Err(LedgerError::Unavailable(_))) && matches!(b, Err(LedgerError::Unavailable(_))));
    assert!(matches!(c, Ok(Accepted::New(_))) && matches!(d, Err(LedgerError::Unavailable(_))));
    assert_eq!(bench.ledger.gauges().pending, 1);
}

#[tokio::test]
async fn declaring_again_gives_the_same_keys_and_keeps_secrets_and_work() {
    let dir = std::sync::Arc::new(tempfile::tempdir().unwrap());
    let path = dir.path().join("data/ledger.db");
    let mut bench = Bench::open(crate::bench::settings(&path), dir, crate::bench::START).await;
    let mut declaration = crate::bench::declaration();
    let secret = |text: &str| Some(hookgate::secret::Secret::new(text));
    declaration.tenants[0].endpoints[0].generated_secret = secret("first");
    declaration.tenants[0].endpoints[0].host = "moved.example".into();
    declaration.tenants[0].endpoints.remove(2);
    bench.accept("x", &["audit"]).await;
    let first = bench.ledger.declare(declaration.clone(), bench.now()).await.unwrap();
    let billing = |d: &hookgate::ledger::Directory| d.tenants["acme"].endpoints["billing"].clone();
    assert_eq!(billing(&first).key, bench.endpoint("billing"));
    assert!(billing(&first).generated_secret.unwrap().matches(b"first"));
    declaration.tenants[0].endpoints[0].generated_secret = secret("second");
    bench = bench.restart().await;
    let again = bench.ledger.declare(declaration, bench.now()).await.unwrap();
    assert!(billing(&again).generated_secret.unwrap().matches(b"first"), "the first one is kept");
    assert!(!again.tenants["acme"].endpoints.contains_key("audit"));
    let states = bench.ledger.endpoints(bench.tenant("acme"), bench.now()).await.unwrap();
    assert_eq!(states.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["audit", "billing", "crm"]);
    assert_eq!((states[0].pending, states[1].host.as_str()), (1, "moved.example"));
}

#[tokio::test]
async fn the_same_plugin_content_has_one_version() {
    let bench = Bench::new().await;
    let (acme, globex) = (bench.tenant("acme"), bench.tenant("globex"));
    let version = async |tenant, plugin: &str, digest: u8| {
        bench.ledger.plugin_version(tenant, &name(plugin), [digest; 32], bench.now()).await.unwrap()
    };
    let first = version(acme, "rules", 1).await;
    assert_eq!(version(acme, "rules", 1).await, first);
    for other in [version(acme, "rules", 2).await, version(acme, "others", 1).await, version(globex, "rules", 1).await]
    {
        assert_ne!(other, first);
    }
}

#[tokio::test]
async fn a_full_queue_turns_events_away_at_once() {
    let bench = Bench::with(|s| s.queued_max = 0).await;
    let refused = bench.ledger.accept(bench.acceptance(publication("t", None, "x"), &["billing"])).await;
    assert!(matches!(refused, Err(LedgerError::Unavailable(_))), "{refused:?}");
    let bench = Bench::with(|s| s.queued_bytes_max = 0).await;
    let refused = bench.ledger.accept(bench.acceptance(publication("t", None, "x"), &["billing"])).await;
    assert!(matches!(refused, Err(LedgerError::Unavailable(_))), "{refused:?}");
    let bench = Bench::with(|s| s.wal_bytes_max = 0).await;
    let refused = bench.ledger.accept(bench.acceptance(publication("t", None, "x"), &["billing"])).await;
    assert!(matches!(refused, Err(LedgerError::Unavailable(_))), "{refused:?}");
    assert!(bench.ledger.probe().await.is_ok(), "outcomes still find their way");
}

#[tokio::test]
async fn after_closing_every_verb_is_unavailable() {
    let bench = Bench::new().await;
    let (_, ids) = bench.accept("x", &["billing"]).await;
    bench.ledger.close().await.unwrap();
    bench.ledger.close().await.unwrap();
    let refused = bench.ledger.accept(bench.acceptance(publication("t", None, "x"), &["billing"])).await;
    assert!(matches!(refused, Err(LedgerError::Unavailable(_))));
    assert!(matches!(bench.ledger.probe().await, Err(LedgerError::Unavailable(_))));
    let bench = bench.restart().await;
    assert_eq!(bench.claim("billing", 1).await[0].lease.delivery, ids[0]);
}

#[tokio::test]
async fn work_that_is_older_than_allowed_is_found_behind_its_endpoint() {
    let mut bench = Bench::new().await;
    let billing = bench.endpoint("billing");
    let (_, old) = bench.accept("old", &["billing", "crm"]).await;
    let later = Publication { deliver_at: Some(bench.now().plus(secs(500))), ..publication("t", None, "later") };
    let Accepted::New(later) = bench.publish(later, &["billing"]).await else { panic!() };
    let later = bench.ledger.event(bench.tenant("acme"), later).await.unwrap().unwrap().deliveries.unwrap()[0];
    let retried = bench.start("billing").await;
    bench.settle(retried.lease, retry(bench.now().plus(secs(300)))).await;
    let under_way = bench.start("billing").await;
    let redriven = bench.kill("billing").await;
    let bound = bench.now();
    bench.clock.advance(Duration::from_millis(1));
    let redrive =
        Redrive { tenant: bench.tenant("acme"), delivery: redriven, note: None, payload: None, request: None };
    bench.ledger.redrive(redrive, bench.now()).await.unwrap();
    bench.accept("young", &["billing"]).await;
    bench.clock.advance(secs(100));

    let outlived = async |limit| bench.ledger.outlived(vec![(billing, bound)], limit, bench.now()).await.unwrap();
    let (mut taken, rest) = (outlived(2).await, outlived(9).await);
    assert_eq!((taken.len(), rest.len()), (2, 1));
    taken.extend(rest);
    let mut found: Vec<_> = taken.iter().map(|t| t.delivery).collect();
    let mut expected = vec![old[0], later, retried.lease.delivery];
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    assert!(taken.iter().all(|t| t.history.began_at == bound && t.endpoint == billing));
    assert!(outlived(9).await.is_empty(), "what is taken is leased");
    for one in &taken {
        let settled = bench.settle(*one, Disposition::Expired(Reason::MAX_AGE)).await;
        assert_eq!(settled, Settled::Stored);
    }
    let row = bench.detail(retried.lease.delivery).await;
    assert_eq!((row.delivery.state, row.delivery.reason.as_deref()), (DeliveryState::Expired, Some("max_age")));
    assert_eq!(row.attempts.iter().map(|a| a.number).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(bench.settle(under_way.lease, delivered()).await, Settled::Stored);
    let gauges = bench.ledger.gauges();
    assert_eq!((gauges.pending, gauges.in_flight), (3, 0), "crm's, the redriven and the young one");
}
