//! Names and their keys, endpoint secrets.

use super::codec::{count, status_of};
use super::fault::Fault;
use super::health;
use super::keyring::{Place, TenantCipher};
use super::shared::Shared;
use super::writer::{EndpointMemory, Undo, Verb, Writer};
use crate::delivery::{EndpointStatus, Health};
use crate::ledger::{
    Declaration, DeclaredEndpoint, DeclaredTenant, Directory, EndpointEntry, EndpointKey, LedgerError, SourceKey,
    TenantEntry, TenantKey,
};
use crate::secret::Secret;
use rusqlite::{Connection, OptionalExtension as _};
use std::collections::HashMap;
use std::sync::Arc;

pub(super) struct Declare {
    pub declaration: Declaration,
    /// Data keys made by this declaration.
    pub made: Vec<Arc<TenantCipher>>,
}

impl Verb for Declare {
    type Done = Directory;

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Directory, Fault> {
        self.made.clear();
        let mut directory = Directory::default();
        for tenant in &self.declaration.tenants {
            let entry = declare_tenant(w, tenant, &mut self.made)?;
            directory.tenants.insert(tenant.name.clone(), entry);
        }
        Ok(directory)
    }

    fn publish(self, done: &mut Directory, shared: &Shared) {
        let endpoints = done.tenants.values().flat_map(|tenant| tenant.endpoints.values());
        shared.declare(endpoints.map(|endpoint| endpoint.key).collect());
        for cipher in self.made {
            shared.keyring.keep(cipher);
        }
    }
}

/// The number of a row by its columns, or that of a new one.
fn key_of(
    connection: &Connection,
    find: &str,
    insert: &str,
    columns: impl rusqlite::Params + Clone,
) -> Result<u32, Fault> {
    let found = connection.prepare_cached(find)?.query_row(columns.clone(), |row| row.get(0)).optional()?;
    match found {
        Some(key) => Ok(key),
        None => Ok(connection.prepare_cached(insert)?.query_row(columns, |row| row.get(0))?),
    }
}

fn declare_tenant(
    w: &mut Writer<'_>,
    tenant: &DeclaredTenant,
    made: &mut Vec<Arc<TenantCipher>>,
) -> Result<TenantEntry, Fault> {
    let key = TenantKey(key_of(
        w.connection,
        "SELECT id FROM tenant WHERE name = ?",
        "INSERT INTO tenant (name) VALUES (?) RETURNING id",
        (tenant.name.as_str(),),
    )?);
    let cipher = match w.shared.keyring.tenant(key) {
        Some(cipher) => cipher,
        None => {
            let (id, wrapped, cipher) = w.shared.keyring.new_tenant(key, &*w.shared.entropy)?;
            w.connection.execute(
                "INSERT INTO tenant_key (tenant, id, kek, wrapped) VALUES (?, ?, ?, ?)",
                (key.0, id, w.shared.keyring.kek_id(), wrapped),
            )?;
            made.push(Arc::clone(&cipher));
            cipher
        }
    };
    let mut entry = TenantEntry { key, sources: Default::default(), endpoints: Default::default() };
    for source in &tenant.sources {
        let id = key_of(
            w.connection,
            "SELECT id FROM source WHERE tenant = ? AND name = ?",
            "INSERT INTO source (tenant, name) VALUES (?, ?) RETURNING id",
            (key.0, source.as_str()),
        )?;
        entry.sources.insert(source.clone(), SourceKey(id));
    }
    for endpoint in &tenant.endpoints {
        entry.endpoints.insert(endpoint.name.clone(), declare_endpoint(w, key, &cipher, endpoint)?);
    }
    Ok(entry)
}

fn declare_endpoint(
    w: &mut Writer<'_>,
    tenant: TenantKey,
    cipher: &TenantCipher,
    declared: &DeclaredEndpoint,
) -> Result<EndpointEntry, Fault> {
    let host: i64 = key_of(
        w.connection,
        "SELECT id FROM host WHERE name = ?",
        "INSERT INTO host (name) VALUES (?) RETURNING id",
        (declared.host.as_str(),),
    )?
    .into();
    let found: Option<(u32, Option<Vec<u8>>)> = w
        .connection
        .prepare_cached("SELECT id, secret FROM endpoint WHERE tenant = ? AND name = ?")?
        .query_row((tenant.0, declared.name.as_str()), |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let (id, kept) = match found {
        Some((id, kept)) => {
            w.connection.execute("UPDATE endpoint SET host = ?, scrub = ? WHERE id = ?", (host, declared.scrub, id))?;
            (id, kept)
        }
        None => {
            let sql = "INSERT INTO endpoint (tenant, name, host, scrub) VALUES (?, ?, ?, ?) RETURNING id";
            let id = w
                .connection
                .prepare_cached(sql)?
                .query_row((tenant.0, declared.name.as_str(), host, declared.scrub), |row| row.get(0))?;
            (id, None)
        }
    };
    let key = EndpointKey(id);
    let place = Place::EndpointSecret(id);
    let generated_secret = match (kept, &declared.generated_secret) {
        (Some(sealed), _) => Some(Secret::new(cipher.open(place, &sealed)?)),
        (None, Some(secret)) => {
            let sealed = cipher.seal(place, &*w.shared.entropy, secret.expose())?;
            w.connection.execute("UPDATE endpoint SET secret = ? WHERE id = ?", (sealed, id))?;
            Some(secret.clone())
        }
        (None, None) => None,
    };
    let before = w.endpoints.get(&key).cloned();
    let mut memory = before.clone().unwrap_or(EndpointMemory {
        tenant,
        host,
        status: EndpointStatus::Enabled,
        health: Health::default(),
        sequence: 0,
        reserved: 0,
        scrub: declared.scrub,
    });
    memory.host = host;
    memory.scrub = declared.scrub;
    let status = memory.status.clone();
    w.undo.push(Undo::Endpoint(key, before));
    w.endpoints.insert(key, memory);
    Ok(EndpointEntry { key, status, generated_secret })
}

/// All endpoints that were ever declared.
pub(super) fn load_endpoints(connection: &Connection) -> Result<HashMap<EndpointKey, EndpointMemory>, Fault> {
    let columns = health::COLUMNS;
    let sql = format!("SELECT id, tenant, host, status, until, why, sequence, {columns}, scrub FROM endpoint");
    let mut statement = connection.prepare(&sql)?;
    let mut rows = statement.query([])?;
    let mut all = HashMap::new();
    while let Some(row) = rows.next()? {
        let memory = EndpointMemory {
            tenant: TenantKey(row.get(1)?),
            host: row.get(2)?,
            status: status_of(row.get(3)?, row.get(4)?, row.get(5)?),
            health: health::of_row(row, 7)?,
            sequence: count(row.get(6)?),
            reserved: count(row.get(6)?),
            scrub: row.get("scrub")?,
        };
        all.insert(EndpointKey(row.get(0)?), memory);
    }
    Ok(all)
}

/// The data keys of all tenants, made ready.
pub(super) fn load_keys(connection: &Connection, shared: &Shared) -> Result<(), LedgerError> {
    let read = || -> rusqlite::Result<Vec<(u32, u32, Vec<u8>)>> {
        let mut statement = connection.prepare("SELECT tenant, id, wrapped FROM tenant_key")?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        rows.collect()
    };
    for (tenant, id, wrapped) in read().map_err(Fault::from)? {
        shared.keyring.unwrap_tenant(TenantKey(tenant), id, &wrapped).map_err(|_| LedgerError::Open {
            problem: format!("the data key of tenant {tenant} cannot be opened"),
            remedy: "the ledger is damaged: restore it from a backup".into(),
        })?;
    }
    Ok(())
}
