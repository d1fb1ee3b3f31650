//! The engine and what all plugins share: its clock tick, its slots, and each tenant's part of them.

use super::artefact::Artefacts;
use super::bindings;
use super::call::CallState;
use super::compile::{CompileLimits, Compiler, Standing};
use super::convert::OwnedHeaders;
use super::engine::{self, Allocator};
use super::lane::{self, Lane};
use super::limits::{CONFIG_BYTES_MAX, millis, within};
use super::load::Loaded;
use super::ticker::Ticker;
use super::{Digest, Limits, Plugin, convert};
use crate::delivery::{Name, Reason};
use crate::secret::Secret;
use http::HeaderName;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, watch};
use wasmtime::Engine;
use wasmtime::component::{HasSelf, Linker};

/// The most calls at a time that any setting can ask for: 16 TiB of address space.
const CALLS_CAP: usize = 1024;

/// What the host needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Quick calls at a time, in the process. The pool has as many slots, and further ones for long calls.
    pub calls_max: usize,
    /// Calls at a time of one tenant.
    pub calls_per_tenant_max: usize,
    /// How long a call waits for its turn before it is the fault `unavailable`.
    pub wait_max: Duration,
    pub limits: Limits,
    /// Tenants with limits of their own.
    pub grants: HashMap<Name, Limits>,
    pub compile: CompileLimits,
    pub compiler: Compiler,
    /// Where compiled plugins are kept. `None`: they are compiled again at each start, and each loaded one holds its
    /// code in memory of its own.
    pub cache_dir: Option<PathBuf>,
    /// For the MAC of what is kept there. It must stay the same from start to start, and secret.
    pub cache_key: Secret,
    pub allocator: Allocator,
    /// Further header names that plugins may not set, e.g. what an endpoint calls its idempotency key.
    pub extra_owned: Vec<HeaderName>,
}

impl Settings {
    /// The defaults: 64 calls at a time, a quarter of them for one tenant, nothing kept on disk.
    pub fn new(compiler: Compiler, cache_key: Secret) -> Self {
        Settings {
            calls_max: 64,
            calls_per_tenant_max: 16,
            wait_max: Duration::from_secs(5),
            limits: Limits::default(),
            grants: HashMap::new(),
            compile: CompileLimits::default(),
            compiler,
            cache_dir: None,
            cache_key,
            allocator: Allocator::Pooling,
            extra_owned: Vec::new(),
        }
    }

    /// Everything that bounds a plugin, by name: what is held against its breakers by the hostile suite.
    pub fn bounds(&self) -> Vec<(&'static str, usize)> {
        let CompileLimits { cpu_max, memory_bytes_max } = self.compile;
        let mut bounds = self.limits.rows().to_vec();
        bounds.extend([
            ("config_bytes_max", CONFIG_BYTES_MAX),
            ("calls_per_tenant_max", self.calls_per_tenant_max),
            ("compile.cpu_max (milliseconds)", millis(cpu_max)),
            ("compile.memory_bytes_max", memory_bytes_max),
            ("path and query, bytes", convert::PATH_BYTES_MAX),
            ("reference, bytes", convert::REFERENCE_BYTES_MAX),
            ("reason code, bytes", Reason::BYTES_MAX),
            ("stack, bytes", engine::STACK_BYTES_MAX),
            ("memories", engine::MEMORIES_MAX as usize),
            ("memories of a module", engine::MEMORIES_PER_MODULE_MAX as usize),
            ("tables", engine::TABLES_MAX as usize),
            ("tables of a module", engine::TABLES_PER_MODULE_MAX as usize),
            ("table elements", engine::TABLE_ELEMENTS_MAX),
            ("core instances", engine::CORE_INSTANCES_MAX as usize),
            ("an instance's own data, bytes", engine::INSTANCE_BYTES_MAX),
            ("faults in a row", Plugin::FAULTS_MAX as usize),
            ("imports beside log", 0),
        ]);
        bounds
    }

    fn check(&self) -> Result<(), HostError> {
        within("calls_max", self.calls_max, CALLS_CAP)?;
        within("calls_per_tenant_max", self.calls_per_tenant_max, self.calls_max)?;
        within("wait_max (milliseconds)", millis(self.wait_max), 60_000)?;
        let caps = CompileLimits::CAPS;
        within("compile.cpu_max (milliseconds)", millis(self.compile.cpu_max), millis(caps.cpu_max))?;
        within("compile.memory_bytes_max", self.compile.memory_bytes_max, caps.memory_bytes_max)?;
        if self.cache_dir.is_some() && self.cache_key.expose().len() < 32 {
            return Err(HostError::CacheKey);
        }
        self.limits.check()?;
        self.grants.values().try_for_each(Limits::check)
    }
}

/// Why there is no host.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("plugin limit {field} is {given}: it must be from 1 to {cap}")]
    Limit { field: &'static str, given: usize, cap: usize },
    #[error("the key for the plugin cache is shorter than 32 bytes: give it 32 random bytes")]
    CacheKey,
    #[error("the plugin cache {dir}: {source}; its folder must be writable for this user", dir = dir.display())]
    Cache { dir: PathBuf, source: std::io::Error },
    #[error(
        "the plugin engine cannot start: {0}; where address space is bounded (ulimit -v, some containers), set a \
         smaller calls_max or the on-demand allocator"
    )]
    Engine(String),
    #[error("the threads of plugin calls cannot start: {0}")]
    Threads(std::io::Error),
}

/// One for the process. Plugins hold on to it.
pub struct Host {
    pub(super) engine: Engine,
    pub(super) ticker: Ticker,
    pub(super) lane: Lane,
    pub(super) linker: Linker<CallState>,
    pub(super) owned: OwnedHeaders,
    pub(super) settings: Settings,
    pub(super) artefacts: Option<Artefacts>,
    pub(super) calls: Semaphore,
    /// One compilation at a time, and never the same one twice.
    pub(super) compiling: tokio::sync::Mutex<()>,
    serving: watch::Sender<bool>,
    /// Told whenever a version is disabled by its faults.
    pub(super) disabled: Notify,
    tenants: Mutex<HashMap<Name, Weak<Semaphore>>>,
    loaded: Mutex<HashMap<(Name, Digest), Weak<Loaded>>>,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Host {
    pub fn new(settings: Settings) -> Result<Arc<Host>, HostError> {
        settings.check()?;
        let failed = |e: wasmtime::Error| HostError::Engine(format!("{e:#}"));
        let slots = u32::try_from(settings.calls_max).unwrap_or(u32::MAX).saturating_add(lane::BEGUN_MAX);
        let engine = engine::engine(settings.allocator, slots).map_err(failed)?;
        let mut linker = Linker::new(&engine);
        bindings::Plugin::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state).map_err(failed)?;
        let artefacts = settings.cache_dir.clone().map(|dir| {
            Artefacts::open(dir.clone(), settings.cache_key.clone(), engine::compatibility(&engine))
                .map_err(|source| HostError::Cache { dir, source })
        });
        let artefacts = artefacts.transpose()?;
        let ticker = Ticker::start(&engine).map_err(HostError::Threads)?;
        let lane = Lane::start().map_err(HostError::Threads)?;
        Ok(Arc::new(Host {
            engine,
            ticker,
            lane,
            linker,
            owned: OwnedHeaders::new(settings.extra_owned.clone()),
            calls: Semaphore::new(settings.calls_max),
            artefacts,
            compiling: tokio::sync::Mutex::new(()),
            serving: watch::Sender::new(false),
            disabled: Notify::new(),
            tenants: Mutex::default(),
            loaded: Mutex::default(),
            settings,
        }))
    }

    /// The bare engine, so that the cost of a call can be measured without the host around it.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Resolves when some version was disabled by its faults since the last time. For one who waits.
    pub async fn some_disabled(&self) {
        self.disabled.notified().await;
    }

    /// From now on there is traffic, which what is compiled must not be felt by. Until then it has a fair part of the
    /// processors.
    pub fn begin_serving(&self) {
        self.serving.send_replace(true);
    }

    /// Resolves when there is traffic.
    pub async fn serving(&self) {
        // The sender is this host's own.
        let _ = self.serving.subscribe().wait_for(|serving| *serving).await;
    }

    pub(super) fn standing(&self) -> Standing {
        if *self.serving.borrow() { Standing::Last } else { Standing::Behind }
    }

    /// What `tenant` may use: its grant, or what all have.
    pub fn limits(&self, tenant: &Name) -> &Limits {
        self.settings.grants.get(tenant).unwrap_or(&self.settings.limits)
    }

    /// The tenant's part of the slots, shared by all of its plugins.
    pub(super) fn tenant_calls(&self, tenant: &Name) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(calls) = tenants.get(tenant).and_then(Weak::upgrade) {
            return calls;
        }
        tenants.retain(|_, calls| calls.strong_count() > 0);
        let calls = Arc::new(Semaphore::new(self.settings.calls_per_tenant_max));
        tenants.insert(tenant.clone(), Arc::downgrade(&calls));
        calls
    }

    /// What is loaded already, by whoever holds it.
    pub(super) fn live(&self, tenant: &Name, digest: Digest) -> Option<Arc<Loaded>> {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.get(&(tenant.clone(), digest)).and_then(Weak::upgrade)
    }

    pub(super) fn keep(&self, tenant: &Name, loaded: &Arc<Loaded>) {
        let mut all = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, other| other.strong_count() > 0);
        all.insert((tenant.clone(), loaded.digest), Arc::downgrade(loaded));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        let mut settings = Settings::new(Compiler::InProcess, Secret::new([7; 32]));
        settings.calls_max = 4;
        settings.calls_per_tenant_max = 2;
        settings
    }

    fn refusal(change: impl FnOnce(&mut Settings)) -> String {
        let mut settings = settings();
        change(&mut settings);
        Host::new(settings).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn every_setting_is_checked() {
        assert!(refusal(|s| s.calls_max = 0).contains("calls_max is 0"));
        assert!(refusal(|s| s.calls_max = 1025).contains("calls_max"));
        assert!(refusal(|s| s.calls_per_tenant_max = 5).contains("calls_per_tenant_max is 5"));
        assert!(refusal(|s| s.wait_max = Duration::from_secs(61)).contains("wait_max"));
        assert!(refusal(|s| s.compile.cpu_max = Duration::from_secs(61)).contains("cpu_max"));
        assert!(refusal(|s| s.compile.memory_bytes_max = 2 << 30).contains("memory_bytes_max"));
        assert!(refusal(|s| s.limits.memory_bytes_max = 1 << 30).contains("memory_bytes_max"));
        let greedy = Limits { input_bytes_max: 2 << 20, ..Limits::default() };
        let grant = |s: &mut Settings| s.grants = HashMap::from([("acme".parse().unwrap(), greedy)]);
        assert!(refusal(grant).contains("input_bytes_max"));
        let short = |s: &mut Settings| {
            s.cache_dir = Some("/nowhere".into());
            s.cache_key = Secret::new("short");
        };
        assert!(refusal(short).contains("32 random bytes"));
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(refusal(|s| s.cache_dir = Some(file.path().join("x"))).contains("plugin cache"));
    }

    #[test]
    fn a_tenants_part_is_shared_and_its_own() {
        let host = Host::new(settings()).unwrap();
        let (acme, other) = ("acme".parse().unwrap(), "other".parse().unwrap());
        let calls = host.tenant_calls(&acme);
        assert_eq!(calls.available_permits(), 2);
        assert!(Arc::ptr_eq(&calls, &host.tenant_calls(&acme)));
        assert!(!Arc::ptr_eq(&calls, &host.tenant_calls(&other)));
    }
}
