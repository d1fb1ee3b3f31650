//! The operator's side: the API, health and metrics. It changes state by the ledger's verbs alone.
//!
//! A request is located, authorised, and answered, in that order. What belongs to another tenant, or never was, is 404
//! either way. Authoritative for what is configured is the [`Estate`], replaced as a whole; for everything that
//! happened, the ledger.

mod alerts;
mod answer;
mod dead_letters;
mod deliveries;
mod endpoints;
mod estate;
mod events;
mod explain;
mod export;
mod hint;
mod idempotency;
mod input;
mod operations;
mod past;
mod place;
mod plugins;
mod publish;
mod pull;
mod query;
mod rejections;
mod replay;
mod resend;
mod stats;
mod status;
mod sweeps;
mod system;
mod trials;

pub use dead_letters::{Desk, Down};
pub use estate::{Endpoint, Estate, Plugin, Shown, Source, Tenant};
pub use explain::{Examiner, Posed};
pub use past::{DryRun, DryRunPage, Rehearsal, Replay, ReplayedPage, Unheard};
pub use plugins::{Refusal, Shipment, Shipped, Shipyard};
pub use pull::Consumers;
pub use status::Serving;
pub use trials::TrialWish;

use crate::clock::Clock;
use crate::delivery::Name;
use crate::http::{Answer, Budget, Connection, Handler, Problem};
use crate::ledger::{Ledger, RequestId, Slots};
use crate::secret::Secret;
use crate::telemetry::Metrics;
use arc_swap::ArcSwap;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body::Body;
use hyper::body::Incoming;
use place::{DlqVerb, Place, PluginVerb, Scope};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

#[derive(Clone, Debug)]
pub struct Settings {
    /// The operator's.
    pub token: Secret,
    /// Of one published event, or of a corrected payload.
    pub body_bytes_max: u64,
    /// Of a whole request: a batch of events.
    pub request_bytes_max: u64,
    /// Of all requests under way together.
    pub in_flight_bytes_max: u64,
    /// How long the key of a published event is remembered.
    pub dedup_window: Duration,
    /// What operators are told of how the gateway was started.
    pub about: Map<String, Value>,
}

impl Settings {
    pub fn with_token(token: Secret) -> Self {
        Settings {
            token,
            body_bytes_max: 1 << 20,
            request_bytes_max: 25 << 20,
            in_flight_bytes_max: 100 << 20,
            dedup_window: Duration::from_secs(7 * 24 * 3600),
            about: Map::new(),
        }
    }
}

/// What the handler stands on.
pub struct State {
    pub ledger: Arc<dyn Ledger>,
    pub slots: Arc<Slots>,
    pub shipyard: Arc<dyn Shipyard>,
    pub rehearsal: Arc<dyn Rehearsal>,
    pub consumers: Arc<dyn Consumers>,
    pub desk: Arc<dyn Desk>,
    pub examiner: Arc<dyn Examiner>,
    pub clock: Arc<dyn Clock>,
    pub metrics: Metrics,
    /// Told by whoever opens and closes the listeners.
    pub serving: watch::Receiver<Serving>,
}

/// The handler of the admin listener.
pub struct Admin {
    settings: Settings,
    state: State,
    estate: ArcSwap<Estate>,
    budget: Arc<Budget>,
    under_way: idempotency::UnderWay,
    exports: Arc<Semaphore>,
}

impl Admin {
    pub fn new(settings: Settings, state: State) -> Self {
        let budget = Budget::new(settings.in_flight_bytes_max);
        Admin {
            settings,
            state,
            estate: ArcSwap::default(),
            budget,
            under_way: idempotency::UnderWay::default(),
            exports: Arc::new(Semaphore::new(export::EXPORTS_MAX)),
        }
    }

    /// From the next request on, this is what is configured.
    pub fn replace_estate(&self, estate: Estate) {
        self.estate.store(Arc::new(estate));
    }

    /// What the listener does with a request, for one that is made in this process. `connection` is whose wish it is.
    pub async fn ask<B>(&self, request: http::Request<B>, connection: &Connection) -> Answer
    where
        B: Body<Data = Bytes> + Unpin + Send,
    {
        let (head, body) = request.into_parts();
        let mut answer = self.answer(&head, body, connection).await.unwrap_or_else(Problem::into_answer);
        let headers = answer.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        answer
    }

    async fn answer<B>(&self, head: &Parts, body: B, connection: &Connection) -> Result<Answer, Problem>
    where
        B: Body<Data = Bytes> + Unpin + Send,
    {
        let place = Place::of(head.uri.path());
        if let Some(open) = place.as_ref().and_then(Place::without_token) {
            return self.tell_status(open, head).await;
        }
        let token = self.authorise(&head.headers)?;
        let place = place.ok_or_else(not_found)?;
        let estate = self.estate.load_full();
        let (name, scope) = match place {
            Place::System => return self.system(head),
            Place::Tenants => {
                only(&head.method, "GET")?;
                return estate.tenants(head.uri.query());
            }
            Place::Alerts => {
                only(&head.method, "GET")?;
                return self.all_alerts(head.uri.query()).await;
            }
            Place::In(tenant, scope) => (tenant, scope),
            Place::Health | Place::Ready | Place::Metrics => return Err(not_found()),
        };
        let (name, tenant) = estate.tenant(name).ok_or_else(not_found)?;
        if scope.is_of_the_file() && matches!(head.method, Method::PUT | Method::PATCH | Method::DELETE) {
            return Err(managed_by_file());
        }
        only(&head.method, scope.allow())?;
        let request = if head.method == Method::POST { idempotency::key(&head.headers)? } else { None };
        let at = At { admin: self, name, tenant, query: head.uri.query(), request: request.as_ref() };
        if let (&Method::PUT, Scope::Plugin(plugin)) = (&head.method, scope) {
            return at.upload_plugin(plugin, &head.headers, body, connection).await;
        }
        if !matches!(head.method, Method::POST | Method::DELETE) {
            return at.read(scope).await;
        }
        let body = input::body(&head.headers, body, &self.settings, &self.budget, connection).await?;
        if let (&Method::DELETE, Scope::Trial(plugin, kind)) = (&head.method, scope) {
            query::Query::of(at.query).finish()?;
            return at.stop_trial(plugin, kind, &body.bytes).await;
        }
        let work = async {
            match scope {
                Scope::PluginVerb(plugin, PluginVerb::DryRun) => at.dry_run(plugin, &body.bytes, connection).await,
                _ => at.change(scope, &body.bytes, token).await,
            }
        };
        match at.request {
            None => work.await,
            Some(request) => at.once(request, head, &body.bytes, work).await,
        }
    }

    /// The token that was presented, if it is the operator's.
    fn authorise<'h>(&self, headers: &'h HeaderMap) -> Result<&'h [u8], Problem> {
        let mut presented = headers.get_all(header::AUTHORIZATION).iter();
        let token = match (presented.next(), presented.next()) {
            (Some(one), None) => bearer(one),
            (_, _) => None,
        };
        // An empty token is a missing configuration, never "everybody may".
        let expected = &self.settings.token;
        token.filter(|token| !expected.is_empty() && expected.matches(token)).ok_or_else(|| {
            Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "send the admin token: `authorization: Bearer …`")
                .header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"hookgate\""))
        })
    }
}

fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = value.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// One tenant's part, for one request.
struct At<'a> {
    admin: &'a Admin,
    name: &'a Name,
    tenant: &'a Tenant,
    query: Option<&'a str>,
    /// What the caller calls this request.
    request: Option<&'a RequestId>,
}

impl At<'_> {
    async fn read(&self, scope: Scope<'_>) -> Result<Answer, Problem> {
        match scope {
            Scope::Tenant => self.tenant_itself(),
            Scope::Sources => self.sources(),
            Scope::Source(name) => self.source(name),
            Scope::Endpoints => self.endpoints().await,
            Scope::Endpoint(name) => self.endpoint(name).await,
            Scope::EndpointSecret(name) => self.endpoint_secret(name),
            Scope::Events => self.events().await,
            Scope::Event(id) => self.event(id).await,
            Scope::EventBody(id) => self.event_body(id).await,
            Scope::Deliveries => self.deliveries().await,
            Scope::Delivery(id) => self.delivery(id).await,
            Scope::DeliveryBody(id) => self.delivery_body(id).await,
            Scope::Dlq => self.dead_letters().await,
            Scope::DlqGroups => self.dead_groups().await,
            Scope::DlqExport => self.export_dead().await,
            Scope::DeliveriesExport => self.export_deliveries().await,
            Scope::Operations => self.operations().await,
            Scope::Operation(id) => self.operation(id).await,
            Scope::Rejections => self.rejections().await,
            Scope::Alerts => self.alerts().await,
            Scope::Stats => self.stats().await,
            Scope::Plugins => self.plugins().await,
            Scope::Plugin(name) => self.plugin(name).await,
            Scope::PluginAttempts(name) => self.plugin_attempts(name).await,
            Scope::ForgetSecret(_)
            | Scope::ExplainSource(_)
            | Scope::EndpointVerb(..)
            | Scope::Pull(..)
            | Scope::Replay(_)
            | Scope::PluginVerb(..)
            | Scope::Trial(..)
            | Scope::DeliveryVerb(..)
            | Scope::DlqVerb(_)
            | Scope::CancelMany
            | Scope::OperationVerb(..) => Err(not_found()),
        }
    }

    async fn change(&self, scope: Scope<'_>, body: &Bytes, token: &[u8]) -> Result<Answer, Problem> {
        query::Query::of(self.query).finish()?;
        match scope {
            Scope::Events => self.publish(body, token).await,
            Scope::ForgetSecret(name) => self.forget_secret(name, body).await,
            Scope::ExplainSource(name) => self.explain_source(name, body),
            Scope::EndpointVerb(name, verb) => self.change_endpoint(name, verb, body).await,
            Scope::Pull(name, verb) => self.pull(name, verb, body).await,
            Scope::Replay(name) => self.replay(name, body).await,
            Scope::DeliveryVerb(id, verb) => self.change_delivery(id, verb, body).await,
            Scope::DlqVerb(DlqVerb::Redrive) => self.redrive_dead(body).await,
            Scope::DlqVerb(DlqVerb::Resolve) => self.resolve_many(body).await,
            Scope::CancelMany => self.cancel_many(body).await,
            Scope::DlqVerb(DlqVerb::Purge) => self.purge_dead(body).await,
            Scope::OperationVerb(id, verb) => self.change_operation(id, verb, body).await,
            Scope::PluginVerb(name, verb) => self.change_plugin(name, verb, body).await,
            Scope::Trial(name, kind) => self.begin_trial(name, kind, body).await,
            Scope::Tenant
            | Scope::Sources
            | Scope::Source(_)
            | Scope::Endpoints
            | Scope::Endpoint(_)
            | Scope::EndpointSecret(_)
            | Scope::Plugins
            | Scope::Plugin(_)
            | Scope::PluginAttempts(_)
            | Scope::Event(_)
            | Scope::EventBody(_)
            | Scope::Deliveries
            | Scope::Delivery(_)
            | Scope::DeliveryBody(_)
            | Scope::Dlq
            | Scope::DlqGroups
            | Scope::DlqExport
            | Scope::DeliveriesExport
            | Scope::Operations
            | Scope::Operation(_)
            | Scope::Rejections
            | Scope::Alerts
            | Scope::Stats => Err(not_found()),
        }
    }

    fn ledger(&self) -> &dyn Ledger {
        &*self.admin.state.ledger
    }
}

impl Handler for Admin {
    async fn handle(&self, request: http::Request<Incoming>, connection: &Connection) -> Answer {
        self.ask(request, connection).await
    }
}

/// A HEAD is a GET whose body is not sent.
fn only(method: &Method, allow: &'static str) -> Result<(), Problem> {
    let asked = if *method == Method::HEAD { "GET" } else { method.as_str() };
    if allow.split(", ").any(|allowed| allowed == asked) { Ok(()) } else { Err(Problem::method_not_allowed(allow)) }
}

fn not_found() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "not_found", "there is nothing here")
}

fn managed_by_file() -> Problem {
    Problem::new(
        StatusCode::CONFLICT,
        "managed_by_file",
        "this is declared in the configuration file: change it there and reload",
    )
}

/// Where the fault lies with the ledger. The operator is told what it is.
fn ledger_problem(error: &crate::ledger::LedgerError) -> Problem {
    use crate::ledger::LedgerError as E;
    let detail = error.to_string();
    match error {
        E::Unavailable(_) | E::Stopped(_) => {
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail).retry_after(Duration::from_secs(2))
        }
        E::TooSlow { .. } => Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too_slow", detail),
        E::BadCursor => Problem::new(StatusCode::BAD_REQUEST, "bad_cursor", detail).with("parameter", "cursor"),
        E::Quarantined(_) => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "quarantined", detail),
        E::Open { .. } => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail),
    }
}
