//! `Idempotency-Key`: what is asked again under the same key is done once and answered alike.
//!
//! Authoritative is the kept answer. Which keys are under way is known in memory alone, since no request outlives the
//! process. A process that dies after the effect and before the answer is kept leaves nothing here: the verb is asked
//! again, and finds by its own means what it did before.

use super::input::invalid;
use super::{At, ledger_problem};
use crate::http::{Answer, Problem};
use crate::ledger::{ANSWER_BYTES_MAX, KeptAnswer, RequestId, TenantKey};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use http_body_util::BodyExt as _;
use sha2::{Digest as _, Sha256};
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const KEY: &str = "idempotency-key";
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const UNDER_WAY_MAX: usize = 10_000;

/// On an answer that says to come again though its status does not: it is not kept.
#[derive(Clone, Copy)]
pub(super) struct ComeAgain;

/// The key that a request came with.
pub(super) fn key(headers: &HeaderMap) -> Result<Option<RequestId>, Problem> {
    let mut given = headers.get_all(KEY).iter();
    let Some(first) = given.next() else { return Ok(None) };
    let only = given.next().is_none();
    let id = first.to_str().ok().and_then(RequestId::new).filter(|_| only);
    let rule = || format!("is a header to be given once, with 1 to {} visible ASCII characters", RequestId::CHARS_MAX);
    id.map(Some).ok_or_else(|| invalid(KEY, rule()))
}

/// The key stands for another request already.
pub(super) fn reused() -> Problem {
    let detail = "`idempotency-key` came before with another path or body, and a key stands for one request: \
                  send that request again, or this one under a new key";
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "idempotency_key_reused", detail).with("field", KEY)
}

/// Keys whose first request has not been answered.
#[derive(Default)]
pub(super) struct UnderWay(Mutex<HashSet<(TenantKey, RequestId)>>);

struct Begun<'a> {
    all: &'a UnderWay,
    key: (TenantKey, RequestId),
}

impl UnderWay {
    fn begin(&self, tenant: TenantKey, request: &RequestId) -> Result<Begun<'_>, Problem> {
        let key = (tenant, request.clone());
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if keys.contains(&key) {
            let detail = "the first request under this `idempotency-key` is still under way: ask again in a moment";
            let problem = Problem::new(StatusCode::CONFLICT, "request_in_progress", detail).with("field", KEY);
            return Err(problem.retry_after(Duration::from_secs(1)));
        }
        if keys.len() >= UNDER_WAY_MAX {
            let detail = "too many requests with an `idempotency-key` are under way";
            let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail);
            return Err(problem.retry_after(Duration::from_secs(1)));
        }
        keys.insert(key.clone());
        Ok(Begun { all: self, key })
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

impl At<'_> {
    /// The kept answer, or that of `work`, which is kept unless it says to come again.
    pub(super) async fn once(
        &self,
        request: &RequestId,
        head: &Parts,
        body: &Bytes,
        work: impl Future<Output = Result<Answer, Problem>>,
    ) -> Result<Answer, Problem> {
        let _begun = self.admin.under_way.begin(self.tenant.key, request)?;
        let asked = digest(head, body);
        let now = self.admin.state.clock.now();
        let kept = self.ledger().kept_answer(self.tenant.key, request, now).await;
        if let Some(kept) = kept.map_err(|error| ledger_problem(&error))? {
            return if kept.asked == asked { Ok(replayed(kept)) } else { Err(reused()) };
        }
        let answer = work.await.unwrap_or_else(Problem::into_answer);
        let (parts, body) = answer.into_parts();
        let whole = body
            .collect()
            .await
            .map_err(|broken| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", broken.to_string()))?;
        let body = whole.to_bytes();
        let come_again = parts.status.is_server_error()
            || parts.status == StatusCode::TOO_MANY_REQUESTS
            || parts.extensions.get::<ComeAgain>().is_some();
        if !come_again && body.len() <= ANSWER_BYTES_MAX {
            let headers = parts.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
            let answer = KeptAnswer { asked, status: parts.status.as_u16(), headers, body: body.clone() };
            if let Err(error) = self.ledger().keep_answer(self.tenant.key, request, answer, now).await {
                tracing::warn!(%error, "an answer could not be kept for its idempotency key");
            }
        }
        Ok(Answer::from_parts(parts, body.into()))
    }
}

/// Every part is length-prefixed, so that no two requests run together.
fn digest(head: &Parts, body: &[u8]) -> [u8; 32] {
    let target = head.uri.path_and_query().map_or("", |target| target.as_str());
    let mut hash = Sha256::new();
    for part in [head.method.as_str().as_bytes(), target.as_bytes(), body] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

fn replayed(kept: KeptAnswer) -> Answer {
    let mut answer = Answer::new(kept.body.into());
    // Only statuses of answers are written there.
    *answer.status_mut() = StatusCode::from_u16(kept.status).unwrap_or_default();
    answer.headers_mut().extend(kept.headers);
    answer.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    answer
}
