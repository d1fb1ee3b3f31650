//! Which sources there are, and where their events go.

use super::verifier::Verifier;
use crate::delivery::{Name, Route};
use crate::ledger::{EndpointKey, SourceKey, TenantKey};
use crate::telemetry::{DUPLICATES_SUPPRESSED, EVENTS_ACCEPTED, INGRESS_REQUESTS};
use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use http::Uri;
use metrics::Counter;
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

/// One source: how its requests are judged, and its tenant's endpoints.
pub struct Inlet {
    pub(super) tenant: TenantKey,
    pub(super) tenant_name: Name,
    pub(super) source_key: SourceKey,
    pub(super) source_name: Name,
    /// A built-in scheme's name or `custom`: a metric's label.
    pub(super) scheme: Arc<str>,
    pub(super) source: Arc<dyn Verifier>,
    pub(super) body_bytes_max: u64,
    pub(super) tally: Tally,
    limiter: Option<DefaultDirectRateLimiter>,
    /// Of what is noted of its refused requests.
    pub(super) notes: DefaultDirectRateLimiter,
    clock: DefaultClock,
    /// Without a trailing slash; empty when none is configured.
    public_url: String,
    routes: Vec<(EndpointKey, Route)>,
}

/// Counters, looked up once.
pub(super) struct Tally {
    pub(super) accepted: Counter,
    pub(super) duplicate: Counter,
    pub(super) challenge: Counter,
    pub(super) events: Counter,
    pub(super) suppressed: Counter,
}

impl Tally {
    fn of(scheme: &Arc<str>) -> Self {
        let requests = |result| metrics::counter!(INGRESS_REQUESTS, "scheme" => Arc::clone(scheme), "result" => result);
        Tally {
            accepted: requests("accepted"),
            duplicate: requests("duplicate"),
            challenge: requests("challenge"),
            events: metrics::counter!(EVENTS_ACCEPTED),
            suppressed: metrics::counter!(DUPLICATES_SUPPRESSED),
        }
    }
}

impl Inlet {
    pub fn new(
        (tenant, tenant_name): (TenantKey, Name),
        (source_key, source_name): (SourceKey, Name),
        scheme: &str,
        source: Arc<dyn Verifier>,
        body_bytes_max: u64,
    ) -> Self {
        let scheme = Arc::from(scheme);
        Inlet {
            tally: Tally::of(&scheme),
            tenant,
            tenant_name,
            source_key,
            source_name,
            scheme,
            source,
            body_bytes_max,
            limiter: None,
            notes: super::rejections::limiter(),
            clock: DefaultClock::default(),
            public_url: String::new(),
            routes: Vec::new(),
        }
    }

    /// At most one request per `period` in the long run, and `burst` at once.
    #[must_use]
    pub fn with_rate(mut self, period: Duration, burst: NonZeroU32) -> Self {
        // A period of zero is no limit.
        self.limiter = Quota::with_period(period).map(|quota| RateLimiter::direct(quota.allow_burst(burst)));
        self
    }

    /// What providers call, for schemes that sign the URL.
    #[must_use]
    pub fn with_public_url(mut self, url: &str) -> Self {
        url.trim_end_matches('/').clone_into(&mut self.public_url);
        self
    }

    /// The tenant's endpoints, with what each of them takes. Those that take nothing of this source may be left out.
    #[must_use]
    pub fn with_routes(mut self, routes: Vec<(EndpointKey, Route)>) -> Self {
        self.routes = routes;
        self
    }

    /// The error is how long to wait.
    pub(super) fn admits_now(&self) -> Result<(), Duration> {
        match &self.limiter {
            None => Ok(()),
            Some(limiter) => limiter.check().map_err(|not_until| not_until.wait_time_from(self.clock.now())),
        }
    }

    pub(super) fn url_of(&self, uri: &Uri) -> String {
        let place = uri.path_and_query().map_or("/", |place| place.as_str());
        let mut url = String::with_capacity(self.public_url.len() + place.len());
        url.push_str(&self.public_url);
        url.push_str(place);
        url
    }

    pub(super) fn destinations<'a>(&'a self, event_type: &'a str) -> impl Iterator<Item = EndpointKey> + 'a {
        let takes = |route: &Route| route.takes(Some(&self.source_name), event_type);
        self.routes.iter().filter(move |(_, route)| takes(route)).map(|(endpoint, _)| *endpoint)
    }
}

/// All sources, by `{tenant}/{source}` as it stands in the path.
#[derive(Default)]
pub struct Routes {
    inlets: HashMap<Box<str>, Arc<Inlet>>,
}

impl Routes {
    pub(super) fn find(&self, place: &str) -> Option<Arc<Inlet>> {
        self.inlets.get(place).cloned()
    }
}

impl FromIterator<Inlet> for Routes {
    fn from_iter<I: IntoIterator<Item = Inlet>>(inlets: I) -> Self {
        let named = |inlet: Inlet| {
            let place = format!("{}/{}", inlet.tenant_name, inlet.source_name);
            (place.into_boxed_str(), Arc::new(inlet))
        };
        Routes { inlets: inlets.into_iter().map(named).collect() }
    }
}
