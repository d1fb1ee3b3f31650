//! Time, handed in. Rooms take a [`Clock`]; decisions take plain [`Timestamp`] values.
//!
//! The wall clock decides only what is stored: due times, signature windows, retention. Waiting goes by
//! the monotonic clock, so a step of the wall clock stretches no sleep.

use jiff::SignedDuration;
use jiff::civil::DateTime;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A difference between the clocks that comes from nothing but somebody setting the wall clock.
const JUMP_OVER: Duration = Duration::from_secs(5);

/// How long after a jump the date is not trusted with what cannot be undone.
const SETTLES_AFTER: Duration = Duration::from_secs(3_600);

/// Milliseconds since the Unix epoch, UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    pub const ZERO: Timestamp = Timestamp(0);
    pub const MAX: Timestamp = Timestamp(i64::MAX);

    pub const fn from_millis(millis: i64) -> Self {
        Timestamp(millis)
    }

    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Whole seconds since the epoch, as signature schemes write them.
    pub const fn as_seconds(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// `self + span`, saturating.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Timestamp(self.0.saturating_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX)))
    }

    /// `self - span`, saturating.
    #[must_use]
    pub fn minus(self, span: Duration) -> Self {
        Timestamp(self.0.saturating_sub(i64::try_from(span.as_millis()).unwrap_or(i64::MAX)))
    }

    /// How long after `earlier` this is; zero when it is not after.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// RFC 3339 in UTC with milliseconds, the form of every time in the API.
    pub fn to_rfc3339(self) -> String {
        match EPOCH.checked_add(SignedDuration::from_millis(self.0)) {
            Ok(t) => format!("{t:.3}Z"),
            Err(_) => self.0.to_string(),
        }
    }

    /// Reads RFC 3339 with any offset, and nothing else that a library may take for a time: what is signed in front of or
    /// behind a time must not become a part of it. Fractions beyond a millisecond are dropped.
    pub fn parse_rfc3339(text: &str) -> Option<Self> {
        plain_utc(text.as_bytes()).or_else(|| date_time(text.as_bytes())).map(Timestamp)
    }
}

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

fn number(digits: &[u8]) -> Option<i64> {
    let digit = |number: i64, byte: &u8| byte.is_ascii_digit().then(|| number * 10 + i64::from(byte - b'0'));
    digits.iter().try_fold(0, digit)
}

/// The milliseconds of a `date-time` (RFC 3339, section 5.6), by the library's calendar. The leap second is the one before.
fn date_time(text: &[u8]) -> Option<i64> {
    let (local, offset) = match text {
        [local @ .., b'Z' | b'z'] => (local, 0),
        [local @ .., sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let (hours, minutes) = (number(&[*h1, *h2])?, number(&[*m1, *m2])?);
            let minutes = (hours < 24 && minutes < 60).then_some(hours * 60 + minutes)?;
            (local, if *sign == b'-' { -minutes } else { minutes })
        }
        _ => return None,
    };
    let (local, fraction) = match local.iter().position(|b| *b == b'.') {
        None => (local, &[][..]),
        Some(at) => (&local[..at], Some(&local[at + 1..]).filter(|digits| !digits.is_empty())?),
    };
    let &[y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, b'T' | b't', h1, h2, b':', n1, n2, b':', s1, s2] = local else {
        return None;
    };
    let two = |high, low| i8::try_from(number(&[high, low])?).ok();
    let year = i16::try_from(number(&[y1, y2, y3, y4])?).ok()?;
    let (hour, minute) = (two(h1, h2)?, two(n1, n2)?);
    let second = two(s1, s2).filter(|second| *second <= 60)?.min(59);
    let date_time = DateTime::new(year, two(m1, m2)?, two(d1, d2)?, hour, minute, second, 0).ok()?;
    let seconds = date_time.duration_since(EPOCH).as_secs() - offset * 60;
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digit = |at: usize| fraction.get(at).map_or(0, |b| i64::from(b - b'0'));
    let millis = seconds * 1000 + digit(0) * 100 + digit(1) * 10 + digit(2);
    // An offset may lead out of the years that have four digits.
    let utc = EPOCH.checked_add(SignedDuration::from_millis(millis)).ok()?;
    (0..=9999).contains(&utc.year()).then_some(millis)
}

/// The milliseconds of `2026-01-31T08:00:00Z`, with a fraction or without: how nearly everybody writes a time, read
/// several times as fast as the library reads all forms. `None`: another form, or no time.
fn plain_utc(text: &[u8]) -> Option<i64> {
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, b'T', h1, h2, b':', n1, n2, b':', s1, s2, rest @ .., b'Z'] = text
    else {
        return None;
    };
    let year = number(&[*y1, *y2, *y3, *y4])?;
    let (month, day) = (number(&[*m1, *m2])?, number(&[*d1, *d2])?);
    let (hour, minute, second) = (number(&[*h1, *h2])?, number(&[*n1, *n2])?, number(&[*s1, *s2])?);
    // Where months differ, seconds leap and time runs to zero, the library knows.
    if year < 1970 || !(1..=12).contains(&month) || !(1..=28).contains(&day) || hour > 23 || minute > 59 || second > 59
    {
        return None;
    }
    let millis = match rest {
        [] => 0,
        [b'.', fraction @ ..] if (1..=9).contains(&fraction.len()) => {
            number(fraction)? * 1_000_000_000 / 10_i64.pow(u32::try_from(fraction.len()).ok()?) / 1_000_000
        }
        _ => return None,
    };
    // Days since 1970-01-01, with years that begin in March, so that the leap day is the last of its year.
    let (year, month) = if month < 3 { (year - 1, month + 9) } else { (year, month - 3) };
    let days =
        year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + (153 * month + 2) / 5 + day
            - 719_469;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1000 + millis)
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_rfc3339())
    }
}

impl serde::Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.to_rfc3339())
    }
}

impl<'de> serde::Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        Timestamp::parse_rfc3339(&text)
            .ok_or_else(|| serde::de::Error::custom("expected an RFC 3339 time, e.g. 2026-01-31T08:00:00Z"))
    }
}

/// The one source of time. Built in `app`, handed to whoever needs it.
pub trait Clock: Send + Sync + 'static {
    /// The wall clock.
    fn now(&self) -> Timestamp;
    /// The clock that nobody sets.
    fn monotonic(&self) -> Instant;
}

/// The machine's clock.
#[derive(Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
    fn now(&self) -> Timestamp {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Timestamp(since.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX)))
    }

    fn monotonic(&self) -> Instant {
        Instant::now()
    }
}

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub wall: Timestamp,
    pub monotonic: Instant,
}

/// How the wall clock was set. A machine that was suspended looks the same: its monotonic clock stood still.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Jump {
    Forward(Duration),
    Back(Duration),
}

impl Jump {
    /// `None`: the clocks agree on what has passed between the two looks, but for what drift explains.
    pub fn between(before: Look, after: Look) -> Option<Jump> {
        let passed = after.monotonic.saturating_duration_since(before.monotonic);
        let expected = before.wall.plus(passed);
        let (forward, back) = (after.wall.since(expected), expected.since(after.wall));
        if forward > JUMP_OVER {
            Some(Jump::Forward(forward))
        } else if back > JUMP_OVER {
            Some(Jump::Back(back))
        } else {
            None
        }
    }
}

impl fmt::Display for Jump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Jump::Forward(by) => write!(f, "forward by {by:?}"),
            Jump::Back(by) => write!(f, "back by {by:?}"),
        }
    }
}

/// The clock, watched: it notices when the wall clock is set, for whoever must not act on a wrong date. A jump is
/// noticed by the first look after it, whoever looks.
pub struct ClockWatch {
    clock: Arc<dyn Clock>,
    seen: Mutex<Seen>,
}

struct Seen {
    last: Look,
    jumps: u64,
    latest: Option<(Jump, Instant)>,
}

/// What all looks so far have found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    pub jumps: u64,
    pub latest: Option<Jump>,
    /// There was no jump within the last hour.
    pub settled: bool,
}

impl ClockWatch {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let last = Look { wall: clock.now(), monotonic: clock.monotonic() };
        ClockWatch { clock, seen: Mutex::new(Seen { last, jumps: 0, latest: None }) }
    }

    /// The wall clock.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub fn look(&self) -> Standing {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let look = Look { wall: self.clock.now(), monotonic: self.clock.monotonic() };
        if let Some(jump) = Jump::between(seen.last, look) {
            seen.jumps += 1;
            seen.latest = Some((jump, look.monotonic));
        }
        seen.last = look;
        let settled = seen.latest.is_none_or(|(_, at)| look.monotonic.saturating_duration_since(at) >= SETTLES_AFTER);
        Standing { jumps: seen.jumps, latest: seen.latest.map(|(jump, _)| jump), settled }
    }

    /// Whether a time that was read before this call may be acted on where nothing can be undone.
    pub fn is_settled(&self) -> bool {
        self.look().settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3339_has_milliseconds_and_round_trips() {
        let t = Timestamp::from_millis(1_700_000_000_007);
        assert_eq!(t.to_rfc3339(), "2023-11-14T22:13:20.007Z");
        assert_eq!(Timestamp::parse_rfc3339("2023-11-14T23:13:20.007+01:00"), Some(t));
        assert_eq!(Timestamp::parse_rfc3339("yesterday"), None);
    }

    #[test]
    fn the_plain_form_is_read_as_the_library_reads_it() {
        let millis = |at: jiff::Timestamp| i64::try_from(at.as_nanosecond().div_euclid(1_000_000)).unwrap();
        let library = |text: &str| text.parse::<jiff::Timestamp>().ok().map(millis);
        // The library's last day is the one before.
        let last = |text: &str| text.starts_with("9999-12-3");
        let mut plain = 0;
        for year in [0, 4, 1600, 1899, 1900, 1969, 1970, 1972, 2000, 2023, 2024, 2026, 2100, 2400, 9999] {
            for month in 0..=13 {
                for day in 0..=32 {
                    for (n, rest) in
                        ["T00:00:00Z", "T23:59:59.999Z", "T08:07:06.1Z", "T08:07:06.123456789Z"].iter().enumerate()
                    {
                        let text = format!("{year:04}-{month:02}-{day:02}{rest}");
                        let expected = library(&text);
                        if !last(&text) {
                            assert_eq!(Timestamp::parse_rfc3339(&text).map(|t| t.0), expected, "{text}");
                            assert_eq!(date_time(text.as_bytes()), expected, "{text}");
                        }
                        plain += usize::from(plain_utc(text.as_bytes()).is_some() && n == 0);
                    }
                }
            }
        }
        assert_eq!(plain, 9 * 12 * 28);
        for text in [
            "2026-01-31T08:00:60Z",
            "1969-12-31T23:59:59.999Z",
            "2026-01-20t08:00:00z",
            "2026-01-20T08:00:00+01:00",
            "2026-01-20T08:00:00.5+01:00",
            "2026-01-20T08:00:00.987654321-23:59",
            "0000-01-01T00:00:00Z",
            "2024-02-29T08:00:00-00:00",
        ] {
            assert!(library(text).is_some(), "{text}");
            assert_eq!(Timestamp::parse_rfc3339(text).map(|t| t.0), library(text), "{text}");
        }
    }

    /// What the library reads besides, and what nobody should.
    #[test]
    fn a_time_is_rfc3339_and_nothing_more() {
        for text in [
            "2026-01-31 08:00:00Z",
            "2026-01-31_08:00:00Z",
            "2026-01-31T08:00:00",
            "2026-01-31T08:00Z",
            "2026-01-31T08Z",
            "20260131T080000Z",
            "2026-01-31T080000Z",
            "20260131T08:00:00Z",
            "2026-01-31",
            "2026-01-31T08:00:00.Z",
            "2026-01-31T08:00:00,5Z",
            "2026-01-31T08:00:00.5.5Z",
            "2026-01-31T08:00:00.+5Z",
            "2026-01-31T24:00:00Z",
            "2026-01-31T08:60:00Z",
            "2026-01-31T08:00:61Z",
            "2026-02-29T08:00:00Z",
            "2026-01-3\u{661}T08:00:00Z",
            "20\u{662}-01-31T08:00:00Z",
            "+002026-01-31T08:00:00Z",
            "-000001-01-31T08:00:00Z",
            "2026-01-31T08:00:00+0530",
            "2026-01-31T08:00:00+01",
            "2026-01-31T08:00:00+24:00",
            "2026-01-31T08:00:00+01:60",
            "2026-01-31T08:00:00+01:00:00",
            "2026-01-31T08:00:00\u{2212}01:00",
            "2026-01-31T08:00:00Z[urgent]",
            "2026-01-31T08:00:00Z[u-ca=iso8601]",
            "2026-01-31T08:00:00+01:00[Europe/Berlin]",
            " 2026-01-31T08:00:00Z",
            "2026-01-31T08:00:00Z ",
            "2026-01-31T08:00:00ZZ",
            "0000-01-01T00:00:00+00:01",
            "9999-12-31T23:59:59-00:01",
            "Z",
            "",
        ] {
            assert_eq!(Timestamp::parse_rfc3339(text), None, "{text}");
        }
        for text in ["9999-12-31T23:59:59.999Z", "9999-12-30T22:00:00.000Z", "0000-01-01T00:00:00.000Z"] {
            assert_eq!(Timestamp::parse_rfc3339(text).unwrap().to_rfc3339(), text);
        }
        let long = format!("2026-01-31T08:00:00.{}Z", "9".repeat(40));
        assert_eq!(Timestamp::parse_rfc3339(&long).unwrap().to_rfc3339(), "2026-01-31T08:00:00.999Z");
        assert_eq!(Timestamp::MAX.to_rfc3339(), i64::MAX.to_string());
    }

    #[test]
    fn a_jump_is_what_no_drift_explains() {
        let origin = Instant::now();
        let look = |wall: i64, monotonic: u64| Look {
            wall: Timestamp::from_millis(1_700_000_000_000 + wall),
            monotonic: origin + Duration::from_millis(monotonic),
        };
        let forward = |millis| Some(Jump::Forward(Duration::from_millis(millis)));
        let back = |millis| Some(Jump::Back(Duration::from_millis(millis)));
        let day = 86_400_000;
        for (wall, monotonic, expected) in [
            (0, 0, None),
            (1_000, 1_000, None),
            (day, 86_400_000, None),
            (6_000, 1_000, None),
            (6_001, 1_000, forward(5_001)),
            (-4_000, 1_000, None),
            (-4_001, 1_000, back(5_001)),
            (day + 1_000, 1_000, forward(86_400_000)),
            (1_000 - day, 1_000, back(86_400_000)),
            // The wall clock stands while hours pass.
            (0, 7_200_000, back(7_200_000)),
        ] {
            assert_eq!(Jump::between(look(0, 0), look(wall, monotonic)), expected, "{wall} in {monotonic}");
        }
    }

    struct ByHand(Mutex<Look>);

    impl ByHand {
        fn pass(&self, wall_millis: i64, monotonic: Duration) {
            let mut look = self.0.lock().unwrap();
            look.wall = Timestamp::from_millis(look.wall.as_millis() + wall_millis);
            look.monotonic += monotonic;
        }
    }

    impl Clock for ByHand {
        fn now(&self) -> Timestamp {
            self.0.lock().unwrap().wall
        }

        fn monotonic(&self) -> Instant {
            self.0.lock().unwrap().monotonic
        }
    }

    #[test]
    fn the_watch_settles_an_hour_after_the_last_jump() {
        let wall = Timestamp::from_millis(1_700_000_000_000);
        let clock = Arc::new(ByHand(Mutex::new(Look { wall, monotonic: Instant::now() })));
        let watch = ClockWatch::new(Arc::clone(&clock) as Arc<dyn Clock>);
        let second = Duration::from_secs(1);
        assert_eq!(watch.look(), Standing { jumps: 0, latest: None, settled: true });
        clock.pass(86_400_000, second);
        let latest = Some(Jump::Forward(Duration::from_millis(86_399_000)));
        assert_eq!(watch.look(), Standing { jumps: 1, latest, settled: false });
        assert_eq!(watch.look(), Standing { jumps: 1, latest, settled: false }, "a jump is found once");
        clock.pass(3_599_000, 3_599 * second);
        assert!(!watch.is_settled());
        clock.pass(1_000, second);
        assert!(watch.is_settled());
        // Little by little it is drift, however far it goes.
        for _ in 0..20 {
            clock.pass(5_000, second);
            assert!(watch.is_settled());
        }
        clock.pass(-86_400_000, Duration::ZERO);
        assert_eq!(watch.look().jumps, 2);
        clock.pass(1_800_000, 1_800 * second);
        clock.pass(86_400_000, Duration::ZERO);
        assert_eq!(watch.look().jumps, 3);
        clock.pass(3_599_000, 3_599 * second);
        assert!(!watch.is_settled(), "the hour begins with the last one");
    }

    #[test]
    fn differences_never_go_below_zero() {
        assert_eq!(Timestamp::from_millis(5).since(Timestamp::from_millis(9)), Duration::ZERO);
    }
}
