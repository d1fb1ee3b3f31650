//! Reading a body within a cap, and all bodies together within a budget.

use super::gate::Refused;
use super::listener::Connection;
use super::problem::Problem;
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body::Body;
use http_body_util::BodyExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes that may be held at once, over all requests.
#[derive(Debug)]
pub struct Budget {
    left: AtomicU64,
}

impl Budget {
    pub fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Budget { left: AtomicU64::new(bytes_max) })
    }

    fn take(&self, bytes: u64) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }
}

/// A share of the budget, given back when dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Reservation {
    fn grow(&mut self, bytes: u64) -> bool {
        let taken = self.budget.take(bytes);
        if taken {
            self.bytes += bytes;
        }
        taken
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

/// Why there is no body.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BodyFault {
    #[error("the body is larger than the {limit} bytes allowed here")]
    TooLarge { limit: u64 },
    /// All that may be held at once is held.
    #[error("too many bytes are being received at once")]
    NoRoom,
    #[error("the body's transfer coding is malformed")]
    Malformed,
    #[error("the body did not arrive in time")]
    TimedOut,
    #[error("the body ended early")]
    CutOff,
}

impl BodyFault {
    pub fn problem(self) -> Problem {
        let detail = self.to_string();
        match self {
            BodyFault::TooLarge { limit } => {
                Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail).with("limit", limit)
            }
            BodyFault::NoRoom => {
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail).retry_after(Duration::from_secs(1))
            }
            BodyFault::Malformed => Problem::new(StatusCode::BAD_REQUEST, "malformed_body", detail),
            BodyFault::TimedOut => Problem::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", detail),
            BodyFault::CutOff => Problem::new(StatusCode::BAD_REQUEST, "body_cut_off", detail),
        }
    }
}

/// The whole body, at most `bytes_max`, as it came: nothing is decoded but the transfer coding.
pub async fn collect<B: Body<Data = Bytes> + Unpin>(
    mut body: B,
    bytes_max: u64,
    budget: &Arc<Budget>,
    connection: &Connection,
) -> Result<(Bytes, Reservation), BodyFault> {
    let too_large = BodyFault::TooLarge { limit: bytes_max };
    let declared = body.size_hint().exact();
    if declared.is_some_and(|bytes| bytes > bytes_max) {
        return Err(too_large);
    }
    // By what arrives, not by what is promised: promises cost a sender nothing.
    let mut room = Reservation { budget: Arc::clone(budget), bytes: 0 };
    let mut whole = Bytes::new();
    let mut pieces = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.map_err(|_| connection.body_fault())?.into_data() else {
            continue;
        };
        let length = u64::try_from(whole.len() + pieces.len() + piece.len()).unwrap_or(u64::MAX);
        if length > bytes_max {
            return Err(too_large);
        }
        if !room.grow(length.saturating_sub(room.bytes)) {
            return Err(BodyFault::NoRoom);
        }
        if declared == Some(length) && pieces.is_empty() && whole.is_empty() {
            // The common case: it came in one piece and is not copied.
            return Ok((piece, room));
        }
        if whole.is_empty() && pieces.is_empty() {
            whole = piece;
            continue;
        }
        if pieces.is_empty() {
            pieces.extend_from_slice(&whole);
            whole = Bytes::new();
        }
        pieces.extend_from_slice(&piece);
    }
    Ok((if pieces.is_empty() { whole } else { pieces.freeze() }, room))
}

impl Connection {
    fn body_fault(&self) -> BodyFault {
        match self.watch.refused.get() {
            Some(Refused::MalformedBody) => BodyFault::Malformed,
            Some(Refused::BodyTimeout) => BodyFault::TimedOut,
            Some(
                Refused::Malformed(_)
                | Refused::UriTooLong
                | Refused::TooManyHeaders
                | Refused::HeadTooLarge
                | Refused::HeadTimeout,
            )
            | None => BodyFault::CutOff,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_given_back() {
        let budget = Budget::new(10);
        let mut first = Reservation { budget: Arc::clone(&budget), bytes: 0 };
        assert!(first.grow(6) && !first.grow(5) && first.grow(4));
        let mut second = Reservation { budget: Arc::clone(&budget), bytes: 0 };
        assert!(!second.grow(1));
        drop(first);
        assert!(second.grow(10));
    }
}
