//! A source whose scheme is code: its settings and secrets, checked and handed to the built-in.

use super::Compiler;
use crate::secret::Secret;
use crate::verify::builtin::{BodyCover, Coded, Entry, Macs, PREFIX, ParamKind, SignedTime, entry};
use crate::verify::key::{Algorithm, Encoding, KeyForm};
use crate::verify::source::DedupRule;
use crate::verify::spec::{SchemeSpec, SourceSpec};
use serde_json::Value;

/// What a list in `params` may hold.
const LIST_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 2_048;

/// A built-in under construction.
pub(in crate::verify) struct Make<'c> {
    compiler: &'c mut Compiler,
    spec: &'c SourceSpec,
    entry: &'static Entry,
    secrets: &'c [Secret],
    tolerance_millis: Option<i64>,
    /// What is wrong with the secrets was said.
    told: bool,
}

/// The built-in that a scheme is checked by; the error is what is wrong with its name.
pub(super) fn named(scheme: &SchemeSpec) -> Option<Result<&'static Entry, String>> {
    let name = scheme.verify.as_deref()?.strip_prefix(PREFIX)?;
    Some(entry(name).ok_or_else(|| format!("there is no built-in `{name}`: name a scheme that has one")))
}

impl Compiler {
    /// The source's code, and whether the signature covers the dedup key.
    pub(super) fn code(
        &mut self,
        spec: &SourceSpec,
        (scheme, entry): (&SchemeSpec, &'static Entry),
        dedup: &DedupRule,
        secrets: &[Secret],
    ) -> Option<(Coded, bool)> {
        let before = self.problems.len();
        let described = [
            ("key", scheme.key.is_some()),
            ("key_strip", !scheme.key_strip.is_empty()),
            ("sig", scheme.sig.is_some()),
            ("vars", !scheme.vars.is_empty()),
            ("signed", scheme.signed.is_some()),
            ("require", !scheme.require.is_empty()),
            ("id_form", scheme.id_form.is_some()),
            ("when", !scheme.when.is_empty()),
            ("challenge", !scheme.challenge.is_empty()),
            ("alternatives", !scheme.alternatives.is_empty()),
        ];
        for (field, _) in described.into_iter().filter(|(_, there)| *there) {
            self.problem(field, "has no effect, a built-in brings its own: remove it");
        }
        self.check_params(spec, entry);
        let tolerance_millis = self.window(spec, scheme);
        let time = match (&scheme.time, tolerance_millis) {
            (None, _) => SignedTime::None,
            (Some(_), None) => SignedTime::Any,
            (Some(_), Some(_)) => SignedTime::Within,
        };
        let id = self.locators("id", &scheme.id);
        let event_type = self.locators("type", &scheme.event_type);
        let mut make = Make { compiler: self, spec, entry, secrets, tolerance_millis, told: false };
        let check = (entry.build)(&mut make);
        if self.problems.len() > before {
            return None;
        }
        let check = check?;
        if check.body() == BodyCover::Not {
            self.warnings.push("signed: the signature does not cover the body".to_owned());
        }
        let key_is_covered = match dedup {
            // An id that the code reads is signed; without any the signed content is the key.
            DedupRule::Scheme => id.iter().all(|at| check.covers(at)),
            DedupRule::At(at) => check.covers(at),
            DedupRule::Body => check.body() == BodyCover::Bytes,
            DedupRule::Never => true,
        };
        Some((Coded { check, secrets: secrets.len(), time, id, event_type }, key_is_covered))
    }

    fn check_params(&mut self, spec: &SourceSpec, entry: &'static Entry) {
        let names: Vec<&str> = entry.params.iter().map(|param| param.name).collect();
        for name in spec.params.keys().filter(|name| !names.contains(&name.as_str())) {
            let known = match names.as_slice() {
                [] => "the scheme has none".to_owned(),
                names => format!("the scheme has {}", names.join(", ")),
            };
            self.problem(&format!("params.{name}"), format!("is not known, {known}: remove it"));
        }
        for param in entry.params {
            let field = format!("params.{}", param.name);
            let fits = |text: &str| {
                !text.trim().is_empty() && text.len() <= TEXT_BYTES_MAX && !text.chars().any(char::is_control)
            };
            match (param.kind, spec.params.get(param.name)) {
                (ParamKind::OptionalText | ParamKind::UsualText | ParamKind::Switch, None)
                | (ParamKind::Switch, Some(Value::Bool(_))) => {}
                (ParamKind::Text | ParamKind::List, None) => {
                    self.problem(&field, format!("is missing: write e.g. {} = {}", param.name, param.written()));
                }
                (ParamKind::Text | ParamKind::OptionalText | ParamKind::UsualText, Some(Value::String(text)))
                    if fits(text) =>
                {
                    self.told(&field, (param.wrong)(text));
                }
                (ParamKind::Text | ParamKind::OptionalText | ParamKind::UsualText, Some(_)) => {
                    self.problem(&field, format!("has to be a text: write e.g. {}", param.written()));
                }
                (ParamKind::List, Some(Value::Array(all)))
                    if all.len() <= LIST_MAX && all.iter().all(|item| item.as_str().is_some_and(fits)) =>
                {
                    for (i, item) in all.iter().enumerate() {
                        let twice = || Some("stands here twice: remove one of the two".to_owned());
                        let wrong = if all[..i].contains(item) { twice() } else { item.as_str().and_then(param.wrong) };
                        self.told(&format!("{field}[{i}]"), wrong);
                    }
                }
                (ParamKind::Switch, Some(_)) => {
                    self.problem(&field, "is neither on nor off: write true without quotes, or leave it out");
                }
                (ParamKind::List, Some(_)) => {
                    let rule = format!("has to be a list of at most {LIST_MAX} texts");
                    self.problem(&field, format!("{rule}: write e.g. {}", param.written()));
                }
            }
        }
    }

    fn told(&mut self, field: &str, wrong: Option<String>) {
        if let Some(wrong) = wrong {
            self.problem(field, wrong);
        }
    }

    /// The window in milliseconds. A scheme that signs a time and has no window of its own says so with 0.
    fn window(&mut self, spec: &SourceSpec, scheme: &SchemeSpec) -> Option<i64> {
        let Some(time) = &scheme.time else {
            if spec.tolerance.is_some() {
                self.problem("tolerance", "has no effect, the scheme signs no timestamp: remove it");
            }
            return None;
        };
        if !time.var.is_empty() || !time.unit.is_empty() {
            self.problem("time", "has no effect but for its `tolerance`, a built-in knows its time: remove the rest");
        }
        let seconds = spec.tolerance.or((time.tolerance > 0).then_some(time.tolerance))?;
        self.check_tolerance("tolerance", seconds);
        i64::try_from(seconds).ok()?.checked_mul(1_000)
    }
}

impl Make<'_> {
    /// The secrets as keys of a message authentication code.
    pub(in crate::verify) fn macs(&mut self, algorithm: Algorithm, encoding: Encoding, form: KeyForm) -> Option<Macs> {
        let (plain, secrets) = (SchemeSpec::default(), self.secrets);
        let fresh = !std::mem::replace(&mut self.told, true);
        let key = |(number, secret)| self.compiler.key(number, secret, &plain, (algorithm, form), fresh);
        let keys: Option<Vec<_>> = secrets.iter().enumerate().map(key).collect();
        keys.map(|keys| Macs::new(algorithm, encoding, keys))
    }

    pub(in crate::verify) fn secrets(&self) -> &[Secret] {
        self.secrets
    }

    pub(in crate::verify) fn tolerance_millis(&self) -> Option<i64> {
        self.tolerance_millis
    }

    /// A text of `params`. One that is missing or of another kind was told already.
    pub(in crate::verify) fn text(&self, name: &str) -> Option<String> {
        debug_assert!(self.entry.params.iter().any(|param| param.name == name));
        self.spec.params.get(name).and_then(Value::as_str).map(str::to_owned)
    }

    pub(in crate::verify) fn is_on(&self, name: &str) -> bool {
        debug_assert!(self.entry.params.iter().any(|param| param.name == name));
        self.spec.params.get(name).and_then(Value::as_bool).unwrap_or_default()
    }

    pub(in crate::verify) fn list(&self, name: &str) -> Vec<String> {
        debug_assert!(self.entry.params.iter().any(|param| param.name == name));
        let all = self.spec.params.get(name).and_then(Value::as_array);
        all.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    }

    pub(in crate::verify) fn problem(&mut self, field: &str, message: impl Into<String>) {
        self.compiler.problem(field, message);
    }

    pub(in crate::verify) fn warn(&mut self, warning: impl Into<String>) {
        self.compiler.warnings.push(warning.into());
    }
}
