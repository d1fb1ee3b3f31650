//! Hints that there is, or will be, something to claim. Losing one loses nothing: the poll mends it.

use super::EndpointKey;
use crate::clock::Timestamp;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use tokio::sync::Notify;

/// For each endpoint, the earliest time at which pending work is due. Bounded by the number of endpoints.
#[derive(Default, Debug)]
pub struct Wakes {
    due: Mutex<HashMap<EndpointKey, Timestamp>>,
    changed: Notify,
}

impl Wakes {
    /// There is pending work for `endpoint`, due at `due`.
    pub fn note(&self, endpoint: EndpointKey, due: Timestamp) {
        let mut all = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let earliest = all.entry(endpoint).or_insert(due);
        *earliest = due.min(*earliest);
        drop(all);
        self.changed.notify_one();
    }

    /// Something to do that names no endpoint: a slot was given back.
    pub fn nudge(&self) {
        self.changed.notify_one();
    }

    /// What was noted since the last call.
    pub fn take(&self) -> HashMap<EndpointKey, Timestamp> {
        std::mem::take(&mut *self.due.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Resolves when something was noted since the last time it resolved.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}
