//! A ledger under test, with short words for what the tests do to it.

use crate::support::{ManualClock, SeededEntropy, name, publication, verified};
use hookgate::clock::{Clock as _, ClockWatch, Timestamp};
use hookgate::delivery::{DecidedBy, Decision, DeliveryId, Disposition, EventId, Reason};
use hookgate::ledger::sqlite::{Settings, SqliteLedger, open};
use hookgate::ledger::{
    Accept, Accepted, AttemptRecord, Claimed, Declaration, DeclaredEndpoint, DeclaredTenant, DeliveryDetail, Directory,
    EndpointCaps, EndpointKey, Lease, Ledger, LedgerError, NewDelivery, Settled, Settlement, Slot, Slots, Taken,
    TenantKey, Wakes,
};
use hookgate::verify::Publication;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::mpsc;

pub const START: Timestamp = Timestamp::from_millis(1_760_000_000_000);
pub const WINDOW: Duration = Duration::from_secs(7 * 86_400);
pub const LEASE: Duration = Duration::from_secs(45);

pub struct Bench {
    pub ledger: Arc<dyn Ledger>,
    /// The same, for what is SQLite's alone.
    pub sqlite: Arc<SqliteLedger>,
    pub births: mpsc::UnboundedReceiver<Claimed>,
    pub slots: Arc<Slots>,
    pub wakes: Arc<Wakes>,
    pub clock: Arc<ManualClock>,
    pub watch: Arc<ClockWatch>,
    pub directory: Directory,
    pub dir: Arc<TempDir>,
    pub path: PathBuf,
}

pub fn settings(path: &Path) -> Settings {
    Settings { ballast_bytes: 0, ..Settings::new(path) }
}

/// Two tenants with the same names in them.
pub fn declaration() -> Declaration {
    let tenant = |tenant: &str, endpoints: &[&str]| DeclaredTenant {
        name: name(tenant),
        sources: vec![name("github"), name("stripe")],
        endpoints: endpoints
            .iter()
            .map(|e| DeclaredEndpoint {
                name: name(e),
                host: format!("{e}.example"),
                generated_secret: None,
                scrub: false,
            })
            .collect(),
    };
    Declaration { tenants: vec![tenant("acme", &["billing", "crm", "audit"]), tenant("globex", &["billing"])] }
}

impl Bench {
    pub async fn new() -> Bench {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let path = dir.path().join("data/ledger.db");
        Bench::open(settings(&path), dir, START).await
    }

    pub async fn with(change: impl FnOnce(&mut Settings)) -> Bench {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let mut settings = settings(&dir.path().join("data/ledger.db"));
        change(&mut settings);
        Bench::open(settings, dir, START).await
    }

    pub async fn open(settings: Settings, dir: Arc<TempDir>, now: Timestamp) -> Bench {
        Bench::try_open(settings, dir, now).await.unwrap()
    }

    pub async fn try_open(settings: Settings, dir: Arc<TempDir>, now: Timestamp) -> Result<Bench, LedgerError> {
        Bench::try_declared(settings, dir, now, declaration()).await
    }

    async fn try_declared(
        settings: Settings,
        dir: Arc<TempDir>,
        now: Timestamp,
        declaration: Declaration,
    ) -> Result<Bench, LedgerError> {
        let wakes = Arc::new(Wakes::default());
        let slots = Arc::new(Slots::new(Arc::clone(&wakes)));
        let clock = Arc::new(ManualClock::at(now));
        let watch = Arc::new(ClockWatch::new(Arc::<ManualClock>::clone(&clock)));
        let path = settings.path.clone();
        // The same chance on every run, but never twice for one ledger.
        static OPENED: AtomicU64 = AtomicU64::new(0);
        let entropy = Arc::new(SeededEntropy::new(OPENED.fetch_add(1, Ordering::SeqCst) << 32));
        let (sqlite, births) = open(settings, Arc::clone(&slots), Arc::clone(&wakes), entropy, Arc::clone(&watch))?;
        let ledger: Arc<dyn Ledger> = Arc::<SqliteLedger>::clone(&sqlite);
        let directory = ledger.declare(declaration, now).await?;
        let caps = directory.tenants.values().flat_map(|t| {
            t.endpoints.values().map(|e| EndpointCaps {
                endpoint: e.key,
                tenant: t.key,
                concurrency: 1_000,
                lease_for: LEASE,
                rate: None,
            })
        });
        slots.configure(caps.collect(), 10_000, 10_000);
        Ok(Bench { ledger, sqlite, births, slots, wakes, clock, watch, directory, dir, path })
    }

    /// Ends this process's part without closing, and begins again on what is on the disk.
    pub async fn restart(self) -> Bench {
        let now = self.now();
        self.restart_with(now, |_| {}).await
    }

    pub async fn restart_with(self, now: Timestamp, change: impl FnOnce(&mut Settings)) -> Bench {
        let (path, dir) = (self.path.clone(), Arc::clone(&self.dir));
        drop(self);
        let mut settings = settings(&path);
        change(&mut settings);
        Bench::open(settings, dir, now).await
    }

    /// The same with another configuration.
    pub async fn restart_declared(self, declaration: Declaration) -> Bench {
        let (now, path, dir) = (self.now(), self.path.clone(), Arc::clone(&self.dir));
        drop(self);
        Bench::try_declared(settings(&path), dir, now, declaration).await.unwrap()
    }

    /// What a machine that lost its power now would find, opened beside this one.
    pub async fn copy_as_after_a_crash(&self) -> Bench {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let to = dir.path().join("data");
        std::fs::create_dir(&to).unwrap();
        std::fs::set_permissions(&to, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        for file in ["ledger.db", "ledger.db-wal", "master-key"] {
            let from = self.path.parent().unwrap().join(file);
            if from.exists() {
                std::fs::copy(from, to.join(file)).unwrap();
            }
        }
        Bench::open(settings(&to.join("ledger.db")), dir, self.now()).await
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub fn tenant(&self, tenant: &str) -> TenantKey {
        self.directory.tenants[tenant].key
    }

    pub fn endpoint(&self, endpoint: &str) -> EndpointKey {
        self.directory.tenants["acme"].endpoints[endpoint].key
    }

    pub fn slot(&self, endpoint: &str) -> Slot {
        match self.slots.take_for_backlog(self.endpoint(endpoint), self.now()) {
            Taken::Slot(slot) => slot,
            other => panic!("no slot for {endpoint}: {other:?}"),
        }
    }

    /// An acceptance for tenant acme. `+name`: with a slot.
    pub fn acceptance(&self, publication: Publication, endpoints: &[&str]) -> Accept {
        let now = self.now();
        Accept {
            tenant: self.tenant("acme"),
            source: None,
            event: verified("acme", publication, WINDOW, now),
            deliveries: endpoints
                .iter()
                .map(|text| match text.strip_prefix('+') {
                    Some(endpoint) => {
                        NewDelivery { endpoint: self.endpoint(endpoint), slot: Some(self.slot(endpoint)), order: None }
                    }
                    None => NewDelivery { endpoint: self.endpoint(text), slot: None, order: None },
                })
                .collect(),
            now,
        }
    }

    pub async fn publish(&self, publication: Publication, endpoints: &[&str]) -> Accepted {
        self.ledger.accept(self.acceptance(publication, endpoints)).await.unwrap()
    }

    /// A new event without a key, and its deliveries.
    pub async fn accept(&self, body: &str, endpoints: &[&str]) -> (EventId, Vec<DeliveryId>) {
        let Accepted::New(id) = self.publish(publication("test", None, body), endpoints).await else {
            panic!("an event without a key is always new")
        };
        let event = self.ledger.event(self.tenant("acme"), id).await.unwrap().unwrap();
        (id, event.deliveries.unwrap())
    }

    /// A delivery to `endpoint` that is in flight. Nothing has read it yet.
    pub async fn start(&mut self, endpoint: &str) -> Claimed {
        self.publish(publication("test", None, "{}"), &[&format!("+{endpoint}")]).await;
        self.births.try_recv().expect("a birth")
    }

    /// As many slots as `limit` for the endpoint's due work.
    pub async fn claim(&self, endpoint: &str, limit: usize) -> Vec<Claimed> {
        let slots = (0..limit).map(|_| self.slot(endpoint)).collect();
        self.ledger.claim(slots, self.now()).await.unwrap().started
    }

    pub async fn settle(&self, lease: Lease, decision: impl Into<Decision>) -> Settled {
        self.settle_as(lease, record("answered", Some(200)), decision).await
    }

    pub async fn settle_as(&self, lease: Lease, record: AttemptRecord, decision: impl Into<Decision>) -> Settled {
        let settlement = Settlement { lease, record, decision: decision.into(), pulse: None, now: self.now() };
        self.ledger.settle(settlement.into()).await.unwrap()
    }

    pub async fn detail(&self, id: DeliveryId) -> DeliveryDetail {
        self.ledger.delivery(self.tenant("acme"), id).await.unwrap().expect("the delivery")
    }

    /// A dead letter of `endpoint`, with an `http_500` behind it.
    pub async fn kill(&mut self, endpoint: &str) -> DeliveryId {
        let claimed = self.start(endpoint).await;
        let record = record("answered", Some(500));
        assert_eq!(self.settle_as(claimed.lease, record, dead("http_500")).await, Settled::Stored);
        claimed.lease.delivery
    }

    /// The database itself, for what no verb does.
    pub fn raw(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(&self.path).unwrap()
    }
}

pub fn record(outcome: &'static str, status: Option<u16>) -> AttemptRecord {
    AttemptRecord {
        outcome,
        status,
        verdict: None,
        reason: status.map_or(Reason::INTERRUPTED, Reason::status),
        decided_by: DecidedBy::Builtin,
        duration: Duration::from_millis(12),
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

pub fn delivered() -> Disposition {
    Disposition::Delivered { reference: None }
}

pub fn dead(reason: &'static str) -> Disposition {
    Disposition::Dead(Reason::word(reason))
}

pub fn retry(due: Timestamp) -> Disposition {
    Disposition::RetryAt { due, reason: Reason::status(503) }
}

pub fn released(due: Timestamp) -> Disposition {
    Disposition::Released { due, reason: Reason::SHUTDOWN }
}
