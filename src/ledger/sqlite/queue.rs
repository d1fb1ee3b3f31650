//! The queue's verbs, as callers see them: what is sealed, minted and read around the writer's transactions.

use super::accept::{AcceptEvent, Arriving};
use super::claim::{ClaimDue, Dealt, Leased, Outlived, Overdue, Rescue};
use super::codec::{self, Headers};
use super::declare::Declare;
use super::fault::Fault;
use super::health::Reanchor;
use super::keyring::{Place, TenantCipher};
use super::ordering::HELD;
use super::settle::{self, SettleAttempt};
use super::{SqliteLedger, closed};
use crate::clock::Timestamp;
use crate::delivery::{DecidedBy, DeliveryId, Disposition, EventId, Reason};
use crate::ledger::{
    Accept, Accepted, AttemptRecord, Claimed, Claims, Declaration, Directory, EndpointKey, EventContent, Lease,
    LedgerError, NewDelivery, Queue, Settled, Settlement, Slot, TenantKey,
};
use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// From here on sealing is work for a thread that may block.
const LARGE_BYTES: usize = 64 * 1024;

/// Marks a row whose content does not authenticate.
const QUARANTINED: Reason = Reason::word("quarantined");
const LEDGER_BUSY: Reason = Reason::word("ledger_busy");

#[async_trait]
impl Queue for SqliteLedger {
    async fn declare(&self, declaration: Declaration, _now: Timestamp) -> Result<Directory, LedgerError> {
        self.ask(Declare { declaration, made: Vec::new() }, 0).await
    }

    async fn accept(&self, accept: Accept) -> Result<Accepted, LedgerError> {
        self.shared.refuse_arrival()?;
        let shared = &self.shared;
        let mint = || shared.mint.mint(accept.now, &*shared.entropy);
        let id = EventId::from(mint());
        let mut last = DeliveryId::from_u128(id.as_u128());
        let mut deliveries: SmallVec<[Arriving; 2]> = SmallVec::with_capacity(accept.deliveries.len());
        for new in accept.deliveries {
            // One delivery for each endpoint, whatever was asked for.
            if deliveries.iter().any(|d| d.endpoint == new.endpoint) {
                continue;
            }
            last = mint().into();
            let NewDelivery { endpoint, slot, order } = new;
            deliveries.push(Arriving { id: last, endpoint, slot, order, sequence: 0, leased_until: None });
        }
        let cipher = self.cipher(accept.tenant)?;
        let event = accept.event;
        let weight = event.body.len() + 512;
        let sealed = if event.body.len() < LARGE_BYTES {
            self.seal_content(&cipher, Place::EventContent(&id.to_bytes()), &event.headers, &event.body)?
        } else {
            let (headers, body, entropy) = (event.headers.clone(), event.body.clone(), Arc::clone(&shared.entropy));
            let seal = move || {
                let hint = content_bytes_hint(&headers, &body);
                cipher.seal_with(Place::EventContent(&id.to_bytes()), &*entropy, hint, |out| {
                    codec::write_content(out, &headers, &body);
                })
            };
            tokio::task::spawn_blocking(seal).await.map_err(|_| closed())?.map_err(Fault::from)?
        };
        let (tenant, source, now) = (accept.tenant, accept.source, accept.now);
        self.ask(AcceptEvent { tenant, source, event, sealed, id, last, deliveries, now, superseded: 0 }, weight).await
    }

    async fn claim(&self, slots: Vec<Slot>, now: Timestamp) -> Result<Claims, LedgerError> {
        if slots.is_empty() {
            return Ok(Claims::default());
        }
        let Dealt { leased, next_due } = self.ask(ClaimDue::new(slots, now), 0).await?;
        let read = self.contents_of(leased, now).await?;
        // Every lease was made against a slot.
        let claimed = read.into_iter().filter_map(|(leased, event)| {
            Some(Claimed {
                lease: leased.lease,
                sequence: leased.sequence,
                idempotency_key: leased.idempotency_key(&event).into(),
                event: Arc::new(event),
                slot: leased.slot?,
            })
        });
        Ok(Claims { started: claimed.collect(), next_due })
    }

    async fn settle(&self, settlement: Arc<Settlement>) -> Result<Settled, LedgerError> {
        let record = &settlement.record;
        let detail = if settle::has_detail(record) {
            let cipher = self.cipher(settlement.lease.tenant)?;
            let (id, token) = (settlement.lease.delivery.to_bytes(), settlement.lease.token);
            let hint = settle::detail_bytes_hint(record);
            if hint < LARGE_BYTES {
                let write = |out: &mut Vec<u8>| settle::write_detail(record, out);
                let place = Place::AttemptDetail(&id, token);
                Some(cipher.seal_with(place, &*self.shared.entropy, hint, write).map_err(Fault::from)?)
            } else {
                let (settlement, entropy) = (Arc::clone(&settlement), Arc::clone(&self.shared.entropy));
                let seal = move || {
                    let write = |out: &mut Vec<u8>| settle::write_detail(&settlement.record, out);
                    cipher.seal_with(Place::AttemptDetail(&id, token), &*entropy, hint, write)
                };
                Some(tokio::task::spawn_blocking(seal).await.map_err(|_| closed())?.map_err(Fault::from)?)
            }
        } else {
            None
        };
        self.ask(SettleAttempt { settlement, detail }, 0).await
    }

    async fn rescue(&self, expired_by: Timestamp, limit: usize, now: Timestamp) -> Result<Vec<Lease>, LedgerError> {
        self.ask(Rescue { expired_by, limit: limit.min(1_000), now }, 0).await
    }

    async fn overdue(&self, after: Timestamp, limit: usize, now: Timestamp) -> Result<Vec<Lease>, LedgerError> {
        self.ask(Overdue { after, limit: limit.min(1_000), now }, 0).await
    }

    async fn outlived(
        &self,
        began_by: Vec<(EndpointKey, Timestamp)>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<Lease>, LedgerError> {
        self.ask(Outlived { began_by, limit: limit.min(1_000), now }, 0).await
    }

    async fn reanchor(
        &self,
        leases_until: Timestamp,
        longest_waits: &[(EndpointKey, Duration)],
        now: Timestamp,
    ) -> Result<u64, LedgerError> {
        self.renew_leases(leases_until).await?;
        self.ask(Reanchor { now }, 0).await?;
        let mut moved = 0;
        for (endpoint, longest) in longest_waits {
            moved += self.bring_forward(*endpoint, *longest, now).await?;
            self.bring_lines_forward(*endpoint, *longest, now).await?;
        }
        Ok(moved)
    }

    async fn backlog(&self) -> Result<BTreeMap<EndpointKey, Timestamp>, LedgerError> {
        let read = |connection: &Connection| -> Result<BTreeMap<EndpointKey, Timestamp>, Fault> {
            // One step into the index for each endpoint, however much waits behind it.
            let mut each = connection.prepare_cached("SELECT id FROM endpoint")?;
            let mut first = connection.prepare_cached(
                "SELECT min(due_at) FROM delivery INDEXED BY delivery_live \
                 WHERE state = 0 AND endpoint = ? AND due_at < ?",
            )?;
            let mut all = BTreeMap::new();
            let mut rows = each.query([])?;
            while let Some(row) = rows.next()? {
                let endpoint: u32 = row.get(0)?;
                let due: Option<i64> = first.query_row((endpoint, HELD.as_millis()), |row| row.get(0))?;
                all.extend(due.map(|due| (EndpointKey(endpoint), Timestamp::from_millis(due))));
            }
            Ok(all)
        };
        self.read_contents(read).await
    }

    async fn close(&self) -> Result<(), LedgerError> {
        self.shut().await
    }
}

impl SqliteLedger {
    pub(super) fn cipher(&self, tenant: TenantKey) -> Result<Arc<TenantCipher>, LedgerError> {
        self.shared
            .keyring
            .tenant(tenant)
            .ok_or_else(|| LedgerError::Unavailable(format!("tenant {} is not declared", tenant.0)))
    }

    pub(super) fn seal_content(
        &self,
        cipher: &TenantCipher,
        place: Place<'_>,
        headers: &Headers,
        body: &[u8],
    ) -> Result<Vec<u8>, LedgerError> {
        let write = |out: &mut Vec<u8>| codec::write_content(out, headers, body);
        let sealed = cipher.seal_with(place, &*self.shared.entropy, content_bytes_hint(headers, body), write);
        Ok(sealed.map_err(Fault::from)?)
    }

    /// What was leased, with what it is about. What does not authenticate is settled here, and left out.
    pub(super) async fn contents_of(
        &self,
        leased: Vec<Leased>,
        now: Timestamp,
    ) -> Result<Vec<(Leased, EventContent)>, LedgerError> {
        if leased.is_empty() {
            return Ok(Vec::new());
        }
        let leases: Vec<Lease> = leased.iter().map(|l| l.lease).collect();
        let shared = Arc::clone(&self.shared);
        let read = move |connection: &Connection| -> Result<Vec<(Leased, Option<EventContent>)>, Fault> {
            let mut all = Vec::with_capacity(leased.len());
            for one in leased {
                let cipher = shared.keyring.tenant(one.lease.tenant);
                let content = match cipher {
                    Some(cipher) => content_of(connection, &cipher, &one)?,
                    None => None,
                };
                all.push((one, content));
            }
            Ok(all)
        };
        let read = match self.read_contents(read).await {
            Ok(read) => read,
            Err(error) => {
                // The slots are given back by now; so is the work, or its leases run out.
                for lease in leases {
                    let disposition = Disposition::Released { due: now, reason: LEDGER_BUSY };
                    let _ = self.end_unsent(lease, disposition, "released", LEDGER_BUSY, now).await;
                }
                return Err(error);
            }
        };
        let mut whole = Vec::with_capacity(read.len());
        for (leased, content) in read {
            match content {
                Some(event) => whole.push((leased, event)),
                None => {
                    tracing::error!(delivery = %leased.lease.delivery, "its content does not authenticate");
                    let dead = Disposition::Dead(QUARANTINED);
                    self.end_unsent(leased.lease, dead, "refused", QUARANTINED, now).await?;
                }
            }
        }
        Ok(whole)
    }

    /// Ends an attempt of which no byte left, on the ledger's own account.
    async fn end_unsent(
        &self,
        lease: Lease,
        disposition: Disposition,
        outcome: &'static str,
        reason: Reason,
        now: Timestamp,
    ) -> Result<Settled, LedgerError> {
        let record = AttemptRecord {
            outcome,
            status: None,
            verdict: None,
            reason,
            decided_by: DecidedBy::Host,
            duration: Duration::ZERO,
            ambiguous: false,
            plugin_version: None,
            plugin_took: None,
            plugin_log: Vec::new(),
            plugin_log_dropped: 0,
            request: None,
            response: None,
            detail: None,
        };
        self.settle(Arc::new(Settlement { lease, record, decision: disposition.into(), pulse: None, now })).await
    }
}

fn content_bytes_hint(headers: &Headers, body: &[u8]) -> usize {
    let headers: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 8).sum();
    headers + body.len() + 4
}

/// The content of what was leased; `None`: it is not there, or does not authenticate.
fn content_of(connection: &Connection, cipher: &TenantCipher, leased: &Leased) -> Result<Option<EventContent>, Fault> {
    let Some(head) = &leased.head else { return Ok(None) };
    let Some(payload) = head.payload else { return Ok(None) };
    let (event, delivery) = (leased.event.to_bytes(), leased.lease.delivery.to_bytes());
    let Some((headers, body)) = load_content(connection, cipher, payload, leased.place(&event, &delivery))? else {
        return Ok(None);
    };
    Ok(Some(EventContent {
        id: leased.event,
        source: head.source,
        event_type: head.event_type.clone(),
        content_type: head.content_type.clone(),
        headers,
        body,
        key: head.key.clone(),
        accepted_at: head.accepted_at,
    }))
}

pub(super) fn load_content(
    connection: &Connection,
    cipher: &TenantCipher,
    payload: i64,
    place: Place<'_>,
) -> Result<Option<(Headers, Bytes)>, Fault> {
    let sealed: Option<Vec<u8>> = connection
        .prepare_cached("SELECT content FROM payload WHERE id = ?")?
        .query_row([payload], |row| row.get(0))
        .optional()?;
    Ok(sealed.and_then(|sealed| cipher.open(place, &sealed).ok()).and_then(codec::read_content))
}
