//! The plugin host against guests that loop, hoard, trap and lie, and against a real one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "plugins/compiling.rs"]
mod compiling;
#[path = "support/guests.rs"]
mod guests;
#[path = "plugins/hostile.rs"]
mod hostile;
#[path = "plugins/limits.rs"]
mod limits;
#[path = "plugins/load.rs"]
mod load;
#[path = "plugins/output.rs"]
mod output;
#[path = "plugins/sms_rules.rs"]
mod sms_rules;

use bytes::Bytes;
use guests::Says;
use hookgate::clock::Timestamp;
use hookgate::delivery::{Fault, Name, Reason, TransportKind, Verdict};
use hookgate::plugin::{
    AttemptView, Call, Compiler, EndpointView, EventView, Host, OutcomeView, Plugin, Rejected, Rules, Settings,
    Transformed,
};
use hookgate::secret::Secret;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::sync::Arc;
use std::time::Duration;

fn tenant() -> Name {
    "acme".parse().unwrap()
}

fn settings() -> Settings {
    let mut settings = Settings::new(Compiler::InProcess, Secret::new([7; 32]));
    settings.calls_max = 8;
    settings.calls_per_tenant_max = 4;
    settings
}

fn host() -> Arc<Host> {
    Host::new(settings()).unwrap()
}

/// This build's own compiling process.
fn child() -> Compiler {
    let args = vec![hookgate::plugin::compile::SUBCOMMAND.to_owned()];
    Compiler::Child { program: env!("CARGO_BIN_EXE_hookgate").into(), args }
}

async fn load(host: &Arc<Host>, wasm: &[u8]) -> Plugin {
    host.load(&tenant(), wasm.to_vec().into()).await.unwrap()
}

async fn rejection(host: &Arc<Host>, wasm: &[u8]) -> Rejected {
    host.load(&tenant(), wasm.to_vec().into()).await.map(|p| p.digest()).unwrap_err()
}

fn to(config: &str) -> EndpointView<'_> {
    EndpointView { id: "sms", url: "https://sms.example/v1", config }
}

fn attempt() -> AttemptView<'static> {
    AttemptView {
        event_id: "evt_1",
        event_type: "message.created",
        number: 2,
        max_attempts: 9,
        idempotency_key: "key-1",
        now: Timestamp::from_millis(1_700_000_000_000),
        attributes: &[],
    }
}

async fn answer(plugin: &Plugin, status: u16, headers: &[(&str, &str)], body: &str) -> Call<Verdict> {
    let pair =
        |(name, value): &(&str, &str)| (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap());
    let headers: HeaderMap = headers.iter().map(pair).collect();
    let body = Bytes::from(body.to_owned());
    let elapsed = Duration::from_millis(12);
    let outcome = OutcomeView::Response { status, headers: &headers, body: &body, body_truncated: false, elapsed };
    plugin.classify(to("{}"), attempt(), outcome).await
}

async fn silence(plugin: &Plugin, kind: TransportKind) -> Call<Verdict> {
    let elapsed = Duration::from_secs(15);
    let outcome = OutcomeView::Failed { kind, may_have_been_received: true, detail: "no answer", elapsed };
    plugin.classify(to("{}"), attempt(), outcome).await
}

async fn transform(plugin: &Plugin, config: &str, payload: impl Into<Bytes>) -> Call<Transformed> {
    let payload = payload.into();
    let event = EventView {
        id: "evt_1",
        event_type: "message.created",
        accepted_at: Timestamp::from_millis(1_700_000_000_000),
        content_type: "application/json",
        attributes: &[],
        payload: &payload,
    };
    plugin.transform(event, to(config), attempt()).await
}

async fn fault(plugin: &Plugin) -> Fault {
    if plugin.exports().classify {
        answer(plugin, 200, &[], "{}").await.result.unwrap_err()
    } else {
        transform(plugin, "{}", "{}").await.result.unwrap_err()
    }
}

/// After whatever happened, a good plugin is loaded and answers.
async fn still_serves(host: &Arc<Host>) {
    let plugin = load(host, &guests::classify_says(&Says::Terminal { code: "fine", message: None })).await;
    assert_eq!(answer(&plugin, 200, &[], "").await.result, Ok(Verdict::Terminal(Reason::word("fine"))));
}
