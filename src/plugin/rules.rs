//! A loaded plugin, and its calls.

use super::bindings::hookgate::plugin::types as wit;
use super::call::{Budget, CallLog, CallState, NotQuick};
use super::lane::{self, Meter};
use super::limits::CONFIG_BYTES_MAX;
use super::load::{self, Loaded};
use super::ticker::Ticking;
use super::{AttemptView, Call, Digest, EndpointView, EventView, Exports, Host, Limits, OutcomeView, Rejected, Rules};
use super::{Transformed, convert, owned};
use crate::delivery::{Fault, FaultKind, Name, Verdict};
use crate::telemetry::{PLUGIN_CALL, PLUGIN_FAULTS, PLUGIN_LONG_CALLS, PLUGIN_WAITS, PLUGINS_DISABLED};
use async_trait::async_trait;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use wasmtime::Store;
use wasmtime::component::Instance;

/// A version of a tenant's plugin.
///
/// Each call has a fresh store and a fresh instance: nothing of a call is left for the next one. After
/// [`Plugin::FAULTS_MAX`] faults in a row without an answer between them the plugin is disabled: its calls are the
/// fault `unavailable` at once, until it is loaded again. `input_too_large` and `unavailable` are not the plugin's
/// doing and do not count; nor does what a version does that is on trial. To call an export that it does not have is `unavailable`, too.
pub struct Plugin {
    caller: Caller,
    tenant: Name,
    tenant_calls: Arc<Semaphore>,
    standing: Standing,
    faults: AtomicU32,
    long_calls: AtomicU32,
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
    /// Nobody waits for its answers, so it is in nobody's way.
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
            caller: Caller { limits: *host.limits(tenant), host: Arc::clone(host), loaded },
            tenant: tenant.clone(),
            tenant_calls: host.tenant_calls(tenant),
            standing: Standing::InUse,
            faults: AtomicU32::new(0),
            long_calls: AtomicU32::new(0),
            last_straw: OnceLock::new(),
        }
    }

    /// For a trial that acts on its answers: its faults disable nothing, and its trial sees to them.
    #[must_use]
    pub fn on_trial(self) -> Self {
        Plugin { standing: Standing::OnTrial, ..self }
    }

    /// For calls that nobody waits for and no metric counts: they are made on the lane, and one that would leave less
    /// than half of the tenant's turns to others is `unavailable` at once.
    #[must_use]
    pub fn aside(self) -> Self {
        Plugin { standing: Standing::Aside, ..self }
    }

    /// SHA-256 of the component: the version's name.
    pub fn digest(&self) -> Digest {
        self.caller.loaded.digest
    }

    /// Bytes of the component.
    pub fn size(&self) -> usize {
        self.caller.loaded.size
    }

    /// What went wrong in the trial calls at load, for people.
    pub fn warnings(&self) -> &[String] {
        self.caller.loaded.warnings.get().map_or(&[], Vec::as_slice)
    }

    /// Faults since the last answer.
    pub fn consecutive_faults(&self) -> u32 {
        self.faults.load(Ordering::Relaxed)
    }

    /// Calls that were made on the lane, since they take long or nobody knew.
    pub fn long_calls(&self) -> u32 {
        self.long_calls.load(Ordering::Relaxed)
    }

    /// The kind of the last of [`Plugin::FAULTS_MAX`] faults in a row, once it is disabled by them.
    pub fn disabled_by(&self) -> Option<FaultKind> {
        self.last_straw.get().copied()
    }

    /// One of the tenant's turns. It comes before a slot of the process's: who waits for it holds nothing that others
    /// need.
    async fn turn(&self) -> Result<OwnedSemaphorePermit, Fault> {
        let disabled = || {
            let why = || unavailable(&format!("disabled after {} faults in a row", Self::FAULTS_MAX));
            self.disabled_by().map_or(Ok(()), |_| Err(why()))
        };
        disabled()?;
        if self.standing == Standing::Aside {
            return spare(&self.tenant_calls, self.caller.host.settings.calls_per_tenant_max);
        }
        if let Ok(turn) = Arc::clone(&self.tenant_calls).try_acquire_owned() {
            return Ok(turn);
        }
        let turns = Arc::clone(&self.tenant_calls).acquire_owned();
        let turn = in_time("tenant", self.caller.host.settings.wait_max, turns).await?;
        // Others of its calls may have been the last straw meanwhile.
        disabled()?;
        Ok(turn)
    }

    /// Whether a call is made where it is asked for.
    fn is_quick(&self) -> bool {
        self.standing != Standing::Aside && self.caller.loaded.pace.is_quick()
    }

    /// Makes a call on the lane. The turn is over with its answer, or when it is seen that nobody waits for one.
    async fn long<T, F, C>(&self, turn: OwnedSemaphorePermit, call: C) -> Result<T, Fault>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
        C: Fn(Caller, Budget) -> F + Send + Sync + 'static,
    {
        metrics::counter!(PLUGIN_LONG_CALLS).increment(1);
        self.long_calls.fetch_add(1, Ordering::Relaxed);
        let caller = self.caller.clone();
        let make = move |meter: Arc<Meter>| {
            let loaded = Arc::clone(&caller.loaded);
            let call = call(caller.clone(), Budget::Long(Arc::clone(&meter)));
            async move {
                let result = call.await;
                loaded.pace.note(meter.spent());
                result
            }
        };
        let host = &self.caller.host;
        let times = (host.settings.wait_max, self.caller.limits.call_time_max);
        host.lane.run((&self.tenant, turn), times, make).await.map_err(|failed| match failed {
            lane::Failed::NoTurn => {
                metrics::counter!(PLUGIN_WAITS, "for" => "lane").increment(1);
                unavailable("no processor time for a long plugin call")
            }
            lane::Failed::Panicked => {
                Fault { kind: FaultKind::Trap, detail: "the host failed at this call; its log tells how".to_owned() }
            }
        })
    }

    /// Linking looks at names alone: types are compared when there is an instance.
    pub(super) async fn instantiate_once(&self) -> Result<(), Rejected> {
        let busy = |fault: Fault| Rejected::host(fault.detail);
        let turn = self.turn().await.map_err(busy)?;
        let made = |caller: Caller, budget| async move { caller.instantiate(budget).await };
        self.long(turn, made).await.map_err(busy)?
    }
}

/// Waits for a slot of the process's, though not for ever.
async fn slot(slots: &Semaphore, wait_max: Duration) -> Result<SemaphorePermit<'_>, Fault> {
    if let Ok(slot) = slots.try_acquire() {
        return Ok(slot);
    }
    in_time("process", wait_max, slots.acquire()).await
}

async fn in_time<T>(
    what: &'static str,
    wait_max: Duration,
    slot: impl Future<Output = Result<T, AcquireError>>,
) -> Result<T, Fault> {
    metrics::counter!(PLUGIN_WAITS, "for" => what).increment(1);
    match tokio::time::timeout(wait_max, slot).await {
        Ok(Ok(slot)) => Ok(slot),
        Ok(Err(_)) | Err(_) => Err(unavailable("too many plugin calls at a time")),
    }
}

/// A turn that leaves at least half of them free.
fn spare(slots: &Arc<Semaphore>, of: usize) -> Result<OwnedSemaphorePermit, Fault> {
    let none = || unavailable("no turn to spare");
    let slot = Arc::clone(slots).try_acquire_owned().map_err(|_| none())?;
    if slots.available_permits() * 2 >= of { Ok(slot) } else { Err(none()) }
}

fn fits(to: &EndpointView<'_>) -> Result<(), Fault> {
    if to.config.len() <= CONFIG_BYTES_MAX {
        return Ok(());
    }
    let detail = format!("plugin_config has {} bytes; a plugin can be given {CONFIG_BYTES_MAX}", to.config.len());
    Err(Fault { kind: FaultKind::InputTooLarge, detail })
}

fn unavailable(detail: &str) -> Fault {
    Fault { kind: FaultKind::Unavailable, detail: detail.to_owned() }
}

fn count(fault: &Fault) {
    metrics::counter!(PLUGIN_FAULTS, "kind" => fault.kind.as_str()).increment(1);
}

/// What a call needs of its plugin, wherever it runs.
#[derive(Clone)]
struct Caller {
    host: Arc<Host>,
    loaded: Arc<Loaded>,
    limits: Limits,
}

impl Caller {
    async fn instantiate(&self, budget: Budget) -> Result<(), Rejected> {
        let mut turn = Turn::begin(self, budget);
        let instance = turn.instance().await.map_err(|e| load::no_instance(&turn.store.data().fault(&e)))?;
        if let Some(transform) = &self.loaded.transform {
            transform.load(&mut turn.store, &instance).map_err(|e| load::wrong_types(&e))?;
        }
        if let Some(classify) = &self.loaded.classify {
            classify.load(&mut turn.store, &instance).map_err(|e| load::wrong_types(&e))?;
        }
        Ok(())
    }

    /// `None`: it is not done at a stretch. A call is a function of its arguments, so that it can be made again.
    async fn transform(
        &self,
        budget: Budget,
        event: EventView<'_>,
        to: EndpointView<'_>,
        attempt: AttemptView<'_>,
    ) -> Option<Call<Transformed>> {
        let Some(export) = &self.loaded.transform else {
            return Some(Call::not_made(unavailable("it has no transform")));
        };
        let mut turn = Turn::begin(self, budget);
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
        turn.end(answer, |given, log| convert::transformed(given, &self.host.owned, &self.limits, log))
    }

    /// As [`Caller::transform`].
    async fn classify(
        &self,
        budget: Budget,
        to: EndpointView<'_>,
        attempt: AttemptView<'_>,
        outcome: OutcomeView<'_>,
    ) -> Option<Call<Verdict>> {
        let Some(export) = &self.loaded.classify else {
            return Some(Call::not_made(unavailable("it has no classify")));
        };
        let mut turn = Turn::begin(self, budget);
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
        turn.end(answer, convert::verdict)
    }
}

/// One call under way.
struct Turn<'a> {
    caller: &'a Caller,
    store: Store<CallState>,
    _ticking: Ticking<'a>,
}

impl<'a> Turn<'a> {
    fn begin(caller: &'a Caller, budget: Budget) -> Self {
        let store = CallState::store(&caller.host.engine, &caller.limits, budget);
        Turn { caller, store, _ticking: caller.host.ticker.during_call() }
    }

    async fn instance(&mut self) -> wasmtime::Result<Instance> {
        self.caller.loaded.pre.instantiate_async(&mut self.store).await
    }

    /// What the guest said becomes what the gateway says; a failure gets its name.
    fn end<G, T>(
        mut self,
        answer: wasmtime::Result<Result<G, wit::Fault>>,
        convert: impl FnOnce(G, &mut CallLog) -> Result<T, Fault>,
    ) -> Option<Call<T>> {
        let result = match answer {
            Ok(Ok(given)) => convert(given, &mut self.store.data_mut().log),
            Ok(Err(fault)) => Err(convert::fault(&fault)),
            Err(failure) if failure.is::<NotQuick>() => return None,
            Err(failure) => Err(self.store.data().fault(&failure)),
        };
        let state = self.store.into_data();
        Some(Call {
            result,
            took: state.spent(),
            memory_bytes: state.memory_bytes,
            log: state.log.lines,
            log_lines_dropped: state.log.dropped,
        })
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
        let caller = &self.caller;
        let most = caller.limits.input_bytes_max;
        if event.payload.len() > most {
            let detail = format!("the event has {} bytes; a plugin can be given {most}", event.payload.len());
            return Err(Fault { kind: FaultKind::InputTooLarge, detail });
        }
        fits(&to)?;
        let turn = self.turn().await?;
        if self.is_quick() {
            let _slot = slot(&caller.host.calls, caller.host.settings.wait_max).await?;
            if let Some(call) = caller.transform(Budget::quick(), event, to, attempt).await {
                return Ok(call);
            }
        }
        let given = (owned::Event::of(event), owned::Endpoint::of(to), owned::Attempt::of(attempt));
        let given = Arc::new(given);
        let call = move |caller: Caller, budget| {
            let given = Arc::clone(&given);
            async move {
                let (event, to, attempt) = &*given;
                let (of_event, of_attempt) = (event.attributes(), attempt.attributes());
                caller.transform(budget, event.view(&of_event), to.view(), attempt.view(&of_attempt)).await
            }
        };
        self.long(turn, call).await?.ok_or_else(|| unavailable("not done at a stretch"))
    }

    /// As [`Plugin::try_transform`].
    pub async fn try_classify(
        &self,
        to: EndpointView<'_>,
        attempt: AttemptView<'_>,
        outcome: OutcomeView<'_>,
    ) -> Result<Call<Verdict>, Fault> {
        let caller = &self.caller;
        fits(&to)?;
        let turn = self.turn().await?;
        if self.is_quick() {
            let _slot = slot(&caller.host.calls, caller.host.settings.wait_max).await?;
            if let Some(call) = caller.classify(Budget::quick(), to, attempt, outcome).await {
                return Ok(call);
            }
        }
        let given = (owned::Endpoint::of(to), owned::Attempt::of(attempt), owned::Outcome::of(outcome));
        let given = Arc::new(given);
        let call = move |caller: Caller, budget| {
            let given = Arc::clone(&given);
            async move {
                let (to, attempt, outcome) = &*given;
                let of_attempt = attempt.attributes();
                caller.classify(budget, to.view(), attempt.view(&of_attempt), outcome.view()).await
            }
        };
        self.long(turn, call).await?.ok_or_else(|| unavailable("not done at a stretch"))
    }

    /// Counts what a call on behalf of a delivery came to.
    fn counted<T>(&self, name: &'static str, call: Result<Call<T>, Fault>) -> Call<T> {
        if let Ok(Call { result: Err(_), took, .. }) = &call
            && *took >= lane::QUICK_MAX
        {
            self.caller.host.lane.waste(&self.tenant, *took);
        }
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
                        self.caller.host.disabled.notify_one();
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
        Exports { transform: self.caller.loaded.transform.is_some(), classify: self.caller.loaded.classify.is_some() }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::{Compiler, Settings};
    use crate::secret::Secret;

    #[tokio::test]
    async fn a_tenant_has_so_many_turns_and_no_more() {
        let text = r#"(component (core module $m (func (export "f"))) (core instance $i (instantiate $m))
            (func $f (canon lift (core func $i "f"))) (export "f" (func $f)))"#;
        let mut settings = Settings::new(Compiler::InProcess, Secret::new([7; 32]));
        (settings.calls_max, settings.calls_per_tenant_max) = (4, 2);
        let host = Host::new(settings).unwrap();
        let component = wasmtime::component::Component::new(&host.engine, wat::parse_str(text).unwrap()).unwrap();
        let of = |tenant: &str| {
            let exports = Exports { transform: false, classify: false };
            let loaded = host.link(&component, exports, Digest::of(b""), 0).unwrap();
            Plugin::new(&host, &tenant.parse().unwrap(), Arc::new(loaded))
        };
        let (first, second, other) = (of("acme"), of("acme"), of("other"));
        let turns = [first.turn().await.unwrap(), second.turn().await.unwrap()];
        let mut third = std::pin::pin!(first.turn());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(third.as_mut().poll(&mut context).is_pending());
        drop(other.turn().await.unwrap());
        assert!(third.as_mut().poll(&mut context).is_pending());
        drop(turns);
        drop(third.await.unwrap());
    }
}
