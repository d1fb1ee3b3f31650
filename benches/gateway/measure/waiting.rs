//! Work that waits: a tenant beside another one's endpoint that hangs, and a gateway with nothing due for hours.

use super::{BODY_BYTES, CONNECTIONS, Others, Pace, Session, count, subject};
use crate::figures::{Figures, Row};
use crate::gateway::{Gateway, Route};
use crate::load::{Load, Loaded};
use crate::process;
use crate::role::Role;
use anyhow::{Result, ensure};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// For all events to be accepted, and for all that waits to be tried once.
const TRIED_PATIENCE: Duration = Duration::from_secs(1200);
/// What is written behind everybody's back is written by then.
const QUIET_AFTER: Duration = Duration::from_secs(5);
/// With nothing to do, CPU ticks are few.
const IDLE_SPAN: Duration = Duration::from_secs(10);

impl Session<'_> {
    pub(super) async fn waiting(&mut self) -> Result<()> {
        self.beside_a_hang().await?;
        self.idle().await
    }

    async fn beside_a_hang(&mut self) -> Result<()> {
        let dir = TempDir::new_in(self.dir)?;
        let gateway = Gateway::start(dir.path(), &Route::BesideHang { receiver: self.receiver.at }).await?;
        self.measure(&subject(&gateway, Row::HangBefore, true), Pace::AtRest).await?;
        self.progress(Row::HangBeside);
        self.pile_up(&gateway, Gateway::NOISY_PATH, self.plan.piled).await?;
        let (before, begun) = (process::private_kib(gateway.pid())?, Instant::now());
        let waits = gateway.metric("hookgate_pending").await?;
        self.measure(&subject(&gateway, Row::HangBeside, true), Pace::AtRest).await?;
        let grown = (process::private_kib(gateway.pid())? - before) / 1024.0;
        let seconds = begun.elapsed().as_secs();
        self.notes.push(format!(
            "Repetition {}: {waits} deliveries waited behind the endpoint that hangs; {:.0} MiB then, {grown:+.1} MiB \
             after {seconds} s more.",
            self.number,
            before / 1024.0,
        ));
        let p99 = |row| self.figures.get(&row).map(|f: &Figures| f.p99_us);
        let ratio = p99(Row::HangBeside).zip(p99(Row::HangBefore)).map(|(with, without)| with / without);
        if let Some(row) = self.figures.get_mut(&Row::HangBeside) {
            row.ratio = ratio;
            row.memory_mib = Some(grown);
        }
        // It is killed: a clean stop would wait for what hangs.
        drop(gateway);
        Ok(())
    }

    async fn idle(&mut self) -> Result<()> {
        self.progress(Row::Idle);
        let dir = TempDir::new_in(self.dir)?;
        let gateway = Gateway::start(dir.path(), &Route::Busy { receiver: self.receiver.at }).await?;
        let piled = self.plan.piled;
        self.pile_up(&gateway, Gateway::NOISY_PATH, piled).await?;
        let begun = Instant::now();
        loop {
            let failed = gateway.metric("hookgate_attempts_total").await?;
            if failed >= count(piled) && gateway.metric("hookgate_in_flight").await? < 0.5 {
                break;
            }
            ensure!(begun.elapsed() < TRIED_PATIENCE, "of {piled} deliveries only {failed} were tried");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let waits = gateway.metric("hookgate_pending").await?;
        tokio::time::sleep(QUIET_AFTER).await;
        let others = Others::watch([self.receiver.pid(), gateway.pid()])?;
        let before = process::usage(gateway.pid())?;
        tokio::time::sleep(IDLE_SPAN).await;
        let after = process::usage(gateway.pid())?;
        let percent = 100.0 * (after.cpu_seconds - before.cpu_seconds) / IDLE_SPAN.as_secs_f64();
        self.notes.push(format!(
            "Repetition {}: {waits} deliveries wait for a retry in hours; the gateway takes {percent:.2} % of a core.",
            self.number
        ));
        let memory_mib = Some(process::private_kib(gateway.pid())? / 1024.0);
        let others_percent = Some(others.percent()?);
        self.figures
            .insert(Row::Idle, Figures { ratio: Some(percent), memory_mib, others_percent, ..Figures::default() });
        gateway.stop().await
    }

    /// So many events, as fast as they are accepted.
    pub(super) async fn pile_up(&mut self, gateway: &Gateway, path: &str, events: u64) -> Result<()> {
        let load = Load {
            to: gateway.ingress,
            path: path.to_owned(),
            connections: CONNECTIONS,
            rate: None,
            span: TRIED_PATIENCE,
            requests_max: events,
            body_bytes: BODY_BYTES,
            first_seq: self.seqs(events),
        };
        let loaded: Loaded = process::work(&Role::Load(load), TRIED_PATIENCE).await?;
        ensure!(loaded.accepted == events, "{} of {events} were accepted", loaded.accepted);
        Ok(())
    }
}
