//! Latencies: recorded in nanoseconds, told in microseconds.

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub(crate) struct Latencies(Histogram<u64>);

/// What is told of a histogram.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) count: u64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
}

impl Latencies {
    /// To three digits, from ten nanoseconds to two minutes.
    pub(crate) fn new() -> Result<Self> {
        Ok(Latencies(Histogram::new_with_bounds(10, 120_000_000_000, 3)?))
    }

    pub(crate) fn record(&mut self, nanos: u64) {
        self.0.saturating_record(nanos);
    }

    pub(crate) fn record_span(&mut self, span: Duration) {
        self.record(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn merge(&mut self, other: &Latencies) -> Result<()> {
        self.0.add(&other.0)?;
        Ok(())
    }

    pub(crate) fn spread(&self) -> Spread {
        let micros = |nanos: u64| Duration::from_nanos(nanos).as_secs_f64() * 1e6;
        Spread {
            count: self.0.len(),
            p50_us: micros(self.0.value_at_quantile(0.5)),
            p99_us: micros(self.0.value_at_quantile(0.99)),
            max_us: micros(self.0.max()),
        }
    }
}
