//! The receiver: where events arrive. It answers at once, and counts which sequence numbers came and how often.
//!
//! `/hook` is answered 204; `/sms` 200, with the body by which the SMS provider of the sample plugin says that it took
//! the message; `/noise` 204, `/busy` 503 and `/hang` 204 half a minute later, all uncounted; `/door` 204, or 503 and
//! uncounted while it is closed; a HEAD 204 and uncounted; anything else as the gateway answers, for the barest exchange
//! that a load can have.

use crate::latency::{Latencies, Spread};
use crate::role::Control;
use crate::wire;
use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Higher numbers than a run can reach are not ours; a bit for each is kept.
pub(crate) const SEQ_MAX: u64 = 1 << 28;

const HANGS_FOR: Duration = Duration::from_secs(30);

const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
const NO_CONTENT: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";
const SMS_TAKEN: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 51\r\n\r\n\
    {\"status\":\"queued\",\"message_id\":\"SM0123456789abcd\"}";

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Received {
    /// Numbers that came, since the start.
    pub(crate) unique: u64,
    /// Requests beyond the first with a number, since the start.
    pub(crate) repeated: u64,
    /// Requests without a number, since the start.
    pub(crate) strange: u64,
    pub(crate) last_at_nanos: u64,
    /// Stamp to arrival, since the last mark.
    pub(crate) latency: Spread,
}

struct Seen {
    door_closed: bool,
    bits: Vec<u64>,
    received: Received,
    latencies: Latencies,
}

impl Seen {
    fn new() -> Result<Self> {
        Ok(Seen { door_closed: false, bits: Vec::new(), received: Received::default(), latencies: Latencies::new()? })
    }

    fn note(&mut self, body: &[u8], now: u64) {
        self.received.last_at_nanos = now;
        let known = wire::stamps(body).filter(|(seq, _)| *seq < SEQ_MAX);
        let Some((word, bit, at)) = known.and_then(|(seq, at)| Some((usize::try_from(seq / 64).ok()?, seq % 64, at)))
        else {
            self.received.strange += 1;
            return;
        };
        if word >= self.bits.len() {
            self.bits.resize(word * 2 + 1024, 0);
        }
        if self.bits[word] >> bit & 1 == 1 {
            self.received.repeated += 1;
        } else {
            self.bits[word] |= 1 << bit;
            self.received.unique += 1;
            self.latencies.record(now.saturating_sub(at));
        }
    }
}

/// Runs in a process of its own. Commands: `mark` begins a measurement, `close` and `open` are for
/// the door, `tell` only tells.
pub(crate) fn run() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listen")?;
        let seen = Arc::new(Mutex::new(Seen::new()?));
        let told = Arc::clone(&seen);
        Control::start(listener.local_addr()?, move |command| {
            let mut seen = told.lock().unwrap_or_else(PoisonError::into_inner);
            match command {
                "mark" => seen.latencies = Latencies::new()?,
                "close" => seen.door_closed = true,
                "open" => seen.door_closed = false,
                _ => {}
            }
            Ok(serde_json::to_value(Received { latency: seen.latencies.spread(), ..seen.received })?)
        })?;
        loop {
            let (socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            // A sender that goes away mid-way shows in the counts.
            tokio::spawn(serve(socket, Arc::clone(&seen)));
        }
    })
}

async fn serve(mut socket: TcpStream, seen: Arc<Mutex<Seen>>) -> Result<()> {
    let mut buffer = Vec::with_capacity(16 << 10);
    loop {
        while let Some(head) = wire::message(&buffer)? {
            let now = wire::wall_nanos();
            let goes_to = |path: &[u8]| head.start.windows(path.len()).any(|part| part == path);
            let closed = goes_to(b" /door ") && seen.lock().unwrap_or_else(PoisonError::into_inner).door_closed;
            let (hang, busy) = (goes_to(b" /hang "), closed || goes_to(b" /busy "));
            let noise = hang || busy || goes_to(b"/noise") || head.start.starts_with(b"HEAD ");
            let answer = match head.start {
                _ if busy => BUSY,
                _ if noise => NO_CONTENT,
                start if start.starts_with(b"POST /hook ") || start.starts_with(b"POST /door ") => NO_CONTENT,
                start if start.starts_with(b"POST /sms ") => SMS_TAKEN,
                _ => wire::ACCEPTED_ANSWER,
            };
            let (end, close) = (head.message_bytes, head.close);
            if !noise {
                seen.lock().unwrap_or_else(PoisonError::into_inner).note(&buffer[head.head_bytes..end], now);
            }
            buffer.drain(..end);
            if hang {
                tokio::time::sleep(HANGS_FOR).await;
            }
            socket.write_all(answer).await?;
            if close {
                return Ok(());
            }
        }
        if socket.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}
