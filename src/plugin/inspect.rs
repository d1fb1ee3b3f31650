//! What can be said of an upload without compiling it: that it is a component, and what it asks for and offers.

use super::{Exports, Limits, Rejected};
use wasmparser::{Parser, Payload};

const PACKAGE: &str = "hookgate:plugin/";
const OTHERWISE: &str =
    "build it as a component of a world in wit/hookgate.wit; plugins/README.md has a recipe for each language";

/// Refuses what is too large, is no component, imports more than the package has, or offers nothing of it.
/// What can be said of a component without compiling it: what is wrong with it, or which exports it has.
pub fn look(wasm: &[u8], limits: &Limits) -> Result<Exports, Rejected> {
    inspect(wasm, limits)
}

pub(super) fn inspect(wasm: &[u8], limits: &Limits) -> Result<Exports, Rejected> {
    if wasm.len() > limits.component_bytes_max {
        return Err(Rejected {
            rule: "size",
            finding: format!("{} bytes; at most {} are allowed", wasm.len(), limits.component_bytes_max),
            remedy: "build for size (opt-level = \"s\", lto, strip), or ask the operator for a larger grant".into(),
        });
    }
    if !Parser::is_component(wasm) {
        let finding = if Parser::is_core_wasm(wasm) {
            "this is a core module, not a component".into()
        } else if wasm.first() == Some(&b'(') || wasm.starts_with(b";;") {
            "this is WebAssembly text, not a binary component".into()
        } else if wasm.is_empty() {
            "the upload is empty".into()
        } else {
            format!("not WebAssembly: it begins with {:02x?}", &wasm[..wasm.len().min(4)])
        };
        let remedy = if Parser::is_core_wasm(wasm) {
            "turn it into a component: wasm-tools component new module.wasm -o plugin.wasm".into()
        } else {
            OTHERWISE.into()
        };
        return Err(Rejected { rule: "format", finding, remedy });
    }
    let mut found = Exports { transform: false, classify: false };
    let mut depth = 0usize;
    for payload in Parser::new(0).parse_all(wasm) {
        let payload = payload.map_err(|e| malformed(&e))?;
        match payload {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    known_import(import.map_err(|e| malformed(&e))?.name.name)?;
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    note_export(export.map_err(|e| malformed(&e))?.name.name, &mut found)?;
                }
            }
            _ => {}
        }
    }
    if found.transform || found.classify {
        return Ok(found);
    }
    Err(Rejected {
        rule: "exports",
        finding: "it exports neither hookgate:plugin/transformer@1 nor hookgate:plugin/classifier@1".into(),
        remedy: OTHERWISE.into(),
    })
}

fn malformed(error: &wasmparser::BinaryReaderError) -> Rejected {
    Rejected { rule: "format", finding: format!("damaged: {error}"), remedy: "build it again".into() }
}

fn known_import(name: &str) -> Result<(), Rejected> {
    let Some(rest) = name.strip_prefix(PACKAGE) else {
        let shown = name.chars().take(100).collect::<String>().escape_debug().to_string();
        return Err(Rejected {
            rule: "imports",
            finding: format!("it imports {shown}; a plugin can import hookgate:plugin/log alone"),
            remedy: "build it without WASI. Rust: target wasm32-unknown-unknown; JavaScript and Python: --stub-wasi; \
                     Go, C and other WASI output: wasm-tools component new --adapt with the null adapter"
                .into(),
        });
    };
    match interface(rest) {
        Some(("log" | "types", true)) => Ok(()),
        Some(("log" | "types", false)) => Err(version(name)),
        _ => Err(Rejected {
            rule: "imports",
            finding: format!("it imports {}, which this host does not have", name.escape_debug()),
            remedy: "build it against wit/hookgate.wit of this host".into(),
        }),
    }
}

fn note_export(name: &str, found: &mut Exports) -> Result<(), Rejected> {
    let Some(rest) = name.strip_prefix(PACKAGE) else { return Ok(()) };
    match interface(rest) {
        Some(("transformer", true)) => found.transform = true,
        Some(("classifier", true)) => found.classify = true,
        Some(("transformer" | "classifier", false)) => return Err(version(name)),
        _ => {}
    }
    Ok(())
}

/// The interface's name, and whether its version is one that this host serves: any 1.x.
fn interface(rest: &str) -> Option<(&str, bool)> {
    let (name, version) = rest.split_once('@')?;
    Some((name, version.split('.').next() == Some("1") && !version.contains('-')))
}

fn version(name: &str) -> Rejected {
    Rejected {
        rule: "version",
        finding: format!("it is built for {}; this host serves hookgate:plugin 1.x", name.escape_debug()),
        remedy: "build it against wit/hookgate.wit of this host".into(),
    }
}
