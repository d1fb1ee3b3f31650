//! What consumers fetch: leases without a slot, that end by their own time alone.

use crate::bench::{Bench, LEASE, dead, delivered, record, retry};
use crate::support::{name, publication};
use hookgate::clock::Timestamp;
use hookgate::delivery::{DeliveryState, EndpointStatus};
use hookgate::ledger::{
    Accepted, Consume, Consumed, Ended, EndpointChange, Extension, Held, Lapsed, Receipt, Redrive, Settled, Strayed,
};
use std::collections::BTreeSet;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3_600);
const DAY_MILLIS: i64 = 86_400_000;
/// The lease of the consumers in these tests.
const FOR: Duration = Duration::from_secs(30);

impl Bench {
    async fn consume_for(&self, endpoint: &str, max: usize, lease_for: Duration) -> Consumed {
        let (tenant, endpoint) = (self.tenant("acme"), self.endpoint(endpoint));
        let consume = Consume { tenant, endpoint, max, lease_for, bytes_max: 1 << 20 };
        self.ledger.consume(consume, self.now()).await.unwrap()
    }

    async fn consume(&self, endpoint: &str, max: usize) -> Consumed {
        self.consume_for(endpoint, max, FOR).await
    }

    /// One delivery to `endpoint`, held by a consumer.
    async fn hold(&self, endpoint: &str) -> Held {
        let (_, _) = self.accept("{}", &[endpoint]).await;
        let handed = self.consume(endpoint, 1).await.items.remove(0);
        Held { lease: handed.lease, accepted_at: handed.event.accepted_at }
    }

    async fn held(&self, endpoint: &str, receipt: Receipt) -> Result<Held, Lapsed> {
        let receipts = vec![receipt];
        self.ledger.held(self.tenant("acme"), self.endpoint(endpoint), receipts).await.unwrap().remove(0)
    }

    async fn extend(&self, endpoint: &str, receipt: Receipt, lease_for: Duration) -> bool {
        let extension = Extension { receipt, lease_for, until: self.now().plus(lease_for) };
        self.ledger.extend(self.tenant("acme"), self.endpoint(endpoint), vec![extension]).await.unwrap()[0]
    }

    async fn rescued(&self, expired_by: Timestamp) -> usize {
        self.ledger.rescue(expired_by, 100, self.now()).await.unwrap().len()
    }
}

#[tokio::test]
async fn the_oldest_due_is_given_first_and_to_one_alone() {
    let bench = Bench::new().await;
    let mut sent = Vec::new();
    for body in ["one", "two", "three"] {
        sent.push(bench.accept(body, &["billing"]).await.1[0]);
        bench.clock.advance(Duration::from_millis(1));
    }
    bench.accept("elsewhere", &["crm"]).await;
    let first = bench.consume("billing", 2).await;
    let given: Vec<_> = first.items.iter().map(|h| (h.lease.delivery, &h.event.body[..], h.sequence)).collect();
    assert_eq!(given, [(sent[0], &b"one"[..], 1), (sent[1], b"two", 2)]);
    let lease = first.items[0].lease;
    assert_eq!((lease.number, lease.until, lease.started_at), (1, bench.now().plus(FOR), bench.now()));
    assert_eq!(&*first.items[0].idempotency_key, first.items[0].event.id.to_string());
    assert_eq!(first.status, EndpointStatus::Enabled);
    assert!(first.next_due.is_some_and(|due| due <= bench.now()), "the third waits");
    let detail = bench.detail(sent[0]).await;
    assert_eq!((detail.delivery.state, detail.attempts.len()), (DeliveryState::InFlight, 1));
    assert_eq!(detail.attempts[0].outcome, None, "its start is written down");

    let second = bench.consume("billing", 100).await;
    assert_eq!(second.items.iter().map(|h| h.lease.delivery).collect::<Vec<_>>(), [sent[2]]);
    assert_eq!(second.next_due, None);
    assert!(bench.consume("billing", 100).await.items.is_empty());
    assert_eq!((bench.ledger.gauges().pending, bench.ledger.gauges().in_flight), (1, 3));
    assert_eq!(bench.slots.in_flight(), 0, "it takes nobody's slot");
}

#[tokio::test]
async fn consumers_that_race_share_what_there_is() {
    let bench = Bench::new().await;
    let all = (0..100).map(|n| bench.ledger.accept(bench.acceptance(publication("t", None, n.to_string()), &["crm"])));
    for accepted in futures_util::future::join_all(all.collect::<Vec<_>>()).await {
        assert!(matches!(accepted, Ok(Accepted::New(_))));
    }
    let consumers = futures_util::future::join_all((0..20).map(|_| bench.consume("crm", 7))).await;
    let given: Vec<_> = consumers.iter().flat_map(|c| c.items.iter().map(|h| h.lease.delivery)).collect();
    assert_eq!(given.len(), 100);
    assert_eq!(given.into_iter().collect::<BTreeSet<_>>().len(), 100, "none was given twice");
}

#[tokio::test]
async fn a_closed_endpoint_gives_nothing_and_says_why() {
    let bench = Bench::new().await;
    bench.accept("{}", &["billing"]).await;
    let change = async |change| {
        bench.ledger.change_endpoint(bench.tenant("acme"), &name("billing"), change, bench.now()).await.unwrap()
    };
    let until = bench.now().plus(HOUR);
    change(EndpointChange::Pause { until: Some(until), why: "theirs".into() }).await;
    let paused = bench.consume("billing", 1).await;
    assert!(paused.items.is_empty() && paused.next_due.is_some());
    assert_eq!(paused.status, EndpointStatus::Paused { until: Some(until), why: "theirs".into() });
    bench.clock.advance(HOUR);
    let after = bench.consume("billing", 1).await;
    assert_eq!((after.items.len(), after.status), (1, EndpointStatus::Enabled), "a pause that has run out is over");
    change(EndpointChange::Disable { why: "operator".into() }).await;
    assert!(matches!(bench.consume("billing", 1).await.status, EndpointStatus::Disabled { .. }));
    // What a consumer holds is its own to finish.
    assert_eq!(bench.settle(after.items[0].lease, delivered()).await, Settled::Stored);
}

#[tokio::test]
async fn an_endpoint_of_another_tenant_gives_nothing() {
    let bench = Bench::new().await;
    let held = bench.hold("billing").await;
    let receipt = Receipt::of(&held.lease);
    let (theirs, ours) = (bench.tenant("globex"), bench.endpoint("billing"));
    let consume = Consume { tenant: theirs, endpoint: ours, max: 1, lease_for: FOR, bytes_max: 1 };
    assert!(bench.ledger.consume(consume, bench.now()).await.is_err());
    assert_eq!(bench.ledger.held(theirs, ours, vec![receipt]).await.unwrap(), [Err(Lapsed::Unknown)]);
    let extension = Extension { receipt, lease_for: HOUR, until: bench.now().plus(HOUR) };
    assert_eq!(bench.ledger.extend(theirs, ours, vec![extension]).await.unwrap(), [false]);
    assert_eq!(bench.held("crm", receipt).await, Err(Lapsed::Unknown));
    assert!(!bench.extend("crm", receipt, HOUR).await);
    let guess = Receipt { token: receipt.token + 1, ..receipt };
    assert!(matches!(bench.held("billing", guess).await, Err(Lapsed::Over { ended: None, .. })));
    assert_eq!(bench.held("billing", receipt).await, Ok(held));
}

#[tokio::test]
async fn a_lease_outlives_the_process_and_ends_by_its_own_time() {
    let mut bench = Bench::new().await;
    let ours = bench.start("crm").await.lease;
    let held = bench.hold("billing").await;
    let receipt = Receipt::of(&held.lease);
    let bench = bench.restart().await;
    let taken = bench.ledger.rescue(Timestamp::MAX, 100, bench.now()).await.unwrap();
    assert_eq!(taken.iter().map(|lease| lease.delivery).collect::<Vec<_>>(), [ours.delivery], "the process's own");
    assert_eq!(bench.held("billing", receipt).await, Ok(held));
    assert_eq!(bench.settle(held.lease, delivered()).await, Settled::Stored);

    let held = bench.hold("billing").await;
    let bench = bench.restart().await;
    bench.clock.advance(FOR - Duration::from_millis(1));
    assert_eq!(bench.rescued(Timestamp::MAX).await, 1, "what was taken over and not settled; not what is held");
    bench.clock.advance(Duration::from_millis(1));
    let taken = bench.ledger.rescue(bench.now(), 100, bench.now()).await.unwrap();
    assert_eq!(taken.iter().map(|lease| lease.delivery).collect::<Vec<_>>(), [held.lease.delivery]);
    assert_eq!(bench.settle(held.lease, delivered()).await, Settled::LeaseLost);
    let lapsed = bench.held("billing", Receipt::of(&held.lease)).await;
    let (delivery, state) = (held.lease.delivery, DeliveryState::InFlight);
    assert_eq!(lapsed, Err(Lapsed::Over { delivery, state, ended: None }));
    assert!(!bench.extend("billing", Receipt::of(&held.lease), HOUR).await, "who comes late changes nothing");
    // From the takeover on it is the gateway's: a start takes it over again.
    let bench = bench.restart().await;
    assert_eq!(bench.rescued(Timestamp::MAX).await, 2);
}

#[tokio::test]
async fn a_push_attempt_is_no_consumers() {
    let bench = Bench::new().await;
    bench.accept("{}", &["billing"]).await;
    let pushed = bench.claim("billing", 1).await.remove(0);
    let receipt = Receipt::of(&pushed.lease);
    assert!(matches!(bench.held("billing", receipt).await, Err(Lapsed::Over { ended: None, .. })));
    assert!(!bench.extend("billing", receipt, HOUR).await);
    // And the other way round: once a consumer has had it, the gateway's own attempt is the gateway's.
    let held = bench.hold("crm").await;
    bench.settle_as(held.lease, record("nacked", None), retry(bench.now())).await;
    let own = bench.claim("crm", 1).await.remove(0).lease;
    assert!(!bench.extend("crm", Receipt::of(&own), HOUR).await);
    assert_eq!(bench.rescued(Timestamp::MAX).await, 2);
}

#[tokio::test]
async fn more_time_is_given_while_the_lease_is_held() {
    let bench = Bench::new().await;
    let held = bench.hold("billing").await;
    let receipt = Receipt::of(&held.lease);
    bench.clock.advance(FOR / 2);
    assert!(bench.extend("billing", receipt, HOUR).await);
    let now_held = bench.held("billing", receipt).await.unwrap();
    assert_eq!(now_held.lease.until, bench.now().plus(HOUR));
    assert_eq!((now_held.lease.token, now_held.lease.number), (held.lease.token, 1));
    bench.clock.advance(HOUR - Duration::from_millis(1));
    assert_eq!(bench.rescued(bench.now()).await, 0);
    assert!(bench.extend("billing", receipt, Duration::from_secs(1)).await, "and less");
    bench.clock.advance(Duration::from_secs(1));
    assert_eq!(bench.rescued(bench.now()).await, 1);
}

#[tokio::test]
async fn what_was_said_of_it_is_remembered_by_its_receipt() {
    let bench = Bench::new().await;
    let held = bench.hold("billing").await;
    let due = bench.now().plus(HOUR);
    let first = Receipt::of(&held.lease);
    bench.settle_as(held.lease, record("nacked", None), retry(due)).await;
    let ended = |outcome: &str, disposition: &str| {
        Some(Ended { outcome: outcome.to_owned(), disposition: disposition.to_owned() })
    };
    let delivery = held.lease.delivery;
    let nacked = |state| Err(Lapsed::Over { delivery, state, ended: ended("nacked", "retry_at") });
    assert_eq!(bench.held("billing", first).await, nacked(DeliveryState::Pending));
    assert!(bench.consume("billing", 1).await.items.is_empty(), "it waits as it was told");

    bench.clock.advance(HOUR);
    let again = bench.consume("billing", 1).await.items.remove(0).lease;
    assert_eq!((again.delivery, again.number, again.history.counted), (delivery, 2, 2));
    assert_eq!(bench.held("billing", first).await, nacked(DeliveryState::InFlight));
    bench.settle_as(again, record("nacked", None), dead("no_such_order")).await;
    let now = bench.now();
    let redrive = Redrive { tenant: bench.tenant("acme"), delivery, note: None, payload: None, request: None };
    bench.ledger.redrive(redrive, now).await.unwrap();
    let third = bench.consume("billing", 1).await.items.remove(0).lease;
    assert_eq!((third.generation, third.number, third.history.counted), (2, 3, 1));
    bench.settle_as(third, record("acked", None), delivered()).await;
    assert_eq!(bench.detail(delivery).await.delivery.state, DeliveryState::Delivered);
    let over = Err(Lapsed::Over { delivery, state: DeliveryState::Delivered, ended: ended("acked", "delivered") });
    assert_eq!(bench.held("billing", Receipt::of(&third)).await, over);
}

#[tokio::test]
async fn one_answer_carries_no_more_than_it_may() {
    let bench = Bench::new().await;
    for _ in 0..3 {
        bench.accept(&"x".repeat(10_000), &["billing"]).await;
    }
    let take = async |bytes_max| {
        let (tenant, endpoint) = (bench.tenant("acme"), bench.endpoint("billing"));
        let consume = Consume { tenant, endpoint, max: 10, lease_for: FOR, bytes_max };
        bench.ledger.consume(consume, bench.now()).await.unwrap().items.len()
    };
    assert_eq!(take(100).await, 1, "the first is given whatever its size");
    assert_eq!(take(25_000).await, 2);
}

#[tokio::test]
async fn a_clock_that_was_set_moves_no_lease_away_from_its_holder() {
    let mut bench = Bench::new().await;
    let own = bench.start("crm").await.lease;
    let (short, long) = (bench.hold("billing").await, bench.hold("audit").await);
    let receipts = [("billing", Receipt::of(&short.lease)), ("audit", Receipt::of(&long.lease))];
    assert!(bench.extend("audit", receipts[1].1, 2 * HOUR).await);
    let ends = async |bench: &Bench| {
        let mut all = Vec::new();
        for (endpoint, receipt) in receipts {
            all.push(bench.held(endpoint, receipt).await.unwrap().lease.until);
        }
        all
    };
    let before = ends(&bench).await;
    bench.clock.advance(FOR / 2);
    bench.ledger.reanchor(bench.now().plus(LEASE), &[], bench.now()).await.unwrap();
    assert_eq!(bench.ledger.renew_consumers(Strayed::TooLong, bench.now()).await.unwrap(), 0);
    assert_eq!(ends(&bench).await, before, "at a start they run to their own end");

    for step in [DAY_MILLIS, -2 * DAY_MILLIS] {
        bench.clock.set_by(step);
        assert_eq!(bench.ledger.renew_consumers(Strayed::All, bench.now()).await.unwrap(), 2);
        assert_eq!(ends(&bench).await, [bench.now().plus(FOR), bench.now().plus(2 * HOUR)]);
    }
    bench.clock.set_by(-DAY_MILLIS);
    assert_eq!(bench.ledger.renew_consumers(Strayed::TooLong, bench.now()).await.unwrap(), 2);
    assert_eq!(ends(&bench).await, [bench.now().plus(FOR), bench.now().plus(2 * HOUR)]);
    assert_eq!(bench.settle(own, delivered()).await, Settled::Stored);
}
