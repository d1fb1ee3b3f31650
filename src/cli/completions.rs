//! `hookgate completions`.

use super::{Cli, Context, Exit, Failure};
use clap::CommandFactory as _;
use clap_complete::Shell;

/// Print a shell's completion script
#[derive(clap::Args, Debug)]
pub(super) struct Completions {
    shell: Shell,
}

pub(super) fn run(args: &Completions, context: &mut Context<'_>) -> Result<Exit, Failure> {
    // The generator insists that writing cannot fail, so it writes to memory.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "hookgate", &mut script);
    context.output.streams.out.write_all(&script)?;
    Ok(Exit::Done)
}
