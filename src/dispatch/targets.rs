//! Where deliveries go, as the dispatcher needs to know it.

use super::trial::Trial;
use crate::delivery::{Name, Order, PluginVersionId, Terms};
use crate::ledger::{EndpointKey, SourceKey};
use crate::plugin::Rules;
use crate::verify::standard::Signer;
use arc_swap::ArcSwap;
use http::HeaderName;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// An endpoint with all that an attempt at it needs. Values are those of the moment of the attempt.
pub struct Target {
    pub tenant: Name,
    pub name: Name,
    pub url: url::Url,
    pub timeout: Duration,
    pub terms: Terms,
    pub order: Order,
    pub signer: Signer,
    pub idempotency_header: HeaderName,
    pub advice: Advice,
}

/// How an endpoint's deliveries get there.
#[derive(Clone)]
pub enum Way {
    Push(Arc<Target>),
    /// Consumers fetch them.
    Pull(Arc<Terms>),
}

impl Way {
    pub fn terms(&self) -> &Terms {
        match self {
            Way::Push(target) => &target.terms,
            Way::Pull(terms) => terms,
        }
    }
}

/// Whom to ask about the endpoint's events and answers.
pub enum Advice {
    /// The built-in rules.
    Builtin,
    Plugin {
        live: Arc<Live>,
        /// The endpoint's settings for it: JSON text.
        config: Arc<str>,
    },
}

/// A plugin as it is used now. An attempt takes it once and keeps it; the next one may get another.
pub struct Live(ArcSwap<Use>);

/// The version that is in use, and the one that is tried beside it.
pub struct Use {
    pub active: Arc<InUse>,
    pub trial: Option<Arc<Trial>>,
}

/// A version of a plugin.
pub struct InUse {
    pub rules: Arc<dyn Rules>,
    /// `None`: no version is in use, and the rules say so to whoever asks.
    pub version: Option<PluginVersionId>,
}

impl Live {
    pub fn new(in_use: InUse) -> Self {
        Live(ArcSwap::from_pointee(Use { active: Arc::new(in_use), trial: None }))
    }

    /// For every attempt from now on.
    pub fn replace(&self, in_use: InUse, trial: Option<Arc<Trial>>) {
        self.0.store(Arc::new(Use { active: Arc::new(in_use), trial }));
    }

    /// Begins or ends a trial; the version in use stays as it is.
    pub fn set_trial(&self, trial: Option<&Arc<Trial>>) {
        self.0.rcu(|now| Use { active: Arc::clone(&now.active), trial: trial.cloned() });
    }

    pub fn now(&self) -> Arc<Use> {
        self.0.load_full()
    }
}

/// The targets by endpoint, replaced as a whole when the configuration changes.
#[derive(Default)]
pub struct Targets {
    current: ArcSwap<Map>,
}

#[derive(Default)]
struct Map {
    endpoints: HashMap<EndpointKey, Way>,
    sources: HashMap<SourceKey, Name>,
}

impl Targets {
    pub fn replace(&self, endpoints: HashMap<EndpointKey, Way>, sources: HashMap<SourceKey, Name>) {
        self.current.store(Arc::new(Map { endpoints, sources }));
    }

    /// Where to send, if it is sent to.
    pub fn endpoint(&self, key: EndpointKey) -> Option<Arc<Target>> {
        match self.current.load().endpoints.get(&key) {
            Some(Way::Push(target)) => Some(Arc::clone(target)),
            Some(Way::Pull(_)) | None => None,
        }
    }

    pub fn way(&self, key: EndpointKey) -> Option<Way> {
        self.current.load().endpoints.get(&key).cloned()
    }

    /// In the order of their keys, so that what is done to each is done in one order.
    pub fn endpoints(&self) -> Vec<EndpointKey> {
        let mut all: Vec<EndpointKey> = self.current.load().endpoints.keys().copied().collect();
        all.sort_unstable();
        all
    }

    pub fn source(&self, key: SourceKey) -> Option<Name> {
        self.current.load().sources.get(&key).cloned()
    }
}
