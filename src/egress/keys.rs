//! Keys that providers publish: fetched through the guard, one fetch at a time for each, and remembered within limits.
//! Where a key may be fetched from is not decided here.

use super::{Answer, Exchange, Outbound, Transport};
use crate::clock::{Clock, Timestamp};
use crate::secret::Secret;
use crate::verify::{Fetched, Found, KeyQuery, KeySource, KeyUrl, Unreachable};
use async_trait::async_trait;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use rustls_pki_types::TrustAnchor;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Mutex as Flight, Semaphore};
use tokio::time::timeout;
use url::Url;

/// No endpoint has this key: these connections are nobody's.
const POOL: u32 = u32::MAX;
/// The largest certificate chain or key set.
const ANSWER_BYTES_MAX: usize = 64 << 10;
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// What a request waits for at most, its turn included.
const WAIT_MAX: Duration = Duration::from_secs(10);
const FETCHES_AT_ONCE: usize = 8;
/// What strangers can make us ask of one host.
const FETCHES_PER_HOST: u32 = 60;
const FETCHES_SPAN: Duration = Duration::from_secs(60);
const KEYS_MAX: usize = 256;
const KEYS_BYTES_MAX: usize = 4 << 20;
const HOSTS_MAX: usize = 256;
/// How long it is believed that there is no such key, and that a server is down.
const ABSENT_FOR: Duration = Duration::from_secs(60);
const DOWN_FOR: Duration = Duration::from_secs(5);

/// The keys of all providers.
pub struct Keys {
    transport: Arc<dyn Transport>,
    /// Whose certificates are believed.
    anchors: Arc<[TrustAnchor<'static>]>,
    clock: Arc<dyn Clock>,
    memory: Mutex<Memory>,
    at_once: Semaphore,
}

#[derive(Default)]
struct Memory {
    entries: HashMap<[u8; 32], Entry>,
    hosts: HashMap<String, (Timestamp, u32)>,
}

/// What stood at a place, and how long ago.
type Aged = (Arc<Found>, Duration);

struct Entry {
    /// Held by who fetches.
    flight: Arc<Flight<()>>,
    /// What stood there, or that nothing did, and when.
    found: Option<(Option<Arc<Found>>, Timestamp)>,
    /// Why it could not be had, and when. What was found before is kept beside it.
    down: Option<(Unreachable, Timestamp)>,
    used: Timestamp,
}

impl Entry {
    fn bytes(&self) -> usize {
        self.found.as_ref().and_then(|(found, _)| found.as_ref()).map_or(0, |found| found.bytes().len())
    }

    /// What counts now. `None`: it has to be fetched.
    fn answer(&self, now: Timestamp, age_max: Duration) -> Option<Result<Option<Aged>, Unreachable>> {
        if let Some((found, at)) = &self.found {
            let age = now.since(*at);
            match found {
                Some(found) if age < age_max => return Some(Ok(Some((Arc::clone(found), age)))),
                None if age < ABSENT_FOR => return Some(Ok(None)),
                Some(_) | None => {}
            }
        }
        let (why, _) = self.down.as_ref().filter(|(_, at)| now.since(*at) < DOWN_FOR)?;
        Some(Err(why.clone()))
    }
}

impl Memory {
    fn entry(&mut self, digest: [u8; 32], now: Timestamp) -> &mut Entry {
        if !self.entries.contains_key(&digest) {
            self.fit(1);
        }
        let fresh = || Entry { flight: Arc::default(), found: None, down: None, used: now };
        let entry = self.entries.entry(digest).or_insert_with(fresh);
        entry.used = now;
        entry
    }

    /// Forgets until there is room for so many more: what was never had first, then what was used longest ago, and never
    /// what is being fetched. So what strangers make up displaces no key.
    fn fit(&mut self, room: usize) {
        let mut bytes: usize = self.entries.values().map(Entry::bytes).sum();
        while self.entries.len() + room > KEYS_MAX || bytes > KEYS_BYTES_MAX {
            let idle = self.entries.iter().filter(|(_, entry)| Arc::strong_count(&entry.flight) == 1);
            let least = idle.min_by_key(|(_, entry)| (entry.bytes() > 0, entry.used));
            let Some(oldest) = least.map(|(digest, _)| *digest) else { return };
            bytes -= self.entries.remove(&oldest).map_or(0, |entry| entry.bytes());
        }
    }

    /// Whether a host may be asked once more.
    fn may_ask(&mut self, host: &str, now: Timestamp) -> bool {
        if !self.hosts.contains_key(host) && self.hosts.len() >= HOSTS_MAX {
            self.hosts.retain(|_, (since, _)| now.since(*since) < FETCHES_SPAN);
            if self.hosts.len() >= HOSTS_MAX {
                return false;
            }
        }
        let (since, count) = self.hosts.entry(host.to_owned()).or_insert((now, 0));
        if now.since(*since) >= FETCHES_SPAN {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count <= FETCHES_PER_HOST
    }
}

impl Keys {
    pub fn new(transport: Arc<dyn Transport>, anchors: Arc<[TrustAnchor<'static>]>, clock: Arc<dyn Clock>) -> Self {
        let at_once = Semaphore::new(FETCHES_AT_ONCE);
        Keys { transport, anchors, clock, memory: Mutex::default(), at_once }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn look(&self, query: &KeyQuery) -> Result<Option<Fetched>, Unreachable> {
        let digest = query.digest();
        let told = |answer: Option<Aged>| {
            answer.map(|(found, age)| Fetched { found, age, anchors: Arc::clone(&self.anchors) })
        };
        let flight = {
            let now = self.clock.now();
            let mut memory = self.memory();
            let entry = memory.entry(digest, now);
            if let Some(answer) = entry.answer(now, query.age_max()) {
                return answer.map(told);
            }
            Arc::clone(&entry.flight)
        };
        let turn = flight.lock().await;
        // Whoever was before us may have brought it.
        let now = self.clock.now();
        let brought = self.memory().entry(digest, now).answer(now, query.age_max());
        if let Some(answer) = brought {
            return answer.map(told);
        }
        // A key that was there before is asked for at its own pace, whatever strangers made us ask of its host.
        let is_known = self.memory().entry(digest, now).bytes() > 0;
        let got = self.ask(query.url(), query.body(), is_known).await;
        let got = got.map(|bytes| bytes.map(|bytes| Arc::new(Found::new(bytes))));
        let now = self.clock.now();
        {
            let mut memory = self.memory();
            let entry = memory.entry(digest, now);
            match &got {
                Ok(found) => (entry.found, entry.down) = (Some((found.clone(), now)), None),
                Err(why) => entry.down = Some((why.clone(), now)),
            }
        }
        drop(turn);
        drop(flight);
        self.memory().fit(0);
        got.map(|found| told(found.map(|found| (found, Duration::ZERO))))
    }

    /// One request. `None`: the server says that there is no such key.
    async fn ask(&self, url: &Url, body: Option<&Secret>, is_known: bool) -> Result<Option<Bytes>, Unreachable> {
        let host = url.host_str().unwrap_or_default();
        if !is_known && !self.memory().may_ask(host, self.clock.now()) {
            let many = format!("for {FETCHES_PER_HOST} keys of {host}, or for keys of {HOSTS_MAX} hosts");
            return Err(Unreachable(format!("requests asked {many} within a minute")));
        }
        let answer = self.exchange(url, body).await?;
        match answer.status {
            StatusCode::OK if answer.body_truncated => {
                Err(Unreachable(format!("{host} answered with more than {ANSWER_BYTES_MAX} bytes, or broke off")))
            }
            StatusCode::OK => Ok(Some(answer.body)),
            StatusCode::BAD_REQUEST | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND | StatusCode::GONE => {
                tracing::warn!(host, status = answer.status.as_u16(), "a key server has no such key");
                Ok(None)
            }
            status => Err(Unreachable(format!("{host} answered {}", status.as_u16()))),
        }
    }

    async fn exchange(&self, url: &Url, body: Option<&Secret>) -> Result<Answer, Unreachable> {
        let host = url.host_str().unwrap_or_default();
        let busy = || Unreachable(format!("{FETCHES_AT_ONCE} other keys are being fetched"));
        let _place = self.at_once.acquire().await.map_err(|_| busy())?;
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("hookgate/", env!("CARGO_PKG_VERSION"))));
        if body.is_some() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let request = Outbound {
            pool: POOL,
            url: url.clone(),
            method: if body.is_some() { Method::POST } else { Method::GET },
            headers,
            body: body.map(|body| Bytes::copy_from_slice(body.expose())).unwrap_or_default(),
            timeout: FETCH_TIMEOUT,
            body_kept_max: ANSWER_BYTES_MAX,
        };
        match self.transport.send(request).await {
            Exchange::Answered(answer) => Ok(answer),
            Exchange::Failed(failure) => Err(Unreachable(format!("{host}: {}", failure.detail))),
            Exchange::Refused { detail, .. } => Err(Unreachable(format!("{host} is refused: {detail}"))),
        }
    }
}

#[async_trait]
impl KeySource for Keys {
    async fn fetch(&self, query: &KeyQuery) -> Result<Option<Fetched>, Unreachable> {
        let late = |_| Err(Unreachable("the key did not arrive in time".to_owned()));
        timeout(WAIT_MAX, self.look(query)).await.unwrap_or_else(late)
    }

    async fn confirm(&self, url: &KeyUrl) -> Result<(), Unreachable> {
        let host = url.url().host_str().unwrap_or_default();
        let answer = timeout(WAIT_MAX, self.exchange(url.url(), None)).await;
        let answer = answer.unwrap_or_else(|_| Err(Unreachable(format!("{host} did not answer in time"))))?;
        if answer.status.is_success() {
            return Ok(());
        }
        Err(Unreachable(format!("{host} answered {}", answer.status.as_u16())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(bytes: &[u8]) -> Arc<Found> {
        Arc::new(Found::new(Bytes::copy_from_slice(bytes)))
    }

    #[test]
    fn memory_keeps_its_limits_and_what_was_used_last() {
        let mut memory = Memory::default();
        let digest = |n: usize| {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&n.to_be_bytes());
            digest
        };
        for n in 0..3 * KEYS_MAX {
            let now = Timestamp::from_millis(i64::try_from(n).unwrap());
            memory.entry(digest(n), now).found = Some((Some(kept(&[0; 1_000])), now));
        }
        assert_eq!(memory.entries.len(), KEYS_MAX);
        assert!(memory.entries.contains_key(&digest(3 * KEYS_MAX - 1)));
        let late = Timestamp::from_millis(1_000_000);
        for n in 0..KEYS_MAX {
            memory.entry(digest(n), late).found = Some((Some(kept(&[0; ANSWER_BYTES_MAX])), late));
        }
        memory.fit(0);
        assert!(memory.entries.values().map(Entry::bytes).sum::<usize>() <= KEYS_BYTES_MAX);
        // What was never had goes first.
        let mut memory = Memory::default();
        let early = Timestamp::from_millis(0);
        memory.entry(digest(0), early).found = Some((Some(kept(b"key")), early));
        for n in 1..3 * KEYS_MAX {
            memory.entry(digest(n), late).down = Some((Unreachable("down".to_owned()), late));
        }
        assert!(memory.entries.contains_key(&digest(0)) && memory.entries.len() == KEYS_MAX);
        // What is being fetched stays.
        let flights: Vec<_> = memory.entries.values().map(|entry| Arc::clone(&entry.flight)).collect();
        let before = memory.entries.len();
        memory.fit(KEYS_MAX);
        assert_eq!(memory.entries.len(), before);
        drop(flights);
        memory.fit(KEYS_MAX);
        assert!(memory.entries.is_empty());
    }

    #[test]
    fn a_host_is_asked_so_often_and_no_more() {
        let mut memory = Memory::default();
        let now = Timestamp::from_millis(1_000_000);
        assert!((0..FETCHES_PER_HOST).all(|_| memory.may_ask("a.test", now)));
        assert!(!memory.may_ask("a.test", now.plus(FETCHES_SPAN - Duration::from_millis(1))));
        assert!(memory.may_ask("a.test", now.plus(FETCHES_SPAN)));
        assert!((1..HOSTS_MAX).all(|n| memory.may_ask(&format!("{n}.test"), now)));
        assert!(!memory.may_ask("one-more.test", now));
        assert!(memory.may_ask("one-more.test", now.plus(FETCHES_SPAN)));
        assert!(memory.hosts.len() < HOSTS_MAX);
    }
}
