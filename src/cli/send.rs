//! `hookgate send`: signs a body and posts it, once or many times.

use super::client::http;
use super::event::hint;
use super::keys::Ready;
use super::output::plain;
use super::sign::{Signature, Signed, Signing, destination};
use super::{Context, Exit, Failure, Format};
use crate::verify::cases::{HEADERS_MAX, add_header};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use reqwest::{Client, Url};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// More of an answer is not read.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// More of an answer is not shown beside others.
const ANSWER_CHARS_SHOWN: usize = 120;
/// What belongs to the exchange, and would break it.
const FRAMING: [HeaderName; 4] =
    [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION, header::UPGRADE];

/// Sign a body and post it
#[derive(clap::Args, Clone, Debug)]
pub struct Send {
    /// Where to, e.g. http://127.0.0.1:8080/in/acme/github
    #[arg(value_name = "URL")]
    pub to: String,
    #[command(flatten)]
    pub signing: Signing,
    /// Another header, as `Name: value`, instead of any that the scheme sets; may be repeated
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    pub headers: Vec<String>,
    /// How many times, each with an id of its own unless one is given
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub count: u32,
    /// How many at a time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub concurrency: u16,
}

/// What became of one request.
struct Shot {
    id: String,
    took: Duration,
    outcome: Result<Answer, Unanswered>,
}

struct Answer {
    status: StatusCode,
    body: Bytes,
    /// There was more.
    cut: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
enum Unanswered {
    #[error("no connection could be made")]
    Unconnected,
    #[error("it did not answer in time")]
    TimedOut,
    #[error("the connection broke before the answer was there")]
    Broken,
}

impl From<reqwest::Error> for Unanswered {
    fn from(e: reqwest::Error) -> Self {
        match (e.is_connect(), e.is_timeout()) {
            (true, _) => Unanswered::Unconnected,
            (false, true) => Unanswered::TimedOut,
            (false, false) => Unanswered::Broken,
        }
    }
}

pub(super) async fn run(args: &Send, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let url = destination(&args.to)?;
    let own = own_headers(&args.headers)?;
    let Ready { source, .. } = args.signing.keys.ready_to_sign(context)?;
    let body = args.signing.payload.read(context)?;
    let content_type = header_value(&args.signing.content_type, "--content-type")?;
    let client = http()?;
    let signature = Signature::new(&args.signing, source, url.to_string());
    let one = async || -> Result<Shot, Failure> {
        let signed = signature.sign(&body)?;
        let headers = headers(&signed, &content_type, &own)?;
        Ok(shoot(&client, url.clone(), headers, body.clone(), signed.id).await)
    };
    if args.count == 1 {
        let shot = one().await?;
        let exit = show_one(&url, &shot, context)?;
        tell_if_untaken(&url, &shot, context).await;
        tell_if_refused(&url, &shot, args, context);
        return Ok(exit);
    }
    let mut shots = stream::iter(0..args.count).map(|_| one()).buffer_unordered(usize::from(args.concurrency));
    let mut summary = Summary::default();
    while let Some(shot) = shots.next().await {
        let shot = shot?;
        summary.add(&shot);
        show_line(&shot, context)?;
    }
    context.output.say(&summary.text());
    Ok(summary.exit())
}

fn own_headers(written: &[String]) -> Result<Vec<(HeaderName, HeaderValue)>, Failure> {
    let mut all = Vec::new();
    for text in written {
        let wrong = || Failure::usage(format!("`{}` is not a header", plain(text)), "write -H 'Name: value'");
        let (name, value) = text.split_once(':').ok_or_else(wrong)?;
        let name: HeaderName = name.trim().parse().map_err(|_| wrong())?;
        if FRAMING.contains(&name) {
            return Err(Failure::usage(format!("`{name}` belongs to the connection"), "leave it out"));
        }
        all.push((name, value.trim().parse().map_err(|_| wrong())?));
    }
    Ok(all)
}

fn header_value(text: &str, flag: &str) -> Result<HeaderValue, Failure> {
    let wrong =
        |_| Failure::usage(format!("{flag}: `{}` cannot be sent in a header", plain(text)), "use visible ASCII");
    text.parse().map_err(wrong)
}

/// The content type, then the scheme's, then the caller's own, which win: that is how a forgery is made.
fn headers(
    signed: &Signed,
    content_type: &HeaderValue,
    own: &[(HeaderName, HeaderValue)],
) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, content_type.clone());
    for (name, value) in &signed.headers {
        let name: HeaderName =
            name.parse().map_err(|_| Failure::new(Exit::Failed, format!("`{name}` is not a header's name")))?;
        let value = header_value(value, name.as_str())?;
        headers.insert(name, value);
    }
    for (name, _) in own {
        headers.remove(name);
    }
    for (name, value) in own {
        let told = |_| Failure::usage(format!("more than {HEADERS_MAX} headers"), "leave some out");
        add_header(&mut headers, name.clone(), value.clone()).map_err(told)?;
    }
    Ok(headers)
}

async fn shoot(client: &Client, url: Url, headers: HeaderMap, body: Bytes, id: String) -> Shot {
    let began = Instant::now();
    let outcome = exchange(client, url, headers, body).await.map_err(Unanswered::from);
    Shot { id, took: began.elapsed(), outcome }
}

async fn exchange(client: &Client, url: Url, headers: HeaderMap, body: Bytes) -> Result<Answer, reqwest::Error> {
    let mut response = client.post(url).headers(headers).body(body).send().await?;
    let status = response.status();
    let mut body = BytesMut::new();
    let mut cut = false;
    while let Some(chunk) = response.chunk().await? {
        let room = ANSWER_BYTES_MAX - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() > room {
            cut = true;
            break;
        }
    }
    Ok(Answer { status, body: body.freeze(), cut })
}

impl Shot {
    fn to_json(&self) -> Value {
        let ms = u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX);
        match &self.outcome {
            Ok(answer) => {
                let body = String::from_utf8_lossy(&answer.body);
                json!({ "id": self.id, "status": answer.status.as_u16(), "ms": ms, "body": body, "cut": answer.cut })
            }
            Err(why) => json!({ "id": self.id, "status": null, "ms": ms, "error": why.to_string() }),
        }
    }
}

fn show_one(url: &Url, shot: &Shot, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let answer = match &shot.outcome {
        Ok(answer) => answer,
        Err(why) => {
            return Err(Failure::new(Exit::Unreachable, format!("{url}: {why}"))
                .with_remedy("does something listen there? Try `hookgate listen`"));
        }
    };
    let output = &mut context.output;
    match output.format {
        Format::Json => output.document(&shot.to_json())?,
        Format::Quiet => output.line(&plain(&shot.id))?,
        Format::Table => {
            output.line(&answer.status.to_string())?;
            for line in String::from_utf8_lossy(&answer.body).lines() {
                output.line(&plain(line))?;
            }
            if answer.cut {
                output.say("… the answer is larger than 1 MiB: the rest is not shown");
            }
            output.say(&format!("{}: {} in {} ms", plain(&shot.id), answer.status.as_u16(), shot.took.as_millis()));
        }
    }
    Ok(if answer.status.is_success() { Exit::Done } else { Exit::Failed })
}

/// A gateway on this machine, or one that was named, knows whether an endpoint takes what it accepted: people are told
/// if none does. To the sender alone it would not say.
async fn tell_if_untaken(url: &Url, shot: &Shot, context: &mut Context<'_>) {
    if context.output.format != Format::Table {
        return;
    }
    let Ok(Answer { status: StatusCode::OK, body, .. }) = &shot.outcome else { return };
    let accepted: Value = serde_json::from_slice(body).unwrap_or_default();
    let inlet = url.path().rsplit_once("/in/").and_then(|(_, inlet)| inlet.split_once('/'));
    let (Some(event), Some((tenant, _))) = (accepted["event"].as_str(), inlet) else { return };
    if let Ok(client) = super::Client::new(context)
        && let Some(event) = client.glance(tenant, event).await
    {
        hint(&mut context.output, &event);
    }
}

/// Where to look, when a gateway did not believe the signature.
fn tell_if_refused(url: &Url, shot: &Shot, args: &Send, context: &mut Context<'_>) {
    let Ok(Answer { status: StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, .. }) = &shot.outcome else { return };
    let inlet = url.path().rsplit_once("/in/").and_then(|(_, inlet)| inlet.split_once('/'));
    let Some((tenant, source)) = inlet.map(|(tenant, source)| (plain(tenant), plain(source))) else { return };
    let own = match &args.signing.keys.source {
        Some(named) if *named == format!("{tenant}/{source}") => String::new(),
        _ => format!("; --source {tenant}/{source} signs with what the configuration has for it"),
    };
    context.output.say(&format!(
        "help: `hookgate source rejections --source {tenant}/{source}` has what was refused{own}; `hookgate verify` takes a \
         request step by step"
    ));
}

fn show_line(shot: &Shot, context: &mut Context<'_>) -> Result<(), Failure> {
    let output = &mut context.output;
    match output.format {
        Format::Json => output.line(&shot.to_json().to_string()),
        Format::Quiet => output.line(&plain(&shot.id)),
        Format::Table => {
            let (status, said) = match &shot.outcome {
                Ok(answer) => {
                    let body: String = String::from_utf8_lossy(&answer.body).chars().take(ANSWER_CHARS_SHOWN).collect();
                    (answer.status.as_str().to_owned(), body)
                }
                Err(why) => ("---".to_owned(), why.to_string()),
            };
            output.line(&format!("{status}  {:>5} ms  {}  {}", shot.took.as_millis(), plain(&shot.id), plain(&said)))
        }
    }
}

/// Many requests in a few figures.
#[derive(Default)]
struct Summary {
    statuses: BTreeMap<u16, usize>,
    succeeded: usize,
    unanswered: usize,
    took: Vec<Duration>,
}

impl Summary {
    fn add(&mut self, shot: &Shot) {
        match &shot.outcome {
            Ok(answer) => {
                *self.statuses.entry(answer.status.as_u16()).or_default() += 1;
                self.succeeded += usize::from(answer.status.is_success());
                self.took.push(shot.took);
            }
            Err(_) => self.unanswered += 1,
        }
    }

    fn sent(&self) -> usize {
        self.took.len() + self.unanswered
    }

    fn text(&self) -> String {
        let mut took = self.took.clone();
        took.sort_unstable();
        let at = |percent: usize| took.get(took.len().saturating_sub(1) * percent / 100).map_or(0, Duration::as_millis);
        let statuses = self.statuses.iter().map(|(status, count)| format!("{status} × {count}"));
        let unanswered = (self.unanswered > 0).then(|| format!("unanswered × {}", self.unanswered));
        let parts: Vec<String> = statuses.chain(unanswered).collect();
        format!("{} sent: {}; p50 {} ms, p99 {} ms", self.sent(), parts.join(", "), at(50), at(99))
    }

    fn exit(&self) -> Exit {
        match (self.succeeded, self.sent()) {
            (done, all) if done == all => Exit::Done,
            (0, all) if self.unanswered == all => Exit::Unreachable,
            (0, _) => Exit::Failed,
            (_, _) => Exit::Partly,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shot(status: Option<u16>) -> Shot {
        let answer = |status| Answer { status: StatusCode::from_u16(status).unwrap(), body: Bytes::new(), cut: false };
        Shot {
            id: String::new(),
            took: Duration::from_millis(5),
            outcome: status.map(answer).ok_or(Unanswered::Unconnected),
        }
    }

    #[test]
    fn many_requests_have_one_exit() {
        for (statuses, exit) in [
            (&[Some(200), Some(204)][..], Exit::Done),
            (&[Some(200), Some(500)], Exit::Partly),
            (&[Some(200), None], Exit::Partly),
            (&[Some(401), None], Exit::Failed),
            (&[Some(503), Some(302)], Exit::Failed),
            (&[None, None], Exit::Unreachable),
        ] {
            let mut summary = Summary::default();
            statuses.iter().for_each(|status| summary.add(&shot(*status)));
            assert_eq!(summary.exit(), exit, "{statuses:?}");
        }
        let mut summary = Summary::default();
        [Some(200), None, Some(200), Some(503)].into_iter().for_each(|status| summary.add(&shot(status)));
        assert_eq!(summary.text(), "4 sent: 200 × 2, 503 × 1, unanswered × 1; p50 5 ms, p99 5 ms");
    }

    #[test]
    fn own_headers_win_and_framing_is_refused() {
        let signed = Signed {
            id: "i".into(),
            at: crate::clock::Timestamp::ZERO,
            headers: vec![("x-sig".into(), "real".into()), ("x-id".into(), "i".into())],
        };
        let own = own_headers(&["X-Sig: forged".into(), "X-Sig:again".into(), "Content-Type: a/b".into()]).unwrap();
        let all = headers(&signed, &HeaderValue::from_static("application/json"), &own).unwrap();
        assert_eq!(all.get_all("x-sig").iter().collect::<Vec<_>>(), ["forged", "again"]);
        assert_eq!((all["content-type"].as_bytes(), all["x-id"].as_bytes()), (&b"a/b"[..], &b"i"[..]));
        for bad in ["no colon", ": x", "a b: c", "a: \u{7}", "Content-Length: 5", "transfer-encoding: chunked"] {
            assert_eq!(own_headers(&[bad.to_owned()]).unwrap_err().exit, Exit::Usage, "{bad}");
        }
    }
}
