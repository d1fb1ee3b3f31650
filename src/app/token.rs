//! The operator's token: given, or written once beside the ledger.

use super::Error;
use crate::config::Server;
use crate::entropy::Entropy;
use crate::secret::Secret;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// A token file is a line; more than this is something else.
const TOKEN_BYTES_MAX: u64 = 1_024;

/// The token, and the file it is kept in unless it was given.
pub(super) fn operators(server: &Server, entropy: &dyn Entropy) -> Result<(Secret, Option<PathBuf>), Error> {
    if let Some(token) = &server.admin_token {
        return Ok((token.clone(), None));
    }
    let path = server.ledger.parent().unwrap_or(Path::new(".")).join("admin-token");
    let failed = |problem: String| Error::Token { path: path.clone(), problem };
    match std::fs::File::open(&path) {
        Ok(file) => {
            let mode = file.metadata().map_err(|e| failed(e.to_string()))?.permissions().mode();
            if mode & 0o077 != 0 {
                return Err(failed(format!("others can read it; run `chmod 600 {}`", path.display())));
            }
            let mut text = zeroize::Zeroizing::new(String::new());
            file.take(TOKEN_BYTES_MAX).read_to_string(&mut text).map_err(|e| failed(e.to_string()))?;
            let token = text.trim();
            if token.is_empty() {
                return Err(failed("it is empty; remove it, and the next start writes a new one".to_owned()));
            }
            Ok((Secret::new(token), Some(path)))
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let token = fresh(entropy);
            let mut options = std::fs::OpenOptions::new();
            let mut file =
                options.write(true).create_new(true).mode(0o600).open(&path).map_err(|e| failed(e.to_string()))?;
            let written = file.write_all(token.expose()).and_then(|()| file.write_all(b"\n"));
            written.and_then(|()| file.sync_all()).map_err(|e| failed(e.to_string()))?;
            tracing::info!(path = %path.display(), "wrote the operator's token");
            Ok((token, Some(path)))
        }
        Err(e) => Err(failed(e.to_string())),
    }
}

/// `hg_operator_<id>_<32 random bytes>_<crc32>`: a shape that secret scanners can find.
fn fresh(entropy: &dyn Entropy) -> Secret {
    let (mut id, mut key) = ([0; 4], zeroize::Zeroizing::new([0; 32]));
    entropy.fill(&mut id);
    entropy.fill(&mut *key);
    let body = zeroize::Zeroizing::new(format!("hg_operator_{}_{}", hex::encode(id), hex::encode(*key)));
    Secret::new(format!("{}_{:08x}", *body, crc32fast::hash(body.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entropy::SystemEntropy;

    fn server(dir: &Path) -> Server {
        Server { ledger: dir.join("ledger.db"), ..Server::default() }
    }

    #[test]
    fn the_first_start_writes_it_and_the_next_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let (first, path) = operators(&server(dir.path()), &SystemEntropy).unwrap();
        let path = path.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let (second, _) = operators(&server(dir.path()), &SystemEntropy).unwrap();
        assert!(second.matches(first.expose()));
        assert!(first.expose_str().unwrap().starts_with("hg_operator_"));
    }

    #[test]
    fn one_that_others_can_read_or_that_is_empty_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin-token");
        for (text, mode, word) in [("t\n", 0o644, "chmod 600"), ("\n", 0o600, "empty")] {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let error = operators(&server(dir.path()), &SystemEntropy).err().unwrap();
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
