//! `hookgate endpoint …`.

use super::output::{Column, text};
use super::{Client, Context, Exit, Failure, Format};
use serde_json::json;

/// Endpoints: what is sent to, and whether
#[derive(clap::Subcommand, Debug)]
pub(super) enum Endpoint {
    /// All endpoints
    List,
    /// One endpoint
    Get { name: String },
    /// The signing secret that the gateway made for it, for its receiver to verify with
    Secret { name: String },
    /// Send nothing until it is resumed; what comes in is kept
    Pause { name: String },
    /// Send again
    Resume { name: String },
    /// Send again after it was disabled
    Enable { name: String },
    /// Send nothing until it is enabled; what comes in is kept
    Disable {
        name: String,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
}

const COLUMNS: [Column; 5] = [
    ("ENDPOINT", |row| text(&row["name"])),
    ("STATUS", |row| text(&row["status"])),
    ("WHY", |row| text(&row["why"])),
    ("PLUGIN", |row| text(&row["plugin"])),
    ("URL", |row| text(&row["url"])),
];

const FIELDS: [&str; 15] = [
    "name",
    "status",
    "why",
    "until",
    "url",
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
];

pub(super) async fn run(verb: Endpoint, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let mut client = Client::new(context)?;
    let (name, action) = match verb {
        Endpoint::List => {
            let path = client.in_tenant(&["endpoints"]).await?;
            context.output.list(&client.list(&path, &[], 10_000).await?, &COLUMNS, "name")?;
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
        Endpoint::Pause { name } => (name, "pause"),
        Endpoint::Resume { name } => (name, "resume"),
        Endpoint::Enable { name } => (name, "enable"),
        Endpoint::Disable { name, yes } => {
            context.output.confirm(&format!("Disable {name}? Nothing is sent to it then."), yes.into())?;
            (name, "disable")
        }
    };
    let path = client.in_tenant(&["endpoints", &name, action]).await?;
    let answer = client.post(&path, &json!({})).await?;
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
