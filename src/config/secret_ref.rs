//! Where a secret is, as the configuration says it: `env:NAME`, `file:PATH`, or the literal itself.

use super::Env;
use crate::secret::Secret;
use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// No secret is longer: PEM bundles and key sets fit, a wrong path to something large does not.
const SECRET_BYTES_MAX: u64 = 64 << 10;

/// A secret that has not been read yet.
#[derive(Clone)]
pub enum SecretRef {
    Env(String),
    File(PathBuf),
    Literal(Secret),
}

/// Why a secret could not be had. Names where it was sought, never what was found.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SecretFault {
    #[error("`{0}` has nothing behind the colon: it says neither name nor path")]
    Unnamed(&'static str),
    #[error("the environment variable `{0}` is not set")]
    Unset(String),
    #[error("the file `{path}` cannot be read: {why}")]
    Unreadable { path: String, why: String },
    #[error("the secret in {0} is empty")]
    Empty(String),
    #[error("the secret in {0} is nothing but blanks")]
    Blank(String),
    #[error("the file `{0}` is larger than 64 KiB, which no secret is")]
    TooLarge(String),
}

impl SecretRef {
    /// Reads the notation. `base` is the directory that relative paths start from.
    pub fn parse(text: &str, base: &Path) -> Self {
        if let Some(name) = text.strip_prefix("env:") {
            SecretRef::Env(name.to_owned())
        } else if let Some(path) = text.strip_prefix("file:") {
            SecretRef::File(base.join(path))
        } else {
            SecretRef::Literal(Secret::new(text))
        }
    }

    /// Reads the secret. One line end at the end of a file is not part of it.
    pub fn resolve(&self, env: &Env) -> Result<Secret, SecretFault> {
        let secret = match self {
            SecretRef::Env(name) if name.trim().is_empty() => return Err(SecretFault::Unnamed("env:")),
            // The directory that relative paths start from.
            SecretRef::File(path)
                if path.as_os_str().is_empty() || path.as_os_str().as_encoded_bytes().ends_with(b"/") =>
            {
                return Err(SecretFault::Unnamed("file:"));
            }
            SecretRef::Env(name) => Secret::new(env.value(name).ok_or_else(|| SecretFault::Unset(name.clone()))?),
            SecretRef::File(path) => read(path)?,
            SecretRef::Literal(secret) => secret.clone(),
        };
        match secret.expose().trim_ascii() {
            [] if secret.is_empty() => Err(SecretFault::Empty(self.place())),
            [] => Err(SecretFault::Blank(self.place())),
            _ => Ok(secret),
        }
    }

    /// Where it is, for people.
    pub fn place(&self) -> String {
        match self {
            SecretRef::Env(name) => format!("the environment variable `{name}`"),
            SecretRef::File(path) => format!("the file `{}`", path.display()),
            SecretRef::Literal(_) => "the configuration itself".to_owned(),
        }
    }
}

fn read(path: &Path) -> Result<Secret, SecretFault> {
    let shown = || path.display().to_string();
    let unreadable = |e: std::io::Error| SecretFault::Unreadable { path: shown(), why: e.to_string() };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(SECRET_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > SECRET_BYTES_MAX {
        return Err(SecretFault::TooLarge(shown()));
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    }
    Ok(Secret::new(bytes))
}

/// Shows where, never what.
impl fmt::Debug for SecretRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretRef::Env(name) => write!(f, "env:{name}"),
            SecretRef::File(path) => write!(f, "file:{}", path.display()),
            SecretRef::Literal(_) => f.write_str("literal"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(text: &str) -> SecretRef {
        SecretRef::parse(text, Path::new("/base"))
    }

    #[test]
    fn the_three_notations() {
        let env = Env::from_pairs([("A", "from-env"), ("B", "")]);
        assert_eq!(here("env:A").resolve(&env).unwrap().expose(), b"from-env");
        assert_eq!(here("env:B").resolve(&env).err(), Some(SecretFault::Empty("the environment variable `B`".into())));
        for bare in ["env:", "env: ", "file:"] {
            assert!(matches!(here(bare).resolve(&env), Err(SecretFault::Unnamed(_))), "{bare}");
        }
        assert_eq!(here("env:C").resolve(&env).err(), Some(SecretFault::Unset("C".into())));
        assert_eq!(here("literal:x").resolve(&env).unwrap().expose(), b"literal:x");
        assert!(matches!(here("").resolve(&env), Err(SecretFault::Empty(_))));
        assert_eq!(
            format!("{:?} {:?} {:?}", here("env:A"), here("file:k"), here("hunter2")),
            "env:A file:/base/k literal"
        );
    }

    #[test]
    fn files_lose_one_line_end() {
        let dir = tempfile::tempdir().unwrap();
        let file = |content: &[u8]| {
            std::fs::write(dir.path().join("s"), content).unwrap();
            SecretRef::parse("file:s", dir.path()).resolve(&Env::default())
        };
        assert_eq!(file(b"a\n").unwrap().expose(), b"a");
        assert_eq!(file(b"a\r\n").unwrap().expose(), b"a");
        assert_eq!(file(b"a\n\n").unwrap().expose(), b"a\n");
        assert_eq!(file(b" a ").unwrap().expose(), b" a ");
        assert!(matches!(file(b"\n"), Err(SecretFault::Empty(_))));
        for blank in [&b" "[..], b"\n\n", b" \t\r\n \n"] {
            assert!(matches!(file(blank), Err(SecretFault::Blank(_))), "{blank:?}");
        }
        assert!(matches!(file(&vec![b'x'; 65 << 10]), Err(SecretFault::TooLarge(_))));
        let gone = SecretRef::parse("file:gone", dir.path()).resolve(&Env::default());
        assert!(matches!(gone, Err(SecretFault::Unreadable { .. })));
    }
}
