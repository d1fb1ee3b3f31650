//! The binary itself: what a script sees of it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/guests.rs"]
mod guests;
#[path = "command_line/plugins.rs"]
mod plugins;
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

/// What is wrong is told of the configuration, not of what it would have said.
#[test]
fn a_broken_configuration_is_named_by_every_command_that_needs_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(file("broken.toml"), "[server]\ningres = \"x\"\nadmin = 5\n").unwrap();
    std::fs::write(file("no.toml"), "[server\n").unwrap();
    let told = |args: &[&str], env: &[(&str, &str)]| {
        let mut command = hookgate(args);
        let output = command.current_dir(folder.path()).envs(env.iter().copied()).output().unwrap();
        assert!(output.stdout.is_empty(), "{output:?}");
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (broken, no) = (file("broken.toml"), file("no.toml"));
    let with_flags = ["--url=http://127.0.0.1:1", "--token=t", "--tenant=a"];
    for command in [
        &["source", "list"][..],
        &["event", "list"],
        &["tail", "--count=1"],
        &["verify", "--source=a/b", "--request=-"],
        &["sign", "--source=a/b", "--data=x"],
    ] {
        let (code, error) = told(&[command, &["--config", &broken]].concat(), &[]);
        assert_eq!(code, 2, "{command:?}: {error}");
        let first = format!(
            "error: the configuration `{broken}` has 2 mistakes, the first: {broken}:2:1: server.ingres: unknown key"
        );
        assert!(error.starts_with(&first), "{command:?}: {error}");
        assert!(
            error.contains(&format!("help: correct it; `hookgate check --config {broken}` shows where")),
            "{error}"
        );
        let (code, error) = told(command, &[("HOOKGATE_CONFIG", &no)]);
        assert!(code == 2 && error.contains(&format!("the configuration `{no}` has a mistake: {no}:1:")), "{error}");
    }
    // A file that nobody named counts where something is needed of it.
    std::fs::write(file("hookgate.toml"), "[server]\ningres = \"x\"\n").unwrap();
    for flags in [&[][..], &with_flags[..1], &with_flags[1..]] {
        let (code, error) = told(&[&["source", "list"], flags].concat(), &[]);
        assert_eq!(code, 2, "{flags:?}: {error}");
        assert!(
            error.starts_with("error: the configuration `hookgate.toml` has a mistake: hookgate.toml:2:1: "),
            "{error}"
        );
    }
    let (code, error) = told(&[&["source", "list"], &with_flags[..]].concat(), &[]);
    assert_eq!(code, 3, "all was said by flags: {error}");
    std::fs::remove_file(file("hookgate.toml")).unwrap();
    let (code, error) = told(&["source", "list"], &[("HOOKGATE_SERVER__INGRESS", "zz")]);
    assert_eq!(code, 2);
    assert!(error.starts_with("error: the configuration has a mistake: HOOKGATE_SERVER__INGRESS: "), "{error}");
}

#[test]
fn the_demo_is_five_stages_in_one_document_or_in_silence() {
    let shown = hookgate(&["demo", "--exit"]).assert().code(0).get_output().stdout.clone();
    let shown = String::from_utf8(shown).unwrap();
    assert_eq!(shown.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).count(), 5, "{shown}");
    assert!(shown.contains("\nThe same by hand, while a demo is up"), "{shown}");
    assert!(shown.ends_with("\n  hookgate check\n"), "{shown}");
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
    // To its end: a demo that nobody reads from ends.
    let told: Vec<String> = lines.take_while(|line| !line.starts_with("The gateway stays up")).collect();
    let lines: Vec<String> = told
        .into_iter()
        .skip_while(|line| line != "The same by hand")
        .skip(1)
        .take_while(|line| !line.is_empty())
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
    assert!(err.contains("(not_dead)") && err.contains("0 problems, 0 warnings"), "{out}{err}");
    assert_eq!(err.matches("error:").count(), 1, "only the redrive is refused: {out}{err}");
}

/// A gateway in a folder, told to write its log as JSON.
struct Serving {
    child: std::process::Child,
    log: std::io::Lines<std::io::BufReader<std::process::ChildStderr>>,
}

impl Serving {
    fn start(folder: &std::path::Path, flags: &[&str]) -> Self {
        use std::io::BufRead as _;
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("hookgate"));
        command.env_clear().current_dir(folder).stderr(std::process::Stdio::piped());
        command.args(["serve", "--log-format=json"]).args(flags);
        let mut child = command.spawn().unwrap();
        let log = std::io::BufReader::new(child.stderr.take().unwrap()).lines();
        Serving { child, log }
    }

    /// The lines of the log up to the first whose message begins so.
    fn until(&mut self, message: &str) -> Vec<serde_json::Value> {
        let mut lines = Vec::new();
        for line in self.log.by_ref().map(Result::unwrap) {
            // What is said before there is a log is no JSON.
            lines.extend(serde_json::from_str::<serde_json::Value>(&line));
            let said = lines.last().and_then(|line| line["message"].as_str()).unwrap_or_default();
            if said.starts_with(message) {
                return lines;
            }
        }
        panic!("the log ended before `{message}`: {lines:#?}");
    }

    fn hang_up(&self) {
        let pid = self.child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_gateway_says_what_it_reads_and_what_is_wrong_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut gateway = Serving::start(dir.path(), &["--ingress=127.0.0.1:0", "--admin=127.0.0.1:0"]);
    let told = gateway.until("no configuration file: no tenant, so every request is answered 404").pop().unwrap();
    assert_eq!(told["level"], "WARN");
    drop(gateway);

    let file = dir.path().join("hookgate.toml");
    let write =
        |server: &str| std::fs::write(&file, format!("[server]\ningress = \"127.0.0.1:0\"\n{server}\n")).unwrap();
    write("admin = \"127.0.0.1:0\"");
    let mut gateway = Serving::start(dir.path(), &[]);
    // By then it minds the signal.
    let lines = gateway.until("the operator's token is in this file");
    assert!(lines.iter().all(|line| line["level"] != "WARN"), "{lines:#?}");

    write("ingres = 1");
    gateway.hang_up();
    assert_eq!(gateway.until("reading the configuration again").last().unwrap()["level"], "INFO");
    let lines = gateway.until("the configuration was not applied");
    let of = |field: &str| lines.iter().find(|line| line[field].is_string()).unwrap_or_else(|| panic!("{lines:#?}"));
    assert_eq!(of("problem")["level"], "ERROR");
    assert!(of("problem")["problem"].as_str().unwrap().contains("server.ingres: unknown key"), "{lines:#?}");

    write("admin = \"0.0.0.0:0\"");
    gateway.hang_up();
    let lines = gateway.until("tenants, sources, endpoints and plugins were applied");
    assert!(lines.iter().any(|line| line["level"] == "WARN" && line["warning"].is_string()), "{lines:#?}");
    assert!(lines.iter().all(|line| line["level"] != "ERROR"), "{lines:#?}");
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
