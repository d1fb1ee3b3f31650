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

/// All that an unsigned request may ask for. A POST is mostly an event, the others never are.
const METHODS: [Method; 4] = [Method::POST, Method::GET, Method::HEAD, Method::OPTIONS];

/// How names begin that mean something to a provider alone, so that they may hold what a request brings.
const PROVIDERS: [&str; 2] = ["x-", "webhook-"];
/// But for these, which mean something to a browser or to a proxy in front of us.
const NOT_PROVIDERS: [&str; 9] = [
    "x-accel-",
    "x-content-",
    "x-dns-",
    "x-frame-",
    "x-lighttpd-",
    "x-permitted-",
    "x-reproxy-",
    "x-sendfile",
    "x-xss-",
];

/// Headers that come with any request, an event too, whatever the provider means by it.
const COMMON: [HeaderName; 20] = [
    header::ACCEPT,
    header::ACCEPT_ENCODING,
    header::ACCEPT_LANGUAGE,
    header::AUTHORIZATION,
    header::CACHE_CONTROL,
    header::CONNECTION,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::COOKIE,
    header::DATE,
    header::EXPECT,
    header::FORWARDED,
    header::HOST,
    header::ORIGIN,
    header::REFERER,
    header::TE,
    header::TRANSFER_ENCODING,
    header::USER_AGENT,
    header::VIA,
];

fn is_common(at: &Locator) -> bool {
    matches!(at, Locator::Header(_, name) if COMMON.contains(name) || name.as_str().starts_with("x-forwarded-"))
}

/// Whether a place of the request is in it.
fn echoes(pieces: &[Piece]) -> bool {
    template::flat(pieces).any(|piece| matches!(piece.inner(), Piece::Place(_)))
}

impl Compiler {
    pub(super) fn challenges(
        &mut self,
        spec: &SchemeSpec,
        algorithm: Option<Algorithm>,
        secrets: &[Secret],
    ) -> Vec<Challenge> {
        let reserved = super::reserved(std::slice::from_ref(spec));
        let each = spec.challenge.iter().enumerate();
        let sig = spec.sig.as_ref().map(|sig| sig.at.as_slice()).unwrap_or_default();
        each.filter_map(|(i, challenge)| self.challenge(i, challenge, algorithm, (secrets, &reserved, sig))).collect()
    }

    fn challenge(
        &mut self,
        index: usize,
        spec: &ChallengeSpec,
        algorithm: Option<Algorithm>,
        (secrets, reserved, sig): (&[Secret], &[String], &[String]),
    ) -> Option<Challenge> {
        let field = |name: &str| format!("challenge[{index}].{name}");
        let signed = spec.signed.unwrap_or(true);
        let method = spec.method.as_deref().unwrap_or("POST").parse::<Method>();
        let method = method.ok().filter(|method| METHODS.contains(method));
        let rule = || "is none that a handshake has: write POST, GET, HEAD or OPTIONS, in capitals".to_owned();
        let method = self.found(&field("method"), method.ok_or_else(rule));
        let matches = self.literals(&field("match"), &spec.matches);
        let matches: Vec<(Locator, Option<String>)> =
            matches.into_iter().map(|(at, literal)| (at, (literal != ANY).then_some(literal))).collect();
        let whole = spec.request_body.as_deref().map(whole);
        let whole = whole.and_then(|whole| self.found(&field("request_body"), whole));
        let status = spec.status.unwrap_or(200);
        let status = StatusCode::from_u16(status).ok().filter(StatusCode::is_success);
        let status = self.found(&field("status"), status.ok_or_else(|| "has to be 200 to 299".to_owned()));
        let content_type = spec.content_type.as_deref().unwrap_or("text/plain");
        let mut headers = Vec::new();
        for (name, text) in &spec.headers {
            let field = field(&format!("headers.{name}"));
            let value = self.answer(&field, text, algorithm);
            let name = self.answer_header(&field, name, value.as_deref());
            headers.extend(name.zip(value));
        }
        let body = self.answer(&field("body"), spec.body.as_deref().unwrap_or_default(), algorithm);
        let echoed = body.as_deref().is_some_and(echoes);
        let brings = echoed || headers.iter().any(|(_, pieces)| echoes(pieces)) || spec.check.is_some();
        let whole_told = spec.request_body.as_ref().is_some_and(|body| !body.is_empty());
        if spec.matches.is_empty() && !brings && !whole_told && body.is_some() && method != Some(Method::HEAD) {
            self.problem(&field("match"), "is missing: say what tells a challenge from an event");
        } else if signed && method == Some(Method::POST) && body.is_some() && spec.check.is_none() {
            let tells = |(at, literal): &(Locator, Option<String>)| literal.is_some() && !is_common(at);
            if !whole_told && !matches.iter().any(tells) {
                let rule = "tells no challenge from an event, both are signed and posted: name a place of the body or \
                            query, or a header of the provider's, and the text that stands there only in a challenge";
                self.problem(&field("match"), rule);
            }
        }
        let bodiless = [StatusCode::NO_CONTENT, StatusCode::RESET_CONTENT];
        if status.is_some_and(|status| bodiless.contains(&status)) && body.as_ref().is_some_and(|body| !body.is_empty())
        {
            self.problem(
                &field("body"),
                "has no effect, an answer of this status has none: remove it, or the `status`",
            );
        }
        if !signed && echoed && !["text/plain", "application/json"].contains(&content_type) {
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
            let codes = |pieces: &[Piece]| pieces.iter().any(|piece| matches!(piece, Piece::Call(..)));
            let coded = body.as_deref().is_some_and(codes) || headers.iter().any(|(_, pieces)| codes(pieces));
            if check.adopt && coded {
                let rule =
                    "makes a code with the secret, which the handshake brings only now: echo it, or leave it out";
                self.problem(&field("body"), rule);
            }
            let check = self.check(&field("check"), check, secrets, reserved);
            if let Some(check) = &check {
                self.check_place(&field("check.at"), &check.at, spec, sig);
            }
            check
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

    /// The name of an answer's header.
    fn answer_header(&mut self, field: &str, name: &str, value: Option<&[Piece]>) -> Option<HeaderName> {
        let value = value?;
        let begins = |name: &HeaderName, all: &[&str]| all.iter().any(|prefix| name.as_str().starts_with(prefix));
        let is_ours = |name: &HeaderName| {
            begins(name, &PROVIDERS) && !begins(name, &NOT_PROVIDERS) || *name == header::ALLOW && !echoes(value)
        };
        let unsendable =
            |piece: &Piece| matches!(piece, Piece::Literal(text) if HeaderValue::from_bytes(text).is_err());
        let name = name.parse::<HeaderName>().ok().filter(is_ours);
        let rule = "is not a header that an answer may have: use one whose name begins with `X-` or `WebHook-` and means \
                    something to the provider alone, or `Allow` with a fixed text";
        match name {
            Some(_) if value.iter().any(unsendable) => {
                self.problem(field, "holds what no header can: remove line ends and control characters");
                None
            }
            name => self.found(field, name.ok_or_else(|| rule.to_owned())),
        }
    }

    /// A place that can hold the secret, and something else in an event.
    fn check_place(&mut self, field: &str, at: &Locator, spec: &ChallengeSpec, sig: &[String]) {
        let in_body = matches!(at, Locator::Form(_) | Locator::Json(..));
        let signature = |text: &String| Locator::parse(text, &mut self.wanted).is_ok_and(|sig| sig == *at);
        let rule = if sig.iter().any(signature) {
            "is where the signature stands, and with one it is no handshake: name another place"
        } else if in_body && spec.request_body.is_some() {
            "is in the body, and `request_body` says what all of that is: leave one of the two out"
        } else if is_common(at) {
            "is a header of any request: name the one that the provider uses for this"
        } else {
            return;
        };
        self.problem(field, rule);
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
