//! `hookgate verify`: one request step by step, or a file of cases.

use super::delivery::{bytes_of, bytes_of_file};
use super::keys::{Keys, Ready, now, seconds, time};
use super::output::plain;
use super::request::{self, Recorded};
use super::table::Column;
use super::{Context, Exit, Failure, Format};
use crate::clock::Timestamp;
use crate::verify::cases::{self, CaseResult};
use crate::verify::{Admission, Refusal, RefusalCode, Request, Rotation, Source, Step, describe, schemes};
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// More schemes are not named.
const NEAR_MAX: usize = 4;

const STEPS: [Column; 3] =
    [Column::whole("STEP", "step"), Column::whole("RESULT", "result"), Column::breakable("DETAIL", "detail")];
const SCHEMES: [Column; 3] =
    [Column::whole("SCHEME", "scheme"), Column::whole("CASES", "cases"), Column::whole("DIFFER", "differ")];

/// Say whether a request is valid, or which step failed and why
#[derive(clap::Args, Clone, Debug)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["request", "cases"]))]
pub struct Verify {
    #[command(flatten)]
    pub keys: Keys,
    /// The request, or `-`: raw HTTP (request line, headers, an empty line, the body), a curl command, or JSON
    #[arg(long, value_name = "FILE")]
    pub request: Option<PathBuf>,
    /// When it arrived: RFC 3339, or Unix seconds [default: now]
    #[arg(long, visible_alias = "at", value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    pub now: Option<Timestamp>,
    /// How far its timestamp may be off, instead of the scheme's own window: `300` or `5m`
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub tolerance: Option<u64>,
    /// What the provider calls, for schemes that sign the URL [default: as the request says]
    #[arg(long)]
    pub url: Option<String>,
    /// A file of cases, each with what is expected of it, or `-`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scheme", "secrets", "params", "source", "now", "tolerance", "url"])]
    pub cases: Option<PathBuf>,
}

pub(super) fn run(args: &Verify, context: &mut Context<'_>) -> Result<Exit, Failure> {
    match (&args.cases, &args.request) {
        (Some(file), _) => run_cases(file, context),
        (None, Some(file)) => run_request(args, file, context),
        (None, None) => Err(Failure::usage("nothing to verify", "name it with --request or --cases")),
    }
}

fn run_request(args: &Verify, file: &Path, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let Ready { source, public_url } = args.keys.ready(args.tolerance, context)?;
    let bytes = bytes_of(file, context)?;
    let recorded = request::parse(&bytes, &file.display().to_string(), &mut |file| bytes_of_file(file))?;
    let url = args.url.clone().or_else(|| recorded.target.url(public_url.as_deref()));
    if url.is_none() && source.whole().signs_url() {
        return Err(Failure::usage("the scheme signs the URL, and the request has no host", "give it with --url"));
    }
    let url = url.unwrap_or_default();
    let received_at = args.now.unwrap_or_else(now);
    let Recorded { method, headers, body, .. } = &recorded;
    let request = Request { method, url: &url, headers, body, received_at };
    let outcome = source.admit(request);
    let steps = source.explain(request);
    tell(source.whole(), &steps, &outcome, context)?;
    match &outcome {
        Ok(_) => Ok(Exit::Done),
        Err(refusal) => {
            if let Some(help) = help(args, &source, request, refusal) {
                context.output.say(&format!("help: {help}"));
            }
            Ok(Exit::Problems)
        }
    }
}

/// What may be done about a refusal.
fn help(args: &Verify, source: &Rotation, request: Request<'_>, refusal: &Refusal) -> Option<String> {
    let scheme = source.whole().scheme();
    let explain = match &args.keys.source {
        Some(source) if scheme == schemes::CUSTOM => format!("`hookgate source explain {}`", plain(source)),
        _ => format!("`hookgate source explain {scheme}`"),
    };
    Some(match refusal.code {
        RefusalCode::SignatureMismatch if source.has_expired(request) => {
            "give the sender the new secret, or move the `expires` of the old one".to_owned()
        }
        RefusalCode::SignatureMismatch => {
            let shorter = without_line_end(request.body);
            match shorter.filter(|body| source.admit(Request { body, ..request }).is_ok()) {
                Some(_) => "it is valid without the line end behind the body: was that added by an editor?".to_owned(),
                None => "another secret, or a body that is not byte for byte what was sent".to_owned(),
            }
        }
        RefusalCode::NoSecret if args.keys.source.is_some() => format!(
            "a secret that a gateway has adopted is in its ledger, which is not read here: `hookgate source get` says \
             whether it holds one; to check this request, give the secret with --scheme {scheme} --secret"
        ),
        RefusalCode::NoSecret => "give the one that the provider handed over with --scheme and --secret".to_owned(),
        RefusalCode::TimestampTooOld | RefusalCode::TimestampTooNew => off(request.received_at, refusal)?,
        RefusalCode::HandshakeRefused => format!("{explain} shows how a source has the token of the handshake"),
        RefusalCode::MissingHeader | RefusalCode::Malformed => {
            let near = describe::by_headers(request.headers);
            match near.as_slice() {
                [] if refusal.code == RefusalCode::MissingHeader && *request.method == http::Method::POST => {
                    format!("{explain} says what has to be there; was the request recorded with all its headers?")
                }
                near if near.is_empty() || near.contains(&scheme) => format!("{explain} says how it has to be written"),
                near => {
                    let named: Vec<String> = near.iter().take(NEAR_MAX).map(|name| format!("`{name}`")).collect();
                    let more = if near.len() > NEAR_MAX { " or another" } else { "" };
                    format!("it looks like a request of the scheme {}{more}", named.join(" or "))
                }
            }
        }
        RefusalCode::UnknownKey
        | RefusalCode::UnsupportedAlgorithm
        | RefusalCode::UntrustedKeyUrl
        | RefusalCode::InsufficientCoverage => format!("{explain} says what is taken"),
        RefusalCode::SecretHeld => return None,
    })
}

/// What a time that is not in the window may be.
fn off(now: Timestamp, refusal: &Refusal) -> Option<String> {
    let (now, skew) = (now.as_seconds(), refusal.skew_seconds?);
    let said = now.saturating_sub(skew);
    // A month off, at most.
    let is_about = |seconds: i64| seconds.abs_diff(now) < 30 * 86_400;
    Some(if is_about(said / 1_000) {
        "the time is a thousand times too large: the sender counts milliseconds, for which `time` has unit = \"ms\""
            .to_owned()
    } else if is_about(said.saturating_mul(1_000)) {
        "the time is a thousand times too small: the sender counts seconds, for which `time` has unit = \"s\""
            .to_owned()
    } else {
        format!("a recorded request is checked as of when it arrived with --at {said}, or with a wider --tolerance")
    })
}

/// The body without one line end at its end, where it has one.
fn without_line_end(body: &Bytes) -> Option<Bytes> {
    let shorter = body.strip_suffix(b"\n")?;
    Some(body.slice_ref(shorter.strip_suffix(b"\r").unwrap_or(shorter)))
}

fn tell(
    source: &Source,
    steps: &[Step],
    outcome: &Result<Admission, Refusal>,
    context: &mut Context<'_>,
) -> Result<(), Failure> {
    let word = match outcome {
        Ok(_) => "valid",
        Err(refusal) => refusal.code.as_str(),
    };
    let output = &mut context.output;
    match output.format {
        Format::Quiet => output.line(word),
        Format::Json => {
            let mut document = json!({ "valid": outcome.is_ok(), "scheme": source.scheme(), "steps": steps });
            match outcome {
                Ok(Admission::Event(event)) => {
                    document["event"] = json!({ "id": event.provider_id, "type": event.event_type });
                }
                Ok(Admission::Challenge(_) | Admission::Confirm(_)) => document["challenge"] = json!(true),
                Ok(Admission::Adopt { .. }) => {
                    document["challenge"] = json!(true);
                    document["adopts"] = json!(true);
                }
                Err(refusal) => {
                    document["code"] = json!(refusal.code);
                    document["step"] = json!(refusal.step);
                    document["detail"] = json!(refusal.detail);
                    document["skew_seconds"] = json!(refusal.skew_seconds);
                }
            }
            output.document(&document)
        }
        Format::Table => {
            let row = |step: &Step| {
                let result = if step.ok { "ok" } else { "FAILED" };
                json!({ "step": step.name.as_str(), "result": result, "detail": step.detail })
            };
            output.table(&STEPS, &steps.iter().map(row).collect::<Vec<Value>>())?;
            let verdict = match outcome {
                Ok(Admission::Event(_)) => format!("valid ({})", source.scheme()),
                Ok(Admission::Challenge(_) | Admission::Confirm(_)) => {
                    format!("valid ({}): a handshake, to be answered", source.scheme())
                }
                Ok(Admission::Adopt { .. }) => {
                    format!("valid ({}): a handshake, whose secret a gateway would adopt", source.scheme())
                }
                Err(refusal) => {
                    format!("invalid ({}): {word} at the step `{}`", source.scheme(), refusal.step.as_str())
                }
            };
            output.line(&verdict)
        }
    }
}

/// Cases of one scheme, and how many of them are as expected.
#[derive(Default)]
struct Tally {
    cases: usize,
    agree: usize,
}

fn run_cases(file: &Path, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let named = file.display().to_string();
    let bytes = bytes_of(file, context)?;
    let no_cases = |why: String| {
        Failure::usage(
            format!("`{named}` is not a file of cases: {}", plain(&why)),
            "write a list of {\"id\", \"scheme\", \"request\", \"secrets\", \"now_unix\", \"tolerance_s\", \"expect\"}",
        )
    };
    let text = std::str::from_utf8(&bytes).map_err(|e| no_cases(e.to_string()))?;
    let cases = cases::parse(text).map_err(|e| no_cases(e.to_string()))?;
    if cases.is_empty() {
        return Err(no_cases("it has none".to_owned()));
    }
    let results = cases::run(&cases);
    let mut schemes: BTreeMap<&str, Tally> = BTreeMap::new();
    for result in &results {
        let tally = schemes.entry(&result.scheme).or_default();
        tally.cases += 1;
        tally.agree += usize::from(result.agrees());
    }
    let differing: Vec<&CaseResult> = results.iter().filter(|result| !result.agrees()).collect();
    let output = &mut context.output;
    match output.format {
        Format::Quiet => differing.iter().try_for_each(|result| output.line(&plain(&result.id)))?,
        Format::Json => {
            let differing = differing.iter().map(|r| {
                let (expected, actual) = (r.expected.to_string(), r.actual.to_string());
                json!({ "id": r.id, "scheme": r.scheme, "expected": expected, "actual": actual })
            });
            let schemes = schemes.iter().map(|(name, tally)| {
                ((*name).to_owned(), json!({ "cases": tally.cases, "differ": tally.cases - tally.agree }))
            });
            output.document(&json!({
                "ok": differing.len() == 0,
                "cases": results.len(),
                "differing": differing.collect::<Value>(),
                "schemes": schemes.collect::<serde_json::Map<_, _>>(),
            }))?;
        }
        Format::Table => {
            for r in &differing {
                let line = format!("{} ({}): expected {}, is {}", r.id, r.scheme, r.expected, r.actual);
                output.line(&plain(&line))?;
            }
            let row = |(name, tally): (&&str, &Tally)| json!({ "scheme": name, "cases": tally.cases, "differ": tally.cases - tally.agree });
            output.table(&SCHEMES, &schemes.iter().map(row).collect::<Vec<Value>>())?;
        }
    }
    output.say(&format!("{named}: {} cases, {} differ", results.len(), differing.len()));
    Ok(if differing.is_empty() { Exit::Done } else { Exit::Problems })
}
