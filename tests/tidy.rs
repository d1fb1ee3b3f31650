//! The walls between the rooms, and the habits of the house, held by reading the source.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// For each room, the rooms that it may import. The roots (`clock`, `telemetry`, …) are
/// open to all.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("delivery", &[]),
    ("verify", &["delivery"]),
    ("ledger", &["delivery", "verify"]),
    ("plugin", &["delivery"]),
    ("egress", &["delivery", "verify"]),
    ("http", &[]),
    ("telemetry", &["delivery", "ledger"]),
    ("ingress", &["delivery", "verify", "ledger", "http"]),
    ("dispatch", &["delivery", "verify", "ledger", "plugin", "egress"]),
    ("operations", &["delivery", "verify", "ledger"]),
    ("admin", &["delivery", "verify", "ledger", "http"]),
    ("console", &["delivery", "http", "admin"]),
    ("config", &["delivery", "verify", "egress", "plugin"]),
    (
        "app",
        &[
            "delivery",
            "verify",
            "ledger",
            "plugin",
            "egress",
            "http",
            "telemetry",
            "ingress",
            "dispatch",
            "operations",
            "admin",
            "console",
            "config",
        ],
    ),
    ("cli", &["delivery", "verify", "config", "app", "plugin", "http"]),
];

const OPEN_TO_ALL: &[&str] = &["clock", "crash", "duration", "entropy", "secret", "telemetry"];

/// Words that belong to one room alone: an import of the crate elsewhere is a hole in a wall.
const OUTSIDE_CRATES: &[(&str, &[&str])] = &[
    ("rusqlite", &["ledger"]),
    ("wasmtime", &["plugin"]),
    ("wasmparser", &["plugin"]),
    ("wit_component", &["plugin"]),
    ("wit_parser", &["plugin"]),
    ("reqwest", &["cli"]),
    ("hickory_resolver", &["egress"]),
    ("tokio_rustls", &["egress"]),
    ("clap", &["cli"]),
    ("toml", &["config", "verify"]),
    ("sfv", &["verify"]),
    ("webpki", &["verify"]),
    ("x509_parser", &["verify"]),
    ("askama", &["console"]),
];

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut stack = vec![dir.to_owned()];
    while let Some(dir) = stack.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if path.file_name().is_none_or(|name| name != "target") {
                    stack.push(path);
                }
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The room a source file belongs to: the first folder or file under `src`.
fn room(file: &Path) -> String {
    let inner = file.strip_prefix(root().join("src")).unwrap();
    let first = inner.components().next().unwrap().as_os_str().to_string_lossy().into_owned();
    first.trim_end_matches(".rs").to_owned()
}

/// Every `crate::name` in a line of code.
fn imports(line: &str) -> Vec<String> {
    let code = line.split("//").next().unwrap_or("");
    let word = |text: &str| -> String {
        text.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_' || c.is_ascii_digit()).collect()
    };
    let mut names: Vec<String> = code.split("crate::").skip(1).map(word).collect();
    // use crate::{a::…, b::…}
    if let Some(list) = code.split("crate::{").nth(1) {
        names.extend(list.split(',').map(|part| word(part.trim())));
    }
    names.retain(|n| !n.is_empty());
    names
}

#[test]
fn rooms_import_only_what_lies_below_them() {
    let walls: BTreeMap<&str, &[&str]> = MAY_IMPORT.iter().copied().collect();
    let mut holes = Vec::new();
    for file in rust_files(&root().join("src")) {
        let room = room(&file);
        if ["lib", "main"].contains(&room.as_str()) {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            for import in imports(line) {
                let known = walls.contains_key(import.as_str());
                if !known || import == room || OPEN_TO_ALL.contains(&import.as_str()) {
                    continue;
                }
                let allowed = walls.get(room.as_str()).is_some_and(|list| list.contains(&import.as_str()));
                if !allowed {
                    holes.push(format!("{}:{}: `{room}` imports `{import}`", file.display(), number + 1));
                }
            }
        }
    }
    assert!(holes.is_empty(), "holes in the walls:\n{}", holes.join("\n"));
}

#[test]
fn every_room_has_its_walls() {
    let walls: BTreeMap<&str, &[&str]> = MAY_IMPORT.iter().copied().collect();
    for file in rust_files(&root().join("src")) {
        let room = room(&file);
        let known = walls.contains_key(room.as_str())
            || OPEN_TO_ALL.contains(&room.as_str())
            || ["lib", "main"].contains(&room.as_str());
        assert!(known, "{}: the room `{room}` is not in the plan", file.display());
    }
}

#[test]
fn outside_crates_stay_in_their_rooms() {
    let mut strays = Vec::new();
    for file in rust_files(&root().join("src")) {
        let room = room(&file);
        let text = fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            for (outside, rooms) in OUTSIDE_CRATES {
                let used = code.contains(&format!("{outside}::")) || code.contains(&format!("use {outside}"));
                let inside_path = code.contains(&format!("::{outside}::"));
                if used && !inside_path && !rooms.contains(&room.as_str()) {
                    strays.push(format!("{}:{}: `{outside}` in `{room}`", file.display(), number + 1));
                }
            }
        }
    }
    assert!(strays.is_empty(), "crates outside their rooms:\n{}", strays.join("\n"));
}

/// A scheme that is code has its name in its file's name, in the table of built-ins and in the list of schemes.
#[test]
fn no_other_code_knows_which_scheme_it_serves() {
    let is_code = |name: &&str| {
        let data = fs::read_to_string(root().join(format!("src/verify/schemes/{name}.toml"))).unwrap();
        data.lines().any(|line| line == format!("verify = \"builtin:{name}\""))
    };
    let names: Vec<&str> = hookgate::verify::schemes::names().filter(is_code).collect();
    assert_eq!(names.len(), 16);
    let tables = ["src/verify/builtin/mod.rs", "src/verify/schemes.rs"].map(|file| root().join(file));
    for file in rust_files(&root().join("src")) {
        let told = file.to_string_lossy().into_owned();
        if tables.contains(&file) || told.contains("/tests") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        for name in &names {
            assert!(!text.contains(&format!("\"{name}\"")), "{told} names the scheme {name}");
        }
    }
}

#[test]
fn files_are_rooms_one_can_see_through() {
    for file in rust_files(&root().join("src")) {
        let lines = fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= 900, "{}: {lines} lines: two rooms in one", file.display());
    }
}

#[test]
fn every_room_says_what_it_owns() {
    for file in rust_files(&root().join("src")) {
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("//!"), "{}: no module documentation", file.display());
    }
}

#[test]
fn tests_wait_for_conditions_not_for_luck() {
    for file in rust_files(&root().join("tests")) {
        if file.ends_with("tidy.rs") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            let sleeps = line.contains("thread::sleep(") || line.contains("time::sleep(");
            let explained = line.contains("// poll:") || line.contains("// plays the peer:");
            assert!(
                !sleeps || explained,
                "{}:{}: a sleep that is neither a poll's step nor a slow peer",
                file.display(),
                number + 1
            );
        }
    }
}

#[test]
fn nothing_is_promised_instead_of_done() {
    let words =
        ["TO".to_owned() + "DO", "FIX".to_owned() + "ME", "un".to_owned() + "implemented!", "to".to_owned() + "do!("];
    for dir in ["src", "tests", "plugins", "benches"] {
        let dir = root().join(dir);
        if !dir.exists() {
            continue;
        }
        for file in rust_files(&dir) {
            let text = fs::read_to_string(&file).unwrap();
            for word in &words {
                assert!(!text.contains(word.as_str()), "{}: {word}", file.display());
            }
        }
    }
}

/// What this machine's build takes in, one package a line.
fn packages(edges: &str, format: &str) -> Vec<String> {
    let tree = std::process::Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "--edges", edges, "--prefix", "none", "--format", format])
        .current_dir(root())
        .output()
        .unwrap();
    let tree = String::from_utf8(tree.stdout).unwrap();
    let lines: Vec<String> = tree.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect();
    assert!(lines.len() > 100, "{tree}");
    lines
}

/// What `deny.toml` bans is not built, and nothing comes from elsewhere than crates.io. (The lock file also names
/// optional crates that nobody asks for.)
#[test]
fn banned_crates_are_not_built() {
    let deny = fs::read_to_string(root().join("deny.toml")).unwrap();
    let banned = |line: &str| Some(line.trim().strip_prefix("{ crate = \"")?.split('"').next()?.to_owned());
    let banned: Vec<String> = deny.lines().filter_map(banned).collect();
    assert!(banned.len() >= 5, "{banned:?}");
    let built = packages("normal,build", "{p}");
    for name in banned {
        assert!(!built.iter().any(|line| line.starts_with(&format!("{name} v"))), "{name} is banned and built");
    }
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let foreign =
        lock.lines().find(|l| l.starts_with("source = ") && !l.contains("github.com/rust-lang/crates.io-index"));
    assert_eq!(foreign, None);
    let manifest: toml::Table = fs::read_to_string(root().join("Cargo.toml")).unwrap().parse().unwrap();
    for section in ["dependencies", "dev-dependencies"] {
        for (name, wanted) in manifest[section].as_table().unwrap() {
            let version = wanted.as_str().or_else(|| wanted.get("version")?.as_str());
            assert!(version.is_some_and(|version| !version.contains('*')), "{name} is wanted in any version");
        }
    }
}

/// The list `allow` of `[licenses]`.
fn allowed_licences() -> Vec<String> {
    let deny: toml::Table = fs::read_to_string(root().join("deny.toml")).unwrap().parse().unwrap();
    let allow = deny["licenses"]["allow"].as_array().unwrap();
    allow.iter().map(|licence| licence.as_str().unwrap().to_owned()).collect()
}

/// Whether an SPDX expression can be met by what is allowed: `OR` leaves the choice, `AND` does not. `/` is an old `OR`.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    let met = any_of(&mut rest, allowed);
    met && rest.is_empty()
}

fn any_of(words: &mut &[&str], allowed: &[String]) -> bool {
    let mut met = all_of(words, allowed);
    while let ["OR", rest @ ..] = words {
        *words = rest;
        met |= all_of(words, allowed);
    }
    met
}

fn all_of(words: &mut &[&str], allowed: &[String]) -> bool {
    let mut met = one(words, allowed);
    while let ["AND", rest @ ..] = words {
        *words = rest;
        met &= one(words, allowed);
    }
    met
}

fn one(words: &mut &[&str], allowed: &[String]) -> bool {
    match words {
        ["(", rest @ ..] => {
            *words = rest;
            let met = any_of(words, allowed);
            let [")", rest @ ..] = words else { return false };
            *words = rest;
            met
        }
        [licence, "WITH", exception, rest @ ..] => {
            let name = format!("{licence} WITH {exception}");
            *words = rest;
            allowed.contains(&name)
        }
        [licence, rest @ ..] => {
            let name = (*licence).to_owned();
            *words = rest;
            allowed.contains(&name)
        }
        [] => false,
    }
}

#[test]
fn every_package_has_a_licence_that_is_allowed() {
    let allowed = allowed_licences();
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("", false),
        ("MIT OR GPL-3.0", true),
        ("MIT/GPL-3.0", true),
        ("MIT AND GPL-3.0", false),
        ("GPL-3.0 OR MIT AND ISC", true),
        ("(GPL-3.0 OR MIT) AND Unicode-3.0", true),
        ("(MIT OR Apache-2.0) AND GPL-3.0", false),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("GPL-2.0 WITH Classpath-exception-2.0", false),
        ("(MIT", false),
        ("MIT MIT", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
    }
    let refused: Vec<String> = packages("normal,build,dev", "{p}|{l}")
        .into_iter()
        .filter(|line| !line.split_once('|').is_some_and(|(_, licence)| is_allowed(licence, &allowed)))
        .collect();
    assert!(refused.is_empty(), "not of the licences in deny.toml:\n{}", refused.join("\n"));
}
