//! HMAC-SHA256 over the time, the headers that the signature lists, and the body (`v1`), or over time and body alone
//! (`v0`). Where the first kind is there, it alone decides; the second is let in only where the source says so.

use super::read::{header, malformed, numbered, undecodable};
use super::time::{Told, Window};
use super::{About, BodyCover, Builtin, Entry, Macs, Param, ParamKind, Proof, TEXT_KEY, no_switch};
use crate::verify::check::{SIGNATURES_MAX, is_word};
use crate::verify::compile::Make;
use crate::verify::key::{Algorithm, Candidate, Encoding, KeyForm};
use crate::verify::keys::{KeyAtHand, Stop};
use crate::verify::locator::{Facts, Locator, Place};
use crate::verify::refusal::{CheckStep, Refusal, RefusalCode};
use crate::verify::sign::{SignError, SignRequest};
use http::HeaderName;

const SIGNATURE: &str = "x-hook0-signature";
const ID: &str = "x-event-id";
/// Three words with a `.` between.
const TYPE: &str = "x-event-type";
const LISTED_MAX: usize = 64;

pub(super) const ENTRY: Entry = Entry {
    params: &[Param {
        name: "require_v1",
        kind: ParamKind::Switch,
        about: "refuses what only v0 signs, which binds neither the event's id nor its type",
        example: "true",
        wrong: no_switch,
    }],
    publishes_keys: false,
    headers: &[SIGNATURE],
    build,
    about: About {
        algorithm: "hmac-sha256",
        key: TEXT_KEY,
        signature: &["header:X-Hook0-Signature"],
        form: "hex, as `v1=…`, one or more between `,`; without `require_v1` also as `v0=…`, where there is no v1",
        signed: "time, the headers that `h=…` lists, their values, and body, with `.` between; for v0 time \
                 and body alone",
        time: Some("sig:t in s"),
        ..About::BARE
    },
};

struct Hook0 {
    macs: Macs,
    window: Window,
    allows_v0: bool,
}

fn build(make: &mut Make<'_>) -> Option<Box<dyn Builtin>> {
    let macs = make.macs(Algorithm::HmacSha256, Encoding::Hex, KeyForm::Text)?;
    let allows_v0 = !make.is_on("require_v1");
    if allows_v0 {
        make.warn(
            "params.require_v1: v0 signs no headers, so who has seen a request may send it with another event id and \
             type: set it to true where the sender signs v1",
        );
    }
    Some(Box::new(Hook0 { macs, window: Window(make.tolerance_millis()), allows_v0 }))
}

/// The signature's header, taken apart.
#[derive(Default)]
struct Items<'t> {
    time: Option<&'t str>,
    headers: Option<&'t str>,
    over_body: Vec<&'t str>,
    over_headers: Vec<&'t str>,
}

impl<'t> Items<'t> {
    fn read(text: &'t str) -> Result<Self, Refusal> {
        let mut items = Items::default();
        for item in text.split(',').map(|item| item.trim_matches(' ')) {
            let Some((name, value)) = item.split_once('=') else { continue };
            let once = |slot: &mut Option<&'t str>| match slot.replace(value) {
                None => Ok(()),
                Some(_) => Err(malformed(format!("signature item {name} is there twice"))),
            };
            match name {
                "t" => once(&mut items.time)?,
                "h" => once(&mut items.headers)?,
                "v0" => items.over_body.push(value),
                "v1" => items.over_headers.push(value),
                _ => {}
            }
            if items.over_body.len() + items.over_headers.len() > SIGNATURES_MAX {
                return Err(malformed(format!("more than {SIGNATURES_MAX} signatures in one request")));
            }
        }
        Ok(items)
    }
}

impl Builtin for Hook0 {
    fn check(&self, facts: &Facts<'_>, _: KeyAtHand<'_>) -> Result<Proof, Stop> {
        let request = facts.request;
        let items = Items::read(header(request, SIGNATURE)?)?;
        let time = items.time.ok_or_else(|| malformed("the signature header has no signature item t"))?;
        let mut head = format!("{time}.").into_bytes();
        let signatures = if items.over_headers.is_empty() {
            self.older(&items, request.body)?;
            items.over_body
        } else {
            let names = items.headers.ok_or_else(|| malformed("the signature header has no signature item h"))?;
            head.extend_from_slice(&[names.as_bytes(), b".", &values(facts, names)?, b"."].concat());
            items.over_headers
        };
        let at = Told::Seconds.read(time, "signature item t")?;
        let skew = self.window.holds(request.received_at, (at, Told::Seconds), "signature item t")?;
        let refused = |refusal| Refusal { skew_seconds: Some(skew), ..refusal };
        let candidates: Vec<Candidate> =
            signatures.into_iter().filter_map(|text| self.macs.decode(text).ok()).collect();
        if candidates.is_empty() {
            return Err(refused(undecodable()).into());
        }
        let signed = [&head[..], request.body];
        let secret = self.macs.prove(&signed, &candidates).map_err(refused)?;
        Ok(Proof { skew_seconds: Some(skew), ..Proof::new(Some(secret), &signed) })
    }

    /// Which headers are signed is the request's to say.
    fn covers(&self, at: &Locator) -> bool {
        matches!(at, Locator::Form(_) | Locator::Json(..))
    }

    fn body(&self) -> BodyCover {
        BodyCover::Bytes
    }

    fn sign(&self, request: SignRequest<'_>) -> Result<Vec<(String, String)>, SignError> {
        let (time, id) = (request.timestamp.as_seconds(), request.id);
        if !is_word(id.as_bytes()) {
            return Err(SignError::BadId(id.to_owned()));
        }
        let signature = self.macs.sign(&[format!("{time}.{ID}.{id}.").as_bytes(), request.body])?;
        let text = format!("t={time},h={ID},v1={signature}");
        Ok(vec![(SIGNATURE.to_owned(), text), (ID.to_owned(), id.to_owned())])
    }
}

impl Hook0 {
    /// Whether a request without v1 may be let in by its v0.
    fn older(&self, items: &Items<'_>, body: &[u8]) -> Result<(), Refusal> {
        match (items.over_body.is_empty(), self.allows_v0) {
            (true, true) => Err(malformed("no signature of an accepted version (v1, v0)")),
            (true, false) => Err(malformed("no signature of an accepted version (v1)")),
            (false, false) => {
                let detail = "the signature is of v0, which covers no header, and the source takes v1 alone";
                Err(Refusal::new(RefusalCode::InsufficientCoverage, CheckStep::Structure, detail))
            }
            (false, true) if opens_like_v1(body) => {
                let detail = "the body begins as what v1 signs does, and the signature is of v0: it may have been v1's";
                Err(malformed(detail))
            }
            (false, true) => Ok(()),
        }
    }
}

/// Whether names of headers stand in front of a `.`, as they do in what v1 signs.
fn opens_like_v1(body: &[u8]) -> bool {
    let names = memchr::memchr(b'.', body).map(|end| &body[..end]);
    names.is_some_and(|names| names.split(|b| *b == b' ').all(|name| HeaderName::from_bytes(name).is_ok()))
}

/// The values of the listed headers, in their order. A `.` stands between them, and none in them: else what is signed
/// would not say where each ends and the body begins.
fn values(facts: &Facts<'_>, names: &str) -> Result<Vec<u8>, Refusal> {
    let mut values = Vec::new();
    for (count, name) in names.split(' ').enumerate() {
        if count == LISTED_MAX {
            return Err(malformed(format!("the signature lists more than {LISTED_MAX} headers")));
        }
        let parsed: HeaderName = name.parse().map_err(|_| malformed("the signature lists what is no header's name"))?;
        let told = parsed.as_str().to_owned();
        if told.contains('.') {
            return Err(malformed("the signature lists a header with a `.` in its name, which also ends the list"));
        }
        if count > 0 {
            values.push(b'.');
        }
        match facts.header(&parsed) {
            Place::Value(value) => {
                let dots = value.iter().filter(|b| **b == b'.').count();
                if dots != if told == TYPE { 2 } else { 0 } {
                    let rule = "other `.` than what is signed can tell from those between values";
                    return Err(malformed(format!("{} holds {rule}", numbered(count))));
                }
                values.extend_from_slice(&value);
            }
            Place::Absent | Place::Unreadable => {
                return Err(Refusal::missing(format!("{} is absent or empty", numbered(count))));
            }
            Place::Repeated => {
                let detail = format!("{} is there more than once", numbered(count));
                return Err(Refusal::malformed(CheckStep::Presence, detail));
            }
        }
    }
    Ok(values)
}
