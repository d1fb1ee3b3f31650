//! The rows of a run, and what is known of each.

use serde::Serialize;
use std::collections::BTreeMap;

/// What is measured, in the order of the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Row {
    Disk,
    DiskAtRest,
    RoundTripAtRest,
    Bare,
    BareVerified,
    Outbound,
    Prototype,
    PrototypeHalf,
    Ledger,
    AgedStart,
    AgedClaim,
    AgedPage,
    Aged,
    Accept,
    Accept1,
    Accept256,
    Deliver,
    DeliverHalf,
    DeliverAtRest,
    DeliverClassified,
    CallDirect,
    Call,
    CallTwoThreads,
    CallEmptyDirect,
    CallEmpty,
    BesideNone,
    BesideSpin,
    BesideAllocate,
    BesideRecurse,
    BesideFloodLogs,
    BesideHugeOutput,
    BesideLargeOutput,
    BesideTrap,
    BesideCompile,
    PluginsStart,
    PluginsReload,
    PluginsRestart,
    PluginsMemory,
    HangBefore,
    HangBeside,
    Idle,
    DeskDying,
    DeskList,
    DeskListFiltered,
    DeskGroups,
    DeskCount,
    DeskRedrive,
    Hmac,
    VerifyGithub,
    VerifyShopify,
    VerifySlack,
    VerifyStandard,
    VerifyStripe,
}

impl Row {
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Row::Disk => "durable write, one after the other",
            Row::DiskAtRest => "durable write, 50 a second",
            Row::RoundTripAtRest => "raw loopback round trip, 50 a second",
            Row::Bare => "bare hyper, 64 connections",
            Row::BareVerified => "bare hyper + HMAC, 64 connections",
            Row::Outbound => "outbound client, 64 in flight",
            Row::Prototype => "prototype, accept → delivered, 64 connections",
            Row::PrototypeHalf => "prototype at half load",
            Row::Ledger => "the gateway's ledger alone, accept + settle, 64 waiting",
            Row::AgedStart => "ledger with a past: from its opening to the first claim",
            Row::AgedClaim => "ledger with a past: 64 deliveries claimed",
            Row::AgedPage => "ledger with a past: the newest 50 deliveries listed",
            Row::Aged => "ledger with a past: accept + settle, 64 waiting",
            Row::Accept => "gateway, accept, 64 connections",
            Row::Accept1 => "gateway, accept, 1 connection",
            Row::Accept256 => "gateway, accept, 256 connections",
            Row::Deliver => "gateway, accept → delivered, 64 connections",
            Row::DeliverHalf => "gateway at half load",
            Row::DeliverAtRest => "gateway, accept → delivered, 50 a second",
            Row::DeliverClassified => "gateway + plugin, 64 connections",
            Row::CallDirect => "classify call, directly on the engine, one thread",
            Row::Call => "classify call, through the host, one thread",
            Row::CallTwoThreads => "classify call, through the host, two threads",
            Row::CallEmptyDirect => "empty call, directly on the engine, one thread",
            Row::CallEmpty => "empty classify call, through the host, one thread",
            Row::BesideNone => "a tenant's deliveries; the other one's without a plugin",
            Row::BesideSpin => "the same beside a plugin that spins",
            Row::BesideAllocate => "the same beside one that allocates to the limit",
            Row::BesideRecurse => "the same beside one that recurses",
            Row::BesideFloodLogs => "the same beside one that floods logs",
            Row::BesideHugeOutput => "the same beside one with more output than allowed",
            Row::BesideLargeOutput => "the same beside one with all the output allowed",
            Row::BesideTrap => "the same beside one that traps",
            Row::BesideCompile => "the same while an upload is compiled that is ruinous to compile",
            Row::PluginsStart => "many plugins: first start, all compiled",
            Row::PluginsReload => "many plugins: reload",
            Row::PluginsRestart => "many plugins: next start, none compiled",
            Row::PluginsMemory => "many plugins: start of a gateway without any",
            Row::HangBefore => "a tenant's deliveries, 50 a second",
            Row::HangBeside => "the same beside another one's endpoint that hangs",
            Row::Idle => "deliveries that wait for hours",
            Row::DeskDying => "dead letters: from the first event to the death of the last",
            Row::DeskList => "dead letters: the newest 50 listed",
            Row::DeskListFiltered => "dead letters: the same by reason, endpoint and status",
            Row::DeskGroups => "dead letters: grouped",
            Row::DeskCount => "dead letters: counted, with samples",
            Row::DeskRedrive => "dead letters: all redriven, with a kill half-way",
            Row::Hmac => "bare HMAC-SHA256 over 1 KiB, one thread",
            Row::VerifyGithub => "verify 1 KiB, github",
            Row::VerifyShopify => "verify 1 KiB, shopify",
            Row::VerifySlack => "verify 1 KiB, slack",
            Row::VerifyStandard => "verify 1 KiB, standard-webhooks",
            Row::VerifyStripe => "verify 1 KiB, stripe",
        }
    }
}

/// One measurement of a row.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Figures {
    pub(crate) per_second: f64,
    /// Request to answer; where events are delivered, request to arrival.
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
    /// CPU of the measured process per event.
    pub(crate) cpu_us: Option<f64>,
    /// The most that was resident in the measured process since its start.
    pub(crate) memory_mib: Option<f64>,
    /// What the row's goal is about, where that is none of the others.
    pub(crate) ratio: Option<f64>,
    /// What processes that are not ours took meanwhile, in percent of one core.
    pub(crate) others_percent: Option<f64>,
}

/// One pass over all rows.
pub(crate) type Repetition = BTreeMap<Row, Figures>;

/// A run, with what was wrong with it.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Run {
    pub(crate) repetitions: Vec<Repetition>,
    /// Each makes the run invalid.
    pub(crate) faults: Vec<String>,
    /// Said beside the figures.
    pub(crate) notes: Vec<String>,
}

impl Run {
    /// The median over the repetitions that have it.
    pub(crate) fn median(&self, of: impl Fn(&Repetition) -> Option<f64>) -> Option<f64> {
        median(self.repetitions.iter().filter_map(of).collect())
    }

    /// The least and the most.
    pub(crate) fn range(&self, of: impl Fn(&Repetition) -> Option<f64>) -> Option<(f64, f64)> {
        let values = || self.repetitions.iter().filter_map(&of);
        Some((values().min_by(f64::total_cmp)?, values().max_by(f64::total_cmp)?))
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (below, above) = (values.get(values.len().checked_sub(1)? / 2)?, values.get(values.len() / 2)?);
    Some(f64::midpoint(*below, *above))
}
