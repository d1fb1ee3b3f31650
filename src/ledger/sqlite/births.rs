//! Deliveries that are under way from their acceptance on. Most of them are settled a moment later, so the commit that
//! accepts them notes them all in one row, and their own rows are written once: as they were settled. Whoever looks at
//! rows before that has them written first, by [`Needs`] or by a read's [`Provide`]; those that are under way for
//! longer get theirs by and by, and those of a process that ended without settling them get theirs at the next start.

use super::codec::int;
use super::fault::Fault;
use super::writer::{Undo, Verb, Writer};
use crate::clock::Timestamp;
use crate::delivery::{DeliveryId, EventId};
use crate::ledger::{EndpointKey, TenantKey};
use rusqlite::{Connection, Statement};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// The token of a delivery that is born leased, and of any other before its first claim.
pub(super) const FIRST_TOKEN: u64 = 0;
/// After that long, a delivery is not about to be settled.
const WAITS_FOR: Duration = Duration::from_secs(1);
/// Rows that a transaction writes because their time has come, at most.
const OVERDUE_MAX: usize = 256;

/// One delivery without a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Birth {
    pub tenant: TenantKey,
    pub delivery: DeliveryId,
    pub event: EventId,
    pub endpoint: EndpointKey,
    pub sequence: u64,
    pub began_at: Timestamp,
    pub leased_until: Timestamp,
}

/// Bytes of one delivery in a row of births.
const BIRTH_BYTES: usize = 64;

impl Birth {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.tenant.0.to_be_bytes());
        out.extend_from_slice(&self.endpoint.0.to_be_bytes());
        out.extend_from_slice(&self.delivery.to_bytes());
        out.extend_from_slice(&self.event.to_bytes());
        out.extend_from_slice(&self.sequence.to_be_bytes());
        out.extend_from_slice(&self.began_at.as_millis().to_be_bytes());
        out.extend_from_slice(&self.leased_until.as_millis().to_be_bytes());
    }

    /// By [`INSERT_DELIVERY`](super::statements::INSERT_DELIVERY): in its first attempt.
    fn insert(&self, statement: &mut Statement<'_>, host: Option<i64>) -> Result<(), Fault> {
        statement.execute(rusqlite::params![
            self.tenant.0,
            self.delivery.to_bytes(),
            self.event.to_bytes(),
            self.endpoint.0,
            host,
            int(self.sequence),
            1,
            self.began_at.as_millis(),
            self.leased_until.as_millis(),
            self.began_at.as_millis(),
        ])?;
        Ok(())
    }

    fn read(bytes: &[u8; BIRTH_BYTES]) -> Option<Self> {
        let (tenant, rest) = bytes.split_first_chunk()?;
        let (endpoint, rest) = rest.split_first_chunk()?;
        let (delivery, rest) = rest.split_first_chunk()?;
        let (event, rest) = rest.split_first_chunk()?;
        let (sequence, rest) = rest.split_first_chunk()?;
        let (began_at, rest) = rest.split_first_chunk()?;
        let (leased_until, _) = rest.split_first_chunk()?;
        Some(Birth {
            tenant: TenantKey(u32::from_be_bytes(*tenant)),
            endpoint: EndpointKey(u32::from_be_bytes(*endpoint)),
            delivery: DeliveryId::from_bytes(*delivery),
            event: EventId::from_bytes(*event),
            sequence: u64::from_be_bytes(*sequence),
            began_at: Timestamp::from_millis(i64::from_be_bytes(*began_at)),
            leased_until: Timestamp::from_millis(i64::from_be_bytes(*leased_until)),
        })
    }
}

/// Which births must have their rows before a verb looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Needs {
    /// It looks at deliveries under way.
    All,
    /// It looks at those whose lease ended by then.
    EndedBy(Timestamp),
    /// It looks at none that is under way.
    None,
}

/// What a commit's row stands for.
struct Batch {
    born: Vec<DeliveryId>,
    /// Those without a row.
    left: usize,
    since: Timestamp,
}

/// Births that have no row, as of the last commit and of the transaction under way.
pub(super) struct Births {
    open: HashMap<DeliveryId, (Birth, i64)>,
    batches: BTreeMap<i64, Batch>,
    /// Of this transaction.
    fresh: Vec<Birth>,
    /// Batches that lost a birth in this transaction.
    touched: Vec<i64>,
    next: i64,
    bytes: Vec<u8>,
}

impl Births {
    /// For a ledger whose births all have rows, as [`recover`] leaves it.
    pub(super) fn new() -> Self {
        Births {
            open: HashMap::new(),
            batches: BTreeMap::new(),
            fresh: Vec::new(),
            touched: Vec::new(),
            next: 1,
            bytes: Vec::new(),
        }
    }

    /// Without rows, as of the last commit.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether one of an event's has no row. Looks at all that are under way: their number is bounded by the slots.
    pub(super) fn any_of(&self, event: EventId) -> bool {
        self.open.values().any(|(birth, _)| birth.event == event)
    }

    pub(super) fn add(&mut self, birth: Birth) {
        self.fresh.push(birth);
    }

    /// The transaction stands.
    pub(super) fn committed(&mut self) {
        for id in self.touched.drain(..) {
            if self.batches.get(&id).is_some_and(|batch| batch.left == 0) {
                self.batches.remove(&id);
            }
        }
        if self.fresh.is_empty() {
            return;
        }
        let id = self.next;
        self.next += 1;
        let born: Vec<DeliveryId> = self.fresh.iter().map(|birth| birth.delivery).collect();
        let (left, since) = (born.len(), self.fresh.first().map_or(Timestamp::ZERO, |birth| birth.began_at));
        self.batches.insert(id, Batch { born, left, since });
        self.open.extend(self.fresh.drain(..).map(|birth| (birth.delivery, (birth, id))));
    }

    /// The transaction was rolled back; what it had taken comes back by [`Births::put_back`].
    pub(super) fn rolled_back(&mut self) {
        self.fresh.clear();
        self.touched.clear();
    }

    pub(super) fn put_back(&mut self, birth: Birth, batch: i64) {
        self.open.insert(birth.delivery, (birth, batch));
        if let Some(batch) = self.batches.get_mut(&batch) {
            batch.left += 1;
        }
    }

    fn take(&mut self, delivery: DeliveryId) -> Option<(Birth, i64)> {
        let (birth, id) = self.open.remove(&delivery)?;
        if let Some(batch) = self.batches.get_mut(&id) {
            batch.left -= 1;
            if batch.left == 0 || self.touched.last() != Some(&id) {
                self.touched.push(id);
            }
        }
        Some((birth, id))
    }
}

impl Writer<'_> {
    /// The birth that is being settled, whose row the caller writes; `None`: it has one, or there is none.
    pub(super) fn take_birth(&mut self, delivery: DeliveryId) -> Option<Birth> {
        let (birth, batch) = self.births.take(delivery)?;
        self.undo.push(Undo::Birth(birth, batch));
        Some(birth)
    }

    /// Writes the rows of births that a verb needs.
    pub(super) fn provide(&mut self, needs: Needs) -> Result<(), Fault> {
        if self.births.open.is_empty() {
            return Ok(());
        }
        let due: Vec<DeliveryId> = match needs {
            Needs::None => return Ok(()),
            Needs::All => self.births.batches.values().flat_map(|batch| batch.born.iter().copied()).collect(),
            Needs::EndedBy(at) => {
                let ended = self.births.open.values().filter(|(birth, _)| birth.leased_until <= at);
                ended.map(|(birth, _)| birth.delivery).collect()
            }
        };
        self.write_rows(&due)
    }

    fn write_rows(&mut self, born: &[DeliveryId]) -> Result<(), Fault> {
        for delivery in born {
            let Some(birth) = self.take_birth(*delivery) else { continue };
            let host = self.endpoints.get(&birth.endpoint).map(|e| e.host);
            birth.insert(&mut self.sql.insert_delivery, host)?;
        }
        Ok(())
    }

    /// At the end of every transaction: the row of its own births, those of births whose time has come, and away with
    /// the rows of commits that have no more of them.
    pub(super) fn note_births(&mut self) -> Result<(), Fault> {
        let mut overdue = Vec::new();
        let now = if self.births.batches.is_empty() { Timestamp::ZERO } else { self.shared.clock.now() };
        for batch in self.births.batches.values() {
            if overdue.len() >= OVERDUE_MAX || now.since(batch.since) < WAITS_FOR {
                break;
            }
            overdue.extend(batch.born.iter().copied().filter(|id| self.births.open.contains_key(id)));
        }
        overdue.truncate(OVERDUE_MAX);
        self.write_rows(&overdue)?;
        for id in &self.births.touched {
            if self.births.batches.get(id).is_some_and(|batch| batch.left == 0) {
                self.sql.delete_birth.execute([id])?;
            }
        }
        if !self.births.fresh.is_empty() {
            let mut bytes = std::mem::take(&mut self.births.bytes);
            bytes.clear();
            self.births.fresh.iter().for_each(|birth| birth.write(&mut bytes));
            let noted = self.sql.insert_birth.execute((self.births.next, &bytes));
            self.births.bytes = bytes;
            noted?;
        }
        Ok(())
    }
}

/// Has all births get their rows, for a read that comes after.
pub(super) struct Provide;

impl Verb for Provide {
    type Done = ();

    fn apply(&mut self, _w: &mut Writer<'_>) -> Result<(), Fault> {
        Ok(())
    }
}

/// At the start: what was under way gets its rows, in one transaction. Whether the end of such an attempt is known is
/// not known here.
pub(super) fn recover(connection: &mut Connection) -> Result<(), Fault> {
    // A disk without room is no reason not to start, if nothing is to be written.
    if !connection.query_row("SELECT EXISTS (SELECT 1 FROM birth)", [], |row| row.get::<_, bool>(0))? {
        return Ok(());
    }
    let transaction = connection.transaction()?;
    {
        let mut rows = transaction.prepare("SELECT born FROM birth ORDER BY id")?;
        let mut has_row = transaction.prepare("SELECT EXISTS (SELECT 1 FROM delivery WHERE tenant = ? AND id = ?)")?;
        let mut insert = transaction.prepare(super::statements::INSERT_DELIVERY)?;
        let mut host = transaction.prepare("SELECT host FROM endpoint WHERE id = ?")?;
        let mut rows = rows.query([])?;
        while let Some(row) = rows.next()? {
            let born: Vec<u8> = row.get(0)?;
            let (births, rest) = born.as_chunks::<BIRTH_BYTES>();
            if !rest.is_empty() {
                return Err(Fault::damaged("a note of deliveries under way that is cut short"));
            }
            for birth in births.iter().filter_map(Birth::read) {
                let id = birth.delivery.to_bytes();
                if has_row.query_row((birth.tenant.0, id), |row| row.get(0))? {
                    continue;
                }
                birth.insert(&mut insert, host.query_row([birth.endpoint.0], |row| row.get(0))?)?;
            }
        }
        transaction.execute("DELETE FROM birth", [])?;
    }
    transaction.commit()?;
    Ok(())
}
