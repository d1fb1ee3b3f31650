//! Events published by API: what vouches for them is the caller's token.

use super::{Dedup, Event, Relation, Verified};
use crate::clock::Timestamp;
use crate::delivery::Name;
use crate::secret::Secret;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use sha2::Digest as _;
use std::time::Duration;

/// Proof that a caller may publish for a tenant: made by [`Grant::by_token`] alone.
#[derive(Clone, Debug)]
pub struct Grant {
    tenant: Name,
}

impl Grant {
    /// Compares the bearer token in constant time. `None`: not allowed.
    pub fn by_token(expected: &Secret, presented: &[u8], tenant: &Name) -> Option<Grant> {
        // An empty token is a missing configuration, never "everybody may".
        (!expected.is_empty() && expected.matches(presented)).then(|| Grant { tenant: tenant.clone() })
    }

    pub fn tenant(&self) -> &Name {
        &self.tenant
    }

    /// The event of a publication under this grant.
    pub fn event(&self, publication: Publication, window: Duration, now: Timestamp) -> Verified<Event> {
        let dedup = publication.key.as_ref().map(|key| self.dedup(&[key.as_bytes()], window));
        made(publication, dedup, now)
    }

    /// As [`Grant::event`], of a publication that is item `number` of a request with a name. Without a key of its own
    /// it is one event, however often the request is made within `window`.
    pub fn event_of_request(
        &self,
        publication: Publication,
        (request, number): (&str, u32),
        window: Duration,
        now: Timestamp,
    ) -> Verified<Event> {
        let dedup = self.dedup(&[b"request", request.as_bytes(), &number.to_be_bytes()], window);
        made(publication, Some(dedup), now)
    }

    /// The caller's token vouches for the key as for the rest.
    fn dedup(&self, parts: &[&[u8]], window: Duration) -> Dedup {
        Dedup { digest: dedup_digest(self.tenant.as_str(), "", parts), content: None, window }
    }
}

fn made(publication: Publication, dedup: Option<Dedup>, now: Timestamp) -> Verified<Event> {
    let digest = sha2::Sha256::digest(&publication.body);
    let content_type = publication.content_type;
    let headers = HeaderValue::from_str(&content_type)
        .map(|value| (HeaderName::from_static("content-type"), value))
        .into_iter()
        .collect();
    Verified::attest(Event {
        event_type: publication.event_type,
        content_type,
        headers,
        body_digest: truncated(digest.into()),
        body: publication.body,
        provider_id: None,
        key: publication.key,
        dedup,
        received_at: now,
        deliver_at: publication.deliver_at,
        expires_at: publication.expires_at,
        deadline: publication.deadline,
        relation: publication.relation.map(Box::new),
    })
}

/// What a caller publishes, with its bounds already checked.
#[derive(Clone, Debug)]
pub struct Publication {
    pub event_type: String,
    pub content_type: String,
    pub body: Bytes,
    pub key: Option<String>,
    pub deliver_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    pub deadline: Option<Timestamp>,
    pub relation: Option<Relation>,
}

/// The digest of a dedup key. Every part is length-prefixed, so that no two lists of parts run together.
/// `source` is empty for published events (no source can be named so).
pub(in crate::verify) fn dedup_digest(tenant: &str, source: &str, parts: &[&[u8]]) -> [u8; 16] {
    let mut hash = sha2::Sha256::new();
    for part in [tenant.as_bytes(), source.as_bytes()].iter().chain(parts) {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    truncated(hash.finalize().into())
}

/// The first half of a SHA-256 digest.
pub(in crate::verify) fn truncated(digest: [u8; 32]) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&digest[..16]);
    half
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_grant_without_the_token() {
        let tenant: Name = "acme".parse().unwrap();
        assert!(Grant::by_token(&Secret::new("t"), b"t", &tenant).is_some());
        assert!(Grant::by_token(&Secret::new("t"), b"T", &tenant).is_none());
        assert!(Grant::by_token(&Secret::new(""), b"", &tenant).is_none());
    }

    #[test]
    fn parts_do_not_run_together() {
        assert_ne!(dedup_digest("a", "bc", &[b"d"]), dedup_digest("ab", "c", &[b"d"]));
        assert_ne!(dedup_digest("a", "b", &[b"cd"]), dedup_digest("a", "b", &[b"c", b"d"]));
    }
}
