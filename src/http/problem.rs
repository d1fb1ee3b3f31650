//! How an error is told: RFC 9457.

use super::answer::Answer;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::time::Duration;

/// An answer that says no. `code` is for programs, `detail` for people.
#[derive(Clone, Debug)]
pub struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: Cow<'static, str>,
    members: Vec<(&'static str, Value)>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Problem {
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Problem { status, code, detail: detail.into(), members: Vec::new(), headers: Vec::new() }
    }

    pub fn status(&self) -> StatusCode {
        self.status
    }

    pub fn code(&self) -> &'static str {
        self.code
    }

    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// A further member, such as `field` or `limit`.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.members.push((name, value.into()));
        self
    }

    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Says when to come again: whole seconds, rounded up, at least one.
    #[must_use]
    pub fn retry_after(self, wait: Duration) -> Self {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        self.header(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)))
    }

    /// 405 with what would be allowed.
    pub fn method_not_allowed(allow: &'static str) -> Self {
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", format!("only {allow} is allowed here"))
            .header(header::ALLOW, HeaderValue::from_static(allow))
    }

    /// The members as JSON.
    pub fn to_json(&self) -> Value {
        let mut all = Map::new();
        all.insert("type".into(), "about:blank".into());
        all.insert("title".into(), self.status.canonical_reason().unwrap_or("Error").into());
        all.insert("status".into(), self.status.as_u16().into());
        all.insert("code".into(), self.code.into());
        all.insert("detail".into(), self.detail.as_ref().into());
        all.extend(self.members.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        Value::Object(all)
    }

    pub fn into_answer(self) -> Answer {
        let body = Bytes::from(self.to_json().to_string());
        let mut answer = self.into_bare_answer();
        *answer.body_mut() = body.into();
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        answer
    }

    /// Without a body, for callers that want none: the status says all.
    pub fn into_bare_answer(self) -> Answer {
        let mut answer = Answer::default();
        *answer.status_mut() = self.status;
        let headers: &mut HeaderMap = answer.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.extend(self.headers);
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_has_its_members_and_headers() {
        let problem = Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", "too large").with("limit", 7);
        let answer = problem.clone().retry_after(Duration::from_millis(1_001)).into_answer();
        assert_eq!(answer.status(), 413);
        assert_eq!(answer.headers()["content-type"], "application/problem+json");
        assert_eq!(answer.headers()["retry-after"], "2");
        let expected = serde_json::json!({
            "type": "about:blank", "title": "Payload Too Large", "status": 413,
            "code": "body_too_large", "detail": "too large", "limit": 7,
        });
        assert_eq!(problem.to_json(), expected);
    }

    #[test]
    fn a_wait_is_at_least_a_second() {
        let answer = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "later").retry_after(Duration::ZERO);
        assert_eq!(answer.into_answer().headers()["retry-after"], "1");
    }
}
