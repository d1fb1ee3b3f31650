//! Events to one endpoint once more, as an operation.

use super::dead_letters::{Pace, by_default, checked, destination_down};
use super::input::parse;
use super::{At, answer, ledger_problem, not_found};
use crate::delivery::{Name, Order};
use crate::http::{Answer, Problem};
use crate::ledger::{DeadDestination, EventFilter, LedgerError, Replay, ReplayRehearsed, Work};
use serde::Deserialize;
use serde_json::{Value, json};

const SAMPLES: u32 = 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplayInput {
    #[serde(deserialize_with = "super::input::object")]
    filter: EventFilter,
    #[serde(default)]
    only_missed: bool,
    max: Option<u64>,
    rate: Option<u32>,
    #[serde(default)]
    canary: bool,
    #[serde(default = "by_default")]
    probe: bool,
    #[serde(default)]
    force: bool,
    #[serde(default)]
    dry_run: bool,
    note: Option<String>,
}

impl At<'_> {
    pub(super) async fn replay(&self, endpoint: &str, body: &[u8]) -> Result<Answer, Problem> {
        let (name, endpoint) = self.tenant.endpoints.get_key_value(endpoint).ok_or_else(not_found)?;
        let input: ReplayInput = parse(body)?;
        let ReplayInput { filter: events, only_missed, max, rate, canary, probe, force, dry_run, note } = input;
        checked(events.check())?;
        let order = match endpoint.order {
            Order::ByKey(on_dead) => Some(on_dead),
            Order::Free => None,
        };
        let replay = Replay { endpoint: name.clone(), events, only_missed, order };
        let new = Pace { max, rate, canary, note }.operation(self, Work::Replay(replay.clone()))?;
        if dry_run {
            let rehearsed = self.rehearsed_replay(&replay).await.map_err(|error| ledger_problem(&error))?;
            return Ok(answer::json(&rehearsed.as_ref().map(told).ok_or_else(not_found)?));
        }
        let before = self.ledger().begun_before(&new).await.map_err(|error| ledger_problem(&error))?;
        if let Some(before) = before {
            return self.begun(before);
        }
        match self.rehearsed_replay(&replay).await {
            // No operation, for there is nothing to do.
            Ok(Some(nothing)) if nothing.count == 0 => return Ok(answer::json(&told(&nothing))),
            // So many that to count them takes too long: not none.
            Ok(Some(_)) | Err(LedgerError::TooSlow { .. }) => {}
            Ok(None) => return Err(not_found()),
            Err(error) => return Err(ledger_problem(&error)),
        }
        // Nobody is asked where consumers come by themselves.
        if probe && !force && endpoint.pull.is_none() {
            let down = self.admin.state.desk.probe(&[self.destination(name).await?]).await;
            if !down.is_empty() {
                return Err(destination_down("replayed", &down));
            }
        }
        let begun = self.ledger().begin_operation(new, self.admin.state.clock.now()).await;
        self.begun(begun.map_err(|error| ledger_problem(&error))?)
    }

    async fn rehearsed_replay(&self, replay: &Replay) -> Result<Option<ReplayRehearsed>, LedgerError> {
        self.ledger().rehearse_replay(self.tenant.key, replay, SAMPLES, self.admin.state.clock.now()).await
    }

    async fn destination(&self, name: &Name) -> Result<DeadDestination, Problem> {
        let all = self.ledger().endpoints(self.tenant.key, self.admin.state.clock.now()).await;
        let found = all.map_err(|error| ledger_problem(&error))?.into_iter().find(|state| state.name == *name);
        let state = found.ok_or_else(not_found)?;
        Ok(DeadDestination {
            key: state.key,
            endpoint: state.name,
            host: state.host,
            status: state.status,
            count: state.dead,
        })
    }
}

fn told(rehearsed: &ReplayRehearsed) -> Value {
    let ReplayRehearsed { count, expired, payload_erased, under_way, samples } = rehearsed;
    json!({
        "count": count,
        "skipped": { "expired": expired, "payload_erased": payload_erased, "under_way": under_way },
        "samples": samples,
    })
}
