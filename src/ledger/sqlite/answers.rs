//! Kept answers' rows. A key may say something about its caller's customers: only its digest is written.

use super::SqliteLedger;
use super::births::Needs;
use super::codec::{Headers, read_content};
use super::fault::Fault;
use super::keyring::Place;
use super::writer::{Verb, Writer};
use crate::clock::Timestamp;
use crate::ledger::{ANSWERS_KEPT_FOR, Answers, KeptAnswer, LedgerError, RequestId, TenantKey};
use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

fn digest(request: &RequestId) -> [u8; 32] {
    Sha256::digest(request.as_str().as_bytes()).into()
}

struct Keep {
    tenant: TenantKey,
    request: [u8; 32],
    asked: [u8; 32],
    status: u16,
    sealed: Vec<u8>,
    now: Timestamp,
}

impl Verb for Keep {
    type Done = ();

    fn needs(&self) -> Needs {
        Needs::None
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<(), Fault> {
        w.connection
            .prepare_cached(
                "INSERT OR REPLACE INTO answer (tenant, request, asked, status, at, content) VALUES (?, ?, ?, ?, ?, ?)",
            )?
            .execute((self.tenant.0, self.request, self.asked, self.status, self.now.as_millis(), &self.sealed))?;
        Ok(())
    }
}

/// Removes at most `rows_max` answers whose time is over, and gives how many went.
pub(super) fn prune(connection: &Connection, now: Timestamp, rows_max: usize) -> Result<usize, Fault> {
    let limit = i64::try_from(rows_max).unwrap_or(i64::MAX);
    let gone = connection
        .prepare_cached(
            "DELETE FROM answer WHERE (tenant, request) IN \
             (SELECT tenant, request FROM answer WHERE at <= ? ORDER BY at LIMIT ?)",
        )?
        .execute((now.minus(ANSWERS_KEPT_FOR).as_millis(), limit))?;
    Ok(gone)
}

struct Row {
    asked: [u8; 32],
    status: u16,
    content: (Headers, Bytes),
}

#[async_trait]
impl Answers for SqliteLedger {
    async fn kept_answer(
        &self,
        tenant: TenantKey,
        request: &RequestId,
        now: Timestamp,
    ) -> Result<Option<KeptAnswer>, LedgerError> {
        let (request, shared) = (digest(request), Arc::clone(&self.shared));
        let read = move |c: &Connection| -> Result<Option<Row>, Fault> {
            let after = now.minus(ANSWERS_KEPT_FOR).as_millis();
            let found: Option<([u8; 32], u16, Vec<u8>)> = c
                .prepare_cached(
                    "SELECT asked, status, content FROM answer WHERE tenant = ? AND request = ? AND at > ?",
                )?
                .query_row((tenant.0, request, after), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
                .optional()?;
            let Some((asked, status, sealed)) = found else { return Ok(None) };
            let cipher = shared.keyring.tenant(tenant);
            let opened = cipher.and_then(|cipher| cipher.open(Place::Answer(&request), &sealed).ok());
            let content = opened.and_then(read_content).ok_or_else(|| {
                Fault::Refused(LedgerError::Quarantined("what was answered under this idempotency key".into()))
            })?;
            Ok(Some(Row { asked, status, content }))
        };
        let row = self.read_from(&self.readers, read).await?;
        Ok(row.map(|Row { asked, status, content: (headers, body) }| KeptAnswer { asked, status, headers, body }))
    }

    async fn keep_answer(
        &self,
        tenant: TenantKey,
        request: &RequestId,
        answer: KeptAnswer,
        now: Timestamp,
    ) -> Result<(), LedgerError> {
        // Where events find no room, what was said about them takes none.
        self.shared.refuse_arrival()?;
        let request = digest(request);
        let KeptAnswer { asked, status, headers, body } = answer;
        let sealed = self.seal_content(&*self.cipher(tenant)?, Place::Answer(&request), &headers, &body)?;
        let weight = sealed.len();
        self.ask(Keep { tenant, request, asked, status, sealed, now }, weight).await
    }
}
