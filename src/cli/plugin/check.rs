//! `hookgate plugin check`.

use super::super::output::plain;
use super::super::table::Column;
use super::super::{Context, Exit, Failure, Format};
use super::project::Project;
use super::{component_bytes, limits, load, refusals};
use crate::plugin::{self, Digest, Rejected};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Say whether a gateway would take a component, and if not, what to do
#[derive(clap::Args, Debug)]
pub(in crate::cli) struct Check {
    /// The component [default: that of the project in this folder]
    file: Option<PathBuf>,
}

const ROWS: [Column; 3] =
    [Column::whole("RULE", "rule"), Column::whole("RESULT", "result"), Column::breakable("FINDING", "finding")];

/// In the order in which a gateway looks. Each stage needs what stands before it.
const STAGES: [&[&str]; 3] = [
    &["size", "format", "imports", "version", "exports"],
    &["compile", "compile_limit"],
    &["resources", "types", "memory", "instantiation"],
];

pub(super) async fn run(args: &Check, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let (project, path) = match &args.file {
        Some(path) => {
            let beside = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
            let project = Project::find(beside)?.filter(|project| project.component().file_name() == path.file_name());
            (project, path.clone())
        }
        None => {
            let project = Project::at(Path::new("."))?;
            let path = project.component();
            (Some(project), path)
        }
    };
    let limits = limits(project.as_ref(), context)?;
    let wasm = component_bytes(&path)?;
    let survey = plugin::survey(&wasm, &limits);
    let (mut refused, mut warnings) = (survey.refusals, Vec::new());
    if refused.is_empty() {
        match load(&wasm, limits).await? {
            Ok(plugin) => warnings = plugin.warnings().to_vec(),
            Err(rejected) => refused.push(rejected),
        }
    }
    let output = &mut context.output;
    let digest = Digest::of(&wasm).to_string();
    match output.format {
        Format::Json => output.document(&json!({
            "ok": refused.is_empty(), "file": path.display().to_string(), "digest": digest, "bytes": wasm.len(),
            "imports": survey.imports, "exports": survey.exports,
            "problems": refusals(&refused), "warnings": warnings,
        }))?,
        Format::Quiet => refused.iter().try_for_each(|r| output.line(r.rule))?,
        Format::Table => {
            let mut rows = rows(&refused, wasm.len(), &survey.imports, &survey.exports);
            rows.extend(warnings.iter().map(|told| json!({ "rule": "trial", "result": "WARNING", "finding": told })));
            output.table(&ROWS, &rows)?;
            for Rejected { rule, finding, remedy } in &refused {
                output.line(&format!("\n{rule}: {}\n  help: {remedy}", plain(finding)))?;
            }
        }
    }
    let file = path.display();
    output.say(&match refused.len() {
        0 => {
            let warned = match warnings.len() {
                0 => String::new(),
                1 => "; 1 warning".to_owned(),
                several => format!("; {several} warnings"),
            };
            format!("{file}: a gateway takes it (version {}){warned}", &digest[..12])
        }
        1 => format!("{file}: 1 problem"),
        problems => format!("{file}: {problems} problems"),
    });
    Ok(if refused.is_empty() { Exit::Done } else { Exit::Problems })
}

/// A row for each rule; those behind a stage that failed were not looked at.
fn rows(refused: &[Rejected], bytes: usize, imports: &[String], exports: &[String]) -> Vec<Value> {
    let mut rows = Vec::new();
    let mut reached = true;
    for stage in STAGES {
        for rule in stage {
            let breaks = refused.iter().filter(|r| r.rule == *rule).count();
            let (result, finding) = match breaks {
                0 if !reached => ("-", String::new()),
                0 => match *rule {
                    "size" => ("ok", format!("{bytes} bytes")),
                    "imports" => ("ok", imports.join(", ")),
                    "exports" => ("ok", exports.join(", ")),
                    _ => ("ok", String::new()),
                },
                1 => ("FAILED", "1 finding".to_owned()),
                breaks => ("FAILED", format!("{breaks} findings")),
            };
            rows.push(json!({ "rule": rule, "result": result, "finding": finding }));
        }
        // Only one refusal comes of the stages that compile and instantiate: what follows it was not tried.
        reached &= !refused.iter().any(|r| stage.contains(&r.rule));
    }
    rows
}
