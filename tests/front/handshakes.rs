//! Requests that are more than an event: handshakes, receipts, confirmations, and keys that cannot be had.

use crate::fake_ledger::FakeLedger;
use crate::ingress::{name, post};
use crate::peer::{Reply, ask};
use async_trait::async_trait;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hookgate::clock::SystemClock;
use hookgate::http::{Limits, serve};
use hookgate::ingress::{Adopting, Ingress, Inlet, Settings, Verifier};
use hookgate::ledger::{Adoptions as _, LedgerError, Slots, SourceKey, TenantKey};
use hookgate::secret::Secret;
use hookgate::verify::{Fetched, KeyQuery, KeySource, KeyUrl, SourceSpec, Unreachable};
use rcgen::{CertificateParams, KeyPair, PKCS_RSA_SHA256, RsaKeySize};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Fetches nothing, and remembers what it was asked to call.
#[derive(Default)]
struct Outside {
    is_down: AtomicBool,
    called: Mutex<Vec<String>>,
}

#[async_trait]
impl KeySource for Outside {
    async fn fetch(&self, query: &KeyQuery) -> Result<Option<Fetched>, Unreachable> {
        self.called.lock().unwrap().push(query.url().to_string());
        if self.is_down.load(SeqCst) { Err(Unreachable("down".to_owned())) } else { Ok(None) }
    }

    async fn confirm(&self, url: &KeyUrl) -> Result<(), Unreachable> {
        self.called.lock().unwrap().push(url.url().to_string());
        if self.is_down.load(SeqCst) { Err(Unreachable("down".to_owned())) } else { Ok(()) }
    }
}

/// One source, at `/in/acme/src`.
struct Gate {
    address: SocketAddr,
    ledger: Arc<FakeLedger>,
    outside: Arc<Outside>,
}

impl Gate {
    async fn new(scheme: &str, params: Value, secrets: &[&str]) -> Gate {
        let params = params.as_object().unwrap().clone().into_iter().collect();
        let spec = SourceSpec { scheme: scheme.to_owned(), params, ..SourceSpec::default() };
        let secrets: &Vec<_> = &secrets.iter().map(|text| Secret::new(*text).into()).collect();
        let source = spec.compile_rotating(&name("acme"), &name("src"), secrets).unwrap();
        let keys = ((TenantKey(1), name("acme")), (SourceKey(1), name("src")));
        let (ledger, outside) = (Arc::new(FakeLedger::default()), Arc::new(Outside::default()));
        let verifier: Arc<dyn Verifier> = if source.whole().waits() {
            Arc::new(Adopting::new(source, SourceKey(1), Arc::clone(&ledger) as _))
        } else {
            Arc::new(source)
        };
        let inlet = Inlet::new(keys.0, keys.1, scheme, verifier, 10_000).with_public_url("https://h.test");
        let slots = Arc::new(Slots::new(Arc::default()));
        let ingress = Ingress::new(&Settings::default(), Arc::clone(&ledger) as _, slots, Arc::new(SystemClock))
            .with_keys(Arc::clone(&outside) as _);
        ingress.replace_routes([inlet].into_iter().collect());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, Arc::new(ingress), Limits::default(), CancellationToken::new()));
        Gate { address, ledger, outside }
    }

    async fn post(&self, headers: &str, body: &str) -> Reply {
        ask(self.address, post("/in/acme/src", headers, body)).await
    }

    fn stored(&self) -> usize {
        self.ledger.stored.lock().unwrap().len()
    }

    fn held(&self) -> Option<String> {
        Some(self.ledger.adopted(SourceKey(1))?.secret.expose_str().unwrap().to_owned())
    }

    fn called(&self) -> Vec<String> {
        self.outside.called.lock().unwrap().clone()
    }
}

#[track_caller]
fn assert_plain(reply: &Reply, body: &str) {
    assert_eq!((reply.status, String::from_utf8_lossy(&reply.body)), (200, body.into()), "{reply:?}");
    assert_eq!(reply.header("content-type"), Some("text/plain"));
}

fn case(id: &str) -> Value {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../golden/signatures_code.json")).unwrap();
    cases.into_iter().find(|case| case["id"] == id).unwrap()
}

fn sent(case: &Value) -> (String, String) {
    let headers = case["request"]["headers"].as_object().unwrap();
    let headers = headers.iter().map(|(name, value)| format!("{name}: {}\r\n", value.as_str().unwrap())).collect();
    let body = STANDARD.decode(case["request"]["body_base64"].as_str().unwrap()).unwrap();
    (headers, String::from_utf8(body).unwrap())
}

#[tokio::test]
async fn a_challenge_by_get_is_answered_and_an_event_by_get_is_not() {
    let params = json!({ "public_key": "integration_public_key" });
    let gate = Gate::new("braintree", params, &["integration_private_key"]).await;
    let get = |query: &str| format!("GET /in/acme/src{query} HTTP/1.1\r\nhost: a\r\n\r\n");
    let reply = ask(gate.address, get("?bt_challenge=20f9f8ed05f77439fe955c977e4c8a53")).await;
    assert_plain(&reply, "integration_public_key|d9b899556c966b3f06945ec21311865d35df3ce4");
    assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(ask(gate.address, get("?bt_challenge=bad")).await.status, 405);
    assert_eq!(ask(gate.address, get("")).await.status, 405);
    assert_eq!(gate.stored(), 0);
    let (headers, body) = sent(&case("d-braintree-valid"));
    assert_eq!(gate.post(&headers, &body).await.json()["duplicate"], false);
    assert_eq!(gate.stored(), 1);
}

#[tokio::test]
async fn what_strangers_have_echoed_is_no_page() {
    let graph = Gate::new("ms-graph", json!({}), &["a-client-state-of-ours"]).await;
    let asked = ask(graph.address, post("/in/acme/src?validationToken=%3Cscript%3E%20a", "", "")).await;
    assert_plain(&asked, "<script> a");
    assert_eq!(asked.header("x-content-type-options"), Some("nosniff"));
    let with_body = ask(graph.address, post("/in/acme/src?validationToken=a", "", "{}")).await;
    assert_eq!((with_body.status, with_body.code().as_str()), (401, "missing_header"));
    let dropbox = Gate::new("dropbox", json!({}), &["an-app-secret-of-ours"]).await;
    let asked = ask(dropbox.address, "GET /in/acme/src?challenge=%3Cb%3E HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_plain(&asked, "<b>");
    assert_eq!(asked.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(graph.stored() + dropbox.stored(), 0);
}

#[tokio::test]
async fn a_handshake_without_the_token_is_forbidden() {
    let gate = Gate::new("meta", json!({}), &["an-app-secret-of-ours", "verify:our-own-word"]).await;
    let get = |query: &str| format!("GET /in/acme/src?{query} HTTP/1.1\r\nhost: a\r\n\r\n");
    let mode = "hub.mode=subscribe&hub.challenge=1158201444";
    assert_plain(&ask(gate.address, get(&format!("{mode}&hub.verify_token=our-own-word"))).await, "1158201444");
    let reply = ask(gate.address, get(&format!("{mode}&hub.verify_token=another"))).await;
    assert_eq!((reply.status, reply.code().as_str()), (403, "handshake_refused"));
    assert!(!String::from_utf8_lossy(&reply.body).contains("1158201444"));
    assert_eq!(ask(gate.address, get("hub.mode=else&hub.verify_token=another")).await.status, 405);
    assert_eq!(gate.stored(), 0);
}

#[tokio::test]
async fn xero_reads_no_body_and_no_cookie_in_any_answer() {
    let gate = Gate::new("xero", json!({}), &["a-webhook-key-of-ours"]).await;
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, b"a-webhook-key-of-ours");
    let signed = |body: &str| {
        let tag = STANDARD.encode(aws_lc_rs::hmac::sign(&key, body.as_bytes()).as_ref());
        format!("x-xero-signature: {tag}\r\n")
    };
    let intent = r#"{"events":[],"firstEventSequence":0,"lastEventSequence":0,"entropy":"S0m3r4Nd0mt3xt"}"#;
    let event = r#"{"events":[{"eventType":"UPDATE"}],"firstEventSequence":1,"lastEventSequence":1}"#;
    let large = "x".repeat(10_001);
    for (headers, body, status) in [
        (signed(intent), intent, 200),
        (signed("{}"), intent, 401),
        (String::new(), intent, 401),
        (signed(event), event, 200),
        (signed(event), event, 200),
        (signed(intent), event, 401),
        (signed(&large), &large, 413),
    ] {
        let reply = gate.post(&headers, body).await;
        assert_eq!((reply.status, reply.body.len()), (status, 0), "{reply:?}");
        assert_eq!(reply.header("set-cookie"), None);
        assert_ne!(reply.header("content-type"), Some("application/problem+json"));
    }
    assert_eq!(gate.stored(), 1);
}

#[tokio::test]
async fn a_ping_that_anybody_can_sign_stores_nothing() {
    let gate = Gate::new("mandrill", json!({}), &["a-real-webhook-key"]).await;
    assert_eq!(ask(gate.address, "HEAD /in/acme/src HTTP/1.1\r\nhost: a\r\n\r\n").await.status, 200);
    let form = "content-type: application/x-www-form-urlencoded\r\n";
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, b"test-webhook");
    let signed = |text: &str| {
        let tag = aws_lc_rs::hmac::sign(&key, format!("https://h.test/in/acme/src{text}").as_bytes());
        format!("{form}x-mandrill-signature: {}\r\n", STANDARD.encode(tag.as_ref()))
    };
    let ping = gate.post(&signed("mandrill_events[]"), "mandrill_events=%5B%5D").await;
    assert_plain(&ping, "");
    let event = gate.post(&signed("mandrill_events[1]"), "mandrill_events=%5B1%5D").await;
    assert_eq!((event.status, event.code().as_str()), (401, "signature_mismatch"));
    assert_eq!(gate.stored(), 0);
}

#[tokio::test]
async fn providers_read_the_receipt_that_they_want() {
    for (id, scheme, receipt) in [
        ("dropbox-sign-base", "dropbox-sign", "Hello API Event Received"),
        ("adyen-item-node-1", "adyen-item", "[accepted]"),
    ] {
        let case = case(id);
        let gate = Gate::new(scheme, json!({}), &[case["secrets"][0].as_str().unwrap()]).await;
        let (headers, body) = sent(&case);
        for _ in 0..2 {
            assert_plain(&gate.post(&headers, &body).await, receipt);
        }
        assert_eq!(gate.stored(), 1, "{id}: the second is the first again");
    }
}

/// A certificate of our own, and what its key signs.
fn authority() -> (String, RsaKeyPair) {
    let key = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
    let params = CertificateParams::new(vec!["sns.amazonaws.com".to_owned()]).unwrap();
    let signing = RsaKeyPair::from_pkcs8(&key.serialize_der()).unwrap();
    (params.self_signed(&key).unwrap().pem(), signing)
}

#[tokio::test]
async fn a_subscription_is_confirmed_before_it_is_answered() {
    let (pem, key) = authority();
    let topic = "arn:aws:sns:us-east-1:123456789012:orders";
    let gate = Gate::new("aws-sns", json!({ "topic_arns": [topic] }), &[&pem]).await;
    let place = "https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&Token=t";
    let (time, cert) = ("2023-11-14T22:13:20.000Z", "https://sns.us-east-1.amazonaws.com/a.pem");
    let lines = format!(
        "Message\nm\nMessageId\n1\nSubscribeURL\n{place}\nTimestamp\n{time}\nToken\nt\nTopicArn\n{topic}\nType\nSubscriptionConfirmation\n"
    );
    let mut signature = vec![0; key.public_modulus_len()];
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), lines.as_bytes(), &mut signature).unwrap();
    let body = |place: &str| {
        json!({
            "Type": "SubscriptionConfirmation", "MessageId": "1", "Message": "m", "Token": "t", "TopicArn": topic,
            "SubscribeURL": place, "Timestamp": time, "SignatureVersion": "2", "SigningCertURL": cert,
            "Signature": STANDARD.encode(&signature),
        })
        .to_string()
    };
    gate.outside.is_down.store(true, SeqCst);
    let reply = gate.post("", &body(place)).await;
    assert_eq!((reply.status, reply.code().as_str()), (503, "unavailable"));
    assert_eq!(reply.header("retry-after"), Some("2"));
    gate.outside.is_down.store(false, SeqCst);
    assert_plain(&gate.post("", &body(place)).await, "");
    assert_eq!(gate.called(), [place, place]);
    let forged = gate.post("", &body("https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&Token=u")).await;
    assert_eq!((forged.status, forged.code().as_str()), (401, "signature_mismatch"));
    assert_eq!((gate.called().len(), gate.stored()), (2, 0));
}

#[tokio::test]
async fn a_key_that_cannot_be_had_is_our_trouble_and_one_that_is_not_there_is_theirs() {
    let gate = Gate::new("paypal", json!({ "webhook_id": "8PT597110X687430LKGECATA" }), &[]).await;
    let (headers, body) = sent(&case("d-paypal-valid"));
    gate.outside.is_down.store(true, SeqCst);
    let reply = gate.post(&headers, &body).await;
    assert_eq!((reply.status, reply.code().as_str()), (503, "unavailable"));
    assert_eq!(reply.header("retry-after"), Some("2"));
    assert!(!String::from_utf8_lossy(&reply.body).contains("down"), "what is wrong outside is the operator's to know");
    gate.outside.is_down.store(false, SeqCst);
    let reply = gate.post(&headers, &body).await;
    assert_eq!((reply.status, reply.code().as_str()), (401, "unknown_key"));
    assert_eq!(gate.called(), ["https://api.paypal.com/v1/notifications/certs/CERT-1"; 2]);
    // What is refused by itself asks for nothing.
    let elsewhere = headers.replace("api.paypal.com", "api.paypal.com.evil.test");
    assert_eq!(gate.post(&elsewhere, &body).await.code(), "untrusted_key_url");
    assert_eq!((gate.called().len(), gate.stored()), (2, 0));
}

const ONE: &str = "one-secret-of-the-provider";
const OTHER: &str = "another-secret-of-somebody";

fn brings(secret: &str) -> String {
    format!("x-hook-secret: {secret}\r\n")
}

fn asana_signed(secret: &str, body: &str) -> String {
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, secret.as_bytes());
    format!("x-hook-signature: {}\r\n", hex::encode(aws_lc_rs::hmac::sign(&key, body.as_bytes())))
}

#[tokio::test]
async fn a_secret_is_kept_before_it_is_echoed_and_counts_at_once() {
    let gate = Arc::new(Gate::new("asana", json!({}), &[]).await);
    let body = r#"{"events":[{"action":"changed"}]}"#;
    let early = gate.post(&asana_signed(ONE, body), body).await;
    assert_eq!((early.status, early.code().as_str()), (401, "no_secret"));
    let shut = gate.ledger.hold.write().await;
    let asking = tokio::spawn({
        let gate = Arc::clone(&gate);
        async move { gate.post(&brings(ONE), "{}").await }
    });
    // poll: the handshake has reached the ledger.
    while gate.ledger.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(!asking.is_finished() && gate.held().is_none());
    drop(shut);
    let reply = asking.await.unwrap();
    assert_plain(&reply, "");
    assert_eq!((reply.header("x-hook-secret"), gate.held().as_deref()), (Some(ONE), Some(ONE)));

    assert_eq!(gate.post(&asana_signed(ONE, body), body).await.json()["duplicate"], false);
    assert_eq!(gate.post(&brings(ONE), "{}").await.header("x-hook-secret"), Some(ONE), "a repetition");
    let other = gate.post(&brings(OTHER), "{}").await;
    assert_eq!((other.status, other.code().as_str(), other.header("x-hook-secret")), (401, "secret_held", None));
    let forged = gate.post(&asana_signed(OTHER, body), body).await;
    assert_eq!((forged.status, forged.code().as_str()), (401, "signature_mismatch"));

    gate.ledger.forget(TenantKey(1), SourceKey(1)).await.unwrap();
    let late = gate.post(&asana_signed(ONE, body), body).await;
    assert_eq!((late.status, late.code().as_str()), (401, "no_secret"));
    assert_eq!(gate.post(&brings(OTHER), "{}").await.status, 200);
    assert_eq!((gate.held().as_deref(), gate.stored()), (Some(OTHER), 1));
    let get = format!("GET /in/acme/src HTTP/1.1\r\nhost: a\r\n{}\r\n", brings(OTHER));
    assert_eq!(ask(gate.address, get).await.status, 405);
}

#[tokio::test]
async fn a_secret_that_cannot_be_kept_is_not_echoed() {
    let gate = Gate::new("asana", json!({}), &[]).await;
    *gate.ledger.fault.lock().unwrap() = Some(LedgerError::Unavailable("the disk is full".to_owned()));
    let reply = gate.post(&brings(ONE), "").await;
    assert_eq!((reply.status, reply.code().as_str(), reply.header("x-hook-secret")), (503, "unavailable", None));
    assert_eq!(reply.header("retry-after"), Some("2"));
    assert!(!String::from_utf8_lossy(&reply.body).contains("disk"));
    assert!(gate.held().is_none());
}

#[tokio::test]
async fn of_handshakes_at_once_one_wins() {
    let gate = Gate::new("asana", json!({}), &[]).await;
    let shut = gate.ledger.hold.write().await;
    let secrets: Vec<String> = (0..8).map(|n| format!("{ONE}-{n}")).collect();
    let headers: Vec<String> = secrets.iter().map(|secret| brings(secret)).collect();
    let asking = futures_util::future::join_all(headers.iter().map(|headers| gate.post(headers, "")));
    let open = async {
        // poll: all of them have found no secret, and want to bring theirs.
        while gate.ledger.waiting() < secrets.len() {
            tokio::task::yield_now().await;
        }
        drop(shut);
    };
    let (replies, ()) = tokio::join!(asking, open);
    let (won, lost): (Vec<_>, Vec<_>) = replies.iter().partition(|reply| reply.status == 200);
    let [won] = won.as_slice() else { panic!("{won:?}") };
    assert_eq!(won.header("x-hook-secret"), gate.held().as_deref());
    for reply in lost {
        assert_eq!((reply.status, reply.code().as_str(), reply.header("x-hook-secret")), (401, "secret_held", None));
        assert!(!String::from_utf8_lossy(&reply.body).contains(ONE), "{reply:?}");
    }
}

#[tokio::test]
async fn a_source_with_secrets_adopts_none() {
    for (scheme, secret) in [("asana", ONE), ("github", "a-secret-for-github")] {
        let gate = Gate::new(scheme, json!({}), &[secret]).await;
        let reply = gate.post(&brings(OTHER), "").await;
        let code = if scheme == "asana" { "secret_held" } else { "missing_header" };
        assert_eq!((reply.status, reply.code().as_str(), reply.header("x-hook-secret")), (401, code, None));
        assert!(gate.held().is_none());
    }
}
