//! A token without its payload: method, path, the headers that it lists, and the body are the payload.

use super::jws::Token;
use super::public::{KeySet, Kind, PublicKey};
use super::read::{header, malformed, mismatch, numbered};
use super::time::{Told, Window};
use super::{About, BodyCover, Builtin, Entry, Proof, key_of, unknown_key, untrusted_url};
use crate::verify::compile::Make;
use crate::verify::keys::{KeyAtHand, KeyQuery, KeyUrl, Stop};
use crate::verify::locator::{Facts, Locator, Place, url_path};
use crate::verify::refusal::{CheckStep, Refusal, RefusalCode};
use crate::verify::sign::{SignError, SignRequest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderName;
use serde::Deserialize;

const TOKEN: &str = "tl-signature";
const TIME: &str = "x-tl-webhook-timestamp";
const ALG: &str = "ES512";
const KIND: Kind = Kind::EcdsaP521;
const VERSION: &str = "2";
const LISTED_MAX: usize = 64;

pub(super) const ENTRY: Entry = Entry {
    params: &[],
    publishes_keys: true,
    headers: &[TOKEN],
    build,
    about: About {
        algorithm: "ecdsa-p521-sha512",
        key: "the one that the token names in the key set at its `jku`, on webhooks.truelayer.com or \
              webhooks.truelayer-sandbox.com; or a public key in PEM or a key set as a secret",
        signature: &["header:Tl-Signature"],
        form: "a token without its payload (JWS)",
        signed: "method and path, the headers that the token lists, body: a line each",
        time: Some("header:X-Tl-Webhook-Timestamp in rfc3339"),
        only_verifies: true,
        ..About::BARE
    },
};

struct TrueLayer {
    /// Empty: the keys are the provider's.
    keys: Vec<Given>,
    window: Window,
}

enum Given {
    One(PublicKey),
    Set(KeySet),
}

#[expect(clippy::unnecessary_wraps, reason = "the table's form")]
fn build(make: &mut Make<'_>) -> Option<Box<dyn Builtin>> {
    let mut keys = Vec::new();
    let mut bad = Vec::new();
    for (number, secret) in make.secrets().iter().enumerate() {
        let set = || KeySet::read(secret.expose()).filter(|set| !set.is_empty()).map(Given::Set);
        match PublicKey::from_pem(KIND, secret.expose()).map(Given::One).or_else(set) {
            Some(key) => keys.push(key),
            None => bad.push(number),
        }
    }
    for number in bad {
        let message = "is neither a public key nor a set of keys: give an ECDSA public key of P-521 (SPKI) in PEM, or a \
                       JWKS such as `{\"keys\":[…]}`, or no secret at all to have it fetched";
        make.problem(&format!("secrets[{number}]"), message);
    }
    Some(Box::new(TrueLayer { keys, window: Window(make.tolerance_millis()) }))
}

#[derive(Deserialize)]
struct OwnHead {
    jku: Option<String>,
    tl_headers: Option<String>,
    tl_version: Option<String>,
}

fn is_listed(host: &str) -> bool {
    ["webhooks.truelayer.com", "webhooks.truelayer-sandbox.com"].contains(&host)
}

impl Builtin for TrueLayer {
    fn check(&self, facts: &Facts<'_>, key: KeyAtHand<'_>) -> Result<Proof, Stop> {
        let request = facts.request;
        let token = Token::split(header(request, TOKEN)?)?;
        let head = token.head(&[ALG])?;
        if !token.payload.is_empty() {
            return Err(malformed("the token brings a payload of its own").into());
        }
        let own: OwnHead = token.head_as()?;
        if own.tl_version.as_deref() != Some(VERSION) {
            return Err(malformed("the token is of another version").into());
        }
        let url = match own.jku.as_deref() {
            Some(text) => Some(KeyUrl::named(text, is_listed).ok_or_else(untrusted_url)?),
            None => None,
        };
        let listed = own.tl_headers.unwrap_or_default();
        let payload = payload(facts, &listed)?;
        let skew = self.skew(facts, &listed)?;
        let refused = |refusal: Refusal| Refusal { skew_seconds: skew, ..refusal };
        let signature = token.signature_bytes(132).map_err(refused)?;
        let signed = format!("{}.{}", token.head, URL_SAFE_NO_PAD.encode(&payload));
        let verifies = |key: &PublicKey| key.verifies(signed.as_bytes(), &signature);
        let kid = head.kid.ok_or_else(|| malformed("the token does not name its key"))?;
        let in_set = |set: &KeySet| set.named(&kid).and_then(|key| key.public_key(KIND, ALG));
        let secret = if self.keys.is_empty() {
            let url = url.ok_or_else(|| unknown_key("the token does not say where its key stands"))?;
            let query = || KeyQuery::get(url.clone());
            let fetched = key_of(key, query)?;
            let set = fetched.found.read_as(KeySet::read);
            let set = set.ok_or_else(|| unknown_key("the provider's answer is no key set"))?;
            match in_set(&set) {
                None if fetched.may_be_outdated() => return Err(query().again().into()),
                None => return Err(refused(unknown_key("the provider's key set has not the token's key")).into()),
                Some(key) => verifies(&key).then_some(None),
            }
        } else {
            let mut known = false;
            let mut hit = None;
            for (number, given) in self.keys.iter().enumerate() {
                let verified = match given {
                    Given::One(key) => Some(verifies(key)),
                    Given::Set(set) => in_set(set).map(|key| verifies(&key)),
                };
                known |= verified.is_some();
                hit = hit.or_else(|| verified.unwrap_or(false).then_some(Some(number)));
            }
            if !known {
                return Err(refused(unknown_key("no key set has the token's key")).into());
            }
            hit
        };
        let secret = secret.ok_or_else(|| refused(mismatch()))?;
        Ok(Proof { skew_seconds: skew, ..Proof::new(secret, &[&payload]) })
    }

    fn covers(&self, at: &Locator) -> bool {
        matches!(at, Locator::Form(_) | Locator::Json(..))
    }

    fn body(&self) -> BodyCover {
        BodyCover::Bytes
    }

    fn signs_url(&self) -> bool {
        true
    }

    fn sign(&self, _: SignRequest<'_>) -> Result<Vec<(String, String)>, SignError> {
        Err(SignError::NoSigningKey)
    }
}

impl TrueLayer {
    /// Where a window is set, the time has to be there and signed.
    fn skew(&self, facts: &Facts<'_>, listed: &str) -> Result<Option<i64>, Refusal> {
        if self.window == Window(None) {
            return Ok(None);
        }
        let time = header(facts.request, TIME)?;
        if !listed.split(',').any(|name| name.trim().eq_ignore_ascii_case(TIME)) {
            let detail = format!("{TIME} is not signed, and the source has a window");
            return Err(Refusal::new(RefusalCode::InsufficientCoverage, CheckStep::Structure, detail));
        }
        let at = Told::Rfc3339.read(time, TIME)?;
        self.window.holds(facts.request.received_at, (at, Told::Rfc3339), TIME).map(Some)
    }
}

/// The listed headers stand under the names that the list gives them, in its case.
fn payload(facts: &Facts<'_>, listed: &str) -> Result<Vec<u8>, Refusal> {
    let request = facts.request;
    let mut payload =
        format!("{} {}\n", request.method.as_str().to_ascii_uppercase(), url_path(request.url)).into_bytes();
    for (count, name) in listed.split(',').map(str::trim).filter(|name| !name.is_empty()).enumerate() {
        if count == LISTED_MAX {
            return Err(malformed(format!("the token lists more than {LISTED_MAX} headers")));
        }
        let parsed: HeaderName = name.parse().map_err(|_| malformed("the token lists what is no header's name"))?;
        match facts.header(&parsed) {
            Place::Value(value) => payload.extend_from_slice(&[name.as_bytes(), b": ", &value, b"\n"].concat()),
            Place::Absent | Place::Unreadable => {
                return Err(Refusal::missing(format!("{} is absent or empty", numbered(count))));
            }
            Place::Repeated => {
                let detail = format!("{} is there more than once", numbered(count));
                return Err(Refusal::malformed(CheckStep::Presence, detail));
            }
        }
    }
    payload.extend_from_slice(request.body);
    Ok(payload)
}
