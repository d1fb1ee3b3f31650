//! The goals: ratios of rows of one repetition, and what becomes of those over the run.

use crate::figures::{Figures, Repetition, Row, Run};
use serde::Serialize;

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// Which of the repetitions is held against the bound.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Over {
    Median,
    /// The one with the largest value: a stall is a stall, however rare.
    Largest,
}

pub(crate) struct Goal {
    pub(crate) title: &'static str,
    pub(crate) bound: Bound,
    pub(crate) unit: &'static str,
    pub(crate) over: Over,
    measured: fn(&Repetition) -> Option<f64>,
}

impl Goal {
    pub(crate) fn measured(&self, run: &Run) -> Option<f64> {
        match self.over {
            Over::Median => run.median(self.measured),
            Over::Largest => run.range(self.measured).map(|(_, largest)| largest),
        }
    }

    pub(crate) fn is_met(&self, measured: f64) -> bool {
        match self.bound {
            Bound::AtLeast(least) => measured >= least,
            Bound::AtMost(most) => measured <= most,
        }
    }
}

pub(crate) const GOALS: &[Goal] = &[
    Goal {
        title: "accept ÷ bare hyper with HMAC",
        bound: Bound::AtLeast(0.35),
        unit: "×",
        over: Over::Median,
        measured: |r| rates(r, Row::Accept, Row::BareVerified),
    },
    Goal {
        title: "accept → delivered ÷ prototype",
        bound: Bound::AtLeast(0.85),
        unit: "×",
        over: Over::Median,
        measured: |r| rates(r, Row::Deliver, Row::Prototype),
    },
    Goal {
        title: "accept → delivered ÷ bare hyper",
        bound: Bound::AtLeast(0.23),
        unit: "×",
        over: Over::Median,
        measured: |r| rates(r, Row::Deliver, Row::Bare),
    },
    Goal {
        title: "CPU per delivered event ÷ (bare hyper with HMAC + ledger + outbound client)",
        bound: Bound::AtMost(1.5),
        unit: "×",
        over: Over::Median,
        measured: |r| {
            let cpu = |row| r.get(&row).and_then(|f: &Figures| f.cpu_us);
            let parts = cpu(Row::BareVerified)? + cpu(Row::Ledger)? + cpu(Row::Outbound)?;
            ratio(cpu(Row::Deliver)?, parts)
        },
    },
    Goal {
        title: "with the plugin ÷ without",
        bound: Bound::AtLeast(0.6),
        unit: "×",
        over: Over::Median,
        measured: |r| rates(r, Row::DeliverClassified, Row::Deliver),
    },
    Goal {
        title: "at half load, accept → delivered, p99",
        bound: Bound::AtMost(5.0),
        unit: "ms",
        over: Over::Median,
        measured: |r| Some(r.get(&Row::DeliverHalf)?.p99_us / 1000.0),
    },
    Goal {
        title: "at half load, accept → delivered, the longest",
        bound: Bound::AtMost(10.0),
        unit: "ms",
        over: Over::Largest,
        measured: |r| Some(r.get(&Row::DeliverHalf)?.max_us / 1000.0),
    },
    Goal {
        title: "at rest, accept → delivered, p50 ÷ (2 round trips + 1 durable write)",
        bound: Bound::AtMost(1.5),
        unit: "×",
        over: Over::Median,
        measured: |r| {
            let floor = 2.0 * r.get(&Row::RoundTripAtRest)?.p50_us + r.get(&Row::DiskAtRest)?.p50_us;
            ratio(r.get(&Row::DeliverAtRest)?.p50_us, floor)
        },
    },
    Goal {
        title: "classify call, fresh instance, p50",
        bound: Bound::AtMost(15.0),
        unit: "µs",
        over: Over::Median,
        measured: |r| Some(r.get(&Row::Call)?.p50_us),
    },
    Goal {
        title: "classify call ÷ the same directly on the engine",
        bound: Bound::AtMost(1.3),
        unit: "×",
        over: Over::Median,
        measured: |r| ratio(r.get(&Row::Call)?.p50_us, r.get(&Row::CallDirect)?.p50_us),
    },
    Goal {
        title: "classify calls, two threads ÷ one",
        bound: Bound::AtLeast(1.7),
        unit: "×",
        over: Over::Median,
        measured: |r| rates(r, Row::CallTwoThreads, Row::Call),
    },
    Goal {
        title: "p99 beside a plugin that spins ÷ beside none",
        bound: Bound::AtMost(1.1),
        unit: "×",
        over: Over::Median,
        measured: |r| r.get(&Row::BesideSpin)?.ratio,
    },
    Goal {
        title: "p99 beside a plugin that allocates to the limit ÷ beside none",
        bound: Bound::AtMost(1.1),
        unit: "×",
        over: Over::Median,
        measured: |r| r.get(&Row::BesideAllocate)?.ratio,
    },
    Goal {
        title: "p99 beside a plugin that recurses ÷ beside none",
        bound: Bound::AtMost(1.1),
        unit: "×",
        over: Over::Median,
        measured: |r| r.get(&Row::BesideRecurse)?.ratio,
    },
    Goal {
        title: "p99 beside a plugin that floods logs ÷ beside none",
        bound: Bound::AtMost(1.1),
        unit: "×",
        over: Over::Median,
        measured: |r| r.get(&Row::BesideFloodLogs)?.ratio,
    },
    Goal {
        title: "p99 beside a plugin that gives more output than allowed ÷ beside none",
        bound: Bound::AtMost(1.1),
        unit: "×",
        over: Over::Median,
        measured: |r| r.get(&Row::BesideHugeOutput)?.ratio,
    },
    Goal {
        title: "p99 beside a plugin that gives all the output allowed ÷ beside none",
        bound: Bound::AtMost(1.1),
        unit: "×",
        over: Over::Median,
        measured: |r| r.get(&Row::BesideLargeOutput)?.ratio,
    },
    Goal {
        title: "p99 beside a plugin that traps ÷ beside none",
        bound: Bound::AtMost(1.1),
        unit: "×",
        over: Over::Median,
        measured: |r| r.get(&Row::BesideTrap)?.ratio,
    },
    Goal {
        title: "p99 while an upload is compiled that is ruinous ÷ before",
        bound: Bound::AtMost(1.1),
        unit: "×",
        over: Over::Median,
        measured: |r| r.get(&Row::BesideCompile)?.ratio,
    },
    Goal {
        title: "many plugins, compilations of each until it is reloaded and started again",
        bound: Bound::AtMost(1.0),
        unit: "",
        over: Over::Largest,
        measured: |r| {
            let rows = [Row::PluginsStart, Row::PluginsReload, Row::PluginsRestart];
            rows.iter().map(|row| r.get(row)?.ratio).sum()
        },
    },
    Goal {
        title: "many plugins, memory of each",
        bound: Bound::AtMost(256.0),
        unit: "KiB",
        over: Over::Median,
        measured: |r| r.get(&Row::PluginsMemory)?.ratio,
    },
    Goal {
        title: "p99 beside an endpoint that hangs ÷ before",
        bound: Bound::AtMost(2.0),
        unit: "×",
        over: Over::Median,
        measured: |r| r.get(&Row::HangBeside)?.ratio,
    },
    Goal {
        title: "beside an endpoint that hangs, memory that is added",
        bound: Bound::AtMost(8.0),
        unit: "MiB",
        over: Over::Largest,
        measured: |r| r.get(&Row::HangBeside)?.memory_mib,
    },
    Goal {
        title: "idle with deliveries that wait, CPU",
        bound: Bound::AtMost(1.0),
        unit: "%",
        over: Over::Largest,
        measured: |r| r.get(&Row::Idle)?.ratio,
    },
    Goal {
        title: "ledger with a past ÷ empty, accept + settle",
        bound: Bound::AtLeast(0.9),
        unit: "×",
        over: Over::Median,
        measured: |r| rates(r, Row::Aged, Row::Ledger),
    },
    Goal {
        title: "ledger with a past, first page of deliveries, the longest",
        bound: Bound::AtMost(100.0),
        unit: "ms",
        over: Over::Largest,
        measured: |r| Some(r.get(&Row::AgedPage)?.max_us / 1000.0),
    },
    Goal {
        title: "ledger with a past, claim, p99",
        bound: Bound::AtMost(10.0),
        unit: "ms",
        over: Over::Median,
        measured: |r| Some(r.get(&Row::AgedClaim)?.p99_us / 1000.0),
    },
    Goal {
        title: "ledger with a past, start after a kill",
        bound: Bound::AtMost(5.0),
        unit: "s",
        over: Over::Largest,
        measured: |r| Some(r.get(&Row::AgedStart)?.max_us / 1e6),
    },
    Goal {
        title: "dead letters, the newest 50 by any filter, the longest",
        bound: Bound::AtMost(100.0),
        unit: "ms",
        over: Over::Largest,
        measured: |r| {
            let rows = [Row::DeskList, Row::DeskListFiltered];
            rows.iter().filter_map(|row| Some(r.get(row)?.max_us / 1000.0)).reduce(f64::max)
        },
    },
    Goal {
        title: "dead letters, grouped, the longest",
        bound: Bound::AtMost(1.0),
        unit: "s",
        over: Over::Largest,
        measured: |r| Some(r.get(&Row::DeskGroups)?.max_us / 1e6),
    },
    Goal {
        title: "verify 1 KiB, github ÷ bare HMAC",
        bound: Bound::AtMost(1.3),
        unit: "×",
        over: Over::Median,
        measured: |r| rates(r, Row::Hmac, Row::VerifyGithub),
    },
    Goal {
        title: "verify 1 KiB, shopify ÷ bare HMAC",
        bound: Bound::AtMost(1.3),
        unit: "×",
        over: Over::Median,
        measured: |r| rates(r, Row::Hmac, Row::VerifyShopify),
    },
    Goal {
        title: "verify 1 KiB, slack ÷ bare HMAC",
        bound: Bound::AtMost(1.3),
        unit: "×",
        over: Over::Median,
        measured: |r| rates(r, Row::Hmac, Row::VerifySlack),
    },
    Goal {
        title: "verify 1 KiB, standard-webhooks ÷ bare HMAC",
        bound: Bound::AtMost(1.3),
        unit: "×",
        over: Over::Median,
        measured: |r| rates(r, Row::Hmac, Row::VerifyStandard),
    },
    Goal {
        title: "verify 1 KiB, stripe ÷ bare HMAC",
        bound: Bound::AtMost(1.3),
        unit: "×",
        over: Over::Median,
        measured: |r| rates(r, Row::Hmac, Row::VerifyStripe),
    },
    Goal {
        title: "memory at full load",
        bound: Bound::AtMost(256.0),
        unit: "MiB",
        over: Over::Largest,
        measured: |r| {
            [Row::Deliver, Row::DeliverClassified].iter().filter_map(|row| r.get(row)?.memory_mib).reduce(f64::max)
        },
    },
];

fn rates(repetition: &Repetition, of: Row, by: Row) -> Option<f64> {
    let rate = |row| repetition.get(&row).map(|f: &Figures| f.per_second);
    ratio(rate(of)?, rate(by)?)
}

fn ratio(of: f64, by: f64) -> Option<f64> {
    (by > 0.0).then_some(of / by)
}
