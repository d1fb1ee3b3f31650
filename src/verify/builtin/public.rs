//! Public keys: from PEM, from a key set, from a certificate. The algorithm is the scheme's; a key of another kind is
//! no key.

use super::read::undecodable;
use crate::verify::refusal::Refusal;
use aws_lc_rs::rsa::PublicKeyComponents;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ED25519, ParsedPublicKey,
    RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY, RSA_PKCS1_2048_8192_SHA256, RSA_PSS_2048_8192_SHA512, RsaParameters,
    VerificationAlgorithm,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls_pki_types::SubjectPublicKeyInfoDer;
use rustls_pki_types::pem::PemObject as _;
use serde::Deserialize;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Of the two numbers side by side, not of their DER.
    EcdsaP256,
    EcdsaP384,
    EcdsaP521,
    Ed25519,
    RsaSha1,
    RsaSha256,
    RsaPssSha512,
}

impl Kind {
    /// How many there are; each is its own number.
    pub(super) const COUNT: usize = Kind::RsaPssSha512 as usize + 1;

    fn verification(self) -> &'static dyn VerificationAlgorithm {
        match self {
            Kind::EcdsaP256 => &ECDSA_P256_SHA256_FIXED,
            Kind::EcdsaP384 => &ECDSA_P384_SHA384_FIXED,
            Kind::EcdsaP521 => &ECDSA_P521_SHA512_FIXED,
            Kind::Ed25519 => &ED25519,
            Kind::RsaSha1 | Kind::RsaSha256 | Kind::RsaPssSha512 => self.rsa(),
        }
    }

    fn rsa(self) -> &'static RsaParameters {
        match self {
            Kind::RsaSha1 => &RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY,
            Kind::RsaPssSha512 => &RSA_PSS_2048_8192_SHA512,
            Kind::RsaSha256 | Kind::EcdsaP256 | Kind::EcdsaP384 | Kind::EcdsaP521 | Kind::Ed25519 => {
                &RSA_PKCS1_2048_8192_SHA256
            }
        }
    }

    /// The curve's name in a key set, and the bytes of one coordinate.
    fn curve(self) -> Option<(&'static str, usize)> {
        match self {
            Kind::EcdsaP256 => Some(("P-256", 32)),
            Kind::EcdsaP384 => Some(("P-384", 48)),
            Kind::EcdsaP521 => Some(("P-521", 66)),
            Kind::Ed25519 => Some(("Ed25519", 32)),
            Kind::RsaSha1 | Kind::RsaSha256 | Kind::RsaPssSha512 => None,
        }
    }

    /// `None`: as long as the key.
    fn signature_bytes(self) -> Option<usize> {
        self.curve().map(|(_, coordinate)| 2 * coordinate)
    }

    /// Whether a signature can be of this kind.
    pub(super) fn fits(self, signature: &[u8]) -> Result<(), Refusal> {
        let fits = match self.signature_bytes() {
            Some(length) => signature.len() == length,
            None => (256..=1_024).contains(&signature.len()),
        };
        if fits { Ok(()) } else { Err(undecodable()) }
    }
}

#[derive(Clone)]
pub(super) struct PublicKey(ParsedPublicKey);

impl PublicKey {
    /// A `SubjectPublicKeyInfo`, or the bare bytes that the algorithm calls a key.
    pub(super) fn from_der(kind: Kind, der: &[u8]) -> Option<PublicKey> {
        ParsedPublicKey::new(kind.verification(), der).ok().map(PublicKey)
    }

    pub(super) fn from_pem(kind: Kind, pem: &[u8]) -> Option<PublicKey> {
        let der = SubjectPublicKeyInfoDer::from_pem_slice(pem).ok()?;
        PublicKey::from_der(kind, &der)
    }

    pub(super) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        self.0.verify_sig(message, signature).is_ok()
    }
}

/// A key of a key set (RFC 7517). A field that is there twice is a mistake.
#[derive(Deserialize)]
pub(super) struct Jwk {
    kty: String,
    pub(super) kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    crv: Option<String>,
    x: Option<String>,
    y: Option<String>,
    n: Option<String>,
    e: Option<String>,
    /// Seconds since 1970, where the provider retired the key.
    pub(super) expired_at: Option<i64>,
}

#[derive(Deserialize)]
pub(super) struct KeySet {
    keys: Vec<serde_json::Value>,
}

impl KeySet {
    pub(super) fn read(text: &[u8]) -> Option<KeySet> {
        serde_json::from_slice(text).ok()
    }

    /// The key of that name. Keys of other kinds beside it need not be understood.
    pub(super) fn named(&self, kid: &str) -> Option<Jwk> {
        let is_named = |key: &&serde_json::Value| key.get("kid").and_then(serde_json::Value::as_str) == Some(kid);
        self.keys.iter().find(is_named).and_then(|key| serde_json::from_value(key.clone()).ok())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

impl Jwk {
    /// The key, if it is for this kind of signature; `alg` is the name that it may carry.
    pub(super) fn public_key(&self, kind: Kind, alg: &str) -> Option<PublicKey> {
        let is_other = |told: &Option<String>, ours: &str| told.as_ref().is_some_and(|told| told != ours);
        if is_other(&self.alg, alg) || is_other(&self.purpose, "sig") {
            return None;
        }
        let bytes = |text: &Option<String>| URL_SAFE_NO_PAD.decode(text.as_ref()?).ok();
        match kind.curve() {
            Some((curve, length)) => {
                if is_other(&self.crv, curve) || self.crv.is_none() {
                    return None;
                }
                // Some writers leave leading zeros out.
                let whole = |bytes: Vec<u8>| {
                    let missing = length.checked_sub(bytes.len())?;
                    Some([vec![0; missing], bytes].concat())
                };
                let x = whole(bytes(&self.x)?)?;
                if kind == Kind::Ed25519 {
                    return (self.kty == "OKP").then(|| PublicKey::from_der(kind, &x))?;
                }
                let y = whole(bytes(&self.y)?)?;
                (self.kty == "EC").then(|| PublicKey::from_der(kind, &[&[4], &x[..], &y].concat()))?
            }
            None if self.kty == "RSA" => {
                let bare = |bytes: Vec<u8>| bytes.into_iter().skip_while(|b| *b == 0).collect::<Vec<u8>>();
                let components = PublicKeyComponents { n: bare(bytes(&self.n)?), e: bare(bytes(&self.e)?) };
                components.to_parsed_public_key(kind.rsa()).ok().map(PublicKey)
            }
            None => None,
        }
    }
}
