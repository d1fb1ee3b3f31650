//! The gateway's own ledger, alone: events accepted with a slot, each handed back for its attempt, and settled as
//! delivered. Sealing, dedup, leases, attempts and group commit are in it; sockets are not.

use crate::latency::{Latencies, Spread};
use crate::process::own_cpu_seconds;
use crate::wire::Body;
use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use hookgate::clock::{Clock as _, ClockWatch, SystemClock};
use hookgate::delivery::{DecidedBy, Disposition, Name, Reason};
use hookgate::entropy::SystemEntropy;
use hookgate::ledger::sqlite::{self, SqliteLedger};
use hookgate::ledger::{
    Accept, Accepted, AttemptRecord, Claimed, Declaration, DeclaredEndpoint, DeclaredTenant, EndpointCaps, EndpointKey,
    NewDelivery, Queue as _, Settled, Settlement, Slot, Slots, Taken, TenantKey, Wakes,
};
use hookgate::secret::Secret;
use hookgate::verify::{Grant, Publication};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

const IN_FLIGHT_MAX: u32 = 4096;
const LEASE: Duration = Duration::from_secs(45);
const DEDUP_WINDOW: Duration = Duration::from_secs(7 * 24 * 3600);
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Cycles {
    pub(crate) ledger: PathBuf,
    /// Callers that wait for their commit.
    pub(crate) waiters: u32,
    pub(crate) body_bytes: usize,
    pub(crate) warm_up: Duration,
    pub(crate) span: Duration,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Cycled {
    pub(crate) settled: u64,
    pub(crate) span: Duration,
    pub(crate) cpu_seconds: f64,
    /// Of `accept`: until the event is durable.
    pub(crate) latency: Spread,
}

/// What all tasks share.
struct Desk {
    ledger: Arc<SqliteLedger>,
    slots: Arc<Slots>,
    grant: Grant,
    tenant: TenantKey,
    endpoint: EndpointKey,
    body: Body,
    began: Instant,
    warm_up: Duration,
    over: AtomicBool,
    accepted: AtomicU64,
    settled: AtomicU64,
}

/// Runs in a process of its own, on as many threads as there are cores, and those of the ledger.
pub(crate) fn run(cycles: &Cycles) -> Result<Cycled> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(measure(cycles))
}

async fn measure(cycles: &Cycles) -> Result<Cycled> {
    let wakes = Arc::new(Wakes::default());
    let slots = Arc::new(Slots::new(Arc::clone(&wakes)));
    let settings = sqlite::Settings::new(&cycles.ledger);
    let clock = Arc::new(ClockWatch::new(Arc::new(SystemClock)));
    let (ledger, births) = sqlite::open(settings, Arc::clone(&slots), wakes, Arc::new(SystemEntropy), clock)?;
    let desk = Arc::new(declare(cycles, ledger, slots).await?);
    let settling = tokio::spawn(settle_all(Arc::clone(&desk), births));
    let waiters: Vec<_> = (0..cycles.waiters).map(|_| tokio::spawn(accept_all(Arc::clone(&desk)))).collect();

    tokio::time::sleep(cycles.warm_up).await;
    let (from, cpu_before, settled_before) = (Instant::now(), own_cpu_seconds()?, desk.settled.load(Ordering::Relaxed));
    tokio::time::sleep(cycles.span).await;
    let (span, cpu_seconds) = (from.elapsed(), own_cpu_seconds()? - cpu_before);
    let settled = desk.settled.load(Ordering::Relaxed) - settled_before;

    desk.over.store(true, Ordering::Relaxed);
    let mut latencies = Latencies::new()?;
    for waiter in waiters {
        latencies.merge(&waiter.await??)?;
    }
    let start = Instant::now();
    while desk.settled.load(Ordering::Relaxed) < desk.accepted.load(Ordering::Relaxed) {
        if settling.is_finished() || start.elapsed() > PATIENCE {
            bail!("accepted events were not settled");
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    desk.ledger.close().await?;
    Ok(Cycled { settled, span, cpu_seconds, latency: latencies.spread() })
}

async fn declare(cycles: &Cycles, ledger: Arc<SqliteLedger>, slots: Arc<Slots>) -> Result<Desk> {
    let (tenant, endpoint): (Name, Name) = ("bench".parse()?, "receiver".parse()?);
    let declared = DeclaredTenant {
        name: tenant.clone(),
        sources: Vec::new(),
        endpoints: vec![DeclaredEndpoint { name: endpoint.clone(), host: "127.0.0.1".into(), generated_secret: None }],
    };
    let directory = ledger.declare(Declaration { tenants: vec![declared] }, SystemClock.now()).await?;
    let known = directory.tenants.get(&tenant).context("the tenant has no key")?;
    let endpoint = known.endpoints.get(&endpoint).context("the endpoint has no key")?.key;
    let caps = EndpointCaps { endpoint, tenant: known.key, concurrency: IN_FLIGHT_MAX, lease_for: LEASE, rate: None };
    slots.configure(vec![caps], IN_FLIGHT_MAX, IN_FLIGHT_MAX);
    Ok(Desk {
        ledger,
        slots,
        grant: Grant::by_token(&Secret::new("bench"), b"bench", &tenant).context("no grant")?,
        tenant: known.key,
        endpoint,
        body: Body::new(cycles.body_bytes),
        began: Instant::now(),
        warm_up: cycles.warm_up,
        over: AtomicBool::new(false),
        accepted: AtomicU64::new(0),
        settled: AtomicU64::new(0),
    })
}

async fn accept_all(desk: Arc<Desk>) -> Result<Latencies> {
    let mut latencies = Latencies::new()?;
    while !desk.over.load(Ordering::Relaxed) {
        let slot = desk.slot().await?;
        let number = desk.accepted.fetch_add(1, Ordering::Relaxed);
        let now = SystemClock.now();
        let publication = Publication {
            event_type: "push".into(),
            content_type: "application/json".into(),
            body: Bytes::copy_from_slice(desk.body.as_bytes()),
            key: Some(format!("72d3162e-cc78-4e3a-8aa5-{number:012x}")),
            deliver_at: None,
            expires_at: None,
            deadline: None,
        };
        let accept = Accept {
            tenant: desk.tenant,
            source: None,
            event: desk.grant.event(publication, DEDUP_WINDOW, now),
            deliveries: vec![NewDelivery { endpoint: desk.endpoint, slot: Some(slot) }],
            now,
        };
        let from = Instant::now();
        let accepted = desk.ledger.accept(accept).await?;
        ensure!(matches!(accepted, Accepted::New(_)), "a new event was taken for {accepted:?}");
        if from >= desk.began + desk.warm_up {
            latencies.record_span(from.elapsed());
        }
    }
    Ok(latencies)
}

impl Desk {
    async fn slot(&self) -> Result<Slot> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            match self.slots.take_for_backlog(self.endpoint, SystemClock.now()) {
                Taken::Slot(slot) => return Ok(slot),
                Taken::Full => tokio::time::sleep(Duration::from_millis(1)).await,
                Taken::NotBefore(_) | Taken::Closed => bail!("the endpoint is closed"),
            }
        }
        bail!("no slot comes free")
    }
}

/// Stands where the dispatcher stands: each attempt is a task of its own.
async fn settle_all(desk: Arc<Desk>, mut births: mpsc::UnboundedReceiver<Claimed>) {
    while let Some(claimed) = births.recv().await {
        let desk = Arc::clone(&desk);
        tokio::spawn(async move {
            let settlement = Settlement {
                lease: claimed.lease,
                record: record(),
                decision: Disposition::Delivered { reference: None }.into(),
                now: SystemClock.now(),
            };
            // One that is not stored is missed at the end.
            if matches!(desk.ledger.settle(settlement.into()).await, Ok(Settled::Stored)) {
                desk.settled.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}

fn record() -> AttemptRecord {
    AttemptRecord {
        outcome: "answered",
        status: Some(204),
        verdict: Some("delivered"),
        reason: Reason::status(204),
        decided_by: DecidedBy::Builtin,
        duration: Duration::from_millis(1),
        ambiguous: false,
        plugin_version: None,
        plugin_took: None,
        plugin_log: Vec::new(),
        plugin_log_dropped: 0,
        request: None,
        response: None,
        detail: None,
    }
}
