//! The figures of a window and where things stand, as JSON.

use super::query::Query;
use super::{At, answer, ledger_problem, not_found};
use crate::clock::Timestamp;
use crate::delivery::{EndpointStatus, Name};
use crate::duration;
use crate::http::{Answer, Problem};
use crate::ledger::{
    BadWindow, Closed, Count, EndpointStats, SourceStats, StatsQuery, StatsWindow, Tally, TenantStats,
};
use http::StatusCode;
use serde::Serialize;
use std::time::Duration;

const SPAN_DEFAULT: Duration = Duration::from_secs(24 * 3_600);
/// Buckets of all endpoints together.
const BUCKETS_MAX: usize = 20_000;
const REASONS_MAX: usize = 20;

#[derive(Serialize)]
struct Stats {
    since: Timestamp,
    until: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    bucket: Option<String>,
    endpoints: Vec<OfEndpoint>,
    total: Total,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sources: Vec<OfSource>,
}

#[derive(Serialize)]
struct OfEndpoint {
    endpoint: Name,
    host: String,
    now: Now,
    #[serde(flatten)]
    figures: Figures,
    paused_ms: u64,
    disabled_ms: u64,
    closed: Vec<OfClosed>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    buckets: Vec<OfBucket>,
}

#[derive(Serialize)]
struct Now {
    #[serde(flatten)]
    status: EndpointStatus,
    #[serde(flatten)]
    counts: Standing,
}

#[derive(Serialize)]
struct Total {
    now: Standing,
    #[serde(flatten)]
    figures: Figures,
}

/// Counted from the rows.
#[derive(Serialize, Default)]
struct Standing {
    pending: u64,
    available: u64,
    in_flight: u64,
    dead: u64,
    oldest_pending_at: Option<Timestamp>,
    oldest_pending_age_seconds: Option<u64>,
    oldest_dead_at: Option<Timestamp>,
    oldest_dead_age_seconds: Option<u64>,
}

impl Standing {
    fn of(stats: &EndpointStats, now: Timestamp) -> Self {
        let age = |at: Timestamp| now.since(at).as_secs();
        let state = &stats.state;
        Standing {
            pending: state.pending,
            available: state.available,
            in_flight: state.in_flight,
            dead: state.dead,
            oldest_pending_at: state.oldest_pending_at,
            oldest_pending_age_seconds: state.oldest_pending_at.map(age),
            oldest_dead_at: stats.oldest_dead_at,
            oldest_dead_age_seconds: stats.oldest_dead_at.map(age),
        }
    }

    fn add(&mut self, other: &Standing) {
        self.pending += other.pending;
        self.available += other.available;
        self.in_flight += other.in_flight;
        self.dead += other.dead;
        let older = |a: Option<Timestamp>, b: Option<Timestamp>| a.into_iter().chain(b).min();
        let longer = |a: Option<u64>, b: Option<u64>| a.max(b);
        self.oldest_pending_at = older(self.oldest_pending_at, other.oldest_pending_at);
        self.oldest_pending_age_seconds = longer(self.oldest_pending_age_seconds, other.oldest_pending_age_seconds);
        self.oldest_dead_at = older(self.oldest_dead_at, other.oldest_dead_at);
        self.oldest_dead_age_seconds = longer(self.oldest_dead_age_seconds, other.oldest_dead_age_seconds);
    }
}

#[derive(Serialize)]
struct Figures {
    accepted: u64,
    delivered: u64,
    delivered_after_redrive: u64,
    skipped: u64,
    expired: u64,
    dead: u64,
    cancelled: u64,
    superseded: u64,
    resolved: u64,
    redriven: u64,
    /// Dead of all that ended.
    terminal_rate: Option<f64>,
    latency_ms: Latency,
    attempts: u64,
    attempts_per_delivered: Option<f64>,
    by_attempt: Vec<OfAttempt>,
    released: u64,
    interrupted: u64,
    ambiguous: u64,
    status_429: u64,
    throttled: u64,
    reasons: Vec<OfReason>,
}

#[derive(Serialize)]
struct Latency {
    p50: Option<u64>,
    p95: Option<u64>,
    p99: Option<u64>,
}

#[derive(Serialize)]
struct OfAttempt {
    attempt: u16,
    tried: u64,
    delivered: u64,
    /// Of all that was delivered.
    share: Option<f64>,
    /// Of those that were tried.
    success_rate: Option<f64>,
}

#[derive(Serialize)]
struct OfReason {
    reason: String,
    retried: u64,
    dead: u64,
}

#[derive(Serialize)]
struct OfClosed {
    status: &'static str,
    why: String,
    ms: u64,
}

#[derive(Serialize)]
struct OfBucket {
    at: Timestamp,
    accepted: u64,
    delivered: u64,
    skipped: u64,
    expired: u64,
    dead: u64,
    attempts: u64,
    throttled: u64,
    latency_ms: Latency,
}

#[derive(Serialize)]
struct OfSource {
    /// `null`: published by API.
    source: Option<Name>,
    events: u64,
    duplicates: u64,
    keys_reused: u64,
}

fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// To four places; `None`: of nothing.
#[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| (part as f64 / whole as f64 * 10_000.0).round() / 10_000.0)
}

impl Latency {
    fn of(tally: &Tally) -> Self {
        let at = |thousandths| tally.latency(thousandths).map(ms);
        Latency { p50: at(500), p95: at(950), p99: at(990) }
    }
}

impl Figures {
    fn of(tally: &Tally) -> Self {
        let delivered = tally.delivered();
        let mut reasons: Vec<OfReason> = tally
            .reasons()
            .iter()
            .map(|known| OfReason { reason: known.reason.clone(), retried: known.retried, dead: known.dead })
            .collect();
        reasons.sort_by_key(|known| std::cmp::Reverse(known.retried.saturating_add(known.dead)));
        reasons.truncate(REASONS_MAX);
        Figures {
            accepted: tally.get(Count::ACCEPTED),
            delivered,
            delivered_after_redrive: tally.get(Count::DELIVERED_AFTER_REDRIVE),
            skipped: tally.get(Count::SKIPPED),
            expired: tally.get(Count::EXPIRED),
            dead: tally.get(Count::DEAD),
            cancelled: tally.get(Count::CANCELLED),
            superseded: tally.get(Count::SUPERSEDED),
            resolved: tally.get(Count::RESOLVED),
            redriven: tally.get(Count::REDRIVEN),
            terminal_rate: ratio(tally.get(Count::DEAD), tally.ended()),
            latency_ms: Latency::of(tally),
            attempts: tally.attempts(),
            attempts_per_delivered: ratio(tally.attempts(), delivered),
            by_attempt: tally
                .by_attempt()
                .map(|(attempt, tried, here)| OfAttempt {
                    attempt,
                    tried,
                    delivered: here,
                    share: ratio(here, delivered),
                    success_rate: ratio(here, tried),
                })
                .collect(),
            released: tally.get(Count::RELEASED),
            interrupted: tally.get(Count::INTERRUPTED),
            ambiguous: tally.get(Count::AMBIGUOUS),
            status_429: tally.get(Count::STATUS_429),
            throttled: tally.get(Count::THROTTLED),
            reasons,
        }
    }
}

impl OfEndpoint {
    fn of(stats: EndpointStats, window: &StatsWindow, now: Timestamp) -> Self {
        let time = |disabled: bool| {
            ms(stats.closed.iter().filter(|closed| closed.disabled == disabled).map(|closed| closed.time).sum())
        };
        let (paused_ms, disabled_ms) = (time(false), time(true));
        let counts = Standing::of(&stats, now);
        let closed = |Closed { disabled, why, time }| OfClosed {
            status: if disabled { "disabled" } else { "paused" },
            why,
            ms: ms(time),
        };
        let mut at = window.since();
        let bucket = |tally: &Tally| {
            let this = at;
            at = at.plus(window.bucket().unwrap_or_default());
            OfBucket::of(this, tally)
        };
        OfEndpoint {
            buckets: stats.buckets.iter().map(bucket).collect(),
            endpoint: stats.state.name,
            host: stats.state.host,
            now: Now { status: stats.state.status, counts },
            figures: Figures::of(&stats.tally),
            paused_ms,
            disabled_ms,
            closed: stats.closed.into_iter().map(closed).collect(),
        }
    }
}

impl OfBucket {
    fn of(at: Timestamp, tally: &Tally) -> Self {
        OfBucket {
            at,
            accepted: tally.get(Count::ACCEPTED),
            delivered: tally.delivered(),
            skipped: tally.get(Count::SKIPPED),
            expired: tally.get(Count::EXPIRED),
            dead: tally.get(Count::DEAD),
            attempts: tally.attempts(),
            throttled: tally.get(Count::THROTTLED),
            latency_ms: Latency::of(tally),
        }
    }
}

impl OfSource {
    fn of(stats: SourceStats) -> Self {
        OfSource {
            source: stats.source,
            events: stats.tally.get(Count::EVENTS),
            duplicates: stats.tally.get(Count::DUPLICATES),
            keys_reused: stats.tally.get(Count::KEYS_REUSED),
        }
    }
}

impl Stats {
    fn of(stats: TenantStats, window: &StatsWindow, now: Timestamp) -> Self {
        let mut all = Tally::default();
        stats.endpoints.iter().for_each(|endpoint| all.add_all(&endpoint.tally));
        let endpoints: Vec<OfEndpoint> =
            stats.endpoints.into_iter().map(|stats| OfEndpoint::of(stats, window, now)).collect();
        let mut standing = Standing::default();
        endpoints.iter().for_each(|endpoint| standing.add(&endpoint.now.counts));
        Stats {
            since: window.since(),
            until: window.until(),
            bucket: window.bucket().map(duration::show),
            total: Total { now: standing, figures: Figures::of(&all) },
            endpoints,
            sources: stats.sources.into_iter().map(OfSource::of).collect(),
        }
    }
}

fn bad(parameter: &'static str, detail: String) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail).with("parameter", parameter)
}

fn bad_window(broken: BadWindow, by_span: bool) -> Problem {
    let parameter = if by_span { "window" } else { "since" };
    let buckets = StatsWindow::BUCKETS_MAX;
    match broken {
        BadWindow::Empty => bad(parameter, format!("`{parameter}` is to leave some time before `until` or now")),
        BadWindow::TooLong => {
            let longest = duration::show(StatsWindow::LONGEST);
            bad(parameter, format!("a window is to be {longest} long at most: ask for a shorter one"))
        }
        BadWindow::Bucket { unit } => {
            let unit = duration::show(unit);
            bad("bucket", format!("`bucket` is to be a multiple of {unit} for a window that begins then"))
        }
        BadWindow::TooManyBuckets => {
            bad("bucket", format!("a window is to have {buckets} buckets at most: ask for longer ones"))
        }
    }
}

impl At<'_> {
    pub(super) async fn stats(&self) -> Result<Answer, Problem> {
        let now = self.admin.state.clock.now();
        let mut query = Query::of(self.query);
        let (endpoint, span, bucket) = (query.name("endpoint")?, query.span("window")?, query.span("bucket")?);
        let (since, until) = (query.time("since")?, query.time("until")?);
        query.finish()?;
        if span.is_some() && (since.is_some() || until.is_some()) {
            return Err(bad("window", "`window` is the time up to now: leave out `since` and `until`".to_owned()));
        }
        let until = until.unwrap_or(now);
        let since = since.unwrap_or_else(|| until.minus(span.unwrap_or(SPAN_DEFAULT)));
        let window =
            StatsWindow::new(since, until, bucket, now).map_err(|broken| bad_window(broken, span.is_some()))?;
        let asked = StatsQuery { tenant: self.tenant.key, endpoint, window };
        let found = self.ledger().stats(&asked, now).await.map_err(|error| ledger_problem(&error))?;
        let found = found.ok_or_else(not_found)?;
        if found.endpoints.iter().map(|stats| stats.buckets.len()).sum::<usize>() > BUCKETS_MAX {
            let detail = format!("more than {BUCKETS_MAX} buckets: name an `endpoint`, or ask for longer buckets");
            return Err(bad("bucket", detail));
        }
        Ok(answer::json(&Stats::of(found, &window, now)))
    }
}
