//! What can be said of an upload without compiling it: that it is a component, and what it asks for and offers.

use super::{Exports, Limits, Rejected};
use wasmparser::{Parser, Payload};

const PACKAGE: &str = "hookgate:plugin/";
const OTHERWISE: &str =
    "build it as a component of a world in wit/hookgate.wit; plugins/README.md has a recipe for each language";

/// At most so many imports and exports of a component are listed, and as many refusals.
const LISTED_MAX: usize = 64;

/// What a component asks for and offers, and all that is wrong with it, the first first.
#[derive(Debug)]
pub struct Survey {
    /// Names, those of the package and others.
    pub imports: Vec<String>,
    /// Likewise.
    pub exports: Vec<String>,
    pub found: Exports,
    pub refusals: Vec<Rejected>,
}

/// What can be said of a component without compiling it: what is wrong with it, or which exports it has.
pub fn look(wasm: &[u8], limits: &Limits) -> Result<Exports, Rejected> {
    if let Some(refusal) = too_large(wasm, limits) {
        return Err(refusal);
    }
    let survey = survey(wasm, limits);
    survey.refusals.into_iter().next().map_or(Ok(survey.found), Err)
}

/// Finds what is too large, is no component, imports more than the package has, or offers nothing of it.
pub fn survey(wasm: &[u8], limits: &Limits) -> Survey {
    let mut survey = Survey {
        imports: Vec::new(),
        exports: Vec::new(),
        found: Exports { transform: false, classify: false },
        refusals: Vec::new(),
    };
    if let Some(refusal) = too_large(wasm, limits) {
        survey.refuse(refusal);
    }
    if let Err(refusal) = survey.read(wasm) {
        survey.refuse(refusal);
    } else if !survey.found.transform && !survey.found.classify && survey.refusals.iter().all(|r| r.rule != "version") {
        survey.refuse(Rejected {
            rule: "exports",
            finding: "it exports neither hookgate:plugin/transformer@1 nor hookgate:plugin/classifier@1".into(),
            remedy: OTHERWISE.into(),
        });
    }
    survey
}

impl Survey {
    fn refuse(&mut self, refusal: Rejected) {
        if self.refusals.len() < LISTED_MAX {
            self.refusals.push(refusal);
        }
    }

    fn read(&mut self, wasm: &[u8]) -> Result<(), Rejected> {
        if !Parser::is_component(wasm) {
            return Err(no_component(wasm));
        }
        let mut depth = 0usize;
        for payload in Parser::new(0).parse_all(wasm) {
            let payload = payload.map_err(|e| malformed(&e))?;
            match payload {
                Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
                Payload::End(_) => depth = depth.saturating_sub(1),
                Payload::ComponentImportSection(section) if depth == 0 => {
                    for import in section {
                        let name = import.map_err(|e| malformed(&e))?.name.name;
                        list(&mut self.imports, name);
                        if let Err(refusal) = known_import(name) {
                            self.refuse(refusal);
                        }
                    }
                }
                Payload::ComponentExportSection(section) if depth == 0 => {
                    for export in section {
                        let name = export.map_err(|e| malformed(&e))?.name.name;
                        list(&mut self.exports, name);
                        if let Err(refusal) = note_export(name, &mut self.found) {
                            self.refuse(refusal);
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn too_large(wasm: &[u8], limits: &Limits) -> Option<Rejected> {
    (wasm.len() > limits.component_bytes_max).then(|| Rejected {
        rule: "size",
        finding: format!("{} bytes; at most {} are allowed", wasm.len(), limits.component_bytes_max),
        remedy: "build for size (opt-level = \"s\", lto, strip), or ask the operator for a larger grant".into(),
    })
}

fn list(names: &mut Vec<String>, name: &str) {
    if names.len() < LISTED_MAX {
        names.push(shown(name));
    }
}

fn shown(name: &str) -> String {
    name.chars().take(100).collect::<String>().escape_debug().to_string()
}

fn no_component(wasm: &[u8]) -> Rejected {
    let finding = if Parser::is_core_wasm(wasm) {
        "this is a core module, not a component".into()
    } else if wasm.first() == Some(&b'(') || wasm.starts_with(b";;") {
        "this is WebAssembly text, not a binary component".into()
    } else if wasm.is_empty() {
        "the upload is empty".into()
    } else {
        format!("not WebAssembly: it begins with `{}`", wasm[..wasm.len().min(16)].escape_ascii())
    };
    let remedy = if Parser::is_core_wasm(wasm) {
        "turn it into a component: `hookgate plugin build`, or wasm-tools component new module.wasm -o plugin.wasm"
            .into()
    } else {
        OTHERWISE.into()
    };
    Rejected { rule: "format", finding, remedy }
}

fn malformed(error: &wasmparser::BinaryReaderError) -> Rejected {
    Rejected { rule: "format", finding: format!("damaged: {error}"), remedy: "build it again".into() }
}

fn known_import(name: &str) -> Result<(), Rejected> {
    let Some(rest) = name.strip_prefix(PACKAGE) else {
        let shown = shown(name);
        return Err(Rejected {
            rule: "imports",
            finding: format!("it imports {shown}; a plugin can import hookgate:plugin/log alone"),
            remedy: "build it without WASI. Rust: target wasm32-unknown-unknown; JavaScript and Python: --stub-wasi; \
                     C: `hookgate plugin build`; Go and other WASI output: wasm-tools component new --adapt with \
                     src/plugin/null-adapter.wasm"
                .into(),
        });
    };
    match interface(rest) {
        Some(("log" | "types", true)) => Ok(()),
        Some(("log" | "types", false)) => Err(version(name)),
        _ => Err(Rejected {
            rule: "imports",
            finding: format!("it imports {}, which this host does not have", shown(name)),
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
        finding: format!("it is built for {}; this host serves hookgate:plugin 1.x", shown(name)),
        remedy: "build it against wit/hookgate.wit of this host: `hookgate plugin new` writes it".into(),
    }
}
