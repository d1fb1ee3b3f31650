//! A token with hashes of the URL and the body, signed with the shared secret.

use super::jws::{Token, unsigned};
use super::read::{differs, header, malformed, sha256_hex};
use super::time::Window;
use super::{About, BodyCover, Builtin, Entry, Macs, Proof, TEXT_KEY};
use crate::verify::compile::Make;
use crate::verify::key::{Algorithm, Encoding, KeyForm};
use crate::verify::keys::{KeyAtHand, Stop};
use crate::verify::locator::{Facts, Locator};
use crate::verify::refusal::Refusal;
use crate::verify::sign::{SignError, SignRequest};
use serde::Deserialize;
use serde_json::json;

const TOKEN: &str = "messagebird-signature-jwt";
const ISSUER: &str = "MessageBird";
/// How long a token that we sign is in force.
const SIGNED_FOR_SECONDS: i64 = 60;

pub(super) const ENTRY: Entry = Entry {
    params: &[],
    publishes_keys: false,
    headers: &[TOKEN],
    build,
    about: About {
        algorithm: "hmac-sha256, hmac-sha384 or hmac-sha512, as the token says",
        key: TEXT_KEY,
        signature: &["header:MessageBird-Signature-JWT"],
        form: "a token (JWT)",
        signed: "the token, which holds hashes of URL and body",
        time: Some("nbf and exp of the token in s"),
        id: &["jti of the token"],
        ..About::BARE
    },
};

struct MessageBirdJwt {
    hs256: Macs,
    hs384: Macs,
    hs512: Macs,
    leeway: Window,
}

fn build(make: &mut Make<'_>) -> Option<Box<dyn Builtin>> {
    let mut macs = |algorithm| make.macs(algorithm, Encoding::Base64Url, KeyForm::Text);
    let (hs256, hs384, hs512) =
        (macs(Algorithm::HmacSha256)?, macs(Algorithm::HmacSha384)?, macs(Algorithm::HmacSha512)?);
    Some(Box::new(MessageBirdJwt { hs256, hs384, hs512, leeway: Window(make.tolerance_millis()) }))
}

#[derive(Deserialize)]
struct Claims {
    iss: Option<String>,
    nbf: Option<i64>,
    exp: Option<i64>,
    jti: Option<String>,
    url_hash: Option<String>,
    payload_hash: Option<String>,
}

impl Builtin for MessageBirdJwt {
    fn check(&self, facts: &Facts<'_>, _: KeyAtHand<'_>) -> Result<Proof, Stop> {
        let request = facts.request;
        let token = Token::split(header(request, TOKEN)?)?;
        let macs = match token.head(&["HS256", "HS384", "HS512"])?.alg.as_str() {
            "HS384" => &self.hs384,
            "HS512" => &self.hs512,
            _ => &self.hs256,
        };
        let claims: Claims = token.claims()?;
        let (Some(not_before), Some(expires)) = (claims.nbf, claims.exp) else {
            return Err(malformed("the token does not say from when to when it is in force").into());
        };
        self.leeway.not_before(request.received_at, not_before, "the token")?;
        self.leeway.not_after(request.received_at, expires, "the token's end")?;
        let skew = request.received_at.as_seconds().saturating_sub(not_before);
        let refused = |refusal: Refusal| Refusal { skew_seconds: Some(skew), ..refusal };
        let candidate = macs.decode(token.signature()).map_err(refused)?;
        let secret = macs.prove(&[token.signed.as_bytes()], &[candidate]).map_err(refused)?;
        if claims.iss.as_deref() != Some(ISSUER) {
            return Err(refused(differs("the token's issuer")).into());
        }
        if claims.url_hash.as_deref() != Some(&sha256_hex(request.url.as_bytes())) {
            return Err(refused(differs("the URL")).into());
        }
        let body_hash = (!request.body.is_empty()).then(|| sha256_hex(request.body));
        if claims.payload_hash != body_hash {
            return Err(refused(differs("the body")).into());
        }
        let proof = Proof::new(Some(secret), &[token.signed.as_bytes()]);
        Ok(Proof { skew_seconds: Some(skew), id: claims.jti, ..proof })
    }

    fn covers(&self, at: &Locator) -> bool {
        matches!(at, Locator::Query(_) | Locator::Form(_) | Locator::Json(..))
    }

    fn body(&self) -> BodyCover {
        BodyCover::Bytes
    }

    fn signs_url(&self) -> bool {
        true
    }

    fn sign(&self, request: SignRequest<'_>) -> Result<Vec<(String, String)>, SignError> {
        let now = request.timestamp.as_seconds();
        let mut claims = json!({
            "iss": ISSUER, "nbf": now, "exp": now.saturating_add(SIGNED_FOR_SECONDS), "jti": request.id,
            "url_hash": sha256_hex(request.url.as_bytes()),
        });
        if !request.body.is_empty() {
            claims["payload_hash"] = json!(sha256_hex(request.body));
        }
        let signed = unsigned(&json!({ "alg": "HS256", "typ": "JWT" }), &claims);
        let signature = self.hs256.sign(&[signed.as_bytes()])?;
        Ok(vec![(TOKEN.to_owned(), format!("{signed}.{signature}"))])
    }
}
