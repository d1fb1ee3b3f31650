//! The client against receivers that behave as badly as they can. Loopback only.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

#[path = "egress/addresses.rs"]
mod addresses;
#[path = "egress/exchange.rs"]
mod exchange;
#[path = "egress/keys.rs"]
mod keys;
#[path = "egress/reuse.rs"]
mod reuse;
#[path = "egress/server.rs"]
mod server;
#[path = "egress/tls.rs"]
mod tls;
