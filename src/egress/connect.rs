//! A new connection: look-up, verdict on every answer, dial of the checked address, TLS.

use super::fault::{Fault, Stop};
use super::guard::{Checked, Guard, Refusal, Scheme};
use super::resolve::{ANSWERS_MAX, Resolver};
use super::wire::{Socket, Wire};
use super::{Error, Settings, Timings};
use crate::delivery::TransportKind;
use rustls::RootCertStore;
use rustls_pki_types::{ServerName, TrustAnchor};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use url::{Host, Url};

pub(super) struct Connector {
    resolver: Arc<dyn Resolver>,
    tls: TlsConnector,
    pub(super) anchors: Arc<[TrustAnchor<'static>]>,
    dns_timeout: Duration,
    connect_timeout: Duration,
    tls_timeout: Duration,
}

impl Connector {
    pub(super) fn new(settings: &Settings, resolver: Arc<dyn Resolver>) -> Result<Self, Error> {
        let roots = roots(settings)?;
        Ok(Connector {
            resolver,
            anchors: roots.roots.clone().into(),
            tls: TlsConnector::from(Arc::new(tls_config(roots)?)),
            dns_timeout: settings.dns_timeout,
            connect_timeout: settings.connect_timeout,
            tls_timeout: settings.tls_timeout,
        })
    }

    /// Opens a connection for a URL that the guard has judged. `literal` is its host, when that is an address.
    pub(super) async fn open(
        &self,
        guard: &Guard,
        url: &Url,
        literal: Option<Checked>,
        timings: &mut Timings,
    ) -> Result<(Wire, SocketAddr), Stop> {
        let candidates = match literal {
            Some(checked) => vec![checked],
            None => self.resolve(guard, url, timings).await?,
        };
        for checked in &candidates {
            if guard.is_own_if_local(checked) && is_of_this_machine(checked.addr()) {
                return Err(Refusal::policy(format!("address {} is the gateway's own listener", checked.addr())).into());
            }
        }
        let (tcp, peer) = self.dial(&candidates, timings).await?;
        let socket = Socket::new(tcp);
        if Scheme::of(url) == Scheme::Http {
            return Ok((Wire::Plain(socket), peer));
        }
        let started = Instant::now();
        let name = server_name(url)?;
        let tls = match timeout(self.tls_timeout, self.tls.connect(name, socket)).await {
            Ok(Ok(tls)) => tls,
            Ok(Err(error)) => return Err(Fault::tls(&error).into()),
            Err(_) => return Err(Fault::new(TransportKind::Timeout, "TLS: no handshake in time").into()),
        };
        timings.tls = Some(started.elapsed());
        Ok((Wire::Tls(Box::new(tls)), peer))
    }

    /// One look-up; any denied answer refuses the name.
    async fn resolve(&self, guard: &Guard, url: &Url, timings: &mut Timings) -> Result<Vec<Checked>, Stop> {
        let started = Instant::now();
        let name = host_name(url);
        let unresolved = |why: &str| Fault::new(TransportKind::Dns, format!("DNS: {why}"));
        let answers = match timeout(self.dns_timeout, self.resolver.lookup(name)).await {
            Ok(Ok(answers)) => answers,
            Ok(Err(error)) => return Err(unresolved(&error.0).into()),
            Err(_) => return Err(unresolved("no answer in time").into()),
        };
        if answers.is_empty() {
            return Err(unresolved("the name has no address").into());
        }
        if answers.len() > ANSWERS_MAX {
            return Err(unresolved(&format!("the name has more than {ANSWERS_MAX} addresses")).into());
        }
        let port = url.port_or_known_default().unwrap_or_default();
        let scheme = Scheme::of(url);
        let mut checked = Vec::with_capacity(answers.len());
        for ip in answers {
            let one = guard.judge_for(SocketAddr::new(ip, port), scheme);
            checked.push(one.map_err(|refusal| Refusal { detail: format!("{name}: {}", refusal.detail), ..refusal })?);
        }
        // IPv4 first: a machine without an IPv6 route loses no time. The order is otherwise the server's.
        checked.sort_by_key(|c: &Checked| c.addr().is_ipv6());
        timings.dns = Some(started.elapsed());
        Ok(checked)
    }

    /// Tries the addresses in turn. Nothing has been sent yet, so the next one is no second request.
    async fn dial(&self, candidates: &[Checked], timings: &mut Timings) -> Result<(TcpStream, SocketAddr), Stop> {
        let started = Instant::now();
        let end = started + self.connect_timeout;
        let mut last = Fault::new(TransportKind::Dns, "DNS: the name has no address");
        for (tried, checked) in candidates.iter().enumerate() {
            let left = end.saturating_duration_since(Instant::now());
            // All but the last leave time for those behind them.
            let share = if tried + 1 == candidates.len() { left } else { left / 2 };
            match timeout_at(Instant::now() + share, TcpStream::connect(checked.addr())).await {
                Ok(Ok(tcp)) => {
                    let peer = tcp.peer_addr().map_err(|e| Fault::connect(&e))?;
                    if peer != checked.addr() {
                        return Err(Refusal::policy(format!("dialled {}, reached {peer}", checked.addr())).into());
                    }
                    tcp.set_nodelay(true).map_err(|e| Fault::connect(&e))?;
                    timings.connect = Some(started.elapsed());
                    return Ok((tcp, peer));
                }
                Ok(Err(error)) => last = Fault::connect(&error),
                Err(_) => last = Fault::new(TransportKind::Timeout, "connect: no answer in time"),
            }
        }
        Err(last.into())
    }
}

/// The host without the root's dot, as it is looked up and as certificates name it.
pub(super) fn host_name(url: &Url) -> &str {
    let host = url.host_str().unwrap_or_default();
    host.strip_suffix('.').unwrap_or(host)
}

fn server_name(url: &Url) -> Result<ServerName<'static>, Refusal> {
    let unfit = || Refusal::invalid("the URL's host cannot stand in a certificate");
    match url.host() {
        Some(Host::Ipv4(ip)) => Ok(IpAddr::V4(ip).into()),
        Some(Host::Ipv6(ip)) => Ok(IpAddr::V6(ip).into()),
        Some(Host::Domain(_)) => ServerName::try_from(host_name(url).to_owned()).map_err(|_| unfit()),
        None => Err(unfit()),
    }
}

/// Whether the kernel would answer for this address itself. Connecting a datagram socket sends nothing.
fn is_of_this_machine(addr: SocketAddr) -> bool {
    let any: IpAddr = if addr.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let route = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(addr)?;
        socket.local_addr()
    };
    addr.ip().is_loopback() || route().is_ok_and(|local: SocketAddr| local.ip() == addr.ip())
}

/// The authorities of the machine, and those of the settings.
fn roots(settings: &Settings) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    for error in &native.errors {
        tracing::warn!(%error, "some certificate authorities of this machine cannot be read");
    }
    roots.add_parsable_certificates(native.certs);
    for (index, root) in settings.extra_roots.iter().enumerate() {
        roots.add(root.clone()).map_err(|why| Error::ExtraRoot { index, why })?;
    }
    if roots.is_empty() {
        tracing::warn!("no certificate authorities found: every https delivery will fail until some are installed");
    }
    Ok(roots)
}

fn tls_config(roots: RootCertStore) -> Result<rustls::ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(Error::Tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
