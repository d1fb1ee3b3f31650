//! `[tenants.<name>.endpoints.<name>]`.

use super::health::health;
use super::pull;
use super::section::{At, Section, Tables, Walk};
use super::server::Allowed;
use super::settings::{Egress, EndpointSettings, Push, Way};
use super::size;
use super::source::{Found, rate, secrets};
use crate::delivery::{
    Backoff, EventTypes, HealthPolicy, Jitter, MAX_WAIT, Name, OnAmbiguous, OnDead, OnPluginFault, Order, RetryPolicy,
    Route, Terms,
};
use crate::egress::{self as outward, Guard};
use crate::plugin::CONFIG_BYTES_MAX;
use base64::Engine as _;
use http::HeaderName;
use std::net::IpAddr;
use std::time::Duration;
use url::{Host, Url};

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(15);
const DEFAULT_CONCURRENCY: u32 = 10;
const URL_BYTES_MAX: usize = 2_048;
const PATTERNS_MAX: usize = 64;
const DELAYS_MAX: usize = 100;
const ATTEMPTS_MAX: u32 = 100;
/// Of a signing secret, decoded.
const SIGNING_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// Names that the gateway or HTTP itself gives a meaning.
const HEADERS_TAKEN: [&str; 14] = [
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "host",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
];

/// What an endpoint refers to, with its places, for the checks across the tenant.
pub(super) struct References {
    pub(super) sources: Vec<At<String>>,
    pub(super) plugin: Option<At<String>>,
}

/// `None` for the settings: something is missing without which there is no endpoint. `scrub` is the tenant's word.
pub(super) fn endpoint(
    walk: &mut Walk<'_>,
    mut s: Section<'_>,
    egress: &Egress,
    allowed: &[Allowed],
    scrub: bool,
) -> (Option<EndpointSettings>, References) {
    let pull = pull::read(walk, &mut s);
    let url = s.string(walk, "url");
    match &url {
        Some(at) if pull.is_none() => check_url(walk, at, egress, allowed),
        None if !s.has("url") && pull.is_none() => walk.reject(
            &s.at(),
            "an endpoint needs a `url`",
            "write e.g. url = \"https://billing.example/hooks\", or pull = true for consumers that fetch",
        ),
        Some(_) | None => {}
    }
    let sources = s.strings(walk, "sources");
    if let Some(at) = sources.as_ref().filter(|at| at.value.is_empty()) {
        walk.warn(at, "no source at all: nothing is sent to this endpoint", "name sources, or remove the key for all");
    }
    let references = References {
        sources: sources.clone().map(|at| at.value).unwrap_or_default(),
        plugin: s.string(walk, "plugin"),
    };
    let event_types = event_types(walk, &mut s);
    let plugin_config = s.json(walk, "plugin_config");
    if let (Some(at), None) = (&plugin_config, &references.plugin) {
        walk.warn(at, "`plugin_config` without a `plugin` is of no use", "name the plugin, or remove it");
    }
    if let Some(at) = plugin_config.as_ref().filter(|at| at.value.to_string().len() > CONFIG_BYTES_MAX) {
        let most = size::show(CONFIG_BYTES_MAX as u64);
        walk.reject(
            at,
            format!("as JSON it has more than {most}"),
            "shorten it, or build what is constant into the plugin",
        );
    }
    let signing = secrets(walk, &mut s, "signing_secrets", Tables::Refused).unwrap_or_default();
    for found in &signing {
        check_signing(walk, found);
    }
    let timeout = s.duration(walk, "timeout", Duration::from_millis(100)..=Duration::from_secs(300));
    let concurrency = s.integer(walk, "concurrency", 1..=1_000);
    let rate = rate(walk, &mut s);
    let order = if pull.is_none() {
        order(walk, &mut s)
    } else {
        // What it may say there was looked at with the rest.
        let _ = s.string(walk, "ordering");
        Order::Free
    };
    let ambiguous = [("retry", OnAmbiguous::Retry), ("hold", OnAmbiguous::Hold)];
    let fault = [("default", OnPluginFault::Default), ("retry", OnPluginFault::Retry), ("dead", OnPluginFault::Dead)];
    let terms = Terms {
        on_ambiguous: s.choice(walk, "on_ambiguous", &ambiguous).map(|at| at.value).unwrap_or_default(),
        on_plugin_fault: s.choice(walk, "on_plugin_fault", &fault).map(|at| at.value).unwrap_or_default(),
        retry: retry(walk, &mut s),
        health: if pull.is_none() { health(walk, &mut s) } else { HealthPolicy::default() },
    };
    let idempotency_header = idempotency_header(walk, &mut s);
    let scrub = s.boolean(walk, "scrub").map_or(scrub, |at| at.value);
    s.not_yet(
        walk,
        "coalesce",
        "remove it, and publish what belongs together with a `coalesce_key` and a `coalesce_window`",
    );
    s.close(walk);

    let push = url.map(|url| Push {
        url: url.value,
        plugin: references.plugin.as_ref().and_then(|at| at.value.parse::<Name>().ok()),
        plugin_config: plugin_config.map_or_else(|| serde_json::json!({}), |at| at.value),
        signing_secrets: signing.into_iter().map(|found| found.written).collect(),
        timeout: timeout.map_or(DEFAULT_TIMEOUT, |at| at.value),
        concurrency: concurrency.map_or(DEFAULT_CONCURRENCY, |at| at.value),
        rate,
        idempotency_header,
    });
    let way = pull.map(Way::Pull).or(push.map(Way::Push));
    let route = Route {
        // Names that are none were reported with the references.
        sources: sources.map(|at| at.value.iter().filter_map(|name| name.value.parse().ok()).collect()),
        event_types,
    };
    (way.map(|way| EndpointSettings { route, order, terms, scrub, way }), references)
}

fn order(walk: &mut Walk<'_>, s: &mut Section<'_>) -> Order {
    let choices = [("none", Order::Free), ("key", Order::ByKey(OnDead::default()))];
    let order = s.choice(walk, "ordering", &choices).map(|at| at.value);
    let on_dead = s.choice(walk, "on_dead", &[("release", OnDead::Release), ("hold", OnDead::Hold)]);
    match (order.unwrap_or_default(), on_dead) {
        (Order::ByKey(_), Some(on_dead)) => Order::ByKey(on_dead.value),
        (Order::Free, Some(on_dead)) if order.is_some() || !s.has("ordering") => {
            walk.reject(&on_dead, "there is no order to hold or release", "set `ordering = \"key\"`, or remove it");
            Order::Free
        }
        (order, _) => order,
    }
}

fn check_url(walk: &mut Walk<'_>, at: &At<String>, egress: &Egress, allowed: &[Allowed]) {
    let known = walk.problems.len();
    if at.value.contains('@') {
        // Perhaps a password.
        walk.hide(&at.place);
    }
    if at.value.len() > URL_BYTES_MAX {
        walk.reject(at, format!("the URL has {} bytes", at.value.len()), format!("keep it to {URL_BYTES_MAX}"));
        return;
    }
    let url = match Url::parse(&at.value) {
        Ok(url) => url,
        Err(e) => {
            walk.reject(at, format!("not a URL: {e}"), "write e.g. \"https://billing.example/hooks\"");
            return;
        }
    };
    if !url.username().is_empty() || url.password().is_some() {
        walk.reject(
            at,
            "a URL with a user name or password",
            "remove it: let a plugin set what the receiver wants to see",
        );
    }
    if url.fragment().is_some() {
        walk.reject(at, "a URL with a fragment", "remove what follows `#`: it is never sent");
    }
    match url.scheme() {
        "https" => {}
        "http" => check_plain(walk, at, &url, egress, allowed),
        scheme => walk.reject(at, format!("scheme `{scheme}` cannot be sent to"), "use https"),
    }
    if walk.problems.len() > known {
        return;
    }
    let allow = egress.allow.iter().filter_map(|rule| rule.parse().ok()).collect();
    let guard = Guard::new(&outward::Settings { allow, allow_http: true, ..outward::Settings::default() });
    if let Err(refusal) = guard.judge_url(&at.value) {
        walk.warn(
            at,
            format!("the address guard refuses this: {}", refusal.detail),
            "every delivery to it will be dead at once; correct the URL, or allow the address in `egress.allow`",
        );
    }
}

/// Without TLS only where the operator has allowed it.
fn check_plain(walk: &mut Walk<'_>, at: &At<String>, url: &Url, egress: &Egress, allowed: &[Allowed]) {
    if egress.allow_http {
        return;
    }
    let address: Option<IpAddr> = match url.host() {
        Some(Host::Ipv4(ip)) => Some(ip.into()),
        Some(Host::Ipv6(ip)) => Some(ip.into()),
        Some(Host::Domain(_)) | None => None,
    };
    let port = url.port_or_known_default().unwrap_or(80);
    match address {
        Some(ip) if allowed.iter().any(|rule| rule.covers(ip, port)) => {}
        None if !allowed.is_empty() => walk.warn(
            at,
            "plain http is sent only if the name leads to an address in `egress.allow`",
            "use https, or make sure that it does",
        ),
        Some(_) | None => walk.reject(
            at,
            "plain http is not allowed",
            "use https, allow the address in `egress.allow`, or set `egress.allow_http = true`",
        ),
    }
}

fn event_types(walk: &mut Walk<'_>, s: &mut Section<'_>) -> EventTypes {
    let Some(list) = s.strings(walk, "event_types") else { return EventTypes::default() };
    if list.value.len() > PATTERNS_MAX {
        walk.reject(
            &list,
            format!("{} patterns are too many", list.value.len()),
            format!("keep at most {PATTERNS_MAX}"),
        );
        return EventTypes::default();
    }
    let mut good = Vec::new();
    for at in list.value {
        if at.value.is_empty() || at.value.len() > 256 {
            walk.reject(
                &at,
                "a pattern has 1 to 256 bytes",
                "write a type such as \"push\", or a glob such as \"invoice.*\"",
            );
        } else if let Err(message) = EventTypes::new(vec![at.value.clone()]) {
            walk.reject(
                &at,
                format!("not a pattern: {message}"),
                "write a type such as \"push\", or a glob such as \"invoice.*\"",
            );
        } else {
            good.push(at.value);
        }
    }
    EventTypes::new(good).unwrap_or_default()
}

fn check_signing(walk: &mut Walk<'_>, found: &Found) {
    let Some(secret) = &found.secret else { return };
    let key = secret
        .expose_str()
        .and_then(|text| text.strip_prefix("whsec_"))
        .and_then(|text| base64::engine::general_purpose::STANDARD.decode(text).ok());
    if !key.is_some_and(|key| SIGNING_BYTES.contains(&zeroize::Zeroizing::new(key).len())) {
        walk.reject(
            &found.at,
            "not a signing secret",
            "write `whsec_` and 24 to 64 random bytes in base64, e.g. from `echo whsec_$(openssl rand -base64 32)`",
        );
    }
}

fn idempotency_header(walk: &mut Walk<'_>, s: &mut Section<'_>) -> HeaderName {
    let default = HeaderName::from_static("idempotency-key");
    let Some(at) = s.string(walk, "idempotency_header") else { return default };
    let Ok(name) = HeaderName::from_bytes(at.value.as_bytes()) else {
        walk.reject(&at, format!("`{}` is not a header's name", at.value), "write e.g. \"idempotency-key\"");
        return default;
    };
    if HEADERS_TAKEN.contains(&name.as_str()) || name.as_str().starts_with("hookgate-") {
        walk.reject(&at, format!("`{name}` has another meaning"), "choose another, e.g. \"idempotency-key\"");
        return default;
    }
    name
}

fn retry(walk: &mut Walk<'_>, s: &mut Section<'_>) -> RetryPolicy {
    let default = RetryPolicy::default();
    let Some(mut s) = s.table(walk, "retry") else { return default };
    let max_attempts = s.integer(walk, "max_attempts", 1..=ATTEMPTS_MAX).map(|at| at.value);
    let delays = delays(walk, &mut s);
    let exponential = exponential(walk, &mut s);
    let jitters = [("none", Jitter::None), ("equal", Jitter::Equal), ("full", Jitter::Full)];
    let jitter = s.choice(walk, "jitter", &jitters).map(|at| at.value).unwrap_or_default();
    let max_age =
        s.duration(walk, "max_age", Duration::from_secs(1)..=Duration::from_secs(365 * 24 * 3_600)).map(|at| at.value);
    if s.has("delays") && ["base", "factor", "cap"].iter().any(|key| s.has(key)) {
        walk.reject(&s.at(), "`delays` and `base`, `factor`, `cap` are two ways to say it", "keep one of them");
    }
    let at = s.at();
    s.close(walk);
    match (delays, exponential) {
        (Some(delays), _) => {
            // One wait fewer than attempts: nothing follows the last.
            let all = u32::try_from(delays.len()).unwrap_or(ATTEMPTS_MAX).saturating_add(1);
            let max_attempts = max_attempts.unwrap_or(all.min(ATTEMPTS_MAX));
            if all > max_attempts {
                walk.warn(
                    &at,
                    format!("{} delays, of which {max_attempts} attempts use {}", all - 1, max_attempts - 1),
                    "raise `max_attempts`, or remove the delays that are never reached",
                );
            }
            RetryPolicy { max_attempts, backoff: Backoff::Ladder(delays), jitter, max_age }
        }
        (None, Some(backoff)) => {
            RetryPolicy { max_attempts: max_attempts.unwrap_or(default.max_attempts), backoff, jitter, max_age }
        }
        (None, None) => RetryPolicy {
            max_attempts: max_attempts.unwrap_or(default.max_attempts),
            backoff: default.backoff,
            jitter,
            max_age,
        },
    }
}

fn delays(walk: &mut Walk<'_>, s: &mut Section<'_>) -> Option<Vec<Duration>> {
    let list = s.strings(walk, "delays")?;
    if list.value.is_empty() || list.value.len() > DELAYS_MAX {
        walk.reject(&list, "a ladder has 1 to 100 delays", "write e.g. delays = [\"30s\", \"2m\", \"10m\"]");
        return None;
    }
    let mut waits = Vec::new();
    for at in &list.value {
        if let Some(wait) = super::section::duration(walk, at, Duration::ZERO..=MAX_WAIT) {
            waits.push(wait.value);
        }
    }
    (waits.len() == list.value.len()).then_some(waits)
}

/// `None`: none of its keys is there.
fn exponential(walk: &mut Walk<'_>, s: &mut Section<'_>) -> Option<Backoff> {
    let wait = Duration::from_millis(1)..=MAX_WAIT;
    let base = s.duration(walk, "base", wait.clone());
    let factor = s.number(walk, "factor");
    let cap = s.duration(walk, "cap", wait);
    if base.is_none() && factor.is_none() && cap.is_none() {
        return None;
    }
    if let Some(at) = factor.as_ref().filter(|at| !(1.0..=100.0).contains(&at.value)) {
        walk.reject(at, format!("factor {} is out of range", at.value), "write a number from 1 to 100");
    }
    if let (Some(base), Some(cap)) = (&base, &cap)
        && cap.value < base.value
    {
        walk.reject(cap, "`cap` is shorter than `base`", "make it at least as long");
    }
    let base = base.map_or(Duration::from_secs(30), |at| at.value);
    Some(Backoff::Exponential {
        base,
        factor: factor.map_or(2.0, |at| at.value),
        cap: cap.map_or(Duration::from_secs(3_600).max(base), |at| at.value),
    })
}
