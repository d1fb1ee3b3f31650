//! One call's store: what the guest may take, when it must be done, what it wrote, and what its failure is called.

use super::bindings::hookgate::plugin::{log, types};
use super::lane::{Meter, QUICK_MAX, thread_cpu};
use super::{Limits, LogLine, engine};
use crate::delivery::{Fault, FaultKind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wasmtime::{PoolConcurrencyLimitError, ResourceLimiter, Store, Trap, UpdateDeadline, WasmBacktrace};

/// What goes with a store. A store serves one call and is gone.
pub(super) struct CallState {
    budget: Budget,
    call_time_max: Duration,
    pub(super) memory_bytes: usize,
    memory_bytes_max: usize,
    memory_growth: usize,
    memory_refused: bool,
    table_elements: usize,
    pub(super) log: CallLog,
}

/// What a call may take of a processor.
pub(super) enum Budget {
    /// A millisecond or two, at a stretch: whoever is not done by then is [`NotQuick`].
    Quick {
        began: Instant,
        /// CPU time of the thread at the first tick.
        first_tick: Option<Duration>,
    },
    /// All that the limits allow, in slices of a tick.
    Long(Arc<Meter>),
}

impl Budget {
    pub(super) fn quick() -> Self {
        Budget::Quick { began: Instant::now(), first_tick: None }
    }

    /// Of a long call it is CPU time; a quick one is over before anything comes between.
    pub(super) fn spent(&self) -> Duration {
        match self {
            Budget::Quick { began, .. } => began.elapsed(),
            Budget::Long(meter) => meter.spent(),
        }
    }
}

/// The lines of a call, bounded in number and length.
pub(super) struct CallLog {
    pub(super) lines: Vec<LogLine>,
    pub(super) dropped: u32,
    lines_max: usize,
    line_bytes_max: usize,
}

impl CallLog {
    pub(super) fn new(limits: &Limits) -> Self {
        CallLog {
            lines: Vec::new(),
            dropped: 0,
            lines_max: limits.log_lines_max,
            line_bytes_max: limits.log_line_bytes_max,
        }
    }

    pub(super) fn push(&mut self, level: &str, message: &str) {
        if self.lines.len() < self.lines_max {
            let message = printable(message, self.line_bytes_max);
            self.lines.push(LogLine { level: level.to_owned(), message });
        } else {
            self.dropped = self.dropped.saturating_add(1);
        }
    }
}

/// At most `bytes_max` bytes, with control and format characters escaped, so that no terminal obeys them.
pub(super) fn printable(text: &str, bytes_max: usize) -> String {
    let mut shown = String::with_capacity(text.len().min(bytes_max));
    for c in text.chars() {
        let before = shown.len();
        // Bidirectional controls turn what is read around.
        let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if c.is_control() || turns {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
        if shown.len() > bytes_max {
            shown.truncate(before);
            break;
        }
    }
    shown
}

impl CallState {
    /// A store for one call that begins now.
    pub(super) fn store(engine: &wasmtime::Engine, limits: &Limits, budget: Budget) -> Store<CallState> {
        let state = CallState {
            budget,
            call_time_max: limits.call_time_max,
            memory_bytes: 0,
            memory_bytes_max: limits.memory_bytes_max,
            memory_growth: 0,
            memory_refused: false,
            table_elements: 0,
            log: CallLog::new(limits),
        };
        let mut store = Store::new(engine, state);
        store.limiter(|state| state);
        store.set_hostcall_fuel(limits.output_bytes_max);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|mut store| store.data_mut().tick());
        store
    }

    /// A guest has run into the next tick.
    fn tick(&mut self) -> wasmtime::Result<UpdateDeadline> {
        match &mut self.budget {
            // A tick comes at any time, and a thread may have been kept from running: what counts is CPU from here on.
            Budget::Quick { first_tick, .. } => {
                let now = thread_cpu();
                let since = now.saturating_sub(*first_tick.get_or_insert(now));
                if since >= QUICK_MAX { Err(NotQuick.into()) } else { Ok(UpdateDeadline::Continue(1)) }
            }
            Budget::Long(meter) if meter.spent() >= self.call_time_max => Err(DeadlinePassed.into()),
            Budget::Long(_) => Ok(UpdateDeadline::Yield(1)),
        }
    }

    pub(super) fn spent(&self) -> Duration {
        self.budget.spent()
    }

    pub(super) fn fault(&self, error: &wasmtime::Error) -> Fault {
        let kind = if error.is::<DeadlinePassed>() {
            FaultKind::Deadline
        } else if error.is::<PoolConcurrencyLimitError>() {
            FaultKind::Unavailable
        } else if self.memory_refused {
            // Having got no memory, guests give up in ways of their own.
            FaultKind::Memory
        } else if error.root_cause().to_string().starts_with(FUEL_EXHAUSTED) {
            FaultKind::OutputTooLarge
        } else {
            FaultKind::Trap
        };
        let cause = match kind {
            FaultKind::Memory => format!("more than {} bytes of memory asked for", self.memory_bytes_max),
            FaultKind::OutputTooLarge => "more data given to the host than a call may".to_owned(),
            FaultKind::Deadline
            | FaultKind::Trap
            | FaultKind::BadOutput
            | FaultKind::InputTooLarge
            | FaultKind::Plugin
            | FaultKind::Unavailable => match error.downcast_ref::<Trap>() {
                Some(trap) => trap.to_string(),
                None => error.root_cause().to_string(),
            },
        };
        let place = error.downcast_ref::<WasmBacktrace>().map(place).unwrap_or_default();
        Fault { kind, detail: printable(&format!("{cause}{place}"), 1024) }
    }
}

/// The type of this error is not public, so it is known by its text. A test holds it against the real one.
const FUEL_EXHAUSTED: &str = "too much data is being copied between the host and the guest";

#[derive(Debug, thiserror::Error)]
#[error("not done when its time was over")]
struct DeadlinePassed;

/// No fault: it is called again, where there is more time.
#[derive(Debug, thiserror::Error)]
#[error("not done at a stretch")]
pub(super) struct NotQuick;

/// Where in the guest it happened, as far as the component has names.
fn place(backtrace: &WasmBacktrace) -> String {
    let names: Vec<_> = backtrace.frames().iter().filter_map(|f| f.func_name()).take(4).collect();
    if names.is_empty() { String::new() } else { format!(" in {}", names.join(" < ")) }
}

impl ResourceLimiter for CallState {
    /// All memories count together: some toolchains make three in one component.
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let growth = desired.saturating_sub(current);
        let total = self.memory_bytes.saturating_add(growth);
        if total > self.memory_bytes_max {
            self.memory_refused = true;
            return Ok(false);
        }
        self.memory_bytes = total;
        self.memory_growth = growth;
        Ok(true)
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.memory_bytes = self.memory_bytes.saturating_sub(std::mem::take(&mut self.memory_growth));
        Ok(())
    }

    fn table_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let total = self.table_elements.saturating_add(desired.saturating_sub(current));
        if total > engine::TABLE_ELEMENTS_MAX {
            return Ok(false);
        }
        self.table_elements = total;
        Ok(true)
    }

    fn instances(&self) -> usize {
        engine::CORE_INSTANCES_MAX as usize
    }

    fn tables(&self) -> usize {
        engine::TABLES_MAX as usize
    }

    fn memories(&self) -> usize {
        engine::MEMORIES_MAX as usize
    }
}

impl log::Host for CallState {
    fn log(&mut self, level: log::Level, message: String) {
        let level = match level {
            log::Level::Debug => "debug",
            log::Level::Info => "info",
            log::Level::Warn => "warn",
            log::Level::Error => "error",
        };
        self.log.push(level, &message);
    }
}

impl types::Host for CallState {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_escaped_and_counted() {
        let limits = Limits { log_lines_max: 2, log_line_bytes_max: 8, ..Limits::default() };
        let mut log = CallLog::new(&limits);
        for text in ["a\nb\u{1b}[2J", "äöüäö", "third", "fourth"] {
            log.push("info", text);
        }
        let lines: Vec<_> = log.lines.iter().map(|l| l.message.as_str()).collect();
        assert_eq!(lines, ["a\\nb", "äöüä"]);
        assert_eq!(log.dropped, 2);
        assert_eq!(printable("x\u{202e}y", 100), "x\\u{202e}y");
    }

    #[test]
    fn memories_and_tables_are_summed() {
        let engine = engine::engine(engine::Allocator::OnDemand, 1).unwrap();
        let limits = Limits { memory_bytes_max: 100, ..Limits::default() };
        let mut store = CallState::store(&engine, &limits, Budget::quick());
        let state = store.data_mut();
        assert!(state.memory_growing(0, 60, None).unwrap());
        assert!(state.memory_growing(0, 40, None).unwrap());
        assert!(!state.memory_growing(40, 41, None).unwrap());
        state.memory_grow_failed(wasmtime::Error::msg("no memory")).unwrap();
        assert!(state.memory_growing(0, 40, None).unwrap());
        assert!(state.table_growing(0, 12_000, None).unwrap());
        assert!(!state.table_growing(0, 12_000, None).unwrap());
    }
}
