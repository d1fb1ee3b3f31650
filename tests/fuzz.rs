//! What strangers send, changed at random: nothing panics, nothing hangs, nothing forged is let in.
//!
//! Each target starts from real inputs and mutates them for `HOOKGATE_FUZZ_SECONDS` (2 unless set; half an hour is
//! `HOOKGATE_FUZZ_SECONDS=1800 cargo test --test fuzz -- --nocapture`), and prints how many it ran. A failure prints the
//! seed of its input; `HOOKGATE_FUZZ_SEED` begins there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/chance.rs"]
mod chance;

use bytes::Bytes;
use chance::Chance;
use hookgate::cli::{Failure, request};
use hookgate::clock::Timestamp;
use hookgate::config::{Env, Input, Outside, evaluate};
use hookgate::secret::Secret;
use hookgate::verify::cases::{self, Case, Expected};
use hookgate::verify::{Admission, Refusal, Request, SchemeSpec, SigSpec, Source, SourceSpec};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// One input takes no longer, however slow the machine is.
const PATIENCE: Duration = Duration::from_secs(10);

impl Chance {
    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// Runs `one` on seeds until the time is over, and at least a hundred times.
#[allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "how long is the caller's to say, and how many is told"
)]
fn fuzz(target: &str, mut one: impl FnMut(&mut Chance)) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let (seconds, first) = (number("HOOKGATE_FUZZ_SECONDS").unwrap_or(2), number("HOOKGATE_FUZZ_SEED"));
    let began = Instant::now();
    // Other inputs on each run; a failure names its own.
    let clock = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    let mut seed = first.unwrap_or(u64::try_from(clock % u128::from(u64::MAX)).unwrap());
    let mut runs: u64 = 0;
    while runs < 100 || began.elapsed() < Duration::from_secs(seconds) {
        let started = Instant::now();
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one(&mut Chance(seed))));
        assert!(ran.is_ok(), "{target}: run it again with HOOKGATE_FUZZ_SEED={seed}");
        assert!(started.elapsed() < PATIENCE, "{target}: HOOKGATE_FUZZ_SEED={seed} takes {:?}", started.elapsed());
        seed = seed.wrapping_add(1);
        runs += 1;
    }
    println!("fuzz {target}: {runs} executions in {:.1} s", began.elapsed().as_secs_f64());
}

/// Pieces that parsers have opinions on.
const WORDS: [&str; 44] = [
    "",
    " ",
    ",",
    "=",
    ".",
    ";",
    ":",
    "\\",
    "\"",
    "'",
    "{",
    "}",
    "[",
    "]",
    "\r\n",
    "\n",
    "\0",
    "\u{feff}",
    "ü",
    "😀",
    "v1=",
    "v1,",
    "v1a,",
    "v0=",
    "t=",
    "sha256=",
    "sha1=",
    "0",
    "-1",
    "18446744073709551616",
    "1e400",
    "null",
    "true",
    "%00",
    "%zz",
    "+",
    "/",
    "~1",
    "$'",
    "\\u0000",
    "\\ud800",
    "eyJhbGciOiJub25lIn0.",
    "sig1=(\"@method\");created=1",
    "Signature-Input",
];

fn mutate(chance: &mut Chance, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    for _ in 0..=chance.below(4) {
        let at = chance.below(bytes.len() + 1);
        let span = (at + chance.below(16)).min(bytes.len());
        match chance.below(9) {
            0 if at < bytes.len() => bytes[at] ^= 1 << chance.below(8),
            1 if at < bytes.len() => bytes[at] = chance.next().to_le_bytes()[0],
            2 => drop(bytes.drain(at.min(span)..span)),
            3 => {
                let piece = bytes[at.min(span)..span].to_vec();
                bytes.splice(at..at, piece);
            }
            4 | 5 => {
                let word = chance.of(&WORDS).bytes();
                bytes.splice(at..at, word);
            }
            6 => bytes.truncate(at),
            7 if !others.is_empty() => {
                let other = chance.of(others);
                let from = chance.below(other.len() + 1);
                let to = (from + chance.below(64)).min(other.len());
                bytes.splice(at..at, other[from..to].iter().copied());
            }
            _ => {
                let (word, times) = (chance.of(&WORDS).as_bytes(), 1 << chance.below(10));
                bytes.splice(at..at, word.repeat(times));
            }
        }
    }
    bytes.truncate(1 << 18);
}

fn mutated(chance: &mut Chance, bytes: &[u8], others: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    mutate(chance, &mut bytes, others);
    bytes
}

fn text(chance: &mut Chance, text: &str) -> String {
    String::from_utf8_lossy(&mutated(chance, text.as_bytes(), &[])).into_owned()
}

/// The cases of every scheme that is known here, each compiled.
fn corpus() -> Vec<(Case, Source)> {
    let files = [include_str!("golden/signatures.json"), include_str!("golden/signatures_code.json")];
    let cases = files.into_iter().flat_map(|file| cases::parse(file).unwrap());
    cases.map(|case| (case.clone(), cases::source(&case).unwrap())).collect()
}

/// A case's request in parts that can be changed.
#[derive(Clone)]
struct Parts {
    method: Method,
    url: String,
    headers: Vec<(HeaderName, Vec<u8>)>,
    body: Vec<u8>,
}

impl Parts {
    fn of(case: &Case) -> Self {
        let (method, headers, body) = case.request.parts().unwrap();
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.as_bytes().to_vec())).collect();
        Parts { method, url: case.request.url.clone(), headers, body: body.to_vec() }
    }

    fn changed(&self, chance: &mut Chance, others: &[Vec<u8>]) -> Self {
        let mut parts = self.clone();
        for _ in 0..=chance.below(2) {
            match chance.below(8) {
                0..=3 if !parts.headers.is_empty() => {
                    let at = chance.below(parts.headers.len());
                    mutate(chance, &mut parts.headers[at].1, others);
                }
                4 if !parts.headers.is_empty() => {
                    let at = chance.below(parts.headers.len());
                    let again = parts.headers[at].clone();
                    parts.headers.push(again);
                }
                5 => parts.url = text(chance, &parts.url),
                6 if !parts.headers.is_empty() => {
                    let at = chance.below(parts.headers.len());
                    parts.headers.remove(at);
                }
                _ => mutate(chance, &mut parts.body, others),
            }
        }
        parts
    }

    /// As the listener would hand it over: what is no header's value never gets here.
    fn headers(&self) -> HeaderMap {
        let valid = self.headers.iter().filter_map(|(name, value)| {
            let value = HeaderValue::from_bytes(value).ok()?;
            Some((name.clone(), value))
        });
        let mut map = HeaderMap::new();
        for (name, value) in valid {
            map.append(name, value);
        }
        map
    }

    fn admitted(&self, source: &Source, now: Timestamp) -> Result<Admission, Refusal> {
        let (headers, body) = (self.headers(), Bytes::from(self.body.clone()));
        let request =
            Request { method: &self.method, url: &self.url, headers: &headers, body: &body, received_at: now };
        let admitted = source.admit(request);
        let steps = source.explain(request);
        assert_eq!(steps.iter().all(|step| step.ok), admitted.is_ok(), "the explanation says otherwise: {steps:?}");
        if let Err(refusal) = &admitted {
            assert_eq!(source.admit(request).unwrap_err(), *refusal, "another answer to the same request");
        }
        admitted
    }
}

/// Schemes whose signed bytes can be read in one way alone: a body that is not the signed one is never let in.
const UNAMBIGUOUS: [&str; 6] = ["github", "shopify", "slack", "standard-webhooks", "stripe", "svix"];

/// Signature headers, timestamps, locators into bodies and URLs: every built-in scheme there is.
#[test]
fn requests() {
    let corpus = corpus();
    let others: Vec<Vec<u8>> = corpus.iter().map(|(case, _)| Parts::of(case).body).collect();
    let mut admitted = 0;
    fuzz("requests", |chance| {
        let (case, source) = chance.of(&corpus);
        let original = Parts::of(case);
        let parts = original.changed(chance, &others);
        let now = Timestamp::from_millis(case.now_unix.saturating_mul(1000));
        if let Ok(admission) = parts.admitted(source, now) {
            admitted += 1;
            let signed_body = case.expect == Expected::Valid && UNAMBIGUOUS.contains(&case.scheme.as_str());
            if let (true, Admission::Event(event)) = (signed_body, admission) {
                assert_eq!(event.body, original.body, "{}: a body that nobody signed", case.id);
            }
        }
    });
    assert!(admitted > 0, "none of the inputs was near enough");
}

/// Pointers into JSON, form fields and queries, and every way of writing a scheme.
#[test]
fn schemes_of_ones_own() {
    let locators =
        ["header:X-A", "query:a", "form:a", "json:/a/b", "json:/a/*/b", "json:/a~1b/0", "sig:t", "header?:X-B"];
    let templates =
        ["{t}.{body}", r"{method}\n{url}\n[{v}]{body}", r"\[{path}\]{query}{url_noquery}", "{body|sha256hex}"];
    let verifies =
        ["hmac-sha256", "hmac-sha1", "hmac-sha512", "equal", "ed25519", "hash-sha256", "rsa-sha256", "basic"];
    let bodies =
        [r#"{"a":{"b":"c"},"a/b":["x",1,null]}"#, "a=1&a=2&b=%41", "[[[[]]]]", "", "\u{feff}{}", r#""\ud83d\ude00""#];
    let mut compiled = 0;
    fuzz("schemes", |chance| {
        let maybe = |chance: &mut Chance, plain: &str| {
            if chance.below(4) == 0 { text(chance, plain) } else { plain.to_owned() }
        };
        let locator = |chance: &mut Chance| {
            let plain = *chance.of(&locators);
            maybe(chance, plain)
        };
        let some = |chance: &mut Chance, plain: &'static str| (chance.below(2) == 0).then_some(plain);
        let sig = SigSpec {
            at: vec!["header:X-S".to_owned(), locator(chance)],
            split: some(chance, ",").map(|plain| maybe(chance, plain)),
            pair: some(chance, "=").map(|plain| maybe(chance, plain)),
            take: some(chance, "v1").map(|plain| maybe(chance, plain)).into_iter().collect(),
            prefix: some(chance, "p=").map(|plain| maybe(chance, plain)),
            encoding: Some(maybe(chance, "hex")),
        };
        let (verify, template) = (*chance.of(&verifies), *chance.of(&templates));
        let custom = SchemeSpec {
            verify: Some(maybe(chance, verify)),
            sig: Some(sig),
            vars: BTreeMap::from([("t".to_owned(), locator(chance)), ("v".to_owned(), locator(chance))]),
            signed: Some(maybe(chance, template)).filter(|_| verify != "equal"),
            id: vec![locator(chance)],
            event_type: vec![locator(chance)],
            ..SchemeSpec::default()
        };
        let dedup = some(chance, "json:/a").map(|plain| maybe(chance, plain));
        let spec = SourceSpec { scheme: "custom".to_owned(), custom: Some(custom), dedup, ..SourceSpec::default() };
        let secrets = vec![Secret::new("a-secret-for-tests-000000000000000")];
        let Ok(source) = spec.compile(&"t".parse().unwrap(), &"s".parse().unwrap(), secrets) else { return };
        compiled += 1;
        let body = (*chance.of(&bodies)).as_bytes().to_vec();
        let headers = ["x-s", "x-a", "x-b"].map(|name| (HeaderName::from_static(name), b"t=1,v1=p=00".to_vec()));
        let url = "https://h.test/in/t/s?a=%C3%BC&a=2#f".to_owned();
        let parts = Parts { method: Method::POST, url, headers: headers.into(), body }.changed(chance, &[]);
        // Nobody has signed it; a token may be found by nobody either.
        assert!(parts.admitted(&source, Timestamp::from_millis(1_767_225_600_000)).is_err());
    });
    assert!(compiled > 0, "none of the schemes compiled");
}

/// What is pasted into `hookgate verify --request`: raw HTTP, curl commands, JSON.
#[test]
fn pasted_requests() {
    let seeds: Vec<Vec<u8>> = [
        "POST /in/a/b?c=d HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nX-A: 1\r\n\r\nab\n",
        "GET https://x.example/p HTTP/2\nA: b\n\n",
        "curl -sSL -X PUT 'https://h/p?a=b&c' \\\n -H \"A: \\\"b\\\"\" -H 'C;' --data-raw $'\\u00fc\\ud83d\\ude00\\x41\\n' --compressed",
        "$ curl --json '{\"a\":1}' -u u:p -d@f --data-binary=@g -A x -b y -e z -I -o /dev/null h",
        r#"{"method":"POST","url":"https://h/","headers":{"a":["1","2"],"b":"3"},"body_base64":"aGk="}"#,
        r#"{"id":"x","request":{"headers":{},"body":"\ud83d\ude00"}}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec();
    let (mut read, mut refused) = (0, 0);
    fuzz("pasted", |chance| {
        let seed = chance.of(&seeds);
        let bytes = mutated(chance, seed, &seeds);
        let mut files = |_: &Path| Ok::<_, Failure>(b"from\r\na file".to_vec());
        match request::parse(&bytes, "pasted", &mut files) {
            Ok(request) => {
                read += 1;
                assert!(request.body.len() <= bytes.len() + 1_024, "more than was pasted");
            }
            Err(failure) => {
                refused += 1;
                let told = failure.to_string();
                assert!(told.contains("`pasted`") && told.contains("help: "), "{told}");
                assert!(!told.split("help: ").next().unwrap().trim_end().chars().any(char::is_control), "{told:?}");
            }
        }
    });
    assert!(read > 0 && refused > 0, "{read} read, {refused} refused");
}

/// A configuration file: every mistake is told, and no secret.
#[test]
fn configurations() {
    let seeds: Vec<Vec<u8>> = [
        include_str!("golden/config/full.toml"),
        include_str!("golden/config/broken.toml"),
        "[tenants.a.sources.s]\nscheme = \"github\"\nsecrets = [\"hunter2-hunter2-hunter2\", { value = \"env:S\", expires = \"2026-12-31T00:00:00Z\" }]\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec();
    let env = Env::default();
    fuzz("configurations", |chance| {
        let seed = chance.of(&seeds);
        let bytes = mutated(chance, seed, &seeds);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let path = Path::new("f.toml");
        let mut report = evaluate(&Input { text: &text, path, env: &env, flags: &[], outside: Outside::Skip });
        report.warn_of_expiries(Timestamp::from_millis(1_767_225_600_000));
        assert_eq!(report.settings.is_some(), report.problems.is_empty());
        drop((report.lines(), report.json()));
    });
}
