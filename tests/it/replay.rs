//! What was sent is sent once more: one delivery, a time range over a kill, and what happens to a redrive meanwhile.

use super::shipping::{activate, config as with_rules, sends, shipped};
use super::{Gateway, Receiver, Reply, endpoint, github_source, until};
use hookgate::clock::{Clock as _, SystemClock};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

async fn until_operation(gateway: &Gateway, id: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let path = format!("operations/{id}");
    until(what, || async { Some(gateway.get(&path).await).filter(|row| is(row)) }).await
}

async fn publish(gateway: &Gateway, events: usize) {
    for chunk in (0..events).collect::<Vec<_>>().chunks(100) {
        let batch: Vec<Value> = chunk.iter().map(|n| json!({"type": "invoice.paid", "payload": {"n": n}})).collect();
        assert_eq!(gateway.post("events", &json!({ "events": batch })).await.status, 200);
    }
}

/// Until the clock's second is another one.
async fn until_second_after(seconds: u64) {
    until("the next second", || async {
        let now = u64::try_from(SystemClock.now().as_millis()).unwrap() / 1_000;
        (now > seconds).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_resend_is_another_message_with_a_signature_of_its_own() {
    let receiver = Receiver::kind().await;
    let gateway = Gateway::start(&(github_source() + &endpoint("billing", &receiver.url("/"), ""))).await;
    gateway.accepted(gateway.github("1", "push", "{\"v\": 1}")).await;
    let first = gateway.until_deliveries("state=delivered", 1).await.remove(0);
    let id = first["id"].as_str().unwrap();
    let sent_at: u64 = receiver.journal()[0].header("webhook-timestamp").parse().unwrap();
    until_second_after(sent_at).await;
    let resend = async || {
        let request = gateway.api("POST", &format!("deliveries/{id}/resend")).header("idempotency-key", "r-1");
        gateway.send(request.json(&json!({"note": "they lost it"}))).await.unwrap()
    };
    let made = resend().await;
    assert_eq!(made.status, 201, "{}", made.text);
    assert_eq!(resend().await.json()["id"], made.json()["id"], "asked twice, made once");
    let seen = receiver.until_count(2).await;
    gateway.until_deliveries("state=delivered", 2).await;
    assert_eq!((seen.len(), &seen[0].body), (2, &seen[1].body));
    assert_eq!(seen[1].header("webhook-id"), made.json()["id"].as_str().unwrap());
    assert_ne!(seen[0].header("webhook-id"), seen[1].header("webhook-id"));
    assert_eq!(seen[1].header("idempotency-key"), format!("{}:resend-1", seen[0].header("idempotency-key")));
    assert!(seen[1].header("webhook-timestamp").parse::<u64>().unwrap() > sent_at, "signed anew");
    assert_ne!(seen[0].header("webhook-signature"), seen[1].header("webhook-signature"));
    let (before, after) = (gateway.delivery(id).await, gateway.delivery(seen[1].header("webhook-id")).await);
    assert_eq!((&before["resends"], &after["resend_of"]), (&json!([after["id"]]), &json!(id)));
    assert_eq!((&after["origin"], &after["state"]), (&json!("resend"), &json!("delivered")));
    // The same on the command line.
    let mut command = gateway.command(&["delivery", "resend", id, "--quiet"]);
    let ran = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let third = String::from_utf8(ran.stdout).unwrap();
    assert_eq!(receiver.until_count(3).await[2].header("webhook-id"), third.trim());
}

#[tokio::test]
async fn an_endpoint_that_came_later_gets_what_it_missed_over_a_kill() {
    const EVENTS: usize = 240;
    let (billing, audit) = (Receiver::kind().await, Receiver::kind().await);
    let mut gateway = Gateway::start(&endpoint("billing", &billing.url("/"), "")).await;
    publish(&gateway, EVENTS).await;
    gateway.until_drained().await;
    let text = std::fs::read_to_string(gateway.config()).unwrap();
    std::fs::write(gateway.config(), text + &endpoint("audit", &audit.url("/"), "")).unwrap();
    gateway.signal(libc::SIGHUP);
    until("audit is declared", || async {
        let all = gateway.get("endpoints").await;
        all["items"].as_array().unwrap().iter().any(|row| row["name"] == "audit").then_some(())
    })
    .await;
    publish(&gateway, 10).await;
    audit.until_count(10).await;
    let wish = |more: Value| {
        let mut wish = json!({"filter": {"type": "invoice.paid"}, "only_missed": true});
        wish.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        wish
    };
    let replay = "endpoints/audit/replay";
    let dry = gateway.post(replay, &wish(json!({"dry_run": true}))).await.json();
    assert_eq!((&dry["count"], dry["samples"].as_array().unwrap().len()), (&json!(EVENTS), 10), "{dry}");
    let begun = gateway.post(replay, &wish(json!({"rate": 100, "note": "audit is new"}))).await;
    assert_eq!(begun.status, 202, "{}", begun.text);
    let id = begun.json()["id"].as_str().unwrap().to_owned();
    until_operation(&gateway, &id, "some are replayed", |row| row["done"].as_u64().unwrap() >= 50).await;
    gateway.kill();
    gateway.boot().await;
    let done = until_operation(&gateway, &id, "all are replayed", |row| row["state"] == "done").await;
    assert_eq!(
        (&done["kind"], &done["total"], &done["done"]),
        (&json!("replay"), &json!(EVENTS), &json!(EVENTS)),
        "{done}"
    );
    until_operation(&gateway, &id, "all are delivered", |row| row["delivered"] == EVENTS).await;
    // One delivery of each event, each with an id of its own, whatever was on the wire when the process was killed.
    let seen = audit.journal();
    let posts: Vec<_> = seen.iter().filter(|seen| seen.method == "POST").collect();
    let ids: BTreeSet<&str> = posts.iter().map(|seen| seen.header("webhook-id")).collect();
    let events: BTreeSet<String> =
        posts.iter().map(|seen| seen.header("idempotency-key").replace(":resend-1", "")).collect();
    assert_eq!((ids.len(), events.len()), (EVENTS + 10, EVENTS + 10));
    for id in &ids {
        let row = gateway.delivery(id).await;
        let times = posts.iter().filter(|seen| seen.header("webhook-id") == *id).count();
        let interrupted = row["attempts"].as_array().unwrap().iter().filter(|a| a["outcome"] == "interrupted").count();
        assert!(times >= 1 && times <= 1 + interrupted, "{times} requests: {row}");
    }
    // The export has them all, a line each.
    let mut command = gateway.command(&["delivery", "export", "--endpoint", "audit", "--bodies"]);
    let ran = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let lines: Vec<Value> =
        String::from_utf8(ran.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let replayed = lines.iter().filter(|row| row["origin"] == "replay").count();
    let exported: BTreeSet<&str> = lines.iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!((lines.len(), exported, replayed), (EVENTS + 10, ids, EVENTS));
    assert!(lines.iter().all(|row| row["body"].as_str().unwrap().starts_with("{\"n\":")), "{}", lines[0]);
    // Nothing is missed any more, and the billing endpoint saw nothing of it.
    let again = gateway.post(replay, &wish(json!({}))).await;
    assert_eq!((again.status, &again.json()["count"]), (200, &json!(0)));
    assert_eq!(billing.count(), EVENTS + 10);
}

/// A receiver that answers with what it is told to.
async fn told(status: u16) -> (Receiver, Arc<AtomicU16>) {
    let status = Arc::new(AtomicU16::new(status));
    let answer = Arc::clone(&status);
    (Receiver::start(move |_, _| Reply::status(answer.load(Ordering::SeqCst))).await, status)
}

async fn until_dead(gateway: &Gateway, letters: usize) {
    until("all are dead", || async {
        (gateway.metric("hookgate_dlq_depth").await == Some(letters as f64)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_endpoint_is_taken_from_the_file_while_its_letters_are_redriven() {
    const LETTERS: usize = 60;
    let (receiver, status) = told(400).await;
    let gateway = Gateway::start(&(github_source() + &endpoint("billing", &receiver.url("/"), ""))).await;
    publish(&gateway, LETTERS).await;
    until_dead(&gateway, LETTERS).await;
    status.store(200, Ordering::SeqCst);
    let begun = gateway.post("dlq/redrive", &json!({"filter": {}, "rate": 40})).await;
    let id = begun.json()["id"].as_str().unwrap().to_owned();
    until_operation(&gateway, &id, "some are redriven", |row| row["done"].as_u64().unwrap() >= 10).await;
    let whole = std::fs::read_to_string(gateway.config()).unwrap();
    std::fs::write(gateway.config(), whole.split("[tenants.acme.endpoints").next().unwrap()).unwrap();
    gateway.signal(libc::SIGHUP);
    let done = until_operation(&gateway, &id, "it is done", |row| row["state"] == "done").await;
    assert_eq!((&done["done"], &done["skipped"]["no_longer_dead"]), (&json!(LETTERS), &json!(0)), "{done}");
    // Declared again, it gets what waits for it; each once.
    std::fs::write(gateway.config(), whole).unwrap();
    gateway.signal(libc::SIGHUP);
    until_operation(&gateway, &id, "all are delivered", |row| row["delivered"] == LETTERS).await;
    let after: Vec<String> = receiver
        .journal()
        .iter()
        .filter(|seen| seen.method == "POST")
        .skip(LETTERS)
        .map(|seen| seen.header("webhook-id").to_owned())
        .collect();
    assert_eq!((after.len(), after.iter().collect::<BTreeSet<_>>().len()), (LETTERS, LETTERS));
}

#[tokio::test]
async fn a_plugin_is_exchanged_while_letters_are_redriven() {
    const LETTERS: usize = 40;
    let (receiver, status) = told(400).await;
    let gateway = Gateway::start(&with_rules(&receiver, "")).await;
    let one = shipped(&gateway, "", sends("first rules")).await;
    let two = shipped(&gateway, "", sends("second rules")).await;
    activate(&gateway, &one).await;
    publish(&gateway, LETTERS).await;
    until_dead(&gateway, LETTERS).await;
    status.store(200, Ordering::SeqCst);
    let begun = gateway.post("dlq/redrive", &json!({"filter": {"plugin_version": one}, "rate": 40})).await;
    assert_eq!(begun.status, 202, "{}", begun.text);
    let id = begun.json()["id"].as_str().unwrap().to_owned();
    until_operation(&gateway, &id, "some are redriven", |row| row["done"].as_u64().unwrap() >= 10).await;
    activate(&gateway, &two).await;
    // The last may be delivered before the operation has seen that there are no more.
    let is_over = |row: &Value| row["delivered"] == LETTERS && row["state"] == "done";
    let done = until_operation(&gateway, &id, "all are delivered", is_over).await;
    assert_eq!((&done["total"], &done["done"]), (&json!(LETTERS), &json!(LETTERS)), "{done}");
    let bodies: Vec<String> = receiver
        .journal()
        .iter()
        .filter(|seen| seen.method == "POST")
        .skip(LETTERS)
        .map(|seen| String::from_utf8(seen.body.to_vec()).unwrap())
        .collect();
    let of = |rules: &str| bodies.iter().filter(|body| body.as_str() == rules).count();
    assert_eq!(
        (bodies.len(), of("first rules") + of("second rules")),
        (LETTERS, LETTERS),
        "each by one version, whole"
    );
    assert!(of("first rules") > 0 && of("second rules") > 0);
}
