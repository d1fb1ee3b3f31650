//! `hookgate alert …`.

use super::table::Column;
use super::{Client, Context, Exit, Failure, Format};

/// Alerts: what fires, what did, and what to do next
#[derive(clap::Subcommand, Debug)]
pub(super) enum Alert {
    /// What fires and what did, the newest first
    List {
        /// Only what fires now
        #[arg(long)]
        firing: bool,
        /// Of all tenants, and of the gateway itself
        #[arg(long)]
        all: bool,
        /// At most so many
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
    },
}

const COLUMNS: [Column; 7] = [
    Column::state("STATE", "state"),
    Column::whole("KIND", "kind"),
    Column::whole("SUBJECT", "subject"),
    Column::time("FIRED", "fired_at"),
    Column::time("CLEARED", "cleared_at").lesser(2),
    Column::whole("TENANT", "tenant").lesser(1),
    Column::breakable("SUMMARY", "summary"),
];

pub(super) async fn run(verb: Alert, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let Alert::List { firing, all, limit } = verb;
    let mut client = Client::new(context)?;
    let path = if all { "/v1/alerts".to_owned() } else { client.in_tenant(&["alerts"]).await? };
    let query: Vec<_> = firing.then(|| ("state", "firing".to_owned())).into_iter().collect();
    let list = client.list(&path, &query, limit).await?;
    context.output.list(&list, &COLUMNS, "id")?;
    if context.output.format == Format::Table {
        // What to do is worth more room than a column has.
        for alert in list["items"].as_array().into_iter().flatten().filter(|alert| alert["state"] == "firing") {
            let (kind, subject) = (super::output::text(&alert["kind"]), super::output::text(&alert["subject"]));
            let next = super::output::text(&alert["next_step"]);
            context.output.line(&format!("\n{kind} {subject}: {next}"))?;
        }
    }
    Ok(Exit::Done)
}
