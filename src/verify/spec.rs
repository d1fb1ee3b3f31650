//! A source as it is written down: which scheme, and for `custom` the scheme itself as data.

use serde::Deserialize;
use std::collections::BTreeMap;

/// The verification part of a source: what a file or the API says, before it is compiled. Field names are those of
/// the file. Locators, templates and durations are still text here; [`SourceSpec::compile`] gives them meaning and
/// names the field of everything that is wrong.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceSpec {
    /// A built-in scheme's name, or `custom`.
    pub scheme: String,
    /// Seconds; overrides the scheme's window.
    pub tolerance: Option<u64>,
    /// `header:…`, `json:/…`, `query:…`, `body` or `none`; overrides the scheme's event id as the dedup key.
    pub dedup: Option<String>,
    /// A duration such as `7d`, the default.
    pub dedup_window: Option<String>,
    /// For `scheme = "custom"` alone: in the file, these fields stand beside the ones above.
    pub custom: Option<SchemeSpec>,
}

/// A scheme as data. Built-in schemes are files of this form too.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SchemeSpec {
    pub verify: Option<String>,
    pub key: Option<String>,
    pub key_strip: Option<String>,
    pub sig: Option<SigSpec>,
    pub vars: BTreeMap<String, String>,
    pub signed: Option<String>,
    pub time: Option<TimeSpec>,
    pub require: BTreeMap<String, String>,
    pub id: Vec<String>,
    #[serde(rename = "type")]
    pub event_type: Vec<String>,
}

/// Where signatures stand and how they are written.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SigSpec {
    pub at: Vec<String>,
    pub split: Option<String>,
    pub pair: Option<String>,
    pub take: Vec<String>,
    pub prefix: Option<String>,
    pub encoding: Option<String>,
}

/// The timestamp and its window.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TimeSpec {
    pub var: String,
    /// `s`, `ms` or `rfc3339`.
    pub unit: String,
    /// Seconds, both ways.
    pub tolerance: u64,
}
