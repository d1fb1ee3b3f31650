//! The public side: `POST /in/{tenant}/{source}`. A 2xx is answered only after the commit.
//!
//! A request is looked up, bounded, read, verified and accepted, in that order and in one line. The body is opaque. What
//! is refused stores nothing; it is counted, and its kind is logged. Authoritative for who may send what is the map of
//! [`Routes`], replaced as a whole when the configuration changes.

mod answer;
mod routes;
mod verifier;

pub use routes::{Inlet, Routes};
pub use verifier::Verifier;

use crate::clock::Clock;
use crate::crash;
use crate::http::{Answer, BodyFault, Budget, Connection, Handler, Problem, collect};
use crate::ledger::{Accept, Accepted, Ledger, LedgerError, NewDelivery, Slots};
use crate::telemetry::INGRESS_REQUESTS;
use crate::verify::{Admission, KeySource, Refusal, Request, Unreachable, with_keys};
use arc_swap::ArcSwap;
use http::{Method, StatusCode};
use hyper::body::Incoming;
use std::sync::Arc;
use std::time::Duration;

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
    keys: Arc<dyn KeySource>,
}

impl Ingress {
    pub fn new(settings: &Settings, ledger: Arc<dyn Ledger>, slots: Arc<Slots>, clock: Arc<dyn Clock>) -> Self {
        let budget = Budget::new(settings.in_flight_bytes_max);
        Ingress { routes: ArcSwap::default(), ledger, slots, clock, budget, keys: Arc::new(verifier::NoKeys) }
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

    async fn judge(&self, inlet: &Inlet, request: Request<'_>) -> Result<Admission, Rejection> {
        let judged = with_keys(self.keys.as_ref(), |key| inlet.source.judge(request, key)).await;
        judged.map_err(Rejection::KeyUnreachable)?.map_err(Rejection::Refused)
    }

    async fn receive(
        &self,
        request: http::Request<Incoming>,
        inlet: &Inlet,
        connection: &Connection,
    ) -> Result<Answer, Rejection> {
        let received_at = self.clock.now();
        let (head, body) = request.into_parts();
        let is_post = head.method == Method::POST;
        if !is_post && !matches!(head.method, Method::GET | Method::HEAD | Method::OPTIONS) {
            return Err(Rejection::MethodNotAllowed);
        }
        crash::point("I1");
        let (body, room) =
            collect(body, inlet.body_bytes_max, &self.budget, connection).await.map_err(Rejection::Body)?;
        let url = inlet.url_of(&head.uri);
        let request = Request { method: &head.method, url: &url, headers: &head.headers, body: &body, received_at };
        let event = match self.judge(inlet, request).await {
            Ok(Admission::Event(event)) if is_post => event,
            Ok(Admission::Confirm(url)) if is_post => {
                self.keys.confirm(&url).await.map_err(Rejection::NotConfirmed)?;
                inlet.tally.challenge.increment(1);
                return Ok(answer::confirmed());
            }
            Ok(Admission::Challenge(challenge)) => {
                inlet.tally.challenge.increment(1);
                return Ok(verifier::challenge_answer(challenge));
            }
            // Other methods are only for a handshake.
            Ok(Admission::Event(_) | Admission::Confirm(_)) => return Err(Rejection::MethodNotAllowed),
            Err(rejection) => match inlet.source.greet(request) {
                Some(greeting) => {
                    inlet.tally.challenge.increment(1);
                    return Ok(verifier::challenge_answer(greeting));
                }
                None if is_post => return Err(rejection),
                None => return Err(Rejection::MethodNotAllowed),
            },
        };
        crash::point("I2");
        // After verification, so that nobody without the secret can use up what the provider may send.
        inlet.admits_now().map_err(Rejection::RateLimited)?;
        let now = self.clock.now();
        let deliveries = inlet
            .destinations(&event.event_type)
            .map(|endpoint| NewDelivery { endpoint, slot: self.slots.take_for_arrival(endpoint, now) })
            .collect();
        let accept = Accept { tenant: inlet.tenant, source: Some(inlet.source_key), event, deliveries, now };
        let accepted = self.ledger.accept(accept).await.map_err(Rejection::Ledger)?;
        drop(room);
        let answer = match accepted {
            Accepted::New(event) => {
                inlet.tally.accepted.increment(1);
                inlet.tally.events.increment(1);
                answer::accepted(event, false, inlet.source.receipt())
            }
            Accepted::Duplicate(event) => {
                inlet.tally.duplicate.increment(1);
                inlet.tally.suppressed.increment(1);
                answer::accepted(event, true, inlet.source.receipt())
            }
            Accepted::KeyReused(event) => return Err(Rejection::KeyReused(event)),
        };
        crash::point("I5");
        Ok(answer)
    }
}

impl Handler for Ingress {
    async fn handle(&self, request: http::Request<Incoming>, connection: &Connection) -> Answer {
        let inlet = request.uri().path().strip_prefix("/in/").and_then(|place| self.routes.load().find(place));
        let Some(inlet) = inlet else {
            // One answer for both, so that nobody learns which tenants there are.
            return Rejection::UnknownSource.told(None);
        };
        match self.receive(request, &inlet, connection).await {
            Ok(answer) => answer,
            Err(rejection) => rejection.told(Some(&inlet)),
        }
    }
}

/// Why a request is not accepted.
enum Rejection {
    UnknownSource,
    MethodNotAllowed,
    RateLimited(Duration),
    Body(BodyFault),
    Refused(Refusal),
    /// Nothing is known about the key, so nothing about the request.
    KeyUnreachable(Unreachable),
    NotConfirmed(Unreachable),
    KeyReused(crate::delivery::EventId),
    Ledger(LedgerError),
}

impl Rejection {
    fn problem(self) -> Problem {
        match self {
            Rejection::UnknownSource => {
                Problem::new(StatusCode::NOT_FOUND, "unknown_source", "there is no such tenant or source")
            }
            Rejection::MethodNotAllowed => Problem::method_not_allowed("POST"),
            Rejection::RateLimited(wait) => {
                Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", "this source sends faster than it may")
                    .retry_after(wait)
            }
            Rejection::Body(fault) => fault.problem(),
            Rejection::Refused(refusal) => {
                Problem::new(StatusCode::UNAUTHORIZED, refusal.code.as_str(), refusal.detail)
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

    /// The answer, with the refusal counted and its kind logged.
    fn told(self, inlet: Option<&Inlet>) -> Answer {
        let problem = self.problem();
        let result = problem.code();
        let scheme = inlet.map_or_else(|| Arc::from("none"), |inlet| Arc::clone(&inlet.scheme));
        let count = metrics::counter!(INGRESS_REQUESTS, "scheme" => scheme, "result" => result);
        count.increment(1);
        match inlet {
            Some(Inlet { tenant_name: tenant, source_name: source, .. }) => {
                tracing::info!(%tenant, %source, result, "request refused");
            }
            None => tracing::info!(result, "request refused"),
        }
        problem.into_answer()
    }
}
