//! The accept loop and the life of a connection.

use super::answer::Answer;
use super::gate::{self, Gate, Refused, Watch};
use super::problem::Problem;
use crate::telemetry::{CONNECTIONS_REFUSED, HANDLER_PANICS, HTTP_REFUSED};
use futures_util::FutureExt as _;
use http::{HeaderValue, Request, StatusCode, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, RawFd};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// What the HTTP library reads ahead of a connection. A whole head fits in, whatever is configured.
const BUFFER_BYTES_MAX: usize = 64 * 1024;

/// Whoever answers requests. A panic in here is a 500, counted, and the end of its connection alone.
pub trait Handler: Send + Sync + 'static {
    fn handle(&self, request: Request<Incoming>, connection: &Connection) -> impl Future<Output = Answer> + Send;
}

/// What a listener allows its peers.
#[derive(Clone, Debug)]
pub struct Limits {
    pub connections_max: usize,
    /// `None`: one address may have them all, since proxies share one.
    pub connections_per_address_max: Option<usize>,
    /// At most 48 KiB.
    pub head_bytes_max: usize,
    pub headers_max: usize,
    pub uri_bytes_max: usize,
    pub head_timeout: Duration,
    pub body_timeout: Duration,
    /// For a connection between requests.
    pub idle_timeout: Duration,
    /// For a peer that takes none of its answer.
    pub write_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections_max: 4_096,
            connections_per_address_max: None,
            head_bytes_max: 32 * 1024,
            headers_max: 64,
            uri_bytes_max: 8 * 1024,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(30),
        }
    }
}

/// The connection a request came by.
#[derive(Debug)]
pub struct Connection {
    pub peer: SocketAddr,
    pub(super) watch: Arc<Watch>,
    /// Open for as long as its requests are handled.
    socket: RawFd,
}

/// Between two looks whether a peer is still there.
const GONE_SEEN_WITHIN: Duration = Duration::from_millis(50);

impl Connection {
    /// Resolves when the peer has closed the connection, or its half of it: for work that nobody else wants.
    pub async fn gone(&self) {
        while !self.is_gone() {
            tokio::time::sleep(GONE_SEEN_WITHIN).await;
        }
    }

    fn is_gone(&self) -> bool {
        let mut byte = 0u8;
        // SAFETY: peeks at most one byte into a buffer of one byte, at a socket that is open while this request lives.
        #[allow(unsafe_code)]
        let peeked = unsafe { libc::recv(self.socket, (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
        let waits =
            || matches!(io::Error::last_os_error().kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
        peeked == 0 || (peeked < 0 && !waits())
    }
}

/// Where connections come from.
trait Accept: Send {
    fn accept(&self) -> impl Future<Output = io::Result<(TcpStream, SocketAddr)>> + Send;
}

impl Accept for TcpListener {
    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        TcpListener::accept(self).await
    }
}

/// Serves until `stop`, then finishes the requests under way and returns. Dropping the future ends them at once.
pub async fn serve<H: Handler>(listener: TcpListener, handler: Arc<H>, limits: Limits, stop: CancellationToken) {
    accept_from(listener, handler, Arc::new(limits), stop).await;
}

async fn accept_from<A: Accept, H: Handler>(from: A, handler: Arc<H>, limits: Arc<Limits>, stop: CancellationToken) {
    const PAUSE_MIN: Duration = Duration::from_millis(20);
    const PAUSE_MAX: Duration = Duration::from_secs(1);
    let places = Places::new(&limits);
    let mut connections = JoinSet::new();
    let mut pause = PAUSE_MIN;
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = from.accept() => accepted,
        };
        // Those that have ended since the last one came.
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((stream, peer)) => {
                pause = PAUSE_MIN;
                let Some(place) = places.take(peer.ip()) else {
                    metrics::counter!(CONNECTIONS_REFUSED).increment(1);
                    continue;
                };
                let connection = connection(stream, peer, Arc::clone(&handler), Arc::clone(&limits), stop.clone());
                connections.spawn(async move {
                    connection.await;
                    drop(place);
                });
            }
            // The peer was gone before we looked: its affair alone.
            Err(error) if is_of_the_peer(&error) => {}
            Err(error) => {
                // Out of descriptors or memory: what is open goes on, and its end makes room.
                tracing::warn!(%error, "no connection can be accepted; trying again");
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
    drop(from);
    while connections.join_next().await.is_some() {}
}

fn is_of_the_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    )
}

type Counts = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// The places for connections, over all and per address.
struct Places {
    all: Arc<Semaphore>,
    per_address_max: Option<usize>,
    by_address: Counts,
}

struct Place {
    _all: OwnedSemaphorePermit,
    counted: Option<(IpAddr, Counts)>,
}

impl Places {
    fn new(limits: &Limits) -> Self {
        Places {
            all: Arc::new(Semaphore::new(limits.connections_max.min(Semaphore::MAX_PERMITS))),
            per_address_max: limits.connections_per_address_max,
            by_address: Arc::default(),
        }
    }

    fn take(&self, address: IpAddr) -> Option<Place> {
        let all = Arc::clone(&self.all).try_acquire_owned().ok()?;
        let Some(max) = self.per_address_max else {
            return Some(Place { _all: all, counted: None });
        };
        let mut counts = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(Place { _all: all, counted: Some((address, Arc::clone(&self.by_address))) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some((address, counts)) = &self.counted {
            let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(count) = counts.get_mut(address) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(address);
                }
            }
        }
    }
}

async fn connection<H: Handler>(
    stream: TcpStream,
    peer: SocketAddr,
    handler: Arc<H>,
    limits: Arc<Limits>,
    stop: CancellationToken,
) {
    // An answer is one small write that must not wait for the peer's acknowledgement.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let watch = Arc::new(Watch::default());
    let headers_max = limits.headers_max;
    let socket = stream.as_raw_fd();
    let io = TokioIo::new(Gate::new(stream, limits, Arc::clone(&watch)));
    let connection = Arc::new(Connection { peer, watch, socket });
    let service = service_fn(move |request| {
        let handler = Arc::clone(&handler);
        let connection = Arc::clone(&connection);
        async move { Ok::<_, Infallible>(answer(&*handler, request, &connection).await) }
    });
    // Sizes and times are the gate's, so the library's own clock is off.
    let mut library = http1::Builder::new();
    library.header_read_timeout(None).max_headers(headers_max).max_buf_size(BUFFER_BYTES_MAX);
    // A sender that has said everything may close its half and still wants its answer.
    library.half_close(true);
    let mut serving = library.serve_connection(io, service);
    let ended = tokio::select! {
        ended = &mut serving => ended,
        () = stop.cancelled() => {
            Pin::new(&mut serving).graceful_shutdown();
            (&mut serving).await
        }
    };
    let (mut stream, sends_on) = serving.into_parts().io.into_inner().into_inner();
    if ended.map_or_else(|error| error.is_parse(), |()| sends_on) {
        gate::linger(&mut stream).await;
    }
}

async fn answer<H: Handler>(handler: &H, request: Request<Incoming>, connection: &Connection) -> Answer {
    connection.watch.busy.store(true, Ordering::Release);
    let refused = connection.watch.refused.get().filter(|_| request.method().as_str() == gate::REFUSED);
    let answer = match refused {
        Some(refused) => {
            let problem = refused.problem();
            metrics::counter!(HTTP_REFUSED, "code" => problem.code()).increment(1);
            tracing::info!(code = problem.code(), "not a request");
            closing(problem.into_answer())
        }
        None => match AssertUnwindSafe(handler.handle(request, connection)).catch_unwind().await {
            // An answer to a request that has not wholly arrived is the last: what comes yet is not read.
            Ok(answer) if connection.watch.in_body.load(Ordering::Acquire) => closing(answer),
            Ok(answer) => answer,
            Err(_panic) => {
                // The panic hook has told where; its text may hold what must not be shown.
                metrics::counter!(HANDLER_PANICS).increment(1);
                tracing::error!("a request's handler panicked");
                let problem =
                    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "this request cannot be handled");
                closing(problem.into_answer())
            }
        },
    };
    connection.watch.busy.store(false, Ordering::Release);
    answer
}

fn closing(mut answer: Answer) -> Answer {
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}

impl Refused {
    fn problem(self) -> Problem {
        match self {
            Refused::Malformed(what) => {
                Problem::new(StatusCode::BAD_REQUEST, "malformed_http", format!("not a request by RFC 9112: {what}"))
            }
            Refused::UriTooLong => Problem::new(StatusCode::URI_TOO_LONG, "uri_too_long", "the URI is too long"),
            Refused::TooManyHeaders => Problem::new(
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "too_many_headers",
                "the request has too many headers",
            ),
            Refused::HeadTooLarge => Problem::new(
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "head_too_large",
                "the request's head is too large",
            ),
            Refused::HeadTimeout => {
                Problem::new(StatusCode::REQUEST_TIMEOUT, "head_timeout", "the request's head did not arrive in time")
            }
            // The handler tells these two, since it was reading.
            Refused::MalformedBody => Problem::new(StatusCode::BAD_REQUEST, "malformed_body", "the body is malformed"),
            Refused::BodyTimeout => {
                Problem::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", "the body did not arrive in time")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use std::collections::VecDeque;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// Fails as often as it is told to, then accepts for real.
    struct Troubled {
        errors: Mutex<VecDeque<i32>>,
        listener: TcpListener,
    }

    impl Accept for Troubled {
        async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
            let error = self.errors.lock().unwrap().pop_front();
            match error {
                Some(code) => Err(io::Error::from_raw_os_error(code)),
                None => Accept::accept(&self.listener).await,
            }
        }
    }

    struct Hello;

    impl Handler for Hello {
        async fn handle(&self, _: Request<Incoming>, _: &Connection) -> Answer {
            Answer::new(Bytes::from_static(b"hello").into())
        }
    }

    #[tokio::test]
    async fn the_accept_loop_outlives_a_want_of_descriptors() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let errors = VecDeque::from([libc::EMFILE, libc::ECONNABORTED, libc::ENFILE, libc::ENOMEM]);
        let stop = CancellationToken::new();
        let from = Troubled { errors: Mutex::new(errors), listener };
        let serving = tokio::spawn(accept_from(from, Arc::new(Hello), Arc::default(), stop.clone()));
        let mut peer = TcpStream::connect(address).await.unwrap();
        peer.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        peer.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"), "{answer}");
        stop.cancel();
        serving.await.unwrap();
    }

    /// Tells when its client has gone.
    struct Patient(tokio::sync::Notify);

    impl Handler for Patient {
        async fn handle(&self, _: Request<Incoming>, connection: &Connection) -> Answer {
            connection.gone().await;
            self.0.notify_one();
            Answer::default()
        }
    }

    #[tokio::test]
    async fn a_peer_that_goes_away_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let handler = Arc::new(Patient(tokio::sync::Notify::new()));
        tokio::spawn(serve(listener, Arc::clone(&handler), Limits::default(), CancellationToken::new()));
        let mut peer = TcpStream::connect(address).await.unwrap();
        peer.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        let told = tokio::time::timeout(GONE_SEEN_WITHIN * 4, handler.0.notified()).await;
        assert!(told.is_err(), "it waits for its answer");
        drop(peer);
        tokio::time::timeout(Duration::from_secs(20), handler.0.notified()).await.unwrap();
    }

    struct Large;

    impl Handler for Large {
        async fn handle(&self, _: Request<Incoming>, _: &Connection) -> Answer {
            Answer::new(Bytes::from(vec![0; 32 << 20]).into())
        }
    }

    #[tokio::test]
    async fn a_peer_that_takes_no_answer_gives_up_its_place() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let limits = Limits { connections_max: 1, write_timeout: Duration::from_millis(50), ..Limits::default() };
        tokio::spawn(serve(listener, Arc::new(Large), limits, CancellationToken::new()));
        let request = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        let mut deaf = TcpStream::connect(address).await.unwrap();
        deaf.write_all(request).await.unwrap();
        let got_in = async {
            loop {
                let mut peer = TcpStream::connect(address).await.unwrap();
                let _ = peer.write_all(request).await;
                let mut answer = Vec::new();
                if peer.read_to_end(&mut answer).await.is_ok_and(|n| n > 32 << 20) {
                    break;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), got_in).await.unwrap();
    }

    #[test]
    fn places_are_counted_per_address_and_given_back() {
        let limits = Limits { connections_max: 3, connections_per_address_max: Some(2), ..Limits::default() };
        let places = Places::new(&limits);
        let [a, b] = ["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        let first = places.take(a);
        let second = places.take(a);
        assert!(first.is_some() && second.is_some() && places.take(a).is_none());
        let other = places.take(b);
        assert!(other.is_some() && places.take(b).is_none(), "the cap over all");
        drop(first);
        assert!(places.take(a).is_some());
        drop((second, other));
        assert!(places.by_address.lock().unwrap().is_empty(), "nothing is kept of addresses that are gone");
    }
}
