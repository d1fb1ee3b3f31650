//! One event to its endpoint once more, by a delivery of its own.

use super::deliveries::{bounded, conflict};
use super::idempotency::reused;
use super::input::parse_or_default;
use super::{At, ledger_problem, not_found};
use crate::delivery::{DeliveryId, DeliveryState};
use crate::http::{Answer, Problem};
use crate::ledger::{AGAIN_MAX, Resend, Resent};
use http::StatusCode;
use serde::Deserialize;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResendInput {
    note: Option<String>,
}

impl At<'_> {
    /// Answers with the delivery that was made.
    pub(super) async fn resend(&self, delivery: DeliveryId, body: &[u8]) -> Result<Answer, Problem> {
        let ResendInput { note } = parse_or_default(body)?;
        let (note, request) = (bounded(note)?, self.request.cloned());
        let resend = Resend { tenant: self.tenant.key, delivery, note, request };
        let resent = self.ledger().resend(resend, self.admin.state.clock.now()).await;
        match resent.map_err(|error| ledger_problem(&error))? {
            Resent::Done(made) => {
                tracing::info!(tenant = %self.name, %delivery, %made, "a delivery was resent");
                let mut answer = self.delivery_as_it_is(made).await?;
                *answer.status_mut() = StatusCode::CREATED;
                Ok(answer)
            }
            Resent::NotFound => Err(not_found()),
            Resent::NotOver(DeliveryState::Dead) => {
                let detail = "a dead letter is redriven, under its own id: use `redrive`";
                Err(conflict("dead", detail).with("state", DeliveryState::Dead.as_str()))
            }
            Resent::NotOver(state) => {
                let detail = "it has not ended, and is sent anyhow: resend it when it has, or cancel it";
                Err(conflict("not_over", detail).with("state", state.as_str()))
            }
            Resent::Purged => Err(conflict("purged", "it was closed for good: publish a new event instead")),
            Resent::PayloadErased => {
                Err(conflict("payload_erased", "the payload is erased: publish a new event instead"))
            }
            Resent::Expired => Err(conflict("expired", "its `expires_at` has passed: publish a new event instead")),
            Resent::TooMany => Err(Problem::new(
                StatusCode::CONFLICT,
                "too_many_resends",
                format!("this event went to this endpoint {AGAIN_MAX} times more already: publish a new event instead"),
            )),
            Resent::RequestReused => Err(reused()),
        }
    }
}
