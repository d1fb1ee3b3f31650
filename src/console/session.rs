//! Sessions: in memory, bounded in number and time. A session is the token that it began with, which is presented to
//! the API anew with every page, so that a token that is no longer good ends all that it began.

use crate::entropy::Entropy;
use crate::secret::Secret;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderValue, header};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The longest idle one gives way to a new one.
const SESSIONS_MAX: usize = 1_000;
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);
const AGE_MAX: Duration = Duration::from_secs(12 * 3_600);

/// Over https, where a browser lets nobody else set or see it.
const SECURE: &str = "__Host-hookgate";
/// Over http to this machine: not every browser takes a `Secure` cookie there.
const PLAIN: &str = "hookgate-session";

pub(super) struct Session {
    token: Secret,
    /// What forms carry, to be told from forms of elsewhere.
    form_token: String,
    began: Instant,
    seen: Mutex<Instant>,
    /// What the next page says first.
    flash: Mutex<Option<String>>,
}

impl Session {
    pub(super) fn token(&self) -> &Secret {
        &self.token
    }

    pub(super) fn form_token(&self) -> &str {
        &self.form_token
    }

    pub(super) fn made_form(&self, presented: &[u8]) -> bool {
        Secret::new(self.form_token.as_bytes()).matches(presented)
    }

    pub(super) fn say(&self, flash: impl Into<String>) {
        *self.flash.lock().unwrap_or_else(PoisonError::into_inner) = Some(flash.into());
    }

    pub(super) fn take_flash(&self) -> Option<String> {
        self.flash.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn seen(&self) -> Instant {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.began) >= AGE_MAX || now.saturating_duration_since(self.seen()) >= IDLE_MAX
    }
}

/// By the digest of what the cookie holds.
#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<[u8; 32], Arc<Session>>>);

fn fresh(entropy: &dyn Entropy) -> String {
    let mut bytes = [0; 32];
    entropy.fill(&mut bytes);
    URL_SAFE_NO_PAD.encode(bytes)
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

pub(super) fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(';')).find_map(|pair| {
        let (given, value) = pair.trim().split_once('=')?;
        (given == name).then_some(value)
    })
}

fn value(text: &str) -> HeaderValue {
    // Of ASCII alone.
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

impl Sessions {
    /// The session of a request; it is seen herewith.
    pub(super) fn find(&self, headers: &HeaderMap, now: Instant) -> Option<Arc<Session>> {
        let presented = cookie(headers, SECURE).or_else(|| cookie(headers, PLAIN))?;
        let key = digest(presented);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let session = Arc::clone(all.get(&key)?);
        if session.is_over(now) {
            all.remove(&key);
            return None;
        }
        *session.seen.lock().unwrap_or_else(PoisonError::into_inner) = now;
        Some(session)
    }

    /// Gives the cookie to be set.
    pub(super) fn begin(&self, token: Secret, secure: bool, now: Instant, entropy: &dyn Entropy) -> HeaderValue {
        let (id, form_token) = (fresh(entropy), fresh(entropy));
        let session = Session { token, form_token, began: now, seen: Mutex::new(now), flash: Mutex::new(None) };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, session| !session.is_over(now));
        if all.len() >= SESSIONS_MAX
            && let Some(idle) = all.iter().min_by_key(|(_, session)| session.seen()).map(|(key, _)| *key)
        {
            all.remove(&idle);
        }
        all.insert(digest(&id), Arc::new(session));
        let max_age = AGE_MAX.as_secs();
        value(&if secure {
            format!("{SECURE}={id}; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age={max_age}")
        } else {
            format!("{PLAIN}={id}; Path=/console; HttpOnly; SameSite=Strict; Max-Age={max_age}")
        })
    }

    /// Gives the cookies that take back those that were set.
    pub(super) fn end(&self, headers: &HeaderMap) -> [HeaderValue; 2] {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for name in [SECURE, PLAIN] {
            if let Some(presented) = cookie(headers, name) {
                all.remove(&digest(presented));
            }
        }
        [
            value(&format!("{SECURE}=; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=0")),
            value(&format!("{PLAIN}=; Path=/console; HttpOnly; SameSite=Strict; Max-Age=0")),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entropy::SystemEntropy;

    fn with(cookie: &HeaderValue) -> HeaderMap {
        let text = cookie.to_str().unwrap().split(';').next().unwrap().to_owned();
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, format!("other=1; {text}").parse().unwrap());
        headers
    }

    fn begin(sessions: &Sessions, now: Instant) -> HeaderMap {
        with(&sessions.begin(Secret::new("t"), false, now, &SystemEntropy))
    }

    #[test]
    fn a_session_ends_when_it_idles_or_is_old() {
        let sessions = Sessions::default();
        let began = Instant::now();
        let idle = begin(&sessions, began);
        assert!(sessions.find(&idle, began + IDLE_MAX - Duration::from_secs(1)).is_some());
        assert!(sessions.find(&idle, began + 2 * IDLE_MAX).is_none());
        let busy = begin(&sessions, began);
        let mut now = began;
        while now < began + AGE_MAX {
            assert!(sessions.find(&busy, now).is_some());
            now += Duration::from_secs(20 * 60);
        }
        assert!(sessions.find(&busy, now).is_none());
        assert!(sessions.0.lock().unwrap().is_empty());
    }

    #[test]
    fn there_are_never_more_than_may_be() {
        let sessions = Sessions::default();
        let began = Instant::now();
        let second = Duration::from_secs(1);
        let first = begin(&sessions, began);
        let next = begin(&sessions, began);
        for _ in 2..SESSIONS_MAX {
            begin(&sessions, began + second);
        }
        assert!(sessions.find(&first, began + 2 * second).is_some());
        begin(&sessions, began + 2 * second);
        assert_eq!(sessions.0.lock().unwrap().len(), SESSIONS_MAX);
        assert!(
            sessions.find(&next, began + 2 * second).is_none() && sessions.find(&first, began + 2 * second).is_some()
        );
    }

    #[test]
    fn cookies_are_as_strict_as_the_way_allows() {
        let sessions = Sessions::default();
        let secure = sessions.begin(Secret::new("t"), true, Instant::now(), &SystemEntropy);
        let text = secure.to_str().unwrap();
        assert!(text.starts_with("__Host-hookgate=") && text.contains("; Path=/; Secure; HttpOnly; SameSite=Strict;"));
        let headers = with(&secure);
        let session = sessions.find(&headers, Instant::now()).unwrap();
        assert!(session.made_form(session.form_token().as_bytes()) && !session.made_form(b""));
        sessions.end(&headers);
        assert!(sessions.find(&headers, Instant::now()).is_none());
    }
}
