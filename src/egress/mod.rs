//! One guarded exchange over HTTP: DNS, address guard, connect, TLS, one request, a bounded answer.
//!
//! It neither knows why it sends nor how often it has been tried: no redirect, no proxy from the environment, no
//! retry, no decompression. Authoritative for the guard is the socket address that is dialled.

use crate::delivery::{Phase, Reason, TransportKind};
use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use std::time::Duration;

/// One request to be made once.
#[derive(Clone, Debug)]
pub struct Outbound {
    /// Connections are never shared between endpoints: the endpoint's key in the ledger.
    pub pool: u32,
    /// Parsed and normalised; judged by the guard all the same.
    pub url: url::Url,
    pub method: Method,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// For the whole exchange, from the look-up of the name to the last byte read.
    pub timeout: Duration,
    /// Body bytes to keep; what is beyond is cut and marked.
    pub body_kept_max: usize,
}

/// How it ended.
#[derive(Clone, Debug)]
pub enum Exchange {
    Answered(Answer),
    Failed(Failure),
    /// The address guard or the URL rules refused it: nothing was sent. `detail` is for the operator's eyes only.
    Refused {
        reason: Reason,
        detail: String,
    },
}

/// A complete response head, and a sample of the body.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub body_truncated: bool,
    pub elapsed: Duration,
}

/// No complete response head arrived in time.
#[derive(Clone, Debug)]
pub struct Failure {
    pub kind: TransportKind,
    pub phase: Phase,
    /// For people, without addresses.
    pub detail: String,
    pub elapsed: Duration,
}

/// What dispatch sends through. The one implementation with sockets is the client of this room.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    async fn send(&self, request: Outbound) -> Exchange;
}
