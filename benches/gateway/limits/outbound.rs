//! The outbound limit: hyper-util's pooled client posting to the receiver, with a fixed number in flight.

use crate::latency::{Latencies, Spread};
use crate::wire::{self, Body};
use anyhow::{Result, ensure};
use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outbound {
    pub(crate) to: SocketAddr,
    pub(crate) in_flight: u32,
    pub(crate) span: Duration,
    pub(crate) body_bytes: usize,
    pub(crate) first_seq: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Sent {
    pub(crate) span: Duration,
    pub(crate) cpu_seconds: f64,
    pub(crate) latency: Spread,
}

/// Runs in a process of its own, on as many threads as there are cores.
pub(crate) fn run(outbound: &Outbound) -> Result<Sent> {
    ensure!(outbound.to.ip().is_loopback(), "requests go to this machine alone, not to {}", outbound.to);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let cpu_before = crate::process::own_cpu_seconds()?;
    let (latencies, span) = runtime.block_on(async {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(1024).build(connector);
        let (start, next) = (Instant::now(), Arc::new(AtomicU64::new(outbound.first_seq)));
        let senders: Vec<_> = (0..outbound.in_flight)
            .map(|_| tokio::spawn(send(client.clone(), outbound.clone(), start, Arc::clone(&next))))
            .collect();
        let mut all = Latencies::new()?;
        for sender in senders {
            all.merge(&sender.await??)?;
        }
        anyhow::Ok((all, start.elapsed()))
    })?;
    let cpu_seconds = crate::process::own_cpu_seconds()? - cpu_before;
    Ok(Sent { span, cpu_seconds, latency: latencies.spread() })
}

async fn send(
    client: Client<HttpConnector, Full<Bytes>>,
    outbound: Outbound,
    start: Instant,
    next: Arc<AtomicU64>,
) -> Result<Latencies> {
    let uri = format!("http://{}/hook", outbound.to);
    let mut body = Body::new(outbound.body_bytes);
    let mut latencies = Latencies::new()?;
    while start.elapsed() < outbound.span {
        let from = Instant::now();
        let seq = next.fetch_add(1, Ordering::Relaxed);
        body.stamp(seq, wire::wall_nanos());
        let request = Request::post(uri.as_str())
            .header("content-type", "application/json")
            .header("webhook-id", seq)
            .header("webhook-signature", "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=")
            .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))?;
        let response = client.request(request).await?;
        let status = response.status();
        response.into_body().collect().await?;
        ensure!(status == StatusCode::NO_CONTENT, "the receiver answered {status}");
        latencies.record_span(from.elapsed());
    }
    Ok(latencies)
}
