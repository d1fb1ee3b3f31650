//! What needs somebody, and where things stand.

use super::{Ask, Shown};
use crate::console::form::Form;
use crate::console::model::{DeadGroup, Endpoint, List, Operation, Plugin, Rejection, Source, Stats};
use crate::console::page::{Page, rendered, to};
use crate::console::show::Told;
use askama::Template;
use std::collections::BTreeMap;
use std::time::Duration;

/// More are told as a number.
const GROUPS_SHOWN: usize = 12;
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// A secret that ends within this is worth a word.
const SECRET_ENDS: Duration = Duration::from_secs(7 * 24 * 3_600);

/// A group of dead letters, with the way to them.
struct Failures {
    group: DeadGroup,
    list: String,
    redrive: String,
}

/// What is refused at the door.
struct Refusals {
    source: String,
    reason: String,
    count: u64,
    first: crate::clock::Timestamp,
    last: crate::clock::Timestamp,
    link: String,
}

/// Something to be looked at: a mark, a sentence, and where.
struct Notice {
    state: &'static str,
    text: String,
    link: String,
    link_text: &'static str,
}

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview {
    p: Page,
    failures: Vec<Failures>,
    failures_left_out: usize,
    notices: Vec<Notice>,
    refusals: Vec<Refusals>,
    running: Vec<Operation>,
    stats: Option<Stats>,
    problems: Vec<Told>,
}

impl Overview {
    fn is_well(&self) -> bool {
        self.failures.is_empty() && self.notices.is_empty() && self.refusals.is_empty() && self.problems.is_empty()
    }
}

/// The filter that a group is made by.
pub(super) fn filter_of(group: &DeadGroup) -> Form {
    let mut filter = Form::default();
    filter.set("endpoint", group.endpoint.as_deref().unwrap_or_default());
    filter.set("host", group.host.as_str());
    filter.set("reason", group.reason.as_str());
    if let Some(status) = group.status {
        filter.set("status", status.to_string());
    }
    filter.set("plugin_version", group.plugin_version.as_deref().unwrap_or_default());
    filter
}

fn of_endpoints(page: &Page, endpoints: &[Endpoint], notices: &mut Vec<Notice>) {
    for endpoint in endpoints {
        let link = page.at(&format!("/endpoints/{}", super::segment(&endpoint.name)));
        let why = endpoint.why.as_deref().unwrap_or("no reason was given");
        let waiting = endpoint.pending;
        let mut note = |state, text| notices.push(Notice { state, text, link: link.clone(), link_text: "look at it" });
        match endpoint.status.as_str() {
            "disabled" => note("disabled", format!("{} is disabled ({why}); {waiting} wait", endpoint.name)),
            "paused" => note("paused", format!("{} is paused ({why}); {waiting} wait", endpoint.name)),
            _ if endpoint.breaker_state == "open" => note(
                "open",
                format!(
                    "{} fails: {} in a row, and its breaker holds {waiting} back",
                    endpoint.name, endpoint.failures_in_a_row
                ),
            ),
            _ if endpoint.failing_since.is_some() && endpoint.failures_in_a_row >= 5 => {
                note("failed", format!("{} fails: {} in a row", endpoint.name, endpoint.failures_in_a_row));
            }
            _ => {}
        }
    }
}

fn of_plugins(page: &Page, plugins: &[Plugin], notices: &mut Vec<Notice>) {
    for plugin in plugins {
        let link = page.at(&format!("/plugins/{}", super::segment(&plugin.name)));
        let mut note = |state, text| notices.push(Notice { state, text, link: link.clone(), link_text: "look at it" });
        if plugin.active.is_none() && !plugin.endpoints.is_empty() {
            note(
                "failed",
                format!(
                    "plugin {} has no version in use, and {} asks for it",
                    plugin.name,
                    plugin.endpoints.join(", ")
                ),
            );
        }
        if let Some(trial) = plugin.trial.as_ref() {
            match (trial.state.as_str(), &trial.ended) {
                ("running", _) => {
                    note("running", format!("plugin {}: a {} of {} runs", plugin.name, trial.kind, trial.share));
                }
                ("rolled_back", Some(ended)) if page.now.since(ended.at) < DAY => {
                    let why = ended.why.as_deref().unwrap_or("it went beyond its bounds");
                    note("rolled_back", format!("plugin {}: its canary was rolled back: {why}", plugin.name));
                }
                _ => {}
            }
        }
    }
}

fn of_sources(page: &Page, sources: &[Source], notices: &mut Vec<Notice>) {
    for source in sources {
        let link = page.at(&format!("/sources/{}", super::segment(&source.name)));
        let mut note = |state, text| notices.push(Notice { state, text, link: link.clone(), link_text: "look at it" });
        if source.adoption.as_deref() == Some("awaited") {
            note("awaited", format!("source {} waits for the handshake that brings its secret", source.name));
        }
        let ends = source.secrets_expire_at.iter().flatten().min();
        if let Some(end) = ends.filter(|end| end.since(page.now) < SECRET_ENDS) {
            let when = crate::console::show::relative(*end, page.now);
            note("wait", format!("a secret of source {} ends {when}", source.name));
        }
    }
}

fn refusals(page: &Page, rows: &[Rejection]) -> Vec<Refusals> {
    let mut all: BTreeMap<(&str, &str), Refusals> = BTreeMap::new();
    for row in rows {
        let group = all.entry((&row.source, &row.reason)).or_insert_with(|| {
            let mut filter = Form::default();
            filter.set("source", row.source.as_str());
            filter.set("reason", row.reason.as_str());
            Refusals {
                source: row.source.clone(),
                reason: row.reason.clone(),
                count: 0,
                first: row.at,
                last: row.at,
                link: page.at(&format!("/rejections{}", filter.query())),
            }
        });
        group.count += 1;
        (group.first, group.last) = (group.first.min(row.at), group.last.max(row.at));
    }
    let mut all: Vec<_> = all.into_values().collect();
    all.sort_by_key(|group| std::cmp::Reverse(group.count));
    all
}

pub(super) async fn show(ask: Ask<'_>) -> Shown {
    let api = ask.api;
    let since = ask.page.now.minus(DAY).to_rfc3339();
    // The groups first: whether there is such a tenant is seen by them.
    let by_version: Result<List<DeadGroup>, Told> = api.get(&ask.v1("/dlq/groups?by=plugin_version")).await;
    let groups = match by_version {
        // So many letters that looking at each one's attempt takes too long.
        Err(told) if told.code == "too_slow" => api.get::<List<DeadGroup>>(&ask.v1("/dlq/groups?by=endpoint")).await,
        other => other,
    };
    let groups = match groups {
        Err(told) if told.status == 404 || told.status == 401 => return Err(told),
        other => other,
    };
    let at = |path: &str| ask.v1(path);
    let (all_endpoints, all_plugins, all_sources) = (at("/endpoints"), at("/plugins"), at("/sources"));
    let (of_a_day, newest, figures) =
        (at(&format!("/rejections?limit=200&since={since}")), at("/operations?limit=50"), at("/stats?window=24h"));
    let (endpoints, plugins, sources, rejected, operations, stats) = futures_util::join!(
        api.pages::<Endpoint>(&all_endpoints, 10),
        api.pages::<Plugin>(&all_plugins, 10),
        api.pages::<Source>(&all_sources, 10),
        api.get::<List<Rejection>>(&of_a_day),
        api.get::<List<Operation>>(&newest),
        api.get::<Stats>(&figures),
    );
    let mut problems = Vec::new();
    let mut or_told = |told: Told| {
        // What a token may not see is not missing from its pages.
        if told.status != 403 {
            problems.push(told);
        }
    };
    let page = ask.page.titled("overview", "Overview");
    let mut notices = Vec::new();
    match endpoints {
        Ok(all) => of_endpoints(&page, &all, &mut notices),
        Err(told) => or_told(told),
    }
    match plugins {
        Ok(all) => of_plugins(&page, &all, &mut notices),
        Err(told) => or_told(told),
    }
    match sources {
        Ok(all) => of_sources(&page, &all, &mut notices),
        Err(told) => or_told(told),
    }
    let refusals = match rejected {
        Ok(list) => refusals(&page, &list.items),
        Err(told) => {
            or_told(told);
            Vec::new()
        }
    };
    let mut running = Vec::new();
    match operations {
        Ok(list) => {
            for operation in list.items {
                let link = page.at(&format!("/operations/{}", operation.id));
                let of_late = operation.ended_at.is_some_and(|at| page.now.since(at) < DAY);
                match operation.state.as_str() {
                    "running" | "queued" => running.push(operation),
                    "paused" => notices.push(Notice {
                        state: "paused",
                        text: format!("a redrive is paused, with {} left", operation.left),
                        link,
                        link_text: "look at it",
                    }),
                    "stopped_by_canary" if of_late => notices.push(Notice {
                        state: "stopped_by_canary",
                        text: format!("a redrive was stopped by its canary, with {} left", operation.left),
                        link,
                        link_text: "look at it",
                    }),
                    _ => {}
                }
            }
        }
        Err(told) => or_told(told),
    }
    let mut failures: Vec<Failures> = match groups {
        Ok(list) => list
            .items
            .into_iter()
            .map(|group| {
                let filter = filter_of(&group).query();
                let (list, redrive) =
                    (page.at(&format!("/dlq/list{filter}")), page.at(&format!("/dlq/redrive{filter}")));
                Failures { group, list, redrive }
            })
            .collect(),
        Err(told) => {
            or_told(told);
            Vec::new()
        }
    };
    let failures_left_out = failures.len().saturating_sub(GROUPS_SHOWN);
    failures.truncate(GROUPS_SHOWN);
    let stats = stats.map_err(&mut or_told).ok();
    Ok(rendered(&Overview { p: page, failures, failures_left_out, notices, refusals, running, stats, problems }))
}

/// One tenant of many.
struct Line {
    name: String,
    link: String,
    stats: Option<Stats>,
}

#[derive(Template)]
#[template(path = "tenants.html")]
struct Tenants {
    p: Page,
    lines: Vec<Line>,
}

/// Each is asked for its figures: more are listed by name alone.
const LINES_WITH_FIGURES: usize = 50;

pub(super) async fn tenants(ask: Ask<'_>) -> Shown {
    if let [one] = ask.page.tenants.as_slice() {
        return Ok(to(&format!("/console/t/{}/", super::segment(one))));
    }
    let mut lines = Vec::new();
    for (at, name) in ask.page.tenants.iter().enumerate() {
        let path = format!("/v1/tenants/{}/stats?window=24h", super::segment(name));
        let stats = if at < LINES_WITH_FIGURES { ask.api.get::<Stats>(&path).await.ok() } else { None };
        lines.push(Line { link: format!("/console/t/{}/", super::segment(name)), name: name.clone(), stats });
    }
    lines.sort_by_key(|line| std::cmp::Reverse(line.stats.as_ref().map_or(0, |stats| stats.total.now.dead)));
    Ok(rendered(&Tenants { p: ask.page.titled("tenants", "Tenants"), lines }))
}
