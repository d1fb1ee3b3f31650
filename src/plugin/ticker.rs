//! The clock of running guests: counts the engine's epochs while a call is under way, and rests otherwise.

use super::engine::TICK;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::Duration;
use wasmtime::Engine;

/// How often a resting ticker looks whether the engine is still there.
const LOOK: Duration = Duration::from_secs(1);

pub(super) struct Ticker {
    /// Calls under way.
    calls: Arc<AtomicUsize>,
    thread: Thread,
}

impl Ticker {
    /// A plain thread: a runtime that is busy with guests would look at its own timers too late.
    pub(super) fn start(engine: &Engine) -> std::io::Result<Self> {
        let engine = engine.weak();
        let calls = Arc::new(AtomicUsize::new(0));
        let under_way = Arc::clone(&calls);
        let run = move || {
            while let Some(engine) = engine.upgrade() {
                engine.increment_epoch();
                drop(engine);
                if under_way.load(Ordering::Acquire) == 0 {
                    // A call that begins now leaves its mark, and this returns at once.
                    std::thread::park_timeout(LOOK);
                } else {
                    std::thread::sleep(TICK);
                }
            }
        };
        let handle = std::thread::Builder::new().name("plugin-tick".into()).stack_size(64 << 10).spawn(run)?;
        Ok(Ticker { calls, thread: handle.thread().clone() })
    }

    /// Ticks until the answer is dropped.
    pub(super) fn during_call(&self) -> Ticking<'_> {
        if self.calls.fetch_add(1, Ordering::AcqRel) == 0 {
            self.thread.unpark();
        }
        Ticking(&self.calls)
    }
}

pub(super) struct Ticking<'a>(&'a AtomicUsize);

impl Drop for Ticking<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// That it ticks is proved by the hostile suite: every endless guest there is interrupted, after a rest.
    #[test]
    fn calls_are_counted_in_and_out() {
        let engine = Engine::default();
        let ticker = Ticker::start(&engine).unwrap();
        let [first, second] = [ticker.during_call(), ticker.during_call()];
        drop(first);
        assert_eq!(ticker.calls.load(Ordering::SeqCst), 1);
        drop(second);
        assert_eq!(ticker.calls.load(Ordering::SeqCst), 0);
    }
}
