//! The engine's invariants over thousands of small worlds, each made from one seed.
//!
//! What runs is the real thing: `decide`, the dispatcher with its rounds and rescues, the ledger on SQLite. What is made
//! up is around it: a clock that only moves when everybody waits, a network whose receivers are cruel, plugins that say
//! anything, a ledger whose answers get lost, processes that end between any two effects, people who pause, redrive and
//! cancel. Then all faults stop, and everything must come to rest. `sim/oracle.rs` says what must hold, `sim/plant.rs`
//! which bugs it must find, `sim/README.md` which invariant is looked at where, and what is not.
//!
//! `cargo test --test sim` runs [`SEEDS`] seeds. `HOOKGATE_SIM_SEEDS=100000` runs as many, from `HOOKGATE_SIM_FROM` on;
//! `HOOKGATE_SIM_SEED=7` runs that one alone and tells what happened in it.

#![allow(unreachable_pub, reason = "one binary of several files")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a seed that failed is told, and the one that was asked for")]

#[path = "sim/audit.rs"]
mod audit;
#[path = "support/chance.rs"]
mod chance;
#[path = "sim/dice.rs"]
mod dice;
#[path = "sim/ledger.rs"]
mod ledger;
#[path = "sim/oracle.rs"]
mod oracle;
#[path = "sim/plant.rs"]
mod plant;
#[path = "sim/receiver.rs"]
mod receiver;
#[path = "sim/rules.rs"]
mod rules;
#[path = "sim/scenario.rs"]
mod scenario;
mod support;
#[path = "sim/time.rs"]
mod time;
#[path = "sim/world.rs"]
mod world;

use plant::Plant;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// As many as CI has a minute for.
const SEEDS: u64 = 2_000;

/// Seeds that once failed, and what they found.
const REGRESSIONS: &[(u64, &str)] = &[(
    1902,
    "an acceptance whose time was read before the clock was set back, written after the ledger was put right",
)];

/// What must have happened in so many seeds, or they prove little.
const MUST_HAPPEN: &[&str] = &[
    "2xx",
    "410",
    "blocked",
    "born leased",
    "cancelled",
    "claimed",
    "clock set",
    "crash",
    "cut",
    "dead: ambiguous",
    "dead: crash_loop",
    "dead: plugin_fault",
    "disabled by an answer",
    "duplicate",
    "expired",
    "foreign look",
    "interrupted",
    "key reused",
    "lease lost",
    "overdue",
    "paused by an answer",
    "redrive repeated",
    "redriven",
    "released",
    "rescued",
    "reset",
    "resolved",
    "retry-after",
    "skipped",
    "stalled",
    "stop",
    "transformed",
    "unknown commit",
    "unreachable before a byte",
];

/// Lines of the story that a failure tells.
const TOLD: usize = 60;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var_os(name)?;
    Some(text.to_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{name} is a number")))
}

/// Plays a seed again, and tells it.
fn story(seed: u64, lines: usize) -> String {
    let outcome = world::run(seed, None, true);
    let from = outcome.trace.len().saturating_sub(lines);
    outcome.trace[from..].join("\n")
}

fn judge(seed: u64) -> BTreeMap<&'static str, u64> {
    let outcome = world::run(seed, None, false);
    if let Some(violation) = outcome.violation {
        panic!(
            "seed {seed} breaks {}: {}\n{}\nagain: HOOKGATE_SIM_SEED={seed} cargo test --test sim seeds",
            violation.invariant,
            violation.what,
            story(seed, TOLD)
        );
    }
    outcome.seen
}

#[test]
fn seeds_hold() {
    if let Some(seed) = setting("HOOKGATE_SIM_SEED") {
        eprintln!("{}", story(seed, usize::MAX));
        judge(seed);
        return;
    }
    let (from, count) = (setting("HOOKGATE_SIM_FROM").unwrap_or(0), setting("HOOKGATE_SIM_SEEDS").unwrap_or(SEEDS));
    let next = AtomicU64::new(from);
    let seen: Mutex<BTreeMap<&str, u64>> = Mutex::default();
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + count {
                        return;
                    }
                    for (what, times) in judge(seed) {
                        *seen.lock().unwrap().entry(what).or_default() += times;
                    }
                }
            });
        }
    });
    let seen = seen.into_inner().unwrap();
    eprintln!("{count} seeds from {from}: {seen:?}");
    if count >= SEEDS {
        let missing: Vec<_> = MUST_HAPPEN.iter().filter(|what| !seen.contains_key(*what)).collect();
        assert!(missing.is_empty(), "never happened: {missing:?}");
    }
}

#[test]
fn what_once_failed_holds() {
    for (seed, _) in REGRESSIONS {
        judge(*seed);
    }
}

#[test]
fn the_same_seed_is_the_same_story() {
    for seed in 0..8 {
        let (one, other) = (world::run(seed, None, true).trace, world::run(seed, None, true).trace);
        let differs = one.iter().zip(&other).find(|(one, other)| one != other);
        assert!(one.len() > 20 && differs.is_none() && one.len() == other.len(), "seed {seed}: {differs:?}");
    }
}

/// A planted bug is found by the invariant that it breaks, in one of the first seeds.
fn is_found(plant: Plant) {
    const WITHIN: u64 = 150;
    let (_, invariant) = Plant::ALL.into_iter().find(|(known, _)| *known == plant).unwrap();
    let mut others = BTreeMap::<_, u64>::new();
    for seed in 0..WITHIN {
        match world::run(seed, Some(plant), false).violation {
            Some(violation) if violation.invariant == invariant => {
                eprintln!("{plant:?}: {invariant} in seed {seed}: {}", violation.what);
                return;
            }
            Some(violation) => *others.entry(violation.invariant).or_default() += 1,
            None => {}
        }
    }
    panic!("{plant:?} was not found by {invariant} within {WITHIN} seeds, only {others:?}");
}

macro_rules! planted {
    ($($test:ident: $plant:ident;)*) => {
        mod planted {
            use super::{Plant, is_found};
            $(#[test]
            fn $test() {
                is_found(Plant::$plant);
            })*
        }

        #[test]
        fn every_planted_bug_has_its_test() {
            let tested = [$(Plant::$plant),*];
            assert!(Plant::ALL.iter().all(|(plant, _)| tested.contains(plant)));
        }
    };
}

planted! {
    an_acknowledgement_without_a_commit: AckWithoutCommit;
    a_forgotten_dedup_key: DedupForgotten;
    a_delivery_that_a_fan_out_drops: FanOutDropped;
    a_delivered_one_tried_again: DeliveredAgain;
    a_client_that_resends: ClientResends;
    a_released_attempt_that_counts: ReleasedCounted;
    an_interrupted_attempt_that_does_not: InterruptedUncounted;
    a_gap_in_the_numbers: NumberGap;
    a_changed_body: BodyChanged;
    a_changed_webhook_id: IdChanged;
    a_stale_timestamp: StaleStamp;
    a_delivery_claimed_twice: ClaimedTwice;
    an_outcome_stored_without_the_lease: LostLeaseStored;
    a_stolen_lease: LeaseStolen;
    a_redrive_repeated: RedriveTwice;
    a_gauge_that_drifts: GaugeDrifts;
    a_death_without_a_reason: DeadWithoutReason;
    a_retry_before_its_time: DueIgnored;
    a_forgotten_pause: PauseForgotten;
    a_disabled_endpoint_that_is_sent_to: DisableIgnored;
    a_cap_that_is_passed: CapIgnored;
    a_look_at_another_tenant: ForeignRead;
    a_send_that_no_commit_backs: SentUncommitted;
    a_forgotten_delivery: Forgotten;
}
