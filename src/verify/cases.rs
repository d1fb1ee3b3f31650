//! Cases with an expected verdict, and running them: for our own tests and for `hookgate verify --cases`.

use super::builtin::{Param, ParamKind};
use super::compile::TOLERANCE_SECONDS_MAX;
use super::refusal::RefusalCode;
use super::schemes;
use super::source::{Request, Source};
use super::spec::{SchemeSpec, SigSpec, SourceSpec};
use crate::clock::Timestamp;
use crate::secret::Secret;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt;

/// One case. Fields that only describe it are not kept.
#[derive(Clone, Debug, Deserialize)]
pub struct Case {
    pub id: String,
    pub scheme: String,
    #[serde(default)]
    pub description: String,
    pub request: CaseRequest,
    #[serde(deserialize_with = "secrets")]
    pub secrets: Vec<Secret>,
    pub now_unix: i64,
    /// `None`: no window.
    pub tolerance_s: Option<u64>,
    pub expect: Expected,
    /// Of an invalid one.
    pub reason: Option<RefusalCode>,
    #[serde(default)]
    pub params: Params,
}

#[derive(Clone, Debug, Deserialize)]
pub struct CaseRequest {
    pub method: String,
    /// The public URL.
    pub url: String,
    pub headers: BTreeMap<String, HeaderValues>,
    pub body_base64: String,
}

impl CaseRequest {
    /// What it is on the wire, or which part of it cannot be: method, headers and body.
    pub fn parts(&self) -> Result<(Method, HeaderMap, Bytes), String> {
        let method = self.method.parse().map_err(|_| "the method is not one".to_owned())?;
        let mut headers = HeaderMap::new();
        for (name, values) in &self.headers {
            let header: HeaderName = name.parse().map_err(|_| format!("`{name}` is not a header's name"))?;
            let values = match values {
                HeaderValues::One(value) => std::slice::from_ref(value),
                HeaderValues::Many(values) => values,
            };
            for value in values {
                let value = HeaderValue::from_bytes(value.as_bytes());
                let value = value.map_err(|_| format!("the value of `{name}` cannot be sent"))?;
                add_header(&mut headers, header.clone(), value)?;
            }
        }
        let body = STANDARD.decode(&self.body_base64).map_err(|_| "`body_base64` is not base64".to_owned())?;
        Ok((method, headers, body.into()))
    }
}

/// More headers than this no request has that a gateway would take.
pub const HEADERS_MAX: usize = 1_000;

/// Adds a header to those of a request that is written down somewhere.
pub fn add_header(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) -> Result<(), String> {
    let told = || format!("it has more than {HEADERS_MAX} headers: leave out what the signature does not need");
    if headers.len() == HEADERS_MAX {
        return Err(told());
    }
    headers.try_append(name, value).map(|_| ()).map_err(|_| told())
}

/// A header's value, or the values of one that is sent several times.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum HeaderValues {
    One(String),
    Many(Vec<String>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Expected {
    Valid,
    Invalid,
}

/// What a generic verifier is told besides.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Params {
    pub header: Option<String>,
    pub hash: Option<String>,
    pub encoding: Option<String>,
    pub prefix: Option<String>,
    pub secret_encoding: Option<String>,
    /// What a built-in scheme's own `params` say.
    #[serde(flatten)]
    pub own: BTreeMap<String, serde_json::Value>,
}

/// What a case came to, or was to come to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CaseVerdict {
    Valid,
    Invalid(RefusalCode),
    /// It could not be run, and why: an unknown scheme, a source that does not compile.
    Unrunnable(String),
}

impl fmt::Display for CaseVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CaseVerdict::Valid => f.write_str("valid"),
            CaseVerdict::Invalid(code) => write!(f, "invalid ({code})"),
            CaseVerdict::Unrunnable(why) => write!(f, "not run: {why}"),
        }
    }
}

/// One case's result.
#[derive(Clone, Debug)]
pub struct CaseResult {
    pub id: String,
    pub scheme: String,
    pub expected: CaseVerdict,
    pub actual: CaseVerdict,
}

impl CaseResult {
    /// Verdict and reason are as expected.
    pub fn agrees(&self) -> bool {
        self.expected == self.actual
    }
}

fn secrets<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Secret>, D::Error> {
    // The usual message would show what stands there.
    let texts =
        Vec::<String>::deserialize(deserializer).map_err(|_| D::Error::custom("`secrets` is not a list of texts"))?;
    Ok(texts.into_iter().map(Secret::from).collect())
}

/// Reads a file of cases: a JSON array.
pub fn parse(text: &str) -> Result<Vec<Case>, serde_json::Error> {
    serde_json::from_str(text)
}

/// Runs cases. A case of an unknown scheme fails.
pub fn run(cases: &[Case]) -> Vec<CaseResult> {
    cases
        .iter()
        .map(|case| CaseResult {
            id: case.id.clone(),
            scheme: case.scheme.clone(),
            expected: expected(case),
            actual: verdict(case).unwrap_or_else(CaseVerdict::Unrunnable),
        })
        .collect()
}

fn expected(case: &Case) -> CaseVerdict {
    match (case.expect, case.reason) {
        (Expected::Valid, _) => CaseVerdict::Valid,
        (Expected::Invalid, Some(code)) => CaseVerdict::Invalid(code),
        (Expected::Invalid, None) => CaseVerdict::Unrunnable("the case is invalid and gives no reason".to_owned()),
    }
}

/// The source that a case describes, or why there is none.
pub fn source(case: &Case) -> Result<Source, String> {
    let name = |text: &str| text.parse().map_err(|error| format!("{error}"));
    spec(case)?
        .compile(&name("cases")?, &name("case")?, case.secrets.clone())
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

fn verdict(case: &Case) -> Result<CaseVerdict, String> {
    let source = source(case)?;
    let (method, headers, body) = case.request.parts()?;
    let request = Request {
        method: &method,
        url: &case.request.url,
        headers: &headers,
        body: &body,
        received_at: Timestamp::from_millis(case.now_unix.saturating_mul(1000)),
    };
    Ok(match source.verify(request) {
        Ok(()) => CaseVerdict::Valid,
        Err(refusal) => CaseVerdict::Invalid(refusal.code),
    })
}

/// The case's parameters. Of those that it does not name, a list is empty.
fn params_of(scheme: &SchemeSpec, params: &Params) -> BTreeMap<String, serde_json::Value> {
    let usual = |param: Param| match param.kind {
        ParamKind::List => Some((param.name.to_owned(), serde_json::json!([]))),
        ParamKind::Text | ParamKind::OptionalText | ParamKind::UsualText | ParamKind::Switch => None,
    };
    let mut all: BTreeMap<_, _> = schemes::params(scheme).filter_map(usual).collect();
    all.extend(params.own.clone());
    all
}

/// A source for the case: its built-in scheme, or a custom one after its parameters.
pub(super) fn spec(case: &Case) -> Result<SourceSpec, String> {
    let params = &case.params;
    let verify = match case.scheme.as_str() {
        "generic-hmac" => format!("hmac-{}", params.hash.as_deref().unwrap_or("sha256")),
        "generic-ed25519" => "ed25519".to_owned(),
        "generic-token" => "equal".to_owned(),
        name => {
            let scheme = schemes::builtin(name).ok_or_else(|| format!("unknown scheme `{name}`"))?;
            // A scheme without a timestamp takes no tolerance; one of more than a week is no window.
            let timed = scheme.expanded().iter().any(|alternative| alternative.time.is_some());
            let params = params_of(&scheme, params);
            let named = SourceSpec { scheme: case.scheme.clone(), params, ..SourceSpec::default() };
            return Ok(match case.tolerance_s.filter(|seconds| *seconds <= TOLERANCE_SECONDS_MAX) {
                Some(_) | None if !timed => named,
                Some(seconds) => SourceSpec { tolerance: Some(seconds), ..named },
                None => {
                    let custom = Some(scheme.without_window());
                    SourceSpec { scheme: schemes::CUSTOM.to_owned(), custom, ..named }
                }
            });
        }
    };
    let header = params.header.as_deref().ok_or("`params.header` is missing")?;
    let key = match (&params.secret_encoding, verify.as_str()) {
        (Some(encoding), _) => encoding.clone(),
        (None, "ed25519") => "hex".to_owned(),
        (None, _) => "text".to_owned(),
    };
    let custom = SchemeSpec {
        verify: Some(verify),
        key: Some(key),
        sig: Some(SigSpec {
            at: vec![format!("header:{header}")],
            prefix: params.prefix.clone(),
            encoding: params.encoding.clone(),
            ..SigSpec::default()
        }),
        ..SchemeSpec::default()
    };
    Ok(SourceSpec { scheme: schemes::CUSTOM.to_owned(), custom: Some(custom), ..SourceSpec::default() })
}
