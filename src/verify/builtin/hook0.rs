//! HMAC-SHA256 over the time and the body, or over the headers that the signature lists as well. Where the second kind
//! is there, it alone decides.

use super::read::{header, malformed, undecodable};
use super::time::{Told, Window};
use super::{About, BodyCover, Builtin, Entry, Macs, Proof, TEXT_KEY};
use crate::verify::check::SIGNATURES_MAX;
use crate::verify::compile::Make;
use crate::verify::key::{Algorithm, Candidate, Encoding, KeyForm};
use crate::verify::keys::{KeyAtHand, Stop};
use crate::verify::locator::{Facts, Locator, Place};
use crate::verify::refusal::{CheckStep, Refusal};
use crate::verify::sign::{SignError, SignRequest};
use http::HeaderName;

const SIGNATURE: &str = "x-hook0-signature";
const ID: &str = "x-event-id";
const LISTED_MAX: usize = 64;

pub(super) const ENTRY: Entry = Entry {
    params: &[],
    publishes_keys: false,
    headers: &[SIGNATURE],
    build,
    about: About {
        algorithm: "hmac-sha256",
        key: TEXT_KEY,
        signature: &["header:X-Hook0-Signature"],
        form: "hex, as `v0=…` or `v1=…`, one or more between `,`: where there is a v1, it alone counts",
        signed: "time and body, with `.` between; for v1 the headers that `h=…` lists and their values \
                 stand before the body",
        time: Some("sig:t in s"),
        ..About::BARE
    },
};

struct Hook0 {
    macs: Macs,
    window: Window,
}

fn build(make: &mut Make<'_>) -> Option<Box<dyn Builtin>> {
    let macs = make.macs(Algorithm::HmacSha256, Encoding::Hex, KeyForm::Text)?;
    Some(Box::new(Hook0 { macs, window: Window(make.tolerance_millis()) }))
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
            items.over_body
        } else {
            let names = items.headers.ok_or_else(|| malformed("the signature header has no signature item h"))?;
            head.extend_from_slice(&[names.as_bytes(), b".", &values(facts, names)?, b"."].concat());
            items.over_headers
        };
        if signatures.is_empty() {
            return Err(malformed("no signature of an accepted version (v0, v1)").into());
        }
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
        let signature = self.macs.sign(&[format!("{time}.{ID}.{id}.").as_bytes(), request.body])?;
        let text = format!("t={time},h={ID},v1={signature}");
        Ok(vec![(SIGNATURE.to_owned(), text), (ID.to_owned(), id.to_owned())])
    }
}

/// The values of the listed headers, in their order.
fn values(facts: &Facts<'_>, names: &str) -> Result<Vec<u8>, Refusal> {
    let mut values = Vec::new();
    for (count, name) in names.split(' ').enumerate() {
        if count == LISTED_MAX {
            return Err(malformed(format!("the signature lists more than {LISTED_MAX} headers")));
        }
        let parsed: HeaderName = name.parse().map_err(|_| malformed("the signature lists what is no header's name"))?;
        let told = parsed.as_str().to_owned();
        if count > 0 {
            values.push(b'.');
        }
        match facts.header(&parsed) {
            Place::Value(value) => values.extend_from_slice(&value),
            Place::Absent | Place::Unreadable => {
                return Err(Refusal::missing(format!("header {told}, which is signed, is absent or empty")));
            }
            Place::Repeated => {
                let detail = format!("header {told}, which is signed, is there more than once");
                return Err(Refusal::malformed(CheckStep::Presence, detail));
            }
        }
    }
    Ok(values)
}
