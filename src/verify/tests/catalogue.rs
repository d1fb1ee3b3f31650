//! Every built-in scheme, and custom ones of each kind: what is signed is admitted, and nothing else is.

use super::*;
use aws_lc_rs::encoding::{AsDer as _, Pkcs8V1Der};
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _, RsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::sync::OnceLock;

/// A secret that signs, and one that verifies: the same but for public keys.
#[derive(Clone)]
pub(super) struct Pair {
    pub(super) signs: Secret,
    pub(super) verifies: Secret,
}

fn same(text: impl Into<String>) -> Pair {
    let secret = Secret::new(text.into());
    Pair { signs: secret.clone(), verifies: secret }
}

fn pem(label: &str, der: &[u8]) -> Secret {
    Secret::new(format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der)))
}

/// An algorithm, and a key pair for it as PKCS #8 and SPKI.
type KeyPairDer = (&'static str, Vec<u8>, Vec<u8>);

/// A key pair for each public-key algorithm.
fn key_pairs() -> &'static [KeyPairDer; 3] {
    static PAIRS: OnceLock<[KeyPairDer; 3]> = OnceLock::new();
    PAIRS.get_or_init(|| {
        let ed25519 = aws_lc_rs::signature::Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let ecdsa = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
        let rsa = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
        let rsa_private: Pkcs8V1Der<'_> = rsa.as_der().unwrap();
        [
            (
                "ed25519",
                ed25519.to_pkcs8().unwrap().as_ref().to_vec(),
                ed25519.public_key().as_der().unwrap().as_ref().to_vec(),
            ),
            (
                "ecdsa-p256-sha256",
                ecdsa.to_pkcs8v1().unwrap().as_ref().to_vec(),
                ecdsa.public_key().as_der().unwrap().as_ref().to_vec(),
            ),
            ("rsa-sha256", rsa_private.as_ref().to_vec(), rsa.public_key().as_der().unwrap().as_ref().to_vec()),
        ]
    })
}

/// A secret in the form that the scheme wants.
pub(super) fn pair_for(spec: &SchemeSpec) -> Pair {
    let alternative = &spec.expanded()[0];
    let key = alternative.key.as_deref().unwrap_or("text");
    let verify = alternative.verify.as_deref().unwrap();
    let bytes = [0x5a; 32];
    let prefix = alternative.key_strip.first().map_or("", String::as_str);
    match (verify, key) {
        ("basic", _) => same("user:hookgate-test-secret"),
        ("ed25519", "base64" | "hex") => {
            let (private, public) = ed25519_secrets();
            let raw = |secret: &Secret| STANDARD.decode(&secret.expose()[5..]).unwrap();
            let write = |bytes: Vec<u8>| match key {
                "hex" => Secret::new(hex::encode(bytes)),
                _ => Secret::new(STANDARD.encode(bytes)),
            };
            Pair { signs: write(raw(&private)), verifies: write(raw(&public)) }
        }
        (_, "spki-base64" | "pem") => {
            let (_, private, public) = key_pairs().iter().find(|(name, ..)| *name == verify).unwrap();
            match key {
                "pem" => Pair { signs: pem("PRIVATE KEY", private), verifies: pem("PUBLIC KEY", public) },
                _ => Pair {
                    signs: Secret::new(STANDARD.encode(private)),
                    verifies: Secret::new(STANDARD.encode(public)),
                },
            }
        }
        (_, "base64") => same(format!("{prefix}{}", STANDARD.encode(bytes))),
        (_, "hex") => same(format!("{prefix}{}", hex::encode(bytes))),
        _ => same(format!("{prefix}hookgate-test-secret")),
    }
}

/// A scheme with its secret, once to sign and once to verify.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) spec: SourceSpec,
    pub(super) pair: Pair,
    pub(super) provider: Source,
    pub(super) source: Source,
}

impl Entry {
    pub(super) fn new(name: &str, spec: SourceSpec) -> Entry {
        let pair = pair_for(&scheme_of(&spec));
        let provider = compile(&spec, vec![pair.signs.clone()]);
        let source = compile(&spec, vec![pair.verifies.clone()]);
        Entry { name: name.to_owned(), spec, pair, provider, source }
    }

    pub(super) fn scheme(&self) -> SchemeSpec {
        scheme_of(&self.spec)
    }
}

fn scheme_of(spec: &SourceSpec) -> SchemeSpec {
    spec.custom.clone().unwrap_or_else(|| schemes::builtin(&spec.scheme).unwrap())
}

/// A body in which every scheme finds its time.
pub(super) fn body() -> Vec<u8> {
    format!(r#"{{"webhookTimestamp":{0},"time_ms":{0},"id":"evt_1","type":"thing.made"}}"#, NOW.as_millis())
        .into_bytes()
}

/// What carries its signature elsewhere than in a header cannot be signed beside a given body and URL.
const SIGNED_ELSEWHERE: [&str; 3] = ["azure-event-grid", "mailgun", "ms-graph"];

/// Every built-in scheme that signs, and a custom one for each algorithm, form of key, encoding and function.
pub(super) fn entries() -> Vec<Entry> {
    // What code verifies has tests beside that code.
    let is_data = |name: &str| {
        let verify = schemes::builtin(name).unwrap().expanded()[0].verify.clone();
        !verify.unwrap().starts_with("builtin:")
    };
    let names = schemes::names().filter(|name| !SIGNED_ELSEWHERE.contains(name) && is_data(name));
    let mut all: Vec<Entry> = names.map(|name| Entry::new(name, builtin(name))).collect();
    let timed = "vars = { t = \"header:X-T\" }\ntime = { var = \"t\", unit = \"s\", tolerance = 60 }";
    for (verify, key, encoding, signed) in [
        ("hmac-sha384", "text-nfkd", "base64url", "{t}{body}"),
        ("hmac-sha512", "text-html", "hex", "{method}{path}{query}{t}{body|base64}"),
        ("hmac-sha1", "hex", "base64", "{url_noquery}{t}{body|sha256hex}"),
        ("hash-sha1", "base64", "hex", "{key}{t}{body}{key}"),
        ("hash-sha256", "text", "base64", "{t}{body}{key}"),
        ("ed25519", "pem", "base64url", "{t}{body}"),
        ("ed25519", "spki-base64", "hex", "{t}{body}"),
        ("ecdsa-p256-sha256", "pem", "hex", "{t}{body}"),
        ("rsa-sha256", "pem", "base64", "{t}{body}"),
        ("rsa-sha256", "spki-base64", "base64", "{t}{body}"),
    ] {
        let text = format!(
            "verify = \"{verify}\"\nkey = \"{key}\"\nsig = {{ at = [\"header:X-S\"], encoding = \"{encoding}\" }}\n\
             signed = \"{signed}\"\n{timed}"
        );
        all.push(Entry::new(&format!("{verify} {key}"), custom(&text)));
    }
    let emitted = "verify = \"hmac-sha256\"\nvars = { t = \"sig:t\", n = \"header?:X-N\" }\nsigned = \"{t}.{body}\"\n\
         sig = { at = [\"header:X-S\"], split = \";\", pair = \"=\", take = [\"s\"], encoding = \"hex\" }\n\
         emit = \"s={sig} ; t={t}\"\ntime = { var = \"t\", unit = \"s\", tolerance = 60 }";
    all.push(Entry::new("emit", custom(emitted)));
    all
}

#[test]
fn every_scheme_is_admitted_what_it_signed() {
    for entry in entries() {
        let post = signed(&entry.provider, "msg_1", NOW, &body());
        event(&entry.source, &post);
    }
    for name in SIGNED_ELSEWHERE {
        let bytes = Bytes::from(body());
        let sign = SignRequest { id: "a", event_type: None, timestamp: NOW, url: URL, body: &bytes };
        let refused = compile(&builtin(name), vec![text_secret()]).sign(sign);
        assert!(matches!(refused, Err(SignError::NotAHeader(_) | SignError::UnknownValue(_))), "{name} {refused:?}");
    }
}

#[test]
fn a_public_key_signs_nothing_and_another_key_verifies_nothing() {
    let bytes = Bytes::from(body());
    let sign = SignRequest { id: "a", event_type: None, timestamp: NOW, url: URL, body: &bytes };
    let mut public = 0;
    for entry in entries() {
        let verifies = entry.pair.verifies.expose();
        if entry.pair.signs.expose() != verifies {
            public += 1;
            assert_eq!(entry.source.sign(sign), Err(SignError::NoSigningKey), "{}", entry.name);
        }
    }
    assert_eq!(public, 9);
    let rsa_sha1 = custom("verify = \"rsa-sha1\"\nkey = \"pem\"\nsig = { at = [\"header:S\"], encoding = \"base64\" }");
    let (_, _, spki) = &key_pairs()[2];
    let source = compile(&rsa_sha1, vec![pem("PUBLIC KEY", spki)]);
    assert_eq!(source.sign(sign), Err(SignError::NoSigningKey));
    let wrong = STANDARD.encode([1; 256]);
    assert_eq!(refusal(&source, &Post::new(&[("s", &wrong)], b"x")), RefusalCode::SignatureMismatch);
    let (_, _, ecdsa) = &key_pairs()[1];
    let tenant = || "acme".parse().unwrap();
    assert!(rsa_sha1.compile(&tenant(), &tenant(), vec![pem("PUBLIC KEY", ecdsa)]).is_err());
}

#[test]
fn an_rsa_signature_with_sha1_verifies() {
    // Made with `openssl dgst -sha1 -sign` over `{"a":1}`.
    let spec =
        custom("verify = \"rsa-sha1\"\nkey = \"spki-base64\"\nsig = { at = [\"header:S\"], encoding = \"base64\" }");
    let source = compile(&spec, vec![Secret::new(include_str!("rsa-sha1.spki").trim())]);
    let signature = include_str!("rsa-sha1.signature").trim();
    event(&source, &Post::new(&[("s", signature)], b"{\"a\":1}"));
    assert_eq!(refusal(&source, &Post::new(&[("s", signature)], b"{\"a\":2}")), RefusalCode::SignatureMismatch);
}

#[test]
fn a_list_holds_a_signature_of_every_secret() {
    let scheme = |secrets| compile(&builtin("workos"), secrets);
    let (ours, other) = (text_secret(), Secret::new("another-test-secret"));
    let post = signed(&scheme(vec![ours.clone(), other.clone()]), "", NOW, b"{}");
    let one = |secret: &Secret| {
        let post = signed(&scheme(vec![secret.clone()]), "", NOW, b"{}");
        let text = post.headers["workos-signature"].to_str().unwrap().to_owned();
        text.strip_prefix("t=1700000000500, v1=").unwrap().to_owned()
    };
    let expected = format!("t=1700000000500, v1={}, v1={}", one(&ours), one(&other));
    assert_eq!(post.headers["workos-signature"], expected);
    for secret in [ours, other] {
        event(&scheme(vec![secret]), &post);
    }
}

#[test]
fn an_algorithm_that_the_request_names_is_compared_and_chooses_nothing() {
    let source = compile(&builtin("box"), vec![text_secret()]);
    let post = signed(&source, "a", NOW, b"{}");
    event(&source, &post);
    let claimed = post.clone().with("box-signature-algorithm", b"HmacSHA1");
    assert_eq!(refusal(&source, &claimed), RefusalCode::Malformed);
}

#[test]
fn large_bodies_have_the_signatures_that_svix_publishes() {
    let source = compile(&builtin("standard-webhooks"), vec![standard_secret()]);
    for (length, signature) in [
        (262_143, "v1,NTItnqyWMoFhk2Bbe5V/BMdcFRWgcSQaTgqLHX7FC7c="),
        (1_048_576, "v1,txpEUxqWZJ5nteTnymUVa+7C4NHpBeXJ6CsBAW0c3/A="),
    ] {
        let headers = [
            ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
            ("webhook-timestamp", "1614265330"),
            ("webhook-signature", signature),
        ];
        let post = Post::new(&headers, &vec![b'a'; length]).at(Timestamp::from_millis(1_614_265_330_000));
        event(&source, &post);
        assert_eq!(refusal(&source, &Post { body: post.body.slice(1..), ..post }), RefusalCode::SignatureMismatch);
    }
}
