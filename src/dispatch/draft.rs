//! A request that is ready but for the host's headers.

use super::Target;
use crate::delivery::{Fault, FaultKind, KeptBody, Reason};
use crate::ledger::{EventContent, RequestRecord};
use crate::plugin::Transformed;
use http::HeaderMap;

#[derive(Clone)]
pub(super) struct Draft {
    pub(super) url: url::Url,
    pub(super) method: http::Method,
    pub(super) headers: HeaderMap,
    pub(super) body: bytes::Bytes,
    /// Kept on the attempt when the plugin made it.
    pub(super) record: Option<RequestRecord>,
}

/// Why there is no request.
pub(super) enum Unmade {
    Skip(Reason),
    Fault(Fault),
}

impl Draft {
    pub(super) fn as_it_came(event: &EventContent, target: &Target) -> Self {
        Draft {
            url: target.url.clone(),
            method: http::Method::POST,
            headers: HeaderMap::new(),
            body: event.body.clone(),
            record: None,
        }
    }

    /// The plugin chooses path and query; scheme, host and port stay the endpoint's, and that is checked on the result.
    pub(super) fn of(transformed: Transformed, target: &Target) -> Result<Self, Unmade> {
        let (method, path_and_query, headers, body) = match transformed {
            Transformed::Send { method, path_and_query, headers, body } => (method, path_and_query, headers, body),
            Transformed::Skip(reason) => return Err(Unmade::Skip(reason)),
        };
        let mut url = target.url.clone();
        if let Some(path_and_query) = &path_and_query {
            let (path, query) = match path_and_query.split_once('?') {
                Some((path, query)) => (path, Some(query)),
                None => (path_and_query.as_str(), None),
            };
            url.set_path(path);
            url.set_query(query);
            if url.origin() != target.url.origin() || url.username() != target.url.username() {
                let detail = "the path leads away from the endpoint's own host".to_owned();
                return Err(Unmade::Fault(Fault { kind: FaultKind::BadOutput, detail }));
            }
        }
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let record = RequestRecord {
            method: method.to_string(),
            path_and_query,
            headers: headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
            body: KeptBody::of(&body),
        };
        Ok(Draft { url, method, headers, body, record: Some(record) })
    }

    /// Whether the receiver would get the same.
    pub(super) fn is_same(&self, other: &Draft) -> bool {
        self.method == other.method && self.url == other.url && self.headers == other.headers && self.body == other.body
    }
}
