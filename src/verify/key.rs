//! Keys and signatures as bytes: strict decoding, keyed state made once, comparison in constant time.

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, ParsedPublicKey};
use base64::Engine as _;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD, URL_SAFE_NO_PAD};
use hmac::digest::{CtOutput, Output};
use hmac::{Hmac, KeyInit as _, Mac};
use sha1::Sha1;
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use smallvec::SmallVec;
use subtle::{Choice, ConstantTimeEq as _};
use zeroize::Zeroizing;

/// Secrets are configuration: their padding may be left out, as the common libraries allow.
pub(super) const KEY_BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The longest signature there is (SHA-512 and Ed25519).
const SIGNATURE_BYTES_MAX: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Algorithm {
    HmacSha1,
    HmacSha256,
    HmacSha384,
    HmacSha512,
    Ed25519,
    /// The presented text is the secret itself.
    Equal,
}

impl Algorithm {
    pub(super) const NAMES: &'static str = "hmac-sha1, hmac-sha256, hmac-sha384, hmac-sha512, ed25519 or equal";

    pub(super) fn parse(text: &str) -> Option<Algorithm> {
        Some(match text {
            "hmac-sha1" => Algorithm::HmacSha1,
            "hmac-sha256" => Algorithm::HmacSha256,
            "hmac-sha384" => Algorithm::HmacSha384,
            "hmac-sha512" => Algorithm::HmacSha512,
            "ed25519" => Algorithm::Ed25519,
            "equal" => Algorithm::Equal,
            _ => return None,
        })
    }

    /// The length of a [`Candidate`]; of a token, its digest is compared.
    pub(super) const fn signature_bytes(self) -> usize {
        match self {
            Algorithm::HmacSha1 => 20,
            Algorithm::HmacSha256 | Algorithm::Equal => 32,
            Algorithm::HmacSha384 => 48,
            Algorithm::HmacSha512 | Algorithm::Ed25519 => 64,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Encoding {
    /// Lower case only.
    Hex,
    /// Padded and canonical only.
    Base64,
    /// Unpadded and canonical only.
    Base64Url,
}

impl Encoding {
    pub(super) const NAMES: &'static str = "hex, base64 or base64url";

    pub(super) fn parse(text: &str) -> Option<Encoding> {
        Some(match text {
            "hex" => Encoding::Hex,
            "base64" => Encoding::Base64,
            "base64url" => Encoding::Base64Url,
            _ => return None,
        })
    }

    pub(super) fn encode(self, bytes: &[u8]) -> String {
        match self {
            Encoding::Hex => hex::encode(bytes),
            Encoding::Base64 => STANDARD.encode(bytes),
            Encoding::Base64Url => URL_SAFE_NO_PAD.encode(bytes),
        }
    }

    /// The `length` bytes that `text` stands for; `None` for any other length or spelling.
    fn decode(self, text: &str, length: usize) -> Option<Candidate> {
        let mut candidate = [0; SIGNATURE_BYTES_MAX];
        let text = text.as_bytes();
        match self {
            Encoding::Hex => hex(text, length, &mut candidate)?,
            Encoding::Base64 => base64(&STANDARD, text, length, length.div_ceil(3) * 4, &mut candidate)?,
            Encoding::Base64Url => base64(&URL_SAFE_NO_PAD, text, length, (length * 4).div_ceil(3), &mut candidate)?,
        }
        Some(candidate)
    }
}

/// The value of each lower-case digit; `0xff` for what is none.
const HEX_DIGITS: [u8; 256] = {
    let mut digits = [0xff; 256];
    let mut value = 0;
    while value < 16 {
        digits[b"0123456789abcdef"[value as usize] as usize] = value;
        value += 1;
    }
    digits
};

fn hex(text: &[u8], length: usize, out: &mut Candidate) -> Option<()> {
    if text.len() != 2 * length {
        return None;
    }
    let mut wrong = 0;
    for (byte, pair) in out.iter_mut().zip(text.chunks_exact(2)) {
        let (high, low) = (HEX_DIGITS[usize::from(pair[0])], HEX_DIGITS[usize::from(pair[1])]);
        wrong |= high | low;
        *byte = high << 4 | low;
    }
    // A digit's value has no bit above the fourth.
    (wrong < 16).then_some(())
}

fn base64(engine: &GeneralPurpose, text: &[u8], length: usize, symbols: usize, out: &mut Candidate) -> Option<()> {
    // The engine asks for room for whole groups.
    let mut room = [0; SIGNATURE_BYTES_MAX + 8];
    if text.len() != symbols || engine.decode_slice(text, &mut room).ok()? != length {
        return None;
    }
    out[..length].copy_from_slice(&room[..length]);
    Some(())
}

/// A signature that was presented, decoded: the first [`Algorithm::signature_bytes`] count.
pub(super) type Candidate = [u8; SIGNATURE_BYTES_MAX];
pub(super) type Candidates = SmallVec<[Candidate; 2]>;

/// Decodes one presented signature.
pub(super) fn candidate(algorithm: Algorithm, encoding: Option<Encoding>, text: &str) -> Option<Candidate> {
    match encoding {
        Some(encoding) => encoding.decode(text, algorithm.signature_bytes()),
        None if text.is_empty() => None,
        None => {
            let mut candidate = [0; SIGNATURE_BYTES_MAX];
            candidate[..32].copy_from_slice(&Sha256::digest(text));
            Some(candidate)
        }
    }
}

/// How a secret's text is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeyForm {
    Text,
    Base64,
    Hex,
}

impl KeyForm {
    pub(super) const NAMES: &'static str = "text, base64 or hex";

    pub(super) fn parse(text: &str) -> Option<KeyForm> {
        Some(match text {
            "text" => KeyForm::Text,
            "base64" => KeyForm::Base64,
            "hex" => KeyForm::Hex,
            _ => return None,
        })
    }

    pub(super) fn decode(self, secret: &[u8]) -> Result<Zeroizing<Vec<u8>>, &'static str> {
        match self {
            KeyForm::Text => Ok(secret.to_vec()),
            KeyForm::Base64 => KEY_BASE64.decode(secret).map_err(|_| "is not base64: copy it again, without spaces"),
            KeyForm::Hex => hex::decode(secret).map_err(|_| "is not hexadecimal: copy it again, without spaces"),
        }
        .map(Zeroizing::new)
    }
}

/// A secret, ready for use: nothing of it is parsed again.
pub(super) enum Key {
    HmacSha1(Hmac<Sha1>),
    HmacSha256(Hmac<Sha256>),
    HmacSha384(Hmac<Sha384>),
    HmacSha512(Hmac<Sha512>),
    Ed25519 {
        public: ParsedPublicKey,
        /// Only where the secret is a private key.
        pair: Option<Ed25519KeyPair>,
    },
    Token {
        text: Zeroizing<Vec<u8>>,
        digest: [u8; 32],
    },
}

impl Key {
    /// The key of `bytes`, which are not empty; or what is wrong with them.
    pub(super) fn new(algorithm: Algorithm, bytes: &[u8]) -> Result<Key, &'static str> {
        let never = |_| "cannot be a key";
        match algorithm {
            Algorithm::HmacSha1 => Hmac::new_from_slice(bytes).map(Key::HmacSha1).map_err(never),
            Algorithm::HmacSha256 => Hmac::new_from_slice(bytes).map(Key::HmacSha256).map_err(never),
            Algorithm::HmacSha384 => Hmac::new_from_slice(bytes).map(Key::HmacSha384).map_err(never),
            Algorithm::HmacSha512 => Hmac::new_from_slice(bytes).map(Key::HmacSha512).map_err(never),
            Algorithm::Ed25519 => {
                let pair = match bytes.len() {
                    32 => None,
                    64 => Some(
                        Ed25519KeyPair::from_seed_and_public_key(&bytes[..32], &bytes[32..])
                            .map_err(|_| "is not an Ed25519 key pair: its public half belongs to another seed")?,
                    ),
                    _ => return Err("is not an Ed25519 key: give the 32 bytes of the public key"),
                };
                let public = pair.as_ref().map_or(bytes, |pair| pair.public_key().as_ref());
                let public = ParsedPublicKey::new(&ED25519, public)
                    .map_err(|_| "is not an Ed25519 public key: copy it again")?;
                Ok(Key::Ed25519 { public, pair })
            }
            Algorithm::Equal => {
                Ok(Key::Token { text: Zeroizing::new(bytes.to_vec()), digest: Sha256::digest(bytes).into() })
            }
        }
    }

    /// Whether one of the candidates is this key's signature of `parts`. All are compared, whatever the first says.
    pub(super) fn matches(&self, parts: &[&[u8]], candidates: &[Candidate]) -> bool {
        match self {
            Key::HmacSha1(keyed) => made(keyed, parts, candidates),
            Key::HmacSha256(keyed) => made(keyed, parts, candidates),
            Key::HmacSha384(keyed) => made(keyed, parts, candidates),
            Key::HmacSha512(keyed) => made(keyed, parts, candidates),
            Key::Token { digest, .. } => {
                let hit = |hit: Choice, candidate: &Candidate| hit | candidate[..digest.len()].ct_eq(digest);
                candidates.iter().fold(Choice::from(0), hit).into()
            }
            Key::Ed25519 { public, .. } => {
                // Ed25519 reads its message twice, so it has to be in one piece.
                let joined;
                let message = match parts {
                    [whole] => *whole,
                    _ => {
                        joined = parts.concat();
                        &joined
                    }
                };
                candidates.iter().fold(false, |hit, candidate| public.verify_sig(message, candidate).is_ok() | hit)
            }
        }
    }

    /// The text of this key's signature of `parts`. `None`: a public key signs nothing.
    pub(super) fn sign(&self, parts: &[&[u8]], encoding: Option<Encoding>) -> Option<Zeroizing<String>> {
        let bytes: SmallVec<[u8; SIGNATURE_BYTES_MAX]> = match self {
            Key::HmacSha1(keyed) => SmallVec::from_slice(mac(keyed, parts).as_bytes()),
            Key::HmacSha256(keyed) => SmallVec::from_slice(mac(keyed, parts).as_bytes()),
            Key::HmacSha384(keyed) => SmallVec::from_slice(mac(keyed, parts).as_bytes()),
            Key::HmacSha512(keyed) => SmallVec::from_slice(mac(keyed, parts).as_bytes()),
            Key::Ed25519 { pair, .. } => SmallVec::from_slice(pair.as_ref()?.sign(&parts.concat()).as_ref()),
            Key::Token { text, .. } => return String::from_utf8(text.to_vec()).ok().map(Zeroizing::new),
        };
        encoding.map(|encoding| Zeroizing::new(encoding.encode(&bytes)))
    }
}

fn mac<M: Mac + Clone>(keyed: &M, parts: &[&[u8]]) -> CtOutput<M> {
    let mut mac = keyed.clone();
    for part in parts {
        mac.update(part);
    }
    mac.finalize()
}

/// Whether one of the candidates is the code of `parts`. The comparison takes the same time wherever they differ.
fn made<M: Mac + Clone>(keyed: &M, parts: &[&[u8]], candidates: &[Candidate]) -> bool {
    let tag = mac(keyed, parts);
    let length = tag.as_bytes().len();
    let same = |candidate: &Candidate| {
        Output::<M>::try_from(&candidate[..length]).is_ok_and(|bytes| tag == CtOutput::new(bytes))
    };
    candidates.iter().fold(false, |hit, candidate| same(candidate) | hit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_is_strict() {
        let hex = "00".repeat(32);
        assert!(Encoding::Hex.decode(&hex, 32).is_some());
        assert!(Encoding::Hex.decode(&hex[2..], 32).is_none());
        assert!(Encoding::Hex.decode(&hex.replace('0', "A"), 32).is_none());
        for length in [20, 32, 48, 64] {
            let bytes = vec![0xfb; length];
            for encoding in [Encoding::Hex, Encoding::Base64, Encoding::Base64Url] {
                let text = encoding.encode(&bytes);
                let candidate = encoding.decode(&text, length).unwrap();
                assert_eq!(candidate[..length], bytes);
                assert!(encoding.decode(&text, length - 1).is_none());
                assert!(encoding.decode(&format!("{text} "), length).is_none());
            }
        }
        let padded = STANDARD.encode([0; 32]);
        assert!(Encoding::Base64.decode(padded.trim_end_matches('='), 32).is_none());
        assert!(Encoding::Base64Url.decode(&padded, 32).is_none());
        // The unused bits of the last symbol are set.
        assert!(Encoding::Base64.decode(&padded.replace("A=", "B="), 32).is_none());
    }

    #[test]
    fn keys_of_the_wrong_kind_are_refused() {
        assert!(Key::new(Algorithm::Ed25519, &[1; 31]).is_err());
        assert!(Key::new(Algorithm::Ed25519, &[1; 64]).is_err());
        assert!(KeyForm::Base64.decode(b"a b").is_err());
        assert!(KeyForm::Hex.decode(b"0").is_err());
        assert_eq!(**KeyForm::Base64.decode(b"aGk").unwrap(), *b"hi");
    }
}
