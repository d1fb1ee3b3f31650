//! One suite against the ledger's traits, for every ledger there is.

#![allow(unreachable_pub, reason = "one binary of several files")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests are tests")]

mod support;

#[path = "ledger/adoptions.rs"]
mod adoptions;
#[path = "ledger/again.rs"]
mod again;
#[path = "ledger/alerts.rs"]
mod alerts;
#[path = "ledger/answers.rs"]
mod answers;
#[path = "ledger/bench.rs"]
mod bench;
#[path = "ledger/births.rs"]
mod births;
#[path = "ledger/coalescing.rs"]
mod coalescing;
#[path = "ledger/dedup.rs"]
mod dedup;
#[path = "ledger/durability.rs"]
mod durability;
#[path = "ledger/health.rs"]
mod health;
#[path = "ledger/model.rs"]
mod model;
#[path = "ledger/operations.rs"]
mod operations;
#[path = "ledger/operations_bulk.rs"]
mod operations_bulk;
#[path = "ledger/ordering.rs"]
mod ordering;
#[path = "ledger/past.rs"]
mod past;
#[path = "ledger/plugins.rs"]
mod plugins;
#[path = "ledger/pull.rs"]
mod pull;
#[path = "ledger/queue.rs"]
mod queue;
#[path = "ledger/records.rs"]
mod records;
#[path = "ledger/rejections.rs"]
mod rejections;
#[path = "ledger/scrub.rs"]
mod scrub;
#[path = "ledger/stats.rs"]
mod stats;
#[path = "ledger/sweeps.rs"]
mod sweeps;
#[path = "ledger/time.rs"]
mod time;
#[path = "ledger/trials.rs"]
mod trials;
#[path = "support/waiting.rs"]
mod waiting;
