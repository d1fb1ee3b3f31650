//! What the provider wants to be sent, and what its answers mean.
//!
//! The provider answers 200 to almost everything and tells in the body what happened: `{"status":"queued",
//! "message_id":"SM1"}`, `{"error":"suspended"}`, `{"error":"rate_limited","retry_after_ms":1500}`. By its status
//! alone a message to a closed account counts as delivered.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;

/// The settings of an endpoint: its `plugin_config`. Unknown ones are refused, so that a typing error shows.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config<'a> {
    /// Where messages are posted to; the endpoint's own path when absent.
    #[serde(borrow)]
    path: Option<Cow<'a, str>>,
    /// The sender that the provider shows.
    #[serde(borrow)]
    from: Option<Cow<'a, str>>,
}

/// The event: a message as our own systems write it.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow)]
    to: Cow<'a, str>,
    #[serde(borrow)]
    body: Cow<'a, str>,
    /// `sms` when absent. Messages for other channels are not this provider's.
    #[serde(borrow)]
    channel: Option<Cow<'a, str>>,
}

/// The message as the provider reads it.
#[derive(Serialize)]
struct Text<'a> {
    to: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<&'a str>,
    text: &'a str,
    /// The provider drops a second message with the same one.
    reference: &'a str,
}

#[derive(Debug, PartialEq)]
pub enum Message {
    Send { path: Option<String>, body: Vec<u8> },
    Skip(&'static str),
}

#[derive(Debug, PartialEq)]
pub struct Unfit {
    pub code: &'static str,
    pub message: String,
}

/// The request for an event. `key` names the message for the provider, the same in every attempt.
pub fn message(payload: &[u8], config: &str, key: &str) -> Result<Message, Unfit> {
    let unfit = |code, error: serde_json::Error| Unfit { code, message: error.to_string() };
    let config: Config<'_> = serde_json::from_str(config).map_err(|e| unfit("config", e))?;
    let event: Event<'_> = serde_json::from_slice(payload).map_err(|e| unfit("event", e))?;
    if event.channel.is_some_and(|channel| channel != "sms") {
        return Ok(Message::Skip("not_sms"));
    }
    let text = Text { to: &event.to, from: config.from.as_deref(), text: &event.body, reference: key };
    let body = serde_json::to_vec(&text).map_err(|e| unfit("event", e))?;
    Ok(Message::Send { path: config.path.map(Cow::into_owned), body })
}

pub struct Answer<'a> {
    pub status: u16,
    pub retry_after: Option<&'a str>,
    pub body: &'a [u8],
}

#[derive(Debug, PartialEq)]
pub enum Sent {
    Delivered {
        reference: Option<String>,
    },
    /// `everyone`: all messages to this provider wait, not this one alone.
    Later {
        code: String,
        after_ms: Option<u32>,
        everyone: bool,
    },
    Never {
        code: String,
        message: Option<String>,
    },
}

/// What the provider says in a body. Whatever else is in there is of no interest.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Said<'a> {
    #[serde(borrow)]
    status: Option<Cow<'a, str>>,
    #[serde(borrow)]
    error: Option<Cow<'a, str>>,
    message_id: Option<Value>,
    retry_after_ms: Option<u32>,
}

pub fn judge(answer: &Answer<'_>) -> Sent {
    // A body that is no JSON of the provider's says nothing: the status is left.
    let said: Said<'_> = serde_json::from_slice(answer.body).unwrap_or_default();
    match (said.error.as_deref(), said.status.as_deref(), answer.status) {
        (Some("suspended"), ..) => Sent::Never { code: "suspended".into(), message: None },
        (Some("rate_limited"), ..) => {
            Sent::Later { code: "rate_limited".into(), after_ms: said.retry_after_ms, everyone: true }
        }
        (_, _, status @ (408 | 425 | 500..=599)) => later(status, None),
        (_, _, 429) => later(429, answer.retry_after.and_then(seconds)),
        (Some(error), ..) => Sent::Never { code: "provider_error".into(), message: Some(error.into()) },
        (None, Some("queued"), 200..=299) => Sent::Delivered { reference: said.message_id.and_then(text) },
        (None, _, 200..=299) => {
            let message = "the answer tells neither of success nor of failure".into();
            Sent::Never { code: "unknown_answer".into(), message: Some(message) }
        }
        (None, _, status) => Sent::Never { code: format!("http_{status}"), message: None },
    }
}

/// No answer at all.
pub fn unanswered(kind: &str) -> Sent {
    Sent::Later { code: format!("transport_{kind}"), after_ms: None, everyone: false }
}

fn later(status: u16, after_ms: Option<u32>) -> Sent {
    Sent::Later { code: format!("http_{status}"), after_ms, everyone: after_ms.is_some() }
}

fn seconds(text: &str) -> Option<u32> {
    text.trim().parse::<u32>().ok().map(|s| s.saturating_mul(1000))
}

fn text(id: Value) -> Option<String> {
    match id {
        Value::String(text) => Some(text),
        Value::Number(number) => Some(number.to_string()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn never(code: &str, message: Option<&str>) -> Sent {
        Sent::Never { code: code.into(), message: message.map(Into::into) }
    }

    fn later(code: &str, after_ms: Option<u32>, everyone: bool) -> Sent {
        Sent::Later { code: code.into(), after_ms, everyone }
    }

    #[test]
    fn answers() {
        let delivered = |reference: Option<&str>| Sent::Delivered { reference: reference.map(Into::into) };
        let unknown = never("unknown_answer", Some("the answer tells neither of success nor of failure"));
        let cases = [
            (200, r#"{"status":"queued","message_id":"SM1"}"#, delivered(Some("SM1"))),
            (202, r#"{"status":"queued","message_id":17,"parts":2}"#, delivered(Some("17"))),
            (200, r#"{"status":"queued"}"#, delivered(None)),
            (200, r#"{"error":"suspended"}"#, never("suspended", None)),
            (403, r#"{"error":"suspended","status":"queued"}"#, never("suspended", None)),
            (200, r#"{"error":"rate_limited","retry_after_ms":1500}"#, later("rate_limited", Some(1500), true)),
            (429, r#"{"error":"rate_limited"}"#, later("rate_limited", None, true)),
            (200, r#"{"error":"bad number"}"#, never("provider_error", Some("bad number"))),
            (200, r#"{"error":"bad \"number\""}"#, never("provider_error", Some("bad \"number\""))),
            (200, "<html>", never("unknown_answer", Some("the answer tells neither of success nor of failure"))),
            (200, r#"{"status":5}"#, unknown),
            (503, "", later("http_503", None, false)),
            (500, r#"{"error":"boom"}"#, later("http_500", None, false)),
            (408, "", later("http_408", None, false)),
            (400, "", never("http_400", None)),
            (301, "", never("http_301", None)),
        ];
        for (status, body, sent) in cases {
            let answer = Answer { status, retry_after: None, body: body.as_bytes() };
            assert_eq!(judge(&answer), sent, "{status} {body}");
        }
        let throttled = |retry_after| judge(&Answer { status: 429, retry_after: Some(retry_after), body: b"" });
        assert_eq!(throttled("30"), later("http_429", Some(30_000), true));
        assert_eq!(throttled("soon"), later("http_429", None, false));
        assert_eq!(unanswered("timeout"), later("transport_timeout", None, false));
    }

    #[test]
    fn messages() {
        let sent = |path: Option<&str>, body: &str| Ok(Message::Send { path: path.map(Into::into), body: body.into() });
        let event = r#"{"to":"+4930","body":"Hi \"you\"\n","other":1}"#.as_bytes();
        let plain = r#"{"to":"+4930","text":"Hi \"you\"\n","reference":"k"}"#;
        assert_eq!(message(event, "{}", "k"), sent(None, plain));
        let config = r#"{"path":"/v1/messages","from":"Acme"}"#;
        let full = r#"{"to":"+4930","from":"Acme","text":"Hi \"you\"\n","reference":"k"}"#;
        assert_eq!(message(event, config, "k"), sent(Some("/v1/messages"), full));
        let mail = br#"{"to":"a@b.example","body":"x","channel":"email"}"#;
        assert_eq!(message(mail, "{}", "k"), Ok(Message::Skip("not_sms")));
        let code = |payload: &str, config: &str| message(payload.as_bytes(), config, "k").unwrap_err().code;
        assert_eq!(code("{}", "{}"), "event");
        assert_eq!(code("nonsense", "{}"), "event");
        assert_eq!(code("{}", r#"{"pth":"/x"}"#), "config");
        assert_eq!(code("{}", "5"), "config");
    }
}
