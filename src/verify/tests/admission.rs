//! What becomes of requests: events, keys, answers, and that every setting acts.

use super::*;
use std::time::Duration;

const BODY: &[u8] = br#"{"id":"evt_1","type":"order.paid","event_id":"Ev1","event":{"type":"message"}}"#;

fn after(seconds: u64) -> Timestamp {
    NOW.plus(Duration::from_secs(seconds))
}

#[test]
fn the_event_is_the_request_byte_for_byte() {
    let source = compile(&builtin("stripe"), vec![text_secret()]);
    let post = signed(&source, "", NOW, BODY)
        .with("content-type", b"application/json; charset=utf-8")
        .with("cookie", b"a=b")
        .with("x-api-token", b"secret")
        .with("x-trace", b"kept");
    let event = event(&source, &post);
    assert_eq!(event.body, BODY);
    assert_eq!(event.event_type, "order.paid");
    assert_eq!(event.provider_id.as_deref(), Some("evt_1"));
    assert_eq!(event.content_type, "application/json; charset=utf-8");
    assert_eq!(event.received_at, NOW);
    assert_eq!(event.dedup.unwrap().window, Duration::from_secs(604_800));
    let mut names: Vec<&str> = event.headers.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["content-type", "x-trace"]);
}

#[test]
fn types_and_ids_stand_where_each_scheme_says() {
    let cases = [
        ("standard-webhooks", standard_secret(), "order.paid", "given"),
        ("svix", standard_secret(), "order.paid", "given"),
        ("github", text_secret(), "thing.made", "given"),
        ("stripe", text_secret(), "order.paid", "evt_1"),
        ("slack", text_secret(), "message", "Ev1"),
        ("shopify", text_secret(), "thing.made", "given"),
    ];
    for (scheme, secret, event_type, id) in cases {
        let source = compile(&builtin(scheme), vec![secret]);
        let event = event(&source, &signed(&source, "given", NOW, BODY));
        assert_eq!((event.event_type.as_str(), event.provider_id.as_deref()), (event_type, Some(id)), "{scheme}");
    }
}

#[test]
fn an_unreadable_type_or_id_is_absent() {
    let source = compile(&builtin("stripe"), vec![text_secret()]);
    let long = format!(r#"{{"id":"{}","type":"{}"}}"#, "i".repeat(513), "t".repeat(257));
    for body in [&b"not json"[..], b"", b"\xff\xfe", br#"{"id":"a\u0000b","type":"a\nb"}"#, long.as_bytes()] {
        let event = event(&source, &signed(&source, "", NOW, body));
        assert_eq!((event.event_type.as_str(), event.provider_id.as_deref()), ("", None));
        // A playback is known all the same.
        assert!(event.dedup.is_some());
    }
}

#[test]
fn a_signed_challenge_is_answered_and_an_unsigned_one_is_not() {
    let source = compile(&builtin("slack"), vec![text_secret()]);
    let body = br#"{"token":"t","type":"url_verification","challenge":"3eZbrw1a\u0026"}"#;
    let post = signed(&source, "", NOW, body);
    let Ok(Admission::Challenge(answer)) = source.admit(post.request()) else { panic!("not answered") };
    assert_eq!((answer.status.as_u16(), answer.content_type.as_bytes()), (200, &b"text/plain"[..]));
    assert_eq!(answer.body, &b"3eZbrw1a&"[..]);
    assert_eq!(refusal(&source, &post.without("x-slack-signature")), RefusalCode::MissingHeader);
    // Without what is to be echoed, it is an event like others.
    event(&source, &signed(&source, "", NOW, br#"{"type":"url_verification"}"#));
}

#[test]
fn a_challenge_can_be_answered_in_json() {
    let source = compile(
        &custom(
            "verify = \"hmac-sha256\"\nsig = { at = [\"header:X-Sig\"], encoding = \"hex\" }\n[[challenge]]\n\
             match = { \"json:/ping\" = \"true\", \"header:X-Kind\" = \"ping\" }\nstatus = 202\n\
             content_type = \"application/json\"\nbody = '\\{\"pong\":\"{json:/n}\"\\}'",
        ),
        vec![text_secret()],
    );
    let body = br#"{"ping":true,"n":"a\"b\\"}"#;
    let post = signed(&source, "", NOW, body).with("x-kind", b"ping");
    let Ok(Admission::Challenge(answer)) = source.admit(post.request()) else { panic!("not answered") };
    assert_eq!((answer.status.as_u16(), &answer.body[..]), (202, &br#"{"pong":"a\"b\\"}"#[..]));
    event(&source, &post.clone().with("x-kind", b"other"));
    assert!(matches!(source.admit(Request { method: &Method::PUT, ..post.request() }), Ok(Admission::Event(_))));
}

#[test]
fn the_window_is_the_sources_own_where_it_says_so() {
    let wide = compile(&SourceSpec { tolerance: Some(3600), ..builtin("stripe") }, vec![text_secret()]);
    let narrow = compile(&SourceSpec { tolerance: Some(0), ..builtin("stripe") }, vec![text_secret()]);
    let post = signed(&wide, "", NOW, BODY);
    event(&wide, &post.clone().at(after(3600)));
    assert_eq!(refusal(&wide, &post.clone().at(after(3601))), RefusalCode::TimestampTooOld);
    event(&narrow, &post);
    let early = NOW.minus(Duration::from_secs(1));
    let refused = narrow.admit(post.at(early).request()).unwrap_err();
    assert_eq!((refused.code, refused.skew_seconds), (RefusalCode::TimestampTooNew, Some(-1)));
}

#[test]
fn units_of_time() {
    let cases = [
        ("s", "1700000000", "1700000000500", RefusalCode::TimestampTooNew),
        ("ms", "1700000000500", "1700000000", RefusalCode::TimestampTooOld),
        ("rfc3339", "2023-11-14T22:13:20.500Z", "2023-11-14T22:13:20.500", RefusalCode::Malformed),
        ("rfc3339", "2023-11-14T22:13:20.500Z", "2023-11-14T22:13:20.500+01:00", RefusalCode::TimestampTooOld),
        ("rfc3339", "2023-11-14T22:13:20.500Z", "2023-11-14T23:13:20.5+01:00", RefusalCode::SignatureMismatch),
    ];
    for (unit, written, other, code) in cases {
        let spec = custom(&format!(
            "verify = \"hmac-sha256\"\nsig = {{ at = [\"header:X-Sig\"], encoding = \"hex\" }}\n\
             vars = {{ t = \"header:X-Time\" }}\nsigned = \"{{t}}{{body}}\"\n\
             time = {{ var = \"t\", unit = \"{unit}\", tolerance = 10 }}"
        ));
        let source = compile(&spec, vec![text_secret()]);
        let post = signed(&source, "", NOW, BODY);
        assert_eq!(post.headers["x-time"], written);
        event(&source, &post);
        assert_eq!(refusal(&source, &post.with("x-time", other.as_bytes())), code, "{unit} {other}");
    }
}

#[test]
fn every_field_of_a_custom_scheme_acts() {
    let source = compile(
        &custom(
            "verify = \"hmac-sha512\"\nkey = \"hex\"\nkey_strip = [\"k1_\", \"k2_\"]\n\
             sig = { at = [\"header:X-A\", \"header:X-B\"], split = \";\", pair = \"=\", take = [\"h1\", \"h2\"], prefix = \"p:\", encoding = \"base64url\" }\n\
             vars = { t = \"sig:ts\", n = \"header?:X-Nonce\", q = \"query:b\", j = \"json:/id\" }\n\
             signed = '{method}\\n{path}?{query} {url_noquery} {url}[ nonce:{n}]:{t}:{q}:{j}:{body}'\n\
             time = { var = \"t\", unit = \"ms\", tolerance = 5 }\nrequire = { \"header:X-Version\" = \"2\" }\n\
             id = [\"header:X-Id\", \"json:/id\"]\nid_form = \"word\"\ntype = [\"header:X-Type\", \"json:/type\"]",
        ),
        vec![Secret::new(format!("k2_{}", "0b".repeat(20)))],
    );
    let post = signed(&source, "id-1", NOW, BODY);
    let event_1 = event(&source, &post);
    assert_eq!((event_1.provider_id.as_deref(), event_1.event_type.as_str()), (Some("id-1"), "thing.made"));
    assert!(!event_1.headers.iter().any(|(name, _)| name == "x-a"));
    assert_eq!(event(&source, &post.clone().without("x-type")).event_type, "order.paid");
    assert_eq!(event(&source, &post.clone().without("x-id")).provider_id.as_deref(), Some("evt_1"));
    assert_eq!(refusal(&source, &post.clone().with("x-id", b"a b")), RefusalCode::Malformed);
    assert_eq!(refusal(&source, &post.clone().with("x-version", b"1")), RefusalCode::Malformed);
    assert_eq!(refusal(&source, &post.clone().without("x-version")), RefusalCode::MissingHeader);
    // The optional variable takes part in the signed bytes once it is there.
    assert_eq!(refusal(&source, &post.clone().with("x-nonce", b"1")), RefusalCode::SignatureMismatch);
    assert_eq!(refusal(&source, &post.clone().at(after(6))), RefusalCode::TimestampTooOld);
    let value = post.headers["x-a"].to_str().unwrap().to_owned();
    let moved = post.clone().without("x-a").with("x-b", value.as_bytes());
    event(&source, &moved);
    event(&source, &post.clone().with("x-a", value.replace("h1=", "h2=").as_bytes()));
    for broken in
        [value.replace("h1=", "h3="), value.replace("p:", ""), value.replace("ts=", "tt="), value.replace(';', ",")]
    {
        assert_eq!(refusal(&source, &post.clone().with("x-a", broken.as_bytes())), RefusalCode::Malformed, "{broken}");
    }
    for url in ["https://hooks.example.test/in/acme/src?b=2", "http://hooks.example.test/in/acme/src?token=1&b=2"] {
        let moved = Post { url: url.to_owned(), ..post.clone() };
        assert_eq!(refusal(&source, &moved), RefusalCode::SignatureMismatch, "{url}");
    }
    let no_query = Post { url: "https://hooks.example.test/in/acme/src".to_owned(), ..post.clone() };
    assert_eq!(refusal(&source, &no_query), RefusalCode::MissingHeader);
    let put = Request { method: &Method::PUT, ..post.request() };
    assert_eq!(source.admit(put).unwrap_err().code, RefusalCode::SignatureMismatch);
}

#[test]
fn every_algorithm_signs_and_verifies() {
    for (verify, length) in [("hmac-sha1", 40), ("hmac-sha256", 64), ("hmac-sha384", 96), ("hmac-sha512", 128)] {
        let spec = format!("verify = \"{verify}\"\nsig = {{ at = [\"header:X-Sig\"], encoding = \"hex\" }}");
        let source = compile(&custom(&spec), vec![text_secret()]);
        let post = signed(&source, "", NOW, BODY);
        assert_eq!(post.headers["x-sig"].len(), length);
        event(&source, &post);
    }
}

#[test]
fn both_kinds_of_key_can_be_active() {
    let (private, public) = ed25519_secrets();
    let sender = compile(&builtin("standard-webhooks"), vec![private]);
    let both = compile(&builtin("standard-webhooks"), vec![standard_secret(), public.clone()]);
    let only_public = compile(&builtin("standard-webhooks"), vec![public]);
    let hmac = compile(&builtin("standard-webhooks"), vec![standard_secret()]);
    let asymmetric = signed(&sender, "msg_1", NOW, BODY);
    assert!(asymmetric.headers["webhook-signature"].to_str().unwrap().starts_with("v1a,"));
    event(&both, &asymmetric);
    event(&only_public, &asymmetric);
    event(&both, &signed(&hmac, "msg_1", NOW, BODY));
    assert_eq!(refusal(&hmac, &asymmetric), RefusalCode::Malformed);
    assert_eq!(refusal(&only_public, &signed(&hmac, "msg_1", NOW, BODY)), RefusalCode::Malformed);
    let bytes = Bytes::from_static(BODY);
    let sign = SignRequest { id: "a", event_type: None, timestamp: NOW, url: URL, body: &bytes };
    assert_eq!(only_public.sign(sign), Err(SignError::NoSigningKey));
}

#[test]
fn an_id_has_the_form_that_its_scheme_wants() {
    let source = compile(&builtin("standard-webhooks"), vec![standard_secret()]);
    // Sign by a scheme that is the same but for the form.
    let lax = compile(
        &custom(
            "verify = \"hmac-sha256\"\nkey = \"base64\"\nkey_strip = \"whsec_\"\nid = [\"header:webhook-id\"]\n\
             sig = { at = [\"header:webhook-signature\"], split = \" \", pair = \",\", take = [\"v1\"], encoding = \"base64\" }\n\
             vars = { id = \"header:webhook-id\", t = \"header:webhook-timestamp\" }\nsigned = \"{id}.{t}.{body}\"\n\
             time = { var = \"t\", unit = \"s\", tolerance = 300 }",
        ),
        vec![standard_secret()],
    );
    event(&source, &signed(&lax, &"a".repeat(128), NOW, BODY));
    for id in ["a.1700000000", "a b", "ü", &"a".repeat(129), &"a".repeat(600)] {
        let refused = source.admit(signed(&lax, id, NOW, BODY).request()).unwrap_err();
        assert_eq!((refused.code, refused.step), (RefusalCode::Malformed, CheckStep::Id), "{id}");
    }
    let bytes = Bytes::new();
    let sign = SignRequest { id: "a b", event_type: None, timestamp: NOW, url: URL, body: &bytes };
    assert_eq!(source.sign(sign), Err(SignError::BadId("a b".to_owned())));
}

#[test]
fn what_headers_cannot_carry_is_not_signed() {
    let bytes = Bytes::from_static(b"{}");
    let sign = SignRequest { id: "a", event_type: None, timestamp: NOW, url: URL, body: &bytes };
    let in_query =
        custom("verify = \"hmac-sha256\"\nsig = { at = [\"query:sig\"], encoding = \"hex\" }\nsigned = \"{body}\"");
    let source = compile(&in_query, vec![text_secret()]);
    assert!(matches!(source.sign(sign), Err(SignError::NotAHeader(_))));
    // It verifies all the same.
    let body_only = compile(&builtin("github"), vec![text_secret()]);
    let signature =
        signed(&body_only, "a", NOW, b"{}").headers["x-hub-signature-256"].to_str().unwrap()[7..].to_owned();
    event(&source, &Post { url: format!("https://h.test/?sig={signature}"), ..Post::new(&[], b"{}") });
    let nonce = custom(
        "verify = \"hmac-sha256\"\nsig = { at = [\"header:s\"], encoding = \"hex\" }\nvars = { n = \"header:n\" }\nsigned = \"{n}{body}\"",
    );
    assert!(matches!(compile(&nonce, vec![text_secret()]).sign(sign), Err(SignError::UnknownValue(_))));
}

#[test]
fn the_steps_are_told_up_to_the_one_that_fails() {
    let source = compile(&builtin("stripe"), vec![Secret::new("another-test-secret"), text_secret()]);
    let provider = compile(&builtin("stripe"), vec![text_secret()]);
    let post = signed(&provider, "", NOW, BODY);
    let told = |post: &Post| {
        let steps = source.explain(post.request());
        assert!(steps.iter().rev().skip(1).all(|step| step.ok));
        let last = steps.last().unwrap().clone();
        (steps, last)
    };
    let (steps, last) = told(&post.clone().at(after(12)));
    assert_eq!(steps.len(), CheckStep::ALL.len());
    assert!(last.ok);
    assert!(steps.iter().any(|step| step.name == CheckStep::Timestamp && step.detail.contains(", 12 s before now")));
    assert!(steps.iter().any(|step| step.detail.starts_with("secret 2 of 2")));
    let fails = |post: &Post, name: CheckStep| {
        let (_, last) = told(post);
        assert_eq!((last.name, last.ok), (name, false), "{last:?}");
        last.detail
    };
    fails(&post.clone().without("stripe-signature"), CheckStep::Presence);
    fails(&post.clone().with("stripe-signature", b"v1=00"), CheckStep::Structure);
    assert!(fails(&post.clone().at(after(400)), CheckStep::Timestamp).contains("400 s old"));
    fails(&post.clone().with("stripe-signature", b"t=1700000000,v1=zz"), CheckStep::Decoding);
    let other = Post { body: Bytes::from_static(b"x"), ..post.clone() };
    let detail = fails(&other, CheckStep::Match);
    let signature = post.headers["stripe-signature"].to_str().unwrap().split("v1=").nth(1).unwrap();
    assert!(!detail.contains(signature));
}

/// Where a scheme has an older or weaker way of signing, a valid signature of that kind never stands in for one that is
/// wrong or not there.
#[test]
fn an_old_version_never_rescues_a_new_one() {
    let hmac = |algorithm: &str, key: &[u8], message: &str| {
        let text = format!("verify = \"{algorithm}\"\nsig = {{ at = [\"header:X-S\"], encoding = \"hex\" }}");
        let post = signed(&compile(&custom(&text), vec![Secret::new(key)]), "", NOW, message.as_bytes());
        post.headers["x-s"].to_str().unwrap().to_owned()
    };
    let body = "{\"id\":\"e1\"}";
    let wrong = "00".repeat(32);
    let secret = b"hookgate-test-secret";
    // Stripe: v0 is a test scheme.
    let stripe = compile(&builtin("stripe"), vec![text_secret()]);
    let post = signed(&stripe, "", NOW, body.as_bytes());
    event(&stripe, &post);
    let good = hmac("hmac-sha256", secret, &format!("{}.{body}", NOW.as_seconds()));
    assert!(post.headers["stripe-signature"].to_str().unwrap().contains(&good), "the test signs as Stripe does");
    let t = NOW.as_seconds();
    for (header, code) in [
        (format!("t={t},v1={wrong},v0={good}"), RefusalCode::SignatureMismatch),
        (format!("t={t},v0={good}"), RefusalCode::Malformed),
        (format!("t={t},V1={good}"), RefusalCode::Malformed),
    ] {
        assert_eq!(refusal(&stripe, &post.clone().with("stripe-signature", header.as_bytes())), code, "{header}");
    }
    // GitHub: the header with SHA-1 is sent beside the other.
    let github = compile(&builtin("github"), vec![text_secret()]);
    let sha1 = format!("sha1={}", hmac("hmac-sha1", secret, body));
    let post = signed(&github, "d", NOW, body.as_bytes()).with("x-hub-signature", sha1.as_bytes());
    event(&github, &post);
    let forged = post.clone().with("x-hub-signature-256", format!("sha256={wrong}").as_bytes());
    assert_eq!(refusal(&github, &forged), RefusalCode::SignatureMismatch);
    assert_eq!(refusal(&github, &post.clone().without("x-hub-signature-256")), RefusalCode::MissingHeader);
    assert_eq!(refusal(&github, &post.with("x-hub-signature-256", sha1.as_bytes())), RefusalCode::Malformed);
    // Standard Webhooks: who verifies by a public key takes no code made with what everybody knows.
    let (private, public) = ed25519_secrets();
    let sender = compile(&builtin("standard-webhooks"), vec![private]);
    let receiver = compile(&builtin("standard-webhooks"), vec![public.clone()]);
    let post = signed(&sender, "msg_1", NOW, body.as_bytes());
    event(&receiver, &post);
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    let key = STANDARD.decode(&public.expose()[5..]).unwrap();
    let mac = hmac("hmac-sha256", &key, &format!("msg_1.{t}.{body}"));
    let v1 = format!("v1,{}", STANDARD.encode(hex::decode(mac).unwrap()));
    assert_eq!(refusal(&receiver, &post.clone().with("webhook-signature", v1.as_bytes())), RefusalCode::Malformed);
    let both = format!("v1a,{} {v1}", STANDARD.encode([0; 64]));
    assert_eq!(refusal(&receiver, &post.with("webhook-signature", both.as_bytes())), RefusalCode::SignatureMismatch);
    // Slack and Shopify have one version each; another name of it is none.
    let slack = compile(&builtin("slack"), vec![text_secret()]);
    let post = signed(&slack, "", NOW, body.as_bytes());
    let other = post.headers["x-slack-signature"].to_str().unwrap().replace("v0=", "v1=");
    assert_eq!(refusal(&slack, &post.with("x-slack-signature", other.as_bytes())), RefusalCode::Malformed);
    let shopify = compile(&builtin("shopify"), vec![text_secret()]);
    let sha1 = STANDARD.encode(hex::decode(hmac("hmac-sha1", secret, body)).unwrap());
    let post = signed(&shopify, "", NOW, body.as_bytes()).with("x-shopify-hmac-sha256", sha1.as_bytes());
    assert_eq!(refusal(&shopify, &post), RefusalCode::Malformed);
}

#[test]
fn header_sets_are_never_mixed() {
    let source = compile(&builtin("svix"), vec![standard_secret()]);
    let branded = signed(&source, "msg_1", NOW, BODY);
    event(&source, &branded);
    for missing in ["svix-id", "svix-timestamp", "svix-signature"] {
        let mut mixed = branded.clone().without(missing);
        for name in ["id", "timestamp", "signature"] {
            let value = branded.headers[format!("svix-{name}")].as_bytes().to_vec();
            mixed = mixed.with(&format!("webhook-{name}"), &value);
        }
        assert_eq!(refusal(&source, &mixed), RefusalCode::MissingHeader, "{missing}");
    }
}

#[test]
fn a_condition_that_no_request_meets_names_its_headers() {
    let spec = custom("when = \"header:X-New\"\nverify = \"equal\"\nsig = { at = [\"header:X-Key\"] }");
    let source = compile(&spec, vec![text_secret()]);
    let post = signed(&source, "", NOW, BODY);
    let refused = source.admit(post.request()).unwrap_err();
    assert_eq!(refused.code, RefusalCode::MissingHeader);
    assert!(refused.detail.contains("x-new"));
    event(&source, &post.with("x-new", b"1"));
}
