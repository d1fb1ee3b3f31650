//! Plugins that the API manages: from an upload to what attempts use.
//!
//! Authoritative is the ledger: which versions there are, and which is in use. Here is what follows from it: the
//! compiled version in memory behind a [`Live`], which attempts take as it stands, and the pauses of endpoints that
//! have none. Nothing that an attempt does waits for anything in here.

use super::contents::Contents;
use crate::admin::{Refusal, Shipment, Shipped, Shipyard, TrialWish};
use crate::clock::Clock;
use crate::delivery::{Name, PluginVersionId, TrialId};
use crate::dispatch::{InUse, Live, Targets, Trial};
use crate::ledger::{
    Activate, Activated, Change, Disable, EndpointKey, FaultRow, Findings, History, Judgement, Ledger, LedgerError,
    Rejection, TenantKey, TrialRow, Upload, Uploaded, VersionRow, VersionState,
};
use crate::plugin::{Absent, Exports, Host, Limits, Plugin, Rejected, Rules as _, look};
use async_trait::async_trait;
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Uploads that compile or wait for their turn to.
const UPLOADS_MAX: usize = 8;
/// After a ledger that could not write.
pub(super) const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Between two times that what trials have counted is written down.
const NOTE_EVERY: Duration = Duration::from_secs(1);

type Key = (Name, Name);

/// A plugin without a file: tenant and name.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    pub(super) key: TenantKey,
    pub(super) tenant: Name,
    pub(super) name: Name,
}

/// One such plugin, as attempts use it.
pub(super) struct Ware {
    pub(super) declared: Declared,
    pub(super) live: Arc<Live>,
    stands: Mutex<Stands>,
}

#[derive(Default)]
struct Stands {
    /// What is in use.
    loaded: Option<(PluginVersionId, Arc<Plugin>)>,
    /// What is tried beside it: nothing, where nothing is in use.
    trial: Option<Arc<Trial>>,
    /// Why endpoints wait, where they must.
    wanting: Option<String>,
    endpoints: Vec<EndpointKey>,
}

/// What is in use from now on.
enum Next {
    Version(PluginVersionId, Arc<Plugin>),
    Nothing { exports: Exports, why: String },
}

impl Ware {
    fn new(declared: Declared) -> Arc<Self> {
        let nothing = Absent { exports: Exports { transform: true, classify: true }, why: String::new() };
        let live = Arc::new(Live::new(InUse { rules: Arc::new(nothing), version: None }));
        Arc::new(Ware { declared, live, stands: Mutex::default() })
    }

    fn stands(&self) -> std::sync::MutexGuard<'_, Stands> {
        self.stands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the trial that has ended by it: beside another version it is another trial.
    fn put(&self, what: Next) -> Option<Arc<Trial>> {
        let mut stands = self.stands();
        let mut ended = stands.trial.take();
        match what {
            Next::Version(version, plugin) => {
                if stands.loaded.as_ref().is_some_and(|(before, _)| *before == version) {
                    stands.trial = ended.take();
                }
                let rules = Arc::clone(&plugin) as Arc<dyn crate::plugin::Rules>;
                self.live.replace(InUse { rules, version: Some(version) }, stands.trial.clone());
                stands.loaded = Some((version, plugin));
                stands.wanting = None;
            }
            Next::Nothing { exports, why } => {
                // Without a transform what is sent is the event itself: only the verdict falls back.
                stands.wanting = exports.transform.then(|| format!("plugin_not_ready: {why}"));
                self.live.replace(InUse { rules: Arc::new(Absent { exports, why }), version: None }, None);
                stands.loaded = None;
            }
        }
        ended
    }

    pub(super) fn is_loaded(&self) -> bool {
        self.stands().loaded.is_some()
    }

    pub(super) fn trial(&self) -> Option<Arc<Trial>> {
        self.stands().trial.clone()
    }

    /// Gives the one before. The version in use stays as it is.
    pub(super) fn set_trial(&self, trial: Option<Arc<Trial>>) -> Option<Arc<Trial>> {
        let mut stands = self.stands();
        self.live.set_trial(trial.as_ref());
        std::mem::replace(&mut stands.trial, trial)
    }

    /// What is in use, loaded.
    pub(super) fn in_use(&self) -> Option<(PluginVersionId, Arc<Plugin>)> {
        self.stands().loaded.clone()
    }

    /// What is in use, if its faults have disabled it.
    fn worn_out(&self) -> Option<(PluginVersionId, FaultRow)> {
        let stands = self.stands();
        let (version, plugin) = stands.loaded.as_ref()?;
        let kind = plugin.disabled_by()?.as_str().to_owned();
        Some((*version, FaultRow { kind, in_a_row: Plugin::FAULTS_MAX }))
    }
}

/// All of them.
pub(super) struct Shipping {
    pub(super) ledger: Arc<dyn Ledger>,
    host: Arc<Host>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) targets: Arc<Targets>,
    /// Told when a canary is to be rolled back.
    pub(super) alarm: Arc<Notify>,
    /// Trials of this process that are not over with, also of a plugin that a reload has taken out: attempts of theirs
    /// may be under way, and whoever ends one waits for these.
    pub(super) own: Mutex<HashMap<TrialId, Arc<Trial>>>,
    /// What the process before left under way is settled.
    watching: AtomicBool,
    contents: Arc<Contents>,
    wares: Mutex<HashMap<Key, Arc<Ware>>>,
    /// Plugins of the file: what the API tried of them before has ended.
    filed: Mutex<Vec<Declared>>,
    uploads: Arc<Semaphore>,
    /// One change of what is in use, or tried, at a time.
    pub(super) turn: tokio::sync::Mutex<()>,
}

impl Shipping {
    pub(super) fn new(
        ledger: Arc<dyn Ledger>,
        host: Arc<Host>,
        clock: Arc<dyn Clock>,
        targets: Arc<Targets>,
        contents: Contents,
    ) -> Arc<Self> {
        Arc::new(Shipping {
            ledger,
            host,
            clock,
            targets,
            alarm: Arc::default(),
            own: Mutex::default(),
            watching: AtomicBool::new(false),
            contents: Arc::new(contents),
            wares: Mutex::default(),
            filed: Mutex::default(),
            uploads: Arc::new(Semaphore::new(UPLOADS_MAX)),
            turn: tokio::sync::Mutex::default(),
        })
    }

    /// The plugin as it is already, or made ready by what the ledger says: no version that is in use changes.
    pub(super) async fn prepare(self: &Arc<Self>, declared: Declared) -> Result<Arc<Ware>, LedgerError> {
        if let Some(known) = self.find(&declared.tenant, &declared.name).filter(|w| w.declared.key == declared.key) {
            // What could not be loaded before may be by now.
            let _turn = self.turn.lock().await;
            if known.stands().loaded.is_none() {
                let history = self.history(&known).await?;
                known.put(self.by(&known, &history).await);
                self.resume_trial(&known).await?;
            }
            return Ok(known);
        }
        let ware = Ware::new(declared);
        ware.count_rollbacks(0);
        let history = self.history(&ware).await?;
        ware.put(self.by(&ware, &history).await);
        self.resume_trial(&ware).await?;
        Ok(ware)
    }

    /// These are the plugins from now on, each with the endpoints that name it, and those with a file; `others` are all
    /// other endpoints.
    pub(super) async fn replace(
        self: &Arc<Self>,
        wares: Vec<(Arc<Ware>, Vec<EndpointKey>)>,
        filed: Vec<Declared>,
        others: Vec<EndpointKey>,
    ) {
        let _turn = self.turn.lock().await;
        let (mut held, mut freed) = (Vec::new(), others);
        let mut all = HashMap::new();
        let mut fresh = Vec::new();
        for (ware, endpoints) in wares {
            let key = (ware.declared.tenant.clone(), ware.declared.name.clone());
            let mut stands = ware.stands();
            match &stands.wanting {
                Some(why) => held.extend(endpoints.iter().map(|endpoint| (*endpoint, why.clone()))),
                None => freed.extend(&endpoints),
            }
            stands.endpoints = endpoints;
            drop(stands);
            if !self.is_current(&ware) {
                fresh.push(Arc::clone(&ware));
            }
            all.insert(key, ware);
        }
        *self.wares.lock().unwrap_or_else(PoisonError::into_inner) = all;
        *self.filed.lock().unwrap_or_else(PoisonError::into_inner) = filed.clone();
        if let Err(error) = self.ledger.pause_for_plugins(held, freed, self.clock.now()).await {
            // Then attempts find out one by one, and pause their endpoint for a while each time.
            tracing::warn!(%error, "endpoints without a version of their plugin are not paused yet");
        }
        for ware in fresh {
            tokio::spawn(Arc::clone(self).resume(ware));
        }
        for declared in filed {
            self.supersede(declared).await;
        }
    }

    /// Whether what an earlier process left under way is settled.
    pub(super) fn is_watching(&self) -> bool {
        self.watching.load(Ordering::SeqCst)
    }

    /// The plugin is still the API's, and this is it.
    pub(super) fn is_current(&self, ware: &Arc<Ware>) -> bool {
        let Declared { tenant, name, .. } = &ware.declared;
        self.find(tenant, name).is_some_and(|now| Arc::ptr_eq(&now, ware))
    }

    pub(super) fn is_filed(&self, declared: &Declared) -> bool {
        let filed = self.filed.lock().unwrap_or_else(PoisonError::into_inner);
        filed.iter().any(|one| one.key == declared.key && one.name == declared.name)
    }

    /// All plugins, wherever their versions come from.
    fn declared(&self) -> Vec<Declared> {
        let filed = self.filed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.wares().iter().map(|ware| ware.declared.clone()).chain(filed).collect()
    }

    pub(super) fn wares(&self) -> Vec<Arc<Ware>> {
        self.wares.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(super) fn find(&self, tenant: &Name, plugin: &Name) -> Option<Arc<Ware>> {
        let wares = self.wares.lock().unwrap_or_else(PoisonError::into_inner);
        wares.get(&(tenant.clone(), plugin.clone())).cloned()
    }

    pub(super) async fn history(&self, ware: &Ware) -> Result<History, LedgerError> {
        self.ledger.plugin_history(ware.declared.key, &ware.declared.name).await
    }

    /// What the ledger says is in use, loaded; and why not, if it cannot be.
    async fn by(&self, ware: &Ware, history: &History) -> Next {
        let name = &ware.declared.name;
        let exports = |row: Option<&VersionRow>| match row.and_then(|row| row.findings.as_ref()) {
            Some(found) => Exports { transform: found.transform, classify: found.classify },
            None => Exports { transform: true, classify: true },
        };
        let Some(row) = history.active() else {
            // Whatever was in use before it was taken out tells what is missing.
            let last = history.activations.iter().find_map(|row| history.version(row.version?));
            let why = match last {
                None => format!("upload and activate a version of `{name}`"),
                Some(_) => format!("the version of `{name}` in use was disabled by its faults: activate another"),
            };
            return Next::Nothing { exports: exports(last), why };
        };
        match self.load(&ware.declared.tenant, row.digest).await {
            Ok(plugin) => Next::Version(row.id, Arc::new(plugin)),
            Err(rejected) => {
                tracing::error!(tenant = %ware.declared.tenant, plugin = %name, version = %row.id, %rejected, "the version in use cannot be loaded");
                let why = format!("{} of `{name}` cannot be loaded ({}): activate another", row.id, rejected.rule);
                Next::Nothing { exports: exports(Some(row)), why }
            }
        }
    }

    /// What a tenant's plugins may take.
    pub(super) fn limits(&self, tenant: &Name) -> Limits {
        *self.host.limits(tenant)
    }

    pub(super) async fn load(&self, tenant: &Name, digest: [u8; 32]) -> Result<Plugin, Rejected> {
        let contents = Arc::clone(&self.contents);
        let read = tokio::task::spawn_blocking(move || contents.get(&digest)).await;
        let lost = |finding: String| Rejected { rule: "content", finding, remedy: "upload it again".into() };
        let wasm = match read {
            Ok(Ok(Some(wasm))) => wasm,
            Ok(Ok(None)) => return Err(lost("its content is not in the data directory".into())),
            Ok(Err(e)) => return Err(lost(e.to_string())),
            Err(e) => return Err(lost(e.to_string())),
        };
        self.host.load(tenant, wasm.into()).await
    }

    /// Compiles what a process that ended was about to, and puts back what it left.
    async fn resume(self: Arc<Self>, ware: Arc<Ware>) {
        if self.is_watching() {
            Arc::clone(&self).settle(ware.declared.clone()).await;
        }
        // What waits for a verdict has time: no start waits for it, and it may be ruinous.
        self.host.serving().await;
        let history = match self.history(&ware).await {
            Ok(history) => history,
            Err(error) => {
                tracing::warn!(%error, "versions that were being compiled are left until the next start");
                return;
            }
        };
        for row in history.versions.into_iter().filter(|row| row.state == VersionState::Compiling) {
            let Ok(place) = Arc::clone(&self.uploads).acquire_owned().await else { return };
            let loaded = self.load(&ware.declared.tenant, row.digest).await;
            if let Err(error) = self.judge(&ware, row.id, loaded.map(|plugin| found(&plugin)), place).await {
                tracing::warn!(version = %row.id, %error, "a version that was being compiled is left until the next start");
            }
        }
    }

    /// Writes down what became of a version.
    async fn judge(
        &self,
        ware: &Ware,
        version: PluginVersionId,
        loaded: Result<Findings, Rejected>,
        _place: OwnedSemaphorePermit,
    ) -> Result<VersionRow, LedgerError> {
        let Declared { key, tenant, name } = &ware.declared;
        let judgement = match loaded {
            Ok(findings) => {
                tracing::info!(%tenant, plugin = %name, %version, "a version is ready");
                Judgement::Ready(findings)
            }
            Err(Rejected { rule, finding, remedy }) => {
                tracing::info!(%tenant, plugin = %name, %version, rule, finding, "a version is rejected");
                Judgement::Rejected(Rejection { rule: rule.to_owned(), finding, remedy })
            }
        };
        if let Some(row) = self.ledger.judge_version(*key, version, judgement).await? {
            return Ok(row);
        }
        // Another upload of the same content was first.
        let row = self.history(ware).await?.version(version).cloned();
        row.ok_or_else(|| LedgerError::Unavailable("the version is gone".into()))
    }

    /// From the bytes to a version with a verdict; runs to its end whether or not anybody waits for it.
    async fn take_in(self: Arc<Self>, ware: Arc<Ware>, row: VersionRow, how: TakeIn) -> Result<VersionRow, Refusal> {
        let TakeIn { wasm, looked, place, by, activate } = how;
        let row = if row.state == VersionState::Compiling {
            let loaded = match looked {
                Ok(()) => self.host.load(&ware.declared.tenant, wasm).await.map(|plugin| found(&plugin)),
                Err(rejected) => Err(rejected),
            };
            self.judge(&ware, row.id, loaded, place).await?
        } else {
            row
        };
        match row.state {
            VersionState::Rejected(_) => Err(Refusal::Rejected(row)),
            VersionState::Compiling | VersionState::Ready | VersionState::Disabled(_) if activate => {
                self.put_in_use(&ware, row.id, Change::Activate, &by).await
            }
            VersionState::Compiling | VersionState::Ready | VersionState::Disabled(_) => Ok(row),
        }
    }

    async fn put_in_use(
        self: &Arc<Self>,
        ware: &Arc<Ware>,
        version: PluginVersionId,
        what: Change,
        by: &str,
    ) -> Result<VersionRow, Refusal> {
        let Declared { key, tenant, name } = &ware.declared;
        let known = self.history(ware).await?.version(version).cloned().ok_or(Refusal::NoSuchVersion)?;
        match &known.state {
            VersionState::Ready | VersionState::Disabled(_) if known.uploaded.is_some() => {}
            VersionState::Rejected(_) => return Err(Refusal::Rejected(known)),
            VersionState::Ready | VersionState::Disabled(_) | VersionState::Compiling => {
                return Err(Refusal::NotReady(known));
            }
        }
        // Before the turn, for it may have to be compiled anew; before the commit, so that what is in use can be used.
        let plugin = self.load(tenant, known.digest).await.map_err(|rejected| Refusal::NotLoaded {
            rule: rejected.rule,
            finding: rejected.finding,
            remedy: rejected.remedy,
        })?;
        let _turn = self.turn.lock().await;
        let activate = Activate { tenant: *key, plugin: name.clone(), version, what, by: by.to_owned() };
        match self.ledger.activate_version(activate, self.clock.now()).await? {
            Activated::Done(row) => {
                tracing::info!(%tenant, plugin = %name, %version, by, "{} a version", what.as_str());
                self.over(&ware.declared, ware.put(Next::Version(version, Arc::new(plugin))));
                self.settle_pauses(ware).await?;
                Ok(row)
            }
            Activated::NotFound => Err(Refusal::NoSuchVersion),
            Activated::NotReady(row) => Err(Refusal::NotReady(row)),
        }
    }

    async fn settle_pauses(&self, ware: &Ware) -> Result<(), LedgerError> {
        let (held, freed) = {
            let stands = ware.stands();
            match &stands.wanting {
                Some(why) => (stands.endpoints.iter().map(|e| (*e, why.clone())).collect(), Vec::new()),
                None => (Vec::new(), stands.endpoints.clone()),
            }
        };
        self.ledger.pause_for_plugins(held, freed, self.clock.now()).await
    }

    /// Makes durable what faults have disabled, as it happens, and what trials have counted and come to.
    pub(super) async fn watch(self: Arc<Self>, stop: CancellationToken) {
        self.watching.store(true, Ordering::SeqCst);
        for declared in self.declared() {
            tokio::spawn(Arc::clone(&self).settle(declared));
        }
        let mut every = tokio::time::interval(NOTE_EVERY);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let worn_out = tokio::select! {
                // Attempts are settled by now.
                () = stop.cancelled() => return self.tend_trials().await,
                () = self.host.some_disabled() => true,
                () = self.alarm.notified() => false,
                _ = every.tick() => false,
            };
            // poll: a ledger that cannot write now may soon.
            while worn_out && let Err(error) = self.take_out().await {
                tracing::warn!(%error, "a plugin that its faults have disabled is not taken out yet");
                if stop.run_until_cancelled(tokio::time::sleep(AGAIN_AFTER)).await.is_none() {
                    return;
                }
            }
            self.tend_trials().await;
        }
    }

    async fn take_out(self: &Arc<Self>) -> Result<(), LedgerError> {
        let _turn = self.turn.lock().await;
        for ware in self.wares() {
            let Some((version, faults)) = ware.worn_out() else { continue };
            let Declared { key, tenant, name } = &ware.declared;
            let history = self.history(&ware).await?;
            // Loaded before the ledger says so, and again at no cost by what it says then.
            let fallback = match history.before() {
                Some(row) => match self.load(tenant, row.digest).await {
                    Ok(plugin) => Some((row.id, plugin)),
                    Err(rejected) => {
                        tracing::error!(%tenant, plugin = %name, version = %row.id, %rejected, "the version to fall back to cannot be loaded");
                        None
                    }
                },
                None => None,
            };
            let disable = Disable {
                tenant: *key,
                plugin: name.clone(),
                version,
                faults,
                fallback: fallback.as_ref().map(|(id, _)| *id),
            };
            self.ledger.disable_version(disable, self.clock.now()).await?;
            let now_in_use = fallback.as_ref().map_or_else(|| "none".to_owned(), |(id, _)| id.to_string());
            tracing::error!(%tenant, plugin = %name, %version, now_in_use, "a version was disabled by its faults");
            let history = self.history(&ware).await?;
            self.over(&ware.declared, ware.put(self.by(&ware, &history).await));
            drop(fallback);
            self.settle_pauses(&ware).await?;
        }
        Ok(())
    }
}

/// What goes with an upload to its end.
struct TakeIn {
    wasm: Bytes,
    looked: Result<(), Rejected>,
    place: OwnedSemaphorePermit,
    by: String,
    activate: bool,
}

fn found(plugin: &Plugin) -> Findings {
    let Exports { transform, classify } = plugin.exports();
    Findings { transform, classify, warnings: plugin.warnings().to_vec() }
}

#[async_trait]
impl Shipyard for Arc<Shipping> {
    async fn upload(&self, shipment: Shipment) -> Result<Shipped, Refusal> {
        let Shipment { tenant, plugin, wasm, by, activate, wait } = shipment;
        let ware = self.find(&tenant, &plugin).ok_or(Refusal::NotFound)?;
        let place = Arc::clone(&self.uploads).try_acquire_owned().map_err(|_| Refusal::Busy)?;
        let limits: Limits = *self.host.limits(&tenant);
        let (contents, bytes) = (Arc::clone(&self.contents), wasm.clone());
        // What is no component at all needs no place on the disk: nothing will ever ask for it.
        let kept = tokio::task::spawn_blocking(move || {
            let digest = *crate::plugin::Digest::of(&bytes).as_bytes();
            let looked = look(&bytes, &limits).map(drop);
            if looked.is_ok() {
                contents.put(&digest, &bytes)?;
            }
            Ok::<_, std::io::Error>((digest, looked))
        });
        let (digest, looked) = match kept.await {
            Ok(Ok(kept)) => kept,
            Ok(Err(e)) => return Err(Refusal::Disk(e.to_string())),
            Err(e) => return Err(Refusal::Disk(e.to_string())),
        };
        let upload = Upload {
            tenant: ware.declared.key,
            plugin,
            digest,
            bytes: u64::try_from(wasm.len()).unwrap_or(u64::MAX),
            by: by.clone(),
        };
        let (row, is_new) = match self.ledger.upload_version(upload, self.clock.now()).await? {
            Uploaded::Compile(row) => (row, true),
            Uploaded::Known(row) => (row, false),
            Uploaded::TooMany => return Err(Refusal::TooMany),
        };
        let how = TakeIn { wasm, looked, place, by, activate };
        let work = tokio::spawn(Arc::clone(self).take_in(ware, row.clone(), how));
        if !wait {
            return Ok(Shipped { row, is_new });
        }
        match work.await {
            Ok(row) => Ok(Shipped { row: row?, is_new }),
            Err(e) => Err(Refusal::Disk(e.to_string())),
        }
    }

    async fn activate(
        &self,
        tenant: &Name,
        plugin: &Name,
        version: PluginVersionId,
        by: &str,
    ) -> Result<VersionRow, Refusal> {
        let ware = self.find(tenant, plugin).ok_or(Refusal::NotFound)?;
        self.put_in_use(&ware, version, Change::Activate, by).await
    }

    async fn roll_back(&self, tenant: &Name, plugin: &Name, by: &str) -> Result<VersionRow, Refusal> {
        let ware = self.find(tenant, plugin).ok_or(Refusal::NotFound)?;
        let before = self.history(&ware).await?.before().map(|row| row.id).ok_or(Refusal::NothingBefore)?;
        self.put_in_use(&ware, before, Change::Rollback, by).await
    }

    async fn begin_trial(&self, wish: TrialWish) -> Result<TrialRow, Refusal> {
        self.begin(wish).await
    }

    async fn stop_trial(&self, tenant: &Name, plugin: &Name, canary: bool, by: &str) -> Result<TrialRow, Refusal> {
        self.stop(tenant, plugin, canary, by).await
    }
}
