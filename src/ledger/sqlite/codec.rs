//! How values are written in rows.

use super::Fault;
use crate::clock::Timestamp;
use crate::delivery::{DeliveryState, EndpointStatus};
use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use rusqlite::Row;

/// An unsigned count as SQLite keeps it.
pub(super) fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A count as it was kept; none is ever negative.
pub(super) fn count(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

pub(super) fn state_code(state: DeliveryState) -> i64 {
    match state {
        DeliveryState::Pending => 0,
        DeliveryState::InFlight => 1,
        DeliveryState::Delivered => 2,
        DeliveryState::Skipped => 3,
        DeliveryState::Dead => 4,
        DeliveryState::Expired => 5,
        DeliveryState::Cancelled => 6,
        DeliveryState::Resolved => 7,
    }
}

pub(super) fn state_of(code: i64) -> Result<DeliveryState, Fault> {
    DeliveryState::ALL
        .into_iter()
        .find(|s| state_code(*s) == code)
        .ok_or_else(|| Fault::damaged("a delivery in a state that does not exist"))
}

/// Status, until and why, as in the columns of an endpoint.
pub(super) fn status_columns(status: &EndpointStatus) -> (i64, Option<i64>, Option<&str>) {
    match status {
        EndpointStatus::Enabled => (0, None, None),
        EndpointStatus::Paused { until, why } => (1, until.map(Timestamp::as_millis), Some(why)),
        EndpointStatus::Disabled { why } => (2, None, Some(why)),
    }
}

pub(super) fn status_of(code: i64, until: Option<i64>, why: Option<String>) -> EndpointStatus {
    let why = why.unwrap_or_default();
    match code {
        0 => EndpointStatus::Enabled,
        1 => EndpointStatus::Paused { until: until.map(Timestamp::from_millis), why },
        _ => EndpointStatus::Disabled { why },
    }
}

pub(super) fn time(row: &Row<'_>, column: usize) -> rusqlite::Result<Timestamp> {
    row.get(column).map(Timestamp::from_millis)
}

pub(super) fn time_opt(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(Timestamp::from_millis))
}

/// Headers and body in one run of bytes, with `room` spare bytes before and after for the seal.
pub(super) fn write_content(out: &mut Vec<u8>, headers: &[(HeaderName, HeaderValue)], body: &[u8]) {
    let length = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
    out.extend_from_slice(&length(headers.len()));
    for (name, value) in headers {
        out.extend_from_slice(&length(name.as_str().len()));
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(&length(value.len()));
        out.extend_from_slice(value.as_bytes());
    }
    out.extend_from_slice(body);
}

pub(super) type Headers = Vec<(HeaderName, HeaderValue)>;

/// `None`: not what [`write_content`] wrote.
pub(super) fn read_content(content: Vec<u8>) -> Option<(Headers, Bytes)> {
    let content = Bytes::from(content);
    let mut at = 0usize;
    let length = |at: &mut usize| -> Option<usize> {
        let bytes = content.get(*at..at.checked_add(4)?)?;
        *at += 4;
        usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
    };
    let count = length(&mut at)?;
    let mut headers = Vec::new();
    for _ in 0..count {
        let n = length(&mut at)?;
        let name = HeaderName::from_bytes(content.get(at..at.checked_add(n)?)?).ok()?;
        at += n;
        let n = length(&mut at)?;
        let value = HeaderValue::from_bytes(content.get(at..at.checked_add(n)?)?).ok()?;
        at += n;
        headers.push((name, value));
    }
    Some((headers, content.slice(at..)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn content_round_trips(values in prop::collection::vec("[ -~]{0,20}", 0..5), body: Vec<u8>) {
            let headers: Headers = values
                .iter()
                .map(|v| (HeaderName::from_static("x-test"), HeaderValue::from_str(v).unwrap()))
                .collect();
            let mut out = Vec::new();
            write_content(&mut out, &headers, &body);
            prop_assert_eq!(read_content(out), Some((headers, Bytes::from(body))));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = read_content(bytes);
        }
    }

    #[test]
    fn every_state_has_its_own_code() {
        for state in DeliveryState::ALL {
            assert_eq!(state_of(state_code(state)).ok(), Some(state));
        }
        assert!(state_of(8).is_err());
    }
}
