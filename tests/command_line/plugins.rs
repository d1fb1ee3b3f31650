//! `hookgate plugin …` by the binary, with guests made in the test.

use super::guests::{self, Says};
use super::hookgate;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

/// A folder of one test, and commands run in it.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.run_with(args, &[])
    }

    fn run_with(&self, args: &[&str], env: &[(&str, &str)]) -> Ran {
        let mut command = hookgate(&[&["plugin"], args].concat());
        let Output { status, stdout, stderr } =
            command.current_dir(self.0.path()).envs(env.iter().copied()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: status.code().unwrap(), out: text(stdout), err: text(stderr) }
    }
}

#[derive(Debug)]
struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Ran {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

fn terminal(code: &str) -> Vec<u8> {
    guests::classify_says(&Says::Terminal { code, message: Some("says the guest") })
}

fn answered(expect: &Value) -> String {
    json!({ "outcome": { "response": { "status": 200 } }, "expect": expect }).to_string()
}

#[test]
fn a_new_project_is_whole_and_spares_what_is_there() {
    let folder = Folder::new();
    for (lang, source) in [("rust", "src/lib.rs"), ("js", "src/plugin.js"), ("python", "app.py"), ("c", "src/rules.c")]
    {
        let name = format!("my-{lang}");
        let ran = folder.run(&["new", "--lang", lang, &name]);
        assert_eq!(ran.code, 0, "{ran:?}");
        for file in ["hookgate-plugin.json", "README.md", "wit/hookgate.wit", "fixtures/classify.json", source] {
            assert!(ran.out.contains(&format!("{name}/{file}\n")), "{ran:?}");
            let text = folder.text(&format!("{name}/{file}"));
            assert!(!text.is_empty() && !text.contains("{{"), "{file}: {text}");
        }
        assert_eq!(folder.text(&format!("{name}/wit/hookgate.wit")), guests::WIT);
        let readme = folder.text(&format!("{name}/README.md"));
        assert!(readme.contains(source) && readme.lines().count() <= 45, "{readme}");

        // Its fixtures are fixtures.
        folder.write(&format!("{name}/{name}.wasm"), terminal("refused"));
        let ran = folder.run(&["test", &format!("{name}/fixtures/classify.json")]);
        assert_eq!(ran.code, 0, "{ran:?}");
        let ran = folder.run(&["test", &name, "--json"]);
        assert_eq!((ran.code, &ran.json()["items"][1]["got"]["fault"]["detail"]), (8, &json!("it has no transform")));

        // A second time nothing is written.
        folder.write(&format!("{name}/{source}"), "mine");
        let ran = folder.run(&["new", "--lang", lang, &name]);
        assert_eq!(ran.code, 6, "{ran:?}");
        assert!(ran.err.contains(source) && ran.err.contains("--force"), "{ran:?}");
        assert_eq!(folder.text(&format!("{name}/{source}")), "mine");
    }
    // With --force a link is replaced, and not what it leads to.
    let elsewhere = folder.write("elsewhere", "precious");
    fs::remove_file(folder.path("my-js/README.md")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, folder.path("my-js/README.md")).unwrap();
    let ran = folder.run(&["new", "--lang=js", "my-js", "--force", "--quiet"]);
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (0, "my-js\n", ""));
    assert_eq!(folder.text("elsewhere"), "precious");
    assert!(folder.text("my-js/README.md").starts_with("# my-js\n"));
    assert!(folder.text("my-js/src/plugin.js").contains("classifier"));

    let ran = folder.run(&["new", "--lang=c", "other", "--dir", "my-js"]);
    assert_eq!(ran.code, 6, "{ran:?}");
    for name in ["My", "../x", "", "a_b"] {
        let ran = folder.run(&["new", "--lang=c", name]);
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.err.contains("1 to 63"), "{ran:?}");
    }
    let inside = fs::read_dir(folder.0.path()).unwrap().count();
    assert_eq!(inside, 5, "four projects and a file");
}

/// `wasm` with a section of so many bytes more, which mean nothing.
fn padded(mut wasm: Vec<u8>, bytes: usize) -> Vec<u8> {
    wasm.push(0);
    let mut size = bytes;
    while size > 0 {
        wasm.push(u8::try_from(size & 0x7f).unwrap() | if size > 0x7f { 0x80 } else { 0 });
        size >>= 7;
    }
    wasm.push(4);
    wasm.extend(b"none");
    wasm.resize(wasm.len() + bytes - 5, 0);
    wasm
}

#[test]
fn a_check_names_every_rule_that_is_broken() {
    let folder = Folder::new();
    let answer = guests::classify_answer(&Says::Delivered { reference: None });
    let call = format!(r#"{answer} (func (export "{}") (type $call) i32.const 16)"#, guests::CLASSIFY);
    let world_2 = guests::component_of(
        &guests::WIT.replace("@1.0.0;", "@2.0.0;"),
        "classify-only",
        &guests::module(&call).replace("@1.0.0", "@2.0.0"),
    );
    let retyped = guests::WIT.replace("after-ms: option<u32>", "after-ms: option<u64>");
    let retyped = guests::component_of(&retyped, "classify-only", &guests::module(&call));
    let wasi =
        r#"(component (import "wasi:cli/environment@0.2.6" (instance)) (import "wasi:io/poll@0.2.6" (instance)))"#;
    let with_start =
        |code: &str| guests::classify_with(&format!("{answer} (func $s {code}) (start $s)"), "i32.const 16");
    let memory = |pages: u32| {
        let memory = |pages: u32| format!("(memory (export \"memory\") {pages})");
        let module = guests::module(&call);
        assert!(module.contains(&memory(32)));
        guests::component("classify-only", &module.replace(&memory(32), &memory(pages)))
    };
    type Case = (&'static str, Vec<u8>, &'static [&'static str], &'static str, &'static str);
    let cases: [Case; 10] = [
        ("core", wat::parse_str("(module)").unwrap(), &["format"], "core module", "hookgate plugin build"),
        ("text", b"(component)".to_vec(), &["format"], "text", "wit/hookgate.wit"),
        ("empty", wat::parse_str("(component)").unwrap(), &["exports"], "neither", "plugins/README.md"),
        ("wasi", wat::parse_str(wasi).unwrap(), &["imports", "imports", "exports"], "wasi:cli", "--stub-wasi"),
        ("two", world_2, &["version", "version", "version"], "hookgate:plugin 1.x", "hookgate plugin new"),
        ("types", retyped, &["types"], "1.x", "wit/hookgate.wit"),
        ("large", padded(terminal("x"), 5 << 20), &["size"], "at most 4194304", "grant"),
        ("hungry", memory(640), &["memory"], "33554432", "memory_bytes_max"),
        ("greedy", memory(65536), &["resources"], "memory", "initial memory"),
        ("loop", with_start("(loop $l (br $l))"), &["instantiation"], "deadline", "start small"),
    ];
    for (name, wasm, rules, finding, remedy) in cases {
        let file = format!("{name}.wasm");
        folder.write(&file, wasm);
        let ran = folder.run(&["check", &file, "--json"]);
        assert_eq!(ran.code, 8, "{name}: {ran:?}");
        let told = ran.json();
        let problems = told["problems"].as_array().unwrap();
        let broken: Vec<&str> = problems.iter().map(|problem| problem["rule"].as_str().unwrap()).collect();
        assert_eq!((broken.as_slice(), &told["ok"]), (rules, &json!(false)), "{name}: {told}");
        assert!(problems[0]["finding"].as_str().unwrap().contains(finding), "{name}: {told}");
        assert!(problems[0]["remedy"].as_str().unwrap().contains(remedy), "{name}: {told}");
        let ran = folder.run(&["check", &file]);
        assert_eq!(ran.code, 8);
        assert!(ran.out.contains("FAILED") && ran.out.contains("\n  help: "), "{ran:?}");
        let ran = folder.run(&["check", &file, "--quiet"]);
        assert_eq!(ran.out.lines().collect::<Vec<_>>(), rules);
    }
    folder.write("good.wasm", terminal("x"));
    let ran = folder.run(&["check", "good.wasm", "--json"]);
    let told = ran.json();
    assert_eq!((ran.code, &told["ok"], &told["problems"]), (0, &json!(true), &json!([])));
    assert_eq!(told["exports"], json!(["hookgate:plugin/classifier@1.0.0"]));
    assert!(told["imports"].as_array().unwrap().contains(&json!("hookgate:plugin/types@1.0.0")), "{told}");
    assert_eq!(told["digest"].as_str().unwrap().len(), 64);
    let ran = folder.run(&["check", "good.wasm"]);
    assert!(ran.err.contains("a gateway takes it") && !ran.out.contains("FAILED"), "{ran:?}");
    folder.write("traps.wasm", guests::classify_runs("unreachable"));
    let ran = folder.run(&["check", "traps.wasm"]);
    let row = ran.out.lines().find(|line| line.trim_start().starts_with("trial ")).unwrap_or_default();
    assert!(row.contains("WARNING") && row.contains("classify did not answer a trial call (trap)"), "{ran:?}");
    assert!(ran.code == 0 && ran.err.contains("; 1 warning\n"), "{ran:?}");
    assert_eq!(folder.run(&["check", "gone.wasm"]).code, 2);
    assert_eq!(folder.run(&["check"]).code, 2);
}

#[test]
fn limits_are_those_of_the_file_else_of_the_project() {
    let folder = Folder::new();
    folder.write("rules/rules.wasm", padded(terminal("x"), 5 << 20));
    let manifest = |limits: &str| {
        let text = format!(r#"{{"name":"rules","lang":"c","world":"classify-only","limits":{limits}}}"#);
        folder.write("rules/hookgate-plugin.json", text);
    };
    manifest("{}");
    let check = |more: &[&str]| folder.run(&[&["check", "rules/rules.wasm"], more].concat()).code;
    assert_eq!(check(&[]), 8);
    manifest(r#"{"component_bytes_max":33554432}"#);
    assert_eq!(check(&[]), 0);
    for (limits, told) in
        [(r#"{"memory_bytes_max":999999999}"#, "memory_bytes_max"), (r#"{"memory":1}"#, "unknown field")]
    {
        manifest(limits);
        let ran = folder.run(&["check", "rules/rules.wasm"]);
        assert!(ran.code == 2 && ran.err.contains(told), "{ran:?}");
    }
    manifest(r#"{"component_bytes_max":33554432}"#);
    let file = "[limits.plugins]\ncomponent_bytes_max = \"1MiB\"\n[tenants.acme.limits.plugins]\ncomponent_bytes_max = \
                \"8MiB\"\n[tenants.other]\n";
    folder.write("hookgate.toml", file);
    let config = "--config=hookgate.toml";
    assert_eq!(check(&[config]), 8);
    assert_eq!(check(&[config, "--tenant=acme"]), 0);
    assert_eq!(check(&[config, "--tenant=other"]), 8);
    assert_eq!(check(&[config, "--tenant=nobody"]), 2);
    assert_eq!(check(&["--config=gone.toml"]), 2);
}

#[test]
fn fixtures_pass_differ_or_are_none() {
    let folder = Folder::new();
    folder.write("p.wasm", terminal("suspended"));
    folder.write("f/a.json", answered(&json!({"terminal": {"reason": "suspended"}})));
    folder.write("f/b.json", answered(&json!({"terminal": {"reason": "gone"}})));
    folder.write("f/c.json", r#"{"outcome":{"response":{"state":200}}}"#);
    folder.write("f/d.json", answered(&json!({})).replace(r#""expect":{},"#, ""));
    folder.write("f/notes.txt", "not a fixture");
    let ran = folder.run(&["test", "f", "--plugin=p.wasm", "--junit=report.xml"]);
    assert_eq!(ran.code, 8, "{ran:?}");
    let rows: Vec<&str> = ran.out.lines().take(5).map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(rows, ["RESULT", "ok", "FAILED", "UNFIT", "FAILED"]);
    for told in [
        "  - terminal.reason: \"gone\"\n  + terminal.reason: \"suspended\"\n",
        "f/c.json\n  outcome.response.state: unknown field `state`",
        "\n  help: `hookgate plugin fixture-schema` has every field\n",
        "f/d.json\n  nothing is expected\n  help: write `expect`",
    ] {
        assert!(ran.out.contains(told), "{told}: {}", ran.out);
    }
    assert!(ran.err.contains("p.wasm: 4 fixtures, 3 failed"), "{ran:?}");
    let report = folder.text("report.xml");
    assert!(report.contains("tests=\"4\" failures=\"2\" errors=\"1\""), "{report}");
    assert_eq!(report.matches("<testcase ").count(), 4);
    assert!(
        report.contains("<failure message=\"not as expected\">  - terminal.reason: &quot;gone&quot;\n"),
        "{report}"
    );

    let told = folder.run(&["test", "f", "--plugin=p.wasm", "--json"]).json();
    let results: Vec<&str> = told["items"].as_array().unwrap().iter().map(|i| i["result"].as_str().unwrap()).collect();
    assert_eq!((results.as_slice(), &told["ok"]), (&["passed", "failed", "unfit", "failed"][..], &json!(false)));
    let difference = json!([{"path": "terminal.reason", "expected": "gone", "got": "suspended"}]);
    assert_eq!(told["items"][1]["differences"], difference);
    assert_eq!(told["items"][2]["problem"]["path"], "outcome.response.state");
    assert_eq!(told["items"][0]["log"][0]["message"], "suspended: says the guest");
    let quiet = folder.run(&["test", "f", "--plugin=p.wasm", "--quiet"]);
    assert_eq!((quiet.code, quiet.out.as_str(), quiet.err.as_str()), (8, "f/b.json\nf/c.json\nf/d.json\n", ""));

    // What comes of it becomes what is expected; a file that is no fixture stays as it is.
    let broken = folder.text("f/c.json");
    let ran = folder.run(&["test", "f", "--plugin=p.wasm", "--update"]);
    assert_eq!(ran.code, 8, "{ran:?}");
    assert!(ran.err.contains("1 failed, 2 updated"), "{ran:?}");
    assert_eq!(folder.text("f/c.json"), broken);
    fs::remove_file(folder.path("f/c.json")).unwrap();
    assert_eq!(folder.run(&["test", "f", "--plugin=p.wasm"]).code, 0);

    // A fault is never what is expected from now on.
    folder.write("fault.wasm", guests::classify_runs("unreachable"));
    let before = folder.text("f/a.json");
    let ran = folder.run(&["test", "f/a.json", "--plugin=fault.wasm", "--update"]);
    assert!(ran.code == 8 && ran.out.contains("fault trap"), "{ran:?}");
    assert_eq!(folder.text("f/a.json"), before);
}

/// More faults than disable a plugin in a gateway: each fixture is a call of its own.
#[test]
fn a_run_has_bounds_and_no_memory() {
    let folder = Folder::new();
    folder.write("p.wasm", guests::classify_runs("unreachable"));
    for n in 0..25 {
        folder.write(&format!("f/{n:02}.json"), answered(&json!({"fault": {"kind": "trap"}})));
    }
    let ran = folder.run(&["test", "f", "--plugin=p.wasm"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    folder.write("endless.wasm", guests::classify_runs("(loop $l (br $l)) unreachable"));
    folder.write("g/a.json", answered(&json!({"fault": {"kind": "deadline"}})));
    assert_eq!(folder.run(&["test", "g", "--plugin=endless.wasm"]).code, 0);
    for n in 0..1001 {
        folder.write(&format!("many/{n}.json"), "");
    }
    let ran = folder.run(&["test", "many", "--plugin=p.wasm"]);
    assert!(ran.code == 2 && ran.err.contains("at most 1000"), "{ran:?}");
    let ran = folder.run(&["test", "--plugin=p.wasm"]);
    assert!(ran.code == 2 && ran.err.contains("there is no fixture"), "{ran:?}");
    let ran = folder.run(&["test", "g"]);
    assert!(ran.code == 2 && ran.err.contains("which component"), "{ran:?}");
    folder.write("g/large.json", vec![b' '; (2 << 20) + 1]);
    let ran = folder.run(&["test", "g", "--plugin=endless.wasm"]);
    assert!(ran.code == 8 && ran.out.contains("more than 2097152 bytes"), "{ran:?}");
    folder.write("wrong.wasm", "\u{1b}[2J");
    let ran = folder.run(&["test", "f", "--plugin=wrong.wasm"]);
    assert!(ran.code == 8 && ran.err.contains("is refused (format)"), "{ran:?}");
    assert!(ran.err.contains("it begins with `\\x1b[2J`"), "{ran:?}");
}

#[test]
fn one_run_shows_all_and_many_are_measured() {
    let folder = Folder::new();
    folder.write("p.wasm", terminal("suspended"));
    folder.write("a.json", answered(&json!({"terminal": {"reason": "suspended"}})));
    folder.write("b.json", answered(&json!({"delivered": {}})));
    let ran = folder.run(&["run", "a.json", "--plugin=p.wasm"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    for told in
        ["\"reason\": \"suspended\"", "time    ", "memory  2048 KiB", "log     info   suspended: says the guest"]
    {
        assert!(ran.out.contains(told), "{told}: {ran:?}");
    }
    let ran = folder.run(&["run", "b.json", "--plugin=p.wasm", "--json"]);
    let told = ran.json();
    assert_eq!((ran.code, &told["as_expected"], &told["memory_bytes"]), (8, &json!(false), &json!(2 << 20)));
    assert_eq!(folder.run(&["run", ".", "--plugin=p.wasm"]).code, 2);

    let ran = folder.run(&["bench", "a.json", "--plugin=p.wasm", "--calls=50", "--json"]);
    let row = ran.json()["items"][0].clone();
    assert_eq!((ran.code, &row["calls"], &row["faults"]), (0, &json!(50), &json!(0)));
    let at = |of: &str| row[of].as_u64().unwrap();
    assert!(at("p50_ns") > 0 && at("p50_ns") <= at("p99_ns") && at("p99_ns") <= at("max_ns"), "{row}");
    folder.write("fault.wasm", guests::classify_runs("unreachable"));
    let ran = folder.run(&["bench", "a.json", "--plugin=fault.wasm", "--calls=30"]);
    assert!(ran.code == 8 && ran.err.contains("1 of 1 fixtures came to faults"), "{ran:?}");

    let schema: Value = folder.run(&["fixture-schema"]).json();
    assert_eq!(schema["title"], "A fixture of a hookgate plugin");
}

fn script(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_build_makes_a_component_of_what_the_tool_leaves() {
    let folder = Folder::new();
    for lang in ["rust", "js", "python", "c"] {
        assert_eq!(folder.run(&["new", "--lang", lang, lang]).code, 0);
    }
    // On a machine with nothing each language's tool is named, and how to get it.
    let nowhere = [("PATH", "/nowhere")];
    for (lang, install) in [
        ("rust", "rustup.rs"),
        ("js", "npm install"),
        ("python", "pip install -r requirements.txt"),
        ("c", "pip install ziglang"),
    ] {
        let ran = folder.run_with(&["build", lang], &nowhere);
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(ran.err.contains("missing on this machine") && ran.err.contains(install), "{ran:?}");
        assert!(!folder.path(&format!("{lang}/{lang}.wasm")).exists());
    }
    // A compiler that leaves a core module, whatever it is given.
    let answer = guests::classify_answer(&Says::Terminal { code: "refused", message: None });
    let call = format!(r#"{answer} (func (export "{}") (type $call) i32.const 16)"#, guests::CLASSIFY);
    folder.write("core.wasm", wat::parse_str(guests::module(&call)).unwrap());
    let compiler = folder.path("cc");
    let copying = format!("for last; do :; done\ncp {} \"$last\"", folder.path("core.wasm").display());
    script(&compiler, &copying);
    let env = [("CC", compiler.to_str().unwrap()), ("PATH", "/usr/bin:/bin")];
    let ran = folder.run_with(&["build", "c"], &env);
    assert_eq!(ran.code, 8, "the world has two functions: {ran:?}");
    assert!(ran.err.contains("no component can be made of it") && ran.err.contains("transform"), "{ran:?}");
    let manifest = folder.text("c/hookgate-plugin.json").replace("\"plugin\"", "\"classify-only\"");
    folder.write("c/hookgate-plugin.json", manifest);
    let ran = folder.run_with(&["build", "c"], &env);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains("size     ") && ran.out.contains("imports  hookgate:plugin/log@1.0.0"), "{ran:?}");
    assert!(ran.err.contains("gen/plugin.c src/rules.c"), "{ran:?}");
    assert_eq!(folder.run(&["test", "c/fixtures/classify.json"]).code, 0);
    assert!(!folder.path("c/.c.draft.wasm").exists());

    // One that fails, and one that leaves what a gateway refuses.
    script(&compiler, "echo no >&2; exit 3");
    let ran = folder.run_with(&["build", "c"], &env);
    assert!(ran.code == 1 && ran.err.contains("exit status: 3"), "{ran:?}");
    assert!(!folder.path("c/c.wasm").exists(), "the component of the build before is not used");
    let ran = folder.run(&["test", "c/fixtures/classify.json"]);
    assert!(ran.code == 2 && ran.err.contains("hookgate plugin build"), "{ran:?}");
    let wasi = r#"(component (import "wasi:io/poll@0.2.6" (instance)))"#;
    folder.write("core.wasm", wat::parse_str(wasi).unwrap());
    script(&folder.path("js/node_modules/.bin/componentize-qjs"), &copying);
    script(&folder.path("bin/node"), "exit 0");
    let path = format!("{}:/usr/bin:/bin", folder.path("bin").display());
    let ran = folder.run_with(&["build", "js", "--json"], &[("PATH", &path)]);
    assert_eq!((ran.code, &ran.json()["problems"][0]["rule"]), (8, &json!("imports")), "{ran:?}");
    assert_eq!(folder.run(&["build"]).code, 2);
}

#[test]
fn the_example_does_what_its_fixtures_say() {
    let plugins = Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins");
    let (project, wasm) = (plugins.join("sms-rules"), plugins.join("sms-rules.wasm"));
    let folder = Folder::new();
    let ran = folder.run(&["test", project.to_str().unwrap(), "--plugin", wasm.to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.err.contains("5 fixtures, 0 failed"), "{ran:?}");
}
