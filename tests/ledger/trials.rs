//! Trials: one at a time, over restarts, bounded, and what a canary left dead put back once.

use crate::bench::{Bench, dead, record, retry};
use crate::plugins::{activate, compiling, disable, ready};
use crate::support::{name, publication};
use hookgate::clock::Timestamp;
use hookgate::delivery::{
    Bounds, Counts, DeliveryId, DeliveryState, Name, PluginVersionId, Said, Share, TrialId, Window,
};
use hookgate::ledger::{
    AttemptRecord, Begun, Change, Claimed, Compared, Course, DIFFERENCES_MAX, Difference, EndTrial, Ending, Halves,
    NewTrial, Noted, TRIALS_MAX, Told, TrialRow, VERSIONS_MAX,
};
use std::collections::BTreeSet;
use std::time::Duration;

fn share(text: &str) -> Share {
    Share::new(text.parse().unwrap()).unwrap()
}

async fn begin(bench: &Bench, version: PluginVersionId, canary: Option<Bounds>) -> Begun {
    let (tenant, plugin) = (bench.tenant("acme"), name("rules"));
    let share = share(if canary.is_some() { "100%" } else { "12.5%" });
    let new = NewTrial { tenant, plugin, version, share, canary, by: "anna".into() };
    bench.ledger.begin_trial(new, bench.now()).await.unwrap()
}

async fn begun(bench: &Bench, version: PluginVersionId, canary: Option<Bounds>) -> TrialRow {
    match begin(bench, version, canary).await {
        Begun::Done(row) => row,
        other => panic!("{other:?}"),
    }
}

async fn end(bench: &Bench, trial: TrialId, how: Ending) -> Option<TrialRow> {
    let why = (how == Ending::RolledBack).then(|| "20 faults in a row".to_owned());
    let end = EndTrial { tenant: bench.tenant("acme"), trial, how, by: "gateway".into(), why };
    bench.ledger.end_trial(end, bench.now()).await.unwrap()
}

async fn newest(bench: &Bench) -> TrialRow {
    bench.ledger.newest_trial(bench.tenant("acme"), &name("rules")).await.unwrap().unwrap()
}

async fn put_back(bench: &Bench, trial: &TrialRow, held: &[&str]) -> u64 {
    let held: BTreeSet<Name> = held.iter().map(|text| name(text)).collect();
    bench.ledger.put_back(trial, held, Timestamp::ZERO, bench.now()).await.unwrap().put_back
}

/// Two versions that are ready, the first of them in use.
async fn with_versions() -> (Bench, PluginVersionId, PluginVersionId) {
    let bench = Bench::new().await;
    let (one, two) = (ready(&bench, 1).await, ready(&bench, 2).await);
    activate(&bench, one, Change::Activate).await;
    (bench, one, two)
}

fn by(version: PluginVersionId) -> AttemptRecord {
    AttemptRecord { plugin_version: Some(version), ..record("answered", Some(200)) }
}

fn terminal(version: PluginVersionId) -> AttemptRecord {
    AttemptRecord { verdict: Some("terminal"), ..by(version) }
}

/// Who judges an attempt is chosen after its start.
#[tokio::test]
async fn an_attempt_that_began_before_the_canary_and_was_judged_by_it_is_put_back() {
    let (mut bench, _, two) = with_versions().await;
    let claimed = bench.start("billing").await;
    bench.clock.advance(Duration::from_millis(10));
    let trial = begun(&bench, two, Some(Bounds::default())).await;
    bench.clock.advance(Duration::from_millis(10));
    let record = AttemptRecord { duration: Duration::from_millis(20), ..terminal(two) };
    bench.settle_as(claimed.lease, record, dead("suspended")).await;
    let ended = end(&bench, trial.id, Ending::Stopped).await.unwrap();
    assert_eq!(put_back(&bench, &ended, &[]).await, 1);
}

/// What the canary has spent of the budget is not missing to whoever is under way when it goes.
#[tokio::test]
async fn an_attempt_under_way_gets_its_budget_back_or_is_waited_for() {
    let (mut bench, one, two) = with_versions().await;
    let trial = begun(&bench, two, Some(Bounds::default())).await;
    let mut leases = Vec::new();
    for _ in 0..2 {
        let claimed = bench.start("billing").await;
        bench.settle_as(claimed.lease, by(two), retry(bench.now())).await;
        leases.push(bench.claim("billing", 1).await.remove(0));
    }
    let [waits, dies] = leases.try_into().map_err(|_| "two").unwrap();
    let ended = end(&bench, trial.id, Ending::Stopped).await.unwrap();
    let ask = async |bench: &Bench, since: Timestamp| {
        let done = bench.ledger.put_back(&ended, BTreeSet::new(), since, bench.now()).await.unwrap();
        (done.put_back, done.under_way, done.found)
    };
    assert_eq!(ask(&bench, Timestamp::ZERO).await, (0, 2, 2));
    let since = bench.now();
    assert_eq!(ask(&bench, since).await, (0, 2, 0), "still under way");
    bench.settle_as(waits.lease, by(one), retry(bench.now().plus(Duration::from_secs(9)))).await;
    // It began with a budget of which the canary's attempt was taken.
    bench.settle_as(dies.lease, by(one), dead("http_503")).await;
    assert_eq!(ask(&bench, since).await, (1, 0, 0));
    assert_eq!(state(&bench, dies.lease.delivery).await, DeliveryState::Pending);
    let counted = |id: DeliveryId| -> u32 {
        let sql = "SELECT counted FROM delivery WHERE id = ?";
        bench.raw().query_row(sql, [id.to_bytes()], |row| row.get(0)).unwrap()
    };
    assert_eq!((counted(waits.lease.delivery), counted(dies.lease.delivery)), (1, 0));
}

#[tokio::test]
async fn a_trial_runs_beside_what_is_in_use_and_alone() {
    let bench = Bench::new().await;
    let one = ready(&bench, 1).await;
    assert_eq!(begin(&bench, one, None).await, Begun::NothingInUse);
    activate(&bench, one, Change::Activate).await;
    assert_eq!(begin(&bench, one, None).await, Begun::InUse);
    let raw = compiling(&bench, 3).await;
    assert!(matches!(begin(&bench, raw, None).await, Begun::NotReady(row) if row.id == raw));
    let nobody = PluginVersionId::from_bytes([7; 16]);
    assert_eq!(begin(&bench, nobody, None).await, Begun::NotFound);
    let two = ready(&bench, 2).await;
    let row = begun(&bench, two, Some(Bounds::default())).await;
    assert_eq!((row.version, row.active, row.share, row.by.as_str()), (two, one, share("100%"), "anna"));
    assert_eq!(begin(&bench, two, None).await, Begun::Running(row.clone()));
    let bench = bench.restart().await;
    assert_eq!(newest(&bench).await, row, "as it was");
    // Another tenant's trial of the same name is another's.
    let (tenant, plugin) = (bench.tenant("globex"), name("rules"));
    assert_eq!(bench.ledger.newest_trial(tenant, &plugin).await.unwrap(), None);
    let theirs = NewTrial { tenant, plugin, version: two, share: share("1%"), canary: None, by: "x".into() };
    assert_eq!(bench.ledger.begin_trial(theirs, bench.now()).await.unwrap(), Begun::NotFound);
}

#[tokio::test]
async fn what_changes_in_use_ends_a_trial() {
    let (bench, one, two) = with_versions().await;
    let three = ready(&bench, 3).await;
    let how = async |bench: &Bench| newest(bench).await.ended.map(|ended| (ended.how, ended.unsettled));
    begun(&bench, two, Some(Bounds::default())).await;
    activate(&bench, one, Change::Activate).await;
    assert_eq!(how(&bench).await, None, "it is in use already");
    activate(&bench, two, Change::Activate).await;
    assert_eq!(how(&bench).await, Some((Ending::Promoted, false)), "its verdicts hold");
    begun(&bench, three, Some(Bounds::default())).await;
    activate(&bench, one, Change::Rollback).await;
    assert_eq!(how(&bench).await, Some((Ending::Superseded, true)));
    begun(&bench, three, None).await;
    assert!(disable(&bench, one, None).await);
    assert_eq!(how(&bench).await, Some((Ending::Superseded, false)), "a shadow has nothing to put back");
    assert_eq!(bench.ledger.unsettled_trials().await.unwrap().len(), 1);
}

#[tokio::test]
async fn figures_are_added_and_differences_are_the_newest() {
    let (bench, _, two) = with_versions().await;
    let tenant = bench.tenant("acme");
    let row = begun(&bench, two, None).await;
    let difference = |n: u32| Difference {
        at: bench.now(),
        delivery: DeliveryId::from_bytes([1; 16]),
        attempt: n,
        from: Told { said: Said::Retryable, why: Some("http_503".into()) },
        to: Told { said: Said::Terminal, why: None },
        request: n.is_multiple_of(2),
    };
    let most = u32::try_from(DIFFERENCES_MAX).unwrap();
    for round in 0..3 {
        let pairs = [((Said::Retryable, Said::Terminal), 30), ((Said::Delivered, Said::Delivered), 10)];
        let more = Compared { pairs: pairs.into_iter().collect(), same: 10, requests: 15, left_out: 2 };
        let differences = (0..30).map(|n| difference(round * 30 + n)).collect();
        bench.ledger.note_trial(tenant, row.id, Noted::Shadow { more, differences }).await.unwrap();
    }
    let rows = bench.ledger.differences(tenant, row.id).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.attempt).collect::<Vec<_>>(), (90 - most..90).rev().collect::<Vec<_>>());
    assert_eq!(rows[0], difference(89));
    assert_eq!(bench.ledger.differences(bench.tenant("globex"), row.id).await.unwrap(), []);
    let Course::Shadow(compared) = newest(&bench).await.course else { panic!("a shadow") };
    assert_eq!((compared.calls(), compared.same, compared.requests, compared.left_out), (120, 30, 45, 6));
    let (active, shadow) = compared.sides();
    assert_eq!((active.retryable, active.delivered, shadow.terminal), (90, 30, 90));

    assert!(end(&bench, row.id, Ending::Stopped).await.is_some());
    assert!(end(&bench, row.id, Ending::Stopped).await.is_none(), "once");
    let canary = begun(&bench, two, Some(Bounds::default())).await;
    let counts = Counts { delivered: 3, faults: 1, ..Counts::default() };
    let window = Window { calls: 8, faults: 2, terminal: 0, faults_in_a_row: 1 };
    for _ in 0..2 {
        let noted = Noted::Canary { canary: counts, active: Counts::default(), window };
        bench.ledger.note_trial(tenant, canary.id, noted).await.unwrap();
    }
    let doubled = Counts { delivered: 6, faults: 2, ..Counts::default() };
    let halves = Halves { canary: doubled, active: Counts::default(), window };
    let bench = bench.restart().await;
    assert_eq!(newest(&bench).await.course, Course::Canary { bounds: Bounds::default(), halves });
}

#[tokio::test]
async fn trials_are_bounded_and_keep_their_versions() {
    let (bench, one, two) = with_versions().await;
    for _ in 0..TRIALS_MAX + 5 {
        let row = begun(&bench, two, None).await;
        let more = Compared { pairs: [((Said::Sent, Said::Fault), 1)].into(), ..Compared::default() };
        let told = Told { said: Said::Fault, why: None };
        let (at, delivery) = (bench.now(), DeliveryId::from_bytes([1; 16]));
        let row_of = Difference { at, delivery, attempt: 1, from: told.clone(), to: told, request: false };
        let noted = Noted::Shadow { more, differences: vec![row_of] };
        bench.ledger.note_trial(bench.tenant("acme"), row.id, noted).await.unwrap();
        end(&bench, row.id, Ending::Stopped).await.unwrap();
    }
    let count = |table: &str| -> u32 {
        bench.raw().query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    };
    let most = u32::try_from(TRIALS_MAX).unwrap();
    assert_eq!((count("plugin_trial"), count("plugin_trial_difference")), (most, most));
    // The version of a running trial makes no room for others, old as it is.
    let row = begun(&bench, two, None).await;
    for n in 0..u32::try_from(VERSIONS_MAX).unwrap() + 5 {
        ready(&bench, 100 + n).await;
    }
    let history = bench.ledger.plugin_history(bench.tenant("acme"), &name("rules")).await.unwrap();
    assert_eq!(history.versions.len(), VERSIONS_MAX);
    assert!(history.version(two).is_some() && history.version(one).is_some());
    assert_eq!(newest(&bench).await.id, row.id);
}

/// A delivery whose only attempt is made by `version` and ends so.
async fn judged(bench: &mut Bench, record: AttemptRecord, reason: &'static str) -> DeliveryId {
    let claimed = bench.start("billing").await;
    bench.settle_as(claimed.lease, record, dead(reason)).await;
    claimed.lease.delivery
}

async fn state(bench: &Bench, id: DeliveryId) -> DeliveryState {
    bench.detail(id).await.delivery.state
}

#[tokio::test]
async fn what_a_canary_left_dead_is_put_back_once() {
    let (mut bench, one, two) = with_versions().await;
    let before = judged(&mut bench, by(two), "suspended").await;
    bench.clock.advance(Duration::from_secs(1));
    let trial = begun(&bench, two, Some(Bounds::default())).await;
    let mine = judged(&mut bench, by(two), "suspended").await;
    let fault = judged(&mut bench, AttemptRecord { status: None, ..by(two) }, "plugin_fault").await;
    let others = judged(&mut bench, by(one), "suspended").await;
    let ambiguous = judged(&mut bench, AttemptRecord { ambiguous: true, ..by(two) }, "ambiguous").await;
    let at = bench.now().plus(Duration::from_secs(30));
    let expiring = hookgate::verify::Publication { expires_at: Some(at), ..publication("t", None, "x") };
    bench.publish(expiring, &["+billing"]).await;
    let born = bench.births.try_recv().unwrap();
    let late = born.lease.delivery;
    bench.settle_as(born.lease, by(two), dead("suspended")).await;
    // Seen by the canary and not judged last by it.
    let redriven = judged(&mut bench, by(two), "suspended").await;
    let redrive = hookgate::ledger::Redrive {
        tenant: bench.tenant("acme"),
        delivery: redriven,
        note: None,
        payload: None,
        request: None,
    };
    bench.ledger.redrive(redrive, bench.now()).await.unwrap();
    let claimed = bench.claim("billing", 1).await.remove(0);
    bench.settle_as(claimed.lease, by(one), dead("gone")).await;
    let waiting: Claimed = bench.start("billing").await;
    let due = bench.now().plus(Duration::from_secs(600));
    bench.settle_as(waiting.lease, by(two), retry(due)).await;

    bench.clock.advance(Duration::from_secs(60));
    let ended = end(&bench, trial.id, Ending::RolledBack).await.unwrap();
    assert_eq!(bench.ledger.unsettled_trials().await.unwrap(), std::slice::from_ref(&ended));
    // Found again by the next process, that has been told nothing.
    let bench = bench.restart().await;
    let ended = bench.ledger.unsettled_trials().await.unwrap().remove(0);
    assert_eq!(put_back(&bench, &ended, &["billing"]).await, 2);
    for id in [mine, fault] {
        let row = bench.detail(id).await.delivery;
        assert_eq!((row.state, row.generation, row.reason), (DeliveryState::Pending, 2, None));
        let note = row.note.unwrap();
        assert!(note.contains(&two.to_string()) && note.ends_with("was rolled back (20 faults in a row)"), "{note}");
    }
    for id in [before, others, ambiguous, late, redriven] {
        assert_eq!(state(&bench, id).await, DeliveryState::Dead, "{id}");
    }
    // What waits by its word need not wait, and has its budget back.
    let row = bench.detail(waiting.lease.delivery).await.delivery;
    assert_eq!((row.due_at, row.generation), (Some(bench.now()), 1));
    let counted = |bench: &Bench| -> u32 {
        let sql = "SELECT counted FROM delivery WHERE id = ?";
        bench.raw().query_row(sql, [waiting.lease.delivery.to_bytes()], |row| row.get(0)).unwrap()
    };
    assert_eq!(counted(&bench), 0);

    assert_eq!(put_back(&bench, &ended, &["billing"]).await, 0, "once");
    // Where nobody holds it, what may have been received is put back, too.
    assert_eq!(put_back(&bench, &ended, &[]).await, 1);
    assert_eq!(state(&bench, ambiguous).await, DeliveryState::Pending);
    let (row, gauges) = (newest(&bench).await.ended.unwrap(), bench.ledger.gauges());
    assert_eq!((row.put_back, row.unsettled), (3, true));
    assert_eq!((gauges.dead, gauges.pending), (4, 4));

    // The version in use is the judge now, and its word holds.
    for claimed in bench.claim("billing", 10).await {
        bench.settle_as(claimed.lease, terminal(one), dead("suspended")).await;
    }
    assert_eq!(put_back(&bench, &ended, &[]).await, 0);
    bench.ledger.settle_trial(bench.tenant("acme"), trial.id).await.unwrap();
    assert_eq!(bench.ledger.unsettled_trials().await.unwrap(), []);
    assert_eq!(bench.ledger.gauges().dead, 8);
}

#[tokio::test]
async fn what_is_not_of_its_share_is_none_of_its_business() {
    let (mut bench, _, two) = with_versions().await;
    let (tenant, plugin) = (bench.tenant("acme"), name("rules"));
    let canary = Some(Bounds::default());
    let new = NewTrial { tenant, plugin, version: two, share: share("50%"), canary, by: "anna".into() };
    let Begun::Done(trial) = bench.ledger.begin_trial(new, bench.now()).await.unwrap() else { panic!("it began") };
    let mut all = Vec::new();
    for _ in 0..40 {
        all.push(judged(&mut bench, by(two), "suspended").await);
    }
    let ended = end(&bench, trial.id, Ending::Stopped).await.unwrap();
    let of_share = all.iter().filter(|id| trial.share.takes(trial.id, **id)).count() as u64;
    assert!((5..=35).contains(&of_share), "{of_share}");
    assert_eq!(put_back(&bench, &ended, &[]).await, of_share);
}

#[tokio::test]
async fn more_than_a_page_is_put_back() {
    let (mut bench, _, two) = with_versions().await;
    let trial = begun(&bench, two, Some(Bounds::default())).await;
    for _ in 0..450 {
        judged(&mut bench, by(two), "suspended").await;
    }
    let ended = end(&bench, trial.id, Ending::Stopped).await.unwrap();
    assert_eq!(put_back(&bench, &ended, &[]).await, 450);
    assert_eq!((bench.ledger.gauges().dead, bench.ledger.gauges().pending), (0, 450));
}
