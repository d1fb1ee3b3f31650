//! Alerts: what fires, and what did.

use super::query::Query;
use super::{Admin, At, answer, ledger_problem};
use crate::clock::Timestamp;
use crate::delivery::EventId;
use crate::http::{Answer, Problem};
use crate::ledger::{AlertRow, AlertShown, AlertTold, Ledger, Page, TenantKey};
use serde::Serialize;

#[derive(Serialize)]
struct Told {
    #[serde(flatten)]
    alert: AlertShown,
    state: &'static str,
    cleared_at: Option<Timestamp>,
    /// The event by which it was sent.
    event: Option<EventId>,
}

fn told(row: &AlertRow) -> Told {
    Told {
        alert: row.shown(),
        state: if row.cleared_at.is_none() { "firing" } else { "cleared" },
        cleared_at: row.cleared_at,
        event: match row.told {
            AlertTold::By(event) => Some(event),
            AlertTold::Nobody | AlertTold::NotYet => None,
        },
    }
}

async fn list(ledger: &dyn Ledger, tenant: Option<TenantKey>, query: Option<&str>) -> Result<Answer, Problem> {
    let mut query = Query::of(query);
    let which = query.which_alerts()?;
    let page = query.page()?;
    query.finish()?;
    let Page { items, next } = ledger.alerts(tenant, which, &page).await.map_err(|error| ledger_problem(&error))?;
    Ok(answer::json(&Page { items: items.iter().map(told).collect(), next }))
}

impl Admin {
    /// Those of all tenants, and the gateway's own.
    pub(super) async fn all_alerts(&self, query: Option<&str>) -> Result<Answer, Problem> {
        list(&*self.state.ledger, None, query).await
    }
}

impl At<'_> {
    pub(super) async fn alerts(&self) -> Result<Answer, Problem> {
        list(self.ledger(), Some(self.tenant.key), self.query).await
    }
}
