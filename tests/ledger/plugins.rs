//! Versions of plugins: uploads, verdicts, what is in use, and the pauses of endpoints that have none.

use crate::bench::Bench;
use crate::support::name;
use hookgate::delivery::{EndpointStatus, PluginVersionId};
use hookgate::ledger::{
    ACTIVATIONS_MAX, Activate, Activated, Change, Disable, EndpointChange, FaultRow, Findings, History, Judgement,
    REJECTED_MAX, Rejection, Upload, Uploaded, VERSIONS_MAX, VersionRow, VersionState,
};
use std::time::Duration;

fn digest(n: u32) -> [u8; 32] {
    let mut digest = [0; 32];
    digest[..4].copy_from_slice(&n.to_be_bytes());
    digest
}

fn findings() -> Findings {
    Findings { transform: true, classify: false, warnings: vec!["told".into()] }
}

fn rejection() -> Rejection {
    Rejection { rule: "exports".into(), finding: "none".into(), remedy: "add one".into() }
}

async fn upload(bench: &Bench, tenant: &str, n: u32) -> Uploaded {
    let upload =
        Upload { tenant: bench.tenant(tenant), plugin: name("rules"), digest: digest(n), bytes: 7, by: "anna".into() };
    bench.ledger.upload_version(upload, bench.now()).await.unwrap()
}

pub async fn compiling(bench: &Bench, n: u32) -> PluginVersionId {
    match upload(bench, "acme", n).await {
        Uploaded::Compile(row) => row.id,
        other => panic!("{other:?}"),
    }
}

async fn judge(bench: &Bench, id: PluginVersionId, judgement: Judgement) -> Option<VersionRow> {
    bench.ledger.judge_version(bench.tenant("acme"), id, judgement).await.unwrap()
}

pub async fn ready(bench: &Bench, n: u32) -> PluginVersionId {
    let id = compiling(bench, n).await;
    assert_eq!(judge(bench, id, Judgement::Ready(findings())).await.unwrap().state, VersionState::Ready);
    id
}

pub async fn activate(bench: &Bench, version: PluginVersionId, what: Change) -> Activated {
    let activate =
        Activate { tenant: bench.tenant("acme"), plugin: name("rules"), version, what, by: "berta".to_owned() };
    bench.ledger.activate_version(activate, bench.now()).await.unwrap()
}

pub async fn disable(bench: &Bench, version: PluginVersionId, fallback: Option<PluginVersionId>) -> bool {
    let faults = FaultRow { kind: "trap".into(), in_a_row: 20 };
    let disable = Disable { tenant: bench.tenant("acme"), plugin: name("rules"), version, faults, fallback };
    bench.ledger.disable_version(disable, bench.now()).await.unwrap()
}

async fn history(bench: &Bench) -> History {
    bench.ledger.plugin_history(bench.tenant("acme"), &name("rules")).await.unwrap()
}

async fn in_use(bench: &Bench) -> Option<PluginVersionId> {
    history(bench).await.active().map(|row| row.id)
}

#[tokio::test]
async fn an_upload_is_compiled_and_judged_once() {
    let bench = Bench::new().await;
    let at = bench.now();
    let id = compiling(&bench, 1).await;
    bench.clock.advance(Duration::from_secs(1));
    match upload(&bench, "acme", 1).await {
        Uploaded::Known(row) => assert_eq!((row.id, row.state), (id, VersionState::Compiling)),
        other => panic!("{other:?}"),
    }
    let row = judge(&bench, id, Judgement::Ready(findings())).await.unwrap();
    let uploaded = row.uploaded.clone().unwrap();
    assert_eq!((uploaded.at, uploaded.by.as_str(), uploaded.bytes), (at, "anna", 7));
    assert_eq!((row.digest, row.findings.clone(), row.created_at), (digest(1), Some(findings()), at));
    assert_eq!(judge(&bench, id, Judgement::Rejected(rejection())).await, None, "the first verdict stands");
    assert!(matches!(upload(&bench, "acme", 1).await, Uploaded::Known(known) if known == row));
    let bench = bench.restart().await;
    assert_eq!(history(&bench).await.versions, [row]);
    assert_eq!(in_use(&bench).await, None, "ready is not in use");
    // The same bytes are one version, for attempts too.
    let version = bench.ledger.plugin_version(bench.tenant("acme"), &name("rules"), digest(1), bench.now()).await;
    assert_eq!(version.unwrap(), id);
}

#[tokio::test]
async fn what_was_refused_gets_another_try_and_only_the_newest_are_kept() {
    let bench = Bench::new().await;
    let first = compiling(&bench, 1).await;
    let row = judge(&bench, first, Judgement::Rejected(rejection())).await.unwrap();
    assert_eq!(row.state, VersionState::Rejected(rejection()));
    assert_eq!(compiling(&bench, 1).await, first, "the same content keeps its id");
    judge(&bench, first, Judgement::Rejected(rejection())).await.unwrap();
    for n in 2..=u32::try_from(REJECTED_MAX).unwrap() + 1 {
        bench.clock.advance(Duration::from_millis(1));
        let id = compiling(&bench, n).await;
        judge(&bench, id, Judgement::Rejected(rejection())).await.unwrap();
    }
    let kept = history(&bench).await.versions;
    assert_eq!(kept.len(), REJECTED_MAX);
    assert!(kept.iter().all(|row| row.id != first), "the oldest went");
    assert!(bench.ledger.needed_contents().await.unwrap().is_empty());
}

#[tokio::test]
async fn versions_of_one_plugin_are_bounded() {
    let bench = Bench::new().await;
    for n in 0..u32::try_from(VERSIONS_MAX).unwrap() {
        compiling(&bench, n).await;
    }
    assert!(matches!(upload(&bench, "acme", 9_999).await, Uploaded::TooMany), "none of them can go");
    assert!(matches!(upload(&bench, "acme", 3).await, Uploaded::Known(_)), "what is there is not counted again");
    assert!(matches!(upload(&bench, "globex", 9_999).await, Uploaded::Compile(_)), "another's are another's");
    assert_eq!(bench.ledger.needed_contents().await.unwrap().len(), VERSIONS_MAX + 1);
}

#[tokio::test]
async fn the_oldest_that_were_not_in_use_lately_make_room() {
    let bench = Bench::new().await;
    let used = [ready(&bench, 0).await, ready(&bench, 1).await];
    for version in used {
        activate(&bench, version, Change::Activate).await;
    }
    for n in 2..u32::try_from(VERSIONS_MAX).unwrap() {
        bench.clock.advance(Duration::from_millis(1));
        ready(&bench, n).await;
    }
    ready(&bench, 9_999).await;
    let found = history(&bench).await;
    assert_eq!(found.versions.len(), VERSIONS_MAX);
    let there = |n: u32| found.versions.iter().any(|row| row.digest == digest(n));
    assert!(there(0) && there(1) && !there(2) && there(3) && there(9_999));
    assert_eq!(found.before().map(|row| row.id), Some(used[0]));
}

#[tokio::test]
async fn what_is_in_use_outlives_a_crash() {
    let bench = Bench::new().await;
    let (one, two) = (ready(&bench, 1).await, ready(&bench, 2).await);
    assert!(matches!(activate(&bench, one, Change::Activate).await, Activated::Done(row) if row.id == one));
    assert!(matches!(activate(&bench, one, Change::Activate).await, Activated::Done(_)), "again is once");
    activate(&bench, two, Change::Activate).await;
    let after = bench.copy_as_after_a_crash().await;
    let found = history(&after).await;
    assert_eq!((found.active().unwrap().id, found.before().unwrap().id), (two, one));
    let told: Vec<_> = found.activations.iter().map(|row| (row.version, row.what, row.by.as_str())).collect();
    assert_eq!(told, [(Some(two), Change::Activate, "berta"), (Some(one), Change::Activate, "berta")]);
    assert!(matches!(activate(&after, one, Change::Rollback).await, Activated::Done(_)));
    assert_eq!(in_use(&after).await, Some(one));
}

#[tokio::test]
async fn what_is_not_ready_is_not_put_into_use() {
    let bench = Bench::new().await;
    let waits = compiling(&bench, 1).await;
    assert!(matches!(activate(&bench, waits, Change::Activate).await, Activated::NotReady(row) if row.id == waits));
    judge(&bench, waits, Judgement::Rejected(rejection())).await;
    assert!(matches!(activate(&bench, waits, Change::Activate).await, Activated::NotReady(_)));
    let of_a_file = bench.ledger.plugin_version(bench.tenant("acme"), &name("rules"), digest(2), bench.now()).await;
    assert!(matches!(activate(&bench, of_a_file.unwrap(), Change::Activate).await, Activated::NotReady(_)));
    // Of another plugin, or of nobody.
    let unknown = PluginVersionId::from_bytes([7; 16]);
    assert_eq!(activate(&bench, unknown, Change::Activate).await, Activated::NotFound);
    let theirs = Activate {
        tenant: bench.tenant("globex"),
        plugin: name("rules"),
        version: ready(&bench, 3).await,
        what: Change::Activate,
        by: "mallory".into(),
    };
    assert_eq!(bench.ledger.activate_version(theirs, bench.now()).await.unwrap(), Activated::NotFound);
    assert!(history(&bench).await.activations.is_empty());
}

#[tokio::test]
async fn faults_take_a_version_out_of_use_and_a_person_puts_it_back() {
    let bench = Bench::new().await;
    let (one, two) = (ready(&bench, 1).await, ready(&bench, 2).await);
    activate(&bench, one, Change::Activate).await;
    activate(&bench, two, Change::Activate).await;
    assert!(disable(&bench, two, Some(one)).await);
    assert!(!disable(&bench, two, Some(one)).await, "once");
    let bench = bench.restart().await;
    let found = history(&bench).await;
    assert_eq!(found.active().map(|row| row.id), Some(one));
    assert_eq!(
        found.version(two).unwrap().state,
        VersionState::Disabled(FaultRow { kind: "trap".into(), in_a_row: 20 })
    );
    let newest = &found.activations[0];
    assert_eq!((newest.what, newest.by.as_str(), newest.version), (Change::Disable, "gateway", Some(one)));
    assert!(disable(&bench, one, None).await);
    assert_eq!(in_use(&bench).await, None);
    assert!(matches!(activate(&bench, two, Change::Activate).await, Activated::Done(_)));
    assert_eq!(history(&bench).await.active().unwrap().state, VersionState::Ready);
    assert!(matches!(upload(&bench, "acme", 1).await, Uploaded::Compile(row) if row.id == one), "another try");
}

#[tokio::test]
async fn changes_are_kept_within_bounds() {
    let bench = Bench::new().await;
    let pair = [ready(&bench, 1).await, ready(&bench, 2).await];
    for n in 0..ACTIVATIONS_MAX + 5 {
        activate(&bench, pair[n % 2], Change::Activate).await;
    }
    let found = history(&bench).await;
    assert_eq!(found.activations.len(), ACTIVATIONS_MAX);
    assert_eq!(found.active().map(|row| row.id), Some(pair[(ACTIVATIONS_MAX + 4) % 2]));
}

#[tokio::test]
async fn a_pause_for_a_plugin_ends_with_its_cause_and_touches_no_other() {
    let bench = Bench::new().await;
    let [billing, crm, audit] = ["billing", "crm", "audit"].map(|endpoint| bench.endpoint(endpoint));
    let change = async |endpoint: &str, change| {
        bench.ledger.change_endpoint(bench.tenant("acme"), &name(endpoint), change, bench.now()).await.unwrap()
    };
    change("crm", EndpointChange::Pause { until: None, why: "operator".into() }).await;
    change("audit", EndpointChange::Disable { why: "operator".into() }).await;
    let (_, ids) = bench.accept("1", &["billing"]).await;
    let why = "plugin_not_ready: upload one".to_owned();
    let held = [billing, crm, audit].map(|endpoint| (endpoint, why.clone())).to_vec();
    bench.ledger.pause_for_plugins(held, Vec::new(), bench.now()).await.unwrap();
    let statuses = async |bench: &Bench| {
        let states = bench.ledger.endpoints(bench.tenant("acme"), bench.now()).await.unwrap();
        states.into_iter().map(|state| (state.name.to_string(), state.status)).collect::<Vec<_>>()
    };
    let paused = |why: &str| EndpointStatus::Paused { until: None, why: why.into() };
    let disabled = EndpointStatus::Disabled { why: "operator".into() };
    let expected = |billing: EndpointStatus| {
        vec![
            ("audit".to_owned(), disabled.clone()),
            ("billing".to_owned(), billing),
            ("crm".to_owned(), paused("operator")),
        ]
    };
    assert_eq!(statuses(&bench).await, expected(paused(&why)));
    assert!(!bench.slots.is_open(billing, bench.now()));
    bench.wakes.take();
    bench.ledger.pause_for_plugins(Vec::new(), vec![billing, crm, audit], bench.now()).await.unwrap();
    assert_eq!(statuses(&bench).await, expected(EndpointStatus::Enabled));
    assert_eq!(bench.wakes.take().get(&billing), Some(&bench.now()), "what waited is looked at now");
    assert_eq!(bench.claim("billing", 1).await[0].lease.delivery, ids[0]);
}
