//! Properties that hold for whatever is sent.

use super::*;
use proptest::prelude::*;

/// Every built-in scheme, and custom ones of each kind, with secrets of their form.
fn sources() -> Vec<Source> {
    let (private, _) = ed25519_secrets();
    let token = custom("verify = \"equal\"\nsig = { at = [\"header:Authorization\"], prefix = \"Bearer \" }");
    let sha384 = custom(
        "verify = \"hmac-sha384\"\nsig = { at = [\"header:X-S\"], split = \",\", pair = \"=\", take = [\"v1\"], encoding = \"base64url\" }\n\
         vars = { t = \"sig:t\" }\nsigned = \"{body}{t}\"\ntime = { var = \"t\", unit = \"ms\", tolerance = 60 }",
    );
    let text = || vec![text_secret()];
    vec![
        compile(&builtin("standard-webhooks"), vec![standard_secret()]),
        compile(&builtin("standard-webhooks"), vec![private]),
        compile(&builtin("svix"), vec![standard_secret()]),
        compile(&builtin("github"), text()),
        compile(&builtin("stripe"), text()),
        compile(&builtin("slack"), text()),
        compile(&builtin("shopify"), text()),
        compile(&sha384, text()),
        compile(&token, text()),
    ]
}

/// The headers that a signature depends on, of what `sign` gives.
fn signed_headers(source: &Source, post: &Post) -> Vec<HeaderName> {
    let unsigned = ["x-github-delivery", "x-github-event", "x-shopify-event-id", "x-shopify-topic"];
    let mut names: Vec<HeaderName> = post.headers.keys().cloned().collect();
    names.retain(|name| !unsigned.contains(&name.as_str()));
    assert!(!names.is_empty(), "{source:?}");
    names
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_signed_is_admitted(body in prop::collection::vec(any::<u8>(), 0..300), id in "[A-Za-z0-9_-]{1,40}") {
        for source in sources() {
            event(&source, &signed(&source, &id, NOW, &body));
        }
    }

    #[test]
    fn one_bit_of_the_body_refuses(body in prop::collection::vec(any::<u8>(), 1..200), at in any::<usize>(), bit in 0..8u8) {
        for source in sources().into_iter().filter(|source| source.alternatives().all(|a| a.covers_body)) {
            let post = signed(&source, "msg_1", NOW, &body);
            let mut other = body.clone();
            other[at % body.len()] ^= 1 << bit;
            let changed = Post { body: other.into(), ..post };
            prop_assert_eq!(refusal(&source, &changed), RefusalCode::SignatureMismatch);
        }
    }

    #[test]
    fn one_bit_of_a_signed_header_refuses(at in any::<usize>(), bit in 0..7u8, which in any::<usize>()) {
        for source in sources() {
            let post = signed(&source, "msg_1", NOW, b"{\"a\":1}");
            let names = signed_headers(&source, &post);
            let name = &names[which % names.len()];
            let mut value = post.headers[name].as_bytes().to_vec();
            let at = at % value.len();
            value[at] ^= 1 << bit;
            if HeaderValue::from_bytes(&value).is_err() {
                continue;
            }
            let changed = post.with(name.as_str(), &value);
            prop_assert!(source.admit(changed.request()).is_err(), "{source:?} {name} {at} {bit}");
        }
    }

    #[test]
    fn one_bit_of_the_secret_refuses(at in 0..18usize, bit in 0..3u8) {
        let mut secret = text_secret().expose().to_vec();
        secret[at] ^= 1 << bit;
        for scheme in ["github", "stripe", "slack", "shopify"] {
            let post = signed(&compile(&builtin(scheme), vec![text_secret()]), "a", NOW, b"{}");
            let other = compile(&builtin(scheme), vec![Secret::new(secret.clone())]);
            prop_assert_eq!(refusal(&other, &post), RefusalCode::SignatureMismatch);
        }
    }

    #[test]
    fn nothing_panics(
        values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..8),
        body in prop::collection::vec(any::<u8>(), 0..200),
        skew in any::<i64>(),
        url in "\\PC{0,30}",
    ) {
        for source in sources() {
            let names: Vec<HeaderName> = signed(&source, "a", NOW, b"").headers.keys().cloned().collect();
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
        for source in sources() {
            let post = signed(&source, "a", NOW, b"{}");
            for name in ["webhook-timestamp", "svix-timestamp", "x-slack-request-timestamp"] {
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
    for source in sources() {
        let post = signed(&source, "msg_1", NOW, b"{}");
        for name in signed_headers(&source, &post) {
            let value = post.headers[&name].as_bytes().to_vec();
            let doubled = post.clone().and(name.as_str(), &value);
            assert_eq!(refusal(&source, &doubled), RefusalCode::Malformed, "{source:?} {name}");
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
