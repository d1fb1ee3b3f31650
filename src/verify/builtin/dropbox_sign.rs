//! HMAC-SHA256 over two fields of a JSON text that stands in a part of a multipart body.

use super::read::malformed;
use super::time::{Told, Window};
use super::{About, BodyCover, Builtin, Entry, Macs, Proof, TEXT_KEY};
use crate::verify::compile::Make;
use crate::verify::key::{Algorithm, Encoding, KeyForm};
use crate::verify::keys::{KeyAtHand, Stop};
use crate::verify::locator::{Facts, Locator};
use crate::verify::refusal::{CheckStep, Refusal};
use crate::verify::sign::{SignError, SignRequest};
use crate::verify::source::Request;
use http::header::CONTENT_TYPE;
use memchr::memmem;
use serde::Deserialize;
use std::borrow::Cow;

const PARTS_MAX: usize = 64;
const PART_HEAD_MAX: usize = 4 << 10;

pub(super) const ENTRY: Entry = Entry {
    params: &[],
    publishes_keys: false,
    headers: &[],
    build,
    about: About {
        algorithm: "hmac-sha256",
        key: TEXT_KEY,
        signature: &["event_hash in part json of the body"],
        form: "hex",
        signed: "event_time and event_type in part json of the body",
        time: Some("event_time in s"),
        event_type: &["event_type in part json of the body"],
        receipt: Some("Hello API Event Received"),
        ..About::BARE
    },
};

struct DropboxSign {
    macs: Macs,
    window: Window,
}

fn build(make: &mut Make<'_>) -> Option<Box<dyn Builtin>> {
    let macs = make.macs(Algorithm::HmacSha256, Encoding::Hex, KeyForm::Text)?;
    Some(Box::new(DropboxSign { macs, window: Window(make.tolerance_millis()) }))
}

#[derive(Deserialize)]
struct Callback<'b> {
    #[serde(borrow)]
    event: Option<Event<'b>>,
}

#[derive(Deserialize)]
struct Event<'b> {
    #[serde(borrow)]
    event_time: Option<Cow<'b, str>>,
    #[serde(borrow)]
    event_type: Option<Cow<'b, str>>,
    #[serde(borrow)]
    event_hash: Option<Cow<'b, str>>,
}

impl Builtin for DropboxSign {
    fn check(&self, facts: &Facts<'_>, _: KeyAtHand<'_>) -> Result<Proof, Stop> {
        let request = facts.request;
        let json = part(request, "json")?;
        let told: Callback<'_> = serde_json::from_slice(json).map_err(|_| malformed("part json is not an event"))?;
        let missing = |name: &str| Refusal::missing(format!("field {name} of the event is absent or empty"));
        let event = told.event.ok_or_else(|| missing("event"))?;
        let field = |value: Option<Cow<'_, str>>, name: &str| {
            value.filter(|v| !v.is_empty()).map(Cow::into_owned).ok_or_else(|| missing(name))
        };
        let hash = field(event.event_hash, "event_hash")?;
        let time = field(event.event_time, "event_time")?;
        let event_type = field(event.event_type, "event_type")?;
        // Nothing stands between the two where they are signed.
        if event_type.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(malformed("event_type begins with a digit, which may be one of event_time").into());
        }
        let at = Told::Seconds.read(&time, "event_time")?;
        let skew = self.window.holds(request.received_at, (at, Told::Seconds), "event_time")?;
        let refused = |refusal| Refusal { skew_seconds: Some(skew), ..refusal };
        let candidate = self.macs.decode(&hash).map_err(refused)?;
        let signed = [time.as_bytes(), event_type.as_bytes()];
        let secret = self.macs.prove(&signed, &[candidate]).map_err(refused)?;
        // Two events of one kind may happen in one second: what is signed would not tell them apart.
        let proof = Proof::new(Some(secret), &[json]);
        Ok(Proof { skew_seconds: Some(skew), event_type: Some(event_type), ..proof })
    }

    fn covers(&self, _: &Locator) -> bool {
        false
    }

    fn body(&self) -> BodyCover {
        BodyCover::Not
    }

    fn sign(&self, _: SignRequest<'_>) -> Result<Vec<(String, String)>, SignError> {
        Err(SignError::NotAHeader("part of the body".to_owned()))
    }
}

/// The one part of that name in a `multipart/form-data` body.
fn part<'r>(request: Request<'r>, name: &str) -> Result<&'r [u8], Refusal> {
    let content_type = request.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (kind, parameters) = content_type.split_once(';').unwrap_or_default();
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return Err(malformed("the body is no form of several parts"));
    }
    let boundary = parameter(parameters, "boundary").filter(|boundary| (1..=70).contains(&boundary.len()));
    let boundary = boundary.ok_or_else(|| malformed("the form has no boundary between its parts"))?;
    let (body, dashes) = (&request.body[..], format!("--{boundary}"));
    let mut starts = memmem::find_iter(body, dashes.as_bytes())
        .filter(|at| *at == 0 || body[..*at].ends_with(b"\r\n"))
        .take(PARTS_MAX + 1)
        .peekable();
    let mut found = None;
    let mut count = 0;
    while let Some(start) = starts.next() {
        count += 1;
        if count > PARTS_MAX {
            return Err(malformed(format!("the form has more than {PARTS_MAX} parts")));
        }
        // What begins behind the last boundary ends nowhere.
        let Some(end) = starts.peek().copied() else { break };
        let text = body.get(start + dashes.len()..end.saturating_sub(2)).unwrap_or_default();
        let Some(text) = text.strip_prefix(b"\r\n") else { continue };
        let head_end = memmem::find(&text[..text.len().min(PART_HEAD_MAX)], b"\r\n\r\n");
        let Some(head_end) = head_end else { continue };
        let head = std::str::from_utf8(&text[..head_end]).unwrap_or_default();
        if is_named(head, name) && found.replace(&text[head_end + 4..]).is_some() {
            return Err(Refusal::malformed(CheckStep::Presence, format!("part {name} is there more than once")));
        }
    }
    found.ok_or_else(|| Refusal::missing(format!("part {name} is absent")))
}

fn is_named(head: &str, name: &str) -> bool {
    head.split("\r\n").filter_map(|line| line.split_once(':')).any(|(header, value)| {
        let parameters = value.split_once(';').map(|(_, parameters)| parameters).unwrap_or_default();
        header.trim().eq_ignore_ascii_case("content-disposition") && parameter(parameters, "name") == Some(name)
    })
}

/// A parameter of a header's value, in quotes or without.
fn parameter<'t>(parameters: &'t str, name: &str) -> Option<&'t str> {
    let named = |text: &'t str| text.trim().split_once('=').filter(|(key, _)| key.eq_ignore_ascii_case(name));
    let (_, value) = parameters.split(';').find_map(named)?;
    Some(value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value))
}
