//! SCENARIOS 2, who is woken on `examples/payment-reconciliation`: nobody by one dead letter; by depth, age and a deadline
//! at risk, each once.

use super::alerts::{kinds, until_firing, verified};
use super::examples::from_now;
use super::scenario_payment_reconciliation::{job, nightly};
use super::{Receiver, Reply};
use hookgate::clock::{Clock as _, SystemClock, Timestamp};
use serde_json::{Value, json};
use std::time::Duration;

const DEPTH: usize = 20;
const LATE: &str = "m-99:adyen:2026-01-31";
const AGE: &str = "dlq_oldest_age = \"12h\"";

#[tokio::test]
async fn depth_age_and_a_deadline_page_once_and_one_dead_letter_does_not() {
    let worker = Receiver::start(|seen, _| match seen.header("idempotency-key") {
        LATE => Reply::status(503),
        _ => Reply::body(422, "total is no number"),
    })
    .await;
    let ops = Receiver::kind().await;
    let address = ops.addr.to_string();
    let every = ("[tenants.acme.alerts]", "[alerts]\nevery = \"100ms\"\n\n[tenants.acme.alerts]");
    let mut gateway = nightly(&worker, &[("127.0.0.1:9002", address.as_str()), every]).await;
    let secret = gateway.command(&["-q", "endpoint", "secret", "ops"]).output().unwrap();
    let secret = String::from_utf8(secret.stdout).unwrap();

    gateway.post("events", &job("m-0:adyen:2026-01-31")).await;
    gateway.until_deliveries("state=dead", 1).await;
    // Its next attempt is far off: nothing moves until half of the time it was given is over.
    let mut late = job(LATE);
    late["deadline"] = json!(from_now(Duration::from_secs(8)));
    gateway.post("events", &late).await;
    ops.until_count(1).await;
    let told = verified(&ops, secret.trim());
    assert_eq!(kinds(&told), ["deadline_risk"], "many looks saw the dead letter, and none told of it");
    assert_eq!(told[0]["due"], late["deadline"]);
    assert!(SystemClock.now() < Timestamp::parse_rfc3339(told[0]["due"].as_str().unwrap()).unwrap(), "before it");
    let stuck = gateway.delivery(told[0]["sample"].as_str().unwrap()).await;
    assert_eq!((&stuck["key"], &stuck["state"]), (&json!(LATE), &json!("pending")));

    let events: Vec<Value> = (1..DEPTH).map(|n| job(&format!("m-{n}:adyen:2026-01-31"))).collect();
    gateway.post("events", &json!({ "events": events })).await;
    ops.until_count(2).await;
    // Nobody waits for 12 hours here: the operator's own mind changes, without a restart.
    let text = std::fs::read_to_string(gateway.config()).unwrap();
    assert!(text.contains(AGE));
    std::fs::write(gateway.config(), text.replace(AGE, "dlq_oldest_age = \"1s\"")).unwrap();
    gateway.signal(libc::SIGHUP);
    ops.until_count(3).await;
    let told = verified(&ops, secret.trim());
    assert_eq!(kinds(&told), ["deadline_risk", "dlq_depth", "dlq_oldest_age"]);
    assert_eq!((&told[1]["value"], &told[1]["threshold"]), (&json!(DEPTH), &json!(DEPTH)));
    assert_eq!((&told[2]["threshold"], &told[2]["unit"]), (&json!(1_000), &json!("ms")));

    gateway.until_deliveries("endpoint=ops&state=delivered", 3).await;
    gateway.kill();
    gateway.boot().await;
    for kind in kinds(&told) {
        until_firing(&gateway, kind, 1.0).await;
    }
    // What a look tells is durable before the look is over.
    let sent = gateway.get("deliveries?endpoint=ops").await["items"].as_array().unwrap().clone();
    assert_eq!((sent.len(), ops.count()), (3, 3), "a start tells nothing again: {sent:?}");
    let listed = gateway.command(&["alert", "list", "--firing", "--json"]).output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let of = |alerts: &[Value]| {
        let mut ids: Vec<_> = alerts.iter().map(|alert| alert["id"].as_str().unwrap().to_owned()).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(of(listed["items"].as_array().unwrap()), of(&told), "{listed}");
}
