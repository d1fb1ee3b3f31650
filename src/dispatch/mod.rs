//! Push and, in [`Desk`], pull. Push: claim → transform → send → classify → decide → settle.
//!
//! Work comes in two ways and walks one: what was accepted with a slot arrives from the ledger's memory
//! ([`Dispatcher::run`] takes it as it is committed), what waits is claimed in fair rounds. Authoritative is the
//! ledger; what this room keeps in memory is a hint that the next poll mends.

mod adviser;
mod attempt;
mod draft;
mod headers;
mod pull;
mod rescue;
mod rounds;
mod shadow;
mod tally;
mod targets;
mod time;
mod trial;

pub use pull::Desk;
pub use rescue::requeue_interrupted;
pub use tally::Tally;
pub use targets::{Advice, InUse, Live, Target, Targets, Use, Way};
pub use trial::{Identity, Trial};

use crate::clock::ClockWatch;
use crate::egress::Transport;
use crate::entropy::Entropy;
use crate::ledger::{Claimed, Ledger, Slots, Wakes};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How the dispatcher goes about it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Between two looks at the ledger for what no hint told of.
    pub poll_every: Duration,
    /// Response body kept on the attempt, bytes.
    pub response_kept_bytes_max: usize,
    /// Response body read for `classify`, bytes.
    pub response_read_bytes_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            poll_every: Duration::from_secs(1),
            response_kept_bytes_max: 16 * 1024,
            response_read_bytes_max: 64 * 1024,
        }
    }
}

/// What the attempts share.
pub struct Crew {
    pub settings: Settings,
    pub ledger: Arc<dyn Ledger>,
    pub slots: Arc<Slots>,
    pub wakes: Arc<Wakes>,
    pub targets: Arc<Targets>,
    pub transport: Arc<dyn Transport>,
    pub clock: Arc<ClockWatch>,
    pub entropy: Arc<dyn Entropy>,
    pub tally: Tally,
}

/// The tokens that end it, in the order in which they are cancelled.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// Start nothing more; hand back what has not been sent.
    pub drain: CancellationToken,
    /// The grace is over: let go of what has no answer yet.
    pub cut: CancellationToken,
}

/// The dispatcher. Build it, run it, and it ends once `drain` is cancelled and every attempt has been settled.
pub struct Dispatcher {
    crew: Arc<Crew>,
    stop: Stop,
}

impl Dispatcher {
    pub fn new(crew: Crew, stop: Stop) -> Self {
        Dispatcher { crew: Arc::new(crew), stop }
    }

    /// Runs until the drain is done. `births` ends when the ledger is closed or dropped.
    pub async fn run(self, mut births: mpsc::UnboundedReceiver<Claimed>) {
        let Dispatcher { crew, stop } = &self;
        let attempts = TaskTracker::new();
        let rounds = rounds::run(crew, stop, &attempts);
        let arrivals = arrivals(crew, stop, &attempts, &mut births);
        tokio::join!(rounds, arrivals);
        last_arrivals(crew, stop, &attempts, births).await;
        attempts.close();
        attempts.wait().await;
    }
}

/// Starts what the ledger hands over as it is committed, until the drain begins.
async fn arrivals(
    crew: &Arc<Crew>,
    stop: &Stop,
    attempts: &TaskTracker,
    births: &mut mpsc::UnboundedReceiver<Claimed>,
) {
    let mut batch = Vec::with_capacity(128);
    loop {
        let taken = tokio::select! {
            biased;
            taken = births.recv_many(&mut batch, 128) => taken,
            () = stop.drain.cancelled() => 0,
        };
        if taken == 0 {
            return;
        }
        for claimed in batch.drain(..) {
            attempts.spawn(attempt::run(Arc::clone(crew), stop.clone(), claimed));
        }
    }
}

/// In the drain, what was accepted with a slot is still on its way here: taken, and handed back, until the last slot
/// has come back. What is accepted from now on gets none.
async fn last_arrivals(
    crew: &Arc<Crew>,
    stop: &Stop,
    attempts: &TaskTracker,
    mut births: mpsc::UnboundedReceiver<Claimed>,
) {
    crew.slots.close_to_arrivals();
    while crew.slots.in_flight() > 0 {
        tokio::select! {
            Some(claimed) = births.recv() => {
                attempts.spawn(attempt::run(Arc::clone(crew), stop.clone(), claimed));
            }
            () = crew.wakes.changed() => {}
        }
    }
}
