//! What a built-in scheme is, for people who choose one or wonder about it: read from its data, and where it is code,
//! from what the code says of itself and does with a sample of its settings.

use super::builtin::{BodyCover, Entry, ParamKind, TEXT_KEY};
use super::schemes;
use super::source::Source;
use super::spec::{ChallengeSpec, SchemeSpec, SigSpec, SourceSpec};
use crate::secret::Secret;
use http::HeaderMap;
use serde::Serialize;
use std::collections::BTreeSet;

/// One scheme.
#[derive(Clone, Debug, Serialize)]
pub struct Description {
    pub name: &'static str,
    /// Whether code checks it: then `signed` and some places are words.
    pub is_code: bool,
    /// Where the provider says so.
    pub links: Vec<&'static str>,
    /// What its file says besides.
    pub notes: Vec<String>,
    /// The ways in which its requests may be signed.
    pub ways: Vec<Way>,
    /// What a source says in `params`.
    pub settings: Vec<Setting>,
    /// Requests that are answered and are no events.
    pub handshakes: Vec<String>,
    /// What the provider wants to read in the answer to every event; empty: no answer of any kind has a body.
    pub receipt: Option<&'static str>,
    /// What tells two events from a repetition.
    pub dedup: String,
    pub pitfalls: Vec<String>,
    /// A source that uses it, for the file.
    pub example: String,
}

/// A scheme's own setting.
#[derive(Clone, Debug, Serialize)]
pub struct Setting {
    pub name: &'static str,
    pub about: &'static str,
    /// Whether no source can do without it.
    pub is_needed: bool,
    pub is_list: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct Way {
    /// What selects it, where there are several.
    pub when: Vec<String>,
    pub algorithm: String,
    /// How a secret's text becomes the key, or where the key stands.
    pub key: String,
    /// Where the signature stands: any of these.
    pub signature: Vec<String>,
    /// What stands there, in words.
    pub form: String,
    /// The signed bytes; empty: a token, which signs nothing.
    pub signed: String,
    pub covers: Cover,
    /// Where the signed time stands, and how it is written.
    pub time: Option<String>,
    /// Seconds, both ways; `None`: there is none unless `tolerance` sets it.
    pub window_seconds: Option<u64>,
    /// Where the event's id may stand; the first that is there counts.
    pub id: Vec<String>,
    /// `None`: there is no id.
    pub id_is_signed: Option<bool>,
    #[serde(rename = "type")]
    pub event_type: Vec<String>,
}

/// What of a request the signature proves.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cover {
    pub body: BodyCover,
    pub url: bool,
    /// Whether the source's settings may say something else: this is for those of the example.
    pub by_settings: bool,
}

/// Every built-in scheme, by name.
pub fn all() -> impl Iterator<Item = Description> {
    schemes::names().filter_map(of)
}

/// The schemes that have their signature in a header that is there.
pub fn by_headers(headers: &HeaderMap) -> Vec<&'static str> {
    let is_there = |at: &String| {
        let name = at.strip_prefix("header:").filter(|name| !name.eq_ignore_ascii_case("authorization"));
        name.is_some_and(|name| headers.contains_key(name))
    };
    all().filter(|scheme| scheme.ways.iter().flat_map(|way| &way.signature).any(is_there)).map(|s| s.name).collect()
}

/// `None`: there is no such scheme.
pub fn of(name: &str) -> Option<Description> {
    let spec = schemes::builtin(name)?;
    let name = schemes::names().find(|known| *known == name)?;
    let (links, lines): (Vec<_>, Vec<&str>) = schemes::comments(name).partition(|line| line.starts_with("https://"));
    let (notes, example) = (sentences(&lines), example(name, &spec));
    Some(Description { links, notes, example, ..described(name, &spec)? })
}

/// A source of the file: its scheme, with what the source says instead.
pub fn of_source(source: &SourceSpec) -> Option<Description> {
    let mut told = match &source.custom {
        Some(spec) => described(schemes::CUSTOM, spec)?,
        None => Description { example: String::new(), ..of(&source.scheme)? },
    };
    for way in told.ways.iter_mut().filter(|way| way.time.is_some()) {
        way.window_seconds = source.tolerance.or(way.window_seconds);
    }
    told.pitfalls = pitfalls(&told.ways);
    match source.dedup.as_deref() {
        None => {}
        Some("none") => told.dedup = "nothing: every request is a new event".to_owned(),
        Some("body") => told.dedup = "a digest of the body".to_owned(),
        Some(at) => told.dedup = format!("`{at}`"),
    }
    Some(told)
}

/// What is so by the scheme's data alone.
fn described(name: &'static str, spec: &SchemeSpec) -> Option<Description> {
    let entry = schemes::code(spec);
    let (ways, handshakes) = match entry {
        Some(entry) => {
            let handshakes = entry.about.handshakes.iter().map(|told| (*told).to_owned()).collect();
            (vec![coded(spec, entry, &sample(name, spec)?)], handshakes)
        }
        None => {
            let all: BTreeSet<String> = spec.expanded().iter().flat_map(handshakes).collect();
            (spec.expanded().iter().map(way).collect(), all.into_iter().collect())
        }
    };
    let settings = schemes::params(spec).map(|param| Setting {
        name: param.name,
        about: param.about,
        is_needed: param.is_needed(),
        is_list: param.kind == ParamKind::List,
    });
    Some(Description {
        name,
        is_code: entry.is_some(),
        links: Vec::new(),
        notes: Vec::new(),
        dedup: dedup(&ways),
        pitfalls: pitfalls(&ways),
        ways,
        settings: settings.collect(),
        handshakes,
        receipt: entry.and_then(|entry| entry.about.receipt).or(spec.answers.is_some().then_some("")),
        example: String::new(),
    })
}

/// A source of a scheme that is code, set up as in the example.
fn sample(name: &str, spec: &SchemeSpec) -> Option<Source> {
    let params = schemes::usual(spec).map(|param| (param.name.to_owned(), param.value())).collect();
    let source = SourceSpec { scheme: name.to_owned(), params, ..SourceSpec::default() };
    // Text, hexadecimal and base64, whichever is asked for.
    let secret = || Secret::new("0123456789abcdef0123456789abcdef");
    let secrets = if schemes::publishes_keys(name) { Vec::new() } else { vec![secret()] };
    source.compile(&"sample".parse().ok()?, &"sample".parse().ok()?, secrets).ok()
}

fn example(name: &str, spec: &SchemeSpec) -> String {
    let variable = name.to_ascii_uppercase().replace('-', "_");
    let mut example = format!("[tenants.acme.sources.{name}]\nscheme = \"{name}\"\n");
    if !schemes::publishes_keys(name) && !spec.adopts() {
        let challenges = spec.expanded().into_iter().flat_map(|spec| spec.challenge);
        let tokens: BTreeSet<String> = challenges.filter_map(|challenge| challenge.check?.key).collect();
        let tokens = tokens.iter().map(|prefix| format!(", \"{prefix}our-own-word\"")).collect::<String>();
        example += &format!("secrets = [\"env:{variable}_SECRET\"{tokens}]\n");
    }
    let settings: Vec<String> =
        schemes::usual(spec).map(|param| format!("{} = {}", param.name, param.written())).collect();
    if !settings.is_empty() {
        example += &format!("params = {{ {} }}\n", settings.join(", "));
    }
    example
}

/// Lines, with those together that go on in the next one.
fn sentences(lines: &[&str]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for line in lines {
        match all.last_mut().filter(|last| !last.ends_with('.')) {
            Some(last) => {
                last.push(' ');
                last.push_str(line);
            }
            None => all.push((*line).to_owned()),
        }
    }
    all
}

impl Way {
    fn is_token(&self) -> bool {
        self.signed.is_empty()
    }

    /// The id stands among signed values whose borders are not signed.
    pub fn id_is_loose(&self) -> bool {
        let in_body = |at: &String| at.starts_with("json:") || at.starts_with("form:");
        self.id_is_signed == Some(false) && self.covers.body == BodyCover::Meaning && self.id.iter().all(in_body)
    }
}

fn coded(spec: &SchemeSpec, entry: &Entry, source: &Source) -> Way {
    let about = &entry.about;
    let body = source.code.as_ref().map_or(BodyCover::Not, |code| code.check.body());
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let id = [owned(about.id), spec.id.clone()].concat();
    Way {
        when: Vec::new(),
        algorithm: about.algorithm.to_owned(),
        key: about.key.to_owned(),
        signature: owned(about.signature),
        form: about.form.to_owned(),
        signed: about.signed.to_owned(),
        covers: Cover { body, url: source.signs_url(), by_settings: about.covers_by_settings },
        time: about.time.map(str::to_owned),
        window_seconds: window(spec),
        id_is_signed: (!id.is_empty()).then_some(source.signs_key()),
        id,
        event_type: [owned(about.event_type), spec.event_type.clone()].concat(),
    }
}

fn window(spec: &SchemeSpec) -> Option<u64> {
    spec.time.as_ref().map(|time| time.tolerance).filter(|seconds| *seconds > 0)
}

fn way(spec: &SchemeSpec) -> Way {
    let algorithm = spec.verify.clone().unwrap_or_default();
    let signed = match (algorithm.as_str(), &spec.signed) {
        ("equal" | "basic", _) => String::new(),
        (_, Some(template)) => template.clone(),
        (_, None) => "{body}".to_owned(),
    };
    let body = ["body", "body|sha256hex", "body|base64"].iter().any(|name| has(&signed, name));
    let url = ["url", "url_noquery", "path", "query", "url|hubspot"].iter().any(|name| has(&signed, name));
    let time = spec.time.as_ref().map(|time| {
        let at = spec.vars.get(&time.var).map_or("", String::as_str);
        format!("{at} in {}", time.unit)
    });
    let sig = spec.sig.clone().unwrap_or_default();
    Way {
        when: spec.when.clone(),
        key: key(spec),
        form: form(&sig),
        signature: sig.at,
        covers: Cover { body: if body { BodyCover::Bytes } else { BodyCover::Not }, url, by_settings: false },
        time,
        window_seconds: window(spec),
        id_is_signed: (!signed.is_empty() && !spec.id.is_empty())
            .then(|| spec.id.iter().all(|at| covers(spec, &signed, at))),
        id: spec.id.clone(),
        event_type: spec.event_type.clone(),
        algorithm,
        signed,
    }
}

fn key(spec: &SchemeSpec) -> String {
    let form = match spec.key.as_deref().unwrap_or("text") {
        "text" => TEXT_KEY.to_owned(),
        "base64" => "the secret, decoded from base64".to_owned(),
        "hex" => "the secret, decoded from hexadecimal".to_owned(),
        other => format!("the secret as {other}"),
    };
    match spec.key_strip.as_slice() {
        [] => form,
        prefixes => format!("{form}, without a leading {}", quoted(prefixes)),
    }
}

/// How the signature is written, in words.
fn form(sig: &SigSpec) -> String {
    let mut words = Vec::new();
    words.extend(sig.encoding.clone());
    if let (Some(pair), false) = (&sig.pair, sig.take.is_empty()) {
        let names: Vec<String> = sig.take.iter().map(|name| format!("{name}{pair}…")).collect();
        words.push(format!("as {}", quoted(&names)));
    }
    if let Some(split) = &sig.split {
        let between = if split == " " { "spaces".to_owned() } else { format!("`{split}`") };
        words.push(format!("one or more between {between}"));
    }
    if let Some(prefix) = sig.prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
        words.push(format!("behind `{prefix}`"));
    }
    words.join(", ")
}

fn quoted(words: &[String]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or ")
}

fn handshakes(spec: &SchemeSpec) -> Vec<String> {
    let told = |challenge: &ChallengeSpec| {
        let matches = challenge.matches.iter().map(|(at, text)| match text.as_str() {
            "*" => at.clone(),
            text => format!("{at} = {text}"),
        });
        let whole = challenge.request_body.as_deref().map(|body| match body {
            "" => "no body".to_owned(),
            body => format!("the body {body}"),
        });
        let checked = challenge.check.iter().map(|check| {
            format!("{} {}", check.at, if check.adopt { "as configured or adopted" } else { "as configured" })
        });
        let is_checked = |at: &String| challenge.check.as_ref().is_some_and(|check| check.at == *at);
        let echoed = challenge.headers.values().chain(&challenge.body).flat_map(|template| places(template));
        let echoed = echoed.filter(|at| !is_checked(at));
        let all: BTreeSet<String> = matches.chain(whole).chain(checked).chain(echoed).collect();
        let all: Vec<String> = all.into_iter().collect();
        let method = challenge.method.as_deref().unwrap_or("POST");
        if all.is_empty() { method.to_owned() } else { format!("{method} with {}", all.join(", ")) }
    };
    spec.challenge.iter().map(told).collect()
}

/// The locators that a challenge's template reads.
fn places(template: &str) -> impl Iterator<Item = String> {
    let inner = template.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(inner, _)| inner);
    let names = inner.map(|inner| inner.split('|').next().unwrap_or(inner));
    names.filter(|name| is_locator(name)).map(str::to_owned)
}

fn is_locator(text: &str) -> bool {
    ["header:", "query:", "json:", "form:"].iter().any(|kind| text.starts_with(kind))
}

/// Whether the signed bytes hold what stands at `at`.
fn covers(spec: &SchemeSpec, signed: &str, at: &str) -> bool {
    let same = |locator: &str| locator.eq_ignore_ascii_case(at);
    let by_variable = spec.vars.iter().any(|(name, locator)| same(locator) && has(signed, name));
    match at.split_once(':') {
        Some(("json" | "form", _)) => by_variable || has(signed, "body"),
        Some(("query", _)) => by_variable || has(signed, "url") || has(signed, "query"),
        _ => by_variable,
    }
}

/// Whether the template has this variable, as it stands.
fn has(template: &str, name: &str) -> bool {
    template.contains(&format!("{{{name}}}"))
}

fn dedup(ways: &[Way]) -> String {
    let place = |at: &String| if is_locator(at) { format!("`{at}`") } else { at.clone() };
    let places = |way: &Way| way.id.iter().map(place).collect::<Vec<_>>().join(", else ");
    let token = ways.iter().any(Way::is_token);
    match ways.iter().find(|way| !way.id.is_empty()) {
        Some(way) if token => format!("{}, taken at its word: a token signs nothing", places(way)),
        None if token => "nothing: a token signs nothing, and every request is new. Set `dedup`".to_owned(),
        Some(way) if ways.iter().all(|way| way.id_is_signed == Some(true)) => {
            format!("{}, which is signed", places(way))
        }
        Some(way) if way.id_is_loose() => {
            let told = "which is signed, but not where it ends, with a digest of the signed bytes beside it";
            format!("{}, {told}", places(way))
        }
        Some(way) => format!("{}, which is not signed, with a digest of the signed bytes beside it", places(way)),
        None => "a digest of the signed bytes".to_owned(),
    }
}

fn pitfalls(ways: &[Way]) -> Vec<String> {
    let any = |what: fn(&Way) -> bool| ways.iter().any(what);
    let token = any(Way::is_token);
    let found = [
        (token, "The token is the same in every request: whoever has seen one can write anything. Use TLS alone."),
        (
            !token && any(|way| way.time.is_none()),
            "No time is signed: a captured request stays valid for good, and only dedup tells that it came before.",
        ),
        (
            any(|way| way.time.is_some() && way.window_seconds.is_none()),
            "A time is signed, but has no window: a captured request stays valid for good unless you set `tolerance`.",
        ),
        (
            any(Way::id_is_loose),
            "Where the id ends is not signed: two events with the same signed bytes are taken for one, whatever their ids.",
        ),
        (
            any(|way| way.id_is_signed == Some(false) && !way.id_is_loose()),
            "The id is not signed: two events with the same signed bytes are taken for one, whatever their ids.",
        ),
        (
            any(|way| way.window_seconds.is_some_and(|seconds| seconds <= 60)),
            "The window is short: a proxy that holds requests back makes them too old. `tolerance` widens it.",
        ),
        (
            any(|way| way.covers.url),
            "The URL is signed: set `server.public_url` to what the provider calls, not to what a proxy makes of it.",
        ),
        (
            any(|way| way.covers.body == BodyCover::Not && !way.is_token()),
            "The body is not signed, or not as a whole: what is in it is not proved.",
        ),
        (
            any(|way| way.key.starts_with(TEXT_KEY) && !way.is_token()),
            "The secret is used as the provider shows it, prefix and all: nothing of it is decoded.",
        ),
        (
            any(|way| way.covers.body == BodyCover::Bytes),
            "The body is signed byte for byte: whatever parses, decompresses or rewrites it on the way breaks it.",
        ),
    ];
    found.into_iter().filter(|(applies, _)| *applies).map(|(_, text)| text.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;
    use crate::verify::SourceSpec;

    /// What is told of the id is what the compiled scheme does.
    #[test]
    fn covered_ids_are_those_of_the_engine() {
        let (mut compiled, mut differing) = (0, Vec::new());
        for scheme in all() {
            let spec = SourceSpec { scheme: scheme.name.to_owned(), ..SourceSpec::default() };
            let secret = Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
            // Some schemes take a public key, which this is not.
            let Ok(source) = spec.compile(&"t".parse().unwrap(), &"s".parse().unwrap(), vec![secret]) else { continue };
            compiled += 1;
            let any = |what: fn(&Way) -> bool| scheme.ways.iter().any(what);
            let unproved = |way: &Way| way.covers.body == BodyCover::Not && !way.is_token();
            // Without an id the signed bytes are the key, and a token signs none.
            let told = (any(|way| way.id_is_signed == Some(false)), any(|way| way.covers.url), any(unproved));
            let unsigned = source.warnings().iter().any(|warning| warning.starts_with("signed: "));
            let has_id = any(|way| !way.id.is_empty()) && !any(Way::is_token);
            let is = (has_id && !source.key_is_covered, source.signs_url(), unsigned);
            if told != is {
                differing.push(format!("{}: told {told:?}, is {is:?}", scheme.name));
            }
        }
        assert!(differing.is_empty(), "{}", differing.join("\n"));
        assert!(compiled >= 80, "{compiled}");
    }

    #[test]
    fn every_scheme_is_told_in_full() {
        for scheme in all() {
            assert!(!scheme.links.is_empty() && !scheme.ways.is_empty() && !scheme.dedup.is_empty(), "{scheme:?}");
            for way in &scheme.ways {
                assert!(!way.algorithm.is_empty() && !way.algorithm.contains(':'), "{}", scheme.name);
                assert!(!way.key.is_empty() && !way.signature.is_empty(), "{}", scheme.name);
                assert!(way.is_token() || !way.form.is_empty(), "{}", scheme.name);
                assert!(way.time.is_some() || way.window_seconds.is_none(), "{}", scheme.name);
            }
        }
        assert!(of("nothing").is_none());
        assert_eq!(of("slack").unwrap().handshakes, ["POST with json:/challenge, json:/type = url_verification"]);
        assert_eq!(of("asana").unwrap().handshakes, ["POST with header:X-Hook-Secret as configured or adopted"]);
        assert_eq!(of("github").unwrap().notes.len(), 1);
        assert_eq!(sentences(&["One.", "Two", "goes on.", "Three."]), ["One.", "Two goes on.", "Three."]);
    }
}
