//! Trials of a version beside the one in use: begun, ended, shown.

use super::input::{Nothing, invalid, parse, parse_or_default};
use super::place::TrialKind;
use super::plugins::{OPERATOR, refused};
use super::{At, ledger_problem};
use crate::delivery::{Bounds, Counts, Name, PluginVersionId, Ratio, Said, Share};
use crate::http::{Answer, Problem};
use crate::ledger::{Course, Difference, Told, TrialRow};
use serde::Deserialize;
use serde_json::{Value, json};

/// A trial that somebody wants.
#[derive(Clone, Debug)]
pub struct TrialWish {
    pub tenant: Name,
    pub plugin: Name,
    pub version: PluginVersionId,
    pub share: Share,
    /// `None`: a shadow.
    pub canary: Option<Bounds>,
    pub by: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ShadowInput {
    version: String,
    share: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CanaryInput {
    version: String,
    share: String,
    max_fault_rate: Option<String>,
    max_terminal_rate: Option<String>,
    min_calls: Option<u64>,
}

fn ratio(field: &'static str, text: &str) -> Result<Ratio, Problem> {
    text.parse().map_err(|rule: crate::delivery::BadRatio| invalid(field, rule.to_string()))
}

fn share(text: &str) -> Result<Share, Problem> {
    let share = Share::new(ratio("share", text)?);
    share.ok_or_else(|| invalid("share", "is to be more than 0%: with nothing to judge there is no trial"))
}

fn bounds(input: &CanaryInput) -> Result<Bounds, Problem> {
    let defaults = Bounds::default();
    let or = |field, given: &Option<String>, default| given.as_ref().map_or(Ok(default), |text| ratio(field, text));
    let most = Bounds::CALLS_JUDGED;
    let within = |n: u64| u16::try_from(n).ok().filter(|n| (1..=most).contains(n));
    let min_calls = match input.min_calls {
        None => defaults.min_calls,
        Some(n) => within(n).ok_or_else(|| invalid("min_calls", format!("is to be a number from 1 to {most}")))?,
    };
    Ok(Bounds {
        max_fault_rate: or("max_fault_rate", &input.max_fault_rate, defaults.max_fault_rate)?,
        max_terminal_rate: or("max_terminal_rate", &input.max_terminal_rate, defaults.max_terminal_rate)?,
        min_calls,
    })
}

impl At<'_> {
    /// Answers with the plugin as it stands afterwards.
    pub(super) async fn begin_trial(&self, name: &str, kind: TrialKind, body: &[u8]) -> Result<Answer, Problem> {
        let (known, _) = self.changeable(name)?;
        let (version, share, canary) = match kind {
            TrialKind::Shadow => {
                let input: ShadowInput = parse(body)?;
                (input.version, share(&input.share)?, None)
            }
            TrialKind::Canary => {
                let input: CanaryInput = parse(body)?;
                let bounds = bounds(&input)?;
                (input.version, share(&input.share)?, Some(bounds))
            }
        };
        let version = version.parse().map_err(|_| invalid("version", "is to be a version's id: `plg_…`"))?;
        let wish = TrialWish {
            tenant: self.name.clone(),
            plugin: known.clone(),
            version,
            share,
            canary,
            by: OPERATOR.to_owned(),
        };
        self.admin.state.shipyard.begin_trial(wish).await.map_err(refused)?;
        self.plugin_as_it_is(name).await
    }

    /// As above.
    pub(super) async fn stop_trial(&self, name: &str, kind: TrialKind, body: &[u8]) -> Result<Answer, Problem> {
        let (known, _) = self.changeable(name)?;
        let Nothing {} = parse_or_default(body)?;
        let shipyard = &self.admin.state.shipyard;
        let canary = kind == TrialKind::Canary;
        shipyard.stop_trial(self.name, known, canary, OPERATOR).await.map_err(refused)?;
        self.plugin_as_it_is(name).await
    }

    pub(super) async fn newest_trial(&self, name: &Name) -> Result<Option<TrialRow>, Problem> {
        self.ledger().newest_trial(self.tenant.key, name).await.map_err(|error| ledger_problem(&error))
    }

    /// The trial whole: with the calls in which the versions differed.
    pub(super) async fn whole_trial(&self, row: &TrialRow) -> Result<Value, Problem> {
        let mut all = described(row);
        if let Course::Shadow(_) = row.course {
            let found = self.ledger().differences(self.tenant.key, row.id).await;
            let found = found.map_err(|error| ledger_problem(&error))?;
            all["differences"] = found.iter().map(difference).collect();
        }
        Ok(all)
    }
}

/// What a list shows of a trial, too.
pub(super) fn described(row: &TrialRow) -> Value {
    let mut all = json!({
        "id": row.id,
        "kind": row.course.as_str(),
        "version": row.version,
        "active": row.active,
        "share": row.share.ratio(),
        "state": row.ended.as_ref().map_or("running", |ended| ended.how.as_str()),
        "began_at": row.began_at,
        "by": row.by,
        "ended": row.ended.as_ref().map(|ended| json!({
            "at": ended.at,
            "by": ended.by,
            "why": ended.why,
        })),
    });
    match &row.course {
        Course::Shadow(compared) => {
            let (active, shadow) = compared.sides();
            all["calls"] = compared.calls().into();
            all["same"] = compared.same.into();
            all["requests_differ"] = compared.requests.into();
            all["left_out"] = compared.left_out.into();
            let differ = compared.pairs.iter().filter(|((from, to), _)| from != to);
            all["differ"] =
                differ.map(|((from, to), calls)| json!({ "from": from, "to": to, "calls": calls })).collect();
            all["figures"] = json!({ "shadow": figures(&shadow), "active": figures(&active) });
        }
        Course::Canary { bounds, halves } => {
            let window = halves.window;
            all["bounds"] = json!({
                "max_fault_rate": bounds.max_fault_rate,
                "max_terminal_rate": bounds.max_terminal_rate,
                "min_calls": bounds.min_calls,
            });
            all["figures"] = json!({ "canary": figures(&halves.canary), "active": figures(&halves.active) });
            all["judged_by"] = json!({
                "calls": window.calls,
                "fault_rate": Ratio::of(window.faults.into(), window.calls.into()),
                "terminal_rate": Ratio::of(window.terminal.into(), window.calls.into()),
                "faults_in_a_row": window.faults_in_a_row,
            });
            all["put_back"] = row.ended.as_ref().map_or(0, |ended| ended.put_back).into();
            all["putting_back"] = row.ended.as_ref().is_some_and(|ended| ended.unsettled).into();
        }
    }
    all
}

fn figures(counts: &Counts) -> Value {
    let calls = counts.calls();
    let mut all = json!({
        "calls": calls,
        "fault_rate": Ratio::of(counts.faults, calls),
        "terminal_rate": Ratio::of(counts.terminal, calls),
    });
    for said in Said::ALL {
        let field = if said == Said::Fault { "faults" } else { said.as_str() };
        all[field] = counts.of(said).into();
    }
    all
}

fn difference(row: &Difference) -> Value {
    let told = |told: &Told| json!({ "verdict": told.said, "reason": told.why });
    json!({
        "at": row.at,
        "delivery": row.delivery,
        "attempt": row.attempt,
        "from": told(&row.from),
        "to": told(&row.to),
        "request_differs": row.request,
    })
}
