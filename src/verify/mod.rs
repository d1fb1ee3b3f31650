//! Verification before anything is enqueued.
//!
//! A [`Source`] is a compiled scheme with its secrets. [`Source::admit`] turns a raw request into a
//! [`Verified`] event, a handshake's answer, or a typed [`Refusal`]. `Verified` cannot be built anywhere else, and
//! the ledger accepts nothing else: an unverified event cannot be enqueued.
//!
//! Authoritative: the bytes as received. Event type, provider id and dedup key are only read from them, within bounds.

mod adoption;
mod announcement;
mod builtin;
pub mod cases;
mod challenge;
mod check;
mod compile;
pub mod describe;
mod event;
mod headers;
mod key;
mod keys;
mod locator;
mod pointer;
mod producer;
mod refusal;
mod rotation;
pub mod schemes;
mod sign;
mod source;
mod spec;
pub mod standard;
mod template;

pub use announcement::{ALERT_TYPE, announcement};
pub use builtin::{BodyCover, Param, ParamKind};
pub use compile::{SECRET_BYTES_GOOD, SpecProblem};
pub use event::{Coalesce, Dedup, Event, Relation, Verified};
pub use keys::{Fetched, Found, KeyAtHand, KeyQuery, KeySource, KeyUrl, Stop, Unreachable, with_keys};
pub use producer::{Grant, Publication};
pub use refusal::{CheckStep, Refusal, RefusalCode};
pub use rotation::{ExpiringSecret, Rotation};
pub use sign::{SignError, SignRequest};
pub use source::{Admission, Answers, ChallengeAnswer, Request, Source, Step};
pub use spec::{ChallengeSpec, CheckSpec, SchemeSpec, SigSpec, SourceSpec, TimeSpec};

#[cfg(test)]
mod tests;
