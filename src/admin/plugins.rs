//! Plugins: their versions, what is in use, and how it changes.

use super::estate::{Plugin, by_name};
use super::input::{Nothing, invalid, parse, parse_or_default};
use super::place::PluginVerb;
use super::query::Query;
use super::trials::{self, TrialWish};
use super::{At, answer, ledger_problem, managed_by_file, not_found};
use crate::delivery::{Name, PluginVersionId, TrialId};
use crate::http::{Answer, Problem, collect};
use crate::ledger::{History, LedgerError, TrialRow, VersionRow, VersionState};
use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use http_body::Body;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// What the API calls whoever holds its one token.
pub(super) const OPERATOR: &str = "operator";
/// When an upload that found no room may come again: about the time of a compilation.
const BUSY_FOR: Duration = Duration::from_secs(5);

/// Who compiles and exchanges plugins.
#[async_trait]
pub trait Shipyard: Send + Sync + 'static {
    async fn upload(&self, shipment: Shipment) -> Result<Shipped, Refusal>;
    /// Gives the version that is in use now.
    async fn activate(
        &self,
        tenant: &Name,
        plugin: &Name,
        version: PluginVersionId,
        by: &str,
    ) -> Result<VersionRow, Refusal>;
    /// To the one that was in use before and is ready.
    async fn roll_back(&self, tenant: &Name, plugin: &Name, by: &str) -> Result<VersionRow, Refusal>;
    async fn begin_trial(&self, wish: TrialWish) -> Result<TrialRow, Refusal>;
    /// Of the canary, or of the shadow.
    async fn stop_trial(&self, tenant: &Name, plugin: &Name, canary: bool, by: &str) -> Result<TrialRow, Refusal>;
}

#[derive(Clone, Debug)]
pub struct Shipment {
    pub tenant: Name,
    pub plugin: Name,
    pub wasm: Bytes,
    pub by: String,
    /// Put it into use once it is ready.
    pub activate: bool,
    /// Answer when it is ready or refused; else at once.
    pub wait: bool,
}

#[derive(Clone, Debug)]
pub struct Shipped {
    pub row: VersionRow,
    /// `false`: this content was there before, and needed nothing.
    pub is_new: bool,
}

/// Why not.
#[derive(Clone, Debug)]
pub enum Refusal {
    NotFound,
    NoSuchVersion,
    /// Being compiled, or from a file of before; or, where it is to be tried, disabled.
    NotReady(VersionRow),
    Rejected(VersionRow),
    /// It was ready once.
    NotLoaded {
        rule: &'static str,
        finding: String,
        remedy: String,
    },
    NothingBefore,
    /// It is in use: there is nothing to try.
    InUse,
    NothingInUse,
    TrialRunning(TrialId),
    NoTrial,
    TooMany,
    /// Too many uploads are being compiled.
    Busy,
    Ledger(LedgerError),
    Disk(String),
}

impl From<LedgerError> for Refusal {
    fn from(error: LedgerError) -> Self {
        Refusal::Ledger(error)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ActivateInput {
    version: String,
}

impl At<'_> {
    pub(super) async fn plugins(&self) -> Result<Answer, Problem> {
        let mut all = Vec::with_capacity(self.tenant.plugins.len());
        for (name, plugin) in &self.tenant.plugins {
            let mut one = self.summary(name, plugin, &self.plugin_history(name).await?);
            one["trial"] = self.newest_trial(name).await?.as_ref().map(trials::described).into();
            all.push((name, one));
        }
        by_name(all.into_iter(), self.query)
    }

    pub(super) async fn plugin(&self, name: &str) -> Result<Answer, Problem> {
        Query::of(self.query).finish()?;
        self.plugin_as_it_is(name).await
    }

    pub(super) async fn plugin_as_it_is(&self, name: &str) -> Result<Answer, Problem> {
        let (name, plugin) = self.tenant.plugins.get_key_value(name).ok_or_else(not_found)?;
        let history = self.plugin_history(name).await?;
        let active = plugin.by_file.or_else(|| history.active().map(|row| row.id));
        let mut all = self.summary(name, plugin, &history);
        all["trial"] = match self.newest_trial(name).await? {
            Some(row) => self.whole_trial(&row).await?,
            None => Value::Null,
        };
        all["versions"] = history.versions.iter().map(|row| described(row, active)).collect();
        all["activations"] = history
            .activations
            .iter()
            .map(|row| json!({ "version": row.version, "what": row.what.as_str(), "at": row.at, "by": row.by }))
            .collect();
        Ok(answer::json(&all))
    }

    async fn plugin_history(&self, name: &Name) -> Result<History, Problem> {
        self.ledger().plugin_history(self.tenant.key, name).await.map_err(|error| ledger_problem(&error))
    }

    fn summary(&self, name: &Name, plugin: &Plugin, history: &History) -> Value {
        let active = match plugin.by_file {
            Some(version) => history.version(version),
            None => history.active(),
        };
        let users = self.tenant.endpoints.iter().filter(|(_, endpoint)| endpoint.plugin.as_ref() == Some(name));
        let endpoints: Vec<&Name> = users.map(|(name, _)| name).collect();
        json!({
            "name": name,
            "managed_by": if plugin.by_file.is_some() { "file" } else { "api" },
            "active": active.map(|row| row.id),
            "digest": active.map(|row| hex::encode(row.digest)),
            "endpoints": endpoints,
        })
    }

    /// The plugin, if it is the API's to change.
    pub(super) fn changeable(&self, name: &str) -> Result<(&Name, &Plugin), Problem> {
        let (name, plugin) = self.tenant.plugins.get_key_value(name).ok_or_else(undeclared)?;
        if plugin.by_file.is_some() { Err(managed_by_file()) } else { Ok((name, plugin)) }
    }

    pub(super) async fn upload_plugin(
        &self,
        name: &str,
        headers: &HeaderMap,
        body: impl Body<Data = Bytes> + Unpin,
        connection: &crate::http::Connection,
    ) -> Result<Answer, Problem> {
        let (name, plugin) = self.changeable(name)?;
        let mut query = Query::of(self.query);
        let activate = query.flag("activate")?.unwrap_or(false);
        let wait = query.flag("wait")?.unwrap_or(true);
        query.finish()?;
        if !is_wasm(headers) {
            return Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                "send the component: `content-type: application/wasm`",
            ));
        }
        let limit = plugin.component_bytes_max;
        let (wasm, _room) =
            collect(body, limit, &self.admin.budget, connection).await.map_err(crate::http::BodyFault::problem)?;
        let shipment =
            Shipment { tenant: self.name.clone(), plugin: name.clone(), wasm, by: OPERATOR.to_owned(), activate, wait };
        let Shipped { row, is_new } = self.admin.state.shipyard.upload(shipment).await.map_err(refused)?;
        let active = self.plugin_history(name).await?.active().map(|row| row.id);
        let mut answer = answer::json(&described(&row, active));
        *answer.status_mut() = match (row.state, is_new) {
            (VersionState::Compiling, _) => StatusCode::ACCEPTED,
            (_, true) => StatusCode::CREATED,
            (_, false) => StatusCode::OK,
        };
        Ok(answer)
    }

    /// Answers with the plugin as it stands afterwards.
    pub(super) async fn change_plugin(&self, name: &str, verb: PluginVerb, body: &[u8]) -> Result<Answer, Problem> {
        let (known, _) = self.changeable(name)?;
        let shipyard = &self.admin.state.shipyard;
        let changed = match verb {
            PluginVerb::Activate => {
                let ActivateInput { version } = parse(body)?;
                let version = version.parse().map_err(|_| invalid("version", "is to be a version's id: `plg_…`"))?;
                shipyard.activate(self.name, known, version, OPERATOR).await
            }
            PluginVerb::Rollback => {
                let Nothing {} = parse_or_default(body)?;
                shipyard.roll_back(self.name, known, OPERATOR).await
            }
            // Changes nothing.
            PluginVerb::DryRun => return Err(not_found()),
        };
        changed.map_err(refused)?;
        self.plugin_as_it_is(name).await
    }
}

fn is_wasm(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/wasm")
}

fn described(row: &VersionRow, active: Option<PluginVersionId>) -> Value {
    let (mut rejection, mut fault) = (Value::Null, Value::Null);
    match &row.state {
        VersionState::Rejected(why) => rejection = json!(why),
        VersionState::Disabled(why) => fault = json!(why),
        VersionState::Compiling | VersionState::Ready => {}
    }
    let found = row.findings.as_ref();
    let exports = found.map(|found| {
        let all = [("transform", found.transform), ("classify", found.classify)];
        all.into_iter().filter(|(_, there)| *there).map(|(name, _)| name).collect::<Vec<_>>()
    });
    json!({
        "id": row.id,
        "digest": hex::encode(row.digest),
        "state": row.state.as_str(),
        "active": active == Some(row.id),
        "bytes": row.uploaded.as_ref().map(|upload| upload.bytes),
        "exports": exports,
        "warnings": found.map(|found| &found.warnings),
        "rejection": rejection,
        "fault": fault,
        "uploaded_at": row.uploaded.as_ref().map_or(row.created_at, |upload| upload.at),
        "uploaded_by": row.uploaded.as_ref().map_or("file", |upload| &upload.by),
    })
}

fn undeclared() -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        "not_found",
        "there is no such plugin: declare it in the configuration file, without a `path`, and reload",
    )
}

pub(super) fn refused(refusal: Refusal) -> Problem {
    let conflict = |code, detail: &'static str| Problem::new(StatusCode::CONFLICT, code, detail);
    match refusal {
        Refusal::NotFound => undeclared(),
        Refusal::NoSuchVersion => Problem::new(StatusCode::NOT_FOUND, "not_found", "the plugin has no such version"),
        Refusal::NotReady(row) if row.uploaded.is_none() => {
            conflict("not_uploaded", "this version came with a file: upload it").with("version", row.id.to_string())
        }
        Refusal::NotReady(row) if matches!(row.state, VersionState::Disabled(_)) => {
            conflict("disabled", "this version was disabled by its faults: upload it again to give it another try")
                .with("version", row.id.to_string())
        }
        Refusal::NotReady(row) => conflict("not_ready", "this version is being compiled: try again in a while")
            .with("version", row.id.to_string())
            .retry_after(Duration::from_secs(1)),
        Refusal::Rejected(row) => rejected(&row),
        Refusal::NotLoaded { rule, finding, remedy } => {
            conflict("not_loadable", "this version was ready and cannot be loaded any more")
                .with("rule", rule)
                .with("finding", finding)
                .with("remedy", remedy)
        }
        Refusal::NothingBefore => conflict("nothing_before", "no version that was in use before is ready"),
        Refusal::InUse => conflict("in_use", "this version is in use already: try another beside it"),
        Refusal::NothingInUse => conflict("nothing_in_use", "no version is in use to try one beside: activate it"),
        Refusal::TrialRunning(trial) => {
            conflict("trial_running", "a trial of this plugin runs: promote its version with activate, or end it")
                .with("trial", trial.to_string())
        }
        Refusal::NoTrial => Problem::new(StatusCode::NOT_FOUND, "no_trial", "no such trial of this plugin runs"),
        Refusal::TooMany => conflict(
            "too_many_versions",
            "the plugin has as many versions as are kept, and all of them are being compiled: try again in a while",
        )
        .with("limit", crate::ledger::VERSIONS_MAX),
        Refusal::Busy => Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "busy",
            "too many uploads are being compiled: try again in a while",
        )
        .retry_after(BUSY_FOR),
        Refusal::Ledger(error) => ledger_problem(&error),
        Refusal::Disk(detail) => {
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail).retry_after(Duration::from_secs(2))
        }
    }
}

/// What is wrong with it, and what to do.
fn rejected(row: &VersionRow) -> Problem {
    let VersionState::Rejected(why) = &row.state else {
        return Problem::new(StatusCode::CONFLICT, "not_ready", "this version is not ready");
    };
    let problem = if why.rule == "host" {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", why.finding.clone()).retry_after(BUSY_FOR)
    } else {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "plugin_rejected", format!("{}: {}", why.rule, why.finding))
    };
    problem
        .with("rule", why.rule.clone())
        .with("finding", why.finding.clone())
        .with("remedy", why.remedy.clone())
        .with("version", row.id.to_string())
}
