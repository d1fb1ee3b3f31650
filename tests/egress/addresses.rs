//! Denied addresses get no connection, whatever leads to them.

use crate::server::{OK, Scripted, Server, answered, failed, post, refused};
use hookgate::delivery::{Phase, TransportKind};
use hookgate::egress::{Client, Guard, Resolver, Settings, SystemResolver, Unresolved};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

fn client(allow: &[String], resolver: Arc<dyn Resolver>) -> Client {
    let allow = allow.iter().map(|rule| rule.parse().unwrap()).collect();
    Client::with_resolver(&Settings { allow, ..Settings::default() }, resolver).unwrap()
}

#[tokio::test]
async fn a_denied_literal_gets_no_connection() {
    let server = Server::answering(OK).await;
    let port = server.addr.port();
    let allow_http = Settings { allow_http: true, ..Settings::default() };
    let client = Client::with_resolver(&allow_http, Scripted::new([&["127.0.0.1"]])).unwrap();
    for host in ["127.0.0.1", "127.1", "0x7f.1", "2130706433", "[::ffff:127.0.0.1]", "localhost", "a.localhost", "0"] {
        for scheme in ["http", "https"] {
            let (reason, _) = refused(&client, post(&format!("{scheme}://{host}:{port}/"))).await;
            assert_eq!(reason, "policy", "{scheme} {host}");
        }
    }
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn a_rule_opens_one_port_of_one_address() {
    let (one, other) = (Server::answering(OK).await, Server::answering(OK).await);
    let client = one.client();
    answered(&client, one.post()).await;
    let (reason, detail) = refused(&client, other.post()).await;
    assert_eq!((reason.as_str(), other.connections()), ("policy", 0));
    assert!(detail.contains("loopback"), "{detail}");
}

#[tokio::test]
async fn invalid_urls_are_refused_at_send_too() {
    let server = Server::answering(OK).await;
    let client = server.client();
    for url in ["ftp://127.0.0.1/", "https://u:p@example.com/", "https://example.com/#f", "data:text/plain,x"] {
        let (reason, _) = refused(&client, post(url)).await;
        assert_eq!(reason, "invalid_url", "{url}");
    }
}

#[tokio::test]
async fn any_denied_answer_refuses_the_name() {
    let server = Server::answering(OK).await;
    let url = format!("http://receiver.example:{}/", server.addr.port());
    for answers in [
        &["127.0.0.1", "127.0.0.2"][..],
        &["127.0.0.2", "127.0.0.1"],
        &["127.0.0.1", "::1"],
        &["127.0.0.1", "::ffff:10.0.0.1"],
        &["127.0.0.1", "8.8.8.8"],
        &["10.0.0.1"],
    ] {
        let (reason, _) = refused(&client(&[server.rule()], Scripted::new([answers])), post(&url)).await;
        assert_eq!(reason, "policy", "{answers:?}");
    }
    assert_eq!(server.connections(), 0);
    let mapped = client(&[server.rule()], Scripted::new([&["::ffff:127.0.0.1"]]));
    assert_eq!(answered(&mapped, post(&url)).await.status, 200, "judged and dialled as IPv4");
}

#[tokio::test]
async fn a_name_that_turns_is_caught() {
    let good = Server::answering("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await;
    let port = good.addr.port();
    let evil = Server::start_at(format!("127.0.0.2:{port}").parse().unwrap(), |peer| async { peer.close() }).await;
    let names = Scripted::new([&["127.0.0.1"], &["127.0.0.2"], &["127.0.0.1"]]);
    let client = client(&[good.rule()], names.clone());
    let url = format!("http://receiver.example:{port}/");
    assert_eq!(answered(&client, post(&url)).await.status, 200);
    assert_eq!(refused(&client, post(&url)).await.0, "policy");
    assert_eq!(answered(&client, post(&url)).await.status, 200);
    assert_eq!((names.lookups(), good.connections(), evil.connections()), (3, 2, 0), "one look-up per connection");
}

#[tokio::test]
async fn one_look_up_per_connection_and_none_for_literals() {
    let server = Server::answering(OK).await;
    let names = Scripted::new([&["127.0.0.1"]]);
    let client = client(&[server.rule()], names.clone());
    let url = format!("http://receiver.example:{}/", server.addr.port());
    for nth in 0..5 {
        let answer = answered(&client, post(&url)).await;
        assert_eq!(answer.timings.dns.is_some(), nth == 0);
        answered(&client, server.post()).await;
    }
    assert_eq!((names.lookups(), server.connections()), (1, 2));
}

#[tokio::test]
async fn an_address_that_does_not_answer_gives_way_to_the_next() {
    let server = Server::answering(OK).await;
    let rules = [server.rule(), format!("127.0.0.3/32:{}", server.addr.port())];
    let client = client(&rules, Scripted::new([&["127.0.0.3", "127.0.0.1"]]));
    let url = format!("http://receiver.example:{}/", server.addr.port());
    assert_eq!(answered(&client, post(&url)).await.status, 200);
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn look_ups_that_fail_are_no_refusals() {
    let server = Server::answering(OK).await;
    let many: Vec<IpAddr> = (0..1000).map(|_| server.addr.ip()).collect();
    let url = format!("http://receiver.example:{}/", server.addr.port());
    for answer in [Err(Unresolved("the name does not exist".into())), Ok(vec![]), Ok(many[..17].to_vec()), Ok(many)] {
        let client = client(&[server.rule()], Scripted::of([answer]));
        let (kind, phase, detail) = failed(&client, post(&url)).await;
        assert_eq!((kind, phase), (TransportKind::Dns, Phase::BeforeWrite), "{detail}");
    }
    assert_eq!(server.connections(), 0);
    let most = client(&[server.rule()], Scripted::of([Ok(vec![server.addr.ip(); 16])]));
    assert_eq!(answered(&most, post(&url)).await.status, 200);
}

struct Silent;

#[async_trait::async_trait]
impl Resolver for Silent {
    async fn lookup(&self, _name: &str) -> Result<Vec<IpAddr>, Unresolved> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_look_up_has_its_own_limit() {
    let dns_timeout = Duration::from_millis(100);
    let settings = Settings { dns_timeout, ..Settings::default() };
    let client = Client::with_resolver(&settings, Arc::new(Silent)).unwrap();
    let started = Instant::now();
    let (kind, phase, _) = failed(&client, post("https://receiver.example/")).await;
    assert_eq!((kind, phase), (TransportKind::Dns, Phase::BeforeWrite));
    assert!(started.elapsed() >= dns_timeout && started.elapsed() < Duration::from_secs(10));
    let mut request = post("https://receiver.example/");
    request.timeout = Duration::from_millis(10);
    let (kind, phase, _) = failed(&client, request).await;
    assert_eq!((kind, phase), (TransportKind::Timeout, Phase::BeforeWrite), "the whole deadline came first");
}

#[tokio::test]
async fn a_connect_has_its_own_limit() {
    // A listener whose queue is full answers no more handshakes.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let addr = listener.local_addr().unwrap();
    let mut fill = Vec::new();
    let full = Duration::from_millis(200);
    while let Ok(Ok(taken)) = tokio::time::timeout(full, tokio::net::TcpStream::connect(addr)).await {
        fill.push(taken);
        assert!(fill.len() < 100, "the queue does not fill");
    }
    let settings = Settings {
        allow: vec![format!("127.0.0.1/32:{}", addr.port()).parse().unwrap()],
        connect_timeout: Duration::from_millis(100),
        ..Settings::default()
    };
    let client = Client::new(&settings).unwrap();
    let started = Instant::now();
    let (kind, phase, detail) = failed(&client, post(&format!("http://{addr}/"))).await;
    assert_eq!((kind, phase), (TransportKind::Timeout, Phase::BeforeWrite), "{detail}");
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn the_gateway_does_not_call_itself() {
    let server = Server::answering(OK).await;
    let port = server.addr.port();
    let url = format!("http://127.0.0.1:{port}/");
    let with = |allow: &str, own: String| {
        server.client_with(|s| {
            s.allow = vec![allow.parse().unwrap()];
            s.own_listeners = vec![own.parse().unwrap()];
        })
    };
    for own in [format!("127.0.0.1:{port}"), format!("0.0.0.0:{port}"), format!("[::]:{port}")] {
        let (reason, detail) = refused(&with("127.0.0.0/8", own.clone()), post(&url)).await;
        assert_eq!(reason, "policy", "{own}");
        assert!(detail.contains("own listener"), "{detail}");
    }
    assert_eq!(server.connections(), 0);
    answered(&with("127.0.0.1/32", format!("0.0.0.0:{port}")), post(&url)).await;
    answered(&with("127.0.0.0/8", "0.0.0.0:1".to_owned()), post(&url)).await;
}

#[tokio::test]
async fn an_interface_address_is_the_gateway_too() {
    // The address that this machine would use to go out; none, or the loopback, when it has no network.
    let route = std::net::UdpSocket::bind("0.0.0.0:0").and_then(|s| s.connect("198.51.100.1:9").and(s.local_addr()));
    let Some(ip) = route.ok().map(|addr| addr.ip()).filter(|ip| !ip.is_loopback()) else { return };
    let Ok(listener) = std::net::TcpListener::bind((ip, 0)) else { return };
    let port = listener.local_addr().unwrap().port();
    let settings = Settings {
        allow: vec!["0.0.0.0/0".parse().unwrap()],
        own_listeners: vec![format!("0.0.0.0:{port}").parse().unwrap()],
        ..Settings::default()
    };
    let (reason, detail) = refused(&Client::new(&settings).unwrap(), post(&format!("http://{ip}:{port}/"))).await;
    assert!(reason == "policy" && detail.contains("own listener"), "{detail}");
}

#[tokio::test]
async fn the_system_resolver_knows_a_name_of_the_machine() {
    // From the hosts file, so without a network.
    let found = SystemResolver::new().lookup("localhost").await.unwrap();
    assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback), "{found:?}");
}

#[tokio::test]
async fn ipv6_receivers() {
    // Only where the machine has the protocol.
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return;
    }
    let server = Server::start_at("[::1]:0".parse().unwrap(), |mut peer| async move {
        while peer.request().await.is_some() {
            peer.say(OK).await;
        }
    })
    .await;
    let client = server.client();
    for nth in 0..2 {
        assert_eq!(answered(&client, server.post()).await.timings.reused, nth > 0);
    }
    assert!(server.requests()[0].contains(&format!("host: [::1]:{}\r\n", server.addr.port())));
    let (reason, _) = refused(&client, post("http://[::1]:9/")).await;
    assert_eq!(reason, "policy");
}

proptest! {
    /// Run only for what the guard denies: anything else would be dialled.
    #[test]
    fn whatever_the_guard_denies_is_refused_by_name_and_by_literal(
        ip in prop_oneof![
            any::<u32>().prop_map(|bits| IpAddr::from(Ipv4Addr::from_bits(bits))),
            any::<u128>().prop_map(|bits| IpAddr::from(Ipv6Addr::from_bits(bits))),
            (0u32..1 << 24).prop_map(|low| IpAddr::from(Ipv4Addr::from_bits(0x7f00_0000 | low))),
            any::<u32>().prop_map(|bits| IpAddr::from(Ipv4Addr::from_bits(bits).to_ipv6_mapped())),
        ],
    ) {
        let guard = Guard::new(&Settings::default());
        prop_assume!(guard.judge(SocketAddr::new(ip, 443)).is_err());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let literal = match ip {
            IpAddr::V4(ip) => format!("https://{ip}/"),
            IpAddr::V6(ip) => format!("https://[{ip}]/"),
        };
        runtime.block_on(async {
            let client = CLIENT.get_or_init(|| Client::with_resolver(&Settings::default(), Arc::new(Last)).unwrap());
            *LAST.lock().unwrap() = ip;
            assert_eq!(refused(client, post("https://receiver.example/")).await.0, "policy");
            assert_eq!(refused(client, post(&literal)).await.0, "policy");
        });
    }
}

/// One client for all cases of the property: building one reads the machine's certificates.
static CLIENT: OnceLock<Client> = OnceLock::new();
static LAST: Mutex<IpAddr> = Mutex::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED));

struct Last;

#[async_trait::async_trait]
impl Resolver for Last {
    async fn lookup(&self, _name: &str) -> Result<Vec<IpAddr>, Unresolved> {
        Ok(vec![*LAST.lock().unwrap()])
    }
}

#[test]
fn refused_addresses_are_counted() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let client = Client::new(&Settings::default()).unwrap();
            for url in ["https://127.0.0.1/", "https://localhost/", "https://user@example.com/"] {
                refused(&client, post(url)).await;
            }
        });
    });
    let shown = recorder.handle().render();
    assert!(shown.contains("hookgate_blocked_addresses_total 2"), "{shown}");
}
