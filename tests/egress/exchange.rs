//! One request, one answer: limits, faults, and what is honestly known of each.

use crate::server::{OK, Server, answered, failed, post, until};
use hookgate::delivery::{Phase, TransportKind};
use hookgate::egress::{Client, Error, Exchange, Outbound, Settings, Transport};
use http::{HeaderMap, HeaderValue, Method};
use std::time::{Duration, Instant};

#[tokio::test]
async fn an_answer_and_the_request_that_led_to_it() {
    let server = Server::answering("HTTP/1.1 202 Accepted\r\nx-a: 1\r\nx-a: 2\r\ncontent-length: 4\r\n\r\ndone").await;
    let client = server.client();
    let mut request = server.post();
    request.url.set_path("/a b/ü");
    request.url.set_query(Some("q=1&r='x'"));
    request.headers.insert("webhook-id", HeaderValue::from_static("dlv_1"));
    let answer = answered(&client, request).await;
    assert_eq!(answer.status, 202);
    assert_eq!(answer.headers.get_all("x-a").iter().collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!((&answer.body[..], answer.body_truncated), (&b"done"[..], false));
    assert!(answer.timings.connect.is_some() && answer.timings.head.is_some() && !answer.timings.reused);
    assert!(answer.timings.dns.is_none() && answer.timings.tls.is_none());
    assert!(answer.elapsed >= answer.timings.head.unwrap());
    let [sent] = &server.requests()[..] else { panic!("one request") };
    assert!(sent.starts_with("POST /a%20b/%C3%BC?q=1&r=%27x%27 HTTP/1.1\r\n"), "{sent}");
    assert!(sent.contains("webhook-id: dlv_1\r\n") && sent.contains("content-length: 5\r\n"), "{sent}");
    assert!(sent.contains(&format!("host: {}\r\n", server.addr)), "{sent}");
    assert!(sent.ends_with("\r\n\r\nhello"), "{sent}");
}

#[tokio::test]
async fn framing_is_ours_whatever_headers_are_asked_for() {
    let server = Server::answering(OK).await;
    let client = server.client();
    let mut request = server.post();
    for (name, value) in [
        ("host", "elsewhere.example"),
        ("content-length", "3"),
        ("transfer-encoding", "chunked"),
        ("connection", "close, webhook-id"),
        ("upgrade", "websocket"),
        ("expect", "100-continue"),
        ("te", "trailers"),
        ("trailer", "x"),
        ("keep-alive", "timeout=9"),
        ("proxy-connection", "close"),
    ] {
        request.headers.insert(name, HeaderValue::from_static(value));
    }
    answered(&client, request).await;
    let [sent] = &server.requests()[..] else { panic!("one request") };
    let mut lines: Vec<_> = sent.split("\r\n").collect();
    lines.sort_unstable();
    let host = format!("host: {}", server.addr);
    assert_eq!(lines, ["", "POST /hook HTTP/1.1", "content-length: 5", "hello", &host]);
}

#[tokio::test]
async fn methods_without_a_body() {
    let server = Server::answering("HTTP/1.1 204 No Content\r\n\r\n").await;
    let client = server.client();
    for method in [Method::GET, Method::DELETE, Method::PUT] {
        let request = Outbound { method, body: "".into(), ..server.post() };
        let answer = answered(&client, request).await;
        assert_eq!((answer.status.as_u16(), answer.body.len()), (204, 0));
    }
    let connect = Outbound { method: Method::CONNECT, ..server.post() };
    let (kind, phase, _) = failed(&client, connect).await;
    assert_eq!((kind, phase), (TransportKind::Protocol, Phase::BeforeWrite));
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn a_redirect_is_an_answer() {
    let elsewhere = Server::answering(OK).await;
    let target = format!("HTTP/1.1 307 X\r\nlocation: http://{}/\r\ncontent-length: 0\r\n\r\n", elsewhere.addr);
    let server = Server::answering(target).await;
    let client = server.client_with(|s| s.allow.push(elsewhere.rule().parse().unwrap()));
    let answer = answered(&client, server.post()).await;
    assert_eq!(answer.status, 307);
    assert_eq!((server.requests().len(), elsewhere.connections()), (1, 0));
}

#[tokio::test]
async fn compressed_bodies_stay_as_they_came() {
    let gzip = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x4b\xcc\x04\x00\x00\x00\x00\x00";
    let mut said =
        format!("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n", gzip.len()).into_bytes();
    said.extend_from_slice(gzip);
    let server = Server::answering(said).await;
    let answer = answered(&server.client(), server.post()).await;
    assert_eq!(&answer.body[..], gzip);
    assert_eq!(answer.headers["content-encoding"], "gzip");
}

#[tokio::test]
async fn resets_at_each_phase() {
    // What the receiver does; whether it has the request; what is known of it.
    let on_accept = Server::start(|peer| async move { peer.reset() }).await;
    let (kind, _, detail) = failed(&on_accept.client(), on_accept.post()).await;
    assert_eq!(kind, TransportKind::Reset, "{detail}");
    assert_eq!(on_accept.connections(), 1);

    let on_first_byte = Server::start(|mut peer| async move {
        peer.first_byte().await;
        peer.reset();
    })
    .await;
    let on_request = Server::start(|mut peer| async move {
        peer.request().await;
        peer.reset();
    })
    .await;
    let in_head = Server::start(|mut peer| async move {
        peer.request().await;
        peer.say(b"HTTP/1.1 200 OK\r\ncontent-le").await;
        peer.reset();
    })
    .await;
    let closed_in_head = Server::start(|mut peer| async move {
        peer.request().await;
        peer.say(b"HTTP/1.1 200 OK\r\ncontent-le").await;
        peer.close();
    })
    .await;
    let closed_on_request = Server::start(|mut peer| async move {
        peer.request().await;
        peer.close();
    })
    .await;
    for server in [on_first_byte, on_request, in_head, closed_in_head, closed_on_request] {
        let (kind, phase, detail) = failed(&server.client(), server.post()).await;
        assert_eq!((kind, phase), (TransportKind::Reset, Phase::AfterWrite), "{detail}");
        assert!(!detail.contains("127.0.0.1"), "{detail}");
        assert_eq!(server.connections(), 1, "no second try");
    }
}

#[tokio::test]
async fn a_broken_body_is_a_body_cut_short() {
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc";
    let reset = Server::start(move |mut peer| async move {
        peer.request().await;
        peer.say(head.as_bytes()).await;
        peer.reset();
    })
    .await;
    let closed = Server::start(move |mut peer| async move {
        peer.request().await;
        peer.say(head.as_bytes()).await;
        peer.close();
    })
    .await;
    let garbled = Server::answering("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n").await;
    for server in [&closed, &garbled] {
        let answer = answered(&server.client(), server.post()).await;
        assert_eq!((answer.status.as_u16(), &answer.body[..], answer.body_truncated), (200, &b"abc"[..], true));
    }
    // A reset may overtake what was sent before it: then even the head is lost.
    match reset.client().send(reset.post()).await {
        Exchange::Answered(answer) => assert!(answer.body_truncated),
        Exchange::Failed(failure) => assert_eq!(failure.phase, Phase::AfterWrite),
        Exchange::Refused { detail, .. } => panic!("{detail}"),
    }
}

#[tokio::test]
async fn stalls_end_at_the_deadline() {
    let timeout = Duration::from_millis(300);
    let silent = Server::start(|mut peer| async move {
        peer.request().await;
        peer.hold().await;
    })
    .await;
    let in_head = Server::start(|mut peer| async move {
        peer.request().await;
        peer.say(b"HTTP/1.1 200 OK\r\nx:").await;
        peer.hold().await;
    })
    .await;
    for server in [silent, in_head] {
        let started = Instant::now();
        let request = Outbound { timeout, ..server.post() };
        let (kind, phase, detail) = failed(&server.client(), request).await;
        assert_eq!((kind, phase), (TransportKind::Timeout, Phase::AfterWrite), "{detail}");
        assert!(started.elapsed() >= timeout);
        until("the connection is given up", || server.closed() == 1).await;
    }
    let in_body = Server::start(|mut peer| async move {
        peer.request().await;
        peer.say(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc").await;
        peer.hold().await;
    })
    .await;
    let request = Outbound { timeout, ..in_body.post() };
    let answer = answered(&in_body.client(), request).await;
    assert_eq!((&answer.body[..], answer.body_truncated), (&b"abc"[..], true));
    assert!(answer.elapsed >= timeout && answer.timings.head.unwrap() < timeout);
    until("the connection is given up", || in_body.closed() == 1).await;
}

#[tokio::test]
async fn a_drip_does_not_stretch_the_deadline() {
    let timeout = Duration::from_millis(300);
    let server = Server::start(|mut peer| async move {
        peer.request().await;
        peer.say(b"HTTP/1.1 200 OK\r\nx: ").await;
        loop {
            tokio::time::sleep(Duration::from_millis(20)).await; // plays the peer: a drip
            let Ok(()) = tokio::io::AsyncWriteExt::write_all(&mut peer.stream, b"y").await else { return peer.close() };
        }
    })
    .await;
    let started = Instant::now();
    let request = Outbound { timeout, ..server.post() };
    let (kind, phase, _) = failed(&server.client(), request).await;
    assert_eq!((kind, phase), (TransportKind::Timeout, Phase::AfterWrite));
    assert!(started.elapsed() >= timeout && started.elapsed() < Duration::from_secs(10));
    until("the connection is given up", || server.closed() == 1).await;
}

#[tokio::test]
async fn a_request_that_the_receiver_does_not_read() {
    let server = Server::start(|peer| async move {
        std::future::pending::<()>().await;
        peer.close();
    })
    .await;
    let body = vec![b'x'; 32 << 20].into();
    let request = Outbound { timeout: Duration::from_millis(300), body, ..server.post() };
    let (kind, phase, _) = failed(&server.client(), request).await;
    assert_eq!((kind, phase), (TransportKind::Timeout, Phase::AfterWrite));
}

#[tokio::test]
async fn bodies_are_cut() {
    let body = |n: usize| {
        let mut said = format!("HTTP/1.1 200 OK\r\ncontent-length: {n}\r\n\r\n").into_bytes();
        said.resize(said.len() + n, b'x');
        said
    };
    // Bytes sent, bytes kept, whether the connection goes on.
    for (sent, kept, reused) in
        [(0, 0, true), (1000, 1000, true), (1001, 1000, true), (64 << 10, 1000, true), ((64 << 10) + 1, 1000, false)]
    {
        let server = Server::answering(body(sent)).await;
        let client = server.client();
        for _ in 0..2 {
            let request = Outbound { body_kept_max: 1000, ..server.post() };
            let answer = answered(&client, request).await;
            assert_eq!((answer.body.len(), answer.body_truncated), (kept, sent > kept), "{sent}");
        }
        assert_eq!(server.connections(), if reused { 1 } else { 2 }, "{sent}");
    }
    let server = Server::answering(body(300)).await;
    let client = server.client_with(|s| s.body_read_max = 100);
    let answer = answered(&client, server.post()).await;
    assert_eq!((answer.body.len(), answer.body_truncated), (100, true));
}

#[tokio::test]
async fn endless_bodies_are_cut() {
    for (head, piece) in [
        ("HTTP/1.1 200 OK\r\n\r\n", "x".repeat(1000)),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", format!("3e8\r\n{}\r\n", "x".repeat(1000))),
        ("HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n", "x".repeat(1000)),
    ] {
        let server = Server::start(move |mut peer| {
            let piece = piece.clone();
            async move {
                peer.request().await;
                peer.say(head.as_bytes()).await;
                peer.say_forever(piece.as_bytes()).await;
            }
        })
        .await;
        let answer = answered(&server.client(), server.post()).await;
        assert_eq!((answer.body.len(), answer.body_truncated), (16 << 10, true));
        until("the connection is given up", || server.closed() == 1).await;
    }
}

#[tokio::test]
async fn a_body_that_ends_with_the_connection_is_whole() {
    let server = Server::start(|mut peer| async move {
        peer.request().await;
        peer.say(b"HTTP/1.0 200 OK\r\n\r\nold").await;
        peer.close();
    })
    .await;
    let answer = answered(&server.client(), server.post()).await;
    assert_eq!((&answer.body[..], answer.body_truncated), (&b"old"[..], false));
}

#[tokio::test]
async fn heads_have_a_limit() {
    let head = |bytes: usize| {
        let frame = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx: \r\n\r\n".len();
        format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx: {}\r\n\r\n", "y".repeat(bytes - frame))
    };
    for (max, bytes, fits) in [(32 << 10, 32 << 10, true), (32 << 10, (32 << 10) + 1, false), (8192, 9000, false)] {
        let server = Server::answering(head(bytes)).await;
        let client = server.client_with(|s| s.head_bytes_max = max);
        if fits {
            assert_eq!(answered(&client, server.post()).await.status, 200);
        } else {
            let (kind, phase, detail) = failed(&client, server.post()).await;
            assert_eq!((kind, phase), (TransportKind::Protocol, Phase::AfterWrite), "{detail}");
            assert!(detail.contains("limit"), "{detail}");
        }
    }
    let endless = Server::start(|mut peer| async move {
        peer.request().await;
        peer.say(b"HTTP/1.1 200 OK\r\nx: ").await;
        peer.say_forever(&[b'y'; 1000]).await;
    })
    .await;
    let (kind, ..) = failed(&endless.client(), endless.post()).await;
    assert_eq!(kind, TransportKind::Protocol);
    until("the connection is given up", || endless.closed() == 1).await;
}

#[tokio::test]
async fn a_long_head_with_a_long_body_is_no_overrun() {
    let said = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nx: {}\r\n\r\n{}",
        64 << 10,
        "y".repeat(31 << 10),
        "z".repeat(64 << 10)
    );
    let server = Server::answering(said).await;
    let client = server.client();
    for _ in 0..20 {
        let answer = answered(&client, server.post()).await;
        assert_eq!((answer.body.len(), answer.body_truncated), (16 << 10, true));
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn informational_responses_are_skipped_up_to_a_limit() {
    let some = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n".repeat(5);
    let server = Server::answering([some.as_bytes(), OK].concat()).await;
    let client = server.client();
    for _ in 0..2 {
        let answer = answered(&client, server.post()).await;
        assert_eq!((answer.status.as_u16(), &answer.body[..]), (200, &b"ok"[..]));
    }
    assert_eq!(server.connections(), 1);
    let flood = Server::start(|mut peer| async move {
        peer.request().await;
        peer.say_forever(b"HTTP/1.1 100 Continue\r\n\r\n").await;
    })
    .await;
    let (kind, phase, detail) = failed(&flood.client(), flood.post()).await;
    assert_eq!((kind, phase), (TransportKind::Protocol, Phase::AfterWrite), "{detail}");
    until("the connection is given up", || flood.closed() == 1).await;
}

#[tokio::test]
async fn what_is_not_http() {
    for said in [
        "SSH-2.0-OpenSSH_9.6\r\n",
        "hello\r\n\r\n",
        "HTTP/2 200 OK\r\n\r\n",
        "HTTP/1.1 abc\r\n\r\n",
        "HTTP/1.1 200 OK\r\nbad header: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nx: a\r\n folded\r\n\r\n",
        "HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n",
    ] {
        let server = Server::answering(said).await;
        let (kind, phase, detail) = failed(&server.client(), server.post()).await;
        assert_eq!((kind, phase), (TransportKind::Protocol, Phase::AfterWrite), "{said:?}: {detail}");
        assert_eq!(server.requests().len(), 1, "{said:?}");
    }
}

#[tokio::test]
async fn nothing_listens() {
    let server = Server::answering(OK).await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = server.client_with(|s| s.allow = vec![format!("{}/32:{}", free.ip(), free.port()).parse().unwrap()]);
    let (kind, phase, detail) = failed(&client, post(&format!("http://{free}/"))).await;
    assert_eq!((kind, phase), (TransportKind::Connect, Phase::BeforeWrite));
    assert_eq!(detail, "connect: connection refused");
}

#[test]
fn a_head_limit_that_cannot_hold() {
    let settings = Settings { head_bytes_max: 100, ..Settings::default() };
    let error = Client::new(&settings).err().unwrap();
    assert!(matches!(error, Error::HeadLimit { given: 100, .. }), "{error}");
}

#[test]
fn debug_prints_show_no_content() {
    let mut headers = HeaderMap::new();
    headers.insert("webhook-signature", HeaderValue::from_static("v1,secret"));
    let mut request = post("https://example.com/path-secret");
    request.headers = headers;
    request.body = "body-secret".into();
    let shown = format!("{request:?}");
    assert!(!shown.contains("secret"), "{shown}");
}

#[tokio::test]
async fn proxy_variables_are_ignored() {
    // The environment is the process's: another test runs in a child that has the variables.
    let proxy = Server::answering(OK).await;
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "exchange::an_answer_and_the_request_that_led_to_it"]);
    for name in ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        child.env(name, format!("http://{}", proxy.addr));
    }
    let output = tokio::task::spawn_blocking(move || child.output().unwrap()).await.unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
    assert_eq!(proxy.connections(), 0);
}
