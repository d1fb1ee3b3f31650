//! What several test binaries need: a clock that stands still, chance from a seed, verified events, a ledger in a
//! directory of its own.
#![allow(dead_code, unreachable_pub, reason = "every test binary takes what it needs")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests are tests")]

use hookgate::clock::{Clock, Timestamp};
use hookgate::delivery::Name;
use hookgate::entropy::Entropy;
use hookgate::secret::Secret;
use hookgate::verify::{Event, Grant, Publication, Verified};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A clock that moves when it is told to.
pub struct ManualClock {
    wall: AtomicI64,
    /// Milliseconds that have passed, whatever the wall clock was set to.
    passed: AtomicU64,
    since: Instant,
    looks: AtomicU64,
}

impl ManualClock {
    pub fn at(now: Timestamp) -> Self {
        ManualClock {
            wall: AtomicI64::new(now.as_millis()),
            passed: AtomicU64::new(0),
            since: Instant::now(),
            looks: AtomicU64::new(0),
        }
    }

    /// Time passes.
    pub fn advance(&self, span: Duration) -> Timestamp {
        self.passed.fetch_add(u64::try_from(span.as_millis()).unwrap(), Ordering::SeqCst);
        self.set_by(i64::try_from(span.as_millis()).unwrap())
    }

    /// Somebody sets the wall clock, by so many milliseconds.
    pub fn set_by(&self, millis: i64) -> Timestamp {
        Timestamp::from_millis(self.wall.fetch_add(millis, Ordering::SeqCst) + millis)
    }

    /// How often somebody asked what time it is.
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::SeqCst)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.looks.fetch_add(1, Ordering::SeqCst);
        Timestamp::from_millis(self.wall.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Instant {
        self.since + Duration::from_millis(self.passed.load(Ordering::SeqCst))
    }
}

/// The same chance for the same seed (SplitMix64). Not for secrets.
pub struct SeededEntropy(AtomicU64);

impl SeededEntropy {
    pub fn new(seed: u64) -> Self {
        SeededEntropy(AtomicU64::new(seed))
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::SeqCst).wrapping_add(0x9e37_79b9_7f4a_7c15);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^= z >> 31;
            chunk.copy_from_slice(&z.to_le_bytes()[..chunk.len()]);
        }
    }
}

pub fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// A publication with nothing special about it.
pub fn publication(event_type: &str, key: Option<&str>, body: impl Into<Vec<u8>>) -> Publication {
    Publication {
        event_type: event_type.to_owned(),
        content_type: "application/json".to_owned(),
        body: body.into().into(),
        key: key.map(str::to_owned),
        deliver_at: None,
        expires_at: None,
        deadline: None,
        relation: None,
    }
}

/// A verified event of `tenant`, vouched for by a token as the gateway's would be.
pub fn verified(tenant: &str, publication: Publication, window: Duration, now: Timestamp) -> Verified<Event> {
    let token = Secret::new("a token");
    Grant::by_token(&token, b"a token", &name(tenant)).unwrap().event(publication, window, now)
}
