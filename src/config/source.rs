//! `[tenants.<name>.sources.<name>]`.

use super::section::{At, Entry, Section, Tables, Walk, duration};
use super::settings::{Limits, Rate, SourceSecret, SourceSettings};
use super::tree::Place;
use super::{Outside, SecretFault, SecretRef};
use crate::clock::Timestamp;
use crate::delivery::Name;
use crate::secret::Secret;
use crate::verify::{SECRET_BYTES_GOOD, SchemeSpec, SigSpec, SourceSpec, SpecProblem, TimeSpec, schemes};
use std::collections::BTreeSet;
use std::time::Duration;
use url::Url;

/// More secrets than this no rotation needs; each costs a check per request.
const SECRETS_MAX: usize = 8;
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// `None`: something is missing without which there is no source.
pub(super) fn source(
    walk: &mut Walk<'_>,
    (tenant, name): (&Name, &Name),
    mut s: Section<'_>,
    public_url: Option<&Url>,
) -> Option<SourceSettings> {
    let (own, places) = (s.at(), s.places());
    let scheme = s.string(walk, "scheme");
    if scheme.is_none() && !s.has("scheme") && !s.has_like("scheme") {
        walk.reject(
            &s.at(),
            "a source needs a `scheme`",
            "write e.g. scheme = \"github\", or \"custom\" to describe one",
        );
    }
    let unknown = scheme.as_ref().and_then(|at| schemes::unknown(&at.value));
    if let (Some(at), Some((rule, remedy))) = (&scheme, &unknown) {
        walk.reject(at, rule, remedy);
    }
    let custom = read_custom(walk, &mut s, scheme.as_ref());
    let params = s.json(walk, "params").and_then(|at| at.value.as_object().cloned()).unwrap_or_default();
    let tolerance = s.seconds(walk, "tolerance", 1..=604_800).map(|at| u64::from(at.value));
    let dedup = s.string(walk, "dedup").map(|at| at.value);
    let dedup_window = s.string(walk, "dedup_window");
    if let Some(window) = &dedup_window {
        duration(walk, window, Duration::from_secs(1)..=DAY * 30);
    }
    let secrets = secrets(walk, &mut s, "secrets", Tables::Taken);
    let last = secrets
        .iter()
        .flatten()
        .map(|found| found.expires.as_ref().map(|at| at.value))
        .max_by_key(|end| end.unwrap_or(Timestamp::MAX));
    for end in secrets.iter().flatten().filter_map(|found| found.expires.as_ref()) {
        walk.expires(end, end.value, last == Some(Some(end.value)));
    }
    let spec = scheme.map(|scheme| SourceSpec {
        scheme: scheme.value,
        tolerance,
        dedup,
        dedup_window: dedup_window.map(|at| at.value),
        params: params.into_iter().collect(),
        custom,
    });
    let adopts = spec.as_ref().is_some_and(SourceSpec::adopts);
    let may_have_none = adopts || spec.as_ref().is_some_and(|spec| schemes::publishes_keys(&spec.scheme));
    if secrets.as_ref().is_none_or(Vec::is_empty) && !may_have_none && unknown.is_none() {
        // A list that is there but of the wrong kind has been reported already, and one under another name will be.
        if secrets.is_some() || !(s.has("secrets") || s.has_like("secrets")) {
            walk.reject(
                &s.at(),
                "a source needs at least one of `secrets`",
                "write e.g. secrets = [\"env:GITHUB_WEBHOOK_SECRET\"]",
            );
        }
    }
    let body_bytes_max = s.size(walk, "body_bytes_max", 1..=Limits::BODY_BYTES_CAP).map(|at| at.value);
    let rate = rate(walk, &mut s);
    s.not_yet(walk, "scrub", "write it in the tenant, or in an endpoint");
    s.not_yet(
        walk,
        "coalesce",
        "remove it, and publish what belongs together with a `coalesce_key` and a `coalesce_window`",
    );
    s.close(walk);

    let spec = spec?;
    let secrets = match secrets {
        None if may_have_none => Vec::new(),
        secrets => secrets?,
    };
    if adopts && secrets.is_empty() {
        walk.warn(
            &own,
            "without `secrets` the source takes the secret that the first handshake brings, whoever sends it",
            "tell nobody the URL before the webhook is made; `hookgate source get` says since when a secret is held",
        );
    }
    compiled(walk, (&own, &places), &spec, (tenant, name), (&secrets, may_have_none), public_url);
    let secrets =
        secrets.into_iter().map(|found| SourceSecret { at: found.written, expires: found.expires.map(|at| at.value) });
    let secrets = secrets.collect();
    Some(SourceSettings { spec, secrets, body_bytes_max, rate })
}

/// Lets the verification room say what is wrong with the source as a whole.
fn compiled(
    walk: &mut Walk<'_>,
    (own, places): (&At<()>, &[(String, Place)]),
    spec: &SourceSpec,
    (tenant, name): (&Name, &Name),
    (secrets, may_have_none): (&[Found], bool),
    public_url: Option<&Url>,
) {
    let at_hand: Vec<Secret> = secrets.iter().filter_map(|found| found.secret.clone()).collect();
    let all_there = at_hand.len() == secrets.len() && (!secrets.is_empty() || may_have_none);
    match spec.compile(tenant, name, at_hand) {
        Ok(source) => {
            if source.signs_url() && public_url.is_none() {
                walk.warn(
                    own,
                    "the scheme signs the URL, and no `server.public_url` is set",
                    "set `server.public_url` to what the provider calls: behind a proxy the request does not tell",
                );
            }
            for warning in source.warnings() {
                let (field, what) = warning.split_once(": ").unwrap_or(("scheme", warning));
                // Of one secret, what there is to say was said where it was read; of all, when all are there.
                if field.starts_with("secrets[") || (field == "secrets" && !all_there) {
                    continue;
                }
                let at = At { value: (), place: own.place.clone(), field: format!("{}.{field}", own.field) };
                let explained = format!("`hookgate source explain {}` says what is proved", spec.scheme);
                let (what, remedy) = what.split_once(": ").unwrap_or((what, &explained));
                walk.warn(&at, what, remedy);
            }
        }
        Err(problems) => {
            for SpecProblem { field, message } in problems {
                // A secret that could not be had is reported already, and a list without it proves nothing.
                if field.starts_with("secrets") && !all_there {
                    continue;
                }
                // The key itself, or the nearest thing around it that was written.
                let around =
                    |path: &str| field.strip_prefix(path).is_some_and(|r| r.is_empty() || r.starts_with(['.', '[']));
                let written = places.iter().filter(|(path, _)| around(path)).max_by_key(|(path, _)| path.len());
                let place = written.map_or_else(|| own.place.clone(), |(_, place)| place.clone());
                let at = At { value: (), place, field: format!("{}.{field}", own.field) };
                // The same thing, or something inside of what is wrong as a whole.
                let told =
                    |known: &str| at.field.strip_prefix(known).is_some_and(|r| r.is_empty() || r.starts_with('.'));
                if walk.problems.iter().any(|p| p.field != own.field && told(&p.field)) {
                    continue;
                }
                let (rule, remedy) = message.split_once(": ").unwrap_or((&message, "correct it"));
                walk.reject(&at, rule, remedy);
            }
        }
    }
}

fn read_custom(walk: &mut Walk<'_>, s: &mut Section<'_>, scheme: Option<&At<String>>) -> Option<SchemeSpec> {
    let spec = SchemeSpec {
        verify: text(walk, s, "verify"),
        key: text(walk, s, "key"),
        key_strip: one_or_more(walk, s, "key_strip"),
        sig: s.table(walk, "sig").map(|sig| signature(walk, sig)),
        vars: s.map(walk, "vars").into_iter().collect(),
        signed: text(walk, s, "signed"),
        emit: text(walk, s, "emit"),
        time: s.table(walk, "time").map(|time| timestamp(walk, time)),
        require: s.map(walk, "require").into_iter().collect(),
        id: texts(walk, s, "id"),
        id_form: text(walk, s, "id_form"),
        event_type: texts(walk, s, "type"),
        when: one_or_more(walk, s, "when"),
        challenge: data(walk, s, "challenge"),
        answers: text(walk, s, "answers"),
        alternatives: data(walk, s, "alternatives"),
    };
    let scheme = scheme?;
    if scheme.value == "custom" {
        return Some(spec);
    }
    if let Some(key) = SchemeSpec::FIELDS.into_iter().find(|key| s.has(key)) {
        walk.problem(
            &scheme.place,
            &s.path(key),
            format!("`{key}` describes a scheme of one's own, and the scheme is `{}`", scheme.value),
            "write scheme = \"custom\", or remove the description",
        );
    }
    None
}

fn signature(walk: &mut Walk<'_>, mut s: Section<'_>) -> SigSpec {
    let spec = SigSpec {
        at: texts(walk, &mut s, "at"),
        split: text(walk, &mut s, "split"),
        pair: text(walk, &mut s, "pair"),
        take: texts(walk, &mut s, "take"),
        prefix: text(walk, &mut s, "prefix"),
        encoding: text(walk, &mut s, "encoding"),
    };
    s.close(walk);
    spec
}

fn timestamp(walk: &mut Walk<'_>, mut s: Section<'_>) -> TimeSpec {
    let units = [("s", "s"), ("ms", "ms"), ("rfc3339", "rfc3339")];
    for key in ["var", "unit", "tolerance"] {
        if !s.has(key) {
            walk.reject(
                &s.at(),
                format!("`time` needs `{key}`"),
                "write e.g. time = { var = \"t\", unit = \"s\", tolerance = 300 }",
            );
        }
    }
    let spec = TimeSpec {
        var: text(walk, &mut s, "var").unwrap_or_default(),
        unit: s.choice(walk, "unit", &units).map(|at| at.value.to_owned()).unwrap_or_default(),
        tolerance: s.seconds(walk, "tolerance", 1..=604_800).map_or(0, |at| u64::from(at.value)),
    };
    s.close(walk);
    spec
}

fn text(walk: &mut Walk<'_>, s: &mut Section<'_>, key: &'static str) -> Option<String> {
    s.string(walk, key).map(|at| at.value)
}

fn one_or_more(walk: &mut Walk<'_>, s: &mut Section<'_>, key: &'static str) -> Vec<String> {
    s.one_or_more(walk, key).map(|at| at.value).unwrap_or_default().into_iter().map(|at| at.value).collect()
}

/// A list of tables in the form that the verification room reads itself.
fn data<T: serde::de::DeserializeOwned>(walk: &mut Walk<'_>, s: &mut Section<'_>, key: &'static str) -> Vec<T> {
    let Some(at) = s.json_list(walk, key) else { return Vec::new() };
    match serde_path_to_error::deserialize(at.value.clone()) {
        Ok(list) => list,
        Err(e) => {
            walk.reject(&at, format!("{}: {}", e.path(), e.inner()), "write it as the reference of sources shows");
            Vec::new()
        }
    }
}

fn texts(walk: &mut Walk<'_>, s: &mut Section<'_>, key: &'static str) -> Vec<String> {
    s.strings(walk, key).map(|at| at.value).unwrap_or_default().into_iter().map(|at| at.value).collect()
}

/// One entry of a list of secrets.
pub(super) struct Found {
    pub(super) at: At<()>,
    pub(super) written: SecretRef,
    pub(super) expires: Option<At<Timestamp>>,
    /// `None`: it could not be had (reported), or was not to be looked for.
    pub(super) secret: Option<Secret>,
}

/// Reads a list of secrets and looks whether they are there.
pub(super) fn secrets(
    walk: &mut Walk<'_>,
    s: &mut Section<'_>,
    key: &'static str,
    tables: Tables,
) -> Option<Vec<Found>> {
    let list = s.secrets(walk, key, tables)?;
    if list.value.len() > SECRETS_MAX {
        walk.reject(
            &list,
            format!("{} secrets are too many", list.value.len()),
            format!("keep at most {SECRETS_MAX}: the current one and those being rotated out"),
        );
    }
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    let none_written = list.value.is_empty();
    for entry in list.value {
        let (at, expires) = match entry {
            Entry::Text(at) => (at, None),
            Entry::Table(table) => match expiring(walk, table) {
                Some(read) => read,
                None => continue,
            },
        };
        if !seen.insert(at.value.clone()) {
            walk.reject(&at, "this secret stands here twice", "remove one of the two");
            continue;
        }
        let base = walk.base_of(&at.place).to_owned();
        let written = SecretRef::parse(&at.value, &base);
        let at = at.with(());
        if let SecretRef::Env(name) = &written {
            walk.referenced.insert(name.clone());
        }
        let secret = if at_hand(walk, &written) { resolved(walk, &at, &written) } else { None };
        all.push(Found { at, written, expires, secret });
    }
    (all.is_empty() == none_written).then_some(all)
}

/// `{ value, expires }`.
fn expiring(walk: &mut Walk<'_>, mut s: Section<'_>) -> Option<(At<String>, Option<At<Timestamp>>)> {
    let value = s.string(walk, "value");
    if !s.has("value") {
        let remedy = "write e.g. { value = \"env:OLD_SECRET\", expires = \"2026-12-31T00:00:00Z\" }";
        walk.reject(&s.at(), "a secret needs a `value`", remedy);
    }
    let expires = s.string(walk, "expires").and_then(|at| match Timestamp::parse_rfc3339(&at.value) {
        Some(when) => Some(at.with(when)),
        None => {
            walk.reject(&at, "not a time", "write RFC 3339, e.g. \"2026-12-31T00:00:00Z\"");
            None
        }
    });
    s.close(walk);
    Some((value?, expires))
}

fn at_hand(walk: &Walk<'_>, written: &SecretRef) -> bool {
    walk.outside == Outside::Look || matches!(written, SecretRef::Literal(_))
}

fn resolved(walk: &mut Walk<'_>, at: &At<()>, written: &SecretRef) -> Option<Secret> {
    match written.resolve(walk.env) {
        Ok(secret) => {
            if secret.expose().len() < SECRET_BYTES_GOOD {
                walk.warn(at, "the secret is shorter than 16 bytes", "use a longer one where the provider allows it");
            }
            let text = secret.expose();
            if text.trim_ascii() != text && !text.starts_with(b"-----BEGIN") {
                walk.warn(
                    at,
                    "the secret begins or ends with a blank or a line end, which counts as part of it",
                    "remove it, unless the provider's own has it",
                );
            }
            Some(secret)
        }
        Err(fault) => {
            let remedy = match written {
                _ if matches!(fault, SecretFault::Unnamed(_)) => "write e.g. env:GITHUB_WEBHOOK_SECRET".to_owned(),
                SecretRef::Env(name) => format!("set `{name}` where the gateway is started"),
                SecretRef::File(_) => "make the file, readable by the gateway's user".to_owned(),
                SecretRef::Literal(_) => "write env:NAME, file:PATH, or the secret".to_owned(),
            };
            walk.reject(at, fault.to_string(), remedy);
            None
        }
    }
}

/// `rate = { per_second, burst }`.
pub(super) fn rate(walk: &mut Walk<'_>, s: &mut Section<'_>) -> Option<Rate> {
    let mut s = s.table(walk, "rate")?;
    let per_second = s.number(walk, "per_second");
    let burst = s.integer(walk, "burst", 1..=1_000_000);
    if !s.has("per_second") {
        walk.reject(&s.at(), "`rate` needs `per_second`", "write e.g. rate = { per_second = 50, burst = 100 }");
    }
    let at = s.at();
    s.close(walk);
    let per_second = per_second?.value;
    if !(0.001..=100_000.0).contains(&per_second) {
        let nothing = if per_second == 0.0 { ": nothing would ever pass" } else { "" };
        let message = format!("per_second = {per_second} is out of range{nothing}");
        walk.reject(&at, message, "write a number from 0.001 to 100000");
        return None;
    }
    // Without a burst of its own: what comes in a second, at least one.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded just above")]
    let second = per_second.ceil() as u32;
    Some(Rate { per_second, burst: burst.map_or(second, |at| at.value) })
}
