//! The window around now.

use super::read::malformed;
use crate::clock::Timestamp;
use crate::verify::refusal::{CheckStep, Refusal, RefusalCode};

/// How a time is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Told {
    Seconds,
    Millis,
    Rfc3339,
}

impl Told {
    /// The time that `text` says: digits only, or RFC 3339 with an offset.
    pub(super) fn read(self, text: &str, name: &str) -> Result<i64, Refusal> {
        let digits = || text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<i64>().ok()).flatten();
        let millis = match self {
            Told::Seconds => digits().and_then(|seconds| seconds.checked_mul(1_000)),
            Told::Millis => digits(),
            Told::Rfc3339 => Timestamp::parse_rfc3339(text).map(Timestamp::as_millis),
        };
        millis.ok_or_else(|| malformed(format!("{name} is not a timestamp")))
    }
}

/// A window in milliseconds, both ways, its edges inside. `None`: any time will do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Window(pub(super) Option<i64>);

impl Window {
    /// How old the time is, in seconds, where it lies in the window.
    pub(super) fn holds(self, now: Timestamp, (at, told): (i64, Told), name: &str) -> Result<i64, Refusal> {
        let age = age(now, at, told);
        self.not_too_old(age, name)?;
        self.not_too_new(age, name)?;
        Ok(age.div_euclid(1_000))
    }

    fn not_too_old(self, age: i64, name: &str) -> Result<(), Refusal> {
        let Some(window) = self.0.filter(|window| age > *window) else { return Ok(()) };
        let (skew, window) = (age.div_euclid(1_000), window / 1_000);
        Err(refused(
            RefusalCode::TimestampTooOld,
            age,
            format!("{name} is {skew} s old, at most {window} s are let in"),
        ))
    }

    fn not_too_new(self, age: i64, name: &str) -> Result<(), Refusal> {
        let Some(window) = self.0.filter(|window| age < -*window) else { return Ok(()) };
        let (ahead, window) = (age.div_euclid(1_000).unsigned_abs(), window / 1_000);
        let detail = format!("{name} is {ahead} s ahead of our clock, at most {window} s are let in");
        Err(refused(RefusalCode::TimestampTooNew, age, detail))
    }

    /// A token that is not valid any more.
    pub(super) fn not_after(self, now: Timestamp, seconds: i64, name: &str) -> Result<(), Refusal> {
        self.not_too_old(age(now, seconds.saturating_mul(1_000), Told::Seconds), name)
    }

    /// A token that is not valid yet.
    pub(super) fn not_before(self, now: Timestamp, seconds: i64, name: &str) -> Result<(), Refusal> {
        self.not_too_new(age(now, seconds.saturating_mul(1_000), Told::Seconds), name)
    }
}

/// Whole seconds are compared with whole seconds: the edge does not depend on our milliseconds.
fn age(now: Timestamp, at: i64, told: Told) -> i64 {
    let now = match told {
        Told::Seconds => now.as_seconds().saturating_mul(1_000),
        Told::Millis | Told::Rfc3339 => now.as_millis(),
    };
    now.saturating_sub(at)
}

fn refused(code: RefusalCode, age: i64, detail: String) -> Refusal {
    Refusal { skew_seconds: Some(age.div_euclid(1_000)), ..Refusal::new(code, CheckStep::Timestamp, detail) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_edges_are_inside() {
        let window = Window(Some(300_000));
        let holds = |at: i64| {
            let now = Timestamp::from_millis(1_700_000_000_900);
            window.holds(now, (at * 1_000, Told::Seconds), "t").map_err(|refusal| refusal.code)
        };
        assert_eq!(holds(1_700_000_000 - 300), Ok(300));
        assert_eq!(holds(1_700_000_000 + 300), Ok(-300));
        assert_eq!(holds(1_700_000_000 - 301), Err(RefusalCode::TimestampTooOld));
        assert_eq!(holds(1_700_000_000 + 301), Err(RefusalCode::TimestampTooNew));
        let far = |at: i64| window.holds(Timestamp::ZERO, (at, Told::Millis), "t").map_err(|refusal| refusal.code);
        assert_eq!(far(i64::MIN), Err(RefusalCode::TimestampTooOld));
        assert_eq!(far(i64::MAX), Err(RefusalCode::TimestampTooNew));
        assert!(Window(None).holds(Timestamp::ZERO, (i64::MAX, Told::Seconds), "t").is_ok());
    }

    #[test]
    fn times_are_digits_or_rfc_3339() {
        for bad in ["", "-1", "+1", "1.5", " 1", "1e3", "99999999999999999999", "9223372036854775807"] {
            assert!(Told::Seconds.read(bad, "t").is_err(), "{bad}");
        }
        assert_eq!(Told::Rfc3339.read("1970-01-01T00:00:01Z", "t"), Ok(1_000));
        assert!(Told::Rfc3339.read("1970-01-01T00:00:01", "t").is_err());
    }
}
