//! The key by which a delivery waits its turn.

use crate::delivery::OnDead;
use sha2::{Digest as _, Sha256};

/// An ordering key as the ledger compares it, with what its dead letters do to those behind them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OrderingKey {
    /// The first 16 bytes of SHA-256 over the key.
    pub(super) digest: [u8; 16],
    pub(super) on_dead: OnDead,
}

impl OrderingKey {
    pub fn of(key: &str, on_dead: OnDead) -> Self {
        let mut digest = [0; 16];
        digest.copy_from_slice(&Sha256::digest(key.as_bytes())[..16]);
        OrderingKey { digest, on_dead }
    }
}
