//! SCENARIOS 4, billing callbacks: backoff ladder, triage, redrive, on `examples/billing-callbacks`.

use super::examples::{all, crash_loop, example, wait_after};
use super::{Gateway, Receiver, Reply, until};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SECRET: &str = "whsec_YmlsbGluZy1jYWxsYmFja3MtdGVzdA==";
const LADDER: &str = "delays = [\"30s\", \"2m\", \"10m\", \"1h\", \"6h\"]";
const QUICK: (&str, &str) = (LADDER, "delays = [\"50ms\", \"100ms\", \"150ms\", \"200ms\", \"250ms\"]");

async fn callbacks(partner: &Receiver, reseller: &Receiver, edits: &[(&str, &str)]) -> Gateway {
    let (partner, reseller) = (partner.addr.to_string(), reseller.addr.to_string());
    let places = [
        ("127.0.0.1/32:9004", "127.0.0.1/32"),
        ("127.0.0.1:9004", partner.as_str()),
        ("127.0.0.1:9014", reseller.as_str()),
    ];
    let mut gateway = example("billing-callbacks", &[edits, &places[..]].concat());
    gateway.env.insert("BILLING_WEBHOOK_SECRET", SECRET.to_owned());
    gateway.boot().await;
    gateway
}

fn invoices(count: usize) -> Value {
    let item = |n| json!({"type": "invoice.sent", "payload": {"invoice": n}});
    json!({"events": (0..count).map(item).collect::<Vec<_>>()})
}

/// Posts a signed event; gives the status.
fn send(gateway: &Gateway, secret: &str, body: &str) -> String {
    let url = format!("http://{}/in/acme/billing", gateway.ingress);
    let args = ["send", &url, "--scheme=standard-webhooks", "--secret", secret, "--data", body, "--json"];
    let output = gateway.command(&args).output().unwrap();
    String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
}

/// A certificate has expired: no handshake succeeds. The first rung's waits lie anywhere within its 30 s.
#[tokio::test]
async fn four_thousand_retries_do_not_come_back_as_a_wave() {
    let (partner, reseller) = (Receiver::kind().await, Receiver::kind().await);
    let no_tls = ("http://127.0.0.1:9004", "https://127.0.0.1:9004");
    let mut gateway = callbacks(&partner, &reseller, &[no_tls]).await;
    for _ in 0..4 {
        assert_eq!(gateway.post("events", &invoices(1_000)).await.status, 200);
    }
    until("all have failed once", || async {
        let stats = gateway.get("stats?endpoint=partner").await;
        (stats["endpoints"][0]["by_attempt"][0]["tried"] == 4_000).then_some(())
    })
    .await;
    gateway.kill();
    gateway.boot().await;
    let rows = all(&gateway, "deliveries?endpoint=partner&").await;
    assert_eq!(rows.len(), 4_000, "none is lost");
    assert!(rows.iter().all(|row| ["pending", "in_flight"].contains(&row["state"].as_str().unwrap())));
    assert_eq!(gateway.metric("hookgate_dlq_depth").await, Some(0.0));

    let mut waits = Vec::new();
    for row in rows.iter().step_by(10) {
        let attempt = gateway.delivery(row["id"].as_str().unwrap()).await["attempts"][0].clone();
        assert_eq!((&attempt["reason"], &attempt["outcome"]), (&json!("tls"), &json!("unreachable")), "{attempt}");
        waits.push(wait_after(&attempt));
    }
    assert!(waits.iter().all(|wait| *wait <= Duration::from_millis(30_100)), "{waits:?}");
    let mut by_second = BTreeMap::new();
    for wait in &waits {
        *by_second.entry(wait.as_secs().min(29)).or_insert(0_usize) += 1;
    }
    // 400 over 30 s: 13 a second on average, and by chance hardly ever over 30.
    assert!(by_second.len() >= 25, "they lie everywhere: {by_second:?}");
    let (most, average) = (by_second.values().max().unwrap(), waits.len() / 30);
    assert!(*most <= 3 * average, "{most} in a second, {average} on average: {by_second:?}");
}

/// The ladder runs out, with a reason on each rung; triage tells a dead endpoint from one that is back; a redrive,
/// killed in its middle, brings back what the one that is back never got.
#[tokio::test]
async fn a_wall_of_502s_and_a_wall_of_410s() {
    let mended = Arc::new(AtomicBool::new(false));
    let is_mended = Arc::clone(&mended);
    let partner =
        Receiver::start(move |_, _| Reply::status(if is_mended.load(Ordering::SeqCst) { 204 } else { 502 })).await;
    let reseller = Receiver::sequence(&[410]).await;
    let mut gateway = callbacks(&partner, &reseller, &[QUICK]).await;
    gateway.post("events", &invoices(60)).await;
    gateway.post("events", &json!({"type": "invoice.paid", "payload": {"invoice": 61}})).await;
    let dead = gateway.until_deliveries("state=dead&endpoint=partner", 61).await;
    for attempt in gateway.delivery(dead[0]["id"].as_str().unwrap()).await["attempts"].as_array().unwrap() {
        assert_eq!((&attempt["status"], &attempt["reason"]), (&json!(502), &json!("http_502")), "{attempt}");
        let last = attempt["number"] == 6;
        assert_eq!(attempt["disposition"], if last { "dead" } else { "retry_at" });
        assert!(last || wait_after(attempt) <= Duration::from_millis(350), "{attempt}");
    }
    assert!(dead.iter().all(|row| row["attempt_count"] == 6));

    let groups = gateway.get("dlq/groups").await["items"].as_array().unwrap().clone();
    let facts: Vec<_> = groups.iter().map(|g| (g["status"].clone(), g["reason"].clone(), g["count"].clone())).collect();
    let expected = [(json!(502), json!("http_502"), json!(61)), (json!(410), json!("http_410"), json!(1))];
    assert_eq!(facts, expected, "{groups:?}");
    for group in &groups {
        assert_eq!(group["host"], "127.0.0.1");
        let sample = gateway.delivery(group["sample"].as_str().unwrap()).await;
        assert_eq!((&sample["state"], &sample["reason"]), (&json!("dead"), &group["reason"]));
    }
    let endpoint = gateway.get("endpoints/reseller").await;
    assert_eq!((&endpoint["status"], &endpoint["why"]), (&json!("disabled"), &json!("http_410")), "{endpoint}");
    gateway.post("events", &json!({"type": "invoice.paid", "payload": {"invoice": 62}})).await;
    gateway.until_deliveries("state=pending&endpoint=reseller", 1).await;
    assert_eq!(reseller.count(), 1, "nothing more is sent there");

    mended.store(true, Ordering::SeqCst);
    let ids = |output: std::process::Output| String::from_utf8(output.stdout).unwrap();
    let list = ["dlq", "list", "--status=502", "--limit=1000", "-q"];
    let dead = ids(gateway.command(&list).output().unwrap());
    let args =
        [&["dlq", "redrive", "--note=the certificate is renewed"], &dead.lines().collect::<Vec<_>>()[..]].concat();
    let mut redrive = gateway.command(&args).stdout(std::process::Stdio::null()).spawn().unwrap();
    until("some are back", || async { (partner.count() > 61 * 6 + 10).then_some(()) }).await;
    gateway.kill();
    let _ = redrive.wait().unwrap();
    gateway.boot().await;
    let left = ids(gateway.command(&list).output().unwrap());
    if !left.is_empty() {
        let rest = [&["dlq", "redrive", "--note=the rest"], &left.lines().collect::<Vec<_>>()[..]].concat();
        assert!(gateway.command(&rest).output().unwrap().status.success());
    }
    let rows = gateway.until_deliveries("state=delivered&endpoint=partner", 62).await;
    // The one of after the outage went straight through, in its first generation.
    let generations = rows.iter().filter(|row| row["generation"] == 2).count();
    assert_eq!((generations, gateway.get("dlq?endpoint=partner").await["items"].as_array().unwrap().len()), (61, 0));
}

/// The other way into the DLQ: started three times in a row without ever reporting back.
#[tokio::test]
async fn what_takes_the_process_with_it_is_left() {
    let (partner, reseller) = (Receiver::start(|_, _| Reply::Hang).await, Receiver::kind().await);
    let mut gateway = callbacks(&partner, &reseller, &[QUICK]).await;
    gateway.post("events", &invoices(1)).await;
    let dead = crash_loop(&mut gateway, &partner).await;
    assert_eq!((&dead["attempt_count"], &dead["state"]), (&json!(3), &json!("dead")));
}

/// What both partners have is no longer here; what one of them could not take is here until it has it.
#[tokio::test]
async fn what_was_delivered_is_scrubbed() {
    let mended = Arc::new(AtomicBool::new(false));
    let is_mended = Arc::clone(&mended);
    let partner = Receiver::kind().await;
    let reseller =
        Receiver::start(move |_, _| Reply::status(if is_mended.load(Ordering::SeqCst) { 200 } else { 400 })).await;
    let scrub = ("[tenants.acme.retention]", "[tenants.acme]\nscrub = true\n[tenants.acme.retention]");
    let gateway = callbacks(&partner, &reseller, &[scrub]).await;
    let body_of = async |event: &Value| {
        let path = format!("events/{}/body", event.as_str().unwrap());
        gateway.send(gateway.api("GET", &path)).await.unwrap().status
    };
    gateway.post("events", &invoices(1)).await;
    let sent = gateway.until_deliveries("state=delivered&endpoint=partner", 1).await.remove(0);
    assert_eq!(body_of(&sent["event"]).await, 410);
    let id = sent["id"].as_str().unwrap();
    let resend = gateway.post(&format!("deliveries/{id}/resend"), &json!({})).await;
    assert_eq!((resend.status, &resend.json()["code"]), (409, &json!("payload_erased")), "{}", resend.text);
    let kept = gateway.delivery(id).await;
    assert_eq!((&kept["attempts"][0]["status"], &kept["attempts"][0]["response_body"]), (&json!(204), &Value::Null));

    gateway.post("events", &json!({"type": "invoice.paid", "payload": {"invoice": 2}})).await;
    gateway.until_deliveries("state=delivered&endpoint=partner", 2).await;
    let dead = gateway.until_deliveries("state=dead&endpoint=reseller", 1).await.remove(0);
    assert_eq!(body_of(&dead["event"]).await, 200, "a dead letter keeps what it is to be redriven with");
    mended.store(true, Ordering::SeqCst);
    let redrive = format!("deliveries/{}/redrive", dead["id"].as_str().unwrap());
    let answer = gateway.post(&redrive, &json!({"note": "their parser is mended"})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    gateway.until_deliveries("state=delivered&endpoint=reseller", 1).await;
    assert_eq!(body_of(&dead["event"]).await, 410);
    assert_eq!((partner.count(), reseller.count()), (2, 2));
}

/// What is forged is refused before anything is stored, what is genuine outlives a kill; no payload is readable on the
/// disk, and what is over is erased and counted.
#[tokio::test]
async fn forged_events_and_private_payloads() {
    let (partner, reseller) = (Receiver::kind().await, Receiver::kind().await);
    let mut gateway = callbacks(&partner, &reseller, &[("payloads = \"14d\"", "payloads = \"1s\"")]).await;
    let forged =
        send(&gateway, "whsec_Zm9yZ2VkLWZvcmdlZC1mb3JnZWQ=", "{\"type\":\"invoice.paid\",\"iban\":\"DE00-8812\"}");
    assert!(forged.contains("401"), "{forged}");
    assert_eq!(gateway.get("events").await["items"], json!([]));
    until("the refusal is in the log", || async {
        let kept = gateway.get("rejections").await["items"].clone();
        (kept[0]["reason"] == "signature_mismatch").then_some(())
    })
    .await;
    let genuine = send(&gateway, SECRET, "{\"type\":\"invoice.paid\",\"iban\":\"DE00-8812\"}");
    assert!(genuine.contains("200"), "{genuine}");
    gateway.kill();
    gateway.boot().await;
    gateway.until_deliveries("state=delivered", 2).await;
    gateway.until_drained().await;
    let mut files = 0;
    for file in std::fs::read_dir(gateway.dir.path().join("data")).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() {
            continue;
        }
        let bytes = std::fs::read(path).unwrap();
        assert!(memchr::memmem::find(&bytes, b"DE00-8812").is_none(), "a payload can be read on the disk");
        files += 1;
    }
    assert!(files > 0);
    assert!(partner.journal().iter().all(|seen| memchr::memmem::find(&seen.body, b"DE00-8812").is_some()));
    let event = gateway.get("events").await["items"][0]["id"].as_str().unwrap().to_owned();
    // Retention looks at each start. poll: a second after the end of both deliveries it finds the payload
    loop {
        gateway.kill();
        gateway.boot().await;
        let body = gateway.send(gateway.api("GET", &format!("events/{event}/body"))).await.unwrap();
        if body.status == 410 {
            break;
        }
        assert_eq!(body.status, 200, "{}", body.text);
    }
    until("the purge says what it dropped", || async { gateway.log().contains("payloads_erased=1").then_some(()) })
        .await;
}
