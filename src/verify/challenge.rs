//! Handshakes: requests that a provider sends to see whether it talks to the right one. They are answered on the spot,
//! and never become events.
//!
//! An unsigned one can come from anybody. It is looked at only where there is nothing to verify, its answer shows
//! nothing that the request did not bring, and what it echoes is short and never a page.

use super::check::Alternative;
use super::key::{Candidate, Key, Message};
use super::locator::{Facts, Locator, Place};
use super::refusal::{CheckStep, Refusal, RefusalCode};
use super::source::ChallengeAnswer;
use super::template::{self, Function, Piece};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use sha2::Digest as _;
use subtle::{Choice, ConstantTimeEq as _};

/// A longer value is not echoed.
const ECHO_BYTES_MAX: usize = 2048;
/// A longer number is none that anybody counts to.
const NUMBER_BYTES_MAX: usize = 20;
/// A longer text is no token.
const TOKEN_BYTES_MAX: usize = 256;

/// A handshake of a scheme.
pub(super) struct Challenge {
    pub(super) method: Method,
    pub(super) signed: bool,
    /// Where a literal has to stand; `None`: any value.
    pub(super) matches: Vec<(Locator, Option<String>)>,
    pub(super) whole: Option<Whole>,
    pub(super) check: Option<Check>,
    pub(super) status: StatusCode,
    pub(super) content_type: HeaderValue,
    pub(super) headers: Vec<(HeaderName, Vec<Piece>)>,
    pub(super) body: Vec<Piece>,
}

/// What a body has to be, to the byte.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Whole {
    pub(super) before: Vec<u8>,
    /// A number stands here, and this behind it.
    pub(super) after: Option<Vec<u8>>,
}

impl Whole {
    fn is(&self, body: &[u8]) -> bool {
        let Some(after) = &self.after else { return body == self.before };
        let number = body.strip_prefix(&self.before[..]).and_then(|rest| rest.strip_suffix(&after[..]));
        number.is_some_and(|digits| {
            (1..=NUMBER_BYTES_MAX).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit)
        })
    }
}

/// A place that has to hold a secret, of which only digests are kept.
pub(super) struct Check {
    pub(super) at: Locator,
    pub(super) digests: Vec<[u8; 32]>,
    /// How the secrets begin that are for it; `None`: they are those that verify.
    pub(super) key: Option<String>,
    /// The provider hands the secret over there.
    pub(super) adopts: bool,
}

impl Check {
    fn holds(&self, facts: &Facts<'_>) -> bool {
        let Some(text) = facts.text_at(&self.at) else { return false };
        let presented: [u8; 32] = sha2::Sha256::digest(text.as_bytes()).into();
        let hit = |hit: Choice, digest: &[u8; 32]| hit | presented.ct_eq(digest);
        self.digests.iter().fold(Choice::from(0), hit).into()
    }
}

impl Challenge {
    /// The secret's code of what the request brings is in the answer.
    pub(super) fn makes_code(&self) -> bool {
        let mut pieces = self.headers.iter().flat_map(|(_, pieces)| pieces).chain(&self.body);
        pieces.any(|piece| matches!(piece, Piece::Call(..)))
    }

    /// The header in which the provider hands the secret over.
    pub(super) fn hands_over(&self) -> Option<HeaderName> {
        let check = self.check.as_ref().filter(|check| check.adopts)?;
        if let Locator::Header(_, name) = &check.at { Some(name.clone()) } else { None }
    }

    /// Whether the request looks like this challenge, whatever it proves.
    fn is(&self, facts: &Facts<'_>) -> bool {
        let is_so = |(at, literal): &(Locator, Option<String>)| {
            let text = facts.text_at(at);
            text.is_some_and(|text| literal.as_ref().is_none_or(|literal| bare(at, &text) == literal.as_str()))
        };
        facts.request.method == self.method
            && self.matches.iter().all(is_so)
            && self.whole.as_ref().is_none_or(|whole| whole.is(facts.request.body))
    }

    /// What is wrong at the place that has to hold a secret.
    fn unproven(&self, facts: &Facts<'_>) -> Option<String> {
        let check = self.check.as_ref().filter(|check| !check.adopts && self.is(facts) && !check.holds(facts))?;
        let is_there = !matches!(facts.at(&check.at), Place::Absent);
        let (at, key) = (&check.at, check.key.as_deref());
        let begins = key.map_or_else(String::new, |key| format!(": none of its secrets begins with `{key}`"));
        let told = if check.digests.is_empty() {
            format!("the source has nothing to compare {at} with{begins}")
        } else if is_there {
            format!("{at} is not what the source's secret for it says")
        } else {
            format!("{at} is absent or empty")
        };
        // What nothing else tells from an event is none without it.
        (is_there || !self.matches.is_empty()).then_some(told)
    }

    /// What a request by the handshake's method has not that the handshake has.
    fn lacking(&self, facts: &Facts<'_>) -> Option<String> {
        if facts.request.method != self.method {
            return None;
        }
        let absent = |at: &&Locator| matches!(facts.at(at), Place::Absent);
        if let Some(at) = self.matches.iter().map(|(at, _)| at).find(absent) {
            return Some(format!("{at} is absent or empty"));
        }
        let differs = |(at, literal): &&(Locator, Option<String>)| {
            let text = facts.text_at(at);
            literal.as_ref().is_some_and(|literal| text.is_none_or(|text| bare(at, &text) != literal.as_str()))
        };
        if let Some((at, Some(literal))) = self.matches.iter().find(differs) {
            return Some(format!("{at} is not `{literal}`"));
        }
        let pieces =
            template::flat(&self.body).chain(self.headers.iter().flat_map(|(_, pieces)| template::flat(pieces)));
        let echoed = pieces.filter_map(|piece| if let Piece::Place(at) = piece { Some(at) } else { None });
        let wrong = |at: &Locator| match facts.at(at) {
            Place::Absent => Some(format!("{at} is absent or empty")),
            Place::Repeated => Some(format!("{at} is there more than once")),
            Place::Value(text) if text.len() > ECHO_BYTES_MAX => {
                Some(format!("{at} is longer than {ECHO_BYTES_MAX} bytes"))
            }
            Place::Value(_) | Place::Unreadable => None,
        };
        let told = echoed.into_iter().find_map(wrong);
        Some(told.unwrap_or_else(|| "it does not have that form".to_owned()))
    }

    /// Whether the provider hands its secret over in it.
    pub(super) fn adopts(&self) -> bool {
        self.check.as_ref().is_some_and(|check| check.adopts)
    }

    /// The answer, where the request is this challenge. `key` is what codes are made with.
    pub(super) fn answer(&self, facts: &Facts<'_>, key: Option<&Key>) -> Option<ChallengeAnswer> {
        let holds = self.check.as_ref().is_none_or(|check| check.holds(facts));
        if holds { self.unchecked_answer(facts, key) } else { None }
    }

    /// The same, whatever stands at the place that is to hold a secret.
    pub(super) fn unchecked_answer(&self, facts: &Facts<'_>, key: Option<&Key>) -> Option<ChallengeAnswer> {
        if !self.is(facts) {
            return None;
        }
        let json = self.content_type.as_bytes().starts_with(b"application/json");
        let mut headers = Vec::with_capacity(self.headers.len());
        for (name, pieces) in &self.headers {
            headers.push((name.clone(), HeaderValue::from_bytes(&self.rendered(pieces, false, facts, key)?).ok()?));
        }
        Some(ChallengeAnswer {
            status: self.status,
            content_type: self.content_type.clone(),
            headers,
            body: Bytes::from(self.rendered(&self.body, json, facts, key)?),
        })
    }

    fn rendered(&self, pieces: &[Piece], json: bool, facts: &Facts<'_>, key: Option<&Key>) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        for piece in pieces {
            let (function, inner) = match piece {
                Piece::Literal(bytes) => {
                    out.extend_from_slice(bytes);
                    continue;
                }
                Piece::Call(function, inner) => (Some(*function), inner.as_ref()),
                plain => (None, plain),
            };
            // The parser of answers makes no other piece.
            let Piece::Place(at) = inner else { return None };
            let text = facts.text_at(at).filter(|text| text.len() <= ECHO_BYTES_MAX)?;
            match function {
                None if json => {
                    // Stands between the template's own quotes.
                    let quoted = serde_json::to_string(&text).ok()?;
                    out.extend_from_slice(quoted.get(1..quoted.len() - 1)?.as_bytes());
                }
                None => out.extend_from_slice(text.as_bytes()),
                Some(function) => {
                    // Of nothing that could be an event. A signature does not change that: it need not cover this place.
                    let code = is_token(&[text.as_bytes()][..]).then(|| key?.code(&[text.as_bytes()][..]))??;
                    out.extend_from_slice(coded(function, &code)?.as_bytes());
                }
            }
        }
        Some(out)
    }
}

/// Of a media type, its parameters do not count.
fn bare<'t>(at: &Locator, text: &'t str) -> &'t str {
    match at {
        Locator::Header(_, name) if *name == CONTENT_TYPE => text.split(';').next().unwrap_or(text).trim_end(),
        _ => text,
    }
}

fn coded(function: Function, code: &Candidate) -> Option<String> {
    match function {
        Function::HmacHex => Some(hex::encode(code)),
        Function::HmacBase64 => Some(STANDARD.encode(code)),
        Function::Sha256Hex | Function::Base64 | Function::Crc32 | Function::HubSpot => None,
    }
}

/// The form of a token: no event looks so.
pub(super) fn is_token(text: &(impl Message + ?Sized)) -> bool {
    let (mut length, mut fits) = (0, true);
    let fit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=' | b'-' | b'_' | b'.');
    text.each(|piece| {
        length += piece.len();
        fits = fits && length <= TOKEN_BYTES_MAX && piece.iter().all(fit);
    });
    fits && length > 0
}

impl Alternative {
    /// The answer to a request that was verified by the secret of this number.
    pub(super) fn verified_answer(&self, facts: &Facts<'_>, secret: usize) -> Option<ChallengeAnswer> {
        let key = self.keys.iter().find(|(number, _)| *number == secret).map(|(_, key)| key);
        // What is signed and posted is an event, unless it is a handshake that is signed.
        let may_be = |challenge: &&Challenge| challenge.signed || challenge.method != Method::POST;
        self.challenges.iter().filter(may_be).find_map(|challenge| challenge.answer(facts, key))
    }

    /// The answer to a request in which there was nothing to verify.
    pub(super) fn unsigned_answer(&self, facts: &Facts<'_>) -> Option<ChallengeAnswer> {
        let key = self.keys.first().map(|(_, key)| key);
        // One that hands a secret over has more rules, whether it is the first or comes again.
        let unsigned = self.challenges.iter().filter(|challenge| !challenge.signed && !challenge.adopts());
        unsigned.into_iter().find_map(|challenge| challenge.answer(facts, key))
    }

    /// Why a request in which there was nothing to verify is not the handshake that it looks like.
    pub(super) fn unproven(&self, facts: &Facts<'_>) -> Option<Refusal> {
        let told = self.challenges.iter().find_map(|challenge| challenge.unproven(facts))?;
        let detail = format!("it looks like the scheme's handshake, but {told}");
        Some(Refusal::new(RefusalCode::HandshakeRefused, CheckStep::Match, detail))
    }

    /// The methods besides POST that its handshakes come by.
    pub(super) fn greeting_methods(&self) -> impl Iterator<Item = &Method> {
        self.challenges.iter().map(|challenge| &challenge.method).filter(|method| **method != Method::POST)
    }

    /// Why a request by such a method is no handshake.
    pub(super) fn lacking(&self, facts: &Facts<'_>) -> Option<String> {
        let is_for_it = facts.request.method != Method::POST;
        self.challenges.iter().filter(|_| is_for_it).find_map(|challenge| challenge.lacking(facts))
    }
}
