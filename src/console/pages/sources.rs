//! Sources, and what was refused at them.

use super::endpoints::written;
use super::{Ask, Paging, Shown, segment};
use crate::console::form::Form;
use crate::console::model::{Explained, List, Rejection, Source};
use crate::console::page::{Page, rendered, to};
use crate::console::session::Session;
use crate::console::show::Told;
use askama::Template;
use serde_json::{Value, json};

#[derive(Template)]
#[template(path = "sources.html")]
struct Sources {
    p: Page,
    items: Vec<Source>,
}

pub(super) async fn list(ask: Ask<'_>) -> Shown {
    let items = ask.api.pages(&ask.v1("/sources"), 10).await?;
    Ok(rendered(&Sources { p: ask.page.titled("sources", "Sources"), items }))
}

/// A request that was pasted, and what came of it.
#[derive(Default)]
pub(super) struct Debugged {
    request: String,
    base64: bool,
    received_at: String,
    told: Option<Explained>,
    refused: Option<Told>,
}

#[derive(Template)]
#[template(path = "source.html")]
struct Single {
    p: Page,
    s: Source,
    settings: Vec<(String, String)>,
    rejections: Vec<Rejection>,
    /// Below the public listener's address.
    inlet: String,
    debugged: Debugged,
    cli: String,
}

pub(super) async fn one(ask: Ask<'_>, name: &str, debugged: Option<Debugged>) -> Shown {
    let s: Source = ask.api.get(&ask.v1(&format!("/sources/{name}"))).await?;
    let path = ask.v1(&format!("/rejections?source={}&limit=10", segment(&s.name)));
    let rejections = ask.api.get::<List<Rejection>>(&path).await.map(|list| list.items).unwrap_or_default();
    let settings = s.settings.iter().map(|(name, value)| (name.clone(), written(value))).collect();
    let inlet = format!("/in/{}/{}", ask.tenant, s.name);
    let cli = format!("hookgate source get {} --tenant {}", s.name, ask.tenant);
    let p = ask.page.titled("sources", format!("Source {}", s.name));
    let debugged = debugged.unwrap_or_default();
    let status = debugged.refused.as_ref().map(Told::status);
    let mut answer = rendered(&Single { p, s, settings, rejections, inlet, debugged, cli });
    if let Some(status) = status {
        *answer.status_mut() = status;
    }
    Ok(answer)
}

/// A request as it went over the wire: a request line that may be missing, headers, an empty line, the body. A browser
/// sends the line ends of a text field as CR LF: those of the body are made LF again.
fn posed(text: &str, base64: bool) -> Value {
    let text = text.replace("\r\n", "\n");
    let (head, body) = text.trim_start().split_once("\n\n").unwrap_or((text.trim(), ""));
    let mut lines = head.lines().peekable();
    let mut request = json!({});
    let is_request_line = |line: &&str| {
        let mut words = line.split(' ');
        words.next().is_some_and(|method| !method.is_empty() && method.bytes().all(|b| b.is_ascii_uppercase()))
            && words.next().is_some_and(|target| target.starts_with('/') || target.starts_with("http"))
    };
    if let Some(line) = lines.next_if(is_request_line) {
        let mut words = line.split(' ');
        request["method"] = words.next().unwrap_or("POST").into();
        // Of a path alone the source knows the rest.
        if let Some(url) = words.next().filter(|target| target.starts_with("http")) {
            request["url"] = url.into();
        }
    }
    let headers = lines.filter_map(|line| line.split_once(':')).map(|(name, value)| json!([name.trim(), value.trim()]));
    request["headers"] = headers.collect();
    if base64 {
        let bare: String = body.split_whitespace().collect();
        request["body_base64"] = bare.into();
    } else {
        request["body"] = body.into();
    }
    request
}

pub(super) async fn explain(ask: Ask<'_>, name: &str, mut form: Form) -> Shown {
    let (request, base64) = (form.text("request").unwrap_or_default(), form.is_set("base64"));
    let received_at = form.text("received_at").unwrap_or_default();
    let mut wanted = posed(&request, base64);
    if !received_at.is_empty() {
        wanted["received_at"] = received_at.trim().into();
    }
    let told: Result<Explained, Told> = ask.api.post(&ask.v1(&format!("/sources/{name}/explain")), &wanted).await;
    let mut debugged = Debugged { request, base64, received_at, ..Debugged::default() };
    match told {
        Ok(told) => debugged.told = Some(told),
        Err(told) if told.status == 404 || told.status == 401 => return Err(told),
        Err(told) => debugged.refused = Some(told),
    }
    one(ask, name, Some(debugged)).await
}

pub(super) async fn forget(ask: Ask<'_>, session: &Session, name: &str) -> Shown {
    let _source: Source = ask.api.post(&ask.v1(&format!("/sources/{name}/forget-secret")), &json!({})).await?;
    session.say("The secret is forgotten. The next handshake brings another.");
    Ok(to(&ask.page.at(&format!("/sources/{name}"))))
}

#[derive(Template)]
#[template(path = "rejections.html")]
struct Rejections {
    p: Page,
    query: Form,
    items: Vec<Rejection>,
    paging: Paging,
}

pub(super) async fn rejections(ask: Ask<'_>) -> Shown {
    let list: List<Rejection> = ask.api.get(&ask.v1_queried("/rejections")).await?;
    let paging = Paging::of(&ask, "/rejections", list.next);
    let mut p = ask.page.titled("rejections", "Rejections");
    p.live = !paging.is_further;
    Ok(rendered(&Rejections { p, query: ask.query, items: list.items, paging }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pasted_request_is_read_as_it_was_sent() {
        let pasted = "POST /in/acme/github HTTP/1.1\r\nX-Id:  7\r\nx-b: a:b\r\n\r\n{\r\n\r\n}";
        let expected = json!({ "method": "POST", "headers": [["X-Id", "7"], ["x-b", "a:b"]], "body": "{\n\n}" });
        assert_eq!(posed(pasted, false), expected);
        let whole = posed("GET https://a.example/x?y HTTP/1.1\nx: 1\n\nAA\n==", true);
        let expected = json!({
            "method": "GET", "url": "https://a.example/x?y", "headers": [["x", "1"]], "body_base64": "AA==",
        });
        assert_eq!(whole, expected);
        assert_eq!(posed("x: 1", false), json!({ "headers": [["x", "1"]], "body": "" }));
        assert_eq!(posed("", false), json!({ "headers": [], "body": "" }));
    }
}
