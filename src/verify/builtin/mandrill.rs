//! HMAC-SHA1 over the URL and the form, sorted by name. The ping at a webhook's creation is signed with a key that
//! everybody knows, so it is answered and nothing more.

use super::form::{Pair, form, pairs, single};
use super::read::{header, told};
use super::{About, BodyCover, Builtin, Entry, Macs, Proof, TEXT_KEY};
use crate::verify::compile::Make;
use crate::verify::key::{Algorithm, Encoding, Key, KeyForm};
use crate::verify::keys::{KeyAtHand, Stop};
use crate::verify::locator::{Facts, Locator};
use crate::verify::refusal::Refusal;
use crate::verify::sign::{SignError, SignRequest};
use crate::verify::source::ChallengeAnswer;
use http::Method;

const SIGNATURE: &str = "x-mandrill-signature";
const EVENTS: &str = "mandrill_events";
const PING_KEY: &[u8] = b"test-webhook";

pub(super) const ENTRY: Entry = Entry {
    params: &[],
    publishes_keys: false,
    headers: &[SIGNATURE],
    build,
    about: About {
        algorithm: "hmac-sha1",
        key: TEXT_KEY,
        signature: &["header:X-Mandrill-Signature"],
        form: "base64",
        signed: "URL, then name and value of each of the form's fields, sorted by name",
        handshakes: &["HEAD", "POST with form:mandrill_events = [], signed with the key `test-webhook`"],
        ..About::BARE
    },
};

struct Mandrill {
    macs: Macs,
    ping: Macs,
}

fn build(make: &mut Make<'_>) -> Option<Box<dyn Builtin>> {
    let (algorithm, encoding) = (Algorithm::HmacSha1, Encoding::Base64);
    let macs = make.macs(algorithm, encoding, KeyForm::Text)?;
    let ping = Macs::new(algorithm, encoding, vec![Key::new(algorithm, PING_KEY).ok()?]);
    Some(Box::new(Mandrill { macs, ping }))
}

impl Mandrill {
    fn made(macs: &Macs, facts: &Facts<'_>) -> Result<(usize, Vec<u8>), Refusal> {
        let request = facts.request;
        let text = header(request, SIGNATURE)?;
        let form = form(request)?;
        // It stands in every request, and behind the URL: without it, it may have been moved there.
        if single(&form, EVENTS).is_none() {
            return Err(Refusal::missing(format!("form field {EVENTS} is absent, or there more than once")));
        }
        let signed = joined(&form);
        let candidate = macs.decode(text)?;
        let secret = macs.prove(&[request.url.as_bytes(), &signed], &[candidate])?;
        Ok((secret, signed))
    }
}

impl Builtin for Mandrill {
    fn check(&self, facts: &Facts<'_>, _: KeyAtHand<'_>) -> Result<Proof, Stop> {
        let (secret, signed) = Self::made(&self.macs, facts)?;
        Ok(Proof::new(Some(secret), &[facts.request.url.as_bytes(), &signed]))
    }

    /// A border between a name and its value may be moved.
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
        let form = pairs(request.body).map_err(|_| SignError::UnknownValue("the form".to_owned()))?;
        let signature = self.macs.sign(&[request.url.as_bytes(), &joined(&form)])?;
        Ok(vec![(SIGNATURE.to_owned(), signature)])
    }

    fn greets_by(&self) -> Option<Method> {
        Some(Method::HEAD)
    }

    fn greet(&self, facts: &Facts<'_>) -> Option<ChallengeAnswer> {
        let request = facts.request;
        if *request.method == Method::HEAD {
            return Some(told(""));
        }
        let form = pairs(request.body).ok()?;
        let empty = form.len() == 1 && single(&form, EVENTS) == Some(b"[]");
        (empty && Self::made(&self.ping, facts).is_ok()).then(|| told(""))
    }
}

fn joined(form: &[Pair<'_>]) -> Vec<u8> {
    let mut sorted: Vec<&Pair<'_>> = form.iter().collect();
    // Stable: values of one name keep their order.
    sorted.sort_by(|(a, _), (b, _)| a.cmp(b));
    sorted.into_iter().flat_map(|(name, value)| [name.as_ref(), value.as_ref()]).collect::<Vec<_>>().concat()
}
