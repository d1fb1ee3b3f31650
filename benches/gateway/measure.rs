//! The measuring: each row of a repetition, one after the other, and the check that nothing was lost or sent twice.

mod compiling;
mod desk;
mod waiting;

use crate::figures::{self, Figures, Repetition, Row, Run};
use crate::gateway::{Gateway, Route};
use crate::hostile::{self, Attack};
use crate::latency::Spread;
use crate::ledger::{Aged, Cycled, Cycles, Past};
use crate::limits::bare::Bare;
use crate::limits::disk;
use crate::limits::outbound::{Outbound, Sent};
use crate::limits::prototype::Prototype;
use crate::load::{Load, Loaded};
use crate::plugin::{Called, Calls, Way};
use crate::process::{self, Server};
use crate::receiver::{self, Received};
use crate::role::Role;
use crate::verify::{Checked, Checks};
use anyhow::{Context as _, Result, bail, ensure};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What a run does.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) repetitions: u32,
    pub(crate) span: Duration,
    pub(crate) warm_up: Duration,
    /// For how long a hostile plugin is at it before it is measured beside others.
    pub(crate) worn: Duration,
    pub(crate) parts: Vec<Part>,
    /// Events in the past of the aged ledger: delivered, and waiting.
    pub(crate) past: (u64, u64),
    /// How often a tenant is measured without and with a hostile neighbour.
    pub(crate) pairs: u32,
    /// That tenant's events a second.
    pub(crate) beside_per_second: u32,
    /// Plugins that one gateway has loaded.
    pub(crate) plugins: u32,
    /// Deliveries that wait behind an endpoint that hangs, and for a retry.
    pub(crate) piled: u64,
    /// Dead letters that are looked at and redriven.
    pub(crate) dead: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Part {
    /// Disk, loopback, bare servers, outbound client, prototype.
    Limits,
    /// The gateway's ledger alone.
    Ledger,
    /// The same over a past: delivered events, and events that wait.
    Aged,
    /// The gateway without an endpoint.
    Accept,
    /// The gateway with the receiver behind it.
    Deliver,
    /// The same with a plugin.
    Classified,
    /// Calls of the plugin alone.
    Plugin,
    /// A tenant's deliveries beside another one's hostile plugins.
    Isolation,
    /// A tenant's deliveries while another one's ruinous uploads are compiled.
    Compiling,
    /// A gateway with many plugins.
    Plugins500,
    /// Many deliveries that wait.
    Waiting,
    /// Many dead letters.
    Desk,
    /// Checks of signatures alone.
    Verify,
}

const CONNECTIONS: u32 = 64;
const BODY_BYTES: usize = 1024;
const REQUESTS_MAX: u64 = 2_000_000;
/// For what is measured one at a time, with the machine at rest in between.
const AT_REST_PER_SECOND: f64 = 50.0;
/// An event that has not arrived so long after the last one did is lost.
const ARRIVAL_PATIENCE: Duration = Duration::from_secs(10);
/// For a past of millions.
const PAST_PATIENCE: Duration = Duration::from_secs(1200);
/// After the last arrival: the gateway writes down what became of it.
const SETTLING: Duration = Duration::from_millis(100);

const BESIDE: [Row; 7] = [
    Row::BesideSpin,
    Row::BesideAllocate,
    Row::BesideRecurse,
    Row::BesideFloodLogs,
    Row::BesideHugeOutput,
    Row::BesideLargeOutput,
    Row::BesideTrap,
];
const COMPILATIONS: &str = "hookgate_plugin_compilations_total";

const PLUGIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/plugins/sms-rules.wasm");

/// How a load is applied.
#[derive(Clone, Copy)]
enum Pace {
    Closed { connections: u32 },
    Open { per_second: f64 },
    AtRest,
}

/// What is measured.
struct Subject<'a> {
    row: Row,
    to: SocketAddr,
    path: &'a str,
    pid: Option<u32>,
    /// Events go on to the receiver, and their arrival is what counts.
    delivers: bool,
}

pub(crate) async fn run(plan: &Plan, dir: &Path) -> Run {
    let mut run = Run::default();
    for number in 1..=plan.repetitions {
        let mut session = match Session::start(plan, dir, number).await {
            Ok(session) => session,
            Err(e) => {
                run.faults.push(format!("repetition {number}: {e:#}"));
                break;
            }
        };
        if let Err(e) = session.all().await {
            session.fault(format!("{e:#}"));
        }
        run.repetitions.push(session.figures);
        run.faults.extend(session.faults);
        run.notes.extend(session.notes);
    }
    run.notes.sort();
    run.notes.dedup();
    run
}

struct Session<'a> {
    plan: &'a Plan,
    dir: &'a Path,
    number: u32,
    receiver: Server,
    /// Events that the receiver must have seen, each once.
    expected: u64,
    /// Requests of which it must have seen so many twice.
    repeated: u64,
    next_seq: u64,
    figures: Repetition,
    faults: Vec<String>,
    notes: Vec<String>,
}

impl Session<'_> {
    async fn start<'a>(plan: &'a Plan, dir: &'a Path, number: u32) -> Result<Session<'a>> {
        Ok(Session {
            plan,
            dir,
            number,
            receiver: Server::start(&Role::Receiver).await?,
            expected: 0,
            repeated: 0,
            next_seq: 0,
            figures: Repetition::new(),
            faults: Vec::new(),
            notes: Vec::new(),
        })
    }

    fn fault(&mut self, what: impl std::fmt::Display) {
        self.faults.push(format!("repetition {}: {what}", self.number));
    }

    async fn all(&mut self) -> Result<()> {
        for part in &self.plan.parts {
            match part {
                Part::Limits => self.limits().await.context("limits")?,
                Part::Ledger => self.ledger().await.context("ledger")?,
                Part::Aged => self.aged().await.context("aged")?,
                Part::Accept => self.accept().await.context("accept")?,
                Part::Deliver => self.deliver().await.context("deliver")?,
                Part::Classified => self.classified().await.context("classified")?,
                Part::Plugin => self.plugin().await.context("plugin")?,
                Part::Isolation => self.isolation().await.context("isolation")?,
                Part::Compiling => self.compiling().await.context("compiling")?,
                Part::Plugins500 => self.plugins500().await.context("plugins500")?,
                Part::Waiting => self.waiting().await.context("waiting")?,
                Part::Desk => self.desk().await.context("desk")?,
                Part::Verify => self.verify().await.context("verify")?,
            }
        }
        let received: Received = self.receiver.ask("tell").await?;
        if received.unique != self.expected || received.repeated != self.repeated || received.strange > 0 {
            self.fault(format!(
                "of {} accepted events {} arrived; {} came again, {} were not ours",
                self.expected, received.unique, received.repeated, received.strange
            ));
        }
        Ok(())
    }

    async fn limits(&mut self) -> Result<()> {
        let span = self.plan.span / 2;
        let pause = Duration::from_secs_f64(1.0 / AT_REST_PER_SECOND);
        for (row, pause) in [(Row::Disk, None), (Row::DiskAtRest, Some(pause))] {
            self.progress(row);
            let dir = self.dir.to_owned();
            let spread = tokio::task::spawn_blocking(move || disk::measure(&dir, span, pause)).await??;
            self.figures.insert(row, figures(&spread, span));
        }

        // The receiver notes these too, as arrivals of what the load sent.
        let barest = Subject {
            row: Row::RoundTripAtRest,
            to: self.receiver.at,
            path: "/in/receiver",
            pid: self.receiver.pid(),
            delivers: false,
        };
        let sent = self.measure(&barest, Pace::AtRest).await?;
        self.expected += sent;

        for (row, bare) in [(Row::Bare, Bare::Unverified), (Row::BareVerified, Bare::Verified)] {
            let server = Server::start(&Role::Bare(bare)).await?;
            let subject = Subject { row, to: server.at, path: "/in/bare", pid: server.pid(), delivers: false };
            self.measure(&subject, Pace::Closed { connections: CONNECTIONS }).await?;
            server.stop().await?;
        }

        self.outbound().await?;

        let dir = TempDir::new_in(self.dir)?;
        let role = Role::Prototype(Prototype { to: self.receiver.at, ledger: dir.path().join("prototype.db") });
        let server = Server::start(&role).await?;
        let subject = |row| Subject { row, to: server.at, path: "/in/prototype", pid: server.pid(), delivers: true };
        self.measure(&subject(Row::Prototype), Pace::Closed { connections: CONNECTIONS }).await?;
        let half = self.half_of(Row::Prototype)?;
        self.measure(&subject(Row::PrototypeHalf), half).await?;
        server.stop().await
    }

    async fn outbound(&mut self) -> Result<()> {
        self.progress(Row::Outbound);
        let mut last = None;
        for span in [self.plan.warm_up, self.plan.span] {
            let outbound = Outbound {
                to: self.receiver.at,
                in_flight: CONNECTIONS,
                span,
                body_bytes: BODY_BYTES,
                first_seq: self.seqs(REQUESTS_MAX),
            };
            let others = Others::watch([self.receiver.pid()])?;
            let sent: Sent = process::work(&Role::Outbound(outbound), span).await?;
            self.expected += sent.latency.count;
            last = Some((sent, others.percent()?));
        }
        let (sent, others) = last.context("nothing was sent")?;
        let cpu_us = Some(sent.cpu_seconds * 1e6 / count(sent.latency.count));
        self.figures.insert(
            Row::Outbound,
            Figures { cpu_us, others_percent: Some(others), ..figures(&sent.latency, sent.span) },
        );
        Ok(())
    }

    async fn ledger(&mut self) -> Result<()> {
        self.progress(Row::Ledger);
        let dir = TempDir::new_in(self.dir)?;
        let Plan { warm_up, span, .. } = *self.plan;
        let ledger = dir.path().join("data/ledger.db");
        let cycles = Cycles { ledger, waiters: CONNECTIONS, body_bytes: BODY_BYTES, warm_up, span };
        let others = Others::watch([self.receiver.pid()])?;
        let cycled: Cycled = process::work(&Role::Ledger(cycles), warm_up + span).await?;
        self.figures.insert(Row::Ledger, Figures { others_percent: Some(others.percent()?), ..cycles_of(&cycled) });
        Ok(())
    }

    async fn aged(&mut self) -> Result<()> {
        self.progress(Row::AgedStart);
        let dir = TempDir::new_in(self.dir)?;
        let Plan { warm_up, span, past: (delivered, pending), .. } = *self.plan;
        let ledger = dir.path().join("data/ledger.db");
        let past = Past { ledger: ledger.clone(), delivered, pending, body_bytes: BODY_BYTES };
        let made: u64 = process::work(&Role::Past(past), PAST_PATIENCE).await?;
        let cycles = Cycles { ledger, waiters: CONNECTIONS, body_bytes: BODY_BYTES, warm_up, span };
        let others = Others::watch([self.receiver.pid()])?;
        let aged: Aged = process::work(&Role::Aged(cycles), PAST_PATIENCE).await?;
        let others_percent = Some(others.percent()?);
        let start_us = aged.start.as_secs_f64() * 1e6;
        let once = Figures { p50_us: start_us, p99_us: start_us, max_us: start_us, ..Figures::default() };
        for (row, figures) in [
            (Row::AgedStart, Figures { per_second: 1e6 / start_us, ..once }),
            (Row::AgedClaim, figures(&aged.claim, span)),
            (Row::AgedPage, figures(&aged.page, Duration::from_secs(1))),
            (Row::Aged, cycles_of(&aged.cycled)),
        ] {
            self.figures.insert(row, Figures { others_percent, ..figures });
        }
        self.notes.push(format!("The ledger with a past holds {made} events, {pending} of them waiting."));
        Ok(())
    }

    async fn accept(&mut self) -> Result<()> {
        let dir = TempDir::new_in(self.dir)?;
        let gateway = Gateway::start(dir.path(), &Route::Nowhere).await?;
        for (row, connections) in [(Row::Accept, CONNECTIONS), (Row::Accept1, 1), (Row::Accept256, 256)] {
            self.measure(&subject(&gateway, row, false), Pace::Closed { connections }).await?;
        }
        gateway.stop().await
    }

    async fn deliver(&mut self) -> Result<()> {
        let dir = TempDir::new_in(self.dir)?;
        let gateway = Gateway::start(dir.path(), &Route::Plain { receiver: self.receiver.at }).await?;
        self.measure(&subject(&gateway, Row::DeliverAtRest, true), Pace::AtRest).await?;
        self.measure(&subject(&gateway, Row::Deliver, true), Pace::Closed { connections: CONNECTIONS }).await?;
        let half = self.half_of(Row::Deliver)?;
        self.measure(&subject(&gateway, Row::DeliverHalf, true), half).await?;
        gateway.stop().await
    }

    async fn classified(&mut self) -> Result<()> {
        let Some(plugin) = self.sample_plugin() else { return Ok(()) };
        let dir = TempDir::new_in(self.dir)?;
        let gateway = Gateway::start(dir.path(), &Route::Classified { receiver: self.receiver.at, plugin }).await?;
        let pace = Pace::Closed { connections: CONNECTIONS };
        self.measure(&subject(&gateway, Row::DeliverClassified, true), pace).await?;
        gateway.stop().await
    }

    async fn plugin(&mut self) -> Result<()> {
        let Some(plugin) = self.sample_plugin() else { return Ok(()) };
        let rows = [
            (Row::CallDirect, Way::Direct, 1),
            (Row::Call, Way::Host, 1),
            (Row::CallTwoThreads, Way::Host, 2),
            (Row::CallEmptyDirect, Way::EmptyDirect, 1),
            (Row::CallEmpty, Way::Empty, 1),
        ];
        for (row, way, threads) in rows {
            self.progress(row);
            let Plan { warm_up, span, .. } = *self.plan;
            let calls = Calls { plugin: plugin.clone(), way, threads, warm_up, span };
            let others = Others::watch([self.receiver.pid()])?;
            let called: Called = process::work(&Role::Plugin(calls), warm_up + span).await?;
            let others_percent = Some(others.percent()?);
            self.figures.insert(row, Figures { others_percent, ..figures(&called.latency, span) });
        }
        Ok(())
    }

    /// Without and with, in turns: what changes slowly about the machine is in both.
    async fn isolation(&mut self) -> Result<()> {
        let Some(plugin) = self.sample_plugin() else { return Ok(()) };
        let mut alone = Vec::new();
        for (attack, row) in Attack::ALL.into_iter().zip(BESIDE) {
            self.progress(row);
            let dir = TempDir::new_in(self.dir)?;
            let hostile = attack.write(dir.path())?;
            let route = Route::Beside { receiver: self.receiver.at, plugin: plugin.clone(), hostile };
            let gateway = Gateway::start(dir.path(), &route).await?;
            let others = Others::watch([self.receiver.pid(), gateway.pid()])?;
            // As it is for hours: what a tenant may waste at once is wasted.
            self.beside(&gateway, row, attack, Gateway::NOISY_PATH, self.plan.warm_up + self.plan.worn).await?;
            let (mut without, mut with) = (Vec::new(), Vec::new());
            for _ in 0..self.plan.pairs {
                for (path, phases) in [(Gateway::PLAIN_PATH, &mut without), (Gateway::NOISY_PATH, &mut with)] {
                    phases.push(self.beside(&gateway, row, attack, path, self.plan.span).await?);
                }
            }
            let faults = gateway.metric("hookgate_plugin_faults_total").await?;
            if gateway.metric("hookgate_plugins_disabled_total").await? > 0.0 {
                self.fault(format!("{}: the plugin was disabled", row.title()));
            }
            self.notes.push(format!("Repetition {}: {}, {faults} faults of it.", self.number, row.title()));
            let ratios = without.iter().zip(&with).map(|(without, with)| with.p99_us / without.p99_us).collect();
            let others_percent = Some(others.percent()?);
            self.figures.insert(row, Figures { ratio: figures::median(ratios), others_percent, ..of_phases(&with) });
            alone.extend(without);
            self.figures.insert(Row::BesideNone, Figures { others_percent, ..of_phases(&alone) });
            gateway.stop().await?;
        }
        Ok(())
    }

    /// The one tenant's deliveries, while the other has some that go to `path`.
    async fn beside(
        &mut self,
        gateway: &Gateway,
        row: Row,
        attack: Attack,
        path: &str,
        span: Duration,
    ) -> Result<Figures> {
        let requests_max = requests_in(span, attack.per_second());
        let noise = Load {
            to: gateway.ingress,
            path: path.to_owned(),
            connections: 8,
            rate: Some(attack.per_second()),
            span,
            requests_max,
            body_bytes: BODY_BYTES,
            first_seq: self.seqs(requests_max),
        };
        let _: Received = self.receiver.ask("mark").await?;
        let noise = async move { process::work::<Loaded>(&Role::Load(noise), span).await };
        let subject = subject(gateway, row, true);
        let quiet = self.load(&subject, Pace::Open { per_second: self.plan.beside_per_second.into() }, span);
        let ((_, arrived), noise) = tokio::try_join!(quiet, noise)?;
        ensure!(noise.accepted > 0, "nothing of the other tenant was accepted");
        Ok(figures(&arrived.latency, span))
    }

    async fn plugins500(&mut self) -> Result<()> {
        let Some(plugin) = self.sample_plugin() else { return Ok(()) };
        let wasm = std::fs::read(plugin)?;
        let dir = TempDir::new_in(self.dir)?;
        let many = self.plan.plugins;
        let plugins =
            (0..many).map(|number| hostile::variant(&wasm, dir.path(), number)).collect::<Result<Vec<_>, _>>()?;
        let route = Route::Many { plugins };
        let none = TempDir::new_in(self.dir)?;
        let begun = Instant::now();
        let gateway = Gateway::start(none.path(), &Route::Nowhere).await?;
        let (empty, without) = (begun.elapsed(), process::private_kib(gateway.pid())?);
        gateway.stop().await?;

        let once = |took: Duration, ratio: f64| {
            let us = took.as_secs_f64() * 1e6;
            Figures {
                per_second: 1e6 / us,
                p50_us: us,
                p99_us: us,
                max_us: us,
                ratio: Some(ratio),
                ..Figures::default()
            }
        };
        let each = |compilations: f64| compilations / f64::from(many);
        self.progress(Row::PluginsStart);
        let begun = Instant::now();
        let mut gateway = Gateway::start(dir.path(), &route).await?;
        let (start, compiled) = (begun.elapsed(), gateway.metric(COMPILATIONS).await?);
        self.figures.insert(Row::PluginsStart, once(start, each(compiled)));

        self.progress(Row::PluginsReload);
        let begun = Instant::now();
        gateway.reload().await?;
        let (reload, again) = (begun.elapsed(), gateway.metric(COMPILATIONS).await? - compiled);
        self.figures.insert(Row::PluginsReload, once(reload, each(again)));
        gateway.stop().await?;

        self.progress(Row::PluginsRestart);
        let begun = Instant::now();
        let gateway = Gateway::start(dir.path(), &route).await?;
        let (restart, again) = (begun.elapsed(), gateway.metric(COMPILATIONS).await?);
        let with = process::private_kib(gateway.pid())?;
        self.figures.insert(Row::PluginsRestart, once(restart, each(again)));
        let kib = (with - without) / f64::from(many);
        self.figures.insert(Row::PluginsMemory, Figures { memory_mib: Some(with / 1024.0), ..once(empty, kib) });
        self.notes.push(format!("Many plugins are {many}; the memory is what is theirs alone, without mapped files."));
        gateway.stop().await
    }

    async fn verify(&mut self) -> Result<()> {
        self.progress(Row::Hmac);
        let others = Others::watch([self.receiver.pid()])?;
        let checks = Checks { body_bytes: BODY_BYTES, span: self.plan.span };
        let checked: Checked = process::work(&Role::Verify(checks), self.plan.span).await?;
        let others_percent = Some(others.percent()?);
        let rows = [Row::VerifyGithub, Row::VerifyShopify, Row::VerifySlack, Row::VerifyStandard, Row::VerifyStripe];
        for (row, nanos) in rows.into_iter().zip(checked.schemes).chain([(Row::Hmac, checked.hmac)]) {
            let us = nanos / 1000.0;
            let figures = Figures { p50_us: us, p99_us: us, max_us: us, ..Figures::default() };
            self.figures.insert(row, Figures { per_second: 1e9 / nanos, others_percent, ..figures });
        }
        Ok(())
    }

    fn sample_plugin(&mut self) -> Option<PathBuf> {
        let plugin = PathBuf::from(PLUGIN);
        if plugin.exists() {
            return Some(plugin);
        }
        self.notes.push(format!("Not measured, since {PLUGIN} is not there: what has to do with plugins."));
        None
    }

    fn half_of(&self, row: Row) -> Result<Pace> {
        let full = self.figures.get(&row).context("nothing to take the half of")?;
        Ok(Pace::Open { per_second: full.per_second / 2.0 })
    }

    /// Warms up, measures, checks, and keeps the figures. Gives what was accepted in all.
    async fn measure(&mut self, subject: &Subject<'_>, pace: Pace) -> Result<u64> {
        let title = subject.row.title();
        self.progress(subject.row);
        let (warm_up, _) = self.load(subject, pace, self.plan.warm_up).await.context(title)?;

        let _: Received = self.receiver.ask("mark").await?;
        let before = process::usage(subject.pid)?;
        let others = Others::watch([self.receiver.pid(), subject.pid])?;
        let (loaded, arrived) = self.load(subject, pace, self.plan.span).await.context(title)?;
        let after = process::usage(subject.pid)?;

        let spread = if subject.delivers { &arrived.latency } else { &loaded.latency };
        let span = if subject.delivers {
            Duration::from_nanos(arrived.last_at_nanos.saturating_sub(loaded.started_at_nanos))
        } else {
            loaded.span
        };
        let figures = Figures {
            cpu_us: Some((after.cpu_seconds - before.cpu_seconds) * 1e6 / count(loaded.accepted)),
            memory_mib: Some(count(after.memory_peak_bytes >> 10) / 1024.0),
            others_percent: Some(others.percent()?),
            ..figures(spread, span)
        };
        self.figures.insert(subject.row, figures);
        Ok(warm_up.accepted + loaded.accepted)
    }

    /// One load, and where events are delivered, the wait until all have arrived.
    async fn load(&mut self, subject: &Subject<'_>, pace: Pace, span: Duration) -> Result<(Loaded, Received)> {
        let (connections, rate) = match pace {
            Pace::Closed { connections } => (connections, None),
            Pace::Open { per_second } => (CONNECTIONS, Some(per_second)),
            Pace::AtRest => (1, Some(AT_REST_PER_SECOND)),
        };
        let requests_max = rate.map_or(REQUESTS_MAX, |per_second| requests_in(span, per_second));
        let load = Load {
            to: subject.to,
            path: subject.path.to_owned(),
            connections,
            rate,
            span,
            requests_max,
            body_bytes: BODY_BYTES,
            first_seq: self.seqs(requests_max),
        };
        let loaded: Loaded = process::work(&Role::Load(load), span).await?;
        if loaded.duplicates > 0 || loaded.broken > 0 || !loaded.refused.is_empty() {
            self.fault(format!(
                "{}: not all were accepted as new: {} were, {} as duplicates; other answers {:?}; {} connections \
                 broke ({})",
                subject.row.title(),
                loaded.accepted,
                loaded.duplicates,
                loaded.refused,
                loaded.broken,
                loaded.broken_why.as_deref().unwrap_or("none"),
            ));
        }
        if loaded.accepted == 0 {
            bail!("nothing was accepted");
        }
        if !subject.delivers {
            return Ok((loaded, Received::default()));
        }
        self.expected += loaded.accepted;
        Ok((loaded, self.arrivals().await?))
    }

    async fn arrivals(&mut self) -> Result<Received> {
        let (mut arrived, mut since) = (0, Instant::now());
        loop {
            let received: Received = self.receiver.ask("tell").await?;
            if received.unique >= self.expected {
                tokio::time::sleep(SETTLING).await;
                return Ok(received);
            }
            if received.unique != arrived {
                (arrived, since) = (received.unique, Instant::now());
            }
            if since.elapsed() > ARRIVAL_PATIENCE {
                bail!("{} accepted events did not arrive", self.expected - received.unique);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn progress(&self, row: Row) {
        eprintln!("{}/{}  {}", self.number, self.plan.repetitions, row.title());
    }

    /// Numbers for so many requests. The receiver knows as many as fit in [`receiver::SEQ_MAX`].
    fn seqs(&mut self, requests: u64) -> u64 {
        let first = self.next_seq;
        self.next_seq += requests;
        assert!(self.next_seq <= receiver::SEQ_MAX, "a repetition has no more numbers: measure fewer parts or pairs");
        first
    }
}

fn subject(gateway: &Gateway, row: Row, delivers: bool) -> Subject<'static> {
    Subject { row, to: gateway.ingress, path: Gateway::PATH, pid: gateway.pid(), delivers }
}

/// More than an open loop can make.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some thousands")]
fn requests_in(span: Duration, per_second: f64) -> u64 {
    (span.as_secs_f64() * per_second).ceil() as u64 + 1_000
}

/// The medians over phases of one row.
fn of_phases(phases: &[Figures]) -> Figures {
    let median = |of: fn(&Figures) -> f64| figures::median(phases.iter().map(of).collect()).unwrap_or(0.0);
    Figures {
        per_second: median(|f| f.per_second),
        p50_us: median(|f| f.p50_us),
        p99_us: median(|f| f.p99_us),
        max_us: median(|f| f.max_us),
        ..Figures::default()
    }
}

fn cycles_of(cycled: &Cycled) -> Figures {
    Figures {
        per_second: count(cycled.settled) / cycled.span.as_secs_f64(),
        cpu_us: Some(cycled.cpu_seconds * 1e6 / count(cycled.settled)),
        ..figures(&cycled.latency, cycled.span)
    }
}

fn figures(spread: &Spread, span: Duration) -> Figures {
    Figures {
        per_second: count(spread.count) / span.as_secs_f64(),
        p50_us: spread.p50_us,
        p99_us: spread.p99_us,
        max_us: spread.max_us,
        ..Figures::default()
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
fn count(n: u64) -> f64 {
    n as f64
}

/// Watches what the rest of the machine does.
struct Others {
    ours: BTreeSet<u32>,
    start: Instant,
    used_before: f64,
}

impl Others {
    /// `ours` are the processes that run now and at the end; those that start and end in between are known besides.
    fn watch<const N: usize>(ours: [Option<u32>; N]) -> Result<Others> {
        let mut others = Others { ours: ours.into_iter().flatten().collect(), start: Instant::now(), used_before: 0.0 };
        others.used_before = others.used()?;
        Ok(others)
    }

    fn used(&self) -> Result<f64> {
        let ours = self.ours.iter().map(|pid| Ok(process::usage(Some(*pid))?.cpu_seconds)).sum::<Result<f64>>()?;
        Ok(process::machine_cpu_seconds()? - process::own_cpu_seconds()? - ours)
    }

    fn percent(&self) -> Result<f64> {
        Ok(100.0 * (self.used()? - self.used_before).max(0.0) / self.start.elapsed().as_secs_f64())
    }
}
