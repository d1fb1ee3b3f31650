//! Answers that carry something.

use crate::http::Answer;
use bytes::Bytes;
use http::{HeaderValue, header};
use serde::Serialize;

pub(super) fn json(value: &impl Serialize) -> Answer {
    // Our rows have text keys and finite numbers: writing them does not fail.
    let body = serde_json::to_vec(value).unwrap_or_default();
    typed(HeaderValue::from_static("application/json"), body.into())
}

pub(super) fn typed(content_type: HeaderValue, body: Bytes) -> Answer {
    let mut answer = Answer::new(body.into());
    answer.headers_mut().insert(header::CONTENT_TYPE, content_type);
    answer
}
