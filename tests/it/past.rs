//! Versions tried on what was recorded, and what was recorded as fixtures: nothing is sent, nothing changes.

use super::guests::{Request, Says, classify_says, classify_with, transform_sends, transform_skips, transform_with};
use super::shipping::{activate, config, sends, shipped};
use super::{Gateway, Receiver, Reply, endpoint, until};
use serde_json::{Value, json};
use std::process::{Output, Stdio};

const SMS: &[u8] = include_bytes!("../../plugins/sms-rules.wasm");

fn retries(code: &str) -> Vec<u8> {
    classify_says(&Says::Retryable { code, after_ms: Some(20), whole_endpoint: false })
}

fn terminal(code: &str) -> Vec<u8> {
    classify_says(&Says::Terminal { code, message: None })
}

/// Further events, until there are `all`, each to its end.
async fn record(gateway: &Gateway, all: usize, further: usize) {
    for n in 0..further {
        let answer = gateway.post("events", &json!({"type": "invoice.paid", "payload": {"n": n}})).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    until("all have ended", || async {
        let rows = gateway.get("deliveries?limit=200").await["items"].as_array().unwrap().clone();
        let ended = |row: &&Value| !["pending", "in_flight"].contains(&row["state"].as_str().unwrap());
        (rows.iter().filter(ended).count() == all).then_some(())
    })
    .await;
}

async fn tried(gateway: &Gateway, body: &Value) -> Value {
    let answer = gateway.post("plugins/rules/dry-run", body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

/// Every row of every table, but the one that a health check writes.
fn rows(gateway: &Gateway) -> Vec<String> {
    let path = gateway.dir.path().join("data/ledger.db");
    let ledger = rusqlite::Connection::open_with_flags(path, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let texts = |sql: &str| -> Vec<String> {
        let mut statement = ledger.prepare(sql).unwrap();
        let columns = statement.column_count();
        let row = |row: &rusqlite::Row<'_>| {
            Ok((0..columns).map(|n| format!("{:?}", row.get_ref(n).unwrap())).collect::<Vec<_>>().join("|"))
        };
        let rows = statement.query_map([], row).unwrap();
        rows.collect::<Result<_, _>>().unwrap()
    };
    let tables: Vec<String> = {
        let mut statement =
            ledger.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
    };
    let all = tables.iter().filter(|table| *table != "meta");
    all.flat_map(|table| texts(&format!("SELECT '{table}', * FROM {table}"))).collect()
}

fn ran(output: Output) -> (i32, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[tokio::test]
async fn what_would_change_is_counted_and_nothing_does() {
    let receiver = Receiver::start(|_, _| Reply::body(200, "busy")).await;
    let gateway = Gateway::start(&config(&receiver, "")).await;
    let one = shipped(&gateway, "?activate=true", retries("busy")).await;
    record(&gateway, 4, 4).await;
    let two = shipped(&gateway, "", terminal("down")).await;
    let other = shipped(&gateway, "", retries("slow")).await;
    let later = shipped(
        &gateway,
        "",
        classify_says(&Says::Retryable { code: "busy", after_ms: Some(5_000), whole_endpoint: true }),
    )
    .await;
    let trap = shipped(&gateway, "", classify_with("", "unreachable")).await;
    let (before, sent) = (rows(&gateway), receiver.count());
    assert_eq!(sent, 12);

    let told = tried(&gateway, &json!({ "version": two })).await;
    let change = json!([{ "from": "retryable", "to": "terminal", "count": 12 }]);
    let verdicts = json!({ "same": 0, "changed": 12, "faults": 0, "changes": change, "left_out": {} });
    assert_eq!(told["verdicts"], verdicts, "{told}");
    assert_eq!(told["requests"]["same"], 12, "neither has a transform");
    assert_eq!((&told["scanned"], &told["total"], &told["next"]), (&json!(12), &json!(12), &Value::Null));
    assert_eq!((&told["version"], &told["active"]), (&json!(two), &json!(one)));
    let row = &told["items"][0];
    assert_eq!((&row["number"], &row["status"], &row["endpoint"]), (&json!(3), &json!(200), &json!("billing")));
    assert_eq!(row["verdict"]["changed"], json!(["verdict", "reason"]));
    assert_eq!(row["verdict"]["recorded"]["reason"], "busy");
    assert_eq!(row["verdict"]["candidate"]["reason"], "down");

    // The version in use says of it what it said then.
    let told = tried(&gateway, &json!({ "version": one })).await;
    assert_eq!((&told["verdicts"]["same"], &told["items"]), (&json!(12), &json!([])), "{told}");
    // A reason, a delay and a scope are differences, too.
    let told = tried(&gateway, &json!({ "version": other, "limit": 1 })).await;
    assert_eq!(told["items"][0]["verdict"]["changed"], json!(["reason"]), "{told}");
    let told = tried(&gateway, &json!({ "version": later, "limit": 1 })).await;
    assert_eq!(told["items"][0]["verdict"]["changed"], json!(["after_ms", "scope"]), "{told}");
    let sides = &told["items"][0]["verdict"];
    assert_eq!((&sides["recorded"]["after_ms"], &sides["candidate"]["after_ms"]), (&json!(20), &json!(5_000)));
    // More faults in a row than disable a version, and it is as ready as it was.
    for _ in 0..2 {
        let told = tried(&gateway, &json!({ "version": trap })).await;
        assert_eq!((&told["verdicts"]["faults"], &told["verdicts"]["changed"]), (&json!(12), &json!(12)), "{told}");
        let fault = &told["items"][0]["verdict"]["candidate"];
        assert_eq!((&fault["verdict"], &fault["reason"]), (&json!("fault"), &json!("trap")));
        assert_eq!(fault["stands_in"], "delivered", "what the built-in rules say of 200");
    }
    assert_eq!(rows(&gateway), before, "no row of the ledger changed");
    assert_eq!(receiver.count(), sent, "nothing was sent");
    assert_eq!(
        gateway.metric("hookgate_plugin_faults_total{kind=\"trap\"}").await,
        Some(0.0),
        "and no fault was counted"
    );
}

#[tokio::test]
async fn requests_are_compared_with_what_was_sent() {
    let receiver = Receiver::kind().await;
    let gateway = Gateway::start(&config(&receiver, "")).await;
    let headers = [("x-kind", "a"), ("authorization", "Bearer first-s3cret")];
    let request =
        Request { path_and_query: Some("/v1"), headers: &headers, body: r#"{"a":1,"b":2}"#, ..Request::default() };
    let one = shipped(&gateway, "?activate=true", transform_sends(&request)).await;
    record(&gateway, 2, 2).await;
    let same = shipped(&gateway, "", transform_sends(&Request { options: &[("x", "y")], ..request })).await;
    assert_ne!(one, same);
    let headers = [("x-kind", "b"), ("authorization", "Bearer other-s3cret")];
    let other =
        Request { path_and_query: Some("/v2"), headers: &headers, body: r#"{"a":1,"b":3}"#, ..Request::default() };
    let other = shipped(&gateway, "", transform_sends(&other)).await;
    let skips = shipped(&gateway, "", transform_skips("not_ours")).await;
    let traps = shipped(&gateway, "", transform_with("", "unreachable")).await;
    let plain = shipped(&gateway, "", terminal("no")).await;
    let before = rows(&gateway);

    let told = tried(&gateway, &json!({ "version": same })).await;
    assert_eq!((&told["requests"]["same"], &told["verdicts"]["same"]), (&json!(2), &json!(2)), "{told}");
    let told = tried(&gateway, &json!({ "version": other })).await;
    assert_eq!(told["requests"]["changes"], json!([{ "from": "send", "to": "send", "count": 2 }]));
    let request = &told["items"][0]["request"];
    assert_eq!(request["changed"], json!(["path", "headers", "body"]), "{told}");
    assert_eq!(
        (&request["before_is"], &request["path"]),
        (&json!("recorded"), &json!({"before": "/v1", "after": "/v2"}))
    );
    assert!(request["body"]["diff"].as_str().unwrap().contains("\n-  \"b\": 2\n+  \"b\": 3\n"), "{request}");
    assert!(!told.to_string().contains("s3cret") && told.to_string().contains("(withheld)"), "{told}");
    for (version, to) in [(&skips, "skip"), (&traps, "fault")] {
        let told = tried(&gateway, &json!({ "version": version })).await;
        assert_eq!(told["requests"]["changes"], json!([{ "from": "send", "to": to, "count": 2 }]), "{told}");
        assert!(!told.to_string().contains("s3cret"), "{told}");
    }
    // Without a transform the event goes as it came; and this one judges.
    let told = tried(&gateway, &json!({ "version": plain })).await;
    assert_eq!(told["requests"]["changed"], 2);
    assert_eq!(told["verdicts"]["changes"], json!([{ "from": "delivered", "to": "terminal", "count": 2 }]));
    let diff = told["items"][0]["request"]["body"]["diff"].as_str().unwrap();
    assert!(diff.contains("+  \"n\": 1\n"), "{diff}");
    assert_eq!((rows(&gateway), receiver.count()), (before, 2));
}

#[tokio::test]
async fn pages_join_up_and_the_same_call_has_the_same_answer() {
    let receiver = Receiver::start(|_, _| Reply::body(200, "busy")).await;
    let gateway = Gateway::start(&config(&receiver, "")).await;
    shipped(&gateway, "?activate=true", retries("busy")).await;
    record(&gateway, 4, 4).await;
    let two = shipped(&gateway, "", terminal("down")).await;
    let whole = gateway.post("plugins/rules/dry-run", &json!({ "version": two })).await;
    assert_eq!(whole.text, gateway.post("plugins/rules/dry-run", &json!({ "version": two })).await.text);
    let (mut items, mut counted, mut cursor, mut pages) = (Vec::new(), 0, Value::Null, 0);
    loop {
        let mut body = json!({ "version": two, "limit": 5 });
        if cursor.is_string() {
            body["cursor"] = cursor;
        }
        let page = tried(&gateway, &body).await;
        pages += 1;
        counted += page["verdicts"]["changes"][0]["count"].as_u64().unwrap();
        items.extend(page["items"].as_array().unwrap().clone());
        assert_eq!((page["scanned"].as_u64().unwrap(), page["total"].as_u64().unwrap()), (counted, 12));
        cursor = page["next"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!((pages, counted), (3, 12));
    assert_eq!(json!(items), whole.json()["items"]);
}

#[tokio::test]
async fn what_cannot_be_tried_is_told_why() {
    let receiver = Receiver::kind().await;
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/plugins/sms-rules.wasm");
    let unused = format!("[tenants.acme.plugins.filed]\npath = \"{file}\"\n[tenants.acme.plugins.unused]\n");
    let gateway = Gateway::start(&(unused + &config(&receiver, ""))).await;
    let one = shipped(&gateway, "?activate=true", sends("one")).await;
    let refused = gateway.api("PUT", "plugins/rules").header("content-type", "application/wasm").body("garbage");
    let refused = gateway.send(refused).await.unwrap().json()["version"].clone();
    let unknown = "plg_019b7670607b70018000000000000000";
    let cases = [
        (json!({}), 422, "invalid", "version"),
        (json!({ "version": "latest" }), 422, "invalid", "version"),
        (json!({ "version": unknown }), 404, "not_found", "no such version"),
        (json!({ "version": refused }), 422, "plugin_rejected", "format"),
        (json!({ "version": one, "since": "yesterday" }), 422, "invalid", "RFC 3339"),
        (json!({ "version": one, "since": "2999-01-01T00:00:00Z" }), 422, "invalid", "in the future"),
        (json!({ "version": one, "limit": 0 }), 422, "invalid", "from 1 to 10000"),
        (json!({ "version": one, "limit": 10_001 }), 422, "invalid", "from 1 to 10000"),
        (json!({ "version": one, "limit": "many" }), 422, "invalid", "limit"),
        (json!({ "version": one, "cursor": "AAAA" }), 400, "bad_cursor", "cursor"),
        (json!({ "version": one, "until": "x" }), 422, "unknown_field", "until"),
    ];
    for (body, status, code, said) in cases {
        let answer = gateway.post("plugins/rules/dry-run", &body).await;
        assert_eq!((answer.status, answer.code()), (status, code.to_owned()), "{body}: {}", answer.text);
        assert!(answer.text.contains(said), "{said}: {}", answer.text);
    }
    let told = tried(&gateway, &json!({ "version": one })).await;
    assert_eq!((&told["scanned"], &told["total"], &told["items"]), (&json!(0), &json!(0), &json!([])));
    assert!(told["hint"].as_str().unwrap().starts_with("no such attempt is recorded"), "{told}");
    let since = tried(&gateway, &json!({ "version": one, "since": "2026-01-01T00:00:00Z" })).await;
    assert!(since["hint"].as_str().unwrap().contains("since 2026-01-01T00:00:00.000Z: begin earlier"), "{since}");
    let of_the_file = gateway.post("plugins/filed/dry-run", &json!({ "version": one })).await;
    assert_eq!((of_the_file.status, of_the_file.code()), (409, "managed_by_file".to_owned()));
    assert_eq!(gateway.post("plugins/nothing/dry-run", &json!({ "version": one })).await.status, 404);
    assert_eq!(
        gateway.get("plugins/unused/attempts").await["hint"],
        json!("no endpoint uses the plugin: name it in one, `plugin = \"unused\"`")
    );
    for (query, said) in [
        ("endpoint=other", "is to be an endpoint"),
        ("verdict=good", "one of delivered"),
        ("since=2999-01-01T00:00:00Z", "in the future"),
        ("limit=201", "from 1 to 200"),
    ] {
        let answer = gateway.send(gateway.api("GET", &format!("plugins/rules/attempts?{query}"))).await.unwrap();
        assert!(answer.status == 422 && answer.text.contains(said), "{query}: {}", answer.text);
    }
}

#[tokio::test]
async fn a_run_ends_with_its_client_and_is_the_only_one_of_its_tenant() {
    let receiver = Receiver::start(|_, _| Reply::body(200, "busy")).await;
    let gateway = Gateway::start(&config(&receiver, "")).await;
    shipped(&gateway, "?activate=true", retries("busy")).await;
    record(&gateway, 20, 20).await;
    // Each call takes its whole time: a page of these takes two seconds.
    let spins = shipped(&gateway, "", classify_with("", "(loop (br 0)) unreachable")).await;
    let long = || async { gateway.post("plugins/rules/dry-run", &json!({ "version": spins })).await };
    let short = || async { gateway.post("plugins/rules/dry-run", &json!({ "version": spins, "limit": 1 })).await };
    let mut recorded = 20;
    // Whoever of the two comes first, or ends just then: once, the long one goes away in the middle of its page.
    while !gateway.log().contains("its client is gone") {
        let running = async {
            loop {
                long().await;
            }
        };
        recorded += 1;
        let meanwhile = async {
            // Deliveries go on beside it.
            record(&gateway, recorded, 1).await;
            until("the long one runs", || async { Some(short().await).filter(|a| a.status == 429) }).await
        };
        let busy = tokio::select! {
            () = running => unreachable!(),
            busy = meanwhile => busy,
        };
        assert_eq!((busy.code(), busy.headers["retry-after"].to_str().unwrap()), ("dry_run_running".to_owned(), "1"));
        until("its place is free", || async { (short().await.status == 200).then_some(()) }).await;
    }
}

#[tokio::test]
async fn the_command_line_counts_shows_and_can_be_stopped() {
    let receiver = Receiver::start(|_, _| Reply::body(200, "busy")).await;
    let gateway = Gateway::start(&config(&receiver, "")).await;
    shipped(&gateway, "?activate=true", retries("busy")).await;
    record(&gateway, 20, 20).await;
    let two = shipped(&gateway, "", terminal("down")).await;
    let run = |args: &[&str]| ran(gateway.command(args).output().unwrap());
    let (exit, out, err) = run(&["plugin", "dry-run", "acme/rules", &two, "--rows", "2"]);
    assert_eq!(exit, 0, "{err}");
    assert!(out.contains("retryable  terminal  60"), "{out}");
    assert_eq!(out.matches("dlv_").count(), 2, "{out}");
    assert!(out.contains("retryable busy") && out.contains("terminal down"), "{out}");
    assert!(err.contains("tried 60 of 60 recorded attempts; nothing was sent or changed"), "{err}");
    let (exit, out, _) = run(&["plugin", "dry-run", "rules", &two, "--json", "--since", "1h", "--limit", "50"]);
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((exit, &told["scanned"], &told["total"]), (0, &json!(50), &json!(60)), "{told}");
    assert_eq!(told["verdicts"]["changes"], json!([{ "from": "retryable", "to": "terminal", "count": 50 }]));
    assert!(told["next"].is_string() && told["items"].as_array().unwrap().len() == 20, "{told}");
    assert_eq!(run(&["plugin", "dry-run", "rules", "plg_019b7670607b70018000000000000000"]).0, 5);
    assert_eq!(run(&["plugin", "dry-run", "rules", &two, "--since", "2999-01-01T00:00:00Z"]).0, 2);

    let spins = shipped(&gateway, "", classify_with("", "(loop (br 0)) unreachable")).await;
    let pages = || gateway.log().matches("a page of a dry run is done").count();
    let before = pages();
    let mut command = gateway.command(&["plugin", "dry-run", "rules", &spins]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It asks for the second once it has the first; the third is under way then.
    until("two pages are done", || async { (pages() >= before + 2).then_some(()) }).await;
    // SAFETY: sends a signal to a child that we own and have not waited for.
    #[allow(unsafe_code)]
    let sent = unsafe { libc::kill(i32::try_from(child.id()).unwrap(), libc::SIGINT) };
    assert_eq!(sent, 0);
    let (exit, out, err) = ran(child.wait_with_output().unwrap());
    assert_eq!(exit, 7, "{out} {err}");
    assert!(out.contains("retryable  fault") && err.contains("stopped before the end"), "{out} {err}");
}

fn sms(receiver: &Receiver) -> String {
    let more = "plugin = \"rules\"\nplugin_config = { path = \"/v1/messages\", from = \"Acme\" }\n";
    format!("[tenants.acme.plugins.rules]\n{}", endpoint("sms", &receiver.url("/"), more))
}

/// The provider of sms-rules: what it answers is in the text.
async fn provider() -> Receiver {
    Receiver::start(|seen, _| {
        let sent: Value = serde_json::from_slice(&seen.body).unwrap();
        match sent["text"].as_str().unwrap() {
            "suspended" => Reply::body(200, r#"{"error":"suspended"}"#).with("content-type", "application/json"),
            "limited" => Reply::body(200, r#"{"error":"rate_limited","retry_after_ms":10}"#),
            "down" => Reply::status(503),
            text => Reply::body(200, &format!(r#"{{ "status":"queued", "message_id":"SM{}" }}"#, text.len())),
        }
    })
    .await
}

async fn texts(gateway: &Gateway, texts: &[&str]) {
    for (n, text) in texts.iter().enumerate() {
        let payload = json!({ "to": format!("+49301234{n}"), "body": text, "mail": "jane.doe@acme.example" });
        let event = json!({"type": "hold.reminder", "key": format!("hold-{n}"), "payload": payload});
        let answer = gateway.post("events", &event).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    let skipped = json!({"type": "hold.reminder", "payload": {"to": "a", "body": "b", "channel": "email"}});
    assert_eq!(gateway.post("events", &skipped).await.status, 200);
    record(gateway, texts.len() + 1, 0).await;
}

#[tokio::test]
async fn what_was_recorded_becomes_fixtures_that_pass_at_once() {
    let receiver = provider().await;
    let gateway = Gateway::start(&sms(&receiver)).await;
    let version = shipped(&gateway, "?activate=true", SMS.to_vec()).await;
    texts(&gateway, &["suspended", "suspended", "limited", "down", "Hello", "Hello!"]).await;
    std::fs::write(gateway.dir.path().join("rules.wasm"), SMS).unwrap();
    let run = |args: &[&str]| ran(gateway.command(args).output().unwrap());
    let before = rows(&gateway);

    let (exit, out, err) = run(&["plugin", "pull-fixtures", "acme/rules", "--json"]);
    assert_eq!(exit, 0, "{err}");
    let told: Value = serde_json::from_str(&out).unwrap();
    let files: Vec<&Value> = told["items"].as_array().unwrap().iter().collect();
    let of = |start: &str| -> Vec<&&Value> {
        files
            .iter()
            .filter(|file| file["fixture"].as_str().unwrap().starts_with(&format!("fixtures/{start}")))
            .collect()
    };
    assert_eq!(told["left_out"], json!({}), "{told}");
    // Two texts to the closed account are one case; each request has its own text or number.
    assert_eq!(
        (of("200-terminal-suspended-").len(), &of("200-terminal-suspended-")[0]["cases"]),
        (1, &json!(2)),
        "{told}"
    );
    assert_eq!((of("200-delivered").len(), of("503-retryable-http_503-").len()), (2, 1), "{told}");
    assert_eq!((of("200-retryable-rate_limited-").len(), of("transform-hold.reminder-skip-not_sms-").len()), (1, 1));
    let tested = run(&["plugin", "test", "fixtures", "--plugin", "rules.wasm", "--json"]);
    assert_eq!(tested.0, 0, "{tested:?}");
    let passed: Value = serde_json::from_str(&tested.1).unwrap();
    assert_eq!(passed["items"].as_array().unwrap().len(), files.len());
    let sent = of("transform-hold.reminder-send-")[0]["fixture"].as_str().unwrap();
    let text = std::fs::read_to_string(gateway.dir.path().join(sent)).unwrap();
    assert!(text.contains("\"body_json\": {\n") && text.contains("/v1/messages") && text.contains(&version), "{text}");

    // Again: nothing new, nothing overwritten.
    std::fs::write(gateway.dir.path().join(sent), "mine").unwrap();
    let (exit, out, err) = run(&["plugin", "pull-fixtures", "rules"]);
    assert!(exit == 0 && !out.contains("written") && err.contains("--force"), "{out} {err}");
    assert_eq!(std::fs::read_to_string(gateway.dir.path().join(sent)).unwrap(), "mine");
    assert_eq!(run(&["plugin", "pull-fixtures", "rules", "--force", "--quiet"]).0, 0);
    assert_eq!(std::fs::read_to_string(gateway.dir.path().join(sent)).unwrap(), text);

    // Filters.
    for (args, n) in [
        (&["--reason", "suspended", "--call", "classify"][..], 1),
        (&["--verdict", "retryable", "--call", "classify"], 2),
        (&["--status", "503", "--call", "classify"], 1),
        (&["--state", "skipped"], 1),
        (&["--endpoint", "sms", "--since", "1h", "--limit", "1"], 1),
    ] {
        let (exit, out, err) = run(&[&["plugin", "pull-fixtures", "rules", "--dir", "some", "--quiet"], args].concat());
        assert_eq!((exit, out.lines().count()), (0, n), "{args:?}: {out} {err}");
    }
    let delivery = gateway.get("deliveries?state=skipped").await["items"][0]["id"].as_str().unwrap().to_owned();
    let (_, out, _) = run(&["plugin", "pull-fixtures", "rules", "--dir", "some", "--quiet", "--delivery", &delivery]);
    assert!(out.contains("skip-not_sms") && out.lines().count() == 1, "{out}");
    let (exit, out, err) = run(&["plugin", "pull-fixtures", "rules", "--reason", "nothing"]);
    assert!(exit == 0 && out.is_empty() && err.contains("no such attempt is recorded"), "{out} {err}");
    assert_eq!(run(&["plugin", "pull-fixtures", "rules", "--verdict", "good"]).0, 2);
    assert_eq!(rows(&gateway), before, "reading changes nothing");
}

#[tokio::test]
async fn redacted_fixtures_name_nobody_and_still_pass() {
    let receiver = provider().await;
    let gateway = Gateway::start(&sms(&receiver)).await;
    shipped(&gateway, "?activate=true", SMS.to_vec()).await;
    texts(&gateway, &["Dear Jane", "Dear Jane", "suspended"]).await;
    std::fs::write(gateway.dir.path().join("rules.wasm"), SMS).unwrap();
    let run = |args: &[&str]| ran(gateway.command(args).output().unwrap());
    let pull = ["plugin", "pull-fixtures", "rules", "--redact", "--redact-field", "body", "--redact-field", "text"];
    let (exit, out, err) = run(&[&pull[..], &["--quiet"]].concat());
    assert_eq!(exit, 0, "{err}");
    let text = |name: &str| std::fs::read_to_string(gateway.dir.path().join(name)).unwrap();
    for name in out.lines() {
        for gone in ["Jane", "jane", "+4930", "49301234"] {
            assert!(!text(name).contains(gone), "{gone} in {name}: {}", text(name));
        }
    }
    let tested = run(&["plugin", "test", "fixtures", "--plugin", "rules.wasm"]);
    assert_eq!(tested.0, 0, "{tested:?}");
    let first: Vec<String> = out.lines().map(text).collect();
    assert_eq!(run(&[&pull[..], &["--quiet", "--force"]].concat()).1, out, "the same again");
    assert_eq!(out.lines().map(text).collect::<Vec<_>>(), first);
}

#[tokio::test]
async fn a_rolled_on_version_is_tried_on_what_failures_there_were() {
    // Nobody listens there.
    let receiver = Receiver::kind().await;
    let url = format!("http://127.0.0.1:{}/", receiver.addr.port());
    drop(receiver);
    let text = format!("[tenants.acme.plugins.rules]\n{}", endpoint("billing", &url, "plugin = \"rules\"\n"));
    let gateway = Gateway::start(&text).await;
    let one = shipped(&gateway, "?activate=true", SMS.to_vec()).await;
    let event = json!({"type": "a", "payload": {"to": "+4930", "body": "x"}});
    assert_eq!(gateway.post("events", &event).await.status, 200);
    gateway.until_deliveries("state=dead", 1).await;
    // The same version says the same of the same failure: what it was is known.
    let told = tried(&gateway, &json!({ "version": one })).await;
    assert_eq!((&told["verdicts"]["same"], &told["verdicts"]["left_out"]), (&json!(3), &json!({})), "{told}");
    assert_eq!(told["requests"]["same"], 3);
    let attempts = gateway.get("plugins/rules/attempts?limit=2").await;
    let failure = &attempts["items"][0]["calls"][1]["outcome"]["failure"];
    assert_eq!(
        (&failure["kind"], &failure["may_have_been_received"]),
        (&json!("connect"), &json!(false)),
        "{attempts}"
    );
    let next = attempts["next"].as_str().unwrap();
    let rest = gateway.get(&format!("plugins/rules/attempts?limit=2&cursor={next}")).await;
    assert_eq!((rest["items"].as_array().unwrap().len(), &rest["next"]), (1, &Value::Null));
    let two = shipped(&gateway, "", terminal("gone")).await;
    activate(&gateway, &two).await;
    let told = tried(&gateway, &json!({ "version": one })).await;
    assert_eq!(told["verdicts"]["same"], 3, "what is compared with is the record: {told}");
}

#[tokio::test]
async fn where_what_was_sent_is_not_known_both_sides_are_computed() {
    let receiver = Receiver::start(|_, before| if before == 0 { Reply::Hang } else { Reply::status(204) }).await;
    let mut gateway = Gateway::start(&config(&receiver, "")).await;
    let one = shipped(&gateway, "?activate=true", sends("one")).await;
    assert_eq!(gateway.post("events", &json!({"type": "a", "payload": {}})).await.status, 200);
    receiver.until_count(1).await;
    gateway.kill();
    gateway.boot().await;
    gateway.until_deliveries("state=delivered", 1).await;
    let two = shipped(&gateway, "", sends("two")).await;
    let told = tried(&gateway, &json!({ "version": two })).await;
    let before: Vec<&Value> =
        told["items"].as_array().unwrap().iter().map(|item| &item["request"]["before_is"]).collect();
    assert_eq!(before, ["recorded", "computed"], "the last attempt first: {told}");
    assert_eq!(told["verdicts"]["left_out"], json!({ "not_asked": 1 }), "nobody knows how it ended");
    assert_eq!(tried(&gateway, &json!({ "version": one })).await["requests"]["same"], 2);
}

#[tokio::test]
async fn an_answer_of_which_too_little_was_kept_is_not_judged() {
    let long = Receiver::start(|_, _| Reply::body(200, &"x".repeat(20_000))).await;
    for (grant, same, left_out) in
        [("", 3, json!({})), ("[limits.plugins]\nresponse_bytes_max = \"64KiB\"\n", 0, json!({ "truncated": 3 }))]
    {
        let mut gateway = Gateway::with(grant, &config(&long, ""));
        gateway.boot().await;
        let one = shipped(&gateway, "?activate=true", retries("busy")).await;
        record(&gateway, 1, 1).await;
        let told = tried(&gateway, &json!({ "version": one })).await;
        assert_eq!((&told["verdicts"]["same"], &told["verdicts"]["left_out"]), (&json!(same), &left_out), "{grant}");
        let first = gateway.get("plugins/rules/attempts").await["items"][0].clone();
        let whys = first["left_out"].as_array().unwrap().len();
        assert_eq!((first["calls"].as_array().unwrap().len(), whys), if same > 0 { (1, 0) } else { (0, 1) }, "{first}");
    }
}
