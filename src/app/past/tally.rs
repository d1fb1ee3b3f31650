//! What would change, counted.

use crate::plugin::compare::FAULT;
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Tally {
    pub(super) verdicts: Side,
    pub(super) requests: Side,
}

#[derive(Default)]
pub(super) struct Side {
    same: u64,
    faults: u64,
    changes: BTreeMap<(&'static str, &'static str), u64>,
    left_out: BTreeMap<&'static str, u64>,
}

impl Side {
    /// One that was looked at from both sides.
    pub(super) fn pair(&mut self, from: &'static str, to: &'static str, differs: bool) {
        self.faults += u64::from(to == FAULT);
        if differs {
            *self.changes.entry((from, to)).or_default() += 1;
        } else {
            self.same += 1;
        }
    }

    pub(super) fn left_out(&mut self, why: &'static str) {
        *self.left_out.entry(why).or_default() += 1;
    }

    /// The largest change first.
    fn told(&self) -> Value {
        let mut changes: Vec<_> = self.changes.iter().collect();
        changes.sort_by(|(a, n), (b, m)| m.cmp(n).then(a.cmp(b)));
        let change = |((from, to), count): (&(&str, &str), &u64)| json!({ "from": from, "to": to, "count": count });
        json!({
            "same": self.same,
            "changed": self.changes.values().sum::<u64>(),
            "faults": self.faults,
            "changes": changes.into_iter().map(change).collect::<Vec<_>>(),
            "left_out": self.left_out,
        })
    }
}

impl Tally {
    /// Verdicts, and requests.
    pub(super) fn told(&self) -> (Value, Value) {
        (self.verdicts.told(), self.requests.told())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_counted_the_largest_first() {
        let mut tally = Tally::default();
        for (from, to, differs) in [
            ("retryable", "retryable", false),
            ("retryable", "terminal", true),
            ("terminal", "fault", true),
            ("retryable", "terminal", true),
            ("terminal", "terminal", true),
            ("fault", "fault", false),
        ] {
            tally.verdicts.pair(from, to, differs);
        }
        tally.verdicts.left_out("erased");
        let (verdicts, requests) = tally.told();
        let expected = json!({
            "same": 2, "changed": 4, "faults": 2,
            "changes": [
                { "from": "retryable", "to": "terminal", "count": 2 },
                { "from": "terminal", "to": "fault", "count": 1 },
                { "from": "terminal", "to": "terminal", "count": 1 },
            ],
            "left_out": { "erased": 1 },
        });
        assert_eq!(verdicts, expected);
        assert_eq!(requests, json!({ "same": 0, "changed": 0, "faults": 0, "changes": [], "left_out": {} }));
    }
}
