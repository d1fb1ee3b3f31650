//! What the API answers, as far as pages show it.

use crate::clock::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Deserialize)]
pub(super) struct List<T> {
    pub(super) items: Vec<T>,
    pub(super) next: Option<String>,
}

#[derive(Clone, Deserialize)]
pub(super) struct Tenant {
    pub(super) name: String,
}

#[derive(Deserialize)]
pub(super) struct Event {
    pub(super) id: String,
    #[serde(rename = "type")]
    pub(super) event_type: String,
    pub(super) source: Option<String>,
    pub(super) key: Option<String>,
    pub(super) provider_id: Option<String>,
    pub(super) content_type: String,
    pub(super) body_bytes: u64,
    pub(super) body_erased: bool,
    pub(super) accepted_at: Timestamp,
    pub(super) deliver_at: Option<Timestamp>,
    pub(super) expires_at: Option<Timestamp>,
    pub(super) deadline: Option<Timestamp>,
    pub(super) ordering_key: Option<String>,
    pub(super) coalesce_key: Option<String>,
    pub(super) superseded_by: Option<String>,
    pub(super) hint: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Delivery {
    pub(super) id: String,
    pub(super) event: String,
    pub(super) event_type: String,
    pub(super) key: Option<String>,
    pub(super) source: Option<String>,
    pub(super) endpoint: String,
    pub(super) host: String,
    pub(super) state: String,
    pub(super) reason: Option<String>,
    pub(super) attempt_count: u64,
    pub(super) generation: u64,
    pub(super) revision: u64,
    pub(super) due_at: Option<Timestamp>,
    pub(super) created_at: Timestamp,
    pub(super) finished_at: Option<Timestamp>,
    pub(super) expires_at: Option<Timestamp>,
    pub(super) deadline: Option<Timestamp>,
    pub(super) last_status: Option<u16>,
    pub(super) reference: Option<String>,
    pub(super) idempotency_key: String,
    pub(super) ordering_key: Option<String>,
    pub(super) held_by: Option<String>,
    pub(super) note: Option<String>,
    #[serde(default)]
    pub(super) attempts: Vec<Attempt>,
}

#[derive(Deserialize)]
pub(super) struct Attempt {
    pub(super) number: u32,
    pub(super) generation: u64,
    pub(super) revision: u64,
    pub(super) started_at: Timestamp,
    pub(super) duration_ms: Option<u64>,
    pub(super) outcome: Option<String>,
    pub(super) status: Option<u16>,
    pub(super) verdict: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) decided_by: Option<String>,
    pub(super) disposition: Option<String>,
    pub(super) next_at: Option<Timestamp>,
    pub(super) clamped_from_ms: Option<u64>,
    pub(super) ambiguous: bool,
    pub(super) plugin_version: Option<String>,
    pub(super) plugin_ms: Option<f64>,
    #[serde(default)]
    pub(super) plugin_log: Vec<LogLine>,
    #[serde(default)]
    pub(super) plugin_log_dropped: u64,
    pub(super) detail: Option<String>,
    pub(super) response_headers: Option<Vec<(String, String)>>,
    pub(super) response_body: Option<String>,
    pub(super) response_body_base64: Option<String>,
    #[serde(default)]
    pub(super) response_body_truncated: bool,
    pub(super) request_method: Option<String>,
    pub(super) request_path: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct LogLine {
    pub(super) level: String,
    pub(super) message: String,
}

#[derive(Deserialize)]
pub(super) struct DeadGroup {
    pub(super) endpoint: Option<String>,
    pub(super) host: String,
    pub(super) status: Option<u16>,
    pub(super) reason: String,
    pub(super) plugin_version: Option<String>,
    pub(super) count: u64,
    pub(super) oldest_at: Timestamp,
    pub(super) newest_at: Timestamp,
    pub(super) sample: String,
}

#[derive(Deserialize)]
pub(super) struct Rehearsed {
    pub(super) count: u64,
    #[serde(default)]
    pub(super) samples: Vec<Delivery>,
}

#[derive(Deserialize)]
pub(super) struct Purged {
    pub(super) purged: u64,
    pub(super) more: bool,
}

#[derive(Clone, Deserialize)]
pub(super) struct Operation {
    pub(super) id: String,
    pub(super) kind: String,
    pub(super) state: String,
    pub(super) why: Option<String>,
    #[serde(default)]
    pub(super) filter: Value,
    pub(super) total: u64,
    pub(super) max: Option<u64>,
    pub(super) rate: u64,
    pub(super) canary: Option<CanaryWave>,
    pub(super) done: u64,
    pub(super) left: u64,
    pub(super) time_left_seconds: Option<u64>,
    pub(super) delivered: u64,
    pub(super) dead_again: u64,
    pub(super) waiting: u64,
    pub(super) otherwise: u64,
    #[serde(default)]
    pub(super) skipped: BTreeMap<String, u64>,
    #[serde(default)]
    pub(super) had_died_of: BTreeMap<String, u64>,
    pub(super) by: String,
    pub(super) note: Option<String>,
    pub(super) began_at: Timestamp,
    pub(super) started_at: Option<Timestamp>,
    pub(super) ended_at: Option<Timestamp>,
}

#[derive(Clone, Deserialize)]
pub(super) struct CanaryWave {
    pub(super) wave: u64,
    pub(super) size: u64,
    pub(super) left: u64,
}

#[derive(Deserialize)]
pub(super) struct Endpoint {
    pub(super) name: String,
    pub(super) host: String,
    pub(super) url: Option<String>,
    pub(super) status: String,
    pub(super) why: Option<String>,
    pub(super) until: Option<Timestamp>,
    pub(super) pending: u64,
    pub(super) available: u64,
    pub(super) in_flight: u64,
    pub(super) dead: u64,
    pub(super) oldest_pending_at: Option<Timestamp>,
    pub(super) breaker_state: String,
    pub(super) breaker_until: Option<Timestamp>,
    pub(super) failures_in_a_row: u64,
    pub(super) failing_since: Option<Timestamp>,
    pub(super) disables_at: Option<Timestamp>,
    pub(super) ramp: Option<Value>,
    pub(super) plugin: Option<String>,
    #[serde(default)]
    pub(super) pull: bool,
    pub(super) managed_by: Option<String>,
    /// All that the API said of it, for the table of settings.
    #[serde(flatten)]
    pub(super) settings: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
pub(super) struct Source {
    pub(super) name: String,
    pub(super) scheme: Option<String>,
    pub(super) adoption: Option<String>,
    pub(super) adopted_at: Option<Timestamp>,
    pub(super) secret_count: Option<u64>,
    #[serde(default)]
    pub(super) secrets_expire_at: Option<Vec<Timestamp>>,
    #[serde(flatten)]
    pub(super) settings: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
pub(super) struct Rejection {
    pub(super) at: Timestamp,
    pub(super) source: String,
    pub(super) reason: String,
    pub(super) step: Option<String>,
    pub(super) detail: Option<String>,
    pub(super) peer: Option<String>,
    pub(super) body_bytes: Option<u64>,
    pub(super) body_digest: Option<String>,
    pub(super) skew_seconds: Option<i64>,
}

#[derive(Deserialize)]
pub(super) struct Stats {
    pub(super) endpoints: Vec<EndpointStats>,
    pub(super) total: Figures,
}

#[derive(Deserialize)]
pub(super) struct EndpointStats {
    pub(super) endpoint: String,
    #[serde(flatten)]
    pub(super) figures: Figures,
    #[serde(default)]
    pub(super) paused_ms: u64,
    #[serde(default)]
    pub(super) disabled_ms: u64,
    #[serde(default)]
    pub(super) buckets: Vec<Bucket>,
}

#[derive(Deserialize)]
pub(super) struct Figures {
    pub(super) now: Standing,
    pub(super) accepted: u64,
    pub(super) delivered: u64,
    pub(super) dead: u64,
    pub(super) attempts: u64,
    pub(super) attempts_per_delivered: Option<f64>,
    pub(super) throttled: u64,
    pub(super) latency_ms: Latency,
    #[serde(default)]
    pub(super) reasons: Vec<ReasonCount>,
}

#[derive(Deserialize)]
pub(super) struct Standing {
    pub(super) pending: u64,
    pub(super) in_flight: u64,
    pub(super) dead: u64,
    pub(super) oldest_pending_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Deserialize)]
pub(super) struct Latency {
    pub(super) p50: Option<u64>,
    pub(super) p95: Option<u64>,
    pub(super) p99: Option<u64>,
}

#[derive(Deserialize)]
pub(super) struct ReasonCount {
    pub(super) reason: String,
    pub(super) retried: u64,
    pub(super) dead: u64,
}

#[derive(Clone, Deserialize)]
pub(super) struct Bucket {
    pub(super) at: Timestamp,
    pub(super) delivered: u64,
    pub(super) dead: u64,
    pub(super) attempts: u64,
    pub(super) latency_ms: Latency,
}

#[derive(Deserialize)]
pub(super) struct Plugin {
    pub(super) name: String,
    pub(super) active: Option<String>,
    pub(super) managed_by: String,
    #[serde(default)]
    pub(super) endpoints: Vec<String>,
    pub(super) trial: Option<Trial>,
    #[serde(default)]
    pub(super) versions: Vec<Version>,
    #[serde(default)]
    pub(super) activations: Vec<Activation>,
}

#[derive(Deserialize)]
pub(super) struct Version {
    pub(super) id: String,
    pub(super) digest: String,
    pub(super) state: String,
    pub(super) active: bool,
    pub(super) bytes: Option<u64>,
    pub(super) exports: Option<Vec<String>>,
    pub(super) warnings: Option<Vec<String>>,
    pub(super) rejection: Option<Value>,
    pub(super) fault: Option<Value>,
    pub(super) uploaded_at: Timestamp,
    pub(super) uploaded_by: String,
}

#[derive(Deserialize)]
pub(super) struct Activation {
    pub(super) version: String,
    pub(super) what: String,
    pub(super) at: Timestamp,
    pub(super) by: String,
}

#[derive(Deserialize)]
pub(super) struct Trial {
    pub(super) kind: String,
    pub(super) version: String,
    pub(super) share: String,
    pub(super) state: String,
    pub(super) began_at: Timestamp,
    pub(super) by: String,
    pub(super) ended: Option<Ended>,
    pub(super) calls: Option<u64>,
    pub(super) same: Option<u64>,
    pub(super) requests_differ: Option<u64>,
    #[serde(default)]
    pub(super) differ: Vec<Differ>,
    #[serde(default)]
    pub(super) differences: Vec<Difference>,
    #[serde(default)]
    pub(super) figures: BTreeMap<String, SideFigures>,
    pub(super) put_back: Option<u64>,
}

#[derive(Deserialize)]
pub(super) struct Ended {
    pub(super) at: Timestamp,
    pub(super) by: String,
    pub(super) why: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Differ {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) calls: u64,
}

#[derive(Deserialize)]
pub(super) struct Said {
    pub(super) verdict: Option<String>,
    pub(super) reason: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Difference {
    pub(super) at: Timestamp,
    pub(super) delivery: String,
    pub(super) attempt: u64,
    pub(super) from: Said,
    pub(super) to: Said,
    #[serde(default)]
    pub(super) request_differs: bool,
}

#[derive(Deserialize)]
pub(super) struct SideFigures {
    pub(super) calls: u64,
    pub(super) delivered: u64,
    pub(super) retryable: u64,
    pub(super) terminal: u64,
    pub(super) faults: u64,
    pub(super) fault_rate: Option<String>,
    pub(super) terminal_rate: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct DryRun {
    pub(super) version: String,
    pub(super) active: Option<String>,
    pub(super) scanned: u64,
    pub(super) total: u64,
    pub(super) verdicts: Changes,
    pub(super) requests: Changes,
    #[serde(default)]
    pub(super) items: Vec<Value>,
    pub(super) next: Option<String>,
    pub(super) hint: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Changes {
    pub(super) same: u64,
    pub(super) changed: u64,
    pub(super) faults: u64,
    pub(super) changes: Vec<Change>,
    pub(super) left_out: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
pub(super) struct Change {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) count: u64,
}

/// The calls of one recorded attempt.
#[derive(Deserialize)]
pub(super) struct Replayed {
    pub(super) number: u32,
    #[serde(default)]
    pub(super) calls: Vec<Value>,
}

/// A check, step by step.
#[derive(Deserialize)]
pub(super) struct Explained {
    pub(super) verifies: bool,
    pub(super) received_at: Timestamp,
    pub(super) steps: Vec<ExplainedStep>,
}

#[derive(Deserialize)]
pub(super) struct ExplainedStep {
    pub(super) step: String,
    pub(super) ok: bool,
    pub(super) detail: String,
}
