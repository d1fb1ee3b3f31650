//! What went wrong on the way, sorted. Texts are for people and name no address.

use super::Refusal;
use super::wire::HeadOverrun;
use crate::delivery::TransportKind;
use std::error::Error as StdError;
use std::io;

/// Why there was no complete response head.
#[derive(Debug)]
pub(super) enum Stop {
    Refused(Refusal),
    Fault(Fault),
}

#[derive(Debug)]
pub(super) struct Fault {
    pub(super) kind: TransportKind,
    pub(super) detail: String,
}

impl Fault {
    pub(super) fn new(kind: TransportKind, detail: impl Into<String>) -> Self {
        Fault { kind, detail: detail.into() }
    }

    /// From a connect call that failed.
    pub(super) fn connect(error: &io::Error) -> Self {
        Fault::new(TransportKind::Connect, format!("connect: {}", error.kind()))
    }

    /// From a TLS handshake that failed: by its class, as the library puts it.
    pub(super) fn tls(error: &io::Error) -> Self {
        match inner::<rustls::Error>(error) {
            Some(tls) => Fault::new(TransportKind::Tls, format!("TLS: {tls}")),
            None => Fault::new(TransportKind::Tls, format!("TLS: {} during the handshake", error.kind())),
        }
    }

    /// From an exchange that failed before the head was complete.
    pub(super) fn exchange(error: &hyper::Error) -> Self {
        if let Some(io) = io_source(error) {
            return Fault::io(io);
        }
        let (kind, detail) = if error.is_parse_too_large() {
            (TransportKind::Protocol, "the response head is over the limit")
        } else if error.is_parse() {
            (TransportKind::Protocol, "the response is not HTTP/1.1")
        } else if error.is_incomplete_message() {
            (TransportKind::Reset, "the connection was closed before a complete response head")
        } else if error.is_canceled() || error.is_closed() {
            (TransportKind::Reset, "the connection was closed before the request was sent")
        } else if error.is_user() {
            (TransportKind::Protocol, "the request cannot be written as HTTP/1.1")
        } else {
            (TransportKind::Other, "the exchange failed")
        };
        Fault::new(kind, detail)
    }

    fn io(error: &io::Error) -> Self {
        if inner::<HeadOverrun>(error).is_some() {
            return Fault::new(TransportKind::Protocol, HeadOverrun.to_string());
        }
        if let Some(tls) = inner::<rustls::Error>(error) {
            return Fault::new(TransportKind::Tls, format!("TLS: {tls}"));
        }
        let kind = match error.kind() {
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::NotConnected
            | io::ErrorKind::UnexpectedEof => TransportKind::Reset,
            io::ErrorKind::TimedOut => TransportKind::Timeout,
            _ => TransportKind::Other,
        };
        Fault::new(kind, error.kind().to_string())
    }
}

fn inner<E: StdError + 'static>(error: &io::Error) -> Option<&E> {
    error.get_ref()?.downcast_ref()
}

fn io_source(error: &hyper::Error) -> Option<&io::Error> {
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(io) = inner.downcast_ref() {
            return Some(io);
        }
        source = inner.source();
    }
    None
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Stop::Fault(fault)
    }
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Stop::Refused(refusal)
    }
}
