//! Figures over time as bars and lines, in coordinates of a drawing that is stretched to the width there is.

use super::model::Bucket;
use crate::clock::Timestamp;

pub(super) const WIDTH: u32 = 1_000;
pub(super) const HEIGHT: u32 = 120;

pub(super) struct Bar {
    pub(super) at: Timestamp,
    pub(super) x: u32,
    pub(super) width: u32,
    pub(super) good: u32,
    pub(super) bad: u32,
    pub(super) delivered: u64,
    pub(super) dead: u64,
    pub(super) attempts: u64,
    pub(super) p50: Option<u64>,
    pub(super) p95: Option<u64>,
}

impl Bar {
    /// From the top.
    pub(super) fn good_y(&self) -> u32 {
        HEIGHT - self.good
    }

    pub(super) fn bad_y(&self) -> u32 {
        HEIGHT - self.good - self.bad
    }
}

pub(super) struct Chart {
    pub(super) bars: Vec<Bar>,
    /// The tallest bar.
    pub(super) most: u64,
    pub(super) p50: Vec<String>,
    pub(super) p95: Vec<String>,
    /// The longest time.
    pub(super) longest_ms: u64,
}

fn scaled(n: u64, most: u64) -> u32 {
    let part = u128::from(n) * u128::from(HEIGHT) / u128::from(most.max(1));
    // What there is can be seen.
    u32::try_from(part).unwrap_or(HEIGHT).max(if n > 0 { 2 } else { 0 })
}

impl Chart {
    pub(super) fn of(buckets: &[Bucket]) -> Self {
        let most = buckets.iter().map(|bucket| bucket.delivered + bucket.dead).max().unwrap_or(0);
        let longest_ms = buckets.iter().filter_map(|bucket| bucket.latency_ms.p95).max().unwrap_or(0);
        let number = u32::try_from(buckets.len().max(1)).unwrap_or(u32::MAX);
        let slot = |at: usize| u32::try_from(at).unwrap_or(u32::MAX).saturating_mul(WIDTH) / number;
        let bars: Vec<Bar> = buckets
            .iter()
            .enumerate()
            .map(|(at, bucket)| {
                let (x, next) = (slot(at), slot(at + 1));
                let bad = scaled(bucket.dead, most);
                Bar {
                    at: bucket.at,
                    x,
                    width: (next - x).saturating_sub(2).max(1),
                    good: scaled(bucket.delivered, most).min(HEIGHT - bad),
                    bad,
                    delivered: bucket.delivered,
                    dead: bucket.dead,
                    attempts: bucket.attempts,
                    p50: bucket.latency_ms.p50,
                    p95: bucket.latency_ms.p95,
                }
            })
            .collect();
        let line = |of: fn(&Bar) -> Option<u64>| {
            let (mut lines, mut points): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
            // A gap where nothing was delivered.
            for bar in bars.iter().map(Some).chain([None]) {
                match bar.and_then(|bar| Some((bar, of(bar)?))) {
                    Some((bar, ms)) => {
                        points.push(format!("{},{}", bar.x, HEIGHT - scaled(ms, longest_ms).min(HEIGHT)));
                        points.push(format!("{},{}", bar.x + bar.width, HEIGHT - scaled(ms, longest_ms).min(HEIGHT)));
                    }
                    None if points.is_empty() => {}
                    None => lines.push(std::mem::take(&mut points).join(" ")),
                }
            }
            lines
        };
        Chart { most, p50: line(|bar| bar.p50), p95: line(|bar| bar.p95), longest_ms, bars }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.most == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn bucket(delivered: u64, dead: u64, p95: Option<u64>) -> Bucket {
        let at = "2026-01-01T00:00:00.000Z";
        let latency = json!({ "p50": p95, "p95": p95, "p99": p95 });
        let all = json!({
            "at": at, "delivered": delivered, "dead": dead, "attempts": delivered + dead, "latency_ms": latency,
        });
        serde_json::from_value(all).unwrap()
    }

    #[test]
    fn bars_are_to_scale_and_lines_have_gaps() {
        let chart =
            Chart::of(&[bucket(90, 10, Some(50)), bucket(0, 0, None), bucket(50, 0, Some(100)), bucket(0, 1, None)]);
        let drawn: Vec<_> = chart.bars.iter().map(|bar| (bar.x, bar.good, bar.bad)).collect();
        assert_eq!(drawn, [(0, 108, 12), (250, 0, 0), (500, 60, 0), (750, 0, 2)]);
        assert_eq!(chart.p95, ["0,60 248,60", "500,0 748,0"]);
        assert!(chart.bars.iter().all(|bar| bar.good + bar.bad <= HEIGHT && bar.x + bar.width <= WIDTH));
        assert!(Chart::of(&[]).is_empty() && Chart::of(&[bucket(0, 0, None)]).is_empty());
    }
}
