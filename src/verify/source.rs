//! A source: requests in, verified events out.

use super::builtin::{Coded, SignedTime};
use super::check::{Alternative, Group, Passed, is_readable};
use super::event::{Dedup, Event, Verified};
use super::headers::end_to_end;
use super::key::Message as _;
use super::keys::{KeyAtHand, KeyUrl, Stop};
use super::locator::{Facts, Locator, Place, Wanted};
use super::producer::{dedup_digest, truncated};
use super::refusal::{CheckStep, Refusal, RefusalCode};
use super::spec::SourceSpec;
use super::template::{self, Piece, Rendered, Values};
use crate::clock::Timestamp;
use crate::delivery::Name;
use crate::secret::Secret;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use sha2::Digest as _;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

const EVENT_TYPE_BYTES_MAX: usize = 256;

const ANSWERED_UNSIGNED: &str = "the scheme's handshake, which is not signed: it is answered and kept nowhere";
const ADOPTED_BY_A_GATEWAY: &str = "the scheme's handshake, which is not signed, and brings the secret: a gateway that has \
                                    none for the source adopts it, then answers; nothing is adopted here";

/// A request as it arrived.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub method: &'a Method,
    /// The public URL, as the provider was given it.
    pub url: &'a str,
    pub headers: &'a HeaderMap,
    pub body: &'a Bytes,
    /// When its head arrived.
    pub received_at: Timestamp,
}

/// What a request that passed is.
#[derive(Clone, Debug)]
pub enum Admission {
    Event(Verified<Event>),
    /// A handshake: to be answered, not to be kept.
    Challenge(ChallengeAnswer),
    /// A handshake that is confirmed by calling this URL once: to be answered when that was done, not to be kept.
    Confirm(KeyUrl),
    /// A handshake that brings the source its secret: to be answered when that is kept, and only if none is kept yet.
    Adopt {
        secret: Secret,
        answer: ChallengeAnswer,
    },
}

/// The answer to a handshake.
#[derive(Clone, PartialEq, Eq)]
pub struct ChallengeAnswer {
    pub status: StatusCode,
    pub content_type: HeaderValue,
    /// Besides that.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub body: Bytes,
}

/// What it echoes may be a secret.
impl fmt::Debug for ChallengeAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChallengeAnswer({}, …)", self.status)
    }
}

/// How the provider wants its requests answered, but for handshakes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Answers {
    /// It does not care.
    #[default]
    Ours,
    /// To every event with this text.
    Receipt(&'static str),
    /// Never with a body.
    Empty,
}

/// One step of a check, for people.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Step {
    pub name: CheckStep,
    pub ok: bool,
    pub detail: String,
}

/// What is remembered to know a request again.
pub(super) enum DedupRule {
    /// The scheme's event id.
    Scheme,
    At(Locator),
    Body,
    Never,
}

/// The first half of SHA-256 over the signed content, given that over the body.
type ContentDigest<'e> = dyn Fn(&[u8; 16]) -> [u8; 16] + 'e;

/// What the check read of a request that becomes an event.
pub(super) struct Read<'e> {
    pub(super) event_type: Option<Cow<'e, str>>,
    pub(super) id: Option<Cow<'e, str>>,
    /// `None`: nothing is signed.
    pub(super) content: Option<&'e ContentDigest<'e>>,
}

/// What there is to tell about a request that passed.
pub(super) struct Told {
    /// `None`: the key is the provider's.
    pub(super) secret: Option<usize>,
    pub(super) secrets: usize,
    pub(super) skew_seconds: Option<i64>,
    pub(super) id: Option<String>,
}

/// A compiled scheme with its secrets: made by [`SourceSpec::compile`](super::SourceSpec::compile).
pub struct Source {
    pub(super) tenant: Name,
    pub(super) name: Name,
    pub(super) scheme: String,
    /// Empty where the scheme is code.
    pub(super) groups: Vec<Group>,
    pub(super) code: Option<Coded>,
    pub(super) wanted: Wanted,
    pub(super) own_headers: Vec<HeaderName>,
    pub(super) answers: Answers,
    pub(super) dedup: DedupRule,
    /// Whether the signature covers the dedup key, whichever alternative a request goes to: a header that is not
    /// signed may choose between them.
    pub(super) key_is_covered: bool,
    pub(super) dedup_window: Duration,
    pub(super) warnings: Vec<String>,
    /// What it is compiled from, where it has no secret yet and takes the one that its provider hands over.
    pub(super) waits: Option<Box<SourceSpec>>,
}

/// Keys stay inside.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({}/{}, {})", self.tenant, self.name, self.scheme)
    }
}

impl Source {
    pub fn tenant(&self) -> &Name {
        &self.tenant
    }

    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The scheme's name, or `custom`.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// What works but should not stay so, each beginning with its field.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Whether the signature covers the URL, so that the public one has to be known.
    pub fn signs_url(&self) -> bool {
        let url = |piece: &Piece| matches!(piece, Piece::Url | Piece::UrlWithoutQuery | Piece::Path | Piece::Query);
        let coded = self.code.as_ref().is_some_and(|code| code.check.signs_url());
        coded || self.alternatives().any(|alternative| template::flat(&alternative.signed).any(url))
    }

    pub fn answers(&self) -> Answers {
        self.answers
    }

    /// Numbers its secrets as they are among all of the source's.
    pub(super) fn renumber(&mut self, numbers: &[usize]) {
        for alternative in self.groups.iter_mut().flat_map(|group| &mut group.alternatives) {
            for (number, _) in &mut alternative.keys {
                *number = numbers.get(*number).copied().unwrap_or(*number);
            }
        }
    }

    /// Whether the signature covers the place that the dedup key is read from, whichever alternative a request goes to.
    pub fn signs_key(&self) -> bool {
        self.key_is_covered
    }

    pub(super) fn alternatives(&self) -> impl Iterator<Item = &Alternative> {
        self.groups.iter().flat_map(|group| &group.alternatives)
    }

    /// The signature alone, with all that goes before it: no handshake is looked for, and no key is fetched.
    pub fn verify(&self, request: Request<'_>) -> Result<(), Refusal> {
        let facts = Facts::new(request, &self.wanted);
        match &self.code {
            Some(code) => code.told(&facts).map(|_| ()),
            None => self.check(&facts, &mut Values::new()).map(|_| ()),
        }
    }

    /// Verifies a request: an event, a handshake's answer, or why not. No key is fetched for it.
    pub fn admit(&self, request: Request<'_>) -> Result<Admission, Refusal> {
        self.judge(request, KeyAtHand::NotAsked).map_err(Stop::offline)
    }

    /// The same for who can fetch a key: where one is needed, the query says which.
    pub fn judge(&self, request: Request<'_>, key: KeyAtHand<'_>) -> Result<Admission, Stop> {
        let facts = Facts::new(request, &self.wanted);
        let greeted = |refusal: Refusal| match self.handshake(&facts, &refusal) {
            Some(judged) => Ok(judged?),
            None => Err(self.unproven(&facts, &refusal).unwrap_or(refusal).into()),
        };
        if let Some(code) = &self.code {
            return match code.judge(self, &facts, key) {
                Err(Stop::Refused(refusal)) => greeted(refusal),
                judged => judged,
            };
        }
        let mut values = Values::new();
        let (alternative, passed) = match self.check(&facts, &mut values) {
            Ok(checked) => checked,
            Err(refusal) => return greeted(refusal),
        };
        if let Some(answer) = alternative.verified_answer(&facts, passed.secret) {
            return Ok(Admission::Challenge(answer));
        }
        let content = |body_digest: &[u8; 16]| signed_digest(alternative, &values, &facts, body_digest);
        // A token signs nothing, and who holds it can write anything.
        let signs = !alternative.algorithm.is_token();
        let read = Read {
            event_type: alternative.event_type.iter().find_map(|at| facts.text_at(at)),
            id: alternative.event_id(&facts, &values),
            content: signs.then_some(&content),
        };
        Ok(Admission::Event(Verified::attest(self.event(read, &facts))))
    }

    /// A handshake that carries no signature of ours: what is refused may be one, and where data says what one is, only
    /// what is refused for want of something to verify.
    fn handshake(&self, facts: &Facts<'_>, refusal: &Refusal) -> Option<Result<Admission, Refusal>> {
        if let Some(code) = &self.code {
            return code.check.greet(facts).map(|answer| Ok(Admission::Challenge(answer)));
        }
        if refusal.step != CheckStep::Presence {
            return None;
        }
        let answer = self.alternatives().find_map(|alternative| alternative.unsigned_answer(facts));
        answer.map(|answer| Ok(Admission::Challenge(answer))).or_else(|| self.adoption(facts))
    }

    /// The methods besides POST that the scheme's handshakes come by.
    pub fn greeting_methods(&self) -> BTreeSet<&'static str> {
        let coded = self.code.as_ref().and_then(|code| code.check.greets_by());
        let all = self.alternatives().flat_map(Alternative::greeting_methods).chain(&coded);
        let known = [Method::GET, Method::HEAD, Method::OPTIONS];
        let name = |method: &Method| ["GET", "HEAD", "OPTIONS"][..].iter().zip(&known).find(|(_, m)| *m == method);
        all.filter_map(name).map(|(name, _)| *name).collect()
    }

    /// Why a request is no handshake: one that needs a token and looks like one, or comes by a method that is for
    /// handshakes alone.
    fn unproven(&self, facts: &Facts<'_>, refusal: &Refusal) -> Option<Refusal> {
        let method = facts.request.method;
        if refusal.step != CheckStep::Presence {
            return None;
        }
        if let Some(unproven) = self.alternatives().find_map(|alternative| alternative.unproven(facts)) {
            return Some(unproven);
        }
        let coded = self.code.as_ref().and_then(|code| code.check.greets_by()).filter(|by| by == method);
        let lacking = self.alternatives().find_map(|alternative| alternative.lacking(facts));
        let lacking = lacking.or_else(|| coded.map(|_| "it does not have that form".to_owned()))?;
        Some(Refusal::missing(format!("{method} is for the scheme's handshake alone, and {lacking}")))
    }

    /// The same check, step by step: those that passed, and the one that did not.
    pub fn explain(&self, request: Request<'_>) -> Vec<Step> {
        let facts = Facts::new(request, &self.wanted);
        let checked = match &self.code {
            Some(code) => code.told(&facts),
            None => {
                let mut values = Values::new();
                let checked = self.check(&facts, &mut values);
                checked.map(|(alternative, passed)| self.told(alternative, passed, &values, &facts))
            }
        };
        let checked = checked.map_err(|refusal| self.unproven(&facts, &refusal).unwrap_or(refusal));
        let (passed, refusal) = match &checked {
            Ok(passed) => (Some(passed), None),
            Err(refusal) => (None, Some(refusal)),
        };
        let time = self.code.as_ref().map(|code| code.time);
        let skew = passed.map_or_else(|| refusal.and_then(|r| r.skew_seconds), |passed| passed.skew_seconds);
        if let Some(handshake) = refusal.and_then(|refusal| self.handshake(&facts, refusal)) {
            let (name, ok, detail) = match &handshake {
                Ok(Admission::Adopt { .. }) => (CheckStep::Presence, true, ADOPTED_BY_A_GATEWAY.to_owned()),
                Ok(_) => (CheckStep::Presence, true, ANSWERED_UNSIGNED.to_owned()),
                Err(refusal) => (refusal.step, false, refusal.to_string()),
            };
            return vec![Step { name, ok, detail }];
        }
        // Of a handshake that is refused, no signature was looked for.
        if let Some(refusal) = refusal.filter(|refusal| refusal.code == RefusalCode::HandshakeRefused) {
            return vec![Step { name: refusal.step, ok: false, detail: refusal.to_string() }];
        }
        let mut steps = Vec::new();
        for name in CheckStep::ALL {
            if let Some(refusal) = refusal.filter(|refusal| refusal.step == name) {
                steps.push(Step { name, ok: false, detail: refusal.to_string() });
                break;
            }
            let detail = match (name, skew, passed) {
                (CheckStep::Presence, ..) => self.places_found(&facts),
                (CheckStep::Structure, ..) => "the signature can be read".to_owned(),
                (CheckStep::Timestamp, Some(skew), _) => time_found(request.received_at, skew, time),
                // What was refused before the time was read says nothing of it.
                (CheckStep::Timestamp, None, _) if time.is_some_and(|time| time != SignedTime::None) => continue,
                (CheckStep::Timestamp, None, _) => "the scheme signs no timestamp".to_owned(),
                (CheckStep::Decoding, ..) => "at least one signature decodes".to_owned(),
                (CheckStep::Match, _, Some(Told { secret: Some(number), secrets, .. })) => {
                    format!("secret {} of {secrets} made a signature of these bytes", number + 1)
                }
                (CheckStep::Match, _, Some(_)) => "the provider's key made a signature of these bytes".to_owned(),
                (CheckStep::Match, _, None) => "a secret made a signature of these bytes".to_owned(),
                (CheckStep::Id, _, Some(Told { id: Some(id), .. })) => format!("the event's id is {id}"),
                (CheckStep::Id, ..) => "the request names no event id".to_owned(),
            };
            steps.push(Step { name, ok: true, detail });
        }
        steps
    }

    /// What the request has of the places that the scheme reads.
    fn places_found(&self, facts: &Facts<'_>) -> String {
        let alternatives = self.selected(facts).into_iter().flat_map(|group| &group.alternatives);
        let places = alternatives.flat_map(|a| a.sig.at.iter().chain(a.vars.iter().map(|var| &var.locator)));
        let there = places.filter(|at| matches!(facts.at(at), Place::Value(_)));
        let named: BTreeSet<String> = there.map(Locator::to_string).collect();
        match named.into_iter().collect::<Vec<_>>().join(", ") {
            all if all.is_empty() => "all that the scheme needs is there".to_owned(),
            all => format!("found {all}"),
        }
    }

    fn selected(&self, facts: &Facts<'_>) -> Option<&Group> {
        let is_there = |header| facts.request.headers.keys().any(|known| known == header);
        self.groups.iter().find(|group| group.when.is_empty() || group.when.iter().any(is_there))
    }

    fn told<'r>(&self, alternative: &Alternative, passed: Passed, values: &Values<'r>, facts: &Facts<'r>) -> Told {
        let secrets = self.alternatives().flat_map(|a| &a.keys).map(|(number, _)| number + 1).max().unwrap_or(0);
        let id = alternative.event_id(facts, values).map(Cow::into_owned);
        Told { secret: Some(passed.secret), secrets, skew_seconds: passed.skew_seconds, id }
    }

    /// The first group whose headers are there is the one: a request cannot fall back to another. Within it the
    /// alternatives stand side by side, and the refusal that came furthest is told.
    fn check<'r>(&self, facts: &Facts<'r>, values: &mut Values<'r>) -> Result<(&Alternative, Passed), Refusal> {
        let Some(group) = self.selected(facts) else {
            let names: Vec<&str> = self.groups.iter().flat_map(|g| &g.when).map(HeaderName::as_str).collect();
            return Err(Refusal::missing(format!("none of these headers is there: {}", names.join(", "))));
        };
        let mut furthest: Option<Refusal> = None;
        for alternative in &group.alternatives {
            match alternative.check(facts, values) {
                Ok(passed) => return Ok((alternative, passed)),
                Err(refusal) if furthest.as_ref().is_none_or(|f| f.step < refusal.step) => furthest = Some(refusal),
                Err(_) => {}
            }
        }
        Err(furthest.unwrap_or_else(|| Refusal::missing("the source has no secret")))
    }

    pub(super) fn event(&self, read: Read<'_>, facts: &Facts<'_>) -> Event {
        let request = facts.request;
        let body_digest = truncated(sha2::Sha256::digest(request.body).into());
        let dedup = self.dedup(&read, facts, &body_digest);
        let event_type = read.event_type.filter(|text| is_readable(text, EVENT_TYPE_BYTES_MAX));
        let content_type = request.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        Event {
            event_type: event_type.map(Cow::into_owned).unwrap_or_default(),
            content_type: content_type.unwrap_or_default().to_owned(),
            headers: end_to_end(request.headers, &self.own_headers),
            body: request.body.clone(),
            key: None,
            provider_id: read.id.map(Cow::into_owned),
            dedup,
            body_digest,
            received_at: request.received_at,
            deliver_at: None,
            expires_at: None,
            deadline: None,
            relation: None,
        }
    }

    /// The key, and beside it the signed content where somebody else could have chosen the key.
    fn dedup(&self, read: &Read<'_>, facts: &Facts<'_>, body_digest: &[u8; 16]) -> Option<Dedup> {
        let at;
        let key = match &self.dedup {
            DedupRule::Never => return None,
            DedupRule::Body => Some((&b"body"[..], &body_digest[..])),
            DedupRule::Scheme => read.id.as_ref().map(|id| (&b"id"[..], id.as_bytes())),
            DedupRule::At(locator) => {
                at = facts.text_at(locator);
                at.as_ref().map(|id| (&b"id"[..], id.as_bytes()))
            }
        };
        let digest = |kind: &[u8], value: &[u8]| {
            let (tenant, source) = (self.tenant.as_str(), self.name.as_str());
            dedup_digest(tenant, source, &[kind, value])
        };
        let content = || read.content.map(|content| digest(b"content", &content(body_digest)));
        let window = self.dedup_window;
        match key {
            Some((kind, key)) => {
                let content = if self.key_is_covered { None } else { content() };
                Some(Dedup { digest: digest(kind, key), content, window })
            }
            None => content().map(|digest| Dedup { digest, content: None, window }),
        }
    }
}

/// The time that a request says, by how long before now (negative: after now) it is.
fn time_found(now: Timestamp, skew: i64, time: Option<SignedTime>) -> String {
    let said = Timestamp::from_millis(now.as_seconds().saturating_sub(skew).saturating_mul(1000)).to_rfc3339();
    let said = said.replace(".000Z", "Z");
    let side = if skew < 0 { "after" } else { "before" };
    let judged = match time {
        Some(SignedTime::Any) => "there is no window, so any time is let in; `tolerance` sets one",
        Some(SignedTime::None | SignedTime::Within) | None => "in the window",
    };
    format!("{said}, {} s {side} now: {judged}", skew.unsigned_abs())
}

/// The first half of SHA-256 over the signed bytes: not over their pieces, since the signature does not say where one
/// ends and the next begins.
fn signed_digest(
    alternative: &Alternative,
    values: &Values<'_>,
    facts: &Facts<'_>,
    body_digest: &[u8; 16],
) -> [u8; 16] {
    if alternative.signed == [Piece::Body] {
        return *body_digest;
    }
    let mut hash = sha2::Sha256::new();
    let signed = Rendered { pieces: &alternative.signed, request: facts.request, values, key: None };
    signed.each(|piece| hash.update(piece));
    truncated(hash.finalize().into())
}
