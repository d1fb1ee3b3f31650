//! Plugins made for a run: those that do their worst to whoever shares the gateway with them, the emptiest one, and
//! many that differ in nothing but their digest.

use crate::guests;
use crate::wire;
use std::path::{Path, PathBuf};

/// What a hostile plugin does with its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attack {
    Spin,
    Allocate,
    Recurse,
    FloodLogs,
    /// More output than is allowed: a fault.
    HugeOutput,
    /// As much output as is allowed: sent, and kept on the attempt.
    LargeOutput,
    Trap,
}

/// The answer that the guest's memory of zeroes is: a POST without a body.
const SENDS: &str = "i32.const 16";

impl Attack {
    pub(crate) const ALL: [Attack; 7] = [
        Attack::Spin,
        Attack::Allocate,
        Attack::Recurse,
        Attack::FloodLogs,
        Attack::HugeOutput,
        Attack::LargeOutput,
        Attack::Trap,
    ];

    /// About as many events a second as a plugin of the kind can be called for, for hours.
    pub(crate) const fn per_second(self) -> f64 {
        match self {
            // A call takes the tenth of a second that it may.
            Attack::Spin | Attack::FloodLogs => 9.0,
            Attack::Allocate | Attack::LargeOutput => 20.0,
            Attack::Recurse | Attack::HugeOutput | Attack::Trap => 100.0,
        }
    }

    /// Nine of ten events are met with the attack, and one with an answer: so it is never disabled.
    pub(crate) fn write(self, dir: &Path) -> std::io::Result<PathBuf> {
        let (fields, code) = match self {
            Attack::Spin => ("", "(loop $l (br $l)) unreachable".to_owned()),
            Attack::Allocate => (
                "",
                "(loop $l
                   (local.set $at (memory.grow (i32.const 16)))
                   (if (i32.eq (local.get $at) (i32.const -1)) (then unreachable))
                   (memory.fill (i32.shl (local.get $at) (i32.const 16)) (i32.const 1) (i32.const 0x100000))
                   (br $l)) unreachable"
                    .to_owned(),
            ),
            Attack::Recurse => (
                "(func $deep (param i32) (result i32)
                   (i32.add (call $deep (i32.add (local.get 0) (i32.const 1))) (call $deep (local.get 0))))",
                "(call $deep (i32.const 0))".to_owned(),
            ),
            Attack::FloodLogs => (
                "",
                "(loop $l (call $log (i32.const 2) (i32.const 131072) (i32.const 1024)) (br $l)) unreachable"
                    .to_owned(),
            ),
            Attack::HugeOutput => ("", format!("(drop (memory.grow (i32.const 448))) {}", body(24 << 20))),
            Attack::LargeOutput => ("", body(1_000_000)),
            Attack::Trap => ("", "unreachable".to_owned()),
        };
        let last = wire::SEQ_AT + wire::SEQ_DIGITS - 1;
        let code = format!(
            "(local $at i32)
             (if (i32.eq (i32.load8_u offset={last} (i32.load offset=40 (local.get 0))) (i32.const 48))
               (then (return ({SENDS}))))
             {code}"
        );
        write(dir, "hostile", &guests::transform_with(fields, &code))
    }
}

/// Answers with a body of that many bytes. In the answer the body's place and length follow path and headers.
fn body(bytes: u32) -> String {
    format!("(i32.store (i32.const 48) (i32.const 65536)) (i32.store (i32.const 52) (i32.const {bytes})) {SENDS}")
}

/// A plugin whose `classify` does nothing at all.
pub(crate) fn emptiest() -> Vec<u8> {
    guests::classify_runs(SENDS)
}

/// Small to send, ruinous to compile, and another for each number.
pub(crate) fn bomb(number: u32) -> Vec<u8> {
    [guests::bomb(), named(number)].concat()
}

/// `wasm` with a custom section of its own: another digest, and the same code.
pub(crate) fn variant(wasm: &[u8], dir: &Path, number: u32) -> std::io::Result<PathBuf> {
    write(dir, &format!("bench-{number:08}"), &[wasm, &named(number)].concat())
}

/// A custom section.
fn named(number: u32) -> Vec<u8> {
    let name = format!("bench-{number:08}");
    let length = u8::try_from(name.len()).unwrap_or(0);
    [&[0, length + 1, length], name.as_bytes()].concat()
}

fn write(dir: &Path, name: &str, wasm: &[u8]) -> std::io::Result<PathBuf> {
    let file = dir.join(format!("{name}.wasm"));
    std::fs::write(&file, wasm)?;
    Ok(file)
}
