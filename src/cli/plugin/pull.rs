//! `hookgate plugin pull-fixtures`: recorded attempts become files, a file for each case there was.

use super::project::{Project, in_folder};
use super::ship::at;
use crate::cli::keys::moment;
use crate::cli::output::{plain, text};
use crate::cli::sign::quoted;
use crate::cli::table::Column;
use crate::cli::{Context, Exit, Failure, Format};
use crate::plugin::fixture::redact::{Rules, redact};
use crate::plugin::fixture::{FILE_BYTES_MAX, Fixture, write};
use serde_json::{Value, json};
use sha2::Digest as _;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Where a project has its fixtures.
const OWN_FOLDER: &str = "fixtures";

/// Turn recorded attempts into fixtures: a file for each distinct case, with what came of it as what is expected
#[derive(clap::Args, Debug)]
pub(in crate::cli) struct PullFixtures {
    /// The plugin's name, or TENANT/NAME
    name: String,
    /// Where the files go
    #[arg(long, value_name = "DIR", default_value = OWN_FOLDER)]
    dir: PathBuf,
    /// Only of this endpoint
    #[arg(long)]
    endpoint: Option<String>,
    /// Only of events accepted at or after this time (RFC 3339, or `1h` ago)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<String>,
    /// Only of deliveries in this state
    #[arg(long)]
    state: Option<String>,
    /// Only with this verdict: delivered, retryable or terminal
    #[arg(long)]
    verdict: Option<String>,
    /// Only with this reason
    #[arg(long)]
    reason: Option<String>,
    /// Only with this HTTP status
    #[arg(long)]
    status: Option<u16>,
    /// Only of this delivery
    #[arg(long, value_name = "ID")]
    delivery: Option<String>,
    /// Only calls of this function
    #[arg(long)]
    call: Option<Function>,
    /// The most attempts to look at, the newest first
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Put placeholders of the same shape for e-mail addresses, phone numbers, long runs of digits, and tokens
    #[arg(long)]
    redact: bool,
    /// And for what is in JSON members of this name; may be given several times
    #[arg(long, value_name = "NAME")]
    redact_field: Vec<String>,
    /// Overwrite files that are there
    #[arg(long)]
    force: bool,
}

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Function {
    Transform,
    Classify,
}

const COLUMNS: [Column; 5] = [
    Column::state("RESULT", "result"),
    Column::whole("FIXTURE", "fixture"),
    Column::whole("CALL", "call"),
    Column::breakable("EXPECTS", "expects"),
    Column::whole("CASES", "cases"),
];

/// A case, and how often it was met.
struct Case {
    document: String,
    call: &'static str,
    expects: String,
    met: u64,
}

impl PullFixtures {
    fn query(&self) -> Vec<(&'static str, String)> {
        let all = [
            ("endpoint", self.endpoint.clone()),
            ("since", self.since.clone()),
            ("state", self.state.clone()),
            ("verdict", self.verdict.clone()),
            ("reason", self.reason.clone()),
            ("status", self.status.map(|status| status.to_string())),
            ("delivery", self.delivery.clone()),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    fn wants(&self, call: &str) -> bool {
        match self.call {
            None => true,
            Some(Function::Transform) => call == "transform",
            Some(Function::Classify) => call == "classify",
        }
    }
}

pub(super) async fn run(args: &PullFixtures, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let rules = Rules {
        patterns: args.redact,
        fields: args.redact_field.iter().map(|field| field.to_ascii_lowercase()).collect(),
    };
    let (client, path) = at(&args.name, &["attempts"], context).await?;
    let found = client.list(&path, &args.query(), args.limit).await?;
    let items = found["items"].as_array().map_or(&[][..], Vec::as_slice);
    let (mut cases, mut left_out) = (BTreeMap::<String, Case>::new(), BTreeMap::<String, u64>::new());
    for item in items {
        for why in item["left_out"].as_array().into_iter().flatten() {
            *left_out.entry(format!("{}: {}", text(&why["call"]), text(&why["why"]))).or_default() += 1;
        }
        for call in item["calls"].as_array().into_iter().flatten() {
            let called = if call["event"].is_object() { "transform" } else { "classify" };
            if !args.wants(called) {
                continue;
            }
            let mut fixture = call.clone();
            if (rules.patterns || !rules.fields.is_empty()) && has_binary(&fixture) {
                *left_out.entry(format!("{called}: binary, which cannot be redacted")).or_default() += 1;
                continue;
            }
            redact(&mut fixture, &rules);
            let document = write::document(&fixture);
            if document.len() as u64 > FILE_BYTES_MAX {
                *left_out.entry(format!("{called}: too_large")).or_default() += 1;
                continue;
            }
            let read = Fixture::parse(&document).map_err(|unfit| {
                Failure::new(Exit::Failed, format!("what the server sent is no fixture: {}", plain(&unfit.to_string())))
                    .with_remedy("is the server of another version?")
            })?;
            let expects = read.expected.map_or_else(String::new, |_| expectation(&fixture["expect"]));
            let case = Case { document, call: called, expects, met: 0 };
            cases.entry(file_name(&fixture, called)).or_insert(case).met += 1;
        }
    }
    if cases.is_empty() {
        let page = if items.is_empty() { client.get(&path, &args.query()).await? } else { Value::Null };
        let why = page["hint"].as_str().unwrap_or("no call of these attempts can be written down");
        context.output.say(&format!("no fixtures: {}", plain(why)));
    } else {
        std::fs::create_dir_all(&args.dir).map_err(|e| unwritable(&args.dir, &e))?;
    }
    let mut rows = Vec::new();
    for (name, case) in &cases {
        let path = args.dir.join(name);
        let result = keep(&path, &case.document, args.force)?;
        let fixture = path.display().to_string();
        rows.push(json!({ "result": result, "fixture": fixture, "call": case.call, "expects": case.expects, "cases": case.met }));
    }
    tell(&rows, &left_out, items.len(), context)?;
    if !rows.is_empty() {
        let others = in_folder(&args.dir)?.iter().filter(|path| !is_of(&cases, path)).count();
        if others > 0 {
            let dir = plain(&args.dir.display().to_string());
            let told = format!(
                "{others} other fixtures in {dir} are not of this pull and are as they were: see whether they are redacted"
            );
            context.output.say(&told);
        }
        let test = test_command(&args.dir, Project::find(Path::new("."))?.is_some());
        context.output.say(&format!("{} fixtures of {} attempts; next: {test}", rows.len(), items.len()));
    }
    Ok(Exit::Done)
}

fn tell(
    rows: &[Value],
    left_out: &BTreeMap<String, u64>,
    attempts: usize,
    context: &mut Context<'_>,
) -> Result<(), Failure> {
    let output = &mut context.output;
    let document = json!({ "items": rows, "attempts": attempts, "left_out": left_out });
    match output.format {
        Format::Table if rows.is_empty() => {}
        Format::Table => output.table(&COLUMNS, rows)?,
        Format::Json => output.document(&document)?,
        Format::Quiet => rows.iter().try_for_each(|row| output.line(&text(&row["fixture"])))?,
    }
    for (why, count) in left_out {
        output.say(&format!("{count} calls left out ({why})"));
    }
    let kept = rows.iter().filter(|row| row["result"] == KEPT).count();
    if kept > 0 {
        output.say(&format!("{kept} files were there already and are as they were; --force overwrites them"));
    }
    Ok(())
}

fn is_of(cases: &BTreeMap<String, Case>, path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| cases.contains_key(name))
}

/// What runs the fixtures of that folder: a project's own need no name.
fn test_command(dir: &Path, in_project: bool) -> String {
    if in_project && dir.components().eq(Path::new(OWN_FOLDER).components()) {
        return "hookgate plugin test".to_owned();
    }
    let dir = plain(&dir.display().to_string());
    let bare = dir.chars().all(|c| c.is_alphanumeric() || "/._-".contains(c));
    let dir = if bare { dir } else { quoted(&dir) };
    format!("hookgate plugin test {dir}")
}

const KEPT: &str = "kept";

/// Writes a file that is not there yet, or with `force` in the place of what is: a link is replaced, never followed.
fn keep(path: &Path, document: &str, force: bool) -> Result<&'static str, Failure> {
    use std::io::Write as _;
    let draft = path.with_extension(format!("{}.draft", std::process::id()));
    let target = if force { draft.as_path() } else { path };
    if force {
        // Of an earlier process with this number, that was killed.
        let _ = std::fs::remove_file(&draft);
    }
    let mut file = match std::fs::File::create_new(target) {
        Ok(file) => file,
        Err(e) if !force && e.kind() == std::io::ErrorKind::AlreadyExists => return Ok(KEPT),
        Err(e) => return Err(unwritable(path, &e)),
    };
    let written = file.write_all(document.as_bytes());
    let placed = written.and_then(|()| if force { std::fs::rename(target, path) } else { Ok(()) });
    placed.map(|()| "written").map_err(|e| {
        // A half of one is no fixture; the first error is the one to tell.
        let _ = std::fs::remove_file(target);
        unwritable(path, &e)
    })
}

fn unwritable(path: &Path, e: &std::io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("`{}` cannot be written: {e}", path.display()))
        .with_remedy("name another folder with --dir")
}

fn has_binary(fixture: &Value) -> bool {
    let places = ["/event/body_base64", "/outcome/response/body_base64", "/expect/send/body_base64"];
    places.iter().any(|place| fixture.pointer(place).is_some())
}

/// `terminal suspended`, `send`, `fault trap`.
fn expectation(expect: &Value) -> String {
    let Some((kind, fields)) = expect.as_object().and_then(|all| all.iter().next()) else { return String::new() };
    let why = ["reason", "kind"].iter().find_map(|field| fields[*field].as_str());
    why.map_or_else(|| plain(kind), |why| format!("{} {}", plain(kind), plain(why)))
}

/// What the case is, and a part of the digest of all that makes it one: the same case always has the same name.
fn file_name(fixture: &Value, call: &str) -> String {
    let outcome = &fixture["outcome"];
    let what = match (call, &outcome["response"]["status"], outcome["failure"]["kind"].as_str()) {
        ("transform", _, _) => format!("transform-{}", text(&fixture["event"]["type"])),
        (_, _, Some(kind)) => kind.to_owned(),
        (_, status, None) => text(status),
    };
    let words = format!("{what}-{}", expectation(&fixture["expect"]));
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' };
    let words: String = words.chars().map(plain).take(100).collect();
    let digest = sha2::Sha256::digest(identity(fixture).to_string());
    format!("{words}-{}.json", hex::encode(&digest[..4]))
}

/// The fixture without what is of one attempt alone.
fn identity(fixture: &Value) -> Value {
    const OWN: [(&str, &[&str]); 6] = [
        ("", &["description"]),
        ("/attempt", &["event_id", "idempotency_key", "number", "now"]),
        ("/event", &["id", "accepted_at"]),
        ("/outcome/response", &["elapsed_ms"]),
        ("/outcome/failure", &["elapsed_ms"]),
        ("/outcome/response/headers", &["date"]),
    ];
    let mut identity = fixture.clone();
    for (place, fields) in OWN {
        let Some(there) = identity.pointer_mut(place).and_then(Value::as_object_mut) else { continue };
        there.retain(|field, _| !fields.contains(&field.as_str()));
    }
    identity
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(change: impl FnOnce(&mut Value)) -> Value {
        let mut fixture = json!({
            "description": "one", "attempt": { "event_id": "evt_1", "number": 1, "now": "2026-01-31T08:00:00Z", "event_type": "a" },
            "outcome": { "response": { "status": 200, "headers": { "date": "now" }, "body": "x", "elapsed_ms": 3 } },
            "expect": { "terminal": { "reason": "suspended" } },
        });
        change(&mut fixture);
        fixture
    }

    #[test]
    fn the_same_case_has_the_same_name() {
        let name = |fixture: &Value| file_name(fixture, "classify");
        let first = name(&answered(|_| {}));
        assert!(first.starts_with("200-terminal-suspended-") && first.ends_with(".json"), "{first}");
        let same: [fn(&mut Value); 4] = [
            |f| f["description"] = json!("another"),
            |f| f["attempt"]["event_id"] = json!("evt_2"),
            |f| f["attempt"]["number"] = json!(4),
            |f| f["outcome"]["response"]["headers"]["date"] = json!("later"),
        ];
        for change in same {
            assert_eq!(name(&answered(change)), first);
        }
        let other: [fn(&mut Value); 4] = [
            |f| f["outcome"]["response"]["body"] = json!("y"),
            |f| f["expect"] = json!({ "terminal": { "reason": "else" } }),
            |f| f["attempt"]["event_type"] = json!("b"),
            |f| f["config"] = json!({ "a": 1 }),
        ];
        for change in other {
            assert_ne!(name(&answered(change)), first);
        }
    }

    #[test]
    fn names_say_what_the_case_is_and_lead_nowhere() {
        let failed =
            json!({ "outcome": { "failure": { "kind": "timeout" } }, "expect": { "fault": { "kind": "trap" } } });
        assert!(file_name(&failed, "classify").starts_with("timeout-fault-trap-"));
        let sent = json!({ "event": { "type": "../../a b/ü" }, "expect": { "send": { "method": "POST" } } });
        let name = file_name(&sent, "transform");
        assert!(name.starts_with("transform-..-..-a-b---send-"), "{name}");
        assert!(!name.contains('/'));
    }

    #[test]
    fn the_next_command_is_for_the_folder_that_was_filled() {
        for (dir, in_project, command) in [
            ("fixtures", true, "hookgate plugin test"),
            ("./fixtures/", true, "hookgate plugin test ./fixtures/"),
            ("fixtures", false, "hookgate plugin test fixtures"),
            ("/tmp/new", true, "hookgate plugin test /tmp/new"),
            ("it's new", true, "hookgate plugin test 'it'\\''s new'"),
        ] {
            assert_eq!(test_command(Path::new(dir), in_project), command);
        }
    }

    #[test]
    fn what_is_there_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        assert_eq!(keep(&path, "a longer one", false).unwrap(), "written");
        assert_eq!(keep(&path, "two", false).unwrap(), KEPT);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a longer one");
        assert_eq!(keep(&path, "two", true).unwrap(), "written");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
    }

    #[cfg(unix)]
    #[test]
    fn links_are_replaced_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, elsewhere) = (dir.path().join("a.json"), dir.path().join("elsewhere"));
        std::fs::write(&elsewhere, "mine").unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert_eq!(keep(&path, "two", false).unwrap(), KEPT);
        assert_eq!(keep(&path, "two", true).unwrap(), "written");
        assert_eq!(std::fs::read_to_string(&elsewhere).unwrap(), "mine");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
        assert!(!path.is_symlink());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "no draft is left");
    }
}
