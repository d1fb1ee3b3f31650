//! The dispatcher over the real ledger, with a receiver that does as it is told and a clock that is set by hand.

#![allow(unreachable_pub, reason = "one binary of several files")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "ledger/bench.rs"]
#[allow(dead_code, reason = "made for the ledger's own suite")]
mod bench;
#[path = "dispatch/pull.rs"]
mod pull;
mod support;
#[path = "support/waiting.rs"]
mod waiting;

use bench::Bench;
use bytes::Bytes;
use hookgate::delivery::{Backoff, DeliveryState, Jitter, OnDead, Order, RetryPolicy, Terms};
use hookgate::dispatch::{Advice, Crew, Dispatcher, Settings, Stop, Tally, Target, Targets, Way};
use hookgate::egress::{Answer, Exchange, Outbound, Timings, Transport};
use hookgate::ledger::{Accepted, EndpointCaps, EndpointChange, OrderingKey};
use hookgate::secret::Secret;
use hookgate::verify::standard::Signer;
use http::{HeaderMap, HeaderName, StatusCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;
use support::{SeededEntropy, name};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use waiting::until;

const DAY_MILLIS: i64 = 86_400_000;
const BACKOFF: Duration = Duration::from_secs(30);

/// Answers each request, once it may.
struct Receiver {
    status: AtomicU16,
    may_answer: Semaphore,
    came: AtomicUsize,
    held: AtomicUsize,
    held_most: AtomicUsize,
}

impl Receiver {
    fn came(&self) -> usize {
        self.came.load(Ordering::SeqCst)
    }

    fn answer(&self, status: u16, times: usize) {
        self.status.store(status, Ordering::SeqCst);
        self.may_answer.add_permits(times);
    }
}

#[async_trait::async_trait]
impl Transport for Receiver {
    async fn send(&self, _: Outbound) -> Exchange {
        self.came.fetch_add(1, Ordering::SeqCst);
        let held = self.held.fetch_add(1, Ordering::SeqCst) + 1;
        self.held_most.fetch_max(held, Ordering::SeqCst);
        self.may_answer.acquire().await.unwrap().forget();
        self.held.fetch_sub(1, Ordering::SeqCst);
        Exchange::Answered(Answer {
            status: StatusCode::from_u16(self.status.load(Ordering::SeqCst)).unwrap(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            body_truncated: false,
            elapsed: Duration::ZERO,
            timings: Timings::default(),
        })
    }
}

/// A dispatcher at work for endpoint `billing`, which takes one delivery at a time.
struct Works {
    bench: Bench,
    receiver: Arc<Receiver>,
    stop: Stop,
    task: JoinHandle<()>,
}

impl Works {
    async fn new(max_age: Option<Duration>) -> Works {
        let backoff = Backoff::Ladder(vec![BACKOFF]);
        let retry = RetryPolicy { max_attempts: 3, backoff, jitter: Jitter::None, max_age };
        let target = Target {
            tenant: name("acme"),
            name: name("billing"),
            url: "https://billing.example/".parse().unwrap(),
            timeout: Duration::from_secs(15),
            terms: Terms { retry, ..Terms::default() },
            order: Order::ByKey(OnDead::Hold),
            signer: Signer::new(&[Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]).unwrap(),
            idempotency_header: HeaderName::from_static("idempotency-key"),
            advice: Advice::Builtin,
        };
        Works::with(Way::Push(Arc::new(target))).await
    }

    /// `billing` is pulled from.
    async fn pulled(terms: Arc<Terms>) -> Works {
        Works::with(Way::Pull(terms)).await
    }

    async fn with(way: Way) -> Works {
        let mut bench = Bench::new().await;
        let key = bench.endpoint("billing");
        let caps = EndpointCaps {
            endpoint: key,
            tenant: bench.tenant("acme"),
            concurrency: 1,
            lease_for: bench::LEASE,
            rate: None,
        };
        // Who is pulled from has no slots.
        let caps = if matches!(way, Way::Push(_)) { vec![caps] } else { Vec::new() };
        bench.slots.configure(caps, 10, 10);
        let targets = Targets::default();
        targets.replace([(key, way)].into(), [].into());
        let receiver = Arc::new(Receiver {
            status: AtomicU16::new(200),
            may_answer: Semaphore::new(0),
            came: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            held_most: AtomicUsize::new(0),
        });
        let crew = Crew {
            settings: Settings { poll_every: Duration::from_millis(5), ..Settings::default() },
            ledger: Arc::clone(&bench.ledger),
            slots: Arc::clone(&bench.slots),
            wakes: Arc::clone(&bench.wakes),
            targets: Arc::new(targets),
            transport: Arc::<Receiver>::clone(&receiver),
            clock: Arc::clone(&bench.watch),
            entropy: Arc::new(SeededEntropy::new(7)),
            tally: Tally::default(),
        };
        let (_, none) = tokio::sync::mpsc::unbounded_channel();
        let births = std::mem::replace(&mut bench.births, none);
        let stop = Stop::default();
        let task = tokio::spawn(Dispatcher::new(crew, stop.clone()).run(births));
        Works { bench, receiver, stop, task }
    }

    async fn came(&self, count: usize) {
        until("requests", async || (self.receiver.came() >= count).then_some(())).await;
    }

    /// The dispatcher has looked at the clock so often that it has polled since.
    async fn polls(&self) {
        let enough = self.bench.clock.looks() + 40;
        until("polls", async || (self.bench.clock.looks() >= enough).then_some(())).await;
    }

    async fn state(&self, id: hookgate::delivery::DeliveryId, state: DeliveryState) {
        until(state.as_str(), async || (self.bench.detail(id).await.delivery.state == state).then_some(())).await;
    }

    async fn end(self) {
        self.stop.drain.cancel();
        self.task.await.unwrap();
    }
}

#[tokio::test]
async fn a_clock_set_a_day_ahead_breaks_no_cap_and_takes_over_nothing() {
    let works = Works::new(None).await;
    let (_, first) = works.bench.accept("1", &["billing"]).await;
    works.came(1).await;
    let (_, second) = works.bench.accept("2", &["billing"]).await;
    works.bench.clock.set_by(DAY_MILLIS);
    works.polls().await;
    assert_eq!(works.receiver.came(), 1, "the first is still under way, the second waits for it");
    works.receiver.answer(200, 2);
    works.state(first[0], DeliveryState::Delivered).await;
    works.state(second[0], DeliveryState::Delivered).await;
    let attempts = works.bench.detail(first[0]).await.attempts;
    assert_eq!(attempts.iter().map(|a| a.outcome.as_deref()).collect::<Vec<_>>(), [Some("answered")]);
    assert_eq!((works.receiver.came(), works.receiver.held_most.load(Ordering::SeqCst)), (2, 1));
    assert_eq!(works.bench.watch.look().jumps, 1);
    works.end().await;
}

#[tokio::test]
async fn a_clock_set_a_day_back_keeps_no_retry_waiting_for_it() {
    let works = Works::new(None).await;
    let (_, ids) = works.bench.accept("1", &["billing"]).await;
    works.receiver.answer(503, 1);
    works.state(ids[0], DeliveryState::Pending).await;
    works.came(1).await;
    until("the retry", async || works.bench.detail(ids[0]).await.attempts[0].outcome.clone()).await;
    works.bench.clock.set_by(-DAY_MILLIS);
    let latest = works.bench.clock.advance(Duration::ZERO).plus(BACKOFF);
    until("the due time to follow", async || {
        (works.bench.detail(ids[0]).await.delivery.due_at.unwrap() <= latest).then_some(())
    })
    .await;
    assert_eq!(works.receiver.came(), 1);
    works.receiver.answer(200, 1);
    works.bench.clock.advance(BACKOFF);
    works.state(ids[0], DeliveryState::Delivered).await;
    works.end().await;
}

#[tokio::test]
async fn what_waits_behind_a_closed_endpoint_ends_at_its_age_limit() {
    let works = Works::new(Some(Duration::from_secs(60))).await;
    let bench = &works.bench;
    let change = async |change| {
        bench.ledger.change_endpoint(bench.tenant("acme"), &name("billing"), change, bench.now()).await.unwrap()
    };
    change(EndpointChange::Pause { until: None, why: "operator".into() }).await;
    let (_, ids) = bench.accept("1", &["billing"]).await;
    bench.clock.advance(Duration::from_millis(59_999));
    works.polls().await;
    assert_eq!(bench.detail(ids[0]).await.delivery.state, DeliveryState::Pending);
    change(EndpointChange::Disable { why: "operator".into() }).await;
    bench.clock.advance(Duration::from_millis(1));
    works.state(ids[0], DeliveryState::Expired).await;
    let detail = bench.detail(ids[0]).await;
    assert_eq!(detail.delivery.reason.as_deref(), Some("max_age"));
    assert_eq!(detail.attempts[0].outcome.as_deref(), Some("released"));
    assert_eq!(works.receiver.came(), 0);
    works.end().await;
}

/// At an open endpoint too: what a dead letter holds does not come up by itself.
#[tokio::test]
async fn what_is_held_by_its_key_ends_at_its_age_limit() {
    let works = Works::new(Some(Duration::from_secs(60))).await;
    let bench = &works.bench;
    let line_up = async || {
        let mut accept = bench.acceptance(support::publication("t", None, "x"), &["billing"]);
        accept.deliveries[0].order = Some(OrderingKey::of("k", OnDead::Hold));
        let Ok(Accepted::New(event)) = bench.ledger.accept(accept).await else { panic!("it is new") };
        bench.ledger.event(bench.tenant("acme"), event).await.unwrap().unwrap().deliveries.unwrap()[0]
    };
    let (first, held) = (line_up().await, line_up().await);
    works.receiver.answer(400, 1);
    works.state(first, DeliveryState::Dead).await;
    bench.clock.advance(Duration::from_secs(59));
    works.polls().await;
    assert_eq!(bench.detail(held).await.delivery.held_by, Some(first));
    bench.clock.advance(Duration::from_secs(1));
    works.state(held, DeliveryState::Expired).await;
    assert_eq!(bench.detail(held).await.delivery.reason.as_deref(), Some("max_age"));
    assert_eq!(works.receiver.came(), 1);
    works.end().await;
}
