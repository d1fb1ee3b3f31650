//! Every bound there is, and who breaks it. The list is the host's own: a bound without a breaker fails here.
//!
//! `cargo test --test plugins every_bound -- --nocapture` prints the table of `docs/plugins.md`, as measured.

use super::*;
use std::time::Instant;

const OK: &str = "i32.const 16";

/// What became of it: the fault's kind, the rule of the refusal, or what was cut.
async fn broken(bound: &str) -> Option<(&'static str, String)> {
    let host = host();
    let limits = *host.limits(&tenant());
    let classify =
        async |code: &str| fault(&load(&host, &guests::classify_runs(code)).await).await.kind.as_str().to_owned();
    let core = |fields: &str| load::core(fields);
    let refused = async |wasm: Vec<u8>| rejection(&host, &wasm).await.rule.to_owned();
    let terminal = |code: &str| guests::classify_says(&Says::Terminal { code, message: None });
    let kind = async |wasm: Vec<u8>| fault(&load(&host, &wasm).await).await.kind.as_str().to_owned();
    let instances = |count: usize, module: &str| {
        load::shell(&format!("(core module $m {module}) {}", "(core instance (instantiate $m))".repeat(count)))
    };
    let headers = |bytes: usize| {
        let value = "v".repeat(bytes);
        guests::transform_sends(&guests::Request { headers: &[("x", &value)], ..Default::default() })
    };
    Some(match bound {
        "component_bytes_max" => {
            let mut long = load::good();
            long.resize(limits.component_bytes_max + 1, 0);
            ("a component of one byte more", refused(long).await)
        }
        "call_time_max (milliseconds)" => ("an endless loop", classify("(loop $l (br $l)) unreachable").await),
        "memory_bytes_max" => (
            "memory.grow until it is refused",
            classify("(loop $l (br_if $l (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) unreachable").await,
        ),
        "input_bytes_max" => {
            let plugin = load(&host, &guests::transform_skips("no")).await;
            let call = transform(&plugin, "{}", vec![0; limits.input_bytes_max + 1]).await;
            ("an event of one byte more", call.result.unwrap_err().kind.as_str().to_owned())
        }
        "config_bytes_max" => {
            let plugin = load(&host, &guests::transform_skips("no")).await;
            let call = transform(&plugin, &" ".repeat(hookgate::plugin::CONFIG_BYTES_MAX + 1), "{}").await;
            ("a configuration of one byte more", call.result.unwrap_err().kind.as_str().to_owned())
        }
        "response_bytes_max" => {
            // Traps when it is given more of the body than is allowed, or is not told that there was more. The
            // response follows the variant's tag at 72.
            let code = format!(
                "(if (i32.ne (i32.load offset=92 (local.get 0)) (i32.const {})) (then unreachable))
                 (if (i32.ne (i32.load8_u offset=96 (local.get 0)) (i32.const 1)) (then unreachable)) {OK}",
                limits.response_bytes_max
            );
            let plugin = load(&host, &guests::classify_runs(&code)).await;
            let call = answer(&plugin, 200, &[], &"x".repeat(limits.response_bytes_max + 1)).await;
            assert!(call.result.is_ok(), "{call:?}");
            ("an answer of one byte more", "cut, and told so".to_owned())
        }
        "output_bytes_max" => {
            let code = format!(
                "(i32.store8 (i32.const 24) (i32.const 1)) (i32.store (i32.const 28) (i32.const 65536))
                (i32.store (i32.const 32) (i32.const {})) {OK}",
                limits.output_bytes_max + 1
            );
            ("a text of one byte more", classify(&code).await)
        }
        "headers_max" => {
            let many = vec![("x", "1"); limits.headers_max + 1];
            (
                "one header more",
                kind(guests::transform_sends(&guests::Request { headers: &many, ..Default::default() })).await,
            )
        }
        "header_bytes_max" => ("headers of one byte more", kind(headers(limits.header_bytes_max)).await),
        "log_lines_max" => {
            let code = format!(
                "(local $n i32) (loop $l (call $log (i32.const 0) (i32.const 65536) (i32.const 4))
                (local.set $n (i32.add (local.get $n) (i32.const 1)))
                (br_if $l (i32.lt_u (local.get $n) (i32.const 1000)))) {OK}"
            );
            let call = answer(&load(&host, &guests::classify_runs(&code)).await, 200, &[], "").await;
            assert!(call.result.is_ok() && call.log.len() == limits.log_lines_max);
            ("1,000 lines", format!("cut, {} dropped", call.log_lines_dropped))
        }
        "log_line_bytes_max" => {
            let code = format!(
                "(memory.fill (i32.const 65536) (i32.const 97) (i32.const 100000))
                (call $log (i32.const 0) (i32.const 65536) (i32.const 100000)) {OK}"
            );
            let call = answer(&load(&host, &guests::classify_runs(&code)).await, 200, &[], "").await;
            assert_eq!(call.log[0].message.len(), limits.log_line_bytes_max);
            ("a line of 100,000 bytes", "cut".to_owned())
        }
        "calls_per_tenant_max" => {
            let mut settings = settings();
            settings.calls_per_tenant_max = 1;
            settings.wait_max = Duration::from_millis(1);
            let host = Host::new(settings).unwrap();
            let plugin = load(&host, &guests::classify_runs("(loop $l (br $l)) unreachable")).await;
            let (_, late) = tokio::join!(answer(&plugin, 200, &[], ""), answer(&plugin, 200, &[], ""));
            ("a call more", late.result.unwrap_err().kind.as_str().to_owned())
        }
        "compile.cpu_max (milliseconds)" | "compile.memory_bytes_max" => {
            let mut settings = settings();
            settings.compiler = child();
            if bound == "compile.memory_bytes_max" {
                settings.compile.memory_bytes_max = 256 << 20;
            } else {
                settings.compile.cpu_max = Duration::from_secs(1);
            }
            let host = Host::new(settings).unwrap();
            ("4,000 nested loops over 4,000 locals", rejection(&host, &guests::bomb()).await.rule.to_owned())
        }
        "path and query, bytes" => {
            let path = format!("/{}", "a".repeat(2048));
            let request = guests::Request { path_and_query: Some(&path), ..Default::default() };
            ("a path of one byte more", kind(guests::transform_sends(&request)).await)
        }
        "reference, bytes" => {
            let says = Says::Delivered { reference: Some(&"r".repeat(513)) };
            ("a reference of one byte more", kind(guests::classify_says(&says)).await)
        }
        "reason code, bytes" => ("a code of one byte more", kind(terminal(&"a".repeat(Reason::BYTES_MAX + 1))).await),
        "stack, bytes" => {
            let deep = "(func $deep (param i32) (result i32)
                (i32.add (call $deep (i32.add (local.get 0) (i32.const 1))) (call $deep (local.get 0))))";
            ("recursion without end", kind(guests::classify_with(deep, "(call $deep (i32.const 0))")).await)
        }
        "memories" => ("five memories", refused(instances(5, "(memory 1)")).await),
        "memories of a module" => ("two memories in a module", refused(core("(memory 1) (memory 1)")).await),
        "tables" => ("65 tables", refused(instances(33, "(table 1 funcref) (table 1 funcref)")).await),
        "tables of a module" => ("three tables in a module", refused(core(&"(table 1 funcref)".repeat(3))).await),
        "table elements" => ("a table of 20,001", refused(core("(table 20001 funcref)")).await),
        "core instances" => ("65 instances", refused(instances(65, "")).await),
        "an instance's own data, bytes" => {
            ("100,000 globals", refused(core(&"(global i64 (i64.const 0))".repeat(100_000))).await)
        }
        "faults in a row" => {
            let plugin = load(&host, &guests::classify_runs("unreachable")).await;
            for _ in 0..Plugin::FAULTS_MAX {
                assert_eq!(fault(&plugin).await.kind.as_str(), "trap");
            }
            ("a trap in every call", fault(&plugin).await.kind.as_str().to_owned())
        }
        "imports beside log" => {
            ("an import of WASI", refused(load::shell(r#"(import "wasi:io/poll@0.2.6" (instance))"#)).await)
        }
        _ => return None,
    })
}

#[tokio::test]
async fn every_bound_has_a_component_that_breaks_it() {
    const FAULTS: [&str; 14] = [
        "size",
        "deadline",
        "memory",
        "input_too_large",
        "cut, and told so",
        "output_too_large",
        "cut, 968 dropped",
        "cut",
        "unavailable",
        "compile_limit",
        "bad_output",
        "trap",
        "resources",
        "imports",
    ];
    let mut table = String::from("| bound | | broken by | comes to | after |\n|---|---|---|---|---|\n");
    for (bound, most) in settings().bounds() {
        let began = Instant::now();
        let Some((by, came_to)) = broken(bound).await else { panic!("nobody breaks {bound}") };
        assert!(FAULTS.contains(&came_to.as_str()), "{bound}: {by} came to {came_to}");
        let after = began.elapsed();
        table += &format!("| {bound} | {most} | {by} | {came_to} | {:.1} ms |\n", after.as_secs_f64() * 1e3);
    }
    println!("{table}");
    still_serves(&host()).await;
}
