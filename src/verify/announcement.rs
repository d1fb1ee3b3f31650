//! What the gateway itself has to say to a tenant: no request asked for it, and no caller's word is in it.

use super::producer::{dedup_digest, truncated};
use super::{Dedup, Event, Verified};
use crate::clock::Timestamp;
use crate::delivery::Name;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use sha2::Digest as _;
use std::time::Duration;

/// The type of every announcement.
pub const ALERT_TYPE: &str = "hookgate.alert";
/// As long as events are usually known again.
const WINDOW: Duration = Duration::from_secs(7 * 24 * 3_600);

/// An alert as an event: a JSON text under a key, which it is known again by. Only this type can be made so.
pub fn announcement(tenant: &Name, key: String, body: Bytes, now: Timestamp) -> Verified<Event> {
    // No source is named so, and what is published has no name there: nobody else's key is the same.
    let digest = dedup_digest(tenant.as_str(), ALERT_TYPE, &[key.as_bytes()]);
    Verified::attest(Event {
        event_type: ALERT_TYPE.to_owned(),
        content_type: "application/json".to_owned(),
        headers: vec![(HeaderName::from_static("content-type"), HeaderValue::from_static("application/json"))],
        body_digest: truncated(sha2::Sha256::digest(&body).into()),
        body,
        key: Some(key),
        provider_id: None,
        dedup: Some(Dedup { digest, content: None, window: WINDOW }),
        received_at: now,
        deliver_at: None,
        expires_at: None,
        deadline: None,
        relation: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;
    use crate::verify::{Grant, Publication};

    #[test]
    fn nobody_takes_its_key_away() {
        let tenant: Name = "acme".parse().unwrap();
        let ours = announcement(&tenant, "alr_1".to_owned(), Bytes::from_static(b"{}"), Timestamp::ZERO);
        let grant = Grant::by_token(&Secret::new("t"), b"t", &tenant).unwrap();
        let publication = Publication {
            event_type: ALERT_TYPE.to_owned(),
            content_type: "application/json".to_owned(),
            body: Bytes::from_static(b"{}"),
            key: Some("alr_1".to_owned()),
            deliver_at: None,
            expires_at: None,
            deadline: None,
            relation: None,
        };
        let theirs = grant.event(publication, WINDOW, Timestamp::ZERO);
        assert_ne!(ours.dedup, theirs.dedup);
        assert_eq!((ours.event_type.as_str(), ours.key.as_deref()), (ALERT_TYPE, Some("alr_1")));
    }
}
