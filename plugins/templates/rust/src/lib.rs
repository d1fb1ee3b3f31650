wit_bindgen::generate!({ path: "wit", world: "plugin" });

use exports::hookgate::plugin::{classifier, transformer};
use hookgate::plugin::log::{Level, log};
use hookgate::plugin::types::{
    Attempt, Endpoint, Event, Fault, Field, Method, Outcome, Reason, Receipt, Request, Response, RetryHint, Scope,
    Transformed, Verdict,
};
use serde_json::Value;

/// Makes short calls cheaper; it frees nothing, since the whole instance goes after a call.
#[cfg(target_arch = "wasm32")]
#[global_allocator]
static ARENA: arena::Arena = arena::Arena::new();

struct Plugin;

impl transformer::Guest for Plugin {
    /// Every event goes to a path of its own, as it came.
    fn transform(event: Event, _: Endpoint, _: Attempt) -> Result<Transformed, Fault> {
        if event.event_type.starts_with("internal.") {
            return Ok(Transformed::Skip(reason("internal")));
        }
        Ok(Transformed::Send(Request {
            method: Method::Post,
            path_and_query: Some(format!("/events/{}", encoded(&event.event_type))),
            headers: vec![Field { name: "content-type".into(), value: event.content_type }],
            body: event.payload,
            options: Vec::new(),
        }))
    }
}

impl classifier::Guest for Plugin {
    /// A 2xx is a failure when its body says so.
    fn classify(_: Endpoint, _: Attempt, outcome: Outcome) -> Result<Verdict, Fault> {
        let Outcome::Response(Response { status, body, .. }) = outcome else {
            return Ok(later("no_answer"));
        };
        let said: Value = serde_json::from_slice(&body).unwrap_or_default();
        Ok(match (status, said["error"].as_str()) {
            (200..=299, Some(error)) => {
                log(Level::Warn, &format!("the receiver says {error}"));
                Verdict::Terminal(reason("refused"))
            }
            (200..=299, None) => {
                let reference = said["id"].as_str().map(Into::into);
                Verdict::Delivered(Receipt { reference, reason: None })
            }
            (408 | 425 | 429 | 500..=599, _) => later("try_later"),
            _ => Verdict::Terminal(reason("http_error")),
        })
    }
}

fn later(code: &str) -> Verdict {
    Verdict::Retryable(RetryHint { after_ms: None, scope: Scope::Delivery, reason: reason(code) })
}

fn reason(code: &str) -> Reason {
    Reason { code: code.into(), message: None }
}

/// A path's segment: what is not plain is percent-encoded.
fn encoded(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~');
    text.bytes().map(|b| if plain(b) { (b as char).to_string() } else { format!("%{b:02X}") }).collect()
}

export!(Plugin);
