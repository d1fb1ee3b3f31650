//! The real gateway: this build's `hookgate serve`, on a configuration and a ledger of its own.

use crate::wire;
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// The longest start compiles a thousand plugins.
const START_PATIENCE: Duration = Duration::from_secs(1200);
const STOP_PATIENCE: Duration = Duration::from_secs(60);
/// What the gateway's log has when it has read its configuration again.
const RELOADED: &str = "endpoints and plugins were applied";
const SECRET_VARIABLE: &str = "BENCH_SOURCE_SECRET";

/// Where its events go.
#[derive(Clone, Debug)]
pub(crate) enum Route {
    /// No endpoint: an event is accepted and that is all.
    Nowhere,
    /// To the receiver, by the built-in rules.
    Plain { receiver: SocketAddr },
    /// To the receiver, whose answers a plugin classifies.
    Classified { receiver: SocketAddr, plugin: PathBuf },
    /// The same, beside two tenants whose events are of no account: `plain` has no plugin, `noisy` has `hostile`.
    Beside { receiver: SocketAddr, plugin: PathBuf, hostile: PathBuf },
    /// To the receiver, beside a tenant `noisy` whose endpoint takes half a minute for an answer.
    BesideHang { receiver: SocketAddr },
    /// Nowhere, and those of `noisy` to an endpoint that is busy, to be tried again in hours.
    Busy { receiver: SocketAddr },
    /// To the receiver's door, which may be closed; `dying`: the first refusal is the end.
    Door { receiver: SocketAddr, dying: bool },
    /// Nowhere, with these plugins, each of a tenant of its own for every fifty.
    Many { plugins: Vec<PathBuf> },
}

/// Killed when it is dropped.
pub(crate) struct Gateway {
    child: Child,
    log: PathBuf,
    data: PathBuf,
    pub(crate) ingress: SocketAddr,
    admin: SocketAddr,
}

impl Gateway {
    /// Of the one endpoint, and so of the one tenant.
    const IN_FLIGHT_MAX: u32 = 1000;
    /// Of the endpoint whose receiver has a door.
    pub(crate) const AT_DOOR_MAX: u32 = 64;
    /// Where a load for it goes.
    pub(crate) const PATH: &'static str = "/in/bench/github";
    pub(crate) const PLAIN_PATH: &'static str = "/in/plain/github";
    pub(crate) const NOISY_PATH: &'static str = "/in/noisy/github";

    /// In `dir`, which is fresh or has the ledger of one before. Returns when it is ready.
    pub(crate) async fn start(dir: &Path, route: &Route) -> Result<Gateway> {
        let (ingress, admin) = (free_address()?, free_address()?);
        let file = dir.join("hookgate.toml");
        std::fs::write(&file, configuration(dir, ingress, admin, route)).context("write the configuration")?;
        let log = dir.join("gateway.log");
        let output = File::create(&log)?;
        let child = Command::new(env!("CARGO_BIN_EXE_hookgate"))
            .arg("serve")
            .arg("--config")
            .arg(&file)
            .env_clear()
            .env(SECRET_VARIABLE, wire::SECRET)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .kill_on_drop(true)
            .spawn()
            .context("start the gateway")?;
        let mut gateway = Gateway { child, log, data: dir.join("data"), ingress, admin };
        gateway.wait_until_ready().await?;
        Ok(gateway)
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Reads its configuration again; returns when it has.
    pub(crate) async fn reload(&mut self) -> Result<()> {
        let reloads = || std::fs::read_to_string(&self.log).unwrap_or_default().matches(RELOADED).count();
        let before = reloads();
        self.signal("HUP").await?;
        let start = Instant::now();
        while reloads() == before {
            if start.elapsed() > START_PATIENCE {
                bail!("the gateway does not reload; the end of its log:\n{}", self.log_end());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// The sum of a metric over its labels.
    pub(crate) async fn metric(&self, name: &str) -> Result<f64> {
        let mut socket = TcpStream::connect(self.admin).await?;
        let request = format!("GET /metrics HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.admin);
        socket.write_all(request.as_bytes()).await?;
        let mut text = String::new();
        timeout(Duration::from_secs(5), socket.read_to_string(&mut text)).await??;
        let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
        let values = text.lines().filter(of_name).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        Ok(values.sum())
    }

    /// Uploads a plugin; gives the status of the answer, however long that takes.
    pub(crate) async fn upload(&self, tenant: &str, plugin: &str, wasm: Vec<u8>) -> Result<u16> {
        let path = format!("/v1/tenants/{tenant}/plugins/{plugin}");
        Ok(self.ask("PUT", &path, "application/wasm", &wasm).await?.0)
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        self.asked_for_json("GET", path, &[]).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.asked_for_json("POST", path, &serde_json::to_vec(body)?).await
    }

    async fn asked_for_json(&self, method: &str, path: &str, body: &[u8]) -> Result<Value> {
        let (status, answer) = self.ask(method, path, "application/json", body).await?;
        if !(200..300).contains(&status) {
            bail!("{method} {path} was answered {status}: {}", String::from_utf8_lossy(&answer));
        }
        Ok(serde_json::from_slice(&answer)?)
    }

    /// Status and body of the answer of the admin listener.
    async fn ask(&self, method: &str, path: &str, content_type: &str, body: &[u8]) -> Result<(u16, Vec<u8>)> {
        let token = std::fs::read_to_string(self.data.join("admin-token")).context("read the admin token")?;
        let mut socket = TcpStream::connect(self.admin).await?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n\
             content-type: {content_type}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            self.admin,
            token.trim(),
            body.len(),
        );
        socket.write_all(head.as_bytes()).await?;
        socket.write_all(body).await?;
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).await?;
        let head = wire::message(&answer)?.context("half an answer")?;
        Ok((head.status()?, answer[head.head_bytes..head.message_bytes].to_vec()))
    }

    /// As a power cut ends it.
    pub(crate) async fn kill(mut self) -> Result<()> {
        self.child.kill().await.context("kill the gateway")
    }

    async fn signal(&self, name: &str) -> Result<()> {
        let pid = self.pid().context("the gateway ended by itself")?;
        // The shell's own `kill`, since a signal cannot be sent from safe Rust.
        let sent = Command::new("sh").arg("-c").arg(format!("kill -{name} {pid}")).status().await?;
        if !sent.success() {
            bail!("the gateway cannot be told: {sent}");
        }
        Ok(())
    }

    /// A clean stop: SIGTERM, and exit 0 once it has drained.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.signal("TERM").await?;
        let status = timeout(STOP_PATIENCE, self.child.wait()).await.context("the gateway does not stop")??;
        if !status.success() {
            bail!("the gateway stopped with {status}; the end of its log:\n{}", self.log_end());
        }
        Ok(())
    }

    async fn wait_until_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("the gateway ended at its start with {status}; the end of its log:\n{}", self.log_end());
            }
            if is_ready(self.admin).await.unwrap_or(false) {
                return Ok(());
            }
            if start.elapsed() > START_PATIENCE {
                bail!("the gateway is not ready; the end of its log:\n{}", self.log_end());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn log_end(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

async fn is_ready(admin: SocketAddr) -> Result<bool> {
    let mut socket = TcpStream::connect(admin).await?;
    let request = format!("GET /readyz HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await?;
    let mut status = [0; 12];
    timeout(Duration::from_secs(5), socket.read_exact(&mut status)).await??;
    Ok(status.ends_with(b" 200"))
}

/// A port that was free a moment ago. The gateway says so if it no longer is.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

fn configuration(dir: &Path, ingress: SocketAddr, admin: SocketAddr, route: &Route) -> String {
    let in_flight_max = Gateway::IN_FLIGHT_MAX;
    let text = |text: &str| toml::Value::from(text).to_string();
    let ledger = text(&format!("sqlite:{}", dir.join("data/ledger.db").display()));
    let mut file = format!(
        "[server]\ningress = \"{ingress}\"\nadmin = \"{admin}\"\nledger = {ledger}\n\n\
         [limits]\nper_tenant_in_flight_max = {in_flight_max}\n\n\
         [egress]\nallow = [\"127.0.0.1/32\"]\n\n\
         [tenants.bench.sources.github]\nscheme = \"github\"\nsecrets = [\"env:{SECRET_VARIABLE}\"]\n"
    );
    let at_most = |receiver: &SocketAddr, path: &str, in_flight: u32| {
        format!("\n[tenants.bench.endpoints.receiver]\nurl = \"http://{receiver}{path}\"\nconcurrency = {in_flight}\n")
    };
    let endpoint = |receiver: &SocketAddr, path: &str| at_most(receiver, path, in_flight_max);
    let noisy = |receiver: &SocketAddr, path: &str, more: &str| {
        format!(
            "\n[tenants.noisy.sources.github]\nscheme = \"github\"\nsecrets = [\"env:{SECRET_VARIABLE}\"]\n\
             \n[tenants.noisy.endpoints.receiver]\nurl = \"http://{receiver}{path}\"\n{more}\n"
        )
    };
    match route {
        Route::Nowhere => {}
        Route::Many { plugins } => {
            for (number, plugin) in plugins.iter().enumerate() {
                let path = text(&plugin.display().to_string());
                let _ = write!(file, "\n[tenants.t{}.plugins.p{number}]\npath = {path}\n", number / 50);
            }
        }
        Route::Plain { receiver } => file += &endpoint(receiver, "/hook"),
        Route::BesideHang { receiver } => {
            file += &endpoint(receiver, "/hook");
            file += &noisy(receiver, "/hang", "timeout = \"30s\"");
        }
        Route::Busy { receiver } => {
            file += &noisy(receiver, "/busy", "concurrency = 64\nretry = { delays = [\"12h\"], jitter = \"none\" }");
        }
        Route::Door { receiver, dying } => {
            file += &at_most(receiver, "/door", Gateway::AT_DOOR_MAX);
            if *dying {
                file += "retry = { max_attempts = 1 }\n";
            }
        }
        Route::Classified { receiver, plugin } => {
            file += &endpoint(receiver, "/sms");
            file += "plugin = \"sms-rules\"\n\n[tenants.bench.plugins.sms-rules]\n";
            file += &format!("path = {}\n", text(&plugin.display().to_string()));
        }
        Route::Beside { receiver, plugin, hostile } => {
            file += &endpoint(receiver, "/sms");
            file += "plugin = \"sms-rules\"\n\n[tenants.bench.plugins.sms-rules]\n";
            file += &format!("path = {}\n", text(&plugin.display().to_string()));
            for tenant in ["plain", "noisy"] {
                let _ = write!(
                    file,
                    "\n[tenants.{tenant}.sources.github]\nscheme = \"github\"\nsecrets = [\"env:{SECRET_VARIABLE}\"]\n\
                     \n[tenants.{tenant}.endpoints.receiver]\nurl = \"http://{receiver}/noise\"\n"
                );
                if tenant == "noisy" {
                    file += "plugin = \"hostile\"\n";
                }
                let _ = write!(file, "\n[tenants.{tenant}.endpoints.receiver.retry]\nmax_attempts = 1\n");
            }
            let path = text(&hostile.display().to_string());
            let _ = write!(file, "\n[tenants.noisy.plugins.hostile]\npath = {path}\n\n[tenants.noisy.plugins.bomb]\n");
        }
    }
    file
}
