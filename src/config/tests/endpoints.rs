//! What an endpoint's own keys mean, and which go together.

use super::*;

#[test]
fn a_pull_endpoint_keeps_what_has_a_meaning_there() {
    let pull = |more: &str| settled(&pulled(more)).tenants[&name("a")].endpoints[&name("e")].clone();
    let lease = |endpoint: &EndpointSettings| match &endpoint.way {
        Way::Pull(pull) => pull.lease,
        Way::Push(_) => panic!("it is pulled from"),
    };
    assert_eq!(lease(&pull("")), Duration::from_secs(30));
    let kept = "lease = \"10m\"\nevent_types = [\"invoice.*\"]\non_ambiguous = \"hold\"\nordering = \"none\"\n\
                retry = { max_attempts = 2, delays = [\"1s\"] }";
    let endpoint = pull(kept);
    assert_eq!(lease(&endpoint), Duration::from_secs(600));
    assert!(endpoint.route.event_types.matches("invoice.paid") && !endpoint.route.event_types.matches("push"));
    assert_eq!((endpoint.terms.on_ambiguous, endpoint.terms.retry.max_attempts), (OnAmbiguous::Hold, 2));
    assert_eq!(endpoint.plugin(), None);
}

#[test]
fn a_pull_endpoint_refuses_what_only_sending_needs() {
    let of_push = [
        "url = \"https://x.example/\"",
        "plugin = \"rules\"",
        "plugin_config = { region = \"eu\" }",
        "on_plugin_fault = \"dead\"",
        "signing_secrets = [\"env:S\"]",
        "timeout = \"5s\"",
        "concurrency = 4",
        "rate = { per_second = 5 }",
        "idempotency_header = \"x-id\"",
        "breaker = { after = 5 }",
        "disable_after = \"1d\"",
        "on_dead = \"hold\"",
    ];
    let report = judged(&pulled(&of_push.join("\n")));
    for (at, line) in of_push.iter().enumerate() {
        let field = format!("tenants.a.endpoints.e.{}", line.split(' ').next().unwrap());
        let told: Vec<_> = report.problems.iter().filter(|p| p.field == field).collect();
        let refused = told.iter().filter(|p| p.message.contains("no meaning with `pull = true`")).collect::<Vec<_>>();
        assert_eq!(refused.len(), 1, "{field}: {told:?}");
        assert!(refused[0].remedy.starts_with("remove it"), "{field}: {}", refused[0].remedy);
        assert!(matches!(refused[0].position, Position::File { line, .. } if line == at + 3), "{:?}", refused[0]);
    }
}

#[test]
fn an_endpoint_scrubs_by_its_own_word_or_its_tenants() {
    let endpoint = |scrub: &str| format!("{scrub}\nurl = \"https://x.example/\"");
    for (tenant, own, scrubs) in [
        ("", "", false),
        ("scrub = true", "", true),
        ("scrub = true", "scrub = false", false),
        ("scrub = false", "scrub = true", true),
    ] {
        let report = judged(&format!("[tenants.a]\n{tenant}\n[tenants.a.endpoints.e]\n{}", endpoint(own)));
        let settings = report.settings.as_ref().unwrap_or_else(|| panic!("{}", report.lines()));
        assert_eq!(settings.tenants[&name("a")].endpoints[&name("e")].scrub, scrubs, "{tenant} {own}");
    }
    let report = judged(&format!("[tenants.a.endpoints.e]\npull = true\n{}", "scrub = true"));
    assert!(report.settings.unwrap().tenants[&name("a")].endpoints[&name("e")].scrub, "where consumers fetch, too");
}
