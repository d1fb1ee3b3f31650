//! The built-in meaning of answers and transport faults, and what stands in for a plugin that faulted.

use super::{OnPluginFault, PauseScope, Reason, RetryHint, TransportKind, Verdict};

/// What can be observed of an exchange, without a plugin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Observed {
    Status(u16),
    Transport(TransportKind),
}

impl Observed {
    fn reason(self) -> Reason {
        match self {
            Observed::Status(status) => Reason::status(status),
            Observed::Transport(kind) => Reason::word(kind.as_str()),
        }
    }
}

fn retryable(reason: Reason) -> Verdict {
    Verdict::Retryable(RetryHint { reason, after: None, scope: PauseScope::Delivery })
}

/// 2xx delivered; 408, 425, 429, 5xx and transport faults retryable; any other status terminal.
pub fn builtin(observed: Observed) -> Verdict {
    match observed {
        Observed::Status(200..=299) => Verdict::Delivered { reference: None, reason: None },
        Observed::Status(408 | 425 | 429 | 500..=599) | Observed::Transport(_) => retryable(observed.reason()),
        Observed::Status(_) => Verdict::Terminal(observed.reason()),
    }
}

/// The verdict when `classify` faulted.
pub fn after_fault(rule: OnPluginFault, observed: Observed) -> Verdict {
    match rule {
        OnPluginFault::Default => builtin(observed),
        OnPluginFault::Retry => retryable(Reason::PLUGIN_FAULT),
        OnPluginFault::Dead => Verdict::Terminal(Reason::PLUGIN_FAULT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        let word = |status| builtin(Observed::Status(status)).as_str();
        for status in 100..=999 {
            let expected = match status {
                200..=299 => "delivered",
                408 | 425 | 429 | 500..=599 => "retryable",
                _ => "terminal",
            };
            assert_eq!(word(status), expected, "{status}");
        }
        for kind in TransportKind::ALL {
            assert_eq!(builtin(Observed::Transport(kind)), retryable(Reason::word(kind.as_str())));
        }
    }

    #[test]
    fn fault_rules() {
        let ok = Observed::Status(200);
        assert_eq!(after_fault(OnPluginFault::Default, ok).as_str(), "delivered");
        assert_eq!(after_fault(OnPluginFault::Retry, ok), retryable(Reason::PLUGIN_FAULT));
        assert_eq!(after_fault(OnPluginFault::Dead, ok), Verdict::Terminal(Reason::PLUGIN_FAULT));
    }
}
