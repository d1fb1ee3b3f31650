//! The one place where it is decided what becomes of a delivery: facts in, decision out.

use super::{
    Disposition, FaultKind, HealthPolicy, MAX_WAIT, Outcome, PauseScope, Reason, RetryAfter, RetryPolicy, Verdict,
};
use crate::clock::Timestamp;
use std::time::Duration;

/// No `Retry-After` is honoured for longer.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);

/// Interrupted attempts in a row that make a crash loop.
const CRASH_LOOP_AFTER: u32 = 3;

/// How long an endpoint rests when its plugin cannot be called at all; then it is looked at again.
const PLUGIN_UNAVAILABLE_PAUSE: Duration = Duration::from_secs(60);

/// What becomes of a delivery whose request may have been received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnAmbiguous {
    /// Tried again under the same idempotency key.
    #[default]
    Retry,
    /// To the DLQ with reason `ambiguous`, to be reconciled by a person.
    Hold,
}

/// What stands in for a `classify` that faulted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnPluginFault {
    #[default]
    Default,
    Retry,
    Dead,
}

/// What the endpoint's owner has laid down.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Terms {
    pub retry: RetryPolicy,
    pub on_ambiguous: OnAmbiguous,
    pub on_plugin_fault: OnPluginFault,
    pub health: HealthPolicy,
}

/// What the ledger knows of the delivery, this attempt included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct History {
    /// Attempts of this generation that count, this one included: 1 at the first try.
    pub counted: u32,
    /// Interrupted attempts directly before this one, in this generation.
    pub interrupted_before: u32,
    /// When this generation began: acceptance, or the redrive.
    pub began_at: Timestamp,
    pub expires_at: Option<Timestamp>,
}

/// What happens to the endpoint besides, in the same transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EndpointEffect {
    PauseUntil { until: Timestamp, why: Reason },
    Disable { why: Reason },
}

/// The decision on one outcome.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    pub disposition: Disposition,
    pub endpoint: Option<EndpointEffect>,
    /// The wait that was wished for, when it was cut to what is allowed.
    pub clamped_from: Option<Duration>,
}

impl From<Disposition> for Decision {
    fn from(disposition: Disposition) -> Self {
        Decision { disposition, endpoint: None, clamped_from: None }
    }
}

/// When the delivery ends by the clock, whichever limit comes first.
fn end(history: &History, terms: &Terms) -> Option<(Timestamp, Reason)> {
    let by_age = terms.retry.max_age.map(|age| (history.began_at.plus(age), Reason::MAX_AGE));
    let by_expiry = history.expires_at.map(|at| (at, Reason::EXPIRED));
    [by_expiry, by_age].into_iter().flatten().min_by_key(|(at, _)| *at)
}

/// Asked before every send. `Some`: the time for it has passed, and nothing is sent.
pub fn may_start(history: &History, terms: &Terms, now: Timestamp) -> Option<Disposition> {
    let (at, reason) = end(history, terms)?;
    (now >= at).then_some(Disposition::Expired(reason))
}

/// What becomes of a delivery after `outcome`. `chance` is uniform over all of `u64`.
pub fn decide(outcome: &Outcome, history: &History, terms: &Terms, now: Timestamp, chance: u64) -> Decision {
    let case = Case { outcome, history, terms, now, chance };
    match outcome {
        Outcome::Answered { status, verdict, retry_after } => case.answered(*status, verdict, *retry_after),
        Outcome::Unreachable { verdict, .. } | Outcome::TimedOut { verdict, .. } | Outcome::Told(verdict) => {
            case.judged(verdict, None)
        }
        Outcome::Faulted(fault) => match fault.kind {
            FaultKind::Unavailable => Decision {
                endpoint: Some(EndpointEffect::PauseUntil {
                    until: now.plus(PLUGIN_UNAVAILABLE_PAUSE),
                    why: Reason::word("plugin_unavailable"),
                }),
                ..Disposition::Released { due: now, reason: Reason::word("plugin_unavailable") }.into()
            },
            FaultKind::InputTooLarge => Disposition::Dead(Reason::PLUGIN_FAULT).into(),
            FaultKind::Trap
            | FaultKind::Deadline
            | FaultKind::Memory
            | FaultKind::OutputTooLarge
            | FaultKind::BadOutput
            | FaultKind::Plugin => case.again(Reason::PLUGIN_FAULT, None, None),
        },
        Outcome::Skipped(reason) => Disposition::Skipped(reason.0.clone()).into(),
        Outcome::Refused(reason) => Disposition::Dead(reason.clone()).into(),
        Outcome::Interrupted => case.interrupted(),
        Outcome::Released(reason) => Disposition::Released { due: now, reason: reason.clone() }.into(),
    }
}

struct Case<'a> {
    outcome: &'a Outcome,
    history: &'a History,
    terms: &'a Terms,
    now: Timestamp,
    chance: u64,
}

impl Case<'_> {
    fn answered(&self, status: u16, verdict: &Verdict, retry_after: Option<RetryAfter>) -> Decision {
        let throttled = match (status, retry_after) {
            (429 | 503, Some(after)) => Some(after.wait(self.now)),
            _ => None,
        };
        let mut decision = self.judged(verdict, throttled);
        if decision.endpoint.is_none() && !matches!(verdict, Verdict::Delivered { .. }) {
            decision.endpoint = match (status, throttled) {
                (410, _) if matches!(verdict, Verdict::Terminal(_)) => {
                    Some(EndpointEffect::Disable { why: Reason::GONE })
                }
                (_, Some(wait)) if !wait.is_zero() => Some(EndpointEffect::PauseUntil {
                    until: self.now.plus(wait.min(RETRY_AFTER_MAX)),
                    why: Reason::word("retry_after"),
                }),
                _ => None,
            };
        }
        decision
    }

    fn judged(&self, verdict: &Verdict, throttled: Option<Duration>) -> Decision {
        match verdict {
            Verdict::Delivered { reference, .. } => Disposition::Delivered { reference: reference.clone() }.into(),
            Verdict::Terminal(reason) => Disposition::Dead(reason.clone()).into(),
            Verdict::Retryable(hint) => {
                let mut decision = self.again(hint.reason.clone(), hint.after, throttled);
                if let (PauseScope::Endpoint, Disposition::RetryAt { .. }) = (hint.scope, &decision.disposition) {
                    // For as long as was asked for, also where this delivery ends before that.
                    let until = self.now.plus(self.wait(hint.after, throttled).0);
                    decision.endpoint = Some(EndpointEffect::PauseUntil { until, why: hint.reason.clone() });
                }
                decision
            }
        }
    }

    fn interrupted(&self) -> Decision {
        let in_a_row = self.history.interrupted_before.saturating_add(1);
        let budget = self.terms.retry.max_attempts;
        if in_a_row >= CRASH_LOOP_AFTER.min(budget) {
            return Disposition::Dead(Reason::CRASH_LOOP).into();
        }
        // A crash says nothing about the receiver: the one more try is due at once.
        self.again(Reason::INTERRUPTED, Some(Duration::ZERO), None)
    }

    /// Another try, unless the budget is spent or the request must not be repeated.
    fn again(&self, reason: Reason, wish: Option<Duration>, throttled: Option<Duration>) -> Decision {
        if self.outcome.is_ambiguous() && self.terms.on_ambiguous == OnAmbiguous::Hold {
            return Disposition::Dead(Reason::AMBIGUOUS).into();
        }
        let policy = &self.terms.retry;
        if self.history.counted >= policy.max_attempts {
            return Disposition::Dead(reason).into();
        }
        let (wait, wished) = self.wait(wish, throttled);
        let due = self.now.plus(wait);
        // Due no later than its end, so that it expires on time rather than at its next step.
        let due = end(self.history, self.terms).map_or(due, |(at, _)| due.min(at.max(self.now)));
        Decision {
            disposition: Disposition::RetryAt { due, reason },
            endpoint: None,
            clamped_from: (wait < wished).then_some(wished),
        }
    }

    /// Until the next try, and what was wished for.
    fn wait(&self, wish: Option<Duration>, throttled: Option<Duration>) -> (Duration, Duration) {
        let policy = &self.terms.retry;
        let step = policy.jitter.spread(policy.backoff.wait_after(self.history.counted), self.chance);
        let wished = wish.unwrap_or(step).max(throttled.unwrap_or_default());
        let wait = match throttled {
            Some(after) => wish.unwrap_or(step).min(MAX_WAIT).max(after.min(RETRY_AFTER_MAX)),
            None => wished.min(MAX_WAIT),
        };
        (wait, wished)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Backoff, Fault, Jitter, Phase, RetryHint, SkipReason, TransportKind, classify};
    use super::*;
    use proptest::prelude::*;

    const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn terms() -> Terms {
        let backoff = Backoff::Ladder(vec![secs(30), secs(60)]);
        let retry = RetryPolicy { max_attempts: 3, backoff, jitter: Jitter::None, max_age: None };
        Terms { retry, ..Terms::default() }
    }

    fn history(counted: u32) -> History {
        History { counted, interrupted_before: 0, began_at: NOW, expires_at: None }
    }

    fn status(status: u16, retry_after: Option<&str>) -> Outcome {
        let verdict = classify::builtin(classify::Observed::Status(status));
        Outcome::Answered { status, verdict, retry_after: retry_after.and_then(RetryAfter::parse) }
    }

    fn lost(phase: Phase) -> Outcome {
        let verdict = classify::builtin(classify::Observed::Transport(TransportKind::Timeout));
        Outcome::TimedOut { phase, verdict }
    }

    fn after(n: u64, reason: &'static str) -> Disposition {
        Disposition::RetryAt { due: NOW.plus(secs(n)), reason: Reason::word(reason) }
    }

    fn dead(reason: &'static str) -> Disposition {
        Disposition::Dead(Reason::word(reason))
    }

    fn disposition(outcome: &Outcome, counted: u32) -> Disposition {
        decide(outcome, &history(counted), &terms(), NOW, 0).disposition
    }

    #[test]
    fn table() {
        let fault = |kind| Outcome::Faulted(Fault { kind, detail: String::new() });
        let refused = Outcome::Refused(Reason::POLICY);
        let skipped = Outcome::Skipped(SkipReason(Reason::word("test_mode")));
        let cases = [
            (status(204, None), 1, Disposition::Delivered { reference: None }),
            (status(500, None), 1, after(30, "http_500")),
            (status(500, None), 2, after(60, "http_500")),
            (status(500, None), 3, dead("http_500")),
            (status(400, None), 1, dead("http_400")),
            (status(301, None), 1, dead("http_301")),
            (status(410, None), 1, dead("http_410")),
            (status(429, Some("5")), 1, after(30, "http_429")),
            (status(429, Some("300")), 1, after(300, "http_429")),
            (status(429, Some("9999999")), 1, after(86_400, "http_429")),
            // Retry-After counts on 429 and 503 only.
            (status(500, Some("300")), 1, after(30, "http_500")),
            (status(429, Some("soon")), 1, after(30, "http_429")),
            (lost(Phase::BeforeWrite), 1, after(30, "timeout")),
            (lost(Phase::AfterWrite), 3, dead("timeout")),
            (fault(FaultKind::Trap), 1, after(30, "plugin_fault")),
            (fault(FaultKind::Deadline), 3, dead("plugin_fault")),
            (fault(FaultKind::InputTooLarge), 1, dead("plugin_fault")),
            (refused, 1, dead("policy")),
            (skipped, 1, Disposition::Skipped(Reason::word("test_mode"))),
            (Outcome::Interrupted, 1, after(0, "interrupted")),
            (Outcome::Interrupted, 3, dead("interrupted")),
            (Outcome::Released(Reason::SHUTDOWN), 1, Disposition::Released { due: NOW, reason: Reason::SHUTDOWN }),
        ];
        for (outcome, counted, expected) in cases {
            assert_eq!(disposition(&outcome, counted), expected, "{outcome:?} at {counted}");
        }
    }

    #[test]
    fn a_throttle_pauses_the_endpoint_for_as_long_as_it_says() {
        for (retry_after, wait) in [("120", 120), ("999999999", 86_400), ("Tue, 14 Nov 2023 22:15:20 GMT", 120)] {
            for code in [429, 503] {
                let decision = decide(&status(code, Some(retry_after)), &history(1), &terms(), NOW, 0);
                let until = NOW.plus(secs(wait));
                let why = Reason::word("retry_after");
                assert_eq!(decision.endpoint, Some(EndpointEffect::PauseUntil { until, why }), "{retry_after}");
            }
        }
        for calm in [status(429, None), status(500, Some("120")), status(429, Some("0"))] {
            assert_eq!(decide(&calm, &history(1), &terms(), NOW, 0).endpoint, None, "{calm:?}");
        }
        // The budget is spent, the throttle still holds for the others.
        assert!(decide(&status(429, Some("120")), &history(3), &terms(), NOW, 0).endpoint.is_some());
    }

    #[test]
    fn gone_disables_unless_the_plugin_thinks_otherwise() {
        let gone = decide(&status(410, None), &history(1), &terms(), NOW, 0);
        assert_eq!(gone.endpoint, Some(EndpointEffect::Disable { why: Reason::GONE }));
        let hint = RetryHint { reason: Reason::word("moving"), after: None, scope: PauseScope::Delivery };
        let moving = Outcome::Answered { status: 410, verdict: Verdict::Retryable(hint), retry_after: None };
        assert_eq!(decide(&moving, &history(1), &terms(), NOW, 0).endpoint, None);
    }

    #[test]
    fn a_plugins_wish_is_honoured_and_clamped() {
        let wish = |after, scope| {
            let hint = RetryHint { reason: Reason::word("busy"), after: Some(secs(after)), scope };
            let outcome = Outcome::Answered { status: 200, verdict: Verdict::Retryable(hint), retry_after: None };
            decide(&outcome, &history(1), &terms(), NOW, 0)
        };
        assert_eq!(wish(7, PauseScope::Delivery), Decision::from(after(7, "busy")));
        let long = wish(3_000_000, PauseScope::Delivery);
        assert_eq!(long.disposition, after(604_800, "busy"));
        assert_eq!(long.clamped_from, Some(secs(3_000_000)));
        let whole = wish(7, PauseScope::Endpoint);
        let pause = EndpointEffect::PauseUntil { until: NOW.plus(secs(7)), why: Reason::word("busy") };
        assert_eq!(whole.endpoint, Some(pause));
    }

    /// What one delivery has no time for, the others behind the endpoint have.
    #[test]
    fn an_endpoint_rests_beyond_the_end_of_the_delivery_that_was_answered() {
        let hint = RetryHint { reason: Reason::word("busy"), after: None, scope: PauseScope::Endpoint };
        let retry_after = Some(RetryAfter::Delay(secs(900)));
        let outcome = Outcome::Answered { status: 429, verdict: Verdict::Retryable(hint), retry_after };
        let history = History { expires_at: Some(NOW.plus(secs(60))), ..history(1) };
        let decision = decide(&outcome, &history, &terms(), NOW, 0);
        assert_eq!(decision.disposition.next_at(), Some(NOW.plus(secs(60))));
        let pause = EndpointEffect::PauseUntil { until: NOW.plus(secs(900)), why: Reason::word("busy") };
        assert_eq!(decision.endpoint, Some(pause));
    }

    #[test]
    fn what_a_consumer_says_is_decided_like_an_answer() {
        let nack = |after: Option<u64>| {
            let hint = RetryHint { reason: Reason::NACKED, after: after.map(secs), scope: PauseScope::Delivery };
            Outcome::Told(Verdict::Retryable(hint))
        };
        let ack = Outcome::Told(Verdict::Delivered { reference: Some("r-1".into()), reason: None });
        let gone = Outcome::Told(Verdict::Terminal(Reason::word("no_such_order")));
        assert_eq!(disposition(&ack, 3), Disposition::Delivered { reference: Some("r-1".into()) });
        assert_eq!(disposition(&nack(None), 1), after(30, "nacked"));
        assert_eq!(disposition(&nack(Some(0)), 1), after(0, "nacked"));
        assert_eq!(disposition(&nack(Some(604_800)), 2), after(604_800, "nacked"));
        assert_eq!(disposition(&nack(Some(5)), 3), dead("nacked"));
        assert_eq!(disposition(&gone, 1), dead("no_such_order"));
        // The consumer has said what became of it: nothing about it is unknown.
        let hold = Terms { on_ambiguous: OnAmbiguous::Hold, ..terms() };
        assert_eq!(decide(&nack(None), &history(1), &hold, NOW, 0), Decision::from(after(30, "nacked")));
        assert_eq!([ack.as_str(), nack(None).as_str(), gone.as_str()], ["acked", "nacked", "nacked"]);
    }

    #[test]
    fn what_may_have_been_received_is_held_when_asked() {
        let hold = Terms { on_ambiguous: OnAmbiguous::Hold, ..terms() };
        let verdict = |outcome: &Outcome| decide(outcome, &history(1), &hold, NOW, 0).disposition;
        assert_eq!(verdict(&lost(Phase::AfterWrite)), dead("ambiguous"));
        assert_eq!(verdict(&Outcome::Interrupted), dead("ambiguous"));
        assert_eq!(verdict(&lost(Phase::BeforeWrite)), after(30, "timeout"));
        assert_eq!(verdict(&status(500, None)), after(30, "http_500"));
    }

    #[test]
    fn three_interruptions_in_a_row_are_a_crash_loop() {
        let nth = |interrupted_before, max_attempts| {
            let mut terms = terms();
            terms.retry.max_attempts = max_attempts;
            let history = History { interrupted_before, ..history(interrupted_before + 1) };
            decide(&Outcome::Interrupted, &history, &terms, NOW, 0).disposition
        };
        assert_eq!(nth(0, 9), after(0, "interrupted"));
        assert_eq!(nth(1, 9), after(0, "interrupted"));
        assert_eq!(nth(2, 9), dead("crash_loop"));
        assert_eq!(nth(1, 2), dead("crash_loop"));
    }

    #[test]
    fn an_unavailable_plugin_burns_no_budget() {
        let fault = Fault { kind: FaultKind::Unavailable, detail: String::new() };
        let decision = decide(&Outcome::Faulted(fault), &history(3), &terms(), NOW, 0);
        assert!(matches!(decision.disposition, Disposition::Released { .. }));
        assert!(matches!(decision.endpoint, Some(EndpointEffect::PauseUntil { .. })));
    }

    #[test]
    fn expiry_comes_first() {
        let mut terms = terms();
        let mut history = history(1);
        assert_eq!(may_start(&history, &terms, NOW), None);
        history.expires_at = Some(NOW.plus(secs(10)));
        assert_eq!(may_start(&history, &terms, NOW.plus(secs(9))), None);
        let expired = Disposition::Expired(Reason::EXPIRED);
        assert_eq!(may_start(&history, &terms, NOW.plus(secs(10))), Some(expired));
        // The next try would be after the end: it is due at the end, to expire on time.
        let next = decide(&status(500, None), &history, &terms, NOW, 0).disposition;
        assert_eq!(next, after(10, "http_500"));
        terms.retry.max_age = Some(secs(5));
        let aged = Disposition::Expired(Reason::MAX_AGE);
        assert_eq!(may_start(&history, &terms, NOW.plus(secs(5))), Some(aged));
    }

    proptest! {
        #[test]
        fn no_budget_is_exceeded_and_no_due_time_is_out_of_bounds(
            code in 100u16..600, counted in 1u32..20, max in 1u32..10, chance: u64, wait in 0u64..10_000_000,
        ) {
            let mut terms = terms();
            terms.retry.max_attempts = max;
            terms.retry.jitter = Jitter::Full;
            let wait = wait.to_string();
            let decision = decide(&status(code, Some(&wait)), &history(counted), &terms, NOW, chance);
            if let Disposition::RetryAt { due, .. } = decision.disposition {
                prop_assert!(counted < max);
                prop_assert!(due >= NOW && due <= NOW.plus(MAX_WAIT));
                if let Some(EndpointEffect::PauseUntil { until, .. }) = decision.endpoint {
                    prop_assert!(due >= until);
                }
            }
        }
    }
}
