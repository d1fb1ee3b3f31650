//! SCENARIOS 2, the morning after on `examples/payment-reconciliation`: one job is corrected and looked at, then the
//! others follow; when the same error comes back, the redrive stops by itself and says so.

use super::scenario_payment_reconciliation::{job, job_row, nightly};
use super::{Gateway, Receiver, Reply, until};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const JOBS: usize = 30;
/// What the worker does: of all jobs, of those with a number, of the first that comes.
const REFUSES: usize = 0;
const STALLS: usize = 1;
const READS_NUMBERS: usize = 2;
const TAKES_ONE: usize = 3;
const TAKES_ALL: usize = 4;

async fn ended(gateway: &Gateway, id: &str) -> Value {
    let path = format!("operations/{id}");
    until("the operation ends", || async { Some(gateway.get(&path).await).filter(|row| !row["ended_at"].is_null()) })
        .await
}

async fn canary(gateway: &Gateway, note: &str) -> String {
    let wish = json!({"filter": {"endpoint": "worker", "reason": "http_422"}, "canary": true, "note": note});
    let begun = gateway.post("dlq/redrive", &wish).await;
    assert_eq!(begun.status, 202, "{}", begun.text);
    begun.json()["id"].as_str().unwrap().to_owned()
}

async fn dead(gateway: &Gateway) -> Vec<Value> {
    gateway.get("dlq?limit=200").await["items"].as_array().unwrap().clone()
}

#[tokio::test]
async fn one_is_corrected_then_the_others_follow_until_the_old_error_returns() {
    let mode = Arc::new(AtomicUsize::new(REFUSES));
    let of_worker = Arc::clone(&mode);
    let worker = Receiver::start(move |seen, _| {
        let is_number = memchr::memmem::find(&seen.body, b"\"total\":10}").is_some();
        let takes_one = || of_worker.compare_exchange(TAKES_ONE, REFUSES, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        match of_worker.load(Ordering::SeqCst) {
            // A probe is no job.
            _ if seen.method == "HEAD" => Reply::status(405),
            STALLS => Reply::Hang,
            READS_NUMBERS if is_number => Reply::status(204),
            TAKES_ONE if takes_one() => Reply::status(204),
            TAKES_ALL => Reply::status(204),
            _ => Reply::body(422, "total is no number"),
        }
    })
    .await;
    let mut gateway = nightly(&worker, &[]).await;
    let keys: Vec<String> = (0..JOBS).map(|n| format!("m-{n}:adyen:2026-01-31")).collect();
    let events: Vec<Value> = keys.iter().map(|key| job(key)).collect();
    assert_eq!(gateway.post("events", &json!({ "events": events })).await.status, 200);
    gateway.until_deliveries("state=dead", JOBS).await;

    // Nothing has changed: the canary costs one attempt of one job.
    let stopped = ended(&gateway, &canary(&gateway, "perhaps now").await).await;
    assert_eq!((&stopped["state"], &stopped["done"]), (&json!("stopped_by_canary"), &json!(1)), "{stopped}");
    until("it is dead again", || async { (dead(&gateway).await.len() == JOBS).then_some(()) }).await;

    // The correction of one, killed on its way: its recorded result is what is looked at.
    let untouched = dead(&gateway).await.into_iter().find(|row| row["generation"] == 1).unwrap();
    let (id, key) = (untouched["id"].as_str().unwrap(), untouched["key"].as_str().unwrap());
    let before = worker.count();
    mode.store(STALLS, Ordering::SeqCst);
    let args = ["delivery", "redrive", id, "--payload", "{\"total\":10}", "--note", "total as a number"];
    let ran = gateway.command(&args).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    worker.until_count(before + 1).await;
    gateway.kill();
    mode.store(READS_NUMBERS, Ordering::SeqCst);
    gateway.boot().await;
    gateway.until_deliveries("state=delivered", 1).await;
    let done = job_row(&gateway, key).await;
    let facts = |name: &str| done["attempts"].as_array().unwrap().iter().map(|a| a[name].clone()).collect::<Vec<_>>();
    assert_eq!(facts("outcome"), ["answered", "interrupted", "answered"], "{done}");
    assert_eq!(facts("generation"), [1, 2, 2]);
    assert_eq!(facts("revision"), [1, 2, 2]);
    assert_eq!(facts("number"), [1, 2, 3]);
    assert_eq!((&done["generation"], &done["revisions"][0]["note"]), (&json!(2), &json!("total as a number")));
    let first = gateway.send(gateway.api("GET", &format!("deliveries/{id}/body?revision=1"))).await.unwrap();
    assert!(first.text.contains("\"total\":\"ten\""), "the first revision is kept: {}", first.text);

    // A mended worker, it is said; killed in the first wave, which is no answer of the worker's. The second meets the old
    // error.
    let before = worker.count();
    mode.store(STALLS, Ordering::SeqCst);
    let operation = canary(&gateway, "it reads words now").await;
    worker.until_count(before + 2).await; // the probe, and the job
    gateway.kill();
    mode.store(TAKES_ONE, Ordering::SeqCst);
    gateway.boot().await;
    let stopped = ended(&gateway, &operation).await;
    let figures = ["done", "total", "delivered"].map(|field| stopped[field].as_u64().unwrap());
    assert_eq!((stopped["state"].as_str(), figures), (Some("stopped_by_canary"), [11, 29, 1]), "{stopped}");
    let shown = gateway.command(&["operation", "get", &operation]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    for words in ["stopped_by_canary", "the old failure is back: 10 of 10 results", "http_422"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    until("they are dead again", || async { (dead(&gateway).await.len() == JOBS - 2).then_some(()) }).await;
    let touched = dead(&gateway).await.iter().filter(|row| row["generation"].as_u64().unwrap() > 1).count();
    assert!((10..=11).contains(&touched), "the others were left alone: {touched}");

    // Now it does.
    mode.store(TAKES_ALL, Ordering::SeqCst);
    let path = format!("operations/{}", canary(&gateway, "now it does").await);
    let whole = until("all are delivered", || async {
        let row = gateway.get(&path).await;
        (row["delivered"] == 28 || row["state"] == "stopped_by_canary").then_some(row)
    })
    .await;
    let facts = ["done", "delivered", "dead_again"].map(|field| whole[field].clone());
    assert_eq!(facts, [json!(28), json!(28), json!(0)], "{whole}");
    assert_eq!(whole["canary"]["wave"], 3, "1, 10, and the rest: {whole}");
    assert_eq!((dead(&gateway).await.len(), gateway.metric("hookgate_dlq_depth").await), (0, Some(0.0)));
    let asked: BTreeSet<String> = worker
        .journal()
        .iter()
        .filter(|seen| seen.method == "POST")
        .map(|seen| seen.header("idempotency-key").to_owned())
        .collect();
    assert_eq!(asked, keys.into_iter().collect());
}
