//! SCENARIOS 3, the account is open again, on `examples/throttled-batch`: one message is redriven, those of a filter, and
//! all, each twice and once; the process is killed among all.

use super::examples::all;
use super::scenario_throttled_batch::{NO_RATE, QUICK, batch, batches, counters, publish};
use super::{Gateway, Receiver, Reply, until};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The dead, when all who count them agree.
async fn dead(gateway: &Gateway) -> u64 {
    let dead = counters(gateway).await[3];
    assert_eq!(gateway.metric("hookgate_dlq_depth").await, Some(dead as f64));
    let counted = gateway.post("dlq/redrive", &json!({"filter": {}, "dry_run": true})).await.json();
    assert_eq!(counted["count"], dead, "{counted}");
    dead
}

fn posts(provider: &Receiver) -> usize {
    provider.journal().iter().filter(|seen| seen.method == "POST").count()
}

/// Runs in the folder of the gateway; gives exit code and document.
async fn ran(gateway: &Gateway, args: &[&str]) -> (Option<i32>, Value) {
    let mut command = gateway.command(&[args, &["--json"]].concat());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_default())
}

#[tokio::test]
async fn one_then_those_of_a_filter_then_all_and_none_twice() {
    let open = Arc::new(AtomicBool::new(false));
    let is_open = Arc::clone(&open);
    let provider =
        Receiver::start(move |_, _| Reply::status(if is_open.load(Ordering::SeqCst) { 204 } else { 429 })).await;
    let mut gateway = batches(&provider, &[NO_RATE, QUICK]).await;
    publish(&gateway, &batch(100, 0)).await;
    let mut late = batch(20, 100);
    late["events"].as_array_mut().unwrap().iter_mut().for_each(|event| event["type"] = json!("reminder.late"));
    publish(&gateway, &late).await;
    gateway.until_deliveries("state=dead", 120).await;
    assert_eq!((dead(&gateway).await, posts(&provider)), (120, 360));

    open.store(true, Ordering::SeqCst);
    let id = gateway.get("dlq?type=reminder.due&limit=1").await["items"][0]["id"].as_str().unwrap().to_owned();
    let one = ["dlq", "redrive", &id, "--note", "try one"];
    assert_eq!(ran(&gateway, &one).await.0, Some(0));
    gateway.until_deliveries("state=delivered", 1).await;
    assert_eq!(ran(&gateway, &one).await.0, Some(6), "it is no dead letter any more");
    assert_eq!((dead(&gateway).await, posts(&provider)), (119, 361));

    let of_filter = ["dlq", "redrive", "--type", "reminder.late", "--yes", "--watch", "--note", "these first"];
    let (code, operation) = ran(&gateway, &of_filter).await;
    assert_eq!((code, &operation["state"], &operation["done"]), (Some(0), &json!("done"), &json!(20)), "{operation}");
    gateway.until_deliveries("state=delivered", 21).await;
    let (code, nothing) = ran(&gateway, &of_filter).await;
    assert_eq!((code, &nothing["count"]), (Some(0), &json!(0)), "{nothing}");
    assert_eq!((dead(&gateway).await, posts(&provider)), (99, 381));

    let everything =
        ["dlq", "redrive", "--all", "--yes", "--rate", "40", "--request-id", "all-of-them", "--note", "the rest"];
    let (code, begun) = ran(&gateway, &everything).await;
    assert_eq!(code, Some(0), "{begun}");
    let path = format!("operations/{}", begun["id"].as_str().unwrap());
    until("some are redriven", || async { (gateway.get(&path).await["done"].as_u64()? >= 20).then_some(()) }).await;
    gateway.kill();
    gateway.boot().await;
    let (code, again) = ran(&gateway, &everything).await;
    assert_eq!((code, &again["id"]), (Some(0), &begun["id"]), "one wish, one operation");
    let done = until("all are delivered", || async {
        Some(gateway.get(&path).await).filter(|row| row["state"] == "done" && row["delivered"] == 99)
    })
    .await;
    assert_eq!(done["done"], 99, "{done}");
    assert_eq!(dead(&gateway).await, 0);
    let sent = posts(&provider);
    let (code, nothing) = ran(&gateway, &["dlq", "redrive", "--all", "--yes"]).await;
    assert_eq!((code, &nothing["count"]), (Some(0), &json!(0)), "{nothing}");
    gateway.until_drained().await;
    assert_eq!((posts(&provider), counters(&gateway).await), (sent, [0, 0, 0, 0]));

    let mut times = HashMap::<String, usize>::new();
    for seen in provider.journal().iter().filter(|seen| seen.method == "POST") {
        *times.entry(seen.header("webhook-id").to_owned()).or_default() += 1;
    }
    assert_eq!(times.len(), 120);
    for (id, times) in times.into_iter().filter(|(_, times)| *times != 4) {
        let delivery = gateway.delivery(&id).await;
        let cut = delivery["attempts"].as_array().unwrap().iter().filter(|a| a["outcome"] == "interrupted").count();
        assert!((4..=4 + cut).contains(&times), "three 429s and one that was taken, not {times}: {delivery}");
    }
}

/// What waits, what could go now, what is under way, what is dead, and since when; over a kill.
#[tokio::test]
async fn the_counters_of_an_endpoint_are_what_there_is() {
    let provider = Receiver::start(|seen, before| match seen.header("idempotency-key") {
        "reminder:0" => Reply::status(400),
        "reminder:1" if before == 0 => Reply::Hang,
        _ => Reply::status(204),
    })
    .await;
    let mut gateway = batches(&provider, &[NO_RATE, QUICK]).await;
    publish(&gateway, &batch(2, 0)).await;
    gateway.until_deliveries("state=dead", 1).await;
    provider.until_count(2).await;
    assert_eq!(counters(&gateway).await, [0, 0, 1, 1]);
    let (now, mut later) = (batch(3, 2), batch(4, 5));
    for event in later["events"].as_array_mut().unwrap() {
        event["delay"] = json!("1h");
    }
    assert_eq!(gateway.post("endpoints/reminders/pause", &json!({"why": "their maintenance"})).await.status, 200);
    for events in [&now, &later] {
        publish(&gateway, events).await;
    }
    assert_eq!(counters(&gateway).await, [7, 3, 1, 1], "three of them are due");
    let oldest = gateway.get("endpoints/reminders").await["oldest_pending_at"].clone();
    let rows = all(&gateway, "deliveries?state=pending&").await;
    assert_eq!(rows.iter().map(|row| row["created_at"].as_str().unwrap()).min(), oldest.as_str());
    let dead = gateway.get("dlq/groups").await["items"][0]["oldest_at"].clone();
    assert_eq!(gateway.get("stats").await["endpoints"][0]["now"]["oldest_dead_at"], dead);
    assert!(gateway.metric("hookgate_dlq_oldest_age_seconds").await.is_some_and(|age| (0.0..600.0).contains(&age)));

    gateway.kill();
    gateway.boot().await;
    // What was on the wire waits, too.
    until("the interrupted one is handed back", || async { (counters(&gateway).await == [8, 4, 0, 1]).then_some(()) })
        .await;
    assert_eq!(gateway.post("endpoints/reminders/resume", &json!({})).await.status, 200);
    gateway.until_deliveries("state=delivered", 4).await;
    until("four wait for their time", || async { (counters(&gateway).await == [4, 0, 0, 1]).then_some(()) }).await;
}
