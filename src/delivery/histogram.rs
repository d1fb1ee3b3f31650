//! Spans of time by length, in a fixed number of buckets on a logarithmic scale. A quantile read from them is off by
//! 3.2 % at most, whatever was recorded and in whatever order it was added up.

use std::time::Duration;

/// Buckets to a doubling: each is at most a sixteenth of its beginning wide, and is told by its middle.
const PER_DOUBLING: u64 = 16;
const DOUBLING_BITS: u32 = PER_DOUBLING.trailing_zeros();
/// Two years in milliseconds: what is longer counts as this long.
const MILLIS_MAX: u64 = (1 << 36) - 1;

/// One of the buckets. The number is what the ledger writes: it never changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LatencyBucket(u16);

impl LatencyBucket {
    pub const COUNT: u16 = 528;

    pub fn of(span: Duration) -> Self {
        let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX).min(MILLIS_MAX);
        let number = match millis.checked_ilog2().and_then(|log| log.checked_sub(DOUBLING_BITS)) {
            // As the first of these begin, they go on: one a millisecond.
            None => millis,
            Some(doubling) => u64::from(doubling) * PER_DOUBLING + (millis >> doubling),
        };
        LatencyBucket(u16::try_from(number).unwrap_or(Self::COUNT - 1))
    }

    /// `None`: there is no such bucket.
    pub fn numbered(number: u16) -> Option<Self> {
        (number < Self::COUNT).then_some(LatencyBucket(number))
    }

    pub fn number(self) -> u16 {
        self.0
    }

    /// The middle of what it holds.
    pub fn middle(self) -> Duration {
        let number = u64::from(self.0);
        let millis = match (number / PER_DOUBLING).checked_sub(1) {
            None => number,
            Some(doubling) => {
                let width = 1 << doubling;
                (number % PER_DOUBLING + PER_DOUBLING) * width + width / 2
            }
        };
        Duration::from_millis(millis)
    }
}

/// The value that `thousandths` of all do not exceed (nearest rank), of buckets in rising order with their counts;
/// `None`: nothing was counted.
pub fn quantile(counted: impl Iterator<Item = (LatencyBucket, u64)> + Clone, thousandths: u64) -> Option<Duration> {
    let all: u64 = counted.clone().map(|(_, count)| count).sum();
    let rank = all.saturating_mul(thousandths).div_ceil(1_000).max(1);
    let mut seen = 0u64;
    for (bucket, count) in counted {
        seen = seen.saturating_add(count);
        if seen >= rank {
            return Some(bucket.middle());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn counted(spans: &[u64]) -> BTreeMap<LatencyBucket, u64> {
        let mut all = BTreeMap::new();
        for millis in spans {
            *all.entry(LatencyBucket::of(Duration::from_millis(*millis))).or_default() += 1;
        }
        all
    }

    fn of(counts: &BTreeMap<LatencyBucket, u64>, thousandths: u64) -> Option<Duration> {
        quantile(counts.iter().map(|(bucket, count)| (*bucket, *count)), thousandths)
    }

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        let mut last = LatencyBucket::of(Duration::ZERO);
        assert_eq!(last.number(), 0);
        for millis in 1..100_000 {
            let next = LatencyBucket::of(Duration::from_millis(millis));
            assert!(next == last || next.number() == last.number() + 1, "{millis}");
            last = next;
        }
        assert_eq!(LatencyBucket::of(Duration::MAX).number(), LatencyBucket::COUNT - 1);
        assert_eq!(LatencyBucket::numbered(LatencyBucket::COUNT), None);
        for number in 0..LatencyBucket::COUNT {
            let bucket = LatencyBucket::numbered(number).unwrap();
            assert_eq!(LatencyBucket::of(bucket.middle()), bucket);
        }
    }

    #[test]
    fn nothing_has_no_quantile_and_one_is_all_of_them() {
        assert_eq!(of(&BTreeMap::new(), 500), None);
        let one = counted(&[7]);
        for thousandths in [0, 500, 990, 1_000] {
            assert_eq!(of(&one, thousandths), Some(Duration::from_millis(7)));
        }
    }

    proptest! {
        #[test]
        fn a_quantile_is_off_by_a_thirty_second_at_most(
            mut spans in prop::collection::vec(prop_oneof![0u64..50, 0u64..60_000, 0u64..700_000_000], 1..300),
            thousandths in 1u64..=1_000,
        ) {
            let told = of(&counted(&spans), thousandths).unwrap().as_millis();
            spans.sort_unstable();
            let rank = usize::try_from(thousandths).unwrap() * spans.len();
            let exact = u128::from(spans[rank.div_ceil(1_000).max(1) - 1]);
            prop_assert!(told.abs_diff(exact) * 32 <= exact, "{told} for {exact}");
        }
    }
}
