//! What a bulk redrive does next: plain functions over what is known of it.

use crate::delivery::{DeliveryState, Reason};
use crate::ledger::{BULK_STEP_MAX, WaveResult};
use std::collections::BTreeMap;
use std::time::Duration;

/// Steps of one operation in a second, as far as its rate and [`BULK_STEP_MAX`] allow.
const STEPS_PER_SECOND: u32 = 4;
/// How much a wave is larger than the one before.
const WIDER: u64 = 10;
/// From so many results on, a wave is judged before its end.
const RESULTS_JUDGED_MIN: u64 = 20;
/// Of a hundred results: more that failed as before stop a canary, and so do more that failed at all.
const RETURNED_MAX: u64 = 10;
const FAILED_MAX: u64 = 50;

/// Letters of one step.
pub(super) fn step(rate: u32) -> u32 {
    rate.div_ceil(STEPS_PER_SECOND).clamp(1, BULK_STEP_MAX)
}

/// How long to wait after so many were redriven.
pub(super) fn pause(redriven: u64, rate: u32) -> Duration {
    Duration::from_secs(redriven) / rate.max(1)
}

/// The results of a canary's wave.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Tally {
    /// Letters that were tried, or ended otherwise.
    pub results: u64,
    /// Those that failed for a reason for which such letters had died.
    pub returned: u64,
    /// Those that failed.
    pub failed: u64,
    /// Why most of those returned failed.
    pub reason: Option<String>,
}

/// `redriven`: letters of the wave so far; those that are not among `wave` any more were redriven again by somebody else,
/// or removed. `old`: why the letters of the operation had died.
pub(super) fn tally(redriven: u64, wave: &[WaveResult], old: &BTreeMap<String, u64>) -> Tally {
    let there: u64 = wave.iter().map(|result| result.count).sum();
    let mut tally = Tally { results: redriven.saturating_sub(there), ..Tally::default() };
    let mut most = 0;
    for result in wave.iter().filter(|result| result.tried) {
        let failed = match result.state {
            // That a process ended says nothing of the destination: the next attempt does.
            DeliveryState::Pending | DeliveryState::InFlight
                if result.reason.as_deref() == Some(Reason::INTERRUPTED.as_str()) =>
            {
                continue;
            }
            DeliveryState::Dead | DeliveryState::Pending | DeliveryState::InFlight => true,
            DeliveryState::Delivered
            | DeliveryState::Skipped
            | DeliveryState::Expired
            | DeliveryState::Cancelled
            | DeliveryState::Resolved => false,
        };
        tally.results += result.count;
        if !failed {
            continue;
        }
        tally.failed += result.count;
        let Some(reason) = result.reason.as_ref().filter(|reason| old.contains_key(*reason)) else { continue };
        tally.returned += result.count;
        if result.count > most {
            most = result.count;
            tally.reason = Some(reason.clone());
        }
    }
    tally
}

/// What becomes of a canary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Results are still to come.
    Wait,
    /// The next wave may have so many.
    Widen(u64),
    Stop(String),
}

/// Judges a wave of `size` letters by the results that are there.
pub(super) fn judge(size: u64, tally: &Tally) -> Verdict {
    let Tally { results, returned, failed, reason } = tally;
    let over = |count: u64, most: u64| u128::from(count) * 100 > u128::from(*results) * u128::from(most);
    if *results >= size.min(RESULTS_JUDGED_MIN) {
        if over(*returned, RETURNED_MAX) {
            let reason = reason.as_deref().unwrap_or_default();
            return Verdict::Stop(format!(
                "the old failure is back: {returned} of {results} results failed as before, most of them with {reason}; \
                 the bound is {RETURNED_MAX} of 100"
            ));
        }
        if over(*failed, FAILED_MAX) {
            return Verdict::Stop(format!(
                "{failed} of {results} results failed, though otherwise than before; the bound is {FAILED_MAX} of 100"
            ));
        }
    }
    if *results >= size { Verdict::Widen(size.saturating_mul(WIDER)) } else { Verdict::Wait }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn result(state: DeliveryState, tried: bool, reason: Option<&str>, count: u64) -> WaveResult {
        WaveResult { state, tried, reason: reason.map(str::to_owned), count }
    }

    fn old() -> BTreeMap<String, u64> {
        [("http_502".to_owned(), 3000), ("connect".to_owned(), 5)].into()
    }

    #[test]
    fn what_counts_as_the_old_failure() {
        use DeliveryState::{Cancelled, Dead, Delivered, InFlight, Pending, Skipped};
        let wave = [
            result(Pending, false, None, 7),
            result(InFlight, false, None, 2),
            result(Delivered, true, None, 50),
            result(Skipped, true, Some("not_wanted"), 1),
            result(Cancelled, true, Some("cancelled"), 1),
            result(Pending, true, Some("http_502"), 4),
            result(InFlight, true, Some("http_502"), 1),
            result(Dead, true, Some("connect"), 2),
            result(Dead, true, Some("http_400"), 3),
            result(Pending, true, Some("interrupted"), 5),
            result(InFlight, true, Some("interrupted"), 1),
        ];
        let expected = Tally { results: 62, returned: 7, failed: 10, reason: Some("http_502".to_owned()) };
        assert_eq!(tally(77, &wave, &old()), expected);
        assert_eq!(tally(0, &[], &old()), Tally::default());
        assert_eq!(tally(86, &wave, &old()).results, 71, "nine have moved on");
    }

    #[test]
    fn a_wave_waits_widens_or_stops() {
        let of = |results, returned, failed| Tally { results, returned, failed, reason: Some("http_502".to_owned()) };
        // Size, results, returned, failed; 0: it waits, 1: it stops, else the next size.
        for (size, results, returned, failed, expected) in [
            (1, 0, 0, 0, 0),
            (1, 1, 0, 0, 10),
            (1, 1, 1, 1, 1),
            (1, 1, 0, 1, 1),
            (10, 9, 9, 9, 0),
            (10, 10, 1, 1, 100),
            (10, 10, 2, 2, 1),
            (10, 10, 0, 5, 100),
            (10, 10, 0, 6, 1),
            (100, 19, 19, 19, 0),
            (100, 20, 3, 3, 1),
            (100, 20, 2, 2, 0),
            (100, 99, 9, 9, 0),
            (100, 100, 10, 10, 1_000),
            (100, 100, 11, 11, 1),
            (u64::MAX, u64::MAX, 0, 0, u64::MAX),
        ] {
            let got = match judge(size, &of(results, returned, failed)) {
                Verdict::Wait => 0,
                Verdict::Stop(_) => 1,
                Verdict::Widen(next) => next,
            };
            assert_eq!(got, expected, "{size} {results} {returned} {failed}");
        }
        let Verdict::Stop(why) = judge(10, &of(10, 4, 4)) else { panic!("it goes on") };
        assert!(why.contains("4 of 10") && why.contains("http_502"), "{why}");
    }

    proptest! {
        /// One more failure of the old kind never makes a canary go on that would have stopped; without failures it
        /// never stops; it widens only when all results are there.
        #[test]
        fn more_of_the_old_failure_is_never_better(size in 1u64..10_000, results in 0u64..10_000, returned in 0u64..10_000) {
            let results = results.min(size);
            let returned = returned.min(results);
            let of = |returned| Tally { results, returned, failed: returned, reason: None };
            let before = judge(size, &of(returned));
            prop_assert!(!matches!(judge(size, &of(0)), Verdict::Stop(_)));
            if returned < results && matches!(before, Verdict::Stop(_)) {
                prop_assert!(matches!(judge(size, &of(returned + 1)), Verdict::Stop(_)));
            }
            if let Verdict::Widen(next) = before {
                prop_assert!(results == size && next == size * 10 && returned * 10 <= results);
            }
        }

        #[test]
        fn the_rate_holds(rate in 1u32..=10_000, steps in 1u64..50) {
            let letters = u64::from(step(rate));
            prop_assert!(letters >= 1 && letters <= u64::from(BULK_STEP_MAX));
            let took = pause(letters, rate) * u32::try_from(steps).unwrap();
            let allowed = took.as_secs_f64() * f64::from(rate);
            prop_assert!((letters * steps) as f64 <= allowed + 0.01 * steps as f64);
        }
    }
}
