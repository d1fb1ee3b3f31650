//! The fields of one alternative: each gets its meaning, or a problem that names it.

use super::{Compiler, TOLERANCE_SECONDS_MAX};
use crate::secret::Secret;
use crate::verify::check::{Alternative, Sig, Time, Unit, Var};
use crate::verify::key::{Algorithm, Encoding};
use crate::verify::locator::Locator;
use crate::verify::source::DedupRule;
use crate::verify::spec::{SchemeSpec, SigSpec};
use crate::verify::template::{self, Function, Piece};
use std::collections::BTreeMap;

const VARS_MAX: usize = 16;

impl Compiler {
    pub(super) fn alternative(
        &mut self,
        spec: &SchemeSpec,
        tolerance: Option<u64>,
        dedup: &DedupRule,
        secrets: &[Secret],
    ) -> Option<Alternative> {
        let before = self.problems.len();
        let verify = spec.verify.as_deref().ok_or_else(|| format!("is missing: use {}", Algorithm::NAMES));
        let algorithm = verify.and_then(|text| {
            Algorithm::parse(text).ok_or_else(|| format!("`{text}` is not known: use {}", Algorithm::NAMES))
        });
        let algorithm = self.found("verify", algorithm);
        let sig = self.sig(spec.sig.as_ref(), algorithm);
        let vars = self.vars(&spec.vars, spec.sig.as_ref());
        let signed = self.signed(spec.signed.as_deref(), &vars, algorithm);
        let emit = spec.emit.as_deref().and_then(|text| self.emit(text, spec.sig.as_ref(), &vars));
        let time = self.time(spec, tolerance, &vars, signed.as_deref());
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
        let challenges = self.challenges(spec, algorithm, secrets);
        if self.problems.len() > before {
            return None;
        }
        let (algorithm, signed) = (algorithm?, signed?);
        let covered = |at: &Locator| algorithm.is_token() || covers(&signed, &vars, at);
        let covers_body = covers_body(&signed);
        let covers_key = match dedup {
            // Without a place the key is the signed content, and the same request may have an id elsewhere.
            DedupRule::Scheme => !id.is_empty() && id.iter().all(covered),
            DedupRule::At(at) => covered(at),
            DedupRule::Body => algorithm.is_token() || covers_body,
            DedupRule::Never => true,
        };
        let var_at = |at: &Locator| vars.iter().position(|var| var.locator == *at);
        let id = id.into_iter().map(|at| (at.clone(), var_at(&at))).collect();
        Some(Alternative {
            algorithm,
            keys: Vec::new(),
            sig: sig?,
            covers_body,
            require: require.into_iter().map(|(at, literal)| (at, literal.into_bytes())).collect(),
            vars,
            signed,
            emit,
            time,
            id,
            id_is_word,
            event_type,
            signs_tokens: false,
            challenges,
            covers_key,
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
        let split = self.separator("sig.split", spec.split.as_deref());
        let pair = self.separator("sig.pair", spec.pair.as_deref());
        if spec.pair.is_some() && spec.take.is_empty() {
            self.problem("sig.take", "is missing: with `pair`, name the items that are signatures, such as `[\"v1\"]`");
        }
        if spec.pair.is_none() && !spec.take.is_empty() {
            self.problem("sig.take", "has no effect without `pair`: say what stands between name and value");
        }
        let encoding = match (spec.encoding.as_deref(), algorithm) {
            (Some(_), Some(Algorithm::Equal | Algorithm::Basic)) => {
                self.problem("sig.encoding", "has no effect, a token is compared as it stands: remove it");
                None
            }
            (None, Some(Algorithm::Equal | Algorithm::Basic) | None) => None,
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
            split,
            pair,
            take: spec.take.clone(),
            prefix: spec.prefix.clone().unwrap_or_default(),
            encoding,
        })
    }

    fn separator(&mut self, field: &str, text: Option<&str>) -> Option<u8> {
        match text?.as_bytes() {
            [one] => Some(*one),
            _ => {
                self.problem(field, "has to be one ASCII character, such as `,`: spaces around items need no mention");
                None
            }
        }
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
            if BUILT_IN.contains(&name.as_str()) || name == SIGNATURE {
                self.problem(&field, format!("`{name}` is built in: rename the variable"));
            }
            let optional = text.split(':').next().is_some_and(|kind| kind.ends_with('?'));
            let plain = if optional { text.replacen("?:", ":", 1) } else { text.clone() };
            let parsed = Locator::parse(&plain, &mut self.wanted);
            let Some(locator) = self.found(&field, parsed) else { continue };
            if matches!(locator, Locator::Sig(_)) && sig.is_none_or(|sig| sig.split.is_none() || sig.pair.is_none()) {
                let message =
                    "is an item of the signature header: say with `sig.split` and `sig.pair` how items are written";
                self.problem(&field, message);
            }
            vars.push(Var { name: name.clone(), locator, optional });
        }
        vars
    }

    fn signed(&mut self, text: Option<&str>, vars: &[Var], algorithm: Option<Algorithm>) -> Option<Vec<Piece>> {
        if algorithm.is_some_and(Algorithm::is_token) {
            if text.is_some() {
                self.problem("signed", "has no effect, a token signs nothing: remove it");
            }
            return Some(Vec::new());
        }
        let unknown = |name: &str| {
            let known = vars.iter().map(|var| var.name.as_str()).chain(BUILT_IN).collect::<Vec<_>>().join(", ");
            format!("`{{{name}}}` is not known: declare it in `vars`, or use one of {known}")
        };
        let plain = |name: &str| {
            let variable = || vars.iter().position(|v| v.name == name).map(Piece::Var);
            built_in(name).or_else(variable).ok_or_else(|| unknown(name))
        };
        let mut resolve = |name: &str| {
            let Some((name, function)) = name.split_once('|') else { return plain(name) };
            let inner = Box::new(plain(name)?);
            match (Function::parse(function), inner.as_ref()) {
                (
                    Some(function @ (Function::Sha256Hex | Function::Base64 | Function::Crc32)),
                    Piece::Body | Piece::Var(_),
                )
                | (Some(function @ Function::HubSpot), Piece::Url) => Ok(Piece::Call(function, inner)),
                _ => Err(format!(
                    "`{{{name}|{function}}}` is not known: use `sha256hex`, `base64` or `crc32` of the body or a variable, or \
                     `{{url|hubspot}}`"
                )),
            }
        };
        let pieces = template::parse(text.unwrap_or("{body}"), &mut resolve);
        let pieces = self.found("signed", pieces)?;
        for piece in &pieces {
            match piece.inner() {
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
                _ => {}
            }
        }
        let holds_key = template::flat(&pieces).any(|piece| *piece == Piece::Key);
        match algorithm {
            Some(algorithm) if algorithm.is_hash() && !holds_key => {
                self.problem("signed", "hashes no secret, so anybody can make it: put `{key}` where the secret stands");
            }
            Some(algorithm) if !algorithm.is_hash() && holds_key => {
                self.problem("signed", "holds `{key}`, which only a plain hash does: remove it");
            }
            _ => {}
        }
        let of_us = |piece: &Piece| matches!(piece, Piece::Literal(_) | Piece::Key);
        if text.is_some() && pieces.iter().all(of_us) {
            self.problem("signed", "covers nothing of the request: add `{body}`");
        }
        Some(pieces)
    }

    fn time(
        &mut self,
        spec: &SchemeSpec,
        tolerance: Option<u64>,
        vars: &[Var],
        signed: Option<&[Piece]>,
    ) -> Option<Time> {
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
            let known = vars.iter().map(|var| format!("`{}`", var.name)).collect::<Vec<_>>().join(", ");
            let known = if known.is_empty() { known } else { format!(", or use one of {known}") };
            self.problem("time.var", format!("`{}` is not a variable: declare it in `vars`{known}", time.var));
            return None;
        };
        if vars[var].optional {
            self.problem("time.var", "may be absent, and without it the window is open: remove the `?` in `vars`");
        } else if signed.is_some_and(|signed| !covers(signed, vars, &vars[var].locator)) {
            self.problem("time.var", "is not signed, so anybody can change it: use it in `signed`");
        }
        // More than a week was refused above.
        let seconds = tolerance.unwrap_or(time.tolerance).min(TOLERANCE_SECONDS_MAX);
        let tolerance_millis = i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1000);
        unit.map(|unit| Time { var, unit, tolerance_millis })
    }

    /// The items of the signature header; what stands for the signature comes after the variables.
    fn emit(&mut self, text: &str, sig: Option<&SigSpec>, vars: &[Var]) -> Option<Vec<Vec<Piece>>> {
        let mut resolve = |name: &str| match name {
            SIGNATURE => Ok(Piece::Var(vars.len())),
            _ => vars.iter().position(|v| v.name == name).map(Piece::Var).ok_or_else(|| {
                let known = vars.iter().map(|var| format!(", `{{{}}}`", var.name)).collect::<String>();
                format!("`{{{name}}}` is not known: use `{{sig}}`{known}, or declare it in `vars`")
            }),
        };
        let split = sig.and_then(|sig| sig.split.as_deref()).filter(|split| !split.is_empty());
        let items: Vec<&str> = split.map_or_else(|| vec![text], |split| text.split(split).collect());
        let items: Result<Vec<_>, String> = items.into_iter().map(|item| template::parse(item, &mut resolve)).collect();
        let items = self.found("emit", items)?;
        if !items.iter().any(|item| template::variables(item).any(|index| index == vars.len())) {
            self.problem("emit", "holds no signature: put `{sig}` where it stands");
        }
        Some(items)
    }
}

const BUILT_IN: [&str; 7] = ["body", "method", "url", "url_noquery", "path", "query", "key"];
/// What stands for the signature in `emit`.
const SIGNATURE: &str = "sig";

fn built_in(name: &str) -> Option<Piece> {
    Some(match name {
        "body" => Piece::Body,
        "method" => Piece::Method,
        "url" => Piece::Url,
        "url_noquery" => Piece::UrlWithoutQuery,
        "path" => Piece::Path,
        "query" => Piece::Query,
        "key" => Piece::Key,
        _ => return None,
    })
}

/// Whether the signed bytes hold the body, or what can only be of it. A CRC-32 is none.
fn covers_body(signed: &[Piece]) -> bool {
    let body = |piece: &Piece| match piece {
        Piece::Call(Function::Sha256Hex | Function::Base64, inner) => **inner == Piece::Body,
        piece => *piece == Piece::Body,
    };
    signed.iter().any(body)
}

/// Whether the signed bytes hold what stands at `at`, whenever something stands there.
fn covers(signed: &[Piece], vars: &[Var], at: &Locator) -> bool {
    let here = |index: usize| vars[index].locator == *at;
    let holds = |piece: &Piece| match piece {
        // A group vanishes with another variable in it, too.
        Piece::Group(group) => {
            template::variables(group).any(here)
                && !template::variables(group).any(|index| vars[index].optional && !here(index))
        }
        Piece::Var(index) => here(*index),
        Piece::Call(Function::Sha256Hex | Function::Base64, inner) => {
            matches!(**inner, Piece::Var(index) if here(index))
        }
        _ => false,
    };
    if signed.iter().any(holds) {
        return true;
    }
    let url = |piece: &Piece| matches!(piece.inner(), Piece::Url | Piece::Query);
    match at {
        Locator::Json(..) | Locator::Form(_) => covers_body(signed),
        Locator::Query(_) => signed.iter().any(url),
        // Items beside a signature are signed only as variables; the whole header cannot sign itself.
        Locator::Header(..) | Locator::Sig(_) => false,
    }
}
