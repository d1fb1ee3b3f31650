//! `hookgate plugin new`: a project from the templates in the binary.

use super::super::{Context, Exit, Failure, Format};
use super::project::{Lang, MANIFEST, Manifest, Wishes};
use crate::delivery::Name;
use crate::plugin::Limits;
use crate::plugin::component::{WIT, World};
use serde_json::json;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Begin a plugin: a folder with source, package, fixtures and a README
#[derive(clap::Args, Debug)]
pub(in crate::cli) struct New {
    /// Its name: 1 to 63 of `a-z`, `0-9` and `-`, beginning with a letter or digit
    name: Name,
    /// What it is written in
    #[arg(long, value_enum)]
    lang: Lang,
    /// Where the files go [default: a folder of its name, in this one]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Replace what is there already
    #[arg(long)]
    force: bool,
}

macro_rules! template {
    ($file:literal) => {
        include_str!(concat!("../../../plugins/templates/", $file))
    };
}

const COMMON: [(&str, &str); 4] = [
    ("README.md", template!("common/README.md")),
    ("wit/hookgate.wit", WIT),
    ("fixtures/transform.json", template!("common/fixtures/transform.json")),
    ("fixtures/classify.json", template!("common/fixtures/classify.json")),
];

/// Python brings its interpreter along: more than a component may have without a grant.
const PYTHON_WISHES: Wishes = Wishes {
    component_bytes_max: Some(Limits::CAPS.component_bytes_max),
    call_time_max_ms: None,
    memory_bytes_max: None,
    input_bytes_max: None,
    response_bytes_max: None,
    output_bytes_max: None,
};

/// What differs from language to language.
struct Template {
    source: &'static str,
    /// What the machine must have, as lines of a shell.
    tools: &'static str,
    limits: Wishes,
    files: &'static [(&'static str, &'static str)],
}

fn template(lang: Lang) -> Template {
    match lang {
        Lang::Rust => Template {
            source: "src/lib.rs",
            tools: "    rustup target add wasm32-unknown-unknown",
            limits: Wishes::default(),
            files: &[
                (".gitignore", "/target\n/*.wasm\n"),
                ("Cargo.toml", template!("rust/Cargo.toml")),
                ("src/lib.rs", template!("rust/src/lib.rs")),
                ("arena/Cargo.toml", template!("rust/arena.toml")),
                ("arena/src/lib.rs", include_str!("../../../plugins/arena/src/lib.rs")),
            ],
        },
        Lang::Js => Template {
            source: "src/plugin.js",
            tools: "    npm install                 # QuickJS, as in package.json",
            limits: Wishes::default(),
            files: &[
                (".gitignore", "/node_modules\n/*.wasm\n"),
                ("package.json", template!("js/package.json")),
                ("src/plugin.js", template!("js/src/plugin.js")),
            ],
        },
        Lang::Python => Template {
            source: "app.py",
            tools: "    python3 -m venv .venv && .venv/bin/pip install -r requirements.txt\n\n\
                    The component has 18 MB: the operator must grant `component_bytes_max = \"32MiB\"`.",
            limits: PYTHON_WISHES,
            files: &[
                (".gitignore", "/.venv\n__pycache__/\n/*.wasm\n"),
                ("requirements.txt", template!("python/requirements.txt")),
                ("app.py", template!("python/app.py")),
            ],
        },
        Lang::C => Template {
            source: "src/rules.c",
            tools: "    python3 -m venv .venv && .venv/bin/pip install ziglang==0.17.1\n\n\
                    or any clang for wasm32-wasi with its libc, named in the variable `CC`.",
            limits: Wishes::default(),
            files: &[
                (".gitignore", "/.venv\n/*.wasm\n"),
                ("src/rules.c", template!("c/src/rules.c")),
                ("gen/plugin.c", template!("c/gen/plugin.c")),
                ("gen/plugin.h", template!("c/gen/plugin.h")),
            ],
        },
    }
}

pub(super) fn run(args: &New, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let dir = args.dir.clone().unwrap_or_else(|| PathBuf::from(args.name.as_str()));
    let Template { source, tools, limits, files } = template(args.lang);
    let manifest = Manifest { name: args.name.clone(), lang: args.lang, world: World::default(), limits };
    let manifest = serde_json::to_string_pretty(&manifest).unwrap_or_default() + "\n";
    let filled = |text: &str| {
        text.replace("{{name}}", args.name.as_str()).replace("{{source}}", source).replace("{{tools}}", tools)
    };
    let texts = COMMON.iter().chain(files).map(|(file, text)| (*file, filled(text)));
    let all: Vec<(&str, String)> = texts.chain([(MANIFEST, manifest)]).collect();
    let there: Vec<&str> =
        all.iter().map(|(file, _)| *file).filter(|file| dir.join(file).symlink_metadata().is_ok()).collect();
    if !there.is_empty() && !args.force {
        let message = format!("`{}` already has {}: nothing was written", dir.display(), there.join(", "));
        return Err(Failure::new(Exit::Conflict, message)
            .with_remedy("take another name or --dir, or replace these files with --force"));
    }
    for (file, text) in &all {
        let path = dir.join(file);
        write(&path, text)
            .map_err(|e| Failure::new(Exit::Failed, format!("`{}` cannot be written: {e}", path.display())))?;
    }
    let output = &mut context.output;
    match output.format {
        Format::Json => output.document(&json!({
            "dir": dir.display().to_string(), "files": all.iter().map(|(file, _)| file).collect::<Vec<_>>(),
        }))?,
        Format::Quiet => output.line(&dir.display().to_string())?,
        Format::Table => {
            all.iter().try_for_each(|(file, _)| output.line(&dir.join(file).display().to_string()))?;
            output.say(&format!("next: cd {} && hookgate plugin build", dir.display()));
        }
    }
    Ok(Exit::Done)
}

/// A new file: what stood in its place is gone, and a link that stood there is not followed.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    if path.symlink_metadata().is_ok() {
        std::fs::remove_file(path)?;
    }
    std::fs::File::create_new(path)?.write_all(text.as_bytes())
}
