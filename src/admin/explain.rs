//! Why a request would verify at a source, or would not: the check, step by step, on a request that somebody recorded.
//! Nothing is accepted, adopted or noted.

use super::input::{invalid, parse};
use super::query::Query;
use super::{At, answer, not_found};
use crate::clock::Timestamp;
use crate::delivery::Name;
use crate::http::{Answer, Problem};
use crate::verify::{CheckStep, Step};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde::Deserialize;
use serde_json::json;

/// As many as ingress lets in.
const HEADERS_MAX: usize = 64;

/// A request as it is told.
#[derive(Clone, Debug)]
pub struct Posed {
    pub method: Method,
    /// What the provider called; `None`: the source's own address.
    pub url: Option<String>,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub received_at: Timestamp,
}

/// Who has the sources' schemes with their secrets.
pub trait Examiner: Send + Sync + 'static {
    /// `None`: there is no such source.
    fn explain(&self, tenant: &Name, source: &Name, posed: &Posed) -> Option<Vec<Step>>;
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExplainInput {
    method: Option<String>,
    url: Option<String>,
    headers: Vec<(String, String)>,
    body: Option<String>,
    body_base64: Option<String>,
    received_at: Option<Timestamp>,
}

fn headers(all: Vec<(String, String)>) -> Result<HeaderMap, Problem> {
    if all.len() > HEADERS_MAX {
        return Err(invalid("headers", format!("is to hold at most {HEADERS_MAX}, which is what a source lets in")));
    }
    let mut map = HeaderMap::with_capacity(all.len());
    for (name, value) in all {
        let name = HeaderName::try_from(name).map_err(|_| invalid("headers", "holds a name that no header has"))?;
        let value = HeaderValue::from_bytes(value.trim().as_bytes());
        let value = value.map_err(|_| invalid("headers", format!("has no valid value for `{name}`")))?;
        map.append(name, value);
    }
    Ok(map)
}

impl At<'_> {
    pub(super) fn explain_source(&self, name: &str, body: &[u8]) -> Result<Answer, Problem> {
        Query::of(self.query).finish()?;
        let (name, _) = self.tenant.sources.get_key_value(name).ok_or_else(not_found)?;
        let input: ExplainInput = parse(body)?;
        let method = input.method.as_deref().unwrap_or("POST");
        let method = Method::from_bytes(method.as_bytes()).map_err(|_| invalid("method", "is to be one of HTTP's"))?;
        let body = match (input.body, input.body_base64) {
            (Some(text), None) => text.into(),
            (None, Some(text)) => BASE64_STANDARD
                .decode(text.as_bytes())
                .map_err(|_| invalid("body_base64", "is not base64 with padding"))?
                .into(),
            (None, None) => Bytes::new(),
            (Some(_), Some(_)) => return Err(invalid("body_base64", "stands beside `body`: give one of them")),
        };
        let received_at = input.received_at.unwrap_or_else(|| self.admin.state.clock.now());
        let posed = Posed { method, url: input.url, headers: headers(input.headers)?, body, received_at };
        let steps = self.admin.state.examiner.explain(self.name, name, &posed).ok_or_else(not_found)?;
        let steps: Vec<_> = steps.into_iter().map(|Step { name, ok, detail }| told(name, ok, &detail)).collect();
        let verifies = steps.iter().all(|step| step["ok"] == true) && !steps.is_empty();
        Ok(answer::json(&json!({ "verifies": verifies, "received_at": received_at, "steps": steps })))
    }
}

fn told(step: CheckStep, ok: bool, detail: &str) -> serde_json::Value {
    json!({ "step": step, "ok": ok, "detail": detail })
}
