//! A source: requests in, verified events out.

use super::check::{Alternative, Group, Passed, is_readable};
use super::event::{Dedup, Event, Verified};
use super::headers::end_to_end;
use super::locator::{Facts, Locator};
use super::pointer::Pointer;
use super::producer::{dedup_digest, truncated};
use super::refusal::{CheckStep, Refusal};
use super::template::{self, Piece};
use crate::clock::Timestamp;
use crate::delivery::Name;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use sha2::Digest as _;
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

const EVENT_TYPE_BYTES_MAX: usize = 256;

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
}

/// The answer to a handshake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChallengeAnswer {
    pub status: StatusCode,
    pub content_type: HeaderValue,
    /// Besides that.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub body: Bytes,
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

/// A compiled scheme with its secrets: made by [`SourceSpec::compile`](super::SourceSpec::compile).
pub struct Source {
    pub(super) tenant: Name,
    pub(super) name: Name,
    pub(super) scheme: String,
    pub(super) groups: Vec<Group>,
    pub(super) pointers: Vec<Pointer>,
    pub(super) own_headers: Vec<HeaderName>,
    pub(super) dedup: DedupRule,
    /// Whether the signature covers the dedup key, whichever alternative a request goes to: a header that is not
    /// signed may choose between them.
    pub(super) key_is_covered: bool,
    pub(super) dedup_window: Duration,
    pub(super) warnings: Vec<String>,
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
        self.alternatives().any(|alternative| template::flat(&alternative.signed).any(url))
    }

    /// Whether the signature covers the place that the dedup key is read from, whichever alternative a request goes to.
    pub fn signs_key(&self) -> bool {
        self.key_is_covered
    }

    pub(super) fn alternatives(&self) -> impl Iterator<Item = &Alternative> {
        self.groups.iter().flat_map(|group| &group.alternatives)
    }

    /// Verifies a request: an event, a handshake's answer, or why not.
    pub fn admit(&self, request: Request<'_>) -> Result<Admission, Refusal> {
        let facts = Facts::new(request, &self.pointers);
        let (alternative, passed) = match self.check(&facts) {
            Ok(checked) => checked,
            Err(refusal) => return self.handshake(&facts, &refusal).map(Admission::Challenge).ok_or(refusal),
        };
        if let Some(answer) = alternative.verified_answer(&facts, passed.secret) {
            return Ok(Admission::Challenge(answer));
        }
        Ok(Admission::Event(Verified::attest(self.event(alternative, &passed, &facts))))
    }

    /// The answer to an unsigned handshake: what is refused for want of something to verify may be one.
    fn handshake(&self, facts: &Facts<'_>, refusal: &Refusal) -> Option<ChallengeAnswer> {
        let mut alternatives = self.alternatives().filter(|_| refusal.step == CheckStep::Presence);
        alternatives.find_map(|alternative| alternative.unsigned_answer(facts))
    }

    /// The same check, step by step: those that passed, and the one that did not.
    pub fn explain(&self, request: Request<'_>) -> Vec<Step> {
        let facts = Facts::new(request, &self.pointers);
        let checked = self.check(&facts);
        let secrets = self.alternatives().flat_map(|a| &a.keys).map(|(number, _)| number + 1).max().unwrap_or(0);
        let (passed, refusal) = match &checked {
            Ok((_, passed)) => (Some(passed), None),
            Err(refusal) => (None, Some(refusal)),
        };
        let skew = passed.map_or_else(|| refusal.and_then(|r| r.skew_seconds), |passed| passed.skew_seconds);
        if refusal.is_some_and(|refusal| self.handshake(&facts, refusal).is_some()) {
            let detail = "the scheme's handshake, which is not signed: it is answered and kept nowhere".to_owned();
            return vec![Step { name: CheckStep::Presence, ok: true, detail }];
        }
        let mut steps = Vec::new();
        for name in CheckStep::ALL {
            if let Some(refusal) = refusal.filter(|refusal| refusal.step == name) {
                steps.push(Step { name, ok: false, detail: refusal.to_string() });
                break;
            }
            let detail = match (name, skew, passed) {
                (CheckStep::Presence, ..) => "every header and field that the scheme needs is there, once".to_owned(),
                (CheckStep::Structure, ..) => "the signature header can be read".to_owned(),
                (CheckStep::Timestamp, Some(skew), _) if skew < 0 => {
                    format!("{} s ahead of our clock, in the window", skew.unsigned_abs())
                }
                (CheckStep::Timestamp, Some(skew), _) => format!("{skew} s old, in the window"),
                (CheckStep::Timestamp, None, _) => "the scheme signs no timestamp".to_owned(),
                (CheckStep::Decoding, ..) => "at least one signature decodes".to_owned(),
                (CheckStep::Match, _, Some(passed)) => {
                    format!("secret {} of {secrets} made a signature of these bytes", passed.secret + 1)
                }
                (CheckStep::Match, _, None) => "a secret made a signature of these bytes".to_owned(),
                (CheckStep::Id, _, Some(Passed { id: Some(id), .. })) => format!("the event's id is {id}"),
                (CheckStep::Id, ..) => "the request names no event id".to_owned(),
            };
            steps.push(Step { name, ok: true, detail });
        }
        steps
    }

    /// The first group whose headers are there is the one: a request cannot fall back to another. Within it the
    /// alternatives stand side by side, and the refusal that came furthest is told.
    fn check<'r>(&'r self, facts: &Facts<'r>) -> Result<(&'r Alternative, Passed<'r>), Refusal> {
        let selects =
            |group: &&Group| group.when.is_empty() || group.when.iter().any(|h| facts.request.headers.contains_key(h));
        let Some(group) = self.groups.iter().find(selects) else {
            let names: Vec<&str> = self.groups.iter().flat_map(|g| &g.when).map(HeaderName::as_str).collect();
            return Err(Refusal::missing(format!("none of these headers is there: {}", names.join(", "))));
        };
        let mut furthest: Option<Refusal> = None;
        for alternative in &group.alternatives {
            match alternative.check(facts) {
                Ok(passed) => return Ok((alternative, passed)),
                Err(refusal) if furthest.as_ref().is_none_or(|f| f.step < refusal.step) => furthest = Some(refusal),
                Err(_) => {}
            }
        }
        Err(furthest.unwrap_or_else(|| Refusal::missing("the source has no secret")))
    }

    fn event(&self, alternative: &Alternative, passed: &Passed<'_>, facts: &Facts<'_>) -> Event {
        let request = facts.request;
        let body_digest = truncated(sha2::Sha256::digest(request.body).into());
        let event_type = alternative.event_type.iter().find_map(|at| facts.text_at(at));
        let event_type = event_type.filter(|text| is_readable(text, EVENT_TYPE_BYTES_MAX));
        let content_type = request.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        Event {
            event_type: event_type.map(Cow::into_owned).unwrap_or_default(),
            content_type: content_type.unwrap_or_default().to_owned(),
            headers: end_to_end(request.headers, &self.own_headers),
            body: request.body.clone(),
            key: None,
            provider_id: passed.id.as_ref().map(|id| id.clone().into_owned()),
            dedup: self.dedup(alternative, passed, facts, &body_digest),
            body_digest,
            received_at: request.received_at,
            deliver_at: None,
            expires_at: None,
            deadline: None,
        }
    }

    /// The key, and beside it the signed content where somebody else could have chosen the key.
    fn dedup(
        &self,
        alternative: &Alternative,
        passed: &Passed<'_>,
        facts: &Facts<'_>,
        body_digest: &[u8; 16],
    ) -> Option<Dedup> {
        let at;
        let key = match &self.dedup {
            DedupRule::Never => return None,
            DedupRule::Body => Some((&b"body"[..], &body_digest[..])),
            DedupRule::Scheme => passed.id.as_ref().map(|id| (&b"id"[..], id.as_bytes())),
            DedupRule::At(locator) => {
                at = facts.text_at(locator);
                at.as_ref().map(|id| (&b"id"[..], id.as_bytes()))
            }
        };
        let digest = |kind: &[u8], value: &[u8]| {
            let (tenant, source) = (self.tenant.as_str(), self.name.as_str());
            dedup_digest(tenant, source, &[kind, value])
        };
        let content = || digest(b"content", &signed_digest(alternative, passed, facts, body_digest));
        // A token signs nothing, and who holds it can write anything.
        let signs = !alternative.algorithm.is_token();
        let window = self.dedup_window;
        match key {
            Some((kind, key)) => {
                let content = (signs && !self.key_is_covered).then(content);
                Some(Dedup { digest: digest(kind, key), content, window })
            }
            None => signs.then(|| Dedup { digest: content(), content: None, window }),
        }
    }
}

/// The first half of SHA-256 over the signed bytes: not over their pieces, since the signature does not say where one
/// ends and the next begins.
fn signed_digest(
    alternative: &Alternative,
    passed: &Passed<'_>,
    facts: &Facts<'_>,
    body_digest: &[u8; 16],
) -> [u8; 16] {
    if alternative.signed == [Piece::Body] {
        return *body_digest;
    }
    let mut hash = sha2::Sha256::new();
    for part in template::parts(&alternative.signed, facts.request, &passed.values, None) {
        hash.update(part);
    }
    truncated(hash.finalize().into())
}
