//! `hookgate serve`.

use super::{Context, Exit, Failure};
use crate::app::{Error, Gateway, Options, Resources};
use crate::config::{self, Colour, Env, Outside, Override, Report, Settings};
use crate::plugin::Compiler;
use crate::telemetry::{self, Metrics};
use std::path::{Path, PathBuf};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Run the gateway: ingress, dispatch and admin API in one process
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Serve {
    /// The public listener, instead of server.ingress
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub ingress: Option<String>,
    /// The admin listener, instead of server.admin
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub admin: Option<String>,
    /// The ledger, instead of server.ledger
    #[arg(long, value_name = "sqlite:PATH")]
    pub ledger: Option<String>,
    /// How long a stop waits, instead of server.shutdown_grace
    #[arg(long, value_name = "DURATION")]
    pub shutdown_grace: Option<String>,
    /// What providers call, instead of server.public_url
    #[arg(long, value_name = "URL")]
    pub public_url: Option<String>,
    /// Worker threads, instead of server.threads
    #[arg(long, value_name = "COUNT")]
    pub threads: Option<String>,
    /// How log lines are written, instead of server.log.format
    #[arg(long, value_name = "text|json")]
    pub log_format: Option<String>,
    /// The least level that is logged, instead of server.log.level
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// An address that the guard lets through, instead of egress.allow; may be repeated
    #[arg(long, value_name = "CIDR[:PORT[-PORT]]")]
    pub egress_allow: Vec<String>,
}

impl Serve {
    /// The flags that were given, as settings.
    pub fn overrides(&self) -> Vec<Override> {
        let allow = (!self.egress_allow.is_empty()).then(|| self.egress_allow.join(","));
        let all = [
            ("--ingress", "server.ingress", &self.ingress),
            ("--admin", "server.admin", &self.admin),
            ("--ledger", "server.ledger", &self.ledger),
            ("--shutdown-grace", "server.shutdown_grace", &self.shutdown_grace),
            ("--public-url", "server.public_url", &self.public_url),
            ("--threads", "server.threads", &self.threads),
            ("--log-format", "server.log.format", &self.log_format),
            ("--log-level", "server.log.level", &self.log_level),
            ("--egress-allow", "egress.allow", &allow),
        ];
        let given = |(flag, key, value): (_, _, &Option<String>)| Some(Override { flag, key, value: value.clone()? });
        all.into_iter().filter_map(given).collect()
    }
}

/// Where the settings come from, at the start and at every SIGHUP.
struct Origin {
    path: Option<PathBuf>,
    env: Env,
    flags: Vec<Override>,
}

impl Origin {
    fn read(&self) -> Result<Report, Failure> {
        let mut report = config::read(self.path.as_deref(), &self.env, &self.flags, Outside::Look)
            .map_err(|e| Failure::usage(e.to_string(), "name the file with --config"))?;
        report.warn_of_expiries(super::keys::now());
        Ok(report)
    }
}

pub(super) fn run(args: &Serve, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let Context { globals, env, output } = context;
    let origin = Origin { path: globals.config_path(env), env: env.clone(), flags: args.overrides() };
    let report = origin.read()?;
    let colour = if output.streams.colour { Colour::On } else { Colour::Off };
    let told = if output.streams.out_is_terminal { report.pictures(colour) } else { report.lines() };
    output.streams.err.write_all(told.as_bytes())?;
    let Some(settings) = report.settings else {
        return Err(Failure::usage("the configuration does not hold; nothing was started", "see above"));
    };
    logging(&settings)?;
    if origin.path.is_none() && settings.tenants.is_empty() && !Path::new(config::DEFAULT_PATH).exists() {
        tracing::warn!(
            "no configuration file: no tenant, so every request is answered 404; write hookgate.toml or give --config"
        );
    }
    let metrics = Metrics::install().map_err(|e| Failure::new(Exit::Failed, e.to_string()))?;
    runtime(settings.server.threads)?.block_on(serve(origin, settings, metrics))
}

fn logging(settings: &Settings) -> Result<(), Failure> {
    let format = match settings.server.log.format {
        config::LogFormat::Text => telemetry::LogFormat::Text,
        config::LogFormat::Json => telemetry::LogFormat::Json,
    };
    telemetry::install_logger(format, settings.server.log.level.as_str())
        .map_err(|e| Failure::new(Exit::Failed, e.to_string()))
}

/// A runtime for a gateway; `threads`: one per core unless said otherwise.
pub(super) fn runtime(threads: Option<usize>) -> std::io::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = threads {
        builder.worker_threads(threads);
    }
    builder.enable_all().thread_name("hookgate").build()
}

pub(super) fn failed(error: &Error) -> Failure {
    let exit = match error {
        Error::Resource { .. }
        | Error::Token { .. }
        | Error::Contents { .. }
        | Error::PluginHost(_)
        | Error::Egress(_) => Exit::Usage,
        Error::Ledger(_) | Error::Listener { .. } | Error::Stopped(_) => Exit::Failed,
    };
    Failure::new(exit, error.to_string())
}

async fn serve(origin: Origin, settings: Settings, metrics: Metrics) -> Result<Exit, Failure> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let hangups = signal(SignalKind::hangup())?;
    let options = Options { settings, env: origin.env.clone(), compiler: Compiler::this_binary()?, metrics };
    let gateway = Gateway::start(options).await.map_err(|e| failed(&e))?;
    if let Some(path) = &gateway.token_file {
        tracing::info!(path = %path.display(), "the operator's token is in this file");
    }
    let reloads = tokio::spawn(reload(origin, gateway.resources(), hangups));
    let stop = CancellationToken::new();
    let asked = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        asked.cancel();
    });
    let ended = gateway.run(stop).await;
    reloads.abort();
    ended.map_err(|e| failed(&e)).map(|()| Exit::Done)
}

/// On each SIGHUP the file is read again. One that does not hold changes nothing.
async fn reload(origin: Origin, resources: Resources, mut hangups: Signal) {
    while hangups.recv().await.is_some() {
        tracing::info!("reading the configuration again");
        let report = match origin.read() {
            Ok(report) => report,
            Err(failure) => {
                tracing::error!(%failure, "the configuration was not applied");
                continue;
            }
        };
        for line in report.lines().lines() {
            match (line.strip_prefix("error: "), line.strip_prefix("warning: ")) {
                (Some(problem), _) => tracing::error!(problem, "the configuration does not hold"),
                (None, warning) => {
                    tracing::warn!(warning = warning.unwrap_or(line), "the configuration has a warning");
                }
            }
        }
        let Some(settings) = report.settings else {
            tracing::error!("the configuration was not applied: what was in force stays");
            continue;
        };
        match resources.apply(&settings, &origin.env).await {
            Ok(()) => tracing::info!(
                "tenants, sources, endpoints and plugins were applied; listeners, ledger, egress, retention and plugin limits \
                 count from the next start"
            ),
            Err(error) => tracing::error!(%error, "the configuration was not applied: what was in force stays"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Env, Input, LogFormat, LogLevel, Outside, evaluate};
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        serve: Serve,
    }

    #[test]
    fn every_flag_acts() {
        let line = Line::parse_from([
            "serve",
            "--ingress=127.0.0.1:1",
            "--admin=127.0.0.1:2",
            "--ledger=sqlite:x.db",
            "--shutdown-grace=3s",
            "--public-url=https://h.example",
            "--threads=4",
            "--log-format=json",
            "--log-level=warn",
            "--egress-allow=127.0.0.1/32:9000",
            "--egress-allow=10.0.0.0/8",
        ]);
        let flags = line.serve.overrides();
        let env = Env::default();
        let path = Path::new("/etc/f.toml");
        let report = evaluate(&Input { text: "", path, env: &env, flags: &flags, outside: Outside::Look });
        let settings = report.settings.unwrap();
        let server = settings.server;
        assert_eq!((server.ingress.port(), server.admin.port(), server.threads), (1, 2, Some(4)));
        assert_eq!(server.ledger, Path::new("x.db"));
        assert_eq!(server.shutdown_grace.as_secs(), 3);
        assert_eq!(server.public_url.unwrap().as_str(), "https://h.example/");
        assert_eq!((server.log.format, server.log.level), (LogFormat::Json, LogLevel::Warn));
        assert_eq!(settings.egress.allow, ["127.0.0.1/32:9000", "10.0.0.0/8"]);
    }

    #[test]
    fn a_wrong_flag_is_named() {
        let flags = [Override { flag: "--threads", key: "server.threads", value: "many".into() }];
        let env = Env::default();
        let path = Path::new("f.toml");
        let report = evaluate(&Input { text: "", path, env: &env, flags: &flags, outside: Outside::Look });
        assert!(report.lines().starts_with("error: --threads: server.threads: expected a whole number"));
    }
}
