//! Carries bulk redrives and replays on: in steps, at their rate, a few of each tenant's at once. All that there is of them is in the
//! ledger, so that a process that begins goes on where the one before was.

use super::plan::{self, Verdict};
use crate::clock::ClockWatch;
use crate::delivery::OperationId;
use crate::ledger::{Ledger, LedgerError, OPERATIONS_RUNNING_MAX, OperationRow, OperationState, TenantKey};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Between two looks while some have not ended, and while none is known.
const LOOK_EVERY: Duration = Duration::from_millis(250);
const LOOK_AT_REST_EVERY: Duration = Duration::from_secs(30);
/// Between two looks at a wave that is not all tried.
const JUDGE_EVERY: Duration = Duration::from_millis(500);
/// After a step that the ledger did not take.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// After a step that did nothing, so that others go first.
const BREATH: Duration = Duration::from_millis(1);

/// When an operation is to be looked at again.
struct Place {
    step_at: Instant,
    judge_at: Instant,
}

/// Runs until `stop` is cancelled or the ledger has stopped. `news`: somebody began or resumed one.
pub async fn run(ledger: Arc<dyn Ledger>, clock: Arc<ClockWatch>, news: Arc<Notify>, stop: CancellationToken) {
    let mut places: HashMap<OperationId, Place> = HashMap::new();
    loop {
        let wait = match round(&*ledger, &clock, &mut places).await {
            Ok(wait) => wait,
            Err(LedgerError::Stopped(_)) => return,
            Err(error) => {
                tracing::warn!(%error, "operations could not go on; they will be tried again");
                AGAIN_AFTER
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = news.notified() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// One step of each that is to have one. Gives how long nothing is to be done.
async fn round(
    ledger: &dyn Ledger,
    clock: &ClockWatch,
    places: &mut HashMap<OperationId, Place>,
) -> Result<Duration, LedgerError> {
    let open = ledger.open_operations().await?;
    places.retain(|id, _| open.iter().any(|row| row.id == *id && row.state == OperationState::Running));
    if open.is_empty() {
        return Ok(LOOK_AT_REST_EVERY);
    }
    let mut running: HashMap<TenantKey, u32> = HashMap::new();
    for row in open.iter().filter(|row| row.state == OperationState::Running) {
        *running.entry(row.tenant).or_default() += 1;
    }
    let mut next = Instant::now() + LOOK_EVERY;
    for row in &open {
        match row.state {
            OperationState::Queued => {
                let of_tenant = running.entry(row.tenant).or_default();
                if *of_tenant < OPERATIONS_RUNNING_MAX
                    && ledger.start_operation(row.tenant, row.id, clock.now()).await?
                {
                    *of_tenant += 1;
                    tracing::info!(operation = %row.id, total = row.total, "an operation goes on");
                    next = Instant::now();
                }
            }
            OperationState::Running => {
                let now = Instant::now();
                let place = places.entry(row.id).or_insert(Place { step_at: now, judge_at: now });
                if place.step_at <= now {
                    match step(ledger, clock, row, place).await {
                        Ok(wait) => place.step_at = now + wait,
                        Err(error @ LedgerError::Stopped(_)) => return Err(error),
                        // The others may fare better.
                        Err(error) => {
                            tracing::warn!(operation = %row.id, %error, "an operation could not go on; it will be tried again");
                            place.step_at = Instant::now() + AGAIN_AFTER;
                        }
                    }
                }
                next = next.min(place.step_at);
            }
            OperationState::Paused
            | OperationState::Done
            | OperationState::Stopped
            | OperationState::StoppedByCanary => {}
        }
    }
    Ok(next.saturating_duration_since(Instant::now()).max(BREATH))
}

/// One step. Gives how long to wait for the next.
async fn step(
    ledger: &dyn Ledger,
    clock: &ClockWatch,
    row: &OperationRow,
    place: &mut Place,
) -> Result<Duration, LedgerError> {
    if let Some(wave) = row.wave
        && (wave.left == 0 || place.judge_at <= Instant::now())
    {
        place.judge_at = Instant::now() + JUDGE_EVERY;
        let results = ledger.wave_results(row.tenant, row.id, wave.number).await?;
        match plan::judge(wave.size, &plan::tally(wave.size - wave.left, &results, &row.old_reasons)) {
            Verdict::Wait if wave.left == 0 => return Ok(LOOK_EVERY),
            Verdict::Wait => {}
            Verdict::Widen(size) => {
                ledger.widen_operation(row.tenant, row.id, wave.number, size).await?;
                tracing::info!(operation = %row.id, size, "a canary's next wave");
                return Ok(Duration::ZERO);
            }
            Verdict::Stop(why) => {
                tracing::warn!(operation = %row.id, %why, "an operation was stopped by its canary");
                ledger.stop_by_canary(row.tenant, row.id, why, clock.now()).await?;
                return Ok(LOOK_EVERY);
            }
        }
    }
    let advanced = ledger.advance_operation(row.tenant, row.id, plan::step(row.rate), clock.now()).await?;
    if advanced.over {
        tracing::info!(operation = %row.id, "an operation is over");
    }
    Ok(plan::pause(advanced.done, row.rate).max(BREATH))
}
