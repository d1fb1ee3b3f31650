//! The rules of the trade: ids, states, outcomes, verdicts, the retry policy and [`decide`]. Plain data and plain
//! functions: no I/O, no async, no SQL, no HTTP, no WIT.

mod alert;
pub mod classify;
mod decide;
mod endpoint;
mod health;
mod histogram;
mod id;
mod kept;
mod order;
mod outcome;
mod policy;
mod state;
mod trial;

pub use alert::{
    AlertChange, AlertKind, AtRisk, DLQ_DEPTH_MAX, DeadFacts, EndedFacts, EndpointFacts, FailingFacts, GatewayFacts,
    GatewayThresholds, InWords, PluginFacts, Reading, Severity, Standing, Subject, TenantFacts, Thresholds,
    gateway_readings, going, is_at_risk, judge as judge_alerts, may_be_sent, readings as alert_readings,
};
pub use decide::{
    Decision, EndpointEffect, History, OnAmbiguous, OnPluginFault, RETRY_AFTER_MAX, Terms, decide, may_start,
};
pub use endpoint::{EndpointStatus, EventTypes, Route};
pub use health::{
    BREAKER_OPEN, BreakerPolicy, BreakerState, FAILING, Failing, Health, HealthPolicy, Pulse, Signal, Step, Tripped,
    Turn, step,
};
pub use histogram::{LatencyBucket, quantile};
pub use id::{
    AlertId, AttemptId, BadId, BadName, DeliveryId, EventId, IdText, Mint, Minted, Name, OperationId, PluginVersionId,
    TrialId,
};
pub use kept::{KeptBody, Measured};
pub use order::{OnDead, Order};
pub use outcome::{
    DecidedBy, Disposition, Fault, FaultKind, Outcome, PauseScope, Phase, Reason, RetryAfter, RetryHint, SkipReason,
    TransportKind, Verdict,
};
pub use policy::{Backoff, Jitter, LEASE_MAX, LEASE_MIN, MAX_WAIT, RetryPolicy};
pub use state::DeliveryState;
pub use trial::{BadRatio, Bounds, Counts, Judged, Ratio, Recent, Said, Share, Why, Window, judge};
