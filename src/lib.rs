//! hookgate: a webhook gateway. The rooms and the walls between them are described in `ARCHITECTURE.md`.

pub mod admin;
pub mod app;
pub mod cli;
pub mod clock;
pub mod config;
pub mod console;
pub mod crash;
pub mod delivery;
pub mod dispatch;
pub mod duration;
pub mod egress;
pub mod entropy;
pub mod http;
pub mod ingress;
pub mod ledger;
pub mod operations;
pub mod plugin;
pub mod secret;
pub mod telemetry;
pub mod verify;
