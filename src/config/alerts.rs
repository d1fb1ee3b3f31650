//! `[alerts]` and `[tenants.<name>.alerts]`.

use super::section::{At, Section, Walk, nearest};
use super::settings::{Alerts, EndpointSettings, Tenant, TenantAlerts};
use crate::delivery::{AlertKind, Name, Ratio, Thresholds};
use crate::verify::ALERT_TYPE;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const EVERY: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(600);
const AGE: RangeInclusive<Duration> = MS..=Duration::from_secs(365 * 24 * 3_600);
const GRACE: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(30 * 24 * 3_600);
const MARGIN: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(30 * 24 * 3_600);
const WINDOW: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(7 * 24 * 3_600);
/// The figures by the minute reach back further.
const ENDED: RangeInclusive<Duration> = Duration::from_secs(60)..=Duration::from_secs(24 * 3_600);
const DEPTH_MAX: u32 = crate::delivery::DLQ_DEPTH_MAX;
const DISK: RangeInclusive<u64> = 1..=1 << 50;

/// Where the gateway's own alerts are to go, as it is written: judged when the tenants are known.
pub(super) struct Address {
    tenant: At<Name>,
    endpoint: At<Name>,
}

/// The gateway's section, before the tenants are read.
pub(super) fn gateway(walk: &mut Walk<'_>, root: &mut Section<'_>) -> (Alerts, Option<Address>) {
    let mut alerts = Alerts::default();
    let Some(mut s) = root.table(walk, "alerts") else { return (alerts, None) };
    if let Some(at) = s.duration(walk, "every", EVERY) {
        alerts.every = at.value;
    }
    let off = thresholds(walk, &mut s, &mut alerts.thresholds, &AlertKind::ALL);
    alerts.gateway.off = off;
    for (key, target) in
        [("ledger_bytes", &mut alerts.gateway.ledger_bytes), ("disk_free_bytes", &mut alerts.gateway.disk_free_bytes)]
    {
        if let Some(at) = s.size(walk, key, DISK) {
            *target = at.value;
        }
    }
    let (tenant, endpoint) = (named(walk, &mut s, "tenant"), named(walk, &mut s, "endpoint"));
    for (key, other) in [("tenant", "endpoint"), ("endpoint", "tenant")] {
        if s.has(key) && !s.has(other) {
            walk.reject(
                &s.at(),
                format!("`{key}` without `{other}` leads nowhere"),
                format!("name both, or neither: the alert endpoint is one of a tenant's ({other} = \"…\")"),
            );
        }
    }
    s.close(walk);
    (alerts, tenant.zip(endpoint).map(|(tenant, endpoint)| Address { tenant, endpoint }))
}

/// The gateway's alert endpoint is one that there is.
pub(super) fn gateway_route(
    walk: &mut Walk<'_>,
    address: Option<Address>,
    tenants: &BTreeMap<Name, Tenant>,
) -> Option<(Name, Name)> {
    let Address { tenant, endpoint } = address?;
    let Some(of) = tenants.get(&tenant.value) else {
        let remedy = match nearest(tenant.value.as_str(), tenants.keys().map(Name::as_str)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "declare it, or name another".to_owned(),
        };
        walk.reject(&tenant, format!("there is no tenant `{}`", tenant.value), remedy);
        return None;
    };
    check_endpoint(walk, &endpoint, &of.endpoints).then_some((tenant.value, endpoint.value))
}

/// A tenant's section; what it leaves out is as in `inherited`.
pub(super) fn tenant(
    walk: &mut Walk<'_>,
    s: &mut Section<'_>,
    inherited: &Thresholds,
    endpoints: &BTreeMap<Name, EndpointSettings>,
) -> TenantAlerts {
    let mut alerts = TenantAlerts { thresholds: inherited.clone(), endpoint: None };
    let Some(mut s) = s.table(walk, "alerts") else { return alerts };
    let of_tenants: Vec<AlertKind> = AlertKind::ALL.into_iter().filter(|kind| !kind.is_of_the_gateway()).collect();
    thresholds(walk, &mut s, &mut alerts.thresholds, &of_tenants);
    alerts.endpoint =
        named(walk, &mut s, "endpoint").filter(|at| check_endpoint(walk, at, endpoints)).map(|at| at.value);
    s.close(walk);
    alerts
}

/// The keys that both sections have. Gives what is switched off.
fn thresholds(
    walk: &mut Walk<'_>,
    s: &mut Section<'_>,
    t: &mut Thresholds,
    kinds: &[AlertKind],
) -> BTreeSet<AlertKind> {
    for (key, target, high) in [
        ("dlq_depth", &mut t.dlq_depth, DEPTH_MAX),
        ("flapping_times", &mut t.flapping_times, 100),
        ("terminal_min_count", &mut t.terminal_min_count, 1_000_000),
    ] {
        if let Some(at) = s.integer(walk, key, 1..=high) {
            *target = at.value;
        }
    }
    for (key, target, range) in [
        ("dlq_oldest_age", &mut t.dlq_oldest_age, AGE),
        ("erasure_margin", &mut t.erasure_margin, MARGIN),
        ("deadline_margin", &mut t.deadline_margin, MARGIN),
        ("paused_for", &mut t.paused_for, GRACE),
        ("disabled_for", &mut t.disabled_for, GRACE),
        ("flapping_window", &mut t.flapping_window, WINDOW),
        ("terminal_window", &mut t.terminal_window, ENDED),
        ("plugin_disabled_for", &mut t.plugin_disabled_for, GRACE),
    ] {
        if let Some(at) = s.duration(walk, key, range) {
            *target = at.value;
        }
    }
    if let Some(at) = s.string(walk, "terminal_rate") {
        match at.value.parse::<Ratio>().ok().filter(|rate| rate.ten_thousandths() > 0) {
            Some(rate) => t.terminal_rate = rate,
            None => walk.reject(
                &at,
                format!("`{}` is no share of what ended", at.value),
                "write a percentage above 0% and up to 100%, such as \"20%\" or \"2.5%\"".to_owned(),
            ),
        }
    }
    for at in s.strings(walk, "off").map(|at| at.value).unwrap_or_default() {
        match AlertKind::parse(&at.value).filter(|kind| kinds.contains(kind)) {
            Some(kind) => {
                t.off.insert(kind);
            }
            None => {
                let words = kinds.iter().map(|kind| kind.as_str());
                let remedy = match nearest(&at.value, words.clone()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("write some of {}", words.collect::<Vec<_>>().join(", ")),
                };
                walk.reject(&at, format!("`{}` is no kind of alert here", at.value), remedy);
            }
        }
    }
    t.off.clone()
}

fn named(walk: &mut Walk<'_>, s: &mut Section<'_>, key: &'static str) -> Option<At<Name>> {
    let at = s.string(walk, key)?;
    match at.value.parse() {
        Ok(name) => Some(at.with(name)),
        Err(_) => {
            walk.reject(&at, format!("`{}` is not a name", at.value), format!("write the {key}'s name"));
            None
        }
    }
}

/// Whether it is there; warns when it is more than an alert endpoint.
fn check_endpoint(walk: &mut Walk<'_>, at: &At<Name>, endpoints: &BTreeMap<Name, EndpointSettings>) -> bool {
    let Some(endpoint) = endpoints.get(&at.value) else {
        let remedy = match nearest(at.value.as_str(), endpoints.keys().map(Name::as_str)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "declare it as a table under the tenant's `endpoints`".to_owned(),
        };
        walk.reject(at, format!("the tenant has no endpoint `{}`", at.value), remedy);
        return false;
    };
    let patterns = endpoint.route.event_types.patterns();
    let alone = !patterns.is_empty() && patterns.iter().all(|pattern| pattern == ALERT_TYPE)
        || endpoint.route.sources.as_ref().is_some_and(Vec::is_empty);
    if !alone {
        walk.warn(
            at,
            format!("`{}` gets ordinary events too, and no alert is sent about its own trouble", at.value),
            format!("give alerts an endpoint of their own, with event_types = [\"{ALERT_TYPE}\"]"),
        );
    }
    true
}

#[cfg(test)]
mod tests {
    use crate::config::{Env, Report, check};
    use std::path::Path;

    const ENDPOINTS: &str = "[tenants.a.endpoints.ops]\nurl = \"https://x.example/\"\n\
                             event_types = [\"hookgate.alert\"]\n\
                             [tenants.a.endpoints.all]\nurl = \"https://x.example/\"\n";

    fn judged(text: &str, env: &Env) -> Report {
        check(&format!("{ENDPOINTS}{text}"), Path::new("hookgate.toml"), env)
    }

    #[test]
    fn every_rule_has_its_message() {
        let of = |line: &str| format!("[tenants.a.alerts]\n{line}");
        let all = |line: &str| format!("[alerts]\n{line}");
        for (text, line, field, word) in [
            (all("every = \"50ms\""), 7, "alerts.every", "from 100ms to 10m"),
            (all("dlq_depth = 0"), 7, "alerts.dlq_depth", "from 1 to 100000"),
            (of("dlq_depth = 100001"), 7, "tenants.a.alerts.dlq_depth", "from 1 to 100000"),
            (of("dlq_oldest_age = \"0s\""), 7, "tenants.a.alerts.dlq_oldest_age", "from 1ms to 365d"),
            (of("erasure_margin = 5"), 7, "tenants.a.alerts.erasure_margin", "no unit"),
            (of("deadline_margin = \"500ms\""), 7, "tenants.a.alerts.deadline_margin", "from 1s to 30d"),
            (of("paused_for = \"31d\""), 7, "tenants.a.alerts.paused_for", "from 0s to 30d"),
            (of("disabled_for = \"x\""), 7, "tenants.a.alerts.disabled_for", "not a duration"),
            (of("flapping_times = 101"), 7, "tenants.a.alerts.flapping_times", "from 1 to 100"),
            (of("flapping_window = \"8d\""), 7, "tenants.a.alerts.flapping_window", "from 1s to 7d"),
            (of("plugin_disabled_for = \"31d\""), 7, "tenants.a.alerts.plugin_disabled_for", "from 0s to 30d"),
            (of("terminal_rate = 0.5"), 7, "tenants.a.alerts.terminal_rate", "a string"),
            (of("terminal_rate = \"0%\""), 7, "tenants.a.alerts.terminal_rate", "above 0% and up to 100%"),
            (of("terminal_rate = \"101%\""), 7, "tenants.a.alerts.terminal_rate", "above 0% and up to 100%"),
            (of("terminal_window = \"2d\""), 7, "tenants.a.alerts.terminal_window", "from 1m to 1d"),
            (of("terminal_min_count = 0"), 7, "tenants.a.alerts.terminal_min_count", "from 1 to 1000000"),
            (of("off = [\"dlq_dept\"]"), 7, "tenants.a.alerts.off[0]", "did you mean `dlq_depth`"),
            (of("off = [\"ledger_size\"]"), 7, "tenants.a.alerts.off[0]", "no kind of alert here"),
            (of("every = \"1s\""), 7, "tenants.a.alerts.every", "unknown key"),
            (of("endpoint = \"op\""), 7, "tenants.a.alerts.endpoint", "did you mean `ops`"),
            (of("endpoint = \"O\""), 7, "tenants.a.alerts.endpoint", "not a name"),
            (of("endpoint = \"elsewhere\""), 7, "tenants.a.alerts.endpoint", "has no endpoint `elsewhere`"),
            (all("ledger_bytes = \"0B\""), 7, "alerts.ledger_bytes", "write a size from 1B"),
            (all("disk_free_bytes = \"1GB\""), 7, "alerts.disk_free_bytes", "not a size"),
            (all("tenant = \"a\""), 6, "alerts", "name both, or neither"),
            (all("endpoint = \"ops\""), 6, "alerts", "name both, or neither"),
            (all("tenant = \"b\"\nendpoint = \"ops\""), 7, "alerts.tenant", "there is no tenant `b`"),
            (all("tenant = \"a\"\nendpoint = \"opp\""), 8, "alerts.endpoint", "did you mean `ops`"),
        ] {
            let report = judged(&text, &Env::default());
            let lines = report.lines();
            assert_eq!(report.problems.len(), 1, "{text}\n{lines}");
            assert!(lines.starts_with(&format!("error: hookgate.toml:{line}:")), "{lines}");
            assert_eq!(report.problems[0].field, field, "{lines}");
            assert!(lines.contains(word) && !report.problems[0].remedy.is_empty(), "{lines}");
        }
    }

    #[test]
    fn an_endpoint_that_gets_everything_is_warned_of() {
        for (text, warned) in [
            ("[tenants.a.alerts]\nendpoint = \"ops\"", 0),
            ("[tenants.a.alerts]\nendpoint = \"all\"", 1),
            ("[alerts]\ntenant = \"a\"\nendpoint = \"all\"", 1),
        ] {
            let report = judged(text, &Env::default());
            assert_eq!(report.warnings.len(), warned, "{text}\n{}", report.lines());
            assert_eq!(report.lines().contains("event_types = [\"hookgate.alert\"]"), warned > 0);
        }
        let own =
            "[tenants.b.endpoints.e]\nurl = \"https://x.example/\"\nsources = []\n[tenants.b.alerts]\nendpoint = \"e\"";
        let report = judged(own, &Env::default());
        assert!(!report.lines().contains("gets ordinary events"), "{}", report.lines());
    }

    #[test]
    fn a_tenants_thresholds_have_variables() {
        let env =
            Env::from_pairs([("HOOKGATE_TENANTS__A__ALERTS__DLQ_DEPTH", "7"), ("HOOKGATE_ALERTS__PAUSED_FOR", "5m")]);
        let report = judged("", &env);
        let settings = report.settings.as_ref().unwrap_or_else(|| panic!("{}", report.lines()));
        let thresholds = &settings.tenants["a"].alerts.thresholds;
        assert_eq!((thresholds.dlq_depth, thresholds.paused_for.as_secs()), (7, 300));
    }
}
