//! Coalescing: of the events with one key inside a window, the newest is delivered, at the window's end. An event that
//! comes takes the place of those before it: their deliveries go, and a link stays.

use super::again;
use super::fault::Fault;
use super::writer::Writer;
use crate::clock::Timestamp;
use crate::delivery::{DeliveryId, EventId};
use crate::ledger::{Count, EndpointKey, TenantKey};
use crate::verify::Coalesce;
use rusqlite::{Connection, OptionalExtension as _};

/// The window that an event falls into.
pub(super) struct Window {
    began_at: Timestamp,
    pub(super) ends_at: Timestamp,
    /// `None`: the event begins it.
    open: Option<Vec<Member>>,
}

/// An event of an open window that no later one has taken the place of.
struct Member {
    event: [u8; 16],
    deliveries: Vec<Waiting>,
}

/// A delivery of it, of which nothing was tried.
struct Waiting {
    id: DeliveryId,
    endpoint: EndpointKey,
    /// A person may have cancelled it.
    pending: bool,
}

impl Window {
    /// The newest window of the key, if it is still open, or one that begins now.
    pub(super) fn of(
        connection: &Connection,
        tenant: TenantKey,
        coalesce: &Coalesce,
        now: Timestamp,
    ) -> Result<Self, Fault> {
        let newest: Option<(i64, i64, [u8; 16])> = connection
            .prepare_cached("SELECT began_at, ends_at, first FROM coalescing WHERE tenant = ? AND key = ?")?
            .query_row((tenant.0, &coalesce.key), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .optional()?;
        // One that begins in the future is from before the clock was set back.
        let in_time = newest.filter(|(began_at, ends_at, _)| (*began_at..*ends_at).contains(&now.as_millis()));
        if let Some((began_at, ends_at, first)) = in_time
            && let Some(members) = members(connection, tenant, &coalesce.key, first)?
        {
            let (began_at, ends_at) = (Timestamp::from_millis(began_at), Timestamp::from_millis(ends_at));
            return Ok(Window { began_at, ends_at, open: Some(members) });
        }
        Ok(Window { began_at: now, ends_at: now.plus(coalesce.window), open: None })
    }
}

/// `None`: something of the window is on its way already, which closes it.
fn members(
    connection: &Connection,
    tenant: TenantKey,
    key: &str,
    first: [u8; 16],
) -> Result<Option<Vec<Member>>, Fault> {
    let mut events = connection.prepare_cached(
        "SELECT id FROM event INDEXED BY event_coalesced \
         WHERE tenant = ? AND coalesce_key = ? AND id >= ? AND coalesce_key IS NOT NULL AND superseded_by IS NULL",
    )?;
    let mut own = connection.prepare_cached(&format!(
        "SELECT id, endpoint, state = 0, attempts FROM delivery WHERE tenant = ?1 AND id IN ({})",
        again::OF_EVENT
    ))?;
    let mut rows = events.query((tenant.0, key, first))?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        let event: [u8; 16] = row.get(0)?;
        let mut deliveries = Vec::new();
        let mut rows = own.query((tenant.0, event))?;
        while let Some(row) = rows.next()? {
            if row.get::<_, u32>(3)? > 0 {
                return Ok(None);
            }
            deliveries.push(Waiting {
                id: DeliveryId::from_bytes(row.get(0)?),
                endpoint: EndpointKey(row.get(1)?),
                pending: row.get(2)?,
            });
        }
        all.push(Member { event, deliveries });
    }
    Ok(Some(all))
}

impl Writer<'_> {
    /// Puts an event, whose row is there, into its window: in place of those before it, wherever both go. Gives how many
    /// events have nothing left to deliver by that.
    pub(super) fn coalesce(
        &mut self,
        (tenant, event): (TenantKey, EventId),
        coalesce: &Coalesce,
        window: &Window,
        goes_to: impl Fn(EndpointKey) -> bool,
        now: Timestamp,
    ) -> Result<u64, Fault> {
        let (id, key) = (event.to_bytes(), &coalesce.key);
        let idempotency_key = format!("{key}@{}", window.began_at.to_rfc3339());
        self.connection
            .prepare_cached(
                "UPDATE event SET coalesce_key = ?3, idempotency_key = ?4, deliver_at = ?5 \
                 WHERE tenant = ?1 AND id = ?2",
            )?
            .execute((tenant.0, id, key, idempotency_key, window.ends_at.as_millis()))?;
        let Some(members) = &window.open else {
            self.connection
                .prepare_cached(
                    "INSERT OR REPLACE INTO coalescing (tenant, key, began_at, ends_at, first) VALUES (?, ?, ?, ?, ?)",
                )?
                .execute((tenant.0, key, window.began_at.as_millis(), window.ends_at.as_millis(), id))?;
            return Ok(0);
        };
        // Ids are minted before events queue for the writer.
        self.connection
            .prepare_cached("UPDATE coalescing SET first = min(first, ?3) WHERE tenant = ?1 AND key = ?2")?
            .execute((tenant.0, key, id))?;
        let mut superseded = 0;
        for member in members {
            let mut left = member.deliveries.len();
            for gone in member.deliveries.iter().filter(|waiting| waiting.pending && goes_to(waiting.endpoint)) {
                self.connection
                    .prepare_cached("DELETE FROM delivery WHERE tenant = ? AND id = ?")?
                    .execute((tenant.0, gone.id.to_bytes()))?;
                self.effects.pending -= 1;
                self.tallies.count(tenant, gone.endpoint, Count::SUPERSEDED, now);
                left -= 1;
            }
            if left == 0 {
                self.connection
                    .prepare_cached("UPDATE event SET superseded_by = ?3 WHERE tenant = ?1 AND id = ?2")?
                    .execute((tenant.0, member.event, id))?;
                // Nothing will ever be sent of it.
                if !member.deliveries.is_empty() && member.deliveries.iter().all(|gone| self.scrubs(gone.endpoint)) {
                    self.scrub_event(tenant, &member.event)?;
                }
                superseded += 1;
            }
        }
        Ok(superseded)
    }
}

/// Removes windows that have ended, at most `limit`. Gives how many.
pub(super) fn sweep(connection: &Connection, now: Timestamp, limit: usize) -> Result<usize, Fault> {
    let gone = connection
        .prepare_cached(
            "DELETE FROM coalescing WHERE (tenant, key) IN \
             (SELECT tenant, key FROM coalescing INDEXED BY coalescing_end WHERE ends_at <= ? ORDER BY ends_at LIMIT ?)",
        )?
        .execute((now.as_millis(), super::codec::int(limit as u64)))?;
    Ok(gone)
}
