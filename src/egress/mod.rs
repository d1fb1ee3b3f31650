//! One guarded exchange over HTTP: DNS, address guard, connect, TLS, one request, a bounded answer.
//!
//! It neither knows why it sends nor how often it has been tried: no redirect, no proxy from the environment, no
//! retry, no decompression. Authoritative for the guard is the socket address that is dialled.

mod client;
mod connect;
mod fault;
mod guard;
mod keys;
mod pool;
mod resolve;
mod rule;
mod wire;

pub use client::Client;
pub use guard::{Checked, Denied, Guard, Refusal};
pub use keys::Keys;
pub use resolve::{Resolver, SystemResolver, Unresolved};
pub use rule::{AllowRule, RuleError};

use crate::delivery::{Phase, Reason, TransportKind};
use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use rustls_pki_types::CertificateDer;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// What the operator decides about going out. The allow-list never comes from a tenant.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What the address guard lets through although it would deny it.
    pub allow: Vec<AllowRule>,
    /// Whether `http://` may go to any address that the guard permits, not only to those of `allow`.
    pub allow_http: bool,
    /// Where this process listens itself; an unspecified address stands for every address of the machine.
    pub own_listeners: Vec<SocketAddr>,
    /// For the look-up of a name, both families together.
    pub dns_timeout: Duration,
    /// For all the addresses of a name together.
    pub connect_timeout: Duration,
    pub tls_timeout: Duration,
    /// The longest response head; informational responses in front of it have a multiple of that.
    pub head_bytes_max: usize,
    /// Body bytes read before the connection is given up.
    pub body_read_max: usize,
    /// How long a connection waits for its next request.
    pub idle: Duration,
    /// How long a connection lives at most; what is under way is finished.
    pub age: Duration,
    /// Waiting connections over all endpoints.
    pub idle_connections_max: usize,
    /// Certificate authorities beside those of the machine.
    pub extra_roots: Vec<CertificateDer<'static>>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            allow: Vec::new(),
            allow_http: false,
            own_listeners: Vec::new(),
            dns_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            tls_timeout: Duration::from_secs(5),
            head_bytes_max: 32 << 10,
            body_read_max: 64 << 10,
            idle: Duration::from_secs(5),
            age: Duration::from_secs(60),
            idle_connections_max: 1024,
            extra_roots: Vec::new(),
        }
    }
}

/// Why no client could be built. For the operator.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("egress: certificate {index} of the extra roots is not usable: {why}; give X.509 CA certificates")]
    ExtraRoot { index: usize, why: rustls::Error },
    #[error("egress: head_bytes_max is {given}, less than the least of {least}; raise it")]
    HeadLimit { given: usize, least: usize },
    #[error("egress: TLS cannot be set up: {0}")]
    Tls(rustls::Error),
}

/// One request to be made once.
#[derive(Clone)]
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

/// Headers may carry credentials, and path and body belong to the tenant: none of them is printed.
impl fmt::Debug for Outbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbound")
            .field("pool", &self.pool)
            .field("method", &self.method)
            .field("headers", &self.headers.len())
            .field("body_bytes", &self.body.len())
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
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
#[derive(Clone)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub body_truncated: bool,
    pub elapsed: Duration,
    pub timings: Timings,
}

/// What a receiver says belongs to the tenant: neither headers nor body are printed.
impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer")
            .field("status", &self.status)
            .field("headers", &self.headers.len())
            .field("body_bytes", &self.body.len())
            .field("body_truncated", &self.body_truncated)
            .field("elapsed", &self.elapsed)
            .field("timings", &self.timings)
            .finish()
    }
}

/// No complete response head arrived in time.
#[derive(Clone, Debug)]
pub struct Failure {
    pub kind: TransportKind,
    pub phase: Phase,
    /// For people, without addresses.
    pub detail: String,
    pub elapsed: Duration,
    pub timings: Timings,
}

/// Where the time went. A step that was not taken, or not finished, has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    pub dns: Option<Duration>,
    pub connect: Option<Duration>,
    pub tls: Option<Duration>,
    /// From the start of the exchange to the complete response head.
    pub head: Option<Duration>,
    /// The request went over a connection that an earlier one had opened.
    pub reused: bool,
}

/// What dispatch sends through. The one implementation with sockets is the client of this room.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    async fn send(&self, request: Outbound) -> Exchange;
}
