//! The fields of one alternative: each gets its meaning, or a problem that names it.

use super::{Compiler, TOLERANCE_SECONDS_MAX};
use crate::verify::check::{Alternative, Challenge, Sig, Time, Unit, Var};
use crate::verify::key::{Algorithm, Encoding};
use crate::verify::locator::Locator;
use crate::verify::source::DedupRule;
use crate::verify::spec::{ChallengeSpec, SchemeSpec, SigSpec};
use crate::verify::template::{self, Piece};
use http::{HeaderValue, Method, StatusCode};
use std::collections::BTreeMap;

const VARS_MAX: usize = 16;

impl Compiler {
    pub(super) fn alternative(
        &mut self,
        spec: &SchemeSpec,
        tolerance: Option<u64>,
        dedup: &DedupRule,
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
        let challenges = spec.challenge.iter().enumerate().filter_map(|(i, c)| self.challenge(i, c)).collect();
        if self.problems.len() > before {
            return None;
        }
        let (algorithm, signed) = (algorithm?, signed?);
        let covered = |at: &Locator| algorithm == Algorithm::Equal || covers(&signed, &vars, at);
        let covers_body = signed.contains(&Piece::Body);
        let covers_key = match dedup {
            // Without a place the key is the signed content, and the same request may have an id elsewhere.
            DedupRule::Scheme => !id.is_empty() && id.iter().all(covered),
            DedupRule::At(at) => covered(at),
            DedupRule::Body => algorithm == Algorithm::Equal || covers_body,
            DedupRule::Never => true,
        };
        Some(Alternative {
            algorithm,
            keys: Vec::new(),
            sig: sig?,
            covers_body,
            require: require.into_iter().map(|(at, literal)| (at, literal.into_bytes())).collect(),
            vars,
            signed,
            time,
            id,
            id_is_word,
            event_type,
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
            split,
            pair,
            take: spec.take.clone(),
            prefix: spec.prefix.clone().unwrap_or_default(),
            encoding,
        })
    }

    fn separator(&mut self, field: &str, text: Option<&str>) -> Option<char> {
        let mut chars = text?.chars();
        match (chars.next(), chars.next()) {
            (Some(one), None) if one.is_ascii() => Some(one),
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
            if BUILT_IN.contains(&name.as_str()) {
                self.problem(&field, format!("`{name}` is built in: rename the variable"));
            }
            let optional = text.split(':').next().is_some_and(|kind| kind.ends_with('?'));
            let plain = if optional { text.replacen("?:", ":", 1) } else { text.clone() };
            let parsed = Locator::parse(&plain, &mut self.pointers);
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
        if algorithm == Some(Algorithm::Equal) {
            if text.is_some() {
                self.problem("signed", "has no effect, a token signs nothing: remove it");
            }
            return Some(Vec::new());
        }
        let mut resolve = |name: &str| {
            built_in(name).or_else(|| vars.iter().position(|v| v.name == name).map(Piece::Var)).ok_or_else(|| {
                format!("`{{{name}}}` is not known: declare it in `vars`, or use one of {}", BUILT_IN.join(", "))
            })
        };
        let pieces = template::parse(text.unwrap_or("{body}"), &mut resolve);
        let pieces = self.found("signed", pieces)?;
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
            self.problem("time.var", format!("`{}` is not a variable: declare it in `vars`", time.var));
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

/// Whether the signed bytes hold what stands at `at`, whenever something stands there.
fn covers(signed: &[Piece], vars: &[Var], at: &Locator) -> bool {
    let here = |index: usize| vars[index].locator == *at;
    // A group vanishes with another variable in it, too.
    let sure = |piece: &Piece| match piece {
        Piece::Group(group) => !template::variables(group).any(|index| vars[index].optional && !here(index)),
        Piece::Literal(_)
        | Piece::Body
        | Piece::Method
        | Piece::Url
        | Piece::UrlWithoutQuery
        | Piece::Path
        | Piece::Query
        | Piece::Var(_)
        | Piece::Place(_) => true,
    };
    if signed.iter().any(|piece| sure(piece) && template::variables(std::slice::from_ref(piece)).any(here)) {
        return true;
    }
    match at {
        Locator::Json(..) | Locator::Form(_) => signed.contains(&Piece::Body),
        Locator::Query(_) => signed.contains(&Piece::Url) || signed.contains(&Piece::Query),
        // Items beside a signature are signed only as variables; the whole header cannot sign itself.
        Locator::Header(_) | Locator::Sig(_) => false,
    }
}
