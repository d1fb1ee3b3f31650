//! `Idempotency-Key`, on every POST that the API's page has.

use crate::office::{CANARY, Office, TOKEN, office};
use crate::peer::{Peer, Reply};
use hookgate::ledger::{LedgerError, Redriven};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const ACME: &str = "/v1/tenants/acme";
const ITEM: &str = "{\"type\":\"push\",\"payload\":1}";

/// The paths of all POST routes of a tenant, with something of the office in each place that varies.
fn routes(office: &Office) -> Vec<String> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/api.md")).unwrap();
    let paths = page.lines().filter_map(|line| line.strip_prefix("### `POST /v1/tenants/{tenant}/")?.strip_suffix('`'));
    let dead = office.deliveries[0].to_string();
    let filled = |path: &str| {
        let path = path.replace("{source}", "partner").replace("{endpoint}", "billing").replace("{plugin}", "rules");
        format!("{ACME}/{}", path.replace("{delivery}", &dead))
    };
    paths.map(filled).collect()
}

/// A body that the route takes.
fn body(path: &str) -> Value {
    match path.rsplit('/').next().unwrap() {
        "events" => json!({ "type": "push", "payload": 1 }),
        "resolve" => json!({ "as": "not_sent" }),
        "activate" | "shadow" | "canary" => json!({ "version": "plg_019b76daa87b70008000000000000007" }),
        _ => json!({}),
    }
}

impl Office {
    async fn keyed(&self, path: &str, key: &str, body: &str) -> Reply {
        self.ask("POST", path, &format!("content-type: application/json\r\nidempotency-key: {key}\r\n"), body).await
    }
}

fn facts(reply: &Reply) -> (u16, Option<&str>, &[u8]) {
    (reply.status, reply.header("content-type"), &reply.body)
}

#[tokio::test]
async fn every_post_is_done_once_under_a_key() {
    let all = routes(&office().await);
    assert!(all.len() >= 14, "{all:?}");
    let mut succeeded = BTreeSet::new();
    for path in all {
        // An office of its own for each, so that every verb finds things as they are at first.
        let office = office().await;
        let text = body(&path).to_string();
        let first = office.keyed(&path, "k-1", &text).await;
        assert!(first.status < 500, "{path}: {first:?}");
        assert_eq!(first.header("idempotency-replayed"), None, "{path}");
        let verb = path.rsplit('/').next().unwrap().to_owned();
        succeeded.extend((first.status < 300).then_some(verb));
        // What changed in between does not show, and nothing is asked of those behind.
        office.post(&format!("{ACME}/endpoints/billing/disable"), "{}").await;
        let asked = office.yard.asked.lock().unwrap().len();
        let again = office.keyed(&path, "k-1", &text).await;
        assert_eq!(facts(&again), facts(&first), "{path}");
        assert_eq!(again.header("idempotency-replayed"), Some("true"), "{path}");
        assert_eq!(office.yard.asked.lock().unwrap().len(), asked, "{path}: done again");
        for (other, text) in [(path.as_str(), "{ }".to_owned()), (&format!("{path}?another=1"), text)] {
            let refused = office.keyed(other, "k-1", &text).await;
            assert_eq!((refused.status, refused.code().as_str()), (422, "idempotency_key_reused"), "{other}");
            assert_eq!(refused.json()["field"], "idempotency-key");
        }
        // Another tenant's key is another key.
        let theirs = path.replace("/acme/", "/globex/");
        assert_eq!(office.keyed(&theirs, "k-1", "{}").await.header("idempotency-replayed"), None, "{theirs}");
    }
    for verb in ["events", "pause", "resume", "enable", "disable", "redrive", "resolve", "forget-secret"] {
        assert!(succeeded.contains(verb), "{verb} was only ever refused: {succeeded:?}");
    }
}

#[tokio::test]
async fn keys_that_are_none() {
    let office = office().await;
    let long = format!("idempotency-key: {}\r\n", "x".repeat(256));
    let twice = "idempotency-key: a\r\nidempotency-key: b\r\n";
    for headers in
        ["idempotency-key: \r\n", "idempotency-key: a b\r\n", "idempotency-key: \u{e9}\r\n", long.as_str(), twice]
    {
        for path in routes(&office) {
            let headers = format!("content-type: application/json\r\n{headers}");
            let reply = office.ask("POST", &path, &headers, &body(&path).to_string()).await;
            assert_eq!((reply.status, reply.code().as_str()), (422, "invalid"), "{path} {headers}");
            assert_eq!(reply.json()["field"], "idempotency-key");
        }
    }
    assert!(office.ledger.stored.lock().unwrap().is_empty() && office.ledger.redriven_with.lock().unwrap().is_none());
    let longest = "x".repeat(255);
    assert_eq!(office.keyed(&format!("{ACME}/events"), &longest, ITEM).await.status, 200);
}

#[tokio::test]
async fn while_the_first_is_under_way_the_second_is_told_to_wait() {
    let office = office().await;
    let events = format!("{ACME}/events");
    let held = office.ledger.hold.write().await;
    let mut first = Peer::connect(office.address).await;
    let head = format!(
        "POST {events} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {TOKEN}\r\ncontent-type: application/json\r\n\
         idempotency-key: k\r\ncontent-length: {}\r\n\r\n{ITEM}",
        ITEM.len()
    );
    first.send(&head).await;
    // poll: the first has reached the ledger
    while office.ledger.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    for body in [ITEM, "{\"type\":\"push\",\"payload\":2}"] {
        let second = office.keyed(&events, "k", body).await;
        assert_eq!((second.status, second.code().as_str()), (409, "request_in_progress"));
        assert_eq!(second.header("retry-after"), Some("1"));
    }
    drop(held);
    let first = first.reply().await.unwrap();
    assert_eq!(first.status, 200);
    let again = office.keyed(&events, "k", ITEM).await;
    assert_eq!((facts(&again), again.header("idempotency-replayed")), (facts(&first), Some("true")));
    assert_eq!(office.ledger.stored.lock().unwrap().len(), 1);
}

/// Whoever hangs up leaves the key free.
#[tokio::test]
async fn a_caller_that_has_gone_holds_no_key() {
    let office = office().await;
    let events = format!("{ACME}/events");
    let held = office.ledger.hold.write().await;
    let mut first = Peer::connect(office.address).await;
    let head = format!(
        "POST {events} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {TOKEN}\r\ncontent-type: application/json\r\n\
         idempotency-key: k\r\ncontent-length: {}\r\n\r\n{ITEM}",
        ITEM.len()
    );
    first.send(&head).await;
    // poll: the first has reached the ledger
    while office.ledger.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    drop(first);
    drop(held);
    let again = loop {
        // poll: the server has noticed
        let again = office.keyed(&events, "k", ITEM).await;
        if again.status != 409 {
            break again;
        }
    };
    assert_eq!(again.status, 200);
    assert_eq!(office.ledger.stored.lock().unwrap().len(), 1, "whether it was stored before or not");
}

/// As a process that dies between the effect and the kept answer.
#[tokio::test]
async fn what_was_done_and_not_kept_is_found_again() {
    let office = office().await;
    let events = format!("{ACME}/events");
    let own = "{\"type\":\"push\",\"key\":\"own\",\"payload\":1}";
    let batch = format!("{{\"events\":[{ITEM},{own},{ITEM}]}}");
    *office.ledger.keeps_no_answer.lock().unwrap() = true;
    let one = office.keyed(&events, "one", ITEM).await.json();
    let many = office.keyed(&events, "many", &batch).await.json();
    let ids = |items: &Value| items["items"].as_array().unwrap().iter().map(|i| i["event"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&many).iter().map(Value::to_string).collect::<BTreeSet<_>>().len(), 3, "like items are not one");
    *office.ledger.keeps_no_answer.lock().unwrap() = false;

    let again = office.keyed(&events, "one", ITEM).await;
    assert_eq!(again.json(), json!({ "event": one["event"], "duplicate": true }));
    assert_eq!(again.header("idempotency-replayed"), None, "it is the verb that knows");
    let again = office.keyed(&events, "many", &batch).await.json();
    assert_eq!(ids(&again), ids(&many));
    assert!(again["items"].as_array().unwrap().iter().all(|item| item["duplicate"] == true), "{again}");
    assert_eq!(office.ledger.stored.lock().unwrap().len(), 4);

    *office.ledger.keeps_no_answer.lock().unwrap() = true;
    office.keyed(&events, "other", ITEM).await;
    let other = office.keyed(&events, "other", "{\"type\":\"push\",\"payload\":2}").await;
    assert_eq!((other.status, other.code().as_str()), (422, "idempotency_key_reused"));
    *office.ledger.redrive_answers.lock().unwrap() = Some(Redriven::RequestReused);
    let redrive = office.keyed(&format!("{ACME}/deliveries/{}/redrive", office.deliveries[0]), "r", "").await;
    assert_eq!((redrive.status, redrive.code().as_str()), (422, "idempotency_key_reused"));
}

/// What says to come again is asked again in earnest.
#[tokio::test]
async fn a_fault_of_ours_is_not_kept() {
    let office = office().await;
    let (events, batch) = (format!("{ACME}/events"), format!("{{\"events\":[{ITEM}]}}"));
    // One that the batch tells of in an item, one that it answers with as a whole.
    for fault in [LedgerError::Quarantined("row 7".to_owned()), LedgerError::Unavailable("full".to_owned())] {
        let key = format!("{}", fault.to_string().len());
        let gone = office.ledger.hold.write().await;
        let ask = tokio::spawn({
            let (address, events, batch, key) = (office.address, events.clone(), batch.clone(), key.clone());
            async move {
                let length = batch.len();
                let head = format!(
                    "POST {events} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {TOKEN}\r\n\
                     content-type: application/json\r\nidempotency-key: {key}\r\ncontent-length: {length}\r\n\r\n{batch}"
                );
                crate::peer::ask(address, head).await
            }
        });
        // poll: the request is past the look at kept answers
        while office.ledger.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        *office.ledger.fault.lock().unwrap() = Some(fault);
        drop(gone);
        let failed = ask.await.unwrap();
        assert!(failed.status == 503 || failed.json()["items"][0]["error"]["status"] == 500, "{failed:?}");
        *office.ledger.fault.lock().unwrap() = None;
        let again = office.keyed(&events, &key, &batch).await;
        assert_eq!((again.status, &again.json()["items"][0]["duplicate"]), (200, &json!(false)));
    }
    assert!(office.ledger.kept.lock().unwrap().values().all(|(answer, _)| !answer.body.is_empty()));
    assert!(!format!("{:?}", office.ledger.kept.lock().unwrap()).contains(CANARY));
}
