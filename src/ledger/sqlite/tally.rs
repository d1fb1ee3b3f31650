//! What happened, counted beside what it happened to. A transaction adds to the memory of [`Tallies`] and writes all of
//! it as one row at its end; every so many rows are added up into those by the minute. So the figures are those of the
//! last commit, at the cost of one statement for each, whatever number of endpoints it touched.

use super::codec::{count, int};
use super::fault::Fault;
use super::writer::Writer;
use crate::clock::Timestamp;
use crate::delivery::{Disposition, EndpointEffect, LatencyBucket};
use crate::ledger::stats::{MINUTE, floor};
use crate::ledger::{Accepted, Count, EndpointKey, Settlement, SourceKey, Tally, TenantKey};
use rusqlite::{Connection, OptionalExtension as _};
use std::collections::BTreeMap;

/// Rows of commits before the oldest are added up.
const NOTES_MAX: u64 = 64;
/// Minutes that a transaction adds to, at most, and those of one more commit.
const FOLDED_MAX: usize = 512;

/// Whose figures.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Subject {
    Source(SourceKey),
    Published,
    Endpoint(EndpointKey),
}

impl Subject {
    fn of(source: Option<SourceKey>) -> Self {
        source.map_or(Subject::Published, Subject::Source)
    }

    pub(super) fn number(self) -> i64 {
        match self {
            Subject::Endpoint(key) => key.0.into(),
            Subject::Published => 0,
            Subject::Source(key) => -i64::from(key.0),
        }
    }

    pub(super) fn numbered(number: i64) -> Result<Self, Fault> {
        let key = u32::try_from(number.unsigned_abs()).map_err(|_| damaged())?;
        Ok(match number {
            0 => Subject::Published,
            1.. => Subject::Endpoint(EndpointKey(key)),
            _ => Subject::Source(SourceKey(key)),
        })
    }
}

/// Whose figures, of which minute.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Place {
    pub tenant: TenantKey,
    pub at: Timestamp,
    pub subject: Subject,
}

impl Place {
    fn new(tenant: TenantKey, subject: Subject, now: Timestamp) -> Self {
        Place { tenant, at: floor(now, MINUTE), subject }
    }
}

pub(super) fn damaged() -> Fault {
    Fault::damaged("figures that are not as they were written")
}

/// What this transaction counts, and what of earlier ones is not added up yet.
pub(super) struct Tallies {
    fresh: BTreeMap<Place, Tally>,
    next: i64,
    /// As of the last commit, and those that this transaction adds up.
    notes: u64,
    folded: u64,
    bytes: Vec<u8>,
}

impl Tallies {
    pub(super) fn load(connection: &Connection) -> Result<Self, Fault> {
        let sql = "SELECT coalesce(max(id), 0) + 1, count(*) FROM tally_note";
        let (next, notes) = connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(Tallies { fresh: BTreeMap::new(), next, notes: count(notes), folded: 0, bytes: Vec::new() })
    }

    /// The transaction stands.
    pub(super) fn committed(&mut self) {
        if !self.fresh.is_empty() {
            self.fresh.clear();
            self.next += 1;
            self.notes += 1;
        }
        self.notes = self.notes.saturating_sub(self.folded);
        self.folded = 0;
    }

    /// The transaction was rolled back.
    pub(super) fn rolled_back(&mut self) {
        self.fresh.clear();
        self.folded = 0;
    }

    fn at(&mut self, tenant: TenantKey, subject: Subject, now: Timestamp) -> &mut Tally {
        self.fresh.entry(Place::new(tenant, subject, now)).or_default()
    }

    pub(super) fn count(&mut self, tenant: TenantKey, endpoint: EndpointKey, count: Count, now: Timestamp) {
        self.at(tenant, Subject::Endpoint(endpoint), now).add(count, 1);
    }

    pub(super) fn accepted(
        &mut self,
        tenant: TenantKey,
        source: Option<SourceKey>,
        accepted: &Accepted,
        now: Timestamp,
    ) {
        let count = match accepted {
            Accepted::New(_) => Count::EVENTS,
            Accepted::Duplicate(_) => Count::DUPLICATES,
            Accepted::KeyReused(_) => Count::KEYS_REUSED,
            Accepted::TooLateAt(_) => return,
        };
        self.at(tenant, Subject::of(source), now).add(count, 1);
    }

    pub(super) fn settled(&mut self, settlement: &Settlement) {
        let Settlement { lease, record, decision, now, pulse: _ } = settlement;
        let tally = self.at(lease.tenant, Subject::Endpoint(lease.endpoint), *now);
        let attempt = lease.history.counted;
        match &decision.disposition {
            Disposition::Delivered { .. } => {
                tally.add(Count::tried(attempt), 1);
                tally.add(Count::delivered(attempt), 1);
                tally.add(Count::latency(LatencyBucket::of(now.since(lease.eligible_at))), 1);
                if lease.generation > 1 {
                    tally.add(Count::DELIVERED_AFTER_REDRIVE, 1);
                }
            }
            Disposition::RetryAt { reason, .. } => {
                tally.add(Count::tried(attempt), 1);
                tally.add_reason(reason.as_str(), 1, 0);
            }
            Disposition::Dead(reason) => {
                tally.add(Count::tried(attempt), 1);
                tally.add(Count::DEAD, 1);
                tally.add_reason(reason.as_str(), 0, 1);
            }
            Disposition::Skipped(_) => tally.add(Count::SKIPPED, 1),
            Disposition::Expired(_) => tally.add(Count::EXPIRED, 1),
            Disposition::Released { .. } => tally.add(Count::RELEASED, 1),
        }
        if record.outcome == "interrupted" {
            tally.add(Count::INTERRUPTED, 1);
        }
        if record.ambiguous {
            tally.add(Count::AMBIGUOUS, 1);
        }
        if record.status == Some(429) {
            tally.add(Count::STATUS_429, 1);
        }
        if let (Some(429 | 503), Some(EndpointEffect::PauseUntil { .. })) = (record.status, &decision.endpoint) {
            tally.add(Count::THROTTLED, 1);
        }
    }
}

impl Writer<'_> {
    /// At the end of every transaction: the row of what it counted; and when there are many such rows, the oldest are
    /// added to the minutes.
    pub(super) fn note_tallies(&mut self) -> Result<(), Fault> {
        let tallies = &mut self.tallies;
        if tallies.fresh.is_empty() {
            return Ok(());
        }
        tallies.bytes.clear();
        for (place, tally) in &tallies.fresh {
            write_place(*place, &mut tallies.bytes);
            write(tally, &mut tallies.bytes);
        }
        self.sql.insert_tally_note.execute((tallies.next, &tallies.bytes))?;
        if tallies.notes.saturating_sub(tallies.folded) >= NOTES_MAX {
            self.fold_tallies()?;
        }
        Ok(())
    }

    /// Adds the oldest notes of earlier commits to the minutes. Gives the first minute that was added to.
    pub(super) fn fold_tallies(&mut self) -> Result<Option<Timestamp>, Fault> {
        if self.tallies.notes <= self.tallies.folded {
            return Ok(None);
        }
        let (folded, first) = fold(self.connection)?;
        self.tallies.folded += folded;
        Ok(first)
    }
}

fn fold(connection: &Connection) -> Result<(u64, Option<Timestamp>), Fault> {
    let mut sums: BTreeMap<Place, Tally> = BTreeMap::new();
    let (mut folded, mut last) = (0, 0);
    let mut oldest = connection.prepare_cached("SELECT id, counts FROM tally_note ORDER BY id LIMIT ?")?;
    let mut rows = oldest.query([int(NOTES_MAX)])?;
    while let Some(row) = rows.next()?
        && sums.len() < FOLDED_MAX
    {
        last = row.get(0)?;
        read_note(row.get_ref(1)?.as_blob().map_err(|_| damaged())?, |place, tally| {
            sums.entry(place).or_default().add_all(&tally);
        })?;
        folded += 1;
    }
    drop(rows);
    let first = sums.keys().map(|place| place.at).min();
    for (place, tally) in sums {
        add(connection, Unit::Minute, place, tally)?;
    }
    connection.prepare_cached("DELETE FROM tally_note WHERE id <= ?")?.execute([last])?;
    Ok((folded, first))
}

/// Of what length the rows are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unit {
    Minute = 0,
    Hour = 1,
}

/// Adds to what stands there.
pub(super) fn add(connection: &Connection, unit: Unit, place: Place, mut tally: Tally) -> Result<(), Fault> {
    let key = (place.tenant.0, unit as i64, place.at.as_millis(), place.subject.number());
    let before: Option<Vec<u8>> = connection
        .prepare_cached("SELECT counts FROM tally WHERE tenant = ? AND hourly = ? AND at = ? AND subject = ?")?
        .query_row(key, |row| row.get(0))
        .optional()?;
    if let Some(before) = before {
        tally.add_all(&read(&before)?);
    }
    let mut bytes = Vec::new();
    write(&tally, &mut bytes);
    connection
        .prepare_cached("INSERT OR REPLACE INTO tally (tenant, hourly, at, subject, counts) VALUES (?, ?, ?, ?, ?)")?
        .execute((key.0, key.1, key.2, key.3, bytes))?;
    Ok(())
}

/// Seven bits a byte, the lowest first.
fn put(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).unwrap_or_default() | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap_or_default());
}

struct Bytes<'b>(&'b [u8]);

impl<'b> Bytes<'b> {
    fn take(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn text(&mut self) -> Option<&'b str> {
        let length = usize::try_from(self.take()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(text).ok()
    }
}

/// How many counts, each with its distance from the one before; how many reasons, each with its counts.
fn write(tally: &Tally, out: &mut Vec<u8>) {
    put(tally.counts().len() as u64, out);
    let mut before = 0;
    for (count, by) in tally.counts() {
        put(u64::from(count.number() - before), out);
        put(*by, out);
        before = count.number();
    }
    put(tally.reasons().len() as u64, out);
    for known in tally.reasons() {
        put(known.reason.len() as u64, out);
        out.extend_from_slice(known.reason.as_bytes());
        put(known.retried, out);
        put(known.dead, out);
    }
}

fn read_from(bytes: &mut Bytes<'_>) -> Option<Tally> {
    let mut tally = Tally::default();
    let mut number = 0u16;
    for _ in 0..bytes.take()? {
        number = number.checked_add(u16::try_from(bytes.take()?).ok()?)?;
        tally.add(Count::numbered(number), bytes.take()?);
    }
    for _ in 0..bytes.take()? {
        let reason = bytes.text()?;
        tally.add_reason(reason, bytes.take()?, bytes.take()?);
    }
    Some(tally)
}

/// What [`write`] wrote.
pub(super) fn read(bytes: &[u8]) -> Result<Tally, Fault> {
    let mut bytes = Bytes(bytes);
    read_from(&mut bytes).filter(|_| bytes.0.is_empty()).ok_or_else(damaged)
}

/// With the sign as the lowest bit.
fn put_signed(value: i64, out: &mut Vec<u8>) {
    put(value.unsigned_abs() << 1 | u64::from(value < 0), out);
}

fn write_place(place: Place, out: &mut Vec<u8>) {
    put(place.tenant.0.into(), out);
    put_signed(place.at.as_millis(), out);
    put_signed(place.subject.number(), out);
}

fn read_place(bytes: &mut Bytes<'_>) -> Option<Place> {
    let signed = |bytes: &mut Bytes<'_>| {
        let value = bytes.take()?;
        let size = i64::try_from(value >> 1).ok()?;
        Some(if value & 1 == 0 { size } else { -size })
    };
    let tenant = TenantKey(u32::try_from(bytes.take()?).ok()?);
    let at = Timestamp::from_millis(signed(bytes)?);
    let subject = Subject::numbered(signed(bytes)?).ok()?;
    Some(Place { tenant, at, subject })
}

/// Each of the figures of a commit.
pub(super) fn read_note(note: &[u8], mut each: impl FnMut(Place, Tally)) -> Result<(), Fault> {
    let mut bytes = Bytes(note);
    while !bytes.0.is_empty() {
        let place = read_place(&mut bytes).ok_or_else(damaged)?;
        each(place, read_from(&mut bytes).ok_or_else(damaged)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tally() -> impl Strategy<Value = Tally> {
        let counts = prop::collection::vec((0u16..800, prop_oneof![1u64..300, any::<u64>()]), 0..20);
        let reasons = prop::collection::vec(("[a-z0-9_]{1,20}", 0u64..9, 0u64..9), 0..5);
        (counts, reasons).prop_map(|(counts, reasons)| {
            let mut tally = Tally::default();
            counts.iter().for_each(|(number, by)| tally.add(Count::numbered(*number), *by));
            reasons.iter().for_each(|(reason, retried, dead)| tally.add_reason(reason, *retried, *dead));
            tally
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            figures in prop::collection::vec((any::<u32>(), any::<u32>(), 0u8..3, -9_000_000_000i64..1 << 45, tally()), 0..5),
        ) {
            let mut note = Vec::new();
            let mut all = Vec::new();
            for (tenant, key, kind, at, tally) in figures {
                let subject = match kind {
                    0 => Subject::Published,
                    1 => Subject::Endpoint(EndpointKey(key.max(1))),
                    _ => Subject::Source(SourceKey(key.max(1))),
                };
                let place = Place { tenant: TenantKey(tenant), at: Timestamp::from_millis(at), subject };
                write_place(place, &mut note);
                write(&tally, &mut note);
                let mut alone = Vec::new();
                write(&tally, &mut alone);
                prop_assert_eq!(read(&alone).ok(), Some(tally.clone()));
                all.push((place, tally));
            }
            let mut seen = Vec::new();
            prop_assert!(read_note(&note, |place, tally| seen.push((place, tally))).is_ok());
            prop_assert_eq!(seen, all);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = read(&bytes);
            let _ = read_note(&bytes, |_, _| {});
        }
    }
}
