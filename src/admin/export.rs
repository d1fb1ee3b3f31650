//! Lists without an end, a line of JSON each. A page is read, sent, and forgotten before the next one is read, so that a
//! client that takes its time costs the ledger nothing.

use super::query::Query;
use super::{At, ledger_problem};
use crate::http::{Answer, AnswerBody, Broken, Problem};
use crate::ledger::{
    BodyRow, Cursor, DeadFilter, DeliveryFilter, DeliveryRow, Ledger, LedgerError, Page, PageRequest, TenantKey,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// Exports under way together, over all tenants.
pub(super) const EXPORTS_MAX: usize = 8;
const PAGE: u32 = 200;

/// Which rows.
enum Which {
    Dead(DeadFilter),
    Deliveries(DeliveryFilter),
}

struct Export {
    ledger: Arc<dyn Ledger>,
    tenant: TenantKey,
    which: Which,
    with_bodies: bool,
    /// Those of the page that are still to be written.
    rows: std::vec::IntoIter<DeliveryRow>,
    /// Where the page after it begins.
    next: Option<Cursor>,
    _place: OwnedSemaphorePermit,
}

#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    row: &'a DeliveryRow,
    #[serde(flatten)]
    content: Option<Content>,
}

/// What is or was sent. Text where it is UTF-8, else base64; neither once it is erased.
#[derive(Serialize, Default)]
struct Content {
    content_type: Option<String>,
    body: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
}

impl Content {
    fn of(kept: Option<BodyRow>) -> Self {
        let Some(BodyRow { content_type, body }) = kept else { return Content::default() };
        let (text, base64) = match std::str::from_utf8(&body) {
            Ok(text) => (Some(text.to_owned()), None),
            Err(_) => (None, Some(STANDARD.encode(&body))),
        };
        Content { content_type: Some(content_type), body: text, body_base64: base64 }
    }
}

impl Export {
    async fn page(&self, cursor: Option<Cursor>) -> Result<Page<DeliveryRow>, LedgerError> {
        let page = PageRequest { limit: PAGE, cursor };
        match &self.which {
            Which::Dead(filter) => self.ledger.dead_letters(self.tenant, filter, &page).await,
            Which::Deliveries(filter) => self.ledger.deliveries(self.tenant, filter, &page).await,
        }
    }

    fn turn(&mut self, page: Page<DeliveryRow>) {
        self.rows = page.items.into_iter();
        self.next = page.next;
    }

    /// The next piece: the rest of a page, or of rows with bodies one. `None`: that was all.
    async fn piece(&mut self) -> Result<Option<Bytes>, LedgerError> {
        let mut piece = Vec::new();
        while piece.is_empty() {
            if self.rows.len() == 0 {
                let Some(next) = self.next.take() else { return Ok(None) };
                let page = self.page(Some(next)).await?;
                self.turn(page);
            }
            if self.with_bodies {
                let Some(row) = self.rows.next() else { continue };
                let kept = self.ledger.delivery_body(self.tenant, row.id, None).await?;
                line(&mut piece, &row, Some(Content::of(kept.flatten())));
            } else {
                self.rows.by_ref().for_each(|row| line(&mut piece, &row, None));
            }
        }
        Ok(Some(piece.into()))
    }
}

fn line(to: &mut Vec<u8>, row: &DeliveryRow, content: Option<Content>) {
    // Our rows have text keys and finite numbers: writing them does not fail.
    let _ = serde_json::to_writer(&mut *to, &Line { row, content });
    to.push(b'\n');
}

impl At<'_> {
    pub(super) async fn export_dead(&self) -> Result<Answer, Problem> {
        let mut query = Query::of(self.query);
        let (filter, with_bodies) = (query.dead()?, query.flag("bodies")?);
        query.finish()?;
        self.export(Which::Dead(filter), with_bodies.unwrap_or(false)).await
    }

    pub(super) async fn export_deliveries(&self) -> Result<Answer, Problem> {
        let mut query = Query::of(self.query);
        let (mut filter, with_bodies) = (query.deliveries()?, query.flag("bodies")?);
        filter.state = query.state()?;
        query.finish()?;
        self.export(Which::Deliveries(filter), with_bodies.unwrap_or(false)).await
    }

    async fn export(&self, which: Which, with_bodies: bool) -> Result<Answer, Problem> {
        let place = Arc::clone(&self.admin.exports).try_acquire_owned().map_err(|_| {
            let detail = format!("{EXPORTS_MAX} exports are under way: ask again when one of them has ended");
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_exports", detail)
                .retry_after(Duration::from_secs(5))
        })?;
        let ledger = Arc::clone(&self.admin.state.ledger);
        let (tenant, rows) = (self.tenant.key, Vec::new().into_iter());
        let mut export = Export { ledger, tenant, which, with_bodies, rows, next: None, _place: place };
        // What is wrong from the beginning is told as such.
        let first = export.page(None).await.map_err(|error| ledger_problem(&error))?;
        export.turn(first);
        let pieces = stream::unfold(Some(export), async |export| {
            let mut export = export?;
            match export.piece().await {
                Ok(piece) => Some((Ok(piece?), Some(export))),
                Err(error) => {
                    tracing::warn!(%error, "an export broke off");
                    Some((Err(Broken), None))
                }
            }
        });
        let mut answer = Answer::new(AnswerBody::made(pieces));
        let lines = HeaderValue::from_static("application/jsonl");
        answer.headers_mut().insert(header::CONTENT_TYPE, lines);
        Ok(answer)
    }
}
