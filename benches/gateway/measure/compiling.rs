//! A tenant's deliveries while one upload of another's after the other is ruinous to compile.

use super::{Others, Session, of_phases};
use crate::figures::{Figures, Row};
use crate::gateway::{Gateway, Route};
use crate::hostile::{self, Attack};
use anyhow::{Result, bail, ensure};
use std::time::Duration;
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
        self.unharmed(&gateway, row, self.plan.warm_up, 1).await?;
        let without = of_phases(&self.unharmed(&gateway, row, self.plan.span, self.plan.pairs).await?);
        let uploads = async {
            for number in 0.. {
                let status = gateway.upload("noisy", "bomb", hostile::bomb(number)).await?;
                ensure!(status == 422, "what cannot be compiled was answered {status}");
            }
            Ok(())
        };
        let phases = self.unharmed(&gateway, row, self.plan.span, self.plan.pairs);
        let with = tokio::select! {
            with = phases => of_phases(&with?),
            ended = uploads => bail!("there is no end of uploads: {ended:?}"),
        };
        let others_percent = Some(others.percent()?);
        let ratio = Some(with.p99_us / without.p99_us);
        self.figures.insert(row, Figures { ratio, others_percent, ..with });
        gateway.stop().await
    }

    /// The one tenant's deliveries, beside traffic of the other one that has no plugin.
    async fn unharmed(&mut self, gateway: &Gateway, row: Row, span: Duration, phases: u32) -> Result<Vec<Figures>> {
        let mut all = Vec::new();
        for _ in 0..phases {
            all.push(self.beside(gateway, row, Attack::Trap, Gateway::PLAIN_PATH, span).await?);
        }
        Ok(all)
    }
}
