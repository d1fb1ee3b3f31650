//! Health, readiness and metrics: for probes, without a token.

use super::place::Place;
use super::query::Query;
use super::{Admin, answer, not_found, only};
use crate::http::{Answer, Problem};
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use serde_json::json;
use std::time::Duration;

/// Longer than a commit takes on a slow disk; a probe has its own patience.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether the public listener takes requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Serving {
    Starting,
    Open,
    Draining,
}

impl Admin {
    pub(super) async fn tell_status(&self, place: Place<'_>, head: &Parts) -> Result<Answer, Problem> {
        only(&head.method, "GET")?;
        Query::of(head.uri.query()).finish()?;
        match place {
            // That we answer is the answer.
            Place::Health => Ok(answer::json(&json!({ "status": "ok" }))),
            Place::Ready => self.readiness().await,
            Place::Metrics => {
                let text = self.state.metrics.render(&self.state.ledger.gauges(), self.state.clock.now());
                let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
                Ok(answer::typed(content_type, text.into()))
            }
            Place::Tenants | Place::System | Place::Alerts | Place::In(..) => Err(not_found()),
        }
    }

    async fn readiness(&self) -> Result<Answer, Problem> {
        let unready = |code, detail: &'static str| Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, detail);
        match *self.state.serving.borrow() {
            Serving::Starting => return Err(unready("starting", "the listeners are not open yet")),
            Serving::Draining => return Err(unready("draining", "the gateway is stopping")),
            Serving::Open => {}
        }
        // Open to everybody, so no detail: the log has it.
        match tokio::time::timeout(PROBE_TIMEOUT, self.state.ledger.probe()).await {
            Ok(Ok(())) => Ok(answer::json(&json!({ "status": "ready" }))),
            Ok(Err(error)) => {
                tracing::warn!(%error, "not ready");
                Err(unready("unavailable", "the ledger does not commit"))
            }
            Err(_late) => Err(unready("unavailable", "the ledger does not answer")),
        }
    }
}
