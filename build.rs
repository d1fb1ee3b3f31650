//! A test build in which the process can be made to die at named points: set `HOOKGATE_CRASH_POINTS` when building.
//! Every other build has none of it. And the list of the built-in signature schemes: the files of their directory.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=HOOKGATE_CRASH_POINTS");
    println!("cargo::rustc-check-cfg=cfg(crash_points)");
    if env::var_os("HOOKGATE_CRASH_POINTS").is_some() {
        println!("cargo::rustc-cfg=crash_points");
    }
    schemes()
}

/// Writes a table of name and text, in the order of names.
fn schemes() -> io::Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/verify/schemes");
    println!("cargo::rerun-if-changed={}", directory.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(&directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            files.push((name, path));
        }
    }
    files.sort();
    let mut table = "[\n".to_owned();
    for (name, path) in &files {
        writeln!(table, "    ({name:?}, include_str!({:?})),", path.display().to_string()).map_err(io::Error::other)?;
    }
    table.push_str("]\n");
    let out = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("cargo says where files go"))?;
    fs::write(Path::new(&out).join("schemes.rs"), table)
}
