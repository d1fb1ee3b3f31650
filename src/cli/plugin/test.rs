//! `hookgate plugin test`.

use super::super::output::plain;
use super::super::table::Column;
use super::super::{Context, Exit, Failure, Format};
use super::project::Paths;
use super::{component, document, fixture, for_people, millis};
use crate::plugin::Plugin;
use crate::plugin::fixture::{Difference, Fixture, Ran, Unfit};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Run fixtures, and show where what comes of them is not what is expected
#[derive(clap::Args, Debug)]
pub(in crate::cli) struct Test {
    /// Fixtures, folders of fixtures, or projects [default: the project in this folder]
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The component [default: that of the project]
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// Write what came of it into the fixtures, as what is expected from now on; never a fault
    #[arg(long)]
    update: bool,
    /// Write a report in JUnit's form, too
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

const COLUMNS: [Column; 5] = [
    Column::whole("RESULT", "result"),
    Column::whole("FIXTURE", "fixture"),
    Column::whole("CALL", "call").lesser(2),
    Column::breakable("GOT", "word"),
    Column::whole("TIME", "time").lesser(1),
];

/// A value of a difference is shown up to here; `--json` has the whole.
const SHOWN_CHARS: usize = 400;

/// What a fixture came to.
enum CaseResult {
    Passed,
    Differs(Vec<Difference>),
    /// It does not say what is expected.
    Open,
    Updated,
    /// It is no fixture.
    Unfit(Unfit),
}

struct Case {
    path: PathBuf,
    result: CaseResult,
    ran: Option<(Fixture, Ran)>,
}

impl Case {
    fn word(&self) -> &'static str {
        match self.result {
            CaseResult::Passed => "ok",
            CaseResult::Differs(_) | CaseResult::Open => "FAILED",
            CaseResult::Updated => "updated",
            CaseResult::Unfit(_) => "UNFIT",
        }
    }

    fn is_good(&self) -> bool {
        matches!(self.result, CaseResult::Passed | CaseResult::Updated)
    }

    /// What people read below the table, of a case that is not good.
    fn told(&self) -> Vec<String> {
        match &self.result {
            CaseResult::Passed | CaseResult::Updated => Vec::new(),
            CaseResult::Open => vec!["  nothing is expected\n  help: write `expect`, or let --update do it".to_owned()],
            CaseResult::Unfit(Unfit { path, rule, remedy }) => {
                vec![format!("  {}: {}\n  help: {remedy}", plain(path), plain(rule))]
            }
            CaseResult::Differs(all) => all
                .iter()
                .flat_map(|d| {
                    let side = |sign: char, value: &Option<Value>| {
                        format!(
                            "  {sign} {}: {}",
                            plain(&d.path),
                            value.as_ref().map_or("(not there)".to_owned(), shown)
                        )
                    };
                    [side('-', &d.expected), side('+', &d.got)]
                })
                .collect(),
        }
    }

    fn document(&self) -> Value {
        let mut document = match &self.ran {
            Some((fixture, ran)) => document(&self.path, fixture, ran),
            None => json!({ "fixture": self.path.display().to_string() }),
        };
        document["result"] = json!(match self.result {
            CaseResult::Passed => "passed",
            CaseResult::Differs(_) | CaseResult::Open => "failed",
            CaseResult::Updated => "updated",
            CaseResult::Unfit(_) => "unfit",
        });
        match &self.result {
            CaseResult::Differs(differences) => document["differences"] = json!(differences),
            CaseResult::Unfit(Unfit { path, rule, remedy }) => {
                document["problem"] = json!({ "path": path, "rule": rule, "remedy": remedy });
            }
            CaseResult::Passed | CaseResult::Open | CaseResult::Updated => {}
        }
        document
    }
}

fn shown(value: &Value) -> String {
    let text = plain(&value.to_string());
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
        None => text,
    }
}

pub(super) async fn run(args: &Test, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let paths = Paths::new(&args.paths, args.plugin.as_deref())?;
    let plugin = component(&paths, context).await?;
    let mut cases = Vec::with_capacity(paths.fixtures.len());
    for path in &paths.fixtures {
        cases.push(case(path, &plugin, args.update).await?);
    }
    if let Some(file) = &args.junit {
        let unwritable = |e: std::io::Error| {
            Failure::new(Exit::Failed, format!("the report `{}` cannot be written: {e}", file.display()))
        };
        std::fs::write(file, junit(&cases)).map_err(unwritable)?;
    }
    tell(&cases, context)?;
    let failed = cases.iter().filter(|case| !case.is_good()).count();
    let updated = cases.iter().filter(|case| matches!(case.result, CaseResult::Updated)).count();
    let updated = if updated > 0 { format!(", {updated} updated") } else { String::new() };
    context.output.say(&format!("{}: {} fixtures, {failed} failed{updated}", paths.component.display(), cases.len()));
    Ok(if failed == 0 { Exit::Done } else { Exit::Problems })
}

async fn case(path: &Path, plugin: &Plugin, update: bool) -> Result<Case, Failure> {
    let path = path.to_owned();
    let (text, fixture) = match fixture(&path) {
        Ok(read) => read,
        Err(unfit) => return Ok(Case { path, result: CaseResult::Unfit(unfit), ran: None }),
    };
    let ran = fixture.run(plugin).await;
    let result = match fixture.expected.as_ref().map(|expected| expected.differences(&ran.got)) {
        Some(differences) if differences.is_empty() => CaseResult::Passed,
        _ if update && !ran.got.is_fault() => {
            let changed = fixture.rewritten(&text, &ran.got).map_err(|e| Failure::new(Exit::Failed, e.to_string()))?;
            std::fs::write(&path, changed).map_err(|e| {
                Failure::new(Exit::Failed, format!("the fixture `{}` cannot be written: {e}", path.display()))
            })?;
            CaseResult::Updated
        }
        Some(differences) => CaseResult::Differs(differences),
        None => CaseResult::Open,
    };
    Ok(Case { path, result, ran: Some((fixture, ran)) })
}

fn tell(cases: &[Case], context: &mut Context<'_>) -> Result<(), Failure> {
    let coloured = context.output.streams.colour && for_people(context);
    let output = &mut context.output;
    match output.format {
        Format::Json => {
            let ok = cases.iter().all(Case::is_good);
            output.document(&json!({ "ok": ok, "items": cases.iter().map(Case::document).collect::<Vec<_>>() }))
        }
        Format::Quiet => {
            let bad = cases.iter().filter(|case| !case.is_good());
            bad.map(|case| plain(&case.path.display().to_string())).try_for_each(|path| output.line(&path))
        }
        Format::Table => {
            let row = |case: &Case| {
                let (call, word, time) = match &case.ran {
                    Some((fixture, ran)) => (fixture.call(), ran.got.word(), millis(ran.took)),
                    None => ("", String::new(), String::new()),
                };
                let fixture = case.path.display().to_string();
                json!({ "result": case.word(), "fixture": fixture, "call": call, "word": word, "time": time })
            };
            output.table(&COLUMNS, &cases.iter().map(row).collect::<Vec<_>>())?;
            for case in cases.iter().filter(|case| !case.is_good()) {
                output.line(&format!("\n{}", plain(&case.path.display().to_string())))?;
                for line in case.told() {
                    let code = if line.starts_with("  -") { "31" } else { "32" };
                    let is_side = line.starts_with("  -") || line.starts_with("  +");
                    let line = if coloured && is_side { format!("\u{1b}[{code}m{line}\u{1b}[0m") } else { line };
                    output.line(&line)?;
                }
            }
            Ok(())
        }
    }
}

/// A report as JUnit writes them.
fn junit(cases: &[Case]) -> String {
    let count = |of: fn(&CaseResult) -> bool| cases.iter().filter(|case| of(&case.result)).count();
    let failures = count(|r| matches!(r, CaseResult::Differs(_) | CaseResult::Open));
    let errors = count(|r| matches!(r, CaseResult::Unfit(_)));
    let seconds = |took: Duration| format!("{:.6}", took.as_secs_f64());
    let whole: Duration = cases.iter().filter_map(|case| case.ran.as_ref().map(|(_, ran)| ran.took)).sum();
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(
        xml,
        "<testsuite name=\"hookgate plugin test\" tests=\"{}\" failures=\"{failures}\" errors=\"{errors}\" time=\"{}\">",
        cases.len(),
        seconds(whole)
    );
    for case in cases {
        let (call, time) = case.ran.as_ref().map_or(("", Duration::ZERO), |(fixture, ran)| (fixture.call(), ran.took));
        let name = escaped(&case.path.display().to_string());
        let _ = write!(xml, "  <testcase name=\"{name}\" classname=\"{call}\" time=\"{}\"", seconds(time));
        if case.is_good() {
            xml.push_str("/>\n");
            continue;
        }
        let (element, message) = match &case.result {
            CaseResult::Unfit(unfit) => ("error", unfit.rule.as_str()),
            _ => ("failure", "not as expected"),
        };
        let text = escaped(&case.told().join("\n"));
        let _ = writeln!(xml, "><{element} message=\"{}\">{text}</{element}></testcase>", escaped(message));
    }
    xml.push_str("</testsuite>\n");
    xml
}

/// XML has no way to write most control characters.
fn escaped(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(plain).collect();
    lines.join("\n").replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
