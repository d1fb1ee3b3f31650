//! Adopted secrets: sealed in their source's row, and open in memory for who verifies by them.

use super::SqliteLedger;
use super::fault::Fault;
use super::keyring::{Place, Unsealable};
use super::shared::Shared;
use super::writer::{Verb, Writer};
use crate::clock::Timestamp;
use crate::ledger::{Adopted, AdoptedSecret, Adoptions, LedgerError, SourceKey, TenantKey};
use crate::secret::Secret;
use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// What each source holds as of the last commit. Bounded by the sources that were ever declared.
#[derive(Default)]
pub(super) struct Held(RwLock<HashMap<SourceKey, Arc<AdoptedSecret>>>);

impl Held {
    fn of(&self, source: SourceKey) -> Option<Arc<AdoptedSecret>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&source).cloned()
    }

    fn set(&self, source: SourceKey, secret: Option<AdoptedSecret>) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match secret {
            Some(secret) => all.insert(source, Arc::new(secret)),
            None => all.remove(&source),
        };
    }
}

/// All that are held, opened: a start that cannot read one does not go on without it.
pub(super) fn load(connection: &Connection, shared: &Shared) -> Result<(), Fault> {
    let sql = "SELECT id, tenant, secret, adopted_at FROM source WHERE secret IS NOT NULL";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (source, tenant, sealed): (u32, u32, Vec<u8>) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let cipher = shared.keyring.tenant(TenantKey(tenant)).ok_or(Unsealable);
        let opened = cipher.and_then(|cipher| cipher.open(Place::SourceSecret(source), &sealed));
        let plain = opened.map_err(|_| {
            Fault::Refused(LedgerError::Open {
                problem: format!("the adopted secret of source {source} of tenant {tenant} cannot be opened"),
                remedy: "the ledger is damaged: restore it from a backup".into(),
            })
        })?;
        let secret = AdoptedSecret { secret: Secret::new(plain), at: Timestamp::from_millis(row.get(3)?) };
        shared.held.set(SourceKey(source), Some(secret));
    }
    Ok(())
}

struct AdoptSecret {
    tenant: TenantKey,
    source: SourceKey,
    secret: Secret,
    sealed: Vec<u8>,
    now: Timestamp,
    /// Whether it was this call that made it the source's.
    is_new: bool,
}

impl Verb for AdoptSecret {
    type Done = Adopted;

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Adopted, Fault> {
        let row = (self.source.0, self.tenant.0);
        let kept: Option<Option<Vec<u8>>> = w
            .connection
            .prepare_cached("SELECT secret FROM source WHERE id = ? AND tenant = ?")?
            .query_row(row, |row| row.get(0))
            .optional()?;
        let cipher = w.shared.keyring.tenant(self.tenant);
        let (Some(kept), Some(cipher)) = (kept, cipher) else {
            let text = "the source is not known to the ledger".to_owned();
            return Err(Fault::Refused(LedgerError::Unavailable(text)));
        };
        self.is_new = kept.is_none();
        // The row decides and not the memory, which knows nothing of this transaction.
        if let Some(kept) = kept {
            let held = Secret::new(cipher.open(Place::SourceSecret(self.source.0), &kept)?);
            return Ok(if held.matches(self.secret.expose()) { Adopted::Held } else { Adopted::Other });
        }
        w.connection
            .prepare_cached("UPDATE source SET secret = ?3, adopted_at = ?4 WHERE id = ?1 AND tenant = ?2")?
            .execute((row.0, row.1, &self.sealed, self.now.as_millis()))?;
        Ok(Adopted::Held)
    }

    fn publish(self, _done: &mut Adopted, shared: &Shared) {
        if self.is_new {
            shared.held.set(self.source, Some(AdoptedSecret { secret: self.secret, at: self.now }));
        }
    }
}

struct ForgetSecret {
    tenant: TenantKey,
    source: SourceKey,
}

impl Verb for ForgetSecret {
    type Done = bool;

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<bool, Fault> {
        let changed = w
            .connection
            .prepare_cached(
                "UPDATE source SET secret = NULL, adopted_at = NULL \
                 WHERE id = ? AND tenant = ? AND secret IS NOT NULL",
            )?
            .execute((self.source.0, self.tenant.0))?;
        Ok(changed > 0)
    }

    fn publish(self, done: &mut bool, shared: &Shared) {
        if *done {
            shared.held.set(self.source, None);
        }
    }
}

#[async_trait]
impl Adoptions for SqliteLedger {
    fn adopted(&self, source: SourceKey) -> Option<Arc<AdoptedSecret>> {
        self.shared.held.of(source)
    }

    async fn adopt(
        &self,
        tenant: TenantKey,
        source: SourceKey,
        secret: Secret,
        now: Timestamp,
    ) -> Result<Adopted, LedgerError> {
        // Where events find no room, what anybody may send takes none.
        self.shared.refuse_arrival()?;
        let place = Place::SourceSecret(source.0);
        let sealed = self.cipher(tenant)?.seal(place, &*self.shared.entropy, secret.expose()).map_err(Fault::from)?;
        self.ask(AdoptSecret { tenant, source, secret, sealed, now, is_new: false }, 0).await
    }

    async fn forget(&self, tenant: TenantKey, source: SourceKey) -> Result<bool, LedgerError> {
        self.ask(ForgetSecret { tenant, source }, 0).await
    }
}
