//! The admin API where something is wrong: each error by its code.

use crate::office::{Office, TOKEN, office, office_with};
use hookgate::delivery::{DeliveryState, OnDead};
use hookgate::ledger::{LedgerError, OrderingKey, Redriven};
use hookgate::secret::Secret;

const ACME: &str = "/v1/tenants/acme";

impl Office {
    /// The status, the code, and the field, parameter or state that is named.
    async fn refusal(&self, method: &str, path: &str, body: &str) -> (u16, String, String) {
        let reply = self.ask(method, path, "content-type: application/json\r\n", body).await;
        assert_eq!(reply.header("content-type"), Some("application/problem+json"), "{method} {path}: {reply:?}");
        let json = reply.json();
        let named = ["field", "parameter", "state"].into_iter().find_map(|member| json[member].as_str());
        (reply.status, reply.code(), named.unwrap_or_default().to_owned())
    }
}

#[track_caller]
fn assert_refusal(is: &(u16, String, String), status: u16, code: &str, named: &str, what: &str) {
    assert_eq!((is.0, is.1.as_str(), is.2.as_str()), (status, code, named), "{what}");
}

#[tokio::test]
async fn nothing_without_the_token() {
    let office = office().await;
    let twice = format!("authorization: Bearer {TOKEN}\r\nauthorization: Bearer {TOKEN}\r\n");
    for headers in [
        "",
        "authorization: Bearer wrong\r\n",
        "authorization: Bearer \r\n",
        "authorization: Bearer\r\n",
        &format!("authorization: Basic {TOKEN}\r\n"),
        &format!("authorization: {TOKEN}\r\n"),
        &twice,
    ] {
        // What is there and what is not look the same.
        for path in ["/v1/tenants", "/v1/tenants/nobody", "/v1/nothing", "/v2", "/v1/tenants/acme/events"] {
            let reply = office.ask_bare("GET", path, headers, "").await;
            assert_eq!((reply.status, reply.code().as_str()), (401, "unauthorized"), "{headers} {path}");
            assert_eq!(reply.header("www-authenticate"), Some("Bearer realm=\"hookgate\""));
        }
    }
    let lower = office.ask_bare("GET", "/v1/tenants", &format!("authorization: bearer {TOKEN}\r\n"), "").await;
    assert_eq!(lower.status, 200);
}

#[tokio::test]
async fn an_empty_token_lets_nobody_in() {
    let office = office_with(|settings| settings.token = Secret::new("")).await;
    for headers in ["", "authorization: Bearer \r\n", "authorization: Bearer x\r\n"] {
        assert_eq!(office.ask_bare("GET", "/v1/tenants", headers, "").await.status, 401);
    }
}

#[tokio::test]
async fn what_is_not_ours_looks_like_what_is_not_there() {
    let office = office().await;
    let [_, _, _, theirs] = office.deliveries;
    let absent = "dlv_019b7670607b70018000000000000000";
    let event = "evt_019b7670607b70018000000000000000";
    let mut answers = Vec::new();
    for path in [
        "/v1/tenants/nobody",
        "/v1/tenants/nobody/events",
        "/v1/tenants/nobody/rejections",
        &format!("{ACME}/rejections/{event}"),
        "/v1/tenants/ACME",
        "/v1/tenants/acme/sources/nothing",
        "/v1/tenants/acme/endpoints/theirs",
        "/v1/tenants/acme/endpoints/%2e",
        &format!("{ACME}/deliveries/{theirs}"),
        &format!("{ACME}/deliveries/{absent}"),
        &format!("{ACME}/deliveries/{event}"),
        &format!("{ACME}/deliveries/7"),
        &format!("{ACME}/events/{event}"),
        &format!("{ACME}/events/{event}/body"),
        &format!("{ACME}/events/{absent}"),
        &format!("{ACME}/plugins/x"),
        "/v1",
        "/v2/console",
    ] {
        let reply = office.get(path).await;
        assert_eq!((reply.status, reply.code().as_str()), (404, "not_found"), "{path}");
        answers.push(reply.body);
    }
    for path in [
        format!("{ACME}/deliveries/{theirs}/redrive"),
        format!("{ACME}/deliveries/{theirs}/cancel"),
        format!("{ACME}/deliveries/{absent}/redrive"),
        format!("{ACME}/deliveries/nonsense/cancel"),
        format!("{ACME}/endpoints/theirs/pause"),
        format!("{ACME}/endpoints/NONSENSE/pause"),
    ] {
        let reply = office.post(&path, "").await;
        assert_eq!((reply.status, reply.code().as_str()), (404, "not_found"), "{path}");
        answers.push(reply.body);
    }
    answers.push(office.post(&format!("{ACME}/deliveries/{theirs}/resolve"), "{\"as\":\"sent\"}").await.body);
    answers.push(office.post("/v1/tenants/nobody/events", "{\"type\":\"a\",\"payload\":1}").await.body);
    answers.dedup();
    assert_eq!(answers.len(), 1, "one answer for all");
    let rows = office.ledger.rows.lock().unwrap();
    assert_eq!(rows[3].1.delivery.state, DeliveryState::Dead);
}

#[tokio::test]
async fn methods_and_managed_resources() {
    let office = office().await;
    for (method, path, allow) in [
        ("POST", "/v1/tenants", "GET"),
        ("DELETE", "/v1/tenants", "GET"),
        ("DELETE", "/v1/tenants/acme/events", "GET, POST"),
        ("GET", "/v1/tenants/acme/endpoints/billing/pause", "POST"),
        ("GET", "/v1/tenants/acme/sources/partner/forget-secret", "POST"),
        ("DELETE", "/v1/tenants/acme/sources/partner/forget-secret", "POST"),
        ("POST", "/v1/tenants/acme/dlq", "GET"),
        ("DELETE", "/v1/tenants/acme/rejections", "GET"),
        ("POST", "/v1/tenants/acme/endpoints/billing", "GET"),
        ("BREW", "/v1/tenants/acme", "GET"),
        ("POST", "/healthz", "GET"),
        ("DELETE", "/metrics", "GET"),
    ] {
        let reply = office.ask(method, path, "", "").await;
        assert_eq!((reply.status, reply.code().as_str()), (405, "method_not_allowed"), "{method} {path}");
        assert_eq!(reply.header("allow"), Some(allow), "{method} {path}");
    }
    for path in ["", "/sources/github", "/endpoints/billing", "/endpoints/new"] {
        for method in ["PUT", "PATCH", "DELETE"] {
            let is = office.refusal(method, &format!("{ACME}{path}"), "{}").await;
            assert_refusal(&is, 409, "managed_by_file", "", path);
        }
    }
    let is = office.refusal("POST", &format!("{ACME}/sources/github/forget-secret"), "").await;
    assert_refusal(&is, 409, "managed_by_file", "", "a source that takes no secret from its provider");
    let is = office.refusal("POST", &format!("{ACME}/sources/partner/forget-secret"), "{\"yes\":1}").await;
    assert_refusal(&is, 422, "unknown_field", "yes", "a body with a field");
    let is = office.refusal("POST", &format!("{ACME}/sources/nobody/forget-secret"), "").await;
    assert_refusal(&is, 404, "not_found", "", "a source that is not there");
}

#[tokio::test]
async fn query_parameters() {
    let office = office().await;
    for (query, status, code, named) in [
        ("deliveries?stat=dead", 400, "unknown_parameter", "stat"),
        ("deliveries?state=dead&state=dead", 400, "unknown_parameter", "state"),
        ("dlq?state=dead", 400, "unknown_parameter", "state"),
        ("dlq/groups?limit=1", 400, "unknown_parameter", "limit"),
        ("events?state=dead", 400, "unknown_parameter", "state"),
        ("endpoints/billing?x", 400, "unknown_parameter", "x"),
        ("sources/github?x", 400, "unknown_parameter", "x"),
        ("deliveries?limit=0", 422, "invalid", "limit"),
        ("deliveries?limit=201", 422, "invalid", "limit"),
        ("deliveries?limit=-1", 422, "invalid", "limit"),
        ("deliveries?limit=99999999999", 422, "invalid", "limit"),
        ("events?limit=x", 422, "invalid", "limit"),
        ("endpoints?limit=0", 422, "invalid", "limit"),
        ("deliveries?state=gone", 422, "invalid", "state"),
        ("deliveries?endpoint=A", 422, "invalid", "endpoint"),
        ("deliveries?source=a_b", 422, "invalid", "source"),
        ("deliveries?event=evt_1", 422, "invalid", "event"),
        ("deliveries?status=99", 422, "invalid", "status"),
        ("deliveries?since=yesterday", 422, "invalid", "since"),
        ("events?until=1", 422, "invalid", "until"),
        ("deliveries?cursor=bad", 400, "bad_cursor", "cursor"),
        ("endpoints?cursor=BAD", 400, "bad_cursor", "cursor"),
    ] {
        assert_refusal(&office.refusal("GET", &format!("{ACME}/{query}"), "").await, status, code, named, query);
    }
    let is = office.refusal("POST", &format!("{ACME}/events?force=1"), "{\"type\":\"a\",\"payload\":1}").await;
    assert_refusal(&is, 400, "unknown_parameter", "force", "on a verb");
    assert_eq!(office.get("/healthz?x=1").await.status, 400);
}

#[tokio::test]
async fn bodies_that_are_not_what_is_asked_for() {
    let office = office().await;
    let [dead, ..] = office.deliveries;
    let events = format!("{ACME}/events");
    for headers in ["", "content-type: text/plain\r\n", "content-type: application/x-www-form-urlencoded\r\n"] {
        let reply = office.ask("POST", &events, headers, "{\"type\":\"a\",\"payload\":1}").await;
        assert_eq!((reply.status, reply.code().as_str()), (415, "unsupported_media_type"), "{headers}");
    }
    let charset = "content-type: Application/JSON; charset=utf-8\r\n";
    assert_eq!(office.ask("POST", &events, charset, "{\"type\":\"a\",\"payload\":1}").await.status, 200);
    let reply = office.post(&events, "{\"type\":\"a\",\n\n \"payload\": }").await;
    assert_eq!((reply.status, reply.code().as_str(), reply.json()["line"].clone()), (400, "malformed", 3.into()));
    for (path, body, status, code, named) in [
        ("events", "", 400, "malformed", ""),
        ("events", "{\"type\":\"a\",\"payload\":1} {}", 400, "malformed", ""),
        ("events", "[]", 422, "invalid", ""),
        ("events", "{\"type\":\"a\",\"payload\":1,\"paylod\":1}", 422, "unknown_field", "paylod"),
        ("events", "{\"payload\":1}", 422, "invalid", "type"),
        ("events", "{\"type\":7,\"payload\":1}", 422, "invalid", "type"),
        ("events", "{\"events\":[],\"type\":\"a\"}", 422, "unknown_field", "type"),
        ("endpoints/billing/pause", "{\"why\":\"\"}", 422, "invalid", "why"),
        ("endpoints/billing/pause", "{\"until\":\"2025-01-01T00:00:00Z\"}", 422, "invalid", "until"),
        ("endpoints/billing/pause", "{\"until\":\"soon\"}", 422, "invalid", "until"),
        ("endpoints/billing/resume", "{\"why\":\"x\"}", 422, "unknown_field", "why"),
        ("endpoints/billing/enable", "{\"x\":1}", 422, "unknown_field", "x"),
        ("endpoints/billing/disable", "{\"until\":1}", 422, "unknown_field", "until"),
    ] {
        let is = office.refusal("POST", &format!("{ACME}/{path}"), body).await;
        assert_refusal(&is, status, code, named, &format!("{path} {body}"));
    }
    let long_note = format!("{{\"note\":\"{}\"}}", "n".repeat(1_025));
    for (verb, body, status, code, named) in [
        ("redrive", long_note.as_str(), 422, "invalid", "note"),
        ("redrive", "{\"payload\":1}", 422, "invalid", "note"),
        ("redrive", "{\"payload\":1,\"note\":\" \"}", 422, "invalid", "note"),
        ("redrive", "{\"paylod\":1}", 422, "unknown_field", "paylod"),
        ("cancel", "{\"note\":\"x\"}", 422, "unknown_field", "note"),
        ("resolve", "", 400, "malformed", ""),
        ("resolve", "{\"as\":\"maybe\"}", 422, "invalid", "as"),
        ("resolve", "{\"note\":\"x\"}", 422, "invalid", "as"),
    ] {
        let is = office.refusal("POST", &format!("{ACME}/deliveries/{dead}/{verb}"), body).await;
        assert_refusal(&is, status, code, named, &format!("{verb} {body}"));
    }
}

#[tokio::test]
async fn events_that_break_a_bound() {
    let office = office().await;
    let long = "x".repeat(257);
    let coalesced =
        |key: &str, window: &str| format!("\"payload\":1,\"coalesce_key\":\"{key}\",\"coalesce_window\":\"{window}\"");
    for (fields, code, named) in [
        (String::new(), "invalid", "payload"),
        ("\"payload\":1,\"body_base64\":\"AA==\"".to_owned(), "invalid", "body_base64"),
        ("\"body_base64\":\"A\"".to_owned(), "invalid", "body_base64"),
        ("\"payload\":1,\"content_type\":\"nonsense\"".to_owned(), "invalid", "content_type"),
        ("\"payload\":1,\"content_type\":\"a/b\\r\\nx: y\"".to_owned(), "invalid", "content_type"),
        ("\"payload\":1,\"key\":\"\"".to_owned(), "invalid", "key"),
        (format!("\"payload\":1,\"key\":\"{long}\""), "invalid", "key"),
        ("\"payload\":1,\"key\":\"a\\nb\"".to_owned(), "invalid", "key"),
        ("\"payload\":1,\"delay\":\"8d\"".to_owned(), "invalid", "delay"),
        ("\"payload\":1,\"delay\":\"604801s\"".to_owned(), "invalid", "delay"),
        ("\"payload\":1,\"delay\":\"soon\"".to_owned(), "invalid", "delay"),
        ("\"payload\":1,\"delay\":30".to_owned(), "invalid", "delay"),
        ("\"payload\":1,\"delay\":\"1s\",\"deliver_at\":\"2026-01-02T00:00:00Z\"".to_owned(), "invalid", "delay"),
        ("\"payload\":1,\"deliver_at\":\"2026-01-08T00:00:01Z\"".to_owned(), "invalid", "deliver_at"),
        ("\"payload\":1,\"deliver_at\":\"2025-12-31T00:00:00Z\"".to_owned(), "invalid", "deliver_at"),
        ("\"payload\":1,\"expires_at\":\"2026-01-01T00:00:00Z\"".to_owned(), "invalid", "expires_at"),
        ("\"payload\":1,\"delay\":\"1h\",\"expires_at\":\"2026-01-01T00:30:00Z\"".to_owned(), "invalid", "expires_at"),
        ("\"payload\":1,\"deadline\":\"2025-01-01T00:00:00Z\"".to_owned(), "invalid", "deadline"),
        ("\"payload\":1,\"ordering_key\":\"\"".to_owned(), "invalid", "ordering_key"),
        (format!("\"payload\":1,\"ordering_key\":\"{long}\""), "invalid", "ordering_key"),
        ("\"payload\":1,\"ordering_key\":\"a\\u0000b\"".to_owned(), "invalid", "ordering_key"),
        ("\"payload\":1,\"ordering_key\":5".to_owned(), "invalid", "ordering_key"),
        ("\"payload\":1,\"coalesce_key\":\"a\"".to_owned(), "invalid", "coalesce_window"),
        ("\"payload\":1,\"coalesce_window\":\"1s\"".to_owned(), "invalid", "coalesce_key"),
        (coalesced("ü", "1s"), "invalid", "coalesce_key"),
        (coalesced(&long, "1s"), "invalid", "coalesce_key"),
        (coalesced("a", "999ms"), "invalid", "coalesce_window"),
        (coalesced("a", "8d"), "invalid", "coalesce_window"),
        (coalesced("a", "soon"), "invalid", "coalesce_window"),
        (coalesced("a", "1s") + ",\"ordering_key\":\"a\"", "invalid", "ordering_key"),
        (coalesced("a", "1s") + ",\"delay\":\"1s\"", "invalid", "delay"),
        (coalesced("a", "1s") + ",\"deliver_at\":\"2026-01-02T00:00:00Z\"", "invalid", "deliver_at"),
    ] {
        let comma = if fields.is_empty() { "" } else { "," };
        let body = format!("{{\"type\":\"push\"{comma}{fields}}}");
        assert_refusal(&office.refusal("POST", &format!("{ACME}/events"), &body).await, 422, code, named, &fields);
        let detail = office.post(&format!("{ACME}/events"), &body).await.json()["detail"].to_string();
        let of_another_type = detail.contains("expected a string");
        assert!(of_another_type || detail.contains(&format!("`{named}` ")), "{fields}: {detail}");
    }
    for events in [String::new(), vec!["1"; 1_001].join(",")] {
        let is = office.refusal("POST", &format!("{ACME}/events"), &format!("{{\"events\":[{events}]}}")).await;
        assert_refusal(&is, 422, "invalid", "events", "0 or 1,001 events");
    }
    assert_eq!(office.ledger.stored.lock().unwrap().len(), 0);
    let a_week = "{\"type\":\"push\",\"payload\":1,\"delay\":\"7d\"}";
    assert_eq!(office.post(&format!("{ACME}/events"), a_week).await.status, 200);
}

/// An order that nobody keeps is not promised.
#[tokio::test]
async fn an_ordering_key_needs_an_endpoint_that_orders() {
    let office = office().await;
    let publish =
        |event_type: &str| format!("{{\"type\":\"{event_type}\",\"payload\":1,\"ordering_key\":\"order 7\"}}");
    let events = format!("{ACME}/events");
    let is = office.refusal("POST", &events, &publish("other")).await;
    assert_refusal(&is, 422, "invalid", "ordering_key", "nobody takes it");
    let told = office.post(&events, &publish("other")).await.json()["detail"].to_string();
    assert!(told.contains("no endpoint that takes this event orders by key"), "{told}");
    assert_eq!(office.post(&format!("{ACME}/events"), &publish("push")).await.status, 200);
    let coalesced = "{\"type\":\"push\",\"payload\":1,\"coalesce_key\":\"a\",\"coalesce_window\":\"7d\"}";
    assert_eq!(office.post(&format!("{ACME}/events"), coalesced).await.status, 200);
    assert_eq!(office.post(&format!("{ACME}/events"), "{\"type\":\"push\",\"payload\":1}").await.status, 200);
    let stored = office.ledger.stored.lock().unwrap();
    let order = OrderingKey::of("order 7", OnDead::Hold);
    assert_eq!(stored.iter().map(|one| one.orders[0]).collect::<Vec<_>>(), [Some(order), None, None]);
    let slots: Vec<bool> = stored.iter().map(|one| one.deliveries[0].1).collect();
    assert_eq!(slots, [false, false, true], "what waits takes no slot");
    assert_eq!(stored[0].event.ordering_key(), Some("order 7"));
    let coalesce = stored[1].event.coalesce().unwrap();
    assert_eq!((coalesce.key.as_str(), coalesce.window.as_secs()), ("a", 604_800));
}

/// Deep JSON exhausts no stack, wherever it stands.
#[tokio::test]
async fn deep_json_is_opaque_or_refused() {
    let office = office().await;
    let events = format!("{ACME}/events");
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let payload = format!("{{\"type\":\"push\",\"payload\":{deep}}}");
    assert_eq!(office.post(&events, &payload).await.status, 200);
    assert_eq!(office.ledger.stored.lock().unwrap()[0].event.body, deep);
    for (body, status, code) in [
        (format!("{{\"events\":{deep}}}"), 200, ""),
        (format!("{{\"type\":{deep}}}"), 422, "invalid"),
        (format!("{{\"other\":{deep}}}"), 422, "unknown_field"),
        (format!("{{\"type\":\"a\",\"payload\":1,\"ordering_key\":{deep}}}"), 422, "invalid"),
        (deep, 422, "invalid"),
    ] {
        let reply = office.post(&events, &body).await;
        assert_eq!((reply.status, reply.code().as_str()), (status, code));
        if status == 200 {
            assert_eq!(reply.json()["items"][0]["error"]["code"], "invalid");
        }
    }
}

#[tokio::test]
async fn sizes_are_settings() {
    let office = office_with(|settings| {
        settings.body_bytes_max = 10;
        settings.request_bytes_max = 200;
        settings.in_flight_bytes_max = 300;
    })
    .await;
    let [dead, ..] = office.deliveries;
    let events = format!("{ACME}/events");
    let payload = |n| format!("{{\"type\":\"push\",\"payload\":\"{}\"}}", "x".repeat(n));
    assert_eq!(office.post(&events, &payload(8)).await.status, 200);
    let large = office.post(&events, &payload(9)).await;
    assert_eq!((large.status, large.code().as_str(), &large.json()["limit"]), (413, "body_too_large", &10.into()));
    let larger = office.post(&events, &payload(200)).await;
    assert_eq!((larger.status, &larger.json()["limit"]), (413, &200.into()));
    let redrive = format!("{ACME}/deliveries/{dead}/redrive");
    let large = office.post(&redrive, "{\"payload\":\"123456789\"}").await;
    assert_eq!((large.status, large.code().as_str()), (413, "body_too_large"));
    let office = office_with(|settings| settings.in_flight_bytes_max = 10).await;
    let busy = office.post(&events, &payload(1)).await;
    assert_eq!((busy.status, busy.code().as_str()), (503, "unavailable"));
}

#[tokio::test]
async fn the_dedup_window_is_a_setting() {
    let office = office_with(|settings| settings.dedup_window = std::time::Duration::from_secs(77)).await;
    office.post(&format!("{ACME}/events"), "{\"type\":\"a\",\"key\":\"k\",\"payload\":1}").await;
    let stored = office.ledger.stored.lock().unwrap();
    assert_eq!(stored[0].event.dedup.unwrap().window.as_secs(), 77);
}

#[tokio::test]
async fn states_that_forbid_a_verb() {
    let office = office().await;
    let [dead, pending, delivered, _] = office.deliveries;
    for (id, verb, body, code, state) in [
        (pending, "redrive", "", "not_dead", "pending"),
        (delivered, "redrive", "{}", "not_dead", "delivered"),
        (dead, "cancel", "", "not_pending", "dead"),
        (pending, "resolve", "{\"as\":\"sent\"}", "not_dead", "pending"),
    ] {
        let is = office.refusal("POST", &format!("{ACME}/deliveries/{id}/{verb}"), body).await;
        assert_refusal(&is, 409, code, state, verb);
    }
    for (answer, code) in [(Redriven::PayloadErased, "payload_erased"), (Redriven::Expired, "expired")] {
        *office.ledger.redrive_answers.lock().unwrap() = Some(answer);
        let is = office.refusal("POST", &format!("{ACME}/deliveries/{dead}/redrive"), "").await;
        assert_refusal(&is, 409, code, "", code);
    }
}

#[tokio::test]
async fn faults_of_the_ledger() {
    let office = office().await;
    for (fault, status, code) in [
        (LedgerError::Unavailable("disk full".to_owned()), 503, "unavailable"),
        (LedgerError::Stopped("EIO".to_owned()), 503, "unavailable"),
        (LedgerError::TooSlow { seconds: 5 }, 503, "too_slow"),
        (LedgerError::Quarantined("row 7".to_owned()), 500, "quarantined"),
    ] {
        *office.ledger.fault.lock().unwrap() = Some(fault);
        for path in ["events", "deliveries", "dlq", "dlq/groups", "endpoints"] {
            let is = office.refusal("GET", &format!("{ACME}/{path}"), "").await;
            assert_refusal(&is, status, code, "", path);
        }
        let one = "{\"type\":\"push\",\"payload\":1}";
        let batch = format!("{{\"events\":[{one},{one}]}}");
        assert_refusal(&office.refusal("POST", &format!("{ACME}/events"), one).await, status, code, "", "one");
        let reply = office.post(&format!("{ACME}/events"), &batch).await;
        if status == 503 {
            assert_eq!((reply.status, reply.code().as_str()), (503, code), "nothing of the batch is in");
        } else {
            assert_eq!(reply.json()["items"][1]["error"]["code"], code);
        }
    }
}
