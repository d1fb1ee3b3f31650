//! `hookgate event …`.

use super::delivery::payload;
use super::keys::moment;
use super::operation::{self, Pacing, Words};
use super::output::{plain, text};
use super::table::Column;
use super::{Client, Context, Exit, Failure, Format, Output};
use base64::Engine as _;
use serde_json::{Map, Value, json};
use std::path::PathBuf;

/// Events: what was accepted, publishing one, and sending them once more
#[derive(clap::Subcommand, Debug)]
pub(super) enum Event {
    /// The newest events
    List {
        /// Only those from this source
        #[arg(long)]
        source: Option<String>,
        /// Only those of this type
        #[arg(long = "type", value_name = "TYPE")]
        event_type: Option<String>,
        /// Only those with this logical key
        #[arg(long)]
        key: Option<String>,
        /// Only those accepted at or after this time (RFC 3339, or `1h` ago)
        #[arg(long, value_name = "TIME", value_parser = moment)]
        since: Option<String>,
        /// Only those accepted before this time (RFC 3339, or `1h` ago)
        #[arg(long, value_name = "TIME", value_parser = moment)]
        until: Option<String>,
        /// At most so many
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
    },
    /// One event, without its body
    Get {
        /// The event's id: `evt_…`
        id: String,
    },
    /// The body, byte for byte (on a terminal: as text)
    Body {
        /// The event's id: `evt_…`
        id: String,
    },
    /// Publish an event
    Publish(Publish),
    /// Send events to one endpoint once more, or those it missed
    Replay(Box<Replay>),
}

#[derive(clap::Args, Debug)]
pub(super) struct Replay {
    /// The endpoint they go to
    #[arg(long)]
    endpoint: String,
    /// Only those from this source
    #[arg(long)]
    source: Option<String>,
    /// Only those of this type
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,
    /// Only those with this logical key
    #[arg(long)]
    key: Option<String>,
    /// Only those accepted at or after this time (RFC 3339, or `1h` ago)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<String>,
    /// Only those accepted before this time (RFC 3339, or `1h` ago)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<String>,
    /// All events
    #[arg(long)]
    all: bool,
    /// Only those of which the endpoint never had a delivery
    #[arg(long)]
    only_missed: bool,
    #[command(flatten)]
    pacing: Pacing,
}

#[derive(clap::Args, Debug)]
pub(super) struct Publish {
    /// The event's type
    #[arg(long = "type", value_name = "TYPE")]
    event_type: String,
    /// The logical key: published twice, it is one event
    #[arg(long)]
    key: Option<String>,
    /// The body, as JSON
    #[arg(long, value_name = "JSON", conflicts_with = "file", required_unless_present = "file")]
    payload: Option<String>,
    /// The body, from a file or `-`, byte for byte
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// What the file holds [default: application/json if it is JSON, else application/octet-stream]
    #[arg(long, value_name = "TYPE", requires = "file")]
    content_type: Option<String>,
    /// Not before so long, e.g. 30s
    #[arg(long, value_name = "DURATION", conflicts_with = "deliver_at")]
    delay: Option<String>,
    /// Not before this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    deliver_at: Option<String>,
    /// Not after this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    expires_at: Option<String>,
    /// After the earlier ones with this key, at endpoints that order by key
    #[arg(long, value_name = "KEY")]
    ordering_key: Option<String>,
    /// In place of those with this key that still wait for their window's end
    #[arg(long, value_name = "KEY", requires = "coalesce_window", conflicts_with_all = ["ordering_key", "delay", "deliver_at"])]
    coalesce_key: Option<String>,
    /// How long after the first event of the key the newest is sent: 1s to 7d
    #[arg(long, value_name = "DURATION", requires = "coalesce_key")]
    coalesce_window: Option<String>,
}

const COLUMNS: [Column; 5] = [
    Column::whole("EVENT", "id"),
    Column::breakable("TYPE", "type"),
    Column::whole("SOURCE", "source").lesser(1),
    Column::breakable("KEY", "key").lesser(2),
    Column::time("ACCEPTED", "accepted_at").lesser(3),
];

const FIELDS: [&str; 16] = [
    "id",
    "type",
    "source",
    "key",
    "provider_id",
    "content_type",
    "body_bytes",
    "body_erased",
    "accepted_at",
    "deliver_at",
    "expires_at",
    "deadline",
    "ordering_key",
    "coalesce_key",
    "superseded_by",
    "deliveries",
];

pub(super) async fn run(verb: Event, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let mut client = Client::new(context)?;
    let output = &mut context.output;
    match verb {
        Event::List { source, event_type, key, since, until, limit } => {
            let filters = [("source", source), ("type", event_type), ("key", key), ("since", since), ("until", until)];
            let query: Vec<_> = filters.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
            let path = client.in_tenant(&["events"]).await?;
            output.list(&client.list(&path, &query, limit).await?, &COLUMNS, "id")?;
        }
        Event::Get { id } => {
            let path = client.in_tenant(&["events", &id]).await?;
            let event = client.get(&path, &[]).await?;
            output.one(&event, &FIELDS, "id")?;
            hint(output, &event);
        }
        Event::Body { id } => {
            let path = client.in_tenant(&["events", &id, "body"]).await?;
            output.body(&client.bytes(&path, &[]).await?)?;
        }
        Event::Publish(publish) => {
            let body = publication(&publish, context)?;
            let path = client.in_tenant(&["events"]).await?;
            let answer = client.post(&path, &body).await?;
            let output = &mut context.output;
            match output.format {
                Format::Json => output.document(&answer)?,
                Format::Table | Format::Quiet => output.line(&text(&answer["event"]))?,
            }
            if answer["duplicate"] == json!(true) {
                output.say("the key was published before: nothing new was made");
            }
            hint(output, &answer);
        }
        Event::Replay(args) => return replay(*args, &mut client, context).await,
    }
    Ok(Exit::Done)
}

async fn replay(args: Replay, client: &mut Client, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let Replay { endpoint, source, event_type, key, since, until, all, only_missed, pacing } = args;
    let fields = [("source", source), ("type", event_type), ("key", key), ("since", since), ("until", until)];
    let fields = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value?))));
    let filter: Map<String, Value> = fields.collect();
    match (filter.is_empty(), all) {
        (true, false) => {
            let how = "filter them, e.g. by --type or --since; --all means all of them";
            return Err(Failure::usage("which events?", how));
        }
        (false, true) => {
            return Err(Failure::usage("--all and a filter contradict each other", "leave one of them out"));
        }
        (true, true) | (false, false) => {}
    }
    let path = client.in_tenant(&["endpoints", &endpoint, "replay"]).await?;
    let wish = json!({ "filter": filter, "only_missed": only_missed });
    let words = Words { verb: "Replay", noun: "events", none: "no event matches that can be replayed", rehearsed };
    operation::begin(client, context, (&path, wish), pacing, &words).await
}

/// How many, and some of them.
fn rehearsed(found: &Value, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let output = &mut context.output;
    let samples = json!({ "items": found["samples"] });
    match output.format {
        Format::Json => output.document(found)?,
        Format::Quiet => output.list(&samples, &COLUMNS, "id")?,
        Format::Table => {
            let mut line = format!("{} events would be replayed; nothing was done", text(&found["count"]));
            let words = [("expired", "expired"), ("payload_erased", "without a payload"), ("under_way", "under way")];
            for (field, word) in words {
                if let Some(count) = found["skipped"][field].as_u64().filter(|count| *count > 0) {
                    line += &format!("; {count} {word}");
                }
            }
            output.line(&line)?;
            if found["samples"].as_array().is_some_and(|samples| !samples.is_empty()) {
                output.list(&samples, &COLUMNS, "id")?;
            }
        }
    }
    Ok(Exit::Done)
}

/// What the server has to say to people about an event that goes nowhere.
pub(super) fn hint(output: &mut Output<'_>, answer: &Value) {
    if let Some(hint) = answer["hint"].as_str() {
        output.say(&format!("hint: {}", plain(hint)));
    }
}

fn publication(publish: &Publish, context: &mut Context<'_>) -> Result<Value, Failure> {
    let mut body = json!({ "type": publish.event_type });
    let optional = [
        ("key", &publish.key),
        ("delay", &publish.delay),
        ("deliver_at", &publish.deliver_at),
        ("expires_at", &publish.expires_at),
        ("ordering_key", &publish.ordering_key),
        ("coalesce_key", &publish.coalesce_key),
        ("coalesce_window", &publish.coalesce_window),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            body[name] = json!(value);
        }
    }
    match &publish.file {
        None => body["payload"] = payload(publish.payload.as_deref().unwrap_or_default())?,
        Some(file) => {
            let bytes = super::delivery::bytes_of(file, context)?;
            let guessed = || {
                let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_ok();
                if is_json { "application/json" } else { "application/octet-stream" }.to_owned()
            };
            body["content_type"] = json!(publish.content_type.clone().unwrap_or_else(guessed));
            body["body_base64"] = json!(base64::engine::general_purpose::STANDARD.encode(&bytes));
        }
    }
    Ok(body)
}
