//! The process: how it was started, and how full it is.

use super::endpoints::written;
use super::{Ask, Shown};
use crate::console::page::{Page, rendered};
use crate::console::show::Told;
use askama::Template;
use serde_json::{Map, Value};

#[derive(Template)]
#[template(path = "system.html")]
struct System {
    p: Page,
    ready: Result<Value, Told>,
    facts: Vec<(String, String)>,
    gauges: Vec<(String, String)>,
}

fn rows(all: &Value) -> Vec<(String, String)> {
    let rows = all.as_object().into_iter().flatten();
    rows.map(|(name, value)| (name.replace('_', " "), written(value))).collect()
}

pub(super) async fn show(ask: Ask<'_>) -> Shown {
    let mut all: Map<String, Value> = ask.api.get("/v1/system").await?;
    let gauges = rows(&all.remove("now").unwrap_or(Value::Null));
    let ready = ask.api.get("/readyz").await;
    let facts = rows(&Value::Object(all));
    Ok(rendered(&System { p: ask.page.titled("system", "System"), ready, facts, gauges }))
}
