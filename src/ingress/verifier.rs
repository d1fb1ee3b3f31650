//! What ingress asks of a source's verification.

use crate::http::Answer;
use crate::verify::{
    Admission, Answers, ChallengeAnswer, Fetched, KeyAtHand, KeyQuery, KeySource, KeyUrl, Request, Rotation, Source,
    Stop, Unreachable,
};
use async_trait::async_trait;
use http::{HeaderValue, header};
use http_body_util::Full;

/// A source's scheme with its secrets.
pub trait Verifier: Send + Sync + 'static {
    fn judge(&self, request: Request<'_>, key: KeyAtHand<'_>) -> Result<Admission, Stop>;

    fn answers(&self) -> Answers {
        Answers::Ours
    }
}

impl Verifier for Source {
    fn judge(&self, request: Request<'_>, key: KeyAtHand<'_>) -> Result<Admission, Stop> {
        Source::judge(self, request, key)
    }

    fn answers(&self) -> Answers {
        Source::answers(self)
    }
}

/// For an ingress that was given no source of keys.
pub(super) struct NoKeys;

#[async_trait]
impl KeySource for NoKeys {
    async fn fetch(&self, _: &KeyQuery) -> Result<Option<Fetched>, Unreachable> {
        Err(Unreachable("no source of keys".to_owned()))
    }

    async fn confirm(&self, _: &KeyUrl) -> Result<(), Unreachable> {
        Err(Unreachable("no source of keys".to_owned()))
    }
}

impl Verifier for Rotation {
    fn judge(&self, request: Request<'_>, key: KeyAtHand<'_>) -> Result<Admission, Stop> {
        Rotation::judge(self, request, key)
    }

    fn answers(&self) -> Answers {
        self.whole().answers()
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
