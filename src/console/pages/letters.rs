//! Dead letters: grouped first, then listed; redriven and purged by what a filter says, with the number before.

use super::overview::filter_of;
use super::{Ask, Paging, Shown};
use crate::console::form::Form;
use crate::console::model::{DeadGroup, Delivery, List, Operation, Purged, Rehearsed};
use crate::console::page::{Page, rendered, to};
use crate::console::session::Session;
use crate::console::show::{self, Told};
use askama::Template;
use serde_json::{Map, Value, json};

/// What a filter of dead letters is made of.
const FIELDS: [&str; 13] = [
    "endpoint",
    "source",
    "type",
    "key",
    "event",
    "reason",
    "status",
    "host",
    "plugin_version",
    "since",
    "until",
    "ids",
    "q",
];

struct Group {
    group: DeadGroup,
    list: String,
    redrive: String,
}

#[derive(Template)]
#[template(path = "dlq.html")]
struct Groups {
    p: Page,
    groups: Vec<Group>,
    total: u64,
    by: &'static str,
}

pub(super) async fn groups(ask: Ask<'_>) -> Shown {
    let by = match ask.query.look("by") {
        "destination" => "destination",
        "endpoint" => "endpoint",
        _ => "plugin_version",
    };
    let list: List<DeadGroup> =
        ask.api.get(&ask.v1(&format!("/dlq/groups{}", ask.query.with("by", by).query()))).await?;
    let total = list.items.iter().map(|group| group.count).sum();
    let page = ask.page.titled("dead letters", "Dead letters");
    let groups = list.items.into_iter().map(|group| {
        let filter = filter_of(&group).query();
        let (list, redrive) = (page.at(&format!("/dlq/list{filter}")), page.at(&format!("/dlq/redrive{filter}")));
        Group { group, list, redrive }
    });
    Ok(rendered(&Groups { groups: groups.collect(), p: page, total, by }))
}

#[derive(Template)]
#[template(path = "letters.html")]
struct Letters {
    p: Page,
    query: Form,
    items: Vec<Delivery>,
    paging: Paging,
    redrive: String,
    purge: String,
}

pub(super) async fn list(ask: Ask<'_>) -> Shown {
    let list: List<Delivery> = ask.api.get(&ask.v1_queried("/dlq")).await?;
    let paging = Paging::of(&ask, "/dlq/list", list.next);
    let filter = ask.query.with("cursor", "").with("limit", "").query();
    let mut page = ask.page.titled("dead letters", "Dead letters");
    page.live = !paging.is_further;
    let (redrive, purge) = (page.at(&format!("/dlq/redrive{filter}")), page.at(&format!("/dlq/purge{filter}")));
    Ok(rendered(&Letters { p: page, query: ask.query, items: list.items, paging, redrive, purge }))
}

/// A filter, taken out of a query or a form.
struct Filter {
    form: Form,
}

impl Filter {
    fn take(from: &mut Form) -> Self {
        let mut form = Form::default();
        for name in FIELDS {
            // Several rows that were marked, or all of them in one.
            let value = from.all(name).into_iter().filter(|value| !value.is_empty()).collect::<Vec<_>>().join(",");
            form.set(name, value);
        }
        Filter { form }
    }

    /// As the verbs take it.
    fn json(&self) -> Result<Value, Told> {
        let mut all = Map::new();
        for (name, value) in self.form.pairs() {
            let value = match name {
                "status" => json!(
                    value.parse::<u16>().map_err(|_| Told::invalid("status", "is to be a status code, such as 503"))?
                ),
                "ids" => value.split(',').collect(),
                _ => json!(value),
            };
            all.insert(name.to_owned(), value);
        }
        Ok(Value::Object(all))
    }
}

#[derive(Template)]
#[template(path = "redrive.html")]
struct Wizard {
    p: Page,
    filter: Form,
    found: Rehearsed,
    list: String,
    refused: Option<Told>,
    /// What was given before it was refused.
    given: Form,
    /// The same wish that is sent twice begins one operation.
    wish: String,
    cli: String,
}

impl Wizard {
    /// Destinations that a probe found down.
    fn is_down(&self) -> bool {
        self.refused.as_ref().is_some_and(|told| told.code == "destination_down")
    }

    fn down(&self) -> Vec<(String, String, String)> {
        let told = self.refused.as_ref().map(|told| &told.members["destinations"]);
        let text = |down: &Value, name: &str| down[name].as_str().unwrap_or_default().to_owned();
        let all = told.and_then(Value::as_array).into_iter().flatten();
        all.map(|down| (text(down, "endpoint"), text(down, "host"), text(down, "detail"))).collect()
    }
}

fn nothing_unknown(ask: &Ask<'_>) -> Result<(), Told> {
    if !ask.query.look("marked").is_empty() && ask.query.look("ids").is_empty() {
        return Err(Told::invalid("ids", "is empty: mark some rows first"));
    }
    let known = |name: &str| FIELDS.contains(&name) || matches!(name, "cursor" | "limit" | "by" | "marked");
    match ask.query.pairs().find(|(name, _)| !known(name)) {
        None => Ok(()),
        Some((name, _)) => Err(Told::invalid(name, "is not a filter of dead letters")),
    }
}

async fn rehearsed(ask: &Ask<'_>, filter: &Filter) -> Result<Rehearsed, Told> {
    ask.api.post(&ask.v1("/dlq/redrive"), &json!({ "filter": filter.json()?, "dry_run": true })).await
}

pub(super) async fn wizard(ask: Ask<'_>, refused: Option<(Told, Form)>) -> Shown {
    nothing_unknown(&ask)?;
    let filter = Filter::take(&mut ask.query.clone());
    let found = rehearsed(&ask, &filter).await?;
    let wish = ask.console.fresh_name();
    let list = ask.page.at(&format!("/dlq/list{}", filter.form.query()));
    let (refused, given) = match refused {
        Some((told, given)) => (Some(told), given),
        None => (None, Form::default()),
    };
    let cli =
        filter.form.pairs().fold(format!("hookgate dlq redrive --tenant {}", ask.tenant), |text, (name, value)| {
            format!("{text} --{} '{}'", name.replace('_', "-"), value.replace('\'', "'\\''"))
        });
    let status = refused.as_ref().map(Told::status);
    let p = ask.page.titled("dead letters", "Redrive dead letters");
    let mut answer = rendered(&Wizard { p, filter: filter.form, found, list, refused, given, wish, cli });
    if let Some(status) = status {
        *answer.status_mut() = status;
    }
    Ok(answer)
}

fn number<T: std::str::FromStr>(form: &mut Form, name: &str) -> Result<Option<T>, Told> {
    let read = |text: String| text.trim().parse().map_err(|_| Told::invalid(name, "is to be a whole number"));
    form.text(name).map(read).transpose()
}

pub(super) async fn redrive(mut ask: Ask<'_>, session: &Session, form: Form) -> Shown {
    let given = form.clone();
    let mut form = form;
    let filter = Filter::take(&mut form);
    ask.query = filter.form.clone();
    let wish = form.text("wish").unwrap_or_else(|| ask.console.fresh_name());
    let begun: Result<Value, Told> = async {
        let (rate, max) = (number::<u32>(&mut form, "rate")?, number::<u64>(&mut form, "max")?);
        let wanted = json!({
            "filter": filter.json()?,
            "rate": rate,
            "max": max,
            "canary": form.is_set("canary"),
            "probe": form.is_set("probe"),
            "force": form.is_set("force"),
            "note": form.text("note"),
        });
        ask.api.post_once(&ask.v1("/dlq/redrive"), &wanted, &wish).await
    }
    .await;
    match begun {
        Ok(told) => match serde_json::from_value::<Operation>(told) {
            Ok(operation) => {
                session.say(format!("The redrive of {} dead letters has begun.", show::count(operation.total)));
                Ok(to(&ask.page.at(&format!("/operations/{}", operation.id))))
            }
            Err(_nothing_matched) => {
                session.say("Nothing was redriven: no dead letter matches any more.");
                Ok(to(&ask.page.at("/dlq")))
            }
        },
        Err(told) if told.status == 404 || told.status == 401 => Err(told),
        Err(told) => wizard(ask, Some((told, given))).await,
    }
}

#[derive(Template)]
#[template(path = "purge.html")]
struct PurgeWizard {
    p: Page,
    filter: Form,
    found: Rehearsed,
    list: String,
    refused: Option<Told>,
}

pub(super) async fn purge_wizard(ask: Ask<'_>, refused: Option<Told>) -> Shown {
    nothing_unknown(&ask)?;
    let filter = Filter::take(&mut ask.query.clone());
    let found = rehearsed(&ask, &filter).await?;
    let list = ask.page.at(&format!("/dlq/list{}", filter.form.query()));
    let status = refused.as_ref().map(Told::status);
    let p = ask.page.titled("dead letters", "Purge dead letters");
    let mut answer = rendered(&PurgeWizard { p, filter: filter.form, found, list, refused });
    if let Some(status) = status {
        *answer.status_mut() = status;
    }
    Ok(answer)
}

/// Only with the number of what will be gone, typed, and still right.
pub(super) async fn purge(mut ask: Ask<'_>, session: &Session, mut form: Form) -> Shown {
    let filter = Filter::take(&mut form);
    ask.query = filter.form.clone();
    let found = rehearsed(&ask, &filter).await?;
    let digits: String = form.text("count").unwrap_or_default().chars().filter(char::is_ascii_digit).collect();
    if digits.parse::<u64>().ok() != Some(found.count) {
        let rule = "is to be the number of dead letters as it stands there now";
        return purge_wizard(ask, Some(Told::invalid("count", rule))).await;
    }
    let done: Purged = ask.api.post(&ask.v1("/dlq/purge"), &json!({ "filter": filter.json()? })).await?;
    let more = if done.more { " There are more: purge again." } else { "" };
    session.say(format!("{} dead letters were purged.{more}", show::count(done.purged)));
    Ok(to(&ask.page.at("/dlq")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_read_from_a_form_as_the_verbs_take_it() {
        let mut form = Form::of_query(Some("ids=dlv_1&ids=dlv_2&status=503&q=&rate=5"));
        let filter = Filter::take(&mut form);
        assert_eq!(filter.json().unwrap(), json!({ "ids": ["dlv_1", "dlv_2"], "status": 503 }));
        assert_eq!(form.query(), "?rate=5");
        let mut bad = Form::of_query(Some("status=x"));
        assert_eq!(Filter::take(&mut bad).json().unwrap_err().status, 422);
    }
}
