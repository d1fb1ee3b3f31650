//! `POST /in/{tenant}/{source}`: each answer, and what is stored.

use crate::fake_ledger::FakeLedger;
use crate::peer::{Peer, Reply, ask};
use bytes::Bytes;
use hookgate::clock::{Clock, SystemClock};
use hookgate::delivery::{EventTypes, Name, Route};
use hookgate::http::{Limits, serve};
use hookgate::ingress::{Ingress, Inlet, Routes, Settings, Verifier};
use hookgate::ledger::{EndpointCaps, EndpointKey, LedgerError, Slots, SourceKey, TenantKey};
use hookgate::secret::Secret;
use hookgate::verify::{Admission, ChallengeAnswer, CheckStep, KeyAtHand, Refusal, RefusalCode, Request, Step, Stop};
use hookgate::verify::{Grant, Publication, SignRequest, Source, SourceSpec};
use http::{HeaderValue, Method, StatusCode};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// Does what the request's own headers say: `x-refuse` is refused by that word, `x-type` and `x-key` are taken over.
struct Obedient;

impl Verifier for Obedient {
    fn explain(&self, _: Request<'_>) -> Vec<Step> {
        Vec::new()
    }

    fn judge(&self, request: Request<'_>, _: KeyAtHand<'_>) -> Result<Admission, Stop> {
        let header = |name: &str| request.headers.get(name).map(|v| v.to_str().unwrap().to_owned());
        if let Some(url) = header("x-expect-url") {
            assert_eq!(request.url, url);
        }
        if header("x-panic").is_some() {
            panic!("told to");
        }
        if let Some(word) = header("x-refuse") {
            let code = RefusalCode::ALL.into_iter().find(|code| code.as_str() == word).unwrap();
            let detail = "told to".to_owned();
            return Err(Refusal { code, step: CheckStep::Presence, detail, skew_seconds: None }.into());
        }
        if header("x-challenge").is_some() || (*request.method == Method::GET && request.url.contains("challenge=")) {
            let content_type = HeaderValue::from_static("text/plain");
            return Ok(Admission::Challenge(ChallengeAnswer {
                status: StatusCode::OK,
                content_type,
                headers: Vec::new(),
                body: Bytes::from_static(b"echoed"),
            }));
        }
        let grant = Grant::by_token(&Secret::new("t"), b"t", &name("acme")).unwrap();
        let publication = Publication {
            event_type: header("x-type").unwrap_or_default(),
            content_type: header("content-type").unwrap_or_default(),
            body: request.body.clone(),
            key: header("x-key"),
            deliver_at: None,
            expires_at: None,
            deadline: None,
            relation: None,
        };
        Ok(Admission::Event(grant.event(publication, Duration::from_secs(60), request.received_at)))
    }
}

/// A gateway's public side on a port of its own.
pub struct Front {
    pub address: SocketAddr,
    pub ledger: Arc<FakeLedger>,
    pub ingress: Arc<Ingress>,
    pub stop: CancellationToken,
    pub served: JoinHandle<()>,
    /// Writes the rejection log, until `stop`.
    pub kept: JoinHandle<()>,
}

const BODY_BYTES_MAX: u64 = 1_000;

pub fn routes() -> Routes {
    let inlet = |tenant: (u32, &str), source: (u32, &str)| {
        let push = EventTypes::new(vec!["push".to_owned()]).unwrap();
        Inlet::new(
            (TenantKey(tenant.0), name(tenant.1)),
            (SourceKey(source.0), name(source.1)),
            "obedient",
            Arc::new(Obedient),
            BODY_BYTES_MAX,
        )
        .with_public_url("https://hooks.example/base/")
        .with_routes(vec![
            (EndpointKey(1), Route::default()),
            (EndpointKey(2), Route { sources: Some(vec![name("github")]), event_types: push }),
            (EndpointKey(3), Route { sources: Some(vec![name("other")]), event_types: EventTypes::default() }),
        ])
    };
    let slow = inlet((1, "acme"), (3, "slow")).with_rate(Duration::from_secs(90), NonZeroU32::new(2).unwrap());
    let signed = Inlet::new(
        (TenantKey(1), name("acme")),
        (SourceKey(4), name("signed")),
        "github",
        Arc::new(github()),
        BODY_BYTES_MAX,
    );
    [inlet((1, "acme"), (1, "github")), inlet((2, "globex"), (2, "stripe")), slow, signed].into_iter().collect()
}

/// A real source, whose scheme does not sign the event's id.
fn github() -> Source {
    let spec = SourceSpec { scheme: "github".to_owned(), ..SourceSpec::default() };
    spec.compile(&name("acme"), &name("signed"), vec![Secret::new("a-secret-for-tests")]).unwrap()
}

pub async fn front(settings: Settings, limits: Limits) -> Front {
    let _ = (crate::office::metrics(), logged());
    let ledger = Arc::new(FakeLedger::default());
    let slots = Arc::new(Slots::new(Arc::default()));
    let caps = |endpoint| EndpointCaps {
        endpoint: EndpointKey(endpoint),
        tenant: TenantKey(1),
        concurrency: 100,
        lease_for: Duration::from_secs(30),
        rate: None,
    };
    // Endpoint 2 is unknown to the slots: what goes there waits.
    slots.configure(vec![caps(1), caps(3)], 100, 100);
    let ingress = Arc::new(Ingress::new(&settings, Arc::clone(&ledger) as _, slots, Arc::new(SystemClock)));
    ingress.replace_routes(routes());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let served = tokio::spawn(serve(listener, Arc::clone(&ingress), limits, stop.clone()));
    let until = stop.clone();
    let kept = tokio::spawn({
        let ingress = Arc::clone(&ingress);
        async move { ingress.keep_rejections(until).await }
    });
    Front { address, ledger, ingress, stop, served, kept }
}

pub async fn plain() -> Front {
    front(Settings::default(), Limits::default()).await
}

pub fn post(place: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {place} HTTP/1.1\r\nhost: a\r\n{headers}content-length: {length}\r\n\r\n{body}")
}

#[track_caller]
fn assert_problem(reply: &Reply, status: u16, code: &str) {
    assert_eq!((reply.status, reply.code().as_str()), (status, code), "{reply:?}");
    assert_eq!(reply.header("content-type"), Some("application/problem+json"));
    assert_eq!(reply.json()["status"], status);
}

impl Front {
    pub fn stored(&self) -> usize {
        self.ledger.stored.lock().unwrap().len()
    }
}

#[tokio::test]
async fn an_event_is_stored_byte_for_byte_and_answered_with_its_id() {
    let front = plain().await;
    let body = "{\"b\": 1.0,\r\n \"a\":2}\u{7f}";
    let before = SystemClock.now();
    let headers = "x-type: push\r\ncontent-type: application/json; x=y\r\ncontent-encoding: gzip\r\n";
    let reply = ask(front.address, post("/in/acme/github", headers, body)).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let stored = front.ledger.stored.lock().unwrap();
    let [stored] = stored.as_slice() else { panic!("one event") };
    assert_eq!(reply.body, format!(r#"{{"event":"{}","duplicate":false}}"#, stored.id).into_bytes());
    assert_eq!((stored.tenant, stored.source), (TenantKey(1), Some(SourceKey(1))));
    assert_eq!(stored.event.body, body);
    assert_eq!(stored.event.content_type, "application/json; x=y");
    assert!(stored.event.received_at >= before && stored.event.received_at <= SystemClock.now());
    // By the route of each endpoint, and with a slot where one is to be had.
    assert_eq!(stored.deliveries, [(EndpointKey(1), true), (EndpointKey(2), false)]);
}

#[tokio::test]
async fn a_repetition_is_answered_with_the_first_event() {
    let front = plain().await;
    let first = ask(front.address, post("/in/acme/github", "x-key: k\r\n", "one")).await;
    let again = ask(front.address, post("/in/acme/github", "x-key: k\r\n", "one")).await;
    assert_eq!(again.status, 200);
    assert_eq!(again.json()["event"], first.json()["event"]);
    assert_eq!(again.json()["duplicate"], true);
    let other = ask(front.address, post("/in/acme/github", "x-key: k\r\n", "two")).await;
    assert_problem(&other, 409, "key_reused");
    assert_eq!(other.json()["event"], first.json()["event"]);
    assert_eq!(front.stored(), 1);
}

#[tokio::test]
async fn an_unsigned_id_opens_no_door_to_a_replay() {
    let front = plain().await;
    let send = async |id: &str, body: &'static str| {
        let bytes = Bytes::from_static(body.as_bytes());
        let sign =
            SignRequest { id, event_type: None, timestamp: SystemClock.now(), url: "https://a.test/", body: &bytes };
        let headers = github().sign(sign).unwrap();
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        ask(front.address, post("/in/acme/signed", &headers, body)).await
    };
    let first = send("d-1", "one").await;
    assert_eq!(first.json()["duplicate"], false);
    for id in ["d-1", "d-2"] {
        let again = send(id, "one").await;
        assert_eq!((again.status, &again.json()["duplicate"]), (200, &true.into()), "{id}");
        assert_eq!(again.json()["event"], first.json()["event"]);
    }
    assert_problem(&send("d-1", "two").await, 409, "key_reused");
    // The replay has not taken the id that it came under.
    assert_eq!(send("d-2", "two").await.json()["duplicate"], false);
    assert_eq!(front.stored(), 2);
}

#[tokio::test]
async fn unknown_places_are_all_alike() {
    let front = plain().await;
    let mut answers = Vec::new();
    for place in [
        "/in/nobody/github",
        "/in/acme/nothing",
        "/in/acme/github/",
        "/in/acme",
        "/in/acme/git%68ub",
        "/IN/acme/github",
        "/in//github",
        "/",
        "/healthz",
        "/in/globex/github",
    ] {
        let reply = ask(front.address, post(place, "", "x")).await;
        assert_problem(&reply, 404, "unknown_source");
        answers.push(reply.body);
    }
    answers.dedup();
    assert_eq!(answers.len(), 1);
    assert_eq!(front.stored(), 0);
}

#[tokio::test]
async fn what_is_not_verified_is_told_by_its_word() {
    let front = plain().await;
    for word in ["missing_header", "malformed", "timestamp_too_old", "signature_mismatch", "unknown_key"] {
        let reply = ask(front.address, post("/in/acme/github", &format!("x-refuse: {word}\r\n"), "x")).await;
        assert_problem(&reply, 401, word);
    }
    assert_eq!(front.stored(), 0);
}

#[tokio::test]
async fn the_verifier_sees_the_public_url() {
    let front = plain().await;
    let headers = "x-expect-url: https://hooks.example/base/in/acme/github?a=b%20c&d\r\n";
    assert_eq!(ask(front.address, post("/in/acme/github?a=b%20c&d", headers, "x")).await.status, 200);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_however_it_comes() {
    let front = plain().await;
    let large = "x".repeat(1_001);
    let declared = ask(front.address, post("/in/acme/github", "", &large)).await;
    // Declared only: not a byte of it is awaited.
    let promised = ask(front.address, "POST /in/acme/github HTTP/1.1\r\nhost: a\r\ncontent-length: 1001\r\n\r\n").await;
    let expecting = "POST /in/acme/github HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 1001\r\n\r\n";
    let expecting = ask(front.address, expecting).await;
    let chunks = format!("1f4\r\n{0}\r\n1f4\r\n{0}\r\n1\r\nx\r\n0\r\n\r\n", "x".repeat(500));
    let head = "POST /in/acme/github HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    let streamed = ask(front.address, format!("{head}{chunks}")).await;
    for reply in [declared, promised, expecting, streamed] {
        assert_problem(&reply, 413, "body_too_large");
        assert_eq!(reply.json()["limit"], BODY_BYTES_MAX);
    }
    assert_eq!(front.stored(), 0);
    // The limit itself is allowed, both ways.
    let exact = "x".repeat(1_000);
    assert_eq!(ask(front.address, post("/in/acme/github", "", &exact)).await.status, 200);
    let chunks = format!("1f4\r\n{0}\r\n1f4\r\n{0}\r\n0\r\n\r\n", "y".repeat(500));
    assert_eq!(ask(front.address, format!("{head}{chunks}")).await.status, 200);
    assert_eq!(front.ledger.stored.lock().unwrap()[1].event.body, "y".repeat(1_000));
}

#[tokio::test]
async fn a_large_upload_gets_to_read_its_refusal() {
    let front = plain().await;
    let mut peer = Peer::connect(front.address).await;
    peer.send("POST /in/acme/github HTTP/1.1\r\nhost: a\r\ncontent-length: 3000000\r\n\r\n").await;
    peer.send("x".repeat(2_000_000)).await;
    assert_problem(&peer.reply().await.unwrap(), 413, "body_too_large");
    assert!(peer.is_closed().await);
}

#[tokio::test]
async fn a_source_sends_no_faster_than_it_may() {
    let front = plain().await;
    // Who is not let in uses nothing up.
    for _ in 0..5 {
        let reply = ask(front.address, post("/in/acme/slow", "x-refuse: signature_mismatch\r\n", "x")).await;
        assert_eq!(reply.status, 401);
    }
    for _ in 0..2 {
        assert_eq!(ask(front.address, post("/in/acme/slow", "", "x")).await.status, 200);
    }
    let reply = ask(front.address, post("/in/acme/slow", "", "x")).await;
    assert_problem(&reply, 429, "rate_limited");
    let wait: u64 = reply.header("retry-after").unwrap().parse().unwrap();
    assert!((80..=90).contains(&wait), "{wait}");
    assert_eq!(ask(front.address, post("/in/acme/github", "", "x")).await.status, 200, "others are not held up");
}

#[tokio::test]
async fn a_ledger_that_cannot_commit_gives_503() {
    let front = plain().await;
    for fault in [LedgerError::Unavailable("disk full at /secret/place".into()), LedgerError::Stopped("EIO".into())] {
        *front.ledger.fault.lock().unwrap() = Some(fault);
        let reply = ask(front.address, post("/in/acme/github", "", "x")).await;
        assert_problem(&reply, 503, "unavailable");
        assert_eq!(reply.header("retry-after"), Some("2"));
        assert!(!String::from_utf8_lossy(&reply.body).contains("secret"));
    }
    *front.ledger.fault.lock().unwrap() = None;
    assert_eq!(ask(front.address, post("/in/acme/github", "", "x")).await.status, 200);
}

#[tokio::test]
async fn bodies_together_stay_within_their_budget() {
    let front = front(Settings { in_flight_bytes_max: 1_500 }, Limits::default()).await;
    // A promise takes no share of it.
    let mut promising = Peer::connect(front.address).await;
    promising.send("POST /in/acme/github HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\nx").await;
    assert_eq!(ask(front.address, post("/in/acme/github", "", &"x".repeat(1_000))).await.status, 200);
    let held = front.ledger.hold.write().await;
    let mut first = Peer::connect(front.address).await;
    first.send(post("/in/acme/github", "", &"x".repeat(1_000))).await;
    // The second comes over the budget once the first is in; ask until it does.
    let deadline = tokio::time::Instant::now() + crate::peer::PATIENCE;
    loop {
        assert!(tokio::time::Instant::now() < deadline);
        let mut second = Peer::connect(front.address).await;
        second.send(post("/in/acme/github", "x-refuse: malformed\r\n", &"x".repeat(1_000))).await;
        let reply = second.reply().await.unwrap();
        if reply.status == 503 {
            assert_problem(&reply, 503, "unavailable");
            assert!(reply.header("retry-after").is_some());
            break;
        }
        assert_problem(&reply, 401, "malformed");
    }
    drop(held);
    assert_eq!(first.reply().await.unwrap().status, 200);
    assert_eq!(ask(front.address, post("/in/acme/github", "", &"x".repeat(1_000))).await.status, 200, "given back");
}

#[tokio::test]
async fn other_methods_are_for_handshakes() {
    let front = plain().await;
    for method in ["GET", "OPTIONS", "HEAD", "PUT", "DELETE", "PATCH", "BREW"] {
        let mut peer = Peer::connect(front.address).await;
        peer.send(format!("{method} /in/acme/github HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")).await;
        if method == "HEAD" {
            let all = peer.rest().await;
            assert!(all.starts_with("HTTP/1.1 405") && all.ends_with("\r\n\r\n"), "{all}");
            continue;
        }
        let reply = peer.reply().await.unwrap();
        assert_problem(&reply, 405, "method_not_allowed");
        assert_eq!(reply.header("allow"), Some("POST"), "{method}");
    }
    let shaken = ask(front.address, "GET /in/acme/github?challenge=x HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!((shaken.status, shaken.body.as_slice()), (200, b"echoed".as_slice()));
    assert_eq!(shaken.header("content-type"), Some("text/plain"));
    assert_eq!(shaken.header("x-content-type-options"), Some("nosniff"));
    let posted = ask(front.address, post("/in/acme/github", "x-challenge: 1\r\n", "x")).await;
    assert_eq!((posted.status, posted.body.as_slice()), (200, b"echoed".as_slice()));
    assert_eq!(front.stored(), 0);
}

/// Sources of real schemes that shake hands.
async fn shaking() -> Front {
    let front = plain().await;
    let inlet = |key: u32, scheme: &str, secrets: &[&str]| {
        let spec = SourceSpec { scheme: scheme.to_owned(), ..SourceSpec::default() };
        let secrets = secrets.iter().map(|secret| Secret::new(*secret)).collect();
        let source = spec.compile(&name("acme"), &name(scheme), secrets).unwrap();
        let place = ((TenantKey(1), name("acme")), (SourceKey(key), name(scheme)));
        Inlet::new(place.0, place.1, scheme, Arc::new(source), BODY_BYTES_MAX)
    };
    let secret = "a-secret-for-tests";
    front.ingress.replace_routes(Routes::from_iter([
        inlet(1, "meta", &[secret, "verify:our-token"]),
        inlet(2, "x-twitter", &["hookgate-test-secret"]),
        inlet(3, "ms-graph", &[secret]),
        inlet(4, "cloudevents", &[secret]),
        inlet(5, "trello", &[secret]),
        inlet(6, "woocommerce", &[secret]),
        inlet(7, "slack", &[secret]),
        inlet(8, "zoom", &[secret]),
        inlet(9, "dropbox", &[secret]),
    ]));
    front
}

#[tokio::test]
async fn handshakes_are_answered_and_store_nothing() {
    let front = shaking().await;
    let get = |place: &str| format!("GET /in/acme/{place} HTTP/1.1\r\nhost: a\r\n\r\n");
    let x_answer = r#"{"response_token":"sha256=oWSQBlKao5Ck79t5+n6VwhK5fmFAXRtfu5IqkmHdRFk="}"#;
    for (request, content_type, body) in [
        (get("meta?hub.mode=subscribe&hub.verify_token=our-token&hub.challenge=42"), "text/plain", "42"),
        (get("x-twitter?crc_token=challenge_string"), "application/json", x_answer),
        (get("dropbox?challenge=%3Cb%3E"), "text/plain", "<b>"),
        (post("/in/acme/ms-graph?validationToken=a%3Cb", "", ""), "text/plain", "a<b"),
        (
            post("/in/acme/woocommerce", "content-type: application/x-www-form-urlencoded\r\n", "webhook_id=1"),
            "text/plain",
            "",
        ),
    ] {
        let reply = ask(front.address, &request).await;
        assert_eq!((reply.status, String::from_utf8_lossy(&reply.body).as_ref()), (200, body), "{request}");
        assert_eq!(reply.header("content-type"), Some(content_type), "{request}");
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"), "{request}");
    }
    let options = "OPTIONS /in/acme/cloudevents HTTP/1.1\r\nhost: a\r\nwebhook-request-origin: e.test\r\n\r\n";
    let reply = ask(front.address, options).await;
    assert_eq!((reply.status, reply.header("webhook-allowed-origin")), (200, Some("e.test")));
    let mut peer = Peer::connect(front.address).await;
    peer.send("HEAD /in/acme/trello HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert!(peer.rest().await.starts_with("HTTP/1.1 200"));
    let guessed = ask(front.address, &get("meta?hub.mode=subscribe&hub.verify_token=guessed&hub.challenge=42")).await;
    assert_problem(&guessed, 403, "handshake_refused");
    for request in
        [get("meta?hub.challenge=42"), get("x-twitter?crc_token=%7B%7D"), get("cloudevents"), get("slack?challenge=a")]
    {
        let reply = ask(front.address, &request).await;
        assert_problem(&reply, 405, "method_not_allowed");
        let detail = reply.json()["detail"].as_str().unwrap_or_default().to_owned();
        if request.contains("/slack") {
            assert_eq!((reply.header("allow"), detail.as_str()), (Some("POST"), "only POST is allowed here"));
        } else if request.contains("/meta") {
            assert_eq!(reply.header("allow"), Some("GET, POST"));
            assert!(detail.ends_with("alone, and query parameter hub.mode is absent or empty"), "{detail}");
        } else if request.contains("/cloudevents") {
            assert_eq!(reply.header("allow"), Some("OPTIONS, POST"));
            assert_eq!(detail, "only POST is allowed here, and OPTIONS for the scheme's handshake");
        }
    }
    assert_eq!(front.stored(), 0);
}

#[tokio::test]
async fn signed_handshakes_are_answered_by_who_can_verify_them() {
    let front = shaking().await;
    for (scheme, body, answer) in [
        ("slack", r#"{"type":"url_verification","challenge":"3eZ"}"#, "3eZ"),
        ("zoom", r#"{"event":"endpoint.url_validation","payload":{"plainToken":"t"}}"#, "encryptedToken"),
    ] {
        let spec = SourceSpec { scheme: scheme.to_owned(), ..SourceSpec::default() };
        let source = spec.compile(&name("acme"), &name(scheme), vec![Secret::new("a-secret-for-tests")]).unwrap();
        let bytes = Bytes::from_static(body.as_bytes());
        let timestamp = SystemClock.now();
        let sign = SignRequest { id: "a", event_type: None, timestamp, url: "https://a.test/", body: &bytes };
        let headers: String =
            source.sign(sign).unwrap().iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let place = format!("/in/acme/{scheme}");
        let reply = ask(front.address, post(&place, &headers, body)).await;
        assert_eq!(reply.status, 200);
        assert!(String::from_utf8_lossy(&reply.body).contains(answer), "{scheme}");
        let forged = headers.replace("v0=", "v0=0");
        assert_problem(&ask(front.address, post(&place, &forged, body)).await, 401, "malformed");
        assert_problem(&ask(front.address, post(&place, "", body)).await, 401, "missing_header");
    }
    assert_eq!(front.stored(), 0);
}

#[tokio::test]
async fn a_panic_is_a_500_and_nothing_more() {
    let front = plain().await;
    let mut peer = Peer::connect(front.address).await;
    peer.send(post("/in/acme/github", "x-panic: 1\r\n", "x")).await;
    assert_problem(&peer.reply().await.unwrap(), 500, "internal");
    assert!(peer.is_closed().await);
    assert_eq!(ask(front.address, post("/in/acme/github", "", "x")).await.status, 200);
}

#[tokio::test]
async fn routes_are_replaced_as_a_whole() {
    let ledger = Arc::new(FakeLedger::default());
    let slots = Arc::new(Slots::new(Arc::default()));
    let ingress = Ingress::new(&Settings::default(), Arc::clone(&ledger) as _, slots, Arc::new(SystemClock));
    let ingress = Arc::new(ingress);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, Arc::clone(&ingress), Limits::default(), CancellationToken::new()));
    let mut peer = Peer::connect(address).await;
    peer.send(post("/in/acme/github", "", "x")).await;
    assert_eq!(peer.reply().await.unwrap().status, 404);
    ingress.replace_routes(routes());
    peer.send(post("/in/acme/github", "", "x")).await;
    assert_eq!(peer.reply().await.unwrap().status, 200);
}

#[tokio::test]
async fn a_sender_who_leaves_stores_nothing() {
    let front = plain().await;
    let mut peer = Peer::connect(front.address).await;
    peer.send("POST /in/acme/github HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nhalf").await;
    drop(peer);
    front.stop.cancel();
    front.served.await.unwrap();
    assert_eq!(front.ledger.stored.lock().unwrap().len(), 0);
}

#[tokio::test]
async fn a_body_is_asked_for_when_the_sender_waits_to_be_asked() {
    let front = plain().await;
    let mut peer = Peer::connect(front.address).await;
    peer.send("POST /in/acme/github HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n").await;
    assert_eq!(peer.reply().await.unwrap().status, 100);
    peer.send("hi").await;
    assert_eq!(peer.reply().await.unwrap().status, 200);
}

/// Everything this process logs.
fn logged() -> &'static std::sync::Mutex<Vec<u8>> {
    static LOG: std::sync::OnceLock<std::sync::Mutex<Vec<u8>>> = std::sync::OnceLock::new();
    LOG.get_or_init(|| {
        let logger = tracing_subscriber::fmt().with_ansi(false).with_writer(|| Page).finish();
        tracing::subscriber::set_global_default(logger).unwrap();
        std::sync::Mutex::default()
    })
}

struct Page;

impl std::io::Write for Page {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        logged().lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The value of a counter with one label or two, as it stands in a scrape.
fn counted(series: &str) -> u64 {
    let text = crate::office::metrics().render(&hookgate::ledger::Gauges::default(), SystemClock.now());
    let series = format!("{series} ");
    text.lines().find_map(|line| line.strip_prefix(&series)).map_or(0, |n| n.parse().unwrap())
}

#[tokio::test]
async fn what_is_refused_is_noted_by_kind_and_size() {
    let front = plain().await;
    let before = SystemClock.now();
    for code in RefusalCode::ALL {
        let reply = ask(front.address, post("/in/acme/github", &format!("x-refuse: {code}\r\n"), "hidden-body")).await;
        let status = if code == RefusalCode::HandshakeRefused { 403 } else { 401 };
        assert_problem(&reply, status, code.as_str());
        let series = format!("hookgate_ingress_requests_total{{scheme=\"obedient\",result=\"{code}\"}}");
        assert!(counted(&series) > 0, "{code}");
    }
    assert_problem(&ask(front.address, post("/in/acme/github", "", &"x".repeat(1_001))).await, 413, "body_too_large");
    ask(front.address, post("/in/acme/github", "x-key: a\r\n", "1")).await;
    assert_problem(&ask(front.address, post("/in/acme/github", "x-key: a\r\n", "2")).await, 409, "key_reused");
    ask(front.address, post("/in/globex/stripe", "x-refuse: malformed\r\n", "")).await;
    // Of no source, or no fault of the sender's: counted alone.
    ask(front.address, post("/in/acme/nothing", "", "x")).await;
    *front.ledger.fault.lock().unwrap() = Some(LedgerError::Unavailable("full".into()));
    ask(front.address, post("/in/acme/github", "", "x")).await;
    *front.ledger.fault.lock().unwrap() = None;
    front.stop.cancel();
    front.kept.await.unwrap();
    let rejected = front.ledger.rejected.lock().unwrap();
    let words: Vec<&str> = rejected.iter().map(|r| r.reason).collect();
    let mut expected = RefusalCode::ALL.map(RefusalCode::as_str).to_vec();
    expected.extend(["body_too_large", "key_reused", "malformed"]);
    assert_eq!(words, expected);
    let first = &rejected[0];
    assert_eq!((first.tenant, first.source, first.step), (TenantKey(1), SourceKey(1), Some("presence")));
    assert_eq!((first.detail.as_str(), first.peer.to_string().as_str()), ("told to", "127.0.0.1"));
    assert!(first.at >= before && first.at <= SystemClock.now());
    let body = first.body.unwrap();
    // printf hidden-body | sha256sum | cut -c1-16
    assert_eq!((body.bytes, hex::encode(body.digest).as_str()), (11, "f21222acd4af52e3"));
    let [too_large, reused, theirs] = &rejected[RefusalCode::ALL.len()..] else { panic!("{}", rejected.len()) };
    assert_eq!((too_large.step, too_large.body), (None, None));
    assert_eq!((reused.step, reused.body.unwrap().bytes), (None, 1));
    assert_eq!((theirs.tenant, theirs.body.unwrap().bytes), (TenantKey(2), 0));
    assert!(!format!("{rejected:?}").contains("hidden"));
}

#[tokio::test]
async fn a_flood_of_refusals_is_counted_and_not_kept() {
    let front = plain().await;
    let dropped = counted("hookgate_rejections_dropped_total");
    let mut peer = Peer::connect(front.address).await;
    for _ in 0..200 {
        peer.send(post("/in/acme/github", "x-refuse: malformed\r\n", "x")).await;
        assert_eq!(peer.reply().await.unwrap().status, 401);
    }
    front.stop.cancel();
    front.kept.await.unwrap();
    let kept = front.ledger.rejected.lock().unwrap().len();
    assert!((50..150).contains(&kept), "{kept}");
    // Other tests of this process drop some, too.
    assert!(counted("hookgate_rejections_dropped_total") - dropped >= 200 - kept as u64);
}

#[tokio::test]
async fn refusals_are_counted_and_logged_by_kind_alone() {
    let count = |scheme: &str, result: &str| {
        counted(&format!("hookgate_ingress_requests_total{{scheme=\"{scheme}\",result=\"{result}\"}}"))
    };
    let front = plain().await;
    let cases = [
        (
            "/in/acme/github?hidden-query",
            "x-refuse: untrusted_key_url\r\nx-s: hidden-header\r\n",
            "obedient",
            "untrusted_key_url",
        ),
        ("/in/hidden-tenant/github", "", "none", "unknown_source"),
        ("/in/acme/github", "", "obedient", "accepted"),
    ];
    for (place, headers, scheme, result) in cases {
        let before = count(scheme, result);
        ask(front.address, post(place, headers, "hidden-body")).await;
        assert!(count(scheme, result) > before, "{result}");
    }
    let log = String::from_utf8(logged().lock().unwrap().clone()).unwrap();
    assert!(log.contains("tenant=acme source=github result=\"untrusted_key_url\""), "{log}");
    assert!(log.contains("result=\"unknown_source\""), "{log}");
    assert!(!log.contains("hidden"), "{log}");
}
