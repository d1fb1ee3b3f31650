//! What ended for each endpoint of late, from the figures by the minute: the newest of them, up to a limit.

use super::codec::int;
use super::fault::Fault;
use super::tally::{self, Subject};
use crate::clock::Timestamp;
use crate::delivery::EndedFacts;
use crate::ledger::stats::{MINUTE, floor};
use crate::ledger::{Count, ENDED_ROWS_MAX, EndpointKey, Tally, TenantKey};
use rusqlite::Connection;
use std::collections::HashMap;

pub(super) const MINUTES: &str = "SELECT subject, counts FROM tally WHERE tenant = ?1 AND hourly = 0 AND at >= ?2 \
                                  AND subject > 0 ORDER BY at DESC, subject DESC LIMIT ?3";

/// Since the beginning of the minute that `since` is in.
pub(super) fn ended(
    connection: &Connection,
    tenant: TenantKey,
    since: Timestamp,
) -> Result<HashMap<EndpointKey, EndedFacts>, Fault> {
    let since = floor(since, MINUTE);
    let mut all: HashMap<EndpointKey, EndedFacts> = HashMap::new();
    let mut add = |subject, tally: &Tally| {
        if let Subject::Endpoint(key) = subject {
            let ended = all.entry(key).or_default();
            ended.all += tally.ended();
            ended.dead += tally.get(Count::DEAD);
        }
    };
    let mut minutes = connection.prepare_cached(MINUTES)?;
    let mut rows = minutes.query((tenant.0, since.as_millis(), int(ENDED_ROWS_MAX as u64)))?;
    while let Some(row) = rows.next()? {
        let counts = row.get_ref(1)?.as_blob().map_err(|_| tally::damaged())?;
        add(Subject::numbered(row.get(0)?)?, &tally::read(counts)?);
    }
    // The newest commits' are not in there yet.
    let mut notes = connection.prepare_cached("SELECT counts FROM tally_note")?;
    let mut rows = notes.query([])?;
    while let Some(row) = rows.next()? {
        tally::read_note(row.get_ref(0)?.as_blob().map_err(|_| tally::damaged())?, |place, tally| {
            if place.tenant == tenant && place.at >= since {
                add(place.subject, &tally);
            }
        })?;
    }
    Ok(all)
}
