//! When to try again.

use std::time::Duration;

/// No wait exceeds seven days.
pub const MAX_WAIT: Duration = Duration::from_secs(604_800);

/// How long a consumer may have a delivery of a pull endpoint.
pub const LEASE_MIN: Duration = Duration::from_secs(1);
pub const LEASE_MAX: Duration = Duration::from_secs(12 * 3600);

/// How a wait is spread. The random part is a fraction that is handed in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Jitter {
    None,
    /// Half fixed, half random.
    #[default]
    Equal,
    /// Anywhere between zero and the wait.
    Full,
}

impl Jitter {
    /// Spreads `wait` by `chance`, a uniform value over all of `u64`.
    pub fn spread(self, wait: Duration, chance: u64) -> Duration {
        let part = |whole: Duration| -> Duration {
            let nanos = whole.as_nanos() * u128::from(chance) / u128::from(u64::MAX);
            Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
        };
        match self {
            Jitter::None => wait,
            Jitter::Equal => wait / 2 + part(wait - wait / 2),
            Jitter::Full => part(wait),
        }
    }
}

/// The wait after the n-th attempt, before jitter.
#[derive(Clone, PartialEq, Debug)]
pub enum Backoff {
    /// One wait per attempt; the last one repeats.
    Ladder(Vec<Duration>),
    /// `base × factor^(n-1)`, at most `cap`.
    Exponential { base: Duration, factor: f64, cap: Duration },
}

impl Backoff {
    /// The wait after attempt `number` (1 for the first), at most [`MAX_WAIT`].
    pub fn wait_after(&self, number: u32) -> Duration {
        let step = number.saturating_sub(1);
        let wait = match self {
            Backoff::Ladder(waits) => {
                let i = usize::try_from(step).unwrap_or(usize::MAX).min(waits.len().saturating_sub(1));
                waits.get(i).copied().unwrap_or_default()
            }
            Backoff::Exponential { base, factor, cap } => {
                let grown = base.as_secs_f64() * factor.powi(i32::try_from(step).unwrap_or(i32::MAX));
                Duration::try_from_secs_f64(grown).unwrap_or(MAX_WAIT).min(*cap)
            }
        };
        wait.min(MAX_WAIT)
    }

    /// No wait is longer.
    pub fn longest(&self) -> Duration {
        match self {
            Backoff::Ladder(waits) => waits.iter().max().copied().unwrap_or_default().min(MAX_WAIT),
            Backoff::Exponential { base, factor, cap } => {
                let grows = *factor > 1.0;
                if grows { (*cap).min(MAX_WAIT) } else { (*base).min(*cap).min(MAX_WAIT) }
            }
        }
    }
}

/// How often, how long and how far apart.
#[derive(Clone, PartialEq, Debug)]
pub struct RetryPolicy {
    /// Counted attempts per generation.
    pub max_attempts: u32,
    pub backoff: Backoff,
    pub jitter: Jitter,
    /// From the acceptance of the event (or its redrive); past it no try is made.
    pub max_age: Option<Duration>,
}

impl Default for RetryPolicy {
    /// Nine attempts over 28 hours: 5s, 30s, 5m, 30m, 2h, 5h, 10h, 10h, with equal jitter.
    fn default() -> Self {
        let waits = [5, 30, 300, 1_800, 7_200, 18_000, 36_000, 36_000];
        RetryPolicy {
            max_attempts: 9,
            backoff: Backoff::Ladder(waits.into_iter().map(Duration::from_secs).collect()),
            jitter: Jitter::Equal,
            max_age: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ladder_repeats_its_last_step() {
        let b = Backoff::Ladder(vec![Duration::from_secs(30), Duration::from_secs(120)]);
        let waits: Vec<u64> = (1..=4).map(|n| b.wait_after(n).as_secs()).collect();
        assert_eq!(waits, [30, 120, 120, 120]);
    }

    #[test]
    fn exponential_grows_to_its_cap() {
        let b = Backoff::Exponential { base: Duration::from_secs(2), factor: 2.0, cap: Duration::from_secs(300) };
        let waits: Vec<u64> = (1..=9).map(|n| b.wait_after(n).as_secs()).collect();
        assert_eq!(waits, [2, 4, 8, 16, 32, 64, 128, 256, 300]);
        assert_eq!(b.wait_after(u32::MAX).as_secs(), 300);
    }

    #[test]
    fn jitter_at_its_ends() {
        let wait = Duration::from_secs(10);
        assert_eq!(Jitter::None.spread(wait, 7), wait);
        assert_eq!(Jitter::Equal.spread(wait, 0), wait / 2);
        assert_eq!(Jitter::Equal.spread(wait, u64::MAX), wait);
        assert_eq!(Jitter::Full.spread(wait, 0), Duration::ZERO);
        assert_eq!(Jitter::Full.spread(wait, u64::MAX), wait);
    }

    proptest! {
        #[test]
        fn jitter_stays_inside(millis in 0u64..604_800_000, chance: u64) {
            let wait = Duration::from_millis(millis);
            let equal = Jitter::Equal.spread(wait, chance);
            prop_assert!(wait / 2 <= equal && equal <= wait);
            prop_assert!(Jitter::Full.spread(wait, chance) <= wait);
        }

        #[test]
        fn no_wait_is_over_a_week(base in 0u64..10_000_000, factor in 0.1f64..50.0, n: u32) {
            let b = Backoff::Exponential { base: Duration::from_secs(base), factor, cap: Duration::MAX };
            prop_assert!(b.wait_after(n) <= b.longest() && b.longest() <= MAX_WAIT);
        }
    }

    /// 4,000 full-jittered waits spread over the ceiling: no hundredth of it holds more than three times its share.
    #[test]
    fn full_jitter_has_no_wave() {
        let mut buckets = [0u32; 100];
        let mut x = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..4_000 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let wait = Jitter::Full.spread(Duration::from_millis(30_000), x);
            buckets[(wait.as_millis() as usize * 100 / 30_001).min(99)] += 1;
        }
        assert!(buckets.iter().all(|b| *b < 120), "{buckets:?}");
    }
}
