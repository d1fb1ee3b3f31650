//! Names to addresses. The answers are hints until the guard has judged each of them.

use async_trait::async_trait;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::LookupIpStrategy;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::Semaphore;

/// The most addresses that a name may have.
pub(super) const ANSWERS_MAX: usize = 16;

/// A name that has no addresses now. The text is for people, and names no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unresolved(pub String);

/// Looks up all the addresses of a name, IPv4 and IPv6. The caller sets the time limit.
#[async_trait]
pub trait Resolver: Send + Sync + 'static {
    async fn lookup(&self, name: &str) -> Result<Vec<IpAddr>, Unresolved>;
}

const RESOLV_CONF: &str = "/etc/resolv.conf";
/// How often the system's configuration is looked at again: networks come and go under a running process.
const RECHECK: Duration = Duration::from_secs(10);
/// A blocking look-up cannot be cut short, so few of them may hang at once.
const BLOCKING_LOOKUPS_MAX: usize = 16;

/// The system's name servers, asked without blocking a thread. Where their configuration cannot be read, the C
/// library is asked instead.
pub struct SystemResolver {
    state: Mutex<State>,
    blocking: Arc<Semaphore>,
}

struct State {
    resolver: Option<TokioResolver>,
    stamp: Option<SystemTime>,
    checked: Instant,
}

impl SystemResolver {
    pub fn new() -> Self {
        let state = State { resolver: build(), stamp: stamp(), checked: Instant::now() };
        SystemResolver { state: Mutex::new(state), blocking: Arc::new(Semaphore::new(BLOCKING_LOOKUPS_MAX)) }
    }

    fn current(&self) -> Option<TokioResolver> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.checked.elapsed() >= RECHECK {
            let stamp = stamp();
            if stamp != state.stamp {
                state.resolver = build();
                state.stamp = stamp;
            }
            state.checked = Instant::now();
        }
        state.resolver.clone()
    }
}

impl Default for SystemResolver {
    fn default() -> Self {
        SystemResolver::new()
    }
}

fn stamp() -> Option<SystemTime> {
    std::fs::metadata(RESOLV_CONF).and_then(|m| m.modified()).ok()
}

fn build() -> Option<TokioResolver> {
    let built = TokioResolver::builder_tokio().and_then(|mut builder| {
        let options = builder.options_mut();
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        options.timeout = Duration::from_secs(2);
        options.attempts = 1;
        options.cache_size = 1024;
        options.positive_max_ttl = Some(Duration::from_secs(60));
        options.negative_max_ttl = Some(Duration::from_secs(5));
        builder.build()
    });
    built.inspect_err(|error| tracing::warn!(%error, "no name servers known; names go to the C library")).ok()
}

#[async_trait]
impl Resolver for SystemResolver {
    async fn lookup(&self, name: &str) -> Result<Vec<IpAddr>, Unresolved> {
        let Some(resolver) = self.current() else { return self.lookup_blocking(name).await };
        // The final dot keeps the search list of the machine out of it.
        let found = resolver.lookup_ip(format!("{name}.")).await.map_err(|error| {
            let why = if error.is_nx_domain() {
                "the name does not exist"
            } else if error.is_no_records_found() {
                "the name has no address"
            } else {
                "the name servers gave no usable answer"
            };
            tracing::debug!(%error, name, "look-up failed");
            Unresolved(why.to_owned())
        })?;
        Ok(found.iter().take(ANSWERS_MAX + 1).collect())
    }
}

impl SystemResolver {
    async fn lookup_blocking(&self, name: &str) -> Result<Vec<IpAddr>, Unresolved> {
        let failed = || Unresolved("the system cannot resolve the name".to_owned());
        let permit = Arc::clone(&self.blocking).acquire_owned().await.map_err(|_| failed())?;
        let name = name.to_owned();
        // A task of its own, for the place to stay taken until the thread is free, also when the caller has given up.
        let lookup = tokio::spawn(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await;
            drop(permit);
            found.map(|found| found.map(|addr| addr.ip()).take(4 * ANSWERS_MAX).collect::<Vec<_>>())
        });
        let mut addresses = lookup.await.ok().and_then(Result::ok).ok_or_else(failed)?;
        addresses.sort_unstable();
        addresses.dedup();
        Ok(addresses)
    }
}
