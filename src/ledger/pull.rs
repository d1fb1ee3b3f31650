//! Work that consumers fetch from a pull endpoint: leased to them, prolonged, and known again by its receipt.
//!
//! Such a lease needs no slot, and outlives the process: it ends by its own time alone, since its holder does not end
//! with us.

use super::{EndpointKey, EventContent, Lease, LedgerError, TenantKey};
use crate::clock::Timestamp;
use crate::delivery::{DeliveryId, DeliveryState, EndpointStatus};
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::sync::Arc;
use std::time::Duration;

/// The verbs of a pull endpoint. What a consumer says of its work is settled like any other attempt.
#[async_trait]
pub trait Pull: Send + Sync + 'static {
    /// Leases due deliveries to a consumer, the oldest due first, and records the start of their attempts. A closed
    /// endpoint gives none.
    async fn consume(&self, consume: Consume, now: Timestamp) -> Result<Consumed, LedgerError>;

    /// The leases behind receipts of this endpoint, in their order.
    async fn held(
        &self,
        tenant: TenantKey,
        endpoint: EndpointKey,
        receipts: Vec<Receipt>,
    ) -> Result<Vec<Result<Held, Lapsed>>, LedgerError>;

    /// Puts off the end of leases that are held. In their order: whether it was done; a lease that is no longer held
    /// stays lost.
    async fn extend(
        &self,
        tenant: TenantKey,
        endpoint: EndpointKey,
        extensions: Vec<Extension>,
    ) -> Result<Vec<bool>, LedgerError>;

    /// Puts right the leases of consumers that a wall clock which was set has moved away: each lasts from `now` on for
    /// as long as it was given for. In transactions of a thousand rows at most. Returns how many were moved.
    async fn renew_consumers(&self, which: Strayed, now: Timestamp) -> Result<u64, LedgerError>;
}

/// A consumer's wish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Consume {
    pub tenant: TenantKey,
    pub endpoint: EndpointKey,
    pub max: usize,
    pub lease_for: Duration,
    /// Of stored contents, together; the first is given whatever its size.
    pub bytes_max: u64,
}

/// What a consumer was given.
#[derive(Clone, Debug)]
pub struct Consumed {
    pub items: Vec<Handed>,
    /// A closed endpoint gives nothing.
    pub status: EndpointStatus,
    /// When the first of what is left is due; `None`: nothing is left.
    pub next_due: Option<Timestamp>,
}

/// An attempt whose start is durable, with all that its consumer needs.
#[derive(Clone, Debug)]
pub struct Handed {
    pub lease: Lease,
    pub sequence: u64,
    pub idempotency_key: Arc<str>,
    pub event: Arc<EventContent>,
}

/// A consumer's lease that holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    pub lease: Lease,
    pub accepted_at: Timestamp,
}

/// Why a receipt means nothing any more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lapsed {
    /// No delivery of this endpoint is meant by it.
    Unknown,
    /// The lease is over.
    Over {
        delivery: DeliveryId,
        /// Where the delivery stands now.
        state: DeliveryState,
        /// How the attempt ended by its own lease. `None`: the lease ran out first.
        ended: Option<Ended>,
    },
}

/// Words of an outcome and of its disposition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    pub outcome: String,
    pub disposition: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extension {
    pub receipt: Receipt,
    pub lease_for: Duration,
    pub until: Timestamp,
}

/// Which leases of consumers a clock that was set may have moved away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strayed {
    /// Those that end later than they were ever given for: right at a start, when nobody knows what was set before.
    TooLong,
    /// All: the clock was seen to jump.
    All,
}

/// A consumer's lease, as its holder names it. It is text to whoever holds it, and means something only where it was
/// given: it is looked up under the tenant and the endpoint that it is shown to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receipt {
    pub delivery: DeliveryId,
    pub token: u64,
}

impl Receipt {
    const PREFIX: &'static str = "rct_";

    pub fn of(lease: &Lease) -> Self {
        Receipt { delivery: lease.delivery, token: lease.token }
    }

    pub fn text(self, endpoint: EndpointKey) -> String {
        let mut bytes = [0; 28];
        bytes[..16].copy_from_slice(&self.delivery.to_bytes());
        bytes[16..24].copy_from_slice(&self.token.to_be_bytes());
        let sum = sum(&bytes[..24], endpoint);
        bytes[24..].copy_from_slice(&sum);
        format!("{}{}", Self::PREFIX, URL_SAFE_NO_PAD.encode(bytes))
    }

    /// `None`: no receipt that this endpoint gave. (The sum tells a mistake at once; it keeps nobody out.)
    pub fn read(text: &str, endpoint: EndpointKey) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text.strip_prefix(Self::PREFIX)?).ok()?;
        let (delivery, rest) = bytes.split_first_chunk::<16>()?;
        let (token, told) = rest.split_first_chunk::<8>()?;
        let receipt = Receipt { delivery: DeliveryId::from_bytes(*delivery), token: u64::from_be_bytes(*token) };
        (*told == sum(bytes.get(..24)?, endpoint)).then_some(receipt)
    }
}

fn sum(bytes: &[u8], endpoint: EndpointKey) -> [u8; 4] {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&endpoint.0.to_be_bytes());
    sum.update(bytes);
    sum.finalize().to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_is_read_where_it_was_given_and_nowhere_else() {
        let receipt = Receipt { delivery: DeliveryId::from_u128(0x0123_4567_89ab_7cde_8f01_2345_6789_abcd), token: 7 };
        let text = receipt.text(EndpointKey(3));
        assert_eq!(Receipt::read(&text, EndpointKey(3)), Some(receipt));
        assert_eq!(Receipt::read(&text, EndpointKey(4)), None);
        let other = format!("{}A", &text[..text.len() - 1]);
        for bad in ["", "rct_", &text[4..], &text[..text.len() - 1], &format!("{text}A"), &other, "rct_\u{e9}"] {
            assert_eq!(Receipt::read(bad, EndpointKey(3)), None, "{bad}");
        }
    }
}
