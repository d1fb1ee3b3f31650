//! HMAC-SHA1 with the digest of the private key, over a payload in the form. The public key says which signature is
//! meant.

use super::form::{Pair, pairs, single};
use super::read::{malformed, told, undecodable};
use super::{About, BodyCover, Builtin, Entry, Macs, Param, ParamKind, Proof, no_name};
use crate::verify::check::SIGNATURES_MAX;
use crate::verify::compile::Make;
use crate::verify::key::{Algorithm, Candidate, Encoding, Key};
use crate::verify::keys::{KeyAtHand, Stop};
use crate::verify::locator::{Facts, Locator, url_query};
use crate::verify::refusal::{CheckStep, Refusal, RefusalCode};
use crate::verify::sign::{SignError, SignRequest};
use crate::verify::source::ChallengeAnswer;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use sha1::{Digest as _, Sha1};
use zeroize::Zeroizing;

const SIGNATURE: &str = "bt_signature";
const PAYLOAD: &str = "bt_payload";
const CHALLENGE: &str = "bt_challenge";

pub(super) const ENTRY: Entry = Entry {
    params: &[Param {
        name: "public_key",
        kind: ParamKind::Text,
        about: "the public key that belongs to the private one",
        example: "your_public_key",
        wrong: no_name,
    }],
    publishes_keys: false,
    headers: &[],
    build,
    about: About {
        algorithm: "hmac-sha1",
        key: "the SHA-1 of the secret, which is the private key",
        signature: &["form:bt_signature"],
        form: "hex, behind a public key and `|`, one or more between `&`: those of `public_key`",
        signed: "form:bt_payload, with or without a line feed behind it",
        event_type: &["kind in the payload"],
        handshakes: &["GET with query:bt_challenge"],
        ..About::BARE
    },
};

struct Braintree {
    macs: Macs,
    public_key: String,
}

fn build(make: &mut Make<'_>) -> Option<Box<dyn Builtin>> {
    let public_key = make.text("public_key")?;
    let derived = |secret: &crate::secret::Secret| {
        let digest = Zeroizing::new(<[u8; 20]>::from(Sha1::digest(secret.expose())));
        Key::new(Algorithm::HmacSha1, digest.as_ref()).ok()
    };
    let keys: Option<Vec<Key>> = make.secrets().iter().map(derived).collect();
    Some(Box::new(Braintree { macs: Macs::new(Algorithm::HmacSha1, Encoding::Hex, keys?), public_key }))
}

/// A form's field as text.
fn field<'p>(form: &'p [Pair<'_>], name: &'static str) -> Result<&'p str, Refusal> {
    if form.iter().filter(|(key, _)| key.as_ref() == name.as_bytes()).count() > 1 {
        let detail = format!("form field {name} is there more than once");
        return Err(Refusal::malformed(CheckStep::Presence, detail));
    }
    let value = single(form, name).filter(|value| !value.is_empty());
    let value = value.ok_or_else(|| Refusal::missing(format!("form field {name} is absent or empty")))?;
    std::str::from_utf8(value).map_err(|_| malformed(format!("form field {name} is not text")))
}

impl Builtin for Braintree {
    fn check(&self, facts: &Facts<'_>, _: KeyAtHand<'_>) -> Result<Proof, Stop> {
        let form = pairs(facts.request.body)?;
        let signature = field(&form, SIGNATURE)?;
        let payload = field(&form, PAYLOAD)?;
        if form.len() > 2 {
            return Err(
                malformed(format!("the form has more than {SIGNATURE} and {PAYLOAD}, and that is not signed")).into()
            );
        }
        if !payload.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'=' | b'\n')) {
            return Err(malformed(format!("form field {PAYLOAD} is not base64")).into());
        }
        if is_challenge(payload.as_bytes()) {
            let detail = format!("form field {PAYLOAD} is no more than a challenge, whose code anybody is given");
            return Err(malformed(detail).into());
        }
        if signature.split('&').count() > SIGNATURES_MAX {
            return Err(malformed(format!("more than {SIGNATURES_MAX} signatures in one request")).into());
        }
        let pairs = signature.split('&').filter_map(|pair| pair.split_once('|'));
        let ours: Vec<&str> =
            pairs.filter(|(key, _)| *key == self.public_key).map(|(_, signature)| signature).collect();
        if ours.is_empty() {
            let detail = "no signature is for the source's public key";
            return Err(Refusal::new(RefusalCode::UnknownKey, CheckStep::Structure, detail).into());
        }
        let candidates: Vec<Candidate> = ours.into_iter().filter_map(|text| self.macs.decode(text).ok()).collect();
        if candidates.is_empty() {
            return Err(undecodable().into());
        }
        let bare = self.macs.made(&[payload.as_bytes()], &candidates);
        let secret = match self.macs.prove(&[payload.as_bytes(), b"\n"], &candidates) {
            Ok(secret) => secret,
            Err(refusal) => bare.ok_or(refusal)?,
        };
        let event_type = kind(payload);
        Ok(Proof { event_type, ..Proof::new(Some(secret), &[payload.as_bytes()]) })
    }

    fn covers(&self, at: &Locator) -> bool {
        matches!(at, Locator::Form(name) if name == PAYLOAD)
    }

    fn body(&self) -> BodyCover {
        BodyCover::Meaning
    }

    fn sign(&self, _: SignRequest<'_>) -> Result<Vec<(String, String)>, SignError> {
        Err(SignError::NotAHeader(format!("form field {SIGNATURE}")))
    }

    fn greets_by(&self) -> Option<Method> {
        Some(Method::GET)
    }

    fn greet(&self, facts: &Facts<'_>) -> Option<ChallengeAnswer> {
        if *facts.request.method != Method::GET {
            return None;
        }
        let query = pairs(url_query(facts.request.url).as_bytes()).ok()?;
        let challenge = single(&query, CHALLENGE)?;
        let answer = is_challenge(challenge).then(|| self.macs.sign(&[challenge]).ok())??;
        Some(told(format!("{}|{answer}", self.public_key)))
    }
}

/// What the handshake makes a code of for anybody who asks.
fn is_challenge(text: &[u8]) -> bool {
    (20..=32).contains(&text.len()) && text.iter().all(|b| b.is_ascii_digit() || matches!(b, b'a'..=b'f'))
}

/// What the payload, an XML text in base64, says it is.
fn kind(payload: &str) -> Option<String> {
    let bare: String = payload.split('\n').collect();
    let xml = STANDARD.decode(bare).ok()?;
    let text = std::str::from_utf8(&xml).ok()?;
    let kind = text.split_once("<kind>")?.1.split_once("</kind>")?.0;
    Some(kind.to_owned())
}
