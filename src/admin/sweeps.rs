//! Many deliveries closed by a person's word: dead letters resolved, pending deliveries cancelled.

use super::dead_letters::checked;
use super::deliveries::{How, bounded, counted};
use super::input::parse;
use super::plugins::OPERATOR;
use super::{At, answer, ledger_problem};
use crate::delivery::DeliveryState;
use crate::http::{Answer, Problem};
use crate::ledger::{DeadFilter, DeliveryFilter, ResolveMany};
use serde::Deserialize;
use serde_json::json;
use std::time::Duration;

const SAMPLES: u32 = 10;
/// One that takes longer answers with what it has done so far.
const SWEEP_FOR: Duration = Duration::from_secs(20);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResolveInput {
    #[serde(deserialize_with = "super::input::object")]
    filter: DeadFilter,
    #[serde(rename = "as")]
    how: How,
    note: Option<String>,
    #[serde(default)]
    dry_run: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CancelInput {
    #[serde(deserialize_with = "super::input::object")]
    filter: DeliveryFilter,
    #[serde(default)]
    dry_run: bool,
}

impl At<'_> {
    pub(super) async fn resolve_many(&self, body: &[u8]) -> Result<Answer, Problem> {
        let ResolveInput { filter, how, note, dry_run } = parse(body)?;
        checked(filter.check())?;
        let note = bounded(note)?;
        if dry_run {
            return self.rehearsed(&filter).await;
        }
        let resolve = ResolveMany { tenant: self.tenant.key, filter, how: how.into(), note };
        let began = tokio::time::Instant::now();
        let (mut resolved, mut from) = (0, None);
        loop {
            let batch = self.ledger().resolve_many(&resolve, from, self.admin.state.clock.now()).await;
            let batch = batch.map_err(|error| ledger_problem(&error))?;
            counted(DeliveryState::Resolved, batch.done);
            resolved += batch.done;
            from = batch.next;
            if from.is_none() || began.elapsed() >= SWEEP_FOR {
                break;
            }
        }
        let more = from.is_some();
        tracing::info!(tenant = %self.name, resolved, more, by = OPERATOR, "dead letters were resolved");
        Ok(answer::json(&json!({ "resolved": resolved, "more": more })))
    }

    pub(super) async fn cancel_many(&self, body: &[u8]) -> Result<Answer, Problem> {
        let CancelInput { filter, dry_run } = parse(body)?;
        checked(filter.check())?;
        if dry_run {
            let found = self.ledger().pending(self.tenant.key, &filter, SAMPLES).await;
            let (count, samples) = found.map_err(|error| ledger_problem(&error))?;
            return Ok(answer::json(&json!({ "count": count, "samples": samples })));
        }
        let began = tokio::time::Instant::now();
        let (mut cancelled, mut up_to) = (0, None);
        loop {
            let now = self.admin.state.clock.now();
            let batch = self.ledger().cancel_many(self.tenant.key, &filter, up_to, now).await;
            let batch = batch.map_err(|error| ledger_problem(&error))?;
            counted(DeliveryState::Cancelled, batch.done);
            cancelled += batch.done;
            up_to = batch.next;
            if up_to.is_none() || began.elapsed() >= SWEEP_FOR {
                break;
            }
        }
        let more = up_to.is_some();
        tracing::info!(tenant = %self.name, cancelled, more, by = OPERATOR, "pending deliveries were cancelled");
        Ok(answer::json(&json!({ "cancelled": cancelled, "more": more })))
    }
}
