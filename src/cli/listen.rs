//! `hookgate listen`: a receiver that prints what it gets, verifies it, and answers as it is told to.

use super::keys::{Keys, now, seconds};
use super::output::plain;
use super::{Context, Exit, Failure, Format, Output};
use crate::clock::Timestamp;
use crate::duration;
use crate::http::{Answer, Budget, Connection, Handler, Limits, collect, serve};
use crate::verify::{Admission, RefusalCode, Rotation};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use hyper::Request;
use hyper::body::Incoming;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// No delivery's body is larger.
const BODY_BYTES_MAX: u64 = 25 << 20;
/// Over all requests under way.
const BODIES_BYTES_MAX: u64 = 128 << 20;
/// Ids whose place in the sequence is remembered.
const IDS_MAX: usize = 10_000;
const ID_BYTES_MAX: usize = 512;
/// Requests that are answered and not printed yet.
const QUEUE: usize = 1_024;
/// What is kept of a body until it is printed, as JSON.
const BODY_BYTES_KEPT: usize = 16 << 10;
/// What is shown of a body to people.
const BODY_BYTES_SHOWN: usize = 1 << 10;
const DELAY_MAX: Duration = Duration::from_secs(600);
const STATUSES_MAX: usize = 100;
/// How long requests under way are waited for at the end.
const GRACE: Duration = Duration::from_secs(5);

/// A receiver that prints what it gets, and verifies it
#[derive(clap::Args, Clone, Debug)]
pub struct Listen {
    /// The port; 0 takes a free one
    #[arg(long, default_value_t = 9000)]
    pub port: u16,
    /// The address
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub address: IpAddr,
    #[command(flatten)]
    pub keys: Keys,
    /// How far a timestamp may be off, instead of the scheme's own window: `300` or `5m`
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub tolerance: Option<u64>,
    /// The statuses to answer with, in turn for each id; the last one repeats
    #[arg(long = "status", value_name = "STATUS,…", value_delimiter = ',', default_value = "200",
          value_parser = clap::value_parser!(u16).range(200..=599))]
    pub statuses: Vec<u16>,
    /// How long to wait before the answer, e.g. 200ms
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = delay)]
    pub delay: Duration,
    /// The `retry-after` of every answer that is no 2xx, in seconds
    #[arg(long, value_name = "SECONDS")]
    pub retry_after: Option<u32>,
    /// The answer's body
    #[arg(long, value_name = "TEXT")]
    pub body: Option<String>,
    /// What is shown of each request [default: body on a terminal, else none]
    #[arg(long, value_name = "WHAT")]
    pub show: Option<Show>,
    /// End after so many requests
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub exit_after: Option<u64>,
}

/// What is shown below a request's line.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Show {
    None,
    Body,
    Headers,
    All,
}

fn delay(text: &str) -> Result<Duration, String> {
    let delay = duration::parse(text)?;
    if delay <= DELAY_MAX { Ok(delay) } else { Err("write 10m or less".to_owned()) }
}

/// Whether a request was what it claims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Check {
    Passed,
    Failed(RefusalCode),
    /// There is no secret, or no whole body.
    NotMade,
}

/// One request, as it is printed.
#[derive(Debug)]
struct Row {
    at: Timestamp,
    id: String,
    attempt: u64,
    event: String,
    event_type: String,
    check: Check,
    bytes: usize,
    headers: HeaderMap,
    /// As much of it as is kept for printing.
    body: Bytes,
    status: StatusCode,
    /// Why there was no body.
    fault: Option<String>,
}

struct Receiver {
    source: Option<Rotation>,
    statuses: Vec<StatusCode>,
    delay: Duration,
    retry_after: Option<u32>,
    body: Bytes,
    budget: Arc<Budget>,
    ids: Mutex<Ids>,
    rows: mpsc::Sender<Row>,
}

/// How often each id was seen. The oldest is forgotten when there are too many.
#[derive(Default)]
struct Ids {
    counts: HashMap<String, u64>,
    order: VecDeque<String>,
}

impl Ids {
    /// How often it was seen, this time included.
    fn see(&mut self, id: &str) -> u64 {
        if let Some(count) = self.counts.get_mut(id) {
            *count += 1;
            return *count;
        }
        if self.order.len() == IDS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.counts.remove(&oldest);
        }
        self.order.push_back(id.to_owned());
        self.counts.insert(id.to_owned(), 1);
        1
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> &'h str {
    let value = headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if value.len() <= ID_BYTES_MAX { value } else { "" }
}

impl Handler for Receiver {
    async fn handle(&self, request: Request<Incoming>, connection: &Connection) -> Answer {
        let at = now();
        let (head, body) = request.into_parts();
        let (body, fault) = match collect(body, BODY_BYTES_MAX, &self.budget, connection).await {
            Ok((body, _held)) => (body, None),
            Err(fault) => (Bytes::new(), Some(fault)),
        };
        let mut row = self.row(&head, &body, at);
        row.fault = fault.map(|fault| fault.to_string());
        let seen = self.ids.lock().unwrap_or_else(PoisonError::into_inner).see(&row.id);
        if row.attempt == 0 {
            row.attempt = seen;
        }
        let answer = match fault {
            Some(fault) => fault.problem().into_answer(),
            None => {
                tokio::time::sleep(self.delay).await;
                self.answer(seen)
            }
        };
        row.status = answer.status();
        if fault.is_some() {
            row.check = Check::NotMade;
        }
        // Nobody prints any more: the answer is due all the same.
        let _ = self.rows.send(row).await;
        answer
    }
}

impl Receiver {
    fn row(&self, head: &http::request::Parts, body: &Bytes, at: Timestamp) -> Row {
        let headers = &head.headers;
        let url = format!("http://{}{}", text(headers, "host"), head.uri);
        let request = crate::verify::Request { method: &head.method, url: &url, headers, body, received_at: at };
        let mut row = Row {
            at,
            id: text(headers, "webhook-id").to_owned(),
            attempt: text(headers, "hookgate-attempt").parse().unwrap_or(0),
            event: text(headers, "hookgate-event").to_owned(),
            event_type: String::new(),
            check: Check::NotMade,
            bytes: body.len(),
            headers: headers.clone(),
            // A copy: a slice would hold on to the whole.
            body: Bytes::copy_from_slice(&body[..body.len().min(BODY_BYTES_KEPT)]),
            status: StatusCode::OK,
            fault: None,
        };
        match self.source.as_ref().map(|source| source.admit(request)) {
            None => {}
            Some(Err(refusal)) => row.check = Check::Failed(refusal.code),
            Some(Ok(Admission::Challenge(_) | Admission::Confirm(_) | Admission::Adopt { .. })) => {
                row.check = Check::Passed;
            }
            Some(Ok(Admission::Event(event))) => {
                row.check = Check::Passed;
                row.event_type.clone_from(&event.event_type);
                if let Some(id) = event.provider_id.as_ref().filter(|_| row.id.is_empty()) {
                    row.id.clone_from(id);
                }
            }
        }
        let names = ["x-github-event", "hookgate-event-type"].map(|name| text(headers, name));
        if let Some(name) = names.into_iter().find(|name| row.event_type.is_empty() && !name.is_empty()) {
            name.clone_into(&mut row.event_type);
        }
        if row.event_type.is_empty() {
            row.event_type = type_of(body);
        }
        row
    }

    fn answer(&self, seen: u64) -> Answer {
        let turn = usize::try_from(seen.saturating_sub(1)).unwrap_or(usize::MAX);
        let status = self.statuses.get(turn).or(self.statuses.last()).copied().unwrap_or_default();
        let mut answer = Answer::new(self.body.clone().into());
        *answer.status_mut() = status;
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        if let Some(seconds) = self.retry_after.filter(|_| !status.is_success()) {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        answer
    }
}

/// What a JSON body calls its type: a help for the eye, read also when nothing is verified.
fn type_of(body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Typed {
        #[serde(rename = "type")]
        name: String,
    }
    let name = serde_json::from_slice::<Typed>(body).map(|typed| typed.name).unwrap_or_default();
    if name.len() <= ID_BYTES_MAX { name } else { String::new() }
}

pub(super) async fn run(args: &Listen, context: &mut Context<'_>) -> Result<Exit, Failure> {
    if args.statuses.len() > STATUSES_MAX {
        return Err(Failure::usage(format!("more than {STATUSES_MAX} statuses"), "write fewer: the last one repeats"));
    }
    let source = match args.keys.are_absent() {
        true => None,
        false => Some(args.keys.ready(args.tolerance, context)?.source),
    };
    let listener = TcpListener::bind(SocketAddr::new(args.address, args.port)).await.map_err(|e| {
        Failure::new(Exit::Failed, format!("cannot listen on {}:{}: {e}", args.address, args.port))
            .with_remedy("choose another --port; 0 takes a free one")
    })?;
    let checks = source.as_ref().map_or("nothing is verified, since there is no --secret".to_owned(), |source| {
        format!("verified by {}", source.whole().scheme())
    });
    context.output.say(&format!("listening on http://{} ({checks}); Ctrl-C ends it", listener.local_addr()?));
    let (rows, printed) = mpsc::channel(QUEUE);
    let statuses = args.statuses.iter().filter_map(|status| StatusCode::from_u16(*status).ok()).collect();
    let receiver = Receiver {
        source,
        statuses,
        delay: args.delay,
        retry_after: args.retry_after,
        body: args.body.clone().unwrap_or_default().into(),
        budget: Budget::new(BODIES_BYTES_MAX),
        ids: Mutex::default(),
        rows,
    };
    let stop = CancellationToken::new();
    let serving = tokio::spawn(serve(listener, Arc::new(receiver), Limits::default(), stop.clone()));
    let mut tally = Tally::default();
    let ended = print(printed, &mut tally, args, &stop, &mut context.output).await;
    serving.abort();
    context.output.say(&tally.text());
    ended.map(|()| Exit::Done)
}

/// Prints until enough was printed or somebody stops it, and then what is still under way.
async fn print(
    mut rows: mpsc::Receiver<Row>,
    tally: &mut Tally,
    args: &Listen,
    stop: &CancellationToken,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let by_default = if output.streams.out_is_terminal { Show::Body } else { Show::None };
    let shown = args.show.unwrap_or(by_default);
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    while args.exit_after.is_none_or(|count| tally.requests < count) {
        tokio::select! {
            row = rows.recv() => match row {
                Some(row) => show(&row, shown, tally, output)?,
                None => return Ok(()),
            },
            stopped = &mut interrupted => {
                stopped?;
                break;
            }
        }
    }
    stop.cancel();
    // The channel ends when the last request is answered.
    let rest = async {
        while let Some(row) = rows.recv().await {
            show(&row, shown, tally, output)?;
        }
        Ok(())
    };
    tokio::time::timeout(GRACE, rest).await.unwrap_or(Ok(()))
}

fn show(row: &Row, shown: Show, tally: &mut Tally, output: &mut Output<'_>) -> Result<(), Failure> {
    tally.add(row);
    match output.format {
        Format::Json => output.line(&row.to_json().to_string())?,
        Format::Quiet => output.line(&plain(&row.id))?,
        Format::Table => {
            output.line(&row.line())?;
            row.more(shown).iter().try_for_each(|line| output.line(&format!("    {line}")))?;
        }
    }
    Ok(output.streams.out.flush()?)
}

impl Row {
    fn to_json(&self) -> Value {
        let (verified, reason) = match self.check {
            Check::Passed => (Some(true), None),
            Check::Failed(code) => (Some(false), Some(code)),
            Check::NotMade => (None, None),
        };
        let headers: Vec<(&str, Cow<'_, str>)> = self
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes())))
            .collect();
        json!({
            "at": self.at,
            "id": self.id,
            "attempt": self.attempt,
            "event": self.event,
            "event_type": self.event_type,
            "verified": verified,
            "reason": reason,
            "bytes": self.bytes,
            "headers": headers,
            "body": String::from_utf8_lossy(&self.body),
            "body_truncated": self.body.len() < self.bytes,
            "status": self.status.as_u16(),
            "error": self.fault,
        })
    }

    /// The headers and the body, as text.
    fn more(&self, shown: Show) -> Vec<String> {
        let mut lines = Vec::new();
        if matches!(shown, Show::Headers | Show::All) {
            let line = |(name, value): (&http::HeaderName, &HeaderValue)| {
                format!("{name}: {}", plain(&String::from_utf8_lossy(value.as_bytes())))
            };
            lines.extend(self.headers.iter().map(line));
        }
        if matches!(shown, Show::Body | Show::All) {
            let body = &self.body[..self.body.len().min(BODY_BYTES_SHOWN)];
            lines.extend(String::from_utf8_lossy(body).lines().map(plain));
            if body.len() < self.bytes {
                lines.push(format!("… {} bytes more", self.bytes - body.len()));
            }
        }
        lines
    }

    fn line(&self) -> String {
        let verified = match (&self.fault, self.check) {
            (Some(fault), _) => fault.clone(),
            (None, Check::Passed) => "verified".to_owned(),
            (None, Check::Failed(code)) => format!("NOT verified ({code})"),
            (None, Check::NotMade) => "not checked".to_owned(),
        };
        let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { plain(text) };
        format!(
            "{}  {}  #{}  {}  {verified}  {} bytes  → {}",
            self.at.to_rfc3339(),
            or_dash(&self.id),
            self.attempt,
            or_dash(&self.event_type),
            self.bytes,
            self.status.as_u16(),
        )
    }
}

/// All requests in a line.
#[derive(Default)]
struct Tally {
    requests: u64,
    verified: u64,
    failed: u64,
    statuses: BTreeMap<u16, u64>,
}

impl Tally {
    fn add(&mut self, row: &Row) {
        self.requests += 1;
        match row.check {
            Check::Passed => self.verified += 1,
            Check::Failed(_) => self.failed += 1,
            Check::NotMade => {}
        }
        *self.statuses.entry(row.status.as_u16()).or_default() += 1;
    }

    fn text(&self) -> String {
        let statuses: Vec<String> = self.statuses.iter().map(|(status, count)| format!("{status} × {count}")).collect();
        let answered = if statuses.is_empty() { String::new() } else { format!("; answered {}", statuses.join(", ")) };
        format!("{} requests: {} verified, {} not verified{answered}", self.requests, self.verified, self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_forgotten_when_there_are_too_many() {
        let mut ids = Ids::default();
        assert_eq!((ids.see("a"), ids.see("a"), ids.see("b")), (1, 2, 1));
        for i in 0..IDS_MAX - 1 {
            ids.see(&i.to_string());
        }
        assert_eq!((ids.counts.len(), ids.order.len()), (IDS_MAX, IDS_MAX));
        assert_eq!((ids.see("b"), ids.see("a")), (2, 1), "the oldest is gone, the next is not");
    }

    #[test]
    fn types_are_read_within_bounds() {
        for (body, name) in [("{\"type\":\"push\",\"a\":[]}", "push"), ("{\"type\":1}", ""), ("[]", ""), ("", "")] {
            assert_eq!(type_of(body.as_bytes()), name, "{body}");
        }
        assert_eq!(type_of(format!("{{\"type\":\"{}\"}}", "x".repeat(513)).as_bytes()), "");
    }
}
