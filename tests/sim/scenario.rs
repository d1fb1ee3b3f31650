//! What a seed lays down before anything happens: tenants, endpoints, their terms and tempers, and how much goes wrong.

use crate::dice::Dice;
use crate::support::name;
use hookgate::delivery::{Backoff, HealthPolicy, Jitter, Name, OnAmbiguous, OnPluginFault, RetryPolicy, Terms};
use hookgate::plugin::Exports;
use std::time::Duration;

pub struct Scenario {
    /// Everything that the scenario waits for is of this order, so that a day of retries costs as much as a minute.
    pub unit: Duration,
    pub poll_every: Duration,
    pub endpoints: Vec<EndpointPlan>,
    pub tenants: usize,
    pub per_tenant: u32,
    pub total: u32,
    /// What people and providers do, in steps.
    pub steps: usize,
    pub ledger: LedgerFaults,
    /// Of a hundred steps, so many set the clock, and so many end the process.
    pub clock_steps: u64,
    pub crashes: u64,
    pub lives: usize,
}

/// In a hundred verbs.
#[derive(Clone, Copy, Default)]
pub struct LedgerFaults {
    /// Refused before anything is written.
    pub refused: u64,
    /// Written, and said not to be.
    pub unknown: u64,
    pub slow: u64,
}

pub struct EndpointPlan {
    pub tenant: usize,
    pub name: Name,
    pub concurrency: u32,
    pub timeout: Duration,
    pub terms: Terms,
    pub temper: Temper,
    pub plugin: Option<Exports>,
}

/// The margin that the assembly gives too.
pub const LEASE_MARGIN: Duration = Duration::from_secs(30);

impl EndpointPlan {
    pub fn lease_for(&self) -> Duration {
        self.timeout + LEASE_MARGIN
    }
}

/// What a receiver does, in parts of a hundred; the rest is a 2xx.
#[derive(Clone, Copy, Debug)]
pub struct Temper {
    /// 5xx, 408, 425.
    pub errs: u64,
    /// 429 and 503, mostly with `Retry-After`.
    pub throttles: u64,
    /// 4xx, redirects.
    pub refuses: u64,
    pub gone: u64,
    /// Nothing reaches it.
    pub unreachable: u64,
    /// The connection ends before or after it acted.
    pub resets: u64,
    /// It acts, and never answers.
    pub stalls: u64,
    /// It answers after the lease has run out.
    pub outlives: u64,
    pub blocked: u64,
}

const KIND: Temper = Temper {
    errs: 4,
    throttles: 2,
    refuses: 2,
    gone: 0,
    unreachable: 2,
    resets: 2,
    stalls: 1,
    outlives: 0,
    blocked: 0,
};

const TEMPERS: [Temper; 5] = [
    KIND,
    Temper { errs: 25, throttles: 8, refuses: 6, unreachable: 10, resets: 12, stalls: 10, ..KIND },
    Temper { throttles: 45, ..KIND },
    Temper {
        errs: 20,
        refuses: 10,
        gone: 8,
        unreachable: 15,
        resets: 15,
        stalls: 10,
        outlives: 4,
        blocked: 2,
        throttles: 6,
    },
    Temper { unreachable: 50, stalls: 45, ..KIND },
];

impl Scenario {
    pub fn of(seed: u64) -> Self {
        let mut dice = Dice::of(&[seed, 1]);
        let unit = Duration::from_secs(*dice.pick(&[1, 1, 20, 600]));
        let tenants = dice.between(1, 2);
        let mut endpoints = Vec::new();
        for tenant in 0..tenants {
            for number in 0..dice.between(1, 3) {
                let plan = endpoint(&mut dice, unit, usize::try_from(tenant).unwrap(), &format!("endpoint-{number}"));
                endpoints.push(plan);
            }
        }
        let small = |dice: &mut Dice| u32::try_from(dice.between(1, 6)).unwrap();
        let calm = dice.percent(30);
        let faults = LedgerFaults {
            refused: *dice.pick(&[0, 2, 8]),
            unknown: *dice.pick(&[0, 2, 6]),
            slow: *dice.pick(&[0, 10, 40]),
        };
        Scenario {
            unit,
            poll_every: unit * 6,
            per_tenant: small(&mut dice) + 1,
            total: small(&mut dice) + 2,
            tenants: endpoints.last().map_or(0, |e| e.tenant + 1),
            endpoints,
            steps: usize::try_from(dice.between(8, 24)).unwrap(),
            ledger: if calm { LedgerFaults::default() } else { faults },
            clock_steps: *dice.pick(&[0, 0, 4, 10]),
            crashes: *dice.pick(&[0, 0, 3, 8]),
            lives: 3,
        }
    }

    pub fn of_tenant(&self, tenant: usize) -> impl Iterator<Item = usize> {
        (0..self.endpoints.len()).filter(move |at| self.endpoints[*at].tenant == tenant)
    }
}

fn endpoint(dice: &mut Dice, unit: Duration, tenant: usize, called: &str) -> EndpointPlan {
    let times = |dice: &mut Dice, most: u64| unit * u32::try_from(dice.between(0, most)).unwrap();
    let backoff = if dice.percent(70) {
        let rungs = dice.between(1, 4);
        Backoff::Ladder((0..rungs).map(|rung| times(dice, 3 + 3 * rung)).collect())
    } else {
        Backoff::Exponential { base: unit, factor: *dice.pick(&[1.0, 1.5, 3.0]), cap: unit * 12 }
    };
    let exports =
        [(true, true), (true, false), (false, true)].map(|(transform, classify)| Exports { transform, classify });
    EndpointPlan {
        tenant,
        name: name(called),
        concurrency: u32::try_from(dice.between(1, 4)).unwrap(),
        timeout: Duration::from_secs(*dice.pick(&[2, 10, 30])),
        terms: Terms {
            retry: RetryPolicy {
                max_attempts: u32::try_from(dice.between(1, 6)).unwrap(),
                backoff,
                jitter: *dice.pick(&[Jitter::None, Jitter::Equal, Jitter::Full]),
                max_age: dice.percent(25).then(|| unit * u32::try_from(dice.between(5, 60)).unwrap()),
            },
            health: HealthPolicy { breaker: None, disable_after: None },
            on_ambiguous: if dice.percent(25) { OnAmbiguous::Hold } else { OnAmbiguous::Retry },
            on_plugin_fault: *dice.pick(&[OnPluginFault::Default, OnPluginFault::Retry, OnPluginFault::Dead]),
        },
        temper: *dice.pick(&TEMPERS),
        plugin: dice.percent(35).then(|| *dice.pick(&exports)),
    }
}
