//! The whole gateway over loopback: the real binary, real sockets, a real ledger.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "a test fails by panicking"
)]
#[path = "../support/guests.rs"]
mod guests;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "../support/process.rs"]
mod process;
#[path = "../support/receiver.rs"]
mod receiver;
#[path = "../support/waiting.rs"]
mod waiting;

mod adoption;
mod alerts;
mod dead_letters;
mod endpoints;
mod examples;
mod fairness;
mod health;
mod idempotency;
mod order;
mod past;
mod plugins;
mod pull;
mod redrive;
mod refusals;
mod replay;
mod retries;
mod scenario_billing_callbacks;
mod scenario_billing_outage;
mod scenario_lease_events;
mod scenario_lease_reach;
mod scenario_payment_alerts;
mod scenario_payment_canary;
mod scenario_payment_reconciliation;
mod scenario_reservation_reminders;
mod scenario_throttled_batch;
mod scenario_throttled_redrive;
mod settings;
mod shipping;
mod stats;
mod stop;
mod trials;
mod way;

use process::{Gateway, endpoint, github_source};
use receiver::{Receiver, Reply};
use waiting::until;
