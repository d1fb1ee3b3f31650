//! One line of the operator's allow-list: `CIDR[:port[-port]]`.

use ipnet::{IpNet, Ipv4Net};
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Addresses and ports that the guard lets through although it would deny them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowRule {
    net: IpNet,
    ports: RangeInclusive<u16>,
}

impl AllowRule {
    /// Whether the rule opens this address and port. `ip` is in its canonical form.
    pub(super) fn opens(&self, ip: IpAddr, port: u16) -> bool {
        self.ports.contains(&port) && self.net.contains(&ip)
    }

    /// Whether the rule names one single address.
    pub(super) fn is_exact(&self) -> bool {
        self.net.prefix_len() == self.net.max_prefix_len()
    }
}

impl fmt::Display for AllowRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.net {
            IpNet::V4(net) => write!(f, "{net}")?,
            IpNet::V6(net) => write!(f, "[{net}]")?,
        }
        match (*self.ports.start(), *self.ports.end()) {
            (1, u16::MAX) => Ok(()),
            (first, last) if first == last => write!(f, ":{first}"),
            (first, last) => write!(f, ":{first}-{last}"),
        }
    }
}

/// What is wrong with a rule, and how to write it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error("`{0}` has no prefix length; write CIDR[:port[-port]], e.g. 127.0.0.1/32:9000 or [fd00::/8]:443")]
    NoPrefix(String),
    #[error("`{0}` is not an IPv4 or IPv6 address; names are not allowed here, only addresses")]
    Address(String),
    #[error("`{given}` is not a prefix length for this address; write 0 to {most}")]
    Prefix { given: String, most: u8 },
    #[error("`{given}` has bits set beyond its prefix; write {meant}")]
    HostBits { given: String, meant: IpNet },
    #[error("`{0}` is not a port or a range of ports; write 1 to 65535, or e.g. 9000-9100")]
    Ports(String),
    #[error("the range of ports `{0}` ends before it begins; swap its ends")]
    Reversed(String),
}

impl FromStr for AllowRule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        // Everything before the slash is the address, so an IPv6 address needs no brackets to be told from a port.
        let (address, rest) = text.split_once('/').ok_or_else(|| RuleError::NoPrefix(text.to_owned()))?;
        let (address, rest) = match address.strip_prefix('[') {
            Some(inner) => match inner.strip_suffix(']') {
                Some(address) => (address, rest.to_owned()),
                None if rest.matches(']').count() == 1 => (inner, rest.replacen(']', "", 1)),
                None => return Err(RuleError::Address(address.to_owned())),
            },
            None => (address, rest.to_owned()),
        };
        let (prefix, ports) = match rest.split_once(':') {
            Some((prefix, ports)) => (prefix, Some(ports)),
            None => (rest.as_str(), None),
        };
        Ok(AllowRule { net: net(address, prefix)?, ports: ports.map_or(Ok(1..=u16::MAX), port_range)? })
    }
}

fn net(address: &str, prefix: &str) -> Result<IpNet, RuleError> {
    let ip: IpAddr = address.parse().map_err(|_| RuleError::Address(address.to_owned()))?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let bad_prefix = || RuleError::Prefix { given: prefix.to_owned(), most };
    let length = digits(prefix).and_then(|n| u8::try_from(n).ok()).filter(|n| *n <= most).ok_or_else(bad_prefix)?;
    let net = IpNet::new(ip, length).map_err(|_| bad_prefix())?;
    if net.trunc() != net {
        return Err(RuleError::HostBits { given: net.to_string(), meant: net.trunc() });
    }
    // The guard judges an IPv4-mapped address as IPv4, so a rule for one is a rule for IPv4.
    let mapped = match ip {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().zip(length.checked_sub(96)),
        IpAddr::V4(_) => None,
    };
    Ok(mapped.and_then(|(v4, length)| Ipv4Net::new(v4, length).ok()).map_or(net, IpNet::V4))
}

fn port_range(text: &str) -> Result<RangeInclusive<u16>, RuleError> {
    let port = |one: &str| {
        digits(one).and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0).ok_or(RuleError::Ports(text.to_owned()))
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (port(first)?, port(last)?);
    if first > last { Err(RuleError::Reversed(text.to_owned())) } else { Ok(first..=last) }
}

/// Digits and nothing else: `parse` alone would take a sign.
fn digits(text: &str) -> Option<u32> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_rule() {
        for (text, shown) in [
            ("127.0.0.1/32:9000-9100", "127.0.0.1/32:9000-9100"),
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("10.0.0.0/8:443", "10.0.0.0/8:443"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("[fd00::/8]:443", "[fd00::/8]:443"),
            ("[fd00::]/8:443", "[fd00::/8]:443"),
            ("fd00::/8:443-444", "[fd00::/8]:443-444"),
            ("fd00::/8", "[fd00::/8]"),
            ("[::1/128]", "[::1/128]"),
            ("::ffff:127.0.0.1/128:80", "127.0.0.1/32:80"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ] {
            let rule: AllowRule = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(rule.to_string(), shown, "{text}");
            assert_eq!(shown.parse::<AllowRule>().unwrap(), rule, "{text}");
        }
    }

    #[test]
    fn every_mistake_is_named_with_its_remedy() {
        for (text, said) in [
            ("", "no prefix length"),
            ("127.0.0.1", "no prefix length"),
            ("127.0.0.1:9000", "e.g. 127.0.0.1/32:9000"),
            ("localhost/32", "names are not allowed"),
            ("[fd00::/8:443", "not an IPv4 or IPv6 address"),
            ("fd00::]/8", "not an IPv4 or IPv6 address"),
            ("256.0.0.1/32", "not an IPv4"),
            ("10.0.0.0/33", "write 0 to 32"),
            ("fd00::/129", "write 0 to 128"),
            ("10.0.0.0/", "not a prefix length"),
            ("10.0.0.0/+8", "not a prefix length"),
            ("10.0.0.0/-1", "not a prefix length"),
            ("10.1.0.0/8", "write 10.0.0.0/8"),
            ("10.0.0.0/8:", "write 1 to 65535"),
            ("10.0.0.0/8:0", "write 1 to 65535"),
            ("10.0.0.0/8:65536", "write 1 to 65535"),
            ("10.0.0.0/8:http", "write 1 to 65535"),
            ("10.0.0.0/8:1-2-3", "write 1 to 65535"),
            ("10.0.0.0/8:9-", "write 1 to 65535"),
            ("10.0.0.0/8:9100-9000", "swap its ends"),
        ] {
            let error = text.parse::<AllowRule>().expect_err(text).to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn a_rule_opens_exactly_its_addresses_and_ports() {
        let rule: AllowRule = "10.0.0.0/31:9000-9001".parse().unwrap();
        for (ip, port, open) in [
            ("10.0.0.0", 9000, true),
            ("10.0.0.1", 9001, true),
            ("10.0.0.2", 9000, false),
            ("9.255.255.255", 9000, false),
            ("10.0.0.0", 8999, false),
            ("10.0.0.0", 9002, false),
            ("::", 9000, false),
        ] {
            assert_eq!(rule.opens(ip.parse().unwrap(), port), open, "{ip}:{port}");
        }
    }
}
