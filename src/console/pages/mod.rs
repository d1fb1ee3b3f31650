//! The pages: what a path shows, and what a form of it changes.

mod deliveries;
mod delivery;
mod endpoints;
mod events;
mod letters;
mod operations;
mod overview;
mod plugins;
mod sources;
mod system;

use super::Console;
use super::api::Api;
use super::form::Form;
use super::model::{List, Tenant};
use super::page::{self, Page};
use super::session::Session;
use super::show::Told;
use crate::http::Answer;
use http::header;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// What a page is made from.
struct Ask<'a> {
    console: &'a Console,
    api: &'a Api<'a>,
    page: Page,
    query: Form,
    /// As it stands in the path.
    tenant: &'a str,
}

/// A form that was sent.
pub(super) struct Sent<'a> {
    pub(super) session: &'a Session,
    pub(super) path: &'a str,
    pub(super) query: Option<&'a str>,
    pub(super) form: Form,
}

type Shown = Result<Answer, Told>;

const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Something from outside as a part of a path.
fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

impl Ask<'_> {
    /// A path of the API, below the tenant's.
    fn v1(&self, path: &str) -> String {
        format!("/v1/tenants/{}{path}", self.tenant)
    }

    /// The same with the page's own query: what it has and the API does not know, the API refuses.
    fn v1_queried(&self, path: &str) -> String {
        format!("{}{}", self.v1(path), self.query.query())
    }
}

/// One page of a list, and how its others are found.
struct Paging {
    next: Option<String>,
    /// It is not the first.
    is_further: bool,
    first: String,
}

impl Paging {
    fn of(ask: &Ask<'_>, path: &str, next: Option<String>) -> Self {
        let here = ask.page.at(path);
        let link = |cursor: &str| format!("{here}{}", ask.query.with("cursor", cursor).query());
        Paging { next: next.map(|next| link(&next)), is_further: !ask.query.look("cursor").is_empty(), first: link("") }
    }
}

fn refused(page: Page, told: &Told, path: &str) -> Answer {
    let back = match path.rsplit_once('/') {
        Some((above, _)) if above.starts_with("/t/") => format!("/console{above}"),
        _ => "/console/".to_owned(),
    };
    if told.status == 401 {
        // The token is no longer good.
        return page::to_sign_in_afterwards();
    }
    page::problem(page, told, &back)
}

fn parts(path: &str) -> Vec<&str> {
    path.trim_matches('/').split('/').filter(|part| !part.is_empty()).collect()
}

async fn framed(api: &Api<'_>, page: &mut Page, path: &str, query: &Form, parts: &[&str]) {
    page.here = format!("/console{path}{}", query.query());
    let tenants: Result<List<Tenant>, Told> = api.get("/v1/tenants?limit=200").await;
    page.tenants = tenants.map(|list| list.items.into_iter().map(|tenant| tenant.name).collect()).unwrap_or_default();
    if let ["t", tenant, ..] = parts {
        page.tenant = Some((*tenant).to_owned());
    } else if let [one] = page.tenants.as_slice() {
        page.tenant = Some(one.clone());
    }
}

pub(super) async fn show(console: &Console, mut page: Page, api: &Api<'_>, path: &str, query: Option<&str>) -> Answer {
    let query = Form::of_query(query);
    let parts = parts(path);
    framed(api, &mut page, path, &query, &parts).await;
    let tenant = match parts.as_slice() {
        ["t", tenant, ..] => *tenant,
        _ => "",
    };
    let frame = page.clone();
    let ask = Ask { console, api, page, query, tenant };
    let shown = match parts.as_slice() {
        [] => overview::tenants(ask).await,
        ["system"] => system::show(ask).await,
        ["t", _] => overview::show(ask).await,
        ["t", _, "events"] => events::list(ask).await,
        ["t", _, "events", id] => events::one(ask, id).await,
        ["t", _, "events", id, "body"] => Ok(saved(&ask, &format!("/events/{id}/body"), id).await),
        ["t", _, "deliveries"] => deliveries::list(ask).await,
        ["t", _, "deliveries", id] => delivery::show(ask, id, None).await,
        ["t", _, "deliveries", id, "body"] => {
            let path = format!("/deliveries/{id}/body{}", ask.query.query());
            Ok(saved(&ask, &path, id).await)
        }
        ["t", _, "deliveries", id, "fixture"] => delivery::fixture(ask, id).await,
        ["t", _, "dlq"] => letters::groups(ask).await,
        ["t", _, "dlq", "list"] => letters::list(ask).await,
        ["t", _, "dlq", "redrive"] => letters::wizard(ask, None).await,
        ["t", _, "dlq", "purge"] => letters::purge_wizard(ask, None).await,
        ["t", _, "operations"] => operations::list(ask).await,
        ["t", _, "operations", id] => operations::one(ask, id).await,
        ["t", _, "endpoints"] => endpoints::list(ask).await,
        ["t", _, "endpoints", name] => endpoints::one(ask, name).await,
        ["t", _, "sources"] => sources::list(ask).await,
        ["t", _, "sources", name] => sources::one(ask, name, None).await,
        ["t", _, "rejections"] => sources::rejections(ask).await,
        ["t", _, "plugins"] => plugins::list(ask).await,
        ["t", _, "plugins", name] => plugins::one(ask, name).await,
        _ => Err(Told::not_found()),
    };
    shown.unwrap_or_else(|told| refused(frame, &told, path))
}

pub(super) async fn change(console: &Console, mut page: Page, api: &Api<'_>, sent: Sent<'_>) -> Answer {
    let Sent { session, path, query, form } = sent;
    let query = Form::of_query(query);
    let parts = parts(path);
    framed(api, &mut page, path, &query, &parts).await;
    let tenant = match parts.as_slice() {
        ["t", tenant, ..] => *tenant,
        _ => "",
    };
    let frame = page.clone();
    let ask = Ask { console, api, page, query, tenant };
    let done = match parts.as_slice() {
        ["t", _, "deliveries", id, verb @ ("redrive" | "cancel" | "resolve")] => {
            delivery::change(ask, session, id, verb, form).await
        }
        ["t", _, "dlq", "redrive"] => letters::redrive(ask, session, form).await,
        ["t", _, "dlq", "purge"] => letters::purge(ask, session, form).await,
        ["t", _, "operations", id, verb @ ("stop" | "pause" | "resume")] => {
            operations::change(ask, session, id, verb).await
        }
        ["t", _, "endpoints", name, verb @ ("pause" | "resume" | "enable" | "disable")] => {
            endpoints::change(ask, session, name, verb, form).await
        }
        ["t", _, "sources", name, "explain"] => sources::explain(ask, name, form).await,
        ["t", _, "sources", name, "forget-secret"] => sources::forget(ask, session, name).await,
        ["t", _, "plugins", name, "dry-run"] => plugins::dry_run(ask, name, form).await,
        ["t", _, "plugins", name, verb] => plugins::change(ask, session, name, verb, form).await,
        _ => Err(Told::not_found()),
    };
    done.unwrap_or_else(|told| refused(frame, &told, path))
}

/// Bytes from outside, to be saved and never shown: the API says so, and the file gets a name.
async fn saved(ask: &Ask<'_>, path: &str, id: &str) -> Answer {
    let mut answer = ask.api.raw(&ask.v1(path)).await;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if answer.status().is_success()
        && id.chars().all(is_plain)
        && let Ok(value) = format!("attachment; filename=\"{id}\"").parse()
    {
        answer.headers_mut().insert(header::CONTENT_DISPOSITION, value);
    }
    answer
}
