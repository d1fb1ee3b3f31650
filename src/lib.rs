//! hookgate: a webhook gateway. The rooms and the walls between them are described in `ARCHITECTURE.md`.

pub mod clock;
pub mod crash;
pub mod delivery;
pub mod duration;
pub mod egress;
pub mod entropy;
pub mod ledger;
pub mod plugin;
pub mod secret;
pub mod verify;
