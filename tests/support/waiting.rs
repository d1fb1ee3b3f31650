//! Waiting for conditions.

use std::future::Future;
use std::time::{Duration, Instant};

/// Asks again and again until there is something, for at most two minutes: a busy machine is slow, what never comes does not.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(found) = ask().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await; // poll: asks again
    }
}
