use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything of the gateway's own: the compiling process has bounds to set and no business with the rest.
    if std::env::args_os().nth(1).is_some_and(|first| first == hookgate::plugin::compile::SUBCOMMAND) {
        return hookgate::plugin::compile::child_main();
    }
    ExitCode::SUCCESS
}
