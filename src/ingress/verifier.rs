//! What ingress asks of a source's verification.

use crate::clock::Timestamp;
use crate::http::Answer;
use crate::verify::{Event, Verified};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::Full;

/// A source's scheme with its secrets.
pub trait Verifier: Send + Sync + 'static {
    fn admit(&self, request: Request<'_>) -> Result<Admission, Refusal>;
}

/// A request as it came.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub method: &'a Method,
    /// What the sender called: the public URL's origin, with the path and query as they came.
    pub url: &'a str,
    pub headers: &'a HeaderMap,
    pub body: &'a Bytes,
    pub received_at: Timestamp,
}

/// What a request turned out to be.
#[derive(Debug)]
pub enum Admission {
    Event(Verified<Event>),
    /// A scheme's handshake, which the gateway answers itself.
    Challenge(ChallengeAnswer),
}

#[derive(Clone, Debug)]
pub struct ChallengeAnswer {
    pub status: StatusCode,
    pub content_type: HeaderValue,
    pub body: Bytes,
}

/// Why a request is not let in. Carries no secret and no expected signature.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub code: &'static str,
    pub detail: String,
}

impl ChallengeAnswer {
    pub(super) fn into_answer(self) -> Answer {
        let mut answer = Answer::new(Full::new(self.body));
        *answer.status_mut() = self.status;
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_TYPE, self.content_type);
        // It echoes what the caller sent: no browser is to make a page of it.
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        answer
    }
}
