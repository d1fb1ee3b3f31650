//! hookgate: a webhook gateway. The rooms and the walls between them are described in `ARCHITECTURE.md`.

pub mod cli;
pub mod clock;
pub mod config;
pub mod delivery;
pub mod egress;
pub mod entropy;
pub mod plugin;
pub mod secret;
pub mod verify;
