//! SCENARIOS 5, who cannot be pushed to and who wants the newest alone, on `examples/lease-events`: each with a clean stop
//! and a kill in the middle.

use super::examples::Ending;
use super::scenario_lease_events::{leases, of_endpoint};
use super::{Gateway, Receiver, until};
use serde_json::{Value, json};

async fn said(gateway: &Gateway, verb: &str, body: &Value) -> Value {
    let answer = gateway.post(&format!("endpoints/bookkeeping/{verb}"), body).await;
    assert_eq!(answer.status, 200, "{verb} {body}: {}", answer.text);
    answer.json()
}

/// The next there is to do.
async fn fetched(gateway: &Gateway, lease: &str) -> Value {
    until("there is something to fetch", || async {
        said(gateway, "consume", &json!({ "lease": lease })).await["items"].as_array_mut().unwrap().pop()
    })
    .await
}

#[tokio::test]
async fn a_receiver_that_cannot_be_pushed_to_pulls() {
    for ending in Ending::ALL {
        let (manager, archive) = (Receiver::kind().await, Receiver::kind().await);
        let mut gateway = leases(&manager, &archive).await;
        let key = "lease.renewed:1042";
        let event = json!({"type": "lease.renewed", "key": key, "payload": {"lease": 1042}});
        gateway.post("events", &event).await;
        assert_eq!(gateway.post("events", &event).await.json()["duplicate"], true);
        gateway.until_deliveries("endpoint=manager&state=delivered", 1).await;
        let waiting = of_endpoint(&gateway, "bookkeeping", key).await;
        assert_eq!((&waiting["state"], &waiting["host"]), (&json!("pending"), &json!("(pull)")));

        // The process ends while the consumer works: its lease holds, and so does its word.
        let first = fetched(&gateway, "60s").await;
        assert_eq!((&first["attempt"], &first["idempotency_key"]), (&json!(1), &json!(key)));
        ending.restart(&mut gateway).await;
        assert_eq!(said(&gateway, "consume", &json!({})).await["items"], json!([]), "{ending:?}: it is held");
        let back = json!({"receipt": first["receipt"], "delay": "700ms", "reason": "books_closed"});
        let told = said(&gateway, "nack", &back).await;
        assert_eq!((&told["result"], &told["reason"]), (&json!("retry_at"), &json!("books_closed")), "{ending:?}");
        // A consumer that is never heard of again loses its lease, and spends an attempt.
        let second = fetched(&gateway, "1s").await;
        assert_eq!(second["attempt"], 2);
        for number in 3..=5 {
            let item = fetched(&gateway, "60s").await;
            assert_eq!((&item["attempt"], &item["delivery"]), (&json!(number), &first["delivery"]), "{ending:?}");
            said(&gateway, "nack", &json!({"receipt": item["receipt"]})).await;
        }
        let dead = gateway.get("dlq").await["items"].clone();
        assert_eq!((&dead[0]["id"], &dead[0]["attempt_count"]), (&first["delivery"], &json!(5)), "{ending:?}");
        assert_eq!(gateway.get("dlq/groups").await["items"][0]["host"], "(pull)");

        let redrive = format!("deliveries/{}/redrive", first["delivery"].as_str().unwrap());
        assert_eq!(gateway.post(&redrive, &json!({"note": "the books are open"})).await.status, 200);
        let last = fetched(&gateway, "60s").await;
        assert_eq!((&last["generation"], &last["idempotency_key"]), (&json!(2), &json!(key)));
        ending.restart(&mut gateway).await;
        let ack = json!({"receipt": last["receipt"], "reference": "entry-88"});
        assert_eq!(said(&gateway, "ack", &ack).await["result"], "delivered", "{ending:?}");
        assert_eq!(said(&gateway, "ack", &ack).await["repeated"], true, "{ending:?}");
        assert_eq!(gateway.get("deliveries?q=entry-88").await["items"][0]["id"], first["delivery"]);

        let done = of_endpoint(&gateway, "bookkeeping", key).await;
        let outcomes: Vec<_> = done["attempts"].as_array().unwrap().iter().map(|a| a["outcome"].clone()).collect();
        assert_eq!(outcomes, ["nacked", "interrupted", "nacked", "nacked", "nacked", "acked"], "{ending:?}");
        let pushed = of_endpoint(&gateway, "manager", key).await;
        assert_eq!((&pushed["event"], &pushed["attempt_count"]), (&done["event"], &json!(1)), "its own history");
        assert_eq!((manager.count(), archive.count()), (1, 0));
    }
}

#[tokio::test]
async fn of_several_in_a_window_the_newest_is_delivered() {
    for ending in Ending::ALL {
        let (manager, archive) = (Receiver::kind().await, Receiver::kind().await);
        let mut gateway = leases(&manager, &archive).await;
        let mut events = Vec::new();
        for rent in [900, 925, 950] {
            let amended = json!({"type": "lease.amended", "coalesce_key": "lease-1042", "coalesce_window": "5s",
                                 "payload": {"rent": rent}});
            let answer = gateway.post("events", &amended).await;
            assert_eq!(answer.status, 200, "{}", answer.text);
            events.push(answer.json()["event"].as_str().unwrap().to_owned());
        }
        let waiting = gateway.get("deliveries?state=pending").await["items"].clone();
        assert_eq!(waiting.as_array().unwrap().len(), 1, "{ending:?}: {waiting}");
        ending.restart(&mut gateway).await;
        gateway.until_deliveries("state=delivered", 1).await;
        gateway.until_drained().await;
        let journal = manager.journal();
        let bodies: Vec<_> = journal.iter().map(|seen| seen.body.as_ref()).collect();
        assert_eq!(bodies, [b"{\"rent\":950}"], "{ending:?}");
        assert!(journal[0].header("idempotency-key").starts_with("lease-1042@"), "{ending:?}");
        for old in &events[..2] {
            let event = gateway.get(&format!("events/{old}")).await;
            assert!(event["superseded_by"].is_string(), "{ending:?}: {event}");
        }
        assert_eq!(gateway.get("deliveries").await["items"].as_array().unwrap().len(), 1, "{ending:?}");
    }
}
