//! Properties that hold for whatever is sent.

use super::catalogue::{self, Entry, Pair, entries};
use super::challenge::is_token;
use super::locator::Locator;
use super::template::Piece;
use super::*;
use proptest::prelude::*;
use std::sync::OnceLock;

/// Every scheme that signs, made once.
fn all() -> &'static [Entry] {
    static ALL: OnceLock<Vec<Entry>> = OnceLock::new();
    ALL.get_or_init(|| {
        let token = custom("verify = \"equal\"\nsig = { at = [\"header:Authorization\"], prefix = \"Bearer \" }");
        let sha384 = custom(
            "verify = \"hmac-sha384\"\nsig = { at = [\"header:X-S\"], split = \",\", pair = \"=\", take = [\"v1\"], encoding = \"base64url\" }\n\
             vars = { t = \"sig:t\" }\nsigned = \"{body}{t}\"\ntime = { var = \"t\", unit = \"ms\", tolerance = 60 }",
        );
        let mut all = entries();
        all.push(Entry::new("token", token));
        all.push(Entry::new("sha384 in a list", sha384));
        let (private, public) = ed25519_secrets();
        let spec = builtin("standard-webhooks");
        all.push(Entry {
            name: "standard-webhooks v1a".to_owned(),
            provider: compile(&spec, vec![private.clone()]),
            source: compile(&spec, vec![public.clone()]),
            pair: Pair { signs: private, verifies: public },
            spec,
        });
        all
    })
}

/// Whether the scheme reads the body for what it signs, so that the body has to be one in which that stands.
fn reads_body(source: &Source) -> bool {
    source.alternatives().any(|a| a.vars.iter().any(|var| matches!(var.locator, Locator::Json(..))))
}

fn body_for(entry: &Entry, body: &[u8]) -> Vec<u8> {
    if reads_body(&entry.source) { catalogue::body() } else { body.to_vec() }
}

/// The headers that a signature depends on, of what `sign` gives.
fn signed_headers(source: &Source, post: &Post) -> Vec<HeaderName> {
    let places = source.alternatives().flat_map(|a| {
        a.sig.at.iter().chain(a.vars.iter().map(|var| &var.locator)).chain(a.require.iter().map(|(at, _)| at))
    });
    let used: Vec<&HeaderName> =
        places.filter_map(|at| if let Locator::Header(_, name) = at { Some(name) } else { None }).collect();
    let names: Vec<HeaderName> = post.headers.keys().filter(|name| used.contains(name)).cloned().collect();
    assert!(!names.is_empty(), "{source:?}");
    names
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_signed_is_admitted(body in prop::collection::vec(any::<u8>(), 0..300), id in "[A-Za-z0-9_-]{1,40}") {
        for entry in all() {
            let body = body_for(entry, &body);
            // What a handshake may have been asked for is refused on purpose.
            if entry.source.alternatives().any(|a| a.signs_tokens) && is_token(&[body.as_slice()][..]) {
                continue;
            }
            event(&entry.source, &signed(&entry.provider, &id, NOW, &body));
        }
    }

    #[test]
    fn one_bit_of_the_body_refuses(body in prop::collection::vec(any::<u8>(), 1..200), at in any::<usize>(), bit in 0..8u8) {
        for entry in all().iter().filter(|entry| entry.source.alternatives().all(|a| a.covers_body)) {
            let body = body_for(entry, &body);
            let post = signed(&entry.provider, "msg_1", NOW, &body);
            let mut other = body.clone();
            other[at % body.len()] ^= 1 << bit;
            let changed = Post { body: other.into(), ..post };
            let code = refusal(&entry.source, &changed);
            prop_assert!(code == RefusalCode::SignatureMismatch || reads_body(&entry.source), "{} {code}", entry.name);
        }
    }

    #[test]
    fn one_bit_of_a_signed_header_refuses(at in any::<usize>(), bit in 0..7u8, which in any::<usize>()) {
        for entry in all() {
            let post = signed(&entry.provider, "msg_1", NOW, &catalogue::body());
            let names = signed_headers(&entry.source, &post);
            let name = &names[which % names.len()];
            let mut value = post.headers[name].as_bytes().to_vec();
            let at = at % value.len();
            value[at] ^= 1 << bit;
            // The scheme's name in HTTP may be in any case.
            let same = value.to_ascii_lowercase().starts_with(b"basic ") && at < 5;
            if same || HeaderValue::from_bytes(&value).is_err() {
                continue;
            }
            let changed = post.with(name.as_str(), &value);
            prop_assert!(entry.source.admit(changed.request()).is_err(), "{} {name} {at} {bit}", entry.name);
        }
    }

    #[test]
    fn one_bit_of_a_signed_url_refuses(at in any::<usize>(), bit in 0..7u8) {
        for entry in all().iter().filter(|entry| entry.source.alternatives().all(|a| a.signed.contains(&Piece::Url))) {
            let post = signed(&entry.provider, "msg_1", NOW, &catalogue::body());
            let mut url = post.url.clone().into_bytes();
            let at = at % url.len();
            url[at] ^= 1 << bit;
            let changed = Post { url: String::from_utf8(url).unwrap(), ..post };
            prop_assert!(entry.source.admit(changed.request()).is_err(), "{} {at} {bit}", entry.name);
        }
    }

    #[test]
    fn one_bit_of_the_secret_refuses(at in any::<usize>(), bit in 0..8u8) {
        for entry in all().iter().filter(|entry| entry.pair.signs.expose() == entry.pair.verifies.expose()) {
            let mut secret = entry.pair.verifies.expose().to_vec();
            let at = at % secret.len();
            secret[at] ^= 1 << bit;
            let tenant = || "acme".parse().unwrap();
            // Hexadecimal digits may be in either case.
            let hex = entry.scheme().key.as_deref() == Some("hex");
            if hex && secret.eq_ignore_ascii_case(entry.pair.verifies.expose()) {
                continue;
            }
            // Some are no secret of this form any more.
            let Ok(other) = entry.spec.compile(&tenant(), &tenant(), vec![Secret::new(secret)]) else { continue };
            let post = signed(&entry.provider, "msg_1", NOW, &catalogue::body());
            prop_assert!(other.admit(post.request()).is_err(), "{} {at} {bit}", entry.name);
        }
    }

    #[test]
    fn nothing_panics(
        values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..8),
        body in prop::collection::vec(any::<u8>(), 0..200),
        skew in any::<i64>(),
        url in "\\PC{0,30}",
    ) {
        for Entry { source, provider, .. } in all() {
            let names: Vec<HeaderName> =
                signed(provider, "a", NOW, &catalogue::body()).headers.keys().cloned().collect();
            let mut post = Post { url: url.clone(), ..Post::new(&[], &body) }.at(Timestamp::from_millis(skew));
            for (i, value) in values.iter().enumerate() {
                if HeaderValue::from_bytes(value).is_ok() {
                    post = post.and(names[i % names.len()].as_str(), value);
                }
            }
            prop_assert!(source.admit(post.request()).is_err());
            prop_assert!(!source.explain(post.request()).last().unwrap().ok);
        }
    }

    #[test]
    fn any_time_is_read_or_refused(time in "\\PC{0,40}", now in any::<i64>()) {
        for Entry { source, provider, .. } in all() {
            let post = signed(provider, "a", NOW, &catalogue::body());
            for name in ["webhook-timestamp", "svix-timestamp", "x-slack-request-timestamp", "box-delivery-timestamp"] {
                if let (true, Ok(value)) = (post.headers.contains_key(name), HeaderValue::from_bytes(time.as_bytes())) {
                    let changed = post.clone().with(name, value.as_bytes()).at(Timestamp::from_millis(now));
                    prop_assert!(source.admit(changed.request()).is_err());
                }
            }
        }
    }

    #[test]
    fn another_library_agrees(body in "\\PC{0,200}", id in "[A-Za-z0-9_-]{1,40}", key in prop::collection::vec(any::<u8>(), 24..65)) {
        let oracle = standardwebhooks::Webhook::from_bytes(key.clone()).unwrap();
        let signature = oracle.sign(&id, NOW.as_seconds(), body.as_bytes()).unwrap();
        let secret = {
            use base64::Engine as _;
            Secret::new(format!("whsec_{}", base64::engine::general_purpose::STANDARD.encode(&key)))
        };
        let source = compile(&builtin("standard-webhooks"), vec![secret]);
        let post = signed(&source, &id, NOW, body.as_bytes());
        prop_assert_eq!(post.headers["webhook-signature"].to_str().unwrap(), signature);
    }
}

#[test]
fn ten_thousand_signatures_are_malformed() {
    for (scheme, secret, header, item, split) in [
        ("standard-webhooks", standard_secret(), "webhook-signature", format!("v1,{}=", "A".repeat(43)), " "),
        ("stripe", text_secret(), "stripe-signature", format!("v1={}", "0".repeat(64)), ","),
    ] {
        let source = compile(&builtin(scheme), vec![secret]);
        let post = signed(&source, "msg_1", NOW, b"{}");
        let real = post.headers[header].to_str().unwrap().to_owned();
        let with = |n: usize| {
            let value = [vec![item.as_str(); n], vec![real.as_str()]].concat().join(split);
            post.clone().with(header, value.as_bytes())
        };
        event(&source, &with(63));
        assert_eq!(refusal(&source, &with(64)), RefusalCode::Malformed);
        assert_eq!(refusal(&source, &with(10_000)), RefusalCode::Malformed);
    }
}

#[test]
fn a_doubled_header_is_malformed_wherever_it_is() {
    for Entry { source, provider, .. } in all() {
        let post = signed(provider, "msg_1", NOW, &catalogue::body());
        for name in signed_headers(source, &post) {
            let value = post.headers[&name].as_bytes().to_vec();
            let doubled = post.clone().and(name.as_str(), &value);
            assert_eq!(refusal(source, &doubled), RefusalCode::Malformed, "{source:?} {name}");
        }
    }
}

#[test]
fn deep_and_large_bodies_are_admitted_unread() {
    let source = compile(&builtin("stripe"), vec![text_secret()]);
    for body in ["[".repeat(100_000), format!("{{\"id\":\"a\",\"x\":{}}}", "[".repeat(100_000)), "9".repeat(1_000_000)]
    {
        let event = event(&source, &signed(&source, "", NOW, body.as_bytes()));
        assert_eq!(event.provider_id, None);
    }
}
