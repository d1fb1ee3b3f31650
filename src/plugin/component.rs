//! From a core module to a component, for toolchains that leave the former: no further tool is needed beside a
//! language's own.

use super::Rejected;
use wasmparser::Parser;
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// The text of the package that plugins are built against.
pub const WIT: &str = include_str!("../../wit/hookgate.wit");

/// Answers all of WASI preview 1 without any capability, for C and Go whose libraries ask for it: no arguments, no
/// environment, no files, a clock that stands still. Made of `null-adapter.wat`.
const NULL_ADAPTER: &[u8] = include_bytes!("null-adapter.wasm");

/// A world of the package.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum World {
    TransformOnly,
    ClassifyOnly,
    #[default]
    Plugin,
}

impl World {
    pub const fn as_str(self) -> &'static str {
        match self {
            World::TransformOnly => "transform-only",
            World::ClassifyOnly => "classify-only",
            World::Plugin => "plugin",
        }
    }
}

/// Makes a component of a core module; a component stays as it is.
///
/// A module without type information of its own (C without the generated object file) is taken to be of `world`.
pub fn componentize(wasm: Vec<u8>, world: World) -> Result<Vec<u8>, Rejected> {
    if Parser::is_component(&wasm) {
        return Ok(wasm);
    }
    encoded(wasm, world).map_err(|e| Rejected {
        rule: "format",
        finding: format!("no component can be made of it: {e:#}"),
        remedy: "export what the world in wit/hookgate.wit says, and import its log alone".into(),
    })
}

fn encoded(mut wasm: Vec<u8>, world: World) -> anyhow::Result<Vec<u8>> {
    if !has_types(&wasm)? {
        let mut resolve = Resolve::new();
        let package = resolve.push_str("hookgate.wit", WIT)?;
        let world = resolve.select_world(&[package], Some(world.as_str()))?;
        embed_component_metadata(&mut wasm, &resolve, world, StringEncoding::UTF8)?;
    }
    ComponentEncoder::default().validate(true).module(&wasm)?.adapter("wasi_snapshot_preview1", NULL_ADAPTER)?.encode()
}

/// Whether a bindings generator left its section, as those for Rust do.
fn has_types(wasm: &[u8]) -> anyhow::Result<bool> {
    for payload in Parser::new(0).parse_all(wasm) {
        if let wasmparser::Payload::CustomSection(section) = payload?
            && section.name().starts_with("component-type")
        {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::{Exports, Limits, look};

    #[test]
    fn the_null_adapter_is_made_of_its_text() {
        let text = include_str!("null-adapter.wat");
        assert!(wat::parse_str(text).unwrap() == NULL_ADAPTER, "assemble null-adapter.wat again");
    }

    fn module(more: &str) -> Vec<u8> {
        let text = format!(
            r#"(module {more}
              (memory (export "memory") 1)
              (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) i32.const 0)
              (func (export "hookgate:plugin/classifier@1.0.0#classify") (param i32) (result i32) i32.const 0))"#
        );
        wat::parse_str(text).unwrap()
    }

    #[test]
    fn a_module_becomes_a_component_of_its_world() {
        let component = componentize(module(""), World::ClassifyOnly).unwrap();
        let exports = look(&component, &Limits::default()).unwrap();
        assert_eq!(exports, Exports { transform: false, classify: true });
        assert_eq!(componentize(component.clone(), World::Plugin).unwrap(), component);
    }

    #[test]
    fn preview_1_is_answered_and_nothing_else() {
        let wasi = r#"(import "wasi_snapshot_preview1" "fd_write" (func (param i32 i32 i32 i32) (result i32)))"#;
        let component = componentize(module(wasi), World::ClassifyOnly).unwrap();
        look(&component, &Limits::default()).unwrap();
        let foreign = r#"(import "env" "system" (func (param i32) (result i32)))"#;
        let refused = componentize(module(foreign), World::ClassifyOnly).unwrap_err();
        assert!(refused.rule == "format" && refused.finding.contains("env"), "{refused}");
        let refused = componentize(module(""), World::Plugin).unwrap_err();
        assert!(refused.finding.contains("transform"), "{refused}");
        assert!(componentize(b"\0asm\x01\0\0\0\x05".to_vec(), World::Plugin).is_err());
    }
}
