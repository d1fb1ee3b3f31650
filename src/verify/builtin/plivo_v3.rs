//! HMAC-SHA256 over the URL with its query sorted, the form sorted behind it, and a nonce. Any of several signatures.

use super::form::{Pair, form, pairs};
use super::read::{header, malformed, undecodable};
use super::{About, BodyCover, Builtin, Entry, Macs, Proof, TEXT_KEY};
use crate::verify::check::{SIGNATURES_MAX, is_word};
use crate::verify::compile::Make;
use crate::verify::key::{Algorithm, Candidate, Encoding, KeyForm};
use crate::verify::keys::{KeyAtHand, Stop};
use crate::verify::locator::{Facts, Locator, url_query, url_without_query};
use crate::verify::refusal::Refusal;
use crate::verify::sign::{SignError, SignRequest};
use http::Method;

const SIGNATURE: &str = "x-plivo-signature-v3";
const NONCE: &str = "x-plivo-signature-v3-nonce";

pub(super) const ENTRY: Entry = Entry {
    params: &[],
    publishes_keys: false,
    headers: &[SIGNATURE],
    build,
    about: About {
        algorithm: "hmac-sha256",
        key: TEXT_KEY,
        signature: &["header:X-Plivo-Signature-V3"],
        form: "base64, one or more between `,`",
        signed: "URL with its query sorted, the form sorted behind it, and header:X-Plivo-Signature-V3-Nonce",
        ..About::BARE
    },
};

struct PlivoV3 {
    macs: Macs,
}

fn build(make: &mut Make<'_>) -> Option<Box<dyn Builtin>> {
    let macs = make.macs(Algorithm::HmacSha256, Encoding::Base64, KeyForm::Text)?;
    Some(Box::new(PlivoV3 { macs }))
}

impl Builtin for PlivoV3 {
    fn check(&self, facts: &Facts<'_>, _: KeyAtHand<'_>) -> Result<Proof, Stop> {
        let request = facts.request;
        let text = header(request, SIGNATURE)?;
        let nonce = header(request, NONCE)?;
        // It stands at the end, behind a `.`: with one of its own it could take what is signed in front of it.
        if !is_word(nonce.as_bytes()) {
            return Err(
                malformed(format!("header {NONCE} holds other characters than letters, digits, `-` and `_`")).into()
            );
        }
        let form = form(request)?;
        if *request.method == Method::GET && !form.is_empty() {
            return Err(malformed("it is a GET with a body, and the signature does not cover that").into());
        }
        let place = place(request.url, &form)?;
        let items: Vec<&str> = text.split(',').map(|item| item.trim_matches(' ')).filter(|i| !i.is_empty()).collect();
        if items.len() > SIGNATURES_MAX {
            return Err(malformed(format!("more than {SIGNATURES_MAX} signatures in one request")).into());
        }
        let candidates: Vec<Candidate> = items.into_iter().filter_map(|item| self.macs.decode(item).ok()).collect();
        if candidates.is_empty() {
            return Err(undecodable().into());
        }
        let signed = [&place[..], b".", nonce.as_bytes()];
        let secret = self.macs.prove(&signed, &candidates)?;
        Ok(Proof::new(Some(secret), &signed))
    }

    /// Decoded and joined: borders between names and values may be moved.
    fn covers(&self, _: &Locator) -> bool {
        false
    }

    fn body(&self) -> BodyCover {
        BodyCover::Meaning
    }

    fn signs_url(&self) -> bool {
        true
    }

    fn sign(&self, request: SignRequest<'_>) -> Result<Vec<(String, String)>, SignError> {
        if !is_word(request.id.as_bytes()) {
            return Err(SignError::BadId(request.id.to_owned()));
        }
        let unreadable = |_: Refusal| SignError::UnknownValue("the form".to_owned());
        let place = place(request.url, &pairs(request.body).map_err(unreadable)?).map_err(unreadable)?;
        let signature = self.macs.sign(&[&place, b".", request.id.as_bytes()])?;
        Ok(vec![(SIGNATURE.to_owned(), signature), (NONCE.to_owned(), request.id.to_owned())])
    }
}

/// What stands in front of the nonce.
fn place(url: &str, form: &[Pair<'_>]) -> Result<Vec<u8>, Refusal> {
    let query = sorted(&pairs(url_query(url).as_bytes())?, b"=", b"&");
    let mut place = url_without_query(url).as_bytes().to_vec();
    if !query.is_empty() || !form.is_empty() {
        place.push(b'?');
        place.extend_from_slice(&query);
    }
    if !query.is_empty() && !form.is_empty() {
        place.push(b'.');
    }
    place.extend_from_slice(&sorted(form, b"", b""));
    Ok(place)
}

fn sorted(all: &[Pair<'_>], between: &[u8], behind: &[u8]) -> Vec<u8> {
    let mut all: Vec<&Pair<'_>> = all.iter().collect();
    all.sort();
    let written: Vec<Vec<u8>> =
        all.into_iter().map(|(name, value)| [name.as_ref(), between, value.as_ref()].concat()).collect();
    written.join(behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_each_kind_of_request() {
        for (url, form, expected) in [
            ("https://h.test/a", "", "https://h.test/a"),
            ("https://h.test/a?b=2&a=1", "", "https://h.test/a?a=1&b=2"),
            ("https://h.test/a", "b=2&a=1", "https://h.test/a?a1b2"),
            ("https://h.test/a?z=%20&y", "b=2&a=1&a=0", "https://h.test/a?y=&z= .a0a1b2"),
        ] {
            let form = pairs(form.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(place(url, &form).unwrap()).unwrap(), expected);
        }
    }
}
