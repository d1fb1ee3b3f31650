//! Operations: how far each has come, and the verbs that hold it up.

use super::input::{Nothing, parse_or_default};
use super::place::OperationVerb;
use super::query::Query;
use super::{At, answer, ledger_problem, not_found};
use crate::delivery::OperationId;
use crate::http::{Answer, Problem};
use crate::ledger::{OperationChange, OperationChanged, OperationRow, OperationState, Skipped, Work};
use http::StatusCode;
use serde_json::{Value, json};

impl At<'_> {
    pub(super) async fn operations(&self) -> Result<Answer, Problem> {
        let mut query = Query::of(self.query);
        let page = query.page()?;
        query.finish()?;
        let found = self.ledger().operations(self.tenant.key, &page).await.map_err(|error| ledger_problem(&error))?;
        let items: Vec<Value> = found.items.iter().map(described).collect();
        Ok(answer::json(&json!({ "items": items, "next": found.next })))
    }

    pub(super) async fn operation(&self, id: &str) -> Result<Answer, Problem> {
        Query::of(self.query).finish()?;
        let id: OperationId = id.parse().map_err(|_| not_found())?;
        let row = self.ledger().operation(self.tenant.key, id).await.map_err(|error| ledger_problem(&error))?;
        Ok(answer::json(&described(&row.ok_or_else(not_found)?)))
    }

    /// Answers with the operation as it stands afterwards.
    pub(super) async fn change_operation(&self, id: &str, verb: OperationVerb, body: &[u8]) -> Result<Answer, Problem> {
        let id: OperationId = id.parse().map_err(|_| not_found())?;
        let Nothing {} = parse_or_default(body)?;
        let change = match verb {
            OperationVerb::Stop => OperationChange::Stop,
            OperationVerb::Pause => OperationChange::Pause,
            OperationVerb::Resume => OperationChange::Resume,
        };
        let now = self.admin.state.clock.now();
        let changed = self.ledger().change_operation(self.tenant.key, id, change, now).await;
        match changed.map_err(|error| ledger_problem(&error))? {
            OperationChanged::Done(row) => {
                self.admin.state.desk.tell();
                Ok(answer::json(&described(&row)))
            }
            OperationChanged::NotFound => Err(not_found()),
            OperationChanged::Ended(state) => Err(ended(state)),
        }
    }
}

fn ended(state: OperationState) -> Problem {
    let how = match state {
        OperationState::Stopped => "was stopped",
        OperationState::StoppedByCanary => "was stopped by its canary",
        OperationState::Done | OperationState::Queued | OperationState::Running | OperationState::Paused => "is done",
    };
    let detail = format!("the operation {how}, which is its end: begin a new one for what is left");
    Problem::new(StatusCode::CONFLICT, "operation_ended", detail).with("state", state.as_str())
}

pub(super) fn described(row: &OperationRow) -> Value {
    let Skipped { expired, payload_erased, gone, under_way } = row.skipped;
    let (kind, filter, skipped) = match &row.work {
        Work::Redrive(filter) => (
            "redrive",
            json!(filter),
            json!({ "expired": expired, "payload_erased": payload_erased, "no_longer_dead": gone }),
        ),
        Work::Replay(replay) => (
            "replay",
            json!(replay.events),
            json!({ "expired": expired, "payload_erased": payload_erased, "under_way": under_way, "gone": gone }),
        ),
    };
    let mut all = json!({
        "id": row.id,
        "kind": kind,
        "state": row.state.as_str(),
        "why": row.why,
        "filter": filter,
        "total": row.total,
        "max": row.max,
        "rate": row.rate,
        "canary": row.wave.map(|wave| json!({ "wave": wave.number, "size": wave.size, "left": wave.left })),
        "done": row.done,
        "left": row.left(),
        "time_left_seconds": row.time_left().map(|left| left.as_secs()),
        "delivered": row.results.delivered,
        "dead_again": row.results.dead_again,
        "waiting": row.results.waiting,
        "otherwise": row.results.otherwise,
        "skipped": skipped,
        "had_died_of": row.old_reasons,
        "by": row.by,
        "note": row.note,
        "began_at": row.began_at,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
    });
    if let Work::Replay(replay) = &row.work {
        all["endpoint"] = json!(replay.endpoint);
        all["only_missed"] = json!(replay.only_missed);
    }
    all
}
