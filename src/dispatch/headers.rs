//! The headers of an outbound request: the event's, then the plugin's, then the host's, which win.

use super::Target;
use crate::clock::Timestamp;
use crate::delivery::IdText;
use crate::ledger::Claimed;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const EVENT: HeaderName = HeaderName::from_static("hookgate-event");
const ATTEMPT: HeaderName = HeaderName::from_static("hookgate-attempt");
const SEQUENCE: HeaderName = HeaderName::from_static("hookgate-sequence");
const AGENT: HeaderValue = HeaderValue::from_static(concat!("hookgate/", env!("CARGO_PKG_VERSION")));

/// Room for what is added here and by the exchange.
const HOST_HEADERS: usize = 12;

/// Names that begin so are the host's alone.
const OWNED_PREFIXES: [&str; 2] = ["webhook-", "hookgate-"];

/// All headers of one attempt, but `host` and `content-length`, which belong to the exchange. `body` is what is sent,
/// so that the signature covers it; timestamp and signature are of this attempt.
pub(super) fn outbound(
    claimed: &Claimed,
    target: &Target,
    from_plugin: HeaderMap,
    body: &[u8],
    now: Timestamp,
) -> HeaderMap {
    let event = &claimed.event;
    let mut headers = HeaderMap::with_capacity(event.headers.len() + from_plugin.len() + HOST_HEADERS);
    for (name, value) in &event.headers {
        if !OWNED_PREFIXES.iter().any(|p| name.as_str().starts_with(p)) {
            headers.append(name.clone(), value.clone());
        }
    }
    if !headers.contains_key(CONTENT_TYPE)
        && let Ok(value) = HeaderValue::from_str(&event.content_type)
        && !value.is_empty()
    {
        headers.insert(CONTENT_TYPE, value);
    }
    replace_with(&mut headers, from_plugin);

    let mut room = IdText::default();
    let id = claimed.lease.delivery.encode(&mut room);
    headers.insert(WEBHOOK_SIGNATURE, target.signer.headers(id, now, body));
    if let Ok(value) = HeaderValue::from_str(id) {
        headers.insert(WEBHOOK_ID, value);
    }
    headers.insert(WEBHOOK_TIMESTAMP, now.as_seconds().into());
    if let Ok(value) = HeaderValue::from_str(&claimed.idempotency_key) {
        headers.insert(target.idempotency_header.clone(), value);
    }
    if let Ok(value) = HeaderValue::from_str(event.id.encode(&mut room)) {
        headers.insert(EVENT, value);
    }
    headers.insert(ATTEMPT, claimed.lease.number.into());
    headers.insert(SEQUENCE, claimed.sequence.into());
    headers.insert(USER_AGENT, AGENT);
    headers
}

/// The plugin's values stand in for the event's of the same name.
fn replace_with(headers: &mut HeaderMap, from_plugin: HeaderMap) {
    let mut last: Option<HeaderName> = None;
    for (name, value) in from_plugin {
        match (name, &last) {
            (Some(name), _) => {
                headers.insert(name.clone(), value);
                last = Some(name);
            }
            // A further value of the name before it.
            (None, Some(name)) => {
                headers.append(name.clone(), value);
            }
            (None, None) => {}
        }
    }
}
