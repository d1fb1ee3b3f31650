//! Reading what the checks need, and the refusals when it is not there.

use crate::verify::key::Encoding;
use crate::verify::producer::truncated;
use crate::verify::refusal::{CheckStep, Refusal, RefusalCode};
use crate::verify::source::{ChallengeAnswer, Request};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use sha2::{Digest as _, Sha256};

/// No signature, token or certificate field that is told in a header or a body is longer.
const SIGNATURE_TEXT_MAX: usize = 8 << 10;

/// The one value of a header, as text.
pub(super) fn header<'r>(request: Request<'r>, name: &'static str) -> Result<&'r str, Refusal> {
    let mut values = request.headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(_), Some(_)) => {
            Err(Refusal::malformed(CheckStep::Presence, format!("header {name} is there more than once")))
        }
        (Some(value), None) if !value.is_empty() => std::str::from_utf8(value.as_bytes())
            .map_err(|_| Refusal::malformed(CheckStep::Structure, format!("header {name} is not text"))),
        (Some(_) | None, _) => Err(Refusal::missing(format!("header {name} is absent or empty"))),
    }
}

/// A header that the request itself names: told by its number, since the name is the sender's text.
pub(super) fn numbered(index: usize) -> String {
    format!("number {} of the headers that the signature lists", index + 1)
}

pub(super) fn malformed(detail: impl Into<String>) -> Refusal {
    Refusal::malformed(CheckStep::Structure, detail)
}

pub(super) fn undecodable() -> Refusal {
    not_in("the scheme's encoding, with the right number of bytes")
}

fn not_in(form: &str) -> Refusal {
    Refusal::malformed(CheckStep::Decoding, format!("no signature is in {form}"))
}

pub(super) fn mismatch() -> Refusal {
    let detail = "none of the source's secrets made the signature of these bytes";
    Refusal::new(RefusalCode::SignatureMismatch, CheckStep::Match, detail)
}

/// The signature is right, and what it says of the request is not.
pub(super) fn differs(what: &str) -> Refusal {
    Refusal::new(RefusalCode::SignatureMismatch, CheckStep::Match, format!("{what} is not what was signed"))
}

/// Canonical base64 with its padding.
pub(super) fn base64(text: &str) -> Result<Vec<u8>, Refusal> {
    if text.len() > SIGNATURE_TEXT_MAX {
        return Err(not_in(Encoding::Base64.told()));
    }
    STANDARD.decode(text).map_err(|_| not_in(Encoding::Base64.told()))
}

/// Canonical base64 for URLs, without padding.
pub(super) fn base64url(text: &str) -> Result<Vec<u8>, Refusal> {
    if text.len() > SIGNATURE_TEXT_MAX {
        return Err(not_in(Encoding::Base64Url.told()));
    }
    URL_SAFE_NO_PAD.decode(text).map_err(|_| not_in(Encoding::Base64Url.told()))
}

pub(super) fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// The first half of SHA-256 over what is signed, in one piece: the signature does not say where its parts end.
pub(super) fn content(signed: &[&[u8]]) -> [u8; 16] {
    let mut hash = Sha256::new();
    for part in signed {
        hash.update(part);
    }
    truncated(hash.finalize().into())
}

/// An answer of 200 in plain text.
pub(super) fn told(text: impl Into<Bytes>) -> ChallengeAnswer {
    let content_type = HeaderValue::from_static("text/plain");
    ChallengeAnswer { status: StatusCode::OK, content_type, headers: Vec::new(), body: text.into() }
}
