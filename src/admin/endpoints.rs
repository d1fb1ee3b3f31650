//! Endpoints: what is configured of them beside where they stand, and the verbs that open and close them.

use super::estate::by_name;
use super::input::{Nothing, invalid, parse_or_default};
use super::place::EndpointVerb;
use super::query::Query;
use super::{At, answer, ledger_problem, not_found};
use crate::clock::Timestamp;
use crate::delivery::{EndpointStatus, Name};
use crate::http::{Answer, Problem};
use crate::ledger::{EndpointChange, EndpointState};
use crate::secret::Secret;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};

const WHY_BYTES_MAX: usize = 256;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pause {
    until: Option<Timestamp>,
    why: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Disable {
    why: Option<String>,
}

impl At<'_> {
    /// Those that are no longer declared are listed too, without settings: their work is still there.
    pub(super) async fn endpoints(&self) -> Result<Answer, Problem> {
        let states = self.endpoint_states().await?;
        by_name(states.iter().map(|state| (&state.name, self.described(state).into())), self.query)
    }

    pub(super) async fn endpoint(&self, name: &str) -> Result<Answer, Problem> {
        Query::of(self.query).finish()?;
        self.endpoint_as_it_is(name).await
    }

    async fn endpoint_as_it_is(&self, name: &str) -> Result<Answer, Problem> {
        let states = self.endpoint_states().await?;
        let state = states.iter().find(|state| state.name.as_str() == name).ok_or_else(not_found)?;
        Ok(answer::json(&self.described(state)))
    }

    async fn endpoint_states(&self) -> Result<Vec<EndpointState>, Problem> {
        let now = self.admin.state.clock.now();
        self.ledger().endpoints(self.tenant.key, now).await.map_err(|error| ledger_problem(&error))
    }

    fn described(&self, state: &EndpointState) -> Map<String, Value> {
        let mut all = match self.tenant.endpoints.get(&state.name) {
            Some(endpoint) => endpoint.shown.named(&state.name),
            None => Map::new(),
        };
        if let Ok(Value::Object(stands)) = serde_json::to_value(state) {
            all.extend(stands);
        }
        let disable_after = self.tenant.endpoints.get(&state.name).and_then(|endpoint| endpoint.disable_after);
        let sent_to = !matches!(state.status, EndpointStatus::Disabled { .. });
        let disables_at = match (state.health.failing.filter(|_| sent_to), disable_after) {
            (Some(failing), Some(after)) => Some(failing.disables_at(after, self.admin.state.clock.now())),
            (_, _) => None,
        };
        all.insert("disables_at".to_owned(), json!(disables_at));
        all.insert("ramp".to_owned(), json!(self.admin.state.slots.ramp(state.key)));
        all
    }

    /// What a receiver needs to verify deliveries, where the gateway made it: the one answer that holds a secret.
    pub(super) fn endpoint_secret(&self, name: &str) -> Result<Answer, Problem> {
        Query::of(self.query).finish()?;
        let endpoint = self.tenant.endpoints.get(name).ok_or_else(not_found)?;
        match endpoint.generated_secret.as_ref().and_then(Secret::expose_str) {
            Some(secret) => Ok(answer::json(&json!({ "name": name, "signing_secret": secret }))),
            None => Err(Problem::new(
                StatusCode::CONFLICT,
                "managed_by_file",
                "the configuration file names this endpoint's signing secrets; they are not shown",
            )),
        }
    }

    pub(super) async fn change_endpoint(&self, name: &str, verb: EndpointVerb, body: &[u8]) -> Result<Answer, Problem> {
        let now = self.admin.state.clock.now();
        let change = match verb {
            EndpointVerb::Pause => {
                let Pause { until, why } = parse_or_default(body)?;
                if until.is_some_and(|until| until <= now) {
                    return Err(invalid("until", "is in the past: leave it out to pause until somebody resumes"));
                }
                EndpointChange::Pause { until, why: reason(why)? }
            }
            EndpointVerb::Disable => {
                let Disable { why } = parse_or_default(body)?;
                EndpointChange::Disable { why: reason(why)? }
            }
            EndpointVerb::Resume => {
                let Nothing {} = parse_or_default(body)?;
                EndpointChange::Resume
            }
            EndpointVerb::Enable => {
                let Nothing {} = parse_or_default(body)?;
                EndpointChange::Enable
            }
        };
        let endpoint: Name = name.parse().map_err(|_| not_found())?;
        // Both speak of a pause, and a disabled endpoint is more than paused.
        let of_a_pause = matches!(change, EndpointChange::Resume | EndpointChange::Pause { .. });
        let changed = self.ledger().change_endpoint(self.tenant.key, &endpoint, change, now).await;
        let status = changed.map_err(|error| ledger_problem(&error))?.ok_or_else(not_found)?;
        if of_a_pause && matches!(status, EndpointStatus::Disabled { .. }) {
            let detail = "the endpoint is disabled, which no pause and no resume changes: use `enable`";
            return Err(Problem::new(StatusCode::CONFLICT, "endpoint_disabled", detail));
        }
        self.endpoint_as_it_is(name).await
    }
}

fn reason(why: Option<String>) -> Result<String, Problem> {
    match why {
        None => Ok("operator".to_owned()),
        Some(why) if (1..=WHY_BYTES_MAX).contains(&why.len()) => Ok(why),
        Some(_) => Err(invalid("why", format!("is to have 1 to {WHY_BYTES_MAX} bytes"))),
    }
}
