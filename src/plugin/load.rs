//! From the bytes of an upload to something that can be called: looked at, compiled elsewhere or found in the cache,
//! linked, and tried once.

use super::artefact::Verified;
use super::bindings::exports::hookgate::plugin::{classifier, transformer};
use super::call::CallState;
use super::lane::Pace;
use super::{
    AttemptView, Digest, EndpointView, EventView, Exports, Host, OutcomeView, Plugin, Rejected, Rules as _, compile,
    inspect,
};
use crate::clock::Timestamp;
use crate::delivery::{Fault, FaultKind, Name};
use crate::telemetry::PLUGIN_COMPILATIONS;
use bytes::Bytes;
use http::HeaderMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use wasmtime::Engine;
use wasmtime::component::{Component, InstancePre};

/// A version of a plugin, linked. Shared by all [`Plugin`]s of the same bytes and tenant.
pub(super) struct Loaded {
    pub(super) digest: Digest,
    pub(super) size: usize,
    pub(super) pre: InstancePre<CallState>,
    pub(super) transform: Option<transformer::GuestIndices>,
    pub(super) classify: Option<classifier::GuestIndices>,
    pub(super) warnings: OnceLock<Vec<String>>,
    pub(super) pace: Pace,
}

impl Host {
    /// Makes a plugin of `wasm`, or says what is wrong with it.
    ///
    /// It is accepted when an instance of it can be made and its exports have the right types. Each export is then
    /// called once with a made-up event and answer: a fault in that call is no refusal, since the plugin may rightly
    /// ask for a configuration that was not given; it is told by [`Plugin::warnings`].
    ///
    /// The same bytes of one tenant are compiled once, also when several callers load them together.
    ///
    /// What takes time of a processor is done on threads for work that blocks, and by the compiling process.
    pub async fn load(self: &Arc<Host>, tenant: &Name, wasm: Bytes) -> Result<Plugin, Rejected> {
        let (bytes, limits) = (wasm.clone(), *self.limits(tenant));
        let looked = blocking(move || Ok((inspect::look(&bytes, &limits)?, Digest::of(&bytes))));
        let (exports, digest) = looked.await?;
        if let Some(loaded) = self.live(tenant, digest) {
            return Ok(Plugin::new(self, tenant, loaded));
        }
        let _turn = self.compiling.lock().await;
        if let Some(loaded) = self.live(tenant, digest) {
            return Ok(Plugin::new(self, tenant, loaded));
        }
        let size = wasm.len();
        let component = self.component(tenant, digest, wasm).await?;
        let host = Arc::clone(self);
        let loaded = blocking(move || host.link(&component, exports, digest, size).map(Arc::new)).await?;
        let plugin = Plugin::new(self, tenant, Arc::clone(&loaded));
        plugin.instantiate_once().await?;
        let warnings = trial(&plugin).await;
        loaded.warnings.get_or_init(|| warnings);
        self.keep(tenant, &loaded);
        Ok(plugin)
    }

    async fn component(self: &Arc<Host>, tenant: &Name, digest: Digest, wasm: Bytes) -> Result<Component, Rejected> {
        if let Some(component) = self.from_cache(tenant, digest, None).await? {
            return Ok(component);
        }
        metrics::counter!(PLUGIN_COMPILATIONS).increment(1);
        let artefact = compile::compile(&self.settings.compiler, self.settings.compile, self.standing(), wasm).await?;
        if self.artefacts.is_none() {
            let engine = self.engine.clone();
            return blocking(move || from_memory(&engine, &artefact).map_err(|e| does_not_fit(&e))).await;
        }
        let component = self.from_cache(tenant, digest, Some(artefact)).await?;
        component.ok_or_else(|| Rejected::host("the plugin cache does not keep what was written to it".into()))
    }

    /// Maps the artefact on disk, after putting `fresh` there if it is given.
    async fn from_cache(
        self: &Arc<Host>,
        tenant: &Name,
        digest: Digest,
        fresh: Option<Vec<u8>>,
    ) -> Result<Option<Component>, Rejected> {
        let (host, tenant) = (Arc::clone(self), tenant.clone());
        let work = move || {
            let Some(artefacts) = &host.artefacts else { return Ok(None) };
            let made_now = fresh.is_some();
            let found = match fresh {
                Some(bytes) => artefacts.put(&tenant, &digest, &bytes).map(Some),
                None => artefacts.find(&tenant, &digest),
            };
            let found = found.map_err(|e| Rejected::host(format!("the plugin cache: {e}")))?;
            match found.map(|file| from_file(&host.engine, &file)) {
                Some(Err(e)) if made_now => Err(does_not_fit(&e)),
                // An artefact of ours that no longer loads is made again, like one that is missing.
                Some(Err(_)) | None => Ok(None),
                Some(Ok(component)) => Ok(Some(component)),
            }
        };
        blocking(work).await
    }

    pub(super) fn link(
        &self,
        component: &Component,
        exports: Exports,
        digest: Digest,
        size: usize,
    ) -> Result<Loaded, Rejected> {
        let pre = self.linker.instantiate_pre(component).map_err(|e| wrong_types(&e))?;
        let transform = exports.transform.then(|| transformer::GuestIndices::new(&pre)).transpose();
        let classify = exports.classify.then(|| classifier::GuestIndices::new(&pre)).transpose();
        Ok(Loaded {
            digest,
            size,
            transform: transform.map_err(|e| wrong_types(&e))?,
            classify: classify.map_err(|e| wrong_types(&e))?,
            pre,
            warnings: OnceLock::new(),
            pace: Pace::unknown(),
        })
    }
}

/// On a thread of ordinary class: what is done there holds the process's map of memory, for which the traffic would
/// wait with it.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Rejected> + Send + 'static,
) -> Result<T, Rejected> {
    tokio::task::spawn_blocking(work).await.map_err(|e| Rejected::host(e.to_string()))?
}

#[allow(unsafe_code)]
fn from_file(engine: &Engine, file: &Verified) -> wasmtime::Result<Component> {
    // SAFETY: the file is what a compiler of ours wrote: its MAC by this host's key was right a moment ago, and
    // folder and file can be written by this user alone.
    unsafe { Component::deserialize_file(engine, file.path()) }
}

#[allow(unsafe_code)]
fn from_memory(engine: &Engine, artefact: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: the bytes come straight from the compiling process that this host started, by a pipe between the two.
    unsafe { Component::deserialize(engine, artefact) }
}

fn does_not_fit(error: &wasmtime::Error) -> Rejected {
    Rejected {
        rule: "resources",
        finding: format!("it declares more than a plugin may have: {error:#}"),
        remedy: "declare less initial memory, fewer tables, globals and instances".into(),
    }
}

pub(super) fn wrong_types(error: &wasmtime::Error) -> Rejected {
    Rejected {
        rule: "types",
        finding: format!("its functions are not those of hookgate:plugin 1.x: {error:#}"),
        remedy: "build it against wit/hookgate.wit of this host".into(),
    }
}

pub(super) fn no_instance(fault: &Fault) -> Rejected {
    if fault.kind == FaultKind::Memory {
        return Rejected {
            rule: "memory",
            finding: format!("no instance could be made of it: {}", fault.detail),
            remedy: "declare less initial memory, or ask the operator for a larger memory_bytes_max".into(),
        };
    }
    Rejected {
        rule: "instantiation",
        finding: format!("no instance could be made of it ({}): {}", fault.kind.as_str(), fault.detail),
        remedy: "keep what runs at start small: it counts to the limits of a call".into(),
    }
}

/// One call of each export, with values that any plugin must be able to meet. No metric counts it.
async fn trial(plugin: &Plugin) -> Vec<String> {
    let payload = Bytes::from_static(b"{}");
    let now = Timestamp::from_millis(1_700_000_000_000);
    let event = EventView {
        id: "evt_trial",
        event_type: "trial",
        accepted_at: now,
        content_type: "application/json",
        attributes: &[],
        payload: &payload,
    };
    let to = EndpointView { id: "trial", url: "https://trial.example/", config: "{}" };
    let attempt = AttemptView {
        event_id: "evt_trial",
        event_type: "trial",
        number: 1,
        max_attempts: 1,
        idempotency_key: "evt_trial",
        now,
        attributes: &[],
    };
    let headers = HeaderMap::new();
    let elapsed = Duration::from_millis(1);
    let answer =
        OutcomeView::Response { status: 200, headers: &headers, body: &payload, body_truncated: false, elapsed };
    let mut faults = Vec::new();
    if plugin.exports().transform {
        faults.push(("transform", plugin.try_transform(event, to, attempt).await.and_then(|call| call.result).err()));
    }
    if plugin.exports().classify {
        faults.push(("classify", plugin.try_classify(to, attempt, answer).await.and_then(|call| call.result).err()));
    }
    let told = |(call, fault): (&str, Option<Fault>)| {
        let Fault { kind, detail } = fault?;
        Some(format!("{call} did not answer a trial call ({}): {detail}", kind.as_str()))
    };
    faults.into_iter().filter_map(told).collect()
}
