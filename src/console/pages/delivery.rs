//! One delivery: each attempt drawn to scale, and why the next one is when it is.

use super::{Ask, Shown, segment};
use crate::console::form::Form;
use crate::console::html;
use crate::console::model::{Attempt, Delivery, Endpoint, List, Replayed};
use crate::console::page::{self, Page, rendered, to};
use crate::console::payload::{DiffLine, Payload, difference};
use crate::console::session::Session;
use crate::console::show::{self, Told};
use crate::console::waterfall::{WIDTH, Waterfall};
use crate::delivery::Backoff;
use askama::Template;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use std::time::Duration;

/// One attempt with what was decided of it.
struct Card {
    attempt: Attempt,
    /// In a sentence: what the host did, and why.
    did: String,
    request: Vec<(String, String)>,
    /// What a transform made of the payload; `None`: the payload went as it came, or nobody knows.
    sent: Option<Payload>,
    diff: Option<Vec<DiffLine>>,
    answer: Option<Payload>,
    curl: String,
    /// Of the attempts there are.
    is_last: bool,
}

impl Card {
    fn sayer(&self) -> &'static str {
        match self.attempt.decided_by.as_deref() {
            Some("plugin") => "the plugin",
            Some("builtin") => "the built-in rules",
            Some("consumer") => "the consumer",
            Some(_) => "the host",
            None => "nobody yet",
        }
    }
}

#[derive(Template)]
#[template(path = "delivery.html")]
struct Single {
    p: Page,
    d: Delivery,
    cards: Vec<Card>,
    waterfall: Waterfall,
    width: u32,
    payload: Result<Payload, Told>,
    plugin: Option<String>,
    cli: String,
    curl: String,
    refused: Option<Told>,
    /// A name for the wish, so that it is done once.
    wish: String,
}

impl Single {
    fn may_redrive(&self) -> bool {
        self.d.state == "dead"
            || (self.d.state == "resolved" && self.d.note.as_deref().is_some_and(|n| n.starts_with("not_sent")))
    }
}

/// Which count of its generation the attempt is: those that were handed back unsent do not count.
fn step(attempts: &[Attempt], attempt: &Attempt) -> usize {
    let counts = |other: &&Attempt| {
        other.generation == attempt.generation
            && other.number <= attempt.number
            && other.disposition.as_deref() != Some("released")
    };
    attempts.iter().filter(counts).count()
}

/// The endpoint's waits, as the API shows them.
fn backoff(retry: &Value) -> Option<Backoff> {
    let span = |value: &Value| crate::duration::parse(value.as_str()?).ok();
    match retry["delays"].as_array() {
        Some(delays) => delays.iter().map(span).collect::<Option<_>>().map(Backoff::Ladder),
        None => Some(Backoff::Exponential {
            base: span(&retry["base"])?,
            factor: retry["factor"].as_f64()?,
            cap: span(&retry["cap"])?,
        }),
    }
}

fn policy(retry: &Value, step: usize) -> Option<String> {
    let wait = backoff(retry)?.wait_after(u32::try_from(step).ok()?);
    let jitter = match retry["jitter"].as_str()? {
        "equal" => ", of which half is by chance",
        "full" => ", anywhere up to that by chance",
        _ => "",
    };
    Some(format!("step {step} of the endpoint's policy of today is {}{jitter}", show::span(wait)))
}

/// What the host did of an outcome, and why then.
fn told(attempts: &[Attempt], attempt: &Attempt, retry: Option<&Value>) -> String {
    let reason = attempt.reason.as_deref().unwrap_or("no reason");
    let step = step(attempts, attempt);
    let max = retry.and_then(|retry| retry["max_attempts"].as_u64());
    match (attempt.disposition.as_deref(), attempt.next_at) {
        (Some("retry_at"), Some(next)) => {
            let ended = attempt.started_at.plus(Duration::from_millis(attempt.duration_ms.unwrap_or(0)));
            let mut text = format!("tried again after {}, at {}", show::span(next.since(ended)), next.to_rfc3339());
            let asked =
                attempt.response_headers.iter().flatten().find(|(name, _)| name.eq_ignore_ascii_case("retry-after"));
            if let Some((_, value)) = asked.filter(|_| matches!(attempt.status, Some(429 | 503))) {
                text.push_str(&format!("; the receiver asked for that by Retry-After: {value}"));
            } else if let Some(policy) = retry.and_then(|retry| policy(retry, step)) {
                text.push_str(&format!("; {policy}"));
            }
            if let Some(wished) = attempt.clamped_from_ms {
                text.push_str(&format!("; {} was wished for, and cut", show::span(Duration::from_millis(wished))));
            }
            text
        }
        (Some("dead"), _) => match (attempt.verdict.as_deref(), attempt.decided_by.as_deref()) {
            (Some("terminal"), _) => format!("a dead letter at once: terminal ({reason}), which no retry mends"),
            (Some("retryable"), _) => {
                let budget = max.map_or_else(String::new, |max| format!(" of {max}"));
                format!("a dead letter: retryable ({reason}), but its budget is spent with attempt {step}{budget}")
            }
            (_, _) => format!("a dead letter: {reason}"),
        },
        (Some("delivered"), _) => "delivered, which is its end".to_owned(),
        (Some("skipped"), _) => format!("skipped: the plugin said that this endpoint does not get it ({reason})"),
        (Some("expired"), _) => "expired: it was of no use any more".to_owned(),
        (Some("released"), _) => format!("handed back before a byte was sent, and not counted ({reason})"),
        (Some(other), _) => other.to_owned(),
        (None, _) => "under way".to_owned(),
    }
}

fn response(attempt: &Attempt) -> Option<Payload> {
    match (&attempt.response_body, &attempt.response_body_base64) {
        (Some(text), _) => Some(Payload::of(text.as_bytes())),
        (None, Some(base64)) => BASE64_STANDARD.decode(base64).ok().map(|bytes| Payload::of(&bytes)),
        (None, None) => None,
    }
}

/// What a fixture says that the plugin's transform made.
struct Made {
    headers: Vec<(String, String)>,
    body: Option<Vec<u8>>,
}

fn made(replayed: &Replayed) -> Option<Made> {
    let send = replayed.calls.iter().find_map(|call| call["expect"]["send"].as_object())?;
    let mut headers = Vec::new();
    for (name, value) in send.get("headers").and_then(Value::as_object).into_iter().flatten() {
        match value {
            Value::Array(all) => {
                headers.extend(all.iter().filter_map(Value::as_str).map(|value| (name.clone(), value.to_owned())));
            }
            other => headers.push((name.clone(), other.as_str().unwrap_or_default().to_owned())),
        }
    }
    let text = |field: &str| send.get(field).and_then(Value::as_str);
    let body = match (text("body"), text("body_base64")) {
        (Some(text), _) => Some(text.as_bytes().to_vec()),
        (None, Some(base64)) => BASE64_STANDARD.decode(base64).ok(),
        (None, None) => None,
    };
    Some(Made { headers, body })
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// The request as a command, with what is secret left to be filled in.
fn as_curl(url: &str, method: &str, headers: &[(String, String)], delivery: &str) -> String {
    let mut text = format!("curl -sS -i -X {} {}", quoted(method), quoted(url));
    for (name, value) in headers {
        let value = if crate::secret::names_a_secret(name) { "…" } else { value.as_str() };
        text.push_str(&format!(" \\\n  -H {}", quoted(&format!("{name}: {value}"))));
    }
    text.push_str(&format!(" \\\n  --data-binary @{delivery}"));
    text
}

/// Where an attempt went: the endpoint's URL, or the path that the plugin chose below it.
fn target(endpoint: Option<&Endpoint>, attempt: &Attempt) -> String {
    let url = endpoint.and_then(|endpoint| endpoint.url.clone()).unwrap_or_else(|| "https://…".to_owned());
    match attempt.request_path.as_deref() {
        Some(path) => match url::Url::parse(&url).ok().and_then(|base| base.join(path).ok()) {
            Some(whole) => whole.to_string(),
            None => format!("{url} {path}"),
        },
        None => url,
    }
}

async fn replayed(ask: &Ask<'_>, plugin: &str, id: &str) -> Result<List<Replayed>, Told> {
    let path = format!("/plugins/{}/attempts?delivery={}&limit=50", segment(plugin), segment(id));
    ask.api.get(&ask.v1(&path)).await
}

pub(super) async fn show(ask: Ask<'_>, id: &str, refused: Option<Told>) -> Shown {
    let d: Delivery = ask.api.get(&ask.v1(&format!("/deliveries/{id}"))).await?;
    let endpoint: Option<Endpoint> = ask.api.get(&ask.v1(&format!("/endpoints/{}", segment(&d.endpoint)))).await.ok();
    let retry = endpoint.as_ref().and_then(|endpoint| endpoint.settings.get("retry"));
    let plugin = endpoint.as_ref().and_then(|endpoint| endpoint.plugin.clone());
    let calls = match &plugin {
        Some(plugin) => replayed(&ask, plugin, id).await.map(|list| list.items).unwrap_or_default(),
        None => Vec::new(),
    };
    let payload = ask.api.bytes(&ask.v1(&format!("/deliveries/{id}/body"))).await.map(|(bytes, _)| Payload::of(&bytes));
    let waterfall = Waterfall::of(&d, ask.page.now);
    let mut d = d;
    let attempts = std::mem::take(&mut d.attempts);
    let dids: Vec<String> = attempts.iter().map(|attempt| told(&attempts, attempt, retry)).collect();
    let last = attempts.last().map_or(0, |attempt| attempt.number);
    let cards = attempts.into_iter().zip(dids).map(|(attempt, did)| {
        let made = calls.iter().find(|call| call.number == attempt.number).and_then(made);
        let mut request: Vec<(String, String)> = [
            ("webhook-id", d.id.clone()),
            ("webhook-timestamp", (attempt.started_at.as_millis() / 1_000).to_string()),
            ("webhook-signature", "…".to_owned()),
            ("idempotency-key", d.idempotency_key.clone()),
            ("hookgate-event", d.event.clone()),
            ("hookgate-attempt", attempt.number.to_string()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        let sent = match made {
            Some(made) => {
                request.extend(made.headers);
                made.body.map(|body| Payload::of(&body))
            }
            None => None,
        };
        // Of another revision, the payload of today is not what was stored then.
        let stored = payload.as_ref().ok().filter(|_| attempt.revision == d.revision);
        let diff = match (stored.and_then(Payload::best), sent.as_ref().and_then(Payload::best)) {
            (Some(stored), Some(sent)) => difference(stored, sent),
            (_, _) => None,
        };
        let method = attempt.request_method.as_deref().unwrap_or("POST");
        let curl = as_curl(&target(endpoint.as_ref(), &attempt), method, &request, &d.id);
        let is_last = attempt.number == last;
        Card { answer: response(&attempt), did, request, sent, diff, curl, attempt, is_last }
    });
    let cards = cards.collect();
    let cli = format!("hookgate delivery get {id} --tenant {}", ask.tenant);
    let url = format!("$HOOKGATE_URL/v1/tenants/{}/deliveries/{id}", ask.tenant);
    let curl = format!("curl -sS -H \"authorization: Bearer $HOOKGATE_TOKEN\" \"{url}\"");
    let wish = ask.console.fresh_name();
    let status = refused.as_ref().map(Told::status);
    let mut p = ask.page.titled("deliveries", format!("Delivery of {} to {}", d.event_type, d.endpoint));
    p.live = matches!(d.state.as_str(), "pending" | "in_flight") && refused.is_none();
    let mut answer =
        rendered(&Single { p, d, cards, waterfall, width: WIDTH, payload, plugin, cli, curl, refused, wish });
    if let Some(status) = status {
        *answer.status_mut() = status;
    }
    Ok(answer)
}

pub(super) async fn change(ask: Ask<'_>, session: &Session, id: &str, verb: &str, mut form: Form) -> Shown {
    let note = form.text("note");
    let path = ask.v1(&format!("/deliveries/{id}/{verb}"));
    let wish = form.text("wish").unwrap_or_else(|| ask.console.fresh_name());
    let done: Result<Delivery, Told> = match verb {
        "redrive" => ask.api.post_once(&path, &json!({ "note": note }), &wish).await,
        "resolve" => {
            let how = form.text("as").unwrap_or_default();
            ask.api.post(&path, &json!({ "as": how, "note": note })).await
        }
        _ => ask.api.post(&path, &json!({})).await,
    };
    match done {
        Ok(d) => {
            session.say(match verb {
                "redrive" => format!("Redriven: generation {} is due now.", d.generation),
                "resolve" => "Resolved: it is no dead letter any more.".to_owned(),
                _ => "Cancelled: nothing more is sent.".to_owned(),
            });
            Ok(to(&ask.page.at(&format!("/deliveries/{id}"))))
        }
        Err(told) if told.status == 404 => Err(told),
        Err(told) => show(ask, id, Some(told)).await,
    }
}

/// The calls of an attempt as files for `hookgate plugin test`: one, or an array of them.
pub(super) async fn fixture(ask: Ask<'_>, id: &str) -> Shown {
    let d: Delivery = ask.api.get(&ask.v1(&format!("/deliveries/{id}"))).await?;
    let endpoint: Endpoint = ask.api.get(&ask.v1(&format!("/endpoints/{}", segment(&d.endpoint)))).await?;
    let plugin = endpoint.plugin.ok_or_else(Told::not_found)?;
    let number: u32 = ask.query.look("attempt").parse().map_err(|_| Told::not_found())?;
    let all = replayed(&ask, &plugin, id).await?;
    let calls = all.items.into_iter().find(|call| call.number == number).map(|call| call.calls).unwrap_or_default();
    let text = match calls.as_slice() {
        [] => return Ok(page::plain(StatusCode::NOT_FOUND, "No call of this attempt was kept whole.")),
        [one] => serde_json::to_string_pretty(one),
        all => serde_json::to_string_pretty(all),
    };
    let mut answer = html(text.unwrap_or_default());
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Ok(name) = format!("attachment; filename=\"{}-{number}.json\"", d.id).parse() {
        headers.insert(header::CONTENT_DISPOSITION, name);
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(fields: &Value) -> Attempt {
        let mut all = json!({
            "id": "att", "number": 1, "generation": 1, "revision": 0, "started_at": "2026-01-01T00:00:00.000Z",
            "duration_ms": 500, "outcome": "answered", "status": 503, "verdict": "retryable", "reason": "http_503",
            "decided_by": "builtin", "disposition": "retry_at", "next_at": "2026-01-01T00:00:05.500Z", "ambiguous": false,
        });
        for (name, value) in fields.as_object().unwrap() {
            all[name] = value.clone();
        }
        serde_json::from_value(all).unwrap()
    }

    fn said(fields: &Value) -> String {
        let retry = json!({ "max_attempts": 3, "jitter": "equal", "delays": ["5s", "30s"] });
        let all = [attempt(&json!({ "disposition": "released" })), attempt(fields)];
        told(&all, &all[1], Some(&retry))
    }

    #[test]
    fn why_it_is_tried_again_then() {
        assert_eq!(
            said(&json!({ "number": 2 })),
            "tried again after 5 s, at 2026-01-01T00:00:05.500Z; step 1 of the endpoint's policy of today is 5 s, of which \
             half is by chance"
        );
        let asked = said(&json!({ "number": 2, "response_headers": [["Retry-After", "7"]] }));
        assert!(asked.ends_with("; the receiver asked for that by Retry-After: 7"), "{asked}");
        let cut = said(&json!({ "number": 2, "clamped_from_ms": 864_000_000 }));
        assert!(cut.ends_with("; 10 d was wished for, and cut"), "{cut}");
        let dead = |verdict| said(&json!({ "number": 2, "disposition": "dead", "next_at": null, "verdict": verdict }));
        assert!(dead("terminal").contains("terminal (http_503), which no retry mends"));
        assert!(dead("retryable").ends_with("its budget is spent with attempt 1 of 3"));
    }

    #[test]
    fn a_command_has_no_secret_and_ends_no_quote() {
        let headers = [("webhook-signature".to_owned(), "v1,s3cret".to_owned()), ("x".to_owned(), "it's".to_owned())];
        let text = as_curl("https://a.example/'; rm -rf /", "POST", &headers, "dlv_1");
        assert!(!text.contains("s3cret"));
        assert!(text.contains("'https://a.example/'\\''; rm -rf /'") && text.contains("'x: it'\\''s'"), "{text}");
    }
}
