//! Connections waiting for their next request. None is shared between endpoints, and none carries two requests at once.

use super::connect::host_name;
use super::guard::Scheme;
use super::wire::{Meter, Wire};
use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body_util::Full;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use url::Url;

/// One connection, driven by the task that uses it: no task of its own, nothing to hand over.
pub(super) struct Link {
    sender: SendRequest<Full<Bytes>>,
    conn: Connection<TokioIo<Wire>, Full<Bytes>>,
    /// The connection has ended; what it had to say is with the sender or the body.
    ended: bool,
    pub(super) meter: Arc<Meter>,
    pub(super) peer: SocketAddr,
    pub(super) host: HeaderValue,
    scheme: Scheme,
    origin_host: Box<str>,
    origin_port: u16,
    born: Instant,
    idle_since: Instant,
}

impl Link {
    /// Speaks HTTP/1.1 over a wire that leads to the URL's origin.
    pub(super) async fn over(
        wire: Wire,
        http: &http1::Builder,
        url: &Url,
        host: HeaderValue,
        peer: SocketAddr,
    ) -> hyper::Result<Box<Self>> {
        let meter = Arc::clone(wire.meter());
        let (sender, conn) = http.handshake(TokioIo::new(wire)).await?;
        let now = Instant::now();
        Ok(Box::new(Link {
            sender,
            conn,
            ended: false,
            meter,
            peer,
            host,
            scheme: Scheme::of(url),
            origin_host: host_name(url).into(),
            origin_port: url.port_or_known_default().unwrap_or_default(),
            born: now,
            idle_since: now,
        }))
    }

    fn serves(&self, url: &Url) -> bool {
        self.scheme == Scheme::of(url)
            && Some(self.origin_port) == url.port_or_known_default()
            && *self.origin_host == *host_name(url)
    }

    /// Lets the connection work. To be called before whatever waits for its results is polled.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        if !self.ended && Pin::new(&mut self.conn).poll(cx).is_ready() {
            self.ended = true;
        }
    }

    /// Whether the connection can take a request: asks the kernel, so that a close that has arrived is seen.
    pub(super) async fn is_live(&mut self) -> bool {
        self.meter.start_probe();
        poll_fn(|cx| {
            self.drive(cx);
            Poll::Ready(())
        })
        .await;
        !self.ended && self.meter.was_probed() && self.sender.is_ready()
    }

    /// Whether request and response are both complete and the peer did not ask for a close.
    pub(super) async fn is_reusable(&mut self) -> bool {
        poll_fn(|cx| {
            self.drive(cx);
            Poll::Ready(())
        })
        .await;
        !self.ended && self.sender.is_ready()
    }

    /// Hands the request over; it is written as the connection is driven.
    pub(super) fn start(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> impl Future<Output = Result<http::Response<hyper::body::Incoming>, Rejected>> + use<> {
        self.sender.try_send_request(request)
    }
}

pub(super) type Rejected = hyper::client::conn::TrySendError<Request<Full<Bytes>>>;

const SHARDS: usize = 16;
/// How often what has waited too long is closed.
const SWEEP: Duration = Duration::from_secs(1);

#[allow(clippy::vec_box, reason = "a link is large, and moves in and out at every request")]
type Shard = HashMap<u32, Vec<Box<Link>>>;

pub(super) struct Pool {
    shards: [Mutex<Shard>; SHARDS],
    waiting: AtomicUsize,
    waiting_max: usize,
    idle: Duration,
    age: Duration,
}

impl Pool {
    pub(super) fn new(waiting_max: usize, idle: Duration, age: Duration) -> Self {
        Pool { shards: Default::default(), waiting: AtomicUsize::new(0), waiting_max, idle, age }
    }

    fn shard(&self, pool: u32) -> MutexGuard<'_, Shard> {
        self.shards[pool as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_fresh(&self, link: &Link, now: Instant) -> bool {
        now.duration_since(link.idle_since) < self.idle && now.duration_since(link.born) < self.age
    }

    /// The connection used last, if it is young enough.
    pub(super) fn take(&self, pool: u32, url: &Url, now: Instant) -> Option<Box<Link>> {
        let mut shard = self.shard(pool);
        let links = shard.get_mut(&pool)?;
        let at = links.iter().rposition(|link| self.is_fresh(link, now) && link.serves(url))?;
        let link = links.remove(at);
        self.waiting.fetch_sub(1, Relaxed);
        Some(link)
    }

    /// Keeps a connection for the next request; when the pool is full, or it is too old, it is closed.
    pub(super) fn put(&self, pool: u32, mut link: Box<Link>, now: Instant) {
        link.idle_since = now;
        if !self.is_fresh(&link, now) {
            return;
        }
        if self.waiting.fetch_add(1, Relaxed) >= self.waiting_max {
            self.waiting.fetch_sub(1, Relaxed);
            return;
        }
        self.shard(pool).entry(pool).or_default().push(link);
    }

    fn sweep(&self, now: Instant) {
        for shard in &self.shards {
            let mut stale = Vec::new();
            {
                let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
                shard.retain(|_, links| {
                    stale.extend(links.extract_if(.., |link| !self.is_fresh(link, now)));
                    !links.is_empty()
                });
            }
            // Closed outside of the lock.
            self.waiting.fetch_sub(stale.len(), Relaxed);
        }
    }

    /// Closes stale connections until the pool is dropped.
    pub(super) async fn keep_swept(pool: std::sync::Weak<Pool>) {
        loop {
            tokio::time::sleep(SWEEP).await;
            match pool.upgrade() {
                Some(pool) => pool.sweep(Instant::now()),
                None => return,
            }
        }
    }
}
