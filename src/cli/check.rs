//! `hookgate check`.

use super::{Context, Exit, Failure, Format};
use crate::config::{self, Colour, DEFAULT_PATH, Outside};
use std::path::PathBuf;

/// Check a configuration: every mistake, each with its line
#[derive(clap::Args, Debug)]
pub(super) struct Check {
    /// The file, instead of --config
    file: Option<PathBuf>,
    /// Look at the file alone: not whether its secrets and plugins are there
    #[arg(long)]
    text_only: bool,
}

pub(super) fn run(args: &Check, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let Context { globals, env, output } = context;
    let path = args.file.clone().or_else(|| globals.config_path(env)).unwrap_or_else(|| PathBuf::from(DEFAULT_PATH));
    let outside = if args.text_only { Outside::Skip } else { Outside::Look };
    let mut report = config::read(Some(&path), env, &[], outside)
        .map_err(|e| Failure::usage(e.to_string(), "name the file with --config"))?;
    report.warn_of_expiries(super::keys::now());
    let colour = if output.streams.colour { Colour::On } else { Colour::Off };
    match output.format {
        Format::Json => output.document(&report.json())?,
        Format::Table | Format::Quiet => {
            let text = if output.streams.out_is_terminal { report.pictures(colour) } else { report.lines() };
            output.streams.out.write_all(text.as_bytes())?;
        }
    }
    let count = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    let (problems, warnings) = (report.problems.len(), report.warnings.len());
    output.say(&format!("{}: {}, {}", path.display(), count(problems, "problem"), count(warnings, "warning")));
    Ok(if problems == 0 { Exit::Done } else { Exit::Problems })
}
