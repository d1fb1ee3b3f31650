//! The address guard against every range, spelling and name that it must refuse.

use super::*;
use ipnet::IpNet;
use proptest::prelude::*;
use std::net::SocketAddrV6;

fn guard(allow: &[&str]) -> Guard {
    guard_with(allow, |_| ())
}

fn guard_with(allow: &[&str], change: impl FnOnce(&mut Settings)) -> Guard {
    let allow = allow.iter().map(|rule| rule.parse().unwrap()).collect();
    let mut settings = Settings { allow, ..Settings::default() };
    change(&mut settings);
    Guard::new(&settings)
}

fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// The policy as text, apart from the tables under test: the network, and an allowed neighbour below and above it.
const DENIED: &[(&str, Option<&str>, Option<&str>)] = &[
    ("0.0.0.0/8", None, Some("1.0.0.0")),
    ("10.0.0.0/8", Some("9.255.255.255"), Some("11.0.0.0")),
    ("100.64.0.0/10", Some("100.63.255.255"), Some("100.128.0.0")),
    ("127.0.0.0/8", Some("126.255.255.255"), Some("128.0.0.0")),
    ("169.254.0.0/16", Some("169.253.255.255"), Some("169.255.0.0")),
    ("172.16.0.0/12", Some("172.15.255.255"), Some("172.32.0.0")),
    ("192.0.0.0/24", Some("191.255.255.255"), Some("192.0.1.0")),
    ("192.0.2.0/24", Some("192.0.1.255"), Some("192.0.3.0")),
    ("192.88.99.0/24", Some("192.88.98.255"), Some("192.88.100.0")),
    ("192.168.0.0/16", Some("192.167.255.255"), Some("192.169.0.0")),
    ("198.18.0.0/15", Some("198.17.255.255"), Some("198.20.0.0")),
    ("198.51.100.0/24", Some("198.51.99.255"), Some("198.51.101.0")),
    ("203.0.113.0/24", Some("203.0.112.255"), Some("203.0.114.0")),
    ("224.0.0.0/4", Some("223.255.255.255"), None),
    ("240.0.0.0/4", None, None),
    ("168.63.129.16/32", Some("168.63.129.15"), Some("168.63.129.17")),
    ("::/3", None, Some("2000::")),
    ("4000::/2", Some("3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), None),
    ("8000::/1", None, None),
    ("2001::/23", Some("2000:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), Some("2001:200::")),
    ("2001:db8::/32", Some("2001:db7:ffff:ffff:ffff:ffff:ffff:ffff"), Some("2001:db9::")),
    ("2002::/16", Some("2001:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), Some("2003::")),
    ("2620:4f:8000::/48", Some("2620:4f:7fff:ffff:ffff:ffff:ffff:ffff"), Some("2620:4f:8001::")),
    ("3ffe::/16", Some("3ffd:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), Some("3fff:1000::")),
    ("3fff::/20", None, Some("3fff:1000::")),
];

fn is_denied_by_policy(ip: IpAddr) -> bool {
    DENIED.iter().any(|(net, ..)| net.parse::<IpNet>().unwrap().contains(&ip))
}

#[test]
fn every_denied_range_with_its_edges() {
    let guard = guard(&[]);
    for (net, below, above) in DENIED {
        let net: IpNet = net.parse().unwrap();
        let last = match net {
            IpNet::V4(net) => IpAddr::V4(net.broadcast()),
            IpNet::V6(net) => IpAddr::V6(net.broadcast()),
        };
        for ip in [net.network(), last] {
            assert!(guard.judge(SocketAddr::new(ip, 443)).is_err(), "{ip} of {net}");
            if let IpAddr::V4(v4) = ip {
                let mapped = SocketAddr::new(v4.to_ipv6_mapped().into(), 443);
                assert!(guard.judge(mapped).is_err(), "{mapped} of {net}");
            }
        }
        for ip in [below, above].into_iter().flatten() {
            assert!(guard.judge(at(ip, 443)).is_ok(), "{ip} beside {net}");
        }
    }
}

#[test]
fn addresses_that_hide_another() {
    let guard = guard(&[]);
    for ip in [
        "::1",
        "::",
        "::127.0.0.1",
        "::ffff:0:127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::7f00:1",
        "fe80::1",
        "fec0::1",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "2002:7f00:1::",
        "2001:0:7f00:1::",
        "100::1",
        "5f00::1",
    ] {
        assert!(guard.judge(at(ip, 443)).is_err(), "{ip}");
    }
    let zoned = SocketAddr::V6(SocketAddrV6::new("2606:4700::1".parse().unwrap(), 443, 7, 3));
    assert_eq!(guard.judge(zoned).unwrap().addr(), at("2606:4700::1", 443), "neither flow label nor zone is dialled");
    let mapped = guard.judge(at("::ffff:8.8.8.8", 443)).unwrap();
    assert_eq!(mapped.addr(), at("8.8.8.8", 443), "the judged form is the dialled form");
}

#[test]
fn a_rule_opens_exactly_what_it_says() {
    let guard = guard(&["127.0.0.1/32:9000-9100", "[fd00::/8]:443"]);
    assert!(guard.judge(at("127.0.0.1", 9000)).is_ok());
    assert!(guard.judge(at("::ffff:127.0.0.1", 9100)).is_ok());
    assert!(guard.judge(at("127.0.0.1", 8999)).is_err());
    assert!(guard.judge(at("127.0.0.1", 9101)).is_err());
    assert!(guard.judge(at("127.0.0.2", 9000)).is_err());
    assert!(guard.judge(at("fd12::1", 443)).is_ok());
    assert!(guard.judge(at("fd12::1", 444)).is_err());
    assert!(guard.judge(at("fe80::1", 443)).is_err());
}

#[test]
fn metadata_addresses_need_an_exact_rule() {
    for ip in METADATA {
        let addr = SocketAddr::new(ip, 80);
        let (whole, exact) = if ip.is_ipv4() { ("0.0.0.0/0", 32) } else { ("::/0", 128) };
        assert!(guard(&[]).judge(addr).is_err(), "{ip}");
        assert!(guard(&[whole]).judge(addr).is_err(), "{ip}");
        assert!(guard(&[whole, &format!("{ip}/{exact}:80")]).judge(addr).is_ok(), "{ip}");
        assert!(guard(&[whole, &format!("{ip}/{exact}:81")]).judge(addr).is_err(), "{ip}");
    }
    assert!(guard(&["169.254.0.0/16"]).judge(at("169.254.169.253", 80)).is_ok());
}

#[test]
fn own_listeners_need_an_exact_rule() {
    let own = |allow: &[&str]| {
        guard_with(allow, |s| s.own_listeners = vec![at("10.0.0.5", 8080), at("8.8.8.8", 443), at("::", 8081)])
    };
    let whole = own(&["10.0.0.0/8", "127.0.0.0/8", "::/127"]);
    assert!(whole.judge(at("10.0.0.5", 8080)).is_err());
    assert!(whole.judge(at("::ffff:10.0.0.5", 8080)).is_err());
    assert!(whole.judge(at("10.0.0.5", 8082)).is_ok());
    assert!(whole.judge(at("8.8.8.8", 443)).is_err(), "a public address of ours is ours");
    assert!(whole.judge(at("127.0.0.1", 8081)).is_err());
    assert!(whole.judge(at("127.0.0.1", 8080)).is_ok(), "another port of the loopback");
    let exact = own(&["10.0.0.5/32:8080", "127.0.0.1/32"]);
    assert!(exact.judge(at("10.0.0.5", 8080)).is_ok());
    let loopback = exact.judge(at("127.0.0.1", 8081)).unwrap();
    assert!(!exact.is_own_if_local(&loopback));
    let other = whole.judge(at("10.0.0.6", 8081)).unwrap();
    assert!(whole.is_own_if_local(&other), "it may be an address of this machine");
}

#[test]
fn plain_http_goes_only_where_a_rule_opens() {
    let plain = |guard: &Guard, url: &str| guard.judge_url(url).map(|_| ()).map_err(|r| r.reason);
    let denied = Err(Reason::POLICY);
    let none = guard(&[]);
    assert_eq!(plain(&none, "http://8.8.8.8/"), denied);
    assert_eq!(plain(&none, "http://example.com/"), denied);
    assert_eq!(plain(&none, "https://example.com/"), Ok(()));
    let some = guard(&["127.0.0.1/32:9000", "8.8.8.8/32:80"]);
    assert_eq!(plain(&some, "http://127.0.0.1:9000/"), Ok(()));
    assert_eq!(plain(&some, "http://127.0.0.1:9001/"), denied);
    assert_eq!(plain(&some, "http://8.8.8.8/"), Ok(()));
    assert_eq!(plain(&some, "http://8.8.4.4/"), denied);
    assert_eq!(plain(&some, "http://example.com/"), Ok(()), "its addresses are judged when they are known");
    assert!(
        some.judge_for(at("8.8.4.4", 80), Scheme::Http).is_err()
            && some.judge_for(at("8.8.8.8", 80), Scheme::Http).is_ok()
    );
    let all = guard_with(&[], |s| s.allow_http = true);
    assert_eq!(plain(&all, "http://example.com/"), Ok(()));
    assert_eq!(plain(&all, "http://8.8.8.8/"), Ok(()));
    assert_eq!(plain(&all, "http://127.0.0.1/"), denied);
}

#[test]
fn literals_in_any_spelling() {
    let guard = guard(&[]);
    for host in [
        "127.0.0.1",
        "127.0.0.1.",
        "127.1",
        "127.0.1",
        "0x7f.1",
        "0x7f000001",
        "2130706433",
        "017700000001",
        "0177.0.0.1",
        "0x7F.0.0.0x1",
        "0",
        "0.0.0.0",
        "%31%32%37.0.0.1",
        "１２７.０.０.１",
        "127。0。0。1",
        "①②⑦.0.0.1",
        "[::1]",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "169.254.169.254",
        "0xa9fea9fe",
        "2852039166",
        "[::ffff:a9fe:a9fe]",
        "10.0.0.1",
        "192.168.1.1",
        "[fd00::1]",
        "[fe80::1]",
        "[2002:7f00:1::]",
        "168.63.129.16",
        "255.255.255.255",
    ] {
        let refused = guard.judge_url(&format!("https://{host}/x")).expect_err(host);
        assert_eq!(refused.reason, Reason::POLICY, "{host}: {refused}");
    }
    assert!(guard.judge_url("https://0x08080808/").is_ok());
    assert_eq!(guard.judge_url("https://134744072/").unwrap().host_str(), Some("8.8.8.8"));
}

#[test]
fn what_is_no_url_for_us() {
    let guard = guard_with(&["0.0.0.0/0"], |s| s.allow_http = true);
    let long = format!("https://example.com/{}", "a".repeat(URL_BYTES_MAX));
    let swollen = format!("https://example.com/{}", "ü".repeat(700));
    for (url, said) in [
        ("", "cannot be read"),
        ("example.com", "cannot be read"),
        ("//example.com/", "cannot be read"),
        ("ftp://example.com/", "scheme"),
        ("file:///etc/passwd", "scheme"),
        ("gopher://example.com/", "scheme"),
        ("javascript:alert(1)", "scheme"),
        ("wss://example.com/", "scheme"),
        ("https://user@example.com/", "user name"),
        ("https://user:pass@example.com/", "user name"),
        ("https://@example.com/", "user name"),
        ("https://:@example.com/", "user name"),
        ("https://example.com@8.8.8.8/", "user name"),
        ("https:user@example.com/", "user name"),
        ("https://example.com/#x", "fragment"),
        ("https://example.com/#", "fragment"),
        ("https://[fe80::1%25eth0]/", "zone id"),
        ("https://[fe80::1%eth0]/", "zone id"),
        ("https://exa mple.com/", "space"),
        (" https://example.com/", "space"),
        ("https://example.com/\r\nx: y", "control"),
        ("https://exam\tple.com/", "control"),
        ("https:\\\\example.com\\", "backslash"),
        ("https://example.com\\@8.8.8.8/", "backslash"),
        ("https:///", "cannot be read"),
        ("https://example.com:99999/", "cannot be read"),
        ("https://[::1/", "cannot be read"),
        ("https://1.2.3.4.5/", "cannot be read"),
        ("https://256.0.0.1/", "cannot be read"),
        ("https://a..b/", "label"),
        ("https://example.com../", "label"),
        ("https://.example.com/", "label"),
        (&long, "the most is 2048"),
        (&swollen, "longer than 2048"),
    ] {
        let refused = guard.judge_url(url).expect_err(url);
        assert_eq!(refused.reason.as_str(), "invalid_url", "{url}: {refused}");
        assert!(refused.detail.contains(said), "{url}: {refused}");
    }
    assert!(guard.judge_url(&long[..URL_BYTES_MAX]).is_ok());
}

#[test]
fn internal_names() {
    let guard = guard_with(&["0.0.0.0/0", "::/0"], |s| s.allow_http = true);
    for host in [
        "localhost",
        "LOCALHOST",
        "localhost.",
        "foo.localhost",
        "intranet",
        "printer.local",
        "metadata.google.internal",
        "a.b.internal.",
        "router.home.arpa",
        "home.arpa",
        "abc.onion",
        "ｌｏｃａｌｈｏｓｔ",
        "x.ｌｏｃａｌ",
        "com",
    ] {
        let refused = guard.judge_url(&format!("https://{host}/")).expect_err(host);
        assert_eq!(refused.reason, Reason::POLICY, "{host}: {refused}");
    }
    for host in ["example.com", "localhost.example.com", "notlocal.example", "internal.example", "x_y.example.com"] {
        assert!(guard.judge_url(&format!("https://{host}/")).is_ok(), "{host}");
    }
}

#[test]
fn names_are_kept_in_one_form() {
    let guard = guard(&[]);
    let kept = |url: &str| guard.judge_url(url).unwrap().to_string();
    assert_eq!(kept("https://EXAMPLE.com./a?b"), "https://example.com/a?b");
    assert_eq!(kept("https://bücher.example/"), "https://xn--bcher-kva.example/");
    assert_eq!(kept("HTTPS://example.com:443"), "https://example.com/");
    assert_eq!(kept("https://example.com:8443/%7Ea/../b"), "https://example.com:8443/b");
}

#[test]
fn ports_of_other_protocols() {
    assert!(BAD_PORTS.is_sorted_by(|a, b| a < b), "the search needs the order");
    let guard = guard(&["127.0.0.1/32"]);
    for port in [0, 1, 22, 25, 53, 110, 143, 587, 993, 2049, 5060, 6000, 6665, 6669, 6697, 10080] {
        let url = format!("https://127.0.0.1:{port}/");
        assert_eq!(guard.judge_url(&url).expect_err(&url).reason, Reason::POLICY, "{port}");
    }
    for port in [80, 443, 2, 3000, 5432, 6379, 6664, 6670, 8080, 9200, 10081, 65535] {
        let url = format!("https://127.0.0.1:{port}/");
        assert!(guard.judge_url(&url).is_ok(), "{port}");
    }
}

proptest! {
    #[test]
    fn the_guard_agrees_with_the_policy_on_ipv4(bits: u32, port: u16) {
        let ip = Ipv4Addr::from_bits(bits);
        let guard = guard(&[]);
        let denied = is_denied_by_policy(ip.into());
        prop_assert_eq!(guard.judge(SocketAddr::new(ip.into(), port)).is_err(), denied);
        prop_assert_eq!(guard.judge(SocketAddr::new(ip.to_ipv6_mapped().into(), port)).is_err(), denied);
    }

    #[test]
    fn the_guard_agrees_with_the_policy_on_ipv6(
        high in prop_oneof![any::<u16>(), Just(0x2001), Just(0x2002), Just(0x2620), Just(0x3ffe), Just(0x3fff)],
        second in prop_oneof![any::<u16>(), Just(0xdb8), Just(0x4f), 0u16..0x400],
        third in prop_oneof![any::<u16>(), Just(0x8000)],
        rest: u64,
    ) {
        let bits = u128::from(high) << 112 | u128::from(second) << 96 | u128::from(third) << 80 | u128::from(rest);
        let ip = Ipv6Addr::from_bits(bits);
        let denied = is_denied_by_policy(ip.to_canonical());
        prop_assert_eq!(guard(&[]).judge(SocketAddr::new(ip.into(), 443)).is_err(), denied, "{}", ip);
    }

    #[test]
    fn no_text_gets_a_denied_literal_through(text in "https?://[0-9a-fx.:\\[\\]%@/]{1,24}") {
        if let Ok(url) = guard_with(&[], |s| s.allow_http = true).judge_url(&text) {
            let ip = match url.host() {
                Some(Host::Ipv4(ip)) => Some(IpAddr::V4(ip)),
                Some(Host::Ipv6(ip)) => Some(ip.to_canonical()),
                Some(Host::Domain(_)) | None => None,
            };
            prop_assert!(ip.is_none_or(|ip| !is_denied_by_policy(ip)), "{url}");
        }
    }
}
