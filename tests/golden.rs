//! Golden files: what was agreed outside this code, and has to stay so.

#[path = "golden/signatures.rs"]
mod signatures;
