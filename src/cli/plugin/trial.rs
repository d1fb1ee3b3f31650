//! Versions tried on live traffic: a shadow beside the one in use, a canary in its place for a share.

use super::ship::at;
use crate::cli::output::text;
use crate::cli::table::Column;
use crate::cli::{Client, Context, Exit, Failure, Format};
use serde_json::{Value, json};
use std::time::Duration;

const SHARE_REMEDY: &str = "say how much of the traffic, for instance --share 10%";

/// What both have.
#[derive(clap::Args, Debug)]
struct Which {
    /// The plugin's name, or TENANT/NAME
    name: String,
    /// The version's id: plg_…
    #[arg(required_unless_present_any = ["stop", "watch"], conflicts_with = "stop")]
    version: Option<String>,
    /// How much of the deliveries takes part: the same ones at each of their attempts
    #[arg(long, value_name = "PERCENT", requires = "version")]
    share: Option<String>,
    /// Print a line whenever its figures change, until it ends
    #[arg(long)]
    watch: bool,
}

#[derive(clap::Args, Debug)]
pub(in crate::cli) struct Shadow {
    #[command(flatten)]
    which: Which,
    /// End it; what it has counted is kept
    #[arg(long, conflicts_with_all = ["share", "watch"])]
    stop: bool,
}

#[derive(clap::Args, Debug)]
pub(in crate::cli) struct Canary {
    #[command(flatten)]
    which: Which,
    /// End it; what it has left dead is put back
    #[arg(long, conflicts_with_all = ["share", "watch"])]
    stop: bool,
    /// Rolled back when more of its newest 1000 calls fault [default: 2%]
    #[arg(long, value_name = "PERCENT", requires = "version")]
    max_fault_rate: Option<String>,
    /// Rolled back when it calls more of them terminal [default: 10%]
    #[arg(long, value_name = "PERCENT", requires = "version")]
    max_terminal_rate: Option<String>,
    /// Not judged by rates before so many calls [default: 50]
    #[arg(long, value_name = "N", requires = "version")]
    min_calls: Option<u16>,
}

pub(super) async fn shadow(Shadow { which, stop }: Shadow, context: &mut Context<'_>) -> Result<Exit, Failure> {
    if stop {
        return end("shadow", &which.name, context).await;
    }
    run("shadow", which, json!({}), context).await
}

pub(super) async fn canary(args: Canary, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let Canary { which, stop, max_fault_rate, max_terminal_rate, min_calls } = args;
    if stop {
        return end("canary", &which.name, context).await;
    }
    let mut wish = json!({});
    for (field, value) in [
        ("max_fault_rate", max_fault_rate.map(Value::from)),
        ("max_terminal_rate", max_terminal_rate.map(Value::from)),
        ("min_calls", min_calls.map(Value::from)),
    ] {
        if let Some(value) = value {
            wish[field] = value;
        }
    }
    run("canary", which, wish, context).await
}

async fn run(kind: &str, which: Which, mut wish: Value, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let Which { name, version, share, watch: watches } = which;
    let (client, plugin_path) = at(&name, &[], context).await?;
    let path = format!("{plugin_path}/{kind}");
    if let Some(version) = version {
        let share = share.ok_or_else(|| Failure::usage("--share is missing", SHARE_REMEDY))?;
        (wish["version"], wish["share"]) = (version.into(), share.into());
        let plugin = match client.post(&path, &wish).await {
            Err(failure) if failure.exit == Exit::Conflict => {
                return Err(match running(&client, &plugin_path).await {
                    Some(trial) => in_the_way(failure, &name, &trial),
                    None => failure,
                });
            }
            answered => answered?,
        };
        if !watches {
            told(&plugin["trial"], context)?;
        }
    }
    if !watches {
        return Ok(Exit::Done);
    }
    tokio::select! {
        ended = watch(kind, &client, &plugin_path, context) => ended,
        stopped = tokio::signal::ctrl_c() => {
            stopped?;
            Ok(Exit::Done)
        }
    }
}

async fn end(kind: &str, name: &str, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let (client, plugin_path) = at(name, &[], context).await?;
    match client.delete(&format!("{plugin_path}/{kind}")).await {
        Ok(plugin) => told(&plugin["trial"], context)?,
        Err(failure) if failure.exit == Exit::NotFound => {
            return Err(match running(&client, &plugin_path).await {
                Some(trial) => in_the_way(failure, name, &trial),
                None => failure,
            });
        }
        Err(failure) => return Err(failure),
    }
    Ok(Exit::Done)
}

/// The trial that runs, if one does and the server tells.
async fn running(client: &Client, plugin_path: &str) -> Option<Value> {
    let trial = client.get(plugin_path, &[]).await.ok()?["trial"].take();
    (trial["state"] == "running").then_some(trial)
}

/// A failure beside which a trial runs: which one, and what ends it.
fn in_the_way(failure: Failure, name: &str, trial: &Value) -> Failure {
    let (kind, version) = (text(&trial["kind"]), text(&trial["version"]));
    let remedy = format!(
        "a {kind} of {version} runs: end it with `hookgate plugin {kind} {name} --stop`, or put its version into use \
         with `hookgate plugin activate {name} {version}`"
    );
    failure.with_remedy(remedy)
}

/// Ends with the trial: well, unless it was rolled back.
async fn watch(kind: &str, client: &Client, path: &str, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let mut before = Value::Null;
    loop {
        let trial = client.get(path, &[]).await?["trial"].take();
        if trial["kind"] != kind {
            return Err(Failure::new(Exit::NotFound, format!("no {kind} of this plugin has run lately"))
                .with_remedy("begin one by naming a version"));
        }
        if trial != before {
            let output = &mut context.output;
            match output.format {
                Format::Json => output.line(&trial.to_string())?,
                Format::Quiet => output.line(&text(&trial["state"]))?,
                Format::Table => {
                    let time = output.paper().time(&crate::clock::Timestamp::to_rfc3339(output.paper().now).into());
                    output.line(&format!("{time}  {}", line(&trial)))?;
                }
            }
            output.streams.out.flush()?;
        }
        match trial["state"].as_str() {
            Some("running") => {}
            // Dead letters are still being put back: the last line is to have their number.
            _ if trial["putting_back"] == true => {}
            Some("rolled_back") => return Ok(Exit::Problems),
            _ => return Ok(Exit::Done),
        }
        before = trial;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

fn line(trial: &Value) -> String {
    let field = |value: &Value| text(value);
    let state = format!("{} {}", field(&trial["kind"]), field(&trial["state"]));
    let told = if trial["kind"] == "shadow" {
        format!(
            "{} calls, {} the same, {} other requests, {} left out{}",
            field(&trial["calls"]),
            field(&trial["same"]),
            field(&trial["requests_differ"]),
            field(&trial["left_out"]),
            changes(trial)
                .iter()
                .map(|row| format!("; {} {}", field(&row["change"]), field(&row["calls"])))
                .collect::<String>()
        )
    } else {
        let (canary, active) = (&trial["figures"]["canary"], &trial["figures"]["active"]);
        let side = |side: &Value| {
            let rate = |value: &Value| if value.is_null() { "-".to_owned() } else { field(value) };
            format!(
                "{} calls, faults {}, terminal {}",
                field(&side["calls"]),
                rate(&side["fault_rate"]),
                rate(&side["terminal_rate"])
            )
        };
        format!("{}; in use: {}", side(canary), side(active))
    };
    let ended = match (trial["ended"]["why"].as_str(), trial["put_back"].as_u64()) {
        (Some(_), put_back) => {
            let put_back = put_back.map(|n| format!("; {n} dead letters put back")).unwrap_or_default();
            format!("  {}{put_back}", field(&trial["ended"]["why"]))
        }
        (None, Some(n)) if n > 0 => format!("  {n} dead letters put back"),
        (None, _) => String::new(),
    };
    format!("{state}  {told}{ended}")
}

const FIGURES: [Column; 9] = [
    Column::whole("VERSION", "version"),
    Column::whole("CALLS", "calls"),
    Column::whole("DELIVERED", "delivered").lesser(2),
    Column::whole("RETRYABLE", "retryable").lesser(2),
    Column::whole("TERMINAL", "terminal"),
    Column::whole("TERMINAL %", "terminal_rate"),
    Column::whole("FAULTS", "faults"),
    Column::whole("FAULTS %", "fault_rate"),
    Column::whole("SKIPPED", "skipped").lesser(3),
];

const CHANGES: [Column; 2] = [Column::whole("IN USE → SHADOW", "change"), Column::whole("CALLS", "calls")];

const DIFFERENCES: [Column; 5] = [
    Column::time("AT", "at"),
    Column::whole("DELIVERY", "delivery"),
    Column::whole("#", "attempt").lesser(2),
    Column::breakable("IN USE → SHADOW", "change"),
    Column::whole("REQUEST", "request").lesser(1),
];

/// Rows of a table in a terminal: the document has more.
const DIFFERENCES_SHOWN: usize = 10;

fn changes(trial: &Value) -> Vec<Value> {
    let rows = trial["differ"].as_array().into_iter().flatten();
    rows.map(|row| json!({ "change": change(&row["from"], &row["to"]), "calls": row["calls"] })).collect()
}

fn change(from: &Value, to: &Value) -> String {
    format!("{} → {}", text(from), text(to))
}

fn told(trial: &Value, context: &mut Context<'_>) -> Result<(), Failure> {
    match context.output.format {
        Format::Json => context.output.document(trial),
        Format::Quiet => context.output.line(&text(&trial["id"])),
        Format::Table => show(trial, context),
    }
}

/// A trial for people.
pub(super) fn show(trial: &Value, context: &mut Context<'_>) -> Result<(), Failure> {
    let output = &mut context.output;
    let mut head = trial.clone();
    head["trial"] = trial["id"].clone();
    head["beside"] = trial["active"].clone();
    head["ended_at"] = trial["ended"]["at"].clone();
    head["ended_by"] = trial["ended"]["by"].clone();
    head["why"] = trial["ended"]["why"].clone();
    if let Some(bounds) = trial["bounds"].as_object() {
        head["bounds"] = format!(
            "faults {}, terminal {}, from {} calls on",
            text(&bounds["max_fault_rate"]),
            text(&bounds["max_terminal_rate"]),
            text(&bounds["min_calls"])
        )
        .into();
    }
    let fields = [
        "trial",
        "kind",
        "state",
        "version",
        "beside",
        "share",
        "bounds",
        "began_at",
        "by",
        "ended_at",
        "ended_by",
        "why",
        "put_back",
        "same",
        "requests_differ",
        "left_out",
    ];
    output.one(&head, &fields, "trial")?;
    let kind = text(&trial["kind"]);
    let side = |who: &str, name: &str| {
        let mut row = trial["figures"][who].clone();
        row["version"] = name.into();
        row
    };
    output.line("")?;
    output.table(&FIGURES, &[side(&kind, &kind), side("active", "in use")])?;
    let changes = changes(trial);
    if !changes.is_empty() {
        output.line("")?;
        output.table(&CHANGES, &changes)?;
    }
    let differences = trial["differences"].as_array().map_or(&[][..], Vec::as_slice);
    let rows: Vec<Value> = differences.iter().take(DIFFERENCES_SHOWN).map(difference).collect();
    if !rows.is_empty() {
        output.line("")?;
        output.table(&DIFFERENCES, &rows)?;
    }
    Ok(())
}

fn difference(row: &Value) -> Value {
    let side = |side: &Value| format!("{} {}", text(&side["verdict"]), text(&side["reason"])).trim_end().to_owned();
    json!({
        "at": row["at"],
        "delivery": row["delivery"],
        "attempt": row["attempt"],
        "change": format!("{} → {}", side(&row["from"]), side(&row["to"])),
        "request": if row["request_differs"] == true { "another" } else { "the same" },
    })
}

/// In a line of a list: which trial, and how it stands.
pub(super) fn short(trial: &Value) -> Value {
    if trial.is_null() {
        return Value::Null;
    }
    let of = format!("{} {} {}", text(&trial["kind"]), text(&trial["share"]), text(&trial["version"]));
    format!("{of}: {}", text(&trial["state"])).into()
}
