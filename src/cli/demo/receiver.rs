//! The moody receiver: an SMS provider whose 200 may mean anything, and a CRM that is busy the first time.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::collections::HashSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpListener;

/// The number whose account the provider has suspended.
pub(super) const SUSPENDED: &str = "+1 555 0199";

const BODY_BYTES_MAX: usize = 64 * 1024;
/// First tries that are remembered; a demo left running for long answers later ones as if they were known.
const SEEN_MAX: usize = 10_000;

#[derive(Default)]
struct Mood {
    reinstated: AtomicBool,
    messages: AtomicU32,
    seen: Mutex<HashSet<String>>,
    last_body: Mutex<String>,
}

pub(super) struct Receiver {
    address: SocketAddr,
    mood: Arc<Mood>,
}

impl Receiver {
    pub(super) async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mood = Arc::<Mood>::default();
        let shared = Arc::clone(&mood);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let mood = Arc::clone(&shared);
                tokio::spawn(async move {
                    let service = service_fn(move |request| answer(request, Arc::clone(&mood)));
                    let connection = hyper::server::conn::http1::Builder::new();
                    // A peer that goes away is no news.
                    let _ = connection.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Ok(Receiver { address, mood })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(super) fn reinstate(&self) {
        self.mood.reinstated.store(true, Ordering::SeqCst);
    }

    /// The body of the last request.
    pub(super) fn last_body(&self) -> String {
        self.mood.last_body.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn answer(request: Request<Incoming>, mood: Arc<Mood>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map(http_body_util::Collected::to_bytes);
    let text = String::from_utf8_lossy(&body.unwrap_or_default()).into_owned();
    mood.last_body.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&text);
    let (status, said) = match head.uri.path() {
        "/messages" if text.contains(SUSPENDED) && !mood.reinstated.load(Ordering::SeqCst) => {
            (200, r#"{"error":"suspended"}"#.to_owned())
        }
        "/messages" => {
            let n = 1_001 + mood.messages.fetch_add(1, Ordering::SeqCst);
            (200, format!(r#"{{"status":"queued","message_id":"SM-{n}"}}"#))
        }
        "/crm" => {
            let id = head.headers.get("webhook-id").and_then(|v| v.to_str().ok()).unwrap_or_default();
            let mut seen = mood.seen.lock().unwrap_or_else(PoisonError::into_inner);
            let first = seen.len() < SEEN_MAX && seen.insert(id.to_owned());
            if first { (503, "busy".to_owned()) } else { (204, String::new()) }
        }
        _ => (404, String::new()),
    };
    let mut response = Response::new(Full::new(Bytes::from(said)));
    *response.status_mut() = hyper::StatusCode::from_u16(status).unwrap_or_default();
    Ok(response)
}
