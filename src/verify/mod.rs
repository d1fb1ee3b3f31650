//! Verification before anything is enqueued.
//!
//! A [`Source`] is a compiled scheme with its secrets. [`Source::admit`] turns a raw request into a
//! [`Verified`] event, a handshake's answer, or a typed [`Refusal`]. `Verified` cannot be built anywhere else, and
//! the ledger accepts nothing else: an unverified event cannot be enqueued.
//!
//! Authoritative: the bytes as received. Event type, provider id and dedup key are only read from them, within bounds.

mod event;
mod producer;
mod spec;

pub use event::{Dedup, Event, Verified};
pub use producer::{Grant, Publication};
pub use spec::{SchemeSpec, SigSpec, SourceSpec, TimeSpec};
