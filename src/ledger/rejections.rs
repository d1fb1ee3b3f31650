//! What was refused at the door: kinds and sizes, never what stood in it. A bounded list, the oldest out first.

use super::records::{Page, PageRequest};
use super::{LedgerError, SourceKey, TenantKey};
use crate::clock::Timestamp;
use crate::delivery::Name;
use async_trait::async_trait;
use serde::Serialize;
use std::net::IpAddr;

/// Refused requests that are kept of one source, and of all together.
pub const REJECTIONS_PER_SOURCE_MAX: u32 = 500;
pub const REJECTIONS_MAX: u32 = 20_000;
/// Of a refusal's detail.
pub const REJECTION_DETAIL_BYTES_MAX: usize = 256;

/// The rejection log.
#[async_trait]
pub trait Rejections: Send + Sync + 'static {
    /// Keeps all of them in one commit; what is over the bounds goes, the oldest first.
    async fn keep_rejections(&self, batch: Vec<Rejected>) -> Result<(), LedgerError>;
    /// Newest first.
    async fn rejections(
        &self,
        tenant: TenantKey,
        filter: &RejectionFilter,
        page: &PageRequest,
    ) -> Result<Page<RejectionRow>, LedgerError>;
}

/// A refused request of a source that there is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rejected {
    pub tenant: TenantKey,
    pub source: SourceKey,
    /// When its head arrived.
    pub at: Timestamp,
    /// The `code` of the answer.
    pub reason: &'static str,
    /// The step of the check that failed; `None`: it was refused for something else than its signature.
    pub step: Option<&'static str>,
    /// Names places, never what stands there; the ledger cuts it.
    pub detail: String,
    /// How long before now (negative: after now) its timestamp is, where one was read.
    pub skew_seconds: Option<i64>,
    pub peer: IpAddr,
    /// `None`: the body was not read to its end.
    pub body: Option<BodyFacts>,
}

/// What is told of a body, so that it can be known again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BodyFacts {
    pub bytes: u64,
    /// The first bytes of its SHA-256.
    pub digest: [u8; 8],
}

#[derive(Clone, Debug, Default)]
pub struct RejectionFilter {
    pub source: Option<Name>,
    pub reason: Option<String>,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
}

#[derive(Clone, Debug, Serialize)]
pub struct RejectionRow {
    /// Its place in the list.
    #[serde(skip)]
    pub key: [u8; 16],
    pub at: Timestamp,
    pub source: Name,
    pub reason: String,
    pub step: Option<String>,
    pub detail: String,
    pub skew_seconds: Option<i64>,
    pub peer: String,
    pub body_bytes: Option<u64>,
    /// 16 hexadecimal digits: as many as `sha256sum` begins with.
    pub body_digest: Option<String>,
}
