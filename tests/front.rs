//! The two listeners over real sockets, before a ledger in memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(unreachable_pub, reason = "shared between modules of one binary")]

#[path = "front/admin.rs"]
mod admin;
#[path = "front/admin_refusals.rs"]
mod admin_refusals;
#[path = "front/again.rs"]
mod again;
#[path = "front/alerts.rs"]
mod alerts;
#[path = "front/console.rs"]
mod console;
#[path = "front/desk.rs"]
mod desk;
#[path = "front/edge.rs"]
mod edge;
#[path = "support/fake_ledger.rs"]
mod fake_ledger;
#[path = "front/handshakes.rs"]
mod handshakes;
#[path = "front/idempotency.rs"]
mod idempotency;
#[path = "front/ingress.rs"]
mod ingress;
#[path = "front/office.rs"]
mod office;
#[path = "front/peer.rs"]
mod peer;
#[path = "front/plugins.rs"]
mod plugins;
#[path = "front/pull.rs"]
mod pull;
#[path = "front/stats.rs"]
mod stats;
