//! Many dead letters: how fast they are listed and grouped, and all of them redriven with a kill half-way.

use super::{Others, Session, count, figures};
use crate::figures::{Figures, Row};
use crate::gateway::{Gateway, Route};
use crate::latency::Latencies;
use crate::process;
use crate::receiver::Received;
use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// For all to die, and for all to be redriven.
const PATIENCE: Duration = Duration::from_secs(1200);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Looks of each kind.
const LOOKS: u32 = 20;
/// The most that an operation may ask for.
const RATE: u32 = 10_000;

#[derive(Deserialize)]
struct Operation {
    id: String,
    state: String,
    total: Option<u64>,
    done: u64,
    delivered: u64,
    dead_again: u64,
}

impl Session<'_> {
    pub(super) async fn desk(&mut self) -> Result<()> {
        let letters = self.plan.dead;
        let dir = TempDir::new_in(self.dir)?;
        let gateway = Gateway::start(dir.path(), &Route::Door { receiver: self.receiver.at, dying: true }).await?;
        self.progress(Row::DeskDying);
        let _: Received = self.receiver.ask("close").await?;
        let (others, begun) = (Others::watch([self.receiver.pid(), gateway.pid()])?, Instant::now());
        self.pile_up(&gateway, Gateway::PATH, letters).await?;
        wait_for(letters, || gateway.metric("hookgate_dlq_depth")).await?;
        self.figures.insert(Row::DeskDying, self.whole(letters, begun.elapsed(), &gateway, &others)?);
        gateway.stop().await?;
        let route = Route::Door { receiver: self.receiver.at, dying: false };
        let gateway = Gateway::start(dir.path(), &route).await?;
        self.looks(&gateway, letters).await?;
        self.redrive_all(gateway, dir.path(), &route).await
    }

    /// How long an operator waits for what the desk shows.
    async fn looks(&mut self, gateway: &Gateway, letters: u64) -> Result<()> {
        let list = "/v1/tenants/bench/dlq?limit=50";
        let filtered = format!("{list}&reason=http_503&endpoint=receiver&status=503");
        let groups = "/v1/tenants/bench/dlq/groups";
        for (row, path) in [(Row::DeskList, list), (Row::DeskListFiltered, &filtered), (Row::DeskGroups, groups)] {
            self.progress(row);
            let mut latencies = Latencies::new()?;
            let begun = Instant::now();
            for _ in 0..LOOKS {
                let asked = Instant::now();
                let answer = gateway.get(path).await?;
                latencies.record_span(asked.elapsed());
                ensure!(
                    answer["items"].as_array().is_some_and(|items| !items.is_empty()),
                    "nothing is shown: {answer}"
                );
            }
            self.figures.insert(row, figures(&latencies.spread(), begun.elapsed()));
        }
        self.progress(Row::DeskCount);
        let mut latencies = Latencies::new()?;
        let begun = Instant::now();
        for _ in 0..LOOKS {
            let asked = Instant::now();
            let preview =
                gateway.post("/v1/tenants/bench/dlq/redrive", &json!({"filter": {}, "dry_run": true})).await?;
            latencies.record_span(asked.elapsed());
            ensure!(preview["count"] == letters, "{letters} are dead, and the preview says {}", preview["count"]);
        }
        self.figures.insert(Row::DeskCount, figures(&latencies.spread(), begun.elapsed()));
        Ok(())
    }

    /// In two lives of the gateway, the first of which is killed half-way.
    async fn redrive_all(&mut self, gateway: Gateway, dir: &Path, route: &Route) -> Result<()> {
        let letters = self.plan.dead;
        self.progress(Row::DeskRedrive);
        let before: Received = self.receiver.ask("open").await?;
        let others = Others::watch([self.receiver.pid(), gateway.pid()])?;
        let begun = Instant::now();
        let wish = json!({"filter": {}, "rate": RATE, "note": "the receiver is back"});
        let operation: Operation = read(&gateway.post("/v1/tenants/bench/dlq/redrive", &wish).await?)?;
        ensure!(operation.total == Some(letters), "it takes {:?} of {letters} letters", operation.total);
        let place = format!("/v1/tenants/bench/operations/{}", operation.id);
        loop {
            let now: Operation = read(&gateway.get(&place).await?)?;
            if now.done >= letters / 2 {
                break;
            }
            ensure!(now.state == "running" || now.state == "queued", "it is {} after {}", now.state, now.done);
            ensure!(begun.elapsed() < PATIENCE, "after {} of {letters} it goes on too slowly", now.done);
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let first = self.whole(letters, begun.elapsed(), &gateway, &others)?;
        gateway.kill().await?;
        let at_kill: Received = self.receiver.ask("tell").await?;
        let down = Instant::now();
        let gateway = Gateway::start(dir, route).await?;
        let down = down.elapsed();
        let others = Others::watch([self.receiver.pid(), gateway.pid()])?;
        let operation = loop {
            let now: Operation = read(&gateway.get(&place).await?)?;
            if now.state == "done" && now.delivered >= letters {
                break now;
            }
            ensure!(now.state == "running" || now.state == "done", "after the kill it is {}", now.state);
            ensure!(now.dead_again == 0, "{} died again", now.dead_again);
            ensure!(begun.elapsed() < PATIENCE, "{} of {letters} are delivered", now.delivered);
            tokio::time::sleep(LOOK_EVERY).await;
        };
        let second = self.whole(letters, begun.elapsed(), &gateway, &others)?;
        let memory_mib = first.memory_mib.into_iter().chain(second.memory_mib).reduce(f64::max);
        self.figures.insert(Row::DeskRedrive, Figures { memory_mib, ..second });
        ensure!(operation.done == letters, "{} letters were put back, not {letters}", operation.done);
        let depth = gateway.metric("hookgate_dlq_depth").await?;
        ensure!(depth < 0.5, "{depth} are dead still");
        self.expected += letters;
        let after = self.arrivals().await?;
        let twice = after.repeated - before.repeated;
        // What was on the wire at the kill may have been received, and comes again.
        ensure!(twice <= u64::from(Gateway::AT_DOOR_MAX), "{twice} came twice, more than can have been on the wire");
        self.repeated += twice;
        self.notes.push(format!(
            "Repetition {}: {letters} dead letters were redriven in {:.0} s, with a kill after {} arrivals and {:.1} s \
             until the next start; each arrived, {twice} twice (at most {} were on the wire).",
            self.number,
            begun.elapsed().as_secs_f64(),
            at_kill.unique - before.unique,
            down.as_secs_f64(),
            Gateway::AT_DOOR_MAX,
        ));
        gateway.stop().await
    }

    fn whole(&self, letters: u64, took: Duration, gateway: &Gateway, others: &Others) -> Result<Figures> {
        let us = took.as_secs_f64() * 1e6;
        let peak = process::usage(gateway.pid())?.memory_peak_bytes;
        Ok(Figures {
            per_second: count(letters) / took.as_secs_f64(),
            p50_us: us,
            p99_us: us,
            max_us: us,
            memory_mib: Some(count(peak >> 10) / 1024.0),
            others_percent: Some(others.percent()?),
            ..Figures::default()
        })
    }
}

fn read(answer: &Value) -> Result<Operation> {
    Operation::deserialize(answer).with_context(|| format!("an operation was expected, not {answer}"))
}

async fn wait_for<F: Future<Output = Result<f64>>>(wanted: u64, mut look: impl FnMut() -> F) -> Result<()> {
    let begun = Instant::now();
    while look().await? < count(wanted) {
        ensure!(begun.elapsed() < PATIENCE, "not all {wanted} have died");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}
