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

/// What makes a second request the same as a first. The ledger's rule, in this order, over what is in its window:
///
/// 1. `digest` is known: with the same body this is a duplicate of that event, with another body the key was used
///    again and the first is kept.
/// 2. `content` is known: the same signed request under another key, a duplicate of that event.
/// 3. Else the event is new, and both keys are remembered with it.
///
/// Only a new event is remembered: a replay must not take a key away from the event that will come with it. Both kinds
/// are looked up in one set. They never meet there but where they should: the `digest` of a request without a key is
/// its signed content, and equals the `content` of the same request with one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dedup {
    /// The first 16 bytes of SHA-256 over tenant, source (or "published") and the dedup key, length-prefixed. The key
    /// is the event's id or what stands at the source's locator; where there is none, the signed content.
    pub digest: [u8; 16],
    /// The same over the signed content, where the signature does not cover the key, so that anybody who saw the
    /// request could send it under another. `None`: the key is covered.
    pub content: Option<[u8; 16]>,
    /// How long both are remembered, from the acceptance of the first.
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
    /// Published events only. Few have it, so it takes little room.
    pub relation: Option<Box<Relation>>,
}

impl Event {
    pub fn ordering_key(&self) -> Option<&str> {
        match self.relation.as_deref() {
            Some(Relation::Ordered(key)) => Some(key),
            Some(Relation::Coalesced(_)) | None => None,
        }
    }

    pub fn coalesce(&self) -> Option<&Coalesce> {
        match self.relation.as_deref() {
            Some(Relation::Coalesced(coalesce)) => Some(coalesce),
            Some(Relation::Ordered(_)) | None => None,
        }
    }
}

/// What an event is to others with the same key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Relation {
    /// They are sent one after the other, where an endpoint orders by key.
    Ordered(String),
    Coalesced(Coalesce),
}

/// An event that later ones with the same key may take the place of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Coalesce {
    pub key: String,
    /// From the first event of a window to its end.
    pub window: Duration,
}
