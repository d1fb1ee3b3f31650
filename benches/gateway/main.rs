//! The benchmark of the gateway: `cargo bench --bench gateway`.
//!
//! In one run, on one machine: what the parts of the way of an event cost when each is done as barely as can be, and
//! what the real gateway does beside them. Absolute figures belong to the machine; claims are the ratios. It measures
//! and checks that every event was accepted and arrived exactly once; it judges no speed by its exit code.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark talks to whoever runs it")]

mod figures;
mod gateway;
mod goals;
#[path = "../../tests/support/guests.rs"]
mod guests;
mod hostile;
mod latency;
mod ledger;
mod limits;
mod load;
mod machine;
mod measure;
mod plugin;
mod process;
mod receiver;
mod report;
mod role;
mod verify;
mod wire;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use measure::{Part, Plan};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures the gateway beside the limits of this machine.
#[derive(Parser, Debug)]
#[command(name = "cargo bench --bench gateway --")]
struct Arguments {
    /// One short repetition, to prove that it runs; its figures mean nothing.
    #[arg(long)]
    quick: bool,
    /// How often everything is measured; medians are told.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    repetitions: u32,
    /// Seconds that each row is measured for.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Only these parts; ratios between parts need both.
    #[arg(long, value_delimiter = ',', default_values = ["limits", "ledger", "aged", "accept", "deliver", "classified", "plugin", "isolation", "compiling", "plugins500", "waiting", "desk", "verify"])]
    only: Vec<Part>,
    /// Events that were delivered before, in the ledger with a past.
    #[arg(long, default_value_t = 100_000)]
    delivered: u64,
    /// Events that wait, in the ledger with a past.
    #[arg(long, default_value_t = 100_000)]
    pending: u64,
    /// How often a tenant is measured without and with each hostile neighbour, in turns.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    pairs: u32,
    /// Events a second of that tenant.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    beside: u32,
    /// Plugins that one gateway has loaded.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1000))]
    plugins: u32,
    /// Deliveries that wait behind an endpoint that hangs, and for a retry.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    piled: u64,
    /// Dead letters that are listed, grouped and redriven.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=2_000_000))]
    dead: u64,
    /// Write everything, each repetition too, to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Given by cargo: measure, do not test.
    #[arg(long, hide = true, required = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let done = match (arguments.next().as_deref(), arguments.next()) {
        (Some(role::FLAG), Some(role)) => role::run(&role).map(|()| true),
        _ if std::env::args().any(|argument| argument == "--bench") => run(Arguments::parse()),
        _ => {
            // `cargo test --all-targets` starts it too, with whatever it was told to filter by.
            println!("nothing is measured under test; use `cargo bench --bench gateway`");
            Ok(true)
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e:#}");
            ExitCode::FAILURE
        }
    }
}

/// `false`: something was lost, refused or sent twice, and the figures are worth nothing.
fn run(arguments: Arguments) -> Result<bool> {
    let plan = if arguments.quick {
        Plan {
            repetitions: 1,
            span: Duration::from_millis(500),
            warm_up: Duration::from_millis(100),
            worn: Duration::ZERO,
            parts: arguments.only,
            past: (2_000, 1_000),
            pairs: 1,
            beside_per_second: 50,
            plugins: 20,
            piled: 500,
            dead: 500,
        }
    } else {
        Plan {
            repetitions: arguments.repetitions,
            span: Duration::from_secs(arguments.seconds.into()),
            warm_up: Duration::from_secs(1),
            worn: Duration::from_secs(25),
            parts: arguments.only,
            past: (arguments.delivered, arguments.pending),
            pairs: arguments.pairs,
            beside_per_second: arguments.beside,
            plugins: arguments.plugins,
            piled: arguments.piled,
            dead: arguments.dead,
        }
    };
    // Beside the build, not in a temporary file system: ledgers belong on a disk.
    let dir = tempfile::Builder::new().prefix("bench-").tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let machine = machine::Machine::inspect(dir.path())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let run = runtime.block_on(async {
        // Either way all that was started is stopped: it is dropped with its future.
        tokio::select! {
            run = measure::run(&plan, dir.path()) => Ok(run),
            stopped = stop_signal() => stopped.and_then(|()| bail!("stopped by a signal")),
        }
    })?;
    println!("{}", report::text(&machine, &plan, &run));
    if let Some(file) = arguments.json {
        let text = serde_json::to_string_pretty(&report::json(&machine, &plan, &run))?;
        std::fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
    }
    Ok(run.faults.is_empty())
}

async fn stop_signal() -> Result<()> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
