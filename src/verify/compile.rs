//! From what was written to what it means: every mistake of a source in one go, each with its field, the rule and a
//! remedy.

mod challenge;
mod code;
mod fields;

pub(in crate::verify) use code::Make;

use super::challenge::Challenge;
use super::check::{Alternative, Group};
use super::key::{Algorithm, Key, KeyForm};
use super::locator::Locator;
use super::locator::Wanted;
use super::schemes;
use super::source::{Answers, DedupRule, Source};
use super::spec::{SchemeSpec, SourceSpec};
use super::template;
use crate::delivery::Name;
use crate::duration;
use crate::secret::Secret;
use challenge::is_reserved;
use http::HeaderName;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const SECRETS_MAX: usize = 16;
const ALTERNATIVES_MAX: usize = 8;
pub(super) const TOLERANCE_SECONDS_MAX: u64 = 604_800;
const DEDUP_WINDOW: Duration = Duration::from_secs(7 * 86_400);
const DEDUP_WINDOW_MAX: Duration = Duration::from_secs(90 * 86_400);
/// A shorter secret can be guessed.
pub const SECRET_BYTES_GOOD: usize = 16;

/// Something that is wrong with a source.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{field}: {message}")]
pub struct SpecProblem {
    /// The field as it is written in the file, such as `sig.encoding`.
    pub field: String,
    /// The rule that is broken, and what to write instead. Carries no secret.
    pub message: String,
}

impl SourceSpec {
    /// Compiles a source with its secrets, or says everything that is wrong with it.
    #[expect(clippy::needless_pass_by_value, reason = "the secrets are handed over, and wiped when this returns")]
    pub fn compile(&self, tenant: &Name, source: &Name, secrets: Vec<Secret>) -> Result<Source, Vec<SpecProblem>> {
        let mut compiler = Compiler::default();
        let scheme = self.scheme_as_data(&mut compiler);
        let dedup = match self.dedup.as_deref() {
            None => DedupRule::Scheme,
            Some("none") => DedupRule::Never,
            Some("body") => DedupRule::Body,
            Some(text) => compiler.locator("dedup", text).map_or(DedupRule::Never, DedupRule::At),
        };
        let dedup_window = compiler.dedup_window(self.dedup_window.as_deref());
        let entry = match scheme.as_ref().and_then(code::named) {
            Some(named) => compiler.found("verify", named).map(Some),
            None => Some(None),
        };
        let adopts = scheme.as_ref().is_some_and(SchemeSpec::adopts);
        let publishes_keys = entry.flatten().is_some_and(|entry| entry.publishes_keys);
        // Of an unknown scheme nobody knows whether it needs one.
        compiler.check_secrets(&secrets, publishes_keys || adopts || scheme.is_none());
        let (mut groups, mut code) = (Vec::new(), None);
        match (&scheme, entry) {
            (Some(scheme), Some(Some(entry))) => code = compiler.code(self, (scheme, entry), &dedup, &secrets),
            (Some(scheme), Some(None)) => {
                if !self.params.is_empty() {
                    compiler.problem("params", "has no effect, the scheme has no settings of its own: remove it");
                }
                groups = compiler.groups(scheme, self.tolerance, &dedup, &secrets);
            }
            (None, _) | (_, None) => {}
        }
        let windows = scheme.iter().flat_map(SchemeSpec::expanded).filter_map(|spec| Some(spec.time?.tolerance));
        let window = Duration::from_secs(self.tolerance.or(windows.max()).unwrap_or_default());
        if window > dedup_window && !matches!(dedup, DedupRule::Never) {
            let shorter = "is shorter than the time that a signature is let in for";
            let remedy = "what is sent again in between is another event: make it longer, or `tolerance` shorter";
            compiler.warnings.push(format!("dedup_window: {shorter}, and {remedy}"));
        }
        let receipt = entry.flatten().and_then(|entry| entry.about.receipt);
        let answers = compiler.answers(scheme.as_ref(), receipt);
        if !compiler.problems.is_empty() {
            return Err(compiler.problems);
        }
        let alternatives = || groups.iter().flat_map(|group| &group.alternatives);
        let mut own_headers: Vec<HeaderName> = alternatives()
            .flat_map(|alternative| &alternative.sig.at)
            .filter_map(|at| if let Locator::Header(_, name) = at { Some(name.clone()) } else { None })
            .collect();
        own_headers.dedup();
        own_headers
            .extend(alternatives().flat_map(|alternative| &alternative.challenges).filter_map(Challenge::hands_over));
        let coded = entry.flatten().map(|entry| entry.headers).unwrap_or_default();
        own_headers.extend(coded.iter().copied().map(HeaderName::from_static));
        if self.scheme == schemes::CUSTOM {
            let all: Vec<&Alternative> = alternatives().collect();
            compiler.warnings.extend(unused(&all).into_iter().chain(untimed(&all)));
        }
        if alternatives().any(|a| !a.covers_body && !a.algorithm.is_token()) {
            compiler.warnings.push("signed: the signature does not cover the body".to_owned());
        }
        Ok(Source {
            tenant: tenant.clone(),
            name: source.clone(),
            scheme: self.scheme.clone(),
            wanted: compiler.wanted,
            warnings: compiler.warnings,
            key_is_covered: alternatives().all(|alternative| alternative.covers_key)
                && code.as_ref().is_none_or(|(_, covered)| *covered),
            groups,
            code: code.map(|(code, _)| code),
            own_headers,
            answers,
            dedup,
            dedup_window,
            waits: (adopts && secrets.is_empty()).then(|| Box::new(self.clone())),
        })
    }

    fn scheme_as_data(&self, compiler: &mut Compiler) -> Option<SchemeSpec> {
        if self.scheme == schemes::CUSTOM {
            if self.custom.is_none() {
                compiler.problem("verify", "a custom scheme says how it is verified: add `verify` and `sig`");
            }
            return self.custom.clone();
        }
        if self.custom.as_ref().is_some_and(|custom| *custom != SchemeSpec::default()) {
            let message = "a built-in scheme brings its own fields: leave them out, or write `scheme = \"custom\"`";
            compiler.problem("scheme", message);
        }
        if let Some((rule, remedy)) = schemes::unknown(&self.scheme) {
            compiler.problem("scheme", format!("{rule}: {remedy}"));
        }
        schemes::builtin(&self.scheme)
    }
}

#[derive(Default)]
struct Compiler {
    problems: Vec<SpecProblem>,
    warnings: Vec<String>,
    wanted: Wanted,
    /// `""`, or `alternatives[n].`
    prefix: String,
}

impl Compiler {
    fn problem(&mut self, field: &str, message: impl Into<String>) {
        self.problems.push(SpecProblem { field: format!("{}{field}", self.prefix), message: message.into() });
    }

    fn found<T>(&mut self, field: &str, result: Result<T, String>) -> Option<T> {
        result.map_err(|message| self.problem(field, message)).ok()
    }

    /// A locator outside `vars`.
    fn locator(&mut self, field: &str, text: &str) -> Option<Locator> {
        let result = match Locator::parse(text, &mut self.wanted) {
            Ok(Locator::Sig(_)) => Err(format!("`{text}`: an item of the signature header can only be a variable")),
            other => other,
        };
        self.found(field, result)
    }

    fn locators(&mut self, field: &str, texts: &[String]) -> Vec<Locator> {
        let each = texts.iter().enumerate();
        each.filter_map(|(i, text)| self.locator(&format!("{field}[{i}]"), text)).collect()
    }

    fn literals(&mut self, field: &str, texts: &BTreeMap<String, String>) -> Vec<(Locator, String)> {
        let mut pairs = Vec::new();
        for (at, literal) in texts {
            let field = format!("{field}.\"{at}\"");
            if literal.is_empty() {
                self.problem(&field, "an empty value is the same as none: write the text that has to be there");
            }
            pairs.extend(self.locator(&field, at).map(|at| (at, literal.clone())));
        }
        pairs
    }

    fn dedup_window(&mut self, text: Option<&str>) -> Duration {
        let Some(text) = text else { return DEDUP_WINDOW };
        match duration::parse(text) {
            Ok(window) if window.is_zero() => {
                self.problem(
                    "dedup_window",
                    "has to be longer than nothing: to remember no key, write `dedup = \"none\"`",
                );
            }
            Ok(window) if window > DEDUP_WINDOW_MAX => {
                self.problem("dedup_window", "is at most 90 days: write `90d` or less");
            }
            Ok(window) => return window,
            Err(message) => self.problem("dedup_window", message),
        }
        DEDUP_WINDOW
    }

    fn answers(&mut self, scheme: Option<&SchemeSpec>, receipt: Option<&'static str>) -> Answers {
        let written = scheme.and_then(|scheme| scheme.answers.as_deref());
        if scheme.is_some_and(|scheme| scheme.alternatives.iter().any(|one| one.answers.is_some())) {
            self.problem("answers", "is the whole scheme's: write it outside of `alternatives`");
        }
        match (written, receipt) {
            (None, None) => Answers::Ours,
            (None, Some(receipt)) => Answers::Receipt(receipt),
            (Some("empty"), None) => Answers::Empty,
            (Some("empty"), Some(_)) => {
                self.problem("answers", "has no effect, the provider wants a receipt of its own: remove it");
                Answers::Ours
            }
            (Some(other), _) => {
                self.problem("answers", format!("`{other}` is no kind of answer: write `empty`, or remove it"));
                Answers::Ours
            }
        }
    }

    fn check_secrets(&mut self, secrets: &[Secret], may_be_none: bool) {
        if secrets.is_empty() && !may_be_none {
            self.problem("secrets", "without a secret nothing can be verified: name at least one");
        }
        if secrets.len() > SECRETS_MAX {
            self.problem("secrets", format!("at most {SECRETS_MAX} can be active at a time: remove old ones"));
        }
        for (i, secret) in secrets.iter().enumerate() {
            if secret.expose().trim_ascii().is_empty() {
                self.problem(&format!("secrets[{i}]"), "is blank: check the variable or file that it is read from");
            } else if ends_by_mistake(secret.expose()) {
                let message = "ends in a line end, which no provider's secret does: remove it, also from the variable \
                               that it is read from";
                self.problem(&format!("secrets[{i}]"), message);
            }
        }
    }

    /// The scheme's alternatives with their keys, those with the same header conditions together.
    fn groups(
        &mut self,
        scheme: &SchemeSpec,
        tolerance: Option<u64>,
        dedup: &DedupRule,
        secrets: &[Secret],
    ) -> Vec<Group> {
        if scheme.alternatives.len() > ALTERNATIVES_MAX {
            self.problem("alternatives", format!("are at most {ALTERNATIVES_MAX}: make two sources of it"));
            return Vec::new();
        }
        if !scheme.alternatives.is_empty() && !scheme.when.is_empty() {
            self.problem("when", "belongs to one alternative: move it there");
        }
        if scheme.alternatives.iter().any(|alternative| !alternative.alternatives.is_empty()) {
            self.problem("alternatives", "do not nest: write them side by side");
        }
        let specs = scheme.expanded();
        let timed = specs.iter().any(|spec| spec.time.is_some());
        match tolerance {
            Some(_) if !timed => self.problem("tolerance", "has no effect, the scheme signs no timestamp: remove it"),
            Some(seconds) => self.check_tolerance("tolerance", seconds),
            None => {}
        }
        let nested = !scheme.alternatives.is_empty();
        let prefix = |i: usize| if nested { format!("alternatives[{i}].") } else { String::new() };
        let mut conditions = Vec::with_capacity(specs.len());
        for (i, spec) in specs.iter().enumerate() {
            self.prefix = prefix(i);
            conditions.push(self.conditions(&spec.when));
        }
        let mut groups: Vec<Group> = Vec::new();
        let reserved = reserved(&specs);
        let for_handshakes: Vec<bool> = secrets.iter().map(|secret| is_reserved(secret, &reserved)).collect();
        let mut used = for_handshakes.clone();
        for (i, (spec, own)) in specs.iter().zip(&conditions).enumerate() {
            self.prefix = prefix(i);
            let alternative = self.alternative(spec, tolerance, dedup, secrets);
            let form = self.key_form(spec);
            self.prefix.clear();
            let (Some(mut alternative), Some(form)) = (alternative, form) else { continue };
            for (number, secret) in secrets.iter().enumerate().filter(|(number, _)| !for_handshakes[*number]) {
                if own.claims(secret) || (own.keys.is_empty() && !conditions.iter().any(|c| c.claims(secret))) {
                    // Two alternatives may share a secret: what is wrong with it is said once.
                    let fresh = !std::mem::replace(&mut used[number], true);
                    let key = self.key(number, secret, spec, (alternative.algorithm, form), fresh);
                    alternative.keys.extend(key.map(|key| (number, key)));
                }
            }
            // Without any secret, it is there for the handshake that brings one.
            if alternative.keys.is_empty() && !secrets.is_empty() {
                continue;
            }
            match groups.iter_mut().find(|group| group.when == own.headers) {
                Some(group) => group.alternatives.push(alternative),
                None => groups.push(Group { when: own.headers.clone(), alternatives: vec![alternative] }),
            }
        }
        let every = || groups.iter().flat_map(|group| &group.alternatives);
        let makes_code = |alternative: &&Alternative| alternative.challenges.iter().any(Challenge::makes_code);
        let codes: Vec<Algorithm> = every().filter(makes_code).map(|alternative| alternative.algorithm).collect();
        for alternative in groups.iter_mut().flat_map(|group| &mut group.alternatives) {
            alternative.signs_tokens = codes.contains(&alternative.algorithm);
        }
        // One that is for every request would hide those behind it.
        groups.sort_by_key(|group| group.when.is_empty());
        self.prefix.clear();
        if self.problems.is_empty() {
            for number in (0..secrets.len()).filter(|number| !used[*number]) {
                let message =
                    "is for none of the scheme's alternatives: begin it as one of their `when = \"key:…\"` says";
                self.problem(&format!("secrets[{number}]"), message);
            }
        }
        for (number, secret) in secrets.iter().enumerate() {
            let blank = |prefix: &&String| {
                let rest = secret.expose().strip_prefix(prefix.as_bytes());
                rest.is_some_and(|rest| rest.trim_ascii().is_empty())
            };
            if let Some(prefix) = reserved.iter().find(blank) {
                let message =
                    format!("has nothing behind `{prefix}`: write the word there that the handshake has to bring");
                self.problem(&format!("secrets[{number}]"), message);
            }
        }
        for prefix in &reserved {
            if !secrets.is_empty() && !secrets.iter().any(|secret| secret.expose().starts_with(prefix.as_bytes())) {
                self.warnings.push(format!(
                    "secrets: none begins with `{prefix}`, so the scheme's handshake is refused: add the provider's \
                     token, such as \"{prefix}our-own-word\""
                ));
            }
        }
        if !secrets.is_empty() && for_handshakes.iter().all(|for_handshakes| *for_handshakes) {
            let message = "all are for the handshake, and none verifies: add the one that the provider signs with";
            self.problem("secrets", message);
        }
        groups
    }

    fn conditions(&mut self, when: &[String]) -> Conditions {
        let mut conditions = Conditions::default();
        for (i, text) in when.iter().enumerate() {
            match text.split_once(':') {
                Some(("key", prefix)) if !prefix.is_empty() => conditions.keys.push(prefix.to_owned()),
                Some(("header", name)) if name.parse::<HeaderName>().is_ok() => {
                    conditions.headers.extend(name.parse::<HeaderName>());
                }
                Some(_) | None => self.problem(
                    &format!("when[{i}]"),
                    format!("`{text}` is not a condition: write `key:PREFIX` or `header:Name`"),
                ),
            }
        }
        conditions
    }

    fn check_tolerance(&mut self, field: &str, seconds: u64) {
        if seconds > TOLERANCE_SECONDS_MAX {
            self.problem(field, format!("is at most {TOLERANCE_SECONDS_MAX} seconds, a week: write less"));
        }
    }

    fn key_form(&mut self, spec: &SchemeSpec) -> Option<KeyForm> {
        let text = spec.key.as_deref().unwrap_or("text");
        let algorithm = spec.verify.as_deref().and_then(Algorithm::parse);
        let form = KeyForm::parse(text).filter(|form| algorithm.is_none_or(|algorithm| form.fits(algorithm)));
        let rule = || match (KeyForm::parse(text), &spec.verify) {
            (Some(_), Some(verify)) => {
                format!("`{text}` is no form of a key for {verify}: use {}", KeyForm::names(algorithm))
            }
            _ => format!("`{text}` is not a form of key: use {}", KeyForm::names(algorithm)),
        };
        self.found("key", form.ok_or_else(rule))
    }

    fn key(
        &mut self,
        number: usize,
        secret: &Secret,
        spec: &SchemeSpec,
        (algorithm, form): (Algorithm, KeyForm),
        fresh: bool,
    ) -> Option<Key> {
        let field = format!("secrets[{number}]");
        let text = secret.expose();
        let stripped = spec.key_strip.iter().find_map(|prefix| text.strip_prefix(prefix.as_bytes())).unwrap_or(text);
        let wanted = || form.wanted(algorithm, spec.key_strip.first().map(String::as_str));
        let key = match form.decode(stripped) {
            Ok(bytes) if bytes.is_empty() => Err(format!("holds no key: give {}", wanted())),
            Ok(bytes) => {
                if fresh && bytes.len() < SECRET_BYTES_GOOD {
                    let length = bytes.len();
                    let advice = format!("has {length} bytes and can be guessed: use {SECRET_BYTES_GOOD} or more");
                    self.warnings.push(format!("{field}: {advice}"));
                }
                let counted = algorithm == Algorithm::Ed25519 && matches!(form, KeyForm::Base64 | KeyForm::Hex);
                let length = if counted { format!("has {} bytes and ", bytes.len()) } else { String::new() };
                Key::new(algorithm, &bytes).map_err(|wrong| format!("{length}{wrong}: give {}", wanted()))
            }
            Err(wrong) => Err(format!("{wrong}: give {}", wanted())),
        };
        match key {
            Ok(key) => Some(key),
            Err(_) if !fresh || text.trim_ascii().is_empty() => None,
            Err(problem) => {
                self.problem(&field, problem);
                None
            }
        }
    }
}

/// Whether one line has a line end behind it. Keys in PEM and in JSON are texts of many.
fn ends_by_mistake(secret: &[u8]) -> bool {
    let line = secret.trim_ascii_end();
    (secret.ends_with(b"\n") || secret.ends_with(b"\r")) && !line.contains(&b'\n') && !line.starts_with(b"{")
}

/// How secrets begin that are for handshakes alone.
fn reserved(specs: &[SchemeSpec]) -> Vec<String> {
    let checks = specs.iter().flat_map(|spec| &spec.challenge).filter_map(|challenge| challenge.check.as_ref());
    checks.filter_map(|check| check.key.clone()).filter(|prefix| !prefix.is_empty()).collect()
}

/// Variables that are read for nothing.
fn unused(all: &[&Alternative]) -> Vec<String> {
    let is_used = |name: &str| {
        all.iter().any(|one| {
            let used = |index: usize| one.vars.get(index).is_some_and(|var| var.name == name);
            let emitted = one.emit.iter().flatten().flat_map(|item| template::variables(item));
            let read = template::variables(&one.signed).chain(emitted).chain(one.time.as_ref().map(|time| time.var));
            read.chain(one.id.iter().filter_map(|(_, var)| *var)).any(used)
        })
    };
    let names: BTreeSet<&str> = all.iter().flat_map(|one| &one.vars).map(|var| var.name.as_str()).collect();
    let told = |name: &str| format!("vars.{name}: is used nowhere: put it in `signed`, or remove it");
    names.into_iter().filter(|name| !is_used(name)).map(told).collect()
}

/// A variable that is signed and has the name of a time, where nothing asks how old it is.
fn untimed(all: &[&Alternative]) -> Option<String> {
    let is_time = |name: &str| {
        let name = name.to_ascii_lowercase();
        ["t", "ts"].contains(&name.as_str()) || name.contains("time")
    };
    let signed = all.iter().filter(|one| one.time.is_none()).flat_map(|one| {
        template::variables(&one.signed).filter_map(|index| one.vars.get(index)).filter(|var| is_time(&var.name))
    });
    let name = signed.map(|var| &var.name).next()?;
    Some(format!(
        "time: is left out, and `{name}` is signed, so a captured request stays valid for good: if it is the time, write \
         time = {{ var = \"{name}\", unit = \"s\", tolerance = 300 }}"
    ))
}

/// What selects an alternative.
#[derive(Default)]
struct Conditions {
    keys: Vec<String>,
    headers: Vec<HeaderName>,
}

impl Conditions {
    fn claims(&self, secret: &Secret) -> bool {
        self.keys.iter().any(|prefix| secret.expose().starts_with(prefix.as_bytes()))
    }
}
