//! The states of a delivery.

use serde::{Deserialize, Serialize};

/// Where a delivery stands. All but the first two are terminal; only `Dead` can be left again, by a redrive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    Pending,
    InFlight,
    Delivered,
    Skipped,
    Dead,
    Expired,
    Cancelled,
    Resolved,
}

impl DeliveryState {
    pub const ALL: [DeliveryState; 8] = [
        DeliveryState::Pending,
        DeliveryState::InFlight,
        DeliveryState::Delivered,
        DeliveryState::Skipped,
        DeliveryState::Dead,
        DeliveryState::Expired,
        DeliveryState::Cancelled,
        DeliveryState::Resolved,
    ];

    pub const fn is_terminal(self) -> bool {
        !matches!(self, DeliveryState::Pending | DeliveryState::InFlight)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            DeliveryState::Pending => "pending",
            DeliveryState::InFlight => "in_flight",
            DeliveryState::Delivered => "delivered",
            DeliveryState::Skipped => "skipped",
            DeliveryState::Dead => "dead",
            DeliveryState::Expired => "expired",
            DeliveryState::Cancelled => "cancelled",
            DeliveryState::Resolved => "resolved",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.as_str() == text)
    }
}
