//! Plugins: their versions, what is in use, and what another would say.

use super::{Ask, Shown, segment};
use crate::console::form::Form;
use crate::console::model::{DryRun, Plugin};
use crate::console::page::{Page, rendered, to};
use crate::console::session::Session;
use crate::console::show::Told;
use askama::Template;
use serde_json::{Value, json};

#[derive(Template)]
#[template(path = "plugins.html")]
struct Plugins {
    p: Page,
    items: Vec<Plugin>,
}

pub(super) async fn list(ask: Ask<'_>) -> Shown {
    let items = ask.api.pages(&ask.v1("/plugins"), 10).await?;
    Ok(rendered(&Plugins { p: ask.page.titled("plugins", "Plugins"), items }))
}

#[derive(Template)]
#[template(path = "plugin.html")]
struct Single {
    p: Page,
    g: Plugin,
    refused: Option<Told>,
    cli: String,
}

impl Plugin {
    fn is_of_the_file(&self) -> bool {
        self.managed_by == "file"
    }

    fn has_trial(&self) -> bool {
        self.trial.as_ref().is_some_and(|trial| trial.state == "running")
    }
}

pub(super) async fn one(ask: Ask<'_>, name: &str) -> Shown {
    shown(ask, name, None).await
}

async fn shown(ask: Ask<'_>, name: &str, refused: Option<Told>) -> Shown {
    let g: Plugin = ask.api.get(&ask.v1(&format!("/plugins/{name}"))).await?;
    let cli = format!("hookgate plugin get {name} --tenant {}", ask.tenant);
    let status = refused.as_ref().map(Told::status);
    let p = ask.page.titled("plugins", format!("Plugin {}", g.name));
    let mut answer = rendered(&Single { p, g, refused, cli });
    if let Some(status) = status {
        *answer.status_mut() = status;
    }
    Ok(answer)
}

pub(super) async fn change(ask: Ask<'_>, session: &Session, name: &str, verb: &str, mut form: Form) -> Shown {
    let path = ask.v1(&format!("/plugins/{name}/{verb}"));
    let version = form.text("version").unwrap_or_default();
    let share = form.text("share").unwrap_or_default();
    let done: Result<Plugin, Told> = match verb {
        "activate" => ask.api.post(&path, &json!({ "version": version })).await,
        "rollback" => ask.api.post(&path, &json!({})).await,
        "shadow" | "canary" => ask.api.post(&path, &json!({ "version": version, "share": share })).await,
        "stop-shadow" | "stop-canary" => {
            let kind = verb.strip_prefix("stop-").unwrap_or_default();
            ask.api.delete(&ask.v1(&format!("/plugins/{name}/{kind}"))).await
        }
        _ => Err(Told::not_found()),
    };
    match done {
        Ok(plugin) => {
            let active = plugin.active.as_deref().unwrap_or("none");
            session.say(match verb {
                "activate" | "rollback" => format!("In use is {active}."),
                "shadow" => {
                    "The shadow runs: it is asked beside the version in use, and nothing it says counts.".to_owned()
                }
                "canary" => "The canary runs, and goes back by itself if it goes beyond its bounds.".to_owned(),
                _ => "The trial is ended.".to_owned(),
            });
            Ok(to(&ask.page.at(&format!("/plugins/{name}"))))
        }
        Err(told) if told.status == 404 || told.status == 401 => Err(told),
        Err(told) => shown(ask, name, Some(told)).await,
    }
}

/// An attempt of which the version would say something else.
struct Differs {
    delivery: String,
    link: String,
    number: u64,
    event_type: String,
    endpoint: String,
    before: Option<String>,
    after: Option<String>,
    diff: Option<String>,
}

#[derive(Template)]
#[template(path = "dry_run.html")]
struct DryRunPage {
    p: Page,
    name: String,
    run: DryRun,
    differs: Vec<Differs>,
    since: String,
    limit: String,
}

fn ruling(said: &Value) -> Option<String> {
    let verdict = said["verdict"].as_str()?;
    Some(match said["reason"].as_str() {
        Some(reason) => format!("{verdict} ({reason})"),
        None => verdict.to_owned(),
    })
}

pub(super) async fn dry_run(ask: Ask<'_>, name: &str, mut form: Form) -> Shown {
    let (version, since) = (form.text("version").unwrap_or_default(), form.text("since"));
    let (limit, cursor) = (form.text("limit"), form.text("cursor"));
    let number = limit.as_deref().map(|limit| {
        limit.trim().parse::<u32>().map_err(|_| Told::invalid("limit", "is to be a number from 1 to 10000"))
    });
    let begin = match since.as_deref().map(crate::duration::parse).transpose() {
        Ok(span) => span.map(|span| ask.page.now.minus(span)),
        Err(rule) => return shown(ask, name, Some(Told::invalid("since", &rule))).await,
    };
    let number = match number.transpose() {
        Ok(number) => number,
        Err(told) => return shown(ask, name, Some(told)).await,
    };
    let body = json!({ "version": version, "since": begin, "limit": number, "cursor": cursor });
    let run: DryRun = match ask.api.post(&ask.v1(&format!("/plugins/{name}/dry-run")), &body).await {
        Ok(run) => run,
        Err(told) if told.status == 404 || told.status == 401 => return Err(told),
        Err(told) => return shown(ask, name, Some(told)).await,
    };
    let text = |row: &Value, field: &str| row[field].as_str().unwrap_or_default().to_owned();
    let differs = run.items.iter().map(|row| Differs {
        delivery: text(row, "delivery"),
        link: ask.page.at(&format!("/deliveries/{}", segment(&text(row, "delivery")))),
        number: row["number"].as_u64().unwrap_or(0),
        event_type: text(row, "event_type"),
        endpoint: text(row, "endpoint"),
        before: ruling(&row["verdict"]["recorded"]),
        after: ruling(&row["verdict"]["candidate"]),
        diff: row["request"]["body"]["diff"].as_str().map(str::to_owned),
    });
    let differs = differs.collect();
    let p = ask.page.titled("plugins", format!("Dry run of {name}"));
    Ok(rendered(&DryRunPage {
        p,
        name: name.to_owned(),
        differs,
        since: since.unwrap_or_default(),
        limit: limit.unwrap_or_default(),
        run,
    }))
}
