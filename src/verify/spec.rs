//! A source as it is written down: which scheme, and for `custom` the scheme itself as data.

use super::schemes;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
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
    /// `header:…`, `json:/…`, `query:…`, `form:…`, `body` or `none`; overrides the scheme's event id as the dedup key.
    pub dedup: Option<String>,
    /// A duration such as `7d`, the default.
    pub dedup_window: Option<String>,
    /// What a scheme that is code wants to know besides: texts and lists of texts.
    pub params: BTreeMap<String, serde_json::Value>,
    /// For `scheme = "custom"` alone: in the file, these fields stand beside the ones above.
    pub custom: Option<SchemeSpec>,
}

/// A scheme as data. Built-in schemes are files of this form too.
///
/// A *locator* names a place in the request: `header:Name`, `query:name`, `form:name`, `json:/pointer` (a `*` in it is
/// every element of a list, and all have to agree), and in `vars` also `sig:key` (an item of a split signature header).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SchemeSpec {
    /// `hmac-sha1`, `hmac-sha256`, `hmac-sha384`, `hmac-sha512`; `hash-sha1`, `hash-sha256` (a plain hash, `signed`
    /// says where the secret stands in it); `ed25519`, `ecdsa-p256-sha256` (in DER), `rsa-sha256`, `rsa-sha1`; `equal`
    /// (a shared token) or `basic` (HTTP's, the secret is `user:password`).
    pub verify: Option<String>,
    /// How a secret's text becomes the key: `text` (the default), `text-nfkd` (in that Unicode form), `text-html` (its
    /// HTML entities decoded), `base64` or `hex`; `spki-base64` or `pem` for public keys.
    pub key: Option<String>,
    /// Prefixes of a secret that do not belong to the key; the first that is there is removed.
    #[serde(deserialize_with = "one_or_many")]
    pub key_strip: Vec<String>,
    pub sig: Option<SigSpec>,
    /// Name → locator; a `?` before the colon (`header?:X-Nonce`) makes it optional.
    pub vars: BTreeMap<String, String>,
    /// The signed bytes: literals, `{body}`, `{method}`, `{url}`, `{url_noquery}`, `{path}`, `{query}`, variables,
    /// and groups `[…]` that vanish when a variable in them is absent. `\n` is a line feed. `{body|sha256hex}`,
    /// `{body|base64}` and `{body|crc32}` are of the body or a variable, `{url|hubspot}` is the URL with HubSpot's
    /// escapes decoded; `{key}` is the secret of a plain hash. Default: `{body}`.
    pub signed: Option<String>,
    /// The signature header as the provider writes it, for signing: `{sig}` and variables. An item of a split header
    /// that holds `{sig}` comes once for each secret. Default: the variables that stand beside, then the signatures.
    pub emit: Option<String>,
    pub time: Option<TimeSpec>,
    /// Locator → the literal that has to stand there.
    pub require: BTreeMap<String, String>,
    /// Where the event's id may stand; the first that is there counts.
    pub id: Vec<String>,
    /// `word`: an id has to be 1 to 128 of `A-Z`, `a-z`, `0-9`, `_`, `-`.
    pub id_form: Option<String>,
    #[serde(rename = "type")]
    pub event_type: Vec<String>,
    /// What selects this alternative: `key:PREFIX` (secrets that begin so are for it alone) or `header:Name` (the
    /// header is there). Several of a kind: any.
    #[serde(deserialize_with = "one_or_many")]
    pub when: Vec<String>,
    pub challenge: Vec<ChallengeSpec>,
    /// `empty`: the provider wants no body in any answer.
    pub answers: Option<String>,
    /// Variants of the scheme. Each takes what it leaves out from the fields above.
    #[serde(deserialize_with = "alternatives")]
    pub alternatives: Vec<SchemeSpec>,
}

/// Where signatures stand and how they are written.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SigSpec {
    /// Locators; any of them may carry a signature.
    pub at: Vec<String>,
    /// The character between the items of a list; spaces around items do not count.
    pub split: Option<String>,
    /// The character between an item's name and its value.
    pub pair: Option<String>,
    /// Names of the items that are signatures.
    pub take: Vec<String>,
    /// A literal in front of each signature.
    pub prefix: Option<String>,
    /// `hex`, `base64` or `base64url`.
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

/// A request that is a handshake, and its answer. It is answered and never becomes an event.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChallengeSpec {
    /// Default: `POST`.
    pub method: Option<String>,
    /// `false`: the provider does not sign it. Looked at only where nothing is there that could be verified.
    /// Default: `true`.
    pub signed: Option<bool>,
    /// Locator → the literal that tells the handshake from an event, or `*` for any value. Of a `Content-Type` the
    /// parameters do not count.
    #[serde(rename = "match")]
    pub matches: BTreeMap<String, String>,
    /// What the request's body has to be, to the byte; a `#` in it is a number. Default: any.
    pub request_body: Option<String>,
    /// What an unsigned one has to hold; one that holds something else is refused.
    pub check: Option<CheckSpec>,
    /// Default: 200.
    pub status: Option<u16>,
    /// Default: `text/plain`.
    pub content_type: Option<String>,
    /// Name → template of an answer's header.
    pub headers: BTreeMap<String, String>,
    /// The answer: literals, `{locator}`, and `{locator|hmac-hex}` or `{locator|hmac-base64}` made with the secret.
    /// A request in which one of the places is absent is not this handshake.
    pub body: Option<String>,
}

/// A place that has to hold one of the source's secrets.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckSpec {
    /// Its locator.
    pub at: String,
    /// How the secrets begin that are for this alone; what follows is what has to stand there. Default: it is any of the
    /// secrets that verify.
    pub key: Option<String>,
    /// `true`: the provider makes the secret up and hands it over here. Of a source without secrets, what stands there
    /// becomes its secret.
    pub adopt: bool,
}

impl SourceSpec {
    /// Whether a source may do without secrets: it takes the one that its provider hands over.
    pub fn adopts(&self) -> bool {
        match self.scheme.as_str() {
            schemes::CUSTOM => self.custom.as_ref().is_some_and(SchemeSpec::adopts),
            name => schemes::builtin(name).is_some_and(|scheme| scheme.adopts()),
        }
    }
}

impl SchemeSpec {
    /// The fields' names as they are written, for telling an unknown one where others may stand beside them.
    pub const FIELDS: [&str; 16] = [
        "verify",
        "key",
        "key_strip",
        "sig",
        "vars",
        "signed",
        "emit",
        "time",
        "require",
        "id",
        "id_form",
        "type",
        "when",
        "challenge",
        "answers",
        "alternatives",
    ];

    /// The alternatives, each complete: what one leaves out is taken from the outer fields.
    pub(super) fn expanded(&self) -> Vec<SchemeSpec> {
        if self.alternatives.is_empty() {
            return vec![self.clone()];
        }
        self.alternatives.iter().map(|alternative| alternative.clone().over(self)).collect()
    }

    /// Whether a handshake of it hands the secret over.
    pub(super) fn adopts(&self) -> bool {
        let adopts = |challenge: &ChallengeSpec| challenge.check.as_ref().is_some_and(|check| check.adopt);
        self.challenge.iter().chain(self.alternatives.iter().flat_map(|spec| &spec.challenge)).any(adopts)
    }

    /// The scheme with its time signed, and no matter which.
    pub(super) fn without_window(mut self) -> SchemeSpec {
        self.time = None;
        for alternative in &mut self.alternatives {
            alternative.time = None;
        }
        self
    }

    fn over(self, base: &SchemeSpec) -> SchemeSpec {
        let either = |own: Vec<String>, base: &Vec<String>| if own.is_empty() { base.clone() } else { own };
        let any = |own: BTreeMap<_, _>, base: &BTreeMap<_, _>| if own.is_empty() { base.clone() } else { own };
        SchemeSpec {
            verify: self.verify.or_else(|| base.verify.clone()),
            key: self.key.or_else(|| base.key.clone()),
            key_strip: either(self.key_strip, &base.key_strip),
            sig: self.sig.or_else(|| base.sig.clone()),
            vars: any(self.vars, &base.vars),
            signed: self.signed.or_else(|| base.signed.clone()),
            emit: self.emit.or_else(|| base.emit.clone()),
            time: self.time.or_else(|| base.time.clone()),
            require: any(self.require, &base.require),
            id: either(self.id, &base.id),
            id_form: self.id_form.or_else(|| base.id_form.clone()),
            event_type: either(self.event_type, &base.event_type),
            when: self.when,
            challenge: if self.challenge.is_empty() { base.challenge.clone() } else { self.challenge },
            answers: self.answers,
            alternatives: self.alternatives,
        }
    }
}

/// Alternatives stand for themselves: an unknown field in one is a mistake.
fn alternatives<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SchemeSpec>, D::Error> {
    let written = Vec::<serde_json::Map<String, serde_json::Value>>::deserialize(deserializer)?;
    let read = |fields: serde_json::Map<String, serde_json::Value>| {
        if let Some(unknown) = fields.keys().find(|field| !SchemeSpec::FIELDS.contains(&field.as_str())) {
            let known = SchemeSpec::FIELDS.join(", ");
            return Err(D::Error::custom(format!("unknown field `{unknown}`, expected one of {known}")));
        }
        serde_json::from_value(fields.into()).map_err(D::Error::custom)
    };
    written.into_iter().map(read).collect()
}

/// A text, or a list of texts.
fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a text or a list of texts")]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(text) => vec![text],
        OneOrMany::Many(texts) => texts,
    })
}
