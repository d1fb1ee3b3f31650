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
    let words = words(name);
    let joined = words.concat();
    PARTS.iter().any(|part| joined.contains(part)) || words.iter().any(|word| WORDS.contains(&word.as_str()))
}

/// The same of a parameter in a URL's query, where shorter names are usual.
pub fn parameter_names_a_secret(name: &str) -> bool {
    let name = percent_encoding::percent_decode_str(name).decode_utf8_lossy();
    let words = words(&name);
    names_a_secret(&name)
        || words.iter().any(|word| matches!(word.as_str(), "key" | "otp" | "pin" | "sign"))
        || matches!(words.as_slice(), [word] if word == "code")
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

/// `X-Api_Key`, `apiKey` and `api[key]` are of the same words, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        if !c.is_ascii_alphanumeric() || (c.is_ascii_uppercase() && was_lower) {
            words.push(String::new());
        }
        if let (true, Some(word)) = (c.is_ascii_alphanumeric(), words.last_mut()) {
            word.push(c.to_ascii_lowercase());
        }
        was_lower = c.is_ascii_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
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
