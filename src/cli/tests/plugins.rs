//! `hookgate plugin …` before a server that knows one plugin.

use super::{Exit, Server, T};
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

fn answer(line: &str) -> (u16, String) {
    let (method, path) = line.split_once(' ').unwrap();
    let path = path.strip_prefix(T).unwrap_or(path);
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let body = match (method, path) {
        ("GET", "/plugins") => json!({"items": [plugin()], "next": null}),
        ("GET" | "POST", "/plugins/rules" | "/plugins/rules/activate" | "/plugins/rules/rollback") => plugin(),
        ("PUT", "/plugins/rules") => {
            let mut version = plugin()["versions"][1].clone();
            version["active"] = query.contains("activate=true").into();
            version
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
    let seen = server.last();
    assert_eq!((seen.line, seen.body), (format!("PUT {T}/plugins/rules?activate=false&wait=true"), json!([1])));
    let ran = server.run(&["plugin", "upload", "rules", path, "--activate", "--no-wait", "--quiet"]);
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("plg_1\n", ""));
    assert_eq!(server.last().line, format!("PUT {T}/plugins/rules?activate=true&wait=false"));
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
        assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "rules  plg_1\n"), "{}", ran.err);
        let seen = server.last();
        assert_eq!((seen.line, seen.body), (format!("POST {T}/plugins/rules/{line}"), body));
    }
}
