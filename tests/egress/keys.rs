//! Keys that providers publish, over real TLS: only from where they may come, once for many requests, and every way in
//! which a key server can fail.

use crate::server::{Scripted, Server};
use crate::tls::Authority;
use async_trait::async_trait;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use hookgate::clock::{Clock, Timestamp};
use hookgate::egress::{Client, Exchange, Keys, Outbound, Settings, Transport};
use hookgate::secret::Secret;
use hookgate::verify::{
    Admission, KeyAtHand, KeySource, Refusal, RefusalCode, Request, Source, SourceSpec, Stop, Unreachable, with_keys,
};
use http::{HeaderMap, Method};
use rcgen::{CertificateParams, KeyPair, PKCS_RSA_SHA256, RsaKeySize, date_time_ymd};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);
const HOSTS: [&str; 4] =
    ["api.paypal.com", "sns.us-east-1.amazonaws.com", "webhooks.truelayer.com", "sandbox.plaid.com"];

/// Making one takes a while.
static RSA: LazyLock<KeyPair> =
    LazyLock::new(|| KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap());

struct Hands(Mutex<Timestamp>);

impl Clock for Hands {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap()
    }

    fn monotonic(&self) -> Instant {
        Instant::now()
    }
}

impl Hands {
    fn forward(&self, span: Duration) {
        let mut now = self.0.lock().unwrap();
        *now = now.plus(span);
    }
}

/// The provider's port is 443, which no test can have.
struct Rerouted {
    client: Client,
    port: u16,
}

#[async_trait]
impl Transport for Rerouted {
    async fn send(&self, mut request: Outbound) -> Exchange {
        assert_eq!((request.url.scheme(), request.url.port()), ("https", None));
        request.url.set_port(Some(self.port)).unwrap();
        self.client.send(request).await
    }
}

/// A key server with what it says, who fetches from it, and the clock.
struct World {
    authority: Authority,
    server: Server,
    says: Arc<Mutex<Vec<u8>>>,
    keys: Arc<Keys>,
    clock: Arc<Hands>,
}

impl World {
    async fn new() -> World {
        let authority = Authority::new("keys");
        let acceptor = authority.acceptor(&HOSTS, |_| ());
        let says = Arc::new(Mutex::new(Vec::new()));
        let said = Arc::clone(&says);
        let server = Server::start(move |peer| {
            let (acceptor, said) = (acceptor.clone(), Arc::clone(&said));
            async move {
                let Some(mut peer) = peer.secured(&acceptor).await else { return };
                while peer.request().await.is_some() {
                    let answer = said.lock().unwrap().clone();
                    if answer.is_empty() {
                        return;
                    }
                    peer.say(&answer).await;
                }
            }
        })
        .await;
        let settings = Settings {
            allow: vec![server.rule().parse().unwrap()],
            extra_roots: vec![authority.root.clone()],
            ..Settings::default()
        };
        let client = Client::with_resolver(&settings, Scripted::new([&["127.0.0.1"]])).unwrap();
        let (anchors, port) = (client.anchors(), server.addr.port());
        let clock = Arc::new(Hands(Mutex::new(NOW)));
        let keys = Keys::new(Arc::new(Rerouted { client, port }), anchors, Arc::clone(&clock) as _);
        World { authority, server, says, keys: Arc::new(keys), clock }
    }

    fn say(&self, status: &str, body: &[u8]) {
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
        *self.says.lock().unwrap() = [head.as_bytes(), body].concat();
    }

    fn hang_up(&self) {
        self.says.lock().unwrap().clear();
    }

    fn fetches(&self) -> usize {
        self.server.requests().len()
    }

    async fn ask(&self, source: &Source, post: &Post) -> Result<Result<Admission, Refusal>, Unreachable> {
        with_keys(self.keys.as_ref(), |key| source.judge(post.request(), key)).await
    }

    async fn admitted(&self, source: &Source, post: &Post) {
        let asked = self.ask(source, post).await;
        assert!(matches!(asked, Ok(Ok(_))), "{asked:?}");
    }

    async fn refused(&self, source: &Source, post: &Post) -> (RefusalCode, String) {
        let refusal = self.ask(source, post).await.unwrap().unwrap_err();
        (refusal.code, refusal.detail)
    }

    async fn unreachable(&self, source: &Source, post: &Post) -> String {
        self.ask(source, post).await.unwrap_err().0
    }
}

#[derive(Clone)]
struct Post {
    headers: HeaderMap,
    body: Bytes,
}

impl Post {
    fn request(&self) -> Request<'_> {
        let url = "https://hooks.example.test/tl-webhook";
        Request { method: &Method::POST, url, headers: &self.headers, body: &self.body, received_at: NOW }
    }
}

fn source(scheme: &str, params: &Value, secrets: &[&str]) -> Source {
    let params: BTreeMap<String, Value> = params.as_object().unwrap().clone().into_iter().collect();
    let spec = SourceSpec { scheme: scheme.to_owned(), params, ..SourceSpec::default() };
    let secrets = secrets.iter().map(|text| Secret::new(*text)).collect();
    spec.compile(&"acme".parse().unwrap(), &"src".parse().unwrap(), secrets).unwrap()
}

fn signed(message: &[u8]) -> String {
    let key = RsaKeyPair::from_pkcs8(&RSA.serialize_der()).unwrap();
    let mut signature = vec![0; key.public_modulus_len()];
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature).unwrap();
    STANDARD.encode(signature)
}

/// A certificate for the signing key, in PEM.
fn certificate(authority: &Authority, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    change(&mut params);
    params.signed_by(&*RSA, &authority.issuer).unwrap().pem().into_bytes()
}

const PAYPAL_NAME: &str = "messageverificationcerts.paypal.com";

fn paypal() -> Source {
    source("paypal", &json!({ "webhook_id": "WH-1" }), &[])
}

fn paypal_post(place: &str) -> Post {
    let body = Bytes::from_static(br#"{"id":"WH-2","event_type":"PAYMENT.SALE.COMPLETED"}"#);
    let time = "2023-11-14T22:13:20Z";
    let signature = signed(format!("id-1|{time}|WH-1|{}", crc32fast::hash(&body)).as_bytes());
    let headers = [
        ("paypal-transmission-id", "id-1"),
        ("paypal-transmission-time", time),
        ("paypal-transmission-sig", &signature),
        ("paypal-auth-algo", "SHA256withRSA"),
        ("paypal-cert-url", place),
    ];
    let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
    Post { headers, body }
}

const PAYPAL_PLACE: &str = "https://api.paypal.com/v1/notifications/certs/CERT-1";

fn sns(kind: &str, place: &str, more: &Value) -> Post {
    let mut message = json!({
        "Type": kind, "MessageId": "m-1", "TopicArn": "arn:aws:sns:us-east-1:123456789012:orders", "Message": "hello",
        "Timestamp": "2023-11-14T22:13:20.000Z", "SignatureVersion": "2", "SigningCertURL": place,
    });
    let more = more.as_object().unwrap().clone();
    message.as_object_mut().unwrap().extend(more);
    let names: &[&str] = if kind == "Notification" {
        &["Message", "MessageId", "Timestamp", "TopicArn", "Type"]
    } else {
        &["Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"]
    };
    let lines: String = names.iter().map(|name| format!("{name}\n{}\n", message[name].as_str().unwrap())).collect();
    message["Signature"] = json!(signed(lines.as_bytes()));
    Post { headers: HeaderMap::new(), body: message.to_string().into() }
}

fn sns_source() -> Source {
    source("aws-sns", &json!({ "topic_arns": ["arn:aws:sns:us-east-1:123456789012:orders"] }), &[])
}

const SNS_PLACE: &str = "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-1.pem";

#[tokio::test]
async fn one_fetch_serves_many_requests_until_it_is_old() {
    let world = World::new().await;
    world.say("200 OK", &certificate(&world.authority, PAYPAL_NAME, |_| ()));
    let (source, post) = (paypal(), paypal_post(PAYPAL_PLACE));
    let asked = futures_util::future::join_all((0..20).map(|_| world.ask(&source, &post))).await;
    assert!(asked.iter().all(|asked| matches!(asked, Ok(Ok(Admission::Event(_))))), "{asked:?}");
    assert_eq!(world.fetches(), 1);
    assert!(world.server.requests()[0].starts_with("GET /v1/notifications/certs/CERT-1 HTTP/1.1\r\n"));
    world.clock.forward(Duration::from_secs(3_599));
    world.admitted(&source, &post).await;
    assert_eq!(world.fetches(), 1);
    world.clock.forward(Duration::from_secs(1));
    world.admitted(&source, &post).await;
    assert_eq!(world.fetches(), 2);
    // A wrong signature asks for nothing more.
    let forged = Post { body: Bytes::from_static(b"{}"), ..post };
    assert_eq!(world.refused(&source, &forged).await.0, RefusalCode::SignatureMismatch);
    assert_eq!(world.fetches(), 2);
}

/// What was read of a certificate is kept with it, and goes with it.
#[tokio::test]
async fn what_was_fetched_is_one_thing_for_all_requests_until_it_is_fetched_anew() {
    let world = World::new().await;
    world.say("200 OK", &certificate(&world.authority, PAYPAL_NAME, |_| ()));
    let (source, post) = (paypal(), paypal_post(PAYPAL_PLACE));
    let Err(Stop::NeedsKey(query)) = source.judge(post.request(), KeyAtHand::NotAsked) else { panic!("no query") };
    let fetch = || async { world.keys.fetch(&query).await.unwrap().unwrap() };
    let (first, second) = (fetch().await, fetch().await);
    assert!(Arc::ptr_eq(&first.found, &second.found));
    for _ in 0..3 {
        assert!(source.judge(post.request(), KeyAtHand::Fetched(&second)).is_ok());
    }
    world.clock.forward(Duration::from_secs(3_600));
    let expired = |params: &mut CertificateParams| params.not_after = date_time_ymd(2023, 1, 1);
    world.say("200 OK", &certificate(&world.authority, PAYPAL_NAME, expired));
    let third = fetch().await;
    assert!(!Arc::ptr_eq(&first.found, &third.found));
    let Err(Stop::Refused(refusal)) = source.judge(post.request(), KeyAtHand::Fetched(&third)) else { panic!() };
    assert!(refusal.detail.contains("has expired"), "{refusal}");
}

#[tokio::test]
async fn a_certificate_that_is_not_right_is_refused_by_its_fault() {
    let world = World::new().await;
    let stranger = Authority::new("stranger");
    let post = |n: usize| paypal_post(&format!("https://api.paypal.com/certs/{n}"));
    let expired = |params: &mut CertificateParams| params.not_after = date_time_ymd(2023, 1, 1);
    let early = |params: &mut CertificateParams| params.not_before = date_time_ymd(2024, 1, 1);
    let elliptic = world.authority.elliptic_pem(&[PAYPAL_NAME]);
    let cases = [
        (certificate(&world.authority, PAYPAL_NAME, expired), "has expired"),
        (certificate(&world.authority, PAYPAL_NAME, early), "not in force yet"),
        (certificate(&world.authority, "api.paypal.com", |_| ()), "another name"),
        (certificate(&stranger, PAYPAL_NAME, |_| ()), "not vouched for"),
        (elliptic, "key of another kind"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec(), "is not one in PEM"),
        (b"-----BEGIN CERTIFICATE-----\n".to_vec(), "is not one in PEM"),
        (RSA.public_key_pem().into_bytes(), "is not one in PEM"),
        (b"<html>".to_vec(), "is not one in PEM"),
        (vec![0xff; 60_000], "is not one in PEM"),
        (Vec::new(), "is not one in PEM"),
    ];
    for (n, (pem, said)) in cases.into_iter().enumerate() {
        world.say("200 OK", &pem);
        let (code, detail) = world.refused(&paypal(), &post(n)).await;
        assert_eq!(code, RefusalCode::UnknownKey, "{said}");
        assert!(detail.contains(said), "{detail}, not {said}");
    }
}

#[tokio::test]
async fn an_intermediate_that_comes_along_completes_the_chain() {
    let world = World::new().await;
    let (middle, pem) = world.authority.below("middle");
    let leaf = certificate(&middle, PAYPAL_NAME, |_| ());
    world.say("200 OK", &[leaf.clone(), pem.into_bytes()].concat());
    world.admitted(&paypal(), &paypal_post(PAYPAL_PLACE)).await;
    world.say("200 OK", &leaf);
    let alone = paypal_post("https://api.paypal.com/certs/alone");
    assert!(world.refused(&paypal(), &alone).await.1.contains("not vouched for"));
}

#[tokio::test]
async fn a_server_that_gives_no_answer_says_nothing_about_the_request() {
    let world = World::new().await;
    let (source, post) = (paypal(), paypal_post(PAYPAL_PLACE));
    world.hang_up();
    assert!(world.unreachable(&source, &post).await.contains("api.paypal.com"));
    // It is left alone for a moment, then asked again.
    let tried = world.server.connections();
    world.say("200 OK", &certificate(&world.authority, PAYPAL_NAME, |_| ()));
    world.unreachable(&source, &post).await;
    assert_eq!(world.server.connections(), tried);
    world.clock.forward(Duration::from_secs(5));
    world.admitted(&source, &post).await;
    // What is at hand stays, also while a look for a newer one fails.
    world.hang_up();
    world.clock.forward(Duration::from_secs(1_800));
    world.admitted(&source, &post).await;
    for (n, (status, said)) in
        [("500 Oops", "answered 500"), ("302 Found", "answered 302"), ("204 No Content", "answered 204")]
            .into_iter()
            .enumerate()
    {
        world.say(status, b"");
        let post = paypal_post(&format!("https://api.paypal.com/certs/{n}"));
        assert!(world.unreachable(&source, &post).await.contains(said), "{status}");
    }
    world.say("200 OK", &vec![b'a'; (64 << 10) + 1]);
    let large = paypal_post("https://api.paypal.com/certs/large");
    assert!(world.unreachable(&source, &large).await.contains("65536 bytes"));
}

#[tokio::test]
async fn no_such_key_is_remembered_and_strangers_cannot_have_us_ask_for_ever() {
    let world = World::new().await;
    world.say("404 Not Found", b"");
    let source = sns_source();
    let at = |n: usize| sns("Notification", &format!("https://sns.us-east-1.amazonaws.com/{n}.pem"), &json!({}));
    for _ in 0..3 {
        assert_eq!(world.refused(&source, &at(0)).await.0, RefusalCode::UnknownKey);
    }
    assert_eq!(world.fetches(), 1);
    for n in 1..60 {
        world.refused(&source, &at(n)).await;
    }
    assert!(world.unreachable(&source, &at(60)).await.contains("within a minute"));
    assert_eq!(world.fetches(), 60);
    world.clock.forward(Duration::from_secs(60));
    world.refused(&source, &at(61)).await;
    assert_eq!(world.fetches(), 61);
}

#[tokio::test]
async fn nothing_is_asked_of_a_host_that_is_not_on_the_list() {
    let world = World::new().await;
    for place in [
        "http://sns.us-east-1.amazonaws.com/a.pem",
        "https://sns.us-east-1.amazonaws.com:8443/a.pem",
        "https://u@sns.us-east-1.amazonaws.com/a.pem",
        "https://sns.us-east-1.amazonaws.com/a.pem?x",
        "https://sns.us-east-1.amazonaws.com/a.txt",
        "https://127.0.0.1/a.pem",
        "https://evil.test/sns.us-east-1.amazonaws.com/a.pem",
    ] {
        let (code, _) = world.refused(&sns_source(), &sns("Notification", place, &json!({}))).await;
        assert_eq!(code, RefusalCode::UntrustedKeyUrl, "{place}");
    }
    assert_eq!((world.fetches(), world.server.connections()), (0, 0));
}

#[tokio::test]
async fn the_guard_has_the_last_word() {
    let world = World::new().await;
    let settings = Settings { extra_roots: vec![world.authority.root.clone()], ..Settings::default() };
    let client = Client::with_resolver(&settings, Scripted::new([&["127.0.0.1"]])).unwrap();
    let (anchors, port) = (client.anchors(), world.server.addr.port());
    let keys = Keys::new(Arc::new(Rerouted { client, port }), anchors, Arc::clone(&world.clock) as _);
    let (source, post) = (paypal(), paypal_post(PAYPAL_PLACE));
    let asked = with_keys(&keys, |key| source.judge(post.request(), key)).await;
    assert!(asked.unwrap_err().0.contains("is refused"));
    assert_eq!(world.server.connections(), 0);
}

#[tokio::test]
async fn a_subscription_is_confirmed_after_its_check_and_only_where_it_may_be() {
    let world = World::new().await;
    world.say("200 OK", &certificate(&world.authority, "sns.amazonaws.com", |_| ()));
    let source = sns_source();
    world.admitted(&source, &sns("Notification", SNS_PLACE, &json!({}))).await;
    let confirmation =
        |url: &str| sns("SubscriptionConfirmation", SNS_PLACE, &json!({ "SubscribeURL": url, "Token": "t" }));
    let good = "https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&TopicArn=arn:aws:sns:us-east-1:123456789012:orders&Token=t";
    let asked = world.ask(&source, &confirmation(good)).await.unwrap().unwrap();
    let Admission::Confirm(url) = asked else { panic!("{asked:?}") };
    assert_eq!(world.fetches(), 1, "the check itself calls nothing");
    world.keys.confirm(&url).await.unwrap();
    let called = &world.server.requests()[1];
    assert!(called.starts_with(
        "GET /?Action=ConfirmSubscription&TopicArn=arn:aws:sns:us-east-1:123456789012:orders&Token=t HTTP/1.1\r\n"
    ));
    world.say("500 Oops", b"");
    assert!(world.keys.confirm(&url).await.unwrap_err().0.contains("500"));
    for bad in [
        "https://evil.test/?Action=ConfirmSubscription",
        "http://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription",
        "https://sns.us-east-1.amazonaws.com/?Action=DeleteTopic",
        "https://sns.us-east-1.amazonaws.com/other?Action=ConfirmSubscription",
    ] {
        assert_eq!(world.refused(&source, &confirmation(bad)).await.0, RefusalCode::UntrustedKeyUrl, "{bad}");
    }
    let mut forged = confirmation(good);
    forged.body = String::from_utf8(forged.body.to_vec()).unwrap().replace("\"t\"", "\"u\"").into();
    assert_eq!(world.refused(&source, &forged).await.0, RefusalCode::SignatureMismatch);
    let others = self::source("aws-sns", &json!({ "topic_arns": ["arn:aws:sns:us-east-1:210987654321:orders"] }), &[]);
    assert_eq!(world.refused(&others, &confirmation(good)).await.0, RefusalCode::UnknownKey);
    assert_eq!(world.fetches(), 3);
}

/// TrueLayer's own example: the token names a key, the key set has it under that name.
fn truelayer() -> (Post, String) {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../golden/signatures_code.json")).unwrap();
    let case = cases.iter().find(|case| case["id"] == "truelayer-webhook-jwks").unwrap();
    let headers = case["request"]["headers"].as_object().unwrap();
    let headers = headers.iter().map(|(n, v)| (n.parse().unwrap(), v.as_str().unwrap().parse().unwrap())).collect();
    let body = STANDARD.decode(case["request"]["body_base64"].as_str().unwrap()).unwrap();
    (Post { headers, body: body.into() }, case["secrets"][0].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_key_set_without_the_key_is_looked_at_again_when_it_is_old_enough() {
    let world = World::new().await;
    let (post, keys) = truelayer();
    let source = source("truelayer", &json!({}), &[]);
    world.say("200 OK", br#"{"keys":[]}"#);
    assert_eq!(world.refused(&source, &post).await.0, RefusalCode::UnknownKey);
    world.say("200 OK", keys.as_bytes());
    assert_eq!(world.refused(&source, &post).await.0, RefusalCode::UnknownKey);
    assert_eq!(world.fetches(), 1);
    world.clock.forward(Duration::from_secs(61));
    world.admitted(&source, &post).await;
    assert_eq!(world.fetches(), 2);
    world.say("200 OK", b"{}");
    world.clock.forward(Duration::from_secs(3_600));
    assert_eq!(world.refused(&source, &post).await.0, RefusalCode::UnknownKey);
}

#[tokio::test]
async fn a_key_is_asked_for_by_name_and_a_retired_one_is_refused() {
    let world = World::new().await;
    let cases: Vec<Value> = serde_json::from_str(include_str!("../golden/signatures_code.json")).unwrap();
    let case = cases.iter().find(|case| case["id"] == "d-plaid-valid").unwrap();
    let token = case["request"]["headers"]["Plaid-Verification"].as_str().unwrap();
    let body = STANDARD.decode(case["request"]["body_base64"].as_str().unwrap()).unwrap();
    let headers = [("plaid-verification".parse().unwrap(), token.parse().unwrap())].into_iter().collect();
    let post = Post { headers, body: body.into() };
    let key: Value = serde_json::from_str::<Value>(case["secrets"][0].as_str().unwrap()).unwrap()["keys"][0].clone();
    let params = json!({ "client_id": "client-1", "environment": "sandbox" });
    let source = || source("plaid", &params, &["api-secret-0123456789"]);
    world.say("200 OK", json!({ "key": key, "request_id": "r" }).to_string().as_bytes());
    world.admitted(&source(), &post).await;
    let asked = world.server.requests()[0].clone();
    assert!(asked.starts_with("POST /webhook_verification_key/get HTTP/1.1\r\n"), "{asked}");
    let told: Value = serde_json::from_str(asked.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let kid = key["kid"].as_str().unwrap();
    assert_eq!(told, json!({ "client_id": "client-1", "secret": "api-secret-0123456789", "key_id": kid }));
    let mut retired = key.clone();
    retired["expired_at"] = json!(1_699_999_999);
    world.say("200 OK", json!({ "key": retired }).to_string().as_bytes());
    world.clock.forward(Duration::from_secs(3_600));
    assert!(world.refused(&source(), &post).await.1.contains("retired"));
    // A name that is none is not sent anywhere.
    let before = world.fetches();
    let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    for kid in ["", "a b", "a\"b", &"k".repeat(65)] {
        let head = encode(json!({ "alg": "ES256", "kid": kid }));
        let claims = encode(json!({ "iat": NOW.as_seconds(), "request_body_sha256": "" }));
        let token = format!("{head}.{claims}.{}", URL_SAFE_NO_PAD.encode([0; 64]));
        let mut other = post.clone();
        other.headers.insert("plaid-verification", token.parse().unwrap());
        assert_eq!(world.refused(&source(), &other).await.0, RefusalCode::UnknownKey, "{kid}");
    }
    assert_eq!(world.fetches(), before);
}
