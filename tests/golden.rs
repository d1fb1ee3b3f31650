//! Golden files: what was agreed outside this code, and has to stay so.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

#[path = "golden/signatures.rs"]
mod signatures;
#[path = "golden/signatures_code.rs"]
mod signatures_code;
#[path = "golden/verification_page.rs"]
mod verification_page;
