//! An event once more, lists without an end, and many closed at once.

use super::*;

fn again(line: &str) -> (u16, String) {
    let (method, path) = line.split_once(' ').unwrap();
    let path = path.strip_prefix(T).unwrap_or(path);
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let answer = match (method, path) {
        ("POST", "/deliveries/dlv_1/resend") => {
            return (201, json!({"id": "dlv_2", "state": "pending", "resend_of": "dlv_1"}).to_string());
        }
        ("POST", "/endpoints/audit/replay") => {
            json!({"count": 7, "samples": [event()], "skipped": {"expired": 0, "payload_erased": 2, "under_way": 1}})
        }
        ("GET", "/dlq/export" | "/deliveries/export") => {
            let row = |id: &str| delivery(id, if query.is_empty() { "dead" } else { query }).to_string();
            return (200, format!("{}\n{}\n", row("dlv_1"), row("dlv_2")));
        }
        ("POST", "/dlq/resolve") => json!({"count": 40, "samples": [], "resolved": 40, "more": false}),
        ("POST", "/deliveries/cancel") => {
            json!({"count": 40, "samples": [delivery("dlv_1", "pending")], "cancelled": 40, "more": false})
        }
        _ => return ordinary(line),
    };
    (200, answer.to_string())
}

/// A replay is begun.
fn begins(line: &str) -> (u16, String) {
    if !line.ends_with("/replay") {
        return again(line);
    }
    let operation = json!({"id": "op_1", "kind": "replay", "state": "queued", "total": 10, "done": 0, "rate": 9,
                           "delivered": 0, "dead_again": 0, "waiting": 0});
    (202, operation.to_string())
}

#[test]
fn a_resend_tells_which_delivery_it_made() {
    let server = Server::start(again);
    let ran = server.run(&["delivery", "resend", "dlv_1", "--note=lost", "--request-id=r"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "dlv_2  pending\n"), "{}", ran.err);
    let seen = server.last();
    assert_eq!((seen.line, seen.request_id), (format!("POST {T}/deliveries/dlv_1/resend"), "r".to_owned()));
    assert_eq!(seen.body, json!({"note": "lost"}));
    assert_eq!(server.run(&["delivery", "resend", "dlv_1", "-q"]).out, "dlv_2\n");
    assert_eq!(server.run(&["delivery", "resend", "dlv_9"]).exit, Exit::NotFound);
}

#[test]
fn a_replay_says_all_it_was_told() {
    let server = Server::start(begins);
    let args = [
        "event",
        "replay",
        "--endpoint=audit",
        "--source=github",
        "--type=push",
        "--key=k",
        "--since=2026-01-01T00:00:00Z",
        "--until=2026-02-01T00:00:00Z",
        "--only-missed",
        "--rate=9",
        "--max=5",
        "--canary",
        "--no-probe",
        "--force",
        "--note=n",
        "--yes",
        "--request-id=r",
    ];
    let ran = server.run(&args);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    assert!(ran.out.starts_with("op_1  queued  0 of 10 replayed, 9 per second"), "{}", ran.out);
    assert_eq!(
        server.last().body,
        json!({
            "filter": {"source": "github", "type": "push", "key": "k", "since": "2026-01-01T00:00:00Z",
                       "until": "2026-02-01T00:00:00Z"},
            "only_missed": true, "rate": 9, "max": 5, "canary": true, "probe": false, "force": true, "note": "n",
        })
    );
    assert_eq!(server.last().request_id, "r");
}

#[test]
fn a_replay_is_rehearsed_and_asked_for() {
    let server = Server::start(again);
    let dry = server.run(&["event", "replay", "--endpoint=audit", "--all", "--dry-run"]);
    assert!(
        dry.out.starts_with("7 events would be replayed; nothing was done; 2 without a payload; 1 under way\n")
            && dry.out.contains("evt_1"),
        "{}",
        dry.out
    );
    assert_eq!(server.last().body, json!({"filter": {}, "only_missed": false, "dry_run": true}));
    let unasked = server.run(&["event", "replay", "--endpoint=audit", "--type=push"]);
    assert_eq!(unasked.exit, Exit::Usage);
    assert!(unasked.err.contains("Replay 7 events, 100 per second?"), "{}", unasked.err);
    assert!(server.seen.lock().unwrap().iter().all(|seen| seen.body["dry_run"] == true), "nothing was done");
    for args in [
        &["event", "replay", "--all"][..],
        &["event", "replay", "--endpoint=audit"],
        &["event", "replay", "--endpoint=audit", "--all", "--type=push"],
        &["event", "replay", "--endpoint=audit", "--all", "--rate=0"],
    ] {
        assert_eq!(server.run(args).exit, Exit::Usage, "{args:?}");
    }
}

#[test]
fn an_export_is_lines_to_a_stream_or_a_file() {
    let server = Server::start(again);
    let ran = server.run(&["dlq", "export", "--reason=http_500"]);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    let ids: Vec<String> = ran
        .out
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!((ids, ran.err.as_str()), (vec!["dlv_1".to_owned(), "dlv_2".to_owned()], "2 dead letters exported\n"));
    assert_eq!(server.last().line, format!("GET {T}/dlq/export?reason=http_500"));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("all.jsonl");
    let to = format!("--output={}", file.display());
    let ran = server.run(&["delivery", "export", "--state=delivered", "--bodies", &to, "--quiet"]);
    assert_eq!((ran.exit, ran.out.as_str(), ran.err.as_str()), (Exit::Done, "", ""));
    assert_eq!(server.last().line, format!("GET {T}/deliveries/export?state=delivered&bodies=true"));
    assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 2);
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let nowhere = format!("--output={}/none/all.jsonl", dir.path().display());
    assert_eq!(server.run(&["dlq", "export", &nowhere]).exit, Exit::Usage);
    assert_eq!(Server::start(|_| (422, "{}".into())).run(&["dlq", "export"]).exit, Exit::Usage);
}

/// A server that promises more than it sends.
#[test]
fn an_export_that_breaks_off_is_partly_done() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let served = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = std::io::BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        while head.read_line(&mut line).unwrap() > 2 {
            line.clear();
        }
        let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n11\r\n{\"id\": \"dlv_1\"}\r\n\r\n";
        stream.write_all(answer.as_bytes()).unwrap();
    });
    let env = [("HOOKGATE_URL", url.as_str()), ("HOOKGATE_TOKEN", "t"), ("HOOKGATE_TENANT", "acme")];
    let ran = run(&env, &["dlq", "export"]);
    served.join().unwrap();
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Partly, "{\"id\": \"dlv_1\"}\r\n"));
    assert!(ran.err.contains("after 1 dead letters") && ran.err.contains("broke off"), "{}", ran.err);
}

#[test]
fn many_are_resolved_or_cancelled() {
    let server = Server::start(again);
    let ran = server.run(&["dlq", "resolve", "--host=x.example", "--as=not_sent", "--note=n", "--yes"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "40 dead letters resolved\n"), "{}", ran.err);
    assert_eq!(server.last().body, json!({"filter": {"host": "x.example"}, "as": "not_sent", "note": "n"}));
    let ran = server.run(&["delivery", "cancel", "--endpoint=former", "--status=503", "--yes", "--json"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "{\"cancelled\":40}\n"), "{}", ran.err);
    assert_eq!(server.last().body, json!({"filter": {"endpoint": "former", "status": 503}}));
    let dry = server.run(&["delivery", "cancel", "--all", "--dry-run"]);
    assert!(dry.out.starts_with("40 pending deliveries match; nothing was done\n") && dry.out.contains("dlv_1"));
    let unasked = server.run(&["dlq", "resolve", "--all", "--as=sent"]);
    assert!(unasked.err.contains("Resolve 40 dead letters? They cannot be redriven then."), "{}", unasked.err);
    for args in [
        &["dlq", "resolve", "--as=sent", "--yes"][..],
        &["dlq", "resolve", "--all", "--yes"],
        &["dlq", "resolve", "--all", "--reason=x", "--as=sent"],
        &["delivery", "cancel", "--yes"],
        &["delivery", "cancel", "--all", "--endpoint=x", "--yes"],
        &["delivery", "cancel", "dlv_1", "--endpoint=x", "--yes"],
        &["delivery", "cancel", "dlv_1", "--dry-run"],
    ] {
        assert_eq!(server.run(args).exit, Exit::Usage, "{args:?}");
    }
}

/// The second call finds nobody.
#[test]
fn a_sweep_that_is_cut_short_is_partly_done() {
    static CALLS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let server = Server::start(|_| match CALLS.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
        0 => (200, json!({"resolved": 500, "more": true}).to_string()),
        _ => (503, json!({"code": "unavailable", "detail": "the disk is full"}).to_string()),
    });
    let ran = server.run(&["dlq", "resolve", "--all", "--as=sent", "--yes"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Partly, "500 dead letters resolved\n"));
    assert!(ran.err.contains("500 so far") && ran.err.contains("the disk is full"), "{}", ran.err);
}
