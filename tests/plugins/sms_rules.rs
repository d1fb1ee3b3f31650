//! The plugin that the demo uses, as it is committed; or a fresh build of it, named by the environment.

use super::*;
use hookgate::delivery::{FaultKind, PauseScope, RetryHint};
use tokio::sync::OnceCell;

/// Compiled once for all tests here: an unoptimised compiler takes seconds for it.
async fn plugin() -> &'static Plugin {
    static PLUGIN: OnceCell<Plugin> = OnceCell::const_new();
    let load = async || {
        let wasm = match std::env::var_os("HOOKGATE_TEST_SMS_RULES") {
            Some(path) => std::fs::read(path).unwrap(),
            None => include_bytes!("../../plugins/sms-rules.wasm").to_vec(),
        };
        let mut settings = settings();
        settings.limits.call_time_max = Duration::from_secs(1);
        load(&Host::new(settings).unwrap(), &wasm).await
    };
    PLUGIN.get_or_init(load).await
}

fn retry(reason: &'static str, after: Option<Duration>, scope: PauseScope) -> Verdict {
    Verdict::Retryable(RetryHint { reason: Reason::word(reason), after, scope })
}

#[tokio::test]
async fn the_provider_is_understood() {
    let plugin = plugin().await;
    assert!(plugin.exports().transform && plugin.exports().classify && plugin.size() <= 150_000);
    let delivered = |reference: &str| Verdict::Delivered { reference: Some(reference.into()), reason: None };
    let terminal = |word: &'static str| Verdict::Terminal(Reason::word(word));
    let later = |word, ms| retry(word, Some(Duration::from_millis(ms)), PauseScope::Endpoint);
    let cases = [
        (200, r#"{"status":"queued","message_id":"SM123"}"#, delivered("SM123")),
        (200, r#"{"error":"suspended"}"#, terminal("suspended")),
        (200, r#"{"error":"rate_limited","retry_after_ms":1500}"#, later("rate_limited", 1500)),
        (200, "<html>", terminal("unknown_answer")),
        (503, "", retry("http_503", None, PauseScope::Delivery)),
        (400, "", terminal("http_400")),
    ];
    for (status, body, verdict) in cases {
        assert_eq!(answer(plugin, status, &[], body).await.result, Ok(verdict), "{status} {body}");
    }
    let throttled = answer(plugin, 429, &[("retry-after", "30")], "").await.result;
    assert_eq!(throttled, Ok(later("http_429", 30_000)));
    for kind in TransportKind::ALL {
        let verdict = silence(plugin, kind).await.result.unwrap();
        let Verdict::Retryable(hint) = verdict else { panic!("{verdict:?}") };
        assert_eq!(hint.reason.as_str(), format!("transport_{}", kind.as_str()));
    }
    let refused = answer(plugin, 200, &[], r#"{"error":"bad number"}"#).await;
    assert_eq!(refused.log[0].message, "provider_error: bad number");
}

#[tokio::test]
async fn the_provider_gets_its_own_form() {
    let plugin = plugin().await;
    let config = r#"{"path":"/v1/messages","from":"Acme"}"#;
    let sent = transform(plugin, config, r#"{"to":"+4930","body":"Hi"}"#).await.result.unwrap();
    let Transformed::Send { method, path_and_query, headers, body } = sent else { panic!("{sent:?}") };
    assert_eq!((method, path_and_query.as_deref()), (http::Method::POST, Some("/v1/messages")));
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(&body[..], br#"{"to":"+4930","from":"Acme","text":"Hi","reference":"key-1"}"#);
    let skipped = transform(plugin, "{}", r#"{"to":"a","body":"b","channel":"email"}"#).await.result;
    assert_eq!(skipped, Ok(Transformed::Skip(Reason::word("not_sms"))));
    let fault = transform(plugin, r#"{"pth":"/x"}"#, "{}").await.result.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Plugin);
    assert!(fault.detail.starts_with("config: "), "{}", fault.detail);
}

/// The largest event that the defaults let in goes through within the default limits.
#[tokio::test]
async fn large_events_pass() {
    let plugin = plugin().await;
    let text = "\\n".repeat((256 << 9) - 20);
    let payload = format!(r#"{{"to":"+4930","body":"{text}"}}"#);
    assert!(payload.len() <= 256 << 10 && payload.len() > 255 << 10);
    let sent = transform(plugin, "{}", payload).await.result.unwrap();
    let Transformed::Send { body, .. } = sent else { panic!("{sent:?}") };
    assert!(body.len() > 255 << 10);
}
