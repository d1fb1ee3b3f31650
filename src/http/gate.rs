//! The gate between a socket and the HTTP library: it keeps track of where requests begin and end, lets through only
//! heads that are whole and right, and keeps the times.
//!
//! What is refused never reaches the library. In its place the library gets a small request of ours, [`REFUSED`], which
//! closes the connection and is answered with what is wrong, in order, after the requests before it.

use super::chunked::{Chunked, Step};
use super::head::{Framing, Head, Scan};
use super::listener::Limits;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// The method of the stand-in for a request that is refused.
pub(super) const REFUSED: &str = "REFUSED";
const STAND_IN: &[u8] = b"REFUSED / HTTP/1.1\r\nhost: -\r\nconnection: close\r\n\r\n";

/// Why the gate lets nothing more through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    Malformed(&'static str),
    UriTooLong,
    TooManyHeaders,
    HeadTooLarge,
    HeadTimeout,
    MalformedBody,
    BodyTimeout,
}

/// What the gate and the handler of one connection tell each other.
#[derive(Default, Debug)]
pub(super) struct Watch {
    /// A request is being answered.
    pub(super) busy: AtomicBool,
    /// Of the body of the request that arrived last, something is still to come.
    pub(super) in_body: AtomicBool,
    pub(super) refused: OnceLock<Refused>,
}

#[derive(Debug)]
enum Phase {
    Head(Head),
    Sized(u64),
    Chunked(Chunked),
    /// Nothing more is read from the peer.
    Ended,
}

/// What is to be done with bytes that were judged.
enum Judged {
    /// All of them may pass.
    Pass,
    /// The first so many may pass; the rest is the beginning of a head.
    Hold(usize),
    /// The first so many may pass; the rest is thrown away.
    Refuse(usize, Refused),
}

pub(super) struct Gate<S> {
    io: S,
    limits: Arc<Limits>,
    watch: Arc<Watch>,
    phase: Phase,
    /// The beginning of a head that is not whole yet.
    held: Vec<u8>,
    /// Judged bytes that are still to be handed over, from `ready_at` on.
    ready: Vec<u8>,
    ready_at: usize,
    /// The stream ends after what is ready.
    is_cut: bool,
    /// When the head or body that is being waited for began to be waited for; `None`: between requests.
    begun: Option<Instant>,
    /// The last time something was written, or the connection's beginning.
    active: Instant,
    timer: Pin<Box<Sleep>>,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Gate<S> {
    pub(super) fn new(io: S, limits: Arc<Limits>, watch: Arc<Watch>) -> Self {
        let now = Instant::now();
        Gate {
            io,
            watch,
            phase: Phase::Head(Head::default()),
            held: Vec::new(),
            ready: Vec::new(),
            ready_at: 0,
            is_cut: false,
            // A new connection has no longer for its first head than a later one that has begun.
            begun: Some(now),
            active: now,
            timer: Box::pin(tokio::time::sleep_until(now + limits.head_timeout)),
            stalled: None,
            limits,
        }
    }

    /// The socket, and whether the peer may still be sending what nobody will read.
    pub(super) fn into_inner(self) -> (S, bool) {
        let between = matches!(self.phase, Phase::Head(_)) && self.held.is_empty();
        (self.io, !between)
    }

    /// Follows the requests through `bytes`. A head in progress begins at the first of them.
    fn judge(&mut self, bytes: &[u8]) -> Judged {
        let mut at = 0;
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            if rest.is_empty() {
                return Judged::Pass;
            }
            match &mut self.phase {
                Phase::Head(head) => match head.scan(rest, &self.limits) {
                    Scan::More => return Judged::Hold(at),
                    Scan::Refused(refused) => return Judged::Refuse(at, refused),
                    Scan::Complete(length, framing) => {
                        at += length;
                        self.begun = None;
                        self.watch.in_body.store(framing != Framing::Sized(0), Ordering::Release);
                        self.phase = match framing {
                            Framing::Sized(0) => Phase::Head(Head::default()),
                            Framing::Sized(n) => Phase::Sized(n),
                            Framing::Chunked => Phase::Chunked(Chunked::default()),
                        };
                    }
                },
                Phase::Sized(left) => {
                    let here = u64::try_from(rest.len()).unwrap_or(u64::MAX).min(*left);
                    at += usize::try_from(here).unwrap_or(usize::MAX);
                    *left -= here;
                    if *left == 0 {
                        self.end_body();
                    }
                }
                Phase::Chunked(chunked) => match chunked.scan(rest) {
                    Step::More => return Judged::Pass,
                    Step::End(length) => {
                        at += length;
                        self.end_body();
                    }
                    Step::Bad(place) => return Judged::Refuse(at + place, Refused::MalformedBody),
                },
                Phase::Ended => return Judged::Hold(at),
            }
        }
    }

    fn end_body(&mut self) {
        self.watch.in_body.store(false, Ordering::Release);
        self.begun = None;
        self.phase = Phase::Head(Head::default());
    }

    fn refuse(&mut self, refused: Refused) {
        if matches!(self.phase, Phase::Head(_)) {
            self.ready.extend_from_slice(STAND_IN);
        } else {
            // Whoever reads the body finds that it ends too early.
            self.is_cut = true;
        }
        self.phase = Phase::Ended;
        self.held = Vec::new();
        // The first refusal is the only one: nothing is judged after it.
        let _ = self.watch.refused.set(refused);
    }

    /// Called when the peer has nothing for us: ready when we have waited long enough.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let deadline = self.deadline();
            // The timer is left alone while it is early: re-arming it for each request would cost more than the
            // occasional early call.
            if let Some(deadline) = deadline.filter(|deadline| *deadline < self.timer.deadline()) {
                self.timer.as_mut().reset(deadline);
            }
            ready!(self.timer.as_mut().poll(cx));
            let now = Instant::now();
            match deadline {
                Some(deadline) if deadline <= now => return Poll::Ready(()),
                Some(deadline) => self.timer.as_mut().reset(deadline),
                // The library does not ask again when the answer is out, so the timer runs on.
                None => self.timer.as_mut().reset(now + self.limits.idle_timeout),
            }
        }
    }

    /// `None`: the peer waits for us.
    fn deadline(&mut self) -> Option<Instant> {
        let limits = &self.limits;
        match &self.phase {
            Phase::Head(_) if !self.held.is_empty() || self.begun.is_some() => {
                Some(*self.begun.get_or_insert_with(Instant::now) + limits.head_timeout)
            }
            Phase::Head(_) if self.watch.busy.load(Ordering::Acquire) => None,
            Phase::Head(_) | Phase::Ended => Some(self.active + limits.idle_timeout),
            Phase::Sized(_) | Phase::Chunked(_) => {
                Some(*self.begun.get_or_insert_with(Instant::now) + limits.body_timeout)
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gate<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if let Some(ready) = this.ready.get(this.ready_at..).filter(|ready| !ready.is_empty()) {
                let n = ready.len().min(buf.remaining());
                buf.put_slice(ready.get(..n).unwrap_or_default());
                this.ready_at += n;
                if this.ready_at == this.ready.len() {
                    this.ready = Vec::new();
                    this.ready_at = 0;
                }
                return Poll::Ready(Ok(()));
            }
            if this.is_cut {
                return Poll::Ready(Ok(()));
            }
            let before = buf.filled().len();
            let read = if matches!(this.phase, Phase::Ended) {
                Poll::Pending
            } else {
                Pin::new(&mut this.io).poll_read(cx, buf)?
            };
            if read.is_pending() {
                ready!(this.poll_patience(cx));
                match this.phase {
                    Phase::Head(_) if !this.held.is_empty() => this.refuse(Refused::HeadTimeout),
                    Phase::Sized(_) | Phase::Chunked(_) => this.refuse(Refused::BodyTimeout),
                    // Nothing was asked, nothing is answered.
                    Phase::Head(_) | Phase::Ended => this.is_cut = true,
                }
                continue;
            }
            let fresh = buf.filled().get(before..).unwrap_or_default();
            if fresh.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let passed = if this.held.is_empty() {
                match this.judge(fresh) {
                    Judged::Pass => fresh.len(),
                    Judged::Hold(n) => {
                        this.held.extend_from_slice(fresh.get(n..).unwrap_or_default());
                        n
                    }
                    Judged::Refuse(n, refused) => {
                        this.refuse(refused);
                        n
                    }
                }
            } else {
                this.held.extend_from_slice(fresh);
                let mut held = std::mem::take(&mut this.held);
                match this.judge(&held) {
                    Judged::Pass => this.ready = held,
                    Judged::Hold(n) => {
                        this.held = held.split_off(n);
                        this.ready = held;
                    }
                    Judged::Refuse(n, refused) => {
                        held.truncate(n);
                        this.ready = held;
                        this.refuse(refused);
                    }
                }
                0
            };
            buf.set_filled(before + passed);
            if passed > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> Gate<S> {
    fn written<T>(&mut self, cx: &mut Context<'_>, wrote: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.active = Instant::now();
            self.stalled = None;
            return wrote;
        }
        let patience = self.limits.write_timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes no bytes")))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gate<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let wrote = Pin::new(&mut this.io).poll_write(cx, buf);
        this.written(cx, wrote)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let wrote = Pin::new(&mut this.io).poll_write_vectored(cx, bufs);
        this.written(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

/// How long, and how much, is read from a peer that still sends after it was answered, so that it gets to read the
/// answer before the connection is reset.
pub(super) async fn linger<S: AsyncRead + Unpin>(io: &mut S) {
    const PATIENCE: Duration = Duration::from_secs(2);
    const BYTES_MAX: usize = 4 << 20;
    let drain = async {
        let mut scratch = vec![0; 16 * 1024];
        let mut total = 0;
        while total < BYTES_MAX {
            match tokio::io::AsyncReadExt::read(io, &mut scratch).await {
                Ok(0) | Err(_) => break,
                Ok(n) => total += n,
            }
        }
    };
    let _ = tokio::time::timeout(PATIENCE, drain).await;
}
