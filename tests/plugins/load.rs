//! What is refused at load, by which rule; how it is compiled; what is kept.

use super::*;
use hookgate::plugin::{Allocator, Digest, Limits};
use std::fs;
use std::time::Instant;

/// A component in text whose classify has the right name, though not the right type.
pub(super) fn shell(inside: &str) -> Vec<u8> {
    let text = format!(
        r#"(component {inside}
          (core module $code (func (export "f")))
          (core instance $run (instantiate $code))
          (func $f (canon lift (core func $run "f")))
          (instance $offer (export "classify" (func $f)))
          (export "hookgate:plugin/classifier@1.0.0" (instance $offer)))"#
    );
    wat::parse_str(text).unwrap()
}

pub(super) fn core(fields: &str) -> Vec<u8> {
    shell(&format!("(core module $m {fields}) (core instance $i (instantiate $m))"))
}

pub(super) fn good() -> Vec<u8> {
    guests::classify_says(&Says::Delivered { reference: Some("r") })
}

#[tokio::test]
async fn what_is_no_plugin_is_refused_by_its_rule() {
    let wasi = shell(r#"(import "wasi:cli/environment@0.2.6" (instance))"#);
    let network = shell(r#"(import "hookgate:plugin/network@1.0.0" (instance))"#);
    let log_2 = shell(r#"(import "hookgate:plugin/log@2.0.0" (instance))"#);
    let bare_import = shell(r#"(import "run" (func))"#);
    let hollow = r#"(component (instance $none) (export "hookgate:plugin/classifier@1.0.0" (instance $none)))"#;
    let hollow = wat::parse_str(hollow).unwrap();
    let answer = guests::classify_answer(&Says::Delivered { reference: None });
    let call = format!(r#"{answer} (func (export "{}") (type $call) i32.const 16)"#, guests::CLASSIFY);
    let package = |version: &str| {
        let wit = guests::WIT.replace("@1.0.0;", &format!("@{version};"));
        let module = guests::module(&call).replace("@1.0.0", &format!("@{version}"));
        guests::component_of(&wit, "classify-only", &module)
    };
    let retyped = |from: &str, to: &str| {
        assert!(guests::WIT.contains(from));
        guests::component_of(&guests::WIT.replace(from, to), "classify-only", &guests::module(&call))
    };
    let start =
        |code: &str| guests::classify_with(&format!("{answer} (func $start {code}) (start $start)"), "i32.const 16");
    let many = |count: usize, text: &str| text.repeat(count);
    let cases: Vec<(&str, Vec<u8>, &str, &str)> = vec![
        ("nothing", vec![], "format", "empty"),
        ("garbage", b"\x7fELF\x02\x01\x01".to_vec(), "format", "not WebAssembly"),
        ("text", b"(component)".to_vec(), "format", "text"),
        ("a core module", wat::parse_str("(module)").unwrap(), "format", "core module"),
        ("a cut component", good()[..good().len() - 10].to_vec(), "format", "damaged"),
        ("an empty component", wat::parse_str("(component)").unwrap(), "exports", "neither"),
        ("WASI", wasi, "imports", "wasi:cli/environment@0.2.6"),
        ("an interface there is not", network, "imports", "network"),
        ("a function", bare_import, "imports", "run"),
        ("the next log", log_2, "version", "1.x"),
        ("package 2", package("2.0.0"), "version", "2.0.0"),
        ("package 0.1", package("0.1.0"), "version", "0.1.0"),
        ("a pre-release", package("1.0.0-rc.1"), "version", "rc.1"),
        ("an export without functions", hollow, "types", "classify"),
        ("a function of another type", shell(""), "types", ""),
        ("a record of another shape", retyped("after-ms: option<u32>", "after-ms: option<u64>"), "types", ""),
        ("one more case", retyped("reset, protocol, blocked", "reset, protocol, sunspots, blocked"), "types", ""),
        ("code that does not validate", core(r#"(func (export "f") (result i32))"#), "compile", ""),
        ("4 GiB of memory", core("(memory 65536)"), "resources", "memory"),
        ("two memories in a module", core("(memory 1) (memory 1)"), "resources", "memor"),
        ("too many elements", core("(table 20001 funcref)"), "resources", "table"),
        (
            "three tables in a module",
            core("(table 1 funcref) (table 1 funcref) (table 1 funcref)"),
            "resources",
            "table",
        ),
        ("100,000 globals", core(&many(100_000, "(global i64 (i64.const 0))")), "resources", ""),
        (
            "65 instances",
            shell(&format!("(core module $m) {}", many(65, "(core instance (instantiate $m))"))),
            "resources",
            "instance",
        ),
        (
            "five memories",
            shell(&format!("(core module $m (memory 1)) {}", many(5, "(core instance (instantiate $m))"))),
            "resources",
            "memor",
        ),
        ("shared memory", core("(memory 1 1 shared)"), "compile", ""),
        ("64-bit memory", core("(memory i64 1)"), "compile", ""),
        ("a start that loops", start("(loop $l (br $l))"), "instantiation", "deadline"),
        ("a start that traps", start("unreachable"), "instantiation", "trap"),
        ("40 MiB of memory", core("(memory 640)"), "memory", "memory"),
    ];
    let host = host();
    for (what, wasm, rule, finding) in cases {
        let began = Instant::now();
        let rejected = rejection(&host, &wasm).await;
        assert_eq!(rejected.rule, rule, "{what}: {rejected}");
        assert!(rejected.finding.contains(finding), "{what}: {rejected}");
        assert!(!rejected.remedy.is_empty(), "{what}");
        assert!(began.elapsed() < Duration::from_secs(5), "{what} took {:?}", began.elapsed());
        still_serves(&host).await;
    }
    let wasi = rejection(&host, &shell(r#"(import "wasi:io/poll@0.2.6" (instance))"#)).await;
    assert!(wasi.remedy.contains("wasm32-unknown-unknown") && wasi.remedy.contains("--stub-wasi"), "{wasi}");
}

/// Without the pool's own bounds the store's hold.
#[tokio::test]
async fn the_on_demand_allocator_has_the_same_bounds() {
    let mut settings = settings();
    settings.allocator = Allocator::OnDemand;
    let host = Host::new(settings).unwrap();
    let plugin = load(&host, &good()).await;
    assert!(answer(&plugin, 200, &[], "").await.result.is_ok());
    let instances = shell(&format!("(core module $m) {}", "(core instance (instantiate $m))".repeat(65)));
    let (memory, table) = (core("(memory 65536)"), core("(table 20001 funcref)"));
    for (wasm, rule) in [(memory, "memory"), (table, "instantiation"), (instances, "instantiation")] {
        assert_eq!(rejection(&host, &wasm).await.rule, rule);
        still_serves(&host).await;
    }
}

#[tokio::test]
async fn sizes_and_grants() {
    let mut settings = settings();
    let wasm = good();
    settings.limits.component_bytes_max = wasm.len() - 1;
    let grant = Limits { component_bytes_max: wasm.len(), ..settings.limits };
    settings.grants.insert("big".parse().unwrap(), grant);
    let host = Host::new(settings).unwrap();
    let rejected = rejection(&host, &wasm).await;
    assert_eq!(rejected.rule, "size");
    assert!(rejected.finding.contains(&(wasm.len() - 1).to_string()));
    let plugin = host.load(&"big".parse().unwrap(), wasm.clone().into()).await.unwrap();
    assert_eq!((plugin.size(), plugin.digest()), (wasm.len(), Digest::of(&wasm)));
}

#[tokio::test]
async fn later_minors_of_the_package_run() {
    let answer = guests::classify_answer(&Says::Terminal { code: "minor", message: None });
    let call = format!(r#"{answer} (func (export "{}") (type $call) i32.const 16)"#, guests::CLASSIFY);
    let host = host();
    for version in ["1.0.7", "1.4.0"] {
        let wit = guests::WIT.replace("@1.0.0;", &format!("@{version};"));
        let module = guests::module(&call).replace("@1.0.0", &format!("@{version}"));
        let plugin = load(&host, &guests::component_of(&wit, "classify-only", &module)).await;
        assert_eq!(super::answer(&plugin, 200, &[], "").await.result, Ok(Verdict::Terminal(Reason::word("minor"))));
    }
}

#[tokio::test]
async fn a_plugin_has_the_exports_of_its_world() {
    let host = host();
    let classify = load(&host, &good()).await;
    assert_eq!((classify.exports().transform, classify.exports().classify), (false, true));
    let call = transform(&classify, "{}", "{}").await;
    assert_eq!(call.result.unwrap_err().kind, hookgate::delivery::FaultKind::Unavailable);
    let transform_only = load(&host, &guests::transform_skips("no")).await;
    assert_eq!((transform_only.exports().transform, transform_only.exports().classify), (true, false));
    let call = answer(&transform_only, 200, &[], "").await;
    assert_eq!(call.result.unwrap_err().kind, hookgate::delivery::FaultKind::Unavailable);
}

#[tokio::test]
async fn the_child_compiles_and_the_cache_keeps() {
    let dir = tempfile::tempdir().unwrap();
    let with = |compiler| {
        let mut settings = settings();
        settings.cache_dir = Some(dir.path().to_owned());
        settings.compiler = compiler;
        Host::new(settings).unwrap()
    };
    // No compiler at all: what is loaded then comes from the cache.
    let none = || Compiler::Child { program: "/nonexistent/compiler".into(), args: Vec::new() };
    let works = async |host: &Arc<Host>| {
        let plugin = host.load(&tenant(), good().into()).await?;
        assert!(answer(&plugin, 200, &[], "").await.result.is_ok());
        Ok::<_, Rejected>(())
    };
    let missing = works(&with(none())).await.unwrap_err();
    assert_eq!(missing.rule, "host");
    works(&with(child())).await.unwrap();
    works(&with(none())).await.unwrap();
    let mut files = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path());
    let file = files.find(|p| p.extension().is_some_and(|e| e == "cwasm")).unwrap();
    let whole = fs::read(&file).unwrap();
    let mac = file.with_extension("mac");
    let tag = fs::read(&mac).unwrap();
    // In another file of the same name: a thread may still be letting go of the one that is mapped.
    let replace = |bytes: &[u8]| {
        fs::remove_file(&file).unwrap();
        fs::write(&file, bytes).unwrap();
    };
    for damage in ["cut", "changed", "wrong mac", "no mac"] {
        match damage {
            "cut" => replace(&whole[..whole.len() / 2]),
            "changed" => replace(&[&whole[..whole.len() - 1], &[!whole[whole.len() - 1]]].concat()),
            "wrong mac" => fs::write(&mac, [0; 32]).unwrap(),
            _ => fs::remove_file(&mac).unwrap(),
        }
        assert_eq!(works(&with(none())).await.unwrap_err().rule, "host", "{damage}: not loaded");
        works(&with(child())).await.unwrap();
        assert_eq!(fs::read(&mac).unwrap(), tag, "{damage}: made again");
        works(&with(none())).await.unwrap();
    }
    // Another tenant has its own artefact.
    let foreign = with(none()).load(&"other".parse().unwrap(), good().into()).await;
    assert_eq!(foreign.map(|p| p.digest()).unwrap_err().rule, "host");
}

#[tokio::test]
async fn without_a_cache_folder_the_child_serves_too() {
    let mut settings = settings();
    settings.compiler = child();
    let host = Host::new(settings).unwrap();
    assert_eq!(rejection(&host, &core(r#"(func (export "f") (result i32))"#)).await.rule, "compile");
    still_serves(&host).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loads_of_the_same_bytes_compile_once() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let counted = dir.path().join("compile");
    let runs = dir.path().join("runs");
    let script = format!(
        "#!/bin/sh\necho run >>{}\nexec {} {}\n",
        runs.display(),
        env!("CARGO_BIN_EXE_hookgate"),
        hookgate::plugin::compile::SUBCOMMAND
    );
    fs::write(&counted, script).unwrap();
    fs::set_permissions(&counted, fs::Permissions::from_mode(0o700)).unwrap();
    for cache in [None, Some(dir.path().join("cache"))] {
        fs::write(&runs, "").unwrap();
        let mut settings = settings();
        settings.cache_dir = cache;
        settings.compiler = Compiler::Child { program: counted.clone(), args: Vec::new() };
        let host = Host::new(settings).unwrap();
        let loads = (0..8).map(|_| {
            let host = Arc::clone(&host);
            tokio::spawn(async move { host.load(&tenant(), good().into()).await.unwrap() })
        });
        let mut plugins = Vec::new();
        for load in loads.collect::<Vec<_>>() {
            plugins.push(load.await.unwrap());
        }
        assert_eq!(fs::read_to_string(&runs).unwrap(), "run\n");
        for plugin in &plugins {
            assert!(answer(plugin, 200, &[], "").await.result.is_ok());
        }
    }
}

#[tokio::test]
async fn a_compile_bomb_is_stopped_by_the_bounds_of_the_child() {
    let bomb = guests::bomb();
    let mut by_time = settings();
    by_time.compiler = child();
    by_time.compile.cpu_max = Duration::from_secs(1);
    let mut by_memory = settings();
    by_memory.compiler = child();
    by_memory.compile.memory_bytes_max = 256 << 20;
    for settings in [by_time, by_memory] {
        let host = Host::new(settings).unwrap();
        let rejected = rejection(&host, &bomb).await;
        assert_eq!(rejected.rule, "compile_limit", "{rejected}");
        still_serves(&host).await;
    }
}

/// Damaged components: refused or served, never a panic.
#[tokio::test]
async fn mutations_of_a_component_do_no_harm() {
    let whole = guests::transform_sends(&guests::Request { body: "x", ..Default::default() });
    let host = host();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut refused = 0;
    for _ in 0..150 {
        let mut wasm = whole.clone();
        for _ in 0..3 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let at = usize::try_from(state % wasm.len() as u64).unwrap();
            wasm[at] ^= 1 << (state >> 61);
        }
        match host.load(&tenant(), wasm.into()).await {
            Ok(plugin) => drop(transform(&plugin, "{}", "{}").await),
            Err(rejected) => {
                assert_ne!(rejected.rule, "host", "{rejected}");
                refused += 1;
            }
        }
    }
    assert!(refused > 20);
    still_serves(&host).await;
}
