//! Names to addresses. The answers are hints until the guard has judged each of them.

use async_trait::async_trait;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, ResolverOpts};
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
        limit(builder.options_mut());
        builder.build()
    });
    built.inspect_err(|error| tracing::warn!(%error, "no name servers known; names go to the C library")).ok()
}

/// Both families, a bounded cache that honours short lives only, and an end within the time that the caller allows.
fn limit(options: &mut ResolverOpts) {
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.timeout = Duration::from_secs(2);
    options.attempts = 1;
    options.cache_size = 1024;
    options.positive_max_ttl = Some(Duration::from_secs(60));
    options.negative_max_ttl = Some(Duration::from_secs(5));
}

#[async_trait]
impl Resolver for SystemResolver {
    async fn lookup(&self, name: &str) -> Result<Vec<IpAddr>, Unresolved> {
        match self.current() {
            Some(resolver) => ask(&resolver, name).await,
            None => self.lookup_blocking(name).await,
        }
    }
}

async fn ask(resolver: &TokioResolver, name: &str) -> Result<Vec<IpAddr>, Unresolved> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
    use hickory_resolver::net::runtime::TokioRuntimeProvider;
    use std::net::SocketAddr;

    /// A name server that knows a few names, and answers each question alone.
    async fn name_server() -> SocketAddr {
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let addr = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut buffer = [0; 1500];
            while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                if let Some(reply) = reply(&buffer[..length]) {
                    socket.send_to(&reply, from).await.unwrap();
                }
            }
        });
        addr
    }

    fn reply(query: &[u8]) -> Option<Vec<u8>> {
        let end = 12 + query[12..].iter().position(|b| *b == 0)? + 1;
        let label = &query[13..13 + usize::from(query[12])];
        let question = &query[12..end + 4];
        let is_a = question[question.len() - 4..][..2] == [0, 1];
        let record = |kind: u8, data: &[u8]| {
            let mut record = vec![0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 60, 0, u8::try_from(data.len()).unwrap()];
            record.extend_from_slice(data);
            record
        };
        let v6 = [0x26, 6, 0x47, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let (code, records): (u8, Vec<Vec<u8>>) = match (label, is_a) {
            (b"both" | b"only4", true) => (0, vec![record(1, &[192, 0, 2, 7])]),
            (b"both" | b"only6", false) => (0, vec![record(28, &v6)]),
            (b"half", true) => (0, vec![record(1, &[192, 0, 2, 8])]),
            (b"half" | b"broken", _) => (2, vec![]),
            (b"many", true) => (0, (0..60).map(|n| record(1, &[192, 0, 2, n])).collect()),
            // An alias for itself.
            (b"loop", _) => (0, vec![record(5, &[0xc0, 12])]),
            (b"silent", _) => return None,
            (b"none", _) => (3, vec![]),
            _ => (0, vec![]),
        };
        let mut reply = query[..2].to_vec();
        reply.extend([0x81, 0x80 | code, 0, 1, 0, u8::try_from(records.len()).unwrap(), 0, 0, 0, 0]);
        reply.extend_from_slice(question);
        reply.extend(records.concat());
        Some(reply)
    }

    #[tokio::test]
    async fn what_name_servers_may_say() {
        let server = name_server().await;
        let mut udp = ConnectionConfig::udp();
        udp.port = server.port();
        let servers = vec![NameServerConfig::new(server.ip(), true, vec![udp])];
        let config = ResolverConfig::from_parts(None, vec![], servers);
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        limit(builder.options_mut());
        let resolver = builder.build().unwrap();
        let ask = async |name: &str| {
            let mut found = ask(&resolver, &format!("{name}.example")).await?;
            found.sort_unstable();
            Ok(found.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let found = |ips: &[&str]| Ok::<_, Unresolved>(ips.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(ask("both").await, found(&["192.0.2.7", "2606:4700::1"]));
        assert_eq!(ask("only4").await, found(&["192.0.2.7"]));
        assert_eq!(ask("only6").await, found(&["2606:4700::1"]));
        assert_eq!(ask("half").await, found(&["192.0.2.8"]));
        assert_eq!(ask("many").await.unwrap().len(), ANSWERS_MAX + 1, "enough to see that there are too many");
        let started = Instant::now();
        for (name, said) in [("none", "does not exist"), ("empty", "no address"), ("broken", "no usable answer")] {
            let error = ask(name).await.unwrap_err();
            assert!(error.0.contains(said), "{name}: {error}");
        }
        for name in ["loop", "silent"] {
            ask(name).await.unwrap_err();
        }
        assert!(started.elapsed() < Duration::from_secs(10));
    }

    #[tokio::test]
    async fn without_name_servers_the_c_library_is_asked() {
        let state = State { resolver: None, stamp: stamp(), checked: Instant::now() };
        let resolver = SystemResolver { state: Mutex::new(state), blocking: Arc::new(Semaphore::new(1)) };
        for _ in 0..2 {
            let found = resolver.lookup("localhost").await.unwrap();
            assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback), "{found:?}");
        }
        assert!(resolver.lookup("no such name").await.is_err());
    }
}
