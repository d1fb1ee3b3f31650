//! Fair rounds over what waits: one slot to each endpoint in turn, tenants in turn, until nothing more can start.

use super::time::Timekeeper;
use super::{Crew, Stop, attempt, rescue};
use crate::clock::Timestamp;
use crate::ledger::{EndpointKey, LedgerError, Slot, Taken};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

/// Claimed in one transaction.
const CLAIM_MAX: usize = 256;

/// After a claim that failed.
const CLAIM_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// What is believed to wait.
#[derive(Default)]
struct Waiting {
    /// When the first pending delivery of each endpoint is due.
    due: BTreeMap<EndpointKey, Timestamp>,
    /// How many to ask for at once: doubles while an endpoint has as many as were asked for, so that a long backlog
    /// is claimed in large steps and a single retry takes a single slot.
    ask: HashMap<EndpointKey, usize>,
    /// What expired by then has been ended.
    expired_by: Timestamp,
    time: Timekeeper,
}

impl Waiting {
    fn note(&mut self, endpoint: EndpointKey, due: Timestamp) {
        self.due.entry(endpoint).and_modify(|known| *known = due.min(*known)).or_insert(due);
    }

    fn next(&self) -> Option<Timestamp> {
        self.due.values().min().copied()
    }
}

pub(super) async fn run(crew: &Arc<Crew>, stop: &Stop, attempts: &TaskTracker) {
    let mut waiting = Waiting::default();
    let mut next_poll = Instant::now();
    let mut full_until = None;
    loop {
        if Instant::now() >= next_poll {
            if let Err(error) = poll(crew, &mut waiting).await {
                tracing::warn!(%error, "the poll failed; it will be made again");
            }
            next_poll = Instant::now() + crew.settings.poll_every;
        }
        for (endpoint, due) in crew.wakes.take() {
            waiting.note(endpoint, due);
        }
        if full_until.is_none_or(|until| Instant::now() >= until) {
            full_until = match round(crew, stop, attempts, &mut waiting).await {
                Ok(Round::More) if !stop.drain.is_cancelled() => continue,
                Ok(Round::More | Round::Done) => None,
                Err(error) => {
                    tracing::warn!(%error, "nothing could be claimed; it will be tried again");
                    Some(Instant::now() + CLAIM_AGAIN_AFTER)
                }
            };
        }
        let until_due = waiting.next().map(|due| due.since(crew.clock.now()));
        let wake_at =
            until_due.filter(|wait| !wait.is_zero()).map_or(next_poll, |wait| next_poll.min(Instant::now() + wait));
        let wake_at = full_until.map_or(wake_at, |until: Instant| until.min(next_poll));
        tokio::select! {
            () = stop.drain.cancelled() => return,
            () = crew.wakes.changed() => {}
            () = tokio::time::sleep_until(wake_at) => {}
        }
    }
}

/// Looks at the ledger itself: what no hint told of, and leases whose holder is gone.
async fn poll(crew: &Crew, waiting: &mut Waiting) -> Result<(), LedgerError> {
    // Read before the clocks are compared: if the clock is set from here on, no lease is taken to have ended by it.
    let now = crew.clock.now();
    if waiting.time.keep(crew).await? {
        waiting.expired_by = Timestamp::ZERO;
    }
    let rescued = rescue::requeue_interrupted(crew, now).await?;
    if rescued > 0 {
        tracing::warn!(rescued, "attempts whose lease had run out were taken over");
    }
    waiting.expired_by = rescue::expire(crew, waiting.expired_by).await?;
    rescue::expire_aged(crew).await?;
    let backlog = crew.ledger.backlog().await?;
    for key in crew.targets.endpoints() {
        if !backlog.contains_key(&key) && !waiting.due.contains_key(&key) {
            crew.slots.mark_backlog(key, false);
        }
    }
    for (endpoint, due) in backlog {
        waiting.note(endpoint, due);
    }
    Ok(())
}

enum Round {
    /// There may be more to start now.
    More,
    Done,
}

/// One round: slots in turn, one claim, and off they go.
async fn round(
    crew: &Arc<Crew>,
    stop: &Stop,
    attempts: &TaskTracker,
    waiting: &mut Waiting,
) -> Result<Round, LedgerError> {
    let now = crew.clock.now();
    let slots = deal(crew, waiting, now);
    if slots.is_empty() {
        return Ok(Round::Done);
    }
    let mut asked: BTreeMap<EndpointKey, usize> = BTreeMap::new();
    for slot in &slots {
        *asked.entry(slot.endpoint()).or_default() += 1;
    }
    let claims = crew.ledger.claim(slots, now).await?;
    let mut got: HashMap<EndpointKey, usize> = HashMap::new();
    for claimed in claims.started {
        *got.entry(claimed.lease.endpoint).or_default() += 1;
        attempts.spawn(attempt::run(Arc::clone(crew), stop.clone(), claimed));
    }
    let mut more = false;
    for (endpoint, asked) in asked {
        let filled = got.get(&endpoint).is_some_and(|n| *n >= asked);
        if filled {
            waiting.ask.insert(endpoint, asked.saturating_mul(2).min(CLAIM_MAX));
        } else {
            waiting.ask.remove(&endpoint);
        }
        match claims.next_due.get(&endpoint) {
            Some(due) => {
                waiting.due.insert(endpoint, *due);
                crew.slots.mark_backlog(endpoint, *due <= now);
                // What is due and could not be claimed waits for the next hint or poll, not for a busy loop.
                more |= *due <= now && got.contains_key(&endpoint);
            }
            None => {
                waiting.due.remove(&endpoint);
                crew.slots.mark_backlog(endpoint, false);
            }
        }
    }
    Ok(if more { Round::More } else { Round::Done })
}

/// Deals slots to what is due: tenant by tenant, within a tenant endpoint by endpoint, one at a time.
fn deal(crew: &Crew, waiting: &mut Waiting, now: Timestamp) -> Vec<Slot> {
    crew.slots.begin_round();
    let mut tenants: BTreeMap<Option<crate::delivery::Name>, VecDeque<(EndpointKey, usize)>> = BTreeMap::new();
    for (endpoint, due) in &waiting.due {
        if *due <= now {
            crew.slots.mark_backlog(*endpoint, true);
            let ask = waiting.ask.get(endpoint).copied().unwrap_or(1);
            let tenant = crew.targets.endpoint(*endpoint).map(|target| target.tenant.clone());
            tenants.entry(tenant).or_default().push_back((*endpoint, ask));
        }
    }
    let mut turns: VecDeque<VecDeque<(EndpointKey, usize)>> = tenants.into_values().collect();
    let mut slots = Vec::new();
    while let Some(mut endpoints) = turns.pop_front() {
        if slots.len() >= CLAIM_MAX {
            break;
        }
        if let Some((endpoint, ask)) = endpoints.pop_front() {
            match crew.slots.take_for_backlog(endpoint, now) {
                Taken::Slot(slot) => {
                    slots.push(slot);
                    if ask > 1 {
                        endpoints.push_back((endpoint, ask - 1));
                    }
                }
                // A slot that is given back nudges the next round.
                Taken::Full => {}
                Taken::NotBefore(at) => {
                    waiting.due.insert(endpoint, at);
                }
                // Whoever opens it again says so.
                Taken::Closed => {
                    waiting.due.remove(&endpoint);
                }
            }
        }
        if !endpoints.is_empty() {
            turns.push_back(endpoints);
        }
    }
    slots
}
