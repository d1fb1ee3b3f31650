//! `hookgate stats`, against a small server.

use super::*;

fn stats(endpoint: &str, delivered: u64) -> Value {
    json!({
        "endpoint": endpoint, "host": "billing.example",
        "now": {"status": "paused", "until": "2026-01-31T09:00:00Z", "why": "retry_after", "pending": 14,
                "available": 12, "in_flight": 2, "dead": 3, "oldest_pending_age_seconds": 125,
                "oldest_dead_age_seconds": 14_520},
        "accepted": 1250, "delivered": delivered, "delivered_after_redrive": 2, "skipped": 2, "expired": 1, "dead": 4,
        "cancelled": 0, "resolved": 1, "redriven": 3, "terminal_rate": 0.0033,
        "latency_ms": {"p50": 118, "p95": 1_450, "p99": 31_000},
        "attempts": 1262, "attempts_per_delivered": 1.05,
        "by_attempt": [
            {"attempt": 1, "tried": 1204, "delivered": 1158, "share": 0.962, "success_rate": 0.9618},
            {"attempt": 2, "tried": 46, "delivered": 37, "share": 0.031, "success_rate": 0.8043},
            {"attempt": 3, "tried": 12, "delivered": 9, "share": 0.007, "success_rate": 0.75},
        ],
        "released": 30, "interrupted": 1, "ambiguous": 2, "status_429": 12, "throttled": 11,
        "reasons": [{"reason": "http_503", "retried": 40, "dead": 1}, {"reason": "http_400\u{1b}[2J", "retried": 0, "dead": 3}],
        "paused_ms": 250_000, "disabled_ms": 0, "closed": [{"status": "paused", "why": "retry_after", "ms": 250_000}],
        "buckets": [{"delivered": 0}, {"delivered": 100}, {"delivered": 300}, {"delivered": 804}],
    })
}

fn answers(line: &str) -> (u16, String) {
    match line {
        line if line.contains("endpoint=nobody") => {
            (404, json!({"detail": "there is nothing here", "code": "not_found"}).to_string())
        }
        line if line.contains("window=9d&bucket=") => {
            (422, json!({"detail": "more than 20000 buckets", "code": "invalid"}).to_string())
        }
        line if line.contains("window=1ms") => {
            (422, json!({"detail": "`window` is to be …", "code": "invalid"}).to_string())
        }
        _ => {
            let quiet = json!({
                "endpoint": "crm", "now": {"status": "enabled", "pending": 0, "dead": 0}, "delivered": 0, "dead": 0,
                "latency_ms": {"p50": null, "p95": null, "p99": null}, "by_attempt": [], "buckets": [{"delivered": 0}],
            });
            let all = json!({
                "since": "2026-01-30T08:00:00Z", "until": "2026-01-31T08:00:00Z", "bucket": "6h",
                "endpoints": [stats("billing", 1204), quiet], "total": stats("", 1204),
                "sources": [{"source": null, "duplicates": 5}, {"source": "github", "duplicates": 12},
                            {"source": "stripe", "duplicates": 0}],
            });
            (200, all.to_string())
        }
    }
}

#[test]
fn a_picture_on_a_terminal_and_a_table_off_it() {
    let server = Server::start(answers);
    let terminal = Around { terminal: true, ..Around::default() };
    let drawn = server.run_in(terminal, &["stats", "--window", "1h"]);
    assert_eq!(drawn.exit, Exit::Done, "{}", drawn.err);
    assert_eq!(server.lines(), [format!("GET {T}/stats?window=1h&bucket=5m")]);
    // How a time is told depends on the day.
    let (window, rest) = drawn.out.split_once('\n').unwrap();
    assert!(window.starts_with("From ") && window.ends_with("(UTC), a bar of the chart is 6h"), "{window}");
    golden("tests/golden/output/stats-terminal.txt", rest.trim_start_matches('\n'));
    assert!(!drawn.out.contains('\u{1b}'));
    let widest = drawn.out.lines().take_while(|line| !line.starts_with("now")).map(|line| line.chars().count()).max();
    assert!(widest <= Some(120), "{widest:?}");

    let crowded = server.run_in(terminal, &["stats", "--window", "9d"]);
    assert_eq!((crowded.exit, server.last().line), (Exit::Done, format!("GET {T}/stats?window=9d")));

    let plain = server.run(&["stats"]);
    assert_eq!(server.last().line, format!("GET {T}/stats"), "nobody sees a chart");
    golden("tests/golden/output/stats.txt", &plain.out);
    assert_eq!(plain.out.lines().count(), 3);
    let names = server.run(&["stats", "--quiet"]);
    assert_eq!(names.out, "billing\ncrm\n");
    let document: Value = serde_json::from_str(&server.run(&["stats", "--json"]).out).unwrap();
    assert_eq!(document["endpoints"][0]["delivered"], 1204);
}

#[test]
fn what_is_asked_for_is_asked_of_the_server() {
    let server = Server::start(answers);
    let args = ["stats", "--endpoint", "billing", "--since", "2026-01-01T00:00:00Z", "--until", "2026-01-02T00:00:00Z"];
    assert_eq!(server.run(&[&args[..], &["--bucket", "1h", "--json"]].concat()).exit, Exit::Done);
    let asked = "endpoint=billing&since=2026-01-01T00%3A00%3A00Z&until=2026-01-02T00%3A00%3A00Z&bucket=1h";
    assert_eq!(server.last().line, format!("GET {T}/stats?{asked}"));
    assert_eq!(server.run(&["stats", "--endpoint", "nobody"]).exit, Exit::NotFound);
    let refused = server.run(&["stats", "--window", "1ms"]);
    assert_eq!((refused.exit, refused.err.contains("window")), (Exit::Usage, true), "{}", refused.err);
    for wrong in [["--window", "1h", "--since", "1h"].as_slice(), &["--window", "soon"], &["--bucket", "-1"]] {
        assert_eq!(server.run(&[&["stats"], wrong].concat()).exit, Exit::Usage, "{wrong:?}");
    }
}
