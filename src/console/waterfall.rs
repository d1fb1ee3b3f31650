//! The attempts of a delivery and the waits between them, to scale.

use super::model::Delivery;
use crate::clock::Timestamp;
use std::time::Duration;

/// Of the drawing, which is stretched to the width there is.
pub(super) const WIDTH: u32 = 1_000;
/// What is shorter is drawn so wide, to be seen at all.
const NARROWEST: u32 = 4;

/// A stretch of the drawing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stretch {
    pub(super) x: u32,
    pub(super) width: u32,
}

#[derive(PartialEq, Eq, Debug)]
pub(super) struct Row {
    pub(super) number: u32,
    /// From the end of what came before to the attempt's start, or to where it will start.
    pub(super) wait: Stretch,
    pub(super) waited: Duration,
    /// `None`: it has not ended.
    pub(super) took: Option<Duration>,
    /// `None`: it has not begun.
    pub(super) attempt: Option<Stretch>,
    pub(super) class: &'static str,
}

#[derive(PartialEq, Eq, Debug)]
pub(super) struct Waterfall {
    pub(super) rows: Vec<Row>,
    pub(super) whole: Duration,
}

fn class(verdict: Option<&str>, outcome: Option<&str>) -> &'static str {
    match (verdict, outcome) {
        (Some("delivered"), _) => "good",
        (Some("retryable"), _) => "wait",
        (_, None) => "now",
        (_, Some("released" | "interrupted" | "skipped")) => "calm",
        (_, Some(_)) => "bad",
    }
}

impl Waterfall {
    pub(super) fn of(delivery: &Delivery, now: Timestamp) -> Self {
        let from = delivery.created_at;
        let ends = |at: &super::model::Attempt| {
            at.duration_ms.map_or(now.max(at.started_at), |ms| at.started_at.plus(Duration::from_millis(ms)))
        };
        let due = delivery.due_at.filter(|_| delivery.state == "pending");
        let last = delivery.attempts.iter().map(ends).chain(due).max().unwrap_or(now).max(from);
        let whole = last.since(from).max(Duration::from_millis(1));
        let place = |at: Timestamp| {
            let part = at.since(from).as_millis() * u128::from(WIDTH) / whole.as_millis();
            u32::try_from(part).unwrap_or(WIDTH).min(WIDTH)
        };
        let stretch = |from: Timestamp, to: Timestamp| {
            let (x, end) = (place(from), place(to));
            Stretch { x, width: end.saturating_sub(x) }
        };
        let visible = |stretch: Stretch| {
            let width = stretch.width.max(NARROWEST);
            Stretch { x: stretch.x.min(WIDTH - width), width }
        };
        let (mut rows, mut before) = (Vec::new(), from);
        for attempt in &delivery.attempts {
            rows.push(Row {
                number: attempt.number,
                wait: stretch(before, attempt.started_at),
                waited: attempt.started_at.since(before),
                took: attempt.duration_ms.map(Duration::from_millis),
                attempt: Some(visible(stretch(attempt.started_at, ends(attempt)))),
                class: class(attempt.verdict.as_deref(), attempt.outcome.as_deref()),
            });
            before = ends(attempt);
        }
        if let Some(due) = due {
            let number = delivery.attempts.last().map_or(0, |attempt| attempt.number) + 1;
            let (wait, waited) = (stretch(before, due), due.since(before));
            rows.push(Row { number, wait, waited, took: None, attempt: None, class: "next" });
        }
        Waterfall { rows, whole }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn delivery(state: &str, due_at: Option<i64>, attempts: &[(i64, Option<u64>)]) -> Delivery {
        let at = |ms: i64| Timestamp::from_millis(1_767_225_600_000 + ms).to_rfc3339();
        let attempts: Vec<_> = (1..)
            .zip(attempts)
            .map(|(number, (start, took))| {
                json!({
                    "id": "att", "number": number, "generation": 1, "revision": 0, "started_at": at(*start),
                    "duration_ms": took, "outcome": took.map(|_| "answered"), "verdict": "retryable",
                    "ambiguous": false,
                })
            })
            .collect();
        let all = json!({
            "id": "dlv", "event": "evt", "event_type": "t", "endpoint": "e", "host": "h", "state": state,
            "attempt_count": 1, "generation": 1, "revision": 0, "due_at": due_at.map(at), "created_at": at(0),
            "idempotency_key": "k", "attempts": attempts,
        });
        serde_json::from_value(all).unwrap()
    }

    #[test]
    fn waits_and_attempts_are_to_scale() {
        let now = Timestamp::from_millis(1_767_225_600_000 + 60_000);
        let drawn = Waterfall::of(&delivery("pending", Some(10_000), &[(1_000, Some(2_000)), (5_000, Some(1))]), now);
        assert_eq!(drawn.whole, Duration::from_secs(10));
        let seen: Vec<_> =
            drawn.rows.iter().map(|row| (row.wait.x, row.wait.width, row.attempt.map(|a| (a.x, a.width)))).collect();
        assert_eq!(seen, [(0, 100, Some((100, 200))), (300, 200, Some((500, NARROWEST))), (500, 500, None)]);
        assert_eq!(drawn.rows[2].number, 3);
        assert_eq!(drawn.rows[1].waited, Duration::from_secs(2));
    }

    #[test]
    fn it_stays_within_its_width() {
        let now = Timestamp::from_millis(1_767_225_600_000);
        for of in [
            delivery("delivered", None, &[(0, Some(0))]),
            delivery("in_flight", None, &[(0, None)]),
            delivery("dead", None, &[(0, Some(1)), (3_600_000, Some(1))]),
            delivery("pending", Some(0), &[]),
            delivery("cancelled", None, &[]),
        ] {
            for row in Waterfall::of(&of, now).rows {
                assert!(row.wait.x + row.wait.width <= WIDTH, "{row:?}");
                assert!(row.attempt.is_none_or(|drawn| drawn.x + drawn.width <= WIDTH), "{row:?}");
            }
        }
    }
}
