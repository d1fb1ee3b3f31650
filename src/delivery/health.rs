//! How an endpoint fares over all its deliveries: the circuit breaker, and the end of a long failure. Decided from the
//! attempts that were made, one after the other; a delivery's own budget is `decide`'s alone.

use super::{Outcome, PauseScope, Reason, Verdict};
use crate::clock::Timestamp;
use std::num::NonZeroU32;
use std::time::Duration;

/// Why an endpoint is paused whose breaker is open.
pub const BREAKER_OPEN: Reason = Reason::word("breaker_open");
/// Why an endpoint is disabled that did nothing but fail.
pub const FAILING: Reason = Reason::word("failing");

/// The part of a breaker's pause that is left to chance: so many breakers that opened together do not all probe together.
const CHANCE_PART: u32 = 5;

/// What the endpoint's owner has laid down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HealthPolicy {
    /// `None`: nothing pauses the endpoint but its own answers.
    pub breaker: Option<BreakerPolicy>,
    /// Nothing but failures for so long disable the endpoint; `None`: never.
    pub disable_after: Option<Duration>,
}

impl Default for HealthPolicy {
    /// No breaker: without a `Retry-After` nothing is paused unless somebody asks for it.
    fn default() -> Self {
        HealthPolicy { breaker: None, disable_after: Some(Duration::from_secs(5 * 24 * 3_600)) }
    }
}

/// When the breaker opens, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BreakerPolicy {
    /// Failures in a row that open it.
    pub failures: NonZeroU32,
    /// The first pause; each probe that fails doubles it.
    pub open: Duration,
    /// No pause is longer.
    pub open_max: Duration,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        BreakerPolicy {
            failures: NonZeroU32::MIN.saturating_add(9),
            open: Duration::from_secs(30),
            open_max: Duration::from_secs(600),
        }
    }
}

/// What an attempt's end says of the endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// It took a delivery, or refused one for its own sake.
    Works,
    /// It could not be reached, or did not do its work.
    Fails,
}

impl Signal {
    /// `None`: it says nothing of the endpoint. Not of it but of one payload, of a plugin or of ourselves speak: a
    /// plugin's retry of an answer below 500 (one that sees an outage there pauses the endpoint by its scope), a
    /// plugin's terminal word on a failure, faults, skips, refused addresses, and what was interrupted or handed back.
    /// A throttle that says for how long is no failure either: its pause is obeyed already.
    pub fn of(outcome: &Outcome, now: Timestamp) -> Option<Self> {
        match outcome {
            Outcome::Answered { status, verdict, retry_after } => {
                let throttled = retry_after.is_some_and(|after| !after.wait(now).is_zero());
                Self::of_answer(*status, verdict, throttled)
            }
            Outcome::Unreachable { verdict, .. } | Outcome::TimedOut { verdict, .. } => match verdict {
                Verdict::Delivered { .. } => Some(Signal::Works),
                Verdict::Retryable(_) => Some(Signal::Fails),
                Verdict::Terminal(_) => None,
            },
            Outcome::Told(_)
            | Outcome::Faulted(_)
            | Outcome::Skipped(_)
            | Outcome::Refused(_)
            | Outcome::Interrupted
            | Outcome::Released(_) => None,
        }
    }

    fn of_answer(status: u16, verdict: &Verdict, throttled: bool) -> Option<Self> {
        match verdict {
            Verdict::Delivered { .. } => Some(Signal::Works),
            Verdict::Terminal(_) => (status < 500).then_some(Signal::Works),
            Verdict::Retryable(hint) => match status {
                500.. | 408 => Some(Signal::Fails),
                429 if !throttled && hint.scope == PauseScope::Delivery => Some(Signal::Fails),
                _ => None,
            },
        }
    }
}

/// A signal with all that its judgement needs, handed to whoever applies signals one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pulse {
    pub signal: Signal,
    pub policy: HealthPolicy,
    /// Uniform over all of `u64`.
    pub chance: u64,
}

/// What is remembered of an endpoint. The default: nothing to complain of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Health {
    pub failing: Option<Failing>,
    pub tripped: Option<Tripped>,
}

/// Nothing but failures since it last worked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failing {
    pub since: Timestamp,
    /// In a row.
    pub failures: NonZeroU32,
    /// When it was said that the endpoint will be disabled if this goes on.
    pub alerted_at: Option<Timestamp>,
}

impl Failing {
    /// When it is disabled at the earliest: after `disable_after`, and never within half of that after the alert.
    pub fn disables_at(&self, disable_after: Duration, now: Timestamp) -> Timestamp {
        let half = disable_after / 2;
        let alerted_at = self.alerted_at.unwrap_or_else(|| self.since.plus(half).max(now));
        self.since.plus(disable_after).max(alerted_at.plus(half))
    }
}

/// The breaker has opened and not closed since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tripped {
    /// An attempt that began later is a probe; one that began before tells nothing new.
    pub at: Timestamp,
    pub until: Timestamp,
    /// The pause before chance cut it.
    pub span: Duration,
}

/// Where the breaker stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BreakerState {
    Closed,
    Open {
        until: Timestamp,
    },
    /// One probe at a time goes out.
    HalfOpen,
}

impl BreakerState {
    pub const fn as_str(self) -> &'static str {
        match self {
            BreakerState::Closed => "closed",
            BreakerState::Open { .. } => "open",
            BreakerState::HalfOpen => "half_open",
        }
    }
}

impl Health {
    pub fn breaker(&self, now: Timestamp) -> BreakerState {
        match self.tripped {
            None => BreakerState::Closed,
            Some(Tripped { until, .. }) if now < until => BreakerState::Open { until },
            Some(_) => BreakerState::HalfOpen,
        }
    }

    /// An operator ends the pause: the next attempt is the probe.
    pub fn resumed(self, now: Timestamp) -> Self {
        let tripped = self.tripped.map(|tripped| Tripped { until: tripped.until.min(now), ..tripped });
        Health { tripped, ..self }
    }
}

impl Health {
    /// The clock was set: nothing was in the future, and no pause lasts longer from now than it was to last at all.
    pub fn reanchored(self, now: Timestamp) -> Self {
        let failing = self.failing.map(|failing| Failing {
            since: failing.since.min(now),
            alerted_at: failing.alerted_at.map(|at| at.min(now)),
            ..failing
        });
        let tripped = self.tripped.map(|tripped| Tripped {
            at: tripped.at.min(now),
            until: tripped.until.min(now.plus(tripped.span)),
            ..tripped
        });
        Health { failing, tripped }
    }
}

/// What the breaker did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    Opened { until: Timestamp },
    Closed,
}

/// The next state, and what follows from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    pub health: Health,
    pub breaker: Option<Turn>,
    /// It did nothing but fail for too long.
    pub disables: bool,
}

/// What becomes of an endpoint by an attempt that began at `began_at` and ended now.
pub fn step(health: Health, pulse: &Pulse, began_at: Timestamp, now: Timestamp) -> Step {
    let Pulse { signal, policy, chance } = pulse;
    let failing = match signal {
        Signal::Works => None,
        Signal::Fails => Some(match health.failing {
            None => Failing { since: now, failures: NonZeroU32::MIN, alerted_at: None },
            Some(failing) => Failing { failures: failing.failures.saturating_add(1), ..failing },
        }),
    };
    let (tripped, breaker) = turn(health.tripped, failing.as_ref(), policy.breaker, *chance, began_at, now);
    let (failing, disables) = match (failing, policy.disable_after) {
        (Some(failing), Some(after)) => {
            let (failing, disables) = long_failure(failing, after, now);
            (Some(failing), disables)
        }
        (failing, _) => (failing, false),
    };
    Step { health: Health { failing, tripped }, breaker, disables }
}

fn turn(
    tripped: Option<Tripped>,
    failing: Option<&Failing>,
    policy: Option<BreakerPolicy>,
    chance: u64,
    began_at: Timestamp,
    now: Timestamp,
) -> (Option<Tripped>, Option<Turn>) {
    let open = |span: Duration| {
        let until = now.plus(cut(span, chance));
        (Some(Tripped { at: now, until, span }), Some(Turn::Opened { until }))
    };
    match (policy, tripped, failing) {
        // Switched off meanwhile.
        (None, tripped, _) => (None, tripped.map(|_| Turn::Closed)),
        (Some(policy), None, Some(failing)) if failing.failures >= policy.failures => {
            open(policy.open.min(policy.open_max))
        }
        (Some(_), None, _) => (None, None),
        (Some(_), Some(before), _) if began_at <= before.at => (Some(before), None),
        (Some(_), Some(_), None) => (None, Some(Turn::Closed)),
        (Some(policy), Some(before), Some(_)) => open(before.span.saturating_mul(2).min(policy.open_max)),
    }
}

/// The last part of a pause is chance.
fn cut(span: Duration, chance: u64) -> Duration {
    let part = span / CHANCE_PART;
    span - part + super::Jitter::Full.spread(part, chance)
}

/// Half-way it is put down that an alert stands; the end is half of the time after that, or later.
fn long_failure(failing: Failing, after: Duration, now: Timestamp) -> (Failing, bool) {
    match failing.alerted_at {
        None if now < failing.since.plus(after / 2) => (failing, false),
        None => (Failing { alerted_at: Some(now), ..failing }, false),
        Some(_) => (failing, now >= failing.disables_at(after, now)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Fault, FaultKind, Phase, RetryAfter, RetryHint, SkipReason, TransportKind, classify};
    use super::*;
    use proptest::prelude::*;

    const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn at(n: u64) -> Timestamp {
        NOW.plus(secs(n))
    }

    fn breaker(failures: u32) -> HealthPolicy {
        let failures = NonZeroU32::new(failures).unwrap();
        HealthPolicy {
            breaker: Some(BreakerPolicy { failures, open: secs(30), open_max: secs(100) }),
            disable_after: None,
        }
    }

    fn pulse(signal: Signal, policy: HealthPolicy) -> Pulse {
        Pulse { signal, policy, chance: u64::MAX }
    }

    /// Fails at each of these seconds, each attempt beginning a second before.
    fn fail(mut health: Health, policy: HealthPolicy, seconds: &[u64]) -> (Health, Vec<Step>) {
        let mut steps = Vec::new();
        for second in seconds {
            let step = step(health, &pulse(Signal::Fails, policy), at(second.saturating_sub(1)), at(*second));
            health = step.health;
            steps.push(step);
        }
        (health, steps)
    }

    #[test]
    fn what_an_outcome_says() {
        use Signal::{Fails, Works};
        let said = |outcome: &Outcome| Signal::of(outcome, NOW);
        let answered = |status, verdict, after: Option<&str>| {
            said(&Outcome::Answered { status, verdict, retry_after: after.and_then(RetryAfter::parse) })
        };
        let by_rule = |status, after| answered(status, classify::builtin(classify::Observed::Status(status)), after);
        for (status, after, expected) in [
            (204, None, Some(Works)),
            (400, None, Some(Works)),
            (301, None, Some(Works)),
            (408, None, Some(Fails)),
            (425, None, None),
            (429, None, Some(Fails)),
            (429, Some("5"), None),
            (429, Some("0"), Some(Fails)),
            (500, None, Some(Fails)),
            (503, Some("5"), Some(Fails)),
        ] {
            assert_eq!(by_rule(status, after), expected, "{status} {after:?}");
        }
        let retry = |scope| Verdict::Retryable(RetryHint { reason: Reason::word("x"), after: None, scope });
        assert_eq!(answered(200, retry(PauseScope::Delivery), None), None);
        assert_eq!(answered(429, retry(PauseScope::Endpoint), None), None);
        assert_eq!(answered(502, retry(PauseScope::Endpoint), None), Some(Fails));
        assert_eq!(answered(500, Verdict::Terminal(Reason::word("x")), None), None);
        let lost = |verdict| Outcome::TimedOut { phase: Phase::AfterWrite, verdict };
        assert_eq!(said(&lost(retry(PauseScope::Delivery))), Some(Fails));
        assert_eq!(said(&lost(Verdict::Terminal(Reason::word("x")))), None);
        let kind = TransportKind::Connect;
        let verdict = classify::builtin(classify::Observed::Transport(kind));
        assert_eq!(said(&Outcome::Unreachable { kind, phase: Phase::BeforeWrite, verdict }), Some(Fails));
        for silent in [
            Outcome::Faulted(Fault { kind: FaultKind::Trap, detail: String::new() }),
            Outcome::Skipped(SkipReason(Reason::word("x"))),
            Outcome::Refused(Reason::POLICY),
            Outcome::Interrupted,
            Outcome::Released(Reason::SHUTDOWN),
        ] {
            assert_eq!(said(&silent), None, "{silent:?}");
        }
    }

    #[test]
    fn it_opens_at_the_last_of_so_many_and_each_failed_probe_doubles_it_to_the_most() {
        let policy = breaker(3);
        let (health, steps) = fail(Health::default(), policy, &[1, 2, 3]);
        let turns: Vec<Option<Turn>> = steps.iter().map(|step| step.breaker).collect();
        assert_eq!(turns, [None, None, Some(Turn::Opened { until: at(33) })]);
        assert_eq!(health.breaker(at(32)), BreakerState::Open { until: at(33) });
        assert_eq!(health.breaker(at(33)), BreakerState::HalfOpen);
        let (health, steps) = fail(health, policy, &[40, 110]);
        let turns: Vec<Option<Turn>> = steps.iter().map(|step| step.breaker).collect();
        assert_eq!(turns, [Some(Turn::Opened { until: at(100) }), Some(Turn::Opened { until: at(210) })]);
        let closed = step(health, &pulse(Signal::Works, policy), at(211), at(212));
        assert_eq!((closed.health, closed.breaker), (Health::default(), Some(Turn::Closed)));
        // From the start again.
        let (_, steps) = fail(closed.health, policy, &[220, 221, 222]);
        assert_eq!(steps[2].breaker, Some(Turn::Opened { until: at(252) }));
    }

    #[test]
    fn what_was_under_way_when_it_opened_moves_it_no_more() {
        let policy = breaker(2);
        let (health, _) = fail(Health::default(), policy, &[1, 2]);
        let late = step(health, &pulse(Signal::Fails, policy), at(2), at(60));
        assert_eq!((late.health.tripped, late.breaker), (health.tripped, None));
        let late = step(health, &pulse(Signal::Works, policy), at(1), at(60));
        assert_eq!((late.health.tripped, late.health.failing, late.breaker), (health.tripped, None, None));
    }

    #[test]
    fn one_that_works_in_between_starts_the_row_anew() {
        let policy = breaker(2);
        let (health, _) = fail(Health::default(), policy, &[1]);
        let health = step(health, &pulse(Signal::Works, policy), at(1), at(2)).health;
        assert_eq!(health, Health::default());
        assert_eq!(fail(health, policy, &[3]).1[0].breaker, None);
    }

    #[test]
    fn switched_off_it_closes_and_resumed_it_probes() {
        let (health, _) = fail(Health::default(), breaker(1), &[1]);
        assert_eq!(health.resumed(at(5)).breaker(at(5)), BreakerState::HalfOpen);
        assert_eq!(health.resumed(at(90)), health, "a pause that is over is not made longer");
        let off = step(health, &pulse(Signal::Fails, HealthPolicy::default()), at(1), at(2));
        assert_eq!((off.health.tripped, off.breaker), (None, Some(Turn::Closed)));
    }

    #[test]
    fn a_long_failure_is_told_half_way_and_disables_at_the_end() {
        let told = |policy, seconds: &[u64]| -> Vec<(Option<Timestamp>, bool)> {
            let (_, steps) = fail(Health::default(), policy, seconds);
            steps.iter().map(|step| (step.health.failing.unwrap().alerted_at, step.disables)).collect()
        };
        let policy = HealthPolicy { breaker: None, disable_after: Some(secs(100)) };
        let half = Some(at(50));
        let expected = [(None, false), (None, false), (half, false), (half, false), (half, true)];
        assert_eq!(told(policy, &[0, 49, 50, 99, 100]), expected);
        // Nobody is disabled without having been told in time, as when long nothing was sent at all.
        let late = Some(at(500));
        assert_eq!(told(policy, &[0, 500, 549, 550]), [(None, false), (late, false), (late, false), (late, true)]);
        let never = HealthPolicy { breaker: None, disable_after: None };
        assert_eq!(told(never, &[0, 1_000_000]), [(None, false); 2]);
    }

    #[test]
    fn a_clock_that_was_set_back_leaves_nothing_in_the_future() {
        let (health, _) = fail(Health::default(), breaker(1), &[5_000]);
        assert_eq!(health.reanchored(at(5_010)), health, "as it is");
        let back = health.reanchored(at(1_000));
        let tripped = back.tripped.unwrap();
        assert_eq!((tripped.at, tripped.until), (at(1_000), at(1_030)));
        assert_eq!(back.failing.unwrap().since, at(1_000));
        let closed = step(back, &pulse(Signal::Works, breaker(1)), at(1_031), at(1_032));
        assert_eq!(closed.breaker, Some(Turn::Closed), "its probe is one");
    }

    #[test]
    fn when_it_will_be_disabled() {
        let failing = |alerted_at| Failing { since: NOW, failures: NonZeroU32::MIN, alerted_at };
        assert_eq!(failing(None).disables_at(secs(100), at(10)), at(100));
        assert_eq!(failing(None).disables_at(secs(100), at(90)), at(140));
        assert_eq!(failing(Some(at(50))).disables_at(secs(100), at(60)), at(100));
        assert_eq!(failing(Some(at(80))).disables_at(secs(100), at(90)), at(130));
    }

    proptest! {
        /// Whatever comes, in whatever order: no pause is longer than the most or shorter than four fifths of the
        /// first, it opens only for a probe or for so many in a row, and what works is never paused for it.
        #[test]
        fn pauses_are_bounded(
            run in prop::collection::vec((any::<bool>(), 0u64..60, 0u64..30, any::<u64>()), 1..200),
            failures in 1u32..12,
        ) {
            let policy = breaker(failures);
            let rules = policy.breaker.unwrap();
            let (mut health, mut now, mut row) = (Health::default(), NOW, 0u32);
            for (works, wait, took, chance) in run {
                now = now.plus(secs(wait));
                let began_at = now.minus(secs(took));
                let signal = if works { Signal::Works } else { Signal::Fails };
                row = if works { 0 } else { row + 1 };
                let before = health;
                let Step { health: after, breaker, .. } = step(before, &Pulse { signal, policy, chance }, began_at, now);
                let straggler = before.tripped.is_some_and(|tripped| began_at <= tripped.at);
                match breaker {
                    Some(Turn::Opened { until }) => {
                        let pause = until.since(now);
                        prop_assert!(rules.open * 4 / 5 <= pause && pause <= rules.open_max);
                        prop_assert!(!works && !straggler);
                        prop_assert!(before.tripped.is_some() || row >= failures);
                    }
                    Some(Turn::Closed) => prop_assert!(works && before.tripped.is_some() && !straggler),
                    None => prop_assert_eq!(after.tripped, before.tripped),
                }
                prop_assert_eq!(after.failing.map_or(0, |failing| failing.failures.get()), row);
                health = after;
            }
        }

        /// Something that works on a healthy endpoint changes nothing at all: it costs no write.
        #[test]
        fn health_is_quiet(chance: u64, began in 0u64..1_000, took in 0u64..1_000) {
            let policy = HealthPolicy { breaker: Some(BreakerPolicy::default()), ..HealthPolicy::default() };
            let pulse = Pulse { signal: Signal::Works, policy, chance };
            let quiet = Step { health: Health::default(), breaker: None, disables: false };
            prop_assert_eq!(step(Health::default(), &pulse, at(began), at(began + took)), quiet);
        }
    }
}
