//! `hookgate plugin dry-run`: page by page, with what would change counted over all of them.

use super::ship::at;
use crate::cli::keys::moment;
use crate::cli::output::{Output, plain, text};
use crate::cli::table::Column;
use crate::cli::{Context, Exit, Failure, Format};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Attempts of one call: few enough that progress is seen, and that a stop is soon.
const PAGE: u32 = 200;
/// As long as a terminal is wide at least, beside the numbers.
const BAR: u64 = 30;

/// Try a version on what was recorded: what would change. It sends nothing and changes nothing
#[derive(clap::Args, Debug)]
pub(in crate::cli) struct DryRun {
    /// The plugin's name, or TENANT/NAME
    name: String,
    /// The version's id: plg_…
    version: String,
    /// Only events accepted at or after this time (RFC 3339, or `1h` ago)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<String>,
    /// The most attempts to try, the newest first
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// The most attempts to show of those that differ
    #[arg(long, value_name = "N", default_value_t = 20)]
    rows: usize,
}

const COUNTS: [Column; 4] = [
    Column::whole("OF", "of"),
    Column::state("FROM", "from"),
    Column::state("TO", "to"),
    Column::whole("COUNT", "count"),
];

const ROWS: [Column; 7] = [
    Column::whole("DELIVERY", "delivery"),
    Column::whole("#", "number"),
    Column::breakable("ENDPOINT", "endpoint").lesser(2),
    Column::whole("STATUS", "status").lesser(1),
    Column::breakable("RECORDED", "recorded"),
    Column::breakable("CANDIDATE", "candidate"),
    Column::breakable("REQUEST", "changed"),
];

/// What all pages told together.
#[derive(Default)]
struct Sum {
    last: Value,
    sides: [Side; 2],
    items: Vec<Value>,
}

const SIDES: [&str; 2] = ["verdicts", "requests"];

#[derive(Default)]
struct Side {
    counts: BTreeMap<String, u64>,
    changes: BTreeMap<(String, String), u64>,
    left_out: BTreeMap<String, u64>,
}

impl Side {
    fn add(&mut self, page: &Value) {
        for field in ["same", "changed", "faults"] {
            *self.counts.entry(field.to_owned()).or_default() += page[field].as_u64().unwrap_or(0);
        }
        for change in page["changes"].as_array().into_iter().flatten() {
            let words = (text(&change["from"]), text(&change["to"]));
            *self.changes.entry(words).or_default() += change["count"].as_u64().unwrap_or(0);
        }
        for (why, count) in page["left_out"].as_object().into_iter().flatten() {
            *self.left_out.entry(plain(why)).or_default() += count.as_u64().unwrap_or(0);
        }
    }

    /// The largest first.
    fn changes(&self) -> Vec<(&(String, String), u64)> {
        let mut all: Vec<_> = self.changes.iter().map(|(words, count)| (words, *count)).collect();
        all.sort_by(|(a, n), (b, m)| m.cmp(n).then(a.cmp(b)));
        all
    }

    fn json(&self) -> Value {
        let mut all: Map<String, Value> =
            self.counts.iter().map(|(field, count)| (field.clone(), json!(count))).collect();
        let change = |((from, to), count): (&(String, String), u64)| json!({ "from": from, "to": to, "count": count });
        all.insert("changes".into(), self.changes().into_iter().map(change).collect());
        all.insert("left_out".into(), json!(self.left_out));
        all.into()
    }

    fn rows(&self, of: &str) -> Vec<Value> {
        let row = |from: &str, to: &str, count: u64| json!({ "of": of, "from": from, "to": to, "count": count });
        let mut rows = vec![row("same", "", self.counts.get("same").copied().unwrap_or(0))];
        rows.extend(self.changes().into_iter().map(|((from, to), count)| row(from, to, count)));
        rows.extend(self.left_out.iter().map(|(why, count)| row(&format!("not tried: {why}"), "", *count)));
        rows
    }
}

impl Sum {
    fn add(&mut self, mut page: Value, rows: usize) {
        for (side, name) in self.sides.iter_mut().zip(SIDES) {
            side.add(&page[name]);
        }
        if let Some(items) = page["items"].as_array_mut() {
            let room = rows.saturating_sub(self.items.len());
            self.items.extend(items.drain(..items.len().min(room)));
        }
        page["items"] = Value::Null;
        self.last = page;
    }

    fn scanned(&self) -> u64 {
        self.last["scanned"].as_u64().unwrap_or(0)
    }

    fn differ(&self) -> u64 {
        self.sides.iter().filter_map(|side| side.counts.get("changed")).sum()
    }

    fn document(&self, ended: Ended) -> Value {
        let mut document = self.last.clone();
        for (side, name) in self.sides.iter().zip(SIDES) {
            document[name] = side.json();
        }
        document["items"] = json!(self.items);
        document["interrupted"] = json!(matches!(ended, Ended::Interrupted));
        document
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    All,
    Interrupted,
}

pub(super) async fn run(args: DryRun, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let (client, path) = at(&args.name, &["dry-run"], context).await?;
    let (mut sum, mut cursor) = (Sum::default(), None::<String>);
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    let mut ended = Ended::All;
    loop {
        let left = args.limit.saturating_sub(u32::try_from(sum.scanned()).unwrap_or(u32::MAX));
        let mut body = json!({ "version": args.version, "limit": left.min(PAGE) });
        for (field, value) in [("since", &args.since), ("cursor", &cursor)] {
            if let Some(value) = value {
                body[field] = json!(value);
            }
        }
        let page = tokio::select! {
            page = client.post(&path, &body) => page,
            _ = &mut interrupted => {
                ended = Ended::Interrupted;
                break;
            }
        };
        let before = sum.scanned();
        match page {
            Ok(page) => sum.add(page, args.rows),
            Err(failure) => {
                clear(&mut context.output);
                return Err(failure);
            }
        }
        progress(&mut context.output, &sum, args.limit);
        cursor = sum.last["next"].as_str().map(str::to_owned);
        // A server that promises more and does nothing would keep us here for ever.
        if cursor.is_none() || sum.scanned() >= u64::from(args.limit) || sum.scanned() == before {
            break;
        }
    }
    clear(&mut context.output);
    tell(&sum, ended, context)?;
    Ok(if ended == Ended::Interrupted { Exit::Partly } else { Exit::Done })
}

fn progress(output: &mut Output<'_>, sum: &Sum, limit: u32) {
    if !output.streams.err_is_terminal || output.format == Format::Quiet {
        return;
    }
    let whole = sum.last["total"].as_u64().unwrap_or(0).min(u64::from(limit)).max(1);
    let done = sum.scanned().min(whole);
    let full = usize::try_from(done * BAR / whole).unwrap_or(0);
    let rest = usize::try_from(BAR).unwrap_or(0).saturating_sub(full);
    let bar = format!("{}{}", "█".repeat(full), "░".repeat(rest));
    let line = format!("\r{bar} {done}/{whole} tried, {} changes\u{1b}[K", sum.differ());
    // Nobody needs it.
    let _ = output.streams.err.write_all(line.as_bytes()).and_then(|()| output.streams.err.flush());
}

fn clear(output: &mut Output<'_>) {
    if output.streams.err_is_terminal && output.format != Format::Quiet {
        let _ = output.streams.err.write_all(b"\r\x1b[K");
    }
}

fn tell(sum: &Sum, ended: Ended, context: &mut Context<'_>) -> Result<(), Failure> {
    let coloured = context.output.streams.colour;
    let output = &mut context.output;
    let (scanned, total) = (sum.scanned(), sum.last["total"].as_u64().unwrap_or(0));
    match output.format {
        Format::Json => output.document(&sum.document(ended))?,
        Format::Quiet => {
            let mut last = String::new();
            for item in &sum.items {
                let id = text(&item["delivery"]);
                if id != last {
                    output.line(&id)?;
                }
                last = id;
            }
        }
        Format::Table if scanned > 0 => {
            let counts: Vec<Value> =
                sum.sides.iter().zip(["verdict", "request"]).flat_map(|(side, of)| side.rows(of)).collect();
            output.table(&COUNTS, &counts)?;
            if !sum.items.is_empty() {
                output.line("")?;
                output.table(&ROWS, &sum.items.iter().map(row).collect::<Vec<_>>())?;
            }
            for item in &sum.items {
                differences(output, item, coloured)?;
            }
        }
        Format::Table => {}
    }
    if let Some(hint) = sum.last["hint"].as_str() {
        output.say(&format!("nothing to try it on: {}", plain(hint)));
    } else if scanned > 0 {
        let about = if sum.last["total_is_exact"] == json!(false) { "more than " } else { "" };
        output.say(&format!("tried {scanned} of {about}{total} recorded attempts; nothing was sent or changed"));
    }
    if scanned > 0 && sum.last["active"].is_string() && sum.last["active"] == sum.last["version"] {
        output.say(&format!("{} is the version in use: it was compared with the record", text(&sum.last["version"])));
    }
    let shown = sum.items.len();
    if u64::try_from(shown).unwrap_or(u64::MAX) < sum.differ() && output.format == Format::Table {
        output.say(&format!("{shown} of those that differ are shown; --rows shows more"));
    }
    match ended {
        Ended::Interrupted => output.say("stopped before the end: this is what was counted so far"),
        Ended::All if sum.last["next"].is_string() => output.say("older attempts are left; --limit tries more"),
        Ended::All => {}
    }
    Ok(())
}

fn row(item: &Value) -> Value {
    let mut row = item.clone();
    let side = |side: &Value| {
        let words = [&side["verdict"], &side["reason"]].map(text);
        let more = ["after_ms", "scope", "reference"].iter().filter_map(|part| {
            let changed = item["verdict"]["changed"].as_array()?.contains(&json!(part));
            (changed && !side[*part].is_null()).then(|| format!("{part}={}", text(&side[*part])))
        });
        let all: Vec<String> = words.into_iter().chain(more).filter(|word| !word.is_empty()).collect();
        all.join(" ")
    };
    row["recorded"] = json!(side(&item["verdict"]["recorded"]));
    row["candidate"] = json!(side(&item["verdict"]["candidate"]));
    let changed = item["request"]["changed"].as_array().into_iter().flatten().map(text);
    row["changed"] = json!(changed.collect::<Vec<_>>().join(", "));
    row
}

/// What is different in the request, below the table.
fn differences(output: &mut Output<'_>, item: &Value, coloured: bool) -> Result<(), Failure> {
    let request = &item["request"];
    if request.is_null() {
        return Ok(());
    }
    let computed = if request["before_is"] == "computed" { ", before as the version in use makes it" } else { "" };
    output.line(&format!("\n{} #{}{computed}", text(&item["delivery"]), text(&item["number"])))?;
    let mut lines = Vec::new();
    let mut sides = |what: &str, part: &Value| {
        for (sign, side) in [('-', "before"), ('+', "after")] {
            let value = &part[side];
            lines.push(format!("{sign} {what}: {}", if value.is_null() { "(none)".to_owned() } else { text(value) }));
        }
    };
    for part in ["method", "path"] {
        if request[part].is_object() {
            sides(part, &request[part]);
        }
    }
    for header in request["headers"].as_array().into_iter().flatten() {
        sides(&text(&header["name"]), header);
    }
    let body = &request["body"];
    match body["diff"].as_str() {
        Some(diff) => {
            lines.extend(diff.lines().map(plain));
            if body["diff_truncated"] == json!(true) {
                lines.push("… cut here".to_owned());
            }
        }
        None if body.is_object() => {
            for (sign, side) in [('-', "before"), ('+', "after")] {
                let of = &body[side];
                lines.push(format!("{sign} body: {} bytes, SHA-256 {}", text(&of["bytes"]), text(&of["sha256"])));
            }
        }
        None if request["before"].is_object() => {
            lines.push(format!("- {}", text(&request["before"])));
            lines.push(format!("+ {}", text(&request["after"])));
        }
        None => {}
    }
    for line in lines {
        let code = match line.chars().next() {
            Some('-') => "31",
            Some('+') => "32",
            _ => "0",
        };
        let line =
            if coloured && code != "0" { format!("  \u{1b}[{code}m{line}\u{1b}[0m") } else { format!("  {line}") };
        output.line(&line)?;
    }
    Ok(())
}
