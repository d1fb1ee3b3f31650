//! SCENARIOS 4, the whole outage on `examples/billing-callbacks`: a certificate expires, 4,000 events die of it, it is
//! renewed, and all are delivered once, over a kill in the outage and one in the redrive.

use super::examples::{all, example, wait_after};
use super::{Gateway, Receiver, until};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_rustls::TlsAcceptor;

const EVENTS: usize = 4_000;
const LADDER: &str = "max_attempts = 6, delays = [\"30s\", \"2m\", \"10m\", \"1h\", \"6h\"]";
const SHORT: &str = "max_attempts = 3, delays = [\"2s\", \"6s\"]";
/// The rungs of the short ladder.
const CEILINGS: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(6)];

/// Vouches for certificates of 127.0.0.1.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "the partner's authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// One that is in force until the first day of that year.
    fn until(&self, year: i32) -> TlsAcceptor {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(year, 1, 1));
        let key = KeyPair::generate().unwrap();
        let leaf = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        let key = rustls_pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![leaf], key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }
}

/// TLS before a receiver; its port outlives its certificate.
struct Front {
    addr: SocketAddr,
    acceptor: Arc<Mutex<TlsAcceptor>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Front {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Front {
    async fn start(to: SocketAddr, acceptor: TlsAcceptor) -> Front {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let acceptor = Arc::new(Mutex::new(acceptor));
        let current = Arc::clone(&acceptor);
        let task = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let acceptor = current.lock().unwrap().clone();
                tokio::spawn(async move {
                    // Whoever does not like the certificate hangs up.
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let mut inside = tokio::net::TcpStream::connect(to).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut inside).await;
                });
            }
        });
        Front { addr, acceptor, task }
    }

    fn renew(&self, acceptor: TlsAcceptor) {
        *self.acceptor.lock().unwrap() = acceptor;
    }
}

async fn dead(gateway: &Gateway) -> usize {
    let counted = gateway.post("dlq/redrive", &json!({"filter": {}, "dry_run": true})).await.json();
    usize::try_from(counted["count"].as_u64().unwrap()).unwrap()
}

async fn begin(gateway: &Gateway, wish: &Value) -> String {
    let begun = gateway.post("dlq/redrive", wish).await;
    assert_eq!(begun.status, 202, "{}", begun.text);
    format!("operations/{}", begun.json()["id"].as_str().unwrap())
}

/// Of waits of at most `ceiling`: a tenth of it never holds more than a few times the average.
fn assert_spread(waits: &[Duration], ceiling: Duration) {
    // Counted from the end of the attempt; on a busy machine the decision comes a little later.
    let most = *waits.iter().max().unwrap();
    assert!(most <= ceiling + Duration::from_millis(500), "{most:?}");
    let mut tenths = [0_usize; 10];
    for wait in waits {
        tenths[usize::try_from(wait.as_millis() * 10 / ceiling.as_millis()).unwrap().min(9)] += 1;
    }
    let average = waits.len() / 10;
    assert!(tenths.iter().all(|n| (1..=3 * average).contains(n)), "{average} on average: {tenths:?}");
}

#[tokio::test]
async fn a_certificate_expires_and_is_renewed() {
    let authority = Authority::new();
    let partner = Receiver::kind().await;
    let front = Front::start(partner.addr, authority.until(2024)).await;
    let address = format!("https://{}", front.addr);
    let mut gateway = example(
        "billing-callbacks",
        &[(LADDER, SHORT), ("127.0.0.1/32:9004", "127.0.0.1/32"), ("http://127.0.0.1:9004", &address)],
    );
    let roots = gateway.dir.path().join("authority.pem");
    std::fs::write(&roots, &authority.pem).unwrap();
    gateway.env.insert("SSL_CERT_FILE", roots.to_str().unwrap().to_owned());
    gateway.env.insert("BILLING_WEBHOOK_SECRET", "whsec_YmlsbGluZy1jYWxsYmFja3MtdGVzdA==".to_owned());
    gateway.boot().await;

    // 09:00. In the middle of it the process is killed.
    for chunk in 0..EVENTS / 1_000 {
        let item = |n| json!({"type": "invoice.sent", "key": format!("invoice:{n}"), "payload": {"invoice": n}});
        let events: Vec<Value> = (chunk * 1_000..(chunk + 1) * 1_000).map(item).collect();
        assert_eq!(gateway.post("events", &json!({ "events": events })).await.status, 200);
    }
    until("some have failed", || async {
        let stats = gateway.get("stats?endpoint=partner").await;
        (stats["endpoints"][0]["by_attempt"][0]["tried"].as_u64()? >= 1_000).then_some(())
    })
    .await;
    gateway.kill();
    gateway.boot().await;
    until("all are dead", || async { (dead(&gateway).await == EVENTS).then_some(()) }).await;
    assert_eq!(partner.count(), 0, "nothing is sent to whom it is not safe to");

    // Each rung says why, and each spreads. What the kill interrupted has an attempt that says so.
    let rows = all(&gateway, "dlq?").await;
    assert_eq!(rows.len(), EVENTS);
    let (mut waits, mut due) = ([Vec::new(), Vec::new()], BTreeMap::<i64, usize>::new());
    for row in rows.iter().step_by(10) {
        let delivery = gateway.delivery(row["id"].as_str().unwrap()).await;
        for attempt in delivery["attempts"].as_array().unwrap() {
            if attempt["outcome"] == "interrupted" {
                continue;
            }
            assert_eq!((&attempt["reason"], &attempt["outcome"]), (&json!("tls"), &json!("unreachable")), "{attempt}");
            let number = usize::try_from(attempt["number"].as_u64().unwrap()).unwrap();
            if number == 3 {
                assert_eq!(attempt["disposition"], "dead", "{attempt}");
                continue;
            }
            waits[number - 1].push(wait_after(attempt));
            let next = hookgate::clock::Timestamp::parse_rfc3339(attempt["next_at"].as_str().unwrap()).unwrap();
            *due.entry(next.as_millis() / 1_000).or_default() += 1;
        }
    }
    for (waits, ceiling) in waits.iter().zip(CEILINGS) {
        assert_spread(waits, ceiling);
    }
    let (most, average) = (due.values().max().unwrap(), due.values().sum::<usize>() / due.len());
    assert!(*most <= 4 * average, "{most} due in a second, {average} on average: {due:?}");

    let groups = gateway.get("dlq/groups").await["items"].clone();
    assert_eq!(groups.as_array().unwrap().len(), 1, "{groups}");
    for (field, value) in [("host", json!("127.0.0.1")), ("reason", json!("tls")), ("count", json!(EVENTS))] {
        assert_eq!(groups[0][field], value, "{field}: {groups}");
    }
    assert_eq!(gateway.delivery(groups[0]["sample"].as_str().unwrap()).await["reason"], "tls");

    // Still down: refused. Forced, a canary finds out with one.
    let all_of_it = json!({"endpoint": "partner"});
    let refused = gateway.post("dlq/redrive", &json!({"filter": all_of_it})).await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "destination_down"), "{}", refused.text);
    let destination = refused.json()["destinations"][0].clone();
    assert_eq!((&destination["host"], &destination["class"]), (&json!("127.0.0.1"), &json!("tls")), "{destination}");
    let forced = json!({"filter": all_of_it, "canary": true, "force": true, "note": "is it really?"});
    let path = begin(&gateway, &forced).await;
    let stopped =
        until("the canary stops", || async { Some(gateway.get(&path).await).filter(|row| !row["ended_at"].is_null()) })
            .await;
    assert_eq!((&stopped["state"], &stopped["done"]), (&json!("stopped_by_canary"), &json!(1)), "{stopped}");
    let why = stopped["why"].as_str().unwrap();
    assert!(why.contains("the old failure is back") && why.contains("tls"), "{why}");
    until("it is dead again", || async { (dead(&gateway).await == EVENTS).then_some(()) }).await;
    assert_eq!(partner.count(), 0);

    // Renewed, on the same port. The redrive is killed half-way, and goes on.
    front.renew(authority.until(2200));
    let renewed = json!({"filter": all_of_it, "canary": true, "rate": 10_000, "note": "the certificate is renewed"});
    let path = begin(&gateway, &renewed).await;
    until("it has widened", || async { (gateway.get(&path).await["done"].as_u64().unwrap() > 500).then_some(()) })
        .await;
    gateway.kill();
    gateway.boot().await;
    let done = until("all are delivered", || async {
        let row = gateway.get(&path).await;
        (!row["ended_at"].is_null() && (row["state"] != "done" || row["delivered"] == EVENTS)).then_some(row)
    })
    .await;
    let facts = ["state", "done", "delivered", "dead_again"].map(|field| done[field].clone());
    assert_eq!(facts, [json!("done"), json!(EVENTS), json!(EVENTS), json!(0)], "{done}");
    assert_eq!((dead(&gateway).await, gateway.metric("hookgate_dlq_depth").await), (0, Some(0.0)));
    let again = gateway.post("dlq/redrive", &json!({"filter": all_of_it})).await;
    assert_eq!((again.status, &again.json()["count"]), (200, &json!(0)));

    // The partner's own ledger has each key once; what came twice was on the wire when the process was killed.
    let mut times = HashMap::<String, usize>::new();
    for seen in partner.journal().iter().filter(|seen| seen.method == "POST") {
        *times.entry(seen.header("idempotency-key").to_owned()).or_default() += 1;
    }
    assert_eq!(times.len(), EVENTS);
    assert!((0..EVENTS).all(|n| times.contains_key(&format!("invoice:{n}"))));
    for (key, times) in times.iter().filter(|(_, times)| **times > 1) {
        let id = gateway.get(&format!("deliveries?key={key}")).await["items"][0]["id"].clone();
        let delivery = gateway.delivery(id.as_str().unwrap()).await;
        let cut = delivery["attempts"].as_array().unwrap().iter().filter(|a| a["outcome"] == "interrupted").count();
        assert!(*times <= 1 + cut, "{times} requests: {delivery}");
    }
}
