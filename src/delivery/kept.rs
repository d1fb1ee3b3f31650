//! What is kept of a body that was sent.

use bytes::Bytes;
use sha2::Digest as _;

/// A body, or what tells it from any other.
#[derive(Clone, Debug)]
pub enum KeptBody {
    Whole(Bytes),
    Measured(Measured),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measured {
    pub bytes: u64,
    pub sha256: [u8; 32],
}

impl Measured {
    pub fn of(body: &[u8]) -> Self {
        let bytes = u64::try_from(body.len()).unwrap_or(u64::MAX);
        Measured { bytes, sha256: sha2::Sha256::digest(body).into() }
    }
}

impl KeptBody {
    /// Kept whole up to here. What is larger is made again from its event by the version that made it.
    pub const WHOLE_BYTES_MAX: usize = 256 << 10;

    pub fn of(body: &Bytes) -> Self {
        if body.len() > Self::WHOLE_BYTES_MAX {
            KeptBody::Measured(Measured::of(body))
        } else {
            KeptBody::Whole(body.clone())
        }
    }

    /// `None`: it was not kept whole.
    pub fn whole(&self) -> Option<&Bytes> {
        match self {
            KeptBody::Whole(body) => Some(body),
            KeptBody::Measured(_) => None,
        }
    }

    pub fn measured(&self) -> Measured {
        match self {
            KeptBody::Whole(body) => Measured::of(body),
            KeptBody::Measured(measured) => *measured,
        }
    }
}

/// Whether it is the same body, however each is kept.
impl PartialEq for KeptBody {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (KeptBody::Whole(one), KeptBody::Whole(other)) => one == other,
            (one, other) => one.measured() == other.measured(),
        }
    }
}

impl Eq for KeptBody {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_ones_are_known_by_their_digest() {
        let small = Bytes::from(vec![b'a'; KeptBody::WHOLE_BYTES_MAX]);
        assert_eq!(KeptBody::of(&small).whole(), Some(&small));
        let large = |last: u8| Bytes::from([vec![b'a'; KeptBody::WHOLE_BYTES_MAX], vec![last]].concat());
        let kept = KeptBody::of(&large(1));
        assert_eq!(kept.whole(), None);
        assert_eq!(kept.measured(), Measured::of(&large(1)));
        assert_eq!(kept, KeptBody::Whole(large(1)));
        assert_ne!(kept, KeptBody::of(&large(2)));
        assert_ne!(kept, KeptBody::of(&small));
    }
}
