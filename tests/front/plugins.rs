//! Plugins by the API: what is shown, what is asked of whoever ships them, and how each refusal is told.

use crate::ingress::name;
use crate::office::{NOW, Office, assert_golden, office, trial, version};
use hookgate::admin::{DryRunPage, Refusal, ReplayedPage, Shipped, Unheard};
use hookgate::delivery::{DeliveryId, Said, TrialId};
use hookgate::ledger::{
    ActivationRow, Change, Difference, FaultRow, Findings, History, LedgerError, PastPlace, Rejection, TenantKey, Told,
    UploadRow, VersionRow, VersionState,
};
use serde_json::{Value, json};

const PLUGINS: &str = "/v1/tenants/acme/plugins";
const WASM: &str = "content-type: application/wasm\r\n";

fn row(n: u8, state: VersionState) -> VersionRow {
    let was_ready = matches!(state, VersionState::Ready | VersionState::Disabled(_));
    let findings = Findings { transform: true, classify: false, warnings: vec!["transform did not answer".into()] };
    VersionRow {
        id: version(n),
        digest: [n; 32],
        state,
        findings: was_ready.then_some(findings),
        created_at: NOW,
        uploaded: Some(UploadRow { at: NOW, by: "operator".into(), bytes: 4_711 }),
    }
}

fn rejected() -> VersionState {
    VersionState::Rejected(Rejection {
        rule: "imports".into(),
        finding: "it imports wasi".into(),
        remedy: "build it without".into(),
    })
}

async fn office_with_history() -> Office {
    let office = office().await;
    let disabled = VersionState::Disabled(FaultRow { kind: "trap".into(), in_a_row: 20 });
    let filed = VersionRow { uploaded: None, findings: None, ..row(9, VersionState::Ready) };
    let activation = |version, what| ActivationRow { version, what, at: NOW, by: "operator".into() };
    let history = History {
        versions: vec![row(3, rejected()), row(2, disabled), row(1, VersionState::Ready)],
        activations: vec![
            activation(Some(version(1)), Change::Disable),
            activation(Some(version(2)), Change::Activate),
            activation(Some(version(1)), Change::Activate),
        ],
    };
    let mut histories = office.ledger.histories.lock().unwrap();
    histories.insert((TenantKey(1), name("rules")), history);
    histories.insert((TenantKey(1), name("filed")), History { versions: vec![filed], activations: Vec::new() });
    drop(histories);
    office
}

fn answers(office: &Office, answer: Result<Shipped, Refusal>) {
    *office.yard.answer.lock().unwrap() = Some(answer);
}

fn asked(office: &Office) -> Vec<String> {
    std::mem::take(&mut *office.yard.asked.lock().unwrap())
}

#[tokio::test]
async fn what_is_there_is_shown() {
    let office = office_with_history().await;
    assert_golden("plugins", &office.get(PLUGINS).await);
    assert_golden("plugin", &office.get(&format!("{PLUGINS}/rules")).await);
    assert_golden("plugin-of-file", &office.get(&format!("{PLUGINS}/filed")).await);
    let page = office.get(&format!("{PLUGINS}?limit=1")).await.json();
    assert_eq!((&page["items"][0]["name"], &page["next"]), (&"filed".into(), &"filed".into()));
    for nothing in ["/v1/tenants/globex/plugins/rules", "/v1/tenants/acme/plugins/nothing"] {
        assert_eq!(office.get(nothing).await.code(), "not_found", "{nothing}");
    }
}

#[tokio::test]
async fn a_trial_is_shown_with_its_plugin() {
    let office = office_with_history().await;
    let told = |said, why: Option<&str>| Told { said, why: why.map(str::to_owned) };
    *office.ledger.differences.lock().unwrap() = vec![Difference {
        at: NOW,
        delivery: DeliveryId::from_u128(0x019b_76da_a87b_7000_8000_0000_0000_0001),
        attempt: 2,
        from: told(Said::Retryable, Some("http_503")),
        to: told(Said::Terminal, Some("suspended")),
        request: false,
    }];
    for (canary, golden) in [(false, "plugin-shadow"), (true, "plugin-canary")] {
        *office.ledger.trials.lock().unwrap() = vec![trial(TenantKey(1), canary)];
        let whole = office.get(&format!("{PLUGINS}/rules")).await;
        assert_golden(golden, &whole);
        let mut whole = whole.json()["trial"].take();
        whole.as_object_mut().unwrap().remove("differences");
        assert_eq!(office.get(PLUGINS).await.json()["items"][1]["trial"], whole);
    }
}

#[tokio::test]
async fn a_trial_is_asked_for_with_its_bounds() {
    let office = office_with_history().await;
    let rules = format!("{PLUGINS}/rules");
    let shown = office.get(&rules).await.json();
    answers(&office, Ok(Shipped { row: row(1, VersionState::Ready), is_new: false }));
    let id = version(1);
    for (kind, more, expected) in [
        ("shadow", "", format!("shadow acme/rules {id} 12.5% by operator")),
        ("canary", "", format!("canary acme/rules {id} 12.5% 2% 10% 50 by operator")),
        (
            "canary",
            ",\"max_fault_rate\":\"0%\",\"max_terminal_rate\":\"33.33%\",\"min_calls\":1000",
            format!("canary acme/rules {id} 12.5% 0% 33.33% 1000 by operator"),
        ),
    ] {
        let wish = format!("{{\"version\":\"{id}\",\"share\":\"12.5%\"{more}}}");
        assert_eq!(office.post(&format!("{rules}/{kind}"), &wish).await.json(), shown);
        assert_eq!(asked(&office), [expected]);
    }
    for kind in ["shadow", "canary"] {
        assert_eq!(office.ask("DELETE", &format!("{rules}/{kind}"), "", "").await.json(), shown);
        assert_eq!(asked(&office), [format!("stop {kind} acme/rules by operator")]);
    }
}

#[tokio::test]
async fn an_upload_is_answered_with_its_version() {
    let office = office_with_history().await;
    let rules = format!("{PLUGINS}/rules");
    for (query, state, is_new, status, wishes) in [
        ("", VersionState::Ready, true, 201, "false true"),
        ("?activate=true", VersionState::Ready, false, 200, "true true"),
        ("?wait=false", VersionState::Compiling, true, 202, "false false"),
    ] {
        answers(&office, Ok(Shipped { row: row(1, state), is_new }));
        let reply = office.ask("PUT", &format!("{rules}{query}"), WASM, "(wasm)").await;
        assert_eq!(reply.status, status, "{query}");
        assert_eq!(asked(&office), [format!("upload acme/rules (wasm) by operator {wishes}")]);
        if is_new && status == 201 {
            assert_golden("plugin-uploaded", &reply);
        }
    }
}

#[tokio::test]
async fn a_change_is_answered_with_the_plugin() {
    let office = office_with_history().await;
    let rules = format!("{PLUGINS}/rules");
    answers(&office, Ok(Shipped { row: row(1, VersionState::Ready), is_new: false }));
    let shown = office.get(&rules).await.json();
    let activate = format!("{{\"version\":\"{}\"}}", version(1));
    assert_eq!(office.post(&format!("{rules}/activate"), &activate).await.json(), shown);
    assert_eq!(office.post(&format!("{rules}/rollback"), "").await.json(), shown);
    let id = version(1);
    assert_eq!(
        asked(&office),
        [format!("activate acme/rules {id} by operator"), "rollback acme/rules by operator".into()]
    );
}

#[tokio::test]
async fn every_refusal_has_its_code() {
    let office = office_with_history().await;
    let rules = format!("{PLUGINS}/rules");
    let not_loaded =
        Refusal::NotLoaded { rule: "content", finding: "it is gone".into(), remedy: "upload it again".into() };
    let of_a_file = VersionRow { uploaded: None, ..row(1, VersionState::Ready) };
    let worn_out = VersionState::Disabled(FaultRow { kind: "trap".into(), in_a_row: 20 });
    let trial = format!("{{\"version\":\"{}\",\"share\":\"10%\"}}", version(1));
    let host =
        VersionState::Rejected(Rejection { rule: "host".into(), finding: "cache".into(), remedy: "again".into() });
    for (refusal, status, code) in [
        (Refusal::NotFound, 404, "not_found"),
        (Refusal::NoSuchVersion, 404, "not_found"),
        (Refusal::NotReady(row(1, VersionState::Compiling)), 409, "not_ready"),
        (Refusal::NotReady(of_a_file), 409, "not_uploaded"),
        (Refusal::Rejected(row(3, rejected())), 422, "plugin_rejected"),
        (Refusal::Rejected(row(3, host)), 503, "unavailable"),
        (not_loaded, 409, "not_loadable"),
        (Refusal::NothingBefore, 409, "nothing_before"),
        (Refusal::NotReady(row(2, worn_out)), 409, "disabled"),
        (Refusal::InUse, 409, "in_use"),
        (Refusal::NothingInUse, 409, "nothing_in_use"),
        (Refusal::TrialRunning(TrialId::from_u128(7)), 409, "trial_running"),
        (Refusal::NoTrial, 404, "no_trial"),
        (Refusal::TooMany, 409, "too_many_versions"),
        (Refusal::Busy, 503, "busy"),
        (Refusal::Ledger(LedgerError::Stopped("EIO".into())), 503, "unavailable"),
        (Refusal::Disk("ENOSPC".into()), 503, "unavailable"),
    ] {
        let golden = matches!(&refusal, Refusal::Rejected(row) if row.state == rejected());
        answers(&office, Err(refusal));
        for reply in [
            office.ask("PUT", &rules, WASM, "(wasm)").await,
            office.post(&format!("{rules}/rollback"), "{}").await,
            office.post(&format!("{rules}/activate"), &format!("{{\"version\":\"{}\"}}", version(1))).await,
            office.post(&format!("{rules}/shadow"), &trial).await,
            office.post(&format!("{rules}/canary"), &trial).await,
            office.ask("DELETE", &format!("{rules}/canary"), "", "").await,
        ] {
            assert_eq!((reply.status, reply.code().as_str()), (status, code));
            assert_eq!(reply.header("content-type"), Some("application/problem+json"));
            assert_eq!(reply.header("retry-after").is_some(), status == 503 || code == "not_ready", "{code}");
            if golden {
                assert_golden("plugin-rejected", &reply);
            }
        }
    }
}

#[tokio::test]
async fn what_is_no_upload_reaches_nobody() {
    let office = office_with_history().await;
    let rules = format!("{PLUGINS}/rules");
    let long = "x".repeat(1_001);
    let json = "content-type: application/json\r\n";
    for (method, path, headers, body, status, code) in [
        ("PUT", rules.as_str(), json, "(wasm)", 415, "unsupported_media_type"),
        ("PUT", &rules, "", "(wasm)", 415, "unsupported_media_type"),
        ("PUT", &rules, WASM, long.as_str(), 413, "body_too_large"),
        ("PUT", &format!("{rules}?activate=perhaps"), WASM, "(wasm)", 422, "invalid"),
        ("PUT", &format!("{rules}?force=true"), WASM, "(wasm)", 400, "unknown_parameter"),
        ("PUT", &format!("{PLUGINS}/filed"), WASM, "(wasm)", 409, "managed_by_file"),
        ("POST", &format!("{PLUGINS}/filed/rollback"), json, "{}", 409, "managed_by_file"),
        ("POST", &format!("{PLUGINS}/filed/activate"), json, "{\"version\":\"x\"}", 409, "managed_by_file"),
        ("PUT", &format!("{PLUGINS}/nothing"), WASM, "(wasm)", 404, "not_found"),
        ("PUT", "/v1/tenants/globex/plugins/rules", WASM, "(wasm)", 404, "not_found"),
        ("POST", "/v1/tenants/globex/plugins/rules/rollback", json, "{}", 404, "not_found"),
        ("POST", &format!("{rules}/activate"), json, "{\"version\":\"plg_1\"}", 422, "invalid"),
        ("POST", &format!("{rules}/activate"), json, "{}", 422, "invalid"),
        ("POST", &format!("{rules}/rollback"), json, "{\"to\":1}", 422, "unknown_field"),
        ("POST", &format!("{rules}/shadow"), json, "{\"share\":\"10%\"}", 422, "invalid"),
        ("POST", &format!("{rules}/canary"), json, "{\"version\":\"plg_1\",\"share\":\"10%\"}", 422, "invalid"),
        ("POST", &format!("{rules}/canary"), json, "", 400, "malformed"),
        ("DELETE", &format!("{rules}/canary?now=true"), "", "", 400, "unknown_parameter"),
        ("DELETE", &format!("{rules}/shadow"), json, "{\"why\":1}", 422, "unknown_field"),
        ("POST", &format!("{PLUGINS}/filed/shadow"), json, "{}", 409, "managed_by_file"),
        ("DELETE", &format!("{PLUGINS}/filed/canary"), "", "", 409, "managed_by_file"),
        ("DELETE", "/v1/tenants/globex/plugins/rules/canary", "", "", 404, "not_found"),
        ("GET", &format!("{rules}/canary"), "", "", 405, "method_not_allowed"),
        ("POST", &format!("{rules}/explode"), json, "{}", 404, "not_found"),
        ("DELETE", &rules, "", "", 405, "method_not_allowed"),
        ("PUT", &format!("{rules}/activate"), WASM, "", 405, "method_not_allowed"),
    ] {
        let reply = office.ask(method, path, headers, body).await;
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{method} {path}");
    }
    assert_eq!(asked(&office), [""; 0]);
}

fn row_of_a_dry_run() -> Value {
    json!({
        "delivery": "dlv_019b76daa87b70018000000000000000", "attempt": "att_019b76daa87b70018000000000000001",
        "number": 1, "event": "evt_019b76daa87b70008000000000000000", "event_type": "hold.reminder", "endpoint": "sms",
        "started_at": "2026-01-01T00:00:00.123Z", "outcome": "answered", "status": 200,
        "plugin_version": version(1),
        "verdict": {
            "changed": ["verdict", "reason"],
            "recorded": { "verdict": "retryable", "reason": "provider_error" },
            "candidate": {
                "verdict": "terminal", "reason": "suspended", "after_ms": null, "scope": null, "reference": null,
            },
        },
        "request": {
            "changed": ["body"], "before_is": "recorded",
            "body": {
                "kind": "json", "before": { "bytes": 7, "sha256": "5f" }, "after": { "bytes": 7, "sha256": "60" },
                "diff": "@@ -1,3 +1,3 @@\n {\n-  \"a\": 1\n+  \"a\": 2\n }\n", "diff_truncated": false,
            },
        },
    })
}

#[tokio::test]
async fn a_dry_run_is_asked_for_and_told() {
    let office = office_with_history().await;
    let side = |changes: Value| json!({ "same": 700, "changed": 290, "faults": 0, "changes": changes, "left_out": { "erased": 10 } });
    let place = PastPlace { delivery: DeliveryId::from_bytes([7; 16]), number: 2 };
    *office.yard.dry_run.lock().unwrap() = Some(Ok(DryRunPage {
        active: Some(version(1)),
        scanned: 1_000,
        verdicts: side(json!([{ "from": "retryable", "to": "terminal", "count": 290 }])),
        requests: side(json!([{ "from": "send", "to": "send", "count": 290 }])),
        items: vec![row_of_a_dry_run()],
        next: Some(place),
    }));
    let body = json!({ "version": version(2), "since": "2025-12-31T00:00:00Z", "limit": 1_000 });
    let told = office.post(&format!("{PLUGINS}/rules/dry-run"), &body.to_string()).await;
    assert_golden("plugin-dry-run", &told);
    let first = asked(&office).remove(0);
    for part in ["EndpointKey(1)]", "since: Some(2025-12-31T00:00:00.000Z)", "from: None", "limit: 1000"] {
        assert!(first.contains(part), "{part}: {first}");
    }
    let next = json!({ "version": version(2), "since": "2025-12-31T00:00:00Z", "cursor": told.json()["next"] });
    let page = office.post(&format!("{PLUGINS}/rules/dry-run"), &next.to_string()).await;
    assert_eq!(page.json()["scanned"], 2_000);
    assert!(asked(&office).remove(0).contains(&format!("from: Some({place:?})")));
    // A cursor is of one version, plugin and window.
    for (field, other) in [("version", json!(version(1))), ("since", json!("2025-12-30T00:00:00Z"))] {
        let mut other_run = next.clone();
        other_run[field] = other;
        let refused = office.post(&format!("{PLUGINS}/rules/dry-run"), &other_run.to_string()).await;
        assert_eq!(refused.json()["code"], "bad_cursor", "{field}");
    }
    for (why, status, code) in [
        (Unheard::Running, 429, "dry_run_running"),
        (Unheard::NoTurn, 503, "no_turn"),
        (Refusal::NoSuchVersion.into(), 404, "not_found"),
        (Refusal::NotReady(row(1, VersionState::Compiling)).into(), 409, "not_ready"),
        (Refusal::Rejected(row(3, rejected())).into(), 422, "plugin_rejected"),
        (LedgerError::Unavailable("full".into()).into(), 503, "unavailable"),
    ] {
        *office.yard.dry_run.lock().unwrap() = Some(Err(why));
        let refused = office.post(&format!("{PLUGINS}/rules/dry-run"), &body.to_string()).await;
        assert_eq!((refused.status, refused.json()["code"].as_str().unwrap()), (status, code));
        assert_eq!(
            refused.header("retry-after").is_some(),
            matches!(status, 429 | 503) || code == "not_ready",
            "{code}"
        );
    }
    assert_eq!(office.get(&format!("{PLUGINS}/rules/dry-run")).await.status, 405);
}

#[tokio::test]
async fn recorded_attempts_are_told_as_fixtures() {
    let office = office_with_history().await;
    let place = PastPlace { delivery: DeliveryId::from_bytes([7; 16]), number: 2 };
    let mut item = row_of_a_dry_run();
    for field in ["verdict", "request"] {
        item.as_object_mut().unwrap().remove(field);
    }
    item["verdict"] = json!("terminal");
    item["reason"] = json!("suspended");
    item["calls"] = json!([{
        "description": "Recorded: attempt 1 of dlv_019b76daa87b70018000000000000000.",
        "config": { "from": "Acme" },
        "endpoint": { "id": "sms", "url": "https://api.sms.example/" },
        "attempt": {
            "event_id": "evt_019b76daa87b70008000000000000000", "event_type": "hold.reminder", "number": 1,
            "max_attempts": 9, "idempotency_key": "hold-7", "now": "2026-01-01T00:00:00.123Z", "attributes": {},
        },
        "outcome": { "response": {
            "status": 200, "headers": { "content-type": "application/json" }, "body_truncated": false,
            "elapsed_ms": 12, "body": "{\"error\":\"suspended\"}",
        } },
        "expect": { "terminal": { "reason": "suspended" } },
    }]);
    item["left_out"] = json!([{ "call": "transform", "why": "erased" }]);
    *office.yard.replayed.lock().unwrap() = Some(ReplayedPage { items: vec![item], next: Some(place) });
    let path = format!("{PLUGINS}/rules/attempts");
    let told = office.get(&path).await;
    assert_golden("plugin-attempts", &told);
    asked(&office);
    let next = told.json()["next"].as_str().unwrap().to_owned();
    assert_eq!(office.get(&format!("{path}?cursor={next}")).await.status, 200);
    assert!(asked(&office).remove(0).contains(&format!("from: Some({place:?})")));
    assert_eq!(office.get(&format!("{path}?cursor={next}&status=503")).await.json()["code"], "bad_cursor");
    let query =
        "endpoint=billing&since=2025-12-31T00:00:00Z&state=dead&verdict=terminal&reason=suspended&status=200&limit=7";
    assert_eq!(office.get(&format!("{path}?{query}")).await.status, 200);
    let narrowed = asked(&office).remove(0);
    for part in ["[EndpointKey(1)]", "Some(Dead)", "Some(\"terminal\")", "Some(\"suspended\")", "Some(200)", "limit: 7"]
    {
        assert!(narrowed.contains(part), "{part}: {narrowed}");
    }
    assert_eq!(office.get(&format!("{path}?endpoint=only-github")).await.status, 422, "it uses another plugin");
    assert_eq!(office.get("/v1/tenants/globex/plugins/rules/attempts").await.status, 404);
}
