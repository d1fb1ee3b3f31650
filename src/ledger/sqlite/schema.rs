//! The database file: how it is opened, migrated and checked.

use super::Settings;
use super::fault::{Severity, severity};
use super::shared::Shared;
use crate::ledger::LedgerError;
use rusqlite::{Connection, OpenFlags};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Older write-ahead log code can corrupt a database.
const SQLITE_VERSION_MIN: i32 = 3_051_003;

/// What the first migration marks the file with.
const APPLICATION_ID: i64 = 0x686b_6c31;

/// Each is applied once, in one transaction, in this order; `user_version` counts them.
const MIGRATIONS: &[&str] = &[
    include_str!("migrations/0001_ledger.sql"),
    include_str!("migrations/0002_age.sql"),
    include_str!("migrations/0003_redrive.sql"),
    include_str!("migrations/0004_rejections.sql"),
    include_str!("migrations/0005_adoption.sql"),
    include_str!("migrations/0006_plugins.sql"),
    include_str!("migrations/0007_births.sql"),
    include_str!("migrations/0008_trials.sql"),
    include_str!("migrations/0009_stats.sql"),
    include_str!("migrations/0010_health.sql"),
    include_str!("migrations/0011_answers.sql"),
    include_str!("migrations/0012_keys.sql"),
    include_str!("migrations/0013_pull.sql"),
    include_str!("migrations/0014_operations.sql"),
    include_str!("migrations/0015_alerts.sql"),
    include_str!("migrations/0016_again.sql"),
    include_str!("migrations/0017_scrub.sql"),
];

fn failed(path: &Path, error: &rusqlite::Error) -> LedgerError {
    LedgerError::Open {
        problem: format!("the ledger {} cannot be opened: {error}", path.display()),
        remedy: "check its rights and the disk; if it is damaged, restore it from a backup".into(),
    }
}

/// The writer's connection, migrated to the newest schema.
pub(super) fn open_writer(path: &Path, settings: &Settings) -> Result<Connection, LedgerError> {
    if rusqlite::version_number() < SQLITE_VERSION_MIN {
        return Err(LedgerError::Open {
            problem: format!("SQLite {} has a write-ahead log that can corrupt data", rusqlite::version()),
            remedy: "build against SQLite 3.51.3 or later".into(),
        });
    }
    let open = || -> rusqlite::Result<Connection> {
        let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
        let connection = Connection::open_with_flags(path, flags)?;
        // Only a new file takes the page size.
        connection.pragma_update(None, "page_size", 8192)?;
        set_up(&connection, settings)?;
        Ok(connection)
    };
    let connection = open().map_err(|e| failed(path, &e))?;
    let mode: String =
        connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(|e| failed(path, &e))?;
    if !mode.eq_ignore_ascii_case("wal") {
        return Err(LedgerError::Open {
            problem: format!("the ledger {} does not take a write-ahead log", path.display()),
            remedy: "put it on a local disk with shared memory".into(),
        });
    }
    migrate(&connection, path)?;
    Ok(connection)
}

/// A connection for reading alone.
pub(super) fn open_reader(path: &Path, settings: &Settings) -> Result<Connection, LedgerError> {
    connect_reader(path, settings).map_err(|e| failed(path, &e))
}

pub(super) fn connect_reader(path: &Path, settings: &Settings) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    set_up(&connection, settings)?;
    Ok(connection)
}

/// A connection that only checkpoints.
pub(super) fn open_checkpointer(path: &Path, settings: &Settings) -> Result<Connection, LedgerError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|e| failed(path, &e))?;
    set_up(&connection, settings).map_err(|e| failed(path, &e))?;
    // It never waits for long: whoever reads or writes now goes first.
    connection.busy_timeout(Duration::from_millis(50)).map_err(|e| failed(path, &e))?;
    Ok(connection)
}

fn set_up(connection: &Connection, settings: &Settings) -> rusqlite::Result<()> {
    let cache_kib = i64::try_from(settings.cache_bytes / 1024).unwrap_or(i64::MAX);
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "secure_delete", "FAST")?;
    connection.pragma_update(None, "journal_size_limit", 64 * 1024 * 1024)?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "cache_size", -cache_kib)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.set_prepared_statement_cache_capacity(64);
    connection.busy_timeout(Duration::from_secs(5))
}

fn migrate(connection: &Connection, path: &Path) -> Result<(), LedgerError> {
    let pragma = |name: &str| -> Result<i64, LedgerError> {
        connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0)).map_err(|e| failed(path, &e))
    };
    let version = pragma("user_version")?;
    if version > 0 && pragma("application_id")? != APPLICATION_ID {
        return Err(LedgerError::Open {
            problem: format!(
                "the file {} is no ledger of this program, or was made by a build from before the first release",
                path.display()
            ),
            remedy: "name another file in `server.ledger`, or move this one away to begin with an empty ledger".into(),
        });
    }
    let newest = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    if version > newest {
        return Err(LedgerError::Open {
            problem: format!(
                "the ledger {} was written by a newer hookgate (schema {version}; this one knows {newest})",
                path.display()
            ),
            remedy: "run that version or a later one, or restore a backup made before the upgrade".into(),
        });
    }
    let done = usize::try_from(version).unwrap_or(0);
    for (at, migration) in MIGRATIONS.iter().enumerate().skip(done) {
        let step = format!("BEGIN IMMEDIATE; {migration}; PRAGMA user_version = {}; COMMIT;", at + 1);
        if let Err(error) = connection.execute_batch(&step) {
            // The error is what is told; a rollback that fails too leaves the transaction to the next start.
            let _ = connection.execute_batch("ROLLBACK");
            return Err(failed(path, &error));
        }
    }
    Ok(())
}

/// What the start needs to know of the queue, and proof that all of it can be read.
pub(super) struct QueueCount {
    pub pending: u64,
    pub in_flight: u64,
    pub dead: u64,
    pub oldest_dead_at: Option<i64>,
}

/// Walks the queue indexes and every live row behind them; history is for the check in the background.
pub(super) fn check_queue(connection: &Connection) -> rusqlite::Result<QueueCount> {
    let live = |state: u8| -> rusqlite::Result<u64> {
        let sql = format!(
            "SELECT count(*), total(length(event)) FROM delivery INDEXED BY delivery_live \
             WHERE state = {state} AND due_at IS NOT NULL"
        );
        connection.query_row(&sql, [], |row| row.get::<_, i64>(0)).map(super::codec::count)
    };
    let dead = connection.query_row(
        "SELECT count(*), min(finished_at) FROM delivery INDEXED BY delivery_dead_age WHERE state = 4",
        [],
        |row| Ok((super::codec::count(row.get(0)?), row.get(1)?)),
    )?;
    Ok(QueueCount { pending: live(0)?, in_flight: live(1)?, dead: dead.0, oldest_dead_at: dead.1 })
}

/// The tables of the queue and of dedup that are small enough to be checked whole before listening.
pub(super) fn check_recent(connection: &Connection) -> rusqlite::Result<Option<String>> {
    for table in ["dedup_recent", "birth", "ordered", "coalescing", "meta", "tenant_key", "source", "endpoint"] {
        let found: String = connection.query_row(&format!("PRAGMA quick_check('{table}')"), [], |row| row.get(0))?;
        if found != "ok" {
            return Ok(Some(format!("table {table}: {found}")));
        }
    }
    Ok(None)
}

/// How long the whole-file check waits after it had to give way to a growing log.
const CHECK_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// While the log is longer, no long read may keep it from beginning again.
const CHECK_YIELDS_AT_BYTES: u64 = 256 << 20;

/// Checks every table in the background, one at a time; a finding stops the ledger.
pub(super) fn check_whole_file(mut connection: Connection, shared: &Shared) {
    let (closed, wal_bytes) = (Arc::clone(&shared.closed), Arc::clone(&shared.wal_bytes));
    let interrupted =
        move || closed.load(Ordering::Acquire) || wal_bytes.load(Ordering::Acquire) >= CHECK_YIELDS_AT_BYTES;
    if connection.progress_handler(10_000, Some(interrupted)).is_err() {
        return;
    }
    let tables = || -> rusqlite::Result<Vec<String>> {
        let mut statement = connection.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")?;
        statement.query_map([], |row| row.get(0))?.collect()
    };
    let mut left = match tables() {
        Ok(tables) => tables,
        Err(error) => return shared.stop(format!("the schema cannot be read: {error}")),
    };
    while let Some(table) = left.last() {
        let found: rusqlite::Result<String> =
            connection.query_row(&format!("PRAGMA quick_check('{table}')"), [], |row| row.get(0));
        match found {
            Ok(found) if found == "ok" => {
                left.pop();
            }
            Ok(found) => return shared.stop(format!("the check of table {table} found: {found}")),
            Err(error) => match severity(&error) {
                Severity::Stop => return shared.stop(format!("the check of table {table} failed: {error}")),
                Severity::Full | Severity::Verb => {
                    if shared.gate.wait_for_close(CHECK_AGAIN_AFTER) {
                        return;
                    }
                }
            },
        }
    }
}
