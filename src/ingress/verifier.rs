//! What ingress asks of a source's verification.

use crate::http::Answer;
use crate::ledger::{AdoptedSecret, Ledger, SourceKey};
use crate::verify::{
    Admission, Answers, ChallengeAnswer, Fetched, KeyAtHand, KeyQuery, KeySource, KeyUrl, Request, Rotation, Source,
    Step, Stop, Unreachable,
};
use arc_swap::ArcSwapOption;
use async_trait::async_trait;
use http::{HeaderValue, header};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A source's scheme with its secrets.
pub trait Verifier: Send + Sync + 'static {
    fn judge(&self, request: Request<'_>, key: KeyAtHand<'_>) -> Result<Admission, Stop>;

    /// The same, step by step, for people.
    fn explain(&self, request: Request<'_>) -> Vec<Step>;

    fn answers(&self) -> Answers {
        Answers::Ours
    }

    /// The methods besides POST that its handshakes come by.
    fn greeting_methods(&self) -> BTreeSet<&'static str> {
        BTreeSet::new()
    }
}

impl Verifier for Source {
    fn explain(&self, request: Request<'_>) -> Vec<Step> {
        Source::explain(self, request)
    }

    fn judge(&self, request: Request<'_>, key: KeyAtHand<'_>) -> Result<Admission, Stop> {
        Source::judge(self, request, key)
    }

    fn answers(&self) -> Answers {
        Source::answers(self)
    }

    fn greeting_methods(&self) -> BTreeSet<&'static str> {
        Source::greeting_methods(self)
    }
}

/// A source whose provider hands the secret over: it verifies by the one that the ledger holds now.
pub struct Adopting {
    waiting: Rotation,
    key: SourceKey,
    ledger: Arc<dyn Ledger>,
    /// For the secret that was held last.
    made: ArcSwapOption<Made>,
}

struct Made {
    of: Arc<AdoptedSecret>,
    /// `None`: the secret is of another scheme that the source had before, and opens nothing.
    source: Option<Source>,
}

impl Adopting {
    /// `waiting` has no secrets of the file.
    pub fn new(waiting: Rotation, key: SourceKey, ledger: Arc<dyn Ledger>) -> Self {
        Adopting { waiting, key, ledger, made: ArcSwapOption::empty() }
    }

    fn made(&self) -> Option<Arc<Made>> {
        let held = self.ledger.adopted(self.key);
        let before = self.made.load_full();
        if before.as_ref().map(|made| Arc::as_ptr(&made.of)) == held.as_ref().map(Arc::as_ptr) {
            return before;
        }
        let made = held.map(|of| Arc::new(Made { source: self.waiting.whole().holding(&of.secret), of }));
        if made.as_ref().is_some_and(|made| made.source.is_none()) {
            tracing::warn!(
                source = ?self.waiting.whole(),
                "the secret that was adopted is none of the scheme that the source has now: forget it, and have the \
                 provider make its webhook anew"
            );
        }
        self.made.store(made.clone());
        made
    }
}

impl Verifier for Adopting {
    fn explain(&self, request: Request<'_>) -> Vec<Step> {
        let made = self.made();
        made.as_ref().and_then(|made| made.source.as_ref()).unwrap_or(self.waiting.whole()).explain(request)
    }

    fn judge(&self, request: Request<'_>, key: KeyAtHand<'_>) -> Result<Admission, Stop> {
        let made = self.made();
        let source = made.as_ref().and_then(|made| made.source.as_ref());
        source.unwrap_or(self.waiting.whole()).judge(request, key)
    }

    fn answers(&self) -> Answers {
        self.waiting.whole().answers()
    }

    fn greeting_methods(&self) -> BTreeSet<&'static str> {
        self.waiting.whole().greeting_methods()
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
    fn explain(&self, request: Request<'_>) -> Vec<Step> {
        Rotation::explain(self, request)
    }

    fn judge(&self, request: Request<'_>, key: KeyAtHand<'_>) -> Result<Admission, Stop> {
        Rotation::judge(self, request, key)
    }

    fn answers(&self) -> Answers {
        self.whole().answers()
    }

    fn greeting_methods(&self) -> BTreeSet<&'static str> {
        self.whole().greeting_methods()
    }
}

pub(super) fn challenge_answer(challenge: ChallengeAnswer) -> Answer {
    let mut answer = Answer::new(challenge.body.into());
    *answer.status_mut() = challenge.status;
    let headers = answer.headers_mut();
    headers.extend(challenge.headers);
    headers.insert(header::CONTENT_TYPE, challenge.content_type);
    // It echoes what the caller sent: no browser is to make a page of it.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}
