//! What an operator's word does to rows.

use super::codec::{state_code, state_of};
use super::fault::Fault;
use super::ordering::Leaving;
use super::writer::{Verb, Writer};
use crate::clock::Timestamp;
use crate::delivery::{DeliveryId, DeliveryState, EndpointStatus, Health, Name, Reason};
use crate::ledger::{
    Cancelled, Count, EndpointChange, EndpointKey, LedgerError, Redriven, RequestId, ResolveAs, Resolved, TenantKey,
};
use rusqlite::{Connection, OptionalExtension as _};
use sha2::{Digest as _, Sha256};

/// What these verbs look at.
pub(super) struct Standing {
    pub endpoint: EndpointKey,
    pub event: [u8; 16],
    pub state: DeliveryState,
    pub generation: u32,
    pub revision: u32,
    /// Where its payload is: its own, else its event's; `None`: erased.
    pub payload: Option<i64>,
    pub expires_at: Option<Timestamp>,
    pub content_type: Option<String>,
    reason: Option<String>,
}

impl Standing {
    /// Dead, or found unsent by a person.
    fn may_be_redriven(&self) -> bool {
        let unsent = self.reason.as_deref() == Some(ResolveAs::NotSent.as_str());
        self.state == DeliveryState::Dead || self.state == DeliveryState::Resolved && unsent
    }
}

pub(super) fn standing(connection: &Connection, tenant: TenantKey, id: DeliveryId) -> Result<Option<Standing>, Fault> {
    let found = connection
        .prepare_cached(
            "SELECT d.endpoint, d.event, d.state, d.generation, d.revision, d.payload, e.payload, e.expires_at, \
             e.content_type, d.reason \
             FROM delivery d LEFT JOIN event e ON e.tenant = d.tenant AND e.id = d.event \
             WHERE d.tenant = ? AND d.id = ?",
        )?
        .query_row((tenant.0, id.to_bytes()), |row| {
            let revision: u32 = row.get(4)?;
            let standing = Standing {
                endpoint: EndpointKey(row.get(0)?),
                event: row.get(1)?,
                state: DeliveryState::Pending,
                generation: row.get(3)?,
                revision,
                payload: if revision > 1 { row.get(5)? } else { row.get(6)? },
                expires_at: super::codec::time_opt(row, 7)?,
                content_type: row.get(8)?,
                reason: row.get(9)?,
            };
            Ok((standing, row.get::<_, i64>(2)?))
        })
        .optional()?;
    match found {
        Some((standing, code)) => Ok(Some(Standing { state: state_of(code)?, ..standing })),
        None => Ok(None),
    }
}

/// A redrive's request id, and the digest of what it asks for.
#[derive(Clone)]
pub(super) struct Asked {
    pub request: RequestId,
    pub content: [u8; 32],
}

impl Asked {
    /// `None`: it came without a request id.
    pub(super) fn of(request: Option<&RequestId>, note: Option<&str>, payload: Option<&[u8]>) -> Option<Self> {
        let mut content = Sha256::new();
        for part in [note.map(str::as_bytes), payload] {
            content.update([u8::from(part.is_some())]);
            content.update(part.map_or(0, <[u8]>::len).to_be_bytes());
            content.update(part.unwrap_or_default());
        }
        Some(Asked { request: request?.clone(), content: content.finalize().into() })
    }
}

pub(super) struct RedriveDead {
    pub tenant: TenantKey,
    pub delivery: DeliveryId,
    pub asked: Option<Asked>,
    pub note: Option<String>,
    /// The next revision, sealed for this number.
    pub payload: Option<(u32, Vec<u8>)>,
    pub now: Timestamp,
}

impl Verb for RedriveDead {
    /// `None`: another redrive came in between; look again.
    type Done = Option<Redriven>;

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Option<Redriven>, Fault> {
        let Some(standing) = standing(w.connection, self.tenant, self.delivery)? else {
            return Ok(Some(Redriven::NotFound));
        };
        if let Some(before) = self.answered_before(w.connection)? {
            return Ok(Some(before));
        }
        if !standing.may_be_redriven() {
            return Ok(Some(Redriven::NotDead(standing.state)));
        }
        if standing.expires_at.is_some_and(|at| at <= self.now) {
            return Ok(Some(Redriven::Expired));
        }
        let id = self.delivery.to_bytes();
        let (revision, own) = match &self.payload {
            None if standing.payload.is_none() => return Ok(Some(Redriven::PayloadErased)),
            None => (standing.revision, standing.payload.filter(|_| standing.revision > 1)),
            Some((revision, _)) if *revision != standing.revision + 1 => return Ok(None),
            Some((revision, sealed)) => {
                let payload = w.next_payload;
                w.next_payload += 1;
                w.sql.insert_payload.execute((payload, self.tenant.0, standing.event, id, revision, sealed))?;
                w.connection
                    .prepare_cached(
                        "INSERT INTO revision (tenant, delivery, revision, payload, note, made_at) \
                         VALUES (?, ?, ?, ?, ?, ?)",
                    )?
                    .execute((self.tenant.0, id, revision, payload, &self.note, self.now.as_millis()))?;
                (*revision, Some(payload))
            }
        };
        let generation = standing.generation + 1;
        w.connection
            .prepare_cached(
                "UPDATE delivery SET state = 0, generation = ?3, revision = ?4, counted = 0, interrupted = 0, \
                 began_at = ?5, due_at = ?5, reason = NULL, finished_at = NULL, note = coalesce(?6, note), \
                 payload = ?7, bulk = NULL WHERE tenant = ?1 AND id = ?2",
            )?
            .execute(rusqlite::params![
                self.tenant.0,
                id,
                generation,
                revision,
                self.now.as_millis(),
                self.note,
                own
            ])?;
        if let Some(Asked { request, content }) = &self.asked {
            w.connection
                .prepare_cached(
                    "INSERT INTO redrive (tenant, delivery, request, content, generation, revision) \
                     VALUES (?, ?, ?, ?, ?, ?)",
                )?
                .execute((self.tenant.0, id, request.as_str(), content, generation, revision))?;
        }
        if standing.state == DeliveryState::Dead {
            w.effects.dead -= 1;
            w.effects.dead_removed = true;
        }
        w.effects.pending += 1;
        w.tallies.count(self.tenant, standing.endpoint, Count::REDRIVEN, self.now);
        let due = w.rejoin(self.tenant, self.delivery, standing.endpoint, self.now)?;
        w.wake(standing.endpoint, due, self.now);
        Ok(Some(Redriven::Done { generation, revision }))
    }
}

impl RedriveDead {
    fn answered_before(&self, connection: &Connection) -> Result<Option<Redriven>, Fault> {
        let Some(Asked { request, content }) = &self.asked else { return Ok(None) };
        let before = connection
            .prepare_cached(
                "SELECT content, generation, revision FROM redrive WHERE tenant = ? AND delivery = ? AND request = ?",
            )?
            .query_row((self.tenant.0, self.delivery.to_bytes(), request.as_str()), |row| {
                let same = row.get::<_, [u8; 32]>(0)? == *content;
                let done = Redriven::Done { generation: row.get(1)?, revision: row.get(2)? };
                Ok(if same { done } else { Redriven::RequestReused })
            })
            .optional()?;
        Ok(before)
    }
}

pub(super) struct CancelPending {
    pub tenant: TenantKey,
    pub delivery: DeliveryId,
    pub now: Timestamp,
}

impl Verb for CancelPending {
    type Done = Cancelled;

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Cancelled, Fault> {
        let Some(standing) = standing(w.connection, self.tenant, self.delivery)? else {
            return Ok(Cancelled::NotFound);
        };
        if standing.state != DeliveryState::Pending {
            return Ok(Cancelled::NotPending(standing.state));
        }
        finish(w, self.tenant, self.delivery, DeliveryState::Cancelled, Reason::CANCELLED.as_str(), None, self.now)?;
        w.leave_line(self.tenant, self.delivery, standing.endpoint, Leaving::Ended, self.now)?;
        w.effects.pending -= 1;
        w.tallies.count(self.tenant, standing.endpoint, Count::CANCELLED, self.now);
        Ok(Cancelled::Done)
    }
}

pub(super) struct ResolveDead {
    pub tenant: TenantKey,
    pub delivery: DeliveryId,
    pub how: ResolveAs,
    pub note: Option<String>,
    pub now: Timestamp,
}

impl Verb for ResolveDead {
    type Done = Resolved;

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Resolved, Fault> {
        let Some(standing) = standing(w.connection, self.tenant, self.delivery)? else {
            return Ok(Resolved::NotFound);
        };
        if standing.state != DeliveryState::Dead {
            return Ok(Resolved::NotDead(standing.state));
        }
        let (reason, note) = (self.how.as_str(), self.note.as_deref());
        finish(w, self.tenant, self.delivery, DeliveryState::Resolved, reason, note, self.now)?;
        w.leave_line(self.tenant, self.delivery, standing.endpoint, Leaving::Ended, self.now)?;
        if self.how == ResolveAs::Sent {
            w.scrub_at(self.tenant, self.delivery, standing.endpoint)?;
        }
        w.effects.dead -= 1;
        w.effects.dead_removed = true;
        w.tallies.count(self.tenant, standing.endpoint, Count::RESOLVED, self.now);
        Ok(Resolved::Done)
    }
}

/// A terminal state by an operator's word. The reason of a resolution is what was found out; why the delivery died
/// stays with its attempts.
#[expect(clippy::too_many_arguments, reason = "one row's columns")]
fn finish(
    w: &mut Writer<'_>,
    tenant: TenantKey,
    id: DeliveryId,
    state: DeliveryState,
    reason: &str,
    note: Option<&str>,
    now: Timestamp,
) -> Result<(), Fault> {
    w.connection
        .prepare_cached(
            "UPDATE delivery SET state = ?3, due_at = NULL, reason = ?4, finished_at = ?5, \
             note = coalesce(?6, note) WHERE tenant = ?1 AND id = ?2",
        )?
        .execute((tenant.0, id.to_bytes(), state_code(state), reason, now.as_millis(), note))?;
    Ok(())
}

pub(super) struct ChangeEndpoint {
    pub tenant: TenantKey,
    pub endpoint: Name,
    pub change: EndpointChange,
    pub now: Timestamp,
}

impl Verb for ChangeEndpoint {
    type Done = Option<EndpointStatus>;

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Option<EndpointStatus>, Fault> {
        let id: Option<u32> = w
            .connection
            .prepare_cached("SELECT id FROM endpoint WHERE tenant = ? AND name = ?")?
            .query_row((self.tenant.0, self.endpoint.as_str()), |row| row.get(0))
            .optional()?;
        let Some(key) = id.map(EndpointKey) else { return Ok(None) };
        let Some(before) = w.endpoints.get(&key).map(|e| e.status.clone()) else {
            let text = format!("endpoint {} is not known to the writer", self.endpoint);
            return Err(Fault::Refused(LedgerError::Unavailable(text)));
        };
        let disabled = matches!(before, EndpointStatus::Disabled { .. });
        let after = match &self.change {
            EndpointChange::Pause { .. } | EndpointChange::Resume if disabled => before.clone(),
            EndpointChange::Pause { until, why } => EndpointStatus::Paused { until: *until, why: why.clone() },
            EndpointChange::Disable { why } => EndpointStatus::Disabled { why: why.clone() },
            EndpointChange::Resume | EndpointChange::Enable => EndpointStatus::Enabled,
        };
        let health = w.endpoints.get(&key).map(|e| e.health).unwrap_or_default();
        let felt = match &self.change {
            EndpointChange::Enable => Health::default(),
            EndpointChange::Resume if !disabled => health.resumed(self.now),
            EndpointChange::Resume | EndpointChange::Pause { .. } | EndpointChange::Disable { .. } => health,
        };
        if felt != health {
            w.set_health(key, felt);
        }
        if after != before {
            w.set_status(key, after.clone())?;
            // Whatever waits behind it is to be looked at: now, or when the pause ends.
            w.wake(key, self.now, self.now);
        }
        Ok(Some(after))
    }
}
