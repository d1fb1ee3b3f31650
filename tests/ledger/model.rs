//! Verbs in any order against a model of what they mean: counts, states and attempts agree at every step, and over
//! restarts.

use crate::bench::{Bench, dead, delivered, record, released, retry};
use crate::support::publication;
use hookgate::clock::Timestamp;
use hookgate::delivery::{DeliveryId, DeliveryState, Disposition};
use hookgate::ledger::{
    Accepted, Cancelled, Claimed, DeliveryFilter, Lease, PageRequest, Redrive, Redriven, ResolveAs, Resolved, Settled,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

const ENDPOINTS: [&str; 2] = ["billing", "crm"];

#[derive(Clone, Debug)]
enum Step {
    Accept { key: Option<u8>, slot: bool, later: bool },
    Claim { endpoint: usize, slots: usize },
    Settle { which: usize, how: u8 },
    Rescue { all: bool },
    Redrive { which: usize },
    Cancel { which: usize },
    Resolve { which: usize },
    Advance { seconds: u64 },
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (prop::option::of(0u8..6), any::<bool>(), prop::bool::weighted(0.2))
            .prop_map(|(key, slot, later)| Step::Accept { key, slot, later }),
        4 => (0usize..2, 1usize..4).prop_map(|(endpoint, slots)| Step::Claim { endpoint, slots }),
        6 => (any::<usize>(), 0u8..8).prop_map(|(which, how)| Step::Settle { which, how }),
        1 => any::<bool>().prop_map(|all| Step::Rescue { all }),
        2 => any::<usize>().prop_map(|which| Step::Redrive { which }),
        1 => any::<usize>().prop_map(|which| Step::Cancel { which }),
        1 => any::<usize>().prop_map(|which| Step::Resolve { which }),
        2 => (1u64..40).prop_map(|seconds| Step::Advance { seconds }),
        1 => Just(Step::Restart),
    ]
}

#[derive(Clone, Debug, PartialEq)]
struct Shadow {
    endpoint: usize,
    state: DeliveryState,
    due: Timestamp,
    generation: u32,
    attempts: u32,
    counted: u32,
    interrupted: u32,
}

struct Model {
    bench: Bench,
    rows: BTreeMap<DeliveryId, Shadow>,
    /// The holder of each lease, or at least its word for it.
    held: Vec<(Lease, Option<Claimed>)>,
    keys: BTreeMap<u8, hookgate::delivery::EventId>,
}

impl Model {
    fn row(&mut self, id: DeliveryId) -> &mut Shadow {
        self.rows.get_mut(&id).expect("a delivery of ours")
    }

    fn pick(&self, which: usize) -> Option<DeliveryId> {
        let n = self.rows.len();
        (n > 0).then(|| *self.rows.keys().nth(which % n).unwrap())
    }

    fn take(&mut self, claimed: Claimed) {
        let id = claimed.lease.delivery;
        let (number, generation, history) = (claimed.lease.number, claimed.lease.generation, claimed.lease.history);
        let until = claimed.lease.until;
        let row = self.row(id);
        row.state = DeliveryState::InFlight;
        row.attempts += 1;
        row.due = until;
        assert_eq!((number, generation), (row.attempts, row.generation));
        assert_eq!((history.counted, history.interrupted_before), (row.counted + 1, row.interrupted));
        self.held.push((claimed.lease, Some(claimed)));
    }

    async fn apply(mut self, step: Step) -> Model {
        let now = self.bench.now();
        let acme = self.bench.tenant("acme");
        match step {
            Step::Accept { key, slot, later } => {
                let text = key.map(|k| format!("key-{k}"));
                let mut publication = publication("t", text.as_deref(), "x");
                let at = now.plus(Duration::from_secs(20));
                publication.deliver_at = later.then_some(at);
                let wanted = if slot { ["+billing", "crm"] } else { ["billing", "crm"] };
                let accepted = self.bench.publish(publication, &wanted).await;
                match (accepted, key.and_then(|k| self.keys.get(&k).copied())) {
                    (Accepted::Duplicate(seen), Some(first)) => assert_eq!(seen, first),
                    (Accepted::New(id), None) => {
                        self.keys.extend(key.map(|k| (k, id)));
                        let row = self.bench.ledger.event(acme, id).await.unwrap().unwrap();
                        for (endpoint, delivery) in row.deliveries.unwrap().into_iter().enumerate() {
                            let shadow = Shadow {
                                endpoint,
                                state: DeliveryState::Pending,
                                due: if later { at } else { now },
                                generation: 1,
                                attempts: 0,
                                counted: 0,
                                interrupted: 0,
                            };
                            self.rows.insert(delivery, shadow);
                        }
                        let born = self.bench.births.try_recv().ok();
                        assert_eq!(born.is_some(), slot && !later);
                        if let Some(born) = born {
                            self.take(born);
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
            Step::Claim { endpoint, slots } => {
                let mut due: Vec<(Timestamp, DeliveryId)> = self
                    .rows
                    .iter()
                    .filter(|(_, r)| r.endpoint == endpoint && r.state == DeliveryState::Pending && r.due <= now)
                    .map(|(id, r)| (r.due, *id))
                    .collect();
                due.sort();
                due.truncate(slots);
                let claimed = self.bench.claim(ENDPOINTS[endpoint], slots).await;
                let got: Vec<_> = claimed.iter().map(|c| c.lease.delivery).collect();
                assert_eq!(got, due.into_iter().map(|(_, id)| id).collect::<Vec<_>>());
                for one in claimed {
                    self.take(one);
                }
            }
            Step::Settle { which, how } => {
                if self.held.is_empty() {
                    return self;
                }
                let (lease, held) = self.held.swap_remove(which % self.held.len());
                drop(held);
                let due = now.plus(Duration::from_secs(15));
                let (outcome, disposition) = match how {
                    0 => ("interrupted", retry(due)),
                    1 => ("answered", retry(due)),
                    2 => ("released", released(now)),
                    3 | 4 => ("answered", dead("http_400")),
                    5 => ("faulted", Disposition::Expired(hookgate::delivery::Reason::EXPIRED)),
                    _ => ("answered", delivered()),
                };
                let stale = self.held.iter().any(|(l, _)| l.delivery == lease.delivery && l.token > lease.token)
                    || self.rows[&lease.delivery].state != DeliveryState::InFlight;
                let settled = self.bench.settle_as(lease, record(outcome, None), disposition.clone()).await;
                assert_eq!(settled, if stale { Settled::LeaseLost } else { Settled::Stored });
                if !stale {
                    let row = self.row(lease.delivery);
                    if !matches!(disposition, Disposition::Released { .. }) {
                        row.counted += 1;
                        row.interrupted = if outcome == "interrupted" { row.interrupted + 1 } else { 0 };
                    }
                    row.due = disposition.next_at().unwrap_or(row.due);
                    row.state = match disposition {
                        Disposition::Delivered { .. } => DeliveryState::Delivered,
                        Disposition::Dead(_) => DeliveryState::Dead,
                        Disposition::Expired(_) => DeliveryState::Expired,
                        _ => DeliveryState::Pending,
                    };
                }
            }
            Step::Rescue { all } => {
                let by = if all { Timestamp::MAX } else { now };
                let expected: Vec<DeliveryId> = self
                    .rows
                    .iter()
                    .filter(|(_, r)| r.state == DeliveryState::InFlight && (all || r.due <= now))
                    .map(|(id, _)| *id)
                    .collect();
                let taken = self.bench.ledger.rescue(by, 1_000, now).await.unwrap();
                let mut got: Vec<_> = taken.iter().map(|t| t.delivery).collect();
                got.sort();
                assert_eq!(got, expected);
                for one in taken {
                    self.row(one.delivery).due = one.until;
                    self.held.push((one, None));
                }
            }
            Step::Redrive { which } => {
                let Some(id) = self.pick(which) else { return self };
                let before = self.rows[&id].clone();
                let asked = Redrive { tenant: acme, delivery: id, note: None, payload: None, request: None };
                let done = self.bench.ledger.redrive(asked, now).await.unwrap();
                // Resolutions here are as not sent.
                if matches!(before.state, DeliveryState::Dead | DeliveryState::Resolved) {
                    let generation = before.generation + 1;
                    assert_eq!(done, Redriven::Done { generation, revision: 1 });
                    let state = DeliveryState::Pending;
                    *self.row(id) = Shadow { state, due: now, generation, counted: 0, interrupted: 0, ..before };
                } else {
                    assert_eq!(done, Redriven::NotDead(before.state));
                }
            }
            Step::Cancel { which } => {
                let Some(id) = self.pick(which) else { return self };
                let before = self.rows[&id].state;
                let done = self.bench.ledger.cancel(acme, id, now).await.unwrap();
                if before == DeliveryState::Pending {
                    assert_eq!(done, Cancelled::Done);
                    self.row(id).state = DeliveryState::Cancelled;
                } else {
                    assert_eq!(done, Cancelled::NotPending(before));
                }
            }
            Step::Resolve { which } => {
                let Some(id) = self.pick(which) else { return self };
                let before = self.rows[&id].state;
                let done = self.bench.ledger.resolve(acme, id, ResolveAs::NotSent, None, now).await.unwrap();
                if before == DeliveryState::Dead {
                    assert_eq!(done, Resolved::Done);
                    self.row(id).state = DeliveryState::Resolved;
                } else {
                    assert_eq!(done, Resolved::NotDead(before));
                }
            }
            Step::Advance { seconds } => {
                self.bench.clock.advance(Duration::from_secs(seconds));
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
        let count = |state| self.rows.values().filter(|r| r.state == state).count() as u64;
        let gauges = self.bench.ledger.gauges();
        assert_eq!(
            (gauges.pending, gauges.in_flight, gauges.dead),
            (count(DeliveryState::Pending), count(DeliveryState::InFlight), count(DeliveryState::Dead))
        );
        let filter = DeliveryFilter::default();
        let page = PageRequest { limit: 200, cursor: None };
        let listed = self.bench.ledger.deliveries(acme, &filter, &page).await.unwrap().items;
        assert_eq!(listed.len(), self.rows.len());
        for row in &listed {
            let shadow = &self.rows[&row.id];
            assert_eq!(
                (row.state, row.generation, row.attempt_count),
                (shadow.state, shadow.generation, shadow.attempts)
            );
            assert_eq!(row.due_at, (shadow.state == DeliveryState::Pending).then_some(shadow.due));
            assert!(row.reason.is_some() || row.state != DeliveryState::Dead);
        }
        let oldest = listed.iter().filter(|r| r.state == DeliveryState::Dead).filter_map(|r| r.finished_at).min();
        assert_eq!(gauges.oldest_dead_at, oldest);
        if let Some(row) = listed.first() {
            let attempts = self.bench.detail(row.id).await.attempts;
            let numbers: Vec<u32> = attempts.iter().map(|a| a.number).collect();
            assert_eq!(numbers, (1..=self.rows[&row.id].attempts).collect::<Vec<_>>(), "gapless");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_ledger_does_what_its_verbs_mean(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut model =
                Model { bench: Bench::new().await, rows: BTreeMap::new(), held: Vec::new(), keys: BTreeMap::new() };
            for step in steps {
                model = model.apply(step).await;
                model.check().await;
            }
        });
    }
}
