//! Query parameters: each is known, given once, and within its bounds.

use crate::clock::Timestamp;
use crate::delivery::{DeliveryId, DeliveryState, EventId, Name, PluginVersionId};
use crate::duration;
use crate::http::Problem;
use crate::ledger::{
    Cursor, DeadBy, DeadFilter, DeliveryFilter, EventFilter, PageRequest, PastFilter, RejectionFilter, WhichAlerts,
};
use http::StatusCode;
use std::str::FromStr;
use std::time::Duration;

const LIMIT_DEFAULT: u32 = 50;
const LIMIT_MAX: u32 = 200;

/// Which recorded attempts of a plugin's endpoints.
pub(super) struct PastQuery {
    /// Of this endpoint alone.
    pub(super) endpoint: Option<Name>,
    /// The endpoints are still to be filled in.
    pub(super) filter: PastFilter,
}

/// The parameters that nobody has asked for yet.
pub(super) struct Query {
    left: Vec<(String, String)>,
}

impl Query {
    pub(super) fn of(query: Option<&str>) -> Self {
        let pairs = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        Query { left: pairs.into_owned().collect() }
    }

    /// Whoever misspells a filter must not get everything.
    pub(super) fn finish(self) -> Result<(), Problem> {
        match self.left.into_iter().next() {
            None => Ok(()),
            Some((name, _)) => {
                let detail = format!("the parameter `{name}` is unknown here, or given twice");
                Err(Problem::new(StatusCode::BAD_REQUEST, "unknown_parameter", detail).with("parameter", name))
            }
        }
    }

    /// An empty value is as good as none.
    fn text(&mut self, name: &str) -> Option<String> {
        let at = self.left.iter().position(|(given, _)| given == name)?;
        Some(self.left.remove(at).1).filter(|value| !value.is_empty())
    }

    fn read<T>(
        &mut self,
        name: &'static str,
        rule: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Problem> {
        let Some(value) = self.text(name) else {
            return Ok(None);
        };
        read(&value).map(Some).ok_or_else(|| {
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", format!("`{name}` is to be {rule}"))
                .with("parameter", name)
        })
    }

    pub(super) fn flag(&mut self, name: &'static str) -> Result<Option<bool>, Problem> {
        self.read(name, "`true` or `false`", |value| value.parse().ok())
    }

    pub(super) fn span(&mut self, name: &'static str) -> Result<Option<Duration>, Problem> {
        self.read(name, "a duration, such as 1h, 24h or 7d", |value| duration::parse(value).ok())
    }

    pub(super) fn time(&mut self, name: &'static str) -> Result<Option<Timestamp>, Problem> {
        // An offset's plus sign that was not escaped arrives as a space.
        self.read(name, "an RFC 3339 time, such as 2026-01-31T08:00:00Z", |value| {
            Timestamp::parse_rfc3339(&value.replace(' ', "+"))
        })
    }

    pub(super) fn name(&mut self, name: &'static str) -> Result<Option<Name>, Problem> {
        self.read(name, "a name: 1 to 63 of a-z, 0-9 and -", |value| Name::from_str(value).ok())
    }

    pub(super) fn page(&mut self) -> Result<PageRequest, Problem> {
        let within = |value: &str| value.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
        let limit = self.read("limit", "a number from 1 to 200", within)?.unwrap_or(LIMIT_DEFAULT);
        Ok(PageRequest { limit, cursor: self.text("cursor").map(Cursor) })
    }

    pub(super) fn events(&mut self) -> Result<EventFilter, Problem> {
        Ok(EventFilter {
            source: self.name("source")?,
            event_type: self.text("type"),
            key: self.text("key"),
            since: self.time("since")?,
            until: self.time("until")?,
        })
    }

    pub(super) fn rejections(&mut self) -> Result<RejectionFilter, Problem> {
        Ok(RejectionFilter {
            source: self.name("source")?,
            reason: self.text("reason"),
            since: self.time("since")?,
            until: self.time("until")?,
        })
    }

    pub(super) fn past(&mut self) -> Result<PastQuery, Problem> {
        let verdict = |value: &str| ["delivered", "retryable", "terminal"].contains(&value).then(|| value.to_owned());
        let filter = PastFilter {
            endpoints: Vec::new(),
            since: self.time("since")?,
            delivery: self.read("delivery", "a delivery's id: `dlv_…`", |value| DeliveryId::from_str(value).ok())?,
            state: self.state()?,
            verdict: self.read("verdict", "one of delivered, retryable, terminal", verdict)?,
            reason: self.text("reason"),
            status: self.status()?,
            by_plugin: false,
        };
        Ok(PastQuery { endpoint: self.name("endpoint")?, filter })
    }

    pub(super) fn which_alerts(&mut self) -> Result<WhichAlerts, Problem> {
        let which = |value: &str| match value {
            "all" => Some(WhichAlerts::All),
            "firing" => Some(WhichAlerts::Firing),
            _ => None,
        };
        Ok(self.read("state", "one of all, firing", which)?.unwrap_or(WhichAlerts::All))
    }

    fn status(&mut self) -> Result<Option<u16>, Problem> {
        let status = |value: &str| value.parse().ok().filter(|status| (100..=999).contains(status));
        self.read("status", "a status code, such as 503", status)
    }

    pub(super) fn revision(&mut self) -> Result<Option<u32>, Problem> {
        self.read("revision", "a revision's number, from 1", |value| value.parse().ok().filter(|n| *n > 0))
    }

    /// All filters but `state`.
    pub(super) fn deliveries(&mut self) -> Result<DeliveryFilter, Problem> {
        Ok(DeliveryFilter {
            state: None,
            endpoint: self.name("endpoint")?,
            source: self.name("source")?,
            event_type: self.text("type"),
            key: self.text("key"),
            event: self.read("event", "an event's id: `evt_…`", |value| EventId::from_str(value).ok())?,
            reason: self.text("reason"),
            status: self.status()?,
            since: self.time("since")?,
            until: self.time("until")?,
            q: self.text("q"),
        })
    }

    /// A filter's fields as parameters; `ids` has commas between them.
    pub(super) fn dead(&mut self) -> Result<DeadFilter, Problem> {
        let ids = |value: &str| value.split(',').map(|id| DeliveryId::from_str(id).ok()).collect::<Option<Vec<_>>>();
        let filter = DeadFilter {
            endpoint: self.name("endpoint")?,
            source: self.name("source")?,
            event_type: self.text("type"),
            key: self.text("key"),
            event: self.read("event", "an event's id: `evt_…`", |value| EventId::from_str(value).ok())?,
            reason: self.text("reason"),
            status: self.status()?,
            host: self.text("host"),
            plugin_version: self
                .read("plugin_version", "a version's id: `plg_…`", |value| PluginVersionId::from_str(value).ok())?,
            since: self.time("since")?,
            until: self.time("until")?,
            ids: self.read("ids", "deliveries' ids with commas between them: `dlv_…,dlv_…`", ids)?,
            q: self.text("q"),
        };
        filter.check().map_err(|(field, rule)| {
            let detail = format!("`{field}` {rule}");
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail).with("parameter", field)
        })?;
        Ok(filter)
    }

    pub(super) fn grouping(&mut self) -> Result<Option<DeadBy>, Problem> {
        self.read("by", "one of destination, endpoint, plugin_version", |value| match value {
            "destination" => Some(DeadBy::Destination),
            "endpoint" => Some(DeadBy::Endpoint),
            "plugin_version" => Some(DeadBy::PluginVersion),
            _ => None,
        })
    }

    pub(super) fn state(&mut self) -> Result<Option<DeliveryState>, Problem> {
        let words = DeliveryState::ALL.map(DeliveryState::as_str).join(", ");
        self.read("state", &format!("one of {words}"), DeliveryState::parse)
    }
}
