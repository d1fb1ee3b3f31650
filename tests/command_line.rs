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
fn the_demo_is_five_stages_in_one_document_or_in_silence() {
    let shown = hookgate(&["demo", "--exit"]).assert().code(0).get_output().stdout.clone();
    let shown = String::from_utf8(shown).unwrap();
    assert_eq!(shown.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).count(), 5, "{shown}");
    assert!(shown.ends_with("\n\nRun hookgate demo without --exit to repeat these by hand.\n"), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");

    let told = hookgate(&["demo", "--exit", "--json"]).assert().code(0).get_output().stdout.clone();
    let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
    let stages = told["stages"].as_array().unwrap();
    assert_eq!(stages.len(), 5, "{told}");
    assert!(stages.iter().all(|stage| stage["title"].is_string() && stage["way"][0]["step"].is_string()), "{told}");
    assert!(stages.iter().all(|stage| stage["facts"][0]["value"].is_string()), "{told}");
    for url in ["ingress", "admin", "receiver"] {
        assert!(told["urls"][url].as_str().unwrap().starts_with("http://127.0.0.1:"), "{told}");
    }
    assert!(told["seconds"].as_f64().unwrap() > 0.0);

    let quiet = hookgate(&["demo", "--exit", "--quiet"]).assert().code(0).get_output().clone();
    assert_eq!((quiet.stdout, quiet.stderr), (Vec::new(), Vec::new()));
}

/// What the demo says can be done by hand is done, in a shell, as it stands there.
#[test]
fn what_the_demo_says_can_be_done_by_hand() {
    use std::io::BufRead as _;
    struct Running(std::process::Child);
    impl Drop for Running {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let program = std::path::Path::new(assert_cmd::cargo::cargo_bin!("hookgate"));
    let temporary = tempfile::tempdir().unwrap();
    let mut demo = std::process::Command::new(program);
    demo.env_clear().env("TMPDIR", temporary.path()).arg("demo").stdout(std::process::Stdio::piped());
    let mut demo = Running(demo.spawn().unwrap());
    let lines = std::io::BufReader::new(demo.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let lines: Vec<String> = lines
        .skip_while(|line| line != "The same by hand")
        .skip(1)
        .take_while(|line| !line.starts_with("The gateway stays up"))
        // It has no end, and there may be no curl.
        .map(|line| if line.contains("hookgate tail") { line + " -n 3 --count 3" } else { line })
        .collect();
    assert!(lines.iter().any(|line| line.contains("curl -sS -i http://")), "{lines:#?}");
    let script = lines.join("\n").replace("curl -sS -i", "true");
    let ran = std::process::Command::new("sh")
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", program.parent().unwrap().display()))
        .args(["-c", &script])
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8(ran.stdout).unwrap(), String::from_utf8(ran.stderr).unwrap());
    assert!(ran.status.success(), "{out}{err}");
    assert!(out.contains("\"duplicate\":false") && out.contains("DELIVERY") && out.contains("#1 answer"), "{out}{err}");
    assert!(err.contains("(not_dead)") && err.contains("0 problems"), "{out}{err}");
    assert_eq!(err.matches("error:").count(), 1, "only the redrive is refused: {out}{err}");
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
