//! Standard Webhooks v1 for what we send: the keys are parsed once, their HMAC state is kept.

use super::key::KEY_BASE64;
use crate::clock::Timestamp;
use crate::entropy::Entropy;
use crate::secret::Secret;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::HeaderValue;
use sha2::Sha256;
use std::fmt;
use std::io::Write as _;
use std::ops::RangeInclusive;
use zeroize::Zeroizing;

const PREFIX: &str = "whsec_";
const KEY_BYTES: RangeInclusive<usize> = 24..=64;
/// `v1,` and the base64 of 32 bytes.
const SIGNATURE_CHARS: usize = 3 + 44;

/// Why secrets cannot sign.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SignerError {
    #[error("no signing secret: name at least one")]
    NoSecret,
    #[error("signing secret {number} does not begin with `whsec_`: write `whsec_` and the base64 of 24 to 64 bytes")]
    NoPrefix { number: usize },
    #[error("signing secret {number} is not base64 after `whsec_`: write `whsec_` and the base64 of 24 to 64 bytes")]
    NotBase64 { number: usize },
    #[error("signing secret {number} has {bytes} bytes: write `whsec_` and the base64 of 24 to 64 bytes")]
    Length { number: usize, bytes: usize },
}

/// Signs deliveries: one signature per active secret, so that a receiver can rotate.
#[derive(Clone)]
pub struct Signer {
    keys: Vec<Hmac<Sha256>>,
}

/// Keys stay inside.
impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({} secrets)", self.keys.len())
    }
}

impl Signer {
    /// The secrets are numbered from 1 in errors.
    pub fn new(secrets: &[Secret]) -> Result<Signer, SignerError> {
        if secrets.is_empty() {
            return Err(SignerError::NoSecret);
        }
        let keys = secrets.iter().zip(1..).map(|(secret, number)| keyed(secret, number));
        Ok(Signer { keys: keys.collect::<Result<_, _>>()? })
    }

    /// The value of `webhook-signature` for an attempt at `now`, whose `webhook-timestamp` is `now` in seconds.
    pub fn headers(&self, id: &str, now: Timestamp, body: &[u8]) -> HeaderValue {
        let mut stamp = [0; 24];
        let mut room = &mut stamp[..];
        // An i64 has at most 20 characters.
        let _fits = write!(room, ".{}.", now.as_seconds());
        let unused = room.len();
        let stamp = &stamp[..stamp.len() - unused];
        let mut text = String::with_capacity(self.keys.len() * (SIGNATURE_CHARS + 1));
        for key in &self.keys {
            let mut mac = key.clone();
            mac.update(id.as_bytes());
            mac.update(stamp);
            mac.update(body);
            text.push_str(if text.is_empty() { "v1," } else { " v1," });
            STANDARD.encode_string(mac.finalize().into_bytes(), &mut text);
        }
        // `v1,`, base64 and spaces are all visible ASCII: this does not fail.
        HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
    }
}

fn keyed(secret: &Secret, number: usize) -> Result<Hmac<Sha256>, SignerError> {
    let text = secret.expose().strip_prefix(PREFIX.as_bytes()).ok_or(SignerError::NoPrefix { number })?;
    let bytes = KEY_BASE64.decode(text).map(Zeroizing::new).map_err(|_| SignerError::NotBase64 { number })?;
    let length = SignerError::Length { number, bytes: bytes.len() };
    if !KEY_BYTES.contains(&bytes.len()) {
        return Err(length);
    }
    Hmac::new_from_slice(&bytes).map_err(|_| length)
}

/// A fresh signing secret of 32 random bytes.
pub fn generate_secret(entropy: &dyn Entropy) -> Secret {
    let mut bytes = Zeroizing::new([0; 32]);
    entropy.fill(&mut *bytes);
    let mut text = String::with_capacity(PREFIX.len() + 44);
    text.push_str(PREFIX);
    STANDARD.encode_string(*bytes, &mut text);
    Secret::from(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entropy::SystemEntropy;
    use http::HeaderMap;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    #[test]
    fn the_vector_shared_by_the_libraries() {
        let signer = Signer::new(&[Secret::new(SECRET)]).unwrap();
        let now = Timestamp::from_millis(1_614_265_330_999);
        let value = signer.headers("msg_p5jXN8AQM9LWM0D4loKWxJek", now, br#"{"test": 2432232314}"#);
        assert_eq!(value, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the other library reads the clock itself")]
    fn another_library_accepts_every_active_secret() {
        let secrets = [generate_secret(&SystemEntropy), generate_secret(&SystemEntropy)];
        let signer = Signer::new(&secrets).unwrap();
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let now = Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap());
        let body = "{\"größe\": 1}\r\n".as_bytes();
        let mut headers = HeaderMap::new();
        headers.insert("webhook-id", HeaderValue::from_static("dlv_1"));
        headers.insert("webhook-timestamp", HeaderValue::from(now.as_seconds()));
        headers.insert("webhook-signature", signer.headers("dlv_1", now, body));
        for secret in &secrets {
            let oracle = standardwebhooks::Webhook::new(secret.expose_str().unwrap()).unwrap();
            oracle.verify(body, &headers).unwrap();
            assert!(oracle.verify(b"other", &headers).is_err());
        }
        let stranger = generate_secret(&SystemEntropy);
        let oracle = standardwebhooks::Webhook::new(stranger.expose_str().unwrap()).unwrap();
        assert!(oracle.verify(body, &headers).is_err());
    }

    #[test]
    fn secrets_that_cannot_sign_are_refused() {
        let of = |bytes: usize| format!("whsec_{}", STANDARD.encode(vec![7; bytes]));
        let error = |text: &str| Signer::new(&[Secret::new(SECRET), Secret::new(text)]).unwrap_err();
        assert_eq!(Signer::new(&[]).unwrap_err(), SignerError::NoSecret);
        assert_eq!(error("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), SignerError::NoPrefix { number: 2 });
        assert_eq!(error("whsec_not base64"), SignerError::NotBase64 { number: 2 });
        assert_eq!(error(&of(23)), SignerError::Length { number: 2, bytes: 23 });
        assert_eq!(error(&of(65)), SignerError::Length { number: 2, bytes: 65 });
        assert!(Signer::new(&[Secret::new(of(24)), Secret::new(of(64))]).is_ok());
        assert!(!format!("{:?}", Signer::new(&[Secret::new(SECRET)])).contains("MfK"));
    }
}
