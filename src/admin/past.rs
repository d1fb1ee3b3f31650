//! Plugins and what was recorded: a version tried on it, and the calls that were made.

use super::input::{invalid, parse};
use super::plugins::{Refusal, refused};
use super::query::{PastQuery, Query};
use super::{At, answer, ledger_problem, not_found};
use crate::clock::Timestamp;
use crate::delivery::{DeliveryId, Name, PluginVersionId};
use crate::http::{Answer, Connection, Problem};
use crate::ledger::{Cursor, LedgerError, PastFilter, PastPlace, TenantKey};
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// Attempts that one call looks at.
const LIMIT_MAX: u32 = 10_000;
const LIMIT_DEFAULT: u32 = 1_000;
/// How far a window's attempts are counted.
const TOTAL_MAX: u32 = 100_000;

/// Who calls versions again on what was recorded. It sends nothing, and changes nothing.
#[async_trait]
pub trait Rehearsal: Send + Sync + 'static {
    /// Dropped, it stops.
    async fn dry_run(&self, run: DryRun) -> Result<DryRunPage, Unheard>;
    /// The calls of recorded attempts, as fixtures.
    async fn replayed(&self, replay: Replay) -> Result<ReplayedPage, Unheard>;
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DryRun {
    pub tenant: Name,
    pub key: TenantKey,
    pub plugin: Name,
    pub version: PluginVersionId,
    pub filter: PastFilter,
    pub from: Option<PastPlace>,
    pub limit: u32,
}

/// What was looked at, and what would change.
#[derive(Clone, Debug, Default)]
pub struct DryRunPage {
    /// The version that is in use.
    pub active: Option<PluginVersionId>,
    pub scanned: u32,
    pub verdicts: Value,
    pub requests: Value,
    pub items: Vec<Value>,
    /// Where to go on; `None`: all was looked at.
    pub next: Option<PastPlace>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replay {
    pub tenant: Name,
    pub key: TenantKey,
    pub plugin: Name,
    pub filter: PastFilter,
    pub from: Option<PastPlace>,
    pub limit: u32,
}

#[derive(Clone, Debug, Default)]
pub struct ReplayedPage {
    pub items: Vec<Value>,
    pub next: Option<PastPlace>,
}

/// Why not.
#[derive(Clone, Debug)]
pub enum Unheard {
    Refused(Box<Refusal>),
    /// As many run as may.
    Running,
    /// Live calls have taken every turn.
    NoTurn,
}

impl From<LedgerError> for Unheard {
    fn from(error: LedgerError) -> Self {
        Refusal::Ledger(error).into()
    }
}

impl From<Refusal> for Unheard {
    fn from(refusal: Refusal) -> Self {
        Unheard::Refused(Box::new(refusal))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DryRunInput {
    version: String,
    since: Option<String>,
    limit: Option<u32>,
    cursor: Option<String>,
}

impl At<'_> {
    pub(super) async fn dry_run(&self, name: &str, body: &[u8], connection: &Connection) -> Result<Answer, Problem> {
        Query::of(self.query).finish()?;
        let (name, plugin) = self.tenant.plugins.get_key_value(name).ok_or_else(not_found)?;
        if plugin.by_file.is_some() {
            return Err(Problem::new(
                StatusCode::CONFLICT,
                "managed_by_file",
                "the configuration file says which version there is: take out its `path`, reload, and upload the \
                 versions to be tried",
            ));
        }
        let input: DryRunInput = parse(body)?;
        let version: PluginVersionId =
            input.version.parse().map_err(|_| invalid("version", "is to be a version's id: `plg_…`"))?;
        let since = input.since.as_deref().map(|text| self.since(text)).transpose()?;
        let limit = input.limit.unwrap_or(LIMIT_DEFAULT);
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(invalid("limit", format!("is to be a number from 1 to {LIMIT_MAX}")));
        }
        let filter = PastFilter { endpoints: self.users(name), since, ..PastFilter::default() };
        let list = format!("dry-run {name} {version} {since:?}");
        let before = input.cursor.map(|text| self.mark(&list, &text)).transpose()?;
        let total = match &before {
            Some(mark) => mark.total,
            None => {
                let counted = self.ledger().count_past(self.tenant.key, &filter, TOTAL_MAX).await;
                counted.map_err(|error| ledger_problem(&error))?
            }
        };
        let run = DryRun {
            tenant: self.name.clone(),
            key: self.tenant.key,
            plugin: name.clone(),
            version,
            filter: filter.clone(),
            from: before.as_ref().map(|mark| mark.place),
            limit,
        };
        let page = tokio::select! {
            biased;
            page = self.admin.state.rehearsal.dry_run(run) => page.map_err(unheard)?,
            () = connection.gone() => {
                tracing::info!(tenant = %self.name, plugin = %name, %version, "a dry run was given up: its client is gone");
                return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "gone", "the client went away"));
            }
        };
        let scanned = before.map_or(0, |mark| mark.scanned).saturating_add(page.scanned);
        let next = page.next.map(|place| Mark { place, scanned, total }.cursor(self.tenant.key.0, &list));
        let mut told = json!({
            "version": version,
            "active": page.active,
            "since": since,
            "scanned": scanned,
            // What came meanwhile was looked at, too.
            "total": total.max(scanned),
            "total_is_exact": total < TOTAL_MAX,
            "verdicts": page.verdicts,
            "requests": page.requests,
            "items": page.items,
            "next": next,
        });
        if total == 0 && page.scanned == 0 {
            told["hint"] = json!(self.nothing(name, &filter));
        }
        Ok(answer::json(&told))
    }

    pub(super) async fn plugin_attempts(&self, name: &str) -> Result<Answer, Problem> {
        let (name, _) = self.tenant.plugins.get_key_value(name).ok_or_else(not_found)?;
        let mut query = Query::of(self.query);
        let PastQuery { endpoint, mut filter } = query.past()?;
        let page = query.page()?;
        query.finish()?;
        filter.endpoints = self.users(name);
        if let Some(endpoint) = endpoint {
            let known = self.tenant.endpoints.get(&endpoint).filter(|known| known.plugin.as_ref() == Some(name));
            let rule = || format!("is to be an endpoint with `plugin = \"{name}\"`");
            filter.endpoints = vec![known.ok_or_else(|| parameter("endpoint", &rule()))?.key];
        }
        if let Some(since) = filter.since {
            self.not_in_the_future(since).map_err(|rule| parameter("since", rule))?;
        }
        filter.by_plugin = true;
        let list = format!("attempts {name} {filter:?}");
        let before = page.cursor.map(|Cursor(text)| self.mark(&list, &text)).transpose()?;
        let replay = Replay {
            tenant: self.name.clone(),
            key: self.tenant.key,
            plugin: name.clone(),
            filter: filter.clone(),
            from: before.as_ref().map(|mark| mark.place),
            limit: page.limit,
        };
        let found = self.admin.state.rehearsal.replayed(replay).await.map_err(unheard)?;
        let next = found.next.map(|place| Mark { place, scanned: 0, total: 0 }.cursor(self.tenant.key.0, &list));
        let mut told = json!({ "items": found.items, "next": next });
        if found.items.is_empty() && before.is_none() {
            told["hint"] = json!(self.nothing(name, &filter));
        }
        Ok(answer::json(&told))
    }

    /// The endpoints that use the plugin.
    fn users(&self, plugin: &Name) -> Vec<crate::ledger::EndpointKey> {
        let all = self.tenant.endpoints.values();
        all.filter(|endpoint| endpoint.plugin.as_ref() == Some(plugin)).map(|endpoint| endpoint.key).collect()
    }

    fn since(&self, text: &str) -> Result<Timestamp, Problem> {
        let since = Timestamp::parse_rfc3339(text)
            .ok_or_else(|| invalid("since", "is to be an RFC 3339 time, such as 2026-01-31T08:00:00Z"))?;
        self.not_in_the_future(since).map(|()| since).map_err(|rule| invalid("since", rule))
    }

    fn not_in_the_future(&self, since: Timestamp) -> Result<(), &'static str> {
        if since > self.admin.state.clock.now() { Err("is in the future: nothing was recorded then") } else { Ok(()) }
    }

    /// Why there is nothing.
    fn nothing(&self, name: &Name, filter: &PastFilter) -> String {
        match (filter.endpoints.is_empty(), filter.since) {
            (true, _) => format!("no endpoint uses the plugin: name it in one, `plugin = \"{name}\"`"),
            (false, Some(since)) => {
                format!("no such attempt is recorded of events since {}: begin earlier", since.to_rfc3339())
            }
            (false, None) => "no such attempt is recorded for the endpoints that use the plugin".to_owned(),
        }
    }

    fn mark(&self, list: &str, text: &str) -> Result<Mark, Problem> {
        Mark::read(self.tenant.key.0, list, text).ok_or_else(|| ledger_problem(&LedgerError::BadCursor))
    }
}

fn parameter(name: &'static str, rule: &str) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", format!("`{name}` {rule}")).with("parameter", name)
}

fn unheard(why: Unheard) -> Problem {
    match why {
        Unheard::Refused(refusal) => refused(*refusal),
        Unheard::Running => Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            "dry_run_running",
            "a tenant has one dry run at a time, and all tenants together few: try again when it is done",
        )
        .retry_after(Duration::from_secs(1)),
        Unheard::NoTurn => Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "no_turn",
            "deliveries have all the turns for plugin calls, and go first: try again in a while",
        )
        .retry_after(Duration::from_secs(5)),
    }
}

/// Where a page of one list ends, and how far the list has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Mark {
    place: PastPlace,
    scanned: u32,
    total: u32,
}

impl Mark {
    fn cursor(self, tenant: u32, list: &str) -> String {
        let mut bytes = self.place.delivery.to_bytes().to_vec();
        for n in [self.place.number, self.scanned, self.total] {
            bytes.extend_from_slice(&n.to_be_bytes());
        }
        let sum = sum(&bytes, tenant, list);
        bytes.extend_from_slice(&sum);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    fn read(tenant: u32, list: &str, text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (body, given) = bytes.split_at_checked(28)?;
        let number = |at: usize| Some(u32::from_be_bytes(body.get(at..at + 4)?.try_into().ok()?));
        let place =
            PastPlace { delivery: DeliveryId::from_bytes(body.get(..16)?.try_into().ok()?), number: number(16)? };
        (given == sum(body, tenant, list)).then_some(Mark { place, scanned: number(20)?, total: number(24)? })
    }
}

/// That a cursor is of this list; it opens nothing that its holder may not see.
fn sum(bytes: &[u8], tenant: u32, list: &str) -> [u8; 4] {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&tenant.to_be_bytes());
    sum.update(list.as_bytes());
    sum.update(bytes);
    sum.finalize().to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_good_for_its_list() {
        let place = PastPlace { delivery: DeliveryId::from_bytes([7; 16]), number: 3 };
        let mark = Mark { place, scanned: 1_000, total: 5_214 };
        let text = mark.cursor(1, "a list");
        assert_eq!(Mark::read(1, "a list", &text), Some(mark));
        for (tenant, list, text) in [
            (2, "a list", text.as_str()),
            (1, "another", &text),
            (1, "a list", &text[1..]),
            (1, "a list", ""),
            (1, "a list", "!"),
        ] {
            assert_eq!(Mark::read(tenant, list, text), None, "{tenant} {list} {text}");
        }
    }
}
