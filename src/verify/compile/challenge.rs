//! Handshakes: what they match, and answers that are safe to give.

use super::Compiler;
use crate::secret::Secret;
use crate::verify::challenge::{Challenge, Check, Whole};
use crate::verify::key::Algorithm;
use crate::verify::locator::Locator;
use crate::verify::spec::{ChallengeSpec, CheckSpec, SchemeSpec};
use crate::verify::template::{self, Function, Piece};
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use sha2::Digest as _;

/// Any value.
const ANY: &str = "*";

/// Headers that the exchange itself needs, or that would leave something behind at the caller.
const NOT_OURS: [HeaderName; 6] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::LOCATION,
    header::SET_COOKIE,
    header::TRANSFER_ENCODING,
];

impl Compiler {
    pub(super) fn challenges(
        &mut self,
        spec: &SchemeSpec,
        algorithm: Option<Algorithm>,
        secrets: &[Secret],
    ) -> Vec<Challenge> {
        let reserved = super::reserved(std::slice::from_ref(spec));
        let each = spec.challenge.iter().enumerate();
        each.filter_map(|(i, challenge)| self.challenge(i, challenge, algorithm, (secrets, &reserved))).collect()
    }

    fn challenge(
        &mut self,
        index: usize,
        spec: &ChallengeSpec,
        algorithm: Option<Algorithm>,
        (secrets, reserved): (&[Secret], &[String]),
    ) -> Option<Challenge> {
        let field = |name: &str| format!("challenge[{index}].{name}");
        let signed = spec.signed.unwrap_or(true);
        let method = spec.method.as_deref().unwrap_or("POST").parse::<Method>();
        let method = self.found(&field("method"), method.map_err(|_| "is not a method: write `POST`".to_owned()));
        let matches = self.literals(&field("match"), &spec.matches);
        let matches = matches.into_iter().map(|(at, literal)| (at, (literal != ANY).then_some(literal))).collect();
        let whole = spec.request_body.as_deref().map(whole);
        let whole = whole.and_then(|whole| self.found(&field("request_body"), whole));
        let status = spec.status.unwrap_or(200);
        let status = StatusCode::from_u16(status).ok().filter(StatusCode::is_success);
        let status = self.found(&field("status"), status.ok_or_else(|| "has to be 200 to 299".to_owned()));
        let content_type = spec.content_type.as_deref().unwrap_or("text/plain");
        let mut headers = Vec::new();
        for (name, text) in &spec.headers {
            let field = field(&format!("headers.{name}"));
            let known = name.parse::<HeaderName>().ok().filter(|name| !NOT_OURS.contains(name));
            let rule = || "is not a header that an answer may have: remove it".to_owned();
            let name = self.found(&field, known.ok_or_else(rule));
            headers.extend(name.zip(self.answer(&field, text, algorithm)));
        }
        let body = self.answer(&field("body"), spec.body.as_deref().unwrap_or_default(), algorithm);
        let places = |pieces: &[Piece]| template::flat(pieces).any(|piece| matches!(piece, Piece::Place(_)));
        let echoes = body.as_deref().is_some_and(places);
        let brings = echoes || headers.iter().any(|(_, pieces)| places(pieces)) || spec.check.is_some();
        let told = brings || spec.request_body.as_ref().is_some_and(|body| !body.is_empty());
        if spec.matches.is_empty() && !told && body.is_some() && method != Some(Method::HEAD) {
            self.problem(&field("match"), "is missing: say what tells a challenge from an event");
        }
        if !signed && echoes && !["text/plain", "application/json"].contains(&content_type) {
            let rule = "could make a browser run what anybody sends: write `text/plain` or `application/json`";
            self.problem(&field("content_type"), rule);
        }
        let content_type = HeaderValue::from_str(content_type);
        let content_type = content_type.map_err(|_| "is not a header value: write `text/plain`".to_owned());
        let content_type = self.found(&field("content_type"), content_type);
        let check = spec.check.as_ref().map(|check| {
            if signed {
                self.problem(&field("check"), "has no effect, the signature says more: write `signed = false`");
            }
            if check.adopt && method != Some(Method::POST) {
                self.problem(&field("check.adopt"), "takes a secret from a POST alone: leave `method` out");
            }
            self.check(&field("check"), check, secrets, reserved)
        });
        let check = match check {
            Some(check) => Some(check?),
            None => None,
        };
        Some(Challenge {
            method: method?,
            signed,
            matches,
            whole,
            check,
            status: status?,
            content_type: content_type?,
            headers,
            body: body?,
        })
    }

    fn check(&mut self, field: &str, spec: &CheckSpec, secrets: &[Secret], reserved: &[String]) -> Option<Check> {
        let at = self.locator(&format!("{field}.at"), &spec.at);
        if spec.key.as_ref().is_some_and(String::is_empty) {
            self.problem(&format!("{field}.key"), "is empty: write how the secrets for it begin, such as `verify:`");
        }
        if spec.adopt && spec.key.is_some() {
            self.problem(
                &format!("{field}.adopt"),
                "takes the secret that verifies, and none beside it: leave `key` out",
            );
        }
        let for_this = |secret: &Secret| {
            let text = secret.expose();
            match &spec.key {
                Some(prefix) => text.strip_prefix(prefix.as_bytes()).map(<[u8]>::to_vec),
                None => (!is_reserved(secret, reserved)).then(|| text.to_vec()),
            }
        };
        let texts = secrets.iter().filter_map(for_this).map(zeroize::Zeroizing::new);
        // An empty one is a mistake, never a check that everybody passes.
        let digests = texts.filter(|text| !text.is_empty()).map(|text| sha2::Sha256::digest(&*text).into()).collect();
        at.map(|at| Check { at, digests, key: spec.key.clone(), adopts: spec.adopt })
    }

    fn answer(&mut self, field: &str, text: &str, algorithm: Option<Algorithm>) -> Option<Vec<Piece>> {
        let wanted = &mut self.wanted;
        let mut place = |text: &str| match Locator::parse(text, wanted)? {
            Locator::Sig(_) => Err(format!("`{{{text}}}`: an answer holds places of the request")),
            at => Ok(Piece::Place(at)),
        };
        let mut resolve = |name: &str| {
            let Some((name, function)) = name.rsplit_once('|') else { return place(name) };
            match Function::parse(function) {
                Some(function @ (Function::HmacHex | Function::HmacBase64)) => {
                    if algorithm.is_some_and(|algorithm| !algorithm.is_hmac()) {
                        return Err(format!("`{{{name}|…}}` needs a secret for HMAC: the scheme has none"));
                    }
                    Ok(Piece::Call(function, Box::new(place(name)?)))
                }
                _ => Err(format!("`{function}` is not known: use `hmac-hex` or `hmac-base64`")),
            }
        };
        let pieces = template::parse(text, &mut resolve);
        let pieces = self.found(field, pieces)?;
        if pieces.iter().any(|piece| matches!(piece, Piece::Group(_))) {
            self.problem(field, r"has no optional part: write `\[` and `\]` for the characters");
        }
        Some(pieces)
    }
}

/// A body with at most one number in it.
fn whole(text: &str) -> Result<Whole, String> {
    match text.split_once('#') {
        None => Ok(Whole { before: text.into(), after: None }),
        Some((_, after)) if after.contains('#') => Err("has more than one `#`: leave one, for the number".to_owned()),
        Some((before, after)) => Ok(Whole { before: before.into(), after: Some(after.into()) }),
    }
}

/// Whether the secret is for handshakes alone.
pub(super) fn is_reserved(secret: &Secret, reserved: &[String]) -> bool {
    reserved.iter().any(|prefix| secret.expose().starts_with(prefix.as_bytes()))
}
