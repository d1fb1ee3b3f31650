//! Consumers at the desk, over the real ledger, beside a dispatcher that sends nothing for them.

use super::{BACKOFF, Works};
use crate::bench::Bench;
use crate::support::{SeededEntropy, publication};
use crate::waiting::until;
use hookgate::delivery::{
    Backoff, DeliveryId, DeliveryState, Disposition, Jitter, OnAmbiguous, PauseScope, Reason, RetryHint, RetryPolicy,
    Terms, Verdict,
};
use hookgate::dispatch::{Desk, Tally, Targets, Way};
use hookgate::ledger::{Handed, Lapsed, Receipt};
use hookgate::verify::Publication;
use std::sync::Arc;
use std::time::Duration;

const FOR: Duration = Duration::from_secs(30);

/// `billing` is pulled from, up to three times.
pub(super) fn pulled(on_ambiguous: OnAmbiguous, max_age: Option<Duration>) -> Arc<Terms> {
    let retry = RetryPolicy { max_attempts: 3, backoff: Backoff::Ladder(vec![BACKOFF]), jitter: Jitter::None, max_age };
    Arc::new(Terms { retry, on_ambiguous, ..Terms::default() })
}

fn desk(bench: &Bench, terms: Arc<Terms>) -> Desk {
    let targets = Targets::default();
    targets.replace([(bench.endpoint("billing"), Way::Pull(terms))].into(), [].into());
    Desk {
        ledger: Arc::clone(&bench.ledger),
        targets: Arc::new(targets),
        clock: Arc::clone(&bench.watch),
        entropy: Arc::new(SeededEntropy::new(7)),
        tally: Tally::default(),
    }
}

struct Consumer<'a> {
    desk: Desk,
    bench: &'a Bench,
}

impl Consumer<'_> {
    async fn take(&self, max: usize) -> Vec<Handed> {
        let (tenant, endpoint) = (self.bench.tenant("acme"), self.bench.endpoint("billing"));
        self.desk.consume(tenant, endpoint, max, FOR).await.unwrap().items
    }

    async fn say(&self, said: &[(Receipt, Verdict)]) -> Vec<Result<Disposition, Lapsed>> {
        let (tenant, endpoint) = (self.bench.tenant("acme"), self.bench.endpoint("billing"));
        self.desk.answer(tenant, endpoint, said.to_vec()).await.unwrap()
    }
}

fn ack(reference: Option<&str>) -> Verdict {
    Verdict::Delivered { reference: reference.map(str::to_owned), reason: None }
}

fn nack(after: Option<Duration>) -> Verdict {
    Verdict::Retryable(RetryHint { reason: Reason::NACKED, after, scope: PauseScope::Delivery })
}

async fn outcomes(bench: &Bench, id: DeliveryId) -> Vec<String> {
    bench.detail(id).await.attempts.into_iter().filter_map(|attempt| attempt.outcome).collect()
}

#[tokio::test]
async fn what_a_consumer_says_is_written_down_like_an_answer() {
    let bench = Bench::new().await;
    let consumer = Consumer { desk: desk(&bench, pulled(OnAmbiguous::Retry, None)), bench: &bench };
    let (_, ids) = bench.accept("{}", &["billing"]).await;
    let first = Receipt::of(&consumer.take(1).await[0].lease);
    let due = bench.now().plus(BACKOFF);
    let told = consumer.say(&[(first, nack(None))]).await;
    assert_eq!(told, [Ok(Disposition::RetryAt { due, reason: Reason::NACKED })]);
    assert!(consumer.take(1).await.is_empty(), "by the endpoint's policy");
    bench.clock.advance(BACKOFF);
    let second = Receipt::of(&consumer.take(1).await[0].lease);
    let (again, wrong) = consumer.say(&[(second, ack(Some("r-1"))), (second, nack(None))]).await.into_iter().fold(
        (None, None),
        |(done, lapsed), told| match told {
            Ok(disposition) => (Some(disposition), lapsed),
            Err(reason) => (done, Some(reason)),
        },
    );
    assert!(again.is_some() && wrong.is_some(), "one of two for one receipt stands");
    let late = consumer.say(&[(first, ack(None))]).await;
    assert!(matches!(&late[0], Err(Lapsed::Over { ended: Some(ended), .. }) if ended.outcome == "nacked"));
    let attempts = bench.detail(ids[0]).await.attempts;
    assert_eq!(attempts[0].decided_by.as_deref(), Some("consumer"));
    assert_eq!((attempts[0].verdict.as_deref(), attempts[0].reason.as_deref()), (Some("retryable"), Some("nacked")));
    assert_eq!(attempts.iter().map(|attempt| attempt.number).collect::<Vec<_>>(), [1, 2]);
}

#[tokio::test]
async fn the_budget_and_a_terminal_word_lead_to_the_dlq() {
    let bench = Bench::new().await;
    let consumer = Consumer { desk: desk(&bench, pulled(OnAmbiguous::Retry, None)), bench: &bench };
    let (_, ids) = bench.accept("{}", &["billing"]).await;
    for _ in 0..2 {
        let receipt = Receipt::of(&consumer.take(1).await[0].lease);
        assert!(matches!(
            consumer.say(&[(receipt, nack(Some(Duration::ZERO)))]).await[0],
            Ok(Disposition::RetryAt { .. })
        ));
    }
    let third = Receipt::of(&consumer.take(1).await[0].lease);
    assert_eq!(consumer.say(&[(third, nack(Some(FOR)))]).await, [Ok(Disposition::Dead(Reason::NACKED))]);
    let (_, other) = bench.accept("{}", &["billing"]).await;
    let receipt = Receipt::of(&consumer.take(1).await[0].lease);
    let gone = Reason::word("no_such_order");
    let told = consumer.say(&[(receipt, Verdict::Terminal(gone.clone()))]).await;
    assert_eq!(told, [Ok(Disposition::Dead(gone))]);
    for id in [ids[0], other[0]] {
        assert_eq!(bench.detail(id).await.delivery.state, DeliveryState::Dead);
    }
    assert_eq!(bench.ledger.gauges().dead, 2);
}

#[tokio::test]
async fn what_is_over_is_ended_and_not_handed_out() {
    let bench = Bench::new().await;
    let consumer = Consumer { desk: desk(&bench, pulled(OnAmbiguous::Retry, None)), bench: &bench };
    for n in 0..5 {
        let expires_at = (n != 4).then(|| bench.now().plus(FOR));
        bench.publish(Publication { expires_at, ..publication("t", None, n.to_string()) }, &["billing"]).await;
    }
    bench.clock.advance(FOR);
    let given = consumer.take(2).await;
    assert_eq!(given.iter().map(|handed| &handed.event.body[..]).collect::<Vec<_>>(), [b"4"]);
    assert_eq!((bench.ledger.gauges().pending, bench.ledger.gauges().in_flight), (0, 1));
    // What a consumer took in time is its own to finish.
    let receipt = Receipt::of(&given[0].lease);
    assert_eq!(consumer.say(&[(receipt, ack(None))]).await, [Ok(Disposition::Delivered { reference: None })]);
}

#[tokio::test]
async fn no_lease_grows_beyond_twelve_hours() {
    let bench = Bench::new().await;
    let consumer = Consumer { desk: desk(&bench, pulled(OnAmbiguous::Retry, None)), bench: &bench };
    bench.accept("{}", &["billing"]).await;
    let taken = consumer.take(1).await.remove(0).lease;
    let receipt = Receipt::of(&taken);
    let extend = async |lease| {
        let (tenant, endpoint) = (bench.tenant("acme"), bench.endpoint("billing"));
        consumer.desk.extend(tenant, endpoint, vec![(receipt, lease)]).await.unwrap().remove(0)
    };
    let hour = Duration::from_secs(3_600);
    assert_eq!(extend(hour).await, Ok(bench.now().plus(hour)));
    for _ in 0..11 {
        bench.clock.advance(hour);
        assert!(extend(hour).await.is_ok());
    }
    bench.clock.advance(hour / 2);
    let last = taken.started_at.plus(12 * hour);
    assert_eq!(extend(hour).await, Ok(last));
    bench.clock.advance(hour);
    assert_eq!(extend(hour).await, Ok(last), "it is not prolonged, and not cut either");
    let (unknown, other) = (Receipt { token: 77, ..receipt }, bench.endpoint("crm"));
    let lost = consumer.desk.extend(bench.tenant("acme"), other, vec![(unknown, hour)]).await.unwrap();
    assert_eq!(lost, [Err(Lapsed::Unknown)]);
}

#[tokio::test]
async fn a_lease_that_runs_out_is_an_interrupted_attempt_and_three_in_a_row_a_crash_loop() {
    let works = Works::pulled(pulled(OnAmbiguous::Retry, None)).await;
    let bench = &works.bench;
    let consumer = Consumer { desk: desk(bench, pulled(OnAmbiguous::Retry, None)), bench };
    let (_, ids) = bench.accept("{}", &["billing"]).await;
    for attempt in 1..=3 {
        let lease = consumer.take(1).await.remove(0).lease;
        assert_eq!(lease.number, attempt);
        bench.clock.advance(FOR);
        until("the lease is taken over", async || {
            (outcomes(bench, ids[0]).await.len() == attempt as usize).then_some(())
        })
        .await;
        let late = consumer.say(&[(Receipt::of(&lease), ack(None))]).await;
        assert!(matches!(late[0], Err(Lapsed::Over { ended: None, .. })), "{late:?}");
    }
    let detail = bench.detail(ids[0]).await;
    assert_eq!((detail.delivery.state, detail.delivery.reason.as_deref()), (DeliveryState::Dead, Some("crash_loop")));
    assert_eq!(outcomes(bench, ids[0]).await, ["interrupted"; 3]);
    let told = detail.attempts[0].detail.as_deref().unwrap();
    assert!(told.contains("consumer"), "{told}");
    works.end().await;
}

#[tokio::test]
async fn a_lease_that_runs_out_is_held_for_a_person_where_that_is_asked() {
    let terms = pulled(OnAmbiguous::Hold, None);
    let works = Works::pulled(Arc::clone(&terms)).await;
    let consumer = Consumer { desk: desk(&works.bench, terms), bench: &works.bench };
    let (_, ids) = works.bench.accept("{}", &["billing"]).await;
    assert_eq!(consumer.take(1).await.len(), 1);
    works.bench.clock.advance(FOR);
    works.state(ids[0], DeliveryState::Dead).await;
    assert_eq!(works.bench.detail(ids[0]).await.delivery.reason.as_deref(), Some("ambiguous"));
    works.end().await;
}

#[tokio::test]
async fn a_clock_set_a_day_ahead_takes_nothing_from_a_consumer() {
    let terms = pulled(OnAmbiguous::Retry, None);
    let works = Works::pulled(Arc::clone(&terms)).await;
    let consumer = Consumer { desk: desk(&works.bench, terms), bench: &works.bench };
    works.bench.accept("{}", &["billing"]).await;
    let lease = consumer.take(1).await.remove(0).lease;
    works.bench.clock.set_by(super::DAY_MILLIS);
    works.polls().await;
    let told = consumer.say(&[(Receipt::of(&lease), ack(None))]).await;
    assert_eq!(told, [Ok(Disposition::Delivered { reference: None })]);
    works.end().await;
}

#[tokio::test]
async fn what_waits_for_consumers_is_left_to_them_and_ends_at_its_age_limit() {
    let terms = pulled(OnAmbiguous::Retry, Some(Duration::from_secs(60)));
    let works = Works::pulled(terms).await;
    let bench = &works.bench;
    let all = (0..1_000).map(|_| bench.ledger.accept(bench.acceptance(publication("t", None, "{}"), &["billing"])));
    futures_util::future::join_all(all.collect::<Vec<_>>()).await;
    works.polls().await;
    assert_eq!((bench.ledger.gauges().pending, bench.ledger.gauges().in_flight), (1_000, 0));
    assert_eq!(works.receiver.came(), 0);
    bench.clock.advance(Duration::from_secs(60));
    until("all are over", async || (bench.ledger.gauges().pending == 0).then_some(())).await;
    assert_eq!(works.receiver.came(), 0);
    works.end().await;
}
