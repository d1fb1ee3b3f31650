//! From what was written to what it means: every mistake of a source in one go, each with its field, the rule and a
//! remedy.

use super::check::{Alternative, Challenge, Group, Sig, Time, Unit, Var};
use super::key::{Algorithm, Encoding, Key, KeyForm};
use super::locator::Locator;
use super::pointer::Pointer;
use super::schemes;
use super::source::{DedupRule, Source};
use super::spec::{ChallengeSpec, SchemeSpec, SigSpec, SourceSpec};
use super::template::{self, Piece};
use crate::delivery::Name;
use crate::duration;
use crate::secret::Secret;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use std::collections::BTreeMap;
use std::time::Duration;

const SECRETS_MAX: usize = 16;
const ALTERNATIVES_MAX: usize = 8;
const VARS_MAX: usize = 16;
const TOLERANCE_SECONDS_MAX: u64 = 604_800;
const DEDUP_WINDOW: Duration = Duration::from_secs(7 * 86_400);
const DEDUP_WINDOW_MAX: Duration = Duration::from_secs(90 * 86_400);
/// A shorter secret can be guessed.
const SECRET_BYTES_GOOD: usize = 16;

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
        compiler.check_secrets(&secrets);
        let groups =
            scheme.map(|scheme| compiler.groups(&scheme, self.tolerance, &dedup, &secrets)).unwrap_or_default();
        if !compiler.problems.is_empty() {
            return Err(compiler.problems);
        }
        let alternatives = || groups.iter().flat_map(|group| &group.alternatives);
        let mut own_headers: Vec<HeaderName> = alternatives()
            .flat_map(|alternative| &alternative.sig.at)
            .filter_map(|at| if let Locator::Header(name) = at { Some(name.clone()) } else { None })
            .collect();
        own_headers.dedup();
        if alternatives().any(|a| !a.covers_body && a.algorithm != Algorithm::Equal) {
            compiler.warnings.push("signed: the signature does not cover the body".to_owned());
        }
        Ok(Source {
            tenant: tenant.clone(),
            name: source.clone(),
            scheme: self.scheme.clone(),
            pointers: compiler.pointers,
            warnings: compiler.warnings,
            groups,
            own_headers,
            dedup,
            dedup_window,
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
        let builtin = schemes::builtin(&self.scheme);
        if builtin.is_none() {
            let known = schemes::names().collect::<Vec<_>>().join(", ");
            compiler.problem("scheme", format!("`{}` is not a scheme: use one of {known}, or custom", self.scheme));
        }
        builtin
    }
}

#[derive(Default)]
struct Compiler {
    problems: Vec<SpecProblem>,
    warnings: Vec<String>,
    pointers: Vec<Pointer>,
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
        let result = match Locator::parse(text, &mut self.pointers) {
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

    fn check_secrets(&mut self, secrets: &[Secret]) {
        if secrets.is_empty() {
            self.problem("secrets", "without a secret nothing can be verified: name at least one");
        }
        if secrets.len() > SECRETS_MAX {
            self.problem("secrets", format!("at most {SECRETS_MAX} can be active at a time: remove old ones"));
        }
        for (i, secret) in secrets.iter().enumerate() {
            if secret.is_empty() {
                self.problem(&format!("secrets[{i}]"), "is empty: check the variable or file that it is read from");
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
        let mut used = vec![false; secrets.len()];
        for (i, (spec, own)) in specs.iter().zip(&conditions).enumerate() {
            self.prefix = prefix(i);
            let alternative = self.alternative(spec, tolerance, dedup);
            let form = self.key_form(spec);
            self.prefix.clear();
            let (Some(mut alternative), Some(form)) = (alternative, form) else { continue };
            for (number, secret) in secrets.iter().enumerate() {
                if own.claims(secret) || (own.keys.is_empty() && !conditions.iter().any(|c| c.claims(secret))) {
                    // Two alternatives may share a secret: what is wrong with it is said once.
                    let fresh = !std::mem::replace(&mut used[number], true);
                    let key = self.key(number, secret, spec, (alternative.algorithm, form), fresh);
                    alternative.keys.extend(key.map(|key| (number, key)));
                }
            }
            if alternative.keys.is_empty() {
                continue;
            }
            match groups.iter_mut().find(|group| group.when == own.headers) {
                Some(group) => group.alternatives.push(alternative),
                None => groups.push(Group { when: own.headers.clone(), alternatives: vec![alternative] }),
            }
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
        let form = KeyForm::parse(text).ok_or_else(|| format!("`{text}` is not a form of key: use {}", KeyForm::NAMES));
        self.found("key", form)
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
        let key = match form.decode(stripped) {
            Ok(bytes) if bytes.is_empty() => Err("is empty: check the variable or file that it is read from"),
            Ok(bytes) => {
                if fresh && bytes.len() < SECRET_BYTES_GOOD {
                    let length = bytes.len();
                    let advice = format!("has {length} bytes and can be guessed: use {SECRET_BYTES_GOOD} or more");
                    self.warnings.push(format!("{field}: {advice}"));
                }
                Key::new(algorithm, &bytes)
            }
            Err(problem) => Err(problem),
        };
        match key {
            Ok(key) => Some(key),
            Err(_) if !fresh || secret.is_empty() => None,
            Err(problem) => {
                self.problem(&field, problem);
                None
            }
        }
    }

    fn alternative(&mut self, spec: &SchemeSpec, tolerance: Option<u64>, dedup: &DedupRule) -> Option<Alternative> {
        let before = self.problems.len();
        let verify = spec.verify.as_deref().ok_or_else(|| format!("is missing: use {}", Algorithm::NAMES));
        let algorithm = verify.and_then(|text| {
            Algorithm::parse(text).ok_or_else(|| format!("`{text}` is not known: use {}", Algorithm::NAMES))
        });
        let algorithm = self.found("verify", algorithm);
        let sig = self.sig(spec.sig.as_ref(), algorithm);
        let vars = self.vars(&spec.vars, spec.sig.as_ref());
        let signed = self.signed(spec.signed.as_deref(), &vars, algorithm);
        let time = self.time(spec, tolerance, &vars, &signed);
        let require = self.literals("require", &spec.require);
        let id = self.locators("id", &spec.id);
        let id_is_word = match spec.id_form.as_deref() {
            None => false,
            Some("word") if !spec.id.is_empty() => true,
            Some("word") => {
                self.problem("id_form", "has no effect without `id`: say where the id stands, or remove it");
                false
            }
            Some(other) => {
                self.problem("id_form", format!("`{other}` is not a form: write `word`, or remove it"));
                false
            }
        };
        let event_type = self.locators("type", &spec.event_type);
        let challenges = spec.challenge.iter().enumerate().filter_map(|(i, c)| self.challenge(i, c)).collect();
        if self.problems.len() > before {
            return None;
        }
        let algorithm = algorithm?;
        let covered = |at: &Locator| algorithm == Algorithm::Equal || covers(&signed, &vars, at);
        let id = id.into_iter().map(|at| (covered(&at), at)).map(|(covered, at)| (at, covered)).collect();
        let covers_dedup = if let DedupRule::At(at) = dedup { covered(at) } else { true };
        Some(Alternative {
            algorithm,
            keys: Vec::new(),
            sig: sig?,
            covers_body: signed.contains(&Piece::Body),
            require: require.into_iter().map(|(at, literal)| (at, literal.into_bytes())).collect(),
            vars,
            signed,
            time,
            id,
            id_is_word,
            event_type,
            challenges,
            covers_dedup,
        })
    }

    fn sig(&mut self, spec: Option<&SigSpec>, algorithm: Option<Algorithm>) -> Option<Sig> {
        let Some(spec) = spec else {
            self.problem("sig", "is missing: say where the signature stands, such as `sig = { at = [\"header:X-Signature\"], encoding = \"hex\" }`");
            return None;
        };
        if spec.at.is_empty() {
            self.problem("sig.at", "is missing: say where the signature stands, such as `[\"header:X-Signature\"]`");
        }
        let at = self.locators("sig.at", &spec.at);
        for (field, text) in [("sig.split", &spec.split), ("sig.pair", &spec.pair)] {
            if text.as_ref().is_some_and(String::is_empty) {
                self.problem(field, "is empty: write the separator, or remove the field");
            }
        }
        if spec.pair.is_some() && spec.take.is_empty() {
            self.problem("sig.take", "is missing: with `pair`, name the items that are signatures, such as `[\"v1\"]`");
        }
        if spec.pair.is_none() && !spec.take.is_empty() {
            self.problem("sig.take", "has no effect without `pair`: say what stands between name and value");
        }
        let encoding = match (spec.encoding.as_deref(), algorithm) {
            (Some(_), Some(Algorithm::Equal)) => {
                self.problem("sig.encoding", "has no effect, a token is compared as it stands: remove it");
                None
            }
            (None, Some(Algorithm::Equal) | None) => None,
            (None, Some(_)) => {
                self.problem("sig.encoding", format!("is missing: use {}", Encoding::NAMES));
                None
            }
            (Some(text), _) => {
                let known = Encoding::parse(text);
                let message = || format!("`{text}` is not an encoding: use {}", Encoding::NAMES);
                self.found("sig.encoding", known.ok_or_else(message))
            }
        };
        Some(Sig {
            at,
            split: spec.split.clone(),
            pair: spec.pair.clone(),
            take: spec.take.clone(),
            prefix: spec.prefix.clone().unwrap_or_default(),
            encoding,
        })
    }

    fn vars(&mut self, spec: &BTreeMap<String, String>, sig: Option<&SigSpec>) -> Vec<Var> {
        if spec.len() > VARS_MAX {
            self.problem("vars", format!("are at most {VARS_MAX}: remove those that are not needed"));
        }
        let mut vars = Vec::new();
        for (name, text) in spec {
            let field = format!("vars.{name}");
            let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            if name.is_empty() || !name.chars().all(word) {
                self.problem(&field, "a variable's name is made of `a-z`, `0-9` and `_`: rename it");
            }
            if BUILT_IN.contains(&name.as_str()) {
                self.problem(&field, format!("`{name}` is built in: rename the variable"));
            }
            let optional = text.split(':').next().is_some_and(|kind| kind.ends_with('?'));
            let plain = if optional { text.replacen("?:", ":", 1) } else { text.clone() };
            let parsed = Locator::parse(&plain, &mut self.pointers);
            let Some(locator) = self.found(&field, parsed) else { continue };
            if matches!(locator, Locator::Sig(_)) && sig.is_none_or(|sig| sig.pair.is_none()) {
                self.problem(&field, "reads an item of the signature header: `sig.pair` says how items are written");
            }
            vars.push(Var { name: name.clone(), locator, optional });
        }
        vars
    }

    fn signed(&mut self, text: Option<&str>, vars: &[Var], algorithm: Option<Algorithm>) -> Vec<Piece> {
        if algorithm == Some(Algorithm::Equal) {
            if text.is_some() {
                self.problem("signed", "has no effect, a token signs nothing: remove it");
            }
            return Vec::new();
        }
        let mut resolve = |name: &str| {
            built_in(name).or_else(|| vars.iter().position(|v| v.name == name).map(Piece::Var)).ok_or_else(|| {
                format!("`{{{name}}}` is not known: declare it in `vars`, or use one of {}", BUILT_IN.join(", "))
            })
        };
        let pieces = template::parse(text.unwrap_or("{body}"), &mut resolve);
        let pieces = self.found("signed", pieces).unwrap_or_default();
        for piece in &pieces {
            match piece {
                Piece::Var(index) if vars[*index].optional => {
                    let name = &vars[*index].name;
                    self.problem("signed", format!("`{{{name}}}` may be absent: put it in a group, `[…{{{name}}}…]`"));
                }
                Piece::Group(group) if !template::variables(group).any(|index| vars[index].optional) => {
                    self.problem(
                        "signed",
                        r"a group without an optional variable never vanishes: write `\[` and `\]` for the characters",
                    );
                }
                Piece::Var(_)
                | Piece::Group(_)
                | Piece::Literal(_)
                | Piece::Body
                | Piece::Method
                | Piece::Url
                | Piece::UrlWithoutQuery
                | Piece::Path
                | Piece::Query
                | Piece::Place(_) => {}
            }
        }
        if text.is_some() && pieces.iter().all(|piece| matches!(piece, Piece::Literal(_))) {
            self.problem("signed", "covers nothing of the request: add `{body}`");
        }
        pieces
    }

    fn time(&mut self, spec: &SchemeSpec, tolerance: Option<u64>, vars: &[Var], signed: &[Piece]) -> Option<Time> {
        let time = spec.time.as_ref()?;
        let unit = match time.unit.as_str() {
            "s" => Some(Unit::Seconds),
            "ms" => Some(Unit::Millis),
            "rfc3339" => Some(Unit::Rfc3339),
            other => {
                self.problem("time.unit", format!("`{other}` is not a unit: use s, ms or rfc3339"));
                None
            }
        };
        self.check_tolerance("time.tolerance", time.tolerance);
        let Some(var) = vars.iter().position(|v| v.name == time.var) else {
            self.problem("time.var", format!("`{}` is not a variable: declare it in `vars`", time.var));
            return None;
        };
        if vars[var].optional {
            self.problem("time.var", "may be absent, and without it the window is open: remove the `?` in `vars`");
        } else if !covers(signed, vars, &vars[var].locator) {
            self.problem("time.var", "is not signed, so anybody can change it: use it in `signed`");
        }
        let tolerance_seconds = tolerance.unwrap_or(time.tolerance);
        unit.map(|unit| Time { var, unit, tolerance_seconds })
    }

    fn challenge(&mut self, index: usize, spec: &ChallengeSpec) -> Option<Challenge> {
        let field = |name: &str| format!("challenge[{index}].{name}");
        let method = spec.method.as_deref().unwrap_or("POST").parse::<Method>();
        let method = self.found(&field("method"), method.map_err(|_| "is not a method: write `POST`".to_owned()));
        if spec.matches.is_empty() {
            self.problem(&field("match"), "is missing: say what tells a challenge from an event");
        }
        let matches = self.literals(&field("match"), &spec.matches);
        let status = spec.status.unwrap_or(200);
        let status = StatusCode::from_u16(status).ok().filter(StatusCode::is_success);
        let status = self.found(&field("status"), status.ok_or_else(|| "has to be 200 to 299".to_owned()));
        let content_type = HeaderValue::from_str(spec.content_type.as_deref().unwrap_or("text/plain"));
        let content_type = content_type.map_err(|_| "is not a header value: write `text/plain`".to_owned());
        let content_type = self.found(&field("content_type"), content_type);
        let mut resolve = |name: &str| match Locator::parse(name, &mut self.pointers)? {
            Locator::Sig(_) => Err(format!("`{{{name}}}`: an answer holds places of the request")),
            at => Ok(Piece::Place(at)),
        };
        let body = template::parse(spec.body.as_deref().unwrap_or_default(), &mut resolve);
        let body = self.found(&field("body"), body);
        Some(Challenge { method: method?, matches, status: status?, content_type: content_type?, body: body? })
    }
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

const BUILT_IN: [&str; 6] = ["body", "method", "url", "url_noquery", "path", "query"];

fn built_in(name: &str) -> Option<Piece> {
    Some(match name {
        "body" => Piece::Body,
        "method" => Piece::Method,
        "url" => Piece::Url,
        "url_noquery" => Piece::UrlWithoutQuery,
        "path" => Piece::Path,
        "query" => Piece::Query,
        _ => return None,
    })
}

/// Whether the signed bytes hold what stands at `at`.
fn covers(signed: &[Piece], vars: &[Var], at: &Locator) -> bool {
    if template::variables(signed).any(|index| vars[index].locator == *at) {
        return true;
    }
    match at {
        Locator::Json(..) | Locator::Form(_) => signed.contains(&Piece::Body),
        Locator::Query(_) => signed.contains(&Piece::Url) || signed.contains(&Piece::Query),
        // Items beside a signature are signed only as variables; the whole header cannot sign itself.
        Locator::Header(_) | Locator::Sig(_) => false,
    }
}
