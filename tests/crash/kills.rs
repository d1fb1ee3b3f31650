//! Under load and without warning: `kill -9` at random moments, and SIGTERM between them.

use super::journals::{by_delivery, check, deliveries, drained};
use super::provider::{Provider, body, number};
use super::{Gateway, Receiver, Reply, Seen, github_source};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const KILLS: u64 = 12;
const STOPS: u64 = 5;
const WORKERS: u64 = 4;
const ENDPOINTS: usize = 2;

/// The moments: from a seed, so that a run can be had again.
struct Chance(u64);

impl Chance {
    fn new() -> Chance {
        let given = number_in("HOOKGATE_SEED");
        let seed = given.unwrap_or_else(|| u64::from(std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos()));
        eprintln!("HOOKGATE_SEED={seed}");
        Chance(seed)
    }

    /// Below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

fn number_in(variable: &str) -> Option<u64> {
    let text = std::env::var_os(variable)?.into_string().unwrap();
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is to be a whole number, not {text}")))
}

fn config(receiver: &Receiver) -> String {
    let mut text = github_source();
    for path in ["billing", "audit"] {
        text += &format!(
            "[tenants.acme.endpoints.{path}]\nurl = \"{}\"\nconcurrency = 50\n\
             retry = {{ max_attempts = 12, delays = [\"20ms\", \"50ms\", \"100ms\"], jitter = \"equal\" }}\n",
            receiver.url(&format!("/{path}"))
        );
    }
    text
}

/// The workers of a provider, until they are told to stop.
struct Load {
    provider: Arc<Provider>,
    stop: CancellationToken,
    workers: JoinSet<()>,
}

impl Load {
    fn on(gateway: &Gateway) -> Load {
        let provider = Arc::new(Provider::of(gateway));
        let stop = CancellationToken::new();
        let mut workers = JoinSet::new();
        for _ in 0..WORKERS {
            let (provider, stop) = (Arc::clone(&provider), stop.clone());
            workers.spawn(async move { provider.work(&stop).await });
        }
        Load { provider, stop, workers }
    }

    /// Everything that was begun is acknowledged.
    async fn end(mut self) -> Arc<Provider> {
        self.stop.cancel();
        while let Some(worker) = self.workers.join_next().await {
            worker.unwrap();
        }
        self.provider
    }
}

/// What a run came to.
#[derive(Default, Debug)]
struct Count {
    acknowledged: usize,
    lost: usize,
    sends: usize,
    /// Sends beyond the first of each delivery: each after a row of one of the next two kinds.
    duplicates: usize,
    refused_by_receiver: usize,
    interrupted: usize,
    crash_loops: usize,
}

/// Both journals and the log against each other, when nothing is left to do.
async fn audit(gateway: &Gateway, provider: &Provider, receiver: &Receiver) -> Count {
    let acknowledged = provider.journal();
    let mut sends = by_delivery(receiver.journal());
    let mut count = Count { acknowledged: acknowledged.len(), ..Count::default() };
    let mut places: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut bodies: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for row in deliveries(gateway).await {
        let id = row["id"].as_str().unwrap();
        let event = row["event"].as_str().unwrap();
        let new = places.entry(event.to_owned()).or_default().insert(row["endpoint"].as_str().unwrap().to_owned());
        assert!(new, "two deliveries of {event} to one endpoint");
        let sent = sends.remove(id).unwrap_or_default();
        for seen in &sent {
            if let Some(before) = bodies.insert(event.to_owned(), seen.body.to_vec()) {
                assert_eq!(before, seen.body, "{event}: two bodies");
            }
        }
        count.sends += sent.len();
        count.duplicates += sent.len().saturating_sub(1);
        let state = row["state"].as_str().unwrap();
        if state == "delivered" && row["attempt_count"] == 1 && sent.len() == 1 {
            continue;
        }
        let delivery = gateway.delivery(id).await;
        let outcomes = check(&delivery, &sent);
        let attempts = delivery["attempts"].as_array().unwrap();
        let refused = |a: &&Value| a["outcome"] == "answered" && a["disposition"] != "delivered";
        count.refused_by_receiver += attempts.iter().filter(refused).count();
        count.interrupted += outcomes.iter().filter(|o| *o == "interrupted").count();
        match state {
            "delivered" => assert!(!sent.is_empty(), "{id}: delivered, and never sent"),
            // Caught by three kills in a row, which is not the kills' aim, but may happen.
            "dead" => {
                assert_eq!(delivery["reason"], "crash_loop", "{delivery}");
                assert!(outcomes.iter().rev().take(3).filter(|o| *o == "interrupted").count() == 3, "{delivery}");
                count.crash_loops += 1;
            }
            other => panic!("{id} ended as {other}: {delivery}"),
        }
    }
    assert!(count.duplicates <= count.refused_by_receiver + count.interrupted, "{count:?}");
    assert!(sends.is_empty(), "sent, and not in the log: {:?}", sends.keys());
    for (n, told) in &acknowledged {
        let places = places.remove(&told.event).unwrap_or_default();
        let delivered = bodies.get(&told.event).is_none_or(|bytes| number(bytes) == Some(*n));
        assert!(delivered, "{} carried the bytes of another", told.event);
        count.lost += usize::from(places.len() != ENDPOINTS);
    }
    // Every event was acknowledged in the end, so there is none besides.
    assert!(places.is_empty(), "events that nobody sent, or twice the same: {places:?}");
    // What was acknowledged is still known to be a duplicate.
    for (n, told) in acknowledged.iter().step_by(acknowledged.len() / 10 + 1) {
        let again = provider.until_acknowledged(*n, &body(*n)).await;
        assert_eq!((again.duplicate, &again.event), (true, &told.event));
    }
    count
}

/// 200, 503 first, slow, 500 twice.
fn moody(seen: &Seen, before: usize) -> Reply {
    match (number(&seen.body).unwrap_or_default() % 4, before) {
        (1, 0) => Reply::status(503),
        (2, _) => Reply::Late(Duration::from_millis(40), Box::new(Reply::status(200))),
        (3, 0 | 1) => Reply::status(500),
        _ => Reply::status(200),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_kills_lose_nothing() {
    let kills = number_in("HOOKGATE_KILLS").unwrap_or(KILLS);
    let mut chance = Chance::new();
    let receiver = Receiver::start(moody).await;
    let mut gateway = Gateway::stopped(&config(&receiver));
    let load = Load::on(&gateway);
    for _ in 0..kills {
        if chance.below(4) == 0 {
            // Perhaps while it is still finding out what the kill before this one interrupted.
            gateway.spawn();
        } else {
            gateway.boot().await;
        }
        tokio::time::sleep(Duration::from_millis(chance.below(400))).await; // plays the peer: the killer takes its time
        assert!(gateway.running(), "it ended by itself");
        if chance.below(8) == 0 {
            // In the middle of a clean stop, if it is not over already.
            gateway.signal(libc::SIGTERM);
            tokio::time::sleep(Duration::from_millis(chance.below(50))).await; // plays the peer: an impatient supervisor
        }
        gateway.kill();
    }
    gateway.boot().await;
    let provider = load.end().await;
    drained(&gateway).await;
    let count = audit(&gateway, &provider, &receiver).await;
    eprintln!("kills={kills} {count:?}");
    assert_eq!(count.lost, 0);
    assert!(count.acknowledged as u64 > kills, "hardly anything was under way");
    assert!(!gateway.log().contains("panicked"));
    assert!(gateway.stop().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clean_stops_under_load_repeat_nothing() {
    let mut chance = Chance::new();
    let receiver = Receiver::start(|seen, _| match number(&seen.body).unwrap_or_default() % 2 {
        0 => Reply::status(200),
        _ => Reply::Late(Duration::from_millis(40), Box::new(Reply::status(200))),
    })
    .await;
    let mut gateway = Gateway::stopped(&config(&receiver));
    let load = Load::on(&gateway);
    for stop in 0..STOPS {
        gateway.boot().await;
        receiver.until_count(receiver.count() + 20).await;
        tokio::time::sleep(Duration::from_millis(chance.below(100))).await; // plays the peer: who stops it does not time it
        let status = gateway.stop().await;
        assert!(status.success(), "stop {stop}: {status}");
    }
    gateway.boot().await;
    let provider = load.end().await;
    drained(&gateway).await;
    let count = audit(&gateway, &provider, &receiver).await;
    eprintln!("stops={STOPS} {count:?}");
    assert_eq!((count.lost, count.duplicates, count.interrupted, count.crash_loops), (0, 0, 0, 0));
    assert_eq!(count.sends, count.acknowledged * ENDPOINTS);
    assert!(!gateway.log().contains("panicked"));
    assert!(gateway.stop().await.success());
}
