//! A test build in which the process can be made to die at named points: set `HOOKGATE_CRASH_POINTS` when building.
//! Every other build has none of it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=HOOKGATE_CRASH_POINTS");
    println!("cargo::rustc-check-cfg=cfg(crash_points)");
    if std::env::var_os("HOOKGATE_CRASH_POINTS").is_some() {
        println!("cargo::rustc-cfg=crash_points");
    }
}
