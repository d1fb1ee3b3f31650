//! How endpoints fare: one signal after the other, each in the transaction that settles its attempt. The memory is
//! stepped at once and the rows are written at the end of the transaction, so that a batch writes each endpoint once;
//! where nothing changes, nothing is written.

use super::births::Needs;
use super::codec::{int, time_opt};
use super::fault::Fault;
use super::settle::apply_effect;
use super::writer::{EndpointMemory, Undo, Verb, Writer};
use crate::clock::Timestamp;
use crate::delivery::{
    BREAKER_OPEN, EndpointEffect, EndpointStatus, FAILING, Failing, Health, Pulse, Tripped, Turn, step,
};
use crate::ledger::{EndpointKey, Lease};
use rusqlite::{OptionalExtension as _, Row};
use std::num::NonZeroU32;
use std::time::Duration;

/// As in the columns of an endpoint.
pub(super) const COLUMNS: &str = "failures, failing_since, alerted_at, tripped_at, tripped_until, tripped_ms";

/// [`COLUMNS`], from `first` on.
pub(super) fn of_row(row: &Row<'_>, first: usize) -> rusqlite::Result<Health> {
    let failing = match (NonZeroU32::new(row.get(first)?), time_opt(row, first + 1)?) {
        (Some(failures), Some(since)) => Some(Failing { since, failures, alerted_at: time_opt(row, first + 2)? }),
        (_, _) => None,
    };
    let tripped = match (time_opt(row, first + 3)?, time_opt(row, first + 4)?) {
        (Some(at), Some(until)) => {
            let millis: Option<i64> = row.get(first + 5)?;
            let span = Duration::from_millis(super::codec::count(millis.unwrap_or(0)));
            Some(Tripped { at, until, span })
        }
        (_, _) => None,
    };
    Ok(Health { failing, tripped })
}

/// What is told of an endpoint once the transaction stands.
pub(super) struct Notice {
    tenant: String,
    endpoint: String,
    told: Told,
}

enum Told {
    Opened { until: Timestamp, failures: u32 },
    OpenedAgain { until: Timestamp },
    Closed,
    Disabled { since: Timestamp },
}

impl Notice {
    pub(super) fn tell(&self) {
        let Notice { tenant, endpoint, told } = self;
        match told {
            Told::Opened { until, failures } => {
                metrics::counter!("hookgate_breaker_openings_total").increment(1);
                let until = until.to_rfc3339();
                tracing::warn!(tenant, endpoint, until, failures, "the endpoint fails: its breaker has opened");
            }
            Told::OpenedAgain { until } => {
                metrics::counter!("hookgate_breaker_openings_total").increment(1);
                let until = until.to_rfc3339();
                tracing::info!(tenant, endpoint, until, "a probe failed: the breaker has opened again");
            }
            Told::Closed => tracing::info!(tenant, endpoint, "the endpoint works again: its breaker has closed"),
            Told::Disabled { since } => {
                let since = since.to_rfc3339();
                tracing::info!(tenant, endpoint, since, "nothing but failures: the endpoint was disabled");
            }
        }
    }
}

/// After the clock was set: what was remembered in its old time.
pub(super) struct Reanchor {
    pub now: Timestamp,
}

impl Verb for Reanchor {
    type Done = ();

    fn needs(&self) -> Needs {
        Needs::None
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<(), Fault> {
        let felt = |key: &EndpointKey, endpoint: &EndpointMemory| {
            let righted = endpoint.health.reanchored(self.now);
            (righted != endpoint.health).then_some((*key, righted))
        };
        let moved: Vec<(EndpointKey, Health)> =
            w.endpoints.iter().filter_map(|(key, endpoint)| felt(key, endpoint)).collect();
        for (key, health) in moved {
            w.set_health(key, health);
            let paused = w.endpoints.get(&key).map(|endpoint| endpoint.status.clone());
            if let (Some(EndpointStatus::Paused { until: Some(before), why }), Some(Tripped { until, .. })) =
                (paused, health.tripped)
                && why == BREAKER_OPEN.as_str()
                && until < before
            {
                w.set_status(key, EndpointStatus::Paused { until: Some(until), why })?;
                w.wake(key, until, self.now);
            }
        }
        Ok(())
    }
}

impl Writer<'_> {
    /// What an attempt's end says of its endpoint.
    pub(super) fn feel(&mut self, lease: &Lease, pulse: &Pulse, now: Timestamp) -> Result<(), Fault> {
        let key = lease.endpoint;
        let Some(before) = self.endpoints.get(&key).map(|endpoint| endpoint.health) else { return Ok(()) };
        let next = step(before, pulse, lease.started_at, now);
        if next.health == before {
            return Ok(());
        }
        self.set_health(key, next.health);
        match next.breaker {
            Some(Turn::Opened { until }) => {
                apply_effect(self, key, &EndpointEffect::PauseUntil { until, why: BREAKER_OPEN }, now)?;
                let failures = next.health.failing.map_or(0, |failing| failing.failures.get());
                let told = match before.tripped {
                    None => Told::Opened { until, failures },
                    Some(_) => Told::OpenedAgain { until },
                };
                self.note(key, told)?;
            }
            Some(Turn::Closed) => {
                self.end_pause(key, now)?;
                self.note(key, Told::Closed)?;
            }
            None => {}
        }
        let status = self.endpoints.get(&key).map(|endpoint| &endpoint.status);
        if next.disables && !matches!(status, Some(EndpointStatus::Disabled { .. })) {
            apply_effect(self, key, &EndpointEffect::Disable { why: FAILING }, now)?;
            let since = next.health.failing.map_or(now, |failing| failing.since);
            self.note(key, Told::Disabled { since })?;
        }
        Ok(())
    }

    pub(super) fn set_health(&mut self, key: EndpointKey, health: Health) {
        let Some(endpoint) = self.endpoints.get_mut(&key) else { return };
        self.undo.push(Undo::Health(key, endpoint.health));
        endpoint.health = health;
        if !self.effects.health.contains(&key) {
            self.effects.health.push(key);
        }
    }

    /// The rows of those that changed.
    pub(super) fn keep_health(&mut self) -> Result<(), Fault> {
        for key in &self.effects.health {
            let Some(Health { failing, tripped }) = self.endpoints.get(key).map(|endpoint| endpoint.health) else {
                continue;
            };
            self.sql.set_health.execute((
                failing.map_or(0, |failing| failing.failures.get()),
                failing.map(|failing| failing.since.as_millis()),
                failing.and_then(|failing| failing.alerted_at).map(Timestamp::as_millis),
                tripped.map(|tripped| tripped.at.as_millis()),
                tripped.map(|tripped| tripped.until.as_millis()),
                tripped.map(|tripped| int(u64::try_from(tripped.span.as_millis()).unwrap_or(u64::MAX))),
                key.0,
            ))?;
        }
        Ok(())
    }

    /// The breaker's pause is over, and so is any that has run out. Other pauses stand.
    fn end_pause(&mut self, key: EndpointKey, now: Timestamp) -> Result<(), Fault> {
        let over = match self.endpoints.get(&key).map(|endpoint| &endpoint.status) {
            Some(status @ EndpointStatus::Paused { why, .. }) => why == BREAKER_OPEN.as_str() || status.is_open(now),
            Some(EndpointStatus::Enabled | EndpointStatus::Disabled { .. }) | None => false,
        };
        if over {
            self.set_status(key, EndpointStatus::Enabled)?;
            self.wake(key, now, now);
        }
        Ok(())
    }

    fn note(&mut self, key: EndpointKey, told: Told) -> Result<(), Fault> {
        let names = self
            .connection
            .prepare_cached("SELECT t.name, e.name FROM endpoint e JOIN tenant t ON t.id = e.tenant WHERE e.id = ?")?
            .query_row([key.0], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        self.effects.notices.extend(names.map(|(tenant, endpoint)| Notice { tenant, endpoint, told }));
        Ok(())
    }
}
