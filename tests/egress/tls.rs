//! TLS that is not right is a failure of kind `tls`, before any byte of the request.

use crate::server::{OK, Scripted, Server, answered, failed, post, until};
use hookgate::delivery::{Phase, TransportKind};
use hookgate::egress::{Client, Error, Settings};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio_rustls::TlsAcceptor;

const NAME: &str = "receiver.example";

pub(crate) struct Authority {
    pub(crate) issuer: Issuer<'static, KeyPair>,
    pub(crate) root: CertificateDer<'static>,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap().der().clone();
        Authority { issuer: Issuer::new(params, key), root }
    }

    /// An acceptor with a certificate of this authority.
    pub(crate) fn acceptor(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> TlsAcceptor {
        let mut params = CertificateParams::new(names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>()).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let leaf = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        acceptor(leaf, &key)
    }
}

impl Authority {
    /// An authority that this one vouches for, and its certificate in PEM.
    pub(crate) fn below(&self, name: &str) -> (Authority, String) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (Authority { issuer: Issuer::new(params, key), root: certificate.der().clone() }, certificate.pem())
    }

    /// A certificate of this authority for an elliptic key, in PEM.
    pub(crate) fn elliptic_pem(&self, names: &[&str]) -> Vec<u8> {
        let params = CertificateParams::new(names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>()).unwrap();
        params.signed_by(&KeyPair::generate().unwrap(), &self.issuer).unwrap().pem().into_bytes()
    }
}

fn acceptor(leaf: CertificateDer<'static>, key: &KeyPair) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

async fn serve(acceptor: TlsAcceptor) -> Server {
    Server::start(move |peer| {
        let acceptor = acceptor.clone();
        async move {
            let Some(mut peer) = peer.secured(&acceptor).await else { return };
            while peer.request().await.is_some() {
                peer.say(OK).await;
            }
        }
    })
    .await
}

fn client(server: &Server, roots: &[&Authority]) -> Client {
    let settings = Settings {
        allow: vec![server.rule().parse().unwrap()],
        extra_roots: roots.iter().map(|a| a.root.clone()).collect(),
        tls_timeout: Duration::from_millis(500),
        ..Settings::default()
    };
    Client::with_resolver(&settings, Scripted::new([&["127.0.0.1"]])).unwrap()
}

fn url(server: &Server) -> String {
    format!("https://{NAME}:{}/hook", server.addr.port())
}

#[tokio::test]
async fn a_good_certificate() {
    let authority = Authority::new("one");
    let server = serve(authority.acceptor(&[NAME], |_| ())).await;
    let client = client(&server, &[&authority]);
    for nth in 0..5 {
        let answer = answered(&client, post(&url(&server))).await;
        assert_eq!((answer.status.as_u16(), &answer.body[..]), (200, &b"ok"[..]));
        assert_eq!(answer.timings.tls.is_some(), nth == 0);
    }
    assert_eq!((server.connections(), server.requests().len()), (1, 5), "kept over TLS too");
}

#[tokio::test]
async fn secured_connections_closed_meanwhile_are_replaced() {
    let authority = Authority::new("one");
    let acceptor = authority.acceptor(&[NAME], |_| ());
    for orderly in [true, false] {
        let acceptor = acceptor.clone();
        let server = Server::start(move |peer| {
            let acceptor = acceptor.clone();
            async move {
                let mut peer = peer.secured(&acceptor).await.unwrap();
                peer.request().await;
                peer.say(OK).await;
                if orderly {
                    peer.stream.shutdown().await.unwrap();
                }
                let journal = Arc::clone(&peer.journal);
                drop(peer);
                journal.close();
            }
        })
        .await;
        let client = client(&server, &[&authority]);
        for nth in 1..=20 {
            assert_eq!(answered(&client, post(&url(&server))).await.status, 200);
            until("the receiver closes", || server.closed() == nth).await;
        }
        assert_eq!((server.connections(), server.requests().len()), (20, 20));
    }
}

#[tokio::test]
async fn a_good_certificate_for_an_address() {
    let authority = Authority::new("one");
    let server = serve(authority.acceptor(&["127.0.0.1"], |_| ())).await;
    let client = client(&server, &[&authority]);
    assert_eq!(answered(&client, post(&format!("https://{}/", server.addr))).await.status, 200);
}

#[tokio::test]
async fn bad_certificates_of_each_kind() {
    let (authority, stranger) = (Authority::new("one"), Authority::new("another"));
    let expired = authority.acceptor(&[NAME], |p| {
        p.not_before = date_time_ymd(2020, 1, 1);
        p.not_after = date_time_ymd(2021, 1, 1);
    });
    let future = authority.acceptor(&[NAME], |p| p.not_before = date_time_ymd(4000, 1, 1));
    let other_host = authority.acceptor(&["other.example"], |_| ());
    let address_only = authority.acceptor(&["127.0.0.1"], |_| ());
    let unknown = stranger.acceptor(&[NAME], |_| ());
    let self_key = KeyPair::generate().unwrap();
    let self_leaf = CertificateParams::new(vec![NAME.to_owned()]).unwrap().self_signed(&self_key).unwrap();
    let self_signed = acceptor(self_leaf.der().clone(), &self_key);
    for (what, acceptor, said) in [
        ("expired", expired, "expired"),
        ("not yet valid", future, "not valid"),
        ("another host", other_host, "not valid for name"),
        ("the address instead of the name", address_only, "not valid for name"),
        ("an unknown authority", unknown, "UnknownIssuer"),
        ("self-signed", self_signed, ""),
    ] {
        let server = serve(acceptor).await;
        let (kind, phase, detail) = failed(&client(&server, &[&authority]), post(&url(&server))).await;
        assert_eq!((kind, phase), (TransportKind::Tls, Phase::BeforeWrite), "{what}: {detail}");
        assert!(detail.starts_with("TLS: invalid peer certificate") && detail.contains(said), "{what}: {detail}");
        assert_eq!((server.connections(), server.requests().len()), (1, 0), "{what}: no fallback");
    }
}

#[tokio::test]
async fn what_is_not_tls() {
    let plain = Server::start(|mut peer| async move {
        peer.first_byte().await;
        peer.say(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
        peer.hold().await;
    })
    .await;
    let old = Server::start(|mut peer| async move {
        peer.first_byte().await;
        // A server hello of TLS 1.0.
        let mut hello = vec![0x16, 3, 1, 0, 42, 2, 0, 0, 38, 3, 1];
        hello.extend([7; 32]);
        hello.extend([0, 0xc0, 0x13, 0]);
        peer.say(&hello).await;
        peer.hold().await;
    })
    .await;
    let closing = Server::start(|mut peer| async move {
        peer.first_byte().await;
        peer.close();
    })
    .await;
    let resetting = Server::start(|mut peer| async move {
        peer.first_byte().await;
        peer.reset();
    })
    .await;
    for (what, server) in [("plain", plain), ("old", old), ("closing", closing), ("resetting", resetting)] {
        let (kind, phase, detail) = failed(&client(&server, &[]), post(&url(&server))).await;
        assert_eq!((kind, phase), (TransportKind::Tls, Phase::BeforeWrite), "{what}: {detail}");
        assert_eq!(server.connections(), 1, "{what}: no fallback");
    }
}

#[tokio::test]
async fn a_handshake_has_its_own_limit() {
    let server = Server::start(|peer| async move { peer.hold().await }).await;
    let (kind, phase, detail) = failed(&client(&server, &[]), post(&url(&server))).await;
    assert_eq!((kind, phase), (TransportKind::Timeout, Phase::BeforeWrite), "{detail}");
    assert!(detail.contains("TLS"), "{detail}");
    until("the connection is given up", || server.closed() == 1).await;
}

#[tokio::test]
async fn roots_that_are_none() {
    let settings = Settings { extra_roots: vec![CertificateDer::from(vec![1, 2, 3])], ..Settings::default() };
    let error = Client::new(&settings).err().unwrap();
    assert!(matches!(error, Error::ExtraRoot { index: 0, .. }), "{error}");
}
