//! Tenant code: components of `wit/`, compiled once, a fresh instance for every call, bounded in memory and time.
//!
//! A plugin is asked and gives advice; what to do with it is not this room's business. It gets no network, files,
//! environment, clock or chance.

mod absent;
mod artefact;
mod bindings;
mod call;
pub mod compare;
pub mod compile;
pub mod component;
mod convert;
mod engine;
pub mod fixture;
mod host;
mod inspect;
mod lane;
mod limits;
mod load;
mod owned;
mod rules;
mod ticker;

pub use absent::Absent;
pub use compile::{CompileLimits, Compiler};
pub use engine::Allocator;
pub use host::{Host, HostError, Settings};
pub use inspect::{Survey, look, survey};
pub use limits::{CONFIG_BYTES_MAX, Limits};
pub use rules::Plugin;

use crate::clock::Timestamp;
use crate::delivery::{Fault, Reason, TransportKind, Verdict};
use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Method};
use std::fmt;
use std::time::Duration;

/// The event, as a plugin sees it.
#[derive(Clone, Copy, Debug)]
pub struct EventView<'a> {
    pub id: &'a str,
    pub event_type: &'a str,
    pub accepted_at: Timestamp,
    pub content_type: &'a str,
    /// Open set of facts: source, logical key, …
    pub attributes: &'a [(&'a str, String)],
    pub payload: &'a Bytes,
}

/// The endpoint, as a plugin sees it.
#[derive(Clone, Copy, Debug)]
pub struct EndpointView<'a> {
    pub id: &'a str,
    pub url: &'a str,
    /// JSON text; `{}` if none.
    pub config: &'a str,
}

/// The attempt, as a plugin sees it.
#[derive(Clone, Copy, Debug)]
pub struct AttemptView<'a> {
    pub event_id: &'a str,
    pub event_type: &'a str,
    pub number: u32,
    pub max_attempts: u32,
    pub idempotency_key: &'a str,
    pub now: Timestamp,
    pub attributes: &'a [(&'a str, String)],
}

/// What came back, as a plugin sees it.
#[derive(Clone, Copy, Debug)]
pub enum OutcomeView<'a> {
    Response { status: u16, headers: &'a HeaderMap, body: &'a Bytes, body_truncated: bool, elapsed: Duration },
    Failed { kind: TransportKind, may_have_been_received: bool, detail: &'a str, elapsed: Duration },
}

/// What `transform` made of an event. Checked by this room: no host-owned header, a clean path, bounded sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transformed {
    Send { method: Method, path_and_query: Option<String>, headers: HeaderMap, body: Bytes },
    Skip(Reason),
}

/// One line a plugin wrote: at most 1 KiB, control characters escaped.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LogLine {
    pub level: String,
    pub message: String,
}

/// A call that was made, with what it cost.
#[derive(Clone, Debug)]
pub struct Call<T> {
    pub result: Result<T, Fault>,
    /// Without waiting: of a long call, the CPU time that it was given.
    pub took: Duration,
    /// All linear memories of the instance together, at the end.
    pub memory_bytes: usize,
    pub log: Vec<LogLine>,
    pub log_lines_dropped: u32,
}

impl<T> Call<T> {
    /// One that did not come to run.
    fn not_made(fault: Fault) -> Self {
        Call { result: Err(fault), took: Duration::ZERO, memory_bytes: 0, log: Vec::new(), log_lines_dropped: 0 }
    }
}

/// SHA-256 of a component: what names a version of a plugin.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    pub fn of(wasm: &[u8]) -> Self {
        use sha2::Digest as _;
        Digest(sha2::Sha256::digest(wasm).into())
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Lower-case hexadecimal.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why an upload is no plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rule}: {finding}; {remedy}")]
pub struct Rejected {
    /// `size`, `format`, `imports`, `version`, `exports`, `compile`, `compile_limit`, `resources`, `types`,
    /// `memory` or `instantiation`; or `host`, when the fault is not the plugin's.
    pub rule: &'static str,
    pub finding: String,
    pub remedy: String,
}

impl Rejected {
    fn host(finding: String) -> Self {
        Rejected { rule: "host", finding, remedy: "this is not the plugin's fault: try again".into() }
    }
}

/// Which of the two exports a plugin has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exports {
    pub transform: bool,
    pub classify: bool,
}

/// What dispatch asks. The one implementation with wasmtime is the plugin of this room.
#[async_trait]
pub trait Rules: Send + Sync + 'static {
    fn exports(&self) -> Exports;

    async fn transform(
        &self,
        event: EventView<'_>,
        to: EndpointView<'_>,
        attempt: AttemptView<'_>,
    ) -> Call<Transformed>;

    async fn classify(&self, to: EndpointView<'_>, attempt: AttemptView<'_>, outcome: OutcomeView<'_>)
    -> Call<Verdict>;
}
