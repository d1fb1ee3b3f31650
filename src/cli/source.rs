//! `hookgate source …`.

use super::keys::{Configured, configured, moment};
use super::output::{plain, text};
use super::table::Column;
use super::{Client, Context, Exit, Failure, Format};
use crate::verify::describe::{self, Cover, Description, Way};
use crate::verify::{BodyCover, RefusalCode, schemes};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Sources: what is let in, what was refused, and the schemes there are
#[derive(clap::Subcommand, Debug)]
pub(super) enum Source {
    /// All sources
    List,
    /// One source
    Get {
        /// The source's name, or TENANT/NAME
        name: String,
    },
    /// Forget the secret that a source has adopted: the next handshake brings it another
    ForgetSecret {
        /// The source's name, or TENANT/NAME
        name: String,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
    /// The newest refused requests: when, why, and at which step
    Rejections(Rejections),
    /// The built-in schemes: the kind of signature, the window, and whether the id is signed
    ListSchemes {
        /// Only those with this in their name, in what is told of them, or in a link
        text: Option<String>,
    },
    /// One scheme: what is signed, what dedup rests on, what to beware of, and an example
    Explain {
        /// The scheme's name, or a source of the configuration file as TENANT/NAME
        scheme: String,
    },
}

#[derive(clap::Args, Debug)]
pub(super) struct Rejections {
    /// Only of this source: its name, or TENANT/NAME
    #[arg(long)]
    source: Option<String>,
    /// Only with this code, e.g. signature_mismatch
    #[arg(long, value_parser = reason)]
    reason: Option<String>,
    /// Only at or after this time (RFC 3339, or `1h` ago)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<String>,
    /// Only before this time (RFC 3339, or `1h` ago)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<String>,
    /// At most so many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
}

const COLUMNS: [Column; 6] = [
    Column::whole("SOURCE", "name"),
    Column::whole("SCHEME", "scheme"),
    Column::whole("SECRETS", "secret_count"),
    Column::whole("ADOPTION", "adoption").lesser(3),
    Column::whole("WINDOW", "window").lesser(1),
    Column::breakable("DEDUP", "dedup_by").lesser(2),
];

const FIELDS: [&str; 13] = [
    "name",
    "scheme",
    "secret_count",
    "secrets_expire_at",
    "adoption",
    "adopted_at",
    "tolerance",
    "window",
    "dedup",
    "dedup_by",
    "dedup_window",
    "body_bytes_max",
    "rate",
];

const REJECTIONS: [Column; 8] = [
    Column::time("AT", "at"),
    Column::whole("SOURCE", "source").lesser(1),
    Column::whole("REASON", "reason"),
    Column::breakable("DETAIL", "detail"),
    Column::whole("STEP", "step").lesser(3),
    Column::whole("SKEW", "skew_seconds").lesser(2),
    Column::whole("PEER", "peer").lesser(4),
    Column::whole("BYTES", "body_bytes").lesser(5),
];

/// Why requests are refused that have nothing to do with a signature.
const OTHER_REASONS: [&str; 7] = [
    "body_cut_off",
    "body_timeout",
    "body_too_large",
    "key_reused",
    "malformed_body",
    "method_not_allowed",
    "rate_limited",
];

const SCHEMES: [Column; 5] = [
    Column::whole("SCHEME", "name"),
    Column::whole("SIGNATURE", "signature"),
    Column::whole("WINDOW", "window"),
    Column::whole("ID", "id"),
    Column::whole("HANDSHAKE", "handshake").lesser(1),
];

/// More does not fit beside the other columns.
const SIGNATURE_CHARS_MAX: usize = 20;

pub(super) async fn run(verb: Source, context: &mut Context<'_>) -> Result<Exit, Failure> {
    match verb {
        Source::List => {
            let mut client = Client::new(context)?;
            let path = client.in_tenant(&["sources"]).await?;
            context.output.list(&client.list(&path, &[], 10_000).await?, &COLUMNS, "name")?;
        }
        Source::Get { name } => {
            let name = named(name, context);
            let mut client = Client::new(context)?;
            let path = client.in_tenant(&["sources", &name]).await?;
            context.output.one(&client.get(&path, &[]).await?, &FIELDS, "name")?;
        }
        Source::ForgetSecret { name, yes } => {
            let name = named(name, context);
            let question = format!("Forget the secret of {name}? What is signed with it is refused then.");
            context.output.confirm(&question, yes.into())?;
            let mut client = Client::new(context)?;
            let path = client.in_tenant(&["sources", &name, "forget-secret"]).await?;
            let answer = client.post(&path, &json!({})).await?;
            let output = &mut context.output;
            match output.format {
                Format::Json => output.document(&answer)?,
                Format::Quiet => output.line(&name)?,
                Format::Table => {
                    let adoption = text(&answer["adoption"]);
                    let state = if adoption.is_empty() { "forgotten" } else { &adoption };
                    output.line(&format!("{name}  {state}"))?;
                }
            }
        }
        Source::Rejections(args) => rejections(args, context).await?,
        Source::ListSchemes { text } => list_schemes(text.as_deref(), context)?,
        Source::Explain { scheme } => explain(&scheme, context)?,
    }
    Ok(Exit::Done)
}

/// A source's name; where its tenant stands before it, that is the tenant.
fn named(name: String, context: &mut Context<'_>) -> String {
    match name.split_once('/') {
        Some((tenant, name)) => {
            context.globals.tenant = Some(tenant.to_owned());
            name.to_owned()
        }
        None => name,
    }
}

async fn rejections(args: Rejections, context: &mut Context<'_>) -> Result<(), Failure> {
    let Rejections { source, reason, since, until, limit } = args;
    let source = source.map(|name| named(name, context));
    let mut client = Client::new(context)?;
    let path = client.in_tenant(&["rejections"]).await?;
    let query = [("source", source.clone()), ("reason", reason), ("since", since), ("until", until)];
    let query: Vec<_> = query.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    let found = client.list(&path, &query, limit).await?;
    // Rows of a source that is gone are kept; without any, its name may be a slip of the pen.
    if let Some(source) = source.filter(|_| found["items"].as_array().is_none_or(Vec::is_empty)) {
        let path = client.in_tenant(&["sources", &source]).await?;
        if let Err(failure) = client.get(&path, &[]).await {
            return Err(match failure.exit {
                Exit::NotFound => Failure::new(Exit::NotFound, format!("there is no source `{}`", plain(&source)))
                    .with_remedy("`hookgate source list` has all"),
                _ => failure,
            });
        }
    }
    context.output.list(&found, &REJECTIONS, "reason")
}

/// A code with which ingress refuses requests.
fn reason(text: &str) -> Result<String, String> {
    let known = RefusalCode::ALL.into_iter().map(RefusalCode::as_str).chain(OTHER_REASONS);
    let known: Vec<&str> = known.collect();
    if known.contains(&text) { Ok(text.to_owned()) } else { Err(format!("write one of {}", known.join(", "))) }
}

fn list_schemes(text: Option<&str>, context: &mut Context<'_>) -> Result<(), Failure> {
    let text = text.unwrap_or_default().to_lowercase();
    let holds = |scheme: &Description| {
        let links = scheme.links.iter().copied();
        let told = std::iter::once(scheme.name).chain(scheme.notes.iter().map(String::as_str)).chain(links);
        told.into_iter().any(|told| told.to_lowercase().contains(&text))
    };
    let found: Vec<Description> = describe::all().filter(holds).collect();
    if context.output.format == Format::Json {
        return context.output.document(&json!({ "items": found }));
    }
    let rows: Vec<Value> = found.iter().map(row).collect();
    context.output.list(&json!({ "items": rows }), &SCHEMES, "name")
}

/// A scheme in one line; `explain` has the rest.
fn row(scheme: &Description) -> Value {
    let window = scheme.ways.iter().find_map(|way| way.window_seconds);
    let has_id = scheme.ways.iter().any(|way| !way.id.is_empty());
    let id_is_signed = scheme.ways.iter().all(|way| way.id_is_signed == Some(true));
    json!({
        "name": scheme.name, "signature": kind(scheme),
        "id": match (has_id, id_is_signed) {
            (false, _) => "",
            (true, true) => "signed",
            (true, false) if scheme.ways.iter().any(Way::id_is_loose) => "in part",
            (true, false) => "not signed",
        },
        "window": window.map_or_else(|| "none".to_owned(), |seconds| format!("{seconds}s")),
        "handshake": if scheme.handshakes.is_empty() { "" } else { "yes" },
    })
}

/// What kind of signature, in few words.
fn kind(scheme: &Description) -> String {
    let mut all: Vec<&str> = Vec::new();
    for way in &scheme.ways {
        let words = way.algorithm.split([',', ' ']).filter(|word| {
            ["hmac-", "hash-", "rsa-", "ecdsa-", "ed25519"].iter().any(|family| word.starts_with(family))
        });
        match way.algorithm.as_str() {
            "equal" => all.push("token"),
            "basic" => all.push("user and password"),
            _ => all.extend(words),
        }
    }
    let mut seen = BTreeSet::new();
    all.retain(|word| seen.insert(*word));
    let whole = all.join(", ");
    match all.as_slice() {
        [] => "as its settings say".to_owned(),
        [first, _, ..] if whole.len() > SIGNATURE_CHARS_MAX => format!("{first}, … ({})", all.len()),
        _ => whole,
    }
}

fn signed(way: &Way) -> String {
    match way.signed.as_str() {
        "" => "nothing (a token)".to_owned(),
        told => told.replace('\n', "\\n"),
    }
}

/// What the signature proves.
fn covers(way: &Way) -> String {
    let Cover { body, url, by_settings } = way.covers;
    if way.signed.is_empty() {
        return String::new();
    }
    let body = match body {
        BodyCover::Bytes => "every byte of the body",
        BodyCover::Meaning => "what the body says, not how it is written",
        BodyCover::Not => "not the body",
    };
    let url = if url { "; the URL" } else { "" };
    let settings = if by_settings { "; with the settings below" } else { "" };
    format!("{body}{url}{settings}")
}

fn window(way: &Way) -> String {
    match (way.window_seconds, &way.time) {
        (Some(seconds), Some(time)) => format!("{seconds} s before and after now, of {time}"),
        (None, Some(time)) => format!("none, unless `tolerance` sets one, of {time}"),
        (_, None) => "none".to_owned(),
    }
}

fn explain(name: &str, context: &mut Context<'_>) -> Result<(), Failure> {
    let found = if name.contains('/') {
        let Configured { spec, .. } = configured(name, context)?;
        describe::of_source(&spec)
    } else {
        describe::of(name)
    };
    let Some(scheme) = found else {
        let (rule, remedy) = schemes::unknown(name).unwrap_or_else(|| {
            let rule = format!("`{name}` is not a built-in scheme");
            (rule, "it is described in the file: name one of its sources, as TENANT/SOURCE".to_owned())
        });
        return Err(Failure::new(Exit::NotFound, plain(&rule)).with_remedy(remedy));
    };
    match context.output.format {
        Format::Json => context.output.document(&serde_json::to_value(&scheme).unwrap_or_default()),
        Format::Quiet => context.output.line(scheme.name),
        Format::Table => lines(&scheme).iter().try_for_each(|line| context.output.line(line)),
    }
}

fn lines(scheme: &Description) -> Vec<String> {
    let mut lines = vec![scheme.name.to_owned()];
    let mut tell = |label: &str, text: &str| {
        if !text.is_empty() {
            lines.push(format!("  {label:<9}  {text}"));
        }
    };
    for (number, way) in scheme.ways.iter().enumerate() {
        if scheme.ways.len() > 1 {
            let when = match way.when.as_slice() {
                [] if scheme.ways.iter().all(|way| way.when.is_empty()) => "beside the others".to_owned(),
                [] => "otherwise".to_owned(),
                when => format!("for {}", when.join(", ")),
            };
            tell(&format!("way {}", number + 1), &when);
        }
        tell("algorithm", &way.algorithm);
        tell("key", &way.key);
        let form = if way.form.is_empty() { String::new() } else { format!(": {}", way.form) };
        if !way.signature.is_empty() {
            tell("signature", &format!("{}{form}", way.signature.join(" or ")));
        }
        tell("signed", &signed(way));
        tell("covers", &covers(way));
        tell("window", &window(way));
        tell("id", &way.id.join(", else "));
        tell("type", &way.event_type.join(", else "));
    }
    for setting in &scheme.settings {
        let needed = if setting.is_needed { "" } else { " (may be left out)" };
        tell("setting", &format!("`{}`{needed}: {}", setting.name, setting.about));
    }
    tell("dedup", &scheme.dedup);
    scheme.handshakes.iter().for_each(|handshake| tell("handshake", handshake));
    match scheme.receipt {
        None => {}
        Some("") => tell("answers", "without a body, whatever they say"),
        Some(receipt) => tell("answers", &format!("`{receipt}`, to every event")),
    }
    scheme.links.iter().for_each(|link| tell("see", link));
    let told: Vec<&String> = scheme.notes.iter().chain(&scheme.pitfalls).collect();
    if !told.is_empty() {
        lines.extend([String::new(), "Beware:".to_owned()]);
        lines.extend(told.into_iter().map(|text| format!("  - {text}")));
    }
    if !scheme.example.is_empty() {
        lines.push(String::new());
        lines.extend(scheme.example.lines().map(str::to_owned));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Env, Input, Outside, evaluate};

    #[test]
    fn every_example_holds() {
        for scheme in describe::all() {
            let (text, env) = (scheme.example, Env::default());
            let path = std::path::Path::new("example.toml");
            let report = evaluate(&Input { text: &text, path, env: &env, flags: &[], outside: Outside::Skip });
            assert!(report.problems.is_empty(), "{}", report.lines());
        }
    }
}
