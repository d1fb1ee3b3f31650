//! The ledger's files: a private directory, one process at a time, a local disk, and a reserve for when it is full.

use crate::ledger::LedgerError;
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate, statfs};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// File systems on which SQLite's locks and shared memory cannot be relied on, by the magic number of `statfs`.
const NETWORK: &[(u64, &str)] = &[
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x517b, "SMB"),
    (0x5346_414f, "AFS"),
    (0x00c3_6400, "CephFS"),
    (0x7375_7245, "Coda"),
    (0x0102_1997, "9P"),
    (0x0116_1970, "GFS2"),
    (0x0bd0_0bd0, "Lustre"),
];

/// The paths of one ledger, and the lock that makes it ours.
pub(super) struct Files {
    pub database: PathBuf,
    pub wal: PathBuf,
    pub master_key: PathBuf,
    ballast: PathBuf,
    ballast_bytes: u64,
    /// Whether the database was there before.
    pub existed: bool,
    _lock: File,
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

fn failed(path: &Path, what: &str, e: &io::Error) -> LedgerError {
    LedgerError::Open {
        problem: format!("{} cannot be {what}: {e}", path.display()),
        remedy: "check that the directory exists on a local disk and belongs to this user".into(),
    }
}

fn private(path: &Path, mode: u32, chmod: &str) -> Result<(), LedgerError> {
    match fs::metadata(path) {
        Ok(meta) if meta.permissions().mode() & 0o077 != 0 => Err(LedgerError::Open {
            problem: format!(
                "{} is open to other users (mode {:04o}; it must be {mode:04o})",
                path.display(),
                meta.permissions().mode() & 0o7777
            ),
            remedy: format!("run `chmod {chmod} {}`", path.display()),
        }),
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(failed(path, "read", &e)),
    }
}

impl Files {
    /// Makes the directory if need be, takes the lock, and makes sure that what is read next comes from the disk:
    /// after a failed flush the page cache may show what the disk does not have.
    pub(super) fn claim(database: &Path, ballast_bytes: u64) -> Result<Self, LedgerError> {
        let directory = match database.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(|e| failed(directory, "made", &e))?;
        private(directory, 0o700, "700")?;
        let on = statfs(directory).map_err(|e| failed(directory, "examined", &e.into()))?;
        if let Some(name) = network_name(on.f_type) {
            return Err(LedgerError::Open {
                problem: format!("{} lies on a network file system ({name})", directory.display()),
                remedy: "put the ledger on a local disk".into(),
            });
        }
        let lock_path = beside(database, ".lock");
        private(&lock_path, 0o600, "600")?;
        let lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(|e| failed(&lock_path, "opened", &e))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(LedgerError::Open {
                    problem: format!("another process has the ledger {} open", database.display()),
                    remedy: "stop the other `hookgate serve`, or give this one a ledger of its own".into(),
                });
            }
            Err(TryLockError::Error(e)) => return Err(failed(&lock_path, "locked", &e)),
        }
        let wal = beside(database, "-wal");
        let existed = fs::metadata(database).is_ok_and(|meta| meta.len() > 0);
        for path in [database, &wal, &beside(database, "-shm")] {
            private(path, 0o600, "600")?;
            if let Ok(file) = File::open(path) {
                fadvise(&file, 0, None, Advice::DontNeed).map_err(|e| failed(path, "read afresh", &e.into()))?;
            }
        }
        // Made here, so that it never exists with wider rights; SQLite gives its other files the same.
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(database)
            .map_err(|e| failed(database, "opened", &e))?;
        let files = Files {
            database: database.to_owned(),
            wal,
            master_key: directory.join("master-key"),
            ballast: beside(database, ".ballast"),
            ballast_bytes,
            existed,
            _lock: lock,
        };
        files.flush_directory().map_err(|e| failed(directory, "flushed", &e))?;
        Ok(files)
    }

    /// A new file is durable only when its directory is.
    pub(super) fn flush_directory(&self) -> io::Result<()> {
        match self.database.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
            _ => File::open(".")?.sync_all(),
        }
    }

    /// Sets the reserve aside, if there is as much again besides. Failing to is no error: it is a comfort.
    pub(super) fn make_ballast(&self) -> bool {
        if self.ballast_bytes == 0 || fs::metadata(&self.ballast).is_ok_and(|m| m.len() >= self.ballast_bytes) {
            return true;
        }
        let room = || self.disk_free_bytes().is_some_and(|free| free >= self.ballast_bytes.saturating_mul(2));
        if !room() {
            return false;
        }
        let made = || -> io::Result<()> {
            let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&self.ballast)?;
            fallocate(&file, FallocateFlags::empty(), 0, self.ballast_bytes)?;
            Ok(())
        };
        if made().is_err() {
            self.release_ballast();
            return false;
        }
        true
    }

    /// Gives the reserve back to the disk. `true`: there was one.
    pub(super) fn release_ballast(&self) -> bool {
        fs::remove_file(&self.ballast).is_ok()
    }

    /// What is left on its disk for this user; `None`: the system does not say.
    pub(super) fn disk_free_bytes(&self) -> Option<u64> {
        let on = statfs(&self.database).ok()?;
        u64::try_from(on.f_bsize).ok()?.checked_mul(on.f_bavail)
    }

    pub(super) fn database_bytes(&self) -> u64 {
        fs::metadata(&self.database).map_or(0, |m| m.len())
    }
}

fn network_name(magic: impl TryInto<i64>) -> Option<&'static str> {
    // Some platforms give the magic number with its sign extended.
    let magic = magic.try_into().ok()? & 0xffff_ffff;
    NETWORK.iter().find(|(number, _)| i64::try_from(*number) == Ok(magic)).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known() {
        assert_eq!(network_name(0x6969_i64), Some("NFS"));
        assert_eq!(network_name(-11_317_950_i64), Some("CIFS"));
        assert_eq!(network_name(0xef53_i64), None);
    }

    #[test]
    fn one_process_at_a_time_in_a_private_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("made/here/ledger.db");
        let first = Files::claim(&path, 4096).unwrap();
        let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(path.parent().unwrap()), mode(&path)), (0o700, 0o600));
        let error = Files::claim(&path, 0).err().unwrap().to_string();
        assert!(error.contains("another process"), "{error}");
        assert!(first.make_ballast() && first.ballast.exists());
        assert!(first.release_ballast() && !first.release_ballast());
        drop(first);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = Files::claim(&path, 0).err().unwrap().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::set_permissions(path.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
        let error = Files::claim(&path, 0).err().unwrap().to_string();
        assert!(error.contains("chmod 700"), "{error}");
    }
}
