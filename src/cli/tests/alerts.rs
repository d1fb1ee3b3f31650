//! Alerts as people and scripts see them.

use super::*;

fn alerts(line: &str) -> (u16, String) {
    let alert = |id: &str, state: &str| {
        json!({"id": id, "tenant": "acme", "kind": "dlq_depth", "subject": "dlq", "state": state,
               "summary": "100 dead\u{1b} letters", "next_step": format!("do {id}"),
               "fired_at": "2026-01-31T08:00:00.000Z", "cleared_at": null})
    };
    match line.split_once('?') {
        Some((path, _)) if path == format!("GET {T}/alerts") || path == "GET /v1/alerts" => {
            (200, json!({"items": [alert("alr_2", "firing"), alert("alr_1", "cleared")], "next": null}).to_string())
        }
        _ => (404, json!({"detail": "there is nothing here", "code": "not_found"}).to_string()),
    }
}

#[test]
fn what_fires_is_shown_with_what_to_do_next() {
    let server = Server::start(alerts);
    let ran = server.run(&["alert", "list"]);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    for told in ["firing", "cleared", "dlq_depth", "100 dead\\u{1b} letters", "\ndlq_depth dlq: do alr_2\n"] {
        assert!(ran.out.contains(told), "{told}: {}", ran.out);
    }
    assert!(!ran.out.contains("do alr_1"), "what has cleared asks for nothing");
    assert_eq!(server.last().line, format!("GET {T}/alerts?limit=50"));
    assert_eq!(server.run(&["alert", "list", "-q"]).out, "alr_2\nalr_1\n");
    let json: Value = serde_json::from_str(&server.run(&["alert", "list", "--firing", "--json"]).out).unwrap();
    assert_eq!(json["items"][0]["next_step"], "do alr_2");
    assert_eq!(server.last().line, format!("GET {T}/alerts?state=firing&limit=50"));
    assert_eq!(server.run(&["alert", "list", "--all", "--limit=7"]).exit, Exit::Done);
    assert_eq!(server.last().line, "GET /v1/alerts?limit=7");
}
