//! The command line from outside: golden help, exit codes, and every client command against a small server.

mod again;
mod alerts;
mod dead_letters;
mod plugins;
mod pull;
mod sources;
mod stats;

use super::*;
use crate::clock::Timestamp;
use crate::config::Env;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::io::{BufRead as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// What a command line left behind.
#[derive(Debug)]
struct Ran {
    exit: Exit,
    out: String,
    err: String,
}

/// How the streams look to the command.
#[derive(Clone, Copy, Default)]
struct Around<'a> {
    terminal: bool,
    input: &'a str,
}

fn run_in(around: Around<'_>, env: &[(&str, &str)], args: &[&str]) -> Ran {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut input = around.input.as_bytes();
    let streams = Streams {
        out: &mut out,
        err: &mut err,
        input: &mut input,
        out_is_terminal: around.terminal,
        err_is_terminal: around.terminal,
        input_is_terminal: around.terminal,
        colour: false,
        width: around.terminal.then_some(120),
    };
    let args = std::iter::once("hookgate").chain(args.iter().copied()).map(OsString::from);
    let exit = main(args, Env::from_pairs(env.iter().copied()), streams);
    Ran { exit, out: String::from_utf8(out).unwrap(), err: String::from_utf8(err).unwrap() }
}

fn run(env: &[(&str, &str)], args: &[&str]) -> Ran {
    run_in(Around::default(), env, args)
}

/// One request as it arrived.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    line: String,
    token: String,
    request_id: String,
    body: Value,
}

type Answers = fn(&str) -> (u16, String);

/// An admin API that answers by table and remembers what it was asked.
struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    _runtime: tokio::runtime::Runtime,
}

impl Server {
    fn start(answers: Answers) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let log = Arc::clone(&seen);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let log = Arc::clone(&log);
                let service = service_fn(move |request| answer(request, Arc::clone(&log), answers));
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Server { address, seen, _runtime: runtime }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.run_in(Around::default(), args)
    }

    fn run_in(&self, around: Around<'_>, args: &[&str]) -> Ran {
        let env =
            [("HOOKGATE_URL", self.url()), ("HOOKGATE_TOKEN", "t0ken".into()), ("HOOKGATE_TENANT", "acme".into())];
        run_in(around, &env.each_ref().map(|(k, v)| (*k, v.as_str())), args)
    }

    fn lines(&self) -> Vec<String> {
        self.seen.lock().unwrap().iter().map(|seen| seen.line.clone()).collect()
    }

    fn last(&self) -> Seen {
        self.seen.lock().unwrap().last().unwrap().clone()
    }
}

async fn answer(
    request: Request<Incoming>,
    log: Arc<Mutex<Vec<Seen>>>,
    answers: Answers,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let line = format!("{} {}", head.method, head.uri);
    let header = |name: &str| head.headers.get(name).map_or("", |v| v.to_str().unwrap()).to_owned();
    let (token, request_id) = (header("authorization"), header("idempotency-key"));
    let body = body.collect().await.unwrap().to_bytes();
    let (status, text) = answers(&line);
    log.lock().unwrap().push(Seen { line, token, request_id, body: serde_json::from_slice(&body).unwrap_or_default() });
    Ok(Response::builder().status(status).body(Full::new(text.into())).unwrap())
}

const T: &str = "/v1/tenants/acme";

fn delivery(id: &str, state: &str) -> Value {
    json!({"id": id, "event": "evt_1", "event_type": "push\u{1b}[2J", "endpoint": "billing", "state": state,
           "attempt_count": 2, "last_status": 500, "reason": "http_500", "note": "seen",
           "idempotency_key": "order-7", "created_at": "2026-01-31T08:00:00.000Z",
           "attempts": [
             {"number": 1, "generation": 1, "started_at": "2026-01-31T08:00:00.000Z", "duration_ms": 40,
              "outcome": "answered", "status": 500, "verdict": "retryable", "disposition": "retry_at"},
             {"number": 2, "generation": 1, "started_at": "2026-01-31T08:00:30.000Z", "duration_ms": 80,
              "outcome": "timed_out", "disposition": "dead", "decided_by": "builtin", "detail": "no answer in 15 s",
              "response_body": format!("\u{1b}{}", "x".repeat(500)),
              "plugin_log": [{"level": "warn", "message": "odd\u{7}"}], "plugin_log_dropped": 3}]})
}

fn event() -> Value {
    json!({"id": "evt_1", "type": "push", "source": "github", "accepted_at": "2026-01-31T08:00:00.000Z"})
}

fn ordinary(line: &str) -> (u16, String) {
    let (method, path) = line.split_once(' ').unwrap();
    let path = path.strip_prefix(T).unwrap_or(path);
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let body = match (method, path) {
        ("GET", "/deliveries" | "/dlq") if query.contains("cursor=p2") => {
            json!({"items": [delivery("dlv_3", "dead")], "next": null})
        }
        ("GET", "/deliveries" | "/dlq") => {
            json!({"items": [delivery("dlv_1", "dead"), delivery("dlv_2", "pending")], "next": "p2"})
        }
        ("GET", "/deliveries/dlv_1") => delivery("dlv_1", "dead"),
        ("GET", "/deliveries/dlv_1/body") => return (200, format!("{{\"q\":\"{query}\u{1b}\"}}")),
        ("GET", "/dlq/groups") => {
            json!({"items": [{"host": "x.example", "status": 500, "reason": "http_500", "count": 3,
                              "oldest_at": "2026-01-31T08:00:00.000Z", "sample": "dlv_1"}], "next": null})
        }
        ("GET", "/events") => json!({"items": [event()], "next": null}),
        ("GET", "/events/evt_1") => event(),
        ("GET", "/events/evt_1/body") => return (200, "{\"a\":\"\u{1b}\"}".into()),
        ("POST", "/events") => json!({"event": "evt_9", "duplicate": true}),
        ("GET", "/endpoints") => {
            json!({"items": [{"name": "billing", "status": "paused", "why": "operator", "pending": 37, "dead": 41}], "next": null})
        }
        ("GET", "/endpoints/billing") => json!({"name": "billing", "status": "enabled", "url": "https://x.example",
                                                 "pending": 1, "available": 2, "in_flight": 3, "dead": 4}),
        ("GET", "/sources") => {
            json!({"items": [{"name": "github", "scheme": "github", "secret_count": 2}], "next": null})
        }
        ("GET", "/sources/github") => json!({"name": "github", "scheme": "github", "secret_count": 2, "dedup": "body"}),
        ("POST", "/sources/asana/forget-secret") => json!({"name": "asana", "adoption": "awaited"}),
        ("GET", "/rejections") => {
            json!({"items": [{"at": "2026-01-31T08:00:00.000Z", "source": "github", "reason": "timestamp_too_old",
                              "step": "timestamp", "detail": "sig:t is\u{1b} 400 s old", "skew_seconds": 400,
                              "peer": "192.0.2.7", "body_bytes": 12, "body_digest": "00ff"}], "next": null})
        }
        ("POST", "/endpoints/billing/pause") => json!({"name": "billing", "status": "paused"}),
        ("POST", "/endpoints/billing/resume" | "/endpoints/billing/enable") => {
            json!({"name": "billing", "status": "enabled"})
        }
        ("POST", "/endpoints/billing/disable") => return (204, String::new()),
        ("POST", "/deliveries/dlv_1/redrive") => json!({"id": "dlv_1", "state": "pending"}),
        ("POST", "/deliveries/dlv_1/cancel") => json!({"id": "dlv_1", "state": "cancelled"}),
        ("POST", "/deliveries/dlv_1/resolve") => json!({"id": "dlv_1", "state": "resolved"}),
        ("POST", "/deliveries/dlv_2/redrive") => {
            return (409, json!({"detail": "not dead", "code": "wrong_state"}).to_string());
        }
        _ => return (404, json!({"detail": "there is nothing here", "code": "not_found"}).to_string()),
    };
    (200, body.to_string())
}

#[test]
fn lists_go_over_pages() {
    let server = Server::start(ordinary);
    let ran = server.run(&["delivery", "list", "--quiet"]);
    assert_eq!((ran.exit, ran.out.as_str(), ran.err.as_str()), (Exit::Done, "dlv_1\ndlv_2\ndlv_3\n", ""));
    assert_eq!(
        server.lines(),
        [format!("GET {T}/deliveries?limit=50"), format!("GET {T}/deliveries?limit=48&cursor=p2")]
    );
    assert_eq!(server.last().token, "Bearer t0ken");
    let json: Value = serde_json::from_str(&server.run(&["delivery", "list", "--json", "--limit=2"]).out).unwrap();
    assert_eq!(json["items"].as_array().unwrap().len(), 2);
    assert_eq!(json["next"], "p2");
}

#[test]
fn every_filter_is_passed_on() {
    let server = Server::start(ordinary);
    let filters = [
        "--state=dead",
        "--endpoint=a",
        "--source=b",
        "--type=c d",
        "--key=e&f",
        "--event=evt_1",
        "--reason=h",
        "--status=500",
        "--since=2026-01-01T00:00:00Z",
        "--until=2026-02-01T00:00:00Z",
        "--q=x",
    ];
    let ran = server.run(&[&["delivery", "list"], &filters[..], &["--limit=1"]].concat());
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    let line = server.last().line;
    let query = line.split_once('?').unwrap().1;
    assert_eq!(
        query,
        "state=dead&endpoint=a&source=b&type=c+d&key=e%26f&event=evt_1&reason=h&status=500\
         &since=2026-01-01T00%3A00%3A00Z&until=2026-02-01T00%3A00%3A00Z&q=x&limit=1"
    );
    assert_eq!(server.run(&["delivery", "list", "--state=lost"]).exit, Exit::Usage);
}

#[test]
fn tables_show_text_and_nothing_that_acts() {
    let server = Server::start(ordinary);
    let ran = server.run(&["delivery", "list", "--limit=2"]);
    assert!(ran.out.contains("DELIVERY") && ran.out.contains("dlv_2"), "{}", ran.out);
    assert!(!ran.out.contains('\u{1b}') && ran.out.contains("\\u{1b}"), "{}", ran.out);
    let ran = server.run(&["delivery", "get", "dlv_1"]);
    assert!(ran.out.contains("+30.0s") && ran.out.contains("timed_out") && ran.out.contains('▇'), "{}", ran.out);
    assert!(!ran.out.contains('\u{1b}'));
    for told in [
        "idempotency_key  order-7\n",
        "note             seen\n",
        "#2 detail  no answer in 15 s\n",
        &format!("#2 answer  \\u{{1b}}{} …\n", "x".repeat(399)),
        "#2 log     warn: odd\\u{7}\n",
        "#2 log     … and 3 more",
        "BY",
        "builtin",
    ] {
        assert!(ran.out.contains(told), "{told}: {}", ran.out);
    }
    assert!(!ran.out.contains("#1 "), "{}", ran.out);
    assert!(server.run(&["dlq", "groups"]).out.contains("x.example"));
    assert_eq!(server.run(&["dlq", "groups", "--quiet"]).out, "dlv_1\n");
    for args in [&["event", "list"][..], &["event", "get", "evt_1"]] {
        let out = server.run(args).out;
        assert!(["evt_1", "push", "2026-01-31T08:00:00.000Z"].iter().all(|told| out.contains(told)), "{out}");
    }
    let endpoints = server.run(&["endpoint", "list"]).out;
    assert!(["operator", "PENDING", "37", "DEAD", "41"].iter().all(|told| endpoints.contains(told)), "{endpoints}");
    let endpoint = server.run(&["endpoint", "get", "billing"]).out;
    for field in ["pending    1", "available  2", "in_flight  3", "dead       4"] {
        assert!(endpoint.contains(field), "{endpoint}");
    }
    assert!(server.run(&["endpoint", "get", "billing"]).out.contains("https://x.example"));
    assert_eq!(server.run(&["endpoint", "list", "-q"]).out, "billing\n");
}

#[test]
fn bodies_are_bytes_off_a_terminal_and_text_on_one() {
    let server = Server::start(ordinary);
    assert_eq!(server.run(&["event", "body", "evt_1"]).out, "{\"a\":\"\u{1b}\"}");
    let around = Around { terminal: true, input: "" };
    assert_eq!(server.run_in(around, &["event", "body", "evt_1"]).out, "{\"a\":\"\\u{1b}\"}\n");
    assert_eq!(server.run(&["delivery", "body", "dlv_1"]).out, "{\"q\":\"\u{1b}\"}");
    let first = server.run_in(around, &["delivery", "body", "dlv_1", "--revision=1"]);
    assert_eq!(first.out, "{\"q\":\"revision=1\\u{1b}\"}\n");
}

#[test]
fn verbs_send_what_they_say() {
    let server = Server::start(ordinary);
    for (args, line, body, out) in [
        (
            &["delivery", "redrive", "dlv_1", "--note=n", "--payload={\"a\":1}"][..],
            "/deliveries/dlv_1/redrive",
            json!({"note": "n", "payload": {"a": 1}}),
            "dlv_1  pending\n",
        ),
        (&["delivery", "cancel", "dlv_1", "--yes"], "/deliveries/dlv_1/cancel", json!({}), "dlv_1  cancelled\n"),
        (
            &["delivery", "resolve", "dlv_1", "--as=not_sent", "--note=n", "-y"],
            "/deliveries/dlv_1/resolve",
            json!({"as": "not_sent", "note": "n"}),
            "dlv_1  resolved\n",
        ),
        (
            &["endpoint", "pause", "billing", "--until=2026-02-01T00:00:00Z", "--why=works"],
            "/endpoints/billing/pause",
            json!({"until": "2026-02-01T00:00:00.000Z", "why": "works"}),
            "billing  paused\n",
        ),
        (
            &["endpoint", "disable", "billing", "-y", "--why=gone"],
            "/endpoints/billing/disable",
            json!({"why": "gone"}),
            "billing  disable\n",
        ),
        (&["endpoint", "pause", "billing"], "/endpoints/billing/pause", json!({}), "billing  paused\n"),
        (&["endpoint", "resume", "billing"], "/endpoints/billing/resume", json!({}), "billing  enabled\n"),
        (&["endpoint", "enable", "billing"], "/endpoints/billing/enable", json!({}), "billing  enabled\n"),
        (&["endpoint", "disable", "billing", "-y"], "/endpoints/billing/disable", json!({}), "billing  disable\n"),
        (&["source", "forget-secret", "asana", "-y"], "/sources/asana/forget-secret", json!({}), "asana  awaited\n"),
        (
            &["event", "publish", "--type=push", "--key=k", "--payload=[1]", "--delay=30s", "--expires-at=t"],
            "/events",
            json!({"type": "push", "key": "k", "payload": [1], "delay": "30s", "expires_at": "t"}),
            "evt_9\n",
        ),
    ] {
        let ran = server.run(args);
        assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, out), "{args:?} {}", ran.err);
        let seen = server.last();
        assert_eq!((seen.line, seen.body), (format!("POST {T}{line}"), body));
    }
}

#[test]
fn spans_become_times() {
    let server = Server::start(ordinary);
    let between = |before: Timestamp, text: &str, after: Timestamp, off: i64| {
        let at = Timestamp::parse_rfc3339(text).unwrap().as_millis() - off;
        assert!((before.as_millis()..=after.as_millis()).contains(&at), "{text}");
    };
    let before = keys::now();
    assert_eq!(server.run(&["endpoint", "pause", "billing", "--for=30m"]).exit, Exit::Done);
    between(before, server.last().body["until"].as_str().unwrap(), keys::now(), 1_800_000);
    for args in [&["event", "list"][..], &["delivery", "list"], &["dlq", "list"]] {
        let before = keys::now();
        assert_eq!(server.run(&[args, &["--since=1h", "--limit=1"]].concat()).exit, Exit::Done);
        let line = server.last().line;
        let since = line.split_once("since=").unwrap().1.split('&').next().unwrap();
        between(before, &since.replace("%3A", ":"), keys::now(), -3_600_000);
        assert_eq!(server.run(&[args, &["--since=yesterday"]].concat()).exit, Exit::Usage);
    }
    let until = ["endpoint", "pause", "billing", "--for=30m", "--until=2026-02-01T00:00:00Z"];
    assert_eq!(server.run(&until).exit, Exit::Usage);
}

#[test]
fn files_are_published_byte_for_byte() {
    let server = Server::start(ordinary);
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    for (content, args, content_type, encoded) in [
        (&b"{ \"a\": 1 }"[..], &[][..], "application/json", "eyAiYSI6IDEgfQ=="),
        (b"\xff\x00", &[], "application/octet-stream", "/wA="),
        (b"<a/>", &["--content-type=text/xml"], "text/xml", "PGEvPg=="),
    ] {
        std::fs::write(path, content).unwrap();
        let ran = server.run(&[&["event", "publish", "--type=t", "-f", path], args].concat());
        assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
        assert!(ran.err.contains("published before"));
        let body = server.last().body;
        assert_eq!(body, json!({"type": "t", "content_type": content_type, "body_base64": encoded}));
    }
    let around = Around { terminal: false, input: "[2]" };
    server.run_in(around, &["delivery", "redrive", "dlv_1", "-f", "-", "--note=a list"]);
    assert_eq!(server.last().body, json!({"note": "a list", "payload": [2]}));
    let asked = server.lines().len();
    for args in [
        &["event", "publish", "--type=t"][..],
        &["event", "publish", "--type=t", "--payload={"],
        &["event", "publish", "--type=t", "-f", "/nowhere"],
    ] {
        assert_eq!(server.run(args).exit, Exit::Usage, "{args:?}");
    }
    assert_eq!(server.lines().len(), asked);
}

#[test]
fn what_cannot_be_undone_is_asked_for() {
    let server = Server::start(ordinary);
    let cancel = &["delivery", "cancel", "dlv_1"];
    let off = server.run(cancel);
    assert_eq!(off.exit, Exit::Usage);
    assert!(off.err.contains("not a terminal: add --yes"), "{}", off.err);
    let no = server.run_in(Around { terminal: true, input: "\n" }, cancel);
    assert_eq!(no.exit, Exit::Failed);
    assert!(no.err.contains("[y/N]") && no.err.contains("nothing was done"));
    assert!(server.lines().is_empty());
    assert_eq!(server.run_in(Around { terminal: true, input: "y\n" }, cancel).exit, Exit::Done);
    for args in [
        &["delivery", "resolve", "dlv_1", "--as=sent"][..],
        &["endpoint", "disable", "billing"],
        &["source", "forget-secret", "asana"],
    ] {
        assert_eq!(server.run(args).exit, Exit::Usage);
    }
    assert_eq!(server.lines().len(), 1);
}

#[test]
fn many_redrives_may_be_partly_done() {
    let server = Server::start(ordinary);
    let run = |ids: &[&str]| server.run(&[&["dlq", "redrive", "--note=n"], ids].concat());
    assert_eq!(run(&["dlv_1"]).exit, Exit::Done);
    assert_eq!(server.last().body, json!({"note": "n"}));
    let partly = run(&["dlv_2", "dlv_1", "dlv_404"]);
    assert_eq!(partly.exit, Exit::Partly);
    assert_eq!(partly.err.matches("dlv_404").count(), 1, "{}", partly.err);
    assert!(partly.err.contains("dlv_2: not dead (wrong_state)") && partly.err.contains("1 of 3"), "{}", partly.err);
    assert_eq!(run(&["dlv_2"]).exit, Exit::Conflict);
    assert_eq!(run(&["dlv_404", "dlv_2"]).exit, Exit::NotFound);
}

#[test]
fn people_are_told_of_an_event_that_goes_nowhere() {
    fn nowhere(line: &str) -> (u16, String) {
        let hint = json!({"event": "evt_1", "id": "evt_1", "hint": "no endpoint takes `x`\u{1b}"}).to_string();
        match line {
            "POST /in/acme/github" => (200, json!({"event": "evt_1", "duplicate": false}).to_string()),
            "POST /v1/tenants/acme/events" | "GET /v1/tenants/acme/events/evt_1" => (200, hint),
            "POST /elsewhere" => (200, "{}".into()),
            _ => (404, "{}".into()),
        }
    }
    let server = Server::start(nowhere);
    let to = format!("{}/in/acme/github", server.url());
    let send = ["send", &to, "--scheme=github", "--secret=s", "--data={}"];
    for args in [&send[..], &["event", "publish", "--type=x", "--payload=1"], &["event", "get", "evt_1"]] {
        let ran = server.run(args);
        assert_eq!(ran.exit, Exit::Done, "{args:?}: {}", ran.err);
        assert!(ran.err.ends_with("hint: no endpoint takes `x`\\u{1b}\n"), "{args:?}: {}", ran.err);
    }
    for format in ["--json", "--quiet"] {
        server.run(&[&send[..], &[format]].concat());
        assert_eq!(server.last().line, "POST /in/acme/github", "nothing more is asked for scripts");
    }
    let elsewhere = format!("{}/elsewhere", server.url());
    server.run(&["send", &elsewhere, "--scheme=github", "--secret=s", "--data={}"]);
    assert_eq!(server.last().line, "POST /elsewhere");
    // Without a server to ask, the send is what it is.
    let ran = run(&[("HOOKGATE_URL", "http://127.0.0.1:1"), ("HOOKGATE_TOKEN", "t")], &send);
    assert!(ran.exit == Exit::Done && !ran.err.contains("hint") && !ran.err.contains("error"), "{}", ran.err);
}

#[test]
fn every_redrive_has_a_request_id() {
    let server = Server::start(ordinary);
    let ids: Vec<String> = [["delivery", "redrive"], ["delivery", "redrive"], ["dlq", "redrive"]]
        .iter()
        .map(|verb| {
            assert_eq!(server.run(&[verb, &["dlv_1"][..]].concat()).exit, Exit::Done);
            server.last().request_id
        })
        .collect();
    assert!(ids[..2].iter().all(|id| id.len() == 32) && ids[0] != ids[1], "{ids:?}");
    assert!(ids[2].ends_with(":dlv_1") && !ids[2].starts_with(&ids[1]), "{ids:?}");
    // A key stands for one request: each letter of several has its own, and the same when they are asked again.
    for (verb, sent) in [("delivery", "mine"), ("dlq", "mine:dlv_1")] {
        server.run(&[verb, "redrive", "dlv_1", "--request-id=mine"]);
        assert_eq!(server.last().request_id, sent);
    }
    for other in [["delivery", "cancel", "dlv_1"].as_slice(), &["delivery", "resolve", "dlv_1", "--as=sent"]] {
        server.run(&[other, &["-y"]].concat());
        assert_eq!(server.last().request_id.len(), 32, "{other:?}");
    }
    let corrected = ["delivery", "redrive", "dlv_1", "--payload={}"];
    assert_eq!(server.run(&corrected).exit, Exit::Usage, "a correction without a note");
    assert_eq!(server.run(&[&corrected[..], &["--note=why"]].concat()).exit, Exit::Done);
    assert_eq!(server.run(&["delivery", "redrive", "dlv_1", "--request-id=a b"]).exit, Exit::Usage);

    // Whether it was done is not known: how to ask again is told.
    let env = [("HOOKGATE_URL", "http://127.0.0.1:1"), ("HOOKGATE_TOKEN", "t"), ("HOOKGATE_TENANT", "acme")];
    for verb in ["delivery", "dlq"] {
        let ran = run(&env, &[verb, "redrive", "dlv_1", "--request-id=mine"]);
        assert_eq!(ran.exit, Exit::Unreachable);
        assert!(ran.err.contains("ask again with --request-id mine,"), "{}", ran.err);
    }
}

/// A server that takes the first request and hangs up.
#[test]
fn a_request_whose_connection_breaks_is_made_again_under_its_key() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let mut keys = Vec::new();
        for last in [false, true] {
            let (stream, _) = listener.accept().unwrap();
            let mut lines = std::io::BufReader::new(&stream).lines();
            let head: Vec<String> = lines.by_ref().map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
            keys.extend(head.into_iter().filter(|line| line.starts_with("idempotency-key: ")));
            if last {
                let body = "{\"id\":\"dlv_1\",\"state\":\"cancelled\"}";
                let length = body.len();
                write!(&stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
            }
        }
        keys
    });
    let env = [("HOOKGATE_URL", url.as_str()), ("HOOKGATE_TOKEN", "t"), ("HOOKGATE_TENANT", "acme")];
    let ran = run(&env, &["delivery", "cancel", "dlv_1", "-y"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "dlv_1  cancelled\n"), "{}", ran.err);
    let keys = server.join().unwrap();
    assert!(keys.len() == 2 && keys[0] == keys[1], "{keys:?}");
}

#[test]
fn refusals_have_their_exit_and_remedy() {
    let server = Server::start(|_| (401, json!({"title": "Unauthorized", "code": "unauthorized"}).to_string()));
    let ran = server.run(&["endpoint", "list"]);
    assert_eq!(ran.exit, Exit::NotAllowed);
    assert!(ran.err.contains("Unauthorized (unauthorized)") && ran.err.contains("help: "), "{}", ran.err);
    assert!(!ran.err.contains("t0ken") && ran.out.is_empty());
    let server = Server::start(|_| (200, "<html>".into()));
    assert_eq!(server.run(&["endpoint", "list"]).exit, Exit::Failed);
    let server = Server::start(ordinary);
    let unknown = server.run(&["event", "get", "evt_404"]);
    assert_eq!(unknown.exit, Exit::NotFound);
    assert!(unknown.err.starts_with("error: evt_404: there is nothing here"), "{}", unknown.err);
    assert_eq!(server.run(&["event", "get", "../../x"]).exit, Exit::NotFound);
    assert_eq!(server.last().line, format!("GET {T}/events/..%2F..%2Fx"));
}

#[test]
fn nobody_there_is_its_own_exit() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let ran = run(&[("HOOKGATE_TENANT", "a")], &["endpoint", "list", "--url", &url, "--token=t"]);
    assert_eq!(ran.exit, Exit::Unreachable);
    assert!(ran.err.contains("hookgate serve"), "{}", ran.err);
}

/// A configuration whose ledger stands beside it.
fn configured(server: &Server, extra: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let file = format!("[server]\nadmin = \"{}\"\nledger = \"sqlite:data/l.db\"\n{extra}", server.address);
    std::fs::write(dir.path().join("h.toml"), file).unwrap();
    dir
}

#[test]
fn the_configuration_tells_address_token_and_tenant() {
    let server = Server::start(ordinary);
    let dir = configured(&server, "[tenants.acme.endpoints.e]\nurl = \"https://x.example\"\n");
    let config = dir.path().join("h.toml");
    let args = ["endpoint", "get", "billing", "--config", config.to_str().unwrap()];
    let none = run(&[], &args);
    assert_eq!(none.exit, Exit::NotAllowed);
    assert!(
        none.err.contains("admin-token")
            && none.err.contains("The first start writes it.")
            && none.err.contains("HOOKGATE_TOKEN"),
        "{}",
        none.err
    );
    std::fs::create_dir(dir.path().join("data")).unwrap();
    std::fs::write(dir.path().join("data/admin-token"), "from-file\n").unwrap();
    for (env, flag, token) in [
        (&[][..], &[][..], "from-file"),
        (&[("HOOKGATE_ADMIN_TOKEN", "admin-token-of-env")], &[], "admin-token-of-env"),
        (&[("HOOKGATE_TOKEN", "from-env")], &[], "from-env"),
        (&[("HOOKGATE_TOKEN", "from-env")], &["--token=from-flag"], "from-flag"),
    ] {
        let ran = run(env, &[&args[..], flag].concat());
        assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
        assert_eq!(server.last().token, format!("Bearer {token}"));
        assert_eq!(server.last().line, format!("GET {T}/endpoints/billing"));
    }
    run(&[("HOOKGATE_TENANT", "by-env")], &args);
    assert!(server.last().line.contains("/by-env/"));
    run(&[("HOOKGATE_TENANT", "by-env")], &[&args[..], &["--tenant=by-flag"]].concat());
    assert!(server.last().line.contains("/by-flag/"));
    // The local token goes to no other machine.
    let away = run(&[], &[&args[..], &["--url=http://hooks.example:1"]].concat());
    assert_eq!(away.exit, Exit::NotAllowed);
}

#[test]
fn the_tenant_is_asked_for_when_nobody_says() {
    let ask = |answers: Answers| {
        let server = Server::start(answers);
        let env = [("HOOKGATE_URL", server.url()), ("HOOKGATE_TOKEN", "t".into())];
        let ran = run(&env.each_ref().map(|(k, v)| (*k, v.as_str())), &["endpoint", "list"]);
        (ran, server.last().line)
    };
    let (_, line) =
        ask(
            |line| {
                if line == "GET /v1/tenants" { (200, r#"{"items":[{"name":"only"}]}"#.into()) } else { ordinary(line) }
            },
        );
    assert!(line.contains("/v1/tenants/only/"), "{line}");
    let (_, line) = ask(ordinary);
    assert!(line.contains("/v1/tenants/default/"), "{line}");
    let (ran, line) = ask(|_| (200, r#"{"items":[{"name":"a"},{"name":"b"}],"next":null}"#.into()));
    assert_eq!((ran.exit, line.as_str()), (Exit::Usage, "GET /v1/tenants"));
    assert!(ran.err.contains("a, b"), "{}", ran.err);
}

#[test]
fn tail_shows_each_change_once_and_oldest_first() {
    static ROUND: Mutex<u32> = Mutex::new(0);
    let server = Server::start(|_| {
        let mut round = ROUND.lock().unwrap();
        *round += 1;
        let items = match *round {
            1 | 2 => vec![delivery("dlv_2", "pending"), delivery("dlv_1", "dead"), delivery("dlv_0", "dead")],
            _ => vec![delivery("dlv_3", "pending"), delivery("dlv_2", "delivered"), delivery("dlv_1", "dead")],
        };
        (200, json!({"items": items, "next": null}).to_string())
    });
    let ran = server.run(&["tail", "-n2", "--count=4", "--interval=100ms", "--quiet"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "dlv_1\ndlv_2\ndlv_2\ndlv_3\n"));
    assert!(server.lines().iter().all(|line| line == &format!("GET {T}/deliveries?limit=200")));
    assert_eq!(server.run(&["tail", "--interval=1ms"]).exit, Exit::Usage);
}

/// A connection that breaks is a server that restarts, once it has been reached.
#[test]
fn tail_outlives_a_restart() {
    use std::io::{BufRead as _, BufReader, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let gateway = std::thread::spawn(move || {
        for round in 0..4 {
            let (mut stream, _) = listener.accept().unwrap();
            let head = BufReader::new(&stream).lines().map_while(Result::ok);
            assert!(head.take_while(|line| !line.is_empty()).count() > 0);
            // The second finds nobody, the third a proxy.
            match round {
                1 => continue,
                2 => {
                    let answer = "HTTP/1.1 502 Bad Gateway\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
                    stream.write_all(answer.as_bytes()).unwrap();
                    continue;
                }
                _ => {}
            }
            let state = if round == 0 { "pending" } else { "delivered" };
            let body = json!({"items": [delivery("dlv_1", state)], "next": null}).to_string();
            let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all((head + &body).as_bytes()).unwrap();
        }
    });
    let args = ["tail", "--count=2", "--interval=100ms", "--url", &url, "--token=t", "--tenant=a"];
    let ran = run(&[], &args);
    assert_eq!((ran.exit, ran.err.as_str()), (Exit::Done, "reconnecting…\n"));
    assert!(ran.out.contains("pending") && ran.out.contains("delivered"), "{}", ran.out);
    gateway.join().unwrap();
}

#[test]
fn check_has_its_exits_and_forms() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let good = file("good.toml", "[server]\nadmin = \"0.0.0.0:8081\"\n");
    let bad = file("bad.toml", "[server]\ningres = 1\n");
    let secret = file(
        "secret.toml",
        "[tenants.a.endpoints.e]\nurl = \"https://x.example\"\n[tenants.a.sources.s]\nscheme = \"github\"\nsecrets = [\"env:NONE\"]\n",
    );
    let ran = run(&[], &["check", &good]);
    assert_eq!(ran.exit, Exit::Done);
    assert!(ran.out.starts_with("warning: ") && ran.err.contains("0 problems, 1 warning\n"), "{ran:?}");
    let ran = run(&[], &["check", "--config", &bad]);
    assert_eq!(ran.exit, Exit::Problems);
    assert!(ran.out.contains("bad.toml:2:1: server.ingres: unknown key"), "{}", ran.out);
    assert_eq!(run(&[("HOOKGATE_CONFIG", &bad)], &["check"]).exit, Exit::Problems);
    let json: Value = serde_json::from_str(&run(&[], &["check", &bad, "--json"]).out).unwrap();
    assert_eq!((&json["ok"], &json["problems"][0]["line"]), (&json!(false), &json!(2)));
    let picture = run_in(Around { terminal: true, input: "" }, &[], &["check", &bad]).out;
    assert!(picture.contains("╭─["), "{picture}");
    let expired = file(
        "expired.toml",
        "[tenants.a.endpoints.e]\nurl = \"https://x.example\"\n[tenants.a.sources.s]\nscheme = \"github\"\n\
         secrets = [\"a-secret-that-lives\", { value = \"a-secret-that-is-over\", expires = \"2020-01-01T00:00:00Z\" }]\n",
    );
    let ran = run(&[], &["check", &expired]);
    assert_eq!(ran.exit, Exit::Done);
    let told =
        "expired.toml:5:80: tenants.a.sources.s.secrets[1].expires: this secret expired at 2020-01-01T00:00:00.000Z";
    assert!(ran.out.contains(told) && !ran.out.contains("a-secret"), "{}", ran.out);
    assert_eq!(run(&[], &["check", &secret]).exit, Exit::Problems);
    assert_eq!(run(&[], &["check", &secret, "--text-only"]).exit, Exit::Done);
    let gone = run(&[], &["check", "/nowhere.toml"]);
    assert_eq!(gone.exit, Exit::Usage);
    assert!(gone.err.contains("/nowhere.toml") && gone.err.contains("help: "));
}

#[test]
fn usage_mistakes_exit_with_2_and_help_with_0() {
    assert_eq!(run(&[], &["frobnicate"]).exit, Exit::Usage);
    assert_eq!(run(&[], &[]).exit, Exit::Usage);
    assert_eq!(run(&[], &["check", "--json", "--quiet"]).exit, Exit::Usage);
    let help = run(&[], &["--help"]);
    assert_eq!(help.exit, Exit::Done);
    assert!(help.out.contains("Exit codes") && help.err.is_empty());
    assert!(run(&[], &["--version"]).out.starts_with("hookgate "));
    assert!(run(&[], &["completions", "bash"]).out.contains("_hookgate"));
}

#[test]
fn a_reader_that_left_is_no_failure() {
    struct Gone;
    impl std::io::Write for Gone {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut err = Vec::new();
    let streams = Streams {
        out: &mut Gone,
        err: &mut err,
        input: &mut std::io::empty(),
        out_is_terminal: false,
        err_is_terminal: false,
        input_is_terminal: false,
        colour: false,
        width: None,
    };
    let args = ["hookgate", "completions", "bash"].map(OsString::from);
    assert_eq!(main(args, Env::default(), streams), Exit::Done);
    assert!(err.is_empty());
}

/// Compares with a file; with `UPDATE_GOLDEN` set, writes it.
#[track_caller]
fn golden(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == golden, "{file} is out of date: run this test with UPDATE_GOLDEN=1\n{text}");
}

/// The help of every command, word for word.
#[test]
fn help_is_golden() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/help");
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    if update {
        std::fs::create_dir_all(&folder).unwrap();
    }
    let mut wanted = Vec::new();
    let mut command = Cli::command();
    command.build();
    collect(&command, &mut Vec::new(), &mut wanted);
    for words in &wanted {
        let args: Vec<&str> = words.iter().map(String::as_str).chain(["--help"]).collect();
        let text = run(&[], &args).out;
        let name = std::iter::once("hookgate").chain(words.iter().map(String::as_str)).collect::<Vec<_>>().join("-");
        let path = folder.join(format!("{name}.txt"));
        if update {
            std::fs::write(&path, &text).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(text == golden, "{} is out of date: run this test with UPDATE_GOLDEN=1\n{text}", path.display());
    }
    let files = std::fs::read_dir(&folder).unwrap().count();
    assert_eq!(files, wanted.len(), "tests/golden/help has files of commands that are gone");
}

fn collect(command: &clap::Command, words: &mut Vec<String>, all: &mut Vec<Vec<String>>) {
    all.push(words.clone());
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        words.push(sub.get_name().to_owned());
        collect(sub, words, all);
        words.pop();
    }
}

#[test]
fn help_is_a_command_too() {
    for args in [&["help"][..], &["help", "plugin"], &["help", "plugin", "upload"]] {
        let asked = [&args[1..], &["--help"]].concat();
        let (ran, flag) = (run(&[], args), run(&[], &asked));
        assert_eq!((ran.exit, &ran.out), (Exit::Done, &flag.out), "{args:?}: {}", ran.err);
    }
    let nested = run(&[], &["plugin", "help", "upload"]);
    assert_eq!(nested.out, run(&[], &["plugin", "upload", "--help"]).out);
}

#[test]
fn arguments_of_commands_agree_with_themselves() {
    Cli::command().debug_assert();
    serve::Serve::augment_args(clap::Command::new("serve")).debug_assert();
    demo::Demo::augment_args(clap::Command::new("demo")).debug_assert();
    let parses = |args: &[&str]| Cli::command().try_get_matches_from([&["hookgate"], args].concat()).is_ok();
    for (args, good) in [
        (&["verify", "--scheme=github", "--secret=s", "--request=f"][..], true),
        (&["verify", "--source=a/b", "--request=f", "--at=-5", "--tolerance=5m", "--url=https://h.example"], true),
        (&["verify", "--cases=f"], true),
        (&["verify", "--scheme=github", "--secret=s"], false),
        (&["verify", "--source=a/b", "--secret=s", "--request=f"], false),
        (&["verify", "--secret=", "--request=f"], false),
        (&["verify", "--request=f", "--secret=s", "--at=noon"], false),
        (&["verify", "--cases=f", "--scheme=github"], false),
        (&["verify", "--cases=f", "--param=a=b"], false),
        (&["verify", "--source=a/b", "--param=a=b", "--request=f"], false),
        (&["verify", "--secret=s", "--param==b", "--request=f"], false),
        (&["verify", "--cases=f", "--at=5"], false),
        (&["verify", "--cases=f", "--request=f"], false),
        (&["verify"], false),
        (&["sign", "--secret=s", "--data=-x"], true),
        (&["sign", "--secret=s"], false),
        (&["sign", "--secret=s", "--data=x", "--body=f"], false),
        (&["sign", "--secret=s", "--data=x", "--curl=u", "--url=u"], false),
        (&["send", "--secret=s", "--data=x"], false),
        (&["send", "u", "--secret=s", "--data=x", "--count=0"], false),
        (&["send", "u", "--secret=s", "--data=x", "--concurrency=257"], false),
        (&["listen"], true),
        (&["listen", "--status=200,99"], false),
        (&["listen", "--delay=11m"], false),
        (&["listen", "--exit-after=0"], false),
    ] {
        assert_eq!(parses(args), good, "{args:?}");
    }
}
