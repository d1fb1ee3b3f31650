//! Alerts: what they are judged by, and that an episode is one over restarts.

use crate::bench::{Bench, dead, delivered, record, retry};
use crate::plugins::{activate, disable, ready};
use crate::support::{name, publication};
use hookgate::clock::Timestamp;
use hookgate::delivery::{
    AlertChange, AlertId, AlertKind, AtRisk, EndedFacts, Reading, Subject, Thresholds, alert_readings, judge_alerts,
};
use hookgate::ledger::{
    ALERTS_KEPT_MAX, Accepted, AlertNotes, AlertQuestion, AlertRow, AlertTold, Change, DEADLINES_PAGE, DeadlinePage,
    DeadlineQuestion, ENDED_ROWS_MAX, EndpointChange, KnownFacts, PageRequest, ResolveAs, TenantKey, ToTell,
    WhichAlerts,
};
use hookgate::verify::{ALERT_TYPE, Publication, announcement};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

async fn facts(bench: &Bench, told_by: Option<&str>) -> KnownFacts {
    let now = bench.now();
    let question = AlertQuestion {
        tenant: bench.tenant("acme"),
        told_by: told_by.map(|endpoint| bench.endpoint(endpoint)),
        going: (now.minus(10 * MINUTE), now.minus(5 * MINUTE)),
        closings_since: now.minus(10 * MINUTE),
        ended_since: now.minus(10 * MINUTE),
    };
    bench.ledger.alert_facts(question).await.unwrap()
}

#[tokio::test]
async fn dead_letters_are_counted_by_age_and_the_alert_endpoints_apart() {
    let mut bench = Bench::new().await;
    assert_eq!(facts(&bench, None).await.dead, Default::default());
    let first = bench.kill("billing").await;
    let died = bench.now();
    bench.clock.advance(6 * MINUTE);
    let own = bench.kill("audit").await;
    let second = bench.kill("crm").await;
    let known = facts(&bench, Some("audit")).await;
    assert_eq!((known.dead.count, known.dead.oldest), (2, Some((first, died))));
    assert_eq!((known.dead.going, known.dead.first_going), (1, Some((first, died))));
    assert_eq!((known.undelivered.count, known.undelivered.oldest), (1, Some((own, bench.now()))));
    assert_eq!(facts(&bench, None).await.dead.count, 3);

    // What an operator closes is no dead letter any more.
    let acme = bench.tenant("acme");
    bench.ledger.resolve(acme, first, ResolveAs::NotSent, None, bench.now()).await.unwrap();
    let known = facts(&bench, Some("audit")).await.dead;
    assert_eq!((known.count, known.oldest, known.going), (1, Some((second, bench.now())), 0));
    let theirs = AlertQuestion {
        tenant: bench.tenant("globex"),
        told_by: None,
        going: (Timestamp::ZERO, Timestamp::MAX),
        closings_since: Timestamp::ZERO,
        ended_since: Timestamp::ZERO,
    };
    assert_eq!(bench.ledger.alert_facts(theirs).await.unwrap().dead.count, 0, "another tenant's");
}

#[tokio::test]
async fn an_endpoint_is_closed_since_it_closed_first() {
    let bench = Bench::new().await;
    let acme = bench.tenant("acme");
    let of = |known: &KnownFacts| {
        let billing = known.endpoints.iter().find(|e| e.name == name("billing")).unwrap();
        (billing.since, billing.closings)
    };
    assert_eq!(of(&facts(&bench, None).await), (None, 0));
    let pause = |until| EndpointChange::Pause { until, why: "operator".into() };
    let change = async |what| {
        bench.ledger.change_endpoint(acme, &name("billing"), what, bench.now()).await.unwrap();
    };
    let first = bench.now();
    change(pause(None)).await;
    bench.clock.advance(MINUTE);
    change(pause(Some(bench.now().plus(MINUTE)))).await;
    assert_eq!(of(&facts(&bench, None).await), (Some(first), 1), "made longer or shorter, it is the same pause");
    // It runs out by itself; the next one is another.
    bench.clock.advance(2 * MINUTE);
    let second = bench.now();
    change(pause(None)).await;
    assert_eq!(of(&facts(&bench, None).await), (Some(second), 2));
    bench.clock.advance(MINUTE);
    let third = bench.now();
    change(EndpointChange::Disable { why: "http_410".into() }).await;
    bench.clock.advance(MINUTE);
    change(EndpointChange::Disable { why: "again".into() }).await;
    assert_eq!(of(&facts(&bench, None).await), (Some(third), 3));
    let bench = bench.restart().await;
    assert_eq!(of(&facts(&bench, None).await), (Some(third), 3), "over a restart");
    bench.ledger.change_endpoint(acme, &name("billing"), EndpointChange::Enable, bench.now()).await.unwrap();
    bench.clock.advance(8 * MINUTE);
    assert_eq!(of(&facts(&bench, None).await), (None, 1), "the window has passed over the first two");
}

#[tokio::test]
async fn what_is_remembered_of_an_endpoint_is_bounded() {
    let bench = Bench::new().await;
    let acme = bench.tenant("acme");
    for _ in 0..120 {
        bench.clock.advance(Duration::from_millis(10));
        let pause = EndpointChange::Pause { until: None, why: "operator".into() };
        bench.ledger.change_endpoint(acme, &name("crm"), pause, bench.now()).await.unwrap();
        bench.ledger.change_endpoint(acme, &name("crm"), EndpointChange::Resume, bench.now()).await.unwrap();
    }
    let kept: u32 = bench.raw().query_row("SELECT count(*) FROM endpoint_change", [], |row| row.get(0)).unwrap();
    assert_eq!(kept, 100);
}

#[tokio::test]
async fn what_ended_is_counted_over_the_window_and_a_restart() {
    let mut bench = Bench::new().await;
    let of =
        |known: &KnownFacts, endpoint: &str| known.endpoints.iter().find(|e| e.name == name(endpoint)).unwrap().ended;
    let ended = |all, dead| EndedFacts { all, dead };
    bench.kill("billing").await;
    // More commits than are kept as notes, so that minutes are read as well.
    for _ in 0..100 {
        let claimed = bench.start("billing").await;
        bench.settle(claimed.lease, delivered()).await;
    }
    bench.clock.advance(6 * MINUTE);
    bench.kill("billing").await;
    bench.kill("crm").await;
    let bench = bench.restart().await;
    let known = facts(&bench, None).await;
    assert_eq!(["billing", "crm", "audit"].map(|e| of(&known, e)), [ended(102, 2), ended(1, 1), ended(0, 0)]);
    bench.clock.advance(5 * MINUTE);
    let known = facts(&bench, None).await;
    assert_eq!((of(&known, "billing"), of(&known, "crm")), (ended(1, 1), ended(1, 1)), "the window goes on");
    bench.clock.advance(6 * MINUTE);
    assert_eq!(of(&facts(&bench, None).await, "billing"), ended(0, 0));
}

#[tokio::test]
async fn only_so_many_minutes_are_read_the_newest_first() {
    let mut bench = Bench::new().await;
    bench.kill("billing").await;
    let endpoint = bench.endpoint("billing").0;
    let window = AlertQuestion {
        tenant: bench.tenant("acme"),
        told_by: None,
        going: (Timestamp::ZERO, Timestamp::ZERO),
        closings_since: Timestamp::ZERO,
        ended_since: Timestamp::ZERO,
    };
    // One dead letter in each of so many minutes, as `tally.rs` writes it.
    let rows = ENDED_ROWS_MAX + 50;
    bench
        .raw()
        .execute_batch(&format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) \
         INSERT INTO tally (tenant, hourly, at, subject, counts) SELECT {tenant}, 0, i * 60000, {endpoint}, \
         (SELECT x'01020100') FROM n;",
            tenant = bench.tenant("acme").0,
        ))
        .unwrap();
    let known = bench.ledger.alert_facts(window).await.unwrap();
    let ended = known.endpoints.iter().find(|e| e.name == name("billing")).unwrap().ended;
    assert_eq!(ended, EndedFacts { all: ENDED_ROWS_MAX as u64 + 1, dead: ENDED_ROWS_MAX as u64 + 1 });
}

#[tokio::test]
async fn a_disabled_plugin_is_one_until_another_version_is_in_use() {
    let bench = Bench::new().await;
    let (one, two) = (ready(&bench, 1).await, ready(&bench, 2).await);
    activate(&bench, one, Change::Activate).await;
    assert_eq!(facts(&bench, None).await.plugins, []);
    assert!(disable(&bench, one, None).await);
    let plugins = facts(&bench, None).await.plugins;
    assert_eq!(plugins.len(), 1);
    assert_eq!((&plugins[0].name, plugins[0].disabled_at), (&name("rules"), bench.now()));
    activate(&bench, two, Change::Activate).await;
    assert_eq!(facts(&bench, None).await.plugins, []);
}

fn due_by(deadline: Timestamp) -> Publication {
    Publication { deadline: Some(deadline), ..publication("job", None, "{}") }
}

async fn deadlines(bench: &Bench) -> DeadlinePage {
    let question =
        DeadlineQuestion { tenant: bench.tenant("acme"), margin: 10 * MINUTE, now: bench.now(), after: None };
    bench.ledger.deadlines(question).await.unwrap()
}

fn counts(page: &DeadlinePage) -> Vec<(&str, u64)> {
    page.at_risk.iter().map(|risk| (risk.endpoint.as_str(), risk.count)).collect()
}

#[tokio::test]
async fn deliveries_that_have_not_ended_are_at_risk_near_their_deadline() {
    let mut bench = Bench::new().await;
    let begin = bench.now();
    // Pending; being retried; dead; delivered; without a deadline; another tenant's does not come into it.
    bench.publish(due_by(begin.plus(60 * MINUTE)), &["billing"]).await;
    bench.publish(due_by(begin.plus(55 * MINUTE)), &["+billing"]).await;
    let claimed = bench.births.try_recv().unwrap();
    let first = claimed.lease.delivery;
    bench.settle_as(claimed.lease, record("answered", Some(503)), retry(begin.plus(90 * MINUTE))).await;
    for end in [dead("http_400"), delivered()] {
        bench.publish(due_by(begin.plus(58 * MINUTE)), &["+crm"]).await;
        let claimed = bench.births.try_recv().unwrap();
        bench.settle_as(claimed.lease, record("answered", Some(400)), end).await;
    }
    bench.accept("{}", &["audit"]).await;
    assert_eq!(deadlines(&bench).await, DeadlinePage::default(), "there is time");

    bench.clock.advance(45 * MINUTE);
    let page = deadlines(&bench).await;
    let expected = AtRisk { endpoint: name("billing"), count: 1, deadline: begin.plus(55 * MINUTE), sample: first };
    assert_eq!((page.at_risk, page.next), (vec![expected], None));
    bench.clock.advance(5 * MINUTE);
    assert_eq!(counts(&deadlines(&bench).await), [("billing", 2), ("crm", 1)]);
    // A job with little time is at risk when half of it is over.
    bench.publish(due_by(bench.now().plus(2 * MINUTE)), &["audit"]).await;
    bench.clock.advance(59 * SECOND);
    assert_eq!(counts(&deadlines(&bench).await), [("billing", 2), ("crm", 1)]);
    bench.clock.advance(SECOND);
    let page = deadlines(&bench).await;
    assert_eq!(counts(&page), [("billing", 2), ("crm", 1), ("audit", 1)]);

    // Missed, it is followed for as long again.
    bench.clock.advance(13 * MINUTE);
    assert_eq!(counts(&deadlines(&bench).await), [("billing", 2), ("crm", 1)]);
    bench.clock.advance(10 * MINUTE);
    assert_eq!(counts(&deadlines(&bench).await), []);
}

#[tokio::test]
async fn pages_of_deadlines_lose_nothing() {
    let bench = Bench::new().await;
    let deadline = bench.now().plus(8 * MINUTE);
    let count = DEADLINES_PAGE + 200;
    // Many with the same deadline, so that a page ends among them.
    for n in 0..count {
        let deadline = if n % 2 == 0 { deadline } else { deadline.plus(SECOND) };
        bench.publish(due_by(deadline), &["billing"]).await;
    }
    bench.clock.advance(5 * MINUTE);
    let mut question =
        DeadlineQuestion { tenant: bench.tenant("acme"), margin: 10 * MINUTE, now: bench.now(), after: None };
    let (mut seen, mut pages) = (0, 0);
    loop {
        let page = bench.ledger.deadlines(question).await.unwrap();
        seen += page.at_risk.iter().map(|risk| risk.count).sum::<u64>();
        pages += 1;
        question.after = page.next;
        if page.next.is_none() {
            break;
        }
    }
    assert_eq!((seen, pages), (count as u64, 2));
}

fn reading(kind: AlertKind, value: u64) -> Reading {
    Reading { kind, subject: Subject::Dlq, value, threshold: 1, since: None, due: None, sample: None }
}

fn fires(tenant: Option<TenantKey>, kinds: &[AlertKind], to_tell: ToTell) -> AlertNotes {
    let fires = kinds.iter().map(|kind| (reading(*kind, 3), to_tell)).collect();
    AlertNotes { tenant, fires, ..AlertNotes::default() }
}

async fn note(bench: &Bench, notes: AlertNotes) -> Vec<AlertRow> {
    bench.ledger.note_alerts(notes, bench.now()).await.unwrap()
}

async fn listed(bench: &Bench, tenant: Option<TenantKey>, which: WhichAlerts) -> Vec<AlertRow> {
    bench.ledger.alerts(tenant, which, &PageRequest { limit: 200, cursor: None }).await.unwrap().items
}

#[tokio::test]
async fn an_episode_is_one_over_restarts_and_is_told_once() {
    let bench = Bench::new().await;
    let (acme, globex) = (Some(bench.tenant("acme")), Some(bench.tenant("globex")));
    let fired = note(&bench, fires(acme, &[AlertKind::DlqDepth], ToTell::Yes)).await;
    let [alert] = fired.as_slice() else { panic!("{fired:?}") };
    assert_eq!((alert.told, alert.fired_at, alert.cleared_at), (AlertTold::NotYet, bench.now(), None));
    assert_eq!(alert.tenant, Some((acme.unwrap(), name("acme"))));
    assert_eq!(note(&bench, fires(acme, &[AlertKind::DlqDepth], ToTell::Yes)).await, [], "it fires already");
    assert_eq!(note(&bench, fires(globex, &[AlertKind::DlqDepth], ToTell::No)).await.len(), 1, "another tenant's");
    assert_eq!(note(&bench, fires(None, &[AlertKind::DiskFree], ToTell::No)).await[0].tenant, None);

    // The process dies between noting and telling.
    let crashed = bench.copy_as_after_a_crash().await;
    let open = crashed.ledger.open_alerts().await.unwrap();
    assert_eq!(open.len(), 3);
    assert!(open.contains(alert));
    let tell = async |bench: &Bench| {
        let mut accept = bench.acceptance(publication("x", None, "{}"), &["billing"]);
        accept.event = announcement(&name("acme"), alert.id.to_string(), "{}".into(), bench.now());
        bench.ledger.accept(accept).await.unwrap()
    };
    let Accepted::New(event) = tell(&crashed).await else { panic!("never sent") };
    // And again, between telling and noting that.
    let bench = crashed.copy_as_after_a_crash().await;
    assert_eq!(bench.ledger.open_alerts().await.unwrap(), open);
    assert_eq!(tell(&bench).await, Accepted::Duplicate(event));
    let row = bench.ledger.event(acme.unwrap(), event).await.unwrap().unwrap();
    assert_eq!((row.event_type.as_str(), row.key), (ALERT_TYPE, Some(alert.id.to_string())));
    bench.ledger.note_told(alert.id, Some(event)).await.unwrap();
    bench.ledger.note_told(alert.id, None).await.unwrap();
    let bench = bench.restart().await;
    assert_eq!(listed(&bench, acme, WhichAlerts::Firing).await[0].told, AlertTold::By(event), "what is told stays so");

    bench.clock.advance(MINUTE);
    let clears = AlertNotes { tenant: acme, clears: vec![alert.id], ..AlertNotes::default() };
    note(&bench, clears.clone()).await;
    let cleared = bench.now();
    bench.clock.advance(MINUTE);
    note(&bench, clears).await;
    let rows = listed(&bench, acme, WhichAlerts::All).await;
    assert_eq!((rows.len(), rows[0].cleared_at), (1, Some(cleared)), "twice is once");
    assert_eq!(listed(&bench, acme, WhichAlerts::Firing).await, []);
    let again = note(&bench, fires(acme, &[AlertKind::DlqDepth], ToTell::No)).await;
    assert_eq!(again.len(), 1, "it may fire again");
    assert_ne!(again[0].id, alert.id);
    let all = listed(&bench, None, WhichAlerts::All).await;
    assert_eq!(all.iter().filter(|row| row.cleared_at.is_none()).count(), 3);
    assert!(all.is_sorted_by(|a, b| a.id > b.id), "newest first");
}

#[tokio::test]
async fn a_count_follows_and_what_cleared_untold_is_still_told() {
    let bench = Bench::new().await;
    let acme = Some(bench.tenant("acme"));
    let alert = note(&bench, fires(acme, &[AlertKind::DlqDepth], ToTell::Yes)).await.remove(0);
    let moves = vec![(alert.id, reading(AlertKind::DlqDepth, 9))];
    note(&bench, AlertNotes { tenant: acme, moves, ..AlertNotes::default() }).await;
    assert_eq!(listed(&bench, acme, WhichAlerts::All).await[0].reading.value, 9);
    note(&bench, AlertNotes { tenant: acme, clears: vec![alert.id], ..AlertNotes::default() }).await;
    let open = bench.ledger.open_alerts().await.unwrap();
    assert_eq!(open.iter().map(|row| row.id).collect::<Vec<_>>(), [alert.id]);
    bench.ledger.note_told(alert.id, None).await.unwrap();
    assert_eq!(bench.ledger.open_alerts().await.unwrap(), []);
    assert_eq!(listed(&bench, acme, WhichAlerts::All).await[0].told, AlertTold::Nobody);
}

#[tokio::test]
async fn alerts_that_cleared_are_kept_up_to_a_bound_and_paged() {
    let bench = Bench::new().await;
    let acme = Some(bench.tenant("acme"));
    let stands = note(&bench, fires(acme, &[AlertKind::DlqErasure], ToTell::No)).await.remove(0);
    for _ in 0..ALERTS_KEPT_MAX + 20 {
        let alert = note(&bench, fires(acme, &[AlertKind::DlqDepth], ToTell::No)).await.remove(0);
        note(&bench, AlertNotes { tenant: acme, clears: vec![alert.id], ..AlertNotes::default() }).await;
    }
    let (mut seen, mut cursor): (Vec<AlertId>, _) = (Vec::new(), None);
    loop {
        let page = bench.ledger.alerts(acme, WhichAlerts::All, &PageRequest { limit: 200, cursor }).await.unwrap();
        seen.extend(page.items.iter().map(|row| row.id));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), ALERTS_KEPT_MAX as usize + 1);
    assert_eq!(seen.last(), Some(&stands.id), "what fires stays, however old");
    assert!(seen.is_sorted_by(|a, b| a > b));
}

/// The facts and the rule together: depth fires, clears when it is redriven, and fires again.
#[tokio::test]
async fn facts_lead_to_changes() {
    let mut bench = Bench::new().await;
    let acme = bench.tenant("acme");
    let thresholds = Thresholds { dlq_depth: 2, ..Thresholds::default() };
    let look = async |bench: &Bench| {
        let known = facts(bench, None).await;
        let facts =
            hookgate::delivery::TenantFacts { dead: known.dead, endpoints: known.endpoints, ..Default::default() };
        let readings = alert_readings(&facts, &thresholds, 24 * 60 * MINUTE, bench.now());
        let standing: Vec<_> = bench.ledger.open_alerts().await.unwrap().iter().map(AlertRow::standing).collect();
        judge_alerts(readings, &standing)
    };
    let mut ids = Vec::new();
    bench.kill("billing").await;
    assert_eq!(look(&bench).await, []);
    for _ in 0..2 {
        let letter = bench.kill("billing").await;
        let changes = look(&bench).await;
        let [AlertChange::Fires(reading)] = changes.as_slice() else { panic!("{changes:?}") };
        assert_eq!((reading.kind, reading.value), (AlertKind::DlqDepth, 2));
        let fires = vec![(reading.clone(), ToTell::No)];
        let alert = note(&bench, AlertNotes { tenant: Some(acme), fires, ..AlertNotes::default() }).await.remove(0);
        assert_eq!(look(&bench).await, []);
        // One of two resolved: so near the threshold it stands.
        bench.ledger.resolve(acme, letter, ResolveAs::Sent, None, bench.now()).await.unwrap();
        let changes = look(&bench).await;
        assert!(matches!(changes.as_slice(), [AlertChange::Moves(id, _)] if *id == alert.id), "{changes:?}");
        let oldest = facts(&bench, None).await.dead.oldest.unwrap().0;
        bench.ledger.resolve(acme, oldest, ResolveAs::Sent, None, bench.now()).await.unwrap();
        assert_eq!(look(&bench).await, [AlertChange::Clears(alert.id)]);
        note(&bench, AlertNotes { tenant: Some(acme), clears: vec![alert.id], ..AlertNotes::default() }).await;
        ids.push(alert.id);
        bench.kill("billing").await;
    }
    assert_ne!(ids[0], ids[1]);
}
