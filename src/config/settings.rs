//! What a configuration means: plain domain values, checked, with every default filled in.

use super::{Env, SecretFault, SecretRef};
use crate::clock::Timestamp;
use crate::delivery::{GatewayThresholds, Name, Order, Route, Terms, Thresholds};
use crate::secret::Secret;
use crate::verify::SourceSpec;
use http::HeaderName;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use url::Url;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Everything a gateway is started with.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub server: Server,
    pub limits: Limits,
    pub egress: Egress,
    pub retention: Retention,
    pub alerts: Alerts,
    pub tenants: BTreeMap<Name, Tenant>,
}

#[derive(Clone, Debug)]
pub struct Server {
    /// The public listener.
    pub ingress: SocketAddr,
    /// API, console and metrics.
    pub admin: SocketAddr,
    /// Names by which browsers may call the console, besides addresses and `localhost`.
    pub admin_hosts: Vec<String>,
    /// The SQLite database.
    pub ledger: PathBuf,
    /// How long a stop waits for what is on the wire.
    pub shutdown_grace: Duration,
    /// What providers call, without a trailing slash; for schemes that sign the URL.
    pub public_url: Option<Url>,
    /// Worker threads; `None`: one per core.
    pub threads: Option<usize>,
    pub log: Log,
    /// `HOOKGATE_ADMIN_TOKEN`; `None`: the token file beside the ledger, written by the first start.
    pub admin_token: Option<Secret>,
    /// `HOOKGATE_MASTER_KEY`, its 32 bytes; `None`: the key file beside the ledger, written by the first start.
    pub master_key: Option<Secret>,
}

impl Default for Server {
    fn default() -> Self {
        let loopback = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        Server {
            ingress: loopback(8080),
            admin: loopback(8081),
            admin_hosts: Vec::new(),
            ledger: PathBuf::from("hookgate-data/ledger.db"),
            shutdown_grace: Duration::from_secs(25),
            public_url: None,
            threads: None,
            log: Log::default(),
            admin_token: None,
            master_key: None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Log {
    pub format: LogFormat,
    pub level: LogLevel,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    pub const fn as_str(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }
}

/// What is held at once, and how long peers may take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Ingress bodies; a source may set its own.
    pub body_bytes_max: u64,
    /// Open connections on the public listener.
    pub connections_max: u32,
    /// Of them from one address; `None`: no such cap, since proxies share one.
    pub connections_per_address_max: Option<u32>,
    /// For a request's head.
    pub head_timeout: Duration,
    /// For a request's body.
    pub body_timeout: Duration,
    /// For a connection between requests.
    pub idle_timeout: Duration,
    /// Accepted requests that wait for their commit.
    pub queued_max: u32,
    /// Attempts on the wire, all tenants together.
    pub in_flight_max: u32,
    pub per_tenant_in_flight_max: u32,
    /// For tenants without a grant of their own.
    pub plugins: PluginLimits,
}

impl Limits {
    /// No ingress body is larger, whatever is configured.
    pub const BODY_BYTES_CAP: u64 = 25 * MIB;
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            body_bytes_max: MIB,
            connections_max: 4_096,
            connections_per_address_max: None,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
            queued_max: 4_096,
            in_flight_max: 1_024,
            per_tenant_in_flight_max: 100,
            plugins: PluginLimits::default(),
        }
    }
}

/// What one call of a plugin may take, and how large a component may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PluginLimits {
    pub component_bytes_max: u64,
    /// Wall time of a call.
    pub call_time_max: Duration,
    /// All linear memories of an instance together.
    pub memory_bytes_max: u64,
    /// Event payload into `transform`.
    pub input_bytes_max: u64,
    /// Response body into `classify`.
    pub response_bytes_max: u64,
    /// Everything a call returns.
    pub output_bytes_max: u64,
}

impl PluginLimits {
    /// What no grant exceeds.
    pub const CAP: PluginLimits = PluginLimits {
        component_bytes_max: 32 * MIB,
        call_time_max: Duration::from_secs(1),
        memory_bytes_max: 128 * MIB,
        input_bytes_max: MIB,
        response_bytes_max: 64 * KIB,
        output_bytes_max: 4 * MIB,
    };
}

impl Default for PluginLimits {
    fn default() -> Self {
        PluginLimits {
            component_bytes_max: 4 * MIB,
            call_time_max: Duration::from_millis(100),
            memory_bytes_max: 32 * MIB,
            input_bytes_max: 256 * KIB,
            response_bytes_max: 16 * KIB,
            output_bytes_max: MIB,
        }
    }
}

/// How destinations are reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Egress {
    /// `CIDR[:port[-port]]`, checked: what the address guard lets through besides public addresses.
    pub allow: Vec<String>,
    /// Whether `http://` is allowed to public addresses.
    pub allow_http: bool,
    pub connect_timeout: Duration,
    pub tls_timeout: Duration,
    pub head_bytes_max: u64,
    /// Response bytes read; what is beyond is cut.
    pub body_bytes_read_max: u64,
    /// Response bytes kept on the attempt.
    pub body_bytes_kept_max: u64,
}

impl Default for Egress {
    fn default() -> Self {
        Egress {
            allow: Vec::new(),
            allow_http: false,
            connect_timeout: Duration::from_secs(5),
            tls_timeout: Duration::from_secs(5),
            head_bytes_max: 32 * KIB,
            body_bytes_read_max: 64 * KIB,
            body_bytes_kept_max: 16 * KIB,
        }
    }
}

/// How long things are kept after the terminal state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retention {
    pub payloads: Duration,
    pub rows: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Retention { payloads: 14 * DAY, rows: 90 * DAY }
    }
}

/// What is watched, and whom the gateway tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Alerts {
    /// Between two looks.
    pub every: Duration,
    /// For tenants that say nothing else.
    pub thresholds: Thresholds,
    pub gateway: GatewayThresholds,
    /// The tenant and its endpoint that the gateway's own alerts are sent to.
    pub route: Option<(Name, Name)>,
}

impl Default for Alerts {
    fn default() -> Self {
        Alerts {
            every: Duration::from_secs(5),
            thresholds: Thresholds::default(),
            gateway: GatewayThresholds::default(),
            route: None,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TenantAlerts {
    /// The tenant's own, else the gateway's.
    pub thresholds: Thresholds,
    /// Which of the tenant's endpoints they are sent to.
    pub endpoint: Option<Name>,
}

#[derive(Clone, Debug, Default)]
pub struct Tenant {
    pub sources: BTreeMap<Name, SourceSettings>,
    pub endpoints: BTreeMap<Name, EndpointSettings>,
    pub plugins: BTreeMap<Name, PluginSettings>,
    /// The tenant's own, else the gateway's.
    pub retention: Retention,
    pub alerts: TenantAlerts,
    /// The tenant's grant, else the gateway's.
    pub plugin_limits: PluginLimits,
}

#[derive(Clone, Debug)]
pub struct SourceSettings {
    pub spec: SourceSpec,
    /// Any one may match, until it expires.
    pub secrets: Vec<SourceSecret>,
    /// `None`: the gateway's `limits.body_bytes_max`.
    pub body_bytes_max: Option<u64>,
    pub rate: Option<Rate>,
}

/// Where a source's secret is, and from when on it is none.
#[derive(Clone, Debug)]
pub struct SourceSecret {
    pub at: SecretRef,
    /// `None`: never.
    pub expires: Option<Timestamp>,
}

impl SourceSecret {
    pub fn resolve(&self, env: &Env) -> Result<Secret, SecretFault> {
        self.at.resolve(env)
    }
}

#[derive(Clone, Debug)]
pub struct EndpointSettings {
    pub route: Route,
    pub order: Order,
    pub terms: Terms,
    /// Whether what was delivered is erased at once.
    pub scrub: bool,
    pub way: Way,
}

/// How an endpoint's deliveries get there.
#[derive(Clone, Debug)]
pub enum Way {
    Push(Push),
    Pull(Pull),
}

impl EndpointSettings {
    pub fn plugin(&self) -> Option<&Name> {
        match &self.way {
            Way::Push(push) => push.plugin.as_ref(),
            Way::Pull(_) => None,
        }
    }
}

/// Consumers fetch them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pull {
    /// How long a consumer has for a delivery, unless it asks for another time.
    pub lease: Duration,
}

/// They are sent.
#[derive(Clone, Debug)]
pub struct Push {
    pub url: String,
    pub plugin: Option<Name>,
    /// A JSON object; `{}` when none is given.
    pub plugin_config: Value,
    /// Empty: the ledger generates one.
    pub signing_secrets: Vec<SecretRef>,
    pub timeout: Duration,
    pub concurrency: u32,
    pub rate: Option<Rate>,
    pub idempotency_header: HeaderName,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PluginSettings {
    /// The operator's component.
    File(PathBuf),
    /// Its versions are uploaded by the API.
    Uploaded,
}

/// A token bucket.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rate {
    /// Above zero; fractions are slower than one a second.
    pub per_second: f64,
    /// At least 1.
    pub burst: u32,
}

impl Rate {
    /// The time in which one more is allowed.
    pub fn period(self) -> Duration {
        Duration::try_from_secs_f64(1.0 / self.per_second).unwrap_or(Duration::MAX)
    }
}
