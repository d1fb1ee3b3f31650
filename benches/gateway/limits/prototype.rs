//! The pipeline's limit: verify, commit as a group, answer, post to the receiver, settle. No retry, no rule, no
//! configuration, no dedup: what this stack and this disk allow for an event that goes well.

use super::bare::{self, Key};
use super::writer::{self, Step};
use crate::role::Control;
use crate::wire;
use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use crossbeam_channel::{Sender, TrySendError};
use hmac::Mac as _;
use http::StatusCode;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc, oneshot};

const SENDERS: usize = 128;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Prototype {
    pub(crate) to: SocketAddr,
    pub(crate) ledger: PathBuf,
}

struct Accepted {
    id: i64,
    body: Bytes,
}

struct Inbound {
    key: Key,
    steps: Sender<Step>,
    accepted: mpsc::UnboundedSender<Accepted>,
}

/// Runs in a process of its own, on as many threads as there are cores, and two for the ledger.
pub(crate) fn run(prototype: &Prototype) -> Result<()> {
    ensure!(prototype.to.ip().is_loopback(), "requests go to this machine alone, not to {}", prototype.to);
    let steps = writer::start(&prototype.ledger)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        // Bounded by what the load sends.
        let (accepted, waiting) = mpsc::unbounded_channel();
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..SENDERS {
            tokio::spawn(send(prototype.to, Arc::clone(&waiting), steps.clone()));
        }
        let inbound = Arc::new(Inbound { key: Key::new()?, steps, accepted });
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listen")?;
        Control::start_silent(listener.local_addr()?)?;
        loop {
            let (socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            let inbound = Arc::clone(&inbound);
            let service = service_fn(move |request| accept(Arc::clone(&inbound), request));
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service));
        }
    })
}

async fn accept(inbound: Arc<Inbound>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    if !inbound.key.verifies(&head.headers, &body) {
        return bare::reply(StatusCode::UNAUTHORIZED);
    }
    let (done, durable) = oneshot::channel();
    if inbound.steps.try_send(Step::Accept { at: now_nanos(), body: body.clone(), done }).is_err() {
        return bare::reply(StatusCode::SERVICE_UNAVAILABLE);
    }
    let id = durable.await?;
    inbound.accepted.send(Accepted { id, body })?;
    bare::reply(StatusCode::OK)
}

/// One of the senders, with a connection of its own. A failure ends it: the receiver's counts will show it.
async fn send(
    to: SocketAddr,
    waiting: Arc<Mutex<mpsc::UnboundedReceiver<Accepted>>>,
    steps: Sender<Step>,
) -> Result<()> {
    let key = Key::new()?;
    let mut connection = None;
    loop {
        let next = waiting.lock().await.recv().await;
        let Some(Accepted { id, body }) = next else { return Ok(()) };
        let (started_at, from) = (now_nanos(), Instant::now());
        let mut signature = Vec::with_capacity(64);
        wire::hex_onto(&mut signature, &key.mac(&body).finalize().into_bytes());
        let request = Request::post("/hook")
            .header("host", to.to_string())
            .header("content-type", "application/json")
            .header("webhook-id", id)
            .header("webhook-signature", signature)
            .body(Full::new(body))?;
        let connection = match &mut connection {
            Some(open) => open,
            None => connection.insert(connect(to).await?),
        };
        connection.ready().await?;
        let response = connection.send_request(request).await?;
        let status = response.status().as_u16();
        response.into_body().collect().await?;
        let took_us = i64::try_from(from.elapsed().as_micros())?;
        let mut step = Step::Settle { id, started_at, took_us, status };
        while let Err(TrySendError::Full(back)) = steps.try_send(step) {
            step = back;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

async fn connect(to: SocketAddr) -> Result<SendRequest<Full<Bytes>>> {
    let socket = TcpStream::connect(to).await?;
    socket.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(socket)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

fn now_nanos() -> i64 {
    i64::try_from(wire::wall_nanos()).unwrap_or(i64::MAX)
}
