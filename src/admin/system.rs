//! The process: how it was started, and how full it is.

use super::{Admin, answer, only};
use crate::http::{Answer, Problem};
use http::request::Parts;
use serde_json::json;

impl Admin {
    /// The operator's alone: it names addresses.
    pub(super) fn system(&self, head: &Parts) -> Result<Answer, Problem> {
        only(&head.method, "GET")?;
        super::query::Query::of(head.uri.query()).finish()?;
        let mut all = self.settings.about.clone();
        let gauges = self.state.ledger.gauges();
        all.insert(
            "now".to_owned(),
            json!({
                "pending": gauges.pending,
                "in_flight": gauges.in_flight,
                "dead": gauges.dead,
                "oldest_dead_at": gauges.oldest_dead_at,
                "endpoints_paused": gauges.endpoints_paused,
                "endpoints_failing": gauges.endpoints_failing,
                "ledger_bytes": gauges.ledger_bytes,
                "wal_bytes": gauges.wal_bytes,
            }),
        );
        Ok(answer::json(&all))
    }
}
