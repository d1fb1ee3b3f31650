//! The dead-letter desk's way out: whether a destination answers again, and the word to the runner that there is work.

use crate::admin::{Desk, Down};
use crate::delivery::EndpointStatus;
use crate::dispatch::Targets;
use crate::egress::{Exchange, Outbound, Transport};
use crate::ledger::DeadDestination;
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// For one probe, and for all of one redrive together.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
const PROBES_TIMEOUT: Duration = Duration::from_secs(20);
const PROBES_AT_ONCE: usize = 16;

pub(super) struct DeadLetterDesk {
    pub(super) targets: Arc<Targets>,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) news: Arc<Notify>,
}

#[async_trait]
impl Desk for DeadLetterDesk {
    async fn probe(&self, destinations: &[DeadDestination]) -> Vec<Down> {
        let until = tokio::time::Instant::now() + PROBES_TIMEOUT;
        let probe = |to: DeadDestination| async move {
            let found = tokio::time::timeout_at(until, self.probe_one(&to)).await;
            let late = || Some(("timeout".to_owned(), "there was no time left to ask it".to_owned()));
            let (class, detail) = found.unwrap_or_else(|_| late())?;
            Some(Down { endpoint: to.endpoint, host: to.host, class, detail })
        };
        let all = futures_util::stream::iter(destinations.to_vec()).map(probe).buffered(PROBES_AT_ONCE);
        all.filter_map(std::future::ready).collect().await
    }

    fn tell(&self) {
        self.news.notify_one();
    }
}

impl DeadLetterDesk {
    /// `None`: it is up, or is not to be asked now. Else the class of the failure, and more of it.
    async fn probe_one(&self, to: &DeadDestination) -> Option<(String, String)> {
        let told = |class: &str, detail: &str| Some((class.to_owned(), detail.to_owned()));
        match &to.status {
            EndpointStatus::Disabled { why } => {
                return Some(("endpoint_disabled".to_owned(), format!("the endpoint is disabled: {why}")));
            }
            // What is redriven waits for the end of the pause, as everything does.
            EndpointStatus::Paused { .. } => return None,
            EndpointStatus::Enabled => {}
        }
        let Some(target) = self.targets.endpoint(to.key) else {
            return told("not_declared", "no such endpoint is declared any more");
        };
        let mut headers = HeaderMap::new();
        let agent = concat!("hookgate/", env!("CARGO_PKG_VERSION"), " (probe)");
        headers.insert(header::USER_AGENT, HeaderValue::from_static(agent));
        let request = Outbound {
            pool: to.key.0,
            url: target.url.clone(),
            method: Method::HEAD,
            headers,
            body: Bytes::new(),
            timeout: target.timeout.min(PROBE_TIMEOUT),
            body_kept_max: 0,
        };
        judged(&self.transport.send(request).await)
    }
}

/// Whoever answers is up: with a 4xx, too, for a receiver of POSTs need not know HEAD. Not so one that fails, or says that
/// it is gone.
fn judged(exchange: &Exchange) -> Option<(String, String)> {
    match exchange {
        Exchange::Answered(answer) => {
            let status = answer.status;
            let down =
                status == StatusCode::GONE || (status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED);
            down.then(|| (format!("http_{}", status.as_u16()), format!("it answers {} to a HEAD", status.as_u16())))
        }
        Exchange::Failed(failure) => Some((failure.kind.as_str().to_owned(), failure.detail.clone())),
        // The detail names addresses.
        Exchange::Refused { reason, .. } => {
            Some((reason.as_str().to_owned(), "the destination is not allowed".to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::Reason;
    use crate::egress::{Answer, Timings};

    fn answered(status: u16) -> Exchange {
        Exchange::Answered(Answer {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            body_truncated: false,
            elapsed: Duration::ZERO,
            timings: Timings::default(),
        })
    }

    #[test]
    fn who_answers_is_up_unless_it_fails_or_is_gone() {
        for (status, class) in [
            (200, None),
            (204, None),
            (302, None),
            (401, None),
            (404, None),
            (405, None),
            (429, None),
            (501, None),
            (410, Some("http_410")),
            (500, Some("http_500")),
            (502, Some("http_502")),
            (503, Some("http_503")),
        ] {
            assert_eq!(judged(&answered(status)).map(|(class, _)| class).as_deref(), class, "{status}");
        }
        let refused = Exchange::Refused { reason: Reason::POLICY, detail: "10.0.0.1 is private".to_owned() };
        let (class, detail) = judged(&refused).unwrap();
        assert_eq!(class, "policy");
        assert!(!detail.contains("10.0.0.1"));
    }
}
