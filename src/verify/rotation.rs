//! A source whose secrets may expire: at each time, it is the source with those that have not.
//!
//! What an expired secret signs is refused as if the secret were not there. The time is the request's.

use super::compile::SpecProblem;
use super::keys::{KeyAtHand, Stop};
use super::refusal::{CheckStep, Refusal, RefusalCode};
use super::source::{Admission, Request, Source, Step};
use super::spec::SourceSpec;
use crate::clock::Timestamp;
use crate::delivery::Name;
use crate::secret::Secret;
use std::fmt;

/// A secret, and from when on it is none.
#[derive(Clone, Debug)]
pub struct ExpiringSecret {
    pub secret: Secret,
    /// `None`: never.
    pub expires: Option<Timestamp>,
}

impl From<Secret> for ExpiringSecret {
    fn from(secret: Secret) -> Self {
        ExpiringSecret { secret, expires: None }
    }
}

/// A compiled scheme with its secrets, each for its time: made by [`SourceSpec::compile_rotating`].
pub struct Rotation {
    /// With all secrets, whatever the time.
    whole: Source,
    /// One after the other.
    spans: Vec<Span>,
    expiries: Vec<Option<Timestamp>>,
}

/// A time during which the secrets are the same.
struct Span {
    /// When it is over; `None`: never.
    until: Option<Timestamp>,
    /// `None`: all secrets have expired.
    source: Option<Source>,
}

/// Keys stay inside.
impl fmt::Debug for Rotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.whole, f)
    }
}

impl SourceSpec {
    /// Compiles a source with secrets that may expire, or says everything that is wrong with it.
    pub fn compile_rotating(
        &self,
        tenant: &Name,
        name: &Name,
        secrets: &[ExpiringSecret],
    ) -> Result<Rotation, Vec<SpecProblem>> {
        let whole = self.compile(tenant, name, secrets.iter().map(|s| s.secret.clone()).collect())?;
        let expiries: Vec<Option<Timestamp>> = secrets.iter().map(|s| s.expires).collect();
        let mut ends: Vec<Option<Timestamp>> = expiries.iter().copied().filter(Option::is_some).collect();
        ends.sort_unstable();
        ends.dedup();
        ends.push(None);
        let mut spans = Vec::with_capacity(ends.len());
        let mut began = None;
        for until in ends {
            let lives = |expires: &Option<Timestamp>| expires.is_none_or(|at| began.is_none_or(|began| at > began));
            let live: Vec<usize> = (0..secrets.len()).filter(|number| lives(&expiries[*number])).collect();
            // A scheme may need none; one whose secrets are all over has none left.
            let source = if live.is_empty() && !secrets.is_empty() {
                None
            } else {
                let mut source =
                    self.compile(tenant, name, live.iter().map(|number| secrets[*number].secret.clone()).collect())?;
                source.renumber(&live);
                Some(source)
            };
            spans.push(Span { until, source });
            began = until;
        }
        Ok(Rotation { whole, spans, expiries })
    }
}

impl Rotation {
    /// The source with every secret it has: for what does not depend on the time.
    pub fn whole(&self) -> &Source {
        &self.whole
    }

    /// The source as it is at `now`. `None`: all of its secrets have expired.
    pub fn at(&self, now: Timestamp) -> Option<&Source> {
        self.spans.iter().find(|span| span.until.is_none_or(|until| now < until))?.source.as_ref()
    }

    /// Verifies a request with the secrets that have not expired when it arrives. No key is fetched for it.
    pub fn admit(&self, request: Request<'_>) -> Result<Admission, Refusal> {
        self.judge(request, KeyAtHand::NotAsked).map_err(Stop::offline)
    }

    /// The same for who can fetch a key.
    pub fn judge(&self, request: Request<'_>, key: KeyAtHand<'_>) -> Result<Admission, Stop> {
        match self.at(request.received_at) {
            Some(source) => source.judge(request, key).map_err(|stop| match stop {
                Stop::Refused(refusal) if self.is_by_an_expired_one(&refusal, request) => by_an_expired_one().into(),
                stop => stop,
            }),
            // What else is wrong with it goes first, as ever.
            None => self.whole.judge(request, key).and(Err(by_an_expired_one().into())),
        }
    }

    /// Whether what was refused for want of a living secret is signed by one that has expired.
    fn is_by_an_expired_one(&self, refusal: &Refusal, request: Request<'_>) -> bool {
        let has_expired = |at: &Option<Timestamp>| at.is_some_and(|at| at <= request.received_at);
        refusal.code == RefusalCode::SignatureMismatch
            && self.expiries.iter().any(has_expired)
            && self.whole.verify(request).is_ok()
    }

    /// Whether the request would be let in, had none of the secrets expired.
    pub fn has_expired(&self, request: Request<'_>) -> bool {
        self.admit(request).is_err() && self.whole.admit(request).is_ok()
    }

    /// The same check, step by step.
    pub fn explain(&self, request: Request<'_>) -> Vec<Step> {
        let now = request.received_at;
        let mut steps = self.at(now).unwrap_or(&self.whole).explain(request);
        if !self.has_expired(request) {
            return steps;
        }
        let expired = self.expiries.iter().enumerate();
        let expired = expired.filter_map(|(number, at)| Some((number, at.filter(|at| *at <= now)?)));
        let told: Vec<String> =
            expired.map(|(number, at)| format!("secret {} at {}", number + 1, at.to_rfc3339())).collect();
        let detail = format!("{} ({})", by_an_expired_one(), told.join(", "));
        steps.retain(|step| step.name < CheckStep::Match);
        steps.push(Step { name: CheckStep::Match, ok: false, detail });
        steps
    }
}

fn by_an_expired_one() -> Refusal {
    let detail = "a secret of the source made the signature, and that secret has expired";
    Refusal::new(RefusalCode::SignatureMismatch, CheckStep::Match, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::SignRequest;
    use bytes::Bytes;
    use http::{HeaderMap, HeaderName, Method};

    const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const NEW: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn rotation(scheme: &str, secrets: &[(&str, Option<i64>)]) -> Rotation {
        let spec = SourceSpec { scheme: scheme.to_owned(), ..SourceSpec::default() };
        let secret = |(text, expires): &(&str, Option<i64>)| ExpiringSecret {
            secret: Secret::new(*text),
            expires: expires.map(at),
        };
        let secrets: Vec<_> = secrets.iter().map(secret).collect();
        spec.compile_rotating(&"t".parse().unwrap(), &"s".parse().unwrap(), &secrets).unwrap()
    }

    /// What a provider with this secret sends at a time.
    fn sent(scheme: &str, secrets: &[&str], now: i64, check: impl FnOnce(Request<'_>)) {
        let all: Vec<_> = secrets.iter().map(|secret| (*secret, None)).collect();
        let body = Bytes::from_static(b"{\"id\":\"e1\",\"event_id\":\"e1\"}");
        let sign = SignRequest { id: "e1", event_type: None, timestamp: at(now), url: "https://h.test/", body: &body };
        let headers = rotation(scheme, &all).whole().sign(sign).unwrap();
        let headers =
            headers.into_iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap()));
        let headers: HeaderMap = headers.collect();
        check(Request {
            method: &Method::POST,
            url: "https://h.test/",
            headers: &headers,
            body: &body,
            received_at: at(now),
        });
    }

    #[test]
    fn old_and_new_overlap_until_the_old_one_expires() {
        for scheme in super::super::schemes::names()
            .filter(|name| ["github", "stripe", "slack", "svix", "shopify", "standard-webhooks"].contains(name))
        {
            for secrets in [[(OLD, Some(2_000)), (NEW, None)], [(NEW, None), (OLD, Some(2_000))]] {
                let source = rotation(scheme, &secrets);
                let verdict = |secrets: &[&str], now| {
                    let mut verdict = None;
                    sent(scheme, secrets, now, |request| verdict = Some(source.admit(request).err().map(|r| r.code)));
                    verdict.unwrap()
                };
                assert_eq!(verdict(&[OLD], 1_999), None, "{scheme}");
                assert_eq!(verdict(&[NEW], 1_999), None, "{scheme}");
                assert_eq!(verdict(&[OLD], 2_000), Some(RefusalCode::SignatureMismatch), "{scheme}");
                assert_eq!(verdict(&[NEW], 2_000), None, "{scheme}");
                let detail = |secrets: &[&str]| {
                    let mut detail = String::new();
                    sent(scheme, secrets, 2_000, |request| detail = source.admit(request).unwrap_err().detail);
                    detail
                };
                assert!(detail(&[OLD]).ends_with("has expired"), "{scheme}");
                assert!(detail(&["whsec_c29tZWJvZHktZWxzZXMtc2VjcmV0"]).starts_with("none of"), "{scheme}");
                assert_eq!(verdict(&[NEW, OLD], 2_000), None, "{scheme}: a sender that signs with both");
                assert_eq!(verdict(&[NEW], 9_000_000_000), None, "{scheme}");
            }
        }
    }

    #[test]
    fn a_source_without_a_living_secret_refuses_everything() {
        let source = rotation("github", &[(OLD, Some(2_000)), (NEW, Some(1_000))]);
        assert!(source.at(at(2_000)).is_none());
        sent("github", &[OLD], 2_000, |request| {
            let refusal = source.admit(request).unwrap_err();
            assert_eq!((refusal.code, refusal.step), (RefusalCode::SignatureMismatch, CheckStep::Match));
            let none = HeaderMap::new();
            let refusal = source.admit(Request { headers: &none, ..request }).unwrap_err();
            assert_eq!(refusal.code, RefusalCode::MissingHeader, "what else is wrong goes first");
        });
        sent("github", &[NEW], 999, |request| assert!(source.admit(request).is_ok()));
    }

    #[test]
    fn people_are_told_that_the_secret_has_expired() {
        let source = rotation("stripe", &[(OLD, Some(2_000)), (NEW, None)]);
        let last = |secret: &str, now| {
            let mut last = None;
            sent("stripe", &[secret], now, |request| last = source.explain(request).pop());
            last.unwrap()
        };
        let told = last(OLD, 2_000);
        assert_eq!((told.name, told.ok), (CheckStep::Match, false));
        assert!(told.detail.contains("(secret 1 at 1970-01-01T00:33:20.000Z)"), "{}", told.detail);
        let mut steps = Vec::new();
        sent("stripe", &[NEW], 2_000, |request| steps = source.explain(request));
        assert!(steps.iter().any(|step| step.detail.starts_with("secret 2 of 2 ")), "{steps:?}");
        let told = last("another-secret-of-somebody", 2_000);
        assert!(told.detail.starts_with("signature_mismatch"), "{}", told.detail);
    }
}
