//! The dead letters as one set: listed, grouped, redriven in bulk, purged.

use super::deliveries::{bounded, conflict, counted};
use super::input::{invalid, parse};
use super::operations::described;
use super::plugins::OPERATOR;
use super::query::Query;
use super::{At, answer, ledger_problem};
use crate::delivery::{DeliveryState, Name};
use crate::http::{Answer, Problem};
use crate::ledger::{
    BegunOperation, DeadDestination, DeadFilter, NewOperation, OPERATIONS_OPEN_MAX, PageRequest, Work,
};
use async_trait::async_trait;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::time::Duration;

/// Per second.
const RATE_DEFAULT: u32 = 100;
const RATE_MAX: u32 = 10_000;
const SAMPLES: u32 = 10;
/// A purge that takes longer answers with what it has done so far.
const PURGE_FOR: Duration = Duration::from_secs(20);

/// Who carries bulk redrives on.
#[async_trait]
pub trait Desk: Send + Sync + 'static {
    /// Those of the destinations that do not answer as a receiver would that is to get its dead letters again.
    async fn probe(&self, destinations: &[DeadDestination]) -> Vec<Down>;
    /// There is something new to do.
    fn tell(&self);
}

/// A destination that is down.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Down {
    pub endpoint: Name,
    pub host: String,
    /// The kind of failure, in a word.
    pub class: String,
    pub detail: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RedriveInput {
    #[serde(deserialize_with = "super::input::object")]
    filter: DeadFilter,
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

pub(super) const fn by_default() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PurgeInput {
    #[serde(deserialize_with = "super::input::object")]
    filter: DeadFilter,
    #[serde(default)]
    dry_run: bool,
}

/// What a filter's check says, of a field of the body.
pub(super) fn checked(check: Result<(), (&'static str, String)>) -> Result<(), Problem> {
    check.map_err(|(field, rule)| {
        let field = format!("filter.{field}");
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", format!("`{field}` {rule}")).with("field", field)
    })
}

/// How an operation is to go on.
pub(super) struct Pace {
    pub max: Option<u64>,
    pub rate: Option<u32>,
    pub canary: bool,
    pub note: Option<String>,
}

impl Pace {
    pub(super) fn operation(self, at: &At<'_>, work: Work) -> Result<NewOperation, Problem> {
        let Pace { max, rate, canary, note } = self;
        let rate = rate.unwrap_or(RATE_DEFAULT);
        if !(1..=RATE_MAX).contains(&rate) {
            return Err(invalid("rate", format!("is to be a number from 1 to {RATE_MAX}, per second")));
        }
        if max == Some(0) {
            return Err(invalid("max", "is to be at least 1: leave it out for all, and use `dry_run` for none"));
        }
        let (note, request) = (bounded(note)?, at.request.cloned());
        Ok(NewOperation { tenant: at.tenant.key, work, max, rate, canary, note, by: OPERATOR.to_owned(), request })
    }
}

impl At<'_> {
    pub(super) async fn dead_letters(&self) -> Result<Answer, Problem> {
        let mut query = Query::of(self.query);
        let filter = query.dead()?;
        let page = query.page()?;
        query.finish()?;
        let letters = self.ledger().dead_letters(self.tenant.key, &filter, &page).await;
        Ok(answer::json(&letters.map_err(|error| ledger_problem(&error))?))
    }

    pub(super) async fn dead_groups(&self) -> Result<Answer, Problem> {
        let mut query = Query::of(self.query);
        let (filter, by) = (query.dead()?, query.grouping()?.unwrap_or_default());
        query.finish()?;
        let groups = self.ledger().dead_groups(self.tenant.key, &filter, by).await;
        Ok(answer::json(&json!({ "items": groups.map_err(|error| ledger_problem(&error))?, "next": null })))
    }

    /// How many, and some of them; nothing changes.
    pub(super) async fn rehearsed(&self, filter: &DeadFilter) -> Result<Answer, Problem> {
        let count = self.ledger().count_dead(self.tenant.key, filter).await.map_err(|error| ledger_problem(&error))?;
        let page = PageRequest { limit: SAMPLES, cursor: None };
        let samples = self.ledger().dead_letters(self.tenant.key, filter, &page).await;
        let samples = samples.map_err(|error| ledger_problem(&error))?.items;
        Ok(answer::json(&json!({ "count": count, "samples": samples })))
    }

    pub(super) async fn redrive_dead(&self, body: &[u8]) -> Result<Answer, Problem> {
        let input: RedriveInput = parse(body)?;
        let RedriveInput { filter, max, rate, canary, probe, force, dry_run, note } = input;
        checked(filter.check())?;
        let new = Pace { max, rate, canary, note }.operation(self, Work::Redrive(filter.clone()))?;
        if dry_run {
            return self.rehearsed(&filter).await;
        }
        let before = self.ledger().begun_before(&new).await.map_err(|error| ledger_problem(&error))?;
        if let Some(before) = before {
            return self.begun(before);
        }
        let destinations = self.ledger().dead_destinations(self.tenant.key, &filter).await;
        let destinations = destinations.map_err(|error| ledger_problem(&error))?;
        if destinations.is_empty() {
            // No operation, for there is nothing to do.
            return Ok(answer::json(&json!({ "count": 0, "samples": [] })));
        }
        if probe && !force {
            let down = self.admin.state.desk.probe(&destinations).await;
            if !down.is_empty() {
                return Err(destination_down("redriven", &down));
            }
        }
        let begun = self.ledger().begin_operation(new, self.admin.state.clock.now()).await;
        self.begun(begun.map_err(|error| ledger_problem(&error))?)
    }

    pub(super) fn begun(&self, begun: BegunOperation) -> Result<Answer, Problem> {
        match begun {
            BegunOperation::Done(row) | BegunOperation::Before(row) => {
                self.admin.state.desk.tell();
                let mut answer = answer::json(&described(&row));
                *answer.status_mut() = StatusCode::ACCEPTED;
                Ok(answer)
            }
            BegunOperation::RequestReused => Err(conflict(
                "key_reused",
                "this idempotency key came before with another filter or other settings: use a new one for a new operation",
            )),
            BegunOperation::TooMany => Err(Problem::new(
                StatusCode::CONFLICT,
                "too_many_operations",
                format!("{OPERATIONS_OPEN_MAX} operations of this tenant have not ended: stop some, or wait"),
            )),
        }
    }

    pub(super) async fn purge_dead(&self, body: &[u8]) -> Result<Answer, Problem> {
        let PurgeInput { filter, dry_run } = parse(body)?;
        checked(filter.check())?;
        if dry_run {
            return self.rehearsed(&filter).await;
        }
        let began = tokio::time::Instant::now();
        let (mut purged, mut payloads_erased, mut from) = (0, 0, None);
        loop {
            let now = self.admin.state.clock.now();
            let batch = self.ledger().purge_dead(self.tenant.key, &filter, from, now).await;
            let batch = batch.map_err(|error| ledger_problem(&error))?;
            counted(DeliveryState::Cancelled, batch.purged);
            purged += batch.purged;
            payloads_erased += batch.payloads_erased;
            from = batch.next;
            if from.is_none() || began.elapsed() >= PURGE_FOR {
                break;
            }
        }
        let more = from.is_some();
        tracing::info!(tenant = %self.name, purged, payloads_erased, more, by = OPERATOR, "dead letters were purged");
        Ok(answer::json(&json!({ "purged": purged, "payloads_erased": payloads_erased, "more": more })))
    }
}

pub(super) fn destination_down(done: &str, down: &[Down]) -> Problem {
    let all: Vec<String> =
        down.iter().map(|d| format!("{} (endpoint `{}`): {}", d.host, d.endpoint, d.class)).collect();
    let detail = format!("nothing was {done}, for these destinations are down: {}", all.join("; "));
    Problem::new(StatusCode::CONFLICT, "destination_down", detail)
        .with("destinations", json!(down))
        .with("remedy", "try when they answer again, narrow the filter to other hosts, or set `force` (`--force`)")
}
