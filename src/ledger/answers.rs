//! What was answered to a request that its caller named, so that a repetition of it hears the same.

use super::{LedgerError, TenantKey};
use crate::clock::Timestamp;
use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use std::time::Duration;

/// From then on a key means nothing again.
pub const ANSWERS_KEPT_FOR: Duration = Duration::from_secs(24 * 3600);
/// A larger answer is not kept: what it answers is asked again.
pub const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Answers by the key that their request came with.
#[async_trait]
pub trait Answers: Send + Sync + 'static {
    /// `None`: the tenant has none under this key, or none any more.
    async fn kept_answer(
        &self,
        tenant: TenantKey,
        request: &RequestId,
        now: Timestamp,
    ) -> Result<Option<KeptAnswer>, LedgerError>;
    /// In place of what stood under the key.
    async fn keep_answer(
        &self,
        tenant: TenantKey,
        request: &RequestId,
        answer: KeptAnswer,
        now: Timestamp,
    ) -> Result<(), LedgerError>;
}

/// What a caller calls one request, so that a repetition of it is known.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RequestId(String);

impl RequestId {
    pub const CHARS_MAX: usize = 255;

    /// `None`: not 1 to 255 visible ASCII characters.
    pub fn new(text: &str) -> Option<Self> {
        let right = (1..=Self::CHARS_MAX).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
        right.then(|| RequestId(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptAnswer {
    /// The digest of the request that it answers.
    pub asked: [u8; 32],
    pub status: u16,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub body: Bytes,
}
