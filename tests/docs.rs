//! The pages say what is so: links lead somewhere, configurations hold, and the lists of routes, metrics and codes are
//! those of the code.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use hookgate::config::{Env, Input, Outside, evaluate};
use hookgate::verify::RefusalCode;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Every page with its text, by its path from the root.
fn pages() -> Vec<(String, String)> {
    let mut paths = vec!["README.md".to_owned(), "ARCHITECTURE.md".to_owned()];
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") {
            paths.push(format!("docs/{name}"));
        }
    }
    assert!(paths.len() > 8, "{paths:?}");
    paths.into_iter().map(|path| (path.clone(), text(&path))).collect()
}

/// The fenced blocks of a language, each with the line before it.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<(&'a str, String)> {
    let open = format!("```{language}");
    let (mut all, mut before) = (Vec::new(), "");
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line == open {
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            all.push((before, block.join("\n")));
        }
        before = line;
    }
    all
}

/// The page without its fenced blocks.
fn prose(page: &str) -> String {
    page.split("\n```").step_by(2).collect::<Vec<_>>().join("\n")
}

/// What GitHub calls a heading.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = prose(page);
    let headings = headings.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#'));
    let anchor = |heading: &str| {
        let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn every_link_leads_to_something() {
    let (mut broken, mut seen) = (Vec::new(), 0);
    for (path, page) in pages() {
        for link in prose(&page).split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            if link.contains("://") {
                continue;
            }
            seen += 1;
            let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
            let to = if file.is_empty() {
                root().join(&path)
            } else {
                root().join(Path::new(&path).parent().unwrap()).join(file)
            };
            let there = to.exists() && anchor.is_none_or(|a| anchors(&fs::read_to_string(&to).unwrap()).contains(a));
            if !there {
                broken.push(format!("{path}: {link}"));
            }
        }
    }
    assert!(broken.is_empty(), "links to nothing:\n{}", broken.join("\n"));
    assert!(seen > 20, "{seen} links");
}

#[test]
fn every_configuration_holds() {
    let mut seen = 0;
    for (path, page) in pages() {
        for (_, block) in blocks(&page, "toml") {
            if !block.lines().any(|line| line.starts_with("[tenants.") || line.starts_with("[server]")) {
                continue;
            }
            seen += 1;
            let at = Path::new(&path);
            let env = Env::default();
            let report = evaluate(&Input { text: &block, path: at, env: &env, flags: &[], outside: Outside::Skip });
            assert!(report.problems.is_empty(), "{}\n{block}", report.lines());
        }
    }
    assert!(seen > 5, "{seen} configurations");
}

/// The words of a text that begin like a metric.
fn metrics(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.strip_prefix("hookgate_").is_some_and(|rest| !rest.is_empty())).collect()
}

#[test]
fn the_metrics_are_those_of_the_process() {
    let (page, source) = (text("docs/operations.md"), text("src/telemetry.rs"));
    let code = source.split("#[cfg(test)]").next().unwrap();
    assert_eq!(metrics(&page), metrics(code));
    // And each has its row.
    for name in metrics(code) {
        assert!(page.contains(&format!("\n| `{name}` |")), "{name} is not in the table");
    }
}

/// Method and path, with `*` for what varies.
type Route = (String, String);

/// `### `METHOD /path`` of the API's page.
fn routes_of_the_page() -> BTreeSet<Route> {
    let page = text("docs/api.md");
    let headings = page.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'));
    let route = |heading: &str| {
        let (method, path) = heading.split_once(' ').unwrap();
        let path = path.split('/').map(|part| if part.starts_with('{') { "*" } else { part });
        (method.to_owned(), path.collect::<Vec<_>>().join("/"))
    };
    headings.map(route).collect()
}

/// The arms of the match on a path's parts. Verbs are POST, events may be published, and everything else is read.
fn routes_of_the_code() -> BTreeSet<Route> {
    let source = text("src/admin/place.rs");
    let code = source.split("#[cfg(test)]").next().unwrap();
    let verbs_of = |room: &str| -> Vec<&str> {
        let arms = code.lines().filter(|line| line.contains(&format!("=> {room}::")));
        arms.filter_map(|line| line.split('"').nth(1)).collect()
    };
    let mut all = BTreeSet::new();
    for line in code.lines().map(str::trim) {
        let Some((arm, _)) = line.strip_prefix('[').and_then(|rest| rest.split_once("] =>")) else { continue };
        let parts: Vec<&str> = arm.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
        if parts.last().is_some_and(|last| last.contains("..")) {
            continue;
        }
        let within_tenant = !matches!(parts.first(), Some(&"\"healthz\"" | &"\"readyz\"" | &"\"metrics\"" | &"\"v1\""));
        let start = if within_tenant { "/v1/tenants/*" } else { "" };
        let of = |parts: &[&str]| {
            let part = |part: &&str| format!("/{}", part.strip_prefix('"').map_or("*", |p| p.trim_end_matches('"')));
            start.to_owned() + &parts.iter().map(part).collect::<String>()
        };
        match parts.as_slice() {
            [kind, name, "verb"] => {
                let room = match *kind {
                    "\"endpoints\"" => "EndpointVerb",
                    "\"operations\"" => "OperationVerb",
                    _ => "DeliveryVerb",
                };
                for verb in verbs_of(room) {
                    all.insert(("POST".to_owned(), format!("{}/{verb}", of(&[*kind, *name]))));
                }
            }
            parts => {
                let is_trial = line.contains("Scope::Trial(");
                let verbs = [
                    "ForgetSecret",
                    "ExplainSource",
                    "PluginVerb",
                    "PullVerb",
                    "DlqVerb",
                    "Scope::Replay",
                    "CancelMany",
                ];
                let is_verb = is_trial || verbs.iter().any(|verb| line.contains(verb));
                let method = if is_verb { "POST" } else { "GET" };
                if is_trial {
                    all.insert(("DELETE".to_owned(), of(parts)));
                }
                if line.contains("Scope::Plugin(") {
                    all.insert(("PUT".to_owned(), of(parts)));
                }
                all.insert((method.to_owned(), of(parts)));
                if parts == ["\"events\""] {
                    all.insert(("POST".to_owned(), of(parts)));
                }
            }
        }
    }
    all.insert(("POST".to_owned(), "/in/*/*".to_owned()));
    all
}

#[test]
fn the_routes_are_those_that_are_answered() {
    let code = routes_of_the_code();
    assert!(code.len() > 20, "{code:?}");
    assert_eq!(routes_of_the_page(), code);
}

#[test]
fn every_word_of_a_refusal_is_told() {
    for page in ["docs/verification.md", "docs/api.md"] {
        let page = text(page);
        for code in RefusalCode::ALL {
            assert!(page.contains(&format!("\n| `{code}` |")), "{code}");
        }
    }
}

#[test]
fn every_code_of_an_error_is_one_that_is_given() {
    let mut sources = String::new();
    for file in [
        "src/admin/mod.rs",
        "src/admin/dead_letters.rs",
        "src/admin/deliveries.rs",
        "src/admin/endpoints.rs",
        "src/admin/export.rs",
        "src/admin/events.rs",
        "src/admin/idempotency.rs",
        "src/admin/input.rs",
        "src/admin/operations.rs",
        "src/admin/past.rs",
        "src/admin/plugins.rs",
        "src/admin/publish.rs",
        "src/admin/pull.rs",
        "src/admin/query.rs",
        "src/admin/resend.rs",
        "src/admin/status.rs",
        "src/http/body.rs",
        "src/http/listener.rs",
        "src/http/problem.rs",
        "src/ingress/mod.rs",
        "src/verify/refusal.rs",
    ] {
        sources += &text(file);
    }
    let page = text("docs/api.md");
    let mut seen = 0;
    for table in page.split("\n| code |").skip(1) {
        for row in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
            let code = row.split('`').nth(1).unwrap();
            assert!(sources.contains(&format!("\"{code}\"")), "nothing gives the code `{code}`");
            seen += 1;
        }
    }
    assert!(seen > 30, "{seen} codes");
}

/// The fields of a value; of a list, those of its first item.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), shape(value))).collect(),
        Value::Array(items) => items.first().map(shape).into_iter().collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Value::Null,
    }
}

#[test]
fn answers_have_the_fields_that_are_shown() {
    let page = text("docs/api.md");
    let mut seen = 0;
    for (before, block) in blocks(&page, "json") {
        let shown: Value = serde_json::from_str(&block).unwrap_or_else(|e| panic!("{e}:\n{block}"));
        let Some(golden) = before.strip_prefix("<!-- shape: ").and_then(|rest| rest.strip_suffix(" -->")) else {
            continue;
        };
        let answer: Value = serde_json::from_str(&text(golden)).unwrap();
        assert_eq!(shape(&shown), shape(&answer["body"]), "{golden}");
        seen += 1;
    }
    assert!(seen > 10, "{seen} answers");
}

/// The trials of the page are shown alone, without the plugin around them.
#[test]
fn trials_have_the_fields_that_are_shown() {
    let page = text("docs/api.md");
    let shown = |kind: &str| {
        let block =
            blocks(&page, "json").into_iter().find(|(_, block)| block.contains(&format!("\"kind\": \"{kind}\"")));
        shape(&serde_json::from_str(&block.unwrap().1).unwrap())
    };
    for kind in ["shadow", "canary"] {
        let answer: Value = serde_json::from_str(&text(&format!("tests/golden/admin/plugin-{kind}.json"))).unwrap();
        assert_eq!(shown(kind), shape(&answer["body"]["trial"]), "{kind}");
    }
}

/// Every example's configuration means something, and its README is there.
#[test]
fn examples_hold() {
    let mut seen = 0;
    for entry in fs::read_dir(root().join("examples")).unwrap() {
        let folder = entry.unwrap().path();
        let path = folder.join("hookgate.toml");
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let env = Env::default();
        let report = evaluate(&Input { text: &text, path: &path, env: &env, flags: &[], outside: Outside::Skip });
        assert!(report.settings.is_some(), "{}\n{}", path.display(), report.lines());
        let readme =
            fs::read_to_string(folder.join("README.md")).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        assert!(readme.lines().count() <= 50, "{} is more than a screen", folder.display());
        seen += 1;
    }
    assert!(seen >= 7, "{seen} examples");
}
