//! Uploaded components on the disk, each under its digest: written before the ledger names it, and never changed.

use crate::plugin::Digest;
use std::collections::HashSet;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// The folder beside the ledger.
pub(super) const FOLDER: &str = "plugins";

pub(super) struct Contents {
    dir: PathBuf,
    drafts: AtomicU64,
}

impl Contents {
    /// Makes the folder, for this user alone.
    pub(super) fn open(dir: PathBuf) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        Ok(Contents { dir, drafts: AtomicU64::new(0) })
    }

    fn path(&self, digest: &[u8; 32]) -> PathBuf {
        self.dir.join(format!("{}.wasm", hex::encode(digest)))
    }

    /// Durable when this returns.
    pub(super) fn put(&self, digest: &[u8; 32], wasm: &[u8]) -> io::Result<()> {
        let path = self.path(digest);
        if self.get(digest)?.is_some() {
            return Ok(());
        }
        let number = self.drafts.fetch_add(1, Ordering::Relaxed);
        let draft = self.dir.join(format!("{}-{number}.draft", std::process::id()));
        let opened = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft);
        let written = opened.and_then(|mut file| {
            file.write_all(wasm)?;
            file.sync_all()
        });
        let placed = written.and_then(|()| fs::rename(&draft, &path));
        if placed.is_err() {
            // The first error is the one to tell.
            let _ = fs::remove_file(&draft);
        }
        placed.and_then(|()| fs::File::open(&self.dir)?.sync_all())
    }

    /// `None`: it is not there, or is not what its name says.
    pub(super) fn get(&self, digest: &[u8; 32]) -> io::Result<Option<Vec<u8>>> {
        let file = match fs::File::open(self.path(digest)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let most = crate::plugin::Limits::CAPS.component_bytes_max as u64;
        let mut wasm = Vec::new();
        file.take(most + 1).read_to_end(&mut wasm)?;
        Ok((Digest::of(&wasm).as_bytes() == digest).then_some(wasm))
    }

    /// Removes what no version needs: drafts, refused uploads, and what a crash left before the ledger knew of it. Only
    /// while nothing is uploaded.
    pub(super) fn sweep(&self, needed: &[[u8; 32]]) -> io::Result<()> {
        let needed: HashSet<String> = needed.iter().map(|digest| format!("{}.wasm", hex::encode(digest))).collect();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".draft") || name.ends_with(".wasm") && !needed.contains(&name) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_what_their_names_say() {
        let dir = tempfile::tempdir().unwrap();
        let contents = Contents::open(dir.path().join("plugins")).unwrap();
        let (first, second) = (*Digest::of(b"first").as_bytes(), *Digest::of(b"second").as_bytes());
        assert_eq!(contents.get(&first).unwrap(), None);
        contents.put(&first, b"first").unwrap();
        contents.put(&second, b"second").unwrap();
        assert_eq!(contents.get(&first).unwrap().as_deref(), Some(b"first".as_slice()));
        fs::write(contents.path(&first), b"fir").unwrap();
        assert_eq!(contents.get(&first).unwrap(), None, "cut");
        contents.put(&first, b"first").unwrap();
        assert_eq!(contents.get(&first).unwrap().as_deref(), Some(b"first".as_slice()), "put right");

        fs::write(contents.dir.join("1-0.draft"), b"half").unwrap();
        fs::write(contents.dir.join("README"), b"not ours").unwrap();
        contents.sweep(&[second]).unwrap();
        assert_eq!(contents.get(&first).unwrap(), None);
        assert_eq!(contents.get(&second).unwrap().as_deref(), Some(b"second".as_slice()));
        assert_eq!(fs::read_dir(&contents.dir).unwrap().count(), 2);
    }
}
