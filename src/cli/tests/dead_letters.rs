//! Many dead letters at once, and their operations.

use super::*;

fn operation(state: &str) -> Value {
    let ended = state == "done" || state.starts_with("stopped");
    json!({
        "id": "op_1", "state": state, "total": 40, "max": null, "rate": 10, "done": 12, "left": 28,
        "time_left_seconds": if ended { Value::Null } else { json!(3) }, "delivered": 11, "dead_again": 0, "waiting": 1,
        "otherwise": 0, "skipped": {"expired": 0, "payload_erased": 0, "no_longer_dead": 0},
        "why": if state == "stopped_by_canary" { json!("the old failure is back\u{1b}") } else { Value::Null },
        "began_at": "2026-01-31T08:00:00.000Z", "ended_at": if ended { json!("2026-01-31T08:01:00.000Z") } else { Value::Null },
    })
}

fn desk(line: &str) -> (u16, String) {
    let (_, path) = line.split_once(' ').unwrap();
    let path = path.strip_prefix(T).unwrap_or(path);
    let answer = match path {
        "/dlq/redrive" | "/dlq/purge" => {
            json!({"count": 40, "samples": [{"id": "dlv_1", "state": "dead"}], "purged": 40,
                                               "payloads_erased": 39, "more": false})
        }
        "/operations/op_1" => operation("done"),
        "/operations/op_2" => operation("stopped_by_canary"),
        "/operations/op_1/stop" => operation("stopped"),
        "/operations/op_1/pause" => operation("paused"),
        "/operations/op_1/resume" => {
            return (409, json!({"code": "operation_ended", "detail": "it is done"}).to_string());
        }
        path if path.starts_with("/operations?") => json!({"items": [operation("running")], "next": null}),
        _ => return ordinary(line),
    };
    (200, answer.to_string())
}

/// A redrive is begun.
fn begins(line: &str) -> (u16, String) {
    if line.ends_with("/dlq/redrive") { (202, operation("queued").to_string()) } else { desk(line) }
}

const FILTERS: [&str; 12] = [
    "--endpoint=a",
    "--source=b",
    "--type=c d",
    "--key=e&f",
    "--event=evt_1",
    "--reason=h",
    "--status=500",
    "--host=x.example",
    "--plugin-version=plg_1",
    "--since=2026-01-01T00:00:00Z",
    "--until=2026-02-01T00:00:00Z",
    "--q=x",
];

#[test]
fn lists_and_groups_take_every_filter() {
    let server = Server::start(ordinary);
    for (verb, more) in [("list", &["--limit=1"][..]), ("groups", &[])] {
        let ran = server.run(&[&["dlq", verb], &FILTERS[..], more].concat());
        assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
        let line = server.last().line;
        let query = line.split_once('?').unwrap().1;
        let expected = "endpoint=a&source=b&type=c+d&key=e%26f&event=evt_1&reason=h&status=500&host=x.example\
                        &plugin_version=plg_1&since=2026-01-01T00%3A00%3A00Z&until=2026-02-01T00%3A00%3A00Z&q=x";
        assert_eq!(query.trim_end_matches("&limit=1"), expected);
    }
}

#[test]
fn a_redrive_says_all_it_was_told() {
    let server = Server::start(begins);
    let args = ["--rate=7", "--max=9", "--canary", "--no-probe", "--force", "--note=n", "--yes", "--request-id=r"];
    let ran = server.run(&[&["dlq", "redrive"], &FILTERS[..], &args].concat());
    assert_eq!((ran.exit, ran.out.split(' ').next()), (Exit::Done, Some("op_1")), "{}", ran.err);
    let seen = server.last();
    assert_eq!((seen.line, seen.request_id), (format!("POST {T}/dlq/redrive"), "r".to_owned()));
    assert_eq!(
        seen.body,
        json!({
            "filter": {"endpoint": "a", "source": "b", "type": "c d", "key": "e&f", "event": "evt_1", "reason": "h",
                       "status": 500, "host": "x.example", "plugin_version": "plg_1",
                       "since": "2026-01-01T00:00:00Z", "until": "2026-02-01T00:00:00Z", "q": "x"},
            "rate": 7, "max": 9, "canary": true, "probe": false, "force": true, "note": "n",
        })
    );
    assert_eq!(server.run(&["dlq", "redrive", "--all", "-y", "-q"]).out, "op_1\n");
    let body = server.last().body;
    assert_eq!(body, json!({"filter": {}, "canary": false, "probe": true, "force": false}));
}

#[test]
fn a_redrive_in_bulk_asks_and_rehearses() {
    let server = Server::start(desk);
    let dry = server.run(&["dlq", "redrive", "--reason=x", "--dry-run"]);
    assert_eq!((dry.exit, server.last().body), (Exit::Done, json!({"filter": {"reason": "x"}, "dry_run": true})));
    assert!(
        dry.out.starts_with("40 dead letters match; nothing was done\n") && dry.out.contains("dlv_1"),
        "{}",
        dry.out
    );
    assert_eq!(server.run(&["dlq", "redrive", "--all", "--dry-run", "-q"]).out, "dlv_1\n");
    let unasked = server.run(&["dlq", "redrive", "--all"]);
    assert_eq!(unasked.exit, Exit::Usage);
    assert!(unasked.err.contains("Redrive 40 dead letters, 100 per second?"), "{}", unasked.err);
    let refused = server.run_in(Around { terminal: true, input: "n\n" }, &["dlq", "purge", "--all"]);
    assert_eq!(refused.exit, Exit::Failed);
    assert!(server.seen.lock().unwrap().iter().all(|seen| seen.body["dry_run"] == true), "nothing was done");

    let none = Server::start(|line| match line.ends_with("/dlq/redrive") {
        true => (200, json!({"count": 0, "samples": []}).to_string()),
        false => ordinary(line),
    });
    for args in [&["dlq", "redrive", "--reason=x"][..], &["dlq", "redrive", "--reason=x", "--yes"]] {
        let ran = none.run(args);
        assert_eq!((ran.exit, ran.out.as_str(), ran.err.as_str()), (Exit::Done, "", "no dead letter matches\n"));
    }
}

#[test]
fn which_dead_letters_is_said_once() {
    let server = Server::start(desk);
    for args in [
        &["dlq", "redrive"][..],
        &["dlq", "redrive", "--yes", "--canary"],
        &["dlq", "redrive", "--all", "--reason=x", "--yes"],
        &["dlq", "redrive", "dlv_1", "--all"],
        &["dlq", "redrive", "dlv_1", "--reason=x"],
        &["dlq", "redrive", "dlv_1", "--canary"],
        &["dlq", "redrive", "dlv_1", "--dry-run"],
        &["dlq", "redrive", "--all", "--rate=0"],
        &["dlq", "purge", "--yes"],
        &["dlq", "purge", "--all", "--host=x", "--yes"],
    ] {
        assert_eq!(server.run(args).exit, Exit::Usage, "{args:?}");
    }
    assert!(server.lines().is_empty());
}

#[test]
fn a_purge_tells_what_went() {
    let server = Server::start(desk);
    let ran = server.run(&["dlq", "purge", "--endpoint=former", "--yes"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "40 dead letters purged, 39 payloads erased\n"));
    assert_eq!(server.last().body, json!({"filter": {"endpoint": "former"}}));
    let ran = server.run_in(Around { terminal: true, input: "y\n" }, &["dlq", "purge", "--all", "-q"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "40\n"), "{}", ran.err);
    let json: Value = serde_json::from_str(&server.run(&["dlq", "purge", "--all", "-y", "--json"]).out).unwrap();
    assert_eq!(json, json!({"purged": 40, "payloads_erased": 39}));
}

#[test]
fn operations_are_listed_held_up_and_watched() {
    let server = Server::start(desk);
    let list = server.run(&["operation", "list"]).out;
    assert!(["op_1", "running", "40", "11"].iter().all(|told| list.contains(told)), "{list}");
    assert!(server.run(&["operation", "get", "op_1"]).out.contains("delivered  "));
    let line = "12 of 40 redriven, 10 per second";
    for (verb, state) in [("stop", "stopped"), ("pause", "paused")] {
        let ran = server.run(&["operation", verb, "op_1"]);
        assert!(ran.exit == Exit::Done && ran.out.starts_with(&format!("op_1  {state}  {line}")), "{}", ran.out);
    }
    assert_eq!(server.run(&["operation", "resume", "op_1"]).exit, Exit::Conflict);
    let done = server.run(&["operation", "get", "op_1", "--watch"]);
    assert_eq!(done.exit, Exit::Done, "{}", done.err);
    let stopped = server.run(&["operation", "get", "op_2", "--watch"]);
    assert_eq!(stopped.exit, Exit::Partly);
    assert!(stopped.out.contains("stopped_by_canary") && stopped.out.contains("the old failure is back\\u{1b}"));
    let watched = Server::start(begins).run(&["dlq", "redrive", "--all", "--yes", "--watch"]);
    assert_eq!(watched.exit, Exit::Done, "{}", watched.err);
}
