//! `pull = true`: what an endpoint is whose consumers fetch, and what has no meaning there.

use super::section::{Section, Walk};
use super::settings::Pull;
use crate::delivery::{LEASE_MAX, LEASE_MIN};
use std::time::Duration;

const LEASE_DEFAULT: Duration = Duration::from_secs(30);

/// What only an endpoint has that is sent to, and what to do about it.
const OF_PUSH: [(&str, &str); 12] = [
    ("url", "remove it, or remove `pull` to have deliveries sent there"),
    ("plugin", "remove it: a consumer says itself what became of a delivery, by `ack` and `nack`"),
    ("plugin_config", "remove it: there is no plugin here"),
    ("on_plugin_fault", "remove it: there is no plugin here"),
    ("signing_secrets", "remove it: a consumer shows a token, nothing is signed for it"),
    ("timeout", "remove it: how long a consumer has is its `lease`"),
    ("concurrency", "remove it: consumers take as many as they ask for"),
    ("rate", "remove it: consumers ask when they have room"),
    ("idempotency_header", "remove it: consumers find `idempotency_key` on each delivery"),
    ("breaker", "remove it: nothing is sent that could fail"),
    ("disable_after", "remove it: nothing is sent that could fail"),
    ("on_dead", "remove it: consumers take what is due side by side"),
];

/// `None`: it is sent to.
pub(super) fn read(walk: &mut Walk<'_>, s: &mut Section<'_>) -> Option<Pull> {
    let pull = s.boolean(walk, "pull");
    let lease = s.duration(walk, "lease", LEASE_MIN..=LEASE_MAX);
    if !pull.is_some_and(|at| at.value) {
        s.refuse(walk, "lease", "without `pull = true` is of no use", "remove it, or write `pull = true`");
        return None;
    }
    for (key, remedy) in OF_PUSH {
        s.refuse(walk, key, "has no meaning with `pull = true`", remedy);
    }
    if s.written("ordering").is_some_and(|written| written != "none") {
        let why = "can only be \"none\" with `pull = true`: consumers take what is due side by side";
        s.refuse(walk, "ordering", why, "remove it; `sequence` on each delivery tells the order of acceptance");
    }
    Some(Pull { lease: lease.map_or(LEASE_DEFAULT, |at| at.value) })
}
