//! `hookgate tail`.

use super::delivery::Filter;
use super::output::text;
use super::table::Paper;
use super::{Client, Context, Exit, Failure, Format};
use crate::clock::Timestamp;
use crate::duration;
use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Deliveries looked at per round: what goes by faster is said to have been passed over.
const WINDOW: u32 = 200;
/// Deliveries remembered, so that each change is shown once.
const REMEMBERED: usize = 10_000;

/// Follow deliveries as they happen
#[derive(clap::Args, Debug)]
pub(super) struct Tail {
    #[command(flatten)]
    filter: Filter,
    /// Begin with so many of the newest
    #[arg(short = 'n', long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=200))]
    lines: u32,
    /// How often to look
    #[arg(long, default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// End after so many lines
    #[arg(long)]
    count: Option<u64>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let allowed = Duration::from_millis(100)..=Duration::from_secs(3_600);
    let interval = duration::parse(text)?;
    if allowed.contains(&interval) { Ok(interval) } else { Err("write a duration from 100ms to 1h".to_owned()) }
}

/// What was shown already.
#[derive(Default)]
struct Seen {
    states: HashMap<String, String>,
    order: VecDeque<String>,
}

impl Seen {
    /// Whether this is a delivery, or a state of it, that was not shown.
    fn is_news(&mut self, row: &Value) -> bool {
        let (id, state) = (text(&row["id"]), format!("{}/{}", row["state"], row["attempt_count"]));
        match self.states.insert(id.clone(), state.clone()) {
            Some(before) => before != state,
            None => {
                self.order.push_back(id);
                if self.order.len() > REMEMBERED
                    && let Some(oldest) = self.order.pop_front()
                {
                    self.states.remove(&oldest);
                }
                true
            }
        }
    }
}

pub(super) async fn run(args: Tail, context: &mut Context<'_>) -> Result<Exit, Failure> {
    // One wait for the whole time: a Ctrl-C during a request counts as well.
    tokio::select! {
        ended = follow(args, context) => ended,
        stopped = tokio::signal::ctrl_c() => {
            stopped?;
            Ok(Exit::Done)
        }
    }
}

async fn follow(args: Tail, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let mut client = Client::new(context)?;
    let path = client.in_tenant(&["deliveries"]).await?;
    let query = args.filter.query();
    let mut seen = Seen::default();
    let mut shown = 0;
    let mut first = true;
    let mut lost = false;
    loop {
        let page = match client.list(&path, &query, WINDOW).await {
            Ok(page) => page,
            // Once it has been reached, a server that is gone, or a proxy that says so, is one that restarts.
            Err(failure) if matches!(failure.exit, Exit::Unreachable | Exit::Failed) && !first => {
                if !lost {
                    context.output.say("reconnecting…");
                }
                lost = true;
                tokio::time::sleep(args.interval).await;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        lost = false;
        let rows = page["items"].as_array().map_or(&[][..], Vec::as_slice);
        let mut news: Vec<&Value> = rows.iter().filter(|row| seen.is_news(row)).collect();
        if first {
            news.truncate(usize::try_from(args.lines).unwrap_or(usize::MAX));
        } else if news.len() == usize::try_from(WINDOW).unwrap_or(usize::MAX) {
            context.output.say("… more went by than is shown");
        }
        first = false;
        for row in news.into_iter().rev() {
            if args.count.is_some_and(|count| shown >= count) {
                break;
            }
            show(context, row)?;
            shown += 1;
        }
        context.output.streams.out.flush()?;
        if args.count.is_some_and(|count| shown >= count) {
            return Ok(Exit::Done);
        }
        tokio::time::sleep(args.interval).await;
    }
}

fn show(context: &mut Context<'_>, row: &Value) -> Result<(), Failure> {
    let output = &mut context.output;
    match output.format {
        // One document a line: this has no end.
        Format::Json => output.line(&row.to_string()),
        Format::Quiet => output.line(&text(&row["id"])),
        Format::Table => {
            let line = line(row, &output.paper());
            output.line(&line)
        }
    }
}

fn line(row: &Value, paper: &Paper) -> String {
    let field = |name: &str| text(&row[name]);
    let state = field("state");
    // What the last attempt came to says nothing of the one under way.
    let (status, reason) = match state.as_str() {
        "in_flight" => (String::new(), String::new()),
        _ => (field("last_status"), field("reason")),
    };
    let line = format!(
        "{}  {}  {}  {} → {}  #{}  {status} {reason}",
        paper.time(&changed_at(row, paper.now)),
        field("id"),
        paper.state(&format!("{state:<9}")),
        field("event_type"),
        field("endpoint"),
        field("attempt_count"),
    );
    line.trim_end().to_owned()
}

/// When it came to this state: an end and a beginning are in the row; all between is seen as it happens.
fn changed_at(row: &Value, now: Timestamp) -> Value {
    match (&row["finished_at"], row["attempt_count"].as_u64(), row["state"].as_str()) {
        (Value::Null, Some(0), Some("pending")) => row["created_at"].clone(),
        (Value::Null, _, _) => now.to_rfc3339().into(),
        (finished, _, _) => finished.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_tells_the_time_of_the_change() {
        let now = Timestamp::parse_rfc3339("2026-01-31T09:00:00.000Z").unwrap();
        let paper = |short_times, colour| Paper { width: None, short_times, colour, now };
        let mut row = json!({
            "id": "dlv_1", "state": "pending", "event_type": "push", "endpoint": "e", "attempt_count": 0,
            "last_status": null, "reason": null, "created_at": "2026-01-31T08:00:00.000Z", "finished_at": null,
        });
        assert_eq!(line(&row, &paper(false, false)), "2026-01-31T08:00:00.000Z  dlv_1  pending    push → e  #0");
        row["attempt_count"] = 1.into();
        row["last_status"] = 503.into();
        row["reason"] = "http_503".into();
        assert_eq!(line(&row, &paper(true, false)), "09:00:00  dlv_1  pending    push → e  #1  503 http_503");
        row["state"] = "in_flight".into();
        assert_eq!(line(&row, &paper(true, false)), "09:00:00  dlv_1  in_flight  push → e  #1");
        row["state"] = "delivered".into();
        row["finished_at"] = "2026-01-31T08:30:00.000Z".into();
        let told = line(&row, &paper(true, true));
        assert_eq!(told, "08:30:00  dlv_1  \u{1b}[32mdelivered\u{1b}[0m  push → e  #1  503 http_503");
    }
}
