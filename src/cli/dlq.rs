//! `hookgate dlq …`.

use super::delivery::{self, COLUMNS, Request, body};
use super::keys::moment;
use super::operation;
use super::output::text;
use super::table::Column;
use super::{Client, Consent, Context, Exit, Failure, Format};
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
    /// Send dead letters again: some one by one, or all that match
    Redrive(Box<Redrive>),
    /// Close dead letters for good, and erase what was kept of them
    Purge {
        #[command(flatten)]
        filter: Box<DeadFilter>,
        /// All dead letters
        #[arg(long)]
        all: bool,
        /// Only say how many, and show some
        #[arg(long)]
        dry_run: bool,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
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
    /// Why, for the record
    #[arg(long)]
    note: Option<String>,
    #[command(flatten)]
    request: Request,
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
    /// One first, then 10, 100, …, as long as the old failure does not come back
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
            let bulk = args.all || args.dry_run || args.max.is_some() || args.rate.is_some() || args.canary;
            let bulk = bulk || args.probe || args.no_probe || args.force || args.watch;
            if bulk || !args.filter.fields().is_empty() {
                return Err(Failure::usage(
                    "ids are redriven one by one, at once: no other option but --note and --request-id goes with them",
                    "leave out the ids or the others",
                ));
            }
            let Redrive { ids, note, request, .. } = *args;
            let mut client = Client::new(context)?;
            one_by_one(&mut client, context, &ids, note, &request.id()).await
        }
        Dlq::Purge { filter, all, dry_run, yes } => purge(&filter.meant(all)?, dry_run, yes, context).await,
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
    let filter = args.filter.meant(args.all)?;
    let mut client = Client::new(context)?;
    let path = client.in_tenant(&["dlq", "redrive"]).await?;
    if args.dry_run {
        return rehearsed(&client.post(&path, &json!({ "filter": filter, "dry_run": true })).await?, context);
    }
    let mut body = body(args.note, None);
    for (field, value) in [("max", args.max), ("rate", args.rate.map(u64::from))] {
        if let Some(value) = value {
            body[field] = json!(value);
        }
    }
    body["canary"] = json!(args.canary);
    body["probe"] = json!(!args.no_probe);
    body["force"] = json!(args.force);
    body["filter"] = filter.clone();
    if !args.yes {
        let found = client.post(&path, &json!({ "filter": filter, "dry_run": true })).await?;
        let count = found["count"].as_u64().unwrap_or(0);
        if count == 0 {
            return nothing_matches(&found, context);
        }
        let count = args.max.map_or(count, |max| max.min(count));
        let rate = args.rate.unwrap_or(100);
        context.output.confirm(&format!("Redrive {count} dead letters, {rate} per second?"), Consent::ToBeAsked)?;
    }
    let request_id = args.request.id();
    let operation = client.post_as(&path, &body, &request_id).await.map_err(|mut failure| {
        if failure.exit == Exit::Unreachable {
            let again = format!("ask again with --request-id {request_id}, which begins it once at most");
            failure.remedy = Some(failure.remedy.map_or(again.clone(), |first| format!("{first}; {again}")));
        }
        failure
    })?;
    let Some(id) = operation["id"].as_str() else { return nothing_matches(&operation, context) };
    if args.watch {
        return operation::watch(&mut client, context, id).await;
    }
    operation::told(&operation, context)?;
    context.output.say(&format!("follow it with: hookgate operation get {id} --watch"));
    Ok(Exit::Done)
}

fn nothing_matches(answer: &Value, context: &mut Context<'_>) -> Result<Exit, Failure> {
    if context.output.format == Format::Json {
        context.output.document(answer)?;
    }
    context.output.say("no dead letter matches");
    Ok(Exit::Done)
}

/// How many, and some of them.
fn rehearsed(found: &Value, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let output = &mut context.output;
    let samples = json!({ "items": found["samples"] });
    match output.format {
        Format::Json => output.document(found)?,
        Format::Quiet => output.list(&samples, &COLUMNS, "id")?,
        Format::Table => {
            output.line(&format!("{} dead letters match; nothing was done", text(&found["count"])))?;
            if found["samples"].as_array().is_some_and(|samples| !samples.is_empty()) {
                output.list(&samples, &COLUMNS, "id")?;
            }
        }
    }
    Ok(Exit::Done)
}

async fn purge(filter: &Value, dry_run: bool, yes: bool, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let mut client = Client::new(context)?;
    let path = client.in_tenant(&["dlq", "purge"]).await?;
    if dry_run || !yes {
        let found = client.post(&path, &json!({ "filter": filter, "dry_run": true })).await?;
        if dry_run {
            return rehearsed(&found, context);
        }
        let count = text(&found["count"]);
        let question =
            format!("Purge {count} dead letters? They can never be sent again, and their payloads are erased.");
        context.output.confirm(&question, Consent::ToBeAsked)?;
    }
    let (mut purged, mut payloads) = (0, 0);
    loop {
        let answer = client.post(&path, &json!({ "filter": filter })).await?;
        purged += answer["purged"].as_u64().unwrap_or(0);
        payloads += answer["payloads_erased"].as_u64().unwrap_or(0);
        if answer["more"] != json!(true) {
            break;
        }
        context.output.say(&format!("{purged} purged so far"));
    }
    let output = &mut context.output;
    match output.format {
        Format::Json => output.document(&json!({ "purged": purged, "payloads_erased": payloads }))?,
        Format::Quiet => output.line(&purged.to_string())?,
        Format::Table => output.line(&format!("{purged} dead letters purged, {payloads} payloads erased"))?,
    }
    Ok(Exit::Done)
}
