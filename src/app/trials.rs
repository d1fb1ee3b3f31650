//! Trials of uploaded versions: begun and ended by the ledger, noted there, and settled until nothing is left dead by a
//! canary that has gone back.

use super::shipping::{AGAIN_AFTER, Declared, Shipping, Ware};
use crate::admin::{Refusal, TrialWish};
use crate::clock::Timestamp;
use crate::crash;
use crate::delivery::{Name, OnAmbiguous, TrialId, Why};
use crate::dispatch::{Identity, Trial};
use crate::ledger::{
    Begun, Course, EndTrial, Ending, LedgerError, NewTrial, PutBack, TrialRow, VersionRow, VersionState,
};
use crate::plugin::Plugin;
use crate::telemetry::PLUGIN_CANARY_ROLLBACKS;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, MutexGuard, PoisonError};

const GATEWAY: &str = "gateway";
const BY_FILE: &str = "the plugin has a file now";

impl Ware {
    pub(super) fn count_rollbacks(&self, more: u64) {
        let (tenant, plugin) = (self.declared.tenant.to_string(), self.declared.name.to_string());
        metrics::counter!(PLUGIN_CANARY_ROLLBACKS, "tenant" => tenant, "plugin" => plugin).increment(more);
    }
}

impl Shipping {
    /// The trial that the ledger says is running, beside the version that is in use.
    pub(super) async fn resume_trial(self: &Arc<Self>, ware: &Ware) -> Result<(), LedgerError> {
        let (key, name) = (ware.declared.key, &ware.declared.name);
        if !ware.is_loaded() {
            return Ok(());
        }
        let Some(row) = self.ledger.newest_trial(key, name).await?.filter(|row| row.ended.is_none()) else {
            return Ok(());
        };
        if let Some(known) = self.known(row.id) {
            ware.set_trial(Some(known));
            return Ok(());
        }
        let history = self.history(ware).await?;
        let Some(version) = history.version(row.version) else { return Ok(()) };
        match self.load(&ware.declared.tenant, version.digest).await {
            Ok(plugin) => {
                ware.set_trial(Some(self.trial_of(&row, plugin)));
            }
            Err(rejected) => {
                let why = Some(format!("it cannot be loaded: {rejected}"));
                tracing::error!(tenant = %ware.declared.tenant, plugin = %name, trial = %row.id, version = %row.version, why, "a trial has ended");
                let how = EndTrial { tenant: key, trial: row.id, how: Ending::Stopped, by: GATEWAY.to_owned(), why };
                self.ledger.end_trial(how, self.clock.now()).await?;
            }
        }
        Ok(())
    }

    fn own(&self) -> MutexGuard<'_, HashMap<TrialId, Arc<Trial>>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, trial: TrialId) -> Option<Arc<Trial>> {
        self.own().get(&trial).cloned()
    }

    fn trial_of(&self, row: &TrialRow, plugin: Plugin) -> Arc<Trial> {
        let identity = Identity { id: row.id, version: row.version, share: row.share };
        let trial = match &row.course {
            Course::Shadow(_) => Trial::shadow(identity, Arc::new(plugin.aside())),
            Course::Canary { bounds, halves } => {
                let judged_by = (*bounds, halves.window);
                Trial::canary(identity, Arc::new(plugin.on_trial()), judged_by, Arc::clone(&self.alarm))
            }
        };
        self.own().insert(row.id, Arc::clone(&trial));
        trial
    }

    pub(super) async fn begin(self: &Arc<Self>, wish: TrialWish) -> Result<TrialRow, Refusal> {
        let TrialWish { tenant, plugin, version, share, canary, by } = wish;
        let ware = self.find(&tenant, &plugin).ok_or(Refusal::NotFound)?;
        let known = self.history(&ware).await?.version(version).cloned().ok_or(Refusal::NoSuchVersion)?;
        let digest = match known {
            VersionRow { state: VersionState::Ready, uploaded: Some(_), digest, .. } => digest,
            VersionRow { state: VersionState::Rejected(_), .. } => return Err(Refusal::Rejected(known)),
            known => return Err(Refusal::NotReady(known)),
        };
        let loaded = self.load(&tenant, digest).await.map_err(|rejected| Refusal::NotLoaded {
            rule: rejected.rule,
            finding: rejected.finding,
            remedy: rejected.remedy,
        })?;
        let _turn = self.turn.lock().await;
        if !self.is_current(&ware) {
            return Err(Refusal::NotFound);
        }
        if !ware.is_loaded() {
            return Err(Refusal::NothingInUse);
        }
        let key = ware.declared.key;
        let new = NewTrial { tenant: key, plugin: plugin.clone(), version, share, canary, by: by.clone() };
        match self.ledger.begin_trial(new, self.clock.now()).await? {
            Begun::Done(row) => {
                let (kind, share) = (row.course.as_str(), share.ratio());
                tracing::info!(%tenant, %plugin, %version, trial = %row.id, %share, by, "a {kind} has begun");
                ware.set_trial(Some(self.trial_of(&row, loaded)));
                Ok(row)
            }
            Begun::NotFound => Err(Refusal::NoSuchVersion),
            Begun::NotReady(row) => Err(Refusal::NotReady(row)),
            Begun::InUse => Err(Refusal::InUse),
            Begun::NothingInUse => Err(Refusal::NothingInUse),
            Begun::Running(row) => Err(Refusal::TrialRunning(row.id)),
        }
    }

    pub(super) async fn stop(
        self: &Arc<Self>,
        tenant: &Name,
        plugin: &Name,
        canary: bool,
        by: &str,
    ) -> Result<TrialRow, Refusal> {
        let ware = self.find(tenant, plugin).ok_or(Refusal::NotFound)?;
        let _turn = self.turn.lock().await;
        let newest = self.ledger.newest_trial(ware.declared.key, plugin).await?;
        let is_meant = |row: &TrialRow| row.ended.is_none() && matches!(row.course, Course::Canary { .. }) == canary;
        let row = newest.filter(is_meant).ok_or(Refusal::NoTrial)?;
        let by = by.to_owned();
        let ended = self.end(&ware, row.id, (Ending::Stopped, by, None)).await?.ok_or(Refusal::NoTrial)?;
        tracing::info!(%tenant, %plugin, trial = %ended.id, version = %ended.version, "a {} was stopped", ended.course.as_str());
        Ok(ended)
    }

    /// With the turn: ends it in the ledger, then for attempts.
    async fn end(
        self: &Arc<Self>,
        ware: &Arc<Ware>,
        trial: TrialId,
        (how, by, why): (Ending, String, Option<String>),
    ) -> Result<Option<TrialRow>, LedgerError> {
        self.note(ware).await?;
        let end = EndTrial { tenant: ware.declared.key, trial, how, by, why };
        let ended = self.ledger.end_trial(end, self.clock.now()).await?;
        if how == Ending::RolledBack {
            crash::point("T1");
        }
        match ware.set_trial(None).or_else(|| self.known(trial)) {
            Some(trial) => self.over(&ware.declared, Some(trial)),
            // It could not be loaded; what it did before is settled all the same.
            None => drop(tokio::spawn(Arc::clone(self).settle(ware.declared.clone()))),
        }
        Ok(ended)
    }

    /// With the turn: the file's version is in use, and what the API tried of the plugin has ended.
    pub(super) async fn supersede(self: &Arc<Self>, declared: Declared) {
        if let Err(error) = self.try_supersede(&declared).await {
            tracing::warn!(tenant = %declared.tenant, plugin = %declared.name, %error, "a trial of a plugin that has a file now is not ended yet");
            tokio::spawn(Arc::clone(self).keep_superseding(declared));
        }
    }

    async fn keep_superseding(self: Arc<Self>, declared: Declared) {
        // poll: a ledger that cannot write now may soon.
        loop {
            tokio::time::sleep(AGAIN_AFTER).await;
            let _turn = self.turn.lock().await;
            if !self.is_filed(&declared) {
                return;
            }
            match self.try_supersede(&declared).await {
                Ok(()) | Err(LedgerError::Stopped(_)) => return,
                Err(error) => tracing::debug!(plugin = %declared.name, %error, "not ended yet"),
            }
        }
    }

    async fn try_supersede(self: &Arc<Self>, declared: &Declared) -> Result<(), LedgerError> {
        let Declared { key, tenant, name } = declared;
        if let Some(row) = self.ledger.newest_trial(*key, name).await?.filter(|row| row.ended.is_none()) {
            let why = Some(BY_FILE.to_owned());
            let how = EndTrial { tenant: *key, trial: row.id, how: Ending::Superseded, by: GATEWAY.to_owned(), why };
            self.ledger.end_trial(how, self.clock.now()).await?;
            tracing::info!(%tenant, plugin = %name, trial = %row.id, version = %row.version, "a {} has ended: {BY_FILE}", row.course.as_str());
            self.over(declared, self.known(row.id));
        }
        // Before that an attempt of the process before may still count as under way.
        if self.is_watching() {
            tokio::spawn(Arc::clone(self).settle(declared.clone()));
        }
        Ok(())
    }

    /// Sees to what is left of a trial that has ended.
    pub(super) fn over(self: &Arc<Self>, of: &Declared, trial: Option<Arc<Trial>>) {
        if let Some(trial) = trial {
            tokio::spawn(Arc::clone(self).finish(of.clone(), trial));
        }
    }

    async fn finish(self: Arc<Self>, of: Declared, trial: Arc<Trial>) {
        let mut since = Timestamp::ZERO;
        // What is dead already need not wait for what is under way.
        self.put_back(&of, |row| row.id == trial.id, (Left::More, &mut since)).await;
        trial.end().await;
        if let Some(noted) = trial.take()
            && let Err(error) = self.ledger.note_trial(of.key, trial.id, noted).await
        {
            tracing::warn!(trial = %trial.id, %error, "the last figures of a trial are not written down");
        }
        self.put_back(&of, |row| row.id == trial.id, (Left::Nothing, &mut since)).await;
        self.own().remove(&trial.id);
    }

    /// What an earlier process, or an earlier configuration, left to be put back.
    pub(super) async fn settle(self: Arc<Self>, of: Declared) {
        let is_left = |row: &TrialRow| row.plugin == of.name && !self.own().contains_key(&row.id);
        let mut since = Timestamp::ZERO;
        self.put_back(&of, is_left, (Left::Nothing, &mut since)).await;
    }

    /// Keeps at it while the ledger cannot: nothing stays dead by a canary's word.
    async fn put_back(&self, of: &Declared, which: impl Fn(&TrialRow) -> bool, (left, since): (Left, &mut Timestamp)) {
        // poll: a ledger that cannot write now may soon.
        loop {
            match self.try_put_back(of, &which, (left, &mut *since)).await {
                Ok(0) | Err(LedgerError::Stopped(_)) => return,
                Ok(_) if left == Left::More => return,
                // They are settled soon, and then looked at once more.
                Ok(_under_way) => {}
                Err(error) => {
                    tracing::warn!(plugin = %of.name, %error, "dead letters of a canary are not put back yet");
                }
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }

    async fn try_put_back(
        &self,
        of: &Declared,
        which: &impl Fn(&TrialRow) -> bool,
        (left, since): (Left, &mut Timestamp),
    ) -> Result<u64, LedgerError> {
        let mut all_under_way = 0;
        let (tenant, plugin) = (&of.tenant, &of.name);
        let all = self.ledger.unsettled_trials().await?;
        for row in all.iter().filter(|row| row.tenant == of.key && which(row)) {
            let done = self.ledger.put_back(row, self.held(tenant), *since, self.clock.now()).await?;
            let PutBack { put_back, under_way, found } = done;
            if found > 0 {
                *since = self.clock.now();
            }
            if put_back > 0 {
                tracing::info!(%tenant, %plugin, trial = %row.id, put_back, "dead letters of a canary were put back");
            }
            match (left, under_way) {
                (Left::Nothing, 0) => self.ledger.settle_trial(row.tenant, row.id).await?,
                (Left::More | Left::Nothing, _) => all_under_way += under_way,
            }
        }
        Ok(all_under_way)
    }

    /// Endpoints whose owner wants to look at what may have been received.
    fn held(&self, tenant: &Name) -> BTreeSet<Name> {
        let targets = self.targets.endpoints().into_iter().filter_map(|key| self.targets.endpoint(key));
        let held = targets.filter(|t| t.tenant == *tenant && t.terms.on_ambiguous == OnAmbiguous::Hold);
        held.map(|target| target.name.clone()).collect()
    }

    /// Writes down what was counted, and rolls back what has left its bounds.
    pub(super) async fn tend_trials(self: &Arc<Self>) {
        for ware in self.wares() {
            let Some(trial) = ware.trial() else { continue };
            let tended = match trial.judged() {
                Some(why) => self.roll_back_canary(&ware, &trial, why).await,
                None => self.note(&ware).await,
            };
            if let Err(error) = tended {
                tracing::warn!(tenant = %ware.declared.tenant, plugin = %ware.declared.name, trial = %trial.id, %error, "the trial is not written down yet");
            }
        }
    }

    async fn note(&self, ware: &Ware) -> Result<(), LedgerError> {
        let Some(trial) = ware.trial() else { return Ok(()) };
        let Some(noted) = trial.take() else { return Ok(()) };
        let written = self.ledger.note_trial(ware.declared.key, trial.id, noted.clone()).await;
        if written.is_err() {
            trial.give_back(noted);
        }
        written
    }

    async fn roll_back_canary(
        self: &Arc<Self>,
        ware: &Arc<Ware>,
        trial: &Arc<Trial>,
        why: Why,
    ) -> Result<(), LedgerError> {
        let _turn = self.turn.lock().await;
        if !ware.trial().is_some_and(|now| Arc::ptr_eq(&now, trial)) {
            return Ok(());
        }
        let told = (Ending::RolledBack, GATEWAY.to_owned(), Some(why.to_string()));
        if let Some(row) = self.end(ware, trial.id, told).await? {
            let (tenant, plugin) = (&ware.declared.tenant, &ware.declared.name);
            tracing::warn!(
                event = "plugin_canary_rolled_back", %tenant, %plugin, trial = %row.id, version = %row.version,
                active = %row.active, %why, "a canary was rolled back"
            );
            ware.count_rollbacks(1);
        }
        Ok(())
    }
}

/// Whether a canary's attempts may still be under way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    More,
    Nothing,
}
