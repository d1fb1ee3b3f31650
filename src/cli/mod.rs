//! The command line: one file per command. Data on standard output, talk on standard error; exit codes are in
//! [`Exit`].
//!
//! Nothing here knows how the gateway works inside: commands are clients of the admin API, or read the configuration.

mod alert;
mod check;
mod client;
mod completions;
mod curl;
mod delivery;
pub mod demo;
mod dlq;
mod endpoint;
mod event;
mod exit;
mod export;
mod keys;
pub mod listen;
mod operation;
mod output;
mod plugin;
mod pull;
mod reference;
pub mod request;
pub mod send;
pub mod serve;
pub mod sign;
mod source;
mod stats;
mod sweep;
mod table;
mod tail;
pub mod verify;

#[cfg(test)]
mod tests;

pub use client::Client;
pub use curl::ReadFile;
pub use exit::{Exit, Failure};
pub use output::{Consent, Format, Output, Streams};
pub use reference::reference;

use crate::config::{self, DEFAULT_PATH, Env, Outside, Settings};
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

/// A webhook gateway: verifies before it enqueues, delivers by per-tenant rules.
#[derive(Parser, Debug)]
#[command(name = "hookgate", version, about, infer_subcommands = false)]
#[command(
    after_help = "Start with: hookgate demo\n\nExit codes: 0 done, 1 failed, 2 usage or configuration, 3 server unreachable, 4 not allowed, \
                        5 not found, 6 conflict, 7 partly done, 8 a check found problems."
)]
struct Cli {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Everywhere")]
pub struct Globals {
    /// The configuration file [env: HOOKGATE_CONFIG] [default: hookgate.toml, if it is there]
    #[arg(short, long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where the admin API is [env: HOOKGATE_URL] [default: `server.admin` of the file, else http://127.0.0.1:8081]
    #[arg(long, global = true)]
    pub url: Option<String>,
    /// The bearer token [env: HOOKGATE_TOKEN] [default: the file `admin-token` beside the ledger]
    #[arg(long, global = true)]
    pub token: Option<String>,
    /// Whose events and deliveries [env: HOOKGATE_TENANT] [default: the only one, or `default`]
    #[arg(short, long, global = true)]
    pub tenant: Option<String>,
    /// One JSON document on standard output
    #[arg(long, global = true, conflicts_with = "quiet")]
    pub json: bool,
    /// Ids alone (names and codes of what has none), and no talk
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

impl Globals {
    /// The file that was named, by flag or environment.
    pub fn config_path(&self, env: &Env) -> Option<PathBuf> {
        self.config.clone().or_else(|| env.value("HOOKGATE_CONFIG").map(PathBuf::from))
    }

    /// What the configuration says, which is read without looking for what it names.
    pub(super) fn settings(&self, env: &Env) -> Result<Settings, Failure> {
        let path = self.config_path(env);
        let report = config::read(path.as_deref(), env, &[], Outside::Skip)
            .map_err(|e| Failure::usage(e.to_string(), "correct --config or HOOKGATE_CONFIG"))?;
        if let Some(settings) = report.settings {
            return Ok(settings);
        }
        let file = path.or_else(|| Some(PathBuf::from(DEFAULT_PATH)).filter(|path| path.exists()));
        let (named, check) = match file.map(|file| file.display().to_string()) {
            Some(file) => (format!(" `{file}`"), format!("hookgate check --config {file}")),
            None => (String::new(), "hookgate check".to_owned()),
        };
        let lines = report.lines();
        let first = lines.lines().find_map(|line| line.strip_prefix("error: ")).unwrap_or_default();
        let told = match report.problems.len() {
            1 => format!("the configuration{named} has a mistake: {first}"),
            count => format!("the configuration{named} has {count} mistakes, the first: {first}"),
        };
        Err(Failure::usage(told, format!("correct it; `{check}` shows where")))
    }

    fn format(&self) -> Format {
        match (self.json, self.quiet) {
            (true, _) => Format::Json,
            (false, true) => Format::Quiet,
            (false, false) => Format::Table,
        }
    }
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Alerts: what fires, what did, and what to do next
    #[command(subcommand)]
    Alert(alert::Alert),
    /// Check a configuration: every mistake, each with its line
    Check(check::Check),
    /// Print a shell's completion script
    Completions(completions::Completions),
    /// Deliveries: the log, one with its attempts, and what can be done with it
    #[command(subcommand)]
    Delivery(delivery::Delivery),
    /// See it work: a gateway, a sample plugin and a moody receiver, without any set-up
    Demo(demo::Demo),
    /// Dead letters: what is in the DLQ, in groups, and out of it again
    #[command(subcommand)]
    Dlq(dlq::Dlq),
    /// Endpoints: what is sent to, and whether
    #[command(subcommand)]
    Endpoint(endpoint::Endpoint),
    /// Events: what was accepted, and publishing one
    #[command(subcommand)]
    Event(event::Event),
    /// A receiver that prints what it gets, and verifies it
    Listen(listen::Listen),
    /// Operations: how far bulk redrives have come, and holding them up
    #[command(subcommand)]
    Operation(operation::Operation),
    /// Plugins: begin one, build it, see what it does, and ship it to a gateway
    #[command(subcommand)]
    Plugin(plugin::Plugin),
    /// Sign a body and post it
    Send(send::Send),
    /// Run the gateway: ingress, dispatch and admin API in one process
    Serve(serve::Serve),
    /// Print the headers that sign a body
    Sign(sign::Sign),
    /// Sources: what is let in, what was refused, and the schemes there are
    #[command(subcommand)]
    Source(source::Source),
    /// How deliveries fared, and where they stand
    Stats(stats::Stats),
    /// Follow deliveries as they happen
    Tail(tail::Tail),
    /// Say whether a request is valid, or which step failed and why
    Verify(verify::Verify),
}

/// What a command works with.
pub struct Context<'a> {
    pub globals: Globals,
    pub env: Env,
    pub output: Output<'a>,
}

/// Runs one command line, program name included.
pub fn main(args: impl IntoIterator<Item = OsString>, env: Env, streams: Streams<'_>) -> Exit {
    let colour = streams.colour;
    let parsed =
        reference::with_examples(Cli::command()).try_get_matches_from(args).and_then(|m| Cli::from_arg_matches(&m));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(e) => {
            let text = e.render();
            let text = if colour { text.ansi().to_string() } else { text.to_string() };
            // Help and version are what was asked for; everything else is a mistake.
            let (stream, exit) = if e.use_stderr() { (streams.err, Exit::Usage) } else { (streams.out, Exit::Done) };
            return match stream.write_all(text.as_bytes()) {
                Ok(()) => exit,
                Err(e) => Failure::from(e).exit,
            };
        }
    };
    let output = Output { streams, format: cli.globals.format() };
    let mut context = Context { globals: cli.globals, env, output };
    match run(cli.command, &mut context) {
        Ok(exit) => exit,
        Err(failure) => {
            if failure.exit != Exit::Done {
                // A failure is said even to those who want quiet.
                let _ = writeln!(context.output.streams.err, "error: {failure}");
            }
            failure.exit
        }
    }
}

fn run(command: Command, context: &mut Context<'_>) -> Result<Exit, Failure> {
    match command {
        Command::Alert(verb) => block_on(alert::run(verb, context)),
        Command::Check(args) => check::run(&args, context),
        Command::Completions(args) => completions::run(&args, context),
        Command::Delivery(verb) => block_on(delivery::run(verb, context)),
        Command::Demo(args) => demo::run(&args, context),
        Command::Dlq(verb) => block_on(dlq::run(verb, context)),
        Command::Endpoint(verb) => block_on(endpoint::run(verb, context)),
        Command::Event(verb) => block_on(event::run(verb, context)),
        Command::Listen(args) => block_on(listen::run(&args, context)),
        Command::Operation(verb) => block_on(operation::run(verb, context)),
        Command::Plugin(verb) => block_on(plugin::run(verb, context)),
        Command::Send(args) => block_on(send::run(&args, context)),
        Command::Serve(args) => serve::run(&args, context),
        Command::Sign(args) => sign::run(&args, context),
        Command::Source(verb) => block_on(source::run(verb, context)),
        Command::Stats(args) => block_on(stats::run(args, context)),
        Command::Tail(args) => block_on(tail::run(args, context)),
        Command::Verify(args) => verify::run(&args, context),
    }
}

/// A client needs one thread.
fn block_on(work: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
