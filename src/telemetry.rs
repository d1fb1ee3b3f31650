//! What the process says of itself: log lines on stderr, and metrics for a scrape.
//!
//! Every metric is described and present from the start. Gauges come from the ledger at each scrape; they are nowhere
//! kept twice. No label carries an unbounded value.

use crate::clock::Timestamp;
use crate::delivery::{AlertKind, DeliveryState, FaultKind};
use crate::ledger::Gauges;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use std::fmt::Write as _;
use std::io;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

pub const INGRESS_REQUESTS: &str = "hookgate_ingress_requests_total";
pub const EVENTS_ACCEPTED: &str = "hookgate_events_accepted_total";
/// Refused requests of which the rejection log has no row.
pub const REJECTIONS_DROPPED: &str = "hookgate_rejections_dropped_total";
pub const EVENTS_SUPERSEDED: &str = "hookgate_events_superseded_total";
pub const DUPLICATES_SUPPRESSED: &str = "hookgate_duplicates_suppressed_total";
/// Label `result`: an outcome's word, one of [`ATTEMPT_RESULTS`].
pub const ATTEMPTS: &str = "hookgate_attempts_total";
/// Label `state`: a delivery's, counted when it is entered.
pub const DELIVERIES: &str = "hookgate_deliveries_total";
pub const DELIVERY_LATENCY: &str = "hookgate_delivery_latency_seconds";
pub const ATTEMPT_DURATION: &str = "hookgate_attempt_duration_seconds";
/// Label `call`: `transform` or `classify`.
pub const PLUGIN_CALL: &str = "hookgate_plugin_call_seconds";
/// Label `kind`: a [`FaultKind`]'s word.
pub const PLUGIN_FAULTS: &str = "hookgate_plugin_faults_total";
/// Versions that were disabled by their faults.
pub const PLUGINS_DISABLED: &str = "hookgate_plugins_disabled_total";
/// Canaries that left their bounds. Labels `tenant` and `plugin`: as many as the file declares.
pub const PLUGIN_CANARY_ROLLBACKS: &str = "hookgate_plugin_canary_rollbacks_total";
/// Plugin calls made beside the traffic.
pub const PLUGIN_LONG_CALLS: &str = "hookgate_plugin_long_calls_total";
/// Label `for`: one of [`PLUGIN_WAITED_FOR`].
pub const PLUGIN_WAITS: &str = "hookgate_plugin_waits_total";
/// Plugins that were compiled, and not found in the cache.
pub const PLUGIN_COMPILATIONS: &str = "hookgate_plugin_compilations_total";
/// Label `kind`: an [`AlertKind`]'s word. Set by whoever looks.
pub const ALERTS_FIRING: &str = "hookgate_alerts_firing";
pub const COMMIT: &str = "hookgate_commit_seconds";
pub const COMMIT_BATCH: &str = "hookgate_commit_batch_size";
pub const BLOCKED_ADDRESSES: &str = "hookgate_blocked_addresses_total";
pub const CONNECTIONS_REFUSED: &str = "hookgate_connections_refused_total";
/// Label `code`: what was wrong with it as HTTP, before any handler saw it.
pub const HTTP_REFUSED: &str = "hookgate_http_refused_total";
pub const HANDLER_PANICS: &str = "hookgate_handler_panics_total";
pub const BREAKER_OPENINGS: &str = "hookgate_breaker_openings_total";
pub const CLOCK_JUMPS: &str = "hookgate_clock_jumps_total";

/// What a plugin call may have to wait for: a turn of its tenant's, a slot of the process's, in vain for a processor.
pub const PLUGIN_WAITED_FOR: [&str; 3] = ["tenant", "process", "lane"];

/// The words of the outcomes.
pub const ATTEMPT_RESULTS: [&str; 10] = [
    "answered",
    "unreachable",
    "timed_out",
    "acked",
    "nacked",
    "faulted",
    "skipped",
    "refused",
    "interrupted",
    "released",
];

/// Seconds, from a plugin's call to the longest exchange.
const SECONDS: [f64; 19] = [
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
    0.5, 1.0, 2.5, 5.0, 15.0,
];
/// Accepted to delivered: from memory in under a millisecond, or days later.
const LATENCY_SECONDS: [f64; 18] = [
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0, 1_800.0, 7_200.0,
    36_000.0, 259_200.0,
];
const BATCH_SIZES: [f64; 11] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1_024.0];

#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("`{0}` is not a log level: write error, warn, info, debug or trace, or target=level")]
    Level(String),
    #[error("a logger is already installed in this process")]
    LoggerTaken,
    #[error("a metrics recorder is already installed in this process")]
    RecorderTaken,
    #[error("a histogram has no buckets")]
    Buckets,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Starts logging to stderr. `filter` is a level, or a list of `target=level`.
pub fn install_logger(format: LogFormat, filter: &str) -> Result<(), TelemetryError> {
    let filter = EnvFilter::builder().parse(filter).map_err(|_| TelemetryError::Level(filter.to_owned()))?;
    let installed = match format {
        LogFormat::Text => tracing::subscriber::set_global_default(text_logger(filter, io::stderr)),
        LogFormat::Json => tracing::subscriber::set_global_default(json_logger(filter, io::stderr)),
    };
    installed.map_err(|_| TelemetryError::LoggerTaken)
}

fn text_logger<W>(filter: EnvFilter, to: W) -> impl tracing::Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(OneLine(to)).finish()
}

fn json_logger<W>(filter: EnvFilter, to: W) -> impl tracing::Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let json = tracing_subscriber::fmt().json().flatten_event(true).with_current_span(false).with_span_list(false);
    json.with_env_filter(filter).with_ansi(false).with_writer(OneLine(to)).finish()
}

/// Each event is one line of visible characters, whatever its values hold: nobody writes a second line, or moves a
/// reader's cursor, by sending it to us.
struct OneLine<W>(W);

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for OneLine<W> {
    type Writer = LineWriter<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        LineWriter(self.0.make_writer())
    }
}

struct LineWriter<W>(W);

impl<W: io::Write> io::Write for LineWriter<W> {
    /// The formatter hands over one whole event at a time, with its line break.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let line = event.strip_suffix(b"\n").unwrap_or(event);
        let text = String::from_utf8_lossy(line);
        if text.chars().any(char::is_control) {
            let escaped = text.chars().fold(String::with_capacity(text.len() + 16), |mut all, c| {
                if c.is_control() {
                    // The one spelling that JSON has too.
                    let _ = write!(all, "\\u{:04x}", u32::from(c));
                } else {
                    all.push(c);
                }
                all
            });
            self.0.write_all(format!("{escaped}\n").as_bytes())?;
        } else {
            self.0.write_all(event)?;
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The metrics of the process. Handles that are made before [`Metrics::install`] count nothing: install first.
#[derive(Clone)]
pub struct Metrics {
    handle: PrometheusHandle,
}

impl Metrics {
    /// Makes the recorder the process's own.
    pub fn install() -> Result<Self, TelemetryError> {
        let (metrics, recorder) = Metrics::build()?;
        metrics::set_global_recorder(recorder).map_err(|_| TelemetryError::RecorderTaken)?;
        register();
        Ok(metrics)
    }

    fn build() -> Result<(Self, PrometheusRecorder), TelemetryError> {
        let by_name = |name: &str| Matcher::Full(name.to_owned());
        let mut builder = PrometheusBuilder::new();
        for (name, buckets) in [
            (DELIVERY_LATENCY, LATENCY_SECONDS.as_slice()),
            (ATTEMPT_DURATION, &SECONDS),
            (PLUGIN_CALL, &SECONDS),
            (COMMIT, &SECONDS),
            (COMMIT_BATCH, &BATCH_SIZES),
        ] {
            builder = builder.set_buckets_for_metric(by_name(name), buckets).map_err(|_| TelemetryError::Buckets)?;
        }
        let recorder = builder.build_recorder();
        Ok((Metrics { handle: recorder.handle() }, recorder))
    }

    /// The text of a scrape.
    pub fn render(&self, gauges: &Gauges, now: Timestamp) -> String {
        let mut text = self.handle.render();
        let oldest = gauges.oldest_dead_at.map_or(0.0, |at| now.since(at).as_secs_f64());
        for (name, help, value) in [
            ("hookgate_pending", "Deliveries that wait.", whole(gauges.pending)),
            ("hookgate_in_flight", "Deliveries with an attempt under way.", whole(gauges.in_flight)),
            ("hookgate_dlq_depth", "Dead letters.", whole(gauges.dead)),
            ("hookgate_dlq_oldest_age_seconds", "Age of the oldest dead letter; 0 when there is none.", oldest),
            ("hookgate_endpoints_paused", "Endpoints that are paused.", whole(gauges.endpoints_paused)),
            (
                "hookgate_endpoints_failing",
                "Endpoints that only fail, for so long that they will be disabled.",
                whole(gauges.endpoints_failing),
            ),
            ("hookgate_ledger_bytes", "Size of the ledger on disk.", whole(gauges.ledger_bytes)),
            ("hookgate_ledger_wal_bytes", "Of it, the write-ahead log.", whole(gauges.wal_bytes)),
        ] {
            // Writing to a string does not fail.
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n\n");
        }
        text
    }

    /// Sorts recorded samples into their buckets every few seconds, so that they do not pile up between scrapes.
    pub async fn tend(self, stop: CancellationToken) {
        let mut every = tokio::time::interval(Duration::from_secs(5));
        while stop.run_until_cancelled(every.tick()).await.is_some() {
            self.handle.run_upkeep();
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a scrape's numbers are floats")]
fn whole(n: u64) -> f64 {
    n as f64
}

/// Describes every metric and makes it present.
fn register() {
    metrics::describe_counter!(INGRESS_REQUESTS, "Requests to ingress, by scheme and result.");
    metrics::counter!(INGRESS_REQUESTS, "scheme" => "none", "result" => "unknown_source").absolute(0);
    for (name, help) in [
        (EVENTS_ACCEPTED, "Events stored: verified ones and published ones."),
        (EVENTS_SUPERSEDED, "Events whose place a later one with the same coalescing key took."),
        (DUPLICATES_SUPPRESSED, "Repetitions answered with the first event."),
        (REJECTIONS_DROPPED, "Refused requests that were counted and not noted, for there were too many."),
        (BLOCKED_ADDRESSES, "Sends refused by the address guard."),
        (CONNECTIONS_REFUSED, "Connections closed at once, over a cap."),
        (HANDLER_PANICS, "Requests answered 500 after a panic."),
        (PLUGINS_DISABLED, "Times a version of a plugin was disabled by faults in a row."),
        (PLUGIN_LONG_CALLS, "Plugin calls that take long and are made beside the traffic."),
        (PLUGIN_COMPILATIONS, "Plugins compiled, since the cache did not have them."),
        (BREAKER_OPENINGS, "Times the breaker of an endpoint opened."),
        (CLOCK_JUMPS, "Times the wall clock was found to be set by more than 5 seconds."),
    ] {
        metrics::describe_counter!(name, help);
        metrics::counter!(name).absolute(0);
    }
    metrics::describe_counter!(HTTP_REFUSED, "Requests refused as HTTP, by code.");
    metrics::counter!(HTTP_REFUSED, "code" => "malformed_http").absolute(0);
    metrics::describe_counter!(ATTEMPTS, "Attempts, by outcome.");
    for result in ATTEMPT_RESULTS {
        metrics::counter!(ATTEMPTS, "result" => result).absolute(0);
    }
    metrics::describe_counter!(DELIVERIES, "Deliveries that came into a state.");
    for state in DeliveryState::ALL.into_iter().filter(|state| state.is_terminal()) {
        metrics::counter!(DELIVERIES, "state" => state.as_str()).absolute(0);
    }
    metrics::describe_counter!(PLUGIN_FAULTS, "Plugin calls that gave no answer, by kind.");
    for kind in FaultKind::ALL {
        metrics::counter!(PLUGIN_FAULTS, "kind" => kind.as_str()).absolute(0);
    }
    metrics::describe_gauge!(ALERTS_FIRING, "Alerts that fire, by kind.");
    for kind in AlertKind::ALL {
        metrics::gauge!(ALERTS_FIRING, "kind" => kind.as_str()).set(0.0);
    }
    metrics::describe_counter!(PLUGIN_CANARY_ROLLBACKS, "Times a canary was rolled back, by tenant and plugin.");
    metrics::describe_counter!(PLUGIN_WAITS, "Plugin calls that had to wait, by what for; for the lane, in vain.");
    for what in PLUGIN_WAITED_FOR {
        metrics::counter!(PLUGIN_WAITS, "for" => what).absolute(0);
    }
    metrics::describe_histogram!(PLUGIN_CALL, "Seconds a plugin call takes.");
    for call in ["transform", "classify"] {
        drop(metrics::histogram!(PLUGIN_CALL, "call" => call));
    }
    for (name, help) in [
        (DELIVERY_LATENCY, "Seconds from the acceptance of an event to its delivery."),
        (ATTEMPT_DURATION, "Seconds an attempt takes."),
        (COMMIT, "Seconds a commit of the ledger takes, its flush included."),
        (COMMIT_BATCH, "Operations in one commit."),
    ] {
        metrics::describe_histogram!(name, help);
        drop(metrics::histogram!(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Page {
        type Writer = Page;

        fn make_writer(&'a self) -> Page {
            self.clone()
        }
    }

    impl Page {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    fn filter(text: &str) -> EnvFilter {
        EnvFilter::builder().parse(text).unwrap()
    }

    const HOSTILE: &str = "a\r\n2030-01-01 forged \u{1b}[31mred\u{9b}\u{7}";

    #[test]
    fn a_hostile_value_stays_on_its_line() {
        for json in [false, true] {
            let page = Page::default();
            let log = || {
                tracing::info!(value = %HOSTILE, debug = ?HOSTILE, "said {HOSTILE}");
                tracing::warn!("the next");
            };
            if json {
                tracing::subscriber::with_default(json_logger(filter("info"), page.clone()), log);
            } else {
                tracing::subscriber::with_default(text_logger(filter("info"), page.clone()), log);
            }
            let text = page.text();
            assert_eq!(text.lines().count(), 2, "{text}");
            assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
            assert!(text.contains("forged") && text.ends_with('\n'));
            if json {
                let line: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
                assert_eq!(line["value"], HOSTILE);
            }
        }
    }

    #[test]
    fn the_level_filters() {
        let page = Page::default();
        tracing::subscriber::with_default(text_logger(filter("warn"), page.clone()), || {
            tracing::info!("quiet");
            tracing::warn!("loud");
        });
        assert!(page.text().contains("loud") && !page.text().contains("quiet"));
        assert!(matches!(install_logger(LogFormat::Text, "hookgate=loudest"), Err(TelemetryError::Level(_))));
    }

    #[test]
    fn every_metric_is_there_from_the_start() {
        let (metrics, recorder) = Metrics::build().unwrap();
        metrics::with_local_recorder(&recorder, || {
            register();
            metrics::counter!(EVENTS_ACCEPTED).increment(3);
            metrics::histogram!(COMMIT_BATCH).record(5.0);
        });
        let gauges = Gauges { dead: 2, oldest_dead_at: Some(Timestamp::from_millis(1_000)), ..Gauges::default() };
        let text = metrics.render(&gauges, Timestamp::from_millis(3_500));
        for name in [
            "hookgate_ingress_requests_total",
            "hookgate_events_accepted_total",
            "hookgate_duplicates_suppressed_total",
            "hookgate_attempts_total",
            "hookgate_deliveries_total",
            "hookgate_delivery_latency_seconds",
            "hookgate_attempt_duration_seconds",
            "hookgate_plugin_call_seconds",
            "hookgate_plugin_faults_total",
            "hookgate_pending",
            "hookgate_in_flight",
            "hookgate_dlq_depth",
            "hookgate_dlq_oldest_age_seconds",
            "hookgate_endpoints_paused",
            "hookgate_commit_seconds",
            "hookgate_commit_batch_size",
            "hookgate_blocked_addresses_total",
            "hookgate_ledger_bytes",
            "hookgate_clock_jumps_total",
            "hookgate_alerts_firing",
        ] {
            assert!(text.contains(&format!("# HELP {name} ")), "{name} is not described");
            assert!(text.contains(&format!("# TYPE {name} ")), "{name} has no type");
        }
        for line in [
            "hookgate_events_accepted_total 3",
            "hookgate_duplicates_suppressed_total 0",
            "hookgate_attempts_total{result=\"timed_out\"} 0",
            "hookgate_deliveries_total{state=\"dead\"} 0",
            "hookgate_plugin_faults_total{kind=\"deadline\"} 0",
            "hookgate_plugin_call_seconds_count{call=\"classify\"} 0",
            "hookgate_delivery_latency_seconds_bucket{le=\"0.005\"} 0",
            "hookgate_commit_batch_size_bucket{le=\"4\"} 0",
            "hookgate_commit_batch_size_bucket{le=\"8\"} 1",
            "hookgate_dlq_depth 2",
            "hookgate_dlq_oldest_age_seconds 2.5",
            "hookgate_pending 0",
        ] {
            assert!(text.lines().any(|l| l == line), "no line {line}\n{text}");
        }
    }
}
