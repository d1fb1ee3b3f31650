//! Versions of plugins, and which is in use.

use super::SqliteLedger;
use super::codec::{count, int, time};
use super::fault::Fault;
use super::trials::end_by_change;
use super::writer::{Verb, Writer};
use crate::clock::Timestamp;
use crate::delivery::{EndpointStatus, Name, PluginVersionId};
use crate::ledger::{
    ACTIVATIONS_MAX, Activate, Activated, ActivationRow, Change, Disable, EndpointKey, FaultRow, Findings, History,
    Judgement, LedgerError, PLUGIN_PAUSES, Plugins, REJECTED_MAX, Rejection, TenantKey, Upload, UploadRow, Uploaded,
    VERSIONS_MAX, VersionRow, VersionState,
};
use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Row};

/// Versions that were in use this many changes ago or less are there to go back to.
const IN_USE_KEPT: usize = 20;

const COLUMNS: &str = "id, digest, created_at, state, why, findings, bytes, uploaded_at, uploaded_by";

fn damaged() -> Fault {
    Fault::damaged("a plugin version that cannot be read")
}

fn read<T: serde::de::DeserializeOwned>(text: Option<String>) -> Result<T, Fault> {
    serde_json::from_str(&text.ok_or_else(damaged)?).map_err(|_| damaged())
}

fn written(value: &impl serde::Serialize) -> Result<String, Fault> {
    serde_json::to_string(value).map_err(|_| damaged())
}

fn version_row(row: &Row<'_>) -> Result<VersionRow, Fault> {
    let why: Option<String> = row.get(4)?;
    let state = match row.get::<_, Option<i64>>(3)? {
        Some(0) => VersionState::Compiling,
        Some(1) | None => VersionState::Ready,
        Some(2) => VersionState::Rejected(read::<Rejection>(why)?),
        Some(3) => VersionState::Disabled(read::<FaultRow>(why)?),
        Some(_) => return Err(damaged()),
    };
    let findings: Option<String> = row.get(5)?;
    let uploaded = match (row.get::<_, Option<i64>>(7)?, row.get::<_, Option<String>>(8)?) {
        (Some(at), Some(by)) => {
            let bytes = count(row.get::<_, Option<i64>>(6)?.unwrap_or(0));
            Some(UploadRow { at: Timestamp::from_millis(at), by, bytes })
        }
        (_, _) => None,
    };
    Ok(VersionRow {
        id: PluginVersionId::from_bytes(row.get(0)?),
        digest: row.get(1)?,
        created_at: time(row, 2)?,
        state,
        findings: findings.map(|text| read::<Findings>(Some(text))).transpose()?,
        uploaded,
    })
}

fn one(connection: &Connection, condition: &str, values: impl rusqlite::Params) -> Result<Option<VersionRow>, Fault> {
    let sql = format!("SELECT {COLUMNS} FROM plugin_version WHERE {condition}");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(values)?;
    rows.next()?.map(version_row).transpose()
}

pub(super) fn by_id(
    connection: &Connection,
    tenant: TenantKey,
    id: PluginVersionId,
) -> Result<Option<VersionRow>, Fault> {
    one(connection, "tenant = ? AND id = ?", (tenant.0, id.to_bytes()))
}

fn by_digest(
    connection: &Connection,
    tenant: TenantKey,
    plugin: &Name,
    digest: [u8; 32],
) -> Result<Option<VersionRow>, Fault> {
    one(connection, "tenant = ? AND plugin = ? AND digest = ?", (tenant.0, plugin.as_str(), digest))
}

/// The version of the row that holds.
pub(super) fn in_use(
    connection: &Connection,
    tenant: TenantKey,
    plugin: &Name,
) -> Result<Option<PluginVersionId>, Fault> {
    let newest: Option<Option<[u8; 16]>> = connection
        .prepare_cached(
            "SELECT version FROM plugin_activation WHERE tenant = ? AND plugin = ? ORDER BY id DESC LIMIT 1",
        )?
        .query_row((tenant.0, plugin.as_str()), |row| row.get(0))
        .optional()?;
    Ok(newest.flatten().map(PluginVersionId::from_bytes))
}

/// The next row that holds; the oldest beyond the bound go.
fn note(
    connection: &Connection,
    (tenant, plugin): (TenantKey, &Name),
    version: Option<PluginVersionId>,
    (what, by): (Change, &str),
    now: Timestamp,
) -> Result<(), Fault> {
    let code = match what {
        Change::Activate => 0,
        Change::Rollback => 1,
        Change::Disable => 2,
    };
    connection
        .prepare_cached(
            "INSERT INTO plugin_activation (tenant, plugin, version, what, at, by) VALUES (?, ?, ?, ?, ?, ?)",
        )?
        .execute((tenant.0, plugin.as_str(), version.map(PluginVersionId::to_bytes), code, now.as_millis(), by))?;
    connection
        .prepare_cached(
            "DELETE FROM plugin_activation WHERE id IN (SELECT id FROM plugin_activation \
             WHERE tenant = ? AND plugin = ? ORDER BY id DESC LIMIT -1 OFFSET ?)",
        )?
        .execute((tenant.0, plugin.as_str(), int(ACTIVATIONS_MAX as u64)))?;
    Ok(())
}

fn set_state(connection: &Connection, id: PluginVersionId, code: i64, why: Option<String>) -> Result<(), Fault> {
    connection.prepare_cached("UPDATE plugin_version SET state = ?2, why = ?3 WHERE id = ?1")?.execute((
        id.to_bytes(),
        code,
        why,
    ))?;
    Ok(())
}

struct NameVersion {
    tenant: TenantKey,
    plugin: Name,
    digest: [u8; 32],
    now: Timestamp,
}

impl Verb for NameVersion {
    type Done = PluginVersionId;

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<PluginVersionId, Fault> {
        if let Some(row) = by_digest(w.connection, self.tenant, &self.plugin, self.digest)? {
            return Ok(row.id);
        }
        let id = PluginVersionId::from(w.shared.mint.mint(self.now, &*w.shared.entropy));
        w.connection.execute(
            "INSERT INTO plugin_version (id, tenant, plugin, digest, created_at) VALUES (?, ?, ?, ?, ?)",
            (id.to_bytes(), self.tenant.0, self.plugin.as_str(), self.digest, self.now.as_millis()),
        )?;
        Ok(id)
    }
}

/// Makes room for a version: the oldest upload goes that was not in use lately. `false`: there is none.
fn drop_oldest(connection: &Connection, tenant: TenantKey, plugin: &Name) -> Result<bool, Fault> {
    let gone = connection
        .prepare_cached(
            "DELETE FROM plugin_version WHERE id = (SELECT id FROM plugin_version \
             WHERE tenant = ?1 AND plugin = ?2 AND state <> 0 AND id NOT IN (SELECT version FROM plugin_activation \
             WHERE tenant = ?1 AND plugin = ?2 AND version IS NOT NULL ORDER BY id DESC LIMIT ?3) \
             AND id NOT IN (SELECT version FROM plugin_trial WHERE tenant = ?1 AND plugin = ?2 AND how IS NULL) \
             ORDER BY uploaded_at, id LIMIT 1)",
        )?
        .execute((tenant.0, plugin.as_str(), int(IN_USE_KEPT as u64)))?;
    Ok(gone > 0)
}

struct TakeUpload {
    upload: Upload,
    now: Timestamp,
}

impl Verb for TakeUpload {
    type Done = Uploaded;

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Uploaded, Fault> {
        let Upload { tenant, plugin, digest, bytes, by } = &self.upload;
        let known = by_digest(w.connection, *tenant, plugin, *digest)?;
        let id = match known {
            Some(row) if row.uploaded.is_some() => match row.state {
                VersionState::Ready | VersionState::Compiling => return Ok(Uploaded::Known(row)),
                VersionState::Rejected(_) | VersionState::Disabled(_) => row.id,
            },
            // It came with a file before.
            Some(row) => row.id,
            None => {
                let kept: i64 = w
                    .connection
                    .prepare_cached("SELECT count(*) FROM plugin_version WHERE tenant = ? AND plugin = ?")?
                    .query_row((tenant.0, plugin.as_str()), |row| row.get(0))?;
                if kept >= int(VERSIONS_MAX as u64) && !drop_oldest(w.connection, *tenant, plugin)? {
                    return Ok(Uploaded::TooMany);
                }
                let id = PluginVersionId::from(w.shared.mint.mint(self.now, &*w.shared.entropy));
                w.connection
                    .prepare_cached(
                        "INSERT INTO plugin_version (id, tenant, plugin, digest, created_at) VALUES (?, ?, ?, ?, ?)",
                    )?
                    .execute((id.to_bytes(), tenant.0, plugin.as_str(), digest, self.now.as_millis()))?;
                id
            }
        };
        w.connection
            .prepare_cached(
                "UPDATE plugin_version SET state = 0, why = NULL, bytes = ?2, uploaded_at = ?3, uploaded_by = ?4 \
                 WHERE id = ?1",
            )?
            .execute((id.to_bytes(), int(*bytes), self.now.as_millis(), by))?;
        by_id(w.connection, *tenant, id)?.map(Uploaded::Compile).ok_or_else(damaged)
    }
}

struct Judge {
    tenant: TenantKey,
    version: PluginVersionId,
    judgement: Judgement,
}

impl Verb for Judge {
    type Done = Option<VersionRow>;

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Option<VersionRow>, Fault> {
        match by_id(w.connection, self.tenant, self.version)? {
            Some(VersionRow { state: VersionState::Compiling, .. }) => {}
            Some(_) | None => return Ok(None),
        }
        match &self.judgement {
            Judgement::Ready(findings) => {
                set_state(w.connection, self.version, 1, None)?;
                w.connection
                    .prepare_cached("UPDATE plugin_version SET findings = ?2 WHERE id = ?1")?
                    .execute((self.version.to_bytes(), written(findings)?))?;
            }
            Judgement::Rejected(rejection) => {
                set_state(w.connection, self.version, 2, Some(written(rejection)?))?;
                // What was ever in use stays: attempts name it.
                w.connection
                    .prepare_cached(
                        "DELETE FROM plugin_version WHERE id IN (SELECT v.id FROM plugin_version v \
                         JOIN plugin_version own ON own.id = ?1 \
                         WHERE v.tenant = own.tenant AND v.plugin = own.plugin AND v.state = 2 AND v.findings IS NULL \
                         ORDER BY v.uploaded_at DESC, v.id DESC LIMIT -1 OFFSET ?2)",
                    )?
                    .execute((self.version.to_bytes(), int(REJECTED_MAX as u64)))?;
            }
        }
        by_id(w.connection, self.tenant, self.version)
    }
}

struct PutInUse {
    activate: Activate,
    now: Timestamp,
}

impl Verb for PutInUse {
    type Done = Activated;

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Activated, Fault> {
        let Activate { tenant, plugin, version, what, by } = &self.activate;
        let condition = "tenant = ? AND plugin = ? AND id = ?";
        let Some(row) = one(w.connection, condition, (tenant.0, plugin.as_str(), version.to_bytes()))? else {
            return Ok(Activated::NotFound);
        };
        if row.uploaded.is_none() {
            return Ok(Activated::NotReady(row));
        }
        match &row.state {
            VersionState::Ready => {}
            VersionState::Disabled(_) => set_state(w.connection, *version, 1, None)?,
            VersionState::Compiling | VersionState::Rejected(_) => return Ok(Activated::NotReady(row)),
        }
        if in_use(w.connection, *tenant, plugin)? != Some(*version) {
            note(w.connection, (*tenant, plugin), Some(*version), (*what, by), self.now)?;
            end_by_change(w.connection, (*tenant, plugin), Some(*version), by, self.now)?;
        }
        Ok(Activated::Done(VersionRow { state: VersionState::Ready, ..row }))
    }
}

struct TakeOutOfUse {
    disable: Disable,
    now: Timestamp,
}

impl Verb for TakeOutOfUse {
    type Done = bool;

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<bool, Fault> {
        let Disable { tenant, plugin, version, faults, fallback } = &self.disable;
        if in_use(w.connection, *tenant, plugin)? != Some(*version) {
            return Ok(false);
        }
        set_state(w.connection, *version, 3, Some(written(faults)?))?;
        note(w.connection, (*tenant, plugin), *fallback, (Change::Disable, "gateway"), self.now)?;
        end_by_change(w.connection, (*tenant, plugin), *fallback, "gateway", self.now)?;
        Ok(true)
    }
}

struct PauseForPlugins {
    held: Vec<(EndpointKey, String)>,
    freed: Vec<EndpointKey>,
    now: Timestamp,
}

impl Verb for PauseForPlugins {
    type Done = ();

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<(), Fault> {
        let ours = |why: &str| PLUGIN_PAUSES.iter().any(|start| why.starts_with(start));
        for (endpoint, why) in &self.held {
            let Some(before) = w.endpoints.get(endpoint).map(|e| e.status.clone()) else { continue };
            let take = match &before {
                EndpointStatus::Enabled => true,
                EndpointStatus::Paused { why, .. } => ours(why) || before.is_open(self.now),
                EndpointStatus::Disabled { .. } => false,
            };
            let after = EndpointStatus::Paused { until: None, why: why.clone() };
            if take && before != after {
                w.set_status(*endpoint, after)?;
            }
        }
        for endpoint in &self.freed {
            let status = w.endpoints.get(endpoint).map(|e| e.status.clone());
            if matches!(status, Some(EndpointStatus::Paused { why, .. }) if ours(&why)) {
                w.set_status(*endpoint, EndpointStatus::Enabled)?;
                w.wake(*endpoint, self.now, self.now);
            }
        }
        Ok(())
    }
}

fn history(connection: &Connection, tenant: TenantKey, plugin: &Name) -> Result<History, Fault> {
    let named = (tenant.0, plugin.as_str());
    let sql = format!("SELECT {COLUMNS} FROM plugin_version WHERE tenant = ? AND plugin = ? ORDER BY id DESC");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(named)?;
    let mut found = History::default();
    while let Some(row) = rows.next()? {
        found.versions.push(version_row(row)?);
    }
    let mut statement = connection.prepare_cached(
        "SELECT version, what, at, by FROM plugin_activation WHERE tenant = ? AND plugin = ? ORDER BY id DESC",
    )?;
    let mut rows = statement.query(named)?;
    while let Some(row) = rows.next()? {
        found.activations.push(ActivationRow {
            version: row.get::<_, Option<[u8; 16]>>(0)?.map(PluginVersionId::from_bytes),
            what: match row.get(1)? {
                0 => Change::Activate,
                1 => Change::Rollback,
                _ => Change::Disable,
            },
            at: time(row, 2)?,
            by: row.get(3)?,
        });
    }
    Ok(found)
}

fn needed(connection: &Connection) -> Result<Vec<[u8; 32]>, Fault> {
    let mut statement =
        connection.prepare_cached("SELECT DISTINCT digest FROM plugin_version WHERE state IN (0, 1, 3)")?;
    let rows = statement.query_map([], |row| row.get(0))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

#[async_trait]
impl Plugins for SqliteLedger {
    async fn plugin_version(
        &self,
        tenant: TenantKey,
        plugin: &Name,
        digest: [u8; 32],
        now: Timestamp,
    ) -> Result<PluginVersionId, LedgerError> {
        self.ask(NameVersion { tenant, plugin: plugin.clone(), digest, now }, 0).await
    }

    async fn upload_version(&self, upload: Upload, now: Timestamp) -> Result<Uploaded, LedgerError> {
        // Where events find no room, an upload takes none.
        self.shared.refuse_arrival()?;
        self.ask(TakeUpload { upload, now }, 0).await
    }

    async fn judge_version(
        &self,
        tenant: TenantKey,
        version: PluginVersionId,
        judgement: Judgement,
    ) -> Result<Option<VersionRow>, LedgerError> {
        self.ask(Judge { tenant, version, judgement }, 0).await
    }

    async fn activate_version(&self, activate: Activate, now: Timestamp) -> Result<Activated, LedgerError> {
        self.ask(PutInUse { activate, now }, 0).await
    }

    async fn disable_version(&self, disable: Disable, now: Timestamp) -> Result<bool, LedgerError> {
        self.ask(TakeOutOfUse { disable, now }, 0).await
    }

    async fn plugin_history(&self, tenant: TenantKey, plugin: &Name) -> Result<History, LedgerError> {
        let plugin = plugin.clone();
        self.read(move |c| history(c, tenant, &plugin)).await
    }

    async fn needed_contents(&self) -> Result<Vec<[u8; 32]>, LedgerError> {
        self.read(needed).await
    }

    async fn pause_for_plugins(
        &self,
        held: Vec<(EndpointKey, String)>,
        freed: Vec<EndpointKey>,
        now: Timestamp,
    ) -> Result<(), LedgerError> {
        self.ask(PauseForPlugins { held, freed, now }, 0).await
    }
}
