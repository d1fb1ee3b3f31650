//! What to tell whoever made an event that no endpoint takes.

use super::Tenant;
use crate::delivery::{Name, Route};

/// More endpoints, and more of one's globs or sources, are only counted.
const TOLD_MAX: usize = 8;

impl Tenant {
    /// Why an event of `event_type` from `source` (`None`: published by API) has no delivery.
    pub(super) fn why_untaken(&self, source: Option<&Name>, event_type: &str) -> String {
        let takes = |route: &Route| route.takes(source, event_type);
        if self.endpoints.is_empty() {
            return "no endpoint takes it: this tenant has none; declare one in the configuration file, and reload"
                .to_owned();
        }
        if let Some((name, _)) = self.endpoints.iter().find(|(_, endpoint)| takes(&endpoint.route)) {
            return format!("no endpoint took it when it came; `{name}` would by now: send it again");
        }
        let from = source.map_or_else(|| "published by API".to_owned(), |source| format!("from source `{source}`"));
        let all = self.endpoints.iter().map(|(name, endpoint)| format!("`{name}` takes {}", taken(&endpoint.route)));
        format!("no endpoint takes `{event_type}` {from}: {}", few(all, "; "))
    }
}

fn taken(route: &Route) -> String {
    let types = match route.event_types.patterns() {
        [] => "every type".to_owned(),
        patterns => few(patterns.iter().cloned(), ", "),
    };
    match &route.sources {
        None => types,
        Some(sources) => format!("{types} from {}", few(sources.iter().map(ToString::to_string), ", ")),
    }
}

fn few(all: impl ExactSizeIterator<Item = String>, between: &str) -> String {
    let more = all.len().saturating_sub(TOLD_MAX);
    let mut told: Vec<String> = all.take(TOLD_MAX).collect();
    if more > 0 {
        told.push(format!("and {more} more"));
    }
    told.join(between)
}

#[cfg(test)]
mod tests {
    use super::super::{Endpoint, Shown};
    use super::*;
    use crate::delivery::{EventTypes, Order};
    use crate::ledger::{EndpointKey, TenantKey};

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn tenant(endpoints: &[(&str, &[&str], &[&str])]) -> Tenant {
        let endpoints = endpoints.iter().map(|(endpoint, sources, types)| {
            let sources = (!sources.is_empty()).then(|| sources.iter().map(|source| name(source)).collect());
            let event_types = EventTypes::new(types.iter().map(ToString::to_string).collect()).unwrap();
            let (key, shown, route) = (EndpointKey(1), Shown::default(), Route { sources, event_types });
            let order = Order::Free;
            let endpoint_of = Endpoint {
                key,
                route,
                order,
                plugin: None,
                generated_secret: None,
                disable_after: None,
                pull: None,
                shown,
            };
            (name(endpoint), endpoint_of)
        });
        Tenant { key: TenantKey(1), sources: [].into(), endpoints: endpoints.collect(), plugins: [].into() }
    }

    #[test]
    fn the_globs_there_are_are_told() {
        let two = tenant(&[("billing", &[], &["push", "invoice.*"]), ("mirror", &["github", "stripe"], &[])]);
        assert_eq!(
            two.why_untaken(None, "inovice.paid"),
            "no endpoint takes `inovice.paid` published by API: `billing` takes push, invoice.*; \
             `mirror` takes every type from github, stripe"
        );
        assert!(two.why_untaken(Some(&name("slack")), "x").starts_with("no endpoint takes `x` from source `slack`: "));
        assert!(two.why_untaken(Some(&name("github")), "x").contains("`mirror` would by now"));
        assert!(tenant(&[]).why_untaken(None, "x").contains("this tenant has none"));
        let many = tenant(&[("billing", &[], &["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"])]);
        assert!(many.why_untaken(None, "x").ends_with("g, h, and 2 more"), "{}", many.why_untaken(None, "x"));
    }
}
