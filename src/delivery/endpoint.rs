//! What routing knows of an endpoint, and what an endpoint can be.

use super::Name;
use crate::clock::Timestamp;
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde::Serialize;

/// Whether an endpoint is sent to. Work behind a paused or disabled endpoint stays pending.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum EndpointStatus {
    Enabled,
    /// Until a time (a throttle's `Retry-After`, a plugin's wish), or until somebody resumes it.
    Paused {
        until: Option<Timestamp>,
        why: String,
    },
    Disabled {
        why: String,
    },
}

impl EndpointStatus {
    /// Whether a send may start at `now`. A pause that has run out is over, whoever notices.
    pub fn is_open(&self, now: Timestamp) -> bool {
        match self {
            EndpointStatus::Enabled => true,
            EndpointStatus::Paused { until: Some(until), .. } => *until <= now,
            EndpointStatus::Paused { until: None, .. } | EndpointStatus::Disabled { .. } => false,
        }
    }
}

/// Event-type globs: `*` stands for any run of characters, dots included. No patterns at all match everything.
#[derive(Clone, Debug, Default)]
pub struct EventTypes {
    patterns: Vec<String>,
    set: Option<GlobSet>,
}

impl EventTypes {
    /// Compiles the patterns. The error names the pattern and what is wrong with it.
    pub fn new(patterns: Vec<String>) -> Result<Self, String> {
        let mut set = GlobSetBuilder::new();
        for p in &patterns {
            let glob = GlobBuilder::new(p).literal_separator(false).backslash_escape(false).build();
            set.add(glob.map_err(|e| format!("`{p}`: {}", e.kind()))?);
        }
        let set = if patterns.is_empty() { None } else { Some(set.build().map_err(|e| e.to_string())?) };
        Ok(EventTypes { patterns, set })
    }

    pub fn matches(&self, event_type: &str) -> bool {
        self.set.as_ref().is_none_or(|set| set.is_match(event_type))
    }

    pub fn patterns(&self) -> &[String] {
        &self.patterns
    }
}

/// Which events an endpoint gets.
#[derive(Clone, Debug, Default)]
pub struct Route {
    /// `None`: all of the tenant's sources, and events published by API.
    pub sources: Option<Vec<Name>>,
    pub event_types: EventTypes,
}

impl Route {
    /// Whether an event of `event_type` from `source` (`None`: published by API) goes this way.
    pub fn takes(&self, source: Option<&Name>, event_type: &str) -> bool {
        let by_source = match (&self.sources, source) {
            (None, _) => true,
            (Some(listed), Some(source)) => listed.contains(source),
            (Some(_), None) => false,
        };
        by_source && self.event_types.matches(event_type)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types(patterns: &[&str]) -> EventTypes {
        EventTypes::new(patterns.iter().map(|p| (*p).to_owned()).collect()).unwrap()
    }

    #[test]
    fn globs() {
        assert!(types(&[]).matches("anything"));
        assert!(types(&["invoice.*"]).matches("invoice.paid"));
        assert!(types(&["invoice.*"]).matches("invoice.line.added"));
        assert!(!types(&["invoice.*"]).matches("invoices"));
        assert!(types(&["push", "*.opened"]).matches("pull.opened"));
        assert!(EventTypes::new(vec!["[".into()]).unwrap_err().contains("`[`"));
    }

    #[test]
    fn routes() {
        let github: Name = "github".parse().unwrap();
        let stripe: Name = "stripe".parse().unwrap();
        let all = Route::default();
        assert!(all.takes(Some(&github), "push") && all.takes(None, "push"));
        let one = Route { sources: Some(vec![github.clone()]), event_types: types(&["push"]) };
        assert!(one.takes(Some(&github), "push"));
        assert!(!one.takes(Some(&stripe), "push"));
        assert!(!one.takes(Some(&github), "pull"));
        assert!(!one.takes(None, "push"));
    }

    #[test]
    fn a_pause_runs_out() {
        let at = |ms| Timestamp::from_millis(ms);
        let paused = EndpointStatus::Paused { until: Some(at(10)), why: "retry_after".into() };
        assert!(!paused.is_open(at(9)) && paused.is_open(at(10)));
        assert!(!EndpointStatus::Paused { until: None, why: "operator".into() }.is_open(at(10)));
    }
}
