//! Which scheme, with which secrets: what `sign`, `send`, `verify` and `listen` share.

use super::output::plain;
use super::{Context, Exit, Failure};
use crate::clock::{Clock as _, SystemClock, Timestamp};
use crate::config::{SecretRef, SourceSecret};
use crate::delivery::Name;
use crate::duration;
use crate::verify::{ExpiringSecret, Param, ParamKind, Rotation, SourceSpec, schemes};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

const DEFAULT_SCHEME: &str = "standard-webhooks";

#[derive(clap::Args, Clone, Debug)]
pub struct Keys {
    /// A built-in scheme [default: standard-webhooks]
    #[arg(long, conflicts_with = "source")]
    pub scheme: Option<String>,
    /// env:NAME, file:PATH, or the secret itself; may be repeated
    #[arg(long = "secret", value_name = "SECRET", value_parser = secret, conflicts_with = "source")]
    pub secrets: Vec<SecretRef>,
    /// A setting of the scheme, such as paypal's `webhook_id`; may be repeated, and a list has commas between its items
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = param, conflicts_with = "source")]
    pub params: Vec<(String, String)>,
    /// A source of the configuration file, with its scheme and its secrets
    #[arg(long, value_name = "TENANT/NAME")]
    pub source: Option<String>,
}

/// A source that is ready to sign and to verify.
pub(super) struct Ready {
    pub(super) source: Rotation,
    /// What the configuration says that providers call, without a trailing slash.
    pub(super) public_url: Option<String>,
}

impl Keys {
    /// Whether nothing was said about secrets at all.
    pub(super) fn are_absent(&self) -> bool {
        self.secrets.is_empty() && self.source.is_none()
    }

    /// The same for who signs: some schemes have a key that the provider alone knows, whatever else is given.
    pub(super) fn ready_to_sign(&self, context: &mut Context<'_>) -> Result<Ready, Failure> {
        let refuse = |scheme: &str| {
            Err(Failure::usage(
                format!("only the provider can sign for `{scheme}`: its private key is with it alone"),
                "have the provider send a test event, or check a recorded request with `hookgate verify`; to try what \
                 comes after verification, send to a source of another scheme",
            ))
        };
        if let Some(scheme) = self.scheme.as_deref().filter(|scheme| schemes::only_verifies(scheme)) {
            return refuse(scheme);
        }
        let ready = self.ready(None, context)?;
        if schemes::only_verifies(ready.source.whole().scheme()) {
            refuse(ready.source.whole().scheme())
        } else {
            Ok(ready)
        }
    }

    /// The source that the flags name. `tolerance` in seconds replaces the scheme's window.
    pub(super) fn ready(&self, tolerance: Option<u64>, context: &mut Context<'_>) -> Result<Ready, Failure> {
        let ready = match &self.source {
            Some(source) => of_the_file(source, tolerance, context)?,
            None => Ready { source: self.given(tolerance, context)?, public_url: None },
        };
        // What is missing for a handshake alone is told where one is refused.
        for warning in ready.source.whole().warnings().iter().filter(|warning| !warning.starts_with("secrets:")) {
            context.output.say(&format!("warning: {}", numbered(warning)));
        }
        Ok(ready)
    }

    fn given(&self, tolerance: Option<u64>, context: &Context<'_>) -> Result<Rotation, Failure> {
        let scheme = self.scheme.as_deref().unwrap_or(DEFAULT_SCHEME);
        if scheme == schemes::CUSTOM {
            return Err(Failure::usage(
                "a scheme of your own cannot be told by flags",
                "describe it in the configuration file, and name it with --source TENANT/NAME",
            ));
        }
        if let Some((rule, remedy)) = schemes::unknown(scheme) {
            return Err(Failure::usage(plain(&rule), remedy));
        }
        let params = settings(scheme, &self.params)?;
        let spec = SourceSpec { scheme: scheme.to_owned(), tolerance, params, ..SourceSpec::default() };
        if self.secrets.is_empty() && !spec.adopts() {
            let remedy = if schemes::publishes_keys(scheme) {
                "nothing is fetched here: give the key or certificate that the provider publishes with --secret file:PATH"
            } else {
                "give one with --secret env:NAME, or a source of the configuration with --source TENANT/NAME"
            };
            return Err(Failure::usage("no secret", remedy));
        }
        let secrets: Vec<_> = self.secrets.iter().map(|at| SourceSecret { at: at.clone(), expires: None }).collect();
        compiled(&spec, ("cli", "flags"), (&secrets, as_flags), context)
    }
}

/// A scheme's settings as the file would have them, from those that were given one by one.
fn settings(scheme: &str, given: &[(String, String)]) -> Result<BTreeMap<String, Value>, Failure> {
    let known = schemes::settings(scheme);
    let flag = |param: &Param| format!("--param {}='{}'", param.name, param.example);
    let missing = |param: &&Param| param.is_needed() && !given.iter().any(|(name, _)| name == param.name);
    if let [first, rest @ ..] = known.iter().filter(missing).collect::<Vec<_>>().as_slice() {
        let names =
            rest.iter().fold(format!("`{}`", first.name), |names, param| format!("{names} and `{}`", param.name));
        let flags = rest.iter().fold(flag(first), |flags, param| format!("{flags} {}", flag(param)));
        let remedy = format!("give e.g. {flags}, or name a source of the configuration with --source TENANT/NAME");
        return Err(Failure::usage(format!("the scheme {scheme} needs {names}"), remedy));
    }
    let mut all: BTreeMap<String, Value> = BTreeMap::new();
    for (name, value) in given {
        let is = |kind| known.iter().any(|param| param.name == name && param.kind == kind);
        let is_list = is(ParamKind::List);
        match all.get_mut(name) {
            Some(Value::Array(items)) => items.extend(list(value)),
            None if is_list => drop(all.insert(name.clone(), Value::Array(list(value).collect()))),
            None => {
                let switch = value.parse::<bool>().ok().filter(|_| is(ParamKind::Switch));
                all.insert(name.clone(), switch.map_or_else(|| value.as_str().into(), Value::from));
            }
            Some(_) => {
                let remedy = "give it once: only a list may be told in several parts";
                return Err(Failure::usage(format!("--param {name} is there twice"), remedy));
            }
        }
    }
    Ok(all)
}

/// The items of a list, which may be none.
fn list(value: &str) -> impl Iterator<Item = Value> {
    value.split(',').filter(move |_| !value.is_empty()).map(|item| Value::from(item.trim()))
}

fn param(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err("write NAME=VALUE, such as webhook_id=8PT597110X687430LKGECATA".to_owned()),
    }
}

fn secret(text: &str) -> Result<SecretRef, String> {
    match text {
        "" => Err("it is empty: write env:NAME, file:PATH, or the secret".to_owned()),
        text => Ok(SecretRef::parse(text, Path::new(""))),
    }
}

fn name(text: &str) -> Result<Name, Failure> {
    text.parse().map_err(|e| Failure::usage(format!("{e}, and `{text}` is not"), "write --source TENANT/NAME"))
}

/// A source as the configuration has it.
pub(super) struct Configured {
    tenant: Name,
    name: Name,
    pub(super) spec: SourceSpec,
    secrets: Vec<SourceSecret>,
    public_url: Option<String>,
}

pub(super) fn configured(text: &str, context: &Context<'_>) -> Result<Configured, Failure> {
    let Some((tenant, source)) = text.split_once('/') else {
        return Err(Failure::usage(format!("`{text}` names no source"), "write --source TENANT/NAME"));
    };
    let (tenant, name) = (name(tenant)?, name(source)?);
    let settings = context.globals.settings(&context.env)?;
    let Some(found) = settings.tenants.get(&tenant).and_then(|t| t.sources.get(&name)) else {
        let all =
            settings.tenants.iter().flat_map(|(t, tenant)| tenant.sources.keys().map(move |s| format!("{t}/{s}")));
        let all: Vec<String> = all.collect();
        let there = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
        return Err(Failure::new(Exit::NotFound, format!("the configuration has no source `{text}`"))
            .with_remedy(format!("there is {there}; another file is named with --config")));
    };
    let (spec, secrets) = (found.spec.clone(), found.secrets.clone());
    let public_url = settings.server.public_url.map(|url| url.as_str().trim_end_matches('/').to_owned());
    Ok(Configured { tenant, name, spec, secrets, public_url })
}

/// The same, ready. Only this source's secrets are needed here.
fn of_the_file(text: &str, tolerance: Option<u64>, context: &Context<'_>) -> Result<Ready, Failure> {
    let Configured { tenant, name, spec, secrets, public_url } = configured(text, context)?;
    let spec = SourceSpec { tolerance: tolerance.or(spec.tolerance), ..spec };
    let source = compiled(&spec, (tenant.as_str(), name.as_str()), (&secrets, numbered), context)?;
    Ok(Ready { source, public_url })
}

fn compiled(
    spec: &SourceSpec,
    (tenant, source): (&str, &str),
    (secrets, written): (&[SourceSecret], fn(&str) -> String),
    context: &Context<'_>,
) -> Result<Rotation, Failure> {
    let mut read: Vec<ExpiringSecret> = Vec::with_capacity(secrets.len());
    for secret in secrets {
        let found = secret
            .resolve(&context.env)
            .map_err(|fault| Failure::usage(fault.to_string(), "write env:NAME, file:PATH, or the secret itself"))?;
        read.push(ExpiringSecret { secret: found, expires: secret.expires });
    }
    spec.compile_rotating(&name(tenant)?, &name(source)?, &read).map_err(|problems| {
        let told: Vec<String> = problems.iter().map(|problem| written(&problem.to_string())).collect();
        Failure::new(Exit::Usage, told.join("\n       "))
    })
}

/// The same, and `params.name: …` is `--param name: …`.
fn as_flags(told: &str) -> String {
    let told = numbered(told);
    let flag = told
        .strip_prefix("params")
        .map(|rest| rest.strip_prefix('.').map_or(rest.to_owned(), |rest| format!(" {rest}")));
    flag.map_or(told, |rest| format!("--param{rest}"))
}

/// `secrets[0]: …` is `secret 1: …`: people count from one.
fn numbered(told: &str) -> String {
    let number = |rest: &str| {
        let (index, rest) = rest.split_once("]: ")?;
        Some(format!("secret {}: {rest}", index.parse::<usize>().ok()? + 1))
    };
    told.strip_prefix("secrets[").and_then(number).unwrap_or_else(|| told.to_owned())
}

/// Reads a time: RFC 3339, or seconds since 1970.
pub(super) fn time(text: &str) -> Result<Timestamp, String> {
    let seconds = || text.parse::<i64>().ok()?.checked_mul(1000).map(Timestamp::from_millis);
    let wrong = "write seconds since 1970, or RFC 3339 such as 2026-01-31T08:00:00Z";
    seconds().or_else(|| Timestamp::parse_rfc3339(text)).ok_or_else(|| wrong.to_owned())
}

/// Reads a time that a sender could write: none before 1970.
pub(super) fn time_of_signing(text: &str) -> Result<Timestamp, String> {
    let early = || "it is before 1970, which no signature says: write a later one".to_owned();
    time(text).and_then(|at| if at < Timestamp::ZERO { Err(early()) } else { Ok(at) })
}

/// Reads a time in the past as the API wants it: RFC 3339, or a duration ago.
pub(super) fn moment(text: &str) -> Result<String, String> {
    if let Ok(ago) = duration::parse(text) {
        return Ok(now().minus(ago).to_rfc3339());
    }
    let wrong = || "write RFC 3339 such as 2026-01-31T08:00:00Z, or how long ago, such as 1h".to_owned();
    Timestamp::parse_rfc3339(text).map(|_| text.to_owned()).ok_or_else(wrong)
}

/// Reads a span in whole seconds: a plain number, or a duration.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(seconds);
    }
    let span = duration::parse(text)?;
    if span.subsec_millis() == 0 { Ok(span.as_secs()) } else { Err("write whole seconds".to_owned()) }
}

/// The machine's clock: a command is where it comes in.
pub(super) fn now() -> Timestamp {
    SystemClock.now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_spans() {
        for text in ["1769846400", "2026-01-31T08:00:00Z", "2026-01-31T09:00:00+01:00"] {
            assert_eq!(time(text).map(Timestamp::as_seconds), Ok(1_769_846_400), "{text}");
        }
        for early in ["-1", "1969-12-31T23:59:59Z"] {
            assert!(time(early).is_ok() && time_of_signing(early).unwrap_err().contains("before 1970"), "{early}");
        }
        for bad in ["", "yesterday", "1.5", "99999999999999999999", "9223372036854775807", "2026-01-31"] {
            assert!(time(bad).unwrap_err().contains("RFC 3339"), "{bad}");
        }
        for (text, expected) in [("300", 300), ("5m", 300), ("2000ms", 2)] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for bad in ["", "-1", "1500ms", "5 m"] {
            assert!(seconds(bad).unwrap_err().contains("write"), "{bad}");
        }
    }

    #[test]
    fn secrets_in_arguments_are_not_shown() {
        let shown = format!("{:?}", secret("hunter2").unwrap());
        assert_eq!(shown, "literal");
        assert!(secret("").is_err());
    }
}
