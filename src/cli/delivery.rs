//! `hookgate delivery …`.

use super::export::{self, Exporting};
use super::keys::moment;
use super::output::{plain, text};
use super::sweep::{self, Sweep, Sweeping};
use super::table::Column;
use super::{Client, Consent, Context, Exit, Failure, Format, Output, client};
use crate::clock::Timestamp;
use crate::delivery::DeliveryState;
use crate::duration;
use clap::ValueEnum;
use serde_json::{Map, Value, json};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is sent as a payload is at most what ingress takes at most.
const PAYLOAD_BYTES_MAX: u64 = 25 << 20;
/// More of a receiver's answer is not shown; `--json` has all that was kept.
const ANSWER_CHARS_SHOWN: usize = 400;

/// Deliveries: the log, one with its attempts, and what can be done with it
#[derive(clap::Subcommand, Debug)]
pub(super) enum Delivery {
    /// The newest deliveries
    List {
        #[command(flatten)]
        filter: Box<Filter>,
        /// At most so many
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
    },
    /// One delivery and its attempts
    Get {
        /// The delivery's id: `dlv_…`
        id: String,
    },
    /// What is sent, or was as an earlier revision (on a terminal: as text)
    Body {
        /// The delivery's id: `dlv_…`
        id: String,
        /// The revision: 1 is the event as it came [default: the newest]
        #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
        revision: Option<u32>,
    },
    /// Send a dead letter again: a fresh budget, the same id
    Redrive {
        /// The dead letter's id: `dlv_…`
        id: String,
        /// Why, for the record
        #[arg(long)]
        note: Option<String>,
        /// A corrected payload, as JSON; needs a note
        #[arg(long, value_name = "JSON", conflicts_with = "file", requires = "note")]
        payload: Option<String>,
        /// A corrected payload, as JSON from a file or `-`; needs a note
        #[arg(short, long, value_name = "FILE", requires = "note")]
        file: Option<PathBuf>,
        #[command(flatten)]
        request: Request,
    },
    /// Send once more what is over: a new delivery, linked to this one
    Resend {
        /// The delivery's id: `dlv_…`
        id: String,
        /// Why, for the record
        #[arg(long)]
        note: Option<String>,
        #[command(flatten)]
        request: Request,
    },
    /// All deliveries of a filter, as lines of JSON
    Export {
        #[command(flatten)]
        filter: Box<Filter>,
        #[command(flatten)]
        export: Exporting,
    },
    /// Give up a delivery that has not ended, or all that match
    Cancel {
        /// The delivery's id: `dlv_…`; else a filter, or --all
        id: Option<String>,
        #[command(flatten)]
        which: Box<Which>,
        /// All pending deliveries
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        sweeping: Sweeping,
    },
    /// Close a dead letter without a send
    Resolve {
        /// The dead letter's id: `dlv_…`
        id: String,
        /// What a person found out
        #[arg(long = "as", value_name = "RESULT")]
        found: Found,
        /// How, for the record
        #[arg(long)]
        note: Option<String>,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
}

/// One request, told from its repetitions.
#[derive(clap::Args, Debug)]
pub(super) struct Request {
    /// Done once under this id, however often it is asked [default: a new one]
    #[arg(long, value_name = "TEXT", value_parser = request_id)]
    request_id: Option<String>,
}

impl Request {
    pub(super) fn id(self) -> String {
        self.request_id.unwrap_or_else(client::fresh_request_id)
    }
}

fn request_id(text: &str) -> Result<String, String> {
    // The server takes 255; a delivery's id may be appended.
    let right = (1..=200).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    right.then(|| text.to_owned()).ok_or_else(|| "write 1 to 200 visible ASCII characters, no spaces".to_owned())
}

/// Whether the receiver has it.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub(super) enum Found {
    #[value(name = "sent")]
    Sent,
    #[value(name = "not_sent", alias = "not-sent")]
    NotSent,
}

impl Found {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Found::Sent => "sent",
            Found::NotSent => "not_sent",
        }
    }
}

/// Which deliveries.
#[derive(clap::Args, Debug, Default, Clone)]
pub(super) struct Filter {
    /// Only in this state
    #[arg(long, value_parser = state)]
    state: Option<String>,
    #[command(flatten)]
    which: Which,
}

/// Which deliveries, in whatever state.
#[derive(clap::Args, Debug, Default, Clone)]
pub(super) struct Which {
    /// Only for this endpoint
    #[arg(long)]
    endpoint: Option<String>,
    /// Only from this source
    #[arg(long)]
    source: Option<String>,
    /// Only of events of this type
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,
    /// Only with this logical key
    #[arg(long)]
    key: Option<String>,
    /// Only of this event
    #[arg(long)]
    event: Option<String>,
    /// Only with this reason
    #[arg(long)]
    reason: Option<String>,
    /// Only with this last HTTP status
    #[arg(long)]
    status: Option<u16>,
    /// Only made at or after this time (RFC 3339, or `1h` ago)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<String>,
    /// Only made before this time (RFC 3339, or `1h` ago)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<String>,
    /// Only those that match this text
    #[arg(long, value_name = "TEXT")]
    q: Option<String>,
}

fn state(text: &str) -> Result<String, String> {
    let names = DeliveryState::ALL.map(DeliveryState::as_str).join(", ");
    DeliveryState::parse(text).map(|s| s.as_str().to_owned()).ok_or_else(|| format!("write one of {names}"))
}

impl Filter {
    pub(super) fn query(self) -> Vec<(&'static str, String)> {
        let state = self.state.map(|state| ("state", state));
        state.into_iter().chain(self.which.query()).collect()
    }
}

impl Which {
    fn query(self) -> Vec<(&'static str, String)> {
        let all = [
            ("endpoint", self.endpoint),
            ("source", self.source),
            ("type", self.event_type),
            ("key", self.key),
            ("event", self.event),
            ("reason", self.reason),
            ("status", self.status.map(|s| s.to_string())),
            ("since", self.since),
            ("until", self.until),
            ("q", self.q),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

pub(super) const COLUMNS: [Column; 8] = [
    Column::whole("DELIVERY", "id"),
    Column::state("STATE", "state"),
    Column::breakable("TYPE", "event_type"),
    Column::breakable("ENDPOINT", "endpoint"),
    Column::whole("TRIES", "attempt_count").lesser(4),
    Column::whole("STATUS", "last_status").lesser(2),
    Column::breakable("REASON", "reason").lesser(1),
    Column::time("CREATED", "created_at").lesser(3),
];

/// The attempts, as [`waterfall`] makes their rows.
const ATTEMPTS: [Column; 12] = [
    Column::whole("#", "number"),
    Column::whole("GEN", "generation").lesser(4),
    Column::whole("BEGAN", "began"),
    Column::whole("", "bar").lesser(6),
    Column::whole("TOOK", "took"),
    Column::whole("OUTCOME", "outcome").lesser(3),
    Column::whole("STATUS", "status"),
    Column::state("VERDICT", "verdict"),
    Column::breakable("REASON", "reason"),
    Column::whole("BY", "decided_by").lesser(2),
    Column::state("THEN", "disposition").lesser(1),
    Column::time("NEXT", "next_at").lesser(5),
];

const FIELDS: [&str; 25] = [
    "id",
    "event",
    "event_type",
    "key",
    "source",
    "endpoint",
    "host",
    "idempotency_key",
    "origin",
    "resend_of",
    "resends",
    "ordering_key",
    "out_of_order",
    "state",
    "reason",
    "held_by",
    "reference",
    "note",
    "generation",
    "revision",
    "created_at",
    "due_at",
    "finished_at",
    "expires_at",
    "deadline",
];

pub(super) async fn run(verb: Delivery, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let mut client = Client::new(context)?;
    match verb {
        Delivery::List { filter, limit } => {
            let path = client.in_tenant(&["deliveries"]).await?;
            let list = client.list(&path, &filter.query(), limit).await?;
            context.output.list(&list, &COLUMNS, "id")?;
        }
        Delivery::Get { id } => {
            let path = client.in_tenant(&["deliveries", &id]).await?;
            let mut delivery = client.get(&path, &[]).await?;
            // Where there is no order, there is nothing to say of it.
            if context.output.format == Format::Table && delivery["ordering_key"].is_null() {
                delivery["out_of_order"] = Value::Null;
            }
            if context.output.format == Format::Table && delivery["resends"].as_array().is_some_and(Vec::is_empty) {
                delivery["resends"] = Value::Null;
            }
            context.output.one(&delivery, &FIELDS, "id")?;
            if context.output.format == Format::Table {
                waterfall(&mut context.output, &delivery)?;
            }
        }
        Delivery::Body { id, revision } => {
            let path = client.in_tenant(&["deliveries", &id, "body"]).await?;
            let query: Vec<_> = revision.map(|n| ("revision", n.to_string())).into_iter().collect();
            context.output.body(&client.bytes(&path, &query).await?)?;
        }
        Delivery::Redrive { id, note, payload: written, file, request } => {
            let corrected = match (written, file) {
                (Some(written), _) => Some(payload(&written)?),
                (None, Some(file)) => Some(payload(&String::from_utf8_lossy(&bytes_of(&file, context)?))?),
                (None, None) => None,
            };
            redrive(&mut client, &mut context.output, &id, &body(note, corrected), &request.id()).await?;
        }
        Delivery::Resend { id, note, request } => {
            resend(&mut client, &mut context.output, &id, &body(note, None), &request.id()).await?;
        }
        Delivery::Export { filter, export } => {
            let path = client.in_tenant(&["deliveries", "export"]).await?;
            return export::run(export, &mut client, context, (&path, filter.query()), "deliveries").await;
        }
        Delivery::Cancel { id: None, which, all, sweeping } => {
            return cancel_many(*which, all, sweeping, &mut client, context).await;
        }
        Delivery::Cancel { id: Some(id), which, all, sweeping: Sweeping { dry_run, yes } } => {
            if all || dry_run || !which.query().is_empty() {
                return Err(Failure::usage(
                    "an id is cancelled by itself: no filter, --all or --dry-run goes with it",
                    "leave out the id or the others",
                ));
            }
            context.output.confirm(&format!("Cancel {id}? It is never sent then."), yes.into())?;
            act(&mut client, &mut context.output, &id, "cancel", &json!({}), &client::fresh_request_id()).await?;
        }
        Delivery::Resolve { id, found, note, yes } => {
            let then = match found {
                Found::Sent => "It cannot be redriven then.",
                Found::NotSent => "It leaves the DLQ, and can still be redriven.",
            };
            context.output.confirm(&format!("Resolve {id}? {then}"), Consent::from(yes))?;
            let mut body = body(note, None);
            body["as"] = json!(found.word());
            act(&mut client, &mut context.output, &id, "resolve", &body, &client::fresh_request_id()).await?;
        }
    }
    Ok(Exit::Done)
}

async fn cancel_many(
    which: Which,
    all: bool,
    sweeping: Sweeping,
    client: &mut Client,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    let status = which.status;
    let mut filter: Map<String, Value> =
        which.query().into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
    if let Some(status) = status {
        filter.insert("status".to_owned(), json!(status));
    }
    match (filter.is_empty(), all) {
        (true, false) => {
            let how = "name an id, or filter them, e.g. by --endpoint; --all means all that are pending";
            return Err(Failure::usage("which deliveries?", how));
        }
        (false, true) => {
            return Err(Failure::usage("--all and a filter contradict each other", "leave one of them out"));
        }
        (true, true) | (false, false) => {}
    }
    let path = client.in_tenant(&["deliveries", "cancel"]).await?;
    let sweep = Sweep {
        body: json!({ "filter": filter }),
        verb: "Cancel",
        noun: "pending deliveries",
        warning: "They are never sent then.",
        counts: &[("cancelled", "deliveries cancelled")],
        rehearsed,
    };
    sweep::run(sweep, sweeping, client, &path, context).await
}

/// How many, and some of them.
fn rehearsed(found: &Value, context: &mut Context<'_>) -> Result<Exit, Failure> {
    rehearsed_of("pending deliveries", found, &mut context.output)
}

pub(super) fn rehearsed_of(noun: &str, found: &Value, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let samples = json!({ "items": found["samples"] });
    match output.format {
        Format::Json => output.document(found)?,
        Format::Quiet => output.list(&samples, &COLUMNS, "id")?,
        Format::Table => {
            output.line(&format!("{} {noun} match; nothing was done", text(&found["count"])))?;
            if found["samples"].as_array().is_some_and(|samples| !samples.is_empty()) {
                output.list(&samples, &COLUMNS, "id")?;
            }
        }
    }
    Ok(Exit::Done)
}

pub(super) fn body(note: Option<String>, payload: Option<Value>) -> Value {
    let mut body = json!({});
    if let Some(note) = note {
        body["note"] = json!(note);
    }
    if let Some(payload) = payload {
        body["payload"] = payload;
    }
    body
}

/// Whether it was done is not known when the connection broke: then the id is told, to ask again by.
pub(super) async fn redrive(
    client: &mut Client,
    output: &mut Output<'_>,
    id: &str,
    body: &Value,
    request_id: &str,
) -> Result<(), Failure> {
    let done = act(client, output, id, "redrive", body, request_id).await;
    let given = request_id.strip_suffix(id).and_then(|given| given.strip_suffix(':')).unwrap_or(request_id);
    done.map_err(|failure| to_ask_again(failure, &format!("--request-id {given}, which redrives once at most")))
}

fn to_ask_again(mut failure: Failure, how: &str) -> Failure {
    if failure.exit == Exit::Unreachable {
        let again = format!("ask again with {how}");
        failure.remedy = Some(failure.remedy.map_or(again.clone(), |first| format!("{first}; {again}")));
    }
    failure
}

/// Says which delivery was made.
async fn resend(
    client: &mut Client,
    output: &mut Output<'_>,
    id: &str,
    body: &Value,
    request_id: &str,
) -> Result<(), Failure> {
    let path = client.in_tenant(&["deliveries", id, "resend"]).await?;
    let made = client.post_as(&path, body, request_id).await;
    let once = format!("--request-id {request_id}, which resends once at most");
    let made = made.map_err(|failure| to_ask_again(failure, &once))?;
    match output.format {
        Format::Json => output.document(&made),
        Format::Quiet => output.line(&text(&made["id"])),
        Format::Table => output.line(&format!("{}  {}", text(&made["id"]), text(&made["state"]))),
    }
}

/// One verb on one delivery; says how the delivery stands then.
pub(super) async fn act(
    client: &mut Client,
    output: &mut Output<'_>,
    id: &str,
    verb: &str,
    body: &Value,
    request_id: &str,
) -> Result<(), Failure> {
    let path = client.in_tenant(&["deliveries", id, verb]).await?;
    let answer = client.post_as(&path, body, request_id).await?;
    match output.format {
        Format::Json => output.document(&answer),
        Format::Quiet => output.line(id),
        Format::Table => {
            let state = text(&answer["state"]);
            output.line(&format!("{id}  {}", if state.is_empty() { verb } else { &state }))
        }
    }
}

/// A payload as it is written on the command line.
pub(super) fn payload(text: &str) -> Result<Value, Failure> {
    serde_json::from_str(text)
        .map_err(|e| Failure::usage(format!("the payload is not JSON: {e}"), "quote it for the shell: '{\"a\":1}'"))
}

/// A file's bytes, or those of standard input for `-`.
pub(super) fn bytes_of(file: &Path, context: &mut Context<'_>) -> Result<Vec<u8>, Failure> {
    if file == Path::new("-") { bounded(file, Ok(&mut *context.output.streams.input)) } else { bytes_of_file(file) }
}

pub(super) fn bytes_of_file(file: &Path) -> Result<Vec<u8>, Failure> {
    bounded(file, std::fs::File::open(file))
}

fn bounded(file: &Path, from: std::io::Result<impl Read>) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let named = file.display();
    from.and_then(|from| from.take(PAYLOAD_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(|e| Failure::usage(format!("`{named}` cannot be read: {e}"), "check the path"))?;
    if bytes.len() as u64 > PAYLOAD_BYTES_MAX {
        return Err(Failure::usage(format!("`{named}` is larger than 25 MiB"), "no event is larger"));
    }
    Ok(bytes)
}

/// The attempts in their order: when each began after the first, and how long it took beside the longest.
fn waterfall(output: &mut Output<'_>, delivery: &Value) -> Result<(), Failure> {
    let attempts = delivery["attempts"].as_array().map_or(&[][..], Vec::as_slice);
    if attempts.is_empty() {
        return Ok(());
    }
    let began = |a: &Value| a["started_at"].as_str().and_then(Timestamp::parse_rfc3339);
    let first = attempts.iter().filter_map(began).min();
    let took = |a: &Value| a["duration_ms"].as_u64().unwrap_or(0);
    let longest = attempts.iter().map(took).max().unwrap_or(0);
    let row = |a: &Value| {
        let mut row = a.clone();
        row["began"] = match (began(a), first) {
            (Some(at), Some(first)) => format!("+{}", rounded(at.since(first))).into(),
            (Some(_) | None, _) => Value::Null,
        };
        row["bar"] = bar(took(a), longest).into();
        row["took"] = format!("{}ms", took(a)).into();
        row
    };
    let rows: Vec<Value> = attempts.iter().map(row).collect();
    output.line("")?;
    output.table(&ATTEMPTS, &rows)?;
    let told: Vec<String> = attempts.iter().flat_map(told).collect();
    if !told.is_empty() {
        output.line("")?;
    }
    told.iter().try_for_each(|line| output.line(line))
}

/// What an attempt has to tell beside its row: the detail, the receiver's answer, the plugin's log.
fn told(attempt: &Value) -> Vec<String> {
    let number = text(&attempt["number"]);
    let line = |what: &str, said: &str| format!("#{number} {what}  {}", plain(said));
    let mut lines = Vec::new();
    if let Some(detail) = attempt["detail"].as_str().filter(|detail| !detail.is_empty()) {
        lines.push(line("detail", detail));
    }
    if let Some(body) = attempt["response_body"].as_str().filter(|body| !body.is_empty()) {
        let cut = body.chars().nth(ANSWER_CHARS_SHOWN).is_some() || attempt["response_body_truncated"] == json!(true);
        let shown: String = body.chars().take(ANSWER_CHARS_SHOWN).collect();
        lines.push(line("answer", &shown) + if cut { " …" } else { "" });
    }
    for record in attempt["plugin_log"].as_array().into_iter().flatten() {
        lines.push(line("log   ", &format!("{}: {}", text(&record["level"]), text(&record["message"]))));
    }
    if let Some(dropped) = attempt["plugin_log_dropped"].as_u64().filter(|dropped| *dropped > 0) {
        lines.push(line("log   ", &format!("… and {dropped} more that were not kept")));
    }
    lines
}

/// A span in the unit that suits its size.
fn rounded(span: Duration) -> String {
    let unit = match span.as_secs() {
        0..60 => return format!("{}.{:01}s", span.as_secs(), span.subsec_millis() / 100),
        60..3_600 => 1,
        3_600..86_400 => 60,
        _ => 3_600,
    };
    let whole = span.as_secs() / unit * unit;
    let parts = [(whole / 86_400, "d"), (whole / 3_600 % 24, "h"), (whole / 60 % 60, "m"), (whole % 60, "s")];
    let text: String = parts.iter().filter(|(n, _)| *n > 0).map(|(n, unit)| format!("{n}{unit}")).collect();
    if text.is_empty() { duration::show(span) } else { text }
}

const BAR: u64 = 12;

fn bar(part: u64, whole: u64) -> String {
    let cells = (part * BAR).checked_div(whole).unwrap_or(0).max(1);
    "▇".repeat(usize::try_from(cells).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short_to_read() {
        for (secs, text) in [(0, "0.0s"), (59, "59.0s"), (61, "1m1s"), (3_700, "1h1m"), (90_061, "1d1h")] {
            assert_eq!(rounded(Duration::from_secs(secs)), text);
        }
    }

    #[test]
    fn bars_end_at_the_longest() {
        assert_eq!((bar(0, 0).chars().count(), bar(0, 9).chars().count()), (1, 1));
        assert_eq!((bar(5, 10).chars().count(), bar(10, 10).chars().count()), (6, 12));
    }
}
