//! Identifiers: UUIDv7 with a prefix that says what it names, and the names users give.

use crate::clock::Timestamp;
use crate::entropy::Entropy;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use uuid::Uuid;

/// Why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an id of this kind: expected `{prefix}` and a UUIDv7 of 32 lower-case hexadecimal digits")]
pub struct BadId {
    prefix: &'static str,
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            pub const PREFIX: &'static str = $prefix;

            pub const fn from_u128(bits: u128) -> Self {
                $name(bits)
            }

            pub const fn as_u128(self) -> u128 {
                self.0
            }

            /// Big-endian, so that byte order is time order.
            pub const fn to_bytes(self) -> [u8; 16] {
                self.0.to_be_bytes()
            }

            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                $name(u128::from_be_bytes(bytes))
            }
        }

        impl $name {
            /// Its text, without the detour over a formatter.
            pub fn encode(self, room: &mut IdText) -> &str {
                encode($prefix, self.0, room)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.encode(&mut IdText::default()))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = BadId;

            fn from_str(text: &str) -> Result<Self, BadId> {
                parse(text, $prefix).map($name).ok_or(BadId { prefix: $prefix })
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
            }
        }

        impl From<Minted> for $name {
            fn from(minted: Minted) -> Self {
                $name(minted.0)
            }
        }
    )*};
}

ids! {
    /// One verified request, or one published event.
    EventId = "evt_";
    /// One event for one endpoint; also its `webhook-id`.
    DeliveryId = "dlv_";
    /// One try of a delivery.
    AttemptId = "att_";
    /// One version of a plugin.
    PluginVersionId = "plg_";
    /// One trial of a plugin's version on live traffic.
    TrialId = "trl_";
    /// One episode of an alert.
    AlertId = "alr_";
    /// One bulk operation.
    OperationId = "op_";
}

const DIGITS: usize = 32;

/// Room for the text of any id.
pub struct IdText([u8; 4 + DIGITS]);

impl Default for IdText {
    fn default() -> Self {
        IdText([0; 4 + DIGITS])
    }
}

fn encode<'r>(prefix: &str, bits: u128, IdText(room): &'r mut IdText) -> &'r str {
    let length = prefix.len() + DIGITS;
    room[..prefix.len()].copy_from_slice(prefix.as_bytes());
    // The room is as long as the digits.
    let _fits = hex::encode_to_slice(bits.to_be_bytes(), &mut room[prefix.len()..length]);
    std::str::from_utf8(&room[..length]).unwrap_or_default()
}

/// The last bits of an attempt's id are its number.
const NUMBER_BITS: u128 = 0xf_ffff;

impl AttemptId {
    /// The id of a delivery's attempt, counted from 1: the delivery's bits with the number in the place of the last 20.
    /// So it need not be kept, and leads back to its delivery.
    pub const fn of(delivery: DeliveryId, number: u32) -> Self {
        let number = if (number as u128) < NUMBER_BITS { number as u128 } else { NUMBER_BITS };
        AttemptId(delivery.0 & !NUMBER_BITS | number)
    }

    pub const fn number(self) -> u32 {
        (self.0 & NUMBER_BITS) as u32
    }

    /// The first and the last id that its delivery can have. No two of one process fit: their first 60 bits of time and
    /// count differ.
    pub const fn of_deliveries(self) -> (DeliveryId, DeliveryId) {
        (DeliveryId(self.0 & !NUMBER_BITS), DeliveryId(self.0 | NUMBER_BITS))
    }
}

fn parse(text: &str, prefix: &str) -> Option<u128> {
    let hex = text.strip_prefix(prefix)?;
    if hex.len() != 32 || !hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
        return None;
    }
    let bits = u128::from_str_radix(hex, 16).ok()?;
    let uuid = Uuid::from_u128(bits);
    (uuid.get_version_num() == 7 && uuid.get_variant() == uuid::Variant::RFC4122).then_some(bits)
}

/// Fresh bits that become an id of the kind that is asked for.
pub struct Minted(u128);

/// Mints UUIDv7 values that rise strictly within the process, even within a millisecond and even when the wall
/// clock steps back: time-ordered keys keep the ledger's trees append-only.
#[derive(Default)]
pub struct Mint {
    /// 48 bits of milliseconds, 12 bits of counter.
    last: AtomicU64,
}

impl Mint {
    pub fn mint(&self, now: Timestamp, entropy: &dyn Entropy) -> Minted {
        let millis = u64::try_from(now.as_millis()).unwrap_or(0) & 0xffff_ffff_ffff;
        let floor = millis << 12;
        let mut tick = floor;
        let step = |last: u64| Some((last + 1).max(floor));
        // The closure always answers, so the update cannot fail.
        if let Ok(last) = self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step) {
            tick = (last + 1).max(floor);
        }
        let high = u128::from(tick >> 12) << 80 | 0x7u128 << 76 | u128::from(tick & 0xfff) << 64;
        let low = u128::from(entropy.next_u64() & 0x3fff_ffff_ffff_ffff | 0x8000_0000_0000_0000);
        Minted(high | low)
    }
}

impl Minted {
    /// For rows without an id of their own kind: in the order of the others.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

/// Why a text is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a name is 1 to 63 of `a-z`, `0-9` and `-`, and begins with a letter or digit")]
pub struct BadName;

/// What users call their tenants, sources, endpoints and plugins: `[a-z0-9][a-z0-9-]{0,62}`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(std::sync::Arc<str>);

impl Name {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let bytes = text.as_bytes();
        let word = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        match bytes {
            [first, rest @ ..] if word(first) && rest.len() < 63 && rest.iter().all(|b| word(b) || *b == b'-') => {
                Ok(Name(text.into()))
            }
            _ => Err(BadName),
        }
    }
}

impl TryFrom<String> for Name {
    type Error = BadName;

    fn try_from(text: String) -> Result<Self, BadName> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0.to_string()
    }
}

impl std::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entropy::SystemEntropy;

    #[test]
    fn ids_round_trip_and_rise() {
        let mint = Mint::default();
        let now = Timestamp::from_millis(1_700_000_000_000);
        let mut last = EventId::from_u128(0);
        for i in 0..10_000 {
            // The clock stands still, then steps back: ids rise all the same.
            let now = if i < 5_000 { now } else { now.minus(std::time::Duration::from_secs(60)) };
            let id = EventId::from(mint.mint(now, &SystemEntropy));
            assert!(id > last);
            assert_eq!(id.to_string().parse::<EventId>(), Ok(id));
            last = id;
        }
    }

    #[test]
    fn foreign_and_malformed_ids_are_refused() {
        let id = DeliveryId::from(Mint::default().mint(Timestamp::from_millis(1), &SystemEntropy)).to_string();
        assert!(id.replace("dlv_", "evt_").parse::<DeliveryId>().is_err());
        assert!(id.to_uppercase().parse::<DeliveryId>().is_err());
        assert!(id[..id.len() - 1].parse::<DeliveryId>().is_err());
        assert!("dlv_00000000000000000000000000000000".parse::<DeliveryId>().is_err());
    }

    #[test]
    fn an_attempts_id_leads_to_its_delivery() {
        let delivery = DeliveryId::from(Mint::default().mint(Timestamp::from_millis(1), &SystemEntropy));
        for number in [1, 2, 1_000_000] {
            let id = AttemptId::of(delivery, number);
            assert_eq!(id.to_string().parse::<AttemptId>(), Ok(id));
            let (first, last) = id.of_deliveries();
            assert!(first <= delivery && delivery <= last);
            assert_eq!(id.number(), number);
        }
        assert!(AttemptId::of(delivery, 1) < AttemptId::of(delivery, 2));
        assert_eq!(AttemptId::of(delivery, u32::MAX).number(), 0xf_ffff);
    }

    #[test]
    fn names() {
        for good in ["a", "0", "acme-2", &"a".repeat(63)] {
            assert!(good.parse::<Name>().is_ok(), "{good}");
        }
        for bad in ["", "-a", "A", "a_b", "a.b", "ä", &"a".repeat(64)] {
            assert!(bad.parse::<Name>().is_err(), "{bad}");
        }
    }
}
