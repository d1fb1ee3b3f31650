//! Slots: the right to have one delivery in flight. Caps per endpoint, per tenant and over all; pauses and rates are
//! asked here too, so that one look tells whether a send may start.
//!
//! Work that waits in the ledger goes before work that arrives: while an endpoint has a backlog, an arriving event
//! gets no slot and queues behind it.

use super::{EndpointKey, TenantKey, Wakes};
use crate::clock::Timestamp;
use arc_swap::ArcSwap;
use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

/// What an endpoint may have under way.
#[derive(Clone, Debug)]
pub struct EndpointCaps {
    pub endpoint: EndpointKey,
    pub tenant: TenantKey,
    pub concurrency: u32,
    /// How long a lease made against one of its slots lasts: longer than any exchange with it can.
    pub lease_for: Duration,
    /// The time in which one more send is allowed, and how many may come at once.
    pub rate: Option<(Duration, NonZeroU32)>,
}

/// What asking for a slot gave.
#[derive(Debug)]
pub enum Taken {
    Slot(Slot),
    /// A cap is reached, or older work waits: there will be a nudge when something is given back.
    Full,
    /// The endpoint is paused until then.
    NotBefore(Timestamp),
    /// The endpoint is disabled, paused by hand, or unknown here.
    Closed,
}

/// Counts of one level.
#[derive(Debug, Default)]
struct Gate {
    cap: AtomicU32,
    in_flight: AtomicU32,
    /// Somebody was turned away by this level since the last round of the dispatcher.
    starved: AtomicBool,
    /// Nothing that arrives enters any more. Of the total alone.
    closed: AtomicBool,
}

impl Gate {
    fn enter(&self) -> bool {
        let cap = self.cap.load(Ordering::Relaxed);
        let room = |n: u32| (n < cap).then_some(n + 1);
        let entered = self.in_flight.fetch_update(Ordering::SeqCst, Ordering::Relaxed, room).is_ok();
        if !entered {
            self.starved.store(true, Ordering::Release);
        }
        entered
    }

    fn leave(&self) {
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Debug)]
struct Lane {
    endpoint: EndpointKey,
    own: Gate,
    tenant: Arc<Gate>,
    total: Arc<Gate>,
    wakes: Arc<Wakes>,
    lease_for_millis: AtomicI64,
    rate: ArcSwap<Option<((Duration, NonZeroU32), DefaultDirectRateLimiter)>>,
    /// Milliseconds since the epoch from which sends may start; `i64::MAX`: not until somebody says so.
    opens_at: AtomicI64,
    /// Due work waits in the ledger.
    backlog: AtomicBool,
}

/// All slots of the process.
#[derive(Debug)]
pub struct Slots {
    total: Arc<Gate>,
    tenants: std::sync::Mutex<HashMap<TenantKey, Arc<Gate>>>,
    lanes: ArcSwap<HashMap<EndpointKey, Arc<Lane>>>,
    /// What the ledger said of every endpoint that is closed, also before it had caps here.
    closed: std::sync::Mutex<HashMap<EndpointKey, Timestamp>>,
    wakes: Arc<Wakes>,
    clock: DefaultClock,
}

impl Slots {
    pub fn new(wakes: Arc<Wakes>) -> Self {
        Slots {
            total: Arc::default(),
            tenants: std::sync::Mutex::default(),
            lanes: ArcSwap::default(),
            closed: std::sync::Mutex::default(),
            wakes,
            clock: DefaultClock::default(),
        }
    }

    /// Lays down the caps. What is in flight stays counted; endpoints not listed get no more slots.
    pub fn configure(&self, endpoints: Vec<EndpointCaps>, per_tenant: u32, total: u32) {
        self.total.cap.store(total, Ordering::Relaxed);
        let mut tenants = self.tenants.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Held until the new lanes are in place, so that no closing falls between the old and the new.
        let closed = self.closed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let before = self.lanes.load_full();
        let mut lanes = HashMap::with_capacity(endpoints.len());
        for caps in endpoints {
            let tenant = tenants.entry(caps.tenant).or_default();
            tenant.cap.store(per_tenant, Ordering::Relaxed);
            let lane = before.get(&caps.endpoint).cloned().unwrap_or_else(|| {
                Arc::new(Lane {
                    endpoint: caps.endpoint,
                    own: Gate::default(),
                    tenant: Arc::clone(tenant),
                    total: Arc::clone(&self.total),
                    wakes: Arc::clone(&self.wakes),
                    lease_for_millis: AtomicI64::new(0),
                    rate: ArcSwap::default(),
                    opens_at: AtomicI64::new(closed.get(&caps.endpoint).map_or(i64::MIN, |t| t.as_millis())),
                    backlog: AtomicBool::new(false),
                })
            });
            lane.own.cap.store(caps.concurrency, Ordering::Relaxed);
            let millis = i64::try_from(caps.lease_for.as_millis()).unwrap_or(i64::MAX);
            lane.lease_for_millis.store(millis, Ordering::Relaxed);
            if lane.rate.load().as_ref().as_ref().map(|(rate, _)| *rate) != caps.rate {
                let limiter = caps.rate.and_then(|rate| {
                    // `None` only for a period of zero: no limit.
                    let quota = Quota::with_period(rate.0)?.allow_burst(rate.1);
                    Some((rate, RateLimiter::direct(quota)))
                });
                lane.rate.store(Arc::new(limiter));
            }
            lanes.insert(caps.endpoint, lane);
        }
        self.lanes.store(Arc::new(lanes));
    }

    /// The ledger says so whenever an endpoint's status is committed. `None`: open.
    pub fn close_until(&self, endpoint: EndpointKey, until: Option<Timestamp>) {
        let mut closed = self.closed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match until {
            Some(until) => closed.insert(endpoint, until),
            None => closed.remove(&endpoint),
        };
        if let Some(lane) = self.lanes.load().get(&endpoint) {
            lane.opens_at.store(until.map_or(i64::MIN, Timestamp::as_millis), Ordering::Release);
        }
    }

    /// Whether a send that has a slot may still start: a pause hands back what has not been sent.
    pub fn is_open(&self, endpoint: EndpointKey, now: Timestamp) -> bool {
        let lanes = self.lanes.load();
        lanes.get(&endpoint).is_some_and(|lane| lane.opens_at.load(Ordering::Acquire) <= now.as_millis())
    }

    /// A slot for an event that arrives now. Refused while older work waits.
    pub fn take_for_arrival(&self, endpoint: EndpointKey, now: Timestamp) -> Option<Slot> {
        let lanes = self.lanes.load();
        let lane = lanes.get(&endpoint)?;
        let waits = lane.backlog.load(Ordering::Acquire)
            || lane.tenant.starved.load(Ordering::Acquire)
            || self.total.starved.load(Ordering::Acquire);
        if waits {
            return None;
        }
        match self.enter(lane, now) {
            // Asked after entering, so that whoever closes sees the slot or is seen.
            Taken::Slot(slot) => (!self.total.closed.load(Ordering::SeqCst)).then_some(slot),
            Taken::Full | Taken::NotBefore(_) | Taken::Closed => {
                lane.backlog.store(true, Ordering::Release);
                None
            }
        }
    }

    /// From now on what arrives gets no slot and waits in the ledger; every slot that comes back is told by a nudge.
    pub fn close_to_arrivals(&self) {
        self.total.closed.store(true, Ordering::SeqCst);
    }

    /// A slot for the oldest work that waits.
    pub fn take_for_backlog(&self, endpoint: EndpointKey, now: Timestamp) -> Taken {
        match self.lanes.load().get(&endpoint) {
            Some(lane) => self.enter(lane, now),
            None => Taken::Closed,
        }
    }

    /// The dispatcher says whether due work of this endpoint still waits in the ledger.
    pub fn mark_backlog(&self, endpoint: EndpointKey, waits: bool) {
        if let Some(lane) = self.lanes.load().get(&endpoint) {
            lane.backlog.store(waits, Ordering::Release);
        }
    }

    /// The dispatcher begins a round: whoever is turned away from now on says so again.
    pub fn begin_round(&self) {
        self.total.starved.store(false, Ordering::Release);
        for tenant in self.tenants.lock().unwrap_or_else(std::sync::PoisonError::into_inner).values() {
            tenant.starved.store(false, Ordering::Release);
        }
    }

    /// How many are in flight over all endpoints.
    pub fn in_flight(&self) -> u32 {
        self.total.in_flight.load(Ordering::SeqCst)
    }

    fn enter(&self, lane: &Arc<Lane>, now: Timestamp) -> Taken {
        let opens_at = lane.opens_at.load(Ordering::Acquire);
        if opens_at > now.as_millis() {
            return if opens_at == i64::MAX {
                Taken::Closed
            } else {
                Taken::NotBefore(Timestamp::from_millis(opens_at))
            };
        }
        if !lane.own.enter() {
            return Taken::Full;
        }
        if !lane.tenant.enter() {
            lane.own.leave();
            return Taken::Full;
        }
        if !lane.total.enter() {
            lane.tenant.leave();
            lane.own.leave();
            return Taken::Full;
        }
        if let Some((_, limiter)) = lane.rate.load().as_ref()
            && let Err(until) = limiter.check()
        {
            lane.total.leave();
            lane.tenant.leave();
            lane.own.leave();
            // A millisecond more, since the wait is cut to whole ones.
            return Taken::NotBefore(now.plus(until.wait_time_from(self.clock.now()) + Duration::from_millis(1)));
        }
        Taken::Slot(Slot(Arc::clone(lane)))
    }
}

/// The right to have one delivery of one endpoint in flight; given back when dropped.
#[derive(Debug)]
pub struct Slot(Arc<Lane>);

impl Slot {
    pub fn endpoint(&self) -> EndpointKey {
        self.0.endpoint
    }

    /// How long a lease against it lasts.
    pub fn lease_for(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.lease_for_millis.load(Ordering::Relaxed)).unwrap_or(0))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let lane = &self.0;
        lane.total.leave();
        lane.tenant.leave();
        lane.own.leave();
        let waited_for = lane.backlog.load(Ordering::Acquire)
            || lane.tenant.starved.load(Ordering::Acquire)
            || lane.total.starved.load(Ordering::Acquire)
            || lane.total.closed.load(Ordering::Acquire);
        if waited_for {
            lane.wakes.nudge();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn slots(caps: &[(u32, u32, u32)], per_tenant: u32, total: u32) -> Slots {
        let slots = Slots::new(Arc::default());
        let caps = caps.iter().map(|(endpoint, tenant, concurrency)| EndpointCaps {
            endpoint: EndpointKey(*endpoint),
            tenant: TenantKey(*tenant),
            concurrency: *concurrency,
            lease_for: Duration::from_secs(45),
            rate: None,
        });
        slots.configure(caps.collect(), per_tenant, total);
        slots
    }

    fn take(slots: &Slots, endpoint: u32) -> Option<Slot> {
        match slots.take_for_backlog(EndpointKey(endpoint), NOW) {
            Taken::Slot(slot) => Some(slot),
            Taken::Full | Taken::NotBefore(_) | Taken::Closed => None,
        }
    }

    #[test]
    fn caps_hold_at_every_level_and_slots_come_back() {
        let slots = slots(&[(1, 1, 2), (2, 1, 2), (3, 2, 2)], 3, 4);
        let a = [take(&slots, 1), take(&slots, 1)];
        assert!(a.iter().all(Option::is_some) && take(&slots, 1).is_none(), "endpoint cap");
        let b = take(&slots, 2);
        assert!(b.is_some() && take(&slots, 2).is_none(), "tenant cap");
        let c = take(&slots, 3);
        assert!(c.is_some() && take(&slots, 3).is_none(), "total cap");
        assert_eq!(slots.in_flight(), 4);
        drop((a, b, c));
        assert_eq!(slots.in_flight(), 0);
        assert!(take(&slots, 9).is_none(), "unknown endpoint");
    }

    #[test]
    fn nothing_arrives_once_closed_and_what_comes_back_is_told() {
        let slots = slots(&[(1, 1, 5)], 10, 10);
        let before = slots.take_for_arrival(EndpointKey(1), NOW);
        slots.close_to_arrivals();
        assert!(slots.take_for_arrival(EndpointKey(1), NOW).is_none());
        assert_eq!(slots.in_flight(), 1);
        // The one that was turned away has nudged as well.
        assert!(slots.wakes.changed().now_or_never().is_some());
        drop(before);
        assert!(slots.wakes.changed().now_or_never().is_some());
        assert_eq!(slots.in_flight(), 0);
    }

    #[test]
    fn arrivals_queue_behind_a_backlog() {
        let slots = slots(&[(1, 1, 1)], 10, 10);
        let endpoint = EndpointKey(1);
        let first = slots.take_for_arrival(endpoint, NOW);
        assert!(first.is_some());
        assert!(slots.take_for_arrival(endpoint, NOW).is_none());
        drop(first);
        // The one that was turned away waits in the ledger and goes first.
        assert!(slots.take_for_arrival(endpoint, NOW).is_none());
        slots.mark_backlog(endpoint, false);
        assert!(slots.take_for_arrival(endpoint, NOW).is_some());
    }

    #[test]
    fn a_full_endpoint_holds_up_no_other() {
        let slots = slots(&[(1, 1, 1), (2, 1, 1)], 10, 10);
        let _held = take(&slots, 1);
        assert!(slots.take_for_arrival(EndpointKey(1), NOW).is_none());
        assert!(slots.take_for_arrival(EndpointKey(2), NOW).is_some());
    }

    #[test]
    fn a_pause_closes_and_runs_out() {
        let slots = slots(&[(1, 1, 1)], 10, 10);
        let endpoint = EndpointKey(1);
        let later = NOW.plus(Duration::from_secs(5));
        slots.close_until(endpoint, Some(later));
        assert!(matches!(slots.take_for_backlog(endpoint, NOW), Taken::NotBefore(t) if t == later));
        assert!(!slots.is_open(endpoint, NOW) && slots.is_open(endpoint, later));
        slots.close_until(endpoint, Some(Timestamp::MAX));
        assert!(matches!(slots.take_for_backlog(endpoint, NOW), Taken::Closed));
        slots.close_until(endpoint, None);
        assert!(take(&slots, 1).is_some());
    }

    #[test]
    fn an_endpoint_that_was_closed_before_it_had_caps_stays_closed() {
        let slots = slots(&[], 10, 10);
        slots.close_until(EndpointKey(1), Some(NOW.plus(Duration::from_secs(5))));
        let caps = EndpointCaps {
            endpoint: EndpointKey(1),
            tenant: TenantKey(1),
            concurrency: 1,
            lease_for: Duration::from_secs(45),
            rate: None,
        };
        slots.configure(vec![caps], 10, 10);
        assert!(take(&slots, 1).is_none());
    }

    #[test]
    fn a_rate_gives_its_burst_then_a_time() {
        let slots = slots(&[], 10, 10);
        let two = NonZeroU32::new(2).unwrap();
        let caps = EndpointCaps {
            endpoint: EndpointKey(1),
            tenant: TenantKey(1),
            concurrency: 9,
            lease_for: Duration::from_secs(45),
            rate: Some((Duration::from_secs(1), two)),
        };
        slots.configure(vec![caps], 10, 10);
        let burst = [take(&slots, 1), take(&slots, 1)];
        assert!(burst.iter().all(Option::is_some));
        match slots.take_for_backlog(EndpointKey(1), NOW) {
            Taken::NotBefore(t) => assert!(t > NOW && t <= NOW.plus(Duration::from_secs(2))),
            other => panic!("{other:?}"),
        }
        assert_eq!(slots.in_flight(), 2, "a refusal by the rate gives its places back");
    }

    #[test]
    fn configuring_again_keeps_what_is_in_flight() {
        let slots = slots(&[(1, 1, 2)], 10, 10);
        let held = take(&slots, 1);
        let caps = EndpointCaps {
            endpoint: EndpointKey(1),
            tenant: TenantKey(1),
            concurrency: 1,
            lease_for: Duration::from_secs(45),
            rate: None,
        };
        slots.configure(vec![caps], 10, 10);
        assert!(take(&slots, 1).is_none());
        drop(held);
        assert!(take(&slots, 1).is_some());
    }
}
