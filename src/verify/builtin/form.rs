//! Forms and queries as the schemes that sort them see them.

use super::read::malformed;
use crate::verify::locator::decoded;
use crate::verify::refusal::Refusal;
use crate::verify::source::Request;
use http::header::CONTENT_TYPE;
use std::borrow::Cow;

/// More parameters than this no provider sends; sorting them is not free.
const PAIRS_MAX: usize = 4_096;

/// A name and its value, decoded.
pub(super) type Pair<'r> = (Cow<'r, [u8]>, Cow<'r, [u8]>);

/// The parameters of form or query text, in their order.
pub(super) fn pairs(text: &[u8]) -> Result<Vec<Pair<'_>>, Refusal> {
    let mut pairs = Vec::new();
    for pair in text.split(|b| *b == b'&').filter(|pair| !pair.is_empty()) {
        if pairs.len() == PAIRS_MAX {
            return Err(malformed(format!("more than {PAIRS_MAX} parameters")));
        }
        let at = pair.iter().position(|b| *b == b'=').unwrap_or(pair.len());
        pairs.push((decoded(&pair[..at]), decoded(pair.get(at + 1..).unwrap_or_default())));
    }
    Ok(pairs)
}

/// The media type of the body, in lower case and without parameters; empty when none is told.
pub(super) fn media_type(request: Request<'_>) -> String {
    let told = request.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    told.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

pub(super) fn is_form(request: Request<'_>) -> bool {
    media_type(request) == "application/x-www-form-urlencoded"
}

/// The form that the body is. Refused is what the signature would not cover: a body of another kind, and parameters with
/// neither name nor value.
pub(super) fn form(request: Request<'_>) -> Result<Vec<Pair<'_>>, Refusal> {
    let body = &request.body[..];
    if body.is_empty() {
        return Ok(Vec::new());
    }
    if !is_form(request) {
        return Err(malformed("the body is no form, and the signature covers nothing else"));
    }
    if body.split(|b| *b == b'&').any(|pair| pair.is_empty() || pair == b"=") {
        return Err(malformed("the form has a parameter with neither name nor value"));
    }
    pairs(body)
}

/// The one value of a parameter. `None`: absent, or there twice.
pub(super) fn single<'p>(pairs: &'p [Pair<'_>], name: &str) -> Option<&'p [u8]> {
    let mut values = pairs.iter().filter(|(key, _)| key.as_ref() == name.as_bytes());
    match (values.next(), values.next()) {
        (Some((_, value)), None) => Some(value.as_ref()),
        (Some(_) | None, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_decoded_as_bytes_and_bounded() {
        let read = pairs(b"a=1&&b+c=%ff&d&=e").unwrap();
        let read: Vec<(&[u8], &[u8])> = read.iter().map(|(k, v)| (k.as_ref(), v.as_ref())).collect();
        assert_eq!(read, [(&b"a"[..], &b"1"[..]), (b"b c", b"\xff"), (b"d", b""), (b"", b"e")]);
        assert!(pairs("a&".repeat(PAIRS_MAX).as_bytes()).is_ok());
        assert!(pairs("a&".repeat(PAIRS_MAX + 1).as_bytes()).is_err());
        let twice = pairs(b"a=1&b=2&a=3").unwrap();
        assert_eq!((single(&twice, "a"), single(&twice, "b"), single(&twice, "c")), (None, Some(&b"2"[..]), None));
    }
}
