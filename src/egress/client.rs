//! The client: one `send`, at most one request on the wire.

use super::connect::{Connector, host_name};
use super::fault::{Fault, Stop};
use super::guard::{Guard, Refusal, Scheme};
use super::pool::{Link, Pool};
use super::resolve::{Resolver, SystemResolver};
use super::wire::Meter;
use super::{Answer, Error, Exchange, Failure, Outbound, Settings, Timings, Transport};
use crate::delivery::{Phase, Reason, TransportKind};
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, Uri};
use http_body::Body;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use rustls_pki_types::TrustAnchor;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Once};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::time::timeout_at;
use url::{Position, Url};

/// What hyper asks of its buffer.
const HEAD_BYTES_LEAST: usize = 8192;
/// Bytes on the wire before the head is complete, as a multiple of the head: room for TLS, and for some informational
/// responses, which are skipped.
const HEAD_OVERHEAD: u64 = 4;
/// The longest exchange, whatever is asked.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// Headers that belong to the connection, or that frame the message: ours to write.
const OWN_HEADERS: [HeaderName; 10] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::HOST,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Sends through the guard, over connections kept per endpoint.
pub struct Client {
    guard: Guard,
    connector: Connector,
    pool: Arc<Pool>,
    sweeper: Once,
    http: http1::Builder,
    head_bytes_max: usize,
    body_read_max: usize,
}

impl Client {
    /// With the system's name servers.
    pub fn new(settings: &Settings) -> Result<Self, Error> {
        Client::with_resolver(settings, Arc::new(SystemResolver::new()))
    }

    pub fn with_resolver(settings: &Settings, resolver: Arc<dyn Resolver>) -> Result<Self, Error> {
        if settings.head_bytes_max < HEAD_BYTES_LEAST {
            return Err(Error::HeadLimit { given: settings.head_bytes_max, least: HEAD_BYTES_LEAST });
        }
        for rule in &settings.allow {
            tracing::warn!(%rule, "the address guard is opened by egress.allow");
        }
        let mut http = http1::Builder::new();
        http.max_header_size(settings.head_bytes_max).max_buf_size(settings.head_bytes_max);
        Ok(Client {
            guard: Guard::new(settings),
            connector: Connector::new(settings, resolver)?,
            pool: Arc::new(Pool::new(settings.idle_connections_max, settings.idle, settings.age)),
            sweeper: Once::new(),
            http,
            head_bytes_max: settings.head_bytes_max,
            body_read_max: settings.body_read_max,
        })
    }

    /// The guard that this client obeys, for early errors when an endpoint is saved.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Whose certificates this client believes.
    pub fn anchors(&self) -> Arc<[TrustAnchor<'static>]> {
        Arc::clone(&self.connector.anchors)
    }

    async fn exchange(&self, request: Outbound, trace: &mut Trace) -> Result<Answer, Stop> {
        let started = trace.started;
        let deadline = tokio::time::Instant::from_std(started + request.timeout.min(TIMEOUT_MAX));
        let (pool, kept_max) = (request.pool, request.body_kept_max.min(self.body_read_max));
        let (mut link, response) = timeout_at(deadline, self.head(request, trace))
            .await
            .unwrap_or_else(|_| Err(Fault::new(TransportKind::Timeout, trace.timed_out()).into()))?;
        link.meter.unbound();
        trace.timings.head = Some(started.elapsed());
        let (parts, body) = response.into_parts();
        let mut sample = Sample::new(kept_max, self.body_read_max);
        if !body.is_end_stream() {
            // The head is the answer: a body that stalls or breaks is a body cut short.
            sample.whole = timeout_at(deadline, sample.fill(&mut link, body)).await.unwrap_or(false);
        }
        if sample.whole && !is_framed_twice(&parts.headers) && link.is_reusable().await {
            self.pool.put(pool, link, Instant::now());
        }
        Ok(Answer {
            status: parts.status,
            headers: parts.headers,
            body_truncated: sample.is_truncated(),
            body: sample.kept.freeze(),
            elapsed: started.elapsed(),
            timings: trace.timings,
        })
    }

    /// Up to the complete response head.
    async fn head(&self, request: Outbound, trace: &mut Trace) -> Result<(Box<Link>, Response<Incoming>), Stop> {
        let Outbound { pool, url, method, headers, body, .. } = request;
        let literal = self.guard.judge_target(&url)?;
        let mut message = message(&url, method, headers, body)?;
        loop {
            let waiting = self.waiting(pool, &url).await;
            trace.timings.reused = waiting.is_some();
            let mut link = match waiting {
                Some(link) => link,
                None => {
                    let (wire, peer) = self.connector.open(&self.guard, &url, literal, &mut trace.timings).await?;
                    let host = host_header(&url)?;
                    Link::over(wire, &self.http, &url, host, peer).await.map_err(|e| Fault::exchange(&e))?
                }
            };
            message.headers_mut().insert(header::HOST, link.host.clone());
            link.meter.bound(HEAD_OVERHEAD * self.head_bytes_max as u64);
            trace.watch(&link.meter);
            let mut answer = pin!(link.start(message));
            let answered = poll_fn(|cx| {
                link.drive(cx);
                answer.as_mut().poll(cx)
            })
            .await;
            match answered {
                Ok(response) => return Ok((link, response)),
                Err(mut rejected) => match rejected.take_message() {
                    // Closed just now: the request came back whole, so it goes over another connection.
                    Some(returned) if trace.timings.reused && !trace.has_written() => message = returned,
                    Some(_) | None => return Err(Fault::exchange(rejected.error()).into()),
                },
            }
        }
    }

    /// A waiting connection that still lives and still may be used.
    async fn waiting(&self, pool: u32, url: &Url) -> Option<Box<Link>> {
        while let Some(mut link) = self.pool.take(pool, url, Instant::now()) {
            if self.guard.judge_for(link.peer, Scheme::of(url)).is_ok() && link.is_live().await {
                return Some(link);
            }
        }
        None
    }
}

#[async_trait]
impl Transport for Client {
    async fn send(&self, request: Outbound) -> Exchange {
        self.sweeper.call_once(|| {
            tokio::spawn(Pool::keep_swept(Arc::downgrade(&self.pool)));
        });
        let mut trace = Trace::new(Instant::now());
        match self.exchange(request, &mut trace).await {
            Ok(answer) => Exchange::Answered(answer),
            Err(Stop::Fault(fault)) => Exchange::Failed(Failure {
                kind: fault.kind,
                phase: if trace.has_written() { Phase::AfterWrite } else { Phase::BeforeWrite },
                detail: fault.detail,
                elapsed: trace.started.elapsed(),
                timings: trace.timings,
            }),
            Err(Stop::Refused(refusal)) => {
                if refusal.reason == Reason::POLICY {
                    metrics::counter!("hookgate_blocked_addresses_total").increment(1);
                }
                Exchange::Refused { reason: refusal.reason, detail: refusal.detail }
            }
        }
    }
}

/// How far an exchange has come. It outlives the work, which a deadline may drop at any point.
struct Trace {
    started: Instant,
    timings: Timings,
    /// The connection that carries the request, and how much had been written to it before.
    carrier: Option<(Arc<Meter>, u64)>,
}

impl Trace {
    fn new(started: Instant) -> Self {
        Trace { started, timings: Timings::default(), carrier: None }
    }

    fn watch(&mut self, meter: &Arc<Meter>) {
        self.carrier = Some((Arc::clone(meter), meter.written()));
    }

    /// Whether a byte of the request was handed to the kernel.
    fn has_written(&self) -> bool {
        self.carrier.as_ref().is_some_and(|(meter, before)| meter.written() > *before)
    }

    fn timed_out(&self) -> &'static str {
        if self.has_written() {
            "no complete response head in time"
        } else if self.carrier.is_some() {
            "the request could not be written in time"
        } else {
            "no connection in time"
        }
    }
}

/// The start of a body.
struct Sample {
    kept: BytesMut,
    kept_max: usize,
    read: usize,
    read_max: usize,
    whole: bool,
}

impl Sample {
    fn new(kept_max: usize, read_max: usize) -> Self {
        Sample { kept: BytesMut::new(), kept_max, read: 0, read_max, whole: true }
    }

    /// Reads to the end or to the limit. Whether the end was reached.
    async fn fill(&mut self, link: &mut Link, mut body: Incoming) -> bool {
        poll_fn(|cx| {
            loop {
                link.drive(cx);
                match Pin::new(&mut body).poll_frame(cx) {
                    Poll::Ready(Some(Ok(frame))) => {
                        if let Some(data) = frame.data_ref()
                            && !self.take(data)
                        {
                            return Poll::Ready(false);
                        }
                    }
                    Poll::Ready(Some(Err(_))) => return Poll::Ready(false),
                    Poll::Ready(None) => return Poll::Ready(true),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    }

    /// Copied, so that a small sample does not hold on to the connection's buffer.
    fn take(&mut self, data: &Bytes) -> bool {
        let room = self.kept_max - self.kept.len();
        self.kept.extend_from_slice(&data[..data.len().min(room)]);
        self.read += data.len();
        self.read <= self.read_max
    }

    fn is_truncated(&self) -> bool {
        !self.whole || self.read > self.kept.len()
    }
}

/// Both framings at once is an error, and no basis for another exchange on the connection.
fn is_framed_twice(headers: &HeaderMap) -> bool {
    headers.contains_key(header::TRANSFER_ENCODING) && headers.contains_key(header::CONTENT_LENGTH)
}

fn message(url: &Url, method: Method, mut headers: HeaderMap, body: Bytes) -> Result<Request<Full<Bytes>>, Stop> {
    if method == Method::CONNECT {
        return Err(Fault::new(TransportKind::Protocol, "the method CONNECT is not sent").into());
    }
    let target = PathAndQuery::try_from(&url[Position::BeforePath..Position::AfterQuery])
        .map_err(|e| Refusal::invalid(format!("the URL's path or query cannot be sent: {e}")))?;
    for name in &OWN_HEADERS {
        headers.remove(name);
    }
    let mut message = Request::new(Full::new(body));
    *message.method_mut() = method;
    *message.uri_mut() = Uri::from(target);
    *message.headers_mut() = headers;
    Ok(message)
}

fn host_header(url: &Url) -> Result<HeaderValue, Stop> {
    let host = host_name(url);
    let value = match url.port() {
        Some(port) => HeaderValue::try_from(format!("{host}:{port}")),
        None => HeaderValue::try_from(host),
    };
    value.map_err(|_| Fault::new(TransportKind::Protocol, "the URL's host cannot be written as a header").into())
}
