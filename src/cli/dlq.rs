//! `hookgate dlq …`.

use super::delivery::{self, COLUMNS, Filter, Request, body};
use super::table::Column;
use super::{Client, Context, Exit, Failure};

/// Dead letters: what is in the DLQ, in groups, and out of it again
#[derive(clap::Subcommand, Debug)]
pub(super) enum Dlq {
    /// The newest dead letters
    List {
        #[command(flatten)]
        filter: Box<Filter>,
        /// At most so many
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
    },
    /// Dead letters by host, status and reason
    Groups,
    /// Send dead letters again, one by one
    Redrive {
        /// The dead letters' ids: `dlv_…`
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
        /// Why, for the record
        #[arg(long)]
        note: Option<String>,
        #[command(flatten)]
        request: Request,
    },
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
    let mut client = Client::new(context)?;
    match verb {
        Dlq::List { filter, limit } => {
            let path = client.in_tenant(&["dlq"]).await?;
            let list = client.list(&path, &filter.query(), limit).await?;
            context.output.list(&list, &COLUMNS, "id")?;
            Ok(Exit::Done)
        }
        Dlq::Groups => {
            let path = client.in_tenant(&["dlq", "groups"]).await?;
            context.output.list(&client.get(&path, &[]).await?, &GROUPS, "sample")?;
            Ok(Exit::Done)
        }
        Dlq::Redrive { ids, note, request } => redrive(&mut client, context, &ids, note, &request.id()).await,
    }
}

/// Goes on after a refusal of one; stops when the server is gone or forbids it, since all others would fare alike.
async fn redrive(
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
