//! What ingress asks of a source's verification.

use crate::http::Answer;
use crate::verify::{Admission, ChallengeAnswer, Refusal, Request, Source};
use http::{HeaderValue, header};
use http_body_util::Full;

/// A source's scheme with its secrets.
pub trait Verifier: Send + Sync + 'static {
    fn admit(&self, request: Request<'_>) -> Result<Admission, Refusal>;
}

impl Verifier for Source {
    fn admit(&self, request: Request<'_>) -> Result<Admission, Refusal> {
        Source::admit(self, request)
    }
}

pub(super) fn challenge_answer(challenge: ChallengeAnswer) -> Answer {
    let mut answer = Answer::new(Full::new(challenge.body));
    *answer.status_mut() = challenge.status;
    let headers = answer.headers_mut();
    headers.extend(challenge.headers);
    headers.insert(header::CONTENT_TYPE, challenge.content_type);
    // It echoes what the caller sent: no browser is to make a page of it.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}
