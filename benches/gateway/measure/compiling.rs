//! A tenant's deliveries while one upload of another's after the other is ruinous to compile.

use super::{Others, Session};
use crate::figures::{self, Figures, Row};
use crate::gateway::{Gateway, Route};
use crate::hostile::{self, Attack};
use anyhow::{Result, bail, ensure};
use tempfile::TempDir;

impl Session<'_> {
    /// All phases without, then all with: what is being compiled cannot be called back.
    pub(super) async fn compiling(&mut self) -> Result<()> {
        let Some(plugin) = self.sample_plugin() else { return Ok(()) };
        let row = Row::BesideCompile;
        self.progress(row);
        let dir = TempDir::new_in(self.dir)?;
        let hostile = Attack::Trap.write(dir.path())?;
        let gateway =
            Gateway::start(dir.path(), &Route::Beside { receiver: self.receiver.at, plugin, hostile }).await?;
        let others = Others::watch([self.receiver.pid(), gateway.pid()])?;
        let phase = (row, Attack::Trap, Gateway::PLAIN_PATH);
        self.beside(&gateway, row, phase.1, phase.2, self.plan.warm_up).await?;
        let mut without = Vec::new();
        for _ in 0..self.plan.pairs {
            without.push(self.beside(&gateway, row, phase.1, phase.2, self.plan.span).await?);
        }
        let uploads = async {
            for number in 0.. {
                let status = gateway.upload("noisy", "bomb", hostile::bomb(number)).await?;
                ensure!(status == 422, "what cannot be compiled was answered {status}");
            }
            Ok(())
        };
        let phases = async {
            let mut with = Vec::new();
            for _ in 0..self.plan.pairs {
                with.push(self.beside(&gateway, row, phase.1, phase.2, self.plan.span).await?);
            }
            Ok::<_, anyhow::Error>(with)
        };
        let with = tokio::select! {
            with = phases => with?,
            ended = uploads => bail!("there is no end of uploads: {ended:?}"),
        };
        let others_percent = Some(others.percent()?);
        let median = |of: fn(&Figures) -> f64, phases: &[Figures]| {
            figures::median(phases.iter().map(of).collect()).unwrap_or(0.0)
        };
        let ratio = median(|f| f.p99_us, &with) / median(|f| f.p99_us, &without);
        self.figures.insert(
            row,
            Figures {
                per_second: median(|f| f.per_second, &with),
                p50_us: median(|f| f.p50_us, &with),
                p99_us: median(|f| f.p99_us, &with),
                max_us: median(|f| f.max_us, &with),
                ratio: Some(ratio),
                others_percent,
                ..Figures::default()
            },
        );
        gateway.stop().await
    }
}
