//! Endpoints: how each fares, and what opens and closes it.

use super::{Ask, Shown, segment};
use crate::console::chart::{Chart, HEIGHT, WIDTH};
use crate::console::form::Form;
use crate::console::model::{Delivery, Endpoint, EndpointStats, List, Stats};
use crate::console::page::{Page, rendered, to};
use crate::console::session::Session;
use crate::console::show::Told;
use askama::Template;
use serde_json::{Value, json};
use std::time::Duration;

/// An endpoint beside its figures of a day.
struct Line {
    endpoint: Endpoint,
    stats: Option<EndpointStats>,
    link: String,
}

#[derive(Template)]
#[template(path = "endpoints.html")]
struct Endpoints {
    p: Page,
    lines: Vec<Line>,
}

pub(super) async fn list(ask: Ask<'_>) -> Shown {
    let endpoints: Vec<Endpoint> = ask.api.pages(&ask.v1("/endpoints"), 10).await?;
    let stats: Option<Stats> = ask.api.get(&ask.v1("/stats?window=24h")).await.ok();
    let mut all = stats.map(|stats| stats.endpoints).unwrap_or_default();
    let page = ask.page.titled("endpoints", "Endpoints");
    let lines = endpoints.into_iter().map(|endpoint| {
        let at = all.iter().position(|stats| stats.endpoint == endpoint.name);
        let link = page.at(&format!("/endpoints/{}", segment(&endpoint.name)));
        Line { stats: at.map(|at| all.swap_remove(at)), link, endpoint }
    });
    Ok(rendered(&Endpoints { lines: lines.collect(), p: page }))
}

#[derive(Template)]
#[template(path = "endpoint.html")]
struct Single {
    p: Page,
    e: Endpoint,
    stats: Option<EndpointStats>,
    chart: Option<Chart>,
    width: u32,
    height: u32,
    window: &'static str,
    settings: Vec<(String, String)>,
    newest: Vec<Delivery>,
    refused: Option<Told>,
    cli: String,
}

impl EndpointStats {
    /// Of all that ended by an answer.
    pub(in crate::console) fn success(&self) -> Option<String> {
        percent(self.figures.delivered, self.figures.delivered + self.figures.dead)
    }
}

/// To a tenth, and never rounded up to all.
pub(super) fn percent(part: u64, whole: u64) -> Option<String> {
    let thousandths = (u128::from(part) * 1_000).checked_div(u128::from(whole))?;
    Some(format!("{}.{} %", thousandths / 10, thousandths % 10))
}

/// As it would stand in the file.
pub(super) fn written(value: &Value) -> String {
    match value {
        Value::Null => "–".to_owned(),
        Value::String(text) => text.clone(),
        Value::Object(fields) => {
            let all = fields.iter().filter(|(_, value)| !value.is_null());
            all.map(|(name, value)| format!("{name} = {}", written(value))).collect::<Vec<_>>().join(", ")
        }
        Value::Array(all) => all.iter().map(written).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

pub(super) async fn one(ask: Ask<'_>, name: &str) -> Shown {
    shown(ask, name, None).await
}

async fn shown(ask: Ask<'_>, name: &str, refused: Option<Told>) -> Shown {
    let e: Endpoint = ask.api.get(&ask.v1(&format!("/endpoints/{name}"))).await?;
    let (window, bucket) = match ask.query.look("window") {
        "1h" => ("1h", "1m"),
        "7d" => ("7d", "6h"),
        _ => ("24h", "1h"),
    };
    let path = format!("/stats?endpoint={name}&window={window}&bucket={bucket}");
    let stats: Option<Stats> = ask.api.get(&ask.v1(&path)).await.ok();
    let stats = stats.and_then(|stats| stats.endpoints.into_iter().next());
    let chart = stats.as_ref().map(|stats| Chart::of(&stats.buckets));
    let newest: Result<List<Delivery>, Told> =
        ask.api.get(&ask.v1(&format!("/deliveries?endpoint={name}&limit=10"))).await;
    let settings = e.settings.iter().map(|(name, value)| (name.clone(), written(value))).collect();
    let cli = format!("hookgate endpoint get {name} --tenant {}", ask.tenant);
    let status = refused.as_ref().map(Told::status);
    let mut answer = rendered(&Single {
        p: ask.page.titled("endpoints", format!("Endpoint {}", e.name)),
        stats,
        chart,
        width: WIDTH,
        height: HEIGHT,
        window,
        settings,
        newest: newest.map(|list| list.items).unwrap_or_default(),
        refused,
        cli,
        e,
    });
    if let Some(status) = status {
        *answer.status_mut() = status;
    }
    Ok(answer)
}

pub(super) async fn change(ask: Ask<'_>, session: &Session, name: &str, verb: &str, mut form: Form) -> Shown {
    let why = form.text("why");
    let body = match verb {
        "pause" => {
            let span =
                form.text("for").map(|span| crate::duration::parse(&span).map_err(|rule| Told::invalid("for", &rule)));
            let until = match span.transpose() {
                Ok(span) => span.filter(|span| *span > Duration::ZERO).map(|span| ask.page.now.plus(span)),
                Err(told) => return shown(ask, name, Some(told)).await,
            };
            let mut body = json!({ "until": until });
            if let Some(why) = why {
                body["why"] = why.into();
            }
            body
        }
        "disable" => why.map_or_else(|| json!({}), |why| json!({ "why": why })),
        _ => json!({}),
    };
    let done: Result<Endpoint, Told> = ask.api.post(&ask.v1(&format!("/endpoints/{name}/{verb}")), &body).await;
    match done {
        Ok(endpoint) => {
            session.say(format!("{name} is {}.", endpoint.status));
            Ok(to(&ask.page.at(&format!("/endpoints/{name}"))))
        }
        Err(told) if told.status == 404 || told.status == 401 => Err(told),
        Err(told) => shown(ask, name, Some(told)).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_never_told_as_more_than_it_is() {
        assert_eq!(percent(999_999, 1_000_000).as_deref(), Some("99.9 %"));
        assert_eq!((percent(1, 1).as_deref(), percent(0, 3).as_deref()), (Some("100.0 %"), Some("0.0 %")));
        assert_eq!(percent(0, 0), None);
    }

    #[test]
    fn settings_are_told_as_they_are_written() {
        let retry = json!({ "delays": ["5s", "30s"], "max_attempts": 9, "max_age": null });
        assert_eq!(written(&retry), "delays = 5s, 30s, max_attempts = 9");
        assert_eq!((written(&Value::Null), written(&json!(false))), ("–".to_owned(), "false".to_owned()));
    }
}
