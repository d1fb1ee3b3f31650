//! An admin listener with two tenants, on a clock that stands still.

use crate::fake_ledger::{FakeLedger, Fixed};
use crate::ingress::name;
use crate::peer::{Reply, ask};
use crate::pull::Stall;
use async_trait::async_trait;
use hookgate::admin::{
    Admin, Desk, Down, DryRun, DryRunPage, Endpoint, Estate, Examiner, Plugin, Posed, Refusal, Rehearsal, Replay,
    ReplayedPage, Serving, Settings, Shipment, Shipped, Shipyard, Shown, Source, State, Tenant, TrialWish, Unheard,
};
use hookgate::clock::{Clock, Timestamp};
use hookgate::console::{self, Console};
use hookgate::delivery::{
    AttemptId, Bounds, Counts, DeliveryId, DeliveryState, EndpointStatus, EventId, EventTypes, Failing, Health, Mint,
    Name, OnDead, Order, PluginVersionId, Route, Said, Share, TrialId, Tripped, Window,
};
use hookgate::entropy::SystemEntropy;
use hookgate::http::{Limits, serve};
use hookgate::ledger::{
    AttemptRow, Compared, Course, DeadDestination, DeliveryDetail, DeliveryRow, EndRow, Ending, EndpointCaps,
    EndpointHealth, EndpointKey, EndpointState, Gauges, Halves, Origin, Slots, SourceKey, TenantKey, TrialRow,
    VersionRow,
};
use hookgate::secret::Secret;
use hookgate::telemetry::Metrics;
use hookgate::verify::{CheckStep, Step};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub const NOW: Timestamp = Timestamp::from_millis(1_767_225_600_123);
pub const TOKEN: &str = "hg-operator-5f1e";
/// Put where a secret could slip through; must be in no answer.
pub const CANARY: &str = "canary-8842";

pub struct Still;

impl Clock for Still {
    fn now(&self) -> Timestamp {
        NOW
    }

    fn monotonic(&self) -> Instant {
        Instant::now()
    }
}

/// Answers as it was told to, and remembers what it was asked.
#[derive(Default)]
pub struct Yard {
    pub answer: Mutex<Option<Result<Shipped, Refusal>>>,
    pub asked: Mutex<Vec<String>>,
    pub dry_run: Mutex<Option<Result<DryRunPage, Unheard>>>,
    pub replayed: Mutex<Option<ReplayedPage>>,
    /// Destinations that are down.
    pub down: Mutex<Vec<Down>>,
}

#[async_trait]
impl Desk for Yard {
    async fn probe(&self, destinations: &[DeadDestination]) -> Vec<Down> {
        let to: Vec<_> = destinations.iter().map(|to| format!("{} {}", to.endpoint, to.host)).collect();
        self.asked.lock().unwrap().push(format!("probe {}", to.join(", ")));
        self.down.lock().unwrap().clone()
    }

    fn tell(&self) {
        self.asked.lock().unwrap().push("news".to_owned());
    }
}

impl Yard {
    fn note(&self, asked: String) -> Result<Shipped, Box<Refusal>> {
        self.asked.lock().unwrap().push(asked);
        self.answer.lock().unwrap().clone().unwrap_or(Err(Refusal::NotFound)).map_err(Box::new)
    }
}

#[async_trait]
impl Shipyard for Yard {
    async fn upload(&self, s: Shipment) -> Result<Shipped, Refusal> {
        let bytes = String::from_utf8_lossy(&s.wasm).into_owned();
        self.note(format!("upload {}/{} {bytes} by {} {} {}", s.tenant, s.plugin, s.by, s.activate, s.wait))
            .map_err(|refusal| *refusal)
    }

    async fn activate(
        &self,
        tenant: &Name,
        plugin: &Name,
        version: PluginVersionId,
        by: &str,
    ) -> Result<VersionRow, Refusal> {
        self.note(format!("activate {tenant}/{plugin} {version} by {by}"))
            .map(|shipped| shipped.row)
            .map_err(|refusal| *refusal)
    }

    async fn roll_back(&self, tenant: &Name, plugin: &Name, by: &str) -> Result<VersionRow, Refusal> {
        self.note(format!("rollback {tenant}/{plugin} by {by}")).map(|shipped| shipped.row).map_err(|refusal| *refusal)
    }

    async fn begin_trial(&self, wish: TrialWish) -> Result<TrialRow, Refusal> {
        let TrialWish { tenant, plugin, version, share, canary, by } = wish;
        let share = share.ratio();
        let asked = match canary {
            None => format!("shadow {tenant}/{plugin} {version} {share} by {by}"),
            Some(Bounds { max_fault_rate, max_terminal_rate, min_calls }) => format!(
                "canary {tenant}/{plugin} {version} {share} {max_fault_rate} {max_terminal_rate} {min_calls} by {by}"
            ),
        };
        self.note(asked).map(|_| trial(TenantKey(1), false)).map_err(|refusal| *refusal)
    }

    async fn stop_trial(&self, tenant: &Name, plugin: &Name, canary: bool, by: &str) -> Result<TrialRow, Refusal> {
        let kind = if canary { "canary" } else { "shadow" };
        let noted = self.note(format!("stop {kind} {tenant}/{plugin} by {by}"));
        noted.map(|_| trial(TenantKey(1), canary)).map_err(|refusal| *refusal)
    }
}

/// Lets in what is signed by its own name.
impl Examiner for Yard {
    fn explain(&self, tenant: &Name, source: &Name, posed: &Posed) -> Option<Vec<Step>> {
        let Posed { method, url, headers, body, received_at } = posed;
        let (body, at) = (String::from_utf8_lossy(body), received_at.to_rfc3339());
        self.asked.lock().unwrap().push(format!("explain {tenant}/{source} {method} {url:?} {body:?} at {at}"));
        let step = |name, ok, detail: &str| Step { name, ok, detail: detail.to_owned() };
        let found = step(CheckStep::Presence, true, "header x-hub-signature-256 is there");
        let is_mine = headers.get("x-hub-signature-256")? == source.as_str();
        let detail = if is_mine { "secret 1 of 1 made it" } else { "signature_mismatch: <b>none</b> made it" };
        Some(vec![found, step(CheckStep::Match, is_mine, detail)])
    }
}

/// A canary that was rolled back, or a shadow that runs.
pub fn trial(tenant: TenantKey, canary: bool) -> TrialRow {
    let course = if canary {
        let of_canary = Counts { delivered: 20, terminal: 30, ..Counts::default() };
        let active = Counts { delivered: 400, retryable: 8, terminal: 4, faults: 1, ..Counts::default() };
        let window = Window { calls: 50, faults: 0, terminal: 30, faults_in_a_row: 0 };
        Course::Canary { bounds: Bounds::default(), halves: Halves { canary: of_canary, active, window } }
    } else {
        let pairs = [((Said::Delivered, Said::Delivered), 90), ((Said::Retryable, Said::Terminal), 9)];
        Course::Shadow(Compared { pairs: pairs.into_iter().collect(), same: 88, requests: 2, left_out: 3 })
    };
    TrialRow {
        id: TrialId::from_u128(0x019b_76da_a87b_7000_8000_0000_0000_0007),
        tenant,
        plugin: name("rules"),
        version: version(3),
        active: version(1),
        share: Share::new("10%".parse().unwrap()).unwrap(),
        course,
        began_at: NOW,
        by: "operator".into(),
        ended: canary.then(|| EndRow {
            how: Ending::RolledBack,
            at: NOW,
            by: "gateway".into(),
            why: Some("terminal rate over 10%: 30 of the newest 50 calls".into()),
            put_back: 30,
            unsettled: false,
        }),
    }
}

#[async_trait]
impl Rehearsal for Yard {
    async fn dry_run(&self, run: DryRun) -> Result<DryRunPage, Unheard> {
        self.asked.lock().unwrap().push(format!("dry-run {run:?}"));
        self.dry_run.lock().unwrap().clone().unwrap_or(Ok(DryRunPage::default()))
    }

    async fn replayed(&self, replay: Replay) -> Result<ReplayedPage, Unheard> {
        self.asked.lock().unwrap().push(format!("replayed {replay:?}"));
        Ok(self.replayed.lock().unwrap().clone().unwrap_or_default())
    }
}

pub struct Office {
    pub address: SocketAddr,
    pub ledger: Arc<FakeLedger>,
    pub yard: Arc<Yard>,
    pub stall: Arc<Stall>,
    pub serving: watch::Sender<Serving>,
    /// acme's, in this order: dead, pending, delivered; then globex's dead one.
    pub deliveries: [DeliveryId; 4],
}

/// The process has one recorder.
pub fn metrics() -> Metrics {
    static INSTALLED: OnceLock<Metrics> = OnceLock::new();
    INSTALLED.get_or_init(|| Metrics::install().unwrap()).clone()
}

fn shown(fields: &Value) -> Shown {
    let Value::Object(fields) = fields else { panic!("an object") };
    Shown::new(fields.clone())
}

pub fn version(n: u8) -> PluginVersionId {
    let mut id = [n; 16];
    (id[6], id[8]) = (0x70, 0x80);
    PluginVersionId::from_bytes(id)
}

fn estate() -> Estate {
    let github = json!({ "scheme": "github", "secrets": [CANARY], "rate": { "per_second": 5.0, "burst": 10 } });
    let billing = json!({
        "url": "https://billing.example/hooks", "event_types": ["push", "invoice.*"], "timeout": "15s",
        "concurrency": 10, "on_ambiguous": "retry", "signing_secrets": [CANARY],
    });
    let paid = EventTypes::new(vec!["push".to_owned(), "invoice.*".to_owned()]).unwrap();
    let endpoint = |key, route, fields: &Value| Endpoint {
        key: EndpointKey(key),
        route,
        order: if key == 1 { Order::ByKey(OnDead::Hold) } else { Order::Free },
        plugin: Some(name(if key == 1 { "rules" } else { "filed" })),
        generated_secret: None,
        disable_after: (key == 1).then(|| Duration::from_secs(432_000)),
        pull: (key == 2).then_some(Duration::from_secs(45)),
        shown: shown(fields),
    };
    let plugin = |by_file| Plugin { by_file, component_bytes_max: 1_000 };
    let acme = Tenant {
        key: TenantKey(1),
        sources: [
            (name("github"), Source { key: SourceKey(1), adopts: false, shown: shown(&github) }),
            (name("partner"), Source { key: SourceKey(2), adopts: true, shown: shown(&json!({ "scheme": "custom" })) }),
        ]
        .into(),
        endpoints: [
            (name("billing"), endpoint(1, Route { sources: None, event_types: paid }, &billing)),
            (name("only-github"), {
                let route = Route { sources: Some(vec![name("github")]), event_types: EventTypes::default() };
                endpoint(2, route, &json!({ "url": "https://b.example/" }))
            }),
        ]
        .into(),
        plugins: [(name("filed"), plugin(Some(version(9)))), (name("rules"), plugin(None))].into(),
    };
    let globex = Tenant { key: TenantKey(2), sources: [].into(), endpoints: [].into(), plugins: [].into() };
    Estate { tenants: [(name("acme"), acme), (name("globex"), globex)].into() }
}

fn rows() -> Vec<(TenantKey, DeliveryDetail)> {
    let mint = Mint::default();
    let row = |tenant: u32, state: DeliveryState| {
        let dead = state == DeliveryState::Dead;
        let delivery = DeliveryRow {
            id: mint.mint(NOW, &Fixed).into(),
            event: EventId::from(mint.mint(NOW, &Fixed)),
            event_type: "invoice.paid".to_owned(),
            key: Some("order-7".to_owned()),
            source: Some(name("github")),
            endpoint: name("billing"),
            host: "billing.example".to_owned(),
            state,
            reason: dead.then(|| "http_500".to_owned()),
            attempt_count: 1,
            generation: 1,
            revision: 0,
            due_at: (state == DeliveryState::Pending).then_some(NOW),
            created_at: NOW,
            finished_at: dead.then_some(NOW),
            expires_at: None,
            deadline: None,
            last_status: dead.then_some(500),
            reference: None,
            sequence: 41,
            idempotency_key: "order-7".to_owned(),
            note: None,
            ordering_key: None,
            held_by: None,
            out_of_order: false,
            origin: Origin::Accepted,
            resend_of: None,
        };
        let attempt = AttemptRow {
            id: AttemptId::from(mint.mint(NOW, &Fixed)),
            number: 1,
            generation: 1,
            revision: 0,
            started_at: NOW,
            duration_ms: Some(12),
            outcome: Some("answered".to_owned()),
            status: Some(500),
            verdict: Some("terminal".to_owned()),
            reason: Some("http_500".to_owned()),
            decided_by: Some("builtin".to_owned()),
            disposition: Some("dead".to_owned()),
            next_at: None,
            clamped_from_ms: None,
            ambiguous: false,
            plugin_version: None,
            plugin_ms: Some(0.125),
            plugin_log: Vec::new(),
            plugin_log_dropped: 0,
            detail: None,
            response_headers: Some(vec![("content-type".to_owned(), "text/html".to_owned())]),
            response_body: Some("<script>alert(1)</script>".to_owned()),
            response_body_base64: None,
            response_body_truncated: false,
            request_method: None,
            request_path: None,
        };
        (
            TenantKey(tenant),
            DeliveryDetail { delivery, resends: Vec::new(), revisions: Vec::new(), attempts: vec![attempt] },
        )
    };
    vec![
        row(1, DeliveryState::Dead),
        row(1, DeliveryState::Pending),
        row(1, DeliveryState::Delivered),
        row(2, DeliveryState::Dead),
    ]
}

/// The first one only fails, and its breaker is open.
pub fn health(key: u32) -> Health {
    if key != 1 {
        return Health::default();
    }
    let ago = |seconds| NOW.minus(Duration::from_secs(seconds));
    let failures = std::num::NonZeroU32::new(12).unwrap();
    Health {
        failing: Some(Failing { since: ago(3_600), failures, alerted_at: None }),
        tripped: Some(Tripped { at: ago(10), until: NOW.plus(Duration::from_secs(15)), span: Duration::from_secs(30) }),
    }
}

pub async fn office() -> Office {
    office_with(|_| {}).await
}

/// As the gateway makes it.
fn about() -> serde_json::Map<String, Value> {
    let all = json!({
        "version": "0.1.0", "started_at": NOW, "ingress": "127.0.0.1:8080", "admin": "127.0.0.1:8081",
        "public_url": null, "ledger": "hookgate-data/ledger.db", "egress_allow": [], "egress_allow_http": false,
        "payloads_kept": "14d", "rows_kept": "90d",
    });
    let Value::Object(all) = all else { panic!("an object") };
    all
}

pub async fn office_with(change: impl FnOnce(&mut Settings)) -> Office {
    let ledger = Arc::new(FakeLedger::default());
    let rows = rows();
    let deliveries = std::array::from_fn(|i| rows[i].1.delivery.id);
    *ledger.rows.lock().unwrap() = rows;
    let state = |key, endpoint: &str, status| EndpointState {
        key: EndpointKey(key),
        name: name(endpoint),
        host: format!("{endpoint}.example"),
        status,
        pending: 3,
        available: 2,
        in_flight: 1,
        dead: 4,
        oldest_pending_at: Some(NOW),
        health: EndpointHealth::of(&health(key), NOW),
    };
    let paused = EndpointStatus::Paused { until: Some(NOW.plus(Duration::from_secs(60))), why: "retry_after".into() };
    *ledger.endpoints.lock().unwrap() = vec![
        (TenantKey(1), state(1, "billing", EndpointStatus::Enabled)),
        (TenantKey(1), state(9, "former", EndpointStatus::Enabled)),
        (TenantKey(1), state(2, "only-github", paused)),
        (TenantKey(2), state(3, "theirs", EndpointStatus::Enabled)),
    ];
    *ledger.gauges.lock().unwrap() = Gauges { pending: 17, dead: 2, ..Gauges::default() };
    let slots = Arc::new(Slots::new(Arc::default()));
    let caps = |endpoint| EndpointCaps {
        endpoint: EndpointKey(endpoint),
        tenant: TenantKey(1),
        concurrency: 10_000,
        lease_for: Duration::from_secs(30),
        rate: None,
    };
    slots.configure(vec![caps(1), caps(2)], 10_000, 10_000);
    let (serving, observed) = watch::channel(Serving::Open);
    let mut settings = Settings::with_token(Secret::new(TOKEN));
    settings.about = about();
    change(&mut settings);
    let yard = Arc::new(Yard::default());
    let stall = Arc::new(Stall::default());
    let state = State {
        ledger: Arc::clone(&ledger) as _,
        slots,
        shipyard: Arc::<Yard>::clone(&yard),
        rehearsal: Arc::<Yard>::clone(&yard),
        consumers: Arc::<Stall>::clone(&stall),
        desk: Arc::<Yard>::clone(&yard),
        examiner: Arc::<Yard>::clone(&yard),
        clock: Arc::new(Still),
        metrics: metrics(),
        serving: observed,
    };
    let admin = Admin::new(settings, state);
    admin.replace_estate(estate());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let settings = console::Settings { hosts: vec!["console.example".to_owned()] };
    let console = Console::new(settings, Arc::new(admin), Arc::new(Still), Arc::new(SystemEntropy));
    tokio::spawn(serve(listener, Arc::new(console), Limits::default(), CancellationToken::new()));
    Office { address, ledger, yard, stall, serving, deliveries }
}

impl Office {
    /// With the operator's token. Every answer that is seen is searched for secrets.
    pub async fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> Reply {
        let headers = format!("authorization: Bearer {TOKEN}\r\n{headers}");
        self.ask_bare(method, path, &headers, body).await
    }

    pub async fn ask_bare(&self, method: &str, path: &str, headers: &str, body: &str) -> Reply {
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: a\r\n{headers}content-length: {length}\r\n\r\n");
        let reply = ask(self.address, format!("{head}{body}")).await;
        let text = String::from_utf8_lossy(&reply.body);
        assert!(!text.contains(CANARY) && !text.contains(TOKEN), "{method} {path} shows a secret: {text}");
        assert_eq!(reply.header("cache-control"), Some("no-store"), "{method} {path}");
        reply
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, "", "").await
    }

    pub async fn post(&self, path: &str, body: &str) -> Reply {
        self.ask("POST", path, "content-type: application/json\r\n", body).await
    }

    /// What the ledger was asked for last.
    pub fn asked(&self) -> String {
        self.ledger.asked.lock().unwrap().clone().unwrap_or_default()
    }
}

/// Compares with `tests/golden/admin/{file}.json`; with `HOOKGATE_BLESS` set, writes it.
#[track_caller]
pub fn assert_golden(file: &str, reply: &Reply) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/admin/{file}.json"));
    let shown = json!({ "status": reply.status, "body": reply.json() });
    let text = format!("{}\n", serde_json::to_string_pretty(&shown).unwrap());
    if std::env::var_os("HOOKGATE_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, golden, "{} differs: look at it, then run again with HOOKGATE_BLESS=1", path.display());
}
