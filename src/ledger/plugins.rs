//! Versions of plugins: which there are, what became of each, and which is in use since when and by whom.

use super::{EndpointKey, LedgerError, TenantKey};
use crate::clock::Timestamp;
use crate::delivery::{Name, PluginVersionId};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};

/// Versions kept of one plugin: for further ones the oldest uploads go that were not in use lately.
pub const VERSIONS_MAX: usize = 200;
/// Of those, refused uploads: the newest.
pub const REJECTED_MAX: usize = 20;
/// Changes of what is in use that are kept of one plugin: the newest.
pub const ACTIVATIONS_MAX: usize = 200;

/// The verbs on plugin versions.
#[async_trait]
pub trait Plugins: Send + Sync + 'static {
    /// The id of this content as a version of this plugin: the same for the same content, minted when new. For a
    /// plugin whose content is in the operator's file.
    async fn plugin_version(
        &self,
        tenant: TenantKey,
        plugin: &Name,
        digest: [u8; 32],
        now: Timestamp,
    ) -> Result<PluginVersionId, LedgerError>;

    /// Content that is on the disk becomes a version, to be compiled. What was refused or disabled is given another
    /// try; what is ready, or being compiled, is answered as it stands.
    async fn upload_version(&self, upload: Upload, now: Timestamp) -> Result<Uploaded, LedgerError>;

    /// What compiling came to. `None`: there is no such version, or it was not being compiled.
    async fn judge_version(
        &self,
        tenant: TenantKey,
        version: PluginVersionId,
        judgement: Judgement,
    ) -> Result<Option<VersionRow>, LedgerError>;

    /// From now on the version is in use, if it is ready or was disabled: who asks for that one gives it another try.
    async fn activate_version(&self, activate: Activate, now: Timestamp) -> Result<Activated, LedgerError>;

    /// After too many faults in a row: the version is disabled, and `fallback`, or none, is in use. `false`: it was not
    /// in use any more, and nothing changes.
    async fn disable_version(&self, disable: Disable, now: Timestamp) -> Result<bool, LedgerError>;

    /// Everything known of one plugin, newest first.
    async fn plugin_history(&self, tenant: TenantKey, plugin: &Name) -> Result<History, LedgerError>;

    /// The contents that some version still needs.
    async fn needed_contents(&self) -> Result<Vec<[u8; 32]>, LedgerError>;

    /// The endpoints `held` back for want of a version are paused with what to do, unless they are closed already;
    /// a pause for such a want ends for those `freed`.
    async fn pause_for_plugins(
        &self,
        held: Vec<(EndpointKey, String)>,
        freed: Vec<EndpointKey>,
        now: Timestamp,
    ) -> Result<(), LedgerError>;
}

/// How the reason of a pause for want of a plugin begins: by [`Plugins::pause_for_plugins`], or by an attempt.
pub const PLUGIN_PAUSES: [&str; 2] = ["plugin_not_ready", "plugin_unavailable"];

#[derive(Clone, Debug)]
pub struct Upload {
    pub tenant: TenantKey,
    pub plugin: Name,
    pub digest: [u8; 32],
    pub bytes: u64,
    pub by: String,
}

#[derive(Clone, Debug)]
pub enum Uploaded {
    /// To be compiled: new, or another try.
    Compile(VersionRow),
    /// Known, and ready or being compiled.
    Known(VersionRow),
    /// The plugin has [`VERSIONS_MAX`] versions, and none of them can go.
    TooMany,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Judgement {
    Ready(Findings),
    Rejected(Rejection),
}

/// What was found in a version.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Findings {
    pub transform: bool,
    pub classify: bool,
    pub warnings: Vec<String>,
}

/// Why a version is refused.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rejection {
    pub rule: String,
    pub finding: String,
    pub remedy: String,
}

/// The faults that disabled a version.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FaultRow {
    /// The kind of the last.
    pub kind: String,
    pub in_a_row: u32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VersionState {
    Compiling,
    Ready,
    Rejected(Rejection),
    Disabled(FaultRow),
}

impl VersionState {
    pub const fn as_str(&self) -> &'static str {
        match self {
            VersionState::Compiling => "compiling",
            VersionState::Ready => "ready",
            VersionState::Rejected(_) => "rejected",
            VersionState::Disabled(_) => "disabled",
        }
    }
}

/// One version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VersionRow {
    pub id: PluginVersionId,
    pub digest: [u8; 32],
    pub state: VersionState,
    /// Known once it was ready.
    pub findings: Option<Findings>,
    /// First seen.
    pub created_at: Timestamp,
    /// `None`: it came with the operator's file, and its content is there alone.
    pub uploaded: Option<UploadRow>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UploadRow {
    pub at: Timestamp,
    pub by: String,
    pub bytes: u64,
}

/// What put a version into use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    Activate,
    Rollback,
    /// The one before was disabled.
    Disable,
}

impl Change {
    pub const fn as_str(self) -> &'static str {
        match self {
            Change::Activate => "activate",
            Change::Rollback => "rollback",
            Change::Disable => "disable",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ActivationRow {
    /// `None`: nothing is in use from then on.
    pub version: Option<PluginVersionId>,
    pub what: Change,
    pub at: Timestamp,
    pub by: String,
}

#[derive(Clone, Debug)]
pub struct Activate {
    pub tenant: TenantKey,
    pub plugin: Name,
    pub version: PluginVersionId,
    pub what: Change,
    pub by: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Activated {
    /// In use, by this call or from before.
    Done(VersionRow),
    NotFound,
    /// Being compiled, or refused; or it came with a file, and its content was never uploaded.
    NotReady(VersionRow),
}

#[derive(Clone, Debug)]
pub struct Disable {
    pub tenant: TenantKey,
    pub plugin: Name,
    pub version: PluginVersionId,
    pub faults: FaultRow,
    pub fallback: Option<PluginVersionId>,
}

/// One plugin's versions and what was in use, newest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct History {
    pub versions: Vec<VersionRow>,
    pub activations: Vec<ActivationRow>,
}

impl History {
    pub fn version(&self, id: PluginVersionId) -> Option<&VersionRow> {
        self.versions.iter().find(|row| row.id == id)
    }

    /// What is in use.
    pub fn active(&self) -> Option<&VersionRow> {
        self.version(self.activations.first()?.version?)
    }

    /// Where a rollback leads: the newest version below the one in use that is ready. Going back takes what it leaves
    /// off the pile, so that going back twice leads two steps back.
    pub fn before(&self) -> Option<&VersionRow> {
        let mut pile: Vec<PluginVersionId> = Vec::new();
        for row in self.activations.iter().rev() {
            match (row.what, row.version) {
                (Change::Activate, Some(version)) => {
                    if pile.last() != Some(&version) {
                        pile.push(version);
                    }
                }
                (Change::Rollback | Change::Disable, Some(version)) => {
                    // What was pruned may not be there: then it is all that is left.
                    let at = pile.iter().rposition(|known| *known == version);
                    pile.truncate(at.map_or(0, |at| at + 1));
                    if at.is_none() {
                        pile.push(version);
                    }
                }
                // Those below were not ready; they stay below, for when they are.
                (Change::Activate | Change::Rollback | Change::Disable, None) => {}
            }
        }
        let active = self.activations.first()?.version;
        if active.is_some() {
            pile.pop();
        }
        let usable = |id: &PluginVersionId| {
            let row = self.version(*id)?;
            let ready = row.state == VersionState::Ready && row.uploaded.is_some() && Some(row.id) != active;
            ready.then_some(row)
        };
        pile.iter().rev().find_map(usable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Change::{Activate, Disable, Rollback};

    fn id(n: u8) -> PluginVersionId {
        PluginVersionId::from_bytes([n; 16])
    }

    /// Versions 1 to 4 are ready unless named; changes are oldest first.
    fn before(changes: &[(Change, u8)], disabled: &[u8]) -> Option<PluginVersionId> {
        let at = Timestamp::from_millis(0);
        let state = |n| match disabled.contains(&n) {
            true => VersionState::Disabled(FaultRow { kind: "trap".into(), in_a_row: 20 }),
            false => VersionState::Ready,
        };
        let version = |n: u8| VersionRow {
            id: id(n),
            digest: [n; 32],
            state: state(n),
            findings: None,
            created_at: at,
            uploaded: Some(UploadRow { at, by: "operator".into(), bytes: 1 }),
        };
        let row = |(what, n): &(Change, u8)| ActivationRow {
            version: (*n > 0).then(|| id(*n)),
            what: *what,
            at,
            by: "operator".into(),
        };
        let activations = changes.iter().rev().map(row).collect();
        History { versions: (1..=4).rev().map(version).collect(), activations }.before().map(|row| row.id)
    }

    #[test]
    fn back_is_a_pile_and_not_a_swing() {
        type Case = (&'static [(Change, u8)], &'static [u8], Option<u8>);
        let cases: [Case; 10] = [
            (&[], &[], None),
            (&[(Activate, 1)], &[], None),
            (&[(Activate, 1), (Activate, 2)], &[], Some(1)),
            (&[(Activate, 1), (Activate, 2), (Activate, 3), (Rollback, 2)], &[], Some(1)),
            (&[(Activate, 1), (Activate, 2), (Activate, 3), (Rollback, 2), (Rollback, 1)], &[], None),
            (&[(Activate, 1), (Activate, 2), (Rollback, 1), (Activate, 3)], &[], Some(1)),
            (&[(Activate, 1), (Activate, 2), (Activate, 1)], &[], Some(2)),
            (&[(Activate, 1), (Activate, 2), (Activate, 3)], &[2], Some(1)),
            (&[(Activate, 1), (Activate, 2), (Activate, 3), (Disable, 1)], &[2, 3], None),
            (&[(Activate, 1), (Disable, 0), (Activate, 2)], &[1], None),
        ];
        for (changes, disabled, expected) in cases {
            assert_eq!(before(changes, disabled), expected.map(id), "{changes:?} {disabled:?}");
        }
        // With nothing in use, whatever is ready again is the way back.
        assert_eq!(before(&[(Activate, 1), (Activate, 2), (Disable, 0)], &[2]), Some(id(1)));
    }
}
