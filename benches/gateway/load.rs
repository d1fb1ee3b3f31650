//! The load generator: signed requests of 1 KiB over keep-alive HTTP/1.1, raw sockets on one thread.
//!
//! Closed loop: each connection sends its next request when the last one is answered. Open loop: requests are due at a
//! fixed rate whatever the answers do, and a request that had to wait for its connection counts the wait. The timer is
//! good to a millisecond, so an open loop sends in bursts of up to a millisecond's worth.

use crate::latency::{Latencies, Spread};
use crate::wire::{self, Body};
use anyhow::{Context as _, Result, ensure};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) to: SocketAddr,
    pub(crate) path: String,
    pub(crate) connections: u32,
    /// Requests per second over all connections; `None`: closed loop.
    pub(crate) rate: Option<f64>,
    pub(crate) span: Duration,
    pub(crate) requests_max: u64,
    pub(crate) body_bytes: usize,
    /// The first event's number. It goes into the body and the delivery id, so no two loads of a run may share one.
    pub(crate) first_seq: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Loaded {
    pub(crate) started_at_nanos: u64,
    /// From the start to the last answer.
    pub(crate) span: Duration,
    /// 200, and new.
    pub(crate) accepted: u64,
    /// 200, but taken for something already seen.
    pub(crate) duplicates: u64,
    pub(crate) refused: BTreeMap<u16, u64>,
    /// Connections that broke, with the first one's reason.
    pub(crate) broken: u64,
    pub(crate) broken_why: Option<String>,
    /// Request to answer.
    pub(crate) latency: Spread,
}

struct Tally {
    next_seq: u64,
    last_answer: Instant,
    accepted: u64,
    duplicates: u64,
    refused: BTreeMap<u16, u64>,
    broken: u64,
    broken_why: Option<String>,
    latencies: Latencies,
}

/// Runs in a process of its own.
pub(crate) fn run(load: Load) -> Result<Loaded> {
    ensure!(load.to.ip().is_loopback(), "the load goes to this machine alone, not to {}", load.to);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async move {
        let (start, started_at_nanos) = (Instant::now(), wire::wall_nanos());
        let tally = Rc::new(RefCell::new(Tally {
            next_seq: load.first_seq,
            last_answer: start,
            accepted: 0,
            duplicates: 0,
            refused: BTreeMap::new(),
            broken: 0,
            broken_why: None,
            latencies: Latencies::new()?,
        }));
        let load = Rc::new(load);
        let connections: Vec<_> = (0..load.connections)
            .map(|index| {
                let connection =
                    Connection { load: Rc::clone(&load), tally: Rc::clone(&tally), index, start, started_at_nanos };
                tokio::task::spawn_local(connection.run())
            })
            .collect();
        for connection in connections {
            if let Err(e) = connection.await? {
                let mut tally = tally.borrow_mut();
                tally.broken += 1;
                tally.broken_why.get_or_insert(format!("{e:#}"));
            }
        }
        let tally = tally.borrow();
        Ok(Loaded {
            started_at_nanos,
            span: tally.last_answer - start,
            accepted: tally.accepted,
            duplicates: tally.duplicates,
            refused: tally.refused.clone(),
            broken: tally.broken,
            broken_why: tally.broken_why.clone(),
            latency: tally.latencies.spread(),
        })
    })
}

struct Connection {
    load: Rc<Load>,
    tally: Rc<RefCell<Tally>>,
    index: u32,
    start: Instant,
    started_at_nanos: u64,
}

impl Connection {
    async fn run(self) -> Result<()> {
        let load = &self.load;
        let mut socket = TcpStream::connect(load.to).await.with_context(|| format!("connect to {}", load.to))?;
        socket.set_nodelay(true)?;
        let key = Hmac::<Sha256>::new_from_slice(wire::SECRET.as_bytes())?;
        let mut body = Body::new(load.body_bytes);
        let mut request = Vec::with_capacity(load.body_bytes + 1024);
        let mut answers = Vec::with_capacity(16 << 10);
        let mut round = 0;
        while let Some(from) = self.next_start(round).await {
            round += 1;
            let Some(seq) = self.next_seq() else { return Ok(()) };
            body.stamp(seq, self.started_at_nanos + nanos(from - self.start));
            let mut mac = key.clone();
            mac.update(body.as_bytes());
            request.clear();
            write!(
                request,
                "POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\nx-github-event: push\r\n\
                 x-github-delivery: 72d3162e-cc78-4e3a-8aa5-{seq:012x}\r\ncontent-length: {}\r\n\
                 x-hub-signature-256: sha256=",
                load.path,
                load.to,
                body.as_bytes().len(),
            )?;
            wire::hex_onto(&mut request, &mac.finalize().into_bytes());
            request.extend(b"\r\n\r\n");
            request.extend(body.as_bytes());
            socket.write_all(&request).await.context("send a request")?;
            let closes = self.answer(&mut socket, &mut answers, from).await?;
            ensure!(!closes, "the server closes a connection that was to be kept");
        }
        Ok(())
    }

    /// When the next request counts as begun; `None`: the time is over.
    async fn next_start(&self, round: u32) -> Option<Instant> {
        let mut from = Instant::now();
        if let Some(rate) = self.load.rate {
            let turn = f64::from(self.index) + f64::from(round) * f64::from(self.load.connections);
            let due = self.start + Duration::from_secs_f64(turn / rate);
            if due - self.start >= self.load.span {
                return None;
            }
            if due > from {
                tokio::time::sleep_until(due.into()).await;
                // How late the timer is, is not the server's doing.
                from = Instant::now();
            } else {
                from = due;
            }
        }
        (from - self.start < self.load.span).then_some(from)
    }

    fn next_seq(&self) -> Option<u64> {
        let mut tally = self.tally.borrow_mut();
        let seq = tally.next_seq;
        tally.next_seq += 1;
        (seq - self.load.first_seq < self.load.requests_max).then_some(seq)
    }

    /// Reads one answer and counts it. `true`: the server closes.
    async fn answer(&self, socket: &mut TcpStream, buffer: &mut Vec<u8>, from: Instant) -> Result<bool> {
        loop {
            if let Some(head) = wire::message(buffer)? {
                let (status, close, end) = (head.status()?, head.close, head.message_bytes);
                let mut tally = self.tally.borrow_mut();
                tally.last_answer = Instant::now();
                let took = tally.last_answer - from;
                tally.latencies.record_span(took);
                let new = buffer[head.head_bytes..end].ends_with(b"\"duplicate\":false}");
                match status {
                    200 if new => tally.accepted += 1,
                    200 => tally.duplicates += 1,
                    other => *tally.refused.entry(other).or_insert(0) += 1,
                }
                buffer.drain(..end);
                return Ok(close);
            }
            ensure!(socket.read_buf(buffer).await.context("read an answer")? > 0, "the server closed the connection");
        }
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
