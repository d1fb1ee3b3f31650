//! How many sends a second: a bucket that holds a burst and fills by one in every period. A permit that nothing was
//! sent with is put back. Time is handed in, as time since a moment of the caller's own.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The part of a period by which whoever comes late for a permit is taken to have come in time: timers and rounds are
/// late by a little, and with a burst of one every lateness would be lost for good.
const LATENESS_PART: u64 = 20;

#[derive(Debug)]
pub(super) struct Pace {
    period: u64,
    burst: NonZeroU32,
    /// When the bucket is full again, in nanoseconds.
    full_at: AtomicU64,
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl Pace {
    /// With a full bucket.
    pub(super) fn full(period: Duration, burst: NonZeroU32) -> Self {
        Pace { period: nanos(period), burst, full_at: AtomicU64::new(0) }
    }

    /// With an empty one: the burst may have been had before.
    pub(super) fn empty(period: Duration, burst: NonZeroU32, now: Duration) -> Self {
        let pace = Pace::full(period, burst);
        pace.full_at
            .store(nanos(now).saturating_add(pace.period.saturating_mul(burst.get().into())), Ordering::Relaxed);
        pace
    }

    pub(super) fn rate(&self) -> (Duration, NonZeroU32) {
        (Duration::from_nanos(self.period), self.burst)
    }

    /// A permit, or how long until there is one.
    pub(super) fn take(&self, now: Duration) -> Result<(), Duration> {
        let now = nanos(now);
        let held = self.period.saturating_mul(u64::from(self.burst.get()) - 1);
        let late = now.saturating_sub(self.period / LATENESS_PART);
        let next =
            |full_at: u64| (full_at <= now.saturating_add(held)).then(|| full_at.max(late).saturating_add(self.period));
        match self.full_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) {
            Ok(_) => Ok(()),
            Err(full_at) => Err(Duration::from_nanos(full_at - now.saturating_add(held))),
        }
    }

    pub(super) fn put_back(&self) {
        let less = |full_at: u64| Some(full_at.saturating_sub(self.period));
        // It always gives a value.
        let _ = self.full_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn millis(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn burst(n: u32) -> NonZeroU32 {
        NonZeroU32::new(n).unwrap()
    }

    #[test]
    fn a_burst_then_one_in_every_period() {
        let pace = Pace::full(millis(100), burst(3));
        let at = millis(5_000);
        assert_eq!([pace.take(at), pace.take(at), pace.take(at)], [Ok(()); 3]);
        // The bucket began to fill when it was first drawn from, taken to be a little earlier.
        assert_eq!(pace.take(at), Err(millis(95)));
        assert_eq!(pace.take(at + millis(95)), Ok(()));
        assert_eq!(pace.take(at + millis(95)), Err(millis(100)));
        pace.put_back();
        assert_eq!(pace.take(at + millis(95)), Ok(()));
    }

    #[test]
    fn an_empty_one_gives_nothing_at_once() {
        let pace = Pace::empty(millis(100), burst(5), millis(1_000));
        assert_eq!(pace.take(millis(1_000)), Err(millis(100)));
        assert_eq!(pace.take(millis(1_100)), Ok(()));
        assert_eq!(pace.take(millis(1_100)), Err(millis(100)));
    }

    #[test]
    fn a_little_late_each_time_loses_nothing() {
        let pace = Pace::full(millis(100), burst(1));
        let (mut now, mut taken) = (millis(1_000), 0);
        while now < millis(11_000) {
            match pace.take(now) {
                Ok(()) => taken += 1,
                Err(wait) => now += wait + millis(4),
            }
        }
        assert!((99..=101).contains(&taken), "{taken}");
    }

    proptest! {
        /// In no window more than the burst, what comes in meanwhile, and the lateness of one.
        #[test]
        fn never_more_than_its_rate(
            period in 1u64..200, size in 1u32..20, waits in prop::collection::vec(0u64..300, 1..200),
        ) {
            let pace = Pace::full(millis(period), burst(size));
            let (mut now, mut taken) = (millis(0), Vec::new());
            for wait in waits {
                now += millis(wait);
                while pace.take(now).is_ok() {
                    taken.push(now);
                }
            }
            for (i, first) in taken.iter().enumerate() {
                for (j, last) in taken.iter().enumerate().skip(i) {
                    let window = (*last - *first).as_secs_f64() / millis(period).as_secs_f64();
                    prop_assert!((j - i + 1) as f64 <= f64::from(size) + window + 0.051, "{i} to {j}");
                }
            }
        }

        /// Whoever comes when told never waits in vain.
        #[test]
        fn who_comes_when_told_is_served(period in 1u64..200, size in 1u32..20, times in 1usize..100) {
            let pace = Pace::full(millis(period), burst(size));
            let mut now = millis(7);
            for _ in 0..times {
                if let Err(wait) = pace.take(now) {
                    now += wait;
                    prop_assert_eq!(pace.take(now), Ok(()));
                }
            }
        }
    }
}
