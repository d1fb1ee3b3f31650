//! A source's secrets as keys of one message authentication code.

use super::read::mismatch;
use crate::verify::key::{Algorithm, Candidate, Encoding, Key, candidate, undecodable};
use crate::verify::refusal::{CheckStep, Refusal};
use crate::verify::sign::SignError;

pub(in crate::verify) struct Macs {
    algorithm: Algorithm,
    encoding: Encoding,
    /// As many as the source has secrets, in their order.
    keys: Vec<Key>,
}

impl Macs {
    pub(in crate::verify) fn new(algorithm: Algorithm, encoding: Encoding, keys: Vec<Key>) -> Macs {
        Macs { algorithm, encoding, keys }
    }

    /// One presented signature.
    pub(super) fn decode(&self, text: &str) -> Result<Candidate, Refusal> {
        candidate(self.algorithm, Some(self.encoding), text.as_bytes())
            .ok_or_else(|| Refusal::malformed(CheckStep::Decoding, undecodable(self.algorithm, Some(self.encoding))))
    }

    /// Which secret made one of the candidates. All are tried, so that the time tells nothing about which it was.
    pub(super) fn made(&self, parts: &[&[u8]], candidates: &[Candidate]) -> Option<usize> {
        let mut hit = None;
        for (number, key) in self.keys.iter().enumerate() {
            hit = hit.or(key.matches(parts, candidates).then_some(number));
        }
        hit
    }

    /// The same, or the refusal.
    pub(super) fn prove(&self, parts: &[&[u8]], candidates: &[Candidate]) -> Result<usize, Refusal> {
        self.made(parts, candidates).ok_or_else(mismatch)
    }

    /// The first secret's signature.
    pub(super) fn sign(&self, parts: &[&[u8]]) -> Result<String, SignError> {
        let signature = self.keys.first().and_then(|key| key.sign(parts, Some(self.encoding)));
        signature.map(|text| text.to_string()).ok_or(SignError::NoSigningKey)
    }
}
