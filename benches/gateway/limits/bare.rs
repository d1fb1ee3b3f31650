//! The inbound limit: a bare hyper server that reads the body, checks its signature if told so, and answers.

use crate::role::Control;
use crate::wire;
use anyhow::{Context as _, Result};
use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use tokio::net::TcpListener;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Bare {
    Unverified,
    Verified,
}

/// The keyed state, made once: a check costs the body's digest and little more.
#[derive(Clone)]
pub(super) struct Key(Hmac<Sha256>);

impl Key {
    pub(super) fn new() -> Result<Self> {
        Ok(Key(Hmac::new_from_slice(wire::SECRET.as_bytes())?))
    }

    pub(super) fn verifies(&self, headers: &HeaderMap, body: &[u8]) -> bool {
        let given = headers.get("x-hub-signature-256").and_then(|value| value.as_bytes().strip_prefix(b"sha256="));
        let mut signature = [0; 32];
        if given.is_none_or(|hex| hex::decode_to_slice(hex, &mut signature).is_err()) {
            return false;
        }
        self.mac(body).verify_slice(&signature).is_ok()
    }

    pub(super) fn mac(&self, body: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(body);
        mac
    }
}

/// Runs in a process of its own, on as many threads as there are cores.
pub(crate) fn run(bare: Bare) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let key = match bare {
            Bare::Unverified => None,
            Bare::Verified => Some(Key::new()?),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listen")?;
        Control::start_silent(listener.local_addr()?)?;
        loop {
            let (socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            let key = key.clone();
            let service = service_fn(move |request| answer(key.clone(), request));
            let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service);
            // A client that goes away mid-way shows in its own counts.
            tokio::spawn(connection);
        }
    })
}

async fn answer(key: Option<Key>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let good = key.is_none_or(|key| key.verifies(&head.headers, &body));
    reply(if good { StatusCode::OK } else { StatusCode::UNAUTHORIZED })
}

/// As large as the gateway's own answer.
pub(super) fn reply(status: StatusCode) -> Result<Response<Full<Bytes>>> {
    let response = Response::builder().status(status).header("content-type", "application/json");
    Ok(response.body(Full::new(Bytes::from_static(wire::ACCEPTED)))?)
}
