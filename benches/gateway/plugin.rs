//! What a plugin call costs: `classify` of the sample plugin in a fresh instance, through the gateway's plugin host, and
//! beside it the same call made on the same engine with nothing in between.

use crate::hostile;
use crate::latency::{Latencies, Spread};
use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use hookgate::clock::Timestamp;
use hookgate::delivery::{Name, Verdict};
use hookgate::plugin::{AttemptView, Compiler, EndpointView, Host, OutcomeView, Plugin, Rules as _, Settings};
use hookgate::secret::Secret;
use http::{HeaderMap, HeaderValue};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime;
use wasmtime::component::{Component, ComponentExportIndex, HasSelf, InstancePre, Linker};
use wasmtime::{Engine, Store, StoreLimits, StoreLimitsBuilder, UpdateDeadline};

#[allow(unreachable_pub, unused_qualifications, clippy::redundant_closure_for_method_calls)]
mod bindings {
    wasmtime::component::bindgen!({
        path: "wit",
        world: "plugin",
        exports: { default: async },
        ownership: Borrowing { duplicate_if_necessary: true },
    });
}

use bindings::PluginPre;
use bindings::hookgate::plugin::{log, types};

const TENANT: &str = "bench";
const URL: &str = "https://sms.example/messages";
const ANSWER: &[u8] = br#"{"status":"queued","message_id":"SM0123456789abcd"}"#;
const ID: &str = "evt_01890a5d8f5e7c3b9a4f2d1e6c7b8a90";
const ELAPSED: Duration = Duration::from_millis(12);

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Way {
    Direct,
    Host,
    /// A function without arguments that does nothing: the floor.
    EmptyDirect,
    /// A `classify` that does nothing.
    Empty,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Calls {
    pub(crate) plugin: PathBuf,
    pub(crate) way: Way,
    pub(crate) threads: u32,
    pub(crate) warm_up: Duration,
    pub(crate) span: Duration,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Called {
    /// Of all threads, in the span that was asked for.
    pub(crate) latency: Spread,
}

/// Runs in a process of its own.
pub(crate) fn run(calls: &Calls) -> Result<Called> {
    let wasm = std::fs::read(&calls.plugin).with_context(|| format!("read {}", calls.plugin.display()))?;
    let host = Host::new(Settings::new(Compiler::InProcess, Secret::new([7; 32])))?;
    match calls.way {
        Way::Direct => {
            let direct = Arc::new(Direct::new(host.engine(), &wasm).map_err(|e| told(&e))?);
            repeat(calls, || {
                let direct = Arc::clone(&direct);
                async move || direct.classify().await.map_err(|e| told(&e))
            })
        }
        Way::EmptyDirect => {
            let direct = Arc::new(Empty::new(host.engine()).map_err(|e| told(&e))?);
            repeat(calls, || {
                let direct = Arc::clone(&direct);
                async move || direct.call().await.map_err(|e| told(&e))
            })
        }
        Way::Host | Way::Empty => {
            let tenant: Name = TENANT.parse()?;
            let wasm = if matches!(calls.way, Way::Empty) { hostile::emptiest() } else { wasm };
            let plugin = Arc::new(runtime()?.block_on(host.load(&tenant, wasm.clone().into()))?);
            repeat(calls, || {
                let plugin = Arc::clone(&plugin);
                async move || hosted(&plugin).await
            })
        }
    }
}

/// The engine's errors are of a kind of their own.
fn told(error: &wasmtime::Error) -> anyhow::Error {
    anyhow::anyhow!("{error:#}")
}

fn runtime() -> Result<runtime::Runtime> {
    Ok(runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Each thread makes one call after the other.
fn repeat<C: AsyncFn() -> Result<()> + Send>(calls: &Calls, caller: impl Fn() -> C) -> Result<Called> {
    let start = Instant::now() + calls.warm_up;
    let each = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..calls.threads)
            .map(|_| {
                let call = caller();
                scope.spawn(move || runtime()?.block_on(one_after_the_other(call, start, calls.span)))
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Latencies>>| match thread.join() {
            Ok(latencies) => latencies,
            Err(_) => bail!("a thread of calls panicked"),
        };
        threads.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    let mut all = Latencies::new()?;
    for latencies in each {
        all.merge(&latencies)?;
    }
    Ok(Called { latency: all.spread() })
}

async fn one_after_the_other(call: impl AsyncFn() -> Result<()>, start: Instant, span: Duration) -> Result<Latencies> {
    let mut latencies = Latencies::new()?;
    loop {
        let from = Instant::now();
        if from >= start + span {
            return Ok(latencies);
        }
        call().await?;
        if from >= start {
            latencies.record_span(from.elapsed());
        }
    }
}

async fn hosted(plugin: &Plugin) -> Result<()> {
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    let body = Bytes::from_static(ANSWER);
    let to = EndpointView { id: "receiver", url: URL, config: "{}" };
    let attempt = AttemptView {
        event_id: ID,
        event_type: "push",
        number: 1,
        max_attempts: 9,
        idempotency_key: ID,
        now: Timestamp::from_millis(1_700_000_000_000),
        attributes: &[],
    };
    let outcome =
        OutcomeView::Response { status: 200, headers: &headers, body: &body, body_truncated: false, elapsed: ELAPSED };
    let call = plugin.classify(to, attempt, outcome).await;
    let verdict = call.result.map_err(|fault| anyhow::anyhow!("{fault:?}"))?;
    ensure!(matches!(verdict, Verdict::Delivered { .. }), "the plugin judged {verdict:?}");
    Ok(())
}

/// The plugin, linked, and no host around it.
struct Direct {
    engine: Engine,
    plugin: PluginPre<State>,
}

struct State {
    limits: StoreLimits,
    deadline: Instant,
}

impl types::Host for State {}

impl log::Host for State {
    fn log(&mut self, _: log::Level, _: String) {}
}

impl Direct {
    fn new(engine: &Engine, wasm: &[u8]) -> wasmtime::Result<Self> {
        let mut linker = Linker::new(engine);
        bindings::Plugin::add_to_linker::<State, HasSelf<State>>(&mut linker, |state| state)?;
        let plugin = PluginPre::new(linker.instantiate_pre(&Component::new(engine, wasm)?)?)?;
        Ok(Direct { engine: engine.clone(), plugin })
    }

    async fn classify(&self) -> wasmtime::Result<()> {
        let mut store = store(&self.engine);
        let plugin = self.plugin.instantiate_async(&mut store).await?;
        let headers = [types::FieldParam { name: "content-type", value: "application/json" }];
        let response =
            types::Response { status: 200, headers: &headers, body: ANSWER, body_truncated: false, elapsed_ms: 12 };
        let attempt = types::Attempt {
            event_id: ID,
            event_type: "push",
            number: 1,
            max_attempts: 9,
            idempotency_key: ID,
            now_ms: 1_700_000_000_000,
            attributes: &[],
        };
        let endpoint = types::Endpoint { id: "receiver", url: URL, config: "{}" };
        let answer = plugin
            .hookgate_plugin_classifier()
            .call_classify(&mut store, endpoint, attempt, types::Outcome::Response(response))
            .await?;
        match answer {
            Ok(bindings::exports::hookgate::plugin::classifier::Verdict::Delivered(_)) => Ok(()),
            other => Err(wasmtime::Error::msg(format!("the plugin judged {other:?}"))),
        }
    }
}

/// With the host's settings.
fn store(engine: &Engine) -> Store<State> {
    let limits = hookgate::plugin::Limits::default();
    let state = State {
        limits: StoreLimitsBuilder::new().memory_size(limits.memory_bytes_max).build(),
        deadline: Instant::now() + limits.call_time_max,
    };
    let mut store = Store::new(engine, state);
    store.limiter(|state| &mut state.limits);
    store.set_hostcall_fuel(limits.output_bytes_max);
    store.set_epoch_deadline(1);
    store.epoch_deadline_callback(|store| {
        ensure_in_time(store.data().deadline)?;
        Ok(UpdateDeadline::Yield(1))
    });
    store
}

/// A component of one function, and no host around it.
struct Empty {
    engine: Engine,
    empty: InstancePre<State>,
    function: ComponentExportIndex,
}

impl Empty {
    fn new(engine: &Engine) -> wasmtime::Result<Self> {
        let text = r#"(component (core module $m (func (export "f"))) (core instance $i (instantiate $m))
            (func $f (canon lift (core func $i "f"))) (export "f" (func $f)))"#;
        let wasm = wat::parse_str(text).map_err(wasmtime::Error::new)?;
        let component = Component::new(engine, wasm)?;
        let function = component.get_export_index(None, "f");
        let function = function.ok_or_else(|| wasmtime::Error::msg("no function"))?;
        let empty = Linker::new(engine).instantiate_pre(&component)?;
        Ok(Empty { engine: engine.clone(), empty, function })
    }

    async fn call(&self) -> wasmtime::Result<()> {
        let mut store = store(&self.engine);
        let instance = self.empty.instantiate_async(&mut store).await?;
        let function = instance.get_typed_func::<(), ()>(&mut store, self.function)?;
        function.call_async(&mut store, ()).await
    }
}

fn ensure_in_time(deadline: Instant) -> wasmtime::Result<()> {
    if Instant::now() >= deadline { Err(wasmtime::Error::msg("not done in time")) } else { Ok(()) }
}
