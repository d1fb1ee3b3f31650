//! `hookgate sign`, and what it shares with `send`.

use super::delivery::bytes_of;
use super::keys::{Keys, Ready, now, time_of_signing};
use super::{Context, Exit, Failure, Format};
use crate::clock::Timestamp;
use crate::delivery::{EventId, Mint};
use crate::entropy::SystemEntropy;
use crate::verify::{Request, Rotation, SignRequest, Source};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use reqwest::Url;
use serde_json::json;
use std::path::{Path, PathBuf};

/// The body: one of these.
#[derive(clap::Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct Payload {
    /// The body, from a file or `-`, byte for byte
    #[arg(long, value_name = "FILE")]
    pub body: Option<PathBuf>,
    /// The body itself
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub data: Option<String>,
}

/// What is signed, and how.
#[derive(clap::Args, Clone, Debug)]
pub struct Signing {
    #[command(flatten)]
    pub keys: Keys,
    #[command(flatten)]
    pub payload: Payload,
    /// The event's id, where the scheme carries it in a header [default: a fresh one]
    #[arg(long)]
    pub id: Option<String>,
    /// The event's type, where the scheme carries it in a header
    #[arg(long = "type", value_name = "TYPE")]
    pub event_type: Option<String>,
    /// The signed time: RFC 3339, or Unix seconds [default: now]
    #[arg(long, value_name = "TIME", value_parser = time_of_signing, allow_hyphen_values = true)]
    pub at: Option<Timestamp>,
    /// The body's content type
    #[arg(long, value_name = "TYPE", default_value = "application/json")]
    pub content_type: String,
}

/// Print the headers that sign a body
#[derive(clap::Args, Clone, Debug)]
pub struct Sign {
    #[command(flatten)]
    pub signing: Signing,
    /// Where it will be sent, for schemes that sign the URL
    #[arg(long)]
    pub url: Option<String>,
    /// Print a curl command that sends it there
    #[arg(long, value_name = "URL", conflicts_with = "url")]
    pub curl: Option<String>,
}

impl Payload {
    pub(super) fn read(&self, context: &mut Context<'_>) -> Result<Bytes, Failure> {
        match (&self.body, &self.data) {
            (Some(file), _) => Ok(bytes_of(file, context)?.into()),
            (None, data) => Ok(data.clone().unwrap_or_default().into()),
        }
    }
}

/// Signs one body again and again.
pub(super) struct Signature<'a> {
    signing: &'a Signing,
    source: Rotation,
    url: String,
    mint: Mint,
}

/// One signed request.
pub(super) struct Signed {
    pub(super) id: String,
    pub(super) at: Timestamp,
    /// The signature's header first.
    pub(super) headers: Vec<(String, String)>,
}

impl<'a> Signature<'a> {
    pub(super) fn new(signing: &'a Signing, source: Rotation, url: String) -> Self {
        Signature { signing, source, url, mint: Mint::default() }
    }

    /// With a fresh id and time, unless they are given.
    pub(super) fn sign(&self, body: &Bytes) -> Result<Signed, Failure> {
        let at = self.signing.at.unwrap_or_else(now);
        // In a sender's name: an `evt_` id is what a gateway gives.
        let fresh = || {
            let id = EventId::from(self.mint.mint(now(), &SystemEntropy)).to_string();
            id.replacen("evt_", "msg_", 1)
        };
        let id = self.signing.id.clone().unwrap_or_else(fresh);
        let event_type = self.signing.event_type.as_deref();
        let request = SignRequest { id: &id, event_type, timestamp: at, url: &self.url, body };
        let source = self.source.at(at).ok_or_else(|| {
            Failure::usage(
                "all of the source's secrets have expired by then",
                "add one, or sign for an earlier time with --at",
            )
        })?;
        let headers = source.sign(request).map_err(|e| Failure::new(Exit::Usage, e.to_string()))?;
        self.prove(source, &headers, body, at)?;
        Ok(Signed { id, at, headers })
    }

    /// What nobody would let in is not given out: some schemes sign forms alone, or a time that stands in the body.
    fn prove(&self, source: &Source, signed: &[(String, String)], body: &Bytes, at: Timestamp) -> Result<(), Failure> {
        let content_type = ("content-type".to_owned(), self.signing.content_type.clone());
        let mut headers = HeaderMap::new();
        for (name, value) in std::iter::once(&content_type).chain(signed) {
            let sent = name.parse::<HeaderName>().ok().zip(value.parse::<HeaderValue>().ok());
            let told = || {
                let told = format!("what {name} would hold cannot be sent in a header");
                Failure::usage(told, "give --content-type, --id and --type in visible ASCII, without line ends")
            };
            let (name, value) = sent.ok_or_else(told)?;
            headers.append(name, value);
        }
        let request = Request { method: &Method::POST, url: &self.url, headers: &headers, body, received_at: at };
        source.verify(request).map_err(|refusal| {
            Failure::usage(
                format!("a request with this body would be refused: {refusal}"),
                "sign what the provider sends: a form needs --content-type application/x-www-form-urlencoded",
            )
        })
    }
}

/// A URL that a request can be sent to.
pub(super) fn destination(text: &str) -> Result<Url, Failure> {
    match Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() && url.username().is_empty() => Ok(url),
        Ok(_) | Err(_) => Err(Failure::usage(
            format!("`{}` is not a URL to send to", super::output::plain(text)),
            "write e.g. http://127.0.0.1:8080/in/acme/github, without a user name",
        )),
    }
}

pub(super) fn run(args: &Sign, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let Ready { source, .. } = args.signing.keys.ready_to_sign(context)?;
    let curl = args.curl.as_deref().map(destination).transpose()?;
    let url = match (&curl, &args.url) {
        (Some(url), _) => url.to_string(),
        (None, Some(url)) => url.clone(),
        (None, None) if source.whole().signs_url() => {
            return Err(Failure::usage("the scheme signs the URL", "say where it will be sent with --url"));
        }
        (None, None) => String::new(),
    };
    let body = args.signing.payload.read(context)?;
    let scheme = source.whole().scheme().to_owned();
    let signed = Signature::new(&args.signing, source, url).sign(&body)?;
    let curl = curl.map(|url| command(&url, &args.signing, &signed.headers));
    let output = &mut context.output;
    match (output.format, &curl) {
        (Format::Json, _) => {
            let headers: serde_json::Map<_, _> = signed.headers.into_iter().map(|(k, v)| (k, v.into())).collect();
            output.document(&json!({
                "scheme": scheme, "id": signed.id, "timestamp": signed.at, "headers": headers, "curl": curl,
            }))?;
        }
        (Format::Table | Format::Quiet, Some(curl)) => output.line(curl)?,
        (Format::Table, None) => {
            signed.headers.iter().try_for_each(|(name, value)| output.line(&format!("{name}: {value}")))?;
        }
        (Format::Quiet, None) => {
            signed.headers.iter().take(1).try_for_each(|(_, value)| output.line(value))?;
        }
    }
    Ok(Exit::Done)
}

/// A command for a POSIX shell.
fn command(url: &Url, signing: &Signing, headers: &[(String, String)]) -> String {
    let content_type = ("content-type".to_owned(), signing.content_type.clone());
    let headers = std::iter::once(&content_type).chain(headers);
    let headers: String = headers.map(|(name, value)| format!(" -H {}", quoted(&format!("{name}: {value}")))).collect();
    let body = match &signing.payload {
        Payload { body: Some(file), .. } => format!("--data-binary {}", quoted(&format!("@{}", shown(file)))),
        // `--data` would take a leading `@` for a file.
        Payload { data, .. } => format!("--data-raw {}", quoted(data.as_deref().unwrap_or_default())),
    };
    format!("curl{headers} {body} {}", quoted(url.as_str()))
}

fn shown(file: &Path) -> String {
    file.display().to_string()
}

pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_back_what_is_quoted() {
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
    }

    #[test]
    fn only_web_addresses_are_sent_to() {
        assert!(destination("http://127.0.0.1:1/in/a/b?c=d").is_ok());
        for bad in ["", "127.0.0.1:1", "ftp://h/", "file:///etc/passwd", "http://u:p@h/", "data:,x"] {
            assert!(destination(bad).is_err(), "{bad}");
        }
    }
}
