//! Signing by the same data that verifies: what a provider would send. For trying things out; deliveries are signed by
//! [`standard`](super::standard).

use super::check::{Alternative, is_word};
use super::key::Message as _;
use super::locator::{Facts, Locator};
use super::source::{Request, Source};
use super::template::{self, Piece, Rendered, Values};
use crate::clock::Timestamp;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method};
use std::borrow::Cow;
use zeroize::Zeroizing;

/// What is to be signed, as a `POST`.
#[derive(Clone, Copy, Debug)]
pub struct SignRequest<'a> {
    /// The event's id, for schemes that carry it in a header.
    pub id: &'a str,
    /// Its type, for schemes that carry it in a header.
    pub event_type: Option<&'a str>,
    pub timestamp: Timestamp,
    /// The URL that it is sent to.
    pub url: &'a str,
    pub body: &'a Bytes,
}

/// Why a request cannot be signed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SignError {
    #[error("none of the source's secrets can sign: a public key only verifies, give the private one")]
    NoSigningKey,
    #[error("the source has no secret of its own: the one that its provider handed over is in the gateway's ledger")]
    NoSecret,
    #[error("the scheme carries its signature in a {0}, and only headers can be added to a given body and URL")]
    NotAHeader(String),
    #[error(
        "the scheme signs `{0}`, and nothing says what stands there: send such a request with the provider's own tool"
    )]
    UnknownValue(String),
    #[error("the id `{0}` is not 1 to 128 of A-Z, a-z, 0-9, `_` and `-`")]
    BadId(String),
}

impl Source {
    /// The headers that make this source accept the request, the signature's first. Where the scheme has a list of
    /// signatures, every secret makes one; else the first does.
    pub fn sign(&self, request: SignRequest<'_>) -> Result<Vec<(String, String)>, SignError> {
        if let Some(code) = &self.code {
            return code.check.sign(request);
        }
        let mut last = if self.waits.is_some() { SignError::NoSecret } else { SignError::NoSigningKey };
        for alternative in self.alternatives() {
            match self.sign_as(alternative, request) {
                Ok(headers) => return Ok(headers),
                // A reason that can be acted on is worth more than that there is no key.
                Err(SignError::NoSigningKey) => {}
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn sign_as(&self, alternative: &Alternative, sign: SignRequest<'_>) -> Result<Vec<(String, String)>, SignError> {
        let sig = &alternative.sig;
        let at = sig
            .at
            .iter()
            .find_map(header)
            .ok_or_else(|| SignError::NotAHeader(sig.at.first().map(Locator::to_string).unwrap_or_default()))?;
        let id_headers: Vec<&HeaderName> = alternative.id.iter().filter_map(|(at, _)| header(at)).collect();
        if alternative.id_is_word && !id_headers.is_empty() && !is_word(sign.id.as_bytes()) {
            return Err(SignError::BadId(sign.id.to_owned()));
        }
        let no_headers = HeaderMap::new();
        let request = Request {
            method: &Method::POST,
            url: sign.url,
            headers: &no_headers,
            body: sign.body,
            received_at: sign.timestamp,
        };
        let facts = Facts::new(request, &self.wanted);
        let mut headers: Vec<(String, String)> = Vec::new();
        let mut values = Values::new();
        for (index, var) in alternative.vars.iter().enumerate() {
            let time = alternative.time.as_ref().filter(|time| time.var == index);
            let value = match (&var.locator, time) {
                (Locator::Header(..) | Locator::Sig(_), Some(time)) => Some(time.unit.write(sign.timestamp)),
                (Locator::Header(_, name), None) if id_headers.contains(&name) => Some(sign.id.to_owned()),
                (Locator::Header(..) | Locator::Sig(_), None) => None,
                (Locator::Json(..) | Locator::Form(_) | Locator::Query(_), _) => {
                    facts.text_at(&var.locator).map(Cow::into_owned)
                }
            };
            if value.is_none() && !var.optional {
                return Err(SignError::UnknownValue(var.locator.to_string()));
            }
            if let (Locator::Header(_, name), Some(value)) = (&var.locator, &value) {
                headers.push((name.to_string(), value.clone()));
            }
            values.push(value.map(|value| Cow::Owned(value.into_bytes())));
        }
        let made: Vec<Zeroizing<String>> = alternative
            .keys
            .iter()
            .filter_map(|(_, key)| {
                let (pieces, key_text) = (alternative.signed.as_slice(), key.inline());
                key.sign(&Rendered { pieces, request, values: &values, key: key_text }, sig.encoding)
            })
            .collect();
        if made.is_empty() {
            return Err(SignError::NoSigningKey);
        }
        if let Some(items) = &alternative.emit {
            return Ok(finish(alternative, sign, at, emitted(items, alternative, request, values, &made), headers));
        }
        let mut items: Vec<String> = made
            .iter()
            .map(|signature| match (sig.pair, sig.take.first()) {
                (Some(pair), Some(version)) => format!("{version}{}{}{}", char::from(pair), sig.prefix, **signature),
                (Some(_), None) | (None, _) => format!("{}{}", sig.prefix, **signature),
            })
            .collect();
        let Some(split) = sig.split else {
            return Ok(finish(alternative, sign, at, items.swap_remove(0), headers));
        };
        let beside = alternative.vars.iter().zip(&values).filter_map(|(var, value)| match (&var.locator, value) {
            (Locator::Sig(key), Some(value)) => {
                sig.pair.map(|pair| format!("{key}{}{}", char::from(pair), String::from_utf8_lossy(value)))
            }
            _ => None,
        });
        let list: Vec<String> = beside.chain(items).collect();
        Ok(finish(alternative, sign, at, list.join(char::from(split).encode_utf8(&mut [0; 4])), headers))
    }
}

/// The signature's header as the scheme says that it is written: what holds the signature comes once for each, where
/// there can be several.
fn emitted(
    items: &[Vec<Piece>],
    alternative: &Alternative,
    request: Request<'_>,
    mut values: Values<'_>,
    made: &[Zeroizing<String>],
) -> String {
    let signature = values.len();
    values.push(None);
    let mut texts = Vec::new();
    for item in items {
        let holds = template::variables(item).any(|index| index == signature);
        let times = if !holds || alternative.sig.split.is_none() { 1 } else { made.len() };
        for made in made.iter().take(times) {
            values[signature] = Some(Cow::Owned(made.as_bytes().to_vec()));
            let text = Rendered { pieces: item, request, values: &values, key: None }.copied();
            texts.push(String::from_utf8_lossy(&text).into_owned());
        }
    }
    let mut split = [0; 4];
    texts.join(alternative.sig.split.map_or("", |byte| char::from(byte).encode_utf8(&mut split)))
}

/// Adds the signature's header and those that the scheme requires or reads id and type from.
fn finish(
    alternative: &Alternative,
    sign: SignRequest<'_>,
    at: &HeaderName,
    signature: String,
    headers: Vec<(String, String)>,
) -> Vec<(String, String)> {
    let mut all = vec![(at.to_string(), signature)];
    all.extend(headers);
    let required = alternative
        .require
        .iter()
        .filter_map(|(at, literal)| header(at).map(|name| (name, String::from_utf8_lossy(literal).into_owned())));
    let id = alternative.id.first().and_then(|(at, _)| header(at)).map(|name| (name, sign.id.to_owned()));
    let event_type = alternative.event_type.first().and_then(header).zip(sign.event_type.map(str::to_owned));
    for (name, value) in required.chain(id).chain(event_type) {
        if !all.iter().any(|(known, _)| known == name.as_str()) {
            all.push((name.to_string(), value));
        }
    }
    all
}

fn header(at: &Locator) -> Option<&HeaderName> {
    match at {
        Locator::Header(_, name) => Some(name),
        Locator::Query(_) | Locator::Form(_) | Locator::Json(..) | Locator::Sig(_) => None,
    }
}
