//! HMAC-SHA1 over the URL and the form, sorted; a body that is no form is bound by its hash in the URL.

use super::form::{Pair, form, is_form, pairs};
use super::read::{differs, header, malformed, mismatch, sha256_hex};
use super::{About, BodyCover, Builtin, Entry, Macs, Proof, TEXT_KEY};
use crate::verify::compile::Make;
use crate::verify::key::{Algorithm, Encoding, KeyForm};
use crate::verify::keys::{KeyAtHand, Stop};
use crate::verify::locator::{Facts, Locator, url_query};
use crate::verify::refusal::Refusal;
use crate::verify::sign::{SignError, SignRequest};
use crate::verify::source::Request;
use std::collections::BTreeSet;

const SIGNATURE: &str = "x-twilio-signature";
const BODY_HASH: &str = "bodySHA256";

pub(super) const ENTRY: Entry = Entry {
    params: &[],
    publishes_keys: false,
    headers: &[SIGNATURE],
    build,
    about: About {
        algorithm: "hmac-sha1",
        key: TEXT_KEY,
        signature: &["header:X-Twilio-Signature"],
        form: "base64",
        signed: "URL, then name and value of each of the form's fields, sorted; a body that is no form by \
                 its SHA-256 in query:bodySHA256",
        ..About::BARE
    },
};

struct Twilio {
    macs: Macs,
}

fn build(make: &mut Make<'_>) -> Option<Box<dyn Builtin>> {
    let macs = make.macs(Algorithm::HmacSha1, Encoding::Base64, KeyForm::Text)?;
    Some(Box::new(Twilio { macs }))
}

impl Builtin for Twilio {
    fn check(&self, facts: &Facts<'_>, _: KeyAtHand<'_>) -> Result<Proof, Stop> {
        let request = facts.request;
        let text = header(request, SIGNATURE)?;
        let hash = body_hash(request.url)?;
        let signed = signed_form(request, hash)?;
        let candidate = [self.macs.decode(text)?];
        // The provider leaves out or adds the port as it likes. Both are tried, whichever matches.
        let [first, second] =
            port_variants(request.url).map(|url| (self.macs.made(&[url.as_bytes(), &signed], &candidate), url));
        let (((Some(secret), url), _) | (_, (Some(secret), url))) = (first, second) else {
            return Err(mismatch().into());
        };
        if hash.is_some_and(|hash| hash != sha256_hex(request.body)) {
            return Err(differs("the body").into());
        }
        Ok(Proof::new(Some(secret), &[url.as_bytes(), &signed]))
    }

    /// Of the form only the joined text is signed: a border between name and value may be moved.
    fn covers(&self, at: &Locator) -> bool {
        matches!(at, Locator::Query(_))
    }

    fn body(&self) -> BodyCover {
        BodyCover::Meaning
    }

    fn signs_url(&self) -> bool {
        true
    }

    fn sign(&self, request: SignRequest<'_>) -> Result<Vec<(String, String)>, SignError> {
        let form = match (body_hash(request.url), pairs(request.body)) {
            // What has this parameter is no form: that is how the provider says it.
            (Ok(Some(_)), _) => Vec::new(),
            (Ok(None), Ok(form)) => joined(&form),
            (Err(_), _) => return Err(SignError::UnknownValue(format!("query:{BODY_HASH}"))),
            (_, Err(_)) => return Err(SignError::UnknownValue("the form".to_owned())),
        };
        let signature = self.macs.sign(&[request.url.as_bytes(), &form])?;
        Ok(vec![(SIGNATURE.to_owned(), signature)])
    }
}

/// The body's hash in the URL. The provider puts it at the end; anywhere else it may have come out of a form whose text
/// was moved into the query.
fn body_hash(url: &str) -> Result<Option<&str>, Refusal> {
    let query = url_query(url);
    let count = pairs(query.as_bytes())?.iter().filter(|(name, _)| name.as_ref() == BODY_HASH.as_bytes()).count();
    if count == 0 {
        return Ok(None);
    }
    let last = query.rsplit('&').next().and_then(|last| last.strip_prefix(BODY_HASH)?.strip_prefix('='));
    let last = last.filter(|_| count == 1);
    last.map(Some)
        .ok_or_else(|| malformed(format!("`{BODY_HASH}` has to stand once in the URL, as its last parameter")))
}

/// What is signed behind the URL.
fn signed_form(request: Request<'_>, hash: Option<&str>) -> Result<Vec<u8>, Refusal> {
    match (is_form(request), hash) {
        (true, _) => Ok(joined(&form(request)?)),
        (false, None) if !request.body.is_empty() => {
            Err(malformed(format!("the body is no form, and the URL has no `{BODY_HASH}`")))
        }
        (false, _) => Ok(Vec::new()),
    }
}

/// Each distinct value behind its name, both sorted as bytes.
fn joined(form: &[Pair<'_>]) -> Vec<u8> {
    let sorted: BTreeSet<(&[u8], &[u8])> = form.iter().map(|(name, value)| (name.as_ref(), value.as_ref())).collect();
    sorted.into_iter().flat_map(|(name, value)| [name, value]).collect::<Vec<_>>().concat()
}

/// The URL without a port, and with one.
fn port_variants(url: &str) -> [String; 2] {
    let Some((scheme, rest)) = url.split_once("://") else { return [url.to_owned(), url.to_owned()] };
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host_at = authority.rfind('@').map_or(0, |at| at + 1);
    let bracket = authority.rfind(']').unwrap_or(host_at);
    match authority[bracket..].rfind(':') {
        Some(colon) => [format!("{scheme}://{}{tail}", &authority[..bracket + colon]), url.to_owned()],
        None => {
            let port = if scheme == "http" { 80 } else { 443 };
            [url.to_owned(), format!("{scheme}://{authority}:{port}{tail}")]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_comes_and_goes() {
        for (url, without, with) in [
            ("https://h.test/a?b=1:2", "https://h.test/a?b=1:2", "https://h.test:443/a?b=1:2"),
            ("http://h.test", "http://h.test", "http://h.test:80"),
            ("https://h.test:8443/a", "https://h.test/a", "https://h.test:8443/a"),
            ("https://u:p@h.test/a", "https://u:p@h.test/a", "https://u:p@h.test:443/a"),
            ("https://[::1]/a", "https://[::1]/a", "https://[::1]:443/a"),
            ("https://[::1]:9/a", "https://[::1]/a", "https://[::1]:9/a"),
            ("", "", ""),
            ("/in/a", "/in/a", "/in/a"),
        ] {
            assert_eq!(port_variants(url), [without, with], "{url}");
        }
    }
}
