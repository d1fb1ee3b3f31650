//! The delivery log: one filter bar, whose state is the address.

use super::{Ask, Paging, Shown};
use crate::console::form::Form;
use crate::console::model::{Delivery, List};
use crate::console::page::{Page, rendered};
use crate::delivery::DeliveryState;
use askama::Template;

#[derive(Template)]
#[template(path = "deliveries.html")]
struct Deliveries {
    p: Page,
    query: Form,
    states: Vec<&'static str>,
    items: Vec<Delivery>,
    paging: Paging,
    /// To the dead letters of the same filter.
    redrive: Option<String>,
}

pub(super) async fn list(ask: Ask<'_>) -> Shown {
    let list: List<Delivery> = ask.api.get(&ask.v1_queried("/deliveries")).await?;
    let paging = Paging::of(&ask, "/deliveries", list.next);
    let redrive = (ask.query.look("state") == "dead").then(|| {
        let filter = ask.query.with("state", "").with("cursor", "").with("limit", "");
        ask.page.at(&format!("/dlq/redrive{}", filter.query()))
    });
    let mut page = ask.page.titled("deliveries", "Deliveries");
    page.live = !paging.is_further;
    let states = DeliveryState::ALL.into_iter().map(DeliveryState::as_str).collect();
    Ok(rendered(&Deliveries { p: page, query: ask.query, states, items: list.items, paging, redrive }))
}
