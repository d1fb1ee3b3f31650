//! Compiled plugins on disk, so that a start compiles nothing again.
//!
//! An artefact is native code: whoever can choose its bytes can run anything here. So a file is loaded only with a
//! MAC by the host's own key over tenant, digest of the wasm, engine and content. The wasm is authoritative; a file
//! that is missing, cut or not ours is made again.

use super::Digest;
use crate::delivery::Name;
use crate::secret::Secret;
use aws_lc_rs::hmac;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use subtle::ConstantTimeEq as _;

/// Beyond this many the oldest are removed.
const FILES_MAX: usize = 1024;
/// Far above what the largest component compiles to.
pub(super) const BYTES_MAX: u64 = 256 << 20;

/// A file whose MAC was right. Only [`Artefacts`] makes one.
pub(super) struct Verified(PathBuf);

impl Verified {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

pub(super) struct Artefacts {
    dir: PathBuf,
    key: Secret,
    engine: u64,
    drafts: AtomicU64,
}

impl Artefacts {
    /// Makes the folder, for this user alone, and clears it of drafts and of files for other engines.
    pub(super) fn open(dir: PathBuf, key: Secret, engine: u64) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        if fs::metadata(&dir)?.permissions().mode() & 0o022 != 0 {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "others may write in it: chmod go-w"));
        }
        let artefacts = Artefacts { dir, key, engine, drafts: AtomicU64::new(0) };
        let ours = format!("-{engine:016x}-");
        for entry in fs::read_dir(&artefacts.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let (artefact, mac) = (name.ends_with(".cwasm"), name.ends_with(".mac"));
            let abandoned = name.strip_suffix(".draft").is_some_and(|draft| !lives(draft));
            if abandoned || (artefact || mac) && !name.contains(&ours) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(artefacts)
    }

    pub(super) fn find(&self, tenant: &Name, digest: &Digest) -> io::Result<Option<Verified>> {
        let path = self.path(tenant, digest);
        let Some(tag) = read_if_there(&path.with_extension("mac"))? else { return Ok(None) };
        let Some(bytes) = read_if_there(&path)? else { return Ok(None) };
        let good: bool = self.mac(tenant, digest, &bytes).as_ref().ct_eq(&tag).into();
        Ok(good.then_some(Verified(path)))
    }

    pub(super) fn put(&self, tenant: &Name, digest: &Digest, bytes: &[u8]) -> io::Result<Verified> {
        let path = self.path(tenant, digest);
        self.write(&path, bytes)?;
        self.write(&path.with_extension("mac"), self.mac(tenant, digest, bytes).as_ref())?;
        self.prune(&path)?;
        Ok(Verified(path))
    }

    fn path(&self, tenant: &Name, digest: &Digest) -> PathBuf {
        self.dir.join(format!("{digest}-{:016x}-{tenant}.cwasm", self.engine))
    }

    fn mac(&self, tenant: &Name, digest: &Digest, bytes: &[u8]) -> hmac::Tag {
        let mut mac = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, self.key.expose()));
        mac.update(b"hookgate artefact 1\0");
        mac.update(tenant.as_str().as_bytes());
        mac.update(b"\0");
        mac.update(digest.as_bytes());
        mac.update(&self.engine.to_le_bytes());
        mac.update(bytes);
        mac.sign()
    }

    /// Whole or not at all, readable by this user alone.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let number = self.drafts.fetch_add(1, Ordering::Relaxed);
        let draft = self.dir.join(format!("{}-{number}.draft", std::process::id()));
        let written = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft);
        let written = written.and_then(|mut file| file.write_all(bytes)).and_then(|()| fs::rename(&draft, path));
        if written.is_err() {
            // The first error is the one to tell.
            let _ = fs::remove_file(&draft);
        }
        written
    }

    fn prune(&self, keep: &Path) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "cwasm") && path != keep {
                files.push((fs::metadata(&path)?.modified()?, path));
            }
        }
        files.sort();
        let surplus = (files.len() + 1).saturating_sub(FILES_MAX);
        for (_, path) in files.into_iter().take(surplus) {
            remove_if_there(&path.with_extension("mac"))?;
            remove_if_there(&path)?;
        }
        Ok(())
    }
}

/// Whether the process that a draft is named after is still there: it may be writing this very file.
fn lives(draft: &str) -> bool {
    draft.split_once('-').is_some_and(|(pid, _)| Path::new("/proc").join(pid).exists())
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

fn read_if_there(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::metadata(path) {
        Ok(meta) if meta.len() > BYTES_MAX => Ok(None),
        Ok(_) => fs::read(path).map(Some),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn open(dir: &Path, key: &str, engine: u64) -> Artefacts {
        Artefacts::open(dir.to_owned(), Secret::new(key), engine).unwrap()
    }

    #[test]
    fn only_what_this_host_wrote_for_this_tenant_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let cache = open(dir.path(), "k", 1);
        let (acme, digest) = (name("acme"), Digest::of(b"wasm"));
        assert!(cache.find(&acme, &digest).unwrap().is_none());
        let path = cache.put(&acme, &digest, b"native code").unwrap().path().to_owned();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(cache.find(&acme, &digest).unwrap().is_some());

        // Another tenant's, another wasm's, another key's.
        let other = cache.path(&name("other"), &digest);
        fs::copy(&path, &other).unwrap();
        fs::copy(path.with_extension("mac"), other.with_extension("mac")).unwrap();
        assert!(cache.find(&name("other"), &digest).unwrap().is_none());
        let foreign = cache.path(&acme, &Digest::of(b"else"));
        fs::copy(&path, &foreign).unwrap();
        fs::copy(path.with_extension("mac"), foreign.with_extension("mac")).unwrap();
        assert!(cache.find(&acme, &Digest::of(b"else")).unwrap().is_none());
        assert!(open(dir.path(), "another", 1).find(&acme, &digest).unwrap().is_none());

        // Changed, cut, without its MAC.
        fs::write(&path, b"native c0de").unwrap();
        assert!(cache.find(&acme, &digest).unwrap().is_none());
        fs::write(&path, b"native").unwrap();
        assert!(cache.find(&acme, &digest).unwrap().is_none());
        fs::write(&path, b"native code").unwrap();
        assert!(cache.find(&acme, &digest).unwrap().is_some());
        fs::remove_file(path.with_extension("mac")).unwrap();
        assert!(cache.find(&acme, &digest).unwrap().is_none());
    }

    #[test]
    fn opening_clears_what_another_engine_or_a_crash_left() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path(), "k", 1).put(&name("acme"), &Digest::of(b"wasm"), b"old").unwrap();
        // No process has this number: it is beyond the largest there can be.
        fs::write(dir.path().join("99999999-0.draft"), b"half").unwrap();
        let mine = format!("{}-0.draft", std::process::id());
        fs::write(dir.path().join(&mine), b"under way").unwrap();
        fs::write(dir.path().join("README"), b"not ours").unwrap();
        open(dir.path(), "k", 2);
        let names = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let left: std::collections::BTreeSet<_> = names.collect();
        assert_eq!(left, ["README".to_owned(), mine].into());
    }

    #[test]
    fn a_folder_that_others_may_write_in_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o770)).unwrap();
        let refused = Artefacts::open(dir.path().to_owned(), Secret::new("k"), 1).map(drop).unwrap_err();
        assert!(refused.to_string().contains("chmod go-w"));
    }

    #[test]
    fn the_oldest_files_go_when_there_are_too_many() {
        let dir = tempfile::tempdir().unwrap();
        let cache = open(dir.path(), "k", 1);
        let first = cache.put(&name("acme"), &Digest::of(b"first"), b"1").unwrap().0;
        let epoch = std::time::UNIX_EPOCH;
        fs::File::options().write(true).open(&first).unwrap().set_modified(epoch).unwrap();
        for n in 0..FILES_MAX - 1 {
            let path = cache.path(&name("acme"), &Digest::of(&n.to_le_bytes()));
            fs::write(&path, b"").unwrap();
            fs::write(path.with_extension("mac"), b"").unwrap();
        }
        assert!(first.exists());
        let last = cache.put(&name("acme"), &Digest::of(b"last"), b"2").unwrap().0;
        assert!(last.exists() && !first.exists());
    }
}
