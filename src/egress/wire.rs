//! The byte stream under one connection: it counts what was handed to the kernel, bounds what is read in front of a
//! response head, and can tell whether the peer has closed in the meantime.

use crate::crash;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// Shared by a socket and whoever drives it. All in one task, so the order of memory does not matter.
#[derive(Debug)]
pub(super) struct Meter {
    written: AtomicU64,
    /// Bytes that may still be read; without limit outside of the head.
    readable: AtomicU64,
    probe: AtomicBool,
}

impl Meter {
    fn new() -> Self {
        Meter { written: AtomicU64::new(0), readable: AtomicU64::new(u64::MAX), probe: AtomicBool::new(false) }
    }

    /// Bytes taken by the kernel so far.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    /// Lets no more than `bytes` be read until [`Meter::unbound`].
    pub(super) fn bound(&self, bytes: u64) {
        self.readable.store(bytes, Relaxed);
    }

    pub(super) fn unbound(&self) {
        self.readable.store(u64::MAX, Relaxed);
    }

    /// Makes the next read ask the kernel itself: the runtime's idea of readiness lags behind.
    pub(super) fn start_probe(&self) {
        self.probe.store(true, Relaxed);
    }

    /// Whether the read asked for by [`Meter::start_probe`] has been made.
    pub(super) fn was_probed(&self) -> bool {
        !self.probe.load(Relaxed)
    }
}

/// The peer sent more than a head may have.
#[derive(Debug, thiserror::Error)]
#[error("too many bytes in front of the end of the response head")]
pub(super) struct HeadOverrun;

/// A TCP socket with its meter.
#[derive(Debug)]
pub(super) struct Socket {
    tcp: TcpStream,
    meter: Arc<Meter>,
}

impl Socket {
    pub(super) fn new(tcp: TcpStream) -> Self {
        Socket { tcp, meter: Arc::new(Meter::new()) }
    }

    pub(super) fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// `Ok(())` when nothing has come in, which is what an idle connection is like.
    fn probe(&self) -> io::Result<()> {
        match socket2::SockRef::from(&self.tcp).peek(&mut [MaybeUninit::uninit(); 1]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "bytes on an idle connection")),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(e) => Err(e),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.meter.probe.load(Relaxed) {
            self.meter.probe.store(false, Relaxed);
            self.probe()?;
        }
        let readable = self.meter.readable.load(Relaxed);
        if readable == 0 {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, HeadOverrun)));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.tcp).poll_read(cx, buf))?;
        if readable != u64::MAX {
            let read = (buf.filled().len() - before) as u64;
            self.meter.readable.store(readable.saturating_sub(read), Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let taken = ready!(Pin::new(&mut self.tcp).poll_write(cx, buf))?;
        self.meter.written.fetch_add(taken as u64, Relaxed);
        Poll::Ready(Ok(taken))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let taken = ready!(Pin::new(&mut self.tcp).poll_write_vectored(cx, bufs))?;
        self.meter.written.fetch_add(taken as u64, Relaxed);
        Poll::Ready(Ok(taken))
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

/// With TLS or without.
#[derive(Debug)]
pub(super) enum Wire {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

impl Wire {
    pub(super) fn meter(&self) -> &Arc<Meter> {
        match self {
            Wire::Plain(socket) => socket.meter(),
            Wire::Tls(tls) => tls.get_ref().0.meter(),
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Wire::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let taken = ready!(match self.get_mut() {
            Wire::Plain(socket) => Pin::new(socket).poll_write(cx, buf),
            Wire::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        })?;
        crash::point("D2");
        Poll::Ready(Ok(taken))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let taken = ready!(match self.get_mut() {
            Wire::Plain(socket) => Pin::new(socket).poll_write_vectored(cx, bufs),
            Wire::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, bufs),
        })?;
        crash::point("D2");
        Poll::Ready(Ok(taken))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Wire::Plain(socket) => socket.is_write_vectored(),
            Wire::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(match self.get_mut() {
            Wire::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Wire::Tls(tls) => Pin::new(tls).poll_flush(cx),
        })?;
        // Flushed when there is nothing left to write, and first polled with a request at hand.
        crash::point("D3");
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Wire::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
