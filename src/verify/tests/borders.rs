//! Who has seen a request, or may ask for a handshake, and what that is worth: borders that are moved, bodies that are
//! put in, codes that are asked for.

use super::*;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{KeyInit as _, Mac as _};
use sha2::Digest as _;

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
const JSON: (&str, &str) = ("content-type", "application/json");
const KEY: &[u8] = b"hookgate-test-secret";

fn sha256(signed: &[u8]) -> Vec<u8> {
    let mac = hmac::Hmac::<sha2::Sha256>::new_from_slice(KEY).unwrap();
    mac.chain_update(signed).finalize().into_bytes().to_vec()
}

fn sha1(signed: &str) -> String {
    let mac = hmac::Hmac::<sha1::Sha1>::new_from_slice(KEY).unwrap();
    STANDARD.encode(mac.chain_update(signed).finalize().into_bytes())
}

fn told(source: &Source, post: &Post) -> Result<(), Refusal> {
    match source.admit(post.request()) {
        Ok(Admission::Event(_)) => Ok(()),
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => Err(refusal),
    }
}

fn code(source: &Source, post: &Post) -> Option<RefusalCode> {
    told(source, post).err().map(|refusal| refusal.code)
}

fn post(url: &str, headers: &[(&str, &str)], body: &str) -> Post {
    Post { url: url.to_owned(), ..Post::new(headers, body.as_bytes()) }
}

/// Whatever alternative a code comes from, and whatever is asked of who asks for it, it signs no event.
#[test]
fn a_code_that_is_given_out_signs_no_event() {
    let base = "verify = \"hmac-sha256\"\nsig = { at = [\"header:X-S\"], encoding = \"hex\" }\n";
    let elsewhere = r#"alternatives = [
        { when = "header:X-Ping", challenge = [{ method = "GET", signed = false, body = "{query:q|hmac-hex}" }] },
        {},
    ]"#;
    let checked = r#"challenge = [{ method = "GET", signed = false, check = { at = "query:tok", key = "tok:" },
                                    body = "{query:q|hmac-hex}" }]"#;
    for (rest, headers) in [(elsewhere, &[("x-ping", "1")][..]), (checked, &[])] {
        let mut secrets = vec![text_secret()];
        if rest == checked {
            secrets.push(Secret::new("tok:word-of-the-handshake"));
        }
        let source = compile(&custom(&format!("{base}{rest}")), secrets);
        let ask = |text: &str| {
            let ask = post(&format!("https://h.test/in?tok=word-of-the-handshake&q={text}"), headers, "");
            source.admit(Request { method: &Method::GET, ..ask.request() })
        };
        let Ok(Admission::Challenge(answer)) = ask("123") else { panic!("no answer") };
        let given = std::str::from_utf8(&answer.body).unwrap().to_owned();
        assert_eq!(given, hex::encode(sha256(b"123")));
        assert_eq!(code(&source, &post(URL, &[("x-s", &given)], "123")), Some(RefusalCode::Malformed), "{rest}");
        assert!(ask("%7B%7D").is_err(), "no code of what is no token");
        let of_an_event = hex::encode(sha256(b"{}"));
        assert_eq!(code(&source, &post(URL, &[("x-s", &of_an_event)], "{}")), None);
    }
    // One that is signed gives no code of what could be an event either: what it answers need not be signed.
    let signed = r#"challenge = [{ match = { "json:/type" = "ping" }, body = "{query:q|hmac-hex}" }]"#;
    let source = compile(&custom(&format!("{base}{signed}")), vec![text_secret()]);
    let ping = r#"{"type":"ping"}"#;
    let own = hex::encode(sha256(ping.as_bytes()));
    let ask = |text: &str| post(&format!("https://h.test/in?q={text}"), &[("x-s", &own)], ping);
    assert!(matches!(source.admit(ask("123").request()), Ok(Admission::Challenge(_))));
    assert!(matches!(source.admit(ask("%7B%7D").request()), Ok(Admission::Event(_))), "as if there were none");
    let code_of_123 = hex::encode(sha256(b"123"));
    assert_eq!(code(&source, &post(URL, &[("x-s", &code_of_123)], "123")), Some(RefusalCode::Malformed));
}

/// A form's signature covers a form: no other body stands in for it, and nothing that adds no byte to what is signed.
#[test]
fn a_signature_over_a_form_lets_no_other_body_in() {
    for scheme in ["mandrill", "plivo-v3", "twilio"] {
        let source = compile(&builtin(scheme), vec![text_secret()]);
        let body = b"mandrill_events=%5B%5D&a=1";
        let sent = signed(&source, "nonce-1", NOW, body).with(FORM.0, FORM.1.as_bytes());
        assert_eq!(code(&source, &sent), None, "{scheme}");
        for (body, kind) in
            [("{}", JSON.1), (std::str::from_utf8(body).unwrap(), JSON.1), ("mandrill_events=%5B%5D&a=1", "text/plain")]
        {
            let other = Post { body: body.into(), ..sent.clone() }.with(FORM.0, kind.as_bytes());
            assert_eq!(code(&source, &other), Some(RefusalCode::Malformed), "{scheme} {body} {kind}");
        }
        for more in ["&", "&=", "&&a=1", "&=&"] {
            let body = format!("mandrill_events=%5B%5D&a=1{more}");
            let other = Post { body: body.into(), ..sent.clone() };
            assert_eq!(code(&source, &other), Some(RefusalCode::Malformed), "{scheme} {more}");
        }
        // A signature over the URL alone.
        let bare = signed(&source, "nonce-1", NOW, b"");
        for (body, kind) in [("{}", JSON), ("x", ("content-type", "")), ("=", FORM), ("&", FORM)] {
            let other = Post { body: body.into(), ..bare.clone() }.with(kind.0, kind.1.as_bytes());
            let refused = code(&source, &other).unwrap();
            assert!([RefusalCode::Malformed, RefusalCode::MissingHeader].contains(&refused), "{scheme} {body}");
        }
    }
    let plivo = compile(&builtin("plivo-v3"), vec![text_secret()]);
    let get = signed(&plivo, "nonce-1", NOW, b"");
    let with_body = Post { body: "a=1".into(), ..get.clone() }.with(FORM.0, FORM.1.as_bytes());
    assert!(plivo.admit(Request { method: &Method::GET, ..get.request() }).is_ok());
    let refused = plivo.admit(Request { method: &Method::GET, ..with_body.request() }).unwrap_err();
    assert_eq!(refused.code, RefusalCode::Malformed);
    // What stands behind the URL was moved there.
    let mandrill = compile(&builtin("mandrill"), vec![text_secret()]);
    let url = "https://h.test/in?x=1mandrill_events[{}]";
    let moved = post(url, &[("x-mandrill-signature", &sha1(url)), FORM], "");
    assert_eq!(code(&mandrill, &moved), Some(RefusalCode::MissingHeader));
}

#[test]
fn a_nonce_takes_nothing_of_what_stands_in_front_of_it() {
    let plivo = compile(&builtin("plivo-v3"), vec![text_secret()]);
    // The provider signed the form `a=1.b` with the nonce `n`.
    let signature = STANDARD.encode(sha256(b"https://h.test/in?a1.b.n"));
    let headers = |nonce| [("x-plivo-signature-v3", signature.as_str()), ("x-plivo-signature-v3-nonce", nonce), FORM];
    assert_eq!(code(&plivo, &post("https://h.test/in", &headers("n"), "a=1.b")), None);
    assert_eq!(code(&plivo, &post("https://h.test/in", &headers("b.n"), "a=1")), Some(RefusalCode::Malformed));
}

#[test]
fn a_hash_in_the_url_is_the_providers_where_it_stands_last() {
    let twilio = compile(&builtin("twilio"), vec![text_secret()]);
    let (forged, kind) = (r#"{"forged":true}"#, "x-twilio-signature");
    let hash = hex::encode(sha2::Sha256::digest(forged));
    // The provider signed a form whose text holds the parameter, behind the URL `…?k=1`.
    let moved = format!("https://h.test/in?k=1AccountSidAC1Body&bodySHA256={hash}&z=From+1555");
    let form = format!("AccountSid=AC1&Body=%26bodySHA256%3D{hash}%26z%3D&From=%2B1555");
    let headers = |url: &str, content_type| Post::new(&[(kind, &sha1(url)), content_type], b"").headers;
    let real = Post { headers: headers(&moved, FORM), ..post("https://h.test/in?k=1", &[], &form) };
    assert_eq!(code(&twilio, &real), None);
    for (url, content_type, body, expected) in [
        (moved.clone(), JSON, forged, Some(RefusalCode::Malformed)),
        (moved, JSON, "", Some(RefusalCode::Malformed)),
        (format!("https://h.test/in?k=1&bodySHA256={hash}"), JSON, forged, None),
        (format!("https://h.test/in?k=1&bodySHA256={hash}"), JSON, "", Some(RefusalCode::SignatureMismatch)),
        (format!("https://h.test/in?k=1&bodySHA256={hash}"), FORM, "", Some(RefusalCode::SignatureMismatch)),
        (format!("https://h.test/in?k=1&bodySHA256={hash}"), FORM, "=", Some(RefusalCode::Malformed)),
        (format!("https://h.test/in?bodySHA256={hash}&bodySHA256={hash}"), JSON, forged, Some(RefusalCode::Malformed)),
        (format!("https://h.test/in?bodySHA25%36=x&bodySHA256={hash}"), JSON, forged, Some(RefusalCode::Malformed)),
        (format!("https://h.test/in?bodySHA25%36={hash}"), JSON, forged, Some(RefusalCode::Malformed)),
    ] {
        let sent = Post { headers: headers(&url, content_type), ..post(&url, &[], body) };
        assert_eq!(code(&twilio, &sent), expected, "{url} {body}");
    }
}

/// What v1 covers cannot be sent as v0, and text does not wander between headers and body.
#[test]
fn hook0_is_not_talked_down() {
    let params = std::collections::BTreeMap::from([("require_v1".to_owned(), true.into())]);
    let lax = compile(&builtin("hook0"), vec![text_secret()]);
    let strict = compile(&SourceSpec { params, ..builtin("hook0") }, vec![text_secret()]);
    assert!(strict.warnings().is_empty() && lax.warnings()[0].starts_with("params.require_v1"));
    let time = NOW.as_seconds();
    let sent = |signature: &str, headers: &[(&str, &str)], body: &str| {
        Post::new(headers, body.as_bytes()).with("x-hook0-signature", signature.as_bytes())
    };
    let made = |signed: &str| hex::encode(sha256(format!("{time}.{signed}").as_bytes()));
    let event = [("x-event-id", "evt-1"), ("x-event-type", "shop.order.made")];
    let v1 = made("x-event-id x-event-type.evt-1.shop.order.made.{}");
    let v0 = made("{}");
    let both = format!("t={time},h=x-event-id x-event-type,v0={v0},v1={v1}");
    assert_eq!((code(&strict, &sent(&both, &event, "{}")), code(&lax, &sent(&both, &event, "{}"))), (None, None));
    let other = [("x-event-id", "evt-2"), ("x-event-type", "shop.order.paid")];
    assert_eq!(code(&lax, &sent(&both, &other, "{}")), Some(RefusalCode::SignatureMismatch));
    let talked_down = sent(&format!("t={time},v0={v0}"), &other, "{}");
    assert_eq!(code(&strict, &talked_down), Some(RefusalCode::InsufficientCoverage));
    assert_eq!(code(&lax, &talked_down), None, "that is what the warning says");
    let as_v0 = sent(&format!("t={time},v0={v1}"), &[], "x-event-id x-event-type.evt-1.shop.order.made.{}");
    assert_eq!(code(&lax, &as_v0), Some(RefusalCode::Malformed));
    // The same signature, with the borders elsewhere.
    let listed = |list: &str, headers: &[(&str, &str)], body: &str, signed: &str| {
        let header = format!("t={time},h={list},v1={}", made(signed));
        code(&strict, &sent(&header, headers, body))
    };
    let refused = Some(RefusalCode::Malformed);
    assert_eq!(listed("x-event-id", &[("x-event-id", "a")], r#"{"n":1.5}"#, r#"x-event-id.a.{"n":1.5}"#), None);
    let into_header = listed("x-event-id", &[("x-event-id", r#"a.{"n":1"#)], "5}", r#"x-event-id.a.{"n":1.5}"#);
    assert_eq!(into_header, refused);
    let moved = [("x-event-id", "evt-1.shop"), ("x-event-type", "order.made.{}")];
    let all = "x-event-id x-event-type.evt-1.shop.order.made.{}.x";
    assert_eq!(listed("x-event-id x-event-type", &event, "{}.x", all), None);
    assert_eq!(listed("x-event-id x-event-type", &moved, "x", all), refused);
    for kind in ["order.made", "made", "a.b.c.d"] {
        let all = format!("x-event-type.{kind}.{{}}");
        assert_eq!(listed("x-event-type", &[("x-event-type", kind)], "{}", &all), refused, "{kind}");
    }
    assert_eq!(listed("x-a.b", &[("x-a.b", "c")], "{}", "x-a.b.c.{}"), refused);
}

#[test]
fn fields_of_a_body_do_not_run_into_each_other() {
    let adyen = compile(&builtin("adyen-item"), vec![Secret::new(hex::encode(KEY))]);
    let item = |psp: &str, original: &str, account: &str, reference: &str, kind: &str| {
        let signature = STANDARD.encode(sha256(b"P:O:A:r:1:EUR:9:EUR:AUTHORISATION:true"));
        let body = serde_json::json!({ "notificationItems": [{ "NotificationRequestItem": {
            "pspReference": psp, "originalReference": original, "merchantAccountCode": account,
            "merchantReference": reference, "amount": { "value": 9, "currency": "EUR" }, "eventCode": kind,
            "success": "true", "additionalData": { "hmacSignature": signature },
        } }] });
        code(&adyen, &Post::new(&[], body.to_string().as_bytes()))
    };
    assert_eq!(item("P", "O", "A", "r:1:EUR", "AUTHORISATION"), None);
    assert_eq!(item("P:O", "A", "r", "1:EUR", "AUTHORISATION"), Some(RefusalCode::Malformed));
    assert_eq!(item("P", "O", "A:r", "1:EUR", "AUTHORISATION"), Some(RefusalCode::Malformed));

    let dropbox = compile(&builtin("dropbox-sign"), vec![text_secret()]);
    let part = |time: &str, kind: &str| {
        let hash = hex::encode(sha256(b"1700000000sent"));
        let json = serde_json::json!({ "event": { "event_time": time, "event_type": kind, "event_hash": hash } });
        let body = format!("--x\r\nContent-Disposition: form-data; name=\"json\"\r\n\r\n{json}\r\n--x--\r\n");
        code(&dropbox, &Post::new(&[("content-type", "multipart/form-data; boundary=x")], body.as_bytes()))
    };
    assert_eq!(part("1700000000", "sent"), None);
    assert_eq!(part("170000000", "0sent"), Some(RefusalCode::Malformed));
}

/// The signed ones are there, and nothing beside them.
#[test]
fn a_form_that_is_signed_in_part_has_no_more() {
    let params = std::collections::BTreeMap::from([("public_key".to_owned(), "our_key".into())]);
    let braintree = compile(&SourceSpec { params, ..builtin("braintree") }, vec![text_secret()]);
    let key = sha1::Sha1::digest(KEY);
    let mac = hmac::Hmac::<sha1::Sha1>::new_from_slice(&key).unwrap().chain_update("PGE+PC9hPg==");
    let body =
        format!("bt_signature=our_key%7C{}&bt_payload=PGE%2BPC9hPg%3D%3D", hex::encode(mac.finalize().into_bytes()));
    assert_eq!(code(&braintree, &Post::new(&[FORM], body.as_bytes())), None);
    let more = format!("{body}&more=x");
    assert_eq!(code(&braintree, &Post::new(&[FORM], more.as_bytes())), Some(RefusalCode::Malformed));
}

/// A time that is signed right before the body, or right behind it, ends where RFC 3339 says.
#[test]
fn a_time_takes_nothing_of_the_body() {
    let zendesk = compile(&builtin("zendesk"), vec![text_secret()]);
    let time = NOW.to_rfc3339();
    let signature = STANDARD.encode(sha256(format!("{time}[urgent]{{}}").as_bytes()));
    let sent = |time: &str, body: &str| {
        let headers =
            [("x-zendesk-webhook-signature", signature.as_str()), ("x-zendesk-webhook-signature-timestamp", time)];
        code(&zendesk, &Post::new(&headers, body.as_bytes()))
    };
    assert_eq!(sent(&time, "[urgent]{}"), None);
    assert_eq!(sent(&format!("{time}[urgent]"), "{}"), Some(RefusalCode::Malformed));
}

/// Who sends without a secret has no text of his written into answers and lists of what was refused.
#[test]
fn refusals_name_places_and_not_what_the_request_calls_them() {
    let marked = "x-marked";
    let hook0 = compile(&builtin("hook0"), vec![text_secret()]);
    let contentful = compile(&builtin("contentful"), vec![text_secret()]);
    let params = serde_json::json!({ "alg": "hmac-sha256", "keyid": "k", "required_components": [] });
    let params = params.as_object().unwrap().clone().into_iter().collect();
    let spec = SourceSpec { params, ..builtin("rfc9421") };
    let signatures = compile(&spec, vec![Secret::new(STANDARD.encode([7; 32]))]);
    let time = NOW.as_seconds();
    let v1 = format!("t={time},h=a {marked},v1={}", "0".repeat(64));
    let listed = format!("x-contentful-signed-headers,x-contentful-timestamp,{marked}");
    let input = |component: &str| format!("s=({component});created={time};keyid=\"k\"");
    let components = [
        format!("\"{marked}\""),
        format!("\"{marked}\";sf"),
        format!("\"x-there\";key=\"{marked}\""),
        format!("\"@query-param\";name=\"{marked}\""),
    ];
    let mut all = vec![
        (&hook0, vec![("x-hook0-signature", v1.as_str()), ("a", "1")]),
        (
            &contentful,
            vec![
                ("x-contentful-signature", "00"),
                ("x-contentful-signed-headers", &listed),
                ("x-contentful-timestamp", "1700000000000"),
            ],
        ),
    ];
    let inputs: Vec<String> = components.iter().map(|component| input(component)).collect();
    for input in &inputs {
        all.push((&signatures, vec![("signature", "s=:AA==:"), ("signature-input", input), ("x-there", "a=1")]));
    }
    for (source, headers) in all {
        let post = Post::new(&headers, b"{}");
        let refused = told(source, &post).unwrap_err();
        assert_eq!(refused.code, RefusalCode::MissingHeader, "{refused}");
        assert!(!refused.detail.contains("marked"), "{refused}");
        assert!(!source.explain(post.request()).iter().any(|step| step.detail.contains("marked")));
    }
}
