//! Schemes that are code: signed and admitted, changed by a bit, attacked, and set up wrongly.

use super::*;
use crate::verify::builtin::{self, BodyCover};
use crate::verify::cases::{self, Case, Expected};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use proptest::prelude::*;
use serde_json::{Value, json};

const CASES: &str = include_str!("../../../tests/golden/signatures_code.json");
const TOPIC: &str = "arn:aws:sns:us-east-1:123456789012:orders";
const FORM: &[u8] = b"application/x-www-form-urlencoded";

fn with_params(scheme: &str, params: &Value) -> SourceSpec {
    let params = params.as_object().unwrap().clone().into_iter().collect();
    SourceSpec { params, ..builtin(scheme) }
}

fn rfc9421(required: &Value) -> SourceSpec {
    with_params("rfc9421", &json!({ "alg": "hmac-sha256", "keyid": "key-\"1\"", "required_components": required }))
}

/// Those that sign with a shared secret.
fn sources() -> Vec<Source> {
    let plain =
        ["contentful", "hook0", "mandrill", "messagebird-jwt", "messagebird-legacy", "plivo-v3", "twilio", "vonage"];
    let plain = plain.into_iter().map(|scheme| compile(&builtin(scheme), vec![text_secret()]));
    let shared = Secret::new(STANDARD.encode([7; 32]));
    let all = json!([
        "@method",
        "@target-uri",
        "@authority",
        "@scheme",
        "@path",
        "@query",
        "@request-target",
        "content-digest"
    ]);
    plain.chain([compile(&rfc9421(&all), vec![shared])]).collect()
}

/// A form, as its sender would send it.
fn sent(source: &Source, id: &str, body: &[u8]) -> Post {
    signed(source, id, NOW, body).with("content-type", FORM)
}

fn told(source: &Source, post: &Post) -> Result<Event, RefusalCode> {
    match source.admit(post.request()) {
        Ok(Admission::Event(event)) => Ok(event.into_inner()),
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => Err(refusal.code),
    }
}

fn valid_cases() -> Vec<Case> {
    let cases = cases::parse(CASES).unwrap();
    cases.into_iter().filter(|case| case.expect == Expected::Valid).collect()
}

/// A case's source and request.
fn set_up(case: &Case) -> (Source, Post, Method) {
    let source = compile(&cases::spec(case).unwrap(), case.secrets.clone());
    let (method, headers, body) = case.request.parts().unwrap();
    let at = Timestamp::from_millis(case.now_unix * 1_000);
    (source, Post { headers, body, url: case.request.url.clone(), at }, method)
}

fn passes(source: &Source, post: &Post, method: &Method) -> bool {
    source.admit(Request { method, ..post.request() }).is_ok()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_signed_is_admitted(form in "mandrill_events=[a-zA-Z0-9%+]{0,9}(&[a-z]{1,3}=[a-z]{0,3}){0,5}", id in "[A-Za-z0-9_-]{1,40}") {
        for source in sources() {
            let post = sent(&source, &id, form.as_bytes());
            prop_assert!(told(&source, &post).is_ok(), "{source:?} {:?}", told(&source, &post));
            prop_assert!(source.explain(post.request()).iter().all(|step| step.ok));
        }
    }

    #[test]
    fn one_bit_of_body_header_or_url_refuses(
        form in "mandrill_events=[a-zA-Z0-9]{0,9}(&[a-z]{1,3}=[a-z]{0,3}){0,5}",
        (at, bit) in (any::<usize>(), 0..8u8),
    ) {
        for source in sources() {
            let post = sent(&source, "msg_1", form.as_bytes());
            let mut body = post.body.to_vec();
            let place = at % body.len();
            body[place] ^= 1 << bit;
            prop_assert!(told(&source, &Post { body: body.into(), ..post.clone() }).is_err(), "{source:?} body");
            for (name, value) in post.headers.iter().filter(|(name, _)| *name != "content-type") {
                let mut value = value.as_bytes().to_vec();
                // The word in front of a token may be written in any case.
                let from = if name == "authorization" { 7 } else { 0 };
                let place = from + at % (value.len() - from);
                value[place] ^= 1 << bit;
                if HeaderValue::from_bytes(&value).is_ok() {
                    let changed = post.clone().with(name.as_str(), &value);
                    prop_assert!(told(&source, &changed).is_err(), "{source:?} {name}");
                }
            }
            if source.signs_url() {
                // All of them sign the query, not all of them what stands in front of it.
                let mut url = post.url.clone().into_bytes();
                let from = post.url.find('?').unwrap() + 1;
                let place = from + at % (url.len() - from);
                url[place] ^= 1 << (bit % 7);
                let changed = Post { url: String::from_utf8(url).unwrap(), ..post.clone() };
                prop_assert!(told(&source, &changed).is_err(), "{source:?} {}", changed.url);
            }
        }
    }

    #[test]
    fn one_bit_of_a_case_refuses_where_it_is_covered(at in any::<usize>(), bit in 0..7u8) {
        for case in valid_cases() {
            let (source, post, method) = set_up(&case);
            let coded = source.code.as_ref().unwrap();
            if coded.check.body() == BodyCover::Bytes && !post.body.is_empty() {
                let mut body = post.body.to_vec();
                let place = at % body.len();
                body[place] ^= 1 << bit;
                let changed = Post { body: body.into(), ..post.clone() };
                prop_assert!(!passes(&source, &changed, &method), "{} body", case.id);
            }
            let carriers = builtin::entry(&case.scheme).unwrap().headers;
            for name in carriers.iter().filter(|name| **name != "authorization") {
                let mut value = post.headers[*name].as_bytes().to_vec();
                let place = at % value.len();
                value[place] ^= 1 << bit;
                // One of several signatures may be wrong.
                let several = case.id.ends_with("-any") || case.id == "hook0-03";
                if HeaderValue::from_bytes(&value).is_ok() && !several {
                    let changed = post.clone().with(name, &value);
                    prop_assert!(!passes(&source, &changed, &method), "{} {name} {place} {bit}", case.id);
                }
            }
        }
    }

    #[test]
    fn nothing_panics(
        values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..8),
        body in prop::collection::vec(any::<u8>(), 0..200),
        skew in any::<i64>(),
        url in "\\PC{0,30}",
        cut in any::<usize>(),
    ) {
        for case in valid_cases() {
            let (source, post, _) = set_up(&case);
            let names: Vec<HeaderName> = post.headers.keys().cloned().collect();
            let mut wild = Post { url: url.clone(), ..Post::new(&[], &body) }.at(Timestamp::from_millis(skew));
            for (i, value) in values.iter().enumerate() {
                if HeaderValue::from_bytes(value).is_ok() && !names.is_empty() {
                    wild = wild.and(names[i % names.len()].as_str(), value);
                }
            }
            let cut_short = Post { body: post.body.slice(..cut % (post.body.len() + 1)), url: url.clone(), ..post.clone() };
            for post in [wild, cut_short, post.at(Timestamp::from_millis(skew))] {
                let _ = source.admit(post.request());
                let _ = source.explain(post.request());
            }
        }
    }
}

#[test]
fn a_doubled_header_is_malformed() {
    for case in valid_cases() {
        let (source, post, method) = set_up(&case);
        for name in builtin::entry(&case.scheme).unwrap().headers {
            let value = post.headers[*name].as_bytes().to_vec();
            let doubled = post.clone().and(name, &value);
            let refused = source.admit(Request { method: &method, ..doubled.request() }).unwrap_err();
            assert_eq!(
                (refused.code, refused.step),
                (RefusalCode::Malformed, CheckStep::Presence),
                "{} {name}",
                case.id
            );
            let wild = post.clone().with(name, b"\xff\xfe");
            let refused = source.admit(Request { method: &method, ..wild.request() }).unwrap_err();
            assert_eq!(refused.code, RefusalCode::Malformed, "{} {name}", case.id);
        }
    }
}

fn by_id(id: &str) -> (Source, Post) {
    let case = valid_cases().into_iter().find(|case| case.id == id).unwrap();
    let (source, post, _) = set_up(&case);
    (source, post)
}

#[test]
fn ten_thousand_of_anything_is_malformed() {
    let many = |item: &str, split: &str, n: usize| vec![item; n].join(split);
    let (hook0, post) = by_id("hook0-01");
    let real = post.headers["x-hook0-signature"].to_str().unwrap().to_owned();
    let item = format!("v0={}", "0".repeat(64));
    let with = |n| post.clone().with("x-hook0-signature", format!("{},{real}", many(&item, ",", n)).as_bytes());
    assert!(told(&hook0, &with(63)).is_ok());
    assert_eq!(told(&hook0, &with(64)).unwrap_err(), RefusalCode::Malformed);
    assert_eq!(told(&hook0, &with(10_000)).unwrap_err(), RefusalCode::Malformed);

    let (plivo, post) = by_id("d-plivo-v3-form");
    let real = post.headers["x-plivo-signature-v3"].to_str().unwrap().to_owned();
    let item = format!("{}=", "A".repeat(43));
    let with = |n| post.clone().with("x-plivo-signature-v3", format!("{},{real}", many(&item, ",", n)).as_bytes());
    assert!(told(&plivo, &with(63)).is_ok());
    assert_eq!(told(&plivo, &with(10_000)).unwrap_err(), RefusalCode::Malformed);

    let (braintree, post) = by_id("d-braintree-valid");
    let body = String::from_utf8(post.body.to_vec()).unwrap();
    let with = |n| {
        let pairs = many("other%7C00", "%26", n);
        Post { body: body.replacen("bt_signature=", &format!("bt_signature={pairs}%26"), 1).into(), ..post.clone() }
    };
    assert!(told(&braintree, &with(63)).is_ok());
    assert_eq!(told(&braintree, &with(10_000)).unwrap_err(), RefusalCode::Malformed);

    let (signatures, post) = by_id("d-rfc9421-webhook-profile");
    let real = post.headers["signature"].to_str().unwrap().to_owned();
    let labels: Vec<String> = (0..10_000).map(|n| format!("x{n}=:AA==:")).collect();
    let flooded = post.clone().with("signature", format!("{},{real}", labels.join(",")).as_bytes());
    assert_eq!(told(&signatures, &flooded).unwrap_err(), RefusalCode::Malformed);
    let components = format!("s1=({});created=1700000000;keyid=\"k1\"", many("\"a\"", " ", 10_000));
    assert_eq!(
        told(&signatures, &post.with("signature-input", components.as_bytes())).unwrap_err(),
        RefusalCode::Malformed
    );

    let (adyen, post) = by_id("d-adyen-item-two-items");
    let body = String::from_utf8(post.body.to_vec()).unwrap();
    let item =
        &body[body.find("{\"NotificationRequestItem").unwrap()..body.find(",{\"NotificationRequestItem").unwrap()];
    let items = |n| Post { body: format!("{{\"notificationItems\":[{}]}}", many(item, ",", n)).into(), ..post.clone() };
    assert!(told(&adyen, &items(64)).is_ok());
    assert_eq!(told(&adyen, &items(10_000)).unwrap_err(), RefusalCode::Malformed);

    for (scheme, header) in [("twilio", "x-twilio-signature"), ("mandrill", "x-mandrill-signature")] {
        let source = compile(&builtin(scheme), vec![text_secret()]);
        let post = Post::new(&[(header, "AAAA")], many("a=1", "&", 10_000).as_bytes()).with("content-type", FORM);
        assert_eq!(told(&source, &post).unwrap_err(), RefusalCode::Malformed, "{scheme}");
    }
    let (dropbox, post) = by_id("dropbox-sign-base");
    let parts = Post { body: many("--hookgate\r\n\r\n\r\nx", "\r\n", 10_000).into(), ..post };
    assert_eq!(told(&dropbox, &parts).unwrap_err(), RefusalCode::Malformed);
}

#[test]
fn deep_and_doubled_json_is_malformed() {
    let deep = "[".repeat(100_000);
    for (id, key) in [("d-adyen-item-two-items", "notificationItems"), ("sns-php-1", "Type")] {
        let (source, post) = by_id(id);
        let text = String::from_utf8(post.body.to_vec()).unwrap();
        for body in [deep.clone(), format!("{{\"x\":{deep}"), format!("{{\"{key}\":null,{}", &text[1..])] {
            let changed = Post { body: body.into(), ..post.clone() };
            assert_eq!(told(&source, &changed).unwrap_err(), RefusalCode::Malformed, "{id}");
        }
    }
    let (vonage, post) = by_id("d-vonage-valid");
    for token in [format!("e30.{}.x", "A".repeat(1 << 20)), "a.b.c.d.e".to_owned(), "..".to_owned(), ".".repeat(10_000)]
    {
        let changed = post.clone().with("authorization", format!("Bearer {token}").as_bytes());
        assert_eq!(told(&vonage, &changed).unwrap_err(), RefusalCode::Malformed);
    }
    let head = URL_SAFE_NO_PAD.encode(format!("{{\"alg\":\"HS256\",\"x\":{}", "[".repeat(4_000)));
    let changed = post.with("authorization", format!("Bearer {head}.e30.AA").as_bytes());
    assert_eq!(told(&vonage, &changed).unwrap_err(), RefusalCode::Malformed);
}

#[test]
fn handshakes_are_answered_and_let_nothing_in() {
    let greeting = |source: &Source, post: &Post, method: &Method| {
        let request = Request { method, ..post.request() };
        let told = source.explain(request).iter().all(|step| step.ok);
        match source.admit(request) {
            Ok(Admission::Challenge(answer)) => Some(answer).filter(|_| told),
            Ok(other) => panic!("{other:?}"),
            Err(_) => None,
        }
    };
    let params = json!({ "public_key": "integration_public_key" });
    let braintree = compile(&with_params("braintree", &params), vec![Secret::new("integration_private_key")]);
    let challenge = |text: &str| Post { url: format!("https://h.test/in?bt_challenge={text}"), ..Post::new(&[], b"") };
    let good = challenge("20f9f8ed05f77439fe955c977e4c8a53");
    let answer = greeting(&braintree, &good, &Method::GET).unwrap();
    assert_eq!(answer.body, &b"integration_public_key|d9b899556c966b3f06945ec21311865d35df3ce4"[..]);
    assert_eq!(answer.content_type, "text/plain");
    assert!(told(&braintree, &good).is_err());
    assert!(greeting(&braintree, &good, &Method::POST).is_none());
    // The code that anybody is given makes no event.
    let form = "bt_signature=integration_public_key%7Cd9b899556c966b3f06945ec21311865d35df3ce4\
                &bt_payload=20f9f8ed05f77439fe955c977e4c8a53&more=x";
    let form = Post::new(&[("content-type", "application/x-www-form-urlencoded")], form.as_bytes());
    assert_eq!(told(&braintree, &form).unwrap_err(), RefusalCode::Malformed);
    for bad in [
        "bad%20challenge",
        "",
        "20F9F8ED05F77439FE955C977E4C8A53",
        &"a".repeat(19),
        &"a".repeat(33),
        "a&bt_challenge=b",
    ] {
        assert!(greeting(&braintree, &challenge(bad), &Method::GET).is_none(), "{bad}");
    }

    let mandrill = compile(&builtin("mandrill"), vec![text_secret()]);
    let stranger = compile(&builtin("mandrill"), vec![Secret::new("test-webhook")]);
    let ping = sent(&stranger, "", b"mandrill_events=%5B%5D");
    assert!(greeting(&mandrill, &ping, &Method::POST).is_some());
    assert!(greeting(&mandrill, &Post::new(&[], b""), &Method::HEAD).is_some());
    for body in [&b"mandrill_events=%5B%7B%7D%5D"[..], b"mandrill_events=%5B%5D&a=1", b""] {
        assert!(greeting(&mandrill, &sent(&stranger, "", body), &Method::POST).is_none());
    }
    assert!(greeting(&mandrill, &ping.without("x-mandrill-signature"), &Method::POST).is_none());

    let answers = |id: &str| by_id(id).0.answers();
    assert_eq!(answers("dropbox-sign-base"), Answers::Receipt("Hello API Event Received"));
    assert_eq!(answers("adyen-item-node-1"), Answers::Receipt("[accepted]"));
    assert_eq!(answers("twilio-basic"), Answers::Ours);
}

#[test]
fn ids_and_types_are_read_and_replays_are_known() {
    let (adyen, post) = by_id("adyen-item-node-1");
    let event = told(&adyen, &post).unwrap();
    assert_eq!(event.provider_id.as_deref(), Some("pspReference:REPORT_AVAILABLE:true"));
    assert_eq!(event.event_type, "REPORT_AVAILABLE");
    let (_, two) = by_id("d-adyen-item-two-items");
    let (two_items, _) = by_id("d-adyen-item-two-items");
    assert_eq!(told(&two_items, &two).unwrap().provider_id, None);

    let (dropbox, post) = by_id("dropbox-sign-account");
    let event = told(&dropbox, &post).unwrap();
    assert_eq!(event.event_type, "account_confirmed");
    // Another event of the same kind and second is another event.
    let text = String::from_utf8(post.body.to_vec()).unwrap();
    let other = Post { body: text.replace("63522885", "63522886").into(), ..post.clone() };
    assert_ne!(told(&dropbox, &other).unwrap().dedup, event.dedup);
    // The same one in another envelope is not.
    let boundary = text.replace("hookgate", "hookgale");
    let repeated =
        Post { body: boundary.into(), ..post }.with("content-type", b"multipart/form-data; boundary=\"hookgale\"");
    assert_eq!(told(&dropbox, &repeated).unwrap().dedup, event.dedup);

    let (braintree, post) = by_id("d-braintree-valid");
    assert_eq!(told(&braintree, &post).unwrap().event_type, "check");
    let (jwt, post) = by_id("messagebird-jwt-valid-jwt-with-url-parameters-and-payload");
    let event = told(&jwt, &post).unwrap();
    assert_eq!(event.provider_id.as_deref(), Some("93e55006-a0e8-4526-a190-fa5ff00ea116"));
    assert_eq!(event.dedup.unwrap().content, None, "the token signs its id");

    // Who moves the border between a name and its value makes no new event.
    let (twilio, post) = by_id("d-twilio-valid");
    let first = told(&twilio, &post.clone().with("i-twilio-idempotency-token", b"one")).unwrap().dedup.unwrap();
    let second = told(&twilio, &post.with("i-twilio-idempotency-token", b"two")).unwrap().dedup.unwrap();
    assert_ne!(first.digest, second.digest);
    assert!(first.content.is_some() && first.content == second.content);
}

/// What is said of the code is what it does with requests of its provider.
#[test]
fn what_code_says_of_itself_is_so() {
    let mut greeting = Vec::new();
    for name in schemes::names() {
        let scheme = schemes::builtin(name).unwrap();
        let Some(entry) = schemes::code(&scheme) else { continue };
        let about = &entry.about;
        assert_eq!(about.time.is_some(), scheme.time.is_some(), "{name}");
        let carriers = about.signature.iter().filter_map(|at| at.strip_prefix("header:"));
        for carrier in carriers {
            assert!(entry.headers.contains(&carrier.to_ascii_lowercase().as_str()), "{name} {carrier}");
        }
        let (mut ids, mut types, mut skews) = (0, 0, 0);
        for case in valid_cases().iter().filter(|case| case.scheme == name) {
            let (source, post, method) = set_up(case);
            let check = &source.code.as_ref().unwrap().check;
            let facts = locator::Facts::new(Request { method: &method, ..post.request() }, &source.wanted);
            let proof = check.check(&facts, KeyAtHand::NotAsked).unwrap();
            ids += usize::from(proof.id.is_some());
            types += usize::from(proof.event_type.is_some());
            skews += usize::from(proof.skew_seconds.is_some());
        }
        let told = (!about.id.is_empty(), !about.event_type.is_empty(), about.time.is_some() && name != "truelayer");
        assert_eq!((ids > 0, types > 0, skews > 0), told, "{name}");
        if !about.handshakes.is_empty() {
            greeting.push(name);
        }
    }
    // Each has its test: here, and with a listener around it.
    assert_eq!(greeting, ["aws-sns", "braintree", "mandrill"]);
}

#[test]
fn signatures_are_not_handed_on() {
    for case in valid_cases() {
        let (source, post, method) = set_up(&case);
        let Ok(Admission::Event(event)) = source.admit(Request { method: &method, ..post.request() }) else {
            panic!("{}", case.id)
        };
        let carriers = builtin::entry(&case.scheme).unwrap().headers;
        assert!(!event.headers.iter().any(|(name, _)| carriers.contains(&name.as_str())), "{}", case.id);
    }
}

#[test]
fn a_key_that_stands_elsewhere_is_not_guessed() {
    let (_, post) = by_id("d-paypal-valid");
    let paypal = compile(&with_params("paypal", &json!({ "webhook_id": "8PT597110X687430LKGECATA" })), vec![]);
    let Err(Stop::NeedsKey(query)) = paypal.judge(post.request(), KeyAtHand::NotAsked) else { panic!("no query") };
    assert_eq!(query.url().as_str(), "https://api.paypal.com/v1/notifications/certs/CERT-1");
    assert_eq!(told(&paypal, &post).unwrap_err(), RefusalCode::UnknownKey);
    assert!(!paypal.explain(post.request()).last().unwrap().ok);
    let Err(Stop::Refused(refusal)) = paypal.judge(post.request(), KeyAtHand::Absent) else { panic!("no refusal") };
    assert_eq!(refusal.code, RefusalCode::UnknownKey);
}

#[test]
fn who_knows_no_topic_of_ours_makes_us_ask_nobody() {
    let (_, post) = by_id("sns-php-1");
    let of = |topics: &[&str]| compile(&with_params("aws-sns", &json!({ "topic_arns": topics })), vec![]);
    let judged = |source: &Source, post: &Post| match source.judge(post.request(), KeyAtHand::NotAsked) {
        Err(Stop::NeedsKey(_)) => None,
        Err(Stop::Refused(refusal)) => Some(refusal.code),
        Ok(_) => panic!("let in without a key"),
    };
    assert_eq!(judged(&of(&[]), &post), None);
    assert_eq!(judged(&of(&["arn:aws:sns:us-east-2:123456789012:other"]), &post), Some(RefusalCode::UnknownKey));
    let steps = of(&["arn:aws:sns:us-east-2:123456789012:other"]).explain(post.request());
    let told: Vec<&str> = steps.iter().map(|step| step.detail.as_str()).collect();
    assert!(told[2].ends_with("there is no window, so any time is let in; `tolerance` sets one"), "{told:?}");
    assert!(told[4].ends_with("body field TopicArn is none of the source's `topic_arns`"), "{told:?}");
    let body = String::from_utf8(post.body.to_vec()).unwrap();
    let elsewhere = Post { body: body.replace("sns.us-east-2.", "sns.made-up-1.").into(), ..post };
    assert_eq!(judged(&of(&[]), &elsewhere), Some(RefusalCode::UntrustedKeyUrl));
}

#[test]
fn windows_and_coverage_are_asked_for() {
    let (_, post) = by_id("truelayer-webhook-jwks");
    let case = valid_cases().into_iter().find(|case| case.id == "truelayer-webhook-jwks").unwrap();
    let timed = SourceSpec { tolerance: Some(300), ..builtin("truelayer") };
    let source = compile(&timed, case.secrets.clone());
    let at = Timestamp::parse_rfc3339("2021-11-29T11:42:55Z").unwrap();
    assert!(told(&source, &post.clone().at(at)).is_ok());
    assert_eq!(
        told(&source, &post.at(at.plus(std::time::Duration::from_secs(301)))).unwrap_err(),
        RefusalCode::TimestampTooOld
    );
    let case = valid_cases().into_iter().find(|case| case.id == "truelayer-static").unwrap();
    let (_, post, _) = set_up(&case);
    let source = compile(&timed, case.secrets);
    let post = post.with("x-tl-webhook-timestamp", b"2021-11-29T11:42:55Z").at(at);
    assert_eq!(told(&source, &post).unwrap_err(), RefusalCode::InsufficientCoverage);

    let (_, post) = by_id("d-rfc9421-webhook-profile");
    let shared = || vec![Secret::new("a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s=")];
    let params = |required| json!({ "alg": "hmac-sha256", "keyid": "k1", "required_components": required });
    let more = compile(&with_params("rfc9421", &params(json!(["date"]))), shared());
    assert_eq!(told(&more, &post).unwrap_err(), RefusalCode::InsufficientCoverage);
    let input = post.headers["signature-input"].to_str().unwrap().replace(";created=1700000000", "");
    let less = compile(&with_params("rfc9421", &params(json!([]))), shared());
    assert_eq!(
        told(&less, &post.clone().with("signature-input", input.as_bytes())).unwrap_err(),
        RefusalCode::InsufficientCoverage
    );
    let other = post.headers["signature-input"].to_str().unwrap().to_owned() + ";alg=\"ed25519\"";
    assert_eq!(
        told(&less, &post.with("signature-input", other.as_bytes())).unwrap_err(),
        RefusalCode::UnsupportedAlgorithm
    );
}

#[test]
fn every_algorithm_of_message_signatures_verifies() {
    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
    };
    let random = SystemRandom::new();
    let base = "\"@method\": POST\n\"@signature-params\": (\"@method\");created=1700000000;keyid=\"k\"";
    let ed = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
    let p256 = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    let p384 = EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING).unwrap();
    let all = [
        ("ed25519", ed.public_key().as_ref().to_vec(), ed.sign(base.as_bytes()).as_ref().to_vec()),
        (
            "ecdsa-p256-sha256",
            p256.public_key().as_ref().to_vec(),
            p256.sign(&random, base.as_bytes()).unwrap().as_ref().to_vec(),
        ),
        (
            "ecdsa-p384-sha384",
            p384.public_key().as_ref().to_vec(),
            p384.sign(&random, base.as_bytes()).unwrap().as_ref().to_vec(),
        ),
    ];
    for (alg, public, signature) in &all {
        let params = |alg: &str| json!({ "alg": alg, "keyid": "k", "required_components": ["@method"] });
        let source = compile(&with_params("rfc9421", &params(alg)), vec![Secret::new(STANDARD.encode(public))]);
        let post = Post::new(&[], b"")
            .with("signature-input", b"s=(\"@method\");created=1700000000;keyid=\"k\"")
            .with("signature", format!("s=:{}:", STANDARD.encode(signature)).as_bytes());
        assert!(told(&source, &post).is_ok(), "{alg}");
        for (other, public, _) in all.iter().filter(|(other, ..)| other != alg) {
            let source = with_params("rfc9421", &params(alg));
            let secrets = vec![Secret::new(STANDARD.encode(public))];
            let problems = source.compile(&"acme".parse().unwrap(), &"src".parse().unwrap(), secrets).unwrap_err();
            assert_eq!(problems[0].field, "secrets[0]", "{alg} with the key of {other}");
        }
        let mut wrong = signature.clone();
        wrong[5] ^= 1;
        let forged = post.with("signature", format!("s=:{}:", STANDARD.encode(&wrong)).as_bytes());
        assert_eq!(told(&source, &forged).unwrap_err(), RefusalCode::SignatureMismatch);
    }
}

/// Members, wrapped lines and parameters of the query bind what they say, and no more.
#[test]
fn components_with_parameters_bind_what_they_say() {
    let shared = || vec![Secret::new(STANDARD.encode([7; 32]))];
    let with = |required: &[&str]| compile(&rfc9421(&json!(required)), shared());
    let token = r#""@query-param";name="token""#;
    let source = with(&[token, r#""content-digest";key="sha-256""#]);
    assert!(source.signs_url() && source.warnings().is_empty());
    let post = sent(&source, "", b"a=1");
    assert!(told(&source, &post).is_ok());
    let at = |url: &str| Post { url: url.to_owned(), ..post.clone() };
    assert!(told(&source, &at("https://hooks.example.test/in/acme/src?b=3&%74oken=1")).is_ok(), "no more is signed");
    for (url, code) in [
        ("https://hooks.example.test/in/acme/src?token=2&b=2", RefusalCode::SignatureMismatch),
        ("https://hooks.example.test/in/acme/src?token=1&token=1", RefusalCode::Malformed),
        ("https://hooks.example.test/in/acme/src?b=2", RefusalCode::MissingHeader),
    ] {
        assert_eq!(told(&source, &at(url)).unwrap_err(), code, "{url}");
    }
    assert_eq!(
        told(&source, &Post { body: "a=2".into(), ..post.clone() }).unwrap_err(),
        RefusalCode::SignatureMismatch
    );
    // Another digest may stand beside the one that is signed, and has to be right as well.
    let digest = post.headers["content-digest"].to_str().unwrap();
    let beside = |sha512: &[u8]| {
        let both = format!("sha-512=:{}:,   {digest}", STANDARD.encode(sha512));
        post.clone().with("content-digest", both.as_bytes())
    };
    use sha2::Digest as _;
    assert!(told(&source, &beside(&sha2::Sha512::digest(b"a=1"))).is_ok());
    assert_eq!(told(&source, &beside(&[0; 64])).unwrap_err(), RefusalCode::SignatureMismatch);
    // One component is not another.
    assert_eq!(told(&with(&["content-digest"]), &post).unwrap_err(), RefusalCode::InsufficientCoverage);
    assert_eq!(told(&with(&[r#""content-digest";bs"#]), &post).unwrap_err(), RefusalCode::InsufficientCoverage);
    // A digest of a kind that we do not know binds nothing.
    assert_eq!(with(&[r#""content-digest";key="md5""#]).warnings().len(), 2);
    // Dedup by what is signed, and by what is not.
    let keyed = |required: &[&str], dedup: &str| {
        let spec = SourceSpec { dedup: Some(dedup.to_owned()), ..rfc9421(&json!(required)) };
        compile(&spec, shared()).signs_key()
    };
    assert!(keyed(&[token], "query:token") && !keyed(&[token], "query:b") && keyed(&["@request-target"], "query:b"));
    assert!(keyed(&[r#""x-id";bs"#], "header:x-id") && !keyed(&[r#""x-id";sf"#], "header:x-id"));
    assert!(keyed(&[r#""content-digest";key="sha-512""#], "json:/id"));
}

#[test]
fn what_is_set_up_wrongly_is_named() {
    let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let good = json!({ "alg": "ed25519", "keyid": "k", "required_components": [] });
    let but = |name: &str, value: Value| {
        let mut params = good.clone();
        params[name] = value;
        params
    };
    let without = |name: &str| {
        let mut params = good.clone();
        params.as_object_mut().unwrap().remove(name);
        params
    };
    let cases: Vec<(&str, Value, Vec<&str>, &str)> = vec![
        ("twilio", json!({}), vec![], "secrets"),
        ("twilio", json!({ "webhook_id": "x" }), vec!["0123456789abcdef"], "params.webhook_id"),
        ("github", json!({ "public_key": "x" }), vec!["0123456789abcdef"], "params"),
        ("paypal", json!({}), vec![], "params.webhook_id"),
        ("paypal", json!({ "webhook_id": "" }), vec![], "params.webhook_id"),
        ("paypal", json!({ "webhook_id": 5 }), vec![], "params.webhook_id"),
        ("paypal", json!({ "webhook_id": ["x"] }), vec![], "params.webhook_id"),
        ("paypal", json!({ "webhook_id": "a\nb" }), vec![], "params.webhook_id"),
        ("paypal", json!({ "webhook_id": "x", "webhookid": "x" }), vec![], "params.webhookid"),
        ("paypal", json!({ "webhook_id": "a|b" }), vec![], "params.webhook_id"),
        ("paypal", json!({ "webhook_id": "x" }), vec!["  "], "secrets[0]"),
        ("paypal", json!({ "webhook_id": "x" }), vec![pem], "secrets[0]"),
        ("paypal", json!({ "webhook_id": "x" }), vec!["hunter2hunter2hunter2"], "secrets[0]"),
        ("paypal", json!({ "webhook_id": "x" }), vec![""], "secrets[0]"),
        ("aws-sns", json!({}), vec![], "params.topic_arns"),
        ("aws-sns", json!({ "topic_arns": "arn" }), vec![], "params.topic_arns"),
        ("aws-sns", json!({ "topic_arns": [1] }), vec![], "params.topic_arns"),
        ("aws-sns", json!({ "topic_arns": ["nonsense"] }), vec![], "params.topic_arns[0]"),
        ("aws-sns", json!({ "topic_arns": [TOPIC, TOPIC] }), vec![], "params.topic_arns[1]"),
        ("aws-sns", json!({ "topic_arns": [] }), vec![pem], "secrets[0]"),
        ("adyen-item", json!({}), vec!["not hexadecimal!"], "secrets[0]"),
        ("braintree", json!({}), vec!["0123456789abcdef"], "params.public_key"),
        ("braintree", json!({ "public_key": "a|b" }), vec!["0123456789abcdef"], "params.public_key"),
        ("plaid", json!({}), vec![], "secrets"),
        ("plaid", json!({}), vec!["an-api-secret-01"], "params.client_id"),
        ("plaid", json!({ "environment": "moon" }), vec!["{}"], "params.environment"),
        ("plaid", json!({ "environment": "sandbox" }), vec!["{\"keys\":[{}]}"], "params.environment"),
        ("plaid", json!({ "client_id": "a b" }), vec!["an-api-secret-01"], "params.client_id"),
        ("plaid", json!({}), vec!["{\"keys\":[]}"], "secrets[0]"),
        ("plaid", json!({ "client_id": "c" }), vec!["{\"keys\":[{}]}"], "secrets"),
        ("truelayer", json!({}), vec!["-----BEGIN PUBLIC KEY-----"], "secrets[0]"),
        ("truelayer", json!({}), vec!["{\"keys\":[]}"], "secrets[0]"),
        ("rfc9421", without("alg"), vec!["x"], "params.alg"),
        ("rfc9421", but("alg", json!("md5")), vec!["x"], "params.alg"),
        ("rfc9421", without("keyid"), vec![], "secrets"),
        ("rfc9421", without("required_components"), vec!["x"], "params.required_components"),
        ("rfc9421", but("required_components", json!(["Date"])), vec!["x"], "params.required_components[0]"),
        ("rfc9421", but("required_components", json!(["@nothing"])), vec!["x"], "params.required_components[0]"),
        ("rfc9421", but("required_components", json!(["\"date\";req"])), vec!["x"], "params.required_components[0]"),
        ("rfc9421", but("required_components", json!(["\"date\";bs;sf"])), vec!["x"], "params.required_components[0]"),
        ("rfc9421", but("required_components", json!(["date", "date"])), vec!["x"], "params.required_components[1]"),
        (
            "rfc9421",
            but("required_components", json!(["date", "\"date\""])),
            vec!["x"],
            "params.required_components[1]",
        ),
        (
            "rfc9421",
            but("required_components", json!(["\"a\";sf;key=\"b\"", "\"a\";key=\"b\";sf"])),
            vec!["x"],
            "params.required_components[1]",
        ),
        ("rfc9421", but("keyid", json!("schlüssel")), vec!["x"], "params.keyid"),
        ("rfc9421", good.clone(), vec!["AAAA"], "secrets[0]"),
        ("rfc9421", but("jwks_url", json!("https://a.example/jwks")), vec![], "params.keyid"),
        ("rfc9421", but("jwks_url", json!("http://a.example/jwks")), vec![], "params.jwks_url"),
        ("rfc9421", but("jwks_url", json!("https://u@a.example/jwks")), vec![], "params.jwks_url"),
        ("messagebird-jwt", json!({ "x": [] }), vec!["0123456789abcdef"], "params.x"),
        ("hook0", json!({ "require_v1": "true" }), vec!["0123456789abcdef"], "params.require_v1"),
    ];
    for (scheme, params, secrets, field) in cases {
        let shown = format!("{scheme} {params}");
        let secrets = secrets.into_iter().map(Secret::new).collect();
        let compiled = with_params(scheme, &params).compile(&"acme".parse().unwrap(), &"src".parse().unwrap(), secrets);
        let problems = compiled.err().unwrap_or_default();
        assert!(problems.iter().any(|problem| problem.field == field), "{shown}: {problems:?}, not {field}");
        assert!(problems.iter().all(|problem| !problem.message.contains("hunter2")), "{problems:?}");
        // Rule and remedy.
        assert!(problems.iter().all(|problem| problem.message.contains(": ")), "{problems:?}");
    }
    // None is let through unseen.
    for name in schemes::names() {
        for param in schemes::settings(name) {
            let items: Vec<&str> =
                if param.kind == ParamKind::List { param.example.split(',').collect() } else { vec![param.example] };
            assert!(items.iter().all(|item| (param.wrong)(item).is_none()), "{name} {}", param.name);
            for bad in ["schlüssel|a b&c", "\u{7f}", "ä"] {
                assert!((param.wrong)(bad).is_some_and(|told| told.contains(": ")), "{name} {}: {bad}", param.name);
            }
        }
    }
    let mut described: SourceSpec = custom("verify = \"builtin:twilio\"\nsigned = \"{body}\"");
    let field = |spec: &SourceSpec| {
        let problems = spec.compile(&"acme".parse().unwrap(), &"src".parse().unwrap(), vec![text_secret()]);
        problems.unwrap_err()[0].field.clone()
    };
    assert_eq!(field(&described), "signed");
    described.custom.as_mut().unwrap().verify = Some("builtin:nobody".to_owned());
    assert_eq!(field(&described), "verify");
    assert_eq!(field(&SourceSpec { tolerance: Some(60), ..builtin("twilio") }), "tolerance");
    let short = compile(&builtin("messagebird-jwt"), vec![Secret::new("short")]);
    assert_eq!(short.warnings().len(), 1, "said once for three algorithms: {:?}", short.warnings());
    let any = compile(&with_params("aws-sns", &json!({ "topic_arns": [] })), vec![]);
    assert!(any.warnings()[0].starts_with("params.topic_arns"));
}

#[test]
fn what_cannot_sign_says_why() {
    let bytes = Bytes::from_static(b"{}");
    let sign = SignRequest { id: "a", event_type: None, timestamp: NOW, url: URL, body: &bytes };
    for (id, carried) in [
        ("d-braintree-valid", true),
        ("dropbox-sign-base", true),
        ("adyen-item-node-1", true),
        ("d-plaid-valid", false),
        ("truelayer-static", false),
        ("sns-php-1", false),
        ("d-paypal-valid", false),
        ("rfc9421-b21", false),
    ] {
        let error = by_id(id).0.sign(sign).unwrap_err();
        assert_eq!(matches!(error, SignError::NotAHeader(_)), carried, "{id}");
        assert_eq!(error == SignError::NoSigningKey, !carried, "{id}");
    }
}
