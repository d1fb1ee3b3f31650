//! What happened to one attempt (the outcome), what the plugin or the built-in rules make of it (the verdict),
//! and what we do (the disposition).

use crate::clock::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// A stable, machine-readable word: `[a-z0-9_.-]{1,64}`.
#[derive(Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Reason(std::borrow::Cow<'static, str>);

impl Reason {
    pub const ACKED: Reason = Reason::word("acked");
    pub const AMBIGUOUS: Reason = Reason::word("ambiguous");
    pub const CANCELLED: Reason = Reason::word("cancelled");
    pub const PURGED: Reason = Reason::word("purged");
    pub const CRASH_LOOP: Reason = Reason::word("crash_loop");
    pub const ENDPOINT_PAUSED: Reason = Reason::word("endpoint_paused");
    pub const EXPIRED: Reason = Reason::word("expired");
    pub const GONE: Reason = Reason::word("http_410");
    pub const INTERRUPTED: Reason = Reason::word("interrupted");
    pub const MAX_AGE: Reason = Reason::word("max_age");
    pub const NACKED: Reason = Reason::word("nacked");
    pub const PLUGIN_FAULT: Reason = Reason::word("plugin_fault");
    pub const POLICY: Reason = Reason::word("policy");
    pub const SHUTDOWN: Reason = Reason::word("shutdown");

    /// A reason of ours.
    pub const BYTES_MAX: usize = 64;

    pub const fn word(word: &'static str) -> Self {
        Reason(std::borrow::Cow::Borrowed(word))
    }

    /// `http_<status>`, the built-in reason for an answer.
    pub fn status(status: u16) -> Self {
        Reason(format!("http_{status}").into())
    }

    /// A reason from outside; `None` when it is not of the allowed form.
    pub fn parse(text: &str) -> Option<Self> {
        let ok = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'.' | b'-');
        ((1..=Self::BYTES_MAX).contains(&text.len()) && text.bytes().all(ok)).then(|| Reason(text.to_owned().into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why no complete response head arrived. `Blocked` is not here: see [`Outcome::Refused`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransportKind {
    Dns,
    Connect,
    Tls,
    Timeout,
    Reset,
    Protocol,
    Other,
}

impl TransportKind {
    pub const ALL: [TransportKind; 7] = [
        TransportKind::Dns,
        TransportKind::Connect,
        TransportKind::Tls,
        TransportKind::Timeout,
        TransportKind::Reset,
        TransportKind::Protocol,
        TransportKind::Other,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            TransportKind::Dns => "dns",
            TransportKind::Connect => "connect",
            TransportKind::Tls => "tls",
            TransportKind::Timeout => "timeout",
            TransportKind::Reset => "reset",
            TransportKind::Protocol => "protocol",
            TransportKind::Other => "other",
        }
    }

    /// A failure as an attempt keeps it: what happened, and its kind.
    pub fn told(self, detail: &str) -> String {
        format!("{detail} ({})", self.as_str())
    }

    /// What [`TransportKind::told`] was made of; `None`: it was not.
    pub fn read(told: &str) -> Option<(Self, &str)> {
        let (detail, kind) = told.strip_suffix(')')?.rsplit_once(" (")?;
        Some((Self::ALL.into_iter().find(|known| known.as_str() == kind)?, detail))
    }
}

/// How far a request had come when it failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// No byte of the request left: the receiver cannot have acted on it.
    BeforeWrite,
    /// Some of it may have been received: whether the receiver acted is not known.
    AfterWrite,
}

/// `Retry-After` as the receiver wrote it (RFC 9110 section 10.2.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetryAfter {
    Delay(Duration),
    At(Timestamp),
}

impl RetryAfter {
    /// Reads either form; what cannot be parsed is `None` and thereby ignored.
    pub fn parse(value: &str) -> Option<Self> {
        let value = value.trim_matches([' ', '\t']);
        if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
            // More digits than a u64 holds is still a number: the longest wait there is.
            return Some(RetryAfter::Delay(Duration::from_secs(value.parse().unwrap_or(u64::MAX))));
        }
        let at = httpdate::parse_http_date(value).ok()?;
        let since = at.duration_since(std::time::UNIX_EPOCH).ok()?;
        Some(RetryAfter::At(Timestamp::from_millis(i64::try_from(since.as_millis()).ok()?)))
    }

    /// The wait it asks for, seen from `now`. A date in the past asks for none.
    pub fn wait(self, now: Timestamp) -> Duration {
        match self {
            RetryAfter::Delay(d) => d,
            RetryAfter::At(t) => t.since(now),
        }
    }
}

/// Whom a retry hint is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PauseScope {
    Delivery,
    Endpoint,
}

/// A plugin's wish for the next try; the host clamps it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RetryHint {
    pub reason: Reason,
    pub after: Option<Duration>,
    pub scope: PauseScope,
}

/// What an answer means. Advice: the host decides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// `reference`: what the receiver calls it, e.g. a provider's message id.
    Delivered {
        reference: Option<String>,
        reason: Option<Reason>,
    },
    Retryable(RetryHint),
    Terminal(Reason),
}

impl Verdict {
    pub const fn as_str(&self) -> &'static str {
        match self {
            Verdict::Delivered { .. } => "delivered",
            Verdict::Retryable(_) => "retryable",
            Verdict::Terminal(_) => "terminal",
        }
    }
}

/// Who made the verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecidedBy {
    /// The tenant's `classify`.
    Plugin,
    /// The built-in rules for status codes and transport faults.
    Builtin,
    /// The host alone: expiry, crash budget, address policy, plugin faults.
    Host,
    /// Who fetched it from a pull endpoint.
    Consumer,
}

impl DecidedBy {
    pub const ALL: [DecidedBy; 4] = [DecidedBy::Plugin, DecidedBy::Builtin, DecidedBy::Host, DecidedBy::Consumer];

    pub const fn as_str(self) -> &'static str {
        match self {
            DecidedBy::Plugin => "plugin",
            DecidedBy::Builtin => "builtin",
            DecidedBy::Host => "host",
            DecidedBy::Consumer => "consumer",
        }
    }
}

/// The kinds of plugin fault.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    Trap,
    Deadline,
    Memory,
    OutputTooLarge,
    /// A host-owned header, a bad path, a bad reason word.
    BadOutput,
    /// The event is larger than the plugin may be given. Another try would be the same: dead at once.
    InputTooLarge,
    /// The plugin's own `fault`.
    Plugin,
    /// Disabled, or still compiling.
    Unavailable,
}

impl FaultKind {
    pub const ALL: [FaultKind; 8] = [
        FaultKind::Trap,
        FaultKind::Deadline,
        FaultKind::Memory,
        FaultKind::OutputTooLarge,
        FaultKind::BadOutput,
        FaultKind::InputTooLarge,
        FaultKind::Plugin,
        FaultKind::Unavailable,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            FaultKind::Trap => "trap",
            FaultKind::Deadline => "deadline",
            FaultKind::Memory => "memory",
            FaultKind::OutputTooLarge => "output_too_large",
            FaultKind::BadOutput => "bad_output",
            FaultKind::InputTooLarge => "input_too_large",
            FaultKind::Plugin => "plugin",
            FaultKind::Unavailable => "unavailable",
        }
    }
}

/// A plugin call that gave no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    pub kind: FaultKind,
    /// For people: at most 1 KiB, without a byte of the payload.
    pub detail: String,
}

impl Fault {
    const TOLD: &'static str = "plugin fault ";

    /// As an attempt keeps it beside the verdict that stood in.
    pub fn told(&self) -> String {
        format!("{}{}: {}", Self::TOLD, self.kind.as_str(), self.detail)
    }

    /// What [`Fault::told`] was made of; `None`: it was not.
    pub fn read(told: &str) -> Option<Self> {
        let (kind, detail) = told.strip_prefix(Self::TOLD)?.split_once(": ")?;
        let kind = FaultKind::ALL.into_iter().find(|known| known.as_str() == kind)?;
        Some(Fault { kind, detail: detail.to_owned() })
    }
}

/// Why `transform` wants an event left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SkipReason(pub Reason);

/// What happened to one attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// A complete response head arrived.
    Answered { status: u16, verdict: Verdict, retry_after: Option<RetryAfter> },
    /// The exchange failed before a response head; `verdict` as for an answer.
    Unreachable { kind: TransportKind, phase: Phase, verdict: Verdict },
    /// The time for the exchange ran out.
    TimedOut { phase: Phase, verdict: Verdict },
    /// The consumer who had fetched it said what became of it.
    Told(Verdict),
    /// `transform` gave no request: nothing was sent.
    Faulted(Fault),
    /// `transform` said that this endpoint does not get this event.
    Skipped(SkipReason),
    /// The address guard, or an invalid URL: nothing was sent, and nothing ever will be.
    Refused(Reason),
    /// The process, or the consumer's lease, ended while the attempt was under way.
    Interrupted,
    /// Handed back before its first byte left: a stop, or a pause of the endpoint.
    Released(Reason),
}

impl Outcome {
    pub const fn as_str(&self) -> &'static str {
        match self {
            Outcome::Answered { .. } => "answered",
            Outcome::Unreachable { .. } => "unreachable",
            Outcome::TimedOut { .. } => "timed_out",
            Outcome::Told(Verdict::Delivered { .. }) => "acked",
            Outcome::Told(Verdict::Retryable(_) | Verdict::Terminal(_)) => "nacked",
            Outcome::Faulted(_) => "faulted",
            Outcome::Skipped(_) => "skipped",
            Outcome::Refused(_) => "refused",
            Outcome::Interrupted => "interrupted",
            Outcome::Released(_) => "released",
        }
    }

    /// Whether the receiver may have acted on it without our knowing how it ended.
    pub const fn is_ambiguous(&self) -> bool {
        match self {
            Outcome::Unreachable { phase, .. } | Outcome::TimedOut { phase, .. } => matches!(phase, Phase::AfterWrite),
            Outcome::Interrupted => true,
            Outcome::Answered { .. }
            | Outcome::Told(_)
            | Outcome::Faulted(_)
            | Outcome::Skipped(_)
            | Outcome::Refused(_)
            | Outcome::Released(_) => false,
        }
    }
}

/// What we do with the delivery.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Disposition {
    Delivered {
        reference: Option<String>,
    },
    Skipped(Reason),
    RetryAt {
        due: Timestamp,
        reason: Reason,
    },
    Dead(Reason),
    Expired(Reason),
    /// Not counted; due again at `due`.
    Released {
        due: Timestamp,
        reason: Reason,
    },
}

impl Disposition {
    pub const fn as_str(&self) -> &'static str {
        match self {
            Disposition::Delivered { .. } => "delivered",
            Disposition::Skipped(_) => "skipped",
            Disposition::RetryAt { .. } => "retry_at",
            Disposition::Dead(_) => "dead",
            Disposition::Expired(_) => "expired",
            Disposition::Released { .. } => "released",
        }
    }

    /// When the delivery is due again, if ever.
    pub const fn next_at(&self) -> Option<Timestamp> {
        match self {
            Disposition::RetryAt { due, .. } | Disposition::Released { due, .. } => Some(*due),
            Disposition::Delivered { .. }
            | Disposition::Skipped(_)
            | Disposition::Dead(_)
            | Disposition::Expired(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_forms() {
        let secs = |n| Some(RetryAfter::Delay(Duration::from_secs(n)));
        assert_eq!(RetryAfter::parse("120"), secs(120));
        assert_eq!(RetryAfter::parse(" 0 "), secs(0));
        assert_eq!(RetryAfter::parse("99999999999999999999999"), secs(u64::MAX));
        let at = RetryAfter::parse("Tue, 14 Nov 2023 22:13:20 GMT");
        assert_eq!(at, Some(RetryAfter::At(Timestamp::from_millis(1_700_000_000_000))));
        for bad in ["", " ", "-1", "1.5", "+3", "soon", "12 s", "2023-11-14T22:13:20Z"] {
            assert_eq!(RetryAfter::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_date_in_the_past_asks_for_no_wait() {
        let at = RetryAfter::At(Timestamp::from_millis(1_000));
        assert_eq!(at.wait(Timestamp::from_millis(5_000)), Duration::ZERO);
        assert_eq!(at.wait(Timestamp::from_millis(400)), Duration::from_millis(600));
    }

    #[test]
    fn a_failure_is_read_as_it_was_told() {
        for kind in TransportKind::ALL {
            for detail in ["", "connect: refused", "a (b) (dns)"] {
                assert_eq!(TransportKind::read(&kind.told(detail)), Some((kind, detail)));
            }
        }
        for other in ["", "refused", "no (TLS)", "(dns)", "no answer (dns"] {
            assert_eq!(TransportKind::read(other), None, "{other}");
        }
    }

    #[test]
    fn a_fault_is_read_as_it_was_told() {
        for kind in FaultKind::ALL {
            let fault = Fault { kind, detail: "config: no `to`; plugin fault trap: x".to_owned() };
            assert_eq!(Fault::read(&fault.told()), Some(fault));
        }
        assert_eq!(Fault::read("plugin fault odd: x"), None);
        assert_eq!(Fault::read("no answer"), None);
    }

    #[test]
    fn reasons_are_words() {
        assert!(Reason::parse("provider.suspended-2_x").is_some());
        for bad in ["", "Upper", "a b", "ü", &"x".repeat(65)] {
            assert!(Reason::parse(bad).is_none(), "{bad}");
        }
    }
}
