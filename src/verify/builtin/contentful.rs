//! HMAC-SHA256 over method, path, the headers that the request lists, and body.

use super::read::{header, malformed};
use super::time::{Told, Window};
use super::{About, BodyCover, Builtin, Entry, Macs, Proof, TEXT_KEY};
use crate::verify::compile::Make;
use crate::verify::key::{Algorithm, Encoding, KeyForm};
use crate::verify::keys::{KeyAtHand, Stop};
use crate::verify::locator::{Facts, Locator, Place, url_path, url_query};
use crate::verify::refusal::{CheckStep, Refusal};
use crate::verify::sign::{SignError, SignRequest};
use http::HeaderName;
use std::collections::BTreeMap;

const SIGNATURE: &str = "x-contentful-signature";
const LISTED: &str = "x-contentful-signed-headers";
const TIME: &str = "x-contentful-timestamp";
const LISTED_MAX: usize = 64;

pub(super) const ENTRY: Entry = Entry {
    params: &[],
    publishes_keys: false,
    headers: &[SIGNATURE],
    build,
    about: About {
        algorithm: "hmac-sha256",
        key: TEXT_KEY,
        signature: &["header:X-Contentful-Signature"],
        form: "hex",
        signed: "method, path and query, the headers that X-Contentful-Signed-Headers lists, body: a line each",
        time: Some("header:X-Contentful-Timestamp in ms"),
        ..About::BARE
    },
};

struct Contentful {
    macs: Macs,
    window: Window,
}

fn build(make: &mut Make<'_>) -> Option<Box<dyn Builtin>> {
    let macs = make.macs(Algorithm::HmacSha256, Encoding::Hex, KeyForm::Text)?;
    Some(Box::new(Contentful { macs, window: Window(make.tolerance_millis()) }))
}

impl Builtin for Contentful {
    fn check(&self, facts: &Facts<'_>, _: KeyAtHand<'_>) -> Result<Proof, Stop> {
        let request = facts.request;
        let text = header(request, SIGNATURE)?;
        let list = header(request, LISTED)?;
        let time = header(request, TIME)?;
        let values = listed(facts, list)?;
        if !values.contains_key(TIME) || !values.contains_key(LISTED) {
            return Err(malformed(format!("{LISTED} does not list {TIME} and itself")).into());
        }
        let at = Told::Millis.read(time, TIME)?;
        let skew = self.window.holds(request.received_at, (at, Told::Millis), TIME)?;
        let candidate = self.macs.decode(text)?;
        let head = head(request.method.as_str(), request.url, &values);
        let signed = [&head[..], b"\n", request.body];
        let refused = |refusal| Refusal { skew_seconds: Some(skew), ..refusal };
        let secret = self.macs.prove(&signed, &[candidate]).map_err(refused)?;
        Ok(Proof { skew_seconds: Some(skew), ..Proof::new(Some(secret), &signed) })
    }

    fn covers(&self, at: &Locator) -> bool {
        match at {
            Locator::Header(_, name) => [LISTED, TIME].contains(&name.as_str()),
            Locator::Query(_) | Locator::Form(_) | Locator::Json(..) => true,
            Locator::Sig(_) => false,
        }
    }

    fn body(&self) -> BodyCover {
        BodyCover::Bytes
    }

    fn signs_url(&self) -> bool {
        true
    }

    fn sign(&self, request: SignRequest<'_>) -> Result<Vec<(String, String)>, SignError> {
        let time = request.timestamp.as_millis().to_string();
        let list = format!("{LISTED},{TIME}");
        let values = BTreeMap::from([(LISTED.to_owned(), list.clone().into()), (TIME.to_owned(), time.clone().into())]);
        let signature = self.macs.sign(&[&head("POST", request.url, &values), b"\n", request.body])?;
        let rest = [(LISTED, list), (TIME, time)].map(|(name, value)| (name.to_owned(), value));
        Ok([vec![(SIGNATURE.to_owned(), signature)], rest.to_vec()].concat())
    }
}

/// The listed headers by their names in lower case.
fn listed(facts: &Facts<'_>, list: &str) -> Result<BTreeMap<String, Vec<u8>>, Refusal> {
    let mut values = BTreeMap::new();
    for (count, name) in list.split(',').map(str::trim).enumerate() {
        if count == LISTED_MAX {
            return Err(malformed(format!("{LISTED} lists more than {LISTED_MAX} headers")));
        }
        let parsed: HeaderName =
            name.parse().map_err(|_| malformed(format!("{LISTED} lists what is no header's name")))?;
        let told = parsed.as_str().to_owned();
        let value = match facts.header(&parsed) {
            Place::Value(value) => value.trim_ascii().to_vec(),
            Place::Absent | Place::Unreadable => {
                return Err(Refusal::missing(format!("header {told}, which is signed, is absent or empty")));
            }
            Place::Repeated => {
                let detail = format!("header {told}, which is signed, is there more than once");
                return Err(Refusal::malformed(CheckStep::Presence, detail));
            }
        };
        values.insert(told, value);
    }
    Ok(values)
}

/// What is signed in front of the body.
fn head(method: &str, url: &str, values: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
    let (path, query) = (url_path(url), url_query(url));
    let mark = if query.is_empty() { "" } else { "?" };
    let mut head = format!("{method}\n{path}{mark}{query}\n").into_bytes();
    let written: Vec<Vec<u8>> = values.iter().map(|(name, value)| [name.as_bytes(), b":", value].concat()).collect();
    head.extend_from_slice(&written.join(&b';'));
    head
}
