//! A version of a plugin that is tried on live traffic: which deliveries take part, what is counted, and when a canary
//! goes back.

use super::{DeliveryId, TrialId};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

/// Ten-thousandths, written as a percentage: `12.5%`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Ratio(u16);

const WHOLE: u16 = 10_000;

/// Why a text is no ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is to be a percentage from 0% to 100% with at most two decimals, such as \"10%\" or \"0.5%\"")]
pub struct BadRatio;

impl Ratio {
    pub const WHOLE: Ratio = Ratio(WHOLE);

    /// `None`: more than the whole.
    pub const fn of_ten_thousand(parts: u16) -> Option<Self> {
        if parts <= WHOLE { Some(Ratio(parts)) } else { None }
    }

    pub const fn ten_thousandths(self) -> u16 {
        self.0
    }

    /// `None`: of nothing.
    pub fn of(part: u64, whole: u64) -> Option<Self> {
        let parts = (u128::from(part.min(whole)) * u128::from(WHOLE)).checked_div(u128::from(whole))?;
        u16::try_from(parts).ok().map(Ratio)
    }

    /// Whether `part` of `whole` is more than this, without rounding.
    pub fn is_passed_by(self, part: u64, whole: u64) -> bool {
        u128::from(part) * u128::from(WHOLE) > u128::from(self.0) * u128::from(whole)
    }
}

impl FromStr for Ratio {
    type Err = BadRatio;

    fn from_str(text: &str) -> Result<Self, BadRatio> {
        let number = text.strip_suffix('%').ok_or(BadRatio)?;
        let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str, most| (1..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole, 3) || !digits(decimals, 2) {
            return Err(BadRatio);
        }
        let read = |text: &str| text.parse::<u16>().map_err(|_| BadRatio);
        let hundredths = if decimals.len() == 1 { read(decimals)? * 10 } else { read(decimals)? };
        Ratio::of_ten_thousand(read(whole)? * 100 + hundredths).ok_or(BadRatio)
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, hundredths) = (self.0 / 100, self.0 % 100);
        match (hundredths / 10, hundredths % 10) {
            (0, 0) => write!(f, "{whole}%"),
            (tenths, 0) => write!(f, "{whole}.{tenths}%"),
            (_, _) => write!(f, "{whole}.{hundredths:02}%"),
        }
    }
}

impl fmt::Debug for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for Ratio {
    type Error = BadRatio;

    fn try_from(text: String) -> Result<Self, BadRatio> {
        text.parse()
    }
}

impl From<Ratio> for String {
    fn from(ratio: Ratio) -> String {
        ratio.to_string()
    }
}

/// The part of the deliveries that takes part: more than none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share(Ratio);

impl Share {
    /// `None`: nothing would take part.
    pub const fn new(ratio: Ratio) -> Option<Self> {
        if ratio.0 > 0 { Some(Share(ratio)) } else { None }
    }

    pub const fn ratio(self) -> Ratio {
        self.0
    }

    /// Whether this delivery takes part in this trial: the same answer at each of its attempts, and another part of the
    /// deliveries in another trial.
    pub fn takes(self, trial: TrialId, delivery: DeliveryId) -> bool {
        let fold = |bits: u128| (bits >> 64) as u64 ^ (bits as u64).rotate_left(32);
        let point = mixed(mixed(fold(trial.as_u128())) ^ fold(delivery.as_u128()));
        // The point's place on a line of ten thousand parts.
        (u128::from(point) * u128::from(WHOLE)) >> 64 < u128::from(self.0.0)
    }
}

/// The finish of SplitMix64: each bit of the input moves half of the bits of the output.
fn mixed(bits: u64) -> u64 {
    let mut z = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What a version's rules came to in one attempt.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    Delivered,
    Retryable,
    Terminal,
    /// Its `transform` left the event out.
    Skipped,
    Fault,
    /// It made a request where the other made none, so that there is no answer to judge.
    Sent,
}

impl Said {
    pub const ALL: [Said; 6] =
        [Said::Delivered, Said::Retryable, Said::Terminal, Said::Skipped, Said::Fault, Said::Sent];

    pub const fn as_str(self) -> &'static str {
        match self {
            Said::Delivered => "delivered",
            Said::Retryable => "retryable",
            Said::Terminal => "terminal",
            Said::Skipped => "skipped",
            Said::Fault => "fault",
            Said::Sent => "sent",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Said::ALL.into_iter().find(|said| said.as_str() == text)
    }
}

/// How often one version said what.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    pub delivered: u64,
    pub retryable: u64,
    pub terminal: u64,
    pub skipped: u64,
    pub faults: u64,
    pub sent: u64,
}

impl Counts {
    pub fn add(&mut self, said: Said, times: u64) {
        let count = match said {
            Said::Delivered => &mut self.delivered,
            Said::Retryable => &mut self.retryable,
            Said::Terminal => &mut self.terminal,
            Said::Skipped => &mut self.skipped,
            Said::Fault => &mut self.faults,
            Said::Sent => &mut self.sent,
        };
        *count = count.saturating_add(times);
    }

    pub fn add_all(&mut self, more: &Counts) {
        for said in Said::ALL {
            self.add(said, more.of(said));
        }
    }

    pub const fn of(&self, said: Said) -> u64 {
        match said {
            Said::Delivered => self.delivered,
            Said::Retryable => self.retryable,
            Said::Terminal => self.terminal,
            Said::Skipped => self.skipped,
            Said::Fault => self.faults,
            Said::Sent => self.sent,
        }
    }

    pub fn calls(&self) -> u64 {
        Said::ALL.into_iter().map(|said| self.of(said)).fold(0, u64::saturating_add)
    }
}

/// When a canary goes back: more than so much of its newest calls, once there are enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    pub max_fault_rate: Ratio,
    pub max_terminal_rate: Ratio,
    /// 1 to [`Bounds::CALLS_JUDGED`].
    pub min_calls: u16,
}

impl Bounds {
    /// The rates are those of so many calls, the newest: a canary that turns bad late is found out as soon.
    pub const CALLS_JUDGED: u16 = 1_000;
    /// So many faults in a row need no rate.
    pub const FAULTS_IN_A_ROW: u16 = 20;
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { max_fault_rate: Ratio(200), max_terminal_rate: Ratio(1_000), min_calls: 50 }
    }
}

/// Of a canary's newest calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Window {
    pub calls: u16,
    pub faults: u16,
    pub terminal: u16,
    pub faults_in_a_row: u16,
}

/// What is to become of a canary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judged {
    Go,
    RollBack(Why),
}

/// Why a canary goes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    FaultsInARow(u16),
    FaultRate { faults: u16, calls: u16, bound: Ratio },
    TerminalRate { terminal: u16, calls: u16, bound: Ratio },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::FaultsInARow(faults) => write!(f, "{faults} faults in a row"),
            Why::FaultRate { faults, calls, bound } => {
                write!(f, "fault rate over {bound}: {faults} of the newest {calls} calls")
            }
            Why::TerminalRate { terminal, calls, bound } => {
                write!(f, "terminal rate over {bound}: {terminal} of the newest {calls} calls")
            }
        }
    }
}

/// Whether a canary goes on.
pub fn judge(window: &Window, bounds: &Bounds) -> Judged {
    let Window { calls, faults, terminal, faults_in_a_row } = *window;
    if faults_in_a_row >= Bounds::FAULTS_IN_A_ROW {
        return Judged::RollBack(Why::FaultsInARow(faults_in_a_row));
    }
    if calls < bounds.min_calls {
        return Judged::Go;
    }
    let passes = |bound: Ratio, part: u16| bound.is_passed_by(part.into(), calls.into());
    if passes(bounds.max_fault_rate, faults) {
        return Judged::RollBack(Why::FaultRate { faults, calls, bound: bounds.max_fault_rate });
    }
    if passes(bounds.max_terminal_rate, terminal) {
        return Judged::RollBack(Why::TerminalRate { terminal, calls, bound: bounds.max_terminal_rate });
    }
    Judged::Go
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mark {
    Fine,
    Fault,
    Terminal,
}

/// A canary's newest calls, one by one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recent {
    marks: VecDeque<Mark>,
    window: Window,
}

impl Recent {
    /// As it was left. In which order the calls came is not kept: those that speak against it count as the newest.
    pub fn resumed(window: Window) -> Self {
        let (faults, terminal) = (window.faults.min(window.calls), window.terminal);
        let terminal = terminal.min(window.calls - faults);
        let marks = |mark, times: u16| std::iter::repeat_n(mark, times.into());
        let fine = marks(Mark::Fine, window.calls - faults - terminal);
        let all = fine.chain(marks(Mark::Terminal, terminal)).chain(marks(Mark::Fault, faults));
        let newest = usize::from(window.calls.saturating_sub(Bounds::CALLS_JUDGED));
        let mut recent = Recent { marks: all.skip(newest).collect(), window: Window::default() };
        let count = |marks: &VecDeque<Mark>, mark| {
            u16::try_from(marks.iter().filter(|m| **m == mark).count()).unwrap_or(u16::MAX)
        };
        recent.window = Window {
            calls: window.calls.min(Bounds::CALLS_JUDGED),
            faults: count(&recent.marks, Mark::Fault),
            terminal: count(&recent.marks, Mark::Terminal),
            faults_in_a_row: window.faults_in_a_row,
        };
        recent
    }

    pub const fn window(&self) -> Window {
        self.window
    }

    pub fn note(&mut self, said: Said) {
        let mark = match said {
            Said::Fault => Mark::Fault,
            Said::Terminal => Mark::Terminal,
            Said::Delivered | Said::Retryable | Said::Skipped | Said::Sent => Mark::Fine,
        };
        let window = &mut self.window;
        if self.marks.len() >= usize::from(Bounds::CALLS_JUDGED) {
            match self.marks.pop_front() {
                Some(Mark::Fault) => window.faults -= 1,
                Some(Mark::Terminal) => window.terminal -= 1,
                Some(Mark::Fine) | None => {}
            }
        } else {
            window.calls += 1;
        }
        self.marks.push_back(mark);
        match mark {
            Mark::Fault => window.faults += 1,
            Mark::Terminal => window.terminal += 1,
            Mark::Fine => {}
        }
        window.faults_in_a_row = if mark == Mark::Fault { window.faults_in_a_row.saturating_add(1) } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::delivery::Mint;
    use crate::entropy::SystemEntropy;
    use proptest::prelude::*;

    fn ratio(text: &str) -> Ratio {
        text.parse().unwrap()
    }

    #[test]
    fn a_percentage_is_read_and_written() {
        for (text, parts) in [
            ("0%", 0),
            ("100%", 10_000),
            ("10%", 1_000),
            ("0.5%", 50),
            ("0.01%", 1),
            ("12.25%", 1_225),
            ("12.05%", 1_205),
        ] {
            assert_eq!(ratio(text), Ratio(parts), "{text}");
            assert_eq!(Ratio(parts).to_string(), text);
        }
        assert_eq!((ratio("010%"), ratio("1.50%")), (Ratio(1_000), Ratio(150)));
        for bad in [
            "", "%", "10", "0.1", "-1%", "+1%", "100.01%", "101%", "1000%", "1.%", ".5%", "0.001%", "1 %", "1%%",
            "NaN%",
        ] {
            assert_eq!(bad.parse::<Ratio>(), Err(BadRatio), "{bad}");
        }
        assert_eq!(
            (Ratio::of(1, 3), Ratio::of(0, 0), Ratio::of(5, 4)),
            (Some(Ratio(3_333)), None, Some(Ratio(10_000)))
        );
    }

    /// The same deliveries over each share: how many take part, within five standard deviations.
    #[test]
    fn a_share_is_that_share_of_the_deliveries() {
        let mint = Mint::default();
        let fresh = || mint.mint(Timestamp::from_millis(1_700_000_000_000), &SystemEntropy);
        let deliveries: Vec<DeliveryId> = (0..40_000).map(|_| fresh().into()).collect();
        let (one, other) = (TrialId::from(fresh()), TrialId::from(fresh()));
        for text in ["0.01%", "0.5%", "1%", "10%", "33.33%", "50%", "90%", "99.99%", "100%"] {
            let share = Share::new(ratio(text)).unwrap();
            let expected = 40_000.0 * f64::from(ratio(text).0) / 10_000.0;
            let slack = 5.0 * (expected * (1.0 - expected / 40_000.0)).sqrt();
            let taken: Vec<bool> = deliveries.iter().map(|id| share.takes(one, *id)).collect();
            let count = f64::from(u32::try_from(taken.iter().filter(|t| **t).count()).unwrap());
            assert!((count - expected).abs() <= slack, "{text}: {count} of 40000");
            // Asked again, the same; in another trial, others.
            assert!(deliveries.iter().zip(&taken).all(|(id, t)| share.takes(one, *id) == *t));
            if text == "50%" {
                let both = deliveries.iter().filter(|id| share.takes(one, **id) && share.takes(other, **id)).count();
                assert!((9_500..=10_500).contains(&both), "{both} in both trials");
            }
        }
        assert_eq!(Share::new(ratio("0%")), None);
    }

    /// Ids that follow each other in everything but a bit fall on both sides.
    #[test]
    fn near_ids_fall_on_both_sides() {
        let (share, trial) = (Share::new(ratio("50%")).unwrap(), TrialId::from_u128(7));
        for shift in [0, 40, 64, 80, 118] {
            let taken = (0..1_000_u128).filter(|n| share.takes(trial, DeliveryId::from_u128(n << shift))).count();
            assert!((400..=600).contains(&taken), "{shift}: {taken}");
        }
    }

    #[test]
    fn a_canary_is_judged_by_its_newest_calls() {
        let bounds = Bounds { max_fault_rate: ratio("2%"), max_terminal_rate: ratio("10%"), min_calls: 50 };
        let strict = Bounds { max_fault_rate: ratio("0%"), max_terminal_rate: ratio("0%"), min_calls: 1 };
        let never = Bounds { max_fault_rate: ratio("100%"), max_terminal_rate: ratio("100%"), min_calls: 1 };
        let window = |calls, faults, terminal, faults_in_a_row| Window { calls, faults, terminal, faults_in_a_row };
        let (by_faults, by_terminal) = (Some("fault rate"), Some("terminal rate"));
        for (window, bounds, expected) in [
            (window(0, 0, 0, 0), bounds, None),
            // Too few to judge, whatever they say.
            (window(49, 19, 30, 19), bounds, None),
            (window(50, 1, 5, 1), bounds, None),
            (window(50, 2, 0, 0), bounds, by_faults),
            (window(50, 0, 6, 0), bounds, by_terminal),
            (window(50, 2, 6, 0), bounds, by_faults),
            // The bound itself is within it.
            (window(1_000, 20, 100, 0), bounds, None),
            (window(1_000, 21, 100, 0), bounds, by_faults),
            (window(1_000, 20, 101, 0), bounds, by_terminal),
            (window(1, 0, 0, 0), strict, None),
            (window(1, 1, 0, 1), strict, by_faults),
            (window(1, 0, 1, 0), strict, by_terminal),
            (window(1_000, 0, 1_000, 0), never, None),
            (window(1_000, 1_000, 0, 19), never, None),
            // In a row, they need neither a rate nor a number of calls.
            (window(20, 20, 0, 20), bounds, Some("20 faults in a row")),
            (window(1_000, 20, 0, 20), never, Some("20 faults in a row")),
        ] {
            match (judge(&window, &bounds), expected) {
                (Judged::Go, None) => {}
                (Judged::RollBack(why), Some(word)) => assert!(why.to_string().starts_with(word), "{why}: {window:?}"),
                (judged, expected) => panic!("{window:?}: {judged:?} and not {expected:?}"),
            }
        }
    }

    #[test]
    fn one_that_turns_bad_late_is_found_out() {
        let mut recent = Recent::default();
        for _ in 0..100_000 {
            recent.note(Said::Delivered);
        }
        let bounds = Bounds::default();
        let mut more = 0;
        while judge(&recent.window(), &bounds) == Judged::Go {
            recent.note(Said::Terminal);
            more += 1;
        }
        assert_eq!(more, 101, "10 % of the newest 1000, and one");
        let left = Recent::resumed(recent.window());
        assert_eq!(judge(&left.window(), &bounds), judge(&recent.window(), &bounds), "over a restart too");
    }

    proptest! {
        /// The window is what counting the newest calls one by one gives, and a restart loses nothing of it.
        #[test]
        fn the_window_counts_the_newest(all in prop::collection::vec(0_usize..6, 0..2_500)) {
            let mut recent = Recent::default();
            for at in &all {
                recent.note(Said::ALL[*at]);
            }
            let newest = &all[all.len().saturating_sub(1_000)..];
            let count = |said| u16::try_from(newest.iter().filter(|at| Said::ALL[**at] == said).count()).unwrap();
            let row = all.iter().rev().take_while(|at| Said::ALL[**at] == Said::Fault).count();
            let window = Window {
                calls: u16::try_from(newest.len()).unwrap(),
                faults: count(Said::Fault),
                terminal: count(Said::Terminal),
                faults_in_a_row: u16::try_from(row).unwrap(),
            };
            prop_assert_eq!(recent.window(), window);
            prop_assert_eq!(Recent::resumed(window).window(), window);
        }
    }
}
