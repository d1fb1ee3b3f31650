//! What a team asks for: how deliveries fared in a window, per endpoint, beside where they stand now. What happened is
//! counted by the minute in the commit in which it happened; where things stand is counted from the rows.

use super::{EndpointState, LedgerError, TenantKey};
use crate::clock::Timestamp;
use crate::delivery::{EndpointStatus, LatencyBucket, Name, quantile};
use async_trait::async_trait;
use smallvec::SmallVec;
use std::time::Duration;

/// The statistics of a tenant.
#[async_trait]
pub trait Stats: Send + Sync + 'static {
    /// All of one commit. `None`: an endpoint was named that there never was.
    async fn stats(&self, asked: &StatsQuery, now: Timestamp) -> Result<Option<TenantStats>, LedgerError>;
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatsQuery {
    pub tenant: TenantKey,
    /// Of this endpoint alone.
    pub endpoint: Option<Name>,
    pub window: StatsWindow,
}

#[derive(Clone, Debug, Default)]
pub struct TenantStats {
    /// By name, also those that are no longer declared.
    pub endpoints: Vec<EndpointStats>,
    /// By name, those without a name first: what was published. Empty when one endpoint is asked for.
    pub sources: Vec<SourceStats>,
}

#[derive(Clone, Debug)]
pub struct EndpointStats {
    pub state: EndpointState,
    pub oldest_dead_at: Option<Timestamp>,
    pub tally: Tally,
    /// One for each bucket of the window.
    pub buckets: Vec<Tally>,
    /// How long it was closed within the window, by status and reason, the longest first.
    pub closed: Vec<Closed>,
}

#[derive(Clone, Debug)]
pub struct SourceStats {
    /// `None`: published by API.
    pub source: Option<Name>,
    pub tally: Tally,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Closed {
    pub disabled: bool,
    pub why: String,
    pub time: Duration,
}

pub(super) const MINUTE: Duration = Duration::from_secs(60);
pub(super) const HOUR: Duration = Duration::from_secs(3_600);
/// After that long, minutes are added up to hours.
const MINUTES_KEPT: Duration = Duration::from_secs(48 * 3_600);
/// Closings that are remembered of an endpoint; the oldest go first.
pub const CLOSINGS_MAX: u32 = 10_000;

/// From `since` on and before `until`: whole minutes, or whole hours where it reaches back to where only hours are
/// left; and whole buckets, if it has any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatsWindow {
    since: Timestamp,
    until: Timestamp,
    bucket: Option<Duration>,
}

/// Which rule a window breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadWindow {
    /// It ends before it begins.
    Empty,
    TooLong,
    /// A bucket that is not so many whole minutes, or hours where minutes are gone.
    Bucket {
        unit: Duration,
    },
    TooManyBuckets,
}

impl StatsWindow {
    pub const LONGEST: Duration = Duration::from_secs(400 * 86_400);
    pub const BUCKETS_MAX: u64 = 1_500;

    /// What was asked for, widened to what can be told.
    pub fn new(
        since: Timestamp,
        until: Timestamp,
        bucket: Option<Duration>,
        now: Timestamp,
    ) -> Result<Self, BadWindow> {
        if since >= until {
            return Err(BadWindow::Empty);
        }
        if until.since(since) > StatsWindow::LONGEST {
            return Err(BadWindow::TooLong);
        }
        let unit = |at: Timestamp| if at < minutes_from(now) { HOUR } else { MINUTE };
        let coarsest = unit(since);
        if bucket.is_some_and(|bucket| bucket.is_zero() || !whole(bucket, coarsest)) {
            return Err(BadWindow::Bucket { unit: coarsest });
        }
        let (first, last) = (bucket.unwrap_or(coarsest), bucket.unwrap_or(unit(until)));
        let window = StatsWindow { since: floor(since, first), until: ceil(until, last), bucket };
        if window.bucket_count() > StatsWindow::BUCKETS_MAX { Err(BadWindow::TooManyBuckets) } else { Ok(window) }
    }

    pub fn since(&self) -> Timestamp {
        self.since
    }

    pub fn until(&self) -> Timestamp {
        self.until
    }

    pub fn bucket(&self) -> Option<Duration> {
        self.bucket
    }

    /// 0 without buckets.
    pub fn bucket_count(&self) -> u64 {
        let span = self.until.since(self.since).as_millis();
        let count = self.bucket.map_or(0, |bucket| span / bucket.as_millis().max(1));
        u64::try_from(count).unwrap_or(u64::MAX)
    }

    /// Which bucket a time within the window is in; `None`: it has none.
    pub(super) fn bucket_of(&self, at: Timestamp) -> Option<usize> {
        let bucket = self.bucket?.as_millis().max(1);
        usize::try_from(at.since(self.since).as_millis() / bucket).ok()
    }
}

/// From here on minutes are kept.
pub(super) fn minutes_from(now: Timestamp) -> Timestamp {
    floor(now.minus(MINUTES_KEPT), HOUR)
}

fn whole(span: Duration, unit: Duration) -> bool {
    span.as_millis().is_multiple_of(unit.as_millis())
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX).max(1)
}

/// The beginning of the unit that a time is in.
pub(super) fn floor(at: Timestamp, unit: Duration) -> Timestamp {
    let unit = millis(unit);
    Timestamp::from_millis(at.as_millis().div_euclid(unit).saturating_mul(unit))
}

fn ceil(at: Timestamp, unit: Duration) -> Timestamp {
    let below = floor(at, unit);
    if below == at { at } else { below.plus(unit) }
}

/// One thing that is counted. The number is what the ledger writes: it never changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Count(u16);

const TRIED: u16 = 64;
const DELIVERED: u16 = 128;
const LATENCY: u16 = 256;

impl Count {
    /// Deliveries made for the endpoint.
    pub const ACCEPTED: Count = Count(0);
    pub const SKIPPED: Count = Count(1);
    pub const DEAD: Count = Count(2);
    pub const EXPIRED: Count = Count(3);
    pub const CANCELLED: Count = Count(4);
    pub const RESOLVED: Count = Count(5);
    pub const REDRIVEN: Count = Count(6);
    /// Delivered in a later generation than the first.
    pub const DELIVERED_AFTER_REDRIVE: Count = Count(7);
    pub const RELEASED: Count = Count(8);
    pub const INTERRUPTED: Count = Count(9);
    pub const AMBIGUOUS: Count = Count(10);
    /// Answers 429, with or without a `Retry-After`.
    pub const STATUS_429: Count = Count(11);
    /// Answers 429 and 503 that paused the endpoint.
    pub const THROTTLED: Count = Count(12);
    /// Taken back since a later event of a coalescing window took their place.
    pub const SUPERSEDED: Count = Count(13);
    /// Of a source: events stored, repetitions, and keys that came with another body.
    pub const EVENTS: Count = Count(16);
    pub const DUPLICATES: Count = Count(17);
    pub const KEYS_REUSED: Count = Count(18);

    /// Later attempts of a generation than this one are counted with it.
    pub const ATTEMPT_LAST: u16 = 32;

    /// An attempt with this number among those of its generation that count.
    pub fn tried(attempt: u32) -> Self {
        Count(TRIED + nth(attempt))
    }

    pub fn delivered(attempt: u32) -> Self {
        Count(DELIVERED + nth(attempt))
    }

    pub fn latency(bucket: LatencyBucket) -> Self {
        Count(LATENCY + bucket.number())
    }

    pub(super) fn number(self) -> u16 {
        self.0
    }

    /// Numbers that a later version counts by are kept as they are.
    pub(super) fn numbered(number: u16) -> Self {
        Count(number)
    }
}

fn nth(attempt: u32) -> u16 {
    u16::try_from(attempt).unwrap_or(u16::MAX).clamp(1, Count::ATTEMPT_LAST)
}

/// Why attempts did not deliver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReasonCount {
    pub reason: String,
    pub retried: u64,
    pub dead: u64,
}

/// What was counted of one endpoint or source over some time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Rising, none of them 0.
    counts: SmallVec<[(Count, u64); 8]>,
    /// By reason.
    reasons: Vec<ReasonCount>,
}

impl Tally {
    /// Reasons that are told apart; what comes after them is counted as [`Tally::OTHER`].
    pub const REASONS_MAX: usize = 32;
    pub const OTHER: &str = "other";

    pub fn add(&mut self, count: Count, by: u64) {
        match self.counts.binary_search_by_key(&count, |(count, _)| *count) {
            _ if by == 0 => {}
            Ok(at) => self.counts[at].1 = self.counts[at].1.saturating_add(by),
            Err(at) => self.counts.insert(at, (count, by)),
        }
    }

    pub fn add_reason(&mut self, reason: &str, retried: u64, dead: u64) {
        let known = self.reasons.binary_search_by(|known| known.reason.as_str().cmp(reason));
        match known {
            Ok(at) => {
                let known = &mut self.reasons[at];
                known.retried = known.retried.saturating_add(retried);
                known.dead = known.dead.saturating_add(dead);
            }
            Err(_) if self.reasons.len() >= Self::REASONS_MAX && reason != Self::OTHER => {
                self.add_reason(Self::OTHER, retried, dead);
            }
            Err(at) => self.reasons.insert(at, ReasonCount { reason: reason.to_owned(), retried, dead }),
        }
    }

    pub fn add_all(&mut self, other: &Tally) {
        for (count, by) in &other.counts {
            self.add(*count, *by);
        }
        for ReasonCount { reason, retried, dead } in &other.reasons {
            self.add_reason(reason, *retried, *dead);
        }
    }

    pub fn get(&self, count: Count) -> u64 {
        let at = self.counts.binary_search_by_key(&count, |(count, _)| *count);
        at.ok().and_then(|at| self.counts.get(at)).map_or(0, |(_, n)| *n)
    }

    pub(super) fn counts(&self) -> &[(Count, u64)] {
        &self.counts
    }

    pub fn reasons(&self) -> &[ReasonCount] {
        &self.reasons
    }

    fn between(&self, from: u16, to: u16) -> impl Iterator<Item = (u16, u64)> + Clone + '_ {
        let within = self.counts.iter().filter(move |(count, _)| (from..to).contains(&count.0));
        within.map(move |(count, n)| (count.0 - from, *n))
    }

    /// Those that count.
    pub fn attempts(&self) -> u64 {
        self.between(TRIED, DELIVERED).map(|(_, n)| n).sum()
    }

    pub fn delivered(&self) -> u64 {
        self.between(DELIVERED, LATENCY).map(|(_, n)| n).sum()
    }

    /// Deliveries that came to an end, a dead letter's included.
    pub fn ended(&self) -> u64 {
        [Count::SKIPPED, Count::DEAD, Count::EXPIRED, Count::CANCELLED].map(|count| self.get(count)).iter().sum::<u64>()
            + self.delivered()
    }

    /// From eligibility to confirmation, of what was delivered; `None`: nothing was.
    pub fn latency(&self, thousandths: u64) -> Option<Duration> {
        let spans = self.between(LATENCY, LATENCY + LatencyBucket::COUNT);
        quantile(spans.filter_map(|(number, n)| Some((LatencyBucket::numbered(number)?, n))), thousandths)
    }

    /// For each attempt that was tried: its number, how often it was tried, and how often it delivered.
    pub fn by_attempt(&self) -> impl Iterator<Item = (u16, u64, u64)> + '_ {
        self.between(TRIED, DELIVERED).map(|(attempt, n)| (attempt, n, self.get(Count(DELIVERED + attempt))))
    }
}

impl Closed {
    /// Adds what of a closing lies within the window; one without an end lasts until `now`.
    pub(super) fn add(
        all: &mut Vec<Closed>,
        status: EndpointStatus,
        (since, until): (Timestamp, Option<Timestamp>),
        window: &StatsWindow,
        now: Timestamp,
    ) {
        let (disabled, why) = match status {
            EndpointStatus::Enabled => return,
            EndpointStatus::Paused { why, .. } => (false, why),
            EndpointStatus::Disabled { why } => (true, why),
        };
        let end = until.unwrap_or(now).min(now).min(window.until);
        let time = end.since(since.max(window.since));
        match all.iter_mut().find(|known| known.disabled == disabled && known.why == why) {
            _ if time.is_zero() => {}
            Some(known) => known.time += time,
            None => all.push(Closed { disabled, why, time }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::parse_rfc3339(text).unwrap()
    }

    #[test]
    fn a_window_is_widened_to_what_can_be_told() {
        let now = at("2026-01-10T12:34:56Z");
        let window = |since: &str, until: &str, bucket: Option<u64>| {
            let window = StatsWindow::new(at(since), at(until), bucket.map(Duration::from_secs), now)?;
            Ok((window.since().to_rfc3339(), window.until().to_rfc3339(), window.bucket_count()))
        };
        let told = |since: &str, until: &str, count| Ok((at(since).to_rfc3339(), at(until).to_rfc3339(), count));
        for (since, until, bucket, expected) in [
            (
                "2026-01-10T11:34:56Z",
                "2026-01-10T12:34:56Z",
                None,
                told("2026-01-10T11:34:00Z", "2026-01-10T12:35:00Z", 0),
            ),
            (
                "2026-01-10T11:34:56Z",
                "2026-01-10T12:34:56Z",
                Some(300),
                told("2026-01-10T11:30:00Z", "2026-01-10T12:35:00Z", 13),
            ),
            // Minutes are kept from the 8th, 12:00 on.
            (
                "2026-01-08T11:59:59Z",
                "2026-01-10T12:00:01Z",
                None,
                told("2026-01-08T11:00:00Z", "2026-01-10T12:01:00Z", 0),
            ),
            (
                "2026-01-07T11:59:59Z",
                "2026-01-08T11:20:00Z",
                None,
                told("2026-01-07T11:00:00Z", "2026-01-08T12:00:00Z", 0),
            ),
            (
                "2026-01-08T12:00:00Z",
                "2026-01-08T12:01:00Z",
                None,
                told("2026-01-08T12:00:00Z", "2026-01-08T12:01:00Z", 0),
            ),
            ("2026-01-08T11:59:59Z", "2026-01-10T00:00:00Z", Some(300), Err(BadWindow::Bucket { unit: HOUR })),
            ("2026-01-10T11:00:00Z", "2026-01-10T12:00:00Z", Some(90), Err(BadWindow::Bucket { unit: MINUTE })),
            ("2026-01-10T11:00:00Z", "2026-01-10T12:00:00Z", Some(0), Err(BadWindow::Bucket { unit: MINUTE })),
            ("2026-01-08T12:00:00Z", "2026-01-10T00:00:00Z", Some(60), Err(BadWindow::TooManyBuckets)),
            ("2026-01-10T12:00:00Z", "2026-01-10T12:00:00Z", None, Err(BadWindow::Empty)),
            ("2024-01-10T12:00:00Z", "2026-01-10T12:00:00Z", None, Err(BadWindow::TooLong)),
        ] {
            assert_eq!(window(since, until, bucket), expected, "{since} {until} {bucket:?}");
        }
    }

    #[test]
    fn a_closing_counts_as_far_as_it_lies_in_the_window() {
        let now = at("2026-01-10T12:30:00Z");
        let window = StatsWindow::new(at("2026-01-10T12:00:00Z"), now, None, now).unwrap();
        let mut all = Vec::new();
        let mut add = |since: &str, until: Option<&str>, why: &str| {
            let status = EndpointStatus::Paused { until: None, why: why.to_owned() };
            Closed::add(&mut all, status, (at(since), until.map(at)), &window, now);
        };
        add("2026-01-10T11:00:00Z", Some("2026-01-10T12:05:00Z"), "retry_after");
        add("2026-01-10T12:10:00Z", Some("2026-01-10T12:11:00Z"), "retry_after");
        add("2026-01-10T12:29:00Z", Some("2026-01-10T18:00:00Z"), "retry_after");
        add("2026-01-10T12:20:00Z", None, "operator");
        add("2026-01-10T11:00:00Z", Some("2026-01-10T12:00:00Z"), "gone by then");
        let told: Vec<(&str, u64)> = all.iter().map(|c| (c.why.as_str(), c.time.as_secs())).collect();
        assert_eq!(told, [("retry_after", 420), ("operator", 600)]);
    }

    #[test]
    fn reasons_have_a_limit_and_none_is_lost() {
        let mut tally = Tally::default();
        for n in 0..100 {
            tally.add_reason(&format!("reason_{n}"), 1, 2);
        }
        assert_eq!(tally.reasons().len(), Tally::REASONS_MAX + 1);
        let sums = tally.reasons().iter().fold((0, 0), |(r, d), c| (r + c.retried, d + c.dead));
        assert_eq!(sums, (100, 200));
    }

    proptest! {
        #[test]
        fn adding_up_is_adding_each(adds in prop::collection::vec((0u16..800, 0u64..9, any::<bool>()), 0..60)) {
            let (mut whole, mut halves) = (Tally::default(), [Tally::default(), Tally::default()]);
            for (number, by, side) in &adds {
                whole.add(Count(*number), *by);
                halves[usize::from(*side)].add(Count(*number), *by);
            }
            let mut sum = Tally::default();
            halves.iter().for_each(|half| sum.add_all(half));
            prop_assert_eq!(&sum, &whole);
            for (number, _, _) in &adds {
                let expected = adds.iter().filter(|(n, _, _)| n == number).map(|(_, by, _)| by).sum::<u64>();
                prop_assert_eq!(whole.get(Count(*number)), expected);
            }
        }
    }
}
