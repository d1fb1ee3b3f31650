//! Operations: how far each has come, and what holds it up.

use super::{Ask, Paging, Shown};
use crate::console::form::Form;
use crate::console::model::{List, Operation};
use crate::console::page::{Page, rendered, to};
use crate::console::session::Session;
use askama::Template;
use serde_json::{Value, json};

#[derive(Template)]
#[template(path = "operations.html")]
struct Operations {
    p: Page,
    items: Vec<Operation>,
    paging: Paging,
}

pub(super) async fn list(ask: Ask<'_>) -> Shown {
    let list: List<Operation> = ask.api.get(&ask.v1_queried("/operations")).await?;
    let paging = Paging::of(&ask, "/operations", list.next);
    Ok(rendered(&Operations { p: ask.page.titled("operations", "Operations"), items: list.items, paging }))
}

#[derive(Template)]
#[template(path = "operation.html")]
struct Single {
    p: Page,
    op: Operation,
    filter: Vec<(String, String)>,
    /// To the letters that it means.
    list: String,
    percent: u64,
    cli: String,
}

impl Operation {
    fn is_over(&self) -> bool {
        self.ended_at.is_some()
    }

    /// What it will have looked at when it is through.
    fn wanted(&self) -> u64 {
        self.max.map_or(self.total, |max| max.min(self.total))
    }

    fn percent(&self) -> u64 {
        let wanted = self.done + self.left;
        (self.done * 100).checked_div(wanted).unwrap_or(100)
    }
}

/// A filter as it is written in a query.
fn fields(filter: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    };
    let all = filter.as_object().into_iter().flatten();
    all.filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.clone(), text(value))).collect()
}

pub(super) async fn one(ask: Ask<'_>, id: &str) -> Shown {
    let op: Operation = ask.api.get(&ask.v1(&format!("/operations/{id}"))).await?;
    let filter = fields(&op.filter);
    let mut query = Form::default();
    filter.iter().for_each(|(name, value)| query.set(name, value.as_str()));
    let list = ask.page.at(&format!("/dlq/list{}", query.query()));
    let cli = format!("hookgate operation get {id} --tenant {}", ask.tenant);
    let mut page = ask.page.titled("operations", format!("{} of {}", op.kind, op.began_at.to_rfc3339()));
    page.live = !op.is_over();
    let percent = op.percent();
    Ok(rendered(&Single { p: page, percent, op, filter, list, cli }))
}

pub(super) async fn change(ask: Ask<'_>, session: &Session, id: &str, verb: &str) -> Shown {
    let _op: Operation = ask.api.post(&ask.v1(&format!("/operations/{id}/{verb}")), &json!({})).await?;
    session.say(match verb {
        "stop" => "The operation is stopped. What it put back goes on; what is left stays dead.",
        "pause" => "The operation is paused.",
        _ => "The operation goes on.",
    });
    Ok(to(&ask.page.at(&format!("/operations/{id}"))))
}
