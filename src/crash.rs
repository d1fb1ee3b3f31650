//! Named points at which a test build can be made to die. In every other build they are nothing at all.

/// Ends the process without any clean-up when `HOOKGATE_CRASH_AT` names this point: `name`, or `name:n` for the n-th
/// time it is reached.
#[cfg(crash_points)]
pub fn point(name: &str) {
    use std::io::Write as _;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static CHOSEN: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static REACHED: AtomicU64 = AtomicU64::new(0);
    let chosen = CHOSEN.get_or_init(|| {
        let text = std::env::var_os("HOOKGATE_CRASH_AT")?.into_string().ok()?;
        let (name, nth) = text.split_once(':').unwrap_or((&text, "1"));
        Some((name.to_owned(), nth.parse().unwrap_or(1)))
    });
    if let Some((at, nth)) = chosen
        && at == name
        && REACHED.fetch_add(1, Ordering::Relaxed) + 1 == *nth
    {
        let _ = writeln!(std::io::stderr(), "crash point {name}");
        std::process::abort();
    }
}

#[cfg(not(crash_points))]
#[inline(always)]
pub fn point(_name: &str) {}
