//! The public side: `POST /in/{tenant}/{source}`. A 2xx is answered only after the commit.
//!
//! A request is looked up, bounded, read, verified and accepted, in that order and in one line. The body is opaque. What
//! is refused stores no event; it is counted, and its kind goes to the log and the rejection log. Authoritative for who
//! may send what is the map of [`Routes`], replaced as a whole when the configuration changes.

mod answer;
mod rejections;
mod routes;
mod verifier;

pub use routes::{Inlet, Routes};
pub use verifier::{Adopting, Verifier};

use crate::clock::{Clock, Timestamp};
use crate::crash;
use crate::delivery::Name;
use crate::http::{Answer, BodyFault, Budget, Connection, Handler, Problem, collect};
use crate::ledger::{Accept, Accepted, Adopted, Ledger, LedgerError, NewDelivery, Rejected, Slots};
use crate::secret::Secret;
use crate::telemetry::INGRESS_REQUESTS;
use crate::verify::{Admission, Answers, KeySource, Refusal, RefusalCode, Request, Unreachable, with_keys};
use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use hyper::body::Incoming;
use rejections::Book;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// When a sender who was turned away for want of room should come again.
const RETRY_AFTER: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub struct Settings {
    /// Body bytes of all requests under way together; over it: 503.
    pub in_flight_bytes_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { in_flight_bytes_max: 64 << 20 }
    }
}

/// The handler of the public listener.
pub struct Ingress {
    routes: ArcSwap<Routes>,
    ledger: Arc<dyn Ledger>,
    slots: Arc<Slots>,
    clock: Arc<dyn Clock>,
    budget: Arc<Budget>,
    book: Book,
    keys: Arc<dyn KeySource>,
}

/// A request that is not accepted, with its body where that was read.
struct Turned {
    why: Rejection,
    body: Option<Bytes>,
    at: Timestamp,
}

impl Ingress {
    pub fn new(settings: &Settings, ledger: Arc<dyn Ledger>, slots: Arc<Slots>, clock: Arc<dyn Clock>) -> Self {
        let budget = Budget::new(settings.in_flight_bytes_max);
        let keys = Arc::new(verifier::NoKeys);
        Ingress { routes: ArcSwap::default(), ledger, slots, clock, budget, book: Book::new(), keys }
    }

    /// Who fetches the keys that providers publish. Without it, sources that need one answer 503.
    #[must_use]
    pub fn with_keys(self, keys: Arc<dyn KeySource>) -> Self {
        Ingress { keys, ..self }
    }

    /// From the next request on, these are the sources. Requests under way end by the old ones.
    pub fn replace_routes(&self, routes: Routes) {
        self.routes.store(Arc::new(routes));
    }

    /// Writes the rejection log until `stop`. For as long as nobody runs it, what is refused is counted alone.
    pub async fn keep_rejections(&self, stop: CancellationToken) {
        self.book.keep(Arc::clone(&self.ledger), stop).await;
    }

    /// The check of a request that somebody recorded, step by step. It changes nothing, is counted nowhere, and fetches
    /// no key. `url` is what the provider called; `None`: the source's own address. `None`: there is no such source.
    pub fn explain(
        &self,
        (tenant, source): (&Name, &Name),
        (method, url): (&Method, Option<&str>),
        headers: &http::HeaderMap,
        body: &Bytes,
        received_at: Timestamp,
    ) -> Option<Vec<crate::verify::Step>> {
        let inlet = self.routes.load().find(&format!("{tenant}/{source}"))?;
        let own = || format!("/in/{tenant}/{source}").parse().map(|uri| inlet.url_of(&uri)).unwrap_or_default();
        let url = url.map_or_else(own, str::to_owned);
        Some(inlet.source.explain(Request { method, url: &url, headers, body, received_at }))
    }

    /// What its scheme says of a request, with the provider's keys fetched where it takes them.
    async fn verify(&self, inlet: &Inlet, request: Request<'_>) -> Result<Admission, Rejection> {
        let judged = with_keys(self.keys.as_ref(), |key| inlet.source.judge(request, key)).await;
        judged.map_err(Rejection::KeyUnreachable)?.map_err(Rejection::Refused)
    }

    async fn receive(
        &self,
        request: http::Request<Incoming>,
        inlet: &Inlet,
        connection: &Connection,
    ) -> Result<Answer, Turned> {
        let at = self.clock.now();
        let turned = |why| Turned { why, body: None, at };
        let (head, body) = request.into_parts();
        if !matches!(head.method, Method::POST | Method::GET | Method::HEAD | Method::OPTIONS) {
            return Err(turned(Rejection::method(inlet, None)));
        }
        crash::point("I1");
        let (body, room) = collect(body, inlet.body_bytes_max, &self.budget, connection)
            .await
            .map_err(|fault| turned(Rejection::Body(fault)))?;
        let url = inlet.url_of(&head.uri);
        let request = Request { method: &head.method, url: &url, headers: &head.headers, body: &body, received_at: at };
        let judged = self.judge(request, inlet).await;
        drop(room);
        judged.map_err(|why| Turned { why, body: Some(body), at })
    }

    async fn judge(&self, request: Request<'_>, inlet: &Inlet) -> Result<Answer, Rejection> {
        let is_post = *request.method == Method::POST;
        let event = match self.verify(inlet, request).await {
            Ok(Admission::Event(event)) if is_post => event,
            Ok(Admission::Confirm(url)) if is_post => {
                self.keys.confirm(&url).await.map_err(Rejection::NotConfirmed)?;
                inlet.tally.challenge.increment(1);
                return Ok(answer::confirmed());
            }
            Ok(Admission::Adopt { secret, answer }) if is_post => {
                self.adopt(inlet, secret).await?;
                inlet.tally.challenge.increment(1);
                return Ok(verifier::challenge_answer(answer));
            }
            Ok(Admission::Challenge(challenge)) => {
                inlet.tally.challenge.increment(1);
                return Ok(verifier::challenge_answer(challenge));
            }
            Err(rejection) if is_post || rejection.is_of_a_handshake() => return Err(rejection),
            // Other methods are only for a handshake.
            Err(Rejection::Refused(refusal)) if inlet.source.greeting_methods().contains(request.method.as_str()) => {
                return Err(Rejection::method(inlet, Some(refusal.detail)));
            }
            Ok(Admission::Event(_) | Admission::Confirm(_) | Admission::Adopt { .. }) | Err(_) => {
                return Err(Rejection::method(inlet, None));
            }
        };
        crash::point("I2");
        // After verification, so that nobody without the secret can use up what the provider may send.
        inlet.admits_now().map_err(Rejection::RateLimited)?;
        let now = self.clock.now();
        let deliveries = inlet
            .destinations(&event.event_type)
            .map(|endpoint| NewDelivery { endpoint, slot: self.slots.take_for_arrival(endpoint, now), order: None })
            .collect();
        let accept = Accept { tenant: inlet.tenant, source: Some(inlet.source_key), event, deliveries, now };
        let accepted = self.ledger.accept(accept).await.map_err(Rejection::Ledger)?;
        let answer = match accepted {
            Accepted::New(event) => {
                inlet.tally.accepted.increment(1);
                inlet.tally.events.increment(1);
                answer::accepted(event, false, inlet.source.answers())
            }
            Accepted::Duplicate(event) => {
                inlet.tally.duplicate.increment(1);
                inlet.tally.suppressed.increment(1);
                answer::accepted(event, true, inlet.source.answers())
            }
            Accepted::KeyReused(event) => return Err(Rejection::KeyReused(event)),
            // Only what is published is coalesced.
            Accepted::TooLateAt(_) => {
                let text = "an event of a source was taken for a coalesced one".to_owned();
                return Err(Rejection::Ledger(LedgerError::Unavailable(text)));
            }
        };
        crash::point("I5");
        Ok(answer)
    }

    /// The secret is the source's, and behind an fsync, or the handshake came too late.
    async fn adopt(&self, inlet: &Inlet, secret: Secret) -> Result<(), Rejection> {
        let adopted = self.ledger.adopt(inlet.tenant, inlet.source_key, secret, self.clock.now()).await;
        match adopted.map_err(Rejection::NotAdopted)? {
            Adopted::Held => {
                let Inlet { tenant_name: tenant, source_name: source, .. } = inlet;
                tracing::info!(%tenant, %source, "the source has the secret of its provider's handshake");
                Ok(())
            }
            Adopted::Other => Err(Rejection::Refused(Refusal::secret_held())),
        }
    }
}

impl Handler for Ingress {
    async fn handle(&self, request: http::Request<Incoming>, connection: &Connection) -> Answer {
        let inlet = request.uri().path().strip_prefix("/in/").and_then(|place| self.routes.load().find(place));
        let Some(inlet) = inlet else {
            // One answer for both, so that nobody learns which tenants there are.
            let problem = Rejection::UnknownSource.problem();
            told(&problem, None);
            return problem.into_answer();
        };
        match self.receive(request, &inlet, connection).await {
            Ok(answer) => answer,
            Err(turned) => self.turn_away(turned, &inlet, connection),
        }
    }
}

impl Ingress {
    /// The answer to a request that is not accepted, which is counted, logged and noted by its kind.
    fn turn_away(&self, turned: Turned, inlet: &Inlet, connection: &Connection) -> Answer {
        let Turned { why, body, at } = turned;
        let checked = match &why {
            Rejection::Refused(refusal) => Some((refusal.step.as_str(), refusal.skew_seconds)),
            _ => None,
        };
        let problem = why.problem();
        told(&problem, Some(inlet));
        // What is wrong with us is in our own log.
        if problem.status().is_client_error() {
            self.book.note(&inlet.notes, || Rejected {
                tenant: inlet.tenant,
                source: inlet.source_key,
                at,
                reason: problem.code(),
                step: checked.map(|(step, _)| step),
                detail: problem.detail().to_owned(),
                skew_seconds: checked.and_then(|(_, skew)| skew),
                peer: connection.peer.ip().to_canonical(),
                body: body.as_deref().map(rejections::facts),
            });
        }
        match inlet.source.answers() {
            Answers::Empty => problem.into_bare_answer(),
            Answers::Ours | Answers::Receipt(_) => problem.into_answer(),
        }
    }
}

/// Why a request is not accepted.
enum Rejection {
    UnknownSource,
    MethodNotAllowed {
        allow: String,
        detail: String,
    },
    RateLimited(Duration),
    Body(BodyFault),
    Refused(Refusal),
    /// Nothing is known about the key, so nothing about the request.
    KeyUnreachable(Unreachable),
    NotConfirmed(Unreachable),
    NotAdopted(LedgerError),
    KeyReused(crate::delivery::EventId),
    Ledger(LedgerError),
}

impl Rejection {
    fn is_of_a_handshake(&self) -> bool {
        matches!(self, Rejection::Refused(Refusal { code: RefusalCode::HandshakeRefused, .. }))
    }

    /// `lacking`: what a request by a method of the scheme's handshakes has not.
    fn method(inlet: &Inlet, lacking: Option<String>) -> Rejection {
        let greeting: Vec<&str> = inlet.source.greeting_methods().into_iter().collect();
        let allow = greeting.iter().copied().chain(["POST"]).collect::<Vec<_>>().join(", ");
        let detail = lacking.unwrap_or_else(|| match greeting.as_slice() {
            [] => "only POST is allowed here".to_owned(),
            greeting => format!("only POST is allowed here, and {} for the scheme's handshake", greeting.join(" and ")),
        });
        Rejection::MethodNotAllowed { allow, detail }
    }

    fn problem(self) -> Problem {
        match self {
            Rejection::UnknownSource => {
                Problem::new(StatusCode::NOT_FOUND, "unknown_source", "there is no such tenant or source")
            }
            Rejection::MethodNotAllowed { allow, detail } => {
                let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail);
                match HeaderValue::try_from(allow) {
                    Ok(allow) => problem.header(header::ALLOW, allow),
                    Err(_) => problem,
                }
            }
            Rejection::RateLimited(wait) => {
                Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", "this source sends faster than it may")
                    .retry_after(wait)
            }
            Rejection::Body(fault) => fault.problem(),
            Rejection::Refused(refusal) => {
                let status = match refusal.code {
                    RefusalCode::HandshakeRefused => StatusCode::FORBIDDEN,
                    RefusalCode::MissingHeader
                    | RefusalCode::Malformed
                    | RefusalCode::TimestampTooOld
                    | RefusalCode::TimestampTooNew
                    | RefusalCode::SignatureMismatch
                    | RefusalCode::UnknownKey
                    | RefusalCode::UnsupportedAlgorithm
                    | RefusalCode::UntrustedKeyUrl
                    | RefusalCode::InsufficientCoverage
                    | RefusalCode::NoSecret
                    | RefusalCode::SecretHeld => StatusCode::UNAUTHORIZED,
                };
                Problem::new(status, refusal.code.as_str(), refusal.detail)
            }
            Rejection::KeyUnreachable(why) => {
                tracing::warn!(%why, "a provider's key cannot be had");
                Problem::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "unavailable",
                    "the key that this request is verified with cannot be had now; send it again",
                )
                .retry_after(RETRY_AFTER)
            }
            Rejection::NotConfirmed(why) => {
                tracing::warn!(%why, "a subscription was not confirmed");
                Problem::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "unavailable",
                    "the subscription cannot be confirmed now; send it again",
                )
                .retry_after(RETRY_AFTER)
            }
            Rejection::NotAdopted(error) => {
                tracing::warn!(%error, "the ledger did not keep the secret of a handshake");
                Problem::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "unavailable",
                    "the secret cannot be stored now; send it again",
                )
                .retry_after(RETRY_AFTER)
            }
            Rejection::KeyReused(first) => Problem::new(
                StatusCode::CONFLICT,
                "key_reused",
                "this key came before with another body; the first is kept",
            )
            .with("event", first.to_string()),
            Rejection::Ledger(error) => {
                // What is wrong with our disk is the operator's to know, not the sender's.
                tracing::warn!(%error, "the ledger did not accept an event");
                Problem::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "unavailable",
                    "the event cannot be stored now; send it again",
                )
                .retry_after(RETRY_AFTER)
            }
        }
    }
}

/// Counts a refusal, and logs its kind.
fn told(problem: &Problem, inlet: Option<&Inlet>) {
    let result = problem.code();
    let scheme = inlet.map_or_else(|| Arc::from("none"), |inlet| Arc::clone(&inlet.scheme));
    metrics::counter!(INGRESS_REQUESTS, "scheme" => scheme, "result" => result).increment(1);
    match inlet {
        Some(Inlet { tenant_name: tenant, source_name: source, .. }) => {
            tracing::info!(%tenant, %source, result, "request refused");
        }
        None => tracing::info!(result, "request refused"),
    }
}
