//! From a text to a report: what is wrong, what is doubtful, and, when nothing is wrong, what it means.

use super::Env;
use super::alerts;
use super::problem::{self, Colour, Lines, Position, Problem, Shown};
use super::reference;
use super::section::{Section, Walk, nearest};
use super::server;
use super::settings::{Retention, Settings};
use super::tenant::tenants;
use super::tree::{self, OWN_VARIABLES, PREFIX, Place};
use crate::clock::Timestamp;
use miette::Severity;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file that is read when none is named.
pub const DEFAULT_PATH: &str = "hookgate.toml";

/// A secret that ends within this time is warned of.
const EXPIRES_SOON: Duration = Duration::from_secs(7 * 24 * 3_600);

/// No configuration is larger.
const FILE_BYTES_MAX: u64 = 4 << 20;

const SECTIONS: [&str; 6] = ["server", "limits", "egress", "retention", "alerts", "tenants"];

/// Whether to look at what the file names: secrets in the environment and in files, plugins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outside {
    Look,
    Skip,
}

/// A setting given as a flag.
#[derive(Clone, Debug)]
pub struct Override {
    pub flag: &'static str,
    /// The key's full path, e.g. `server.ingress`.
    pub key: &'static str,
    pub value: String,
}

/// What a configuration is made from.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    pub text: &'a str,
    /// Names the file in messages; its directory is where relative paths start.
    pub path: &'a Path,
    pub env: &'a Env,
    pub flags: &'a [Override],
    pub outside: Outside,
}

/// The outcome of reading a configuration.
#[derive(Debug)]
pub struct Report {
    /// In the order of the file; then the environment's, then the flags'.
    pub problems: Vec<Problem>,
    pub warnings: Vec<Problem>,
    /// `Some` exactly when there is no problem.
    pub settings: Option<Settings>,
    expiries: Vec<Expiry>,
    shown: Shown,
}

/// Something that ends.
#[derive(Debug)]
pub(super) struct Expiry {
    /// Where it is; what to say depends on the time.
    pub(super) warning: Problem,
    pub(super) when: Timestamp,
    /// Nothing else is left of its kind then.
    pub(super) is_last: bool,
}

/// The file itself could not be had.
#[derive(Debug, thiserror::Error)]
#[error("the configuration `{path}` cannot be read: {why}")]
pub struct Unreadable {
    pub path: String,
    pub why: String,
}

/// Reads the file at `path`; without one, [`DEFAULT_PATH`] where it exists, else nothing but defaults.
pub fn read(path: Option<&Path>, env: &Env, flags: &[Override], outside: Outside) -> Result<Report, Unreadable> {
    let chosen = path.map_or_else(|| PathBuf::from(DEFAULT_PATH), Path::to_owned);
    let text = match text_of(&chosen) {
        Ok(text) => text,
        Err(e) if path.is_none() && e.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(e) => return Err(Unreadable { path: chosen.display().to_string(), why: e.to_string() }),
    };
    Ok(evaluate(&Input { text: &text, path: &chosen, env, flags, outside }))
}

fn text_of(path: &Path) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    let invalid = |why: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, why.to_owned());
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(invalid("it is larger than 4 MiB"));
    }
    String::from_utf8(bytes).map_err(|_| invalid("it is not UTF-8 text"))
}

/// Judges a text with the environment over it.
pub fn check(text: &str, path: &Path, env: &Env) -> Report {
    evaluate(&Input { text, path, env, flags: &[], outside: Outside::Look })
}

/// Judges a text with the environment and flags over it.
pub fn evaluate(input: &Input<'_>) -> Report {
    walked(input).0
}

/// The report, and every key that was asked for.
pub(super) fn walked(input: &Input<'_>) -> (Report, BTreeSet<String>) {
    let (mut tree, faults) = tree::parse(input.text);
    let strangers = tree::lay_environment(&mut tree, input.env, &SECTIONS);
    for flag in input.flags {
        let path: Vec<String> = flag.key.split('.').map(str::to_owned).collect();
        tree::lay_over(&mut tree, &path, &flag.value, &Place::Flag(flag.flag));
    }
    let mut walk = Walk {
        text: input.text,
        base: input.path.parent().unwrap_or(Path::new("")),
        env: input.env,
        outside: input.outside,
        problems: Vec::new(),
        warnings: Vec::new(),
        expiries: Vec::new(),
        masks: Vec::new(),
        referenced: BTreeSet::new(),
        keys: BTreeSet::new(),
    };
    let settings = settings(&mut walk, Section::root(&tree));
    report_strangers(&mut walk, strangers);

    // What stands on a line with a fault of syntax was not read as it was meant.
    let mut problems = std::mem::take(&mut walk.problems);
    for fault in &faults {
        let place = Place::File(fault.span.clone());
        let broken = problem::position(input.text, fault.span.start);
        problems.retain(|p| !same_line(&p.position, &broken));
        walk.problem(&place, "", format!("not TOML: {}", fault.message), "correct the syntax here");
    }
    problems.append(&mut walk.problems);
    let (mut warnings, expiries) = (walk.warnings, walk.expiries);
    problems.sort_by(|a, b| a.position.cmp(&b.position));
    warnings.sort_by(|a, b| a.position.cmp(&b.position));
    let shown = Shown {
        name: input.path.display().to_string(),
        text: problem::blotted(input.text, &walk.masks),
        lines: if faults.is_empty() { Lines::Shown } else { Lines::Withheld },
    };
    let settings = problems.is_empty().then_some(settings);
    (Report { problems, warnings, settings, expiries, shown }, walk.keys)
}

fn same_line(a: &Position, b: &Position) -> bool {
    match (a, b) {
        (Position::File { line: a, .. }, Position::File { line: b, .. }) => a == b,
        (
            Position::File { .. } | Position::Environment { .. } | Position::Flag { .. },
            Position::File { .. } | Position::Environment { .. } | Position::Flag { .. },
        ) => false,
    }
}

fn settings(walk: &mut Walk<'_>, mut root: Section<'_>) -> Settings {
    let server = server::server(walk, &mut root);
    let limits = server::limits(walk, &mut root);
    let (egress, allowed) = server::egress(walk, &mut root);
    let retention = server::retention(walk, &mut root, Retention::default());
    let (alerts, address) = alerts::gateway(walk, &mut root);
    let mut settings = Settings { server, limits, egress, retention, alerts, ..Settings::default() };
    settings.tenants = tenants(walk, &mut root, &settings, &allowed);
    settings.alerts.route = alerts::gateway_route(walk, address, &settings.tenants);
    root.not_yet(walk, "scrub", "write it in a tenant, or in an endpoint");
    root.close(walk);
    settings
}

/// Variables that begin like ours, name no key, and hold no secret that the file asks for.
fn report_strangers(walk: &mut Walk<'_>, strangers: Vec<String>) {
    for name in strangers {
        if walk.referenced.contains(&name) {
            continue;
        }
        let plain = reference::paths().into_iter().filter(|path| !path.contains('<'));
        let keys: Vec<String> =
            plain.map(|path| format!("{PREFIX}{}", path.replace('.', "__").to_uppercase())).collect();
        let known = OWN_VARIABLES.iter().copied().chain(keys.iter().map(String::as_str));
        let remedy = match nearest(&name, known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("unset it; keys are written as {PREFIX}SECTION__KEY, e.g. HOOKGATE_SERVER__INGRESS"),
        };
        walk.problem(&Place::Env(name), "", "this variable names no setting", remedy);
    }
}

impl Report {
    /// Warns of what has ended by `now`, or ends soon.
    pub fn warn_of_expiries(&mut self, now: Timestamp) {
        for Expiry { mut warning, when, is_last } in std::mem::take(&mut self.expiries) {
            let at = when.to_rfc3339();
            let (message, remedy) = match (when <= now, is_last) {
                (true, false) => (format!("this secret expired at {at}"), "remove it"),
                (true, true) => (
                    format!("the last of the source's secrets expired at {at}: everything is refused"),
                    "name the secret that the provider signs with now",
                ),
                (false, _) if when > now.plus(EXPIRES_SOON) => continue,
                (false, false) => (
                    format!("this secret expires at {at}"),
                    "make sure that the provider signs with another one by then",
                ),
                (false, true) => (
                    format!("the last of the source's secrets expires at {at}"),
                    "put a new one beside it, and give that to the provider",
                ),
            };
            (warning.message, warning.remedy) = (message, remedy.to_owned());
            self.warnings.push(warning);
        }
        self.warnings.sort_by(|a, b| a.position.cmp(&b.position));
    }

    /// One line per problem and warning: for logs and pipes.
    pub fn lines(&self) -> String {
        let mut out = String::new();
        for (word, list) in [("error", &self.problems), ("warning", &self.warnings)] {
            for problem in list {
                let _ = writeln!(out, "{word}: {}", problem.line(&self.shown.name));
            }
        }
        out
    }

    /// A picture of every place: for terminals.
    pub fn pictures(&self, colour: Colour) -> String {
        let mut out = String::new();
        for (severity, list) in [(Severity::Error, &self.problems), (Severity::Warning, &self.warnings)] {
            for problem in list {
                out.push_str(&problem.picture(&self.shown, severity, colour));
                out.push('\n');
            }
        }
        out
    }

    /// `{"file","ok","problems":[…],"warnings":[…]}`.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "file": self.shown.name,
            "ok": self.problems.is_empty(),
            "problems": self.problems,
            "warnings": self.warnings,
        })
    }
}
