//! `hookgate plugin bench`.

use super::super::table::Column;
use super::super::{Context, Exit, Failure, Format};
use super::project::Paths;
use super::{component, fixture, millis};
use crate::plugin::Plugin;
use crate::plugin::fixture::Fixture;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Measure warm calls, each with a fresh instance
#[derive(clap::Args, Debug)]
pub(in crate::cli) struct Bench {
    /// Fixtures, folders of fixtures, or projects [default: the project in this folder]
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The component [default: that of the project]
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// Calls of each fixture, after a tenth as many to warm up; it ends earlier after 20 s of calls
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    calls: u32,
}

const COLUMNS: [Column; 7] = [
    Column::whole("FIXTURE", "fixture"),
    Column::whole("CALL", "call").lesser(2),
    Column::breakable("GOT", "word").lesser(3),
    Column::whole("CALLS", "calls").lesser(1),
    Column::whole("P50", "p50"),
    Column::whole("P99", "p99"),
    Column::whole("MAX", "max"),
];

/// The calls of one fixture take together at most so long.
const TIME_MAX: Duration = Duration::from_secs(20);

pub(super) async fn run(args: &Bench, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let paths = Paths::new(&args.paths, args.plugin.as_deref())?;
    let mut fixtures: Vec<(&Path, Fixture)> = Vec::new();
    for path in &paths.fixtures {
        let (_, fixture) =
            fixture(path).map_err(|e| Failure::new(Exit::Problems, format!("`{}`: {e}", path.display())))?;
        fixtures.push((path, fixture));
    }
    let plugin = component(&paths, context).await?;
    let mut rows = Vec::new();
    for (path, fixture) in &fixtures {
        rows.push(measured(path, fixture, &plugin, args.calls).await);
    }
    let faulted = rows.iter().filter(|row| row["faults"] != json!(0)).count();
    let output = &mut context.output;
    match output.format {
        Format::Json => output.document(&json!({ "items": rows }))?,
        Format::Quiet => rows.iter().try_for_each(|row| output.line(&row["p50_ns"].to_string()))?,
        Format::Table => {
            let shown = |row: &Value| {
                let time = |of: &str| millis(Duration::from_nanos(row[of].as_u64().unwrap_or(0)));
                let mut shown = row.clone();
                for (field, of) in [("p50", "p50_ns"), ("p99", "p99_ns"), ("max", "max_ns")] {
                    shown[field] = json!(time(of));
                }
                shown
            };
            output.table(&COLUMNS, &rows.iter().map(shown).collect::<Vec<_>>())?;
        }
    }
    if faulted > 0 {
        output.say(&format!("{faulted} of {} fixtures came to faults", rows.len()));
        return Ok(Exit::Problems);
    }
    Ok(Exit::Done)
}

async fn measured(path: &Path, fixture: &Fixture, plugin: &Plugin, calls: u32) -> Value {
    let (mut spent, mut faults, mut word) = (Duration::ZERO, 0, String::new());
    let mut took = Vec::new();
    let warming = calls.div_ceil(10);
    for call in 0..calls + warming {
        let ran = fixture.run(plugin).await;
        spent += ran.took;
        if call >= warming {
            took.push(u64::try_from(ran.took.as_nanos()).unwrap_or(u64::MAX));
            faults += u32::from(ran.got.is_fault());
        }
        word = ran.got.word();
        if spent > TIME_MAX && !took.is_empty() {
            break;
        }
    }
    took.sort_unstable();
    let at = |percent: usize| took.get((took.len() * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0);
    json!({
        "fixture": path.display().to_string(), "call": fixture.call(), "word": word,
        "calls": took.len(), "faults": faults,
        "p50_ns": at(50), "p99_ns": at(99), "max_ns": at(100),
    })
}
