//! Plugins made in the test itself: a core module in WebAssembly text becomes a component of a world of `wit/`.
//! About a millisecond each, no toolchain, no file.
//!
//! The canonical ABI puts both functions' arguments behind one pointer and takes a pointer to the result. Here every
//! guest answers with an image laid out beforehand at [`ANSWER`].

#![allow(dead_code, reason = "each test binary takes what it needs")]
#![allow(clippy::unwrap_used, reason = "a test ends at once when its guest cannot be made")]

use std::fmt::Write as _;
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

pub(crate) const WIT: &str = include_str!("../../wit/hookgate.wit");
pub(crate) const CLASSIFY: &str = "hookgate:plugin/classifier@1.0.0#classify";
pub(crate) const TRANSFORM: &str = "hookgate:plugin/transformer@1.0.0#transform";

/// Where the answer lies; its strings follow it.
pub(crate) const ANSWER: u32 = 16;
const STRINGS: u32 = 128;

/// A core module as a component of `world`.
pub(crate) fn component(world: &str, module: &str) -> Vec<u8> {
    component_of(WIT, world, module)
}

/// The same with another package text, for other versions and other types.
pub(crate) fn component_of(wit: &str, world: &str, module: &str) -> Vec<u8> {
    let mut wasm = wat::parse_str(module).unwrap();
    let mut resolve = Resolve::new();
    let package = resolve.push_str("plugin.wit", wit).unwrap();
    let world = resolve.select_world(&[package], Some(world)).unwrap();
    embed_component_metadata(&mut wasm, &resolve, world, StringEncoding::UTF8).unwrap();
    ComponentEncoder::default().module(&wasm).unwrap().validate(true).encode().unwrap()
}

/// A module with 2 MiB of memory, an allocator that only goes forward from 64 KiB, and what `fields` add.
pub(crate) fn module(fields: &str) -> String {
    format!(
        r#"(module
          (type $call (func (param i32) (result i32)))
          (import "hookgate:plugin/log@1.0.0" "log" (func $log (param i32 i32 i32)))
          (memory (export "memory") 32)
          (global $next (mut i32) (i32.const 65536))
          (func $realloc (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
            (local $at i32)
            (local.set $at (i32.and
              (i32.add (global.get $next) (i32.sub (local.get 2) (i32.const 1)))
              (i32.sub (i32.const 0) (local.get 2))))
            (global.set $next (i32.add (local.get $at) (local.get 3)))
            (local.get $at))
          {fields})"#
    )
}

/// A classify-only plugin whose function runs `code`; the code must leave an i32 or not end.
pub(crate) fn classify_runs(code: &str) -> Vec<u8> {
    classify_with("", code)
}

/// The same with further module fields before the function.
pub(crate) fn classify_with(fields: &str, code: &str) -> Vec<u8> {
    let function = format!(r#"{fields} (func (export "{CLASSIFY}") (type $call) {code})"#);
    component("classify-only", &module(&function))
}

/// What a guest's classify answers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Says<'a> {
    Delivered { reference: Option<&'a str> },
    Retryable { code: &'a str, after_ms: Option<u32>, whole_endpoint: bool },
    Terminal { code: &'a str, message: Option<&'a str> },
    Fault { code: &'a str, message: &'a str },
}

/// A classify-only plugin that always gives the same answer.
pub(crate) fn classify_says(says: &Says<'_>) -> Vec<u8> {
    classify_with(&classify_answer(says), "i32.const 16")
}

/// One function of many nested loops over many locals: small to send, ruinous to compile.
pub(crate) fn bomb() -> Vec<u8> {
    let (locals, loops) = (4_000, 4_000);
    let mut code = format!("(func (local {})", "i64 ".repeat(locals));
    for n in 0..loops {
        let _ = write!(code, "(loop (local.set {} (local.get {}))", n % locals, (n * 7 + 1) % locals);
    }
    for n in 0..loops {
        let _ = write!(code, "(br_if 0 (i64.eqz (local.get {}))))", (n * 13) % locals);
    }
    classify_with(&format!("{code})"), "unreachable")
}

/// The data segment with the answer, for guests that do something before they give it.
pub(crate) fn classify_answer(says: &Says<'_>) -> String {
    let mut image = Image::default();
    match *says {
        Says::Delivered { reference } => image.option(8, reference),
        Says::Retryable { code, after_ms, whole_endpoint } => {
            image.byte(4, 1);
            image.byte(8, u8::from(after_ms.is_some()));
            image.word(12, after_ms.unwrap_or(0));
            image.byte(16, u8::from(whole_endpoint));
            image.text(20, code);
        }
        Says::Terminal { code, message } => {
            image.byte(4, 2);
            image.text(8, code);
            image.option(16, message);
        }
        Says::Fault { code, message } => {
            image.byte(0, 1);
            image.text(4, code);
            image.text(12, message);
        }
    }
    image.data()
}

/// A request that a guest's transform gives back, as POST.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request<'a> {
    pub(crate) path_and_query: Option<&'a str>,
    pub(crate) headers: &'a [(&'a str, &'a str)],
    pub(crate) body: &'a str,
    pub(crate) options: &'a [(&'a str, &'a str)],
}

/// A transform-only plugin that always gives the same request.
pub(crate) fn transform_sends(request: &Request<'_>) -> Vec<u8> {
    transform_with(&transform_answer(request), "i32.const 16")
}

/// The data segment with the request, for guests that have more in them.
pub(crate) fn transform_answer(request: &Request<'_>) -> String {
    let mut image = Image::default();
    image.option(12, request.path_and_query);
    image.fields(24, request.headers);
    image.text(32, request.body);
    image.fields(40, request.options);
    image.data()
}

/// A transform-only plugin that skips every event.
pub(crate) fn transform_skips(code: &str) -> Vec<u8> {
    let mut image = Image::default();
    image.byte(4, 1);
    image.text(8, code);
    transform_with(&image.data(), "i32.const 16")
}

pub(crate) fn transform_with(fields: &str, code: &str) -> Vec<u8> {
    let function = format!(r#"{fields} (func (export "{TRANSFORM}") (type $call) {code})"#);
    component("transform-only", &module(&function))
}

/// Memory from [`ANSWER`] on. Offsets are those of the answer's own layout.
struct Image {
    bytes: Vec<u8>,
}

impl Default for Image {
    fn default() -> Self {
        Image { bytes: vec![0; (STRINGS - ANSWER) as usize] }
    }
}

impl Image {
    fn byte(&mut self, at: usize, value: u8) {
        self.bytes[at] = value;
    }

    fn word(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Appends to the strings; gives where it lies in the guest.
    fn put(&mut self, bytes: &[u8]) -> u32 {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        let at = ANSWER + u32::try_from(self.bytes.len()).unwrap();
        self.bytes.extend_from_slice(bytes);
        at
    }

    fn text(&mut self, at: usize, text: &str) {
        let lies = self.put(text.as_bytes());
        self.word(at, lies);
        self.word(at + 4, u32::try_from(text.len()).unwrap());
    }

    fn option(&mut self, at: usize, text: Option<&str>) {
        self.byte(at, u8::from(text.is_some()));
        self.text(at + 4, text.unwrap_or(""));
    }

    fn fields(&mut self, at: usize, fields: &[(&str, &str)]) {
        let mut rows = Vec::new();
        for (name, value) in fields {
            for text in [name, value] {
                rows.extend(self.put(text.as_bytes()).to_le_bytes());
                rows.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
            }
        }
        let lies = self.put(&rows);
        self.word(at, lies);
        self.word(at + 4, u32::try_from(fields.len()).unwrap());
    }

    fn data(&self) -> String {
        assert!(self.bytes.len() < 60_000, "the answer must fit below the allocator");
        let mut text = format!("(data (i32.const {ANSWER}) \"");
        for byte in &self.bytes {
            write!(text, "\\{byte:02x}").unwrap();
        }
        text + "\")"
    }
}
