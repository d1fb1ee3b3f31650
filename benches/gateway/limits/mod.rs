//! What this machine allows: each part of the gateway's way, done as barely as can be. None of them is a design to ship.

pub(crate) mod bare;
pub(crate) mod disk;
pub(crate) mod outbound;
pub(crate) mod prototype;
mod writer;
