//! `hookgate plugin …` before a server that knows one plugin.

use super::{Around, Exit, Server, T};
use serde_json::{Value, json};

fn plugin() -> Value {
    json!({"name": "rules", "managed_by": "api", "active": "plg_1", "digest": "00ff", "endpoints": ["billing"],
           "versions": [
             {"id": "plg_2", "state": "rejected", "active": false, "digest": "11ff", "uploaded_by": "operator",
              "uploaded_at": "2026-01-31T08:00:00.000Z", "bytes": 7, "exports": null, "warnings": null,
              "rejection": {"rule": "imports", "finding": "wasi\u{1b}[2J", "remedy": "without"}, "fault": null},
             {"id": "plg_1", "state": "ready", "active": true, "digest": "00ff", "uploaded_by": "operator",
              "uploaded_at": "2026-01-31T07:00:00.000Z", "bytes": 4711, "exports": ["transform", "classify"],
              "warnings": ["classify did not answer\u{1b}"], "rejection": null, "fault": null}],
           "activations": [{"version": "plg_1", "what": "rollback", "at": "2026-01-31T09:00:00.000Z", "by": "operator"}]})
}

/// With a canary, in use or before it is.
fn tried(active: &str, state: &str) -> Value {
    let mut plugin = plugin();
    plugin["active"] = active.into();
    plugin["trial"] =
        json!({"id": "trl_1", "kind": "canary", "version": "plg_2", "active": "plg_1", "share": "10%", "state": state});
    plugin
}

fn answer(line: &str) -> (u16, String) {
    let (method, path) = line.split_once(' ').unwrap();
    let path = path.strip_prefix(T).unwrap_or(path);
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let body = match (method, path) {
        ("GET", "/plugins") => {
            let mut rolled_back = tried("plg_1", "rolled_back");
            rolled_back["digest"] = "0123456789abcdef".into();
            json!({"items": [rolled_back], "next": null})
        }
        ("GET" | "POST", "/plugins/rules" | "/plugins/rules/activate" | "/plugins/rules/rollback") => plugin(),
        ("PUT", "/plugins/rules") => {
            let mut version = plugin()["versions"][1].clone();
            version["active"] = query.contains("activate=true").into();
            return (201, version.to_string());
        }
        ("PUT", "/plugins/again") => plugin()["versions"][1].clone(),
        ("GET", "/plugins/tried") => tried("plg_1", "running"),
        ("POST", "/plugins/tried/activate") => tried("plg_2", "promoted"),
        ("POST", "/plugins/tried/canary") => {
            return (409, json!({"detail": "a trial runs", "code": "trial_running"}).to_string());
        }
        ("DELETE", "/plugins/tried/shadow") => {
            return (404, json!({"detail": "no such trial", "code": "no_trial"}).to_string());
        }
        ("PUT", "/plugins/bad") => {
            let problem =
                json!({"detail": "imports: wasi\u{1b}", "code": "plugin_rejected", "remedy": "build it without"});
            return (422, problem.to_string());
        }
        _ => return (404, json!({"detail": "there is nothing here", "code": "not_found"}).to_string()),
    };
    (200, body.to_string())
}

#[test]
fn plugins_are_listed_and_shown_with_what_became_of_each_version() {
    let server = Server::start(answer);
    let list = server.run(&["plugin", "list"]).out;
    assert!(["rules", "plg_1", "api", "billing"].iter().all(|told| list.contains(told)), "{list}");
    assert!(list.contains("canary 10% plg_2: rolled_back") && !list.contains("[\""), "{list}");
    assert!(list.contains("0123456789ab\n"), "{list}");
    assert_eq!(server.run(&["plugin", "list", "--quiet"]).out, "rules\n");
    let shown = server.run(&["plugin", "get", "acme/rules"]).out;
    for told in ["active      plg_1", "rejected", "imports: wasi\\u{1b}[2J", "in use; transform, classify", "rollback"]
    {
        assert!(shown.contains(told), "{told}: {shown}");
    }
    assert!(!shown.contains('\u{1b}'));
    assert_eq!(server.last().line, format!("GET {T}/plugins/rules"));
    let json: Value = serde_json::from_str(&server.run(&["plugin", "get", "rules", "--json"]).out).unwrap();
    assert_eq!(json, plugin());
}

#[test]
fn a_component_is_uploaded_as_it_is() {
    let server = Server::start(answer);
    let file = tempfile::NamedTempFile::new().unwrap();
    // The server of this test reads JSON.
    std::fs::write(file.path(), b"[1]").unwrap();
    let path = file.path().to_str().unwrap();
    let ran = server.run(&["plugin", "push", "rules", path]);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    assert!(ran.out.contains("ready") && ran.out.contains("plg_1"), "{}", ran.out);
    assert!(ran.err.contains("note: classify did not answer\\u{1b}"), "{}", ran.err);
    assert!(ran.err.contains("hookgate plugin activate rules plg_1"), "{}", ran.err);
    assert!(ran.out.contains("transform, classify") && !ran.err.contains("already"), "{ran:?}");
    let seen = server.last();
    assert_eq!((seen.line, seen.body), (format!("PUT {T}/plugins/rules?activate=false&wait=true"), json!([1])));
    let ran = server.run(&["plugin", "upload", "rules", path, "--activate", "--no-wait", "--quiet"]);
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("plg_1\n", ""));
    assert_eq!(server.last().line, format!("PUT {T}/plugins/rules?activate=true&wait=false"));
    let again = server.run(&["plugin", "upload", "again", path]);
    assert!(again.err.contains("already there: these bytes are version plg_1, which is in use\n"), "{}", again.err);
    let refused = server.run(&["plugin", "upload", "bad", path]);
    assert_eq!(refused.exit, Exit::Usage);
    assert!(refused.err.contains("imports: wasi\\u{1b} (plugin_rejected)"), "{}", refused.err);
    assert!(refused.err.contains("build it without"), "{}", refused.err);
    assert_eq!(server.run(&["plugin", "upload", "rules", "/nowhere"]).exit, Exit::Usage);
    for (args, line, body) in [
        (&["plugin", "activate", "rules", "plg_1"][..], "activate", json!({"version": "plg_1"})),
        (&["plugin", "rollback", "rules"], "rollback", json!({})),
    ] {
        let ran = server.run(args);
        assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "rules: in use now: plg_1 (as before)\n"), "{}", ran.err);
        let seen = server.last();
        assert_eq!((seen.line, seen.body), (format!("POST {T}/plugins/rules/{line}"), body));
    }
}

#[test]
fn a_trial_in_the_way_is_named_with_what_ends_it() {
    let server = Server::start(answer);
    let begin = server.run(&["plugin", "canary", "acme/tried", "plg_3", "--share", "10%"]);
    assert_eq!(begin.exit, Exit::Conflict, "{}", begin.err);
    let other = server.run(&["plugin", "shadow", "acme/tried", "--stop"]);
    assert_eq!(other.exit, Exit::NotFound, "{}", other.err);
    for told in [begin.err, other.err] {
        assert!(
            told.contains("a canary of plg_2 runs: end it with `hookgate plugin canary acme/tried --stop`"),
            "{told}"
        );
        assert!(told.contains("`hookgate plugin activate acme/tried plg_2`"), "{told}");
    }
    let promoted = server.run(&["plugin", "activate", "tried", "plg_2"]);
    assert_eq!(promoted.out, "rules: in use now: plg_2 (before: plg_1); the canary was promoted\n", "{}", promoted.err);
}

fn dry_run(line: &str) -> (u16, String) {
    let side = |changed: u64| {
        json!({"same": 1, "changed": changed, "faults": 0, "left_out": {"erased\u{1b}": 1},
               "changes": [{"from": "retryable", "to": "terminal", "count": changed}]})
    };
    let item = json!({"delivery": "dlv_1", "number": 2, "endpoint": "billing", "status": 200,
        "verdict": {"changed": ["verdict", "reason", "after_ms"],
            "recorded": {"verdict": "retryable", "reason": "busy\u{1b}[2J", "after_ms": 20},
            "candidate": {"verdict": "terminal", "reason": "down", "after_ms": null}},
        "request": {"changed": ["path", "headers", "body"], "before_is": "computed",
            "path": {"before": null, "after": "/v2"},
            "headers": [{"name": "x-a", "before": "1", "after": null}],
            "body": {"kind": "json", "diff": "@@ -1 +1 @@\n-  \"a\u{1b}\": 1\n+  \"a\": 2\n", "diff_truncated": true,
                "before": {"bytes": 1, "sha256": "a"}, "after": {"bytes": 1, "sha256": "b"}}}});
    let mut page = json!({"version": "plg_2", "active": "plg_1", "since": null, "scanned": 3, "total": 6,
        "total_is_exact": true, "verdicts": side(2), "requests": side(1), "items": [item], "next": "on"});
    match line {
        line if line.ends_with("/plugins/rules/dry-run") => {}
        line if line.ends_with("/plugins/same/dry-run") => page["version"] = "plg_1".into(),
        line if line.ends_with("/plugins/empty/dry-run") => {
            page = json!({"scanned": 0, "total": 0, "items": [], "next": null, "hint": "no endpoint uses it\u{1b}"});
        }
        _ => return (429, json!({"detail": "one at a time", "code": "dry_run_running"}).to_string()),
    }
    (200, page.to_string())
}

#[test]
fn a_dry_run_adds_its_pages_up() {
    // The same page comes for ever: it ends at what was asked for.
    let server = Server::start(dry_run);
    let ran =
        server.run(&["plugin", "dry-run", "acme/rules", "plg_2", "--limit", "3", "--since", "2026-01-31T08:00:00Z"]);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    let seen = server.last();
    assert_eq!(seen.line, format!("POST {T}/plugins/rules/dry-run"));
    assert_eq!(seen.body, json!({"version": "plg_2", "limit": 3, "since": "2026-01-31T08:00:00Z"}));
    for told in [
        "verdict  retryable                terminal  2\n",
        "request  retryable                terminal  1\n",
        "not tried: erased\\u{1b}",
        "retryable busy\\u{1b}[2J after_ms=20",
        "terminal down",
        "path, headers, body",
        "dlv_1 #2, before as the version in use makes it\n  - path: (none)\n  + path: /v2\n  - x-a: 1\n  + x-a: (none)",
        "  -  \"a\\u{1b}\": 1\n  +  \"a\": 2\n  … cut here",
    ] {
        assert!(ran.out.contains(told), "{told}: {}", ran.out);
    }
    assert!(!ran.out.contains('\u{1b}'));
    assert!(ran.err.contains("tried 3 of 6 recorded") && ran.err.contains("--limit tries more"), "{}", ran.err);
    assert!(!ran.err.contains("in use"), "{}", ran.err);
    let same = server.run(&["plugin", "dry-run", "same", "plg_1", "--limit", "3"]);
    assert!(same.err.contains("plg_1 is the version in use: it was compared with the record"), "{}", same.err);
    let json: Value =
        serde_json::from_str(&server.run(&["plugin", "dry-run", "rules", "plg_2", "--json", "--limit", "3"]).out)
            .unwrap();
    assert_eq!((&json["verdicts"]["changes"][0]["count"], &json["interrupted"]), (&2.into(), &false.into()));
    let ran = server.run(&["plugin", "dry-run", "rules", "plg_2", "--rows", "0", "--limit", "3", "--quiet"]);
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("", ""));
    // A server that promises more and does nothing is not asked for ever.
    assert_eq!(server.run(&["plugin", "dry-run", "rules", "plg_2"]).exit, Exit::Done);
    let around = Around { terminal: true, ..Around::default() };
    let seen = server.run_in(around, &["plugin", "dry-run", "rules", "plg_2", "--limit", "3"]);
    let bar = format!("\r{} 3/3 tried, 3 changes\u{1b}[K\r\u{1b}[Ktried 3 of 6", "█".repeat(30));
    assert!(seen.err.starts_with(&bar), "{:?}", seen.err);
    let empty = server.run(&["plugin", "dry-run", "empty", "plg_2"]);
    assert_eq!((empty.exit, empty.out.as_str()), (Exit::Done, ""));
    assert!(empty.err.contains("nothing to try it on: no endpoint uses it\\u{1b}"), "{}", empty.err);
    let busy = server.run(&["plugin", "dry-run", "busy", "plg_2"]);
    assert_eq!(busy.exit, Exit::Failed);
    assert!(busy.err.contains("one at a time (dry_run_running)"), "{}", busy.err);
    assert_eq!(server.run(&["plugin", "dry-run", "rules", "plg_2", "--limit", "0"]).exit, Exit::Usage);
}

#[test]
fn fixtures_are_not_taken_on_trust() {
    let server = Server::start(|line| {
        let call = if line.contains("/odd/") {
            json!({"outcome": {"odd\u{1b}": 1}})
        } else {
            json!({"event": {"body_base64": "/w=="}})
        };
        (200, json!({"items": [{"calls": [call], "left_out": [{"call": "classify", "why": "erased\u{1b}"}]}], "next": null}).to_string())
    });
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("new").display().to_string();
    let odd = server.run(&["plugin", "pull-fixtures", "odd", "--dir", &to]);
    assert_eq!(odd.exit, Exit::Failed);
    assert!(odd.err.contains("what the server sent is no fixture") && !odd.err.contains('\u{1b}'), "{}", odd.err);
    let binary = server.run(&["plugin", "pull-fixtures", "binary", "--dir", &to, "--redact", "--limit", "5"]);
    assert!(binary.err.contains("binary, which cannot be redacted"), "{}", binary.err);
    assert!(binary.err.contains("1 calls left out (classify: erased\\u{1b})"), "{}", binary.err);
    assert!(!dir.path().join("new").exists(), "nothing was to be written");
    let kept = server.run(&["plugin", "pull-fixtures", "binary", "--dir", &to, "--quiet"]);
    assert_eq!(kept.exit, Exit::Done, "{}", kept.err);
    std::fs::write(dir.path().join("new/earlier.json"), "{}").unwrap();
    let again = server.run(&["plugin", "pull-fixtures", "binary", "--dir", &to]);
    assert!(
        again.err.contains("1 other fixtures in ") && again.err.contains(&format!("next: hookgate plugin test {to}\n")),
        "{}",
        again.err
    );
    assert!(std::path::Path::new(kept.out.trim()).exists(), "{}", kept.out);
    assert_eq!(server.run(&["plugin", "pull-fixtures", "binary", "--dir", &to, "--limit", "0"]).exit, Exit::Usage);
}
