//! A receiver on a raw socket that does exactly what a test tells it, and remembers what reached it.

use hookgate::delivery::{Phase, TransportKind};
use hookgate::egress::{Answer, Client, Exchange, Outbound, Resolver, Settings, Transport, Unresolved};
use http::{HeaderMap, Method};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub(crate) const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[derive(Default)]
pub(crate) struct Journal {
    connections: AtomicUsize,
    closed: AtomicUsize,
    requests: Mutex<Vec<Vec<u8>>>,
}

impl Journal {
    pub(crate) fn close(&self) {
        self.closed.fetch_add(1, SeqCst);
    }
}

pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    journal: Arc<Journal>,
}

/// One accepted connection.
pub(crate) struct Peer<S = TcpStream> {
    pub(crate) stream: S,
    /// How many were accepted before it.
    pub(crate) nth: usize,
    pub(crate) journal: Arc<Journal>,
    buffer: Vec<u8>,
}

impl Server {
    /// Listens on a free port of 127.0.0.1 and runs `script` for each connection.
    pub(crate) async fn start<F, Fut>(script: F) -> Server
    where
        F: Fn(Peer) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        Server::start_at("127.0.0.1:0".parse().unwrap(), script).await
    }

    pub(crate) async fn start_at<F, Fut>(addr: SocketAddr, script: F) -> Server
    where
        F: Fn(Peer) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind(addr).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let journal = Arc::new(Journal::default());
        let kept = Arc::clone(&journal);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let nth = kept.connections.fetch_add(1, SeqCst);
                tokio::spawn(script(Peer { stream, nth, journal: Arc::clone(&kept), buffer: Vec::new() }));
            }
        });
        Server { addr, journal }
    }

    /// Answers every request with the same bytes, over one connection as long as the client likes.
    pub(crate) async fn answering(answer: impl Into<Vec<u8>>) -> Server {
        let answer: Arc<[u8]> = answer.into().into();
        Server::start(move |mut peer| {
            let answer = Arc::clone(&answer);
            async move {
                while peer.request().await.is_some() {
                    peer.say(&answer).await;
                }
                peer.journal.close();
            }
        })
        .await
    }

    pub(crate) fn connections(&self) -> usize {
        self.journal.connections.load(SeqCst)
    }

    /// Connections on which the script has come to its end.
    pub(crate) fn closed(&self) -> usize {
        self.journal.closed.load(SeqCst)
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        let requests = self.journal.requests.lock().unwrap();
        requests.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect()
    }

    /// An allow rule for this server alone.
    pub(crate) fn rule(&self) -> String {
        let (ip, port) = (self.addr.ip(), self.addr.port());
        if ip.is_ipv4() { format!("{ip}/32:{port}") } else { format!("[{ip}/128]:{port}") }
    }

    /// A client that may reach this server.
    pub(crate) fn client(&self) -> Client {
        self.client_with(|_| ())
    }

    pub(crate) fn client_with(&self, change: impl FnOnce(&mut Settings)) -> Client {
        let mut settings = Settings { allow: vec![self.rule().parse().unwrap()], ..Settings::default() };
        change(&mut settings);
        Client::new(&settings).unwrap()
    }

    pub(crate) fn post(&self) -> Outbound {
        post(&format!("http://{}/hook", self.addr))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    /// Reads one whole request and notes it; `None` when the client has closed.
    pub(crate) async fn request(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(length) = request_length(&self.buffer) {
                let request: Vec<u8> = self.buffer.drain(..length).collect();
                self.journal.requests.lock().unwrap().push(request.clone());
                return Some(request);
            }
            if self.stream.read_buf(&mut self.buffer).await.ok()? == 0 {
                return None;
            }
        }
    }

    /// Waits for the first byte of a request.
    pub(crate) async fn first_byte(&mut self) {
        self.stream.read_buf(&mut self.buffer).await.unwrap();
    }

    pub(crate) async fn say(&mut self, bytes: &[u8]) {
        // The client may have closed already; that is for the client's own outcome to tell.
        let _ = self.stream.write_all(bytes).await;
        let _ = self.stream.flush().await;
    }

    /// Says the same until the client has closed.
    pub(crate) async fn say_forever(&mut self, bytes: &[u8]) {
        while self.stream.write_all(bytes).await.is_ok() {}
        self.journal.close();
    }

    /// Keeps silent until the client has closed.
    pub(crate) async fn hold(mut self) {
        while self.stream.read_buf(&mut self.buffer).await.is_ok_and(|n| n > 0) {}
        self.journal.close();
    }
}

impl Peer {
    /// The same connection after a handshake; `None` when the client refuses it.
    pub(crate) async fn secured(self, acceptor: &TlsAcceptor) -> Option<Peer<TlsStream<TcpStream>>> {
        let tls = acceptor.accept(self.stream).await.ok()?;
        Some(Peer { stream: tls, nth: self.nth, journal: self.journal, buffer: self.buffer })
    }

    pub(crate) fn close(self) {
        drop(self.stream);
        self.journal.close();
    }

    /// Closes with a reset instead of an orderly end.
    pub(crate) fn reset(self) {
        self.stream.set_zero_linger().unwrap();
        self.close();
    }
}

fn request_length(buffer: &[u8]) -> Option<usize> {
    let head = buffer.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&buffer[..head]).to_ascii_lowercase();
    let body =
        text.lines().find_map(|line| line.strip_prefix("content-length:")).map_or(0, |v| v.trim().parse().unwrap());
    (buffer.len() >= head + body).then_some(head + body)
}

pub(crate) fn post(url: &str) -> Outbound {
    Outbound {
        pool: 1,
        url: url.parse().unwrap(),
        method: Method::POST,
        headers: HeaderMap::new(),
        body: "hello".into(),
        timeout: Duration::from_secs(20),
        body_kept_max: 16 << 10,
    }
}

pub(crate) async fn answered(client: &Client, request: Outbound) -> Answer {
    match client.send(request).await {
        Exchange::Answered(answer) => answer,
        other => panic!("not answered: {other:?}"),
    }
}

/// Kind, phase and text of a failure.
pub(crate) async fn failed(client: &Client, request: Outbound) -> (TransportKind, Phase, String) {
    match client.send(request).await {
        Exchange::Failed(failure) => (failure.kind, failure.phase, failure.detail),
        other => panic!("not failed: {other:?}"),
    }
}

/// Reason and detail of a refusal.
pub(crate) async fn refused(client: &Client, request: Outbound) -> (String, String) {
    match client.send(request).await {
        Exchange::Refused { reason, detail } => (reason.to_string(), detail),
        other => panic!("not refused: {other:?}"),
    }
}

/// Waits for a condition; a test that waits in vain fails.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await; // poll: asks again
    }
    panic!("in vain: {what}");
}

/// A resolver whose answers are set by the test, one per look-up; the last one stays.
pub(crate) struct Scripted {
    answers: Mutex<VecDeque<Result<Vec<IpAddr>, Unresolved>>>,
    pub(crate) lookups: AtomicUsize,
}

impl Scripted {
    pub(crate) fn new<const N: usize>(answers: [&[&str]; N]) -> Arc<Self> {
        let parsed = |texts: &&[&str]| Ok(texts.iter().map(|ip| ip.parse().unwrap()).collect());
        Scripted::of(answers.iter().map(parsed))
    }

    pub(crate) fn of(answers: impl IntoIterator<Item = Result<Vec<IpAddr>, Unresolved>>) -> Arc<Self> {
        Arc::new(Scripted { answers: Mutex::new(answers.into_iter().collect()), lookups: AtomicUsize::new(0) })
    }

    pub(crate) fn lookups(&self) -> usize {
        self.lookups.load(SeqCst)
    }
}

#[async_trait::async_trait]
impl Resolver for Scripted {
    async fn lookup(&self, _name: &str) -> Result<Vec<IpAddr>, Unresolved> {
        self.lookups.fetch_add(1, SeqCst);
        let mut answers = self.answers.lock().unwrap();
        if answers.len() > 1 { answers.pop_front().unwrap() } else { answers[0].clone() }
    }
}
