//! What a built-in scheme is, for people who choose one or wonder about it: read from its data.

use super::builtin::PREFIX;
use super::schemes;
use super::spec::{SchemeSpec, SigSpec};
use serde::Serialize;

/// One scheme.
#[derive(Clone, Debug, Serialize)]
pub struct Description {
    pub name: &'static str,
    /// Where the provider says so.
    pub links: Vec<&'static str>,
    /// What its file says besides.
    pub notes: Vec<String>,
    /// The ways in which its requests may be signed.
    pub ways: Vec<Way>,
    /// Requests that are answered and are no events.
    pub handshakes: Vec<String>,
    /// What tells two events from a repetition.
    pub dedup: String,
    pub pitfalls: Vec<String>,
    /// A source that uses it, for the file.
    pub example: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct Way {
    /// What selects it, where there are several.
    pub when: Vec<String>,
    pub algorithm: String,
    /// How a secret's text becomes the key.
    pub key: String,
    /// Where the signature stands: any of these.
    pub signature: Vec<String>,
    /// What stands there, in words.
    pub form: String,
    /// The template of the signed bytes; empty: a token, which signs nothing. `None`: no template says it.
    pub signed: Option<String>,
    /// Seconds, both ways; `None`: no time is signed.
    pub window_seconds: Option<u64>,
    /// Where the event's id may stand; the first that is there counts.
    pub id: Vec<String>,
    /// `None`: there is no id, or no template that could hold it.
    pub id_is_signed: Option<bool>,
    #[serde(rename = "type")]
    pub event_type: Vec<String>,
}

/// Every built-in scheme, by name.
pub fn all() -> impl Iterator<Item = Description> {
    schemes::names().filter_map(of)
}

/// `None`: there is no such scheme.
pub fn of(name: &str) -> Option<Description> {
    let spec = schemes::builtin(name)?;
    let name = schemes::names().find(|known| *known == name)?;
    let (links, lines): (Vec<_>, Vec<&str>) = schemes::comments(name).partition(|line| line.starts_with("https://"));
    let ways: Vec<Way> = spec.expanded().iter().map(way).collect();
    let handshakes = spec.expanded().iter().flat_map(handshakes).collect::<std::collections::BTreeSet<_>>();
    let (dedup, pitfalls) = (dedup(&ways), pitfalls(&ways));
    let (notes, example) = (sentences(&lines), example(name, &spec));
    let handshakes = handshakes.into_iter().collect();
    Some(Description { name, links, notes, ways, handshakes, dedup, pitfalls, example })
}

fn example(name: &str, spec: &SchemeSpec) -> String {
    let variable = name.to_ascii_uppercase().replace('-', "_");
    let mut example = format!("[tenants.acme.sources.{name}]\nscheme = \"{name}\"\n");
    if !schemes::publishes_keys(name) && !spec.adopts() {
        example += &format!("secrets = [\"env:{variable}_SECRET\"]\n");
    }
    let settings: Vec<String> = schemes::usual(spec).map(|(name, value)| format!("{name} = {value}")).collect();
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
        self.signed.as_deref() == Some("")
    }
}

fn way(spec: &SchemeSpec) -> Way {
    let algorithm = spec.verify.clone().unwrap_or_default();
    let signed = match (algorithm.as_str(), &spec.signed) {
        ("equal" | "basic", _) => Some(String::new()),
        (_, Some(template)) => Some(template.clone()),
        (code, None) if code.starts_with(PREFIX) => None,
        (_, None) => Some("{body}".to_owned()),
    };
    let sig = spec.sig.clone().unwrap_or_default();
    Way {
        when: spec.when.clone(),
        key: if signed.is_some() { key(spec) } else { String::new() },
        form: form(&sig),
        signature: sig.at,
        window_seconds: spec.time.as_ref().map(|time| time.tolerance).filter(|seconds| *seconds > 0),
        id_is_signed: signed
            .as_deref()
            .filter(|template| !template.is_empty() && !spec.id.is_empty())
            .map(|template| spec.id.iter().all(|at| covers(spec, template, at))),
        id: spec.id.clone(),
        event_type: spec.event_type.clone(),
        algorithm,
        signed,
    }
}

fn key(spec: &SchemeSpec) -> String {
    let form = match spec.key.as_deref().unwrap_or("text") {
        "text" => "the secret's text as it stands".to_owned(),
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
    let told = |challenge: &super::spec::ChallengeSpec| {
        let matches = challenge.matches.iter().map(|(at, text)| match text.as_str() {
            "*" => at.clone(),
            text => format!("{at} = {text}"),
        });
        let checked = challenge.check.iter().map(|check| {
            format!("{} {}", check.at, if check.adopt { "as configured or adopted" } else { "as configured" })
        });
        let is_checked = |at: &String| challenge.check.as_ref().is_some_and(|check| check.at == *at);
        let echoed = challenge.headers.values().chain(&challenge.body).flat_map(|template| places(template));
        let echoed = echoed.filter(|at| !is_checked(at));
        let all: std::collections::BTreeSet<String> = matches.chain(checked).chain(echoed).collect();
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
    names
        .filter(|name| ["header:", "query:", "json:", "form:"].iter().any(|kind| name.starts_with(kind)))
        .map(str::to_owned)
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
    let places = |way: &Way| quoted(&way.id).replace(" or ", ", else ");
    let token = ways.iter().any(Way::is_token);
    match ways.iter().find(|way| !way.id.is_empty()) {
        Some(way) if token => format!("{}, taken at its word: a token signs nothing", places(way)),
        None if token => "nothing: a token signs nothing, and every request is new. Set `dedup`".to_owned(),
        Some(way) if ways.iter().all(|way| way.id_is_signed == Some(true)) => {
            format!("{}, which is signed", places(way))
        }
        Some(way) if ways.iter().any(|way| way.signed.is_none()) => {
            format!("{}, with a digest of the signed bytes beside it where it is not signed", places(way))
        }
        Some(way) => format!("{}, which is not signed, with a digest of the signed bytes beside it", places(way)),
        None => "a digest of the signed bytes".to_owned(),
    }
}

fn pitfalls(ways: &[Way]) -> Vec<String> {
    fn template(way: &Way) -> &str {
        way.signed.as_deref().unwrap_or_default()
    }
    let any = |what: fn(&Way) -> bool| ways.iter().any(what);
    let token = any(Way::is_token);
    let names = ["url", "url_noquery", "path", "query", "url|hubspot"];
    let url = ways.iter().any(|way| names.iter().any(|name| has(template(way), name)));
    let body = any(|way| !template(way).is_empty() && !template(way).contains("{body"));
    let found = [
        (token, "The token is the same in every request: whoever has seen one can write anything. Use TLS alone."),
        (
            !token && any(|way| way.window_seconds.is_none()),
            "No time is signed: a captured request stays valid for good, and only dedup tells that it came before.",
        ),
        (
            any(|way| way.id_is_signed == Some(false)),
            "The id is not signed: two events with the same signed bytes are taken for one, whatever their ids.",
        ),
        (
            any(|way| way.window_seconds.is_some_and(|seconds| seconds <= 60)),
            "The window is short: a proxy that holds requests back makes them too old. `tolerance` widens it.",
        ),
        (
            url,
            "The URL is signed: set `server.public_url` to what the provider calls, not to what a proxy makes of it.",
        ),
        (body, "The body is not signed, or not as a whole: what is in it is not proved."),
        (
            any(|way| way.key.starts_with("the secret's text") && !way.is_token()),
            "The secret is used as the provider shows it, prefix and all: nothing of it is decoded.",
        ),
    ];
    let mut told: Vec<String> =
        found.into_iter().filter(|(applies, _)| *applies).map(|(_, text)| text.to_owned()).collect();
    if any(|way| template(way).contains("{body")) {
        told.push(
            "The body is signed byte for byte: whatever parses, decompresses or rewrites it on the way breaks it."
                .to_owned(),
        );
    }
    told
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
            if scheme.ways.iter().any(|way| way.signed.is_none()) {
                continue;
            }
            let holds = |way: &Way| way.id_is_signed == Some(true) || (way.is_token() && !way.id.is_empty());
            let told =
                (scheme.ways.iter().all(holds), scheme.pitfalls.iter().any(|pitfall| pitfall.contains("public_url")));
            let is = (source.key_is_covered, source.signs_url());
            if told != is {
                differing.push(format!("{}: told {told:?}, is {is:?}", scheme.name));
            }
        }
        assert!(differing.is_empty(), "{}", differing.join("\n"));
        assert!(compiled >= 6, "{compiled}");
    }

    #[test]
    fn every_scheme_is_told_in_full() {
        for scheme in all() {
            assert!(!scheme.links.is_empty() && !scheme.ways.is_empty() && !scheme.dedup.is_empty(), "{scheme:?}");
            for way in &scheme.ways {
                assert!(!way.algorithm.is_empty(), "{}", scheme.name);
            }
        }
        assert!(of("nothing").is_none());
        assert_eq!(of("slack").unwrap().handshakes, ["POST with json:/challenge, json:/type = url_verification"]);
        assert_eq!(of("asana").unwrap().handshakes, ["POST with header:X-Hook-Secret as configured or adopted"]);
        assert_eq!(of("github").unwrap().notes.len(), 1);
        assert_eq!(sentences(&["One.", "Two", "goes on.", "Three."]), ["One.", "Two goes on.", "Three."]);
    }
}
