//! Random and mutated components on the very way of an upload: looked at, compiled by the child, kept, made an instance
//! of, called. None may bring down, hold up or swell the process.
//!
//! `HOOKGATE_FUZZ_SECONDS=600 cargo test --test plugin_fuzz -- --nocapture` for long; `HOOKGATE_FUZZ_SEED` for one seed.
//! Alone in its binary, so that the memory of the process is its own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "support/chance.rs"]
mod chance;
#[path = "support/guests.rs"]
mod guests;

use bytes::Bytes;
use chance::Chance;
use guests::Says;
use hookgate::clock::Timestamp;
use hookgate::delivery::{Name, Reason, Verdict};
use hookgate::plugin::{
    AttemptView, Compiler, EndpointView, EventView, Host, OutcomeView, Plugin, Rules as _, Settings, survey,
};
use hookgate::secret::Secret;
use http::HeaderMap;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The process may have so much more after all candidates than after the first ones.
const GROWTH_KIB_MAX: u64 = 64 << 10;

/// The sections of a component, or of a module, with their heads; what does not fit is the last one.
fn sections(wasm: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = wasm.get(8..).unwrap_or_default();
    let mut all = Vec::new();
    while !rest.is_empty() {
        let (mut length, mut at, mut shift) = (0usize, 1, 0);
        while let Some(byte) = rest.get(at) {
            length |= usize::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            (at, shift) = (at + 1, shift + 7);
            if byte & 0x80 == 0 {
                break;
            }
        }
        let end = at.saturating_add(length).min(rest.len());
        all.push(rest[..end].to_vec());
        rest = &rest[end..];
    }
    all
}

/// Bits turned, bytes changed, pieces cut out, doubled and taken from others, ends cut off, sections shuffled.
fn mutated(chance: &mut Chance, wasm: &[u8], others: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = wasm.to_vec();
    for _ in 0..=chance.below(3) {
        let at = chance.below(bytes.len());
        let end = (at + chance.below(64)).min(bytes.len());
        match chance.below(9) {
            0..=2 if at < bytes.len() => bytes[at] ^= 1 << chance.below(8),
            3 if at < bytes.len() => bytes[at] = chance.next().to_le_bytes()[0],
            4 => drop(bytes.drain(at..end)),
            5 => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            6 => {
                let other = &others[chance.below(others.len())];
                let from = chance.below(other.len());
                let to = (from + chance.below(256)).min(other.len());
                bytes.splice(at..end, other[from..to].iter().copied());
            }
            7 => bytes.truncate(at),
            _ => {
                let mut parts = sections(&bytes);
                for _ in 0..=chance.below(3) {
                    let (one, other) = (chance.below(parts.len()), chance.below(parts.len()));
                    match chance.below(3) {
                        _ if parts.is_empty() => {}
                        0 => parts.swap(one, other),
                        1 => drop(parts.remove(one)),
                        _ => parts.insert(one, parts[other].clone()),
                    }
                }
                bytes = bytes.iter().take(8).copied().chain(parts.concat()).collect();
            }
        }
    }
    bytes
}

/// A number that guests have opinions on, or an expression of numbers.
fn value(chance: &mut Chance, depth: usize) -> String {
    const NUMBERS: [&str; 9] = ["0", "1", "-1", "16", "65536", "0x7fffffff", "0x80000000", "2097151", "1048576"];
    const OPERATIONS: [&str; 10] = [
        "i32.add",
        "i32.sub",
        "i32.mul",
        "i32.div_s",
        "i32.rem_u",
        "i32.shl",
        "i32.and",
        "i32.xor",
        "i32.lt_s",
        "i32.rotl",
    ];
    match chance.below(if depth == 0 { 2 } else { 8 }) {
        0 => format!("(i32.const {})", NUMBERS[chance.below(NUMBERS.len())]),
        1 => format!("(local.get {})", chance.below(4)),
        2 => format!("(i32.load offset={} {})", chance.below(200), value(chance, depth - 1)),
        3 => format!("(memory.grow (i32.and (i32.const 63) {}))", value(chance, depth - 1)),
        4 => format!("(i32.trunc_sat_f64_u (f64.sqrt (f64.convert_i32_s {})))", value(chance, depth - 1)),
        _ => {
            let (one, other) = (value(chance, depth - 1), value(chance, depth - 1));
            format!("({} {one} {other})", OPERATIONS[chance.below(OPERATIONS.len())])
        }
    }
}

fn statements(chance: &mut Chance, depth: usize) -> String {
    let mut code = String::new();
    for _ in 0..=chance.below(5) {
        let (one, other) = (value(chance, 3), value(chance, 3));
        let inner = if depth == 0 { String::new() } else { statements(chance, depth - 1) };
        let _ = match chance.below(12) {
            0..=2 => write!(code, "(local.set {} {one})", chance.below(4)),
            3 | 4 => write!(code, "(i32.store {one} {other})"),
            5 => write!(code, "(if {one} (then {inner}))"),
            6 => write!(code, "(block (loop {inner} (br_if 1 {one}) (br_if 0 {other})))"),
            7 => write!(code, "(memory.fill {one} {other} (i32.and (i32.const 0xfffff) {one}))"),
            8 => write!(code, "(call $log (i32.and (i32.const 7) {one}) {other} (i32.const 40))"),
            9 => write!(code, "(drop (call $again {one}))"),
            10 if chance.below(8) == 0 => write!(code, "(unreachable)"),
            _ => write!(code, "(memory.copy {one} {other} (i32.const 100))"),
        };
    }
    code
}

/// A module of random code that is valid, behind the package's own functions.
fn random(chance: &mut Chance) -> Vec<u8> {
    let fields = format!(
        "(func $again (param i32) (result i32) (local i32 i32 i32) {} {})",
        statements(chance, 2),
        value(chance, 2)
    );
    let code = format!("(local i32 i32 i32) {} {}", statements(chance, 2), value(chance, 2));
    // Half of them give an answer that lies where an answer may lie.
    let end = if chance.below(2) == 0 { "drop i32.const 16" } else { "" };
    if chance.below(2) == 0 {
        guests::classify_with(&fields, &format!("{code} {end}"))
    } else {
        guests::transform_with(&fields, &format!("{code} {end}"))
    }
}

async fn called(plugin: &Plugin) -> [String; 2] {
    let payload = Bytes::from_static(br#"{"to":"+4930123","body":"Hello"}"#);
    let now = Timestamp::from_millis(1_700_000_000_000);
    let to = EndpointView { id: "sms", url: "https://sms.example/v1", config: "{}" };
    let event = EventView {
        id: "evt_1",
        event_type: "message.created",
        accepted_at: now,
        content_type: "application/json",
        attributes: &[],
        payload: &payload,
    };
    let attempt = AttemptView {
        event_id: "evt_1",
        event_type: "message.created",
        number: 1,
        max_attempts: 9,
        idempotency_key: "key-1",
        now,
        attributes: &[],
    };
    let headers = HeaderMap::new();
    let elapsed = Duration::from_millis(3);
    let answer =
        OutcomeView::Response { status: 200, headers: &headers, body: &payload, body_truncated: false, elapsed };
    let word = |fault: &hookgate::delivery::Fault| format!("called: {}", fault.kind.as_str());
    let transformed = plugin.transform(event, to, attempt).await.result;
    let judged = plugin.classify(to, attempt, answer).await.result;
    [
        transformed.as_ref().map_or_else(word, |_| "called: answered".to_owned()),
        judged.as_ref().map_or_else(word, |_| "called: answered".to_owned()),
    ]
}

fn status(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn handles() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[allow(clippy::disallowed_methods, reason = "how long is the caller's to say")]
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_component_does_harm() {
    let seconds = number("HOOKGATE_FUZZ_SECONDS");
    // A short run has the same candidates each time.
    let first = number("HOOKGATE_FUZZ_SEED").unwrap_or(1);
    let dir = tempfile::tempdir().unwrap();
    let args = vec![hookgate::plugin::compile::SUBCOMMAND.to_owned()];
    let compiler = Compiler::Child { program: env!("CARGO_BIN_EXE_hookgate").into(), args };
    let mut settings = Settings::new(compiler, Secret::new([7; 32]));
    settings.cache_dir = Some(dir.path().to_owned());
    settings.limits.call_time_max = Duration::from_millis(20);
    (settings.calls_max, settings.calls_per_tenant_max) = (8, 4);
    let host = Host::new(settings).unwrap();
    let tenant: Name = "acme".parse().unwrap();
    let good = guests::classify_says(&Says::Terminal { code: "fine", message: None });
    let mut corpus = vec![
        good.clone(),
        guests::transform_sends(&guests::Request { body: "x", headers: &[("a", "b")], ..Default::default() }),
    ];
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins/sms-rules.wasm");
    corpus.push(std::fs::read(sample).unwrap());

    let began = Instant::now();
    let (mut seed, mut counts, mut early) = (first, BTreeMap::<String, u64>::new(), None);
    let enough = |runs: u64| match seconds {
        Some(seconds) => began.elapsed() > Duration::from_secs(seconds),
        None => runs >= 60,
    };
    let mut runs = 0;
    while !enough(runs) {
        let mut chance = Chance(seed);
        // The sample is large: the small ones are most of the candidates.
        let candidate = match chance.below(8) {
            0..=2 => random(&mut chance),
            n => mutated(&mut chance, &corpus[if n == 3 { 2 } else { n % 2 }], &corpus),
        };
        let started = Instant::now();
        // As `plugin check` does, of whatever came.
        drop(survey(&candidate, host.limits(&tenant)));
        let words = match host.load(&tenant, candidate.clone().into()).await {
            Ok(plugin) => called(&plugin).await.to_vec(),
            Err(rejected) => {
                assert_ne!(rejected.rule, "host", "HOOKGATE_FUZZ_SEED={seed}: {rejected}");
                vec![format!("refused: {}", rejected.rule)]
            }
        };
        let took = started.elapsed();
        assert!(took < Duration::from_secs(60), "HOOKGATE_FUZZ_SEED={seed} took {took:?}");
        words.into_iter().for_each(|word| *counts.entry(word).or_default() += 1);
        (seed, runs) = (seed.wrapping_add(1), runs + 1);
        if runs == 40 {
            early = Some((status("VmRSS:"), handles(), status("Threads:")));
        }
    }
    // A good one is served as ever.
    let plugin = host.load(&tenant, good.clone().into()).await.unwrap();
    let judged = |verdict: &Verdict| *verdict == Verdict::Terminal(Reason::word("fine"));
    let headers = HeaderMap::new();
    let body = Bytes::new();
    let view = OutcomeView::Response {
        status: 200,
        headers: &headers,
        body: &body,
        body_truncated: false,
        elapsed: Duration::ZERO,
    };
    let to = EndpointView { id: "sms", url: "https://sms.example/v1", config: "{}" };
    let attempt = AttemptView {
        event_id: "e",
        event_type: "t",
        number: 1,
        max_attempts: 1,
        idempotency_key: "k",
        now: Timestamp::from_millis(0),
        attributes: &[],
    };
    assert!(plugin.classify(to, attempt, view).await.result.is_ok_and(|verdict| judged(&verdict)));
    drop(plugin);

    // What a call held is given back by its thread after the answer.
    while host.engine().pooling_allocator_metrics().unwrap().component_instances() > 0 {
        assert!(began.elapsed() < Duration::from_secs(seconds.unwrap_or(0) + 600), "instances are left");
        tokio::time::sleep(Duration::from_millis(5)).await; // poll: no instance is left
    }
    let (rss, fds, threads) = early.unwrap();
    let (rss_now, fds_now, threads_now) = (status("VmRSS:"), handles(), status("Threads:"));
    let kept = std::fs::read_dir(dir.path()).unwrap().count();
    println!(
        "plugin fuzz from seed {first}: {runs} components in {:.0} s; memory {rss} → {rss_now} KiB, handles {fds} → {fds_now}, \
         threads {threads} → {threads_now}, {kept} files kept\n{counts:#?}",
        began.elapsed().as_secs_f64()
    );
    assert!(rss_now < rss + GROWTH_KIB_MAX, "memory grew from {rss} to {rss_now} KiB");
    assert!(fds_now <= fds + 4, "{fds} handles became {fds_now}");
    assert!(threads_now <= threads + 2, "{threads} threads became {threads_now}");
    assert!(kept <= 2 * 1024 + 4, "{kept} files are kept");
    assert!(
        counts.keys().any(|word| word.starts_with("refused")) && counts.contains_key("called: answered"),
        "{counts:?}"
    );
    assert!(Arc::strong_count(&host) <= 2, "somebody holds on to the host");
}
