//! Secrets: wiped when dropped, and without `Debug`, `Display` or `Serialize`, so that they cannot reach a
//! log, an error, a metric or an answer by accident.

use std::fmt;
use zeroize::Zeroizing;

/// Bytes that must not be shown. Compare with [`Secret::matches`], which takes the same time wherever
/// the first difference is.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Secret(Zeroizing::new(bytes.into()))
    }

    /// The bytes themselves: the name is there to be searched for in a review.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// The bytes as text, where they are UTF-8.
    pub fn expose_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Constant-time equality over SHA-256 digests, so that not even the length shows.
    pub fn matches(&self, candidate: &[u8]) -> bool {
        use sha2::Digest as _;
        use subtle::ConstantTimeEq as _;
        sha2::Sha256::digest(self.expose()).ct_eq(&sha2::Sha256::digest(candidate)).into()
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Secret::new(text.into_bytes())
    }
}

/// Prints only that something is there.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "Secret(empty)" } else { "Secret(…)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_nothing() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "Secret(…)");
    }

    #[test]
    fn matches_compares_content() {
        let s = Secret::new("a");
        assert!(s.matches(b"a"));
        assert!(!s.matches(b"b"));
        assert!(!s.matches(b"aa"));
    }
}
