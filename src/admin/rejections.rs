//! What was refused at the tenant's sources.

use super::query::Query;
use super::{At, answer, ledger_problem};
use crate::http::{Answer, Problem};

impl At<'_> {
    pub(super) async fn rejections(&self) -> Result<Answer, Problem> {
        let mut query = Query::of(self.query);
        let filter = query.rejections()?;
        let page = query.page()?;
        query.finish()?;
        let found = self.ledger().rejections(self.tenant.key, &filter, &page).await;
        Ok(answer::json(&found.map_err(|error| ledger_problem(&error))?))
    }
}
