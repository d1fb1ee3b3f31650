//! How a source whose scheme is code admits and explains requests.

use super::{Builtin, Proof, Reply};
use crate::verify::check::{ID_BYTES_MAX, is_readable};
use crate::verify::event::Verified;
use crate::verify::keys::{KeyAtHand, Stop};
use crate::verify::locator::{Facts, Locator};
use crate::verify::refusal::Refusal;
use crate::verify::source::{Admission, Read, Source, Told};
use std::borrow::Cow;

/// A built-in, with what the data says beside it.
pub(in crate::verify) struct Coded {
    pub(in crate::verify) check: Box<dyn Builtin>,
    /// How many secrets the source has.
    pub(in crate::verify) secrets: usize,
    /// Whether a time is signed, and how far it may be off, where that matters.
    pub(in crate::verify) time: SignedTime,
    pub(in crate::verify) id: Vec<Locator>,
    pub(in crate::verify) event_type: Vec<Locator>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::verify) enum SignedTime {
    None,
    /// It is read, and any will do.
    Any,
    Within,
}

impl Coded {
    pub(in crate::verify) fn judge(
        &self,
        source: &Source,
        facts: &Facts<'_>,
        key: KeyAtHand<'_>,
    ) -> Result<Admission, Stop> {
        let proof = self.check.check(facts, key)?;
        if let Some(Reply::Confirm(url)) = proof.reply {
            return Ok(Admission::Confirm(url));
        }
        let content = |_: &[u8; 16]| proof.content;
        let event_type = proof.event_type.as_deref().map(Cow::Borrowed);
        let read = Read {
            event_type: event_type.or_else(|| self.event_type.iter().find_map(|at| facts.text_at(at))),
            id: self.event_id(&proof, facts),
            content: Some(&content),
        };
        Ok(Admission::Event(Verified::attest(source.event(read, facts))))
    }

    pub(in crate::verify) fn told(&self, facts: &Facts<'_>) -> Result<Told, Refusal> {
        let proof = self.check.check(facts, KeyAtHand::NotAsked).map_err(Stop::offline)?;
        let id = self.event_id(&proof, facts).map(Cow::into_owned);
        Ok(Told { secret: proof.secret, secrets: self.secrets, skew_seconds: proof.skew_seconds, id })
    }

    fn event_id<'r>(&self, proof: &Proof, facts: &Facts<'r>) -> Option<Cow<'r, str>> {
        let own = proof.id.clone().map(Cow::Owned);
        own.or_else(|| self.id.iter().find_map(|at| facts.text_at(at))).filter(|id| is_readable(id, ID_BYTES_MAX))
    }
}
