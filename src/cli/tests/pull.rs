//! Consumers by hand.

use super::*;

const RECEIPTS: [&str; 3] = ["rct_one", "rct_two", "rct_lost"];

fn queue(line: &str) -> (u16, String) {
    let lost = json!({"status": 409, "code": "lease_lost", "detail": "too late\u{1b}", "delivery": "dlv_3"});
    let item = |receipt: &str, result: Value| {
        let mut item = result;
        item["receipt"] = receipt.into();
        item
    };
    let body = match line.strip_prefix(&format!("POST {T}/endpoints/")).unwrap() {
        "orders/consume" => json!({"status": "enabled", "next_due_at": null, "items": [{
            "receipt": "rct_one", "event_type": "order.made\u{1b}", "attempt": 2, "delivery": "dlv_1",
            "lease_until": "2026-01-31T08:00:00.000Z", "key": "order-7", "content_type": "application/json",
            "body_base64": "e30="}]}),
        "resting/consume" => {
            json!({"items": [], "status": "paused", "until": "2026-01-31T08:00:00.000Z", "why": "works",
                   "next_due_at": null})
        }
        "idle/consume" => {
            json!({"items": [], "status": "enabled", "next_due_at": "2026-01-31T08:00:00.000Z"})
        }
        "orders/ack" => json!({"items": [
            item("rct_one", json!({"result": "delivered", "delivery": "dlv_1"})),
            item("rct_two", json!({"result": "delivered", "delivery": "dlv_2"})),
            item("rct_lost", json!({"error": lost})),
        ]}),
        "orders/nack" => json!({"items": [item("rct_one", json!({
            "result": "retry_at", "delivery": "dlv_1", "reason": "busy", "due_at": "2026-01-31T08:00:00.000Z"}))]}),
        "orders/extend" => json!({"items": [item("rct_lost", json!({"error": lost}))]}),
        _ => return (409, json!({"detail": "it is sent to", "code": "not_pull"}).to_string()),
    };
    (200, body.to_string())
}

#[test]
fn what_is_fetched_is_shown_and_what_is_not_is_explained() {
    let server = Server::start(queue);
    let ran = server.run(&["endpoint", "consume", "orders", "--max=5", "--lease=90s"]);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    assert!(["rct_one", "order-7", "dlv_1", "2026-01-31T08:00:00.000Z"].iter().all(|told| ran.out.contains(told)));
    assert!(!ran.out.contains('\u{1b}'), "{}", ran.out);
    assert_eq!(server.last().body, json!({"max": 5, "lease": "90s"}));
    assert_eq!(server.run(&["endpoint", "consume", "orders", "-q"]).out, "rct_one\n");
    assert_eq!(server.last().body, json!({"max": 1}));
    let json: Value = serde_json::from_str(&server.run(&["endpoint", "consume", "orders", "--json"]).out).unwrap();
    assert_eq!(json["items"][0]["body_base64"], "e30=");
    for (name, told) in
        [("resting", "paused until 2026-01-31T08:00:00.000Z"), ("idle", "due before 2026-01-31T08:00:00.000Z")]
    {
        let ran = server.run(&["endpoint", "consume", name]);
        assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, ""), "{name}");
        assert!(ran.err.contains(told), "{}", ran.err);
    }
    assert_eq!(server.run(&["endpoint", "consume", "billing"]).exit, Exit::Conflict);
    assert_eq!(server.run(&["endpoint", "consume", "orders", "--max=101"]).exit, Exit::Usage);
    assert_eq!(server.run(&["endpoint", "consume", "orders", "--lease=soon"]).exit, Exit::Usage);
}

#[test]
fn each_receipt_stands_for_itself() {
    let server = Server::start(queue);
    let ran = server.run(&[&["endpoint", "ack", "orders"], &RECEIPTS[..]].concat());
    assert_eq!(ran.exit, Exit::Partly);
    assert!(ran.out.contains("delivered") && ran.out.contains("lease_lost"), "{}", ran.out);
    assert!(ran.err.contains("rct_lost: too late\\u{1b} (lease_lost)"), "{}", ran.err);
    let items: Vec<Value> = RECEIPTS.iter().map(|receipt| json!({"receipt": receipt})).collect();
    assert_eq!(server.last().body, json!({"items": items}));
    let quiet = server.run(&[&["endpoint", "ack", "orders", "-q"], &RECEIPTS[..]].concat());
    assert_eq!((quiet.exit, quiet.out.as_str()), (Exit::Partly, "rct_one\nrct_two\n"));

    let nack = ["endpoint", "nack", "orders", "rct_one", "--delay=10m", "--reason=busy"];
    let ran = server.run(&nack);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    assert!(ran.out.contains("retry_at") && ran.out.contains("2026-01-31T08:00:00.000Z"), "{}", ran.out);
    let item = json!({"receipt": "rct_one", "delay": "10m", "reason": "busy"});
    assert_eq!(server.last().body, json!({"items": [item]}));
    server.run(&["endpoint", "nack", "orders", "rct_one", "--terminal"]);
    let item = json!({"receipt": "rct_one", "terminal": true});
    assert_eq!(server.last().body, json!({"items": [item]}));

    let ran = server.run(&["endpoint", "extend", "orders", "rct_lost", "--lease=5m"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Conflict, ""));
    let both = ["endpoint", "nack", "orders", "rct_one", "--terminal", "--delay=1s"];
    assert_eq!(server.run(&both).exit, Exit::Usage);
    let two = ["endpoint", "ack", "orders", "rct_one", "rct_two", "--reference=r"];
    assert_eq!(server.run(&two).exit, Exit::Usage);
}
