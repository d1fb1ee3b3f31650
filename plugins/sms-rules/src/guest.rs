//! Between the package of `wit/` and the rules.

use crate::rules::{self, Answer, Message, Sent};

#[global_allocator]
static ARENA: arena::Arena = arena::Arena::new();

wit_bindgen::generate!({ path: "../../wit", world: "plugin" });

use exports::hookgate::plugin::{classifier, transformer};
use hookgate::plugin::types::{
    Attempt, Endpoint, Event, Fault, Field, Method, Outcome, Reason, Receipt, Request, Response, RetryHint, Scope,
    Transformed, TransportKind, Verdict,
};

struct Plugin;

impl transformer::Guest for Plugin {
    fn transform(event: Event, endpoint: Endpoint, attempt: Attempt) -> Result<Transformed, Fault> {
        match rules::message(&event.payload, &endpoint.config, &attempt.idempotency_key) {
            Ok(Message::Send { path, body }) => Ok(Transformed::Send(Request {
                method: Method::Post,
                path_and_query: path,
                headers: vec![Field { name: "content-type".into(), value: "application/json".into() }],
                body,
                options: Vec::new(),
            })),
            Ok(Message::Skip(code)) => Ok(Transformed::Skip(reason(code.into(), None))),
            Err(error) => Err(Fault { code: error.code.into(), message: error.message }),
        }
    }
}

impl classifier::Guest for Plugin {
    fn classify(_: Endpoint, _: Attempt, outcome: Outcome) -> Result<Verdict, Fault> {
        let sent = match outcome {
            Outcome::Response(Response { status, headers, body, .. }) => {
                let retry_after = headers.iter().find(|h| h.name == "retry-after").map(|h| h.value.as_str());
                rules::judge(&Answer { status, retry_after, body: &body })
            }
            Outcome::TransportFailure(failure) => rules::unanswered(word(failure.kind)),
        };
        Ok(match sent {
            Sent::Delivered { reference } => Verdict::Delivered(Receipt { reference, reason: None }),
            Sent::Later { code, after_ms, everyone } => Verdict::Retryable(RetryHint {
                after_ms,
                scope: if everyone { Scope::Endpoint } else { Scope::Delivery },
                reason: reason(code, None),
            }),
            Sent::Never { code, message } => Verdict::Terminal(reason(code, message)),
        })
    }
}

fn reason(code: String, message: Option<String>) -> Reason {
    Reason { code, message }
}

fn word(kind: TransportKind) -> &'static str {
    match kind {
        TransportKind::Dns => "dns",
        TransportKind::Connect => "connect",
        TransportKind::Tls => "tls",
        TransportKind::Timeout => "timeout",
        TransportKind::Reset => "reset",
        TransportKind::Protocol => "protocol",
        TransportKind::Blocked => "blocked",
        TransportKind::Other => "other",
    }
}

export!(Plugin);
