//! A plugin's project: a folder with `hookgate-plugin.json`, which says its name, its language, and what it asks the
//! operator for.

use super::super::output::plain;
use super::super::{Exit, Failure};
use super::bounded;
use crate::delivery::Name;
use crate::plugin::Limits;
use crate::plugin::component::World;
use crate::plugin::fixture::FILES_MAX;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) const MANIFEST: &str = "hookgate-plugin.json";
const MANIFEST_BYTES_MAX: u64 = 64 << 10;

/// What a plugin can be written in with `hookgate plugin new`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Lang {
    Rust,
    Js,
    Python,
    C,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    pub(super) name: Name,
    pub(super) lang: Lang,
    #[serde(default)]
    pub(super) world: World,
    /// What the operator must grant it; what is not there is the default.
    #[serde(default)]
    pub(super) limits: Wishes,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wishes {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) component_bytes_max: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) call_time_max_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory_bytes_max: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) input_bytes_max: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) response_bytes_max: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) output_bytes_max: Option<usize>,
}

#[derive(Debug)]
pub(super) struct Project {
    pub(super) dir: PathBuf,
    pub(super) manifest: Manifest,
}

impl Project {
    /// The project of a folder, if it is one.
    pub(super) fn find(dir: &Path) -> Result<Option<Self>, Failure> {
        let path = dir.join(MANIFEST);
        if !path.exists() {
            return Ok(None);
        }
        let unfit = |e: String| {
            Failure::usage(
                format!("`{}`: {}", path.display(), plain(&e)),
                "it has `name`, `lang` (rust, js, python or c), `world` and `limits`; see docs/plugins.md",
            )
        };
        let text = bounded(&path, MANIFEST_BYTES_MAX).map_err(|e| unfit(e.to_string()))?;
        let manifest: Manifest = serde_json::from_slice(&text).map_err(|e| unfit(e.to_string()))?;
        Ok(Some(Project { dir: dir.to_owned(), manifest }))
    }

    /// The folder's project, which must be there.
    pub(super) fn at(dir: &Path) -> Result<Self, Failure> {
        Project::find(dir)?.ok_or_else(|| {
            let message = format!("`{}` has no {MANIFEST}", dir.display());
            Failure::new(Exit::Usage, message)
                .with_remedy("go to a plugin's folder, or begin one: `hookgate plugin new`")
        })
    }

    /// Where its component is built to.
    pub(super) fn component(&self) -> PathBuf {
        self.dir.join(format!("{}.wasm", self.manifest.name))
    }

    /// The defaults, with what it asks for.
    pub(super) fn limits(&self) -> Result<Limits, Failure> {
        let (wishes, defaults) = (&self.manifest.limits, Limits::default());
        let limits = Limits {
            component_bytes_max: wishes.component_bytes_max.unwrap_or(defaults.component_bytes_max),
            call_time_max: wishes.call_time_max_ms.map_or(defaults.call_time_max, Duration::from_millis),
            memory_bytes_max: wishes.memory_bytes_max.unwrap_or(defaults.memory_bytes_max),
            input_bytes_max: wishes.input_bytes_max.unwrap_or(defaults.input_bytes_max),
            response_bytes_max: wishes.response_bytes_max.unwrap_or(defaults.response_bytes_max),
            output_bytes_max: wishes.output_bytes_max.unwrap_or(defaults.output_bytes_max),
            ..defaults
        };
        let no_grant =
            |e| Failure::usage(format!("`{}`: {e}", self.dir.join(MANIFEST).display()), "no grant goes beyond");
        limits.check().map_err(no_grant)?;
        Ok(limits)
    }
}

/// What a command line means: which fixtures, of which component.
#[derive(Debug)]
pub(super) struct Paths {
    pub(super) project: Option<Project>,
    pub(super) component: PathBuf,
    pub(super) fixtures: Vec<PathBuf>,
}

impl Paths {
    /// `given` are files and folders, a project's folder meaning its `fixtures/`; nothing means this folder. The
    /// component is the one named, else that of the project: the first one given, else this folder's.
    pub(super) fn new(given: &[PathBuf], component: Option<&Path>) -> Result<Self, Failure> {
        let here = [PathBuf::from(".")];
        let given = if given.is_empty() { &here[..] } else { given };
        let mut project = None;
        let mut fixtures = Vec::new();
        for path in given {
            if !path.is_dir() {
                fixtures.push(path.clone());
                continue;
            }
            let found = Project::find(path)?;
            let folder = if found.is_some() { path.join("fixtures") } else { path.clone() };
            fixtures.extend(in_folder(&folder)?);
            project = project.or(found);
        }
        if project.is_none() {
            // A file or folder inside of a project, or beside where one is.
            let beside = given.first().into_iter().flat_map(|path| path.ancestors().skip(1).take(2));
            for dir in beside.chain([Path::new(".")]) {
                let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
                project = Project::find(dir)?;
                if project.is_some() {
                    break;
                }
            }
        }
        if fixtures.len() > FILES_MAX {
            let message = format!("{} fixtures; at most {FILES_MAX} are run at once", fixtures.len());
            return Err(Failure::usage(message, "name some of the files"));
        }
        if fixtures.is_empty() {
            return Err(Failure::usage("there is no fixture", "a fixture is a `*.json` file; name it, or its folder"));
        }
        let component = match (component, &project) {
            (Some(path), _) => path.to_owned(),
            (None, Some(project)) => project.component(),
            (None, None) => {
                let remedy = "name it with --plugin, or go to a plugin's folder";
                return Err(Failure::usage("which component is meant?", remedy));
            }
        };
        Ok(Paths { project, component, fixtures })
    }
}

/// The `*.json` files of a folder, by name.
pub(super) fn in_folder(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let unreadable = |e: std::io::Error| {
        Failure::usage(
            format!("the folder `{}` cannot be read: {e}", dir.display()),
            "fixtures are `*.json` files in it",
        )
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let is_fixture =
            path.extension().is_some_and(|e| e == "json") && path.file_name().is_none_or(|n| n != MANIFEST);
        if is_fixture && path.is_file() {
            // `./` says nothing.
            files.push(path.strip_prefix(".").map(Path::to_owned).unwrap_or(path));
        }
    }
    files.sort();
    Ok(files)
}
