//! A token with a hash of the body, signed with a key that the provider hands out by name to its customers.

use super::jws::Token;
use super::public::{Jwk, KeySet, Kind};
use super::read::{differs, header, malformed, mismatch, sha256_hex};
use super::time::{Told, Window};
use super::{About, BodyCover, Builtin, Entry, Param, ParamKind, Proof, key_of, no_name, unknown_key};
use crate::secret::Secret;
use crate::verify::compile::Make;
use crate::verify::keys::{KeyAtHand, KeyQuery, KeyUrl, Stop};
use crate::verify::locator::{Facts, Locator};
use crate::verify::refusal::Refusal;
use crate::verify::sign::{SignError, SignRequest};
use serde::Deserialize;
use serde_json::json;

const TOKEN: &str = "plaid-verification";
const ALG: &str = "ES256";
const KIND: Kind = Kind::EcdsaP256;
/// The longest name of a key that is asked for.
const KID_BYTES_MAX: usize = 64;

pub(super) const ENTRY: Entry = Entry {
    params: &[
        Param {
            name: "client_id",
            kind: ParamKind::UsualText,
            about: "whose the secret is; without it the secret is a key set",
            example: "5f3a1b2c3d4e5f6071829304",
            wrong: no_name,
        },
        Param {
            name: "environment",
            kind: ParamKind::OptionalText,
            about: "`production`, unless `sandbox`",
            example: "sandbox",
            wrong: no_environment,
        },
    ],
    publishes_keys: false,
    headers: &[TOKEN],
    build,
    about: About {
        algorithm: "ecdsa-p256-sha256",
        key: "the one that the token names, asked for at production.plaid.com or sandbox.plaid.com \
              with `client_id` and the secret; or of a key set as a secret",
        signature: &["header:Plaid-Verification"],
        form: "a token (JWT)",
        signed: "the token, which holds a hash of the body",
        time: Some("iat of the token in s"),
        only_verifies: true,
        ..About::BARE
    },
};

struct Plaid {
    keys: Keys,
    window: Window,
}

enum Keys {
    /// Key sets that are the source's secrets.
    Given(Vec<KeySet>),
    /// Asked for by name, with the credentials of a customer.
    Api { url: KeyUrl, client_id: String, secret: Secret },
}

const ENVIRONMENTS: [(&str, &str); 2] = [("production", "production.plaid.com"), ("sandbox", "sandbox.plaid.com")];

fn no_environment(text: &str) -> Option<String> {
    let told = "is no environment: write production or sandbox";
    (!ENVIRONMENTS.iter().any(|(name, _)| *name == text)).then(|| told.to_owned())
}

fn build(make: &mut Make<'_>) -> Option<Box<dyn Builtin>> {
    let environment = make.text("environment");
    let is_set = |secret: &Secret| secret.expose().trim_ascii_start().starts_with(b"{");
    let client_id = make.text("client_id");
    let keys = match (client_id, make.secrets()) {
        (None, all) if all.iter().all(is_set) => {
            let sets: Vec<Option<KeySet>> = all.iter().map(|set| KeySet::read(set.expose())).collect();
            if environment.is_some() {
                make.problem("params.environment", "has no effect, the keys are secrets: remove it");
            }
            let bad = sets.iter().position(|set| set.as_ref().is_none_or(KeySet::is_empty));
            if let Some(bad) = bad {
                make.problem(
                    &format!("secrets[{bad}]"),
                    "is no set of keys: give a JWKS such as `{\"keys\":[…]}`, or the API's secret beside `client_id`",
                );
            }
            Keys::Given(sets.into_iter().flatten().collect())
        }
        (Some(client_id), [secret]) if !is_set(secret) => {
            let named = |(name, _): &&(&str, &str)| environment.as_deref().unwrap_or("production") == *name;
            let (_, host) = ENVIRONMENTS.iter().find(named)?;
            let url = KeyUrl::configured(&format!("https://{host}/webhook_verification_key/get"))?;
            Keys::Api { url, client_id, secret: secret.clone() }
        }
        (None, _) => {
            let message = "is missing, and keys are asked for with it: write it beside the API's secret";
            make.problem("params.client_id", message);
            return None;
        }
        (Some(_), _) => {
            make.problem("secrets", "are for `client_id` one, the API's: remove the others");
            return None;
        }
    };
    Some(Box::new(Plaid { keys, window: Window(make.tolerance_millis()) }))
}

#[derive(Deserialize)]
struct Claims {
    iat: Option<i64>,
    request_body_sha256: Option<String>,
}

#[derive(Deserialize)]
struct Answer {
    key: Jwk,
}

impl Plaid {
    fn key(&self, kid: &str, key: KeyAtHand<'_>) -> Result<(Option<usize>, Jwk), Stop> {
        let (url, client_id, secret) = match &self.keys {
            Keys::Given(sets) => {
                let found = sets.iter().enumerate().find_map(|(n, set)| Some((Some(n), set.named(kid)?)));
                return found.ok_or_else(|| unknown_key("no key set has the token's key").into());
            }
            Keys::Api { url, client_id, secret } => (url, client_id, secret),
        };
        let is_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        if kid.is_empty() || kid.len() > KID_BYTES_MAX || !kid.bytes().all(is_name) {
            return Err(unknown_key("the token's key has no name that could be asked for").into());
        }
        let secret = secret.expose_str().unwrap_or_default();
        let body = json!({ "client_id": client_id, "secret": secret, "key_id": kid }).to_string();
        let fetched = key_of(key, || KeyQuery::post(url.clone(), Secret::from(body)))?;
        let answer: Option<Answer> = serde_json::from_slice(fetched.found.bytes()).ok();
        let key = answer.map(|answer| answer.key).filter(|key| key.kid.as_deref() == Some(kid));
        Ok((None, key.ok_or_else(|| unknown_key("the provider's answer is not the token's key"))?))
    }
}

impl Builtin for Plaid {
    fn check(&self, facts: &Facts<'_>, key: KeyAtHand<'_>) -> Result<Proof, Stop> {
        let request = facts.request;
        let token = Token::split(header(request, TOKEN)?)?;
        let head = token.head(&[ALG])?;
        let kid = head.kid.ok_or_else(|| malformed("the token does not name its key"))?;
        let claims: Claims = token.claims()?;
        let issued = claims.iat.ok_or_else(|| malformed("the token does not say when it was issued"))?;
        let at = issued.saturating_mul(1_000);
        let skew = self.window.holds(request.received_at, (at, Told::Seconds), "the token")?;
        let refused = |refusal: Refusal| Refusal { skew_seconds: Some(skew), ..refusal };
        let signature = token.signature_bytes(64).map_err(refused)?;
        let (secret, jwk) = self.key(&kid, key)?;
        if jwk.expired_at.is_some_and(|at| at <= request.received_at.as_seconds()) {
            return Err(refused(unknown_key("the provider has retired the token's key")).into());
        }
        let key = jwk.public_key(KIND, ALG).ok_or_else(|| unknown_key("the token's key is of another kind"))?;
        if !key.verifies(token.signed.as_bytes(), &signature) {
            return Err(refused(mismatch()).into());
        }
        if claims.request_body_sha256.as_deref() != Some(&sha256_hex(request.body)) {
            return Err(refused(differs("the body")).into());
        }
        Ok(Proof { skew_seconds: Some(skew), ..Proof::new(secret, &[token.signed.as_bytes()]) })
    }

    fn covers(&self, at: &Locator) -> bool {
        matches!(at, Locator::Form(_) | Locator::Json(..))
    }

    fn body(&self) -> BodyCover {
        BodyCover::Bytes
    }

    fn sign(&self, _: SignRequest<'_>) -> Result<Vec<(String, String)>, SignError> {
        Err(SignError::NoSigningKey)
    }
}
