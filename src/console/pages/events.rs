//! Events: what came in, and where each went.

use super::{Ask, Paging, Shown};
use crate::console::form::Form;
use crate::console::model::{Delivery, Event, List, Source};
use crate::console::page::{Page, rendered};
use crate::console::payload::Payload;
use crate::console::show::Told;
use askama::Template;

#[derive(Template)]
#[template(path = "events.html")]
struct Events {
    p: Page,
    query: Form,
    items: Vec<Event>,
    paging: Paging,
}

pub(super) async fn list(ask: Ask<'_>) -> Shown {
    let list: List<Event> = ask.api.get(&ask.v1_queried("/events")).await?;
    let paging = Paging::of(&ask, "/events", list.next);
    let mut page = ask.page.titled("events", "Events");
    page.live = !paging.is_further;
    Ok(rendered(&Events { p: page, query: ask.query, items: list.items, paging }))
}

#[derive(Template)]
#[template(path = "event.html")]
struct Single {
    p: Page,
    event: Event,
    /// Of the source it came by.
    source: Option<Source>,
    deliveries: Vec<Delivery>,
    deliveries_more: bool,
    payload: Result<Payload, Told>,
    curl: String,
    cli: String,
}

pub(super) async fn one(ask: Ask<'_>, id: &str) -> Shown {
    let event: Event = ask.api.get(&ask.v1(&format!("/events/{id}"))).await?;
    let source = match &event.source {
        Some(name) => ask.api.get::<Source>(&ask.v1(&format!("/sources/{}", super::segment(name)))).await.ok(),
        None => None,
    };
    let to: List<Delivery> = ask.api.get(&ask.v1(&format!("/deliveries?event={id}&limit=200"))).await?;
    let payload = ask.api.bytes(&ask.v1(&format!("/events/{id}/body"))).await.map(|(bytes, _)| Payload::of(&bytes));
    let url = format!("$HOOKGATE_URL/v1/tenants/{}/events/{id}", ask.tenant);
    let curl = format!("curl -sS -H \"authorization: Bearer $HOOKGATE_TOKEN\" \"{url}\"");
    let cli = format!("hookgate event get {id} --tenant {}", ask.tenant);
    let page = ask.page.titled("events", format!("Event {}", event.event_type));
    Ok(rendered(&Single {
        p: page,
        source,
        deliveries_more: to.next.is_some(),
        deliveries: to.items,
        payload,
        curl,
        cli,
        event,
    }))
}
