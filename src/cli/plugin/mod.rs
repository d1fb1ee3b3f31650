//! `hookgate plugin …`. A plugin is built, checked, tested and measured by the engine and the limits that a gateway has,
//! without one; `ship`, `dry_run` and `pull` talk to a gateway.

mod bench;
mod build;
mod check;
mod dry_run;
mod new;
mod project;
mod pull;
mod run;
mod ship;
mod test;
mod trial;

use self::project::{Paths, Project};
use super::output::plain;
use super::{Context, Exit, Failure, Format};
use crate::app;
use crate::config::{self, Outside};
use crate::delivery::Name;
use crate::plugin::fixture::{self, FILE_BYTES_MAX, Fixture, Ran};
use crate::plugin::{self, Allocator, Compiler, Host, HostError, Limits, Rejected};
use crate::secret::Secret;
use serde_json::{Value, json};
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

/// Plugins: begin one, build it, see what it does, and ship it to a gateway
#[derive(clap::Subcommand, Debug)]
pub(super) enum Plugin {
    /// Begin a plugin: a folder with source, package, fixtures and a README
    New(new::New),
    /// Build a project into a component, by its language's own tool
    Build(build::Build),
    /// Say whether a gateway would take a component, and if not, what to do
    Check(check::Check),
    /// Run fixtures, and show where what comes of them is not what is expected
    Test(test::Test),
    /// Run one fixture, and show all that comes of it
    Run(run::Run),
    /// Measure warm calls, each with a fresh instance
    Bench(bench::Bench),
    /// Print the JSON Schema of fixture files
    FixtureSchema,
    #[command(flatten)]
    Ship(ship::Verb),
    /// Try a version on what was recorded: what would change. It sends nothing and changes nothing
    DryRun(dry_run::DryRun),
    /// Turn recorded attempts into fixtures: a file for each distinct case, with what came of it as what is expected
    PullFixtures(pull::PullFixtures),
}

pub(super) async fn run(verb: Plugin, context: &mut Context<'_>) -> Result<Exit, Failure> {
    match verb {
        Plugin::New(args) => new::run(&args, context),
        Plugin::Build(args) => build::run(&args, context),
        Plugin::Check(args) => check::run(&args, context).await,
        Plugin::Test(args) => test::run(&args, context).await,
        Plugin::Run(args) => run::run(&args, context).await,
        Plugin::Bench(args) => bench::run(&args, context).await,
        Plugin::FixtureSchema => {
            context.output.streams.out.write_all(fixture::SCHEMA.as_bytes())?;
            Ok(Exit::Done)
        }
        Plugin::Ship(verb) => ship::run(verb, context).await,
        Plugin::DryRun(args) => dry_run::run(args, context).await,
        Plugin::PullFixtures(args) => pull::run(&args, context).await,
    }
}

/// No grant goes beyond half of it, so that what is too large is still looked at.
const READ_BYTES_MAX: u64 = 2 * Limits::CAPS.component_bytes_max as u64;

fn component_bytes(path: &Path) -> Result<Vec<u8>, Failure> {
    bounded(path, READ_BYTES_MAX).map_err(|e| {
        Failure::usage(
            format!("the component `{}` cannot be read: {e}", path.display()),
            "build it with `hookgate plugin build`, or name it with --plugin",
        )
    })
}

fn bounded(path: &Path, bytes_max: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(std::io::Error::other(format!("it has more than {bytes_max} bytes")));
    }
    Ok(bytes)
}

/// What a component may take here: the grant of a configuration that is named, else what its project asks for, else
/// the defaults.
fn limits(project: Option<&Project>, context: &mut Context<'_>) -> Result<Limits, Failure> {
    let Some(path) = context.globals.config_path(&context.env) else {
        return project.map_or_else(|| Ok(Limits::default()), Project::limits);
    };
    let report = config::read(Some(&path), &context.env, &[], Outside::Skip)
        .map_err(|e| Failure::usage(e.to_string(), "name the file with --config"))?;
    let named = path.display();
    let Some(settings) = report.settings else {
        return Err(Failure::usage(format!("`{named}` has problems"), "see `hookgate check`"));
    };
    let wanted = context.globals.tenant.clone().or_else(|| context.env.value("HOOKGATE_TENANT").map(str::to_owned));
    let tenant = match wanted {
        None if settings.tenants.len() == 1 => settings.tenants.values().next(),
        None => return Ok(app::plugin_limits(&settings.limits.plugins)),
        Some(name) => {
            let tenant = name.parse::<Name>().ok().and_then(|name| settings.tenants.get(&name));
            let unknown = || Failure::usage(format!("`{named}` has no tenant `{}`", plain(&name)), "see --tenant");
            Some(tenant.ok_or_else(unknown)?)
        }
    };
    let granted = tenant.map_or(&settings.limits.plugins, |tenant| &tenant.plugin_limits);
    Ok(app::plugin_limits(granted))
}

/// Whose plugin it is: here there is only one.
fn tenant() -> Result<Name, Failure> {
    "author".parse().map_err(|e| Failure::new(Exit::Failed, format!("{e}")))
}

/// A host for one call at a time, with a gateway's engine.
fn host(limits: Limits) -> Result<std::sync::Arc<Host>, Failure> {
    let compiler = Compiler::this_binary()?;
    // Nothing is kept on disk, so there is nothing to sign.
    let mut settings = plugin::Settings::new(compiler, Secret::new(Vec::new()));
    (settings.calls_max, settings.calls_per_tenant_max, settings.limits) = (1, 1, limits);
    let host = match Host::new(settings.clone()) {
        // Address space may be bounded where authors work.
        Err(HostError::Engine(_)) => Host::new(plugin::Settings { allocator: Allocator::OnDemand, ..settings }),
        host => host,
    };
    host.map_err(|e| Failure::new(Exit::Failed, e.to_string()))
}

/// Loads as a gateway does: looked at, compiled by the child process, linked and tried.
async fn load(wasm: &[u8], limits: Limits) -> Result<Result<plugin::Plugin, Rejected>, Failure> {
    let loaded = host(limits)?.load(&tenant()?, wasm.to_vec().into()).await;
    match loaded {
        Err(rejected) if rejected.rule == "host" => Err(Failure::new(Exit::Failed, rejected.to_string())),
        loaded => Ok(loaded),
    }
}

/// The component that fixtures are for, loaded.
async fn component(paths: &Paths, context: &mut Context<'_>) -> Result<plugin::Plugin, Failure> {
    let limits = limits(paths.project.as_ref(), context)?;
    let wasm = component_bytes(&paths.component)?;
    load(&wasm, limits).await?.map_err(|rejected| {
        let Rejected { rule, finding, remedy } = rejected;
        let message = format!("`{}` is refused ({rule}): {}", paths.component.display(), plain(&finding));
        Failure::new(Exit::Problems, message).with_remedy(remedy)
    })
}

/// A fixture's text and what it says, or what is wrong with it.
fn fixture(path: &Path) -> Result<(String, Fixture), fixture::Unfit> {
    let unreadable = |e: String| fixture::Unfit {
        path: ".".into(),
        rule: format!("the file cannot be read: {e}"),
        remedy: format!("a fixture is UTF-8 text of at most {FILE_BYTES_MAX} bytes"),
    };
    let bytes = bounded(path, FILE_BYTES_MAX).map_err(|e| unreadable(e.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|e| unreadable(e.to_string()))?;
    let fixture = Fixture::parse(&text)?;
    Ok((text, fixture))
}

fn millis(took: Duration) -> String {
    format!("{:.3} ms", took.as_secs_f64() * 1000.0)
}

/// A run as a document, without what is expected.
fn document(path: &Path, fixture: &Fixture, ran: &Ran) -> Value {
    json!({
        "fixture": path.display().to_string(),
        "description": fixture.description,
        "call": fixture.call(),
        "got": ran.got.json(),
        "took_us": u64::try_from(ran.took.as_micros()).unwrap_or(u64::MAX),
        "memory_bytes": ran.memory_bytes,
        "log": ran.log,
        "log_lines_dropped": ran.log_lines_dropped,
    })
}

/// Refusals as rows of a table or of a document.
fn refusals(refusals: &[Rejected]) -> Vec<Value> {
    let row = |r: &Rejected| json!({ "rule": r.rule, "finding": r.finding, "remedy": r.remedy });
    refusals.iter().map(row).collect()
}

/// Whether people read it.
fn for_people(context: &Context<'_>) -> bool {
    context.output.format == Format::Table
}
