//! The binary: hands the process to the command line, and its result to the shell.

use hookgate::cli::{Streams, main as run};
use hookgate::config::Env;
use std::io::IsTerminal as _;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before anything of the gateway's own: the compiling process has bounds to set and no business with the rest.
    if std::env::args_os().nth(1).is_some_and(|first| first == hookgate::plugin::compile::SUBCOMMAND) {
        return hookgate::plugin::compile::child_main();
    }
    let (stdout, stdin) = (std::io::stdout(), std::io::stdin());
    let out_is_terminal = stdout.is_terminal();
    let streams = Streams {
        out_is_terminal,
        err_is_terminal: std::io::stderr().is_terminal(),
        input_is_terminal: stdin.is_terminal(),
        // `NO_COLOR`, `CLICOLOR` and their like.
        colour: anstream::AutoStream::choice(&stdout) != anstream::ColorChoice::Never,
        width: out_is_terminal.then(terminal_width).flatten(),
        out: &mut stdout.lock(),
        err: &mut std::io::stderr(),
        input: &mut stdin.lock(),
    };
    run(std::env::args_os(), Env::process(), streams).into()
}

/// What the table library finds out about the terminal.
fn terminal_width() -> Option<u16> {
    comfy_table::Table::new().width()
}
