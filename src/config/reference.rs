//! Every key, in words: the text of `docs/configuration.md`. Tests hold it against the file and against the keys that
//! are really read; defaults come from the settings themselves.

use super::settings::{Alerts, Egress, Limits, PluginLimits, Retention, Server};
use super::size;
use crate::delivery::{BreakerPolicy, HealthPolicy};
use crate::duration;
use std::fmt::Write as _;

struct Key {
    /// The key's path, `<name>` standing for any name.
    path: &'static str,
    kind: &'static str,
    default: String,
    limit: String,
    text: &'static str,
}

fn key(path: &'static str, kind: &'static str, default: impl Into<String>, limit: &str, text: &'static str) -> Key {
    Key { path, kind, default: default.into(), limit: limit.to_owned(), text }
}

fn up_to(bytes: u64) -> String {
    format!("≤ {}", size::show(bytes))
}

struct Chapter {
    title: &'static str,
    intro: &'static str,
    keys: Vec<Key>,
}

fn chapters() -> Vec<Chapter> {
    vec![
        Chapter {
            title: "`[server]`",
            intro: "Where the gateway listens, and where it keeps its ledger.",
            keys: server(),
        },
        Chapter { title: "`[limits]`", intro: "What is held at once, and how long peers may take.", keys: limits() },
        Chapter {
            title: "`[limits.plugins]`",
            intro: "What a plugin may take, for every tenant without a grant of its own. A tenant's grant has the same \
                    keys under `[tenants.<name>.limits.plugins]`; what it leaves out is as here.",
            keys: plugin_limits(),
        },
        Chapter {
            title: "`[egress]`",
            intro: "How destinations are reached. Private, loopback and other special addresses are refused unless \
                    `allow` lets them through.",
            keys: egress(),
        },
        Chapter {
            title: "`[retention]`",
            intro: "How long things are kept after a delivery's terminal state. A tenant may have its own under \
                    `[tenants.<name>.retention]`; what it leaves out is as here.",
            keys: retention(),
        },
        Chapter {
            title: "`[alerts]`",
            intro: "What is [watched](alerts.md), and from when on it is told. A tenant may have thresholds of its own, \
                    the keys from `dlq_depth` to `off`, under `[tenants.<name>.alerts]`; what it leaves out is as here.",
            keys: alerts(),
        },
        Chapter {
            title: "`[tenants.<name>]`",
            intro: "Who has sources, endpoints and plugins of its own, and sees nothing of the others.",
            keys: vec![key(
                "tenants.<name>.scrub",
                "boolean",
                "false",
                "",
                "Whether its endpoints erase at once what was delivered or skipped: [what is scrubbed](operations.md#scrubbing).",
            )],
        },
        Chapter {
            title: "`[tenants.<name>.alerts]`",
            intro: "Besides its own thresholds, whom a tenant's alerts are sent to.",
            keys: vec![key(
                "tenants.<name>.alerts.endpoint",
                "name",
                "none",
                "one of the tenant's",
                "Gets the tenant's alerts as signed events of type `hookgate.alert`. What else it gets, its `sources` \
                 and `event_types` say.",
            )],
        },
        Chapter {
            title: "`[tenants.<name>.sources.<name>]`",
            intro: "An inbound URL, `POST /in/{tenant}/{source}`, and how its requests prove where they come from.",
            keys: source(),
        },
        Chapter {
            title: "A scheme of one's own",
            intro: "With `scheme = \"custom\"` the verification is described as data, beside the source's other keys. \
                    A *locator* says where a value stands: `header:Name`, `query:name`, `form:name`, `json:/pointer` \
                    (with `*` for every element of a list) or `sig:key`. A *template* is literal text with `{body}`, \
                    `{url}` and the like, and the variables, in braces.",
            keys: custom(),
        },
        Chapter {
            title: "`[tenants.<name>.endpoints.<name>]`",
            intro: "A destination, which events go there, and how they are retried.",
            keys: endpoint(),
        },
        Chapter {
            title: "`[tenants.<name>.plugins.<name>]`",
            intro: "A WebAssembly component whose rules an endpoint may name: from a file, or uploaded by the API.",
            keys: vec![key(
                "tenants.<name>.plugins.<name>.path",
                "path",
                "none",
                "≤ `component_bytes_max`",
                "The component. A relative path starts at the configuration file. Without it the API manages the \
                 plugin: its versions are uploaded, and its endpoints wait until one is active.",
            )],
        },
    ]
}

fn server() -> Vec<Key> {
    let d = Server::default();
    vec![
        key("server.ingress", "address:port", d.ingress.to_string(), "", "The public listener."),
        key(
            "server.admin",
            "address:port",
            d.admin.to_string(),
            "not `ingress`",
            "API, console and metrics. Off loopback it is worth a warning.",
        ),
        key(
            "server.admin_hosts",
            "list of host names",
            "[]",
            "",
            "Names by which a browser may call the console, besides addresses and `localhost`.",
        ),
        key(
            "server.ledger",
            "`sqlite:PATH`",
            format!("sqlite:{}", d.ledger.display()),
            "",
            "The database. A relative path starts at the configuration file.",
        ),
        key(
            "server.shutdown_grace",
            "duration",
            duration::show(d.shutdown_grace),
            "≤ 10m",
            "How long a stop waits for attempts that are on the wire.",
        ),
        key(
            "server.public_url",
            "URL",
            "none",
            "",
            "What providers call. Needed by schemes that sign the URL, since a proxy may change what is seen here.",
        ),
        key("server.threads", "integer", "one per core", "1 to 1024", "Worker threads."),
        key("server.log.format", "`text`, `json`", "text", "", "How log lines are written on standard error."),
        key(
            "server.log.level",
            "`error`, `warn`, `info`, `debug`, `trace`",
            "info",
            "",
            "The least level that is logged.",
        ),
    ]
}

fn limits() -> Vec<Key> {
    let d = Limits::default();
    vec![
        key(
            "limits.body_bytes_max",
            "size",
            size::show(d.body_bytes_max),
            &up_to(Limits::BODY_BYTES_CAP),
            "Ingress bodies; what is larger is answered with 413. A source may set its own.",
        ),
        key(
            "limits.connections_max",
            "integer",
            d.connections_max.to_string(),
            "1 to 100000",
            "Open connections on the public listener.",
        ),
        key(
            "limits.connections_per_address_max",
            "integer",
            "none",
            "1 to 100000",
            "Of them from one address. Unset, since many senders may share a proxy's address.",
        ),
        key(
            "limits.head_timeout",
            "duration",
            duration::show(d.head_timeout),
            "100ms to 5m",
            "For a request's head to arrive.",
        ),
        key(
            "limits.body_timeout",
            "duration",
            duration::show(d.body_timeout),
            "100ms to 5m",
            "For a request's body to arrive.",
        ),
        key(
            "limits.idle_timeout",
            "duration",
            duration::show(d.idle_timeout),
            "100ms to 5m",
            "For a connection to stay open between requests.",
        ),
        key(
            "limits.queued_max",
            "integer",
            d.queued_max.to_string(),
            "1 to 1000000",
            "Verified requests that wait for their commit; beyond it the answer is 503.",
        ),
        key(
            "limits.in_flight_max",
            "integer",
            d.in_flight_max.to_string(),
            "1 to 100000",
            "Attempts on the wire at once, all tenants together.",
        ),
        key(
            "limits.per_tenant_in_flight_max",
            "integer",
            d.per_tenant_in_flight_max.to_string(),
            "1 to 100000",
            "Attempts on the wire at once for one tenant.",
        ),
    ]
}

fn plugin_limits() -> Vec<Key> {
    let d = PluginLimits::default();
    let cap = PluginLimits::CAP;
    vec![
        key(
            "limits.plugins.component_bytes_max",
            "size",
            size::show(d.component_bytes_max),
            &up_to(cap.component_bytes_max),
            "The component itself. Components that carry a Python interpreter need the whole of it.",
        ),
        key(
            "limits.plugins.call_time_max",
            "duration",
            duration::show(d.call_time_max),
            &format!("1ms to {}", duration::show(cap.call_time_max)),
            "Processor time of one call.",
        ),
        key(
            "limits.plugins.memory_bytes_max",
            "size",
            size::show(d.memory_bytes_max),
            &format!("64KiB to {}", size::show(cap.memory_bytes_max)),
            "All linear memories of an instance together.",
        ),
        key(
            "limits.plugins.input_bytes_max",
            "size",
            size::show(d.input_bytes_max),
            &up_to(cap.input_bytes_max),
            "The event's body into `transform`. A larger event is dead at once, as `plugin_fault`.",
        ),
        key(
            "limits.plugins.response_bytes_max",
            "size",
            size::show(d.response_bytes_max),
            &up_to(cap.response_bytes_max),
            "The response's body into `classify`; what is beyond is cut.",
        ),
        key(
            "limits.plugins.output_bytes_max",
            "size",
            size::show(d.output_bytes_max),
            &format!("1KiB to {}", size::show(cap.output_bytes_max)),
            "Everything one call returns.",
        ),
    ]
}

fn egress() -> Vec<Key> {
    let d = Egress::default();
    vec![
        key(
            "egress.allow",
            "list of `CIDR[:port[-port]]`",
            "[]",
            "",
            "Addresses that are let through besides public ones, e.g. `\"127.0.0.1/32:9000-9100\"`. Plain http is \
             allowed to them.",
        ),
        key(
            "egress.allow_http",
            "boolean",
            d.allow_http.to_string(),
            "",
            "Whether plain http is sent to public addresses.",
        ),
        key(
            "egress.connect_timeout",
            "duration",
            duration::show(d.connect_timeout),
            "10ms to 1m",
            "For a connection to be made.",
        ),
        key("egress.tls_timeout", "duration", duration::show(d.tls_timeout), "10ms to 1m", "For the TLS handshake."),
        key("egress.head_bytes_max", "size", size::show(d.head_bytes_max), "8KiB to 256KiB", "A response's head."),
        key(
            "egress.body_bytes_read_max",
            "size",
            size::show(d.body_bytes_read_max),
            "≤ 1MiB",
            "Of a response's body, what is read.",
        ),
        key(
            "egress.body_bytes_kept_max",
            "size",
            size::show(d.body_bytes_kept_max),
            "≤ 64KiB, ≤ what is read",
            "Of a response's body, what is kept with the attempt.",
        ),
    ]
}

fn retention() -> Vec<Key> {
    let d = Retention::default();
    vec![
        key("retention.payloads", "duration", duration::show(d.payloads), "1s to 3650d", "Then payloads are erased."),
        key(
            "retention.rows",
            "duration",
            duration::show(d.rows),
            "1s to 3650d, ≥ `payloads`",
            "Then deliveries and their attempts are removed.",
        ),
    ]
}

fn alerts() -> Vec<Key> {
    let d = Alerts::default();
    let t = &d.thresholds;
    const MARGIN: &str = "1s to 30d";
    const GRACE: &str = "0s to 30d";
    vec![
        key("alerts.every", "duration", duration::show(d.every), "100ms to 10m", "Between two looks."),
        key(
            "alerts.tenant",
            "name",
            "none",
            "with `endpoint`",
            "Whose endpoint gets the gateway's own alerts: `ledger_size` and `disk_free`.",
        ),
        key("alerts.endpoint", "name", "none", "one of that tenant's", "Gets them as `hookgate.alert` events."),
        key(
            "alerts.ledger_bytes",
            "size",
            size::show(d.gateway.ledger_bytes),
            &up_to(1 << 50),
            "From this size of the ledger on: `ledger_size`.",
        ),
        key(
            "alerts.disk_free_bytes",
            "size",
            size::show(d.gateway.disk_free_bytes),
            &up_to(1 << 50),
            "With less free on its disk: `disk_free`.",
        ),
        key(
            "alerts.dlq_depth",
            "integer",
            t.dlq_depth.to_string(),
            "1 to 100000",
            "From so many dead letters on: `dlq_depth`.",
        ),
        key(
            "alerts.dlq_oldest_age",
            "duration",
            duration::show(t.dlq_oldest_age),
            "1ms to 365d",
            "With a dead letter of this age: `dlq_oldest_age`.",
        ),
        key(
            "alerts.erasure_margin",
            "duration",
            duration::show(t.erasure_margin),
            MARGIN,
            "So long before a dead letter's payload is erased, at most half of the time that it is kept: \
             `dlq_erasure`.",
        ),
        key(
            "alerts.deadline_margin",
            "duration",
            duration::show(t.deadline_margin),
            MARGIN,
            "So long before the `deadline` of a delivery that has not ended, at most half of the time it was given: \
             `deadline_risk`.",
        ),
        key(
            "alerts.paused_for",
            "duration",
            duration::show(t.paused_for),
            GRACE,
            "With an endpoint paused for so long: `endpoint_paused`.",
        ),
        key(
            "alerts.disabled_for",
            "duration",
            duration::show(t.disabled_for),
            GRACE,
            "With an endpoint disabled for so long: `endpoint_disabled`.",
        ),
        key(
            "alerts.flapping_times",
            "integer",
            t.flapping_times.to_string(),
            "1 to 100",
            "With an endpoint paused or disabled so often within `flapping_window`: `endpoint_flapping`.",
        ),
        key("alerts.flapping_window", "duration", duration::show(t.flapping_window), "1s to 7d", "See above."),
        key(
            "alerts.terminal_rate",
            "percentage",
            t.terminal_rate.to_string(),
            "above 0% to 100%",
            "With such a share of dead letters among an endpoint's deliveries that ended within `terminal_window`: \
             `terminal_rate`.",
        ),
        key("alerts.terminal_window", "duration", duration::show(t.terminal_window), "1m to 1d", "See above."),
        key(
            "alerts.terminal_min_count",
            "integer",
            t.terminal_min_count.to_string(),
            "1 to 1000000",
            "With fewer deliveries that ended, `terminal_rate` does not fire.",
        ),
        key(
            "alerts.plugin_disabled_for",
            "duration",
            duration::show(t.plugin_disabled_for),
            GRACE,
            "With a plugin's version taken out of use for its faults for so long: `plugin_disabled`.",
        ),
        key("alerts.off", "list of kinds", "[]", "", "Kinds of alerts that never fire."),
    ]
}

macro_rules! source_key {
    ($key:literal) => {
        concat!("tenants.<name>.sources.<name>.", $key)
    };
}

fn source() -> Vec<Key> {
    vec![
        key(source_key!("scheme"), "name of a scheme, `custom`", "required", "", "How requests are signed."),
        key(
            source_key!("secrets"),
            "list of secrets",
            "required",
            "1 to 8",
            "Any one may match, so that a secret can be rotated. Each is a text, or a table with the next two keys. \
             Schemes whose provider publishes its keys do without; those whose provider \
             [hands one over](verification.md#secrets-that-providers-hand-over) may.",
        ),
        key(source_key!("secrets.value"), "secret", "required in a table", "", "Where the secret is."),
        key(
            source_key!("secrets.expires"),
            "time, such as `2026-12-31T00:00:00Z`",
            "never",
            "",
            "From then on, what it signs is refused. `check` warns seven days ahead.",
        ),
        key(
            source_key!("params"),
            "table",
            "{}",
            "texts, lists of at most 64 texts, and `true`",
            "What some schemes want to know besides, such as PayPal's `webhook_id`: see \
             [Verification](verification.md).",
        ),
        key(
            source_key!("tolerance"),
            "seconds or duration",
            "the scheme's",
            "1 to 604800",
            "How far a signed time may be from now, both ways.",
        ),
        key(
            source_key!("dedup"),
            "locator, `body`, `none`",
            "the scheme's event id",
            "",
            "What makes a second request the same as a first. Where the signature does not cover it, the same signed \
             content does so too.",
        ),
        key(source_key!("dedup_window"), "duration", "7d", "1s to 30d", "How long the first is remembered."),
        key(
            source_key!("body_bytes_max"),
            "size",
            "`limits.body_bytes_max`",
            &up_to(Limits::BODY_BYTES_CAP),
            "This source's own limit on bodies.",
        ),
        key(
            source_key!("rate.per_second"),
            "number",
            "required in `rate`",
            "0.001 to 100000",
            "Verified requests a second, on average; without `rate` there is no limit. Over it: 429.",
        ),
        key(source_key!("rate.burst"), "integer", "a second's worth", "1 to 1000000", "Requests at once."),
    ]
}

fn custom() -> Vec<Key> {
    vec![
        key(
            source_key!("verify"),
            "`hmac-sha1`, `hmac-sha256`, `hmac-sha384`, `hmac-sha512`, `hash-sha1`, `hash-sha256`, `ed25519`, \
             `ecdsa-p256-sha256`, `rsa-sha256`, `rsa-sha1`, `equal`, `basic`",
            "none",
            "",
            "How a request is verified; `equal` is a shared token, and `basic` HTTP's `user:password`.",
        ),
        key(
            source_key!("key"),
            "`text`, `text-nfkd`, `text-html`, `base64`, `hex`, `spki-base64`, `pem`",
            "text",
            "",
            "How the secret's text becomes a key; the last two are public keys.",
        ),
        key(
            source_key!("key_strip"),
            "text or list",
            "none",
            "",
            "Prefixes of the secret; the one that is there is removed.",
        ),
        key(source_key!("sig.at"), "list of locators", "[]", "", "Where signatures stand; any may carry one."),
        key(source_key!("sig.split"), "text", "none", "", "What separates several signatures in one value."),
        key(source_key!("sig.pair"), "text", "none", "", "What separates a signature's name from itself."),
        key(source_key!("sig.take"), "list of names", "[]", "", "Which names are signatures; the others are ignored."),
        key(source_key!("sig.prefix"), "text", "none", "", "What must precede a signature and is removed."),
        key(source_key!("sig.encoding"), "`hex`, `base64`, `base64url`", "none", "", "How signatures are written."),
        key(
            source_key!("id_form"),
            "`word`",
            "none",
            "",
            "What the event id must look like: 1 to 128 of `A-Za-z0-9_-`.",
        ),
        key(
            source_key!("when"),
            "text or list",
            "always",
            "",
            "`key:PREFIX` or `header:NAME`: when an alternative counts.",
        ),
        key(
            source_key!("challenge"),
            "list of tables",
            "none",
            "",
            "Requests that are handshakes, and their answers: see [Verification](verification.md#handshakes).",
        ),
        key(
            source_key!("answers"),
            "`empty`",
            "JSON",
            "",
            "For a provider that wants no body in any answer, a refusal's included.",
        ),
        key(
            source_key!("alternatives"),
            "list of tables",
            "none",
            "at most 8",
            "Variants; what one leaves out is as above.",
        ),
        key(source_key!("vars"), "table of locators", "{}", "", "Variables for templates, by name."),
        key(source_key!("signed"), "template", "`{body}`", "", "The bytes that are signed."),
        key(
            source_key!("emit"),
            "template",
            "as `sig` says",
            "",
            "How `hookgate sign` writes the signature header: `{sig}` and variables.",
        ),
        key(source_key!("time.var"), "name of a variable", "required in `time`", "", "The signed time."),
        key(source_key!("time.unit"), "`s`, `ms`, `rfc3339`", "required in `time`", "", "How it is written."),
        key(
            source_key!("time.tolerance"),
            "seconds or duration",
            "required in `time`",
            "1 to 604800",
            "How far from now, both ways.",
        ),
        key(
            source_key!("require"),
            "table, locator to text",
            "{}",
            "",
            "Values that must stand where they are said to.",
        ),
        key(source_key!("id"), "list of locators", "[]", "", "The event's id; the first that is there."),
        key(source_key!("type"), "list of locators", "[]", "", "The event's type; the first that is there."),
    ]
}

macro_rules! endpoint_key {
    ($key:literal) => {
        concat!("tenants.<name>.endpoints.<name>.", $key)
    };
}

fn endpoint() -> Vec<Key> {
    let breaker = BreakerPolicy::default();
    vec![
        key(
            endpoint_key!("url"),
            "URL",
            "required without `pull`",
            "≤ 2048 bytes",
            "https, or plain http where `[egress]` allows it; no user name, password or fragment.",
        ),
        key(endpoint_key!("sources"), "list of names", "all", "", "Without it also events published by API."),
        key(
            endpoint_key!("event_types"),
            "list of globs",
            "all",
            "≤ 64 of 256 bytes",
            "`*` stands for any run of characters.",
        ),
        key(endpoint_key!("plugin"), "name", "none", "", "One of the tenant's plugins."),
        key(endpoint_key!("plugin_config"), "table", "{}", "≤ 64KiB", "Handed to the plugin as JSON."),
        key(
            endpoint_key!("signing_secrets"),
            "list of secrets",
            "one is generated",
            "≤ 8; 24 to 64 bytes each",
            "`whsec_…`: every request is signed with each.",
        ),
        key(endpoint_key!("timeout"), "duration", "15s", "100ms to 5m", "For the whole exchange."),
        key(endpoint_key!("concurrency"), "integer", "10", "1 to 1000", "Attempts on the wire at once."),
        key(
            endpoint_key!("rate.per_second"),
            "number",
            "required in `rate`",
            "0.001 to 100000",
            "Attempts a second, on average; without `rate` there is no limit.",
        ),
        key(endpoint_key!("rate.burst"), "integer", "a second's worth", "1 to 1000000", "Attempts at once."),
        key(
            endpoint_key!("ordering"),
            "`none`, `key`",
            "none",
            "",
            "With `key`, events with the same `ordering_key` are sent one after the other, as they were accepted.",
        ),
        key(
            endpoint_key!("on_dead"),
            "`release`, `hold`",
            "release",
            "with `ordering = \"key\"`",
            "Whether those behind a dead letter of their key go on, or wait until it is redriven or resolved.",
        ),
        key(
            endpoint_key!("pull"),
            "`true`, `false`",
            "false",
            "",
            "Nothing is sent: [consumers fetch](delivery.md#pull). Such an endpoint has `sources`, `event_types`, \
             `retry`, `on_ambiguous` and `lease`; everything else is refused.",
        ),
        key(
            endpoint_key!("lease"),
            "duration",
            "30s",
            "1s to 12h",
            "With `pull`: how long a consumer has for a delivery, unless it asks for another time.",
        ),
        key(
            endpoint_key!("on_ambiguous"),
            "`retry`, `hold`",
            "retry",
            "",
            "When a request may have been received: try again under the same key, or hold it in the DLQ for a person.",
        ),
        key(
            endpoint_key!("on_plugin_fault"),
            "`default`, `retry`, `dead`",
            "default",
            "",
            "When `classify` fails: the built-in rules, another attempt, or the DLQ.",
        ),
        key(
            endpoint_key!("breaker"),
            "`true`, `false` or a table",
            "false",
            "",
            "Lets the endpoint rest while it fails; `true` is the table with all its defaults.",
        ),
        key(
            endpoint_key!("breaker.failures"),
            "integer",
            breaker.failures.to_string(),
            "1 to 10000",
            "Failures in a row that open it: no answer, 5xx, 408, or 429 without a `Retry-After`.",
        ),
        key(
            endpoint_key!("breaker.open"),
            "duration",
            duration::show(breaker.open),
            "100ms to 1d",
            "The first pause, of which the last fifth is chance; then one probe, and each that fails doubles it.",
        ),
        key(
            endpoint_key!("breaker.open_max"),
            "duration",
            duration::show(breaker.open_max),
            "`open` to 1d",
            "Where it stops doubling.",
        ),
        key(
            endpoint_key!("disable_after"),
            "duration or `false`",
            HealthPolicy::default().disable_after.map_or_else(|| "false".to_owned(), duration::show),
            "1s to 365d",
            "Nothing but failures for so long disable the endpoint; half-way there an alert says so.",
        ),
        key(
            endpoint_key!("scrub"),
            "boolean",
            "the tenant's",
            "",
            "Whether what was delivered or skipped is erased at once: [what is scrubbed](operations.md#scrubbing).",
        ),
        key(
            endpoint_key!("idempotency_header"),
            "header",
            "idempotency-key",
            "no header with another meaning",
            "Carries the event's logical key, the same on every attempt.",
        ),
        key(
            endpoint_key!("retry.max_attempts"),
            "integer",
            "9, or one more than `delays`",
            "1 to 100",
            "Attempts before a delivery is dead.",
        ),
        key(
            endpoint_key!("retry.delays"),
            "list of durations",
            "5s, 30s, 5m, 30m, 2h, 5h, 10h, 10h",
            "≤ 100 of ≤ 7d",
            "The wait after each attempt; the last one repeats.",
        ),
        key(
            endpoint_key!("retry.base"),
            "duration",
            "30s",
            "1ms to 7d",
            "Instead of `delays`: the first wait, which then grows.",
        ),
        key(endpoint_key!("retry.factor"), "number", "2", "1 to 100", "By what each wait grows."),
        key(endpoint_key!("retry.cap"), "duration", "1h", "`base` to 7d", "Where it stops growing."),
        key(
            endpoint_key!("retry.jitter"),
            "`none`, `equal`, `full`",
            "equal",
            "",
            "How much of a wait is left to chance: nothing, half of it, or all.",
        ),
        key(
            endpoint_key!("retry.max_age"),
            "duration",
            "none",
            "1s to 365d",
            "From acceptance; past it no attempt is made.",
        ),
    ]
}

const INTRO: &str = "\
# Configuration

`hookgate serve --config hookgate.toml` reads one TOML file; `hookgate check` reports every mistake in it with its line.
Without `--config`, `hookgate.toml` in the working directory is read if it is there.

A flag goes before the environment, the environment before the file, the file before the default. An unknown key is a
mistake, wherever it stands.

| kind | written as |
|---|---|
| duration | one whole number with `ms`, `s`, `m`, `h` or `d`: `500ms`, `30s`, `10m`, `6h`, `7d` |
| size | a whole number with `B`, `KiB`, `MiB` or `GiB`, or a plain number of bytes |
| secret | `env:NAME`, `file:PATH` (one line end at the end is dropped), or the secret itself |
| name | 1 to 63 of `a-z`, `0-9` and `-`, beginning with a letter or digit |

Every key has a variable: `HOOKGATE_` and its path in capitals, joined by two underscores. `server.ingress` is
`HOOKGATE_SERVER__INGRESS`; in a name, `-` becomes `_`. Lists are written with commas or as in TOML, tables as in TOML.

| variable | is |
|---|---|
| `HOOKGATE_ADMIN_TOKEN` | the operator's token, as a secret; unset, the first start writes one beside the ledger |
| `HOOKGATE_MASTER_KEY` | the 32 bytes that encrypt the ledger, in hexadecimal or base64, as a secret; unset, the first start writes them beside the ledger |
| `HOOKGATE_CONFIG` | the configuration file, as `--config` |
| `HOOKGATE_URL`, `HOOKGATE_TOKEN`, `HOOKGATE_TENANT` | for the command line's client: where the admin API is, its token, and the tenant |
";

const LATER: &str = "
## Not in this release

`[server.tls]`, a `postgres://` ledger, `coalesce`, and `scrub` of a source or of all tenants are refused with a message
rather than accepted and ignored.
";

/// The whole reference, as Markdown.
pub fn reference() -> String {
    let mut out = INTRO.to_owned();
    for Chapter { title, intro, keys } in chapters() {
        let _ = write!(out, "\n## {title}\n\n{intro}\n\n| key | type | default | limit | |\n|---|---|---|---|---|\n");
        for Key { path, kind, default, limit, text } in keys {
            let short = path.rsplit_once("<name>.").map_or_else(|| within(title, path), |(_, rest)| rest);
            let _ = writeln!(out, "| `{short}` | {kind} | {default} | {limit} | {text} |");
        }
    }
    out.push_str(LATER);
    out
}

/// The key below its chapter's table.
fn within<'p>(title: &str, path: &'p str) -> &'p str {
    let table = title.trim_matches(['`', '[', ']']);
    path.strip_prefix(table).and_then(|rest| rest.strip_prefix('.')).unwrap_or(path)
}

/// The path of every key.
pub(super) fn paths() -> Vec<&'static str> {
    chapters().into_iter().flat_map(|chapter| chapter.keys).map(|key| key.path).collect()
}
