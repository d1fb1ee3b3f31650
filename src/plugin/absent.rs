//! Where a plugin should be and none is in use.

use super::{AttemptView, Call, EndpointView, EventView, Exports, OutcomeView, Rules, Transformed};
use crate::delivery::{Fault, FaultKind, Verdict};
use crate::telemetry::PLUGIN_FAULTS;
use async_trait::async_trait;

/// Every call is the fault `unavailable`. Its exports are those of the version that is missing, or both where nobody
/// knows: what a transform may have to say about an event is never left out.
#[derive(Clone, Debug)]
pub struct Absent {
    pub exports: Exports,
    pub why: String,
}

impl Absent {
    fn call<T>(&self) -> Call<T> {
        metrics::counter!(PLUGIN_FAULTS, "kind" => FaultKind::Unavailable.as_str()).increment(1);
        let fault = Fault { kind: FaultKind::Unavailable, detail: self.why.clone() };
        Call::not_made(fault)
    }
}

#[async_trait]
impl Rules for Absent {
    fn exports(&self) -> Exports {
        self.exports
    }

    async fn transform(&self, _: EventView<'_>, _: EndpointView<'_>, _: AttemptView<'_>) -> Call<Transformed> {
        self.call()
    }

    async fn classify(&self, _: EndpointView<'_>, _: AttemptView<'_>, _: OutcomeView<'_>) -> Call<Verdict> {
        self.call()
    }
}
