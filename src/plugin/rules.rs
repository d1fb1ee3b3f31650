//! A loaded plugin, and its calls.

use super::bindings::hookgate::plugin::types as wit;
use super::call::{CallLog, CallState};
use super::load::Loaded;
use super::ticker::Ticking;
use super::{AttemptView, Call, Digest, EndpointView, EventView, Exports, Host, Limits, OutcomeView, Rules};
use super::{Transformed, convert};
use crate::delivery::{Fault, FaultKind, Name, Verdict};
use crate::telemetry::{PLUGIN_CALL, PLUGIN_FAULTS, PLUGINS_DISABLED};
use async_trait::async_trait;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit};
use wasmtime::Store;
use wasmtime::component::Instance;

/// A version of a tenant's plugin.
///
/// Each call has a fresh store and a fresh instance: nothing of a call is left for the next one. After
/// [`Plugin::FAULTS_MAX`] faults in a row without an answer between them the plugin is disabled: its calls are the
/// fault `unavailable` at once, until it is loaded again. `input_too_large` and `unavailable` are not the plugin's
/// doing and do not count; nor does what a version does that is on trial. To call an export that it does not have is `unavailable`, too.
pub struct Plugin {
    host: Arc<Host>,
    pub(super) loaded: Arc<Loaded>,
    limits: Limits,
    tenant_calls: Arc<Semaphore>,
    standing: Standing,
    faults: AtomicU32,
    /// The kind of the fault that was one too many.
    last_straw: OnceLock<FaultKind>,
}

/// On whose behalf a plugin is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// It is in use: its faults disable it.
    InUse,
    /// Its trial counts its faults.
    OnTrial,
    /// Nobody waits for its answers, so it waits for nothing: where half of the slots would not be left, it is not called.
    Aside,
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin").field("digest", &self.digest()).field("exports", &self.exports()).finish()
    }
}

impl Plugin {
    /// So many faults in a row disable a version.
    pub const FAULTS_MAX: u32 = 20;

    pub(super) fn new(host: &Arc<Host>, tenant: &Name, loaded: Arc<Loaded>) -> Self {
        Plugin {
            limits: *host.limits(tenant),
            tenant_calls: host.tenant_calls(tenant),
            host: Arc::clone(host),
            loaded,
            standing: Standing::InUse,
            faults: AtomicU32::new(0),
            last_straw: OnceLock::new(),
        }
    }

    /// For a trial that acts on its answers: its faults disable nothing, and its trial sees to them.
    #[must_use]
    pub fn on_trial(self) -> Self {
        Plugin { standing: Standing::OnTrial, ..self }
    }

    /// For calls that nobody waits for and no metric counts: one that would leave less than half of the tenant's slots,
    /// or of the process's, to others is `unavailable` at once.
    #[must_use]
    pub fn aside(self) -> Self {
        Plugin { standing: Standing::Aside, ..self }
    }

    /// SHA-256 of the component: the version's name.
    pub fn digest(&self) -> Digest {
        self.loaded.digest
    }

    /// Bytes of the component.
    pub fn size(&self) -> usize {
        self.loaded.size
    }

    /// What went wrong in the trial calls at load, for people.
    pub fn warnings(&self) -> &[String] {
        &self.loaded.warnings
    }

    /// Faults since the last answer.
    pub fn consecutive_faults(&self) -> u32 {
        self.faults.load(Ordering::Relaxed)
    }

    /// The kind of the last of [`Plugin::FAULTS_MAX`] faults in a row, once it is disabled by them.
    pub fn disabled_by(&self) -> Option<FaultKind> {
        self.last_straw.get().copied()
    }

    /// A turn of one's own: a slot of the tenant's, one of the process's, and a store.
    async fn turn(&self) -> Result<Turn<'_>, Fault> {
        if self.disabled_by().is_some() {
            return Err(unavailable(&format!("disabled after {} faults in a row", Self::FAULTS_MAX)));
        }
        let (wait_max, per_tenant, in_all) = {
            let settings = &self.host.settings;
            (settings.wait_max, settings.calls_per_tenant_max, settings.calls_max)
        };
        // The tenant's slot first, so that who waits for it holds nothing that others need.
        let (tenant_slot, slot) = match self.standing {
            Standing::Aside => (spare(&self.tenant_calls, per_tenant)?, spare(&self.host.calls, in_all)?),
            Standing::InUse | Standing::OnTrial => {
                (slot(&self.tenant_calls, wait_max).await?, slot(&self.host.calls, wait_max).await?)
            }
        };
        let began = Instant::now();
        let store = CallState::store(&self.host.engine, &self.limits, began);
        let ticking = self.host.ticker.during_call();
        Ok(Turn { plugin: self, store, began, _ticking: ticking, _slots: [tenant_slot, slot] })
    }
}

/// Waits for its turn, though not for ever.
pub(super) async fn slot(slots: &Semaphore, wait_max: Duration) -> Result<SemaphorePermit<'_>, Fault> {
    if let Ok(slot) = slots.try_acquire() {
        return Ok(slot);
    }
    match tokio::time::timeout(wait_max, slots.acquire()).await {
        Ok(Ok(slot)) => Ok(slot),
        Ok(Err(_)) | Err(_) => Err(unavailable("too many plugin calls at a time")),
    }
}

/// A slot that leaves at least half of them free.
fn spare(slots: &Semaphore, of: usize) -> Result<SemaphorePermit<'_>, Fault> {
    let none = || unavailable("no slot to spare");
    let slot = slots.try_acquire().map_err(|_| none())?;
    if slots.available_permits() * 2 >= of { Ok(slot) } else { Err(none()) }
}

fn unavailable(detail: &str) -> Fault {
    Fault { kind: FaultKind::Unavailable, detail: detail.to_owned() }
}

fn count(fault: &Fault) {
    metrics::counter!(PLUGIN_FAULTS, "kind" => fault.kind.as_str()).increment(1);
}

/// One call under way.
struct Turn<'a> {
    plugin: &'a Plugin,
    store: Store<CallState>,
    began: Instant,
    _ticking: Ticking<'a>,
    _slots: [SemaphorePermit<'a>; 2],
}

impl Turn<'_> {
    async fn instance(&mut self) -> wasmtime::Result<Instance> {
        self.plugin.loaded.pre.instantiate_async(&mut self.store).await
    }

    /// What the guest said becomes what the gateway says; a failure gets its name.
    fn end<G, T>(
        mut self,
        answer: wasmtime::Result<Result<G, wit::Fault>>,
        convert: impl FnOnce(G, &mut CallLog) -> Result<T, Fault>,
    ) -> Call<T> {
        let result = match answer {
            Ok(Ok(given)) => convert(given, &mut self.store.data_mut().log),
            Ok(Err(fault)) => Err(convert::fault(&fault)),
            Err(failure) => Err(self.store.data().fault(&failure)),
        };
        let state = self.store.into_data();
        Call {
            result,
            took: self.began.elapsed(),
            memory_bytes: state.memory_bytes,
            log: state.log.lines,
            log_lines_dropped: state.log.dropped,
        }
    }
}

impl Plugin {
    /// One call, of which nothing is counted. The error: it did not come to run.
    pub async fn try_transform(
        &self,
        event: EventView<'_>,
        to: EndpointView<'_>,
        attempt: AttemptView<'_>,
    ) -> Result<Call<Transformed>, Fault> {
        let Some(export) = &self.loaded.transform else { return Err(unavailable("it has no transform")) };
        if event.payload.len() > self.limits.input_bytes_max {
            let detail = format!(
                "the event has {} bytes; a plugin can be given {}",
                event.payload.len(),
                self.limits.input_bytes_max
            );
            return Err(Fault { kind: FaultKind::InputTooLarge, detail });
        }
        let mut turn = self.turn().await?;
        let of_event = convert::attributes(event.attributes);
        let of_attempt = convert::attributes(attempt.attributes);
        let answer = async {
            let instance = turn.instance().await?;
            let guest = export.load(&mut turn.store, &instance)?;
            let event = convert::event(&event, &of_event);
            let attempt = convert::attempt(&attempt, &of_attempt);
            guest.call_transform(&mut turn.store, event, convert::endpoint(&to), attempt).await
        };
        let answer = answer.await;
        Ok(turn.end(answer, |given, log| convert::transformed(given, &self.host.owned, &self.limits, log)))
    }

    /// As [`Plugin::try_transform`].
    pub async fn try_classify(
        &self,
        to: EndpointView<'_>,
        attempt: AttemptView<'_>,
        outcome: OutcomeView<'_>,
    ) -> Result<Call<Verdict>, Fault> {
        let Some(export) = &self.loaded.classify else { return Err(unavailable("it has no classify")) };
        let mut turn = self.turn().await?;
        let mut dropped = String::new();
        let mut of_attempt = convert::attributes(attempt.attributes);
        let headers = convert::response_headers(&outcome, &mut of_attempt, &mut dropped);
        let answer = async {
            let instance = turn.instance().await?;
            let guest = export.load(&mut turn.store, &instance)?;
            let attempt = convert::attempt(&attempt, &of_attempt);
            let outcome = convert::outcome(&outcome, &headers, &self.limits);
            guest.call_classify(&mut turn.store, convert::endpoint(&to), attempt, outcome).await
        };
        let answer = answer.await;
        Ok(turn.end(answer, convert::verdict))
    }

    /// Counts what a call on behalf of a delivery came to.
    fn counted<T>(&self, name: &'static str, call: Result<Call<T>, Fault>) -> Call<T> {
        if self.standing == Standing::Aside {
            return call.unwrap_or_else(Call::not_made);
        }
        let call = match call {
            Ok(call) => call,
            Err(fault) => {
                count(&fault);
                return Call::not_made(fault);
            }
        };
        match &call.result {
            Ok(_) => self.faults.store(0, Ordering::Relaxed),
            Err(fault) => {
                count(fault);
                if fault.kind != FaultKind::Unavailable && self.standing == Standing::InUse {
                    let before = self.faults.fetch_add(1, Ordering::Relaxed);
                    if before + 1 == Self::FAULTS_MAX {
                        let digest = self.digest();
                        tracing::warn!(%digest, kind = fault.kind.as_str(), "plugin disabled: too many faults in a row");
                        metrics::counter!(PLUGINS_DISABLED).increment(1);
                        let _first = self.last_straw.set(fault.kind);
                        self.host.disabled.notify_one();
                    }
                }
            }
        }
        metrics::histogram!(PLUGIN_CALL, "call" => name).record(call.took);
        call
    }
}

#[async_trait]
impl Rules for Plugin {
    fn exports(&self) -> Exports {
        Exports { transform: self.loaded.transform.is_some(), classify: self.loaded.classify.is_some() }
    }

    async fn transform(
        &self,
        event: EventView<'_>,
        to: EndpointView<'_>,
        attempt: AttemptView<'_>,
    ) -> Call<Transformed> {
        self.counted("transform", self.try_transform(event, to, attempt).await)
    }

    async fn classify(
        &self,
        to: EndpointView<'_>,
        attempt: AttemptView<'_>,
        outcome: OutcomeView<'_>,
    ) -> Call<Verdict> {
        self.counted("classify", self.try_classify(to, attempt, outcome).await)
    }
}
