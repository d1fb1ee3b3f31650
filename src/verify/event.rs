//! What is handed on: an event that was verified.

use crate::clock::Timestamp;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use std::ops::Deref;
use std::time::Duration;

/// Proof that a check was passed: only this room can make one.
#[derive(Clone, Debug)]
pub struct Verified<T>(T);

impl<T> Verified<T> {
    /// For this room alone: the caller has done the check.
    pub(in crate::verify) fn attest(inner: T) -> Self {
        Verified(inner)
    }

    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> Deref for Verified<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// What makes a second request the same as a first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dedup {
    /// The first 16 bytes of SHA-256 over tenant, source (or "published") and the dedup key, length-prefixed.
    pub digest: [u8; 16],
    /// How long the key is remembered, from the acceptance of the first.
    pub window: Duration,
}

/// One request, byte for byte, with what was read from it.
#[derive(Clone, Debug)]
pub struct Event {
    /// At most 256 bytes; `""` when the scheme names none and none was found.
    pub event_type: String,
    /// As the sender wrote it; `""` when absent.
    pub content_type: String,
    /// End-to-end headers to pass on: no hop-by-hop header, credential, cookie, signature or token.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub body: Bytes,
    /// The logical key of a published event.
    pub key: Option<String>,
    /// The provider's event id, where the scheme has one.
    pub provider_id: Option<String>,
    /// `None`: every request is a new event.
    pub dedup: Option<Dedup>,
    /// The first 16 bytes of SHA-256 over the body: tells a repetition from a key that was used again.
    pub body_digest: [u8; 16],
    /// When the request's head arrived.
    pub received_at: Timestamp,
    /// Published events only: not before this time.
    pub deliver_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    pub deadline: Option<Timestamp>,
}
