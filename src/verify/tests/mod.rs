//! The room as a whole: sources compiled from what a tenant writes, requests signed and admitted.

mod admission;
mod adoption;
mod borders;
mod catalogue;
mod code;
mod dedup;
mod handshakes;
mod problems;
mod properties;

use super::*;
use crate::clock::Timestamp;
use crate::secret::Secret;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_500);
const URL: &str = "https://hooks.example.test/in/acme/src?token=1&b=2";

fn text_secret() -> Secret {
    Secret::new("hookgate-test-secret")
}

fn standard_secret() -> Secret {
    Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
}

/// An Ed25519 key pair as a private and a public secret.
fn ed25519_secrets() -> (Secret, Secret) {
    use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    let seed = [7; 32];
    let pair = Ed25519KeyPair::from_seed_unchecked(&seed).unwrap();
    let public = pair.public_key().as_ref();
    let private = Secret::new(format!("whsk_{}", STANDARD.encode([&seed[..], public].concat())));
    (private, Secret::new(format!("whpk_{}", STANDARD.encode(public))))
}

fn compile(spec: &SourceSpec, secrets: Vec<Secret>) -> Source {
    spec.compile(&"acme".parse().unwrap(), &"src".parse().unwrap(), secrets).unwrap_or_else(|p| panic!("{p:?}"))
}

fn builtin(scheme: &str) -> SourceSpec {
    SourceSpec { scheme: scheme.to_owned(), ..SourceSpec::default() }
}

/// A custom scheme as it stands in a file.
fn custom(text: &str) -> SourceSpec {
    let scheme: SchemeSpec = toml::from_str(text).unwrap_or_else(|error| panic!("{error}"));
    SourceSpec { custom: Some(scheme), ..builtin("custom") }
}

/// A request that owns its parts.
#[derive(Clone)]
struct Post {
    headers: HeaderMap,
    body: Bytes,
    url: String,
    at: Timestamp,
}

impl Post {
    fn new(headers: &[(&str, &str)], body: &[u8]) -> Post {
        let mut post =
            Post { headers: HeaderMap::new(), body: Bytes::copy_from_slice(body), url: URL.to_owned(), at: NOW };
        for (name, value) in headers {
            post = post.and(name, value.as_bytes());
        }
        post
    }

    fn and(mut self, name: &str, value: &[u8]) -> Post {
        self.headers.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_bytes(value).unwrap());
        self
    }

    fn with(mut self, name: &str, value: &[u8]) -> Post {
        self.headers.insert(name.parse::<HeaderName>().unwrap(), HeaderValue::from_bytes(value).unwrap());
        self
    }

    fn without(mut self, name: &str) -> Post {
        self.headers.remove(name);
        self
    }

    fn at(self, at: Timestamp) -> Post {
        Post { at, ..self }
    }

    fn request(&self) -> Request<'_> {
        Request {
            method: &Method::POST,
            url: &self.url,
            headers: &self.headers,
            body: &self.body,
            received_at: self.at,
        }
    }
}

/// A request as the provider would sign it.
fn signed(source: &Source, id: &str, at: Timestamp, body: &[u8]) -> Post {
    let bytes = Bytes::copy_from_slice(body);
    let sign = SignRequest { id, event_type: Some("thing.made"), timestamp: at, url: URL, body: &bytes };
    let headers = source.sign(sign).unwrap();
    let headers: Vec<(&str, &str)> = headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    Post::new(&headers, body)
}

fn event(source: &Source, post: &Post) -> Event {
    match source.admit(post.request()) {
        Ok(Admission::Event(event)) => event.into_inner(),
        other => panic!("{other:?}"),
    }
}

fn refusal(source: &Source, post: &Post) -> RefusalCode {
    match source.admit(post.request()) {
        Err(refusal) => refusal.code,
        Ok(admission) => panic!("{admission:?}"),
    }
}
