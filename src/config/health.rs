//! `breaker` and `disable_after` of an endpoint.

use super::section::{Section, Switch, Walk};
use crate::delivery::{BreakerPolicy, HealthPolicy};
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::time::Duration;

const FAILURES_MAX: u32 = 10_000;
/// A pause of the breaker.
const OPEN: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(24 * 3_600);
const DISABLE_AFTER: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(365 * 24 * 3_600);
/// Below it, an outage over lunch disables an endpoint.
const DISABLE_AFTER_SENSIBLE: Duration = Duration::from_secs(3_600);

pub(super) fn health(walk: &mut Walk<'_>, s: &mut Section<'_>) -> HealthPolicy {
    let default = HealthPolicy::default();
    let breaker = match s.switch(walk, "breaker") {
        None => default.breaker,
        Some(Switch::Is(on)) => on.then(BreakerPolicy::default),
        Some(Switch::Table(table)) => Some(breaker(walk, table)),
    };
    let disable_after = if s.is_off("disable_after") {
        s.boolean(walk, "disable_after").and(None)
    } else {
        let at = s.duration(walk, "disable_after", DISABLE_AFTER);
        if let Some(at) = at.as_ref().filter(|at| at.value < DISABLE_AFTER_SENSIBLE) {
            walk.warn(
                at,
                "an endpoint that is down for so short a time will be disabled until somebody enables it",
                "write days, e.g. \"5d\", or `false` for never",
            );
        }
        at.map_or(default.disable_after, |at| Some(at.value))
    };
    HealthPolicy { breaker, disable_after }
}

fn breaker(walk: &mut Walk<'_>, mut s: Section<'_>) -> BreakerPolicy {
    let default = BreakerPolicy::default();
    let failures = s.integer(walk, "failures", 1..=FAILURES_MAX);
    let open = s.duration(walk, "open", OPEN);
    let open_max = s.duration(walk, "open_max", OPEN);
    s.close(walk);
    if let (Some(open), Some(most)) = (&open, &open_max)
        && most.value < open.value
    {
        walk.reject(most, "`open_max` is shorter than `open`", "make it at least as long");
    }
    let open = open.map_or(default.open.min(open_max.as_ref().map_or(Duration::MAX, |at| at.value)), |at| at.value);
    BreakerPolicy {
        failures: failures.and_then(|at| NonZeroU32::new(at.value)).unwrap_or(default.failures),
        open,
        open_max: open_max.map_or(default.open_max.max(open), |at| at.value),
    }
}
