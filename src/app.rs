//! Assembly: which room stands on which, and the order of starting and stopping. No rule of the trade is in here.
//!
//! Start: ledger → resources → interrupted work → listeners. Stop: ingress → dispatch → admin → ledger.

mod about;
mod consumers;
mod contents;
mod desk;
mod estate;
mod examiner;
mod past;
mod shipping;
mod token;
mod trials;

use crate::admin::{Admin, Serving};
use crate::clock::{Clock, ClockWatch, SystemClock};
use crate::config::{self, Env, Settings};
use crate::console::{self, Console};
use crate::dispatch::{self, Crew, Dispatcher, Stop, Targets};
use crate::egress::{self, AllowRule};
use crate::entropy::{Entropy, SystemEntropy};
use crate::http;
use crate::ingress::{self, Ingress};
use crate::ledger::sqlite::{self, SqliteLedger};
use crate::ledger::{Ledger, LedgerError, Queue as _, Slots, Wakes};
use crate::plugin::{self, Compiler, Host};
use crate::secret::Secret;
use crate::telemetry::Metrics;
use crate::{admin, operations};
use contents::Contents;
use desk::DeadLetterDesk;
use estate::Rooms;
use examiner::Examining;
use past::Rehearsals;
use shipping::Shipping;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1_024;

/// Between two passes of retention, and between two batches of one.
const RETENTION_EVERY: Duration = Duration::from_secs(60);
const RETENTION_BREATH: Duration = Duration::from_millis(50);

/// What a gateway is started with.
pub struct Options {
    pub settings: Settings,
    /// Where secrets that are named by `env:` come from.
    pub env: Env,
    pub compiler: Compiler,
    pub metrics: Metrics,
}

/// Why a gateway did not start, or did not end well. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Ledger(#[from] LedgerError),
    #[error("{listener} cannot listen on {address}: {error}; free the port, or set server.{listener} to another")]
    Listener { listener: &'static str, address: SocketAddr, error: io::Error },
    #[error("{field}: {problem}")]
    Resource { field: String, problem: String },
    #[error("plugin host: {0}")]
    PluginHost(#[from] plugin::HostError),
    #[error("{0}")]
    Egress(#[from] egress::Error),
    #[error("uploaded plugins {path}: {error}; the folder must be writable for this user", path = path.display())]
    Contents { path: PathBuf, error: io::Error },
    #[error("the admin token {path}: {problem}", path = path.display())]
    Token { path: PathBuf, problem: String },
    /// Committed work is safe; what was under way is tried again by the next process.
    #[error("the ledger stopped for safety: {0}; look at the disk, then start again")]
    Stopped(String),
}

/// A gateway that is up.
pub struct Gateway {
    pub ingress_address: SocketAddr,
    pub admin_address: SocketAddr,
    /// Where the operator's token was written; `None` when it was given.
    pub token_file: Option<PathBuf>,
    rooms: Arc<Rooms>,
    ledger: Arc<SqliteLedger>,
    grace: Duration,
    tokens: Tokens,
    serving: watch::Sender<Serving>,
    ingress_task: JoinHandle<()>,
    admin_task: JoinHandle<()>,
    dispatch_task: JoinHandle<()>,
    /// Writes what was refused; ends when it has written all.
    rejections_task: JoinHandle<()>,
    background: Vec<JoinHandle<()>>,
}

/// What is cancelled, one after the other.
#[derive(Default)]
struct Tokens {
    ingress: CancellationToken,
    dispatch: Stop,
    admin: CancellationToken,
}

impl Gateway {
    /// Everything up to the first accepted connection. On an error nothing listens and nothing runs.
    pub async fn start(options: Options) -> Result<Gateway, Error> {
        let Options { settings, env, compiler, metrics } = options;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let watch = Arc::new(ClockWatch::new(Arc::clone(&clock)));
        let entropy: Arc<dyn Entropy> = Arc::new(SystemEntropy);
        let (ingress_socket, ingress_address) = bound("ingress", settings.server.ingress)?;
        let (admin_socket, admin_address) = bound("admin", settings.server.admin)?;

        let wakes = Arc::new(Wakes::default());
        let slots = Arc::new(Slots::new(Arc::clone(&wakes)));
        let ledger_settings = sqlite::Settings {
            master_key: settings.server.master_key.clone(),
            queued_max: settings.limits.queued_max as usize,
            ..sqlite::Settings::new(&settings.server.ledger)
        };
        let opened = sqlite::open(
            ledger_settings,
            Arc::clone(&slots),
            Arc::clone(&wakes),
            Arc::clone(&entropy),
            Arc::clone(&watch),
        );
        let (ledger, births) = opened?;
        let shared: Arc<dyn Ledger> = Arc::clone(&ledger) as Arc<dyn Ledger>;
        let (token, token_file) = token::operators(&settings.server, entropy.as_ref())?;

        let host = Host::new(host_settings(&settings, compiler, ledger.derived_key("plugin-cache")))?;
        let targets = Arc::new(Targets::default());
        let shipping = Shipping::new(
            Arc::clone(&shared),
            Arc::clone(&host),
            Arc::clone(&clock),
            Arc::clone(&targets),
            uploaded_contents(&settings, shared.as_ref()).await?,
        );
        let client = Arc::new(egress::Client::new(&egress_settings(&settings, [ingress_address, admin_address])?)?);
        let keys = egress::Keys::new(Arc::clone(&client) as _, client.anchors(), Arc::clone(&clock));
        let (serving, is_serving) = watch::channel(Serving::Starting);
        let ingress_settings = ingress::Settings::default();
        let ingress = Ingress::new(&ingress_settings, Arc::clone(&shared), Arc::clone(&slots), Arc::clone(&clock));
        let ingress = Arc::new(ingress.with_keys(Arc::new(keys)));
        let rehearsals = Rehearsals::new(
            Arc::clone(&shared),
            Arc::clone(&shipping),
            Arc::clone(&targets),
            Arc::clone(&clock),
            bytes(settings.egress.body_bytes_read_max),
        );
        let consumers = dispatch::Desk {
            ledger: Arc::clone(&shared),
            targets: Arc::clone(&targets),
            clock: Arc::clone(&watch),
            entropy: Arc::clone(&entropy),
            tally: dispatch::Tally::default(),
        };
        let news = Arc::new(Notify::new());
        let desk = DeadLetterDesk {
            targets: Arc::clone(&targets),
            transport: Arc::clone(&client) as _,
            news: Arc::clone(&news),
        };
        let state = admin::State {
            ledger: Arc::clone(&shared),
            slots: Arc::clone(&slots),
            shipyard: Arc::new(Arc::clone(&shipping)),
            rehearsal: Arc::new(rehearsals),
            consumers: Arc::new(consumers),
            desk: Arc::new(desk),
            examiner: Arc::new(Examining(Arc::clone(&ingress))),
            clock: Arc::clone(&clock),
            metrics: metrics.clone(),
            serving: is_serving,
        };
        let admin_settings = admin::Settings {
            body_bytes_max: settings.limits.body_bytes_max,
            about: about::of(&settings, [ingress_address, admin_address], clock.now()),
            ..admin::Settings::with_token(token)
        };
        let admin = Arc::new(Admin::new(admin_settings, state));
        let console = Arc::new(Console::new(
            console::Settings { hosts: settings.server.admin_hosts.clone() },
            Arc::clone(&admin),
            Arc::clone(&clock),
            Arc::clone(&entropy),
        ));

        let alerts = Arc::new(operations::Watch::new(Arc::clone(&shared), Arc::clone(&watch)));
        let rooms = Arc::new(Rooms {
            ledger: Arc::clone(&shared),
            slots: Arc::clone(&slots),
            targets: Arc::clone(&targets),
            ingress: Arc::clone(&ingress),
            admin: Arc::clone(&admin),
            host,
            shipping: Arc::clone(&shipping),
            alerts: Arc::clone(&alerts),
            clock: Arc::clone(&clock),
            entropy: Arc::clone(&entropy),
        });
        let tenants = rooms.apply(&settings, &env).await?;

        let crew = Crew {
            settings: dispatch::Settings {
                response_read_bytes_max: bytes(settings.egress.body_bytes_read_max),
                response_kept_bytes_max: bytes(settings.egress.body_bytes_kept_max),
                ..dispatch::Settings::default()
            },
            ledger: Arc::clone(&shared),
            slots,
            wakes,
            targets,
            transport: client,
            clock: Arc::clone(&watch),
            entropy,
            tally: dispatch::Tally::default(),
        };
        let interrupted = dispatch::requeue_interrupted(&crew, crate::clock::Timestamp::MAX).await?;
        if interrupted > 0 {
            tracing::warn!(interrupted, "attempts were under way when the process before this one ended");
        }

        rooms.host.begin_serving();
        let tokens = Tokens::default();
        let dispatcher = Dispatcher::new(crew, tokens.dispatch.clone());
        let dispatch_task = tokio::spawn(dispatcher.run(births));
        let retention = operations::Settings {
            retention: retention(&settings, &tenants),
            every: RETENTION_EVERY,
            breath: RETENTION_BREATH,
        };
        let bulk = operations::run_bulk(Arc::clone(&shared), Arc::clone(&watch), news, tokens.admin.clone());
        let background = vec![
            tokio::spawn(bulk),
            tokio::spawn(operations::run(shared, retention, watch, tokens.admin.clone())),
            tokio::spawn(alerts.run(tokens.admin.clone())),
            tokio::spawn(metrics.tend(tokens.admin.clone())),
            tokio::spawn(shipping.watch(tokens.admin.clone())),
        ];
        let keeper = Arc::clone(&ingress);
        let stop = tokens.admin.clone();
        let rejections_task = tokio::spawn(async move { keeper.keep_rejections(stop).await });
        let limits = http_limits(&settings);
        let listening = listening("ingress", ingress_address, ingress_socket)?;
        let ingress_task = tokio::spawn(http::serve(listening, ingress, limits.clone(), tokens.ingress.clone()));
        let listening = self::listening("admin", admin_address, admin_socket)?;
        let admin_task = tokio::spawn(http::serve(listening, console, limits, tokens.admin.clone()));
        serving.send_replace(Serving::Open);
        tracing::info!(ingress = %ingress_address, admin = %admin_address, "serving");
        Ok(Gateway {
            ingress_address,
            admin_address,
            token_file,
            rooms,
            ledger,
            grace: settings.server.shutdown_grace,
            tokens,
            serving,
            ingress_task,
            admin_task,
            dispatch_task,
            rejections_task,
            background,
        })
    }

    /// What a reload goes through, while the gateway runs.
    pub fn resources(&self) -> Resources {
        Resources(Arc::clone(&self.rooms))
    }

    /// Serves until `stop`, then drains within the grace. An error means that the ledger stopped for safety.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        let ledger = Arc::clone(&self.ledger);
        let outcome = tokio::select! {
            () = stop.cancelled() => Ok(()),
            why = ledger.stopped() => Err(Error::Stopped(why)),
        };
        if let Err(error) = &outcome {
            tracing::error!(%error, "ending");
        }
        let closed = self.drain().await;
        outcome.and(closed)
    }

    async fn drain(self) -> Result<(), Error> {
        let Gateway { tokens, serving, ingress_task, admin_task, dispatch_task, rejections_task, .. } = self;
        let (background, ledger, grace) = (self.background, self.ledger, self.grace);
        tracing::info!(?grace, "stopping: nothing new is taken, what is on the wire is finished");
        serving.send_replace(Serving::Draining);
        let cut_at = tokio::time::Instant::now() + grace;
        // Together, so that somebody who is slow to send to us takes nothing of the time for what we have sent.
        tokens.ingress.cancel();
        tokens.dispatch.drain.cancel();
        let (mut ingress_task, mut dispatch_task) = (ingress_task, dispatch_task);
        let (received, sent) = tokio::join!(
            tokio::time::timeout_at(cut_at, &mut ingress_task),
            tokio::time::timeout_at(cut_at, &mut dispatch_task),
        );
        if received.is_err() {
            tracing::warn!("the grace is over: requests that have not arrived are let go, unanswered");
            ingress_task.abort();
        }
        if sent.is_err() {
            tracing::warn!("the grace is over: attempts without an answer are let go and marked interrupted");
            tokens.dispatch.cut.cancel();
            let _ended = dispatch_task.await;
        }
        tokens.admin.cancel();
        let _in_time = tokio::time::timeout(Duration::from_secs(2), admin_task).await;
        let _in_time = tokio::time::timeout(Duration::from_secs(2), rejections_task).await;
        for task in background {
            task.abort();
        }
        ledger.close().await?;
        tracing::info!("stopped");
        Ok(())
    }
}

/// The tenants, sources, endpoints and plugins of a running gateway.
#[derive(Clone)]
pub struct Resources(Arc<Rooms>);

impl Resources {
    /// Applies what a file says now; on an error nothing changes. Of the file's other sections, `[alerts]` counts at
    /// once, the rest from the next start.
    pub async fn apply(&self, settings: &Settings, env: &Env) -> Result<(), Error> {
        self.0.apply(settings, env).await.map(|_tenants| ())
    }
}

/// A socket with its address, not yet listening: connections are refused until everything is ready.
fn bound(listener: &'static str, address: SocketAddr) -> Result<(TcpSocket, SocketAddr), Error> {
    let bind = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let address = socket.local_addr()?;
        Ok((socket, address))
    };
    bind().map_err(|error| Error::Listener { listener, address, error })
}

fn listening(listener: &'static str, address: SocketAddr, socket: TcpSocket) -> Result<TcpListener, Error> {
    socket.listen(BACKLOG).map_err(|error| Error::Listener { listener, address, error })
}

fn bytes(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

fn http_limits(settings: &Settings) -> http::Limits {
    let limits = &settings.limits;
    http::Limits {
        connections_max: limits.connections_max as usize,
        connections_per_address_max: limits.connections_per_address_max.map(|n| n as usize),
        head_timeout: limits.head_timeout,
        body_timeout: limits.body_timeout,
        idle_timeout: limits.idle_timeout,
        ..http::Limits::default()
    }
}

fn egress_settings(settings: &Settings, own: [SocketAddr; 2]) -> Result<egress::Settings, Error> {
    let egress = &settings.egress;
    let allow = egress.allow.iter().map(|rule| {
        rule.parse::<AllowRule>()
            .map_err(|e| Error::Resource { field: "egress.allow".to_owned(), problem: e.to_string() })
    });
    Ok(egress::Settings {
        allow: allow.collect::<Result<_, _>>()?,
        allow_http: egress.allow_http,
        own_listeners: own.to_vec(),
        connect_timeout: egress.connect_timeout,
        tls_timeout: egress.tls_timeout,
        head_bytes_max: bytes(egress.head_bytes_max),
        body_read_max: bytes(egress.body_bytes_read_max),
        ..egress::Settings::default()
    })
}

fn host_settings(settings: &Settings, compiler: Compiler, cache_key: Secret) -> plugin::Settings {
    let beside = settings.server.ledger.parent().unwrap_or(std::path::Path::new("."));
    let headers = settings.tenants.values().flat_map(|t| t.endpoints.values()).filter_map(|e| match &e.way {
        config::Way::Push(push) => Some(push.idempotency_header.clone()),
        config::Way::Pull(_) => None,
    });
    plugin::Settings {
        limits: plugin_limits(&settings.limits.plugins),
        grants: settings.tenants.iter().map(|(name, t)| (name.clone(), plugin_limits(&t.plugin_limits))).collect(),
        cache_dir: Some(beside.join("plugin-cache")),
        extra_owned: headers.collect(),
        ..plugin::Settings::new(compiler, cache_key)
    }
}

/// Where uploads are kept, without what no version needs.
async fn uploaded_contents(settings: &Settings, ledger: &dyn Ledger) -> Result<Contents, Error> {
    let path = settings.server.ledger.with_file_name(contents::FOLDER);
    let needed = ledger.needed_contents().await?;
    let open = || {
        let contents = Contents::open(path.clone())?;
        contents.sweep(&needed)?;
        Ok(contents)
    };
    open().map_err(|error| Error::Contents { path: path.clone(), error })
}

/// What the configuration grants, as the plugin host takes it.
pub fn plugin_limits(limits: &config::PluginLimits) -> plugin::Limits {
    plugin::Limits {
        component_bytes_max: bytes(limits.component_bytes_max),
        call_time_max: limits.call_time_max,
        memory_bytes_max: bytes(limits.memory_bytes_max),
        input_bytes_max: bytes(limits.input_bytes_max),
        response_bytes_max: bytes(limits.response_bytes_max),
        output_bytes_max: bytes(limits.output_bytes_max),
        ..plugin::Limits::default()
    }
}

fn retention(settings: &Settings, tenants: &estate::TenantKeys) -> crate::ledger::Retention {
    let own = settings.tenants.iter().filter_map(|(name, tenant)| {
        let key = tenants.get(name)?;
        Some((*key, (tenant.retention.payloads, tenant.retention.rows)))
    });
    crate::ledger::Retention {
        payloads: settings.retention.payloads,
        rows: settings.retention.rows,
        tenants: own.collect(),
        batch_rows_max: 500,
    }
}
