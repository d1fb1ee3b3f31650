//! Batches that go wrong in the middle: what only the writer's own verbs can bring about.

use super::fault::Fault;
use super::writer::{Verb, Writer};
use super::{Settings, SqliteLedger, open};
use crate::clock::{ClockWatch, SystemClock, Timestamp};
use crate::delivery::{DecidedBy, Disposition, Reason};
use crate::entropy::SystemEntropy;
use crate::ledger::{
    Accept, Accepted, AttemptRecord, Claimed, Declaration, DeclaredEndpoint, DeclaredTenant, Directory, EndpointCaps,
    EndpointKey, LedgerError, NewDelivery, Queue as _, Records as _, Settled, Settlement, Slots, Taken, TenantKey,
    Wakes,
};
use crate::secret::Secret;
use crate::verify::{Grant, Publication};
use rusqlite::ffi;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

const NOW: Timestamp = Timestamp::from_millis(1_760_000_000_000);

/// Writes, then fails as told.
struct Poison(c_int);

impl Verb for Poison {
    type Done = ();

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<(), Fault> {
        w.connection.execute("INSERT INTO meta (name, value) VALUES ('poison', x'')", [])?;
        w.effects.pending += 100;
        Err(rusqlite::Error::SqliteFailure(ffi::Error::new(self.0), None).into())
    }
}

async fn a_ledger() -> (Arc<SqliteLedger>, Directory, tempfile::TempDir) {
    let (ledger, directory, _births, _slots, dir) = a_ledger_with_slots().await;
    (ledger, directory, dir)
}

type Births = mpsc::UnboundedReceiver<Claimed>;

async fn a_ledger_with_slots() -> (Arc<SqliteLedger>, Directory, Births, Arc<Slots>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let wakes = Arc::new(Wakes::default());
    let slots = Arc::new(Slots::new(Arc::clone(&wakes)));
    let settings = Settings { ballast_bytes: 0, ..Settings::new(dir.path().join("l/ledger.db")) };
    let clock = Arc::new(ClockWatch::new(Arc::new(SystemClock)));
    let (ledger, births) = open(settings, Arc::clone(&slots), wakes, Arc::new(SystemEntropy), clock).unwrap();
    let endpoint =
        DeclaredEndpoint { name: "e".parse().unwrap(), host: "e.example".into(), generated_secret: None, scrub: false };
    let tenant = DeclaredTenant { name: "t".parse().unwrap(), sources: vec![], endpoints: vec![endpoint] };
    let directory = ledger.declare(Declaration { tenants: vec![tenant] }, NOW).await.unwrap();
    (ledger, directory, births, slots, dir)
}

fn acceptance(directory: &Directory, key: &str) -> Accept {
    let (name, tenant) = directory.tenants.first_key_value().unwrap();
    let grant = Grant::by_token(&Secret::new("x"), b"x", name).unwrap();
    let publication = Publication {
        event_type: "t".into(),
        content_type: "text/plain".into(),
        body: "x".into(),
        key: Some(key.into()),
        deliver_at: None,
        expires_at: None,
        deadline: None,
        relation: None,
    };
    let endpoint = tenant.endpoints.first_key_value().unwrap().1.key;
    Accept {
        tenant: tenant.key,
        source: None,
        event: grant.event(publication, Duration::from_secs(60), NOW),
        deliveries: vec![NewDelivery { endpoint, slot: None, order: None }],
        now: NOW,
    }
}

struct Outcome {
    ledger: Arc<SqliteLedger>,
    directory: Directory,
    around: [Result<Accepted, LedgerError>; 2],
    poison: Result<(), LedgerError>,
    _dir: tempfile::TempDir,
}

/// Keeps the writer busy until it is told to go on.
struct Block {
    entered: Option<oneshot::Sender<()>>,
    release: std::sync::mpsc::Receiver<()>,
}

impl Verb for Block {
    type Done = ();

    fn apply(&mut self, _w: &mut Writer<'_>) -> Result<(), Fault> {
        self.entered.take().unwrap().send(()).unwrap();
        self.release.recv().unwrap();
        Ok(())
    }
}

/// Two acceptances with a poisoned verb between them, in one batch.
async fn one_batch(code: c_int) -> Outcome {
    let (ledger, directory, dir) = a_ledger().await;
    let (entered, is_busy) = oneshot::channel();
    let (go_on, release) = std::sync::mpsc::channel();
    let block = ledger.ask(Block { entered: Some(entered), release }, 0);
    let then = async {
        is_busy.await.unwrap();
        let a = ledger.accept(acceptance(&directory, "a"));
        let poison = ledger.ask(Poison(code), 0);
        let b = ledger.accept(acceptance(&directory, "b"));
        let all_are_queued = async { go_on.send(()).unwrap() };
        tokio::join!(a, poison, b, all_are_queued)
    };
    let (blocked, (a, poison, b, ())) = tokio::join!(block, then);
    blocked.unwrap();
    Outcome { ledger, directory, around: [a, b], poison, _dir: dir }
}

#[tokio::test]
async fn a_verb_that_fails_spoils_no_other() {
    let Outcome { ledger, directory, around, poison, _dir } = one_batch(ffi::SQLITE_CONSTRAINT_CHECK).await;
    assert!(matches!(poison, Err(LedgerError::Unavailable(_))), "{poison:?}");
    let [Ok(Accepted::New(a)), Ok(Accepted::New(b))] = around else { panic!("{around:?}") };
    assert_eq!(ledger.gauges().pending, 2);
    for (key, id) in [("a", a), ("b", b)] {
        assert_eq!(ledger.accept(acceptance(&directory, key)).await.unwrap(), Accepted::Duplicate(id));
    }
    let left = ledger
        .read(|c| {
            let sql = "SELECT (SELECT count(*) FROM meta WHERE name = 'poison'), group_concat(sequence) \
                       FROM (SELECT sequence FROM delivery ORDER BY sequence)";
            Ok(c.query_row(sql, [], |row| Ok((row.get::<_, u32>(0)?, row.get::<_, String>(1)?)))?)
        })
        .await
        .unwrap();
    assert_eq!(left, (0, "1,2".to_owned()), "nothing of it stays, and no number is lost");
}

#[tokio::test]
async fn a_full_disk_undoes_the_batch_and_nothing_else() {
    let Outcome { ledger, directory, around, poison, _dir } = one_batch(ffi::SQLITE_FULL).await;
    assert!(matches!(poison, Err(LedgerError::Unavailable(_))), "{poison:?}");
    for refused in &around {
        assert!(matches!(refused, Err(LedgerError::Unavailable(_))), "{refused:?}");
    }
    assert_eq!(ledger.gauges().pending, 0);
    for key in ["a", "b"] {
        let again = ledger.accept(acceptance(&directory, key)).await.unwrap();
        assert!(matches!(again, Accepted::New(_)), "{key}: {again:?}");
    }
    assert_eq!(ledger.gauges().pending, 2);
}

#[tokio::test]
async fn a_failed_flush_acknowledges_nothing_and_stops_everything() {
    let Outcome { ledger, directory, around, poison, _dir } = one_batch(ffi::SQLITE_IOERR_FSYNC).await;
    assert!(matches!(poison, Err(LedgerError::Stopped(_))), "{poison:?}");
    for refused in &around {
        assert!(matches!(refused, Err(LedgerError::Stopped(_))), "{refused:?}");
    }
    let later = ledger.accept(acceptance(&directory, "later")).await;
    assert!(matches!(later, Err(LedgerError::Stopped(_))), "{later:?}");
    assert!(!ledger.stopped().await.is_empty(), "the process can see it");
}

fn with_room(directory: &Directory, slots: &Slots) -> (TenantKey, EndpointKey) {
    let tenant = directory.tenants.first_key_value().unwrap().1;
    let (tenant, endpoint) = (tenant.key, tenant.endpoints.first_key_value().unwrap().1.key);
    let lease_for = Duration::from_secs(60);
    slots.configure(vec![EndpointCaps { endpoint, tenant, concurrency: 9, lease_for, rate: None }], 9, 9);
    (tenant, endpoint)
}

#[tokio::test]
async fn a_full_disk_puts_back_what_was_under_way() {
    let (ledger, directory, mut births, slots, _dir) = a_ledger_with_slots().await;
    let (_, endpoint) = with_room(&directory, &slots);
    for key in ["a", "b"] {
        let mut accept = acceptance(&directory, key);
        let Taken::Slot(slot) = slots.take_for_backlog(endpoint, NOW) else { panic!("no slot") };
        accept.deliveries[0].slot = Some(slot);
        ledger.accept(accept).await.unwrap();
    }
    let (a, b) = (births.recv().await.unwrap().lease, births.recv().await.unwrap().lease);
    let record = AttemptRecord {
        outcome: "answered",
        status: Some(200),
        verdict: None,
        reason: Reason::status(200),
        decided_by: DecidedBy::Builtin,
        duration: Duration::ZERO,
        ambiguous: false,
        plugin_version: None,
        plugin_took: None,
        plugin_log: Vec::new(),
        plugin_log_dropped: 0,
        request: None,
        response: None,
        detail: None,
    };
    let settle = |lease| {
        let decision = Disposition::Delivered { reference: None }.into();
        Arc::new(Settlement { lease, record: record.clone(), decision, pulse: None, now: NOW })
    };
    let (entered, is_busy) = oneshot::channel();
    let (go_on, release) = std::sync::mpsc::channel();
    let block = ledger.ask(Block { entered: Some(entered), release }, 0);
    let then = async {
        is_busy.await.unwrap();
        let settled = ledger.settle(settle(a));
        let poison = ledger.ask(Poison(ffi::SQLITE_FULL), 0);
        let all_are_queued = async { go_on.send(()).unwrap() };
        tokio::join!(settled, poison, all_are_queued)
    };
    let (blocked, (settled, poison, ())) = tokio::join!(block, then);
    blocked.unwrap();
    assert!(matches!((settled, poison), (Err(LedgerError::Unavailable(_)), Err(LedgerError::Unavailable(_)))));
    for lease in [a, b] {
        assert_eq!(ledger.settle(settle(lease)).await.unwrap(), Settled::Stored);
        assert_eq!(ledger.settle(settle(lease)).await.unwrap(), Settled::LeaseLost);
    }
    let left = ledger
        .read(|c| {
            let sql = "SELECT (SELECT count(*) FROM birth), (SELECT count(*) FROM delivery WHERE state = 2)";
            Ok(c.query_row(sql, [], |row| Ok((row.get::<_, u32>(0)?, row.get::<_, u32>(1)?)))?)
        })
        .await
        .unwrap();
    assert_eq!(left, (0, 2));
}

/// That an event went nowhere is never said because its deliveries cannot be written down.
#[tokio::test]
async fn what_is_under_way_is_not_denied_when_nothing_can_be_written() {
    let (ledger, directory, mut births, slots, _dir) = a_ledger_with_slots().await;
    let (tenant, endpoint) = with_room(&directory, &slots);
    let Accepted::New(settled) = ledger.accept(acceptance(&directory, "a")).await.unwrap() else { panic!("new") };
    let mut accept = acceptance(&directory, "b");
    let Taken::Slot(slot) = slots.take_for_backlog(endpoint, NOW) else { panic!("no slot") };
    accept.deliveries[0].slot = Some(slot);
    let Accepted::New(born) = ledger.accept(accept).await.unwrap() else { panic!("new") };
    let delivery = births.recv().await.unwrap().lease.delivery;
    ledger.shared.stop("the disk broke".into());
    let denied = ledger.event(tenant, born).await.map(|event| event.is_some());
    assert!(matches!(denied, Err(LedgerError::Unavailable(_))), "{denied:?}");
    let denied = ledger.delivery(tenant, delivery).await.map(|detail| detail.is_some());
    assert!(matches!(denied, Err(LedgerError::Unavailable(_))), "{denied:?}");
    let event = ledger.event(tenant, settled).await.unwrap().unwrap();
    assert_eq!(event.deliveries.unwrap().len(), 1, "what is written can be read");
}
