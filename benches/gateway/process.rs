//! Processes that are started, watched and, whatever happens, stopped.

use crate::role::{self, Listening, Role};
use anyhow::{Context as _, Result, bail, ensure};
use serde::de::DeserializeOwned;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// Longer than any start or command takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// Clock ticks in `/proc`: Linux shows 100 to every program, whatever it runs at.
const TICKS_PER_SECOND: f64 = 100.0;

/// One of this program's roles. Killed when it is dropped.
pub(crate) struct Part {
    child: Child,
    commands: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Part {
    fn start(role: &Role) -> Result<Part> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(role::FLAG)
            .arg(serde_json::to_string(role)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("start a part of the benchmark")?;
        let commands = child.stdin.take().context("a part without stdin")?;
        let lines = BufReader::new(child.stdout.take().context("a part without stdout")?).lines();
        Ok(Part { child, commands, lines })
    }

    async fn line<T: DeserializeOwned>(&mut self, wait: Duration) -> Result<T> {
        let line = timeout(wait, self.lines.next_line()).await.context("a part says nothing")??;
        serde_json::from_str(&line.context("a part ended early; its error stands above")?).context("a part's answer")
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }
}

/// Runs a role that ends by itself within about `span`.
pub(crate) async fn work<T: DeserializeOwned>(role: &Role, span: Duration) -> Result<T> {
    let mut part = Part::start(role)?;
    let result = part.line(span + PATIENCE).await?;
    let status = timeout(PATIENCE, part.child.wait()).await.context("a part does not end")??;
    ensure!(status.success(), "a part of the benchmark failed: {status}");
    Ok(result)
}

/// A role that serves until it is dropped.
pub(crate) struct Server {
    part: Part,
    pub(crate) at: SocketAddr,
}

impl Server {
    pub(crate) async fn start(role: &Role) -> Result<Server> {
        let mut part = Part::start(role)?;
        let Listening { at } = part.line(PATIENCE).await?;
        Ok(Server { part, at })
    }

    pub(crate) async fn ask<T: DeserializeOwned>(&mut self, command: &str) -> Result<T> {
        self.part.commands.write_all(format!("{command}\n").as_bytes()).await?;
        self.part.line(PATIENCE).await
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.part.pid()
    }

    /// Lets it end and waits until it has.
    pub(crate) async fn stop(self) -> Result<()> {
        let Part { mut child, commands, lines } = self.part;
        drop((commands, lines));
        let status = timeout(PATIENCE, child.wait()).await.context("a server does not end")??;
        ensure!(status.success(), "a server of the benchmark failed: {status}");
        Ok(())
    }
}

/// What a process has used so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) cpu_seconds: f64,
    /// The most memory that was resident at a time.
    pub(crate) memory_peak_bytes: u64,
}

pub(crate) fn usage(pid: Option<u32>) -> Result<Usage> {
    let Some(pid) = pid else { bail!("the process has ended") };
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM in /proc")?;
    let kib: u64 = peak.trim().trim_end_matches(" kB").parse()?;
    let [user, system, ..] = cpu_ticks(&format!("/proc/{pid}/stat"))?;
    Ok(Usage { cpu_seconds: (user + system) / TICKS_PER_SECOND, memory_peak_bytes: kib << 10 })
}

/// What is resident of a process and of nobody else: no file that is mapped.
pub(crate) fn private_kib(pid: Option<u32>) -> Result<f64> {
    let Some(pid) = pid else { bail!("the process has ended") };
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no RssAnon in /proc")?;
    Ok(anonymous.trim().trim_end_matches(" kB").parse()?)
}

/// CPU seconds of this process and of its children that have ended.
pub(crate) fn own_cpu_seconds() -> Result<f64> {
    Ok(cpu_ticks("/proc/self/stat")?.iter().sum::<f64>() / TICKS_PER_SECOND)
}

/// User, system, and the same of children that were waited for.
fn cpu_ticks(path: &str) -> Result<[f64; 4]> {
    let stat = std::fs::read_to_string(path)?;
    // The second field is a name in parentheses that may hold anything.
    let (_, fields) = stat.rsplit_once(')').context("no name in /proc/…/stat")?;
    let mut ticks = fields.split_whitespace().skip(11).map(str::parse);
    let mut next = || Ok::<f64, anyhow::Error>(ticks.next().context("a short line in /proc/…/stat")??);
    Ok([next()?, next()?, next()?, next()?])
}

/// CPU seconds that all processes of this machine have used.
pub(crate) fn machine_cpu_seconds() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let fields: Vec<f64> = stat.lines().next().unwrap_or("").split_whitespace().skip(1).flat_map(str::parse).collect();
    // user nice system idle iowait irq softirq steal
    let [user, nice, system, _, _, irq, softirq, steal, ..] = fields[..] else {
        bail!("a short first line in /proc/stat")
    };
    Ok((user + nice + system + irq + softirq + steal) / TICKS_PER_SECOND)
}
