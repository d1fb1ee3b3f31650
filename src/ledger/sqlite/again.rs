//! Deliveries of an event beside those that it was accepted with: resends, and the steps of a replay.

use super::SqliteLedger;
use super::codec::int;
use super::fault::Fault;
use super::keyring::Place;
use super::manage::{Asked, Standing, standing};
use super::queue::load_content;
use super::replay;
use super::writer::{Verb, Writer};
use crate::clock::Timestamp;
use crate::delivery::{DeliveryId, DeliveryState, Reason};
use crate::ledger::{
    AGAIN_MAX, Again, Count, EndpointKey, LedgerError, OrderingKey, Replay, ReplayRehearsed, Resend, Resent, TenantKey,
};
use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _};
use std::sync::Arc;

/// The deliveries of the event `e`: those it was accepted with lie between its id and the last minted with it.
pub(super) const OF_ROW: &str = "SELECT x.id FROM delivery x WHERE x.tenant = e.tenant AND x.id > e.id \
     AND x.id <= e.last AND x.event = e.id UNION ALL SELECT x.id FROM delivery x INDEXED BY delivery_again \
     WHERE x.tenant = e.tenant AND x.event = e.id AND x.origin > 0";
/// Those of the event `?2` of the tenant `?1`.
pub(super) const OF_EVENT: &str = "SELECT x.id FROM event e JOIN delivery x ON x.tenant = e.tenant AND x.id > e.id \
     AND x.id <= e.last AND x.event = e.id WHERE e.tenant = ?1 AND e.id = ?2 \
     UNION ALL SELECT x.id FROM delivery x INDEXED BY delivery_again \
     WHERE x.tenant = ?1 AND x.event = ?2 AND x.origin > 0";

/// From the events of a key, as `e`, to their deliveries, as `d`, with all that a row of a list shows.
pub(super) fn deliveries_of_key() -> String {
    format!(
        "event e INDEXED BY event_key CROSS JOIN delivery d ON d.tenant = e.tenant AND d.id IN ({OF_ROW}) \
         LEFT JOIN source s ON s.id = e.source JOIN endpoint p ON p.id = d.endpoint JOIN host h ON h.id = d.host"
    )
}

/// A resend that finds another correction before it looks again so many times.
const RESEND_TRIES: u32 = 3;

/// A delivery that is about to be made, due when its event allows.
pub(super) struct Another<'a> {
    pub tenant: TenantKey,
    pub event: [u8; 16],
    pub endpoint: EndpointKey,
    pub deliver_at: Option<Timestamp>,
    pub id: DeliveryId,
    /// The one before.
    pub of: Option<[u8; 16]>,
    /// The operation's number, and that with its wave.
    pub replay: Option<(i64, i64)>,
    pub order: Ordered,
    pub revision: u32,
    pub payload: Option<i64>,
    pub note: Option<&'a str>,
    pub now: Timestamp,
}

/// Its place among those of its key.
pub(super) enum Ordered {
    Free,
    /// As the last of its line.
    Behind(OrderingKey),
    /// At once: its key has gone on.
    OutOf([u8; 16]),
}

/// `None`: there are enough of them.
pub(super) fn next_origin(
    connection: &Connection,
    tenant: TenantKey,
    event: &[u8; 16],
    endpoint: EndpointKey,
) -> Result<Option<u32>, Fault> {
    let last: Option<u32> = connection
        .prepare_cached(
            "SELECT max(origin) FROM delivery INDEXED BY delivery_again \
             WHERE tenant = ? AND event = ? AND endpoint = ? AND origin > 0",
        )?
        .query_row((tenant.0, event, endpoint.0), |row| row.get(0))?;
    Ok(Some(last.unwrap_or(0) + 1).filter(|origin| *origin <= AGAIN_MAX))
}

impl Writer<'_> {
    pub(super) fn make_another(&mut self, another: &Another<'_>, origin: u32) -> Result<(), Fault> {
        let Another { tenant, event, endpoint, deliver_at, id, of, replay, order, revision, payload, note, now } =
            another;
        let Some(host) = self.endpoints.get(endpoint).map(|e| e.host) else {
            return Err(Fault::damaged("a delivery to an endpoint that is not there"));
        };
        let later = deliver_at.filter(|at| at > now);
        let sequence = self.next_sequence(*endpoint);
        let due = match order {
            Ordered::Behind(key) => self.line_up((*tenant, *id), (*endpoint, sequence), key, later, *now)?,
            Ordered::Free | Ordered::OutOf(_) => later.unwrap_or(*now),
        };
        let out_of = match order {
            Ordered::OutOf(digest) => Some(digest),
            Ordered::Free | Ordered::Behind(_) => None,
        };
        self.connection
            .prepare_cached(
                "INSERT INTO delivery (tenant, id, event, origin, endpoint, host, sequence, state, generation, revision, \
                 attempts, counted, interrupted, began_at, due_at, token, note, payload, bulk, again_of, replayed, \
                 made_at, ordering, out_of_order) \
                 VALUES (?, ?, ?, ?, ?, ?, ?, 0, 1, ?, 0, 0, 0, ?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?)",
            )?
            .execute(rusqlite::params![
                tenant.0,
                id.to_bytes(),
                event,
                origin,
                endpoint.0,
                host,
                int(sequence),
                revision,
                now.as_millis(),
                due.as_millis(),
                note,
                payload,
                replay.map(|(_, wave)| wave),
                of,
                replay.map(|(number, _)| number),
                now.as_millis(),
                out_of,
                out_of.is_some(),
            ])?;
        if let Ordered::Behind(key) = order {
            self.mark_ordered((*tenant, *id), key, due)?;
        }
        self.effects.pending += 1;
        self.tallies.count(*tenant, *endpoint, Count::ACCEPTED, *now);
        self.wake(*endpoint, due, *now);
        Ok(())
    }
}

/// What a resend looks at beside its [`Standing`].
struct Over {
    deliver_at: Option<Timestamp>,
    ordering: Option<[u8; 16]>,
    purged: bool,
}

struct ResendOne {
    tenant: TenantKey,
    delivery: DeliveryId,
    id: DeliveryId,
    asked: Option<Asked>,
    note: Option<String>,
    /// What a corrected one sent, sealed for the new one, and as which revision it was that.
    corrected: Option<(u32, Vec<u8>)>,
    now: Timestamp,
}

/// A corrected payload goes out as the second revision: the first is the event's.
const REVISION: u32 = 2;

impl Verb for ResendOne {
    /// `None`: it was corrected in between; look again.
    type Done = Option<Resent>;

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Option<Resent>, Fault> {
        let Some(standing) = standing(w.connection, self.tenant, self.delivery)? else {
            return Ok(Some(Resent::NotFound));
        };
        if let Some(before) = self.answered_before(w.connection)? {
            return Ok(Some(before));
        }
        let of = self.delivery.to_bytes();
        let over = w
            .connection
            .prepare_cached(
                "SELECT e.deliver_at, d.ordering, d.state = 6 AND d.reason = ?3 FROM delivery d \
                 JOIN event e ON e.tenant = d.tenant AND e.id = d.event WHERE d.tenant = ?1 AND d.id = ?2",
            )?
            .query_row((self.tenant.0, of, Reason::PURGED.as_str()), |row| {
                let deliver_at = row.get::<_, Option<i64>>(0)?.map(Timestamp::from_millis);
                Ok(Over { deliver_at, ordering: row.get(1)?, purged: row.get(2)? })
            })
            .optional()?;
        let Some(over) = over else { return Ok(Some(Resent::NotFound)) };
        if let Some(refused) = refused(&standing, &over, self.now) {
            return Ok(Some(refused));
        }
        let Some(origin) = next_origin(w.connection, self.tenant, &standing.event, standing.endpoint)? else {
            return Ok(Some(Resent::TooMany));
        };
        if self.corrected.as_ref().map_or(1, |(revision, _)| *revision) != standing.revision {
            return Ok(None);
        }
        let payload = match &self.corrected {
            None => None,
            Some((_, sealed)) => {
                let payload = w.next_payload;
                w.next_payload += 1;
                let id = self.id.to_bytes();
                w.sql.insert_payload.execute((payload, self.tenant.0, standing.event, id, REVISION, sealed))?;
                w.connection
                    .prepare_cached(
                        "INSERT INTO revision (tenant, delivery, revision, payload, note, made_at) \
                         VALUES (?, ?, ?, ?, ?, ?)",
                    )?
                    .execute((self.tenant.0, id, REVISION, payload, &self.note, self.now.as_millis()))?;
                Some(payload)
            }
        };
        let another = Another {
            tenant: self.tenant,
            event: standing.event,
            endpoint: standing.endpoint,
            deliver_at: over.deliver_at,
            id: self.id,
            of: Some(of),
            replay: None,
            order: over.ordering.map_or(Ordered::Free, Ordered::OutOf),
            revision: if payload.is_some() { REVISION } else { 1 },
            payload,
            note: self.note.as_deref(),
            now: self.now,
        };
        w.make_another(&another, origin)?;
        if let Some(Asked { request, content }) = &self.asked {
            w.connection
                .prepare_cached("INSERT INTO resend (tenant, delivery, request, content, made) VALUES (?, ?, ?, ?, ?)")?
                .execute((self.tenant.0, of, request.as_str(), content, self.id.to_bytes()))?;
        }
        Ok(Some(Resent::Done(self.id)))
    }
}

/// Why one is not sent once more.
fn refused(standing: &Standing, over: &Over, now: Timestamp) -> Option<Resent> {
    match standing.state {
        DeliveryState::Pending | DeliveryState::InFlight | DeliveryState::Dead => {
            return Some(Resent::NotOver(standing.state));
        }
        DeliveryState::Delivered
        | DeliveryState::Skipped
        | DeliveryState::Expired
        | DeliveryState::Cancelled
        | DeliveryState::Resolved => {}
    }
    if over.purged {
        Some(Resent::Purged)
    } else if standing.expires_at.is_some_and(|at| at <= now) {
        Some(Resent::Expired)
    } else if standing.payload.is_none() {
        Some(Resent::PayloadErased)
    } else {
        None
    }
}

impl ResendOne {
    fn answered_before(&self, connection: &Connection) -> Result<Option<Resent>, Fault> {
        let Some(Asked { request, content }) = &self.asked else { return Ok(None) };
        let before: Option<([u8; 32], [u8; 16])> = connection
            .prepare_cached("SELECT content, made FROM resend WHERE tenant = ? AND delivery = ? AND request = ?")?
            .query_row((self.tenant.0, self.delivery.to_bytes(), request.as_str()), |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .optional()?;
        let same = |(of_then, made)| match of_then == *content {
            true => Resent::Done(DeliveryId::from_bytes(made)),
            false => Resent::RequestReused,
        };
        Ok(before.map(same))
    }
}

/// The resends and replays of one delivery, in their order.
pub(super) fn resends(connection: &Connection, tenant: TenantKey, id: DeliveryId) -> Result<Vec<DeliveryId>, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT x.id FROM delivery d JOIN delivery x INDEXED BY delivery_again ON x.tenant = d.tenant \
         AND x.event = d.event AND x.endpoint = d.endpoint AND x.origin > 0 AND x.again_of = d.id \
         WHERE d.tenant = ? AND d.id = ? ORDER BY x.origin",
    )?;
    let found = statement.query_map((tenant.0, id.to_bytes()), |row| row.get(0).map(DeliveryId::from_bytes))?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}

#[async_trait]
impl Again for SqliteLedger {
    async fn resend(&self, resend: Resend, now: Timestamp) -> Result<Resent, LedgerError> {
        let Resend { tenant, delivery, note, request } = resend;
        let asked = Asked::of(request.as_ref(), note.as_deref(), None);
        for _ in 0..RESEND_TRIES {
            let id = DeliveryId::from(self.shared.mint.mint(now, &*self.shared.entropy));
            let corrected = self.corrected(tenant, delivery, id).await?;
            let verb = ResendOne { tenant, delivery, id, asked: asked.clone(), note: note.clone(), corrected, now };
            if let Some(done) = self.ask(verb, 0).await? {
                return Ok(done);
            }
        }
        Err(LedgerError::Unavailable("the delivery is being corrected by others".into()))
    }

    async fn rehearse_replay(
        &self,
        tenant: TenantKey,
        replay: &Replay,
        samples: u32,
        now: Timestamp,
    ) -> Result<Option<ReplayRehearsed>, LedgerError> {
        let replay = replay.clone();
        self.read(move |c| replay::rehearse(c, tenant, &replay, samples, now)).await
    }
}

impl SqliteLedger {
    /// What a delivery sends that is no longer the event's, sealed for another one.
    async fn corrected(
        &self,
        tenant: TenantKey,
        delivery: DeliveryId,
        for_id: DeliveryId,
    ) -> Result<Option<(u32, Vec<u8>)>, LedgerError> {
        let cipher = self.cipher(tenant)?;
        let of = Arc::clone(&cipher);
        let read = move |c: &Connection| -> Result<Option<_>, Fault> {
            let Some(standing) = standing(c, tenant, delivery)? else { return Ok(None) };
            let Some(payload) = standing.payload.filter(|_| standing.revision > 1) else { return Ok(None) };
            let id = delivery.to_bytes();
            let content = load_content(c, &of, payload, Place::RevisionContent(&id, standing.revision))?;
            let unreadable = || Fault::Refused(LedgerError::Quarantined("a corrected payload".into()));
            content.ok_or_else(unreadable).map(|content| Some((standing.revision, content)))
        };
        let Some((revision, (headers, body))) = self.read(read).await? else { return Ok(None) };
        let id = for_id.to_bytes();
        let sealed = self.seal_content(&cipher, Place::RevisionContent(&id, REVISION), &headers, &body)?;
        Ok(Some((revision, sealed)))
    }
}
