//! Guests that do harm when they run. Each ends in a fault of a known kind, and the host goes on.

use super::*;
use hookgate::delivery::FaultKind;
use std::time::Instant;

const OK: &str = "i32.const 16";

fn spin() -> Vec<u8> {
    guests::classify_runs("(loop $l (br $l)) unreachable")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_attack_is_a_fault_of_its_kind() {
    use FaultKind::{Deadline, Memory, OutputTooLarge, Trap};
    let grow_and_fill = "(local $at i32)
        (loop $l
          (local.set $at (memory.grow (i32.const 16)))
          (if (i32.eq (local.get $at) (i32.const -1)) (then unreachable))
          (memory.fill (i32.shl (local.get $at) (i32.const 16)) (i32.const 1) (i32.const 0x100000))
          (br $l)) unreachable";
    let fill_forever =
        "(loop $l (memory.fill (i32.const 65536) (i32.const 1) (i32.const 0x1f0000)) (br $l)) unreachable";
    let recurse = "(func $deep (param i32) (result i32)
        (i32.add (call $deep (i32.add (local.get 0) (i32.const 1))) (call $deep (local.get 0))))";
    // A reference (delivered) whose pointer and length are as given.
    let reference = |ptr: u32, len: u32| {
        guests::classify_runs(&format!(
            "(i32.store8 (i32.const 24) (i32.const 1)) (i32.store (i32.const 28) (i32.const {ptr}))
             (i32.store (i32.const 32) (i32.const {len})) {OK}"
        ))
    };
    let store8 =
        |at: u32, value: u32| guests::classify_runs(&format!("(i32.store8 (i32.const {at}) (i32.const {value})) {OK}"));
    let logs = |level: u32, ptr: u32, len: u32| {
        guests::classify_runs(&format!("(call $log (i32.const {level}) (i32.const {ptr}) (i32.const {len})) {OK}"))
    };
    let headers = |count: u32| {
        let code =
            format!("(i32.store (i32.const 40) (i32.const 65536)) (i32.store (i32.const 44) (i32.const {count})) {OK}");
        guests::transform_with("", &code)
    };
    let cases = [
        ("a loop", spin(), Deadline),
        ("a loop over a long memory.fill", guests::classify_runs(fill_forever), Deadline),
        ("recursion", guests::classify_with(recurse, "(call $deep (i32.const 0))"), Trap),
        ("growing and filling", guests::classify_runs(grow_and_fill), Memory),
        ("unreachable", guests::classify_runs("unreachable"), Trap),
        ("a division by zero", guests::classify_runs("(i32.div_u (i32.const 1) (i32.const 0))"), Trap),
        ("a result out of bounds", guests::classify_runs("i32.const 0x7ffffff0"), Trap),
        ("a result that is not aligned", guests::classify_runs("i32.const 17"), Trap),
        ("a string out of bounds", reference(0x1f_fff0, 0x100), Trap),
        ("a string that wraps around", reference(0xffff_fff0, 0x100), Trap),
        (
            "text that is not UTF-8",
            guests::classify_with(
                "(data (i32.const 60000) \"\\ff\\fe\")",
                &format!(
                    "(i32.store8 (i32.const 24) (i32.const 1)) (i32.store (i32.const 28) (i32.const 60000))
             (i32.store (i32.const 32) (i32.const 2)) {OK}"
                ),
            ),
            Trap,
        ),
        ("neither ok nor error", store8(16, 2), Trap),
        ("no such verdict", store8(20, 3), Trap),
        ("no such option", store8(24, 2), Trap),
        ("1.5 MiB of reference", reference(65536, 0x18_0000), OutputTooLarge),
        (
            "24 MiB of reference",
            guests::classify_runs(&format!(
                "(drop (memory.grow (i32.const 448)))
                 (i32.store8 (i32.const 24) (i32.const 1)) (i32.store (i32.const 28) (i32.const 65536))
                 (i32.store (i32.const 32) (i32.const 0x1800000)) {OK}"
            )),
            OutputTooLarge,
        ),
        ("100,000 headers", headers(100_000), OutputTooLarge),
        ("1.5 MiB in one log line", logs(0, 65536, 0x18_0000), OutputTooLarge),
        ("a log line out of bounds", logs(0, 0x7fff_0000, 16), Trap),
        ("no such log level", logs(4, 65536, 1), Trap),
    ];
    let host = host();
    for (attack, wasm, kind) in cases {
        let plugin = load(&host, &wasm).await;
        assert_eq!(plugin.warnings().len(), 1, "{attack}: the trial call tells it");
        let began = Instant::now();
        let fault = fault(&plugin).await;
        assert_eq!(fault.kind, kind, "{attack}: {}", fault.detail);
        assert!(began.elapsed() < Duration::from_secs(5), "{attack} took {:?}", began.elapsed());
        assert!(!fault.detail.is_empty() && fault.detail.len() <= 1024, "{attack}");
        assert_eq!(plugin.consecutive_faults(), 1, "{attack}");
        still_serves(&host).await;
    }
}

#[tokio::test]
async fn the_allocator_of_the_guest_may_be_hostile_too() {
    let with_realloc = |code: &str| {
        let module = format!(
            r#"(module (memory (export "memory") 1)
              (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) {code})
              (func (export "{}") (param i32) (result i32) i32.const 16))"#,
            guests::CLASSIFY
        );
        guests::component("classify-only", &module)
    };
    let cases = [
        ("a loop", "(loop $l (br $l)) unreachable", FaultKind::Deadline),
        ("out of bounds", "i32.const 0x7ffffff0", FaultKind::Trap),
        ("not aligned", "i32.const 17", FaultKind::Trap),
        ("nothing left", "unreachable", FaultKind::Trap),
        ("at the very end", "i32.const 65535", FaultKind::Trap),
    ];
    let host = host();
    for (attack, code, kind) in cases {
        let plugin = load(&host, &with_realloc(code)).await;
        let fault = fault(&plugin).await;
        assert_eq!(fault.kind, kind, "{attack}: {}", fault.detail);
        still_serves(&host).await;
    }
}

#[tokio::test]
async fn the_deadline_is_the_setting_and_ends_on_time() {
    for millis in [20, 200] {
        let mut settings = settings();
        settings.limits.call_time_max = Duration::from_millis(millis);
        let host = Host::new(settings).unwrap();
        let plugin = load(&host, &spin()).await;
        let call = answer(&plugin, 200, &[], "").await;
        assert_eq!(call.result.unwrap_err().kind, FaultKind::Deadline);
        let most = Duration::from_millis(millis + 50);
        assert!(call.took >= Duration::from_millis(millis) && call.took < most, "{:?}", call.took);
    }
}

#[tokio::test]
async fn a_loop_leaves_the_thread_to_others() {
    // One thread for all: while the guest loops, this task goes on.
    let host = host();
    let plugin = load(&host, &spin()).await;
    let good = other(&host, &guests::classify_says(&Says::Delivered { reference: None })).await;
    let mut looping = std::pin::pin!(answer(&plugin, 200, &[], ""));
    let mut answers = 0;
    loop {
        tokio::select! {
            biased;
            call = &mut looping => {
                assert_eq!(call.result.unwrap_err().kind, FaultKind::Deadline);
                break;
            }
            call = answer(&good, 200, &[], "") => {
                assert!(call.result.is_ok());
                answers += 1;
            }
        }
    }
    assert!(answers > 5, "{answers} answers beside a loop of 100 ms");
}

/// As another tenant's.
async fn other(host: &Arc<Host>, wasm: &[u8]) -> Plugin {
    host.load(&"other".parse().unwrap(), wasm.to_vec().into()).await.unwrap()
}

#[tokio::test]
async fn memory_is_counted_over_growth_and_by_the_setting() {
    let grow = |pages: u32| {
        guests::classify_runs(&format!(
            "(if (i32.eq (memory.grow (i32.const {pages})) (i32.const -1)) (then unreachable)) {OK}"
        ))
    };
    let mut settings = settings();
    // The guest begins with 2 MiB: 32 pages more are allowed, 33 are not.
    settings.limits.memory_bytes_max = 4 << 20;
    let host = Host::new(settings).unwrap();
    let within = load(&host, &grow(32)).await;
    assert!(answer(&within, 200, &[], "").await.result.is_ok());
    let beyond = load(&host, &grow(33)).await;
    assert_eq!(fault(&beyond).await.kind, FaultKind::Memory);
    // A guest that takes a refusal well is none the worse for it.
    let polite = load(&host, &guests::classify_runs(&format!("(drop (memory.grow (i32.const 999))) {OK}"))).await;
    assert!(answer(&polite, 200, &[], "").await.result.is_ok());
}

#[tokio::test]
async fn nothing_is_left_for_the_next_call() {
    // Counts its calls in memory, in a global, and in a table; traps when it finds a trace of an earlier one.
    let code = format!(
        "(if (i32.load (i32.const 65000)) (then unreachable))
         (if (global.get $seen) (then unreachable))
         (if (i32.eqz (ref.is_null (table.get $t (i32.const 0)))) (then unreachable))
         (i32.store (i32.const 65000) (i32.const 1))
         (global.set $seen (i32.const 1))
         (table.set $t (i32.const 0) (ref.func $realloc))
         {OK}"
    );
    let fields = "(table $t 1 funcref) (elem declare func $realloc) (global $seen (mut i32) (i32.const 0))";
    let host = host();
    let plugin = load(&host, &guests::classify_with(fields, &code)).await;
    for _ in 0..50 {
        assert!(answer(&plugin, 200, &[], "secret of one call").await.result.is_ok());
    }
    // Another guest in the same slots finds zeroes all over its memory.
    let look = format!(
        "(local $at i32) (local.set $at (i32.const 262144))
         (loop $l
           (if (i32.load (local.get $at)) (then unreachable))
           (local.set $at (i32.add (local.get $at) (i32.const 4)))
           (br_if $l (i32.lt_u (local.get $at) (i32.const 0x200000)))) {OK}"
    );
    let dirty = format!("(memory.fill (i32.const 262144) (i32.const 0x5a) (i32.const 0x1c0000)) {OK}");
    let (look, dirty) = (guests::classify_runs(&look), guests::classify_runs(&dirty));
    let other = "other".parse().unwrap();
    let (look, dirty) = (host.load(&other, look.into()).await.unwrap(), load(&host, &dirty).await);
    for _ in 0..20 {
        assert!(answer(&dirty, 200, &[], "").await.result.is_ok());
        assert!(answer(&look, 200, &[], "").await.result.is_ok());
    }
}

#[tokio::test]
async fn a_flood_of_log_lines_is_cut_and_counted() {
    let text = "(data (i32.const 60000) \"line\\0a\\1b[2J\")";
    let code = format!(
        "(local $n i32)
         (loop $l
           (call $log (i32.const 2) (i32.const 60000) (i32.const 9))
           (local.set $n (i32.add (local.get $n) (i32.const 1)))
           (br_if $l (i32.lt_u (local.get $n) (i32.const 1000)))) {OK}"
    );
    let host = host();
    let plugin = load(&host, &guests::classify_with(text, &code)).await;
    let call = answer(&plugin, 200, &[], "").await;
    assert!(call.result.is_ok());
    assert_eq!((call.log.len(), call.log_lines_dropped), (32, 968));
    assert_eq!((call.log[0].level.as_str(), call.log[0].message.as_str()), ("warn", "line\\n\\u{1b}[2J"));

    // One long line, with the setting at 100 bytes.
    let mut settings = settings();
    settings.limits.log_line_bytes_max = 100;
    settings.limits.log_lines_max = 1;
    let host = Host::new(settings).unwrap();
    let long = format!(
        "(memory.fill (i32.const 65536) (i32.const 97) (i32.const 5000))
         (call $log (i32.const 3) (i32.const 65536) (i32.const 5000))
         (call $log (i32.const 3) (i32.const 65536) (i32.const 5)) {OK}"
    );
    let plugin = load(&host, &guests::classify_runs(&long)).await;
    let call = answer(&plugin, 200, &[], "").await;
    assert_eq!((call.log[0].message.len(), call.log.len(), call.log_lines_dropped), (100, 1, 1));
    // A guest that logs until its time is over: what it wrote is kept with the fault.
    let forever = "(loop $l (call $log (i32.const 0) (i32.const 65536) (i32.const 4)) (br $l)) unreachable";
    let plugin = load(&host, &guests::classify_runs(forever)).await;
    let call = answer(&plugin, 200, &[], "").await;
    assert_eq!(call.result.unwrap_err().kind, FaultKind::Deadline);
    assert!(call.log.len() == 1 && call.log_lines_dropped > 100);
}

#[tokio::test]
async fn twenty_faults_in_a_row_disable_a_version_until_it_is_loaded_again() {
    // Traps on an answer of more than 300, answers otherwise.
    let moody =
        format!("(if (i32.gt_u (i32.load16_u offset=76 (local.get 0)) (i32.const 300)) (then unreachable)) {OK}");
    let host = host();
    let wasm = guests::classify_runs(&moody);
    let plugin = load(&host, &wasm).await;
    let call = async |status| answer(&plugin, status, &[], "").await.result.map_err(|fault| fault.kind);
    for _ in 0..19 {
        assert_eq!(call(500).await, Err(FaultKind::Trap));
    }
    assert_eq!(plugin.consecutive_faults(), 19);
    assert!(call(200).await.is_ok());
    assert_eq!(plugin.consecutive_faults(), 0);
    for _ in 0..20 {
        assert_eq!(call(500).await, Err(FaultKind::Trap));
    }
    assert_eq!(call(200).await, Err(FaultKind::Unavailable));
    assert_eq!(plugin.consecutive_faults(), 20);
    let again = load(&host, &wasm).await;
    assert!(answer(&again, 200, &[], "").await.result.is_ok());
}

/// Eight endless calls of one tenant, while `meanwhile` is asked again and again; the kinds of their faults.
async fn eight_loops(plugin: &Arc<Plugin>, mut meanwhile: impl AsyncFnMut()) -> Vec<FaultKind> {
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let plugin = Arc::clone(plugin);
        calls.spawn_local(async move { answer(&plugin, 200, &[], "").await.result.unwrap_err().kind });
    }
    let mut kinds = Vec::new();
    while !calls.is_empty() {
        meanwhile().await;
        tokio::time::sleep(Duration::from_millis(1)).await; // poll: the loops are done
        while let Some(kind) = calls.try_join_next() {
            kinds.push(kind.unwrap());
        }
    }
    kinds
}

/// On one thread, so that what is counted can be seen.
fn counted(run: impl AsyncFnOnce()) -> String {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&recorder, || tokio::task::LocalSet::new().block_on(&runtime, run()));
    recorder.handle().render()
}

#[test]
fn a_tenant_that_fills_its_turns_waits_alone_and_it_shows() {
    let good = guests::classify_says(&Says::Delivered { reference: None });
    let text = counted(async || {
        let mut settings = settings();
        settings.calls_per_tenant_max = 3;
        settings.limits.call_time_max = Duration::from_millis(60);
        settings.wait_max = Duration::from_secs(60);
        let host = Host::new(settings).unwrap();
        let plugin = Arc::new(load(&host, &spin()).await);
        let other = other(&host, &good).await;
        let mut served = 0;
        let kinds = eight_loops(&plugin, async || {
            assert!(answer(&other, 200, &[], "").await.result.is_ok(), "another tenant's turns are its own");
            served += 1;
        });
        assert_eq!(kinds.await, [FaultKind::Deadline; 8]);
        assert!(served > 8, "{served} calls of another tenant beside eight loops");
    });
    let waited = "hookgate_plugin_waits_total{for=\"tenant\"} 5\n";
    assert!(text.contains(waited), "five of eight had to wait for three turns:\n{text}");
}

#[test]
fn who_waits_too_long_for_a_turn_is_unavailable() {
    counted(async || {
        let mut settings = settings();
        settings.calls_per_tenant_max = 1;
        settings.wait_max = Duration::from_millis(20);
        settings.limits.call_time_max = Duration::from_millis(100);
        let host = Host::new(settings).unwrap();
        let plugin = Arc::new(load(&host, &spin()).await);
        let kinds = eight_loops(&plugin, async || {}).await;
        let count = |kind| kinds.iter().filter(|k| **k == kind).count();
        assert_eq!((count(FaultKind::Deadline), count(FaultKind::Unavailable)), (1, 7), "{kinds:?}");
        assert_eq!(plugin.consecutive_faults(), 1, "to be kept waiting is no fault of the plugin");
    });
}

#[test]
fn tenants_take_turns_on_the_lane() {
    // Some ticks long, and so no call for the runtime.
    let long = "(local $n i32) (loop $l
        (local.set $n (i32.add (local.get $n) (i32.const 1)))
        (br_if $l (i32.lt_u (local.get $n) (i32.const 20000000))))";
    let long = guests::classify_runs(&format!("{long} {OK}"));
    let text = counted(async || {
        let mut settings = settings();
        settings.calls_per_tenant_max = 8;
        settings.wait_max = Duration::from_secs(60);
        let host = Host::new(settings).unwrap();
        let plugin = Arc::new(load(&host, &spin()).await);
        let other = other(&host, &long).await;
        let mut left = Vec::new();
        let kinds = eight_loops(&plugin, async || {
            if left.len() < 3 {
                let call = answer(&other, 200, &[], "").await;
                assert!(call.result.is_ok(), "{call:?}");
                left.push(plugin.consecutive_faults());
            }
        });
        assert_eq!(kinds.await, [FaultKind::Deadline; 8]);
        // 0.8 s of loops stand in the queue: who came later is done before.
        assert!(left.iter().all(|done| *done < 8), "loops that were done before each long call: {left:?}");
    });
    assert!(text.contains("hookgate_plugin_long_calls_total"), "{text}");
}

#[tokio::test]
async fn a_plugin_that_was_long_once_comes_back_by_quick_calls() {
    // Loops on an answer of more than 300, answers otherwise.
    let moody =
        format!("(if (i32.gt_u (i32.load16_u offset=76 (local.get 0)) (i32.const 300)) (then (loop $l (br $l)))) {OK}");
    let host = host();
    let plugin = load(&host, &guests::classify_runs(&moody)).await;
    let on_the_lane = async |status| {
        let before = plugin.long_calls();
        let result = answer(&plugin, status, &[], "").await.result;
        assert_eq!(result.is_ok(), status == 200);
        plugin.long_calls() > before
    };
    assert!(on_the_lane(500).await);
    let mut quick = 0;
    while on_the_lane(200).await {
        quick += 1;
        assert!(quick < 1000, "it does not come back");
    }
    assert!(quick >= 50, "it was trusted again after {quick} quick calls");
    assert!(on_the_lane(500).await, "what takes long is made again on the lane");
    assert!(on_the_lane(200).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_waits_for_takes_what_is_to_spare() {
    let mut settings = settings();
    settings.limits.call_time_max = Duration::from_millis(500);
    let host = Host::new(settings).unwrap();
    let kind = |call: Call<Verdict>| call.result.map_err(|fault| fault.kind);
    let aside = load(&host, &guests::classify_says(&Says::Delivered { reference: None })).await.aside();
    assert!(kind(answer(&aside, 200, &[], "").await).is_ok());
    // Of four slots two are taken: a third would leave less than half.
    let busy = Arc::new(load(&host, &spin()).await);
    let before = busy.long_calls();
    let calls: Vec<_> = (0..2)
        .map(|_| {
            let busy = Arc::clone(&busy);
            tokio::spawn(async move { answer(&busy, 200, &[], "").await.result.unwrap_err().kind })
        })
        .collect();
    // A call is counted once it has its turn.
    while busy.long_calls() < before + 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(kind(answer(&aside, 200, &[], "").await), Err(FaultKind::Unavailable), "it was called all the same");
    for call in calls {
        assert_eq!(call.await.unwrap(), FaultKind::Deadline);
    }
    assert!(kind(answer(&aside, 200, &[], "").await).is_ok());
    // However often one faults that is not in use, nothing is disabled.
    let wasm = guests::classify_runs("unreachable");
    for plugin in [load(&host, &wasm).await.aside(), load(&host, &wasm).await.on_trial()] {
        for _ in 0..2 * Plugin::FAULTS_MAX {
            assert_eq!(kind(answer(&plugin, 200, &[], "").await), Err(FaultKind::Trap));
        }
        assert_eq!((plugin.disabled_by(), plugin.consecutive_faults()), (None, 0));
    }
}

#[tokio::test]
async fn a_call_that_is_dropped_gives_its_slot_back() {
    let mut settings = settings();
    settings.calls_max = 1;
    settings.calls_per_tenant_max = 1;
    let host = Host::new(settings).unwrap();
    let plugin = load(&host, &spin()).await;
    for _ in 0..3 {
        let call = answer(&plugin, 200, &[], "");
        assert!(tokio::time::timeout(Duration::from_millis(5), call).await.is_err());
    }
    still_serves(&host).await;
}

#[test]
fn calls_and_faults_are_counted_but_for_the_trial() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let host = host();
            let plugin = load(&host, &guests::classify_runs("unreachable")).await;
            let counted = metrics.render();
            assert_eq!(plugin.warnings().len(), 1);
            assert!(!counted.contains("faults") && !counted.contains("call_seconds"), "{counted}");
            fault(&plugin).await;
            let plugin = load(&host, &guests::transform_skips("no")).await;
            transform(&plugin, "{}", "{}").await.result.unwrap();
            let large = transform(&plugin, "{}", vec![0; (256 << 10) + 1]).await.result.unwrap_err();
            assert_eq!(large.kind, FaultKind::InputTooLarge);
        });
    });
    let text = metrics.render();
    for line in [
        "hookgate_plugin_compilations_total 2",
        "hookgate_plugin_faults_total{kind=\"trap\"} 1",
        "hookgate_plugin_faults_total{kind=\"input_too_large\"} 1",
        "hookgate_plugin_call_seconds_count{call=\"classify\"} 1",
        "hookgate_plugin_call_seconds_count{call=\"transform\"} 1",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}
