//! What two versions make of the same thing, and where the two differ. Pure: nothing in here calls a plugin.
//!
//! What is not known of a side is never a difference: of a recorded attempt not everything was kept.

use crate::delivery::{Fault, KeptBody, Measured, PauseScope, Verdict};
use crate::secret::{names_a_secret, parameter_names_a_secret, with_parameters};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use similar::TextDiff;
use std::collections::{BTreeMap, BTreeSet};

/// Bodies up to here are shown line by line.
const TEXT_BYTES_MAX: usize = 256 << 10;
const TEXT_LINES_MAX: usize = 2_000;
/// What is shown of one difference between bodies.
const DIFF_BYTES_MAX: usize = 16 << 10;
/// What stands for the value of a header that may be a credential.
const WITHHELD: &str = "(withheld)";

/// A part of one side.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Told<T> {
    #[default]
    Unknown,
    Known(Option<T>),
}

impl<T> Told<T> {
    fn is_unknown(&self) -> bool {
        matches!(self, Told::Unknown)
    }

    fn differs(&self, other: &Self) -> bool
    where
        T: PartialEq,
    {
        matches!((self, other), (Told::Known(one), Told::Known(another)) if one != another)
    }
}

impl<T: Serialize> Serialize for Told<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Told::Known(Some(value)) => value.serialize(serializer),
            Told::Known(None) | Told::Unknown => serializer.serialize_none(),
        }
    }
}

/// What a version, or the record, makes of an outcome. An unknown part is not in its JSON.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Ruling {
    /// That of [`Verdict::as_str`], or `fault`.
    pub verdict: &'static str,
    #[serde(skip_serializing_if = "Told::is_unknown")]
    pub reason: Told<String>,
    #[serde(skip_serializing_if = "Told::is_unknown")]
    pub after_ms: Told<u64>,
    #[serde(skip_serializing_if = "Told::is_unknown")]
    pub scope: Told<&'static str>,
    #[serde(skip_serializing_if = "Told::is_unknown")]
    pub reference: Told<String>,
    /// Of a fault, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// What the endpoint makes of a fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stands_in: Option<&'static str>,
}

pub const FAULT: &str = "fault";

impl Ruling {
    /// `otherwise`: the reason that an attempt is given where the verdict has none.
    pub fn of(verdict: &Verdict, otherwise: &str) -> Self {
        let mut ruling = Ruling {
            verdict: verdict.as_str(),
            reason: Told::Unknown,
            after_ms: Told::Known(None),
            scope: Told::Known(None),
            reference: Told::Known(None),
            detail: None,
            stands_in: None,
        };
        let reason = match verdict {
            Verdict::Delivered { reference, reason } => {
                ruling.reference = Told::Known(reference.clone());
                reason.as_ref()
            }
            Verdict::Retryable(hint) => {
                let millis = |after: std::time::Duration| u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                ruling.after_ms = Told::Known(hint.after.map(millis));
                ruling.scope = Told::Known(Some(match hint.scope {
                    PauseScope::Delivery => "delivery",
                    PauseScope::Endpoint => "endpoint",
                }));
                Some(&hint.reason)
            }
            Verdict::Terminal(reason) => Some(reason),
        };
        ruling.reason = Told::Known(Some(reason.map_or(otherwise, |reason| reason.as_str()).to_owned()));
        ruling
    }

    pub fn of_fault(fault: &Fault, stands_in: Option<&'static str>) -> Self {
        Ruling {
            verdict: FAULT,
            reason: Told::Known(Some(fault.kind.as_str().to_owned())),
            after_ms: Told::Unknown,
            scope: Told::Unknown,
            reference: Told::Unknown,
            detail: Some(fault.detail.clone()),
            stands_in,
        }
    }

    /// The parts in which the two differ, as they are called in the JSON; none: they are the same.
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        let parts = [
            ("verdict", self.verdict != other.verdict),
            ("reason", self.reason.differs(&other.reason)),
            ("after_ms", self.after_ms.differs(&other.after_ms)),
            ("scope", self.scope.differs(&other.scope)),
            ("reference", self.reference.differs(&other.reference)),
        ];
        parts.into_iter().filter(|(_, differs)| *differs).map(|(part, _)| part).collect()
    }
}

/// What is made of an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Making {
    Send(Request),
    Skip(String),
    /// The kind and the detail, as far as they are known.
    Fault(Told<&'static str>, String),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    pub method: String,
    /// `None`: the endpoint's own.
    pub path_and_query: Option<String>,
    /// Those that a plugin set; names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: KeptBody,
}

impl Making {
    /// What is sent where there is no `transform`.
    pub fn as_it_came(body: Bytes) -> Self {
        let body = KeptBody::Whole(body);
        Making::Send(Request { method: "POST".to_owned(), path_and_query: None, headers: Vec::new(), body })
    }

    pub const fn as_str(&self) -> &'static str {
        match self {
            Making::Send(_) => "send",
            Making::Skip(_) => "skip",
            Making::Fault(..) => FAULT,
        }
    }

    /// What is different in `after`, as JSON: `changed` names the parts. `None`: nothing is.
    pub fn difference(&self, after: &Making) -> Option<Value> {
        match (self, after) {
            (Making::Send(before), Making::Send(after)) => before.difference(after),
            (Making::Skip(before), Making::Skip(after)) if before == after => None,
            (Making::Fault(before, _), Making::Fault(after, _)) if !before.differs(after) => None,
            (Making::Skip(_), Making::Skip(_)) => Some(self.beside(after, &["reason"])),
            (Making::Fault(..), Making::Fault(..)) => Some(self.beside(after, &["kind"])),
            (_, _) => Some(self.beside(after, &["request"])),
        }
    }

    fn beside(&self, after: &Making, changed: &[&str]) -> Value {
        json!({ "changed": changed, "before": self.summary(), "after": after.summary() })
    }

    fn summary(&self) -> Value {
        match self {
            Making::Send(request) => json!({ "send": request.summary() }),
            Making::Skip(reason) => json!({ "skip": { "reason": reason } }),
            Making::Fault(kind, detail) => json!({ FAULT: { "kind": kind, "detail": detail } }),
        }
    }
}

impl Request {
    fn by_name(&self) -> BTreeMap<&str, Vec<&str>> {
        let mut all: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, value) in &self.headers {
            all.entry(name).or_default().push(value);
        }
        all
    }

    /// Without its body, whose size and digest stand for it.
    fn summary(&self) -> Value {
        let headers = self.by_name();
        let headers: Map<_, _> =
            headers.iter().map(|(name, values)| ((*name).to_owned(), shown(name, values))).collect();
        let path = self.path_and_query.as_deref().map(without_secrets);
        json!({ "method": self.method, "path": path, "headers": headers, "body": measured(self.body.measured()) })
    }

    fn difference(&self, after: &Request) -> Option<Value> {
        let (mut changed, mut parts) = (Vec::new(), Map::new());
        let mut note = |part: &'static str, told: Value| {
            changed.push(part);
            parts.insert(part.to_owned(), told);
        };
        if self.method != after.method {
            note("method", json!({ "before": self.method, "after": after.method }));
        }
        if self.path_and_query != after.path_and_query {
            let side = |request: &Request| request.path_and_query.as_deref().map(without_secrets);
            note("path", json!({ "before": side(self), "after": side(after) }));
        }
        let headers = header_differences(&self.by_name(), &after.by_name());
        if !headers.is_empty() {
            note("headers", headers.into());
        }
        if self.body != after.body {
            note("body", body_difference(&self.body, &after.body));
        }
        if changed.is_empty() {
            return None;
        }
        parts.insert("changed".to_owned(), changed.into());
        Some(parts.into())
    }
}

fn header_differences(before: &BTreeMap<&str, Vec<&str>>, after: &BTreeMap<&str, Vec<&str>>) -> Vec<Value> {
    let names: BTreeSet<&str> = before.keys().chain(after.keys()).copied().collect();
    let differ = names.into_iter().filter(|name| before.get(name) != after.get(name));
    let side = |of: &BTreeMap<&str, Vec<&str>>, name| of.get(name).map(|values| shown(name, values));
    differ.map(|name| json!({ "name": name, "before": side(before, name), "after": side(after, name) })).collect()
}

fn shown(name: &str, values: &[&str]) -> Value {
    match values {
        _ if names_a_secret(name) => json!(WITHHELD),
        [one] => json!(one),
        many => json!(many),
    }
}

/// A path whose query may hold credentials: without them.
pub fn without_secrets(path_and_query: &str) -> String {
    let Some((path, query)) = path_and_query.split_once('?') else { return path_and_query.to_owned() };
    format!("{path}?{}", with_parameters(query, parameter_names_a_secret, |_| WITHHELD.to_owned()))
}

fn measured(body: Measured) -> Value {
    json!({ "bytes": body.bytes, "sha256": hex::encode(body.sha256) })
}

/// Line by line where both are text of a size to be read, JSON a member a line; else sizes and digests.
fn body_difference(before: &KeptBody, after: &KeptBody) -> Value {
    let mut told = json!({ "before": measured(before.measured()), "after": measured(after.measured()) });
    let (Some(before), Some(after)) = (before.whole(), after.whole()) else {
        told["kind"] = json!("large");
        return told;
    };
    let (Some(mut one), Some(mut another)) = (readable(before), readable(after)) else {
        told["kind"] = json!("binary");
        return told;
    };
    told["kind"] = json!("text");
    if let (Some(first), Some(second)) = (laid_out(&one), laid_out(&another)) {
        told["kind"] = json!("json");
        // Where they differ in white space alone, that is what is shown.
        if first != second {
            (one, another) = (first, second);
        }
    }
    if one.lines().count() > TEXT_LINES_MAX || another.lines().count() > TEXT_LINES_MAX {
        told["kind"] = json!("large");
        return told;
    }
    let diff = TextDiff::from_lines(&one, &another).unified_diff().context_radius(3).to_string();
    let end = (0..=diff.len().min(DIFF_BYTES_MAX)).rev().find(|at| diff.is_char_boundary(*at)).unwrap_or(0);
    told["diff"] = json!(diff[..end]);
    told["diff_truncated"] = json!(end < diff.len());
    told
}

fn readable(body: &[u8]) -> Option<String> {
    let fits = body.len() <= TEXT_BYTES_MAX && !body.contains(&0);
    let text = std::str::from_utf8(body).ok().filter(|_| fits)?;
    Some(if text.is_empty() || text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") })
}

/// A JSON text with a member or item a line; its tokens, their order and their form stay. `None`: it is not JSON.
pub fn laid_out(json: &str) -> Option<String> {
    serde_json::from_str::<serde::de::IgnoredAny>(json).ok()?;
    let mut out = String::with_capacity(json.len() * 2);
    let (mut depth, mut quoted, mut escaped) = (0usize, false, false);
    let mut before = ' ';
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", depth));
    };
    for c in json.chars() {
        if quoted {
            quoted = escaped || c != '"';
            escaped = !escaped && c == '\\';
            out.push(c);
            continue;
        }
        if c.is_ascii_whitespace() {
            continue;
        }
        let opens = matches!(before, '{' | '[');
        match c {
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                if !opens {
                    line(&mut out, depth);
                }
            }
            _ if opens || before == ',' => line(&mut out, depth),
            _ if before == ':' => out.push(' '),
            _ => {}
        }
        depth += usize::from(matches!(c, '{' | '['));
        quoted = c == '"';
        out.push(c);
        before = c;
    }
    out.push('\n');
    Some(out)
}

/// A body as a document has it: text where it is text, else base64.
pub fn written(body: &[u8]) -> (&'static str, Value) {
    match std::str::from_utf8(body) {
        Ok(text) => ("body", json!(text)),
        Err(_) => ("body_base64", json!(STANDARD.encode(body))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::{FaultKind, Reason, RetryHint};
    use std::time::Duration;

    fn retry(reason: &'static str, after: Option<u64>, scope: PauseScope) -> Verdict {
        Verdict::Retryable(RetryHint { reason: Reason::word(reason), after: after.map(Duration::from_millis), scope })
    }

    fn delivered(reference: Option<&str>, reason: Option<&'static str>) -> Verdict {
        Verdict::Delivered { reference: reference.map(Into::into), reason: reason.map(Reason::word) }
    }

    #[test]
    fn verdicts_differ_in_what_is_known_of_both() {
        use PauseScope::{Delivery, Endpoint};
        type Case = (Verdict, Verdict, &'static [&'static str]);
        let terminal = |word| Verdict::Terminal(Reason::word(word));
        let cases: [Case; 11] = [
            (terminal("a"), terminal("a"), &[]),
            (terminal("a"), terminal("b"), &["reason"]),
            (retry("a", None, Delivery), terminal("a"), &["verdict", "scope"]),
            (retry("a", None, Delivery), retry("a", None, Delivery), &[]),
            (retry("a", None, Delivery), retry("a", Some(0), Delivery), &["after_ms"]),
            (retry("a", Some(1), Delivery), retry("b", Some(2), Endpoint), &["reason", "after_ms", "scope"]),
            (delivered(None, None), delivered(None, Some("http_200")), &[]),
            (delivered(None, None), delivered(None, Some("queued")), &["reason"]),
            (delivered(Some("SM1"), None), delivered(Some("SM1"), None), &[]),
            (delivered(Some("SM1"), None), delivered(None, None), &["reference"]),
            (delivered(None, None), terminal("http_200"), &["verdict"]),
        ];
        for (before, after, parts) in cases {
            let (one, another) = (Ruling::of(&before, "http_200"), Ruling::of(&after, "http_200"));
            assert_eq!(one.differences(&another), parts, "{before:?} {after:?}");
            assert_eq!(another.differences(&one), parts, "{before:?} {after:?}");
        }
        let full = Ruling::of(&retry("a", Some(5), Endpoint), "x");
        let kept = Ruling { after_ms: Told::Unknown, scope: Told::Unknown, ..full.clone() };
        assert_eq!(kept.differences(&full), [""; 0]);
        assert_eq!(json!(kept), json!({"verdict": "retryable", "reason": "a", "reference": null}));
        assert_eq!(json!(full)["after_ms"], 5);
    }

    #[test]
    fn faults_differ_in_their_kind() {
        let fault = |kind, detail: &str| Ruling::of_fault(&Fault { kind, detail: detail.into() }, Some("retryable"));
        let trap = fault(FaultKind::Trap, "one");
        assert_eq!(trap.differences(&fault(FaultKind::Trap, "another")), [""; 0]);
        assert_eq!(trap.differences(&fault(FaultKind::Memory, "one")), ["reason"]);
        let terminal = Ruling::of(&Verdict::Terminal(Reason::word("trap")), "");
        assert_eq!(trap.differences(&terminal), ["verdict"]);
    }

    fn request(method: &str, path: Option<&str>, headers: &[(&str, &str)], body: &[u8]) -> Making {
        Making::Send(Request {
            method: method.into(),
            path_and_query: path.map(Into::into),
            headers: headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            body: KeptBody::Whole(Bytes::copy_from_slice(body)),
        })
    }

    #[test]
    fn requests_differ_part_by_part() {
        let base = request("POST", Some("/a"), &[("x", "1"), ("y", "1"), ("y", "2")], b"b");
        let fault = |kind| Making::Fault(kind, "detail".into());
        let trap = Told::Known(Some("trap"));
        let cases = [
            (request("POST", Some("/a"), &[("y", "1"), ("x", "1"), ("y", "2")], b"b"), json!(null)),
            (request("PUT", Some("/a"), &[("x", "1"), ("y", "1"), ("y", "2")], b"b"), json!(["method"])),
            (request("POST", None, &[("x", "1"), ("y", "1"), ("y", "2")], b"b"), json!(["path"])),
            (request("POST", Some("/a"), &[("x", "1"), ("y", "2"), ("y", "1")], b"c"), json!(["headers", "body"])),
            (Making::Skip("test".into()), json!(["request"])),
            (fault(trap.clone()), json!(["request"])),
        ];
        for (after, changed) in cases {
            let told = base.difference(&after).map_or(Value::Null, |told| told["changed"].clone());
            assert_eq!(told, changed, "{after:?}");
        }
        let skip = Making::Skip("test".into());
        assert_eq!(skip.difference(&Making::Skip("test".into())), None);
        assert_eq!(skip.difference(&Making::Skip("other".into())).unwrap()["changed"], json!(["reason"]));
        assert_eq!(fault(Told::Unknown).difference(&fault(trap.clone())), None);
        assert_eq!(
            fault(trap.clone()).difference(&fault(Told::Known(Some("plugin")))).unwrap()["changed"],
            json!(["kind"])
        );
    }

    #[test]
    fn credentials_are_seen_to_change_and_not_shown() {
        let with = |value| request("POST", Some(value), &[("authorization", value), ("x-api-key", value)], b"");
        let (one, another) = (with("/a?token=s3cret-1&b=2&sig=s3cret"), with("/a?token=s3cret-2&b=2&sig=s3cret"));
        let told = one.difference(&another).unwrap();
        assert_eq!(told["changed"], json!(["path", "headers"]));
        assert_eq!(told["headers"][0], json!({"name": "authorization", "before": WITHHELD, "after": WITHHELD}));
        assert_eq!(told["path"]["before"], "/a?token=(withheld)&b=2&sig=(withheld)");
        assert!(!told.to_string().contains("s3cret"), "{told}");
        let whole = one.difference(&Making::Skip("x".into())).unwrap().to_string();
        assert!(!whole.contains("s3cret"), "{whole}");
    }

    #[test]
    fn bodies_are_shown_as_what_they_are() {
        let kept = |body: &[u8]| KeptBody::of(&Bytes::copy_from_slice(body));
        let body = |before: &[u8], after: &[u8]| body_difference(&kept(before), &kept(after));
        let json = body(br#"{"to":"a","n":[1.0,{}],"s":"x, {\"y\""}"#, br#"{"to":"b","n":[1.0,{}],"s":"x, {\"y\""}"#);
        assert_eq!(json["kind"], "json");
        let diff = json["diff"].as_str().unwrap();
        assert!(diff.contains("\n-  \"to\": \"a\",\n+  \"to\": \"b\",\n   \"n\": [\n     1.0,\n     {}\n"), "{diff}");
        let laid = "[\n  1.0,\n  {},\n  {\n    \"s\": \"x, {\\\"y\\\"\"\n  }\n]\n";
        assert_eq!(laid_out(r#"[1.0,{},{"s":"x, {\"y\""}]"#).as_deref(), Some(laid));
        let spaces = body(b"{\"a\":1}", b"{ \"a\":1}");
        assert!(spaces["diff"].as_str().unwrap().contains("\n-{\"a\":1}\n+{ \"a\":1}\n"), "{spaces}");
        let text = body(b"one\ntwo", b"one\nthree");
        assert_eq!(text["kind"], "text");
        assert!(text["diff"].as_str().unwrap().ends_with(" one\n-two\n+three\n"), "{text}");
        let binary = body(b"\xff\0", b"text");
        assert_eq!(
            (&binary["kind"], &binary["before"]["bytes"], &binary["diff"]),
            (&json!("binary"), &json!(2), &Value::Null)
        );
        assert_eq!(binary["after"]["sha256"].as_str().unwrap().len(), 64);
        assert_eq!(body("1\n".repeat(2_001).as_bytes(), b"2\n")["kind"], "large");
        let large = body(b"1", &vec![b'1'; KeptBody::WHOLE_BYTES_MAX + 1]);
        assert_eq!((&large["kind"], &large["before"]["bytes"]), (&json!("large"), &json!(1)));
        let long = body("ä".repeat(100_000).as_bytes(), "ö".repeat(100_000).as_bytes());
        assert_eq!(
            (&long["diff_truncated"], long["diff"].as_str().unwrap().len() <= DIFF_BYTES_MAX),
            (&json!(true), true)
        );
        assert_eq!(body(b"", b"x\n")["diff"].as_str().unwrap().lines().last(), Some("+x"));
    }
}
