//! One suite against the ledger's traits, for every ledger there is.

#![allow(unreachable_pub, reason = "one binary of several files")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests are tests")]

mod support;

#[path = "ledger/adoptions.rs"]
mod adoptions;
#[path = "ledger/bench.rs"]
mod bench;
#[path = "ledger/births.rs"]
mod births;
#[path = "ledger/dedup.rs"]
mod dedup;
#[path = "ledger/durability.rs"]
mod durability;
#[path = "ledger/model.rs"]
mod model;
#[path = "ledger/operations.rs"]
mod operations;
#[path = "ledger/operations_bulk.rs"]
mod operations_bulk;
#[path = "ledger/past.rs"]
mod past;
#[path = "ledger/plugins.rs"]
mod plugins;
#[path = "ledger/queue.rs"]
mod queue;
#[path = "ledger/records.rs"]
mod records;
#[path = "ledger/rejections.rs"]
mod rejections;
#[path = "ledger/time.rs"]
mod time;
#[path = "ledger/trials.rs"]
mod trials;
#[path = "support/waiting.rs"]
mod waiting;
