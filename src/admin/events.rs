//! Reading events, and what was sent of them.

use super::query::Query;
use super::{At, answer, ledger_problem, not_found};
use crate::delivery::{DeliveryId, EventId};
use crate::http::{Answer, Problem};
use crate::ledger::{BodyRow, EventRow};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

#[derive(Serialize)]
struct Hinted {
    #[serde(flatten)]
    event: EventRow,
    /// Of an event that went nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl At<'_> {
    pub(super) async fn events(&self) -> Result<Answer, Problem> {
        let mut query = Query::of(self.query);
        let (filter, page) = (query.events()?, query.page()?);
        query.finish()?;
        let events = self.ledger().events(self.tenant.key, &filter, &page).await;
        Ok(answer::json(&events.map_err(|error| ledger_problem(&error))?))
    }

    pub(super) async fn event(&self, id: &str) -> Result<Answer, Problem> {
        Query::of(self.query).finish()?;
        let id: EventId = id.parse().map_err(|_| not_found())?;
        let event = self.ledger().event(self.tenant.key, id).await.map_err(|error| ledger_problem(&error))?;
        let event = event.ok_or_else(not_found)?;
        let untaken = event.superseded_by.is_none() && event.deliveries.as_ref().is_some_and(Vec::is_empty);
        let hint = untaken.then(|| self.tenant.why_untaken(event.source.as_ref(), &event.event_type));
        Ok(answer::json(&Hinted { event, hint }))
    }

    /// The bytes as they came.
    pub(super) async fn event_body(&self, id: &str) -> Result<Answer, Problem> {
        Query::of(self.query).finish()?;
        let id: EventId = id.parse().map_err(|_| not_found())?;
        let body = self.ledger().event_body(self.tenant.key, id).await.map_err(|error| ledger_problem(&error))?;
        saved(body.ok_or_else(not_found)?)
    }

    /// What a delivery sends, or sent as an earlier revision.
    pub(super) async fn delivery_body(&self, id: &str) -> Result<Answer, Problem> {
        let mut query = Query::of(self.query);
        let revision = query.revision()?;
        query.finish()?;
        let id: DeliveryId = id.parse().map_err(|_| not_found())?;
        let body = self.ledger().delivery_body(self.tenant.key, id, revision).await;
        saved(body.map_err(|error| ledger_problem(&error))?.ok_or_else(not_found)?)
    }
}

/// Bytes from outside: a browser is to save them, never to show them.
fn saved(body: Option<BodyRow>) -> Result<Answer, Problem> {
    let erased = || Problem::new(StatusCode::GONE, "payload_erased", "this body is erased");
    let body = body.ok_or_else(erased)?;
    let content_type = HeaderValue::from_str(&body.content_type).ok().filter(|value| !value.is_empty());
    let octets = HeaderValue::from_static("application/octet-stream");
    let mut answer = answer::typed(content_type.unwrap_or(octets), body.body);
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; sandbox"));
    Ok(answer)
}
