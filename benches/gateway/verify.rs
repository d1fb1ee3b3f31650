//! What the check of a signature costs beside the bare HMAC over the same kilobyte, on one thread, in turns: what slows
//! the machine for a while slows both.

use crate::wire::Body;
use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use hookgate::clock::Timestamp;
use hookgate::secret::Secret;
use hookgate::verify::{Request, SignRequest, Source, SourceSpec};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::hint::black_box;
use std::time::{Duration, Instant};

pub(crate) const SCHEMES: [&str; 5] = ["github", "shopify", "slack", "standard-webhooks", "stripe"];

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const URL: &str = "https://hooks.example/in/acme/source";
const NOW: Timestamp = Timestamp::from_millis(1_760_000_000_000);
/// Checks in one turn.
const TURN: u32 = 2_000;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Checks {
    pub(crate) body_bytes: usize,
    pub(crate) span: Duration,
}

/// Nanoseconds, each the median of its turns.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Checked {
    pub(crate) hmac: f64,
    /// In the order of [`SCHEMES`].
    pub(crate) schemes: Vec<f64>,
}

struct Signed {
    source: Source,
    headers: HeaderMap,
}

/// Runs in a process of its own.
pub(crate) fn run(checks: &Checks) -> Result<Checked> {
    let body = Bytes::copy_from_slice(Body::new(checks.body_bytes).as_bytes());
    let signed = SCHEMES.iter().map(|scheme| signed(scheme, &body)).collect::<Result<Vec<_>>>()?;
    let keyed = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes())?;
    let (mut bare, mut each) = (Vec::new(), vec![Vec::new(); signed.len()]);
    let until = Instant::now() + checks.span;
    while Instant::now() < until {
        bare.push(turn(|| {
            let mut mac = black_box(&keyed).clone();
            mac.update(black_box(&body));
            black_box(mac.finalize());
            Ok(())
        })?);
        for (one, times) in signed.iter().zip(&mut each) {
            let request =
                Request { method: &Method::POST, url: URL, headers: &one.headers, body: &body, received_at: NOW };
            times.push(turn(|| Ok(black_box(&one.source).verify(black_box(request))?))?);
        }
    }
    Ok(Checked { hmac: median(bare), schemes: each.into_iter().map(median).collect() })
}

fn signed(scheme: &str, body: &Bytes) -> Result<Signed> {
    let spec = SourceSpec { scheme: scheme.to_owned(), ..SourceSpec::default() };
    let source = spec.compile(&"bench".parse()?, &"source".parse()?, vec![Secret::new(SECRET)]);
    let source = source.ok().with_context(|| format!("{scheme} does not compile"))?;
    let sign = SignRequest { id: "evt-17", event_type: None, timestamp: NOW, url: URL, body };
    let mut headers = HeaderMap::new();
    for (name, value) in source.sign(sign)? {
        headers.insert(name.parse::<HeaderName>()?, HeaderValue::from_str(&value)?);
    }
    // What stands beside the signature in most requests.
    for (name, value) in [("host", "hooks.example"), ("content-type", "application/json"), ("user-agent", "bench")] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    let request = Request { method: &Method::POST, url: URL, headers: &headers, body, received_at: NOW };
    ensure!(source.verify(request).is_ok(), "{scheme}: what was signed is refused");
    Ok(Signed { source, headers })
}

fn turn(mut check: impl FnMut() -> Result<()>) -> Result<f64> {
    let from = Instant::now();
    for _ in 0..TURN {
        check()?;
    }
    Ok(from.elapsed().as_secs_f64() * 1e9 / f64::from(TURN))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or_default()
}
