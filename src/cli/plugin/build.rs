//! `hookgate plugin build`: the language's own tool, and a component of what it leaves.

use super::super::output::plain;
use super::super::{Context, Exit, Failure, Format};
use super::project::{Lang, Project};
use super::{bounded, limits, refusals};
use crate::plugin::component::componentize;
use crate::plugin::{self, Rejected};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Build a project into a component, by its language's own tool
#[derive(clap::Args, Debug)]
pub(in crate::cli) struct Build {
    /// The project's folder [default: this one]
    dir: Option<PathBuf>,
}

/// What tools leave may be larger than a component may be: debug information goes.
const OUTPUT_BYTES_MAX: u64 = 256 << 20;

pub(super) fn run(args: &Build, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let dir = args.dir.clone().unwrap_or_else(|| PathBuf::from("."));
    let project = Project::at(&dir)?;
    let limits = limits(Some(&project), context)?;
    // Tools run in the project's folder and are named by whole paths.
    let root = dir.canonicalize()?;
    let draft = root.join(format!(".{}.draft.wasm", project.manifest.name));
    let path = project.component();
    // A build that fails leaves nothing that `check` and `test` would take for its own.
    match std::fs::remove_file(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(Failure::new(Exit::Failed, format!("`{}` cannot be replaced: {e}", path.display())));
        }
        Ok(()) | Err(_) => {}
    }
    let built = tool(&project, &root, &draft, context).and_then(|left| {
        let wasm = bounded(&left, OUTPUT_BYTES_MAX)
            .map_err(|e| Failure::new(Exit::Failed, format!("the tool left no `{}` to read: {e}", left.display())))?;
        componentize(wasm, project.manifest.world).map_err(|Rejected { finding, remedy, .. }| {
            Failure::new(Exit::Problems, plain(&finding)).with_remedy(remedy)
        })
    });
    if draft.exists() {
        std::fs::remove_file(&draft)?;
    }
    let wasm = built?;
    std::fs::write(&path, &wasm)
        .map_err(|e| Failure::new(Exit::Failed, format!("`{}` cannot be written: {e}", path.display())))?;
    let survey = plugin::survey(&wasm, &limits);
    let output = &mut context.output;
    match output.format {
        Format::Json => output.document(&json!({
            "file": path.display().to_string(), "bytes": wasm.len(),
            "imports": survey.imports, "exports": survey.exports, "problems": refusals(&survey.refusals),
        }))?,
        Format::Quiet => output.line(&path.display().to_string())?,
        Format::Table => {
            output.line(&format!("file     {}", path.display()))?;
            output.line(&format!("size     {} bytes", wasm.len()))?;
            for (word, names) in [("imports", &survey.imports), ("exports", &survey.exports)] {
                for name in names {
                    output.line(&format!("{word}  {name}"))?;
                }
            }
            for Rejected { rule, finding, remedy } in &survey.refusals {
                output.line(&format!("\n{rule}: {}\n  help: {remedy}", plain(finding)))?;
            }
        }
    }
    if survey.refusals.is_empty() {
        return Ok(Exit::Done);
    }
    output.say("a gateway would refuse it");
    Ok(Exit::Problems)
}

/// Runs the language's tool; gives where its output is.
fn tool(project: &Project, root: &Path, draft: &Path, context: &mut Context<'_>) -> Result<PathBuf, Failure> {
    let world = project.manifest.world.as_str();
    match project.manifest.lang {
        Lang::Rust => cargo(root, context),
        Lang::Js => {
            let tool = root.join("node_modules/.bin/componentize-qjs");
            let mut missing = Missing::default();
            missing.program("node", "apt-get install nodejs npm    # or from nodejs.org", context);
            missing.file(&tool, "npm install", root);
            missing.told()?;
            let mut command = Command::new(tool);
            command.args(["--wit", "wit/hookgate.wit", "--js", "src/plugin.js", "--sync", "--stub-wasi"]);
            command.args(["--world", world, "--output"]).arg(draft);
            finish(command, root, context)?;
            Ok(draft.to_owned())
        }
        Lang::Python => {
            let own = root.join(".venv/bin/componentize-py");
            let tool = if own.exists() { Some(own) } else { on_path("componentize-py", context) };
            let mut missing = Missing::default();
            let install = "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt";
            if tool.is_none() {
                missing.note("componentize-py", install, root);
            }
            missing.told()?;
            let mut command = Command::new(tool.unwrap_or_default());
            command.args(["-d", "wit", "-w", world, "componentize", "app", "--stub-wasi", "-o"]).arg(draft);
            finish(command, root, context)?;
            Ok(draft.to_owned())
        }
        Lang::C => {
            let mut command = c_compiler(root, context)?;
            command.args(["-target", "wasm32-wasi", "-mexec-model=reactor", "-Os", "-s", "-Wall", "-Igen"]);
            // A module that has its memory from the beginning need not ask for it in every call.
            command.args(["-Wl,--initial-memory=2097152", "-Wl,-z,stack-size=262144"]);
            command.args(c_sources(root)?).arg("-o").arg(draft);
            finish(command, root, context)?;
            Ok(draft.to_owned())
        }
    }
}

const WASM_TARGET: &str = "wasm32-unknown-unknown";

fn cargo(root: &Path, context: &mut Context<'_>) -> Result<PathBuf, Failure> {
    let rustup = "curl https://sh.rustup.rs -sSf | sh    # or see rustup.rs";
    let mut missing = Missing::default();
    missing.program("cargo", rustup, context);
    missing.told()?;
    // Whoever builds the standard library needs no target's.
    if context.env.value("CARGO_UNSTABLE_BUILD_STD").is_none() {
        let rustc = context.env.value("RUSTC").unwrap_or("rustc");
        let asked = Command::new(rustc).args(["--print", "target-libdir", "--target", WASM_TARGET]).output();
        let folder = asked.ok().and_then(|told| String::from_utf8(told.stdout).ok()).unwrap_or_default();
        if !Path::new(folder.trim()).is_dir() || folder.trim().is_empty() {
            let what = format!("the standard library for {WASM_TARGET}");
            missing.note(&what, &format!("rustup target add {WASM_TARGET}"), Path::new(""));
        }
        missing.told()?;
    }
    let mut command = Command::new("cargo");
    command.args(["build", "--release", "--target", WASM_TARGET, "--message-format=json-render-diagnostics"]);
    command.current_dir(root).stdin(Stdio::null()).stderr(talk(context));
    announce(&command, context);
    let done = command.stdout(Stdio::piped()).output()?;
    if !done.status.success() {
        return Err(failed(&command, done.status));
    }
    let told = String::from_utf8_lossy(&done.stdout);
    let manifest = root.join("Cargo.toml");
    let artefacts = told.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).filter(|message| {
        message["reason"] == "compiler-artifact" && message["manifest_path"].as_str().map(Path::new) == Some(&manifest)
    });
    let files = artefacts.flat_map(|message| message["filenames"].as_array().cloned().unwrap_or_default());
    let mut wasm = files.filter_map(|file| file.as_str().filter(|file| file.ends_with(".wasm")).map(PathBuf::from));
    wasm.next().ok_or_else(|| {
        Failure::new(Exit::Failed, "cargo left no .wasm").with_remedy("set crate-type = [\"cdylib\"] under [lib]")
    })
}

/// `CC`, as words; else zig, in the project's own environment, by itself or as Python's package.
fn c_compiler(root: &Path, context: &Context<'_>) -> Result<Command, Failure> {
    if let Some(words) = context.env.value("CC") {
        let mut words = words.split_whitespace();
        if let Some(program) = words.next() {
            let mut command = Command::new(program);
            command.args(words);
            return Ok(command);
        }
    }
    let own = root.join(".venv/bin/python");
    if own.exists() {
        let mut command = Command::new(own);
        command.args(["-m", "ziglang", "cc"]);
        return Ok(command);
    }
    if let Some(zig) = on_path("zig", context) {
        let mut command = Command::new(zig);
        command.arg("cc");
        return Ok(command);
    }
    let mut missing = Missing::default();
    let install = "python3 -m venv .venv && .venv/bin/pip install ziglang==0.17.1    # or name a clang in CC";
    missing.note("a C compiler for wasm32-wasi", install, root);
    missing.told()?;
    Err(Failure::new(Exit::Failed, "no C compiler"))
}

/// The `*.c` files of `src/` and `gen/`.
fn c_sources(root: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut sources = Vec::new();
    for folder in ["src", "gen"] {
        let unreadable = |e: std::io::Error| {
            Failure::usage(
                format!("the folder `{folder}` cannot be read: {e}"),
                "a C project has its sources in src/ and gen/",
            )
        };
        for entry in std::fs::read_dir(root.join(folder)).map_err(unreadable)? {
            let name = entry.map_err(unreadable)?.file_name();
            if Path::new(&name).extension().is_some_and(|e| e == "c") {
                sources.push(Path::new(folder).join(name));
            }
        }
    }
    sources.sort();
    Ok(sources)
}

/// What is not on the machine, each with the command that brings it.
#[derive(Default)]
struct Missing(Vec<(String, String)>);

impl Missing {
    fn note(&mut self, what: &str, install: &str, dir: &Path) {
        let inside = if dir.as_os_str().is_empty() { String::new() } else { format!("cd {} && ", dir.display()) };
        self.0.push((what.to_owned(), inside + install));
    }

    fn program(&mut self, name: &str, install: &str, context: &Context<'_>) {
        if on_path(name, context).is_none() {
            self.note(name, install, Path::new(""));
        }
    }

    fn file(&mut self, path: &Path, install: &str, dir: &Path) {
        if !path.exists() {
            self.note(&path.display().to_string(), install, dir);
        }
    }

    fn told(&self) -> Result<(), Failure> {
        if self.0.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = self.0.iter().map(|(what, _)| what.as_str()).collect();
        let commands: Vec<&str> = self.0.iter().map(|(_, install)| install.as_str()).collect();
        Err(Failure::new(Exit::Failed, format!("missing on this machine: {}", names.join(", ")))
            .with_remedy(commands.join("\n        ")))
    }
}

fn on_path(name: &str, context: &Context<'_>) -> Option<PathBuf> {
    let path = context.env.value("PATH")?;
    std::env::split_paths(path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Where a tool's talk goes: beside ours.
fn talk(context: &Context<'_>) -> Stdio {
    if context.output.format == Format::Quiet { Stdio::null() } else { Stdio::inherit() }
}

fn finish(mut command: Command, root: &Path, context: &mut Context<'_>) -> Result<(), Failure> {
    command.current_dir(root).stdin(Stdio::null()).stderr(Stdio::inherit());
    // Data is ours alone: what the tool says on its standard output is talk.
    let quiet = context.output.format == Format::Quiet;
    command.stdout(if quiet { Stdio::null() } else { Stdio::from(std::io::stderr()) });
    announce(&command, context);
    let status = command.status().map_err(|e| {
        Failure::new(Exit::Failed, format!("`{}` does not start: {e}", command.get_program().display()))
    })?;
    if status.success() { Ok(()) } else { Err(failed(&command, status)) }
}

/// Says what is run, so that it can be run by hand.
fn announce(command: &Command, context: &mut Context<'_>) {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let line = words.map(|word| plain(&word.to_string_lossy())).collect::<Vec<_>>().join(" ");
    context.output.say(&format!("+ {line}"));
}

fn failed(command: &Command, status: std::process::ExitStatus) -> Failure {
    let program = command.get_program().display();
    Failure::new(Exit::Failed, format!("`{program}` ended with {status}")).with_remedy("what it said stands above")
}
