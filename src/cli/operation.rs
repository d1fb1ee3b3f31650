//! `hookgate operation …`.

use super::delivery::{Request, body};
use super::output::text;
use super::table::Column;
use super::{Client, Consent, Context, Exit, Failure, Format, Output};
use serde_json::{Value, json};
use std::time::Duration;

/// Operations: how far bulk redrives and replays have come, and holding them up
#[derive(clap::Subcommand, Debug)]
pub(super) enum Operation {
    /// The newest operations
    List {
        /// At most so many
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
    },
    /// One operation, and what became of its letters
    Get {
        /// The operation's id: `op_…`
        id: String,
        /// Follow it to its end
        #[arg(long)]
        watch: bool,
    },
    /// End it where it is; what is redriven or replayed stays so
    Stop {
        /// The operation's id: `op_…`
        id: String,
    },
    /// Hold it up until it is resumed
    Pause {
        /// The operation's id: `op_…`
        id: String,
    },
    /// Go on with one that is paused
    Resume {
        /// The operation's id: `op_…`
        id: String,
    },
}

/// How an operation is to go on.
#[derive(clap::Args, Debug)]
pub(super) struct Pacing {
    /// Why, for the record
    #[arg(long)]
    pub note: Option<String>,
    #[command(flatten)]
    pub request: Request,
    /// Only say how many, and show some
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// At most so many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max: Option<u64>,
    /// So many per second [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: Option<u32>,
    /// One first, then 10, 100, …, as long as they do not fail
    #[arg(long)]
    canary: bool,
    /// Ask the destinations first whether they are up, as without this
    #[arg(long, overrides_with = "no_probe")]
    probe: bool,
    /// Do not ask the destinations first
    #[arg(long)]
    no_probe: bool,
    /// Although a destination is down
    #[arg(long)]
    force: bool,
    /// Follow it to its end
    #[arg(long)]
    watch: bool,
}

impl Pacing {
    /// No more than what goes with one delivery, too.
    pub(super) fn is_plain(&self) -> bool {
        let bulk = self.dry_run || self.max.is_some() || self.rate.is_some() || self.canary;
        !(bulk || self.probe || self.no_probe || self.force || self.watch)
    }
}

/// What an operation is called before it has begun.
pub(super) struct Words {
    pub verb: &'static str,
    pub noun: &'static str,
    pub none: &'static str,
    /// Shows what a dry run found.
    pub rehearsed: fn(&Value, &mut Context<'_>) -> Result<Exit, Failure>,
}

/// Begins what `wish` says, unless it is only to be looked at, or is refused.
pub(super) async fn begin(
    client: &mut Client,
    context: &mut Context<'_>,
    (path, wish): (&str, Value),
    pacing: Pacing,
    words: &Words,
) -> Result<Exit, Failure> {
    let mut dry = wish.clone();
    dry["dry_run"] = json!(true);
    if pacing.dry_run {
        return (words.rehearsed)(&client.post(path, &dry).await?, context);
    }
    if !pacing.yes {
        let found = client.post(path, &dry).await?;
        let count = found["count"].as_u64().unwrap_or(0);
        if count == 0 {
            return nothing_matches(&found, words, context);
        }
        let count = pacing.max.map_or(count, |max| max.min(count));
        let rate = pacing.rate.unwrap_or(100);
        let question = format!("{} {count} {}, {rate} per second?", words.verb, words.noun);
        context.output.confirm(&question, Consent::ToBeAsked)?;
    }
    let mut body = body(pacing.note, None);
    for (field, value) in [("max", pacing.max), ("rate", pacing.rate.map(u64::from))] {
        if let Some(value) = value {
            body[field] = json!(value);
        }
    }
    body["canary"] = json!(pacing.canary);
    body["probe"] = json!(!pacing.no_probe);
    body["force"] = json!(pacing.force);
    for (field, value) in wish.as_object().into_iter().flatten() {
        body[field] = value.clone();
    }
    let request_id = pacing.request.id();
    let operation = client.post_as(path, &body, &request_id).await.map_err(|mut failure| {
        if failure.exit == Exit::Unreachable {
            let again = format!("ask again with --request-id {request_id}, which begins it once at most");
            failure.remedy = Some(failure.remedy.map_or(again.clone(), |first| format!("{first}; {again}")));
        }
        failure
    })?;
    let Some(id) = operation["id"].as_str() else { return nothing_matches(&operation, words, context) };
    if pacing.watch {
        return watch(client, context, id).await;
    }
    told(&operation, context)?;
    context.output.say(&format!("follow it with: hookgate operation get {id} --watch"));
    Ok(Exit::Done)
}

fn nothing_matches(answer: &Value, words: &Words, context: &mut Context<'_>) -> Result<Exit, Failure> {
    if context.output.format == Format::Json {
        context.output.document(answer)?;
    }
    context.output.say(words.none);
    Ok(Exit::Done)
}

const COLUMNS: [Column; 11] = [
    Column::whole("OPERATION", "id"),
    Column::whole("KIND", "kind").lesser(6),
    Column::state("STATE", "state"),
    Column::whole("DONE", "done"),
    Column::whole("TOTAL", "total"),
    Column::whole("DELIVERED", "delivered"),
    Column::whole("DEAD AGAIN", "dead_again").lesser(1),
    Column::whole("WAITING", "waiting").lesser(2),
    Column::whole("RATE", "rate").lesser(4),
    Column::time("BEGAN", "began_at").lesser(3),
    Column::breakable("NOTE", "note").lesser(5),
];

const FIELDS: [&str; 22] = [
    "id",
    "kind",
    "state",
    "why",
    "endpoint",
    "only_missed",
    "filter",
    "total",
    "max",
    "rate",
    "canary",
    "done",
    "left",
    "time_left_seconds",
    "delivered",
    "dead_again",
    "waiting",
    "otherwise",
    "skipped",
    "by",
    "note",
    "began_at",
];

const WATCH_EVERY: Duration = Duration::from_millis(500);

pub(super) async fn run(verb: Operation, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let mut client = Client::new(context)?;
    let (id, verb) = match verb {
        Operation::List { limit } => {
            let path = client.in_tenant(&["operations"]).await?;
            let list = client.list(&path, &[], limit).await?;
            context.output.list(&list, &COLUMNS, "id")?;
            return Ok(Exit::Done);
        }
        Operation::Get { id, watch: true } => return watch(&mut client, context, &id).await,
        Operation::Get { id, watch: false } => {
            let path = client.in_tenant(&["operations", &id]).await?;
            context.output.one(&client.get(&path, &[]).await?, &FIELDS, "id")?;
            return Ok(Exit::Done);
        }
        Operation::Stop { id } => (id, "stop"),
        Operation::Pause { id } => (id, "pause"),
        Operation::Resume { id } => (id, "resume"),
    };
    let path = client.in_tenant(&["operations", &id, verb]).await?;
    told(&client.post(&path, &json!({})).await?, context)?;
    Ok(Exit::Done)
}

/// Where it stands, in a line.
pub(super) fn told(operation: &Value, context: &mut Context<'_>) -> Result<(), Failure> {
    let output = &mut context.output;
    let id = text(&operation["id"]);
    match output.format {
        Format::Json => output.document(operation),
        Format::Quiet => output.line(&id),
        Format::Table => output.line(&format!("{id}  {}", line_of(operation))),
    }
}

fn line_of(operation: &Value) -> String {
    let mut line = format!("{}  {}", text(&operation["state"]), text(&operation["done"]));
    if let Some(total) = operation["total"].as_u64() {
        let whole = operation["max"].as_u64().map_or(total, |max| max.min(total));
        line += &format!(" of {whole}");
    }
    let done = done_word(operation);
    line += &format!(" {done}, {} per second", text(&operation["rate"]));
    if let Some(left) = operation["time_left_seconds"].as_u64().filter(|left| *left > 0) {
        line += &format!(", {left} s left");
    }
    let of = [("delivered", "delivered"), ("dead_again", "dead again"), ("waiting", "waiting")];
    for (field, word) in of {
        line += &format!(", {} {word}", text(&operation[field]));
    }
    let skipped: u64 = skips(operation).sum();
    if skipped > 0 {
        line += &format!(", {skipped} skipped");
    }
    if let Some(why) = operation["why"].as_str() {
        line += &format!(": {}", super::output::plain(why));
    }
    line
}

fn done_word(operation: &Value) -> &'static str {
    if operation["kind"] == "replay" { "replayed" } else { "redriven" }
}

fn skips(operation: &Value) -> impl Iterator<Item = u64> {
    operation["skipped"].as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64())
}

/// Follows it to its end. What was begun goes on without us, too.
pub(super) async fn watch(client: &mut Client, context: &mut Context<'_>, id: &str) -> Result<Exit, Failure> {
    let path = client.in_tenant(&["operations", id]).await?;
    let mut last = String::new();
    let operation = loop {
        let operation = client.get(&path, &[]).await?;
        if !operation["ended_at"].is_null() {
            break operation;
        }
        let line = line_of(&operation);
        if line != last {
            progress(&mut context.output, &line);
            last = line;
        }
        tokio::time::sleep(WATCH_EVERY).await;
    };
    clear(&mut context.output);
    told(&operation, context)?;
    let whole = operation["state"] == "done" && operation["dead_again"] == 0 && skips(&operation).sum::<u64>() == 0;
    if operation["waiting"].as_u64().unwrap_or(0) > 0 {
        let done = done_word(&operation);
        context.output.say(&format!("all are {done}; those that wait are tried as their endpoints allow"));
    }
    Ok(if whole { Exit::Done } else { Exit::Partly })
}

/// On a terminal one line that changes, else a line for each change.
pub(super) fn progress(output: &mut Output<'_>, line: &str) {
    if output.format == Format::Quiet {
        return;
    }
    if output.streams.err_is_terminal {
        // Nobody needs it.
        let _ = write!(output.streams.err, "\r{line}\u{1b}[K").and_then(|()| output.streams.err.flush());
    } else {
        output.say(line);
    }
}

pub(super) fn clear(output: &mut Output<'_>) {
    if output.streams.err_is_terminal && output.format != Format::Quiet {
        // As above.
        let _ = output.streams.err.write_all(b"\r\x1b[K");
    }
}
