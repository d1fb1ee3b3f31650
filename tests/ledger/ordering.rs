//! Order per key: within a line one goes after the other, and lines do not wait for each other.

use crate::bench::{Bench, START, dead, delivered, record, released, retry};
use crate::support::{name, publication};
use hookgate::clock::Timestamp;
use hookgate::delivery::{DeliveryId, DeliveryState, Disposition, OnDead, Reason};
use hookgate::ledger::{
    Accept, Accepted, Cancelled, Claimed, DeliveryFilter, DeliveryRow, Lease, OrderingKey, PageRequest, Redrive,
    Redriven, RequestId, ResolveAs, Resolved, Retention, Settled,
};
use hookgate::verify::{Publication, Relation};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn ordered(bench: &Bench, publication: Publication, key: &str, on_dead: OnDead, endpoints: &[&str]) -> Accept {
    let publication = Publication { relation: Some(Relation::Ordered(key.to_owned())), ..publication };
    let mut accept = bench.acceptance(publication, endpoints);
    for delivery in &mut accept.deliveries {
        delivery.order = Some(OrderingKey::of(key, on_dead));
    }
    accept
}

async fn taken(bench: &Bench, accept: Accept) -> DeliveryId {
    let Accepted::New(event) = bench.ledger.accept(accept).await.unwrap() else { panic!("it is new") };
    let event = bench.ledger.event(bench.tenant("acme"), event).await.unwrap().unwrap();
    event.deliveries.unwrap()[0]
}

async fn line_up(bench: &Bench, key: &str, on_dead: OnDead) -> DeliveryId {
    taken(bench, ordered(bench, publication("t", None, "x"), key, on_dead, &["billing"])).await
}

/// What can be claimed now, in the order of its claiming.
async fn started(bench: &Bench) -> Vec<Claimed> {
    bench.claim("billing", 50).await
}

fn ids(claimed: &[Claimed]) -> Vec<DeliveryId> {
    claimed.iter().map(|claimed| claimed.lease.delivery).collect()
}

async fn row(bench: &Bench, id: DeliveryId) -> DeliveryRow {
    bench.detail(id).await.delivery
}

fn redrive(bench: &Bench, id: DeliveryId, request: Option<&str>) -> Redrive {
    let request = request.map(|text| RequestId::new(text).unwrap());
    Redrive { tenant: bench.tenant("acme"), delivery: id, note: None, payload: None, request }
}

#[tokio::test]
async fn one_after_the_other_and_other_keys_beside_them() {
    let bench = Bench::new().await;
    let (a1, a2) = (line_up(&bench, "a", OnDead::Release).await, line_up(&bench, "a", OnDead::Release).await);
    let b1 = line_up(&bench, "b", OnDead::Release).await;
    let (_, free) = bench.accept("free", &["billing"]).await;
    let waits = row(&bench, a2).await;
    assert_eq!((waits.state, waits.due_at), (DeliveryState::Pending, None));
    assert_eq!((waits.reason.as_deref(), waits.held_by), (Some("held_by_key"), Some(a1)));
    assert_eq!((waits.ordering_key.as_deref(), waits.out_of_order), (Some("a"), false));
    assert_eq!(row(&bench, a1).await.held_by, None);
    assert_eq!(row(&bench, free[0]).await.ordering_key, None);
    assert_eq!(bench.ledger.gauges().pending, 4, "what waits for its turn waits");

    let first = started(&bench).await;
    assert_eq!(ids(&first), [a1, b1, free[0]]);
    // A retry keeps the turn.
    let due = bench.now().plus(secs(5));
    bench.settle(first[0].lease, retry(due)).await;
    bench.settle(first[1].lease, delivered()).await;
    assert!(started(&bench).await.is_empty());
    assert_eq!(bench.ledger.backlog().await.unwrap().get(&bench.endpoint("billing")), Some(&due));
    bench.clock.advance(secs(5));
    let again = started(&bench).await;
    assert_eq!(ids(&again), [a1]);
    assert!(bench.ledger.backlog().await.unwrap().is_empty(), "what is held is no backlog");
    let mut accept = bench.acceptance(publication("t", None, "fresh"), &["+billing"]);
    accept.now = bench.now();
    assert!(matches!(bench.ledger.accept(accept).await, Ok(Accepted::New(_))));
    bench.wakes.take();
    bench.settle(again[0].lease, delivered()).await;
    assert_eq!(bench.wakes.take().get(&bench.endpoint("billing")), Some(&bench.now()));
    assert_eq!(ids(&started(&bench).await), [a2]);
    assert_eq!(row(&bench, a2).await.reason, None);
}

/// Two endpoints of one event, and the same key in another tenant: lines of their own.
#[tokio::test]
async fn a_line_is_of_one_endpoint() {
    let bench = Bench::new().await;
    let both = &["billing", "crm"];
    for _ in 0..2 {
        taken(&bench, ordered(&bench, publication("t", None, "x"), "a", OnDead::Release, both)).await;
    }
    let billing = bench.claim("billing", 5).await;
    assert_eq!(billing.len(), 1);
    assert_eq!(bench.claim("crm", 5).await.len(), 1, "the other one's turn is its own");
    bench.settle(billing[0].lease, delivered()).await;
    assert_eq!((bench.claim("billing", 5).await.len(), bench.claim("crm", 5).await.len()), (1, 0));
}

#[tokio::test]
async fn every_end_lets_the_next_one_go() {
    for how in [
        delivered(),
        Disposition::Skipped(Reason::word("not_for_us")),
        Disposition::Expired(Reason::EXPIRED),
        dead("http_400"),
    ] {
        let bench = Bench::new().await;
        let first = line_up(&bench, "a", OnDead::Release).await;
        let next = line_up(&bench, "a", OnDead::Release).await;
        let claimed = started(&bench).await;
        assert_eq!(ids(&claimed), [first]);
        assert_eq!(bench.settle(claimed[0].lease, how.clone()).await, Settled::Stored);
        assert_eq!(ids(&started(&bench).await), [next], "{how:?}");
    }
    let bench = Bench::new().await;
    let acme = bench.tenant("acme");
    let mut line = Vec::new();
    for _ in 0..4 {
        line.push(line_up(&bench, "a", OnDead::Hold).await);
    }
    // One in the middle leaves without a word; the first one's place goes to who is next.
    assert_eq!(bench.ledger.cancel(acme, line[1], bench.now()).await.unwrap(), Cancelled::Done);
    assert_eq!(row(&bench, line[2]).await.held_by, Some(line[0]));
    assert_eq!(bench.ledger.cancel(acme, line[0], bench.now()).await.unwrap(), Cancelled::Done);
    assert_eq!(row(&bench, line[3]).await.held_by, Some(line[2]));
    assert_eq!(ids(&started(&bench).await), [line[2]]);
}

#[tokio::test]
async fn a_dead_letter_lets_go_and_comes_back_out_of_order() {
    let bench = Bench::new().await;
    let first = line_up(&bench, "a", OnDead::Release).await;
    let next = line_up(&bench, "a", OnDead::Release).await;
    let claimed = started(&bench).await;
    bench.settle(claimed[0].lease, dead("http_400")).await;
    assert!(!row(&bench, first).await.out_of_order);
    let asked = redrive(&bench, first, Some("once"));
    for _ in 0..2 {
        let done = bench.ledger.redrive(asked.clone(), bench.now()).await.unwrap();
        assert_eq!(done, Redriven::Done { generation: 2, revision: 1 });
    }
    let back = row(&bench, first).await;
    assert!(back.out_of_order && back.held_by.is_none() && back.due_at.is_some());
    let both = started(&bench).await;
    assert_eq!(ids(&both).len(), 2);
    assert!(ids(&both).contains(&first) && ids(&both).contains(&next));
    // Its end is nobody's turn.
    let last = line_up(&bench, "a", OnDead::Release).await;
    let late = both.iter().find(|claimed| claimed.lease.delivery == first).unwrap().lease;
    bench.settle(late, delivered()).await;
    assert!(started(&bench).await.is_empty());
    assert_eq!(row(&bench, last).await.held_by, Some(next));
}

#[tokio::test]
async fn a_dead_letter_holds_its_key_until_it_is_brought_to_an_end() {
    let bench = Bench::new().await;
    let acme = bench.tenant("acme");
    let mut line = Vec::new();
    for _ in 0..3 {
        line.push(line_up(&bench, "a", OnDead::Hold).await);
    }
    let claimed = started(&bench).await;
    bench.settle(claimed[0].lease, dead("http_400")).await;
    assert!(started(&bench).await.is_empty());
    let bench = bench.restart().await;
    assert!(started(&bench).await.is_empty());
    assert_eq!(row(&bench, line[1]).await.held_by, Some(line[0]));
    // A redrive that dies too holds on; one that is delivered lets go.
    for end in [dead("http_400"), delivered()] {
        bench.ledger.redrive(redrive(&bench, line[0], None), bench.now()).await.unwrap();
        let claimed = started(&bench).await;
        assert_eq!(ids(&claimed), [line[0]]);
        assert!(!row(&bench, line[0]).await.out_of_order);
        bench.settle(claimed[0].lease, end).await;
    }
    let claimed = started(&bench).await;
    assert_eq!(ids(&claimed), [line[1]]);
    bench.settle(claimed[0].lease, dead("http_400")).await;
    let resolved = bench.ledger.resolve(acme, line[1], ResolveAs::Sent, None, bench.now()).await.unwrap();
    assert_eq!(resolved, Resolved::Done);
    assert_eq!(ids(&started(&bench).await), [line[2]]);
}

/// Retention takes the dead letter, and with it what could have been brought to an end.
#[tokio::test]
async fn a_key_is_not_held_by_what_is_gone() {
    let bench = Bench::new().await;
    let first = line_up(&bench, "a", OnDead::Hold).await;
    let claimed = started(&bench).await;
    bench.settle(claimed[0].lease, dead("http_400")).await;
    bench.clock.advance(secs(50));
    let next = line_up(&bench, "a", OnDead::Hold).await;
    bench.clock.advance(secs(60));
    let retention = Retention { payloads: secs(100), rows: secs(100), tenants: BTreeMap::new(), batch_rows_max: 100 };
    bench.ledger.prune(&retention, bench.now()).await.unwrap();
    assert!(bench.ledger.delivery(bench.tenant("acme"), first).await.unwrap().is_none());
    assert_eq!(ids(&started(&bench).await), [next]);
}

/// Both limits end what is held, on time, and an attempt that was only made for that gives no turn away.
#[tokio::test]
async fn what_is_held_ends_with_its_time() {
    let bench = Bench::new().await;
    let first = line_up(&bench, "a", OnDead::Hold).await;
    let expires_at = Some(bench.now().plus(secs(10)));
    let short = Publication { expires_at, ..publication("t", None, "x") };
    let short = taken(&bench, ordered(&bench, short, "a", OnDead::Hold, &["billing"])).await;
    let aged = line_up(&bench, "a", OnDead::Hold).await;
    let claimed = started(&bench).await;
    assert_eq!(ids(&claimed), [first]);
    bench.clock.advance(secs(10));
    let over = bench.ledger.overdue(Timestamp::ZERO, 10, bench.now()).await.unwrap();
    assert_eq!(over.iter().map(|lease| lease.delivery).collect::<Vec<_>>(), [short]);
    // Thought better of: it is held again, whatever was said of its time.
    bench.settle(over[0], released(bench.now())).await;
    assert_eq!(row(&bench, short).await.reason.as_deref(), Some("held_by_key"));
    let over = bench.ledger.overdue(Timestamp::ZERO, 10, bench.now()).await.unwrap();
    bench.settle(over[0], Disposition::Expired(Reason::EXPIRED)).await;
    assert_eq!(row(&bench, short).await.state, DeliveryState::Expired);
    let began_by = vec![(bench.endpoint("billing"), START)];
    let over = bench.ledger.outlived(began_by, 10, bench.now()).await.unwrap();
    assert_eq!(over.iter().map(|lease| lease.delivery).collect::<Vec<_>>(), [aged]);
    // The first one ends while the next is being ended: it is the first then, and stays where it is.
    bench.settle(claimed[0].lease, delivered()).await;
    assert!(started(&bench).await.is_empty());
    bench.settle(over[0], released(bench.now())).await;
    assert_eq!(ids(&started(&bench).await), [aged]);
}

#[tokio::test]
async fn what_is_for_later_waits_for_its_turn_and_its_time() {
    let bench = Bench::new().await;
    let later = |seconds| {
        let deliver_at = Some(bench.now().plus(secs(seconds)));
        Publication { deliver_at, ..publication("t", None, "x") }
    };
    let first = taken(&bench, ordered(&bench, later(10), "a", OnDead::Release, &["billing"])).await;
    let second = taken(&bench, ordered(&bench, later(30), "a", OnDead::Release, &["billing"])).await;
    let third = line_up(&bench, "a", OnDead::Release).await;
    assert!(started(&bench).await.is_empty(), "the first one's time is not there");
    bench.clock.advance(secs(10));
    let claimed = started(&bench).await;
    assert_eq!(ids(&claimed), [first]);
    bench.settle(claimed[0].lease, delivered()).await;
    assert_eq!(row(&bench, second).await.due_at, Some(START.plus(secs(30))));
    assert!(started(&bench).await.is_empty());
    bench.clock.advance(secs(20));
    let claimed = started(&bench).await;
    assert_eq!(ids(&claimed), [second]);
    bench.settle(claimed[0].lease, delivered()).await;
    assert_eq!(ids(&started(&bench).await), [third]);
}

/// The date was a day ahead: nothing that is held comes out earlier by that, and nothing waits for the wrong day.
#[tokio::test]
async fn a_clock_that_is_set_back_opens_no_line() {
    let bench = Bench::new().await;
    let first = line_up(&bench, "a", OnDead::Release).await;
    let deliver_at = Some(bench.now().plus(secs(60)));
    let later = Publication { deliver_at, ..publication("t", None, "x") };
    let second = taken(&bench, ordered(&bench, later, "a", OnDead::Release, &["billing"])).await;
    let third = line_up(&bench, "a", OnDead::Release).await;
    let claimed = started(&bench).await;
    bench.clock.set_by(-86_400_000);
    let now = bench.now();
    bench.ledger.reanchor(now.plus(secs(45)), &[(bench.endpoint("billing"), secs(30))], now).await.unwrap();
    assert!(started(&bench).await.is_empty());
    assert_eq!(row(&bench, third).await.held_by, Some(first));
    bench.settle(claimed[0].lease, delivered()).await;
    assert_eq!(row(&bench, second).await.due_at, Some(now.plus(secs(60))), "the wait that it asked for");
}

#[tokio::test]
async fn a_pause_and_a_restart_keep_the_order() {
    let bench = Bench::new().await;
    let (acme, billing) = (bench.tenant("acme"), name("billing"));
    let first = line_up(&bench, "a", OnDead::Release).await;
    let next = line_up(&bench, "a", OnDead::Release).await;
    let pause = hookgate::ledger::EndpointChange::Pause { until: None, why: "test".into() };
    bench.ledger.change_endpoint(acme, &billing, pause, bench.now()).await.unwrap();
    bench.ledger.cancel(acme, first, bench.now()).await.unwrap();
    let third = line_up(&bench, "a", OnDead::Release).await;
    let bench = bench.restart().await;
    let resume = hookgate::ledger::EndpointChange::Resume;
    bench.ledger.change_endpoint(acme, &billing, resume, bench.now()).await.unwrap();
    let claimed = bench.claim("billing", 1).await;
    assert_eq!(ids(&claimed), [next]);
    drop(claimed);
    // The process ends in the middle: the attempt is taken over, and keeps its turn.
    let bench = bench.restart().await;
    let taken_over = bench.ledger.rescue(Timestamp::MAX, 10, bench.now()).await.unwrap();
    assert_eq!(taken_over.len(), 1);
    bench.settle_as(taken_over[0], record("interrupted", None), retry(bench.now())).await;
    let claimed = started(&bench).await;
    assert_eq!(ids(&claimed), [next]);
    bench.settle(claimed[0].lease, delivered()).await;
    assert_eq!(ids(&started(&bench).await), [third]);
}

/// No slot makes one overtake: it comes back, and the delivery waits.
#[tokio::test]
async fn a_slot_is_not_taken() {
    let mut bench = Bench::new().await;
    for _ in 0..2 {
        bench
            .ledger
            .accept(ordered(&bench, publication("t", None, "x"), "a", OnDead::Release, &["+billing"]))
            .await
            .unwrap();
    }
    assert!(bench.births.try_recv().is_err());
    assert_eq!(bench.slots.in_flight(), 0);
    assert_eq!(started(&bench).await.len(), 1);
}

// Any verbs in any order.

#[derive(Clone, Debug)]
enum Step {
    Accept { key: Option<u8>, later: bool },
    Claim { slots: usize },
    Settle { which: usize, how: u8 },
    Rescue,
    Redrive { which: usize },
    Cancel { which: usize },
    Resolve { which: usize },
    Advance { seconds: u64 },
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (prop::option::weighted(0.85, 0u8..3), prop::bool::weighted(0.15))
            .prop_map(|(key, later)| Step::Accept { key, later }),
        5 => (1usize..6).prop_map(|slots| Step::Claim { slots }),
        7 => (any::<usize>(), 0u8..8).prop_map(|(which, how)| Step::Settle { which, how }),
        1 => Just(Step::Rescue),
        2 => any::<usize>().prop_map(|which| Step::Redrive { which }),
        2 => any::<usize>().prop_map(|which| Step::Cancel { which }),
        1 => any::<usize>().prop_map(|which| Step::Resolve { which }),
        2 => (1u64..10).prop_map(|seconds| Step::Advance { seconds }),
        1 => Just(Step::Restart),
    ]
}

/// The last key is one that dead letters hold.
fn on_dead(key: u8) -> OnDead {
    if key == 2 { OnDead::Hold } else { OnDead::Release }
}

struct Shadow {
    key: Option<u8>,
    /// In the order of acceptance.
    place: usize,
    state: DeliveryState,
    due: Timestamp,
    in_line: bool,
}

struct Model {
    bench: Bench,
    rows: BTreeMap<DeliveryId, Shadow>,
    held: Vec<(Lease, Option<Claimed>)>,
    /// The last place that was started of each key, in its line.
    reached: BTreeMap<u8, usize>,
}

impl Model {
    fn first(&self, key: u8) -> Option<DeliveryId> {
        let line = self.rows.iter().filter(|(_, row)| row.key == Some(key) && row.in_line);
        line.min_by_key(|(_, row)| row.place).map(|(id, _)| *id)
    }

    fn holder(&self, id: DeliveryId) -> Option<DeliveryId> {
        let row = &self.rows[&id];
        let first = row.key.filter(|_| row.in_line).and_then(|key| self.first(key));
        first.filter(|first| *first != id)
    }

    fn pick(&self, which: usize) -> Option<DeliveryId> {
        let n = self.rows.len();
        (n > 0).then(|| *self.rows.keys().nth(which % n).unwrap())
    }

    /// Into a state from which it does not come back by itself.
    fn end(&mut self, id: DeliveryId, state: DeliveryState) {
        let now = self.bench.now();
        let row = self.rows.get_mut(&id).unwrap();
        row.state = state;
        let holds = state == DeliveryState::Dead && row.key.is_some_and(|key| on_dead(key) == OnDead::Hold);
        if holds || !row.in_line {
            return;
        }
        let (key, place) = (row.key, row.place);
        row.in_line = false;
        if let Some(next) = key.and_then(|key| self.first(key)) {
            let next = self.rows.get_mut(&next).unwrap();
            if next.place > place && next.state == DeliveryState::Pending {
                next.due = next.due.max(now);
            }
        }
    }

    async fn apply(mut self, step: Step) -> Model {
        let (now, acme) = (self.bench.now(), self.bench.tenant("acme"));
        match step {
            Step::Accept { key, later } => {
                let at = now.plus(secs(4));
                let event = Publication { deliver_at: later.then_some(at), ..publication("t", None, "x") };
                let accept = match key {
                    Some(key) => ordered(&self.bench, event, &format!("key-{key}"), on_dead(key), &["billing"]),
                    None => self.bench.acceptance(event, &["billing"]),
                };
                let id = taken(&self.bench, accept).await;
                let due = if later { at } else { now };
                let (place, in_line) = (self.rows.len(), key.is_some());
                self.rows.insert(id, Shadow { key, place, state: DeliveryState::Pending, due, in_line });
            }
            Step::Claim { slots } => {
                let due = |(id, row): &(&DeliveryId, &Shadow)| {
                    row.state == DeliveryState::Pending && row.due <= now && self.holder(**id).is_none()
                };
                let ready = self.rows.iter().filter(due).count();
                let claimed = self.bench.claim("billing", slots).await;
                assert_eq!(claimed.len(), slots.min(ready), "of {ready} that are due");
                for claimed in claimed {
                    let id = claimed.lease.delivery;
                    assert_eq!(self.holder(id), None, "another goes before it");
                    let row = self.rows.get_mut(&id).unwrap();
                    assert!(row.state == DeliveryState::Pending && row.due <= now);
                    row.state = DeliveryState::InFlight;
                    if let (Some(key), true) = (row.key, row.in_line) {
                        let reached = self.reached.entry(key).or_default();
                        assert!(*reached <= row.place, "it was overtaken");
                        *reached = row.place;
                    }
                    self.held.push((claimed.lease, Some(claimed)));
                }
            }
            Step::Settle { which, how } => {
                if self.held.is_empty() {
                    return self;
                }
                let (lease, _slot) = self.held.swap_remove(which % self.held.len());
                let again = now.plus(secs(3));
                let (disposition, state) = match how {
                    0..3 => (delivered(), DeliveryState::Delivered),
                    3 | 4 => (dead("http_400"), DeliveryState::Dead),
                    5 => (Disposition::Expired(Reason::EXPIRED), DeliveryState::Expired),
                    6 => (retry(again), DeliveryState::Pending),
                    _ => (released(again), DeliveryState::Pending),
                };
                if self.bench.settle(lease, disposition).await == Settled::Stored {
                    if state == DeliveryState::Pending {
                        let row = self.rows.get_mut(&lease.delivery).unwrap();
                        (row.state, row.due) = (state, again);
                    } else {
                        self.end(lease.delivery, state);
                    }
                }
            }
            Step::Rescue => {
                for (_, claimed) in &mut self.held {
                    *claimed = None;
                }
                let taken = self.bench.ledger.rescue(Timestamp::MAX, 1_000, now).await.unwrap();
                self.held.extend(taken.into_iter().map(|lease| (lease, None)));
            }
            Step::Redrive { which } => {
                let Some(id) = self.pick(which) else { return self };
                let was_dead = self.rows[&id].state == DeliveryState::Dead;
                let done = self.bench.ledger.redrive(redrive(&self.bench, id, None), now).await.unwrap();
                assert_eq!(matches!(done, Redriven::Done { .. }), was_dead);
                if was_dead {
                    let row = self.rows.get_mut(&id).unwrap();
                    (row.state, row.due) = (DeliveryState::Pending, now);
                }
            }
            Step::Cancel { which } => {
                let Some(id) = self.pick(which) else { return self };
                let pending = self.rows[&id].state == DeliveryState::Pending;
                let done = self.bench.ledger.cancel(acme, id, now).await.unwrap();
                assert_eq!(done == Cancelled::Done, pending);
                if pending {
                    self.end(id, DeliveryState::Cancelled);
                }
            }
            Step::Resolve { which } => {
                let Some(id) = self.pick(which) else { return self };
                let was_dead = self.rows[&id].state == DeliveryState::Dead;
                let done = self.bench.ledger.resolve(acme, id, ResolveAs::Sent, None, now).await.unwrap();
                assert_eq!(done == Resolved::Done, was_dead);
                if was_dead {
                    self.end(id, DeliveryState::Resolved);
                }
            }
            Step::Advance { seconds } => {
                self.bench.clock.advance(secs(seconds));
            }
            Step::Restart => {
                for (_, claimed) in &mut self.held {
                    *claimed = None;
                }
                self.bench = self.bench.restart().await;
            }
        }
        self
    }

    async fn check(&self) {
        let acme = self.bench.tenant("acme");
        let page = PageRequest { limit: 200, cursor: None };
        let listed = self.bench.ledger.deliveries(acme, &DeliveryFilter::default(), &page).await.unwrap().items;
        assert_eq!(listed.len(), self.rows.len());
        let mut under_way: BTreeMap<u8, u32> = BTreeMap::new();
        for row in &listed {
            let shadow = &self.rows[&row.id];
            assert_eq!(row.state, shadow.state);
            let pending = row.state == DeliveryState::Pending;
            let holder = self.holder(row.id).filter(|_| pending);
            assert_eq!(row.held_by, holder);
            assert_eq!(row.reason.as_deref() == Some("held_by_key"), holder.is_some());
            assert_eq!(row.due_at, (pending && holder.is_none()).then_some(shadow.due));
            if let (Some(key), true, None) = (shadow.key, shadow.in_line, holder)
                && !row.state.is_terminal()
            {
                *under_way.entry(key).or_default() += 1;
            }
            if pending && shadow.key.is_some() {
                assert_eq!(row.out_of_order, !shadow.in_line);
            }
        }
        assert!(under_way.values().all(|n| *n <= 1), "{under_way:?}");
        let waiting = listed.iter().filter(|row| row.state == DeliveryState::Pending);
        assert_eq!(self.bench.ledger.gauges().pending, waiting.clone().count() as u64);
        let first = waiting.filter_map(|row| row.due_at).min();
        assert_eq!(self.bench.ledger.backlog().await.unwrap().get(&self.bench.endpoint("billing")), first.as_ref());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn order_holds_whatever_happens(steps in prop::collection::vec(step(), 1..70)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (rows, held, reached) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
            let mut model = Model { bench: Bench::new().await, rows, held, reached };
            for step in steps {
                model = model.apply(step).await;
                model.check().await;
            }
        });
    }
}
