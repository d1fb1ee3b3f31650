//! Who came before, exactly: across restarts, races and the edges of windows.
//!
//! A digest is random, and an index over random keys costs a page for every event. So the newest digests are in memory,
//! backed by a table in the order of acceptance, and only when they become many does the older half move to the table
//! by digest: sorted aside, then merged in slices that ride in the writer's transactions, so that many rows share a
//! page. A filter answers for that table that a digest is not there; only a yes, right or wrong, costs a look.
//!
//! What one transaction remembers is one row of entries. An entry's number says where it is: its row begins with the
//! number of its first.
//!
//! A digest may be in both tables while a merge is under way; memory, which agrees with the first, has the word.

use super::codec::int;
use super::fault::Fault;
use super::schema;
use super::shared::Shared;
use super::writer::{Undo, Verb, Writer};
use crate::clock::Timestamp;
use crate::delivery::EventId;
use crossbeam_channel::Receiver;
use rusqlite::{Connection, OptionalExtension as _};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Rows that a merge moves or deletes in one transaction, at most.
const SLICE: usize = 2_048;
/// Digests that the filter has room for at least, at ten bits each: for so many times those in memory, but no more than
/// the second figure.
const FILTER_ROOM_OVER_MEMORY: usize = 8;
const FILTER_ROOM: usize = 4 << 20;

type Digest = [u8; 16];

pub(super) struct Dedup {
    /// The newest digests, by where their rows are.
    recent: HashMap<Digest, i64>,
    in_memory_max: usize,
    merge: Merge,
    /// `None`: not ready; every look that misses the memory asks the table.
    filter: Option<Arc<Filter>>,
    /// The time that the last verb brought: what has run out by then need not be moved.
    now: Timestamp,
    /// Remembered in this transaction, and the number of the first.
    fresh: Vec<Entry>,
    fresh_from: i64,
    bytes: Vec<u8>,
}

/// What is remembered of an event.
#[derive(Clone, Copy)]
struct Entry {
    digest: Digest,
    content: Option<Digest>,
    event: Digest,
    body_digest: Digest,
    until: i64,
}

/// Bytes of one entry in its row.
const ENTRY_BYTES: usize = 73;

impl Entry {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.digest);
        out.extend_from_slice(&self.event);
        out.extend_from_slice(&self.body_digest);
        out.extend_from_slice(&self.until.to_be_bytes());
        out.push(u8::from(self.content.is_some()));
        out.extend_from_slice(&self.content.unwrap_or_default());
    }

    fn read(bytes: &[u8; ENTRY_BYTES]) -> Option<Self> {
        let (digest, rest) = bytes.split_first_chunk()?;
        let (event, rest) = rest.split_first_chunk()?;
        let (body_digest, rest) = rest.split_first_chunk()?;
        let (until, rest) = rest.split_first_chunk()?;
        let (has_content, content) = rest.split_first()?;
        let content = if *has_content == 1 { Some(content.try_into().ok()?) } else { None };
        let until = i64::from_be_bytes(*until);
        Some(Entry { digest: *digest, content, event: *event, body_digest: *body_digest, until })
    }

    fn earlier(&self) -> (Earlier, Timestamp) {
        let earlier = Earlier { event: EventId::from_bytes(self.event), body_digest: self.body_digest };
        (earlier, Timestamp::from_millis(self.until))
    }
}

/// The entries of the row that begins with the number `seq`, with their numbers.
fn entries(seq: i64, row: &[u8]) -> Result<impl Iterator<Item = (i64, Entry)>, Fault> {
    let (entries, rest) = row.as_chunks::<ENTRY_BYTES>();
    if !rest.is_empty() {
        return Err(Fault::damaged("a row of dedup keys that is cut short"));
    }
    Ok((seq..).zip(entries.iter().filter_map(Entry::read)))
}

/// The number after the last entry.
pub(super) fn next_seq(connection: &Connection) -> Result<i64, Fault> {
    let last: Option<(i64, i64)> = connection
        .query_row("SELECT seq, length(entries) FROM dedup_recent ORDER BY seq DESC LIMIT 1", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()?;
    Ok(last.map_or(1, |(seq, bytes)| seq + bytes / int(ENTRY_BYTES as u64)))
}

/// An earlier event under the same key.
pub(super) struct Earlier {
    pub event: EventId,
    pub body_digest: Digest,
}

/// One row on its way to the table by digest.
struct Row {
    digest: Digest,
    seq: i64,
    event: Digest,
    body_digest: Digest,
    until: i64,
}

enum Merge {
    Rest,
    /// A thread reads and sorts everything up to a number.
    Sorting {
        rows: Receiver<Result<Vec<Row>, Fault>>,
        up_to: i64,
    },
    /// The sorted rows go over, from this one on.
    Moving {
        rows: Vec<Row>,
        at: usize,
        up_to: i64,
    },
    /// What went over is deleted where it was, from this number on.
    Deleting {
        from: i64,
        up_to: i64,
    },
}

impl Dedup {
    pub(super) fn load(connection: &Connection, in_memory_max: usize) -> Result<Self, Fault> {
        let mut statement = connection.prepare("SELECT seq, entries FROM dedup_recent ORDER BY seq")?;
        let mut rows = statement.query([])?;
        let mut recent = HashMap::new();
        while let Some(row) = rows.next()? {
            for (seq, entry) in entries(row.get(0)?, row.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?)? {
                // Where a key came again after its window, the later entry has the word.
                recent.insert(entry.digest, seq);
                recent.extend(entry.content.map(|content| (content, seq)));
            }
        }
        let cold = connection.query_row("SELECT EXISTS (SELECT 1 FROM dedup_cold)", [], |row| row.get(0))?;
        let filter = if cold { None } else { Some(Arc::new(Filter::for_rows(0, in_memory_max, true))) };
        let now = Timestamp::ZERO;
        Ok(Dedup {
            recent,
            in_memory_max: in_memory_max.max(2),
            merge: Merge::Rest,
            filter,
            now,
            fresh: Vec::new(),
            fresh_from: 0,
            bytes: Vec::new(),
        })
    }

    /// Whether somebody has to read the table for the filter.
    pub(super) fn wants_filter(&self) -> bool {
        self.filter.is_none()
    }

    /// A transaction was rolled back, and what a merge did in it with it: the merge begins again. What it had moved
    /// before stays moved.
    pub(super) fn rolled_back(&mut self) {
        self.merge = Merge::Rest;
        self.fresh.clear();
    }

    pub(super) fn put_back(&mut self, digest: Digest, before: Option<i64>) {
        match before {
            Some(seq) => self.recent.insert(digest, seq),
            None => self.recent.remove(&digest),
        };
    }
}

impl Writer<'_> {
    /// The event that came before under this digest, if its window is still open at `now`. While the date is in
    /// doubt, no window is taken to have ended.
    pub(super) fn earlier(&mut self, digest: &Digest, now: Timestamp) -> Result<Option<Earlier>, Fault> {
        let read = |row: &rusqlite::Row<'_>| {
            let until = Timestamp::from_millis(row.get(2)?);
            Ok((Earlier { event: EventId::from_bytes(row.get(0)?), body_digest: row.get(1)? }, until))
        };
        let found = match self.dedup.recent.get(digest).copied() {
            Some(seq) => self.recent_entry(seq)?.map(|entry| entry.earlier()),
            None if self.dedup.filter.as_ref().is_none_or(|f| f.may_hold(digest)) => {
                self.sql.find_cold.query_row([digest], read).optional()?
            }
            None => None,
        };
        Ok(found.filter(|(_, until)| now < *until || !self.shared.clock.is_settled()).map(|(earlier, _)| earlier))
    }

    /// Remembers an event under its digests. What was there before has run out.
    pub(super) fn remember(
        &mut self,
        key: &crate::verify::Dedup,
        event: EventId,
        body_digest: &Digest,
        accepted_at: Timestamp,
    ) {
        let seq = self.next_dedup;
        self.next_dedup += 1;
        if self.dedup.fresh.is_empty() {
            self.dedup.fresh_from = seq;
        }
        self.dedup.fresh.push(Entry {
            digest: key.digest,
            content: key.content,
            event: event.to_bytes(),
            body_digest: *body_digest,
            until: accepted_at.plus(key.window).as_millis(),
        });
        for digest in [Some(key.digest), key.content].into_iter().flatten() {
            let before = self.dedup.recent.insert(digest, seq);
            self.undo.push(Undo::Dedup(digest, before));
        }
        self.dedup.now = accepted_at;
    }

    /// The entry of this number; `None`: it has moved to the table by digest.
    fn recent_entry(&mut self, seq: i64) -> Result<Option<Entry>, Fault> {
        let dedup = &self.dedup;
        if !dedup.fresh.is_empty() && seq >= dedup.fresh_from {
            return Ok(usize::try_from(seq - dedup.fresh_from).ok().and_then(|at| dedup.fresh.get(at)).copied());
        }
        let row: Option<(i64, Vec<u8>)> =
            self.sql.find_recent.query_row([seq], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        let Some((from, row)) = row else { return Ok(None) };
        Ok(entries(from, &row)?.find(|(at, _)| *at == seq).map(|(_, entry)| entry))
    }

    /// At the end of every transaction: writes what it remembers; begins a merge, or brings one forward by twice what
    /// came in, digest by digest.
    pub(super) fn keep_dedup(&mut self) -> Result<(), Fault> {
        let fresh = std::mem::take(&mut self.dedup.fresh);
        if !fresh.is_empty() {
            let mut bytes = std::mem::take(&mut self.dedup.bytes);
            bytes.clear();
            fresh.iter().for_each(|entry| entry.write(&mut bytes));
            let written = self.sql.insert_recent.execute((self.dedup.fresh_from, &bytes));
            self.dedup.bytes = bytes;
            written?;
        }
        let digests: usize = fresh.iter().map(|entry| 1 + usize::from(entry.content.is_some())).sum();
        self.dedup.fresh = fresh;
        self.dedup.fresh.clear();
        self.merge_dedup((digests * 2 + 16).min(SLICE))
    }

    fn merge_dedup(&mut self, slice: usize) -> Result<(), Fault> {
        match std::mem::replace(&mut self.dedup.merge, Merge::Rest) {
            Merge::Rest => {
                if self.dedup.recent.len() >= self.dedup.in_memory_max {
                    let half = int(self.dedup.in_memory_max as u64) / 2;
                    let up_to = self.next_dedup.saturating_sub(half + 1);
                    self.dedup.merge = Merge::Sorting { rows: sort_aside(&self.shared, up_to), up_to };
                }
            }
            Merge::Sorting { rows, up_to } => match rows.try_recv() {
                Ok(sorted) => self.dedup.merge = Merge::Moving { rows: sorted?, at: 0, up_to },
                Err(crossbeam_channel::TryRecvError::Empty) => self.dedup.merge = Merge::Sorting { rows, up_to },
                // The thread could not be started or died: it is tried again.
                Err(crossbeam_channel::TryRecvError::Disconnected) => {}
            },
            Merge::Moving { rows, at, up_to } => {
                let end = (at + slice).min(rows.len());
                self.move_rows(&rows, at, end)?;
                self.dedup.merge = if end < rows.len() {
                    Merge::Moving { rows, at: end, up_to }
                } else {
                    Merge::Deleting { from: rows.iter().map(|r| r.seq).min().unwrap_or(up_to), up_to }
                };
            }
            Merge::Deleting { from, up_to } => {
                let to = up_to.min(from.saturating_add(int(SLICE as u64)));
                self.connection
                    .prepare_cached("DELETE FROM dedup_recent WHERE seq BETWEEN ? AND ?")?
                    .execute((from, to))?;
                if to < up_to {
                    self.dedup.merge = Merge::Deleting { from: to + 1, up_to };
                }
            }
        }
        Ok(())
    }

    fn move_rows(&mut self, rows: &[Row], at: usize, end: usize) -> Result<(), Fault> {
        // Read before the look at the clock; while the date is in doubt, nothing has run out.
        let now = self.dedup.now.as_millis();
        let now = if self.shared.clock.is_settled() { now } else { i64::MIN };
        let mut last = at.checked_sub(1).and_then(|before| rows.get(before)).map_or([0; 16], |r| r.digest);
        for row in rows.get(at..end).unwrap_or_default() {
            // On the way, what has run out between the last row and this one goes.
            self.sql.sweep_cold.execute((last, row.digest, now))?;
            last = row.digest;
            if self.dedup.recent.get(&row.digest) != Some(&row.seq) {
                // A later event took the key over.
                continue;
            }
            if row.until > now {
                self.sql.insert_cold.execute((row.digest, row.event, row.body_digest, row.until))?;
                if let Some(filter) = &self.dedup.filter {
                    filter.add(&row.digest);
                }
            }
            self.dedup.recent.remove(&row.digest);
            self.undo.push(Undo::Dedup(row.digest, Some(row.seq)));
        }
        if end == rows.len() {
            self.sql.sweep_cold.execute((last, [0xff_u8; 16], now))?;
        }
        Ok(())
    }
}

/// Reads and sorts the older rows on a thread of its own.
fn sort_aside(shared: &Shared, up_to: i64) -> Receiver<Result<Vec<Row>, Fault>> {
    let (done, rows) = crossbeam_channel::bounded(1);
    // Not the shared state: this thread is not waited for, and must not hold the ledger's lock.
    let (path, settings) = (shared.files.database.clone(), shared.settings.clone());
    let work = move || {
        let read = || -> Result<Vec<Row>, Fault> {
            let connection = schema::connect_reader(&path, &settings)?;
            let mut statement = connection.prepare("SELECT seq, entries FROM dedup_recent WHERE seq <= ?")?;
            let mut commits = statement.query([up_to])?;
            let mut rows = Vec::new();
            while let Some(row) = commits.next()? {
                for (seq, entry) in entries(row.get(0)?, row.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?)? {
                    let Entry { content, event, body_digest, until, .. } = entry;
                    let digests = [Some(entry.digest), content].into_iter().flatten();
                    rows.extend(digests.map(|digest| Row { digest, seq, event, body_digest, until }));
                }
            }
            rows.sort_unstable_by(|a, b| a.digest.cmp(&b.digest).then(a.seq.cmp(&b.seq)));
            Ok(rows)
        };
        // A writer that has ended meanwhile needs no rows.
        let _ = done.send(read());
    };
    // Without a thread the channel is closed, and the writer tries again.
    let _ = std::thread::Builder::new().name("ledger-sort".into()).spawn(work);
    rows
}

/// Says of a digest that it is not in the table by digest, or that it may be: a Bloom filter of four bits out of about
/// forty. Since digests are uniform, their own bytes choose the bits.
pub(super) struct Filter {
    words: Vec<AtomicU64>,
    mask: u32,
    complete: AtomicBool,
}

impl Filter {
    /// With room for `rows` and as many again.
    fn for_rows(rows: usize, in_memory_max: usize, complete: bool) -> Self {
        let least = in_memory_max.saturating_mul(FILTER_ROOM_OVER_MEMORY).min(FILTER_ROOM);
        let bits = (rows * 2).max(least).max(64).saturating_mul(10).next_power_of_two().min(1 << 32);
        let words = std::iter::repeat_with(|| AtomicU64::new(0)).take(bits / 64).collect();
        let mask = u32::try_from(bits - 1).unwrap_or(u32::MAX);
        Filter { words, mask, complete: AtomicBool::new(complete) }
    }

    fn bits(&self, digest: &Digest) -> impl Iterator<Item = (usize, u64)> {
        let mask = self.mask;
        let (chosen, _) = digest.as_chunks::<4>();
        let chosen: [[u8; 4]; 4] = chosen.try_into().unwrap_or_default();
        chosen.into_iter().map(move |bytes| {
            let bit = u32::from_le_bytes(bytes) & mask;
            ((bit / 64) as usize, 1 << (bit % 64))
        })
    }

    fn add(&self, digest: &Digest) {
        for (word, bit) in self.bits(digest) {
            if let Some(word) = self.words.get(word) {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    fn may_hold(&self, digest: &Digest) -> bool {
        let all = || {
            self.bits(digest)
                .all(|(word, bit)| self.words.get(word).is_none_or(|w| w.load(Ordering::Relaxed) & bit != 0))
        };
        !self.complete.load(Ordering::Acquire) || all()
    }
}

/// From this commit on, the writer adds what it moves; what was there before is read afterwards.
pub(super) struct AttachFilter(pub Arc<Filter>);

impl Verb for AttachFilter {
    type Done = ();

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<(), Fault> {
        w.dedup.filter = Some(Arc::clone(&self.0));
        Ok(())
    }
}

/// Fills a filter with the whole table. `attach` has the writer take it into use, and returns when it has.
pub(super) fn build_filter(
    connection: &Connection,
    attach: impl FnOnce(AttachFilter) -> bool,
    in_memory_max: usize,
    closed: &AtomicBool,
) -> rusqlite::Result<()> {
    let rows: i64 = connection.query_row("SELECT count(*) FROM dedup_cold", [], |row| row.get(0))?;
    let filter = Arc::new(Filter::for_rows(usize::try_from(rows).unwrap_or(0), in_memory_max, false));
    if !attach(AttachFilter(Arc::clone(&filter))) {
        return Ok(());
    }
    let mut statement = connection.prepare("SELECT digest FROM dedup_cold")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        filter.add(&row.get(0)?);
        if closed.load(Ordering::Relaxed) {
            return Ok(());
        }
    }
    filter.complete.store(true, Ordering::Release);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::Digest as _;

    fn digest(n: u32) -> Digest {
        let mut half = [0; 16];
        half.copy_from_slice(&sha2::Sha256::digest(n.to_be_bytes())[..16]);
        half
    }

    #[test]
    fn the_filter_forgets_nothing_and_seldom_errs() {
        let filter = Filter::for_rows(0, 500_000, true);
        assert!(!filter.may_hold(&digest(0)));
        (0..100_000).for_each(|n| filter.add(&digest(n)));
        assert!((0..100_000).all(|n| filter.may_hold(&digest(n))));
        let wrong = (100_000..200_000).filter(|n| filter.may_hold(&digest(*n))).count();
        assert!(wrong < 1_000, "{wrong}");
        assert!(Filter::for_rows(0, 1, false).may_hold(&digest(0)), "an incomplete filter excludes nothing");
    }
}
