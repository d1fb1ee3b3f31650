//! Between the package in `wit/` and the gateway's own types. What goes in is borrowed; what comes out is checked
//! here, once, and nobody behind this file looks at it again.

use super::bindings::hookgate::plugin::types as wit;
use super::call::{CallLog, printable};
use super::{AttemptView, EndpointView, EventView, Limits, OutcomeView, Transformed};
use crate::clock::Timestamp;
use crate::delivery::{Fault, FaultKind, PauseScope, Reason, RetryHint, TransportKind, Verdict};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use smallvec::SmallVec;
use std::time::Duration;

pub(super) type Fields<'a> = SmallVec<[wit::FieldParam<'a>; 16]>;

pub(super) const PATH_BYTES_MAX: usize = 2048;
pub(super) const REFERENCE_BYTES_MAX: usize = 512;

/// The attribute of an attempt that tells how many response headers were left out for not being UTF-8.
const HEADERS_DROPPED: &str = "response-headers-dropped";

pub(super) fn attributes<'a>(pairs: &'a [(&'a str, String)]) -> Fields<'a> {
    pairs.iter().map(|(name, value)| wit::FieldParam { name, value }).collect()
}

pub(super) fn event<'a>(view: &EventView<'a>, attributes: &'a [wit::FieldParam<'a>]) -> wit::Event<'a> {
    wit::Event {
        id: view.id,
        event_type: view.event_type,
        accepted_at_ms: millis(view.accepted_at),
        content_type: view.content_type,
        attributes,
        payload: view.payload,
    }
}

pub(super) fn endpoint<'a>(view: &EndpointView<'a>) -> wit::Endpoint<'a> {
    wit::Endpoint { id: view.id, url: view.url, config: view.config }
}

pub(super) fn attempt<'a>(view: &AttemptView<'a>, attributes: &'a [wit::FieldParam<'a>]) -> wit::Attempt<'a> {
    wit::Attempt {
        event_id: view.event_id,
        event_type: view.event_type,
        number: view.number,
        max_attempts: view.max_attempts,
        idempotency_key: view.idempotency_key,
        now_ms: millis(view.now),
        attributes,
    }
}

/// A response's headers as text. Those that are not UTF-8 are left out, and told of in `attributes` by `dropped`.
pub(super) fn response_headers<'a>(
    outcome: &OutcomeView<'a>,
    attributes: &mut Fields<'a>,
    dropped: &'a mut String,
) -> Fields<'a> {
    let OutcomeView::Response { headers, .. } = outcome else { return Fields::new() };
    let texts = headers.iter().filter_map(|(name, value)| {
        let value = std::str::from_utf8(value.as_bytes()).ok()?;
        Some(wit::FieldParam { name: name.as_str(), value })
    });
    let fields: Fields<'a> = texts.collect();
    if fields.len() < headers.len() {
        *dropped = (headers.len() - fields.len()).to_string();
        attributes.push(wit::FieldParam { name: HEADERS_DROPPED, value: dropped });
    }
    fields
}

pub(super) fn outcome<'a>(
    view: &OutcomeView<'a>,
    headers: &'a [wit::FieldParam<'a>],
    limits: &Limits,
) -> wit::Outcome<'a> {
    match *view {
        OutcomeView::Response { status, headers: _, body, body_truncated, elapsed } => {
            let shown = &body[..body.len().min(limits.response_bytes_max)];
            wit::Outcome::Response(wit::Response {
                status,
                headers,
                body: shown,
                body_truncated: body_truncated || shown.len() < body.len(),
                elapsed_ms: millis_of(elapsed),
            })
        }
        OutcomeView::Failed { kind, may_have_been_received, detail, elapsed } => {
            wit::Outcome::TransportFailure(wit::TransportFailure {
                kind: match kind {
                    TransportKind::Dns => wit::TransportKind::Dns,
                    TransportKind::Connect => wit::TransportKind::Connect,
                    TransportKind::Tls => wit::TransportKind::Tls,
                    TransportKind::Timeout => wit::TransportKind::Timeout,
                    TransportKind::Reset => wit::TransportKind::Reset,
                    TransportKind::Protocol => wit::TransportKind::Protocol,
                    TransportKind::Other => wit::TransportKind::Other,
                },
                may_have_been_received,
                detail,
                elapsed_ms: millis_of(elapsed),
            })
        }
    }
}

fn millis(at: Timestamp) -> u64 {
    u64::try_from(at.as_millis()).unwrap_or(0)
}

fn millis_of(span: Duration) -> u32 {
    u32::try_from(span.as_millis()).unwrap_or(u32::MAX)
}

pub(super) fn fault(fault: &wit::Fault) -> Fault {
    let detail = printable(&format!("{}: {}", fault.code, fault.message), 1024);
    Fault { kind: FaultKind::Plugin, detail }
}

pub(super) fn verdict(verdict: wit::Verdict, log: &mut CallLog) -> Result<Verdict, Fault> {
    Ok(match verdict {
        wit::Verdict::Delivered(receipt) => Verdict::Delivered {
            reference: receipt.reference.filter(|r| !r.is_empty()).map(reference).transpose()?,
            reason: receipt.reason.map(|r| reason(r, log)).transpose()?,
        },
        wit::Verdict::Retryable(hint) => Verdict::Retryable(RetryHint {
            reason: reason(hint.reason, log)?,
            after: hint.after_ms.map(|ms| Duration::from_millis(u64::from(ms))),
            scope: match hint.scope {
                wit::Scope::Delivery => PauseScope::Delivery,
                wit::Scope::Endpoint => PauseScope::Endpoint,
            },
        }),
        wit::Verdict::Terminal(why) => Verdict::Terminal(reason(why, log)?),
    })
}

pub(super) fn transformed(
    transformed: wit::Transformed,
    owned: &OwnedHeaders,
    limits: &Limits,
    log: &mut CallLog,
) -> Result<Transformed, Fault> {
    let request = match transformed {
        wit::Transformed::Skip(why) => return Ok(Transformed::Skip(reason(why, log)?)),
        wit::Transformed::Send(request) => request,
    };
    for option in &request.options {
        log.push("warn", &format!("option {} is not known to this host and was left aside", option.name));
    }
    Ok(Transformed::Send {
        method: match request.method {
            wit::Method::Post => Method::POST,
            wit::Method::Put => Method::PUT,
            wit::Method::Patch => Method::PATCH,
            wit::Method::Delete => Method::DELETE,
            wit::Method::Get => Method::GET,
        },
        path_and_query: request.path_and_query.map(path_and_query).transpose()?,
        headers: headers(&request.headers, owned, limits)?,
        body: Bytes::from(request.body),
    })
}

fn bad(detail: &str) -> Fault {
    Fault { kind: FaultKind::BadOutput, detail: printable(detail, 1024) }
}

/// The word is checked; what is for people goes to the log.
fn reason(reason: wit::Reason, log: &mut CallLog) -> Result<Reason, Fault> {
    let code = Reason::parse(&reason.code).ok_or_else(|| {
        let shown = printable(&reason.code, 80);
        bad(&format!("reason code \"{shown}\": 1 to 64 of a-z, 0-9, \"_\", \".\" and \"-\" are allowed"))
    })?;
    if let Some(message) = reason.message.filter(|m| !m.is_empty()) {
        log.push("info", &format!("{code}: {message}"));
    }
    Ok(code)
}

fn reference(reference: String) -> Result<String, Fault> {
    if reference.len() > REFERENCE_BYTES_MAX || reference.chars().any(char::is_control) {
        return Err(bad(&format!("receipt reference: at most {REFERENCE_BYTES_MAX} bytes without control characters")));
    }
    Ok(reference)
}

/// Only what the URL parser later takes as it stands: nothing in it may lead out of the endpoint's host or climb.
fn path_and_query(text: String) -> Result<String, Fault> {
    if text.len() > PATH_BYTES_MAX {
        return Err(bad(&format!("path-and-query of {} bytes: at most {PATH_BYTES_MAX} are allowed", text.len())));
    }
    if !text.starts_with('/') || text.starts_with("//") {
        return Err(bad("path-and-query must begin with one \"/\""));
    }
    if text.bytes().any(|b| !b.is_ascii_graphic() || matches!(b, b'\\' | b'#')) {
        return Err(bad("path-and-query holds a space, a control or non-ASCII character, \"\\\" or \"#\": encode it"));
    }
    let path = text.split('?').next().unwrap_or_default();
    // The URL standard takes %2e for a dot.
    let climbs = |segment: &str| segment.len() <= 6 && segment.to_ascii_lowercase().replace("%2e", ".") == "..";
    if path.split('/').any(climbs) {
        return Err(bad("path-and-query must not hold a \"..\" segment"));
    }
    Ok(text)
}

fn headers(fields: &[wit::FieldResult], owned: &OwnedHeaders, limits: &Limits) -> Result<HeaderMap, Fault> {
    let bytes: usize = fields.iter().map(|f| f.name.len() + f.value.len()).sum();
    if fields.len() > limits.headers_max || bytes > limits.header_bytes_max {
        let (fields, most, bytes_most) = (fields.len(), limits.headers_max, limits.header_bytes_max);
        let detail = format!("{fields} headers of {bytes} bytes: at most {most} of {bytes_most} bytes are allowed");
        return Err(Fault { kind: FaultKind::OutputTooLarge, detail });
    }
    let mut map = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let shown = || printable(&field.name, 80);
        let name = HeaderName::from_bytes(field.name.as_bytes())
            .map_err(|_| bad(&format!("header \"{}\": not a header name", shown())))?;
        if owned.holds(&name) {
            return Err(bad(&format!("header \"{name}\" belongs to the host")));
        }
        let value = HeaderValue::from_bytes(field.value.as_bytes())
            .map_err(|_| bad(&format!("header \"{name}\": its value holds a control character")))?;
        map.append(name, value);
    }
    Ok(map)
}

/// The headers that the host alone sets.
pub(super) struct OwnedHeaders {
    further: Vec<HeaderName>,
}

impl OwnedHeaders {
    const NAMES: [&'static str; 12] = [
        "connection",
        "content-length",
        "expect",
        "host",
        "idempotency-key",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "http2-settings",
    ];
    const PREFIXES: [&'static str; 3] = ["proxy-", "webhook-", "hookgate-"];

    pub(super) fn new(further: Vec<HeaderName>) -> Self {
        OwnedHeaders { further }
    }

    fn holds(&self, name: &HeaderName) -> bool {
        let text = name.as_str();
        Self::NAMES.contains(&text) || Self::PREFIXES.iter().any(|p| text.starts_with(p)) || self.further.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn owned() -> OwnedHeaders {
        OwnedHeaders::new(vec![HeaderName::from_static("x-request-key")])
    }

    fn set(pairs: &[(&str, &str)]) -> Result<HeaderMap, Fault> {
        let field = |(name, value): &(&str, &str)| wit::FieldResult { name: (*name).into(), value: (*value).into() };
        headers(&pairs.iter().map(field).collect::<Vec<_>>(), &owned(), &Limits::default())
    }

    fn kind<T: std::fmt::Debug>(result: Result<T, Fault>) -> FaultKind {
        result.unwrap_err().kind
    }

    #[test]
    fn owned_headers_are_refused_in_any_case() {
        let names = [
            "host",
            "Host",
            "content-length",
            "connection",
            "transfer-encoding",
            "te",
            "trailer",
            "upgrade",
            "keep-alive",
            "proxy-authorization",
            "Proxy-Connection",
            "expect",
            "webhook-id",
            "webhook-signature",
            "webhook-anything",
            "hookgate-attempt",
            "idempotency-key",
            "Idempotency-Key",
            "user-agent",
            "X-Request-Key",
            "http2-settings",
        ];
        for name in names {
            assert_eq!(kind(set(&[("x-a", "1"), (name, "v")])), FaultKind::BadOutput, "{name}");
        }
        for (name, value) in [("", "v"), ("a b", "v"), ("a:", "v"), ("x", "a\r\nhost: b"), ("x", "\0")] {
            assert_eq!(kind(set(&[(name, value)])), FaultKind::BadOutput, "{name:?}");
        }
        let fine = set(&[("Authorization", "Basic x"), ("x-a", "1"), ("x-a", "ü"), ("hooks", "")]).unwrap();
        assert_eq!(fine.len(), 4);
        assert_eq!(fine.get_all("x-a").iter().count(), 2);
    }

    #[test]
    fn headers_are_bounded_in_number_and_size() {
        assert_eq!(set(&[("x", "1"); 64]).unwrap().len(), 64);
        assert_eq!(kind(set(&[("x", "1"); 65])), FaultKind::OutputTooLarge);
        assert_eq!(set(&[("x", &"v".repeat(8191))]).unwrap().len(), 1);
        assert_eq!(kind(set(&[("x", &"v".repeat(8192))])), FaultKind::OutputTooLarge);
    }

    #[test]
    fn paths() {
        let long = format!("/{}", "a".repeat(2048));
        let bad = [
            "",
            "a",
            "//evil.example/x",
            "/a/../b",
            "/..",
            "/a/%2e%2E/b",
            "/.%2e/x",
            "/%2e.",
            "/a\\b",
            "\\a",
            "/a#b",
            "/a b",
            "/a\n",
            "/ü",
            "/\u{7f}",
            "?a=b",
            "https://evil.example/",
            long.as_str(),
        ];
        for path in bad {
            assert_eq!(kind(path_and_query(path.into())), FaultKind::BadOutput, "{path}");
        }
        for path in ["/", "/a", "/a/b?c=d/../e", "/...", "/a..b", "/a//b", "/?x", "/%41", "/a/.", &long[..2048]] {
            assert_eq!(path_and_query(path.into()).as_deref(), Ok(path));
        }
    }

    #[test]
    fn reasons_references_and_messages() {
        let mut log = CallLog::new(&Limits::default());
        let why =
            |code: &str, message: Option<&str>| wit::Reason { code: code.into(), message: message.map(Into::into) };
        let terminal = wit::Verdict::Terminal(why("suspended", Some("since\nyesterday")));
        assert_eq!(verdict(terminal, &mut log), Ok(Verdict::Terminal(Reason::word("suspended"))));
        assert_eq!(log.lines[0].message, "suspended: since\\nyesterday");
        for code in ["", "Suspended", "a b", "ä", &"a".repeat(65)] {
            assert_eq!(kind(verdict(wit::Verdict::Terminal(why(code, None)), &mut log)), FaultKind::BadOutput);
            let skip = wit::Transformed::Skip(why(code, None));
            assert_eq!(kind(transformed(skip, &owned(), &Limits::default(), &mut log)), FaultKind::BadOutput);
        }
        let receipt = |r: &str| wit::Verdict::Delivered(wit::Receipt { reference: Some(r.into()), reason: None });
        let delivered =
            |reference: Option<&str>| Ok(Verdict::Delivered { reference: reference.map(Into::into), reason: None });
        assert_eq!(verdict(receipt("SM1"), &mut log), delivered(Some("SM1")));
        assert_eq!(verdict(receipt(""), &mut log), delivered(None));
        assert_eq!(kind(verdict(receipt(&"r".repeat(513)), &mut log)), FaultKind::BadOutput);
        assert_eq!(kind(verdict(receipt("a\tb"), &mut log)), FaultKind::BadOutput);
    }

    #[test]
    fn a_response_is_cut_and_its_headers_are_text() {
        let mut map = HeaderMap::new();
        map.append("x-a", HeaderValue::from_static("1"));
        map.append("x-b", HeaderValue::from_bytes(b"\xff").unwrap());
        map.append("x-c", HeaderValue::from_bytes("ü".as_bytes()).unwrap());
        let limits = Limits { response_bytes_max: 4, ..Limits::default() };
        for (body, shown, truncated) in [("abcd", 4, false), ("abcde", 4, true)] {
            let body = Bytes::from(body);
            let elapsed = Duration::from_millis(7);
            let view =
                OutcomeView::Response { status: 200, headers: &map, body: &body, body_truncated: false, elapsed };
            let mut dropped = String::new();
            let mut extra = Fields::new();
            let fields = response_headers(&view, &mut extra, &mut dropped);
            let names: Vec<_> = fields.iter().map(|f| (f.name, f.value)).collect();
            assert_eq!(names, [("x-a", "1"), ("x-c", "ü")]);
            assert_eq!((extra[0].name, extra[0].value), ("response-headers-dropped", "1"));
            let wit::Outcome::Response(response) = outcome(&view, &fields, &limits) else { panic!() };
            assert_eq!((response.body.len(), response.body_truncated), (shown, truncated));
        }
    }

    proptest! {
        /// What the check lets through means the same host and no climbing to the URL parser.
        #[test]
        fn a_path_stays_on_its_host(tail in "[/.%2eE\\\\a-c?#@: \\t]{0,24}") {
            let base = url::Url::parse("https://hooks.example/").unwrap();
            if let Ok(path) = path_and_query(format!("/{tail}")) {
                let joined = base.join(&path).unwrap();
                prop_assert_eq!(joined.host_str(), Some("hooks.example"));
                prop_assert!(joined.fragment().is_none());
                prop_assert_eq!(joined.port(), None);
            }
        }
    }
}
