//! `[server]`, `[limits]`, `[egress]` and `[retention]`.

use super::section::{At, Section, Walk};
use super::settings::{Egress, Limits, Log, LogFormat, LogLevel, PluginLimits, Retention, Server};
use super::{Outside, SecretRef};
use crate::secret::Secret;
use crate::verify::SECRET_BYTES_GOOD;
use base64::Engine as _;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;
use url::Url;

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// For a peer's patience.
const PATIENCE: RangeInclusive<Duration> = Duration::from_millis(100)..=secs(300);
const RETENTION: RangeInclusive<Duration> = secs(1)..=secs(3_650 * 24 * 3_600);
const ADMIN_TOKEN: &str = "HOOKGATE_ADMIN_TOKEN";
const MASTER_KEY: &str = "HOOKGATE_MASTER_KEY";

pub(super) fn server(walk: &mut Walk<'_>, root: &mut Section<'_>) -> Server {
    let mut server = Server::default();
    // The default ledger stands beside the file, like every relative path in it.
    server.ledger = walk.base.join(&server.ledger);
    if let Some(mut s) = root.table(walk, "server") {
        let ingress = address(walk, &mut s, "ingress");
        let admin = address(walk, &mut s, "admin");
        if let Some(at) = &ingress {
            server.ingress = at.value;
        }
        if let Some(at) = &admin {
            server.admin = at.value;
            if !at.value.ip().is_loopback() {
                walk.warn(
                    at,
                    format!("the admin listener at {} can be reached from other machines", at.value),
                    "keep it on 127.0.0.1, or put TLS and a filter in front of it",
                );
            }
        }
        if let Some(at) = admin.or(ingress).filter(|_| clash(server.ingress, server.admin)) {
            walk.reject(
                &at,
                format!("ingress {} and admin {} are the same address", server.ingress, server.admin),
                "give them different ports: the admin API must not be public",
            );
        }
        for at in s.strings(walk, "admin_hosts").map(|at| at.value).unwrap_or_default() {
            let is_part = |part: &str| {
                let of_name = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
                (1..=63).contains(&part.len()) && part.bytes().all(of_name)
            };
            if at.value.len() <= 253 && at.value.split('.').all(is_part) {
                server.admin_hosts.push(at.value);
            } else {
                let message = format!("`{}` is not the name of a host", at.value);
                walk.reject(&at, message, "write the name alone, e.g. \"hookgate.internal\", without scheme and port");
            }
        }
        if let Some(at) = s.string(walk, "ledger")
            && let Some(path) = ledger(walk, &at)
        {
            server.ledger = path;
        }
        if let Some(at) = s.duration(walk, "shutdown_grace", Duration::ZERO..=secs(600)) {
            server.shutdown_grace = at.value;
        }
        if let Some(at) = s.string(walk, "public_url") {
            server.public_url = public_url(walk, &at);
        }
        server.threads = s.integer(walk, "threads", 1..=1_024).and_then(|at| usize::try_from(at.value).ok());
        if let Some(mut log) = s.table(walk, "log") {
            server.log = read_log(walk, &mut log);
            log.close(walk);
        }
        s.not_yet(walk, "tls", "remove it, and end TLS in front of the gateway");
        s.close(walk);
    }
    server.admin_token = own_secret(walk, ADMIN_TOKEN);
    if let Some(token) = &server.admin_token
        && token.expose().len() < SECRET_BYTES_GOOD
    {
        let at = variable(ADMIN_TOKEN);
        walk.warn(&at, "the operator's token is short", "use at least 16 random bytes");
    }
    server.master_key = own_secret(walk, MASTER_KEY).and_then(|text| master_key(walk, &text));
    server
}

fn clash(a: SocketAddr, b: SocketAddr) -> bool {
    let any = |ip: IpAddr| ip.is_unspecified();
    a.port() != 0 && a.port() == b.port() && (a.ip() == b.ip() || any(a.ip()) || any(b.ip()))
}

fn address(walk: &mut Walk<'_>, s: &mut Section<'_>, key: &'static str) -> Option<At<SocketAddr>> {
    let at = s.string(walk, key)?;
    let Ok(address) = at.value.parse() else {
        walk.reject(
            &at,
            format!("`{}` is not an address with a port", at.value),
            "write e.g. \"127.0.0.1:8080\", \"0.0.0.0:8080\" or \"[::]:8080\"",
        );
        return None;
    };
    Some(at.with(address))
}

fn ledger(walk: &mut Walk<'_>, at: &At<String>) -> Option<PathBuf> {
    if at.value.starts_with("postgres://") || at.value.starts_with("postgresql://") {
        walk.hide(&at.place);
        walk.reject(at, "PostgreSQL is not supported by this release", "write \"sqlite:PATH\"");
        return None;
    }
    match at.value.strip_prefix("sqlite:") {
        Some("" | ":memory:") => {
            walk.reject(
                at,
                "the ledger needs a file",
                "write \"sqlite:PATH\", e.g. \"sqlite:hookgate-data/ledger.db\"",
            );
            None
        }
        Some(path) => Some(walk.base_of(&at.place).join(path)),
        None => {
            walk.hide(&at.place);
            walk.reject(at, "not a ledger", "write \"sqlite:PATH\", e.g. \"sqlite:hookgate-data/ledger.db\"");
            None
        }
    }
}

fn public_url(walk: &mut Walk<'_>, at: &At<String>) -> Option<Url> {
    let bare = |url: &Url| {
        matches!(url.scheme(), "http" | "https")
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none()
    };
    match Url::parse(at.value.trim_end_matches('/')) {
        Ok(url) if bare(&url) => Some(url),
        Ok(_) | Err(_) => {
            walk.hide(&at.place);
            walk.reject(
                at,
                "not the URL of a public listener",
                "write scheme, host and, if any, port and path, e.g. \"https://hooks.example.com\"",
            );
            None
        }
    }
}

fn read_log(walk: &mut Walk<'_>, log: &mut Section<'_>) -> Log {
    let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
    let levels = [LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug, LogLevel::Trace];
    let levels = levels.map(|level| (level.as_str(), level));
    Log {
        format: log.choice(walk, "format", &formats).map(|at| at.value).unwrap_or_default(),
        level: log.choice(walk, "level", &levels).map(|at| at.value).unwrap_or_default(),
    }
}

fn variable(name: &str) -> At<()> {
    At { value: (), place: super::tree::Place::Env(name.to_owned()), field: String::new() }
}

/// A secret of the gateway's own, from its variable: the literal, `env:NAME` or `file:PATH`.
fn own_secret(walk: &mut Walk<'_>, name: &str) -> Option<Secret> {
    let text = walk.env.value(name)?;
    let found = SecretRef::parse(text, Path::new(""));
    if let SecretRef::Env(other) = &found {
        walk.referenced.insert(other.clone());
    }
    if walk.outside == Outside::Skip && !matches!(found, SecretRef::Literal(_)) {
        return None;
    }
    match found.resolve(walk.env) {
        Ok(secret) => Some(secret),
        Err(fault) => {
            walk.reject(&variable(name), fault.to_string(), "set it to the secret, or unset it");
            None
        }
    }
}

fn master_key(walk: &mut Walk<'_>, text: &Secret) -> Option<Secret> {
    let bytes = text.expose().trim_ascii();
    let decoded = hex::decode(bytes).ok().or_else(|| base64::engine::general_purpose::STANDARD.decode(bytes).ok());
    match decoded.map(Secret::new) {
        Some(key) if key.expose().len() == 32 => Some(key),
        Some(_) | None => {
            walk.reject(
                &variable(MASTER_KEY),
                "the master key is not 32 bytes in hexadecimal or base64",
                "make one with `openssl rand -hex 32`, or unset it to use the key file beside the ledger",
            );
            None
        }
    }
}

pub(super) fn limits(walk: &mut Walk<'_>, root: &mut Section<'_>) -> Limits {
    let mut limits = Limits::default();
    let Some(mut s) = root.table(walk, "limits") else { return limits };
    if let Some(at) = s.size(walk, "body_bytes_max", 1..=Limits::BODY_BYTES_CAP) {
        limits.body_bytes_max = at.value;
    }
    limits.connections_per_address_max = s.integer(walk, "connections_per_address_max", 1..=100_000).map(|at| at.value);
    for (key, target, high) in [
        ("connections_max", &mut limits.connections_max, 100_000),
        ("queued_max", &mut limits.queued_max, 1_000_000),
        ("in_flight_max", &mut limits.in_flight_max, 100_000),
        ("per_tenant_in_flight_max", &mut limits.per_tenant_in_flight_max, 100_000),
    ] {
        if let Some(at) = s.integer(walk, key, 1..=high) {
            *target = at.value;
        }
    }
    for (key, target) in [
        ("head_timeout", &mut limits.head_timeout),
        ("body_timeout", &mut limits.body_timeout),
        ("idle_timeout", &mut limits.idle_timeout),
    ] {
        if let Some(at) = s.duration(walk, key, PATIENCE) {
            *target = at.value;
        }
    }
    limits.plugins = plugin_limits(walk, &mut s, PluginLimits::default());
    s.close(walk);
    limits
}

/// `plugins` within a `limits` table; what is not said is as in `granted`.
pub(super) fn plugin_limits(walk: &mut Walk<'_>, s: &mut Section<'_>, granted: PluginLimits) -> PluginLimits {
    let mut limits = granted;
    let Some(mut s) = s.table(walk, "plugins") else { return limits };
    const CAP: PluginLimits = PluginLimits::CAP;
    for (key, target, low, cap) in [
        ("component_bytes_max", &mut limits.component_bytes_max, 1, CAP.component_bytes_max),
        ("memory_bytes_max", &mut limits.memory_bytes_max, 64 << 10, CAP.memory_bytes_max),
        ("input_bytes_max", &mut limits.input_bytes_max, 1, CAP.input_bytes_max),
        ("response_bytes_max", &mut limits.response_bytes_max, 1, CAP.response_bytes_max),
        ("output_bytes_max", &mut limits.output_bytes_max, 1 << 10, CAP.output_bytes_max),
    ] {
        if let Some(at) = s.size(walk, key, low..=cap) {
            *target = at.value;
        }
    }
    if let Some(at) = s.duration(walk, "call_time_max", Duration::from_millis(1)..=CAP.call_time_max) {
        limits.call_time_max = at.value;
    }
    s.close(walk);
    limits
}

pub(super) fn egress(walk: &mut Walk<'_>, root: &mut Section<'_>) -> (Egress, Vec<Allowed>) {
    let mut egress = Egress::default();
    let mut allowed = Vec::new();
    let Some(mut s) = root.table(walk, "egress") else { return (egress, allowed) };
    for at in s.strings(walk, "allow").map(|at| at.value).unwrap_or_default() {
        match Allowed::parse(&at.value) {
            Ok(rule) => {
                allowed.push(rule);
                egress.allow.push(at.value);
            }
            Err(message) => {
                walk.reject(&at, message, "write CIDR[:port[-port]], e.g. \"127.0.0.1/32:9000-9100\" or \"fd00::/8\"");
            }
        }
    }
    egress.allow_http = s.boolean(walk, "allow_http").is_some_and(|at| at.value);
    for (key, target) in [("connect_timeout", &mut egress.connect_timeout), ("tls_timeout", &mut egress.tls_timeout)] {
        if let Some(at) = s.duration(walk, key, Duration::from_millis(10)..=secs(60)) {
            *target = at.value;
        }
    }
    for (key, target, low, cap) in [
        ("head_bytes_max", &mut egress.head_bytes_max, 8 << 10, 256 << 10),
        ("body_bytes_read_max", &mut egress.body_bytes_read_max, 0, 1 << 20),
        ("body_bytes_kept_max", &mut egress.body_bytes_kept_max, 0, 64 << 10),
    ] {
        if let Some(at) = s.size(walk, key, low..=cap) {
            *target = at.value;
        }
    }
    if egress.body_bytes_kept_max > egress.body_bytes_read_max {
        walk.reject(&s.at(), "body_bytes_kept_max is larger than body_bytes_read_max", "keep at most what is read");
    }
    s.close(walk);
    (egress, allowed)
}

/// One rule of `egress.allow`, read.
pub(super) struct Allowed {
    net: ipnet::IpNet,
    ports: RangeInclusive<u16>,
}

impl Allowed {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is not a network");
        let (address, rest) = text.split_once('/').ok_or_else(bad)?;
        let (length, ports) = match rest.split_once(':') {
            Some((length, ports)) => (length, Some(ports)),
            None => (rest, None),
        };
        let net: ipnet::IpNet = format!("{address}/{length}").parse().map_err(|_| bad())?;
        if net.trunc() != net {
            return Err(format!("`{text}` has bits beyond its prefix: the network is {}", net.trunc()));
        }
        let port = |p: &str| p.parse::<u16>().ok().filter(|n| *n > 0).ok_or_else(|| format!("`{p}` is not a port"));
        let ports = match ports.map(|p| p.split_once('-').unwrap_or((p, p))) {
            Some((low, high)) => port(low)?..=port(high)?,
            None => 1..=u16::MAX,
        };
        if ports.is_empty() {
            return Err(format!("`{text}` has its ports the wrong way round"));
        }
        Ok(Allowed { net, ports })
    }

    pub(super) fn covers(&self, ip: IpAddr, port: u16) -> bool {
        self.net.contains(&ip) && self.ports.contains(&port)
    }
}

/// `retention` within `s`; what is not said is as in `inherited`.
pub(super) fn retention(walk: &mut Walk<'_>, s: &mut Section<'_>, inherited: Retention) -> Retention {
    let mut retention = inherited;
    let Some(mut s) = s.table(walk, "retention") else { return retention };
    for (key, target) in [("payloads", &mut retention.payloads), ("rows", &mut retention.rows)] {
        if let Some(at) = s.duration(walk, key, RETENTION) {
            *target = at.value;
        }
    }
    if retention.rows < retention.payloads {
        walk.reject(
            &s.at(),
            "rows would be removed before their payloads",
            "make `rows` at least as long as `payloads`",
        );
    }
    s.close(walk);
    retention
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allow_rules() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let rule = Allowed::parse("127.0.0.1/32:9000-9100").unwrap();
        assert!(rule.covers(ip("127.0.0.1"), 9100) && !rule.covers(ip("127.0.0.1"), 9101));
        assert!(!rule.covers(ip("127.0.0.2"), 9000));
        assert!(Allowed::parse("10.0.0.0/8").unwrap().covers(ip("10.1.2.3"), 1));
        assert!(Allowed::parse("fd00::/8:443").unwrap().covers(ip("fd00::1"), 443));
        for bad in ["", "10.0.0.0", "10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/8:", "10.0.0.0/8:0", "10.0.0.0/8:9-8", "x/8"]
        {
            assert!(Allowed::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn clashes() {
        let clashing = |a: &str, b: &str| clash(a.parse().unwrap(), b.parse().unwrap());
        assert!(clashing("127.0.0.1:80", "127.0.0.1:80") && clashing("0.0.0.0:80", "127.0.0.1:80"));
        assert!(!clashing("127.0.0.1:80", "127.0.0.2:80") && !clashing("127.0.0.1:0", "127.0.0.1:0"));
    }
}
