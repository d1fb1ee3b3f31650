//! Scenario 4's end: a partner's outage fills the DLQ, and one operation empties it.

use super::{Gateway, Receiver, Reply, endpoint, until};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

/// Two receivers on two hosts, and a gateway with dead letters for both.
struct Outage {
    gateway: Gateway,
    receivers: [Receiver; 2],
    answers: [Arc<AtomicU16>; 2],
}

/// Answers with what it is told to.
async fn told() -> (Receiver, Arc<AtomicU16>) {
    let status = Arc::new(AtomicU16::new(502));
    let answer = Arc::clone(&status);
    (Receiver::start(move |_, _| Reply::status(answer.load(Ordering::SeqCst))).await, status)
}

/// What comes to the listener goes to `to`, and back.
async fn forward(listener: tokio::net::TcpListener, to: std::net::SocketAddr) {
    while let Ok((mut from, _)) = listener.accept().await {
        tokio::spawn(async move {
            if let Ok(mut to) = tokio::net::TcpStream::connect(to).await {
                // Either may hang up.
                let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
            }
        });
    }
}

impl Outage {
    async fn with(dead: usize) -> Outage {
        let (first, second) = (told().await, told().await);
        // Another host to whoever groups.
        let listener = tokio::net::TcpListener::bind("127.0.0.2:0").await.unwrap();
        let other = format!("http://{}/", listener.local_addr().unwrap());
        tokio::spawn(forward(listener, second.0.addr));
        let config = endpoint("billing", &first.0.url("/"), "") + &endpoint("crm", &other, "");
        let mut gateway = Gateway::stopped(&config);
        let text = std::fs::read_to_string(gateway.config()).unwrap();
        std::fs::write(gateway.config(), text.replace("127.0.0.1/32", "127.0.0.0/30")).unwrap();
        gateway.boot().await;
        let outage = Outage { gateway, receivers: [first.0, second.0], answers: [first.1, second.1] };
        outage.fill(dead / 2).await;
        outage
    }

    /// Each event dies at both.
    async fn fill(&self, events: usize) {
        let event = |n: usize| json!({"type": "invoice.paid", "payload": {"n": n}});
        for chunk in (0..events).collect::<Vec<_>>().chunks(100) {
            let batch: Vec<Value> = chunk.iter().map(|n| event(*n)).collect();
            assert_eq!(self.gateway.post("events", &json!({ "events": batch })).await.status, 200);
        }
        until("all are dead", || async { (self.count(json!({})).await == events as u64 * 2).then_some(()) }).await;
    }

    async fn count(&self, filter: Value) -> u64 {
        let answer = self.gateway.post("dlq/redrive", &json!({"filter": filter, "dry_run": true})).await;
        answer.json()["count"].as_u64().unwrap()
    }

    fn answer(&self, status: u16) {
        self.answers.iter().for_each(|answer| answer.store(status, Ordering::SeqCst));
    }

    async fn begin(&self, wish: Value) -> String {
        let begun = self.gateway.post("dlq/redrive", &wish).await;
        assert_eq!(begun.status, 202, "{}", begun.text);
        begun.json()["id"].as_str().unwrap().to_owned()
    }

    async fn until_operation(&self, id: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let path = format!("operations/{id}");
        until(what, || async { Some(self.gateway.get(&path).await).filter(|row| is(row)) }).await
    }

    /// POSTs that were answered with 2xx are one for each delivery: the journal of both since `from`.
    fn deliveries_since(&self, from: [usize; 2]) -> BTreeMap<String, usize> {
        let mut all = BTreeMap::new();
        for (receiver, from) in self.receivers.iter().zip(from) {
            for seen in receiver.journal().into_iter().skip(from).filter(|seen| seen.method == "POST") {
                *all.entry(seen.header("webhook-id").to_owned()).or_default() += 1;
            }
        }
        all
    }

    fn seen(&self) -> [usize; 2] {
        self.receivers.each_ref().map(Receiver::count)
    }
}

#[tokio::test]
async fn a_partner_is_back_and_four_hundred_dead_letters_are_delivered_once() {
    let mut outage = Outage::with(400).await;
    let gateway = &outage.gateway;
    // What a filter counts is what is listed and grouped.
    let groups = gateway.get("dlq/groups").await["items"].as_array().unwrap().clone();
    let counts: BTreeMap<&str, u64> =
        groups.iter().map(|group| (group["host"].as_str().unwrap(), group["count"].as_u64().unwrap())).collect();
    assert_eq!(counts, [("127.0.0.1", 200), ("127.0.0.2", 200)].into());
    assert!(groups.iter().all(|group| group["reason"] == "http_502" && group["status"] == 502));
    let of_host = gateway.get("dlq?host=127.0.0.2&limit=200").await["items"].as_array().unwrap().len();
    assert_eq!((of_host, outage.count(json!({"host": "127.0.0.2"})).await), (200, 200));
    assert_eq!(outage.count(json!({"reason": "http_500"})).await, 0);
    let nothing = gateway.post("dlq/redrive", &json!({"filter": {"reason": "http_500"}})).await;
    assert_eq!((nothing.status, nothing.json()["count"].as_u64()), (200, Some(0)));

    // While they are down, nothing is sent again.
    let before = outage.seen();
    let refused = gateway.post("dlq/redrive", &json!({"filter": {}})).await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "destination_down"), "{}", refused.text);
    let destinations = refused.json()["destinations"].clone();
    assert_eq!((&destinations[0]["class"], destinations.as_array().unwrap().len()), (&json!("http_502"), 2));
    let posts = outage.deliveries_since(before);
    assert!(posts.is_empty(), "a probe is no delivery: {posts:?}");

    // The canary meets the old failure again, and stops by itself.
    let canary = json!({"filter": {}, "canary": true, "force": true, "note": "are they back?"});
    let id = outage.begin(canary).await;
    let stopped = outage.until_operation(&id, "the canary stops", |row| !row["ended_at"].is_null()).await;
    assert_eq!(stopped["state"], "stopped_by_canary", "{stopped}");
    assert!(stopped["why"].as_str().unwrap().contains("the old failure is back"), "{stopped}");
    assert_eq!((&stopped["done"], &stopped["delivered"]), (&json!(1), &json!(0)), "{stopped}");
    assert_eq!(gateway.post(&format!("operations/{id}/resume"), &json!({})).await.code(), "operation_ended");
    until("it is dead again", || async { (outage.count(json!({})).await == 400).then_some(()) }).await;

    // Mended. It is killed half-way, and goes on where it was.
    outage.answer(200);
    let before = outage.seen();
    let id = outage.begin(json!({"filter": {}, "rate": 200, "note": "they are"})).await;
    outage.until_operation(&id, "some are redriven", |row| row["done"].as_u64().unwrap() >= 100).await;
    outage.gateway.kill();
    outage.gateway.boot().await;
    let done = outage.until_operation(&id, "all are redriven", |row| row["state"] == "done").await;
    assert_eq!((&done["total"], &done["done"]), (&json!(400), &json!(400)), "{done}");
    let whole = |row: &Value| row["delivered"] == 400;
    let whole = outage.until_operation(&id, "all are delivered", whole).await;
    assert_eq!((&whole["dead_again"], &whole["waiting"], &whole["otherwise"]), (&json!(0), &json!(0), &json!(0)));
    assert_eq!(outage.count(json!({})).await, 0);
    assert_eq!(outage.gateway.metric("hookgate_dlq_depth").await, Some(0.0));
    // Once each; but for what was on the wire when the process was killed, which has an attempt that says so.
    let posts = outage.deliveries_since(before);
    assert_eq!(posts.len(), 400);
    for (delivery, times) in posts {
        let row = outage.gateway.delivery(&delivery).await;
        let generations: BTreeSet<u64> =
            row["attempts"].as_array().unwrap().iter().map(|attempt| attempt["generation"].as_u64().unwrap()).collect();
        let last = row["generation"].as_u64().unwrap();
        assert!(last == 2 || last == 3, "{row}");
        assert_eq!(generations.into_iter().max(), Some(last));
        let interrupted = row["attempts"].as_array().unwrap().iter().filter(|a| a["outcome"] == "interrupted").count();
        assert!(times == 1 || times == 1 + interrupted, "{times} requests: {row}");
    }
    // The same again does nothing.
    let again = outage.gateway.post("dlq/redrive", &json!({"filter": {}})).await;
    assert_eq!((again.status, again.json()["count"].as_u64()), (200, Some(0)));
}

#[tokio::test]
async fn a_canary_widens_while_all_is_well_and_the_command_line_follows_it() {
    let outage = Outage::with(30).await;
    outage.answer(204);
    let mut command = outage.gateway.command(&[
        "dlq",
        "redrive",
        "--host",
        "127.0.0.1",
        "--canary",
        "--rate",
        "1000",
        "--yes",
        "--watch",
        "--json",
    ]);
    let ran = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert_eq!(ran.status.code(), Some(0), "{}", String::from_utf8_lossy(&ran.stderr));
    let row: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!((&row["state"], &row["done"], &row["total"]), (&json!("done"), &json!(15), &json!(15)), "{row}");
    assert_eq!(row["canary"]["wave"], 3, "1, 10, and the rest: {row}");
    let progress = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(progress.contains("of 15 redriven, 1000 per second"), "{progress}");
    assert_eq!(outage.count(json!({})).await, 15, "the other host's are left");

    let ids = outage.gateway.get("dlq?limit=2").await["items"].clone();
    let purge = outage.gateway.post("dlq/purge", &json!({"filter": {"ids": [ids[0]["id"], ids[1]["id"]]}})).await;
    assert_eq!(purge.json(), json!({"purged": 2, "payloads_erased": 0, "more": false}), "delivered at the other host");
    assert_eq!(outage.count(json!({})).await, 13);
    let gone = outage.gateway.delivery(ids[0]["id"].as_str().unwrap()).await;
    assert_eq!((&gone["state"], &gone["reason"]), (&json!("cancelled"), &json!("purged")));
}

#[tokio::test]
async fn an_operation_is_paused_over_a_restart_and_resumed() {
    let mut outage = Outage::with(20).await;
    outage.answer(204);
    let id = outage.begin(json!({"filter": {}, "rate": 1, "max": 8})).await;
    outage.until_operation(&id, "one is redriven", |row| row["done"].as_u64().unwrap() >= 1).await;
    let paused = outage.gateway.post(&format!("operations/{id}/pause"), &json!({})).await.json();
    assert_eq!(paused["state"], "paused");
    outage.gateway.kill();
    outage.gateway.boot().await;
    let row = outage.gateway.get(&format!("operations/{id}")).await;
    assert_eq!((&row["state"], &row["done"]), (&json!("paused"), &paused["done"]), "{row}");
    assert_eq!(outage.gateway.post(&format!("operations/{id}/resume"), &json!({})).await.status, 200);
    let more = paused["done"].as_u64().unwrap() + 1;
    outage.until_operation(&id, "it goes on", |row| row["done"].as_u64().unwrap() >= more).await;
    let stopped = outage.gateway.post(&format!("operations/{id}/stop"), &json!({})).await.json();
    assert_eq!(stopped["state"], "stopped");
    let left = 20 - stopped["done"].as_u64().unwrap();
    assert_eq!(outage.count(json!({})).await, left);
}
