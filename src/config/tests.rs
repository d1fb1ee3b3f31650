//! The room as a whole: every rule has a broken file, every setting an effect.

mod endpoints;

use super::report::walked;
use super::*;
use crate::clock::Timestamp;
use crate::delivery::{
    AlertKind, Backoff, BreakerPolicy, HealthPolicy, Jitter, Name, OnAmbiguous, OnDead, OnPluginFault, Order,
    Thresholds,
};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

const SECRET: &str = "0123456789abcdef";

fn env() -> Env {
    Env::from_pairs([
        ("S", SECRET),
        ("OTHER", "fedcba9876543210"),
        ("SHORT", "short"),
        ("W", "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="),
        ("EMPTY", ""),
    ])
}

fn judged(text: &str) -> Report {
    check(text, Path::new("hookgate.toml"), &env())
}

fn settled(text: &str) -> Settings {
    let report = judged(text);
    let lines = report.lines();
    report.settings.unwrap_or_else(|| panic!("{lines}"))
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// A tenant's endpoint with extra lines.
fn with_endpoint(extra: &str) -> String {
    format!("[tenants.a.endpoints.e]\nurl = \"https://x.example/\"\n{extra}\n")
}

fn pulled(extra: &str) -> String {
    format!("[tenants.a.endpoints.e]\npull = true\n{extra}\n")
}

fn with_source(extra: &str) -> String {
    format!(
        "[tenants.a.endpoints.e]\nurl = \"https://x.example/\"\n[tenants.a.sources.s]\nscheme = \"github\"\n{extra}\n"
    )
}

/// One mistake each: the text, the field it is reported under, and a word of the message or the remedy.
/// A real component: what a plugin's path leads to is looked into.
const SMS_RULES: &[u8] = include_bytes!("../../plugins/sms-rules.wasm");

#[test]
fn every_rule_has_its_message() {
    let e = |extra: &str| with_endpoint(extra);
    let s = |extra: &str| with_source(&format!("secrets = [\"env:S\"]\n{extra}"));
    const HMAC: &str = "verify = \"hmac-sha256\"\nsig = { at = [\"header:X\"], encoding = \"hex\" }";
    let of = |scheme: &str, extra: &str| with_source(extra).replace("\"github\"", &format!("\"{scheme}\""));
    let paypal = |extra: &str| of("paypal", extra);
    let c = |extra: &str| s(extra).replace("\"github\"", "\"custom\"");
    let cases: Vec<(String, &str, &str)> = vec![
        ("[server]\nadmin_hosts = [\"https://a.example\"]".into(), "server.admin_hosts[0]", "not the name of a host"),
        // Shape.
        ("[server]\ningres = \"x\"".into(), "server.ingres", "did you mean `ingress`"),
        ("[servr]".into(), "servr", "did you mean `server`"),
        ("server = 1".into(), "server", "a table"),
        ("tenants.Acme = {}".into(), "tenants.Acme", "not a name"),
        ("tenants.acme = 1".into(), "tenants.acme", "a table"),
        ("[server]\ningress = 8080".into(), "server.ingress", "a string"),
        ("[limits]\nqueued_max = \"many\"".into(), "limits.queued_max", "whole number"),
        ("[limits]\nqueued_max = 99999999999999999999".into(), "limits.queued_max", "64 bits"),
        ("[egress]\nallow_http = 1".into(), "egress.allow_http", "`true` or `false`"),
        ("[egress]\nallow = \"10.0.0.0/8\"".into(), "egress.allow", "list of strings"),
        ("[egress]\nallow = [1]".into(), "egress.allow[0]", "a string"),
        // Server.
        ("[server]\ningress = \"localhost:80\"".into(), "server.ingress", "address with a port"),
        ("[server]\nadmin = \"127.0.0.1:8080\"".into(), "server.admin", "same address"),
        ("[server]\ningress = \"0.0.0.0:8081\"".into(), "server.ingress", "same address"),
        ("[server]\nledger = \"postgres://u:pw@h/db\"".into(), "server.ledger", "PostgreSQL is not supported"),
        ("[server]\nledger = \"sqlite:\"".into(), "server.ledger", "needs a file"),
        ("[server]\nledger = \"sqlite::memory:\"".into(), "server.ledger", "needs a file"),
        ("[server]\nledger = \"mysql:x\"".into(), "server.ledger", "not a ledger"),
        ("[server]\nshutdown_grace = 25".into(), "server.shutdown_grace", "no unit"),
        ("[server]\nshutdown_grace = \"25 s\"".into(), "server.shutdown_grace", "not a duration"),
        ("[server]\nshutdown_grace = \"1h\"".into(), "server.shutdown_grace", "from 0s to 10m"),
        ("[server]\npublic_url = \"hooks.example\"".into(), "server.public_url", "public listener"),
        ("[server]\npublic_url = \"https://u:p@hooks.example\"".into(), "server.public_url", "public listener"),
        ("[server]\nthreads = 0".into(), "server.threads", "1 to 1024"),
        ("[server.log]\nlevel = \"loud\"".into(), "server.log.level", "\"error\" or \"warn\""),
        ("[server.log]\nformat = \"xml\"".into(), "server.log.format", "\"text\" or \"json\""),
        ("[server.tls]\ncert = \"x\"".into(), "server.tls", "not supported by this release"),
        ("scrub = []".into(), "scrub", "not supported by this release"),
        (
            with_source("secrets = [\"env:S\"]\nscrub = true"),
            "tenants.a.sources.s.scrub",
            "not supported by this release",
        ),
        ("[tenants.a]\nscrub = \"yes\"".into(), "tenants.a.scrub", "`true` or `false`"),
        // Limits.
        ("[limits]\nbody_bytes_max = \"26MiB\"".into(), "limits.body_bytes_max", "25MiB"),
        ("[limits]\nbody_bytes_max = \"1MB\"".into(), "limits.body_bytes_max", "not a size"),
        ("[limits]\nbody_bytes_max = -1".into(), "limits.body_bytes_max", "not a size"),
        ("[limits]\nbody_bytes_max = true".into(), "limits.body_bytes_max", "a size such as"),
        ("[limits]\nconnections_max = 0".into(), "limits.connections_max", "out of range"),
        ("[limits]\nhead_timeout = \"1ms\"".into(), "limits.head_timeout", "from 100ms"),
        ("[limits.plugins]\ncomponent_bytes_max = \"33MiB\"".into(), "limits.plugins.component_bytes_max", "32MiB"),
        ("[limits.plugins]\ncall_time_max = \"2s\"".into(), "limits.plugins.call_time_max", "to 1s"),
        (
            "[tenants.a.limits.plugins]\nmemory_bytes_max = \"1GiB\"".into(),
            "tenants.a.limits.plugins.memory_bytes_max",
            "128MiB",
        ),
        ("[tenants.a.limits]\nbody = 1".into(), "tenants.a.limits.body", "unknown key"),
        // Egress and retention.
        ("[egress]\nallow = [\"10.0.0.0\"]".into(), "egress.allow[0]", "not a network"),
        ("[egress]\nallow = [\"10.0.0.1/8\"]".into(), "egress.allow[0]", "10.0.0.0/8"),
        ("[egress]\nbody_bytes_read_max = 10".into(), "egress", "larger than body_bytes_read_max"),
        ("[retention]\nrows = \"1d\"".into(), "retention", "before their payloads"),
        ("[tenants.a.retention]\npayloads = \"91d\"".into(), "tenants.a.retention", "before their payloads"),
        // Sources.
        ("[tenants.a.sources.s]\nsecrets = [\"env:S\"]".into(), "tenants.a.sources.s", "needs a `scheme`"),
        (with_source(""), "tenants.a.sources.s", "at least one of `secrets`"),
        (with_source("secrets = []"), "tenants.a.sources.s", "at least one of `secrets`"),
        (with_source("secrets = \"env:S\""), "tenants.a.sources.s.secrets", "write a list: secrets = [\"env:S\"]"),
        (s("tolerance = \"5 m\""), "tenants.a.sources.s.tolerance", "as in 300 or \"5m\""),
        (s("tolerance = \"8d\""), "tenants.a.sources.s.tolerance", "seconds from 1 to 604800"),
        (
            with_source("secrets = \"env:S\"").replace("github", "asana"),
            "tenants.a.sources.s.secrets",
            "list of strings",
        ),
        (
            c(
                "challenge = [{ method = \"GET\", signed = false, check = { at = \"query:s\", adopt = true } }]\nverify = \"hmac-sha256\"\nsig = { at = [\"header:X\"], encoding = \"hex\" }",
            ),
            "tenants.a.sources.s.challenge[0].check.adopt",
            "from a POST alone",
        ),
        (with_source("secrets = [\"env:NONE\"]"), "tenants.a.sources.s.secrets[0]", "`NONE` is not set"),
        (with_source("secrets = [\"env:\"]"), "tenants.a.sources.s.secrets[0]", "nothing behind the colon"),
        (with_source("secrets = [\"file:\"]"), "tenants.a.sources.s.secrets[0]", "write e.g. env:GITHUB"),
        (with_source("secrets = [\"env:EMPTY\"]"), "tenants.a.sources.s.secrets[0]", "is empty"),
        (with_source("secrets = [\"\"]"), "tenants.a.sources.s.secrets[0]", "is empty"),
        (with_source("secrets = [\"file:/nowhere/s\"]"), "tenants.a.sources.s.secrets[0]", "cannot be read"),
        (with_source("secrets = [\"env:S\", \"env:S\"]"), "tenants.a.sources.s.secrets[1]", "twice"),
        (
            with_source("secrets = [\"env:S\",\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\"]"),
            "tenants.a.sources.s.secrets",
            "too many",
        ),
        (with_source("secrets = [{}]"), "tenants.a.sources.s.secrets[0]", "needs a `value`"),
        (
            with_source("secrets = [{ value = \"env:NONE\" }]"),
            "tenants.a.sources.s.secrets[0].value",
            "`NONE` is not set",
        ),
        (with_source("secrets = [{ value = 5 }]"), "tenants.a.sources.s.secrets[0].value", "a string"),
        (
            with_source("secrets = [\"env:S\", { value = \"env:OTHER\", expire = \"x\" }]"),
            "tenants.a.sources.s.secrets[1].expire",
            "`expires`?",
        ),
        (
            with_source("secrets = [{ value = \"env:S\", expires = \"tomorrow\" }]"),
            "tenants.a.sources.s.secrets[0].expires",
            "RFC 3339",
        ),
        (
            with_source("secrets = [{ value = \"env:S\", expires = 2026-12-31 }]"),
            "tenants.a.sources.s.secrets[0].expires",
            "in quotes, found a date",
        ),
        (with_source("secrets = [5]"), "tenants.a.sources.s.secrets[0]", "or a table with `value`"),
        (
            e("signing_secrets = [{ value = \"env:S\" }]"),
            "tenants.a.endpoints.e.signing_secrets[0]",
            "a string, in quotes, found a table",
        ),
        (with_source("secret = [\"env:S\"]\nsecrets = [\"env:S\"]"), "tenants.a.sources.s.secret", "`secrets`?"),
        (s("verify = \"hmac-sha256\""), "tenants.a.sources.s.verify", "\"custom\""),
        (s("params = { webhook_id = \"x\" }"), "tenants.a.sources.s.params", "no settings of its own"),
        (s("params = \"x\""), "tenants.a.sources.s.params", "a table"),
        (paypal(""), "tenants.a.sources.s.params.webhook_id", "webhook_id = \"8PT5"),
        (paypal("params = { webhook_id = 5 }"), "tenants.a.sources.s.params.webhook_id", "has to be a text"),
        (paypal("params = { webhook_id = \"x\", id = \"y\" }"), "tenants.a.sources.s.params.id", "not known"),
        (
            paypal("params = { webhook_id = \"x\" }\nsecrets = [\"env:S\"]"),
            "tenants.a.sources.s.secrets[0]",
            "certificate",
        ),
        (s("body_bytes_max = \"30MiB\""), "tenants.a.sources.s.body_bytes_max", "25MiB"),
        (s("dedup_window = \"31d\""), "tenants.a.sources.s.dedup_window", "to 30d"),
        (s("tolerance = 0"), "tenants.a.sources.s.tolerance", "1 to 604800"),
        (s("rate = { burst = 5 }"), "tenants.a.sources.s.rate", "needs `per_second`"),
        (s("rate = { per_second = 0 }"), "tenants.a.sources.s.rate", "out of range"),
        (s("coalesce = {}"), "tenants.a.sources.s.coalesce", "not supported by this release"),
        (
            c("verify = \"hmac-sha256\"\nsig = { at = [\"header:X\"], encoding = \"hex\", place = [] }"),
            "tenants.a.sources.s.sig.place",
            "unknown key",
        ),
        (c(&format!("{HMAC}\nvars = {{ t = 1 }}")), "tenants.a.sources.s.vars.t", "a string"),
        (c(&format!("{HMAC}\ntime = {{ unit = \"s\", tolerance = 1 }}")), "tenants.a.sources.s.time", "needs `var`"),
        (
            c(&format!(
                "{HMAC}\nvars = {{ t = \"header:T\" }}\nsigned = \"{{t}}{{body}}\"\ntime = {{ var = \"t\", unit = \"h\", tolerance = 1 }}"
            )),
            "tenants.a.sources.s.time.unit",
            "\"rfc3339\"",
        ),
        // Endpoints.
        ("[tenants.a.endpoints.e]".into(), "tenants.a.endpoints.e", "needs a `url`"),
        ("[tenants.a.endpoints.e]\nurl = \"x\"".into(), "tenants.a.endpoints.e.url", "not a URL"),
        ("[tenants.a.endpoints.e]\nurl = \"ftp://x.example\"".into(), "tenants.a.endpoints.e.url", "`ftp`"),
        ("[tenants.a.endpoints.e]\nurl = \"https://u:p@x.example\"".into(), "tenants.a.endpoints.e.url", "password"),
        ("[tenants.a.endpoints.e]\nurl = \"https://x.example/#a\"".into(), "tenants.a.endpoints.e.url", "fragment"),
        ("[tenants.a.endpoints.e]\nurl = \"http://x.example/\"".into(), "tenants.a.endpoints.e.url", "plain http"),
        (
            format!("[tenants.a.endpoints.e]\nurl = \"https://x.example/{}\"", "a".repeat(2_048)),
            "tenants.a.endpoints.e.url",
            "2048",
        ),
        (
            "[egress]\nallow = [\"127.0.0.1/32:9000\"]\n[tenants.a.endpoints.e]\nurl = \"http://127.0.0.1:9001/\""
                .into(),
            "tenants.a.endpoints.e.url",
            "plain http",
        ),
        // Sources: what no provider could have given.
        (
            of("aws-sns", "params = { topic_arns = [\"nonsense\"] }"),
            "tenants.a.sources.s.params.topic_arns[0]",
            "arn:PARTITION:sns:REGION:ACCOUNT:NAME",
        ),
        (of("paypal", "params = { webhook_id = \"  \" }"), "tenants.a.sources.s.params.webhook_id", "has to be a text"),
        (of("github", "secrets = [\"    \"]"), "tenants.a.sources.s.secrets[0]", "nothing but blanks"),
        (
            of("meta", "secrets = [\"a-secret-of-sixteen\", \"verify:\"]"),
            "tenants.a.sources.s.secrets[1]",
            "nothing behind `verify:`",
        ),
        (e("ordering = \"fifo\""), "tenants.a.endpoints.e.ordering", "\"none\" or \"key\""),
        (e("on_dead = \"hold\""), "tenants.a.endpoints.e.on_dead", "set `ordering = \"key\"`"),
        (e("ordering = \"none\"\non_dead = \"release\""), "tenants.a.endpoints.e.on_dead", "no order to hold"),
        (e("ordering = \"key\"\non_dead = \"drop\""), "tenants.a.endpoints.e.on_dead", "\"release\" or \"hold\""),
        (e("breaker = { after = 5 }"), "tenants.a.endpoints.e.breaker.after", "failures"),
        (e("breaker = 5"), "tenants.a.endpoints.e.breaker", "`true`, `false` or a table"),
        (e("breaker = { failures = 0 }"), "tenants.a.endpoints.e.breaker.failures", "1 to 10000"),
        (e("breaker = { open = \"10ms\" }"), "tenants.a.endpoints.e.breaker.open", "100ms to 1d"),
        (
            e("breaker = { open = \"1m\", open_max = \"30s\" }"),
            "tenants.a.endpoints.e.breaker.open_max",
            "shorter than `open`",
        ),
        (e("disable_after = true"), "tenants.a.endpoints.e.disable_after", "a duration"),
        (e("disable_after = \"0s\""), "tenants.a.endpoints.e.disable_after", "1s to 365d"),
        (e("rate = { per_second = 0 }"), "tenants.a.endpoints.e.rate", "nothing would ever pass"),
        (e("pull = true"), "tenants.a.endpoints.e.url", "no meaning with `pull = true`"),
        (e("lease = \"1m\""), "tenants.a.endpoints.e.lease", "without `pull = true`"),
        ("[tenants.a.endpoints.e]\npull = false".into(), "tenants.a.endpoints.e", "needs a `url`"),
        (pulled("lease = \"13h\""), "tenants.a.endpoints.e.lease", "1s to 12h"),
        (pulled("lease = \"100ms\""), "tenants.a.endpoints.e.lease", "1s to 12h"),
        (pulled("ordering = \"key\""), "tenants.a.endpoints.e.ordering", "side by side"),
        (e("coalesce = \"5s\""), "tenants.a.endpoints.e.coalesce", "not supported by this release"),
        (e("sources = [\"github\"]"), "tenants.a.endpoints.e.sources[0]", "no source `github`"),
        (e("plugin = \"rules\""), "tenants.a.endpoints.e.plugin", "no plugin `rules`"),
        (e("event_types = [\"[\"]"), "tenants.a.endpoints.e.event_types[0]", "not a pattern"),
        (e("event_types = [\"\"]"), "tenants.a.endpoints.e.event_types[0]", "1 to 256 bytes"),
        (
            e(&format!("plugin_config = {{ a = \"{}\" }}", "x".repeat(65_536))),
            "tenants.a.endpoints.e.plugin_config",
            "more than 64KiB",
        ),
        (e("plugin_config = 5"), "tenants.a.endpoints.e.plugin_config", "a table"),
        (e("plugin_config = { at = 1979-05-27 }"), "tenants.a.endpoints.e.plugin_config.at", "in quotes"),
        (e("signing_secrets = [\"env:S\"]"), "tenants.a.endpoints.e.signing_secrets[0]", "whsec_"),
        (e("signing_secrets = [\"whsec_c2hvcnQ=\"]"), "tenants.a.endpoints.e.signing_secrets[0]", "24 to 64"),
        (e("timeout = \"6m\""), "tenants.a.endpoints.e.timeout", "to 5m"),
        (e("concurrency = 0"), "tenants.a.endpoints.e.concurrency", "1 to 1000"),
        (e("rate = { per_second = -1 }"), "tenants.a.endpoints.e.rate", "out of range"),
        (e("on_ambiguous = \"drop\""), "tenants.a.endpoints.e.on_ambiguous", "\"hold\""),
        (e("on_plugin_fault = \"x\""), "tenants.a.endpoints.e.on_plugin_fault", "\"dead\""),
        (e("idempotency_header = \"a b\""), "tenants.a.endpoints.e.idempotency_header", "header's name"),
        (e("idempotency_header = \"Webhook-Id\""), "tenants.a.endpoints.e.idempotency_header", "another meaning"),
        (e("idempotency_header = \"hookgate-x\""), "tenants.a.endpoints.e.idempotency_header", "another meaning"),
        (e("retry = { max_attempts = 0 }"), "tenants.a.endpoints.e.retry.max_attempts", "1 to 100"),
        (e("retry = { delays = [] }"), "tenants.a.endpoints.e.retry.delays", "1 to 100 delays"),
        (e("retry = { delays = [\"8d\"] }"), "tenants.a.endpoints.e.retry.delays[0]", "to 7d"),
        (e("retry = { delays = [\"1s\"], base = \"1s\" }"), "tenants.a.endpoints.e.retry", "two ways"),
        (e("retry = { base = \"1s\", factor = 0.5 }"), "tenants.a.endpoints.e.retry.factor", "1 to 100"),
        (e("retry = { base = \"1h\", cap = \"1m\" }"), "tenants.a.endpoints.e.retry.cap", "shorter than"),
        (e("retry = { jitter = \"some\" }"), "tenants.a.endpoints.e.retry.jitter", "\"full\""),
        (e("retry = { max_age = \"0s\" }"), "tenants.a.endpoints.e.retry.max_age", "from 1s"),
        // Plugins.
        ("[tenants.a.plugins.p]\npath = 5".into(), "tenants.a.plugins.p.path", "a string"),
        (
            format!("[tenants.a.plugins.p]\npath = \"{}\"", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")),
            "tenants.a.plugins.p.path",
            "not a plugin (format)",
        ),
        ("[tenants.a.plugins.p]\npath = \"nowhere.wasm\"".into(), "tenants.a.plugins.p.path", "cannot be read"),
        ("[tenants.a.plugins.p]\npath = \"/\"".into(), "tenants.a.plugins.p.path", "not a file"),
    ];
    for (text, field, word) in cases {
        let report = judged(&text);
        let found = report.problems.len();
        assert!(report.settings.is_none(), "{text}");
        assert_eq!(found, 1, "{text}\n{}", report.lines());
        let problem = &report.problems[0];
        assert_eq!(problem.field, field, "{text}\n{}", report.lines());
        assert!(format!("{} {}", problem.message, problem.remedy).contains(word), "{text}\n{}", report.lines());
        assert!(!problem.remedy.is_empty());
    }
}

/// Twenty-five mistakes in one file: all of them come out, each on its line.
#[test]
fn all_mistakes_in_one_run() {
    let text = include_str!("../../tests/golden/config/broken.toml");
    let report = judged(text);
    let expected: Vec<usize> =
        text.lines().enumerate().filter(|(_, line)| line.contains("# wrong")).map(|(i, _)| i + 1).collect();
    let found: Vec<usize> = report
        .problems
        .iter()
        .map(|p| match p.position {
            Position::File { line, .. } => line,
            Position::Environment { .. } | Position::Flag { .. } => 0,
        })
        .collect();
    assert_eq!(expected.len(), 25);
    assert_eq!(found, expected, "{}", report.lines());
    assert_eq!(report.json()["problems"].as_array().map(Vec::len), Some(25));
}

#[test]
fn the_full_file_means_what_it_says() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("plugins")).unwrap();
    std::fs::write(dir.path().join("plugins/billing-rules.wasm"), SMS_RULES).unwrap();
    let text = include_str!("../../tests/golden/config/full.toml");
    let path = dir.path().join("hookgate.toml");
    let env = env();
    let input = Input { text, path: &path, env: &env, flags: &[], outside: Outside::Look };
    let (report, keys) = walked(&input);
    let lines = report.lines();
    assert!(lines.contains("payments.signed: the signature does not cover the body") && lines.lines().count() == 1);
    let settings = report.settings.unwrap();

    assert_eq!(settings.server.ingress.to_string(), "127.0.0.1:8090");
    assert_eq!(settings.server.admin.to_string(), "127.0.0.1:8091");
    assert_eq!(settings.server.ledger, dir.path().join("data/ledger.db"));
    assert_eq!(settings.server.admin_hosts, ["hookgate.internal"]);
    assert_eq!(settings.server.shutdown_grace, Duration::from_secs(20));
    assert_eq!(settings.server.public_url.as_ref().unwrap().as_str(), "https://hooks.example.com/");
    assert_eq!(settings.server.threads, Some(2));
    assert_eq!(settings.server.log, Log { format: LogFormat::Json, level: LogLevel::Debug });
    let second = Duration::from_secs(1);
    assert_eq!(
        settings.limits,
        Limits {
            body_bytes_max: 524_288,
            connections_max: 100,
            connections_per_address_max: Some(10),
            head_timeout: second,
            body_timeout: second * 2,
            idle_timeout: second * 3,
            queued_max: 200,
            in_flight_max: 300,
            per_tenant_in_flight_max: 50,
            plugins: PluginLimits {
                component_bytes_max: 8 << 20,
                call_time_max: Duration::from_millis(200),
                memory_bytes_max: 64 << 20,
                input_bytes_max: 1 << 20,
                response_bytes_max: 32 << 10,
                output_bytes_max: 2 << 20,
            },
        }
    );
    assert_eq!(
        settings.egress,
        Egress {
            allow: vec!["127.0.0.1/32:9000-9100".into(), "fd00::/8".into()],
            allow_http: true,
            connect_timeout: second,
            tls_timeout: second * 2,
            head_bytes_max: 16 << 10,
            body_bytes_read_max: 32 << 10,
            body_bytes_kept_max: 8 << 10,
        }
    );
    let day = Duration::from_secs(86_400);
    assert_eq!(settings.retention, Retention { payloads: day * 7, rows: day * 30 });

    let acme = &settings.tenants[&name("acme")];
    assert_eq!(acme.retention, Retention { payloads: day, rows: day * 30 });
    let alerts = &settings.alerts;
    assert_eq!((alerts.every, alerts.route.clone()), (second * 2, Some((name("acme"), name("ops")))));
    assert_eq!((alerts.gateway.ledger_bytes, alerts.gateway.disk_free_bytes), (1 << 30, 512 << 20));
    let off = |kinds: &[AlertKind]| kinds.iter().copied().collect::<BTreeSet<_>>();
    let gateways = off(&[AlertKind::EndpointFlapping, AlertKind::LedgerSize]);
    assert_eq!(alerts.gateway.off, gateways);
    let thresholds = Thresholds {
        dlq_depth: 5,
        dlq_oldest_age: second * 3_600,
        erasure_margin: second * 3 * 3_600,
        deadline_margin: second * 300,
        paused_for: second * 600,
        disabled_for: second * 60,
        flapping_times: 4,
        flapping_window: second * 1_800,
        terminal_rate: "2.5%".parse().unwrap(),
        terminal_window: second * 600,
        terminal_min_count: 5,
        plugin_disabled_for: second * 120,
        off: gateways.clone(),
    };
    assert_eq!(alerts.thresholds, thresholds);
    assert_eq!(acme.alerts.endpoint, Some(name("ops")));
    let off = &gateways | &off(&[AlertKind::DlqErasure]);
    assert_eq!(acme.alerts.thresholds, Thresholds { dlq_depth: 7, off, ..thresholds });
    assert_eq!(acme.plugin_limits.component_bytes_max, 32 << 20);
    assert_eq!(acme.plugin_limits.call_time_max, Duration::from_millis(200));
    let file = PluginSettings::File(dir.path().join("plugins/billing-rules.wasm"));
    assert_eq!(acme.plugins[&name("billing-rules")], file);

    let github = &acme.sources[&name("github")];
    assert_eq!(github.spec.scheme, "github");
    assert_eq!(github.spec.custom, None);
    assert_eq!(github.spec.tolerance, None);
    assert_eq!(github.spec.dedup.as_deref(), Some("header:x-id"));
    assert_eq!(github.spec.dedup_window.as_deref(), Some("1d"));
    assert_eq!(github.body_bytes_max, Some(1 << 20));
    assert_eq!(github.rate, Some(Rate { per_second: 2.5, burst: 3 }));
    assert_eq!(github.secrets[0].resolve(&env).unwrap().expose(), SECRET.as_bytes());

    let payments = &acme.sources[&name("payments")];
    assert_eq!(payments.spec.params["webhook_id"], "8PT597110X687430LKGECATA");
    assert!(payments.secrets.is_empty(), "the provider publishes its key");

    let custom = acme.sources[&name("partner")].spec.custom.clone().unwrap();
    assert_eq!(custom.verify.as_deref(), Some("hmac-sha256"));
    assert_eq!((custom.key.as_deref(), custom.key_strip.as_slice()), (Some("text"), ["k_".to_owned()].as_slice()));
    let sig = custom.sig.unwrap();
    assert_eq!((sig.at, sig.take), (vec!["header:X-Partner-Signature".to_owned()], vec!["v1".to_owned()]));
    assert_eq!((sig.split.as_deref(), sig.pair.as_deref()), (Some(","), Some("=")));
    assert_eq!((sig.prefix.as_deref(), sig.encoding.as_deref()), (Some("v1="), Some("hex")));
    assert_eq!(custom.vars["t"], "header:X-Partner-Time");
    assert_eq!(custom.signed.as_deref(), Some("{t}.{body}"));
    assert_eq!(custom.emit.as_deref(), Some("t={t},v1={sig}"));
    let time = custom.time.unwrap();
    assert_eq!((time.var.as_str(), time.unit.as_str(), time.tolerance), ("t", "s", 300));
    assert_eq!(custom.require["header:X-Version"], "1");
    assert_eq!((custom.id, custom.event_type), (vec!["json:/id".to_owned()], vec!["json:/type".to_owned()]));

    let billing = &acme.endpoints[&name("billing")];
    let Way::Push(sent) = &billing.way else { panic!("it is sent to") };
    assert_eq!(sent.url, "https://billing.example/hooks");
    assert_eq!(billing.route.sources, Some(vec![name("github")]));
    assert!(billing.route.event_types.matches("invoice.paid") && !billing.route.event_types.matches("pull"));
    assert_eq!(sent.plugin, Some(name("billing-rules")));
    assert_eq!(sent.plugin_config, serde_json::json!({"region": "eu", "n": [1, 2.5, true]}));
    assert_eq!(sent.signing_secrets.len(), 1);
    assert_eq!(sent.timeout, second * 5);
    assert_eq!(sent.concurrency, 4);
    assert_eq!(billing.order, Order::ByKey(OnDead::Hold));
    assert_eq!(acme.endpoints[&name("growing")].order, Order::Free);
    assert_eq!(sent.rate, Some(Rate { per_second: 50.0, burst: 100 }));
    assert_eq!(sent.idempotency_header.as_str(), "x-idempotency");
    assert_eq!(billing.terms.on_ambiguous, OnAmbiguous::Hold);
    assert_eq!(billing.terms.on_plugin_fault, OnPluginFault::Dead);
    let breaker = billing.terms.health.breaker.unwrap();
    assert_eq!((breaker.failures.get(), breaker.open, breaker.open_max), (5, second * 10, second * 120));
    assert_eq!(billing.terms.health.disable_after, Some(day * 3));
    let growing = acme.endpoints[&name("growing")].terms.health;
    assert_eq!(growing, HealthPolicy { breaker: Some(BreakerPolicy::default()), disable_after: None });
    let retry = &billing.terms.retry;
    assert_eq!((retry.max_attempts, retry.jitter, retry.max_age), (3, Jitter::Full, Some(day * 3)));
    assert_eq!(retry.backoff, Backoff::Ladder(vec![second * 30, second * 120]));
    let retry = &acme.endpoints[&name("growing")].terms.retry;
    assert_eq!((retry.max_attempts, retry.jitter), (5, Jitter::Equal));
    assert_eq!(retry.backoff, Backoff::Exponential { base: second * 30, factor: 1.5, cap: Duration::from_secs(1_800) });

    // The reference lists exactly what was asked for, less tables (whose keys it lists) and the tenant's copies.
    let tenant_copy = |key: &str| {
        let of_alerts = key.starts_with("tenants.<name>.alerts") && key != "tenants.<name>.alerts.endpoint";
        key.starts_with("tenants.<name>.limits") || key.starts_with("tenants.<name>.retention") || of_alerts
    };
    // A secret may be a text or a table, a breaker a word or a table.
    let is_either = |key: &str| key.ends_with(".secrets") || key.ends_with(".breaker");
    let is_table = |key: &str| !is_either(key) && keys.iter().any(|other| other.starts_with(&format!("{key}.")));
    let read: BTreeSet<&str> =
        keys.iter().map(String::as_str).filter(|key| !is_table(key) && !tenant_copy(key)).collect();
    let documented: BTreeSet<&str> = reference::paths().into_iter().collect();
    assert_eq!(read, documented);
}

#[test]
fn an_empty_file_is_all_defaults() {
    let settings = settled("");
    assert_eq!(settings.server.ingress.to_string(), "127.0.0.1:8080");
    assert_eq!(settings.server.ledger, Path::new("hookgate-data/ledger.db"));
    assert_eq!(settings.limits, Limits::default());
    assert!(settings.tenants.is_empty());

    let endpoint = settled(&with_endpoint("")).tenants[&name("a")].endpoints[&name("e")].clone();
    let Way::Push(sent) = &endpoint.way else { panic!("it is sent to") };
    assert_eq!((sent.timeout, sent.concurrency), (Duration::from_secs(15), 10));
    assert_eq!(sent.idempotency_header.as_str(), "idempotency-key");
    assert_eq!(endpoint.terms, crate::delivery::Terms::default());
    assert_eq!(sent.plugin_config, serde_json::json!({}));
    assert!(endpoint.route.sources.is_none() && endpoint.route.event_types.matches("any"));
    assert!(sent.rate.is_none() && sent.signing_secrets.is_empty());
}

#[test]
fn retry_says_what_it_leaves_out() {
    let retry = |text: &str| {
        settled(&with_endpoint(&format!("retry = {text}"))).tenants[&name("a")].endpoints[&name("e")]
            .terms
            .retry
            .clone()
    };
    assert_eq!(retry("{ delays = [\"1s\", \"2s\"] }").max_attempts, 3);
    assert_eq!(retry("{ max_attempts = 2 }").backoff, crate::delivery::RetryPolicy::default().backoff);
    let growing = Backoff::Exponential { base: Duration::from_secs(30), factor: 2.0, cap: Duration::from_secs(3_600) };
    assert_eq!(retry("{ factor = 2 }").backoff, growing);
}

#[test]
fn flag_before_environment_before_file_before_default() {
    let ingress = |file: &str, env: &[(&str, &str)], flags: &[Override]| {
        let env = Env::from_pairs(env.iter().copied());
        let path = Path::new("f.toml");
        let report = evaluate(&Input { text: file, path, env: &env, flags, outside: Outside::Look });
        report.settings.unwrap().server.ingress.port()
    };
    let file = "[server]\ningress = \"127.0.0.1:1\"";
    let env = [("HOOKGATE_SERVER__INGRESS", "127.0.0.1:2")];
    let flag = [Override { flag: "--ingress", key: "server.ingress", value: "127.0.0.1:3".into() }];
    assert_eq!(ingress("", &[], &[]), 8080);
    assert_eq!(ingress(file, &[], &[]), 1);
    assert_eq!(ingress(file, &env, &[]), 2);
    assert_eq!(ingress(file, &env, &flag), 3);
    assert_eq!(ingress("", &env, &[]), 2);
    assert_eq!(ingress("", &[], &flag), 3);
}

#[test]
fn the_environment_has_every_kind() {
    let env = Env::from_pairs([
        ("HOOKGATE_LIMITS__BODY_BYTES_MAX", "2MiB"),
        ("HOOKGATE_LIMITS__QUEUED_MAX", "7"),
        ("HOOKGATE_EGRESS__ALLOW", "127.0.0.1/32, 10.0.0.0/8"),
        ("HOOKGATE_EGRESS__ALLOW_HTTP", "true"),
        ("HOOKGATE_SERVER__LEDGER", "sqlite:here.db"),
        ("HOOKGATE_SERVER__LOG__LEVEL", "warn"),
        ("HOOKGATE_TENANTS__A__ENDPOINTS__TO_ERP__URL", "https://erp.example/"),
        ("HOOKGATE_TENANTS__A__ENDPOINTS__TO_ERP__RATE", "{ per_second = 1.5 }"),
        ("HOOKGATE_TENANTS__A__ENDPOINTS__TO_ERP__BREAKER", "true"),
        ("HOOKGATE_TENANTS__A__ENDPOINTS__TO_ERP__DISABLE_AFTER", "false"),
        ("HOOKGATE_TENANTS__A__ENDPOINTS__TO_ERP__RETRY__MAX_ATTEMPTS", "3"),
        ("HOOKGATE_ADMIN_TOKEN", SECRET),
        ("HOOKGATE_MASTER_KEY", "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"),
    ]);
    let report = check("", Path::new("/etc/hookgate.toml"), &env);
    assert_eq!(report.lines(), "");
    let settings = report.settings.unwrap();
    assert_eq!((settings.limits.body_bytes_max, settings.limits.queued_max), (2 << 20, 7));
    assert_eq!(settings.egress.allow, ["127.0.0.1/32", "10.0.0.0/8"]);
    assert!(settings.egress.allow_http);
    assert_eq!(settings.server.ledger, Path::new("here.db"));
    assert_eq!(settings.server.log.level, LogLevel::Warn);
    let endpoint = &settings.tenants[&name("a")].endpoints[&name("to-erp")];
    let Way::Push(sent) = &endpoint.way else { panic!("it is sent to") };
    assert_eq!(sent.rate, Some(Rate { per_second: 1.5, burst: 2 }));
    assert_eq!(endpoint.terms.retry.max_attempts, 3);
    assert_eq!(endpoint.terms.health.breaker, Some(BreakerPolicy::default()));
    assert_eq!(endpoint.terms.health.disable_after, None);
    assert_eq!(settings.server.admin_token.unwrap().expose(), SECRET.as_bytes());
    assert_eq!(settings.server.master_key.unwrap().expose(), (0..32).collect::<Vec<u8>>());
}

#[test]
fn mistakes_of_the_environment_name_the_variable() {
    for (variable, value, word) in [
        ("HOOKGATE_SERVER__INGRES", "x", "did you mean `ingress`"),
        ("HOOKGATE_SERVER_INGRESS", "x", "did you mean `HOOKGATE_SERVER__INGRESS`"),
        ("HOOKGATE_ADMINTOKEN", "x", "did you mean `HOOKGATE_ADMIN_TOKEN`"),
        ("HOOKGATE_WHATEVER_ELSE", "x", "unset it"),
        ("HOOKGATE_LIMITS__QUEUED_MAX", "hunter2", "whole number"),
        ("HOOKGATE_MASTER_KEY", "hunter2", "32 bytes"),
        ("HOOKGATE_MASTER_KEY", "file:/nowhere", "cannot be read"),
        ("HOOKGATE_ADMIN_TOKEN", "", "empty"),
    ] {
        let report = check("", Path::new("f.toml"), &Env::from_pairs([(variable, value)]));
        assert_eq!(report.problems.len(), 1, "{variable}");
        let place = Position::Environment { variable: variable.to_owned() };
        assert_eq!(report.problems[0].position, place);
        assert!(report.lines().contains(word), "{}", report.lines());
        assert!(!report.lines().contains("hunter2") && !report.pictures(Colour::Off).contains("hunter2"));
    }
    // A variable that the file takes a secret from is no mistake.
    let env = Env::from_pairs([("HOOKGATE_GITHUB_SECRET", SECRET)]);
    let report = check(&with_source("secrets = [\"env:HOOKGATE_GITHUB_SECRET\"]"), Path::new("f.toml"), &env);
    assert_eq!(report.lines(), "");
}

#[test]
fn warnings_do_not_stop_anybody() {
    let plugin = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(plugin.path(), SMS_RULES).unwrap();
    let with_plugin = format!(
        "{}plugin = \"p\"\n[tenants.a.sources.s]\nscheme = \"github\"\nsecrets = [\"env:S\"]\n[tenants.a.plugins.p]\npath = \"{}\"",
        with_endpoint(""),
        plugin.path().display()
    );
    let unused = format!("{}[tenants.a.plugins.p]\npath = \"{}\"", with_endpoint(""), plugin.path().display());
    let url_signed = "[tenants.a.endpoints.e]\nurl = \"https://x.example/\"\n[tenants.a.sources.s]\nscheme = \"custom\"\n\
                      verify = \"hmac-sha256\"\nsig = { at = [\"header:X-S\"], encoding = \"hex\" }\nsigned = \"{url}{body}\"\nsecrets = [\"env:S\"]";
    for (text, word) in [
        ("[server]\nadmin = \"0.0.0.0:8081\"".to_owned(), "other machines"),
        (with_source("secrets = [\"env:SHORT\"]"), "shorter than 16 bytes"),
        (url_signed.to_owned(), "server.public_url"),
        (with_source("secrets = [\"env:S\"]\nverify = \"hmac-sha256\"\nsig = { at = [\"header:X\"], encoding = \"hex\" }\nvars = { t = \"header:T\" }\nsigned = \"{t}{body}\"").replace("github", "custom"), "a captured request stays valid for good"),
        (with_source("secrets = [\"env:S\"]\nverify = \"hmac-sha256\"\nsig = { at = [\"header:X\"], encoding = \"hex\" }\nvars = { n = \"header:N\" }").replace("github", "custom"), "vars.n: is used nowhere"),
        (with_source("secrets = [\"a-secret-with-a-blank \"]"), "begins or ends with a blank"),
        (with_source("secrets = [\"env:S\"]").replace("github", "meta"), "so the scheme's handshake is refused"),
        (with_source("").replace("github", "asana"), "the secret that the first handshake brings, whoever sends it"),
        (with_source("secrets = []").replace("github", "asana"), "without `secrets` the source takes"),
        (with_plugin, "only up to 256KiB"),
        (unused, "no endpoint uses this plugin"),
        (
            format!("{}plugin = \"p\"\n[tenants.a.plugins.p]", with_endpoint("")),
            "`hookgate plugin upload a/p FILE --activate`",
        ),
        (with_endpoint("plugin_config = { a = 1 }"), "of no use"),
        (with_endpoint("sources = []"), "no source at all"),
        (with_endpoint("disable_after = \"10m\""), "disabled until somebody enables it"),
        (with_endpoint("retry = { max_attempts = 2, delays = [\"1s\", \"2s\"] }"), "never reached"),
        ("[tenants.a.sources.s]\nscheme = \"github\"\nsecrets = [\"env:S\"]".to_owned(), "without an endpoint"),
        (
            "[egress]\nallow = [\"10.0.0.0/8\"]\n[tenants.a.endpoints.e]\nurl = \"http://erp.example/\"".to_owned(),
            "only if the name leads",
        ),
    ] {
        let report = judged(&text);
        assert!(report.settings.is_some(), "{}", report.lines());
        assert_eq!(report.warnings.len(), 1, "{text}\n{}", report.lines());
        assert!(report.lines().contains(word), "{text}\n{}", report.lines());
    }
}

#[test]
fn secrets_that_end_are_warned_of_in_time() {
    let secrets = "secrets = [{ value = \"env:S\", expires = \"2026-03-01T00:00:00+01:00\" }, \"env:OTHER\"]";
    let told = |text: &str, now: &str| {
        let mut report = judged(&with_source(text));
        assert!(report.settings.is_some(), "{}", report.lines());
        assert_eq!(report.warnings.len(), 0, "{}", report.lines());
        report.warn_of_expiries(Timestamp::parse_rfc3339(now).unwrap());
        report.warnings.iter().map(|w| format!("{}: {}", w.field, w.message)).collect::<Vec<_>>()
    };
    let field = "tenants.a.sources.s.secrets[0].expires";
    assert_eq!(told(secrets, "2026-02-21T22:59:59Z"), [""; 0]);
    assert_eq!(
        told(secrets, "2026-02-21T23:00:00Z"),
        [format!("{field}: this secret expires at 2026-02-28T23:00:00.000Z")]
    );
    assert_eq!(
        told(secrets, "2026-02-28T23:00:00Z"),
        [format!("{field}: this secret expired at 2026-02-28T23:00:00.000Z")]
    );
    let both = secrets.replace("\"env:OTHER\"", "{ value = \"env:OTHER\", expires = \"2026-02-01T00:00:00Z\" }");
    let all = told(&both, "2026-04-01T00:00:00Z");
    assert!(
        all[0].contains("the last of the source's secrets expired") && all[0].ends_with("everything is refused"),
        "{all:?}"
    );
    assert!(all[1].starts_with("tenants.a.sources.s.secrets[1].expires: this secret expired"), "{all:?}");
    let soon = told(&both, "2026-02-27T00:00:00Z");
    assert!(soon[0].contains("the last of the source's secrets expires at"), "{soon:?}");
    let settings = judged(&with_source(secrets)).settings.unwrap();
    let ends: Vec<_> = settings.tenants[&name("a")].sources[&name("s")].secrets.iter().map(|s| s.expires).collect();
    assert_eq!(ends, [Timestamp::parse_rfc3339("2026-02-28T23:00:00Z"), None]);
}

#[test]
fn plain_http_where_it_is_allowed() {
    let to = "[tenants.a.endpoints.e]\nurl = \"http://127.0.0.1:9000/\"";
    assert!(judged(to).settings.is_none());
    assert!(judged(&format!("[egress]\nallow = [\"127.0.0.1/32:9000\"]\n{to}")).settings.is_some());
    assert!(judged(&format!("[egress]\nallow_http = true\n{to}")).settings.is_some());
}

#[test]
fn without_looking_outside_nothing_outside_matters() {
    let text = format!(
        "{}[tenants.a.plugins.p]\npath = \"nowhere.wasm\"",
        with_source("secrets = [\"env:NONE\", \"file:/nowhere\"]")
    );
    let env = Env::default();
    let input = Input { text: &text, path: Path::new("f.toml"), env: &env, flags: &[], outside: Outside::Skip };
    assert!(evaluate(&input).settings.is_some());
    assert_eq!(evaluate(&Input { outside: Outside::Look, ..input }).problems.len(), 3);
}

/// Wherever a secret stands in the file, no form of the report shows it.
#[test]
fn no_report_shows_a_secret() {
    let texts = [
        with_source("secrets = [\"hunter2\", 5]"),
        with_source("secrets = [\"hunter2\", \"hunter2\"]"),
        with_source("secrets = \"hunter2\""),
        with_source("secret = \"hunter2\""),
        with_source("secrets = { a = \"hunter2\" }"),
        with_source("secrets = [{ value = \"hunter2\", expires = \"hunter2\" }, { valeu = \"hunter2\" }]"),
        with_endpoint("signing_secrets = [\"hunter2\"]"),
        with_endpoint("plugin_config = { token = \"hunter2\", at = 1979-05-27 }"),
        "[tenants.a.endpoints.e]\nurl = \"https://u:hunter2@x.example/\"".to_owned(),
        "[server]\nledger = \"postgres://u:hunter2@h/db\"".to_owned(),
        "[server]\npublic_url = \"https://u:hunter2@h\"".to_owned(),
        "[server]\ntls = { key = \"hunter2\" }".to_owned(),
        with_source("secrets = [\"hunter2\", oops]"),
        with_source("secrets = [\"hunter2]"),
        with_source("secrets = \"hunter2"),
    ];
    for text in texts {
        let report = judged(&text);
        assert!(!report.problems.is_empty(), "{text}");
        let json = report.json().to_string();
        for shown in [report.lines(), report.pictures(Colour::Off), report.pictures(Colour::On), json] {
            assert!(!shown.contains("hunter2"), "{text}\n{shown}");
        }
        assert!(!format!("{report:?}").contains("hunter2"), "{text}");
    }
    let settings = settled(&with_source("secrets = [\"hunter2-hunter2-hunter2\"]"));
    assert!(!format!("{settings:?}").contains("hunter2"));
}

#[test]
fn faults_of_syntax_do_not_hide_the_rest() {
    let report = judged("[server]\ningress = \n[limits]\nqueued_max = 0\n[server]\n");
    let lines: Vec<Position> = report.problems.iter().map(|p| p.position.clone()).collect();
    assert!(lines.iter().any(|p| matches!(p, Position::File { line: 2, .. })), "{}", report.lines());
    assert!(lines.iter().any(|p| matches!(p, Position::File { line: 4, .. })), "{}", report.lines());
    assert!(lines.iter().any(|p| matches!(p, Position::File { line: 5, .. })), "{}", report.lines());
}

#[test]
fn pictures_point_at_the_place() {
    let report = judged("[server]\ningres = \"127.0.0.1:80\"\n");
    let picture = report.pictures(Colour::Off);
    assert!(picture.contains("hookgate.toml:2:1") && picture.contains("ingres = "), "{picture}");
    assert!(picture.contains("did you mean `ingress`?"), "{picture}");
    assert!(!picture.contains('\u{1b}') && report.pictures(Colour::On).contains('\u{1b}'));
    let line = "error: hookgate.toml:2:1: server.ingres: unknown key `ingres`; did you mean `ingress`?\n";
    assert_eq!(report.lines(), line);
}

#[test]
fn files_that_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let read = |name: &str| read(Some(&dir.path().join(name)), &Env::default(), &[], Outside::Look);
    assert!(read("none.toml").is_err());
    std::fs::write(dir.path().join("latin.toml"), b"# \xff").unwrap();
    assert!(read("latin.toml").unwrap_err().to_string().contains("UTF-8"));
    std::fs::write(dir.path().join("big.toml"), vec![b'#'; (4 << 20) + 1]).unwrap();
    assert!(read("big.toml").unwrap_err().to_string().contains("4 MiB"));
    std::fs::write(dir.path().join("good.toml"), b"[server]\nledger = \"sqlite:l.db\"").unwrap();
    assert_eq!(read("good.toml").unwrap().settings.unwrap().server.ledger, dir.path().join("l.db"));
}

#[test]
fn the_reference_is_the_file() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, reference()).unwrap();
    }
    let file = std::fs::read_to_string(&path).unwrap();
    assert!(file == reference(), "docs/configuration.md is out of date: run this test with UPDATE_GOLDEN=1");
}

proptest::proptest! {
    /// Whatever the text is, the answer is a report.
    #[test]
    fn nothing_panics(text in "[a-z0-9\\[\\]{}=\"\\. \n,#ü]{0,200}") {
        let report = judged(&text);
        proptest::prop_assert_eq!(report.settings.is_some(), report.problems.is_empty());
        let _ = report.pictures(Colour::Off);
    }
}

/// What the verification room finds is told at the key that it is about.
#[test]
fn a_tolerance_may_be_a_duration() {
    for written in ["300", "\"5m\"", "\"300s\""] {
        let text = with_source(&format!("secrets = [\"env:S\"]\ntolerance = {written}")).replace("github", "slack");
        let report = judged(&text);
        let settings = report.settings.as_ref().unwrap_or_else(|| panic!("{}", report.lines()));
        assert_eq!(settings.tenants[&name("a")].sources[&name("s")].spec.tolerance, Some(300), "{written}");
    }
}

#[test]
fn one_slip_is_one_mistake() {
    for (source, told) in [
        ("scheme = \"sns\"", "2:10: tenants.a.sources.s.scheme: `sns` is not a scheme; did you mean `aws-sns`?"),
        ("scheme = \"sns\"\nsecrets = []", "`sns` is not a scheme"),
        ("scheme = \"Github\"\nsecrets = [\"env:S\"]", "did you mean `github`?"),
        ("scheme = \"github\"\nsecret = [\"env:S\"]", "unknown key `secret`; did you mean `secrets`?"),
        ("schema = \"github\"\nsecrets = [\"env:S\"]", "unknown key `schema`; did you mean `scheme`?"),
    ] {
        let lines = judged(&format!("[tenants.a.sources.s]\n{source}")).lines();
        assert_eq!(lines.matches("error: ").count(), 1, "{source}\n{lines}");
        assert!(lines.contains(told), "{source}\n{lines}");
    }
}

#[test]
fn mistakes_of_a_scheme_have_the_line_of_their_key() {
    let text = "[tenants.a.endpoints.e]\nurl = \"https://x.example/\"\n[tenants.a.sources.s]\nscheme = \"custom\"\n\
                secrets = [\"env:S\"]\nverify = \"hmac-md5\"\nsigned = \"{nope}\"\n\
                sig = { at = [\"header:X\"], encoding = \"hax\" }\n[tenants.a.sources.t]\nscheme = \"gitub\"\nsecrets = [\"env:S\"]";
    let lines = judged(text).lines();
    for place in [
        "hookgate.toml:6:1: tenants.a.sources.s.verify",
        "hookgate.toml:7:1: tenants.a.sources.s.signed",
        "hookgate.toml:8:28: tenants.a.sources.s.sig.encoding",
        "hookgate.toml:10:10: tenants.a.sources.t.scheme",
    ] {
        assert!(lines.contains(place), "{place}\n{lines}");
    }
}
