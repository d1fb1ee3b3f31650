//! Who may speak to the console: by which name, and from which page.

use http::uri::Authority;
use http::{HeaderMap, header};
use std::net::IpAddr;

/// The names by which it may be called. A page of another site whose name is made to mean this machine has none of
/// them; an address or `localhost` cannot be made to mean another.
pub(super) struct Guard {
    hosts: Vec<String>,
}

fn host(headers: &HeaderMap) -> Option<Authority> {
    headers.get(header::HOST)?.to_str().ok()?.parse().ok()
}

/// `None`: a name.
fn address(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

impl Guard {
    pub(super) fn new(hosts: Vec<String>) -> Self {
        Guard { hosts }
    }

    pub(super) fn knows_host(&self, headers: &HeaderMap) -> bool {
        host(headers).is_some_and(|host| {
            let name = host.host();
            name.eq_ignore_ascii_case("localhost")
                || address(name).is_some()
                || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
        })
    }

    /// Something to be told before a token is typed.
    pub(super) fn warning(&self, headers: &HeaderMap) -> Option<&'static str> {
        let host = host(headers)?;
        let here = host.host().eq_ignore_ascii_case("localhost")
            || address(host.host()).is_some_and(|address| address.is_loopback());
        let proxied = headers.get("x-forwarded-proto").is_some_and(|proto| proto == "https");
        (!here && !proxied && !self.hosts.iter().any(|known| known.eq_ignore_ascii_case(host.host()))).then_some(
            "If the address bar does not say https, your token crosses the network unencrypted: put TLS before the admin \
             listener, or forward its port to your machine.",
        )
    }
}

/// Whether the browser says that the request comes from a page of the console. Browsers of today send both headers; one
/// that sends neither is no browser.
pub(super) fn is_same_origin(headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return site == "same-origin";
    }
    let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
    let from = origin.and_then(|origin| origin.split_once("://")).map(|(_, authority)| authority);
    match (from, headers.get(header::HOST).and_then(|host| host.to_str().ok())) {
        (Some(from), Some(host)) => from.eq_ignore_ascii_case(host),
        (_, _) => false,
    }
}

/// Whether the browser sees https, as it does behind a proxy that ends TLS.
pub(super) fn is_encrypted(headers: &HeaderMap) -> bool {
    headers.get(header::ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https://"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        all.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn it_is_called_by_address_or_by_a_name_it_knows() {
        let guard = Guard::new(vec!["hooks.internal".to_owned()]);
        for (host, known) in [
            ("127.0.0.1:8081", true),
            ("10.1.2.3", true),
            ("[::1]:8081", true),
            ("localhost:8081", true),
            ("LOCALHOST", true),
            ("Hooks.Internal", true),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("hooks.internal.evil.example", false),
            ("", false),
        ] {
            assert_eq!(guard.knows_host(&headers(&[("host", host)])), known, "{host}");
        }
        assert!(!guard.knows_host(&headers(&[])));
    }

    #[test]
    fn another_site_is_known_by_what_its_browser_says() {
        let host = ("host", "127.0.0.1:8081");
        for (more, same) in [
            (vec![("sec-fetch-site", "same-origin")], true),
            (vec![("sec-fetch-site", "cross-site"), ("origin", "http://127.0.0.1:8081")], false),
            (vec![("sec-fetch-site", "same-site")], false),
            (vec![("sec-fetch-site", "none")], false),
            (vec![("origin", "http://127.0.0.1:8081")], true),
            (vec![("origin", "http://127.0.0.1:9")], false),
            (vec![("origin", "null")], false),
            (vec![], false),
        ] {
            let mut all = vec![host];
            all.extend(more);
            assert_eq!(is_same_origin(&headers(&all)), same, "{all:?}");
        }
    }

    #[test]
    fn a_token_in_the_clear_is_warned_of() {
        let guard = Guard::new(vec!["hooks.internal".to_owned()]);
        let warns = |all: &[(&'static str, &str)]| guard.warning(&headers(all)).is_some();
        assert!(
            !warns(&[("host", "localhost:1")]) && !warns(&[("host", "127.0.0.1")]) && !warns(&[("host", "[::1]:2")])
        );
        assert!(warns(&[("host", "10.0.0.1:8081")]));
        assert!(!warns(&[("host", "10.0.0.1"), ("x-forwarded-proto", "https")]));
    }
}
