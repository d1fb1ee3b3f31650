//! `hookgate endpoint …`.

use super::keys::{now, time};
use super::output::text;
use super::pull;
use super::table::Column;
use super::{Client, Context, Exit, Failure, Format};
use crate::clock::Timestamp;
use crate::duration;
use serde_json::{Value, json};
use std::time::Duration;

/// Endpoints: what is sent to or fetched from, and whether
#[derive(clap::Subcommand, Debug)]
pub(super) enum Endpoint {
    /// All endpoints
    List,
    /// One endpoint
    Get {
        /// The endpoint's name
        name: String,
    },
    /// The signing secret that the gateway made for it, for its receiver to verify with
    Secret {
        /// The endpoint's name
        name: String,
    },
    /// Send nothing until it is resumed; what comes in is kept
    Pause {
        /// The endpoint's name
        name: String,
        /// Only until this time: RFC 3339, or Unix seconds
        #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "span")]
        until: Option<Timestamp>,
        /// Only for so long, e.g. 30m
        #[arg(long = "for", value_name = "DURATION", value_parser = duration::parse)]
        span: Option<Duration>,
        /// Why, for those who wonder
        #[arg(long, value_name = "TEXT")]
        why: Option<String>,
    },
    /// Send again
    Resume {
        /// The endpoint's name
        name: String,
    },
    /// Send again after it was disabled
    Enable {
        /// The endpoint's name
        name: String,
    },
    /// Send nothing until it is enabled; what comes in is kept
    Disable {
        /// The endpoint's name
        name: String,
        /// Why, for those who wonder
        #[arg(long, value_name = "TEXT")]
        why: Option<String>,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
    /// Fetch due deliveries of a pull endpoint, leased for a time
    Consume(pull::Consume),
    /// Say that what was fetched is done
    Ack(pull::Ack),
    /// Say that what was fetched is not done
    Nack(pull::Nack),
    /// Ask for more time for what was fetched
    Extend(pull::Extend),
}

const COLUMNS: [Column; 7] = [
    Column::whole("ENDPOINT", "name"),
    Column::state("STATUS", "status"),
    Column::whole("PENDING", "pending"),
    Column::whole("DEAD", "dead"),
    Column::breakable("WHY", "why"),
    Column::whole("PLUGIN", "plugin").lesser(2),
    Column::breakable("URL", "url").lesser(1),
];

const FIELDS: [&str; 31] = [
    "name",
    "status",
    "why",
    "until",
    "pending",
    "available",
    "in_flight",
    "dead",
    "oldest_pending_at",
    "breaker_state",
    "breaker_until",
    "failures_in_a_row",
    "failing_since",
    "disables_at",
    "ramp",
    "url",
    "pull",
    "lease",
    "host",
    "sources",
    "event_types",
    "plugin",
    "timeout",
    "concurrency",
    "rate",
    "on_ambiguous",
    "on_plugin_fault",
    "idempotency_header",
    "retry",
    "breaker",
    "disable_after",
];

pub(super) async fn run(verb: Endpoint, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let mut client = Client::new(context)?;
    let (name, action, body) = match verb {
        Endpoint::List => {
            let path = client.in_tenant(&["endpoints"]).await?;
            let mut list = client.list(&path, &[], 10_000).await?;
            if context.output.format == Format::Table {
                let pulled = list["items"].as_array_mut().into_iter().flatten().filter(|one| one["pull"] == true);
                pulled.for_each(|one| one["url"] = one["host"].clone());
            }
            context.output.list(&list, &COLUMNS, "name")?;
            return Ok(Exit::Done);
        }
        Endpoint::Get { name } => {
            let path = client.in_tenant(&["endpoints", &name]).await?;
            context.output.one(&client.get(&path, &[]).await?, &FIELDS, "name")?;
            return Ok(Exit::Done);
        }
        Endpoint::Secret { name } => {
            let path = client.in_tenant(&["endpoints", &name, "secret"]).await?;
            context.output.one(&client.get(&path, &[]).await?, &["name", "signing_secret"], "signing_secret")?;
            return Ok(Exit::Done);
        }
        Endpoint::Consume(args) => return pull::consume(args, &mut client, context).await,
        Endpoint::Ack(args) => return pull::ack(args, &mut client, context).await,
        Endpoint::Nack(args) => return pull::nack(args, &mut client, context).await,
        Endpoint::Extend(args) => return pull::extend(args, &mut client, context).await,
        Endpoint::Pause { name, until, span, why } => {
            let until = until.or_else(|| span.map(|span| now().plus(span)));
            let fields = [("until", until.map(Timestamp::to_rfc3339)), ("why", why)];
            (name, "pause", fields.into_iter().filter_map(|(field, value)| Some((field, value?))).collect::<Value>())
        }
        Endpoint::Resume { name } => (name, "resume", json!({})),
        Endpoint::Enable { name } => (name, "enable", json!({})),
        Endpoint::Disable { name, why, yes } => {
            context.output.confirm(&format!("Disable {name}? Nothing is sent to it then."), yes.into())?;
            (name, "disable", why.map_or_else(|| json!({}), |why| json!({ "why": why })))
        }
    };
    let path = client.in_tenant(&["endpoints", &name, action]).await?;
    let answer = client.post(&path, &body).await?;
    let output = &mut context.output;
    match output.format {
        Format::Json => output.document(&answer)?,
        Format::Quiet => output.line(&name)?,
        Format::Table => {
            let status = text(&answer["status"]);
            output.line(&format!("{name}  {}", if status.is_empty() { action } else { &status }))?;
        }
    }
    Ok(Exit::Done)
}
