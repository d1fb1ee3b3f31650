//! The address guard: which URLs may be kept, and which socket addresses may be dialled.
//!
//! [`Guard::judge`] on the concrete address is authoritative, wherever the URL came from. The URL rules run when an
//! endpoint is saved, for an early error, and again before every send.

use super::{AllowRule, Settings};
use crate::delivery::Reason;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use url::{Host, Url};

/// The longest URL.
const URL_BYTES_MAX: usize = 2048;

/// Why something is not sent to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Refusal {
    /// [`Reason::POLICY`], or `invalid_url`.
    pub reason: Reason,
    /// May name addresses: for the operator, never for a tenant.
    pub detail: String,
}

impl Refusal {
    pub(super) fn invalid(detail: impl Into<String>) -> Self {
        Refusal { reason: Reason::word("invalid_url"), detail: detail.into() }
    }

    pub(super) fn policy(detail: impl Into<String>) -> Self {
        Refusal { reason: Reason::POLICY, detail: detail.into() }
    }
}

/// An address that the guard denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("address {addr} is denied: {why}")]
pub struct Denied {
    pub addr: SocketAddr,
    pub why: &'static str,
}

impl From<Denied> for Refusal {
    fn from(denied: Denied) -> Self {
        Refusal::policy(denied.to_string())
    }
}

/// An address that has passed the guard, in canonical form. Only the guard makes one, and only one of these is dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    addr: SocketAddr,
    permit: Permit,
}

/// How a request travels. Everything that is not https is taken for http once the URL rules have passed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub(super) fn of(url: &Url) -> Self {
        if url.scheme() == "https" { Scheme::Https } else { Scheme::Http }
    }
}

/// What let an address pass; later ones are stronger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Permit {
    /// A public address.
    Public,
    /// A rule of the allow-list.
    Rule,
    /// A rule for this one address.
    ExactRule,
}

impl Checked {
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

/// Decides; holds no state and does no I/O.
#[derive(Clone, Debug)]
pub struct Guard {
    allow: Vec<AllowRule>,
    allow_http: bool,
    own: Vec<SocketAddr>,
    /// Ports on which this process listens on every address.
    own_wildcard_ports: Vec<u16>,
}

impl Guard {
    pub fn new(settings: &Settings) -> Self {
        let (wildcard, own): (Vec<_>, Vec<_>) =
            settings.own_listeners.iter().map(canonical).partition(|a| a.ip().is_unspecified());
        Guard {
            allow: settings.allow.clone(),
            allow_http: settings.allow_http,
            own,
            own_wildcard_ports: wildcard.iter().map(SocketAddr::port).collect(),
        }
    }

    /// The verdict on one socket address.
    pub fn judge(&self, addr: SocketAddr) -> Result<Checked, Denied> {
        let addr = canonical(&addr);
        let (ip, port) = (addr.ip(), addr.port());
        let permit = self
            .allow
            .iter()
            .filter(|rule| rule.opens(ip, port))
            .map(|rule| if rule.is_exact() { Permit::ExactRule } else { Permit::Rule })
            .max()
            .unwrap_or(Permit::Public);
        let why = match permit {
            Permit::ExactRule => None,
            Permit::Rule => self.own_listener(addr).or_else(|| metadata(ip)),
            Permit::Public => self.own_listener(addr).or_else(|| denied_range(ip)),
        };
        why.map_or(Ok(Checked { addr, permit }), |why| Err(Denied { addr, why }))
    }

    /// The verdict on an address for a scheme: plain HTTP needs a rule, or `allow_http`.
    pub(super) fn judge_for(&self, addr: SocketAddr, scheme: Scheme) -> Result<Checked, Refusal> {
        let checked = self.judge(addr)?;
        if scheme == Scheme::Https || self.allow_http || checked.permit > Permit::Public {
            return Ok(checked);
        }
        Err(Refusal::policy(format!("http:// to {addr}, which no rule of egress.allow opens; use https://")))
    }

    /// Whether this address is the process's own listener if it belongs to this machine, which the guard cannot know.
    pub(super) fn is_own_if_local(&self, checked: &Checked) -> bool {
        checked.permit < Permit::ExactRule && self.own_wildcard_ports.contains(&checked.addr.port())
    }

    fn own_listener(&self, addr: SocketAddr) -> Option<&'static str> {
        let wildcard = || self.own_wildcard_ports.contains(&addr.port()) && addr.ip().is_loopback();
        (self.own.contains(&addr) || wildcard()).then_some("the gateway's own listener")
    }

    /// Reads a URL and judges what can be judged without a look-up. The result is normalised.
    pub fn judge_url(&self, text: &str) -> Result<Url, Refusal> {
        if text.len() > URL_BYTES_MAX {
            return Err(Refusal::invalid(format!("the URL has {} bytes; the most is {URL_BYTES_MAX}", text.len())));
        }
        // What the URL standard repairs in silence, two readers may repair differently.
        if text.bytes().any(|b| b.is_ascii_control() || matches!(b, b' ' | b'\\')) {
            return Err(Refusal::invalid("the URL has a space, a control character or a backslash; encode it as %XX"));
        }
        let authority = text.split_once("://").map_or("", |(_, rest)| rest);
        let authority = authority.split(['/', '?', '#']).next().unwrap_or_default();
        if authority.contains('@') {
            return Err(Refusal::invalid("the URL has a user name or password; send credentials in a header"));
        }
        if authority.starts_with('[') && authority.contains('%') {
            return Err(Refusal::invalid("the URL's address has a zone id; write the address without it"));
        }
        let mut url = Url::parse(text).map_err(|e| Refusal::invalid(format!("the URL cannot be read: {e}")))?;
        self.judge_target(&url)?;
        if let Some(Host::Domain(host)) = url.host()
            && let Some(stripped) = host.strip_suffix('.')
        {
            let stripped = stripped.to_owned();
            url.set_host(Some(&stripped)).map_err(|e| Refusal::invalid(format!("the URL's host: {e}")))?;
            self.judge_target(&url)?;
        }
        Ok(url)
    }

    /// Judges a parsed URL. `Some` when its host is an address, which has then passed.
    pub(super) fn judge_target(&self, url: &Url) -> Result<Option<Checked>, Refusal> {
        if !matches!(url.scheme(), "https" | "http") {
            return Err(Refusal::invalid(format!("the URL's scheme is `{}`; use https", url.scheme())));
        }
        let scheme = Scheme::of(url);
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Refusal::invalid("the URL has a user name or password; send credentials in a header"));
        }
        if url.fragment().is_some() {
            return Err(Refusal::invalid("the URL has a fragment, which is never sent; remove the part from `#` on"));
        }
        // Normalising may lengthen a URL, by percent encoding; the limit is for what is kept.
        if url.as_str().len() > URL_BYTES_MAX {
            return Err(Refusal::invalid(format!("the encoded URL is longer than {URL_BYTES_MAX} bytes")));
        }
        let port = url.port_or_known_default().unwrap_or_default();
        if is_bad_port(port) {
            return Err(Refusal::policy(format!("port {port} belongs to another protocol and is never sent to")));
        }
        let ip = match url.host() {
            Some(Host::Ipv4(ip)) => IpAddr::V4(ip),
            Some(Host::Ipv6(ip)) => IpAddr::V6(ip),
            Some(Host::Domain(name)) => {
                judge_name(name)?;
                if scheme == Scheme::Http && !self.allow_http && self.allow.is_empty() {
                    return Err(Refusal::policy("http:// is not allowed; use https://"));
                }
                return Ok(None);
            }
            None => return Err(Refusal::invalid("the URL has no host")),
        };
        self.judge_for(SocketAddr::new(ip, port), scheme).map(Some)
    }
}

/// IPv4-mapped addresses as IPv4; no flow label or zone.
fn canonical(addr: &SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

fn judge_name(name: &str) -> Result<(), Refusal> {
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.is_empty() || name.split('.').any(|label| label.is_empty() || label.len() > 63) || name.len() > 253 {
        return Err(Refusal::invalid(format!("`{name}` is not a host name: a label is empty or too long")));
    }
    if !name.contains('.') {
        return Err(Refusal::policy(format!("`{name}` is a single label; use a full name, or an allowed address")));
    }
    const INTERNAL: [&str; 5] = [".localhost", ".local", ".internal", ".home.arpa", ".onion"];
    // A parsed URL has lower case; judged without relying on that.
    let lower = name.to_ascii_lowercase();
    if lower == "home.arpa" || INTERNAL.iter().any(|suffix| lower.ends_with(suffix)) {
        return Err(Refusal::policy(format!("`{name}` is an internal name; use a public one, or an allowed address")));
    }
    Ok(())
}

/// The bad ports of the Fetch standard, in order.
const BAD_PORTS: [u16; 83] = [
    0, 1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102, 103, 104, 109,
    110, 111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 465, 512, 513, 514, 515, 526, 530, 531,
    532, 540, 548, 554, 556, 563, 587, 601, 636, 989, 990, 993, 995, 1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060,
    5061, 6000, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080,
];

fn is_bad_port(port: u16) -> bool {
    BAD_PORTS.binary_search(&port).is_ok()
}

/// Where clouds hand out credentials: not opened by a rule for a whole network.
const METADATA: [IpAddr; 7] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

fn metadata(ip: IpAddr) -> Option<&'static str> {
    METADATA.contains(&ip).then_some("a cloud's metadata address; only a /32 or /128 rule opens it")
}

/// A network as first address, prefix length, and what it is for.
type Range4 = ([u8; 4], u32, &'static str);

const DENIED_V4: [Range4; 16] = [
    ([0, 0, 0, 0], 8, "this network"),
    ([10, 0, 0, 0], 8, "private use"),
    ([100, 64, 0, 0], 10, "shared address space"),
    ([127, 0, 0, 0], 8, "loopback"),
    ([169, 254, 0, 0], 16, "link-local"),
    ([172, 16, 0, 0], 12, "private use"),
    ([192, 0, 0, 0], 24, "protocol assignments"),
    ([192, 0, 2, 0], 24, "documentation"),
    ([192, 88, 99, 0], 24, "6to4 relays"),
    ([192, 168, 0, 0], 16, "private use"),
    ([198, 18, 0, 0], 15, "benchmarking"),
    ([198, 51, 100, 0], 24, "documentation"),
    ([203, 0, 113, 0], 24, "documentation"),
    ([224, 0, 0, 0], 4, "multicast"),
    ([240, 0, 0, 0], 4, "reserved"),
    ([168, 63, 129, 16], 32, "a cloud's host services"),
];

/// The first address by its upper four groups: no prefix here is longer than 64.
type Range6 = ([u16; 4], u32, &'static str);

const GLOBAL_V6: Range6 = ([0x2000, 0, 0, 0], 3, "global unicast");

const DENIED_V6: [Range6; 6] = [
    ([0x2001, 0, 0, 0], 23, "protocol assignments"),
    ([0x2001, 0xdb8, 0, 0], 32, "documentation"),
    ([0x2002, 0, 0, 0], 16, "6to4"),
    ([0x2620, 0x4f, 0x8000, 0], 48, "direct delegation of AS112"),
    ([0x3ffe, 0, 0, 0], 16, "the former 6bone"),
    ([0x3fff, 0, 0, 0], 20, "documentation"),
];

fn in_v4(ip: Ipv4Addr, (first, prefix, _): &Range4) -> bool {
    (ip.to_bits() ^ u32::from_be_bytes(*first)) >> (32 - prefix) == 0
}

fn in_v6(ip: Ipv6Addr, (first, prefix, _): &Range6) -> bool {
    let [a, b, c, d] = *first;
    (ip.to_bits() ^ Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).to_bits()) >> (128 - prefix) == 0
}

/// The range that denies an address in canonical form.
fn denied_range(ip: IpAddr) -> Option<&'static str> {
    match ip {
        IpAddr::V4(ip) => DENIED_V4.iter().find(|range| in_v4(ip, range)).map(|(.., name)| *name),
        IpAddr::V6(ip) if !in_v6(ip, &GLOBAL_V6) => Some("not global unicast"),
        IpAddr::V6(ip) => DENIED_V6.iter().find(|range| in_v6(ip, range)).map(|(.., name)| *name),
    }
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
