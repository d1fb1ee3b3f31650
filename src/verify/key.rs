//! Keys and signatures as bytes: strict decoding, keyed state made once, comparison in constant time.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{self, Digest};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, ED25519, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
    ParsedPublicKey, RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256,
    RsaKeyPair, VerificationAlgorithm,
};
use base64::Engine as _;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD, URL_SAFE_NO_PAD};
use hmac::digest::CtOutput;
use hmac::{Hmac, KeyInit as _, Mac};
use icu_normalizer::DecomposingNormalizerBorrowed;
use rustls_pki_types::pem::{PemObject as _, SectionKind};
use sha1::Sha1;
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use smallvec::{SmallVec, smallvec};
use std::borrow::Cow;
use std::ops::RangeInclusive;
use zeroize::Zeroizing;

/// Secrets are configuration: their padding may be left out, as the common libraries allow.
pub(super) const KEY_BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Algorithm {
    HmacSha1,
    HmacSha256,
    HmacSha384,
    HmacSha512,
    /// A plain hash over signed bytes that hold the secret.
    HashSha1,
    HashSha256,
    Ed25519,
    /// In DER.
    EcdsaP256,
    RsaSha256,
    /// Weak, and what some providers still use.
    RsaSha1,
    /// The presented text is the secret itself.
    Equal,
    /// HTTP's: `Basic` and the base64 of the secret.
    Basic,
}

impl Algorithm {
    pub(super) const NAMES: &'static str = "hmac-sha1, hmac-sha256, hmac-sha384, hmac-sha512, hash-sha1, hash-sha256, \
                                            ed25519, ecdsa-p256-sha256, rsa-sha256, rsa-sha1, equal or basic";

    pub(super) fn parse(text: &str) -> Option<Algorithm> {
        Some(match text {
            "hmac-sha1" => Algorithm::HmacSha1,
            "hmac-sha256" => Algorithm::HmacSha256,
            "hmac-sha384" => Algorithm::HmacSha384,
            "hmac-sha512" => Algorithm::HmacSha512,
            "hash-sha1" => Algorithm::HashSha1,
            "hash-sha256" => Algorithm::HashSha256,
            "ed25519" => Algorithm::Ed25519,
            "ecdsa-p256-sha256" => Algorithm::EcdsaP256,
            "rsa-sha256" => Algorithm::RsaSha256,
            "rsa-sha1" => Algorithm::RsaSha1,
            "equal" => Algorithm::Equal,
            "basic" => Algorithm::Basic,
            _ => return None,
        })
    }

    /// The length of a [`Candidate`]; of a token, its digest is compared.
    const fn signature_bytes(self) -> RangeInclusive<usize> {
        match self {
            Algorithm::HmacSha1 | Algorithm::HashSha1 => 20..=20,
            Algorithm::HmacSha256 | Algorithm::HashSha256 | Algorithm::Equal | Algorithm::Basic => 32..=32,
            Algorithm::HmacSha384 => 48..=48,
            Algorithm::HmacSha512 | Algorithm::Ed25519 => 64..=64,
            // Two integers of up to 33 bytes, each with its head, and the sequence's.
            Algorithm::EcdsaP256 => 8..=72,
            // Keys of 2048 to 8192 bits.
            Algorithm::RsaSha256 | Algorithm::RsaSha1 => 256..=1024,
        }
    }

    pub(super) const fn is_hmac(self) -> bool {
        matches!(self, Algorithm::HmacSha1 | Algorithm::HmacSha256 | Algorithm::HmacSha384 | Algorithm::HmacSha512)
    }

    pub(super) const fn is_hash(self) -> bool {
        matches!(self, Algorithm::HashSha1 | Algorithm::HashSha256)
    }

    /// What is presented is the secret: it signs nothing.
    pub(super) const fn is_token(self) -> bool {
        matches!(self, Algorithm::Equal | Algorithm::Basic)
    }

    fn public_key(self) -> Option<PublicKeyKind> {
        Some(match self {
            Algorithm::Ed25519 => PublicKeyKind { verification: &ED25519, digest: None, wrong: "is no Ed25519 key" },
            Algorithm::EcdsaP256 => PublicKeyKind {
                verification: &ECDSA_P256_SHA256_ASN1,
                digest: Some(&digest::SHA256),
                wrong: "is no ECDSA key of P-256",
            },
            Algorithm::RsaSha256 => PublicKeyKind {
                verification: &RSA_PKCS1_2048_8192_SHA256,
                digest: Some(&digest::SHA256),
                wrong: "is no RSA key of 2048 to 8192 bits",
            },
            Algorithm::RsaSha1 => PublicKeyKind {
                verification: &RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY,
                digest: Some(&digest::SHA1_FOR_LEGACY_USE_ONLY),
                wrong: "is no RSA key of 2048 to 8192 bits",
            },
            Algorithm::HmacSha1
            | Algorithm::HmacSha256
            | Algorithm::HmacSha384
            | Algorithm::HmacSha512
            | Algorithm::HashSha1
            | Algorithm::HashSha256
            | Algorithm::Equal
            | Algorithm::Basic => return None,
        })
    }
}

struct PublicKeyKind {
    verification: &'static dyn VerificationAlgorithm,
    /// `None`: the message is signed, not its digest.
    digest: Option<&'static digest::Algorithm>,
    wrong: &'static str,
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

    /// The form that is taken, for people.
    pub(super) const fn told(self) -> &'static str {
        match self {
            Encoding::Hex => "hexadecimal in lower case",
            Encoding::Base64 => "base64 with its padding",
            Encoding::Base64Url => "base64 for URLs, without padding",
        }
    }

    pub(super) fn encode(self, bytes: &[u8]) -> String {
        match self {
            Encoding::Hex => hex::encode(bytes),
            Encoding::Base64 => STANDARD.encode(bytes),
            Encoding::Base64Url => URL_SAFE_NO_PAD.encode(bytes),
        }
    }

    /// The bytes that `text` stands for; `None` for another number of them, or another spelling.
    fn decode(self, text: &[u8], lengths: &RangeInclusive<usize>) -> Option<Candidate> {
        // No encoding takes more than two characters for a byte, or four for a short one.
        if text.len() > 2 * lengths.end() + 4 {
            return None;
        }
        let candidate = match self {
            Encoding::Hex => hex(text)?,
            Encoding::Base64 => BASE64.decode(unpadded(text)?)?,
            Encoding::Base64Url => BASE64URL.decode(text)?,
        };
        lengths.contains(&candidate.len()).then_some(candidate)
    }
}

/// The value of each digit; `0xff` for what is none.
const fn digits<const N: usize>(alphabet: &[u8; N]) -> [u8; 256] {
    let mut digits = [0xff; 256];
    let mut value = 0;
    while value < N {
        digits[alphabet[value] as usize] = value as u8;
        value += 1;
    }
    digits
}

const HEX_DIGITS: [u8; 256] = digits(b"0123456789abcdef");
static BASE64: Base64 = Base64::new(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/");
static BASE64URL: Base64 = Base64::new(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_");

fn hex(text: &[u8]) -> Option<Candidate> {
    let (pairs, []) = text.as_chunks() else { return None };
    let mut wrong = 0;
    let byte = |[high, low]: &[u8; 2]| {
        let (high, low) = (HEX_DIGITS[usize::from(*high)], HEX_DIGITS[usize::from(*low)]);
        wrong |= high | low;
        high << 4 | low
    };
    let bytes = pairs.iter().map(byte).collect();
    // A digit's value has no bit above the fourth.
    (wrong < 16).then_some(bytes)
}

/// What is before the padding, where that is as long as it has to be.
fn unpadded(text: &[u8]) -> Option<&[u8]> {
    if !text.len().is_multiple_of(4) {
        return None;
    }
    Some(text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text))
}

/// Base64 without padding (RFC 4648): what each digit adds to a group of three bytes, by its place in it. What is no
/// digit adds a bit above them.
struct Base64([[u32; 256]; 4]);

impl Base64 {
    const fn new(alphabet: &[u8; 64]) -> Base64 {
        let digits = digits(alphabet);
        let mut places = [[1 << 24; 256]; 4];
        let mut byte = 0;
        while byte < 256 {
            let mut place = 0;
            while place < 4 && digits[byte] < 64 {
                places[place][byte] = (digits[byte] as u32) << (18 - 6 * place);
                place += 1;
            }
            byte += 1;
        }
        Base64(places)
    }

    /// The bits that stand for nothing are zero.
    fn decode(&self, text: &[u8]) -> Option<Candidate> {
        let Base64([first, second, third, fourth]) = self;
        let (groups, rest) = text.as_chunks();
        let mut all = 0;
        let mut group = |&[a, b, c, d]: &[u8; 4]| {
            let group = first[usize::from(a)] | second[usize::from(b)] | third[usize::from(c)] | fourth[usize::from(d)];
            all |= group;
            let [_, bytes @ ..] = group.to_be_bytes();
            bytes
        };
        let mut bytes: Candidate = smallvec![0; groups.len() * 3];
        for (bytes, digits) in bytes.as_chunks_mut().0.iter_mut().zip(groups) {
            *bytes = group(digits);
        }
        let zero = b'A';
        let none = match *rest {
            [] => 0,
            [a, b] => {
                let [first, none, _] = group(&[a, b, zero, zero]);
                bytes.push(first);
                none
            }
            [a, b, c] => {
                let [first, second, none] = group(&[a, b, c, zero]);
                bytes.extend_from_slice(&[first, second]);
                none
            }
            _ => return None,
        };
        (all < 1 << 24 && none == 0).then_some(bytes)
    }
}

/// A signature that was presented, decoded.
pub(super) type Candidate = SmallVec<[u8; 72]>;
pub(super) type Candidates = SmallVec<[Candidate; 1]>;

/// Decodes one presented signature.
/// What a signature has to be that is none.
pub(super) fn undecodable(algorithm: Algorithm, encoding: Option<Encoding>) -> String {
    let lengths = algorithm.signature_bytes();
    let bytes = match (lengths.start(), lengths.end()) {
        (least, most) if least == most => format!("{least} bytes"),
        (least, most) => format!("{least} to {most} bytes"),
    };
    match (encoding, algorithm) {
        (Some(encoding), _) => format!("no signature is {bytes} in {}", encoding.told()),
        (None, Algorithm::Basic) => "the credentials are not `Basic` and base64 with its padding".to_owned(),
        (None, _) => "the token is not text".to_owned(),
    }
}

pub(super) fn candidate(algorithm: Algorithm, encoding: Option<Encoding>, text: &[u8]) -> Option<Candidate> {
    let token = |token: &[u8]| (!token.is_empty()).then(|| Candidate::from_slice(&Sha256::digest(token)));
    match (encoding, algorithm) {
        (Some(encoding), _) => encoding.decode(text, &algorithm.signature_bytes()),
        (None, Algorithm::Basic) => {
            let credentials = basic_credentials(std::str::from_utf8(text).ok()?)?;
            token(&Zeroizing::new(STANDARD.decode(credentials).ok()?))
        }
        // A secret is text.
        (None, _) => token(std::str::from_utf8(text).ok()?.as_bytes()),
    }
}

/// What follows the scheme, whose name may be written in any case.
fn basic_credentials(text: &str) -> Option<&str> {
    let (scheme, credentials) = text.split_once(' ')?;
    scheme.eq_ignore_ascii_case("basic").then(|| credentials.trim_start_matches(' '))
}

/// How a secret's text is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeyForm {
    Text,
    /// Normalised to Unicode's form KD.
    TextNfkd,
    /// With the entities of `& < > " '` decoded.
    TextHtml,
    Base64,
    Hex,
    /// A public key (SPKI), or a private one (PKCS #8), without the lines around it.
    SpkiBase64,
    Pem,
}

impl KeyForm {
    pub(super) fn parse(text: &str) -> Option<KeyForm> {
        Some(match text {
            "text" => KeyForm::Text,
            "text-nfkd" => KeyForm::TextNfkd,
            "text-html" => KeyForm::TextHtml,
            "base64" => KeyForm::Base64,
            "hex" => KeyForm::Hex,
            "spki-base64" => KeyForm::SpkiBase64,
            "pem" => KeyForm::Pem,
            _ => return None,
        })
    }

    /// The names of the forms that a key for `algorithm` may be written in.
    pub(super) const fn names(algorithm: Option<Algorithm>) -> &'static str {
        match algorithm {
            None => "text, text-nfkd, text-html, base64, hex, spki-base64 or pem",
            Some(Algorithm::Ed25519) => "base64, hex, spki-base64 or pem",
            Some(Algorithm::EcdsaP256 | Algorithm::RsaSha256 | Algorithm::RsaSha1) => "spki-base64 or pem",
            Some(Algorithm::Basic) => "text",
            Some(
                Algorithm::HmacSha1
                | Algorithm::HmacSha256
                | Algorithm::HmacSha384
                | Algorithm::HmacSha512
                | Algorithm::HashSha1
                | Algorithm::HashSha256
                | Algorithm::Equal,
            ) => "text, text-nfkd, text-html, base64 or hex",
        }
    }

    pub(super) const fn fits(self, algorithm: Algorithm) -> bool {
        match self {
            KeyForm::Text => algorithm.is_hmac() || algorithm.is_hash() || algorithm.is_token(),
            KeyForm::TextNfkd | KeyForm::TextHtml => {
                algorithm.is_hmac() || algorithm.is_hash() || matches!(algorithm, Algorithm::Equal)
            }
            KeyForm::Base64 | KeyForm::Hex => !matches!(
                algorithm,
                Algorithm::EcdsaP256 | Algorithm::RsaSha256 | Algorithm::RsaSha1 | Algorithm::Basic
            ),
            KeyForm::SpkiBase64 | KeyForm::Pem => {
                matches!(
                    algorithm,
                    Algorithm::Ed25519 | Algorithm::EcdsaP256 | Algorithm::RsaSha256 | Algorithm::RsaSha1
                )
            }
        }
    }

    /// How a secret for `algorithm` is written in this form, for people.
    pub(super) fn wanted(self, algorithm: Algorithm, prefix: Option<&str>) -> String {
        let key = match algorithm {
            Algorithm::Ed25519 => "an Ed25519 public key",
            Algorithm::EcdsaP256 => "an ECDSA public key of P-256",
            Algorithm::RsaSha256 | Algorithm::RsaSha1 => "an RSA public key of 2048 to 8192 bits",
            Algorithm::HmacSha1
            | Algorithm::HmacSha256
            | Algorithm::HmacSha384
            | Algorithm::HmacSha512
            | Algorithm::HashSha1
            | Algorithm::HashSha256
            | Algorithm::Equal
            | Algorithm::Basic => "",
        };
        let is_public = !key.is_empty();
        let form = match self {
            KeyForm::Text if algorithm == Algorithm::Basic => "`user:password`".to_owned(),
            KeyForm::Text | KeyForm::TextNfkd | KeyForm::TextHtml => {
                "the text that the provider shows, in UTF-8".to_owned()
            }
            KeyForm::Base64 if is_public => format!("the base64 of {key}: of its 32 bytes"),
            KeyForm::Base64 => "the base64 of 24 to 64 bytes".to_owned(),
            KeyForm::Hex if is_public => format!("{key} as 64 hexadecimal digits"),
            KeyForm::Hex => "hexadecimal digits, two for each byte".to_owned(),
            KeyForm::SpkiBase64 => format!("{key} (SPKI) in base64: what stands between the lines of its PEM"),
            KeyForm::Pem => {
                format!("{key} (SPKI) in PEM: whole, with its line `-----BEGIN PUBLIC KEY-----` and its end")
            }
        };
        match prefix {
            Some(prefix) => format!("`{prefix}` and {form}, without spaces"),
            None if matches!(self, KeyForm::Base64 | KeyForm::Hex | KeyForm::SpkiBase64) => {
                format!("{form}, without spaces")
            }
            None => form,
        }
    }

    /// The error is the rule that is broken; [`wanted`](KeyForm::wanted) is what to write instead.
    pub(super) fn decode(self, secret: &[u8]) -> Result<Zeroizing<Vec<u8>>, &'static str> {
        let text = || std::str::from_utf8(secret).map_err(|_| "is not text in UTF-8");
        match self {
            KeyForm::Text => Ok(secret.to_vec()),
            KeyForm::TextNfkd => {
                Ok(DecomposingNormalizerBorrowed::new_nfkd().normalize(text()?).into_owned().into_bytes())
            }
            KeyForm::TextHtml => Ok(html_decoded(text()?).into_bytes()),
            KeyForm::Base64 | KeyForm::SpkiBase64 => KEY_BASE64.decode(secret).map_err(|_| "is not base64"),
            KeyForm::Hex => hex::decode(secret).map_err(|_| "is not hexadecimal"),
            KeyForm::Pem => match <(SectionKind, Vec<u8>)>::from_pem_slice(secret) {
                Ok((SectionKind::PublicKey | SectionKind::PrivateKey, der)) => Ok(der),
                Ok(_) => Err("is another kind of PEM"),
                Err(_) => Err("is not PEM"),
            },
        }
        .map(Zeroizing::new)
    }
}

/// Each entity with its character, as WordPress decodes them.
const HTML_ENTITIES: [(&str, char); 15] = [
    ("&amp;", '&'),
    ("&#038;", '&'),
    ("&#38;", '&'),
    ("&#x26;", '&'),
    ("&lt;", '<'),
    ("&#060;", '<'),
    ("&#60;", '<'),
    ("&gt;", '>'),
    ("&#062;", '>'),
    ("&#62;", '>'),
    ("&quot;", '"'),
    ("&#034;", '"'),
    ("&#039;", '\''),
    ("&#39;", '\''),
    ("&#x27;", '\''),
];

/// In one pass: what a decoded character begins is not decoded again.
fn html_decoded(text: &str) -> String {
    let mut decoded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        decoded.push_str(&rest[..at]);
        rest = &rest[at..];
        let entity = HTML_ENTITIES.iter().find(|(entity, _)| rest.starts_with(entity));
        let (length, character) = entity.map_or((1, '&'), |(entity, character)| (entity.len(), *character));
        decoded.push(character);
        rest = &rest[length..];
    }
    decoded.push_str(rest);
    decoded
}

/// A secret, ready for use: nothing of it is parsed again.
pub(super) enum Key {
    HmacSha1(Hmac<Sha1>),
    HmacSha256(Hmac<Sha256>),
    HmacSha384(Hmac<Sha384>),
    HmacSha512(Hmac<Sha512>),
    /// The secret stands in the hashed bytes.
    HashSha1(Zeroizing<Vec<u8>>),
    HashSha256(Zeroizing<Vec<u8>>),
    Public {
        public: ParsedPublicKey,
        digest: Option<&'static digest::Algorithm>,
        /// Only where the secret is a private key.
        pair: Option<Pair>,
    },
    Token {
        text: Zeroizing<Vec<u8>>,
        digest: [u8; 32],
        basic: bool,
    },
}

pub(super) enum Pair {
    Ed25519(Ed25519KeyPair),
    Ecdsa(EcdsaKeyPair),
    Rsa(RsaKeyPair),
}

impl Pair {
    /// The private key that `bytes` are: seed and public half for Ed25519, else PKCS #8.
    fn new(algorithm: Algorithm, bytes: &[u8]) -> Result<Option<Pair>, &'static str> {
        Ok(match algorithm {
            Algorithm::Ed25519 if bytes.len() == 64 => {
                let pair = Ed25519KeyPair::from_seed_and_public_key(&bytes[..32], &bytes[32..]);
                let wrong = "is not an Ed25519 key pair: its public half belongs to another seed";
                Some(Pair::Ed25519(pair.map_err(|_| wrong)?))
            }
            Algorithm::Ed25519 => Ed25519KeyPair::from_pkcs8_maybe_unchecked(bytes).ok().map(Pair::Ed25519),
            Algorithm::EcdsaP256 => {
                EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, bytes).ok().map(Pair::Ecdsa)
            }
            Algorithm::RsaSha256 => RsaKeyPair::from_pkcs8(bytes).ok().map(Pair::Rsa),
            // Nobody should sign so any more.
            Algorithm::RsaSha1
            | Algorithm::HmacSha1
            | Algorithm::HmacSha256
            | Algorithm::HmacSha384
            | Algorithm::HmacSha512
            | Algorithm::HashSha1
            | Algorithm::HashSha256
            | Algorithm::Equal
            | Algorithm::Basic => None,
        })
    }

    fn public(&self) -> &[u8] {
        match self {
            Pair::Ed25519(pair) => pair.public_key().as_ref(),
            Pair::Ecdsa(pair) => pair.public_key().as_ref(),
            Pair::Rsa(pair) => pair.public_key().as_ref(),
        }
    }

    fn sign(&self, message: &[u8]) -> Option<SmallVec<[u8; 72]>> {
        Some(match self {
            Pair::Ed25519(pair) => SmallVec::from_slice(pair.sign(message).as_ref()),
            Pair::Ecdsa(pair) => SmallVec::from_slice(pair.sign(&SystemRandom::new(), message).ok()?.as_ref()),
            Pair::Rsa(pair) => {
                let mut signature = smallvec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature).ok()?;
                signature
            }
        })
    }
}

/// The bytes that are signed, piece by piece.
pub(super) trait Message {
    fn each(&self, take: impl FnMut(&[u8]));

    fn copied(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.each(|piece| bytes.extend_from_slice(piece));
        bytes
    }

    /// In one piece; copied only where there are several.
    fn joined(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.copied())
    }
}

impl Message for [&[u8]] {
    fn each(&self, take: impl FnMut(&[u8])) {
        self.iter().copied().for_each(take);
    }

    fn joined(&self) -> Cow<'_, [u8]> {
        if let [whole] = self { Cow::Borrowed(whole) } else { Cow::Owned(self.copied()) }
    }
}

impl Key {
    /// The key of `bytes`, which are not empty; or what is wrong with them.
    pub(super) fn new(algorithm: Algorithm, bytes: &[u8]) -> Result<Key, &'static str> {
        let never = |_| "cannot be a key";
        let text = || Zeroizing::new(bytes.to_vec());
        let token = |basic| Key::Token { text: text(), digest: Sha256::digest(bytes).into(), basic };
        if let Some(kind) = algorithm.public_key() {
            let pair = Pair::new(algorithm, bytes)?;
            let public = ParsedPublicKey::new(kind.verification, pair.as_ref().map_or(bytes, Pair::public));
            return Ok(Key::Public { public: public.map_err(|_| kind.wrong)?, digest: kind.digest, pair });
        }
        match algorithm {
            Algorithm::HmacSha1 => Hmac::new_from_slice(bytes).map(Key::HmacSha1).map_err(never),
            Algorithm::HmacSha256 => Hmac::new_from_slice(bytes).map(Key::HmacSha256).map_err(never),
            Algorithm::HmacSha384 => Hmac::new_from_slice(bytes).map(Key::HmacSha384).map_err(never),
            Algorithm::HmacSha512 => Hmac::new_from_slice(bytes).map(Key::HmacSha512).map_err(never),
            Algorithm::HashSha1 => Ok(Key::HashSha1(text())),
            Algorithm::HashSha256 => Ok(Key::HashSha256(text())),
            Algorithm::Equal => Ok(token(false)),
            Algorithm::Basic if bytes.contains(&b':') && bytes.trim_ascii() != b":" => Ok(token(true)),
            Algorithm::Basic => Err("is not a user and a password"),
            Algorithm::Ed25519 | Algorithm::EcdsaP256 | Algorithm::RsaSha256 | Algorithm::RsaSha1 => {
                Err("cannot be a key")
            }
        }
    }

    /// What stands for `{key}` in the signed bytes.
    pub(super) fn inline(&self) -> Option<&[u8]> {
        match self {
            Key::HashSha1(text) | Key::HashSha256(text) => Some(text),
            Key::HmacSha1(_)
            | Key::HmacSha256(_)
            | Key::HmacSha384(_)
            | Key::HmacSha512(_)
            | Key::Public { .. }
            | Key::Token { .. } => None,
        }
    }

    /// Whether one of the candidates is this key's signature of `message`. All are compared, whatever the first says.
    pub(super) fn matches(&self, message: &(impl Message + ?Sized), candidates: &[Candidate]) -> bool {
        match self {
            Key::HmacSha1(keyed) => any(mac(keyed, message).as_bytes(), candidates),
            Key::HmacSha256(keyed) => any(mac(keyed, message).as_bytes(), candidates),
            Key::HmacSha384(keyed) => any(mac(keyed, message).as_bytes(), candidates),
            Key::HmacSha512(keyed) => any(mac(keyed, message).as_bytes(), candidates),
            Key::HashSha1(_) => any(&hash::<Sha1>(message), candidates),
            Key::HashSha256(_) => any(&hash::<Sha256>(message), candidates),
            Key::Token { digest, .. } => any(digest, candidates),
            Key::Public { public, digest: Some(algorithm), .. } => {
                let digest = digested(algorithm, message);
                candidates.iter().fold(false, |hit, one| public.verify_digest_sig(&digest, one).is_ok() | hit)
            }
            Key::Public { public, digest: None, .. } => {
                // Ed25519 reads its message twice, so it has to be in one piece.
                let message = message.joined();
                candidates.iter().fold(false, |hit, one| public.verify_sig(&message, one).is_ok() | hit)
            }
        }
    }

    /// The text of this key's signature of `message`. `None`: a public key signs nothing.
    pub(super) fn sign(
        &self,
        message: &(impl Message + ?Sized),
        encoding: Option<Encoding>,
    ) -> Option<Zeroizing<String>> {
        let bytes: SmallVec<[u8; 72]> = match self {
            Key::HmacSha1(_) | Key::HmacSha256(_) | Key::HmacSha384(_) | Key::HmacSha512(_) => self.code(message)?,
            Key::HashSha1(_) => SmallVec::from_slice(&hash::<Sha1>(message)),
            Key::HashSha256(_) => SmallVec::from_slice(&hash::<Sha256>(message)),
            Key::Public { pair, .. } => pair.as_ref()?.sign(&message.joined())?,
            Key::Token { text, basic: true, .. } => {
                return Some(Zeroizing::new(format!("Basic {}", STANDARD.encode(text.as_slice()))));
            }
            Key::Token { text, basic: false, .. } => {
                return String::from_utf8(text.to_vec()).ok().map(Zeroizing::new);
            }
        };
        encoding.map(|encoding| Zeroizing::new(encoding.encode(&bytes)))
    }

    /// The code of an HMAC key.
    pub(super) fn code(&self, message: &(impl Message + ?Sized)) -> Option<SmallVec<[u8; 72]>> {
        Some(match self {
            Key::HmacSha1(keyed) => SmallVec::from_slice(mac(keyed, message).as_bytes()),
            Key::HmacSha256(keyed) => SmallVec::from_slice(mac(keyed, message).as_bytes()),
            Key::HmacSha384(keyed) => SmallVec::from_slice(mac(keyed, message).as_bytes()),
            Key::HmacSha512(keyed) => SmallVec::from_slice(mac(keyed, message).as_bytes()),
            Key::HashSha1(_) | Key::HashSha256(_) | Key::Public { .. } | Key::Token { .. } => return None,
        })
    }
}

fn mac<M: Mac + Clone>(keyed: &M, message: &(impl Message + ?Sized)) -> CtOutput<M> {
    let mut mac = keyed.clone();
    message.each(|piece| mac.update(piece));
    mac.finalize()
}

fn hash<H: sha2::Digest>(message: &(impl Message + ?Sized)) -> SmallVec<[u8; 32]> {
    let mut hash = H::new();
    message.each(|piece| hash.update(piece));
    SmallVec::from_slice(&hash.finalize())
}

fn digested(algorithm: &'static digest::Algorithm, message: &(impl Message + ?Sized)) -> Digest {
    let mut context = digest::Context::new(algorithm);
    message.each(|piece| context.update(piece));
    context.finish()
}

/// Whether one of the candidates is `made`. The comparison takes the same time wherever they differ.
fn any(made: &[u8], candidates: &[Candidate]) -> bool {
    candidates.iter().fold(false, |hit, candidate| verify_slices_are_equal(candidate, made).is_ok() | hit)
}

/// The lower-case hexadecimal SHA-256 of `text`, for templates.
pub(super) fn sha256_hex(text: &[u8]) -> String {
    hex::encode(Sha256::digest(text))
}

/// The base64 of `text`, for templates.
pub(super) fn base64_text(text: &[u8]) -> String {
    STANDARD.encode(text)
}

/// The decimal CRC-32 of `text`, for templates.
pub(super) fn crc32(text: &[u8]) -> String {
    crc32fast::hash(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_is_strict() {
        let hex = "00".repeat(32);
        let exactly = |length: usize| length..=length;
        assert!(Encoding::Hex.decode(hex.as_bytes(), &exactly(32)).is_some());
        assert!(Encoding::Hex.decode(&hex.as_bytes()[2..], &exactly(32)).is_none());
        assert!(Encoding::Hex.decode(hex.replace('0', "A").as_bytes(), &exactly(32)).is_none());
        for length in [20, 32, 48, 64, 256] {
            let bytes = vec![0xfb; length];
            for encoding in [Encoding::Hex, Encoding::Base64, Encoding::Base64Url] {
                let text = encoding.encode(&bytes);
                let candidate = encoding.decode(text.as_bytes(), &exactly(length)).unwrap();
                assert_eq!(candidate.as_slice(), bytes);
                assert!(encoding.decode(text.as_bytes(), &(8..=length)).is_some());
                assert!(encoding.decode(text.as_bytes(), &exactly(length - 1)).is_none());
                assert!(encoding.decode(text.as_bytes(), &exactly(length + 1)).is_none());
                assert!(encoding.decode(format!("{text} ").as_bytes(), &exactly(length)).is_none());
            }
        }
        let padded = STANDARD.encode([0; 32]);
        assert!(Encoding::Base64.decode(padded.trim_end_matches('=').as_bytes(), &exactly(32)).is_none());
        assert!(Encoding::Base64Url.decode(padded.as_bytes(), &exactly(32)).is_none());
        // The unused bits of the last symbol are set.
        assert!(Encoding::Base64.decode(padded.replace("A=", "B=").as_bytes(), &exactly(32)).is_none());
    }

    /// The library's decoders, which are not made for so short texts, say the same of each text that differs from a
    /// right one in one character.
    #[test]
    fn decoding_agrees_with_the_library() {
        for length in [20, 31, 32, 64] {
            let bytes: Vec<u8> = (0..length).map(|i: u8| i.wrapping_mul(151) ^ 0x5a).collect();
            let any = 0..=usize::from(length) + 2;
            let same = |encoding: Encoding, text: &[u8], theirs: Option<Vec<u8>>| {
                assert_eq!(encoding.decode(text, &any).map(|own| own.to_vec()), theirs, "{text:?}");
            };
            for encoding in [Encoding::Hex, Encoding::Base64, Encoding::Base64Url] {
                let whole = encoding.encode(&bytes).into_bytes();
                for at in 0..whole.len() {
                    for byte in 0..=255 {
                        let mut text = whole.clone();
                        text[at] = byte;
                        let upper = text.iter().any(u8::is_ascii_uppercase);
                        same(
                            encoding,
                            &text,
                            match encoding {
                                Encoding::Hex => hex::decode(&text).ok().filter(|_| !upper),
                                Encoding::Base64 => STANDARD.decode(&text).ok(),
                                Encoding::Base64Url => URL_SAFE_NO_PAD.decode(&text).ok(),
                            },
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn keys_of_the_wrong_kind_are_refused() {
        assert!(Key::new(Algorithm::Ed25519, &[1; 31]).is_err());
        assert!(Key::new(Algorithm::Ed25519, &[1; 64]).is_err());
        for algorithm in [Algorithm::EcdsaP256, Algorithm::RsaSha256, Algorithm::RsaSha1] {
            assert!(Key::new(algorithm, &[1; 91]).is_err());
        }
        for bad in [&b"no-colon"[..], b":", b" : "] {
            assert!(Key::new(Algorithm::Basic, bad).is_err(), "{bad:?}");
        }
        assert!(Key::new(Algorithm::Basic, b"an-api-key:").is_ok());
        assert!(KeyForm::Base64.decode(b"a b").is_err());
        assert!(KeyForm::Hex.decode(b"0").is_err());
        assert!(KeyForm::Pem.decode(b"MFkw").is_err());
        assert!(KeyForm::Pem.decode(b"-----BEGIN CERTIFICATE-----\nMFkw\n-----END CERTIFICATE-----\n").is_err());
        assert!(KeyForm::TextNfkd.decode(b"\xff").is_err());
        assert_eq!(**KeyForm::Base64.decode(b"aGk").unwrap(), *b"hi");
    }

    #[test]
    fn texts_become_the_keys_that_providers_use() {
        let decoded = |form: KeyForm, text: &str| String::from_utf8(form.decode(text.as_bytes()).unwrap().to_vec());
        assert_eq!(decoded(KeyForm::TextNfkd, "caf\u{e9} \u{fb01}").unwrap(), "cafe\u{301} fi");
        assert_eq!(decoded(KeyForm::TextHtml, "a&amp;lt;b&#039;&lt;&quot;& &nbsp;ü").unwrap(), "a&lt;b'<\"& &nbsp;ü");
        assert_eq!(decoded(KeyForm::Text, "a&amp;").unwrap(), "a&amp;");
    }

    #[test]
    fn basic_credentials_are_taken_apart() {
        let same = |text: &str| candidate(Algorithm::Basic, None, text.as_bytes()).is_some();
        assert!(same("Basic dXNlcjpwYTpzcw==") && same("basic dXNlcjpwYTpzcw=="));
        for bad in ["Bearer dXNlcjpwYTpzcw==", "Basic", "Basic ", "Basic dXNlcjpwYTpzcw", "dXNlcjpwYTpzcw==", ""] {
            assert!(!same(bad), "{bad}");
        }
    }
}
