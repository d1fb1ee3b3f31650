//! The verbs of a gateway: versions, and which is in use.

use super::trial::{self, short};
use crate::cli::output::text;
use crate::cli::table::Column;
use crate::cli::{Client, Context, Exit, Failure, Format};
use reqwest::StatusCode;
use serde_json::{Value, json};
use std::io::Read as _;
use std::path::PathBuf;

/// More than any server takes.
const COMPONENT_BYTES_MAX: u64 = 64 << 20;

#[derive(clap::Subcommand, Debug)]
pub(in crate::cli) enum Verb {
    /// All plugins, and what is in use
    List,
    /// One plugin: its versions, and who put what into use when
    Get {
        /// The plugin's name, or TENANT/NAME
        name: String,
    },
    /// Upload a component; it is compiled and checked, and becomes a version
    #[command(visible_alias = "push")]
    Upload {
        /// The plugin's name, or TENANT/NAME
        name: String,
        /// The component
        file: PathBuf,
        /// Put it into use once it is ready
        #[arg(short, long)]
        activate: bool,
        /// Do not wait for it to be compiled
        #[arg(long)]
        no_wait: bool,
    },
    /// Put a version into use; one that was disabled is given another try
    Activate {
        /// The plugin's name, or TENANT/NAME
        name: String,
        /// The version's id: plg_…
        version: String,
    },
    /// Try a version beside the one in use: asked about the same attempts, and nothing comes of it
    Shadow(trial::Shadow),
    /// Try a version in place of the one in use for a share; rolled back by itself when it leaves its bounds
    Canary(trial::Canary),
    /// Put the version into use that was in use before and is ready
    Rollback {
        /// The plugin's name, or TENANT/NAME
        name: String,
    },
}

const COLUMNS: [Column; 6] = [
    Column::whole("PLUGIN", "name"),
    Column::whole("ACTIVE", "active"),
    Column::breakable("TRIAL", "tried").lesser(1),
    Column::whole("MANAGED BY", "managed_by").lesser(2),
    Column::breakable("ENDPOINTS", "endpoints"),
    Column::whole("DIGEST", "digest").lesser(3),
];

const VERSIONS: [Column; 7] = [
    Column::whole("VERSION", "id"),
    Column::state("STATE", "state"),
    Column::time("UPLOADED", "uploaded_at"),
    Column::whole("BY", "uploaded_by").lesser(2),
    Column::whole("BYTES", "bytes").lesser(3),
    Column::breakable("TOLD", "told"),
    Column::whole("DIGEST", "digest").lesser(4),
];

const ACTIVATIONS: [Column; 4] = [
    Column::time("AT", "at"),
    Column::whole("CHANGE", "what"),
    Column::whole("IN USE FROM THEN", "version"),
    Column::whole("BY", "by").lesser(1),
];

const VERSION_FIELDS: [&str; 8] =
    ["id", "state", "exports", "warnings", "digest", "bytes", "uploaded_at", "uploaded_by"];

pub(super) async fn run(verb: Verb, context: &mut Context<'_>) -> Result<Exit, Failure> {
    match verb {
        Verb::List => {
            let mut client = Client::new(context)?;
            let path = client.in_tenant(&["plugins"]).await?;
            let mut all = client.list(&path, &[], 10_000).await?;
            if context.output.format == Format::Table {
                for plugin in all["items"].as_array_mut().into_iter().flatten() {
                    plugin["tried"] = short(&plugin["trial"]);
                    *plugin = abridged(worded(plugin, Format::Table));
                }
            }
            context.output.list(&all, &COLUMNS, "name")?;
        }
        Verb::Get { name } => {
            let (client, path) = at(&name, &[], context).await?;
            let plugin = client.get(&path, &[]).await?;
            show(&plugin, context)?;
        }
        Verb::Upload { name, file, activate, no_wait } => {
            let wasm = read(&file)?;
            let (client, path) = at(&name, &[], context).await?;
            let query = [("activate", activate.to_string()), ("wait", (!no_wait).to_string())];
            let (status, version) = client.put_wasm(&path, &query, wasm).await?;
            let output = &mut context.output;
            for warning in version["warnings"].as_array().into_iter().flatten() {
                output.say(&format!("note: {}", text(warning)));
            }
            output.one(&worded(&version, output.format), &VERSION_FIELDS, "id")?;
            if status == StatusCode::OK {
                let id = text(&version["id"]);
                let used = if version["active"] == true { "in use" } else { "not in use" };
                output.say(&format!("already there: these bytes are version {id}, which is {used}"));
            } else if version["active"] == true {
                output.say("in use now");
            }
            if version["active"] == false && version["state"] == "ready" {
                output.say(&format!("to put it into use: hookgate plugin activate {name} {}", text(&version["id"])));
            }
        }
        Verb::Activate { name, version } => {
            let (client, path) = at(&name, &["activate"], context).await?;
            change(&client, &path, &json!({ "version": version }), context).await?;
        }
        Verb::Shadow(args) => return trial::shadow(args, context).await,
        Verb::Canary(args) => return trial::canary(args, context).await,
        Verb::Rollback { name } => {
            let (client, path) = at(&name, &["rollback"], context).await?;
            change(&client, &path, &json!({}), context).await?;
        }
    }
    Ok(Exit::Done)
}

/// The plugin's path, with `below` below it.
pub(super) async fn at(name: &str, below: &[&str], context: &mut Context<'_>) -> Result<(Client, String), Failure> {
    let name = match name.split_once('/') {
        Some((tenant, name)) => {
            context.globals.tenant = Some(tenant.to_owned());
            name
        }
        None => name,
    };
    let mut client = Client::new(context)?;
    let path = client.in_tenant(&[&["plugins", name], below].concat()).await?;
    Ok((client, path))
}

fn read(file: &PathBuf) -> Result<Vec<u8>, Failure> {
    let failed =
        |problem: String| Failure::usage(format!("{}: {problem}", file.display()), "name the component's file");
    let opened = std::fs::File::open(file).map_err(|e| failed(e.to_string()))?;
    let mut wasm = Vec::new();
    opened.take(COMPONENT_BYTES_MAX + 1).read_to_end(&mut wasm).map_err(|e| failed(e.to_string()))?;
    if wasm.len() as u64 > COMPONENT_BYTES_MAX {
        return Err(failed("it is larger than 64 MiB".to_owned()));
    }
    Ok(wasm)
}

/// Puts another version into use, and tells what has changed by it.
async fn change(client: &Client, path: &str, wish: &Value, context: &mut Context<'_>) -> Result<(), Failure> {
    let plugin_path = path.rsplit_once('/').map_or(path, |(plugin, _)| plugin);
    let before = client.get(plugin_path, &[]).await?;
    let after = client.post(path, wish).await?;
    let output = &mut context.output;
    match output.format {
        Format::Json => output.document(&after),
        Format::Quiet => output.line(&text(&after["active"])),
        Format::Table => output.line(&format!("{}: {}", text(&after["name"]), changed(&before, &after))),
    }
}

fn changed(before: &Value, after: &Value) -> String {
    let was = match before["active"].as_str() {
        None => "before: none".to_owned(),
        Some(_) if before["active"] == after["active"] => "as before".to_owned(),
        Some(_) => format!("before: {}", text(&before["active"])),
    };
    let (trial, ended) = (&before["trial"], &after["trial"]);
    let end = match ended["state"].as_str() {
        Some(state) if trial["state"] == "running" && ended["id"] == trial["id"] && state != "running" => {
            format!("; the {} was {}", text(&ended["kind"]), text(&ended["state"]))
        }
        _ => String::new(),
    };
    format!("in use now: {} ({was}){end}", text(&after["active"]))
}

fn show(plugin: &Value, context: &mut Context<'_>) -> Result<(), Failure> {
    let output = &mut context.output;
    output.one(&worded(plugin, output.format), &["name", "managed_by", "active", "endpoints"], "name")?;
    if output.format != Format::Table {
        return Ok(());
    }
    if !plugin["trial"].is_null() {
        output.line("")?;
        trial::show(&plugin["trial"], context)?;
    }
    let output = &mut context.output;
    let rows = |field: &str| plugin[field].as_array().cloned().unwrap_or_default();
    let versions: Vec<Value> = rows("versions").into_iter().map(told).map(abridged).collect();
    let activations = rows("activations");
    for (columns, rows) in [(&VERSIONS[..], versions), (&ACTIVATIONS[..], activations)] {
        if !rows.is_empty() {
            output.line("")?;
            output.table(columns, &rows)?;
        }
    }
    Ok(())
}

/// For people: lists as words, and nothing for those that are empty.
fn worded(document: &Value, format: Format) -> Value {
    let mut document = document.clone();
    if format == Format::Table {
        for field in ["endpoints", "exports", "warnings"] {
            if let Some(list) = document[field].as_array() {
                document[field] = if list.is_empty() { Value::Null } else { words(&document[field]).into() };
            }
        }
    }
    document
}

/// In a table: as much of the digest as tells versions apart.
fn abridged(mut row: Value) -> Value {
    row["digest"] = text(&row["digest"]).chars().take(12).collect::<String>().into();
    row
}

fn words(list: &Value) -> String {
    list.as_array().into_iter().flatten().map(text).collect::<Vec<_>>().join(", ")
}

/// A version with what there is to say of it: that it is in use, why it is refused or disabled, or what it exports.
fn told(mut version: Value) -> Value {
    let told = if version["rejection"].is_object() {
        let why = &version["rejection"];
        format!("{}: {}", text(&why["rule"]), text(&why["finding"]))
    } else if version["fault"].is_object() {
        let why = &version["fault"];
        format!("{} faults in a row, the last: {}", text(&why["in_a_row"]), text(&why["kind"]))
    } else if version["active"] == true {
        format!("in use; {}", words(&version["exports"]))
    } else {
        words(&version["exports"])
    };
    version["told"] = told.into();
    version
}
