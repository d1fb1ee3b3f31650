//! The operators' verbs, as callers see them: what is read and sealed before the writer's transactions.

use super::codec::Headers;
use super::fault::Fault;
use super::keyring::Place;
use super::manage::{Asked, CancelPending, ChangeEndpoint, RedriveDead, ResolveDead, Standing};
use super::queue::load_content;
use super::{SqliteLedger, manage};
use crate::clock::Timestamp;
use crate::delivery::{DeliveryId, EndpointStatus, Name};
use crate::ledger::{
    Cancelled, EndpointChange, LedgerError, Operations, Pruned, Redrive, Redriven, ResolveAs, Resolved, Retention,
    TenantKey,
};
use async_trait::async_trait;
use http::{HeaderName, HeaderValue};
use rusqlite::Connection;
use std::sync::Arc;

/// A redrive with a payload that finds another before it looks again so many times.
const REDRIVE_TRIES: u32 = 3;

#[async_trait]
impl Operations for SqliteLedger {
    async fn redrive(&self, redrive: Redrive, now: Timestamp) -> Result<Redriven, LedgerError> {
        let Redrive { tenant, delivery, note, payload, request } = redrive;
        let asked = Asked::of(request.as_ref(), note.as_deref(), payload.as_deref());
        for _ in 0..REDRIVE_TRIES {
            let payload = match &payload {
                None => None,
                Some(body) => {
                    let Some(standing) = self.standing(tenant, delivery).await? else {
                        return Ok(Redriven::NotFound);
                    };
                    let revision = standing.revision + 1;
                    let headers = self.headers_of(tenant, delivery, &standing).await?;
                    let place = Place::RevisionContent(&delivery.to_bytes(), revision);
                    Some((revision, self.seal_content(&*self.cipher(tenant)?, place, &headers, body)?))
                }
            };
            let verb = RedriveDead { tenant, delivery, asked: asked.clone(), note: note.clone(), payload, now };
            if let Some(done) = self.ask(verb, 0).await? {
                return Ok(done);
            }
        }
        Err(LedgerError::Unavailable("the delivery is being redriven by others".into()))
    }

    async fn cancel(&self, tenant: TenantKey, id: DeliveryId, now: Timestamp) -> Result<Cancelled, LedgerError> {
        self.ask(CancelPending { tenant, delivery: id, now }, 0).await
    }

    async fn resolve(
        &self,
        tenant: TenantKey,
        id: DeliveryId,
        how: ResolveAs,
        note: Option<String>,
        now: Timestamp,
    ) -> Result<Resolved, LedgerError> {
        self.ask(ResolveDead { tenant, delivery: id, how, note, now }, 0).await
    }

    async fn change_endpoint(
        &self,
        tenant: TenantKey,
        endpoint: &Name,
        change: EndpointChange,
        now: Timestamp,
    ) -> Result<Option<EndpointStatus>, LedgerError> {
        self.ask(ChangeEndpoint { tenant, endpoint: endpoint.clone(), change, now }, 0).await
    }

    async fn prune(&self, retention: &Retention, now: Timestamp) -> Result<Pruned, LedgerError> {
        self.prune_batch(retention, now).await
    }
}

impl SqliteLedger {
    /// What a redrive with a new payload needs to know beforehand.
    async fn standing(&self, tenant: TenantKey, id: DeliveryId) -> Result<Option<Standing>, LedgerError> {
        self.read(move |c| manage::standing(c, tenant, id)).await
    }

    /// The headers that a corrected payload goes out with: those it had, or its content type alone once they are gone.
    async fn headers_of(
        &self,
        tenant: TenantKey,
        delivery: DeliveryId,
        standing: &Standing,
    ) -> Result<Headers, LedgerError> {
        if let Some(payload) = standing.payload {
            let (event, revision) = (standing.event, standing.revision);
            let shared = Arc::clone(&self.shared);
            let read = move |c: &Connection| -> Result<Option<Headers>, Fault> {
                let Some(cipher) = shared.keyring.tenant(tenant) else { return Ok(None) };
                let id = delivery.to_bytes();
                let place =
                    if revision == 1 { Place::EventContent(&event) } else { Place::RevisionContent(&id, revision) };
                Ok(load_content(c, &cipher, payload, place)?.map(|(headers, _)| headers))
            };
            if let Some(headers) = self.read(read).await? {
                return Ok(headers);
            }
        }
        let value = standing.content_type.as_deref().and_then(|text| HeaderValue::from_str(text).ok());
        Ok(value.into_iter().map(|value| (HeaderName::from_static("content-type"), value)).collect())
    }
}
