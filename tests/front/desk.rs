//! The dead-letter desk: what is asked of it, and what it refuses.

use crate::office::{NOW, assert_golden, office, version};
use hookgate::admin::Down;
use hookgate::delivery::{DeliveryState, OperationId};
use hookgate::ledger::{BegunOperation, OperationState, Results, Skipped};
use serde_json::{Value, json};
use std::time::Duration;

const ACME: &str = "/v1/tenants/acme";

#[tokio::test]
async fn a_redrive_in_bulk() {
    let office = office().await;
    let redrive = format!("{ACME}/dlq/redrive");
    let dead = office.deliveries[0];
    let dry = office.post(&redrive, "{\"filter\":{\"reason\":\"http_500\"},\"dry_run\":true}").await;
    assert_golden("dlq-dry-run", &dry);
    assert_eq!(dry.json()["samples"][0]["id"], dead.to_string());
    assert!(office.ledger.operations.lock().unwrap().is_empty(), "nothing changed");
    assert!(office.yard.asked.lock().unwrap().is_empty());

    let asked = json!({
        "filter": {
            "endpoint": "billing", "source": "github", "type": "push", "key": "k", "reason": "http_500",
            "event": "evt_0190a0b0c0d07000800000000000000f", "status": 500, "host": "billing.example",
            "plugin_version": version(1), "since": "2025-12-31T23:00:00Z", "until": "2026-01-01T00:00:00Z",
            "ids": [dead], "q": "order-7",
        },
        "max": 40, "rate": 5, "canary": true, "note": "they are back",
    });
    let begun = office.post(&redrive, &asked.to_string()).await;
    assert_golden("operation-begun", &begun);
    assert_eq!(begun.status, 202);
    let mut filter = asked["filter"].clone();
    filter["since"] = "2025-12-31T23:00:00.000Z".into();
    filter["until"] = "2026-01-01T00:00:00.000Z".into();
    assert_eq!(begun.json()["filter"], filter, "the filter is what was asked");
    assert_eq!(*office.yard.asked.lock().unwrap(), ["probe billing billing.example", "news"]);
}

#[tokio::test]
async fn a_destination_that_is_down() {
    let office = office().await;
    let redrive = format!("{ACME}/dlq/redrive");
    let down = Down {
        endpoint: "billing".parse().unwrap(),
        host: "billing.example".into(),
        class: "connect".into(),
        detail: "connect: connection refused".into(),
    };
    *office.yard.down.lock().unwrap() = vec![down];
    let refused = office.post(&redrive, "{\"filter\":{}}").await;
    assert_golden("destination-down", &refused);
    assert!(office.ledger.operations.lock().unwrap().is_empty());
    for anyhow in ["{\"filter\":{},\"force\":true}", "{\"filter\":{},\"probe\":false}"] {
        office.yard.asked.lock().unwrap().clear();
        assert_eq!(office.post(&redrive, anyhow).await.status, 202, "{anyhow}");
        assert_eq!(*office.yard.asked.lock().unwrap(), ["news"], "{anyhow}");
    }
}

#[tokio::test]
async fn nothing_to_redrive_is_said_and_is_no_operation() {
    let office = office().await;
    office.ledger.rows.lock().unwrap().clear();
    let answer = office.post(&format!("{ACME}/dlq/redrive"), "{\"filter\":{\"reason\":\"typo\"}}").await;
    assert_eq!((answer.status, answer.json()), (200, json!({"count": 0, "samples": []})));
    assert!(office.ledger.operations.lock().unwrap().is_empty());
}

#[tokio::test]
async fn refused_by_the_ledger() {
    let office = office().await;
    for (answer, code) in
        [(BegunOperation::RequestReused, "key_reused"), (BegunOperation::TooMany, "too_many_operations")]
    {
        *office.ledger.begin_answer.lock().unwrap() = Some(answer);
        let reply = office.post(&format!("{ACME}/dlq/redrive"), "{\"filter\":{}}").await;
        assert_eq!((reply.status, reply.code().as_str()), (409, code));
    }
}

#[tokio::test]
async fn a_purge_reports_what_it_dropped() {
    let office = office().await;
    let purge = format!("{ACME}/dlq/purge");
    let dry = office.post(&purge, "{\"filter\":{},\"dry_run\":true}").await.json();
    assert_eq!(dry["count"], 1);
    assert_golden("purged", &office.post(&purge, "{\"filter\":{}}").await);
    let rows = office.ledger.rows.lock().unwrap();
    let states: Vec<_> = rows.iter().map(|(_, row)| row.delivery.state).collect();
    assert_eq!((states[0], states[3]), (DeliveryState::Cancelled, DeliveryState::Dead), "not another tenant's");
}

#[tokio::test]
async fn operations() {
    let office = office().await;
    let begun = office.post(&format!("{ACME}/dlq/redrive"), "{\"filter\":{}}").await.json();
    let id = begun["id"].as_str().unwrap().to_owned();
    assert_eq!((&begun["time_left_seconds"], &begun["rate"]), (&json!(1), &json!(100)), "41 at 100 a second");
    let one = format!("{ACME}/operations/{id}");
    {
        let mut all = office.ledger.operations.lock().unwrap();
        all[0].state = OperationState::Running;
        all[0].started_at = Some(NOW.plus(Duration::from_secs(1)));
        all[0].rate = 2;
        all[0].done = 20;
        all[0].skipped = Skipped { expired: 1, payload_erased: 2, gone: 3, under_way: 0 };
        all[0].results = Results { delivered: 12, dead_again: 1, waiting: 6, otherwise: 1 };
        all[0].old_reasons = [("http_502".to_owned(), 20)].into();
    }
    assert_golden("operation", &office.get(&one).await);
    assert_golden("operations", &office.get(&format!("{ACME}/operations?limit=7")).await);
    assert!(office.asked().contains("limit: 7"));
    for (verb, state) in
        [("pause", "paused"), ("pause", "paused"), ("resume", "queued"), ("resume", "queued"), ("stop", "stopped")]
    {
        let reply = office.post(&format!("{one}/{verb}"), "").await;
        assert_eq!((reply.status, reply.json()["state"].as_str()), (200, Some(state)), "{verb}");
    }
    let ended = office.post(&format!("{one}/resume"), "{}").await;
    assert_golden("operation-ended", &ended);
    // Not there, not an id, another tenant's: all alike.
    let unknown = OperationId::from_u128(0x019b_76da_a87b_7000_8000_0000_0000_0042);
    for path in [
        format!("{ACME}/operations/{unknown}"),
        format!("{ACME}/operations/x"),
        format!("/v1/tenants/globex/operations/{id}"),
    ] {
        assert_eq!(office.get(&path).await.status, 404, "{path}");
        for verb in ["stop", "pause", "resume"] {
            assert_eq!(office.post(&format!("{path}/{verb}"), "").await.status, 404, "{path}/{verb}");
        }
    }
    for (method, path, allow) in [
        ("GET", format!("{one}/stop"), "POST"),
        ("POST", one.clone(), "GET"),
        ("DELETE", format!("{ACME}/operations"), "GET"),
        ("GET", format!("{ACME}/dlq/redrive"), "POST"),
        ("GET", format!("{ACME}/dlq/purge"), "POST"),
    ] {
        let reply = office.ask(method, &path, "", "").await;
        assert_eq!((reply.status, reply.header("allow")), (405, Some(allow)), "{method} {path}");
    }
    assert_eq!(office.post(&format!("{one}/stop"), "{\"now\":true}").await.code(), "unknown_field");
}

#[tokio::test]
async fn bad_wishes_are_named() {
    let office = office().await;
    let ids = |n: usize| json!(vec!["dlv_0190a0b0c0d07000800000000000000f"; n]);
    let long = "x".repeat(1_025);
    let wishes: Vec<(Value, &str, &str)> = vec![
        (json!({}), "invalid", "filter"),
        (json!({"filter": []}), "invalid", "filter"),
        (json!({"filter": {"reson": "x"}}), "unknown_field", "filter.reson"),
        (json!({"filter": {"state": "dead"}}), "unknown_field", "filter.state"),
        (json!({"filter": {"endpoint": "No Name"}}), "invalid", "filter.endpoint"),
        (json!({"filter": {"event": "dlv_1"}}), "invalid", "filter.event"),
        (json!({"filter": {"status": 99}}), "invalid", "filter.status"),
        (json!({"filter": {"status": "502"}}), "invalid", "filter.status"),
        (json!({"filter": {"plugin_version": "v1"}}), "invalid", "filter.plugin_version"),
        (json!({"filter": {"since": "yesterday"}}), "invalid", "filter.since"),
        (
            json!({"filter": {"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}}),
            "invalid",
            "filter.until",
        ),
        (json!({"filter": {"ids": []}}), "invalid", "filter.ids"),
        (json!({"filter": {"ids": ids(1_001)}}), "invalid", "filter.ids"),
        (json!({"filter": {"ids": ["evt_1"]}}), "invalid", "filter.ids[0]"),
        (json!({"filter": {"q": ""}}), "invalid", "filter.q"),
        (json!({"filter": {"host": long}}), "invalid", "filter.host"),
        (json!({"filter": {}, "dry": true}), "unknown_field", "dry"),
    ];
    for (wish, code, field) in &wishes {
        for verb in ["redrive", "purge"] {
            let reply = office.post(&format!("{ACME}/dlq/{verb}"), &wish.to_string()).await;
            let told = reply.json();
            assert_eq!((reply.status, reply.code().as_str()), (422, *code), "{verb} {wish}: {told}");
            assert_eq!(told["field"], *field, "{verb} {wish}: {told}");
        }
    }
    for (wish, field) in [
        (json!({"filter": {}, "rate": 0}), "rate"),
        (json!({"filter": {}, "rate": 10_001}), "rate"),
        (json!({"filter": {}, "rate": 1.5}), "rate"),
        (json!({"filter": {}, "max": 0}), "max"),
        (json!({"filter": {}, "max": -1}), "max"),
        (json!({"filter": {}, "canary": "yes"}), "canary"),
        (json!({"filter": {}, "note": "x".repeat(1_025)}), "note"),
    ] {
        let reply = office.post(&format!("{ACME}/dlq/redrive"), &wish.to_string()).await;
        assert_eq!((reply.status, reply.json()["field"].as_str()), (422, Some(field)), "{wish}");
    }
    assert_eq!(office.post(&format!("{ACME}/dlq/redrive"), "").await.status, 400, "everything only by word");
    assert!(office.ledger.operations.lock().unwrap().is_empty());
    let rows = office.ledger.rows.lock().unwrap();
    assert_eq!(rows[0].1.delivery.state, DeliveryState::Dead, "nothing was purged");
}

#[tokio::test]
async fn lists_take_the_same_filter() {
    let office = office().await;
    let dead = office.deliveries[0];
    let event = "evt_0190a0b0c0d07000800000000000000f";
    let plugin = version(1);
    let query = format!(
        "endpoint=billing&source=github&type=push&key=k&event={event}&reason=r&status=500&host=h\
         &plugin_version={plugin}&since=2025-12-31T23:00:00Z&until=2026-01-01T00:00:00Z&ids={dead},{dead}&q=x"
    );
    for path in ["dlq", "dlq/groups"] {
        assert_eq!(office.get(&format!("{ACME}/{path}?{query}")).await.status, 200, "{path}");
        let filter = format!(
            "DeadFilter {{ endpoint: Some(billing), source: Some(github), event_type: Some(\"push\"), \
             key: Some(\"k\"), event: Some({event}), reason: Some(\"r\"), status: Some(500), host: Some(\"h\"), \
             plugin_version: Some({plugin}), since: Some(2025-12-31T23:00:00.000Z), \
             until: Some(2026-01-01T00:00:00.000Z), ids: Some([{dead}, {dead}]), q: Some(\"x\") }}"
        );
        assert!(office.asked().contains(&filter), "{path}: {}", office.asked());
        for (bad, status, named) in [
            ("reson=x", 400, "reson"),
            ("ids=x", 422, "ids"),
            ("status=5", 422, "status"),
            ("plugin_version=1", 422, "plugin_version"),
            ("since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z", 422, "until"),
        ] {
            let reply = office.get(&format!("{ACME}/{path}?{bad}")).await;
            assert_eq!((reply.status, reply.json()["parameter"].as_str()), (status, Some(named)), "{path}?{bad}");
        }
    }
}
