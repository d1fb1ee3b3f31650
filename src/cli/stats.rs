//! `hookgate stats`: how deliveries fared, and where they stand.

use super::keys::{moment, now};
use super::output::text;
use super::table::{Column, Paper, lines};
use super::{Client, Context, Exit, Failure, Format};
use crate::clock::Timestamp;
use crate::duration;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// How deliveries fared, and where they stand
#[derive(clap::Args, Debug)]
pub(super) struct Stats {
    /// Of this endpoint alone
    #[arg(long, value_name = "NAME")]
    endpoint: Option<String>,
    /// The time up to now [default: 24h]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with_all = ["since", "until"])]
    window: Option<Duration>,
    /// From then on: a time, or how long ago
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<String>,
    /// Up to then
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<String>,
    /// The figures of each such span too; on a terminal one that suits the window
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    bucket: Option<Duration>,
}

const COLUMNS: [Column; 12] = [
    Column::whole("ENDPOINT", "endpoint"),
    Column::state("STATUS", "status"),
    Column::whole("DELIVERED", "delivered"),
    Column::whole("DEAD", "dead"),
    Column::whole("PENDING", "pending"),
    Column::whole("DLQ", "dlq"),
    Column::whole("P50", "p50"),
    Column::whole("P95", "p95"),
    Column::whole("P99", "p99"),
    Column::whole("AT FIRST", "first").lesser(2),
    Column::whole("TRIES", "tries").lesser(3),
    Column::whole("DELIVERIES", "chart").lesser(1),
];
/// Off a terminal.
const PLAIN: usize = COLUMNS.len() - 1;
/// Columns of numbers, which are written flush right.
const NUMBERS: [&str; 9] = ["delivered", "dead", "pending", "dlq", "p50", "p95", "p99", "first", "tries"];

const CHART_BARS: u128 = 24;
const BAR_WIDTH: u64 = 30;
/// Spans that a bar of a chart may stand for, in minutes.
const BAR_MINUTES: [u64; 14] = [1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1_440, 10_080, 43_200];
/// What is older is told by the hour.
const MINUTES_KEPT: Duration = Duration::from_secs(47 * 3_600);
const REASONS_SHOWN: usize = 5;

pub(super) async fn run(args: Stats, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let mut client = Client::new(context)?;
    let output = &mut context.output;
    let draws = output.format == Format::Table && output.streams.out_is_terminal;
    let bucket = args.bucket.or_else(|| draws.then(|| suiting(&args, now())));
    let path = client.in_tenant(&["stats"]).await?;
    let query = [
        ("endpoint", args.endpoint),
        ("window", args.window.map(duration::show)),
        ("since", args.since),
        ("until", args.until),
        ("bucket", bucket.map(duration::show)),
    ];
    let mut query: Vec<_> = query.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    let stats = match client.get(&path, &query).await {
        // So many endpoints that there is no room for a chart that nobody asked for.
        Err(failure) if draws && args.bucket.is_none() && failure.exit == Exit::Usage => {
            query.retain(|(name, _)| *name != "bucket");
            client.get(&path, &query).await?
        }
        answer => answer?,
    };
    let endpoints = items(&stats["endpoints"]);
    match output.format {
        Format::Json => output.document(&stats)?,
        Format::Quiet => endpoints.iter().try_for_each(|row| output.line(&text(&row["endpoint"])))?,
        Format::Table if endpoints.is_empty() => output.say("there is no endpoint yet"),
        Format::Table if draws => {
            let paper = output.paper();
            picture(&stats, &paper).iter().try_for_each(|line| output.line(line))?;
        }
        Format::Table => output.table(&COLUMNS[..PLAIN], &rows(endpoints))?,
    }
    Ok(Exit::Done)
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// A bucket for a chart of some twenty bars.
fn suiting(args: &Stats, now: Timestamp) -> Duration {
    let at = |text: &Option<String>| text.as_deref().and_then(Timestamp::parse_rfc3339);
    let until = at(&args.until).unwrap_or(now);
    let span = args.window.unwrap_or(Duration::from_secs(86_400));
    let since = at(&args.since).unwrap_or_else(|| until.minus(span));
    let least = if now.since(since) > MINUTES_KEPT { 60 } else { 1 };
    let minutes = until.since(since).as_secs().div_ceil(60);
    let suits = |bar: &&u64| **bar >= least && u128::from(minutes) <= u128::from(**bar) * CHART_BARS;
    Duration::from_secs(60 * BAR_MINUTES.iter().find(suits).unwrap_or(&43_200))
}

/// A row of the table for each endpoint.
fn rows(endpoints: &[Value]) -> Vec<Value> {
    let row = |stats: &Value| {
        let latency = |which: &str| stats["latency_ms"][which].as_u64().map_or_else(|| "-".to_owned(), span);
        let first = items(&stats["by_attempt"]).iter().find(|row| row["attempt"] == 1);
        json!({
            "endpoint": stats["endpoint"],
            "status": stats["now"]["status"],
            "delivered": text(&stats["delivered"]),
            "dead": text(&stats["dead"]),
            "pending": text(&stats["now"]["pending"]),
            "dlq": text(&stats["now"]["dead"]),
            "p50": latency("p50"),
            "p95": latency("p95"),
            "p99": latency("p99"),
            "first": first.and_then(|row| row["share"].as_f64()).map_or_else(|| "-".to_owned(), percent),
            "tries": stats["attempts_per_delivered"].as_f64().map_or_else(|| "-".to_owned(), |n| format!("{n:.2}")),
            "chart": spark(items(&stats["buckets"])),
        })
    };
    let mut rows: Vec<Value> = endpoints.iter().map(row).collect();
    for field in NUMBERS {
        let width = rows.iter().map(|row| text(&row[field]).chars().count()).max().unwrap_or(0);
        for row in &mut rows {
            row[field] = format!("{:>width$}", text(&row[field])).into();
        }
    }
    rows
}

/// Deliveries of each bucket: a dot for none, else a bar as high as its share of the highest.
fn spark(buckets: &[Value]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let counts: Vec<u64> = buckets.iter().map(|bucket| count(&bucket["delivered"])).collect();
    let highest = counts.iter().copied().max().unwrap_or(0).max(1);
    let bar = |n: &u64| match n {
        0 => '·',
        n => *usize::try_from(n.saturating_mul(8).div_ceil(highest) - 1)
            .ok()
            .and_then(|i| BARS.get(i))
            .unwrap_or(&BARS[7]),
    };
    counts.iter().map(bar).collect()
}

/// A span as people say it, in its two largest units.
fn span(millis: u64) -> String {
    let (seconds, minutes, hours) = (millis / 1_000, millis / 60_000, millis / 3_600_000);
    let pair = |large: u64, unit: &str, small: u64, of: &str| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit} {small}{of}"),
    };
    match millis {
        0..1_000 => format!("{millis}ms"),
        1_000..10_000 if millis % 1_000 >= 100 => format!("{seconds}.{}s", millis % 1_000 / 100),
        1_000..60_000 => format!("{seconds}s"),
        60_000..3_600_000 => pair(minutes, "m", seconds % 60, "s"),
        3_600_000..86_400_000 => pair(hours, "h", minutes % 60, "m"),
        _ => pair(hours / 24, "d", hours % 24, "h"),
    }
}

fn percent(ratio: f64) -> String {
    format!("{:.1}%", ratio * 100.0)
}

/// For a terminal: the table with its charts, how far attempts got, and what else there is to know.
fn picture(stats: &Value, paper: &Paper) -> Vec<String> {
    let (endpoints, total) = (items(&stats["endpoints"]), &stats["total"]);
    let bar = match stats["bucket"].as_str() {
        Some(bucket) => format!(", a bar of the chart is {bucket}"),
        None => String::new(),
    };
    let time = |field: &str| {
        let told = paper.time(&stats[field]);
        // A window begins and ends with a minute.
        told.strip_suffix(":00").filter(|short| short.contains(':')).map_or(told.clone(), str::to_owned)
    };
    let over = Timestamp::parse_rfc3339(&text(&stats["until"])).is_some_and(|until| until <= paper.now);
    let until = if over { format!("to {}", time("until")) } else { "to now".to_owned() };
    let mut all = vec![format!("From {} {until} (UTC){bar}", time("since")), String::new()];
    all.extend(lines(&COLUMNS, &rows(endpoints), paper));
    all.push(String::new());
    let by_attempt = items(&total["by_attempt"]);
    if count(&total["delivered"]) > 0 {
        all.push("Delivered on attempt".to_owned());
        all.extend(by_attempt.iter().map(|row| attempt_bar(row, paper)));
        all.push(String::new());
    }
    let facts = facts(stats);
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    all.extend(facts.into_iter().map(|(name, said)| format!("{name:<width$}  {said}")));
    all
}

/// One attempt's share of what was delivered.
fn attempt_bar(row: &Value, paper: &Paper) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let (delivered, tried) = (count(&row["delivered"]), count(&row["tried"]));
    let share = row["share"].as_f64().unwrap_or(0.0);
    // In eighths of a column; what there is at all is seen.
    let ten_thousandths = format!("{:.0}", share * 10_000.0).parse::<u64>().unwrap_or(0);
    let eighths = (ten_thousandths * BAR_WIDTH * 8 / 10_000).max(u64::from(delivered > 0));
    let whole = usize::try_from(eighths / 8).unwrap_or(0);
    let part = usize::try_from(eighths % 8).ok().and_then(|i| PARTS.get(i)).unwrap_or(&"");
    let bar = format!("{}{part}", "█".repeat(whole));
    let room = usize::try_from(BAR_WIDTH).unwrap_or(0).saturating_sub(bar.chars().count());
    let colour = if row["attempt"] == 1 { "32" } else { "33" };
    let bar = if paper.colour { format!("\u{1b}[{colour}m{bar}\u{1b}[0m") } else { bar };
    format!(
        "  {:>2}  {bar}{}  {:>6}  {delivered} of {tried} tried",
        count(&row["attempt"]),
        " ".repeat(room),
        percent(share)
    )
}

/// What is worth a line, by name.
fn facts(stats: &Value) -> Vec<(&'static str, String)> {
    let (endpoints, total) = (items(&stats["endpoints"]), &stats["total"]);
    let told = |words: &[(&str, &str)], from: &Value| -> String {
        let there = words.iter().map(|(field, word)| (count(&from[*field]), word)).filter(|(n, _)| *n > 0);
        there.map(|(n, word)| format!("{n} {word}")).collect::<Vec<_>>().join(", ")
    };
    let mut ended = told(
        &[
            ("delivered", "delivered"),
            ("dead", "dead"),
            ("skipped", "skipped"),
            ("expired", "expired"),
            ("cancelled", "cancelled"),
            ("superseded", "superseded"),
        ],
        total,
    );
    if let Some(rate) = total["terminal_rate"].as_f64().filter(|rate| *rate > 0.0) {
        let _ = write!(ended, "; {} of what ended is dead", percent(rate));
    }
    let mut attempts = told(&[("attempts", "made")], total);
    if let Some(tries) = total["attempts_per_delivered"].as_f64() {
        let _ = write!(attempts, ", {tries:.2} for each delivered");
    }
    let besides = told(
        &[("released", "released"), ("interrupted", "interrupted"), ("ambiguous", "may have been received")],
        total,
    );
    if !besides.is_empty() {
        let _ = write!(attempts, "; {besides}");
    }
    let now = &total["now"];
    let aged = |kind: &str, age: &str| match now[age].as_u64() {
        Some(seconds) => {
            format!("{} {kind}, the oldest for {}", count(&now[kind]), span(seconds.saturating_mul(1_000)))
        }
        None => format!("{} {kind}", count(&now[kind])),
    };
    let stands = format!(
        "{}; {} due, {} under way; {}",
        aged("pending", "oldest_pending_age_seconds"),
        count(&now["available"]),
        count(&now["in_flight"]),
        aged("dead", "oldest_dead_age_seconds")
    );
    let duplicates: Vec<String> = items(&stats["sources"])
        .iter()
        .filter(|row| count(&row["duplicates"]) > 0)
        .map(|row| {
            let named = row["source"].as_str().map(|_| format!("from {}", text(&row["source"])));
            format!("{} {}", count(&row["duplicates"]), named.as_deref().unwrap_or("published"))
        })
        .collect();
    let closed: Vec<String> = endpoints
        .iter()
        .flat_map(|stats| items(&stats["closed"]).iter().map(move |closed| (stats, closed)))
        .map(|(stats, closed)| {
            let time = span(count(&closed["ms"]));
            format!("{} {} for {time} ({})", text(&stats["endpoint"]), text(&closed["status"]), text(&closed["why"]))
        })
        .collect();
    let why: Vec<String> = items(&total["reasons"])
        .iter()
        .take(REASONS_SHOWN)
        .map(|row| format!("{}: {}", text(&row["reason"]), told(&[("retried", "retried"), ("dead", "dead")], row)))
        .collect();
    let all = [
        ("now", stands),
        ("ended", ended),
        ("attempts", attempts),
        ("redriven", told(&[("redriven", "dead letters"), ("delivered_after_redrive", "delivered after it")], total)),
        ("throttled", told(&[("status_429", "answers 429"), ("throttled", "pauses by Retry-After")], total)),
        ("duplicates", duplicates.join(", ")),
        ("closed", closed.join(", ")),
        ("reasons", why.join("; ")),
    ];
    all.into_iter().filter(|(_, said)| !said.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_told_in_two_units() {
        for (millis, told) in [
            (0, "0ms"),
            (999, "999ms"),
            (1_450, "1.4s"),
            (2_040, "2s"),
            (31_900, "31s"),
            (60_000, "1m"),
            (250_000, "4m 10s"),
            (7_500_000, "2h 5m"),
            (273_600_000, "3d 4h"),
        ] {
            assert_eq!(span(millis), told, "{millis}");
        }
    }

    #[test]
    fn a_chart_has_a_bar_for_each_bucket() {
        let buckets: Vec<Value> = [0, 1, 50, 100].map(|n| json!({ "delivered": n })).into();
        assert_eq!(spark(&buckets), "·▁▄█");
        assert_eq!(spark(&[json!({ "delivered": 0 })]), "·");
        assert_eq!(spark(&[]), "");
    }

    #[test]
    fn the_bucket_suits_the_window() {
        let now = Timestamp::parse_rfc3339("2026-01-31T08:00:00Z").unwrap();
        let asked = |window: Option<&str>, since: Option<&str>| Stats {
            endpoint: None,
            window: window.map(|text| duration::parse(text).unwrap()),
            since: since.map(str::to_owned),
            until: None,
            bucket: None,
        };
        for (window, since, bucket) in [
            (Some("10m"), None, "1m"),
            (Some("1h"), None, "5m"),
            (None, None, "1h"),
            (Some("7d"), None, "12h"),
            (Some("30d"), None, "7d"),
            (None, Some("2026-01-29T08:00:00Z"), "2h"),
        ] {
            assert_eq!(duration::show(suiting(&asked(window, since), now)), bucket, "{window:?} {since:?}");
        }
    }

    #[test]
    fn bars_have_colours_where_colours_are_wanted() {
        let row = json!({"attempt": 1, "delivered": 3, "tried": 4, "share": 1.0});
        let paper = |colour| Paper { width: Some(80), short_times: true, colour, now: Timestamp::ZERO };
        assert!(attempt_bar(&row, &paper(true)).contains("\u{1b}[32m█"));
        assert!(!attempt_bar(&row, &paper(false)).contains('\u{1b}'));
        let rare = json!({"attempt": 7, "delivered": 1, "tried": 2, "share": 0.0001});
        assert!(attempt_bar(&rare, &paper(false)).contains('▏'), "what there is at all is seen");
    }
}
