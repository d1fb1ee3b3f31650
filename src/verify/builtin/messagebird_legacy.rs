//! HMAC-SHA256 over the time, the query sorted and written anew, and the raw digest of the body.

use super::form::{Pair, pairs};
use super::read::header;
use super::time::{Told, Window};
use super::{About, BodyCover, Builtin, Entry, Macs, Proof, TEXT_KEY};
use crate::verify::compile::Make;
use crate::verify::key::{Algorithm, Encoding, KeyForm};
use crate::verify::keys::{KeyAtHand, Stop};
use crate::verify::locator::{Facts, Locator, url_query};
use crate::verify::refusal::Refusal;
use crate::verify::sign::{SignError, SignRequest};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use sha2::{Digest as _, Sha256};

const SIGNATURE: &str = "messagebird-signature";
const TIME: &str = "messagebird-request-timestamp";

pub(super) const ENTRY: Entry = Entry {
    params: &[],
    publishes_keys: false,
    headers: &[SIGNATURE],
    build,
    about: About {
        algorithm: "hmac-sha256",
        key: TEXT_KEY,
        signature: &["header:MessageBird-Signature"],
        form: "base64",
        signed: "time, the query sorted and written anew, the 32 bytes of the body's SHA-256: a line each",
        time: Some("header:MessageBird-Request-Timestamp in s"),
        ..About::BARE
    },
};

/// What a query keeps as it is; a space becomes `+`.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b' ');

struct MessageBirdLegacy {
    macs: Macs,
    window: Window,
}

fn build(make: &mut Make<'_>) -> Option<Box<dyn Builtin>> {
    let macs = make.macs(Algorithm::HmacSha256, Encoding::Base64, KeyForm::Text)?;
    Some(Box::new(MessageBirdLegacy { macs, window: Window(make.tolerance_millis()) }))
}

impl Builtin for MessageBirdLegacy {
    fn check(&self, facts: &Facts<'_>, _: KeyAtHand<'_>) -> Result<Proof, Stop> {
        let request = facts.request;
        let text = header(request, SIGNATURE)?;
        let time = header(request, TIME)?;
        let query = written(&pairs(url_query(request.url).as_bytes())?);
        let at = Told::Seconds.read(time, TIME)?;
        let skew = self.window.holds(request.received_at, (at, Told::Seconds), TIME)?;
        let candidate = self.macs.decode(text)?;
        let digest = Sha256::digest(request.body);
        let signed = [time.as_bytes(), b"\n", query.as_bytes(), b"\n", &digest];
        let secret = self.macs.prove(&signed, &[candidate]).map_err(|refusal| skewed(refusal, skew))?;
        Ok(Proof { skew_seconds: Some(skew), ..Proof::new(Some(secret), &signed) })
    }

    fn covers(&self, at: &Locator) -> bool {
        matches!(at, Locator::Query(_) | Locator::Json(..) | Locator::Form(_))
    }

    fn body(&self) -> BodyCover {
        BodyCover::Bytes
    }

    fn signs_url(&self) -> bool {
        true
    }

    fn sign(&self, request: SignRequest<'_>) -> Result<Vec<(String, String)>, SignError> {
        let query = pairs(url_query(request.url).as_bytes());
        let query = written(&query.map_err(|_| SignError::UnknownValue("the query".to_owned()))?);
        let time = request.timestamp.as_seconds().to_string();
        let digest = Sha256::digest(request.body);
        let signature = self.macs.sign(&[time.as_bytes(), b"\n", query.as_bytes(), b"\n", &digest])?;
        Ok(vec![(SIGNATURE.to_owned(), signature), (TIME.to_owned(), time)])
    }
}

fn skewed(refusal: Refusal, skew: i64) -> Refusal {
    Refusal { skew_seconds: Some(skew), ..refusal }
}

fn written(query: &[Pair<'_>]) -> String {
    let mut sorted: Vec<&Pair<'_>> = query.iter().collect();
    sorted.sort_by(|(a, _), (b, _)| a.cmp(b));
    let escaped = |text: &[u8]| percent_encode(text, ESCAPED).to_string().replace(' ', "+");
    let pairs: Vec<String> =
        sorted.into_iter().map(|(name, value)| format!("{}={}", escaped(name), escaped(value))).collect();
    pairs.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_is_sorted_and_written_anew() {
        for (given, expected) in [
            ("", ""),
            ("b=2&a=1", "a=1&b=2"),
            ("a=x%20y&a=%7e%2F*", "a=x+y&a=~%2F%2A"),
            ("a=2&a=1", "a=2&a=1"),
            ("%FF=%c3%bc", "%FF=%C3%BC"),
        ] {
            assert_eq!(written(&pairs(given.as_bytes()).unwrap()), expected);
        }
    }
}
