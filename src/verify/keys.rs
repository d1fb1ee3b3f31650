//! Keys that stand elsewhere: where a scheme says that they may be fetched from, and who fetches them. This room names
//! the place and judges what was found there; it opens no connection.

use super::refusal::{CheckStep, Refusal, RefusalCode};
use crate::secret::Secret;
use async_trait::async_trait;
use bytes::Bytes;
use rustls_pki_types::TrustAnchor;
use sha2::Digest as _;
use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use url::Url;

const URL_BYTES_MAX: usize = 2_048;
/// How long a key is believed without a look at its place.
const AGE_MAX: Duration = Duration::from_secs(3_600);
/// What is older is looked up again when it does not have the key that a request names: keys are rotated.
const AGE_MAX_IF_UNKNOWN: Duration = Duration::from_secs(60);

/// A URL that may be called: only this room makes one, from its scheme's list or the operator's file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyUrl(Url);

impl KeyUrl {
    /// What a request names. `None`: it is not on the scheme's list. The text has to be the URL's normal form, so that
    /// no two readers see two hosts in it.
    pub(in crate::verify) fn named(text: &str, is_listed: fn(host: &str) -> bool) -> Option<KeyUrl> {
        KeyUrl::configured(text).filter(|url| url.0.as_str() == text && url.0.domain().is_some_and(is_listed))
    }

    /// What the operator wrote: `https`, the usual port, no user name and no fragment.
    pub(in crate::verify) fn configured(text: &str) -> Option<KeyUrl> {
        let url = Url::parse(text).ok().filter(|_| text.len() <= URL_BYTES_MAX)?;
        let plain = url.scheme() == "https"
            && url.port().is_none()
            && url.username().is_empty()
            && url.password().is_none()
            && url.fragment().is_none();
        plain.then_some(KeyUrl(url))
    }

    pub fn url(&self) -> &Url {
        &self.0
    }
}

/// What is to be fetched.
#[derive(Clone)]
pub struct KeyQuery {
    url: KeyUrl,
    /// Sent as JSON in a `POST`; without it the query is a `GET`. Holds credentials.
    body: Option<Secret>,
    age_max: Duration,
}

impl KeyQuery {
    pub(in crate::verify) fn get(url: KeyUrl) -> Self {
        KeyQuery { url, body: None, age_max: AGE_MAX }
    }

    pub(in crate::verify) fn post(url: KeyUrl, body: Secret) -> Self {
        KeyQuery { url, body: Some(body), age_max: AGE_MAX }
    }

    /// The same, after what was remembered did not have the key.
    pub(in crate::verify) fn again(self) -> Self {
        KeyQuery { age_max: AGE_MAX_IF_UNKNOWN, ..self }
    }

    pub fn url(&self) -> &Url {
        &self.url.0
    }

    pub fn body(&self) -> Option<&Secret> {
        self.body.as_ref()
    }

    /// What is remembered longer than this does not count.
    pub fn age_max(&self) -> Duration {
        self.age_max
    }

    /// Two queries of the same place have the same.
    pub fn digest(&self) -> [u8; 32] {
        let url = self.url.0.as_str().as_bytes();
        let mut hash = sha2::Sha256::new();
        hash.update((url.len() as u64).to_be_bytes());
        hash.update(url);
        hash.update(self.body.as_ref().map(Secret::expose).unwrap_or_default());
        hash.finalize().into()
    }
}

/// Paths and bodies stay inside.
impl fmt::Debug for KeyQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyQuery({})", self.url.0.host_str().unwrap_or_default())
    }
}

/// What stood at a place, and what was read in it: kept together and forgotten together.
pub struct Found {
    bytes: Bytes,
    /// An `Option<Arc<T>>` of whoever read first.
    read: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl Found {
    pub fn new(bytes: Bytes) -> Self {
        Found { bytes, read: OnceLock::new() }
    }

    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// What `read` makes of the bytes, which it does once: a second kind of reader finds its own every time.
    pub(in crate::verify) fn read_as<T: Send + Sync + 'static>(
        &self,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Option<Arc<T>> {
        let fresh = || read(&self.bytes).map(Arc::new);
        let known = self.read.get_or_init(|| Box::new(fresh()));
        known.downcast_ref().map_or_else(fresh, Option::clone)
    }
}

/// Bytes of a key server are nothing for a log.
impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Found({} bytes)", self.bytes.len())
    }
}

/// What stood at a query's place.
#[derive(Clone, Debug)]
pub struct Fetched {
    pub found: Arc<Found>,
    /// How long ago it was fetched.
    pub age: Duration,
    /// Whose certificates are believed, for schemes that check a chain.
    pub anchors: Arc<[TrustAnchor<'static>]>,
}

impl Fetched {
    /// Whether asking again may find what this does not have.
    pub(in crate::verify) fn may_be_outdated(&self) -> bool {
        self.age > AGE_MAX_IF_UNKNOWN
    }
}

/// The key server gave no answer that says anything about the key. For the operator's log.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unreachable(pub String);

/// Who fetches keys: through the address guard, within limits, from memory where it is young enough.
#[async_trait]
pub trait KeySource: Send + Sync + 'static {
    /// `None`: the server says that there is no such key.
    async fn fetch(&self, query: &KeyQuery) -> Result<Option<Fetched>, Unreachable>;

    /// Calls a URL once, as a provider asked for in a verified request.
    async fn confirm(&self, url: &KeyUrl) -> Result<(), Unreachable>;
}

/// What is known about the key that a request needs.
#[derive(Clone, Copy, Debug)]
pub enum KeyAtHand<'k> {
    NotAsked,
    /// There is none at its place.
    Absent,
    Fetched(&'k Fetched),
}

/// Why a check has no result yet, or a bad one.
#[derive(Clone, Debug)]
pub enum Stop {
    Refused(Refusal),
    /// To be asked again, with what stands there.
    NeedsKey(Box<KeyQuery>),
}

impl From<KeyQuery> for Stop {
    fn from(query: KeyQuery) -> Self {
        Stop::NeedsKey(Box::new(query))
    }
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Stop::Refused(refusal)
    }
}

impl Stop {
    /// For who fetches nothing.
    pub(in crate::verify) fn offline(self) -> Refusal {
        match self {
            Stop::Refused(refusal) => refusal,
            Stop::NeedsKey(_) => Refusal::new(
                RefusalCode::UnknownKey,
                CheckStep::Match,
                "the key stands at the provider and nothing is fetched here: give it as a secret",
            ),
        }
    }
}

/// Looks: once into what is remembered, once more where that may be outdated.
const LOOKS_MAX: usize = 2;

/// The verdict, with the provider's key fetched where one is needed.
pub async fn with_keys<T>(
    keys: &dyn KeySource,
    judge: impl Fn(KeyAtHand<'_>) -> Result<T, Stop>,
) -> Result<Result<T, Refusal>, Unreachable> {
    let mut judged = judge(KeyAtHand::NotAsked);
    for _ in 0..LOOKS_MAX {
        let Err(Stop::NeedsKey(query)) = &judged else { break };
        let fetched = keys.fetch(query).await?;
        judged = judge(fetched.as_ref().map_or(KeyAtHand::Absent, KeyAtHand::Fetched));
    }
    match judged {
        Ok(admitted) => Ok(Ok(admitted)),
        Err(Stop::Refused(refusal)) => Ok(Err(refusal)),
        Err(Stop::NeedsKey(_)) => Err(Unreachable("what was just fetched is outdated".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_https_urls_of_listed_hosts_are_called() {
        let listed = |host: &str| host == "keys.example.com";
        assert!(KeyUrl::named("https://keys.example.com/a.pem?x=1", listed).is_some());
        for bad in [
            "http://keys.example.com/a",
            "https://keys.example.com:8443/a",
            "https://keys.example.com:443/a",
            "https://u@keys.example.com/a",
            "https://u:p@keys.example.com/a",
            "https://keys.example.com@evil.test/a",
            "https://keys.example.com.evil.test/a",
            "https://evil.test/keys.example.com",
            "https://evil.test#keys.example.com",
            "https://keys.example.com/a#b",
            "https://keys.example.com\\@evil.test/a",
            "https://KEYS.example.com/a",
            "https://keys.example.com./a",
            "https:keys.example.com/a",
            "https:///keys.example.com/a",
            " https://keys.example.com/a",
            "https://keys.exa\tmple.com/a",
            "https://keys.example.com/\u{0}",
            "//keys.example.com/a",
            "file:///keys.example.com",
            "https://127.0.0.1/a",
            "https://[::1]/a",
            "",
        ] {
            assert!(KeyUrl::named(bad, listed).is_none(), "{bad}");
        }
        assert!(KeyUrl::named(&format!("https://keys.example.com/{}", "a".repeat(2_048)), listed).is_none());
    }

    #[test]
    fn what_is_found_is_read_once() {
        let found = Found::new(Bytes::from_static(b"42"));
        let times = std::cell::Cell::new(0);
        let number = |bytes: &[u8]| {
            times.set(times.get() + 1);
            std::str::from_utf8(bytes).ok()?.parse::<u32>().ok()
        };
        let (first, second) = (found.read_as(number), found.read_as(number));
        assert!(Arc::ptr_eq(first.as_ref().unwrap(), second.as_ref().unwrap()) && first.as_deref() == Some(&42));
        assert_eq!(times.get(), 1);
        // Two schemes may look at one place.
        let length = |bytes: &[u8]| Some(bytes.len());
        assert_eq!((found.read_as(length).as_deref(), found.read_as(number).as_deref()), (Some(&2), Some(&42)));
        assert_eq!(times.get(), 1);
        // What cannot be read is not tried again.
        let nothing = Found::new(Bytes::from_static(b"x"));
        assert!(nothing.read_as(number).is_none() && nothing.read_as(number).is_none());
        assert_eq!(times.get(), 2);
        assert_eq!(format!("{nothing:?}"), "Found(1 bytes)");
    }

    #[test]
    fn queries_show_no_credentials_and_know_themselves_again() {
        let url = KeyUrl::configured("https://keys.example.com/secret-path").unwrap();
        let post = KeyQuery::post(url.clone(), Secret::new("hunter2"));
        assert_eq!(format!("{post:?}"), "KeyQuery(keys.example.com)");
        assert_eq!(post.digest(), post.clone().again().digest());
        assert_ne!(post.digest(), KeyQuery::get(url).digest());
    }
}
