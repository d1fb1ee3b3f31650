//! Why a request is not let in. Nothing here carries an expected signature, a secret, or a value of the request.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The word of a refusal, part of the public contract.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// A required header, or a required field of the body or query, is absent or empty.
    MissingHeader,
    Malformed,
    TimestampTooOld,
    TimestampTooNew,
    SignatureMismatch,
    UnknownKey,
    UnsupportedAlgorithm,
    UntrustedKeyUrl,
    InsufficientCoverage,
    /// The source waits for the handshake that brings its secret.
    NoSecret,
    /// A handshake that brings a secret to a source that has another.
    SecretHeld,
    /// It looks like a handshake that only who knows a token may ask for, and does not know it.
    HandshakeRefused,
}

impl RefusalCode {
    pub const ALL: [RefusalCode; 12] = [
        RefusalCode::MissingHeader,
        RefusalCode::Malformed,
        RefusalCode::TimestampTooOld,
        RefusalCode::TimestampTooNew,
        RefusalCode::SignatureMismatch,
        RefusalCode::UnknownKey,
        RefusalCode::UnsupportedAlgorithm,
        RefusalCode::UntrustedKeyUrl,
        RefusalCode::InsufficientCoverage,
        RefusalCode::NoSecret,
        RefusalCode::SecretHeld,
        RefusalCode::HandshakeRefused,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            RefusalCode::MissingHeader => "missing_header",
            RefusalCode::Malformed => "malformed",
            RefusalCode::TimestampTooOld => "timestamp_too_old",
            RefusalCode::TimestampTooNew => "timestamp_too_new",
            RefusalCode::SignatureMismatch => "signature_mismatch",
            RefusalCode::UnknownKey => "unknown_key",
            RefusalCode::UnsupportedAlgorithm => "unsupported_algorithm",
            RefusalCode::UntrustedKeyUrl => "untrusted_key_url",
            RefusalCode::InsufficientCoverage => "insufficient_coverage",
            RefusalCode::NoSecret => "no_secret",
            RefusalCode::SecretHeld => "secret_held",
            RefusalCode::HandshakeRefused => "handshake_refused",
        }
    }
}

impl fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The steps of a check, in their order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckStep {
    /// What the scheme needs is there, once, and not empty.
    Presence,
    /// The signature header and the timestamp can be read.
    Structure,
    /// The timestamp lies in the window.
    Timestamp,
    /// A signature decodes to bytes of the right length.
    Decoding,
    /// A secret made one of the signatures.
    Match,
    /// The event's id has the scheme's form.
    Id,
}

impl CheckStep {
    pub const ALL: [CheckStep; 6] = [
        CheckStep::Presence,
        CheckStep::Structure,
        CheckStep::Timestamp,
        CheckStep::Decoding,
        CheckStep::Match,
        CheckStep::Id,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            CheckStep::Presence => "presence",
            CheckStep::Structure => "structure",
            CheckStep::Timestamp => "timestamp",
            CheckStep::Decoding => "decoding",
            CheckStep::Match => "match",
            CheckStep::Id => "id",
        }
    }
}

/// A request that is not let in.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct Refusal {
    pub code: RefusalCode,
    /// The step that failed; those before it passed.
    pub step: CheckStep,
    /// For people: names places, never what stands there.
    pub detail: String,
    /// How long before now (negative: after now) the timestamp is, where one was read.
    pub skew_seconds: Option<i64>,
}

impl Refusal {
    pub(super) fn new(code: RefusalCode, step: CheckStep, detail: impl Into<String>) -> Self {
        Refusal { code, step, detail: detail.into(), skew_seconds: None }
    }

    /// For a handshake that brings another secret than the source has.
    pub fn secret_held() -> Self {
        let detail = "the source has a secret, and the handshake brings another";
        Refusal::new(RefusalCode::SecretHeld, CheckStep::Match, detail)
    }

    pub(super) fn missing(detail: impl Into<String>) -> Self {
        Refusal::new(RefusalCode::MissingHeader, CheckStep::Presence, detail)
    }

    pub(super) fn malformed(step: CheckStep, detail: impl Into<String>) -> Self {
        Refusal::new(RefusalCode::Malformed, step, detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_same_everywhere() {
        for code in RefusalCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
        for step in CheckStep::ALL {
            assert_eq!(serde_json::to_value(step).unwrap(), step.as_str());
        }
    }
}
