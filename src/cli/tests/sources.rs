//! Sources, schemes, and requests that are looked at.

use super::*;

#[test]
fn sources_and_what_they_refused() {
    let server = Server::start(ordinary);
    assert_eq!(server.run(&["source", "list", "-q"]).out, "github\n");
    assert!(server.run(&["source", "get", "github"]).out.contains("secret_count  2\ndedup         body\n"));
    let filters = ["--source=github", "--reason=timestamp_too_old", "--since=2026-01-01T00:00:00Z", "--limit=7"];
    let ran = server.run(&[&["source", "rejections"][..], &filters].concat());
    for told in ["timestamp_too_old", "timestamp", "400", "192.0.2.7", "12", "sig:t is\\u{1b} 400 s old"] {
        assert!(ran.out.contains(told), "{told}: {}", ran.out);
    }
    let query = "source=github&reason=timestamp_too_old&since=2026-01-01T00%3A00%3A00Z&limit=7";
    assert_eq!(server.last().line, format!("GET {T}/rejections?{query}"));
    let json: Value = serde_json::from_str(&server.run(&["source", "rejections", "--json"]).out).unwrap();
    assert_eq!(json["items"][0]["skew_seconds"], 400);
    assert_eq!(server.run(&["source", "rejections", "--limit=0"]).exit, Exit::Usage);
    let slip = server.run(&["source", "rejections", "--reason=signature_missmatch"]);
    assert_eq!(slip.exit, Exit::Usage);
    assert!(slip.err.contains("write one of") && slip.err.contains("signature_mismatch"), "{}", slip.err);
    for code in ["rate_limited", "unknown_key"] {
        assert_eq!(server.run(&["source", "rejections", "--reason", code]).exit, Exit::Done, "{code}");
    }
    assert_eq!(server.run(&["source", "rejections", "--source=acme/github"]).exit, Exit::Done);
    assert_eq!(server.last().line, format!("GET {T}/rejections?source=github&limit=50"));
    server.run(&["source", "get", "acme/github"]);
    assert_eq!(server.last().line, format!("GET {T}/sources/github"));
}

#[test]
fn a_source_that_is_none_is_told_from_one_without_rejections() {
    let server = Server::start(|line| match line {
        line if line.contains("/rejections") => (200, r#"{"items":[],"next":null}"#.into()),
        line => ordinary(line),
    });
    assert_eq!(server.run(&["source", "rejections", "--source=github"]).err, "nothing there\n");
    let none = server.run(&["source", "rejections", "--source=nope"]);
    assert_eq!(none.exit, Exit::NotFound);
    assert!(none.err.contains("there is no source `nope`"), "{}", none.err);
}

#[test]
fn schemes_are_told_without_a_server() {
    for (args, file) in [
        (&["list-schemes"][..], "list-schemes"),
        (&["explain", "stripe"], "explain-stripe"),
        (&["explain", "standard-webhooks"], "explain-standard-webhooks"),
        (&["explain", "aws-sns"], "explain-aws-sns"),
        (&["explain", "rfc9421"], "explain-rfc9421"),
    ] {
        let ran = run(&[], &[&["source"][..], args].concat());
        assert_eq!((ran.exit, ran.err.as_str()), (Exit::Done, ""));
        golden(&format!("tests/golden/output/source-{file}.txt"), &ran.out);
    }
    let names = run(&[], &["source", "list-schemes", "--quiet"]).out;
    assert_eq!(names.lines().collect::<Vec<_>>(), crate::verify::schemes::names().collect::<Vec<_>>());
    let all: Value = serde_json::from_str(&run(&[], &["source", "list-schemes", "--json"]).out).unwrap();
    let slack = all["items"].as_array().unwrap().iter().find(|s| s["name"] == "slack").unwrap().clone();
    assert_eq!(
        (&slack["ways"][0]["signed"], &slack["ways"][0]["window_seconds"]),
        (&json!("v0:{t}:{body}"), &json!(300))
    );
    let one: Value = serde_json::from_str(&run(&[], &["source", "explain", "slack", "--json"]).out).unwrap();
    assert_eq!(one["handshakes"], slack["handshakes"]);
    let unknown = run(&[], &["source", "explain", "strpe"]);
    assert_eq!(unknown.exit, Exit::NotFound);
    assert!(unknown.err.contains("did you mean `stripe`?"), "{}", unknown.err);
    let some = run(&[], &["source", "list-schemes", "--quiet", "github"]).out;
    assert!(some.contains("github\ngithub-sha1\n") && !some.contains("slack"), "{some}");
    let narrow = run(&[], &["source", "list-schemes"]).out;
    assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
    let unknown = run(&[], &["source", "explain", "sns"]);
    assert!(unknown.err.contains("did you mean `aws-sns`?"), "{}", unknown.err);
}

#[test]
fn a_request_is_explained_however_it_is_written() {
    let secret = ["--scheme=stripe", "--secret=whsec_a-secret-for-tests"];
    let signed = |more: &[&str]| {
        let args = [&["sign", "--data={\"id\":\"evt_1\",\"n\":1}", "--at=1767225600"][..], &secret, more].concat();
        run(&[], &args).out
    };
    let verify = |input: &str, more: &[&str]| {
        let args = [&["verify", "--request=-", "--now=1767225604"][..], &secret, more].concat();
        run_in(Around { terminal: false, input }, &[], &args)
    };
    let curl = signed(&["--curl=http://127.0.0.1:8080/in/acme/stripe"]);
    let headers = signed(&[]);
    let raw = format!("POST /in/acme/stripe HTTP/1.1\n{headers}\n{{\"id\":\"evt_1\",\"n\":1}}");
    let (name, value) = headers.trim().split_once(": ").unwrap();
    let written = json!({"headers": {name: value}, "body": "{\"id\":\"evt_1\",\"n\":1}"}).to_string();
    let valid = verify(&curl, &[]);
    assert_eq!((valid.exit, valid.err.as_str()), (Exit::Done, ""), "{curl}");
    golden("tests/golden/output/verify-valid.txt", &valid.out);
    for other in [&raw, &written] {
        assert_eq!(verify(other, &[]).out, valid.out, "{other}");
    }
    golden("tests/golden/output/verify-valid.json", &verify(&curl, &["--json"]).out);
    let forged = verify(&curl.replace("\"n\":1", "\"n\":2"), &[]);
    assert_eq!(forged.exit, Exit::Problems);
    golden("tests/golden/output/verify-mismatch.txt", &forged.out);
    let late = verify(&raw, &["--now=1767226001"]);
    assert_eq!(late.exit, Exit::Usage, "a flag is given once");
    let late = run_in(
        Around { terminal: false, input: &raw },
        &[],
        &[&["verify", "--request=-", "--at=1767226001", "--json"][..], &secret].concat(),
    );
    assert_eq!(late.exit, Exit::Problems);
    golden("tests/golden/output/verify-too-old.json", &late.out);
    assert!(!format!("{valid:?}{forged:?}{late:?}").contains("a-secret-for-tests"));
    let helped = |raw: &str, args: &[&str]| {
        let args = [&["verify", "--request=-", "--now=1767225604"][..], args].concat();
        let ran = run_in(Around { terminal: false, input: raw }, &[], &args);
        assert_eq!(ran.exit, Exit::Problems, "{raw}");
        (ran.err, ran.out)
    };
    let zeros = "0".repeat(64);
    for (head, args, help) in [
        (
            format!("X-Hub-Signature-256: sha256={}", zeros.replace('0', "A")),
            &["--scheme=github", "--secret=s"][..],
            "`hookgate source explain github` says how",
        ),
        (
            "X-Slack-Signature: v0=1".to_owned(),
            &["--scheme=github", "--secret=s"],
            "looks like a request of the scheme `slack`",
        ),
        (String::from("A: b"), &["--scheme=github", "--secret=s"], "recorded with all its headers?"),
        (format!("Stripe-Signature: t=1767225600000,v1={zeros}"), &secret, "counts milliseconds"),
        (format!("Stripe-Signature: t=1767220000,v1={zeros}"), &secret, "with --at 1767220000"),
        (format!("Stripe-Signature: t=1767225600,v1={zeros}"), &secret, "byte for byte"),
    ] {
        let (err, out) = helped(&format!("POST / HTTP/1.1\n{head}\n\nx"), args);
        assert!(err.contains(help) && err.lines().any(|line| line.starts_with("help: ")), "{head}: {err}\n{out}");
        assert!(
            !head.contains("=AAA") || out.contains("no signature is 32 bytes in hexadecimal in lower case"),
            "{out}"
        );
    }
    let unclear = verify("curl http://h -F a=b", &[]);
    assert_eq!(unclear.exit, Exit::Usage);
    assert!(unclear.err.contains("`-` is a curl command, but") && unclear.err.contains("help: "), "{}", unclear.err);
}

#[test]
fn who_is_not_believed_is_told_where_to_look() {
    let server = Server::start(|_| (401, r#"{"code":"signature_mismatch","detail":"none"}"#.into()));
    let url = format!("{}/in/acme/github", server.url());
    let sent = |to: &str| run(&[], &["send", to, "--scheme=github", "--secret=s-for-tests", "--data={}"]);
    let refused = sent(&url);
    assert_eq!(refused.exit, Exit::Failed);
    for told in ["`hookgate source rejections --source acme/github`", "--source acme/github signs", "`hookgate verify`"]
    {
        assert!(refused.err.contains(told), "{told}: {}", refused.err);
    }
    assert!(!sent(&server.url()).err.contains("help: "), "no gateway's address");
}
