//! A provider as they are: it sends each event until it hears a 2xx, and remembers which it heard.

use super::process::{GITHUB_SECRET, Gateway, TOKEN, github_signature};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Nobody waits longer for one acknowledgement, however often the gateway is killed.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a 2xx said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acknowledged {
    pub event: String,
    pub duplicate: bool,
}

pub struct Provider {
    inlet: String,
    publish: String,
    http: reqwest::Client,
    next: AtomicU64,
    acknowledged: Mutex<BTreeMap<u64, Acknowledged>>,
}

impl Provider {
    pub fn of(gateway: &Gateway) -> Provider {
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(20)).build().unwrap();
        let inlet = format!("http://{}/in/acme/github", gateway.ingress);
        let publish = format!("http://{}/v1/tenants/acme/events", gateway.admin);
        Provider { inlet, publish, http, next: AtomicU64::new(0), acknowledged: Mutex::default() }
    }

    /// Sends event `n` once. `None`: no answer, or one that says to come again. Every third is published by the API.
    pub async fn once(&self, n: u64, body: &str) -> Option<Acknowledged> {
        let request = if n % 3 == 2 {
            let event = format!("{{\"type\":\"push\",\"key\":\"d-{n}\",\"payload\":{body}}}");
            self.http.post(&self.publish).bearer_auth(TOKEN).body(event)
        } else {
            self.http
                .post(&self.inlet)
                .header("x-github-event", "push")
                .header("x-github-delivery", format!("d-{n}"))
                .header("x-hub-signature-256", github_signature(GITHUB_SECRET, body.as_bytes()))
                .body(body.to_owned())
        };
        let answer = request.header("content-type", "application/json").send().await.ok()?;
        let status = answer.status().as_u16();
        let text = answer.text().await;
        match status {
            200 => {
                // The status line is the acknowledgement; a provider does not read the rest.
                let json: serde_json::Value = serde_json::from_str(&text.ok()?).unwrap();
                let event = json["event"].as_str().unwrap().to_owned();
                Some(Acknowledged { event, duplicate: json["duplicate"].as_bool().unwrap() })
            }
            503 => None,
            other => panic!("event {n} was refused with {other}: {text:?}"),
        }
    }

    /// Sends event `n` until it is acknowledged.
    pub async fn until_acknowledged(&self, n: u64, body: &str) -> Acknowledged {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(acknowledged) = self.once(n, body).await {
                let before = self.acknowledged.lock().unwrap().insert(n, acknowledged.clone());
                assert!(before.is_none_or(|before| before.event == acknowledged.event), "event {n} has two ids");
                return acknowledged;
            }
            assert!(Instant::now() < deadline, "event {n} was never acknowledged");
            tokio::time::sleep(Duration::from_millis(20)).await; // plays the peer: the provider comes again
        }
    }

    /// One of several workers: event after event until told to stop, and then the last one to its end.
    pub async fn work(&self, stop: &CancellationToken) {
        while !stop.is_cancelled() {
            let n = self.next.fetch_add(1, Ordering::Relaxed);
            self.until_acknowledged(n, &body(n)).await;
            tokio::time::sleep(Duration::from_millis(5)).await; // plays the peer: the pace of a provider
        }
    }

    /// The acknowledged events by their number.
    pub fn journal(&self) -> BTreeMap<u64, Acknowledged> {
        self.acknowledged.lock().unwrap().clone()
    }
}

/// Event `n` in bytes.
pub fn body(n: u64) -> String {
    format!("{{\"n\":{n}}}")
}

/// The number of the event that these bytes are.
pub fn number(body: &[u8]) -> Option<u64> {
    std::str::from_utf8(body).ok()?.strip_prefix("{\"n\":")?.strip_suffix('}')?.parse().ok()
}
