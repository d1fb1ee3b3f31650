//! What a guest gives back: passed on when it is clean, a fault when it is not.

use super::*;
use guests::Request;
use hookgate::delivery::{FaultKind, PauseScope, RetryHint};
use http::Method;

#[tokio::test]
async fn verdicts_arrive_as_they_were_given() {
    let hint = |after, scope| Verdict::Retryable(RetryHint { reason: Reason::word("busy"), after, scope });
    let cases = [
        (Says::Delivered { reference: None }, Verdict::Delivered { reference: None, reason: None }),
        (
            Says::Delivered { reference: Some("SM-1") },
            Verdict::Delivered { reference: Some("SM-1".into()), reason: None },
        ),
        (Says::Retryable { code: "busy", after_ms: None, whole_endpoint: false }, hint(None, PauseScope::Delivery)),
        (
            Says::Retryable { code: "busy", after_ms: Some(u32::MAX), whole_endpoint: true },
            hint(Some(Duration::from_millis(u64::from(u32::MAX))), PauseScope::Endpoint),
        ),
        (Says::Terminal { code: "gone.for_good-1", message: None }, Verdict::Terminal(Reason::word("gone.for_good-1"))),
    ];
    let host = host();
    for (says, verdict) in cases {
        let plugin = load(&host, &guests::classify_says(&says)).await;
        let call = answer(&plugin, 500, &[("x-a", "1")], "body").await;
        assert_eq!(call.result, Ok(verdict), "{says:?}");
        assert!(call.log.is_empty() && call.took > Duration::ZERO);
        assert!(silence(&plugin, TransportKind::Timeout).await.result.is_ok());
    }
}

#[tokio::test]
async fn messages_go_to_the_log_and_a_guests_own_fault_has_its_kind() {
    let host = host();
    let says = Says::Terminal { code: "suspended", message: Some("the account\nis closed") };
    let plugin = load(&host, &guests::classify_says(&says)).await;
    let call = answer(&plugin, 200, &[], "").await;
    assert_eq!(call.log[0].message, "suspended: the account\\nis closed");
    let plugin = load(&host, &guests::classify_says(&Says::Fault { code: "config", message: "no key\u{7}" })).await;
    let fault = fault(&plugin).await;
    assert_eq!((fault.kind, fault.detail.as_str()), (FaultKind::Plugin, "config: no key\\u{7}"));
    assert_eq!(plugin.consecutive_faults(), 1);
    let long = "m".repeat(5000);
    let plugin = load(&host, &guests::classify_says(&Says::Fault { code: "c", message: &long })).await;
    assert_eq!(super::fault(&plugin).await.detail.len(), 1024);
}

#[tokio::test]
async fn bad_words_and_references_are_faults() {
    let long = "r".repeat(513);
    let cases = [
        Says::Terminal { code: "", message: None },
        Says::Terminal { code: "Not A Word", message: None },
        Says::Retryable { code: "nö", after_ms: None, whole_endpoint: false },
        Says::Delivered { reference: Some(&long) },
        Says::Delivered { reference: Some("a\u{1b}[2Jb") },
    ];
    let host = host();
    for says in cases {
        let plugin = load(&host, &guests::classify_says(&says)).await;
        let fault = fault(&plugin).await;
        assert_eq!(fault.kind, FaultKind::BadOutput, "{says:?}: {}", fault.detail);
    }
    let plugin = load(&host, &guests::transform_skips("Not A Word")).await;
    assert_eq!(fault(&plugin).await.kind, FaultKind::BadOutput);
    still_serves(&host).await;
}

#[tokio::test]
async fn a_clean_request_arrives_whole() {
    let request = Request {
        path_and_query: Some("/v1/messages?x=%2F"),
        headers: &[("content-type", "application/json"), ("Authorization", "Basic abc"), ("x-a", "1"), ("x-a", "2")],
        body: "{\"to\":\"+49\"}",
        options: &[("fancy", "yes")],
    };
    let host = host();
    let plugin = load(&host, &guests::transform_sends(&request)).await;
    let call = transform(&plugin, "{}", "{}").await;
    let Transformed::Send { method, path_and_query, headers, body } = call.result.unwrap() else { panic!() };
    assert_eq!((method, path_and_query.as_deref()), (Method::POST, Some("/v1/messages?x=%2F")));
    assert_eq!((&body[..], headers.len()), (&b"{\"to\":\"+49\"}"[..], 4));
    assert_eq!(headers["authorization"], "Basic abc");
    assert!(call.log[0].message.contains("fancy"), "an option that is not known is told of");
    let plugin = load(&host, &guests::transform_skips("test_mode")).await;
    let skipped = transform(&plugin, "{}", "{}").await.result;
    assert_eq!(skipped, Ok(Transformed::Skip(Reason::word("test_mode"))));
}

#[tokio::test]
async fn a_request_that_is_not_clean_is_a_fault() {
    let many = [("x", "1"); 65];
    let wide = "v".repeat(9000);
    let long = format!("/{}", "a".repeat(2048));
    let bad_headers: [&[(&str, &str)]; 9] = [
        &[("Host", "evil.example")],
        &[("content-length", "0")],
        &[("x-a", "1"), ("Transfer-Encoding", "chunked")],
        &[("webhook-signature", "v1,x")],
        &[("hookgate-attempt", "1")],
        &[("idempotency-key", "k")],
        &[("user-agent", "x")],
        &[("x-a", "1\r\nhost: evil.example")],
        &[("x-operators-key", "k")],
    ];
    let bad_paths =
        ["https://evil.example/", "//evil.example/", "a", "", "/a/../b", "/%2e%2E/b", "/a\\b", "/a#b", &long];
    let headers = bad_headers.map(|headers| (Request { headers, ..Default::default() }, FaultKind::BadOutput));
    let paths =
        bad_paths.map(|path| (Request { path_and_query: Some(path), ..Default::default() }, FaultKind::BadOutput));
    let large = [
        (Request { headers: &many, ..Default::default() }, FaultKind::OutputTooLarge),
        (Request { headers: &[("x", &wide)], ..Default::default() }, FaultKind::OutputTooLarge),
    ];
    let mut settings = settings();
    settings.extra_owned = vec![HeaderName::from_static("x-operators-key")];
    let host = Host::new(settings).unwrap();
    for (request, kind) in headers.into_iter().chain(paths).chain(large) {
        let plugin = load(&host, &guests::transform_sends(&request)).await;
        let fault = fault(&plugin).await;
        assert_eq!(fault.kind, kind, "{request:?}: {}", fault.detail);
    }
    still_serves(&host).await;
}

#[tokio::test]
async fn output_is_bounded_by_the_setting() {
    let body = |bytes: u32| {
        let code = format!(
            "(i32.store (i32.const 48) (i32.const 65536)) (i32.store (i32.const 52) (i32.const {bytes})) i32.const 16"
        );
        guests::transform_with("", &code)
    };
    let mut settings = settings();
    settings.limits.output_bytes_max = 10_000;
    let host = Host::new(settings).unwrap();
    let plugin = load(&host, &body(9_000)).await;
    let Ok(Transformed::Send { body: sent, .. }) = transform(&plugin, "{}", "{}").await.result else { panic!() };
    assert_eq!(sent.len(), 9_000);
    let plugin = load(&host, &body(10_001)).await;
    assert_eq!(fault(&plugin).await.kind, FaultKind::OutputTooLarge);
}

#[tokio::test]
async fn an_event_over_the_input_limit_is_not_given() {
    let mut settings = settings();
    settings.limits.input_bytes_max = 1000;
    let host = Host::new(settings).unwrap();
    let plugin = load(&host, &guests::transform_sends(&Request { body: "x", ..Default::default() })).await;
    assert!(transform(&plugin, "{}", vec![b'x'; 1000]).await.result.is_ok());
    let fault = transform(&plugin, "{}", vec![b'x'; 1001]).await.result.unwrap_err();
    assert_eq!(fault.kind, FaultKind::InputTooLarge);
    assert!(fault.detail.contains("1001") && fault.detail.contains("1000"), "{}", fault.detail);
    assert_eq!(plugin.consecutive_faults(), 0);
}

/// The guest answers with the body it was given as its reference, and with the word for a cut one.
#[tokio::test]
async fn the_response_body_is_cut_at_the_setting() {
    // Of the arguments: the body's pointer is at 88, its length at 92, the flag at 96.
    let echo = "(i32.store8 (i32.const 24) (i32.const 1))
        (i32.store (i32.const 28) (i32.load offset=88 (local.get 0)))
        (i32.store (i32.const 32) (i32.load offset=92 (local.get 0)))
        (if (i32.load8_u offset=96 (local.get 0))
          (then (i32.store8 (i32.const 36) (i32.const 1))
            (i32.store (i32.const 40) (i32.const 60000)) (i32.store (i32.const 44) (i32.const 3))))
        i32.const 16";
    let mut settings = settings();
    settings.limits.response_bytes_max = 8;
    let host = Host::new(settings).unwrap();
    let plugin = load(&host, &guests::classify_with("(data (i32.const 60000) \"cut\")", echo)).await;
    for (body, shown, cut) in [("12345678", "12345678", None), ("123456789", "12345678", Some(Reason::word("cut")))] {
        let verdict = answer(&plugin, 200, &[], body).await.result;
        assert_eq!(verdict, Ok(Verdict::Delivered { reference: Some(shown.into()), reason: cut }));
    }
}
