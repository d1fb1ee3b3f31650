//! The figures that an operator reads, of real deliveries: over a kill, by the API and on the command line.

use super::{Gateway, Receiver, Reply, endpoint, github_source, until};
use serde_json::{Value, json};

/// The first is throttled and then taken; the second is refused for good.
#[tokio::test]
async fn the_figures_are_those_of_what_happened_and_outlive_a_kill() {
    let receiver = Receiver::start(|seen, before| match (seen.body == "bad", before) {
        (true, _) => Reply::status(422),
        (false, 0) => Reply::status(429).with("retry-after", "1"),
        (false, _) => Reply::status(204),
    })
    .await;
    let mut gateway = Gateway::start(&(github_source() + &endpoint("billing", &receiver.url("/"), ""))).await;
    gateway.accepted(gateway.github("1", "push", "good")).await;
    let again = gateway.send(gateway.github("1", "push", "good")).await.unwrap();
    assert_eq!((again.status, &again.json()["duplicate"]), (200, &true.into()), "{}", again.text);
    gateway.until_deliveries("state=delivered", 1).await;
    gateway.accepted(gateway.github("2", "push", "bad")).await;
    gateway.until_deliveries("state=dead", 1).await;

    let stats = gateway.get("stats?endpoint=billing&window=1h&bucket=5m").await;
    let billing = &stats["endpoints"][0];
    for (figure, expected) in [
        ("accepted", 2),
        ("delivered", 1),
        ("dead", 1),
        ("attempts", 3),
        ("attempts_per_delivered", 3),
        ("status_429", 1),
        ("throttled", 1),
        ("redriven", 0),
        ("skipped", 0),
        ("interrupted", 0),
        ("ambiguous", 0),
    ] {
        assert_eq!(billing[figure].as_f64(), Some(f64::from(expected)), "{figure}: {billing}");
    }
    assert_eq!(billing["terminal_rate"], 0.5);
    let tried = |n: usize| {
        let row = &billing["by_attempt"][n];
        (row["attempt"].as_u64(), row["tried"].as_u64(), row["delivered"].as_u64())
    };
    assert_eq!((tried(0), tried(1)), ((Some(1), Some(2), Some(0)), (Some(2), Some(1), Some(1))), "{billing}");
    let p99 = billing["latency_ms"]["p99"].as_u64().unwrap();
    assert!((960..30_000).contains(&p99), "it waited for a second: {billing}");
    assert_eq!(billing["closed"][0]["why"], "retry_after");
    let paused = billing["paused_ms"].as_u64().unwrap();
    assert!((900..=1_000).contains(&paused), "{billing}");
    let reasons =
        json!([{"reason": "http_422", "retried": 0, "dead": 1}, {"reason": "http_429", "retried": 1, "dead": 0}]);
    assert_eq!(billing["reasons"], reasons);
    let now = &billing["now"];
    assert_eq!((now["pending"].as_u64(), now["in_flight"].as_u64(), now["dead"].as_u64()), (Some(0), Some(0), Some(1)));
    assert_eq!(gateway.get("dlq").await["items"].as_array().map(Vec::len), Some(1));
    let buckets = billing["buckets"].as_array().unwrap();
    let delivered: u64 = buckets.iter().filter_map(|bucket| bucket["delivered"].as_u64()).sum();
    assert_eq!((buckets.len(), delivered), (13, 1), "{billing}");

    let figures = async |gateway: &Gateway| {
        let mut stats = gateway.get("stats").await;
        let sources = stats["sources"].take();
        let total = &mut stats["total"];
        // What is told of now grows older.
        total["now"] = Value::Null;
        (total.take(), sources)
    };
    let before = figures(&gateway).await;
    let github = json!({"source": "github", "events": 2, "duplicates": 1, "keys_reused": 0});
    assert_eq!(before.1[1], github);
    gateway.kill();
    gateway.boot().await;
    assert_eq!(figures(&gateway).await, before, "after a kill");

    let id = gateway.get("dlq").await["items"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(gateway.post(&format!("deliveries/{id}/redrive"), &json!({})).await.status, 200);
    until("it has died again", || async {
        let total = gateway.get("stats").await["total"].clone();
        (total["dead"] == 2 && total["redriven"] == 1 && total["now"]["dead"] == 1).then_some(())
    })
    .await;
    let run = |args: &[&str]| {
        let ran = gateway.command(args).output().unwrap();
        (ran.status.code(), String::from_utf8(ran.stdout).unwrap())
    };
    let (code, table) = run(&["stats", "--endpoint", "billing"]);
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!((code, &row[..6]), (Some(0), ["billing", "enabled", "1", "2", "0", "1"].as_slice()), "{table}");
    assert_eq!(run(&["stats", "--endpoint", "nobody"]).0, Some(5));
    assert_eq!(run(&["stats", "--window", "500d"]).0, Some(2));
}
