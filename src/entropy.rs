//! Chance, handed in. Random bytes are drawn when an operation is made, never when it is applied.

use rand::RngExt as _;

/// The one source of chance. Built in `app`, handed to whoever needs it.
pub trait Entropy: Send + Sync + 'static {
    /// Fills `bytes` from a cryptographically secure generator.
    fn fill(&self, bytes: &mut [u8]);

    fn next_u64(&self) -> u64 {
        let mut b = [0; 8];
        self.fill(&mut b);
        u64::from_le_bytes(b)
    }
}

/// The thread's ChaCha generator, seeded and reseeded by the operating system.
#[derive(Clone, Copy, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    #[expect(clippy::disallowed_methods, reason = "the one place that draws randomness")]
    fn fill(&self, bytes: &mut [u8]) {
        rand::rng().fill(bytes);
    }
}
