//! `hookgate dlq …`.

use super::delivery::{self, COLUMNS, Found, body};
use super::export::{self, Exporting};
use super::keys::moment;
use super::operation::{self, Pacing, Words};
use super::output::text;
use super::sweep::{self, Sweep, Sweeping};
use super::table::Column;
use super::{Client, Context, Exit, Failure};
use serde_json::{Map, Value, json};

/// Dead letters: what is in the DLQ, in groups, and out of it again
#[derive(clap::Subcommand, Debug)]
pub(super) enum Dlq {
    /// The newest dead letters
    List {
        #[command(flatten)]
        filter: Box<DeadFilter>,
        /// At most so many
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
    },
    /// Dead letters by host, status and reason
    Groups {
        #[command(flatten)]
        filter: Box<DeadFilter>,
    },
    /// All dead letters of a filter, as lines of JSON
    Export {
        #[command(flatten)]
        filter: Box<DeadFilter>,
        #[command(flatten)]
        export: Exporting,
    },
    /// Send dead letters again: some one by one, or all that match
    Redrive(Box<Redrive>),
    /// Close dead letters without a send
    Resolve {
        #[command(flatten)]
        filter: Box<DeadFilter>,
        /// All dead letters
        #[arg(long)]
        all: bool,
        /// What a person found out
        #[arg(long = "as", value_name = "RESULT")]
        found: Found,
        /// How, for the record
        #[arg(long)]
        note: Option<String>,
        #[command(flatten)]
        sweeping: Sweeping,
    },
    /// Close dead letters for good, and erase what was kept of them
    Purge {
        #[command(flatten)]
        filter: Box<DeadFilter>,
        /// All dead letters
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        sweeping: Sweeping,
    },
}

#[derive(clap::Args, Debug)]
pub(super) struct Redrive {
    /// The dead letters' ids: `dlv_…`; else a filter, or --all
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    #[command(flatten)]
    filter: DeadFilter,
    /// All dead letters
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    pacing: Pacing,
}

/// Which dead letters.
#[derive(clap::Args, Debug, Default, Clone)]
pub(super) struct DeadFilter {
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
    /// Only for this host
    #[arg(long)]
    host: Option<String>,
    /// Only those that this version of a plugin was the last to judge
    #[arg(long, value_name = "VERSION")]
    plugin_version: Option<String>,
    /// Only died at or after this time (RFC 3339, or `1h` ago)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<String>,
    /// Only died before this time (RFC 3339, or `1h` ago)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<String>,
    /// Only those that match this text
    #[arg(long, value_name = "TEXT")]
    q: Option<String>,
}

impl DeadFilter {
    fn fields(&self) -> Map<String, Value> {
        let all = [
            ("endpoint", &self.endpoint),
            ("source", &self.source),
            ("type", &self.event_type),
            ("key", &self.key),
            ("event", &self.event),
            ("reason", &self.reason),
            ("host", &self.host),
            ("plugin_version", &self.plugin_version),
            ("since", &self.since),
            ("until", &self.until),
            ("q", &self.q),
        ];
        let texts = all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value.as_ref()?))));
        texts.chain(self.status.map(|status| ("status".to_owned(), json!(status)))).collect()
    }

    fn query(&self) -> Vec<(&'static str, String)> {
        let known = ["endpoint", "source", "type", "key", "event", "reason", "status", "host", "plugin_version"];
        let fields = self.fields();
        let names = known.into_iter().chain(["since", "until", "q"]);
        names.filter_map(|name| Some((name, text(fields.get(name)?)))).collect()
    }

    /// As an operation takes it; everything only by word.
    fn meant(&self, all: bool) -> Result<Value, Failure> {
        let fields = self.fields();
        match (fields.is_empty(), all) {
            (true, false) => Err(Failure::usage(
                "which dead letters?",
                "name their ids, or filter them, e.g. by --reason or --host; --all means all of them",
            )),
            (false, true) => Err(Failure::usage("--all and a filter contradict each other", "leave one of them out")),
            (true, true) | (false, false) => Ok(Value::Object(fields)),
        }
    }
}

const GROUPS: [Column; 6] = [
    Column::whole("COUNT", "count"),
    Column::breakable("HOST", "host"),
    Column::whole("STATUS", "status"),
    Column::breakable("REASON", "reason"),
    Column::time("OLDEST", "oldest_at").lesser(1),
    Column::whole("SAMPLE", "sample").lesser(2),
];

pub(super) async fn run(verb: Dlq, context: &mut Context<'_>) -> Result<Exit, Failure> {
    match verb {
        Dlq::List { filter, limit } => {
            let mut client = Client::new(context)?;
            let path = client.in_tenant(&["dlq"]).await?;
            let list = client.list(&path, &filter.query(), limit).await?;
            context.output.list(&list, &COLUMNS, "id")?;
            Ok(Exit::Done)
        }
        Dlq::Groups { filter } => {
            let mut client = Client::new(context)?;
            let path = client.in_tenant(&["dlq", "groups"]).await?;
            context.output.list(&client.get(&path, &filter.query()).await?, &GROUPS, "sample")?;
            Ok(Exit::Done)
        }
        Dlq::Redrive(args) if args.ids.is_empty() => in_bulk(*args, context).await,
        Dlq::Redrive(args) => {
            if args.all || !args.pacing.is_plain() || !args.filter.fields().is_empty() {
                return Err(Failure::usage(
                    "ids are redriven one by one, at once: no other option but --note and --request-id goes with them",
                    "leave out the ids or the others",
                ));
            }
            let Redrive { ids, pacing: Pacing { note, request, .. }, .. } = *args;
            let mut client = Client::new(context)?;
            one_by_one(&mut client, context, &ids, note, &request.id()).await
        }
        Dlq::Export { filter, export } => {
            let mut client = Client::new(context)?;
            let path = client.in_tenant(&["dlq", "export"]).await?;
            export::run(export, &mut client, context, (&path, filter.query()), "dead letters").await
        }
        Dlq::Resolve { filter, all, found, note, sweeping } => {
            let warning = match found {
                Found::Sent => "They cannot be redriven then.",
                Found::NotSent => "They leave the DLQ, and can still be redriven one by one.",
            };
            let mut body = body(note, None);
            body["filter"] = filter.meant(all)?;
            body["as"] = json!(found.word());
            let counts = &[("resolved", "dead letters resolved")];
            let sweep = Sweep { body, verb: "Resolve", noun: "dead letters", warning, counts, rehearsed };
            let mut client = Client::new(context)?;
            let path = client.in_tenant(&["dlq", "resolve"]).await?;
            sweep::run(sweep, sweeping, &mut client, &path, context).await
        }
        Dlq::Purge { filter, all, sweeping } => {
            let body = json!({ "filter": filter.meant(all)? });
            let warning = "They can never be sent again, and their payloads are erased.";
            let counts = &[("purged", "dead letters purged"), ("payloads_erased", "payloads erased")];
            let sweep = Sweep { body, verb: "Purge", noun: "dead letters", warning, counts, rehearsed };
            let mut client = Client::new(context)?;
            let path = client.in_tenant(&["dlq", "purge"]).await?;
            sweep::run(sweep, sweeping, &mut client, &path, context).await
        }
    }
}

/// Goes on after a refusal of one; stops when the server is gone or forbids it, since all others would fare alike.
async fn one_by_one(
    client: &mut Client,
    context: &mut Context<'_>,
    ids: &[String],
    note: Option<String>,
    request_id: &str,
) -> Result<Exit, Failure> {
    let body = body(note, None);
    let mut done = 0;
    let mut first = None;
    for id in ids {
        // A key stands for one request, and each letter is one.
        let of_this = format!("{request_id}:{id}");
        match delivery::redrive(client, &mut context.output, id, &body, &of_this).await {
            Ok(()) => done += 1,
            Err(failure) => {
                let over = matches!(failure.exit, Exit::Unreachable | Exit::NotAllowed);
                if ids.len() > 1 {
                    // A refusal for an unknown id names it itself.
                    let named = if failure.message.starts_with(id) { String::new() } else { format!("{id}: ") };
                    let _ = writeln!(context.output.streams.err, "error: {named}{failure}");
                }
                first.get_or_insert(failure);
                if over {
                    break;
                }
            }
        }
    }
    match first {
        None => Ok(Exit::Done),
        Some(failure) if done == 0 => Err(failure),
        Some(_) => {
            context.output.say(&format!("{done} of {} redriven", ids.len()));
            Ok(Exit::Partly)
        }
    }
}

async fn in_bulk(args: Redrive, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let wish = json!({ "filter": args.filter.meant(args.all)? });
    let mut client = Client::new(context)?;
    let path = client.in_tenant(&["dlq", "redrive"]).await?;
    let words = Words { verb: "Redrive", noun: "dead letters", none: "no dead letter matches", rehearsed };
    operation::begin(&mut client, context, (&path, wish), args.pacing, &words).await
}

/// How many, and some of them.
fn rehearsed(found: &Value, context: &mut Context<'_>) -> Result<Exit, Failure> {
    delivery::rehearsed_of("dead letters", found, &mut context.output)
}
