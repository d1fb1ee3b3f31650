//! What can go wrong inside, and what it means for those who wait.

use crate::ledger::LedgerError;
use rusqlite::ErrorCode;

#[derive(Debug)]
pub(super) enum Fault {
    Sql(rusqlite::Error),
    /// The verb is refused before it wrote anything; the others of its batch go on.
    Refused(LedgerError),
    /// The rows contradict themselves.
    Damaged(String),
}

/// What to do about a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Severity {
    /// A flush failed or a structure is damaged: what the disk holds is not known any more.
    Stop,
    /// No room: nothing was written, and it may go on when there is room again.
    Full,
    /// This verb alone.
    Verb,
}

impl Fault {
    pub(super) fn damaged(what: &str) -> Self {
        Fault::Damaged(what.to_owned())
    }

    pub(super) fn severity(&self) -> Severity {
        match self {
            Fault::Sql(error) => severity(error),
            Fault::Refused(_) => Severity::Verb,
            Fault::Damaged(_) => Severity::Stop,
        }
    }
}

pub(super) fn severity(error: &rusqlite::Error) -> Severity {
    // The shared memory beside the file could not grow: as good as a full disk.
    if error.sqlite_error().is_some_and(|e| e.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE) {
        return Severity::Full;
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => Severity::Full,
        Some(ErrorCode::SystemIoFailure | ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Severity::Stop,
        _ => Severity::Verb,
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Fault::Sql(error)
    }
}

impl From<Fault> for LedgerError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Refused(error) => error,
            Fault::Damaged(what) => LedgerError::Stopped(what),
            Fault::Sql(error) => match severity(&error) {
                Severity::Stop => LedgerError::Stopped(error.to_string()),
                Severity::Full => LedgerError::Unavailable("the disk is full".into()),
                Severity::Verb => LedgerError::Unavailable(error.to_string()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::ffi;

    #[test]
    fn severities() {
        let cases = [
            (ffi::SQLITE_IOERR_FSYNC, Severity::Stop),
            (ffi::SQLITE_IOERR_WRITE, Severity::Stop),
            (ffi::SQLITE_CORRUPT, Severity::Stop),
            (ffi::SQLITE_NOTADB, Severity::Stop),
            (ffi::SQLITE_FULL, Severity::Full),
            (ffi::SQLITE_IOERR_SHMSIZE, Severity::Full),
            (ffi::SQLITE_CONSTRAINT_CHECK, Severity::Verb),
            (ffi::SQLITE_BUSY, Severity::Verb),
        ];
        for (code, expected) in cases {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            assert_eq!(severity(&error), expected, "{code}");
        }
    }
}
