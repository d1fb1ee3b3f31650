//! Restarts, crashes, damage, and a disk that is full.

use crate::bench::{Bench, START, WINDOW, delivered, record, retry, settings};
use crate::support::{name, publication};
use hookgate::clock::Timestamp;
use hookgate::delivery::DeliveryState;
use hookgate::ledger::{Accepted, DeliveryFilter, LedgerError, PageRequest, Retention, Settled};
use hookgate::secret::Secret;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

fn refused(opened: Result<Bench, LedgerError>) -> String {
    match opened.err() {
        Some(LedgerError::Open { problem, remedy }) => format!("{problem}; {remedy}"),
        other => panic!("it should not open: {other:?}"),
    }
}

#[tokio::test]
async fn nothing_is_lost_by_a_crash() {
    let mut bench = Bench::new().await;
    let born = bench.start("billing").await;
    let (_, waiting) = bench.accept("w", &["crm"]).await;
    let before = bench.ledger.gauges();
    let after = bench.copy_as_after_a_crash().await;
    let gauges = after.ledger.gauges();
    assert_eq!((gauges.pending, gauges.in_flight, gauges.dead), (before.pending, before.in_flight, before.dead));
    let taken = after.ledger.rescue(Timestamp::MAX, 10, after.now()).await.unwrap();
    assert_eq!(taken.iter().map(|t| t.delivery).collect::<Vec<_>>(), [born.lease.delivery]);
    assert_eq!(after.settle(born.lease, delivered()).await, Settled::LeaseLost);
    let settled = after.settle_as(taken[0], record("interrupted", None), retry(after.now())).await;
    assert_eq!(settled, Settled::Stored);
    let again = after.claim("billing", 1).await.remove(0);
    assert_eq!((again.lease.delivery, again.lease.number), (born.lease.delivery, 2));
    assert_eq!(after.claim("crm", 1).await[0].lease.delivery, waiting[0]);
}

/// Copies taken while events pour in: whatever was acknowledged before a copy was begun is in it.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_is_in_every_later_copy() {
    let bench = Arc::new(Bench::new().await);
    for round in 0..5 {
        let mut acknowledged = Vec::new();
        for n in 0..40 {
            let accept = bench.acceptance(publication("t", Some(&format!("{round}-{n}")), "x"), &["billing"]);
            let ledger = Arc::clone(&bench.ledger);
            acknowledged.push(tokio::spawn(async move { ledger.accept(accept).await.unwrap() }));
        }
        let mut events = Vec::new();
        for task in acknowledged {
            let Accepted::New(id) = task.await.unwrap() else { panic!() };
            events.push(id);
        }
        let copy = bench.copy_as_after_a_crash().await;
        for id in events {
            let event = copy.ledger.event(copy.tenant("acme"), id).await.unwrap().expect("an acknowledged event");
            assert_eq!(event.deliveries.unwrap().len(), 1);
        }
        assert_eq!(copy.ledger.gauges().pending, (round + 1) * 40);
    }
}

#[tokio::test]
async fn the_right_key_and_no_other() {
    let bench = Bench::new().await;
    bench.accept("x", &["billing"]).await;
    let (path, dir) = (bench.path.clone(), Arc::clone(&bench.dir));
    drop(bench);
    let key_file = path.parent().unwrap().join("master-key");
    let key = std::fs::read_to_string(&key_file).unwrap();
    assert_eq!(std::fs::metadata(&key_file).unwrap().permissions().mode() & 0o777, 0o600);

    let mut other = settings(&path);
    other.master_key = Some(Secret::new([0x11; 32]));
    let error = refused(Bench::try_open(other, Arc::clone(&dir), START).await);
    assert!(
        error.contains("not the one this ledger was made with") && error.contains("HOOKGATE_MASTER_KEY"),
        "{error}"
    );

    std::fs::remove_file(&key_file).unwrap();
    let error = refused(Bench::try_open(settings(&path), Arc::clone(&dir), START).await);
    assert!(error.contains("missing") && error.contains("master-key"), "{error}");
    assert!(!key_file.exists(), "no new key is made for an old ledger");

    let mut right = settings(&path);
    right.master_key = Some(Secret::new(hex::decode(key.trim()).unwrap()));
    let bench = Bench::open(right, dir, START).await;
    assert_eq!(&bench.claim("billing", 1).await[0].event.body[..], b"x");
}

#[tokio::test]
async fn one_process_at_a_time() {
    let bench = Bench::new().await;
    let error = refused(Bench::try_open(settings(&bench.path), Arc::clone(&bench.dir), START).await);
    assert!(error.contains("another process"), "{error}");
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_left_as_it_is() {
    let bench = Bench::new().await;
    let (path, dir) = (bench.path.clone(), Arc::clone(&bench.dir));
    bench.ledger.close().await.unwrap();
    drop(bench);
    let raw = rusqlite::Connection::open(&path).unwrap();
    let version: u32 = raw.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    raw.pragma_update(None, "user_version", version + 1).unwrap();
    drop(raw);
    let error = refused(Bench::try_open(settings(&path), dir, START).await);
    assert!(error.contains("newer hookgate"), "{error}");
}

#[tokio::test]
async fn somebody_elses_database_is_refused_and_left_as_it_is() {
    let bench = Bench::new().await;
    let (path, dir) = (bench.path.clone(), Arc::clone(&bench.dir));
    bench.ledger.close().await.unwrap();
    drop(bench);
    rusqlite::Connection::open(&path).unwrap().pragma_update(None, "application_id", 7).unwrap();
    let error = refused(Bench::try_open(settings(&path), dir, START).await);
    assert!(error.contains("no ledger of this program") && error.contains("server.ledger"), "{error}");
}

#[tokio::test]
async fn an_older_schema_is_brought_up_with_what_is_in_it() {
    let mut bench = Bench::new().await;
    let (path, dir, endpoint) = (bench.path.clone(), Arc::clone(&bench.dir), bench.endpoint("billing"));
    let born = bench.start("billing").await;
    bench.settle(born.lease, retry(bench.now().plus(WINDOW))).await;
    let (tenant, rules) = (bench.tenant("acme"), name("rules"));
    let version = bench.ledger.plugin_version(tenant, &rules, [7; 32], bench.now()).await.unwrap();
    let keyed = || publication("test", Some("k"), "keyed");
    let Accepted::New(first) = bench.publish(keyed(), &["crm"]).await else { panic!("the key is new") };
    bench.ledger.close().await.unwrap();
    drop(bench);
    let raw = rusqlite::Connection::open(&path).unwrap();
    raw.execute_batch(
        "CREATE TABLE dedup_of_old (seq INTEGER PRIMARY KEY, digest BLOB NOT NULL, content BLOB, event BLOB NOT NULL, \
         body_digest BLOB NOT NULL, until INTEGER NOT NULL) STRICT; \
         INSERT INTO dedup_of_old SELECT seq, substr(entries, 1, 16), NULL, substr(entries, 17, 16), \
         substr(entries, 33, 16), 1790000000000 FROM dedup_recent; \
         INSERT INTO dedup_of_old VALUES (100, x'00112233445566778899aabbccddeeff', \
         x'ff112233445566778899aabbccddeeff', zeroblob(16), zeroblob(16), 1); \
         DROP TABLE dedup_recent; ALTER TABLE dedup_of_old RENAME TO dedup_recent; DROP TABLE birth; \
         DROP TABLE alert; DROP TABLE endpoint_change; DROP INDEX event_deadline; DROP INDEX delivery_dead_since; \
         UPDATE endpoint SET status = 1, why = 'operator' WHERE name = 'audit'; \
         DROP INDEX delivery_age; DROP TABLE redrive; DROP TABLE IF EXISTS rejection; \
         ALTER TABLE source DROP COLUMN adopted_at; ALTER TABLE source DROP COLUMN secret; \
         DROP TABLE answer; ALTER TABLE revision DROP COLUMN note; ALTER TABLE revision DROP COLUMN made_at; \
         DROP TABLE operation; DROP INDEX delivery_bulk; ALTER TABLE delivery DROP COLUMN bulk; \
         DROP TABLE resend; DROP INDEX delivery_again; ALTER TABLE delivery DROP COLUMN again_of; \
         ALTER TABLE delivery DROP COLUMN replayed; ALTER TABLE delivery DROP COLUMN made_at; \
         DROP TABLE plugin_trial; DROP TABLE plugin_trial_difference; DROP TABLE plugin_activation; ALTER TABLE plugin_version DROP COLUMN uploaded_by; \
         ALTER TABLE plugin_version DROP COLUMN uploaded_at; ALTER TABLE plugin_version DROP COLUMN bytes; \
         ALTER TABLE plugin_version DROP COLUMN findings; ALTER TABLE plugin_version DROP COLUMN why; \
         ALTER TABLE plugin_version DROP COLUMN state; ALTER TABLE endpoint DROP COLUMN tripped_ms; \
         ALTER TABLE endpoint DROP COLUMN tripped_until; ALTER TABLE endpoint DROP COLUMN tripped_at; \
         ALTER TABLE endpoint DROP COLUMN alerted_at; ALTER TABLE endpoint DROP COLUMN failing_since; \
         ALTER TABLE endpoint DROP COLUMN failures; \
         DROP TABLE tally; DROP TABLE tally_note; DROP TABLE endpoint_closing; \
         UPDATE endpoint SET status = 2, why = 'gone' WHERE name = 'audit'; \
         DROP INDEX event_coalesced; DROP TABLE coalescing; \
         DROP TABLE ordered; ALTER TABLE event DROP COLUMN ordering_key; ALTER TABLE event DROP COLUMN coalesce_key; \
         ALTER TABLE event DROP COLUMN superseded_by; ALTER TABLE event DROP COLUMN idempotency_key; \
         ALTER TABLE delivery DROP COLUMN ordering; ALTER TABLE delivery DROP COLUMN out_of_order; \
         ALTER TABLE delivery DROP COLUMN leased_for; ALTER TABLE endpoint DROP COLUMN scrub; \
         PRAGMA user_version = 1",
    )
    .unwrap();
    drop(raw);
    let bench = Bench::open(settings(&path), dir, START).await;
    let outlived = bench.ledger.outlived(vec![(endpoint, START)], 9, START).await.unwrap();
    assert_eq!(outlived.iter().map(|o| o.delivery).collect::<Vec<_>>(), [born.lease.delivery]);
    let paused = "SELECT count(*) FROM endpoint_change c JOIN endpoint e ON e.id = c.endpoint WHERE e.name = 'audit'";
    let known: u32 = bench.raw().query_row(paused, [], |row| row.get(0)).unwrap();
    assert_eq!(known, 1, "since when it is paused counts from the upgrade");
    let history = bench.ledger.plugin_history(tenant, &rules).await.unwrap();
    let kept: Vec<_> = history.versions.iter().map(|row| (row.id, row.digest, row.uploaded.is_none())).collect();
    assert_eq!(kept, [(version, [7; 32], true)], "as the file's");
    assert_eq!(bench.publish(keyed(), &["crm"]).await, Accepted::Duplicate(first), "what came before is known");
    let read = |row: &rusqlite::Row<'_>| row.get::<_, Vec<u8>>(0);
    let entry = bench.raw().query_row("SELECT entries FROM dedup_recent WHERE seq = 100", [], read).unwrap();
    let both = [&entry[..1], &entry[48..58]].concat();
    let closed = bench.raw().query_row("SELECT count(*) FROM endpoint_closing WHERE status = 2", [], |row| row.get(0));
    assert_eq!(closed, Ok(1), "what is closed is closed since the upgrade at least");
    assert_eq!((entry.len(), both), (73, [&[0x00][..], &1_i64.to_be_bytes(), &[1, 0xff]].concat()));
}

#[tokio::test]
async fn loose_rights_are_refused() {
    let bench = Bench::new().await;
    let (path, dir) = (bench.path.clone(), Arc::clone(&bench.dir));
    drop(bench);
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    let error = refused(Bench::try_open(settings(&path), dir, START).await);
    assert!(error.contains("chmod 600"), "{error}");
}

#[tokio::test]
async fn files_that_are_no_ledger_are_refused() {
    for (content, what) in [(vec![7; 20_000], "garbage"), (b"SQLite format 3\0".to_vec(), "a cut header")] {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let data = dir.path().join("data");
        std::fs::create_dir(&data).unwrap();
        std::fs::set_permissions(&data, PermissionsExt::from_mode(0o700)).unwrap();
        let path = data.join("ledger.db");
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let mut settings = settings(&path);
        settings.master_key = Some(Secret::new([0x11; 32]));
        let error = refused(Bench::try_open(settings, dir, START).await);
        assert!(error.contains("cannot be opened"), "{what}: {error}");
    }
}

/// The log is cut off at every kind of place: the ledger opens with what is whole, or says that it cannot.
#[tokio::test]
async fn a_torn_log_opens_or_is_refused_and_never_panics() {
    let bench = Bench::new().await;
    for n in 0..5 {
        bench.accept(&format!("{n}"), &["billing"]).await;
    }
    let files = ["ledger.db", "ledger.db-wal", "master-key"];
    let from = bench.path.parent().unwrap();
    let log_bytes = std::fs::metadata(from.join(files[1])).unwrap().len();
    let mut most = 0;
    for cut in [0, 1, 31, 32, 33, 4_000, log_bytes / 2, log_bytes - 5_000, log_bytes - 1, log_bytes] {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let data = dir.path().join("data");
        std::fs::create_dir(&data).unwrap();
        std::fs::set_permissions(&data, PermissionsExt::from_mode(0o700)).unwrap();
        for file in files {
            std::fs::copy(from.join(file), data.join(file)).unwrap();
        }
        let log = std::fs::OpenOptions::new().write(true).open(data.join(files[1])).unwrap();
        log.set_len(cut).unwrap();
        match Bench::try_open(settings(&data.join(files[0])), dir, START).await {
            Ok(opened) => most = most.max(opened.ledger.gauges().pending),
            Err(LedgerError::Open { .. }) => assert!(cut < log_bytes),
            Err(other) => panic!("cut at {cut}: {other}"),
        }
    }
    assert_eq!(most, 5, "the whole log has all of it");
}

#[tokio::test]
async fn content_is_not_readable_on_the_disk() {
    let mut bench = Bench::new().await;
    let canary = "canary-4711-canary";
    bench.publish(publication("t", None, canary), &["+billing"]).await;
    let born = bench.births.try_recv().unwrap();
    let mut seen = record("answered", Some(200));
    seen.detail = Some(canary.into());
    bench.settle_as(born.lease, seen, delivered()).await;
    bench.ledger.close().await.unwrap();
    for file in std::fs::read_dir(bench.path.parent().unwrap()).unwrap() {
        let bytes = std::fs::read(file.as_ref().unwrap().path()).unwrap();
        assert!(!bytes.windows(canary.len()).any(|w| w == canary.as_bytes()), "{file:?}");
    }
}

#[tokio::test]
async fn a_row_that_does_not_authenticate_is_set_aside_and_the_rest_go_on() {
    let bench = Bench::new().await;
    let acme = bench.tenant("acme");
    let (_, first) = bench.accept("first", &["billing"]).await;
    let (event, bad) = bench.accept("bad", &["billing"]).await;
    let (_, last) = bench.accept("last", &["billing"]).await;
    let changed = bench
        .raw()
        .execute(
            "UPDATE payload SET content = (SELECT content FROM payload ORDER BY id LIMIT 1) WHERE event = ?",
            [event.to_bytes()],
        )
        .unwrap();
    assert_eq!(changed, 1, "another row's content, under the same key");
    let claimed = bench.claim("billing", 5).await;
    assert_eq!(claimed.iter().map(|c| c.lease.delivery).collect::<Vec<_>>(), [first[0], last[0]]);
    assert_eq!(bench.slots.in_flight(), 2);
    let row = bench.detail(bad[0]).await;
    assert_eq!((row.delivery.state, row.delivery.reason.as_deref()), (DeliveryState::Dead, Some("quarantined")));
    assert_eq!(row.attempts.len(), 1);
    let body = bench.ledger.event_body(acme, event).await;
    assert!(matches!(body, Err(LedgerError::Quarantined(_))), "{body:?}");
    let gauges = bench.ledger.gauges();
    assert_eq!((gauges.pending, gauges.in_flight, gauges.dead), (0, 2, 1));
}

/// The database may grow no further: events are turned away, nothing acknowledged is lost, and it goes on by itself as
/// soon as there is room.
#[tokio::test]
async fn a_full_disk_turns_events_away_and_goes_on_when_there_is_room() {
    let mut bench = Bench::with(|s| s.pages_max = Some(120)).await;
    let mut over = Vec::new();
    let mut accepted = 0;
    let refused = loop {
        let accept = bench.acceptance(publication("t", None, vec![b'x'; 20_000]), &["+billing"]);
        match bench.ledger.accept(accept).await {
            Ok(_) => accepted += 1,
            Err(error) => break error,
        }
        let born = bench.births.try_recv().unwrap();
        if over.len() < 5 {
            assert_eq!(bench.settle(born.lease, delivered()).await, Settled::Stored);
            over.push(born.lease.delivery);
        }
        assert!(accepted < 1_000);
    };
    assert!(matches!(&refused, LedgerError::Unavailable(why) if why.contains("full")), "{refused}");
    assert!(accepted > 10);
    let gauges = bench.ledger.gauges();
    assert_eq!((gauges.pending, gauges.in_flight), (0, accepted - 5));
    assert_eq!(bench.slots.in_flight(), 0, "whoever was turned away gave its slot back");
    let page = PageRequest { limit: 200, cursor: None };
    let listed = bench.ledger.deliveries(bench.tenant("acme"), &DeliveryFilter::default(), &page).await.unwrap();
    assert_eq!(listed.items.len() as u64, accepted);

    let day = std::time::Duration::from_secs(86_400);
    let retention = Retention { payloads: day, rows: day * 9, tenants: BTreeMap::new(), batch_rows_max: 1_000 };
    let now = bench.clock.advance(day);
    assert_eq!(bench.ledger.prune(&retention, now).await.unwrap().payloads_erased, 5);
    bench.accept("room again", &["billing"]).await;
    let bench = bench.restart().await;
    assert_eq!((bench.ledger.gauges().pending, bench.ledger.gauges().in_flight), (1, accepted - 5));
}

#[tokio::test]
async fn a_damaged_table_is_found_in_the_background_and_stops_everything() {
    let bench = Bench::new().await;
    for _ in 0..50 {
        bench.accept("x", &["billing"]).await;
    }
    let root: u32 = bench
        .raw()
        .query_row("SELECT rootpage FROM sqlite_schema WHERE name = 'attempt'", [], |row| row.get(0))
        .unwrap();
    bench.ledger.close().await.unwrap();
    let (path, dir) = (bench.path.clone(), Arc::clone(&bench.dir));
    drop(bench);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = (root as usize - 1) * 8192;
    bytes[at..at + 8192].fill(0x5a);
    std::fs::write(&path, bytes).unwrap();
    // The check may be done before the first verb, or after it.
    let why = match Bench::try_open(settings(&path), dir, START).await {
        Err(LedgerError::Stopped(why)) => why,
        Err(other) => panic!("{other}"),
        Ok(bench) => {
            let stopped = tokio::time::timeout(std::time::Duration::from_secs(60), bench.sqlite.stopped());
            let why = stopped.await.unwrap();
            let refused = bench.ledger.accept(bench.acceptance(publication("t", None, "x"), &["billing"])).await;
            assert!(matches!(refused, Err(LedgerError::Stopped(_))), "{refused:?}");
            assert!(matches!(bench.ledger.probe().await, Err(LedgerError::Stopped(_))));
            why
        }
    };
    assert!(why.contains("attempt"), "{why}");
}

#[tokio::test]
async fn the_log_is_checkpointed_when_nothing_is_written_any_more() {
    let bench = Bench::new().await;
    for _ in 0..50 {
        bench.accept("x", &["billing"]).await;
    }
    let frames = || -> (i64, i64) {
        bench.raw().query_row("PRAGMA wal_checkpoint(NOOP)", [], |row| Ok((row.get(1)?, row.get(2)?))).unwrap()
    };
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        let (log, done) = frames();
        if log == done {
            break;
        }
        assert!(std::time::Instant::now() < until, "{log} frames, {done} of them checkpointed");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await; // poll: asks again
    }
}
