//! `hookgate plugin run`.

use super::super::output::plain;
use super::super::{Context, Exit, Failure, Format};
use super::project::Paths;
use super::{component, document, fixture, millis};
use serde_json::json;
use std::path::PathBuf;

/// Run one fixture, and show all that comes of it
#[derive(clap::Args, Debug)]
pub(in crate::cli) struct Run {
    /// The fixture
    fixture: PathBuf,
    /// The component [default: that of the fixture's project]
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
}

pub(super) async fn run(args: &Run, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let paths = Paths::new(std::slice::from_ref(&args.fixture), args.plugin.as_deref())?;
    let [path] = paths.fixtures.as_slice() else {
        return Err(Failure::usage("a folder is not one fixture", "name a file, or use `hookgate plugin test`"));
    };
    let (_, fixture) = fixture(path).map_err(|e| {
        Failure::new(Exit::Problems, format!("`{}`: {}: {}", path.display(), e.path, plain(&e.rule)))
            .with_remedy(e.remedy)
    })?;
    let plugin = component(&paths, context).await?;
    let ran = fixture.run(&plugin).await;
    let differences = fixture.expected.as_ref().map(|expected| expected.differences(&ran.got));
    let as_expected = differences.as_ref().map(Vec::is_empty);
    let output = &mut context.output;
    match output.format {
        Format::Json => {
            let mut document = document(path, &fixture, &ran);
            document["as_expected"] = json!(as_expected);
            output.document(&document)?;
        }
        Format::Quiet => output.line(&ran.got.word())?,
        Format::Table => {
            let pretty = serde_json::to_string_pretty(&ran.got.json()).unwrap_or_default();
            pretty.lines().try_for_each(|line| output.line(&plain(line)))?;
            output.line("")?;
            output.line(&format!("call    {}", fixture.call()))?;
            output.line(&format!("time    {}", millis(ran.took)))?;
            output.line(&format!("memory  {} KiB", ran.memory_bytes.div_ceil(1024)))?;
            for line in &ran.log {
                output.line(&format!("log     {:<5}  {}", line.level, plain(&line.message)))?;
            }
            if ran.log_lines_dropped > 0 {
                output.line(&format!("log     and {} lines that were not kept", ran.log_lines_dropped))?;
            }
            output.say(match as_expected {
                Some(true) => "as expected",
                Some(false) => "not as expected: `hookgate plugin test` shows where",
                None => "the fixture expects nothing: `hookgate plugin test --update` writes it",
            });
        }
    }
    Ok(if as_expected == Some(false) { Exit::Problems } else { Exit::Done })
}
