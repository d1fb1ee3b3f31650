//! Who came before. A digest is looked up in memory, then among those that fell out of it.

use super::fault::Fault;
use super::writer::{Undo, Writer};
use crate::clock::Timestamp;
use crate::delivery::EventId;
use rusqlite::{Connection, OptionalExtension as _};
use std::collections::HashMap;

/// The newest digests, by where their rows are.
#[derive(Default)]
pub(super) struct Dedup {
    recent: HashMap<[u8; 16], i64>,
    cold: bool,
}

/// An earlier event under the same key.
pub(super) struct Earlier {
    pub event: EventId,
    pub body_digest: [u8; 16],
}

impl Dedup {
    pub(super) fn load(connection: &Connection, _in_memory_max: usize) -> Result<Self, Fault> {
        let mut statement = connection.prepare("SELECT seq, digest FROM dedup_recent ORDER BY seq")?;
        let mut rows = statement.query([])?;
        let mut recent = HashMap::new();
        while let Some(row) = rows.next()? {
            recent.insert(row.get(1)?, row.get(0)?);
        }
        let cold = connection.query_row("SELECT EXISTS (SELECT 1 FROM dedup_cold)", [], |row| row.get(0))?;
        Ok(Dedup { recent, cold })
    }

    pub(super) fn put_back(&mut self, digest: [u8; 16], before: Option<i64>) {
        match before {
            Some(seq) => self.recent.insert(digest, seq),
            None => self.recent.remove(&digest),
        };
    }
}

impl Writer<'_> {
    /// The event that came before under this digest, if its window is still open at `now`.
    pub(super) fn earlier(&mut self, digest: &[u8; 16], now: Timestamp) -> Result<Option<Earlier>, Fault> {
        let read = |row: &rusqlite::Row<'_>| {
            let until = Timestamp::from_millis(row.get(2)?);
            Ok((Earlier { event: EventId::from_bytes(row.get(0)?), body_digest: row.get(1)? }, until))
        };
        let found = match self.dedup.recent.get(digest) {
            Some(seq) => self.sql.find_recent.query_row([seq], read).optional()?,
            None if self.dedup.cold => self.sql.find_cold.query_row([digest], read).optional()?,
            None => None,
        };
        Ok(found.filter(|(_, until)| now < *until).map(|(earlier, _)| earlier))
    }

    /// Remembers an event under its digest. What was there before has run out.
    pub(super) fn remember(
        &mut self,
        digest: [u8; 16],
        event: EventId,
        body_digest: &[u8; 16],
        until: Timestamp,
    ) -> Result<(), Fault> {
        let seq = self.next_dedup;
        self.next_dedup += 1;
        self.sql.insert_recent.execute((seq, digest, event.to_bytes(), body_digest, until.as_millis()))?;
        let before = self.dedup.recent.insert(digest, seq);
        self.undo.push(Undo::Dedup(digest, before));
        match before {
            Some(old) => {
                self.sql.delete_recent.execute([old])?;
            }
            None if self.dedup.cold => {
                self.sql.delete_cold.execute([&digest])?;
            }
            None => {}
        }
        Ok(())
    }
}
