//! The verbs of a gateway: versions, and which is in use.

use crate::cli::output::text;
use crate::cli::table::Column;
use crate::cli::{Client, Context, Exit, Failure, Format};
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
    /// Put the version into use that was in use before and is ready
    Rollback {
        /// The plugin's name, or TENANT/NAME
        name: String,
    },
}

const COLUMNS: [Column; 5] = [
    Column::whole("PLUGIN", "name"),
    Column::whole("ACTIVE", "active"),
    Column::whole("MANAGED BY", "managed_by").lesser(1),
    Column::breakable("ENDPOINTS", "endpoints"),
    Column::breakable("DIGEST", "digest").lesser(2),
];

const VERSIONS: [Column; 7] = [
    Column::whole("VERSION", "id"),
    Column::state("STATE", "state"),
    Column::time("UPLOADED", "uploaded_at"),
    Column::whole("BY", "uploaded_by").lesser(2),
    Column::whole("BYTES", "bytes").lesser(3),
    Column::breakable("TOLD", "told"),
    Column::breakable("DIGEST", "digest").lesser(4),
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
            context.output.list(&client.list(&path, &[], 10_000).await?, &COLUMNS, "name")?;
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
            let version = client.put_wasm(&path, &query, wasm).await?;
            let output = &mut context.output;
            for warning in version["warnings"].as_array().into_iter().flatten() {
                output.say(&format!("note: {}", text(warning)));
            }
            output.one(&version, &VERSION_FIELDS, "id")?;
            if version["active"] == false && version["state"] == "ready" {
                output.say(&format!("to put it into use: hookgate plugin activate {name} {}", text(&version["id"])));
            }
        }
        Verb::Activate { name, version } => {
            let (client, path) = at(&name, &["activate"], context).await?;
            changed(&client.post(&path, &json!({ "version": version })).await?, context)?;
        }
        Verb::Rollback { name } => {
            let (client, path) = at(&name, &["rollback"], context).await?;
            changed(&client.post(&path, &json!({})).await?, context)?;
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

/// What is in use after a change.
fn changed(plugin: &Value, context: &mut Context<'_>) -> Result<(), Failure> {
    let output = &mut context.output;
    match output.format {
        Format::Json => output.document(plugin),
        Format::Quiet => output.line(&text(&plugin["active"])),
        Format::Table => output.line(&format!("{}  {}", text(&plugin["name"]), text(&plugin["active"]))),
    }
}

fn show(plugin: &Value, context: &mut Context<'_>) -> Result<(), Failure> {
    let output = &mut context.output;
    output.one(plugin, &["name", "managed_by", "active", "endpoints"], "name")?;
    if output.format != Format::Table {
        return Ok(());
    }
    let rows = |field: &str| plugin[field].as_array().cloned().unwrap_or_default();
    let versions: Vec<Value> = rows("versions").into_iter().map(told).collect();
    let activations = rows("activations");
    for (columns, rows) in [(&VERSIONS[..], versions), (&ACTIVATIONS[..], activations)] {
        if !rows.is_empty() {
            output.line("")?;
            output.table(columns, &rows)?;
        }
    }
    Ok(())
}

/// A version with what there is to say of it: that it is in use, why it is refused or disabled, or what it exports.
fn told(mut version: Value) -> Value {
    let words = |list: &Value| {
        let all = list.as_array().into_iter().flatten().map(text);
        all.collect::<Vec<_>>().join(", ")
    };
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
