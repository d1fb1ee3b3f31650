//! Connections are reused, never trusted: at most one request on the wire per send.

use crate::server::{OK, Scripted, Server, answered, failed, post, until};
use hookgate::delivery::{Phase, TransportKind};
use hookgate::egress::{Client, Exchange, Outbound, Settings, Transport};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

#[tokio::test]
async fn one_connection_for_many_sends() {
    let server = Server::answering(OK).await;
    let client = server.client();
    for nth in 0..200 {
        let answer = answered(&client, server.post()).await;
        assert_eq!(answer.timings.reused, nth > 0);
        assert_eq!(answer.timings.connect.is_some(), nth == 0);
    }
    assert_eq!((server.connections(), server.requests().len()), (1, 200));
}

#[tokio::test]
async fn endpoints_share_no_connection() {
    let server = Server::answering(OK).await;
    let client = server.client();
    for pool in [1, 2, 17, 1, 2, 17] {
        answered(&client, Outbound { pool, ..server.post() }).await;
    }
    assert_eq!(server.connections(), 3);
}

#[tokio::test]
async fn origins_share_no_connection() {
    let (one, other) = (Server::answering(OK).await, Server::answering(OK).await);
    let names = Scripted::new([&["127.0.0.1"]]);
    let allow = [&one, &other].map(|s| s.rule().parse().unwrap()).to_vec();
    let client = Client::with_resolver(&Settings { allow, ..Settings::default() }, names).unwrap();
    for _ in 0..2 {
        answered(&client, one.post()).await;
        answered(&client, other.post()).await;
        answered(&client, post(&format!("http://a.example:{}/", one.addr.port()))).await;
        answered(&client, post(&format!("http://b.example:{}/", one.addr.port()))).await;
        answered(&client, post(&format!("http://b.example.:{}/", one.addr.port()))).await;
    }
    assert_eq!((one.connections(), other.connections()), (3, 1));
    assert!(one.requests().iter().any(|r| r.contains(&format!("host: b.example:{}\r\n", one.addr.port()))));
}

#[tokio::test]
async fn concurrent_sends_have_a_connection_each() {
    let server = Server::answering(OK).await;
    let client = Arc::new(server.client());
    let sends: Vec<_> = (0..500)
        .map(|_| {
            let (client, request) = (Arc::clone(&client), server.post());
            tokio::spawn(async move { answered(&client, request).await.status })
        })
        .collect();
    for send in sends {
        assert_eq!(send.await.unwrap(), 200);
    }
    assert_eq!(server.requests().len(), 500);
}

#[tokio::test]
async fn connections_closed_meanwhile_are_replaced() {
    type End = fn(crate::server::Peer);
    let ends: [End; 2] = [crate::server::Peer::close, crate::server::Peer::reset];
    for end in ends {
        let server = Server::start(move |mut peer| async move {
            peer.request().await;
            peer.say(OK).await;
            end(peer);
        })
        .await;
        let client = server.client();
        for nth in 1..=100 {
            // A reset may overtake its answer; the send after it must not suffer from that.
            match client.send(server.post()).await {
                Exchange::Answered(answer) => assert_eq!(answer.status, 200),
                Exchange::Failed(failure) => assert_eq!(failure.phase, Phase::AfterWrite),
                Exchange::Refused { detail, .. } => panic!("{detail}"),
            }
            until("the receiver closes", || server.closed() == nth).await;
            assert_eq!(server.requests().len(), nth, "one request per send");
        }
    }
}

#[tokio::test]
async fn an_orderly_close_costs_no_delivery() {
    let server = Server::start(|mut peer| async move {
        peer.request().await;
        peer.say(OK).await;
        peer.close();
    })
    .await;
    let client = server.client();
    for nth in 1..=100 {
        assert_eq!(answered(&client, server.post()).await.status, 200);
        until("the receiver closes", || server.closed() == nth).await;
    }
    assert_eq!((server.connections(), server.requests().len()), (100, 100));
}

#[tokio::test]
async fn a_close_that_the_runtime_has_not_noticed_is_seen() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let (closed, wait_closed) = std::sync::mpsc::channel();
    let (taken, wait_taken) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"hello") {
                let mut piece = [0; 1024];
                let n = stream.read(&mut piece).unwrap();
                request.extend_from_slice(&piece[..n]);
            }
            stream.write_all(OK).unwrap();
            wait_taken.recv().unwrap();
            drop(stream);
            closed.send(()).unwrap();
        }
    });
    let allow = vec![format!("127.0.0.1/32:{}", addr.port()).parse().unwrap()];
    let client = Client::new(&Settings { allow, ..Settings::default() }).unwrap();
    for _ in 0..20 {
        let answer = answered(&client, post(&format!("http://{addr}/"))).await;
        assert!(!answer.timings.reused);
        taken.send(()).unwrap();
        // Blocks the runtime of this test on purpose: it cannot look at the socket before the next send.
        wait_closed.recv().unwrap();
    }
}

#[tokio::test]
async fn a_reused_connection_that_breaks_after_the_request_is_not_tried_again() {
    let server = Server::start(|mut peer| async move {
        peer.request().await;
        peer.say(OK).await;
        peer.request().await;
        peer.close();
    })
    .await;
    let client = server.client();
    for nth in 1..=20 {
        answered(&client, server.post()).await;
        let (kind, phase, _) = failed(&client, server.post()).await;
        assert_eq!((kind, phase), (TransportKind::Reset, Phase::AfterWrite));
        assert_eq!((server.connections(), server.requests().len()), (nth, 2 * nth));
    }
}

#[tokio::test]
async fn connections_that_must_not_be_reused() {
    for said in [
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ] {
        let server = Server::answering(said).await;
        let client = server.client();
        for _ in 0..3 {
            let answer = answered(&client, server.post()).await;
            assert_eq!(&answer.body[..], b"ok", "{said:?}");
        }
        assert_eq!((server.connections(), server.requests().len()), (3, 3), "{said:?}");
    }
}

#[tokio::test]
async fn an_answer_in_advance_is_nobodys() {
    let spoken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&spoken);
    let server = Server::start(move |mut peer| {
        let count = Arc::clone(&count);
        async move {
            peer.request().await;
            peer.say(OK).await;
            peer.say(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil").await;
            count.fetch_add(1, SeqCst);
            peer.hold().await;
        }
    })
    .await;
    let client = server.client();
    for nth in 1..=50 {
        assert_eq!(&answered(&client, server.post()).await.body[..], b"ok");
        until("the receiver has spoken unasked", || spoken.load(SeqCst) == nth).await;
    }
    assert_eq!((server.connections(), server.requests().len()), (50, 50));
}

#[tokio::test]
async fn an_answer_before_the_whole_request_is_taken() {
    let server = Server::start(|mut peer| async move {
        peer.first_byte().await;
        peer.say(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n").await;
        peer.hold().await;
    })
    .await;
    let client = server.client();
    for nth in 1..=2 {
        let answer = answered(&client, Outbound { body: vec![b'x'; 64 << 20].into(), ..server.post() }).await;
        assert_eq!(answer.status, 413);
        assert_eq!(server.connections(), nth, "a half-written request ends its connection");
    }
}

#[tokio::test]
async fn waiting_and_age_have_limits() {
    let server = Server::answering(OK).await;
    let idle = server.client_with(|s| s.idle = Duration::ZERO);
    let young = server.client_with(|s| s.age = Duration::ZERO);
    let none = server.client_with(|s| s.idle_connections_max = 0);
    for client in [idle, young, none] {
        let before = server.connections();
        for _ in 0..3 {
            answered(&client, server.post()).await;
        }
        assert_eq!(server.connections(), before + 3);
    }
}

#[tokio::test]
async fn the_number_of_waiting_connections_is_bounded() {
    let server = Server::answering(OK).await;
    let client = server.client_with(|s| s.idle_connections_max = 2);
    for pool in 1..=3 {
        answered(&client, Outbound { pool, ..server.post() }).await;
    }
    until("the third is closed", || server.closed() == 1).await;
    for pool in 1..=3 {
        answered(&client, Outbound { pool, ..server.post() }).await;
    }
    assert_eq!(server.connections(), 4, "two were kept");
}

#[tokio::test]
async fn what_waits_too_long_is_closed_unasked() {
    let server = Server::answering(OK).await;
    let client = server.client_with(|s| s.idle = Duration::from_millis(50));
    answered(&client, server.post()).await;
    until("the connection is closed", || server.closed() == 1).await;
    let client = server.client();
    answered(&client, server.post()).await;
    drop(client);
    until("a dropped client keeps nothing open", || server.closed() == 2).await;
}

#[tokio::test]
async fn a_switch_of_protocols_is_an_answer_and_the_end() {
    let server =
        Server::answering("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n").await;
    let client = server.client();
    for nth in 1..=2 {
        assert_eq!(answered(&client, server.post()).await.status, 101);
        assert_eq!(server.connections(), nth);
    }
}
