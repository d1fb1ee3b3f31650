//! The gateway's own ledger, alone: events accepted with a slot, each handed back for its attempt, and settled as
//! delivered. Sealing, dedup, leases, attempts and group commit are in it; sockets are not.

use crate::latency::{Latencies, Spread};
use crate::process::own_cpu_seconds;
use crate::wire::Body;
use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use hookgate::clock::{Clock as _, ClockWatch, SystemClock};
use hookgate::delivery::{DecidedBy, Disposition, HealthPolicy, Name, Pulse, Reason, Signal};
use hookgate::entropy::SystemEntropy;
use hookgate::ledger::sqlite::{self, SqliteLedger};
use hookgate::ledger::{
    Accept, Accepted, AttemptRecord, Claimed, Declaration, DeclaredEndpoint, DeclaredTenant, DeliveryFilter,
    EndpointCaps, EndpointKey, NewDelivery, PageRequest, Queue as _, Records as _, Settled, Settlement, Slot, Slots,
    Taken, TenantKey, Wakes,
};
use hookgate::secret::Secret;
use hookgate::verify::{Grant, Publication};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

const IN_FLIGHT_MAX: u32 = 4096;
const LEASE: Duration = Duration::from_secs(45);
const DEDUP_WINDOW: Duration = Duration::from_secs(7 * 24 * 3600);
const PATIENCE: Duration = Duration::from_secs(20);
/// Tasks that make a past.
const FILLERS: u64 = 512;
const CLAIMED_AT_ONCE: u32 = 64;
const PAGES: u32 = 50;

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

/// A ledger with a past, left as a process leaves it that is killed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Past {
    pub(crate) ledger: PathBuf,
    /// Events that were delivered, and events that wait.
    pub(crate) delivered: u64,
    pub(crate) pending: u64,
    pub(crate) body_bytes: usize,
}

/// What a ledger with a past does.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Aged {
    /// From nothing to the first claim.
    pub(crate) start: Duration,
    /// The newest 50 deliveries.
    pub(crate) page: Spread,
    /// 64 of what waits.
    pub(crate) claim: Spread,
    pub(crate) cycled: Cycled,
}

/// What all tasks share.
struct Desk {
    ledger: Arc<SqliteLedger>,
    slots: Arc<Slots>,
    grant: Grant,
    tenant: TenantKey,
    endpoint: EndpointKey,
    /// An endpoint whose events wait.
    backlog: EndpointKey,
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

/// Makes a past, and ends without a word to the ledger. Gives how many events it has.
pub(crate) fn run_past(past: &Past) -> Result<u64> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let (desk, births) = open(&past.ledger, past.body_bytes, Duration::ZERO).await?;
        tokio::spawn(settle_all(Arc::clone(&desk), births));
        let fillers = (0..FILLERS).map(|at| {
            let desk = Arc::clone(&desk);
            let share = |of: u64| of / FILLERS + u64::from(at < of % FILLERS);
            let (delivered, pending) = (share(past.delivered), share(past.pending));
            tokio::spawn(async move {
                for number in 0..delivered.max(pending) {
                    if number < delivered {
                        let slot = desk.slot(desk.endpoint).await?;
                        accept(&desk, desk.endpoint, Some(slot)).await?;
                    }
                    if number < pending {
                        accept(&desk, desk.backlog, None).await?;
                    }
                }
                anyhow::Ok(())
            })
        });
        for filler in fillers.collect::<Vec<_>>() {
            filler.await??;
        }
        desk.all_settled(past.delivered).await?;
        Ok(desk.accepted.load(Ordering::Relaxed))
    })
}

/// Starts over a past.
pub(crate) fn run_aged(cycles: &Cycles) -> Result<Aged> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(aged(cycles))
}

async fn aged(cycles: &Cycles) -> Result<Aged> {
    let began = Instant::now();
    let (desk, births) = open(&cycles.ledger, cycles.body_bytes, cycles.warm_up).await?;
    let mut claims = Latencies::new()?;
    let mut start = None;
    while start.is_none_or(|start| began.elapsed() < start + cycles.span) {
        let mut slots = Vec::new();
        for _ in 0..CLAIMED_AT_ONCE {
            slots.push(desk.slot(desk.backlog).await?);
        }
        let from = Instant::now();
        let claimed = desk.ledger.claim(slots, SystemClock.now()).await?.started;
        claims.record_span(from.elapsed());
        start.get_or_insert_with(|| began.elapsed());
        if claimed.is_empty() {
            break;
        }
        let settlements = claimed.iter().map(|one| desk.ledger.settle(settlement(one).into()));
        futures_util::future::try_join_all(settlements).await?;
    }
    let mut pages = Latencies::new()?;
    for _ in 0..PAGES {
        let (filter, page) = (DeliveryFilter::default(), PageRequest { limit: 50, cursor: None });
        let from = Instant::now();
        let read = desk.ledger.deliveries(desk.tenant, &filter, &page).await?;
        pages.record_span(from.elapsed());
        ensure!(!read.items.is_empty(), "the list is empty");
    }
    let (start, page, claim) = (start.context("nothing was claimed")?, pages.spread(), claims.spread());
    Ok(Aged { start, page, claim, cycled: cycle(cycles, desk, births).await? })
}

async fn measure(cycles: &Cycles) -> Result<Cycled> {
    let (desk, births) = open(&cycles.ledger, cycles.body_bytes, cycles.warm_up).await?;
    cycle(cycles, desk, births).await
}

async fn open(
    ledger: &Path,
    body_bytes: usize,
    warm_up: Duration,
) -> Result<(Arc<Desk>, mpsc::UnboundedReceiver<Claimed>)> {
    let wakes = Arc::new(Wakes::default());
    let slots = Arc::new(Slots::new(Arc::clone(&wakes)));
    let settings = sqlite::Settings::new(ledger);
    let clock = Arc::new(ClockWatch::new(Arc::new(SystemClock)));
    let (ledger, births) = sqlite::open(settings, Arc::clone(&slots), wakes, Arc::new(SystemEntropy), clock)?;
    Ok((Arc::new(declare(body_bytes, warm_up, ledger, slots).await?), births))
}

async fn cycle(cycles: &Cycles, desk: Arc<Desk>, births: mpsc::UnboundedReceiver<Claimed>) -> Result<Cycled> {
    tokio::spawn(settle_all(Arc::clone(&desk), births));
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
    desk.all_settled(desk.accepted.load(Ordering::Relaxed)).await?;
    desk.ledger.close().await?;
    Ok(Cycled { settled, span, cpu_seconds, latency: latencies.spread() })
}

async fn declare(body_bytes: usize, warm_up: Duration, ledger: Arc<SqliteLedger>, slots: Arc<Slots>) -> Result<Desk> {
    let (tenant, endpoint, backlog): (Name, Name, Name) = ("bench".parse()?, "receiver".parse()?, "backlog".parse()?);
    let named = |name: &Name| DeclaredEndpoint {
        name: name.clone(),
        host: "127.0.0.1".into(),
        generated_secret: None,
        scrub: false,
    };
    let declared = DeclaredTenant {
        name: tenant.clone(),
        sources: Vec::new(),
        endpoints: vec![named(&endpoint), named(&backlog)],
    };
    let directory = ledger.declare(Declaration { tenants: vec![declared] }, SystemClock.now()).await?;
    let known = directory.tenants.get(&tenant).context("the tenant has no key")?;
    let key = |name: &Name| Ok::<_, anyhow::Error>(known.endpoints.get(name).context("no key for an endpoint")?.key);
    let (endpoint, backlog) = (key(&endpoint)?, key(&backlog)?);
    let caps = |endpoint| EndpointCaps {
        endpoint,
        tenant: known.key,
        concurrency: IN_FLIGHT_MAX,
        lease_for: LEASE,
        rate: None,
    };
    slots.configure(vec![caps(endpoint), caps(backlog)], IN_FLIGHT_MAX, IN_FLIGHT_MAX);
    Ok(Desk {
        ledger,
        slots,
        grant: Grant::by_token(&Secret::new("bench"), b"bench", &tenant).context("no grant")?,
        tenant: known.key,
        endpoint,
        backlog,
        body: Body::new(body_bytes),
        began: Instant::now(),
        warm_up,
        over: AtomicBool::new(false),
        accepted: AtomicU64::new(0),
        settled: AtomicU64::new(0),
    })
}

async fn accept_all(desk: Arc<Desk>) -> Result<Latencies> {
    let mut latencies = Latencies::new()?;
    while !desk.over.load(Ordering::Relaxed) {
        let slot = desk.slot(desk.endpoint).await?;
        let took = accept(&desk, desk.endpoint, Some(slot)).await?;
        if Instant::now() >= desk.began + desk.warm_up {
            latencies.record_span(took);
        }
    }
    Ok(latencies)
}

/// One event. How long it took to be durable.
async fn accept(desk: &Desk, endpoint: EndpointKey, slot: Option<Slot>) -> Result<Duration> {
    let number = desk.accepted.fetch_add(1, Ordering::Relaxed);
    let now = SystemClock.now();
    let publication = Publication {
        event_type: "push".into(),
        content_type: "application/json".into(),
        body: Bytes::copy_from_slice(desk.body.as_bytes()),
        // Of this process: another one may have been here before.
        key: Some(format!("72d3162e-{:08x}-{number:016x}", std::process::id())),
        deliver_at: None,
        expires_at: None,
        deadline: None,
        relation: None,
    };
    let accept = Accept {
        tenant: desk.tenant,
        source: None,
        event: desk.grant.event(publication, DEDUP_WINDOW, now),
        deliveries: vec![NewDelivery { endpoint, slot, order: None }],
        now,
    };
    let from = Instant::now();
    let accepted = desk.ledger.accept(accept).await?;
    ensure!(matches!(accepted, Accepted::New(_)), "a new event was taken for {accepted:?}");
    Ok(from.elapsed())
}

impl Desk {
    /// Waits until so many are settled.
    async fn all_settled(&self, all: u64) -> Result<()> {
        let start = Instant::now();
        while self.settled.load(Ordering::Relaxed) < all {
            ensure!(start.elapsed() < PATIENCE, "accepted events were not settled");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    async fn slot(&self, endpoint: EndpointKey) -> Result<Slot> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            match self.slots.take_for_backlog(endpoint, SystemClock.now()) {
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
            // One that is not stored is missed at the end.
            if matches!(desk.ledger.settle(settlement(&claimed).into()).await, Ok(Settled::Stored)) {
                desk.settled.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}

fn settlement(claimed: &Claimed) -> Settlement {
    Settlement {
        lease: claimed.lease,
        record: record(),
        decision: Disposition::Delivered { reference: None }.into(),
        pulse: Some(Pulse { signal: Signal::Works, policy: HealthPolicy::default(), chance: 0 }),
        now: SystemClock.now(),
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
