//! The binary itself: what a script sees of it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "command_line/signing.rs"]
mod signing;

use assert_cmd::Command;

fn hookgate(args: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("hookgate"));
    command.env_clear().args(args);
    command
}

#[test]
fn results_become_exit_codes() {
    let broken = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/config/broken.toml");
    let checked = hookgate(&["check", broken]).assert().code(8).get_output().clone();
    assert_eq!(String::from_utf8_lossy(&checked.stdout).lines().count(), 25);
    assert!(String::from_utf8_lossy(&checked.stderr).contains("25 problems"));
    hookgate(&["check", "/nowhere.toml"]).assert().code(2);
    hookgate(&["frobnicate"]).assert().code(2);
    hookgate(&["--version"]).assert().code(0);
    hookgate(&["endpoint", "list", "--token=t", "--url=http://127.0.0.1:1", "--tenant=a"]).assert().code(3);
}

#[test]
fn the_environment_reaches_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("hookgate.toml"), "").unwrap();
    let check = || {
        let mut command = hookgate(&["check"]);
        command.current_dir(dir.path());
        command
    };
    check().assert().code(0);
    check().env("HOOKGATE_SERVER__INGRES", "x").assert().code(8);
    check().env("HOOKGATE_CONFIG", "gone.toml").assert().code(2);
}
