//! What must hold between the ledger's log and the receiver's journal, however the process died.

use super::{Gateway, Seen, until};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Outcomes after which a request may have left.
const MAY_HAVE_SENT: [&str; 4] = ["answered", "unreachable", "timed_out", "interrupted"];

/// Every delivery in the log, without attempts.
pub async fn deliveries(gateway: &Gateway) -> Vec<Value> {
    let mut all = Vec::new();
    let mut place = "deliveries?limit=200".to_owned();
    loop {
        let page = gateway.get(&place).await;
        all.extend(page["items"].as_array().unwrap().iter().cloned());
        match page["next"].as_str() {
            Some(next) => place = format!("deliveries?limit=200&cursor={next}"),
            None => return all,
        }
    }
}

/// Waits until there is nothing left to do.
pub async fn drained(gateway: &Gateway) {
    until("nothing is pending or in flight", || async {
        let pending = gateway.metric("hookgate_pending ").await?;
        let in_flight = gateway.metric("hookgate_in_flight ").await?;
        (pending == 0.0 && in_flight == 0.0).then_some(())
    })
    .await;
}

/// The receiver's journal by delivery.
pub fn by_delivery(journal: Vec<Seen>) -> BTreeMap<String, Vec<Seen>> {
    let mut sends: BTreeMap<String, Vec<Seen>> = BTreeMap::new();
    for seen in journal {
        sends.entry(seen.header("webhook-id").to_owned()).or_default().push(seen);
    }
    sends
}

/// One delivery with its attempts against everything that was sent for it. Gives the outcomes.
pub fn check(delivery: &Value, sends: &[Seen]) -> Vec<String> {
    let id = delivery["id"].as_str().unwrap();
    let attempts = delivery["attempts"].as_array().unwrap();
    let outcomes: Vec<String> = attempts
        .iter()
        .enumerate()
        .map(|(at, attempt)| {
            assert_eq!(attempt["number"], at + 1, "{id}: numbers have a gap: {delivery}");
            attempt["outcome"].as_str().unwrap_or_else(|| panic!("{id}: still under way: {delivery}")).to_owned()
        })
        .collect();
    assert_eq!(delivery["attempt_count"], attempts.len(), "{id}: {delivery}");
    let mut numbers = BTreeSet::new();
    for seen in sends {
        assert_eq!(seen.header("webhook-id"), id);
        assert_eq!(seen.header("hookgate-event"), delivery["event"].as_str().unwrap(), "{id}");
        assert_eq!(seen.header("idempotency-key"), sends[0].header("idempotency-key"), "{id}");
        let number: usize = seen.header("hookgate-attempt").parse().unwrap();
        assert!(numbers.insert(number), "{id}: attempt {number} was sent twice");
        let outcome = outcomes.get(number - 1).unwrap_or_else(|| panic!("{id}: attempt {number} is not in the log"));
        assert!(MAY_HAVE_SENT.contains(&outcome.as_str()), "{id}: attempt {number} was sent, and says {outcome}");
    }
    for (at, outcome) in outcomes.iter().enumerate() {
        assert!(outcome != "answered" || numbers.contains(&(at + 1)), "{id}: an answer without a request");
    }
    for (at, attempt) in attempts.iter().enumerate() {
        let last = at + 1 == attempts.len();
        assert!(last || attempt["disposition"] != "delivered", "{id}: went on after it was delivered: {delivery}");
        let is_interrupted = attempt["outcome"] == "interrupted";
        assert!(!is_interrupted || attempt["ambiguous"] == true, "{id}: {delivery}");
    }
    outcomes
}
