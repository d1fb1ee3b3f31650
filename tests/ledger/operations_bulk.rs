//! Many dead letters at once: filters, bulk redrives, purges.

use crate::bench::{Bench, START, dead, delivered, record, retry};
use crate::support::{name, publication};
use hookgate::delivery::{DeliveryId, DeliveryState, OperationId, PluginVersionId, Reason};
use hookgate::ledger::{
    Advanced, BegunOperation, Cancelled, DeadBy, DeadFilter, NewOperation, OPERATIONS_OPEN_MAX, OperationChange,
    OperationChanged, OperationRow, OperationState, PageRequest, Purged, Redrive, Redriven, RequestId, ResolveAs,
    Resolved, Retention, WaveResult, Work,
};
use hookgate::verify::Publication;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3_600);

fn wish(bench: &Bench) -> NewOperation {
    NewOperation {
        tenant: bench.tenant("acme"),
        work: Work::Redrive(DeadFilter::default()),
        max: None,
        rate: 100,
        canary: false,
        note: Some("they are back".into()),
        by: "operator".into(),
        request: None,
    }
}

async fn begin(bench: &Bench, wish: NewOperation) -> OperationRow {
    match bench.ledger.begin_operation(wish, bench.now()).await.unwrap() {
        BegunOperation::Done(row) => *row,
        other => panic!("{other:?}"),
    }
}

/// Begun, and its turn has come.
async fn running(bench: &Bench, wish: NewOperation) -> OperationRow {
    let row = begin(bench, wish).await;
    assert_eq!(row.state, OperationState::Queued);
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

async fn kill_many(bench: &mut Bench, endpoint: &str, n: usize) -> Vec<DeliveryId> {
    let mut all = Vec::new();
    for _ in 0..n {
        all.push(bench.kill(endpoint).await);
    }
    all
}

async fn generations(bench: &Bench, ids: &[DeliveryId]) -> Vec<u32> {
    let mut all = Vec::new();
    for id in ids {
        all.push(bench.detail(*id).await.delivery.generation);
    }
    all
}

async fn redrive_one(bench: &Bench, delivery: DeliveryId) -> Redriven {
    let one = Redrive { tenant: bench.tenant("acme"), delivery, note: None, payload: None, request: None };
    bench.ledger.redrive(one, bench.now()).await.unwrap()
}

#[tokio::test]
async fn only_what_was_dead_when_it_began_is_redriven() {
    let mut bench = Bench::new().await;
    let before = kill_many(&mut bench, "billing", 5).await;
    let waiting = bench.start("crm").await;
    let row = running(&bench, wish(&bench)).await;
    assert_eq!((row.total, row.left(), row.started_at), (Some(5), Some(5), Some(bench.now())));
    // The clock stands still, and is even set back: what dies from now on died later all the same.
    let late = bench.kill("billing").await;
    bench.clock.set_by(-7_200_000);
    bench.settle_as(waiting.lease, record("answered", Some(500)), dead("http_500")).await;
    assert_eq!(redrive_one(&bench, before[0]).await, Redriven::Done { generation: 2, revision: 1 });
    let again = bench.claim("billing", 1).await.remove(0);
    bench.settle_as(again.lease, record("answered", Some(500)), dead("http_500")).await;
    for id in [late, waiting.lease.delivery, before[0]] {
        assert!(bench.detail(id).await.delivery.finished_at > row.died_by, "{id}");
    }
    let row = to_its_end(&bench, row.id).await;
    assert_eq!((row.state, row.done, row.skipped.gone), (OperationState::Done, 4, 1));
    assert_eq!(generations(&bench, &before).await, [2, 2, 2, 2, 2]);
    assert_eq!(generations(&bench, &[late, waiting.lease.delivery]).await, [1, 1]);
    assert_eq!(bench.ledger.gauges().dead, 3);
    assert_eq!(row.old_reasons, [("http_500".to_owned(), 4)].into());
    let one = bench.detail(before[1]).await.delivery;
    assert_eq!((one.state, one.note.as_deref()), (DeliveryState::Pending, Some("they are back")));
    // Once it has ended, the clock is the clock again.
    let after = bench.kill("billing").await;
    assert_eq!(bench.detail(after).await.delivery.finished_at, Some(bench.now()));
}

#[tokio::test]
async fn steps_are_taken_once_whoever_asks_and_over_a_restart() {
    let mut bench = Bench::new().await;
    let ids = kill_many(&mut bench, "billing", 20).await;
    let row = running(&bench, wish(&bench)).await;
    assert_eq!(advance(&bench, row.id, 4).await, Advanced { done: 4, skipped: 0, over: false });
    let newest: Vec<u32> = generations(&bench, &ids).await;
    assert_eq!(newest[16..], [2, 2, 2, 2], "from the newest on");
    let bench = bench.restart().await;
    assert_eq!(bench.ledger.open_operations().await.unwrap().len(), 1);
    let (tenant, now) = (bench.tenant("acme"), bench.now());
    let all = (0..8).map(|_| {
        let ledger = Arc::clone(&bench.ledger);
        tokio::spawn(async move { ledger.advance_operation(tenant, row.id, 3, now).await.unwrap().done })
    });
    for task in all.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let row = to_its_end(&bench, row.id).await;
    assert_eq!((row.state, row.done, row.skipped.sum()), (OperationState::Done, 20, 0));
    assert_eq!(generations(&bench, &ids).await, [2; 20], "each once");
    assert_eq!(advance(&bench, row.id, 3).await, Advanced { over: true, ..Advanced::default() });
    assert!(bench.ledger.open_operations().await.unwrap().is_empty());
    // Again finds nothing.
    let again = running(&bench, wish(&bench)).await;
    assert_eq!(again.total, Some(0));
    assert_eq!(to_its_end(&bench, again.id).await.done, 0);
}

#[tokio::test]
async fn what_became_of_them_is_counted() {
    let mut bench = Bench::new().await;
    let ids = kill_many(&mut bench, "billing", 6).await;
    let row = running(&bench, wish(&bench)).await;
    to_its_end(&bench, row.id).await;
    let claimed = bench.claim("billing", 4).await;
    bench.settle(claimed[0].lease, delivered()).await;
    bench.settle_as(claimed[1].lease, record("answered", Some(500)), dead("http_500")).await;
    bench.settle(claimed[2].lease, retry(bench.now().plus(HOUR))).await;
    let waits = ids.iter().find(|id| claimed.iter().all(|c| c.lease.delivery != **id)).unwrap();
    assert_eq!(bench.ledger.cancel(bench.tenant("acme"), *waits, bench.now()).await.unwrap(), Cancelled::Done);
    let results = look(&bench, row.id).await.results;
    assert_eq!((results.delivered, results.dead_again, results.waiting, results.otherwise), (1, 1, 3, 1));
    // Redriven by itself, it is nobody's any more.
    redrive_one(&bench, claimed[1].lease.delivery).await;
    let results = look(&bench, row.id).await.results;
    assert_eq!((results.dead_again, results.waiting), (0, 3));
}

#[tokio::test]
async fn what_somebody_else_has_taken_is_skipped() {
    let mut bench = Bench::new().await;
    let acme = bench.tenant("acme");
    let ids = kill_many(&mut bench, "billing", 4).await;
    let row = running(&bench, wish(&bench)).await;
    redrive_one(&bench, ids[0]).await;
    let resolved = bench.ledger.resolve(acme, ids[1], ResolveAs::Sent, None, bench.now()).await.unwrap();
    assert_eq!(resolved, Resolved::Done);
    let purged = DeadFilter { ids: Some(vec![ids[2]]), ..DeadFilter::default() };
    assert_eq!(bench.ledger.purge_dead(acme, &purged, None, bench.now()).await.unwrap().purged, 1);
    let row = to_its_end(&bench, row.id).await;
    assert_eq!((row.done, row.skipped.gone, row.left()), (1, 3, Some(0)));
    let states = [DeliveryState::Pending, DeliveryState::Resolved, DeliveryState::Cancelled, DeliveryState::Pending];
    for (id, state) in ids.iter().zip(states) {
        let row = bench.detail(*id).await.delivery;
        assert!(row.state == state && row.generation <= 2, "{row:?}");
    }
}

#[tokio::test]
async fn what_has_expired_or_lost_its_payload_is_skipped() {
    let mut bench = Bench::new().await;
    let old = bench.kill("billing").await;
    bench.clock.advance(HOUR * 24 * 15);
    let retention =
        Retention { payloads: HOUR * 24 * 14, rows: HOUR * 24 * 90, tenants: Default::default(), batch_rows_max: 100 };
    assert_eq!(bench.ledger.prune(&retention, bench.now()).await.unwrap().payloads_erased, 1);
    let expiring = Publication { expires_at: Some(bench.now().plus(HOUR)), ..publication("t", None, "late is wrong") };
    bench.publish(expiring, &["+billing"]).await;
    let born = bench.births.try_recv().unwrap();
    bench.settle_as(born.lease, record("answered", Some(500)), dead("http_500")).await;
    let good = bench.kill("billing").await;
    bench.clock.advance(HOUR);
    let row = running(&bench, wish(&bench)).await;
    let row = to_its_end(&bench, row.id).await;
    assert_eq!((row.total, row.done), (Some(3), 1));
    let skipped = row.skipped;
    assert_eq!((skipped.expired, skipped.payload_erased, skipped.gone), (1, 1, 0));
    assert_eq!(generations(&bench, &[old, born.lease.delivery, good]).await, [1, 1, 2]);
}

#[tokio::test]
async fn a_canary_goes_wave_by_wave() {
    let mut bench = Bench::new().await;
    kill_many(&mut bench, "billing", 30).await;
    let acme = bench.tenant("acme");
    let row = running(&bench, NewOperation { canary: true, ..wish(&bench) }).await;
    assert_eq!(row.wave.map(|wave| (wave.number, wave.size, wave.left)), Some((1, 1, 1)));
    assert_eq!(row.time_left(), None);
    assert_eq!(advance(&bench, row.id, 100).await.done, 1);
    assert_eq!(advance(&bench, row.id, 100).await, Advanced::default(), "nothing before the wave is judged");
    let results = async |wave| bench.ledger.wave_results(acme, row.id, wave).await.unwrap();
    let result = |state, tried, reason: Option<&str>, count| WaveResult {
        state,
        tried,
        reason: reason.map(str::to_owned),
        count,
    };
    assert_eq!(results(1).await, [result(DeliveryState::Pending, false, None, 1)]);
    let claimed = bench.claim("billing", 1).await.remove(0);
    assert_eq!(results(1).await, [result(DeliveryState::InFlight, false, None, 1)]);
    bench.settle(claimed.lease, retry(bench.now().plus(HOUR))).await;
    assert_eq!(results(1).await, [result(DeliveryState::Pending, true, Some("http_503"), 1)]);
    bench.ledger.widen_operation(acme, row.id, 1, 10).await.unwrap();
    bench.ledger.widen_operation(acme, row.id, 1, 10).await.unwrap();
    assert_eq!(look(&bench, row.id).await.wave.map(|wave| (wave.number, wave.left)), Some((2, 10)), "once");
    assert_eq!(advance(&bench, row.id, 100).await.done, 10);
    for claimed in bench.claim("billing", 10).await {
        bench.settle_as(claimed.lease, record("answered", Some(500)), dead("http_500")).await;
    }
    assert_eq!(results(2).await, [result(DeliveryState::Dead, true, Some("http_500"), 10)]);
    assert_eq!(results(1).await.len(), 1, "a wave's results are its own");
    let why = "the old failure is back".to_owned();
    bench.ledger.stop_by_canary(acme, row.id, why.clone(), bench.now()).await.unwrap();
    let row = look(&bench, row.id).await;
    assert_eq!((row.state, row.why, row.done), (OperationState::StoppedByCanary, Some(why), 11));
    assert_eq!((row.results.dead_again, row.results.waiting), (10, 1));
    assert!(advance(&bench, row.id, 100).await.over);
    let resumed = bench.ledger.change_operation(acme, row.id, OperationChange::Resume, bench.now()).await.unwrap();
    assert_eq!(resumed, OperationChanged::Ended(OperationState::StoppedByCanary));
    assert_eq!(bench.ledger.gauges().dead, 29);
}

#[tokio::test]
async fn no_more_than_wanted() {
    let mut bench = Bench::new().await;
    let ids = kill_many(&mut bench, "billing", 5).await;
    let row = running(&bench, NewOperation { max: Some(2), ..wish(&bench) }).await;
    assert_eq!((row.total, row.left()), (Some(5), Some(2)));
    assert_eq!(advance(&bench, row.id, 100).await, Advanced { done: 2, skipped: 0, over: true });
    let row = look(&bench, row.id).await;
    assert_eq!((row.state, row.done, row.skipped.sum()), (OperationState::Done, 2, 0));
    assert_eq!(generations(&bench, &ids).await, [1, 1, 1, 2, 2]);
}

#[tokio::test]
async fn operations_are_paused_resumed_and_stopped() {
    let mut bench = Bench::new().await;
    kill_many(&mut bench, "billing", 4).await;
    let acme = bench.tenant("acme");
    let change = async |id, change| bench.ledger.change_operation(acme, id, change, bench.now()).await.unwrap();
    let stands = |changed: OperationChanged| match changed {
        OperationChanged::Done(row) => row.state,
        other => panic!("{other:?}"),
    };
    let row = running(&bench, wish(&bench)).await;
    advance(&bench, row.id, 1).await;
    for _ in 0..2 {
        assert_eq!(stands(change(row.id, OperationChange::Pause).await), OperationState::Paused);
    }
    assert!(advance(&bench, row.id, 1).await.over, "nothing goes on");
    assert!(!bench.ledger.start_operation(acme, row.id, bench.now()).await.unwrap());
    for _ in 0..2 {
        assert_eq!(stands(change(row.id, OperationChange::Resume).await), OperationState::Queued);
    }
    assert!(bench.ledger.start_operation(acme, row.id, bench.now()).await.unwrap());
    assert_eq!(advance(&bench, row.id, 1).await.done, 1);
    for _ in 0..2 {
        assert_eq!(stands(change(row.id, OperationChange::Stop).await), OperationState::Stopped);
    }
    let ended = look(&bench, row.id).await;
    assert_eq!((ended.done, ended.ended_at), (2, Some(bench.now())));
    for verb in [OperationChange::Resume, OperationChange::Pause] {
        assert_eq!(change(row.id, verb).await, OperationChanged::Ended(OperationState::Stopped));
    }
    let done = running(&bench, wish(&bench)).await;
    to_its_end(&bench, done.id).await;
    assert_eq!(change(done.id, OperationChange::Stop).await, OperationChanged::Ended(OperationState::Done));

    // Another tenant's is not there.
    let globex = bench.tenant("globex");
    assert!(bench.ledger.operation(globex, row.id).await.unwrap().is_none());
    let theirs = bench.ledger.change_operation(globex, row.id, OperationChange::Stop, bench.now()).await.unwrap();
    assert_eq!(theirs, OperationChanged::NotFound);
    assert!(bench.ledger.advance_operation(globex, row.id, 1, bench.now()).await.unwrap().over);
    let page = PageRequest { limit: 1, cursor: None };
    let first = bench.ledger.operations(acme, &page).await.unwrap();
    assert_eq!(first.items[0].id, done.id);
    let second = PageRequest { cursor: first.next, ..page };
    assert_eq!(bench.ledger.operations(acme, &second).await.unwrap().items[0].id, row.id);
    assert!(bench.ledger.operations(globex, &page).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn a_few_run_and_the_others_wait() {
    let mut bench = Bench::new().await;
    bench.kill("billing").await;
    let acme = bench.tenant("acme");
    let mut all = Vec::new();
    for _ in 0..OPERATIONS_OPEN_MAX {
        all.push(begin(&bench, wish(&bench)).await.id);
    }
    let more = bench.ledger.begin_operation(wish(&bench), bench.now()).await.unwrap();
    assert_eq!(more, BegunOperation::TooMany);
    let start = async |id| bench.ledger.start_operation(acme, id, bench.now()).await.unwrap();
    assert!(start(all[0]).await && start(all[1]).await && !start(all[2]).await && !start(all[0]).await);
    let done = to_its_end(&bench, all[0]).await;
    assert_eq!(done.state, OperationState::Done);
    assert!(start(all[2]).await);
    assert_eq!(bench.ledger.open_operations().await.unwrap().len(), 49);
}

#[tokio::test]
async fn the_same_wish_twice_is_one_operation() {
    let mut bench = Bench::new().await;
    kill_many(&mut bench, "billing", 2).await;
    let asked = |bench: &Bench| NewOperation { request: RequestId::new("ticket-1"), ..wish(bench) };
    assert_eq!(bench.ledger.begun_before(&asked(&bench)).await.unwrap(), None);
    let row = begin(&bench, asked(&bench)).await;
    let bench = bench.restart().await;
    let again = bench.ledger.begin_operation(asked(&bench), bench.now()).await.unwrap();
    assert!(matches!(again, BegunOperation::Before(before) if before.id == row.id));
    let before = bench.ledger.begun_before(&asked(&bench)).await.unwrap();
    assert!(matches!(before, Some(BegunOperation::Before(before)) if before.id == row.id));
    let other = NewOperation { rate: 7, ..asked(&bench) };
    assert_eq!(bench.ledger.begun_before(&other).await.unwrap(), Some(BegunOperation::RequestReused));
    assert_eq!(bench.ledger.begin_operation(other, bench.now()).await.unwrap(), BegunOperation::RequestReused);
    assert_eq!(bench.ledger.open_operations().await.unwrap().len(), 1);
}

fn version() -> PluginVersionId {
    let mut id = [7; 16];
    (id[6], id[8]) = (0x70, 0x80);
    PluginVersionId::from_bytes(id)
}

/// Dead letters that differ in everything a filter can ask for.
async fn zoo(bench: &mut Bench) -> Vec<DeliveryId> {
    let mut all = Vec::new();
    let version = version();
    for (at, (endpoint, status, reason)) in
        [("billing", 500, "http_500"), ("billing", 502, "http_502"), ("crm", 500, "http_500"), ("crm", 400, "odd")]
            .into_iter()
            .enumerate()
    {
        let key = format!("key-{at}");
        let published = publication(if at < 2 { "push" } else { "pull" }, Some(&key), "{}");
        bench.publish(published, &[&format!("+{endpoint}")]).await;
        let born = bench.births.try_recv().unwrap();
        let mut seen = record("answered", Some(status));
        seen.plugin_version = (at == 3).then_some(version);
        bench.settle_as(born.lease, seen, hookgate::delivery::Disposition::Dead(Reason::word(reason))).await;
        all.push(born.lease.delivery);
        bench.clock.advance(HOUR);
    }
    all
}

#[tokio::test]
async fn a_filter_means_the_same_for_list_count_groups_and_redrive() {
    let mut bench = Bench::new().await;
    let ids = zoo(&mut bench).await;
    let acme = bench.tenant("acme");
    let event = bench.detail(ids[0]).await.delivery.event;
    let attempt = bench.detail(ids[1]).await.attempts[0].id;
    let at = |hours: u32| Some(START.plus(HOUR * hours));
    let none = DeadFilter::default;
    let text = |word: &str| Some(word.to_owned());
    let all: Vec<(DeadFilter, &[usize])> = vec![
        (none(), &[0, 1, 2, 3]),
        (DeadFilter { endpoint: Some(name("crm")), ..none() }, &[2, 3]),
        (DeadFilter { endpoint: Some(name("audit")), ..none() }, &[]),
        (DeadFilter { endpoint: Some(name("unknown")), ..none() }, &[]),
        (DeadFilter { source: Some(name("github")), ..none() }, &[]),
        (DeadFilter { event_type: text("push"), ..none() }, &[0, 1]),
        (DeadFilter { key: text("key-2"), ..none() }, &[2]),
        (DeadFilter { key: text("key-2"), event_type: text("push"), ..none() }, &[]),
        (DeadFilter { event: Some(event), ..none() }, &[0]),
        (DeadFilter { reason: text("http_500"), ..none() }, &[0, 2]),
        (DeadFilter { status: Some(502), ..none() }, &[1]),
        (DeadFilter { host: text("billing.example"), ..none() }, &[0, 1]),
        (DeadFilter { host: text("billing.example"), status: Some(400), ..none() }, &[]),
        (DeadFilter { plugin_version: Some(version()), ..none() }, &[3]),
        (DeadFilter { since: at(2), ..none() }, &[2, 3]),
        (DeadFilter { until: at(2), ..none() }, &[0, 1]),
        (DeadFilter { since: at(1), until: at(3), ..none() }, &[1, 2]),
        (DeadFilter { ids: Some(vec![ids[3], ids[0]]), ..none() }, &[0, 3]),
        (DeadFilter { ids: Some(vec![ids[3], ids[0]]), endpoint: Some(name("crm")), ..none() }, &[3]),
        (DeadFilter { q: text(&ids[1].to_string()), ..none() }, &[1]),
        (DeadFilter { q: text(&event.to_string()), ..none() }, &[0]),
        (DeadFilter { q: text(&attempt.to_string()), ..none() }, &[1]),
        (DeadFilter { q: text("key-3"), ..none() }, &[3]),
        (DeadFilter { q: text("nothing"), key: text("key-3"), ..none() }, &[]),
    ];
    let page = PageRequest { limit: 200, cursor: None };
    for (filter, expected) in &all {
        let expected: BTreeSet<DeliveryId> = expected.iter().map(|at| ids[*at]).collect();
        let listed = bench.ledger.dead_letters(acme, filter, &page).await.unwrap().items;
        assert_eq!(listed.iter().map(|row| row.id).collect::<BTreeSet<_>>(), expected, "{filter:?}");
        let count = expected.len() as u64;
        assert_eq!(bench.ledger.count_dead(acme, filter).await.unwrap(), count, "{filter:?}");
        for by in [DeadBy::Destination, DeadBy::Endpoint, DeadBy::PluginVersion] {
            let groups = bench.ledger.dead_groups(acme, filter, by).await.unwrap();
            assert_eq!(groups.iter().map(|group| group.count).sum::<u64>(), count, "{filter:?} {by:?}");
            assert!(groups.iter().all(|group| expected.contains(&group.sample)), "{filter:?} {by:?}");
            assert!(groups.iter().all(|group| group.endpoint.is_some() == (by != DeadBy::Destination)), "{by:?}");
        }
        let to = bench.ledger.dead_destinations(acme, filter).await.unwrap();
        assert_eq!(to.iter().map(|to| to.count).sum::<u64>(), count, "{filter:?}");
        // The tenant is part of every filter.
        assert_eq!(bench.ledger.count_dead(bench.tenant("globex"), filter).await.unwrap(), 0);
        let written = serde_json::to_string(filter).unwrap();
        assert_eq!(serde_json::from_str::<DeadFilter>(&written).unwrap(), *filter);

        let row = running(&bench, NewOperation { work: Work::Redrive(filter.clone()), ..wish(&bench) }).await;
        assert_eq!(row.total, Some(count));
        let row = to_its_end(&bench, row.id).await;
        assert_eq!((row.done, row.skipped.sum()), (count, 0), "{filter:?}");
        for id in &expected {
            assert_eq!(bench.detail(*id).await.delivery.state, DeliveryState::Pending, "{filter:?}");
        }
        assert_eq!(bench.ledger.count_dead(acme, &none()).await.unwrap(), ids.len() as u64 - count);
        // As before, for the next one.
        for endpoint in ["billing", "crm"] {
            for claimed in bench.claim(endpoint, 10).await {
                revive(&bench, claimed.lease).await;
            }
        }
    }
    assert_eq!(bench.ledger.gauges().dead, ids.len() as u64);
}

/// Dead again as it was, at the time it was, by the hand of the test.
async fn revive(bench: &Bench, lease: hookgate::ledger::Lease) {
    let attempts = bench.detail(lease.delivery).await.attempts;
    let first = &attempts[0];
    let mut seen = record("answered", first.status);
    seen.plugin_version = first.plugin_version;
    let reason = first.reason.clone().unwrap();
    let reason = if first.status == Some(400) { "odd".to_owned() } else { reason };
    let reason: &'static str = Box::leak(reason.into_boxed_str());
    bench.settle_as(lease, seen, dead(reason)).await;
    bench
        .raw()
        .execute(
            "UPDATE delivery SET finished_at = ? WHERE id = ?",
            (first.started_at.as_millis(), lease.delivery.to_bytes()),
        )
        .unwrap();
}

#[tokio::test]
async fn a_purge_closes_and_erases_for_good() {
    let mut bench = Bench::new().await;
    let acme = bench.tenant("acme");
    // One event for two endpoints, one dead at both; and one that is delivered at the other.
    let mut events = Vec::new();
    for second_dies in [true, false] {
        bench.publish(publication("t", None, "{}"), &["+billing", "+crm"]).await;
        let (first, second) = (bench.births.try_recv().unwrap(), bench.births.try_recv().unwrap());
        bench.settle_as(first.lease, record("answered", Some(500)), dead("http_500")).await;
        let end = if second_dies { dead("http_500") } else { delivered() };
        bench.settle_as(second.lease, record("answered", Some(500)), end).await;
        events.push((first.event.id, first.lease.delivery, second.lease.delivery));
    }
    let other = bench.kill("audit").await;
    let body = async |event| bench.ledger.event_body(acme, event).await.unwrap().unwrap();
    let purge = async |endpoint: &str| {
        let filter = DeadFilter { endpoint: Some(name(endpoint)), ..DeadFilter::default() };
        bench.ledger.purge_dead(acme, &filter, None, bench.now()).await.unwrap()
    };
    assert_eq!(purge("billing").await, Purged { purged: 2, payloads_erased: 0, next: None });
    assert!(body(events[0].0).await.is_some() && body(events[1].0).await.is_some(), "others need them");
    assert_eq!(purge("billing").await, Purged::default(), "twice is once");
    assert_eq!(purge("crm").await, Purged { purged: 1, payloads_erased: 1, next: None });
    assert!(body(events[0].0).await.is_none(), "nobody needs it");
    assert!(body(events[1].0).await.is_some(), "it was delivered");
    let row = bench.detail(events[0].1).await.delivery;
    assert_eq!((row.state, row.reason.as_deref()), (DeliveryState::Cancelled, Some("purged")));
    assert_eq!(row.finished_at, Some(bench.now()));
    assert_eq!(redrive_one(&bench, events[0].1).await, Redriven::NotDead(DeliveryState::Cancelled));
    assert_eq!(bench.detail(other).await.delivery.state, DeliveryState::Dead);
    assert_eq!(
        (bench.ledger.gauges().dead, bench.ledger.count_dead(acme, &DeadFilter::default()).await.unwrap()),
        (1, 1)
    );
}

#[tokio::test]
async fn a_purge_goes_on_where_it_was_and_takes_nothing_that_died_since() {
    let mut bench = Bench::new().await;
    let acme = bench.tenant("acme");
    kill_many(&mut bench, "billing", 3).await;
    let corrected = bench.kill("billing").await;
    let redrive = Redrive { tenant: acme, delivery: corrected, note: None, payload: Some("2".into()), request: None };
    bench.ledger.redrive(redrive, bench.now()).await.unwrap();
    let claimed = bench.claim("billing", 1).await.remove(0);
    bench.settle(claimed.lease, dead("http_400")).await;
    let died_by = bench.now();
    bench.clock.advance(HOUR);
    let late = bench.kill("billing").await;
    let top = DeliveryId::from_bytes([0xff; 16]);
    let place = hookgate::ledger::PurgePlace { died_by, below: top };
    let done = bench.ledger.purge_dead(acme, &DeadFilter::default(), Some(place), bench.now()).await.unwrap();
    assert_eq!(done, Purged { purged: 4, payloads_erased: 5, next: None }, "a corrected payload is one more");
    assert_eq!(bench.detail(late).await.delivery.state, DeliveryState::Dead);
    let left: u32 = bench.raw().query_row("SELECT count(*) FROM payload", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 1);
}
