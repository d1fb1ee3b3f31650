//! Secrets: wiped when dropped, and without `Debug`, `Display` or `Serialize`, so that they cannot reach a
//! log, an error, a metric or an answer by accident.

use smallvec::SmallVec;
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

/// Whether a header or a setting that is called so is likely to hold a credential.
pub fn names_a_secret(name: &str) -> bool {
    const PARTS: [&str; 15] = [
        "accesskey",
        "apikey",
        "authorization",
        "bearer",
        "cookie",
        "credential",
        "jwt",
        "passphrase",
        "passwd",
        "password",
        "privatekey",
        "secret",
        "sessionid",
        "signature",
        "token",
    ];
    const WORDS: [&str; 7] = ["auth", "hmac", "pass", "pwd", "session", "sid", "sig"];
    let words = Words::of(name);
    let begins = |at: usize, first: &u8| {
        let here =
            |part: &&str| part.as_bytes().first() == Some(first) && words.joined[at..].starts_with(part.as_bytes());
        PARTS.iter().any(here)
    };
    words.joined.iter().enumerate().any(|(at, first)| begins(at, first))
        || words.iter().any(|word| WORDS.iter().any(|known| known.as_bytes() == word))
}

/// The same of a parameter in a URL's query, where shorter names are usual.
pub fn parameter_names_a_secret(name: &str) -> bool {
    let name = percent_encoding::percent_decode_str(name).decode_utf8_lossy();
    let words = Words::of(&name);
    names_a_secret(&name)
        || words.iter().any(|word| matches!(word, b"key" | b"otp" | b"pin" | b"sign"))
        || (words.iter().count() == 1 && words.joined.as_slice() == b"code")
}

/// A query in which what `goes` by its name has another value.
pub fn with_parameters(query: &str, goes: impl Fn(&str) -> bool, mut other: impl FnMut(&str) -> String) -> String {
    let pair = |pair: &str| {
        let (whole, end) = match pair.strip_suffix(['&', ';']) {
            Some(whole) => (whole, &pair[whole.len()..]),
            None => (pair, ""),
        };
        match whole.split_once('=') {
            Some((name, value)) if goes(name) => format!("{name}={}{end}", other(value)),
            Some(_) | None => pair.to_owned(),
        }
    };
    query.split_inclusive(['&', ';']).map(pair).collect()
}

/// `X-Api_Key`, `apiKey` and `api[key]` are of the same words, in lower case. Each header of each answer is asked about:
/// an ordinary name allocates nothing.
#[derive(Default)]
struct Words {
    joined: SmallVec<[u8; 64]>,
    /// Where each word but the last ends.
    ends: SmallVec<[usize; 8]>,
}

impl Words {
    fn of(name: &str) -> Self {
        let mut words = Words::default();
        let mut was_lower = false;
        for byte in name.bytes() {
            if !byte.is_ascii_alphanumeric() || (byte.is_ascii_uppercase() && was_lower) {
                words.ends.push(words.joined.len());
            }
            if byte.is_ascii_alphanumeric() {
                words.joined.push(byte.to_ascii_lowercase());
            }
            was_lower = byte.is_ascii_lowercase();
        }
        words
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        let ends = self.ends.iter().copied().chain([self.joined.len()]);
        begins.zip(ends).filter_map(|(from, to)| self.joined.get(from..to)).filter(|word| !word.is_empty())
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

    #[test]
    fn names_of_credentials_are_known() {
        let secret = [
            "Authorization",
            "X-Api-Key",
            "apikey",
            "client_secret",
            "ACCESS_TOKEN",
            "set-cookie",
            "privateKey",
            "x-password",
            "x-credential",
            "x-auth",
            "x-session",
            "x-session-id",
            "pass",
            "pwd",
            "auth",
            "bearer",
            "basicAuth",
            "smtp_pass",
            "X-Hub-Signature-256",
        ];
        for name in secret {
            assert!(names_a_secret(name) && parameter_names_a_secret(name), "{name}");
        }
        for name in ["content-type", "path", "from", "monkey", "author", "bypass", "x-request-id", "etag", "design"] {
            assert!(!names_a_secret(name) && !parameter_names_a_secret(name), "{name}");
        }
        for name in
            ["key", "code", "sig", "sign", "api%5Fkey", "%74oken", "AWSAccessKeyId", "auth[x]", "X-Amz-Signature"]
        {
            assert!(parameter_names_a_secret(name), "{name}");
        }
        for name in ["idempotency-key", "x-key", "code", "status_code"] {
            assert!(!names_a_secret(name), "{name}");
        }
        assert!(!parameter_names_a_secret("country_code"));
    }

    #[test]
    fn parameters_are_told_apart() {
        let told = with_parameters("a=1&sig=x;token=y&code=&b&", parameter_names_a_secret, |_| "-".to_owned());
        assert_eq!(told, "a=1&sig=-;token=-&code=-&b&");
    }
}
