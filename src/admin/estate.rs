//! What is configured, as far as the API shows it or publishes by it.

use super::answer;
use super::input::{Nothing, parse_or_default};
use super::query::Query;
use super::{At, ledger_problem, not_found};
use crate::delivery::{Name, Order, PluginVersionId, Route};
use crate::http::{Answer, Problem};
use crate::ledger::{EndpointKey, SourceKey, TenantKey};
use crate::secret::Secret;
use http::StatusCode;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Every tenant.
#[derive(Clone, Debug, Default)]
pub struct Estate {
    pub tenants: BTreeMap<Name, Tenant>,
}

#[derive(Clone, Debug)]
pub struct Tenant {
    pub key: TenantKey,
    pub sources: BTreeMap<Name, Source>,
    pub endpoints: BTreeMap<Name, Endpoint>,
    pub plugins: BTreeMap<Name, Plugin>,
}

#[derive(Clone, Debug)]
pub struct Plugin {
    /// The version that the operator's file holds; `None`: the API manages it.
    pub by_file: Option<PluginVersionId>,
    /// Of one upload.
    pub component_bytes_max: u64,
}

#[derive(Clone, Debug)]
pub struct Source {
    pub key: SourceKey,
    /// It takes the secret that its provider hands over.
    pub adopts: bool,
    pub shown: Shown,
}

#[derive(Clone, Debug)]
pub struct Endpoint {
    pub key: EndpointKey,
    /// Which published events it gets.
    pub route: Route,
    pub order: Order,
    /// One of the tenant's.
    pub plugin: Option<Name>,
    /// The signing secret that the gateway made for it; `None`: the file names its own.
    pub generated_secret: Option<Secret>,
    /// Nothing but failures for so long disable it.
    pub disable_after: Option<Duration>,
    /// How long its consumers have, unless they ask for another time; `None`: it is sent to.
    pub pull: Option<Duration>,
    pub shown: Shown,
}

/// A resource with the fields of the file, less its secrets.
#[derive(Clone, Debug, Default)]
pub struct Shown(Map<String, Value>);

impl Shown {
    /// Fields that hold secrets, and `name`, are left out whoever put them in.
    pub fn new(fields: Map<String, Value>) -> Self {
        const NEVER: [&str; 3] = ["secrets", "signing_secrets", "name"];
        Shown(fields.into_iter().filter(|(field, _)| !NEVER.contains(&field.as_str())).collect())
    }

    /// The resource by its name.
    pub(super) fn named(&self, name: &Name) -> Map<String, Value> {
        let mut all = Map::with_capacity(self.0.len() + 1);
        all.insert("name".to_owned(), name.as_str().into());
        all.extend(self.0.clone());
        all
    }
}

impl Estate {
    pub(super) fn tenant(&self, name: &str) -> Option<(&Name, &Tenant)> {
        self.tenants.get_key_value(name)
    }

    pub(super) fn tenants(&self, query: Option<&str>) -> Result<Answer, Problem> {
        by_name(self.tenants.iter().map(|(name, tenant)| (name, tenant.described(name))), query)
    }
}

impl Tenant {
    fn described(&self, name: &Name) -> Value {
        let sources: Vec<_> = self.sources.keys().collect();
        let endpoints: Vec<_> = self.endpoints.keys().collect();
        let plugins: Vec<_> = self.plugins.keys().collect();
        json!({ "name": name, "sources": sources, "endpoints": endpoints, "plugins": plugins })
    }
}

impl At<'_> {
    pub(super) fn tenant_itself(&self) -> Result<Answer, Problem> {
        Query::of(self.query).finish()?;
        Ok(answer::json(&self.tenant.described(self.name)))
    }

    pub(super) fn sources(&self) -> Result<Answer, Problem> {
        let sources = self.tenant.sources.iter().map(|(name, source)| (name, self.described_source(name, source)));
        by_name(sources, self.query)
    }

    pub(super) fn source(&self, name: &str) -> Result<Answer, Problem> {
        Query::of(self.query).finish()?;
        let (name, source) = self.tenant.sources.get_key_value(name).ok_or_else(not_found)?;
        Ok(answer::json(&self.described_source(name, source)))
    }

    fn described_source(&self, name: &Name, source: &Source) -> Value {
        let held = self.ledger().adopted(source.key);
        let mut all = source.shown.named(name);
        let adoption = match (source.adopts, &held) {
            (true, None) => Some("awaited"),
            (true, Some(_)) => Some("held"),
            // The file names secrets by now.
            (false, Some(_)) => Some("unused"),
            (false, None) => None,
        };
        all.insert("adoption".to_owned(), adoption.into());
        all.insert("adopted_at".to_owned(), held.map(|held| held.at.to_rfc3339()).into());
        all.into()
    }

    /// The next handshake brings the source its secret again.
    pub(super) async fn forget_secret(&self, name: &str, body: &[u8]) -> Result<Answer, Problem> {
        let Nothing {} = parse_or_default(body)?;
        let (name, source) = self.tenant.sources.get_key_value(name).ok_or_else(not_found)?;
        let forgotten = self.ledger().forget(self.tenant.key, source.key).await;
        if forgotten.map_err(|error| ledger_problem(&error))? {
            tracing::info!(tenant = %self.name, source = %name, "the secret that the source had adopted is forgotten");
        } else if !source.adopts {
            return Err(Problem::new(
                StatusCode::CONFLICT,
                "managed_by_file",
                "this source takes no secret from its provider: the configuration file says what verifies",
            ));
        }
        Ok(answer::json(&self.described_source(name, source)))
    }
}

/// One page of resources that are sorted by name; the cursor is the last one's name.
pub(super) fn by_name<'a>(
    all: impl Iterator<Item = (&'a Name, Value)>,
    query: Option<&str>,
) -> Result<Answer, Problem> {
    let mut query = Query::of(query);
    let page = query.page()?;
    query.finish()?;
    let after = match page.cursor {
        Some(cursor) => {
            Some(cursor.0.parse::<Name>().map_err(|_| ledger_problem(&crate::ledger::LedgerError::BadCursor))?)
        }
        None => None,
    };
    let mut rest = all.skip_while(|(name, _)| after.as_ref().is_some_and(|after| *name <= after)).peekable();
    let mut items = Vec::new();
    let mut last = None;
    while items.len() < usize::try_from(page.limit).unwrap_or(usize::MAX)
        && let Some((name, item)) = rest.next()
    {
        items.push(item);
        last = Some(name);
    }
    let next = if rest.peek().is_some() { last } else { None };
    Ok(answer::json(&json!({ "items": items, "next": next })))
}
