//! Trials of a plugin's version on live traffic: which one runs, what was counted, how it ended, and that nothing stays
//! dead by a canary's word.

use super::{LedgerError, TenantKey, VersionRow};
use crate::clock::Timestamp;
use crate::delivery::{Bounds, Counts, DeliveryId, Name, PluginVersionId, Said, Share, TrialId, Window};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Trials kept of one plugin: the newest.
pub const TRIALS_MAX: usize = 20;
/// Calls kept of one trial in which the two versions differed: the newest.
pub const DIFFERENCES_MAX: usize = 50;

/// The verbs on trials.
#[async_trait]
pub trait Trials: Send + Sync + 'static {
    /// A trial runs from now on, beside the version that is in use.
    async fn begin_trial(&self, trial: NewTrial, now: Timestamp) -> Result<Begun, LedgerError>;

    /// Adds to what a trial has counted; also to one that has ended, for its last calls end after it.
    async fn note_trial(&self, tenant: TenantKey, trial: TrialId, noted: Noted) -> Result<(), LedgerError>;

    /// Ends a trial that runs. From the same commit on it is to be seen that the dead letters of a canary are to be put
    /// back. `None`: it does not run any more.
    async fn end_trial(&self, end: EndTrial, now: Timestamp) -> Result<Option<TrialRow>, LedgerError>;

    /// The newest trial of a plugin, whether or not it runs.
    async fn newest_trial(&self, tenant: TenantKey, plugin: &Name) -> Result<Option<TrialRow>, LedgerError>;

    /// Calls in which the versions differed, newest first.
    async fn differences(&self, tenant: TenantKey, trial: TrialId) -> Result<Vec<Difference>, LedgerError>;

    /// Canaries that have ended and whose dead letters are not all put back, of any tenant.
    async fn unsettled_trials(&self) -> Result<Vec<TrialRow>, LedgerError>;

    /// Puts back what is dead by the canary's word, and takes its attempts off the budget of what waits. Each delivery
    /// once, however often this is asked. An attempt that may have been received stays where `held` endpoints want a
    /// person to look; so does what has expired, or whose payload is erased.
    /// `since`: when the last call was over that found attempts under way; those that began by then still count as such.
    async fn put_back(
        &self,
        trial: &TrialRow,
        held: BTreeSet<Name>,
        since: Timestamp,
        now: Timestamp,
    ) -> Result<PutBack, LedgerError>;

    /// Nothing of this trial is left to put back.
    async fn settle_trial(&self, tenant: TenantKey, trial: TrialId) -> Result<(), LedgerError>;
}

/// What [`Trials::put_back`] came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PutBack {
    /// Deliveries that were dead by the canary's word.
    pub put_back: u64,
    /// Attempts under way that began with a budget that the canary had spent: they may end dead by that yet.
    pub under_way: u64,
    /// Those of them that were not known.
    pub found: u64,
}

#[derive(Clone, Debug)]
pub struct NewTrial {
    pub tenant: TenantKey,
    pub plugin: Name,
    pub version: PluginVersionId,
    pub share: Share,
    /// `None`: a shadow.
    pub canary: Option<Bounds>,
    pub by: String,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Begun {
    Done(TrialRow),
    NotFound,
    /// As for [`super::Activated::NotReady`]; or it was disabled by its faults.
    NotReady(VersionRow),
    /// It is the one in use.
    InUse,
    /// There is none in use that it could run beside.
    NothingInUse,
    /// One trial at a time.
    Running(TrialRow),
}

/// One trial.
#[derive(Clone, PartialEq, Debug)]
pub struct TrialRow {
    pub id: TrialId,
    pub tenant: TenantKey,
    pub plugin: Name,
    pub version: PluginVersionId,
    /// The version in use when it began; any change of that ends it.
    pub active: PluginVersionId,
    pub share: Share,
    pub course: Course,
    pub began_at: Timestamp,
    pub by: String,
    pub ended: Option<EndRow>,
}

/// What kind of trial it is, and what it has counted.
#[derive(Clone, PartialEq, Debug)]
pub enum Course {
    Shadow(Compared),
    Canary { bounds: Bounds, halves: Halves },
}

impl Course {
    pub const fn as_str(&self) -> &'static str {
        match self {
            Course::Shadow(_) => "shadow",
            Course::Canary { .. } => "canary",
        }
    }
}

/// A shadow's calls beside those of the version in use.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Compared {
    /// How often the version in use said the one, and the shadow the other.
    pub pairs: BTreeMap<(Said, Said), u64>,
    /// Calls with the same verdict and the same request.
    pub same: u64,
    /// Calls in which the two made different requests.
    pub requests: u64,
    /// Attempts of the share that the shadow was not asked about: there was no room to spare, or too much to take in.
    pub left_out: u64,
}

impl Compared {
    pub fn add(&mut self, more: &Compared) {
        for (pair, times) in &more.pairs {
            *self.pairs.entry(*pair).or_default() += times;
        }
        self.same += more.same;
        self.requests += more.requests;
        self.left_out += more.left_out;
    }

    pub fn calls(&self) -> u64 {
        self.pairs.values().sum()
    }

    /// What the version in use said, and what the shadow said.
    pub fn sides(&self) -> (Counts, Counts) {
        let (mut active, mut shadow) = (Counts::default(), Counts::default());
        for ((from, to), times) in &self.pairs {
            active.add(*from, *times);
            shadow.add(*to, *times);
        }
        (active, shadow)
    }
}

/// A canary's attempts, and those of the version in use.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Halves {
    pub canary: Counts,
    pub active: Counts,
    /// By which the canary is judged.
    pub window: Window,
}

/// What was counted since it was last written down.
#[derive(Clone, Debug)]
pub enum Noted {
    Shadow {
        more: Compared,
        /// Oldest first.
        differences: Vec<Difference>,
    },
    Canary {
        canary: Counts,
        active: Counts,
        /// As it is now.
        window: Window,
    },
}

/// One call in which the versions differed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    pub at: Timestamp,
    pub delivery: DeliveryId,
    pub attempt: u32,
    /// The version in use.
    pub from: Told,
    pub to: Told,
    /// The requests differ.
    pub request: bool,
}

/// A verdict with its reason, or a fault with its kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    pub said: Said,
    pub why: Option<String>,
}

/// How a trial ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Somebody ended it.
    Stopped,
    /// Its version is in use.
    Promoted,
    /// Another version came into use.
    Superseded,
    /// A canary left its bounds.
    RolledBack,
}

impl Ending {
    pub const fn as_str(self) -> &'static str {
        match self {
            Ending::Stopped => "stopped",
            Ending::Promoted => "promoted",
            Ending::Superseded => "superseded",
            Ending::RolledBack => "rolled_back",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndRow {
    pub how: Ending,
    pub at: Timestamp,
    pub by: String,
    pub why: Option<String>,
    /// Deliveries that were dead by the canary's word and are not any more.
    pub put_back: u64,
    /// Some may be left to put back.
    pub unsettled: bool,
}

#[derive(Clone, Debug)]
pub struct EndTrial {
    pub tenant: TenantKey,
    pub trial: TrialId,
    pub how: Ending,
    pub by: String,
    pub why: Option<String>,
}
