//! The secret that a provider makes up and hands over: the first handshake says what it is.
//!
//! Nothing proves such a request, so it is believed once, by a source that has no secret, and matched to the letter:
//! nothing that could be an event or carry a signature is one. Here is the judgement alone; whoever asks for it keeps
//! the secret, and only then gives the answer.

use super::compile::SECRET_BYTES_GOOD;
use super::locator::{Facts, Locator, Place};
use super::refusal::{CheckStep, Refusal};
use super::source::{Admission, Source};
use crate::secret::Secret;

const SECRET_BYTES_MAX: usize = 256;
/// A longer body may be an event.
const BODY_BYTES_MAX: usize = 256;

impl Source {
    /// Whether it has no secret, and takes the one that its provider hands over.
    pub fn waits(&self) -> bool {
        self.waits.is_some()
    }

    /// The same source once it has its secret. `None`: it does not wait for one, or this cannot be its secret.
    pub fn holding(&self, secret: &Secret) -> Option<Source> {
        self.waits.as_ref()?.compile(&self.tenant, &self.name, vec![secret.clone()]).ok()
    }

    /// What a request that brings a secret comes to. `None`: it brings none.
    pub(super) fn adoption(&self, facts: &Facts<'_>) -> Option<Result<Admission, Refusal>> {
        let mut signatures = self.alternatives().flat_map(|alternative| &alternative.sig.at);
        if facts.request.body.len() > BODY_BYTES_MAX || signatures.any(|at| is_there(facts, at)) {
            return None;
        }
        let challenges = || {
            let all = self.alternatives().flat_map(|alternative| &alternative.challenges);
            all.filter(|challenge| challenge.adopts())
        };
        if let Some(answer) = challenges().find_map(|challenge| challenge.answer(facts, None)) {
            return Some(Ok(Admission::Challenge(answer)));
        }
        let (at, text, answer) = challenges()
            .filter_map(|challenge| {
                let check = challenge.check.as_ref()?;
                Some((&check.at, facts.text_at(&check.at)?, challenge.unchecked_answer(facts, None)?))
            })
            .next()?;
        let secret = Secret::new(text.as_bytes());
        let fits =
            (SECRET_BYTES_GOOD..=SECRET_BYTES_MAX).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
        Some(if !fits {
            let rule = format!("{at} is not {SECRET_BYTES_GOOD} to {SECRET_BYTES_MAX} visible ASCII characters");
            Err(Refusal::malformed(CheckStep::Structure, rule))
        } else if self.waits.is_none() {
            Err(Refusal::secret_held())
        } else if self.holding(&secret).is_none() {
            Err(Refusal::malformed(CheckStep::Structure, format!("{at} is no secret of the scheme's form")))
        } else {
            Ok(Admission::Adopt { secret, answer })
        })
    }
}

/// Whether anything stands there, be it empty or there twice.
fn is_there(facts: &Facts<'_>, at: &Locator) -> bool {
    match at {
        Locator::Header(_, name) => facts.request.headers.contains_key(name),
        at => matches!(facts.at(at), Place::Value(_) | Place::Repeated),
    }
}
