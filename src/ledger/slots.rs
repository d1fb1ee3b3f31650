//! Slots: the right to have one delivery in flight. Caps per endpoint, per tenant and over all; pauses and rates are
//! asked here too, so that one look tells whether a send may start.
//!
//! Work that waits in the ledger goes before work that arrives: while an endpoint has a backlog, an arriving event
//! gets no slot and queues behind it.
//!
//! An endpoint that was closed begins slowly: one slot when it opens again, one more for each send that went well, one
//! half for each that did not, until its cap is reached. So it doubles with each round, and nobody who has just come
//! back is met by a wave; behind a breaker, which only a probe that went well closes, one probe at a time goes out.

use super::pace::Pace;
use super::{EndpointKey, TenantKey, Wakes};
use crate::clock::Timestamp;
use crate::delivery::Signal;
use arc_swap::ArcSwap;
use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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
    pace: ArcSwap<Option<Pace>>,
    /// What `own` may grow to.
    concurrency: AtomicU32,
    /// How often it was closed: what began before says nothing of the time after.
    closings: AtomicU32,
    /// Held while the cap of `own` is changed.
    ramp: Mutex<()>,
    /// Milliseconds since the epoch from which sends may start; `i64::MAX`: not until somebody says so.
    opens_at: AtomicI64,
    /// Due work waits in the ledger.
    backlog: AtomicBool,
}

impl Lane {
    fn hold_ramp(&self) -> MutexGuard<'_, ()> {
        self.ramp.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_concurrency(&self, concurrency: u32) {
        let _held = self.hold_ramp();
        let before = self.concurrency.swap(concurrency, Ordering::Relaxed);
        let cap = self.own.cap.load(Ordering::Relaxed);
        let ramping = cap < before;
        self.own.cap.store(if ramping { cap.min(concurrency) } else { concurrency }, Ordering::Relaxed);
    }

    fn begin_slowly(&self) {
        let _held = self.hold_ramp();
        self.closings.fetch_add(1, Ordering::AcqRel);
        self.own.cap.store(self.concurrency.load(Ordering::Relaxed).min(1), Ordering::Relaxed);
    }
}

/// All slots of the process.
#[derive(Debug)]
pub struct Slots {
    total: Arc<Gate>,
    tenants: Mutex<HashMap<TenantKey, Arc<Gate>>>,
    lanes: ArcSwap<HashMap<EndpointKey, Arc<Lane>>>,
    told: Mutex<Told>,
    wakes: Arc<Wakes>,
    began: Instant,
}

/// What the ledger said, also before an endpoint had caps here.
#[derive(Debug, Default)]
struct Told {
    closed: HashMap<EndpointKey, Timestamp>,
    /// Those of an earlier process, which may have sent a burst a moment ago.
    earlier: HashSet<EndpointKey>,
}

impl Slots {
    pub fn new(wakes: Arc<Wakes>) -> Self {
        Slots {
            total: Arc::default(),
            tenants: Mutex::default(),
            lanes: ArcSwap::default(),
            told: Mutex::default(),
            wakes,
            began: Instant::now(),
        }
    }

    /// Lays down the caps. What is in flight stays counted; endpoints not listed get no more slots.
    pub fn configure(&self, endpoints: Vec<EndpointCaps>, per_tenant: u32, total: u32) {
        self.total.cap.store(total, Ordering::Relaxed);
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        // Held until the new lanes are in place, so that no closing falls between the old and the new.
        let told = self.told();
        let before = self.lanes.load_full();
        let mut lanes = HashMap::with_capacity(endpoints.len());
        for caps in endpoints {
            let tenant = tenants.entry(caps.tenant).or_default();
            tenant.cap.store(per_tenant, Ordering::Relaxed);
            let earlier = before.contains_key(&caps.endpoint) || told.earlier.contains(&caps.endpoint);
            let lane = before.get(&caps.endpoint).cloned().unwrap_or_else(|| {
                let closed = told.closed.get(&caps.endpoint);
                let lane = Lane {
                    endpoint: caps.endpoint,
                    own: Gate::default(),
                    tenant: Arc::clone(tenant),
                    total: Arc::clone(&self.total),
                    wakes: Arc::clone(&self.wakes),
                    lease_for_millis: AtomicI64::new(0),
                    pace: ArcSwap::default(),
                    concurrency: AtomicU32::new(0),
                    closings: AtomicU32::new(0),
                    ramp: Mutex::default(),
                    opens_at: AtomicI64::new(closed.map_or(i64::MIN, |t| t.as_millis())),
                    backlog: AtomicBool::new(false),
                };
                lane.set_concurrency(caps.concurrency);
                if closed.is_some() {
                    lane.begin_slowly();
                }
                Arc::new(lane)
            });
            lane.set_concurrency(caps.concurrency);
            let millis = i64::try_from(caps.lease_for.as_millis()).unwrap_or(i64::MAX);
            lane.lease_for_millis.store(millis, Ordering::Relaxed);
            if lane.pace.load().as_ref().as_ref().map(Pace::rate) != caps.rate {
                let pace = caps.rate.map(|(period, burst)| match earlier {
                    true => Pace::empty(period, burst, self.began.elapsed()),
                    false => Pace::full(period, burst),
                });
                lane.pace.store(Arc::new(pace));
            }
            lanes.insert(caps.endpoint, lane);
        }
        self.lanes.store(Arc::new(lanes));
    }

    /// The ledger says so whenever an endpoint's status is committed. `None`: open.
    pub fn close_until(&self, endpoint: EndpointKey, until: Option<Timestamp>) {
        let mut told = self.told();
        match until {
            Some(until) => told.closed.insert(endpoint, until),
            None => told.closed.remove(&endpoint),
        };
        if let Some(lane) = self.lanes.load().get(&endpoint) {
            lane.opens_at.store(until.map_or(i64::MIN, Timestamp::as_millis), Ordering::Release);
            if until.is_some() {
                lane.begin_slowly();
            }
        }
    }

    /// The ledger knew this endpoint when it was opened: it may have sent its burst a moment ago.
    pub fn known_before(&self, endpoint: EndpointKey) {
        self.told().earlier.insert(endpoint);
    }

    /// How many it may have in flight now, while that is less than its concurrency.
    pub fn ramp(&self, endpoint: EndpointKey) -> Option<u32> {
        let lanes = self.lanes.load();
        let lane = lanes.get(&endpoint)?;
        let cap = lane.own.cap.load(Ordering::Relaxed);
        (cap < lane.concurrency.load(Ordering::Relaxed)).then_some(cap)
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
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
        for tenant in self.tenants.lock().unwrap_or_else(PoisonError::into_inner).values() {
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
        if let Some(pace) = lane.pace.load().as_ref()
            && let Err(wait) = pace.take(self.began.elapsed())
        {
            lane.total.leave();
            lane.tenant.leave();
            lane.own.leave();
            // A millisecond more, since the wait is cut to whole ones.
            return Taken::NotBefore(now.plus(wait + Duration::from_millis(1)));
        }
        let closings = lane.closings.load(Ordering::Acquire);
        Taken::Slot(Slot { lane: Arc::clone(lane), closings, sent: AtomicBool::new(false) })
    }
}

/// The right to have one delivery of one endpoint in flight; given back when dropped.
#[derive(Debug)]
pub struct Slot {
    lane: Arc<Lane>,
    closings: u32,
    sent: AtomicBool,
}

impl Slot {
    pub fn endpoint(&self) -> EndpointKey {
        self.lane.endpoint
    }

    /// How long a lease against it lasts.
    pub fn lease_for(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.lane.lease_for_millis.load(Ordering::Relaxed)).unwrap_or(0))
    }

    /// A request goes out: from here on it counts against the rate.
    pub fn sends(&self) {
        self.sent.store(true, Ordering::Relaxed);
    }

    /// What was learned from it, once that is settled.
    pub fn tell(&self, signal: Signal) {
        let lane = &self.lane;
        let full = || lane.concurrency.load(Ordering::Relaxed);
        if lane.own.cap.load(Ordering::Relaxed) >= full() {
            return;
        }
        let _held = lane.hold_ramp();
        if lane.closings.load(Ordering::Acquire) == self.closings {
            let cap = lane.own.cap.load(Ordering::Relaxed);
            let next = match signal {
                Signal::Works => cap.saturating_add(1),
                Signal::Fails => (cap / 2).max(1),
            };
            lane.own.cap.store(next.min(full()), Ordering::Relaxed);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let lane = &self.lane;
        if !*self.sent.get_mut()
            && let Some(pace) = lane.pace.load().as_ref()
        {
            pace.put_back();
        }
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

    fn paced(slots: &Slots, rate: Option<(Duration, NonZeroU32)>) {
        let (endpoint, tenant, lease_for) = (EndpointKey(1), TenantKey(1), Duration::from_secs(45));
        slots.configure(vec![EndpointCaps { endpoint, tenant, concurrency: 9, lease_for, rate }], 10, 10);
    }

    #[test]
    fn what_was_not_sent_does_not_count_against_the_rate() {
        let slots = slots(&[], 10, 10);
        paced(&slots, Some((Duration::from_secs(3_600), NonZeroU32::MIN)));
        drop(take(&slots, 1));
        let sent = take(&slots, 1).unwrap();
        sent.sends();
        drop(sent);
        assert!(take(&slots, 1).is_none());
    }

    #[test]
    fn there_is_no_second_burst_after_a_restart_or_a_change_of_the_rate() {
        let hour = Duration::from_secs(3_600);
        let burst = NonZeroU32::new(5).unwrap();
        let restarted = slots(&[], 10, 10);
        restarted.known_before(EndpointKey(1));
        paced(&restarted, Some((hour, burst)));
        assert!(take(&restarted, 1).is_none());
        let changed = slots(&[], 10, 10);
        paced(&changed, Some((hour, burst)));
        assert!(take(&changed, 1).is_some());
        paced(&changed, Some((hour * 2, burst)));
        assert!(take(&changed, 1).is_none());
    }

    #[test]
    fn after_a_pause_it_begins_with_one_and_doubles_with_each_round() {
        let slots = slots(&[(1, 1, 9)], 20, 20);
        let endpoint = EndpointKey(1);
        let straggler = take(&slots, 1).unwrap();
        slots.close_until(endpoint, Some(NOW.minus(Duration::from_secs(1))));
        straggler.tell(Signal::Works);
        drop(straggler);
        let round = || std::iter::from_fn(|| take(&slots, 1)).collect::<Vec<_>>();
        for expected in [1, 2, 4, 8, 9, 9] {
            assert_eq!(slots.ramp(endpoint), Some(expected).filter(|now| *now < 9));
            let taken = round();
            assert_eq!(taken.len(), usize::try_from(expected).unwrap());
            taken.iter().for_each(|slot| slot.tell(Signal::Works));
        }
        // At full breadth a failure changes nothing; on the way there it halves.
        round()[0].tell(Signal::Fails);
        assert_eq!(slots.ramp(endpoint), None);
        slots.close_until(endpoint, None);
        assert_eq!(slots.ramp(endpoint), None, "an opening by itself is no closing");
        slots.close_until(endpoint, Some(NOW));
        slots.close_until(endpoint, None);
        round()[0].tell(Signal::Works);
        round()[0].tell(Signal::Works);
        assert_eq!(slots.ramp(endpoint), Some(3));
        round()[0].tell(Signal::Fails);
        assert_eq!(slots.ramp(endpoint), Some(1));
        round()[0].tell(Signal::Fails);
        assert_eq!(slots.ramp(endpoint), Some(1));
    }

    #[test]
    fn other_caps_do_not_end_a_slow_beginning() {
        let slots = slots(&[(1, 1, 9)], 20, 20);
        slots.close_until(EndpointKey(1), Some(NOW));
        paced(&slots, None);
        assert_eq!(slots.ramp(EndpointKey(1)), Some(1));
        let later = Slots::new(Arc::default());
        later.close_until(EndpointKey(1), Some(NOW));
        paced(&later, None);
        assert_eq!(later.ramp(EndpointKey(1)), Some(1));
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
