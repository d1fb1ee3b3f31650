//! The process killed, at named points and at random, between a provider and a receiver that both keep journals.
//!
//! The named points exist only in a build with `HOOKGATE_CRASH_POINTS=1`; the loops need none. `HOOKGATE_KILLS` is the
//! number of kills, `HOOKGATE_SEED` the moments at which they come.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    unreachable_pub,
    reason = "a test fails by panicking, and says what it counted"
)]

#[cfg(crash_points)]
#[path = "support/guests.rs"]
mod guests;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "support/process.rs"]
mod process;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "support/receiver.rs"]
mod receiver;
#[path = "support/waiting.rs"]
mod waiting;

#[cfg(crash_points)]
#[path = "crash/canary.rs"]
mod canary;
#[path = "crash/damage.rs"]
mod damage;
#[path = "crash/journals.rs"]
mod journals;
#[path = "crash/kills.rs"]
mod kills;
#[path = "crash/points.rs"]
mod points;
#[path = "crash/provider.rs"]
mod provider;

use process::{Gateway, github_source};
use receiver::{Receiver, Reply, Seen};
use waiting::until;
