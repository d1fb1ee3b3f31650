//! The two listeners over real sockets, before a ledger in memory.

#[path = "front/edge.rs"]
mod edge;
#[path = "support/fake_ledger.rs"]
mod fake_ledger;
#[path = "front/ingress.rs"]
mod ingress;
#[path = "front/peer.rs"]
mod peer;
