//! The delivery log, the dead letters, and what an operator does to one delivery.

use super::idempotency::reused;
use super::input::{invalid, parse, parse_or_default};
use super::place::DeliveryVerb;
use super::query::Query;
use super::{At, answer, ledger_problem, not_found};
use crate::delivery::{DeliveryId, DeliveryState};
use crate::http::{Answer, BodyFault, Problem};
use crate::ledger::{Cancelled, Redrive, Redriven, ResolveAs, Resolved};
use crate::telemetry::DELIVERIES;
use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;

const NOTE_BYTES_MAX: usize = 1_024;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RedriveInput<'a> {
    note: Option<String>,
    #[serde(borrow, default, deserialize_with = "super::publish::raw")]
    payload: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResolveInput {
    #[serde(rename = "as")]
    how: How,
    note: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum How {
    Sent,
    NotSent,
}

impl From<How> for ResolveAs {
    fn from(how: How) -> Self {
        match how {
            How::Sent => ResolveAs::Sent,
            How::NotSent => ResolveAs::NotSent,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct CancelInput {}

impl At<'_> {
    pub(super) async fn deliveries(&self) -> Result<Answer, Problem> {
        let mut query = Query::of(self.query);
        let mut filter = query.deliveries()?;
        filter.state = query.state()?;
        let page = query.page()?;
        query.finish()?;
        let deliveries = self.ledger().deliveries(self.tenant.key, &filter, &page).await;
        Ok(answer::json(&deliveries.map_err(|error| ledger_problem(&error))?))
    }

    pub(super) async fn delivery(&self, id: &str) -> Result<Answer, Problem> {
        Query::of(self.query).finish()?;
        self.delivery_as_it_is(id.parse().map_err(|_| not_found())?).await
    }

    pub(super) async fn delivery_as_it_is(&self, id: DeliveryId) -> Result<Answer, Problem> {
        let delivery = self.ledger().delivery(self.tenant.key, id).await.map_err(|error| ledger_problem(&error))?;
        Ok(answer::json(&delivery.ok_or_else(not_found)?))
    }

    /// Answers with the delivery as it stands afterwards.
    pub(super) async fn change_delivery(&self, id: &str, verb: DeliveryVerb, body: &[u8]) -> Result<Answer, Problem> {
        let id: DeliveryId = id.parse().map_err(|_| not_found())?;
        match verb {
            DeliveryVerb::Redrive => self.redrive(id, body).await?,
            DeliveryVerb::Resend => return self.resend(id, body).await,
            DeliveryVerb::Cancel => self.cancel(id, body).await?,
            DeliveryVerb::Resolve => self.resolve(id, body).await?,
        }
        self.delivery_as_it_is(id).await
    }

    async fn redrive(&self, delivery: DeliveryId, body: &[u8]) -> Result<(), Problem> {
        let RedriveInput { note, payload } = parse_or_default(body)?;
        let payload = payload.map(|payload| Bytes::copy_from_slice(payload.get().as_bytes()));
        let limit = self.admin.settings.body_bytes_max;
        if payload.as_ref().is_some_and(|payload| u64::try_from(payload.len()).unwrap_or(u64::MAX) > limit) {
            return Err(BodyFault::TooLarge { limit }.problem().with("field", "payload"));
        }
        let note = bounded(note)?;
        if payload.is_some() && note.as_deref().is_none_or(|note| note.trim().is_empty()) {
            return Err(invalid("note", "is missing: say why the `payload` is corrected, for the record"));
        }
        let request = self.request.cloned();
        let redrive = Redrive { tenant: self.tenant.key, delivery, note, payload, request };
        match self
            .ledger()
            .redrive(redrive, self.admin.state.clock.now())
            .await
            .map_err(|error| ledger_problem(&error))?
        {
            Redriven::Done { .. } => Ok(()),
            Redriven::NotFound => Err(not_found()),
            Redriven::NotDead(state) => Err(not_dead(state)),
            Redriven::PayloadErased => {
                Err(conflict("payload_erased", "the payload is erased: redrive with a `payload`"))
            }
            Redriven::RequestReused => Err(reused()),
            Redriven::Expired => Err(conflict("expired", "its `expires_at` has passed: publish a new event instead")),
        }
    }

    async fn cancel(&self, id: DeliveryId, body: &[u8]) -> Result<(), Problem> {
        let CancelInput {} = parse_or_default(body)?;
        let now = self.admin.state.clock.now();
        match self.ledger().cancel(self.tenant.key, id, now).await.map_err(|error| ledger_problem(&error))? {
            Cancelled::Done => {
                counted(DeliveryState::Cancelled, 1);
                Ok(())
            }
            Cancelled::NotFound => Err(not_found()),
            Cancelled::NotPending(state) => {
                Err(conflict("not_pending", "only a pending delivery can be cancelled").with("state", state.as_str()))
            }
        }
    }

    async fn resolve(&self, id: DeliveryId, body: &[u8]) -> Result<(), Problem> {
        let ResolveInput { how, note } = parse(body)?;
        let now = self.admin.state.clock.now();
        let resolved = self.ledger().resolve(self.tenant.key, id, how.into(), bounded(note)?, now).await;
        match resolved.map_err(|error| ledger_problem(&error))? {
            Resolved::Done => {
                counted(DeliveryState::Resolved, 1);
                Ok(())
            }
            Resolved::NotFound => Err(not_found()),
            Resolved::NotDead(state) => Err(not_dead(state)),
        }
    }
}

/// The states that only people lead to are counted here; the others by dispatch.
pub(super) fn counted(state: DeliveryState, times: u64) {
    metrics::counter!(DELIVERIES, "state" => state.as_str()).increment(times);
}

pub(super) fn conflict(code: &'static str, detail: &'static str) -> Problem {
    Problem::new(StatusCode::CONFLICT, code, detail)
}

fn not_dead(state: DeliveryState) -> Problem {
    conflict("not_dead", "only a dead letter can be resolved or redriven, or redriven once it is resolved as not sent")
        .with("state", state.as_str())
}

pub(super) fn bounded(note: Option<String>) -> Result<Option<String>, Problem> {
    match note {
        Some(note) if note.len() > NOTE_BYTES_MAX => {
            Err(invalid("note", format!("is to have at most {NOTE_BYTES_MAX} bytes")))
        }
        note => Ok(note),
    }
}
