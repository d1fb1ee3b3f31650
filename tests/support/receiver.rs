//! A receiver that does as its script says and keeps a journal of what reached it.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// One request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub at: Instant,
}

impl Seen {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("")
    }
}

/// What to do with one request.
#[derive(Clone, Debug)]
pub enum Reply {
    Answer {
        status: u16,
        headers: Vec<(&'static str, String)>,
        body: String,
    },
    /// Takes the request and never answers.
    Hang,
    /// Answers after a while.
    Late(Duration, Box<Reply>),
    /// Answers once there is a permit, which it leaves there.
    Gated(Arc<Semaphore>, Box<Reply>),
}

impl Reply {
    pub fn status(status: u16) -> Reply {
        Reply::Answer { status, headers: Vec::new(), body: String::new() }
    }

    pub fn body(status: u16, body: &str) -> Reply {
        Reply::Answer { status, headers: Vec::new(), body: body.to_owned() }
    }

    pub fn with(self, name: &'static str, value: impl Into<String>) -> Reply {
        match self {
            Reply::Answer { status, mut headers, body } => {
                headers.push((name, value.into()));
                Reply::Answer { status, headers, body }
            }
            other => other,
        }
    }
}

type Script = Arc<dyn Fn(&Seen, usize) -> Reply + Send + Sync>;

/// Listens on loopback until dropped.
pub struct Receiver {
    pub addr: SocketAddr,
    journal: Arc<Mutex<Vec<Seen>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Receiver {
    /// `script` gets each request and how many with the same `webhook-id` came before it.
    pub async fn start(script: impl Fn(&Seen, usize) -> Reply + Send + Sync + 'static) -> Receiver {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let journal: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let counts: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
        let script: Script = Arc::new(script);
        let seen = Arc::clone(&journal);
        let task = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let (script, seen, counts) = (Arc::clone(&script), Arc::clone(&seen), Arc::clone(&counts));
                tokio::spawn(async move {
                    let service = service_fn(move |request| {
                        answer(request, Arc::clone(&script), Arc::clone(&seen), Arc::clone(&counts))
                    });
                    let io = TokioIo::new(stream);
                    // A sender that dies with its request written has still sent it.
                    let mut http = hyper::server::conn::http1::Builder::new();
                    let _ = http.half_close(true).serve_connection(io, service).await;
                });
            }
        });
        Receiver { addr, journal, task }
    }

    /// Always 204.
    pub async fn kind() -> Receiver {
        Receiver::start(|_, _| Reply::status(204)).await
    }

    /// Answers the n-th try of each delivery with the n-th status; the last one repeats.
    pub async fn sequence(statuses: &'static [u16]) -> Receiver {
        Receiver::start(move |_, before| Reply::status(statuses[before.min(statuses.len() - 1)])).await
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    pub fn journal(&self) -> Vec<Seen> {
        self.journal.lock().unwrap().clone()
    }

    pub fn count(&self) -> usize {
        self.journal.lock().unwrap().len()
    }

    /// Waits until at least `n` requests have come.
    pub async fn until_count(&self, n: usize) -> Vec<Seen> {
        super::until(&format!("{n} requests at the receiver"), || async { (self.count() >= n).then(|| self.journal()) })
            .await
    }
}

async fn answer(
    request: Request<Incoming>,
    script: Script,
    journal: Arc<Mutex<Vec<Seen>>>,
    counts: Arc<Mutex<HashMap<String, usize>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let seen = Seen {
        method: parts.method.to_string(),
        path: parts.uri.to_string(),
        headers: parts.headers,
        body,
        at: Instant::now(),
    };
    let before = {
        let mut counts = counts.lock().unwrap();
        let n = counts.entry(seen.header("webhook-id").to_owned()).or_default();
        *n += 1;
        *n - 1
    };
    journal.lock().unwrap().push(seen.clone());
    let mut reply = script(&seen, before);
    loop {
        match reply {
            Reply::Answer { status, headers, body } => {
                let mut response = Response::builder().status(status);
                for (name, value) in headers {
                    response = response.header(name, value);
                }
                return Ok(response.body(Full::new(Bytes::from(body))).unwrap());
            }
            Reply::Hang => std::future::pending::<()>().await,
            Reply::Late(wait, then) => {
                tokio::time::sleep(wait).await; // plays the peer: a slow answer
                reply = *then;
            }
            Reply::Gated(gate, then) => {
                drop(gate.acquire().await.unwrap());
                reply = *then;
            }
        }
    }
}
