//! `hookgate endpoint consume`, `ack`, `nack` and `extend`: a consumer of a pull endpoint, by hand.

use super::client::refusal;
use super::output::text;
use super::table::Column;
use super::{Client, Context, Exit, Failure, Format};
use crate::duration;
use serde_json::{Value, json};

/// A span as the API takes it.
fn span(text: &str) -> Result<String, String> {
    duration::parse(text).map(duration::show)
}

#[derive(clap::Args, Debug)]
pub(super) struct Consume {
    /// The endpoint's name
    name: String,
    /// At most so many
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    max: u32,
    /// For how long [default: the endpoint's own]
    #[arg(long, value_name = "DURATION", value_parser = span)]
    lease: Option<String>,
}

/// What was fetched.
#[derive(clap::Args, Debug)]
pub(super) struct Receipts {
    /// The endpoint's name
    name: String,
    /// What `consume` gave: `rct_…`
    #[arg(required = true, value_name = "RECEIPT")]
    receipts: Vec<String>,
}

#[derive(clap::Args, Debug)]
pub(super) struct Ack {
    #[command(flatten)]
    fetched: Receipts,
    /// What the consumer calls it, to find it by
    #[arg(long, value_name = "TEXT")]
    reference: Option<String>,
}

#[derive(clap::Args, Debug)]
pub(super) struct Nack {
    #[command(flatten)]
    fetched: Receipts,
    /// When it is due again [default: as the endpoint's policy has it]
    #[arg(long, value_name = "DURATION", value_parser = span, conflicts_with = "terminal")]
    delay: Option<String>,
    /// Why, as a word
    #[arg(long, value_name = "WORD")]
    reason: Option<String>,
    /// Not to be tried again: to the DLQ
    #[arg(long)]
    terminal: bool,
}

#[derive(clap::Args, Debug)]
pub(super) struct Extend {
    #[command(flatten)]
    fetched: Receipts,
    /// How long from now on [default: the endpoint's own]
    #[arg(long, value_name = "DURATION", value_parser = span)]
    lease: Option<String>,
}

const FETCHED: [Column; 7] = [
    Column::whole("RECEIPT", "receipt"),
    Column::breakable("TYPE", "event_type"),
    Column::whole("TRY", "attempt").lesser(4),
    Column::time("UNTIL", "lease_until").lesser(1),
    Column::breakable("KEY", "key").lesser(3),
    Column::whole("DELIVERY", "delivery").lesser(5),
    Column::breakable("CONTENT", "content_type").lesser(6),
];

const TOLD: [Column; 5] = [
    Column::whole("RECEIPT", "receipt"),
    Column::state("RESULT", "result"),
    Column::breakable("REASON", "reason"),
    Column::time("NEXT", "next").lesser(1),
    Column::whole("DELIVERY", "delivery").lesser(2),
];

fn fields(all: &[(&str, Option<Value>)]) -> Value {
    all.iter().filter_map(|(field, value)| Some(((*field).to_owned(), value.clone()?))).collect()
}

pub(super) async fn consume(args: Consume, client: &mut Client, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let path = client.in_tenant(&["endpoints", &args.name, "consume"]).await?;
    let wish = fields(&[("max", Some(args.max.into())), ("lease", args.lease.map(Value::from))]);
    let basket = client.post(&path, &wish).await?;
    let is_empty = basket["items"].as_array().is_none_or(Vec::is_empty);
    if is_empty && context.output.format == Format::Table {
        let why = match (basket["status"].as_str(), text(&basket["until"]), text(&basket["next_due_at"])) {
            (Some("paused"), until, _) if !until.is_empty() => format!("the endpoint is paused until {until}"),
            (Some("paused"), ..) => "the endpoint is paused".to_owned(),
            (Some("disabled"), ..) => "the endpoint is disabled".to_owned(),
            (_, _, due) if !due.is_empty() => format!("nothing is due before {due}"),
            _ => "nothing waits".to_owned(),
        };
        context.output.say(&why);
        return Ok(Exit::Done);
    }
    context.output.list(&basket, &FETCHED, "receipt")?;
    Ok(Exit::Done)
}

pub(super) async fn ack(args: Ack, client: &mut Client, context: &mut Context<'_>) -> Result<Exit, Failure> {
    if args.reference.is_some() && args.fetched.receipts.len() > 1 {
        let remedy = "give them one by one, or without --reference";
        return Err(Failure::usage("a reference is that of one delivery", remedy));
    }
    answer("ack", &args.fetched, &[("reference", args.reference.map(Value::from))], client, context).await
}

pub(super) async fn nack(args: Nack, client: &mut Client, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let wish = [
        ("delay", args.delay.map(Value::from)),
        ("reason", args.reason.map(Value::from)),
        ("terminal", args.terminal.then_some(Value::Bool(true))),
    ];
    answer("nack", &args.fetched, &wish, client, context).await
}

pub(super) async fn extend(args: Extend, client: &mut Client, context: &mut Context<'_>) -> Result<Exit, Failure> {
    answer("extend", &args.fetched, &[("lease", args.lease.map(Value::from))], client, context).await
}

/// Says the same of all receipts. Each stands for itself: when some are refused, the others count.
async fn answer(
    verb: &str,
    fetched: &Receipts,
    wish: &[(&str, Option<Value>)],
    client: &mut Client,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    let path = client.in_tenant(&["endpoints", &fetched.name, verb]).await?;
    let item = |receipt: &String| {
        let mut item = fields(wish);
        item["receipt"] = receipt.as_str().into();
        item
    };
    let items: Vec<Value> = fetched.receipts.iter().map(item).collect();
    let told = client.post(&path, &json!({ "items": items })).await?;
    let mut rows = told["items"].as_array().cloned().unwrap_or_default();
    let mut refused = Vec::new();
    for (row, receipt) in rows.iter_mut().zip(&fetched.receipts) {
        row["receipt"] = receipt.as_str().into();
        let error = row["error"].clone();
        if !error.is_null() {
            row["result"] = error["code"].clone();
            let status = error["status"].as_u64().and_then(|status| u16::try_from(status).ok()).unwrap_or_default();
            let failure = refusal(status, error.to_string().as_bytes());
            refused.push(Failure { message: format!("{receipt}: {}", failure.message), ..failure });
        }
        row["next"] = if row["due_at"].is_null() { row["lease_until"].clone() } else { row["due_at"].clone() };
    }
    let output = &mut context.output;
    let done = rows.len().saturating_sub(refused.len());
    match output.format {
        Format::Json => output.document(&told)?,
        Format::Table if done > 0 => output.table(&TOLD, &rows)?,
        Format::Quiet => {
            let good = rows.iter().filter(|row| row["error"].is_null());
            good.map(|row| text(&row["receipt"])).try_for_each(|receipt| output.line(&receipt))?;
        }
        Format::Table => {}
    }
    let mut refused = refused.into_iter();
    match (refused.next(), done) {
        (None, _) => Ok(Exit::Done),
        (Some(first), done) => {
            for failure in refused {
                let _ = writeln!(output.streams.err, "error: {failure}");
            }
            if done == 0 {
                return Err(first);
            }
            let _ = writeln!(output.streams.err, "error: {first}");
            Ok(Exit::Partly)
        }
    }
}
