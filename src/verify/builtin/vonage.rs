//! A bearer token with a hash of the body, signed with the shared secret.

use super::jws::{Token, unsigned};
use super::read::{differs, header, malformed, sha256_hex};
use super::time::{Told, Window};
use super::{About, BodyCover, Builtin, Entry, Macs, Proof, TEXT_KEY};
use crate::verify::compile::Make;
use crate::verify::key::{Algorithm, Encoding, KeyForm};
use crate::verify::keys::{KeyAtHand, Stop};
use crate::verify::locator::{Facts, Locator};
use crate::verify::refusal::Refusal;
use crate::verify::sign::{SignError, SignRequest};
use serde::Deserialize;
use serde_json::json;

const TOKEN: &str = "authorization";

pub(super) const ENTRY: Entry = Entry {
    params: &[],
    publishes_keys: false,
    headers: &[TOKEN],
    build,
    about: About {
        algorithm: "hmac-sha256",
        key: TEXT_KEY,
        signature: &["header:Authorization"],
        form: "a bearer token (JWT)",
        signed: "the token, which holds a hash of the body",
        time: Some("iat of the token in s"),
        id: &["jti of the token"],
        ..About::BARE
    },
};

struct Vonage {
    macs: Macs,
    window: Window,
}

fn build(make: &mut Make<'_>) -> Option<Box<dyn Builtin>> {
    let macs = make.macs(Algorithm::HmacSha256, Encoding::Base64Url, KeyForm::Text)?;
    Some(Box::new(Vonage { macs, window: Window(make.tolerance_millis()) }))
}

#[derive(Deserialize)]
struct Claims {
    iat: Option<i64>,
    exp: Option<i64>,
    jti: Option<String>,
    payload_hash: Option<String>,
}

impl Builtin for Vonage {
    fn check(&self, facts: &Facts<'_>, _: KeyAtHand<'_>) -> Result<Proof, Stop> {
        let request = facts.request;
        let bearer = header(request, TOKEN)?.split_once(' ');
        let text = bearer.filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer")).map(|(_, text)| text.trim());
        let token = Token::split(text.ok_or_else(|| malformed("the authorization is no bearer token"))?)?;
        token.head(&["HS256"])?;
        let claims: Claims = token.claims()?;
        let issued = claims.iat.ok_or_else(|| malformed("the token does not say when it was issued"))?;
        let at = issued.saturating_mul(1_000);
        let skew = self.window.holds(request.received_at, (at, Told::Seconds), "the token")?;
        if let Some(expires) = claims.exp {
            Window(Some(0)).not_after(request.received_at, expires, "the token's end")?;
        }
        let refused = |refusal: Refusal| Refusal { skew_seconds: Some(skew), ..refusal };
        let candidate = self.macs.decode(token.signature()).map_err(refused)?;
        let secret = self.macs.prove(&[token.signed.as_bytes()], &[candidate]).map_err(refused)?;
        // A token without the hash would go with any body.
        let is_hash = |told: &str| told == sha256_hex(request.body);
        let fits = match claims.payload_hash.as_deref() {
            Some(told) => is_hash(told),
            None => request.body.is_empty(),
        };
        if !fits {
            return Err(refused(differs("the body")).into());
        }
        let proof = Proof::new(Some(secret), &[token.signed.as_bytes()]);
        Ok(Proof { skew_seconds: Some(skew), id: claims.jti, ..proof })
    }

    fn covers(&self, at: &Locator) -> bool {
        matches!(at, Locator::Form(_) | Locator::Json(..))
    }

    fn body(&self) -> BodyCover {
        BodyCover::Bytes
    }

    fn sign(&self, request: SignRequest<'_>) -> Result<Vec<(String, String)>, SignError> {
        let claims = json!({
            "iss": "Vonage", "iat": request.timestamp.as_seconds(), "jti": request.id,
            "payload_hash": sha256_hex(request.body),
        });
        let signed = unsigned(&json!({ "alg": "HS256", "typ": "JWT" }), &claims);
        let signature = self.macs.sign(&[signed.as_bytes()])?;
        Ok(vec![(TOKEN.to_owned(), format!("Bearer {signed}.{signature}"))])
    }
}
