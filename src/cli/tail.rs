//! `hookgate tail`.

use super::delivery::Filter;
use super::output::text;
use super::{Client, Context, Exit, Failure, Format};
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
    loop {
        let page = client.list(&path, &query, WINDOW).await?;
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
            let field = |name: &str| text(&row[name]);
            let line = format!(
                "{}  {}  {:<9}  {} → {}  #{}  {} {}",
                field("created_at"),
                field("id"),
                field("state"),
                field("event_type"),
                field("endpoint"),
                field("attempt_count"),
                field("last_status"),
                field("reason"),
            );
            output.line(line.trim_end())
        }
    }
}
