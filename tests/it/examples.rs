//! The examples' own files, run by the tests of their jobs, so that they cannot rot.

use super::{Gateway, Receiver};
use hookgate::clock::Timestamp;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// An example as it stands, but for what a test replaces in it: ports, and waits nobody has time for. What is to be
/// replaced must be there.
pub fn example(name: &str, edits: &[(&str, &str)]) -> Gateway {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name);
    let mut text = std::fs::read_to_string(folder.join("hookgate.toml")).unwrap();
    for (from, to) in edits {
        assert!(text.contains(from), "{name} has no `{from}`");
        text = text.replace(from, to);
    }
    // What is beside the file stays there.
    let path = format!("path = \"{}/", folder.display());
    Gateway::of_file("", &text.replace("path = \"../", &format!("{path}../")))
}

/// How the process ends in the middle.
#[derive(Clone, Copy, Debug)]
pub enum Ending {
    Stopped,
    Killed,
}

impl Ending {
    pub const ALL: [Ending; 2] = [Ending::Stopped, Ending::Killed];

    /// Ends the process, and starts it again.
    pub async fn restart(self, gateway: &mut Gateway) {
        match self {
            Ending::Stopped => assert!(gateway.stop().await.success()),
            Ending::Killed => gateway.kill(),
        }
        gateway.boot().await;
    }
}

/// A time so far from now, as it is written in a request.
pub fn from_now(span: Duration) -> String {
    super::retries::jiff_now_plus(span)
}

/// All rows of a list; `query` is its path with `?` or `&` at the end.
pub async fn all(gateway: &Gateway, query: &str) -> Vec<Value> {
    let (mut rows, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = gateway.get(&format!("{query}limit=200&cursor={cursor}")).await;
        rows.extend(page["items"].as_array().unwrap().iter().cloned());
        match page["next"].as_str() {
            Some(next) => next.clone_into(&mut cursor),
            None => return rows,
        }
    }
}

/// The wait that followed an attempt.
pub fn wait_after(attempt: &Value) -> Duration {
    let time = |name: &str| Timestamp::parse_rfc3339(attempt[name].as_str().unwrap()).unwrap();
    let ended = time("started_at").plus(Duration::from_millis(attempt["duration_ms"].as_u64().unwrap()));
    time("next_at").since(ended)
}

/// What is on the wire, and the first that comes to this receiver, takes the process with it, three times in a row; then it is left.
pub async fn crash_loop(gateway: &mut Gateway, receiver: &Receiver) -> Value {
    for death in 1..=3 {
        receiver.until_count(death).await;
        gateway.kill();
        gateway.boot().await;
    }
    let dead = gateway.until_deliveries("state=dead&reason=crash_loop", 1).await.remove(0);
    let delivery = gateway.delivery(dead["id"].as_str().unwrap()).await;
    let outcomes: Vec<_> = delivery["attempts"].as_array().unwrap().iter().map(|a| a["outcome"].clone()).collect();
    assert_eq!(outcomes, ["interrupted", "interrupted", "interrupted"], "{delivery}");
    gateway.until_drained().await;
    assert_eq!(receiver.count(), 3, "not for ever");
    delivery
}
