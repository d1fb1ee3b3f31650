//! The HTTP edge under peers that break its rules, its sizes and its times.

use crate::ingress::{front, plain, post};
use crate::peer::{Peer, ask};
use hookgate::http::Limits;
use hookgate::ingress::Settings;
use std::time::Duration;

const PLACE: &str = "/in/acme/github";

#[tokio::test]
async fn broken_framing_is_a_400_and_a_close() {
    let front = plain().await;
    let head = format!("POST {PLACE} HTTP/1.1\r\nhost: a\r\n");
    for broken in [
        "content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n0\r\n\r\n",
        "content-length: 1\r\ncontent-length: 2\r\n\r\nx",
        "content-length: 1\r\ncontent-length: 1\r\n\r\nx",
        "content-length: -1\r\n\r\nx",
        "content-length: 1, 1\r\n\r\nx",
        "transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        "x: a\r\n folded\r\ncontent-length: 1\r\n\r\nx",
        "x : a\r\ncontent-length: 1\r\n\r\nx",
        "x: a\rb\r\ncontent-length: 1\r\n\r\nx",
        "x: a\0b\r\ncontent-length: 1\r\n\r\nx",
        "x: a\ncontent-length: 1\r\n\r\nx",
        "host: b\r\ncontent-length: 1\r\n\r\nx",
        "content-length: \x0c1\r\n\r\nx",
        "x\u{e9}y: a\r\n\r\n",
        "x(y): a\r\n\r\n",
        "x: a\u{1}b\r\n\r\n",
        "x: a\x7fb\r\n\r\n",
    ] {
        let mut peer = Peer::connect(front.address).await;
        // What follows must never be taken for a request of its own.
        peer.send(format!("{head}{broken}{}", post(PLACE, "", "smuggled"))).await;
        let reply = peer.reply().await.unwrap_or_else(|| panic!("no answer to {broken:?}"));
        assert_eq!((reply.status, reply.code().as_str()), (400, "malformed_http"), "{broken:?}");
        assert_eq!(reply.header("connection"), Some("close"));
        assert!(peer.is_closed().await, "{broken:?}");
    }
    for line in ["PO(ST /in/a/b", "POST in/a/b", "POST /in/\u{e9}/b", "POST /in/\u{1}/b", "CONNECT a:1"] {
        let mut peer = Peer::connect(front.address).await;
        peer.send(format!("{line} HTTP/1.1\r\nhost: a\r\n\r\n")).await;
        let reply = peer.reply().await.unwrap_or_else(|| panic!("no answer to {line:?}"));
        assert_eq!((reply.status, reply.code().as_str()), (400, "malformed_http"), "{line:?}");
        assert!(peer.is_closed().await, "{line:?}");
    }
    assert_eq!(front.stored(), 0);
}

/// A sender that has said everything may close its half, and is answered.
#[tokio::test]
async fn a_half_closed_connection_is_answered() {
    let front = plain().await;
    let mut peer = Peer::connect(front.address).await;
    peer.send(post(PLACE, "", "x")).await;
    peer.finish().await;
    assert_eq!(peer.reply().await.unwrap().status, 200);
    assert_eq!(front.stored(), 1);
}

/// Whoever is answered before the body has arrived is told that the connection ends.
#[tokio::test]
async fn an_answer_before_the_end_of_the_body_says_that_it_is_the_last() {
    let front = plain().await;
    let mut peer = Peer::connect(front.address).await;
    peer.send("POST /in/acme/nowhere HTTP/1.1\r\nhost: a\r\ncontent-length: 200000\r\n\r\nabc").await;
    let reply = peer.reply().await.unwrap();
    assert_eq!((reply.status, reply.header("connection")), (404, Some("close")));
    assert!(peer.is_closed().await);
}

#[tokio::test]
async fn broken_chunks_are_a_400_and_a_close() {
    let front = plain().await;
    let head = format!("POST {PLACE} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
    for broken in [
        "x\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhelloo\r\n0\r\n\r\n",
        "5\r\nhello\r\n0\r\nx: y\n\r\n",
        "ffffffffffffffff\r\n",
    ] {
        let mut peer = Peer::connect(front.address).await;
        peer.send(format!("{head}{broken}{}", post(PLACE, "", "smuggled"))).await;
        let reply = peer.reply().await.unwrap_or_else(|| panic!("no answer to {broken:?}"));
        assert_eq!((reply.status, reply.code().as_str()), (400, "malformed_body"), "{broken:?}");
        assert!(peer.is_closed().await, "{broken:?}");
    }
    assert_eq!(front.stored(), 0);
}

#[tokio::test]
async fn requests_in_pieces_and_in_a_row_are_each_answered() {
    let front = plain().await;
    let mut peer = Peer::connect(front.address).await;
    let head = format!("POST {PLACE} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
    let chunked = format!("{head}5;x=y\r\nhello\r\n1\r\n!\r\n0\r\nx-sum: 1\r\n\r\n");
    let all = [post(PLACE, "", "one"), chunked, post(PLACE, "", ""), post(PLACE, "", "four")].concat();
    for byte in all.as_bytes() {
        peer.send([*byte]).await;
    }
    for _ in 0..4 {
        assert_eq!(peer.reply().await.unwrap().status, 200);
    }
    peer.send(all).await;
    for _ in 0..4 {
        assert_eq!(peer.reply().await.unwrap().status, 200);
    }
    let bodies: Vec<_> = front.ledger.stored.lock().unwrap().iter().map(|stored| stored.event.body.clone()).collect();
    let expected = ["one", "hello!", "", "four", "one", "hello!", "", "four"];
    assert_eq!(bodies, expected);
}

#[tokio::test]
async fn a_good_request_before_a_bad_one_is_answered_first() {
    let front = plain().await;
    let mut peer = Peer::connect(front.address).await;
    peer.send(format!("{}BAD\r\n\r\n", post(PLACE, "", "good"))).await;
    assert_eq!(peer.reply().await.unwrap().status, 200);
    assert_eq!(peer.reply().await.unwrap().status, 400);
    assert!(peer.is_closed().await);
}

#[tokio::test]
async fn heads_are_bounded() {
    let front = plain().await;
    let many = post(PLACE, &"x: y\r\n".repeat(63), "x");
    let large = post(PLACE, &format!("x: {}\r\n", "y".repeat(33_000)), "x");
    let long = post(&format!("{PLACE}?{}", "a".repeat(8_200)), "", "x");
    for (request, status, code) in
        [(many, 431, "too_many_headers"), (large, 431, "head_too_large"), (long, 414, "uri_too_long")]
    {
        let mut peer = Peer::connect(front.address).await;
        peer.try_send(request).await;
        let reply = peer.reply().await.unwrap();
        assert_eq!((reply.status, reply.code().as_str()), (status, code));
        assert!(peer.is_closed().await);
    }
    let as_many = post(PLACE, &"x: y\r\n".repeat(62), "x");
    let as_long = post(&format!("{PLACE}?{}", "a".repeat(8_192 - PLACE.len() - 1)), "", "x");
    let as_large = post(PLACE, &format!("x: {}\r\n", "y".repeat(32_000)), "x");
    for request in [as_many, as_long, as_large] {
        assert_eq!(ask(front.address, request).await.status, 200);
    }
}

#[tokio::test]
async fn sizes_are_settings() {
    let limits = Limits { head_bytes_max: 300, headers_max: 5, uri_bytes_max: 30, ..Limits::default() };
    let front = front(Settings::default(), limits).await;
    for (place, headers, status) in [
        (PLACE.to_owned(), "x: y\r\n".repeat(3), 200),
        (PLACE.to_owned(), "x: y\r\n".repeat(4), 431),
        (PLACE.to_owned(), format!("x: {}\r\n", "y".repeat(300)), 431),
        (format!("{PLACE}?{}", "a".repeat(14)), String::new(), 200),
        (format!("{PLACE}?{}", "a".repeat(15)), String::new(), 414),
    ] {
        let reply = ask(front.address, post(&place, &headers, "x")).await;
        assert_eq!(reply.status, status, "{place} {headers}");
    }
}

#[tokio::test]
async fn slow_heads_and_bodies_end_in_time() {
    let short = Duration::from_millis(50);
    let limits = Limits { head_timeout: short, body_timeout: short, ..Limits::default() };
    let front = front(Settings::default(), limits).await;
    let mut silent = Peer::connect(front.address).await;
    assert!(silent.is_closed().await, "a connection that says nothing");
    let mut half = Peer::connect(front.address).await;
    half.send("POST /in/acme/github HT").await;
    assert_eq!(half.reply().await.unwrap().code(), "head_timeout");
    assert!(half.is_closed().await);
    // Not the first request of its connection either.
    let mut second = Peer::connect(front.address).await;
    second.send(format!("{}POST ", post(PLACE, "", "x"))).await;
    assert_eq!(second.reply().await.unwrap().status, 200);
    assert_eq!(second.reply().await.unwrap().code(), "head_timeout");
    for framing in ["content-length: 10\r\n\r\nhalf", "transfer-encoding: chunked\r\n\r\n5\r\nha"] {
        let mut body = Peer::connect(front.address).await;
        body.send(format!("POST {PLACE} HTTP/1.1\r\nhost: a\r\n{framing}")).await;
        let reply = body.reply().await.unwrap();
        assert_eq!((reply.status, reply.code().as_str()), (408, "body_timeout"), "{framing:?}");
        assert!(body.is_closed().await);
    }
    assert_eq!(front.stored(), 1);
}

#[tokio::test]
async fn many_half_heads_hold_nobody_up() {
    let limits = Limits { head_timeout: Duration::from_millis(500), ..Limits::default() };
    let front = front(Settings::default(), limits).await;
    let mut halves = Vec::new();
    for _ in 0..150 {
        let mut half = Peer::connect(front.address).await;
        half.send("POST /in/acme/github HTTP/1.1\r\nhost").await;
        halves.push(half);
    }
    assert_eq!(ask(front.address, post(PLACE, "", "x")).await.status, 200);
    for mut half in halves {
        assert_eq!(half.reply().await.unwrap().code(), "head_timeout");
        assert!(half.is_closed().await);
    }
}

#[tokio::test]
async fn a_dribbled_head_gets_no_more_time() {
    let limits = Limits { head_timeout: Duration::from_millis(100), ..Limits::default() };
    let front = front(Settings::default(), limits).await;
    let mut peer = Peer::connect(front.address).await;
    peer.send("GET / HTTP/1.1\r\n").await;
    let begun = tokio::time::Instant::now();
    while begun.elapsed() < Duration::from_secs(10) {
        peer.try_send("x: y\r\n").await;
        tokio::time::sleep(Duration::from_millis(5)).await; // plays the peer: a dribble
        if begun.elapsed() > Duration::from_millis(150) {
            break;
        }
    }
    assert_eq!(peer.reply().await.unwrap().code(), "head_timeout");
}

#[tokio::test]
async fn idle_connections_are_closed_and_busy_ones_are_not() {
    let limits = Limits { idle_timeout: Duration::from_millis(50), ..Limits::default() };
    let front = front(Settings::default(), limits).await;
    let mut peer = Peer::connect(front.address).await;
    let held = front.ledger.hold.write().await;
    peer.send(post(PLACE, "", "x")).await;
    // Longer than an idle connection lasts.
    tokio::time::sleep(Duration::from_millis(150)).await; // plays the peer: silent for longer than an idle connection lasts
    drop(held);
    assert_eq!(peer.reply().await.unwrap().status, 200);
    assert!(peer.is_closed().await);
}

#[tokio::test]
async fn the_connection_cap_holds_and_makes_room_again() {
    let limits = Limits { connections_max: 2, ..Limits::default() };
    let front = front(Settings::default(), limits).await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut peer = Peer::connect(front.address).await;
        peer.send(post(PLACE, "", "x")).await;
        assert_eq!(peer.reply().await.unwrap().status, 200);
        open.push(peer);
    }
    assert!(Peer::connect(front.address).await.is_closed().await);
    open.pop();
    // The place is free once the server has seen the close.
    let deadline = tokio::time::Instant::now() + crate::peer::PATIENCE;
    loop {
        assert!(tokio::time::Instant::now() < deadline);
        let mut peer = Peer::connect(front.address).await;
        peer.try_send(post(PLACE, "", "x")).await;
        if peer.reply().await.is_some_and(|reply| reply.status == 200) {
            break;
        }
    }
}

#[tokio::test]
async fn the_cap_per_address_holds() {
    let limits = Limits { connections_per_address_max: Some(1), ..Limits::default() };
    let front = front(Settings::default(), limits).await;
    let mut first = Peer::connect(front.address).await;
    first.send(post(PLACE, "", "x")).await;
    assert_eq!(first.reply().await.unwrap().status, 200);
    assert!(Peer::connect(front.address).await.is_closed().await);
}

#[tokio::test]
async fn a_stop_finishes_what_is_under_way_and_closes_the_rest() {
    let front = plain().await;
    let mut idle = Peer::connect(front.address).await;
    idle.send(post(PLACE, "", "first")).await;
    assert_eq!(idle.reply().await.unwrap().status, 200);
    let fresh = Peer::connect(front.address).await;
    let held = front.ledger.hold.write().await;
    let mut busy = Peer::connect(front.address).await;
    busy.send(post(PLACE, "", "under way")).await;
    tokio::time::timeout(crate::peer::PATIENCE, async {
        while front.ledger.waiting() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    front.stop.cancel();
    assert!(idle.is_closed().await);
    let mut fresh = fresh;
    assert!(fresh.is_closed().await);
    assert!(!front.served.is_finished());
    drop(held);
    let reply = busy.reply().await.unwrap();
    assert_eq!(reply.status, 200);
    assert!(busy.is_closed().await);
    tokio::time::timeout(crate::peer::PATIENCE, front.served).await.unwrap().unwrap();
    assert_eq!(front.ledger.stored.lock().unwrap().len(), 2);
    assert!(tokio::net::TcpStream::connect(front.address).await.is_err());
}
