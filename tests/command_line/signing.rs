//! `sign`, `verify`, `send` and `listen`, each by the binary.

use super::hookgate;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Output, Stdio};

const WHSEC: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const TEXT_SECRET: &str = "0123456789abcdef-a-secret";
const BODY: &str = "{\"type\":\"user.created\",\"größe\":1}\r\n ";
const AT: &str = "--at=2026-01-31T08:00:00Z";

fn run(args: &[&str]) -> Output {
    hookgate(args).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

/// Files of one test.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Files(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        std::fs::write(self.0.path().join(name), content).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// Signs [`BODY`] with these flags, and gives a raw request with the headers that were printed.
fn signed(keys: &[&str]) -> String {
    let ran = run(&[&["sign", "--data", BODY, "--id=msg_1", "--type=push", AT], keys].concat());
    assert_eq!(code(&ran), 0, "{keys:?}: {}", err(&ran));
    format!("POST /in/acme/it HTTP/1.1\r\nHost: h.example\r\n{}\r\n{BODY}", out(&ran).replace('\n', "\r\n"))
}

fn secret_of(scheme: &str) -> &'static str {
    if matches!(scheme, "standard-webhooks" | "svix") { WHSEC } else { TEXT_SECRET }
}

#[test]
fn what_is_signed_is_valid() {
    let files = Files::new();
    // The verification room tests every scheme; here is one of each shape, and one that is code.
    for scheme in [
        "cloudinary-sha1",
        "github",
        "hook0",
        "paddle",
        "shopify",
        "slack",
        "standard-webhooks",
        "stripe",
        "svix",
        "workos",
    ] {
        let secret = format!("--secret={}", secret_of(scheme));
        let scheme_flag = format!("--scheme={scheme}");
        let keys = [scheme_flag.as_str(), secret.as_str()];
        let request = signed(&keys);
        let file = files.write("r.http", &request);
        let verify = |more: &[&str]| run(&[&["verify", "--request", &file, AT], &keys[..], more].concat());
        let ran = verify(&[]);
        assert_eq!(code(&ran), 0, "{scheme}: {}{}", out(&ran), err(&ran));
        assert!(out(&ran).contains("secret 1 of 1") && out(&ran).contains(&format!("valid ({scheme})")), "{ran:?}");
        assert_eq!(out(&verify(&["--quiet"])), "valid\n");
        // The same body, a byte changed.
        let file = files.write("forged.http", request.replace("user.created", "user.deleted"));
        let ran = run(&[&["verify", "--request", &file, AT, "--json"], &keys[..]].concat());
        assert_eq!(code(&ran), 8, "{scheme}");
        let told = json(&ran);
        assert_eq!((&told["code"], &told["step"]), (&"signature_mismatch".into(), &"match".into()), "{scheme}");
        let signature = request.lines().find(|line| line.to_ascii_lowercase().contains("sig") || line.contains("hmac"));
        let shown = out(&ran) + &err(&ran);
        assert!(!shown.contains(secret_of(scheme)) && !shown.contains(signature.unwrap()), "{scheme}: {shown}");
    }
}

#[test]
fn what_would_be_refused_is_not_signed() {
    let keys = ["sign", "--scheme=twilio", "--secret=a-secret-of-somebody", "--url=https://h.example/in/a/s"];
    let ran = run(&[&keys[..], &["--data", "{\"a\":1}"]].concat());
    assert_eq!(code(&ran), 2, "{ran:?}");
    assert!(err(&ran).contains("would be refused") && err(&ran).contains("--content-type"), "{}", err(&ran));
    assert_eq!(out(&ran), "");
    let form = ["--data", "a=1", "--content-type", "application/x-www-form-urlencoded"];
    assert_eq!(code(&run(&[&keys[..], &form].concat())), 0);
    let plain = ["sign", "--scheme=slack", "--secret=a-secret-of-somebody", "--data=x"];
    for (more, told) in [
        (&["--content-type=a\nb: c", "--curl=http://127.0.0.1:1/x"][..], "what content-type would hold"),
        (&["--at=-1"], "is before 1970"),
    ] {
        let ran = run(&[&plain[..], more].concat());
        assert!(code(&ran) == 2 && err(&ran).contains(told) && out(&ran).is_empty(), "{ran:?}");
    }
}

#[test]
fn a_switch_of_a_scheme_is_told_by_a_flag() {
    let files = Files::new();
    let cases: Value = serde_json::from_str(include_str!("../golden/signatures_code.json")).unwrap();
    let case = cases.as_array().unwrap().iter().find(|case| case["id"] == "hook0-01").unwrap();
    let file = files.write("r.json", case["request"].to_string());
    let secret = format!("--secret={}", case["secrets"][0].as_str().unwrap());
    let at = format!("--at={}", case["now_unix"]);
    let verify = |more: &[&str]| {
        run(&[&["verify", "--scheme=hook0", "--json", "--request", &file, &at, &secret], more].concat())
    };
    assert_eq!(json(&verify(&[]))["valid"], true);
    assert_eq!(json(&verify(&["--param=require_v1=false"]))["valid"], true);
    assert_eq!(json(&verify(&["--param=require_v1=true"]))["code"], "insufficient_coverage");
    assert_eq!(code(&verify(&["--param=require_v1=yes"])), 2);
}

/// Schemes that want to know more than a secret are told it by flags.
#[test]
fn settings_of_a_scheme_are_flags() {
    let files = Files::new();
    let cases: Vec<Value> = serde_json::from_str(include_str!("../golden/signatures_code.json")).unwrap();
    let run_case = |id: &str, params: &[&str]| {
        let case = cases.iter().find(|case| case["id"] == id).unwrap();
        let request = files.write("case.json", case.to_string());
        let secret = format!("--secret=file:{}", files.write("secret", case["secrets"][0].as_str().unwrap()));
        let (scheme, now) = (format!("--scheme={}", case["scheme"].as_str().unwrap()), case["now_unix"].to_string());
        let flags = ["verify", "--request", &request, &scheme, &secret, "--now", &now];
        run(&[&flags[..], params].concat())
    };
    let topic = "--param=topic_arns=arn:aws:sns:us-east-1:123456789012:made-up";
    let sns = "arn:aws:sns:us-east-2:295079676684:publish-and-verify-892f85fe-4836-424d-8188-ab85bef0f362";
    let (sns_beside, sns_alone) = (format!("{topic},{sns}"), format!("--param=topic_arns={sns}"));
    for (id, params) in [
        ("d-paypal-valid", &["--param=webhook_id=8PT597110X687430LKGECATA"][..]),
        ("d-braintree-valid", &["--param=public_key=integration_public_key"]),
        ("sns-php-1", &["--param=topic_arns="]),
        ("sns-php-1", &[&sns_beside]),
        ("sns-php-1", &[topic, &sns_alone]),
        (
            "d-rfc9421-webhook-profile",
            &["--param=alg=hmac-sha256", "--param=keyid=k1", "--param=required_components=@method,content-digest"],
        ),
    ] {
        let ran = run_case(id, params);
        assert_eq!(code(&ran), 0, "{id} {params:?}: {}{}", out(&ran), err(&ran));
    }
    assert_eq!(code(&run_case("sns-php-1", &[topic])), 8);
    assert_eq!(code(&run_case("d-paypal-valid", &["--param=webhook_id=another"])), 8);
    for (id, params, told) in [
        ("d-paypal-valid", &[][..], "the scheme paypal needs `webhook_id`\n  help: give e.g. --param webhook_id='8PT5"),
        (
            "d-rfc9421-webhook-profile",
            &["--param=keyid=k1"],
            "needs `alg` and `required_components`\n  help: give e.g. --param alg='ed25519' --param required_components='@method,",
        ),
        (
            "d-paypal-valid",
            &["--param=webhook_id=a", "--param=webhook_id=b"],
            "--param webhook_id is there twice\n  help: give it once",
        ),
        ("d-paypal-valid", &["--param=webhook_id="], "--param webhook_id: has to be a text: write e.g."),
        (
            "d-paypal-valid",
            &["--param=webhook_id=a", "--param=other=b"],
            "--param other: is not known, the scheme has webhook_id: remove it",
        ),
        (
            "d-twilio-valid",
            &["--param=webhook_id=a"],
            "--param webhook_id: is not known, the scheme has none: remove it",
        ),
        ("d-paypal-valid", &["--param=webhook_id"], "write NAME=VALUE"),
    ] {
        let ran = run_case(id, params);
        assert_eq!(code(&ran), 2, "{id} {params:?}");
        assert!(err(&ran).contains(told), "{id} {params:?}: {}", err(&ran));
    }
    let plain = run(&["sign", "--secret", WHSEC, "--param=a=b", "--data={}"]);
    assert!(err(&plain).contains("--param: has no effect"), "{}", err(&plain));
    let keyless = run(&["verify", "--scheme=paypal", "--param=webhook_id=a", "--request=-"]);
    assert!(err(&keyless).contains("no secret\n  help: nothing is fetched here"), "{}", err(&keyless));
    let sign = ["sign", "--scheme=rfc9421", "--secret=a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s=", "--data={}"];
    let params = ["--param=alg=hmac-sha256", "--param=keyid=k1", "--param=required_components=@method"];
    let ran = run(&[&sign[..], &params].concat());
    assert!(out(&ran).contains("signature-input: sig=(\"@method\" \"content-digest\")"), "{ran:?}");
}

const CONFIG: &str = r#"
[server]
public_url = "https://hooks.example.com"

[tenants.acme.sources.partner]
scheme = "custom"
verify = "hmac-sha256"
sig = { at = ["header:X-Partner-Signature"], encoding = "hex", prefix = "v1=" }
vars = { t = "header:X-Partner-Time" }
signed = "{t}.{body}"
time = { var = "t", unit = "s", tolerance = 300 }
secrets = ["env:PARTNER"]

[tenants.acme.sources.url]
scheme = "custom"
verify = "hmac-sha256"
sig = { at = ["header:X-Sig"], encoding = "hex" }
signed = "{url}{body}"
secrets = ["env:PARTNER"]
"#;

fn configured(config: &str, args: &[&str]) -> Output {
    let mut command = hookgate(args);
    command.env("HOOKGATE_CONFIG", config).env("PARTNER", TEXT_SECRET).output().unwrap()
}

#[test]
fn a_source_of_the_configuration_signs_and_verifies() {
    let files = Files::new();
    let config = files.write("h.toml", CONFIG);
    let sign = |args: &[&str]| {
        let ran = configured(&config, &[&["sign", "--data", BODY, AT], args].concat());
        (code(&ran), out(&ran), err(&ran))
    };
    let (done, headers, told) = sign(&["--source=acme/partner"]);
    assert_eq!(done, 0, "{told}");
    assert!(headers.starts_with("x-partner-signature: v1="), "{headers}");
    let file = files.write("r", format!("POST /in/acme/partner HTTP/1.1\n{headers}\n{BODY}"));
    let verify = |args: &[&str]| {
        let ran = configured(&config, &[&["verify", "--request", &file], args].concat());
        (code(&ran), out(&ran) + &err(&ran))
    };
    assert_eq!(verify(&["--source=acme/partner", AT]).0, 0);
    let (late, told) = verify(&["--source=acme/partner", "--at=2026-01-31T08:05:01Z"]);
    assert!(late == 8 && told.contains("timestamp_too_old") && told.contains("301 s old"), "{told}");
    assert_eq!(verify(&["--source=acme/partner", "--at=2026-01-31T08:05:01Z", "--tolerance=6m"]).0, 0);
    let explained = configured(&config, &["source", "explain", "acme/partner"]);
    let told = out(&explained);
    assert!(code(&explained) == 0 && told.starts_with("custom\n") && told.contains("300 s before and after"), "{told}");
    assert!(told.contains("{t}.{body}") && told.contains("a digest of the signed bytes"), "{told}");
    for (source, exit, why) in [
        ("acme/nobody", 5, "there is acme/partner, acme/url"),
        ("acme", 2, "TENANT/NAME"),
        ("Acme/partner", 2, "`Acme` is not"),
    ] {
        let (ended, told) = verify(&[&format!("--source={source}")]);
        assert!(ended == exit && told.contains(why), "{source}: {ended} {told}");
    }

    // The URL is signed: it has to be said on one side, and is put together or said on the other.
    let (refused, _, told) = sign(&["--source=acme/url"]);
    assert!(refused == 2 && told.contains("--url"), "{told}");
    let (_, headers, _) = sign(&["--source=acme/url", "--url=https://hooks.example.com/in/acme/url"]);
    let request = |head: &str| files.write("u", format!("{head}\n{headers}\n{BODY}"));
    for (head, flags, exit) in [
        ("POST /in/acme/url HTTP/1.1", &[][..], 0),
        ("POST https://hooks.example.com/in/acme/url HTTP/1.1", &[], 0),
        ("POST /in/acme/url HTTP/1.1\nHost: internal.example", &[], 0),
        ("POST /in/acme/else HTTP/1.1", &[], 8),
        ("POST /else HTTP/1.1", &["--url=https://hooks.example.com/in/acme/url"], 0),
    ] {
        let file = request(head);
        let ran = configured(&config, &[&["verify", "--source=acme/url", "--request", &file], flags].concat());
        assert_eq!(code(&ran), exit, "{head}: {}{}", out(&ran), err(&ran));
    }
    let config = files.write("h.toml", CONFIG.replace("public_url", "# public_url"));
    let file = request("POST /in/acme/url HTTP/1.1");
    let ran = configured(&config, &["verify", "--source=acme/url", "--request", &file]);
    assert!(code(&ran) == 2 && err(&ran).contains("no host"), "{}", err(&ran));
}

#[test]
fn rotation_and_the_places_of_secrets() {
    let files = Files::new();
    let secret = files.write("secret", format!("{TEXT_SECRET}\n"));
    let request = files.write("r.http", signed(&["--scheme=github", "--secret", TEXT_SECRET]));
    let from_file = format!("--secret=file:{secret}");
    let keys = ["--scheme=github", "--secret=another-secret-of-old", &from_file];
    let ran = run(&[&["verify", "--request", &request], &keys[..]].concat());
    assert!(code(&ran) == 0 && out(&ran).contains("secret 2 of 2"), "{ran:?}");
    let ran = hookgate(&["verify", "--request", &request, "--scheme=github", "--secret=env:S"])
        .env("S", TEXT_SECRET)
        .output()
        .unwrap();
    assert_eq!(code(&ran), 0, "{}", err(&ran));
    // From standard input.
    let bytes = std::fs::read(&request).unwrap();
    hookgate(&["verify", "--request=-", "--scheme=github", "--secret", TEXT_SECRET])
        .write_stdin(bytes)
        .assert()
        .code(0);
}

#[test]
fn a_handshake_that_brings_a_secret_is_explained_and_adopted_by_nobody() {
    let files = Files::new();
    let request = files.write("r", format!("POST /in/acme/it HTTP/1.1\nX-Hook-Secret: {TEXT_SECRET}\n\n{{}}"));
    let args = ["verify", "--request", &request, "--scheme=asana"];
    let verify = |more: &[&str]| run(&[&args[..], more].concat());
    let brought = verify(&[]);
    assert_eq!((code(&brought), err(&brought).as_str()), (0, ""));
    let told = out(&brought);
    assert!(told.contains("a gateway that has none for the source adopts it"), "{told}");
    assert!(told.ends_with("valid (asana): a handshake, whose secret a gateway would adopt\n"), "{told}");
    let document = json(&verify(&["--json"]));
    assert_eq!([&document["valid"], &document["challenge"], &document["adopts"]], [true, true, true]);
    let same = out(&verify(&["--secret", TEXT_SECRET]));
    assert!(same.ends_with("valid (asana): a handshake, to be answered\n"), "{same}");
    let other = verify(&["--secret=another-secret-than-that"]);
    assert_eq!(code(&other), 8);
    assert!(out(&other).ends_with("invalid (asana): secret_held at the step `match`\n"), "{}", out(&other));
    for shown in [told, document.to_string(), same, out(&other)] {
        assert!(!shown.contains(TEXT_SECRET), "{shown}");
    }
    // A source of the configuration says the same; what it would sign with is not here.
    let config = files.write("c.toml", "[tenants.a.sources.s]\nscheme = \"asana\"\n");
    let of_the_file = run(&["verify", "--request", &request, "--source=a/s", "--config", &config]);
    assert_eq!(out(&of_the_file), out(&brought));
    let checked = run(&["check", &config]);
    assert_eq!(code(&checked), 0);
    assert!(out(&checked).contains("takes the secret that the first handshake brings"), "{}", out(&checked));
    let event = files.write("e", format!("POST / HTTP/1.1\nX-Hook-Signature: {}\n\n{{}}", "00".repeat(32)));
    let unknown = run(&["verify", "--request", &event, "--source=a/s", "--config", &config]);
    assert!(
        code(&unknown) == 8 && err(&unknown).contains("in its ledger, which is not read here"),
        "{}",
        err(&unknown)
    );
    let by_flag = run(&["verify", "--request", &event, "--scheme=asana"]);
    assert!(code(&by_flag) == 8 && err(&by_flag).contains("help: give the one that the provider handed over"));
    let sign = run(&["sign", "--source=a/s", "--config", &config, "--data={}"]);
    assert!(code(&sign) != 0 && err(&sign).contains("the source has no secret of its own"), "{}", err(&sign));
    assert!(err(&run(&["verify", "--request", &request, "--scheme=github"])).contains("no secret"));
}

#[test]
fn an_editors_line_end_is_pointed_out() {
    let files = Files::new();
    let request = signed(&["--scheme=github", "--secret", TEXT_SECRET]);
    let file = files.write("r", format!("{request}\n"));
    let ran = run(&["verify", "--scheme=github", "--secret", TEXT_SECRET, "--request", &file]);
    assert!(code(&ran) == 8 && err(&ran).contains("without the line end"), "{}", err(&ran));
}

#[test]
fn bad_input_is_told_apart() {
    let files = Files::new();
    let request = files.write("r", "POST / HTTP/1.1\n\nx");
    let ok = ["--secret", WHSEC, "--request", &request];
    let garbage = files.write("g", b"\xff\xfe");
    for (args, why) in [
        (&["verify", "--scheme=nix", "--secret=s", "--request", &request][..], "`nix` is not a scheme"),
        (&["sign", "--scheme=aws-sns", "--data=x"], "only the provider can sign for `aws-sns`"),
        (&["send", "http://127.0.0.1:1/", "--scheme=plaid", "--data=x"], "only the provider can sign for `plaid`"),
        (&["verify", "--scheme=sns", "--request", &request], "did you mean `aws-sns`?"),
        (&["sign", "--scheme=Github", "--data=x"], "did you mean `github`?"),
        (&["verify", "--scheme=custom", "--secret=s", "--request", &request], "--source TENANT/NAME"),
        (&["verify", "--secret=whsec_?", "--request", &request], "secret 1: is not base64"),
        (&["verify", "--secret=env:NONE", "--request", &request], "`NONE` is not set"),
        (&["verify", "--secret=file:/nowhere", "--request", &request], "`/nowhere` cannot be read"),
        (&["verify", "--request", &request], "no secret"),
        (&["verify", "--secret", WHSEC, "--request", "/nowhere"], "`/nowhere` cannot be read"),
        (&["verify", "--secret", WHSEC, "--request", &garbage], "is not an HTTP request: line 1"),
        (&["verify", "--scheme=github", "--tolerance=5", ok[0], ok[1], ok[2], ok[3]], "signs no timestamp"),
        (&["verify", "--at=noon", ok[0], ok[1], ok[2], ok[3]], "RFC 3339"),
        (&["verify", "--cases", &request], "is not a file of cases"),
        (&["verify", "--cases", &garbage], "is not a file of cases"),
        (&["sign", "--secret", WHSEC, "--data=x", "--id=a b"], "the id `a b`"),
        (&["sign", "--secret", WHSEC, "--body=/nowhere"], "cannot be read"),
        (&["sign", "--secret", WHSEC, "--data=x", "--curl=nowhere"], "is not a URL"),
        (&["send", "nowhere", "--secret", WHSEC, "--data=x"], "is not a URL"),
        (&["send", "http://127.0.0.1:1", "--secret", WHSEC, "--data=x", "-H", "nothing"], "is not a header"),
        (&["send", "http://127.0.0.1:1", "--secret", WHSEC, "--data=x", "--content-type=\n"], "--content-type"),
        (&["listen", "--secret=whsec_?", "--port=0"], "secret 1: is not base64"),
    ] {
        let ran = run(args);
        assert!(code(&ran) == 2 && err(&ran).contains(why), "{args:?}: {} {}", code(&ran), err(&ran));
        assert!(out(&ran).is_empty() && !err(&ran).contains(WHSEC), "{args:?}: {ran:?}");
    }
}

fn golden() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/signatures.json").to_str().unwrap().to_owned()
}

#[test]
fn a_file_of_cases_is_run() {
    let ran = run(&["verify", "--cases", &golden()]);
    assert_eq!(code(&ran), 0, "{}", out(&ran));
    let mut cases: Value = serde_json::from_str(&std::fs::read_to_string(golden()).unwrap()).unwrap();
    let count = cases.as_array().unwrap().len();
    assert!(count > 600);
    let told = format!("{count} cases, 0 differ");
    assert!(out(&ran).contains("standard-webhooks") && err(&ran).contains(&told), "{ran:?}");

    cases[0]["expect"] = "invalid".into();
    cases[0]["reason"] = "malformed".into();
    cases[1]["scheme"] = "nix".into();
    let files = Files::new();
    let file = files.write("c.json", cases.to_string());
    let ran = run(&["verify", "--cases", &file]);
    assert_eq!(code(&ran), 8);
    let lines = out(&ran);
    assert!(
        lines.starts_with("sw-sign-vector (standard-webhooks): expected invalid (malformed), is valid\n"),
        "{lines}"
    );
    assert!(lines.contains("(nix): expected valid, is not run: unknown scheme `nix`"), "{lines}");
    let told = json(&run(&["verify", "--json", "--cases", &file]));
    assert_eq!((&told["ok"], &told["cases"]), (&false.into(), &count.into()));
    assert_eq!(told["differing"].as_array().unwrap().len(), 2);
    assert_eq!(told["schemes"]["nix"]["differ"], 1);
    assert_eq!(out(&run(&["verify", "-q", "--cases", &file])), "sw-sign-vector\nsw-secret-without-prefix\n");
    // A secret in the wrong place is not shown.
    cases[0]["secrets"] = WHSEC.into();
    let file = files.write("c.json", cases.to_string());
    let ran = run(&["verify", "--cases", &file]);
    assert!(code(&ran) == 2 && err(&ran).contains("`secrets` is not a list") && !err(&ran).contains(WHSEC), "{ran:?}");
}

#[test]
fn one_case_is_a_request_as_well() {
    let cases: Value = serde_json::from_str(&std::fs::read_to_string(golden()).unwrap()).unwrap();
    let files = Files::new();
    for document in [&cases[0], &cases[0]["request"]] {
        let file = files.write("r.json", document.to_string());
        let ran = run(&["verify", "--secret", WHSEC, "--request", &file, "--at=1614265330"]);
        assert_eq!(code(&ran), 0, "{}{}", out(&ran), err(&ran));
    }
}

/// A `hookgate listen` that is ended with the test.
struct Listener {
    child: Child,
    url: String,
    lines: BufReader<ChildStdout>,
    talk: BufReader<std::process::ChildStderr>,
}

impl Listener {
    fn start(args: &[&str]) -> Self {
        let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("hookgate"))
            .env_clear()
            .args([&["listen", "--port=0"], args].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut talk = BufReader::new(child.stderr.take().unwrap());
        let mut first = String::new();
        talk.read_line(&mut first).unwrap();
        let url = first.split(' ').find(|word| word.starts_with("http://")).unwrap_or_else(|| panic!("{first}"));
        Listener { url: url.to_owned(), child, lines, talk }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }

    /// Its exit code, and what it said last.
    fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.talk.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_receiver_verifies_and_answers_in_turn_for_each_id() {
    let mut listener = Listener::start(&[
        "--secret",
        WHSEC,
        "--status=503,429,200",
        "--retry-after=3",
        "--body=thanks",
        "--exit-after=6",
        "--json",
    ]);
    let url = listener.url.clone();
    let send = |more: &[&str]| run(&[&["send", &url, "--secret", WHSEC, "--data", BODY], more].concat());
    for (id, status, attempt) in [("a", 503, 1), ("a", 429, 2), ("b", 503, 1), ("a", 200, 3), ("a", 200, 4)] {
        let ran = send(&["--id", id]);
        assert_eq!(code(&ran), i32::from(status != 200), "{}", err(&ran));
        assert!(out(&ran).starts_with(&format!("{status} ")) && out(&ran).ends_with("\nthanks\n"), "{}", out(&ran));
        let row: Value = serde_json::from_str(&listener.line()).unwrap();
        assert_eq!((&row["id"], &row["status"], &row["attempt"]), (&id.into(), &status.into(), &attempt.into()));
        assert_eq!((&row["verified"], &row["event_type"]), (&true.into(), &"user.created".into()), "{row}");
        assert_eq!(row["bytes"], BODY.len());
    }
    let forged = send(&["-H", "webhook-signature: v1,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "--id=c"]);
    assert_eq!(code(&forged), 1);
    let row: Value = serde_json::from_str(&listener.line()).unwrap();
    assert_eq!((&row["verified"], &row["reason"]), (&false.into(), &"signature_mismatch".into()));
    let (exit, said) = listener.end();
    assert_eq!(exit, Some(0));
    assert_eq!(said, "6 requests: 5 verified, 1 not verified; answered 200 × 2, 429 × 1, 503 × 3\n");
}

/// What a plain socket sees of it.
fn raw(listener: &Listener, request: &str) -> String {
    use std::io::Write as _;
    let mut stream = std::net::TcpStream::connect(listener.url.trim_start_matches("http://")).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_receiver_shows_as_much_as_is_wanted() {
    const REQUEST: &str = "POST /x HTTP/1.1\r\nhost: h\r\nx-github-event: push\r\nhookgate-event-type: other\r\n\
                           connection: close\r\ncontent-length: 16\r\n\r\n{\"type\":\"a\"}\n\u{1b}[m";
    for (args, headers, body) in [
        (&[][..], false, false),
        (&["--show=none"], false, false),
        (&["--show=body"], false, true),
        (&["--show=headers"], true, false),
        (&["--show=all"], true, true),
    ] {
        let mut listener = Listener::start(&[&["--exit-after=1"], args].concat());
        raw(&listener, REQUEST);
        let mut shown = String::new();
        listener.lines.read_to_string(&mut shown).unwrap();
        assert!(shown.contains("#1  push  not checked  16 bytes  → 200\n"), "{shown}");
        assert_eq!(shown.contains("\n    x-github-event: push\n"), headers, "{args:?} {shown}");
        assert_eq!(shown.contains("\n    {\"type\":\"a\"}\n    \\u{1b}[m\n"), body, "{args:?} {shown}");
    }
    let mut listener = Listener::start(&["--show=body", "--exit-after=1"]);
    let long = "x".repeat(2_000);
    raw(&listener, &format!("POST / HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-length: 2000\r\n\r\n{long}"));
    listener.line();
    assert_eq!(listener.line(), format!("    {}\n", "x".repeat(1_024)));
    assert_eq!(listener.line(), "    … 976 bytes more\n");
    let mut listener = Listener::start(&["--json", "--exit-after=1"]);
    raw(&listener, REQUEST);
    let row: Value = serde_json::from_str(&listener.line()).unwrap();
    assert_eq!(row["body"], "{\"type\":\"a\"}\n\u{1b}[m");
    assert_eq!((&row["event_type"], &row["body_truncated"]), (&"push".into(), &false.into()));
    let headers = row["headers"].as_array().unwrap();
    assert!(headers.contains(&serde_json::json!(["hookgate-event-type", "other"])), "{row}");
}

#[test]
fn a_receiver_has_limits_and_shows_text() {
    let mut listener = Listener::start(&["--status=500", "--retry-after=7", "--delay=20ms"]);
    let began = std::time::Instant::now();
    let answer = raw(
        &listener,
        "POST /x HTTP/1.1\r\nhost: h\r\nwebhook-id: m\r\nhookgate-attempt: 4\r\nconnection: close\r\ncontent-length: 18\r\n\r\n{\"type\":\"a\\u001b\"}\n",
    );
    assert!(answer.starts_with("HTTP/1.1 500") && answer.contains("retry-after: 7\r\n"), "{answer}");
    assert!(began.elapsed() >= std::time::Duration::from_millis(20));
    let line = listener.line();
    assert!(line.contains("  m  #4  a\\u{1b}  not checked  18 bytes  → 500"), "{line}");
    let answer = raw(&listener, "POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 30000000\r\nconnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert!(listener.line().contains("larger than"));
    // Ctrl-C is a good end.
    let pid = listener.child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let (exit, said) = listener.end();
    assert_eq!((exit, said.as_str()), (Some(0), "2 requests: 0 verified, 0 not verified; answered 413 × 1, 500 × 1\n"));
}

#[test]
fn many_are_sent_at_a_time() {
    // Each waits for its answer: one after the other would take 20 times as long as one.
    let listener = Listener::start(&["--secret", WHSEC, "--exit-after=20", "--delay=300ms"]);
    let began = std::time::Instant::now();
    let args = ["send", &listener.url, "--secret", WHSEC, "--data=x", "--count=20", "--concurrency=20", "--json"];
    let ran = run(&args);
    assert_eq!(code(&ran), 0, "{}", err(&ran));
    assert!(began.elapsed() < std::time::Duration::from_secs(5));
    let ids: std::collections::BTreeSet<String> = out(&ran)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(ids.len(), 20);
    assert!(err(&ran).contains("20 sent: 200 × 20; p50 "), "{}", err(&ran));
    let (exit, said) = listener.end();
    assert_eq!((exit, said.as_str()), (Some(0), "20 requests: 20 verified, 0 not verified; answered 200 × 20\n"));
}

#[test]
fn nobody_there_is_told() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{free}/");
    let ran = run(&["send", &url, "--secret", WHSEC, "--data=x"]);
    assert!(code(&ran) == 3 && err(&ran).contains("no connection"), "{}", err(&ran));
    let ran = run(&["send", &url, "--secret", WHSEC, "--data=x", "--count=2"]);
    assert!(code(&ran) == 3 && err(&ran).contains("2 sent: unanswered × 2"), "{}", err(&ran));
    // A port that is taken.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("--port={}", taken.local_addr().unwrap().port());
    let ran = run(&["listen", &port]);
    assert!(code(&ran) == 1 && err(&ran).contains("--port"), "{}", err(&ran));
}

#[test]
fn signatures_have_their_forms() {
    let sign = |more: &[&str]| run(&[&["sign", "--secret", WHSEC, "--data=it's", "--id=msg_1", AT], more].concat());
    let told = json(&sign(&["--json"]));
    assert_eq!((&told["id"], &told["headers"]["webhook-timestamp"]), (&"msg_1".into(), &"1769846400".into()));
    assert_eq!(told["timestamp"], "2026-01-31T08:00:00.000Z");
    let signature = told["headers"]["webhook-signature"].as_str().unwrap();
    assert_eq!(out(&sign(&["-q"])), format!("{signature}\n"));
    let curl = out(&sign(&["--curl=http://127.0.0.1:1/x", "--content-type=text/plain"]));
    assert!(curl.starts_with("curl -H 'content-type: text/plain' -H 'webhook-signature: v1,"), "{curl}");
    assert!(curl.ends_with("--data-raw 'it'\\''s' 'http://127.0.0.1:1/x'\n"), "{curl}");
    // Every secret makes a signature, and ids are fresh unless given.
    let both = out(&sign(&["--secret", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"]));
    assert_eq!(both.lines().next().unwrap().split(' ').count(), 3, "{both}");
    let fresh = || json(&run(&["sign", "--secret", WHSEC, "--data=x", "--json"]))["id"].clone();
    assert_ne!(fresh(), fresh());
    let files = Files::new();
    let body = files.write("b", "it's");
    let ran = run(&["sign", "--secret", WHSEC, "--body", &body, "--id=msg_1", AT, "--json"]);
    assert_eq!(json(&ran)["headers"], told["headers"]);
}
